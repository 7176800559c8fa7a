//! As much of Rust as the rules need: tokens without comments, the paths they form, and what is test code.

use std::collections::BTreeSet;

/// A word, a `::`, any other single character, or the placeholder of a literal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// A path as written (`crate::index::IndexSet`), from a `use` item or from an expression or type.
#[derive(Debug)]
pub(crate) struct PathRef {
    pub(crate) line: usize,
    pub(crate) segments: Vec<String>,
}

/// What a string or a character literal becomes.
const LITERAL: &str = "\"\"";

/// The tokens of a file, without comments, strings blanked.
pub(crate) fn tokens(source: &str) -> Vec<Token> {
    Lexer { rest: source, line: 1 }.run()
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
}

impl Lexer<'_> {
    fn run(mut self) -> Vec<Token> {
        let mut found = Vec::new();
        while let Some(first) = self.rest.chars().next() {
            let line = self.line;
            let text = if self.rest.starts_with("//") {
                self.take(self.rest.find('\n').unwrap_or(self.rest.len()));
                continue;
            } else if self.rest.starts_with("/*") {
                self.block_comment();
                continue;
            } else if first.is_whitespace() {
                self.take(first.len_utf8());
                continue;
            } else if let Some(length) = string_length(self.rest) {
                self.take(length);
                LITERAL.to_owned()
            } else if first == '\'' {
                self.take(quote_length(self.rest));
                LITERAL.to_owned()
            } else if first.is_alphanumeric() || first == '_' {
                let word = self.rest.strip_prefix("r#").unwrap_or(self.rest);
                let raw_prefix = self.rest.len() - word.len();
                let length = word.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(word.len());
                let word = word.get(..length).unwrap_or_default().to_owned();
                self.take(raw_prefix + length);
                word
            } else if self.rest.starts_with("::") {
                self.take(2);
                "::".to_owned()
            } else {
                self.take(first.len_utf8());
                first.to_string()
            };
            found.push(Token { line, text });
        }
        found
    }

    fn take(&mut self, bytes: usize) {
        let (taken, rest) = self.rest.split_at(bytes);
        self.line += taken.matches('\n').count();
        self.rest = rest;
    }

    fn block_comment(&mut self) {
        let mut depth = 0_usize;
        loop {
            if self.rest.starts_with("/*") {
                depth += 1;
                self.take(2);
            } else if self.rest.starts_with("*/") {
                depth -= 1;
                self.take(2);
            } else if let Some(next) = self.rest.chars().next() {
                self.take(next.len_utf8());
            } else {
                return;
            }
            if depth == 0 {
                return;
            }
        }
    }
}

/// The length of the string literal at the start, if there is one: `"…"`, `b"…"`, `c"…"`, `r#"…"#` and so on.
fn string_length(source: &str) -> Option<usize> {
    let body = source.trim_start_matches(['b', 'c', 'r']);
    let prefix = source.get(..source.len() - body.len())?;
    if prefix.len() > 2 {
        return None;
    }
    if prefix.contains('r') {
        let quoted = body.trim_start_matches('#');
        let closing = format!("\"{}", body.get(..body.len() - quoted.len())?);
        let inside = quoted.strip_prefix('"')?;
        let end = inside.find(&closing).map_or(inside.len(), |at| at + closing.len());
        return Some(source.len() - inside.len() + end);
    }
    let inside = body.strip_prefix('"')?;
    Some(source.len() - inside.len() + closing_quote(inside, '"'))
}

/// The length of the character, byte or lifetime that starts with the `'` at the start.
fn quote_length(source: &str) -> usize {
    let mut inside = source.chars().skip(1);
    let (first, second) = (inside.next(), inside.next());
    match (first, second) {
        (Some('\\'), _) => 1 + closing_quote(source.get(1..).unwrap_or_default(), '\''),
        (Some(character), Some('\'')) => 2 + character.len_utf8(),
        _ => 1, // a lifetime: its name follows as a word
    }
}

/// The position after the first `quote` that no backslash hides.
fn closing_quote(inside: &str, quote: char) -> usize {
    let mut hidden = false;
    for (at, character) in inside.char_indices() {
        match character {
            '\\' => hidden = !hidden,
            _ if character == quote && !hidden => return at + character.len_utf8(),
            _ => hidden = false,
        }
    }
    inside.len()
}

