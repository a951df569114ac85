//! Sixteen threads in four processes withdraw from one account. Then a customer is stopped in the
//! middle of a withdrawal, comes back after another one, and is rejected.

use std::io;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Mutex, WithError};
use rand::RngExt;
use redis::RedisResult;

use support::accounts::Accounts;
use support::child::Child;
use support::data::connect;
use support::run::{Outcome, run};
use support::stop::{go_on, stop};

mod support {
    pub(crate) mod accounts;
    pub(crate) mod child;
    pub(crate) mod data;
    pub(crate) mod run;
    pub(crate) mod stop;
}

const ACCOUNT: &str = "account 42";

const PROCESSES: usize = 4;
const THREADS: usize = 4;
const WITHDRAWALS: usize = 100;

/// Less than all customers together ask for, so that some withdrawals are refused.
const OPENING_BALANCE: i64 = 12_000;

/// Calls `bank`, with a private Redis unless `REDIS_URL` is set. Your own program would not
/// need this.
fn main() -> ExitCode {
    run(
        bank,
        &[
            ("cash machine", cash_machine),
            ("late customer", late_customer),
        ],
    )
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Paid,
    /// The balance is too low.
    TooLow,
    /// A later holder of the lock was here: nothing was paid.
    Overtaken,
}

/// Runs in each of the four processes.
fn cash_machine() -> Outcome {
    let client = Client::from_env()?;
    let tally = thread::scope(|scope| {
        let customers: Vec<_> = (0..THREADS)
            .map(|_| scope.spawn(|| customer(&client)))
            .collect();
        customers
            .into_iter()
            .map(|customer| customer.join().expect("no customer panics"))
            .try_fold(Tally::default(), |sum, tally| {
                tally.map(|tally| sum + tally)
            })
    })?;
    println!("{} {} {}", tally.coins, tally.paid, tally.refused);
    Ok(())
}

fn customer(client: &Client) -> Outcome<Tally> {
    let account = client.mutex(ACCOUNT);
    let mut accounts = Accounts(connect()?);
    let mut tally = Tally::default();
    for _ in 0..WITHDRAWALS {
        let amount = rand::rng().random_range(1..=20);
        match withdraw(&account, &mut accounts, amount, || {})? {
            Answer::Paid => {
                tally.paid += 1;
                tally.coins += amount;
            }
            Answer::TooLow | Answer::Overtaken => tally.refused += 1,
        }
    }
    Ok(tally)
}

/// Withdraws `amount`, after `confirm`, which may take long.
///
/// The lock keeps other customers out between the read and the write. If the lock is lost in
/// between, the table rejects the write.
fn withdraw(
    account: &Mutex,
    accounts: &mut Accounts,
    amount: i64,
    confirm: impl FnOnce(),
) -> Outcome<Answer> {
    let outcome = account.with(|guard| -> RedisResult<Answer> {
        let row = (ACCOUNT, guard.fencing_token());
        let Some([balance]) = accounts.claim([row])? else {
            return Ok(Answer::Overtaken);
        };
        if balance < amount {
            return Ok(Answer::TooLow);
        }
        confirm();
        let paid = accounts.write([row], [balance - amount])?;
        Ok(if paid {
            Answer::Paid
        } else {
            Answer::Overtaken
        })
    });
    // If the lock was lost, the table has decided. What it has written counts, and must not be
    // repeated.
    Ok(outcome.or_else(WithError::into_value)??)
}

fn bank() -> Outcome {
    many_customers()?;
    stopped_customer()
}

/// Runs in a process of its own, which is stopped before it confirms.
fn late_customer() -> Outcome {
    // Short, so that the run is: the default is 10 s.
    let account = Client::from_env()?.mutex(ACCOUNT);
    let account = account.ttl(Duration::from_secs(1));
    let answer = withdraw(&account, &mut Accounts(connect()?), 10, || {
        println!("has read the balance");
        io::stdin().lines().next();
    })?;
    println!("{answer:?}");
    Ok(())
}

fn stopped_customer() -> Outcome {
    let mut accounts = Accounts(connect()?);
    accounts.open(ACCOUNT, 100)?;
    let mut late = Child::spawn("late customer")?;
    late.next().ok_or("the late customer has ended early")??;
    stop(&late)?;
    println!("A customer with the lock has read a balance of 100 coins, and is stopped.");

    let account = Client::from_env()?.mutex(ACCOUNT);
    let answer = withdraw(&account, &mut accounts, 30, || {})?;
    println!("  Its lease ends. Another customer asks for 30 coins: {answer:?}.");
    assert_eq!(answer, Answer::Paid);

    go_on(&mut late)?;
    let answer = late.next().ok_or("the late customer has ended early")??;
    println!("  It comes back, and writes 90 coins with its old token: {answer}.");
    assert_eq!(answer, "Overtaken");
    let balance = accounts.balance(ACCOUNT)?;
    println!(
        "  {balance} coins are left. Without tokens 90 would be left, although 40 of 100 were paid."
    );
    assert_eq!(balance, 70);
    Ok(())
}

