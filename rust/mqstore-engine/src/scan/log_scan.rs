//! A scan of the log: by a walk, or by the units of queues.

use std::sync::Arc;
use std::time::Duration;

use mqstore_io::sync::Mutex;

use super::damage::DamageRule;
use super::merged_queues::MergedQueues;
use super::queue_parts::MessageSource;
use super::queue_position::first_behind;
use super::record_source::{LogSource, QueueRange, QueueSource, ScanSource, span};
use super::task::{Passed, SkipCallback};
use super::workers::{MakeSink, ScanBatch, ScanContext, ScanSink, ScanStep, ScanWork, TaskOutcome};
use crate::read::cursor::DamageReport;
use crate::read::query::{compacted_end, get_at, no_queue};
use crate::read::scan_request::{RowFilter, ScanPlan, ScanRange, ScanRequest};
use crate::read::view::{StoreView, View};
use mqstore_base::error::StoreError;

/// Reading one record of a unit takes as long as walking this number of bytes of the log.
const BYTES_PER_ENTRY: u64 = 16 << 10;

/// A running scan of the log.
///
/// If queue units lead to the records faster than a walk of the log, the scan follows the units and checks them against
/// the records. If a unit points to a wrong record, the scan continues as a walk from there. A walk yields no row for
/// fillers. It skips damaged ranges and reports them to the caller.
///
/// With `topics`, rows are the messages in the queues of these topics. A light queue has the records that name it; a
/// record in several of the named queues is several rows. Half messages of a topic are not rows. If two records claim
/// the same unit of a queue, which no broker writes, a scan that follows units yields only the first.
pub(super) struct LogScan<S: ScanSink> {
    plan: ScanSetup<S>,
    work: Option<ScanWork<S>>,
    threads: u32,
    start: u64,
    position: u64,
    follows_entries: bool,
}

/// The data to start a scan.
struct ScanSetup<S> {
    view: StoreView,
    filter: Arc<RowFilter>,
    span: (u64, u64),
    tell: SkipCallback,
    damage: Arc<DamageRule>,
    passed: Arc<Mutex<Vec<(Passed, String)>>>,
    make: MakeSink<S>,
}

/// The result of [`Scan::next`](super::Scan::next).
#[derive(Debug)]
pub enum ScanOutput<B> {
    /// More rows.
    Batch(ScanBatch<B>),
    /// No rows yet; call again.
    Later,
    /// The end of the scan.
    End,
}

/// Starts a scan of the log.
///
/// # Errors
/// [`StoreError::TopicNotFound`].
pub(super) fn scan_log<S: ScanSink>(
    view: &StoreView,
    request: &ScanRequest,
    make: MakeSink<S>,
) -> Result<LogScan<S>, StoreError> {
    let limit = view.catch_up()?;
    let span = span(&**view, request, limit);
    let floors = if request.with_deleted { Arc::default() } else { view.floors() };
    let filter = Arc::new(RowFilter::new(request, floors));
    let passed: Arc<Mutex<Vec<(Passed, String)>>> = Arc::default();
    let (skipped, noted) = (Arc::clone(&passed), view.clone());
    let expects_deletion = request.expects_deletion;
    let tell: SkipCallback = Arc::new(move |what, text: String| {
        skipped.lock().push((what, text.clone()));
        if what != Passed::Deleted || !expects_deletion {
            noted.note(text);
        }
    });
    let damage = Arc::new(DamageRule {
        view: view.clone(),
        filter: Arc::clone(&filter),
        policy: request.on_damage,
        queues: wanted_queues(&**view, request)?,
        tell: Arc::clone(&tell),
    });
    let plan = ScanSetup { view: view.clone(), filter, span, tell, damage, passed, make };
    let mut scan = LogScan {
        plan,
        work: None,
        threads: request.threads,
        start: span.0,
        position: span.0,
        follows_entries: false,
    };
    let skipped = Arc::clone(&scan.plan.passed);
    let report: DamageReport = Arc::new(move |text| skipped.lock().push((Passed::Damaged, text)));
    if let Some(queues) = compacted_queues(view, request, &scan.plan.damage)? {
        let source = MergedQueues::new(view, request, queues, &report)?;
        (scan.start, scan.position) = (0, 0);
        scan.begin(ScanSource::Merged(source), Arc::new([]))?;
        return Ok(scan);
    }
    if request.plan == ScanPlan::Messages {
        let source = MessageSource::new(view, request, &scan.plan.tell, &report)?;
        (scan.start, scan.position) = (0, 0);
        scan.begin(ScanSource::Messages(source), Arc::new([]))?;
        return Ok(scan);
    }
    match queue_ranges(&*scan.plan.view, request, span)? {
        Some(ranges) => scan.follow_entries(ranges)?,
        None => scan.walk()?,
    }
    Ok(scan)
}

