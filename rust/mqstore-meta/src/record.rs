//! The records of the metadata log, and the ids and changes that callers use.
//!
//! Owns the bytes of a record: one byte for its kind, then its fields. An unsigned number is a varint: seven bits a
//! byte, the lowest first, the top bit set in all bytes except the last. A signed number is zigzag-encoded first (0,
//! -1, 1, -2 become 0, 1, 2, 3). Text is its length in bytes, then its bytes.
//!
//! ```text
//!  1 name       id, text                        from here on the number stands for this name
//!  2 next id    id                              no name has this number or a higher one
//!  3 topic      id, saved, text                 its configuration: JSON without default values
//!  4 no topic   id                              it was removed, with the groups' offsets and progress in its queues
//!  5 group      id, saved, text                 as for a topic
//!  6 no group   id                              it was removed, with its offsets and progress
//!  7 offset     group, topic, queue, offset     the next offset that the group consumes
//!  8 begun      file                            later changes are not in the JSON file that is now being written
//!  9 intended   file, stamp                     this file is going to replace the existing one
//! 10 known      file, stamp                     the existing file, as last written or read
//! 11 changed    file, 0 or 1                    whether anything changed since the last `begun`
//! 12 floor      topic, log offset               it was deleted there; replaces its earlier floor
//! 13 continues  topic, queue, offset            part of the last `floor` or `raised`: the next offset of a queue
//! 14 raised     topic, log offset               its retention raised the floor to there; the deletion stays
//! 15 retention  topic, time, bytes, messages    its limits, 0 for none; all 0 removes them
//! 77 synced     "QSYNCED", place (8)            everything before this place is synced
//! 16 to 25      group, topic, queue, fields     a change of a progress: ProgressRecord, in the order of its variants
//! 32 kept       group, topic, queue, place, committed, next      a stored progress, as read at that place
//! 48 to 51, 55  fields                          an open or finished part, or a taken-over offset, of the last `kept`
//! 56            time                            the clock of the following parts
//! 57            fields                          a reason in the last `kept`
//!
//! file    0 topics.json   1 subscriptionGroup.json   2 consumerOffset.json
//! saved   0 changed since   1 in the file that is being written   2 in the known file
//! stamp   counter, state version and time of its DataVersion; its length; the CRC-32 of its bytes (4, big-endian)
//! ```

use mqstore_base::topic_floors::TopicRetention;
use mqstore_format::json::DataVersion;

use super::progress::ProgressRecord;

/// The number of a topic's or a group's name in one store. It never stands for another name while the store is open.
/// Do not keep it across an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameId(pub(super) u32);

/// A metadata position: a byte position in the metadata log, counted over all generations. It grows with each append.
/// If a position is durable, everything appended before it is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MetaPosition(pub(super) u64);

/// One queue of a topic, as a group sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueKey {
    /// The group.
    pub group: NameId,
    /// The topic.
    pub topic: NameId,
    /// The queue.
    pub queue_id: i32,
}

/// The next offset that a group consumes from a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetChange {
    /// The group, the topic and the queue.
    pub queue: QueueKey,
    /// The offset, at least 0. It may be smaller than the previous one.
    pub offset: i64,
}

/// One of RocketMQ's JSON files that the log reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JsonFile {
    Topics,
    Groups,
    Offsets,
}

impl JsonFile {
    pub(super) const ALL: [Self; 3] = [Self::Topics, Self::Groups, Self::Offsets];

    fn of(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|file| *file as u8 == code)
    }

    /// Returns its name in `config/`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Topics => "topics.json",
            Self::Groups => "subscriptionGroup.json",
            Self::Offsets => "consumerOffset.json",
        }
    }
}

/// Identifies one content of a JSON file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JsonStamp {
    pub(super) version: DataVersion,
    pub(super) bytes: u64,
    pub(super) crc: u32,
}

