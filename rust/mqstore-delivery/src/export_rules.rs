//! Decides for each record of a log whether an export contains it, and in which form. All formats use this one rule.
//!
//! ```text
//! message of a topic                     unchanged; also a delivered delayed message, or a committed message
//! delayed message that waits             the accepted message, with its due time
//! delayed message, delivered, cancelled  left out: done     half message with a decision    left out: done
//! half message without a decision        left out           message of a deleted topic      left out, also if it waits
//! every other record of a system topic   left out: internal
//! ```
//!
//! The rules hold as of one log offset. A resumed export uses the stored rules, or it would deliver messages twice that
//! were delivered meanwhile. A record of a topic that the caller named is exported unchanged, also of a system topic,
//! unless its topic was deleted.
//! Memory: 8 bytes for each pending half message and each waiting message with an exact time, 16 for one with a level.

use std::collections::{BTreeMap, BTreeSet};

use mqstore_base::error::StoreError;
use mqstore_engine::Store;
use mqstore_format::delays::pending::{TimerRecord, TimerTurn, is_system_topic};
use mqstore_format::delays::timer::TIMER_TOPIC;
use mqstore_format::properties::{REAL_QID, REAL_TOPIC};
use mqstore_format::topic::HALF_TOPIC;
use mqstore_format::{Fields, RecordView, SCHEDULE_TOPIC, crc32};

use crate::delay::{WaitingDelays, original_properties};
use crate::transactions::undecided_halves;

/// Reason for which an export leaves out a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Omission {
    /// The work of the record is done: its message was delivered, cancelled, committed or rolled back.
    Done,
    /// The delayed message waits, and the caller wants none of these.
    Waiting,
    /// The half message has no decision.
    Undecided,
    /// The record belongs to the store itself, such as a decision or a cancellation.
    Internal,
    /// The topic was deleted.
    Deleted,
    /// The target store cannot have a topic of this name. Files take such messages.
    TopicName,
}

impl Omission {
    /// All reasons, in the order of [`OmissionCounts::counts`].
    pub const ALL: [Self; 6] =
        [Self::Done, Self::Waiting, Self::Undecided, Self::Internal, Self::Deleted, Self::TopicName];

    /// Returns the name of the reason in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Waiting => "waiting",
            Self::Undecided => "undecided",
            Self::Internal => "internal",
            Self::Deleted => "deleted",
            Self::TopicName => "topic_name",
        }
    }
}

/// Numbers of records that were left out, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OmissionCounts {
    /// One number for each of [`Omission::ALL`].
    pub counts: [u64; Omission::ALL.len()],
}

impl OmissionCounts {
    /// Counts one more record.
    pub fn add(&mut self, reason: Omission) {
        if let Some(count) = self.counts.get_mut(reason as usize) {
            *count += 1;
        }
    }

    /// Whether nothing was left out.
    pub fn is_empty(&self) -> bool {
        self.counts.iter().all(|count| *count == 0)
    }
}

/// A delayed message in the form in which it was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingMessage<'a> {
    /// The topic to which it will be delivered.
    pub topic: &'a str,
    /// The queue.
    pub queue_id: i32,
    /// The due time, in epoch milliseconds.
    pub due_ms: i64,
    /// Its own properties, without those of the waiting record.
    pub properties: Vec<u8>,
}

/// The form of a record in an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportDecision<'a> {
    /// Unchanged.
    Plain,
    /// The delayed message of this waiting record.
    Waiting(WaitingMessage<'a>),
    /// Not at all, for this reason.
    LeftOut(Omission),
    /// Not at all: the caller did not select its topic.
    NotSelected,
}

/// The selection of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportSelection {
    /// The wanted topics; `None` means all topics except those of the system.
    pub topics: Option<BTreeSet<String>>,
    /// Whether waiting messages are exported.
    pub keep_waiting: bool,
}

/// The rules of one export; see the module's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportRules {
    selection: ExportSelection,
    limit: u64,
    delays: WaitingDelays,
    undecided: Vec<i64>,
    /// Topics that do not exist.
    deleted: BTreeSet<String>,
    floors: BTreeMap<String, Floor>,
}

