//! The dispatcher: makes queue entries and index entries from log records.
//!
//! Owns the *commit position*, up to which derived files agree with the log. Readers, the checkpoint and the durable
//! mark see nothing beyond it. After a crash, everything after the recorded position is written again from the log, to
//! the same slots; reading the log needs nothing of this folder. [`Dispatcher`] says how threads share the work.
//!
//! Source: `DefaultMessageStore.ReputMessageService`, `CommitLogDispatcherBuildConsumeQueue`,
//! `IndexService#buildIndex`. The commit position is the idea of RIP-52, of which RocketMQ's
//! `ConcurrentReputMessageService` has only the decoding.

mod derived_units;
mod dispatch_run;
mod run;
mod run_steps;
mod window;

use std::time::Duration;

use mqstore_io::EventCount;
use mqstore_io::sync::{Arc, AtomicBool, AtomicU64, Mutex, OnceLock, Ordering, with_helpers};

pub use derived_units::{DerivedQueue, DerivedQueues};
pub use run::{BatchTopics, DispatchRules, QueueRun, RunOutput};

use crate::commit_log::{Cut, Damage, LogScanner, RecordRun, ScanChecks, SegmentList};
use crate::consume_queue::QueueSet;
use crate::index::IndexSet;
use dispatch_run::DispatchRun;
use mqstore_base::error::StoreError;
use mqstore_base::live_page::LivePage;
use mqstore_base::store_files::StoreFiles;
use window::{CommitTurn, RunWindow};

/// Bytes of log after which a run ends.
pub const RUN_BYTES: u64 = 1 << 20;

/// How long who waits for others' runs sleeps before another look.
const LOOK: Duration = Duration::from_millis(10);

/// Builds queues and index from the log.
///
/// The log is cut into numbered runs of whole records: one record in an idle store, about a mebibyte under load. Any
/// number of threads work on runs in parallel. The last step takes the runs in order:
///
/// ```text
///   cut, by headers alone     one thread at a time       run 7 | run 8 | run 9 | ...
///   decode, queue entries     any number, any order      done    at it    done
///   index, commit             one at a time, in order    position = end of run 7; 9 waits for 8
/// ```
///
/// Records themselves name the slots of their queue entries, so that runs may finish in any order. If two records claim
/// one slot, the first in the log wins. The ordered step does what depends on the order: new files, batch queues, the
/// index.
///
/// | record | queue entry | index entry |
/// |---|---|---|
/// | plain, committed | yes | yes |
/// | prepared (half) | no | yes |
/// | rolled back | no | no |
///
/// A record that names light queues (`INNER_MULTI_DISPATCH`) has an entry in each of them, too.
///
/// Across threads: every thread that calls [`Dispatcher::run_to`] takes part, whether a worker or a waiting reader. A
/// thread that fails gives its run back, and the next thread takes it. A thread that dies with a run stops the
/// dispatcher for good, with everything before that run committed.
#[derive(Debug)]
pub struct Dispatcher {
    files: StoreFiles,
    queues: Arc<QueueSet>,
    index: Arc<IndexSet>,
    rules: DispatchRules,
    cutter: Mutex<RunSplitter>,
    window: RunWindow<DispatchRun>,
    /// Runs that failed, to be taken up again before any other.
    again: Mutex<Vec<DispatchRun>>,
    /// Runs that are not at work, for the memory that they have.
    spare: Mutex<Vec<DispatchRun>>,
    position: AtomicU64,
    /// Raised when the position moved, a run was given back, or all is over.
    moved: EventCount,
    /// Why nothing is dispatched any more.
    stopped: OnceLock<DispatchStop>,
    records: AtomicU64,
    last_record: Mutex<Option<(u64, i64)>>,
    index_entries: AtomicU64,
    gap_units: AtomicU64,
    refused_units: AtomicU64,
    /// Nothing at or behind this log position is dispatched.
    limit: AtomicU64,
    skipped: Mutex<Vec<String>>,
    /// Tells readers in other processes, once the store runs.
    live: OnceLock<Arc<LivePage>>,
}

