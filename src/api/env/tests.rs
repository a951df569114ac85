//! Tests of reading settings from the environment.

use std::time::Duration;

use super::*;

fn read(vars: &[(&str, &str)]) -> Result<ClientBuilder, Error> {
    read_into(ClientBuilder::default(), vars)
}

fn read_into(builder: ClientBuilder, vars: &[(&str, &str)]) -> Result<ClientBuilder, Error> {
    super::builder(builder, |name| {
        let var = vars.iter().find(|(var, _)| *var == name);
        var.map(|(_, value)| value.into())
    })
}

fn check(builder: ClientBuilder) -> Result<(), String> {
    let checked = builder.check();
    checked.map(drop).map_err(|error| error.to_string())
}

#[test]
fn variables_make_the_url_and_the_settings() {
    let shown = format!("{:?}", read(&[]).unwrap());
    assert!(shown.contains("127.0.0.1:6379"), "{shown}");
    let vars = [
        ("REDIS_HOST", "::1"),
        ("REDIS_PORT", "7"),
        ("REDIS_DB", "3"),
        ("LOCK_TTL_MS", "250"),
    ];
    let shown = format!("{:?}", read(&vars).unwrap());
    assert!(
        shown.contains("[::1]:7") && shown.contains("250ms"),
        "{shown}"
    );
}

#[test]
fn url_of_the_builder_precedes_the_variables() {
    let set = || ClientBuilder::default().url("redis://here:1");
    let vars = [("REDIS_URL", "http://x"), ("LOCK_KEY_PREFIX", "mine:")];
    let shown = format!("{:?}", read_into(set(), &vars).unwrap());
    assert!(
        shown.contains("here:1") && shown.contains("mine:"),
        "{shown}"
    );
}

#[test]
fn error_of_a_setter_blames_no_variable() {
    let plain = [("REDIS_URL", "redis://here:1")];
    let timeout = ("LOCK_COMMAND_TIMEOUT_MS", "500");
    for (builder, vars) in [
        (ClientBuilder::default().url("http://x"), &[timeout][..]),
        (ClientBuilder::default().ttl(Duration::from_millis(1)), &[]),
        (
            ClientBuilder::default().ttl(Duration::from_millis(1)),
            &plain,
        ),
        (
            ClientBuilder::default().min_replicas(1, Duration::from_secs(60)),
            &plain,
        ),
    ] {
        let error = read_into(builder, vars).map_err(|error| error.to_string());
        let error = error.and_then(check).unwrap_err();
        let blames = error.contains("REDIS_") || error.contains("LOCK_");
        assert!(!blames, "{error}");
    }
}

#[test]
fn settings_are_compared_when_all_of_them_are_known() {
    let timeout = ("LOCK_COMMAND_TIMEOUT_MS", "500");
    let (short, long) = (Duration::from_millis(300), Duration::from_millis(600));
    let replicas = |within| read(&[timeout]).unwrap().min_replicas(1, within);
    check(replicas(short)).unwrap();
    check(replicas(long).command_timeout(Duration::from_secs(2))).unwrap();
    let error = check(replicas(long)).unwrap_err();
    assert!(error.contains("command_timeout of 500ms"), "{error}");
}

#[test]
fn servers_set_after_the_environment_replace_its_servers() {
    let urls = ["redis://one:1", "redis://two:2", "redis://three:3"];
    for vars in [&[][..], &[("REDIS_URL", "redis://here:1")]] {
        let builder = read(vars).unwrap().quorum(urls);
        assert!(format!("{builder:?}").contains("quorum"), "{builder:?}");
        check(builder).unwrap();
    }
    let both = read(&[]).unwrap().cluster(["one:1"]).quorum(urls);
    assert!(check(both).unwrap_err().contains("only one of"));
}

#[cfg(not(feature = "tls"))]
#[test]
fn without_tls_its_variables_do_not_affect_a_url_of_the_program() {
    let builder = ClientBuilder::default().url("redis://here:1");
    let vars = [("REDIS_TLS_CA", "/ca.pem"), ("REDIS_SENTINEL_TLS", "yes")];
    check(read_into(builder, &vars).unwrap()).unwrap();
    let error = read(&vars[..1]).unwrap_err().to_string();
    assert!(
        error.contains("`tls`") && error.contains("REDIS_TLS_CA"),
        "{error}"
    );
    let sentinels = ClientBuilder::default().url("redis+sentinel://h/m");
    let error = read_into(sentinels, &vars[1..]).unwrap_err().to_string();
    assert!(
        error.contains("`tls`") && error.contains("REDIS_SENTINEL_TLS"),
        "{error}"
    );
}

