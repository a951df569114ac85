//! Random commands from templates.

use rand::rngs::SmallRng;
use rand::{RngExt, seq::IndexedRandom};

use crate::scripts;
use crate::session::SHORT_TTL;

/// A command: its name and its arguments.
pub(crate) type Command = Vec<Vec<u8>>;

/// The keys of random commands, by type. A template's `$list` is usually `list0` or `list1`.
pub(crate) const KEYS: [&str; 9] = [
    "string0", "string1", "hash0", "hash1", "list0", "list1", "set0", "zset0", "zset1",
];

const INTEGERS: [&str; 16] = [
    "0",
    "1",
    "-1",
    "2",
    "-2",
    "3",
    "7",
    "-3",
    "100",
    "-100",
    "9223372036854775807",
    "-9223372036854775808",
    "-9223372036854775807",
    "9223372036854775808",
    "+1",
    "01",
];
const NO_INTEGERS: [&str; 6] = ["", "abc", "1.5", " 1", "-0", "1e3"];
/// Ttls that are refused or over at once. A short positive one could end while its batch runs.
const NO_TTLS: [&str; 7] = [
    "0",
    "-1",
    "-100",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "+1",
];
const SECONDS: [&str; 6] = ["0", "-1", "1", "10", "9223372036854775", "9223372036854776"];
const SCORES: [&str; 14] = [
    "0",
    "1",
    "-1",
    "2.5",
    "3",
    "1700000000000",
    "-0.25",
    "+4",
    "1e3",
    "inf",
    "-inf",
    "+inf",
    ".5",
    "5.",
];
const NO_SCORES: [&str; 7] = ["nan", "abc", "", "1e400", "1e-400", "1 ", "--1"];
const MEMBERS: [&[u8]; 9] = [
    b"a",
    b"b",
    b"c",
    b"",
    b"\xff\x00\r\n",
    b"1",
    b"hash0",
    b"set0",
    b"zset0",
];
const PATTERNS: [&str; 12] = [
    "*",
    "list*",
    "*0",
    "?ist0",
    "[a-m]*",
    "[^a-m]*[01]",
    "*s*",
    "",
    "list0",
    "\\*",
    "[z",
    "*e*0",
];

/// Fills the placeholders of templates.
pub(crate) struct Words<'a> {
    pub(crate) rng: &'a mut SmallRng,
    /// The server's time in ms.
    pub(crate) now: u64,
}

