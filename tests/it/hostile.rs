//! Promise: a peer that sends endlessly or byte by byte costs little memory, and delays no call
//! beyond its deadline. This holds on every kind of connection.

use std::fs;
use std::io::Write;
use std::time::Duration;

use leasehold::{Client, ClientBuilder};
use support::fair::PATIENCE;
use support::{
    Child, Control, FakeServer, Server, default_reply, eventually, ms, parameter, tell_parent,
    thread_count,
};

support::roles![caller, many_callers];

support::tests![
    endless_replies_cost_little_memory_and_delay_no_call,
    trickling_replies_do_not_outlast_a_deadline,
    trickling_server_does_not_delay_the_rest_of_a_quorum,
    subscriber_closes_a_connection_that_never_confirms,
    long_replies_on_many_connections_cost_little_memory
];

/// The most memory that a hostile peer may add to a process, in KiB.
const ADDED: u64 = 16 * 1024;

/// The deadline of each call, unless a test names another.
const LIMIT: Duration = ms(300);

/// How late a call may be on a busy machine. A call that ignores its deadline is seconds late.
const SLACK: Duration = ms(1_500);

/// The reply to `acquire` if another client holds the lock for a minute.
const REFUSED: &[u8] = b"*4\r\n:0\r\n$5\r\nother\r\n:60000\r\n:-1\r\n";

/// The reply to `propose` if the server grants the lock.
const GRANTED: &[u8] = b"*2\r\n:1\r\n:1700000000000000\r\n";

/// Kinds of connections, and the command that gets the hostile reply on each.
const COMMANDS: [(&str, &str); 5] = [
    ("log-on", "CLIENT"),
    ("command", "acquire"),
    ("subscriber", "SUBSCRIBE"),
    ("sentinel", "SENTINEL"),
    ("cluster", "CLUSTER"),
];

/// The beginnings of endless replies, and the bytes repeated after them.
const STREAMS: [(&str, &str); 7] = [
    ("$1000000000000\r\n", "x"),
    ("*1000000000\r\n", ":1\r\n"),
    ("+", "x"),
    ("", "*1\r\n"),
    // A server may send the next two without a request in RESP3, and the third in RESP2.
    ("", ">2\r\n+message\r\n+x\r\n"),
    ("", ">2\r\n$10\r\ninvalidate\r\n*0\r\n"),
    ("", "*3\r\n$7\r\nmessage\r\n$1\r\nd\r\n$1\r\np\r\n"),
];

fn url(connection: &str, server: &FakeServer) -> String {
    let port = server.port();
    match connection {
        "sentinel" => format!("redis+sentinel://127.0.0.1:{port}/m"),
        "cluster" => format!("redis+cluster://127.0.0.1:{port}"),
        _ => format!("redis://127.0.0.1:{port}"),
    }
}

fn builder(url: &str) -> ClientBuilder {
    Client::builder()
        .url(url)
        .connect_timeout(LIMIT)
        .command_timeout(ms(5_000))
        .breaker(0)
}

/// Starts a server whose lock another client holds; `hostile` writes the reply to `command`.
fn server_with_hostile_reply(
    command: &'static str,
    hostile: impl Fn(&mut std::net::TcpStream) -> std::io::Result<()> + Send + Sync + 'static,
) -> FakeServer {
    FakeServer::with_writer(move |request, client| match request.name().as_str() {
        name if name == command => hostile(client),
        "acquire" | "queue_enter" => client.write_all(REFUSED),
        "queue_refresh" => client.write_all(b"*3\r\n:0\r\n:60000\r\n:-1\r\n"),
        "release" => client.write_all(b":1\r\n"),
        "undo" | "queue_undo" => client.write_all(b"*1\r\n:0\r\n"),
        _ => client.write_all(&default_reply(request).unwrap_or_default()),
    })
}

/// Returns the peak memory of this process in KiB.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.unwrap().parse().unwrap()
}

