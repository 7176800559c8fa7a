//! Runs the tasks of a scan in parallel and returns their batches in order.
//!
//! Each worker takes the next task, decodes it, and puts batch after batch into the slot of that task. The consumer
//! takes batches from the first slot. Only a few tasks run before their turn, and the bytes of waiting batches are
//! bounded. The first task can always add a batch, so no thread waits forever. Dropping the scan ends the workers and
//! waits for them. With one thread, everything happens in the consumer's thread.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mqstore_format::RecordView;
use mqstore_io::sync::{AtomicBool, Condvar, JoinHandle, Mutex, Ordering, spawn};

use super::damage::DamageRule;
use super::record_source::{ScanSource, fits};
use super::task::{EntryLead, NextTask, Task};
use crate::read::scan_request::{RowFilter, ScanRow};
use crate::read::view::StoreView;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::message::StoredRecord;
use mqstore_log::commit_log::{Damage, RecordReader};

/// Bytes of waiting batches above which only the first task can add more.
const WAITING_BYTES: u64 = 48 << 20;

/// Maximum number of batches that wait in one slot.
const SLOT_BATCHES: usize = 2;

/// Maximum number of started tasks for each worker.
const TASKS_PER_WORKER: u64 = 2;

/// Makes batches of rows; each worker has its own sink.
pub trait ScanSink: Send + 'static {
    /// The type of a batch.
    type Batch: Send + 'static;

    /// Whether `row` fits the current batch; called before each [`Self::add`].
    fn has_room(&self, row: &ScanRow<'_>) -> bool;

    /// Adds a row.
    fn add(&mut self, row: &ScanRow<'_>);

    /// Returns the rows added since the last call and their bytes; `None` if there are none.
    fn take(&mut self) -> Option<(Self::Batch, u64)>;
}

/// Makes a sink for a worker.
pub type MakeSink<S> = Arc<dyn Fn() -> S + Send + Sync>;

/// Rows, and the position of the scan after them.
#[derive(Debug)]
pub struct ScanBatch<B> {
    /// The rows.
    pub rows: B,
    /// The log offset at which a scan continues with the rows after these.
    pub end: u64,
}

/// The result of a task.
pub(super) enum TaskOutcome {
    /// The task is complete; the scan is at this log offset then.
    Done(u64),
    /// A unit points to no record or to another record, so the log must be walked.
    Misled(String),
    Failed(StoreError),
}

/// The next result for the consumer.
pub(super) enum ScanStep<B> {
    Batch(ScanBatch<B>),
    /// A task has ended.
    Passed(TaskOutcome),
    /// Nothing yet.
    Later,
    End,
}

/// The data that all tasks of a scan share.
pub(super) struct ScanContext<S> {
    pub(super) view: StoreView,
    pub(super) filter: Arc<RowFilter>,
    pub(super) queues: Arc<[(String, i32)]>,
    pub(super) limit: u64,
    pub(super) damage: Arc<DamageRule>,
    pub(super) make: MakeSink<S>,
}

/// The data of one worker.
struct WorkerState<S> {
    sink: S,
    reader: Option<RecordReader>,
    skipped: Vec<(Damage, u64)>,
}

impl<S: ScanSink> ScanContext<S> {
    fn bench(&self) -> WorkerState<S> {
        WorkerState { sink: (self.make)(), reader: None, skipped: Vec::new() }
    }

    /// Runs `task`. `hand_over` takes the batches and returns whether to continue. Returns the buffer of the task.
    fn run(
        &self,
        bench: &mut WorkerState<S>,
        task: Task,
        hand_over: &mut dyn FnMut(ScanBatch<S::Batch>, u64) -> bool,
    ) -> (TaskOutcome, Vec<u8>) {
        match task {
            Task::Run(mut run) => {
                let WorkerState { sink, skipped, .. } = bench;
                let mut goes_on = true;
                let (mut end, behind) = (run.start(), run.end());
                run.views(skipped, |record, offset| {
                    if goes_on {
                        goes_on = self.rows(sink, record, (offset, end), hand_over);
                        end = offset + u64::from(record.size);
                    }
                });
                let met = skipped.drain(..).try_for_each(|(damage, bytes)| {
                    self.damage.meet(&damage, damage.offset + bytes, damage.skipped(bytes))
                });
                let rest = sink.take();
                if let Err(error) = met {
                    return (TaskOutcome::Failed(error), run.let_go());
                }
                if goes_on && let Some((rows, bytes)) = rest {
                    hand_over(ScanBatch { rows, end: behind }, bytes);
                }
                (TaskOutcome::Done(behind), run.let_go())
            }
            Task::Leads(leads) => (self.follow(bench, &leads, hand_over), Vec::new()),
            Task::Records(records) => (self.take(&mut bench.sink, &records, hand_over), Vec::new()),
        }
    }

    fn follow(
        &self,
        bench: &mut WorkerState<S>,
        leads: &[EntryLead],
        hand_over: &mut dyn FnMut(ScanBatch<S::Batch>, u64) -> bool,
    ) -> TaskOutcome {
        let WorkerState { sink, reader, .. } = bench;
        let reader =
            reader.get_or_insert_with(|| RecordReader::new(self.view.log(), self.view.list(), self.limit));
        reader.prefetch(leads.iter().map(|lead| (lead.offset, lead.size)));
        let mut end = leads.first().map_or(0, |lead| lead.offset);
        let mut misled = None;
        for lead in leads {
            let bytes = match reader.record(self.view.files(), lead.offset, lead.size) {
                Ok(bytes) => bytes,
                Err(error) if error.is_gone() || matches!(error, StoreError::Corrupt { .. }) => {
                    misled = Some(error.to_string());
                    break;
                }
                Err(error) => return TaskOutcome::Failed(error),
            };
            match RecordView::decode(bytes.as_slice()) {
                Ok(record) if fits(&record, lead, &self.queues) => {
                    let row = ScanRow::new(&record, lead.offset).at(lead.queue_offset);
                    let is_hidden = self.filter.hides_in_light_queue(&record, lead.offset);
                    if !is_hidden && !self.row(sink, &row, end, hand_over) {
                        return TaskOutcome::Done(end);
                    }
                    end = lead.offset + u64::from(record.size);
                }
                _ => {
                    misled = Some(format!("a unit of a queue points to another record at {}", lead.offset));
                    break;
                }
            }
        }
        reader.release();
        if let Some((rows, bytes)) = sink.take() {
            hand_over(ScanBatch { rows, end }, bytes);
        }
        misled.map_or(TaskOutcome::Done(end), TaskOutcome::Misled)
    }

    /// Adds records that were read. They can be in other files than the log, so no log offset describes the progress.
    fn take(
        &self,
        sink: &mut S,
        records: &[StoredRecord],
        hand_over: &mut dyn FnMut(ScanBatch<S::Batch>, u64) -> bool,
    ) -> TaskOutcome {
        for record in records {
            let view = match record.view() {
                Ok(view) => view,
                Err(error) => {
                    let root = &self.view.files().root;
                    return TaskOutcome::Failed(StoreError::format(root, record.commit_log_offset, &error));
                }
            };
            let row = ScanRow::new(&view, record.commit_log_offset).at(record.queue_offset);
            if !self.row(sink, &row, 0, hand_over) {
                return TaskOutcome::Done(0);
            }
        }
        if let Some((rows, bytes)) = sink.take() {
            hand_over(ScanBatch { rows, end: 0 }, bytes);
        }
        TaskOutcome::Done(0)
    }

    /// Adds a record of the log once for each wanted queue that it is in; the rows before it end at `end`.
    #[inline]
    fn rows(
        &self,
        sink: &mut S,
        record: &RecordView<'_>,
        (offset, end): (u64, u64),
        hand_over: &mut dyn FnMut(ScanBatch<S::Batch>, u64) -> bool,
    ) -> bool {
        self.filter.visit_positions(record, offset, |queue_offset| {
            self.row(sink, &ScanRow::new(record, offset).at(queue_offset), end, hand_over)
        })
    }

    /// Adds a row if it is wanted; the rows before it in the batch end at `end`.
    #[inline]
    fn row(
        &self,
        sink: &mut S,
        row: &ScanRow<'_>,
        end: u64,
        hand_over: &mut dyn FnMut(ScanBatch<S::Batch>, u64) -> bool,
    ) -> bool {
        if !self.filter.passes(row) {
            return true;
        }
        if !sink.has_room(row)
            && let Some((rows, bytes)) = sink.take()
            && !hand_over(ScanBatch { rows, end }, bytes)
        {
            return false;
        }
        sink.add(row);
        true
    }
}

/// The tasks of a scan and their batches.
pub(super) enum ScanWork<S: ScanSink> {
    Here(Box<Here<S>>),
    Workers(Workers<S>),
}

/// Runs all tasks in the consumer's thread.
pub(super) struct Here<S: ScanSink> {
    common: ScanContext<S>,
    bench: WorkerState<S>,
    source: ScanSource,
    buffer: Vec<u8>,
    ready: VecDeque<ScanBatch<S::Batch>>,
    outcome: Option<TaskOutcome>,
}

impl<S: ScanSink> ScanWork<S> {
    /// Starts the scan; if `threads` is more than one, in its own threads.
    pub(super) fn begin(
        common: ScanContext<S>,
        source: ScanSource,
        threads: u32,
    ) -> Result<Self, StoreError> {
        if threads > 1 && common.view.files().vfs.environment().threads {
            return Workers::start(common, source, threads).map(Self::Workers);
        }
        let bench = common.bench();
        Ok(Self::Here(Box::new(Here {
            common,
            bench,
            source,
            buffer: Vec::new(),
            ready: VecDeque::new(),
            outcome: None,
        })))
    }

    /// Returns the next result. Waits for it for at most `timeout`; without workers, one task can take longer.
    pub(super) fn step(&mut self, timeout: Duration) -> ScanStep<S::Batch> {
        match self {
            Self::Here(here) => here.step(),
            Self::Workers(workers) => workers.step(timeout),
        }
    }
}

impl<S: ScanSink> Here<S> {
    fn step(&mut self) -> ScanStep<S::Batch> {
        if let Some(batch) = self.ready.pop_front() {
            return ScanStep::Batch(batch);
        }
        if let Some(outcome) = self.outcome.take() {
            return ScanStep::Passed(outcome);
        }
        let task = match self.source.next(std::mem::take(&mut self.buffer)) {
            Ok(NextTask::Task(task)) => task,
            Ok(NextTask::End) => return ScanStep::End,
            Err(error) => return ScanStep::Passed(TaskOutcome::Failed(error)),
        };
        let ready = &mut self.ready;
        let (outcome, buffer) = self.common.run(&mut self.bench, task, &mut |batch, _| {
            ready.push_back(batch);
            true
        });
        (self.outcome, self.buffer) = (Some(outcome), buffer);
        ScanStep::Later
    }
}

/// The threads of one scan.
pub(super) struct Workers<S: ScanSink> {
    desk: Arc<SharedState<S>>,
    handles: Vec<JoinHandle<()>>,
}

/// The data that workers and consumer share.
struct SharedState<S: ScanSink> {
    common: ScanContext<S>,
    intake: Mutex<TaskIntake>,
    state: Mutex<TaskSlots<S::Batch>>,
    /// Notified when a worker added a result.
    filled: Condvar,
    /// Notified when the consumer took a batch.
    emptied: Condvar,
    stop: AtomicBool,
    window: u64,
    root: PathBuf,
}

struct TaskIntake {
    source: ScanSource,
    /// The number of the next task.
    number: u64,
    ended: bool,
    buffers: Vec<Vec<u8>>,
}

struct TaskSlots<B> {
    /// The number of the task with the first slot.
    head: u64,
    slots: VecDeque<TaskSlot<B>>,
    waiting_bytes: u64,
    /// The total number of tasks, once it is known.
    total: Option<u64>,
    panicked: bool,
}

struct TaskSlot<B> {
    batches: VecDeque<(ScanBatch<B>, u64)>,
    outcome: Option<TaskOutcome>,
}

impl<B> TaskSlots<B> {
    fn slot(&mut self, number: u64) -> Option<&mut TaskSlot<B>> {
        self.slots.get_mut(usize::try_from(number.checked_sub(self.head)?).ok()?)
    }

    /// Whether the task can add a batch of `bytes` bytes now.
    fn may_add(&mut self, number: u64, bytes: u64) -> bool {
        let (head, waiting) = (self.head, self.waiting_bytes);
        let Some(slot) = self.slot(number) else { return true };
        let few = slot.batches.len() < SLOT_BATCHES;
        few && (number == head || waiting + bytes <= WAITING_BYTES)
    }
}

impl<S: ScanSink> Workers<S> {
    fn start(common: ScanContext<S>, source: ScanSource, threads: u32) -> Result<Self, StoreError> {
        let root = common.view.files().root.clone();
        let desk = Arc::new(SharedState {
            common,
            intake: Mutex::new(TaskIntake { source, number: 0, ended: false, buffers: Vec::new() }),
            state: Mutex::new(TaskSlots {
                head: 0,
                slots: VecDeque::new(),
                waiting_bytes: 0,
                total: None,
                panicked: false,
            }),
            filled: Condvar::new(),
            emptied: Condvar::new(),
            stop: AtomicBool::new(false),
            window: TASKS_PER_WORKER * u64::from(threads),
            root,
        });
        let mut workers = Self { desk, handles: Vec::new() };
        for _ in 0..threads {
            let desk = Arc::clone(&workers.desk);
            let started = spawn("mq-scan", move || desk.work());
            // If the system cannot start more threads, the workers that exist do the work.
            match started {
                Ok(handle) => workers.handles.push(handle),
                Err(_) if !workers.handles.is_empty() => break,
                Err(error) => {
                    return Err(error).at(&workers.desk.root, "starting a thread");
                }
            }
        }
        Ok(workers)
    }

    fn step(&mut self, timeout: Duration) -> ScanStep<S::Batch> {
        let mut state = self.desk.state.lock();
        loop {
            if let Some(slot) = state.slots.front_mut() {
                if let Some((batch, bytes)) = slot.batches.pop_front() {
                    state.waiting_bytes -= bytes;
                    self.desk.emptied.notify_all();
                    return ScanStep::Batch(batch);
                }
                if let Some(outcome) = slot.outcome.take() {
                    state.slots.pop_front();
                    state.head += 1;
                    self.desk.emptied.notify_all();
                    return ScanStep::Passed(outcome);
                }
            } else if state.total == Some(state.head) {
                return ScanStep::End;
            }
            if state.panicked {
                return ScanStep::Passed(TaskOutcome::Failed(StoreError::Poisoned {
                    path: self.desk.root.clone(),
                    stage: "a worker of a scan",
                    cause: "it panicked; stderr has the message".to_owned(),
                }));
            }
            if self.desk.filled.wait_for(&mut state, timeout).timed_out() {
                return ScanStep::Later;
            }
        }
    }
}

impl<S: ScanSink> Drop for Workers<S> {
    fn drop(&mut self) {
        self.desk.stop.store(true, Ordering::Release);
        {
            // With the lock, a worker that is about to wait either sees `stop` or is woken.
            let _state = self.desk.state.lock();
            self.desk.emptied.notify_all();
        }
        for handle in self.handles.drain(..) {
            let _ = handle.join();
        }
    }
}

/// Tells the consumer if its worker ends by a panic.
struct PanicGuard<'a, S: ScanSink>(&'a SharedState<S>);

