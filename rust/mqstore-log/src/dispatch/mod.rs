//! The dispatcher: writes queue units and index entries for log records.
//!
//! This module owns the *commit position*: the log offset up to which derived files agree with the log. Readers, the
//! checkpoint and the durable mark see nothing after it. After a crash, the records after the stored position are
//! dispatched again, to the same slots. A read of the log needs nothing from this folder. [`Dispatcher`] explains how
//! threads share the work.
//!
//! Source: `DefaultMessageStore.ReputMessageService`, `CommitLogDispatcherBuildConsumeQueue`,
//! `IndexService#buildIndex`. The commit position follows RIP-52; RocketMQ's `ConcurrentReputMessageService` only
//! decodes in parallel.

mod derived_units;
mod dispatch_run;
mod run;
mod run_steps;
mod window;

use std::time::Duration;

use mqstore_io::EventCount;
use mqstore_io::sync::{Arc, AtomicBool, AtomicU64, Mutex, OnceLock, Ordering, with_helpers};

pub use derived_units::{ANY_TAGS, DerivedQueue, DerivedQueues, WalkItem};
pub use run::{BatchTopics, DispatchRules, ExpiredRecords, QueueRun, RunOutput};

use crate::commit_log::{CutRun, Damage, LogScanner, RecordRun, ScanChecks, SegmentList};
use crate::consume_queue::QueueSet;
use crate::index::IndexSet;
use dispatch_run::DispatchRun;
use mqstore_base::error::StoreError;
use mqstore_base::live_page::LivePage;
use mqstore_base::store_files::StoreFiles;
use window::{CommitGuard, RunWindow};

/// Bytes of log from which a dispatch run ends.
pub const RUN_BYTES: u64 = 1 << 20;

/// Maximum sleep of a thread that waits for the runs of other threads.
const LOOK: Duration = Duration::from_millis(10);

/// Builds queues and index from the log.
///
/// The log is split into numbered dispatch runs of whole records. A run has one record in an idle store, and about 1
/// MiB under load. Any number of threads work on runs in parallel. The last step takes the runs in order:
///
/// ```text
///   cut, by headers alone     one thread at a time       run 7 | run 8 | run 9 | ...
///   decode, queue units       any number, any order      done    at it    done
///   index, commit             one at a time, in order    position = end of run 7; 9 waits for 8
/// ```
///
/// Each record names the slots of its units, so runs may finish in any order. If two records claim one slot, the first
/// in the log wins. The ordered step does the work that depends on the order: it creates files, writes batch queues and
/// adds index entries.
///
/// | record | queue unit | index entry |
/// |---|---|---|
/// | plain, committed | yes | yes |
/// | prepared (half) | no | yes |
/// | rolled back | no | no |
///
/// A record that names light queues (`INNER_MULTI_DISPATCH`) has a unit in each of them, too.
///
/// Across threads: every thread that calls [`Dispatcher::run_to`] takes part, whether a worker or a waiting reader. A
/// thread that fails returns its run, and the next thread takes it. A thread that panics during a run stops the
/// dispatcher for good; everything before that run stays committed.
#[derive(Debug)]
pub struct Dispatcher {
    files: StoreFiles,
    queues: Arc<QueueSet>,
    index: Arc<IndexSet>,
    rules: DispatchRules,
    cutter: Mutex<RunSplitter>,
    window: RunWindow<DispatchRun>,
    /// Failed runs; threads take these first.
    again: Mutex<Vec<DispatchRun>>,
    /// Idle runs, kept to reuse their memory.
    spare: Mutex<Vec<DispatchRun>>,
    position: AtomicU64,
    /// Signals that the position advanced, a run was returned, or the dispatcher stopped.
    moved: EventCount,
    /// Why the dispatcher stopped.
    stopped: OnceLock<DispatchStop>,
    records: AtomicU64,
    last_record: Mutex<Option<(u64, i64)>>,
    index_entries: AtomicU64,
    refused_units: AtomicU64,
    /// Log offset at which dispatch stops.
    limit: AtomicU64,
    skipped: Mutex<Vec<String>>,
    /// The live page for readers in other processes, once the store runs.
    live: OnceLock<Arc<LivePage>>,
}

/// The source of new runs; one thread uses it at a time.
#[derive(Debug)]
struct RunSplitter {
    scanner: LogScanner,
    /// Number of the next run.
    next: u64,
    /// Bytes from which a run ends.
    run_bytes: u64,
}

