//! The request of a scan, and the test whether a record matches it.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::sync::Arc;

use mqstore_format::properties::{KEYS, UNIQ_KEY};
use mqstore_format::topic::LIGHT_QUEUE_PREFIX;
use mqstore_format::{EntryFields, RecordView, validate_stored_topic};
use regex::bytes::Regex;

use mqstore_base::message::MessageFilter;
use mqstore_base::options::DamagePolicy;
use mqstore_base::topic_floors::FloorTable;

/// How a scan finds its records. The rows are the same for each plan except [`ScanPlan::Messages`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScanPlan {
    /// The plan that reads less.
    #[default]
    Cheapest,
    /// Walks the log.
    Log,
    /// Follows the units of queues; only for scans of given topics.
    Queues,
    /// Reads the given parts of queues like [`Store::read`](crate::Store::read), queue by queue. For compacted queues
    /// it yields the compacted messages. A later scan cannot continue it.
    Messages,
}

/// A part of a queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScanRange {
    /// The topic.
    pub topic: String,
    /// The queue.
    pub queue_id: i32,
    /// The first queue offset.
    pub start: i64,
    /// One more than the last queue offset.
    pub end: i64,
}

/// The conditions of a scan; the default selects every message of the log.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a condition of its own")]
pub struct ScanRequest {
    /// Only messages in the queues of these topics.
    pub topics: Option<Vec<String>>,
    /// Only records of this topic, in queues or not.
    pub record_topic: Option<String>,
    /// Only these parts of queues, each queue once; replaces `topics`.
    pub ranges: Option<Vec<ScanRange>>,
    /// Only this queue of each topic.
    pub queue_id: Option<i32>,
    /// Only queue offsets from this one on.
    pub start_offset: Option<i64>,
    /// Only queue offsets before this one.
    pub end_offset: Option<i64>,
    /// Only messages stored at or after this time, in epoch milliseconds.
    pub start_ms: Option<i64>,
    /// Only messages stored before this time, in epoch milliseconds.
    pub end_ms: Option<i64>,
    /// Only messages that have one of these keys, also as their unique key.
    pub keys: Vec<String>,
    /// Only messages that match this filter.
    pub filter: Option<MessageFilter>,
    /// Only messages whose decompressed body matches.
    pub body: Option<Regex>,
    /// Continues at this log offset, the position of an earlier scan.
    pub from: Option<u64>,
    /// Ends before the first record at or after this log offset.
    pub to: Option<u64>,
    /// What the scan does at a damaged record of the wanted queues.
    pub on_damage: DamagePolicy,
    /// Whether the rows of compacted topics are their messages, as [`Store::read`](crate::Store::read) returns them, and
    /// not the records in the log. A later scan cannot continue such a scan.
    pub as_reads: bool,
    /// Whether the rows before the log come from the archive, if the store has one.
    pub with_older: bool,
    /// Whether a walk of the log also returns the records of deleted topics.
    pub with_deleted: bool,
    /// Whether the caller gets records elsewhere that are deleted before the scan reads them. Then no note names them.
    pub expects_deletion: bool,
    /// Number of threads that decode; with 0 or 1, the caller's thread decodes.
    pub threads: u32,
    /// How the records are found.
    pub plan: ScanPlan,
}

/// A record found by a scan.
pub struct ScanRow<'a> {
    /// The decoded record.
    pub record: &'a RecordView<'a>,
    /// Its log offset.
    pub offset: u64,
    /// The offset of its first message in the queue that the scan reads.
    pub queue_offset: i64,
    body: OnceCell<Option<Cow<'a, [u8]>>>,
}

impl<'a> ScanRow<'a> {
    /// Makes a row of the record at log offset `offset`, in its own queue.
    pub fn new(record: &'a RecordView<'a>, offset: u64) -> Self {
        Self { record, offset, queue_offset: own_offsets(record).0, body: OnceCell::new() }
    }

    /// Returns the row at another queue offset, for a record in a light queue.
    #[must_use]
    pub fn at(self, queue_offset: i64) -> Self {
        Self { queue_offset, ..self }
    }

