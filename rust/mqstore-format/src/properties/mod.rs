//! The properties of a record: text, `name 0x01 value 0x02` repeated, the last `0x02` included.
//!
//! ```text
//! 54 41 47 53 01 54 61 67 41 02    T A G S 01 T a g A 02
//! ```
//!
//! There is no escaping, so a name or value with either byte cannot be stored; the builder refuses it. Reading follows
//! Java: the last `0x02` may be missing; an entry without a name, without `0x01` or with an empty value is ignored; a
//! value may contain further `0x01`; of two entries with one name, the later counts. Source:
//! `MessageDecoder#messageProperties2String`, `#string2messageProperties`.

use std::borrow::Cow;

use crate::error::FormatError;

/// Maximum length of the properties text, including the CRC property, in bytes: the length is a signed 16-bit number.
pub const MAX_PROPERTIES_BYTES: usize = 32_767;
/// Byte length of the `__CRC32#` property: 8 bytes name, `0x01`, 10 digits, `0x02`.
pub const PROPERTY_CRC_BYTES: usize = 20;

/// Separates name and value.
pub const NAME_VALUE_SEPARATOR: u8 = 0x01;
/// Ends an entry.
pub const SEPARATOR: u8 = 0x02;

/// Defines names as constants and collects them in a list.
macro_rules! names {
    ($list:ident: $($(#[$doc:meta])* $constant:ident = $name:literal;)*) => {
        $($(#[$doc])* pub const $constant: &str = $name;)*
        const $list: &[&str] = &[$($constant),*];
    };
}

names! {
    RESERVED:
    /// Index keys, separated by single spaces.
    KEYS = "KEYS";
    /// Tags; their hash is the third field of the queue unit.
    TAGS = "TAGS";
    /// The producer's id of the message; indexed.
    UNIQ_KEY = "UNIQ_KEY";
    /// `false`: do not wait for the disk.
    WAIT = "WAIT";
    /// Delay level, from 1.
    DELAY = "DELAY";
    /// The original topic of a retried message.
    RETRY_TOPIC = "RETRY_TOPIC";
    /// The real topic of a delayed or half message.
    REAL_TOPIC = "REAL_TOPIC";
    /// The real queue of a delayed or half message.
    REAL_QID = "REAL_QID";
    /// `true` on half messages.
    TRAN_MSG = "TRAN_MSG";
    /// Producer group.
    PGROUP = "PGROUP";
    /// The id of the first attempt of a retried message.
    ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID";
    /// Number of retries.
    RECONSUME_TIME = "RECONSUME_TIME";
    /// Maximum number of retries.
    MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES";
    /// Messages in an inner batch.
    INNER_NUM = "INNER_NUM";
    /// Base queue offset of an inner batch.
    INNER_BASE = "INNER_BASE";
    /// Names of the light queues that also get the record, comma-separated.
    INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH";
    /// Offsets in those queues, comma-separated.
    INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET";
    /// Replication marker of duplication mode.
    DUP_INFO = "DUP_INFO";
    /// Checksum of the whole record; always the last property.
    PROPERTY_CRC = "__CRC32#";
    /// Cluster that received the message.
    CLUSTER = "CLUSTER";
    /// Region that received the message.
    MSG_REGION = "MSG_REGION";
    /// Tracing switch.
    TRACE_ON = "TRACE_ON";
    /// Minimum offset of the queue, added for consumers.
    MIN_OFFSET = "MIN_OFFSET";
    /// Maximum offset of the queue, added for consumers.
    MAX_OFFSET = "MAX_OFFSET";
    /// Historic.
    BUYER_ID = "BUYER_ID";
    /// Historic.
    TRANSFER_FLAG = "TRANSFER_FLAG";
    /// Historic.
    CORRECTION_FLAG = "CORRECTION_FLAG";
    /// Historic.
    MQ2_FLAG = "MQ2_FLAG";
    /// Further producer information.
    EXTEND_UNIQ_INFO = "EXTEND_UNIQ_INFO";
    /// The time at which a consumer started.
    CONSUME_START_TIME = "CONSUME_START_TIME";
    /// Queue offset of a half message.
    TRAN_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET";
    /// Namespace.
    INSTANCE_ID = "INSTANCE_ID";
    /// Request-reply.
    CORRELATION_ID = "CORRELATION_ID";
    /// Request-reply.
    REPLY_TO_CLIENT = "REPLY_TO_CLIENT";
    /// Request-reply.
    TTL = "TTL";
    /// Request-reply.
    ARRIVE_TIME = "ARRIVE_TIME";
    /// Request-reply.
    PUSH_REPLY_TIME = "PUSH_REPLY_TIME";
    /// Message type.
    MSG_TYPE = "MSG_TYPE";
    /// Handle of a popped message.
    POP_CK = "POP_CK";
    /// Handle of a popped message.
    POP_CK_OFFSET = "POP_CK_OFFSET";
    /// The time at which a message was first popped.
    FIRST_POP_TIME = "1ST_POP_TIME";
    /// The producer's address, written by gateways.
    BORN_HOST = "__BORNHOST";
    /// The producer's time, written by gateways.
    BORN_TIMESTAMP = "BORN_TIMESTAMP";
    /// Timer messages: the delivery time.
    TIMER_DELIVER_MS = "TIMER_DELIVER_MS";
    /// Timer messages: the delay in seconds.
    TIMER_DELAY_SEC = "TIMER_DELAY_SEC";
    /// Timer messages: the delay in milliseconds.
    TIMER_DELAY_MS = "TIMER_DELAY_MS";
    /// Timer messages: the time at which they are due.
    TIMER_OUT_MS = "TIMER_OUT_MS";
    /// Timer messages: the time at which they entered the wheel.
    TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS";
    /// Timer messages: the time at which they left the wheel.
    TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS";
    /// Timer messages: rounds in the wheel.
    TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES";
    /// Timer messages: cancels the message with this key.
    TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY";
    /// Timer messages with a delay level.
    TIMER_DELAY_LEVEL = "TIMER_DELAY_LEVEL";
    /// On the message that a timer or delayed record became: the log offset of that record. It is a property of
    /// mqstore; RocketMQ treats it as a property of the application.
    TIMER_ORIGIN_OFFSET = "TIMER_ORIGIN_OFFSET";
    /// Dead letters: the original topic.
    DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC";
    /// Dead letters: the original message id.
    DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID";
    /// Priority of a message, since 5.5.
    SYS_MSG_PRIORITY = "_SYS_MSG_PRIORITY_";
    /// Light topic of a message, since 5.5.
    LITE_TOPIC = "__LITE_TOPIC";
    /// The original group of a retried message, since 5.5.
    ORIGIN_GROUP = "ORIGIN_GROUP";
}

// Names with a meaning that applications can also set.
/// Tracing context.
pub const TRACE_CONTEXT: &str = "TRACE_CONTEXT";
/// Seconds during which a half message is not checked.
pub const CHECK_IMMUNITY_TIME_IN_SECONDS: &str = "CHECK_IMMUNITY_TIME_IN_SECONDS";
/// Transaction id.
pub const TRANSACTION_ID: &str = "__transactionId__";
/// Number of checks of a half message.
pub const TRANSACTION_CHECK_TIMES: &str = "TRANSACTION_CHECK_TIMES";
/// The key by which an ordered producer chose the queue.
pub const SHARDING_KEY: &str = "__SHARDINGKEY";
/// Static topics.
pub const FORWARD_QUEUE_ID: &str = "PROPERTY_FORWARD_QUEUE_ID";
/// Static topics.
pub const REDIRECT: &str = "REDIRECT";
/// Timer messages: the reason why the last round ended.
pub const TIMER_ROLL_LABEL: &str = "TIMER_ROLL_LABEL";

/// Prefix of properties for a single hop, which are never stored.
pub const TRANSIENT_PREFIX: &str = "__RMQ.TRANSIENT.";

/// Returns whether an application must not set a property with this name. Reserved are the names that RocketMQ 5.5
/// refuses (`MessageConst.STRING_HASH_SET`), the names of inner batches, light queues and deliveries, which the store
/// interprets, and the names for a single hop.
pub fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name) || name.starts_with(TRANSIENT_PREFIX)
}

/// The properties text of a record, split on demand.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties<'a> {
    raw: &'a [u8],
}

impl<'a> Properties<'a> {
    /// Wraps the text form. Any bytes are accepted.
    pub fn new(raw: &'a [u8]) -> Self {
        Self { raw }
    }

    /// Returns the text form as stored.
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// Returns whether there are no bytes. A text with bytes can still have no valid entry.
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// Returns the entries in stored order, including duplicates. Skips entries that are not UTF-8; see
    /// [`iter_raw`](Self::iter_raw).
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        self.iter_raw().filter_map(|(name, value)| Some((utf8(name)?, utf8(value)?)))
    }

    /// Returns the entries as bytes.
    pub fn iter_raw(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        Entries::new(self.raw)
    }

    /// Returns the value of `name`, or the later one of two. `None` also for a value that is not UTF-8.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.get_raw(name).and_then(utf8)
    }

    /// Returns the value of `name` as bytes.
    pub fn get_raw(&self, name: &str) -> Option<&'a [u8]> {
        let mut found = None;
        for (entry, value) in self.iter_raw() {
            if entry == name.as_bytes() {
                found = Some(value);
            }
        }
        found
    }

    /// Returns the values of several names in one walk.
    pub fn get_many<const N: usize>(&self, names: [&str; N]) -> [Option<&'a str>; N] {
        let mut found = [None; N];
        for (entry, value) in self.iter_raw() {
            for (slot, name) in found.iter_mut().zip(names) {
                if entry == name.as_bytes() {
                    *slot = utf8(value);
                }
            }
        }
        found
    }

    /// Returns the entries of [`iter`](Self::iter) as a list.
    pub fn to_vec(&self) -> Vec<(&'a str, &'a str)> {
        self.iter().collect()
    }
}

