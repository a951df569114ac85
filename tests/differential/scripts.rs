//! The crate's scripts, and random calls of them by several holders.

use std::fs;
use std::path::{Path, PathBuf};

use rand::RngExt;

use crate::words::{Command, Words};

/// The keys of all calls.
pub(crate) const KEYS: [&str; 10] = [
    "lock0", "fence0", "queue0", "places0", "lock1", "fence1", "queue1", "places1", "tally", "last",
];

/// The channels of all calls.
pub(crate) const CHANNELS: [&str; 4] = ["wake0", "wake1", "inbox0", "inbox1"];

/// Each script's name, the files before it, and a template of its keys and arguments. `#` is the
/// number of a lock.
#[rustfmt::skip]
const SCRIPTS: &[(&str, &[&str], &str)] = &[
    ("acquire", &["last_token"], "2 lock# fence# $id $ttl $tokens?"),
    ("acquire_all", &["last_token"], "4 lock0 lock1 fence0 fence1 $id $ttl"),
    ("propose", &["last_token"], "2 lock# fence# $id $ttl $token $token?"),
    ("propose_all", &["last_token"], "4 lock0 lock1 fence0 fence1 $id $ttl $token"),
    ("release", &["rewrite"], "1 lock# $id wake# $one?"),
    ("release_all", &["rewrite"], "2 lock0 lock1 wake0 wake1 $id+"),
    ("undo", &["rewrite"], "1 lock# wake# $id+"),
    ("renew", &["rewrite"], "1 lock# $id $ttl $one?"),
    ("renew_all", &["rewrite"], "2 lock0 lock1 $id $ttl $one?"),
    ("inspect", &[], "2 lock# fence#"),
    ("fence", &[], "1 fence#"),
    ("tally", &[], "2 tally last $tokens $counts"),
    ("fair_enter", &FAIR, "4 lock# fence# queue# places# $id $ttl 1 $inbox?"),
    ("fair_enter", &FAIR, "4 lock# fence# queue# places# $id $ttl 0"),
    ("fair_refresh", &FAIR, "4 lock# fence# queue# places# $inbox $id+"),
    ("fair_release", &FAIR, "4 lock# fence# queue# places# $id wake#"),
    ("fair_undo", &FAIR, "4 lock# fence# queue# places# wake# $id+"),
];

const FAIR: [&str; 2] = ["last_token", "fair_grant"];

/// Commands of other clients, some of which damage the keys.
const OTHERS: &[&str] = &[
    "DEL lock#",
    "DEL lock# fence# queue# places#",
    "SET lock# $id PX $ttl",
    "SET lock# $foreign",
    "SET fence# $fence",
    "SET queue# $foreign",
    "RPUSH lock# $id",
    "RPUSH queue# $id+",
    "LPUSH places# $id",
    "RPUSH fence# $foreign",
    "LREM queue# 1 $id",
    "HSET places# $id $place",
    "HSET tally attempts $foreign",
    "DEL tally last",
    "PEXPIRE lock# $ttl",
    "PEXPIRE queue# $ttl",
    "PEXPIRE places# $ttl",
    "PERSIST lock#",
];

/// A script that both servers have loaded.
pub(crate) struct Script {
    pub(crate) name: &'static str,
    digest: String,
    template: &'static str,
}

impl Script {
    /// Returns all scripts; `load` returns the digest of a source.
    pub(crate) fn all(mut load: impl FnMut(&str) -> String) -> Vec<Self> {
        let script = |&(name, functions, template): &(&'static str, &[&str], _)| {
            let files = functions.iter().chain([&name]);
            let source: String = files.map(|name| read(&in_sources(name))).collect();
            Self {
                name,
                digest: load(&source),
                template,
            }
        };
        SCRIPTS.iter().map(script).collect()
    }

    pub(crate) fn digest(&self) -> &[u8] {
        self.digest.as_bytes()
    }
}

/// Returns a random call of a script, or a command of another client.
pub(crate) fn random_call(scripts: &[Script], words: &mut Words<'_>) -> Command {
    let number = words.one_of(&["0", "0", "1"]);
    let number = str::from_utf8(&number).unwrap();
    if words.rng.random_ratio(1, 6) {
        let template = words.choose(OTHERS);
        return words.filled(&template.replace('#', number));
    }
    let script = &scripts[words.rng.random_range(0..scripts.len())];
    let template = script.template.replace('#', number);
    words.filled(&format!("EVALSHA {} {template}", script.digest))
}

/// Fills the placeholders of this file's templates; `None` for another one.
pub(crate) fn fill(name: &str, words: &mut Words<'_>) -> Option<Vec<u8>> {
    Some(match name {
        // Redis cuts foreign values of more than 1088 bytes.
        "id" if words.rng.random_ratio(1, 50) => vec![b'x'; 1200],
        "id" => words.one_of(&["id0", "id1", "id2", "id3", "id-4"]),
        "ttl" => words.lasting_ms(),
        "one" => b"1".to_vec(),
        "tokens" => words.one_of(&["1", "2", "5", "30"]),
        "token" => words.fresh_token(),
        "fence" if words.rng.random() => words.fresh_token(),
        "fence" => words.one_of(&[
            "0",
            "7",
            "007",
            "-1",
            "1.5",
            "abc",
            "",
            "9007199254740989",
            "9007199254740990",
            "9007199254740991",
            "9007199254740992",
            "18446744073709551616",
        ]),
        "foreign" if words.rng.random_ratio(1, 4) => vec![b'f'; 2000],
        "foreign" => words.one_of(&["foreign", "", "5"]),
        "inbox" => words.one_of(&["inbox0", "inbox1", ""]),
        "place" => words.place(),
        "counts" => words.one_of(&["attempts 3 released 2", "attempts 1", "", "lost x"]),
        _ => return None,
    })
}

/// Returns an error for each script in the folder that is not in the table.
pub(crate) fn unlisted() -> Vec<String> {
    let is_listed = |name: &str| {
        let mut scripts = SCRIPTS.iter();
        scripts.any(|(script, functions, _)| *script == name || functions.contains(&name))
    };
    let names = files().into_iter().map(|file| stem(&file));
    names.filter(|name| !is_listed(name)).collect()
}

/// Returns the commands that the crate's scripts call, each with the script's name.
pub(crate) fn calls() -> Vec<(String, String)> {
    let calls = |file: &PathBuf| {
        let commands = commands_in(&read(file)).into_iter();
        let name = stem(file);
        commands
            .map(move |command| (name.clone(), command))
            .collect::<Vec<_>>()
    };
    files().iter().flat_map(calls).collect()
}

/// Returns the commands of `redis.call('GET', …)` and `redis.pcall("GET", …)`.
pub(crate) fn commands_in(source: &str) -> Vec<String> {
    let calls = source.split("call(").skip(1);
    let command = |call: &str| {
        let call = call.trim_start();
        let quoted = call.strip_prefix(['\'', '"'])?;
        Some(quoted.split(['\'', '"']).next()?.to_owned())
    };
    calls.filter_map(command).collect()
}

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/protocol");
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    files
        .filter(|file| file.extension().is_some_and(|it| it == "lua"))
        .collect()
}

fn in_sources(script: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/protocol");
    folder.join(script).with_extension("lua")
}

fn stem(file: &Path) -> String {
    file.file_stem().unwrap().to_str().unwrap().to_owned()
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}
