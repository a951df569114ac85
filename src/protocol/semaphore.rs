//! The semaphore: its keys, its calls, and the holders of its permits.

use std::time::Duration;

use crate::error::Error;
use crate::holder_id::HolderId;
use crate::name::Name;
use crate::protocol::keys::{Keys, sibling_key};
use crate::protocol::mutex;
use crate::protocol::one_or_many::OneOrMany;
use crate::protocol::primitive::{Acquire, Admission, AtRelease, Primitive, RedisQueue};
use crate::protocol::queue_keys::{
    QueueKeys, QueueRules, QueueScripts, queue_script, queue_scripts,
};
use crate::protocol::renew_many::RenewMany;
use crate::protocol::script::{Arg, Call, Script, script};
use crate::protocol::verb::Verb;

/// The most permits that a semaphore can have.
const MOST_PERMITS: u32 = (1 << 31) - 1;

/// The channel to which a client subscribes while it waits for permits. Nothing is published there:
/// the subscription starts the thread whose connection also receives grants, in the client's inbox.
const CHANNEL: &[u8] = b"leasehold:grants";

/// The start of the permits key of every name.
const KEY_PREFIX: &str = "leasehold:permits:";

static PERMITS: QueueScripts = queue_scripts!(
    ["permits_enter_free", "draw_free", "permits_take_free"],
    ["permits_leave_free"],
    "later_end",
    "admit_permits"
);

/// The permits of all holders together are at most those of the semaphore.
pub(super) static RULES: QueueRules = QueueRules {
    scripts: &PERMITS,
    // The admission only distinguishes kinds that share a queue. No other kind uses the queue of a
    // semaphore.
    admission: Admission::Exclusive,
    is_of_lock: false,
    is_shared: true,
};

pub(super) static RENEW: Script = script!("permits_renew", "now");
static RENEW_EACH: Script = script!("permits_renew_many", "now");
pub(super) static RENEW_MANY: RenewMany = RenewMany {
    script: &RENEW_EACH,
    most: 100,
};
pub(super) static INSPECT: Script = script!("permits_inspect", "now");

/// The keys and calls of a [`Semaphore`](crate::Semaphore), and how many permits a call wants.
#[derive(Debug)]
pub(crate) struct SemaphoreKeys {
    /// The lock of the same name. The keys of the semaphore are derived from its lock key.
    lock: Keys,
    queue: QueueKeys,
    permits: u32,
    many: u32,
    /// `<many>/<permits>`, as the scripts read it.
    want: String,
}

impl SemaphoreKeys {
    /// Returns the keys of a semaphore with this many `permits`, for calls that acquire `many`.
    pub(crate) fn of(lock: Keys, permits: u32, many: u32) -> Self {
        let sibling = |what| sibling_key(&lock.locks[0], what);
        let one = |key: &[u8]| -> OneOrMany<Vec<u8>> { [key.to_vec()].into_iter().collect() };
        let fence = sibling("permits-fence");
        let name = lock.names[0].clone().of_semaphore();
        let keys = Keys {
            names: [name].into_iter().collect(),
            locks: one(&sibling("permits")),
            fences: one(&fence),
            channels: one(CHANNEL),
        };
        let others = [fence, sibling("permits-queue"), sibling("permits-places")];
        Self {
            queue: QueueKeys::new(keys, others, &RULES),
            lock,
            permits,
            many,
            want: format!("{many}/{permits}"),
        }
    }

    /// Reads how many permits are out, and at most this many of their holders.
    pub(crate) fn inspect_permits(&self, holders: u32) -> Call<'_> {
        let Keys { locks, fences, .. } = &self.queue.keys;
        let args = [Arg::Number(holders.into())];
        Call::new(Verb::InspectPermits, &INSPECT, [locks, fences], args)
    }
}

impl Primitive for SemaphoreKeys {
    fn keys(&self) -> &Keys {
        &self.queue.keys
    }

    fn acquire<'a>(&'a self, request: Acquire<'a>) -> Call<'a> {
        let want = Arg::Bytes(self.want.as_bytes());
        self.queue.enter(&request, want, 1)
    }

    fn release<'a>(&'a self, value: &'a [u8], _: AtRelease) -> Call<'a> {
        self.queue.release(value)
    }

    fn undo<'a>(&'a self, arguments: &'a [Vec<u8>]) -> Call<'a> {
        self.queue.undo(arguments)
    }

    fn renew<'a>(&'a self, id: &'a HolderId, ttl: Duration, may_shorten: bool) -> Call<'a> {
        mutex::renew(&self.queue.keys, &RENEW, id, ttl, may_shorten)
    }

    fn renew_many(&self) -> Option<&'static RenewMany> {
        Some(&RENEW_MANY)
    }

    /// The id begins with the number of permits: scripts that receive only the id read it there.
    fn fresh_id(&self, owner: &str) -> HolderId {
        HolderId::fresh_of_permits(self.many, owner)
    }

    fn permits(&self) -> Option<(u32, u32)> {
        Some((self.many, self.permits))
    }

    /// No limit in the client: only Redis knows how many permits are left.
    fn capacity(&self) -> usize {
        usize::MAX
    }

    fn queue(&self) -> Option<&dyn RedisQueue> {
        Some(&self.queue)
    }

    fn check(&self) -> Result<(), Error> {
        self.lock.check()?;
        let Self { permits, many, .. } = self;
        let why = if *permits == 0 {
            "it needs at least 1".to_owned()
        } else if *permits > MOST_PERMITS {
            format!("it can have at most {MOST_PERMITS}")
        } else if *many == 0 {
            "a call must acquire at least 1".to_owned()
        } else if many > permits {
            format!("no call can acquire {many} of them")
        } else {
            return Ok(());
        };
        let name = &self.queue.keys.names[0];
        Err(Error::Config(format!(
            "the semaphore {name} has {permits} permits: {why}"
        )))
    }

    fn needs_queues(&self) -> Option<(&'static str, &'static str)> {
        let why = "with the votes of a quorum, more holders than it has permits can each have a \
                   majority";
        Some(("a semaphore", why))
    }
}

