//! The log of a store that is open for writing: its parts, its offsets, and how it is opened and sealed.
//!
//! This module owns the state under the put lock and the published offset. The other files of this folder write, read
//! and sync the log.

use std::sync::Arc;

use mqstore_format::{BLANK_HEADER_BYTES, RecordParts};
use mqstore_io::sync::{AtomicBool, AtomicI64, AtomicU64, Mutex, Ordering, RwLock};
use mqstore_io::{MappedFile, MappedFileQueue};

use super::active_segment::{ActiveSegment, fits};
use super::pool::Pool;
use super::preallocator::{PreallocateOptions, Preallocator};
use super::put_lock::{PutLimits, PutLock};
use super::quota::TopicQuotaState;
use super::read_maps::{ReadCounts, ReadMaps, hot_bytes};
use super::segment_list::{NewestList, SegmentList};
use mqstore_base::error::StoreError;
use mqstore_base::group_commit::GroupCommit;
use mqstore_base::live_page::LivePage;
use mqstore_base::options::{Durability, StoreOptions};
use mqstore_base::replica_acks::ReplicaAcks;
use mqstore_base::store_files::StoreFiles;

/// An encoded record, ready to be appended.
#[derive(Debug)]
pub struct EncodedRecord<'a> {
    /// The encoded record. The append fills in queue offset, log offset, store time and property CRC.
    pub parts: RecordParts<'a>,
    /// Next offset of the record's queue.
    pub next_queue_offset: &'a AtomicI64,
    /// Number of queue offsets that the record takes.
    pub messages: u16,
    /// Quota of the record's topic.
    pub quota: &'a TopicQuotaState,
    /// Assigned offsets and time, valid after the append.
    pub placed: Placed,
}

/// The offsets and the store time that an append assigned to a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// Offset in its queue.
    pub queue_offset: i64,
    /// Log offset.
    pub commit_log_offset: u64,
    /// Store time in epoch milliseconds.
    pub store_timestamp_ms: i64,
}

/// A log offset that a sync covers, and the last record before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncPoint {
    /// Log offset up to which the log is durable.
    pub position: u64,
    /// Log offset of the last record that ends at or before `position`.
    pub last_offset: u64,
    /// Byte length of that record; 0 if no record exists.
    pub last_size: u32,
    /// Newest store timestamp up to `position`, in epoch milliseconds.
    pub store_timestamp_ms: i64,
}

/// The options that decide how a log is written.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// Bytes of the pool; `None` copies records to the mapped segment instead.
    pub pool_bytes: Option<u64>,
    /// How long appends wait for the put lock.
    pub limits: PutLimits,
    /// Preallocation after the tail.
    pub preallocation: PreallocateOptions,
    /// Minimum bytes after the tail that get disk space at once.
    pub allocation_bytes: u64,
    /// Total bytes of an append from which its records are written to the file instead of copied to absent pages of its
    /// map.
    pub file_write_bytes: u64,
    /// Maximum total bytes of all segments.
    pub max_bytes: Option<u64>,
}

/// Maximum bytes after the tail that stay faulted in: about 50 ms of the fastest appends.
const WARM_WINDOW_BYTES: u64 = 64 << 20;

/// Maximum bytes after the tail that are prewritten. A burst of this size does not compete with prewriting for the
/// device.
const PREWRITTEN_BYTES: u64 = 128 << 20;

impl LogOptions {
    /// Returns the log options that follow from the store's `options`.
    pub fn of(options: &StoreOptions) -> Self {
        let through_file = matches!(options.durability, Durability::Sync | Durability::Pooled);
        Self {
            pool_bytes: through_file.then_some(options.pool_bytes),
            limits: PutLimits {
                busy_after_ms: options.busy_after_ms,
                queue_wait_ms: options.queue_wait_limit_ms,
            },
            allocation_bytes: options.allocation_bytes,
            file_write_bytes: options.file_write_bytes,
            max_bytes: options.max_bytes,
            preallocation: PreallocateOptions {
                enabled: options.prewarm,
                window_bytes: match options.durability {
                    Durability::Sync => PREWRITTEN_BYTES,
                    Durability::Async | Durability::Manual => WARM_WINDOW_BYTES,
                    // No append waits for a page of the file, and one large write creates its pages itself.
                    Durability::Pooled => 0,
                },
                prewrite: options.durability == Durability::Sync,
                // Appends that write through the file need none of its pages.
                lock_memory: options.lock_memory && !through_file,
            },
        }
    }
}

