//! Parses text in the dialect of RocketMQ's side files to values.
//!
//! The parser is recursive descent with a depth limit. It allocates nothing in advance: values grow with the text, so
//! memory and time are linear in it. [`parse_partial`] reads a damaged text: it continues after each error, and lists
//! the losses.

use serde_json::{Map, Number, Value};

use super::losses::Losses;
use crate::error::FormatError;

/// Maximum nesting of objects and arrays. RocketMQ's own files need 6.
pub const MAX_JSON_DEPTH: usize = 64;

/// Parses a text in the dialect of RocketMQ's JSON library.
///
/// RocketMQ writes integer keys of maps without quotes, and accepts more in such files. This function accepts the same:
/// either kind of quotes, names without quotes, trailing commas, comments, number suffixes and a byte-order mark.
/// [`MAX_JSON_DEPTH`] bounds the depth.
///
/// If two members have the same name, the later counts. Integers that fit in 64 bits stay integers. Larger ones become
/// floating point, as do numbers with a fraction.
pub fn parse(text: &[u8]) -> Result<Value, FormatError> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let text = std::str::from_utf8(text).map_err(|_| FormatError::BadUtf8 { what: "JSON" })?;
    let mut parser = Parser { text, at: 0, losses: None };
    let value = parser.value(MAX_JSON_DEPTH)?;
    parser.skip_space()?;
    match parser.peek() {
        None => Ok(value),
        Some(_) => Err(parser.error("text after the value")),
    }
}

/// Reads the members of a text that [`parse`] refuses, and lists the losses. A member with an error is skipped up to
/// the next comma or the end of its object. A value that may continue after the end of the text is lost.
pub(super) fn parse_partial(text: &[u8]) -> (Map<String, Value>, Losses) {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let (text, mut losses) = (utf8_or_nul(text), Losses::tolerant());
    if text.trim_ascii().is_empty() {
        losses.add(0, &[], "the file is empty");
        return (Map::new(), losses);
    }
    let mut parser = Parser { text: &text, at: 0, losses: Some(&mut losses) };
    let opened = parser.skip_space().is_ok() && parser.eat(b'{');
    let start = parser.at;
    let members = parser.members(MAX_JSON_DEPTH - 1).unwrap_or_default();
    let is_over = parser.skip_space().is_ok() && parser.peek().is_none();
    let end = parser.at;
    if !opened && losses.is_empty() {
        losses.add(start, &[], "an opening bracket is missing");
    } else if !is_over {
        losses.add(end, &[], "the text after this position is not read: it is outside all brackets");
    }
    (members, losses)
}

/// Replaces each byte that is not UTF-8 by NUL, so that positions stay the same.
fn utf8_or_nul(text: &[u8]) -> String {
    let mut valid = String::with_capacity(text.len());
    for chunk in text.utf8_chunks() {
        valid.push_str(chunk.valid());
        valid.extend(std::iter::repeat_n('\0', chunk.invalid().len()));
    }
    valid
}

struct Parser<'a, 'l> {
    text: &'a str,
    /// Always at a character boundary.
    at: usize,
    /// Receives the errors of a damaged text.
    losses: Option<&'l mut Losses>,
}

