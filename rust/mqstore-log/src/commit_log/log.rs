//! The log of a store that is open for writing: its parts, its positions, and how it is opened and sealed.
//!
//! Owns the put lock's state and the published position. The other files of this folder write, read and sync it.

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
use super::segment_list::{NewestList, Segment, SegmentList};
use mqstore_base::error::StoreError;
use mqstore_base::group_commit::GroupCommit;
use mqstore_base::live_page::LivePage;
use mqstore_base::options::{Durability, StoreOptions};
use mqstore_base::store_files::StoreFiles;

/// One encoded record on its way into the log.
#[derive(Debug)]
pub struct EncodedRecord<'a> {
    /// The encoded record; queue offset, position, store time and property CRC are filled in.
    pub parts: RecordParts<'a>,
    /// The next offset of the record's queue.
    pub next_queue_offset: &'a AtomicI64,
    /// How many queue offsets it takes.
    pub messages: u16,
    /// What its topic may hold.
    pub room: &'a TopicQuotaState,
    /// Where it went, once it is appended.
    pub placed: Placed,
}

/// Where a record went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// The offset in its queue.
    pub queue_offset: i64,
    /// The offset in the log.
    pub commit_log_offset: u64,
    /// When it was stored, in epoch milliseconds.
    pub store_timestamp_ms: i64,
}

/// A position that a sync covers, and the last record below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncPoint {
    /// The log is durable up to here.
    pub position: u64,
    /// The last record that ends at or before it; its size is 0 when there is none.
    pub last_offset: u64,
    /// That record's size in bytes.
    pub last_size: u32,
    /// The newest store timestamp at or below it, in epoch milliseconds.
    pub store_timestamp_ms: i64,
}

/// How a log is written.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// Bytes of the pool that records go through; `None` copies them to the mapped segment.
    pub pool_bytes: Option<u64>,
    /// How long appends wait for the put lock.
    pub limits: PutLimits,
    /// What is prepared ahead of the writer.
    pub ahead: PreallocateOptions,
    /// Bytes of segments that there may be.
    pub max_bytes: Option<u64>,
}

/// Bytes ahead of the tail that are kept present: some 50 ms of the fastest appends.
const WARM_WINDOW_BYTES: u64 = 64 << 20;

/// The same where they are written to the device before: a burst of so many bytes finds the device its own.
const PREWRITTEN_BYTES: u64 = 128 << 20;

impl LogOptions {
    /// How `options` want the log written.
    pub fn of(options: &StoreOptions) -> Self {
        let through_file = matches!(options.durability, Durability::Sync | Durability::Pooled);
        Self {
            pool_bytes: through_file.then_some(options.pool_bytes),
            limits: PutLimits {
                busy_after_ms: options.busy_after_ms,
                queue_wait_ms: options.queue_wait_limit_ms,
            },
            max_bytes: options.max_bytes,
            ahead: PreallocateOptions {
                enabled: options.prewarm,
                window_bytes: match options.durability {
                    Durability::Sync => PREWRITTEN_BYTES,
                    Durability::Async | Durability::Manual => WARM_WINDOW_BYTES,
                    // No append waits for a page of the file, and one write of many records makes its own.
                    Durability::Pooled => 0,
                },
                prewrite: options.durability == Durability::Sync,
                // Who writes through the file needs no page of it.
                lock_memory: options.lock_memory && !through_file,
            },
        }
    }
}

