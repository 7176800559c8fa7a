//! Parts of an expression, put together as far as RocketMQ compiles them.

use std::cmp::Ordering;

use super::evaluate;
use super::expression::{Condition, Operand, Order, Property, Search};

/// How many conditions may be nested in each other; parentheses by themselves and chains of `AND` and `OR` do
/// not count.
pub const MAX_SQL_DEPTH: usize = 256;

/// An error at a byte of the expression.
pub(super) struct Stop {
    pub(super) at: usize,
    pub(super) reason: String,
}

pub(super) type Step<T> = Result<T, Stop>;

#[cold]
pub(super) fn stop<T>(at: usize, reason: impl Into<String>) -> Step<T> {
    Err(Stop { at, reason: reason.into() })
}

/// A part that is complete.
pub(super) struct Part {
    operand: Operand,
    /// Whether RocketMQ sees a constant: a literal, also in parentheses or behind a `+`.
    is_literal: bool,
    /// How many conditions and negatives are nested in it.
    depth: usize,
    /// Where it begins.
    at: usize,
}

impl Part {
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

    /// A text in its quotes.
    pub(super) fn text(quoted: &str, at: usize) -> Self {
        Self::literal(Operand::Text(unquoted(quoted)), at)
    }

    /// A whole number, with or without an `L`: an `int` where it is one.
    pub(super) fn whole(text: &str, at: usize) -> Step<Self> {
        let Ok(number) = text.trim_end_matches(['l', 'L']).parse::<i64>() else {
            return stop(at, format!("{text} does not fit 64 bits"));
        };
        Ok(Self::literal(i32::try_from(number).map_or(Operand::Long(number), Operand::Int), at))
    }

    /// A number with a point or an exponent.
    pub(super) fn real(text: &str, at: usize) -> Step<Self> {
        match text.parse::<f64>() {
            Ok(number) if number.is_infinite() => stop(at, format!("{text} is more than any double")),
            // RocketMQ means what is too small for a double, and refuses 0.0 with it.
            Ok(0.0) => stop(
                at,
                format!(
                    "{text} is less than the least double that RocketMQ takes, 4.9e-324: for nothing write 0"
                ),
            ),
            Ok(number) => Ok(Self::literal(Operand::Double(number), at)),
            Err(_) => stop(at, format!("{text} is no number")),
        }
    }

    fn condition(condition: Condition, inside: usize, at: usize) -> Step<Self> {
        let depth = deeper(inside, at)?;
        Ok(Self { operand: Operand::Condition(Box::new(condition)), is_literal: false, depth, at })
    }

    /// As a condition, and how much is nested in it.
    pub(super) fn into_condition(self) -> Step<(Condition, usize)> {
        let what = match self.operand {
            Operand::Condition(condition) => return Ok((*condition, self.depth)),
            Operand::Property(property) => return Ok((Condition::Alone(property), self.depth + 1)),
            Operand::Text(_) => "a text",
            Operand::Negative(_) => "a negative",
            Operand::Int(_) | Operand::Long(_) | Operand::Double(_) => "a number",
        };
        stop(self.at, format!("{what} by itself is no condition"))
    }

    /// `+`, which changes nothing.
    pub(super) fn plus(self, at: usize) -> Self {
        Self { at, ..self }
    }

    /// `-`. Only numbers have a negative.
    pub(super) fn minus(self, at: usize) -> Step<Self> {
        let (operand, depth) = match self.operand {
            // Literals have no sign, so none is the least number, which has no negative.
            Operand::Int(number) => (Operand::Int(number.wrapping_neg()), self.depth),
            Operand::Long(number) => (Operand::Long(number.wrapping_neg()), self.depth),
            Operand::Double(number) => (Operand::Double(-number), self.depth),
            other => (Operand::Negative(Box::new(other)), deeper(self.depth, at)?),
        };
        Ok(Self { operand, is_literal: false, depth, at })
    }

    /// `NOT`.
    pub(super) fn not(self, at: usize) -> Step<Self> {
        let (condition, depth) = self.into_condition()?;
        Self::condition(Condition::Not(Box::new(condition)), depth, at)
    }

    /// `AND`, or with `is_or` `OR`.
    pub(super) fn joined(parts: Vec<Self>, is_or: bool) -> Step<Self> {
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

    /// `=`, or with `negated` `<>`.
    pub(super) fn equal(left: Self, right: Self, negated: bool) -> Step<Self> {
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

    /// `<` and its like.
    pub(super) fn ordered(left: Self, order: Order, right: Self) -> Step<Self> {
        left.must_have_order()?;
        right.must_have_order()?;
        let (inside, at) = (left.depth.max(right.depth), left.at);
        let (left, right) = (left.operand, right.operand);
        Self::condition(Condition::Order { left, order, right }, inside, at)
    }

    pub(super) fn between(self, low: Self, high: Self, negated: bool) -> Step<Self> {
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

    pub(super) fn null_or_not(self, negated: bool) -> Step<Self> {
        Self::condition(Condition::IsNull { operand: self.operand, negated }, self.depth, self.at)
    }

    /// `IN`, with the texts in their quotes.
    pub(super) fn listed(self, quoted: &[&str], negated: bool) -> Step<Self> {
        let Operand::Property(property) = self.operand else {
            return stop(self.at, "only a property can be IN a list");
        };
        let mut texts: Vec<_> = quoted.iter().map(|text| unquoted(text)).collect();
        texts.sort_unstable();
        texts.dedup();
        Self::condition(Condition::In { property, texts, negated }, self.depth, self.at)
    }

    /// `CONTAINS` and its like, with the text in its quotes.
    pub(super) fn searched(self, how: Search, quoted: &str, negated: bool) -> Step<Self> {
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

    /// Fails for what is no number and cannot become one.
    fn must_have_order(&self) -> Step<()> {
        let what = match self.operand {
            Operand::Text(_) if self.is_literal => "a text",
            Operand::Condition(_) => "a condition",
            _ => return Ok(()),
        };
        stop(self.at, format!("{what} is neither less nor more: <, <=, >, >= and BETWEEN compare numbers"))
    }
}

/// The text that stands in quotes.
fn unquoted(quoted: &str) -> Box<str> {
    let inside = quoted.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')).unwrap_or(quoted);
    inside.replace("''", "'").into()
}

/// The depth of what has `inside` in it.
fn deeper(inside: usize, at: usize) -> Step<usize> {
    if inside >= MAX_SQL_DEPTH {
        return stop(at, format!("more than {MAX_SQL_DEPTH} conditions are nested in each other here"));
    }
    Ok(inside + 1)
}
