//! Leases on the messages of one source: messages that are due again, and new ones, which are read ahead.
//!
//! All of this runs under the lock of the work queue. The cost does not grow with the finished messages, which are
//! ranges, nor with the waiting ones, which the progress sorts by time. New messages come from a cursor that
//! continues where it stopped. Of the messages that are due again, only the first is inspected.

use std::mem;
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_engine::QueueCursor;
use mqstore_format::properties::TIMER_DELIVER_MS;
use mqstore_meta::{MetaLog, Progress, ProgressRecord};

use super::inner::WorkQueueInner;
use super::leased_message::LeaseNumbers;
use super::source::{BufferedMessage, ExhaustedOffsets, FIRST_AHEAD, QueuePlace, WorkSource};
use crate::error::BrokerError;
use crate::nonblocking::{NEAR_BYTES, ReadScope, Remaining};
use crate::pop_takeover::previous_attempts;
use crate::queue_wait::QueueWait;

/// Maximum messages, and approximate bytes, that are read ahead.
const MOST_AHEAD: usize = 256;
const AHEAD_BYTES: usize = 1 << 20;

/// Maximum new messages that one call passes if all of them are held back.
const HELD_BACK_AT_ONCE: usize = 4096;

/// A lease taken from a source, and the message if it is in memory.
pub(super) struct LeasedRecord {
    pub(super) place: Arc<QueuePlace>,
    pub(super) held: LeaseNumbers,
    pub(super) record: Option<StoredRecord>,
}

/// A request for leases from a source.
pub(super) struct LeaseRequest<'a> {
    pub(super) count: usize,
    pub(super) now_ms: i64,
    pub(super) invisible_until_ms: i64,
    pub(super) max_attempts: Option<u32>,
    pub(super) core: &'a WorkQueueInner,
    pub(super) scope: ReadScope,
}

impl WorkSource {
    /// Notes a read error once until the queue can be read again. No caller gets the error, because other queues have
    /// messages.
    pub(super) fn note_failure(&mut self, core: &WorkQueueInner, error: &BrokerError) {
        if !mem::replace(&mut self.failing, true) {
            let QueuePlace { topic, queue_id, .. } = &*self.place;
            core.note(format!(
                "{}: cannot read queue {topic}/{queue_id}; other queues continue: {error}",
                core.name()
            ));
        }
    }

    /// Leases up to `request.count` messages, alternating between messages that are due again and new ones. Returns what
    /// remains of the new messages, or that the next message in turn is not in memory.
    pub(super) fn take(
        &mut self,
        request: &LeaseRequest<'_>,
        picked: &mut Vec<LeasedRecord>,
        exhausted: &mut ExhaustedOffsets,
    ) -> Result<Remaining, BrokerError> {
        let before = picked.len();
        if request.count == 1 {
            let due_first = self.due_first;
            if due_first && !self.take_due(request, 1, picked, exhausted)? {
                return Ok(Remaining::NotAtHand);
            }
            let mut remaining = Remaining::Nothing;
            if picked.len() == before {
                remaining = self.lease_new(request, 1, picked)?;
            }
            if picked.len() == before
                && remaining != Remaining::NotAtHand
                && !self.take_due(request, 1, picked, exhausted)?
            {
                remaining = Remaining::NotAtHand;
            }
            // A message that is not in memory keeps its turn.
            if remaining != Remaining::NotAtHand {
                self.due_first = !due_first;
            }
            return Ok(remaining);
        }
        let all = before + request.count;
        if !self.take_due(request, request.count.div_ceil(2), picked, exhausted)? {
            return Ok(Remaining::NotAtHand);
        }
        let remaining = self.lease_new(request, all - picked.len(), picked)?;
        if !self.take_due(request, all - picked.len(), picked, exhausted)? {
            return Ok(Remaining::NotAtHand);
        }
        Ok(remaining)
    }

