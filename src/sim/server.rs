//! A server: the real scripts on data in memory, and a view of that data for the checks.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use super::plan::{ServerFault, Why};
use crate::holder::READERS;
use crate::holder_id::{HolderId, is_same_holder};
use crate::kernel::command::{Command, Inbox, What};
use crate::name::Name;
use crate::protocol::answer::Answer;
use crate::protocol::keys::Keys;
use crate::protocol::mutex::MutexKeys;
use crate::protocol::primitive::{Primitive, Reached};
use crate::protocol::reply::Reply;
use crate::testing::scripted::{Keyspace, Scripted};

/// µs.
pub(super) type Time = u64;
pub(super) const MS: Time = 1000;
/// When a run begins.
pub(super) const START: Time = 100_000 * MS;

/// What a lock's keys contain. Ends are the first instants at which something is gone.
#[derive(Clone, Default, Debug)]
pub(super) struct Data {
    pub(super) lock: Option<(String, Time)>,
    pub(super) readers: BTreeMap<String, Time>,
    pub(super) permits: BTreeMap<String, (u32, Time)>,
    pub(super) queue: VecDeque<String>,
    /// The end of each place.
    pub(super) places: HashMap<String, Time>,
    queue_end: Time,
}

impl Data {
    pub(super) fn settle(&mut self, now: Time) {
        self.lock.take_if(|(_, end)| *end <= now);
        self.readers.retain(|_, end| *end > now);
        self.permits.retain(|_, (_, end)| *end > now);
        if self.queue_end <= now {
            self.queue.clear();
            self.places.clear();
        }
    }

    /// Returns the ids that hold the lock, or have a place, at `now`.
    pub(super) fn lasting(&self, now: Time) -> impl Iterator<Item = &String> {
        let lock = self.lock.iter().map(|(id, end)| (id, end));
        let readers = self.readers.iter();
        let permits = self.permits.iter().map(|(id, (_, end))| (id, end));
        let held = lock.chain(readers).chain(permits).chain(&self.places);
        held.filter(move |(_, end)| **end > now).map(|(id, _)| id)
    }

    /// Returns whether this id holds the lock at `now`.
    pub(super) fn is_held_by(&self, id: &str, now: Time) -> bool {
        let is_its = |it: &str| is_same_holder(it.as_bytes(), id.as_bytes());
        let lock = self.lock.as_ref().filter(|(it, _)| is_its(it));
        let lock = lock.map(|(_, end)| *end);
        let reader = self.readers.get(id).copied();
        let permit = self.permits.get(id).map(|(_, end)| *end);
        [lock, reader, permit]
            .into_iter()
            .flatten()
            .any(|end| end > now)
    }

    pub(super) fn end(&self) -> Option<Time> {
        let readers = self.readers.values().max().copied();
        let permits = self.permits.values().map(|it| it.1).min();
        let lock = self.lock.as_ref().map(|it| it.1);
        lock.into_iter().chain(readers).chain(permits).max()
    }
}

#[derive(Clone, Debug)]
pub(super) enum Message {
    Inbox(Vec<u8>),
    Released(Vec<u8>, Vec<u8>),
}

/// A copy of the data.
pub(super) type Copy = Keyspace;

