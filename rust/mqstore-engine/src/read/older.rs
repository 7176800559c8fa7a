//! The messages of a store from before its log, which an archive has: what reads and the limits of topics ask of it.
//!
//! A read asks only for messages that the log lacks, so a read that the log answers needs no archive. It asks for the
//! messages up to the place where the log begins. If retention moves this place meanwhile, it asks again: retention
//! deletes only what the archive has.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;

use mqstore_base::error::StoreError;
use mqstore_base::message::{MessageFilter, StoredRecord};
use mqstore_base::options::DamagePolicy;
use mqstore_base::topic_floors::FloorTable;
use mqstore_io::sync::{Arc, RwLock};

use super::scan_request::{ScanRequest, ScanRow};

/// The archive of an open store, which may have to be opened.
pub trait OlderSource: Debug + Send + Sync {
    /// Returns the log offset at which the archive begins; 0 if it is not known.
    fn begin(&self) -> u64;

    /// Returns the messages before log offset `log_start`.
    ///
    /// # Errors
    /// There is no archive, it belongs to another store, or it does not answer.
    fn before(&self, log_start: u64) -> Result<Arc<dyn OlderMessages>, StoreError>;
}

/// A part of a queue that is before the log.
#[derive(Clone, Copy, Debug)]
pub struct OlderRead<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The queue.
    pub queue_id: i32,
    /// First queue offset, and offset to stop at: at most the minimum of the queue in the log.
    pub range: (i64, i64),
    /// The log offset at which the log begins.
    pub log_start: u64,
    /// Only messages that match.
    pub filter: Option<&'a MessageFilter>,
    /// The behaviour at damaged files and missing segments.
    pub on_damage: DamagePolicy,
}

/// What a look-up by key wants.
#[derive(Clone, Debug)]
pub struct OlderLookup<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The key or unique id.
    pub key: &'a str,
    /// First log offset, and end.
    pub log_range: Range<u64>,
    /// Smallest store time in epoch milliseconds, and its end.
    pub times_ms: (Option<i64>, Option<i64>),
    /// Whether the newest message comes first.
    pub newest_first: bool,
}

/// Some messages, perhaps none.
#[derive(Debug, Default)]
pub struct OlderBatch {
    /// The messages.
    pub records: Vec<StoredRecord>,
    /// The queue offset after the last message that was read, also of one that does not match; 0 for look-ups.
    pub next: i64,
}

/// A read of older messages, in order.
pub trait OlderReads: Send {
    /// Returns the next messages; `None` at the end.
    ///
    /// # Errors
    /// They cannot be read. The next call tries again.
    fn next_messages(&mut self) -> Result<Option<OlderBatch>, StoreError>;

    /// Returns texts for the user about what was passed over since the last call.
    fn take_warnings(&mut self) -> Vec<String>;
}

/// A scan of older messages, in the order of the log.
pub trait OlderRows: Send {
    /// Calls `visit` with the next rows, perhaps none. Returns false at the end.
    ///
    /// # Errors
    /// They cannot be read.
    fn next_rows(&mut self, visit: &mut dyn FnMut(&ScanRow<'_>)) -> Result<bool, StoreError>;

    /// Returns texts for the user about what was passed over since the last call.
    fn take_warnings(&mut self) -> Vec<String>;
}

/// What the log leaves of the limits of a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OlderLimits {
    /// Smallest store time that stays, in epoch milliseconds.
    pub since_ms: Option<i64>,
    /// Maximum bytes of records.
    pub max_bytes: Option<u64>,
    /// Maximum number of messages.
    pub max_messages: Option<u64>,
}

/// The floor that limits demand before the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OlderFloor {
    /// The records of the topic before this log offset are due.
    pub log_offset: u64,
    /// Number of messages before it.
    pub messages: u64,
}

