//! Plans, steps and answers, as plain values and as JSON.
//!
//! They pass through other processes and are untrusted: invalid JSON or another version is an error.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::verify::checks::VerifyBounds;
use mqstore_compaction::Document;
use mqstore_log::index::EntryLocation;

/// The values that all steps of a job share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JobSettings {
    pub(super) root: PathBuf,
    /// The job's folder, which contains the folders of the attempts.
    pub(super) job: PathBuf,
    pub(super) bounds: VerifyBounds,
}

impl JobSettings {
    pub(super) fn new(root: &Path, job: &Path, bounds: VerifyBounds) -> Self {
        Self { root: root.to_path_buf(), job: job.to_path_buf(), bounds }
    }
}

/// The split of a check of one store into steps for several workers.
///
/// ```text
/// plan       the pieces of the log that one process would walk  ->  ranges, and the place in the index for each
/// log_range  walks its pieces and joins them                    ->  findings   parts, and the damage between them
/// index      some index files                                   ->  findings   wrong chains and headers
/// merge      the parts in log order, then queues, configuration, ...               ->  the report
/// ```
///
/// The findings of a range depend on earlier ranges only in the place of its first record. The worker takes the first
/// intact record, as for any piece. If the range before it ends at another log offset, the bytes were no record of the
/// log but part of a message. Then `merge_report` walks this range itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyPlan {
    pub(super) settled: JobSettings,
    /// The committed offsets, read before any other file.
    pub(super) positions: StepAnswer,
    pub(super) ranges: Vec<LogRange>,
    /// Names of the index files of each index step, and their bytes.
    pub(super) index: Vec<(Vec<String>, u64)>,
}

/// A range of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LogRange {
    /// Bytes that contain data: from, to. No run crosses a segment boundary.
    pub(super) runs: Vec<(u64, u64)>,
    /// End of the range.
    pub(super) end: u64,
    /// The first index entry for a record in the range or after it, if there is one.
    pub(super) entries: Option<EntryLocation>,
}

impl LogRange {
    pub(super) fn start(&self) -> u64 {
        self.runs.first().map_or(self.end, |(start, _)| *start)
    }

    /// Bytes of data.
    pub(super) fn bytes(&self) -> u64 {
        self.runs.iter().map(|(from, to)| to.saturating_sub(*from)).fold(0, u64::saturating_add)
    }

    /// Whether the range extends to the end of the log.
    pub(super) fn is_last(&self) -> bool {
        self.end == u64::MAX
    }
}

/// The work of one worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyStep {
    pub(super) settled: JobSettings,
    pub(super) work: VerifyWork,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum VerifyWork {
    Range(LogRange),
    Index { files: Vec<String>, bytes: u64 },
}

/// The result of a step: a file in a folder of the job, its length and its checksum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepAnswer {
    /// The folder of the attempt.
    pub(super) folder: String,
    pub(super) bytes: u64,
    pub(super) checksum: u32,
}

impl VerifyPlan {
    /// Returns the steps, in the order in which [`super::merge_report`] requires their answers.
    pub fn steps(&self) -> Vec<VerifyStep> {
        let step = |work| VerifyStep { settled: self.settled.clone(), work };
        let ranges = self.ranges.iter().map(|range| step(VerifyWork::Range(range.clone())));
        let index = self.index.iter().cloned();
        ranges.chain(index.map(|(files, bytes)| step(VerifyWork::Index { files, bytes }))).collect()
    }

    /// Whether a writer had the store open. Then a problem counts only if [`super::CONFIRMATIONS`] further checks find
    /// it too.
    pub fn is_next_to_writer(&self) -> bool {
        self.settled.bounds.beside
    }

    /// The store.
    pub fn root(&self) -> &Path {
        &self.settled.root
    }
}

impl VerifyStep {
    /// The store.
    pub fn root(&self) -> &Path {
        &self.settled.root
    }

    /// Approximate number of bytes that the step reads.
    pub fn bytes(&self) -> u64 {
        match &self.work {
            VerifyWork::Range(range) => range.bytes(),
            VerifyWork::Index { bytes, .. } => *bytes,
        }
    }
}

impl Document for VerifyPlan {
    const WHAT: &'static str = "verification plan";
}

impl Document for VerifyStep {
    const WHAT: &'static str = "verification step";
}

impl Document for StepAnswer {
    const WHAT: &'static str = "verification answer";
}
