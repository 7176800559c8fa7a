//! The fields of a record that determine its entries in queues and index, read in one pass.
//!
//! The dispatcher needs the same few fields of every record. [`RecordOutline`] is the part of a
//! [`RecordView`](super::RecordView) with these fields, decoded by the same rules. [`EntryFields`] reads each byte of
//! the properties once and remembers the positions of the values. Only used values are checked for UTF-8. The results
//! are those of [`Properties::get`]: of two entries with one name the later counts, and a value that is not UTF-8 is
//! ignored.
//!
//! Source: `CommitLog#checkMessageAndReturnSize`, `IndexService#buildIndex`.

use super::frame::Frame;
use super::{
    BODY_CRC_POSITION, BORN_HOST_POSITION, PHYSICAL_OFFSET_POSITION, PROPERTY_CRC_BYTES, QUEUE_ID_POSITION,
    QUEUE_OFFSET_POSITION,
};
use crate::bytes::field;
use crate::delay_levels::DelayLevels;
use crate::error::FormatError;
use crate::hash::{IndexHasher, crc31, java_hash, java_hash_bytes};
use crate::properties::{
    DELAY, FIRST_POP_TIME, INNER_BASE, INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET, INNER_NUM, KEYS,
    ORIGIN_MESSAGE_ID, PROPERTY_CRC, Properties, REAL_TOPIC, SEPARATOR, TAGS, UNIQ_KEY, property_crc_digits,
    property_crc_value,
};
use crate::sys_flag::{SysFlag, TransactionType};
use crate::topic::{LIGHT_QUEUE_PREFIX, RETRY_TOPIC_PREFIX, SCHEDULE_TOPIC, SYSTEM_TOPIC_PREFIX};

/// The checksums that [`RecordOutline::check_crc`] verifies.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct CrcCheck {
    /// BODYCRC against the body; an empty body is never checked, as in RocketMQ.
    pub body: bool,
    /// The `__CRC32#` property against the whole record, if it has one.
    pub property: bool,
}

impl CrcCheck {
    /// Both checksums.
    pub const ALL: Self = Self { body: true, property: true };
}

/// The part of a record that determines its entries.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RecordOutline<'a> {
    /// TOTALSIZE.
    pub size: u32,
    /// QUEUEID.
    pub queue_id: i32,
    /// QUEUEOFFSET; 0 for prepared and rollback records.
    pub queue_offset: i64,
    /// PHYSICALOFFSET: the position that the record claims. The caller compares it with the real one.
    pub physical_offset: i64,
    /// SYSFLAG.
    pub sys_flag: SysFlag,
    /// STORETIMESTAMP, epoch milliseconds of the store's clock.
    pub store_timestamp: i64,
    /// BODYCRC as stored.
    pub body_crc: u32,
    /// BODY as stored, compressed if the flag says so.
    pub body: &'a [u8],
    /// TOPIC.
    pub topic: &'a str,
    /// PROPERTIES, not yet split.
    pub properties: Properties<'a>,
    /// The whole record.
    pub bytes: &'a [u8],
}

impl<'a> RecordOutline<'a> {
    /// Decodes the record at the front of `bytes`, which may be longer. Accepts and refuses the same bytes as
    /// [`RecordView::decode`](super::RecordView::decode).
    #[inline]
    pub fn decode(bytes: &'a [u8]) -> Result<Self, FormatError> {
        let frame = Frame::of(bytes)?;
        Ok(Self {
            size: frame.record.len() as u32,
            queue_id: i32::from_be_bytes(field(frame.head, QUEUE_ID_POSITION)),
            queue_offset: i64::from_be_bytes(field(frame.head, QUEUE_OFFSET_POSITION)),
            physical_offset: i64::from_be_bytes(field(frame.head, PHYSICAL_OFFSET_POSITION)),
            sys_flag: frame.sys_flag,
            store_timestamp: frame.store_timestamp,
            body_crc: u32::from_be_bytes(field(frame.head, BODY_CRC_POSITION)),
            body: frame.body,
            topic: frame.topic,
            properties: frame.properties,
            bytes: frame.record,
        })
    }

    /// Verifies the selected checksums.
    ///
    /// A record without a `__CRC32#` property passes the property check, unless
    /// [`has_damaged_crc_name`](Self::has_damaged_crc_name). RocketMQ's `forceVerifyPropCRC` would refuse it; see
    /// [`has_property_crc`](Self::has_property_crc).
    pub fn check_crc(&self, check: CrcCheck) -> Result<(), FormatError> {
        self.compare_crc(check).map(drop)
    }

