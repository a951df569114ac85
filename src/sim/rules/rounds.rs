//! Rules of rounds: what the votes of several servers mean.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::clock::Instant;
use crate::error::Cause;
use crate::kernel::call::{Call, Step};
use crate::kernel::command::What;
use crate::kernel::effects::Effects;
use crate::kernel::waiter::CallTerms;

use crate::kernel::fault::Fault;
use crate::kernel::held::HeldLease;
use crate::kernel::operation::Wanted;
use crate::kernel::unlock::Unlock;
use crate::kernel::waiter::Outcome;
use crate::kernel::{Kernel, Limits};
use crate::majority::Majority;
use crate::name::Name;
use crate::protocol::answer::{Answer, Undone};
use crate::protocol::keys::Keys;
use crate::protocol::mutex::MutexKeys;
use crate::protocol::primitive::Primitive;
use crate::protocol::refusal::RefusedName;
use crate::quorum::Quorum;
use crate::quorum::messages::Messages;
use crate::quorum::round::Link;
use crate::runtime::commands::{Commands, End, ForServer};
use crate::sim::rules::{SECOND, at};
use crate::sim::world::Links;
use crate::token::FencingToken;

/// The wall clock at the start, in µs: tokens are at least that.
pub(super) const WALL: u64 = 1_000_000;

/// A client of three servers, and its engine.
pub(super) struct Client {
    pub(super) kernel: Kernel,
    pub(super) engine: Commands,
    pub(super) links: Links,
    /// The connection over which members answer.
    pub(super) link: u64,
    pub(super) lock: Arc<dyn Primitive>,
}

impl Client {
    pub(super) fn new() -> Self {
        let limits = Limits {
            command_timeout: SECOND,
            unreachable_for: 10 * SECOND,
            backstop: 5 * SECOND,
            may_fail_over: false,
            replies_are_final: false,
            engine_sends: true,
            wall: 0,
        };
        Self {
            kernel: Kernel::new(limits, "o"),
            engine: Commands::new(Some(Quorum::new(Majority::of(3), SECOND, WALL))),
            links: links(&[Link::Up; 3]),
            link: 1,
            lock: MutexKeys::of(Keys::new("a".into(), "lock:", "lock_release:")),
        }
    }

    pub(super) fn call(&self, now: Instant) -> Call {
        let mut wants = CallTerms::endless(&self.lock, 10 * SECOND);
        wants.terms.handoffs = 3;
        let mut call = Call::new(&self.kernel, wants, now);
        let step = call.begin(&self.kernel, now, &mut Effects::default());
        assert!(matches!(step, Step::Park(_)));
        call
    }

    pub(super) fn due(&mut self, now: Instant) -> Vec<ForServer> {
        let fx = &mut Effects::default();
        self.engine.due(&self.kernel, now, &self.links, fx)
    }

    pub(super) fn end(
        &mut self,
        out: &ForServer,
        end: Result<Answer, Fault>,
        now: Instant,
    ) -> Vec<ForServer> {
        let fx = &mut Effects::default();
        let links = &self.links;
        let ended = End {
            no: out.no,
            end,
            sent: now,
            link: self.link,
        };
        self.engine.ended(&self.kernel, ended, now, links, fx)
    }

    pub(super) fn acquired(&mut self) -> Arc<HeldLease> {
        self.acquired_by([0, 1, 2].map(|_| Ok(granted())))
    }

    /// Acquires the lock; the commands at the members end like this.
    pub(super) fn acquired_by(&mut self, mut ends: [Result<Answer, Fault>; 3]) -> Arc<HeldLease> {
        let mut call = self.call(at(0));
        for out in self.due(at(0)) {
            let end = std::mem::replace(&mut ends[out.server], Ok(Answer::Gone));
            self.end(&out, end, at(1));
        }
        let step = call.woken(&self.kernel, at(1), &mut Effects::default());
        match step {
            Step::Done(Outcome::Lease(lease, _)) => lease,
            step => panic!("{step:?}"),
        }
    }
}

fn links(links: &[Link]) -> Links {
    Links {
        links: links.to_vec(),
        ran_twice: AtomicU32::new(0),
    }
}

pub(super) fn granted() -> Answer {
    Answer::Granted(FencingToken::new(7))
}

pub(super) fn refused(by: &str) -> Answer {
    Answer::Refused(RefusedName {
        name: 0,
        holder: by.into(),
        remaining: Some(5 * SECOND),
        detail: None,
    })
}

#[test]
fn messages_do_not_end_the_pause_after_a_split_vote() {
    let mut client = Client::new();
    let _call = client.call(at(0));
    let out = client.due(at(0));
    assert_eq!(out.len(), 3);
    client.end(&out[0], Ok(granted()), at(1));
    client.end(&out[1], Ok(refused("x")), at(1));
    let undo = client.end(&out[2], Ok(refused("y")), at(1));
    assert_eq!(undo.len(), 1, "behind the granted proposal");
    let next = client.kernel.shared.schedule.lock().next();
    assert!(next > at(1) && next <= at(6), "{next:?}");
    let (name, mut messages) = (Name::from("a"), Messages::new(Majority::of(3)));
    messages.want(&name);
    for server in 0..3 {
        let fx = &mut Effects::default();
        if messages.heard(server, &name, b"z") {
            (client.kernel).announced(&name, b"z", at(1), fx);
        }
    }
    assert_eq!(client.kernel.shared.schedule.lock().next(), next);
}

