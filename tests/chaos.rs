//! Promise: processes that are killed and paused at random cost the others no more than a ttl at a time, and whoever was
//! overtaken meanwhile is the only one who learns of it, or is turned away by what the lock protects.

use support::{Chaos, Server, ms, survivor};

mod support;

const CHAOS: Chaos = Chaos {
    kind: "mutex",
    processes: 8,
    threads: 2,
    lasts: ms(10_000),
};

#[test]
fn child() {
    support::role(&[("survivor", survivor)]);
}

#[test]
fn whoever_survives_goes_on() {
    let (server, witness) = (Server::start(), Server::start());
    CHAOS.reign(&server, &witness).is_as_promised();
}
