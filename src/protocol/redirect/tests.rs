//! Tests of redirects.

use redis::Value;

use super::*;

fn error(text: &str) -> ServerError {
    match redis::parse_redis_value(format!("-{text}\r\n").as_bytes()) {
        Ok(Value::ServerError(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn redirects_name_a_node() {
    let read = |text| Redirect::read(&error(text));
    let moved = |host: &str, port| Some(Redirect::Moved(host.into(), port));
    assert_eq!(read("MOVED 16383 127.0.0.1:6381"), moved("127.0.0.1", 6381));
    assert_eq!(read("MOVED 0 ::1:65535"), moved("::1", 65_535));
    assert_eq!(read("MOVED 0 :6381"), moved("", 6381), "the same host");
    assert_eq!(read("ASK 1 h:1"), Some(Redirect::Ask("h".into(), 1)));
    assert_eq!(read("TRYAGAIN Multiple keys"), Some(Redirect::TryAgain));
    assert_eq!(read("CLUSTERDOWN"), None);
    assert!(!Redirect::is_malformed(&error("MOVED 0 :6381")));
    assert!(!Redirect::is_malformed(&error("ERR MOVED")));
}

#[test]
fn malformed_redirects_are_not_followed() {
    for text in [
        "MOVED",
        "MOVED 1",
        "MOVED x h:1",
        "MOVED -1 h:1",
        "MOVED 16384 h:1",
        "MOVED 1 6381",
        "MOVED 1 h:0",
        "MOVED 1 h:70000",
        "MOVED 1 h:",
        "ASK 16384 h:1",
        "ASK 1 h",
    ] {
        assert_eq!(Redirect::read(&error(text)), None, "{text}");
        assert!(Redirect::is_malformed(&error(text)), "{text}");
    }
}

#[test]
fn host_longer_than_any_name_is_malformed() {
    for verb in ["MOVED", "ASK"] {
        let of = |length| error(&format!("{verb} 1 {}:1", "h".repeat(length)));
        assert!(!Redirect::is_malformed(&of(253)));
        assert!(Redirect::is_malformed(&of(254)));
    }
}