/// The messages from before the log. `floors` hide those of deleted topics, and those that a retention hides. Each function
/// fails if the messages cannot be read.
#[expect(clippy::missing_errors_doc, reason = "they are in the text of the trait")]
pub trait OlderMessages: Debug + Send + Sync {
    /// Returns the smallest offset of a queue; `None` if there is none.
    fn first_offset(
        &self,
        floors: &FloorTable,
        topic: &str,
        queue_id: i32,
    ) -> Result<Option<i64>, StoreError>;

    /// Returns the offset of the first message of a queue stored at or after a time in epoch milliseconds.
    fn offset_for_time(
        &self,
        floors: &FloorTable,
        topic: &str,
        queue_id: i32,
        time_ms: i64,
    ) -> Result<Option<i64>, StoreError>;

    /// Returns the offset of the last message of a queue before offset `end` that was stored at or before a time.
    fn last_offset(
        &self,
        floors: &FloorTable,
        topic: &str,
        queue_id: i32,
        time_ms: i64,
        end: i64,
    ) -> Result<Option<i64>, StoreError>;

    /// Returns the number of records of a queue with offsets before `end`.
    fn count(&self, floors: &FloorTable, topic: &str, queue_id: i32, end: i64) -> Result<u64, StoreError>;

    /// Starts to read a part of a queue.
    fn read(
        &self,
        floors: &Arc<FloorTable>,
        wanted: &OlderRead<'_>,
    ) -> Result<Box<dyn OlderReads>, StoreError>;

    /// Starts to look up a key.
    fn lookup(
        &self,
        floors: &Arc<FloorTable>,
        wanted: &OlderLookup<'_>,
    ) -> Result<Box<dyn OlderReads>, StoreError>;

    /// Returns the message with a message id or a unique id whose record is before log offset `end`: the best of several
    /// by [`RecordRank`](super::query::RecordRank).
    fn by_id(&self, floors: &Arc<FloorTable>, id: &str, end: u64)
    -> Result<Option<StoredRecord>, StoreError>;

    /// Returns the message whose record starts at a log offset; `None` if there is none.
    fn at(&self, floors: &Arc<FloorTable>, log_offset: u64) -> Result<Option<StoredRecord>, StoreError>;

    /// Starts a scan of the records between two log offsets.
    fn scan(
        &self,
        floors: &Arc<FloorTable>,
        request: &ScanRequest,
        log_range: Range<u64>,
    ) -> Result<Box<dyn OlderRows>, StoreError>;

    /// Returns the floor that `limits` demand for the messages of `topic` before log offset `log_start`; `None` if all
    /// of them stay. `lows` are the first offsets of its queues in the log.
    fn due_floor(
        &self,
        floors: &FloorTable,
        topic: &str,
        log_start: u64,
        lows: &BTreeMap<i32, i64>,
        limits: OlderLimits,
    ) -> Result<Option<OlderFloor>, StoreError>;
}

/// The messages before log offset `log_start`, with the floors that hide some of them.
pub(crate) struct Older {
    pub(crate) messages: Arc<dyn OlderMessages>,
    pub(crate) floors: Arc<FloorTable>,
    pub(crate) log_start: u64,
}

impl Older {
    /// Returns the smallest offset of a queue that has offset `min` where the log begins.
    pub(crate) fn first_offset(&self, topic: &str, queue_id: i32, min: i64) -> Result<i64, StoreError> {
        let first = self.messages.first_offset(&self.floors, topic, queue_id)?;
        Ok(first.map_or(min, |first| first.min(min)))
    }
}

/// The archive of an open store, in which its reads continue. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct OlderSlot(Arc<RwLock<Option<Arc<dyn OlderSource>>>>);

impl OlderSlot {
    pub(crate) fn set(&self, older: Option<Arc<dyn OlderSource>>) {
        *self.0.write() = older;
    }

    pub(crate) fn get(&self) -> Option<Arc<dyn OlderSource>> {
        self.0.read().clone()
    }
}
