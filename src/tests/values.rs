//! Checks of what is read from values other than replies of scripts: cluster layouts, addresses,
//! roles, log-on replies, messages and errors.

use redis::{Msg, PushKind, Value};

use crate::error_reply;
use crate::protocol::redirect::Redirect;
use crate::protocol::slot::SLOTS;
use crate::redis::cluster::slots::SlotLayout;
use crate::redis::conn::connector::is_master;
use crate::redis::conn::handshake::Step;
use crate::redis::sentinel::replies::{read_address, read_epoch, read_id};
use crate::runtime::subscriber::pubsub::{Received, read as read_received};

use super::answers::check_grant;

/// Checks everything that is read from `value` except the answers of scripts and commands. No
/// result may have more than `most` bytes or items.
pub(super) fn check_value(value: &Value, most: usize) {
    let asked = ("asked".to_owned(), 1);
    if let Some(layout) = SlotLayout::read(value.clone(), &asked) {
        let slots = layout
            .masters
            .iter()
            .map(|(slots, _)| slots.clone().count());
        assert!(slots.sum::<usize>() <= usize::from(SLOTS));
        assert!(layout.masters.len() + layout.replicas.len() <= most);
        let masters = layout.masters.iter().map(|(_, address)| address);
        assert!(masters.chain(&layout.replicas).all(|address| address.1 > 0));
    }
    if let Some(Some((host, port))) = read_address(value.clone()) {
        assert!(host.len() <= most && port > 0);
    }
    check_new_connection(value);
    check_messages(value, most);
    if let Value::ServerError(error) = value {
        if let Some(Redirect::Moved(host, port) | Redirect::Ask(host, port)) = Redirect::read(error)
        {
            let text = error.details().unwrap_or_default();
            let mut words = text.split(' ');
            assert!(
                words
                    .next()
                    .is_some_and(|slot| slot.parse().is_ok_and(|slot: u16| slot < SLOTS)),
                "{text}"
            );
            assert!(
                port > 0
                    && words
                        .next()
                        .is_some_and(|address| address.starts_with(&host)),
                "{text}"
            );
        }
        let _ = (error_reply::meaning(error), error_reply::words(error));
    }
}

/// Returns the first item of an array, if it is a bulk string.
fn first_text(value: &Value) -> Option<&[u8]> {
    match value {
        Value::Array(items) => match items.first() {
            Some(Value::BulkString(text)) => Some(text),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the channel in the confirmation of a SUBSCRIBE; `None` for another value.
fn confirmed_channel(value: &Value) -> Option<&[u8]> {
    let channel = match value {
        Value::Array(items) => {
            let is_subscribe = first_text(value)?.eq_ignore_ascii_case(b"subscribe");
            items.get(1).filter(|_| is_subscribe)?
        }
        Value::Push {
            kind: PushKind::Subscribe,
            data,
        } => data.first()?,
        _ => return None,
    };
    match channel {
        Value::BulkString(channel) => Some(channel),
        _ => None,
    }
}

/// Checks what a new connection reads: the role, the subscription at a sentinel, and the log-on.
fn check_new_connection(value: &Value) {
    let is_error = matches!(value, Value::ServerError(_));
    if is_master(value.clone()) == Some(true) {
        assert!(
            is_error || first_text(value) == Some(b"master"),
            "{value:?}"
        );
    }
    assert!(read_epoch(value.clone()).is_none() || read_id(value.clone()).is_none());
    for step in [Step::Hello, Step::Auth, Step::Select, Step::Optional] {
        match step.read(value.clone()) {
            Some(Ok(())) if step == Step::Hello => assert!(matches!(value, Value::Map(_))),
            Some(Ok(())) => assert_eq!(*value, Value::Okay),
            Some(Err(error)) => drop(step.refusal(&error)),
            None => {}
        }
    }
}

fn check_messages(value: &Value, most: usize) {
    if let Some(message) = Msg::from_owned_value(value.clone()) {
        assert!(message.get_payload_bytes().len() <= most);
        let _ = message.get_channel::<Vec<u8>>();
    }
    match read_received(value.clone()) {
        Some(Received::Message(_, payload)) => {
            let is_push = matches!(
                value,
                Value::Push {
                    kind: PushKind::Message,
                    ..
                }
            );
            assert!(
                is_push || first_text(value) == Some(b"message"),
                "{value:?}"
            );
            check_grant(&payload);
        }
        Some(Received::Subscribed(channel)) => {
            assert_eq!(confirmed_channel(value), Some(&*channel));
        }
        Some(Received::Done) => assert!(!matches!(value, Value::ServerError(_))),
        Some(Received::Refused(_)) => assert!(matches!(value, Value::ServerError(_))),
        Some(Received::Other) => assert!(matches!(value, Value::Push { .. })),
        None => {}
    }
}
