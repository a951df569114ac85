//! Tests of reading URLs.

use std::time::Duration;

use redis::io::tcp::socket2::{Domain, Socket, Type};

use crate::error::Error;
#[cfg(feature = "tls")]
use crate::url::Sentinel;
use crate::url::{Address, Nodes, Target, cleaned};

#[test]
fn a_url_gives_address_and_credentials() {
    let address = Address::parse("redis://ann:s3cret@db.example:6380/2?protocol=resp3").unwrap();
    assert_eq!(address.label, "db.example:6380");
    assert_eq!(address.info.redis_settings().db(), 2);
    assert_eq!(address.info.redis_settings().username(), Some("ann"));
    assert!(address.info.tcp_settings().nodelay());
    assert_eq!(
        Address::parse("valkey://[::1]").unwrap().label,
        "[::1]:6379"
    );
}

#[test]
fn keepalive_notices_a_dead_peer_within_half_a_minute() {
    let address = Address::parse("redis://h").unwrap();
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let keepalive = address.info.tcp_settings().keepalive().unwrap();
    socket.set_tcp_keepalive(keepalive).unwrap();
    let probes = socket.tcp_keepalive_retries().unwrap();
    let probing = socket.tcp_keepalive_interval().unwrap() * probes;
    let idle = socket.tcp_keepalive_time().unwrap();
    assert_eq!(idle + probing, Duration::from_secs(30));
}

#[cfg(unix)]
#[test]
fn a_socket_path_gives_address_and_credentials() {
    let address = Address::parse("redis+unix:///run/redis.sock?db=3&user=u&pass=p%40").unwrap();
    assert_eq!(address.label, "/run/redis.sock");
    assert_eq!(address.info.redis_settings().password(), Some("p@"));
    assert_eq!(address.info.redis_settings().db(), 3);
}

#[test]
fn a_rejected_url_is_a_config_error_without_the_password() {
    let wrong = [
        "",
        "s3cret",
        "http://u:s3cret@h",
        "redis://",
        "redis://u:s3cret@h:99999",
        "redis://u:s3cret@h/s3cret",
        "redis://u:s3cret@h?protocol=9",
        "redis://u:s3cret@0.0.0.0",
        "s3cret://h",
    ];
    for url in wrong {
        let Err(error) = Address::parse(url) else {
            panic!("{url} was accepted")
        };
        assert!(matches!(error, Error::Config(_)));
        assert!(!error.to_string().contains("s3cret"), "{error}");
    }
}

