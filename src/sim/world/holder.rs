//! The guards of the simulated programs: they renew, hand off and release.

use super::show::unknown;
use super::{
    Actor, Arc, COMMAND_TIMEOUT, Checked, Command, Duration, Effects, Family, FencingToken,
    HeldLease, Kind, MS, Primitive, Release, State, Then, Time, Todo, Unlock, Unlocked, Wanted,
    World,
};
use crate::kernel::release_tries::{NextTry, ReleaseTries};
use crate::lease::status::LeaseStatus;
use crate::lost::Lost;

impl World {
    pub(super) fn holding(
        &mut self,
        client: usize,
        thread: usize,
        lease: Arc<HeldLease>,
        token: FencingToken,
        until: Time,
    ) -> Checked {
        if self.now < until {
            let caller = &mut self.clients[client].callers[thread];
            caller.state = State::Holding {
                lease,
                token,
                until,
            };
            self.timer(client, Actor::Caller(thread), until);
            return Ok(());
        }
        let writer = self.readers_side(client, &lease.renewed_as());
        let Some(what) = self.change(client, thread, writer) else {
            return self.unlock(client, thread, lease, token, false);
        };
        self.say(|| format!("c{client}.{thread} wants {what:?}"));
        let mut fx = Effects::default();
        let kernel = Arc::clone(&self.clients[client].kernel);
        let cell = kernel.operate(
            &lease,
            token,
            what,
            self.clocks[client].at(self.now),
            &mut fx,
        );
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
                then: Then::Holds,
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

    /// Chooses what a holder wants of its lease; `None` if it unlocks. `reader`: to what it can be
    /// downgraded.
    pub(super) fn change(
        &mut self,
        client: usize,
        thread: usize,
        reader: Option<Arc<dyn Primitive>>,
    ) -> Option<Wanted> {
        let ttl = self.plan.ttl;
        let is_quorum = self.plan.is_quorum();
        let (changes, of) = match self.plan.family {
            Family::ShortTtl => (1, 10),
            _ if is_quorum => (2, 20),
            _ => (1, 30),
        };
        // In tenths of the ttl.
        let (shortest, longest) = if is_quorum { (3, 20) } else { (5, 15) };
        let rng = &mut self.clients[client].callers[thread].rng;
        match (rng.below(of), reader) {
            (0, _) => Some(Wanted::Renew),
            (n, _) if n <= changes => Some(Wanted::SetTtl(Duration::from_millis(
                (ttl / MS * rng.range(shortest, longest) / 10).max(20),
            ))),
            (2..=5, Some(reader)) => Some(Wanted::Downgrade(reader)),
            _ => None,
        }
    }

    /// Returns the readers' side of the lock of a writer.
    fn readers_side(
        &mut self,
        client: usize,
        lock: &Arc<dyn Primitive>,
    ) -> Option<Arc<dyn Primitive>> {
        let mut locks = self.clients[client].locks.iter();
        let ((name, _), _) = locks.find(|((_, tag), it)| *tag == 4 && Arc::ptr_eq(it, lock))?;
        let name = *name;
        Some(self.lock_of(client, name, Kind::Reader))
    }

    pub(super) fn unlock(
        &mut self,
        client: usize,
        thread: usize,
        lease: Arc<HeldLease>,
        token: FencingToken,
        has_renewed: bool,
    ) -> Checked {
        let mut fx = Effects::default();
        let kernel = Arc::clone(&self.clients[client].kernel);
        let unlock = kernel.begin_unlock(
            &lease,
            token,
            has_renewed,
            self.clocks[client].at(self.now),
            &mut fx,
        );
        self.say(|| {
            let how = format!("{unlock:?}");
            format!(
                "c{client}.{thread} unlocks {:?}: {}",
                lease.id,
                how.get(..12).unwrap_or(&how)
            )
        });
        self.after_kernel(client, &mut fx)?;
        if matches!(unlock, Unlock::Over) && lease.token() != token {
            let text = format!("{:?} was taken from c{client}.{thread}", lease.id);
            return Err(self.violation("P1", text));
        }
        let caller = &mut self.clients[client].callers[thread];
        caller.todo.push_back(Todo::Effects(fx));
        match unlock {
            Unlock::HandedOff => {
                self.report.handed_off += 1;
                self.idle(client, thread);
            }
            Unlock::Lingers => {
                self.report.lingered += 1;
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
                    then: Then::Unlocks,
                };
            }
            Unlock::Wait(cell) => {
                let by = self.now + COMMAND_TIMEOUT;
                caller.state = State::Operating {
                    lease,
                    token,
                    cell,
                    by,
                    then: Then::Leaves,
                };
                if self.plan.is_quorum() {
                    self.stop_if_due(client, Actor::Caller(thread));
                }
            }
            Unlock::Send(_) if self.plan.engine_sends() => {
                unreachable!("the engine sends the releases")
            }
            Unlock::Send(command) => {
                let release = self.release(client, lease, command);
                self.clients[client].callers[thread].state = State::Releasing(release);
                self.stop_if_due(client, Actor::Caller(thread));
            }
        }
        self.go_on(client, Actor::Caller(thread));
        Ok(())
    }

