//! Promise: whatever the order of a late holder and a later one, no coin is lost or created.

use std::fs;

use leasehold::Client;

use super::*;

/// The guide's page about fencing, and this example, have the same statement.
#[test]
fn claim_is_that_of_the_guide() {
    let statement = "UPDATE account SET fence = ?1 WHERE name = ?2 AND fence <= ?1";
    for file in ["../../src/guide/fencing.rs", "transfer.rs"] {
        let text = fs::read_to_string(format!("{}/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        assert!(text.contains(statement), "{file}");
    }
}

/// A database in memory with two connections, and two clients of one server.
struct Bank {
    server: Server,
    clients: [Client; 2],
    late: Connection,
    later: Connection,
}

const LATE: [&str; 2] = ["Ada", "Ben"];
const LATER: [&str; 2] = ["Ben", "Cleo"];

impl Bank {
    fn open(name: &str) -> Self {
        let connect = || Connection::open(format!("file:{name}?mode=memory&cache=shared")).unwrap();
        let (late, later) = (connect(), connect());
        late.execute_batch(TABLE).unwrap();
        let server = Server::start();
        let clients = [server.client(), server.client()];
        Self {
            server,
            clients,
            late,
            later,
        }
    }

    fn balances(&self) -> Vec<i64> {
        let mut rows = self
            .late
            .prepare("SELECT balance FROM account ORDER BY name")
            .unwrap();
        let rows = rows.query_map([], |row| row.get(0)).unwrap();
        rows.map(Result::unwrap).collect()
    }
}

/// Ends the lease of the late clerk, whose client then releases the other name.
fn lose_late(server: &Server) {
    server.lose(LATE[0]);
}

#[test]
fn transfer_moves_coins() {
    let mut bank = Bank::open("moves");
    let both = bank.clients[0].mutex_all(LATE);
    for (amount, expected) in [
        (30, Answer::Moved),
        (71, Answer::TooLow),
        (70, Answer::Moved),
    ] {
        let answer = lock_and_transfer(&both, &mut bank.late, LATE, amount, || {}).unwrap();
        assert_eq!(answer, expected);
    }
    assert_eq!(bank.balances(), [0, 200, 100]);
}

#[test]
fn clerk_that_writes_after_a_later_transfer_is_rejected() {
    let mut bank = Bank::open("after");
    let both = bank.clients[0].mutex_all(LATE);
    let answer = lock_and_transfer(&both, &mut bank.late, LATE, 10, || {
        lose_late(&bank.server);
        let both = bank.clients[1].mutex_all(LATER);
        let later = lock_and_transfer(&both, &mut bank.later, LATER, 30, || {});
        assert_eq!(later.unwrap(), Answer::Moved);
    });
    assert_eq!(answer.unwrap(), Answer::Overtaken);
    assert_eq!(bank.balances(), [100, 70, 130]);
}

#[test]
fn clerk_that_writes_before_a_later_transfer_counts() {
    let mut bank = Bank::open("before");
    let late = bank.clients[0].mutex_all(LATE).lock().unwrap();
    lose_late(&bank.server);
    let both = bank.clients[1].mutex_all(LATER);
    let later = lock_and_transfer(&both, &mut bank.later, LATER, 30, || {
        // The later holder has not claimed yet, so it has not read either.
        let answer = transfer(&mut bank.late, &late, LATE, 10).unwrap();
        assert_eq!(answer, Answer::Moved);
    });
    assert_eq!(later.unwrap(), Answer::Moved);
    assert_eq!(bank.balances(), [90, 80, 130]);
}

#[test]
fn clerk_that_writes_between_two_transactions_of_a_later_holder_is_rejected() {
    let mut bank = Bank::open("between");
    let late = bank.clients[0].mutex_all(LATE).lock().unwrap();
    lose_late(&bank.server);
    let later = bank.clients[1].mutex_all(LATER).lock().unwrap();
    let answer = transfer(&mut bank.later, &later, LATER, 30).unwrap();
    assert_eq!(answer, Answer::Moved);
    let answer = transfer(&mut bank.late, &late, LATE, 10).unwrap();
    assert_eq!(answer, Answer::Overtaken);
    let answer = transfer(&mut bank.later, &later, LATER, 30).unwrap();
    assert_eq!(answer, Answer::Moved);
    assert_eq!(bank.balances(), [100, 40, 160]);
}