/// The log of a store that is open for writing. `active_segment` has a drawing of its offsets.
///
/// Across threads: an append holds the put lock (`put_lock`) while it copies its records, and only the holder advances
/// the published offset. One thread at a time syncs, for all waiting threads (`mqstore_base::group_commit`). One thread
/// prepares the next segment and the pages after the tail (`preallocate`).
#[derive(Debug)]
pub struct CommitLog {
    pub(super) files: StoreFiles,
    pub(super) segments: MappedFileQueue,
    pub(super) list: NewestList,
    pub(super) state: AppendState,
    pub(super) pool: Option<Pool>,
    pub(super) preallocator: Preallocator,
    /// The active segment, for readers of its newest records.
    pub(super) active: RwLock<Option<Arc<ActiveSegment>>>,
    /// Whether a segment got its name after the last sync of the folder.
    pub(super) names_pending: Mutex<bool>,
    pub(super) commit: GroupCommit,
    pub(super) replica_acks: Arc<ReplicaAcks>,
    pub(super) synced: Mutex<SyncPoint>,
    pub(super) live: Arc<LivePage>,
    pub(super) stopped: AtomicBool,
    pub(super) cause: Mutex<Option<(&'static str, String)>>,
    pub(super) refused: AtomicU64,
    /// Total bytes of an append from which its records are written to the file instead of copied to absent pages of its
    /// map.
    pub(super) file_write_bytes: u64,
    /// Maximum total bytes of all segments.
    pub(super) max_bytes: Option<u64>,
    /// End of the log when it was opened; this process wrote everything after it.
    pub(super) own_from: u64,
    /// Bytes before the end that count as being in memory.
    pub(super) hot_bytes: u64,
    pub(super) read_maps: ReadMaps,
    pub(super) reads: ReadCounts,
}

/// The fields that each append changes while it holds the put lock.
///
/// They have their own cache lines. These lines move between the processors that append, and would otherwise take
/// constant fields (options, the pool, the map) with them.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct AppendState {
    pub(super) put: PutLock<PutState>,
    /// Published offset, for threads that do not hold the put lock: all records before it are completely copied.
    appended: AtomicU64,
    /// Number of records since the log was opened.
    records: AtomicU64,
    record_bytes: AtomicU64,
}

#[derive(Debug)]
pub(super) struct PutState {
    pub(super) active: Option<Arc<ActiveSegment>>,
    /// Log offset of the next record, and the last record before it.
    pub(super) point: SyncPoint,
    /// Log offset before which everything has disk space. There can be more: see `MappedFile::allocated`.
    pub(super) allocated: u64,
    /// Records on their way to the file; kept to reuse its memory.
    pub(super) gathered: Vec<u8>,
    /// Whether the log refuses all further appends.
    pub(super) sealed: bool,
}

impl PutState {
    /// Bytes left in the active segment.
    pub(super) fn remaining(&self) -> Option<u64> {
        self.active.as_ref().map(|active| active.segment.end_offset() - self.point.position)
    }

    /// Whether `bytes` and a filler after them fit the active segment.
    pub(super) fn has_space(&self, bytes: u64) -> bool {
        self.remaining().is_some_and(|rest| fits(rest, bytes))
    }
}

impl CommitLog {
    /// Opens the log as recovery left it: `segments` are its files, and everything up to `point` is synced.
    /// `live` shows that end already.
    pub fn open(
        files: &StoreFiles,
        options: &LogOptions,
        segments: MappedFileQueue,
        point: SyncPoint,
        live: Arc<LivePage>,
    ) -> Result<Self, StoreError> {
        let end = point.position;
        let active = segments.find(end).map(ActiveSegment::of).transpose()?;
        let pool_bytes = options.pool_bytes;
        let log = Self {
            files: files.clone(),
            list: NewestList::of(&segments),
            segments,
            state: AppendState {
                put: PutLock::new(
                    options.limits,
                    PutState {
                        active: active.clone(),
                        point,
                        allocated: 0,
                        gathered: Vec::new(),
                        sealed: false,
                    },
                ),
                appended: AtomicU64::new(end),
                records: AtomicU64::new(0),
                record_bytes: AtomicU64::new(0),
            },
            pool: pool_bytes.map(|bytes| Pool::new(files, bytes, end)).transpose()?,
            preallocator: Preallocator::new(options.preallocation, options.allocation_bytes, end),
            active: RwLock::new(active),
            names_pending: Mutex::new(false),
            commit: GroupCommit::new(end),
            replica_acks: Arc::default(),
            synced: Mutex::new(point),
            live,
            stopped: AtomicBool::new(false),
            cause: Mutex::new(None),
            refused: AtomicU64::new(0),
            file_write_bytes: options.file_write_bytes,
            max_bytes: options.max_bytes,
            own_from: end,
            hot_bytes: hot_bytes(files.vfs.environment().memory_bytes),
            read_maps: ReadMaps::default(),
            reads: ReadCounts::default(),
        };
        log.lock_first_pages()?;
        Ok(log)
    }

    /// Returns the current segments.
    pub fn list(&self) -> Arc<SegmentList> {
        self.list.get()
    }

    /// Published offset: one past the last published byte of the log, bytes in the pool included.
    pub fn appended(&self) -> u64 {
        self.state.appended.load(Ordering::Acquire)
    }

    /// One past the last byte that can be read from the segments.
    ///
    /// Records that an append writes directly to the file are in the file before they are published.
    pub fn readable(&self) -> u64 {
        let published = self.appended();
        self.pool.as_ref().map_or(published, |pool| pool.drained().min(published))
    }

    /// Writes everything appended to the segments and returns the end of it.
    pub fn make_readable(&self) -> Result<u64, StoreError> {
        let appended = self.appended();
        self.drain_pool(appended)?;
        Ok(appended)
    }

