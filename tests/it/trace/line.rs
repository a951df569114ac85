//! An exchange as text: the request word by word, and its reply on the next line.

use std::collections::{HashSet, VecDeque};

use support::Exchange;

use super::placeholders::{without_ids, without_times_and_error_texts};

/// The commands that a client sends first on a new connection.
const LOG_ON: [&str; 4] = ["AUTH", "CLIENT", "HELLO", "SELECT"];

pub(super) fn is_log_on(exchange: &Exchange) -> bool {
    LOG_ON.contains(&&*name(exchange))
}

/// Returns whether a request changes subscriptions. Its confirmation is a message for each channel.
pub(super) fn is_subscribing(exchange: &Exchange) -> bool {
    ["SUBSCRIBE", "UNSUBSCRIBE"].contains(&&*name(exchange))
}

pub(super) fn is_confirmation(exchange: &Exchange) -> bool {
    let message = exchange.reply.as_deref().unwrap_or_default();
    let kind = message.trim_start_matches("push ");
    exchange.is_message()
        && (kind.starts_with("[\"subscribe\"") || kind.starts_with("[\"unsubscribe\""))
}

/// Returns the command, the script, or `message`, with the payload of the message that a client
/// publishes to itself.
pub(super) fn name(exchange: &Exchange) -> String {
    let message = exchange.reply.as_deref().unwrap_or_default();
    let request = &exchange.request;
    if exchange.is_message() {
        let is_probe = message.ends_with(", \"probe\"]");
        let name = if is_probe { "message probe" } else { "message" };
        name.to_owned()
    } else if request.name() == "PUBLISH" && request.words[2] == b"probe" {
        "PUBLISH probe".to_owned()
    } else {
        request.name()
    }
}

/// Returns the text of each exchange, without those that differ only in ids. Subscriptions, each
/// with its confirmation, and messages come last.
pub(super) fn lines(exchanges: &[Exchange], is_shown: impl Fn(&Exchange) -> bool) -> Vec<String> {
    let (mut lines, mut known) = (Vec::new(), HashSet::new());
    let shown = exchanges.iter().enumerate();
    let shown = shown.filter(|(_, one)| is_shown(one));
    let (subscribers, others): (Vec<_>, Vec<_>) =
        shown.partition(|(_, one)| one.is_message() || is_subscribing(one));
    let subscribers = confirmed_at_once(subscribers);
    for (n, exchange) in others.into_iter().chain(subscribers) {
        let (before, after) = (&exchanges[..n], &exchanges[n + 1..]);
        if before.iter().any(|one| is_again(one, exchange)) {
            continue;
        }
        let line = line(exchange, after.iter().find(|one| is_again(exchange, one)));
        if known.insert(without_ids(&line)) {
            lines.push(line);
        }
    }
    lines
}

/// Moves each confirmation to its request: several requests may have been on their way.
fn confirmed_at_once(exchanges: Vec<(usize, &Exchange)>) -> Vec<(usize, &Exchange)> {
    let mut left = exchanges.into_iter().collect::<VecDeque<_>>();
    let mut moved = Vec::new();
    while let Some((n, exchange)) = left.pop_front() {
        moved.push((n, exchange));
        if is_subscribing(exchange) {
            let channel = format!("{:?}", String::from_utf8_lossy(&exchange.request.words[1]));
            let is_its_own = |(_, one): &(usize, &Exchange)| {
                let text = one.reply.as_deref().unwrap_or_default();
                let connection = one.request.connection;
                is_confirmation(one)
                    && connection == exchange.request.connection
                    && text.contains(&channel)
            };
            let at = left.iter().position(is_its_own);
            moved.extend(at.and_then(|at| left.remove(at)));
        }
    }
    moved
}

pub(super) fn has_no_script(exchange: &Exchange) -> bool {
    let reply = exchange.reply.as_deref();
    reply.is_some_and(|reply| reply.starts_with("-NOSCRIPT"))
}

/// Returns true if `again` is the call of a script that was missing, with its source.
fn is_again(missing: &Exchange, again: &Exchange) -> bool {
    let [before, now] = [missing, again].map(|one| &one.request);
    has_no_script(missing)
        && now.words.first().is_some_and(|word| word == b"EVAL")
        && before.connection == now.connection
        && before.words[2..] == now.words[2..]
}

/// Returns the request and its reply, or the reply of its repetition with the script's source.
pub(super) fn line(exchange: &Exchange, again: Option<&Exchange>) -> String {
    if exchange.is_message() {
        return format!("    <- {}", exchange.reply.as_deref().unwrap_or_default());
    }
    let words = words(exchange);
    match again {
        _ if is_subscribing(exchange) => words,
        None => format!("{words}\n    -> {}", reply(exchange, &words)),
        Some(again) => format!("{words}\n    -> NOSCRIPT, EVAL -> {}", reply(again, &words)),
    }
}

fn words(exchange: &Exchange) -> String {
    let script = exchange.request.name();
    let words = exchange.request.words.iter().enumerate().map(|(n, word)| {
        let is_script = n == 1 && exchange.request.words[0].starts_with(b"EVAL");
        if is_script {
            format!("<{script}>")
        } else if word.is_empty() || word.contains(&b' ') {
            format!("\"{}\"", word.escape_ascii())
        } else {
            word.escape_ascii().to_string()
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

fn reply(exchange: &Exchange, words: &str) -> String {
    // The replies to these two commands differ between servers.
    if words.starts_with("HELLO") {
        return "<properties of the server>".to_owned();
    }
    if words.starts_with("CLIENT SETINFO") {
        return "<OK, or an error of an older server>".to_owned();
    }
    match (&exchange.reply, exchange.is_lost) {
        (Some(reply), false) => without_times_and_error_texts(reply),
        (Some(reply), true) => format!("{} (lost)", without_times_and_error_texts(reply)),
        (None, _) => "(lost)".to_owned(),
    }
}
