//! Waits for the messages that a release publishes.

use std::time::Duration;

use crossbeam_channel::Receiver;

use super::super::mutex::subscribe;

/// The messages of a channel, from the first wait on.
pub(super) struct Channel {
    url: String,
    name: String,
    messages: Option<Receiver<Vec<u8>>>,
}

impl Channel {
    pub(super) fn new(url: &str, name: String) -> Self {
        Self {
            url: url.to_owned(),
            name,
            messages: None,
        }
    }

    /// Drops the messages that have arrived: no wait may end because of a release before the next
    /// attempt.
    pub(super) fn forget(&self) {
        let messages = self.messages.iter();
        messages.for_each(|messages| while messages.try_recv().is_ok() {});
    }

    /// Waits for a release, for at most `longest`. The first wait returns as soon as it has
    /// subscribed: a release may have been missed before.
    pub(super) fn wait(&mut self, longest: Option<Duration>) {
        match (&self.messages, longest) {
            (None, _) => self.messages = Some(subscribe(&self.url, self.name.clone())),
            (Some(messages), Some(longest)) => drop(messages.recv_timeout(longest)),
            (Some(messages), None) => drop(messages.recv()),
        }
    }
}
