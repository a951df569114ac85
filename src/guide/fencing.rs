//! How a resource rejects the writes of a holder that was overtaken.
//!
//! A process can be paused for longer than its lease after it has checked the lock and before it
//! writes. Then another holder may have written in between, and no lock can prevent it. The
//! resource can. Every exclusive holder has a [fencing token](crate::FencingToken), which is higher
//! than all earlier ones. Store the token with the data, and compare it before each read and write.
//!
#![doc = include_str!("../../docs/lost_lease.svg")]
//!
//! # In a database
//!
//! Every transaction under the lock has three steps, in this order:
//!
//! 1. **Claim every row that the lock protects**, each with the token of its own name. Every claim
//!    must change exactly one row. If one does not, roll back: a later holder was here, or the row
//!    does not exist. One row is not enough for a set, because another holder may have locked only
//!    one of its names since.
//! 2. Read.
//! 3. Write, and commit.
//!
//! ```sql
//! -- once: ALTER TABLE account ADD COLUMN fence bigint NOT NULL DEFAULT 0;
//! BEGIN;
//! -- 1. Claim. For every name of the guard, with its own token: 1 row changed, or ROLLBACK.
//! UPDATE account SET fence = :token WHERE name = :name AND fence <= :token;
//! -- 2. Read.
//! SELECT balance FROM account WHERE name = :from;
//! -- 3. Write.
//! UPDATE account SET balance = balance - :amount WHERE name = :from;
//! UPDATE account SET balance = balance + :amount WHERE name = :to;
//! COMMIT;
//! ```
//!
//! Three rules for what is around the transaction. Without the first two, a holder reads old data,
//! even if no lock is ever lost:
//!
//! - **Begin the transaction after the lock, and commit it before the unlock.** Declare the guard
//!   first: Rust drops it last. In a trial, an unlock before the commit lost 119 of 160 payments.
//! - **Read from the primary.** Reads from a replica that was 50 ms behind lost 158 of the 160. The
//!   claim does not help: it succeeds on the primary while the replica still shows the data from
//!   before the last holder. With it, 157 were lost.
//! - **Take the database connection after the lock.** Otherwise the calls that wait for the lock
//!   occupy the connections of the pool, and the holder gets none.
//!
//! The tokens of a set are those of
//! [`fencing_token_of`](crate::MutexAllGuard::fencing_token_of), one for each name. With
//! `rusqlite`, or any other driver that reports how many rows a statement changed:
//!
//! ```
//! # struct Transaction;
//! # impl Transaction {
//! #     fn execute(&self, _: &str, _: (i64, Option<&str>)) -> Result<usize, leasehold::Error> {
//! #         Ok(1)
//! #     }
//! # }
//! # #[derive(Debug)]
//! # struct Overtaken;
//! # impl From<leasehold::Error> for Overtaken {
//! #     fn from(_: leasehold::Error) -> Self { Self }
//! # }
//! # let transaction = Transaction;
//! # let server = leasehold::testing::Server::start();
//! # let client = server.client();
//! # let guard = client.mutex_all(["Ada", "Ben"]).lock()?;
//! for name in guard.names() {
//!     let token = guard.fencing_token_of(name).expect("the guard holds each of its names");
//!     let changed = transaction.execute(
//!         "UPDATE account SET fence = ?1 WHERE name = ?2 AND fence <= ?1",
//!         (i64::from(token), name.as_str()),
//!     )?;
//!     if changed != 1 {
//!         return Err(Overtaken); // dropping the transaction rolls it back
//!     }
//! }
//! // … read, then write, then commit
//! # Ok::<(), Overtaken>(())
//! ```
//!
//! `examples/sqlite` in the repository is the whole transfer, with a holder that is stopped and
//! comes back late.
//!
//! # Why in this way
//!
//! - **Why every row?** Another holder may have locked only one of the names since, and changed
//!   only its row. A holder that was stopped and checks the other row alone does not notice, and
//!   overwrites that change.
//! - **Why before reading?** An earlier holder that was stopped may write at any time. If its write
//!   comes between the read and the write of a later holder that has not claimed yet, both
//!   pass their checks, and the later holder overwrites the earlier one's change.
//! - **Why in one transaction?** After the claim is committed, a later holder can claim and write.
//!   A holder that needs a second transaction claims again in it. For this the comparison is `<=`,
//!   not `<`: its own token passes.
//! - **In which order?** In that of [`names`](crate::MutexAllGuard::names), as above. All holders
//!   have the same order, so their transactions cannot deadlock in the database.
//!
//! # More about databases
//!
//! - **A claim that changes no row** means: stop, and do not retry with this guard. Insert a
//!   missing row before the first claim.
//! - **A lock that protects many rows, or rows that do not exist yet,** can have one row of its own
//!   for each name: `CREATE TABLE fence (name text PRIMARY KEY, fence bigint NOT NULL)`. Claim
//!   these rows. This protects only if every transaction that changes the data claims them.
//! - **The database's answer decides.** If the transaction was committed, it counts, even if
//!   `unlock` or `with` then reports a loss: do not repeat it. After `with`, use
//!   [`WithError::into_value`](crate::WithError::into_value).
//! - **Tokens** are integers from 1 to 2^53 - 1, and fit into a `bigint` and a double.
//! - **Placeholders**: `$1` in Postgres, `?1` or `:token` in SQLite. In MySQL the placeholder is
//!   `?`, once for each use. Set `CLIENT_FOUND_ROWS` on a MySQL connection: otherwise the claim of
//!   a second transaction, which changes nothing, counts no row.
//! - **In Postgres and MySQL**, a claim waits for the other transaction's row lock, and then
//!   compares again. At the isolation levels `REPEATABLE READ` and `SERIALIZABLE` Postgres can end
//!   it with a serialization failure: then repeat the transaction from its claims.
//! - **In SQLite**, a transaction that begins with its claims keeps other writers out until its
//!   end.
//!
//! # Elsewhere
//!
//! - *An object store.* Keep the token in the object's metadata, and write with a condition on the
//!   version that you read (`If-Match`). A holder that reads a higher token stops. If the condition
//!   fails, read again and decide again.
//! - *Your own service.* Send the token with every request, reads included. The service remembers
//!   the highest token of each name, in one step with what the request does, and rejects lower
//!   ones. For several names it compares all tokens before it does anything.
//! - *A service that cannot compare*, such as a payment provider. Send an idempotency key made of
//!   the operation, not of the token: the token differs between two holders that repeat it.
//!
//! # Limits
//!
//! - Tokens are comparable for one name only.
//! - Readers of a read-write lock share the token of the last writer before them. A cache can use
//!   it as the version of a page, within limits: see [`RwLock`](crate::RwLock#fencing-tokens).
//! - A semaphore's tokens do not fence, because several holders may write at a time: see
//!   [`Lease::fencing_token`](crate::Lease::fencing_token).
//! - Only clients of this crate draw tokens. A program that takes the lock with a plain
//!   `SET … NX PX` has none, and the resource cannot tell when it was overtaken.
//! - A resource that remembers the highest token must keep it as long as the data. Once it has
//!   forgotten the token, it accepts an old one.
