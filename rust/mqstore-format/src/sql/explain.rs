//! Explains an expression in words.
//!
//! One line for each condition, indented by its nesting, with the type that its properties are read as and the result
//! if they are not set.

use std::fmt::Write as _;

use super::expression::{Condition, Operand};
use crate::error::shortened;

/// Number of texts of a list that are named; the rest is counted.
const LISTED: usize = 10;

/// Explains a condition that reads the properties `names`. `ignored` is the rest of the expression and the number of
/// characters before it.
pub(super) fn explain<'a>(
    condition: &Condition,
    names: impl Iterator<Item = &'a str>,
    ignored: Option<(usize, &str)>,
) -> String {
    let mut lines = Lines { text: String::new() };
    lines.condition(0, condition);
    let names: Vec<_> = names.collect();
    let names = if names.is_empty() { "no property".to_owned() } else { names.join(", ") };
    lines.add(0, &format!("reads: {names}"));
    if let Some((characters, rest)) = ignored {
        let rest = format!("{:?}", shortened(rest));
        lines.add(0, &format!("ignored, as in RocketMQ, after the first {characters} characters: {rest}"));
    }
    lines.text
}

struct Lines {
    text: String,
}

impl Lines {
    fn add(&mut self, level: usize, line: &str) {
        let before = if self.text.is_empty() { "" } else { "\n" };
        // A write to a string cannot fail.
        let _ = write!(self.text, "{before}{:indent$}{line}", "", indent = 2 * level);
    }

    fn condition(&mut self, level: usize, condition: &Condition) {
        match condition {
            Condition::Constant(Some(true)) => self.add(level, "TRUE: always true"),
            Condition::Constant(Some(false)) => self.add(level, "FALSE: always false"),
            Condition::Constant(None) => self.add(level, "NULL: always unknown"),
            Condition::Alone(property) => {
                let name = &property.name;
                let why = "a property is text, which is never TRUE";
                self.add(level, &format!("{name}: false if it is set ({why}), unknown if it is not"));
            }
            Condition::Not(inside) => self.block(level, "not:", [&**inside]),
            Condition::All(conditions) => self.block(level, "all of:", conditions),
            Condition::Any(conditions) => self.block(level, "any of:", conditions),
            Condition::Equal { left, right, negated } => {
                let symbol = if *negated { "<>" } else { "=" };
                let line =
                    format!("{} {symbol} {}: {}", short(left), short(right), equality(left, right, *negated));
                self.comparison(level, &line, &[left, right]);
            }
            Condition::Order { left, order, right } => {
                let line =
                    format!("{} {} {}: {}", short(left), order.symbol(), short(right), read_as(left, right));
                self.comparison(level, &line, &[left, right]);
            }
            Condition::Between { value, low, high, negated } => {
                let line =
                    format!("{}{} BETWEEN {} AND {}", short(value), not(*negated), short(low), short(high));
                self.comparison(
                    level,
                    &format!("{line}: {}", bounded(value, low, high)),
                    &[value, low, high],
                );
            }
            Condition::IsNull { operand, negated } => {
                let symbol = if *negated { "IS NOT NULL" } else { "IS NULL" };
                let line = format!("{} {symbol}: {}", short(operand), nothing(operand, *negated));
                self.comparison(level, &line, &[operand]);
            }
            Condition::In { property, texts, negated } => {
                let (name, list) = (&property.name, listed(texts));
                let line = format!(
                    "{name}{} IN ({list}): compared as text, unknown if {name} is not set",
                    not(*negated)
                );
                self.add(level, &line);
            }
            Condition::Search { operand, how, text, negated } => {
                let meaning = match operand {
                    _ if text.is_empty() => "always false, because the text is empty".to_owned(),
                    Operand::Property(property) => {
                        format!("compared as text, false if {} is not set", property.name)
                    }
                    Operand::Text(_) => "the same for every message".to_owned(),
                    _ => "always false, because only texts are searched".to_owned(),
                };
                let line = format!("{}{} {} {}", short(operand), not(*negated), how.word(), quoted(text));
                self.comparison(level, &format!("{line}: {meaning}"), &[operand]);
            }
        }
    }

    fn block<'a>(&mut self, level: usize, line: &str, conditions: impl IntoIterator<Item = &'a Condition>) {
        self.add(level, line);
        conditions.into_iter().for_each(|each| self.condition(level + 1, each));
    }

    /// Adds a line, and below it the conditions among its operands, which the line only shows as `(…)`.
    fn comparison(&mut self, level: usize, line: &str, operands: &[&Operand]) {
        self.add(level, line);
        for operand in operands {
            let mut operand = *operand;
            while let Operand::Negative(inside) = operand {
                operand = inside;
            }
            if let Operand::Condition(condition) = operand
                && !matches!(**condition, Condition::Constant(_))
            {
                self.block(level + 1, "where (…) is:", [&**condition]);
            }
        }
    }
}

fn not(negated: bool) -> &'static str {
    if negated { " NOT" } else { "" }
}

fn quoted(text: &str) -> String {
    format!("'{}'", shortened(text).replace('\'', "''"))
}