#[test]
fn a_change_of_ttl_that_one_server_may_run_later_limits_the_lease() {
    let mut client = Client::new();
    let lease = client.acquired();
    let set_ttl = |client: &mut Client, ttl, ms, last: Result<Answer, Fault>| {
        let what = Wanted::SetTtl(ttl);
        let fx = &mut Effects::default();
        client
            .kernel
            .operate(&lease, lease.token(), what, at(ms), fx)
            .expect("it is held");
        let out = client.due(at(ms));
        assert_eq!(out.len(), 3);
        client.end(&out[0], Ok(Answer::Ours), at(ms + 1));
        client.end(&out[1], Ok(Answer::Ours), at(ms + 1));
        client.end(&out[2], last, at(ms + 1));
    };
    let no_reply = Err(Fault::Unknown(Cause::text("no reply")));
    set_ttl(&mut client, 2 * SECOND, 10, no_reply);
    set_ttl(&mut client, 20 * SECOND, 20, Ok(Answer::Ours));
    assert!(lease.covers(at(1_800)));
    assert!(!lease.covers(at(2_100)), "the short ttl may be set later");
}

#[test]
fn what_a_connecting_server_was_not_sent_is_never_sent_late() {
    let mut client = Client::new();
    client.links = links(&[Link::Up, Link::Up, Link::Connecting]);
    let _call = client.call(at(0));
    let out = client.due(at(0));
    assert_eq!(out.len(), 2);
    client.end(&out[0], Ok(refused("x")), at(1));
    client.end(&out[1], Ok(refused("x")), at(1));
    client.links = links(&[Link::Up; 3]);
    assert!(client.due(at(2)).is_empty());
}

/// The server has lost its scripts, and the others have already granted the lock.
#[test]
fn a_won_proposal_is_sent_again_while_its_lease_is_open() {
    let mut client = Client::new();
    let mut call = client.call(at(0));
    let out = client.due(at(0));
    client.end(&out[0], Ok(granted()), at(1));
    client.end(&out[1], Ok(granted()), at(1));
    let fx = &mut Effects::default();
    let Step::Done(Outcome::Lease(lease, token)) = call.woken(&client.kernel, at(1), fx) else {
        panic!("not granted");
    };
    let may_resend = |client: &Client, ms| {
        let ticket = out[2].no;
        client.engine.may_resend(&client.kernel, ticket, at(ms))
    };
    assert!(may_resend(&client, 2));
    assert!(!may_resend(&client, 10_000), "it has ended");
    client
        .kernel
        .begin_unlock(&lease, token, false, at(3), &mut Effects::default());
    client.due(at(3));
    assert!(!may_resend(&client, 3), "its release is behind it");
}

#[test]
fn a_lost_proposal_is_not_sent_again() {
    let mut client = Client::new();
    let _call = client.call(at(0));
    let out = client.due(at(0));
    client.end(&out[0], Ok(refused("x")), at(1));
    assert!(client.engine.may_resend(&client.kernel, out[2].no, at(1)));
    client.end(&out[1], Ok(refused("x")), at(1));
    assert!(!client.engine.may_resend(&client.kernel, out[2].no, at(1)));
}

/// The engine ends a release that is overdue, and its round ends in the same turn: one server may
/// run the acquiring command later.
#[test]
fn overdue_release_still_waits_for_a_key_that_may_come() {
    let mut client = Client::new();
    let mut call = client.call(at(0));
    let out = client.due(at(0));
    for out in &out[..2] {
        client.end(out, Ok(granted()), at(1));
    }
    client.end(&out[2], Err(Fault::Unknown(Cause::text("reset"))), at(1));
    let mut fx = Effects::default();
    let Step::Done(Outcome::Lease(lease, token)) = call.woken(&client.kernel, at(1), &mut fx)
    else {
        panic!("two of three granted it");
    };
    let unlock = (client.kernel).begin_unlock(&lease, token, false, at(10), &mut fx);
    assert!(matches!(unlock, Unlock::Wait(_)));
    client.links = links(&[Link::Up, Link::Up, Link::Down]);
    let is_leave = |out: &&ForServer| matches!(out.command.what, What::Leave { .. });
    let out = client.due(at(10));
    assert_eq!(out.iter().filter(is_leave).count(), 2);
    for ms in [1_100, 1_200, 1_300, 2_300, 3_300] {
        for undo in client.due(at(ms)) {
            let nothing = Undone {
                removed: Vec::new(),
                other: None,
            };
            client.end(&undo, Ok(Answer::Undone(nothing)), at(ms + 1));
        }
    }
    let quorum = client.engine.quorum().unwrap();
    let is_pending = |server| quorum.has_left(server, lease.id.as_str());
    assert_eq!([0, 1, 2].map(is_pending), [false, false, true]);
}

/// A thread leaves its call while the engine looks at the rounds, which are due later.
#[test]
fn what_is_due_at_once_stays_due_beside_what_is_due_later() {
    let client = Client::new();
    let fx = &mut Effects::default();
    client.kernel.wake_sender_at(at(1), at(0), fx);
    client.kernel.wake_sender_at(at(500), at(0), fx);
    assert_eq!(client.kernel.shared.schedule.lock().next(), at(1));
}
