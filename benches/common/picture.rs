//! Draws measurements as bars and ranges in an SVG file, each with the target that it should reach.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use crate::legend::{Bars, Legend};
use crate::pen::{
    Area, FAINT, GRID, INK, LARGE, MARK, NORMAL, OTHERS, OURS, circle, line, rectangle, text,
};
use crate::samples::Spread;

/// The width of a page of text. Wider pictures would be scaled down, and their text with them.
const WIDTH: i32 = 700;
/// The right end of the plot; values are written after it.
const RIGHT: i32 = 510;
const ROW: i32 = 28;
/// The height of a line below the title.
const NOTE: i32 = 18;
/// The width of a character of `NORMAL` size, on average.
const CHARACTER: i32 = 7;

/// Panels, one below the other, each with its own scale.
pub struct Picture {
    pub title: String,
    pub panels: Vec<Panel>,
}

pub struct Panel {
    pub title: String,
    pub rows: Vec<Row>,
}

pub struct Row {
    label: String,
    shape: Shape,
    is_ours: bool,
    /// The value of a target, or `None` for a note, and the text at the end of the row.
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
    pub fn bar(label: impl Into<String>, value: Spread) -> Self {
        Self::new(label, Shape::Bar(value))
    }

    /// p50, p99, maximum.
    pub fn range(label: impl Into<String>, points: [f64; 3]) -> Self {
        Self::new(label, Shape::Range(points))
    }

