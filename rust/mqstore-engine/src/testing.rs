//! Helpers for the tests of this crate and of the crates that use it, with the names that those tests use most.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::path::PathBuf;

pub use std::path::Path;
pub use std::sync::Arc;

use mqstore_base::topic_floors::FloorTable;
use mqstore_io::sync::Mutex;

pub use mqstore_base::error::StoreError;
pub use mqstore_base::message::{Appended, NewMessage, StoredRecord, encode_properties};
pub use mqstore_base::options::{OpenMode, StoreOptions};
pub use mqstore_base::store_files::StoreFiles;
pub use mqstore_io::{Clock, ManualClock, OsVfs, SimVfs, SystemClock, Vfs};

pub use crate::Store;
use crate::read::lookup::has_key;
use crate::{
    OlderBatch, OlderFloor, OlderLimits, OlderLookup, OlderMessages, OlderRead, OlderReads, OlderRows,
    OlderSource, RecordTest, ScanRequest, ScanRow,
};

/// The environment of a store: its file system, clock and path.
pub struct World {
    /// The file system.
    pub vfs: Arc<dyn Vfs>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The root of the store.
    pub path: PathBuf,
    /// The real folder, if any; it is removed at the end of the test.
    pub temporary_folder: Option<tempfile::TempDir>,
}

impl World {
    /// Returns a world in memory with a clock that moves only on request.
    pub fn simulated() -> (Self, Arc<SimVfs>, Arc<ManualClock>) {
        let vfs = Arc::new(SimVfs::default());
        let clock = Arc::new(ManualClock::new(1_700_000_000_000));
        vfs.create_dir_all(Path::new("/data")).unwrap();
        vfs.sync_dir(Path::new("/")).unwrap();
        let world = Self {
            vfs: vfs.clone(),
            clock: clock.clone(),
            path: "/data/store".into(),
            temporary_folder: None,
        };
        (world, vfs, clock)
    }

    /// Returns a world on the file system of the machine.
    pub fn real() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            vfs: Arc::new(OsVfs::new()),
            clock: Arc::new(SystemClock::new()),
            path: folder.path().join("store"),
            temporary_folder: Some(folder),
        }
    }

    /// Returns the same store path on `vfs`, for example on the files that a crash left.
    #[must_use]
    pub fn on(&self, vfs: Arc<dyn Vfs>) -> Self {
        Self { vfs, clock: self.clock.clone(), path: self.path.clone(), temporary_folder: None }
    }

    /// Opens the store.
    pub fn open(&self, mode: OpenMode, options: &StoreOptions) -> Result<Store, StoreError> {
        Store::open(self.vfs.clone(), self.clock.clone(), &self.path, mode, options)
    }

    /// Returns the paths of the store.
    pub fn files(&self) -> StoreFiles {
        StoreFiles::new(self.vfs.clone(), self.clock.clone(), &self.path)
    }
}

/// Options with small files, so that a few messages roll them, and without dispatch threads.
pub fn small() -> StoreOptions {
    StoreOptions {
        segment_bytes: 16 << 10,
        queue_file_entries: 10,
        index_slots: 7,
        index_entries: 50,
        dispatch_threads: Some(0),
        compaction_log_file_bytes: 4096,
        compaction_queue_file_bytes: 46 * 8,
        ..StoreOptions::default()
    }
}

/// Appends a message with one key and one tag.
pub fn put(store: &Store, topic: &str, queue_id: i32, body: &[u8], key: &str) -> Appended {
    let properties = encode_properties([key], Some("T"), None, [("n", "1")]).unwrap();
    store.append(&message(topic, Some(queue_id), body, &properties)).unwrap()
}

/// Returns a message with these properties.
pub fn message<'a>(
    topic: &'a str,
    queue_id: Option<i32>,
    body: &'a [u8],
    properties: &'a [u8],
) -> NewMessage<'a> {
    NewMessage {
        topic,
        body,
        properties,
        unique_key: None,
        queue_id,
        flag: 0,
        born_timestamp_ms: None,
        durable: false,
        ..NewMessage::default()
    }
}

/// Returns a message for queue 0 without properties of its own.
pub fn plain<'a>(topic: &'a str, body: &'a [u8]) -> NewMessage<'a> {
    message(topic, Some(0), body, &[])
}

