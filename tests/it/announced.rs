//! Promise: if sentinels or nodes of a cluster announce an address that cannot be reached from
//! here, the error says who announced what, and the address can be replaced.

use leasehold::{CancelToken, Client, ClientBuilder, Error};
use support::{FakeSentinel, FakeServer, Server, assert_released, free_port, ms, sentinel_url};

use crate::malformed::reply_bytes;
#[cfg(feature = "tls")]
use under_a_name::address_under_a_certificate_for_a_name_is_explained;

support::tests![
    unreachable_master_of_the_sentinels_is_named,
    unreachable_node_that_a_cluster_announces_is_named,
    unreachable_node_of_the_url_is_not_said_to_be_announced,
    announced_master_is_reached_by_the_map,
    announced_node_is_reached_by_the_map,
    one_name_for_all_addresses_keeps_the_port,
    map_without_announced_addresses_is_an_error,
    #[cfg(feature = "tls")]
    address_under_a_certificate_for_a_name_is_explained
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
    node_announcing_at("127.0.0.1", port)
}

fn node_announcing_at(host: &'static str, port: u16) -> (FakeServer, String) {
    let node = FakeServer::start(move |request| match request.name().as_str() {
        "CLUSTER" => reply_bytes(&format!(
            "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n${}\r\n{host}\r\n:{port}\r\n$1\r\ni\r\n",
            host.len()
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

fn unreachable_node_of_the_url_is_not_said_to_be_announced() {
    let port = free_port();
    let client = builder(&format!("redis+cluster://127.0.0.1:{port}"));
    let client = client.address_map([("*", "localhost")]).build().unwrap();
    let (mutex, token) = (client.mutex("a"), CancelToken::new());
    for mutex in [mutex.clone(), mutex.cancel_on(&token)] {
        let error = mutex.try_lock().err();
        let text = error.expect("nobody listens").to_string();
        let named = format!("127.0.0.1:{port} (reached at localhost:{port}): Connection refused");
        assert!(text.contains(&named), "{text}");
        assert!(!text.contains("announce"), "{text}");
    }
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

fn one_name_for_all_addresses_keeps_the_port() {
    let server = Server::start();
    let sentinel = FakeSentinel::naming(server.port(), Some(1));
    sentinel.set(|says| says.host = "10.255.255.1");
    let sentinels = sentinel_url([sentinel.port()]);
    let (_node, cluster) = node_announcing_at("10.255.255.1", server.port());
    for url in [&sentinels, &cluster] {
        let client = builder(url).address_map([("*", "localhost")]).build();
        assert_released(client.unwrap().mutex("a").lock().unwrap().unlock());
    }
}

#[cfg(feature = "tls")]
mod under_a_name {
    use support::{Cluster, ClusterSetup, read_pem, tls_server_trusting};

    use super::*;

    /// Trusts the certificates of this test, and has one of them.
    fn with_certificates(url: &str) -> ClientBuilder {
        builder(url)
            .tls_root(read_pem("named-ca.pem"))
            .tls_client_cert(read_pem("named.pem"), read_pem("named.key"))
    }

    /// Follows the advice of the error for the address that is announced.
    #[track_caller]
    fn follow_advice(url: &str, server_setting: &str, name: &str) {
        let client = with_certificates(url).build().unwrap();
        let mutex = client.mutex(name);
        for error in [mutex.try_lock().err(), mutex.lock().err()] {
            let error = error.expect("the certificate is not for the address");
            assert!(matches!(error, Error::Refused { .. }), "{error:?}");
            let text = error.to_string();
            assert!(text.contains("certificate not valid for name"), "{text}");
            for words in [server_setting, "*=NAME", "ClientBuilder::address_map"] {
                assert!(text.contains(words), "{text}");
            }
            assert!(!text.contains("the URL must name"), "{text}");
        }
        let client = with_certificates(url).address_map([("*", "localhost")]);
        let client = client.build().unwrap();
        assert_released(client.mutex(name).lock().unwrap().unlock());
    }

    pub(super) fn address_under_a_certificate_for_a_name_is_explained() {
        if Server::lacks_tls() {
            return;
        }
        let port = free_port();
        let _master = tls_server_trusting(port, "named", "named-ca.pem");
        let sentinel = FakeSentinel::naming(port, Some(1));
        let url = sentinel_url([sentinel.port()]).replace("redis+", "rediss+");
        let url = format!("{url}?sentinel_tls=no");
        follow_advice(&url, "announce-hostnames", "a");

        sentinel.set(|says| says.host = "localhost");
        let client = with_certificates(&url).address_map([("*", "127.0.0.1")]);
        let text = client.build().unwrap().mutex("a").try_lock().unwrap_err();
        let text = text.to_string();
        assert!(text.contains("must lead to a name"), "{text}");
        assert!(!text.contains("announce"), "{text}");

        let cluster = Cluster::with(ClusterSetup {
            has_tls: true,
            certificate: ["named", "named-ca.pem"],
            ..ClusterSetup::steady(3, 0)
        });
        let url = format!("rediss+cluster://localhost:{}", cluster.client_port(0));
        let name = cluster.name_owned_by("a", 1);
        follow_advice(&url, "cluster-announce-hostname", &name);

        // The caller has named this address itself.
        let url = format!("rediss+cluster://127.0.0.1:{}", cluster.client_port(0));
        let client = with_certificates(&url).build().unwrap();
        let text = client.mutex("a").try_lock().unwrap_err().to_string();
        assert!(text.contains("the URL must name"), "{text}");
    }
}
