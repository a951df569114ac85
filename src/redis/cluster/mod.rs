//! A cluster: how a call gets to the node that keeps its name while slots move.

pub(crate) mod slot_map;
pub(crate) mod slots;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::clock::Instant;
use crate::config::Config;
use crate::error::{Cause, Error};
use crate::protocol::script::{Call, Reply};
use crate::protocol::slot::slot;
use crate::redis::cluster::slot_map::SlotMap;
use crate::redis::conn::callers::Cap;
use crate::redis::fault::{Fault, Redirect};
use crate::redis::server::Server;
use crate::redis::undoable::Undoable;
use crate::url::Nodes;
use crate::wait_policy::Backoff;

/// The most nodes that a call is sent on to. Two that disagree send it back and forth.
const MOST_HOPS: u32 = 5;

/// Between two tries of a call whose keys are apart while their slot moves.
const TRY_AGAIN: Backoff = Backoff::new(Duration::from_millis(2), Duration::from_millis(50));

/// The nodes of a cluster, as its slot map knows them.
pub(crate) struct Cluster {
    map: Arc<SlotMap>,
}

impl Cluster {
    pub(in crate::redis) fn new(nodes: Nodes, config: &Config) -> Result<Self, Error> {
        Ok(Self {
            map: SlotMap::new(nodes, config)?,
        })
    }

    /// Who knows which node keeps a slot.
    pub(in crate::redis) fn map(&self) -> &SlotMap {
        &self.map
    }

    /// As [`Server::call_or_undo`], on whichever node keeps the keys.
    pub(in crate::redis) fn call_or_undo(
        &self,
        call: Call<'_>,
        until: Instant,
        cap_rule: Cap,
        undoable: Option<&Undoable<'_>>,
    ) -> Result<(Reply, Instant), Fault> {
        let first = call.keys[0].first().map_or(&[][..], Vec::as_slice);
        let slot = slot(first);
        let mut server = self.map.keeper(slot, until)?;
        let mut asking = false;
        let (mut hops, mut tries) = (0, 0);
        loop {
            let fault = match server.call_or_undo(call.asking(asking), until, cap_rule, undoable) {
                Ok(answer) => return Ok(answer),
                Err(fault) => fault,
            };
            // Neither of these ran anything, so the same call may be sent again.
            let next = match &fault {
                Fault::Redirected(Redirect::TryAgain, _) => {
                    let pause = TRY_AGAIN.pause(tries);
                    thread::sleep(pause.min(Instant::now().until(until)));
                    tries += 1;
                    hops = 0;
                    asking = false;
                    Some(self.map.owner_of(slot))
                }
                Fault::Redirected(Redirect::Moved(host, port), _) => {
                    asking = false;
                    {
                        let place = self.map.place(&server, host, *port);
                        self.map.moved(slot, place)
                    }
                }
                Fault::Redirected(Redirect::Ask(host, port), _) => {
                    asking = true;
                    let place = self.map.place(&server, host, *port);
                    Some(self.map.at(&place))
                }
                Fault::NotRun(_) | Fault::Open(_) => {
                    asking = false;
                    // What is known of the slots may be older than this.
                    self.map.look(until);
                    Some(self.map.owner_of(slot)).filter(|owner_of| !Arc::ptr_eq(owner_of, &server))
                }
                Fault::Unknown(_) | Fault::NotReplicated(_) | Fault::Rejected(_) => None,
            };
            match next {
                Some(next) if hops < MOST_HOPS && Instant::now() < until => server = next,
                _ => return Err(fault.at(server.label())),
            }
            hops += 1;
        }
    }

    /// Whether a master answers: the first that does.
    pub(in crate::redis) fn ping(&self, until: Instant) -> Result<Reply, Fault> {
        let mut masters = self.map.masters();
        let mut fault = Fault::NotRun(Cause::text("no master is known"));
        if masters.is_empty() {
            fault = self.map.look(until).unwrap_or(fault);
            masters = self.map.masters();
        }
        let count = masters.len();
        for (n, master) in masters.into_iter().enumerate() {
            let now = Instant::now();
            let part = now.until(until) / (count - n) as u32;
            match master.ping(now.after(part), Cap::Counted) {
                Ok(reply) => return Ok(reply),
                Err(why) => fault = why.at(master.label()),
            }
        }
        Err(fault)
    }

    /// Every master that keeps a slot; where one has failed last, as they are known after another
    /// look.
    pub(in crate::redis) fn masters(&self, until: Instant) -> Result<Vec<Arc<Server>>, Fault> {
        let masters = self.map.masters();
        if !masters.is_empty() && !masters.iter().any(|master| master.is_failing()) {
            return Ok(masters);
        }
        let failure = self.map.look(until);
        let masters = self.map.masters();
        if masters.is_empty() {
            return Err(failure.unwrap_or_else(|| Fault::NotRun(Cause::text("no master is known"))));
        }
        Ok(masters)
    }

    /// Asks the master of a slot, and the one that it has moved to.
    pub(in crate::redis) fn ask_keeper<T>(
        &self,
        slot: u16,
        until: Instant,
        ask: impl Fn(&Server) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        match ask(&*self.map.keeper(slot, until)?) {
            Err(Fault::Redirected(..) | Fault::NotRun(_)) if Instant::now() < until => {
                self.map.look(until);
                ask(&*self.map.keeper(slot, until)?)
            }
            answer => answer,
        }
    }
}
