//! The messages of an archive: look-ups, and iterators of messages and of rows of a scan.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use mqstore::archive::history::{
    ArchiveRecords, ArchiveScan, Damage, History, Lookup, LookupRequest, QueueRange, QueueReads, TopicReads,
    standing,
};
use mqstore::archive::manifest::ArchivedSegment;
use mqstore::archive::reader::ArchiveReader;
use mqstore::error::StoreError;
use mqstore::message::StoredRecord;
use mqstore::options::DamagePolicy;
use mqstore::read::ScanRequest;
use mqstore::store::FloorTable;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::target::ArchiveTarget;
use crate::convert::filter::message_filter;
use crate::convert::options::damage_policy;
use crate::convert::stored_message::StoredMessage;
use crate::error::{to_py, warn};
use crate::runtime::detached;
use crate::scan::archived_records::ArchivedRecords;
use crate::scan::column_builder::BatchBuilder;
use crate::scan::request::{layout, scan_request};
use crate::scan::scan_rows::{ScanRows, arrow_bug};
use crate::store::NativeStore;

/// Python frames between a warning and the caller of a read.
const WARNED_FRAMES: u32 = 4;

/// A store whose deleted topics stay deleted; without one, all records of the archive are there.
type StoreArgument<'a, 'py> = Option<&'a Bound<'py, NativeStore>>;

/// A queue: number, first offset, and offset to stop at.
type RangeRow = (i32, i64, i64);

fn range_of((queue_id, start, end): RangeRow) -> QueueRange {
    QueueRange { queue_id, start, end }
}

pub(super) fn floors_of(store: StoreArgument<'_, '_>) -> PyResult<Arc<FloorTable>> {
    match store {
        Some(store) => Ok(store.get().core()?.floors()),
        None => Ok(Arc::default()),
    }
}

/// The records before the log of a store, or all records of an archive. Threads can share it.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct ArchiveHistory {
    pub(super) history: History,
}

#[pymethods]
impl ArchiveHistory {
    /// Takes the objects of the archive, and the memory for Bloom filters.
    #[new]
    fn new(target: &Bound<'_, ArchiveTarget>, bloom_bytes: usize) -> Self {
        let place = target.get().place.clone();
        Self { history: History::new(Arc::new(ArchiveReader::new(place, bloom_bytes))) }
    }