impl Words<'_> {
    /// Returns the command of a template, and sometimes one with wrong arguments.
    ///
    /// A word `$name` is replaced by [`fill`](Self::fill). The suffix `?` makes the word optional,
    /// `*` repeats it up to three times, and `+` repeats it from once to three times.
    pub(crate) fn command(&mut self, template: &str) -> Command {
        let mut command = self.filled(template);
        self.damage(&mut command);
        command
    }

    /// Returns the command of a template as it stands.
    pub(crate) fn filled(&mut self, template: &str) -> Command {
        let mut command = Command::new();
        for word in template.split(' ') {
            let repeated = word.trim_end_matches(['?', '*', '+']);
            let times = match &word[repeated.len()..] {
                "?" => self.rng.random_range(0..=1),
                "*" => self.rng.random_range(0..=3),
                "+" => self.rng.random_range(1..=3),
                _ => 1,
            };
            for _ in 0..times {
                match repeated.strip_prefix('$') {
                    Some(name) => command.extend(self.fill(name)),
                    None => command.push(repeated.into()),
                }
            }
        }
        command
    }

    /// Sometimes removes, repeats or replaces an argument, but creates no key outside of [`KEYS`].
    fn damage(&mut self, command: &mut Command) {
        let at = self.rng.random_range(0..command.len());
        match self.rng.random_range(0..100) {
            0 => command.truncate(at.max(1)),
            1 if at > 0 => command.insert(at, command[at].clone()),
            2 if at > 1 => command[at] = self.one_of(&["abc", "1.5"]),
            3 if at != 1 => command[at] = command[at].to_ascii_lowercase(),
            _ => {}
        }
    }

    fn fill(&mut self, name: &str) -> Vec<Vec<u8>> {
        let single = match name {
            "key" => self.one_of(&KEYS),
            "string" | "hash" | "list" | "set" | "zset" => self.key(name),
            "member" => self.choose(&MEMBERS).to_vec(),
            "value" if self.rng.random() => self.one_of(&INTEGERS),
            "value" => self.choose(&MEMBERS).to_vec(),
            // Redis 7.0 reads the least integer as "all"; later versions refuse it.
            "count" => self.one_of(&["0", "1", "-1", "2", "-2", "100", "-100", "abc"]),
            "integer" if self.rng.random_ratio(1, 12) => self.one_of(&NO_INTEGERS),
            "integer" => self.one_of(&INTEGERS),
            "score" if self.rng.random_ratio(1, 12) => self.one_of(&NO_SCORES),
            "score" => self.one_of(&SCORES),
            "bound" if self.rng.random_ratio(1, 3) => {
                [b"(".to_vec(), self.one_of(&SCORES)].concat()
            }
            "bound" => self.one_of(&SCORES),
            "pattern" => self.one_of(&PATTERNS),
            "type" => self.one_of(&["string", "hash", "LIST", "set", "zset"]),
            "ms" => self.ms(),
            "seconds" => self.one_of(&SECONDS),
            "when" => self.when(),
            "set-option" => return self.set_option(),
            "range-option" => return self.range_option(),
            "pair" => return [self.fill("member"), self.fill("value")].concat(),
            "scored" => return [self.fill("score"), self.fill("member")].concat(),
            _ => scripts::fill(name, self).unwrap_or_else(|| panic!("no such placeholder: {name}")),
        };
        vec![single]
    }

    fn key(&mut self, kind: &str) -> Vec<u8> {
        let matching = |key: &&&str| key.starts_with(kind);
        let of_kind: Vec<&str> = KEYS.iter().filter(matching).copied().collect();
        if self.rng.random_ratio(1, 10) {
            self.one_of(&KEYS)
        } else {
            self.one_of(&of_kind)
        }
    }

    /// Returns a ttl that ends soon after this batch of commands, or late.
    pub(crate) fn lasting_ms(&mut self) -> Vec<u8> {
        let ms = if self.rng.random_ratio(1, 20) {
            self.rng.random_range(SHORT_TTL)
        } else {
            self.rng.random_range(1_000..100_000)
        };
        ms.to_string().into_bytes()
    }

    /// Returns the time at which permits end, in ms: in the past, or after this batch of commands.
    pub(crate) fn end(&mut self) -> Vec<u8> {
        let end = match self.rng.random_range(0..8) {
            0 => return self.one_of(&["-1", "-3", "0", "inf", "-inf", "1.5"]),
            1 => self.now - 5_000,
            2 => self.now + self.rng.random_range(SHORT_TTL),
            _ => self.now + self.rng.random_range(1_000..100_000),
        };
        end.to_string().into_bytes()
    }

    /// Returns the server's time in µs, as a token, or one of other clocks.
    pub(crate) fn fresh_token(&mut self) -> Vec<u8> {
        let ms = self.now + self.choose(&[0, 0, 60_000, 120_000]) - 60_000;
        (ms * 1000).to_string().into_bytes()
    }

    /// Returns a place in a queue: when it was refreshed, its provisional time, and more.
    pub(crate) fn place(&mut self) -> Vec<u8> {
        let now = self.now;
        let place = match self.rng.random_range(0..7) {
            0 => format!("{} 3000 5 {} l inbox0", now - 5_000, now - 9_000),
            1 => format!("{now} 3000 1 {now} p nobody listens"),
            2 => format!("{now} {} 30 {now} r ", self.rng.random_range(SHORT_TTL)),
            3 => format!("{now} 3000 x {now} l inbox0"),
            // Words are missing.
            4 => format!("{} 3000 inbox0", now - 5_000),
            5 => format!("{now} {} inbox1", self.rng.random_range(SHORT_TTL)),
            _ => "no place".to_owned(),
        };
        place.into_bytes()
    }

    /// Returns a ttl that ends at once, soon after this batch of commands, or late.
    pub(crate) fn ms(&mut self) -> Vec<u8> {
        let ms = match self.rng.random_range(0..20) {
            0 => return self.one_of(&NO_TTLS),
            1 => return self.one_of(&NO_INTEGERS),
            2..4 => self.rng.random_range(SHORT_TTL),
            _ => self.rng.random_range(1_000..100_000),
        };
        ms.to_string().into_bytes()
    }

    /// Returns a time in ms: in the past, soon after this batch of commands, or later.
    fn when(&mut self) -> Vec<u8> {
        let when = match self.rng.random_range(0..20) {
            0 => return self.one_of(&INTEGERS),
            1 => self.now - 5_000,
            2..4 => self.now + self.rng.random_range(SHORT_TTL),
            _ => self.now + self.rng.random_range(1_000..100_000),
        };
        when.to_string().into_bytes()
    }

    fn set_option(&mut self) -> Vec<Vec<u8>> {
        let option = self.one_of(&["NX", "EX", "PX", "PXAT", "px", "KEEPTTL", "GET"]);
        let number = match &option[..] {
            b"EX" => self.fill("seconds"),
            b"PX" | b"px" => self.fill("ms"),
            b"PXAT" => self.fill("when"),
            _ => Vec::new(),
        };
        [vec![option], number].concat()
    }

    fn range_option(&mut self) -> Vec<Vec<u8>> {
        if self.rng.random() {
            vec![b"WITHSCORES".to_vec()]
        } else {
            let numbers = [self.fill("integer"), self.fill("integer")].concat();
            [vec![b"limit".to_vec()], numbers].concat()
        }
    }

    pub(crate) fn choose<T: Copy>(&mut self, items: &[T]) -> T {
        *items.choose(self.rng).unwrap()
    }

    pub(crate) fn one_of(&mut self, items: &[&str]) -> Vec<u8> {
        self.choose(items).as_bytes().to_vec()
    }
}