    pub fn nothing(label: impl Into<String>, why: impl Into<String>) -> Self {
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
    pub fn ours(self) -> Self {
        Self {
            is_ours: true,
            ..self
        }
    }

    /// Adds a target: `"≤"` or `"≥"`, and a value.
    pub fn mark(self, side: &str, at: f64) -> Self {
        Self {
            mark: Some((Some(at), format!("{side} {at}"))),
            ..self
        }
    }

    /// Adds a note in place of a target.
    pub fn note(self, what: &str) -> Self {
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
    pub fn new(title: impl Into<String>, rows: Vec<Row>) -> Self {
        let title = title.into();
        Self { title, rows }
    }

    fn height(&self) -> i32 {
        62 + ROW * i32::try_from(self.rows.len()).expect("a few rows")
    }

    fn scale(&self, left: i32) -> Scale {
        let values: Vec<f64> = self.rows.iter().flat_map(Row::values).collect();
        let most = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let is_range = |row: &Row| matches!(row.shape, Shape::Range(_));
        let kind = if self.rows.iter().any(is_range) {
            let above_zero = values.into_iter().filter(|value| *value > 0.0);
            let least = above_zero.fold(most, f64::min);
            Kind::Powers(least.log10().floor(), most.log10().ceil())
        } else {
            // Leaves room: a bar that reaches the end would look cut off.
            Kind::Even(most * 1.04)
        };
        Scale { left, kind }
    }
}

struct Scale {
    /// The left end of the plot.
    left: i32,
    kind: Kind,
}

enum Kind {
    /// From 0 to this value.
    Even(f64),
    /// Between these powers of ten.
    Powers(f64, f64),
}

impl Scale {
    fn x(&self, value: f64) -> i32 {
        let part = match &self.kind {
            Kind::Even(most) => value / most,
            Kind::Powers(least, most) => {
                (value.max(1e-9).log10() - least) / (most - least).max(1.0)
            }
        };
        let width = f64::from(RIGHT - self.left);
        self.left + (part.clamp(0.0, 1.0) * width).round() as i32
    }

    fn ticks(&self) -> Vec<f64> {
        match &self.kind {
            Kind::Even(most) => {
                // The step of 1, 2 or 5 times a power of ten that gives at most five ticks.
                let power = 10f64.powf((most / 5.0).log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power);
                let step = step.into_iter().find(|step| most / step <= 5.0);
                let step = step.unwrap_or(*most);
                (0..=(most / step) as u32)
                    .map(|n| f64::from(n) * step)
                    .collect()
            }
            Kind::Powers(least, most) => (*least as i32..=*most as i32)
                .map(|power| 10f64.powi(power))
                .collect(),
        }
    }
}

impl Picture {
    pub fn draw(&self, path: &Path) {
        self.draw_with(path, &[], Bars::OfRounds);
    }

    /// Draws a picture of several runs, with lines that say when and where they were measured. The
    /// low and high value of a bar are the lowest and highest of all runs.
    pub fn draw_runs(&self, path: &Path, measured: &[String]) {
        self.draw_with(path, measured, Bars::OfRuns);
    }

    fn draw_with(&self, path: &Path, notes: &[String], bars: Bars) {
        let panels = self.panels.iter().map(Panel::height).sum::<i32>();
        let legend = self.legend(bars);
        let first = 52 + NOTE * i32::try_from(notes.len()).expect("a few lines");
        let height = first + panels + legend.height();
        let size = (WIDTH.unsigned_abs(), height.unsigned_abs());
        let area = SVGBackend::new(path, size).into_drawing_area();
        area.fill(&WHITE).expect("the file can be written");
        text(&area, &self.title, (20, 28), LARGE, INK, HPos::Left);
        let left = self.left();
        for (note, n) in notes.iter().zip(0..) {
            text(&area, note, (20, 48 + n * NOTE), NORMAL, FAINT, HPos::Left);
        }
        let mut top = first;
        for panel in &self.panels {
            panel.draw(&area, left, top);
            top += panel.height();
        }
        legend.draw(&area, top);
        area.present().expect("the file can be written");
    }
}

impl Picture {
    /// Returns where the plots begin: behind the longest label.
    fn left(&self) -> i32 {
        let rows = self.panels.iter().flat_map(|panel| &panel.rows);
        let longest = rows.map(|row| row.label.chars().count()).max().unwrap_or(0);
        (i32::try_from(longest).expect("a short label") * CHARACTER + 30).clamp(100, 340)
    }

    fn has(&self, is: impl Fn(&Row) -> bool) -> bool {
        self.panels.iter().flat_map(|panel| &panel.rows).any(is)
    }

    fn legend(&self, bars: Bars) -> Legend {
        Legend {
            ours: self.has(|row| row.is_ours),
            ranges: self.has(|row| matches!(row.shape, Shape::Range(_))),
            bars: self
                .has(|row| matches!(row.shape, Shape::Bar(_)))
                .then_some(bars),
            targets: self.has(|row| matches!(row.mark, Some((Some(_), _)))),
        }
    }
}

impl Panel {
    fn draw(&self, area: &Area<'_>, left: i32, top: i32) {
        let scale = self.scale(left);
        text(area, &self.title, (20, top + 10), NORMAL, FAINT, HPos::Left);
        let first = top + 26;
        let bottom = first + ROW * i32::try_from(self.rows.len()).expect("a few rows");
        for tick in scale.ticks() {
            let x = scale.x(tick);
            line(area, [(x, first), (x, bottom)], GRID, 1);
            text(
                area,
                &short(tick),
                (x, bottom + 11),
                NORMAL,
                FAINT,
                HPos::Center,
            );
        }
        for (row, n) in self.rows.iter().zip(0..) {
            row.draw(area, &scale, left, first + n * ROW);
        }
    }
}

impl Row {
    fn draw(&self, area: &Area<'_>, scale: &Scale, left: i32, top: i32) {
        let color = if self.is_ours { OURS } else { OTHERS };
        let middle = top + ROW / 2;
        let label = (left - 10, middle);
        text(area, &self.label, label, NORMAL, INK, HPos::Right);
        let said = match &self.shape {
            Shape::Bar(spread) => {
                let corners = [(left, top + 5), (scale.x(spread.median), top + ROW - 5)];
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
        text(area, &said, (RIGHT + 12, middle), NORMAL, color, HPos::Left);
        if let Some((at, what)) = &self.mark {
            if let Some(at) = at {
                let x = scale.x(*at);
                line(area, [(x, top + 1), (x, top + ROW - 1)], MARK, 2);
            }
            text(area, what, (WIDTH - 12, middle), NORMAL, MARK, HPos::Right);
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
