//! Combined calls while a connection is made or a write blocks.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::clock::Instant;
use crate::config::Config;
use crate::protocol::answer::Answer;
use crate::protocol::verb::Verb;
use crate::redis::conn::callers::{Cap, this_thread};
use crate::redis::conn::combined_call::{CombinedCall, Delivery, Write};
use crate::redis::conn::connector::Connector;
use crate::redis::conn::pool::{Pool, PooledConnection};
use crate::url::Address;

/// Longer than anything here takes. A call that nobody serves waits this long.
const LONG: Duration = Duration::from_secs(30);

/// In bytes: the largest buffers of a socket are far smaller.
const MORE_THAN_A_SOCKET_TAKES: usize = 64 * 1024 * 1024;

/// The replies to two `CLIENT SETINFO` and one `CLIENT SETNAME`.
const LOGGED_ON: &[u8] = b"+OK\r\n+OK\r\n+OK\r\n";

fn pool_of(listener: &TcpListener, cap: usize) -> Arc<Pool> {
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let config = Config {
        connect_timeout: LONG,
        command_timeout: LONG,
        ..Config::default()
    };
    let connector = Connector::to_server(Address::parse(&url).unwrap(), None, &config);
    Arc::new(Pool::new(connector, cap))
}

fn connection(pool: &Arc<Pool>) -> PooledConnection<'_> {
    match pool.acquire_connection(Instant::now().after(LONG), Cap::Counted) {
        Ok(pooled) => pooled,
        Err(why) => panic!("{}", why.cause),
    }
}

fn accept(listener: &TcpListener) -> TcpStream {
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(LOGGED_ON).unwrap();
    stream
}

fn call(command: Vec<u8>) -> Arc<CombinedCall> {
    CombinedCall::new(command, Verb::Renew)
}

fn enqueue(pool: &Pool, call: &Arc<CombinedCall>) {
    let (now, mut state) = (Instant::now(), pool.state.lock());
    let until = now.after(LONG);
    state.queue.join(now, until, Arc::clone(call));
}

#[test]
fn replies_are_delivered_before_the_next_batch_is_written() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let pool = pool_of(&listener, 1);
    let (other, next) = (call(Vec::new()), call(vec![b'x'; MORE_THAN_A_SOCKET_TAKES]));
    thread::scope(|scope| {
        let server = scope.spawn(|| accept(&listener));
        let connection = connection(&pool).into_connection();
        let mut stream = server.join().unwrap();
        enqueue(&pool, &next);
        stream.write_all(b":1\r\n:1\r\n").unwrap();
        let write = Write {
            connection,
            sent: Instant::now(),
            others: vec![Arc::clone(&other)],
        };
        let reader = scope.spawn(|| {
            let own = call(Vec::new());
            pool.read_all(write, &own, Instant::now().after(LONG))
        });
        let delivered = other.wait(Instant::now().after(LONG / 2));
        let is_blocked = !reader.is_finished();
        // The reader ends once the server has read the next batch.
        drop(scope.spawn(move || stream.read_to_end(&mut Vec::new())));
        let own = reader.join().unwrap();
        drop(next.give_up());
        assert!(
            matches!(
                delivered,
                Some(Delivery::Answer(_, Ok(Ok(Answer::Ours)), _))
            ),
            "the reader delivers first"
        );
        assert!(is_blocked, "the next batch was not written yet");
        assert!(matches!(own.answer, Ok(Ok(Answer::Ours))));
    });
}

#[test]
fn a_fresh_connection_that_its_caller_no_longer_needs_goes_to_a_combined_call() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let pool = pool_of(&listener, 1);
    let queued = call(Vec::new());
    enqueue(&pool, &queued);
    let request = pool.request(Instant::NEVER, this_thread());
    let (mut stream, _) = listener.accept().unwrap();
    // The dialer is logging on by now, so it does not see that nobody wants the connection.
    drop(request);
    stream.write_all(LOGGED_ON).unwrap();
    let delivered = queued.wait(Instant::now().after(LONG / 2));
    assert!(matches!(delivered, Some(Delivery::Alone)));
    assert_eq!(pool.state.lock().idle.len(), 1);
}

#[test]
fn queued_call_gets_the_idle_connection_when_a_surplus_one_is_closed() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let pool = pool_of(&listener, 1);
    let queued = call(Vec::new());
    thread::scope(|scope| {
        let server = scope.spawn(|| [accept(&listener), accept(&listener)]);
        let first = connection(&pool).into_connection();
        // A release does not wait for the first connection.
        let until = Instant::now().after(LONG);
        let surplus = pool.acquire_connection(until, Cap::Exempt);
        let surplus = surplus.unwrap_or_else(|_| panic!("the server accepts"));
        pool.state.lock().put_back(first);
        enqueue(&pool, &queued);
        pool.pass_on(surplus);
        let delivered = queued.wait(Instant::now().after(LONG / 6));
        assert!(matches!(delivered, Some(Delivery::Alone)));
        drop(server.join().unwrap());
    });
}

#[test]
fn queued_call_does_not_wait_for_a_connection_that_a_thread_keeps() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let pool = pool_of(&listener, 1);
    let queued = call(Vec::new());
    thread::scope(|scope| {
        let server = scope.spawn(|| accept(&listener));
        let connection = connection(&pool).into_connection();
        pool.state.lock().put_back(connection);
        enqueue(&pool, &queued);
        let request = pool.request(Instant::NEVER, this_thread());
        let kept = request.poll().and_then(Result::ok);
        let delivered = queued.wait(Instant::now().after(LONG / 6));
        assert!(matches!(delivered, Some(Delivery::Alone)));
        drop((kept, request, server.join().unwrap()));
    });
}
