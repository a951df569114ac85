//! Sixteen threads in four processes withdraw from one account, whose balance is a plain key in
//! Redis.

use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use leasehold::{Client, Mutex};
use rand::RngExt;
use redis::{Commands, RedisResult};

use support::child::Child;
use support::data::{connect, key};
use support::run::{Outcome, run};

mod support {
    pub(crate) mod child;
    pub(crate) mod data;
    pub(crate) mod run;
}

const PROCESSES: usize = 4;
const THREADS: usize = 4;
const WITHDRAWALS: usize = 100;

/// Less than all customers together ask for, so that some withdrawals are refused.
const OPENING_BALANCE: i64 = 12_000;

/// Calls `bank`, with a private Redis unless `REDIS_URL` is set. Your own program would not
/// need this.
fn main() -> ExitCode {
    run(bank, &[("cash machine", cash_machine)])
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
    let account = client.mutex("account 42");
    let mut connection = connect()?;
    let mut tally = Tally::default();
    for _ in 0..WITHDRAWALS {
        let amount = rand::rng().random_range(1..=20);
        if withdraw(&account, &mut connection, amount)? {
            tally.paid += 1;
            tally.coins += amount;
        } else {
            tally.refused += 1;
        }
    }
    Ok(tally)
}

/// Withdraws `amount`; returns false if the balance is too low.
///
/// The lock keeps other customers out between the `GET` and the `SET`.
fn withdraw(account: &Mutex, connection: &mut redis::Connection, amount: i64) -> Outcome<bool> {
    let paid = account.with_result(|_| -> RedisResult<bool> {
        let balance: i64 = connection.get(key("balance"))?;
        let enough = balance >= amount;
        if enough {
            let () = connection.set(key("balance"), balance - amount)?;
        }
        Ok(enough)
    })?;
    Ok(paid)
}

fn bank() -> Outcome {
    println!(
        "An account with {OPENING_BALANCE} coins, {PROCESSES} processes of {THREADS} threads each."
    );
    let () = connect()?.set(key("balance"), OPENING_BALANCE)?;

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

    let balance: i64 = connect()?.get(key("balance"))?;
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
