//! Tokens to conditions.
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
//! What waits for its right side is on a stack of our own, so that no nesting overflows the program's. The depth
//! of what is made is bounded, because it is walked by calls.

use std::collections::BTreeMap;

use super::compile::{Part, Step, Stop, stop};
use super::error::SqlError;
use super::expression::{Condition, Order, Property, Search};
use super::lexer::{Kind, Lexer, Token};
use crate::error::shortened;

/// The longest expression, in bytes.
pub const MAX_SQL_BYTES: usize = 1 << 20;

/// What an expression came to.
pub(super) struct Parsed {
    pub(super) condition: Condition,
    /// The properties by name, with their places.
    pub(super) names: Vec<(Box<str>, usize)>,
    /// Where text begins that is no part of the expression.
    pub(super) ignored: Option<usize>,
}

/// Compiles an expression.
pub(super) fn parse(expression: &str) -> Result<Parsed, SqlError> {
    let size = expression.len();
    if size > MAX_SQL_BYTES {
        let reason = format!("the expression has {size} bytes, at most {MAX_SQL_BYTES} are possible");
        return Err(SqlError::new(expression, 0, reason));
    }
    let mut lexer = Lexer::new(expression);
    let token = lexer.next();
    let (ready, waiting, names) = (Vec::new(), Vec::new(), BTreeMap::new());
    let parser = Parser { expression, lexer, token, ready, waiting, parentheses: 0, names };
    parser.run().map_err(|Stop { at, reason }| SqlError::new(expression, at, reason))
}

/// How tightly an operator binds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Or,
    And,
    Equality,
    Comparison,
}

/// What waits for its right side.
#[derive(Clone, Copy)]
enum Waiting {
    Parenthesis,
    Plus,
    Minus,
    Not,
    /// `AND` or `OR`, and how many of its conditions are ready.
    Joined(Level, usize),
    /// `=`, or with true `<>`.
    Equal(bool),
    Order(Order),
    /// `BETWEEN`, or with true `NOT BETWEEN`, for its lower bound.
    Low(bool),
    /// And for its upper one.
    High(bool),
}

impl Waiting {
    /// What stands before an operand.
    fn prefix(kind: Kind) -> Option<Self> {
        Some(match kind {
            Kind::Plus => Self::Plus,
            Kind::Minus => Self::Minus,
            Kind::Not => Self::Not,
            Kind::Open => Self::Parenthesis,
            _ => return None,
        })
    }

    /// What stands between two operands, and how tightly it binds.
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
    /// The next one; no further one was looked at.
    token: Token<'t>,
    ready: Vec<Part>,
    /// With the place of each.
    waiting: Vec<(Waiting, usize)>,
    /// How many of those that wait are parentheses.
    parentheses: usize,
    names: BTreeMap<&'t str, usize>,
}

