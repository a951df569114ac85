//! Promise: every public type and function has an example that runs. Its first line, and that of a
//! public field, fits into an index.

use std::fs;
use std::path::Path;

/// Items whose examples are compiled and not run: they read files that only a deployment has.
const NOT_RUN: [&str; 4] = [
    "tls_root",
    "tls_root_file",
    "tls_client_cert",
    "tls_client_cert_files",
];

/// The longest first line, in characters as a reader sees them.
const LONGEST: usize = 99;

/// A public type, function or field.
struct Item {
    /// The file and the line.
    location: String,
    name: String,
    is_field: bool,
    /// The lines of its documentation and attributes.
    lines: Vec<String>,
}

#[test]
fn every_public_item_has_an_example_that_runs() {
    let faults: Vec<String> = public_items()
        .iter()
        .filter_map(Item::example_fault)
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn first_lines_are_short_and_say_what_an_item_does() {
    let items = public_items();
    let faults: Vec<String> = items.iter().filter_map(Item::summary_fault).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn missing_examples_and_long_first_lines_are_detected() {
    let source = "
        /// Returns the name.
        pub fn name(&self) {}

        /// Returns [the owner](crate::a::path::that::no::reader::sees::and::that::does::not::count::here).
        ///
        /// ```no_run
        /// lock.owner();
        /// ```
        #[must_use]
        pub fn owner(&self) {}

        /// A lock, like [`Mutex`].
        ///
        /// ```
        /// Lock::new();
        /// ```
        #[doc = concat!(
            \"It has \", $count, \" holders.\"
        )]
        pub struct Lock;

        pub struct Part {
            /// The servers, all of which were just checked: one, the known masters of a cluster, or
            /// all of a quorum.
            pub servers: Vec<String>,
            hidden: u64,
        }

        totals! {
            /// Attempts.
            attempts,
        }

        /// Only the crate sees it.
        pub(crate) fn hidden() {}";
    let items = items_of("lib.rs", source);
    let names: Vec<&str> = items.iter().map(|item| item.name.as_str()).collect();
    assert_eq!(
        names,
        ["name", "owner", "Lock", "Part", "servers", "attempts"]
    );
    let faulty = |fault: fn(&Item) -> Option<String>| {
        let has_fault: Vec<bool> = items.iter().map(|item| fault(item).is_some()).collect();
        has_fault
    };
    assert_eq!(
        faulty(Item::example_fault),
        [true, true, false, true, false, false]
    );
    assert_eq!(
        faulty(Item::summary_fault),
        [false, false, true, false, true, false]
    );
}

/// Returns the public items of the library, and their public fields. Every `pub` in its source is
/// one: the lint `unreachable_pub` rejects the others.
fn public_items() -> Vec<Item> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut items = Vec::new();
    read_folder(&source, &source, &mut items);
    assert!(items.len() > 200, "only {} public items", items.len());
    items
}

fn read_folder(root: &Path, folder: &Path, items: &mut Vec<Item>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let relative = path.strip_prefix(root).unwrap().to_string_lossy();
        if path.is_dir() {
            // The command-line program is not part of the library.
            if relative != "bin" {
                read_folder(root, &path, items);
            }
        } else if path.extension().is_some_and(|end| end == "rs") {
            items.extend(items_of(&relative, &fs::read_to_string(&path).unwrap()));
        }
    }
}

fn items_of(file: &str, source: &str) -> Vec<Item> {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let mut items = Vec::new();
    for (n, line) in lines.iter().enumerate() {
        let before = lines[..n].last().unwrap_or(&"");
        let item = public_name(line).map(|name| (name, false));
        let field = || Some((field_name(line, before)?, true));
        let Some((name, is_field)) = item.or_else(field) else {
            continue;
        };
        let own = lines[..n].iter().rev().take_while(|line| {
            if is_field {
                line.starts_with(['/', '#'])
            } else {
                belongs_to_next(line)
            }
        });
        let mut own: Vec<String> = own.map(ToString::to_string).collect();
        own.reverse();
        items.push(Item {
            location: format!("src/{file}:{}", n + 1),
            name,
            is_field,
            lines: own,
        });
    }
    items
}

/// Returns the name of the type or function that a line declares as public.
fn public_name(line: &str) -> Option<String> {
    let declared = line.strip_prefix("pub ")?;
    let declared = declared.strip_prefix("const ").unwrap_or(declared);
    let kinds = ["fn ", "struct ", "enum ", "trait ", "type ", "union "];
    let rest = kinds.iter().find_map(|kind| declared.strip_prefix(kind))?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '$');
    Some(rest[..end.unwrap_or(rest.len())].to_owned())
}

/// Returns the name of the field that a line declares as public. The fields in the macro `totals!`
/// have no `pub`: there, a name after documentation is a field.
fn field_name(line: &str, before: &str) -> Option<String> {
    let name = match line.strip_prefix("pub ") {
        Some(declared) => declared.split_once(": ")?.0,
        None if before.starts_with("///") => line.strip_suffix(',')?,
        None => return None,
    };
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.chars().all(is_name).then(|| name.to_owned())
}

/// Returns whether a line may be documentation or an attribute of the item after it.
fn belongs_to_next(line: &str) -> bool {
    line.starts_with("///") || !(line.is_empty() || line.ends_with(['{', '}', ';']))
}

impl Item {
    fn docs(&self) -> impl Iterator<Item = &str> {
        let docs = self
            .lines
            .iter()
            .filter_map(|line| line.strip_prefix("///"));
        docs.map(str::trim)
    }

    fn example_fault(&self) -> Option<String> {
        let fences = self.docs().filter(|line| line.starts_with("```"));
        // Every second fence ends an example.
        let mut examples = fences.step_by(2);
        let is_run = examples.any(|fence| ["```", "```standalone_crate"].contains(&fence));
        let is_exempt = NOT_RUN.contains(&self.name.as_str());
        let fault = || format!("{}: {} has no example that runs", self.location, self.name);
        (!is_run && !is_exempt && !self.is_field).then(fault)
    }

    fn summary_fault(&self) -> Option<String> {
        // An index shows the first paragraph, however its lines are wrapped.
        let first: Vec<&str> = self.docs().take_while(|line| !line.is_empty()).collect();
        let first = first.join(" ");
        let what = if shown(&first).chars().count() > LONGEST {
            format!("has a first line of more than {LONGEST} characters")
        } else if first.starts_with("As ") || first.contains(" like [") {
            "only refers to another item in its first line".to_owned()
        } else {
            return None;
        };
        Some(format!("{}: {} {what}: {first}", self.location, self.name))
    }
}

/// Returns the text as a reader sees it: links without their targets, code without backticks.
fn shown(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once("](") {
        shown.push_str(before);
        rest = link.split_once(')').map_or("", |(_, after)| after);
    }
    shown.push_str(rest);
    shown.replace(['[', ']', '`'], "")
}
