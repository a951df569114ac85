//! The crate's scripts, and random calls of them by several holders.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rand::RngExt;
use support::in_repository;

use crate::words::{Command, Words};

/// The keys of all calls.
pub(crate) const KEYS: [&str; 13] = [
    "lock0", "fence0", "queue0", "places0", "readers0", "permits0", "lock1", "fence1", "queue1",
    "places1", "readers1", "permits1", "stats",
];

/// The channels of all calls.
pub(crate) const CHANNELS: [&str; 4] = ["wake0", "wake1", "inbox0", "inbox1"];

/// Each script's name, and a template of its keys and arguments. `#` is the number of a lock.
const SCRIPTS: &[(&str, &str)] = &[
    ("acquire", "2 lock# fence# $id $ttl $tokens?"),
    ("acquire_after", "3 lock1 fence1 lock0 $id $ttl $id"),
    ("propose", "2 lock# fence# $id $ttl $token $token?"),
    ("release", "1 lock# $id wake#"),
    ("undo", "1 lock# wake# $id+"),
    ("renew", "1 lock# $id $ttl $one?"),
    ("renew_many", "2 lock0 lock1 $ttl $id $id"),
    ("renew_many", "1 lock# $ttl $id"),
    ("inspect", "2 lock# fence#"),
    ("fence", "1 fence#"),
    ("add_stats", "1 stats attempts $count released $count"),
    ("probe", "1 fence#"),
    (
        "queue_enter",
        "5 lock# fence# queue# places# readers# $id $ttl $wanted $joined",
    ),
    (
        "queue_enter",
        "5 lock# fence# queue# places# readers# $id $ttl $wanted 0",
    ),
    (
        "queue_refresh",
        "5 lock# fence# queue# places# readers# $inbox $id+",
    ),
    (
        "queue_release",
        "5 lock# fence# queue# places# readers# $id wake#",
    ),
    (
        "queue_undo",
        "5 lock# fence# queue# places# readers# wake# $id+",
    ),
    (
        "cohort queue_refresh",
        "5 lock# fence# queue# places# readers# $block $inbox $id+",
    ),
    (
        "cohort_release",
        "5 lock# fence# queue# places# readers# $id wake# $one?",
    ),
    (
        "permits queue_enter",
        "4 permits# fence# queue# places# $member $ttl $want $joined",
    ),
    (
        "permits queue_enter",
        "4 permits# fence# queue# places# $member $ttl $want 0",
    ),
    (
        "permits queue_refresh",
        "4 permits# fence# queue# places# $inbox $member+",
    ),
    (
        "permits queue_release",
        "4 permits# fence# queue# places# $member wake#",
    ),
    (
        "permits queue_undo",
        "4 permits# fence# queue# places# wake# $member+",
    ),
    ("permits_renew", "1 permits# $member $ttl $one?"),
    (
        "permits_renew_many",
        "3 permits0 permits1 permits0 $ttl $member $member $member",
    ),
    ("permits_renew_many", "1 permits# $ttl $member"),
    ("permits_inspect", "2 permits# fence# $most"),
    (
        "downgrade",
        "5 lock# fence# queue# places# readers# $id $ttl",
    ),
    ("renew_shared", "2 lock# readers# $id $ttl $one?"),
    (
        "renew_shared_many",
        "6 lock0 readers0 lock1 readers1 lock0 readers0 $ttl $id $id $id",
    ),
    ("inspect_shared", "3 lock# fence# readers#"),
];

/// Commands of other clients, some of which damage the keys.
const OTHERS: &[&str] = &[
    "DEL lock#",
    "DEL lock# fence# queue# places#",
    "SET lock# $id PX $ttl",
    "SET lock# $foreign",
    "DEL permits#",
    "SET permits# $foreign",
    "ZADD permits# $ends $member",
    "ZADD permits# $ends out",
    "ZREM permits# $member",
    "PEXPIRE permits# $ttl",
    "SET lock# leasehold:readers PX $ttl",
    "DEL readers#",
    "SET readers# $foreign",
    "ZADD readers# $ends $id",
    "ZREM readers# $id",
    "PEXPIRE readers# $ttl",
    "SET fence# $fence",
    "SET queue# $foreign",
    "RPUSH lock# $id",
    "RPUSH queue# $id+",
    "LPUSH places# $id",
    "RPUSH fence# $foreign",
    "LREM queue# 1 $id",
    "HSET places# $id $place",
    "HSET stats attempts $foreign",
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
        let files = files_of_scripts();
        let script = |&(name, template): &(&'static str, &'static str)| {
            let files = files
                .get(name)
                .unwrap_or_else(|| panic!("no script {name}"));
            let source: String = files.iter().map(|file| read(&in_sources(file))).collect();
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
        "member" => words.one_of(&[
            "1 id0", "1 id1", "2 id2", "3 id3", "1 id-4", "id0", "07 id5",
        ]),
        "want" => words.one_of(&["1/3", "1/3", "2/3", "3/3", "1/1", "2/5"]),
        "wanted" => words.one_of(&["r", "r", "r", "1", "5", "30", "+1", "+33"]),
        "ends" => words.end(),
        "ttl" => words.lasting_ms(),
        "one" => b"1".to_vec(),
        "flag" => words.one_of(&["0", "1"]),
        "at" => words.one_of(&["0", "1", "2"]),
        "tokens" => words.one_of(&["1", "2", "5", "30"]),
        // None or all: of two that end together, the two servers may list either one first.
        "most" => words.one_of(&["0", "30"]),
        "block" => words.one_of(&["+1", "+33"]),
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
        "inbox" => words.one_of(&["inbox0", "inbox1", "nobody listens", ""]),
        "mark" => words.one_of(&["l", "n", "a"]),
        "joined" => words.one_of(&["0", "l inbox0", "n inbox1", "a nobody listens", "a "]),
        "place" => words.place(),
        "count" => words.one_of(&["3", "1", "x"]),
        _ => return None,
    })
}

