//! A rule that cannot fail protects nothing: for each one, violations planted in a tree, which it must find, and
//! look-alikes, which it must leave alone.

use crate::rules::{self, Rule};
use crate::tree::Tree;

/// Rule, file, text: each must be found.
const VIOLATIONS: &[(&str, &str, &str)] = &[
    // crates
    (
        "crates depend downwards",
        "rust/mqstore-format/Cargo.toml",
        "[package]\n[dependencies]\nmqstore-io.workspace = true\n",
    ),
    (
        "crates depend downwards",
        "rust/mqstore-io/Cargo.toml",
        "[dependencies]\nmqstore-format = { path = \"..\" }\n",
    ),
    (
        "crates depend downwards",
        "rust/mqstore-log/Cargo.toml",
        "[dev-dependencies.mqstore-python]\npath = \"..\"\n",
    ),
    (
        "crates depend downwards",
        "rust/mqstore-io/Cargo.toml",
        "[target.'cfg(unix)'.build-dependencies]\n\"mqstore-log\" = \"0.1\"\n",
    ),
    ("crates depend downwards", "rust/mqstore-extra/Cargo.toml", "[package]\nname = \"mqstore-extra\"\n"),
    ("crates depend downwards", "rust/mqstore-io/src/planted.rs", "use mqstore_format::CqUnit;\n"),
    ("crates depend downwards", "rust/mqstore-log/src/planted.rs", "fn f() { mqstore_python::g(); }\n"),
    ("crates depend downwards", LOG_INDEX, "fn f() -> mqstore_engine::Store { g() }\n"),
    ("crates depend downwards", "rust/mqstore-python/src/planted.rs", "use mqstore_engine::Scan;\n"),
    ("crates depend downwards", "rust/mqstore-engine/src/planted.rs", "use mqstore_inspect::verify;\n"),
    (
        "crates depend downwards",
        "rust/mqstore-engine/Cargo.toml",
        "[dependencies]\nmqstore-inspect.workspace = true\n",
    ),
    (
        "crates depend downwards",
        "rust/mqstore-meta/src/planted.rs",
        "#[cfg(test)]\nmod tests { use mqstore_inspect::verify; }\n",
    ),
    // Python
    ("Python imports stay on their floor", "python/mqstore/planted.py", "import pyspark.sql\n"),
    (
        "Python imports stay on their floor",
        "python/mqstore/planted.py",
        "def f():\n    from pyspark.sql import (\n        Row,\n    )\n",
    ),
    ("Python imports stay on their floor", "python/mqstore/planted.py", "import os, typer\n"),
    ("Python imports stay on their floor", "python/mqstore/spark/planted.py", "from rich import table\n"),
    ("Python imports stay on their floor", "python/mqstore/planted.py", "from ._mqstore import Store\n"),
    ("durable steps only in Rust", "python/mqstore/planted.py", "os.fsync(file.fileno())\n"),
    ("durable steps only in Rust", "python/mqstore/planted.py", "def f():\n    partial.rename(dest)\n"),
    ("durable steps only in Rust", "python/mqstore/planted.py", "dest.hardlink_to(new)\n"),
    ("durable steps only in Rust", "python/mqstore/planted.py", "new.replace(path)\n"),
    ("durable steps only in Rust", "python/mqstore/spark/planted.py", "os.replace(new, path)\n"),
    ("Python imports stay on their floor", "python/mqstore/planted.py", "from . import errors, _mqstore\n"),
    ("Python imports stay on their floor", "python/mqstore/cli/planted.py", "from .._mqstore import Store\n"),
    (
        "Python imports stay on their floor",
        "python/mqstore/spark/planted.py",
        "import mqstore._mqstore as native\n",
    ),
    (
        "Python imports stay on their floor",
        "python/mqstore/planted.py",
        "from mqstore.spark import compact\n",
    ),
    ("Python imports stay on their floor", "python/mqstore/planted.py", "from .cli import main\n"),
    ("Python imports stay on their floor", "python/mqstore/planted.py", "def f():\n    import kombu.pools\n"),
    (
        "Python imports stay on their floor",
        "python/mqstore/planted.py",
        "from mqstore.integrations import huey\n",
    ),
    (
        "Python imports stay on their floor",
        "python/mqstore/integrations/planted.py",
        "from mqstore._store import opened\n",
    ),
    (
        "Python imports stay on their floor",
        "python/mqstore/planted.py",
        "x = import_module(\"pyspark.sql\")\n",
    ),
    // circles
    (CIRCLE, "python/mqstore/planted.py", "import mqstore.planted\n"),
    (CIRCLE, "python/mqstore/planted.py", "def f():\n    from . import planted\n"),
    (CIRCLE, "python/mqstore/planted.py", "if x:\n    from mqstore.planted import (\n        y,\n    )\n"),
    (
        CIRCLE,
        "python/mqstore/planted.py",
        "if TYPE_CHECKING:\n    import os\n\nfrom mqstore.planted import x\n",
    ),
    // raw calls
    (RAW, LOG_INDEX, "use std::fs::File;\n"),
    (RAW, LOG_INDEX, "use std::{io, env};\n"),
    (RAW, LOG_INDEX, "use std::net::{IpAddr, TcpStream};\n"),
    (RAW, LOG_INDEX, "fn f() { std::fs::remove_file(\"x\").ok(); }\n"),
    (RAW, LOG_INDEX, "use std::time::{Duration, Instant};\n"),
    (RAW, LOG_INDEX, "use std::thread;\nfn f() { thread::sleep(D); }\n"),
    (RAW, LOG_INDEX, "use std::time as t;\nfn f() { t::SystemTime::now(); }\n"),
    (RAW, "rust/mqstore-python/src/planted.rs", "fn f() { let _ = std::env::var(\"X\"); }\n"),
    (RAW, "rust/mqstore-format/src/planted.rs", "use std::os::unix::fs::FileExt;\n"),
    (RAW, LOG_INDEX, "use rustix::fs::fsync;\n"),
    (RAW, LOG_INDEX, "#[cfg(not(test))]\nuse std::fs;\n"),
    // unsafe
    ("unsafe only in three files", LOG_INDEX, "fn f() { unsafe { g() } }\n"),
    ("unsafe only in three files", "rust/mqstore-io/src/os/planted.rs", "#[unsafe(no_mangle)]\nfn f() {}\n"),
    ("unsafe only in three files", "tests/rust/planted.rs", "unsafe impl Send for X {}\n"),
    ("unsafe only in three files", LOG_INDEX, "#[cfg(test)]\nmod tests { fn f() { unsafe { g() } } }\n"),
    // PyO3
    ("PyO3 only in the binding", "rust/mqstore-log/Cargo.toml", "[dependencies]\npyo3.workspace = true\n"),
    ("PyO3 only in the binding", "tests/rust/Cargo.toml", "[dependencies]\npyo3-ffi = \"0.30\"\n"),
    ("PyO3 only in the binding", LOG_INDEX, "use pyo3::prelude::*;\n"),
    // threads
    (THREADS, LOG_INDEX, "fn f() { std::thread::spawn(|| ()); }\n"),
    (THREADS, LOG_INDEX, "use mqstore_io::sync::spawn;\n"),
    (THREADS, LOG_INDEX, "fn f() { std::thread::Builder::new(); }\n"),
    (THREADS, LOG_INDEX, "use std::thread;\nfn f() { thread::scope(|s| ()); }\n"),
    (THREADS, "rust/mqstore-io/src/os/planted.rs", "fn f() { rayon::ThreadPoolBuilder::new(); }\n"),
    // the runtime
    (RUNTIME, "rust/mqstore-log/Cargo.toml", "[dependencies]\ntokio.workspace = true\n"),
    (RUNTIME, LOG_INDEX, "use tokio::sync::Notify;\n"),
    (RUNTIME, LOG_INDEX, "async fn f() {}\n"),
    // sockets
    (RAW, "rust/mqstore-server/src/service/planted.rs", "use std::os::unix::net::UnixStream;\n"),
    (RAW, "rust/mqstore-server/src/socket/planted.rs", "use std::fs::File;\n"),
    (THREADS, "rust/mqstore-server/src/client/planted.rs", "use mqstore::io::sync::spawn;\n"),
    // headers
    (
        HEADER,
        "rust/mqstore-io/src/lib.rs",
        "//! 1\n//! 2\n//! 3\n//! 4\n//! 5\n//! 6\n//! 7\n//! 8\n//! 9\n//! 10\n//! 11\n",
    ),
    (
        HEADER,
        "rust/mqstore-io/src/lib.rs",
        "//! 1\n//!\n//! 3\n//! 4\n//! 5\n//! 6\n//! 7\n//! 8\n//!\n//! 10\n//! 11\n",
    ),
    (HEADER, "rust/mqstore-log/src/index/mod.rs", "mod planted;\n"),
    (HEADER, "rust/mqstore-log/src/index/mod.rs", "// A comment.\n/// The rest.\nmod planted;\n"),
    (THREADS, "rust/mqstore-log/src/recovery/parallel_check.rs", "use mqstore_io::sync::spawn;\n"),
    // rayon
    (RAYON, LOG_INDEX, "use rayon::prelude::*;\n"),
    (RAYON, "rust/mqstore-io/src/sync.rs", "fn f() { rayon::join(g, h); }\n"),
    (RAYON, "tests/rust/planted.rs", "use rayon_core::ThreadPool;\n"),
    (RAYON, "rust/mqstore-log/Cargo.toml", "[dependencies]\nrayon.workspace = true\n"),
    (GLOBAL_POOL, LOG_INDEX, "fn f() { builder().build_global().ok(); }\n"),
    (
        GLOBAL_POOL,
        "rust/mqstore-io/src/pool.rs",
        "fn f() { ThreadPoolBuilder::new().build_global().ok(); }\n",
    ),
    (GLOBAL_POOL, "tests/rust/planted.rs", "fn f() { builder().build_global().ok(); }\n"),
    // declarations
    (DECLARED, LOG_INDEX, "fn f() {}\n"),
    (DECLARED, "rust/mqstore-log/src/planted/mod.rs", "//! x\n"),
    // folders
    (PARTS, "rust/mqstore-log/src/planted/mod.rs", "//! x\n"),
    // paths in comments
    (COMMENTS, LOG_INDEX, "//! See `write/no_writer.rs`.\n"),
    (COMMENTS, LOG_INDEX, "fn f() {\n    // `planted::room` counts.\n}\nfn room_of() {}\n"),
    (COMMENTS, LOG_INDEX, "/// [`crate::index::Planted`]\nstruct Other;\n"),
    (COMMENTS, "PLANTED.md", "See `commit_log/no_roll.rs`.\n"),
    // words
    ("words that do not belong here", LOG_INDEX, concat!("// TO", "DO: later\n")),
    ("words that do not belong here", "docs/planted.md", concat!("see FIX", "ME below\n")),
    ("words that do not belong here", "docs/planted.md", concat!("open /ho", "me/somebody/store\n")),
    ("words that do not belong here", "tools/planted.sh", concat!("cd \"/ro", "ot/store\"\n")),
    (
        "words that do not belong here",
        "Makefile",
        concat!("x:\n\tpip install -i https://pypi", ".org/simple x\n"),
    ),
];