impl<'t> Parser<'t> {
    fn run(mut self) -> Step<Parsed> {
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

    /// The token that was next.
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
    fn expected<T>(&self, what: &str) -> Step<T> {
        let Token { kind, text, at } = self.token;
        let found = match kind {
            Kind::End => "the end".into(),
            Kind::Unknown => format!("`{text}`{}", hint(self.expression.get(at..).unwrap_or_default())),
            _ => format!("`{}`", shortened(text)),
        };
        stop(at, format!("expected {what}, found {found}"))
    }

    fn pop(&mut self) -> Step<Part> {
        // Every operator finds its operands ready; an expression without any was refused.
        self.ready.pop().map_or_else(|| stop(self.token.at, "an operand is missing"), Ok)
    }

    /// Goes over what stands before an operand, and the operand.
    fn operand(&mut self) -> Step<()> {
        while let Some(waiting) = Waiting::prefix(self.token.kind) {
            self.parentheses += usize::from(matches!(waiting, Waiting::Parenthesis));
            self.waiting.push((waiting, self.token.at));
            self.take();
        }
        let Token { kind, text, at } = self.token;
        let part = match kind {
            Kind::Text => Part::text(text, at),
            Kind::Whole => Part::whole(text, at)?,
            Kind::Real => Part::real(text, at)?,
            Kind::True => Part::truth(Some(true), at),
            Kind::False => Part::truth(Some(false), at),
            Kind::Null => Part::truth(None, at),
            Kind::Name => {
                let places = self.names.len();
                let place = *self.names.entry(text).or_insert(places);
                Part::property(Property { name: text.into(), place }, at)
            }
            _ => return self.expected("a property, a value, NOT or ("),
        };
        self.take();
        self.ready.push(part);
        Ok(())
    }

    /// Goes over what stands behind an operand; whether another operand is to come.
    fn operators(&mut self) -> Step<bool> {
        // Behind IS NULL stands no comparison: RocketMQ is past them.
        let mut compares = true;
        loop {
            self.apply_prefixes()?;
            if self.lower_bound()? {
                return Ok(true);
            }
            match (self.token.kind, Waiting::infix(self.token.kind)) {
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
    /// `+`, `-` and `NOT` bind tightest.
    fn apply_prefixes(&mut self) -> Step<()> {
        while let Some((waiting, at)) = self.waiting.last().copied() {
            let apply = match waiting {
                Waiting::Plus => |part: Part, at| Ok(part.plus(at)),
                Waiting::Minus => Part::minus,
                Waiting::Not => Part::not,
                _ => break,
            };
            self.waiting.pop();
            let part = apply(self.pop()?, at)?;
            self.ready.push(part);
        }
        Ok(())
    }

    /// Puts `BETWEEN` together once its bounds are there; whether the operand was the lower one.
    fn lower_bound(&mut self) -> Step<bool> {
        match self.waiting.last().copied() {
            Some((Waiting::Low(negated), at)) => {
                if !self.take_if(Kind::And) {
                    return self.expected("AND and the upper bound of BETWEEN");
                }
                self.waiting.pop();
                self.waiting.push((Waiting::High(negated), at));
                Ok(true)
            }
            Some((Waiting::High(negated), _)) => {
                self.waiting.pop();
                let (high, low, value) = (self.pop()?, self.pop()?, self.pop()?);
                self.ready.push(value.between(low, high, negated)?);
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    /// Has an operator wait for its right side.
    fn wait(&mut self, waiting: Waiting, level: Level) -> Step<()> {
        self.reduce(Some(level))?;
        let at = self.take().at;
        match (waiting, self.waiting.last_mut()) {
            (Waiting::Joined(level, _), Some((Waiting::Joined(same, count), _))) if *same == level => {
                *count += 1;
            }
            _ => self.waiting.push((waiting, at)),
        }
        Ok(())
    }

    /// Puts together what binds as tightly as `level` or more tightly, but keeps a chain of the same level open;
    /// `None` stands for whatever waits behind the last parenthesis.
    fn reduce(&mut self, level: Option<Level>) -> Step<()> {
        while let Some((waiting, _)) = self.waiting.last().copied() {
            let part = match waiting {
                Waiting::Joined(own, count) if level < Some(own) => {
                    let parts = self.ready.split_off(self.ready.len().saturating_sub(count + 1));
                    Part::joined(parts, own == Level::Or)?
                }
                Waiting::Equal(negated) if level <= Some(Level::Equality) => {
                    let (right, left) = (self.pop()?, self.pop()?);
                    Part::equal(left, right, negated)?
                }
                Waiting::Order(order) => {
                    let (right, left) = (self.pop()?, self.pop()?);
                    Part::ordered(left, order, right)?
                }
                _ => return Ok(()),
            };
            self.waiting.pop();
            self.ready.push(part);
        }
        Ok(())
    }

    /// Goes over a comparison with texts; whether it was `NOT BETWEEN`, and an operand is to come.
    fn comparison(&mut self) -> Step<bool> {
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
                self.waiting.push((Waiting::Low(negated), at));
                return Ok(true);
            }
            _ => return self.expected("CONTAINS, STARTSWITH, ENDSWITH, BETWEEN or IN behind NOT"),
        };
        self.take();
        let text = self.quoted(search.word())?;
        let part = self.pop()?.searched(search, text, negated)?;
        self.ready.push(part);
        Ok(false)
    }

    /// `( text , … )`
    fn list(&mut self) -> Step<Vec<&'t str>> {
        if !self.take_if(Kind::Open) {
            return self.expected("( behind IN");
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

    /// A text in its quotes; `of` takes nothing else.
    fn quoted(&mut self, of: &str) -> Step<&'t str> {
        if self.token.kind != Kind::Text {
            return self.expected(&format!("a text in single quotes for {of}"));
        }
        Ok(self.take().text)
    }

    /// `IS NULL`, `IS NOT NULL`
    fn is_null(&mut self) -> Step<()> {
        self.reduce(Some(Level::Equality))?;
        self.take();
        let negated = self.take_if(Kind::Not);
        if !self.take_if(Kind::Null) {
            return self.expected(if negated { "NULL" } else { "NULL or NOT NULL behind IS" });
        }
        let part = self.pop()?.null_or_not(negated)?;
        self.ready.push(part);
        Ok(())
    }

    fn close(&mut self) -> Step<()> {
        self.reduce(None)?;
        self.waiting.pop();
        self.parentheses -= 1;
        self.take();
        Ok(())
    }
}

/// What may have been meant by something that begins no token.
fn hint(rest: &str) -> &'static str {
    match rest.as_bytes() {
        [b'\'', ..] => ", and the text has no closing quote",
        [b'"', ..] => ", but texts stand in single quotes",
        [b'!', ..] => ", but unequal is <>",
        [b'&', ..] => ", but conditions are joined by AND",
        [b'|', ..] => ", but conditions are joined by OR",
        [b'/', b'*', ..] => ", and the comment has no end",
        [b'.', ..] => ", but a name has ASCII letters, digits, _ and $ only",
        [byte, ..] if !byte.is_ascii() => ", but a name has ASCII letters, digits, _ and $ only",
        _ => "",
    }
}