    /// Like [`check_crc`](Self::check_crc); returns whether the comparison proved that the record
    /// [`has_own_crc`](Self::has_own_crc). `false` leaves the question open.
    pub fn compare_crc(&self, check: CrcCheck) -> Result<bool, FormatError> {
        if check.body && !self.body.is_empty() {
            let actual = crc31(self.body);
            if actual != self.body_crc {
                return Err(FormatError::BodyCrc { expected: self.body_crc, actual });
            }
        }
        if check.property {
            if self.has_property_crc() {
                return self.compare_property_crc();
            }
            if self.has_damaged_crc_name() {
                let reason = "its name or separator is damaged; the digits match the record";
                return Err(FormatError::bad_property(PROPERTY_CRC, reason));
            }
        }
        Ok(false)
    }

    /// Returns whether the record ends with a `__CRC32#` property. The name alone decides: if no valid checksum follows
    /// it, the record is damaged.
    #[inline]
    pub fn has_property_crc(&self) -> bool {
        self.property_crc_tail().is_some_and(|tail| tail.starts_with(PROPERTY_CRC.as_bytes()))
    }

    /// Returns whether the record ends with a `__CRC32#` property that is well-formed, whatever its value.
    pub fn has_whole_property_crc(&self) -> bool {
        self.property_crc_tail().and_then(property_crc_value).is_some()
    }

    /// Returns whether the record ends with the ten digits of a `__CRC32#` property that match it, but the name or a
    /// separator is damaged. The digits prove that all bytes before the name are intact.
    #[inline]
    pub fn has_damaged_crc_name(&self) -> bool {
        let Some(tail) = self.property_crc_tail() else { return false };
        property_crc_digits(tail)
            .is_some_and(|digits| property_crc_value(tail).is_none() && digits == self.covered_crc())
    }

    /// Returns whether the record has a checksum of its own: a `__CRC32#` property that matches. The checksum of the
    /// record from which it was copied is none.
    pub fn has_own_crc(&self) -> bool {
        self.has_property_crc()
            && (!self.may_be_copied()
                || self.property_crc_tail().and_then(property_crc_value) == Some(self.covered_crc()))
    }

    /// Returns STOREHOST as stored: address and port of the program that wrote the record.
    pub fn store_host_bytes(&self) -> &'a [u8] {
        let start = BORN_HOST_POSITION + self.sys_flag.born_host_bytes() + size_of::<i64>();
        self.bytes.get(start..start + self.sys_flag.store_host_bytes()).unwrap_or_default()
    }

    /// Returns the checksum of all bytes before the `__CRC32#` property.
    fn covered_crc(&self) -> u32 {
        let covered = self.bytes.len().saturating_sub(PROPERTY_CRC_BYTES);
        crc31(self.bytes.get(..covered).unwrap_or_default())
    }

    fn property_crc_tail(&self) -> Option<&'a [u8; PROPERTY_CRC_BYTES]> {
        self.properties.raw().last_chunk()
    }

    /// Verifies the `__CRC32#` property; returns whether it is the checksum of this record.
    fn compare_property_crc(&self) -> Result<bool, FormatError> {
        let expected = self
            .property_crc_tail()
            .and_then(property_crc_value)
            .ok_or_else(|| FormatError::bad_property("__CRC32#", "not ten digits of a 31-bit number"))?;
        let actual = self.covered_crc();
        if actual == expected {
            return Ok(true);
        }
        if self.has_another_records_crc() {
            return Ok(false);
        }
        Err(FormatError::PropertyCrc { expected, actual })
    }

    /// Returns whether a wrong checksum may belong to the record from which this one was copied. A broker that appends
    /// no checksum copies all properties when it redelivers or delays a message. The body must be unchanged. Source:
    /// `PopReviveService#reviveRetry`, `AbstractSendMessageProcessor#consumerSendMsgBack`,
    /// `ScheduleMessageService#messageTimeUp`, `TimerMessageStore#convert`.
    #[cold]
    fn has_another_records_crc(&self) -> bool {
        self.may_be_copied() && (self.body.is_empty() || crc31(self.body) == self.body_crc)
    }

    /// Returns whether a broker may have made the record from another one, with all its properties.
    fn may_be_copied(&self) -> bool {
        let marks = self.properties.get_many([FIRST_POP_TIME, ORIGIN_MESSAGE_ID, REAL_TOPIC]);
        marks.iter().any(Option::is_some)
    }

    /// Returns the properties that determine the record's entries.
    #[inline]
    pub fn entry_fields(&self) -> EntryFields<'a> {
        EntryFields::of(self.properties)
    }

    /// Returns whether the record gets a queue unit: it is not a half message and not a rollback
    /// (`CommitLogDispatcherBuildConsumeQueue`).
    #[inline]
    pub fn dispatches_to_queue(&self) -> bool {
        matches!(self.sys_flag.transaction(), TransactionType::None | TransactionType::Commit)
    }

    /// Returns base queue offset and number of messages, if the record has both `INNER_BASE` and `INNER_NUM`.
    ///
    /// Numbers may be negative (a batch queue then drops the record). A text that is not a number, or a count of more
    /// than 16 bits, is `None`.
    pub fn inner_batch(&self) -> Option<(i64, i32)> {
        let [base, count] = self.properties.get_many([INNER_BASE, INNER_NUM]);
        Some((base?.parse().ok()?, i32::from(count?.parse::<i16>().ok()?)))
    }

    /// Returns whether the record's keys are indexed: it is not a rollback (`IndexService#buildIndex`).
    #[inline]
    pub fn indexed(&self) -> bool {
        self.sys_flag.transaction() != TransactionType::Rollback
    }
}

