//! The paths that comments name in backticks exist.

use std::path::Path;

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
    let mut found = Vec::new();
    for (path, text) in tree.files() {
        let is_rust = has_ending(path, "rs") && path.starts_with("rust/");
        let is_guide = has_ending(path, "md") && !path.contains('/');
        if !is_rust && !is_guide {
            continue;
        }
        let comments =
            text.lines().enumerate().filter(|(_, line)| is_guide || line.trim_start().starts_with("//"));
        for (at, line) in comments {
            for code in line.split('`').skip(1).step_by(2).map(|code| code.trim_end_matches("()")) {
                let exists = if has_ending(code, "rs") {
                    tree.files().any(|(file, _)| is_end_of(file, code))
                } else {
                    !is_module_path(code) || is_known(tree, &modules, code)
                };
                if !exists {
                    found.push(Finding::new(path, at + 1, format!("{code} does not exist")));
                }
            }
        }
    }
    found
}

fn has_ending(path: &str, ending: &str) -> bool {
    Path::new(path).extension().is_some_and(|found| found == ending)
}

/// Whether `end` is the path of the file, or the last parts of it.
fn is_end_of(file: &str, end: &str) -> bool {
    file.strip_suffix(end).is_some_and(|start| start.is_empty() || start.ends_with('/'))
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
    let names = code.split("::").skip_while(|name| matches!(*name, "crate" | "self" | "super"));
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    // A type ends the path: fields, variants and methods are not looked up.
    if let Some(end) = names.iter().position(|name| name.starts_with(|c: char| c.is_ascii_uppercase())) {
        names.truncate(end + 1);
    }
    // The way in has the items of other crates under names of its own.
    if names.first().is_some_and(|name| name == "mqstore") {
        names = names.split_off(names.len() - 1);
    }
    let Some((item, home)) = names.split_last() else { return true };
    let is_inside =
        |module: &[String]| home.is_empty() || module.windows(home.len()).any(|part| part == home);
    modules.iter().any(|(module, _)| module.ends_with(&names))
        || modules
            .iter()
            .filter(|(module, _)| is_inside(module))
            .any(|(_, path)| tree.text(path).is_some_and(|text| defines(text, item)))
}

/// Whether the text has the definition of an item.
fn defines(text: &str, item: &str) -> bool {
    text.contains(item)
        && KEYWORDS.iter().any(|keyword| {
            text.match_indices(&format!("{keyword}{item}")).any(|(at, found)| {
                !text
                    .get(at + found.len()..)
                    .is_some_and(|rest| rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
            })
        })
}
