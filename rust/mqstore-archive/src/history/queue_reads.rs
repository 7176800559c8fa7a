//! Reads of one queue, and of the queues of a topic merged by store time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::message::{MessageFilter, StoredRecord};
use mqstore_base::topic_floors::FloorTable;
use mqstore_engine::{RecordTest, ScanRequest};

use super::{Damage, History, messages};
use crate::manifest::ArchivedFile;
use crate::reader::{ArchiveReader, QueuePart};

/// The part of a queue that a read takes from an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRange {
    /// The queue.
    pub queue_id: i32,
    /// First queue offset.
    pub start: i64,
    /// Queue offset to stop at, exclusive.
    pub end: i64,
}

/// A read of one queue.
#[derive(Debug)]
pub struct QueueReads {
    reader: Arc<ArchiveReader>,
    test: RecordTest,
    wanted: QueueRange,
    parts: VecDeque<QueuePart>,
    /// The rows of the first part that are left; `None` at its begin.
    rows: Option<RowsLeft>,
    damage: Damage,
}

impl QueueReads {
    /// Returns the next messages that pass the filter, perhaps none, and the queue offset after them; `None` at the end.
    ///
    /// # Errors
    /// The archive is damaged or does not answer. The next call tries again.
    pub fn next_messages(&mut self) -> Result<Option<(Vec<StoredRecord>, i64)>, StoreError> {
        while let Some(part) = self.parts.front() {
            let step = step(&self.reader, part, self.wanted, self.rows, &self.test);
            let step = self.damage.unless_damaged(step)?.flatten();
            self.rows = step.as_ref().and_then(|step| step.rows);
            if self.rows.is_none() {
                self.parts.pop_front();
            }
            if let Some(step) = step {
                return Ok(Some(step.found));
            }
        }
        Ok(None)
    }

    /// Returns the warnings about damage since the last call.
    pub fn take_warnings(&mut self) -> Vec<String> {
        self.damage.take_warnings()
    }
}

/// The next row of a part of a queue, the row at which the part ends, and whether it is the first row of the read.
type RowsLeft = (usize, usize, bool);

/// Rows of a part that were read.
struct Step {
    found: (Vec<StoredRecord>, i64),
    /// The rows after them, if there are any.
    rows: Option<RowsLeft>,
}

/// Reads the next rows of a part; `rows` are those that are left, or `None` at its begin. `None` if no row is wanted.
fn step(
    reader: &ArchiveReader,
    part: &QueuePart,
    wanted: QueueRange,
    rows: Option<RowsLeft>,
    test: &RecordTest,
) -> Result<Option<Step>, StoreError> {
    let (first, end_row, is_first) = if let Some(rows) = rows {
        rows
    } else {
        let end_row = part.end_row_of(reader, wanted.end)?;
        // The last record can be a batch with the offset.
        let first = part.row_of(reader, wanted.start)?.min(part.end_row().saturating_sub(1));
        (first, end_row, end_row.saturating_sub(first) > 1)
    };
    if first >= end_row {
        return Ok(None);
    }
    let (batch, next) = reader.rows(part, first, end_row, is_first)?;
    let found = messages(reader, &part.file, &batch, test)?;
    Ok(Some(Step { found, rows: (next < end_row).then_some((next, end_row, false)) }))
}

/// The parts of queues in a file, each with the wanted range of its queue.
type PartsOfFile = (Arc<ArchivedFile>, Vec<(QueuePart, QueueRange)>);

/// A read of several queues, merged by store time and log offset within each range of the log.
#[derive(Debug)]
pub struct TopicReads {
    reader: Arc<ArchiveReader>,
    topic: String,
    filter: Option<MessageFilter>,
    floors: Arc<FloorTable>,
    files: VecDeque<PartsOfFile>,
    damage: Damage,
}

