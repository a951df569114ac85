//! Promise: where the wall clock shows that a lease may be over, though not the clock that counts,
//! the lease is not reported as held until Redis has confirmed it. So it is after a hypervisor has
//! paused the machine of the holder.

use std::time::Duration;

use crossbeam_channel::unbounded;
use leasehold::{Client, Error, Lease, Lost};
use support::{Child, Clock, Server, assert_released, eventually, ms, parameter, tell_parent};

support::roles![holder];

support::tests![lease_is_in_doubt_after_the_wall_clock_ran_ahead];

const WAIT_LIMIT: Duration = ms(20_000);

/// Much longer than [`WAIT_LIMIT`], as is the interval of its renewals.
const TTL: Duration = ms(120_000);

fn lease_is_in_doubt_after_the_wall_clock_ran_ahead() {
    let server = Server::start();
    let mut clock = Clock::new();
    let url = server.url();
    let mut variables = clock.variables();
    variables.push(("URL", &url));
    let child = Child::spawn("wall_clock::holder", &variables);
    child.wait_for_line("held");
    clock.step(3_600);
    child.wait_for_line("renewed");
    server.pause();
    clock.step(3_600);
    child.wait_for_line("in doubt");
    server.resume();
    child.wait().succeeded();
}

/// Holds two locks: one that is renewed, and one that is not.
fn holder() {
    let client = Client::open(parameter("URL")).expect("the URL is valid");
    let (renewed, renewals) = unbounded();
    let mutex = client.mutex("renewed").ttl(TTL).on_renew(move |_| {
        let _ = renewed.send(());
    });
    let renewed = mutex.lock().unwrap();
    let manual = client.mutex("manual").ttl(TTL).auto_renew(false);
    let manual = manual.lock().unwrap();
    let leases: [&Lease; 2] = [&renewed, &manual];
    let lost = leases.map(Lease::lost);
    tell_parent("held");
    // Though nobody asks for the state of the lease.
    renewals.recv_timeout(WAIT_LIMIT).expect("it is renewed");
    eventually(WAIT_LIMIT, || leases.iter().all(|lease| lease.is_held()));
    tell_parent("renewed");
    for lease in leases {
        eventually(WAIT_LIMIT, || !lease.is_held());
        let error = lease.ensure_held().unwrap_err();
        assert!(matches!(error, Error::Lost(Lost::Expired)), "{error:?}");
    }
    tell_parent("in doubt");
    for lease in leases {
        eventually(WAIT_LIMIT, || lease.is_held());
    }
    assert!(lost.iter().all(|lost| lost.try_recv().is_err()));
    assert_released(renewed.unlock());
    assert_released(manual.unlock());
}
