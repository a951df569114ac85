//! Fencing over a quorum. `tests/checks/quorum_model` describes the model.

mod promise;
mod protocol;
mod release;
mod search;
mod state;

pub use promise::{Promise, Step};
pub use protocol::{Bounds, Flaw, Protocol};
pub use search::search;
pub use state::SERVERS;
