//! Helpers of the benches: turns, percentiles, tables, hand-written equivalents, and reports.

pub mod affinity;
pub mod candidates;
mod clocks;
pub mod fleet;
pub mod floor;
mod legend;
pub mod monitor;
mod pen;
pub mod picture;
pub mod ping_pong;
pub mod report;
mod samples;
pub mod series;
mod table;
mod turns;
pub mod window;

pub use clocks::{clock, processor_time, server_processor_time};
pub use report::Report;
pub use samples::{Samples, Spread, micros, percentile};
pub use table::{print_pairs, print_table};
pub use turns::{Runner, repeat_at_once, take_turns, timed, turns};
