//! The colours, text sizes and shapes of the pictures.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The sizes of text. plotters draws about four fifths of them in pixels.
pub(crate) const LARGE: i32 = 20;
pub(crate) const NORMAL: i32 = 15;
pub(crate) const INK: RGBColor = RGBColor(31, 41, 55);
pub(crate) const FAINT: RGBColor = RGBColor(107, 114, 128);
pub(crate) const GRID: RGBColor = RGBColor(229, 231, 235);
pub(crate) const OURS: RGBColor = RGBColor(14, 116, 144);
pub(crate) const OTHERS: RGBColor = RGBColor(156, 163, 175);
pub(crate) const MARK: RGBColor = RGBColor(190, 18, 60);

pub(crate) fn text(
    area: &Area<'_>,
    what: &str,
    at: (i32, i32),
    size: i32,
    color: RGBColor,
    side: HPos,
) {
    let style = ("sans-serif", size).into_font().color(&color);
    let style = style.pos(Pos::new(side, VPos::Center));
    let drawn = area.draw(&Text::new(what.to_owned(), at, style));
    drawn.expect("the file can be written");
}

pub(crate) fn line(area: &Area<'_>, ends: [(i32, i32); 2], color: RGBColor, width: u32) {
    let drawn = area.draw(&PathElement::new(ends, color.stroke_width(width)));
    drawn.expect("the file can be written");
}

pub(crate) fn rectangle(area: &Area<'_>, corners: [(i32, i32); 2], color: RGBColor) {
    let drawn = area.draw(&Rectangle::new(corners, color.filled()));
    drawn.expect("the file can be written");
}

pub(crate) fn circle(area: &Area<'_>, at: (i32, i32), radius: i32, color: RGBColor) {
    let drawn = area.draw(&Circle::new(at, radius, color.filled()));
    drawn.expect("the file can be written");
}
