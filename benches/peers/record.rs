//! The figures and problems of this run, by key and candidate.

use serde_json::{Map, Value};

#[derive(Default)]
pub(crate) struct Record {
    pub(crate) figures: Map<String, Value>,
    pub(crate) problems: Map<String, Value>,
}

impl Record {
    /// A candidate without a measurement, such as one that never held the lock, has no figure.
    pub(crate) fn add(&mut self, key: &str, candidate: &str, value: f64) {
        let figures = self.figures.entry(key).or_insert_with(|| Map::new().into());
        let rounded = (value * 1e4).round() / 1e4;
        if let (Some(figures), true) = (figures.as_object_mut(), value.is_finite()) {
            figures.insert(candidate.to_owned(), rounded.into());
        }
    }

    pub(crate) fn problem(&mut self, candidate: &str, problem: String) {
        if !problem.is_empty() {
            self.problems.insert(candidate.to_owned(), problem.into());
        }
    }
}
