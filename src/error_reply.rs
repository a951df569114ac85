//! The meaning and the text of error replies.

use redis::{ErrorKind, RedisError, ServerError};

#[cfg(feature = "tls")]
use crate::connect_failure::ConnectFailure;
use crate::escape::Escaped;
#[cfg(feature = "tls")]
use crate::violation::payload;

/// The meaning of an error reply.
///
/// After an error that may pass, a script may have run: a proxy may have sent it twice. After any
/// other error it may have run in part: the scripts that acquire list under `Errors` what they
/// leave behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The server does not have the script: send its source.
    NoScript,
    /// A key exists but has another type than the command or script needs.
    WrongType,
    /// A script found no token in the fencing key.
    BadFence,
    /// The user lacks a permission.
    NoRight,
    /// A script called a command that the server does not have, or not in scripts.
    NoCommand,
    /// Another reason that lasts: a retry would not help.
    Lasting,
    /// The server cannot run commands now.
    NotServing,
    /// Anything else, such as the failure of a proxy: it may pass.
    Unclear,
}

impl Meaning {
    /// Returns whether the same command may succeed later.
    pub(crate) fn may_pass(self) -> bool {
        matches!(self, Self::NotServing | Self::Unclear)
    }
}

/// The codes of errors that pass: they are about the state of the server.
const NOT_SERVING: [&str; 8] = [
    "READONLY",
    "LOADING",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "NOREPLICAS",
    "BUSY",
    "MISCONF",
];

/// The codes of errors that last until somebody changes a setting or frees memory.
const LASTING: [&str; 5] = ["NOAUTH", "WRONGPASS", "DENIED", "CROSSSLOT", "OOM"];

/// Parts of the texts of errors that last, in small letters.
const LASTING_TEXTS: [&str; 8] = [
    "unknown command",
    "unknown subcommand",
    "unsupported command",
    "not supported",
    "disabled",
    "wrong number of arguments",
    // A field of the shared statistics that another program wrote.
    "not an integer",
    "would overflow",
];

/// Parts of the texts with which a server refuses a command of a script, in small letters.
const NO_COMMAND_TEXTS: [&str; 3] = [
    "unknown redis command",
    "unknown command called from",
    "not allowed from script",
];

/// Classifies an error reply: whatever names no reason that lasts may pass.
///
/// Redis 6.2 puts the error of a command into the text of another one, see [`in_script`], so this
/// searches that text too.
pub(crate) fn meaning(answer: &ServerError) -> Meaning {
    let is = |word: &str| match in_script(answer) {
        Some(text) => {
            let mut words = text.split(|c: char| !c.is_ascii_uppercase());
            words.any(|w| w == word)
        }
        None => answer.code() == word,
    };
    let details = answer.details();
    let text = details.unwrap_or_default().to_ascii_lowercase();
    let has_any = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    if is("NOSCRIPT") {
        Meaning::NoScript
    } else if is("BADFENCE") {
        Meaning::BadFence
    } else if is("WRONGTYPE") {
        Meaning::WrongType
    } else if answer.code() == "NOPERM" || details.is_some_and(is_permission_error_in_script) {
        Meaning::NoRight
    } else if NOT_SERVING.iter().any(|word| is(word)) {
        Meaning::NotServing
    } else if has_any(&NO_COMMAND_TEXTS) {
        Meaning::NoCommand
    } else if LASTING.iter().any(|word| is(word)) || has_any(&LASTING_TEXTS) {
        Meaning::Lasting
    } else {
        Meaning::Unclear
    }
}

/// Returns whether the server takes no writes now, so that another address of its name may lead to
/// the master: it is a replica, or loads its data, as a replica does while it copies its master.
pub(crate) fn takes_no_writes(answer: &ServerError) -> bool {
    ["READONLY", "LOADING", "MASTERDOWN"].contains(&answer.code())
        || in_script(answer).is_some_and(|text| text.contains("READONLY"))
}

/// Returns the text of an error in a script that contains that of a command, as Redis 6.2 does:
/// `ERR Error running script (call to f_…): @user_script:3: @user_script: 3: -READONLY …`, or the
/// last part of it if the script returns an error that it has caught.
fn in_script(answer: &ServerError) -> Option<&str> {
    let text = answer.details()?;
    let is_wrapped = answer.code() == "ERR" && text.contains("script");
    (is_wrapped || answer.code() == "@user_script:").then_some(text)
}

/// Returns whether the text of an error in a script, an `ERR`, says that the user lacks a
/// permission.
pub(crate) fn is_permission_error_in_script(text: &str) -> bool {
    // The first is the text of Redis 7.2 and Valkey.
    const IN_SCRIPT: [&str; 4] = [
        "ACL failure in script",
        "can't run this command",
        "can't access at least one of the keys",
        "can't publish to the channel",
    ];
    IN_SCRIPT.iter().any(|words| text.contains(words))
}

/// Returns the text of an error without the library's name of its kind. Returns an error reply as
/// Redis sent it.
pub(crate) fn library_text(error: &RedisError) -> String {
    let source = std::error::Error::source(error);
    if let Some(answer) = source.and_then(|source| source.downcast_ref()) {
        return words(answer);
    }
    let kind = format!(" - {:?}", error.kind());
    let text = error.to_string().replacen(&kind, "", 1);
    Escaped::said(&text).to_string()
}

/// Returns an error reply as Redis sent it, with unprintable characters escaped.
pub(crate) fn words(answer: &ServerError) -> String {
    let text = match answer.details() {
        Some(text) => format!("{} {text}", answer.code()),
        None => answer.code().into(),
    };
    Escaped::said(&text).to_string()
}

