//! Asks the nodes of a cluster which of them owns each slot.

use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisError, RedisResult};

use crate::clock::Instant;
use crate::connect_failure::ConnectFailure;
use crate::error::{Cause, Error};
use crate::error_reply::{is_final_at_logon, library_text};
use crate::kernel::fault::Fault;
use crate::redis::cluster::reports::{NodeReport, Reports};
use crate::redis::cluster::slot_map::SlotMap;
use crate::redis::cluster::slots::SlotLayout;
use crate::redis::conn::connection::Connection;
use crate::redis::gather::{Answers, Enough, NoAnswer, gather};
use crate::url::HostPort;

/// Marks a node as being asked until dropped, so that at most one thread asks a node that hangs.
struct AskingGuard {
    map: Arc<SlotMap>,
    address: HostPort,
}

impl AskingGuard {
    /// Returns `None` if another thread is asking the node.
    fn new(map: Arc<SlotMap>, address: HostPort) -> Option<Self> {
        let is_first = map.in_flight.lock().insert(address.clone());
        is_first.then(|| Self { map, address })
    }
}

impl Drop for AskingGuard {
    fn drop(&mut self) {
        self.map.in_flight.lock().remove(&self.address);
    }
}

impl SlotMap {
    /// Asks these nodes in parallel, and returns the layouts that they report in time. Waits for
    /// most of them, unless fewer are enough, by what nodes reported `before`.
    /// Also returns how many nodes count: those that have reported, if most have, or else all that
    /// were asked, without those that failed.
    ///
    /// Skips the nodes that another thread is asking.
    pub(super) fn ask_nodes(
        self: &Arc<Self>,
        nodes: Vec<HostPort>,
        before: &Reports,
    ) -> Result<(usize, Vec<NodeReport>), Fault> {
        let timeout = self.config.connect_timeout;
        let guards: Vec<AskingGuard> = nodes
            .into_iter()
            .filter_map(|address| AskingGuard::new(Arc::clone(self), address))
            .collect();
        let addresses: Vec<HostPort> = guards.iter().map(|guard| guard.address.clone()).collect();
        let asks = guards.into_iter().map(|guard| {
            move || {
                let layout = guard.map.ask(&guard.address, timeout)?;
                let node = guard.address.clone();
                Ok(NodeReport { node, layout })
            }
        });
        let enough = |answers: &Answers<NodeReport>| {
            let reports: Vec<&NodeReport> = answers.good.iter().map(|(_, report)| report).collect();
            let failed = answers.done - reports.len();
            if reports.len() * 2 > answers.asked - failed {
                Enough::Yes
            } else if before.suffice(&reports) || answers.is_late && !answers.good.is_empty() {
                Enough::Nearly
            } else {
                Enough::No
            }
        };
        let answers = gather(&self.config.dialers, asks, timeout, is_final, enough);
        let answers = answers.map_err(|failure| match failure {
            NoAnswer::Refused(error) => Fault::Rejected(refused(self.nodes.label(), &error)),
            NoAnswer::Silent(Some((n, error))) => {
                // The index of the request: `asks` and `addresses` have the same order.
                let (host, port) = &addresses[n];
                let cause = match ConnectFailure::unheard(&error) {
                    Some(failure) => Cause::of_failure(failure, &self.tls_hint()),
                    None => error.into(),
                };
                // A node may have reported this host: its label is escaped.
                Fault::NotRun(cause.at(&self.nodes.data.at(host, *port).label))
            }
            NoAnswer::Silent(None) => {
                Fault::NotRun(Cause::silence("no node of the cluster answered in time"))
            }
        })?;
        let reports: Vec<NodeReport> = answers.good.into_iter().map(|(_, report)| report).collect();
        let members = answers.asked - (answers.done - reports.len());
        if reports.len() * 2 > members {
            Ok((reports.len(), reports))
        } else {
            Ok((members, reports))
        }
    }

    /// Asks one node for the slots, over a new connection.
    fn ask(&self, node: &HostPort, timeout: Duration) -> RedisResult<SlotLayout> {
        let until = Instant::now().after(timeout);
        let address = self.nodes.data.at(&node.0, node.1);
        let mut connection = Connection::open(&address, None, until, |_| ())?;
        let mut ask = redis::cmd("CLUSTER");
        ask.arg("SLOTS");
        let answer = connection
            .long_trip(until, |buffer| ask.write_packed_command(buffer))?
            .into_result()?;
        match SlotLayout::read(answer, node) {
            Some(layout) if layout.masters.is_empty() => {
                Err((ErrorKind::Client, "the node knows of no slots").into())
            }
            Some(layout) => Ok(layout),
            None => Err(connection.malformed()),
        }
    }
}

/// Returns the error for a refused connection or a refused CLUSTER SLOTS.
fn refused(server: String, error: &RedisError) -> Error {
    let (command, rights) = match error.code() {
        Some("NOPERM") => ("CLUSTER SLOTS", "; CLUSTER SLOTS needs +cluster|slots"),
        _ if is_final_at_logon(error) => (Cause::from(error.clone()).refused_step(), ""),
        _ => ("CLUSTER SLOTS", ""),
    };
    Error::Refused {
        server,
        command,
        answer: format!("{}{rights}", library_text(error)),
        retried_for: None,
    }
}

/// Returns true for an error that lasts until somebody changes a setting.
fn is_final(error: &RedisError) -> bool {
    let text = error.to_string();
    is_final_at_logon(error) || text.contains("cluster support disabled")
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::config::Config;
    use crate::url::Target;

    #[test]
    fn host_that_a_node_reports_is_escaped() {
        let Ok(Target::Cluster(nodes)) = Target::parse("redis+cluster://127.0.0.1:1") else {
            panic!("this URL has a cluster");
        };
        let config = Config {
            connect_timeout: Duration::from_secs(60),
            ..Config::default()
        };
        let map = SlotMap::new(nodes, &config);
        // The look-up fails at once: a part of a name has at most 63 characters.
        let host = format!("\x1b{}", "x".repeat(64));
        let Err(Fault::NotRun(cause)) = map.ask_nodes(vec![(host, 7)], &Reports::default()) else {
            panic!("there is no such host");
        };
        let text = cause.to_string();
        assert!(text.contains("\\x1bxxx"), "{text}");
        assert!(!text.contains('\x1b'), "{text}");
    }
}