/// Returns the offsets and bodies of all messages in a queue.
pub fn read_all(store: &Store, topic: &str, queue_id: i32) -> Vec<(i64, Vec<u8>)> {
    let mut cursor = store.read(topic, queue_id, None, None, None).unwrap();
    let mut found = Vec::new();
    loop {
        let batch = cursor.next_batch(3).unwrap();
        if batch.is_empty() {
            return found;
        }
        found.extend(batch.iter().map(|record| (record.queue_offset, body(record))));
    }
}

/// Returns the body of a record.
pub fn body(record: &StoredRecord) -> Vec<u8> {
    record.view().unwrap().body.to_vec()
}

/// An archive of a list of records, in the order of the log. As if its manifest had been read long ago, it shows only the
/// records before the log offsets that reads asked for.
#[derive(Debug, Default)]
pub struct OlderRecords {
    records: Mutex<Vec<StoredRecord>>,
    /// Number of records that it shows.
    known: Mutex<usize>,
    /// Records that a read returns at once.
    at_once: usize,
    /// Requests until one fails; 0 is none.
    fails_after: Mutex<u64>,
}

/// Records that a read of [`OlderRecords`] returns, and the offset after them.
struct RecordList {
    of: Arc<OlderRecords>,
    ready: VecDeque<StoredRecord>,
    end: i64,
    test: RecordTest,
}

impl OlderRecords {
    /// Makes an archive. A read returns `at_once` records.
    pub fn new(records: Vec<StoredRecord>, at_once: usize) -> Arc<Self> {
        Arc::new(Self { records: Mutex::new(records), at_once, ..Self::default() })
    }

    /// Replaces the records.
    pub fn set(&self, records: Vec<StoredRecord>) {
        *self.records.lock() = records;
    }

    /// Lets the request with this number fail from now on, counted from 1; 0 is none.
    pub fn fail_after(&self, requests: u64) {
        *self.fails_after.lock() = requests;
    }

    fn request(&self) -> Result<(), StoreError> {
        let mut left = self.fails_after.lock();
        let fails = *left == 1;
        *left = left.saturating_sub(1);
        if fails {
            return Err(StoreError::Busy { reason: "the archive does not answer".to_owned() });
        }
        Ok(())
    }

    /// Returns the records that meet a condition.
    fn found(&self, is_wanted: impl Fn(&StoredRecord) -> bool) -> Result<Vec<StoredRecord>, StoreError> {
        self.request()?;
        let (records, known) = (self.records.lock(), *self.known.lock());
        Ok(records.iter().take(known).filter(|record| is_wanted(record)).cloned().collect())
    }

    fn of_queue(&self, topic: &str, queue_id: i32) -> Result<Vec<StoredRecord>, StoreError> {
        self.found(|record| {
            let view = record.view().unwrap();
            view.topic == topic && view.queue_id == queue_id
        })
    }

    fn list(self: &Arc<Self>, ready: Vec<StoredRecord>, end: i64, test: RecordTest) -> Box<RecordList> {
        Box::new(RecordList { of: self.clone(), ready: ready.into(), end, test })
    }
}

fn stored_ms(record: &StoredRecord) -> i64 {
    record.view().unwrap().store_timestamp
}

impl OlderSource for Arc<OlderRecords> {
    fn begin(&self) -> u64 {
        0
    }

    fn before(&self, log_start: u64) -> Result<Arc<dyn OlderMessages>, StoreError> {
        self.request()?;
        let records = self.records.lock();
        let wanted = records.partition_point(|record| record.commit_log_offset < log_start);
        let mut known = self.known.lock();
        *known = wanted.max(*known);
        Ok(Arc::new(Arc::clone(self)))
    }
}

impl OlderReads for RecordList {
    fn next_messages(&mut self) -> Result<Option<OlderBatch>, StoreError> {
        self.of.request()?;
        if self.ready.is_empty() {
            return Ok(None);
        }
        let records: Vec<_> = self.ready.drain(..self.of.at_once.min(self.ready.len())).collect();
        let next = self.ready.front().map_or(self.end, |next| next.queue_offset);
        Ok(Some(OlderBatch { records, next }))
    }

    fn take_warnings(&mut self) -> Vec<String> {
        Vec::new()
    }
}