    /// Reads the newest manifest.
    fn refresh(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || self.history.reader().refresh())
    }

    /// The log offset at which the manifest ends; None without one.
    #[getter]
    fn end(&self) -> Option<u64> {
        self.history.reader().end()
    }

    /// Returns the last record of the archive, and its last segments.
    ///
    /// The record has log offset, length and digest. A segment has log offset, length, and the store times of the
    /// first and the last record.
    fn last_facts(&self) -> (Option<(u64, u64, String)>, Vec<SegmentFacts>) {
        let (last, segments) = self.history.reader().last_facts();
        let last = last.map(|last| (last.log_offset, last.bytes, last.sha256));
        let row = |one: &ArchivedSegment| (one.base, one.bytes, one.first_ms, one.last_ms);
        (last, segments.iter().map(row).collect())
    }

    /// Removes the columns of row groups from memory. For tests.
    fn forget_columns(&self) {
        self.history.reader().forget_columns();
    }

    /// Reads the footers of all files. For tests.
    fn read_footers(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || {
            let reader = self.history.reader();
            reader.all_files()?.iter().try_for_each(|file| reader.footer(file).map(drop))
        })
    }

    /// Returns the smallest offset of a queue that is not hidden; None if there is none.
    fn first_offset(
        &self,
        store: &Bound<'_, NativeStore>,
        topic: &str,
        queue_id: i32,
    ) -> PyResult<Option<i64>> {
        let floors = floors_of(Some(store))?;
        detached(store.py(), || self.history.first_offset(&floors, topic, queue_id, 0))
    }

    /// Whether the archive can have messages of a queue that are not hidden.
    fn has(&self, store: &Bound<'_, NativeStore>, topic: &str, queue_id: i32) -> PyResult<bool> {
        let floors = floors_of(Some(store))?;
        detached(store.py(), || self.history.has(&floors, topic, queue_id))
    }

    /// Returns the offset of the first message of a queue that was stored at or after a time.
    fn offset_for_time(
        &self,
        store: &Bound<'_, NativeStore>,
        topic: &str,
        queue_id: i32,
        time_ms: i64,
    ) -> PyResult<Option<i64>> {
        let floors = floors_of(Some(store))?;
        detached(store.py(), || self.history.offset_for_time(&floors, topic, queue_id, time_ms))
    }

    /// Returns the offset of the last message of a queue before offset `end` that was stored at or before a time.
    fn last_offset(
        &self,
        store: &Bound<'_, NativeStore>,
        topic: &str,
        queue_id: i32,
        time_ms: i64,
        end: i64,
    ) -> PyResult<Option<i64>> {
        let floors = floors_of(Some(store))?;
        detached(store.py(), || self.history.last_offset(&floors, topic, queue_id, time_ms, end))
    }

    /// Returns the message with a message id or a unique id whose record is before log offset `end`.
    fn by_id(&self, store: &Bound<'_, NativeStore>, id: &str, end: u64) -> PyResult<Option<StoredMessage>> {
        let floors = floors_of(Some(store))?;
        let found = detached(store.py(), || self.history.by_id(&floors, id, end))?;
        Ok(found.map(StoredMessage::from))
    }

    /// Returns the message whose record starts at a log offset; None if there is none.
    fn at(&self, store: &Bound<'_, NativeStore>, log_offset: u64) -> PyResult<Option<StoredMessage>> {
        let floors = floors_of(Some(store))?;
        let found = detached(store.py(), || self.history.at(&floors, log_offset))?;
        Ok(found.map(StoredMessage::from))
    }

    /// Returns the messages of parts of queues that end where the log begins, at log offset `log_start`.
    ///
    /// Several queues are merged by store time and log offset within each range of the log.
    fn read(
        &self,
        store: &Bound<'_, NativeStore>,
        topic: &str,
        ranges: Vec<RangeRow>,
        log_start: u64,
        filter: Option<&Bound<'_, PyAny>>,
        on_damage: &Bound<'_, PyAny>,
    ) -> PyResult<ArchivedMessages> {
        let (floors, filter) = (floors_of(Some(store))?, message_filter(filter)?);
        let damage = Damage::new(damage_policy(on_damage)?);
        let wanted: Vec<QueueRange> = ranges.into_iter().map(range_of).collect();
        let history = &self.history;
        let source = detached(store.py(), || match wanted.as_slice() {
            [one] => {
                history.queue(&floors, topic, *one, log_start, filter.as_ref(), damage).map(Source::Queue)
            }
            _ => {
                history.topic(&floors, topic, &wanted, log_start, filter.as_ref(), damage).map(Source::Topic)
            }
        })?;
        Ok(ArchivedMessages::new(source))
    }

    /// Returns the messages with a key or unique id whose records are between two log offsets.
    ///
    /// They were stored from a time on and before another one, in epoch milliseconds.
    #[expect(clippy::too_many_arguments, reason = "the arguments of a look-up")]
    fn lookup(
        &self,
        store: &Bound<'_, NativeStore>,
        topic: &str,
        key: &str,
        start: u64,
        end: u64,
        times_ms: (Option<i64>, Option<i64>),
        newest_first: bool,
    ) -> PyResult<ArchivedMessages> {
        let floors = floors_of(Some(store))?;
        let wanted = LookupRequest { topic, key, log_range: start..end, times_ms, newest_first };
        let found = detached(store.py(), || self.history.lookup(&floors, &wanted))?;
        Ok(ArchivedMessages::new(Source::Lookup(found)))
    }

    /// Returns the rows of a scan whose records are between two log offsets, in the order of the log.
    fn scan(
        &self,
        store: StoreArgument<'_, '_>,
        py: Python<'_>,
        request: &Bound<'_, PyDict>,
        start: u64,
        end: u64,
    ) -> PyResult<ArchivedRows> {
        let floors = floors_of(store)?;
        let has_policy = request.get_item("on_damage")?.is_some_and(|policy| !policy.is_none());
        let wanted = scan_request(request)?;
        let policy = if has_policy { wanted.on_damage } else { DamagePolicy::Raise };
        let wanted = ScanRequest { on_damage: policy, ..wanted };
        let builder = BatchBuilder::new(Arc::new(layout(request)?), &Arc::default());
        let scan = detached(py, || self.history.scan(&floors, &wanted, start..end))?;
        Ok(ArchivedRows { state: Mutex::new((scan, builder, VecDeque::new())) })
    }

    /// Returns the records of topics between two log offsets, in the order of the log. No record is hidden.
    fn records(
        &self,
        py: Python<'_>,
        topics: Vec<String>,
        start: u64,
        end: u64,
    ) -> PyResult<ArchivedRecordStream> {
        let found = detached(py, || self.history.records(&topics, start..end))?;
        Ok(ArchivedRecordStream { records: Mutex::new(found) })
    }

    /// Returns the files with ranges of queues that end where the log begins, in the order of the log.
    ///
    /// Each with its path, the first log offset and the end of its range of the log, the mean size of a record, and
    /// the numbers of the ranges.
    fn files_of(
        &self,
        store: &Bound<'_, NativeStore>,
        ranges: Vec<(String, i32, i64, i64)>,
        log_start: u64,
        on_damage: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<FileRow>> {
        let floors = floors_of(Some(store))?;
        let mut damage = Damage::new(damage_policy(on_damage)?);
        let found = detached(store.py(), || {
            let mut found: Vec<FileRow> = Vec::new();
            for (number, (topic, queue_id, start, end)) in ranges.iter().enumerate() {
                let wanted = QueueRange { queue_id: *queue_id, start: *start, end: *end };
                for part in self.history.parts_of(&floors, topic, wanted, log_start, &mut damage)? {
                    let file = &part.file;
                    if let Some((.., numbers)) = found.iter_mut().find(|(path, ..)| **path == *file.path) {
                        numbers.push(number);
                    } else {
                        let mean = file.record_bytes / file.rows.max(1);
                        found.push((file.path.to_string(), file.start, file.end, mean, vec![number]));
                    }
                }
            }
            found.sort_by(|one, other| (one.1, &one.0).cmp(&(other.1, &other.0)));
            Ok(found)
        })?;
        say(store.py(), damage.take_warnings())?;
        Ok(found)
    }

    fn __repr__(&self) -> String {
        format!("<messages of the archive {}>", self.history.reader().shown().display())
    }
}