/// Rule, file, text: none may be found.
const LOOK_ALIKES: &[(&str, &str, &str)] = &[
    (
        "crates depend downwards",
        "rust/mqstore-io/src/planted.rs",
        "// like mqstore_format\n/* mqstore_log */\n",
    ),
    (
        "crates depend downwards",
        "rust/mqstore-engine/src/planted.rs",
        "#[cfg(test)]\nmod tests { use mqstore_inspect::verify; }\n",
    ),
    (
        "crates depend downwards",
        "rust/mqstore-engine/Cargo.toml",
        "[dev-dependencies]\nmqstore-inspect.workspace = true\n",
    ),
    (
        "Python imports stay on their floor",
        "python/mqstore/planted.py",
        "\"\"\"Example:\n\nimport pyspark\n\"\"\"\n# import typer\n",
    ),
    (
        "Python imports stay on their floor",
        "python/mqstore/spark/planted.py",
        "from pyspark.sql import Row\n",
    ),
    (
        "Python imports stay on their floor",
        "python/mqstore/planted.py",
        "import richness\nfrom . import spark_names\n",
    ),
    (
        "Python imports stay on their floor",
        "python/mqstore/integrations/planted.py",
        "import celery\nfrom mqstore import open\nfrom mqstore.integrations._names import x\n",
    ),
    (
        CIRCLE,
        "python/mqstore/planted.py",
        "if TYPE_CHECKING:\n    from mqstore.planted import x\n\n    import mqstore.planted\n",
    ),
    (
        CIRCLE,
        "python/mqstore/planted.py",
        "\"\"\"import mqstore.planted\"\"\"\nfrom mqstore import x\nimport mqstore.planted_too\n",
    ),
    (CIRCLE, "python/mqstore/planted.pyi", "from mqstore.planted import x\n"),
    (
        RAW,
        LOG_INDEX,
        "const HELP: &str = \"std::fs::read\"; // std::fs::read\nconst V: &str = env!(\"CARGO_PKG_VERSION\");\n",
    ),
    (
        RAW,
        LOG_INDEX,
        "#[cfg(test)]\nmod tests {\n    use std::fs;\n    fn f() { fs::read(\"}\").ok(); }\n}\n",
    ),
    (RAW, LOG_INDEX, "#[cfg(test)]\nuse std::{fs, env};\nuse std::time::Duration;\nuse std::net::IpAddr;\n"),
    (RAW, "rust/mqstore-io/src/planted.rs", "use std::fs::File;\n"),
    (
        "unsafe only in three files",
        LOG_INDEX,
        "#![forbid(unsafe_code)]\n// unsafe\nconst X: &str = r#\"unsafe \"{}\"#;\n",
    ),
    ("unsafe only in three files", "rust/mqstore-io/src/region/mod.rs", "fn f() { unsafe { g() } }\n"),
    (THREADS, LOG_INDEX, "#[cfg(test)]\nmod tests { fn f() { std::thread::spawn(|| ()); } }\n"),
    (THREADS, "rust/mqstore-engine/src/store/services.rs", "use mqstore_io::sync::spawn;\n"),
    (
        HEADER,
        "rust/mqstore-io/src/lib.rs",
        "//! 1\n//! 2\n//! 3\n//! 4\n//! 5\n//! 6\n//! 7\n//! 8\n//! 9\n//! 10\n#![forbid(unsafe_code)]\n\n// x\n/// x\nmod x;\n",
    ),
    (
        HEADER,
        "rust/mqstore-io/src/lib.rs",
        "//! x\nmod x {\n    //! 1\n    //! 2\n    //! 3\n    //! 4\n    //! 5\n    //! 6\n    //! 7\n    //! 8\n    //! 9\n    //! 10\n}\n",
    ),
    (HEADER, LOG_INDEX, "//! 1\n//! 2\n//! 3\n//! 4\n//! 5\n//! 6\n//! 7\n//! 8\n//! 9\n//! 10\n//! 11\n"),
    (
        HEADER,
        "rust/mqstore-io/src/lib.rs",
        "//! 1\n//!\n//! ```\n//! 4\n//! 5\n//! 6\n//! 7\n//! 8\n//! 9\n//! 10\n//! 11\n//! ```\n",
    ),
    (HEADER, "tests/rust/planted/mod.rs", "mod x;\n"),
    (THREADS, "rust/mqstore-io/src/pool.rs", "use rayon::ThreadPoolBuilder;\n"),
    (RAYON, "rust/mqstore-io/src/pool.rs", "use rayon::ThreadPoolBuilder;\n"),
    (RAYON, "rust/mqstore-io/Cargo.toml", "[dependencies]\nrayon.workspace = true\n"),
    (RAYON, "Cargo.toml", "[workspace.dependencies]\nrayon = \"1.12\"\n"),
    (RAYON, LOG_INDEX, "// rayon\nconst X: &str = \"rayon\";\n"),
    (GLOBAL_POOL, LOG_INDEX, "// build_global\nconst X: &str = \"build_global\";\n"),
    (COMMENTS, LOG_INDEX, "//! See `index/planted.rs` and `index::planted`.\n"),
    (COMMENTS, LOG_INDEX, "//! `planted::room()` counts for `Planted::none`.\nfn room() {}\n"),
    (COMMENTS, LOG_INDEX, "/// [`crate::index::Planted::new`]\npub(crate) struct Planted;\n"),
    (COMMENTS, LOG_INDEX, "const X: &str = \"`no/file.rs`\";\n"),
    ("words that do not belong here", LOG_INDEX, concat!("const T: &str = \"SCHEDULE_TOPIC_XX", "XX\";\n")),
    (
        "words that do not belong here",
        "docs/planted.md",
        concat!("the image keeps it in /ho", "me/rocketmq/store\n"),
    ),
    (
        "words that do not belong here",
        "docs/planted.md",
        concat!("the folder ./wo", "rk/ and $x/ro", "ot/ are relative\n"),
    ),
    ("durable steps only in Rust", "python/mqstore/planted.py", "text.replace(\"a\", b)\n"),
    ("durable steps only in Rust", "python/mqstore/planted.py", "signature.replace(parameters=found)\n"),
    ("durable steps only in Rust", "python/mqstore/planted.py", "self._client.rename(new, path)\n"),
    (
        "durable steps only in Rust",
        "python/mqstore/planted.py",
        "replace(manifest, number=1)  # then os.fsync(x)\n",
    ),
];