/// Whether an entry of a table is in its JSON file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SavedState {
    Changed,
    BeingWritten,
    Written,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MetaRecord<'a> {
    Name { id: NameId, name: &'a str },
    NextId { id: u32 },
    Topic { topic: NameId, saved: SavedState, config: &'a str },
    TopicRemoved { topic: NameId },
    Group { group: NameId, saved: SavedState, config: &'a str },
    GroupRemoved { group: NameId },
    Offset(OffsetChange),
    JsonBegun { file: JsonFile },
    JsonIntended { file: JsonFile, stamp: JsonStamp },
    JsonKnown { file: JsonFile, stamp: JsonStamp },
    JsonChanged { file: JsonFile, changed: bool },
    Floor { topic: NameId, log_offset: u64 },
    QueueFloor { topic: NameId, queue_id: i32, offset: i64 },
    RaisedFloor { topic: NameId, log_offset: u64 },
    Retention { topic: NameId, limits: TopicRetention },
    Synced { place: MetaPosition },
    Progress { queue: QueueKey, record: ProgressRecord },
    Kept { queue: QueueKey, place: MetaPosition, committed: i64, next: i64 },
    KeptPart(ProgressRecord),
}

const NAME: u8 = 1;
const NEXT_ID: u8 = 2;
const TOPIC: u8 = 3;
const TOPIC_REMOVED: u8 = 4;
const GROUP: u8 = 5;
const GROUP_REMOVED: u8 = 6;
const OFFSET: u8 = 7;
const JSON_BEGUN: u8 = 8;
const JSON_INTENDED: u8 = 9;
const JSON_KNOWN: u8 = 10;
const JSON_CHANGED: u8 = 11;
const FLOOR: u8 = 12;
const QUEUE_FLOOR: u8 = 13;
const RAISED_FLOOR: u8 = 14;
const RETENTION: u8 = 15;
const PROGRESS: u8 = 16;
const KEPT: u8 = 32;
const KEPT_PARTS: u8 = 48;
const SYNCED: u8 = b'M';
/// The other bytes of the mark of a `synced` record. The mark is found even between bytes that do not decode.
const SYNCED_REST: &[u8; 7] = b"QSYNCED";
/// The complete mark.
pub(super) const SYNCED_MARK: &[u8; 8] = b"MQSYNCED";

/// Number of kinds of progress records.
const PROGRESS_KINDS: u8 = 10;
/// The kinds among them that can also be parts of a stored state.
const PART_KINDS: [u8; 7] = [0, 1, 2, 3, 7, 8, 9];

impl MetaRecord<'_> {
    /// Appends the record's bytes to `out`.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Name { id, name } => {
                put_kind(out, NAME, id.0);
                put_text(out, name);
            }
            Self::NextId { id } => put_kind(out, NEXT_ID, id),
            Self::Topic { topic, saved, config } => {
                put_kind(out, TOPIC, topic.0);
                out.push(saved as u8);
                put_text(out, config);
            }
            Self::TopicRemoved { topic } => put_kind(out, TOPIC_REMOVED, topic.0),
            Self::Group { group, saved, config } => {
                put_kind(out, GROUP, group.0);
                out.push(saved as u8);
                put_text(out, config);
            }
            Self::GroupRemoved { group } => put_kind(out, GROUP_REMOVED, group.0),
            Self::Offset(OffsetChange { queue, offset }) => {
                put_queue(out, OFFSET, queue);
                put_signed(out, offset);
            }
            Self::JsonBegun { file } => out.extend_from_slice(&[JSON_BEGUN, file as u8]),
            Self::JsonChanged { file, changed } => {
                out.extend_from_slice(&[JSON_CHANGED, file as u8, changed.into()]);
            }
            Self::Floor { topic, log_offset } => {
                put_kind(out, FLOOR, topic.0);
                put_number(out, log_offset);
            }
            Self::QueueFloor { topic, queue_id, offset } => {
                put_kind(out, QUEUE_FLOOR, topic.0);
                put_signed(out, queue_id.into());
                put_signed(out, offset);
            }
            Self::RaisedFloor { topic, log_offset } => {
                put_kind(out, RAISED_FLOOR, topic.0);
                put_number(out, log_offset);
            }
            Self::Retention { topic, limits } => {
                put_kind(out, RETENTION, topic.0);
                for limit in [limits.keep_ms, limits.max_bytes, limits.max_messages] {
                    put_number(out, limit.unwrap_or(0));
                }
            }
            Self::JsonIntended { file, stamp } => put_stamp(out, JSON_INTENDED, file, &stamp),
            Self::JsonKnown { file, stamp } => put_stamp(out, JSON_KNOWN, file, &stamp),
            Self::Synced { place } => {
                out.extend_from_slice(SYNCED_MARK);
                out.extend_from_slice(&place.0.to_be_bytes());
            }
            Self::Progress { queue, ref record } => {
                put_queue(out, PROGRESS + record.kind(), queue);
                record.put_fields(out);
            }
            Self::Kept { queue, place, committed, next } => {
                put_queue(out, KEPT, queue);
                put_number(out, place.0);
                put_signed(out, committed);
                put_signed(out, next);
            }
            Self::KeptPart(ref record) => {
                out.push(KEPT_PARTS + record.kind());
                record.put_fields(out);
            }
        }
    }
}