/// The reason why a dispatcher stopped.
#[derive(Debug)]
enum DispatchStop {
    Damage(Damage),
    Worker,
}

/// The work that a thread found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkOutcome {
    /// A run, which is finished now.
    Done,
    /// None: other threads have the rest, or the log has no more.
    Nothing,
}

impl Dispatcher {
    /// Creates a dispatcher that continues at log offset `start`. Index entries of records before `index_from` exist
    /// already.
    pub fn new(
        files: &StoreFiles,
        list: Arc<SegmentList>,
        queues: Arc<QueueSet>,
        index: Arc<IndexSet>,
        rules: DispatchRules,
        start: u64,
        index_from: u64,
    ) -> Self {
        let scanner = LogScanner::new(list, start, start, ScanChecks { crc: false });
        Self {
            files: files.clone(),
            queues,
            index,
            rules: DispatchRules { index_from, ..rules },
            cutter: Mutex::new(RunSplitter { scanner, next: 0, run_bytes: RUN_BYTES }),
            window: RunWindow::new(),
            again: Mutex::default(),
            spare: Mutex::default(),
            position: AtomicU64::new(start),
            moved: EventCount::new(),
            stopped: OnceLock::new(),
            records: AtomicU64::new(0),
            last_record: Mutex::default(),
            index_entries: AtomicU64::new(0),
            refused_units: AtomicU64::new(0),
            limit: AtomicU64::new(u64::MAX),
            skipped: Mutex::default(),
            live: OnceLock::new(),
        }
    }

