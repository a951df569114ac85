//! A server with the semantics of the scripts, written by hand: queues, marks, plain releases.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

use crate::holder::READERS;
use crate::kernel::command::{Command, Listens, What};
use crate::protocol::answer::{Answer, Undone};
use crate::protocol::one_or_many::OneOrMany;
use crate::protocol::place::Refreshed;
use crate::protocol::primitive::Admission;
use crate::protocol::refusal::RefusedName;
use crate::token::FencingToken;

/// µs.
pub(super) type Time = u64;
pub(super) const MS: Time = 1000;

/// How the sender's inbox is reached: the mark of a new place.
pub(super) type Mark = char;

#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) seen: Time,
    pub(super) lasts: Time,
    want: Want,
    mark: Mark,
    inbox: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Want {
    /// A block of tokens; `true` for the calls of a mutex, which share it.
    Block(u64, bool),
    Reader,
    Permits(u32, u32),
}

#[derive(Clone, Default, Debug)]
pub(super) struct Data {
    pub(super) lock: Option<(String, Time)>,
    pub(super) readers: BTreeMap<String, Time>,
    pub(super) permits: BTreeMap<String, (u32, Time)>,
    pub(super) fence: u64,
    pub(super) queue: VecDeque<String>,
    pub(super) places: HashMap<String, Place>,
    queue_end: Time,
}

#[derive(Clone, Debug)]
pub(super) enum Message {
    Inbox(Vec<u8>),
    Released(Vec<u8>, Vec<u8>),
}

#[derive(Default)]
pub(super) struct Server {
    pub(super) data: BTreeMap<Vec<u8>, Data>,
    /// The clients that listen to their inbox, and the clients that listen to each channel.
    pub(super) inboxes: BTreeSet<usize>,
    pub(super) channels: BTreeMap<Vec<u8>, BTreeSet<usize>>,
    pub(super) out: Vec<(usize, Message)>,
    pub(super) ran: u64,
    /// The ids of the places, in the order in which the server ran their enters; and the ids that
    /// were granted a lock by a place, in order.
    pub(super) entered: Vec<String>,
    pub(super) granted: Vec<String>,
    pub(super) plain: u64,
}

/// The client of a holder id.
pub(super) fn client_of(id: &str) -> Option<usize> {
    let id = id.rsplit_once(' ').map_or(id, |(_, id)| id);
    id.strip_prefix('c')?.split_once(':')?.0.parse().ok()
}

fn micros(time: Duration) -> Time {
    time.as_micros() as Time
}

impl Data {
    pub(super) fn settle(&mut self, now: Time) {
        self.lock.take_if(|(_, end)| *end <= now);
        self.readers.retain(|_, end| *end > now);
        self.permits.retain(|_, (_, end)| *end > now);
        if !self.queue.is_empty() && self.queue_end <= now {
            self.queue.clear();
            self.places.clear();
        }
    }

    pub(super) fn is_free(&self) -> bool {
        self.lock.is_none() && self.readers.is_empty()
    }

    fn fits(&self, want: Want, admission: Option<Admission>) -> bool {
        match (want, admission) {
            (Want::Permits(k, n), _) => self.permits.values().map(|p| p.0).sum::<u32>() + k <= n,
            (Want::Reader, Some(Admission::Shared)) => self.lock.is_none(),
            (Want::Reader, _) => false,
            (Want::Block(..), _) => self.is_free(),
        }
    }

    fn hold(&mut self, id: &str, want: Want, until: Time, token: u64) {
        match want {
            Want::Block(n, _) => {
                self.fence = token + n - 1;
                self.lock = Some((id.into(), until));
            }
            Want::Reader => {
                self.readers.insert(id.into(), until);
            }
            Want::Permits(k, _) => {
                self.fence = token;
                self.permits.insert(id.into(), (k, until));
            }
        }
    }

    fn draw(&self, want: Want, now: Time) -> u64 {
        match want {
            Want::Reader => self.fence.max(1),
            _ => (self.fence + 1).max(now),
        }
    }

    fn held(&self, id: &str) -> bool {
        self.lock.as_ref().is_some_and(|(it, _)| it == id)
            || self.readers.contains_key(id)
            || self.permits.contains_key(id)
    }

    fn take_out(&mut self, id: &str) -> bool {
        self.lock.take_if(|(it, _)| it == id).is_some()
            || self.readers.remove(id).is_some()
            || self.permits.remove(id).is_some()
    }

