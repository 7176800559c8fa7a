//! Flush: makes everything durable in the background, in the order that recovery relies on.
//!
//! The order is: the log, the queues and the index that point into it, the checkpoint that describes them, then the
//! durable mark. Each step is a plain call, so a test can run the steps in any order. The store's services call
//! [`Flusher::step`] from a thread.
//!
//! After a crash, mark and checkpoint never claim more than the syncs before them covered.
//!
//! Source of the intervals: `FlushRealTimeService`, `FlushConsumeQueueService`, `StoreCheckpoint`.

use std::sync::Arc;

use mqstore_format::crc31;
use mqstore_io::switch;
use mqstore_io::sync::{AtomicBool, AtomicU64, Mutex, Ordering};

use crate::checkpoint::CheckpointFile;
use crate::commit_log::{CommitLog, SyncPoint, read_record};
use crate::consume_queue::QueueSet;
use crate::dispatch::Dispatcher;
use crate::index::IndexSet;
use crate::recovery::QueueManifest;
use mqstore_base::durable_mark::{DurableMark, DurableMarkFile};
use mqstore_base::error::StoreError;
use mqstore_base::group_commit::GroupCommit;
use mqstore_base::store_files::StoreFiles;

const PAGE_BYTES: u64 = 4096;

/// Maximum bytes of log that a crash leaves to dispatch again, in addition to the appends of one interval.
const REDISPATCH_BYTES: u64 = 64 << 20;

/// Segments that dispatch and its syncs may lag before appends wait. RocketMQ 5.5.0 does not build queues over more
/// than ten.
pub const MAX_SEGMENTS_BEHIND: u64 = 8;

/// The schedule of the background flush.
#[derive(Clone, Copy, Debug)]
pub struct FlushPolicy {
    /// Milliseconds between two steps.
    pub interval_ms: u64,
    /// Dirty pages from which a sync of the log is due.
    pub least_pages: u32,
    /// Milliseconds after which everything is synced.
    pub thorough_interval_ms: u64,
    /// Whether the background syncs at all.
    pub background: bool,
}

/// The result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushOutcome {
    /// Nothing was due.
    Idle,
    /// The log was synced.
    Log,
    /// Everything was synced.
    Thorough,
}

/// Syncs a store in the order that the module describes.
#[derive(Debug)]
pub struct Flusher {
    files: StoreFiles,
    policy: FlushPolicy,
    log: Arc<CommitLog>,
    queues: Arc<QueueSet>,
    index: Arc<IndexSet>,
    dispatcher: Arc<Dispatcher>,
    marks: DurableMarkFile,
    state: Mutex<FlushState>,
    /// Log offset up to which queues and index are durable too.
    dispatched: AtomicU64,
    /// Set once the store has a metadata log, and the position up to which that is synced.
    metadata: (Arc<AtomicBool>, Arc<GroupCommit>),
}

#[derive(Debug)]
struct FlushState {
    mark: DurableMark,
    /// Whether the slot of `mark` was synced.
    mark_synced: bool,
    /// Number of queues in the manifest on disk, as far as known.
    manifest_queues: usize,
    thorough_at_ms: i64,
}

impl Flusher {
    /// Creates a flusher that continues from `mark`, the newest one on disk.
    pub fn new(
        files: &StoreFiles,
        policy: FlushPolicy,
        log: Arc<CommitLog>,
        queues: Arc<QueueSet>,
        index: Arc<IndexSet>,
        dispatcher: Arc<Dispatcher>,
        mark: DurableMark,
    ) -> Self {
        let state =
            FlushState { mark, mark_synced: false, manifest_queues: 0, thorough_at_ms: files.clock.now_ms() };
        let marks = DurableMarkFile::new(files);
        let dispatched = AtomicU64::new(mark.dispatched);
        let state = Mutex::new(state);
        let files = files.clone();
        let metadata = (Arc::default(), Arc::new(GroupCommit::new(0)));
        Self { files, policy, log, queues, index, dispatcher, marks, state, dispatched, metadata }
    }

    /// Adds the flag that the metadata log sets when its first file is durable, and the position up to which it is
    /// synced. Later marks contain both.
    #[must_use]
    pub fn with_metadata(self, has_file: Arc<AtomicBool>, synced: Arc<GroupCommit>) -> Self {
        Self { metadata: (has_file, synced), ..self }
    }

    /// Notes that the manifest on disk names all `queues` existing queues.
    pub fn set_manifest_len(&self, queues: usize) {
        self.state.lock().manifest_queues = queues;
    }

    /// Log offset up to which queues and index are durable.
    pub fn dispatched(&self) -> u64 {
        self.dispatched.load(Ordering::Acquire)
    }

    /// Log offset from which a step is due at any time.
    pub fn flush_due_offset(&self) -> u64 {
        if !self.policy.background {
            return u64::MAX;
        }
        // If a confirmed offset holds dispatch back, a step would not help.
        let behind = self.dispatched() + self.lag_limit();
        if behind < self.dispatcher.limit() { behind } else { u64::MAX }
    }

    /// Bytes of lag from which the background makes queues and index durable at once. Appends wait at twice this lag.
    fn lag_limit(&self) -> u64 {
        MAX_SEGMENTS_BEHIND / 2 * self.log.segment_bytes()
    }

    /// Milliseconds between two calls of [`Self::step`].
    pub fn interval_ms(&self) -> u64 {
        self.policy.interval_ms
    }

