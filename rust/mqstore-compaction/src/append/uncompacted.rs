//! Finds messages in the commit log that no compaction has read yet.
//!
//! Owns the check that retention makes before it removes a segment: does the segment contain keyed messages of a
//! compaction topic that are neither copied to its files nor read by a compaction? The answer comes from the files
//! on disk, which are made durable first:
//!
//! ```text
//! compacted   one past the last offset in the files of compaction/, or that was read for them
//!             (mqstore/compaction.json, if it describes these files)
//! the rest    units from this offset on that point into the segment, and their records;
//!             if the queue cannot be trusted, all records of the segment
//! ```
//!
//! Syncs files, but writes nothing and takes no lock. A compaction that is published meanwhile only covers more
//! messages.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use mqstore_format::json::TopicConfig;
use mqstore_format::{CqUnit, RecordView};
use mqstore_io::switch;

use crate::compaction_key::compaction_key;
use crate::files::cursor::last_offset;
use crate::files::folder::{QueueFolder, open_listed, queue_ids};
use crate::files::generation::GenerationState;
use crate::files::manifest::{GenerationFacts, Manifest};
use crate::files::positions::PositionCheckpoint;
use crate::files::topics::CompactionTopics;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;
use mqstore_log::commit_log::{LogScanner, ScanChecks, ScanItem, Segment, SegmentList, read_record};
use mqstore_log::consume_queue::{ConsumeQueue, QueueSet};

/// Number of queue units in one read.
const CHUNK_UNITS: usize = 1024;

/// The first message of a queue in a segment that no compaction has read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UncompactedMessage {
    pub(crate) topic: String,
    pub(crate) queue_id: i32,
    pub(crate) queue_offset: i64,
}

impl fmt::Display for UncompactedMessage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} (queue {} from offset {} on)", self.topic, self.queue_id, self.queue_offset)
    }
}

/// Returns one past the last compacted queue offset, and the token of the queue's files.
pub fn compacted_end(files: &StoreFiles, topic: &str, queue_id: i32) -> Result<(i64, String), StoreError> {
    let state = GenerationState::load(files, topic, queue_id)?;
    let end = state.known(files, &Manifest::load(files)?, topic, queue_id)?.end;
    Ok((end, state.token))
}

/// A queue whose compaction files end after the log's end of the queue.
pub struct QueueAheadOfLog {
    /// Topic of the queue.
    pub topic: String,
    /// Id of the queue.
    pub queue_id: i32,
    /// The next queue offset in the log.
    pub log_end: i64,
    /// One past the last offset in the files, or that was read for them.
    pub end: i64,
}

/// Returns the queues of `topics` whose compaction files end after `log_end`, the log's end of the queue. Queues with
/// unreadable files are skipped.
pub fn queues_ahead_of_log(
    files: &StoreFiles,
    topics: &[(String, u32)],
    log_end: impl Fn(&str, i32) -> Option<i64>,
) -> Result<Vec<QueueAheadOfLog>, StoreError> {
    let compaction = files.compaction();
    let mut taken = CompactedEnds::load(files)?;
    let mut found = Vec::new();
    for (topic, _) in topics {
        for queue_id in queue_ids(files, &compaction, topic)? {
            let Some(log_end) = log_end(topic, queue_id) else { continue };
            let read = taken.positions.end(topic, queue_id);
            let known = taken.manifest.generations(topic, queue_id).iter().map(|each| each.end);
            let is_known = known.chain([read]).any(|end| end > log_end);
            // Do not read all units of all queues when a store with many queues is opened.
            if !is_known && !may_contain(files, topic, queue_id, log_end)? {
                continue;
            }
            let end = taken.known(topic, queue_id)?.end.max(read);
            if end > log_end {
                found.push(QueueAheadOfLog { topic: topic.clone(), queue_id, log_end, end });
            }
        }
    }
    Ok(found)
}

/// Whether the files of a queue may contain `offset` or a later one.
fn may_contain(files: &StoreFiles, topic: &str, queue_id: i32, offset: i64) -> Result<bool, StoreError> {
    let folder = QueueFolder::load(files, &files.compaction(), topic, queue_id)?;
    for pair in folder.pairs.iter().rev() {
        let Some(queue) = &pair.queue else { return Ok(true) };
        if let Some(last) = last_offset(files, queue)? {
            return Ok(last >= offset);
        }
    }
    Ok(false)
}

