//! Evaluates a condition for the properties of one message, with the same result as RocketMQ's expressions.
//!
//! Evaluation allocates nothing. [`MAX_SQL_DEPTH`](super::compile::MAX_SQL_DEPTH) bounds the depth of calls.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

use super::expression::{Condition, Operand, Order, Search};
use super::java_number;

/// The values of the properties that an expression reads, each at its index.
#[derive(Clone, Copy)]
pub(super) struct MessageRow<'v>(pub(super) &'v [Option<Cow<'v, str>>]);

impl<'v> MessageRow<'v> {
    #[inline]
    fn get(self, place: usize) -> Option<&'v str> {
        self.0.get(place)?.as_deref()
    }
}

/// A text that does not parse as the type that it is compared with. RocketMQ throws an exception, and the message does
/// not match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The text.
    pub text: String,
    /// The required type.
    pub wanted: &'static str,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} cannot be read as {}", crate::error::shortened(&self.text), self.wanted)
    }
}

impl std::error::Error for Unreadable {}

/// The same, borrowed, because callers rarely need the error.
#[derive(Clone, Copy)]
pub(super) struct Misread<'v> {
    text: &'v str,
    wanted: &'static str,
}

impl From<Misread<'_>> for Unreadable {
    fn from(misread: Misread<'_>) -> Self {
        Self { text: misread.text.to_owned(), wanted: misread.wanted }
    }
}

/// True, false or unknown.
type Truth<'v> = Result<Option<bool>, Misread<'v>>;

/// The value of an operand.
#[derive(Clone, Copy)]
enum Value<'v> {
    Nothing,
    Text(&'v str),
    Int(i32),
    Long(i64),
    Double(f64),
    Truth(bool),
}

impl Operand {
    #[inline]
    fn value<'v>(&'v self, row: MessageRow<'v>) -> Result<Value<'v>, Misread<'v>> {
        Ok(match self {
            Self::Property(property) => row.get(property.place).map_or(Value::Nothing, Value::Text),
            Self::Text(text) => Value::Text(text),
            Self::Int(number) => Value::Int(*number),
            Self::Long(number) => Value::Long(*number),
            Self::Double(number) => Value::Double(*number),
            Self::Negative(operand) => {
                operand.value(row)?;
                Value::Nothing
            }
            Self::Condition(condition) => condition.evaluate(row)?.map_or(Value::Nothing, Value::Truth),
        })
    }
}

impl Condition {
    #[inline]
    pub(super) fn is_true(&self, row: MessageRow<'_>) -> bool {
        matches!(self.evaluate(row), Ok(Some(true)))
    }

    pub(super) fn evaluate<'v>(&'v self, row: MessageRow<'v>) -> Truth<'v> {
        Ok(match self {
            Self::Constant(truth) => *truth,
            // RocketMQ casts the value to a boolean, which fails for text.
            Self::Alone(property) => row.get(property.place).map(|_| false),
            Self::Not(condition) => condition.evaluate(row)?.map(|truth| !truth),
            Self::All(conditions) => return joined(conditions, false, row),
            Self::Any(conditions) => return joined(conditions, true, row),
            Self::Equal { left, right, negated } => {
                equal(left.value(row)?, right.value(row)?)?.map(|truth| truth != *negated)
            }
            Self::Order { left, order, right } => ordered(left, *order, right, row)?,
            Self::Between { value, low, high, negated } => {
                let (above, below) = if *negated {
                    (Order::Less, Order::Greater)
                } else {
                    (Order::GreaterOrEqual, Order::LessOrEqual)
                };
                // If the value is not set, the two forms are not opposites.
                let decides = Some(*negated);
                let first = ordered(value, above, low, row)?;
                if first == decides {
                    return Ok(first);
                }
                let second = ordered(value, below, high, row)?;
                if second == decides { second } else { first.and(second) }
            }
            Self::IsNull { operand, negated } => {
                Some(matches!(operand.value(row)?, Value::Nothing) != *negated)
            }
            Self::In { property, texts, negated } => {
                let is_listed = |text: &str| texts.binary_search_by(|listed| (**listed).cmp(text)).is_ok();
                row.get(property.place).map(|text| is_listed(text) != *negated)
            }
            Self::Search { operand, how, text, negated } => {
                // Both forms are false if the value is not set or the searched text is empty.
                if text.is_empty() {
                    return Ok(Some(false));
                }
                let Value::Text(searched) = operand.value(row)? else { return Ok(Some(false)) };
                let found = match how {
                    Search::Anywhere => searched.contains(&**text),
                    Search::AtStart => searched.starts_with(&**text),
                    Search::AtEnd => searched.ends_with(&**text),
                };
                Some(found != *negated)
            }
        })
    }
}

