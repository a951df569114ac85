//! Rules for many calls that wait for one name: replies that are read late, and plain releases.

use std::sync::Arc;

use crate::clock::Instant;
use crate::error::Cause;
use crate::kernel::Kernel;
use crate::kernel::call::{Call, Step};
use crate::kernel::effects::Effects;
use crate::kernel::engine::Engine;
use crate::kernel::fault::Fault;
use crate::mutant::{Mutant, switch_on};
use crate::name::Name;
use crate::protocol::answer::Answer;
use crate::protocol::fair::FairMutexKeys;
use crate::protocol::keys::Keys;
use crate::protocol::primitive::Primitive;
use crate::protocol::refusal::RefusedName;
use crate::sim::rules::{ONE_SERVER, SECOND, at, call, kernel};

fn fair() -> Arc<dyn Primitive> {
    FairMutexKeys::of(Keys::new("a".into(), "lock:", "lock_release:"))
}

fn refused() -> Answer {
    Answer::Refused(RefusedName {
        name: 0,
        holder: b"x:0".to_vec(),
        remaining: Some(600 * SECOND),
        detail: None,
    })
}

/// Two calls send their commands at 0. The second one has a place at 900 ms; the thread of the
/// first one reads late.
fn late_reader(kernel: &Kernel, fx: &mut Effects) -> [Call; 2] {
    let lock = fair();
    let mut calls = [(); 2].map(|()| call(kernel, &lock, false, at(0)));
    for call in &mut calls {
        assert!(matches!(call.begin(kernel, at(0), fx), Step::Send(..)));
    }
    let step = calls[1].replied(kernel, Ok(refused()), at(0), at(900), fx);
    assert!(matches!(step, Step::Park(_)), "{step:?}");
    calls
}

fn ends_late_reader() -> bool {
    let (kernel, mut fx) = (kernel(), Effects::default());
    let _calls = late_reader(&kernel, &mut fx);
    let mut engine = Engine::default();
    engine.due(&kernel, at(2_900), &ONE_SERVER, &mut fx);
    let is_ended = !kernel.shared.pending.lock().is_empty();
    // In the end it is one that stands still.
    engine.due(&kernel, at(3_051), &ONE_SERVER, &mut fx);
    assert!(!kernel.shared.pending.lock().is_empty());
    is_ended
}

#[test]
fn command_whose_reply_is_read_late_is_not_overdue_while_others_are_answered() {
    assert!(!ends_late_reader());
    switch_on(Some(Mutant::LateReaderIsOverdue));
    let is_ended = ends_late_reader();
    switch_on(None);
    assert!(is_ended);
}

/// Returns whether the second call gives up 10 s after the commands were sent.
fn gives_up_early() -> bool {
    let (kernel, mut fx) = (kernel(), Effects::default());
    let [mut late, waits] = late_reader(&kernel, &mut fx);
    let unread = Err(Fault::Unknown(Cause::text("no reply")));
    late.replied(&kernel, unread, at(0), at(1_000), &mut fx);
    let mut engine = Engine::default();
    engine.due(&kernel, at(10_100), &ONE_SERVER, &mut fx);
    let cell = waits.cell().expect("it is parked");
    let gave_up = cell.outcome.lock().is_some();
    engine.due(&kernel, at(10_901), &ONE_SERVER, &mut fx);
    assert!(cell.outcome.lock().is_some(), "nothing was answered since");
    gave_up
}

#[test]
fn reply_that_is_read_late_is_no_silence() {
    assert!(!gives_up_early());
    switch_on(Some(Mutant::LateReaderIsSilence));
    let is_silence = gives_up_early();
    switch_on(None);
    assert!(is_silence);
}

/// Announces a plain release every 15 ms, which names another client's place. Returns when the
/// place of this client is refreshed.
fn refreshes(until: u64) -> Vec<u64> {
    let (kernel, mut fx, name) = (kernel(), Effects::default(), Name::from("a"));
    let mut waits = call(&kernel, &fair(), false, at(0));
    waits.begin(&kernel, at(0), &mut fx);
    kernel.listening_since(&name, Instant::START, at(0), &mut fx);
    waits.replied(&kernel, Ok(refused()), at(0), at(1), &mut fx);
    let mut engine = Engine::default();
    let mut refreshed = Vec::new();
    for ms in 2..until {
        if ms % 15 == 0 {
            kernel.announced(
                &name,
                b"next 5 x:00000000-0000-0000-0000-000000000000",
                at(ms),
                &mut fx,
            );
        }
        if !engine.due(&kernel, at(ms), &ONE_SERVER, &mut fx).is_empty() {
            refreshed.push(ms);
        }
    }
    refreshed
}

#[test]
fn plain_releases_postpone_the_places_that_they_do_not_name_until_their_own_refresh() {
    assert_eq!(refreshes(800), []);
    let own = refreshes(1_100);
    assert!(matches!(own[..], [850..=1_050]), "{own:?}");
    switch_on(Some(Mutant::PlainReleasesAddUp));
    let early = refreshes(800);
    switch_on(None);
    assert!(!early.is_empty());
}
