//! The subscriber thread's connections to the sentinels, which announce that the master has moved,
//! and the question where it is.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, TryRecvError};

use crate::clock::Instant;
use crate::error_reply::library_text;
use crate::logging;
use crate::redis::{Connection, MOVES, Sentinels};
use crate::runtime::endpoint::Endpoint;
use crate::runtime::state::Runtime;
use crate::runtime::subscriber::Ended;
use crate::runtime::subscriber::link::{ConnectJob, Peer};
use crate::runtime::subscriber::pubsub::{PubSub, Received};

/// How often a sentinel is asked for a sign of life, and how long that may take. A proxy or a
/// sentinel that hangs leaves the connection open, and nothing else is due on it until the next
/// failover.
const PING_EVERY: Duration = Duration::from_secs(5);

/// One sentinel: any of them may be cut off from the master.
pub(super) struct SentinelPeer {
    sentinels: Arc<Sentinels>,
    number: usize,
    is_subscribed: bool,
    ping_at: Instant,
}

/// Asks all sentinels for the master when that is due, and follows it.
pub(super) struct MasterWatch {
    sentinels: Arc<Sentinels>,
    /// Disconnected when the job that asks has ended.
    asking: Option<Receiver<()>>,
    /// How many moves of the master were followed.
    moves: u64,
}

impl SentinelPeer {
    pub(super) fn all(sentinels: &Arc<Sentinels>) -> impl Iterator<Item = Self> {
        (0..sentinels.len()).map(|number| Self {
            sentinels: Arc::clone(sentinels),
            number,
            is_subscribed: false,
            ping_at: Instant::NEVER,
        })
    }
}

impl Peer for SentinelPeer {
    fn endpoint(&self) -> Option<&Arc<Endpoint>> {
        None
    }

    fn is_wanted(&self) -> bool {
        true
    }

    fn connect(&self, runtime: &Runtime) -> ConnectJob {
        let (sentinels, number) = (Arc::clone(&self.sentinels), self.number);
        let timeout = runtime.config.connect_timeout;
        Box::new(move || {
            let connection = sentinels.connection(number, timeout);
            connection.map_err(|error| library_text(&error))
        })
    }

    fn connected(&mut self, connection: Connection) -> Result<PubSub, String> {
        let mut pubsub = PubSub::new(connection, PING_EVERY);
        pubsub.send("SUBSCRIBE", &[MOVES.to_vec()])?;
        self.is_subscribed = false;
        self.ping_at = Instant::now().after(PING_EVERY);
        Ok(pubsub)
    }

    fn handle(&mut self, _: &Runtime, received: Received) -> Result<(), Ended> {
        match received {
            Received::Message(_, text) if self.sentinels.is_about_master(&text) => {
                self.sentinels.ask_again();
            }
            Received::Subscribed(_) => {
                self.is_subscribed = true;
                // There may have been a failover while there was no subscription.
                self.sentinels.ask_again();
            }
            // That of a PING proves as well that the sentinel is alive.
            Received::Refused(why) if !self.is_subscribed => return Err(Ended::Failed(why)),
            _ => {}
        }
        Ok(())
    }

    fn turn(&mut self, pubsub: &mut PubSub) -> Result<Instant, Ended> {
        let now = Instant::now();
        if now >= self.ping_at {
            self.ping_at = now.after(PING_EVERY);
            pubsub.ping()?;
        }
        Ok(self.ping_at)
    }

    fn ended(&mut self, runtime: &Runtime, ended: &Ended, _: bool) -> bool {
        if let Ended::Failed(why) = ended {
            let (server, number) = (runtime.deployment.label(), self.number);
            logging::debug!(server = server; "cannot listen to sentinel {number}: {why}");
        }
        true
    }
}

impl MasterWatch {
    pub(super) fn of(sentinels: &Arc<Sentinels>) -> Self {
        Self {
            asking: None,
            moves: sentinels.moves(),
            sentinels: Arc::clone(sentinels),
        }
    }

    /// Returns when the next [`turn`](Self::turn) is due. The end of a job also wakes the thread.
    pub(super) fn due(&self) -> Instant {
        match self.asking {
            Some(_) => Instant::NEVER,
            None => self.sentinels.ask_at(),
        }
    }

    pub(super) fn turn(&mut self, runtime: &Runtime) {
        self.asking
            .take_if(|asking| asking.try_recv() != Err(TryRecvError::Empty));
        if self.asking.is_none() && self.sentinels.is_ask_due() {
            let server = runtime.deployment.fixed().first().cloned();
            let ask = move || {
                if let Some(server) = server.filter(|server| server.look_for_master()) {
                    logging::warn!(
                        server = server.label();
                        "the master has moved: every connection to the old one is closed"
                    );
                }
            };
            let thread = &runtime.endpoints.subscriber_thread;
            self.asking = Some(thread.delegate(&runtime.config.dialers, ask));
        }
        // A thread that connects may have noticed the move first.
        let moves = self.sentinels.moves();
        if std::mem::replace(&mut self.moves, moves) != moves {
            runtime.master_moved();
        }
    }
}
