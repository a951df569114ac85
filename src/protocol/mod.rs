//! What goes over the wire, and what it means. No I/O.

pub(crate) mod expected;
pub(crate) mod fair;
pub(crate) mod kind;
pub(crate) mod one_or_many;
pub(crate) mod script;
pub(crate) mod slot;
