//! Promise: processes killed or paused at random delay the others by a bounded time.
//!
//! Only a killed or paused holder loses the lock to another. It learns of the loss, or the
//! protected resource rejects its writes.

use support::{Chaos, Server, ms};

support::tests![
    survivors_of_kills_and_pauses_get_a_fair_mutex_in_bounded_time,
    survivors_of_kills_and_pauses_get_a_mutex_in_bounded_time,
    survivors_of_kills_get_a_fair_mutex_when_the_lease_of_its_holder_ends
];

fn assert_bounded_stalls(kind: &'static str, pauses: bool) {
    let chaos = Chaos {
        kind,
        processes: 8,
        threads: 2,
        pauses,
        duration: ms(10_000),
    };
    let (server, witness) = (Server::start(), Server::start());
    chaos.run(&server, &witness).assert_promises();
}

fn survivors_of_kills_and_pauses_get_a_mutex_in_bounded_time() {
    assert_bounded_stalls("mutex", true);
}

fn survivors_of_kills_and_pauses_get_a_fair_mutex_in_bounded_time() {
    assert_bounded_stalls("fair", true);
}

fn survivors_of_kills_get_a_fair_mutex_when_the_lease_of_its_holder_ends() {
    assert_bounded_stalls("fair", false);
}
