//! Replaces text that differs between runs: ids, tokens, times, ports.

/// The texts replaced so far. They are numbered in order of appearance, so equal texts get equal
/// placeholders.
#[derive(Default)]
pub(super) struct Placeholders {
    named: Vec<(String, String)>,
    ids: Vec<String>,
    nodes: Vec<String>,
    tokens: Vec<u64>,
}

/// All ttls in the recordings, in ms. They are far apart: a remaining time in a reply belongs to
/// the ttl that is at most [`PASSED`] longer.
const TTLS: [u64; 3] = [60_000, 120_000, 300_000];

/// The longest time between the start of a ttl and a reply that tells its rest, in ms.
const PASSED: u64 = 20_000;

/// The most tokens that one acquire reserves.
const RESERVED: u64 = 64;

impl Placeholders {
    /// Adds a placeholder for a text that is known before it appears.
    pub(super) fn name(&mut self, text: &str, placeholder: &str) {
        self.named.push((text.to_owned(), placeholder.to_owned()));
    }

    pub(super) fn replace_all(&mut self, text: &str) -> String {
        let mut text = text.to_owned();
        for (named, placeholder) in &self.named {
            text = replace_words(&text, named, placeholder);
        }
        let mut out = String::new();
        let mut rest = &*text;
        while !rest.is_empty() {
            let is_part = |c: char| c.is_ascii_hexdigit() || c == '-';
            let word = &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())];
            // The end of a longer word is not an id or a token.
            let begins = !out.ends_with(|c: char| c.is_alphanumeric());
            match begins.then(|| self.placeholder_of(word)).flatten() {
                Some(placeholder) => out.push_str(&placeholder),
                None => out.push_str(word),
            }
            rest = &rest[word.len()..];
            let next = rest.chars().next();
            out.extend(next);
            rest = &rest[next.map_or(0, char::len_utf8)..];
        }
        out
    }

    fn placeholder_of(&mut self, word: &str) -> Option<String> {
        let has_dashes = || {
            [8, 13, 18, 23]
                .iter()
                .all(|at| word.as_bytes()[*at] == b'-')
        };
        match word.len() {
            36 if has_dashes() => Some(format!("<id {}>", number(&mut self.ids, word))),
            40 => Some(format!("<node {}>", number(&mut self.nodes, word))),
            // A token: µs since 1970.
            16 => word.parse().ok().map(|token| self.token(token)),
            _ => None,
        }
    }

    fn token(&mut self, token: u64) -> String {
        let is_in_block = |first: &u64| (*first..*first + RESERVED).contains(&token);
        let n = self.tokens.iter().position(is_in_block).unwrap_or_else(|| {
            self.tokens.push(token);
            self.tokens.len() - 1
        });
        match token - self.tokens[n] {
            0 => format!("<token {}>", n + 1),
            more => format!("<token {} + {more}>", n + 1),
        }
    }
}

/// Replaces `word` only if it is a whole word: the digits of a port can be a part of a token.
fn replace_words(text: &str, word: &str, placeholder: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(word) {
        let (before, after) = (&rest[..at], &rest[at + word.len()..]);
        out.push_str(before);
        let begins = !out.ends_with(char::is_alphanumeric);
        let ends = !after.starts_with(char::is_alphanumeric);
        out.push_str(if begins && ends { placeholder } else { word });
        rest = after;
    }
    out + rest
}

/// Returns the text with the same placeholder for all ids.
pub(super) fn without_ids(text: &str) -> String {
    let mut placeholders = Placeholders::default();
    let text = placeholders.replace_all(text);
    (1..=placeholders.ids.len()).fold(text, |text, n| text.replace(&format!("<id {n}>"), "<id>"))
}

/// Returns the number of a word, from 1. A new word gets the next number.
fn number(known: &mut Vec<String>, word: &str) -> usize {
    let n = known.iter().position(|one| one == word).unwrap_or_else(|| {
        known.push(word.to_owned());
        known.len() - 1
    });
    n + 1
}

/// Returns a reply with each remaining time replaced by its ttl, the time since a grant after it
/// replaced, too, and an error reduced to its code.
pub(super) fn without_times_and_error_texts(reply: &str) -> String {
    let is_redirect = reply.starts_with("-MOVED") || reply.starts_with("-ASK");
    if reply.starts_with('-') && !is_redirect {
        return reply.split(' ').next().unwrap_or(reply).to_owned();
    }
    // A refusal of permits ends with their number instead.
    let has_age = reply.starts_with("[0, \"");
    let mut follows_ttl = false;
    let word = |word: &str| {
        let number = word.trim_matches(['[', ']', ',']);
        if std::mem::take(&mut follows_ttl) && number.parse::<i64>().is_ok() {
            return word.replace(number, "<ms since the grant>");
        }
        let ttl = number.parse().ok().and_then(|left: u64| {
            let can_leave = |ttl: &u64| (ttl - PASSED..=*ttl).contains(&left);
            TTLS.into_iter().find(can_leave)
        });
        follows_ttl = has_age && ttl.is_some();
        match ttl {
            Some(ttl) => word.replace(number, &format!("<up to {ttl}>")),
            None => word.to_owned(),
        }
    };
    reply.split(' ').map(word).collect::<Vec<_>>().join(" ")
}