const PARTS: &str = "folders of at least three parts, with mod.rs";
const LOG_INDEX: &str = "rust/mqstore-log/src/index/planted.rs";
const RAW: &str = "files, clocks and the environment only in mqstore-io";
const LAYERS: &str = "modules use only lower ones";
const COMMENTS: &str = "comments name existing paths";
const CIRCLE: &str = "no circle of Python imports";
const RUST_CYCLE: &str = "no cycle of Rust imports";
const LENGTH: &str = "files of at most 1,000 lines";
const SIZE: &str = "folders of at most 20 source files";
const CRATE: &str = "crates of at most 15,000 lines of code";
const DECLARED: &str = "a module declares each file";
const HEADER: &str = "a crate or folder has a header of at most ten lines";
const RUNTIME: &str = "the runtime only in the server";
const THREADS: &str = "threads only in one place";
const RAYON: &str = "rayon only in the pool";
const GLOBAL_POOL: &str = "no global pool of threads";

#[test]
fn every_rule_finds_what_is_planted() {
    for (name, path, text) in VIOLATIONS {
        let found = found_in(rule(name), &Tree::default().with(path, text), path);
        assert!(!found.is_empty(), "the rule \"{name}\" did not find this in {path}:\n{text}");
    }
    for rule in rules::ALL {
        // These are about numbers or several files, and have tests of their own.
        let planted = [LENGTH, SIZE, CRATE, RUST_CYCLE, LAYERS].contains(&rule.name)
            || VIOLATIONS.iter().any(|(name, ..)| *name == rule.name);
        assert!(planted, "no violation is planted for the rule \"{}\"", rule.name);
    }
}