/// Returns whether the server rejected the user or the password.
pub(crate) fn is_rejected_logon(error: &RedisError) -> bool {
    error.kind() == ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("WRONGPASS" | "NOAUTH"))
}

/// Returns whether an error of logging on lasts until a setting is changed.
pub(crate) fn is_final_at_logon(error: &RedisError) -> bool {
    let kinds = [
        ErrorKind::AuthenticationFailed,
        ErrorKind::InvalidClientConfig,
        ErrorKind::MasterNameNotFoundBySentinel,
        ErrorKind::RESP3NotSupported,
    ];
    let codes = ["NOAUTH", "WRONGPASS", "NOPERM"];
    // The `redis` crate keeps only the text of a refused `SELECT`, not its code.
    let texts = ["Authentication required", "DB index", "has no permissions"];
    kinds.contains(&error.kind())
        || is_tls_refusal(error)
        || error.code().is_some_and(|code| codes.contains(&code))
        || error
            .detail()
            .is_some_and(|detail| texts.iter().any(|text| detail.contains(text)))
}

/// Returns whether one side rejected the other's certificate, or the lack of one.
#[cfg(feature = "tls")]
pub(crate) fn is_tls_refusal(error: &RedisError) -> bool {
    if let Some(ConnectFailure::Certificate(_)) = ConnectFailure::of(error) {
        return true;
    }
    use rustls::AlertDescription as Alert;
    match payload(error) {
        Some(rustls::Error::InvalidCertificate(_)) => true,
        Some(rustls::Error::AlertReceived(alert)) => matches!(
            alert,
            Alert::CertificateRequired
                | Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied
                // The alert of TLS 1.2 if the client has no certificate.
                | Alert::HandshakeFailure
        ),
        _ => false,
    }
}

#[cfg(not(feature = "tls"))]
pub(crate) fn is_tls_refusal(_: &RedisError) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(line: &str) -> ServerError {
        match redis::parse_redis_value(format!("-{line}\r\n").as_bytes()) {
            Ok(redis::Value::ServerError(error)) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_errors_that_name_a_lasting_reason_are_final() {
        for line in [
            "READONLY You can't write against a read only replica.",
            "LOADING Redis is loading the dataset in memory",
            "BUSY Redis is busy running a script.",
            "MISCONF Errors writing to disk: commands that may modify the data set are disabled",
            "NOREPLICAS Not enough good replicas to write.",
            "ERR Error running script (call to f_6b): @user_script:3: @user_script: 3: -READONLY You can't write",
            "@user_script: 3: -READONLY You can't write against a read only replica.",
        ] {
            assert_eq!(meaning(&answer(line)), Meaning::NotServing, "{line}");
            let is_replica = line.contains("READONLY") || line.starts_with("LOADING");
            assert_eq!(takes_no_writes(&answer(line)), is_replica, "{line}");
        }
        for line in [
            "OOM command not allowed",
            "@user_script: 13: -OOM command not allowed when used memory > 'maxmemory'.",
            "NOAUTH Authentication required.",
            "DENIED Redis is running in protected mode",
            "CROSSSLOT Keys in request don't hash to the same slot",
            "ERR unknown command 'EVALSHA', with args beginning with: ",
            "ERR unsupported command 'EVALSHA'",
            "ERR This instance has cluster support disabled",
            "ERR wrong number of arguments for 'evalsha' command",
            "ERR hash value is not an integer",
        ] {
            assert_eq!(meaning(&answer(line)), Meaning::Lasting, "{line}");
        }
        for line in [
            "ERR Unknown Redis command called from script script: f_1, on @user_script:10.",
            "ERR Error running script (call to f_1): @user_script:10: @user_script: 10: Unknown Redis command called from Lua script",
            "ERR This Redis command is not allowed from script script: f_1, on @user_script:3.",
        ] {
            assert_eq!(meaning(&answer(line)), Meaning::NoCommand, "{line}");
        }
        for line in [
            "upstream failure",
            "no upstream host",
            "ERR Script attempted to access a non local key in a cluster node",
            "ERR Internal error",
            "ERR max number of clients reached",
            "IOERR error or timeout writing to target instance",
            "TIMEOUT",
            "NOMASTERLINK Can't SYNC while not connected with my master",
            "UNBLOCKED force unblock from blocking operation",
            "ERR WAIT cannot be used with replica instances.",
        ] {
            assert_eq!(meaning(&answer(line)), Meaning::Unclear, "{line}");
        }
    }

    #[test]
    fn script_errors_are_read_bare_and_wrapped() {
        assert!(meaning(&answer("NOSCRIPT No matching script.")) == Meaning::NoScript);
        assert!(matches!(
            meaning(&answer("BADFENCE not a token")),
            Meaning::BadFence
        ));
        let wrapped = "ERR Error running script (call to f_1): @user_script:2: WRONGTYPE Operation against a key";
        assert!(matches!(meaning(&answer(wrapped)), Meaning::WrongType));
    }

    #[test]
    fn a_missing_permission_is_recognised_inside_scripts() {
        for line in [
            "NOPERM this user has no permissions to run the 'evalsha' command",
            "ERR The user executing the script can't run this command or subcommand script: f_1, on @user_script:9.",
            "ERR ACL failure in script: User app has no permissions to run the 'get' command",
            "ERR Error running script (call to f_1): @user_script:2: The user executing the script can't access \
             at least one of the keys mentioned in the command arguments",
        ] {
            assert!(matches!(meaning(&answer(line)), Meaning::NoRight), "{line}");
        }
    }
}