    fn remove_place(&mut self, id: &str) -> bool {
        let found = self.places.remove(id).is_some();
        self.queue.retain(|it| it != id);
        found
    }

    fn holder(&self) -> Vec<u8> {
        match &self.lock {
            Some((id, _)) => id.clone().into_bytes(),
            None if !self.readers.is_empty() => READERS.to_vec(),
            None => Vec::new(),
        }
    }

    pub(super) fn end(&self) -> Option<Time> {
        let readers = self.readers.values().max().copied();
        let permits = self.permits.values().map(|it| it.1).min();
        let lock = self.lock.as_ref().map(|it| it.1);
        lock.into_iter().chain(readers).chain(permits).max()
    }

    /// Returns the message of a plain release, if this release is one, as `plain.lua`.
    fn plain_message(&self, now: Time) -> Option<String> {
        let now_ms = now / MS;
        let mut granted = self.fence / MS;
        if granted > now_ms + 1 {
            granted = now_ms - 11;
        }
        let line_before = |ms: Time| (ms + 88 * (ms / 3000)) / 90;
        if self.fence == 0 || line_before(granted) >= line_before(now_ms) {
            return None;
        }
        let (mut first, mut reached, mut waiting) = (None, None, 0);
        for id in self.queue.iter().take(100) {
            let place = self.places.get(id);
            let Some(place) = place.filter(|place| place.seen + place.lasts > now) else {
                continue;
            };
            if !matches!(place.want, Want::Block(_, true)) {
                return None;
            }
            first = first.or(Some(id));
            waiting += 1;
            if place.mark != 'p' && place.inbox {
                reached = reached.or(Some(id));
            }
        }
        Some(format!("next {waiting} {}", reached.or(first)?))
    }

    fn refusal(&self, now: Time) -> RefusedName {
        RefusedName {
            name: 0,
            holder: self.holder(),
            remaining: Some(self.end().map_or(Duration::ZERO, |end| {
                Duration::from_millis((end - now) / MS)
            })),
            detail: None,
        }
    }
}

impl Server {
    fn publish(&mut self, channel: &[u8], payload: &[u8]) {
        for client in self.channels.get(channel).into_iter().flatten() {
            let message = Message::Released(channel.to_vec(), payload.to_vec());
            self.out.push((*client, message));
        }
    }

    /// Grants to the waiters in line that a grant reaches, as `queue.lua`.
    fn grant(
        &mut self,
        key: &[u8],
        now: Time,
        admission: Option<Admission>,
        refreshed: &HashSet<String>,
        granted: &mut HashMap<String, u64>,
    ) {
        let data = self.data.get_mut(key).expect("the caller made it");
        let mut n = 0;
        while let Some(id) = data.queue.get(n).cloned() {
            let place = data.places.get(&id).cloned();
            let left = place
                .as_ref()
                .map_or(0, |place| (place.seen + place.lasts).saturating_sub(now));
            let client = client_of(&id).unwrap_or(usize::MAX);
            let listens = |place: &Place| place.inbox && self.inboxes.contains(&client);
            let reached = place.as_ref().is_some_and(|place| {
                !matches!(place.mark, 'l' | 'p') || refreshed.contains(&id) || listens(place)
            });
            if left > 0 && !reached {
                if let Some(place) = data.places.get_mut(&id)
                    && place.mark == 'l'
                {
                    place.mark = 'p';
                }
                n += 1;
                continue;
            }
            if let Some(place) = place.filter(|_| left > 0) {
                if !data.fits(place.want, admission) {
                    break;
                }
                let token = data.draw(place.want, now);
                data.hold(&id, place.want, now + left, token);
                granted.insert(id.clone(), token);
                if !matches!(place.want, Want::Permits(..) | Want::Reader) {
                    self.granted.push(id.clone());
                }
                if listens(&place) {
                    let want = match place.want {
                        Want::Block(n, true) => format!("+{n}"),
                        Want::Block(n, false) => n.to_string(),
                        Want::Reader => "r".into(),
                        Want::Permits(k, n) => format!("{k}/{n}"),
                    };
                    let payload = format!("grant {token} {want} {id}").into_bytes();
                    self.out.push((client, Message::Inbox(payload)));
                }
            }
            data.places.remove(&id);
            data.queue.remove(n);
        }
    }