impl TopicReads {
    /// Returns the messages of the next file, perhaps none; `None` at the end.
    ///
    /// # Errors
    /// The archive is damaged or does not answer. The next call tries again.
    pub fn next_messages(&mut self) -> Result<Option<Vec<StoredRecord>>, StoreError> {
        let Some((_, parts)) = self.files.front() else { return Ok(None) };
        let mut queues = Vec::new();
        for (part, wanted) in parts {
            let mut reads = QueueReads {
                reader: Arc::clone(&self.reader),
                test: test_of(&self.topic, *wanted, self.filter.as_ref(), &self.floors),
                wanted: *wanted,
                parts: VecDeque::from([part.clone()]),
                rows: None,
                damage: self.damage.clone(),
            };
            let mut queue = VecDeque::new();
            while let Some((found, _)) = reads.next_messages()? {
                queue.extend(found);
            }
            self.damage = reads.damage;
            queues.push(queue);
        }
        let merged = merged(queues);
        self.files.pop_front();
        Ok(Some(merged))
    }

    /// Returns the warnings about damage since the last call.
    pub fn take_warnings(&mut self) -> Vec<String> {
        self.damage.take_warnings()
    }
}

/// Merges queues by the store time and the log offset of their next messages.
fn merged(mut queues: Vec<VecDeque<StoredRecord>>) -> Vec<StoredRecord> {
    let order = |record: &StoredRecord| {
        let time_ms = record.view().map_or(0, |view| view.store_timestamp);
        (time_ms, record.commit_log_offset)
    };
    let mut heads: BinaryHeap<_> = queues
        .iter()
        .enumerate()
        .filter_map(|(number, queue)| Some(Reverse((order(queue.front()?), number))))
        .collect();
    let mut found = Vec::with_capacity(queues.iter().map(VecDeque::len).sum());
    while let Some(Reverse((_, number))) = heads.pop() {
        let Some(queue) = queues.get_mut(number) else { continue };
        found.extend(queue.pop_front());
        if let Some(next) = queue.front() {
            heads.push(Reverse((order(next), number)));
        }
    }
    found
}

fn test_of(
    topic: &str,
    wanted: QueueRange,
    filter: Option<&MessageFilter>,
    floors: &Arc<FloorTable>,
) -> RecordTest {
    let request = ScanRequest {
        topics: Some(vec![topic.to_owned()]),
        queue_id: Some(wanted.queue_id),
        start_offset: Some(wanted.start),
        end_offset: Some(wanted.end),
        filter: filter.cloned(),
        ..ScanRequest::default()
    };
    RecordTest::new(&request, Arc::clone(floors))
}

impl History {
    /// Starts to read a part of a queue that ends where the log begins, at log offset `log_start`.
    ///
    /// # Errors
    /// Those of [`Self::parts_of`].
    pub fn queue(
        &self,
        floors: &Arc<FloorTable>,
        topic: &str,
        wanted: QueueRange,
        log_start: u64,
        filter: Option<&MessageFilter>,
        mut damage: Damage,
    ) -> Result<QueueReads, StoreError> {
        let parts = self.parts_of(floors, topic, wanted, log_start, &mut damage)?.into();
        let (reader, test) = (Arc::clone(&self.reader), test_of(topic, wanted, filter, floors));
        Ok(QueueReads { reader, test, wanted, parts, rows: None, damage })
    }

    /// Starts to read parts of several queues.
    ///
    /// # Errors
    /// Those of [`Self::parts_of`].
    pub fn topic(
        &self,
        floors: &Arc<FloorTable>,
        topic: &str,
        wanted: &[QueueRange],
        log_start: u64,
        filter: Option<&MessageFilter>,
        mut damage: Damage,
    ) -> Result<TopicReads, StoreError> {
        let mut files: Vec<PartsOfFile> = Vec::new();
        for one in wanted {
            for part in self.parts_of(floors, topic, *one, log_start, &mut damage)? {
                match files.iter_mut().find(|(file, _)| file.path == part.file.path) {
                    Some((_, parts)) => parts.push((part, *one)),
                    None => files.push((Arc::clone(&part.file), vec![(part, *one)])),
                }
            }
        }
        files.sort_by_key(|(file, _)| file.start);
        Ok(TopicReads {
            reader: Arc::clone(&self.reader),
            topic: topic.to_owned(),
            filter: filter.cloned(),
            floors: Arc::clone(floors),
            files: files.into(),
            damage,
        })
    }
}
