//! The losses of a damaged JSON file.
//!
//! [`Losses`] collects the errors of a text and of its entries, each with its byte position. A strict reader has the
//! same code: its first error is the result.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{FormatError, shortened};

/// Maximum number of losses that are listed; a reader gives up the rest of the text then.
const MOST_LOSSES: usize = 1_000;
/// Positions of deeper members are not remembered.
const MOST_LEVELS: usize = 3;

/// A table that was read from a file as far as it is readable.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartialTable<T> {
    /// The entries that parse.
    pub table: T,
    /// The other parts, each with its byte position in the file; empty for a file without damage.
    pub losses: Vec<FormatError>,
}

/// A table in a configuration file, which can be read in part.
pub trait ConfigTable: Sized {
    /// Reads the file.
    ///
    /// # Errors
    /// [`FormatError`] if any part of the file is not readable.
    fn parse(text: &[u8]) -> Result<Self, FormatError>;

    /// Reads every entry that parses.
    fn parse_entries(text: &[u8]) -> PartialTable<Self>;

    /// Whether the table has any entry.
    fn has_entries(&self) -> bool;

    /// Adds the entries of `older`, an earlier version of the file, that this table lacks.
    fn complete_from(&mut self, older: Self);
}

/// Collects what is lost, or returns the first error: see the module's text.
#[derive(Debug, Default)]
pub(super) struct Losses {
    tolerant: bool,
    /// The names of the members that contain the current position.
    path: Vec<String>,
    positions: BTreeMap<Vec<String>, usize>,
    /// Members that lost a part.
    damaged: BTreeSet<Vec<String>>,
    found: Vec<FormatError>,
    /// Whether the end of the text was reported.
    ended: bool,
}

impl Losses {
    /// Returns the first error of each call.
    pub(super) fn strict() -> Self {
        Self::default()
    }

    /// Collects errors.
    pub(super) fn tolerant() -> Self {
        Self { tolerant: true, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Returns the losses in the order of the text.
    pub(super) fn into_list(mut self) -> Vec<FormatError> {
        self.found.sort_by_key(|error| match error {
            FormatError::Json { position, .. } => *position,
            _ => 0,
        });
        self.found
    }

    /// Returns the nesting of the current position.
    pub(super) fn level(&self) -> usize {
        self.path.len()
    }

    /// Records that the value of member `name` begins at `position`.
    pub(super) fn enter(&mut self, name: &str, position: usize) {
        self.path.push(name.to_owned());
        if self.path.len() <= MOST_LEVELS {
            self.positions.insert(self.path.clone(), position);
        }
    }

    /// Records the end of the current member.
    pub(super) fn leave(&mut self) {
        self.path.pop();
    }

    /// Records the loss of the current member, in an object of nesting `level`. Returns whether more losses fit.
    pub(super) fn lost_member(&mut self, error: &FormatError, level: usize, ends: bool) -> bool {
        let (position, reason) = match error {
            FormatError::Json { position, reason } => (*position, reason.clone()),
            error => (0, error.to_string()),
        };
        self.damage_path();
        let path = self.path.clone();
        self.add(position, &path, &reason);
        self.path.truncate(level);
        self.ended |= ends;
        self.found.len() < MOST_LOSSES
    }

    /// Records that the text ends inside the current member.
    pub(super) fn text_ended(&mut self, position: usize) {
        self.damage_path();
        if !std::mem::replace(&mut self.ended, true) {
            let path = self.path.clone();
            self.add(position, &path, "the file ends here; what follows is lost");
        }
    }

    fn damage_path(&mut self) {
        for len in 1..=self.path.len() {
            self.damaged.insert(self.path.iter().take(len).cloned().collect());
        }
    }

    /// Records a loss at `position`, in the member `path`.
    pub(super) fn add(&mut self, position: usize, path: &[String], reason: &str) {
        let place: Vec<String> = path.iter().map(|name| shortened(name)).collect();
        let reason =
            if place.is_empty() { reason.to_owned() } else { format!("{}: {reason}", place.join("/")) };
        self.found.push(FormatError::json(position, reason));
    }

    /// Whether a part of the member `path` is lost, which was reported.
    pub(super) fn is_damaged(&self, path: &[&str]) -> bool {
        self.tolerant && self.damaged.contains(&owned(path))
    }

    /// Returns the value of the member `path`. A strict reader returns its error; otherwise the error is recorded, and
    /// the result is `None`.
    pub(super) fn keep<T>(
        &mut self,
        path: &[&str],
        value: Result<T, FormatError>,
    ) -> Result<Option<T>, FormatError> {
        let error = match value {
            Ok(value) => return Ok(Some(value)),
            Err(error) if !self.tolerant => return Err(error),
            Err(error) => error,
        };
        let path = owned(path);
        let position = self.positions.get(&path).copied().unwrap_or(0);
        let reason = match error {
            FormatError::Json { reason, .. } => reason,
            error => error.to_string(),
        };
        self.add(position, &path, &reason);
        Ok(None)
    }
}

fn owned(path: &[&str]) -> Vec<String> {
    path.iter().map(|name| (*name).to_owned()).collect()
}