fn utf8(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// Walks over entries, eight bytes in one step, and reads each byte once.
struct Entries<'a> {
    raw: &'a [u8],
    /// Position of the next eight bytes.
    next: usize,
    /// Top bits of the last eight bytes that may be separators and are not processed yet.
    marks: u64,
    /// Start of the current entry.
    start: usize,
}

impl<'a> Entries<'a> {
    #[inline]
    fn new(raw: &'a [u8]) -> Self {
        Self { raw, next: 0, marks: 0, start: 0 }
    }

    /// Returns the next separator and its position.
    #[inline]
    fn separator(&mut self) -> Option<(usize, u8)> {
        loop {
            while self.marks == 0 {
                self.marks = small_bytes(self.raw.get(self.next..).filter(|rest| !rest.is_empty())?);
                self.next += 8;
            }
            let first = self.marks.leading_zeros();
            self.marks &= !(1 << 63 >> first);
            let at = self.next - 8 + first as usize / 8;
            // Zeros are marked too, and are not separators.
            if let Some(byte) = self.raw.get(at).filter(|byte| **byte != 0) {
                return Some((at, *byte));
            }
        }
    }
}

/// Returns the top bit of each of the first eight bytes that is 0, 1 or 2, and no other bit.
#[inline]
fn small_bytes(bytes: &[u8]) -> u64 {
    const LOW_BITS: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    const UP_FROM_THREE: u64 = 0x7d7d_7d7d_7d7d_7d7d;
    let eight = if let Some(eight) = bytes.first_chunk() {
        *eight
    } else {
        let mut eight = [0xff; 8];
        eight.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        eight
    };
    let eight = u64::from_be_bytes(eight);
    // No carry passes from one byte to the next.
    !(((eight & LOW_BITS) + UP_FROM_THREE) | eight | LOW_BITS)
}

