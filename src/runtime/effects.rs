//! Carries out what the kernel wants done, after its locks are dropped.

use std::sync::Arc;

use crate::clock::Instant;
use crate::kernel::Kernel;
use crate::kernel::command::Command;
use crate::kernel::effects::{Discard, Effects, Renewal, Told, WholeRenewed};
use crate::kernel::held::HeldLease;
use crate::logging::{self, contain};
use crate::lost::Lost;
use crate::renewed::Renewed;
use crate::runtime::state::Runtime;

impl Runtime {
    /// Has the kernel decide, and carries out the effects, on a thread of the program.
    pub(crate) fn decide<T>(&self, act: impl FnOnce(&Kernel, &mut Effects) -> T) -> T {
        let mut fx = Effects::default();
        let decision = act(&self.kernel, &mut fx);
        self.carry_out(fx);
        decision
    }

    /// Like [`decide`](Self::decide), on a thread of the client.
    pub(crate) fn decide_here<T>(&self, act: impl FnOnce(&Kernel, &mut Effects) -> T) -> T {
        let mut fx = Effects::default();
        let decision = act(&self.kernel, &mut fx);
        self.carry_out_here(fx);
        decision
    }

    /// Carries out effects on a thread of the program.
    pub(crate) fn carry_out(&self, fx: Effects) {
        self.carry_out_by(fx, Instant::NEVER);
    }

    /// Carries out effects on a thread of the program, which waits for no server beyond `deadline`.
    pub(crate) fn carry_out_by(&self, fx: Effects, deadline: Instant) {
        let owned = self.carry_out_but_drops(fx, deadline);
        contain(|| drop(owned));
    }

    /// Carries out effects on a thread of the client: what may own a user's closure is dropped by
    /// the thread of the callbacks.
    pub(crate) fn carry_out_here(&self, fx: Effects) {
        let mut owned = self.carry_out_but_drops(fx, Instant::NEVER);
        owned.retain(|it| match it {
            Discard::Holder(holder) => holder.has_callbacks(),
            Discard::Lease(lease) => lease.has_callbacks(),
            Discard::Listener(listener) => listener.has_callbacks(),
        });
        if !owned.is_empty() {
            self.callbacks.run(Box::new(move || drop(owned)));
        }
    }

    /// Wakes threads first but for the counters, which they may look at: nothing that follows can
    /// delay them. Returns what may own a user's closure.
    fn carry_out_but_drops(&self, fx: Effects, deadline: Instant) -> Vec<Discard> {
        let counters = &self.meters.counters;
        counters.attempts.add(fx.attempts.into());
        counters.wakes.add(fx.wakes.into());
        counters.spurious_wakes.add(fx.spurious_wakes.into());
        for told in &fx.lost {
            self.meters.lost(told.lost);
        }
        for renewal in &fx.renewed {
            let confirmed = renewal.end.as_ref().ok();
            self.meters.renewed(confirmed.map(|it| it.lag));
        }
        drop(fx.wake);
        for cell in fx.operations {
            cell.parker.unpark();
        }
        if fx.engine_by.is_some() {
            self.engine.wake();
        }
        for (name, number) in fx.unlisten {
            self.unlisten(&name, number);
        }
        for (lock, number) in fx.listen {
            if let Err(error) = self.listen(&lock, number) {
                logging::debug!(name:% = lock; "cannot listen to the releases of {lock}: {error}");
            }
        }
        let mut owned = fx.discard;
        for listener in fx.over {
            let mut of_parts = Effects::default();
            listener.give_up(&self.kernel, Instant::now(), &mut of_parts);
            owned.push(Discard::Listener(listener));
            owned.extend(self.carry_out_but_drops(of_parts, deadline));
        }
        for told in fx.lost {
            self.tell_loss(&told);
            owned.push(Discard::Lease(told.lease));
        }
        for (lease, lost) in fx.lingering_lost {
            self.log_lost_lingering(&lease, lost);
            owned.push(Discard::Lease(lease));
        }
        for renewal in fx.renewed {
            self.tell_renewal(&renewal);
            owned.push(Discard::Lease(renewal.lease));
        }
        for renewal in fx.wholes_renewed {
            owned.push(Discard::Lease(Arc::clone(&renewal.lease)));
            self.tell_whole_renewal(renewal);
        }
        for command in &fx.orphans {
            self.send_once(command, deadline);
        }
        owned
    }

    fn tell_loss(&self, told: &Told) {
        let (lease, lost) = (&told.lease, told.lost);
        if let Some(on_lost) = told.on_lost.clone() {
            self.callbacks.run(Box::new(move || on_lost(&lost)));
        }
        logging::warn!(
            name:% = told.names(), holder:% = lease.id.short(), token = told.token.value(),
            outcome:% = lost, ttl_ms = lease.ttl_ms(), trace_id = told.trace_id.as_deref();
            "lost {}: {lost} (holder {}, token {})", told.names(), lease.id.short(), told.token
        );
    }

    fn log_lost_lingering(&self, lease: &HeldLease, lost: Lost) {
        // The end of the client ends it as well.
        if lost == Lost::ShutDown {
            return;
        }
        self.meters.counters.lingering_lost.up();
        logging::warn!(
            name:% = lease.lock, holder:% = lease.id.short(), outcome:% = lost;
            "lost {} while nobody held it and its lease lingered: {lost} (holder {})",
            lease.lock, lease.id.short()
        );
    }

    fn tell_renewal(&self, renewal: &Renewal) {
        let lease = &renewal.lease;
        match &renewal.end {
            Ok(confirmed) => {
                let Some(remaining) = confirmed.remaining else {
                    return;
                };
                let on_renew = lease.on_renew().filter(|_| self.callbacks.has_room());
                if let Some(on_renew) = on_renew {
                    let renewed = Renewed {
                        name: lease.lock.key(0).name.as_given(),
                        holder_id: lease.id.clone(),
                        fencing_token: lease.token(),
                        remaining,
                        took: confirmed.took,
                    };
                    self.callbacks.run(Box::new(move || on_renew(&renewed)));
                }
                logging::debug!(
                    name:% = lease.lock, holder:% = lease.id.short(), outcome = "renewed",
                    ttl_ms = lease.ttl_ms(), remaining_ms = remaining.as_millis() as u64,
                    trace_id = lease.trace_id().as_deref();
                    "renewed {} for {remaining:?}", lease.lock
                );
            }
            Err(fault) => {
                logging::debug!(
                    name:% = lease.lock, holder:% = lease.id.short(), outcome = "not renewed",
                    ttl_ms = lease.ttl_ms(), trace_id = lease.trace_id().as_deref();
                    "not renewed {}, will retry: {fault}", lease.lock
                );
            }
        }
    }

    fn tell_whole_renewal(&self, renewal: WholeRenewed) {
        if !self.callbacks.has_room() {
            return;
        }
        let renewed = Renewed {
            name: renewal.names[0].as_given(),
            holder_id: renewal.lease.id.clone(),
            fencing_token: renewal.token,
            remaining: Instant::now().until(renewal.until),
            took: renewal.took,
        };
        let on_renew = renewal.on_renew;
        self.callbacks.run(Box::new(move || on_renew(&renewed)));
    }

    /// Sends a release once: the engine, which would repeat it, has ended.
    fn send_once(&self, command: &Command, deadline: Instant) {
        let until = Instant::now().after(self.deployment.command_timeout());
        let until = until.min(deadline);
        if let Err(fault) = self.send(command, until) {
            logging::warn!(
                name:% = command.lock;
                "cannot release {} after the shutdown: {fault}; the key may stay until it expires",
                command.lock
            );
        }
    }
}