    /// The engine has released a lease, or its holder waits no longer for that.
    pub(super) fn leaves(&mut self, client: usize, thread: usize, lease: &Arc<HeldLease>) {
        let mut fx = Effects::default();
        let status = lease.status(self.clocks[client].at(self.now), &mut fx);
        let is_lost = matches!(status, LeaseStatus::Lost(_));
        self.report.lost += u64::from(is_lost);
        if !lease.is_open() && !is_lost {
            self.note_own_end(client, &*lease.lock);
        }
        let caller = &mut self.clients[client].callers[thread];
        caller.todo.push_back(Todo::Effects(fx));
        self.idle(client, thread);
        self.go_on(client, Actor::Caller(thread));
    }

    /// A release that is sent at once.
    pub(super) fn release(
        &self,
        client: usize,
        lease: Arc<HeldLease>,
        command: Command,
    ) -> Release {
        let deadline = self.now + COMMAND_TIMEOUT;
        Release {
            lease,
            command,
            by: 0,
            retry_at: 0,
            deadline,
            tries: ReleaseTries::new(self.clocks[client].at(deadline), false),
        }
    }

    pub(super) fn releasing(
        &mut self,
        client: usize,
        thread: usize,
        mut release: Release,
    ) -> Checked {
        let actor = Actor::Caller(thread);
        if release.by == 0 {
            if self.now < release.retry_at {
                self.timer(client, actor, release.retry_at);
            } else {
                self.write(client, thread, release.command.clone());
                release.by = release.deadline.max(self.now + 1);
                self.timer(client, actor, release.by);
            }
            self.clients[client].callers[thread].state = State::Releasing(release);
            return Ok(());
        }
        let caller = &mut self.clients[client].callers[thread];
        let end = match caller.mail.take() {
            Some(end) => end,
            None if self.now < release.by => {
                let by = release.by;
                caller.state = State::Releasing(release);
                self.timer(client, actor, by);
                return Ok(());
            }
            None => Err(unknown()),
        };
        if end.is_err()
            && let Some(n) = self.clients[client].callers[thread].conn.take()
        {
            self.close(n);
        }
        let is_closed = self.clients[client].kernel.is_closed();
        let now = self.clocks[client].at(self.now);
        if let NextTry::Again(at) = release.tries.ended(&end, "redis", is_closed, now) {
            release.by = 0;
            release.retry_at = self.clocks[client].time_of(at);
            self.clients[client].callers[thread].state = State::Releasing(release);
            self.go_on(client, actor);
            return Ok(());
        }
        let mut fx = Effects::default();
        let kernel = Arc::clone(&self.clients[client].kernel);
        let (lease, ran) = (&release.lease, release.tries.may_have_run());
        let unlocked = kernel.unlocked(lease, end, ran, self.clocks[client].at(self.now), &mut fx);
        self.say(|| {
            format!(
                "c{client}.{thread} released {:?}: {unlocked:?}",
                release.lease.id
            )
        });
        self.after_kernel(client, &mut fx)?;
        self.report.lost += u64::from(matches!(unlocked, Unlocked::Lost(_)));
        // Also by the clock: until then, this client had the lock.
        if [Unlocked::Released, Unlocked::Lost(Lost::Expired)].contains(&unlocked) {
            self.note_own_end(client, &*release.lease.lock);
        }
        let caller = &mut self.clients[client].callers[thread];
        caller.todo.push_back(Todo::Effects(fx));
        self.idle(client, thread);
        self.go_on(client, actor);
        Ok(())
    }
}
