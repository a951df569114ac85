//! The client's threads, and the state they share with each other and with callers.

pub(crate) mod callbacks;
mod calls;
pub(crate) mod effects;
pub(crate) mod endpoint;
pub(crate) mod engine;
#[cfg(feature = "testing")]
pub(crate) mod live_clients;
pub(crate) mod snapshot;
pub(crate) mod state;
pub(crate) mod subscriber;
pub(crate) mod wake;
pub(crate) mod worker;

use std::sync::Arc;

use crate::config::Config;
use crate::error::Error;
use crate::redis::Deployment;
use crate::runtime::engine::engine_loop;
pub(crate) use crate::runtime::state::Runtime;
use crate::runtime::state::ThreadBodies;
use crate::runtime::subscriber::listen;

/// Returns the runtime of a new client; no thread runs yet.
///
/// # Errors
///
/// [`Error::Shortage`] if the system has no file descriptor left.
pub(crate) fn new(config: Config, deployment: Deployment) -> Result<Arc<Runtime>, Error> {
    let bodies = ThreadBodies {
        engine: engine_loop::run,
        subscriber: listen::run,
    };
    let runtime = Runtime::new(config, deployment, bodies)?;
    #[cfg(feature = "testing")]
    live_clients::add(&runtime);
    Ok(runtime)
}