    /// Syncs what is due at `now_ms`.
    pub fn step(&self, now_ms: i64) -> Result<FlushOutcome, StoreError> {
        if !self.policy.background {
            return Ok(FlushOutcome::Idle);
        }
        let appended = self.log.appended();
        let durable = self.log.durable();
        let mut state = self.state.lock();
        let next_ms = state.thorough_at_ms.saturating_add_unsigned(self.policy.thorough_interval_ms);
        // A clock that was set back does not delay the flush.
        if !(state.thorough_at_ms..next_ms).contains(&now_ms) {
            state.thorough_at_ms = now_ms;
            if appended > durable || state.mark.dispatched < appended {
                self.flush_with(&mut state, false)?;
                return Ok(FlushOutcome::Thorough);
            }
            return Ok(FlushOutcome::Idle);
        }
        // After a crash, everything that is dispatched but not synced is dispatched again.
        let behind = |end: u64| end.saturating_sub(state.mark.dispatched);
        let far = behind(appended.min(self.dispatcher.limit())) >= self.lag_limit();
        if far || behind(self.dispatcher.position()) >= REDISPATCH_BYTES {
            self.flush_with(&mut state, false)?;
            return Ok(FlushOutcome::Thorough);
        }
        let dirty_pages = appended / PAGE_BYTES - durable / PAGE_BYTES;
        if appended > durable && dirty_pages >= u64::from(self.policy.least_pages) {
            self.log.flush_to(appended)?;
            self.write_mark(&mut state, false, false)?;
            return Ok(FlushOutcome::Log);
        }
        Ok(FlushOutcome::Idle)
    }

    /// Makes everything appended before the call durable, derived files included. `clean` writes into the mark that no
    /// append follows.
    pub fn flush_all(&self, clean: bool) -> Result<(), StoreError> {
        self.flush_with(&mut self.state.lock(), clean)
    }

    /// Runs `then` while no flush is running.
    pub fn run_while_idle<T>(&self, then: impl FnOnce() -> T) -> T {
        let _state = self.state.lock();
        then()
    }

    fn flush_with(&self, state: &mut FlushState, clean: bool) -> Result<(), StoreError> {
        self.log.flush_to(self.log.appended())?;
        let point = self.log.sync_point();
        // Dispatch stops earlier if a confirmed offset holds it back.
        let dispatched = self.dispatcher.run_to(&self.log.list(), point.position)?.min(point.position);
        if !switch::on("flush.h10_checkpoint_after_sync") {
            self.write_checkpoint(point)?;
        }
        // After a failed sync the next one may succeed without writing anything.
        let derived = self.queues.flush().and_then(|()| self.index.flush());
        derived.map_err(|error| self.log.poison("syncing queues and index", &error.to_string()))?;
        if clean || self.queues.count() != state.manifest_queues {
            let manifest = QueueManifest::of(&self.queues, self.log.list().min_offset(), dispatched)?;
            manifest.store(&self.files)?;
            state.manifest_queues = manifest.len();
        }
        // The checkpoint also describes queues and index, so it is written only if both are complete.
        if dispatched == point.position {
            self.write_checkpoint(point)?;
        }
        state.mark.dispatched = dispatched;
        state.mark.index = self.index.extent();
        self.write_mark(state, clean, true)?;
        self.dispatched.store(dispatched, Ordering::Release);
        Ok(())
    }

    fn write_checkpoint(&self, point: SyncPoint) -> Result<(), StoreError> {
        let file = CheckpointFile::new(&self.files);
        let mut checkpoint = file.load();
        checkpoint.physic_msg_timestamp = point.store_timestamp_ms;
        checkpoint.logics_msg_timestamp = point.store_timestamp_ms;
        checkpoint.index_msg_timestamp = self.index.last_sealed_end_timestamp();
        checkpoint.confirm_physical_offset = point.last_offset as i64;
        checkpoint.logics_physical_offset = point.last_offset as i64;
        file.store(&checkpoint)
    }

    /// Returns the point, and the checksum of its last record. If retention removes this record meanwhile, the point
    /// names none.
    fn with_checksum(&self, point: SyncPoint) -> Result<(SyncPoint, u32), StoreError> {
        if point.last_size == 0 {
            return Ok((point, 0));
        }
        let size = point.last_size as usize;
        match read_record(&self.files, &self.log.list(), point.last_offset, size) {
            Ok(bytes) => Ok((point, crc31(bytes.as_slice()))),
            Err(error) if self.log.list().min_offset() <= point.last_offset => Err(error),
            Err(_) => Ok((SyncPoint { last_offset: 0, last_size: 0, ..point }, 0)),
        }
    }

    fn write_mark(&self, state: &mut FlushState, clean: bool, durable: bool) -> Result<(), StoreError> {
        let point = self.log.sync_point();
        let unchanged = point.position == state.mark.position && !durable;
        if unchanged {
            return Ok(());
        }
        let (point, last_crc) = self.with_checksum(point)?;
        let has_metadata = self.metadata.0.load(Ordering::Acquire);
        state.mark = DurableMark {
            // The parity of the number selects the slot. An unsynced mark must not overwrite the only synced one, so
            // its own slot is reused until a mark in it is synced.
            sequence: state.mark.sequence + if state.mark_synced { 1 } else { 2 },
            clean,
            has_metadata: state.mark.has_metadata || has_metadata,
            metadata_end: if has_metadata {
                Some(self.metadata.1.durable())
            } else {
                state.mark.metadata_end
            },
            position: point.position,
            last_offset: point.last_offset,
            last_size: point.last_size,
            last_crc,
            segment_bytes: self.log.segment_bytes(),
            queue_file_bytes: self.queues.file_bytes(),
            index_slots: self.index.geometry().slots,
            index_entries: self.index.geometry().entries,
            boot_id: self.files.vfs.environment().boot_id,
            store_timestamp_ms: point.store_timestamp_ms,
            ..state.mark
        };
        state.mark_synced = false;
        self.marks.store(&state.mark, durable)?;
        state.mark_synced = durable;
        Ok(())
    }
}
