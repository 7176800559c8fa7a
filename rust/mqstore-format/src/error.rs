//! Errors of decoders and encoders.
//!
//! Every decoder of this crate returns a value or a [`FormatError`]. None panics, and none allocates more than its
//! input (or the given limit) justifies. An error names the part that was read and the numbers that disagree. The
//! caller adds the file and the offset.

use std::fmt;

/// The reason why bytes do not decode, or why a value cannot be encoded.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The bytes end before the value. At the tail of a live log this means "not yet".
    #[error("{what}: {needed} bytes needed, {available} available")]
    Truncated {
        /// The part that was read.
        what: &'static str,
        /// Byte length of the value.
        needed: usize,
        /// Available bytes.
        available: usize,
    },
    /// The four magic bytes belong to no kind of record.
    #[error("magic 0x{found:08x} is not a record magic")]
    BadMagic {
        /// The bytes found, big-endian.
        found: u32,
    },
    /// A length or count field is negative, too large for its container, or contradicts other fields.
    #[error("{what} is {value}, but the limit is {limit}")]
    BadLength {
        /// The field.
        what: &'static str,
        /// Its value.
        value: i64,
        /// The largest possible value (or, for a minimum, the smallest).
        limit: i64,
    },
    /// The body does not match the checksum in the record's header.
    #[error("body CRC is 0x{actual:08x}, the record says 0x{expected:08x}")]
    BodyCrc {
        /// The stored checksum.
        expected: u32,
        /// The checksum of the bytes.
        actual: u32,
    },
    /// The record does not match the checksum in its `__CRC32#` property.
    #[error("record CRC is {actual}, the __CRC32# property says {expected}")]
    PropertyCrc {
        /// The stored checksum.
        expected: u32,
        /// The checksum of the bytes.
        actual: u32,
    },
    /// A property that cannot be written, or a stored one that does not decode.
    #[error("property {name:?}: {reason}")]
    BadProperty {
        /// The property's name, or the known part of it.
        name: String,
        /// The reason.
        reason: &'static str,
    },
    /// Text is not UTF-8.
    #[error("{what} is not UTF-8")]
    BadUtf8 {
        /// The text.
        what: &'static str,
    },
    /// A topic name that is not allowed.
    #[error("topic {topic:?}: {reason}")]
    InvalidTopic {
        /// The name, shortened if very long.
        topic: String,
        /// The rule it breaks.
        reason: &'static str,
    },
    /// A value that exceeds its field or the given limit.
    #[error("{what} has {value} bytes, but the limit is {limit}")]
    TooLarge {
        /// The value.
        what: &'static str,
        /// Its size; a lower bound if the size is known only after the decompression.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// A compressed body that cannot be decompressed.
    #[error("{kind} body: {reason}")]
    Compression {
        /// `zlib`, `lz4`, `zstd` or `unknown`.
        kind: &'static str,
        /// The decoder's message.
        reason: String,
    },
    /// A side file that is not JSON of the expected form.
    #[error("JSON at byte {position}: {reason}")]
    Json {
        /// Byte position in the text; 0 if the text is valid JSON with a wrong value.
        position: usize,
        /// The reason.
        reason: String,
    },
    /// A file name, an id or another short text of the wrong form.
    #[error("{name:?} is not {what}")]
    BadName {
        /// The required form, for example `an offset message id`.
        what: &'static str,
        /// The text, shortened if very long.
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

/// Shortens an external text for an error message.
pub(crate) fn shortened(text: &str) -> String {
    const LIMIT_CHARS: usize = 120;
    match text.char_indices().nth(LIMIT_CHARS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
    }
}
