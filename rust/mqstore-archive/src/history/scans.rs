//! Rows of a scan, and plain records, in the order of the log.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::RecordBatch;
use mqstore_base::error::StoreError;
use mqstore_base::topic_floors::FloorTable;
use mqstore_engine::{OlderRows, RecordTest, ScanRequest, ScanRow};
use mqstore_format::RecordView;
use mqstore_format::topic::LIGHT_QUEUE_PREFIX;
use mqstore_io::pool::Pool;

use super::{Damage, History, checked_record, has_times, overlaps};
use crate::file::FileError;
use crate::manifest::ArchivedFile;
use crate::reader::ArchiveReader;
use crate::records::ArchiveRows;

/// Largest number of messages in one record.
const MAX_IN_BATCH: i64 = i16::MAX as i64;

/// Largest number of records that [`ArchiveRecords::next_records`] returns at once, and their approximate bytes.
const RECORDS: usize = 1000;
const RECORD_BYTES: usize = 4 << 20;

/// A record: its log offset and its bytes.
pub type LogRecord = (u64, Vec<u8>);

/// Files of one range of the log.
type Files = Vec<Arc<ArchivedFile>>;

/// The records of a row group that are in a range of the log.
#[derive(Debug, Default)]
struct GroupRecords {
    bytes: Vec<u8>,
    /// Log offset and bytes of each.
    places: Vec<(u64, Range<usize>)>,
    /// Why the other records are not here.
    failed: Option<StoreError>,
}

impl GroupRecords {
    /// Reads a row group and encodes its records.
    fn read(reader: &ArchiveReader, file: &Arc<ArchivedFile>, group: usize, log_range: &Range<u64>) -> Self {
        let mut found = Self::default();
        let added =
            reader.group(file, group).and_then(|batch| reader.decoded(file, found.add(&batch, log_range)));
        found.failed = added.err();
        found
    }

    fn add(&mut self, batch: &RecordBatch, log_range: &Range<u64>) -> Result<(), FileError> {
        let rows = ArchiveRows::of(batch)?;
        for row in 0..batch.num_rows() {
            let offset = rows.log_offset(row)?;
            if !log_range.contains(&offset) {
                continue;
            }
            let start = self.bytes.len();
            rows.encode(row, &mut self.bytes)?;
            let record = self.bytes.get(start..).unwrap_or_default();
            checked_record(&rows, row, record, |_, _| ())?;
            self.places.push((offset, start..self.bytes.len()));
        }
        Ok(())
    }
}

/// The records of the files of one range of the log, in the order of the log.
#[derive(Debug, Default)]
struct RangeRecords {
    groups: Vec<GroupRecords>,
    /// Log offset, group, and number in the group.
    order: Vec<(u64, usize, usize)>,
}

impl RangeRecords {
    /// Reads row groups of files, with up to `helpers` additional threads.
    fn read(
        reader: &ArchiveReader,
        groups: Vec<(Arc<ArchivedFile>, usize)>,
        log_range: &Range<u64>,
        helpers: u32,
        damage: &mut Damage,
    ) -> Result<Self, StoreError> {
        let work = |(file, group): (Arc<ArchivedFile>, usize)| {
            let records = GroupRecords::read(reader, &file, group, log_range);
            (file, records)
        };
        let helpers = helpers.min(u32::try_from(groups.len()).unwrap_or(u32::MAX).saturating_sub(1));
        Pool::new(helpers, "mq-archive").in_order(usize::MAX, &work, |jobs| {
            for group in groups {
                jobs.give(group);
            }
            let (mut found, mut damaged) = (Self::default(), Vec::new());
            while let Some((file, mut records)) = jobs.take() {
                if damaged.contains(&file.path) {
                    continue;
                }
                if let Some(error) = records.failed.take() {
                    damage.unless_damaged::<()>(Err(error))?;
                    damaged.push(Arc::clone(&file.path));
                }
                found.push(records);
            }
            found.order.sort_unstable();
            Ok(found)
        })
    }

