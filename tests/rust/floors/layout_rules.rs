//! Who may name whom: between crates, between the modules of the core, between the packages of Python.

use std::collections::BTreeMap;

use crate::python_source;
use crate::rust_source::{self, PathRef, Token};
use crate::tree::{Finding, Tree};

/// Each crate of ours, and which of the others it may depend on.
const CRATES: [(&str, &[&str]); 5] = [
    ("mqstore-format", &[]),
    ("mqstore-io", &[]),
    ("mqstore-core", &["mqstore-format", "mqstore-io"]),
    ("mqstore-broker", &["mqstore-core", "mqstore-format", "mqstore-io"]),
    ("mqstore-python", &["mqstore-broker", "mqstore-core", "mqstore-format", "mqstore-io"]),
];

/// The floor of every module at the top of `mqstore-core`. A new module gets a line here.
const CORE_FLOORS: [(&str, u8); 21] = [
    // The ground that all stand on.
    ("error", 0),
    ("events", 0),
    ("files", 0),
    ("group_commit", 0),
    ("live", 0),
    ("mark", 0),
    ("message", 0),
    ("options", 0),
    // The families of files.
    ("commit_log", FAMILIES),
    ("consume_queue", FAMILIES),
    ("index", FAMILIES),
    ("checkpoint", FAMILIES),
    ("meta", FAMILIES),
    // What joins them.
    ("dispatch", 2),
    ("flush", 2),
    ("recovery", 2),
    ("mend", 2),
    ("retention", 2),
    ("compaction", 2),
    ("inspect", 2),
    // The façade.
    ("store", 3),
];
/// The floor on which modules do not know each other.
const FAMILIES: u8 = 1;

const CORE: &str = "rust/mqstore-core/src/";

/// No crate lists one above it, or beside it on the ground floor, in any table of dependencies; nor names it in code.
pub(crate) fn crates_depend_downwards(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.below("rust/", "/Cargo.toml") {
        let Some((name, allowed)) = CRATES.iter().find(|(name, _)| path == format!("rust/{name}/Cargo.toml"))
        else {
            found.push(Finding::new(path, 1, "a crate without a place in the floor plan: add it to CRATES"));
            continue;
        };
        for (line, dependency) in dependencies(text) {
            if is_ours(&dependency) && !allowed.contains(&dependency.as_str()) {
                found.push(Finding::new(path, line, format!("{name} must not depend on {dependency}")));
            }
        }
    }
    for (name, allowed) in CRATES {
        for (path, text) in tree.below(&format!("rust/{name}/src/"), ".rs") {
            for Token { line, text } in rust_source::tokens(text) {
                let other = text.replace('_', "-");
                if is_ours(&other) && other != name && !allowed.contains(&other.as_str()) {
                    found.push(Finding::new(path, line, format!("{name} must not name {text}")));
                }
            }
        }
    }
    found
}

fn is_ours(name: &str) -> bool {
    CRATES.iter().any(|(ours, _)| *ours == name)
}

/// Name and line of every dependency in a manifest, of all kinds and for all targets.
pub(crate) fn dependencies(manifest: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut inside = false;
    for (at, line) in manifest.lines().enumerate() {
        let line = line.trim();
        if let Some(table) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            inside = table.ends_with("dependencies");
            // [dependencies.name] holds one dependency.
            if let Some((before, name)) = table.rsplit_once('.')
                && before.ends_with("dependencies")
            {
                found.push((at + 1, unquoted(name)));
            }
        } else if inside && !line.starts_with('#') {
            // `name = …` or `name.workspace = true`
            if let Some((key, _)) = line.split_once('=') {
                found.push((at + 1, unquoted(key.split('.').next().unwrap_or(key))));
            }
        }
    }
    found
}

fn unquoted(text: &str) -> String {
    text.trim().trim_matches(['"', '\'']).to_owned()
}

/// Inside the core a module names only modules of lower floors, or of its own; the families not even those.
pub(crate) fn core_modules_depend_downwards(tree: &Tree) -> Vec<Finding> {
    let exports = tree.text(&format!("{CORE}lib.rs")).map(exported_names).unwrap_or_default();
    let mut found = Vec::new();
    for (path, text) in product_files(tree, CORE) {
        let module = module_path(path);
        let Some(own) = module.first() else { continue }; // lib.rs names every module
        let Some(own_floor) = floor(own) else {
            found.push(Finding::new(path, 1, format!("module {own} has no floor: add it to CORE_FLOORS")));
            continue;
        };
        for PathRef { line, segments } in rust_source::paths(&rust_source::product(text).tokens) {
            let Some(first) = inside_crate(&segments, &module) else { continue };
            let target = exports.get(&first).unwrap_or(&first);
            let Some(target_floor) = floor(target) else { continue };
            if target == own || target_floor < own_floor {
                continue;
            }
            if target_floor > own_floor {
                let what = format!(
                    "{own} (floor {own_floor}) names {target} (floor {target_floor}), which is above it"
                );
                found.push(Finding::new(path, line, what));
            } else if own_floor == FAMILIES {
                found.push(Finding::new(
                    path,
                    line,
                    format!("the families {own} and {target} must not know each other"),
                ));
            }
        }
    }
    found
}

