//! Messages before an append, and records after a read.
//!
//! Owns the rules for keys, tags, properties and topic names, and the owned form of a stored record. That form keeps
//! the bytes of the record alive, in a mapping or in a buffer that was read.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use mqstore_format::properties as names;
use mqstore_format::{MadeKey, PropertiesBuilder, RecordView, SqlFilter, SysFlag, is_reserved, java_hash};
use mqstore_io::RegionView;

use crate::error::StoreError;

/// A message to append.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewMessage<'a> {
    /// The topic; 1 to 127 characters of `%|a-zA-Z0-9_-` (255 for retry and dead-letter topics).
    pub topic: &'a str,
    /// The body in its stored form, any bytes up to `max_message_bytes`.
    pub body: &'a [u8],
    /// How the body is compressed; other bits are not kept. For a copy, its origin says it.
    pub sys_flag: SysFlag,
    /// The properties in RocketMQ's text form, including keys and tags; [`encode_properties`] makes them.
    pub properties: &'a [u8],
    /// The unique key, if the caller gives one (then it is also in `properties`); else the store makes one.
    pub unique_key: Option<&'a str>,
    /// The queue; with `None`, the store uses the queues of the topic in turn.
    pub queue_id: Option<i32>,
    /// The flag of the application.
    pub flag: i32,
    /// When the message was made, in epoch milliseconds; `None` means now.
    pub born_timestamp_ms: Option<i64>,
    /// Whether the append waits for a sync, whatever the durability mode of the store.
    pub durable: bool,
}

/// The result of an append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The queue.
    pub queue_id: i32,
    /// The offset in the queue.
    pub queue_offset: i64,
    /// The log offset, in bytes.
    pub commit_log_offset: u64,
    /// Size of the record in bytes.
    pub size: u32,
    /// When the record was stored, in epoch milliseconds.
    pub store_timestamp_ms: i64,
    /// Whether a sync covers the record.
    pub durable: bool,
    /// The unique key of the message.
    pub unique_id: UniqueKey,
}

impl Appended {
    /// Returns the log offset at which the record ends.
    pub fn log_end(&self) -> u64 {
        self.commit_log_offset + u64::from(self.size)
    }
}

/// The unique key of a message, made by the store or given by the caller. Two keys are equal if their text is equal.
#[derive(Clone)]
pub enum UniqueKey {
    /// Made by the store.
    Made(MadeKey),
    /// Given by the caller.
    Given(Box<str>),
}

impl UniqueKey {
    /// The key as text.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Made(key) => key.as_str(),
            Self::Given(key) => key,
        }
    }
}

impl PartialEq for UniqueKey {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for UniqueKey {}

impl fmt::Debug for UniqueKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), formatter)
    }
}

impl fmt::Display for UniqueKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl From<String> for UniqueKey {
    fn from(key: String) -> Self {
        Self::Given(key.into())
    }
}

/// Returns what to do instead of setting a reserved property.
fn advice_for_reserved(name: &str) -> String {
    let argument = match name {
        names::KEYS => "keys",
        names::TAGS => "tags",
        names::DELAY => "delay_level",
        names::TIMER_DELIVER_MS => "deliver_at",
        names::TIMER_DELAY_SEC | names::TIMER_DELAY_MS => "delay",
        names::INNER_MULTI_DISPATCH => "light_queues",
        _ => return "the store sets it".to_owned(),
    };
    format!("use the argument {argument}")
}

/// Encodes keys, tags and properties in RocketMQ's text form and checks them.
///
/// `unique_key` is the caller's `UNIQ_KEY`, if any. `properties` must not contain reserved names.
///
/// # Errors
/// [`StoreError::InvalidMessage`] for an empty key, a key with a space, a separator byte in any text,
/// an empty value, a reserved name, or a tag that no tag filter can name.
pub fn encode_properties<'a>(
    keys: impl IntoIterator<Item = &'a str>,
    tags: Option<&str>,
    unique_key: Option<&str>,
    properties: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<Vec<u8>, StoreError> {
    let mut text = Vec::new();
    push_properties(&mut text, keys, tags, unique_key, properties)?;
    Ok(text)
}

