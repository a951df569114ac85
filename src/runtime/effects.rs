//! Carries out what the kernel wants done, after its locks are dropped.

use std::sync::Arc;

use crate::clock::Instant;
use crate::config::OnRenew;
use crate::holder_id::HolderId;
use crate::kernel::Kernel;
use crate::kernel::command::Command;
use crate::kernel::effects::{Discard, Effects, Renewal, Told, WholeRenewed};
use crate::logging::{self, contain};
use crate::lost::Lost;
use crate::protocol::primitive::Primitive;
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
        owned.retain(Discard::has_callbacks);
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
        for part in fx.over {
            let mut of_part = Effects::default();
            self.kernel.give_up(part, Instant::now(), &mut of_part);
            owned.extend(self.carry_out_but_drops(of_part, deadline));
        }
        for told in fx.lost {
            self.tell_loss(told);
        }
        for (lock, id, lost) in fx.lingering_lost {
            self.log_lost_lingering(&lock, &id, lost);
        }
        for renewal in fx.renewed {
            owned.extend(self.tell_renewal(renewal).map(Discard::OnRenew));
        }
        for renewal in fx.wholes_renewed {
            owned.extend(self.tell_whole_renewal(renewal).map(Discard::OnRenew));
        }
        for command in &fx.orphans {
            self.send_once(command, deadline);
        }
        owned
    }

    fn tell_loss(&self, mut told: Told) {
        let lost = told.lost;
        if let Some(on_lost) = told.on_lost.take() {
            self.callbacks.run(Box::new(move || on_lost(&lost)));
        }
        logging::warn!(
            name:% = told.names(), holder:% = told.id.short(), token = told.token.value(),
            outcome:% = lost, ttl_ms = told.ttl_ms, trace_id = told.trace_id.as_deref();
            "lost {}: {lost} (holder {}, token {})", told.names(), told.id.short(), told.token
        );
    }

    fn log_lost_lingering(&self, lock: &Arc<dyn Primitive>, id: &HolderId, lost: Lost) {
        // The end of the client ends it as well.
        if lost == Lost::ShutDown {
            return;
        }
        self.meters.counters.lingering_lost.up();
        logging::warn!(
            name:% = lock, holder:% = id.short(), outcome:% = lost;
            "lost {lock} while nobody held it and its lease lingered: {lost} (holder {})",
            id.short()
        );
    }

    /// Returns the callback if it is not run.
    fn tell_renewal(&self, mut renewal: Renewal) -> Option<Arc<OnRenew>> {
        match &renewal.end {
            Ok(confirmed) => {
                let Some(remaining) = confirmed.remaining else {
                    return renewal.on_renew;
                };
                let has_room = self.callbacks.has_room();
                if let Some(on_renew) = renewal.on_renew.take_if(|_| has_room) {
                    let renewed = Renewed {
                        name: renewal.lock.key(0).name.as_given(),
                        holder_id: renewal.id.clone(),
                        fencing_token: renewal.token,
                        remaining,
                        took: confirmed.took,
                    };
                    self.callbacks.run(Box::new(move || on_renew(&renewed)));
                }
                logging::debug!(
                    name:% = renewal.lock, holder:% = renewal.id.short(), outcome = "renewed",
                    ttl_ms = renewal.ttl_ms, remaining_ms = remaining.as_millis() as u64,
                    trace_id = renewal.trace_id.as_deref();
                    "renewed {} for {remaining:?}", renewal.lock
                );
            }
            Err(fault) => {
                logging::debug!(
                    name:% = renewal.lock, holder:% = renewal.id.short(), outcome = "not renewed",
                    ttl_ms = renewal.ttl_ms, trace_id = renewal.trace_id.as_deref();
                    "not renewed {}, will retry: {fault}", renewal.lock
                );
            }
        }
        renewal.on_renew
    }

    /// Returns the callback if it is not run.
    fn tell_whole_renewal(&self, renewal: WholeRenewed) -> Option<Arc<OnRenew>> {
        let on_renew = renewal.on_renew;
        if !self.callbacks.has_room() {
            return Some(on_renew);
        }
        let renewed = Renewed {
            name: renewal.names[0].as_given(),
            holder_id: renewal.id,
            fencing_token: renewal.token,
            remaining: Instant::now().until(renewal.until),
            took: renewal.took,
        };
        self.callbacks.run(Box::new(move || on_renew(&renewed)));
        None
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