#[test]
fn no_rule_finds_what_only_looks_like_a_violation() {
    for (name, path, text) in LOOK_ALIKES {
        let found = found_in(rule(name), &Tree::default().with(path, text), path);
        assert!(found.is_empty(), "the rule \"{name}\" is wrong about this in {path}:\n{text}{found:?}");
    }
}

#[test]
fn a_file_of_1000_lines_passes_and_one_of_1001_does_not() {
    let rule = rule(LENGTH);
    for (lines, findings) in [(1000, 0), (1001, 1)] {
        for path in [LOG_INDEX, "python/mqstore/planted.py", "tools/planted.sh"] {
            let found = found_in(rule, &Tree::default().with(path, &"x\n".repeat(lines)), path);
            assert_eq!(found.len(), findings, "{path} with {lines} lines");
        }
    }
}

#[test]
fn a_folder_of_20_files_passes_and_one_of_21_does_not() {
    for (folder, ending) in [
        ("python/mqstore/planted", "py"),
        ("python/mqstore/planted", "pyi"),
        ("rust/mqstore-io/src/planted", "rs"),
    ] {
        let mut tree = Tree::default()
            .with(&format!("{folder}/notes.txt"), "")
            .with(&format!("{folder}/more/x.{ending}"), "");
        for number in 0..20 {
            tree = tree.with(&format!("{folder}/file_{number}.{ending}"), "");
        }
        assert!(found_in(rule(SIZE), &tree, folder).is_empty(), "20 files of {folder}");
        let tree = tree.with(&format!("{folder}/file_20.{ending}"), "");
        assert_eq!(found_in(rule(SIZE), &tree, folder).len(), 1, "21 files of {folder}");
    }
}

