//! A restaurant books its tables: for one guest after the other, for two at once, and after the
//! process of one has died.

use std::io;
use std::process::ExitCode;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::Client;
use redis::Commands;

use support::child::Child;
use support::data::{connect, key};
use support::run::{Outcome, run};

mod support {
    pub(crate) mod child;
    pub(crate) mod data;
    pub(crate) mod run;
}

/// The longest time for which a table stays locked after its guest's process has died.
const TTL: Duration = Duration::from_secs(2);

/// Calls `evening`, with a private Redis unless `REDIS_URL` is set. Your own program would not
/// need this.
fn main() -> ExitCode {
    run(evening, &[("guest who crashes", guest_who_crashes)])
}

fn evening() -> Outcome {
    let client = Client::from_env()?;
    let mut promised = one_after_the_other(&client)?;
    promised.push(both_at_once()?);
    promised.push(after_a_crash(&client)?);
    never_double_booked(promised)
}

fn one_after_the_other(client: &Client) -> Outcome<Vec<Booking>> {
    println!("Two guests book table 4, one after the other.");
    let mut promised = Vec::new();
    for (time, guest) in [("18:00", "Ada"), ("20:00", "Ben")] {
        let booking = Booking::new("table 4", time, guest);
        let guard = client.mutex("table 4").lock()?;
        assert!(BookingsInRedis::open()?.add(&booking)?);
        guard.unlock()?;
        println!("  {guest} has table 4 at {time}.");
        promised.push(booking);
    }
    Ok(promised)
}

fn both_at_once() -> Outcome<Booking> {
    println!("Two guests want table 7 at 19:00, at the same moment.");
    let barrier = &Barrier::new(2);
    let guests = [("Cleo", open_both()?), ("Dan", open_both()?)];
    let answers = thread::scope(|scope| {
        let guests = guests.map(|(guest, connections)| {
            scope.spawn(move || book_if_free(guest, connections, barrier))
        });
        guests.map(|guest| guest.join().expect("no guest panics"))
    });

    let mut promised = Vec::new();
    for answer in answers {
        promised.extend(answer?);
    }
    assert_eq!(promised.len(), 1, "one guest, and only one, gets the table");
    Ok(promised.remove(0))
}

/// Each guest has its own client, as if the guests were on different machines.
fn open_both() -> Outcome<(Client, BookingsInRedis)> {
    let client = Client::from_env()?;
    // Connects now, so that each guest sends only its attempt after the barrier.
    client.ping()?;
    Ok((client, BookingsInRedis::open()?))
}

fn book_if_free(
    guest: &str,
    (client, mut bookings): (Client, BookingsInRedis),
    barrier: &Barrier,
) -> Outcome<Option<Booking>> {
    barrier.wait();
    let began = Instant::now();
    let attempt = client.mutex("table 7").try_lock();
    let took = began.elapsed();
    // The guest with the lock keeps it until the other guest has a reply.
    barrier.wait();

    match attempt? {
        Ok(guard) => {
            let booking = Booking::new("table 7", "19:00", guest);
            assert!(bookings.add(&booking)?);
            guard.unlock()?;
            println!("  {guest} has table 7 at 19:00.");
            Ok(Some(booking))
        }
        Err(taken) => {
            assert_eq!(bookings.commands, 0, "{guest} did not touch the store");
            println!("  {guest} is turned away after {took:.1?}, before looking at any booking:");
            println!("  {taken}.");
            Ok(None)
        }
    }
}

