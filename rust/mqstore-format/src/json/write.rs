//! Writes values as text, in the layout of RocketMQ's library.

use std::fmt::Write;

use serde_json::{Map, Value};

/// The layout of the text. Every RocketMQ reads both.
///
/// ```text
/// RocketMQ 5.3                      RocketMQ 5.5
/// "offsetTable":{                   "offsetTable":{
/// TAB "t1@g1":{0:12,1:2             TAB "t1@g1":{
/// TAB }                             TAB TAB 0:12,
///                                   TAB TAB 1:2
///                                   TAB }
/// ```
///
/// Members of an object are in alphabetical order. Keys of a table are too; RocketMQ writes them in the order of its
/// hash maps. The text is UTF-8, with tabs and without a final line break.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// RocketMQ up to 5.3 (fastjson 1): entries with integer keys and sets on one line.
    #[default]
    Rocketmq53,
    /// RocketMQ 5.5 (fastjson 2): always one entry per line.
    Rocketmq55,
}

/// A tree to write.
#[derive(PartialEq)]
pub(super) enum Node {
    /// Any JSON value.
    Plain(Value),
    /// An object; members in the order given.
    Object(Vec<(String, Node)>),
    /// An object with integer keys, which have no quotes.
    Numbered(Vec<(i32, Node)>),
    /// An array for a Java set.
    Set(Vec<String>),
}

impl Node {
    /// Creates an object whose members, known and unknown, are in alphabetical order, like those of a Java bean.
    pub(super) fn bean(known: Vec<(&str, Self)>, unknown: &Map<String, Value>) -> Self {
        let mut members: Vec<(String, Self)> =
            known.into_iter().map(|(name, node)| (name.to_owned(), node)).collect();
        for (name, value) in unknown {
            members.push((name.clone(), Self::Plain(value.clone())));
        }
        members.sort_by(|a, b| a.0.cmp(&b.0));
        Self::Object(members)
    }

    /// Returns the members of this object that `plain` lacks, or has with another value, as JSON on one line.
    pub(super) fn differing(self, plain: &Self) -> String {
        let (Self::Object(members), Self::Object(usual)) = (self, plain) else { return "{}".to_owned() };
        let others = members.into_iter().filter(|member| !usual.contains(member));
        Value::Object(others.map(|(name, node)| (name, node.into_value())).collect()).to_string()
    }

    fn into_value(self) -> Value {
        match self {
            Self::Plain(value) => value,
            Self::Object(members) => {
                Value::Object(members.into_iter().map(|(name, node)| (name, node.into_value())).collect())
            }
            Self::Numbered(entries) => Value::Object(
                entries.into_iter().map(|(id, node)| (id.to_string(), node.into_value())).collect(),
            ),
            Self::Set(items) => items.into(),
        }
    }

    pub(super) fn object<K: Into<String>>(entries: impl Iterator<Item = (K, Self)>) -> Self {
        Self::Object(entries.map(|(name, node)| (name.into(), node)).collect())
    }

    pub(super) fn numbered<'a>(entries: impl IntoIterator<Item = (&'a i32, &'a i64)>) -> Self {
        Self::Numbered(entries.into_iter().map(|(id, value)| (*id, Self::from(*value))).collect())
    }
}

impl From<i64> for Node {
    fn from(number: i64) -> Self {
        Self::Plain(number.into())
    }
}

impl From<i32> for Node {
    fn from(number: i32) -> Self {
        Self::Plain(number.into())
    }
}

impl From<bool> for Node {
    fn from(value: bool) -> Self {
        Self::Plain(value.into())
    }
}

impl From<&String> for Node {
    fn from(text: &String) -> Self {
        Self::Plain(text.clone().into())
    }
}

impl Dialect {
    /// Returns the layout of `text`; `None` if both layouts are possible.
    pub fn of(text: &[u8]) -> Option<Self> {
        text.iter().enumerate().find_map(|(at, byte)| {
            let rest = text.get(at + 1..).unwrap_or_default();
            let space = rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            let next = rest.get(space)?;
            let tells = match byte {
                b'{' => next.is_ascii_digit() || *next == b'-',
                b'[' => *next == b'"',
                _ => false,
            };
            tells.then_some(if space == 0 { Self::Rocketmq53 } else { Self::Rocketmq55 })
        })
    }

