//! What a file may contain: calls to the system, `unsafe`, threads, length, words. How large folders and crates are.

use std::collections::{BTreeMap, BTreeSet};

use crate::layout_rules::{dependencies, product_files};
use crate::python_source;
use crate::rust_source::{self, PathRef, Token};
use crate::tree::{Finding, Tree};

/// Paths that reach the file system, the clock or the environment past `mqstore-io`.
const RAW: [&[&str]; 17] = [
    &["std", "fs"],
    &["std", "env"],
    &["std", "net", "TcpListener"],
    &["std", "net", "TcpStream"],
    &["std", "net", "UdpSocket"],
    &["std", "os"],
    &["std", "time", "Instant"],
    &["std", "time", "SystemTime"],
    &["std", "thread", "sleep"],
    &["rustix"],
    &["libc"],
    &["nix"],
    &["memmap2"],
    &["tempfile"],
    &["thread", "sleep"],
    &["fs", "File"],
    &["env", "var"],
];
/// Types that do the same under any path.
const RAW_TYPES: [&str; 4] = ["Instant", "SystemTime", "OpenOptions", "DirBuilder"];

/// These may use the sockets of the system: the local socket of a shared store, its clients' end, and TCP.
const SOCKETS_ALLOWED: [&str; 3] = [
    "rust/mqstore-server/src/socket/",
    "rust/mqstore-server/src/client/connection.rs",
    "rust/mqstore-server/src/tcp.rs",
];
const SOCKET_CRATES: [&[&str]; 4] = [&["std", "os"], &["std", "net"], &["rustix"], &["nix"]];

/// The crate that may use an asynchronous runtime.
const RUNTIME_CRATE: &str = "rust/mqstore-server/";

const UNSAFE_ALLOWED: [&str; 3] = [
    "rust/mqstore-io/src/region/mod.rs",
    "rust/mqstore-io/src/os/mmap.rs",
    "rust/mqstore-python/src/convert/buffer.rs",
];

/// These files may start threads:
///
/// - `sync.rs` has the functions that start one;
/// - `pool.rs` has the workers that share one call, which joins them before it returns;
/// - `services.rs` starts the background threads of the store;
/// - `workers.rs` starts the workers of a scan, which end with it;
/// - the service of a shared store has a thread for appends, its listener one for connections, and each handle one that
///   watches the owner;
/// - the binding of compaction starts one thread per call, so that the calling thread can answer Ctrl-C.
const THREADS_ALLOWED: [&str; 10] = [
    "rust/mqstore-io/src/sync.rs",
    "rust/mqstore-io/src/pool.rs",
    "rust/mqstore-engine/src/store/services.rs",
    "rust/mqstore-engine/src/scan/workers.rs",
    "rust/mqstore-server/src/master/link.rs",
    "rust/mqstore-server/src/master/mod.rs",
    "rust/mqstore-server/src/service/mod.rs",
    "rust/mqstore-server/src/share/mod.rs",
    "rust/mqstore-server/src/socket/listener.rs",
    "rust/mqstore-python/src/store/compaction.rs",
];
const THREAD_WORDS: [&str; 3] = ["spawn", "spawn_scoped", "ThreadPoolBuilder"];

/// The file and the crate that may use rayon.
const POOL_FILE: &str = "rust/mqstore-io/src/pool.rs";
const POOL_MANIFEST: &str = "rust/mqstore-io/Cargo.toml";

const LONGEST_FILE: usize = 1000;
const LARGEST_FOLDER: usize = 20;
const LARGEST_CRATE: usize = 15_000;
const LONGEST_HEADER: usize = 10;
const SOURCE_ENDINGS: [&str; 6] = [".rs", ".py", ".pyi", ".sh", ".java", ".scala"];

/// The product reaches files, clocks, sleep and the environment only through `mqstore-io`.
pub(crate) fn raw_calls_only_in_io(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in product_files(tree, "rust/") {
        if path.starts_with("rust/mqstore-io/") || path.ends_with("/build.rs") {
            continue;
        }
        let tokens = rust_source::product(text).tokens;
        for PathRef { line, segments } in rust_source::paths(&tokens) {
            let is_socket = SOCKETS_ALLOWED.iter().any(|allowed| path.starts_with(allowed))
                && SOCKET_CRATES.iter().any(|raw| starts_with(&segments, raw));
            if !is_socket && RAW.iter().any(|raw| starts_with(&segments, raw)) {
                found.push(Finding::new(
                    path,
                    line,
                    format!("{}: go through mqstore-io", segments.join("::")),
                ));
            }
        }
        for Token { line, text } in tokens {
            if RAW_TYPES.contains(&text.as_str()) {
                found.push(Finding::new(path, line, format!("{text}: go through mqstore-io")));
            }
        }
    }
    found
}

