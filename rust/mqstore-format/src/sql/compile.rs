//! Assembles the parts of an expression, with the same restrictions as RocketMQ.

use std::cmp::Ordering;

use super::evaluate;
use super::expression::{Condition, Operand, Order, Property, Search};

/// Maximum nesting of conditions. Parentheses alone, and chains of `AND` and `OR`, do not count.
pub const MAX_SQL_DEPTH: usize = 256;

/// An error at a byte of the expression.
pub(super) struct Stop {
    pub(super) at: usize,
    pub(super) reason: String,
}

pub(super) type SqlInstruction<T> = Result<T, Stop>;

#[cold]
pub(super) fn stop<T>(at: usize, reason: impl Into<String>) -> SqlInstruction<T> {
    Err(Stop { at, reason: reason.into() })
}

/// A complete part.
pub(super) struct SqlPart {
    operand: Operand,
    /// Whether RocketMQ treats it as a constant: a literal, also in parentheses or after a `+`.
    is_literal: bool,
    /// Number of nested conditions and negatives in it.
    depth: usize,
    /// Its first byte.
    at: usize,
}

impl SqlPart {
    pub(super) fn property(property: Property, at: usize) -> Self {
        Self { operand: Operand::Property(property), is_literal: false, depth: 0, at }
    }

    fn literal(operand: Operand, at: usize) -> Self {
        Self { operand, is_literal: true, depth: 0, at }
    }

    /// `TRUE`, `FALSE`, `NULL`.
    pub(super) fn truth(truth: Option<bool>, at: usize) -> Self {
        Self::literal(Operand::Condition(Box::new(Condition::Constant(truth))), at)
    }

    /// Creates a text from its quoted form.
    pub(super) fn text(quoted: &str, at: usize) -> Self {
        Self::literal(Operand::Text(unquoted(quoted)), at)
    }

    /// Creates a whole number, with or without an `L`: an `int` if it fits.
    pub(super) fn whole(text: &str, at: usize) -> SqlInstruction<Self> {
        let Ok(number) = text.trim_end_matches(['l', 'L']).parse::<i64>() else {
            return stop(at, format!("{text} does not fit 64 bits"));
        };
        Ok(Self::literal(i32::try_from(number).map_or(Operand::Long(number), Operand::Int), at))
    }

    /// Creates a number with a point or an exponent.
    pub(super) fn real(text: &str, at: usize) -> SqlInstruction<Self> {
        match text.parse::<f64>() {
            Ok(number) if number.is_infinite() => stop(at, format!("{text} exceeds the largest double")),
            // RocketMQ intends to refuse only numbers that are too small for a double, but it also refuses 0.0.
            Ok(0.0) => {
                stop(at, format!("{text} is below RocketMQ's smallest double, 4.9e-324: for zero write 0"))
            }
            Ok(number) => Ok(Self::literal(Operand::Double(number), at)),
            Err(_) => stop(at, format!("{text} is not a number")),
        }
    }

    fn condition(condition: Condition, inside: usize, at: usize) -> SqlInstruction<Self> {
        let depth = deeper(inside, at)?;
        Ok(Self { operand: Operand::Condition(Box::new(condition)), is_literal: false, depth, at })
    }

    /// Returns it as a condition, with its depth.
    pub(super) fn into_condition(self) -> SqlInstruction<(Condition, usize)> {
        let what = match self.operand {
            Operand::Condition(condition) => return Ok((*condition, self.depth)),
            Operand::Property(property) => return Ok((Condition::Alone(property), self.depth + 1)),
            Operand::Text(_) => "a text",
            Operand::Negative(_) => "a negative",
            Operand::Int(_) | Operand::Long(_) | Operand::Double(_) => "a number",
        };
        stop(self.at, format!("{what} by itself is not a condition"))
    }

    /// Applies `+`, which changes nothing.
    pub(super) fn plus(self, at: usize) -> Self {
        Self { at, ..self }
    }

    /// Applies `-`. Only numbers have a negative.
    pub(super) fn minus(self, at: usize) -> SqlInstruction<Self> {
        let (operand, depth) = match self.operand {
            // Literals have no sign, so none is the smallest number, which has no negative.
            Operand::Int(number) => (Operand::Int(number.wrapping_neg()), self.depth),
            Operand::Long(number) => (Operand::Long(number.wrapping_neg()), self.depth),
            Operand::Double(number) => (Operand::Double(-number), self.depth),
            other => (Operand::Negative(Box::new(other)), deeper(self.depth, at)?),
        };
        Ok(Self { operand, is_literal: false, depth, at })
    }

    /// Applies `NOT`.
    pub(super) fn not(self, at: usize) -> SqlInstruction<Self> {
        let (condition, depth) = self.into_condition()?;
        Self::condition(Condition::Not(Box::new(condition)), depth, at)
    }