/// Returns the wanted queues if the scan must read them like [`crate::Store::read`], because one of them is compacted.
fn compacted_queues<'a>(
    view: &StoreView,
    request: &ScanRequest,
    damage: &'a DamageRule,
) -> Result<Option<&'a [(String, i32)]>, StoreError> {
    let Some(queues) = damage.queues.as_deref().filter(|_| request.as_reads) else { return Ok(None) };
    for (topic, queue_id) in queues {
        if compacted_end(view, topic, *queue_id)?.is_some() {
            return Ok(Some(queues));
        }
    }
    Ok(None)
}

/// Returns log offsets at which scans of a queue's messages in `range` can begin. For each of `positions`, which
/// must ascend, it is the log offset of the first of these messages at or after that position. Positions without
/// such a message, or whose unit points to no record, are left out.
///
/// # Errors
/// [`StoreError::TopicNotFound`], and errors of the system.
pub(crate) fn scan_cuts(
    view: &StoreView,
    topic: &str,
    queue_id: i32,
    range: (i64, i64),
    positions: &[u64],
) -> Result<Vec<u64>, StoreError> {
    view.catch_up()?;
    let Some((min, max)) = view.bounds(topic, queue_id)? else {
        return Err(no_queue(topic, Some(queue_id)));
    };
    let (mut low, high) = (range.0.max(min), range.1.min(max));
    let (mut cuts, mut units) = (Vec::new(), Vec::new());
    for position in positions {
        low = first_behind(&**view, (topic, queue_id), (low, high), *position)?;
        units.clear();
        view.units(topic, queue_id, low, 1, &mut units)?;
        let Some((_, unit)) = units.first().filter(|_| low < high) else { break };
        let Ok(at) = u64::try_from(unit.physical_offset) else { continue };
        match get_at(view, at) {
            Ok(_) => cuts.push(at),
            Err(StoreError::Corrupt { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(cuts)
}

/// Returns the queues of the request, sorted; `None` if it wants all records.
fn wanted_queues(view: &dyn View, request: &ScanRequest) -> Result<Option<Vec<(String, i32)>>, StoreError> {
    if let Some(ranges) = &request.ranges {
        return Ok(Some(ranges.iter().map(|range| (range.topic.clone(), range.queue_id)).collect()));
    }
    let Some(topics) = &request.topics else { return Ok(None) };
    let mut queues = Vec::new();
    for topic in topics {
        let ids = view.queue_ids(topic)?;
        let missing = request.queue_id.filter(|id| !ids.contains(id));
        if ids.is_empty() || missing.is_some() {
            return Err(no_queue(topic, missing.filter(|_| !ids.is_empty())));
        }
        let wanted = ids.into_iter().filter(|id| request.queue_id.is_none_or(|wanted| wanted == *id));
        queues.extend(wanted.map(|queue_id| (topic.clone(), queue_id)));
    }
    queues.sort_unstable();
    queues.dedup();
    Ok(Some(queues))
}

/// Returns the queues whose units the scan follows; `None` if it walks the log.
fn queue_ranges(
    view: &dyn View,
    request: &ScanRequest,
    span: (u64, u64),
) -> Result<Option<Vec<QueueRange>>, StoreError> {
    if let Some(ranges) = &request.ranges {
        return of_ranges(view, request, ranges, span);
    }
    let Some(mut topics) = request.topics.clone() else { return Ok(None) };
    topics.sort_unstable();
    topics.dedup();
    let mut ranges = Vec::new();
    let mut entries = 0_u64;
    for topic in &topics {
        let ids = view.queue_ids(topic)?;
        let missing = request.queue_id.filter(|id| !ids.contains(id));
        if ids.is_empty() || missing.is_some() {
            return Err(no_queue(topic, missing.filter(|_| !ids.is_empty())));
        }
        if request.plan == ScanPlan::Log {
            continue;
        }
        for queue_id in ids.into_iter().filter(|id| request.queue_id.is_none_or(|wanted| wanted == *id)) {
            let Some((min, max)) = view.bounds(topic, queue_id)? else { continue };
            let start =
                view.start_of(topic, queue_id, request.start_offset.unwrap_or(min).clamp(min, max))?;
            let (min, max) = (min.max(start), max.min(request.end_offset.unwrap_or(max)));
            let queue = (topic.as_str(), queue_id);
            let next = first_behind(view, queue, (min, max), span.0)?;
            let end = first_behind(view, queue, (next, max), span.1)?;
            if next < end {
                entries = entries.saturating_add((end - next) as u64);
                ranges.push(QueueRange { topic: topic.clone(), queue_id, next, end });
            }
        }
    }
    Ok(follows(request, entries, span).then_some(ranges))
}

fn follows(request: &ScanRequest, entries: u64, span: (u64, u64)) -> bool {
    match request.plan {
        ScanPlan::Log | ScanPlan::Messages => false,
        ScanPlan::Queues => true,
        ScanPlan::Cheapest => entries.saturating_mul(BYTES_PER_ENTRY) <= span.1.saturating_sub(span.0),
    }
}

/// Like [`queue_ranges`], for given parts of queues.
fn of_ranges(
    view: &dyn View,
    request: &ScanRequest,
    wanted: &[ScanRange],
    span: (u64, u64),
) -> Result<Option<Vec<QueueRange>>, StoreError> {
    let mut ranges = Vec::new();
    let mut entries = 0_u64;
    for ScanRange { topic, queue_id, start, end } in wanted {
        let Some((min, max)) = view.bounds(topic, *queue_id)? else { continue };
        let (next, end) = (min.max(*start), max.min(*end));
        if next < end {
            entries = entries.saturating_add((end - next) as u64);
            ranges.push(QueueRange { topic: topic.clone(), queue_id: *queue_id, next, end });
        }
    }
    Ok(follows(request, entries, span).then_some(ranges))
}

impl<S: ScanSink> LogScan<S> {
    /// Whether a part of the log was deleted before the scan read it.
    pub(super) fn has_lost(&self) -> bool {
        self.plan.passed.lock().iter().any(|(what, _)| *what == Passed::Deleted)
    }

    /// Returns the log offset at which the scan began.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// Returns the position of the scan: all rows before this log offset are returned.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Returns the log offset at which the scan ends.
    pub(super) fn limit(&self) -> u64 {
        self.plan.span.1
    }

    /// Whether the scan follows queue units; else it walks the log.
    pub(super) fn follows_entries(&self) -> bool {
        self.follows_entries
    }

    /// Returns the skipped ranges so far, and each unit that pointed to a wrong record.
    pub(super) fn passed(&self) -> Vec<(Passed, String)> {
        self.plan.passed.lock().clone()
    }

    /// Returns the next result; waits for it for about `timeout`.
    ///
    /// # Errors
    /// [`StoreError::Closed`] if the store was closed meanwhile; I/O errors.
    pub(super) fn next(&mut self, timeout: Duration) -> Result<ScanOutput<S::Batch>, StoreError> {
        loop {
            let Some(work) = &mut self.work else { return Ok(ScanOutput::End) };
            match work.step(timeout) {
                ScanStep::Batch(batch) => {
                    self.position = batch.end;
                    return Ok(ScanOutput::Batch(batch));
                }
                ScanStep::Passed(TaskOutcome::Done(end)) => self.position = self.position.max(end),
                ScanStep::Passed(TaskOutcome::Misled(reason)) => {
                    let text = format!("{reason}; the scan continues as a walk of the log from there");
                    (self.plan.tell)(Passed::Misled, text);
                    self.work = None;
                    self.walk()?;
                }
                ScanStep::Passed(TaskOutcome::Failed(error)) => {
                    self.work = None;
                    return Err(error);
                }
                ScanStep::Later => return Ok(ScanOutput::Later),
                ScanStep::End => {
                    self.work = None;
                    self.position = self.plan.span.1.max(self.position);
                    return Ok(ScanOutput::End);
                }
            }
        }
    }

    /// Walks the log from the position of the scan.
    fn walk(&mut self) -> Result<(), StoreError> {
        let plan = &self.plan;
        let source = LogSource::new(plan.view.clone(), self.position, plan.span.1, Arc::clone(&plan.damage));
        self.follows_entries = false;
        self.begin(ScanSource::Log(source), Arc::new([]))
    }

    fn follow_entries(&mut self, ranges: Vec<QueueRange>) -> Result<(), StoreError> {
        let plan = &self.plan;
        let source = QueueSource::new(plan.view.clone(), Arc::clone(&plan.filter), ranges, plan.span);
        let queues = source.queues();
        self.follows_entries = true;
        self.begin(ScanSource::Queues(source), queues)
    }

    fn begin(&mut self, source: ScanSource, queues: Arc<[(String, i32)]>) -> Result<(), StoreError> {
        let plan = &self.plan;
        let common = ScanContext {
            view: plan.view.clone(),
            filter: Arc::clone(&plan.filter),
            queues,
            limit: plan.span.1,
            damage: Arc::clone(&plan.damage),
            make: Arc::clone(&plan.make),
        };
        self.work = Some(ScanWork::begin(common, source, self.threads)?);
        Ok(())
    }
}
