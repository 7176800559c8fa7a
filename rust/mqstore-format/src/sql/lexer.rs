//! Splits text into tokens, one at a time. Like RocketMQ, it reads one token after the expression and no further, so
//! the rest of the text can be anything.
//!
//! The longest token wins. Letters are ASCII in any case; blanks are the space, tab, line feed, carriage return and
//! form feed. A comment `--` ends with its line; without a line end it is not a comment.

use winnow::ascii::{digit0, digit1};
use winnow::combinator::{alt, delimited, fail, opt, peek, preceded, repeat};
use winnow::error::EmptyError;
use winnow::prelude::*;
use winnow::stream::{LocatingSlice, Location};
use winnow::token::{any, one_of, rest, take, take_till, take_until, take_while};

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Not,
    And,
    Or,
    Between,
    In,
    True,
    False,
    Null,
    Is,
    Contains,
    StartsWith,
    EndsWith,
    /// A whole number.
    Whole,
    /// A number with a point or an exponent.
    Real,
    /// A text with its quotes.
    Text,
    Name,
    Equal,
    NotEqual,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    Open,
    Close,
    Comma,
    Plus,
    Minus,
    /// The end of the text.
    End,
    /// Text that starts no token.
    Unknown,
}

const KEYWORDS: [(&str, Kind); 12] = [
    ("NOT", Kind::Not),
    ("AND", Kind::And),
    ("OR", Kind::Or),
    ("BETWEEN", Kind::Between),
    ("IN", Kind::In),
    ("TRUE", Kind::True),
    ("FALSE", Kind::False),
    ("NULL", Kind::Null),
    ("IS", Kind::Is),
    ("CONTAINS", Kind::Contains),
    ("STARTSWITH", Kind::StartsWith),
    ("ENDSWITH", Kind::EndsWith),
];

/// A token and its position.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'t> {
    pub(super) kind: Kind,
    pub(super) text: &'t str,
    /// Its first byte.
    pub(super) at: usize,
}

type Input<'t> = LocatingSlice<&'t str>;
type Parsed<T> = Result<T, EmptyError>;

/// Reads tokens.
pub(super) struct Lexer<'t> {
    input: Input<'t>,
    /// Position of the last byte that ends a line.
    last_line_end: usize,
}

impl<'t> Lexer<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        let last_line_end = text.rfind(['\n', '\r']).unwrap_or_default();
        Self { input: LocatingSlice::new(text), last_line_end }
    }

    /// Returns the next token: [`Kind::End`] at the end, each time, and [`Kind::Unknown`] for text that starts no
    /// token.
    pub(super) fn next(&mut self) -> Token<'t> {
        let last_line_end = self.last_line_end;
        // Text that cannot be skipped starts the next token.
        let skipped: Parsed<()> =
            repeat(0.., alt((blank, line_comment(last_line_end), block_comment))).parse_next(&mut self.input);
        debug_assert!(skipped.is_ok());
        let at = self.input.current_token_start();
        let token = alt((number, text, word, symbol, unknown)).parse_next(&mut self.input);
        let (kind, text) = token.unwrap_or((Kind::End, ""));
        Token { kind, text, at }
    }
}

fn blank(input: &mut Input<'_>) -> Parsed<()> {
    take_while(1.., [' ', '\t', '\n', '\r', '\x0c']).void().parse_next(input)
}

/// Uses the position of the last line end, so that many `--` do not each search for one.
fn line_comment<'t>(last_line_end: usize) -> impl Parser<Input<'t>, (), EmptyError> {
    move |input: &mut Input<'t>| {
        if input.current_token_start() > last_line_end {
            return fail.parse_next(input);
        }
        ("--", take_till(0.., ['\n', '\r']), alt(("\r\n", "\n", "\r"))).void().parse_next(input)
    }
}

fn block_comment(input: &mut Input<'_>) -> Parsed<()> {
    ("/*", take_until(0.., "*/"), "*/").void().parse_next(input)
}

fn number<'t>(input: &mut Input<'t>) -> Parsed<(Kind, &'t str)> {
    let real = alt((
        (digit1, '.', digit0, opt(exponent)).void(),
        ('.', digit1, opt(exponent)).void(),
        (digit1, exponent).void(),
    ));
    let whole = alt(('0'.void(), (one_of('1'..='9'), digit0, opt(one_of(['l', 'L']))).void()));
    alt((real.take().map(|text| (Kind::Real, text)), whole.take().map(|text| (Kind::Whole, text))))
        .parse_next(input)
}

fn exponent(input: &mut Input<'_>) -> Parsed<()> {
    (one_of(['e', 'E']), opt(one_of(['+', '-'])), digit1).void().parse_next(input)
}

fn text<'t>(input: &mut Input<'t>) -> Parsed<(Kind, &'t str)> {
    let piece = alt(("''", take_till(1.., '\'')));
    let pieces = repeat::<_, _, (), _, _>(0.., piece.void());
    let whole = delimited('\'', pieces, '\'').take();
    alt((whole, cut_text)).map(|text| (Kind::Text, text)).parse_next(input)
}

/// Matches the part of an unterminated text that is a text: up to the first of the last two quotes.
fn cut_text<'t>(input: &mut Input<'t>) -> Parsed<&'t str> {
    let text: &str = peek(preceded(peek('\''), rest)).parse_next(input)?;
    let end = text.rfind('\'').filter(|last| *last > 0);
    match end.and_then(|end| text.get(..end)) {
        Some(text) => take(text.chars().count()).parse_next(input),
        None => fail.parse_next(input),
    }
}

fn word<'t>(input: &mut Input<'t>) -> Parsed<(Kind, &'t str)> {
    let begins = |character: char| character.is_ascii_alphabetic() || matches!(character, '_' | '$');
    let goes_on = move |character: char| begins(character) || character.is_ascii_digit();
    let kind = |word: &str| {
        let keyword = KEYWORDS.iter().find(|(keyword, _)| keyword.eq_ignore_ascii_case(word));
        keyword.map_or(Kind::Name, |(_, kind)| *kind)
    };
    (one_of(begins), take_while(0.., goes_on)).take().map(|word| (kind(word), word)).parse_next(input)
}

fn symbol<'t>(input: &mut Input<'t>) -> Parsed<(Kind, &'t str)> {
    let one = one_of(['=', '<', '>', '(', ')', ',', '+', '-']).take();
    let kind = |symbol: &str| match symbol {
        "=" => Kind::Equal,
        "<>" => Kind::NotEqual,
        "<=" => Kind::LessOrEqual,
        "<" => Kind::Less,
        ">=" => Kind::GreaterOrEqual,
        ">" => Kind::Greater,
        "(" => Kind::Open,
        ")" => Kind::Close,
        "," => Kind::Comma,
        "+" => Kind::Plus,
        _ => Kind::Minus,
    };
    alt(("<>", "<=", ">=", one)).map(|symbol| (kind(symbol), symbol)).parse_next(input)
}

fn unknown<'t>(input: &mut Input<'t>) -> Parsed<(Kind, &'t str)> {
    any.take().map(|text| (Kind::Unknown, text)).parse_next(input)
}
