//! A node of a cluster that reports the slots that the test wants, early or late.

use std::io::Write as _;
use std::time::Duration;

use redis::Value;

use super::fake_server::{FakeServer, default_reply};
use super::time::let_pass;

/// Starts a node that replies to `CLUSTER SLOTS` with these bytes, this late. It owns no slot.
pub fn fake_node(slots: Vec<u8>, after: Duration) -> FakeServer {
    FakeServer::with_writer(move |request, client| {
        if request.name() == "CLUSTER" {
            let_pass(after);
            return client.write_all(&slots);
        }
        client.write_all(&default_reply(request).unwrap_or_default())
    })
}

/// Returns the reply to `CLUSTER SLOTS` if one node owns all slots.
pub fn one_owner(port: u16) -> Vec<u8> {
    let node = format!("*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$1\r\nn\r\n");
    format!("*1\r\n*3\r\n:0\r\n:16383\r\n{node}").into_bytes()
}

/// Writes a reply as a server sends it.
pub fn encode(value: &Value) -> Vec<u8> {
    match value {
        Value::Nil => b"$-1\r\n".to_vec(),
        Value::Int(number) => format!(":{number}\r\n").into_bytes(),
        Value::BulkString(text) => {
            let head = format!("${}\r\n", text.len()).into_bytes();
            [&head[..], text, b"\r\n"].concat()
        }
        Value::SimpleString(text) => format!("+{text}\r\n").into_bytes(),
        Value::Array(items) => {
            let head = format!("*{}\r\n", items.len()).into_bytes();
            [head, items.iter().flat_map(encode).collect()].concat()
        }
        other => panic!("no node replies with {other:?}"),
    }
}