#[test]
fn a_file_next_to_its_folder_is_found() {
    let tree = Tree::default()
        .with("rust/mqstore-io/src/planted.rs", "")
        .with("rust/mqstore-io/src/planted/x.rs", "");
    assert_eq!(found_in(rule(PARTS), &tree, "rust/mqstore-io/src/planted.rs").len(), 1);
}

#[test]
fn a_crate_of_15000_lines_of_code_passes_and_one_of_15001_does_not() {
    let krate = "rust/mqstore-io";
    let tree = Tree::default()
        .with(&format!("{krate}/src/lib.rs"), "#[cfg(test)]\nmod tests;\nmod first;\nmod second;\n")
        .with(&format!("{krate}/src/first.rs"), &"f();\n\n// comment\n".repeat(7_999))
        .with(&format!("{krate}/src/second/mod.rs"), &"g(\n);\n/// comment\n".repeat(3_499))
        // None of these counts.
        .with(&format!("{krate}/src/tests.rs"), &"h();\n".repeat(9_000))
        .with(&format!("{krate}/src/blocks.rs"), &format!("/*\n{}*/\n", "x\n".repeat(9_000)))
        .with(
            &format!("{krate}/src/inline.rs"),
            &format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "i();\n".repeat(9_000)),
        )
        .with(&format!("{krate}/benches/speed.rs"), &"j();\n".repeat(9_000))
        .with("rust/mqstore-log/src/lib.rs", &"k();\n".repeat(9_000));
    let tree = tree.with(&format!("{krate}/src/last.rs"), "l();\n");
    assert!(found_in(rule(CRATE), &tree, krate).is_empty(), "15,000 lines");
    let tree = tree.with(&format!("{krate}/src/last.rs"), "l();\nm();\n");
    assert_eq!(
        found_in(rule(CRATE), &tree, krate),
        [format!("{krate}:1: 15001 lines of code; 15000 are the limit")]
    );
}

