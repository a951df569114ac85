//! The modules of a crate, and which of them import which.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::source::{
    Use, inline_paths, modules_with_a_path, tokens, uses, without_comments, without_tests,
};

/// A module's path below the crate's root, in segments.
pub(crate) type Module = Vec<String>;

/// The only modules whose file a `#[path]` may name: this test finds files by their modules.
const OUTSIDE: [&str; 3] = ["clock", "escape", "validity"];

/// The modules of a crate, each with its source without comments, strings and tests.
pub(crate) struct Tree {
    pub(crate) sources: BTreeMap<Module, String>,
    /// The path that a module re-exports under a name.
    re_exports: BTreeMap<(Module, String), Vec<String>>,
    /// The modules that the files import from another folder.
    outside: BTreeSet<Module>,
}

impl Tree {
    /// Reads the crate in a folder. Its root is this file.
    pub(crate) fn read(folder: &Path, root: &str) -> Self {
        let mut sources = BTreeMap::new();
        read_folder(folder, &mut Vec::new(), &mut sources);
        let root_source = sources.remove(&vec![root.to_owned()]);
        sources.extend(root_source.map(|source| (Vec::new(), source)));
        assert!(sources.len() > 2, "{} holds no crate", folder.display());
        Self::with(sources)
    }

    /// Returns the tree of these modules and sources, for tests of this test.
    pub(crate) fn of<const N: usize>(files: [(&str, &str); N]) -> Self {
        let files = files.map(|(module, source)| {
            let segments = module.split("::").filter(|segment| !segment.is_empty());
            let source = without_tests(&without_comments(source));
            (segments.map(str::to_owned).collect(), source)
        });
        Self::with(BTreeMap::from(files))
    }

    fn with(sources: BTreeMap<Module, String>) -> Self {
        let mut tree = Self {
            sources,
            re_exports: BTreeMap::new(),
            outside: BTreeSet::new(),
        };
        let (mut re_exports, mut outside) = (BTreeMap::new(), BTreeSet::new());
        for (module, source) in &tree.sources {
            let tokens = tokens(source);
            for name in modules_with_a_path(&tokens) {
                let shown = module.join("/");
                assert!(
                    OUTSIDE.contains(&name),
                    "{shown}: `#[path]` hides `mod {name}` from this test: move its file"
                );
                outside.insert(child(module, name));
            }
            for Use {
                is_public,
                path,
                name,
            } in uses(&tokens)
            {
                if let Some(path) = tree.absolute(module, &BTreeMap::new(), &path) {
                    let shown = path.join("::");
                    assert!(
                        name != "*",
                        "`use {shown}` hides what it imports: name the items"
                    );
                    if is_public {
                        re_exports.insert((module.clone(), name), path);
                    }
                }
            }
        }
        tree.re_exports = re_exports;
        tree.outside = outside;
        tree
    }

    /// Returns the pairs of importing and imported files.
    pub(crate) fn edges(&self) -> BTreeSet<(Module, Module)> {
        let mut edges = BTreeSet::new();
        for (module, source) in &self.sources {
            for path in self.paths(module, source) {
                if let Some(target) = self.defining_module(&path, 0)
                    && target != *module
                {
                    edges.insert((module.clone(), target));
                }
            }
        }
        edges
    }

    /// Returns every path of a module into its crate, from the crate's root.
    fn paths(&self, module: &Module, source: &str) -> Vec<Vec<String>> {
        let tokens = tokens(source);
        let uses = uses(&tokens);
        // A folder or a file that a `use` names can begin another path.
        let mut modules = BTreeMap::new();
        for Use { path, name, .. } in &uses {
            if let Some(path) = self.absolute(module, &BTreeMap::new(), path)
                && self.is_module(&path)
            {
                modules.insert(name.clone(), path);
            }
        }
        let mut roots = vec!["crate", "self", "super"];
        roots.extend(modules.keys().map(String::as_str));
        roots.extend(self.children(module));
        let inline = inline_paths(&tokens, &roots);
        let all = uses.into_iter().map(|it| it.path).chain(inline);
        all.filter_map(|path| self.absolute(module, &modules, &path))
            .collect()
    }

    fn is_module(&self, path: &[String]) -> bool {
        self.sources.keys().any(|module| module.starts_with(path))
    }

    /// Returns the names of the modules directly below one.
    fn children(&self, module: &Module) -> Vec<&str> {
        let paths = self.sources.keys().chain(&self.outside);
        let below = paths.filter_map(|path| path.strip_prefix(module.as_slice())?.first());
        below.map(String::as_str).collect()
    }

    /// Returns a path below the crate's root, or `None` if it belongs to another crate. `modules`
    /// are those that the module imports.
    fn absolute(
        &self,
        module: &Module,
        modules: &BTreeMap<String, Vec<String>>,
        path: &[String],
    ) -> Option<Vec<String>> {
        let (first, rest) = path.split_first()?;
        let mut base: Vec<String> = match first.as_str() {
            "crate" => Vec::new(),
            "self" => module.clone(),
            "super" => module[..module.len().saturating_sub(1)].to_vec(),
            name if self.children(module).contains(&name) => child(module, name),
            name => modules.get(name)?.clone(),
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
            if self.outside.contains(module) {
                return None;
            }
            if !self.sources.contains_key(module) {
                continue;
            }
            let Some((name, items)) = rest.split_first() else {
                return Some(module.to_vec());
            };
            return match self.re_exports.get(&(module.to_vec(), name.clone())) {
                Some(origin) => self.defining_module(&[origin, items].concat(), depth + 1),
                None => Some(module.to_vec()),
            };
        }
        None
    }

    /// Returns groups of files that import each other, directly or through other files.
    pub(crate) fn cycles(&self) -> Vec<Vec<Module>> {
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

fn child(module: &Module, name: &str) -> Module {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

fn read_folder(folder: &Path, module: &mut Module, sources: &mut BTreeMap<Module, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            // The program is a crate of its own, and tests may import anything.
            if !["bin", "tests", "target"].contains(&name.as_str()) {
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
