//! Twelve threads in three processes move coins between four accounts. Each transfer locks two of
//! them, in any order.

use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use leasehold::{Client, MutexAllGuard};
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

const PROCESSES: usize = 3;
const THREADS: usize = 4;
const TRANSFERS: usize = 60;

const ACCOUNTS: [&str; 4] = ["Ada", "Ben", "Cleo", "Dan"];
const OPENING_BALANCE: i64 = 100;

/// Calls `bank`, with a private Redis unless `REDIS_URL` is set. Your own program would not
/// need this.
fn main() -> ExitCode {
    run(bank, &[("clerks", clerks)])
}

/// Runs in each of the three processes.
fn clerks() -> Outcome {
    let client = Client::from_env()?;
    thread::scope(|scope| {
        let clerks: Vec<_> = (0..THREADS)
            .map(|_| scope.spawn(|| clerk(&client)))
            .collect();
        clerks
            .into_iter()
            .try_for_each(|clerk| clerk.join().expect("no clerk panics"))
    })
}

fn clerk(client: &Client) -> Outcome {
    let mut connection = connect()?;
    for _ in 0..TRANSFERS {
        let mut rng = rand::rng();
        let from = rng.random_range(0..ACCOUNTS.len());
        let to = (from + rng.random_range(1..ACCOUNTS.len())) % ACCOUNTS.len();
        let (from, to) = (ACCOUNTS[from], ACCOUNTS[to]);
        let amount = rng.random_range(1..=20);
        // One clerk moves coins from Ada to Ben, another from Ben to Ada. They cannot deadlock:
        // whatever the order here, `mutex_all` waits for names in ascending order.
        client
            .mutex_all([from, to])
            .with_result(|guard| transfer(&mut connection, guard, from, to, amount))?;
    }
    Ok(())
}

/// Moves `amount`, or less if the balance is lower.
///
/// The locks keep other clerks out of both accounts between the first `GET` and the last `SET`.
fn transfer(
    connection: &mut redis::Connection,
    guard: &MutexAllGuard,
    from: &str,
    to: &str,
    amount: i64,
) -> RedisResult<()> {
    let (from_balance, to_balance) = (
        connection.get::<_, i64>(key(from))?,
        connection.get::<_, i64>(key(to))?,
    );
    let amount = amount.min(from_balance);
    // All or nothing: coins must not vanish if the process dies in between.
    let mut changes = redis::pipe();
    changes.atomic();
    for (account, balance) in [(from, from_balance - amount), (to, to_balance + amount)] {
        let token = guard.fencing_token_of(account).map(u64::from);
        changes
            .set(key(account), balance)
            .rpush(tokens_key(account), token);
    }
    changes.exec(connection)
}

/// The key of a list: the fencing token of each change of the account, in the order of the changes.
fn tokens_key(account: &str) -> String {
    key(&format!("{account}:tokens"))
}

fn bank() -> Outcome {
    let mut connection = connect()?;
    for account in ACCOUNTS {
        let () = connection.set(key(account), OPENING_BALANCE)?;
    }
    println!(
        "Four accounts with {OPENING_BALANCE} coins each, {PROCESSES} processes of \
         {THREADS} clerks."
    );
    let began = Instant::now();
    let processes = (0..PROCESSES)
        .map(|_| Child::spawn("clerks"))
        .collect::<Outcome<Vec<_>>>()?;
    for mut clerks in processes {
        let status = clerks.process.wait()?;
        assert!(status.success(), "a process of clerks failed");
    }
    let took = began.elapsed();

    let mut sum = 0;
    for account in ACCOUNTS {
        let balance: i64 = connection.get(key(account))?;
        let tokens: Vec<u64> = connection.lrange(tokens_key(account), 0, -1)?;
        println!(
            "  {account} has {balance} coins after {} transfers.",
            tokens.len()
        );
        assert!(balance >= 0, "an account was overdrawn");
        assert!(
            tokens.is_sorted_by(|earlier, later| earlier < later),
            "a later holder did not have a higher token"
        );
        sum += balance;
    }
    let transfers = PROCESSES * THREADS * TRANSFERS;
    println!("{sum} coins in all, after {transfers} transfers in {took:.1?}.");
    assert_eq!(
        sum,
        ACCOUNTS.len() as i64 * OPENING_BALANCE,
        "coins were lost or created"
    );
    println!("No coin was lost, and no clerk deadlocked.");
    Ok(())
}