/// A file split into the code of the product and the names of modules that are test code.
pub(crate) struct Product {
    pub(crate) tokens: Vec<Token>,
    /// Modules declared as `#[cfg(test)] mod name;`.
    pub(crate) test_modules: BTreeSet<String>,
}

/// The file without its `#[cfg(test)]` items.
pub(crate) fn product(source: &str) -> Product {
    let all = tokens(source);
    let mut kept = Vec::new();
    let mut test_modules = BTreeSet::new();
    let mut rest = all.as_slice();
    if starts_with(rest, &["#", "!", "[", "cfg", "(", "test", ")", "]"]) {
        rest = &[];
    }
    while let Some((token, after)) = rest.split_first() {
        if is_test_attribute(rest) {
            let (item, remaining) = split_item(rest);
            test_modules.extend(declared_module(item));
            rest = remaining;
        } else {
            kept.push(token.clone());
            rest = after;
        }
    }
    Product { tokens: kept, test_modules }
}

fn starts_with(tokens: &[Token], texts: &[&str]) -> bool {
    tokens.len() >= texts.len() && tokens.iter().zip(texts).all(|(token, text)| token.text == **text)
}

fn is_test_attribute(tokens: &[Token]) -> bool {
    starts_with(tokens, &["#", "[", "cfg", "(", "test", ")", "]"])
        || starts_with(tokens, &["#", "[", "cfg", "(", "any", "(", "test"])
        || starts_with(tokens, &["#", "[", "cfg", "(", "all", "(", "test"])
        || starts_with(tokens, &["#", "[", "test", "]"])
}

/// Splits after the item at the start, its attributes included.
fn split_item(tokens: &[Token]) -> (&[Token], &[Token]) {
    let mut depth = 0_i32;
    let mut is_use = false;
    for (at, token) in tokens.iter().enumerate() {
        match token.text.as_str() {
            "use" if depth == 0 => is_use = true,
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => {
                depth -= 1;
                if token.text == "}" && depth == 0 && !is_use {
                    return tokens.split_at(at + 1);
                }
            }
            ";" if depth == 0 => return tokens.split_at(at + 1),
            _ => {}
        }
    }
    (tokens, &[])
}

fn declared_module(item: &[Token]) -> Option<String> {
    match item {
        [.., module, name, end] if module.text == "mod" && end.text == ";" => Some(name.text.clone()),
        _ => None,
    }
}

/// Every path in the tokens; `use` trees are written out in full.
pub(crate) fn paths(tokens: &[Token]) -> Vec<PathRef> {
    let mut found = Vec::new();
    let mut rest = tokens;
    while let Some((token, after)) = rest.split_first() {
        rest = after;
        if token.text == "use" {
            let end = after.iter().position(|token| token.text == ";").unwrap_or(after.len());
            let (mut tree, remaining) = after.split_at(end);
            use_tree(&mut tree, &[], &mut found);
            rest = remaining;
        } else if is_word(&token.text) {
            let mut segments = vec![token.text.clone()];
            while let [colons, next, remaining @ ..] = rest {
                if colons.text != "::" || !is_word(&next.text) {
                    break;
                }
                segments.push(next.text.clone());
                rest = remaining;
            }
            if segments.len() > 1 {
                found.push(PathRef { line: token.line, segments });
            }
        }
    }
    found
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Reads one branch of a `use` tree up to a `,`, a `}` or the end.
fn use_tree(rest: &mut &[Token], prefix: &[String], found: &mut Vec<PathRef>) {
    let mut segments = prefix.to_vec();
    let mut line = 0;
    while let Some((token, after)) = rest.split_first() {
        line = token.line;
        match token.text.as_str() {
            "}" | "," => break,
            "::" => *rest = after,
            "as" => *rest = after.get(1..).unwrap_or_default(),
            "{" => {
                *rest = after;
                while rest.first().is_some_and(|token| token.text != "}") {
                    use_tree(rest, &segments, found);
                    if rest.first().is_some_and(|token| token.text == ",") {
                        *rest = rest.get(1..).unwrap_or_default();
                    }
                }
                *rest = rest.get(1..).unwrap_or_default();
                return;
            }
            "self" if !segments.is_empty() => *rest = after,
            word => {
                segments.push(word.to_owned());
                *rest = after;
            }
        }
    }
    found.push(PathRef { line, segments });
}