/// Evaluates `AND` and `OR`: the first condition equal to `decisive` decides; otherwise an unknown one makes the result
/// unknown.
fn joined<'v>(conditions: &'v [Condition], decisive: bool, row: MessageRow<'v>) -> Truth<'v> {
    let mut result = Some(!decisive);
    for condition in conditions {
        match condition.evaluate(row)? {
            Some(truth) if truth == decisive => return Ok(Some(decisive)),
            Some(_) => {}
            None => result = None,
        }
    }
    Ok(result)
}

/// Evaluates `=`. It is not symmetrical: a left value that is not set gives unknown, a right one gives false.
#[inline]
fn equal<'v>(left: Value<'v>, right: Value<'v>) -> Truth<'v> {
    Ok(match (left, right) {
        (Value::Nothing, Value::Nothing) => Some(true),
        (Value::Nothing, _) => None,
        (_, Value::Nothing) => Some(false),
        (Value::Text(left), Value::Text(right)) => Some(left == right),
        (left, right) => Some(compared(left, right)? == Ordering::Equal),
    })
}

#[inline]
fn ordered<'v>(left: &'v Operand, order: Order, right: &'v Operand, row: MessageRow<'v>) -> Truth<'v> {
    let left = left.value(row)?;
    if matches!(left, Value::Nothing) {
        return Ok(None);
    }
    let found = match (left, right.value(row)?) {
        (_, Value::Nothing) => return Ok(None),
        (Value::Text(left), Value::Text(right)) => order_of(double(left)?, double(right)?),
        (left, right) => compared(left, right)?,
    };
    Ok(Some(match order {
        Order::Less => found.is_lt(),
        Order::LessOrEqual => found.is_le(),
        Order::Greater => found.is_gt(),
        Order::GreaterOrEqual => found.is_ge(),
    }))
}

/// Returns the order of two values that are not both text. Values that cannot be compared are "less".
#[inline]
fn compared<'v>(left: Value<'v>, right: Value<'v>) -> Result<Ordering, Misread<'v>> {
    Ok(match (left, right) {
        (Value::Text(left), Value::Int(right)) => int(left)?.cmp(&right),
        (Value::Int(left), Value::Text(right)) => left.cmp(&int(right)?),
        (Value::Int(left), Value::Int(right)) => left.cmp(&right),
        (Value::Text(left), Value::Long(right)) => long(left)?.cmp(&right),
        (Value::Long(left), Value::Text(right)) => left.cmp(&long(right)?),
        (Value::Long(left), Value::Long(right)) => left.cmp(&right),
        (Value::Int(left), Value::Long(right)) => i64::from(left).cmp(&right),
        (Value::Long(left), Value::Int(right)) => left.cmp(&i64::from(right)),
        (Value::Text(left), Value::Double(right)) => order_of(double(left)?, right),
        (Value::Double(left), Value::Text(right)) => order_of(left, double(right)?),
        (Value::Double(left), Value::Double(right)) => order_of(left, right),
        (Value::Int(left), Value::Double(right)) => order_of(f64::from(left), right),
        (Value::Double(left), Value::Int(right)) => order_of(left, f64::from(right)),
        (Value::Long(left), Value::Double(right)) => order_of(left as f64, right),
        (Value::Double(left), Value::Long(right)) => order_of(left, right as f64),
        (Value::Text(left), Value::Truth(right)) => left.eq_ignore_ascii_case("true").cmp(&right),
        (Value::Truth(left), Value::Truth(right)) => left.cmp(&right),
        // RocketMQ reads the wrong one of the two as text.
        (Value::Truth(_), Value::Text(text)) => {
            return Err(Misread { text, wanted: "TRUE or FALSE on the right of a comparison" });
        }
        _ => Ordering::Less,
    })
}

/// Returns the order of two literals.
pub(super) fn order_of_literals(left: &Operand, right: &Operand) -> Option<Ordering> {
    let (left, right) = (left.value(MessageRow(&[])).ok()?, right.value(MessageRow(&[])).ok()?);
    compared(left, right).ok()
}

/// Compares in Java's order of doubles: minus zero before zero, NaN after all others and equal to itself.
#[inline]
fn order_of(left: f64, right: f64) -> Ordering {
    let same_nan = |number: f64| if number.is_nan() { f64::NAN.abs() } else { number };
    same_nan(left).total_cmp(&same_nan(right))
}

#[inline]
fn int(text: &str) -> Result<i32, Misread<'_>> {
    java_number::int(text).ok_or(Misread { text, wanted: "a 32-bit integer (int)" })
}

#[inline]
fn long(text: &str) -> Result<i64, Misread<'_>> {
    java_number::long(text).ok_or(Misread { text, wanted: "a 64-bit integer (long)" })
}

#[inline]
fn double(text: &str) -> Result<f64, Misread<'_>> {
    java_number::double(text).ok_or(Misread { text, wanted: "a double" })
}