    fn push(&mut self, records: GroupRecords) {
        let group = self.groups.len();
        let places = records.places.iter().enumerate();
        self.order.extend(places.map(|(number, (offset, _))| (*offset, group, number)));
        self.groups.push(records);
    }

    /// Returns a record: its log offset and its bytes.
    fn get(&self, number: usize) -> Option<(u64, &[u8])> {
        let (offset, group, place) = self.order.get(number)?;
        let group = self.groups.get(*group)?;
        let (_, range) = group.places.get(*place)?;
        Some((*offset, group.bytes.get(range.clone())?))
    }
}

/// A scan of the records of a range of the log.
#[derive(Debug)]
pub(super) struct ArchiveScan {
    reader: Arc<ArchiveReader>,
    request: ScanRequest,
    test: RecordTest,
    log_range: Range<u64>,
    ranges: VecDeque<Files>,
    damage: Damage,
}

impl OlderRows for ArchiveScan {
    /// Visits the rows of the files of one range of the log.
    fn next_rows(&mut self, visit: &mut dyn FnMut(&ScanRow<'_>)) -> Result<bool, StoreError> {
        let Some(files) = self.ranges.front().cloned() else { return Ok(false) };
        let mut groups = Vec::new();
        for file in &files {
            let wanted = self.damage.unless_damaged(self.groups_of(file))?.unwrap_or_default();
            groups.extend(wanted.into_iter().map(|group| (Arc::clone(file), group)));
        }
        let helpers = self.request.threads.saturating_sub(1);
        let records = RangeRecords::read(&self.reader, groups, &self.log_range, helpers, &mut self.damage)?;
        self.ranges.pop_front();
        let mut number = 0;
        while let Some((offset, bytes)) = records.get(number) {
            let view = RecordView::decode(bytes).map_err(|error| self.reader.wrong_record(offset, &error))?;
            self.test.visit(&view, offset, &mut *visit);
            number += 1;
        }
        Ok(true)
    }

    fn take_warnings(&mut self) -> Vec<String> {
        self.damage.take_warnings()
    }
}

impl ArchiveScan {
    /// Returns the row groups of a file that can have wanted rows.
    fn groups_of(&self, file: &Arc<ArchivedFile>) -> Result<Vec<usize>, StoreError> {
        let footer = self.reader.footer(file)?;
        let mut groups: Vec<usize> = (0..footer.groups().len()).collect();
        if !self.request.keys.is_empty() {
            let mut with_key = Vec::new();
            for key in &self.request.keys {
                with_key.extend(self.reader.groups_with_key(file, key)?);
            }
            groups.retain(|group| with_key.contains(group));
        }
        let (start, end) = (self.request.start_ms, self.request.end_ms);
        groups.retain(|group| {
            let rows = footer.groups().get(*group).map_or(0, |group| group.rows);
            let has_times = footer.store_times(*group).is_none_or(|(low, high)| {
                let (low, high) = (low.div_euclid(1000), high.div_euclid(1000));
                start.is_none_or(|start| high >= start) && end.is_none_or(|end| low < end)
            });
            rows > 0 && has_times
        });
        Ok(groups)
    }
}

/// The records of topics in a range of the log. No record is hidden.
#[derive(Debug)]
pub struct ArchiveRecords {
    reader: Arc<ArchiveReader>,
    log_range: Range<u64>,
    ranges: VecDeque<Files>,
    records: RangeRecords,
    at: usize,
}

impl ArchiveRecords {
    /// Returns the next records, each with its log offset; `None` at the end.
    ///
    /// # Errors
    /// The archive is damaged or does not answer.
    pub fn next_records(&mut self) -> Result<Option<Vec<LogRecord>>, StoreError> {
        while self.at >= self.records.order.len() {
            let Some(files) = self.ranges.front() else { return Ok(None) };
            let mut groups = Vec::new();
            for file in files {
                let count = self.reader.footer(file)?.groups().len();
                groups.extend((0..count).map(|group| (Arc::clone(file), group)));
            }
            let damage = &mut Damage::default();
            (self.records, self.at) =
                (RangeRecords::read(&self.reader, groups, &self.log_range, 0, damage)?, 0);
            self.ranges.pop_front();
        }
        let (mut found, mut bytes) = (Vec::new(), 0);
        while found.len() < RECORDS && bytes < RECORD_BYTES {
            let Some((offset, record)) = self.records.get(self.at) else { break };
            bytes += record.len();
            found.push((offset, record.to_vec()));
            self.at += 1;
        }
        Ok(Some(found))
    }
}

impl History {
    /// Starts a scan of the records between two log offsets.
    ///
    /// # Errors
    /// The manifest cannot be read; segments are missing, unless damage is skipped.
    pub(super) fn rows(
        &self,
        floors: &Arc<FloorTable>,
        request: &ScanRequest,
        log_range: Range<u64>,
    ) -> Result<ArchiveScan, StoreError> {
        let mut damage = Damage::new(request.on_damage);
        if let Some((start, end)) = self.reader.gap_between(log_range.start, log_range.end)? {
            let reason = format!(
                "neither the archive nor the log has the segments between log offset {start} and {end}"
            );
            damage.pass(&self.reader, &reason)?;
        }
        let mut files = self.reader.all_files()?;
        files.retain(|file| overlaps(file, &log_range) && is_wanted(file, request));
        Ok(ArchiveScan {
            reader: Arc::clone(&self.reader),
            request: request.clone(),
            test: RecordTest::new(request, Arc::clone(floors)),
            log_range,
            ranges: by_range(files),
            damage,
        })
    }