fn many_customers() -> Outcome {
    println!(
        "An account with {OPENING_BALANCE} coins, {PROCESSES} processes of {THREADS} threads each."
    );
    let mut accounts = Accounts(connect()?);
    accounts.open(ACCOUNT, OPENING_BALANCE)?;

    let began = Instant::now();
    let machines = (0..PROCESSES)
        .map(|_| Child::spawn("cash machine"))
        .collect::<Outcome<Vec<_>>>()?;
    let mut total = Tally::default();
    for (n, mut machine) in (1..).zip(machines) {
        let line = machine.next().ok_or("a cash machine has ended early")??;
        let tally = Tally::read(&line).ok_or("a cash machine did not report three numbers")?;
        println!(
            "  Process {n} paid {} coins in {} withdrawals and refused {}.",
            tally.coins, tally.paid, tally.refused
        );
        total = total + tally;
        assert!(machine.process.wait()?.success());
    }
    let took = began.elapsed();

    let balance = accounts.balance(ACCOUNT)?;
    println!(
        "{OPENING_BALANCE} - {} = {balance}: {balance} coins are left, \
         after {} requests in {took:.1?}.",
        total.coins,
        total.paid + total.refused,
    );
    assert_eq!(
        total.paid + total.refused,
        PROCESSES * THREADS * WITHDRAWALS
    );
    assert!(balance >= 0, "the account was overdrawn");
    assert_eq!(
        balance,
        OPENING_BALANCE - total.coins,
        "coins were lost or created"
    );
    println!("Exact, and never below zero.");
    Ok(())
}

#[derive(Clone, Copy, Default)]
struct Tally {
    coins: i64,
    paid: usize,
    refused: usize,
}

impl Tally {
    fn read(line: &str) -> Option<Self> {
        let mut numbers = line.split(' ');
        Some(Self {
            coins: numbers.next()?.parse().ok()?,
            paid: numbers.next()?.parse().ok()?,
            refused: numbers.next()?.parse().ok()?,
        })
    }
}

impl std::ops::Add for Tally {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            coins: self.coins + other.coins,
            paid: self.paid + other.paid,
            refused: self.refused + other.refused,
        }
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use leasehold::testing::Server;

    /// Returns the table, with 100 coins in the account, and another connection to it.
    fn accounts(server: &Server) -> (Accounts, Accounts) {
        let connect = || redis::Client::open(server.url()).unwrap().get_connection();
        let [mut one, other] = [connect, connect].map(|connect| Accounts(connect().unwrap()));
        one.open(ACCOUNT, 100).unwrap();
        (one, other)
    }

    #[test]
    fn customer_that_confirms_after_a_later_one_is_rejected() {
        let server = Server::start();
        let account = server.client().mutex(ACCOUNT);
        let (mut accounts, mut others) = accounts(&server);
        let late = withdraw(&account, &mut accounts, 10, || {
            server.lose(ACCOUNT);
            let later = server.client().mutex(ACCOUNT);
            let later = withdraw(&later, &mut others, 30, || {}).unwrap();
            assert_eq!(later, Answer::Paid);
        });
        assert_eq!(late.unwrap(), Answer::Overtaken);
        assert_eq!(accounts.balance(ACCOUNT).unwrap(), 70);
    }

    #[test]
    fn customer_that_confirms_in_the_middle_of_a_later_withdrawal_is_rejected() {
        let server = Server::start();
        let (mut accounts, mut others) = accounts(&server);
        let guard = server.client().mutex(ACCOUNT).lock().unwrap();
        let late = (ACCOUNT, guard.fencing_token());
        let balances = accounts.claim([late]).unwrap();
        assert_eq!(balances, Some([100]));
        server.lose(ACCOUNT);
        let later = server.client().mutex(ACCOUNT);
        let later = withdraw(&later, &mut others, 30, || {
            let written = accounts.write([late], [90]).unwrap();
            assert!(!written, "the later holder has claimed the row");
        });
        assert_eq!(later.unwrap(), Answer::Paid);
        assert_eq!(accounts.balance(ACCOUNT).unwrap(), 70);
        assert_eq!(accounts.claim([late]).unwrap(), None);
    }

    #[test]
    fn payment_counts_although_the_lock_was_lost_meanwhile() {
        let server = Server::start();
        let account = server.client().mutex(ACCOUNT);
        let (mut accounts, _) = accounts(&server);
        let answer = withdraw(&account, &mut accounts, 10, || server.lose(ACCOUNT));
        assert_eq!(answer.unwrap(), Answer::Paid);
        assert_eq!(accounts.balance(ACCOUNT).unwrap(), 90);
    }
}