impl<'a> Iterator for Entries<'a> {
    type Item = (&'a [u8], &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let start = self.start;
            let (at, byte) = self.separator()?;
            self.start = at + 1;
            if byte == SEPARATOR {
                // The entry ends before any 0x01, so it has no value.
                continue;
            }
            let end = loop {
                match self.separator() {
                    Some((_, NAME_VALUE_SEPARATOR)) => {}
                    Some((end, _)) => break end,
                    None => break self.raw.len(),
                }
            };
            self.start = end + 1;
            if at > start && end > at + 1 {
                return Some((self.raw.get(start..at)?, self.raw.get(at + 1..end)?));
            }
        }
    }
}

/// Returns the text without the entries called `name`, borrowed if there are none.
///
/// An append removes a `__CRC32#` of the message before it adds its own (`MessageUtils#deleteProperty`). All other
/// bytes stay unchanged.
pub fn without_property<'a>(properties: &'a [u8], name: &str) -> Cow<'a, [u8]> {
    let is_named = |entry: &[u8]| {
        entry.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&NAME_VALUE_SEPARATOR))
    };
    if !properties.split(|byte| *byte == SEPARATOR).any(is_named) {
        return Cow::Borrowed(properties);
    }
    let kept = properties.split_inclusive(|byte| *byte == SEPARATOR).filter(|entry| !is_named(entry));
    Cow::Owned(kept.flatten().copied().collect())
}

/// The start of the CRC property.
pub(crate) const PROPERTY_CRC_HEAD: &[u8] = b"__CRC32#\x01";

/// Position of its digits.
const DIGITS: std::ops::Range<usize> = PROPERTY_CRC_HEAD.len()..PROPERTY_CRC_HEAD.len() + 10;

