//! Collects what the records of the log say about their queues.
//!
//! Owns nothing on disk. [`RunOutput`] decides which offsets a record takes, as for a rebuild and a verification. So
//! the gaps found here are the gaps that a later verification finds.

use std::collections::BTreeMap;

use mqstore_format::RecordView;

use crate::loss_report::LostOffsets;
use crate::verify::misordered::{MisorderedRange, MisorderedRecords, QueueOrder};
use crate::verify::used_offsets::UsedOffsets;
use mqstore_log::dispatch::{DispatchRules, RunOutput};

/// Maximum number of gaps in queues that are listed.
const MOST_GAPS: usize = 1 << 20;

/// Number of records that are collected before they are added.
const GATHERED: u64 = 4096;

/// The correction of a record that contradicts the others of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Correction {
    /// The record gets this queue offset.
    Offset(i64),
    /// The record gets this queue.
    Queue(i32),
    /// The record fits into no queue and hides records that do; it is replaced by a placeholder.
    GivenUp,
}

/// The corrections by log offset.
pub(crate) type Corrections = BTreeMap<u64, Correction>;

/// The first and the last record of a queue: queue offset and log offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueEnds {
    pub(crate) first: (i64, u64),
    pub(crate) last: (i64, u64),
    /// The offset after the last one of the last record.
    pub(crate) end: i64,
}

impl QueueEnds {
    /// Adds a run of records; they come in log order.
    pub(crate) fn add(edge: &mut Option<Self>, row: &MisorderedRange) {
        let first = (row.from, row.first);
        let last = (if row.records == 1 { row.from } else { row.to - 1 }, row.last);
        let end = row.to;
        let Some(edge) = edge else {
            *edge = Some(Self { first, last, end });
            return;
        };
        edge.first = edge.first.min(first);
        if last.0 > edge.last.0 {
            (edge.last, edge.end) = (last, end);
        }
    }
}

/// The first and last records of all queues.
pub(crate) type AllQueueEnds = BTreeMap<String, BTreeMap<i32, QueueEnds>>;

/// The state of one queue.
#[derive(Debug, Default)]
struct QueueState {
    claimed: UsedOffsets,
    edge: Option<QueueEnds>,
    order: QueueOrder,
    batch: bool,
}

impl QueueState {
    /// Adds the next records of the log. Returns whether that creates a gap that is kept; `has_memory` says if one may
    /// be kept.
    fn add(&mut self, range: MisorderedRange, has_memory: bool) -> bool {
        QueueEnds::add(&mut self.edge, &range);
        self.order.add(range, has_memory);
        self.claimed.add_range(range.from, range.to, has_memory)
    }
}

/// The queues of a log.
#[derive(Debug)]
pub(crate) struct LogQueues<'a> {
    rules: DispatchRules,
    corrections: &'a Corrections,
    output: RunOutput,
    topics: BTreeMap<Box<str>, BTreeMap<i32, QueueState>>,
    gaps: usize,
}

/// Records that contradict the others of their queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contradiction {
    pub(crate) topic: Box<str>,
    pub(crate) queue_id: i32,
    /// Whether its records hold several messages.
    pub(crate) batch: bool,
    pub(crate) misfits: Vec<MisorderedRecords>,
    /// For log offsets of contradicting records, the only other queue in which the record's offset is free.
    pub(crate) elsewhere: Vec<(u64, i32)>,
}

/// The result over all records of a log.
#[derive(Debug, Default)]
pub(crate) struct LogSummary {
    /// Offsets without a record.
    pub(crate) missing: Vec<LostOffsets>,
    /// The first and the last record of each queue.
    pub(crate) edges: AllQueueEnds,
    /// Records out of order.
    pub(crate) contradictions: Vec<Contradiction>,
}

impl<'a> LogQueues<'a> {
    pub(crate) fn new(rules: &DispatchRules, corrections: &'a Corrections) -> Self {
        // Keys are not needed here.
        let rules = DispatchRules { index_from: u64::MAX, ..rules.clone() };
        Self { rules, corrections, output: RunOutput::default(), topics: BTreeMap::new(), gaps: 0 }
    }