    pub(super) fn run(&mut self, command: &Command, mark: Mark, now: Time) -> Answer {
        self.ran += 1;
        let keys = command.lock.keys();
        let key = keys.key(0).name.as_bytes().to_vec();
        let key = match command.lock.permits() {
            Some(_) => [b"permits:".as_slice(), &key].concat(),
            None => key,
        };
        let channel = keys.key(0).channel.to_vec();
        let admission = command.lock.queue().map(|queue| queue.admission());
        self.data.entry(key.clone()).or_default().settle(now);
        match &command.what {
            What::Acquire { id, ttl, tokens } => {
                self.acquire(&key, id.as_str(), micros(*ttl), *tokens, now)
            }
            What::Enter { id, tokens, .. } => {
                let want = match command.lock.permits() {
                    Some((k, n)) => Want::Permits(k, n),
                    None if command.lock.is_shared() => Want::Reader,
                    None => Want::Block(*tokens, command.lock.has_local_queue()),
                };
                self.enter(&key, command, want, mark, id.as_str(), admission, now)
            }
            What::Refresh {
                tokens,
                ids,
                listens,
            } => {
                let ids: Vec<String> = ids.iter().map(|id| id.as_str().into()).collect();
                self.refresh(&key, *tokens, &ids, *listens, admission, now)
            }
            What::Leave { id, may_be_plain } => {
                let plain = *may_be_plain && command.lock.has_local_queue();
                self.leave(&key, &channel, id.as_str(), plain, admission, now)
            }
            What::Undo { ids } => {
                let ids: Vec<String> = ids.iter().map(|id| id.as_str().into()).collect();
                self.undo(&key, &channel, &ids, admission, now)
            }
            What::Renew {
                id,
                ttl,
                may_shorten,
            } => self.renew(&key, id.as_str(), micros(*ttl), *may_shorten, command, now),
            What::Downgrade { id, ttl } => {
                let answer = self.renew(&key, id.as_str(), micros(*ttl), false, command, now);
                self.grant(&key, now, admission, &HashSet::new(), &mut HashMap::new());
                answer
            }
            What::Propose { .. } => unreachable!("no quorum"),
        }
    }

    fn acquire(&mut self, key: &[u8], id: &str, ttl: Time, tokens: u64, now: Time) -> Answer {
        let data = self.data.get_mut(key).expect("made in `run`");
        if !data.is_free() {
            return Answer::Refused(data.refusal(now));
        }
        let want = Want::Block(tokens, true);
        let token = data.draw(want, now);
        data.hold(id, want, now + ttl, token);
        Answer::Granted(OneOrMany::One(FencingToken::new(token)))
    }

    #[expect(clippy::too_many_arguments, reason = "a script has as many")]
    fn enter(
        &mut self,
        key: &[u8],
        command: &Command,
        want: Want,
        mark: Mark,
        id: &str,
        admission: Option<Admission>,
        now: Time,
    ) -> Answer {
        let What::Enter { ttl, place, .. } = &command.what else {
            unreachable!("called for it");
        };
        let ttl = micros(*ttl);
        let data = self.data.get_mut(key).expect("made in `run`");
        if data.fits(want, admission) {
            while let Some(first) = data.queue.front().cloned() {
                let place = data.places.get(&first);
                if place.is_some_and(|place| place.seen + place.lasts > now) {
                    break;
                }
                data.remove_place(&first);
            }
            if data.queue.is_empty() {
                let token = data.draw(want, now);
                data.hold(id, want, now + ttl, token);
                return Answer::Granted(OneOrMany::One(FencingToken::new(token)));
            }
        }
        if data.held(id) {
            return Answer::Refused(RefusedName {
                holder: id.into(),
                ..data.refusal(now)
            });
        }
        if let Some(listens) = place {
            data.queue.push_back(id.into());
            self.entered.push(id.into());
            data.queue_end = now + 6_000 * MS;
            data.places.insert(
                id.into(),
                Place {
                    seen: now,
                    lasts: ttl.min(3_000 * MS),
                    want,
                    mark,
                    inbox: *listens == Listens::Inbox,
                },
            );
        }
        self.grant(key, now, admission, &HashSet::new(), &mut HashMap::new());
        Answer::Refused(self.data[key].refusal(now))
    }