/// The scripts that a server knows.
#[derive(Debug)]
pub(super) enum Known {
    All,
    These(BTreeSet<&'static str>),
}

#[derive(Debug)]
pub(super) struct Server {
    scripts: Option<Scripted>,
    pub(super) known: Known,
    /// By how much its clock is ahead, in µs; and how much faster it runs, in millionths.
    pub(super) ahead: i64,
    pub(super) rate: i64,
    pub(super) stalled_until: Time,
    pub(super) errors_until: Time,
    /// Until when it replies with errors of this kind.
    pub(super) rejects: Vec<(Why, Time)>,
    /// It answers nothing until then, and loses its connections when it serves again.
    pub(super) down_until: Time,
    /// It has lost its data since it went down.
    pub(super) is_emptied: bool,
    /// The node of the cluster that has the keys, and until when they move to the other one; 0 if
    /// they do not.
    pub(super) owner: usize,
    pub(super) moves_until: Time,
    pub(super) snapshot: Option<Copy>,
    /// What the keys of each lock contain, as of the last command.
    pub(super) data: BTreeMap<Vec<u8>, Data>,
    pub(super) ran: u64,
    /// The ids of the places, in the order in which the server ran their enters; and the ids that
    /// were granted a lock by a place, in order.
    pub(super) entered: Vec<String>,
    pub(super) granted: Vec<String>,
    pub(super) plain: u64,
}

thread_local! {
    /// A server between two runs: to start its interpreter takes as long as a run.
    static IDLE: std::cell::RefCell<Vec<Scripted>> = const { std::cell::RefCell::new(Vec::new()) };
}

impl Default for Server {
    fn default() -> Self {
        let scripts = IDLE.with_borrow_mut(Vec::pop).unwrap_or_else(Scripted::new);
        scripts.reset();
        Self {
            scripts: Some(scripts),
            known: Known::All,
            ahead: 0,
            rate: 0,
            stalled_until: 0,
            errors_until: 0,
            rejects: Vec::new(),
            down_until: 0,
            is_emptied: false,
            owner: 0,
            moves_until: 0,
            snapshot: None,
            data: BTreeMap::new(),
            ran: 0,
            entered: Vec::new(),
            granted: Vec::new(),
            plain: 0,
        }
    }
}

/// The client of a holder id.
pub(super) fn client_of(id: &str) -> Option<usize> {
    let id = id.rsplit_once(' ').map_or(id, |(_, id)| id);
    id.strip_prefix('c')?.split_once(':')?.0.parse().ok()
}

/// Returns the id of the lease that has this id at a server.
pub(super) fn base(id: &str) -> String {
    let parsed = HolderId::parse(id.as_bytes());
    parsed.map_or_else(|| id.to_owned(), |id| id.base().as_str().to_owned())
}

/// The key of the view of a lock.
pub(super) fn key_of(lock: &dyn Primitive) -> Vec<u8> {
    let name = lock.keys().key(0).name.as_bytes();
    match lock.permits() {
        Some(_) => [b"permits:".as_slice(), name].concat(),
        None => name.to_vec(),
    }
}

/// Which script a command runs, as far as a quorum's servers must know it.
fn script_of(command: &Command) -> &'static str {
    match command.what {
        What::Acquire { .. } => "acquire",
        What::Renew { .. } | What::RenewMany { .. } => "renew",
        What::Leave { .. } => "release",
        _ => "undo",
    }
}

fn inbox_of(client: usize) -> Vec<u8> {
    format!("inbox:c{client}").into_bytes()
}

impl Server {
    /// Returns what its clock shows.
    pub(super) fn now(&self, now: Time) -> Time {
        let faster = (now - START) as i64 * self.rate / 1_000_000;
        now.saturating_add_signed(self.ahead + faster)
    }

    /// Returns until when nothing arrives.
    pub(super) fn stands_until(&self, now: Time) -> Time {
        let down_until = match self.down_until {
            0 => 0,
            // `Event::Back` ends it.
            until => until.max(now + 10),
        };
        self.stalled_until.max(down_until)
    }

    /// Returns from when on it does what it is asked.
    pub(super) fn works_from(&self) -> Time {
        let rejects = self.rejects.iter().map(|(_, until)| *until).max();
        let stands = self.stalled_until.max(self.down_until);
        let fails = self.errors_until.max(rejects.unwrap_or(0));
        stands.max(fails).max(self.moves_until)
    }

    pub(super) fn rejects(&self, why: Why, now: Time) -> bool {
        let mut rejects = self.rejects.iter();
        rejects.any(|(it, until)| *it == why && now < *until)
    }

    /// A fault that concerns nothing but the server begins.
    pub(super) fn fails(&mut self, fault: ServerFault, now: Time) {
        match fault {
            ServerFault::Stall(time) => self.stalled_until = self.stalled_until.max(now + time),
            ServerFault::Errors(time) => self.errors_until = self.errors_until.max(now + time),
            ServerFault::Reject(why, time) => self.rejects.push((why, now + time)),
            ServerFault::Move(time) => self.moves_until = self.moves_until.max(now + time),
            ServerFault::FlushScripts => self.forget_scripts(),
            ServerFault::Snapshot => self.snapshot = Some(self.copy()),
            other => unreachable!("{other:?} concerns others, too"),
        }
    }

    pub(super) fn knows_script(&self, command: &Command) -> bool {
        match &self.known {
            Known::All => true,
            Known::These(scripts) => scripts.contains(script_of(command)),
        }
    }

    /// It has been sent the text of a command's script.
    pub(super) fn learn_script(&mut self, command: &Command) {
        if let Known::These(scripts) = &mut self.known {
            scripts.insert(script_of(command));
        }
    }

    pub(super) fn forget_scripts(&mut self) {
        self.known = Known::These(BTreeSet::new());
    }

