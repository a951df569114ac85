//! The state of a lock at one moment, as text and as JSON.

use leasehold::{FencingToken, Holder, Name};

use crate::json::Object;
use crate::table::{or_dash, seconds};

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
        let holder = self.holder.as_ref();
        let mut object = Object::named(&self.name);
        let id = holder.and_then(Holder::holder_id);
        let left = holder.and_then(Holder::remaining);
        object
            .plain("held", Some(holder.is_some()))
            .text("owner", holder.and_then(Holder::owner))
            .text("holder", id.map(|id| id.short().to_string()).as_deref())
            .plain("remaining_ms", left.map(|left| left.as_millis()))
            .plain("fencing_token", self.token);
        if holder.is_some_and(Holder::is_shared) {
            object.plain("shared", Some(true));
        }
        object
    }

    /// Returns the name, the holder, the time left and the token as text; `-` if there is none.
    pub(crate) fn cells(&self) -> [String; 4] {
        let left = match self.holder.as_ref().map(Holder::remaining) {
            None => "-".into(),
            Some(None) => "no expiry".into(),
            Some(Some(left)) => seconds(left),
        };
        let holder = or_dash(self.holder.as_ref().map(shown_holder));
        [self.name.to_string(), holder, left, or_dash(self.token)]
    }
}

pub(crate) fn shown_holder(holder: &Holder) -> String {
    match holder.holder_id() {
        Some(id) => id.short().to_string(),
        None if holder.is_shared() => "(readers)".into(),
        // The value may be a secret of the other program.
        None => "(not leasehold)".into(),
    }
}