impl<'a> MetaRecord<'a> {
    /// Decodes the record at the start of `bytes` and advances `bytes`; `None` if there is none.
    pub(super) fn decode(bytes: &mut &'a [u8]) -> Option<Self> {
        let mut at = PayloadReader(bytes);
        let kind = at.byte()?;
        let record = match kind {
            NAME => Self::Name { id: at.id()?, name: at.text()? },
            NEXT_ID => Self::NextId { id: at.id()?.0 },
            TOPIC => Self::Topic { topic: at.id()?, saved: at.saved()?, config: at.text()? },
            TOPIC_REMOVED => Self::TopicRemoved { topic: at.id()? },
            GROUP => Self::Group { group: at.id()?, saved: at.saved()?, config: at.text()? },
            GROUP_REMOVED => Self::GroupRemoved { group: at.id()? },
            OFFSET => Self::Offset(OffsetChange { queue: at.queue()?, offset: at.signed()? }),
            JSON_BEGUN => Self::JsonBegun { file: at.file()? },
            JSON_INTENDED => Self::JsonIntended { file: at.file()?, stamp: at.stamp()? },
            JSON_KNOWN => Self::JsonKnown { file: at.file()?, stamp: at.stamp()? },
            JSON_CHANGED => Self::JsonChanged { file: at.file()?, changed: at.flag()? },
            FLOOR => Self::Floor { topic: at.id()?, log_offset: at.number()? },
            QUEUE_FLOOR => Self::QueueFloor {
                topic: at.id()?,
                queue_id: at.signed()?.try_into().ok()?,
                offset: at.signed()?,
            },
            RAISED_FLOOR => Self::RaisedFloor { topic: at.id()?, log_offset: at.number()? },
            RETENTION => Self::Retention { topic: at.id()?, limits: at.limits()? },
            SYNCED => {
                let rest: [u8; 7] = at.take()?;
                let place = MetaPosition(u64::from_be_bytes(at.take()?));
                (rest == *SYNCED_REST).then_some(Self::Synced { place })?
            }
            KEPT => Self::Kept {
                queue: at.queue()?,
                place: MetaPosition(at.number()?),
                committed: at.signed()?,
                next: at.signed()?,
            },
            _ if kind.checked_sub(PROGRESS).is_some_and(|kind| kind < PROGRESS_KINDS) => {
                Self::Progress { queue: at.queue()?, record: at.progress(kind - PROGRESS)? }
            }
            _ if kind.checked_sub(KEPT_PARTS).is_some_and(|part| PART_KINDS.contains(&part)) => {
                Self::KeptPart(at.progress(kind - KEPT_PARTS)?)
            }
            _ => return None,
        };
        *bytes = at.0;
        Some(record)
    }
}

impl ProgressRecord {
    fn kind(&self) -> u8 {
        match self {
            Self::Leased { .. } => 0,
            Self::Finished { .. } => 1,
            Self::Returned { .. } => 2,
            Self::DeadLetter { .. } => 3,
            Self::Extended { .. } => 4,
            Self::Moved { .. } => 5,
            Self::Clamped { .. } => 6,
            Self::TookOver { .. } => 7,
            Self::Clock { .. } => 8,
            Self::Reason { .. } => 9,
        }
    }

    fn put_fields(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Leased { offset, invisible_until_ms: ms, attempt }
            | Self::Returned { offset, visible_ms: ms, attempt } => {
                put_signed(out, offset);
                put_signed(out, ms);
                put_number(out, attempt.into());
            }
            Self::Finished { from, to } => {
                put_signed(out, from);
                put_signed(out, to.wrapping_sub(from));
            }
            Self::DeadLetter { offset, dlq_offset: other }
            | Self::Extended { offset, invisible_until_ms: other } => {
                put_signed(out, offset);
                put_signed(out, other);
            }
            Self::Moved { to: at } | Self::TookOver { log_offset: at } | Self::Clock { now_ms: at } => {
                put_signed(out, at);
            }
            Self::Clamped { min, max } => {
                put_signed(out, min);
                put_signed(out, max);
            }
            Self::Reason { offset, ref reason } => {
                put_signed(out, offset);
                put_text(out, reason);
            }
        }
    }
}

fn put_kind(out: &mut Vec<u8>, kind: u8, id: u32) {
    out.push(kind);
    put_number(out, id.into());
}

fn put_queue(out: &mut Vec<u8>, kind: u8, queue: QueueKey) {
    put_kind(out, kind, queue.group.0);
    put_number(out, queue.topic.0.into());
    put_signed(out, queue.queue_id.into());
}

