//! The floor plan as a test: reads the source tree and fails where a rule of ARCHITECTURE.md is broken.
//!
//! The compiler keeps crates apart, but not modules, and it knows nothing of Python imports, of threads or of where a
//! file may be opened. Each rule here is a function from the tree to a list of findings. The tree is plain data
//! ([`tree::Tree`]), so that the second half of this suite can plant a violation of every rule and see the rule
//! fire: a rule that cannot fail protects nothing.
//!
//! Rust and Python are read by small lexers that drop comments and blank out strings; the rule about imports of Rust
//! files needs the syntax tree of `syn`. Code under `#[cfg(test)]` is exempt where a rule is about the product: tests
//! may open files and start threads.

mod comment_paths;
mod layout_rules;
mod module_layers;
mod planted;
mod python_cycles;
mod python_source;
mod rules;
mod rust_cycles;
mod rust_imports;
mod rust_source;
mod source_rules;
mod tree;

use tree::Tree;

#[test]
fn the_tree_keeps_every_rule() {
    let tree = Tree::of_this_repository();
    assert!(tree.files().count() > 20, "the tree was not found: only {} files", tree.files().count());
    let found: Vec<String> = rules::ALL
        .iter()
        .flat_map(|rule| (rule.check)(&tree).into_iter().map(|finding| format!("{}: {finding}", rule.name)))
        .collect();
    assert!(
        found.is_empty(),
        "rules of the floor plan are broken (see ARCHITECTURE.md):\n  {}",
        found.join("\n  ")
    );
}
