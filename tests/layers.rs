//! Promise: modules import only from lower layers, no files import each other in a cycle, and files
//! keep to the width of a page and to what belongs in them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The folders of `src` from the top down. Files directly in `src` are the lowest layer.
const LAYERS: [&str; 9] = [
    "testing", "api", "lock", "runtime", "queue", "lease", "redis", "protocol", "stats",
];

/// A module's path below the crate's root, in segments.
type Module = Vec<String>;

/// The modules of a crate, each with its source without comments, strings and tests.
struct Tree {
    /// The crate's root imports nothing here: it only re-exports the public names.
    sources: BTreeMap<Module, String>,
    /// The path that a module re-exports under a name.
    re_exports: BTreeMap<(Module, String), Vec<String>>,
}

#[test]
fn imports_point_downward() {
    let tree = Tree::read(&in_repository("src"));
    let upward: Vec<String> = tree
        .edges()
        .into_iter()
        .filter(|(from, to)| layer(to) < layer(from))
        .map(|(from, to)| format!("{} imports {}", from.join("/"), to.join("/")))
        .collect();
    assert!(upward.is_empty(), "upward imports:\n{}", upward.join("\n"));
}

#[test]
fn library_has_no_import_cycle() {
    assert_no_cycle(&Tree::read(&in_repository("src")));
}

#[test]
fn benches_have_no_import_cycle() {
    assert_no_cycle(&Tree::read(&in_repository("benches/common")));
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
    let tree = Tree::of([
        ("", "pub use lock::wait::Wait;"),
        ("lock::wait", "use crate::queue::{Queue, local::Place};"),
        ("queue", "pub(crate) use local::Queue;"),
        (
            "queue::local",
            "#[cfg(test)]\nmod tests;\nfn f() { super::super::lock::wait::g(); }",
        ),
        ("protocol::all", "use crate::{Name, Wait};"),
        ("stats", "fn f() { facade::report(); }"),
        ("stats::facade", "use super::Stats;"),
    ]);
    let edges = tree.edges();
    let path = |path: &str| path.split("::").map(str::to_owned).collect::<Module>();
    let up = (path("queue::local"), path("lock::wait"));
    assert!(edges.contains(&up), "{edges:?}");
    assert!(edges.contains(&(up.1.clone(), up.0.clone())), "{edges:?}");
    assert!(layer(&up.1) < layer(&up.0));
    let of_public_name = (path("protocol::all"), path("lock::wait"));
    assert!(edges.contains(&of_public_name), "{edges:?}");
    let stats = ["stats", "stats::facade"].map(path).to_vec();
    let waits = ["lock::wait", "queue", "queue::local"].map(path).to_vec();
    assert_eq!(tree.cycles(), [waits, stats]);
}

#[test]
fn only_the_clock_reads_the_time_and_sleeps() {
    let tree = Tree::read(&in_repository("src"));
    let imports_instant = |statement: &str| {
        let imports = statement.split_once("use std::time::");
        imports.is_some_and(|(_, names)| names.contains("Instant"))
    };
    let is_foreign = |source: &str| {
        let calls = ["SystemTime::now", "time::Instant::now", "thread::sleep"];
        calls.iter().any(|call| source.contains(call)) || source.split(';').any(imports_instant)
    };
    let reads = |(module, source): (&Module, &String)| {
        (*module != ["clock"] && is_foreign(source)).then(|| module.join("/"))
    };
    let readers: Vec<String> = tree.sources.iter().filter_map(reads).collect();
    assert!(readers.is_empty(), "not by crate::clock: {readers:?}");
    assert!(is_foreign(&tree.sources[&vec!["clock".to_owned()]]));
}

