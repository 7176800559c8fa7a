//! One run of the log while it is dispatched: its number, its records and the queues that they go to.
//!
//! Owned by one thread at a time, which got it from the [`super::Dispatcher`].

use mqstore_io::sync::Arc;

use super::run::RunOutput;
use crate::commit_log::{Damage, RecordRun};
use crate::consume_queue::{BatchQueue, ConsumeQueue};

/// A numbered stretch of the log and what it contributes.
#[derive(Debug)]
pub(super) struct DispatchRun {
    pub(super) number: u64,
    /// The commit position once this run is committed.
    pub(super) end: u64,
    /// What was passed over before and in it, in words.
    pub(super) skipped: Vec<String>,
    /// Why the log cannot be dispatched behind `end`.
    pub(super) damage: Option<Damage>,
    pub(super) stretch: RecordRun,
    pub(super) buffer: Vec<u8>,
    /// What `stretch` contributes, once it was decoded.
    pub(super) output: RunOutput,
    pub(super) decoded: bool,
    /// The queues of `output`, in its order, once they are known.
    pub(super) queues: Vec<QueueWork>,
    /// Its batch queues, once they have their units.
    pub(super) batches: Vec<Arc<BatchQueue>>,
}

/// What is to be done for one queue.
#[derive(Debug)]
pub(super) struct QueueWork {
    pub(super) queue: Arc<ConsumeQueue>,
    /// One past the highest offset of the run.
    pub(super) end: i64,
    /// Rows that wait for the ordered step: their place in the queue's rows.
    pub(super) late: Vec<usize>,
}

impl Default for DispatchRun {
    fn default() -> Self {
        Self {
            number: 0,
            end: 0,
            skipped: Vec::new(),
            damage: None,
            stretch: RecordRun::empty(0),
            buffer: Vec::new(),
            output: RunOutput::default(),
            decoded: false,
            queues: Vec::new(),
            batches: Vec::new(),
        }
    }
}

impl DispatchRun {
    /// The buffer of the last stretch, to read the next one into.
    pub(super) fn take_buffer(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffer)
    }

    /// Makes it run `number`, over `stretch`.
    pub(super) fn begin(&mut self, number: u64, stretch: RecordRun) {
        self.number = number;
        self.end = stretch.end();
        self.stretch = stretch;
        self.decoded = false;
    }

    /// Tells those who wait for messages of its queues, now that readers see them.
    pub(super) fn wake_waiters(&mut self) {
        for work in self.queues.drain(..) {
            work.queue.arrivals().reached(work.queue.max_offset());
        }
        for queue in self.batches.drain(..) {
            queue.arrivals().reached(queue.max_offset());
        }
    }
}