/// Returns the properties before the checksum, if an entry ends there.
#[inline]
fn without_crc(properties: Properties<'_>) -> Properties<'_> {
    match properties.raw().split_last_chunk::<PROPERTY_CRC_BYTES>() {
        Some((front, tail)) if front.last() == Some(&SEPARATOR) && property_crc_value(tail).is_some() => {
            Properties::new(front)
        }
        _ => properties,
    }
}

/// The properties that determine a record's entries, as bytes.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryFields<'a> {
    unique_key: Option<&'a [u8]>,
    keys: Option<&'a [u8]>,
    tags: Option<&'a [u8]>,
    delay: Option<&'a [u8]>,
    light_queues: Option<&'a [u8]>,
    light_offsets: Option<&'a [u8]>,
}

impl<'a> EntryFields<'a> {
    /// Finds them in `properties`.
    #[inline]
    pub fn of(properties: Properties<'a>) -> Self {
        const UNIQ_KEY_NAME: &[u8] = UNIQ_KEY.as_bytes();
        const KEYS_NAME: &[u8] = KEYS.as_bytes();
        const TAGS_NAME: &[u8] = TAGS.as_bytes();
        const DELAY_NAME: &[u8] = DELAY.as_bytes();
        const LIGHT_QUEUES_NAME: &[u8] = INNER_MULTI_DISPATCH.as_bytes();
        const LIGHT_OFFSETS_NAME: &[u8] = INNER_MULTI_QUEUE_OFFSET.as_bytes();
        let mut found = Self::default();
        for (name, value) in without_crc(properties).iter_raw() {
            match name {
                UNIQ_KEY_NAME => found.unique_key = Some(value),
                KEYS_NAME => found.keys = Some(value),
                TAGS_NAME => found.tags = Some(value),
                DELAY_NAME => found.delay = Some(value),
                LIGHT_QUEUES_NAME => found.light_queues = Some(value),
                LIGHT_OFFSETS_NAME => found.light_offsets = Some(value),
                _ => {}
            }
        }
        found
    }

