//! The library's settings under the names of this program's options, for messages of the library.

/// Parts of the library's messages, each with this program's words for it. A part that contains
/// another comes first.
const NAMES: [(&str, &str); 23] = [
    ("ClientBuilder::command_timeout, ", ""),
    ("ClientBuilder::connect_timeout, ", ""),
    ("ClientBuilder::tls_root, ", ""),
    ("ClientBuilder::tls_client_cert, ", ""),
    ("ClientBuilder::sentinel, or a URL", "a URL"),
    (
        "use ClientBuilder::max_connections",
        "this program has no option for it: remove it",
    ),
    (
        "use ClientBuilder::owner",
        "this program has no option for it: remove it",
    ),
    (
        "give ClientBuilder::quorum, cluster or sentinel one URL for each server",
        "write the URL of each server of a quorum into REDIS_URLS",
    ),
    (
        "ClientBuilder::address_map (--address-map)",
        "--address-map",
    ),
    ("credentials is set, and", "--password-file is set, and"),
    ("address_map:", "--address-map:"),
    ("address_map needs", "--address-map needs"),
    ("set sentinel_tls=", "set --sentinel-tls="),
    ("with sentinel_tls=", "with --sentinel-tls="),
    (
        "sentinel_tls (REDIS_SENTINEL_TLS)",
        "--sentinel-tls (REDIS_SENTINEL_TLS)",
    ),
    ("ClientBuilder::tls_root", "--tls-ca"),
    ("ClientBuilder::tls_client_cert", "--tls-cert and --tls-key"),
    (
        "tls_client_cert: the certificate (its first part)",
        "--tls-cert: the certificate",
    ),
    (
        "tls_client_cert: the key (its second part)",
        "--tls-key: the key",
    ),
    ("tls_client_cert: the key", "--tls-key: the key"),
    (
        "tls_client_cert (REDIS_TLS_CERT)",
        "--tls-cert (REDIS_TLS_CERT)",
    ),
    ("tls_root (REDIS_TLS_CA)", "--tls-ca (REDIS_TLS_CA)"),
    ("tls_root contains", "--tls-ca contains"),
];

/// Returns a message of the library in the words of this program.
pub(crate) fn in_options(text: &str) -> String {
    let replaced = |text: String, (theirs, ours): &(&str, &str)| text.replace(theirs, ours);
    NAMES.iter().fold(text.to_owned(), replaced)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_options() {
        for (text, expected) in [
            (
                "pass its certificate authority to ClientBuilder::tls_root",
                "pass its certificate authority to --tls-ca",
            ),
            (
                "set ClientBuilder::tls_client_cert",
                "set --tls-cert and --tls-key",
            ),
            (
                "use ClientBuilder::tls_root, REDIS_TLS_CA or --tls-ca",
                "use REDIS_TLS_CA or --tls-ca",
            ),
            (
                "tls_root (REDIS_TLS_CA) and tls_client_cert (REDIS_TLS_CERT) need",
                "--tls-ca (REDIS_TLS_CA) and --tls-cert (REDIS_TLS_CERT) need",
            ),
            (
                "tls_client_cert: the key (its second part) is",
                "--tls-key: the key is",
            ),
            (
                "as *=NAME with ClientBuilder::address_map (--address-map)",
                "as *=NAME with --address-map",
            ),
            ("set sentinel_tls=no", "set --sentinel-tls=no"),
            (
                "…?sentinel_pass=…&sentinel_tls=yes|no",
                "…?sentinel_pass=…&sentinel_tls=yes|no",
            ),
        ] {
            assert_eq!(in_options(text), expected);
        }
    }
}