    /// Whether the record at `place` is given up.
    pub(crate) fn gives_up(&self, place: u64) -> bool {
        self.corrections.get(&place) == Some(&Correction::GivenUp)
    }

    /// Adds the next record in log order, at log offset `place`.
    pub(crate) fn add(&mut self, record: &RecordView<'_>, place: u64) {
        let mut outline = record.outline();
        match self.corrections.get(&place) {
            Some(Correction::Offset(offset)) => outline.queue_offset = *offset,
            Some(Correction::Queue(queue_id)) => outline.queue_id = *queue_id,
            Some(Correction::GivenUp) | None => {}
        }
        self.output.add(&self.rules, &outline, place);
        if self.output.records >= GATHERED {
            self.take_over();
        }
    }

    fn take_over(&mut self) {
        let mut output = std::mem::take(&mut self.output);
        for (topic, run) in output.queues() {
            let seen = of_queue(&mut self.topics, topic, run.queue_id());
            for range in run.ranges().filter_map(|(from, units)| MisorderedRange::of_units(from, units)) {
                self.gaps += usize::from(seen.add(range, self.gaps < MOST_GAPS));
            }
        }
        for (topic, queue_id, units) in output.batches() {
            let seen = of_queue(&mut self.topics, topic, queue_id);
            seen.batch = true;
            for unit in units {
                let mut unit = *unit;
                if let Some(Correction::Offset(offset)) = self.corrections.get(&(unit.physical_offset as u64))
                {
                    unit.base_offset = *offset;
                }
                self.gaps += usize::from(seen.add(MisorderedRange::of_batch(&unit), self.gaps < MOST_GAPS));
            }
        }
        output.begin();
        self.output = output;
    }

    /// Returns the result after the last record.
    pub(crate) fn finish(mut self) -> LogSummary {
        self.take_over();
        let mut said = LogSummary::default();
        for (topic, mut queues) in self.topics {
            for seen in queues.values_mut() {
                seen.order.finish();
            }
            for (queue_id, seen) in &queues {
                if let Some(edge) = seen.edge {
                    said.edges.entry(topic.to_string()).or_default().insert(*queue_id, edge);
                }
                let lost = |&(from, to): &(i64, i64)| LostOffsets {
                    topic: topic.to_string(),
                    queue_id: *queue_id,
                    from,
                    to,
                };
                said.missing.extend(seen.claimed.gaps().iter().map(lost));
                // A batch queue cannot hold a second record for an offset.
                let counts = |misfit: &&MisorderedRecords| seen.batch || misfit.is_wrong();
                let misfits: Vec<MisorderedRecords> =
                    seen.order.misfits().iter().filter(counts).copied().collect();
                if !misfits.is_empty() {
                    let elsewhere = elsewhere(&queues, *queue_id, &misfits);
                    let (topic, queue_id, batch) = (topic.clone(), *queue_id, seen.batch);
                    said.contradictions.push(Contradiction { topic, queue_id, batch, misfits, elsewhere });
                }
            }
        }
        said
    }
}

/// Returns the other queue in which one of `misfits` fits, if only one queue fits.
fn elsewhere(queues: &BTreeMap<i32, QueueState>, own: i32, misfits: &[MisorderedRecords]) -> Vec<(u64, i32)> {
    let only = |misfit: &MisorderedRecords| {
        let MisorderedRange { from, first, records: 1, .. } = misfit.range else { return None };
        let others = queues.iter().filter(|(queue_id, _)| **queue_id != own);
        let mut found = others.filter(|(_, seen)| seen.order.has_place_for(from, first));
        let (queue_id, _) = found.next()?;
        found.next().is_none().then_some((first, *queue_id))
    };
    misfits.iter().filter_map(only).collect()
}

fn of_queue<'a>(
    topics: &'a mut BTreeMap<Box<str>, BTreeMap<i32, QueueState>>,
    topic: &str,
    queue_id: i32,
) -> &'a mut QueueState {
    // No copy of the name for known topics, which is the usual case.
    if !topics.contains_key(topic) {
        topics.insert(topic.into(), BTreeMap::new());
    }
    topics.entry(topic.into()).or_default().entry(queue_id).or_default()
}