fn floor(module: &str) -> Option<u8> {
    CORE_FLOORS.iter().find(|(name, _)| *name == module).map(|(_, floor)| *floor)
}

/// `rust/mqstore-core/src/index/file.rs` is `[index, file]`, `…/index/mod.rs` is `[index]`, `…/lib.rs` is empty.
fn module_path(path: &str) -> Vec<String> {
    let inside = path.trim_start_matches(CORE).trim_end_matches(".rs");
    let mut module: Vec<String> = inside.split('/').map(str::to_owned).collect();
    if module.last().is_some_and(|last| last == "mod" || last == "lib") {
        module.pop();
    }
    module
}

/// The first name below the crate's root that a path leads to, if it stays inside the crate.
fn inside_crate(segments: &[String], module: &[String]) -> Option<String> {
    let mut base: Vec<String> = match segments.first()?.as_str() {
        "crate" => Vec::new(),
        "self" | "super" => module.to_vec(),
        _ => return None,
    };
    let mut rest = segments.get(1..)?;
    if segments.first()? == "super" {
        base.pop();
        while let Some((next, after)) = rest.split_first().filter(|(next, _)| *next == "super") {
            debug_assert_eq!(next, "super");
            base.pop();
            rest = after;
        }
    }
    base.first().or_else(|| rest.first()).cloned()
}

/// What `lib.rs` re-exports, and from which module: `crate::QueueSet` is `crate::consume_queue::QueueSet`.
fn exported_names(lib: &str) -> BTreeMap<String, String> {
    rust_source::paths(&rust_source::product(lib).tokens)
        .into_iter()
        .filter_map(|path| {
            let mut segments =
                path.segments.into_iter().skip_while(|segment| segment == "crate" || segment == "self");
            let module = segments.next()?;
            Some((segments.last()?, module))
        })
        .collect()
}

/// The Rust files of a folder without the modules that only tests compile.
pub(crate) fn product_files<'a>(tree: &'a Tree, folder: &'a str) -> Vec<(&'a str, &'a str)> {
    let mut test_only = Vec::new();
    for (path, text) in tree.below(folder, ".rs") {
        let (parent, file) = path.rsplit_once('/').unwrap_or(("", path));
        let home = match file {
            "mod.rs" | "lib.rs" | "main.rs" => parent.to_owned(),
            _ => path.trim_end_matches(".rs").to_owned(),
        };
        test_only
            .extend(rust_source::product(text).test_modules.into_iter().map(|name| format!("{home}/{name}")));
    }
    let is_test = |path: &str| {
        test_only
            .iter()
            .any(|module| path == format!("{module}.rs") || path.starts_with(&format!("{module}/")))
    };
    tree.below(folder, ".rs").filter(|(path, _)| !is_test(path)).collect()
}

/// PySpark, typer and rich, the native module and the upper packages are imported only where they belong.
pub(crate) fn python_imports_stay_on_their_floor(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.below("python/", ".py") {
        let in_spark =
            path.starts_with("python/mqstore/spark/") || path.starts_with("python/pyspark_mqstore");
        let in_cli = path.starts_with("python/mqstore/cli/");
        let mut forbid = |line: usize, name: &str, where_: &str| {
            found.push(Finding::new(path, line, format!("{name} may be imported only in {where_}")));
        };
        for import in python_source::imports(text) {
            let root = import.module.split('.').next().unwrap_or_default();
            let full = full_name(path, &import.module, import.name.as_deref());
            if matches!(root, "pyspark" | "py4j") && !in_spark {
                forbid(import.line, root, "mqstore.spark");
            }
            if matches!(root, "typer" | "rich" | "click") && !in_cli {
                forbid(import.line, root, "mqstore.cli");
            }
            if names(&full, "mqstore._mqstore") && path != "python/mqstore/_native.py" {
                forbid(import.line, "_mqstore", "_native.py");
            }
            if names(&full, "mqstore.cli") && !in_cli && path != "python/mqstore/__main__.py" {
                forbid(import.line, "mqstore.cli", "the command line itself");
            }
            if names(&full, "mqstore.spark") && !in_spark && !in_cli {
                forbid(import.line, "mqstore.spark", "mqstore.spark and the command line");
            }
        }
        for module in ["pyspark", "typer", "rich", "mqstore._mqstore"] {
            if text.contains(&format!("import_module(\"{module}")) && !in_spark && !in_cli {
                forbid(1, module, "its own floor, also by import_module");
            }
        }
    }
    found
}

/// The absolute name of what is imported: `from ._mqstore import x` in `mqstore/store.py` is `mqstore._mqstore.x`.
fn full_name(path: &str, module: &str, name: Option<&str>) -> String {
    let dots = module.len() - module.trim_start_matches('.').len();
    let mut parts: Vec<&str> = Vec::new();
    if dots > 0 {
        parts = path.trim_start_matches("python/").split('/').collect();
        parts.truncate(parts.len().saturating_sub(dots));
    }
    parts.extend(module.trim_start_matches('.').split('.').filter(|part| !part.is_empty()));
    parts.extend(name);
    parts.join(".")
}

fn names(full: &str, module: &str) -> bool {
    full.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}
