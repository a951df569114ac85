//! The values that serde reads and writes, with the feature `serde`.
//!
//! Fields have the names that they have in the JSON of the program `leasehold`.

use std::fmt;
use std::time::Duration;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::held::Held;
use crate::holder::Holder;
use crate::name::Name;
use crate::taken::Taken;
use crate::token::FencingToken;

/// A number.
impl Serialize for FencingToken {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(self.value())
    }
}

/// From a number that a lock can have as its token.
impl<'de> Deserialize<'de> for FencingToken {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::try_from(u64::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// Text, or a sequence of bytes if the name is not UTF-8. A binary format gets bytes in any case.
impl Serialize for Name {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.as_str() {
            Some(text) if to.is_human_readable() => to.serialize_str(text),
            _ => to.serialize_bytes(self.as_bytes()),
        }
    }
}

/// From text, bytes, a sequence of bytes, or a number. A binary format is asked for bytes.
impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        if from.is_human_readable() {
            from.deserialize_any(NameVisitor)
        } else {
            // Some binary formats do not say which type follows, so `deserialize_any` would fail.
            from.deserialize_byte_buf(NameVisitor)
        }
    }
}

struct NameVisitor;

impl<'de> Visitor<'de> for NameVisitor {
    type Value = Name;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a lock: text or bytes")
    }

    fn visit_str<E>(self, text: &str) -> Result<Name, E> {
        Ok(text.into())
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Name, E> {
        Ok(bytes.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Name, E> {
        Ok(number.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Name, E> {
        Ok(number.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut bytes: A) -> Result<Name, A::Error> {
        let mut name = Vec::new();
        while let Some(byte) = bytes.next_element()? {
            name.push(byte);
        }
        Ok(name.into())
    }
}

/// The owner, the short form of the id, the number of permits, the time left, the token, and
/// whether it stands for all readers.
///
/// There is no `Deserialize`, because the whole id is left out: anyone who knows it can release the
/// lock.
impl Serialize for Holder {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let id = self.holder_id().map(|id| id.short().to_string());
        let remaining = self.remaining().map(|left| left.as_millis() as u64);
        let mut fields = to.serialize_struct("Holder", 7)?;
        fields.serialize_field("owner", &self.owner())?;
        fields.serialize_field("holder", &id)?;
        fields.serialize_field("permits", &self.permits())?;
        fields.serialize_field("remaining_ms", &remaining)?;
        fields.serialize_field("fencing_token", &self.fencing_token())?;
        fields.serialize_field("shared", &self.is_shared())?;
        fields.serialize_field("lingering", &self.is_lingering())?;
        fields.end()
    }
}

/// The name, the number of permits, whether holders share it, the token, and the holders.
impl Serialize for Held {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_struct("Held", 5)?;
        fields.serialize_field("name", self.name())?;
        fields.serialize_field("permits", &self.permits())?;
        fields.serialize_field("shared", &self.is_shared())?;
        fields.serialize_field("fencing_token", &self.fencing_token())?;
        fields.serialize_field("holders", self.holders())?;
        fields.end()
    }
}

/// The name, the owner, whether it is this client, whether readers share the lock, the permits that
/// are out, since when the lock is held and how much time is left. `null` is what is not known.
impl Serialize for Taken {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let millis = |time: Duration| time.as_millis() as u64;
        let mut fields = to.serialize_struct("Taken", 7)?;
        fields.serialize_field("name", self.name())?;
        fields.serialize_field("owner", &self.owner())?;
        fields.serialize_field("this_client", &self.is_this_client())?;
        fields.serialize_field("shared", &self.is_shared())?;
        fields.serialize_field("permits_out", &self.permits_out())?;
        fields.serialize_field("held_for_ms", &self.held_for().map(millis))?;
        fields.serialize_field("remaining_ms", &self.remaining().map(millis))?;
        fields.end()
    }
}
