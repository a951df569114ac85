//! The legend of a picture: what its marks mean, in plain words.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use crate::pen::{Area, FAINT, INK, MARK, NORMAL, OTHERS, OURS, circle, line, rectangle, text};

const ROW: i32 = 28;

/// The marks that a picture has.
pub(crate) struct Legend {
    pub(crate) ours: bool,
    pub(crate) ranges: bool,
    pub(crate) bars: Option<Bars>,
    pub(crate) targets: bool,
}

/// The samples that a bar of a picture summarizes.
#[derive(Clone, Copy)]
pub(crate) enum Bars {
    OfRounds,
    OfRuns,
}

/// A mark of the picture, for the legend.
enum Sample {
    Colour(RGBColor),
    Dot(i32),
    End,
    Bar,
    Target,
}

impl Sample {
    fn draw(&self, area: &Area<'_>, x: i32, y: i32) {
        match self {
            Self::Colour(color) => rectangle(area, [(x, y - 7), (x + 20, y + 7)], *color),
            Self::Dot(radius) => circle(area, (x + 10, y), *radius, FAINT),
            Self::End => {
                line(area, [(x, y), (x + 20, y)], FAINT, 2);
                line(area, [(x + 20, y - 5), (x + 20, y + 5)], FAINT, 2);
            }
            Self::Bar => {
                rectangle(area, [(x, y - 7), (x + 16, y + 7)], OTHERS);
                line(area, [(x + 10, y), (x + 22, y)], INK, 1);
            }
            Self::Target => line(area, [(x + 10, y - 9), (x + 10, y + 9)], MARK, 2),
        }
    }
}

impl Legend {
    pub(crate) fn height(&self) -> i32 {
        i32::try_from(self.lines().len()).expect("a few lines") * ROW
    }

    pub(crate) fn draw(&self, area: &Area<'_>, top: i32) {
        for (line, n) in self.lines().iter().zip(0..) {
            let middle = top + n * ROW + ROW / 2 - 8;
            for (sample, x, meaning) in line {
                sample.draw(area, *x, middle);
                text(area, meaning, (x + 30, middle), NORMAL, FAINT, HPos::Left);
            }
        }
    }

    /// Returns, for each line, the samples, where they stand, and their meanings.
    fn lines(&self) -> Vec<Vec<(Sample, i32, &'static str)>> {
        let mut lines = Vec::new();
        if self.ours {
            lines.push(vec![
                (Sample::Colour(OURS), 20, "leasehold"),
                (Sample::Colour(OTHERS), 160, "everything else"),
            ]);
        }
        if self.ranges {
            lines.push(vec![
                (Sample::Dot(6), 20, "half of all are shorter"),
                (Sample::Dot(4), 220, "99 of 100 are shorter"),
                (Sample::End, 400, "the longest of all"),
            ]);
        }
        if let Some(bars) = self.bars {
            let meaning = match bars {
                Bars::OfRounds => {
                    "the median of all rounds; the thin line spans the middle half of them"
                }
                Bars::OfRuns => "the median of all runs; the thin line spans all of them",
            };
            lines.push(vec![(Sample::Bar, 20, meaning)]);
        }
        if self.targets {
            let meaning = "the value that it should reach: at most (≤) or at least (≥)";
            lines.push(vec![(Sample::Target, 20, meaning)]);
        }
        lines
    }
}