    /// Leases up to `count` messages that are due again or whose lease has ended. Messages before them that used up
    /// their attempts become dead letters. Returns whether all of these messages were in memory.
    pub(super) fn take_due(
        &mut self,
        request: &LeaseRequest<'_>,
        count: usize,
        picked: &mut Vec<LeasedRecord>,
        exhausted: &mut ExhaustedOffsets,
    ) -> Result<bool, BrokerError> {
        let wanted = picked.len() + count;
        self.follow_clock(request.core)?;
        loop {
            let Some((offset, attempts)) = due(&self.place.progress.lock(), request.now_ms) else {
                return Ok(true);
            };
            let is_exhausted = request.max_attempts.is_some_and(|most| attempts >= most);
            if request.scope.is_at_hand() && (is_exhausted || !self.retries.contains_key(&offset)) {
                return Ok(picked.len() >= wanted && !is_exhausted);
            }
            if is_exhausted {
                let dlq_offset = request.core.dead_letters_end()?;
                let record = ProgressRecord::DeadLetter { offset, dlq_offset };
                if self.log_due_change(request, (offset, attempts), record)? {
                    exhausted.push((Arc::clone(&self.place), offset));
                }
                continue;
            }
            if picked.len() >= wanted {
                return Ok(true);
            }
            let (attempt, invisible_until_ms) = (attempts.saturating_add(1), request.invisible_until_ms);
            let record = ProgressRecord::Leased { offset, invisible_until_ms, attempt };
            if !self.log_due_change(request, (offset, attempts), record)? {
                continue;
            }
            let token = self.place.progress.lock().lease(offset).map_or(0, |lease| lease.token);
            let held = LeaseNumbers { offset, attempt, token, invisible_until_ms };
            let record = self.retries.remove(&offset);
            picked.push(LeasedRecord { place: Arc::clone(&self.place), held, record });
        }
    }

    /// Hides a message that cannot be read: leases it without a worker.
    fn set_aside(&self, request: &LeaseRequest<'_>, offset: i64) -> Result<(), BrokerError> {
        let first = due(&self.place.progress.lock(), request.now_ms);
        if let Some(first @ (_, attempts)) = first.filter(|(first, _)| *first == offset) {
            let (attempt, invisible_until_ms) = (attempts.saturating_add(1), request.invisible_until_ms);
            self.log_due_change(
                request,
                first,
                ProgressRecord::Leased { offset, invisible_until_ms, attempt },
            )?;
        }
        Ok(())
    }

    /// If the clock was ahead when leases began and was corrected, logs its time, so that they begin again.
    fn follow_clock(&self, core: &WorkQueueInner) -> Result<(), BrokerError> {
        if self.place.progress.lock().is_ahead_of(core.store().clock().now_ms()) {
            core.meta().change_progress(&self.place.progress, |progress, records| {
                records.extend(core.clock_record(progress));
            })?;
        }
        Ok(())
    }

    /// Logs `record` for the first due message, unless another message is first by now: the worker of the message may
    /// acknowledge, return or extend it at any time.
    fn log_due_change(
        &self,
        request: &LeaseRequest<'_>,
        first: (i64, u32),
        record: ProgressRecord,
    ) -> Result<bool, BrokerError> {
        let (changed, _) =
            request.core.meta().change_progress(&self.place.progress, |progress, records| {
                let is_first = due(progress, request.now_ms) == Some(first);
                if is_first {
                    records.extend(request.core.clock_record(progress));
                    records.push(record);
                }
                is_first
            })?;
        Ok(changed)
    }

    fn lease_new(
        &mut self,
        request: &LeaseRequest<'_>,
        count: usize,
        picked: &mut Vec<LeasedRecord>,
    ) -> Result<Remaining, BrokerError> {
        let (mut left, mut passed) = (count, 0);
        while left > 0 {
            if self.buffered.is_empty() {
                if request.scope.is_at_hand() && !self.is_at_hand(request)? {
                    return Ok(Remaining::NotAtHand);
                }
                if !self.read_ahead(request.core, left)? {
                    return Ok(Remaining::Nothing);
                }
            }
            let (taken, held_back) = self.lease_buffered(request, left, picked)?;
            left -= taken;
            passed += held_back;
            if passed >= HELD_BACK_AT_ONCE {
                return Ok(Remaining::GoesOn);
            }
        }
        Ok(Remaining::Nothing)
    }

    /// Whether the next read needs no I/O: there is nothing new, or it was written just now.
    fn is_at_hand(&mut self, request: &LeaseRequest<'_>) -> Result<bool, StoreError> {
        if self.wait.as_ref().is_some_and(|wait| !wait.is_over()) {
            return Ok(true);
        }
        if !request.scope.reaches_end() {
            return Ok(false);
        }
        match self.cursor(request.core).and_then(|cursor| cursor.is_near_end(NEAR_BYTES)) {
            // The retention deleted messages, and offsets must be skipped.
            Err(StoreError::OffsetOutOfRange { .. }) => Ok(false),
            near => near,
        }
    }

