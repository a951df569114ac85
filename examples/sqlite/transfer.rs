//! A transfer between two accounts of a database. A clerk is overtaken in the middle, comes back
//! late, and is rejected.
//!
//! ```sh
//! cargo run --manifest-path examples/sqlite/Cargo.toml
//! ```

use std::error::Error;

use leasehold::testing::Server;
use leasehold::{MutexAll, MutexAllGuard, WithError};
use rusqlite::{Connection, Transaction, TransactionBehavior};

const TABLE: &str = "
    CREATE TABLE account (
      name TEXT PRIMARY KEY,
      balance INTEGER NOT NULL CHECK (balance >= 0),
      fence INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    INSERT INTO account (name, balance) VALUES ('Ada', 100), ('Ben', 100), ('Cleo', 100);
";

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Moved,
    /// The balance is too low.
    TooLow,
    /// A later holder of one of the locks was here: nothing was moved.
    Overtaken,
}

/// Claims the row of every name that the guard holds, each with the token of that name.
///
/// Returns false if a later holder has claimed one of them. Then the transaction must be rolled
/// back.
fn claim(transaction: &Transaction, guard: &MutexAllGuard) -> rusqlite::Result<bool> {
    for name in guard.names() {
        let token = guard.fencing_token_of(name);
        let token = token.expect("the guard holds each of its names");
        let changed = transaction.execute(
            "UPDATE account SET fence = ?1 WHERE name = ?2 AND fence <= ?1",
            (i64::from(token), name.as_str()),
        )?;
        if changed != 1 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Moves `amount` in one transaction, which claims first, then reads, then writes.
fn transfer(
    database: &mut Connection,
    guard: &MutexAllGuard,
    [from, to]: [&str; 2],
    amount: i64,
) -> rusqlite::Result<Answer> {
    // Dropping the transaction rolls it back.
    let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if !claim(&transaction, guard)? {
        return Ok(Answer::Overtaken);
    }
    let balance: i64 = transaction.query_row(
        "SELECT balance FROM account WHERE name = ?1",
        [from],
        |row| row.get(0),
    )?;
    if balance < amount {
        return Ok(Answer::TooLow);
    }
    for (name, change) in [(from, -amount), (to, amount)] {
        transaction.execute(
            "UPDATE account SET balance = balance + ?1 WHERE name = ?2",
            (change, name),
        )?;
    }
    transaction.commit()?;
    Ok(Answer::Moved)
}

/// Locks both accounts, calls `pause`, which may take long, and transfers.
fn lock_and_transfer(
    lock: &MutexAll,
    database: &mut Connection,
    names: [&str; 2],
    amount: i64,
    pause: impl FnOnce(),
) -> Result<Answer, Box<dyn Error>> {
    let outcome = lock.with(|guard| {
        pause();
        transfer(database, guard, names, amount)
    });
    // If a lock was lost, the database has decided. What is committed counts, and must not be
    // repeated.
    Ok(outcome.or_else(WithError::into_value)??)
}

fn sum(database: &Connection) -> rusqlite::Result<i64> {
    database.query_row("SELECT sum(balance) FROM account", [], |row| row.get(0))
}

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::temp_dir().join(format!("leasehold-{}.db", std::process::id()));
    let outcome = story(&file);
    std::fs::remove_file(&file)?;
    outcome
}

fn story(file: &std::path::Path) -> Result<(), Box<dyn Error>> {
    // The server of the test kit, in this process: it ends the lease when the story needs it. Your
    // program has a `Client` for its Redis.
    let server = Server::start();
    let (late, later) = (server.client(), server.client());
    let (mut database, mut other) = (Connection::open(file)?, Connection::open(file)?);
    database.execute_batch(TABLE)?;
    println!("Ada, Ben and Cleo have 100 coins each.");

    let names = ["Ada", "Ben"];
    let answer = lock_and_transfer(&late.mutex_all(names), &mut database, names, 10, || {
        println!("A clerk has locked Ada and Ben, and is stopped. Its lease ends.");
        // The client then releases the other name.
        server.lose(names[0]);
        // This clerk locks only one of the two.
        let names = ["Ben", "Cleo"];
        let answer = lock_and_transfer(&later.mutex_all(names), &mut other, names, 30, || {});
        println!("Another clerk moves 30 coins from Ben to Cleo: {answer:?}.");
    })?;
    println!("The first clerk comes back, and moves 10 coins from Ada to Ben: {answer:?}.");
    let sum = sum(&database)?;
    println!("{sum} coins in all.");
    assert_eq!((answer, sum), (Answer::Overtaken, 300));
    Ok(())
}

#[cfg(test)]
mod tests;
