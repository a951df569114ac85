//! URLs in the forms of other clients: what is clear is taken, and the rest is named.

use std::borrow::Cow;

/// Returns a URL without the white space and quotes around it, and what was removed.
///
/// `docker --env-file` keeps quotes, and a file with a secret often ends with a line break.
pub(crate) fn cleaned(text: &str) -> (&str, Option<&'static str>) {
    let trimmed = text.trim();
    let unquoted = ['"', '\''].into_iter().find_map(|quote| {
        let inner = trimmed.strip_prefix(quote)?.strip_suffix(quote)?;
        Some(inner.trim())
    });
    match unquoted {
        Some(inner) => (inner, Some("the quotes around it were removed")),
        None if trimmed.len() < text.len() => {
            (trimmed, Some("the white space around it was removed"))
        }
        None => (text, None),
    }
}

/// Returns the URL with its scheme in small letters, and in this crate's form.
pub(super) fn canonical(url: &str) -> Cow<'_, str> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.into();
    };
    let small = scheme.to_ascii_lowercase();
    let own = match small.as_str() {
        "redis+tls" | "redis+ssl" => "rediss",
        "valkey+tls" | "valkey+ssl" => "valkeys",
        small => small,
    };
    if own == scheme {
        url.into()
    } else {
        format!("{own}://{rest}").into()
    }
}

/// Returns what to write in place of another client's scheme.
pub(super) fn scheme_advice(scheme: &str) -> Option<&'static str> {
    Some(match scheme {
        "redis-sentinel" | "rediss-sentinel" | "sentinel" => {
            "unsupported scheme: for sentinels, write redis+sentinel://host,host/name[/db]"
        }
        "redis-cluster" | "rediss-cluster" | "cluster" => {
            "unsupported scheme: for a cluster, write redis+cluster://host,host"
        }
        "redis-socket" | "redis+socket" | "redis-unix" | "socket" => {
            "unsupported scheme: for a Unix socket, write redis+unix:///path?db=0"
        }
        "tcp" => "unsupported scheme: write redis:// in place of tcp://",
        "tls" | "ssl" => "unsupported scheme: write rediss:// for TLS",
        _ => return None,
    })
}

/// Returns what to use in place of another client's parameter.
pub(super) fn parameter_advice(name: &str) -> Option<&'static str> {
    Some(match name {
        "timeout" | "socket_timeout" | "read_timeout" | "write_timeout" | "command_timeout" => {
            "use ClientBuilder::command_timeout, LOCK_COMMAND_TIMEOUT_MS or --command-timeout"
        }
        "socket_connect_timeout" | "connect_timeout" | "connection_timeout" | "dial_timeout" => {
            "use ClientBuilder::connect_timeout, LOCK_CONNECT_TIMEOUT_MS or --connect-timeout"
        }
        "ssl_cert_reqs" | "ssl_check_hostname" | "skip_verify" | "insecure" | "verifyPeer" => {
            "the server's certificate is always checked; for a private authority, use \
             ClientBuilder::tls_root, REDIS_TLS_CA or --tls-ca"
        }
        "ssl_ca_certs" | "ssl_ca_path" | "cafile" | "cacert" => {
            "use ClientBuilder::tls_root, REDIS_TLS_CA or --tls-ca"
        }
        "ssl_certfile" | "ssl_keyfile" | "cert" | "key" => {
            "use ClientBuilder::tls_client_cert, REDIS_TLS_CERT and REDIS_TLS_KEY, or --tls-cert \
             and --tls-key"
        }
        "ssl" | "tls" => "write rediss:// for TLS",
        "username" | "user" | "password" | "pass" | "auth" => {
            "write redis://user:password@host, or use REDIS_USERNAME and REDIS_PASSWORD"
        }
        "database" => "write the number of the database behind the host, as /2, or as ?db=2",
        "sentinelMasterId" | "master_name" | "service_name" => {
            "write redis+sentinel://host,host/name[/db]"
        }
        "max_connections" | "pool_size" | "poolSize" => "use ClientBuilder::max_connections",
        "client_name" | "clientName" => "use ClientBuilder::owner",
        _ => return None,
    })
}