    /// Returns the decompressed body; `None` if decompression fails. Decompresses once.
    pub fn body(&self) -> Option<&[u8]> {
        if !self.record.sys_flag.compressed() {
            return Some(self.record.body);
        }
        self.body.get_or_init(|| self.record.unpacked_body().ok()).as_deref()
    }
}

/// Returns the offset of a record in its own queue, and the offset after it.
fn own_offsets(record: &RecordView<'_>) -> (i64, i64) {
    let batch = if record.sys_flag.inner_batch() { record.inner_batch() } else { None };
    let (first, messages) =
        batch.map_or((record.queue_offset, 1), |(first, messages)| (first, messages.max(1)));
    (first, first.saturating_add(i64::from(messages)))
}

/// The conditions of a scan, for records that a caller has from another place than the log, such as an archive.
#[derive(Clone, Debug)]
pub struct RecordTest {
    filter: RowFilter,
}

impl RecordTest {
    /// Creates the test. It ignores the parts of the request that are places in the log. `floors` hides the records of
    /// deleted topics.
    pub fn new(request: &ScanRequest, floors: Arc<FloorTable>) -> Self {
        Self { filter: RowFilter::new(request, floors) }
    }

    /// Calls `visit` with each row that a scan makes of the record at a log offset.
    pub fn visit(&self, record: &RecordView<'_>, log_offset: u64, mut visit: impl FnMut(&ScanRow<'_>)) {
        let row = ScanRow::new(record, log_offset);
        if self.filter.passes(&row) {
            self.filter.visit_positions(record, log_offset, |queue_offset| {
                visit(&ScanRow::new(record, log_offset).at(queue_offset));
                true
            });
        }
    }
}

/// The test whether a record is a row.
#[derive(Clone, Debug)]
pub(crate) struct RowFilter {
    /// Sorted.
    topics: Option<Vec<String>>,
    /// Whether one of `topics` can be a light queue.
    names_light_queue: bool,
    record_topic: Option<String>,
    /// Sorted.
    ranges: Option<Vec<ScanRange>>,
    queue_id: Option<i32>,
    offsets: Option<(i64, i64)>,
    times: Option<(i64, i64)>,
    keys: Vec<String>,
    filter: Option<MessageFilter>,
    body: Option<Regex>,
    /// The floors of deleted topics. A scan that reads the log does not find their records.
    floors: Arc<FloorTable>,
}

impl RowFilter {
    pub(crate) fn new(request: &ScanRequest, floors: Arc<FloorTable>) -> Self {
        let range = |start: Option<i64>, end: Option<i64>| {
            (start.is_some() || end.is_some()).then(|| (start.unwrap_or(i64::MIN), end.unwrap_or(i64::MAX)))
        };
        let mut ranges = request.ranges.clone();
        if let Some(ranges) = &mut ranges {
            ranges.sort_unstable();
        }
        let named = |ranges: &Vec<ScanRange>| ranges.iter().map(|range| range.topic.clone()).collect();
        let mut topics = ranges.as_ref().map(named).or_else(|| request.topics.clone());
        if let Some(topics) = &mut topics {
            // A topic without a queue has no messages, and its name could point outside the store's folders.
            topics.retain(|topic| validate_stored_topic(topic).is_ok());
            topics.sort_unstable();
            topics.dedup();
        }
        let is_light = |topic: &String| topic.starts_with(LIGHT_QUEUE_PREFIX);
        Self {
            names_light_queue: topics.iter().flatten().any(is_light),
            topics,
            ranges,
            record_topic: request.record_topic.clone(),
            queue_id: request.queue_id,
            offsets: range(request.start_offset, request.end_offset),
            times: range(request.start_ms, request.end_ms),
            keys: request.keys.clone(),
            filter: request.filter.clone(),
            body: request.body.clone(),
            floors,
        }
    }

