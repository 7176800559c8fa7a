//! Parses tokens to conditions.
//!
//! ```text
//! expression  all ( OR all )*
//! all         equality ( AND equality )*
//! equality    comparison ( ( = | <> ) comparison | IS [NOT] NULL )*
//! comparison  operand ( ( > | >= | < | <= ) operand
//!                     | [NOT] ( CONTAINS | STARTSWITH | ENDSWITH ) text
//!                     | [NOT] BETWEEN operand AND operand
//!                     | [NOT] IN ( text , … ) )*
//! operand     ( + | - | NOT )* ( text | number | TRUE | FALSE | NULL | name | ( expression ) )
//! ```
//!
//! Operators that wait for their right side are on an explicit stack, so that no nesting overflows the program's stack.
//! The depth of the result is bounded, because recursive calls walk it.

use std::collections::BTreeMap;

use super::compile::{SqlInstruction, SqlPart, Stop, stop};
use super::error::SqlError;
use super::expression::{Condition, Order, Property, Search};
use super::lexer::{Kind, Lexer, Token};
use crate::error::shortened;

/// Maximum length of an expression, in bytes.
pub const MAX_SQL_BYTES: usize = 1 << 20;

/// The result of the parser.
pub(super) struct Parsed {
    pub(super) condition: Condition,
    /// The properties by name, with their indexes.
    pub(super) names: Vec<(Box<str>, usize)>,
    /// Position of the text after the expression.
    pub(super) ignored: Option<usize>,
}

/// Compiles an expression.
pub(super) fn parse(expression: &str) -> Result<Parsed, SqlError> {
    let size = expression.len();
    if size > MAX_SQL_BYTES {
        let reason = format!("the expression has {size} bytes, but the limit is {MAX_SQL_BYTES}");
        return Err(SqlError::new(expression, 0, reason));
    }
    let mut lexer = Lexer::new(expression);
    let token = lexer.next();
    let (ready, waiting, names) = (Vec::new(), Vec::new(), BTreeMap::new());
    let parser = Parser { expression, lexer, token, ready, waiting, parentheses: 0, names };
    parser.run().map_err(|Stop { at, reason }| SqlError::new(expression, at, reason))
}

/// The precedence of an operator.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Or,
    And,
    Equality,
    Comparison,
}

/// An operator that waits for its right side.
#[derive(Clone, Copy)]
enum OpenOperator {
    Parenthesis,
    Plus,
    Minus,
    Not,
    /// `AND` or `OR`, and the number of its complete conditions.
    Joined(Level, usize),
    /// `=`, or `<>` if true.
    Equal(bool),
    Order(Order),
    /// `BETWEEN`, or `NOT BETWEEN` if true, for its lower bound.
    Low(bool),
    /// The same, for its upper bound.
    High(bool),
}

impl OpenOperator {
    /// Returns the operator of a token before an operand.
    fn prefix(kind: Kind) -> Option<Self> {
        Some(match kind {
            Kind::Plus => Self::Plus,
            Kind::Minus => Self::Minus,
            Kind::Not => Self::Not,
            Kind::Open => Self::Parenthesis,
            _ => return None,
        })
    }

    /// Returns the operator of a token between two operands, and its precedence.
    fn infix(kind: Kind) -> Option<(Self, Level)> {
        Some(match kind {
            Kind::Or => (Self::Joined(Level::Or, 1), Level::Or),
            Kind::And => (Self::Joined(Level::And, 1), Level::And),
            Kind::Equal => (Self::Equal(false), Level::Equality),
            Kind::NotEqual => (Self::Equal(true), Level::Equality),
            Kind::Greater => (Self::Order(Order::Greater), Level::Comparison),
            Kind::GreaterOrEqual => (Self::Order(Order::GreaterOrEqual), Level::Comparison),
            Kind::Less => (Self::Order(Order::Less), Level::Comparison),
            Kind::LessOrEqual => (Self::Order(Order::LessOrEqual), Level::Comparison),
            Kind::Between => (Self::Low(false), Level::Comparison),
            _ => return None,
        })
    }
}

struct Parser<'t> {
    expression: &'t str,
    lexer: Lexer<'t>,
    /// The next token. The parser has read no further one.
    token: Token<'t>,
    ready: Vec<SqlPart>,
    /// With the position of each.
    waiting: Vec<(OpenOperator, usize)>,
    /// Number of waiting parentheses.
    parentheses: usize,
    names: BTreeMap<&'t str, usize>,
}

impl<'t> Parser<'t> {
    fn run(mut self) -> SqlInstruction<Parsed> {
        loop {
            self.operand()?;
            if !self.operators()? {
                break;
            }
        }
        self.reduce(None)?;
        let condition = self.pop()?.into_condition()?.0;
        let ignored = (self.token.kind != Kind::End).then_some(self.token.at);
        let names = self.names.into_iter().map(|(name, place)| (name.into(), place)).collect();
        Ok(Parsed { condition, names, ignored })
    }

