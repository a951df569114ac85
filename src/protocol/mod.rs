//! The wire protocol: keys, the calls of scripts, and what their replies mean. No I/O.

pub(crate) mod all;
pub(crate) mod answer;
pub(crate) mod calls;
pub(crate) mod expected;
pub(crate) mod fair;
pub(crate) mod keys;
pub(crate) mod mutex;
pub(crate) mod one_or_many;
pub(crate) mod script;
pub(crate) mod slot;

/// The keys of locks and the replies about them, for the folders above.
pub(crate) mod kind {
    pub(crate) use super::answer::{Acquired, KeyState, Refusal, read_holder};
    pub(crate) use super::keys::{Key, Keys, sibling_key};
}