    /// Whether a unit with this tags code can belong to a row.
    pub(crate) fn may_match_code(&self, tags_code: i64) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.may_match_code(tags_code))
    }

    /// Calls `visit` with the offset of a record in each wanted queue that it is in: its own queue, and the light
    /// queues that it names, except light queues that were deleted after the record at log offset `at`. A hidden record
    /// is in no queue. Without wanted topics, every other record is visited once. Ends when `visit` returns `false`.
    #[inline]
    pub(crate) fn visit_positions(
        &self,
        record: &RecordView<'_>,
        at: u64,
        mut visit: impl FnMut(i64) -> bool,
    ) -> bool {
        if self.floors.hides(record.topic, at) {
            return true;
        }
        let own = own_offsets(record);
        let queued = record.queue_id >= 0 && own.0 >= 0 && record.dispatches_to_queue();
        let is_own = self.topics.is_none() || queued && self.wants(record.topic, record.queue_id, own);
        if is_own && !visit(own.0) {
            return false;
        }
        if !self.names_light_queue {
            return true;
        }
        let light = EntryFields::of(record.properties).light_queues(record.topic);
        let mut wanted = light.filter(|(name, offset)| {
            self.wants(name, 0, (*offset, offset.saturating_add(1))) && !self.floors.hides(name, at)
        });
        wanted.all(|(_, offset)| visit(offset))
    }

    /// Whether the record at log offset `at`, to which a unit leads, is before the floor of its topic. The minimum of a
    /// queue hides such records of the queue itself.
    pub(crate) fn hides_in_light_queue(&self, record: &RecordView<'_>, at: u64) -> bool {
        self.names_light_queue && self.floors.hides(record.topic, at)
    }

    /// Whether the scan wants the record at these offsets of a queue.
    fn wants(&self, topic: &str, queue_id: i32, (first, end): (i64, i64)) -> bool {
        let is_named = |topics: &Vec<String>| match topics.as_slice() {
            [one] => one == topic,
            many => many.binary_search_by(|known| known.as_str().cmp(topic)).is_ok(),
        };
        self.topics.as_ref().is_none_or(is_named)
            && self.queue_id.is_none_or(|id| id == queue_id)
            && self.wants_offset(first, end)
            && self.ranges.as_ref().is_none_or(|ranges| in_ranges(ranges, (topic, queue_id, first)))
    }

    /// Whether one of the offsets from `first` to `end` (exclusive) is in the wanted range.
    pub(crate) fn wants_offset(&self, first: i64, end: i64) -> bool {
        self.offsets.is_none_or(|(from, to)| from < end && (first < to || to == i64::MAX))
    }

    /// Whether a record of a wanted queue meets all other conditions.
    #[inline]
    pub(crate) fn passes(&self, row: &ScanRow<'_>) -> bool {
        let record = row.record;
        if record.is_placeholder() {
            return false;
        }
        let within = |range: Option<(i64, i64)>, value: i64| {
            range.is_none_or(|(start, end)| start <= value && (value < end || end == i64::MAX))
        };
        self.record_topic.as_ref().is_none_or(|topic| topic == record.topic)
            && within(self.times, record.store_timestamp)
            && (self.keys.is_empty() || self.has_key(record))
            && self.filter.as_ref().is_none_or(|filter| filter.matches(record))
            && self.body.as_ref().is_none_or(|body| row.body().is_some_and(|text| body.is_match(text)))
    }

    fn has_key(&self, record: &RecordView<'_>) -> bool {
        let [own, keys] = record.properties.get_many([UNIQ_KEY, KEYS]);
        let is_wanted = |key: &str| self.keys.iter().any(|wanted| wanted == key);
        own.is_some_and(is_wanted) || keys.is_some_and(|keys| keys.split(' ').any(is_wanted))
    }
}

/// Whether one of `ranges`, which are sorted, contains the message at an offset of a queue.
fn in_ranges(ranges: &[ScanRange], (topic, queue_id, offset): (&str, i32, i64)) -> bool {
    let order = |range: &ScanRange| range.topic.as_str().cmp(topic).then(range.queue_id.cmp(&queue_id));
    let found = ranges.binary_search_by(order).ok().and_then(|at| ranges.get(at));
    found.is_some_and(|range| (range.start..range.end).contains(&offset))
}
