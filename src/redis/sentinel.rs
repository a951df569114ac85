//! The address of the master, as the sentinels report it.
//!
//! A sentinel may be out of date, or wrong. So the client asks all of them, and decides by what
//! they say together (`beliefs.rs`). It asks before it connects for the first time or after a
//! failure, when a sentinel announces a failover, after each subscription, and at intervals.

mod beliefs;
pub(crate) mod replies;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::{ErrorKind, RedisError, RedisResult};

use self::beliefs::{Beliefs, Report};
use self::replies::{is_about, read_address, read_epoch, read_id};
use crate::clock::Instant;
use crate::connect_failure::ConnectFailure;
use crate::error_reply::{is_final_at_logon, is_rejected_logon};
use crate::logging;
use crate::redis::conn::connection::Connection;
use crate::redis::conn::stream::Progress;
use crate::redis::gather::{Answers, Enough, NoAnswer, gather};
use crate::redis::members::Choice;
use crate::sync::Mutex;
use crate::thread_group::ThreadGroup;
use crate::url::{Address, HostPort, Sentinel};

/// At most this many threads ask one sentinel, so that one that hangs does not occupy ever more of
/// them: the look-up of its name may block for much longer than the time between two questions.
const MOST_ASKING: usize = 4;

/// The sentinels of one master, and the master address they reported.
pub(crate) struct Sentinels {
    pub(super) sentinel: Sentinel,
    dialers: ThreadGroup,
    beliefs: Mutex<Beliefs>,
    /// For each sentinel: its reference count is the number of threads that ask it plus one.
    asking: Vec<Arc<()>>,
    /// For each sentinel: it has accepted the last connection, and has sent nothing on it.
    awaits_first: Vec<AtomicBool>,
    /// The label of the address that was tried last, until a connection to it was made.
    trying: Mutex<Option<String>>,
    /// How many times the master has moved, and the connections to the old one were given up.
    moves: AtomicU64,
    /// Called when [`ask_at`](Self::ask_at) or [`moves`](Self::moves) may have changed.
    on_change: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// Connects to an address by an instant; fails unless it is a master. A peer that has accepted the
/// connection may have longer to reply if true is passed: no other address is tried.
type Open<'a> = &'a dyn Fn(&Address, Instant, bool) -> RedisResult<Connection>;

/// What the sentinels said when they were all asked.
struct Poll {
    reports: Vec<(usize, Report)>,
    choice: Choice<HostPort>,
    /// The [`changes`](Beliefs::changes) before the question.
    changes: u64,
}

impl Sentinels {
    pub(crate) fn new(sentinel: Sentinel, dialers: &ThreadGroup) -> Self {
        Self {
            beliefs: Mutex::new(Beliefs::none(sentinel.sentinels.len())),
            asking: sentinel.sentinels.iter().map(|_| Arc::default()).collect(),
            awaits_first: (sentinel.sentinels.iter())
                .map(|_| AtomicBool::default())
                .collect(),
            sentinel,
            dialers: dialers.clone(),
            trying: Mutex::default(),
            moves: AtomicU64::new(0),
            on_change: OnceLock::new(),
        }
    }

    /// Has `on_change` called when the sentinels must be asked at another time, or when the master
    /// was found to have moved.
    pub(crate) fn notify_with(&self, on_change: Box<dyn Fn() + Send + Sync>) {
        // Set once, when the client is made.
        let _ = self.on_change.set(on_change);
    }