fn after_a_crash(client: &Client) -> Outcome<Booking> {
    println!("A guest's process dies in the middle of booking table 9.");
    let mut eve = Child::spawn("guest who crashes")?;
    let message = eve
        .next()
        .ok_or("Eve's process ended before it held the lock")??;
    println!("  {message}");
    eve.kill()?;

    let mutex = client.mutex("table 9").ttl(TTL);
    let began = Instant::now();
    let remaining = mutex
        .inspect()?
        .and_then(|holder| holder.remaining())
        .ok_or("the lease of the killed process is gone")?;
    println!("  Eve's process is killed. Her lease has {remaining:.1?} left.");
    let guard = mutex.lock()?;
    let waited = began.elapsed();
    // Redis counts the expiry in whole milliseconds.
    assert!(
        waited + Duration::from_millis(5) >= remaining,
        "the table was given away before the lease had ended"
    );
    assert!(
        waited < TTL + Duration::from_secs(3),
        "the table became free much too late"
    );

    let booking = Booking::new("table 9", "19:00", "Finn");
    assert!(
        BookingsInRedis::open()?.add(&booking)?,
        "Eve never wrote a booking"
    );
    guard.unlock()?;
    println!("  Finn has table 9 at 19:00, after {waited:.1?}.");
    Ok(booking)
}

/// Runs in the process that is killed while it holds the lock.
fn guest_who_crashes() -> Outcome {
    let client = Client::from_env()?;
    let _guard = client.mutex("table 9").ttl(TTL).lock()?;
    println!("Eve holds table 9 and thinks about dessert.");
    // Blocks until the process is killed, or until its input ends because the parent has ended.
    io::stdin().read_line(&mut String::new())?;
    Ok(())
}

fn never_double_booked(mut promised: Vec<Booking>) -> Outcome {
    let mut store = BookingsInRedis::open()?;
    let mut stored = Vec::new();
    for table in ["table 4", "table 7", "table 9"] {
        stored.extend(store.of(table)?);
    }
    promised.sort();
    stored.sort();
    assert_eq!(
        stored, promised,
        "the stored bookings are those that the guests were promised"
    );
    stored.dedup_by_key(|booking| (booking.table.clone(), booking.time.clone()));
    assert_eq!(
        stored.len(),
        promised.len(),
        "no table is booked twice for a time"
    );
    println!("{} bookings, no table booked twice.", promised.len());
    Ok(())
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Booking {
    table: String,
    time: String,
    guest: String,
}

impl Booking {
    fn new(table: &str, time: &str, guest: &str) -> Self {
        Self {
            table: table.to_owned(),
            time: time.to_owned(),
            guest: guest.to_owned(),
        }
    }
}

/// The bookings. Each table is a key, with a value such as `18:00 Ada, 20:00 Ben`.
///
/// To add a booking, the client reads the value, changes it and writes it back. Without the lock,
/// two guests could both find the table free.
struct BookingsInRedis {
    connection: redis::Connection,
    /// How many commands were sent.
    commands: u32,
}

impl BookingsInRedis {
    fn open() -> Outcome<Self> {
        Ok(Self {
            connection: connect()?,
            commands: 0,
        })
    }

    fn of(&mut self, table: &str) -> Outcome<Vec<Booking>> {
        self.commands += 1;
        let text: Option<String> = self.connection.get(key(table))?;
        Ok(text
            .iter()
            .flat_map(|text| text.split(", "))
            .filter_map(|entry| entry.split_once(' '))
            .map(|(time, guest)| Booking::new(table, time, guest))
            .collect())
    }

    /// Adds a booking; returns false if the table is taken at that time.
    fn add(&mut self, booking: &Booking) -> Outcome<bool> {
        let mut bookings = self.of(&booking.table)?;
        if bookings.iter().any(|other| other.time == booking.time) {
            return Ok(false);
        }
        // The restaurant types a name and a telephone number. Without the lock, another guest could
        // take the table meanwhile.
        thread::sleep(Duration::from_millis(100));
        bookings.push(booking.clone());
        let entries: Vec<String> = bookings
            .iter()
            .map(|booking| format!("{} {}", booking.time, booking.guest))
            .collect();
        self.commands += 1;
        let () = self
            .connection
            .set(key(&booking.table), entries.join(", "))?;
        Ok(true)
    }
}
