//! Draws measurements as bars and ranges in an SVG file, each with the target that it should reach.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::Spread;

const WIDTH: i32 = 900;
const LEFT: i32 = 250;
/// The right end of the plot; values are written after it.
const RIGHT: i32 = 730;
const ROW: i32 = 26;

const INK: RGBColor = RGBColor(31, 41, 55);
const FAINT: RGBColor = RGBColor(107, 114, 128);
const GRID: RGBColor = RGBColor(229, 231, 235);
const OURS: RGBColor = RGBColor(14, 116, 144);
const OTHERS: RGBColor = RGBColor(156, 163, 175);
const MARK: RGBColor = RGBColor(190, 18, 60);

/// Panels, one below the other, each with its own scale.
pub(crate) struct Picture {
    pub(crate) title: String,
    pub(crate) panels: Vec<Panel>,
}

pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) rows: Vec<Row>,
}

pub(crate) struct Row {
    label: String,
    shape: Shape,
    is_ours: bool,
    /// The value of the target, if it is one, and the text at the end of the row.
    mark: Option<(Option<f64>, String)>,
}

/// All rows of a panel have the same shape.
enum Shape {
    /// A bar from 0, with the quartiles over its end.
    Bar(Spread),
    /// p50, p99 and maximum on a logarithmic scale, since they differ widely.
    Range([f64; 3]),
    /// No measurement, for this reason.
    Nothing(String),
}

impl Row {
    pub(crate) fn bar(label: impl Into<String>, value: Spread) -> Self {
        Self::new(label, Shape::Bar(value))
    }

    /// p50, p99, maximum.
    pub(crate) fn range(label: impl Into<String>, points: [f64; 3]) -> Self {
        Self::new(label, Shape::Range(points))
    }

    pub(crate) fn nothing(label: impl Into<String>, why: impl Into<String>) -> Self {
        Self::new(label, Shape::Nothing(why.into()))
    }

    fn new(label: impl Into<String>, shape: Shape) -> Self {
        Self {
            label: label.into(),
            shape,
            is_ours: false,
            mark: None,
        }
    }

    /// Draws the row in the colour of leasehold; all others are grey.
    pub(crate) fn ours(self) -> Self {
        Self {
            is_ours: true,
            ..self
        }
    }

    /// Adds a target: `"≤"` or `"≥"`, and a value.
    pub(crate) fn mark(self, side: &str, at: f64) -> Self {
        Self {
            mark: Some((Some(at), format!("{side} {at}"))),
            ..self
        }
    }

    /// Adds a note in place of a target.
    pub(crate) fn note(self, what: &str) -> Self {
        Self {
            mark: Some((None, what.to_owned())),
            ..self
        }
    }

    fn values(&self) -> Vec<f64> {
        let mark = self.mark.iter().filter_map(|(at, _)| *at);
        match &self.shape {
            Shape::Bar(spread) => mark.chain([spread.median, spread.high]).collect(),
            Shape::Range(points) => mark.chain(*points).collect(),
            Shape::Nothing(_) => Vec::new(),
        }
    }
}

impl Panel {
    pub(crate) fn new(title: impl Into<String>, rows: Vec<Row>) -> Self {
        let title = title.into();
        Self { title, rows }
    }

    fn height(&self) -> i32 {
        62 + ROW * i32::try_from(self.rows.len()).expect("a few rows")
    }

    fn scale(&self) -> Scale {
        let values: Vec<f64> = self.rows.iter().flat_map(Row::values).collect();
        let most = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let is_range = |row: &Row| matches!(row.shape, Shape::Range(_));
        match self.rows.iter().any(is_range) {
            true => {
                let above_zero = values.into_iter().filter(|value| *value > 0.0);
                let least = above_zero.fold(most, f64::min);
                Scale::Powers(least.log10().floor(), most.log10().ceil())
            }
            // Leaves room: a bar that reaches the end would look cut off.
            false => Scale::Even(most * 1.04),
        }
    }
}

enum Scale {
    /// From 0 to this value.
    Even(f64),
    /// Between these powers of ten.
    Powers(f64, f64),
}

impl Scale {
    fn x(&self, value: f64) -> i32 {
        let part = match self {
            Self::Even(most) => value / most,
            Self::Powers(least, most) => {
                (value.max(1e-9).log10() - least) / (most - least).max(1.0)
            }
        };
        LEFT + (part.clamp(0.0, 1.0) * f64::from(RIGHT - LEFT)).round() as i32
    }