    /// Joins parts with `AND`, or with `OR` if `is_or`.
    pub(super) fn joined(parts: Vec<Self>, is_or: bool) -> SqlInstruction<Self> {
        let at = parts.first().map_or(0, |part| part.at);
        let mut inside = 0;
        let mut conditions = Vec::with_capacity(parts.len());
        for part in parts {
            let (condition, depth) = part.into_condition()?;
            inside = inside.max(depth);
            conditions.push(condition);
        }
        let joined = if is_or { Condition::Any(conditions) } else { Condition::All(conditions) };
        Self::condition(joined, inside, at)
    }

    /// Creates `=`, or `<>` if `negated`.
    pub(super) fn equal(left: Self, right: Self, negated: bool) -> SqlInstruction<Self> {
        if let Some(null) = [&left, &right].into_iter().find(|part| part.is_null_literal()) {
            return stop(null.at, "nothing is equal to NULL: write IS NULL");
        }
        if left.is_literal && left.is_truth() && right.is_literal && !right.is_truth() {
            return stop(right.at, "TRUE and FALSE cannot be compared with a number or a text");
        }
        let (inside, at) = (left.depth.max(right.depth), left.at);
        let (left, right) = (left.operand, right.operand);
        Self::condition(Condition::Equal { left, right, negated }, inside, at)
    }

    /// Creates `<`, `<=`, `>` or `>=`.
    pub(super) fn ordered(left: Self, order: Order, right: Self) -> SqlInstruction<Self> {
        left.must_have_order()?;
        right.must_have_order()?;
        let (inside, at) = (left.depth.max(right.depth), left.at);
        let (left, right) = (left.operand, right.operand);
        Self::condition(Condition::Order { left, order, right }, inside, at)
    }

    pub(super) fn between(self, low: Self, high: Self, negated: bool) -> SqlInstruction<Self> {
        for part in [&self, &low, &high] {
            part.must_have_order()?;
        }
        let is_upside_down =
            || evaluate::order_of_literals(&high.operand, &low.operand) == Some(Ordering::Less);
        if !negated && low.is_literal && high.is_literal && is_upside_down() {
            return stop(high.at, "the upper bound of BETWEEN is less than the lower one");
        }
        let (inside, at) = (self.depth.max(low.depth).max(high.depth), self.at);
        let (value, low, high) = (self.operand, low.operand, high.operand);
        Self::condition(Condition::Between { value, low, high, negated }, inside, at)
    }

    pub(super) fn null_or_not(self, negated: bool) -> SqlInstruction<Self> {
        Self::condition(Condition::IsNull { operand: self.operand, negated }, self.depth, self.at)
    }

    /// Creates `IN`. The texts are in their quotes.
    pub(super) fn listed(self, quoted: &[&str], negated: bool) -> SqlInstruction<Self> {
        let Operand::Property(property) = self.operand else {
            return stop(self.at, "only a property can be IN a list");
        };
        let mut texts: Vec<_> = quoted.iter().map(|text| unquoted(text)).collect();
        texts.sort_unstable();
        texts.dedup();
        Self::condition(Condition::In { property, texts, negated }, self.depth, self.at)
    }

    /// Creates `CONTAINS`, `STARTSWITH` or `ENDSWITH`. The text is in its quotes.
    pub(super) fn searched(self, how: Search, quoted: &str, negated: bool) -> SqlInstruction<Self> {
        let (operand, text) = (self.operand, unquoted(quoted));
        Self::condition(Condition::Search { operand, how, text, negated }, self.depth, self.at)
    }

    fn is_truth(&self) -> bool {
        matches!(self.operand, Operand::Condition(_))
    }

    fn is_null_literal(&self) -> bool {
        let Operand::Condition(condition) = &self.operand else { return false };
        self.is_literal && matches!(**condition, Condition::Constant(None))
    }

    /// Fails if it is not a number and cannot become one.
    fn must_have_order(&self) -> SqlInstruction<()> {
        let what = match self.operand {
            Operand::Text(_) if self.is_literal => "a text",
            Operand::Condition(_) => "a condition",
            _ => return Ok(()),
        };
        stop(self.at, format!("{what} has no order: <, <=, >, >= and BETWEEN compare numbers"))
    }
}

/// Returns the text inside quotes.
fn unquoted(quoted: &str) -> Box<str> {
    let inside = quoted.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')).unwrap_or(quoted);
    inside.replace("''", "'").into()
}

/// Returns the depth of a condition that contains one of depth `inside`.
fn deeper(inside: usize, at: usize) -> SqlInstruction<usize> {
    if inside >= MAX_SQL_DEPTH {
        return stop(at, format!("conditions are nested more than {MAX_SQL_DEPTH} levels deep here"));
    }
    Ok(inside + 1)
}