    /// Starts to return the records of topics between two log offsets.
    ///
    /// # Errors
    /// The manifest cannot be read.
    pub fn records(&self, topics: &[String], log_range: Range<u64>) -> Result<ArchiveRecords, StoreError> {
        let mut files = Vec::new();
        for topic in topics {
            files.extend(self.reader.files(topic)?.into_iter().filter(|file| overlaps(file, &log_range)));
        }
        let (reader, ranges) = (Arc::clone(&self.reader), by_range(files));
        Ok(ArchiveRecords { reader, log_range, ranges, records: RangeRecords::default(), at: 0 })
    }
}

/// Returns the files of each range of the log, in the order of the log.
fn by_range(mut files: Files) -> VecDeque<Files> {
    files.sort_by_key(|file| (file.start, file.end));
    let mut found: VecDeque<Files> = VecDeque::new();
    for file in files {
        match found.back_mut() {
            Some(range) if range.first().is_some_and(|first| first.start == file.start) => range.push(file),
            _ => found.push_back(vec![file]),
        }
    }
    found
}

/// Whether a file can have rows of a scan.
fn is_wanted(file: &ArchivedFile, request: &ScanRequest) -> bool {
    let named = request.topics.as_ref();
    // The records of light queues are in other topics.
    let names_light =
        named.is_some_and(|topics| topics.iter().any(|one| one.starts_with(LIGHT_QUEUE_PREFIX)));
    let is_named = |topics: &Vec<String>| topics.iter().any(|topic| Some(topic) == file.topic.as_ref());
    if (!names_light && !named.is_none_or(is_named))
        || request.record_topic.as_ref().is_some_and(|topic| Some(topic) != file.topic.as_ref())
    {
        return false;
    }
    let has_times = has_times(file, (request.start_ms, request.end_ms));
    if !has_times || names_light {
        return has_times;
    }
    file.queues.iter().any(|queue| {
        queue.rows > 0
            && request.queue_id.is_none_or(|id| id == queue.queue_id)
            && request.end_offset.is_none_or(|end| queue.first < end)
            && request.start_offset.is_none_or(|start| queue.last.saturating_add(MAX_IN_BATCH) > start)
    })
}
