//! Redis Cluster: sends a call to the node that owns its slot, also while slots move.

pub(crate) mod owners;
pub(crate) mod query;
pub(crate) mod reports;
pub(crate) mod slot_map;
pub(crate) mod slots;

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Instant, sleep};
use crate::config::Config;
use crate::error::Cause;
use crate::kernel::fault::Fault;
use crate::protocol::answer::Answer;
use crate::protocol::redirect::Redirect;
use crate::protocol::script::Call;
use crate::protocol::slot::slot;
use crate::redis::call::Unanswered;
use crate::redis::cluster::slot_map::SlotMap;
use crate::redis::conn::callers::Cap;
use crate::redis::fault::NodeFault;
use crate::redis::server::Server;
use crate::url::Nodes;
use crate::wait_policy::Backoff;

/// The most redirects in a row that a call follows, because two nodes that disagree could send it
/// back and forth for ever.
pub(crate) const MOST_HOPS: u32 = 5;

/// The pause before a call is retried while its slot is being moved and the node has only some of
/// its keys.
pub(crate) const TRY_AGAIN: Backoff =
    Backoff::new(Duration::from_millis(2), Duration::from_millis(50));

/// The nodes of a cluster, as the slot map knows them.
pub(crate) struct Cluster {
    pub(super) map: Arc<SlotMap>,
    /// The addresses given for the cluster, for messages.
    pub(super) label: String,
}

impl Cluster {
    pub(in crate::redis) fn new(nodes: Nodes, config: &Config) -> Self {
        Self {
            label: nodes.label(),
            map: SlotMap::new(nodes, config),
        }
    }

    /// Like [`Server::call_or_undo`], on the node that owns the keys' slot.
    pub(in crate::redis) fn call_or_undo(
        &self,
        mut call: Call<'_>,
        until: Instant,
        cap_rule: Cap,
        mut unanswered: Option<Unanswered<'_, '_>>,
    ) -> Result<(Answer, Instant), Fault> {
        let first = call.keys[0].first().map_or(&[][..], Vec::as_slice);
        let slot = slot(first);
        let mut server = self
            .map
            .find_owner(slot, until, call.verb.is_stopped_by_breaker())?;
        let mut asking = false;
        let (mut hops, mut tries) = (0, 0);
        // An earlier node may have run it.
        let mut may_have_run = false;
        loop {
            let acquires = unanswered.is_some();
            let label = acquires.then(|| self.map.label_of(&server));
            let mut undo = unanswered.as_deref_mut().map(|unanswered| {
                let label = label.unwrap_or_default();
                move |fault: &Fault, sent, write: &mut dyn FnMut(Call<'_>)| {
                    unanswered(&fault.clone().at(&label), sent, write);
                }
            });
            let undo = undo.as_mut().map(|undo| undo as Unanswered<'_, '_>);
            let fault = match server.call_or_undo(call.asking(asking), until, cap_rule, undo) {
                // That of a second run: the caller asks again, and knows it.
                Ok(_) if may_have_run && call.verb.releases() => return Err(ran_twice()),
                Ok(answer) => return Ok(answer),
                Err(fault) => fault,
            };
            asking = matches!(fault, NodeFault::Redirected(Redirect::Ask(..), _));
            // A redirected or unsent call did not run, so sending it again is safe.
            let next = match &fault {
                NodeFault::Redirected(Redirect::TryAgain, _) => {
                    match call.without_queue().or_else(|| call.without_readers()) {
                        // The key that this call leaves out may not exist. Without a queue, it
                        // needs the lock key alone, which is on one of the nodes.
                        Some(without) => call = without,
                        None => {
                            sleep(TRY_AGAIN.pause(tries).min(Instant::now().until(until)));
                            tries += 1;
                        }
                    }
                    hops = 0;
                    Some(self.map.owner_of(slot))
                }
                NodeFault::Redirected(redirect, _) => {
                    Some(self.map.redirected(slot, &server, redirect))
                }
                NodeFault::Fault(Fault::Open(_)) => {
                    // The refresh in the background finds a new master for the next call.
                    self.map.suspect();
                    None
                }
                NodeFault::Fault(fault @ (Fault::NotRun(cause) | Fault::Unknown(cause)))
                    if !fault.may_have_run() || fault.is_refusal() && !acquires =>
                {
                    may_have_run |= fault.may_have_run();
                    // A call that acquires nothing may run twice. The slot map may be out of date,
                    // unless the client ran out of connections, or a refresh has just retired the
                    // server.
                    if !cause.is_of_client() {
                        self.map.refresh(until);
                    }
                    Some(self.map.owner_of(slot)).filter(|owner| !Arc::ptr_eq(owner, &server))
                }
                NodeFault::NoScript | NodeFault::Fault(_) => None,
            };
            match next {
                Some(next) if hops < MOST_HOPS && Instant::now() < until => server = next,
                _ => return Err(self.last_fault(fault, &server, may_have_run)),
            }
            hops += 1;
        }
    }