/// Returns a glob pattern of the permits keys of all names.
pub(crate) fn pattern_of_all() -> Vec<u8> {
    format!("{KEY_PREFIX}*").into_bytes()
}

/// Returns the keys of the lock that has the same name as the semaphore with this permits key;
/// `None` if `key` is no permits key.
pub(crate) fn lock_of(key: &[u8], key_prefix: &str, channel_prefix: &str) -> Option<Keys> {
    let rest = key.strip_prefix(KEY_PREFIX.as_bytes())?;
    let bare = rest
        .strip_prefix(b"{")
        .and_then(|rest| rest.strip_suffix(b"}"));
    // `sibling_key` adds braces unless the lock key has a hash tag. So braces around the rest may
    // be added ones, or belong to the lock key: the comparison at the end decides.
    let locks = [Some(rest), bare].into_iter().flatten();
    let mut keys = locks.filter_map(|lock| {
        let name = Name::from(lock.strip_prefix(key_prefix.as_bytes())?);
        Some(Keys::new(name, key_prefix, channel_prefix))
    });
    keys.find(|keys| keys.check().is_ok() && sibling_key(&keys.locks[0], "permits") == key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::permits_out::PermitsOut;
    use crate::protocol::reply::Reply;
    use crate::protocol::slot::slot;
    use crate::token::FencingToken;

    fn of(name: &str, permits: u32, many: u32) -> SemaphoreKeys {
        SemaphoreKeys::of(Keys::new(name.into(), "lock:", "r:"), permits, many)
    }

    #[test]
    fn all_keys_of_a_semaphore_are_in_one_slot() {
        for name in ["a", "{u1}:a", "a{b"] {
            let keys = of(name, 3, 1);
            let [permits, queue] = keys.release(b"", AtRelease::Usual).keys;
            let mut slots = permits.iter().chain(queue).map(|key| slot(key));
            let of_lock = slot(format!("lock:{name}").as_bytes());
            assert!(slots.all(|slot| slot == of_lock), "{name}");
        }
        let keys = of("a", 3, 1);
        assert_eq!(
            *keys.queue.keys.locks,
            [b"leasehold:permits:{lock:a}".to_vec()]
        );
        assert_eq!(keys.queue.key(), b"leasehold:permits-queue:{lock:a}");
    }

    #[test]
    fn numbers_that_no_call_can_have_are_refused() {
        assert!(of("a", 3, 3).check().is_ok());
        assert!(of("a", MOST_PERMITS, 1).check().is_ok());
        for (permits, many, why) in [
            (0, 1, "at least 1"),
            (3, 0, "at least 1"),
            (3, 4, "no call can acquire 4"),
            (MOST_PERMITS + 1, 1, "at most 2147483647"),
        ] {
            let error = of("a", permits, many).check().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(" a "), "{error}");
        }
        assert!(of("", 3, 1).check().is_err());
    }

    #[test]
    fn the_name_of_a_permits_key_is_found() {
        let name = |key: &str| Some(lock_of(key.as_bytes(), "lock:", "r:")?.names[0].clone());
        for text in ["a", "{u1}:a", "a{b", "{a}"] {
            let key = of(text, 3, 1).queue.keys.locks[0].clone();
            let key = String::from_utf8(key).unwrap();
            assert_eq!(name(&key), Some(text.into()), "{key}");
        }
        for key in [
            "leasehold:permits:lock:a",
            "leasehold:permits:{lock:}",
            "leasehold:permits:{luck:a}",
            "leasehold:permits-fence:{lock:a}",
            "lock:a",
        ] {
            assert_eq!(name(key), None, "{key}");
        }
    }

    #[test]
    fn permits_and_their_holders_are_read() {
        let text = |text: &str| Reply::Text(text.into());
        let id = of("a", 3, 2).fresh_id("host/7");
        let read = |items: &[Reply]| PermitsOut::read(Reply::List(items.to_vec()));
        let out = read(&[
            Reply::Int(3),
            text("77"),
            text("foreign"),
            Reply::Int(1),
            text(id.as_str()),
            Reply::Int(900),
        ]);
        let out = out.unwrap();
        assert_eq!((out.out, out.last_token), (3, Some(FencingToken::new(77))));
        let [holder] = &*out.holders else {
            panic!("{out:?}")
        };
        assert_eq!((holder.owner(), holder.permits()), (Some("host/7"), 2));
        assert_eq!(holder.remaining(), Some(Duration::from_millis(900)));
        assert_eq!(read(&[Reply::Int(0), Reply::Nil]).unwrap().out, 0);
        for items in [
            &[Reply::Int(3)][..],
            &[Reply::Int(-1), Reply::Nil],
            &[Reply::Int(3), Reply::Nil, text("x")],
            &[Reply::Int(3), Reply::Nil, text("x"), Reply::Int(-1)],
            &[Reply::Int(3), Reply::Int(7)],
        ] {
            assert_eq!(read(items), None, "{items:?}");
        }
    }
}
