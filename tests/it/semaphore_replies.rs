//! Promise: after any sequence of calls, and of lost replies, Redis and the permits agree with a
//! model of the semaphore in memory.

use leasehold::{Client, FencingToken, Lost, Semaphore, SemaphorePermit};
use rand::RngExt;
use rand::rngs::SmallRng;
use redis::Connection;
use support::fair::PATIENCE;
use support::permits::Set;
use support::random_calls::{Ended, Model, compare_random_calls, ended, patient, take_any};
use support::{Proxy, Server, eventually, ms};

support::tests![
    random_calls_keep_to_the_model_of_1_permit,
    random_calls_keep_to_the_model_of_2_permits,
    random_calls_keep_to_the_model_of_3_permits,
    random_calls_keep_to_the_model_of_5_permits,
    random_calls_keep_to_the_model_of_40_permits
];

/// The number of calls of each test, over all threads. For a longer run:
/// `LEASEHOLD_STEPS=1000000 cargo test --all-features --test it -- semaphore_replies::`.
const STEPS: usize = 16_000;

/// A semaphore of `N` permits, and what the model knows of it.
struct Session<const N: u32> {
    name: String,
    redis: Connection,
    clients: Vec<Client>,
    held: Vec<SemaphorePermit>,
    newest: Option<FencingToken>,
}

impl<const N: u32> Model for Session<N> {
    fn start(server: &Server, proxy: &Proxy, name: String) -> Self {
        Self {
            clients: (0..3).map(|_| patient(proxy).build().unwrap()).collect(),
            redis: server.connection(),
            name,
            held: Vec::new(),
            newest: None,
        }
    }

    fn call(&mut self, rng: &mut SmallRng, loses: bool) -> Ended {
        let client = self.clients[rng.random_range(0..self.clients.len())].clone();
        match rng.random_range(0..10) {
            0..5 => {
                // Some calls give the semaphore fewer permits: each call counts by its own number.
                let permits = rng.random_range(N.div_ceil(2)..=N);
                let many = rng.random_range(1..=permits.min(3));
                let semaphore = client.semaphore(&*self.name, permits).many(many);
                let waits = rng.random_ratio(1, 40);
                let fits = self.out() + u64::from(many) <= u64::from(permits);
                // A call that waits may reach its deadline before its reply arrives.
                return self.acquire(&semaphore, fits, waits, loses || waits);
            }
            5 => {
                let available = client.semaphore(&*self.name, N).available();
                let expected = u64::from(N) - self.out();
                match available {
                    Ok(available) => assert_eq!(u64::from(available), expected),
                    Err(error) => assert!(loses, "{error}"),
                }
            }
            6 => {
                if let Some(permit) = take_any(&mut self.held, rng) {
                    let renewed = permit.renew();
                    assert!(renewed.is_ok() || loses, "{renewed:?}");
                    self.held.push(permit);
                }
            }
            7 if !loses => {
                if let Some(permit) = take_any(&mut self.held, rng) {
                    let semaphore = client.semaphore(&*self.name, N);
                    assert!(semaphore.force_release(permit.holder_id()).unwrap());
                    let lost = Some(Lost::Deleted);
                    assert_eq!(permit.release().unwrap_err().lost(), lost);
                }
            }
            _ => {
                if let Some(permit) = take_any(&mut self.held, rng) {
                    permit.release().unwrap();
                }
            }
        }
        Ended::WithReply
    }

    /// Redis must have exactly the holders of the model.
    fn difference(&mut self) -> Option<String> {
        let mut expected: Vec<(String, u64)> = self
            .held
            .iter()
            .map(|permit| (permit.holder_id().to_string(), permit.count().into()))
            .collect();
        expected.sort();
        // Also asserts that the counter is the sum of the holders' permits.
        let key = self.key("permits");
        let mut found = Set::read(&mut self.redis, &key).holders;
        found.sort();
        (found != expected).then(|| format!("{found:?}, not {expected:?}"))
    }
}

impl<const N: u32> Session<N> {
    /// The number of permits that are out.
    fn out(&self) -> u64 {
        self.held
            .iter()
            .map(|permit| u64::from(permit.count()))
            .sum()
    }

    fn key(&self, what: &str) -> String {
        format!("leasehold:{what}:{{lock:{}}}", self.name)
    }

    fn acquire(&mut self, semaphore: &Semaphore, fits: bool, waits: bool, loses: bool) -> Ended {
        let semaphore = semaphore.clone().ttl(ms(120_000));
        let permit = if waits {
            semaphore.try_acquire_for(ms(10))
        } else {
            semaphore.try_acquire()
        };
        let ended = ended(&permit, waits);
        match permit {
            Ok(Ok(permit)) => {
                assert!(fits, "granted although too few permits are free");
                let token = permit.fencing_token();
                assert!(Some(token) > self.newest);
                self.newest = Some(token);
                self.held.push(permit);
            }
            Ok(Err(_)) => assert!(loses || !fits, "refused although enough permits are free"),
            Err(error) => assert!(loses, "{error}"),
        }
        if waits {
            // A call that gave up leaves the queue in the background.
            eventually(PATIENCE, || {
                let mut count = redis::cmd("LLEN");
                let count = count.arg(self.key("permits-queue"));
                count.query::<usize>(&mut self.redis).unwrap() == 0
            });
        }
        ended
    }
}

fn random_calls_keep_to_the_model_of_1_permit() {
    compare_random_calls::<Session<1>>(STEPS);
}

fn random_calls_keep_to_the_model_of_2_permits() {
    compare_random_calls::<Session<2>>(STEPS);
}

fn random_calls_keep_to_the_model_of_3_permits() {
    compare_random_calls::<Session<3>>(STEPS);
}

fn random_calls_keep_to_the_model_of_5_permits() {
    compare_random_calls::<Session<5>>(STEPS);
}

fn random_calls_keep_to_the_model_of_40_permits() {
    compare_random_calls::<Session<40>>(STEPS);
}
