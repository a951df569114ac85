//! Promise: a server that soon closes each connection is not flooded with connections, and the log
//! not with warnings.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::Shutdown;

use leasehold::Client;
use log::Level;
use support::{FakeServer, default_reply, log_records_about, ms};

support::tests![
    subscription_that_is_confirmed_and_closed_again_and_again,
    subscription_that_is_closed_again_and_again,
    connection_that_is_closed_at_the_first_script_again_and_again
];

/// Starts a server whose lock another client holds. It closes each connection at a request with
/// these words, after the reply if it `replies`.
fn server_that_closes_at(words: &'static [&str], replies: bool) -> FakeServer {
    FakeServer::with_writer(move |request, client| {
        let name = request.name();
        let mut pairs = words.iter().zip(&request.words);
        let closes = pairs.all(|(word, sent)| word.as_bytes() == sent);
        if replies || !closes {
            let reply = match name.as_str() {
                "acquire" | "queue_enter" => {
                    b"*4\r\n:0\r\n$5\r\nother\r\n:60000\r\n:-1\r\n".to_vec()
                }
                "queue_refresh" => b"*3\r\n:0\r\n:60000\r\n:-1\r\n".to_vec(),
                "undo" | "queue_undo" => b"*1\r\n:0\r\n".to_vec(),
                _ => default_reply(request).unwrap_or_default(),
            };
            client.write_all(&reply)?;
        }
        if closes {
            client.shutdown(Shutdown::Both)
        } else {
            Ok(())
        }
    })
}

/// Has a call wait, and returns how many connections were made for it, and the warnings.
fn connections_and_warnings(server: &FakeServer) -> (usize, Vec<String>) {
    let server_label = format!("127.0.0.1:{}", server.port());
    // Installs the logger.
    assert!(log_records_about(&server_label).is_empty());
    let client = Client::builder().url(server.url()).breaker(0);
    let client = client.build().unwrap();
    let granted = client.mutex("x").try_lock_for(ms(1_500));
    assert!(!matches!(granted, Ok(Ok(_))), "another client holds it");
    let log_ons = server.requests("CLIENT").into_iter();
    let connections: BTreeSet<usize> = log_ons.map(|it| it.connection).collect();
    let records = log_records_about(&server_label).into_iter();
    let warnings = records.filter(|record| record.level <= Level::Warn);
    let warnings = warnings.map(|record| record.message).collect();
    (connections.len(), warnings)
}

fn subscription_that_is_confirmed_and_closed_again_and_again() {
    let server = server_that_closes_at(&["SUBSCRIBE", "lock_release:x"], true);
    let (connections, warnings) = connections_and_warnings(&server);
    assert!((3..=12).contains(&connections), "{connections}");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
}

fn subscription_that_is_closed_again_and_again() {
    let server = server_that_closes_at(&["SUBSCRIBE"], false);
    let (connections, warnings) = connections_and_warnings(&server);
    assert!((3..=12).contains(&connections), "{connections}");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
}

fn connection_that_is_closed_at_the_first_script_again_and_again() {
    let server = server_that_closes_at(&["EVALSHA"], false);
    let (connections, warnings) = connections_and_warnings(&server);
    assert!((3..=12).contains(&connections), "{connections}");
    assert!(warnings.len() <= 1, "{warnings:?}");
}
