//! Checks of what is read from other replies than those of scripts: cluster layouts, addresses,
//! roles, log-on replies, messages and errors.

use crate::error_reply;
use crate::protocol::redirect::Redirect;
use crate::protocol::reply::Reply;
use crate::protocol::slot::SLOTS;
use crate::redis::cluster::slots::SlotLayout;
use crate::redis::conn::connector::is_master;
use crate::redis::conn::handshake::Step;
use crate::redis::sentinel::replies::{read_address, read_epoch, read_id};
use crate::runtime::subscriber::pubsub::{Received, read as read_received};

use super::answers::check_grant;

/// Checks everything that is read from `reply` except the answers of scripts and commands. No
/// result may have more than `most` bytes or items.
pub(super) fn check_reply(reply: &Reply, most: usize) {
    let asked = ("asked".to_owned(), 1);
    if let Some(layout) = SlotLayout::read(reply.clone(), &asked) {
        let slots = layout
            .masters
            .iter()
            .map(|(slots, _)| slots.clone().count());
        assert!(slots.sum::<usize>() <= usize::from(SLOTS));
        assert!(layout.masters.len() + layout.replicas.len() <= most);
        let masters = layout.masters.iter().map(|(_, address)| address);
        assert!(masters.chain(&layout.replicas).all(|address| address.1 > 0));
    }
    if let Some(Some((host, port))) = read_address(reply.clone()) {
        assert!(host.len() <= most && port > 0);
    }
    check_new_connection(reply);
    check_messages(reply, most);
    if let Reply::Error(error) = reply {
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

/// Returns the items of a list or a push, and the text of the first one.
fn items(reply: &Reply) -> Option<(&[u8], &[Reply])> {
    let (Reply::List(items) | Reply::Push(items)) = reply else {
        return None;
    };
    match items.split_first()? {
        (Reply::Text(text), rest) => Some((text, rest)),
        _ => None,
    }
}

/// Returns the channel in the confirmation of a SUBSCRIBE; `None` for another reply.
fn confirmed_channel(reply: &Reply) -> Option<&[u8]> {
    let (kind, rest) = items(reply)?;
    match rest.first()? {
        Reply::Text(channel) if kind.eq_ignore_ascii_case(b"subscribe") => Some(channel),
        _ => None,
    }
}

/// Checks what a new connection reads: the role, the subscription at a sentinel, and the log-on.
fn check_new_connection(reply: &Reply) {
    let is_error = matches!(reply, Reply::Error(_));
    if is_master(reply.clone()) == Some(true) {
        assert!(
            is_error || items(reply).is_some_and(|(role, _)| role == b"master"),
            "{reply:?}"
        );
    }
    assert!(read_epoch(reply.clone()).is_none() || read_id(reply.clone()).is_none());
    for step in [Step::Hello, Step::Auth, Step::Select, Step::Optional] {
        match step.read(reply.clone()) {
            Some(Ok(())) if step == Step::Hello => assert!(matches!(reply, Reply::List(_))),
            Some(Ok(())) => assert_eq!(*reply, Reply::Status("OK".into())),
            Some(Err(error)) => drop(step.refusal(&error)),
            None => {}
        }
    }
}

fn check_messages(reply: &Reply, most: usize) {
    match read_received(reply.clone()) {
        Some(Received::Message(_, payload)) => {
            assert!(payload.len() <= most);
            assert!(items(reply).is_some_and(|(kind, _)| kind == b"message"));
            check_grant(&payload);
        }
        Some(Received::Subscribed(channel)) => {
            assert_eq!(confirmed_channel(reply), Some(&*channel));
        }
        Some(Received::Done) => assert!(!matches!(reply, Reply::Error(_))),
        Some(Received::Refused(_)) => assert!(matches!(reply, Reply::Error(_))),
        Some(Received::Other) => assert!(matches!(reply, Reply::Push(_))),
        None => {}
    }
}
