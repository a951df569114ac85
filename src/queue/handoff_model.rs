//! Model test: the local queue and hand-offs in thousands of thread schedules. A struct with one
//! key and a fence stands for Redis.

use std::collections::HashSet;
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

/// Always the same instant: nothing in the model takes time, and no lease expires.
fn now() -> Instant {
    Instant::START.after(Duration::from_secs(1))
}

struct World {
    waiters: Waiters,
    keys: Arc<dyn Primitive>,
    redis: Mutex<Redis>,
    /// The state that the lock protects.
    inside: Mutex<Inside>,
    /// Another program deletes the key at any time.
    is_key_deleted: bool,
}

#[derive(Default)]
struct Redis {
    key: Option<HolderId>,
    fence: u64,
}

#[derive(Default)]
struct Inside {
    /// The threads in the critical section.
    holders: usize,
    newest_token: u64,
    /// The tokens of all critical sections.
    used: HashSet<u64>,
    /// How many critical sections were entered.
    entered: usize,
    /// How many calls took a lease that was handed off.
    handed_off: usize,
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
                        self.inside.lock().unwrap().handed_off += 1;
                        break Some((Arc::clone(&hold), hold.token()));
                    }
                    Some(Err(handed)) => self.pass_on_unclaimed(&handed),
                    None => panic!("the position is `HandedOff`, but no lease can be taken"),
                },
                Position::Contend => {
                    if let Some(granted) = self.ask(ticket.about_to_try(now())) {
                        break Some(granted);
                    }
                }
                Position::Yield | Position::HeldLocally | Position::Behind => {}
                position => panic!("a local queue returned {position:?}"),
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
            token > self.inside.lock().unwrap().newest_token,
            "the new token is not above those used before"
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
        for evicted in self.waiters.granted(&hold) {
            let evicted = evicted.upgrade();
            if let Some(evicted) = evicted {
                evicted.lose(Lost::Taken, now());
                self.waiters.ended(&evicted, None);
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
                // The key may still be this lease's. Another call of this client may have acquired
                // the lock before this one, but recorded it later: that evicted this lease.
                self.redis.lock().unwrap().release(&hold.id);
            }
            Some(LeaseStatus::Released) | None => panic!("{token} was released before"),
        }
    }

    fn section(&self, token: FencingToken) {
        {
            let mut inside = self.inside.lock().unwrap();
            inside.holders += 1;
            inside.entered += 1;
            assert!(
                inside.holders == 1 || self.is_key_deleted,
                "two holders at once"
            );
            if !self.is_key_deleted {
                assert!(
                    token.value() > inside.newest_token,
                    "the token did not rise"
                );
            }
            assert!(inside.used.insert(token.value()), "{token} was used before");
            inside.newest_token = inside.newest_token.max(token.value());
        }
        yield_now();
        self.inside.lock().unwrap().holders -= 1;
    }
}

/// Runs one schedule; returns how many critical sections were entered, and how many of them after a
/// hand-off.
fn run(threads: usize, is_key_deleted: bool) -> (usize, usize) {
    let world = Arc::new(World {
        waiters: Waiters::default(),
        keys: MutexKeys::of(Keys::new("a".into(), "lock:", "lock_release:")),
        redis: Mutex::default(),
        inside: Mutex::default(),
        is_key_deleted,
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
    if is_key_deleted {
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
    assert_eq!(world.redis.lock().unwrap().key, None, "the key is left");
    assert!(world.waiters.is_idle(), "a waiter or a held name is left");
    let inside = world.inside.lock().unwrap();
    (inside.entered, inside.handed_off)
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
fn new_tokens_are_above_used_ones_and_nothing_is_left_when_the_key_is_deleted() {
    let check = || {
        run(4, true);
    };
    shuttle::check_random(check, SCHEDULES);
}