/// Where the next run comes from; one thread at a time.
#[derive(Debug)]
struct RunSplitter {
    scanner: LogScanner,
    /// The number of the next run.
    next: u64,
    /// Bytes after which a run ends.
    run_bytes: u64,
}

/// What ends a dispatcher.
#[derive(Debug)]
enum DispatchStop {
    Damage(Damage),
    Worker,
}

/// What a thread found to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// A run.
    Done,
    /// Nothing: the rest is in other hands, or there is none.
    Nothing,
}

impl Dispatcher {
    /// A dispatcher that goes on at log position `start`; index entries below `index_from` exist.
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
            gap_units: AtomicU64::new(0),
            refused_units: AtomicU64::new(0),
            limit: AtomicU64::new(u64::MAX),
            skipped: Mutex::default(),
            live: OnceLock::new(),
        }
    }

    /// The position at which dispatch stops, as if the log ended there; `u64::MAX` for none.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Acquire)
    }

    /// Stops dispatch at log position `limit`, where a record starts; `u64::MAX` for no limit.
    ///
    /// # Errors
    /// The position reached, when that is behind `limit` already.
    pub fn set_limit(&self, limit: u64) -> Result<(), u64> {
        // Whoever cuts holds this lock, so that nobody passes the limit meanwhile.
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

    /// The log position up to which every record has its entries, and readers see them.
    pub fn position(&self) -> u64 {
        self.position.load(Ordering::Acquire)
    }

    /// From now on says on `live` how far it is. A second page is ignored.
    pub fn attach(&self, live: &Arc<LivePage>) {
        let _cutter = self.cutter.lock();
        if self.live.set(Arc::clone(live)).is_ok() {
            live.dispatch(self.position());
        }
    }

    /// From now on looks at segments that are mapped in place, instead of reading them. For the process
    /// that writes the log.
    pub fn look_at_maps(&self) {
        self.cutter.lock().scanner.look_at_maps();
    }

    /// Records dispatched so far.
    pub fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Log offset and store time of the last record that was dispatched here.
    pub fn last_record(&self) -> Option<(u64, i64)> {
        *self.last_record.lock()
    }

    /// Index entries added so far.
    pub fn index_entries(&self) -> u64 {
        self.index_entries.load(Ordering::Relaxed)
    }

    /// Records whose queue offset no queue can hold; they have no entry.
    pub fn refused_units(&self) -> u64 {
        self.refused_units.load(Ordering::Relaxed)
    }

    /// Queue offsets that no record claimed; their places hold blank units.
    pub fn gap_units(&self) -> u64 {
        self.gap_units.load(Ordering::Relaxed)
    }

    /// Dispatches up to `limit` (a published position of `list`) and returns the position reached,
    /// which is `limit` unless something failed, or [`Self::limit`] if that is smaller. After an error (a
    /// full disk) the same call may be made again.
    pub fn run_to(&self, list: &Arc<SegmentList>, limit: u64) -> Result<u64, StoreError> {
        self.run_watched(list, limit, &mut |_| Ok(()))
    }

    /// As [`Self::run_to`]; tells `watch` the position reached after each run of this thread. An error as its
    /// answer ends the call with that error.
    pub fn run_watched(
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
            if self.work(list, limit)? == Work::Nothing {
                let changed = || self.position() != position || self.stopped.get().is_some();
                self.moved.wait_until(Some(LOOK), changed);
            }
            watch(self.position())?;
        }
    }

    /// As [`Self::run_watched`], with the help of `helpers` more threads.
    pub fn run_with_helpers(
        &self,
        helpers: u32,
        list: &Arc<SegmentList>,
        limit: u64,
        watch: &mut dyn FnMut(u64) -> Result<(), StoreError>,
    ) -> Result<u64, StoreError> {
        let over = AtomicBool::new(false);
        // What goes wrong in a helper goes wrong for the caller too, who takes the run up again.
        let help = || {
            let mut until_over = |_| if over.load(Ordering::Acquire) { Err(self.ended()) } else { Ok(()) };
            let _ = self.run_watched(list, limit, &mut until_over);
        };
        with_helpers(helpers, "mq-dispatch", &help, || {
            let outcome = self.run_watched(list, limit, watch);
            over.store(true, Ordering::Release);
            outcome
        })
    }

    /// Runs `then` while nothing is at work, with the position reached; nobody begins a run meanwhile.
    ///
    /// # Errors
    /// What keeps the runs at work from being committed.
    pub fn run_while_paused<T>(
        &self,
        then: impl FnOnce(u64) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let cutter = self.cutter.lock();
        while self.window.head() != cutter.next {
            self.check()?;
            // Whoever failed left its run here; nobody else may be there to take it up.
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

    /// Which entries a record yields.
    pub fn rules(&self) -> &DispatchRules {
        &self.rules
    }

    /// Takes one run, if there is one, and then commits what can be committed.
    fn work(&self, list: &Arc<SegmentList>, limit: u64) -> Result<Work, StoreError> {
        self.check()?;
        let Some(run) = self.take(list, limit)? else {
            // Somebody may have failed to commit what is ready.
            self.commit()?;
            return Ok(Work::Nothing);
        };
        self.finish(run)?;
        Ok(Work::Done)
    }

    /// Does what is to be done for `run`, and commits what can be committed.
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

    /// Makes at most `steps` steps as threads would that take turns in any way: up to `hands` runs are at work
    /// at once, and `pick` tells which of them goes on. What is at work then is given back. Runs end after
    /// `run_bytes`. For simulations.
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
            cause: "a thread that built queue entries ended before it was done".to_owned(),
        }
    }

    /// A run to work on: one that somebody gave back, else the next one below `limit`.
    fn take(&self, list: &Arc<SegmentList>, limit: u64) -> Result<Option<DispatchRun>, StoreError> {
        if let Some(run) = self.again.lock().pop() {
            return Ok(Some(run));
        }
        let mut cutter = self.cutter.lock();
        let limit = limit.min(self.limit());
        if cutter.scanner.position() >= limit || !self.window.has_room_for(cutter.next) {
            return Ok(None);
        }
        let mut run = self.spare.lock().pop().unwrap_or_default();
        let RunSplitter { scanner, next, run_bytes, .. } = &mut *cutter;
        scanner.extend(Arc::clone(list), limit);
        loop {
            let position = scanner.position();
            match scanner.cut(*run_bytes, run.take_buffer())? {
                Cut::Stretch(stretch) => {
                    run.begin(*next, stretch);
                    *next += 1;
                    return Ok(Some(run));
                }
                // Only damage up to the limit leads here, when it may be passed over.
                Cut::End if position >= limit => {
                    run.begin(*next, RecordRun::empty(position));
                    *next += 1;
                    return Ok(Some(run));
                }
                Cut::End => {
                    let reason = format!("the log ends here although it was written up to {limit}");
                    return Err(StoreError::corrupt(&self.files.commit_log(), position, reason));
                }
                Cut::Damaged(damage) if self.rules.skip_damage => {
                    let behind = scanner.resync(damage.offset + 1)?.unwrap_or(limit);
                    run.skipped.push(damage.skipped(behind - damage.offset));
                    scanner.seek(behind);
                }
                Cut::Damaged(damage) => {
                    return Err(StoreError::corrupt(&damage.path, damage.file_offset, damage.reason));
                }
            }
        }
    }

    /// Commits, in order, every run that is complete and has none missing before it, unless another thread is
    /// at it. After an error the run waits for the next call.
    fn commit(&self) -> Result<(), StoreError> {
        while let Some(turn) = self.window.turn() {
            let outcome = self.commit_in(&turn);
            drop(turn);
            self.moved.notify_all();
            outcome?;
        }
        Ok(())
    }

    fn commit_in(&self, turn: &CommitTurn<'_, DispatchRun>) -> Result<(), StoreError> {
        while let Some(committed) = turn.with_next(|run| self.commit_run(run)) {
            committed?;
            let Some(mut run) = turn.advance() else { break };
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
        // The first reason is the one to tell.
        let _ = self.stopped.set(stop);
        self.moved.notify_all();
    }

    /// What was passed over since the last call, in words.
    pub fn take_skipped_ranges(&self) -> Vec<String> {
        std::mem::take(&mut self.skipped.lock())
    }
}

/// A run in the hands of a thread. One that is dropped with it was lost by a panic.
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
