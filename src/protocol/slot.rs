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
mod tests;