fn starts_with(segments: &[String], prefix: &[&str]) -> bool {
    segments.len() >= prefix.len() && segments.iter().zip(prefix).all(|(segment, wanted)| segment == wanted)
}

/// The keyword `unsafe` stands in three files; in tests and benchmarks nowhere.
pub(crate) fn unsafe_only_in_three_files(tree: &Tree) -> Vec<Finding> {
    let folders = ["rust/", "tests/rust/", "benches/rust/"];
    let files = folders.iter().flat_map(|folder| tree.below(folder, ".rs"));
    words_in(files.filter(|(path, _)| !UNSAFE_ALLOWED.contains(path)), &["unsafe"])
}

/// Only the binding depends on `PyO3`.
pub(crate) fn pyo3_only_in_the_binding(tree: &Tree) -> Vec<Finding> {
    let elsewhere = |path: &str| !path.starts_with("rust/mqstore-python/");
    let mut found = Vec::new();
    for (path, text) in tree.below("", "/Cargo.toml").filter(|(path, _)| elsewhere(path)) {
        for (line, name) in dependencies(text, &[]) {
            if name.starts_with("pyo3") {
                found.push(Finding::new(path, line, format!("only mqstore-python may depend on {name}")));
            }
        }
    }
    let code = tree.below("", ".rs").filter(|(path, _)| elsewhere(path));
    found.extend(words_in(code, &["pyo3"]));
    found
}

/// Background work is a `step` on a plain struct; its threads start in one place.
pub(crate) fn threads_only_in_one_place(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in product_files(tree, "rust/") {
        if THREADS_ALLOWED.contains(&path) {
            continue;
        }
        let tokens = rust_source::product(text).tokens;
        for PathRef { line, segments } in rust_source::paths(&tokens) {
            let names_thread = segments.windows(2).any(|pair| {
                matches!(pair, [module, item] if module == "thread" && matches!(item.as_str(), "scope" | "Builder"))
            });
            // Handing the function on is not calling it.
            let re_export =
                path == "rust/mqstore-io/src/lib.rs" && segments.first().is_some_and(|s| s == "sync");
            if names_thread && !re_export {
                found.push(Finding::new(
                    path,
                    line,
                    format!("{}: threads start in services.rs", segments.join("::")),
                ));
            }
        }
        for Token { line, text } in tokens {
            if THREAD_WORDS.contains(&text.as_str()) && path != "rust/mqstore-io/src/lib.rs" {
                found.push(Finding::new(path, line, format!("{text}: threads start in services.rs")));
            }
        }
    }
    found
}

/// One file wraps rayon. Everyone else uses the wrapper, whose threads end with the call and inherit what they must.
pub(crate) fn rayon_only_in_the_pool(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.below("", "/Cargo.toml").filter(|(path, _)| *path != POOL_MANIFEST) {
        for (line, name) in dependencies(text, &[]) {
            if name.starts_with("rayon") {
                found.push(Finding::new(path, line, format!("only mqstore-io may depend on {name}")));
            }
        }
    }
    let code = tree.below("", ".rs").filter(|(path, _)| *path != POOL_FILE);
    found.extend(words_in(code, &["rayon", "rayon_core"]));
    found
}

/// An asynchronous runtime serves the connections of a shared store, and nothing else.
pub(crate) fn runtime_only_in_the_server(tree: &Tree) -> Vec<Finding> {
    let elsewhere = |path: &str| !path.starts_with(RUNTIME_CRATE) && !path.starts_with("benches/");
    let mut found = Vec::new();
    for (path, text) in tree.below("", "/Cargo.toml").filter(|(path, _)| elsewhere(path)) {
        for (line, name) in dependencies(text, &[]) {
            // The root lists the versions of all crates.
            if name == "tokio" && path != "Cargo.toml" {
                found.push(Finding::new(path, line, "only mqstore-server may depend on tokio"));
            }
        }
    }
    let code = tree.below("rust/", ".rs").filter(|(path, _)| elsewhere(path));
    found.extend(words_in(code, &["tokio", "async", "await"]));
    found
}

/// The threads of rayon's global pool never end; a process that forks after they started would hang.
pub(crate) fn no_global_pool(tree: &Tree) -> Vec<Finding> {
    words_in(tree.below("", ".rs"), &["build_global"])
}

fn words_in<'a>(files: impl Iterator<Item = (&'a str, &'a str)>, words: &[&str]) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in files {
        for Token { line, text } in rust_source::tokens(text) {
            if words.contains(&text.as_str()) {
                found.push(Finding::new(path, line, format!("{text} has no place here")));
            }
        }
    }
    found
}

