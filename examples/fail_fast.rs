//! A service while Redis hangs: every request gets a 503 with a `Retry-After`, the first ones after
//! a timeout, the later ones at once. A seat that another request books is a 409 that says who.

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
        assert!(response.starts_with("503"), "{response}");
        if took < PATIENCE / 2 {
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
        Ok(Ok(_guard)) => "201 booked".into(),
        // The text names the holder, without a second request.
        Ok(Err(taken)) => format!("409 {taken}"),
        // The lock was not acquired, and nothing was booked: the HTTP client can safely retry.
        Err(error) if error.is_unreachable() => {
            let seconds = match error {
                Error::CircuitOpen { retry_in, .. } => retry_in.as_secs_f64().ceil(),
                _ => 1.0,
            };
            format!("503, Retry-After: {seconds}")
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
        let response = book(&server.client());
        assert!(
            response.starts_with("409 seat:12A is held by "),
            "{response}"
        );
    }

    #[test]
    fn all_requests_get_a_503_while_redis_hangs_and_the_later_ones_at_once() {
        let server = Server::start();
        let client = Client::builder().url(server.url());
        let client = client.command_timeout(PATIENCE).breaker(3).build().unwrap();
        let hung = server.pause();
        // Usually the fourth request fails at once. On a slow machine that can be a later one: a
        // timeout counts towards the breaker only if the command had nearly all of the time.
        let failed_at_once = (0..30).any(|_| {
            let began = Instant::now();
            let response = book(&client);
            assert!(response.starts_with("503, Retry-After: "), "{response}");
            began.elapsed() < PATIENCE / 2
        });
        assert!(failed_at_once);
        drop(hung);
        let guard = client.mutex("seat:12A").lock();
        assert!(guard.is_ok(), "the breaker closes");
    }
}
