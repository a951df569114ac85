//! The threads of the programs that lock over a quorum.

use std::sync::Arc;
use std::time::Duration;

use super::world::{State, Todo, World, time_at, time_of};
use crate::config::LeaseTerms;
use crate::kernel::acquiring::Acquiring;
use crate::kernel::call::{CallTerms, Step};
use crate::kernel::effects::Effects;
use crate::kernel::held::{HeldLease, Holder};
use crate::kernel::lease::{LeaseStatus, Wanted};
use crate::kernel::table::entry_name;
use crate::kernel::unlock::Unlock;
use crate::kernel::waiter::{Failure, Outcome, Wait};
use crate::name::Name;
use crate::protocol::all::MutexAllKeys;
use crate::protocol::keys::{Keys, Layout};
use crate::protocol::mutex::MutexKeys;
use crate::protocol::primitive::Primitive;
use crate::sim::plan::{Actor, Kind};
use crate::sim::server::MS;
use crate::sim::world::show::shown;
use crate::sim::world::wants::how_it_waits;
use crate::sim::world::{COMMAND_TIMEOUT, Checked, NEVER};
use crate::token::FencingToken;

impl World {
    pub(super) fn caller(&mut self, client: usize, thread: usize) -> Checked {
        let actor = Actor::Caller(thread);
        if let Some(todo) = self.clients[client].callers[thread].todo.pop_front() {
            match todo {
                Todo::Effects(fx) => self.effects(client, fx),
                Todo::Step(step) => self.step(client, thread, step),
                Todo::Write(..) | Todo::Sleep => unreachable!("of the engine"),
            }
            self.go_on(client, actor);
            return Ok(());
        }
        let caller = &mut self.clients[client].callers[thread];
        let state = std::mem::replace(&mut caller.state, State::Done);
        match state {
            State::Done => Ok(()),
            State::Idle(until) if self.now < until => {
                caller.state = State::Idle(until);
                self.timer(client, actor, until);
                Ok(())
            }
            State::Idle(_) if caller.ops == 0 => Ok(()),
            State::Idle(_) => self.begin(client, thread),
            State::Parked(call) => self.woken(client, thread, call),
            State::Holding {
                lease,
                token,
                until,
            } => {
                if self.now < until {
                    caller.state = State::Holding {
                        lease,
                        token,
                        until,
                    };
                    self.timer(client, actor, until);
                    Ok(())
                } else {
                    self.holding(client, thread, lease, token)
                }
            }
            State::Operating {
                lease,
                token,
                cell,
                by,
                unlocks,
            } => {
                if self.now < by && cell.result.lock().is_none() {
                    caller.state = State::Operating {
                        lease,
                        token,
                        cell,
                        by,
                        unlocks,
                    };
                    self.timer(client, actor, by);
                    return Ok(());
                }
                let renewed = matches!(*cell.result.lock(), Some(Ok(())));
                lease.cancel(&cell);
                if unlocks {
                    self.unlock(client, thread, lease, token, renewed)
                } else {
                    let until = self.now + 100;
                    caller.state = State::Holding {
                        lease,
                        token,
                        until,
                    };
                    self.timer(client, actor, until);
                    Ok(())
                }
            }
            State::Releasing { lease, cell, by } => {
                let result = cell.result.lock().clone();
                if result.is_none() && self.now < by {
                    caller.state = State::Releasing { lease, cell, by };
                    self.timer(client, actor, by);
                    return Ok(());
                }
                if result.is_none() {
                    self.clients[client].given_up.push(Arc::clone(&lease));
                }
                let mut fx = Effects::default();
                let status = lease.status(time_at(self.now), &mut fx);
                let is_lost = matches!(status, LeaseStatus::Lost(_));
                self.say(|| format!("c{client}.{thread} released: {result:?} {status:?}"));
                self.report.lost += u64::from(is_lost);
                if matches!(result, Some(Ok(()))) && !is_lost {
                    for name in lease.lock.keys().names.iter() {
                        self.note_own_end(client, name);
                    }
                }
                self.effects(client, fx);
                self.idle(client, thread);
                self.go_on(client, actor);
                Ok(())
            }
        }
    }

    fn lock_of(&mut self, client: usize, name: u64) -> Arc<dyn Primitive> {
        let locks = &mut self.clients[client].locks;
        let make = || {
            let name = Name::from(format!("n{name}"));
            MutexKeys::of(Keys::new(name, "lock:", "lock_release:"))
        };
        Arc::clone(locks.entry(name).or_insert_with(make))
    }

