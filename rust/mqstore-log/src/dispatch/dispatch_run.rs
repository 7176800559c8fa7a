//! One dispatch run: its number, its records and their queues.
//!
//! One thread at a time owns a run. It gets the run from the [`super::Dispatcher`].

use mqstore_io::sync::Arc;

use super::run::RunOutput;
use crate::commit_log::{Damage, RecordRun};
use crate::consume_queue::{BatchQueue, ConsumeQueue};

/// A numbered range of the log with its units and entries.
#[derive(Debug)]
pub(super) struct DispatchRun {
    pub(super) number: u64,
    /// Commit position after this run is committed.
    pub(super) end: u64,
    /// Notes on damage that was skipped before and in this run.
    pub(super) skipped: Vec<String>,
    /// Damage that ends the dispatch of the log at `end`.
    pub(super) damage: Option<Damage>,
    pub(super) records: RecordRun,
    pub(super) buffer: Vec<u8>,
    /// Units and entries of `records`, once it is decoded.
    pub(super) output: RunOutput,
    pub(super) decoded: bool,
    /// The queues of `output`, in its order, once they are found.
    pub(super) queues: Vec<QueueWork>,
    /// The batch queues of the run, once their units are written.
    pub(super) batches: Vec<Arc<BatchQueue>>,
}

/// The state of one queue in a run.
#[derive(Debug)]
pub(super) struct QueueWork {
    pub(super) queue: Arc<ConsumeQueue>,
    /// One past the highest offset of the run.
    pub(super) end: i64,
    /// Indexes of the ranges of units that wait for the ordered step.
    pub(super) late: Vec<usize>,
}

impl Default for DispatchRun {
    fn default() -> Self {
        Self {
            number: 0,
            end: 0,
            skipped: Vec::new(),
            damage: None,
            records: RecordRun::empty(0),
            buffer: Vec::new(),
            output: RunOutput::default(),
            decoded: false,
            queues: Vec::new(),
            batches: Vec::new(),
        }
    }
}

impl DispatchRun {
    /// Returns the buffer of the last records for reuse.
    pub(super) fn take_buffer(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffer)
    }

    /// Turns this run into run `number` over `records`.
    pub(super) fn begin(&mut self, number: u64, records: RecordRun) {
        self.number = number;
        self.end = records.end();
        self.records = records;
        self.decoded = false;
    }

    /// Wakes the threads and tasks that wait for messages of its queues, now that readers see these messages.
    pub(super) fn wake_waiters(&mut self) {
        for work in self.queues.drain(..) {
            work.queue.arrivals().reached(work.queue.max_offset());
        }
        for queue in self.batches.drain(..) {
            queue.arrivals().reached(queue.max_offset());
        }
    }
}
