//! Model test: the local queue and hand-offs in thousands of schedules, over a Redis of one key.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use shuttle::rand::{Rng, thread_rng};
use shuttle::thread::{spawn, yield_now};

use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::holder_id::HolderId;
use crate::lease::handoff::HandoffRun;
use crate::lease::held::{HeldLease, Holding, LeaseCell};
use crate::lease::state::LeaseState;
use crate::lease::status::LeaseStatus;
use crate::lost::Lost;
use crate::name::Name;
use crate::protocol::keys::Keys;
use crate::protocol::mutex::MutexKeys;
use crate::protocol::one_or_many::OneOrMany;
use crate::protocol::primitive::Primitive;
use crate::queue::local::Waiters;
use crate::queue::local_queue::HandedOff;
use crate::queue::position::{Position, Queue};
use crate::token::FencingToken;

const SCHEDULES: usize = 5_000;

const TERMS: LeaseTerms = LeaseTerms {
    ttl: Duration::from_secs(10),
    renew_every: Some(Duration::from_secs(3)),
    max_hold: Duration::MAX,
    replicas: None,
    handoffs: 2,
};

/// The clock stands still: nothing in the model takes time.
fn now() -> Instant {
    Instant::START.after(Duration::from_secs(1))
}

struct World {
    waiters: Waiters,
    keys: Arc<dyn Primitive>,
    redis: Mutex<Redis>,
    /// The state that the lock protects.
    inside: Mutex<Inside>,
    /// A third party deletes the key at any time.
    has_thief: bool,
}

#[derive(Default)]
struct Redis {
    key: Option<HolderId>,
    fence: u64,
}

#[derive(Default)]
struct Inside {
    now: usize,
    newest: u64,
    entered: usize,
    handed: usize,
}

impl Redis {
    fn acquire(&mut self, id: &HolderId, block: u64) -> Option<u64> {
        if self.key.is_some() {
            return None;
        }
        self.key = Some(id.clone());
        let first = self.fence + 1;
        self.fence += block;
        Some(first)
    }

    fn release(&mut self, id: &HolderId) {
        if self.key.as_ref() == Some(id) {
            self.key = None;
        }
    }
}

fn holding(token: FencingToken) -> Holding {
    Holding {
        token,
        since: Some(now()),
        handoffs: TERMS.handoffs,
        trace_id: None,
        on_lost: None,
        on_renew: None,
    }
}

impl World {
    fn name(&self) -> &Name {
        self.keys.key(0).name
    }

    /// Acquires as the wait loop does; returns `None` if the call gave up.
    fn lock(&self) -> Option<(Arc<HeldLease>, FencingToken)> {
        let ticket = self
            .waiters
            .join(self.name(), Some(TERMS), thread_rng().gen_bool(0.8));
        let mut must_try = false;
        let taken = loop {
            yield_now();
            match ticket.position(now(), must_try) {
                Position::HandedOff => match ticket.take(now(), Duration::MAX, holding) {
                    Some(Ok(hold)) => {
                        self.inside.lock().unwrap().handed += 1;
                        break Some((Arc::clone(&hold), hold.token()));
                    }
                    Some(Err(handed)) => self.pass_on_unclaimed(&handed),
                    None => panic!("it was handed one"),
                },
                Position::Contend => {
                    if let Some(granted) = self.ask(ticket.about_to_try(now())) {
                        break Some(granted);
                    }
                }
                Position::Yield | Position::HeldLocally | Position::Behind => {}
                position => panic!("{position:?} in a local queue"),
            }
            // Sleeps until woken or timed out; the call may then give up.
            must_try = loop {
                yield_now();
                if ticket.parker().is_unparked() {
                    break false;
                }
                if thread_rng().gen_bool(0.1) {
                    break true;
                }
            };
            if thread_rng().gen_bool(0.05) {
                break None;
            }
        };
        if let Some(handed) = ticket.leave() {
            yield_now();
            self.pass_on_unclaimed(&handed);
        }
        taken
    }

