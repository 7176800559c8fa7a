//! The bytes of each topic in the log: those that reads find, and those that floors hide.
//!
//! Owns the estimate of the bytes that a rewrite of a segment could free: only whole pages of the file system inside a
//! run of adjacent hidden records.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::topic_floors::{FloorTable, TopicRetention};
use mqstore_log::commit_log::{LogScanner, ScanChecks, ScanItem};

use crate::read::view::View;

/// Bytes of a page of the file system.
const PAGE_BYTES: u64 = 4096;

/// Maximum bytes of the record that would replace a run of hidden records.
const LONGEST_RUN: u64 = 1 << 20;

/// Bytes at the begin of such a record that stay: its fixed fields and its topic.
const HEAD_BYTES: u64 = 384;

/// Bytes of the log between two calls of `carry_on`.
const STEP_BYTES: u64 = 4 << 20;

/// The bytes of one topic, and its limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicUsage {
    /// The topic.
    pub topic: String,
    /// Its limits.
    pub limits: TopicRetention,
    /// Its floor: the records of the topic before this log offset are hidden; 0 if none are.
    pub log_offset: u64,
    /// Bytes of its records that reads can find.
    pub live_bytes: u64,
    /// Bytes of its records in the log that the floor hides.
    pub dead_bytes: u64,
    /// Estimate of the bytes among them that a rewrite of segments could free.
    pub reclaimable_bytes: u64,
}

/// A run of adjacent hidden records in one segment.
#[derive(Default)]
struct HiddenRun {
    start: u64,
    end: u64,
    /// Bytes of each topic in the run.
    topics: BTreeMap<Arc<str>, u64>,
}

/// Returns the bytes of the topics that have a retention or hidden records, by name. Reads the whole log. Calls
/// `carry_on` about once in 4 MiB; if it returns an error, the work ends with it.
///
/// # Errors
/// Errors of reads, and of `carry_on`.
pub(crate) fn usage(
    view: &dyn View,
    carry_on: &mut dyn FnMut() -> Result<(), StoreError>,
) -> Result<Vec<TopicUsage>, StoreError> {
    let end = view.catch_up()?;
    let (list, floors, limits) = (view.list(), view.floors(), view.retentions());
    let mut found = UsageByTopic::new(&floors);
    for (topic, limits) in limits {
        found.of(&topic).limits = limits;
    }
    let mut scanner = LogScanner::new(Arc::clone(&list), list.min_offset(), end, ScanChecks { crc: false });
    let mut next_step = 0;
    let mut run = HiddenRun::default();
    loop {
        let offset = scanner.position();
        if offset >= next_step {
            carry_on()?;
            next_step = offset + STEP_BYTES;
        }
        let is_new_segment = list.find(offset).is_some_and(|segment| segment.base_offset() == offset);
        match scanner.next_item() {
            // It replaces records whose space is free.
            Ok(ScanItem::Record(record)) if record.is_placeholder() => found.end_run(&mut run),
            Ok(ScanItem::Record(record)) => {
                let (topic, bytes) = (found.name(record.topic), u64::from(record.size));
                let usage = found.of(&topic);
                let is_hidden = offset < usage.log_offset;
                if is_hidden {
                    usage.dead_bytes += bytes;
                } else {
                    usage.live_bytes += bytes;
                }
                if !is_hidden || is_new_segment || run.end != offset {
                    found.end_run(&mut run);
                }
                if is_hidden {
                    if run.topics.is_empty() {
                        run.start = offset;
                    }
                    run.end = offset + bytes;
                    *run.topics.entry(topic).or_default() += bytes;
                }
            }
            Ok(ScanItem::Filler { .. }) => {}
            Ok(ScanItem::Damaged(damage)) => {
                if scanner.skip(&damage)?.is_none() {
                    break;
                }
            }
            Ok(ScanItem::End { .. }) => break,
            // A writer in another process removed the segment.
            Err(error) if error.is_gone() => match view.list().next_from(offset + 1) {
                Some(next) => scanner.seek(next.base_offset()),
                None => break,
            },
            Err(error) => return Err(error),
        }
    }
    found.end_run(&mut run);
    Ok(found.rows())
}

struct UsageByTopic<'a> {
    floors: &'a FloorTable,
    names: HashMap<Box<str>, Arc<str>>,
    topics: HashMap<Arc<str>, TopicUsage>,
}

impl<'a> UsageByTopic<'a> {
    fn new(floors: &'a FloorTable) -> Self {
        Self { floors, names: HashMap::new(), topics: HashMap::new() }
    }

    fn name(&mut self, topic: &str) -> Arc<str> {
        if let Some(known) = self.names.get(topic) {
            return Arc::clone(known);
        }
        let name: Arc<str> = topic.into();
        self.names.insert(topic.into(), Arc::clone(&name));
        name
    }

    fn of(&mut self, topic: &Arc<str>) -> &mut TopicUsage {
        let floors = self.floors;
        self.topics.entry(Arc::clone(topic)).or_insert_with_key(|topic| TopicUsage {
            topic: topic.to_string(),
            log_offset: floors.log_offset(topic),
            ..TopicUsage::default()
        })
    }

    /// Divides the pages that `run` would free among its topics, and empties it.
    fn end_run(&mut self, run: &mut HiddenRun) {
        let HiddenRun { start, end, topics } = std::mem::take(run);
        let (bytes, freed) = (end - start, freed_bytes(start, end));
        for (topic, own) in topics {
            let share = u128::from(freed) * u128::from(own) / u128::from(bytes.max(1));
            self.of(&topic).reclaimable_bytes += share as u64;
        }
    }

    fn rows(self) -> Vec<TopicUsage> {
        let shown = |usage: &TopicUsage| !usage.limits.is_empty() || usage.dead_bytes > 0;
        let mut rows: Vec<TopicUsage> = self.topics.into_values().filter(shown).collect();
        rows.sort_unstable_by(|left, right| left.topic.cmp(&right.topic));
        rows
    }
}

/// Returns the bytes of whole pages that the records for the run from `start` to `end` need not store.
fn freed_bytes(start: u64, end: u64) -> u64 {
    let (mut from, mut freed) = (start, 0);
    while from < end {
        let to = end.min(from.saturating_add(LONGEST_RUN));
        let first = (from + HEAD_BYTES).next_multiple_of(PAGE_BYTES);
        freed += (to - to % PAGE_BYTES).saturating_sub(first);
        from = to;
    }
    freed
}