    /// Returns the `UNIQ_KEY` property: the producer's id.
    #[inline]
    pub fn unique_key(&self) -> Option<&'a str> {
        self.unique_key.and_then(utf8)
    }

    /// Returns the `KEYS` property: keys separated by single spaces.
    #[inline]
    pub fn keys(&self) -> Option<&'a str> {
        self.keys.and_then(utf8)
    }

    /// Returns the keys for the index: `KEYS` split on single spaces, without empty parts.
    #[inline]
    pub fn key_list(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.keys().unwrap_or_default().split(' ').filter(|key| !key.is_empty())
    }

    /// Returns the `TAGS` property.
    #[inline]
    pub fn tags(&self) -> Option<&'a str> {
        self.tags.and_then(utf8)
    }

    /// Calls `visit` with the hashes of the index entries of the unique key and of each key, in this order; see
    /// [`Self::unique_key`] and [`Self::key_list`].
    #[inline]
    pub fn key_hashes(&self, hasher: IndexHasher, mut visit: impl FnMut(i32)) {
        if let Some(hash) = self.unique_key.and_then(|key| hasher.key_bytes(key)) {
            visit(hash);
        }
        let Some(keys) = self.keys else { return };
        if !keys.contains(&b' ') {
            hasher.key_bytes(keys).into_iter().for_each(visit);
        } else if utf8(keys).is_some() {
            let pieces = keys.split(|byte| *byte == b' ').filter(|key| !key.is_empty());
            pieces.filter_map(|key| hasher.key_bytes(key)).for_each(visit);
        }
    }

    /// Returns the light queues that get an entry of a record of `topic`, each with its queue offset. Their queue id is
    /// 0. Returns none unless both lists have the same length. Skips invalid names and offsets. Source:
    /// `ConsumeQueue#multiDispatchLmqQueue`.
    #[inline]
    pub fn light_queues(&self, topic: &str) -> impl Iterator<Item = (&'a str, i64)> + use<'a> {
        let lists = self.light_queues.and_then(utf8).zip(self.light_offsets.and_then(utf8));
        let lists = lists.filter(|(names, offsets)| {
            names.split(',').count() == offsets.split(',').count() && may_have_light_queues(topic)
        });
        let pairs = lists.into_iter().flat_map(|(names, offsets)| names.split(',').zip(offsets.split(',')));
        pairs.filter_map(|(name, offset)| {
            let offset = offset.parse().ok().filter(|offset| *offset >= 0)?;
            (name.starts_with(LIGHT_QUEUE_PREFIX) && !name.contains('/')).then_some((name, offset))
        })
    }

    /// Returns the third field of the queue unit of a record of `topic` that was stored at `store_timestamp`.
    ///
    /// It is the hash of the tags, or 0 without tags. For records of `SCHEDULE_TOPIC_XXXX` with a `DELAY` above 0 it is
    /// the delivery time by `levels`. A `DELAY` that is not a number counts as none (RocketMQ refuses such a record).
    /// Source: `CommitLog#checkMessageAndReturnSize`.
    #[inline]
    pub fn tags_code(&self, topic: &str, store_timestamp: i64, levels: &DelayLevels) -> i64 {
        if self.delay.is_some() && topic == SCHEDULE_TOPIC {
            let level = self.delay.and_then(utf8).and_then(|level| level.parse::<i32>().ok());
            if let Some(level) = level.map(|level| level.min(levels.max_level())).filter(|level| *level > 0) {
                return levels.delivery_time(level, store_timestamp);
            }
        }
        let Some(tags) = self.tags else { return 0 };
        // Tags that are not UTF-8 are hashed as Java reads them: with replacement characters.
        let hash = java_hash_bytes(tags).unwrap_or_else(|| java_hash(&String::from_utf8_lossy(tags)));
        i64::from(hash)
    }
}

/// Retry topics and RocketMQ's own topics have no light queues.
#[cold]
fn may_have_light_queues(topic: &str) -> bool {
    !topic.starts_with(RETRY_TOPIC_PREFIX)
        && !topic.starts_with(SYSTEM_TOPIC_PREFIX)
        && topic != SCHEDULE_TOPIC
}

