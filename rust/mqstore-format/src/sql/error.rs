//! The error of an expression that does not compile.

use std::fmt;

/// The reason why an expression does not compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqlError {
    /// The position, as the number of characters before it.
    pub position: usize,
    /// The line of the position, counted from 1.
    pub line: usize,
    /// The character in that line, counted from 1.
    pub column: usize,
    /// The error and, if another token is possible there, what was expected.
    pub reason: String,
}

impl SqlError {
    /// Creates an error at a byte of `expression`.
    #[cold]
    pub(super) fn new(expression: &str, at: usize, reason: impl Into<String>) -> Self {
        let before = expression.get(..at).unwrap_or(expression);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Self { position: before.chars().count(), line, column, reason: reason.into() }
    }
}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 1 {
            write!(f, "line {}, ", self.line)?;
        }
        write!(f, "column {}: {}", self.column, self.reason)
    }
}

impl std::error::Error for SqlError {}