/// See [`ArchiveHistory::last_facts`].
type SegmentFacts = (u64, u64, Option<i64>, i64);

/// See [`ArchiveHistory::files_of`].
type FileRow = (String, u64, u64, u64, Vec<usize>);

fn say(py: Python<'_>, warnings: Vec<String>) -> PyResult<()> {
    warnings.iter().try_for_each(|text| warn(py, text, WARNED_FRAMES))
}

/// Where messages come from.
enum Source {
    Queue(QueueReads),
    Topic(TopicReads),
    Lookup(Lookup),
}

impl Source {
    fn next(&mut self) -> Result<Option<Vec<StoredRecord>>, StoreError> {
        match self {
            Self::Queue(reads) => Ok(reads.next_messages()?.map(|(found, _)| found)),
            Self::Topic(reads) => reads.next_messages(),
            Self::Lookup(lookup) => lookup.next_messages(),
        }
    }

    fn take_warnings(&mut self) -> Vec<String> {
        match self {
            Self::Queue(reads) => reads.take_warnings(),
            Self::Topic(reads) => reads.take_warnings(),
            Self::Lookup(_) => Vec::new(),
        }
    }
}

/// Returns the next of the values that are ready, and gets more of them if there are none.
fn next_of<T>(
    ready: &mut VecDeque<T>,
    mut more: impl FnMut() -> Result<Option<Vec<T>>, StoreError>,
) -> Result<Option<T>, StoreError> {
    loop {
        if let Some(next) = ready.pop_front() {
            return Ok(Some(next));
        }
        let Some(found) = more()? else { return Ok(None) };
        ready.extend(found);
    }
}

/// Messages of an archive, in order. After an error, the next call tries again at the same place.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct ArchivedMessages {
    state: Mutex<(Source, VecDeque<StoredRecord>)>,
}

impl ArchivedMessages {
    fn new(source: Source) -> Self {
        Self { state: Mutex::new((source, VecDeque::new())) }
    }
}

#[pymethods]
impl ArchivedMessages {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<StoredMessage>> {
        let (found, warnings) = py.detach(|| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let (source, ready) = &mut *state;
            let found = next_of(ready, || source.next());
            (found, source.take_warnings())
        });
        say(py, warnings)?;
        Ok(found.map_err(to_py)?.map(StoredMessage::from))
    }
}

/// Rows of a scan of an archive, in the order of the log.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct ArchivedRows {
    state: Mutex<(ArchiveScan, BatchBuilder, VecDeque<<BatchBuilder as mqstore::read::ScanSink>::Batch>)>,
}

#[pymethods]
impl ArchivedRows {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<ScanRows>> {
        let (found, warnings) = py.detach(|| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let (scan, builder, ready) = &mut *state;
            let found = next_of(ready, || scan.next_batches(builder));
            (found, scan.take_warnings())
        });
        say(py, warnings)?;
        match found.map_err(to_py)? {
            Some(rows) => Ok(Some(ScanRows { rows: rows.map_err(|error| arrow_bug(&error))?, end: 0 })),
            None => Ok(None),
        }
    }
}

/// Records of an archive, in the order of the log, some at once.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct ArchivedRecordStream {
    records: Mutex<ArchiveRecords>,
}

#[pymethods]
impl ArchivedRecordStream {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<ArchivedRecords>> {
        let found =
            detached(py, || self.records.lock().unwrap_or_else(PoisonError::into_inner).next_records())?;
        Ok(found.map(|records| ArchivedRecords { records }))
    }
}

/// Returns what a record of a topic is for a caller who knows only its unique id, the best first: 0 the message that
/// consumers get, 1 a dead letter or retry, 2 another record of the system, 3 a record in which the message waits or
/// waited.
#[pyfunction]
fn standing_of(topic: &str) -> u8 {
    standing(topic)
}

/// Adds the classes and the function.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ArchiveHistory>()?;
    module.add_class::<ArchivedMessages>()?;
    module.add_class::<ArchivedRows>()?;
    module.add_class::<ArchivedRecordStream>()?;
    module.add_function(wrap_pyfunction!(standing_of, module)?)
}