/// Calls that make a file durable or give it a name. The simulator never sees those of Python.
const DURABLE_STEPS: [&str; 9] = [
    ".fsync(",
    ".fdatasync(",
    ".rename(",
    ".renames(",
    ".hardlink_to(",
    "os.link(",
    "os.replace(",
    "shutil.move(",
    ".replace(",
];

/// Measures the syncs of a device.
const MEASURES_SYNCS: &str = "python/mqstore/cli/bench.py";

/// The Python package syncs, renames and links no file. HDFS has a client of its own.
pub(crate) fn durable_steps_only_in_rust(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, source) in tree.below("python/mqstore/", ".py").filter(|(path, _)| *path != MEASURES_SYNCS) {
        let code = python_source::without_strings(source);
        for (at, line) in code.lines().enumerate() {
            for step in DURABLE_STEPS.iter().filter(|step| has_step(line, step)) {
                found.push(Finding::new(
                    path,
                    at + 1,
                    format!("{step}) belongs into mqstore-io/src/commit.rs"),
                ));
            }
        }
    }
    found
}

/// Whether a line calls a step. A text and a record have a `replace` with several arguments or a named one.
fn has_step(line: &str, step: &str) -> bool {
    line.match_indices(step).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + step.len()..]);
        let arguments = after.split(')').next().unwrap_or(after);
        let is_of_path = step != ".replace(" || !(arguments.is_empty() || arguments.contains([',', '=']));
        is_of_path && !before.ends_with("_client")
    })
}

/// No source file is longer than a person reads in one go.
pub(crate) fn files_stay_short(tree: &Tree) -> Vec<Finding> {
    tree.files()
        .filter(|(path, _)| SOURCE_ENDINGS.iter().any(|ending| path.ends_with(ending)))
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| *lines > LONGEST_FILE)
        .map(|(path, lines)| {
            Finding::new(path, lines, format!("{lines} lines; {LONGEST_FILE} are the limit"))
        })
        .collect()
}

/// A module declares each Rust file of the product. The compiler does not see any other file, nor the tests in it.
pub(crate) fn files_are_declared(tree: &Tree) -> Vec<Finding> {
    let files = tree.below("rust/", ".rs").filter(|(path, _)| path.contains("/src/"));
    files
        .filter(|(path, _)| !path.ends_with("/src/lib.rs") && !is_declared(tree, path))
        .map(|(path, _)| Finding::new(path, 1, "no module declares this file"))
        .collect()
}

/// A Rust module with a folder is the `mod.rs` of the folder. The folder has at least three parts (files, and folders in
/// it), or one file and its `tests.rs`: what has fewer is one file.
pub(crate) fn folders_are_worth_it(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, _) in tree.below("rust/", "/mod.rs").filter(|(path, _)| path.contains("/src/")) {
        let folder = path.trim_end_matches("/mod.rs");
        let inside = format!("{folder}/");
        let parts: BTreeSet<&str> = tree
            .below(&inside, ".rs")
            .filter_map(|(file, _)| file.get(inside.len()..)?.split('/').next())
            .collect();
        let has_own_tests = parts.contains("tests.rs") || parts.contains("tests");
        if parts.len() < 3 && !has_own_tests {
            found.push(Finding::new(path, 1, format!("{} parts; join them", parts.len())));
        }
    }
    let files =
        tree.below("rust/", ".rs").filter(|(path, _)| path.contains("/src/") && !path.ends_with("/mod.rs"));
    for (path, _) in files {
        let folder = format!("{}/", path.trim_end_matches(".rs"));
        if tree.below(&folder, ".rs").next().is_some() {
            found.push(Finding::new(path, 1, format!("becomes {folder}mod.rs")));
        }
    }
    found
}

fn is_declared(tree: &Tree, path: &str) -> bool {
    let module = path.trim_end_matches(".rs").trim_end_matches("/mod");
    let Some((parent, name)) = module.rsplit_once('/') else { return false };
    let declares = |text: &str| {
        rust_source::tokens(text)
            .windows(2)
            .any(|pair| matches!(pair, [keyword, own] if keyword.text == "mod" && own.text == name))
    };
    [format!("{parent}.rs"), format!("{parent}/mod.rs"), format!("{parent}/lib.rs")]
        .iter()
        .any(|file| tree.text(file).is_some_and(declares))
}