    /// The set of all names, or of all but one.
    fn set_of(&mut self, client: usize, without: Option<u64>) -> Arc<dyn Primitive> {
        let all = 0..self.plan.names;
        let locks = &mut self.clients[client].locks;
        let make = || {
            let names = all.filter(|n| Some(*n) != without);
            let names = names.map(|n| Name::from(format!("n{n}"))).collect();
            MutexAllKeys::of(names, "lock:", "lock_release:", Layout::OneServer, false)
        };
        let number = 1_000 + without.unwrap_or(999);
        let lock = Arc::clone(locks.entry(number).or_insert_with(make));
        self.names.insert(entry_name(&*lock).into_owned());
        lock
    }

    /// Chooses the next call of a thread.
    fn wants(&mut self, client: usize, thread: usize) -> CallTerms {
        let names = self.plan.names;
        let (ttl, handoffs, share) = (self.plan.ttl, self.plan.handoffs, self.plan.backoff);
        let caller = &mut self.clients[client].callers[thread];
        caller.ops -= 1;
        caller.is_cancelled = false;
        let rng = &mut caller.rng;
        let name = rng.below(names);
        let (is_once, deadline, policy, max_hold) = how_it_waits(rng, share, self.now);
        let renews = !rng.chance(80);
        let ttl = if rng.chance(60) { ttl * 3 / 2 } else { ttl };
        let ttl = Duration::from_micros(ttl / MS * MS);
        let lock = if self.is_set(client, thread) {
            let without = Some(name).filter(|_| self.plan.names > 2);
            self.set_of(client, without)
        } else {
            self.lock_of(client, name)
        };
        CallTerms {
            lock,
            terms: LeaseTerms {
                ttl,
                renew_every: renews.then_some(ttl / 3),
                max_hold,
                replicas: None,
                linger: Duration::ZERO,
                handoffs,
            },
            wait: if is_once {
                Wait::Once
            } else {
                Wait::Queue(policy)
            },
            deadline: time_at(deadline),
            holder: Holder {
                handoffs,
                ..Holder::default()
            },
            by_engine: false,
        }
    }

    /// Chooses whether the next call is for a set.
    fn is_set(&mut self, client: usize, thread: usize) -> bool {
        let rng = &mut self.clients[client].callers[thread].rng;
        self.plan.kinds.contains(&Kind::PlainSet) && rng.chance(500)
    }

    fn begin(&mut self, client: usize, thread: usize) -> Checked {
        let wants = self.wants(client, thread);
        let text = format!(
            "{} {:?} until {:.3}",
            wants.lock,
            wants.wait,
            (time_of(wants.deadline) as f64 - super::world::START as f64) / 1000.0
        );
        let kernel = Arc::clone(&self.clients[client].kernel);
        let mut call = Acquiring::new(&kernel, wants, time_at(self.now));
        let mut fx = Effects::default();
        let step = call.begin(&kernel, time_at(self.now), &mut fx);
        self.say(|| format!("c{client}.{thread} {text}"));
        self.decided(client, thread, call, step, fx)
    }

    fn decided(
        &mut self,
        client: usize,
        thread: usize,
        call: Acquiring,
        step: Step,
        mut fx: Effects,
    ) -> Checked {
        self.say(|| format!("c{client}.{thread} -> {}", shown(&step)));
        self.after_kernel(client, &mut fx)?;
        if let Step::Done(outcome) = &step {
            self.check_outcome(client, thread, &call, outcome)?;
        }
        let caller = &mut self.clients[client].callers[thread];
        caller.state = State::Parked(call);
        caller.todo.push_back(Todo::Effects(fx));
        caller.todo.push_back(Todo::Step(step));
        self.stop_if_due(client, Actor::Caller(thread));
        self.go_on(client, Actor::Caller(thread));
        Ok(())
    }

    fn step(&mut self, client: usize, thread: usize, step: Step) {
        match step {
            Step::Send(..) => unreachable!("the engine sends over a quorum"),
            Step::Park(until) => {
                self.timer(client, Actor::Caller(thread), time_of(until));
            }
            Step::Done(outcome) => self.done(client, thread, outcome),
        }
    }

    fn done(&mut self, client: usize, thread: usize, outcome: Outcome) {
        let Outcome::Lease(lease, token) = outcome else {
            match outcome {
                Outcome::Refused(_) => self.report.refused += 1,
                _ => self.report.failed += 1,
            }
            self.idle(client, thread);
            return;
        };
        self.report.acquired += 1;
        let ttl = self.plan.ttl;
        let rng = &mut self.clients[client].callers[thread].rng;
        let time = match rng.below(10) {
            0..=5 => rng.range(10, 3 * MS),
            6..=8 => rng.range(MS, 60 * MS),
            _ => rng.range(10 * MS, (ttl * 5 / 2).min(2_500 * MS)),
        };
        let until = self.now + time;
        self.clients[client].callers[thread].state = State::Holding {
            lease,
            token,
            until,
        };
    }

