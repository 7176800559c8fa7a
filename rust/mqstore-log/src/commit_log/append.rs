//! Appending: reserve under the put lock, copy outside it, publish in order.
//!
//! ```text
//! caller   encode, check     | put lock: queue offset, position, time | patch, sum, copy | publish
//! another                    |                    wait                | put lock ...     | copy ...
//! ```
//!
//! Everything that can fail comes before the reservation: the caller has encoded and checked the
//! record, and a full segment is followed by the next one only once that one exists. What remains is
//! patching three fields, one checksum and one copy; a failure there stops the log for good
//! ([`StoreError::Poisoned`]) and wakes all who wait. A call returns once its records are published, so
//! that a kill of the process finds no gap before them.
//!
//! | durability | bytes go to | in the file |
//! |---|---|---|
//! | `async`, `manual` | the mapped segment | at once |
//! | `async`, `manual` with `durable` | the file, by a positional write | at once |
//! | `sync` | the pool | when the leader of a group commit writes it |
//! | `pooled` | the pool | when the background writes it, or a reader asks |
//!
//! Source: `CommitLog#asyncPutMessage`, `DefaultAppendMessageCallback#doAppend`.

use std::sync::Arc;
use std::time::Duration;

use mqstore_format::{BLANK_HEADER_BYTES, RecordParts};
use mqstore_io::sync::{AtomicBool, AtomicI64, AtomicU64, Mutex, Ordering, RwLock};
use mqstore_io::{MappedFile, MappedFileQueue};

use super::active_segment::{ActiveSegment, ShardedActive};
use super::copy::seal;
use super::mapped_reads::{ReadCounts, ReadMaps, hot_bytes};
use super::pool::Pool;
use super::preallocate::{PreallocateOptions, Preallocator};
use super::publish_ring::PublishRing;
use super::put_lock::{PutBusy, PutGuard, PutLimits, PutLock};
use super::quota::TopicQuotaState;
use super::roll::activate;
use super::segment_list::{NewestList, Segment, SegmentList};
use mqstore_base::error::{IoContext, StoreError};
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

/// Bytes of a record's place that are fetched ahead; the processor finds the rest by itself.
const MOST_EXPECTED_BYTES: usize = 4096;

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
/// Across threads: appenders hold the put lock (`put_lock`) for some nanoseconds each, copy in parallel and are
/// published in order (`publish_ring`). One thread at a time syncs, for all who wait (`mqstore_base::group_commit`).
/// One prepares the next segment and the pages after the tail (`preallocate`).
#[derive(Debug)]
pub struct CommitLog {
    pub(super) files: StoreFiles,
    pub(super) row: MappedFileQueue,
    pub(super) list: NewestList,
    pub(super) front: AppendState,
    pub(super) ring: PublishRing,
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
    /// Where the next record goes, for those who do not hold the put lock.
    reserved: AtomicU64,
    /// Records and their bytes since the log was opened.
    records: AtomicU64,
    record_bytes: AtomicU64,
}

#[derive(Debug)]
pub(super) struct PutState {
    pub(super) active: Option<Arc<ActiveSegment>>,
    shares: ShardedActive,
    /// Where the next record goes, and the last one before it.
    pub(super) point: SyncPoint,
    pub(super) ticket: u64,
    /// Whether nothing may be appended any more.
    sealed: bool,
}

impl PutState {
    /// Appends go to this segment from now on.
    pub(super) fn switch_to(&mut self, active: Option<Arc<ActiveSegment>>) {
        self.shares = ShardedActive::of(active.as_ref());
        self.active = active;
    }

    /// The bytes that are left of the active segment.
    pub(super) fn rest(&self) -> Option<u64> {
        self.active.as_ref().map(|active| active.segment.end_offset() - self.point.position)
    }
}