    /// Log offset at which dispatch stops, as if the log ended there; `u64::MAX` for no limit.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Acquire)
    }

    /// Stops dispatch at log offset `limit`, where a record starts; `u64::MAX` for no limit.
    ///
    /// # Errors
    /// The log offset that dispatch has reached, if it is already past `limit`.
    pub fn set_limit(&self, limit: u64) -> Result<(), u64> {
        // Splitting off a run needs this lock too, so no run passes the limit meanwhile.
        let cutter = self.cutter.lock();
        let reached = cutter.scanner.position();
        if reached > limit {
            return Err(reached);
        }
        self.limit.store(limit, Ordering::Release);
        if let Some(live) = self.live.get() {
            live.confirm(limit);
        }
        Ok(())
    }

    /// Log offset up to which every record has its units and entries, and readers see them.
    pub fn position(&self) -> u64 {
        self.position.load(Ordering::Acquire)
    }

    /// Publishes the position on `live` from now on. A second page is ignored.
    pub fn attach(&self, live: &Arc<LivePage>) {
        let _cutter = self.cutter.lock();
        if self.live.set(Arc::clone(live)).is_ok() {
            live.dispatch(self.position());
        }
    }

    /// Passes over the log once from now on: see [`LogScanner::read_once`].
    pub fn read_once(&self) {
        self.cutter.lock().scanner.read_once();
    }

    /// Scans mapped segments in place from now on instead of reading them. For the process that writes the log.
    pub fn look_at_maps(&self) {
        self.cutter.lock().scanner.look_at_maps();
    }

    /// Number of records dispatched so far.
    pub fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Log offset and store time of the last record dispatched here.
    pub fn last_record(&self) -> Option<(u64, i64)> {
        *self.last_record.lock()
    }

    /// Number of index entries added so far.
    pub fn index_entries(&self) -> u64 {
        self.index_entries.load(Ordering::Relaxed)
    }

    /// Number of records without a unit because no queue can hold their queue offset.
    pub(crate) fn refused_units(&self) -> u64 {
        self.refused_units.load(Ordering::Relaxed)
    }

    /// Dispatches up to `limit`, a published offset of `list`, and returns the log offset reached. That is `limit`, or
    /// [`Self::limit`] if it is smaller. After an error, such as a full disk, you can call it again.
    pub fn run_to(&self, list: &Arc<SegmentList>, limit: u64) -> Result<u64, StoreError> {
        self.run_watched(list, limit, &mut |_| Ok(()))
    }

    /// Like [`Self::run_to`], and calls `watch` with the position after each run of this thread. If `watch` returns an
    /// error, the call ends with it.
    pub(crate) fn run_watched(
        &self,
        list: &Arc<SegmentList>,
        limit: u64,
        watch: &mut dyn FnMut(u64) -> Result<(), StoreError>,
    ) -> Result<u64, StoreError> {
        loop {
            let position = self.position();
            if position >= limit.min(self.limit()) {
                return Ok(position);
            }
            if self.work(list, limit)? == WorkOutcome::Nothing {
                let changed = || self.position() != position || self.stopped.get().is_some();
                self.moved.wait_until(Some(LOOK), changed);
            }
            watch(self.position())?;
        }
    }

    /// Like `run_watched`, with `helpers` additional threads. `watch` also gets the position at the end, because
    /// the helpers may be done before the first run of this thread.
    pub fn run_with_helpers(
        &self,
        helpers: u32,
        list: &Arc<SegmentList>,
        limit: u64,
        watch: &mut dyn FnMut(u64) -> Result<(), StoreError>,
    ) -> Result<u64, StoreError> {
        let over = AtomicBool::new(false);
        // An error in a helper also reaches the caller, which takes the returned run.
        let help = || {
            let mut until_over = |_| if over.load(Ordering::Acquire) { Err(self.ended()) } else { Ok(()) };
            let _ = self.run_watched(list, limit, &mut until_over);
        };
        let start = self.position();
        with_helpers(helpers, "mq-dispatch", &help, || {
            let outcome = self.run_watched(list, limit, watch);
            over.store(true, Ordering::Release);
            let reached = outcome?;
            if reached > start {
                watch(reached)?;
            }
            Ok(reached)
        })
    }

    /// Waits until no run is in progress, then runs `then` with the position reached. No thread starts a run meanwhile.
    ///
    /// # Errors
    /// The error that keeps a started run from being committed, or the error of `then`.
    pub fn run_while_paused<T>(
        &self,
        then: impl FnOnce(u64) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let cutter = self.cutter.lock();
        while self.window.head() != cutter.next {
            self.check()?;
            // A failed thread left its run here, and no other thread may come to take it.
            let failed = self.again.lock().pop();
            match failed {
                Some(run) => self.finish(run)?,
                None => self.commit()?,
            }
            let idle = || self.window.head() == cutter.next || self.stopped.get().is_some();
            self.moved.wait_until(Some(LOOK), idle);
        }
        then(self.position())
    }

    /// The rules that decide which units and entries a record gets.
    pub fn rules(&self) -> &DispatchRules {
        &self.rules
    }

    /// Takes one run, if one is available, and then commits all runs that can be committed.
    fn work(&self, list: &Arc<SegmentList>, limit: u64) -> Result<WorkOutcome, StoreError> {
        self.check()?;
        let Some(run) = self.take(list, limit)? else {
            // Another thread may have failed to commit a complete run.
            self.commit()?;
            return Ok(WorkOutcome::Nothing);
        };
        self.finish(run)?;
        Ok(WorkOutcome::Done)
    }

    /// Writes `run` and then commits all runs that can be committed.
    fn finish(&self, run: DispatchRun) -> Result<(), StoreError> {
        let mut run = RunGuard { dispatcher: self, run: Some(run) };
        let written = run.write();
        match (written, run.run.take()) {
            (Ok(()), Some(run)) => self.window.complete(run.number, run),
            (Err(error), Some(run)) => {
                self.again.lock().push(run);
                self.moved.notify_all();
                return Err(error);
            }
            (_, None) => {}
        }
        self.commit()
    }

    /// Makes at most `steps` steps in a chosen schedule, for simulations. Up to `hands` runs are in progress at once,
    /// and `pick` selects the run that continues. Unfinished runs are returned at the end. Runs end after `run_bytes`.
    #[cfg(any(test, feature = "sim"))]
    pub fn run_shuffled(
        &self,
        list: &Arc<SegmentList>,
        limit: u64,
        (hands, run_bytes, steps): (usize, u64, usize),
        pick: &mut dyn FnMut(usize) -> usize,
    ) -> Result<(), StoreError> {
        self.cutter.lock().run_bytes = run_bytes;
        let mut held: Vec<DispatchRun> = Vec::new();
        let mut outcome = self.check();
        for _ in 0..steps {
            while held.len() < hands && outcome.is_ok() {
                match self.take(list, limit) {
                    Ok(Some(run)) => held.push(run),
                    Ok(None) => break,
                    Err(error) => outcome = Err(error),
                }
            }
            if held.is_empty() || outcome.is_err() {
                break;
            }
            let mut run = held.swap_remove(pick(held.len()));
            outcome = self.write_run(&mut run);
            if outcome.is_err() {
                held.push(run);
                break;
            }
            self.window.complete(run.number, run);
            outcome = self.commit();
        }
        self.cutter.lock().run_bytes = RUN_BYTES;
        self.again.lock().append(&mut held);
        outcome
    }

    fn check(&self) -> Result<(), StoreError> {
        match self.stopped.get() {
            None => Ok(()),
            Some(DispatchStop::Damage(damage)) => {
                Err(StoreError::corrupt(&damage.path, damage.file_offset, damage.reason.clone()))
            }
            Some(DispatchStop::Worker) => Err(self.ended()),
        }
    }

    fn ended(&self) -> StoreError {
        StoreError::Poisoned {
            path: self.files.root.clone(),
            stage: "dispatching",
            cause: "a thread ended in the middle of a dispatch run".to_owned(),
        }
    }

    /// Returns a run to work on: a failed one, else the next one before `limit`.
    fn take(&self, list: &Arc<SegmentList>, limit: u64) -> Result<Option<DispatchRun>, StoreError> {
        if let Some(run) = self.again.lock().pop() {
            return Ok(Some(run));
        }
        let mut cutter = self.cutter.lock();
        let limit = limit.min(self.limit());
        if cutter.scanner.position() >= limit || !self.window.has_space_for(cutter.next) {
            return Ok(None);
        }
        let mut run = self.spare.lock().pop().unwrap_or_default();
        let RunSplitter { scanner, next, run_bytes, .. } = &mut *cutter;
        scanner.extend(Arc::clone(list), limit);
        loop {
            let position = scanner.position();
            match scanner.cut(*run_bytes, run.take_buffer())? {
                CutRun::Records(records) => {
                    run.begin(*next, records);
                    *next += 1;
                    return Ok(Some(run));
                }
                // This case needs damage up to the limit and the rule to skip it.
                CutRun::End if position >= limit => {
                    run.begin(*next, RecordRun::empty(position));
                    *next += 1;
                    return Ok(Some(run));
                }
                CutRun::End => {
                    let reason = format!("the log ends here although it was written up to {limit}");
                    return Err(StoreError::corrupt(&self.files.commit_log(), position, reason));
                }
                CutRun::Damaged(damage) if self.rules.skip_damage => {
                    let behind = scanner.resync(damage.offset + 1)?.unwrap_or(limit);
                    run.skipped.push(damage.skipped(behind - damage.offset));
                    scanner.seek(behind);
                }
                CutRun::Damaged(damage) => {
                    return Err(StoreError::corrupt(&damage.path, damage.file_offset, damage.reason));
                }
            }
        }
    }

    /// Commits complete runs in order, up to the first incomplete one, unless another thread does so. After an error
    /// the run waits for the next call.
    fn commit(&self) -> Result<(), StoreError> {
        while let Some(guard) = self.window.try_lock() {
            let outcome = self.commit_in(&guard);
            drop(guard);
            self.moved.notify_all();
            outcome?;
        }
        Ok(())
    }

    fn commit_in(&self, guard: &CommitGuard<'_, DispatchRun>) -> Result<(), StoreError> {
        while let Some(committed) = guard.with_next(|run| self.commit_run(run)) {
            committed?;
            let Some(mut run) = guard.advance() else { break };
            self.position.store(run.end, Ordering::Release);
            if let Some(live) = self.live.get() {
                live.dispatch(run.end);
            }
            run.wake_waiters();
            if let Some(damage) = run.damage.take() {
                self.stop(DispatchStop::Damage(damage));
                self.check()?;
            }
            self.spare.lock().push(run);
        }
        Ok(())
    }

    fn stop(&self, stop: DispatchStop) {
        // The first reason is the one to report.
        let _ = self.stopped.set(stop);
        self.moved.notify_all();
    }

    /// Returns and clears the notes on skipped damage.
    pub(crate) fn take_skipped_ranges(&self) -> Vec<String> {
        std::mem::take(&mut self.skipped.lock())
    }
}

/// A run that a thread is working on. If the guard is dropped with its run, the thread panicked.
struct RunGuard<'a> {
    dispatcher: &'a Dispatcher,
    run: Option<DispatchRun>,
}

impl RunGuard<'_> {
    fn write(&mut self) -> Result<(), StoreError> {
        self.run.as_mut().map_or(Ok(()), |run| self.dispatcher.write_run(run))
    }
}

impl Drop for RunGuard<'_> {
    fn drop(&mut self) {
        if self.run.is_some() {
            self.dispatcher.stop(DispatchStop::Worker);
        }
    }
}

#[cfg(test)]
mod tests;
