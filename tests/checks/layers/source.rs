//! Finds the paths in Rust source that may be imports, after comments, literals and tests are
//! removed.

/// Replaces each comment, string and character literal by a space: paths in them import nothing.
pub(crate) fn without_comments(source: &str) -> String {
    let mut plain = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let skipped = skipped(rest, &plain);
        if skipped > 0 {
            // The words on both sides stay apart.
            plain.push(' ');
            rest = &rest[skipped..];
        } else {
            plain.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    plain
}

/// Returns the length of the comment or literal at the beginning of `rest`; 0 if there is none.
/// `before` is the text before it.
fn skipped(rest: &str, before: &str) -> usize {
    let until = |end: &str, from: usize| {
        let at = rest.get(from..).and_then(|tail| tail.find(end));
        at.map_or(rest.len(), |at| from + at + end.len())
    };
    let is_in_word = before.ends_with(|c: char| c == '_' || c.is_alphanumeric());
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return until("*/", 2);
    }
    if let Some(string) = rest.strip_prefix('"') {
        return 1 + closing_quote(string).map_or(string.len(), |at| at + 1);
    }
    if let Some(raw) = rest.strip_prefix('r')
        && !is_in_word
        && raw.trim_start_matches('#').starts_with('"')
    {
        let hashes = raw.find('"').unwrap_or_default();
        return until(&format!("\"{}", "#".repeat(hashes)), hashes + 2);
    }
    if let Some(character) = rest.strip_prefix('\'') {
        // A quote that begins no character literal begins a lifetime.
        let mut chars = character.char_indices().skip(1);
        return if character.starts_with('\\') {
            until("'", 3)
        } else {
            match chars.next() {
                Some((at, '\'')) => at + 2,
                _ => 0,
            }
        };
    }
    0
}

/// Returns where the string ends: the position of its first quote that is not escaped.
fn closing_quote(string: &str) -> Option<usize> {
    let mut is_escaped = false;
    string.find(|c| {
        let closes = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        closes
    })
}

/// Returns whether a line after `#[cfg(test)]` begins a module in the same file.
pub(crate) fn begins_tests(line: &str) -> bool {
    let declaration = line.split_once('{').map(|it| it.0);
    let scope = declaration.and_then(|line| line.rsplit_once("mod "));
    let scope = scope.map(|it| it.0);
    scope.is_some_and(|scope| scope.is_empty() || scope.starts_with("pub"))
}

/// Removes the modules of tests, which may import anything. `plain` has no comments or literals.
pub(crate) fn without_tests(plain: &str) -> String {
    let Some((code, rest)) = plain.split_once("#[cfg(test)]") else {
        return plain.to_owned();
    };
    let item = rest.trim_start();
    let tests = if begins_tests(item.lines().next().unwrap_or_default()) {
        closing_brace(item).map_or(item, |at| &item[..=at])
    } else {
        ""
    };
    format!("{code}{}", without_tests(&item[tests.len()..]))
}

fn closing_brace(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.find(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == '}' && depth == 0
    })
}

/// An import or re-export of one item.
pub(crate) struct Use {
    /// Whether it is a re-export: it has a `pub`, perhaps with a restriction, as in `pub(crate)`.
    pub(crate) is_public: bool,
    pub(crate) path: Vec<String>,
    /// The name that the item has in this file; `*` if every item of a module is imported.
    pub(crate) name: String,
}

/// Returns the words and symbols of a source without comments and literals; `::` is one symbol.
pub(crate) fn tokens(plain: &str) -> Vec<&str> {
    let is_word = |c: char| c == '_' || c.is_alphanumeric();
    let mut found = Vec::new();
    let mut rest = plain.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            ':' if rest.starts_with("::") => 2,
            c => c.len_utf8(),
        };
        found.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    found
}

/// Returns every item of every `use`.
pub(crate) fn uses(tokens: &[&str]) -> Vec<Use> {
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        // `use<'a>` is a bound of a type, not an import.
        if *token == "use" && tokens.get(at + 1) != Some(&"<") {
            let is_public = at > 0 && ["pub", ")"].contains(&tokens[at - 1]);
            expand(&tokens[at + 1..], &[], &mut |path, name| {
                found.push(Use {
                    is_public,
                    path,
                    name,
                });
            });
        }
    }
    found
}

/// Calls `each` with every path of a `use` tree and its local name. Returns the number of tokens in
/// the tree.
fn expand(tokens: &[&str], prefix: &[String], each: &mut impl FnMut(Vec<String>, String)) -> usize {
    let mut path = prefix.to_vec();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        match *token {
            "::" => {}
            "{" => {
                while tokens.get(at).is_some_and(|token| *token != "}") {
                    at += expand(&tokens[at..], &path, each);
                    at += usize::from(tokens.get(at) == Some(&","));
                }
                return at + 1;
            }
            "as" | "," | "}" | ";" => {
                at -= 1;
                break;
            }
            // `module::{self}` is the module itself.
            "self" if path.len() > 1 || !prefix.is_empty() => {}
            segment => path.push(segment.to_owned()),
        }
    }
    let mut name = path.last().cloned().unwrap_or_default();
    if tokens.get(at) == Some(&"as") {
        name = tokens.get(at + 1).copied().unwrap_or_default().to_owned();
        at += 2;
    }
    each(path, name);
    at
}

/// Returns every path that begins with one of `roots`; in a `use`, only the part before a brace.
pub(crate) fn inline_paths(tokens: &[&str], roots: &[&str]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let before = &tokens[..at];
        // `pub(in crate::redis)` is a visibility and imports nothing.
        let is_inside = before.ends_with(&["::"]) || before.ends_with(&["(", "in"]);
        if is_inside || !roots.contains(token) || tokens.get(at + 1) != Some(&"::") {
            continue;
        }
        let mut path = vec![(*token).to_owned()];
        for pair in tokens[at + 1..].chunks(2) {
            match pair {
                ["::", segment] if segment.starts_with(|c: char| c == '_' || c.is_alphabetic()) => {
                    path.push((*segment).to_owned());
                }
                _ => break,
            }
        }
        found.push(path);
    }
    found
}

/// Returns the names of the modules that have a `#[path]` attribute.
pub(crate) fn modules_with_a_path<'a>(tokens: &[&'a str]) -> Vec<&'a str> {
    let attributes = tokens.windows(3).enumerate();
    let attributes = attributes.filter(|(_, it)| *it == ["#", "[", "path"]);
    attributes
        .map(|(at, _)| {
            let mut declaration = tokens[at..].iter().skip_while(|token| **token != "mod");
            declaration.nth(1).copied().unwrap_or_default()
        })
        .collect()
}