    fn ask(&self, others_wait: bool) -> Option<(Arc<HeldLease>, FencingToken)> {
        let id = HolderId::fresh("o");
        let block = if others_wait {
            u64::from(TERMS.handoffs) + 1
        } else {
            1
        };
        yield_now();
        let token = self.redis.lock().unwrap().acquire(&id, block)?;
        assert!(
            token > self.inside.lock().unwrap().newest,
            "the token was used before"
        );
        yield_now();
        let token = FencingToken::new(token);
        let hold = Arc::new(HeldLease {
            keys: Arc::clone(&self.keys),
            id,
            tokens: OneOrMany::One(token),
            votes: None,
            serial: 0,
            replicas: None,
            run: HandoffRun::new(token, block, now()),
            cell: LeaseCell::new(
                LeaseState::acquired(now(), now(), &TERMS).unwrap(),
                holding(token),
            ),
            downgraded: OnceLock::new(),
        });
        for before in self.waiters.granted(&hold) {
            let before = before.upgrade();
            if let Some(before) = before {
                before.lose(Lost::Taken, now());
                self.waiters.ended(&before, None);
            }
        }
        Some((hold, token))
    }

    fn pass_on_unclaimed(&self, handed: &HandedOff) {
        self.unlock(&handed.hold, handed.token);
    }

    fn unlock(&self, hold: &Arc<HeldLease>, token: FencingToken) {
        let handed = self.waiters.hand_off(hold, token, false, now());
        if handed.is_ok() {
            return;
        }
        yield_now();
        match hold.release(token, now()) {
            Some(LeaseStatus::Held(_)) => {
                yield_now();
                self.redis.lock().unwrap().release(&hold.id);
                yield_now();
                hold.lease(LeaseState::released);
                if hold.run.was_handed(token) {
                    self.waiters.yield_to_fleet(hold);
                }
                self.waiters.ended(hold, Some(now()));
            }
            Some(LeaseStatus::Lost(_)) => {
                self.waiters.ended(hold, None);
                yield_now();
                // Two calls of this client may have tried at once, and received their grants in
                // reverse order.
                self.redis.lock().unwrap().release(&hold.id);
            }
            Some(LeaseStatus::Released) | None => panic!("{token} was released before"),
        }
    }

    fn section(&self, token: FencingToken) {
        {
            let mut inside = self.inside.lock().unwrap();
            inside.now += 1;
            inside.entered += 1;
            assert!(inside.now == 1 || self.has_thief, "two holders at once");
            if !self.has_thief {
                assert!(token.value() > inside.newest, "the token did not rise");
            }
            inside.newest = inside.newest.max(token.value());
        }
        yield_now();
        self.inside.lock().unwrap().now -= 1;
    }
}

/// Returns how many critical sections were entered, and how many of them after a hand-off.
fn run(threads: usize, has_thief: bool) -> (usize, usize) {
    let world = Arc::new(World {
        waiters: Waiters::default(),
        keys: MutexKeys::of(Keys::new("a".into(), "lock:", "lock_release:")),
        redis: Mutex::default(),
        inside: Mutex::default(),
        has_thief,
    });
    let mut all: Vec<_> = (0..threads)
        .map(|_| {
            let world = Arc::clone(&world);
            spawn(move || {
                for _ in 0..2 {
                    if let Some((hold, token)) = world.lock() {
                        world.section(token);
                        world.unlock(&hold, token);
                    }
                }
            })
        })
        .collect();
    if has_thief {
        let world = Arc::clone(&world);
        all.push(spawn(move || {
            for _ in 0..2 {
                yield_now();
                world.redis.lock().unwrap().key = None;
            }
        }));
    }
    for one in all {
        one.join().unwrap();
    }
    assert_eq!(world.redis.lock().unwrap().key, None, "the key is gone");
    assert!(world.waiters.is_idle(), "no waiter is left");
    let inside = world.inside.lock().unwrap();
    (inside.entered, inside.handed)
}

#[test]
fn holders_exclude_each_other_with_rising_tokens_and_nothing_is_left() {
    let total = Arc::new(Mutex::new((0, 0)));
    let counted = Arc::clone(&total);
    shuttle::check_random(
        move || {
            let (entered, handed) = run(4, false);
            let mut total = counted.lock().unwrap();
            *total = (total.0 + entered, total.1 + handed);
        },
        SCHEDULES,
    );
    let (entered, handed) = *total.lock().unwrap();
    assert!(
        handed > entered / 10,
        "{handed} of {entered}: too few hand-offs to show anything"
    );
}

#[test]
fn tokens_rise_and_nothing_is_left_when_a_stranger_deletes_the_key() {
    let check = || {
        run(4, true);
    };
    shuttle::check_random(check, SCHEDULES);
}