/// The floor of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Floor {
    /// Earlier records of the topic do not count.
    log_offset: u64,
    /// Log offset at which the topic was last deleted; 0 if it never was. Messages that wait since before it do not
    /// count.
    deleted: u64,
}

const MAGIC: &[u8; 8] = b"MQSEXPRT";
const VERSION: u32 = 3;

impl ExportRules {
    /// Makes the rules for an export of `store`, which is open for reading, as of the current end of its log.
    ///
    /// # Errors
    /// Errors of reading the files.
    pub fn of(store: &Store, selection: ExportSelection) -> Result<Self, StoreError> {
        let undecided = undecided_halves(store)?;
        let (delays, limit) = WaitingDelays::of(store)?;
        let deleted = store.settings().removed_topics();
        let floors = store.floors();
        let floors = floors.iter().map(|(topic, floor)| {
            (topic.to_string(), Floor { log_offset: floor.log_offset, deleted: floor.deleted })
        });
        let floors = floors.collect();
        Ok(Self { selection, limit, delays, undecided, deleted, floors })
    }

    /// Returns the log offset at which the export ends.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the topics whose records the export must read; `None` means all. They include the system topics in which
    /// messages of the wanted topics wait.
    pub fn topics_to_read(&self) -> Option<Vec<String>> {
        let mut topics = self.selection.topics.clone()?;
        let waits = [
            (TIMER_TOPIC, !self.delays.timer.is_empty()),
            (SCHEDULE_TOPIC, !self.delays.levels.is_empty()),
            (HALF_TOPIC, !self.undecided.is_empty()),
        ];
        if !topics.is_empty() {
            topics.extend(waits.iter().filter(|(_, any)| *any).map(|(topic, _)| (*topic).to_owned()));
        }
        Some(topics.into_iter().collect())
    }

    /// Returns the topics in which messages wait that the export contains.
    pub fn waiting_topics(&self) -> Vec<String> {
        let waits =
            [(TIMER_TOPIC, !self.delays.timer.is_empty()), (SCHEDULE_TOPIC, !self.delays.levels.is_empty())];
        let wanted = waits.iter().filter(|(_, any)| *any && self.selection.keep_waiting);
        wanted.map(|(topic, _)| (*topic).to_owned()).collect()
    }