impl<'a> Parser<'a, '_> {
    #[cold]
    fn error(&self, reason: impl Into<String>) -> FormatError {
        FormatError::json(self.at, reason)
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Skips `byte`, which must be ASCII, if it is next; returns whether it was.
    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        if found {
            self.at += 1;
        }
        found
    }

    /// Takes the longest run of characters that `belongs` accepts.
    fn run(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
        self.at += end;
        rest.get(..end).unwrap_or_default()
    }

    fn skip_space(&mut self) -> Result<(), FormatError> {
        loop {
            self.run(|c| matches!(c, ' ' | '\t' | '\n' | '\r' | '\u{c}' | '\u{8}'));
            if !self.rest().starts_with("/*") {
                return Ok(());
            }
            let comment = self.rest().get(2..).and_then(|body| body.find("*/"));
            let Some(len) = comment else { return Err(self.error("an unclosed comment")) };
            self.at += 2 + len + 2;
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value, FormatError> {
        self.skip_space()?;
        let Some(deeper) = depth.checked_sub(1) else { return Err(self.error("nested too deeply")) };
        match self.peek() {
            None => Err(self.error("a value is missing")),
            Some(b'{') => self.object(deeper),
            Some(b'[') => self.array(deeper),
            Some(quote @ (b'"' | b'\'')) => self.string(quote).map(Value::String),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(_) => self.word(),
        }
    }

    fn word(&mut self) -> Result<Value, FormatError> {
        let start = self.at;
        match self.run(|c| c.is_ascii_alphanumeric() || c == '_') {
            "true" => Ok(Value::Bool(true)),
            "false" => Ok(Value::Bool(false)),
            "null" => Ok(Value::Null),
            _ => Err(FormatError::json(start, "not a value")),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, FormatError> {
        self.at += 1;
        self.members(depth).map(Value::Object)
    }

    /// Parses the members of an object and its closing bracket.
    fn members(&mut self, depth: usize) -> Result<Map<String, Value>, FormatError> {
        let mut members = Map::new();
        let level = self.losses.as_ref().map_or(0, |losses| losses.level());
        loop {
            let start = self.at;
            match self.member(depth, &mut members) {
                Ok(true) => {}
                Ok(false) => return Ok(members),
                Err(error) if self.losses.is_none() => return Err(error),
                Err(error) => self.skip_lost_member(start, level, &error),
            }
        }
    }

    /// Parses the next member of an object, or its end; returns whether there was a member.
    fn member(&mut self, depth: usize, members: &mut Map<String, Value>) -> Result<bool, FormatError> {
        self.skip_space()?;
        let at = self.at;
        if self.eat(b'}') {
            return Ok(false);
        }
        if let Some(losses) = self.losses.as_mut().filter(|_| at >= self.text.len()) {
            losses.text_ended(at);
            return Ok(false);
        }
        let name = self.name()?;
        self.skip_space()?;
        if !self.eat(b':') {
            return Err(self.error("a colon is missing"));
        }
        let at = self.at;
        if let Some(losses) = &mut self.losses {
            losses.enter(&name, at);
        }
        let value = self.value(depth)?;
        if self.losses.is_some() {
            self.skip_space()?;
        }
        // The complete members of an object at the end of a truncated text count.
        if self.losses.is_none() || self.peek().is_some() || !value.is_object() {
            self.separator(b'}')?;
        }
        if let Some(losses) = &mut self.losses {
            losses.leave();
        }
        members.insert(name, value);
        Ok(true)
    }

    /// Records the loss of the member that begins at `start`, in an object of nesting `level`, and skips it.
    fn skip_lost_member(&mut self, start: usize, level: usize, error: &FormatError) {
        let ends = self.at >= self.text.len();
        let Some(losses) = &mut self.losses else { return };
        let goes_on = losses.lost_member(error, level, ends);
        self.at = if goes_on { start } else { self.text.len() };
        let mut depth = 0_u32;
        while let Some(byte) = self.peek() {
            match byte {
                b',' if depth == 0 => {
                    self.at += 1;
                    return;
                }
                b'}' if depth == 0 => return,
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            self.at += self.rest().chars().next().map_or(1, char::len_utf8);
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, FormatError> {
        let mut items = Vec::new();
        self.at += 1;
        loop {
            self.skip_space()?;
            if self.eat(b']') {
                return Ok(Value::Array(items));
            }
            items.push(self.value(depth)?);
            self.separator(b']')?;
        }
    }

    /// Parses a comma, or nothing before the closing bracket.
    fn separator(&mut self, closing: u8) -> Result<(), FormatError> {
        self.skip_space()?;
        if self.eat(b',') || self.peek() == Some(closing) {
            Ok(())
        } else {
            Err(self.error("a comma or a closing bracket is missing"))
        }
    }

    /// Parses a member's name: in quotes, or an integer or identifier without quotes.
    fn name(&mut self) -> Result<String, FormatError> {
        if let Some(quote @ (b'"' | b'\'')) = self.peek() {
            return self.string(quote);
        }
        let start = self.at;
        self.eat(b'-');
        let word = self.run(|c| c.is_alphanumeric() || matches!(c, '_' | '$'));
        let name = self.text.get(start..self.at).unwrap_or_default();
        if word.is_empty() { Err(self.error("a name is missing")) } else { Ok(name.to_owned()) }
    }

    fn string(&mut self, quote: u8) -> Result<String, FormatError> {
        let mut text = String::new();
        self.at += 1;
        loop {
            let run = self.run(|c| c != char::from(quote) && c != '\\');
            if self.losses.is_some() && run.contains('\0') {
                return Err(self.error("a text is not UTF-8"));
            }
            text.push_str(run);
            if self.eat(quote) {
                return Ok(text);
            }
            if !self.eat(b'\\') {
                return Err(self.error("an unclosed text"));
            }
            text.push(self.escape()?);
        }
    }

    fn escape(&mut self) -> Result<char, FormatError> {
        let Some(kind) = self.rest().chars().next() else { return Err(self.error("an unclosed text")) };
        self.at += kind.len_utf8();
        Ok(match kind {
            '"' | '\'' | '\\' | '/' => kind,
            'b' => '\u{8}',
            'f' | 'F' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{b}',
            'x' => char::from_u32(self.hex_digits(2)?).unwrap_or(char::REPLACEMENT_CHARACTER),
            'u' => self.unicode_escape()?,
            _ => return Err(self.error("an unknown escape")),
        })
    }

    /// Parses the text after `\u`, with the second half of a surrogate pair. A single half becomes U+FFFD.
    fn unicode_escape(&mut self) -> Result<char, FormatError> {
        let unit = self.hex_digits(4)?;
        if (0xd800..0xdc00).contains(&unit) && self.rest().starts_with("\\u") {
            let after_first = self.at;
            self.at += 2;
            let low = self.hex_digits(4)?;
            if (0xdc00..0xe000).contains(&low) {
                let point = 0x1_0000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
                return Ok(char::from_u32(point).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            self.at = after_first;
        }
        Ok(char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn hex_digits(&mut self, count: usize) -> Result<u32, FormatError> {
        let digits = self.rest().get(..count).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        let value = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let Some(value) = value else { return Err(self.error("an escape needs hex digits")) };
        self.at += count;
        Ok(value)
    }

    /// Parses a number, with the type suffix that Java's library may write after it.
    fn number(&mut self) -> Result<Value, FormatError> {
        let start = self.at;
        self.eat(b'-');
        self.run(|c| c.is_ascii_digit() || matches!(c, '.' | '+' | '-' | 'e' | 'E'));
        let digits = self.text.get(start..self.at).unwrap_or_default();
        if matches!(self.peek(), Some(b'L' | b'S' | b'B' | b'F' | b'D')) {
            self.at += 1;
        }
        let whole =
            || digits.parse::<i64>().map(Number::from).or_else(|_| digits.parse::<u64>().map(Number::from));
        let real = || digits.parse::<f64>().ok().and_then(Number::from_f64);
        match whole().ok().or_else(real) {
            Some(number) => Ok(Value::Number(number)),
            None => Err(FormatError::json(start, "not a number")),
        }
    }
}
