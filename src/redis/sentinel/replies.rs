//! Reads what sentinels reply and announce.

use crate::protocol::redirect::is_host;
use crate::protocol::reply::{Reply, read_digits};
use crate::url::HostPort;

/// The channel on which sentinels announce a new master.
pub(crate) const MOVES: &[u8] = b"+switch-master";

/// Reads the reply to GET-MASTER-ADDR-BY-NAME: `Some(None)` if the name is unknown, `None` if the
/// reply is malformed.
pub(crate) fn read_address(answer: Reply) -> Option<Option<HostPort>> {
    if answer == Reply::Nil {
        return Some(None);
    }
    let [host, port] = <[Reply; 2]>::try_from(answer.into_list()?).ok()?;
    let host = String::from_utf8(host.into_text()?).ok()?;
    let port = read_digits(&port.into_text()?)?;
    (port > 0 && !host.is_empty() && is_host(&host)).then_some(Some((host, port)))
}

/// Reads the epoch of the configuration in the reply to SENTINEL MASTER; `None` if it has none, as
/// if the user may not ask.
pub(crate) fn read_epoch(answer: Reply) -> Option<u64> {
    let mut items = answer.into_list()?.into_iter();
    let mut fields = std::iter::from_fn(|| items.next().zip(items.next()));
    let is_epoch = |name: &Reply| matches!(name, Reply::Text(name) if name == b"config-epoch");
    let (_, epoch) = fields.find(|(name, _)| is_epoch(name))?;
    read_digits(&epoch.into_text()?)
}

/// Reads the reply to SENTINEL MYID; `None` if it is no id, as if the user may not ask.
pub(crate) fn read_id(answer: Reply) -> Option<Vec<u8>> {
    answer.into_text().filter(|id| !id.is_empty())
}

/// Returns whether an announcement on [`MOVES`] is about this master. The name is followed by the
/// old address and the new one, but not by an epoch.
pub(super) fn is_about(announcement: &[u8], master: &str) -> bool {
    let mut words = announcement.split(|byte| *byte == b' ');
    words.next() == Some(master.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::redis::conn::read_reply;

    fn parsed(text: &str) -> Reply {
        read_reply(text.as_bytes()).unwrap().unwrap()
    }

    #[test]
    fn malformed_replies_give_no_address() {
        let read = |text: &str| read_address(parsed(text));
        let known = read("*2\r\n$2\r\nh1\r\n$4\r\n6379\r\n");
        assert_eq!(known, Some(Some(("h1".into(), 6379))));
        assert_eq!(read("*-1\r\n"), Some(None));
        for text in [
            ":1\r\n",
            "+OK\r\n",
            "*0\r\n",
            "*2\r\n$0\r\n\r\n$4\r\n6379\r\n",
            "*2\r\n$2\r\nh1\r\n$1\r\n0\r\n",
            "*2\r\n$2\r\nh1\r\n$5\r\n70000\r\n",
            "*2\r\n$2\r\nh1\r\n:6379\r\n",
            "*3\r\n$2\r\nh1\r\n$4\r\n6379\r\n$4\r\n6379\r\n",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn host_longer_than_any_name_is_no_address() {
        let of = |length: usize| {
            let host = "h".repeat(length);
            read_address(parsed(&format!("*2\r\n${length}\r\n{host}\r\n$1\r\n7\r\n")))
        };
        assert!(of(253).is_some());
        assert_eq!(of(254), None);
    }

    #[test]
    fn the_epoch_is_read_from_either_protocol() {
        let pairs = "$4\r\nname\r\n$1\r\nm\r\n$12\r\nconfig-epoch\r\n$2\r\n17\r\n";
        assert_eq!(read_epoch(parsed(&format!("*4\r\n{pairs}"))), Some(17));
        assert_eq!(read_epoch(parsed(&format!("%2\r\n{pairs}"))), Some(17));
        for text in [
            "-NOPERM no\r\n",
            "*1\r\n$12\r\nconfig-epoch\r\n",
            "*2\r\n$12\r\nconfig-epoch\r\n$2\r\n-1\r\n",
            "*2\r\n$1\r\nh\r\n$4\r\n6379\r\n",
        ] {
            assert_eq!(read_epoch(parsed(text)), None, "{text}");
        }
    }

    #[test]
    fn an_announcement_is_about_the_master_that_it_names_first() {
        assert!(is_about(b"m h 1 h 2", "m"));
        assert!(!is_about(b"another m 1 h 2", "m"));
        assert!(!is_about(b"", "m"));
    }
}
