//! Models of the protocol, one for each kind of queue or lock, and the search through their states.
//!
//! The tests in `tests/{permits,queue,quorum,rw,set}_model` say what is searched, and what must
//! hold. `tests/checks/lease_model.rs` has a model of its own, for the same search.
//! These models are a separate package: a debug build optimizes this package alone, and the
//! searches are several times faster.

/// Implements the methods for the one `Flaw` that the `Rules` of a model may have.
macro_rules! flawed {
    () => {
        impl Rules {
            pub fn with(self, flaw: Flaw) -> Self {
                Self {
                    flaw: Some(flaw),
                    ..self
                }
            }

            pub(super) fn has(&self, flaw: Flaw) -> bool {
                self.flaw == Some(flaw)
            }
        }
    };
}
use flawed;

pub mod permits;
pub mod queue;
pub mod quorum;
pub mod rw;
mod search;

pub use search::{Counterexample, Model, assert_found, count_states};