    /// Prepares a poll of an event loop. Turns messages that used up their attempts into dead letters. Reads up to
    /// `count` messages that are due again, and new messages ahead. Leases nothing, with one exception: a due message
    /// that cannot be read. That lease has no worker and counts as an attempt, so that the message ends as a dead
    /// letter.
    pub(super) fn prepare(
        &mut self,
        core: &Arc<WorkQueueInner>,
        request: &LeaseRequest<'_>,
        exhausted: &mut ExhaustedOffsets,
    ) -> Result<(), BrokerError> {
        self.take_due(request, 0, &mut Vec::new(), exhausted)?;
        if request.count == 0 {
            return Ok(());
        }
        let due = self.place.progress.lock().due(request.now_ms, request.count.min(MOST_AHEAD));
        let (mut before, mut bytes) = (mem::take(&mut self.retries), 0);
        // The poll takes the first of them next, however large the others are.
        for offset in due {
            if bytes >= AHEAD_BYTES {
                break;
            }
            let found = match before.remove(&offset) {
                Some(record) => Ok(Some(record)),
                None => core.message(&self.place, offset),
            };
            match found {
                Ok(Some(record)) => {
                    bytes += record.bytes().len();
                    self.retries.insert(offset, record);
                }
                Ok(None) => core.finish_lost(&[(Arc::clone(&self.place), offset)])?,
                // Its turn comes later.
                Err(_) if !self.retries.is_empty() => break,
                Err(error) => {
                    self.set_aside(request, offset)?;
                    return Err(error);
                }
            }
        }
        if self.buffered.is_empty() && !self.read_ahead(core, request.count)? {
            self.arm(core)?;
        }
        Ok(())
    }

    /// Leases up to `count` of the messages that were read ahead, in one frame. Returns how many, and how many were
    /// held back.
    fn lease_buffered(
        &mut self,
        request: &LeaseRequest<'_>,
        count: usize,
        picked: &mut Vec<LeasedRecord>,
    ) -> Result<(usize, usize), BrokerError> {
        let (mut leased, mut through) = (0, 0);
        let buffered = &self.buffered;
        request.core.meta().change_progress(&self.place.progress, |progress, records| {
            let mut next = progress.next();
            records.extend(request.core.clock_record(progress));
            for message in buffered {
                if leased == count {
                    break;
                }
                through += 1;
                let offset = message.record.queue_offset;
                if progress.is_finished(offset) {
                    continue;
                }
                // Offsets without a message, or cancelled.
                if offset > next {
                    records.push(ProgressRecord::Finished { from: next, to: offset });
                }
                let held_back = message.visible_ms.filter(|visible_ms| *visible_ms > request.now_ms);
                let delivered = message.delivered;
                let (invisible_until_ms, attempt) = held_back
                    .map_or((request.invisible_until_ms, delivered.saturating_add(1)), |at_ms| {
                        (at_ms, delivered)
                    });
                records.push(ProgressRecord::Leased { offset, invisible_until_ms, attempt });
                match held_back {
                    Some(visible_ms) => {
                        records.push(ProgressRecord::Returned { offset, visible_ms, attempt });
                    }
                    None => leased += 1,
                }
                next = offset + 1;
            }
        })?;
        let progress = self.place.progress.lock();
        for message in self.buffered.drain(..through) {
            let offset = message.record.queue_offset;
            let Some(lease) = progress.lease(offset) else { continue };
            let held = LeaseNumbers {
                offset,
                attempt: lease.attempt,
                token: lease.token,
                invisible_until_ms: lease.invisible_until_ms,
            };
            picked.push(LeasedRecord { place: Arc::clone(&self.place), held, record: Some(message.record) });
        }
        Ok((leased, through - leased))
    }

    /// Reads new messages. Returns whether there are any.
    fn read_ahead(&mut self, core: &WorkQueueInner, wanted: usize) -> Result<bool, BrokerError> {
        if let Some(wait) = &self.wait {
            if !wait.is_over() {
                return Ok(false);
            }
            self.wait = None;
        }
        let count = self.count.max(wanted).min(MOST_AHEAD);
        loop {
            let fresh = self.cursor.is_none();
            let batch = match self.next_batch(core, count) {
                Err(StoreError::OffsetOutOfRange { min_offset, .. }) if min_offset > self.scanned => {
                    self.skip_to(core, min_offset)?;
                    continue;
                }
                batch => batch?,
            };
            let reached = self.cursor.as_ref().map_or(self.scanned, QueueCursor::position);
            if batch.len() < count {
                self.cursor = None;
            }
            if batch.is_empty() {
                self.pass(core.meta(), reached)?;
                if fresh {
                    return Ok(false);
                }
                continue;
            }
            if let Some(cursor) = &mut self.cursor {
                cursor.rest();
            }
            self.buffer(batch, reached, count);
            return Ok(true);
        }
    }