#[inline]
fn utf8(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::hash::index_key_hash;

    /// Generates almost valid properties: names that matter and similar ones, values of all kinds, and separators in
    /// odd places.
    fn texts() -> impl Strategy<Value = Vec<u8>> {
        const WORDS: &[&str] =
            &["UNIQ_KEY", "KEYS", "TAGS", "DELAY", "KEY", "TAGS2", "UNIQ_KEX", "a", "3", " ", "k1 k2", "é"];
        let piece = prop_oneof![
            8 => proptest::sample::select(WORDS).prop_map(|word| word.as_bytes().to_vec()),
            4 => Just(vec![1]),
            4 => Just(vec![2]),
            1 => Just(vec![0xff]),
            1 => vec(any::<u8>(), 0..12),
        ];
        vec(piece, 0..40).prop_map(|pieces| pieces.concat())
    }

    /// Generates complete entries, so that most names have a value.
    fn entries() -> impl Strategy<Value = Vec<u8>> {
        let names = proptest::sample::select(&["UNIQ_KEY", "KEYS", "TAGS", "DELAY", "other"][..]);
        let values = prop_oneof!["[a-z0-9 ]{0,12}", "-?[0-9]{1,3}", Just("2147483648".to_owned()), ".{0,4}"];
        let entry = (names, values).prop_map(|(name, value)| format!("{name}\x01{value}\x02"));
        vec(entry, 0..8).prop_map(|entries| entries.concat().into_bytes())
    }

    /// Generates the end of properties: a checksum, or a similar text.
    fn tails() -> impl Strategy<Value = &'static str> {
        proptest::sample::select(
            &[
                "",
                "__CRC32#\u{1}1234567890\u{2}",
                "__CRC32#\u{1}01234\u{2}TAGS\u{2}",
                "__CRC32#\u{1}0\u{2}TAGS\u{1}a\u{2}\u{2}",
                "_CRC32#\u{1}1234567890\u{2}",
            ][..],
        )
    }

    /// Computes the tags code by the format's definition, with separate lookups.
    fn plain_tags_code(properties: Properties<'_>, topic: &str, stored: i64, levels: &DelayLevels) -> i64 {
        let level = properties.get(DELAY).filter(|_| topic == SCHEDULE_TOPIC);
        let level =
            level.and_then(|level| level.parse::<i32>().ok()).map(|level| level.min(levels.max_level()));
        match (level, properties.get_raw(TAGS)) {
            (Some(level), _) if level > 0 => levels.delivery_time(level, stored),
            (_, Some(tags)) => i64::from(java_hash(&String::from_utf8_lossy(tags))),
            (_, None) => 0,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn light_queues_pair_names_with_offsets(
            names in vec("(%LMQ%)?[a-c/]{0,3}", 0..4),
            offsets in vec("-?[0-9]{0,3}", 0..4),
        ) {
            let raw = format!(
                "INNER_MULTI_DISPATCH\x01{}\x02INNER_MULTI_QUEUE_OFFSET\x01{}\x02",
                names.join(","),
                offsets.join(",")
            );
            let fields = EntryFields::of(Properties::new(raw.as_bytes()));
            let mut expected = Vec::new();
            if names.len().max(1) == offsets.len().max(1) {
                for (name, offset) in names.iter().zip(&offsets) {
                    let offset = offset.parse::<i64>().unwrap_or(-1);
                    if name.starts_with("%LMQ%") && !name.contains('/') && offset >= 0 {
                        expected.push((name.as_str(), offset));
                    }
                }
            }
            prop_assert_eq!(fields.light_queues("orders").collect::<Vec<_>>(), expected);
            for topic in ["%RETRY%g", "rmq_sys_x", SCHEDULE_TOPIC] {
                prop_assert_eq!(fields.light_queues(topic).count(), 0);
            }
        }

        #[test]
        fn one_walk_finds_what_separate_look_ups_find(
            front in prop_oneof![texts(), entries()],
            open_end in any::<bool>(),
            tail in tails(),
        ) {
            let front = front.strip_suffix(&[SEPARATOR]).filter(|_| open_end).unwrap_or(&front);
            let raw = [front, tail.as_bytes()].concat();
            let properties = Properties::new(&raw);
            let fields = EntryFields::of(properties);
            prop_assert_eq!(fields.unique_key(), properties.get(UNIQ_KEY));
            prop_assert_eq!(fields.keys(), properties.get(KEYS));
            prop_assert_eq!(fields.tags(), properties.get(TAGS));
            let pieces = properties.get(KEYS).unwrap_or_default().split(' ').filter(|key| !key.is_empty());
            prop_assert!(fields.key_list().eq(pieces.clone()));
            let mut hashes = Vec::new();
            fields.key_hashes(IndexHasher::new("orders"), |hash| hashes.push(hash));
            let keys = properties.get(UNIQ_KEY).into_iter().chain(pieces);
            prop_assert_eq!(hashes, keys.map(|key| index_key_hash("orders", key)).collect::<Vec<_>>());
            let levels = DelayLevels::default();
            for topic in ["orders", SCHEDULE_TOPIC] {
                let expected = plain_tags_code(properties, topic, 1_700_000_000_123, &levels);
                prop_assert_eq!(fields.tags_code(topic, 1_700_000_000_123, &levels), expected);
            }
        }
    }
}