/// A child's role: makes calls in several threads. Then reports by how many KiB its peak memory has
/// grown, and by how many ms a call was late at most.
fn caller() {
    let client = builder(&parameter("URL")).build().unwrap();
    let before = peak_memory();
    let overrun = std::thread::scope(|scope| {
        let call = || {
            let mutex = client.mutex("x");
            let overruns = (0..3).map(|_| {
                let timed = Control::run(LIMIT, || mutex.try_lock_for(LIMIT));
                assert!(!matches!(timed.value, Ok(Ok(_))));
                timed.overrun()
            });
            overruns.max().unwrap()
        };
        let callers: Vec<_> = (0..4).map(|_| scope.spawn(call)).collect();
        let overruns = callers.into_iter().map(|caller| caller.join().unwrap());
        overruns.max().unwrap()
    });
    // On a busy machine, the endless replies take the engine most of its time.
    let report = client.shutdown(ms(20_000));
    assert!(report.is_clean(), "{report:?}");
    // The kernel lists a thread for a moment after it has ended.
    eventually(PATIENCE, || thread_count("leasehold-dial") == 0);
    tell_parent(&format!(
        "{} {}",
        peak_memory() - before,
        overrun.as_millis()
    ));
}

fn endless_replies_cost_little_memory_and_delay_no_call() {
    for (connection, command) in COMMANDS {
        std::thread::scope(|scope| {
            for (head, unit) in STREAMS {
                scope.spawn(move || {
                    assert_endless_reply_is_harmless(connection, command, head, unit)
                });
            }
        });
    }
}

fn assert_endless_reply_is_harmless(
    connection: &str,
    command: &'static str,
    head: &'static str,
    unit: &'static str,
) {
    let server = server_with_hostile_reply(command, move |client| {
        client.write_all(head.as_bytes())?;
        let chunk = unit.repeat(8 * 1024);
        loop {
            client.write_all(chunk.as_bytes())?;
        }
    });
    let caller = Child::spawn("hostile::caller", &[("URL", &url(connection, &server))]);
    let line = caller.next_line();
    caller.wait().succeeded();
    let shown = format!("{connection} {head:?} {unit:?}");
    let words: Vec<&str> = line.split(' ').collect();
    let [grown, overrun] = words[..] else {
        panic!("{shown}: {line}")
    };
    assert!(
        grown.parse::<u64>().unwrap() < ADDED,
        "{shown}: memory grew by {grown} KiB"
    );
    assert!(
        overrun.parse::<u128>().unwrap() < SLACK.as_millis(),
        "{shown}: a call was {overrun} ms late"
    );
}

fn subscriber_closes_a_connection_that_never_confirms() {
    for unit in [
        ">2\r\n$10\r\ninvalidate\r\n*0\r\n",
        "*3\r\n$7\r\nmessage\r\n$1\r\nd\r\n$1\r\np\r\n",
    ] {
        let server = server_with_hostile_reply("SUBSCRIBE", move |client| {
            let chunk = unit.repeat(1024);
            loop {
                client.write_all(chunk.as_bytes())?;
            }
        });
        let client = builder(&server.url()).command_timeout(LIMIT);
        let client = client.build().unwrap();
        // The server still writes to the first connection: a second SUBSCRIBE is on a new one.
        eventually(ms(30_000), || {
            let granted = client.mutex("x").try_lock_for(LIMIT);
            assert!(!matches!(granted, Ok(Ok(_))));
            server.requests("SUBSCRIBE").len() >= 2
        });
        // On a busy machine, the endless replies take the engine most of its time.
        let report = client.shutdown(ms(20_000));
        assert!(report.is_clean(), "{unit:?}: {report:?}");
    }
}

/// The lengths of replies in bytes: a little below the limit for scripts, and a little below the
/// limit for commands that list keys. The client must reject the second one, because it is a reply
/// to `acquire`.
const LONG: [usize; 2] = [32 * 1024 - 64, 1024 * 1024 - 64];