#[test]
fn several_urls_make_a_quorum() {
    let three = "redis://one:1,redis://two:2\n redis://three:3 ";
    let shown = format!("{:?}", read(&[("REDIS_URLS", three)]).unwrap());
    for server in ["one:1", "two:2", "three:3"] {
        assert!(shown.contains(server), "{shown}");
    }
    let both = [("REDIS_URLS", three), ("REDIS_URL", "redis://one:1")];
    let error = read(&both).unwrap_err().to_string();
    assert!(error.contains("REDIS_URL and REDIS_URLS"), "{error}");
}

#[test]
fn timeouts_are_read() {
    let vars = [
        ("LOCK_CONNECT_TIMEOUT_MS", "1111"),
        ("LOCK_COMMAND_TIMEOUT_MS", "2222"),
        ("LOCK_UNREACHABLE_FOR_MS", "3333"),
    ];
    let shown = format!("{:?}", read(&vars).unwrap());
    for setting in [
        "connect_timeout: 1.111s",
        "command_timeout: 2.222s",
        "unreachable_for: 3.333s",
    ] {
        assert!(shown.contains(setting), "{shown}");
    }
}

#[cfg(feature = "tls")]
#[test]
fn tls_files_belong_to_a_url_with_tls() {
    let file = |name: &str| {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/certificates/");
        format!("{folder}{name}")
    };
    let (ca, cert, key) = (file("ca.pem"), file("client.pem"), file("client.key"));
    let url = ("REDIS_URL", "rediss://here:1");
    let ca = ("REDIS_TLS_CA", ca.as_str());
    let [cert, key] = [("REDIS_TLS_CERT", &*cert), ("REDIS_TLS_KEY", &*key)];
    let shown = format!("{:?}", read(&[url, ca, cert, key]).unwrap());
    assert!(
        shown.contains("Tls { root: true, client_cert: true }"),
        "{shown}"
    );

    let plain = ("REDIS_URL", "redis://here:1");
    let missing = ("REDIS_TLS_CA", "/no/such\u{1b}file");
    let not_ca = ("REDIS_TLS_CA", key.1);
    let not_key = ("REDIS_TLS_KEY", ca.1);
    for (vars, word) in [
        (vec![plain, ca], "REDIS_TLS_CA"),
        (vec![url, missing], r"cannot read /no/such\x1bfile"),
        (vec![url, not_ca], "REDIS_TLS_CA"),
        (vec![url, cert], "REDIS_TLS_KEY"),
        (vec![url, key], "REDIS_TLS_CERT"),
        (vec![url, cert, not_key], "REDIS_TLS_KEY"),
    ] {
        let built = read(&vars).map_err(|error| error.to_string());
        let error = built.and_then(check).unwrap_err();
        assert!(error.contains(word), "{error}");
    }
    check(read(&[ca]).unwrap().url("rediss://here:1")).unwrap();

    let read = |url: &str| read_into(ClientBuilder::default().url(url), &[ca]);
    let shown = format!("{:?}", read("rediss://here:1").unwrap());
    assert!(shown.contains("root: true"), "{shown}");
    let shown = format!("{:?}", read("redis://here:1").unwrap());
    assert!(shown.contains("root: false"), "{shown}");
}