    /// Runs a command of a client. `reached` is the mark of a place that it takes.
    pub(super) fn run(
        &mut self,
        client: usize,
        command: &Command,
        reached: Reached,
        now: Time,
    ) -> Answer {
        let now = self.now(now);
        self.ran += 1;
        let inbox = Inbox {
            channel: inbox_of(client),
            reached,
        };
        let scripts = self.scripts.as_mut().expect("taken at the end");
        let answer = command.with_call(&inbox, |call| {
            let reply = scripts.run(&call, now);
            let reply = reply.unwrap_or_else(|error| panic!("{}: {error}", call.script.name));
            let read = call.verb.read(reply.clone());
            read.unwrap_or_else(|| panic!("{}: {reply:?}", call.script.name))
        });
        self.plain += u64::from(matches!(answer, Answer::PlainRelease));
        let names = command.lock.keys().names.iter();
        let keys: Vec<Vec<u8>> = match (&command.what, command.lock.permits()) {
            (What::RenewMany { .. }, _) => self.data.keys().cloned().collect(),
            (_, Some(_)) => vec![key_of(&*command.lock)],
            (_, None) => names.map(|name| name.as_bytes().to_vec()).collect(),
        };
        for key in keys {
            let before = self.data.remove(&key).unwrap_or_default();
            let after = self.read(&key, now);
            self.note_order(&before, &after, command);
            self.data.insert(key, after);
        }
        answer
    }

    fn scripts(&self) -> &Scripted {
        self.scripts.as_ref().expect("taken at the end")
    }

    fn note_order(&mut self, before: &Data, after: &Data, command: &Command) {
        let own = command.acquires().map(|id| id.as_str());
        let is_new = |id: &&String| !before.places.contains_key(*id);
        self.entered
            .extend(after.queue.iter().filter(is_new).cloned());
        let Some((id, _)) = &after.lock else {
            return;
        };
        if before.places.contains_key(id) {
            self.granted.push(id.clone());
        } else if own == Some(id) {
            // It has passed over all places before its own, or has not entered the queue.
            self.entered.push(id.clone());
        }
    }