    /// Whether a queue of the exported topics begins after offset 0.
    ///
    /// # Errors
    /// Errors of reading the files.
    pub fn has_late_queue(&self, store: &Store) -> Result<bool, StoreError> {
        for topic in store.topics()? {
            let is_selected = match &self.selection.topics {
                Some(topics) => topics.contains(&topic),
                None => !is_system_topic(&topic),
            };
            if is_selected {
                for queue_id in store.queue_ids(&topic)? {
                    if store.bounds(&topic, queue_id)?.0 > 0 {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    /// Decides about the record at log offset `offset`.
    pub fn decide<'a>(&self, record: &RecordView<'a>, offset: u64) -> ExportDecision<'a> {
        if !record.dispatches_to_queue() {
            return ExportDecision::LeftOut(Omission::Internal);
        }
        if self.is_deleted(record.topic, offset) {
            let is_selected = self.selects(record.topic);
            let left_out = ExportDecision::LeftOut(Omission::Deleted);
            return if is_selected { left_out } else { ExportDecision::NotSelected };
        }
        if self.selection.topics.as_ref().is_some_and(|topics| topics.contains(record.topic)) {
            return ExportDecision::Plain;
        }
        let decision = match record.topic {
            TIMER_TOPIC => self.decide_timer(record, offset),
            SCHEDULE_TOPIC => self.decide_level(record, offset),
            HALF_TOPIC => self.decide_half(record),
            topic if is_system_topic(topic) => ExportDecision::LeftOut(Omission::Internal),
            _ => ExportDecision::Plain,
        };
        match decision {
            // In other topics than the named ones, only records that wait or are pending can belong to the selection.
            ExportDecision::LeftOut(Omission::Waiting | Omission::Undecided) | ExportDecision::Waiting(_) => {
                decision
            }
            _ if self.selection.topics.is_some() => ExportDecision::NotSelected,
            _ => decision,
        }
    }

    /// Whether the topic of the record at log offset `offset` was deleted after it.
    fn is_deleted(&self, topic: &str, offset: u64) -> bool {
        !is_system_topic(topic)
            && (self.deleted.contains(topic)
                || self.floors.get(topic).is_some_and(|floor| offset < floor.log_offset))
    }

    fn decide_timer<'a>(&self, record: &RecordView<'a>, offset: u64) -> ExportDecision<'a> {
        let Some(timer) = TimerRecord::of(record) else { return ExportDecision::LeftOut(Omission::Internal) };
        if matches!(timer.turn, TimerTurn::Cancel { .. }) {
            return ExportDecision::LeftOut(Omission::Internal);
        }
        let waits = self.delays.timer.binary_search(&offset).is_ok();
        self.decide_delayed(record, offset, waits.then_some(timer.due_ms))
    }

    fn decide_level<'a>(&self, record: &RecordView<'a>, offset: u64) -> ExportDecision<'a> {
        self.decide_delayed(record, offset, self.delays.level_due_ms(offset))
    }

    fn decide_delayed<'a>(
        &self,
        record: &RecordView<'a>,
        offset: u64,
        due_ms: Option<i64>,
    ) -> ExportDecision<'a> {
        let [topic, queue_id] = record.properties.get_many([REAL_TOPIC, REAL_QID]);
        // A record that does not name its topic and queue is never delivered.
        let (Some(topic), Some(queue_id), Some(due_ms)) =
            (topic, queue_id.and_then(|id| id.parse().ok()), due_ms)
        else {
            return ExportDecision::LeftOut(Omission::Done);
        };
        if !self.selects(topic) {
            return ExportDecision::NotSelected;
        }
        let is_deleted = self.floors.get(topic).is_some_and(|floor| offset < floor.deleted);
        if is_deleted || self.deleted.contains(topic) {
            return ExportDecision::LeftOut(Omission::Deleted);
        }
        if !self.selection.keep_waiting {
            return ExportDecision::LeftOut(Omission::Waiting);
        }
        let properties = original_properties(record);
        ExportDecision::Waiting(WaitingMessage { topic, queue_id, due_ms, properties })
    }

    fn decide_half<'a>(&self, record: &RecordView<'a>) -> ExportDecision<'a> {
        if self.undecided.binary_search(&record.queue_offset).is_err() {
            return ExportDecision::LeftOut(Omission::Done);
        }
        match record.properties.get(REAL_TOPIC) {
            Some(topic) if !self.selects(topic) => ExportDecision::NotSelected,
            _ => ExportDecision::LeftOut(Omission::Undecided),
        }
    }

    fn selects(&self, topic: &str) -> bool {
        self.selection.topics.as_ref().is_none_or(|topics| topics.contains(topic))
    }

    /// Encodes everything except the selection, for an export that may be resumed.
    ///
    /// ```text
    /// "MQSEXPRT" | version 4 | limit 8 | count 8, log offset 8... | count 8, (log offset 8, due time 8)...
    ///            | count 8, queue offset 8... | count 8, (length 4, name)...
    ///            | count 8, (log offset 8, log offset of the deletion 8, length 4, name)...
    ///            | CRC 4 over all before it
    /// ```
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_be_bytes());
        let mut put = |number: u64| bytes.extend_from_slice(&number.to_be_bytes());
        put(self.limit);
        put(self.delays.timer.len() as u64);
        self.delays.timer.iter().for_each(|offset| put(*offset));
        put(self.delays.levels.len() as u64);
        for (offset, due_ms) in &self.delays.levels {
            put(*offset);
            put(due_ms.cast_unsigned());
        }
        put(self.undecided.len() as u64);
        self.undecided.iter().for_each(|offset| put(offset.cast_unsigned()));
        put(self.deleted.len() as u64);
        self.deleted.iter().for_each(|name| put_name(&mut bytes, name));
        bytes.extend_from_slice(&(self.floors.len() as u64).to_be_bytes());
        for (name, floor) in &self.floors {
            bytes.extend_from_slice(&floor.log_offset.to_be_bytes());
            bytes.extend_from_slice(&floor.deleted.to_be_bytes());
            put_name(&mut bytes, name);
        }
        bytes.extend_from_slice(&crc32(&bytes).to_be_bytes());
        bytes
    }

    /// Decodes the result of [`Self::encode`]; `None` if it is not complete.
    pub fn decode(bytes: &[u8], selection: ExportSelection) -> Option<Self> {
        let (body, crc) = bytes.split_last_chunk::<4>()?;
        let mut reader = Fields(body.strip_prefix(MAGIC)?);
        if *crc != crc32(body).to_be_bytes() || reader.u32()? != VERSION {
            return None;
        }
        let limit = reader.u64()?;
        let timer = (0..reader.u64()?).map(|_| reader.u64()).collect::<Option<_>>()?;
        let levels =
            (0..reader.u64()?).map(|_| Some((reader.u64()?, reader.i64()?))).collect::<Option<_>>()?;
        let undecided = (0..reader.u64()?).map(|_| reader.i64()).collect::<Option<_>>()?;
        let name = |reader: &mut Fields<'_>| {
            let length = reader.u32()? as usize;
            Some(std::str::from_utf8(reader.bytes(length)?).ok()?.to_owned())
        };
        let deleted = (0..reader.u64()?).map(|_| name(&mut reader)).collect::<Option<_>>()?;
        let floor = |reader: &mut Fields<'_>| {
            let floor = Floor { log_offset: reader.u64()?, deleted: reader.u64()? };
            Some((name(reader)?, floor))
        };
        let floors = (0..reader.u64()?).map(|_| floor(&mut reader)).collect::<Option<_>>()?;
        Some(Self { selection, limit, delays: WaitingDelays { timer, levels }, undecided, deleted, floors })
    }
}