/// Returns the compaction topics with a queue that has at least this ratio of new messages, or from which a compaction
/// can remove expired values, sorted. The ratio compares messages after the last compaction with these and the ones that
/// it kept; an unknown number of kept ones counts as 0.
///
/// A compaction for expired values waits until the oldest value has expired for as long as values count. So the files of
/// a queue are rewritten at most once in that time.
pub fn dirty_topics(files: &StoreFiles, queues: &QueueSet, ratio: f64) -> Result<Vec<String>, StoreError> {
    let topics = CompactionTopics::load(files)?;
    if topics.is_empty() {
        return Ok(Vec::new());
    }
    let mut taken = CompactedEnds::load(files)?;
    let now_ms = files.clock.now_ms();
    let mut found = Vec::new();
    for (topic, ids) in queues.topics() {
        if !topics.contains(&topic) {
            continue;
        }
        let after_ms = topics.config(&topic).and_then(TopicConfig::expire_after_ms);
        let due_to_ms = after_ms.map(|after_ms| now_ms.saturating_sub(after_ms.saturating_mul(2)));
        for queue_id in ids {
            let Some(queue) = queues.get(&topic, queue_id) else { continue };
            let known = taken.known(&topic, queue_id)?;
            let new = queue.max_offset() - known.compacted.max(queue.min_offset());
            let all = new as f64 + known.kept as f64;
            let has_expired = due_to_ms.zip(known.oldest_ms).is_some_and(|(to_ms, oldest)| oldest <= to_ms);
            if has_expired || (new > 0 && new as f64 >= ratio * all) {
                found.push(topic);
                break;
            }
        }
    }
    Ok(found)
}

/// The offsets in the compaction files of a queue.
#[derive(Clone, Copy, Debug, Default)]
struct CompactedRange {
    /// One past the last queue offset in the files, or that was read for them.
    end: i64,
    /// One past the last queue offset that a compaction has read.
    compacted: i64,
    /// Number of messages that the last compaction kept; 0 if unknown.
    kept: u64,
    /// Store time in milliseconds of the oldest value that it kept; `None` if unknown.
    oldest_ms: Option<i64>,
}

/// The compacted ends of queues, loaded on demand.
pub(crate) struct CompactedEnds<'a> {
    files: &'a StoreFiles,
    manifest: Manifest,
    positions: PositionCheckpoint,
    queues: BTreeMap<(String, i32), CompactedRange>,
}

impl<'a> CompactedEnds<'a> {
    pub(crate) fn load(files: &'a StoreFiles) -> Result<Self, StoreError> {
        let (manifest, positions) =
            (Manifest::load(files)?, PositionCheckpoint::load(files, &files.compaction())?);
        Ok(Self { files, manifest, positions, queues: BTreeMap::new() })
    }

    /// Returns one past the last queue offset that is durable in the files, or that a compaction has read for them; 0
    /// if they cannot be read.
    pub(crate) fn end(&mut self, topic: &str, queue_id: i32) -> Result<i64, StoreError> {
        let first = !self.queues.contains_key(&(topic.to_owned(), queue_id));
        let end = self.known(topic, queue_id)?.end;
        if first {
            sync_last(self.files, topic, queue_id)?;
        }
        Ok(end)
    }

    fn known(&mut self, topic: &str, queue_id: i32) -> Result<CompactedRange, StoreError> {
        let name = (topic.to_owned(), queue_id);
        if let Some(known) = self.queues.get(&name) {
            return Ok(*known);
        }
        let known = match GenerationState::load(self.files, topic, queue_id) {
            Ok(state) => {
                let read = self.positions.end(topic, queue_id);
                let known = state.known(self.files, &self.manifest, topic, queue_id)?.compacted_to(read);
                let kept = known.generation.map_or(0, GenerationFacts::records);
                let oldest_ms = known.generation.and_then(|facts| facts.oldest_ms);
                CompactedRange { end: known.end, compacted: known.fed_from, kept, oldest_ms }
            }
            Err(StoreError::Corrupt { .. }) => CompactedRange::default(),
            Err(error) => return Err(error),
        };
        self.queues.insert(name, known);
        Ok(known)
    }
}

/// Syncs the last files of a queue: a broker or a running compaction appender may not have done that yet. Earlier files
/// were synced before the next ones were created.
fn sync_last(files: &StoreFiles, topic: &str, queue_id: i32) -> Result<(), StoreError> {
    let folder = QueueFolder::load(files, &files.compaction(), topic, queue_id)?;
    let Some(last) = folder.pairs.last() else { return Ok(()) };
    for file in [Some(&last.log), last.queue.as_ref()].into_iter().flatten() {
        // A file that was replaced meanwhile was synced before.
        let Some(open) = open_listed(files, file)? else { continue };
        let dir = file.path.parent().unwrap_or(&file.path);
        switch::step("retention.sync_copies", || open.sync_data().and_then(|()| files.vfs.sync_dir(dir)))
            .at(&file.path, "syncing a compaction file")?;
    }
    Ok(())
}

/// Searches segments for messages that no compaction has read. It does not see compactions published meanwhile.
pub struct UncompactedSearch<'a> {
    files: &'a StoreFiles,
    list: &'a Arc<SegmentList>,
    topics: CompactionTopics,
    taken: CompactedEnds<'a>,
}

impl<'a> UncompactedSearch<'a> {
    /// Loads the compaction topics and the positions of their queues.
    pub fn load(files: &'a StoreFiles, list: &'a Arc<SegmentList>) -> Result<Self, StoreError> {
        Ok(Self { files, list, topics: CompactionTopics::load(files)?, taken: CompactedEnds::load(files)? })
    }

