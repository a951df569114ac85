//! The probe: a write that changes nothing, by which a server shows that it accepts writes.

use crate::protocol::script::{Call, Script, script};
use crate::protocol::slot::slot;
use crate::protocol::verb::Verb;

pub(super) static PROBE: Script = script!("probe");

pub(crate) struct Probe {
    key: [Vec<u8>; 1],
}

impl Probe {
    /// Returns the probe of a server that has all slots.
    pub(crate) fn of_server() -> Self {
        Self {
            key: [b"leasehold:probe".to_vec()],
        }
    }

    /// Returns the probe of a server that has this slot of a cluster.
    pub(crate) fn of_slot(wanted: u16) -> Self {
        let mut keys = (0_u64..).map(|n| format!("leasehold:probe:{n}").into_bytes());
        // There are keys for every slot, about one among 16384.
        let key = keys.find(|key| slot(key) == wanted).unwrap_or_default();
        Self { key: [key] }
    }

    pub(crate) fn call(&self) -> Call<'_> {
        Call::new(Verb::Probe, &PROBE, [&self.key, &[]], [])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::slot::SLOTS;

    #[test]
    fn probe_of_a_slot_has_a_key_in_it() {
        for wanted in [0, 1, SLOTS - 1] {
            let probe = Probe::of_slot(wanted);
            assert_eq!(slot(&probe.key[0]), wanted);
        }
    }
}
