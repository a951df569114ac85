//! The checked-in certificates and keys, and server options for them. See `certificates/make.sh`.

use std::fs;
use std::path::Path;

use super::server::Server;

/// Returns the path of a checked-in certificate or key.
pub fn certificate_path(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("certificates");
    let path = folder.join(file);
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// Returns the contents of a checked-in certificate or key.
pub fn read_pem(file: &str) -> Vec<u8> {
    fs::read(certificate_path(file)).expect("it is checked in")
}

/// Returns the options, without dashes, of a server with TLS on `port`.
///
/// The server presents the certificate `shown`, and requires one of `authority` from every client.
pub(crate) fn tls_options(port: u16, shown: &str, authority: &str) -> Vec<[String; 2]> {
    let options = [
        ("tls-port", port.to_string()),
        ("tls-key-file", certificate_path(&format!("{shown}.key"))),
        ("tls-cert-file", certificate_path(&format!("{shown}.pem"))),
        ("tls-ca-cert-file", certificate_path(authority)),
        ("tls-auth-clients", "yes".to_owned()),
    ];
    options
        .map(|(name, value)| [name.to_owned(), value])
        .to_vec()
}

/// Starts a server with the options of [`tls_options`].
pub fn tls_server(port: u16, shown: &str) -> Server {
    tls_server_trusting(port, shown, "ca.pem")
}

/// Starts a server that requires a certificate of `authority` from every client.
pub fn tls_server_trusting(port: u16, shown: &str, authority: &str) -> Server {
    let options: Vec<String> = tls_options(port, shown, authority)
        .into_iter()
        .flat_map(|[name, value]| [format!("--{name}"), value])
        .collect();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    Server::with(&options)
}