fn listed(texts: &[Box<str>]) -> String {
    let mut list: Vec<_> = texts.iter().take(LISTED).map(|text| quoted(text)).collect();
    if texts.len() > LISTED {
        list.push(format!("and {} more", texts.len() - LISTED));
    }
    list.join(", ")
}

/// Returns an operand for a line.
fn short(operand: &Operand) -> String {
    match operand {
        Operand::Property(property) => property.name.to_string(),
        Operand::Text(text) => quoted(text),
        Operand::Int(number) => number.to_string(),
        Operand::Long(number) => number.to_string(),
        Operand::Double(number) => format!("{number:?}"),
        Operand::Negative(inside) => format!("-{}", short(inside)),
        Operand::Condition(condition) => match **condition {
            Condition::Constant(None) => "NULL".into(),
            Condition::Constant(Some(truth)) => truth.to_string().to_uppercase(),
            _ => "(…)".into(),
        },
    }
}

/// Returns the type that a property is read as when it is compared with `other`.
fn kind(other: &Operand) -> Option<&'static str> {
    match other {
        Operand::Int(_) => Some("a 32-bit integer (int)"),
        Operand::Long(_) => Some("a 64-bit integer (long)"),
        Operand::Double(_) => Some("a double"),
        _ => None,
    }
}

/// Explains `BETWEEN`.
fn bounded(value: &Operand, low: &Operand, high: &Operand) -> String {
    let (first, second) = (read_as(value, low), read_as(value, high));
    match (value, kind(low), kind(high)) {
        _ if first == second => first,
        (Operand::Property(property), Some(low), Some(high)) => {
            format!("{} is read as {low} and as {high}, unknown if it is not set", property.name)
        }
        _ => format!("{first}; {second}"),
    }
}

/// Explains `=` with a literal.
fn compared_as(name: &str, other: &Operand) -> String {
    kind(other).map_or_else(|| "compared as text".into(), |kind| format!("{name} is read as {kind}"))
}

const NO_NEGATIVE: &str = "only numbers have a negative";
const CONSTANT: &str = "the same for every message";

/// Explains `<`, `<=`, `>` and `>=`.
fn read_as(left: &Operand, right: &Operand) -> String {
    match (left, right) {
        (Operand::Negative(_), _) | (_, Operand::Negative(_)) => format!("always unknown: {NO_NEGATIVE}"),
        (Operand::Property(left), Operand::Property(right)) if left == right => {
            format!("{0} is read as a double, unknown if it is not set", left.name)
        }
        (Operand::Property(left), Operand::Property(right)) => {
            let (left, right) = (&left.name, &right.name);
            format!("{left} and {right} are read as doubles, unknown if either is not set")
        }
        (Operand::Property(property), other) | (other, Operand::Property(property)) => {
            let (name, kind) = (&property.name, kind(other).unwrap_or("text"));
            format!("{name} is read as {kind}, unknown if it is not set")
        }
        _ => CONSTANT.into(),
    }
}

/// Explains `=` and `<>`.
fn equality(left: &Operand, right: &Operand, negated: bool) -> String {
    let (equal, different) = (!negated, negated);
    match (left, right) {
        (Operand::Negative(_), _) | (_, Operand::Negative(_)) => {
            format!("{NO_NEGATIVE}; the value counts as not set")
        }
        (Operand::Property(left), Operand::Property(right)) => {
            let (left, right) = (&left.name, &right.name);
            let both = format!("{equal} if neither is set");
            format!(
                "compared as text, {both}, unknown if only {left} is not, {different} if only {right} is not"
            )
        }
        (Operand::Property(property), Operand::Condition(_)) => {
            format!("{0} is true if it reads true in any case, unknown if it is not set", property.name)
        }
        (Operand::Condition(_), Operand::Property(property)) => {
            let name = &property.name;
            format!(
                "never true if {name} is set, because RocketMQ compares no condition with text: write {name} first"
            )
        }
        (Operand::Property(property), other) => {
            format!("{}, unknown if {} is not set", compared_as(&property.name, other), property.name)
        }
        (other, Operand::Property(property)) => {
            format!("{}, {different} if {} is not set", compared_as(&property.name, other), property.name)
        }
        (Operand::Condition(_), Operand::Condition(_)) => "true, false and unknown are compared".into(),
        (Operand::Condition(_), _) | (_, Operand::Condition(_)) => {
            format!("{different}, because a condition equals no number and no text")
        }
        _ => CONSTANT.into(),
    }
}

/// Explains `IS NULL` and `IS NOT NULL`.
fn nothing(operand: &Operand, negated: bool) -> String {
    match operand {
        Operand::Property(property) => {
            let set = if negated { "set" } else { "not set" };
            format!("true if {} is {set}, else false", property.name)
        }
        Operand::Condition(_) => {
            format!("true if it is {}unknown, else false", if negated { "not " } else { "" })
        }
        Operand::Negative(_) => format!("always {}: {NO_NEGATIVE}", !negated),
        _ => format!("always {negated}"),
    }
}