impl OlderRows for RecordList {
    fn next_rows(&mut self, visit: &mut dyn FnMut(&ScanRow<'_>)) -> Result<bool, StoreError> {
        self.of.request()?;
        let is_over = self.ready.is_empty();
        for record in self.ready.drain(..self.of.at_once.min(self.ready.len())) {
            self.test.visit(&record.view().unwrap(), record.commit_log_offset, &mut *visit);
        }
        Ok(!is_over)
    }

    fn take_warnings(&mut self) -> Vec<String> {
        Vec::new()
    }
}

impl OlderMessages for Arc<OlderRecords> {
    fn first_offset(&self, _: &FloorTable, topic: &str, queue_id: i32) -> Result<Option<i64>, StoreError> {
        Ok(self.of_queue(topic, queue_id)?.first().map(|record| record.queue_offset))
    }

    fn offset_for_time(
        &self,
        _: &FloorTable,
        topic: &str,
        queue_id: i32,
        time_ms: i64,
    ) -> Result<Option<i64>, StoreError> {
        let found = self.of_queue(topic, queue_id)?;
        Ok(found.iter().find(|record| stored_ms(record) >= time_ms).map(|record| record.queue_offset))
    }

    fn last_offset(
        &self,
        _: &FloorTable,
        topic: &str,
        queue_id: i32,
        time_ms: i64,
        end: i64,
    ) -> Result<Option<i64>, StoreError> {
        let found = self.of_queue(topic, queue_id)?;
        let is_before = |record: &&StoredRecord| stored_ms(record) <= time_ms && record.queue_offset < end;
        Ok(found.iter().rfind(is_before).map(|record| record.queue_offset))
    }

    fn count(&self, _: &FloorTable, topic: &str, queue_id: i32, end: i64) -> Result<u64, StoreError> {
        Ok(self.of_queue(topic, queue_id)?.iter().filter(|record| record.queue_offset < end).count() as u64)
    }

    fn read(
        &self,
        floors: &Arc<FloorTable>,
        wanted: &OlderRead<'_>,
    ) -> Result<Box<dyn OlderReads>, StoreError> {
        let mut found = self.of_queue(wanted.topic, wanted.queue_id)?;
        let (start, end) = wanted.range;
        found.retain(|record| {
            let matches = wanted.filter.is_none_or(|filter| filter.matches(&record.view().unwrap()));
            matches && (start..end).contains(&record.queue_offset)
        });
        Ok(self.list(found, end, RecordTest::new(&ScanRequest::default(), floors.clone())))
    }

    fn lookup(
        &self,
        floors: &Arc<FloorTable>,
        wanted: &OlderLookup<'_>,
    ) -> Result<Box<dyn OlderReads>, StoreError> {
        let (start, end) = wanted.times_ms;
        let mut found = self.found(|record| {
            let view = record.view().unwrap();
            view.topic == wanted.topic
                && has_key(&view, wanted.key)
                && wanted.log_range.contains(&record.commit_log_offset)
                && start.is_none_or(|start| view.store_timestamp >= start)
                && end.is_none_or(|end| view.store_timestamp < end)
        })?;
        if wanted.newest_first {
            found.reverse();
        }
        Ok(self.list(found, 0, RecordTest::new(&ScanRequest::default(), floors.clone())))
    }

    fn by_id(&self, _: &Arc<FloorTable>, id: &str, end: u64) -> Result<Option<StoredRecord>, StoreError> {
        let found = self.found(|record| {
            record.view().unwrap().unique_key() == Some(id) && record.commit_log_offset < end
        });
        Ok(found?.into_iter().next())
    }

    fn at(&self, _: &Arc<FloorTable>, log_offset: u64) -> Result<Option<StoredRecord>, StoreError> {
        Ok(self.found(|record| record.commit_log_offset == log_offset)?.pop())
    }

    fn scan(
        &self,
        floors: &Arc<FloorTable>,
        request: &ScanRequest,
        log_range: Range<u64>,
    ) -> Result<Box<dyn OlderRows>, StoreError> {
        let found = self.found(|record| log_range.contains(&record.commit_log_offset))?;
        Ok(self.list(found, 0, RecordTest::new(request, floors.clone())))
    }

    fn due_floor(
        &self,
        _: &FloorTable,
        _topic: &str,
        _log_start: u64,
        _lows: &BTreeMap<i32, i64>,
        _limits: OlderLimits,
    ) -> Result<Option<OlderFloor>, StoreError> {
        Ok(None)
    }
}
