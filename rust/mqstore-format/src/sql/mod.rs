//! RocketMQ's SQL92 filters: conditions on the properties of a message.
//!
//! [`SqlFilter`] compiles the same expressions as RocketMQ's filters, 5.3 and 5.5 alike, and gives the same results,
//! even the odd ones: `tests/interop/test_filters.py` compares both. RocketMQ overflows its stack at some thousand
//! levels. This module limits expressions instead: [`MAX_SQL_BYTES`], [`MAX_SQL_DEPTH`].
//!
//! Source: `org.apache.rocketmq.filter.parser.SelectorParser`, `…filter.expression.*`, and
//! `ExpressionMessageFilter#isMatchedByCommitLog` for the meaning of an exception.

mod compile;
mod error;
mod evaluate;
mod explain;
mod expression;
mod java_number;
mod lexer;
mod parser;

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};

use crate::properties::Properties;
use evaluate::MessageRow;
use expression::Condition;

pub use compile::MAX_SQL_DEPTH;
pub use error::SqlError;
pub use evaluate::Unreadable;
pub use parser::MAX_SQL_BYTES;

/// Number of property values that are held without an allocation.
const FEW: usize = 8;

/// A compiled expression. Two are equal if their texts are equal.
///
/// ```text
/// price > 5 AND (region IN ('eu', 'us') OR region IS NULL) AND note CONTAINS 'it''s' -- texts in single quotes
/// ```
///
/// * A property is text or is not set. The other side of a comparison decides how the text is read: as an `int` for a
///   whole number up to 31 bits, a `long` above, a `double` for a number with a point or an exponent. Two properties
///   are compared as doubles by `<`, as text by `=`.
/// * Conditions are true, false or unknown; only true matches. If a text cannot be read as the comparison needs it, the
///   evaluation ends and the message does not match ([`Unreadable`]).
/// * A property by itself is never true.
/// * An expression ends where no operator follows. RocketMQ silently ignores the rest, and so compiles `name LIKE 'x'`
///   to `name`; [`SqlFilter::ignored`] returns the position of the rest.
#[derive(Clone)]
pub struct SqlFilter {
    expression: Box<str>,
    condition: Condition,
    /// The names of the properties, sorted, with the index of each in a [`MessageRow`].
    names: Vec<(Box<str>, usize)>,
    ignored: Option<usize>,
}

impl SqlFilter {
    /// Compiles an expression.
    ///
    /// # Errors
    /// Expressions that RocketMQ does not compile, and those that exceed [`MAX_SQL_BYTES`] or [`MAX_SQL_DEPTH`].
    pub fn parse(expression: &str) -> Result<Self, SqlError> {
        let parsed = parser::parse(expression)?;
        Ok(Self {
            expression: expression.into(),
            condition: parsed.condition,
            names: parsed.names,
            ignored: parsed.ignored,
        })
    }

    /// Returns the text of the expression.
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// Returns the names of the properties that the expression reads, sorted, each once.
    pub fn properties(&self) -> impl ExactSizeIterator<Item = &str> {
        self.names.iter().map(|(name, _)| &**name)
    }

    /// Returns the text after the expression, which is ignored as in RocketMQ, and the number of characters before it.
    pub fn ignored(&self) -> Option<(usize, &str)> {
        let (before, rest) = self.expression.split_at_checked(self.ignored?)?;
        Some((before.chars().count(), rest))
    }

    /// Returns whether a message with these properties matches.
    #[inline]
    pub fn matches(&self, properties: Properties<'_>) -> bool {
        self.with_row(|values| self.look_up(properties, values), |row| self.condition.is_true(row))
    }

    /// Evaluates the expression for a message with these properties: true, false, or `None` for unknown.
    ///
    /// # Errors
    /// [`Unreadable`] if RocketMQ throws an exception.
    pub fn evaluate(&self, properties: Properties<'_>) -> Result<Option<bool>, Unreadable> {
        self.with_row(
            |values| self.look_up(properties, values),
            |row| self.condition.evaluate(row).map_err(Unreadable::from),
        )
    }

    /// Like [`evaluate`](Self::evaluate), for properties that `get` returns by name. It is called once for each of
    /// [`properties`](Self::properties), in their order.
    ///
    /// # Errors
    /// [`Unreadable`] if RocketMQ throws an exception.
    pub fn evaluate_with<'a>(
        &self,
        mut get: impl FnMut(&str) -> Option<Cow<'a, str>>,
    ) -> Result<Option<bool>, Unreadable> {
        let fill = |values: &mut [Option<Cow<'a, str>>]| {
            for (name, place) in &self.names {
                if let Some(value) = values.get_mut(*place) {
                    *value = get(name);
                }
            }
        };
        self.with_row(fill, |row| self.condition.evaluate(row).map_err(Unreadable::from))
    }

    /// Explains the expression in words: a line for each condition, indented by its nesting, with the types that the
    /// properties are read as; then the names of the properties.
    pub fn explain(&self) -> String {
        explain::explain(&self.condition, self.properties(), self.ignored())
    }

    /// Fills in the values, then runs `look` on them.
    #[inline]
    fn with_row<'a, T>(
        &self,
        fill: impl FnOnce(&mut [Option<Cow<'a, str>>]),
        look: impl FnOnce(MessageRow<'_>) -> T,
    ) -> T {
        let mut few = [const { None }; FEW];
        let mut many = Vec::new();
        let values = if let Some(values) = few.get_mut(..self.names.len()) {
            values
        } else {
            many.resize(self.names.len(), None);
            many.as_mut_slice()
        };
        fill(values);
        look(MessageRow(values))
    }

    /// Finds the values in one walk. Of two with one name, the later counts.
    #[inline]
    fn look_up<'a>(&self, properties: Properties<'a>, values: &mut [Option<Cow<'a, str>>]) {
        for (name, value) in properties.iter_raw() {
            let place = if self.names.len() <= FEW {
                self.names.iter().find(|(wanted, _)| wanted.as_bytes() == name)
            } else {
                let found = self.names.binary_search_by(|(wanted, _)| wanted.as_bytes().cmp(name));
                found.ok().and_then(|at| self.names.get(at))
            };
            if let Some(slot) = place.and_then(|(_, place)| values.get_mut(*place)) {
                *slot = Some(String::from_utf8_lossy(value));
            }
        }
    }
}

impl PartialEq for SqlFilter {
    fn eq(&self, other: &Self) -> bool {
        self.expression == other.expression
    }
}

impl Eq for SqlFilter {}

impl Hash for SqlFilter {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.expression.hash(state);
    }
}

impl fmt::Debug for SqlFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SqlFilter").field(&self.expression).finish()
    }
}

#[cfg(test)]
mod tests;
