//! What can be wrong with bytes, as values.
//!
//! Every decoder of this crate ends in a value or in a [`FormatError`]; none panics, and none allocates
//! more than its input (or the limit it was given) justifies. An error says what was being read and which
//! numbers disagreed; it knows neither file nor position, which the caller adds.

use std::fmt;

/// Why bytes are not what they should be, or why a value cannot be written.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The bytes end before the value does. At the tail of a live log this means "not yet".
    #[error("{what}: {needed} bytes needed, {available} available")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Bytes the value takes.
        needed: usize,
        /// Bytes that were there.
        available: usize,
    },
    /// The four bytes that name the kind of a record name none.
    #[error("magic 0x{found:08x} is not that of a record")]
    BadMagic {
        /// The bytes found, big-endian.
        found: u32,
    },
    /// A length or count field is negative, too large for what contains it, or disagrees with the others.
    #[error("{what} is {value}, which does not go with the limit {limit}")]
    BadLength {
        /// The field.
        what: &'static str,
        /// Its value.
        value: i64,
        /// The largest (or, for a minimum, the smallest) value possible there.
        limit: i64,
    },
    /// The body does not have the checksum of the record's header.
    #[error("body CRC is 0x{actual:08x}, the record says 0x{expected:08x}")]
    BodyCrc {
        /// The stored checksum.
        expected: u32,
        /// The checksum of the bytes.
        actual: u32,
    },
    /// The record does not have the checksum of its `__CRC32#` property.
    #[error("record CRC is {actual}, the __CRC32# property says {expected}")]
    PropertyCrc {
        /// The stored checksum.
        expected: u32,
        /// The checksum of the bytes.
        actual: u32,
    },
    /// A property cannot be written, or a stored one cannot be understood.
    #[error("property {name:?}: {reason}")]
    BadProperty {
        /// The property's name, or as much of it as is known.
        name: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// Text is not UTF-8.
    #[error("{what} is not UTF-8")]
    BadUtf8 {
        /// The text.
        what: &'static str,
    },
    /// A topic name that must not be used.
    #[error("topic {topic:?}: {reason}")]
    InvalidTopic {
        /// The name, shortened when very long.
        topic: String,
        /// The rule it breaks.
        reason: &'static str,
    },
    /// A value is larger than its field or than the limit given.
    #[error("{what} is {value} bytes, at most {limit} are possible")]
    TooLarge {
        /// The value.
        what: &'static str,
        /// Its size; a lower bound where the size is found out by producing it.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// A compressed body that cannot be decompressed.
    #[error("{kind} body: {reason}")]
    Compression {
        /// `zlib`, `lz4`, `zstd` or `unknown`.
        kind: &'static str,
        /// What the decoder said.
        reason: String,
    },
    /// A side file that is not JSON of the expected form.
    #[error("JSON at byte {position}: {reason}")]
    Json {
        /// Byte position in the text; 0 for errors of meaning.
        position: usize,
        /// What is wrong.
        reason: String,
    },
    /// A file name, an id or another short text that does not have the required form.
    #[error("{name:?} is not {what}")]
    BadName {
        /// The form required, for example `an offset message id`.
        what: &'static str,
        /// The text, shortened when very long.
        name: String,
    },
}

impl FormatError {
    pub(crate) fn compression(kind: &'static str, reason: impl fmt::Display) -> Self {
        Self::Compression { kind, reason: reason.to_string() }
    }

    pub(crate) fn decompressed_too_large(limit_bytes: usize) -> Self {
        let limit = limit_bytes as u64;
        Self::TooLarge { what: "decompressed body", value: limit.saturating_add(1), limit }
    }

    pub(crate) fn bad_property(name: &str, reason: &'static str) -> Self {
        Self::BadProperty { name: shortened(name), reason }
    }

    pub(crate) fn bad_name(what: &'static str, name: &str) -> Self {
        Self::BadName { what, name: shortened(name) }
    }

    pub(crate) fn invalid_topic(topic: &str, reason: &'static str) -> Self {
        Self::InvalidTopic { topic: shortened(topic), reason }
    }

    pub(crate) fn json(position: usize, reason: impl Into<String>) -> Self {
        Self::Json { position, reason: reason.into() }
    }
}

/// Texts from outside are quoted in errors, but not by the megabyte.
pub(crate) fn shortened(text: &str) -> String {
    const LIMIT_CHARS: usize = 120;
    match text.char_indices().nth(LIMIT_CHARS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
    }
}