#[cfg(feature = "tls")]
#[test]
fn tls_of_sentinels_has_a_variable_of_its_own() {
    let certificates = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/certificates/");
    let ca = format!("{certificates}ca.pem");
    let ca = ("REDIS_TLS_CA", ca.as_str());
    let on = |value| ("REDIS_SENTINEL_TLS", value);
    let plain = "redis+sentinel://h/m";
    for (url, vars) in [
        (plain, [ca, on("yes")]),
        ("rediss+sentinel://h/m", [ca, on("no")]),
        ("rediss+sentinel://h/m?sentinel_tls=no", [ca, on("")]),
        // It is about sentinels only.
        ("rediss://h", [ca, on("no")]),
    ] {
        let of_env = [("REDIS_URL", url), vars[0], vars[1]];
        let set = ClientBuilder::default().url(url);
        for builder in [read(&of_env), read_into(set, &vars)] {
            let builder = builder.unwrap();
            assert!(format!("{builder:?}").contains("root: true"), "{url}");
            check(builder).unwrap();
        }
    }
    // The program's own setting about its sentinels takes precedence over the variable.
    let set = ClientBuilder::default;
    for builder in [
        set().url(plain).sentinel_tls(false),
        set().url("redis+sentinel://h/m?sentinel_tls=no"),
        set().sentinel(["redis://h"], "m"),
    ] {
        let shown = format!("{:?}", read_into(builder, &[ca, on("yes")]).unwrap());
        assert!(shown.contains("root: false"), "{shown}");
    }
    let error = read(&[("REDIS_URL", plain), on("true")]).unwrap_err();
    assert!(error.to_string().contains("yes or no"), "{error}");
}

/// Like its password, the environment's TLS applies to the servers that are set when it is read.
#[cfg(feature = "tls")]
#[test]
fn servers_set_after_the_environment_keep_their_tls() {
    let vars = [
        ("REDIS_URL", "rediss+sentinel://h/m"),
        ("REDIS_SENTINEL_TLS", "no"),
    ];
    let set = |url: &str| read(&vars).unwrap().url(url);
    check(set("rediss://h")).unwrap();
    let (_, target) = set("rediss+sentinel://other/m").check().unwrap();
    let Target::Sentinel(sentinel) = target else {
        panic!("the URL is of sentinels");
    };
    let hint = sentinel.sentinels[0].tls_hint();
    assert!(hint.contains("does not speak TLS"), "{hint}");
}

#[test]
fn password_of_any_bytes_is_kept_and_never_shown() {
    let password = "p@ss:w/rd?#%ü";
    let expected = (None, Some(password.to_owned()));
    assert_eq!(logon(read(&[("REDIS_PASSWORD", password)])), expected);
    let shown = format!(
        "{:?}",
        read(&[("REDIS_PASSWORD", "s3cret"), ("REDIS_USERNAME", "zoe")]).unwrap()
    );
    assert!(
        !shown.contains("s3cret") && !shown.contains("zoe"),
        "{shown}"
    );
}

/// Returns the user and the password for the servers themselves.
fn logon(built: Result<ClientBuilder, Error>) -> (Option<String>, Option<String>) {
    let (_, target) = built.unwrap().check().unwrap();
    let address = match target {
        Target::Server(address) => address,
        Target::Sentinel(sentinel) => sentinel.data,
        Target::Cluster(nodes) => nodes.data,
        Target::Quorum(mut addresses) => addresses.pop().unwrap(),
    };
    let redis = address.info.redis_settings();
    let owned = |text: Option<&str>| text.map(str::to_owned);
    (owned(redis.username()), owned(redis.password()))
}

#[test]
fn credentials_fill_in_a_url_without_a_password() {
    let [user, password] = [("REDIS_USERNAME", "zoe"), ("REDIS_PASSWORD", "s3c:r/e@t")];
    let some = |text: &str| Some(text.to_owned());
    for url in [
        "redis://here",
        "redis://zoe@here",
        "redis+unix:///run/redis.sock",
        "redis+sentinel://here,there/main",
        "redis+cluster://here,there",
        "redis+quorum://here,there,where",
    ] {
        let expected = (some("zoe"), some(password.1));
        let from_env = [("REDIS_URL", url), user, password];
        assert_eq!(logon(read(&from_env)), expected, "{url}");
        let set_before = ClientBuilder::default().url(url);
        let filled = read_into(set_before, &[user, password]);
        assert_eq!(logon(filled), expected, "{url}");
        // A URL set later belongs to the program alone.
        let set_later = Ok(read(&from_env).unwrap().url("redis://other"));
        assert_eq!(logon(set_later), (None, None), "{url}");
    }
    let urls = ("REDIS_URLS", "redis://here redis://:own@there");
    assert_eq!(logon(read(&[urls, user, password])), (None, some("own")));
    let here = ("REDIS_URL", "redis://here");
    assert_eq!(logon(read(&[here, user])), (some("zoe"), None));
    let complete = ("REDIS_URL", "redis://ann:own@here");
    let expected = (some("ann"), some("own"));
    assert_eq!(logon(read(&[complete, user, password])), expected);
}

