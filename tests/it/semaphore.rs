//! Promise: a semaphore has at most as many holders as permits, in the order of their calls.

use std::thread;
use std::time::Instant;

use crossbeam_channel::unbounded;
use leasehold::{Client, Error, Semaphore};
use support::fair::PATIENCE;
use support::permits::{
    PERMITS, PERMITS_FENCE, PERMITS_PLACES, PERMITS_QUEUE, Set, acquire_in_turn, give_back,
    permits_out, permits_queue_length, spawn_acquiring, wait_for_permits_queue,
    wait_until_only_permit_fences_remain,
};
use support::scripts;
use support::{Server, assert_gives_up, eventually, ms};

support::tests![
    call_that_gives_up_lets_those_behind_it_in,
    permits_are_held_up_to_their_number,
    one_client_holds_several_permits_in_several_guards,
    many_permits_are_acquired_and_released_together,
    semaphore_and_lock_of_one_name_are_unrelated,
    free_permit_costs_the_server_few_commands,
    refresh_of_a_waiting_call_costs_the_server_few_commands,
    permits_are_granted_in_order,
    release_of_many_permits_grants_to_several_waiters,
    more_waiters_than_a_script_grants_to_are_all_granted,
    large_request_is_not_overtaken,
    clients_with_different_numbers_never_exceed_their_own,
    try_acquire_never_overtakes,
    invalid_numbers_are_errors_and_send_nothing,
    semaphore_over_a_quorum_is_an_error,
    operators_see_the_holders_and_release_one,
    closures_run_with_a_permit,
    kept_permits_come_back_one_by_one
];

fn semaphore(server: &Server, permits: u32) -> Semaphore {
    server.client().semaphore("a", permits)
}

/// Returns how many commands the scripts run that `call` calls.
fn commands_of(server: &Server, call: impl FnOnce()) -> u64 {
    let before = server.command_stats();
    call();
    server.command_stats().since(&before).in_scripts()
}

/// A client refreshes all its places every 0.9 s.
fn refresh_of_a_waiting_call_costs_the_server_few_commands() {
    let server = Server::start();
    let held = semaphore(&server, 2).many(2).acquire().unwrap();
    let run = |source: &str, args: &[&str]| {
        let mut eval = redis::cmd("EVAL");
        eval.arg(source).arg(4);
        eval.arg(&[PERMITS, PERMITS_FENCE, PERMITS_QUEUE, PERMITS_PLACES]);
        eval.arg(args).exec(&mut server.connection()).unwrap();
    };
    for id in ["1 o:first", "1 o:second"] {
        run(scripts::PERMITS.enter, &[id, "10000", "1/2", "a inbox"]);
    }
    for id in ["1 o:first", "1 o:second"] {
        let refresh = || run(scripts::PERMITS.refresh, &["inbox", id]);
        let commands = commands_of(&server, refresh);
        assert!(commands <= 6, "{id}: {commands}");
    }
    give_back(held);
}

fn free_permit_costs_the_server_few_commands() {
    let server = Server::start();
    let semaphore = semaphore(&server, 4);
    let commands_of_a_pair = || {
        // The first pair can load the scripts.
        give_back(semaphore.acquire().unwrap());
        commands_of(&server, || give_back(semaphore.acquire().unwrap()))
    };
    assert_eq!(commands_of_a_pair(), 9);
    let other = semaphore.acquire().unwrap();
    assert_eq!(commands_of_a_pair(), 11);
    give_back(other);
}

fn permits_are_held_up_to_their_number() {
    let server = Server::start();
    let (one, two) = (semaphore(&server, 2), semaphore(&server, 2));
    assert_eq!(one.available().unwrap(), 2);
    let first = one.acquire().unwrap();
    let second = two.try_acquire().unwrap().expect("the second of two");
    assert!(second.fencing_token() > first.fencing_token());
    assert!(first.is_held() && first.remaining().is_some());
    first.ensure_held().unwrap();
    first.renew().unwrap();
    assert_eq!((permits_out(&server), one.available().unwrap()), (2, 0));
    assert!(one.try_acquire().unwrap().is_err());
    assert_gives_up(|limit| two.try_acquire_for(limit));
    // A call that gave up leaves the queue in the background: a release may still grant to it.
    wait_for_permits_queue(&server, 0);
    give_back(first);
    let third = two.try_acquire().unwrap().expect("the first was released");
    give_back(second);
    give_back(third);
    wait_until_only_permit_fences_remain(&server);
}