/// Returns the twenty bytes of the CRC property for `crc`: ten decimal digits, the last one first.
pub(crate) fn property_crc_text(crc: u32) -> [u8; PROPERTY_CRC_BYTES] {
    let mut text = *b"__CRC32#\x010000000000\x02";
    // Two halves, so that their divisions can run in parallel.
    let (mut low, mut high) = (crc % 100_000, crc / 100_000);
    if let Some((lower, higher)) = text.get_mut(DIGITS).and_then(|digits| digits.split_at_mut_checked(5)) {
        for (lower, higher) in lower.iter_mut().zip(higher) {
            (*lower, *higher) = (b'0' + (low % 10) as u8, b'0' + (high % 10) as u8);
            (low, high) = (low / 10, high / 10);
        }
    }
    text
}

/// Returns the number in the twenty bytes of a CRC property, if they are valid.
pub(crate) fn property_crc_value(text: &[u8; PROPERTY_CRC_BYTES]) -> Option<u32> {
    text.strip_prefix(PROPERTY_CRC_HEAD)?.strip_suffix(&[SEPARATOR])?;
    property_crc_digits(text)
}

/// Returns the number in the ten digits of a CRC property, whatever its name and separators are.
#[inline]
pub(crate) fn property_crc_digits(text: &[u8; PROPERTY_CRC_BYTES]) -> Option<u32> {
    let digits = text.get(DIGITS)?;
    let value = digits.iter().rev().try_fold(0u64, |value, digit| {
        digit.is_ascii_digit().then(|| value * 10 + u64::from(digit - b'0'))
    })?;
    u32::try_from(value).ok()
}

/// Appends an entry to the text form without a check: for names and values that are already checked, or copied.
pub fn push_property(text: &mut Vec<u8>, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
    text.extend_from_slice(name.as_ref());
    text.push(NAME_VALUE_SEPARATOR);
    text.extend_from_slice(value.as_ref());
    text.push(SEPARATOR);
}

/// Ours, on dead letters: the reason that a worker gave. For RocketMQ it is a property of the application.
pub const REASON: &str = "mqstore.reason";

/// Builds the text form, entry by entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PropertiesBuilder {
    text: Vec<u8>,
    /// Where the text form begins: other bytes can precede it.
    start: usize,
}

impl PropertiesBuilder {
    /// Creates a builder without entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a builder that appends the text form to other bytes. [`finish`](Self::finish) returns both.
    pub fn after(bytes: Vec<u8>) -> Self {
        Self { start: bytes.len(), text: bytes }
    }

    /// Appends a property of the application. Refuses reserved names, and everything that
    /// [`push_reserved`](Self::push_reserved) refuses.
    pub fn push(&mut self, name: &str, value: &str) -> Result<(), FormatError> {
        if is_reserved(name) {
            return Err(FormatError::bad_property(name, "the name is reserved"));
        }
        self.push_reserved(name, value)
    }

    /// Appends any property. Refuses an empty name or value, the bytes `0x01` and `0x02` in either, and a text of more
    /// than 32,767 bytes. On error nothing is appended.
    pub fn push_reserved(&mut self, name: &str, value: &str) -> Result<(), FormatError> {
        let separates =
            |text: &str| text.bytes().any(|byte| byte == NAME_VALUE_SEPARATOR || byte == SEPARATOR);
        let reason = if name.is_empty() {
            "the name is empty"
        } else if value.is_empty() {
            "the value is empty, which cannot be stored"
        } else if separates(name) || separates(value) {
            "the bytes 0x01 and 0x02 cannot be stored"
        } else {
            let entry = name.len().saturating_add(value.len()).saturating_add(2);
            let grown = self.as_bytes().len().saturating_add(entry);
            if grown > MAX_PROPERTIES_BYTES {
                let limit = MAX_PROPERTIES_BYTES as u64;
                return Err(FormatError::TooLarge { what: "properties", value: grown as u64, limit });
            }
            self.text.reserve(name.len() + value.len() + 2);
            push_property(&mut self.text, name, value);
            return Ok(());
        };
        Err(FormatError::bad_property(name, reason))
    }

    /// Returns the text so far, without the bytes before it.
    pub fn as_bytes(&self) -> &[u8] {
        self.text.get(self.start..).unwrap_or_default()
    }

    /// Returns the text, after the bytes that precede it.
    pub fn finish(self) -> Vec<u8> {
        self.text
    }

    /// Removes all entries and keeps the memory.
    pub fn clear(&mut self) {
        self.text.truncate(self.start);
    }
}

#[cfg(test)]
mod tests;
