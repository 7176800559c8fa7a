//! The compiled form of an expression.
//!
//! RocketMQ has one class for all expressions, and finds out for every message which ones are values and which are
//! conditions. Here the parser decides: a [`Condition`] is true, false or unknown, an [`Operand`] has a value. Chains
//! of `AND` and `OR` are flat, because in RocketMQ they nest to the left and every message walks down the nesting.

/// An expression with a value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operand {
    /// A property: text, or not set.
    Property(Property),
    Text(Box<str>),
    Int(i32),
    Long(i64),
    Double(f64),
    /// The negative of a value that is not a number; counts as not set.
    Negative(Box<Operand>),
    /// A condition as a value.
    Condition(Box<Condition>),
}

/// A property that the expression reads.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Property {
    pub(super) name: Box<str>,
    /// The index of its value in a row.
    pub(super) place: usize,
}

/// An expression that is true, false or unknown.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Condition {
    /// `TRUE`, `FALSE`, `NULL`.
    Constant(Option<bool>),
    /// A property alone.
    Alone(Property),
    Not(Box<Condition>),
    /// Conditions joined by `AND`.
    All(Vec<Condition>),
    /// Conditions joined by `OR`.
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
    /// One of the texts. They are sorted.
    In {
        property: Property,
        texts: Vec<Box<str>>,
        negated: bool,
    },
    /// `CONTAINS`, `STARTSWITH`, `ENDSWITH`.
    Search {
        operand: Operand,
        how: Search,
        text: Box<str>,
        negated: bool,
    },
}

/// The required order of two values.
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

/// The required position of one text in another.
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
