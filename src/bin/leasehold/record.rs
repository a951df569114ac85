//! The state of a lock at one moment, as text and as JSON.

use std::time::Duration;

use leasehold::{FencingToken, Holder, Name};

use crate::json::Object;

/// The state of a lock at one moment.
pub(crate) struct Record {
    pub(crate) name: Name,
    pub(crate) holder: Option<Holder>,
    /// The last token drawn, if it is known.
    pub(crate) token: Option<FencingToken>,
}

impl Record {
    /// Returns the JSON fields that all commands print.
    pub(crate) fn json(&self) -> Object {
        let bytes = self.name.as_bytes();
        let text = str::from_utf8(bytes).ok();
        let holder = self.holder.as_ref();
        let mut object = Object::new();
        object.text("name", text);
        if text.is_none() {
            object.hex("name_hex", bytes);
        }
        let id = holder
            .and_then(Holder::holder_id)
            .map(|id| id.short().to_string());
        let left = holder
            .and_then(Holder::remaining)
            .map(|left| left.as_millis());
        object
            .boolean("held", holder.is_some())
            .text("owner", holder.and_then(Holder::owner))
            .text("holder", id.as_deref())
            .number("remaining_ms", left)
            .number("fencing_token", self.token);
        object
    }

    pub(crate) fn name(&self) -> String {
        self.name.to_string()
    }

    /// Returns the holder as text, `-` if the lock is free.
    pub(crate) fn holder(&self) -> String {
        match &self.holder {
            None => "-".into(),
            Some(holder) => match holder.holder_id() {
                Some(id) => id.short().to_string(),
                // The value may be a secret of the other program.
                None => "(not leasehold)".into(),
            },
        }
    }

    pub(crate) fn left(&self) -> String {
        match &self.holder {
            None => "-".into(),
            Some(holder) => holder.remaining().map_or_else(
                || "no expiry".into(),
                |left: Duration| format!("{:.1}s", left.as_secs_f64()),
            ),
        }
    }

    pub(crate) fn token(&self) -> String {
        self.token
            .map_or_else(|| "-".into(), |token| token.to_string())
    }
}
