//! Twelve threads in three processes move coins between four accounts. Each transfer locks two of
//! them, in any order. Then a clerk is stopped in the middle of a transfer, comes back after
//! another one, and is rejected. `examples/sqlite` in the repository does the same with a database.

use std::io;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, MutexAll, MutexAllGuard, WithError};
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

const PROCESSES: usize = 3;
const THREADS: usize = 4;
const TRANSFERS: usize = 60;

const ACCOUNTS: [&str; 4] = ["Ada", "Ben", "Cleo", "Dan"];
const OPENING_BALANCE: i64 = 100;

/// Calls `bank`, with a private Redis unless `REDIS_URL` is set. Your own program would not
/// need this.
fn main() -> ExitCode {
    run(bank, &[("clerks", clerks), ("late clerk", late_clerk)])
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
    let mut accounts = Accounts(connect()?);
    for _ in 0..TRANSFERS {
        let mut rng = rand::rng();
        let from = rng.random_range(0..ACCOUNTS.len());
        let to = (from + rng.random_range(1..ACCOUNTS.len())) % ACCOUNTS.len();
        let names = [ACCOUNTS[from], ACCOUNTS[to]];
        let amount = rng.random_range(1..=20);
        // One clerk moves coins from Ada to Ben, another from Ben to Ada. They cannot deadlock:
        // whatever the order here, `mutex_all` waits for names in ascending order.
        let both = client.mutex_all(names);
        let moved = lock_and_transfer(&both, &mut accounts, names, amount, || {})?;
        assert!(moved, "no clerk is stopped here");
    }
    Ok(())
}

/// Moves `amount`, or less if the balance is lower, after `confirm`, which may take long. Returns
/// false if a later holder of one of the locks was here: then nothing was moved.
///
/// The locks keep other clerks out of both accounts between the read and the write. If the locks
/// are lost in between, the table rejects the write. It compares the token of each account:
/// another clerk may have locked only one of the two since.
fn transfer(
    accounts: &mut Accounts,
    guard: &MutexAllGuard,
    [from, to]: [&str; 2],
    amount: i64,
    confirm: impl FnOnce(),
) -> RedisResult<bool> {
    let rows = [from, to].map(|name| {
        let token = guard.fencing_token_of(name);
        (name, token.expect("the guard holds both names"))
    });
    let Some([from_balance, to_balance]) = accounts.claim(rows)? else {
        return Ok(false);
    };
    let amount = amount.min(from_balance);
    confirm();
    accounts.write(rows, [from_balance - amount, to_balance + amount])
}

/// Locks both accounts, and transfers.
fn lock_and_transfer(
    lock: &MutexAll,
    accounts: &mut Accounts,
    names: [&str; 2],
    amount: i64,
    confirm: impl FnOnce(),
) -> Outcome<bool> {
    let outcome = lock.with(|guard| transfer(accounts, guard, names, amount, confirm));
    // If a lock was lost, the table has decided. What it has written counts, and must not be
    // repeated.
    Ok(outcome.or_else(WithError::into_value)??)
}

fn bank() -> Outcome {
    many_clerks()?;
    stopped_clerk()
}

/// Runs in a process of its own, which is stopped before it confirms.
fn late_clerk() -> Outcome {
    // Short, so that the run is: the default is 10 s.
    let both = Client::from_env()?.mutex_all(["Ada", "Ben"]);
    let both = both.ttl(Duration::from_secs(1));
    let moved = lock_and_transfer(&both, &mut Accounts(connect()?), ["Ada", "Ben"], 10, || {
        println!("has read the balances");
        io::stdin().lines().next();
    })?;
    println!("{moved}");
    Ok(())
}

