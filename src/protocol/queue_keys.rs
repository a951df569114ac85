//! The keys of a name with a queue in Redis, and the calls that do not differ between the kinds of
//! locks with a queue.

use std::sync::OnceLock;

use crate::protocol::answer::Wanted;
use crate::protocol::keys::{Keys, sibling_key};
use crate::protocol::primitive::{Acquire, Admission, RedisQueue};
use crate::protocol::script::{Arg, Call, Script, script};
use crate::protocol::verb::Verb;

/// Makes a script of a queue. It contains the functions of the queue and those in the given files,
/// which admit waiters; before them, the code of a fast path.
macro_rules! queue_script {
    ($name:literal, [$($fast:literal),*] $(, $functions:literal)+) => {
        script!($name, "state", $($fast,)* "last_token", "now" $(, $functions)+, "queue")
    };
}
pub(super) use queue_script;

/// Makes the scripts of a queue. They contain the functions in the given files, which admit
/// waiters. The files in brackets are the fast paths of an enter and of a release.
macro_rules! queue_scripts {
    ([$($enter:literal),*], [$($release:literal)?] $(, $functions:literal)+) => {
        QueueScripts {
            enter: queue_script!("queue_enter", [$($enter),*] $(, $functions)+),
            refresh: queue_script!("queue_refresh", [] $(, $functions)+),
            release: queue_script!("queue_release", [$($release)?] $(, $functions)+),
            undo: queue_script!("queue_undo", [] $(, $functions)+),
        }
    };
}
pub(super) use queue_scripts;

/// The scripts of a queue with one admission.
#[derive(Debug)]
pub(super) struct QueueScripts {
    pub(super) enter: Script,
    pub(super) refresh: Script,
    pub(super) release: Script,
    pub(super) undo: Script,
}

/// The scripts of locks: the queue of a name is the same for all kinds.
pub(super) static LOCKS: QueueScripts = queue_scripts!(
    ["enter_free", "take_free", "draw_free", "end_free"],
    ["leave_free"],
    "locks"
);

/// The rules of a queue: its scripts, and the waiters that they admit.
#[derive(Debug)]
pub(super) struct QueueRules {
    pub(super) scripts: &'static QueueScripts,
    pub(super) admission: Admission,
    /// The last of its keys is that of the readers.
    pub(super) is_of_lock: bool,
    /// One refresh can find several of its places granted.
    pub(super) is_shared: bool,
}

/// The keys of a name with a queue.
#[derive(Debug)]
pub(crate) struct QueueKeys {
    pub(super) keys: Keys,
    /// The fence, the queue, the places, and then the further keys of the admission.
    ///
    /// Those of [`of_lock`](Self::of_lock) are made when a call first needs them. A mutex acquired
    /// without waiting needs none until its release, and they would be an eighth of its memory.
    others: OnceLock<Box<[Vec<u8>]>>,
    rules: &'static QueueRules,
}

impl QueueKeys {
    /// `others` are the fence, the queue, the places and the further keys.
    pub(super) fn new<const N: usize>(
        keys: Keys,
        others: [Vec<u8>; N],
        rules: &'static QueueRules,
    ) -> Self {
        const { assert!(N >= 3) };
        let others = OnceLock::from(Box::from(others));
        Self {
            keys,
            others,
            rules,
        }
    }

    /// The further keys are those of a lock, made when a call first needs them.
    pub(super) fn of_lock(keys: Keys, rules: &'static QueueRules) -> Self {
        Self {
            keys,
            others: OnceLock::new(),
            rules,
        }
    }

    fn others(&self) -> &[Vec<u8>] {
        let of_lock = || Box::from(keys_of_lock(&self.keys));
        self.others.get_or_init(of_lock)
    }

    pub(super) fn call<'a, const ARGS: usize>(
        &'a self,
        verb: Verb,
        script: &'static Script,
        args: [Arg<'a>; ARGS],
    ) -> Call<'a> {
        Call {
            ends_with_readers: self.rules.is_of_lock,
            ..Call::new(verb, script, [&self.keys.locks, self.others()], args)
        }
    }

    /// Acquires what the call wants, or joins the queue. A grant reserves this number of tokens.
    pub(super) fn enter<'a>(
        &'a self,
        request: &Acquire<'a>,
        want: Arg<'a>,
        tokens: u64,
    ) -> Call<'a> {
        let id = Arg::id(request.id);
        let args = [id, Arg::millis(request.ttl), want, request.place()];
        let wanted = Wanted {
            reserved: tokens - 1,
            ..Wanted::ONE
        };
        self.call(Verb::Acquire(wanted), &self.rules.scripts.enter, args)
    }

    /// Releases the lease, or removes the place; then grants to the next waiters.
    pub(super) fn release<'a>(&'a self, value: &'a [u8]) -> Call<'a> {
        let verb = Verb::Release;
        self.call(verb, &self.rules.scripts.release, [Arg::Bytes(value)])
            .followed_by(&self.keys.channels)
    }

    /// The same for several holder ids.
    pub(super) fn undo<'a>(&'a self, arguments: &'a [Vec<u8>]) -> Call<'a> {
        let verb = Verb::Undo(self.keys.undone_ids(arguments));
        self.call(verb, &self.rules.scripts.undo, [])
            .followed_by(arguments)
    }

    pub(super) fn refresh_verb(&self, ids: &[Vec<u8>]) -> Verb {
        Verb::Refresh {
            places: ids.len(),
            is_shared: self.rules.is_shared,
        }
    }
}

impl RedisQueue for QueueKeys {
    fn key(&self) -> &[u8] {
        &self.others()[1]
    }

    fn places(&self) -> &[u8] {
        &self.others()[2]
    }

    fn admission(&self) -> Admission {
        self.rules.admission
    }

    fn refresh<'a>(&'a self, _: u64, inbox: &'a [u8], ids: &'a [Vec<u8>]) -> Call<'a> {
        let script = &self.rules.scripts.refresh;
        self.call(self.refresh_verb(ids), script, [Arg::Bytes(inbox)])
            .followed_by(ids)
    }
}

/// Returns the fence, the queue, the places and the readers of a lock.
pub(super) fn keys_of_lock(keys: &Keys) -> [Vec<u8>; 4] {
    let sibling = |what| sibling_key(&keys.locks[0], what);
    [
        keys.fence().to_vec(),
        sibling("queue"),
        sibling("places"),
        sibling("readers"),
    ]
}