#[test]
fn each_mistake_in_a_url_says_what_to_do() {
    let unescaped = "%2F";
    for (url, word) in [
        ("redis://h:70000", "between 1 and 65535"),
        ("redis://h:0/1", "between 1 and 65535"),
        ("redis://:pw@[::1]:70000", "between 1 and 65535"),
        ("redis+cluster://h1,h2:70000", "between 1 and 65535"),
        ("redis+sentinel://h1,h2:70000/m", "between 1 and 65535"),
        ("redis://h:s3cret", "end with @"),
        ("redis://::1:6379", "brackets"),
        ("redis://h1,h2", "several servers: use redis+sentinel://"),
        (
            "redis://:s3cret@h1:1,h2:2/1",
            "redis+cluster:// or redis+quorum://",
        ),
        #[cfg(feature = "tls")]
        ("rediss://h1,h2", "several servers"),
        ("redis://u:s3/cret@h", unescaped),
        ("redis://u:12/s3cret@h", unescaped),
        ("redis://u:s3?cret@h", unescaped),
        ("redis://u:12?s3cret@h", unescaped),
        ("redis://u:s3#cret@h", unescaped),
        ("redis://u:12#s3cret@h:1/2", unescaped),
        ("redis+cluster://u:s3/cret@h1,h2", unescaped),
        ("redis+cluster://u:12?s3cret@h1,h2", unescaped),
        ("redis+cluster://u:12#s3cret@h1,h2", unescaped),
        ("redis+sentinel://u:s3/cret@h1,h2/m", unescaped),
        ("redis+sentinel://u:12/s3cret@h1,h2/m", unescaped),
        ("redis+sentinel://u:12?s3cret@h1,h2/m", unescaped),
        ("redis+sentinel://u:12#s3cret@h1,h2/m", unescaped),
        ("redis://h/1#s3cret", "%23"),
        ("redis+unix:///run/s3#cret.sock", "%23"),
        ("redis://h/#insecure", "tls_root"),
        ("redis+sentinel://h/m#insecure", "tls_root"),
        ("redis+cluster://h#insecure", "tls_root"),
        #[cfg(feature = "tls")]
        ("rediss://h/#insecure", "tls_root"),
    ] {
        let Err(Error::Config(text)) = Target::parse(url) else {
            panic!("{url} was accepted")
        };
        assert!(text.contains(word), "{url}: {text}");
        let shows_password = text.contains("s3") || text.contains("cret");
        // The redis crate names its kind of error, which does not help the user.
        let shows_kind = text.contains("InvalidClient");
        assert!(!shows_password && !shows_kind, "{url}: {text}");
    }
    for url in [
        "redis://:p@ss@h:1/2",
        "redis://u:p%2F%3F%23%40%25@h",
        "redis+unix:///run/redis@1.sock?pass=p@",
        "redis+sentinel://u:p@ss@h1,h2/m?sentinel_pass=p@ss",
        "redis+cluster://u:p@ss@h1,[::1]:7000",
        "redis://h:",
        "redis+sentinel://h1:,[::1]:/m",
        "redis://u:p,w@h",
    ] {
        assert!(Target::parse(url).is_ok(), "{url}");
    }
}

/// The password would reach up to the last `@`, and so contain all hosts but the last.
#[test]
fn a_password_for_each_host_is_rejected() {
    for url in [
        "redis+quorum://u:s3cret@h1,u:s3cret@h2,u:s3cret@h3",
        "redis+cluster://u:s3cret@h1,u:s3cret@h2",
        "redis+sentinel://u:s3cret@h1,:s3cret@h2/m",
        "redis://u:s3cret@h1,u:s3cret@h2",
    ] {
        let Err(Error::Config(text)) = Target::parse(url) else {
            panic!("{url} was accepted")
        };
        assert!(text.contains("first host"), "{url}: {text}");
        assert!(!text.contains("s3cret"), "{url}: {text}");
    }
}

#[test]
fn an_unknown_parameter_is_named_unless_it_may_be_secret() {
    for (url, word, known) in [
        ("redis://h?timeout=5", "`timeout`", "protocol"),
        ("redis://h?timeout=5", "LOCK_COMMAND_TIMEOUT_MS", "protocol"),
        ("redis://h?ssl_cert_reqs=none", "--tls-ca", "protocol"),
        (
            "redis://h?socket_connect_timeout=1",
            "connect_timeout",
            "protocol",
        ),
        ("redis://h?nonsense=1", "`nonsense`;", "protocol"),
        ("redis+unix:///s?db=3&password=s3cret", "`password`", "pass"),
        (
            "redis+sentinel://h/m?sentinel_password=s3cret",
            "`sentinel_password`",
            "sentinel_pass",
        ),
        ("redis+unix:///s?pass=top&s3cret=x", "%26", "pass"),
        ("redis+unix:///s?pass=top&s3cret", "%26", "pass"),
        ("redis://u:12?s3cret=1@h", "%3F", "redis://"),
        ("redis://h?s3cret", "not repeated", "protocol"),
        (
            "redis+sentinel://h/m?sentinel_pass=top&s3cret=x",
            "%26",
            "sentinel_pass",
        ),
    ] {
        let Err(Error::Config(text)) = Target::parse(url) else {
            panic!("{url} was accepted")
        };
        assert!(text.contains(word) && text.contains(known), "{url}: {text}");
        assert!(!text.contains("s3cret"), "{url}: {text}");
    }
    for url in [
        "redis://h?",
        "redis://h?protocol=resp3&",
        "redis+sentinel://h/m?sentinel_user=u",
    ] {
        assert!(Target::parse(url).is_ok(), "{url}");
    }
}