fn one_client_holds_several_permits_in_several_guards() {
    let server = Server::start();
    let client = server.client();
    let semaphore = client.semaphore("a", 3);
    let permits: Vec<_> = (0..3).map(|_| semaphore.acquire().unwrap()).collect();
    assert_eq!(permits_out(&server), 3);
    assert_eq!(client.stats().held, 3);
    assert!(permits.iter().all(|permit| permit.is_held()));
    assert!(semaphore.try_acquire().unwrap().is_err());
    let mut permits = permits.into_iter();
    give_back(permits.next().unwrap());
    let again = semaphore.try_acquire().unwrap().unwrap();
    assert!(permits.all(|permit| {
        let held = permit.is_held();
        give_back(permit);
        held
    }));
    give_back(again);
    assert_eq!(client.stats().held, 0);
    wait_until_only_permit_fences_remain(&server);
}

fn many_permits_are_acquired_and_released_together() {
    let server = Server::start();
    let semaphore = semaphore(&server, 5);
    let three = semaphore.clone().many(3).acquire().unwrap();
    assert_eq!((three.count(), semaphore.available().unwrap()), (3, 2));
    assert!(three.holder_id().as_str().starts_with("3 "));
    assert!(semaphore.clone().many(3).try_acquire().unwrap().is_err());
    let two = semaphore.clone().many(2).acquire().unwrap();
    assert_eq!(semaphore.available().unwrap(), 0);
    give_back(three);
    assert_eq!(semaphore.available().unwrap(), 3);
    give_back(two);
    wait_until_only_permit_fences_remain(&server);
}

fn semaphore_and_lock_of_one_name_are_unrelated() {
    let server = Server::start();
    let client = server.client();
    let semaphore = client.semaphore("a", 1);
    let guard = client.mutex("a").lock().unwrap();
    let permit = semaphore.try_acquire().unwrap().expect("a free permit");
    assert!(client.mutex("a").try_lock().unwrap().is_err());
    assert_eq!(*permit.name(), *guard.name());
    guard.unlock().unwrap();
    let guard = client.mutex("a").try_lock().unwrap().expect("a free lock");
    let fair = client.fair_mutex("a");
    thread::scope(|scope| {
        let waiting = spawn_acquiring(scope, &server, semaphore.clone());
        let locking = scope.spawn(|| fair.try_lock_for(PATIENCE).unwrap().unwrap());
        eventually(PATIENCE, || fair.waiting().unwrap() == 1);
        give_back(permit);
        give_back(waiting.join().unwrap());
        guard.unlock().unwrap();
        locking.join().unwrap().unlock().unwrap();
    });
}

fn permits_are_granted_in_order() {
    let server = Server::start();
    let (one, two) = (semaphore(&server, 2), semaphore(&server, 2));
    let held = [one.acquire().unwrap(), two.acquire().unwrap()];
    let (granted, order) = unbounded();
    thread::scope(|scope| {
        for n in 0..6 {
            let semaphore = [&one, &two][n % 2].clone();
            let granted = granted.clone();
            scope.spawn(move || {
                let permit = acquire_in_turn(&semaphore);
                granted.send((n, permit.fencing_token())).unwrap();
                give_back(permit);
            });
            wait_for_permits_queue(&server, n + 1);
        }
        let [first, second] = held;
        give_back(first);
        let order: Vec<_> = (0..6).map(|_| order.recv().unwrap()).collect();
        assert!(order.is_sorted(), "{order:?}");
        assert!(order.is_sorted_by_key(|(_, token)| *token), "{order:?}");
        give_back(second);
    });
    wait_until_only_permit_fences_remain(&server);
}

fn release_of_many_permits_grants_to_several_waiters() {
    let server = Server::start();
    let semaphore = semaphore(&server, 3);
    let all = semaphore.clone().many(3).acquire().unwrap();
    thread::scope(|scope| {
        let spawn = |many| spawn_acquiring(scope, &server, semaphore.clone().many(many));
        let (one, two, three) = (spawn(1), spawn(2), spawn(3));
        give_back(all);
        let (one, two) = (one.join().unwrap(), two.join().unwrap());
        assert_eq!(
            (permits_out(&server), permits_queue_length(&server)),
            (3, 1)
        );
        give_back(one);
        assert_eq!(permits_queue_length(&server), 1, "three are wanted");
        give_back(two);
        give_back(three.join().unwrap());
    });
    wait_until_only_permit_fences_remain(&server);
}

