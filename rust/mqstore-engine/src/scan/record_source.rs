//! The sources of a scan's records: ranges of the log, the records of queue units, or messages.
//!
//! A source returns tasks in the order of the log, or of the queues. Each task has all data that a worker needs. One
//! thread at a time asks for the next task.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use mqstore_format::{CqUnit, RecordView, SCHEDULE_TOPIC};
use mqstore_io::MappedFileGuard;

use super::damage::DamageRule;
use super::merged_queues::MergedQueues;
use super::queue_parts::MessageSource;
use super::task::{EntryLead, NextTask, Passed, TASK_BYTES, TASK_ENTRIES, Task};
use crate::read::cursor::{SkippedDamage, belongs, place, skip_damage};
use crate::read::scan_request::{RowFilter, ScanRequest};
use crate::read::view::{StoreView, View};
use mqstore_base::error::StoreError;
use mqstore_log::commit_log::{CutRun, Damage, LogScanner, ScanChecks, Segment, SegmentList, read_record};

/// How many bytes before a task's turn the system is asked to fetch.
const AHEAD_BYTES: u64 = 4 * TASK_BYTES;

/// Requests of the best length that fetch the next tasks at the same time.
const REQUESTS_AHEAD: u64 = 3;

/// Approximate maximum of units in memory, for all queues together.
const HELD_ENTRIES: usize = 64 << 10;

/// How far the clock of a store may have been set back before a scan of a time range can miss a message.
const CLOCK_SET_BACK_MS: i64 = 600_000;

/// See the header of this module.
pub(super) enum ScanSource {
    Log(LogSource),
    Queues(QueueSource),
    Messages(MessageSource),
    Merged(MergedQueues),
}

impl ScanSource {
    /// Returns the next task; reads into `buffer`.
    pub(super) fn next(&mut self, buffer: Vec<u8>) -> Result<NextTask, StoreError> {
        match self {
            Self::Log(log) => log.next(buffer),
            Self::Queues(queues) => queues.next(),
            Self::Messages(messages) => messages.next(),
            Self::Merged(queues) => queues.next(),
        }
    }
}

/// The log between two log offsets.
pub(super) struct LogSource {
    view: StoreView,
    scanner: LogScanner,
    list: Arc<SegmentList>,
    limit: u64,
    damage: Arc<DamageRule>,
    held: Option<MappedFileGuard>,
    /// The log offset up to which the system was asked to fetch.
    expected: u64,
}

impl LogSource {
    pub(super) fn new(view: StoreView, from: u64, limit: u64, damage: Arc<DamageRule>) -> Self {
        let list = view.list();
        let scanner = LogScanner::new(Arc::clone(&list), from, limit, ScanChecks { crc: true });
        Self { view, scanner, list, limit, damage, held: None, expected: 0 }
    }

    fn next(&mut self, mut buffer: Vec<u8>) -> Result<NextTask, StoreError> {
        self.view.check()?;
        loop {
            self.hold();
            let cut = match self.scanner.cut(TASK_BYTES, std::mem::take(&mut buffer)) {
                Err(error) if error.is_gone() => {
                    self.follow_expiry(error)?;
                    continue;
                }
                cut => cut?,
            };
            match cut {
                CutRun::Records(run) => {
                    self.prefetch();
                    return Ok(NextTask::Task(Task::Run(run)));
                }
                CutRun::Damaged(damage) => self.skip(&damage)?,
                CutRun::End => return Ok(NextTask::End),
            }
        }
    }

    /// Delays the deletion of the segment at the position of the scan.
    fn hold(&mut self) {
        let position = self.scanner.position();
        let holds = |guard: &MappedFileGuard| (guard.base_offset()..guard.end_offset()).contains(&position);
        if !self.held.as_ref().is_some_and(holds) {
            self.held = self.list.find(position).and_then(Segment::hold);
        }
    }