#[test]
fn clear_forms_of_other_clients_are_taken() {
    let db = |url: &str| match Target::parse(url) {
        Ok(Target::Server(address) | Target::Cluster(Nodes { data: address, .. })) => {
            (address.label.clone(), address.info.redis_settings().db())
        }
        Ok(Target::Sentinel(sentinel)) => {
            (sentinel.label(), sentinel.data.info.redis_settings().db())
        }
        Ok(Target::Quorum(addresses)) => {
            let address = &addresses[0];
            (address.label.clone(), address.info.redis_settings().db())
        }
        Err(error) => panic!("{url}: {error}"),
    };
    let of = |label: &str, db: i64| (label.to_owned(), db);
    assert_eq!(db("redis://h?db=2"), of("h:6379", 2));
    assert_eq!(db("redis://h/2?db=2&protocol=3"), of("h:6379", 2));
    assert_eq!(db("REDIS://h"), of("h:6379", 0));
    assert_eq!(db("Redis+Quorum://h,i?db=4"), of("h:6379", 4));
    let expected = of("m of sentinels h:26379", 3);
    assert_eq!(db("REDIS+SENTINEL://h/m?db=3"), expected);
    #[cfg(feature = "tls")]
    for url in ["redis+tls://h:1", "REDISS://h:1", "valkey+tls://h:1"] {
        let Ok(Target::Server(address)) = Target::parse(url) else {
            panic!("{url} was rejected")
        };
        assert!(address.has_tls(), "{url}");
    }
}

#[test]
fn other_forms_of_other_clients_are_named() {
    for (url, word) in [
        ("redis://h/1?db=2", "different databases"),
        ("redis+sentinel://h/m/1?db=2", "different databases"),
        ("redis://h?db=s3cret", "number of a database"),
        (
            "redis-sentinel://:s3cret@h,i#m",
            "redis+sentinel://host,host/name",
        ),
        ("redis-cluster://:s3cret@h,i", "redis+cluster://host,host"),
        ("redis-socket:///s3cret", "redis+unix:///path"),
        ("tcp://:s3cret@h:6379", "write redis://"),
        ("http://:s3cret@h:6379", "unsupported scheme"),
        ("h:6379", "no scheme"),
    ] {
        let Err(Error::Config(text)) = Target::parse(url) else {
            panic!("{url} was accepted")
        };
        assert!(
            text.contains(word) && !text.contains("s3cret"),
            "{url}: {text}"
        );
    }
}

#[test]
fn quotes_and_white_space_around_a_url_are_removed() {
    for (text, has_removed) in [
        ("redis://h", false),
        ("redis://h\n", true),
        (" redis://h\r\n", true),
        ("\"redis://h\"", true),
        ("'redis://h'\n", true),
    ] {
        let (url, removed) = cleaned(text);
        assert_eq!(
            (url, removed.is_some()),
            ("redis://h", has_removed),
            "{text:?}"
        );
    }
    assert_eq!(cleaned("\""), ("\"", None));
}