fn put_name(bytes: &mut Vec<u8>, name: &str) {
    bytes.extend_from_slice(&(name.len() as u32).to_be_bytes());
    bytes.extend_from_slice(name.as_bytes());
}

#[cfg(test)]
mod tests {
    use mqstore_format::properties::{DELAY, KEYS, TIMER_DEL_UNIQKEY, TIMER_OUT_MS};
    use mqstore_format::topic::OP_TOPIC;
    use mqstore_format::{Host, RecordSpec, SysFlag, push_property};

    use super::*;

    fn rules(topics: Option<&[&str]>, keep_waiting: bool) -> ExportRules {
        let topics = topics.map(|topics| topics.iter().map(|topic| (*topic).to_owned()).collect());
        ExportRules {
            selection: ExportSelection { topics, keep_waiting },
            limit: 4096,
            delays: WaitingDelays { timer: vec![100, 300], levels: vec![(200, -5)] },
            undecided: vec![7],
            deleted: BTreeSet::from(["gone".to_owned()]),
            floors: BTreeMap::from([("again".to_owned(), Floor { log_offset: 500, deleted: 150 })]),
        }
    }

    /// Returns what `rules` decide: `plain`, a reason, or topic, due time and properties of a waiting message.
    fn decided(rules: &ExportRules, topic: &str, offset: u64, properties: &[(&str, &str)]) -> String {
        let mut text = Vec::new();
        for (name, value) in properties {
            push_property(&mut text, name, value);
        }
        let host = Host::new([127, 0, 0, 1], 10_911);
        let plain = RecordSpec::new(topic, b"", host, host);
        let mut bytes = Vec::new();
        RecordSpec { queue_offset: offset as i64, properties: &text, ..plain }
            .encode_into(&mut bytes)
            .unwrap();
        match rules.decide(&RecordView::decode(&bytes).unwrap(), offset) {
            ExportDecision::Plain => "plain".to_owned(),
            ExportDecision::NotSelected => "not selected".to_owned(),
            ExportDecision::LeftOut(reason) => reason.name().to_owned(),
            ExportDecision::Waiting(WaitingMessage { topic, queue_id, due_ms, properties }) => {
                format!("{topic}/{queue_id} at {due_ms}: {}", String::from_utf8_lossy(&properties))
            }
        }
    }

    const MEANT: [(&str, &str); 3] = [(KEYS, "k"), (REAL_TOPIC, "t"), (REAL_QID, "3")];

