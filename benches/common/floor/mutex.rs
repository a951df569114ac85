//! A hand-off by hand, with the scripts by which a `Mutex` acquires and releases a free lock. A
//! subscriber thread shared by all waiters receives the release message and wakes a waiter over a
//! channel. The waiter then acquires the lock on a second connection. It has no place in the queue,
//! so no release grants to it.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::pair::{Hand, channel, connect};
use crate::ping_pong::Side;

/// The waiters by channel. A client has one entry for each name that it waits for; a bench has one
/// name, and pays for the look-up as a client does.
type Waiting = Arc<parking_lot::Mutex<HashMap<String, Sender<Vec<u8>>>>>;

pub struct HandWritten {
    hand: Hand,
    url: String,
    /// The subscriber thread, which the first wait starts, sends the releases here.
    released: Option<Receiver<Vec<u8>>>,
    id: Option<String>,
}

impl HandWritten {
    const NAME: &str = "woken-by-hand";

    pub fn new(url: &str) -> Self {
        Self {
            hand: Hand::new(url, Self::NAME),
            url: url.to_owned(),
            released: None,
            id: None,
        }
    }
}

impl Side for HandWritten {
    fn take(&mut self) {
        // A release before the attempt must not end a wait after it.
        while self.released.as_ref().is_some_and(|r| r.try_recv().is_ok()) {}
        loop {
            self.id = self.hand.acquire();
            if self.id.is_some() {
                return;
            }
            match &self.released {
                // Only a release before the subscription is missed, so this rarely times out.
                Some(released) => drop(released.recv_timeout(Duration::from_secs(1))),
                None => self.released = Some(subscribe(&self.url, channel(Self::NAME))),
            }
        }
    }

    fn release(&mut self) {
        let id = self.id.take().expect("the lock is held");
        self.hand.release(&id);
    }
}

/// Starts the subscriber thread for all waiters. It ends with the process.
pub(super) fn subscribe(url: &str, channel: String) -> Receiver<Vec<u8>> {
    let mut connection = connect(url);
    connection.set_read_timeout(None).unwrap();
    let (wake, releases) = unbounded();
    let waiting = Waiting::default();
    waiting.lock().insert(channel.clone(), wake);
    let (ready, subscribed) = unbounded();
    thread::spawn(move || {
        let mut messages = connection.as_pubsub();
        messages.subscribe(channel).unwrap();
        ready.send(()).unwrap();
        while let Ok(message) = messages.get_message() {
            if let Some(waiter) = waiting.lock().get(message.get_channel_name()) {
                let _ = waiter.send(message.get_payload_bytes().to_vec());
            }
        }
    });
    subscribed.recv().unwrap();
    releases
}
