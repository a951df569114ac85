//! Promise: processes that are killed and paused at random cost the others no more than a ttl at a time, and whoever was
//! overtaken meanwhile is the only one who learns of it, or is turned away by what the lock protects.

use support::{Chaos, Server, ms};

support::tests![
    survivors_go_on_with_a_mutex,
    survivors_go_on_with_a_fair_mutex
];

fn reigns_over(kind: &'static str) {
    let chaos = Chaos {
        kind,
        processes: 8,
        threads: 2,
        lasts: ms(10_000),
    };
    let (server, witness) = (Server::start(), Server::start());
    chaos.run(&server, &witness).assert_promises();
}

fn survivors_go_on_with_a_mutex() {
    reigns_over("mutex");
}

fn survivors_go_on_with_a_fair_mutex() {
    reigns_over("fair");
}
