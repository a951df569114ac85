//! A `/health` endpoint for a load balancer: 200 while locks can be acquired and kept, otherwise
//! 503.

mod support {
    pub(crate) mod run;
}

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use leasehold::Client;
use support::run::{Outcome, run};

/// Calls `story`, with a private Redis unless `REDIS_URL` is set. Your own program would not
/// need this.
fn main() -> ExitCode {
    run(story, &[])
}

fn story() -> Outcome {
    let client = Client::from_env()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let endpoint = client.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that disconnects early is not an error of the endpoint.
            let _ = answer(stream, &endpoint);
        }
    });

    // Holding a lock begins renewals, whose state the endpoint reports too.
    let guard = client.mutex("nightly-report").lock()?;
    println!("GET http://{address}/health");
    let healthy = ask(&address.to_string())?;
    println!("{healthy}");
    drop(guard);
    if !healthy.starts_with("HTTP/1.1 200") {
        return Err("Redis is reachable, so the endpoint must answer 200".into());
    }

    // The same without Redis: nothing listens on port 1.
    let unreachable = Client::builder()
        .url("redis://127.0.0.1:1")
        .command_timeout(Duration::from_millis(300))
        .build()?;
    let (code, _) = status(&unreachable);
    println!("without Redis:\n{code}");
    assert!(code.starts_with("503"));
    Ok(())
}

/// Returns the HTTP status and the body.
fn status(client: &Client) -> (&'static str, String) {
    let health = client.health();
    if health.is_healthy() {
        ("200 OK", health.to_string())
    } else {
        ("503 Service Unavailable", health.to_string())
    }
}

fn answer(mut stream: TcpStream, client: &Client) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut lines = BufReader::new(&stream).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    // Read the whole request: closing a socket with unread data resets it and discards the
    // response.
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    let (status, body) = match request.split(' ').nth(1) {
        Some("/health") => status(client),
        _ => ("404 Not Found", String::new()),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Sends the request of a load balancer and returns the response.
fn ask(address: &str) -> Outcome<String> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET /health HTTP/1.1\r\nHost: {address}\r\n\r\n")?;
    let answer: Result<Vec<String>, _> = BufReader::new(stream).lines().collect();
    Ok(answer?.join("\n"))
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use leasehold::testing::Server;

    #[test]
    fn status_is_503_while_redis_is_away() {
        let server = Server::start();
        let client = server.client();
        assert_eq!(status(&client).0, "200 OK");
        let outage = server.cut();
        let (code, body) = status(&client);
        assert_eq!(code, "503 Service Unavailable");
        assert!(body.contains("failing"), "{body}");
        drop(outage);
        assert_eq!(status(&client).0, "200 OK");
    }
}
