//! The list of switches, read from the sources.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Every switch with its place in the sources.
pub(crate) fn all() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (path, text) in sources() {
        for (at, _) in text.match_indices("switch::") {
            let rest = &text[at + "switch::".len()..];
            let Some(rest) = rest.strip_prefix("on(").or_else(|| rest.strip_prefix("step(")) else {
                continue;
            };
            let Some((_, name)) = rest.split_once('"').filter(|(before, _)| before.trim().is_empty()) else {
                continue;
            };
            let name = name.split('"').next().unwrap_or_default();
            let line = text[..at].lines().count();
            let place = format!("{}:{line}", path.display());
            let before = found.insert(name.to_owned(), place.clone());
            assert_eq!(before, None, "{name} stands at {place} too");
        }
    }
    found
}

/// The product's sources without comments and tests.
fn sources() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../rust");
    let mut files = Vec::new();
    for part in [
        "mqstore-base/src",
        "mqstore-log/src",
        "mqstore-meta/src",
        "mqstore-compaction/src",
        "mqstore-engine/src",
        "mqstore-inspect/src",
        "mqstore-archive/src",
        "mqstore-backup/src",
        "mqstore-results/src",
        "mqstore-delivery/src",
        "mqstore-transfer/src",
        "mqstore-io/src",
    ] {
        collect(&root.join(part), &mut files);
    }
    files.sort();
    files
}

fn collect(folder: &Path, files: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !["tests", "sim", "os"].contains(&name.as_str()) {
                collect(&path, files);
            }
        } else if path.extension().is_some_and(|ending| ending == "rs")
            // `faults.rs` only forwards syncs.
            && !["tests.rs", "testing.rs", "switch.rs", "conformance.rs", "faults.rs"].contains(&name.as_str())
        {
            let text = std::fs::read_to_string(&path).unwrap();
            let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let lines = product.lines().map(|line| line.split("//").next().unwrap_or_default());
            files.push((path, lines.collect::<Vec<_>>().join("\n")));
        }
    }
}

/// Calls that make something durable and that no switch can turn off.
fn syncs_without_a_switch() -> Vec<String> {
    let mut bare = Vec::new();
    for (path, text) in sources() {
        for call in [".sync_data()", ".sync_all()", ".sync_dir(", "region.flush("] {
            for (at, _) in text.match_indices(call) {
                // The text from the start of the enclosing statement.
                let from = text[..at].rfind([';', '{', '}']).map_or(0, |end| end + 1);
                let outer = text[..from].trim_end().rfind(';').map_or(0, |end| end + 1);
                let around = &text[outer..at];
                let inside = around.rfind("switch::step(").is_some_and(|step| {
                    let between = &around[step..];
                    between.matches('(').count() > between.matches(')').count()
                        || between.matches('{').count() > between.matches('}').count()
                });
                if !inside {
                    bare.push(format!("{}:{}: {call}", path.display(), text[..at].lines().count()));
                }
            }
        }
    }
    bare
}

#[test]
fn every_sync_has_a_switch() {
    assert_eq!(syncs_without_a_switch(), Vec::<String>::new());
}

#[test]
fn switches_have_proper_names() {
    let all = all();
    for (name, place) in &all {
        let parts: Vec<&str> = name.split('.').collect();
        let plain = |part: &&str| {
            !part.is_empty()
                && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        };
        assert!(parts.len() == 2 && parts.iter().all(plain), "{name} at {place}");
    }
    assert!(all.len() >= 40, "{} switches", all.len());
}
