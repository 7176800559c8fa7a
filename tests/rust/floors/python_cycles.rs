//! Python files do not import each other in a circle: who reads one of them has to read only what it stands on.

use std::collections::{BTreeMap, VecDeque};

use crate::layout_rules::full_name;
use crate::python_source;
use crate::tree::{Finding, Tree};

/// The imports of a file that lead to other files of ours: where each stands, and the path of the other file.
type Imports<'a> = Vec<(usize, &'a str)>;

/// No file imports itself, directly or through others, at its top or inside of a function.
///
/// Stubs are never run, and neither is what stands below `if TYPE_CHECKING:`. That a package is imported before its
/// modules does not count.
pub(crate) fn python_files_import_in_no_circle(tree: &Tree) -> Vec<Finding> {
    let modules: BTreeMap<String, &str> =
        tree.below("python/", ".py").map(|(path, _)| (module_name(path), path)).collect();
    let graph: BTreeMap<&str, Imports<'_>> =
        tree.below("python/", ".py").map(|(path, text)| (path, imports(path, text, &modules))).collect();
    let mut found = Vec::new();
    for (path, imports) in &graph {
        for (line, other) in imports {
            if let Some(way) = way(&graph, other, path) {
                found.push(Finding::new(
                    path,
                    *line,
                    format!("imports itself, by way of {}", way.join(", ")),
                ));
            }
        }
    }
    found
}

/// `python/mqstore/_read/scan.py` is `mqstore._read.scan`, `python/mqstore/aio/__init__.py` is `mqstore.aio`.
fn module_name(path: &str) -> String {
    let inside = path.trim_start_matches("python/").trim_end_matches(".py");
    inside.trim_end_matches("/__init__").replace('/', ".")
}

fn imports<'a>(path: &str, text: &str, modules: &BTreeMap<String, &'a str>) -> Imports<'a> {
    let mut found = Vec::new();
    for import in python_source::imports(text).into_iter().filter(|import| !import.typing_only) {
        let full = full_name(path, &import.module, import.name.as_deref());
        // The name is a module itself, or something in one.
        let home = full.rsplit_once('.').map_or("", |(home, _)| home);
        if let Some(other) = modules.get(&full).or_else(|| modules.get(home)) {
            found.push((import.line, *other));
        }
    }
    found
}

/// The files from `from` to `to`, both included, along the shortest way that the imports make.
fn way<'a>(graph: &BTreeMap<&'a str, Imports<'a>>, from: &'a str, to: &str) -> Option<Vec<&'a str>> {
    let mut before: BTreeMap<&str, Option<&'a str>> = BTreeMap::from([(from, None)]);
    let mut waiting = VecDeque::from([from]);
    while let Some(path) = waiting.pop_front() {
        if path == to {
            let mut way = vec![path];
            let mut at = path;
            while let Some(Some(earlier)) = before.get(at) {
                way.insert(0, *earlier);
                at = *earlier;
            }
            return Some(way);
        }
        for (_, other) in graph.get(path).into_iter().flatten() {
            before.entry(*other).or_insert_with(|| {
                waiting.push_back(*other);
                Some(path)
            });
        }
    }
    None
}