/// Like [`encode_properties`]; adds the text form to the end of `text`. After an error, `text` is as before.
///
/// # Errors
/// Those of [`encode_properties`].
pub fn push_properties<'a>(
    text: &mut Vec<u8>,
    keys: impl IntoIterator<Item = &'a str>,
    tags: Option<&str>,
    unique_key: Option<&str>,
    properties: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<(), StoreError> {
    let mut builder = PropertiesBuilder::after(std::mem::take(text));
    let pushed = push_all(&mut builder, keys, tags, unique_key, properties);
    if pushed.is_err() {
        builder.clear();
    }
    *text = builder.finish();
    pushed
}

fn push_all<'a>(
    builder: &mut PropertiesBuilder,
    keys: impl IntoIterator<Item = &'a str>,
    tags: Option<&str>,
    unique_key: Option<&str>,
    properties: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<(), StoreError> {
    let mut joined = Cow::Borrowed("");
    for key in keys {
        check_key(key)?;
        if joined.is_empty() {
            joined = Cow::Borrowed(key);
        } else {
            let joined = joined.to_mut();
            joined.push(' ');
            joined.push_str(key);
        }
    }
    for (name, value) in properties {
        if is_reserved(name) {
            return Err(invalid(format!("property {name:?} is reserved; {}", advice_for_reserved(name))));
        }
        check_text("property name", name)?;
        check_text("property value", value)?;
        builder.push(name, value).map_err(|error| invalid(error.to_string()))?;
    }
    for (name, value) in [
        (names::UNIQ_KEY, unique_key),
        (names::KEYS, (!joined.is_empty()).then_some(&*joined)),
        (names::TAGS, tags),
    ] {
        if let Some(value) = value {
            check_text(name, value)?;
            if name == names::TAGS {
                check_tag(value)?;
            }
            builder.push_reserved(name, value).map_err(|error| invalid(error.to_string()))?;
        }
    }
    Ok(())
}

fn invalid(reason: String) -> StoreError {
    StoreError::InvalidMessage { reason }
}

fn check_key(key: &str) -> Result<(), StoreError> {
    if key.contains(' ') {
        return Err(invalid(format!(
            "key {key:?} contains a space, which separates keys; give several keys as a list"
        )));
    }
    check_text("key", key)
}

/// Checks that a filter with the text of the tag selects it; see [`TagFilter::parse`].
fn check_tag(tag: &str) -> Result<(), StoreError> {
    if !tag.contains("||") && tag.trim() == tag {
        return Ok(());
    }
    let reason = "no tag filter can name it: \"||\" separates the tags of a filter, and blanks around a tag are \
                  ignored";
    Err(invalid(format!("tag {tag:?} cannot be stored: {reason}")))
}

fn check_text(what: &str, text: &str) -> Result<(), StoreError> {
    if text.is_empty() {
        return Err(invalid(format!("{what} is empty, and RocketMQ drops an empty one; leave it out")));
    }
    if text.contains(['\u{1}', '\u{2}']) {
        return Err(invalid(format!("{what} {text:?} contains \\x01 or \\x02, which separate properties")));
    }
    Ok(())
}

/// The bytes of one record. They stay valid as long as this value lives.
#[derive(Clone)]
pub enum RecordBytes {
    /// A part of a mapped segment.
    Mapped(RegionView),
    /// A part of a buffer that was read from the file.
    Read(Arc<Vec<u8>>, Range<usize>),
}

impl RecordBytes {
    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Mapped(view) => view,
            Self::Read(buffer, range) => buffer.get(range.clone()).unwrap_or_default(),
        }
    }
}

impl fmt::Debug for RecordBytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "RecordBytes({} bytes)", self.as_slice().len())
    }
}