#[test]
fn a_sentinel_url_gives_sentinels_master_and_passwords() {
    let url =
        "redis+sentinel://ann:s3cret@h1,h2:26380,[::1]/mymaster/2?sentinel_pass=t0p&protocol=resp3";
    let Ok(Target::Sentinel(sentinel)) = Target::parse(url) else {
        panic!("rejected")
    };
    assert_eq!(
        sentinel.label(),
        "mymaster of sentinels h1:26379,h2:26380,[::1]:26379"
    );
    assert_eq!(sentinel.data.info.redis_settings().username(), Some("ann"));
    assert_eq!(sentinel.data.info.redis_settings().db(), 2);
    for address in &sentinel.sentinels {
        assert_eq!(address.info.redis_settings().password(), Some("t0p"));
        assert_eq!(address.info.redis_settings().db(), 0);
    }
    let master = sentinel.data.at("10.0.0.7", 6400);
    assert_eq!(master.label, "10.0.0.7:6400");
    assert_eq!(master.info.redis_settings().password(), Some("s3cret"));
    for wrong in [
        "redis+sentinel://h1,h2",
        "redis+sentinel://h1,,h2/m",
        "redis+sentinel://h1,:/m",
        "http+sentinel://h/m",
        "redis+sentinel:///m",
    ] {
        assert!(Target::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_cluster_url_gives_nodes_and_credentials() {
    let url = "redis+cluster://ann:s3cret@h1,h2:7001,[::1]:7002/?protocol=resp3";
    let Ok(Target::Cluster(nodes)) = Target::parse(url) else {
        panic!("rejected")
    };
    assert_eq!(nodes.label(), "cluster h1:6379,h2:7001,[::1]:7002");
    assert_eq!(nodes.addresses().nth(2), Some(("::1".into(), 7002)));
    let node = nodes.data.at("10.0.0.7", 7009);
    assert_eq!(node.label, "10.0.0.7:7009");
    assert_eq!(node.info.redis_settings().password(), Some("s3cret"));
    assert!(Target::parse("valkey+cluster://h1,h2/0").is_ok());
    for wrong in [
        "redis+cluster://",
        "redis+cluster://h1,,h2",
        "redis+cluster://h1,h2/1",
        "redis+cluster://h1:99999",
        "redis+unix+cluster:///s3cret",
        "http+cluster://h1",
    ] {
        let Err(error) = Target::parse(wrong) else {
            panic!("{wrong} was accepted")
        };
        assert!(!error.to_string().contains("s3cret"), "{error}");
    }
}

#[test]
fn a_quorum_url_gives_servers_and_their_common_settings() {
    let url = "redis+quorum://ann:s3cret@h1,h2:7001,[::1]:7002/2?protocol=resp3";
    let Ok(Target::Quorum(servers)) = Target::parse(url) else {
        panic!("rejected")
    };
    let labels: Vec<_> = servers.iter().map(|server| &*server.label).collect();
    assert_eq!(labels, ["h1:6379", "h2:7001", "[::1]:7002"]);
    for server in &servers {
        let redis = server.info.redis_settings();
        assert_eq!((redis.username(), redis.db()), (Some("ann"), 2));
        assert_eq!(redis.password(), Some("s3cret"));
    }
    assert!(Target::parse("valkey+quorum://h1,h2,h3/").is_ok());
    for wrong in [
        "redis+quorum://",
        "redis+quorum://h1,,h2",
        "redis+quorum://h1,h2/s3cret",
        "redis+quorum://h1,h2:99999",
        "redis+quorum://u:s3/cret@h1,h2",
        "redis+quorum://h1,h2#s3cret",
        "redis+unix+quorum:///s3cret",
        "http+quorum://h1",
    ] {
        let Err(error) = Target::parse(wrong) else {
            panic!("{wrong} was accepted")
        };
        assert!(!error.to_string().contains("s3cret"), "{error}");
    }
}

#[test]
fn nodes_and_sentinels_can_be_given_as_lists() {
    let nodes = ["h1:7000".into(), "h2".into()];
    let Ok(Target::Cluster(cluster)) = Target::cluster(&nodes) else {
        panic!("rejected")
    };
    assert_eq!(cluster.label(), "cluster h1:7000,h2:6379");
    let nodes = ["redis://ann:s3cret@h1".into(), "redis://:s3cret@h2".into()];
    let Err(error) = Target::cluster(&nodes) else {
        panic!("accepted")
    };
    assert!(!error.to_string().contains("s3cret"), "{error}");
    assert!(Target::cluster(&[]).is_err());

    let hosts = ["h1".into(), "redis://:t0p@h2:26380/".into()];
    let master = "redis://ann:s3cret@mymaster/2?protocol=resp3";
    let Ok(Target::Sentinel(sentinel)) = Target::sentinel(&hosts, master) else {
        panic!("rejected")
    };
    assert_eq!(sentinel.label(), "mymaster of sentinels h1:26379,h2:26380");
    assert_eq!(sentinel.data.info.redis_settings().username(), Some("ann"));
    assert_eq!(sentinel.data.info.redis_settings().db(), 2);
    let protocol = sentinel.data.info.redis_settings().protocol();
    assert_eq!(protocol, redis::ProtocolVersion::RESP3);
    let passwords = sentinel.sentinels.iter();
    let passwords = passwords.map(|one| one.info.redis_settings().password().map(str::to_owned));
    assert_eq!(passwords.collect::<Vec<_>>(), [None, Some("t0p".into())]);
    assert!(Target::sentinel(&hosts, "mymaster").is_ok());
    assert!(Target::sentinel(&[], "m").is_err() && Target::sentinel(&hosts, "").is_err());
}

#[cfg(not(feature = "tls"))]
#[test]
fn a_tls_url_without_the_feature_is_an_error_that_names_it() {
    let Err(error) = Address::parse("rediss://h") else {
        panic!("accepted")
    };
    assert!(error.to_string().contains("`tls`"), "{error}");
}

#[cfg(feature = "tls")]
fn sentinel(url: &str) -> Sentinel {
    match Target::parse(url) {
        Ok(Target::Sentinel(sentinel)) => sentinel,
        _ => panic!("{url}"),
    }
}

#[cfg(feature = "tls")]
#[test]
fn advice_changes_one_side_and_keeps_the_other() {
    use crate::error::Cause;
    use crate::violation::{Violation, ViolationKind};
    let alert = || Violation::new(ViolationKind::NotResp, b"\x15\x03\x03").into();
    let plain = || Violation::new(ViolationKind::NotTls, b"-ERR no").into();
    for (url, of_sentinel, of_master) in [
        (
            "redis+sentinel://h/m",
            "yes",
            "rediss+sentinel://, with sentinel_tls=no",
        ),
        (
            "rediss+sentinel://h/m",
            "no",
            "redis+sentinel://, with sentinel_tls=yes",
        ),
        (
            "redis+sentinel://h/m?sentinel_tls=yes",
            "no",
            "rediss+sentinel://, with sentinel_tls=yes",
        ),
        (
            "rediss+sentinel://h/m?sentinel_tls=no",
            "yes",
            "redis+sentinel://, with sentinel_tls=no",
        ),
    ] {
        let sentinel = sentinel(url);
        let master = sentinel.data.at("10.0.0.7", 6379);
        let set = format!("set sentinel_tls={of_sentinel}");
        for (address, who, what) in [
            (&sentinel.sentinels[0], "the sentinel", set),
            (&master, "the master", format!("use {of_master}")),
        ] {
            let (error, verb) = if address.has_tls() {
                (plain(), "does not speak TLS")
            } else {
                (alert(), "speaks TLS")
            };
            let cause = Cause::from(address.explained(error));
            assert!(cause.is_not_redis());
            let text = cause.to_string();
            assert!(text.ends_with(&format!("; {who} {verb}: {what}")), "{text}");
            let hint = address.tls_hint();
            assert!(hint.contains(who) && hint.ends_with(&what), "{hint}");
        }
    }
}

/// Without a scheme at the name, TLS at the sentinels must not leave the master without it.
#[cfg(feature = "tls")]
#[test]
fn a_master_without_a_scheme_beside_sentinels_with_tls_is_an_error() {
    let target = |sentinel: &str, master| Target::sentinel(&[sentinel.to_owned()], master);
    let error = target("rediss://h", "ann:s3cret@m").err().unwrap();
    let error = error.to_string();
    assert!(error.contains("rediss://name"), "{error}");
    for (sentinel, master) in [
        ("h", "m"),
        ("redis://h", "m"),
        ("rediss://h", "redis://m"),
        ("rediss://h", "rediss://m"),
    ] {
        target(sentinel, master).unwrap_or_else(|error| panic!("{error}"));
    }
}