#[test]
fn a_file_beside_its_folder_has_the_header_of_the_folder() {
    let home = "rust/mqstore-log/src/index/planted.rs";
    let inside = "rust/mqstore-log/src/index/planted/inside.rs";
    for (lines, findings) in [(0, 1), (1, 0), (10, 0), (11, 1)] {
        let tree = Tree::default().with(home, &"//! x\n".repeat(lines));
        assert!(found_in(rule(HEADER), &tree, home).is_empty(), "{lines} lines and no folder");
        let tree = tree.with("rust/mqstore-log/src/index/planted_too/inside.rs", "");
        assert!(found_in(rule(HEADER), &tree, home).is_empty(), "{lines} lines and another folder");
        let tree = tree.with(inside, "");
        assert_eq!(found_in(rule(HEADER), &tree, home).len(), findings, "{lines} lines and a folder");
    }
}

#[test]
fn a_circle_goes_through_any_number_of_files() {
    let (first, second, third) =
        ("python/mqstore/first.py", "python/mqstore/second/__init__.py", "python/mqstore/second/third.py");
    let open = Tree::default()
        .with(first, "from mqstore import second\n")
        .with(second, "def f():\n    from .third import g\n");
    assert!(found_in(rule(CIRCLE), &open, first).is_empty());
    let closed = open.with(third, "import mqstore.first\n");
    let way = format!("{first}:1: imports itself, by way of {second}, {third}, {first}");
    assert_eq!(found_in(rule(CIRCLE), &closed, first), [way]);
    assert_eq!(found_in(rule(CIRCLE), &closed, second).len(), 1);
    assert_eq!(found_in(rule(CIRCLE), &closed, third).len(), 1);
    let typed = open.with(third, "if TYPE_CHECKING:\n    import mqstore.first\n");
    assert!(found_in(rule(CIRCLE), &typed, first).is_empty());
}

/// The lower file of two; the upper one imports it.
const LOWER: &str = "rust/mqstore-io/src/lower.rs";
const UPPER: &str = "rust/mqstore-io/src/upper/mod.rs";

#[test]
fn a_cycle_of_rust_imports_is_found_however_it_is_written() {
    let lower = [
        "use crate::upper::Upper;\n",
        "use super::{lower, upper::{self, Upper as Other}};\n",
        "use super::upper::*;\n",
        "use crate::Upper;\n",
        "use crate::Renamed;\n",
        "use crate::inner::Upper;\n",
        "use crate::upper;\nfn f() { upper::Upper::g() }\n",
        "use super::*;\nfn f(_: &super::upper::Upper) {}\n",
        "fn f() -> Vec<crate::upper::Upper> { g() }\n",
        "fn f() { println!(\"{}\", 1 + crate::upper::Upper::ONE.two); }\n",
        "mod inside {\n    use super::super::upper::Upper;\n}\n",
        "mod inside {\n    fn f() { use crate::upper::Upper; }\n}\n",
        "pub(crate) use crate::upper::Upper;\nfn f(_: Upper) {}\n",
        "pub(crate) use crate::upper::Upper;\nfn f() { g!(.., Upper) }\n",
    ];
    for text in lower {
        let found = found_in(rule(RUST_CYCLE), &above(text), LOWER);
        assert_eq!(found.len(), 1, "{text}{found:?}");
    }
    let found = found_in(rule(RUST_CYCLE), &above("\nuse crate::{\n    Renamed,\n};\n"), LOWER);
    let way = "lower.rs:3 imports Upper from upper/mod.rs; upper/mod.rs:2 imports Lower from lower.rs";
    assert_eq!(found, [format!("{LOWER}:3: 2 files import each other: {way}")]);
}