    fn changed(&self) {
        if let Some(on_change) = self.on_change.get() {
            on_change();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.sentinel.sentinels.len()
    }

    /// Returns a connection to the master, made with `open`, and whether the master has just been
    /// found to have moved.
    ///
    /// Uses the known address if it serves. Else asks all sentinels, and tries the addresses that
    /// they name within `timeout`. If no sentinel answers, or only some that are out of date, a
    /// suspected address is better than none.
    pub(super) fn connect(
        self: &Arc<Self>,
        timeout: Duration,
        open: Open<'_>,
    ) -> RedisResult<(Connection, bool)> {
        // Until an address is tried, a failure is one of the sentinels.
        self.trying.lock().take();
        let serving = self.beliefs.lock().serving().cloned();
        if let Some(address) = serving {
            let until = Instant::now().after(timeout);
            return Ok((self.open(&address, until, true, open)?, false));
        }
        let (poll, mut candidates) = match self.poll(timeout) {
            Ok(poll) => {
                let candidates = poll.choice.candidates.clone();
                (Some(poll), candidates)
            }
            Err(error) if is_final_at_logon(&error) => return Err(error),
            Err(error) => match self.beliefs.lock().not_replaced() {
                Some(known) => (None, vec![known.clone()]),
                None => return Err(error),
            },
        };
        if candidates.is_empty() {
            // Another thread has just connected to the known address, or every sentinel that
            // answered is out of date.
            candidates.extend(self.beliefs.lock().not_replaced().cloned());
        }
        let end = Instant::now().after(timeout);
        let mut failure = None;
        for (n, address) in candidates.iter().enumerate() {
            let now = Instant::now();
            let until = now.after(now.until(end) / (candidates.len() - n) as u32);
            match self.open(address, until, candidates.len() == 1, open) {
                Ok(connection) => return Ok((connection, self.take(address, poll.as_ref())?)),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(changed_meanwhile))
    }

    /// Connects to an address, and records whether that worked.
    fn open(
        &self,
        address: &HostPort,
        until: Instant,
        is_only: bool,
        open: Open<'_>,
    ) -> RedisResult<Connection> {
        let master = self.at(address);
        *self.trying.lock() = Some(master.label.clone());
        let opened = open(&master, until, is_only).inspect(|_| *self.trying.lock() = None);
        opened.inspect_err(|error| {
            // A master that refuses a connection with an error of its own still serves, and so may
            // one that this client cannot log on to.
            let is_servers_fault =
                ConnectFailure::of(error).is_none_or(ConnectFailure::is_servers_fault);
            if error.code().is_none() && !is_rejected_logon(error) && is_servers_fault {
                self.beliefs.lock().failed(address, Instant::now());
            }
        })
    }

    /// Records that the master was found at `address`. Returns whether it has moved. Fails if
    /// another thread has found it elsewhere since the sentinels were asked: its answers may be
    /// newer, and an address that serves is not left as easily.
    fn take(&self, address: &HostPort, poll: Option<&Poll>) -> RedisResult<bool> {
        let mut beliefs = self.beliefs.lock();
        let is_changed = poll.is_some_and(|poll| poll.changes != beliefs.changes);
        if is_changed
            && beliefs
                .known()
                .is_none_or(|known| known.address != *address)
        {
            return Err(changed_meanwhile());
        }
        let epoch = poll.and_then(|poll| poll.epoch_of(address));
        Ok(beliefs.take(address, epoch, true))
    }

    fn at(&self, (host, port): &HostPort) -> Address {
        self.sentinel.data.at(host, *port)
    }

    /// Asks all sentinels, and weighs what they say.
    fn poll(self: &Arc<Self>, timeout: Duration) -> RedisResult<Poll> {
        let (changes, has_master) = {
            let beliefs = self.beliefs.lock();
            (beliefs.changes, beliefs.serving().is_some())
        };
        let ask = |n| {
            let (this, asking) = (Arc::clone(self), Arc::clone(&self.asking[n]));
            move || {
                if Arc::strong_count(&asking) <= MOST_ASKING + 1 {
                    let report = this.ask(n, timeout)?;
                    let is_news = this.beliefs.lock().heard(n, &report, Instant::now());
                    if is_news {
                        this.changed();
                    }
                    Ok(report)
                } else {
                    Err((ErrorKind::Io, "earlier questions have no answer yet").into())
                }
            }
        };
        let asks = (0..self.len()).map(ask);
        let enough = |answers: &Answers<Report>| {
            // A client without a master would believe the first answer, so it waits for a majority.
            let is_ready = has_master || answers.is_late || has_majority(answers);
            if is_ready && !answers.good.is_empty() {
                Enough::Nearly
            } else {
                Enough::No
            }
        };
        let answers = gather(&self.dialers, asks, timeout, is_final_at_logon, enough);
        let answers = answers.map_err(|failure| match failure {
            NoAnswer::Refused(error) | NoAnswer::Silent(Some((_, error))) => error,
            NoAnswer::Silent(None) if self.awaits_first() => ConnectFailure::Silent.into(),
            NoAnswer::Silent(None) => (ErrorKind::Io, "no sentinel answered in time").into(),
        })?;
        let (mut beliefs, now) = (self.beliefs.lock(), Instant::now());
        let reports = beliefs.with_late(answers.good, now);
        let choice = beliefs.weigh(&reports, now);
        drop(beliefs);
        self.changed();
        Ok(Poll {
            reports,
            choice,
            changes,
        })
    }

    /// Asks one sentinel for the master, over a new connection.
    ///
    /// The epoch comes from another command than the address: during a failover, SENTINEL MASTER
    /// still names the old master, but already has the new epoch. It comes first: if the failover
    /// ends between the commands, the new address has the old epoch, and not the other way round.
    fn ask(&self, n: usize, timeout: Duration) -> RedisResult<Report> {
        let until = Instant::now().after(timeout);
        let mut connection = self.connection(n, timeout)?;
        let master = self.sentinel.master.as_str();
        connection.write(until, |buffer| {
            for words in [
                &["MASTER", master][..],
                &["GET-MASTER-ADDR-BY-NAME", master],
                &["MYID"],
            ] {
                redis::cmd("SENTINEL")
                    .arg(words)
                    .write_packed_command(buffer);
            }
        })?;
        // The user may lack the permissions for the epoch and the id. The address alone is useful.
        let epoch = read_epoch(connection.answer(until)?);
        let address = match read_address(connection.answer(until)?.into_result()?) {
            Some(Some(address)) => address,
            None => return Err(connection.malformed()),
            Some(None) => {
                return Err((
                    ErrorKind::MasterNameNotFoundBySentinel,
                    "the sentinels know no master with this name",
                    self.sentinel.master.clone(),
                )
                    .into());
            }
        };
        let id = connection.answer(until).ok().and_then(read_id);
        Ok(Report { address, epoch, id })
    }

    /// Connects to one sentinel within `timeout`.
    pub(crate) fn connection(&self, n: usize, timeout: Duration) -> RedisResult<Connection> {
        let until = Instant::now().after(timeout);
        let awaits_first = |awaits| self.awaits_first[n].store(awaits, Ordering::Relaxed);
        let progress = |it: Progress<'_>| awaits_first(matches!(it, Progress::Accepted(_)));
        let opened = Connection::open(&self.sentinel.sentinels[n], None, until, progress);
        // A sentinel that was silent still is: the thread that waits for this error may give up
        // just before it comes.
        awaits_first(opened.as_ref().is_err_and(ConnectFailure::is_silence));
        opened
    }

    /// Returns whether a sentinel has accepted its last connection, and has sent nothing on it.
    pub(super) fn awaits_first(&self) -> bool {
        let mut sentinels = self.awaits_first.iter();
        sentinels.any(|awaits| awaits.load(Ordering::Relaxed))
    }

    /// Returns whether an announcement on [`MOVES`](replies::MOVES) is about this master.
    pub(crate) fn is_about_master(&self, announcement: &[u8]) -> bool {
        is_about(announcement, &self.sentinel.master)
    }

    /// Has all sentinels asked again at once. The caller must then look at [`ask_at`](Self::ask_at).
    pub(crate) fn ask_again(&self) {
        self.beliefs.lock().ask_again();
    }

    /// Asks all sentinels whether the master has moved, and returns true if it has. The connections
    /// to a master that serves are given up only if the other server has answered as a master, or
    /// if most sentinels name that one. One thread at a time does this.
    pub(super) fn look(self: &Arc<Self>, timeout: Duration, open: Open<'_>) -> bool {
        if self.beliefs.lock().known().is_none() {
            return false;
        }
        // If no sentinel answers, the known master stays.
        self.poll(timeout).is_ok_and(|poll| {
            let has_moved = self.follow(&poll, timeout, open);
            self.report_dissent(&poll);
            has_moved
        })
    }

    /// Moves to the first of the candidates that answers as a master. Returns whether the master
    /// has moved.
    fn follow(&self, poll: &Poll, timeout: Duration, open: Open<'_>) -> bool {
        for address in &poll.choice.candidates {
            let until = Instant::now().after(timeout);
            if self.open(address, until, false, open).is_ok() {
                return self.take(address, Some(poll)).unwrap_or_else(|_| {
                    self.beliefs.lock().ask_again();
                    false
                });
            }
        }
        let first = poll.choice.candidates.first();
        let Some(address) = first.filter(|_| poll.choice.is_by_majority) else {
            return false;
        };
        let mut beliefs = self.beliefs.lock();
        if poll.changes != beliefs.changes {
            beliefs.ask_again();
            return false;
        }
        beliefs.take(address, poll.epoch_of(address), false)
    }

    /// Warns of the sentinels that have named another master for a while.
    fn report_dissent(&self, poll: &Poll) {
        let (master, dissenters) = {
            let mut beliefs = self.beliefs.lock();
            let Some(master) = beliefs.serving().cloned() else {
                return;
            };
            let dissenters = beliefs.dissenters(&poll.reports, &master, Instant::now());
            (self.at(&master).label, dissenters)
        };
        let deployment = self.sentinel.label();
        for (n, address) in dissenters {
            let sentinel = &self.sentinel.sentinels[n];
            let named = self.at(&address).label;
            logging::warn!(
                server = deployment.as_str();
                "sentinel {} names {named} as the master, which is out of date or wrong: the client \
                 uses {master}", sentinel.label
            );
        }
    }

    /// Returns the address that the sentinels name as the master, if it was tried in vain or is
    /// being tried.
    pub(super) fn trying(&self) -> Option<String> {
        self.trying.lock().clone()
    }

    /// Returns advice for a peer that accepts connections and does not reply: the master if its
    /// address is being tried, else a sentinel.
    pub(super) fn tls_hint(&self) -> String {
        let sentinel = if self.trying.lock().is_some() {
            None
        } else {
            self.sentinel.sentinels.first()
        };
        sentinel.unwrap_or(&self.sentinel.data).tls_hint()
    }

    /// How many times the master has moved.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::SeqCst)
    }

    /// Counts a move of the master. The connections to the old one were given up before: what is
    /// repeated because of the move must not be sent there.
    pub(in crate::redis) fn moved(&self) {
        self.moves.fetch_add(1, Ordering::SeqCst);
        self.changed();
    }

    /// Records that the master may have moved.
    pub(super) fn suspect(&self) {
        self.beliefs.lock().suspect();
    }

    /// Returns when all sentinels must be asked again.
    pub(crate) fn ask_at(&self) -> Instant {
        self.beliefs.lock().ask_at()
    }

    /// Returns whether all sentinels must be asked now. The caller must then call
    /// [`look`](Self::look).
    pub(crate) fn is_ask_due(&self) -> bool {
        self.beliefs.lock().is_ask_due(Instant::now())
    }
}

impl Poll {
    fn epoch_of(&self, address: &HostPort) -> Option<u64> {
        let reports = self.reports.iter();
        let named = reports.filter(|(_, report)| report.address == *address);
        named.filter_map(|(_, report)| report.epoch).max()
    }
}

/// Returns whether most of the sentinels that were asked name the same address.
fn has_majority(answers: &Answers<Report>) -> bool {
    let addresses = || answers.good.iter().map(|(_, report)| &report.address);
    let votes = |address| addresses().filter(|other| *other == address).count();
    addresses().any(|address| votes(address) * 2 > answers.asked)
}

fn changed_meanwhile() -> RedisError {
    (
        ErrorKind::Io,
        "the sentinels have named another master meanwhile",
    )
        .into()
}

#[cfg(test)]
mod tests {
    use support::{BlackHole, FakeSentinel, eventually, ms, sentinel_url};