    /// Returns, for each compaction topic, the first keyed message of one queue in `segment` that no compaction has
    /// read. `trusted` says that `queues` have a unit for each record of the segment. Otherwise the segment itself is
    /// read, and only the first topic is returned.
    pub fn in_segment(
        &mut self,
        queues: &QueueSet,
        trusted: bool,
        segment: &Segment,
    ) -> Result<Vec<UncompactedMessage>, StoreError> {
        if self.topics.is_empty() {
            return Ok(Vec::new());
        }
        if trusted && let Some(found) = self.search_queues(queues, segment)? {
            return Ok(found);
        }
        Ok(self.search_log(segment)?.into_iter().collect())
    }

    /// Follows the consume queues; `None` if one of them does not match the log.
    fn search_queues(
        &mut self,
        queues: &QueueSet,
        segment: &Segment,
    ) -> Result<Option<Vec<UncompactedMessage>>, StoreError> {
        let mut found = Vec::new();
        for (topic, ids) in queues.topics() {
            if !self.topics.contains(&topic) {
                continue;
            }
            for queue_id in ids {
                let Some(queue) = queues.get(&topic, queue_id).filter(|queue| queue.damaged().is_none())
                else {
                    return Ok(None);
                };
                match self.in_queue(&queue, segment)? {
                    FollowOutcome::First(queue_offset) => {
                        found.push(UncompactedMessage { topic, queue_id, queue_offset });
                        break;
                    }
                    FollowOutcome::Nothing => {}
                    FollowOutcome::Disagrees => return Ok(None),
                }
            }
        }
        Ok(Some(found))
    }

    fn in_queue(&mut self, queue: &ConsumeQueue, segment: &Segment) -> Result<FollowOutcome, StoreError> {
        let end = self.taken.end(queue.topic(), queue.queue_id())?;
        let mut offset = end.max(queue.min_offset());
        let mut units: Vec<CqUnit> = Vec::new();
        while offset < queue.max_offset() {
            units.clear();
            queue.read(offset, CHUNK_UNITS, &mut units)?;
            if units.is_empty() {
                break;
            }
            for unit in &units {
                // A gap is an offset without a message.
                let place = u64::try_from(unit.physical_offset).ok().filter(|_| unit.is_valid());
                match place.filter(|place| *place >= segment.base_offset()) {
                    Some(place) if place >= segment.end_offset() => return Ok(FollowOutcome::Nothing),
                    Some(place) => match self.is_keyed(place, unit, queue, offset)? {
                        Some(true) => return Ok(FollowOutcome::First(offset)),
                        Some(false) => {}
                        None => return Ok(FollowOutcome::Disagrees),
                    },
                    None => {}
                }
                offset += 1;
            }
        }
        Ok(FollowOutcome::Nothing)
    }

    /// Whether the message that `unit` points to has a key; `None` if the record does not match.
    fn is_keyed(
        &self,
        place: u64,
        unit: &CqUnit,
        queue: &ConsumeQueue,
        queue_offset: i64,
    ) -> Result<Option<bool>, StoreError> {
        let bytes = match read_record(self.files, self.list, place, unit.size.max(0) as usize) {
            Err(StoreError::Corrupt { .. }) => return Ok(None),
            bytes => bytes?,
        };
        Ok(RecordView::decode(bytes.as_slice()).ok().and_then(|record| {
            let agrees = record.topic == queue.topic()
                && record.queue_id == queue.queue_id()
                && record.queue_offset == queue_offset;
            agrees.then(|| compaction_key(&record).is_some())
        }))
    }

    /// Reads the segment. Damaged records are not held back, because a compaction cannot read them either.
    fn search_log(&mut self, segment: &Segment) -> Result<Option<UncompactedMessage>, StoreError> {
        let (from, to) = (segment.base_offset(), segment.end_offset());
        let mut scanner = LogScanner::new(Arc::clone(self.list), from, to, ScanChecks { crc: false });
        loop {
            let offset = scanner.position();
            match scanner.next_item()? {
                ScanItem::Record(record) => {
                    if self.topics.contains(record.topic)
                        && !self.topics.floors().hides(record.topic, offset)
                        && record.dispatches_to_queue()
                        && compaction_key(&record).is_some()
                        && record.queue_offset >= self.taken.end(record.topic, record.queue_id)?
                    {
                        return Ok(Some(UncompactedMessage {
                            topic: record.topic.to_owned(),
                            queue_id: record.queue_id,
                            queue_offset: record.queue_offset,
                        }));
                    }
                }
                ScanItem::Filler { .. } => {}
                ScanItem::End { .. } => return Ok(None),
                ScanItem::Damaged(damage) => {
                    if scanner.skip(&damage)?.is_none() {
                        return Ok(None);
                    }
                }
            }
        }
    }
}

/// The result of following a queue's units.
enum FollowOutcome {
    /// The queue offset of the first keyed message that no compaction has read.
    First(i64),
    Nothing,
    Disagrees,
}