    fn ticks(&self) -> Vec<f64> {
        match self {
            Self::Even(most) => {
                // The step of 1, 2 or 5 times a power of ten that gives at most six ticks.
                let power = 10f64.powf((most / 6.0).log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power);
                let step = step.into_iter().find(|step| most / step <= 6.0);
                let step = step.unwrap_or(*most);
                (0..=(most / step) as u32)
                    .map(|n| f64::from(n) * step)
                    .collect()
            }
            Self::Powers(least, most) => (*least as i32..=*most as i32)
                .map(|power| 10f64.powi(power))
                .collect(),
        }
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

impl Picture {
    pub(crate) fn draw(&self, path: &Path) {
        let height = 52 + self.panels.iter().map(Panel::height).sum::<i32>();
        let size = (WIDTH.unsigned_abs(), height.unsigned_abs());
        let area = SVGBackend::new(path, size).into_drawing_area();
        area.fill(&WHITE).expect("the file can be written");
        text(&area, &self.title, (20, 28), 19, INK, HPos::Left);
        let mut top = 52;
        for panel in &self.panels {
            panel.draw(&area, top);
            top += panel.height();
        }
        area.present().expect("the file can be written");
    }
}

impl Panel {
    fn draw(&self, area: &Area<'_>, top: i32) {
        let scale = self.scale();
        text(area, &self.title, (20, top + 10), 14, FAINT, HPos::Left);
        let first = top + 26;
        let bottom = first + ROW * i32::try_from(self.rows.len()).expect("a few rows");
        for tick in scale.ticks() {
            let x = scale.x(tick);
            line(area, [(x, first), (x, bottom)], GRID, 1);
            text(
                area,
                &short(tick),
                (x, bottom + 11),
                12,
                FAINT,
                HPos::Center,
            );
        }
        for (row, n) in self.rows.iter().zip(0..) {
            row.draw(area, &scale, first + n * ROW);
        }
    }
}

impl Row {
    fn draw(&self, area: &Area<'_>, scale: &Scale, top: i32) {
        let color = if self.is_ours { OURS } else { OTHERS };
        let middle = top + ROW / 2;
        text(area, &self.label, (LEFT - 10, middle), 13, INK, HPos::Right);
        let said = match &self.shape {
            Shape::Bar(spread) => {
                let corners = [(LEFT, top + 5), (scale.x(spread.median), top + ROW - 5)];
                rectangle(area, corners, color);
                let ends = [
                    (scale.x(spread.low), middle),
                    (scale.x(spread.high), middle),
                ];
                line(area, ends, INK, 1);
                short(spread.median)
            }
            Shape::Range(points) => {
                let [half, most_of, most] = points.map(|point| scale.x(point));
                line(area, [(half, middle), (most, middle)], color, 2);
                circle(area, (half, middle), 6, color);
                circle(area, (most_of, middle), 4, color);
                line(area, [(most, middle - 5), (most, middle + 5)], color, 2);
                points.map(short).join(" · ")
            }
            Shape::Nothing(why) => why.clone(),
        };
        let color = if self.is_ours { INK } else { FAINT };
        text(area, &said, (RIGHT + 12, middle), 12, color, HPos::Left);
        if let Some((at, what)) = &self.mark {
            if let Some(at) = at {
                let x = scale.x(*at);
                line(area, [(x, top + 1), (x, top + ROW - 1)], MARK, 2);
            }
            text(area, what, (WIDTH - 20, middle), 12, MARK, HPos::Right);
        }
    }
}

/// Formats with at most three digits: measurements are not more precise.
fn short(value: f64) -> String {
    match value {
        v if v.is_nan() => "none".to_owned(),
        0.0 => "0".to_owned(),
        v if v.abs() >= 1_000_000.0 => trim(format!("{:.1}", v / 1_000_000.0)) + "M",
        v if v.abs() >= 10_000.0 => format!("{:.0}k", v / 1_000.0),
        v if v.abs() >= 100.0 => format!("{v:.0}"),
        v if v.abs() >= 10.0 => trim(format!("{v:.1}")),
        v => trim(format!("{v:.2}")),
    }
}

fn trim(digits: String) -> String {
    digits
        .trim_end_matches('0')
        .trim_end_matches('.')
        .to_owned()
}

fn text(area: &Area<'_>, what: &str, at: (i32, i32), size: i32, color: RGBColor, side: HPos) {
    let style = ("sans-serif", size).into_font().color(&color);
    let style = style.pos(Pos::new(side, VPos::Center));
    let drawn = area.draw(&Text::new(what.to_owned(), at, style));
    drawn.expect("the file can be written");
}

fn line(area: &Area<'_>, ends: [(i32, i32); 2], color: RGBColor, width: u32) {
    let drawn = area.draw(&PathElement::new(ends, color.stroke_width(width)));
    drawn.expect("the file can be written");
}

fn rectangle(area: &Area<'_>, corners: [(i32, i32); 2], color: RGBColor) {
    let drawn = area.draw(&Rectangle::new(corners, color.filled()));
    drawn.expect("the file can be written");
}

fn circle(area: &Area<'_>, at: (i32, i32), radius: i32, color: RGBColor) {
    let drawn = area.draw(&Circle::new(at, radius, color.filled()));
    drawn.expect("the file can be written");
}