/// A stored record. Its structure and checksums are checked.
#[derive(Clone, Debug)]
pub struct StoredRecord {
    /// The offset in the queue that was read; for another read, the record's own queue offset.
    pub queue_offset: i64,
    /// The log offset of the record, in bytes.
    pub commit_log_offset: u64,
    bytes: RecordBytes,
}

impl StoredRecord {
    /// Makes a record from bytes that decode.
    ///
    /// # Errors
    /// Returns the format error of bytes that do not decode.
    pub fn new(
        bytes: RecordBytes,
        commit_log_offset: u64,
        queue_offset: Option<i64>,
    ) -> Result<Self, mqstore_format::FormatError> {
        let own = RecordView::decode(bytes.as_slice())?.queue_offset;
        Ok(Self { queue_offset: queue_offset.unwrap_or(own), commit_log_offset, bytes })
    }

    /// Like [`Self::new`], for bytes that the caller has decoded.
    pub fn decoded(bytes: RecordBytes, commit_log_offset: u64, queue_offset: i64) -> Self {
        Self { queue_offset, commit_log_offset, bytes }
    }

    /// The stored bytes, from the size field to the end of the properties.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_slice()
    }

    /// The decoded fields, borrowed from the bytes.
    ///
    /// # Errors
    /// Never in practice: the bytes were decoded when this value was made, and they cannot change.
    pub fn view(&self) -> Result<RecordView<'_>, mqstore_format::FormatError> {
        RecordView::decode(self.bytes())
    }
}

/// The condition that selects the messages of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageFilter {
    /// Messages that have one of the tags.
    Tags(TagFilter),
    /// Messages whose properties meet a condition.
    Sql(Arc<SqlFilter>),
}

impl MessageFilter {
    /// Returns a filter by tags, parsed by [`TagFilter::parse`]; `None` means all messages.
    ///
    /// # Errors
    /// [`StoreError::InvalidFilter`] if the expression names no tag.
    pub fn tags(expression: &str) -> Result<Option<Self>, StoreError> {
        Ok(TagFilter::parse(expression)?.map(Self::Tags))
    }

    /// Like [`Self::tags`], for an expression that a person wrote. Refuses expressions that RocketMQ accepts and that
    /// select nothing because of a mistake.
    ///
    /// # Errors
    /// [`StoreError::InvalidFilter`] with a suggestion: a tag is missing, tags are not separated by `||`, or the
    /// expression is a condition on properties.
    pub fn written_tags(expression: &str) -> Result<Option<Self>, StoreError> {
        check_written_tags(expression)?;
        Self::tags(expression)
    }

    /// Returns a condition on properties, parsed by [`SqlFilter::parse`].
    ///
    /// # Errors
    /// [`StoreError::InvalidFilter`] if the expression does not compile.
    pub fn sql(expression: &str) -> Result<Self, StoreError> {
        let filter = SqlFilter::parse(expression).map_err(|error| StoreError::InvalidFilter {
            expression: expression.to_owned(),
            position: error.position,
            reason: error.reason,
        })?;
        Ok(Self::Sql(Arc::new(filter)))
    }

    /// Whether a unit with this tags code can point to a match. Always true for a condition on properties.
    #[inline]
    pub fn may_match_code(&self, tags_code: i64) -> bool {
        match self {
            Self::Tags(tags) => tags.may_match_code(tags_code),
            Self::Sql(_) => true,
        }
    }

    /// Whether a record matches.
    #[inline]
    pub fn matches(&self, record: &RecordView<'_>) -> bool {
        match self {
            Self::Tags(tags) => tags.matches(record.tags()),
            Self::Sql(sql) => sql.matches(record.properties),
        }
    }
}

