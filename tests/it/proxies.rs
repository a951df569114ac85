//! Promise: locks work through proxies that know only some commands.

use std::collections::{HashMap, HashSet};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use leasehold::Client;
use parking_lot::Mutex;
use support::{FakeServer, Request, Server, expect_unreachable, ms};

support::tests![
    proxy_that_closes_at_an_optional_command_serves_locks,
    error_names_the_command_at_which_a_peer_closes
];

/// Starts a proxy that closes a connection at these commands, as twemproxy does at those that it
/// does not know. Returns the numbers of those connections, too.
fn proxy_that_closes_at(
    server: &Server,
    commands: &'static [&'static str],
) -> (FakeServer, Arc<Mutex<HashSet<usize>>>) {
    let closed = Arc::new(Mutex::new(HashSet::new()));
    let noted = Arc::clone(&closed);
    let port = server.port();
    let upstream: Mutex<HashMap<usize, TcpStream>> = Mutex::default();
    let proxy = FakeServer::with_writer(move |request: &Request, client| {
        let command = String::from_utf8_lossy(&request.words[0]).to_ascii_uppercase();
        if commands.contains(&command.as_str()) {
            noted.lock().insert(request.connection);
            return client.shutdown(Shutdown::Both);
        }
        let mut upstream = upstream.lock();
        let server = match upstream.entry(request.connection) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(TcpStream::connect(("127.0.0.1", port))?)
            }
        };
        let mut packed = redis::Cmd::new();
        packed.arg(&request.words);
        server.write_all(&packed.get_packed_command())?;
        let mut reply = Vec::new();
        while redis::parse_redis_value(&reply).is_err() {
            let mut bytes = [0; 4096];
            match server.read(&mut bytes)? {
                0 => return client.shutdown(Shutdown::Both),
                count => reply.extend_from_slice(&bytes[..count]),
            }
        }
        client.write_all(&reply)
    });
    (proxy, closed)
}

fn proxy_that_closes_at_an_optional_command_serves_locks() {
    let server = Server::start();
    let rules = ["SETUSER", "app", "on", ">s3cret", "~*", "&*", "+@all"];
    server.run("ACL", &rules);
    let commands = &["CLIENT", "SUBSCRIBE", "PUBLISH"];
    for user in ["", "app:s3cret@"] {
        let (proxy, closed) = proxy_that_closes_at(&server, commands);
        let client = Client::open(format!("redis://{user}127.0.0.1:{}", proxy.port())).unwrap();
        let guard = client.mutex("a").try_lock().unwrap().expect("it is free");
        let other = client.mutex("b").lock().unwrap();
        guard.unlock().unwrap();
        other.unlock().unwrap();
        assert_eq!(closed.lock().len(), 1, "later connections omit them");
    }
}

fn error_names_the_command_at_which_a_peer_closes() {
    let server = Server::start();
    for (commands, user, db, command) in [
        (&["CLIENT", "SELECT"][..], "", "/2", "SELECT"),
        (&["CLIENT", "AUTH"], ":s3cret@", "", "AUTH"),
        (&["CLIENT", "PING"], "", "", "PING"),
        (&["CLIENT", "EVALSHA"], "", "", "acquire"),
    ] {
        let (proxy, _) = proxy_that_closes_at(&server, commands);
        let url = format!("redis://{user}127.0.0.1:{}{db}", proxy.port());
        let client = Client::builder().url(url).command_timeout(ms(300)).build();
        let text = expect_unreachable(client.unwrap().mutex("a").try_lock());
        assert!(
            text.contains(command) && (text.contains("closed") || text.contains("no reply to")),
            "{text}"
        );
    }
}