/// A folder of the product has at most 20 source files, without those of the folders in it.
pub(crate) fn folders_stay_small(tree: &Tree) -> Vec<Finding> {
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    for (path, _) in tree.files() {
        let ours = match path.rsplit_once('.') {
            Some((_, "py" | "pyi")) => path.starts_with("python/"),
            Some((_, "rs")) => path.starts_with("rust/") && path.contains("/src/"),
            _ => false,
        };
        if let Some((folder, _)) = path.rsplit_once('/').filter(|_| ours) {
            *sizes.entry(folder).or_default() += 1;
        }
    }
    sizes
        .into_iter()
        .filter(|(_, size)| *size > LARGEST_FOLDER)
        .map(|(folder, size)| {
            Finding::new(folder, 1, format!("{size} source files; {LARGEST_FOLDER} are the limit"))
        })
        .collect()
}

/// A crate has at most 15,000 lines of code: lines of the product with a token on them. Comments, blank lines and tests
/// do not count; a string over several lines counts once.
pub(crate) fn crates_stay_small(tree: &Tree) -> Vec<Finding> {
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    for (path, text) in product_files(tree, "rust/") {
        if let Some((name, _)) = path.split_once("/src/") {
            let tokens = rust_source::product(text).tokens;
            let lines: BTreeSet<usize> = tokens.iter().map(|token| token.line).collect();
            *sizes.entry(name).or_default() += lines.len();
        }
    }
    sizes
        .into_iter()
        .filter(|(_, size)| *size > LARGEST_CRATE)
        .map(|(name, size)| {
            Finding::new(name, 1, format!("{size} lines of code; {LARGEST_CRATE} are the limit"))
        })
        .collect()
}

/// A crate or folder of the product has a header that says what is inside, in at most ten `//!` lines and an example.
pub(crate) fn headers_stay_short(tree: &Tree) -> Vec<Finding> {
    tree.below("rust/", ".rs")
        .filter(|(path, _)| path.contains("/src/") && opens_a_folder(tree, path))
        .filter_map(|(path, text)| {
            let mut in_example = false;
            let without_example = |line: &&str| {
                let is_fence = line.starts_with("//! ```");
                in_example ^= is_fence;
                !in_example && !is_fence
            };
            let header = text.lines().filter(|line| line.starts_with("//!"));
            let lines = header.filter(without_example).count();
            let what = match lines {
                0 => "no header: say in `//!` lines what is inside".to_owned(),
                1..=LONGEST_HEADER => return None,
                _ => format!("a header of {lines} lines; {LONGEST_HEADER} are the limit"),
            };
            Some(Finding::new(path, lines.max(1), what))
        })
        .collect()
}

/// Whether a file is where a reader of a crate or folder begins: `lib.rs`, `mod.rs`, or `x.rs` beside the folder `x`.
fn opens_a_folder(tree: &Tree, path: &str) -> bool {
    let folder = format!("{}/", path.trim_end_matches(".rs"));
    path.ends_with("/lib.rs") || path.ends_with("/mod.rs") || tree.below(&folder, ".rs").next().is_some()
}

/// Marks of unfinished work, paths of one machine, hosts of registries. Written in halves, or this file would be found.
const UNFINISHED: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
const MACHINE_PATHS: [&str; 4] =
    [concat!("/ho", "me/"), concat!("/Us", "ers/"), concat!("/ro", "ot/"), concat!("/wo", "rk/")];
const REGISTRIES: [&str; 6] = [
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("crates", ".io"),
    concat!("repo1.maven", ".org"),
    concat!("repo.maven.", "apache.org"),
    concat!("docker", ".io"),
];
/// RocketMQ's own container keeps its store there; documents may say so.
const ROCKETMQ_HOME: &str = concat!("/ho", "me/rocketmq/");

/// No marks of unfinished work, no paths of anybody's machine, no registry hosts.
pub(crate) fn no_unwanted_words(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.files() {
        for (at, line) in text.lines().enumerate() {
            let line_text = line.replace(ROCKETMQ_HOME, "");
            let hit = UNFINISHED
                .iter()
                .find(|word| has_word(&line_text, word))
                .or_else(|| MACHINE_PATHS.iter().find(|word| has_path(&line_text, word)))
                .or_else(|| REGISTRIES.iter().find(|word| line_text.contains(**word)));
            if let Some(word) = hit {
                found.push(Finding::new(path, at + 1, format!("{word} does not belong into the repository")));
            }
        }
    }
    found
}

fn has_word(line: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line.get(..at).and_then(|text| text.chars().next_back());
        let after = line.get(at + word.len()..).and_then(|text| text.chars().next());
        !before.is_some_and(part_of_word) && !after.is_some_and(part_of_word)
    })
}

/// An absolute path, not the middle of a relative one or of an address.
fn has_path(line: &str, start: &str) -> bool {
    line.match_indices(start).any(|(at, _)| {
        let before = line.get(..at).and_then(|text| text.chars().next_back());
        !before.is_some_and(|c| c.is_alphanumeric() || "._-}/$)~*".contains(c))
    })
}
