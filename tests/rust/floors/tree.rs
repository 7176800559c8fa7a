//! The source tree as data: path to text, read once.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders that hold no source of ours. Hidden ones are skipped too, but for the two named below.
const SKIPPED: [&str; 6] = ["target", "site", "dist", "build", "__pycache__", "spark-warehouse"];
const HIDDEN_BUT_OURS: [&str; 2] = [".github", ".ci"];
/// Generated or not ours: the lock file names the registry, the licence has its own words.
const NOT_OURS: [&str; 2] = ["Cargo.lock", "LICENSE"];

/// Every text file of the repository, by path from the root with forward slashes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// The tree that this test was compiled from.
    pub(crate) fn of_this_repository() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut tree = Self::default();
        tree.read_folder(&root, "");
        tree
    }

    fn read_folder(&mut self, folder: &PathBuf, prefix: &str) {
        let Ok(entries) = fs::read_dir(folder) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                let hidden = name.starts_with('.') && !HIDDEN_BUT_OURS.contains(&name.as_str());
                if !hidden && !SKIPPED.contains(&name.as_str()) {
                    self.read_folder(&entry.path(), &format!("{path}/"));
                }
            } else if kind.is_file() && !NOT_OURS.contains(&name.as_str()) {
                // What is not text (a golden segment, an image) has no lines to check.
                if let Some(text) =
                    fs::read(entry.path()).ok().and_then(|bytes| String::from_utf8(bytes).ok())
                {
                    self.files.insert(path, text);
                }
            }
        }
    }

    /// The same tree with one file added or replaced.
    pub(crate) fn with(&self, path: &str, text: &str) -> Self {
        let mut copy = self.clone();
        copy.files.insert(path.to_owned(), text.to_owned());
        copy
    }

    /// All files, ordered by path.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// The files below a folder (`"rust/"`) with an ending (`".rs"`).
    pub(crate) fn below<'a>(
        &'a self,
        folder: &'a str,
        ending: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.files().filter(move |(path, _)| path.starts_with(folder) && path.ends_with(ending))
    }

    /// The text of one file.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }
}

/// A place where a rule is broken.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) path: String,
    pub(crate) line: usize,
    pub(crate) what: String,
}

impl Finding {
    pub(crate) fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: {}", self.path, self.line, self.what)
    }
}