/// A script grants to at most 100 waiters; refreshes grant to the others. Nobody releases before
/// all have their permits.
fn more_waiters_than_a_script_grants_to_are_all_granted() {
    const WAITERS: usize = 130;
    let server = Server::start();
    let semaphore = semaphore(&server, WAITERS as u32);
    let all = semaphore.clone().many(WAITERS as u32).acquire().unwrap();
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..WAITERS)
            .map(|_| scope.spawn(|| acquire_in_turn(&semaphore)))
            .collect();
        wait_for_permits_queue(&server, WAITERS);
        give_back(all);
        let permits: Vec<_> = waiting.into_iter().map(|it| it.join().unwrap()).collect();
        assert_eq!(permits_out(&server), WAITERS as u64);
        permits.into_iter().for_each(give_back);
    });
    wait_until_only_permit_fences_remain(&server);
}

fn large_request_is_not_overtaken() {
    let server = Server::start();
    let semaphore = semaphore(&server, 4);
    let mut held: Vec<_> = (0..4).map(|_| semaphore.acquire().unwrap()).collect();
    thread::scope(|scope| {
        let large = spawn_acquiring(scope, &server, semaphore.clone().many(4));
        let small = spawn_acquiring(scope, &server, semaphore.clone());
        while let Some(permit) = held.pop() {
            assert_eq!(permits_queue_length(&server), 2);
            assert!(semaphore.try_acquire().unwrap().is_err());
            give_back(permit);
        }
        let large = large.join().unwrap();
        assert_eq!(
            (permits_out(&server), permits_queue_length(&server)),
            (4, 1)
        );
        give_back(large);
        give_back(small.join().unwrap());
    });
    wait_until_only_permit_fences_remain(&server);
}

fn clients_with_different_numbers_never_exceed_their_own() {
    let server = Server::start();
    let (five, ten) = (semaphore(&server, 5), semaphore(&server, 10));
    let mut held: Vec<_> = (0..5).map(|_| five.acquire().unwrap()).collect();
    assert!(five.try_acquire().unwrap().is_err());
    held.extend((0..5).map(|_| ten.try_acquire().unwrap().unwrap()));
    assert!(ten.try_acquire().unwrap().is_err());
    assert_eq!(
        (five.available().unwrap(), ten.available().unwrap()),
        (0, 0)
    );
    thread::scope(|scope| {
        let of_five = spawn_acquiring(scope, &server, five.clone());
        let of_ten = spawn_acquiring(scope, &server, ten.clone());
        for left in (5..10).rev() {
            give_back(held.pop().unwrap());
            assert_eq!(permits_out(&server), left);
            assert_eq!(permits_queue_length(&server), 2, "nobody overtakes");
        }
        give_back(held.pop().unwrap());
        let (of_five, of_ten) = (of_five.join().unwrap(), of_ten.join().unwrap());
        assert_eq!(permits_out(&server), 6);
        give_back(of_five);
        give_back(of_ten);
    });
    held.into_iter().for_each(give_back);
    wait_until_only_permit_fences_remain(&server);
}

fn try_acquire_never_overtakes() {
    let server = Server::start();
    let (one, two) = (semaphore(&server, 2), semaphore(&server, 2));
    let held = one.acquire().unwrap();
    thread::scope(|scope| {
        let waiting = spawn_acquiring(scope, &server, one.clone().many(2));
        assert_eq!(two.available().unwrap(), 1);
        for semaphore in [&one, &two] {
            assert!(semaphore.try_acquire().unwrap().is_err(), "one is free");
            assert!(semaphore.try_acquire_for(ms(0)).unwrap().is_err());
        }
        give_back(held);
        give_back(waiting.join().unwrap());
    });
    assert!(two.try_acquire().unwrap().is_ok());
}

fn call_that_gives_up_lets_those_behind_it_in() {
    let server = Server::start();
    let (one, two) = (semaphore(&server, 2), semaphore(&server, 2));
    let held = one.acquire().unwrap();
    thread::scope(|scope| {
        let gives_up = scope.spawn(|| one.clone().many(2).try_acquire_for(ms(5_000)).unwrap());
        wait_for_permits_queue(&server, 1);
        let waiting = spawn_acquiring(scope, &server, two.clone());
        assert!(gives_up.join().unwrap().is_err());
        give_back(waiting.join().unwrap());
    });
    give_back(held);
    wait_until_only_permit_fences_remain(&server);
}

