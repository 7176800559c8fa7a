//! No Rust file imports itself through others of its crate, so that a reader of a file needs only the files below it.

use std::collections::{BTreeMap, BTreeSet};

use crate::layout_rules::{module_path, product_files};
use crate::rust_imports::{self, Import, Module};
use crate::tree::{Finding, Tree};

/// Maximum number of re-exports that lead from a name to its item.
const LONGEST_CHAIN: usize = 16;

/// The imports of one file, by the file that they lead to: the line of the first one, and the names.
pub(crate) type Imports<'a> = BTreeMap<&'a str, (usize, BTreeSet<String>)>;

/// Finds the groups of files that import each other.
///
/// A file imports another one if a `use` item or a path in its code leads to an item that the other file defines, also
/// through re-exports. A declaration (`mod name;`) is no import, and neither is a re-export of a name that the file does
/// not use itself.
pub(crate) fn rust_files_import_in_no_cycle(tree: &Tree) -> Vec<Finding> {
    let crates: BTreeSet<&str> =
        tree.below("rust/", ".rs").filter_map(|(path, _)| path.split('/').nth(1)).collect();
    crates.into_iter().flat_map(|name| cycles(tree, name)).collect()
}

/// Which imports of a file count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counted {
    /// All, also re-exports.
    All,
    /// Those that the file uses itself.
    Used,
}

/// Returns the imports of all files below `folder`, the source of a crate, and the files that cannot be parsed.
pub(crate) fn imports<'a>(
    tree: &'a Tree,
    folder: &'a str,
    counted: Counted,
) -> (BTreeMap<&'a str, Imports<'a>>, Vec<Finding>) {
    let mut found = Vec::new();
    let mut source = Crate::default();
    for (path, text) in product_files(tree, folder) {
        match rust_imports::read(module_path(path, folder), text) {
            Ok((modules, words)) => source.add(path, modules, words),
            Err(error) => found.push(Finding::new(
                path,
                error.span().start().line,
                format!("cannot be parsed: {error}"),
            )),
        }
    }
    (source.imports(counted), found)
}

/// The cycles of one crate.
fn cycles(tree: &Tree, name: &str) -> Vec<Finding> {
    let folder = format!("rust/{name}/src/");
    let (graph, mut found) = imports(tree, &folder, Counted::Used);
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|path| (*path, reachable(&graph, path))).collect();
    let reaches = |from: &str, to: &str| reach.get(from).is_some_and(|files| files.contains(to));
    let mut reported = BTreeSet::new();
    for path in graph.keys().filter(|path| reaches(path, path)) {
        let files: BTreeSet<&str> =
            graph.keys().copied().filter(|other| reaches(path, other) && reaches(other, path)).collect();
        if reported.insert(files.clone()) {
            found.push(describe(&graph, &files, &folder));
        }
    }
    found
}

/// The files that `from` imports, directly or through others.
fn reachable<'a>(graph: &BTreeMap<&'a str, Imports<'a>>, from: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut waiting: Vec<&str> = vec![from];
    while let Some(path) = waiting.pop() {
        for other in graph.get(path).into_iter().flat_map(BTreeMap::keys) {
            if found.insert(*other) {
                waiting.push(*other);
            }
        }
    }
    found
}

/// Lists all imports between `files`; the finding is at the first of them.
fn describe(graph: &BTreeMap<&str, Imports<'_>>, files: &BTreeSet<&str>, folder: &str) -> Finding {
    let mut first = None;
    let mut edges = Vec::new();
    for path in files {
        for (other, (line, names)) in graph.get(path).into_iter().flatten() {
            if files.contains(other) {
                first = first.or(Some((*path, *line)));
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let (path, other) = (path.trim_start_matches(folder), other.trim_start_matches(folder));
                edges.push(format!("{path}:{line} imports {} from {other}", names.join(", ")));
            }
        }
    }
    let (path, line) = first.unwrap_or_default();
    Finding::new(path, line, format!("{} files import each other: {}", files.len(), edges.join("; ")))
}

/// The modules of a crate.
#[derive(Default)]
struct Crate<'a> {
    modules: BTreeMap<Vec<String>, (&'a str, Module)>,
    /// The words with which the paths of a file begin.
    words: BTreeMap<&'a str, BTreeSet<String>>,
}

