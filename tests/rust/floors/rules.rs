//! The list of rules.

use crate::tree::{Finding, Tree};
use crate::{comment_paths, layout_rules, module_layers, python_cycles, rust_cycles, source_rules};

/// A rule: its name, and the function that finds where it is broken.
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    pub(crate) check: fn(&Tree) -> Vec<Finding>,
}

pub(crate) const ALL: &[Rule] = &[
    Rule { name: "crates depend downwards", check: layout_rules::crates_depend_downwards },
    Rule { name: "modules use only lower ones", check: module_layers::modules_use_only_lower_ones },
    Rule {
        name: "Python imports stay on their floor",
        check: layout_rules::python_imports_stay_on_their_floor,
    },
    Rule { name: "no circle of Python imports", check: python_cycles::python_files_import_in_no_circle },
    Rule { name: "no cycle of Rust imports", check: rust_cycles::rust_files_import_in_no_cycle },
    Rule {
        name: "files, clocks and the environment only in mqstore-io",
        check: source_rules::raw_calls_only_in_io,
    },
    Rule { name: "unsafe only in three files", check: source_rules::unsafe_only_in_three_files },
    Rule { name: "PyO3 only in the binding", check: source_rules::pyo3_only_in_the_binding },
    Rule { name: "threads only in one place", check: source_rules::threads_only_in_one_place },
    Rule { name: "rayon only in the pool", check: source_rules::rayon_only_in_the_pool },
    Rule { name: "the runtime only in the server", check: source_rules::runtime_only_in_the_server },
    Rule { name: "no global pool of threads", check: source_rules::no_global_pool },
    Rule { name: "durable steps only in Rust", check: source_rules::durable_steps_only_in_rust },
    Rule { name: "files of at most 1,000 lines", check: source_rules::files_stay_short },
    Rule { name: "folders of at most 20 source files", check: source_rules::folders_stay_small },
    Rule { name: "folders of at least three parts, with mod.rs", check: source_rules::folders_are_worth_it },
    Rule { name: "crates of at most 15,000 lines of code", check: source_rules::crates_stay_small },
    Rule {
        name: "a crate or folder has a header of at most ten lines",
        check: source_rules::headers_stay_short,
    },
    Rule { name: "a module declares each file", check: source_rules::files_are_declared },
    Rule { name: "comments name existing paths", check: comment_paths::comments_name_existing_paths },
    Rule { name: "words that do not belong here", check: source_rules::no_unwanted_words },
];
