//! Cluster slots and hash tags of keys.

/// The number of slots in a cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// Returns the cluster slot of a key.
pub(crate) fn slot(key: &[u8]) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(hash_tag(key).unwrap_or(key)) % SLOTS
}

/// Returns the hash tag of a key: the text between its first opening brace and the next closing
/// one.
///
/// `None` if there is no such text.
pub(super) fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|&b| b == b'{')?;
    let rest = key.get(open + 1..)?;
    let length = rest.iter().position(|&b| b == b'}')?;
    rest.get(..length).filter(|tag| !tag.is_empty())
}

#[cfg(test)]
mod tests {
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
}
