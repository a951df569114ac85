//! Promise: modules import only from lower layers, no files import each other in a cycle, only the
//! clock reads the time, lines are short, and long tests are in files of their own.

mod source;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use tree::{Module, Tree};

/// The folders of `src` from the top down. Files directly in `src` are the lowest layer.
const LAYERS: [&str; 11] = [
    "testing", "api", "client", "runtime", "redis", "set", "quorum", "kernel", "lease", "protocol",
    "stats",
];

/// Returns the library without the simulated world, which is a test of the kernel.
fn library() -> Tree {
    let mut tree = Tree::read(&in_repository("src"), "lib");
    tree.sources
        .retain(|module, _| !module.starts_with(&path("sim")));
    tree
}

/// One world simulates the kernel over one server and over several: it has its own folder.
#[test]
fn the_simulated_world_is_outside_of_the_kernel() {
    assert!(in_repository("src/sim/world.rs").exists());
    for gone in ["src/kernel/sim", "src/kernel/sim.rs", "src/sim/quorum"] {
        assert!(!in_repository(gone).exists(), "{gone}");
    }
}

/// The kernel knows one server: what answers for several counts their votes and messages above it,
/// without I/O or clock.
#[test]
fn the_kernel_knows_no_quorum() {
    let mut found = Vec::new();
    for (module, source) in library().sources {
        let folder = module.first().map_or("", String::as_str);
        for line in source.lines() {
            let is_wrong = match folder {
                "kernel" => is_of_quorums(line),
                "quorum" => does_io(line),
                _ => false,
            };
            if is_wrong {
                found.push(format!("{}: {}", module.join("/"), line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

fn is_of_quorums(line: &str) -> bool {
    let lower = line.to_lowercase();
    let of_identifiers = [
        "quorum",
        "majorit",
        "atserver",
        "serverno",
        "roundno",
        "roundkind",
    ];
    let is_letter = |c: char| c.is_alphanumeric() || c == '_';
    let mut words = lower.split(|c| !is_letter(c));
    let is_vote = |word: &str| ["vote", "votes", "voted", "voting"].contains(&word);
    let counts_rounds = ["round", "rounds"].iter().any(|round| {
        lower.match_indices(round).any(|(at, _)| {
            let (before, after) = (&lower[..at], &lower[at + round.len()..]);
            let is_word = !before.ends_with(is_letter) && !after.starts_with(is_letter);
            // A number is rounded, and a round trip is none of several.
            let is_other = [" trip", "-trip", " up", " down", " the"];
            let is_other = is_other.iter().any(|it| after.starts_with(it));
            is_word && !before.ends_with('.') && !is_other
        })
    });
    counts_rounds || words.any(is_vote) || of_identifiers.iter().any(|it| lower.contains(it))
}

fn does_io(line: &str) -> bool {
    let forbidden = [
        "Instant::now",
        "std::net",
        "std::thread",
        "crate::redis",
        "crate::runtime",
        "crate::client",
        "kernel::Kernel",
    ];
    forbidden.iter().any(|word| line.contains(word))
}

#[test]
fn words_of_quorums_are_detected() {
    for line in [
        "a majority of",
        "two rounds",
        "its vote",
        "at: ServerNo",
        "is_quorum",
        "RoundNo",
    ] {
        assert!(is_of_quorums(line), "{line}");
    }
    for line in [
        "a round trip",
        "rounds up",
        "x.round()",
        "around",
        "devoted",
        "background",
    ] {
        assert!(!is_of_quorums(line), "{line}");
    }
}

/// Locks of several names are composed above the kernel, which knows the lock of one name.
#[test]
fn the_kernel_knows_no_sets() {
    for gone in [
        "src/kernel/set.rs",
        "src/kernel/acquiring.rs",
        "src/protocol/all.rs",
    ] {
        assert!(!in_repository(gone).exists(), "{gone}");
    }
    let of_sets = |word: &str| {
        let word = word.trim_end_matches(|c: char| !c.is_alphanumeric());
        let is_name = [
            "_of_set",
            "of_set",
            "is_set",
            "set_with",
            "IdOfSet",
            "SetAcquire",
        ];
        is_name.iter().any(|name| word.ends_with(name)) || word == "sets" || word == "set::"
    };
    let mut found = Vec::new();
    for (module, source) in library().sources {
        if module.first().is_none_or(|folder| folder != "kernel") {
            continue;
        }
        let articles = [
            "a set",
            "the set",
            "of sets",
            "for a set",
            "each set",
            "its set",
            "whole set",
        ];
        for line in source.lines() {
            let has_article = line.contains("//")
                && articles.iter().any(|it| {
                    line.split(it)
                        .skip(1)
                        .any(|rest| !rest.starts_with(char::is_alphanumeric))
                });
            if has_article || line.split_whitespace().any(of_sets) {
                found.push(format!("{}: {}", module.join("/"), line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn imports_point_downward() {
    let upward: Vec<String> = library()
        .edges()
        .into_iter()
        // The root re-exports the public names.
        .filter(|(from, to)| !from.is_empty() && layer(to) < layer(from))
        .map(|(from, to)| format!("{} imports {}", from.join("/"), to.join("/")))
        .collect();
    assert!(upward.is_empty(), "upward imports:\n{}", upward.join("\n"));
}

#[test]
fn no_two_files_import_each_other() {
    let folders = [
        ("src", "lib"),
        ("src/bin/leasehold", "main"),
        ("benches/common", "lib"),
        ("benches/peers", "benchmarks"),
    ];
    let cycles = folders.iter().flat_map(|(folder, root)| {
        let tree = Tree::read(&in_repository(folder), root);
        // The files of one folder may import each other, except in these three.
        let is_in_one_folder = |cycle: &Vec<Module>| {
            let mut folders = cycle.iter().map(|module| module.first());
            let first = folders.next();
            let is_strict =
                |folder: &String| ["kernel", "set", "quorum"].contains(&folder.as_str());
            let is_exempt = first.flatten().is_some_and(|folder| !is_strict(folder));
            is_exempt && folders.all(|folder| Some(folder) == first)
        };
        let cycles = tree.cycles().into_iter();
        let cycles = cycles.filter(move |cycle| !is_in_one_folder(cycle));
        cycles.map(move |cycle| {
            let names: Vec<_> = cycle.iter().map(|module| module.join("/")).collect();
            format!("{folder}: {}", names.join(", "))
        })
    });
    let cycles: Vec<String> = cycles.collect();
    assert!(cycles.is_empty(), "cycles:\n{}", cycles.join("\n"));
}

/// A machine of the kernel is a value: it gets the time, and returns what has happened. Few files
/// decide with the tables of the client.
#[test]
fn the_context_of_the_kernel_is_in_four_files() {
    let mut found = Vec::new();
    for (module, source) in library().sources {
        let is_word = |word: &str| word == "Context";
        let names_it = |line: &str| line.split(|c: char| !c.is_alphanumeric()).any(is_word);
        let is_of_kernel = module.first().is_some_and(|folder| folder == "kernel");
        let lines = source
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        if is_of_kernel && lines.into_iter().any(names_it) {
            found.push(module[1..].join("/"));
        }
    }
    found.sort();
    assert_eq!(found, ["", "context", "ending", "entry"]);
}

/// The types that have one name in several files. No new one joins them.
const SHARED_NAMES: &[&str] = &[
    "Admission",
    "Asked",
    "Batch",
    "Call",
    "Caller",
    "Change",
    "Command",
    "Ended",
    "Engine",
    "Held",
    "Holder",
    "Job",
    "Lease",
    "Line",
    "Link",
    "Listener",
    "Mutex",
    "MutexGuard",
    "Next",
    "OfName",
    "Outcome",
    "Parked",
    "Part",
    "Peer",
    "Pending",
    "Phase",
    "Progress",
    "Quorum",
    "Refusal",
    "Reply",
    "Reports",
    "Request",
    "Running",
    "Sent",
    "Server",
    "State",
    "Step",
    "Ticket",
    "Turn",
    "Unanswered",
    "Waiting",
    "Wanted",
    "Write",
];

/// One name is one type: a reader who meets it knows what it is.
#[test]
fn no_new_type_has_the_name_of_another_one() {
    let mut files: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (module, source) in library().sources {
        if module.iter().any(|part| part == "tests") {
            continue;
        }
        for name in source.lines().filter_map(type_of) {
            let of_name = files.entry(name.to_owned()).or_default();
            of_name.insert(module.join("/"));
        }
    }
    files.retain(|_, files| files.len() > 1);
    let found: Vec<&str> = files.keys().map(String::as_str).collect();
    let new: Vec<_> = files
        .iter()
        .filter(|(name, _)| !SHARED_NAMES.contains(&name.as_str()))
        .collect();
    assert!(new.is_empty(), "these names have another type: {new:?}");
    let gone: Vec<_> = SHARED_NAMES
        .iter()
        .filter(|name| !found.contains(name))
        .collect();
    assert!(gone.is_empty(), "take these out of the list: {gone:?}");
}

/// Returns the name of a type that a line declares, outside of a module and of a trait.
fn type_of(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub(crate) ").unwrap_or(line);
    let line = line.strip_prefix("pub(super) ").unwrap_or(line);
    let line = line.strip_prefix("pub ").unwrap_or(line);
    let words = ["struct ", "enum ", "trait ", "type "];
    let rest = words.iter().find_map(|word| line.strip_prefix(word))?;
    rest.split(|c: char| !c.is_alphanumeric()).next()
}

#[test]
fn declarations_of_types_are_detected() {
    let names = [
        ("pub(crate) struct Line {", Some("Line")),
        ("pub enum Wait<T> {", Some("Wait")),
        ("type Shard = Mutex<u8>;", Some("Shard")),
        ("    type Key = u8;", None),
        ("impl Line {", None),
    ];
    for (line, name) in names {
        assert_eq!(type_of(line), name, "{line}");
    }
}

#[test]
fn layers_match_the_design_page() {
    let page = fs::read_to_string(in_repository("docs/design.md")).unwrap();
    let mut rest = page.as_str();
    for layer in LAYERS {
        let row = format!("| `{layer}/` |");
        let at = rest.find(&row);
        rest = &rest[at.unwrap_or_else(|| panic!("{row} is missing or out of order"))..];
    }
}

#[test]
fn upward_import_and_cycle_are_detected() {
    let files = [
        ("", "pub use client::wait::Wait;"),
        ("client::wait", "use crate::lease::{Queue, local::Place};"),
        ("lease", "pub(crate) use local::Queue;"),
        (
            "lease::local",
            "#[cfg(test)]\nmod tests;\nfn f() { super::super::client::wait::g(); }",
        ),
        ("protocol::all", "use crate::{Name, Wait};"),
        ("stats", "fn f() { facade::report(); }"),
        ("stats::facade", "use super::Stats;"),
    ];
    let tree = Tree::of(files);
    let edges = tree.edges();
    let up = (path("lease::local"), path("client::wait"));
    assert!(edges.contains(&up), "{edges:?}");
    assert!(edges.contains(&(up.1.clone(), up.0.clone())), "{edges:?}");
    assert!(layer(&up.1) < layer(&up.0));
    let of_public_name = (path("protocol::all"), path("client::wait"));
    assert!(edges.contains(&of_public_name), "{edges:?}");
    let stats = ["stats", "stats::facade"].map(path).to_vec();
    let waits = ["client::wait", "lease", "lease::local"].map(path).to_vec();
    assert_eq!(tree.cycles(), [waits, stats]);
}

#[test]
fn every_form_of_a_path_is_an_import() {
    for source in [
        "use crate::b::c::X;",
        "use super::b::c::X;",
        "use crate::{b::{self, c::X}, y};",
        "use crate::b::{c::{self as d}};",
        "pub(crate) use crate::b::c;",
        "fn f() -> crate::b::c::X { for x in y {} }",
        "fn f() { for x in crate::b::c::all() {} }",
        "fn f() { super::b::c::g(); }",
        "fn f() { self::super::b::c::g(); }",
        "use crate::b; fn f() { b::c::g(); }",
        "use crate::b as d; use d::c::X;",
        "use crate::b::c as d; fn f() { d::g::<u8>(); }",
        "fn reuse() { use crate::b::c::X; }",
        "mod tests_of_others {}\n#[cfg(test)]\nmod tests { use x; }\nuse crate::b::c::X;",
        "#[cfg(test)]\npub(crate) mod tests { fn f() { '}' } }\nuse crate::b::c::X;",
        "const TEXT: &str = \"// \\\" \n { ;\"; use crate::b::c::X;",
        "const TEXT: &str = r#\"a \" /* b\"#; use crate::b::c::X;",
        "fn f<'a>(quote: char) { quote == '\"' || quote == '\\''; } use crate::b::c::X;",
    ] {
        let tree = Tree::of([("", ""), ("a", source), ("b", ""), ("b::c", "")]);
        let edge = ("a", "b::c");
        assert!(
            tree.edges().contains(&(path(edge.0), path(edge.1))),
            "{source}"
        );
    }
    let root = [("", "mod a; fn f() { a::g(); }"), ("a", "use crate::f;")];
    assert_eq!(Tree::of(root).cycles(), [["", "a"].map(path)]);
    let own = [
        ("", ""),
        ("a", "fn f() { self::b::g(); }"),
        ("a::b", "use super::f;"),
    ];
    assert_eq!(Tree::of(own).cycles(), [["a", "a::b"].map(path)]);
    let folder = [
        ("", ""),
        ("a", "use crate::d::e::f::X;"),
        ("d", "pub(crate) use crate::b as e;"),
        ("b", ""),
        ("b::f", "use crate::a::X;"),
    ];
    assert_eq!(Tree::of(folder).cycles(), [["a", "b::f"].map(path)]);
}

#[test]
fn text_tests_and_visibilities_import_nothing() {
    for source in [
        "// use crate::b::X;",
        "/* use crate::b::X; */",
        "const TEXT: &str = \"\n use crate::b::X;\";",
        "#[cfg(test)]\nmod tests { use crate::b::X; }",
        "#[cfg(test)]\npub(crate) mod tests {\n use crate::b::X;\n}\nfn f() {}",
        "pub(in crate::b) fn f() {}",
        "use other::b::X; fn f() { other::crate_b::g(); }",
        "fn f(other: impl Fn() + use<'_>) {}",
    ] {
        let tree = Tree::of([("", ""), ("a", source), ("b", "")]);
        assert_eq!(tree.edges(), BTreeSet::new(), "{source}");
    }
}

#[test]
#[should_panic = "name the items"]
fn globs_are_refused() {
    Tree::of([("", ""), ("a", "pub use crate::b::*;"), ("b", "")]);
}

#[test]
#[should_panic = "hides `mod b`"]
fn modules_in_the_file_of_another_are_refused() {
    let source = "#[cfg(unix)]\n#[path = \"c.rs\"]\nmod b;";
    Tree::of([("", ""), ("a", source)]);
}

fn path(path: &str) -> Module {
    let segments = path.split("::").filter(|segment| !segment.is_empty());
    segments.map(str::to_owned).collect()
}

/// Checks the library only. The program is a crate of its own and cannot use the library's private
/// clock. It measures waits of seconds with the standard clock, and leaves leases to the library.
#[test]
fn only_the_clock_reads_the_time_and_sleeps() {
    let tree = library();
    let imports_instant = |statement: &str| {
        let imports = statement.split_once("use std::time::");
        imports.is_some_and(|(_, names)| names.contains("Instant"))
    };
    let is_foreign = |source: &str| {
        let calls = [
            "SystemTime::now",
            "time::Instant::now",
            "thread::sleep",
            // The standard `Instant` and `SystemTime` have this method; the clock's does not.
            ".elapsed()",
        ];
        calls.iter().any(|call| source.contains(call)) || source.split(';').any(imports_instant)
    };
    let reads = |(module, source): (&Module, &String)| {
        (*module != ["clock"] && is_foreign(source)).then(|| module.join("/"))
    };
    let readers: Vec<String> = tree.sources.iter().filter_map(reads).collect();
    assert!(readers.is_empty(), "not by crate::clock: {readers:?}");
    assert!(is_foreign(&tree.sources[&vec!["clock".to_owned()]]));
    assert!(is_foreign("fn age(since: SystemTime) { since.elapsed() }"));
}

#[test]
fn layers_between_api_and_protocol_name_no_kind_of_lock() {
    const KINDS: [&str; 5] = ["cohort", "fair", "mutex", "rw_lock", "semaphore"];
    // One lists locks by their keys, as the design page says. A set is of mutexes, and waits in
    // their fair queues.
    let exempt = ["client/list", "set/names"];
    let is_of_kind = |module: &Module| match module.as_slice() {
        [layer, file, ..] => layer == "protocol" && KINDS.contains(&file.as_str()),
        _ => false,
    };
    let may_name_kinds = |module: &Module| {
        let folder = module.first().map_or("", String::as_str);
        ["api", "protocol", "testing"].contains(&folder)
    };
    let tree = library();
    for kind in KINDS {
        let file = ["protocol", kind].map(str::to_owned).to_vec();
        assert!(tree.sources.contains_key(&file), "{kind} has no file");
    }
    let edges = tree.edges().into_iter();
    let naming = edges.filter(|(from, to)| is_of_kind(to) && !may_name_kinds(from));
    let naming: BTreeSet<String> = naming.map(|(from, _)| from.join("/")).collect();
    assert_eq!(naming, BTreeSet::from(exempt.map(str::to_owned)));
}

/// An auditor of the locks' safety reads the kernel, and nothing else: its size is printed.
#[test]
fn kernel_is_measured() {
    let is_of_kernel = |module: &Module| {
        let is_test = module.iter().any(|it| it == "tests");
        module.first().is_some_and(|it| it == "kernel") && !is_test
    };
    let sources = library().sources.into_iter();
    let sources = sources.filter(|(module, _)| is_of_kernel(module));
    let sources: Vec<String> = sources.map(|(_, source)| source).collect();
    let lines = sources.iter().flat_map(|source| source.lines());
    let lines = lines.filter(|line| !line.trim().is_empty()).count();
    println!(
        "src/kernel/: {lines} lines of code in {} files",
        sources.len()
    );
    assert!(lines > 0);
}

/// Except tables, links and string literals.
#[test]
fn lines_have_at_most_100_columns() {
    let is_exempt = |line: &str| {
        let is_table = line.trim_start_matches(['/', '!', ' ']).starts_with('|');
        is_table || line.contains('"') || ["](", "://"].iter().any(|link| line.contains(link))
    };
    let mut long = Vec::new();
    for_each_file(&mut |path, text| {
        let lines = text.lines().zip(1..);
        let mut lines = lines.filter(|(line, _)| line.chars().count() > 100 && !is_exempt(line));
        long.extend(lines.next().map(|(_, n)| format!("{}:{n}", path.display())));
    });
    assert!(long.is_empty(), "wrap these lines:\n{}", long.join("\n"));
}

/// The most lines of a file.
const LONGEST_FILE: usize = 600;

/// Tests are a module at the end of their file, unless the two would be more than a file may have,
/// or the folder has other files.
#[test]
fn tests_that_fit_into_their_file_are_there() {
    let mut found = Vec::new();
    for_each_file(&mut |path, text| {
        let is_own = path.ends_with("tests.rs") && path.starts_with(in_repository("src"));
        let folder = path.parent().filter(|_| is_own);
        let Some(folder) = folder.filter(|it| fs::read_dir(it).unwrap().count() == 1) else {
            return;
        };
        let code = fs::read_to_string(folder.with_extension("rs")).unwrap_or_default();
        let lines = code.lines().count() + text.lines().count();
        if !code.is_empty() && lines < LONGEST_FILE {
            found.push(format!("{}: {lines} lines with its file", path.display()));
        }
    });
    assert!(
        found.is_empty(),
        "make them `mod tests` at the end of <folder>.rs:\n{}",
        found.join("\n")
    );
}

/// Calls `act` with the path and the text of every file of Rust and Lua.
fn for_each_file(act: &mut impl FnMut(&Path, &str)) {
    let folders = ["src", "tests", "benches", "examples"];
    let mut open: Vec<PathBuf> = folders.map(in_repository).to_vec();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).unwrap();
            let inside = entries.map(|entry| entry.unwrap().path());
            open.extend(inside.filter(|path| !path.ends_with("target")));
        } else if path
            .extension()
            .is_some_and(|kind| kind == "rs" || kind == "lua")
        {
            act(&path, &fs::read_to_string(&path).unwrap());
        }
    }
}

fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn layer(module: &Module) -> usize {
    let folder = module.first().map_or("", String::as_str);
    let found = LAYERS.iter().position(|layer| *layer == folder);
    found.unwrap_or(LAYERS.len())
}