/// How many calls get a reply of such a length at the same time, each on its own connection.
const CALLS: usize = 32;

/// A child's role: makes [`CALLS`] calls at the same time, then reports by how many KiB its peak
/// memory has grown.
fn many_callers() {
    let client = builder(&parameter("URL")).build().unwrap();
    let before = peak_memory();
    std::thread::scope(|scope| {
        for n in 0..CALLS {
            let mutex = client.mutex(format!("{n}"));
            scope.spawn(move || {
                assert!(!matches!(mutex.try_lock_for(ms(3_000)), Ok(Ok(_))));
            });
        }
    });
    tell_parent(&(peak_memory() - before).to_string());
}

fn long_replies_on_many_connections_cost_little_memory() {
    for length in LONG {
        let text = format!("${length}\r\n{}", "x".repeat(length));
        let numbers = format!("*{}\r\n{}", length / 16, ":1\r\n".repeat(length / 16));
        for reply in [format!("{text}\r\n"), text, numbers] {
            assert_long_reply_costs_little_memory(reply);
        }
    }
}

fn assert_long_reply_costs_little_memory(reply: String) {
    let shown = format!("{:?}, {} bytes", &reply[..8], reply.len());
    let server =
        server_with_hostile_reply("acquire", move |client| client.write_all(reply.as_bytes()));
    let callers = Child::spawn("hostile::many_callers", &[("URL", &server.url())]);
    let grown: u64 = callers.next_line().parse().unwrap();
    callers.wait().succeeded();
    let calls = server.requests("acquire").len();
    assert!(calls >= CALLS, "{shown}: {calls} calls");
    assert!(grown < ADDED, "{shown}: {grown} KiB");
}

fn trickling_replies_do_not_outlast_a_deadline() {
    std::thread::scope(|scope| {
        for (connection, command) in COMMANDS {
            scope.spawn(move || assert_trickling_reply_is_harmless(connection, command));
        }
    });
}

fn assert_trickling_reply_is_harmless(connection: &str, command: &'static str) {
    let server = server_with_hostile_reply(command, |client| {
        client.write_all(b"+")?;
        loop {
            std::thread::sleep(ms(20));
            client.write_all(b"x")?;
        }
    });
    let client = builder(&url(connection, &server)).build().unwrap();
    let mutex = client.mutex("x");
    for _ in 0..3 {
        let timed = Control::run(LIMIT, || mutex.try_lock_for(LIMIT));
        let granted = timed.no_later_than(SLACK);
        assert!(!matches!(granted, Ok(Ok(_))), "{connection}");
    }
    // The report is clean only if no dialer thread is left: dialers have a deadline, too.
    // On a busy machine, the endless replies take the engine most of its time.
    let report = client.shutdown(ms(20_000));
    assert!(report.is_clean(), "{connection}: {report:?}");
}

fn trickling_server_does_not_delay_the_rest_of_a_quorum() {
    let trickling = FakeServer::with_writer(|request, client| match request.name().as_str() {
        "propose" => GRANTED.iter().try_for_each(|byte| {
            std::thread::sleep(ms(80));
            client.write_all(&[*byte])
        }),
        _ => client.write_all(&default_reply(request).unwrap_or_default()),
    });
    let (one, two) = (Server::start(), Server::start());
    let urls = [trickling.url(), one.url(), two.url()];
    let client = Client::builder()
        .quorum(urls)
        .command_timeout(ms(2_500))
        .build()
        .unwrap();
    // Opens all connections.
    assert!(client.ping().is_ok());
    for n in 0..5 {
        let lock = || client.mutex(format!("x{n}")).try_lock_for(ms(4_000));
        // The trickling reply takes 2.2 s.
        let timed = Control::run(ms(1_000), lock);
        let guard = timed.no_later_than(SLACK).unwrap().unwrap();
        drop(guard);
    }
}
