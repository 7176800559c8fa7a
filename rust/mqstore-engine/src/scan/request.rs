//! The request of a scan, and the test whether a record matches it.

use std::borrow::Cow;
use std::cell::OnceCell;

use mqstore_format::properties::{KEYS, UNIQ_KEY};
use mqstore_format::{RecordView, validate_stored_topic};
use regex::bytes::Regex;

use mqstore_base::message::MessageFilter;

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
    /// Reads the given parts of queues like [`Store::read`](super::Store::read), queue by queue. For compacted queues
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
    body: OnceCell<Option<Cow<'a, [u8]>>>,
}

impl<'a> ScanRow<'a> {
    /// Makes a row of the record at log offset `offset`.
    pub fn new(record: &'a RecordView<'a>, offset: u64) -> Self {
        Self { record, offset, body: OnceCell::new() }
    }

    /// Returns the decompressed body; `None` if decompression fails. Decompresses once.
    pub fn body(&self) -> Option<&[u8]> {
        if !self.record.sys_flag.compressed() {
            return Some(self.record.body);
        }
        self.body.get_or_init(|| self.record.unpacked_body().ok()).as_deref()
    }
}

/// The test whether a record is a row.
#[derive(Clone, Debug)]
pub(super) struct RowFilter {
    /// Sorted.
    topics: Option<Vec<String>>,
    record_topic: Option<String>,
    /// Sorted.
    ranges: Option<Vec<ScanRange>>,
    queue_id: Option<i32>,
    offsets: Option<(i64, i64)>,
    times: Option<(i64, i64)>,
    keys: Vec<String>,
    filter: Option<MessageFilter>,
    body: Option<Regex>,
}

impl RowFilter {
    pub(super) fn new(request: &ScanRequest) -> Self {
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
        Self {
            topics,
            ranges,
            record_topic: request.record_topic.clone(),
            queue_id: request.queue_id,
            offsets: range(request.start_offset, request.end_offset),
            times: range(request.start_ms, request.end_ms),
            keys: request.keys.clone(),
            filter: request.filter.clone(),
            body: request.body.clone(),
        }
    }

    /// Whether a unit with this tags code can belong to a row.
    pub(super) fn may_match_code(&self, tags_code: i64) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.may_match_code(tags_code))
    }

    #[inline]
    pub(super) fn passes(&self, row: &ScanRow<'_>) -> bool {
        let record = row.record;
        if record.is_placeholder() {
            return false;
        }
        if let Some(topics) = &self.topics {
            let known = match topics.as_slice() {
                [one] => one == record.topic,
                many => many.binary_search_by(|topic| topic.as_str().cmp(record.topic)).is_ok(),
            };
            let queued = record.queue_id >= 0 && record.queue_offset >= 0 && record.dispatches_to_queue();
            if !known || !queued {
                return false;
            }
        }
        let within = |range: Option<(i64, i64)>, value: i64| {
            range.is_none_or(|(start, end)| start <= value && (value < end || end == i64::MAX))
        };
        self.record_topic.as_ref().is_none_or(|topic| topic == record.topic)
            && self.ranges.as_ref().is_none_or(|ranges| in_ranges(ranges, record))
            && self.queue_id.is_none_or(|id| id == record.queue_id)
            && within(self.offsets, record.queue_offset)
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

/// Whether one of `ranges`, which are sorted, contains the record.
fn in_ranges(ranges: &[ScanRange], record: &RecordView<'_>) -> bool {
    let order =
        |range: &ScanRange| range.topic.as_str().cmp(record.topic).then(range.queue_id.cmp(&record.queue_id));
    let found = ranges.binary_search_by(order).ok().and_then(|at| ranges.get(at));
    found.is_some_and(|range| (range.start..range.end).contains(&record.queue_offset))
}