    #[test]
    fn each_record_has_one_form() {
        let all = rules(None, true);
        let due = [(TIMER_OUT_MS, "2000")];
        let timer = [&MEANT[..], &due].concat();
        let cancel = [&timer[..], &[(TIMER_DEL_UNIQKEY, "k")]].concat();
        let level = [&MEANT[..], &[(DELAY, "3")]].concat();
        assert_eq!(decided(&all, "t", 0, &MEANT), "plain");
        assert_eq!(decided(&all, "%RETRY%g", 0, &[]), "plain");
        assert_eq!(decided(&all, "gone", 0, &[]), "deleted");
        assert_eq!([499, 500].map(|at| decided(&all, "again", at, &[])), ["deleted", "plain"]);
        assert_eq!(decided(&rules(Some(&["again"]), true), "again", 499, &[]), "deleted");
        assert_eq!(decided(&all, TIMER_TOPIC, 100, &timer), "t/3 at 3000: KEYS\u{1}k\u{2}");
        assert_eq!(decided(&all, TIMER_TOPIC, 101, &timer), "done");
        let again = [(REAL_TOPIC, "again"), (REAL_QID, "3"), due[0]];
        assert_eq!(
            [100, 300].map(|at| decided(&all, TIMER_TOPIC, at, &again)),
            ["deleted", "again/3 at 3000: "]
        );
        assert_eq!(decided(&all, TIMER_TOPIC, 100, &cancel), "internal");
        assert_eq!(decided(&all, TIMER_TOPIC, 100, &due), "done");
        assert_eq!(decided(&all, SCHEDULE_TOPIC, 200, &level), "t/3 at -5: KEYS\u{1}k\u{2}");
        assert_eq!(decided(&all, SCHEDULE_TOPIC, 201, &level), "done");
        assert_eq!(decided(&all, HALF_TOPIC, 7, &MEANT), "undecided");
        assert_eq!(decided(&all, HALF_TOPIC, 8, &MEANT), "done");
        assert_eq!(decided(&all, OP_TOPIC, 0, &[]), "internal");
        let dropped = rules(None, false);
        assert_eq!(decided(&dropped, TIMER_TOPIC, 300, &timer), "waiting");
        assert_eq!(decided(&dropped, SCHEDULE_TOPIC, 200, &level), "waiting");
    }

    #[test]
    fn named_topics_bring_the_messages_that_wait_for_them() {
        let timer = [&MEANT[..], &[(TIMER_OUT_MS, "2000")]].concat();
        let own = rules(Some(&["t"]), true);
        assert_eq!(own.topics_to_read().unwrap(), [HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, "t"]);
        assert_eq!(decided(&own, TIMER_TOPIC, 100, &timer), "t/3 at 3000: KEYS\u{1}k\u{2}");
        assert_eq!(decided(&own, TIMER_TOPIC, 101, &timer), "not selected");
        assert_eq!(decided(&own, HALF_TOPIC, 7, &MEANT), "undecided");
        let other = rules(Some(&["u", TIMER_TOPIC]), true);
        assert_eq!(decided(&other, TIMER_TOPIC, 101, &timer), "plain");
        assert_eq!(decided(&other, HALF_TOPIC, 7, &MEANT), "not selected");
        assert_eq!(decided(&other, SCHEDULE_TOPIC, 200, &MEANT), "not selected");
        assert_eq!(rules(Some(&[]), true).topics_to_read().unwrap(), [""; 0]);
    }

    #[test]
    fn a_record_of_no_queue_is_internal() {
        let host = Host::new([127, 0, 0, 1], 10_911);
        let mut bytes = Vec::new();
        let spec = RecordSpec { sys_flag: SysFlag(4), ..RecordSpec::new("t", b"half", host, host) };
        spec.encode_into(&mut bytes).unwrap();
        let decision = rules(None, true).decide(&RecordView::decode(&bytes).unwrap(), 0);
        assert_eq!(decision, ExportDecision::LeftOut(Omission::Internal));
    }

    #[test]
    fn stored_rules_come_back_and_a_changed_byte_is_noticed() {
        let rules = rules(None, true);
        let mut bytes = rules.encode();
        assert_eq!(ExportRules::decode(&bytes, rules.selection.clone()), Some(rules.clone()));
        for at in 0..bytes.len() {
            bytes[at] ^= 0x10;
            assert_eq!(ExportRules::decode(&bytes, rules.selection.clone()), None, "byte {at}");
            bytes[at] ^= 0x10;
            assert_eq!(ExportRules::decode(&bytes[..at], rules.selection.clone()), None);
        }
    }
}