/// The log of a store that is open for writing. `active_segment` draws its positions.
///
/// Across threads: an append holds the put lock (`put_lock`) while it copies its records; whoever holds it is the
/// only one that moves the published position. One thread at a time syncs, for all who wait
/// (`mqstore_base::group_commit`). One prepares the next segment and the pages after the tail (`preallocate`).
#[derive(Debug)]
pub struct CommitLog {
    pub(super) files: StoreFiles,
    pub(super) row: MappedFileQueue,
    pub(super) list: NewestList,
    pub(super) front: AppendState,
    pub(super) pool: Option<Pool>,
    pub(super) ahead: Preallocator,
    /// The segment that is written, for readers that want its newest records.
    pub(super) active: RwLock<Option<Arc<ActiveSegment>>>,
    /// Whether a segment got its name since the folder was synced.
    pub(super) names_pending: Mutex<bool>,
    pub(super) commit: GroupCommit,
    pub(super) synced: Mutex<SyncPoint>,
    pub(super) live: Arc<LivePage>,
    pub(super) stopped: AtomicBool,
    pub(super) cause: Mutex<Option<(&'static str, String)>>,
    pub(super) refused: AtomicU64,
    /// Bytes of segments that there may be.
    pub(super) max_bytes: Option<u64>,
    /// Where the log ended when it was opened: what follows this process wrote.
    pub(super) own_from: u64,
    /// Bytes before the end that are taken to be in memory.
    pub(super) hot_bytes: u64,
    pub(super) read_maps: ReadMaps,
    pub(super) reads: ReadCounts,
}

/// What each append changes while it holds the put lock.
///
/// In cache lines of its own: they travel between the processors that append, and what lies beside them
/// (options, the pool, the map) would travel with them, although nobody changes it.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct AppendState {
    pub(super) put: PutLock<PutState>,
    /// Where the next record goes, for those who do not hold the put lock: all before it is copied.
    appended: AtomicU64,
    /// Records and their bytes since the log was opened.
    records: AtomicU64,
    record_bytes: AtomicU64,
}

#[derive(Debug)]
pub(super) struct PutState {
    pub(super) active: Option<Arc<ActiveSegment>>,
    /// Where the next record goes, and the last one before it.
    pub(super) point: SyncPoint,
    /// Whether nothing may be appended any more.
    pub(super) sealed: bool,
}

impl PutState {
    /// The bytes that are left of the active segment.
    pub(super) fn rest(&self) -> Option<u64> {
        self.active.as_ref().map(|active| active.segment.end_offset() - self.point.position)
    }

    /// Whether `bytes` and a filler behind them fit in the active segment.
    pub(super) fn has_space(&self, bytes: u64) -> bool {
        self.rest().is_some_and(|rest| fits(rest, bytes))
    }
}

impl CommitLog {
    /// The log as recovery found it: `row` holds its segments, everything up to `point` is synced.
    pub fn open(
        files: &StoreFiles,
        options: &LogOptions,
        row: MappedFileQueue,
        point: SyncPoint,
        live: Arc<LivePage>,
    ) -> Result<Self, StoreError> {
        let end = point.position;
        let active = row.find(end).map(ActiveSegment::of).transpose()?;
        live.publish(end);
        live.set_durable(end);
        let pool_bytes = options.pool_bytes;
        let log = Self {
            files: files.clone(),
            list: NewestList::of(&row),
            row,
            front: AppendState {
                put: PutLock::new(options.limits, PutState { active: active.clone(), point, sealed: false }),
                appended: AtomicU64::new(end),
                records: AtomicU64::new(0),
                record_bytes: AtomicU64::new(0),
            },
            pool: pool_bytes.map(|bytes| Pool::new(files, bytes, end)).transpose()?,
            ahead: Preallocator::new(options.ahead, end),
            active: RwLock::new(active),
            names_pending: Mutex::new(false),
            commit: GroupCommit::new(end),
            synced: Mutex::new(point),
            live,
            stopped: AtomicBool::new(false),
            cause: Mutex::new(None),
            refused: AtomicU64::new(0),
            max_bytes: options.max_bytes,
            own_from: end,
            hot_bytes: hot_bytes(files.vfs.environment().memory_bytes),
            read_maps: ReadMaps::default(),
            reads: ReadCounts::default(),
        };
        log.lock_first_pages()?;
        Ok(log)
    }

    /// The segments as they are now.
    pub fn list(&self) -> Arc<SegmentList> {
        self.list.get()
    }

    /// One past the last byte of the log that is published; pooled bytes included.
    pub fn appended(&self) -> u64 {
        self.front.appended.load(Ordering::Acquire)
    }

    /// One past the last byte that can be read from the segments.
    ///
    /// Records that an append writes past the pool are in the file before they are published.
    pub fn readable(&self) -> u64 {
        let published = self.appended();
        self.pool.as_ref().map_or(published, |pool| pool.drained().min(published))
    }