#[test]
fn what_only_looks_like_a_cycle_of_rust_imports_is_none() {
    let lower = [
        "//! [`crate::upper::Upper`]\nconst X: &str = \"crate::upper::Upper\";\n",
        "#[cfg(test)]\nuse crate::upper::Upper;\n",
        "#[cfg(test)]\nmod tests { use crate::upper::Upper; }\n",
        "#[cfg(all(test, feature = \"x\"))]\nfn f(_: crate::upper::Upper) {}\n",
        "impl X {\n    #[cfg(test)]\n    fn f(_: crate::upper::Upper) {}\n}\n",
        "use mqstore_io::upper::Upper;\nfn f() { mqstore_io::upper::g() }\n",
        "use std::upper;\nfn f() { upper::Upper::g() }\n",
        "pub(crate) use crate::upper::Upper;\nfn f() { x.Upper; g!(x.Upper) }\n",
        "use crate::upper::below::Below;\n",
        "use crate::Below;\nuse super::upper;\nfn f(_: upper::Below) {}\n",
        "use crate::upper::Lower;\n",
    ];
    for text in lower {
        let found: Vec<String> =
            (rule(RUST_CYCLE).check)(&above(text)).iter().map(ToString::to_string).collect();
        assert!(found.is_empty(), "{text}{found:?}");
    }
}

/// A crate in which `upper` imports from `lower`, which has this text.
fn above(lower: &str) -> Tree {
    let root = "pub(crate) use upper::{Upper, Upper as Renamed, below::Below};\nmod inner { pub(crate) use crate::Upper; }\n";
    Tree::default()
        .with("rust/mqstore-io/src/lib.rs", &format!("mod lower;\nmod upper;\n{root}"))
        .with(UPPER, "mod below;\npub(crate) use crate::lower::Lower;\npub(crate) use below::Below;\nstruct Upper(Lower);\n")
        .with("rust/mqstore-io/src/upper/below.rs", "struct Below;\n")
        .with(LOWER, lower)
}

#[test]
fn a_cycle_of_rust_imports_goes_through_any_number_of_files() {
    let file = |name: &str| format!("rust/mqstore-io/src/{name}.rs");
    let open = Tree::default()
        .with(&file("lib"), "mod first;\nmod second;\nmod third;\n")
        .with(&file("first"), "use crate::second::Second;\n")
        .with(&file("second"), "use crate::third::Third;\n");
    let found = |tree: &Tree| (rule(RUST_CYCLE).check)(tree).len();
    assert_eq!(found(&open.with(&file("third"), "use crate::fourth::Fourth;\n")), 0);
    assert_eq!(found(&open.with(&file("third"), "use crate::second::Second;\n")), 1);
    let closed = open.with(&file("third"), "use crate::first::First;\n");
    assert_eq!(found(&closed), 1);
    let other = closed
        .with("rust/mqstore-meta/src/first.rs", "use crate::second::X;\n")
        .with("rust/mqstore-meta/src/second.rs", "use crate::third::X;\n");
    assert_eq!(found(&other), 1, "crates have nothing to do with each other here");
    assert_eq!(found(&closed.with(&file("second"), "struct {\n")), 1, "a file that is no Rust");
}

/// A crate with `index` on the line of `commit_log` and below `dispatch`; `index/planted.rs` has this text.
fn log_crate(planted: &str) -> Tree {
    let file = |name: &str| format!("rust/mqstore-log/src/{name}");
    Tree::default()
        .with(&file("lib.rs"), "mod commit_log;\nmod dispatch;\nmod index;\npub use dispatch::Step;\n")
        .with(&file("commit_log/mod.rs"), "pub(crate) struct CommitLog;\n")
        .with(&file("dispatch/mod.rs"), "use crate::index::Index;\npub(crate) struct Step(Index);\n")
        .with(&file("index/mod.rs"), "mod planted;\npub(crate) struct Index;\n")
        .with(LOG_INDEX, planted)
}

