//! Tests of what is read from sentinels.

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