#[test]
fn layers_between_api_and_protocol_name_no_kind_of_lock() {
    const KINDS: [&str; 5] = [
        "MutexKeys",
        "CohortKeys",
        "MutexAllKeys",
        "SemaphoreKeys",
        "RwLockKeys",
    ];
    // The first lists locks by their keys, as the design page says; the second is a test.
    let exempt = ["lock/list", "queue/handoff_model"];
    let tree = Tree::read(&in_repository("src"));
    let names_kind = |source: &str| KINDS.iter().any(|kind| source.contains(kind));
    let naming = tree.sources.iter().filter(|(_, source)| names_kind(source));
    let naming = naming.map(|(module, _)| module.join("/"));
    let is_free = |module: &String| {
        let mut folders = ["api/", "protocol/", "testing/"].into_iter();
        folders.any(|folder| module.starts_with(folder)) || exempt.contains(&module.as_str())
    };
    let (free, others): (Vec<String>, Vec<String>) = naming.partition(is_free);
    assert!(others.is_empty(), "{others:?}");
    assert!(
        exempt
            .iter()
            .all(|module| free.iter().any(|it| it == module))
    );
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

#[test]
fn tests_longer_than_their_code_are_in_a_file_of_their_own() {
    let count = |text: &str| {
        let lines = text.lines().map(str::trim);
        let code = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
        code.count()
    };
    let mut found = Vec::new();
    for_each_file(&mut |path, text| {
        // An example stands alone.
        let is_example = path.starts_with(in_repository("examples"));
        if let Some((code, tests)) = text.split_once("#[cfg(test)]\nmod tests {\n")
            && count(tests) > count(code) + 1
            && !is_example
        {
            found.push(path.display().to_string());
        }
    });
    assert!(
        found.is_empty(),
        "move to <file>/tests.rs:\n{}",
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

fn assert_no_cycle(tree: &Tree) {
    let cycles: Vec<String> = tree
        .cycles()
        .iter()
        .map(|cycle| {
            let names: Vec<_> = cycle.iter().map(|module| module.join("/")).collect();
            names.join(", ")
        })
        .collect();
    assert!(cycles.is_empty(), "cycles:\n{}", cycles.join("\n"));
}

impl Tree {
    fn read(root: &Path) -> Self {
        let mut sources = BTreeMap::new();
        read_folder(root, &mut Vec::new(), &mut sources);
        assert!(sources.len() > 5, "{} holds no crate", root.display());
        Self::with(sources)
    }

    fn of<const N: usize>(files: [(&str, &str); N]) -> Self {
        let files = files.map(|(module, source)| {
            let segments = module.split("::").filter(|segment| !segment.is_empty());
            (segments.map(str::to_owned).collect(), without_tests(source))
        });
        Self::with(BTreeMap::from(files))
    }

    fn with(sources: BTreeMap<Module, String>) -> Self {
        let mut tree = Self {
            sources,
            re_exports: BTreeMap::new(),
        };
        let mut found = BTreeMap::new();
        for (module, source) in &tree.sources {
            for (is_public, path, alias) in uses(source) {
                if is_public && let Some(path) = tree.absolute(module, &path) {
                    found.insert((module.clone(), alias), path);
                }
            }
        }
        tree.re_exports = found;
        tree
    }

    /// Returns the pairs of importing and imported files.
    fn edges(&self) -> BTreeSet<(Module, Module)> {
        let mut edges = BTreeSet::new();
        for (module, source) in self.sources.iter().filter(|(module, _)| !module.is_empty()) {
            let used = uses(source).into_iter().map(|(_, path, _)| path);
            let inline = inline_paths(source, &self.children(module));
            for path in used.chain(inline) {
                if let Some(path) = self.absolute(module, &path)
                    && let Some(target) = self.defining_module(&path, 0)
                    && target != *module
                {
                    edges.insert((module.clone(), target));
                }
            }
        }
        edges
    }

    /// Returns the names of the modules directly below one.
    fn children(&self, module: &Module) -> Vec<&str> {
        let paths = self.sources.keys();
        paths
            .filter_map(|path| match path.split_last()? {
                (child, parent) if parent == module => Some(child.as_str()),
                _ => None,
            })
            .collect()
    }

    /// Returns a path below the crate's root, or `None` if it belongs to another crate.
    fn absolute(&self, module: &Module, path: &[String]) -> Option<Vec<String>> {
        let (first, rest) = path.split_first()?;
        let mut base: Vec<String> = match first.as_str() {
            "crate" => Vec::new(),
            "self" => module.clone(),
            "super" => module[..module.len().saturating_sub(1)].to_vec(),
            child => {
                let child: Vec<String> = module.iter().cloned().chain([child.into()]).collect();
                let is_known = self.sources.keys().any(|path| path.starts_with(&child));
                is_known.then_some(child)?
            }
        };
        for segment in rest {
            if segment == "super" {
                base.pop();
            } else {
                base.push(segment.clone());
            }
        }
        Some(base)
    }

    /// Returns the file that defines the item at `path`, through any number of re-exports.
    fn defining_module(&self, path: &[String], depth: usize) -> Option<Module> {
        assert!(depth < 16, "re-exports of {path:?} form a cycle");
        for length in (0..=path.len()).rev() {
            let (module, rest) = path.split_at(length);
            if !self.sources.contains_key(module) {
                continue;
            }
            let Some(name) = rest.first() else {
                return Some(module.to_vec());
            };
            return match self.re_exports.get(&(module.to_vec(), name.clone())) {
                Some(origin) => self.defining_module(origin, depth + 1),
                None => (length > 0).then(|| module.to_vec()),
            };
        }
        None
    }

    /// Returns groups of files that import each other, directly or through other files.
    fn cycles(&self) -> Vec<Vec<Module>> {
        let mut reached: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        let mut next: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        for (from, to) in self.edges() {
            next.entry(from).or_default().insert(to);
        }
        for start in next.keys() {
            let mut open = vec![start.clone()];
            let mut seen = BTreeSet::new();
            while let Some(module) = open.pop() {
                for to in next.get(&module).into_iter().flatten() {
                    if seen.insert(to.clone()) {
                        open.push(to.clone());
                    }
                }
            }
            reached.insert(start.clone(), seen);
        }
        let mut groups = BTreeSet::new();
        for (module, to) in &reached {
            let is_mutual =
                |other: &&Module| reached.get(*other).is_some_and(|r| r.contains(module));
            let group: Vec<Module> = to.iter().filter(is_mutual).cloned().collect();
            if group.len() > 1 {
                groups.insert(group);
            }
        }
        groups.into_iter().collect()
    }
}

fn read_folder(folder: &Path, module: &mut Module, sources: &mut BTreeMap<Module, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            // The program only uses public names of the library, and tests may import anything.
            if !["bin", "tests"].contains(&name.as_str()) {
                module.push(name);
                read_folder(&path, module, sources);
                module.pop();
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") && name != "tests" {
            let mut module = module.clone();
            if !["lib", "mod"].contains(&name.as_str()) {
                module.push(name);
            }
            let source = fs::read_to_string(&path).unwrap();
            sources.insert(module, without_tests(&without_comments(&source)));
        }
    }
}

/// Removes comments and strings: paths in them import nothing.
fn without_comments(source: &str) -> String {
    let mut plain = String::with_capacity(source.len());
    for line in source.lines() {
        let mut rest = line;
        while let Some(at) = rest.find(['"', '/', '\'']) {
            let (before, from) = rest.split_at(at);
            plain.push_str(before);
            if from.starts_with("//") {
                rest = "";
            } else if let Some(string) = from.strip_prefix('"') {
                let end = closing_quote(string).unwrap_or(string.len());
                rest = string.get(end + 1..).unwrap_or("");
            } else {
                // The character literal of a quote begins no string.
                let skipped = if from.starts_with("'\"'") { 3 } else { 1 };
                rest = &from[skipped..];
            }
        }
        plain.push_str(rest);
        plain.push('\n');
    }
    plain
}

fn closing_quote(string: &str) -> Option<usize> {
    let mut is_escaped = false;
    string.find(|c| {
        let closes = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        closes
    })
}

/// Removes a file's tests, which may import anything.
fn without_tests(source: &str) -> String {
    let begins = ["", "pub(crate) ", "pub(super) "].into_iter();
    let mut begins = begins.map(|scope| format!("#[cfg(test)]\n{scope}mod tests {{"));
    let code = begins.find_map(|begin| source.split_once(&begin));
    code.map_or(source, |(code, _)| code).to_owned()
}

/// Returns every path of every `use`: whether it is re-exported, the path, and its local name.
fn uses(source: &str) -> Vec<(bool, Vec<String>, String)> {
    let mut found = Vec::new();
    for statement in source.split(';') {
        let Some(at) = statement.find("use ") else {
            continue;
        };
        let before = statement[..at].trim_end();
        let is_use = before.is_empty() || before.ends_with([';', '{', '}', ')', ']', 'b', '\n']);
        let tree: String = statement[at + 4..]
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        if is_use {
            let is_public = before.ends_with("pub") || before.ends_with(')');
            expand(&tree, &[], &mut |path, alias| {
                found.push((is_public, path, alias))
            });
        }
    }
    found
}

/// Calls `each` with every path of a `use` tree.
fn expand(tree: &str, prefix: &[String], each: &mut impl FnMut(Vec<String>, String)) {
    let mut depth = 0;
    let mut begin = 0;
    let mut parts = Vec::new();
    for (at, c) in tree.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&tree[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&tree[begin..]);
    for part in parts
        .iter()
        .map(|part| part.trim())
        .filter(|part| !part.is_empty())
    {
        let (head, group) = match part.split_once('{') {
            Some((head, group)) => (head, Some(group.trim_end_matches('}'))),
            None => (part, None),
        };
        let (head, alias) = head.split_once(" as ").unwrap_or((head, ""));
        let mut path = prefix.to_vec();
        path.extend(
            head.split("::")
                .filter(|s| !s.is_empty())
                .map(|s| s.trim().to_owned()),
        );
        match group {
            Some(group) => expand(group, &path, each),
            None => {
                let last = path.last().cloned().unwrap_or_default();
                let alias = if alias.is_empty() {
                    last
                } else {
                    alias.trim().to_owned()
                };
                each(path, alias);
            }
        }
    }
}

/// Returns every path outside a `use` that begins with `crate`, `super` or one of `children`.
fn inline_paths(source: &str, children: &[&str]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for root in ["crate", "super"].iter().chain(children) {
        for (at, _) in source.match_indices(&format!("{root}::")) {
            let before = &source[..at];
            // `pub(in crate::redis)` is a visibility and imports nothing.
            let is_inside = before.ends_with("(in ")
                || before.ends_with(|c: char| c == ':' || c == '_' || c.is_alphanumeric());
            if is_inside {
                continue;
            }
            let rest = &source[at..];
            let end = rest.find(|c: char| !(c == ':' || c == '_' || c.is_alphanumeric()));
            let path = &rest[..end.unwrap_or(rest.len())];
            found.push(
                path.split("::")
                    .filter(|s| !s.is_empty())
                    .map(str::to_owned)
                    .collect(),
            );
        }
    }
    found
}