#[test]
fn a_use_of_a_module_that_is_not_lower_is_found_however_it_is_written() {
    let planted = [
        "use crate::commit_log::CommitLog;\n",
        "use crate::{index::Index, commit_log::CommitLog};\n",
        "use super::{Index, super::dispatch::{self, Step as Other}};\n",
        "use crate::dispatch::*;\n",
        "use crate::Step;\n",
        "pub(crate) use crate::dispatch::Step;\n",
        "use crate::dispatch;\nfn f() { dispatch::Step::g() }\n",
        "fn f() { let x = super::super::dispatch::Step; }\n",
        "fn f() -> Vec<crate::dispatch::Step> { g() }\n",
        "fn f() { println!(\"{}\", crate::dispatch::Step::ONE); }\n",
        "mod inside {\n    use super::super::super::dispatch::Step;\n}\n",
    ];
    for text in planted {
        let found = found_in(rule(LAYERS), &log_crate(text), LOG_INDEX);
        assert_eq!(found.len(), 1, "{text}{found:?}");
    }
    let found = found_in(rule(LAYERS), &log_crate("\nuse crate::Step;\n"), LOG_INDEX);
    assert_eq!(found, [format!("{LOG_INDEX}:2: index must not use dispatch (Step): see ORDERS")]);
}

#[test]
fn what_only_looks_like_a_use_of_a_higher_module_is_none() {
    let planted = [
        "//! See [`crate::commit_log`].\nuse mqstore_base::error::StoreError;\n",
        "#[cfg(test)]\nuse crate::commit_log::CommitLog;\n",
        "#[cfg(test)]\nmod tests { use crate::dispatch::Step; }\n",
        "use super::Index;\nuse mqstore_io::dispatch::X;\nconst X: &str = \"crate::dispatch::Step\";\n",
    ];
    for text in planted {
        let found: Vec<String> =
            (rule(LAYERS).check)(&log_crate(text)).iter().map(ToString::to_string).collect();
        assert!(found.is_empty(), "{text}{found:?}");
    }
}

#[test]
fn each_crate_has_an_order_of_all_its_modules() {
    let new_module = log_crate("").with("rust/mqstore-log/src/planted.rs", "");
    assert_eq!((rule(LAYERS).check)(&new_module).len(), 1);
    let new_crate = log_crate("").with("rust/mqstore-planted/src/lib.rs", "");
    assert_eq!((rule(LAYERS).check)(&new_crate).len(), 1);
}

#[test]
fn a_finding_names_the_line() {
    let tree =
        Tree::default().with(LOG_INDEX, "/* one\ntwo */\nconst X: &str = \"three\nfour\";\nuse std::fs;\n");
    assert_eq!(
        found_in(rule(RAW), &tree, LOG_INDEX),
        [format!("{LOG_INDEX}:5: std::fs: go through mqstore-io")]
    );
}

#[test]
fn a_module_that_only_tests_compile_is_a_test() {
    let tree = Tree::default()
        .with("rust/mqstore-log/src/index/mod.rs", "#[cfg(test)]\nmod planted;\n")
        .with(LOG_INDEX, "use std::fs;\n");
    assert!(found_in(rule(RAW), &tree, LOG_INDEX).is_empty());
    let tree = tree.with("rust/mqstore-log/src/index/mod.rs", "mod planted;\n");
    assert_eq!(found_in(rule(RAW), &tree, LOG_INDEX).len(), 1);
}

#[test]
fn a_file_is_declared_by_the_module_above_it() {
    let declared = |parent: &str| {
        let tree = Tree::default().with(parent, "pub mod planted;\n").with(LOG_INDEX, "");
        found_in(rule(DECLARED), &tree, LOG_INDEX).is_empty()
    };
    assert!(declared("rust/mqstore-log/src/index.rs") && declared("rust/mqstore-log/src/index/mod.rs"));
    assert!(!declared("rust/mqstore-log/src/lib.rs") && !declared("rust/mqstore-log/src/index/other.rs"));
}

fn rule(name: &str) -> &'static Rule {
    rules::ALL.iter().find(|rule| rule.name == name).unwrap_or_else(|| panic!("there is no rule \"{name}\""))
}

fn found_in(rule: &Rule, tree: &Tree, path: &str) -> Vec<String> {
    (rule.check)(tree).iter().filter(|finding| finding.path == path).map(ToString::to_string).collect()
}