    /// Asks the system to fetch the bytes of the next tasks, each page once, because each request takes time.
    fn prefetch(&mut self) {
        let position = self.scanner.position();
        if position >= self.limit {
            return;
        }
        if let Some(best) = self.view.files().vfs.best_read_bytes() {
            return self.request(position, best);
        }
        if position + TASK_BYTES <= self.expected {
            return;
        }
        let cold = self.view.log().is_none_or(|log| log.may_be_cold(position));
        if let Some(segment) = self.list.find(position).filter(|_| cold)
            && let Ok(file) = segment.file()
        {
            let end = segment.end_offset().min(self.limit);
            let begin = position.max(self.expected.min(end));
            // A short rest is not worth another request.
            self.expected =
                if end - position <= AHEAD_BYTES + AHEAD_BYTES / 3 { end } else { position + AHEAD_BYTES };
            // The read finds and reports any error.
            let _ = file.expect_read(begin - segment.base_offset(), self.expected.saturating_sub(begin));
        }
    }

    /// Requests the bytes after `position`, so that they arrive while the tasks before them are decoded. Each request
    /// begins at a multiple of `best` in its segment, and there are always some ahead.
    fn request(&mut self, position: u64, best: u64) {
        let until = self.limit.min(position.saturating_add(REQUESTS_AHEAD * best));
        self.expected = self.expected.max(position);
        while self.expected < until
            && let Some(segment) = self.list.find(self.expected)
            && let Ok(file) = segment.file()
        {
            let from = self.expected - segment.base_offset();
            let len = segment.end_offset().min(self.limit) - segment.base_offset();
            let to = len.min((from / best + 1) * best);
            if from >= to {
                return;
            }
            // The read finds and reports any error.
            let _ = file.expect_read(from, to - from);
            self.expected = segment.base_offset() + to;
        }
    }

    fn skip(&mut self, damage: &Damage) -> Result<(), StoreError> {
        match skip_damage(&mut self.scanner, damage)? {
            SkippedDamage::Range(text) => self.damage.meet(damage, self.scanner.position(), text),
            SkippedDamage::Tail(text) => self.damage.meet_tail(damage, text),
        }
    }

    /// Continues at the new start of the log if the position of the scan was deleted meanwhile.
    fn follow_expiry(&mut self, error: StoreError) -> Result<(), StoreError> {
        self.view.catch_up()?;
        let list = self.view.list();
        let (position, min) = (self.scanner.position(), list.min_offset());
        if position >= min {
            return Err(error);
        }
        self.list = Arc::clone(&list);
        self.limit = self.limit.max(min);
        self.scanner.extend(list, self.limit);
        self.scanner.seek(min);
        self.damage.tell(
            Passed::Deleted,
            format!("the log from offset {position} to {min} was deleted while it was read"),
        );
        Ok(())
    }
}

/// Returns the range of the log that can contain the rows of `request`; it begins and ends at a segment's start.
///
/// A record's store time is not before that of an earlier record, unless the store's clock was set back.
pub(super) fn span(view: &dyn View, request: &ScanRequest, limit: u64) -> (u64, u64) {
    let list = view.list();
    let (mut from, mut to) = (list.min_offset(), limit);
    if view.files().tiered().is_some() {
        // Each queue has its own segments, so their times overlap.
        return (from.max(request.from.unwrap_or(0)), to.min(request.to.unwrap_or(u64::MAX)));
    }
    let begins = |segment: &Arc<Segment>| {
        let bytes = read_record(view.files(), &list, list.first_record_of(segment.base_offset()), 0).ok()?;
        RecordView::decode(bytes.as_slice()).ok().map(|record| record.store_timestamp)
    };
    let segments = list.segments().iter().filter(|segment| segment.base_offset() < limit);
    if let Some(start) = request.start_ms {
        let before = start.saturating_sub(CLOCK_SET_BACK_MS);
        let first = segments.clone().rev().find(|segment| begins(segment).is_some_and(|time| time < before));
        from = first.map_or(from, |segment| segment.base_offset());
    }
    if let Some(end) = request.end_ms {
        let behind = end.saturating_add(CLOCK_SET_BACK_MS);
        let mut later = segments.filter(|segment| segment.base_offset() > from);
        let first = later.find(|segment| begins(segment).is_some_and(|time| time >= behind));
        to = first.map_or(to, |segment| segment.base_offset());
    }
    (from.max(request.from.unwrap_or(0)), to.min(request.to.unwrap_or(u64::MAX)))
}