    fn refresh(
        &mut self,
        key: &[u8],
        tokens: u64,
        ids: &[String],
        listens: Listens,
        admission: Option<Admission>,
        now: Time,
    ) -> Answer {
        let data = self.data.get_mut(key).expect("made in `run`");
        if !data.queue.is_empty() {
            data.queue_end = now + 6_000 * MS;
        }
        let mut refreshed = HashSet::new();
        for id in ids {
            let client = client_of(id).unwrap_or(usize::MAX);
            let inbox = listens == Listens::Inbox;
            let hears = inbox && self.inboxes.contains(&client);
            if let Some(place) = data.places.get_mut(id) {
                place.seen = now;
                if let Want::Block(n, true) = &mut place.want {
                    *n = tokens;
                }
                place.inbox = inbox;
                place.mark = match place.mark {
                    'l' | 'a' => place.mark,
                    _ if hears => 'l',
                    'p' => 'r',
                    mark => mark,
                };
                refreshed.insert(id.clone());
            }
        }
        let mut granted = HashMap::new();
        self.grant(key, now, admission, &refreshed, &mut granted);
        let data = &self.data[key];
        let refusal = data.refusal(now);
        let found = ids.iter().map(|id| match granted.get(id) {
            Some(token) => Refreshed::Granted(FencingToken::new(*token)),
            None if refreshed.contains(id) => Refreshed::Waiting(refusal.remaining),
            None if data.held(id) => Refreshed::Granted(FencingToken::new(data.fence.max(1))),
            None => Refreshed::Gone,
        });
        Answer::Places(found.collect(), refusal.clone())
    }

    fn leave(
        &mut self,
        key: &[u8],
        channel: &[u8],
        id: &str,
        may_be_plain: bool,
        admission: Option<Admission>,
        now: Time,
    ) -> Answer {
        let none = HashSet::new();
        let data = self.data.get_mut(key).expect("made in `run`");
        if data.take_out(id) {
            if may_be_plain && let Some(message) = data.plain_message(now) {
                self.plain += 1;
                self.publish(channel, message.as_bytes());
                return Answer::PlainRelease;
            }
            self.grant(key, now, admission, &none, &mut HashMap::new());
            if self.data[key].is_free() {
                self.publish(channel, id.as_bytes());
            }
            return Answer::Ours(None);
        }
        if data.remove_place(id) {
            self.grant(key, now, admission, &none, &mut HashMap::new());
            return Answer::Ours(None);
        }
        let holder = data.holder();
        match holder.is_empty() {
            true => Answer::Gone,
            false => Answer::Foreign(holder),
        }
    }

    fn undo(
        &mut self,
        key: &[u8],
        channel: &[u8],
        ids: &[String],
        admission: Option<Admission>,
        now: Time,
    ) -> Answer {
        let data = self.data.get_mut(key).expect("made in `run`");
        let mut out = None;
        let mut removed = Vec::new();
        for (n, id) in ids.iter().enumerate() {
            if data.take_out(id) {
                out = Some(id.clone());
                removed.push(n);
            } else if data.remove_place(id) {
                removed.push(n);
            }
        }
        let other = Some(data.holder()).filter(|holder| !holder.is_empty());
        self.grant(key, now, admission, &HashSet::new(), &mut HashMap::new());
        if let Some(id) = out
            && self.data[key].is_free()
        {
            self.publish(channel, id.as_bytes());
        }
        Answer::Undone(Undone { removed, other })
    }

    fn renew(
        &mut self,
        key: &[u8],
        id: &str,
        ttl: Time,
        may_shorten: bool,
        command: &Command,
        now: Time,
    ) -> Answer {
        let data = self.data.get_mut(key).expect("made in `run`");
        let reads = command.lock.is_shared() && command.lock.permits().is_none();
        if reads && data.lock.take_if(|(it, _)| it == id).is_some() {
            // The downgrade of a writer.
            data.readers.insert(id.into(), now + ttl);
        }
        let lock = data.lock.as_mut().filter(|(it, _)| it == id);
        let lock = lock.map(|(_, end)| end);
        let reader = data.readers.get_mut(id).filter(|_| reads);
        let permit = data.permits.get_mut(id).map(|(_, end)| end);
        if let Some(end) = lock.or(reader).or(permit) {
            *end = match may_shorten {
                true => now + ttl,
                false => (*end).max(now + ttl),
            };
            return Answer::Ours(None);
        }
        let holder = data.holder();
        match holder.is_empty() {
            true => Answer::Gone,
            false => Answer::Foreign(holder),
        }
    }
}