#[test]
fn forms_that_other_programs_use_are_taken() {
    let host = |host| ("REDIS_HOST", host);
    let service = ("REDIS_PORT", "tcp://10.0.0.1:7000");
    for (vars, expected) in [
        (vec![service], "127.0.0.1:7000"),
        (vec![host("db"), service], "db:7000"),
        (vec![host("db:7001"), service], "db:7001"),
        (vec![host("db:7001")], "db:7001"),
        (vec![host("db:7001"), ("REDIS_PORT", "7001")], "db:7001"),
        (vec![host("[::1]:7001")], "[::1]:7001"),
        (vec![host("[::1]")], "[::1]:6379"),
        (vec![host("fe80::7")], "[fe80::7]:6379"),
        (vec![host("\"db\"\n"), ("REDIS_PORT", "7\n")], "db:7"),
        (vec![("REDIS_URL", "'redis://db:8'\n")], "db:8"),
        (vec![("REDIS_URL", "REDIS://db:8")], "db:8"),
    ] {
        let shown = format!("{:?}", read(&vars).unwrap());
        assert!(
            shown.contains(&format!("\"{expected}\"")),
            "{vars:?}: {shown}"
        );
    }
    let sentinels = ClientBuilder::default().sentinel(["h\n"], "'redis://:own@m/2'\n");
    assert_eq!(logon(Ok(sentinels)), (None, Some("own".into())));
    let url = ("REDIS_URL", "redis://here");
    for (password, expected) in [("p w\n", "p w"), ("pw\r\n", "pw"), ("\"pw\"", "\"pw\"")] {
        let read = logon(read(&[url, ("REDIS_PASSWORD", password)]));
        assert_eq!(read, (None, Some(expected.to_owned())));
    }
}

#[test]
fn forms_that_are_not_clear_are_named() {
    for (vars, word) in [
        (
            vec![("REDIS_HOST", "redis://:s3cret@db")],
            "put that into REDIS_URL",
        ),
        (
            vec![("REDIS_HOST", "db:s3cret")],
            "a host and a port number",
        ),
        (
            vec![("REDIS_HOST", "db:1"), ("REDIS_PORT", "2")],
            "different ports",
        ),
        (vec![("REDIS_PORT", "tcp://s3cret")], "a port number"),
        (
            vec![("REDIS_PASSWORD_FILE", "/no/such")],
            "cannot read the password file /no/such",
        ),
        (
            vec![
                ("REDIS_PASSWORD_FILE", "/no/such"),
                ("REDIS_PASSWORD", "s3cret"),
            ],
            "REDIS_PASSWORD and REDIS_PASSWORD_FILE",
        ),
    ] {
        let error = read(&vars).unwrap_err().to_string();
        assert!(error.contains(word) && !error.contains("s3cret"), "{error}");
    }
}

#[test]
fn invalid_value_is_an_error_that_names_its_variable() {
    for (name, value) in [
        ("REDIS_URL", "http://x"),
        ("REDIS_HOST", "a b"),
        ("REDIS_PORT", "70000"),
        ("REDIS_PORT", "0"),
        ("REDIS_DB", "-1"),
        ("LOCK_TTL_MS", "10s"),
        ("LOCK_CONNECT_TIMEOUT_MS", "0"),
        ("LOCK_COMMAND_TIMEOUT_MS", "1s"),
        ("LOCK_UNREACHABLE_FOR_MS", "0"),
        ("REDIS_URLS", " , "),
        ("REDIS_URLS", "redis://one redis+cluster://two"),
        ("REDIS_URLS", "redis://one redis://one"),
        ("REDIS_URL", "redis+quorum://one,one"),
        ("LOCK_TTL_MS", "5"),
        ("LOCK_TTL_MS", ""),
    ] {
        let built = read(&[(name, value)]).map_err(|error| error.to_string());
        match built.and_then(check) {
            Ok(()) => assert!(value.is_empty(), "{name}={value} was accepted"),
            Err(error) => assert!(error.contains(name), "{error}"),
        }
    }
}