/// A queue whose units a scan follows.
pub(super) struct QueueRange {
    pub(super) topic: String,
    pub(super) queue_id: i32,
    pub(super) next: i64,
    pub(super) end: i64,
}

struct QueueRun {
    range: QueueRange,
    ready: VecDeque<(i64, CqUnit)>,
}

/// The units of some queues, merged by their log offsets.
pub(super) struct QueueSource {
    view: StoreView,
    filter: Arc<RowFilter>,
    queues: Arc<[(String, i32)]>,
    runs: Vec<QueueRun>,
    /// The log offset of the next unit of each queue, the smallest first.
    heads: BinaryHeap<Reverse<(u64, usize)>>,
    span: (u64, u64),
    at_once: usize,
    started: bool,
}

impl QueueSource {
    pub(super) fn new(
        view: StoreView,
        filter: Arc<RowFilter>,
        ranges: Vec<QueueRange>,
        span: (u64, u64),
    ) -> Self {
        let queues = ranges.iter().map(|range| (range.topic.clone(), range.queue_id)).collect();
        let at_once = (HELD_ENTRIES / ranges.len().max(1)).clamp(16, 2048);
        let runs = ranges.into_iter().map(|range| QueueRun { range, ready: VecDeque::new() }).collect();
        Self { view, filter, queues, runs, heads: BinaryHeap::new(), span, at_once, started: false }
    }

    /// Returns the queues, in the order of the numbers in leads.
    pub(super) fn queues(&self) -> Arc<[(String, i32)]> {
        Arc::clone(&self.queues)
    }

    fn next(&mut self) -> Result<NextTask, StoreError> {
        self.view.check()?;
        if !self.started {
            self.started = true;
            (0..self.runs.len()).try_for_each(|queue| self.enter(queue))?;
        }
        let (mut leads, mut bytes) = (Vec::new(), 0);
        while leads.len() < TASK_ENTRIES && bytes < TASK_BYTES {
            let Some(Reverse((_, queue))) = self.heads.pop() else { break };
            let entry = self.runs.get_mut(queue).and_then(|run| run.ready.pop_front());
            if let Some((queue_offset, unit)) = entry
                && let Some((offset, size)) = place(&unit)
            {
                bytes += u64::from(size);
                leads.push(EntryLead { offset, size, queue, queue_offset });
            }
            self.enter(queue)?;
        }
        Ok(if leads.is_empty() { NextTask::End } else { NextTask::Task(Task::Leads(leads)) })
    }

    /// Finds the next wanted unit of a queue and adds its log offset to `heads`.
    fn enter(&mut self, queue: usize) -> Result<(), StoreError> {
        let Some(run) = self.runs.get_mut(queue) else { return Ok(()) };
        loop {
            while let Some((queue_offset, unit)) = run.ready.front() {
                let at = u64::try_from(unit.physical_offset).unwrap_or(0);
                // A unit of a delay level has the due time in the place of the tags code.
                let has_code = run.range.topic != SCHEDULE_TOPIC;
                let wanted = (self.span.0..self.span.1).contains(&at)
                    && *queue_offset < run.range.end
                    && (!has_code || self.filter.may_match_code(unit.tags_code));
                if wanted {
                    self.heads.push(Reverse((at, queue)));
                    return Ok(());
                }
                run.ready.pop_front();
            }
            if run.range.next >= run.range.end {
                return Ok(());
            }
            let mut units = Vec::new();
            let range = &mut run.range;
            self.view.units(&range.topic, range.queue_id, range.next, self.at_once, &mut units)?;
            match units.last() {
                Some((last, _)) if *last >= range.next => range.next = last + 1,
                _ => range.next = range.end,
            }
            run.ready.extend(units);
        }
    }
}

/// Whether `record` is the record that the unit of `lead` belongs to.
pub(super) fn fits(record: &RecordView<'_>, lead: &EntryLead, queues: &[(String, i32)]) -> bool {
    let queue = queues.get(lead.queue);
    queue.is_some_and(|(topic, queue_id)| belongs(record, topic, *queue_id, lead.queue_offset))
}
