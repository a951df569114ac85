//! A booking service, and its tests, which need no Redis.
//!
//! ```sh
//! cargo test --features testing --example testing
//! ```

use std::collections::BTreeMap;
use std::sync::Mutex;

use leasehold::testing::Server;
use leasehold::{Client, Error, FencingToken, MutexGuard};

/// The booked seats of a train, each with its passenger.
///
/// The seats stand for a database. Each read and write carries the fencing token of its lock. A
/// write is rejected if its token is lower than the highest that the seat has seen.
#[derive(Default)]
struct Train {
    seats: Mutex<BTreeMap<String, Seat>>,
}

#[derive(Default)]
struct Seat {
    guest: Option<String>,
    highest_token: Option<FencingToken>,
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Booked,
    /// The seat is booked already.
    Taken,
    /// Another request is booking the seat.
    Busy,
    /// The lock was lost: nothing was booked, and the payment must be returned.
    Cancelled,
    /// Redis is unreachable: nothing was booked, and the guest may try again.
    Unavailable,
}

impl Train {
    /// Books a seat. `pay` takes a while, and may stop early if the guard reports a loss.
    fn book(
        &self,
        client: &Client,
        seat: &str,
        guest: &str,
        pay: impl FnOnce(&MutexGuard),
    ) -> Answer {
        match self.try_book(client, seat, guest, pay) {
            Ok(answer) => answer,
            Err(Error::Lost(_)) => Answer::Cancelled,
            Err(_) => Answer::Unavailable,
        }
    }

    fn try_book(
        &self,
        client: &Client,
        seat: &str,
        guest: &str,
        pay: impl FnOnce(&MutexGuard),
    ) -> Result<Answer, Error> {
        let Ok(guard) = client.mutex(seat).try_lock()? else {
            return Ok(Answer::Busy);
        };
        if self.read(seat, guard.fencing_token()).is_some() {
            return Ok(Answer::Taken);
        }
        pay(&guard);
        guard.ensure_held()?;
        Ok(self.write(seat, guest, guard.fencing_token()))
    }

    /// Returns the guest of the seat. From now on, an earlier holder's late write is rejected.
    fn read(&self, seat: &str, token: FencingToken) -> Option<String> {
        let mut seats = self.seats.lock().unwrap();
        let seat = seats.entry(seat.to_owned()).or_default();
        seat.highest_token = seat.highest_token.max(Some(token));
        seat.guest.clone()
    }

    fn write(&self, seat: &str, guest: &str, token: FencingToken) -> Answer {
        let mut seats = self.seats.lock().unwrap();
        let seat = seats.entry(seat.to_owned()).or_default();
        if seat.highest_token > Some(token) {
            return Answer::Cancelled;
        }
        seat.guest = Some(guest.to_owned());
        seat.highest_token = Some(token);
        Answer::Booked
    }
}

fn main() {
    let (server, train) = (Server::start(), Train::default());
    let answer = train.book(&server.client(), "12A", "Ada", |_| {});
    println!("Ada asks for seat 12A: {answer:?}.");
    let answer = train.book(&server.client(), "12A", "Ben", |_| {});
    println!("Ben asks for seat 12A: {answer:?}.");
    assert_eq!(answer, Answer::Taken);
    println!("The tests of this service: cargo test --features testing --example testing");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use leasehold::testing;

    impl Train {
        fn guest(&self, seat: &str) -> Option<String> {
            self.seats.lock().unwrap().get(seat)?.guest.clone()
        }
    }

    #[test]
    fn free_seat_is_booked() {
        let (server, train) = (Server::start(), Train::default());
        let client = server.client();
        assert_eq!(train.book(&client, "12A", "Ada", |_| {}), Answer::Booked);
        assert_eq!(train.book(&client, "12A", "Ben", |_| {}), Answer::Taken);
        assert_eq!(train.guest("12A").as_deref(), Some("Ada"));
        assert!(!server.is_locked("12A"));
    }

    #[test]
    fn seat_that_somebody_else_is_booking_is_busy() {
        let (server, train) = (Server::start(), Train::default());
        let _somebody = server.hold("12A");
        let answer = train.book(&server.client(), "12A", "Ada", |_| unreachable!());
        assert_eq!(answer, Answer::Busy);
    }

    #[test]
    fn booking_whose_lock_is_lost_is_cancelled() {
        let (server, train) = (Server::start(), Train::default());
        let answer = train.book(&server.client(), "12A", "Ada", |guard| {
            server.lose("12A");
            // A slow payment would wait for its own completion as well, with `select!`.
            guard.lost().recv().unwrap();
        });
        assert_eq!(answer, Answer::Cancelled);
        assert_eq!(train.guest("12A"), None);
    }

    #[test]
    fn late_write_of_an_earlier_holder_is_rejected() {
        let train = Train::default();
        let [early, late] = [7, 8].map(testing::fencing_token);
        assert_eq!(train.read("12A", early), None);
        assert_eq!(train.read("12A", late), None);
        assert_eq!(train.write("12A", "Ada", early), Answer::Cancelled);
        assert_eq!(train.write("12A", "Ben", late), Answer::Booked);
        assert_eq!(train.write("12A", "Ada", early), Answer::Cancelled);
        assert_eq!(train.guest("12A").as_deref(), Some("Ben"));
    }

    #[test]
    fn nothing_is_booked_while_redis_is_unreachable() {
        let (server, train) = (Server::start(), Train::default());
        let timeout = Duration::from_millis(100);
        let client = Client::builder().url(server.url()).command_timeout(timeout);
        let client = client.build().unwrap();
        let outage = server.cut();
        let answer = train.book(&client, "12A", "Ada", |_| unreachable!());
        assert_eq!(answer, Answer::Unavailable);
        drop(outage);
        assert_eq!(
            train.book(&server.client(), "12A", "Ada", |_| {}),
            Answer::Booked
        );
    }

    #[test]
    fn seat_of_a_crashed_request_is_free_after_its_ttl() {
        let (server, train) = (Server::start(), Train::default());
        let client = server.client();
        server.hold("12A").forget();
        assert_eq!(train.book(&client, "12A", "Ada", |_| {}), Answer::Busy);
        server.advance(Duration::from_secs(10));
        assert_eq!(train.book(&client, "12A", "Ada", |_| {}), Answer::Booked);
    }

    #[test]
    fn two_requests_for_a_seat_book_it_once() {
        let (server, train) = (Server::start(), Train::default());
        let client = server.client();
        let answer = train.book(&client, "12A", "Ada", |_| {
            let second = train.book(&client, "12A", "Ben", |_| unreachable!());
            assert_eq!(second, Answer::Busy);
        });
        assert_eq!(answer, Answer::Booked);
    }
}