fn invalid_numbers_are_errors_and_send_nothing() {
    let server = Server::start();
    let client = server.client();
    for (semaphore, why) in [
        (client.semaphore("a", 0), "at least 1"),
        (client.semaphore("a", 3).many(0), "at least 1"),
        (client.semaphore("a", 3).many(4), "no call can acquire 4"),
        (client.semaphore("a", 1 << 31), "at most 2147483647"),
        (client.semaphore("", 1), "must not be empty"),
    ] {
        let outcomes = [
            semaphore.acquire().err(),
            semaphore.try_acquire().err(),
            semaphore.try_acquire_for(ms(10)).err(),
            semaphore.available().err(),
            semaphore.inspect().err(),
            semaphore.waiting().err(),
        ];
        for error in outcomes {
            let Some(Error::Config(text)) = error else {
                panic!("{error:?}")
            };
            assert!(text.contains(why), "{text}");
        }
    }
    assert_eq!(client.stats().connections, 0, "nothing was sent");
    let most = client.semaphore("a", (1 << 31) - 1).many((1 << 31) - 1);
    let permit = most.acquire().unwrap();
    assert_eq!(
        (permits_out(&server), most.available().unwrap()),
        ((1 << 31) - 1, 0)
    );
    assert!(most.try_acquire().unwrap().is_err());
    give_back(permit);
}

fn semaphore_over_a_quorum_is_an_error() {
    let server = Server::start();
    let client = Client::quorum([server.url()]).unwrap();
    let semaphore = client.semaphore("a", 2);
    for error in [
        semaphore.acquire().err(),
        semaphore.try_acquire().err(),
        semaphore.available().err(),
        semaphore.inspect().err(),
    ] {
        let Some(Error::Config(text)) = error else {
            panic!("{error:?}")
        };
        assert!(text.contains("Sentinel or Cluster"), "{text}");
    }
    assert!(server.keys().is_empty());
}

fn operators_see_the_holders_and_release_one() {
    let server = Server::start();
    let holder = Client::builder()
        .url(server.url())
        .owner("worker 7")
        .build();
    let semaphore = holder.unwrap().semaphore("a", 4);
    let operator = crate::semaphore::semaphore(&server, 4);
    let two = semaphore.clone().many(2).ttl(ms(5_000)).acquire().unwrap();
    let one = semaphore.acquire().unwrap();
    let held = operator.inspect().unwrap().expect("permits are out");
    let holders = held.holders();
    let seen: Vec<_> = holders
        .iter()
        .map(|holder| (holder.owner(), holder.permits(), holder.holder_id()))
        .collect();
    let expected = [
        (Some("worker 7"), 2, Some(two.holder_id())),
        (Some("worker 7"), 1, Some(one.holder_id())),
    ];
    assert_eq!(seen, expected, "those that end first come first");
    let remaining = |n: usize| holders[n].remaining().unwrap();
    assert!(remaining(0) <= ms(5_000) && remaining(1) > ms(5_000));
    assert!(operator.force_release(two.holder_id()).unwrap());
    assert!(!operator.force_release(two.holder_id()).unwrap());
    assert_eq!(operator.available().unwrap(), 3);
    assert!(two.renew().is_err() && !two.is_held(), "the loss is known");
    assert!(one.is_held());
    assert_eq!(
        Set::read(&mut server.connection(), PERMITS).holders.len(),
        1
    );
}

fn closures_run_with_a_permit() {
    let server = Server::start();
    let semaphore = semaphore(&server, 1);
    let count = semaphore.with(|permit| permit.count()).unwrap();
    assert_eq!(count, 1);
    let held = semaphore.acquire().unwrap();
    assert!(semaphore.try_with(|_| ()).unwrap().is_err());
    give_back(held);
    assert!(semaphore.try_with(|_| ()).unwrap().is_ok());
    let panics = thread::scope(|scope| {
        let panicking = scope.spawn(|| semaphore.with(|_| panic!("in the section")));
        panicking.join().is_err()
    });
    assert!(panics && semaphore.available().unwrap() == 1);
    let queue: Option<String> = redis::cmd("LINDEX")
        .arg(&[PERMITS_QUEUE, "0"])
        .query(&mut server.connection())
        .unwrap();
    assert_eq!(queue, None);
}

fn kept_permits_come_back_one_by_one() {
    let server = Server::start();
    let (kept, others) = (semaphore(&server, 3), semaphore(&server, 3));
    // The ttl is longer than the calls wait, so only `keep_for` ends a permit in time.
    let kept = kept.ttl(ms(300_000));
    let times = [ms(2_000), ms(3_000), ms(300_000)];
    let began = Instant::now();
    for at_least in times {
        kept.acquire().unwrap().keep_for(at_least).unwrap();
    }
    let is_out = |at_least| began.elapsed() < at_least;
    assert!(permits_out(&server) == 3 || !is_out(times[0]));
    let first = acquire_in_turn(&others);
    assert!(!is_out(times[0]));
    assert!(others.available().unwrap() == 0 || !is_out(times[1]));
    let second = acquire_in_turn(&others);
    assert!(!is_out(times[1]));
    assert_eq!(others.available().unwrap(), 0, "the last one is kept");
    give_back(first);
    give_back(second);
    assert_eq!(permits_out(&server), 1);
}