fn put_stamp(out: &mut Vec<u8>, kind: u8, file: JsonFile, stamp: &JsonStamp) {
    out.extend_from_slice(&[kind, file as u8]);
    put_signed(out, stamp.version.counter);
    put_signed(out, stamp.version.state_version);
    put_signed(out, stamp.version.timestamp);
    put_number(out, stamp.bytes);
    out.extend_from_slice(&stamp.crc.to_be_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_number(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

#[inline]
fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[inline]
fn put_signed(out: &mut Vec<u8>, number: i64) {
    put_number(out, (number << 1 ^ number >> 63).cast_unsigned());
}

/// The undecoded rest of a payload.
struct PayloadReader<'a>(&'a [u8]);

impl<'a> PayloadReader<'a> {
    #[inline]
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    #[inline]
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    #[inline]
    fn signed(&mut self) -> Option<i64> {
        let number = self.number()?;
        Some((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    /// Reads the limits of a topic. 0 means no limit.
    fn limits(&mut self) -> Option<TopicRetention> {
        let limit = |number: u64| Some(number).filter(|limit| *limit > 0);
        Some(TopicRetention {
            keep_ms: limit(self.number()?),
            max_bytes: limit(self.number()?),
            max_messages: limit(self.number()?),
        })
    }

    fn id(&mut self) -> Option<NameId> {
        Some(NameId(self.number()?.try_into().ok()?))
    }

    fn queue(&mut self) -> Option<QueueKey> {
        let (group, topic) = (self.id()?, self.id()?);
        Some(QueueKey { group, topic, queue_id: self.signed()?.try_into().ok()? })
    }

    fn text(&mut self) -> Option<&'a str> {
        let len = usize::try_from(self.number()?).ok()?;
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        std::str::from_utf8(text).ok()
    }

    fn saved(&mut self) -> Option<SavedState> {
        let code = self.byte()?;
        [SavedState::Changed, SavedState::BeingWritten, SavedState::Written]
            .into_iter()
            .find(|saved| *saved as u8 == code)
    }

    fn file(&mut self) -> Option<JsonFile> {
        JsonFile::of(self.byte()?)
    }

    fn flag(&mut self) -> Option<bool> {
        let code = self.byte()?;
        (code < 2).then_some(code == 1)
    }

    fn stamp(&mut self) -> Option<JsonStamp> {
        let (counter, state_version, timestamp) = (self.signed()?, self.signed()?, self.signed()?);
        let version = DataVersion { counter, state_version, timestamp };
        Some(JsonStamp { version, bytes: self.number()?, crc: u32::from_be_bytes(self.take()?) })
    }

    fn attempt(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    fn progress(&mut self, kind: u8) -> Option<ProgressRecord> {
        let first = self.signed()?;
        Some(match kind {
            0 => ProgressRecord::Leased {
                offset: first,
                invisible_until_ms: self.signed()?,
                attempt: self.attempt()?,
            },
            1 => ProgressRecord::Finished { from: first, to: first.wrapping_add(self.signed()?) },
            2 => ProgressRecord::Returned {
                offset: first,
                visible_ms: self.signed()?,
                attempt: self.attempt()?,
            },
            3 => ProgressRecord::DeadLetter { offset: first, dlq_offset: self.signed()? },
            4 => ProgressRecord::Extended { offset: first, invisible_until_ms: self.signed()? },
            5 => ProgressRecord::Moved { to: first },
            6 => ProgressRecord::Clamped { min: first, max: self.signed()? },
            7 => ProgressRecord::TookOver { log_offset: first },
            8 => ProgressRecord::Clock { now_ms: first },
            9 => ProgressRecord::Reason { offset: first, reason: self.text()?.into() },
            _ => return None,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_queue() -> impl Strategy<Value = QueueKey> {
        (any::<u32>(), any::<u32>(), any::<i32>()).prop_map(|(group, topic, queue_id)| QueueKey {
            group: NameId(group),
            topic: NameId(topic),
            queue_id,
        })
    }

    fn any_progress() -> impl Strategy<Value = ProgressRecord> {
        let fields = (0_u8..PROGRESS_KINDS, any::<i64>(), any::<i64>(), any::<u32>(), ".{1,20}");
        fields.prop_map(|(kind, first, other, attempt, text)| match kind {
            0 => ProgressRecord::Leased { offset: first, invisible_until_ms: other, attempt },
            1 => ProgressRecord::Finished { from: first, to: other },
            2 => ProgressRecord::Returned { offset: first, visible_ms: other, attempt },
            3 => ProgressRecord::DeadLetter { offset: first, dlq_offset: other },
            4 => ProgressRecord::Extended { offset: first, invisible_until_ms: other },
            5 => ProgressRecord::Moved { to: first },
            6 => ProgressRecord::TookOver { log_offset: first },
            7 => ProgressRecord::Clock { now_ms: first },
            8 => ProgressRecord::Reason { offset: first, reason: text.into() },
            _ => ProgressRecord::Clamped { min: first, max: other },
        })
    }

    fn any_stamp() -> impl Strategy<Value = JsonStamp> {
        let fields = (any::<[i64; 3]>(), any::<u64>(), any::<u32>());
        fields.prop_map(|([counter, state_version, timestamp], bytes, crc)| JsonStamp {
            version: DataVersion { counter, state_version, timestamp },
            bytes,
            crc,
        })
    }

    fn any_limits() -> impl Strategy<Value = TopicRetention> {
        let limit = || proptest::option::of(1..=TopicRetention::LARGEST);
        (limit(), limit(), limit()).prop_map(|(keep_ms, max_bytes, max_messages)| TopicRetention {
            keep_ms,
            max_bytes,
            max_messages,
        })
    }

    pub(crate) fn any_record() -> impl Strategy<Value = MetaRecord<'static>> {
        let texts = proptest::sample::select(vec!["", "orders", "ns%jobs", "\u{e4}", "{\"a\":1}"]);
        let place = (any_queue(), any::<u64>(), any::<[i64; 2]>());
        let json = (any_stamp(), 0..3_usize, 0..3_usize);
        let fields = (0..19_u8, any::<u32>(), texts, place, json, any_progress(), any_limits());
        fields.prop_map(
            |(kind, id, text, (queue, number, [offset, next]), (stamp, file, saved), progress, limits)| {
                let (topic, place, file) = (NameId(id), MetaPosition(number), JsonFile::ALL[file]);
                let saved = [SavedState::Changed, SavedState::BeingWritten, SavedState::Written][saved];
                match kind {
                    0 => MetaRecord::Name { id: topic, name: text },
                    1 => MetaRecord::NextId { id },
                    2 => MetaRecord::Topic { topic, saved, config: text },
                    3 => MetaRecord::TopicRemoved { topic },
                    4 => MetaRecord::Group { group: topic, saved, config: text },
                    5 => MetaRecord::GroupRemoved { group: topic },
                    6 => MetaRecord::Offset(OffsetChange { queue, offset }),
                    7 => MetaRecord::JsonBegun { file },
                    8 => MetaRecord::JsonIntended { file, stamp },
                    9 => MetaRecord::JsonKnown { file, stamp },
                    10 => MetaRecord::JsonChanged { file, changed: id > 1 << 31 },
                    11 => MetaRecord::Floor { topic, log_offset: number },
                    12 => MetaRecord::QueueFloor { topic, queue_id: queue.queue_id, offset },
                    13 => MetaRecord::RaisedFloor { topic, log_offset: number },
                    14 => MetaRecord::Retention { topic, limits },
                    15 => MetaRecord::Synced { place },
                    16 => MetaRecord::Kept { queue, place, committed: offset, next },
                    17 if PART_KINDS.contains(&progress.kind()) => MetaRecord::KeptPart(progress),
                    _ => MetaRecord::Progress { queue, record: progress },
                }
            },
        )
    }

    proptest! {
        #[test]
        fn records_come_back(records in proptest::collection::vec(any_record(), 0..40)) {
            let mut bytes = Vec::new();
            for record in &records {
                record.encode(&mut bytes);
            }
            let mut rest = bytes.as_slice();
            for record in records {
                prop_assert_eq!(MetaRecord::decode(&mut rest), Some(record));
            }
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn any_bytes_are_a_record_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut rest = bytes.as_slice();
            while let Some(record) = MetaRecord::decode(&mut rest) {
                let mut again = Vec::new();
                record.encode(&mut again);
                let mut read = again.as_slice();
                prop_assert_eq!(MetaRecord::decode(&mut read), Some(record));
            }
        }
    }

    #[test]
    fn a_commit_of_one_offset_is_short() {
        let queue = QueueKey { group: NameId(49_999), topic: NameId(49_998), queue_id: 7 };
        let mut bytes = Vec::new();
        MetaRecord::Offset(OffsetChange { queue, offset: 1_000_000 }).encode(&mut bytes);
        assert_eq!(bytes.len(), 11);
    }
}