    /// Returns the fault of a call that ends at `server`; an earlier node `may_have_run` it.
    fn last_fault(&self, fault: NodeFault, server: &Server, may_have_run: bool) -> Fault {
        let fault = Fault::from(fault).at(&self.map.label_of(server));
        if may_have_run {
            fault.after_others()
        } else {
            fault
        }
    }

    /// Pings the masters in turn; succeeds with the first that replies.
    pub(in crate::redis) fn ping(&self, until: Instant) -> Result<(), Fault> {
        let mut masters = self.map.masters();
        let mut fault = Fault::NotRun(Cause::text("no master of the cluster is known"));
        if masters.is_empty() {
            fault = self.map.refresh(until).unwrap_or(fault);
            masters = self.map.masters();
        }
        let count = masters.len();
        for (n, master) in masters.into_iter().enumerate() {
            let now = Instant::now();
            let part = now.until(until) / (count - n) as u32;
            match master.ping(now.after(part)) {
                Ok(()) => return Ok(()),
                Err(why) => fault = why.at(master.label()),
            }
        }
        Err(fault)
    }

    /// Returns the masters that [`SlotMap::masters`] knows. First refreshes the slot map if it has
    /// none, or if one of them is failing.
    pub(in crate::redis) fn masters(&self, until: Instant) -> Result<Vec<Arc<Server>>, Fault> {
        let masters = self.map.masters();
        if !masters.is_empty() && !masters.iter().any(|master| master.health.is_failing()) {
            return Ok(masters);
        }
        let failure = self.map.refresh(until);
        let masters = self.map.masters();
        if masters.is_empty() {
            return Err(failure.unwrap_or_else(|| {
                Fault::NotRun(Cause::text("no master of the cluster is known"))
            }));
        }
        Ok(masters)
    }

    /// Runs `ask` on the master that owns a slot. Retries once: at the node that a redirect names,
    /// or after a refresh of the slot map if `ask` did not run for another reason. `ask` also gets
    /// whether the node must be sent ASKING first, because it is still importing the slot.
    pub(in crate::redis) fn ask_owner<T>(
        &self,
        slot: u16,
        until: Instant,
        ask: impl Fn(&Server, bool) -> Result<T, NodeFault>,
    ) -> Result<T, Fault> {
        let server = self.map.find_owner(slot, until, false)?;
        let (next, asking) = match ask(&server, false) {
            Err(NodeFault::Redirected(redirect, _)) if redirect != Redirect::TryAgain => {
                let asking = matches!(redirect, Redirect::Ask(..));
                (self.map.redirected(slot, &server, &redirect), asking)
            }
            Err(fault) if may_find_another_owner(&fault) && Instant::now() < until => {
                self.map.refresh(until);
                (self.map.find_owner(slot, until, false)?, false)
            }
            answer => return Ok(answer?),
        };
        Ok(ask(&next, asking)?)
    }
}

fn ran_twice() -> Fault {
    Fault::Unknown(Cause::text("an earlier node may have run the release"))
}

/// Returns whether a call with this fault may succeed after a refresh of the slot map.
fn may_find_another_owner(fault: &NodeFault) -> bool {
    match fault {
        NodeFault::Redirected(..) | NodeFault::Fault(Fault::NotRun(_)) => true,
        NodeFault::NoScript => false,
        NodeFault::Fault(fault) => fault.is_refusal(),
    }
}
