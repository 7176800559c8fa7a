//! The paths that comments name in backticks exist.

use std::collections::BTreeSet;

use crate::layout_rules::module_path;
use crate::tree::{Finding, Tree};

/// The first segments of paths into the code of others.
const ELSEWHERE: [&str; 6] = ["i64", "io", "memmap2", "parking_lot", "std", "u64"];

/// The words before the name of an item.
const KEYWORDS: [&str; 8] = ["fn ", "struct ", "enum ", "trait ", "type ", "const ", "static ", "mod "];

/// A comment of a Rust file, and the Markdown of the root, name in backticks only files (`write/writer.rs`) and module
/// paths (`commit_log::append`) that exist.
pub(crate) fn comments_name_existing_paths(tree: &Tree) -> Vec<Finding> {
    let modules: Vec<(Vec<String>, &str)> = tree
        .below("rust/", ".rs")
        .filter_map(|(path, _)| {
            let (name, _) = path.strip_prefix("rust/")?.split_once("/src/")?;
            let mut module = vec![name.replace('-', "_")];
            module.extend(module_path(path, &format!("rust/{name}/src/")));
            Some((module, path))
        })
        .collect();
    let files: BTreeSet<&str> = tree.files().map(|(path, _)| path).collect();
    let mut found = Vec::new();
    for (path, text) in tree.files() {
        let is_rust = path.ends_with(".rs") && path.starts_with("rust/");
        let is_guide = path.ends_with(".md") && !path.contains('/');
        for (at, line) in text.lines().enumerate().filter(|_| is_rust || is_guide) {
            if is_rust && !line.trim_start().starts_with("//") {
                continue;
            }
            for code in line.split('`').skip(1).step_by(2) {
                let code = code.trim_end_matches("()");
                let exists = if code.ends_with(".rs") {
                    files.iter().any(|file| *file == code || file.ends_with(&format!("/{code}")))
                } else if is_module_path(code) {
                    is_known(tree, &modules, code)
                } else {
                    true
                };
                if !exists {
                    found.push(Finding::new(path, at + 1, format!("{code} does not exist")));
                }
            }
        }
    }
    found
}

/// Whether the text is a path that begins with a module: `a::b`, not `Type::name`.
fn is_module_path(code: &str) -> bool {
    let is_word =
        |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let first = code.split("::").next().unwrap_or(code);
    code.contains("::")
        && code.split("::").all(is_word)
        && first.starts_with(|c: char| c.is_ascii_lowercase())
        && !ELSEWHERE.contains(&first)
}

/// Whether a module of this path exists, or an item in one.
fn is_known(tree: &Tree, modules: &[(Vec<String>, &str)], code: &str) -> bool {
    let names: Vec<&str> =
        code.split("::").skip_while(|name| matches!(*name, "crate" | "self" | "super")).collect();
    // A type ends the path: fields, variants and methods are not looked up.
    let end = names.iter().position(|name| name.starts_with(|c: char| c.is_ascii_uppercase()));
    let names = names.get(..end.map_or(names.len(), |end| end + 1)).unwrap_or_default();
    let Some((item, home)) = names.split_last() else { return true };
    modules.iter().any(|(module, _)| module.ends_with(&owned(names)))
        || modules
            .iter()
            .filter(|(module, _)| {
                let inside = module.windows(home.len().max(1)).any(|part| part == owned(home));
                home.is_empty() || inside
            })
            .any(|(_, path)| tree.text(path).is_some_and(|text| defines(text, item)))
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Whether the text has the definition of an item.
fn defines(text: &str, item: &str) -> bool {
    KEYWORDS.iter().any(|keyword| {
        text.match_indices(&format!("{keyword}{item}")).any(|(at, found)| {
            !text
                .get(at + found.len()..)
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        })
    })
}
