//! Advice for common error replies and connection errors.

const NO_PASSWORD: &str = "; the server requires a password: put it into the URL or, if the \
                           settings come from the environment, into REDIS_PASSWORD; for \
                           sentinels, as sentinel_pass into the URL";

const WRONG_PASSWORD: &str = "; check user and password in the URL, or REDIS_USERNAME and \
                              REDIS_PASSWORD; for sentinels, sentinel_user and sentinel_pass in \
                              the URL";

const UNTRUSTED_CLIENT: &str = "; the server rejects the client certificate: a certificate \
                                authority that the server trusts must issue it";

/// Parts of error texts, each with its advice and a leading separator. The first part that the text
/// contains counts.
const ADVICE: [(&str, &str); 37] = [
    // The error lists the missing permissions already. The names of keys in that list may contain
    // any of the texts below.
    (" needs +", ""),
    // The error says itself which side of Sentinel needs another setting.
    ("sentinel_tls=", ""),
    // The error repeats the arguments, which may contain any of the texts below.
    (
        "unknown command",
        "; the server does not have this command, or its configuration (rename-command) has \
         disabled or renamed it",
    ),
    // Only a client of a cluster follows redirects.
    (
        "redirected again: ",
        "; if this lasts, the nodes disagree on the owner of the slot: compare their replies to \
         CLUSTER SLOTS",
    ),
    (
        "MOVED ",
        "; this is a node of a cluster: use redis+cluster://…",
    ),
    (
        "cluster support disabled",
        "; this is not a cluster: use redis://…",
    ),
    // The alert with which a TLS server answers plain text.
    (
        r#"begins "\x15\x03"#,
        "; the server speaks TLS: use rediss://…",
    ),
    (
        r#"with TLS: the reply begins "-"#,
        "; the server does not speak TLS: use redis://…",
    ),
    (
        "OOM",
        "; Redis has reached maxmemory: free memory or raise the limit (held locks can still be \
         released)",
    ),
    ("NOAUTH", NO_PASSWORD),
    ("Authentication required", NO_PASSWORD),
    (
        "the address map leads here",
        "; ClientBuilder::address_map (--address-map) must lead to a name in the certificate",
    ),
    (
        "the nodes of the cluster announce this address",
        "; let the nodes announce the name in their certificate (cluster-announce-hostname, and \
         cluster-preferred-endpoint-type hostname), or replace the address by that name here, as \
         *=NAME with ClientBuilder::address_map (--address-map)",
    ),
    (
        "the sentinels name this address",
        "; let the sentinels announce the name in the master's certificate (resolve-hostnames and \
         announce-hostnames), or replace the address by that name here, as *=NAME with \
         ClientBuilder::address_map (--address-map)",
    ),
    (
        "not valid for name",
        "; the URL must name the server as its certificate does",
    ),
    (
        "UnsupportedCertVersion",
        "; its certificate is X.509 version 1, which is not supported: the server needs one of \
         version 3",
    ),
    (
        "invalid peer certificate: certificate expired",
        "; the server needs a new certificate",
    ),
    (
        "invalid peer certificate",
        "; this client does not trust the server: pass its certificate authority to \
         ClientBuilder::tls_root",
    ),
    // The text of rustls for a reply without TLS.
    (
        "received corrupt message",
        "; if the server does not speak TLS at this port, use redis://",
    ),
    (
        "alert: CertificateRequired",
        "; the server requires a client certificate: set ClientBuilder::tls_client_cert",
    ),
    (
        "alert: HandshakeFailure",
        "; if the server requires a client certificate, set ClientBuilder::tls_client_cert",
    ),
    ("alert: BadCertificate", UNTRUSTED_CLIENT),
    ("alert: UnsupportedCertificate", UNTRUSTED_CLIENT),
    ("alert: CertificateUnknown", UNTRUSTED_CLIENT),
    ("alert: UnknownCA", UNTRUSTED_CLIENT),
    ("alert: AccessDenied", UNTRUSTED_CLIENT),
    (
        "alert: CertificateExpired",
        "; the client certificate has expired: replace it",
    ),
    (
        "alert: CertificateRevoked",
        "; the client certificate was revoked: pass a new one to ClientBuilder::tls_client_cert",
    ),
    ("WRONGPASS", WRONG_PASSWORD),
    ("authentication failed", WRONG_PASSWORD),
    (
        "no permissions",
        "; to log on, a user needs +select if the URL names a database, and at a sentinel \
         +sentinel|get-master-addr-by-name",
    ),
    (
        "READONLY",
        "; this is a replica: a redis:// URL must name the master, while redis+sentinel:// and \
         redis+cluster:// find it",
    ),
    ("LOADING", "; Redis is still loading its data"),
    (
        "MISCONF",
        "; Redis cannot save its data and refuses writes: see the log of the server",
    ),
    (
        "NOREPLICAS",
        "; fewer replicas are in sync than min-replicas-to-write requires: check the replicas",
    ),
    (
        "the nodes of the cluster announce ",
        "; if this machine cannot reach that address, set cluster-announce-ip at the nodes, or \
         ClientBuilder::address_map (--address-map) here",
    ),
    (
        " as the master: ",
        "; if this machine cannot reach that address, set replica-announce-ip at the servers, or \
         ClientBuilder::address_map (--address-map) here",
    ),
];

/// Returns the advice for an error with this text, with a leading separator. Returns an empty text
/// if there is none.
pub(crate) fn advice(text: &str) -> &'static str {
    let found = ADVICE.iter().find(|(part, _)| text.contains(part));
    found.map_or("", |(_, advice)| advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_an_unknown_command_select_no_advice() {
        let text = "ERR unknown command 'EVALSHA', with args beginning with: '1' 'lock:ROOM:12' ";
        assert!(advice(text).contains("rename-command"), "{}", advice(text));
    }

    #[test]
    fn only_alerts_about_the_client_certificate_advise_on_it() {
        let of_alert = |name: &str| advice(&format!("received fatal alert: {name}"));
        assert_eq!(of_alert("UnknownCA"), UNTRUSTED_CLIENT);
        assert!(of_alert("CertificateExpired").contains("expired"));
        assert!(of_alert("CertificateRevoked").contains("revoked"));
        for other in ["ProtocolVersion", "UnrecognizedName", "InternalError"] {
            assert_eq!(of_alert(other), "");
        }
    }
}