    /// Durable offset: one past the last byte that a sync covers.
    pub fn durable(&self) -> u64 {
        self.commit.durable()
    }

    /// Returns how far the copies of other machines are.
    pub fn replica_acks(&self) -> &Arc<ReplicaAcks> {
        &self.replica_acks
    }

    /// Returns the position that the last sync covered. It names no record if retention has removed the last one.
    pub fn sync_point(&self) -> SyncPoint {
        let point = *self.synced.lock();
        if point.last_offset >= self.list().min_offset() {
            return point;
        }
        SyncPoint { last_offset: 0, last_size: 0, ..point }
    }

    /// Byte length of a segment.
    pub fn segment_bytes(&self) -> u64 {
        self.segments.file_bytes()
    }

    /// Maximum byte length of a record.
    pub fn max_record_bytes(&self) -> u64 {
        self.segments.file_bytes() - BLANK_HEADER_BYTES as u64
    }

    /// Number of appends that were refused because the store was busy.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Number of records appended since the log was opened, and their total bytes.
    pub fn appended_records(&self) -> (u64, u64) {
        (self.state.records.load(Ordering::Relaxed), self.state.record_bytes.load(Ordering::Relaxed))
    }

    /// Refuses every further append.
    pub fn seal(&self) {
        self.state.put.lock_without_timeout().sealed = true;
    }

    /// Releases maps and descriptors that are not in use. Call it for a sealed log.
    pub fn release(&self) {
        self.state.put.lock_without_timeout().active = None;
        *self.active.write() = None;
        for segment in self.segments.snapshot().iter() {
            segment.unmap();
            segment.close_file();
        }
    }

    pub(super) fn active(&self) -> Option<Arc<ActiveSegment>> {
        self.active.read().clone()
    }

    /// Removes the oldest segment, which starts at `base`, from the log, unless it is the active one; see
    /// [`MappedFileQueue::retire_oldest`].
    pub fn retire_oldest(
        &self,
        base: u64,
        take_name: impl FnOnce(&MappedFile) -> std::io::Result<()>,
    ) -> std::io::Result<bool> {
        let outcome = self.segments.retire_oldest(base, |segment| {
            // First: a reader that does not find the file looks for the reason in the page.
            self.live.expire_to(segment.end_offset());
            take_name(segment)
        });
        self.refresh_list();
        outcome
    }

    /// Renews the list after a segment was added or removed.
    pub(super) fn refresh_list(&self) {
        self.list.renew(&self.segments);
    }

    /// Fails if an append stopped between assigning offsets to a record and copying it, for example by a panic.
    pub(super) fn check_copied(&self, put: &PutState) -> Result<(), StoreError> {
        if put.point.position == self.appended() {
            return Ok(());
        }
        Err(self.poison("appending", "an append stopped before its records were copied"))
    }

    pub(super) fn active_of<'a>(&self, put: &'a PutState) -> Result<&'a ActiveSegment, StoreError> {
        put.active.as_deref().ok_or_else(|| self.poison("appending", "there is no active segment"))
    }

    /// Runs `work` while no append can run. `work` must be short.
    pub fn block_appends(&self, work: impl FnOnce()) {
        let _put = self.state.put.lock_without_timeout();
        work();
    }

    /// Total bytes of all segments.
    pub(crate) fn segments_bytes(&self) -> u64 {
        self.list().segments().iter().map(|segment| segment.len()).sum()
    }

    /// Assigns the next offsets to `record`. The caller has made sure that it fits.
    #[inline]
    pub(super) fn assign(&self, put: &mut PutState, record: &mut EncodedRecord<'_>) {
        let size = record.parts.len();
        let queue_offset = record.next_queue_offset.load(Ordering::Relaxed);
        record.placed = Placed {
            queue_offset,
            commit_log_offset: put.point.position,
            store_timestamp_ms: put.point.store_timestamp_ms,
        };
        record.next_queue_offset.store(queue_offset + i64::from(record.messages), Ordering::Release);
        record.quota.draw(record.messages);
        put.point.last_offset = put.point.position;
        put.point.last_size = size as u32;
        put.point.position += size as u64;
        self.count(1, size as u64);
    }

    /// Counts records, and their bytes. The caller holds the put lock, so no other thread changes the counters.
    #[inline]
    pub(super) fn count(&self, more_records: u64, more_bytes: u64) {
        let (records, bytes) = self.appended_records();
        self.state.records.store(records + more_records, Ordering::Relaxed);
        self.state.record_bytes.store(bytes + more_bytes, Ordering::Relaxed);
    }

    /// Publishes everything up to the point of `put` and returns the published offset.
    pub(super) fn publish(&self, put: &PutState) -> u64 {
        let end = put.point.position;
        // A thread that wakes waiters after this needs no fence (`EventCount::notify_all_after_fence`).
        self.state.appended.store(end, Ordering::SeqCst);
        // Readers in other processes see only bytes that are in the file.
        self.live.publish(self.readable());
        self.preallocator.notify_end(end);
        end
    }
}
