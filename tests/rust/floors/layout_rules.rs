//! Which crates and Python packages may name which others.

use crate::python_source;
use crate::rust_source::{self, Token};
use crate::tree::{Finding, Tree};

/// Each crate of ours, and which of the others it may depend on.
const CRATES: [(&str, &[&str]); 18] = [
    ("mqstore-format", &[]),
    ("mqstore-io", &[]),
    ("mqstore-arrow", &["mqstore-format"]),
    ("mqstore-base", &["mqstore-format", "mqstore-io"]),
    ("mqstore-log", &["mqstore-base", "mqstore-format", "mqstore-io"]),
    ("mqstore-meta", &["mqstore-base", "mqstore-format", "mqstore-io"]),
    ("mqstore-compaction", &["mqstore-base", "mqstore-format", "mqstore-io", "mqstore-log", "mqstore-meta"]),
    (
        "mqstore-engine",
        &[
            "mqstore-base",
            "mqstore-compaction",
            "mqstore-format",
            "mqstore-io",
            "mqstore-log",
            "mqstore-meta",
        ],
    ),
    (
        "mqstore-inspect",
        &[
            "mqstore-base",
            "mqstore-compaction",
            "mqstore-engine",
            "mqstore-format",
            "mqstore-io",
            "mqstore-log",
            "mqstore-meta",
        ],
    ),
    (
        "mqstore-delivery",
        &["mqstore-base", "mqstore-engine", "mqstore-format", "mqstore-io", "mqstore-log", "mqstore-meta"],
    ),
    (
        "mqstore-archive",
        &[
            "mqstore-arrow",
            "mqstore-base",
            "mqstore-engine",
            "mqstore-format",
            "mqstore-inspect",
            "mqstore-io",
        ],
    ),
    ("mqstore-results", &["mqstore-base", "mqstore-io"]),
    (
        "mqstore-backup",
        &["mqstore-base", "mqstore-engine", "mqstore-format", "mqstore-inspect", "mqstore-io", "mqstore-log"],
    ),
    (
        "mqstore-transfer",
        &[
            "mqstore-base",
            "mqstore-delivery",
            "mqstore-engine",
            "mqstore-format",
            "mqstore-io",
            "mqstore-results",
        ],
    ),
    (
        "mqstore-replication",
        &[
            "mqstore-base",
            "mqstore-engine",
            "mqstore-format",
            "mqstore-inspect",
            "mqstore-io",
            "mqstore-log",
            "mqstore-meta",
        ],
    ),
    (
        "mqstore",
        &[
            "mqstore-archive",
            "mqstore-arrow",
            "mqstore-backup",
            "mqstore-base",
            "mqstore-compaction",
            "mqstore-delivery",
            "mqstore-engine",
            "mqstore-format",
            "mqstore-inspect",
            "mqstore-io",
            "mqstore-log",
            "mqstore-replication",
            "mqstore-results",
            "mqstore-transfer",
        ],
    ),
    ("mqstore-server", &["mqstore"]),
    ("mqstore-python", &["mqstore", "mqstore-server"]),
];

/// What the tests of a crate may use in addition: they verify the stores that they make.
const IN_TESTS: [(&str, &str); 2] =
    [("mqstore-engine", "mqstore-inspect"), ("mqstore-delivery", "mqstore-inspect")];

/// No crate lists one above it, or beside it on the ground floor, in any table of dependencies; nor names it in code.
pub(crate) fn crates_depend_downwards(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.below("rust/", "/Cargo.toml") {
        let Some((name, allowed)) = CRATES.iter().find(|(name, _)| path == format!("rust/{name}/Cargo.toml"))
        else {
            found.push(Finding::new(path, 1, "a crate without a place in the floor plan: add it to CRATES"));
            continue;
        };
        let tests_may = |other: &str| IN_TESTS.contains(&(*name, other));
        let product = dependencies(text, &["dev-dependencies"]);
        for (line, dependency) in dependencies(text, &[]) {
            let allowed_in_tests =
                tests_may(&dependency) && !product.iter().any(|(_, other)| *other == dependency);
            if is_ours(&dependency) && !allowed.contains(&dependency.as_str()) && !allowed_in_tests {
                found.push(Finding::new(path, line, format!("{name} must not depend on {dependency}")));
            }
        }
    }
    for (name, allowed) in CRATES {
        let folder = format!("rust/{name}/src/");
        let names_another = |other: &str| is_ours(other) && other != name && !allowed.contains(&other);
        let mut forbid = |path: &str, line: usize, other: &str| {
            found.push(Finding::new(path, line, format!("{name} must not name {other}")));
        };
        for (path, text) in tree.below(&folder, ".rs") {
            for Token { line, text } in rust_source::tokens(text) {
                let other = text.replace('_', "-");
                if names_another(&other) && !IN_TESTS.contains(&(name, other.as_str())) {
                    forbid(path, line, &other);
                }
            }
        }
        for (path, text) in product_files(tree, &folder) {
            for Token { line, text } in rust_source::product(text).tokens {
                let other = text.replace('_', "-");
                if names_another(&other) && IN_TESTS.contains(&(name, other.as_str())) {
                    forbid(path, line, &other);
                }
            }
        }
    }
    found
}

fn is_ours(name: &str) -> bool {
    CRATES.iter().any(|(ours, _)| *ours == name)
}

/// Name and line of every dependency in a manifest, for all targets, except in tables whose name ends with one of
/// `skipped`.
pub(crate) fn dependencies(manifest: &str, skipped: &[&str]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut inside = false;
    for (at, line) in manifest.lines().enumerate() {
        let line = line.trim();
        if let Some(table) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            inside = table.ends_with("dependencies") && !skipped.iter().any(|end| table.ends_with(end));
            // [dependencies.name] holds one dependency.
            if let Some((before, name)) = table.rsplit_once('.')
                && before.ends_with("dependencies")
                && !skipped.iter().any(|end| before.ends_with(end))
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

/// `rust/mqstore-log/src/index/file.rs` is `[index, file]`, `…/index/mod.rs` is `[index]`, `…/lib.rs` is empty.
pub(crate) fn module_path(path: &str, folder: &str) -> Vec<String> {
    let inside = path.trim_start_matches(folder).trim_end_matches(".rs");
    let mut module: Vec<String> = inside.split('/').map(str::to_owned).collect();
    if module.last().is_some_and(|last| last == "mod" || last == "lib") {
        module.pop();
    }
    module
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

/// PySpark, typer and rich, the task libraries, the native module and the upper packages are imported only where they
/// belong. The integrations use only public names.
pub(crate) fn python_imports_stay_on_their_floor(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.below("python/", ".py") {
        let in_spark =
            path.starts_with("python/mqstore/spark/") || path.starts_with("python/pyspark_mqstore");
        let in_cli = path.starts_with("python/mqstore/cli/");
        let in_integrations = path.starts_with("python/mqstore/integrations/");
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
            if matches!(root, "celery" | "dramatiq" | "huey" | "kombu" | "taskiq") && !in_integrations {
                forbid(import.line, root, "mqstore.integrations");
            }
            if names(&full, "mqstore.integrations") && !in_integrations {
                forbid(import.line, "mqstore.integrations", "mqstore.integrations itself");
            }
            if full.starts_with("mqstore._") && in_integrations {
                forbid(import.line, &full, "the rest of mqstore: an integration uses public names");
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
pub(crate) fn full_name(path: &str, module: &str, name: Option<&str>) -> String {
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