    fn command(&self, words: &[&[u8]], now: Time) -> Reply {
        let reply = self.scripts().command(words, now);
        reply.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Returns when a key ends.
    fn end_of(&self, key: &[u8], now: Time) -> Time {
        match self.command(&[b"PTTL", key], now) {
            Reply::Int(left @ 0..) => end(now / MS + left as u64),
            Reply::Int(-1) => Time::MAX,
            _ => 0,
        }
    }

    fn text(&self, words: &[&[u8]], now: Time) -> Option<String> {
        match self.command(words, now) {
            Reply::Text(text) => Some(String::from_utf8(text).expect("written by our scripts")),
            _ => None,
        }
    }

    fn list(&self, words: &[&[u8]], now: Time) -> Vec<String> {
        let Reply::List(items) = self.command(words, now) else {
            return Vec::new();
        };
        let text = |item| match item {
            Reply::Text(text) => String::from_utf8(text).expect("written by our scripts"),
            other => panic!("{other:?}"),
        };
        items.into_iter().map(text).collect()
    }

    /// Reads what the keys of a lock contain.
    fn read(&self, key: &[u8], now: Time) -> Data {
        let sibling = |what: &str, name: &[u8]| {
            [b"leasehold:", what.as_bytes(), b":{lock:", name, b"}"].concat()
        };
        let mut data = Data::default();
        let (queue, places) = match key.strip_prefix(b"permits:") {
            Some(name) => {
                let permits = sibling("permits", name);
                let until = self.end_of(&permits, now);
                for (id, score) in self.members(&permits, now) {
                    let k = id.split_once(' ').and_then(|(k, _)| k.parse().ok());
                    if let Some(k) = k.filter(|_| id != "out") {
                        data.permits.insert(id, (k, end(score).min(until)));
                    }
                }
                (
                    sibling("permits-queue", name),
                    sibling("permits-places", name),
                )
            }
            None => {
                let lock = [b"lock:", key].concat();
                let until = self.end_of(&lock, now);
                let holder = self.text(&[b"GET", &lock], now);
                if holder.as_ref().is_some_and(|it| it.as_bytes() == READERS) {
                    for (id, score) in self.members(&sibling("readers", key), now) {
                        data.readers.insert(id, end(score).min(until));
                    }
                } else {
                    data.lock = holder.map(|holder| (holder, until));
                }
                (sibling("queue", key), sibling("places", key))
            }
        };
        data.queue_end = self.end_of(&queue, now);
        data.queue = self.list(&[b"LRANGE", &queue, b"0", b"-1"], now).into();
        let fields = self.list(&[b"HGETALL", &places], now);
        for pair in fields.chunks_exact(2) {
            let [id, place] = pair else {
                unreachable!("chunks of two");
            };
            let mut words = place.split(' ').map_while(|word| word.parse::<u64>().ok());
            let (seen, lasts) = (words.next().unwrap_or(0), words.next().unwrap_or(0));
            data.places.insert(id.clone(), (seen + lasts) * MS);
        }
        data
    }

    fn members(&self, key: &[u8], now: Time) -> Vec<(String, u64)> {
        let found = self.list(&[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"], now);
        let pairs = found.chunks_exact(2);
        let read = |pair: &[String]| {
            (
                pair[0].clone(),
                pair[1].parse::<f64>().unwrap_or(0.0) as u64,
            )
        };
        pairs.map(read).collect()
    }

    /// A client listens to its inbox, or to a channel.
    pub(super) fn subscribe(&mut self, client: usize, channel: Option<&[u8]>) {
        let inbox = inbox_of(client);
        self.scripts()
            .subscribe(client as u64, channel.unwrap_or(&inbox));
    }

    pub(super) fn unsubscribe(&mut self, client: usize) {
        self.scripts().unsubscribe(client as u64);
    }

    /// Returns what was published, with the clients that it is for.
    pub(super) fn take_messages(&mut self) -> Vec<(usize, Message)> {
        let read = |(client, channel, payload): (u64, Vec<u8>, Vec<u8>)| {
            let client = client as usize;
            let message = if channel == inbox_of(client) {
                Message::Inbox(payload)
            } else {
                Message::Released(channel, payload)
            };
            (client, message)
        };
        self.scripts()
            .take_messages()
            .into_iter()
            .map(read)
            .collect()
    }

    /// A program without leasehold takes a lock if it is free.
    pub(super) fn take_foreign(&mut self, name: &str, holder: &str, lasts: Time, now: Time) {
        let now = self.now(now);
        let (lock, lasts) = (format!("lock:{name}"), (lasts / MS).max(1).to_string());
        let words = ["SET", &lock, holder, "NX", "PX", &lasts];
        self.command(&words.map(str::as_bytes), now);
        let key = name.as_bytes();
        let data = self.read(key, now);
        self.data.insert(key.to_vec(), data);
    }

    /// Returns the ids that hold or have a place.
    pub(super) fn ids(&self) -> Vec<String> {
        let of = |data: &Data| {
            let lock = data.lock.iter().map(|it| it.0.clone());
            let others = data.readers.keys().chain(data.permits.keys());
            let all = lock.chain(others.chain(data.places.keys()).cloned());
            all.collect::<Vec<_>>()
        };
        self.data.values().flat_map(of).collect()
    }

    /// Deletes the key of a lock; returns the ids that held it.
    pub(super) fn delete(&mut self, name: &str, now: Time) -> Vec<String> {
        let now = self.now(now);
        let key = name.as_bytes().to_vec();
        let before = self.read(&key, now);
        self.command(&[b"DEL", format!("lock:{name}").as_bytes()], now);
        let data = self.read(&key, now);
        self.data.insert(key, data);
        let lock = before.lock.into_iter().map(|it| it.0);
        lock.chain(before.readers.into_keys()).collect()
    }

    /// Releases a lock by force, as an operator does; returns the ids that held it.
    pub(super) fn force(&mut self, name: &str, now: Time) -> Vec<String> {
        let keys = Keys::new(Name::from(name), "lock:", "lock_release:");
        let lock = MutexKeys::of(keys);
        let holder = self.read(name.as_bytes(), self.now(now)).lock;
        let id = holder.and_then(|(id, _)| HolderId::parse(id.as_bytes()));
        if let Some(id) = &id {
            let may_be_plain = false;
            let id = id.clone();
            let command = Command::new(&lock, What::Leave { id, may_be_plain });
            self.run(0, &command, Reached::WhileListening, now);
        }
        let id = id.map(|id| id.as_str().to_owned());
        id.into_iter().collect()
    }

    pub(super) fn copy(&self) -> Copy {
        self.scripts().data()
    }

    /// The data is replaced.
    pub(super) fn restore(&mut self, copy: Copy, now: Time) {
        let now = self.now(now);
        self.scripts().set_data(copy);
        let keys: Vec<Vec<u8>> = self.data.keys().cloned().collect();
        for key in keys {
            let data = self.read(&key, now);
            self.data.insert(key, data);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        IDLE.with_borrow_mut(|idle| idle.extend(self.scripts.take()));
    }
}

/// Returns the first instant after a millisecond.
fn end(ms: u64) -> Time {
    ms.saturating_add(1).saturating_mul(MS)
}
