//! Making things durable in the background, in the order that recovery relies on.
//!
//! Log first, then the queues and the index that speak of it, then the checkpoint that speaks of
//! those, then the mark. Each step is a plain call, so that a test can make them in any order;
//! the store's services call [`Flusher::step`] from a thread.
//!
//! Across a crash: the mark and the checkpoint never claim more than the syncs before them covered.
//!
//! Source of the intervals: `FlushRealTimeService`, `FlushConsumeQueueService`, `StoreCheckpoint`.

use std::sync::Arc;

use mqstore_format::crc31;
use mqstore_io::switch;
use mqstore_io::sync::{AtomicU64, Mutex, Ordering};

use crate::checkpoint::CheckpointFile;
use crate::commit_log::{CommitLog, SyncPoint, read_record};
use crate::consume_queue::QueueSet;
use crate::dispatch::Dispatcher;
use crate::index::IndexSet;
use crate::recovery::QueueManifest;
use mqstore_base::durable_mark::{DurableMark, DurableMarkFile};
use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;

const PAGE_BYTES: u64 = 4096;

/// Bytes of log whose queues and index entries a crash may cost at most, with what comes in one interval.
const REDISPATCH_BYTES: u64 = 64 << 20;

/// Segments that dispatch, with its syncs, may be behind before appends wait for it. RocketMQ 5.5.0 would not
/// build queues over more than ten.
pub const MAX_SEGMENTS_BEHIND: u64 = 8;

/// When the background makes things durable.
#[derive(Clone, Copy, Debug)]
pub struct FlushPolicy {
    /// Milliseconds between looks.
    pub interval_ms: u64,
    /// Dirty pages that make a sync of the log worth while.
    pub least_pages: u32,
    /// Milliseconds after which everything is synced.
    pub thorough_interval_ms: u64,
    /// Whether the background syncs at all.
    pub background: bool,
}

/// What one step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushOutcome {
    /// Nothing was due.
    Idle,
    /// The log was synced.
    Log,
    /// Everything was synced.
    Thorough,
}

/// Syncs a store; see the module's text.
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
    /// The log position up to which queues and index are durable too.
    dispatched: AtomicU64,
}

#[derive(Debug)]
struct FlushState {
    mark: DurableMark,
    /// Whether the slot of `mark` was synced.
    mark_synced: bool,
    /// How many queues the manifest names, as far as is known.
    manifest_queues: usize,
    thorough_at_ms: i64,
}

impl Flusher {
    /// A flusher that goes on from `mark`, the newest one on disk.
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
        Self { files: files.clone(), policy, log, queues, index, dispatcher, marks, state, dispatched }
    }

    /// Tells that the manifest on the disk names all `queues` that there are.
    pub fn set_manifest_len(&self, queues: usize) {
        self.state.lock().manifest_queues = queues;
    }

    /// The log position up to which queues and index are durable.
    pub fn dispatched(&self) -> u64 {
        self.dispatched.load(Ordering::Acquire)
    }

    /// The end of the log at which a step is due whatever the time.
    pub fn flush_due_offset(&self) -> u64 {
        if !self.policy.background {
            return u64::MAX;
        }
        // Where dispatch is held back, a step would not help.
        let behind = self.dispatched() + self.lag_limit();
        if behind < self.dispatcher.limit() { behind } else { u64::MAX }
    }

    /// So far queues and index may be behind until the background makes them durable at once: appends
    /// would wait for that themselves at twice as much.
    fn lag_limit(&self) -> u64 {
        MAX_SEGMENTS_BEHIND / 2 * self.log.segment_bytes()
    }

    /// How often [`Self::step`] wants to be called.
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
        if now_ms.saturating_sub(state.thorough_at_ms) >= self.policy.thorough_interval_ms as i64 {
            state.thorough_at_ms = now_ms;
            if appended > durable || state.mark.dispatched < appended {
                self.flush_with(&mut state, false)?;
                return Ok(FlushOutcome::Thorough);
            }
            return Ok(FlushOutcome::Idle);
        }
        // What is dispatched and not synced is dispatched again after a crash.
        let behind = |end: u64| end.saturating_sub(state.mark.dispatched);
        let far = behind(appended.min(self.dispatcher.limit())) >= self.lag_limit();
        if far || behind(self.dispatcher.position()) >= REDISPATCH_BYTES {
            self.flush_with(&mut state, false)?;
            return Ok(FlushOutcome::Thorough);
        }
        let dirty_pages = appended / PAGE_BYTES - durable / PAGE_BYTES;
        if appended > durable && dirty_pages >= u64::from(self.policy.least_pages) {
            self.log.wait_durable(appended)?;
            self.write_mark(&mut state, false, false)?;
            return Ok(FlushOutcome::Log);
        }
        Ok(FlushOutcome::Idle)
    }

    /// Makes everything that was appended when this began durable, derived files included. `clean`
    /// says in the mark that nothing will follow.
    pub fn flush_all(&self, clean: bool) -> Result<(), StoreError> {
        self.flush_with(&mut self.state.lock(), clean)
    }

    /// Runs `then` while nothing is synced here.
    pub fn run_while_idle<T>(&self, then: impl FnOnce() -> T) -> T {
        let _state = self.state.lock();
        then()
    }

    fn flush_with(&self, state: &mut FlushState, clean: bool) -> Result<(), StoreError> {
        self.log.wait_durable(self.log.appended())?;
        let point = self.log.sync_point();
        // Less than all of it, where a confirm position holds dispatch back.
        let dispatched = self.dispatcher.run_to(&self.log.list(), point.position)?.min(point.position);
        if !switch::on("flush.h10_checkpoint_after_sync") {
            self.write_checkpoint(point)?;
        }
        // After a failed sync the next one may succeed without having written anything.
        let derived = self.queues.flush().and_then(|()| self.index.flush());
        derived.map_err(|error| self.log.poison("syncing queues and index", &error.to_string()))?;
        if clean || self.queues.count() != state.manifest_queues {
            let manifest = QueueManifest::of(&self.queues, self.log.list().min_offset(), dispatched)?;
            manifest.store(&self.files)?;
            state.manifest_queues = manifest.len();
        }
        // It speaks for queues and index, too: what is held back from them is not in it.
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

    fn write_mark(&self, state: &mut FlushState, clean: bool, durable: bool) -> Result<(), StoreError> {
        let point = self.log.sync_point();
        let unchanged = point.position == state.mark.position && !durable;
        if unchanged {
            return Ok(());
        }
        let last_crc = if point.last_size == 0 {
            0
        } else {
            let bytes =
                read_record(&self.files, &self.log.list(), point.last_offset, point.last_size as usize)?;
            crc31(bytes.as_slice())
        };
        state.mark = DurableMark {
            // Slots go by even and odd numbers. A mark that is not synced must not be the end of the only
            // one that is: it is written over until one of its slot is synced.
            sequence: state.mark.sequence + if state.mark_synced { 1 } else { 2 },
            clean,
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
