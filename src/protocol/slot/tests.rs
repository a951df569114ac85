//! Tests of the slots of keys.

use super::*;

#[test]
fn slots_are_those_of_cluster_keyslot() {
    // The check value of CRC-16/XMODEM, which is less than the number of slots.
    assert_eq!(slot(b"123456789"), 0x31C3);
    assert_eq!(slot(b"lock:x"), 5259);
    assert_eq!(slot(b"lock_release:x"), 15969);
    assert_eq!(slot(b"{x}1"), slot(b"2{x}}"));
    assert_eq!(slot(b"{}x"), 10595);
}

#[test]
fn a_hash_tag_is_between_the_first_braces_and_not_empty() {
    assert_eq!(hash_tag(b"a{b}c{d}"), Some(&b"b"[..]));
    assert_eq!(hash_tag(b"a{{b}}"), Some(&b"{b"[..]));
    for none in ["", "a", "{", "}", "{}", "a{}{b}", "}a{", "a}b"] {
        assert_eq!(hash_tag(none.as_bytes()), None, "{none}");
    }
}