    use super::*;
    use crate::url::Target;

    fn sentinels(url: &str) -> Arc<Sentinels> {
        let Ok(Target::Sentinel(sentinel)) = Target::parse(url) else {
            panic!("the URL was rejected");
        };
        Arc::new(Sentinels::new(sentinel, &ThreadGroup::default()))
    }

    #[test]
    fn a_suspected_address_is_used_if_no_sentinel_answers() {
        let sentinels = sentinels("redis+sentinel://127.0.0.1:1,127.0.0.1:2/m");
        let tried = Mutex::new(Vec::new());
        let connect = || {
            let outcome = sentinels.connect(Duration::from_secs(1), &|address, _, _| {
                tried.lock().push(address.label.clone());
                Err((ErrorKind::Io, "refused").into())
            });
            assert!(outcome.is_err());
        };
        connect();
        let known = ("10.0.0.7".to_owned(), 2);
        sentinels.beliefs.lock().take(&known, None, true);
        sentinels.suspect();
        connect();
        assert_eq!(*tried.lock(), ["10.0.0.7:2"]);
    }

    #[test]
    fn a_sentinel_that_hangs_does_not_occupy_ever_more_threads() {
        let (hangs, answers) = (BlackHole::start(), FakeSentinel::naming(1, Some(5)));
        let sentinels = sentinels(&sentinel_url([hangs.port(), answers.port()]));
        let known = ("127.0.0.1".to_owned(), 1);
        sentinels.beliefs.lock().take(&known, None, true);
        for _ in 0..2 * MOST_ASKING {
            let poll = sentinels.poll(Duration::from_secs(60)).unwrap();
            assert_eq!(poll.reports.len(), 1);
        }
        let asking = || sentinels.dialers.wait(Instant::START);
        eventually(ms(10_000), || asking() <= MOST_ASKING);
    }
}