/// Checks a tag expression for mistakes; see [`MessageFilter::written_tags`].
fn check_written_tags(expression: &str) -> Result<(), StoreError> {
    if expression.split("||").all(|part| part.trim().is_empty()) {
        return Ok(());
    }
    let mut start = 0;
    for part in expression.split("||") {
        let tag = part.trim();
        let reason = if tag.is_empty() {
            "a tag is missing; write \"a || b\"".to_owned()
        } else if looks_like_condition(tag) {
            format!(
                "it looks like a condition on properties; write mqstore.sql({expression:?}), or --sql on the command \
                 line"
            )
        } else if tag.starts_with('|') || tag.ends_with('|') || tag.contains(" | ") || tag.contains("&&") {
            "tags are separated by \"||\"; write \"a || b\"".to_owned()
        } else {
            start += part.len() + "||".len();
            continue;
        };
        let before = expression.get(..start).unwrap_or_default();
        let blanks = part.chars().take_while(|c| c.is_whitespace()).count();
        let position = before.chars().count() + if tag.is_empty() { 0 } else { blanks };
        return Err(StoreError::InvalidFilter { expression: expression.to_owned(), position, reason });
    }
    Ok(())
}

/// Whether a tag is probably a condition on properties. One or two words (`not yet`) are a tag, and so are words that do
/// not compile.
fn looks_like_condition(tag: &str) -> bool {
    let compares = tag.contains(['<', '>', '=']);
    if !compares && tag.split_whitespace().count() <= 2 {
        return false;
    }
    let compiles = SqlFilter::parse(tag).is_ok_and(|filter| filter.ignored().is_none());
    compiles || [" <", " >", " =", " !="].iter().any(|operator| tag.contains(operator))
}

/// A tag expression: `*`, or tags joined by `||`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagFilter {
    tags: Vec<(i32, String)>,
}

impl fmt::Display for TagFilter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (_, tag)) in self.tags.iter().enumerate() {
            write!(out, "{}{tag}", if index > 0 { "||" } else { "" })?;
        }
        Ok(())
    }
}

impl TagFilter {
    /// Parses `expression`; `None` means all messages (`*` or empty).
    ///
    /// Source: `FilterAPI#buildSubscriptionData`.
    ///
    /// # Errors
    /// [`StoreError::InvalidFilter`] if the expression names no tag.
    pub fn parse(expression: &str) -> Result<Option<Self>, StoreError> {
        let expression = expression.trim();
        if expression.is_empty() || expression == "*" {
            return Ok(None);
        }
        let tags: Vec<_> = expression
            .split("||")
            .map(str::trim)
            .filter(|tag| !tag.is_empty())
            .map(|tag| (java_hash(tag), tag.to_owned()))
            .collect();
        if tags.is_empty() {
            return Err(StoreError::InvalidFilter {
                expression: expression.to_owned(),
                position: 0,
                reason: "no tag is named; write \"a || b\" or \"*\"".to_owned(),
            });
        }
        Ok(Some(Self { tags }))
    }

    /// Whether a unit with this tags code can point to a match. If the code is no hash (it is the due time of a
    /// message, or a position in RocketMQ's `consumequeue_ext/`), this is true and the record decides.
    pub fn may_match_code(&self, tags_code: i64) -> bool {
        i32::try_from(tags_code).map_or(true, |code| self.tags.iter().any(|(hash, _)| *hash == code))
    }

    /// Whether a record's tags match.
    pub fn matches(&self, tags: Option<&str>) -> bool {
        tags.is_some_and(|tags| self.tags.iter().any(|(_, tag)| tag == tags))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_several_messages_share_a_buffer() {
        let mut text = Vec::new();
        push_properties(&mut text, ["k", "l"], Some("t"), None, [("a", "b")]).unwrap();
        let first = text.clone();
        assert_eq!(first, b"a\x01b\x02KEYS\x01k l\x02TAGS\x01t\x02");
        assert!(push_properties(&mut text, ["k"], Some(""), None, [("a", "b")]).is_err());
        assert_eq!(text, first, "after an error the text is as before");
        push_properties(&mut text, ["m"], None, Some("id"), []).unwrap();
        assert_eq!(text.get(first.len()..).unwrap(), b"UNIQ_KEY\x01id\x02KEYS\x01m\x02");
    }
}