    /// Returns the next token and reads the one after it.
    fn take(&mut self) -> Token<'t> {
        std::mem::replace(&mut self.token, self.lexer.next())
    }

    fn take_if(&mut self, kind: Kind) -> bool {
        let is_next = self.token.kind == kind;
        if is_next {
            self.take();
        }
        is_next
    }

    #[cold]
    fn expected<T>(&self, what: &str) -> SqlInstruction<T> {
        let Token { kind, text, at } = self.token;
        let found = match kind {
            Kind::End => "the end".into(),
            Kind::Unknown => format!("`{text}`{}", hint(self.expression.get(at..).unwrap_or_default())),
            _ => format!("`{}`", shortened(text)),
        };
        stop(at, format!("expected {what}, found {found}"))
    }

    fn pop(&mut self) -> SqlInstruction<SqlPart> {
        // Invariant: every operator has its operands, because an empty expression was refused.
        self.ready.pop().map_or_else(|| stop(self.token.at, "an operand is missing"), Ok)
    }

    /// Parses the prefixes of an operand, and the operand.
    fn operand(&mut self) -> SqlInstruction<()> {
        while let Some(waiting) = OpenOperator::prefix(self.token.kind) {
            self.parentheses += usize::from(matches!(waiting, OpenOperator::Parenthesis));
            self.waiting.push((waiting, self.token.at));
            self.take();
        }
        let Token { kind, text, at } = self.token;
        let part = match kind {
            Kind::Text => SqlPart::text(text, at),
            Kind::Whole => SqlPart::whole(text, at)?,
            Kind::Real => SqlPart::real(text, at)?,
            Kind::True => SqlPart::truth(Some(true), at),
            Kind::False => SqlPart::truth(Some(false), at),
            Kind::Null => SqlPart::truth(None, at),
            Kind::Name => {
                let places = self.names.len();
                let place = *self.names.entry(text).or_insert(places);
                SqlPart::property(Property { name: text.into(), place }, at)
            }
            _ => return self.expected("a property, a value, NOT or ("),
        };
        self.take();
        self.ready.push(part);
        Ok(())
    }

    /// Parses the operators after an operand; returns whether another operand must follow.
    fn operators(&mut self) -> SqlInstruction<bool> {
        // No comparison follows IS NULL: RocketMQ's grammar has left that level.
        let mut compares = true;
        loop {
            self.apply_prefixes()?;
            if self.lower_bound()? {
                return Ok(true);
            }
            match (self.token.kind, OpenOperator::infix(self.token.kind)) {
                (_, Some((waiting, level))) if compares || level < Level::Comparison => {
                    self.wait(waiting, level)?;
                    return Ok(true);
                }
                (Kind::Not | Kind::Contains | Kind::StartsWith | Kind::EndsWith | Kind::In, _)
                    if compares =>
                {
                    if self.comparison()? {
                        return Ok(true);
                    }
                }
                (Kind::Is, _) => {
                    self.is_null()?;
                    compares = false;
                }
                (Kind::Close, _) if self.parentheses > 0 => {
                    self.close()?;
                    compares = true;
                }
                (Kind::Unknown, _) => return self.expected("an operator or the end"),
                _ if self.parentheses > 0 => return self.expected("an operator or )"),
                _ => return Ok(false),
            }
        }
    }
    /// Applies `+`, `-` and `NOT`, which have the highest precedence.
    fn apply_prefixes(&mut self) -> SqlInstruction<()> {
        while let Some((waiting, at)) = self.waiting.last().copied() {
            let apply = match waiting {
                OpenOperator::Plus => |part: SqlPart, at| Ok(part.plus(at)),
                OpenOperator::Minus => SqlPart::minus,
                OpenOperator::Not => SqlPart::not,
                _ => break,
            };
            self.waiting.pop();
            let part = apply(self.pop()?, at)?;
            self.ready.push(part);
        }
        Ok(())
    }

    /// Completes `BETWEEN` once its bounds are parsed; returns whether the operand was the lower one.
    fn lower_bound(&mut self) -> SqlInstruction<bool> {
        match self.waiting.last().copied() {
            Some((OpenOperator::Low(negated), at)) => {
                if !self.take_if(Kind::And) {
                    return self.expected("AND and the upper bound of BETWEEN");
                }
                self.waiting.pop();
                self.waiting.push((OpenOperator::High(negated), at));
                Ok(true)
            }
            Some((OpenOperator::High(negated), _)) => {
                self.waiting.pop();
                let (high, low, value) = (self.pop()?, self.pop()?, self.pop()?);
                self.ready.push(value.between(low, high, negated)?);
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    /// Pushes an operator that waits for its right side.
    fn wait(&mut self, waiting: OpenOperator, level: Level) -> SqlInstruction<()> {
        self.reduce(Some(level))?;
        let at = self.take().at;
        match (waiting, self.waiting.last_mut()) {
            (OpenOperator::Joined(level, _), Some((OpenOperator::Joined(same, count), _)))
                if *same == level =>
            {
                *count += 1;
            }
            _ => self.waiting.push((waiting, at)),
        }
        Ok(())
    }

    /// Applies waiting operators of the precedence `level` or higher, but keeps a chain of the same level open. `None`
    /// applies all operators after the last parenthesis.
    fn reduce(&mut self, level: Option<Level>) -> SqlInstruction<()> {
        while let Some((waiting, _)) = self.waiting.last().copied() {
            let part = match waiting {
                OpenOperator::Joined(own, count) if level < Some(own) => {
                    let parts = self.ready.split_off(self.ready.len().saturating_sub(count + 1));
                    SqlPart::joined(parts, own == Level::Or)?
                }
                OpenOperator::Equal(negated) if level <= Some(Level::Equality) => {
                    let (right, left) = (self.pop()?, self.pop()?);
                    SqlPart::equal(left, right, negated)?
                }
                OpenOperator::Order(order) => {
                    let (right, left) = (self.pop()?, self.pop()?);
                    SqlPart::ordered(left, order, right)?
                }
                _ => return Ok(()),
            };
            self.waiting.pop();
            self.ready.push(part);
        }
        Ok(())
    }

    /// Parses a comparison with texts; returns whether it was `NOT BETWEEN` and an operand must follow.
    fn comparison(&mut self) -> SqlInstruction<bool> {
        self.reduce(Some(Level::Comparison))?;
        let negated = self.take_if(Kind::Not);
        let Token { kind, at, .. } = self.token;
        let search = match kind {
            Kind::Contains => Search::Anywhere,
            Kind::StartsWith => Search::AtStart,
            Kind::EndsWith => Search::AtEnd,
            Kind::In => {
                self.take();
                let texts = self.list()?;
                let part = self.pop()?.listed(&texts, negated)?;
                self.ready.push(part);
                return Ok(false);
            }
            Kind::Between => {
                self.take();
                self.waiting.push((OpenOperator::Low(negated), at));
                return Ok(true);
            }
            _ => return self.expected("CONTAINS, STARTSWITH, ENDSWITH, BETWEEN or IN after NOT"),
        };
        self.take();
        let text = self.quoted(search.word())?;
        let part = self.pop()?.searched(search, text, negated)?;
        self.ready.push(part);
        Ok(false)
    }

    /// Parses `( text , … )`.
    fn list(&mut self) -> SqlInstruction<Vec<&'t str>> {
        if !self.take_if(Kind::Open) {
            return self.expected("( after IN");
        }
        let mut texts = vec![self.quoted("IN")?];
        while self.take_if(Kind::Comma) {
            texts.push(self.quoted("IN")?);
        }
        if !self.take_if(Kind::Close) {
            return self.expected(", or )");
        }
        Ok(texts)
    }

    /// Parses a text in its quotes for the operator `of`, which takes nothing else.
    fn quoted(&mut self, of: &str) -> SqlInstruction<&'t str> {
        if self.token.kind != Kind::Text {
            return self.expected(&format!("a text in single quotes for {of}"));
        }
        Ok(self.take().text)
    }

    /// Parses `IS NULL`, `IS NOT NULL`.
    fn is_null(&mut self) -> SqlInstruction<()> {
        self.reduce(Some(Level::Equality))?;
        self.take();
        let negated = self.take_if(Kind::Not);
        if !self.take_if(Kind::Null) {
            return self.expected(if negated { "NULL" } else { "NULL or NOT NULL after IS" });
        }
        let part = self.pop()?.null_or_not(negated)?;
        self.ready.push(part);
        Ok(())
    }

    fn close(&mut self) -> SqlInstruction<()> {
        self.reduce(None)?;
        self.waiting.pop();
        self.parentheses -= 1;
        self.take();
        Ok(())
    }
}

/// Returns a hint on the intended meaning of text that starts no token.
fn hint(rest: &str) -> &'static str {
    match rest.as_bytes() {
        [b'\'', ..] => ", and the text has no closing quote",
        [b'"', ..] => ", but texts need single quotes",
        [b'!', ..] => ", but unequal is <>",
        [b'&', ..] => ", but conditions are joined by AND",
        [b'|', ..] => ", but conditions are joined by OR",
        [b'/', b'*', ..] => ", and the comment has no end",
        [b'.', ..] => ", but a name has ASCII letters, digits, _ and $ only",
        [byte, ..] if !byte.is_ascii() => ", but a name has ASCII letters, digits, _ and $ only",
        _ => "",
    }
}