    fn next_batch(&mut self, core: &WorkQueueInner, count: usize) -> Result<Vec<StoredRecord>, StoreError> {
        self.cursor(core)?.next_batch(count).inspect_err(|_| self.cursor = None)
    }

    fn cursor(&mut self, core: &WorkQueueInner) -> Result<&mut QueueCursor, StoreError> {
        Ok(match &mut self.cursor {
            Some(cursor) => cursor,
            none => {
                let QueuePlace { topic, queue_id, .. } = &*self.place;
                let cursor = core.store().read(topic, *queue_id, Some(self.scanned), None, None)?;
                none.insert(cursor.on_damage(core.options.on_damage))
            }
        })
    }

    fn buffer(&mut self, batch: Vec<StoredRecord>, reached: i64, count: usize) {
        let bytes: usize = batch.iter().map(|record| record.bytes().len()).sum();
        let fitting = AHEAD_BYTES / (bytes / batch.len().max(1)).max(1);
        self.count = (2 * count).clamp(FIRST_AHEAD, MOST_AHEAD).min(fitting.max(1));
        self.scanned = reached;
        self.buffered.extend(batch.into_iter().map(|record| {
            let visible_ms = put_delay_until(&record);
            let delivered = previous_attempts(&self.place.topic, &record);
            BufferedMessage { record, visible_ms, delivered }
        }));
    }

    /// Finishes the offsets up to `reached`, which have no messages.
    fn pass(&mut self, meta: &MetaLog, reached: i64) -> Result<(), BrokerError> {
        if reached > self.scanned {
            let from = self.place.progress.lock().next();
            if from < reached {
                let record = ProgressRecord::Finished { from, to: reached };
                meta.append_progress(&self.place.progress, &[record])?;
            }
            self.scanned = reached;
        }
        Ok(())
    }

    /// Skips the messages below `min`, which the retention deleted.
    fn skip_to(&mut self, core: &WorkQueueInner, min: i64) -> Result<(), BrokerError> {
        let QueuePlace { topic, queue_id, progress } = &*self.place;
        let (_, max) = core.store().bounds(topic, *queue_id)?;
        core.note(format!(
            "{}: messages {} to {min} of queue {topic}/{queue_id} were deleted before they were read; the group \
             continues at {min}",
            core.name(),
            self.scanned
        ));
        core.meta().clamp_progress(progress, min, max.max(min))?;
        self.scanned = min;
        self.cursor = None;
        Ok(())
    }

    /// Registers a callback for new messages. Returns whether there are some already.
    pub(super) fn arm(&mut self, core: &Arc<WorkQueueInner>) -> Result<bool, BrokerError> {
        if self.has_buffered() {
            return Ok(true);
        }
        let woken = Arc::downgrade(core);
        let wake = move || {
            if let Some(core) = woken.upgrade() {
                core.ready.wake_one();
            }
        };
        let queue = (&*self.place.topic, self.place.queue_id);
        Ok(QueueWait::arm(&mut self.wait, core.store(), queue, self.scanned, wake)?)
    }

    /// Whether the first due message used up its attempts.
    pub(super) fn has_exhausted(&self, max_attempts: Option<u32>, now_ms: i64) -> bool {
        let Some(most) = max_attempts else { return false };
        due(&self.place.progress.lock(), now_ms).is_some_and(|(_, attempts)| attempts >= most)
    }
}

/// Returns the message that is due for the longest time, or whose lease ended first, and its number of deliveries.
fn due(progress: &Progress, now_ms: i64) -> Option<(i64, u32)> {
    let waiting = progress.first_due().map(|(offset, waiting)| (waiting.visible_ms, offset, waiting.attempt));
    let ended =
        progress.first_ending().map(|(offset, lease)| (lease.invisible_until_ms, offset, lease.attempt));
    let first = waiting.into_iter().chain(ended).min()?;
    (first.0 <= now_ms).then_some((first.1, first.2))
}

/// Returns the time until which a put delays its message.
pub(super) fn put_delay_until(record: &StoredRecord) -> Option<i64> {
    record.view().ok()?.properties.get(TIMER_DELIVER_MS)?.parse().ok()
}
