//! Waits for the messages that a release publishes.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::Receiver;

use super::super::mutex::subscribe;

/// The messages of a channel, from the first wait on. Each message wakes one of the threads that
/// share a channel by clones.
#[derive(Clone)]
pub struct Channel {
    url: String,
    name: String,
    messages: Arc<OnceLock<Receiver<Vec<u8>>>>,
}

impl Channel {
    pub(super) fn new(url: &str, name: String) -> Self {
        Self {
            url: url.to_owned(),
            name,
            messages: Arc::default(),
        }
    }

    /// Drops the messages that have arrived: no wait may end because of a release before the next
    /// attempt.
    pub(super) fn forget(&self) {
        let messages = self.messages.get().into_iter();
        messages.for_each(|messages| while messages.try_recv().is_ok() {});
    }

    /// Waits for a release, for at most `longest`. The first wait returns as soon as it has
    /// subscribed: a release may have been missed before.
    pub(super) fn wait(&self, longest: Option<Duration>) {
        let subscribe = || subscribe(&self.url, self.name.clone());
        match (self.messages.get(), longest) {
            (None, _) => drop(self.messages.get_or_init(subscribe).len()),
            (Some(messages), Some(longest)) => drop(messages.recv_timeout(longest)),
            (Some(messages), None) => drop(messages.recv()),
        }
    }
}