/// Returns the scripts that the table lacks, and the files that no script has.
pub(crate) fn unlisted() -> Vec<String> {
    let scripts = files_of_scripts();
    let is_in_table = |name: &String| SCRIPTS.iter().any(|(script, _)| script == name);
    let is_in_script = |name: &String| scripts.values().flatten().any(|file| file == name);
    let unused = files().into_iter().map(|file| stem(&file));
    let unused = unused.filter(|name| !is_in_script(name));
    let lacking = scripts.keys().filter(|name| !is_in_table(name)).cloned();
    lacking.chain(unused).collect()
}

/// Returns the files of each script, in their order, as the crate's sources list them.
///
/// `static UNDO: Script = script!("undo", "rewrite")` names the last file, the
/// commands, and then the files before the last one. `queue_script!` adds the files of the queue
/// before and after those. `queue_scripts!` does so for each of the scripts that it names itself.
/// The files of fast paths begin an enter and a release.
fn files_of_scripts() -> BTreeMap<String, Vec<String>> {
    let names: Vec<String> = files().iter().map(|file| stem(file)).collect();
    let named_in = |text: &str| -> Vec<String> {
        let literals = text.split('"').skip(1).step_by(2).map(str::to_owned);
        literals.filter(|literal| names.contains(literal)).collect()
    };
    let sources = in_folder("rs");
    let sources: String = sources.iter().map(|file| read(file)).collect();
    let body_of = |makes: &str| {
        let start = format!("macro_rules! {makes} ");
        let body = statements(&sources, &start).next();
        body.expect("the macro is in the sources")
    };
    let of_queue = body_of("queue_script").split_once("$(, $functions)+");
    let (before, after) = of_queue.expect("the functions that it is given are between its own");
    let around = |given: &[String]| {
        let (fast, given): (Vec<_>, Vec<_>) = given
            .iter()
            .cloned()
            .partition(|file| file.ends_with("_free"));
        let before = named_in(before);
        let (first, before) = before.split_at(1);
        [first, &fast, before, &given, &named_in(after)].concat()
    };
    let mut scripts = BTreeMap::new();
    let mut add = |name: &str, mut files: Vec<String>| {
        files.push(name.to_owned());
        let name = shown(name, &files);
        assert!(
            scripts.insert(name.clone(), files).is_none(),
            "twice: {name}"
        );
    };
    for script in statements(&sources, ": Script =") {
        let named = named_in(script);
        let (name, given) = named.split_first().expect("a script has a file");
        match script.trim().split_once('!').expect("a macro makes it").0 {
            "script" => add(name, given.to_vec()),
            "queue_script" => add(name, around(given)),
            other => panic!("unknown macro {other}"),
        }
    }
    for given in statements(&sources, ": QueueScripts =") {
        for name in named_in(body_of("queue_scripts")) {
            let mut given = named_in(given);
            given.retain(|file| match name.as_str() {
                "queue_enter" => !file.ends_with("leave_free"),
                "queue_release" => file.ends_with("leave_free") || !file.ends_with("_free"),
                _ => !file.ends_with("_free"),
            });
            add(&name, around(&given));
        }
    }
    scripts
}

/// Returns the name of a script in the table: several have the same last file.
fn shown(name: &str, files: &[String]) -> String {
    let has = |file: &str| files.iter().any(|it| it == file);
    let kind = match name.strip_prefix("queue_") {
        Some(_) if has("admit_permits") => "permits ",
        Some(_) if has("cohort_refresh") => "cohort ",
        _ => "",
    };
    let after = if has("after") { "_after" } else { "" };
    format!("{kind}{name}{after}")
}

/// Returns the text after each `start` in a source, up to the end of the statement or item.
fn statements<'a>(source: &'a str, start: &str) -> impl Iterator<Item = &'a str> {
    let ends = |text: &str| [";\n", "\n}"].iter().filter_map(|end| text.find(end)).min();
    let begun = source.split(start).skip(1);
    begun.map(move |text| &text[..ends(text).unwrap_or(text.len())])
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
///
/// # Panics
///
/// If the command of a call is not a literal: this test would miss it.
pub(crate) fn commands_in(source: &str) -> Vec<String> {
    let code = source
        .lines()
        .map(|line| line.split("--").next().unwrap_or(line));
    let code: String = code.flat_map(|line| [line, "\n"]).collect();
    let command = |call: &str| {
        let name = call.trim_start().strip_prefix('(')?.trim_start();
        let name = name.strip_prefix(['\'', '"'])?.split(['\'', '"']).next()?;
        Some(name.to_owned())
    };
    let calls = code.replace("redis.pcall", "redis.call");
    let calls = calls.split("redis.call").skip(1);
    let command = |call| {
        command(call).unwrap_or_else(|| {
            let line = call.lines().next().unwrap_or_default();
            panic!("the command is not written at its call: redis.call{line}")
        })
    };
    calls.map(command).collect()
}

fn files() -> Vec<PathBuf> {
    in_folder("lua")
}

/// Returns the crate's files about scripts that have this extension.
fn in_folder(extension: &str) -> Vec<PathBuf> {
    let folder = in_repository("src/protocol");
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    files
        .filter(|file| file.extension().is_some_and(|it| it == extension))
        .collect()
}

fn in_sources(script: &str) -> PathBuf {
    let folder = in_repository("src/protocol");
    folder.join(script).with_extension("lua")
}

fn stem(file: &Path) -> String {
    file.file_stem().unwrap().to_str().unwrap().to_owned()
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}
