//! The owners of a cluster's slots, as a node reports them. No I/O.

use std::ops::RangeInclusive;

use crate::protocol::redirect::is_host;
use crate::protocol::reply::Reply;
use crate::protocol::slot::SLOTS;
use crate::url::HostPort;

/// The cluster's layout, as one node reports it.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct SlotLayout {
    pub(crate) masters: Vec<(RangeInclusive<u16>, HostPort)>,
    /// Kept because a replica, too, can report the layout.
    pub(crate) replicas: Vec<HostPort>,
}

impl SlotLayout {
    /// Reads the reply to CLUSTER SLOTS from the node at `asked`; `None` if it is malformed.
    pub(crate) fn read(answer: Reply, asked: &HostPort) -> Option<Self> {
        let mut layout = Self::default();
        let mut slots = 0;
        for range in answer.into_list()? {
            let mut fields = range.into_list()?.into_iter();
            let first = number(&fields.next()?)?;
            let last = number(&fields.next()?)?;
            slots += u32::from(last.checked_sub(first)?) + 1;
            // Each slot has one master, so the sizes of all ranges add up to at most `SLOTS`.
            if last >= SLOTS || slots > u32::from(SLOTS) {
                return None;
            }
            let master = host_port(fields.next()?, asked)?;
            layout.masters.push((first..=last, master));
            layout
                .replicas
                .extend(fields.filter_map(|node| host_port(node, asked)));
        }
        layout.replicas.sort();
        layout.replicas.dedup();
        Some(layout)
    }

    /// Returns the owner of each slot, from slot 0 on.
    pub(crate) fn by_slot(&self) -> Vec<Option<&HostPort>> {
        let mut owners = vec![None; usize::from(SLOTS)];
        for (slots, owner) in &self.masters {
            for slot in slots.clone() {
                if let Some(place) = owners.get_mut(usize::from(slot)) {
                    *place = Some(owner);
                }
            }
        }
        owners
    }

    /// Returns the slots at which the owner may change.
    pub(crate) fn starts(&self) -> impl Iterator<Item = u16> {
        let ranges = self.masters.iter();
        ranges.flat_map(|(slots, _)| [*slots.start(), *slots.end() + 1])
    }
}

fn number(reply: &Reply) -> Option<u16> {
    u16::try_from(reply.count()?).ok()
}

/// Reads the host and port of a node; `None` if they are malformed.
///
/// A node may report no host, or `?`. The host that was asked is then used.
fn host_port(node: Reply, asked: &HostPort) -> Option<HostPort> {
    let fields = node.into_list()?;
    let port = number(fields.get(1)?).filter(|port| *port > 0)?;
    let host = match fields.first()? {
        Reply::Text(host) => String::from_utf8(host.clone()).ok()?,
        Reply::Status(host) => host.clone(),
        Reply::Nil => String::new(),
        _ => return None,
    };
    if host.is_empty() || host == "?" {
        Some((asked.0.clone(), port))
    } else {
        is_host(&host).then_some((host, port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::redis::conn::read_reply;

    fn asked() -> HostPort {
        ("asked".into(), 1)
    }

    fn parsed(text: &str) -> Option<SlotLayout> {
        SlotLayout::read(read_reply(text.as_bytes()).unwrap().unwrap(), &asked())
    }

    #[test]
    fn masters_and_replicas_are_read_from_cluster_slots() {
        let node = |host: &str, port: u16| format!("*3\r\n{host}:{port}\r\n$1\r\ni\r\n");
        let range = |first: u16, last: u16, nodes: &[String]| {
            let (n, nodes) = (nodes.len() + 2, nodes.concat());
            format!("*{n}\r\n:{first}\r\n:{last}\r\n{nodes}")
        };
        let (named, empty) = (node("$1\r\nh\r\n", 7), node("$0\r\n\r\n", 8));
        let (nil, unknown) = (node("$-1\r\n", 9), node("$1\r\n?\r\n", 10));
        let text = format!(
            "*2\r\n{}{}",
            range(0, 10, &[named, empty]),
            range(12, 16383, &[nil, unknown])
        );
        let layout = parsed(&text).unwrap();
        let at = |host: &str, port| (host.to_owned(), port);
        assert_eq!(
            layout.masters,
            [(0..=10, at("h", 7)), (12..=16383, at("asked", 9))]
        );
        assert_eq!(layout.replicas, [at("asked", 8), at("asked", 10)]);
    }

    #[test]
    fn reply_without_slots_is_not_malformed() {
        assert_eq!(parsed("*0\r\n"), Some(SlotLayout::default()));
    }

    #[test]
    fn host_longer_than_any_name_is_rejected() {
        let of = |length: usize| {
            let host = "h".repeat(length);
            parsed(&format!(
                "*1\r\n*3\r\n:0\r\n:5\r\n*2\r\n${length}\r\n{host}\r\n:7\r\n"
            ))
        };
        assert!(of(253).is_some());
        assert_eq!(of(254), None);
    }

    #[test]
    fn malformed_replies_are_rejected() {
        for text in [
            // Not an array.
            ":1\r\n",
            // A range that is not an array.
            "*1\r\n:1\r\n",
            // A range without a master.
            "*1\r\n*2\r\n:0\r\n:5\r\n",
            // The last slot of a range is before its first.
            "*1\r\n*3\r\n:5\r\n:0\r\n*2\r\n$1\r\nh\r\n:7\r\n",
            // Slot 0 is in two ranges, and one of them contains all slots.
            "*2\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$1\r\nh\r\n:7\r\n\
             *3\r\n:0\r\n:0\r\n*2\r\n$1\r\ni\r\n:7\r\n",
            // A cluster has no slot 16384.
            "*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n$1\r\nh\r\n:7\r\n",
            // There is no port 70000.
            "*1\r\n*3\r\n:0\r\n:5\r\n*2\r\n$1\r\nh\r\n:70000\r\n",
        ] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }
}
