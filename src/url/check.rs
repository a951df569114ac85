//! Mistakes in a URL that the `redis` crate would misread, or reject without a reason.

use crate::error::Error;
use crate::url::foreign::parameter_advice;

/// The error for a user or password containing a character that ends that part of the URL.
pub(super) const UNESCAPED: &str = "a character of the user or password is not escaped \
     (write / as %2F, ? as %3F, # as %23, @ as %40 and % as %25)";

/// The error for a URL such as `redis+quorum://u:p@h1,u:p@h2`.
const LOGON_PER_HOST: &str = "several hosts have a user and password: write them once, before the \
     first host (inside a user or password, write @ as %40), or give ClientBuilder::quorum, \
     cluster or sentinel one URL for each server";

/// Returns an error for a URL that the `redis` crate would misread, or reject without a reason.
pub(super) fn check_places(url: &str) -> Result<(), String> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    check_fragment(rest)?;
    // A path may contain an @.
    if scheme.ends_with("unix") {
        return Ok(());
    }
    if is_logon_cut_off(rest) {
        Err(UNESCAPED.into())
    } else if has_logon_per_host(rest) {
        Err(LOGON_PER_HOST.into())
    } else if host_and_port(rest).contains(',') {
        Err("several servers: use redis+sentinel://, redis+cluster:// or redis+quorum://".into())
    } else {
        check_port(rest)
    }
}

/// Returns true if an `@` follows the first `/`, `?` or `#`: the user or password then contains one
/// of these unescaped.
pub(super) fn is_logon_cut_off(rest: &str) -> bool {
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    rest.get(end..).is_some_and(|behind| behind.contains('@'))
}

/// Returns true if there is a `,` between the first and the last `@` before the path. In such a URL
/// the last `@` would end the password, and the password would contain all hosts but the last.
fn has_logon_per_host(rest: &str) -> bool {
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let behind_first = authority.split_once('@').map(|(_, behind)| behind);
    let between = behind_first.and_then(|behind| behind.rsplit_once('@'));
    between.is_some_and(|(between, _)| between.contains(','))
}

/// Returns an error for a fragment: the `redis` crate ignores most of them.
pub(super) fn check_fragment(rest: &str) -> Result<(), String> {
    match rest.split_once('#') {
        None => Ok(()),
        Some((_, "insecure")) => Err(
            "#insecure is not supported, the server's certificate is always checked: remove it, \
             and pass a private certificate authority to ClientBuilder::tls_root"
                .into(),
        ),
        Some((_, fragment)) if fragment.contains('@') => Err(UNESCAPED.into()),
        Some(_) => Err("the part after # has no meaning: remove it, or write # as %23".into()),
    }
}

/// Returns the part after the user and password, and before the path.
fn host_and_port(rest: &str) -> &str {
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    authority.rsplit('@').next().unwrap_or_default()
}

/// Returns an error for an invalid port.
pub(super) fn check_port(rest: &str) -> Result<(), String> {
    let host = host_and_port(rest);
    // The colons in brackets belong to an IPv6 address.
    let behind = host.rsplit(']').next().unwrap_or_default();
    match behind.split_once(':') {
        None | Some((_, "")) => Ok(()),
        Some((_, more)) if more.contains(':') => {
            Err("an IPv6 address must be in brackets, as in redis://[::1]:6379".into())
        }
        Some((_, port)) => match port.parse() {
            Ok(1..=u16::MAX) => Ok(()),
            _ if port.bytes().all(|byte| byte.is_ascii_digit()) => {
                Err("its port must be between 1 and 65535".into())
            }
            _ => Err(
                "its port is not a number (a user and password before the host end with @)".into(),
            ),
        },
    }
}

/// Returns an error for an unknown parameter, which would have no effect. The error names it only
/// if it cannot be a piece of a password whose `?` or `&` is not escaped.
pub(super) fn check_query(query: &str, known: &[&str]) -> Result<(), String> {
    let mut may_be_secret = query.contains('@');
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, has_value) = match pair.split_once('=') {
            Some((name, _)) => (name, true),
            None => (pair, false),
        };
        if !known.contains(&name) {
            let is_plain = name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
            let parameter = match parameter_advice(name) {
                _ if may_be_secret || !has_value || !is_plain => {
                    "(not repeated here: it may be a piece of a password; \
                     write ? as %3F, & as %26 and @ as %40)"
                        .into()
                }
                Some(advice) => format!("`{name}`: {advice}"),
                None => format!("`{name}`"),
            };
            return Err(format!(
                "unknown parameter {parameter}; this kind of URL has: {}",
                known.join(", ")
            ));
        }
        may_be_secret |= name == "pass" || name == "sentinel_pass";
    }
    Ok(())
}

/// Returns the number of the database in the path and in the parameter `db`, which must agree.
pub(super) fn one_database(in_path: i64, query: &str) -> Result<i64, String> {
    let parameter = query.split('&').find_map(|pair| pair.strip_prefix("db="));
    match parameter.map(str::parse::<i64>) {
        None => Ok(in_path),
        Some(Ok(db)) if db >= 0 && (in_path == 0 || in_path == db) => Ok(db),
        Some(Ok(0..)) => Err("the path and the parameter `db` name different databases".into()),
        Some(_) => Err("the parameter `db` must be the number of a database".into()),
    }
}

/// Returns the error for a URL that is not of the `expected` form.
pub(super) fn invalid(what: impl AsRef<str>, expected: &str) -> Error {
    Error::Config(format!(
        "invalid URL: {}; expected {expected}",
        what.as_ref()
    ))
}