    /// Brings everything appended into the segments and returns where it ends.
    pub fn make_readable(&self) -> Result<u64, StoreError> {
        let appended = self.appended();
        self.drain_pool(appended)?;
        Ok(appended)
    }

    /// One past the last byte that a sync covers.
    pub fn durable(&self) -> u64 {
        self.commit.durable()
    }

    /// What the last sync covered.
    pub fn sync_point(&self) -> SyncPoint {
        *self.synced.lock()
    }

    /// Bytes of a segment.
    pub fn segment_bytes(&self) -> u64 {
        self.row.file_bytes()
    }

    /// Bytes a record may have at most.
    pub fn max_record_bytes(&self) -> u64 {
        self.row.file_bytes() - BLANK_HEADER_BYTES as u64
    }

    /// Appends that were refused because the store was busy.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Records that got their place since the log was opened, and their bytes.
    pub fn appended_records(&self) -> (u64, u64) {
        (self.front.records.load(Ordering::Relaxed), self.front.record_bytes.load(Ordering::Relaxed))
    }

    /// Refuses every append from now on.
    pub fn seal(&self) {
        self.front.put.lock_without_timeout().sealed = true;
    }

    /// Gives back maps and descriptors, but for those that somebody uses; for a log that is sealed.
    pub fn release(&self) {
        self.front.put.lock_without_timeout().active = None;
        *self.active.write() = None;
        for segment in self.row.snapshot().iter() {
            segment.unmap();
            segment.close_file();
        }
    }

    /// The segment that is written.
    pub(super) fn active(&self) -> Option<Arc<ActiveSegment>> {
        self.active.read().clone()
    }

    /// Takes the oldest segment, which starts at `base`, out of the log, unless it is the one that is
    /// written; see [`MappedFileQueue::retire_oldest`].
    pub fn retire_oldest(
        &self,
        base: u64,
        take_name: impl FnOnce(&MappedFile) -> std::io::Result<()>,
    ) -> std::io::Result<bool> {
        let outcome = self.row.retire_oldest(base, take_name);
        self.refresh_list();
        outcome
    }

    /// Takes note that the row gained or lost a segment.
    pub(super) fn refresh_list(&self) {
        self.list.renew(&self.row);
    }

    /// Fails when an append broke off between a record's place and its copy, as a panic of ours would.
    pub(super) fn check_copied(&self, put: &PutState) -> Result<(), StoreError> {
        if put.point.position == self.appended() {
            return Ok(());
        }
        Err(self.poison("appending", "an append broke off before its records were copied"))
    }

    pub(super) fn segment_at(&self, offset: u64) -> Result<Arc<Segment>, StoreError> {
        self.row.find(offset).ok_or_else(|| self.poison("appending", "its segment is gone"))
    }

    /// Keeps everybody from appending while `work` is done, which has to be short.
    pub fn block_appends(&self, work: impl FnOnce()) {
        let _put = self.front.put.lock_without_timeout();
        work();
    }

    /// Bytes of the segments.
    pub fn segments_bytes(&self) -> u64 {
        self.list().segments().iter().map(|segment| segment.len()).sum()
    }

    /// Gives `record` the next place; the caller has made room.
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
        record.room.draw(record.messages);
        put.point.last_offset = put.point.position;
        put.point.last_size = size as u32;
        put.point.position += size as u64;
        // Only who holds the put lock changes these.
        let (records, bytes) = self.appended_records();
        self.front.records.store(records + 1, Ordering::Relaxed);
        self.front.record_bytes.store(bytes + size as u64, Ordering::Relaxed);
    }

    /// Publishes everything up to the point of `put` and returns where that is.
    pub(super) fn publish(&self, put: &PutState) -> u64 {
        let end = put.point.position;
        // Who wakes those that wait for it needs no fence of its own (`EventCount::notify_all_after_fence`).
        self.front.appended.store(end, Ordering::SeqCst);
        // Readers in other processes see what is in the file.
        self.live.publish(self.readable());
        self.ahead.notify_end(end);
        end
    }
}
