//! What an expression is compiled to.
//!
//! RocketMQ has one class of expressions and finds out at every message what is a value and what a condition.
//! Here the parser settles it: [`Condition`]s are true, false or unknown, [`Operand`]s have a value. Chains of
//! `AND` and `OR` are flat, because RocketMQ's nest to the left and every message would walk down.

/// Something with a value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operand {
    /// A property: text, or nothing.
    Property(Property),
    Text(Box<str>),
    Int(i32),
    Long(i64),
    Double(f64),
    /// The negative of something that is no number: nothing.
    Negative(Box<Operand>),
    /// A condition as a value.
    Condition(Box<Condition>),
}

/// A property that is read.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Property {
    pub(super) name: Box<str>,
    /// The place of its value in a row.
    pub(super) place: usize,
}

/// Something that is true, false or unknown.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Condition {
    /// `TRUE`, `FALSE`, `NULL`.
    Constant(Option<bool>),
    /// A property by itself.
    Alone(Property),
    Not(Box<Condition>),
    /// Joined by `AND`.
    All(Vec<Condition>),
    /// Joined by `OR`.
    Any(Vec<Condition>),
    /// `=`, `<>`.
    Equal {
        left: Operand,
        right: Operand,
        negated: bool,
    },
    /// `<`, `<=`, `>`, `>=`.
    Order {
        left: Operand,
        order: Order,
        right: Operand,
    },
    Between {
        value: Operand,
        low: Operand,
        high: Operand,
        negated: bool,
    },
    IsNull {
        operand: Operand,
        negated: bool,
    },
    /// One of the texts, which are sorted.
    In {
        property: Property,
        texts: Vec<Box<str>>,
        negated: bool,
    },
    /// `CONTAINS` and its like.
    Search {
        operand: Operand,
        how: Search,
        text: Box<str>,
        negated: bool,
    },
}

/// How two values are to stand to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Order {
    pub(super) fn symbol(self) -> &'static str {
        match self {
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
        }
    }
}

/// Where in a text another one is to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Search {
    Anywhere,
    AtStart,
    AtEnd,
}

impl Search {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Anywhere => "CONTAINS",
            Self::AtStart => "STARTSWITH",
            Self::AtEnd => "ENDSWITH",
        }
    }
}