fn stopped_clerk() -> Outcome {
    let mut accounts = Accounts(connect()?);
    for account in ACCOUNTS {
        accounts.open(account, OPENING_BALANCE)?;
    }
    let mut late = Child::spawn("late clerk")?;
    late.next().ok_or("the late clerk has ended early")??;
    stop(&late)?;
    println!("A clerk has locked Ada and Ben, has read 100 coins each, and is stopped.");

    // This clerk locks only one of the two.
    let names = ["Ben", "Cleo"];
    let both = Client::from_env()?.mutex_all(names);
    let moved = lock_and_transfer(&both, &mut accounts, names, 30, || {})?;
    println!("  Its lease ends. Another clerk moves 30 coins from Ben to Cleo: {moved}.");
    assert!(moved);

    go_on(&mut late)?;
    let moved = late.next().ok_or("the late clerk has ended early")??;
    println!("  It comes back, and moves 10 coins from Ada to Ben with its old tokens: {moved}.");
    assert_eq!(moved, "false");
    let mut sum = 0;
    for account in ACCOUNTS {
        sum += accounts.balance(account)?;
    }
    println!("  {sum} coins in all. If the table compared Ada's token only, it would be 430.");
    assert_eq!(sum, ACCOUNTS.len() as i64 * OPENING_BALANCE);
    assert_eq!(accounts.balance("Ben")?, OPENING_BALANCE - 30);
    Ok(())
}

fn many_clerks() -> Outcome {
    let mut accounts = Accounts(connect()?);
    for account in ACCOUNTS {
        accounts.open(account, OPENING_BALANCE)?;
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
        let balance = accounts.balance(account)?;
        println!("  {account} has {balance} coins.");
        assert!(balance >= 0, "an account was overdrawn");
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

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use leasehold::testing::Server;

    /// Returns the table, with 100 coins in each account, and another connection to it.
    fn accounts(server: &Server) -> (Accounts, Accounts) {
        let connect = || redis::Client::open(server.url()).unwrap().get_connection();
        let [mut one, other] = [connect, connect].map(|connect| Accounts(connect().unwrap()));
        for account in ACCOUNTS {
            one.open(account, 100).unwrap();
        }
        (one, other)
    }

    /// Ends the lease of a set, whose client then releases the other name.
    fn lose(server: &Server, names: [&str; 2]) {
        server.lose(names[0]);
    }

    fn balances(accounts: &mut Accounts) -> [i64; 4] {
        ACCOUNTS.map(|account| accounts.balance(account).unwrap())
    }

    #[test]
    fn clerk_that_confirms_after_a_later_transfer_of_one_account_is_rejected() {
        for late_names in [["Ada", "Ben"], ["Ben", "Ada"]] {
            let server = Server::start();
            let (mut accounts, mut others) = accounts(&server);
            let both = server.client().mutex_all(late_names);
            let late = lock_and_transfer(&both, &mut accounts, late_names, 10, || {
                lose(&server, late_names);
                let names = ["Ben", "Cleo"];
                let both = server.client().mutex_all(names);
                assert!(lock_and_transfer(&both, &mut others, names, 30, || {}).unwrap());
            });
            assert!(!late.unwrap());
            assert_eq!(balances(&mut accounts), [100, 70, 130, 100]);
        }
    }

    #[test]
    fn clerk_that_confirms_in_the_middle_of_a_later_transfer_is_rejected() {
        for late_names in [["Ada", "Ben"], ["Ben", "Ada"]] {
            let server = Server::start();
            let (mut accounts, mut others) = accounts(&server);
            let guard = server.client().mutex_all(late_names).lock().unwrap();
            let late = late_names.map(|name| (name, guard.fencing_token_of(name).unwrap()));
            assert_eq!(accounts.claim(late).unwrap(), Some([100, 100]));
            lose(&server, late_names);
            let names = ["Ben", "Cleo"];
            let both = server.client().mutex_all(names);
            let later = lock_and_transfer(&both, &mut others, names, 30, || {
                let written = accounts.write(late, [90, 110]).unwrap();
                assert!(!written, "the later holder has claimed one of the rows");
            });
            assert!(later.unwrap());
            assert_eq!(balances(&mut accounts), [100, 70, 130, 100]);
            assert_eq!(accounts.claim(late).unwrap(), None);
        }
    }
}