impl<'a> Crate<'a> {
    fn add(&mut self, file: &'a str, modules: Vec<Module>, words: BTreeSet<String>) {
        self.modules.extend(modules.into_iter().map(|module| (module.path.clone(), (file, module))));
        self.words.insert(file, words);
    }

    fn imports(&self, counted: Counted) -> BTreeMap<&'a str, Imports<'a>> {
        let mut graph: BTreeMap<&str, Imports<'_>> =
            self.words.keys().map(|file| (*file, Imports::new())).collect();
        for (file, module) in self.modules.values() {
            let is_used = |name: &str| self.words.get(file).is_some_and(|words| words.contains(name));
            let counts = |one: &&Import| counted == Counted::All || !one.is_export || is_used(&one.name);
            let imported = module.imports.iter().filter(counts);
            let imported = imported.map(|one| (one.line, &one.segments, one.name == "*"));
            let named = module.paths.iter().map(|one| (one.line, &one.segments, false));
            for (line, segments, is_glob) in imported.chain(named) {
                let Some(imports) = graph.get_mut(file) else { continue };
                for (other, name) in self.definers(&module.path, segments, is_glob, 0) {
                    if other != *file {
                        let (first, names) = imports.entry(other).or_insert((line, BTreeSet::new()));
                        *first = line.min(*first);
                        names.insert(name);
                    }
                }
            }
        }
        graph
    }

    /// Resolves `segments` from the module at `from` to items of this crate: the file that defines each, and its name.
    /// There are several if `use` gives one name to several items. A module is no item, unless a glob imports all of it.
    fn definers(
        &self,
        from: &[String],
        segments: &[String],
        is_glob: bool,
        depth: usize,
    ) -> Vec<(&'a str, String)> {
        let Some((first, rest)) = segments.split_first().filter(|_| depth < LONGEST_CHAIN) else {
            return Vec::new();
        };
        match first.as_str() {
            "crate" => self.below(&[], rest, is_glob, depth),
            "self" => self.below(from, rest, is_glob, depth),
            "super" => {
                let supers = segments.iter().take_while(|segment| *segment == "super").count();
                let base = from.get(..from.len().saturating_sub(supers)).unwrap_or_default();
                self.below(base, segments.get(supers..).unwrap_or_default(), is_glob, depth)
            }
            // An imported name or a module that is declared here; all others are of this file or of another crate.
            _ if self.imported(from, first).next().is_some()
                || self.modules.contains_key(&[from, std::slice::from_ref(first)].concat()) =>
            {
                self.below(from, segments, is_glob, depth)
            }
            _ => Vec::new(),
        }
    }

    /// As [`Self::definers`], for names in `module`.
    fn below(
        &self,
        module: &[String],
        names: &[String],
        is_glob: bool,
        depth: usize,
    ) -> Vec<(&'a str, String)> {
        let file = self.modules.get(module).map(|(file, _)| *file);
        let Some((first, rest)) = names.split_first() else {
            return file.filter(|_| is_glob).map(|file| (file, "*".to_owned())).into_iter().collect();
        };
        let inner = [module, std::slice::from_ref(first)].concat();
        let is_module = self.modules.contains_key(&inner);
        if is_module && (is_glob || !rest.is_empty()) {
            return self.below(&inner, rest, is_glob, depth);
        }
        let imports: Vec<&Import> = self.imported(module, first).collect();
        let is_item = !is_module && imports.is_empty();
        let targets = imports.iter().map(|import| [import.segments.as_slice(), rest].concat());
        let mut found: Vec<_> =
            targets.flat_map(|target| self.definers(module, &target, is_glob, depth + 1)).collect();
        found.extend(file.filter(|_| is_item).map(|file| (file, first.clone())));
        found
    }

    /// The imports of a module that give something this name.
    fn imported<'b>(&'b self, module: &[String], name: &'b str) -> impl Iterator<Item = &'b Import> {
        let imports = self.modules.get(module).map(|(_, module)| module.imports.iter());
        imports.into_iter().flatten().filter(move |import| import.name == name)
    }
}
