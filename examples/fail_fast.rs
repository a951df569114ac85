//! A service while Redis hangs: the first requests time out, and the later ones get a 503 with a
//! `Retry-After` at once.

mod support {
    pub(crate) mod run;
}

use std::net::TcpListener;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use leasehold::{Client, Error};
use support::run::{Outcome, run};

/// How long a request may wait for Redis.
const PATIENCE: Duration = Duration::from_millis(200);

/// Calls `story`, with a private Redis unless `REDIS_URL` is set. Your own program would not
/// need this.
fn main() -> ExitCode {
    run(story, &[])
}

fn story() -> Outcome {
    // A port that accepts connections and never replies, like a Redis that is stopped or swapping.
    let hung = TcpListener::bind("127.0.0.1:0")?;
    let client = Client::builder()
        .url(format!("redis://{}", hung.local_addr()?))
        .connect_timeout(PATIENCE)
        .command_timeout(PATIENCE)
        .breaker(3)
        .build()?;
    let mut failed_at_once = 0;
    for n in 1..=6 {
        let began = Instant::now();
        let response = book(&client);
        let took = began.elapsed();
        println!("request {n}: {response} after {} ms", took.as_millis());
        if response.starts_with("503") && took < PATIENCE / 2 {
            failed_at_once += 1;
        }
    }
    println!("{}", client.health());
    if failed_at_once < 3 {
        return Err("three requests should have failed at once".into());
    }
    Ok(())
}

/// Handles a request to a booking service, and returns the HTTP response.
fn book(client: &Client) -> String {
    match client.mutex("seat:12A").try_lock() {
        Ok(Some(_guard)) => "201 booked".into(),
        Ok(None) => "409 another request is booking this seat".into(),
        // No command was sent, so the lock was not acquired: the HTTP client can safely retry.
        Err(Error::CircuitOpen { retry_in, .. }) => {
            format!("503, Retry-After: {}", retry_in.as_secs_f64().ceil())
        }
        Err(error) => format!("500 ({error})"),
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use leasehold::testing::Server;

    #[test]
    fn seat_is_booked_unless_another_request_books_it() {
        let server = Server::start();
        assert_eq!(book(&server.client()), "201 booked");
        let _other = server.hold("seat:12A");
        assert!(book(&server.client()).starts_with("409"));
    }

    #[test]
    fn requests_get_a_503_after_several_have_timed_out() {
        let server = Server::start();
        let client = Client::builder().url(server.url());
        let client = client.command_timeout(PATIENCE).breaker(3).build().unwrap();
        let hung = server.pause();
        assert!(book(&client).starts_with("500"));
        // Usually the fourth request gets it. On a slow machine that can be a later one: a timeout
        // counts towards the breaker only if the command had nearly all of the time.
        assert!((0..30).any(|_| book(&client).starts_with("503, Retry-After: ")));
        drop(hung);
        let guard = client.mutex("seat:12A").lock();
        assert!(guard.is_ok(), "the breaker closes");
    }
}