/// What an append holds after it left the put lock.
struct AppendReservation {
    ticket: u64,
    end: u64,
    /// The segment of the first record.
    active: Arc<ActiveSegment>,
    /// How many records have their place; the others met `failure`.
    count: usize,
    failure: Option<Box<StoreError>>,
    /// Whether they are written already.
    written: bool,
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
        let active = row.find(end).map(activate).transpose()?;
        live.publish(end);
        live.set_durable(end);
        let pool_bytes = options.pool_bytes;
        let log = Self {
            files: files.clone(),
            list: NewestList::of(&row),
            row,
            front: AppendState {
                put: PutLock::new(
                    options.limits,
                    PutState {
                        shares: ShardedActive::of(active.as_ref()),
                        active: active.clone(),
                        point,
                        ticket: 0,
                        sealed: false,
                    },
                ),
                reserved: AtomicU64::new(end),
                records: AtomicU64::new(0),
                record_bytes: AtomicU64::new(0),
            },
            ring: PublishRing::new(end),
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

    /// One past the last byte that belongs to a record, copied or not.
    pub fn reserved(&self) -> u64 {
        self.front.reserved.load(Ordering::Acquire)
    }

    /// One past the last byte of the log that an append has returned for; pooled bytes included.
    pub fn appended(&self) -> u64 {
        self.ring.published()
    }

    /// One past the last byte that can be read from the segments.
    ///
    /// A filler counts only with its ticket: the pool is past it before what it stands behind is published.
    pub fn readable(&self) -> u64 {
        let published = self.ring.published();
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

    /// Refuses every append from now on; those that have their place already go on.
    pub fn seal(&self) {
        self.front.put.lock_without_timeout().sealed = true;
    }

    /// Gives back maps and descriptors, but for those that somebody uses; for a log that is sealed.
    pub fn release(&self) {
        self.front.put.lock_without_timeout().switch_to(None);
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

    /// Appends records at consecutive places, fills in where they went, and returns where they end.
    ///
    /// They become visible together, once all of them are placed; when a batch larger than a segment
    /// meets a full disk, those before it stay. With `through_file` they are written by a positional
    /// write, which a sync makes durable cheaply; a log with a pool does so in any case.
    ///
    /// # Errors
    /// [`StoreError::Busy`] when the lock was held or waited for too long, [`StoreError::TooLarge`],
    /// [`StoreError::Full`], [`StoreError::DiskFull`] and other errors of making a segment: nothing was appended then.
    /// [`StoreError::Poisoned`] when the log was stopped.
    pub fn append(
        &self,
        records: &mut [EncodedRecord<'_>],
        now_ms: i64,
        through_file: bool,
    ) -> Result<u64, StoreError> {
        self.check()?;
        let Some(reservation) = self.reserve(records, now_ms)? else { return Ok(self.appended()) };
        let placed = records.get_mut(..reservation.count).unwrap_or_default();
        if !reservation.written {
            self.prefetch_copy(placed, &reservation.active);
            let copied = match &self.pool {
                None if through_file => self.write_through(placed, reservation.active),
                _ => self.copy(placed, reservation.active),
            };
            copied.map_err(|error| self.poison("appending", &error.to_string()))?;
        }
        self.complete(reservation.ticket, reservation.end);
        if !self.ring.wait_published(reservation.end, || self.stopped.load(Ordering::Acquire)) {
            return Err(self.poison("appending", "an append before this one failed"));
        }
        reservation.failure.map_or(Ok(reservation.end), |failure| Err(*failure))
    }

    pub(super) fn complete(&self, ticket: u64, end: u64) {
        if self.pool.is_none() {
            let mut told = 0;
            self.ring.complete(ticket, end, |end| {
                self.live.publish_next(end);
                told = end;
            });
            // What others had completed is published as well.
            let published = self.ring.published();
            if published > told {
                self.live.publish(published);
            }
        } else {
            // Readers in other processes see what is in the file.
            self.ring.complete(ticket, end, drop);
        }
    }

    /// Draws offsets, positions and the time; `None` when there is nothing to append.
    fn reserve(
        &self,
        records: &mut [EncodedRecord<'_>],
        now_ms: i64,
    ) -> Result<Option<AppendReservation>, StoreError> {
        let total: u64 = records.iter().map(|record| record.parts.len() as u64).sum();
        loop {
            let mut put = self.lock_put(now_ms)?;
            if put.sealed {
                return Err(StoreError::Closed { path: self.files.root.clone() });
            }
            self.admit(records)?;
            // The clock may step back; stored times never do.
            put.point.store_timestamp_ms = put.point.store_timestamp_ms.max(now_ms);
            let fits_a_segment = total <= self.max_record_bytes();
            if fits_a_segment {
                self.ensure_space(&mut put, total, true)?;
            } else {
                self.may_hold(&put, records)?;
            }
            match &self.pool {
                Some(pool) if total > pool.capacity() / 4 || !fits_a_segment => {
                    return self.append_through_pool(&mut put, pool, records).map(Some);
                }
                Some(pool) if !pool.has_room_to(put.point.position + total) => {
                    drop(put);
                    self.wait_for_pool(pool)?;
                }
                _ => return self.draw(&mut put, records),
            }
        }
    }

    pub(super) fn lock_put(&self, now_ms: i64) -> Result<PutGuard<'_, PutState>, StoreError> {
        self.front.put.lock(now_ms, &*self.files.clock).map_err(|busy| {
            self.refused.fetch_add(1, Ordering::Relaxed);
            let reason = match busy {
                PutBusy::HeldFor(ms) => format!(
                    "another append has held the store's lock for {ms} ms (busy_after): the disk or the memory does not keep up; try again later"
                ),
                PutBusy::WaitedFor(ms) => format!(
                    "the append waited {ms} ms for its turn (queue_wait_limit): more is appended than the store can take; try again later"
                ),
            };
            StoreError::Busy { reason }
        })
    }

    /// Has what is pooled written, or waits until somebody else has, which may last as long as waiting for
    /// the lock.
    fn wait_for_pool(&self, pool: &Pool) -> Result<(), StoreError> {
        let ms = self.front.put.limits().queue_wait_ms;
        let drained = pool.drain_within(&self.row, self.appended(), Duration::from_millis(ms));
        if !drained.map_err(|error| self.poison("writing the log", &error.to_string()))? {
            self.refused.fetch_add(1, Ordering::Relaxed);
            let reason = format!(
                "the pool has been full for {ms} ms (queue_wait_limit): the disk does not take what is appended; try again later"
            );
            return Err(StoreError::Busy { reason });
        }
        self.live.publish(self.readable());
        Ok(())
    }

    fn draw(
        &self,
        put: &mut PutState,
        records: &mut [EncodedRecord<'_>],
    ) -> Result<Option<AppendReservation>, StoreError> {
        let mut count = 0;
        let mut active = None;
        let mut failure = None;
        for record in records.iter_mut() {
            if let Err(error) = self.ensure_space(put, record.parts.len() as u64, count == 0) {
                failure = Some(Box::new(error));
                break;
            }
            active = active.or_else(|| put.shares.local());
            self.assign(put, record);
            count += 1;
        }
        let Some(active) = active else { return failure.map_or(Ok(None), |failure| Err(*failure)) };
        let ticket = self.take_ticket(put);
        Ok(Some(AppendReservation {
            ticket,
            end: put.point.position,
            active,
            count,
            failure,
            written: false,
        }))
    }

    /// Gives `record` the next place; the caller has made room.
    #[inline]
    fn assign(&self, put: &mut PutState, record: &mut EncodedRecord<'_>) {
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

    pub(super) fn take_ticket(&self, put: &mut PutState) -> u64 {
        let ticket = put.ticket;
        self.ring.wait_for_slot(ticket);
        put.ticket += 1;
        let end = put.point.position;
        self.front.reserved.store(end, Ordering::Release);
        self.ahead.notify_end(end);
        ticket
    }

    /// Has the memory of the first record's place fetched while its checksum is still computed.
    #[inline]
    fn prefetch_copy(&self, records: &[EncodedRecord<'_>], active: &ActiveSegment) {
        if let (None, [first, ..]) = (&self.pool, records) {
            let at = first.placed.commit_log_offset.saturating_sub(active.segment.base_offset());
            active.region.expect_write(at as usize, first.parts.len().min(MOST_EXPECTED_BYTES));
        }
    }

    /// Appends records that the pool has no room for, straight to the file, while others wait.
    fn append_through_pool(
        &self,
        put: &mut PutState,
        pool: &Pool,
        records: &mut [EncodedRecord<'_>],
    ) -> Result<AppendReservation, StoreError> {
        let mut failure = None;
        let mut count = 0;
        for record in records.iter_mut() {
            if let Err(error) = self.ensure_space(put, record.parts.len() as u64, count == 0) {
                failure = Some(Box::new(error));
                break;
            }
            self.drain_locked(put)?;
            self.assign(put, record);
            let written = seal(record).and_then(|()| self.write_to_file(record));
            written.map_err(|error| self.poison("appending", &error.to_string()))?;
            pool.skip_to(put.point.position);
            count += 1;
        }
        let Some(active) = put.active.clone().filter(|_| count > 0) else {
            let missing = || self.poison("appending", "there is no active segment");
            return Err(failure.map_or_else(missing, |failure| *failure));
        };
        let ticket = self.take_ticket(put);
        Ok(AppendReservation { ticket, end: put.point.position, active, count, failure, written: true })
    }

    fn write_to_file(&self, record: &EncodedRecord<'_>) -> Result<(), StoreError> {
        let at = record.placed.commit_log_offset;
        let segment = self.segment_at(at)?;
        let mut from = at - segment.base_offset();
        for slice in record.parts.slices() {
            let written = segment.file().and_then(|file| file.write_all_at(slice, from));
            written.at_file(|| segment.path(), "appending")?;
            from += slice.len() as u64;
        }
        segment.advance_wrote(from);
        Ok(())
    }

    pub(super) fn segment_at(&self, offset: u64) -> Result<Arc<Segment>, StoreError> {
        self.row.find(offset).ok_or_else(|| self.poison("appending", "its segment is gone"))
    }
}
