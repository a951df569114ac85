//! Promise: if sentinels or nodes of a cluster announce an address that cannot be reached from
//! here, the error says who announced what, and the address can be replaced.

use leasehold::{Client, ClientBuilder, Error};
use support::{FakeSentinel, FakeServer, Server, assert_released, free_port, ms, sentinel_url};

use crate::malformed::reply_bytes;

support::tests![
    unreachable_master_of_the_sentinels_is_named,
    unreachable_node_that_a_cluster_announces_is_named,
    announced_master_is_reached_by_the_map,
    announced_node_is_reached_by_the_map,
    map_without_announced_addresses_is_an_error
];

fn builder(url: &str) -> ClientBuilder {
    Client::builder().url(url).unreachable_for(ms(1_000))
}

/// Returns the text of the error of `lock`.
#[track_caller]
fn failure(builder: ClientBuilder) -> String {
    let error = builder.build().unwrap().mutex("a").lock().unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    error.to_string()
}

/// Starts a node that says that the master on this port owns all slots.
fn node_announcing(port: u16) -> (FakeServer, String) {
    let node = FakeServer::start(move |request| match request.name().as_str() {
        "CLUSTER" => reply_bytes(&format!(
            "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$1\r\ni\r\n"
        )),
        _ => None,
    });
    let url = format!("redis+cluster://127.0.0.1:{}", node.port());
    (node, url)
}

fn unreachable_master_of_the_sentinels_is_named() {
    let port = free_port();
    let sentinel = FakeSentinel::naming(port, Some(1));
    let text = failure(builder(&sentinel_url([sentinel.port()])));
    let named = format!("the sentinels name 127.0.0.1:{port} as the master: Connection refused");
    assert!(text.contains(&named), "{text}");
    assert!(text.contains("ClientBuilder::address_map"), "{text}");
}

fn unreachable_node_that_a_cluster_announces_is_named() {
    let port = free_port();
    let (_node, url) = node_announcing(port);
    let text = failure(builder(&url));
    let named = format!("the nodes of the cluster announce 127.0.0.1:{port}: Connection refused");
    assert!(text.contains(&named), "{text}");
    assert!(text.contains("cluster-announce-ip"), "{text}");
}

fn announced_master_is_reached_by_the_map() {
    let (server, port) = (Server::start(), free_port());
    let sentinel = FakeSentinel::naming(port, Some(1));
    let pair = (
        format!("127.0.0.1:{port}"),
        format!("127.0.0.1:{}", server.port()),
    );
    let client = builder(&sentinel_url([sentinel.port()])).address_map([pair]);
    let client = client.build().unwrap();
    assert_released(client.mutex("a").lock().unwrap().unlock());
    assert!(client.health().is_healthy(), "{:?}", client.health());
}

fn announced_node_is_reached_by_the_map() {
    let (server, port) = (Server::start(), free_port());
    let (_node, url) = node_announcing(port);
    let reached = server.port();
    let client = builder(&url).address_map_with(move |host, announced| {
        (announced == port).then(|| (host.to_owned(), reached))
    });
    let client = client.build().unwrap();
    assert_released(client.mutex("a").lock().unwrap().unlock());
}

fn map_without_announced_addresses_is_an_error() {
    for (builder, part) in [
        (
            builder("redis://127.0.0.1").address_map([("a:1", "b:2")]),
            "sentinels or a cluster",
        ),
        (
            builder("redis+cluster://127.0.0.1").address_map([("a", "b:2")]),
            "a is not host:port",
        ),
    ] {
        let error = builder.build().unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}