    fn idle(&mut self, client: usize, thread: usize) {
        let caller = &mut self.clients[client].callers[thread];
        let pause = if caller.rng.chance(500) {
            0
        } else {
            caller.rng.below(5 * MS)
        };
        caller.state = State::Idle(self.now + pause);
    }

    fn woken(&mut self, client: usize, thread: usize, mut call: Acquiring) -> Checked {
        let kernel = Arc::clone(&self.clients[client].kernel);
        let mut fx = Effects::default();
        let now = time_at(self.now);
        let caller = &mut self.clients[client].callers[thread];
        let step = if std::mem::take(&mut caller.is_cancelled) {
            Step::Done(call.leave(&kernel, Failure::Cancelled, now, &mut fx))
        } else {
            call.woken(&kernel, now, &mut fx)
        };
        if let Step::Park(until) = step {
            self.clients[client].callers[thread].state = State::Parked(call);
            self.after_kernel(client, &mut fx)?;
            self.effects(client, fx);
            self.timer(client, Actor::Caller(thread), time_of(until));
            return Ok(());
        }
        self.decided(client, thread, call, step, fx)
    }

    fn holding(
        &mut self,
        client: usize,
        thread: usize,
        lease: Arc<HeldLease>,
        token: FencingToken,
    ) -> Checked {
        let ttl = self.plan.ttl;
        let rng = &mut self.clients[client].callers[thread].rng;
        let what = match rng.below(20) {
            0 => Wanted::Renew,
            1 | 2 => Wanted::SetTtl(Duration::from_millis(
                (ttl / MS * rng.range(3, 20) / 10).max(20),
            )),
            _ => return self.unlock(client, thread, lease, token, false),
        };
        self.say(|| format!("c{client}.{thread} wants {what:?}"));
        let mut fx = Effects::default();
        let kernel = Arc::clone(&self.clients[client].kernel);
        let cell = kernel.operate(&lease, token, what, time_at(self.now), &mut fx);
        self.after_kernel(client, &mut fx)?;
        let by = self.now + COMMAND_TIMEOUT;
        let caller = &mut self.clients[client].callers[thread];
        caller.todo.push_back(Todo::Effects(fx));
        caller.state = match cell {
            Some(cell) => State::Operating {
                lease,
                token,
                cell,
                by,
                unlocks: false,
            },
            None => State::Holding {
                lease,
                token,
                until: self.now + 1,
            },
        };
        self.go_on(client, Actor::Caller(thread));
        Ok(())
    }

    fn unlock(
        &mut self,
        client: usize,
        thread: usize,
        lease: Arc<HeldLease>,
        token: FencingToken,
        has_renewed: bool,
    ) -> Checked {
        let mut fx = Effects::default();
        let kernel = Arc::clone(&self.clients[client].kernel);
        let unlock = kernel.begin_unlock(&lease, token, has_renewed, time_at(self.now), &mut fx);
        self.say(|| {
            let how = format!("{unlock:?}");
            let how = how.get(..12).unwrap_or(&how);
            format!("c{client}.{thread} unlocks {:?}: {how}", lease.id)
        });
        self.after_kernel(client, &mut fx)?;
        let by = self.now + COMMAND_TIMEOUT;
        let caller = &mut self.clients[client].callers[thread];
        caller.todo.push_back(Todo::Effects(fx));
        match unlock {
            Unlock::Lingers => unreachable!("a quorum's leases do not linger"),
            Unlock::HandedOff => {
                self.report.handed_off += 1;
                self.idle(client, thread);
            }
            Unlock::AlreadyLost(_) | Unlock::Over => {
                self.report.lost += 1;
                self.idle(client, thread);
            }
            Unlock::RenewFirst(cell) => {
                let by = self.now + COMMAND_TIMEOUT / 2;
                caller.state = State::Operating {
                    lease,
                    token,
                    cell,
                    by,
                    unlocks: true,
                };
            }
            Unlock::Wait(cell) => {
                caller.state = State::Releasing { lease, cell, by };
                self.stop_if_due(client, Actor::Caller(thread));
            }
            Unlock::Send(_) => unreachable!("the engine releases over a quorum"),
        }
        self.go_on(client, Actor::Caller(thread));
        Ok(())
    }
}