    /// Returns the whole text.
    pub(super) fn write(self, node: &Node) -> String {
        let mut writer = Writer { dialect: self, out: String::new(), indent: 0 };
        writer.node(node);
        writer.out
    }
}

struct Writer {
    dialect: Dialect,
    out: String,
    indent: usize,
}

impl Writer {
    fn node(&mut self, node: &Node) {
        match node {
            Node::Plain(value) => self.value(value),
            Node::Object(members) => {
                let members = members.iter().map(|(name, node)| (name.as_str(), node));
                self.block('{', members, '}', |writer, (name, node)| {
                    writer.text(name);
                    writer.out.push(':');
                    writer.node(node);
                });
            }
            Node::Numbered(entries) if self.dialect == Dialect::Rocketmq55 => {
                self.block('{', entries.iter(), '}', Self::numbered_entry);
            }
            Node::Numbered(entries) if entries.is_empty() => self.out.push_str("{}"),
            Node::Numbered(entries) => {
                self.out.push('{');
                self.indent += 1;
                self.one_line(entries.iter(), Self::numbered_entry);
                self.indent -= 1;
                self.line_break();
                self.out.push('}');
            }
            Node::Set(items) if self.dialect == Dialect::Rocketmq55 => {
                self.block('[', items.iter(), ']', |writer, item| writer.text(item));
            }
            Node::Set(items) => {
                self.out.push('[');
                self.one_line(items.iter(), |writer, item| writer.text(item));
                self.out.push(']');
            }
        }
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Null => self.out.push_str("null"),
            Value::Bool(value) => self.out.push_str(if *value { "true" } else { "false" }),
            Value::Number(number) => self.out.push_str(&number.to_string()),
            Value::String(text) => self.text(text),
            Value::Array(items) => self.block('[', items.iter(), ']', Self::value),
            // Java leaves out members without a value.
            Value::Object(members) => {
                let present = members.iter().filter(|(_, value)| !value.is_null());
                self.block('{', present, '}', |writer, (name, value)| {
                    writer.text(name);
                    writer.out.push(':');
                    writer.value(value);
                });
            }
        }
    }

    fn numbered_entry(&mut self, (id, node): &(i32, Node)) {
        self.out.push_str(&id.to_string());
        self.out.push(':');
        self.node(node);
    }

    /// Writes one item per line, between brackets on their own lines. Without items it writes no lines.
    fn block<T>(
        &mut self,
        open: char,
        items: impl Iterator<Item = T>,
        close: char,
        each: impl Fn(&mut Self, T),
    ) {
        self.out.push(open);
        self.indent += 1;
        let mut empty = true;
        for item in items {
            if !empty {
                self.out.push(',');
            }
            empty = false;
            self.line_break();
            each(self, item);
        }
        self.indent -= 1;
        if !empty {
            self.line_break();
        }
        self.out.push(close);
    }

    fn one_line<T>(&mut self, items: impl Iterator<Item = T>, each: impl Fn(&mut Self, T)) {
        for (at, item) in items.enumerate() {
            if at > 0 {
                self.out.push(',');
            }
            each(self, item);
        }
    }

    fn line_break(&mut self) {
        self.out.push('\n');
        self.out.extend(std::iter::repeat_n('\t', self.indent));
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                _ if self.is_escaped(c) => self.unicode_escape(c),
                _ => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn is_escaped(&self, c: char) -> bool {
        match self.dialect {
            Dialect::Rocketmq53 => {
                matches!(c, '\0'..'\u{20}' | '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}')
            }
            Dialect::Rocketmq55 => c < '\u{20}',
        }
    }

    /// The older library writes upper-case digits, the newer one lower-case.
    fn unicode_escape(&mut self, c: char) {
        let unit = u32::from(c);
        let written = match self.dialect {
            Dialect::Rocketmq53 => write!(self.out, "\\u{unit:04X}"),
            Dialect::Rocketmq55 => write!(self.out, "\\u{unit:04x}"),
        };
        debug_assert!(written.is_ok(), "a write to a string cannot fail");
    }
}