impl<S: ScanSink> Drop for PanicGuard<'_, S> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.state.lock().panicked = true;
            self.0.filled.notify_all();
        }
    }
}

impl<S: ScanSink> SharedState<S> {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn work(&self) {
        let _alarm = PanicGuard(self);
        let mut bench = self.common.bench();
        while let Some((number, task)) = self.take_task() {
            let mut hand_over = |batch, bytes| self.hand_over(number, batch, bytes);
            let (outcome, buffer) = self.common.run(&mut bench, task, &mut hand_over);
            self.finish(number, outcome);
            self.intake.lock().buffers.push(buffer);
        }
    }

    /// Returns the next task, once its results can be stored.
    fn take_task(&self) -> Option<(u64, Task)> {
        let mut intake = self.intake.lock();
        if intake.ended {
            return None;
        }
        let number = intake.number;
        {
            let mut state = self.state.lock();
            while !self.stopped() && number >= state.head + self.window {
                self.emptied.wait(&mut state);
            }
            if self.stopped() {
                return None;
            }
            state.slots.push_back(TaskSlot { batches: VecDeque::new(), outcome: None });
        }
        let buffer = intake.buffers.pop().unwrap_or_default();
        let next = intake.source.next(buffer);
        intake.number += 1;
        intake.ended = !matches!(next, Ok(NextTask::Task(_)));
        match next {
            Ok(NextTask::Task(task)) => return Some((number, task)),
            Ok(NextTask::End) => {
                let mut state = self.state.lock();
                state.slots.pop_back();
                state.total = Some(number);
            }
            Err(error) => self.finish(number, TaskOutcome::Failed(error)),
        }
        self.filled.notify_all();
        None
    }

    /// Waits until there is space and adds a batch; returns `false` if the consumer no longer needs it.
    fn hand_over(&self, number: u64, batch: ScanBatch<S::Batch>, bytes: u64) -> bool {
        let mut state = self.state.lock();
        while !self.stopped() && !state.may_add(number, bytes) {
            self.emptied.wait(&mut state);
        }
        if self.stopped() {
            return false;
        }
        state.waiting_bytes += bytes;
        if let Some(slot) = state.slot(number) {
            slot.batches.push_back((batch, bytes));
        }
        self.filled.notify_all();
        true
    }

    fn finish(&self, number: u64, outcome: TaskOutcome) {
        if let Some(slot) = self.state.lock().slot(number) {
            slot.outcome = Some(outcome);
        }
        self.filled.notify_all();
    }
}
