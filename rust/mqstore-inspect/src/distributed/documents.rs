//! Plans, steps and answers, as plain values and as JSON.
//!
//! They travel through other processes and are untrusted: what does not parse, or is of another version, is an error.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::verify::checks::VerifyBounds;
use mqstore_compaction::Document;
use mqstore_log::index::EntryLocation;

/// What all steps of a job go by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JobSettings {
    pub(super) root: PathBuf,
    /// The folder that the attempts have theirs in.
    pub(super) job: PathBuf,
    pub(super) bounds: VerifyBounds,
}

impl JobSettings {
    pub(super) fn new(root: &Path, job: &Path, bounds: VerifyBounds) -> Self {
        Self { root: root.to_path_buf(), job: job.to_path_buf(), bounds }
    }
}

/// How the check of one store is divided among workers.
///
/// ```text
/// plan       the pieces of the log that one process would walk  ->  ranges of it, and where the index is at each
/// log_range  walks its pieces and joins them                    ->  findings   parts, and the damage between them
/// index      some index files                                   ->  findings   wrong chains and headers
/// merge      the parts in the order of the log, then queues, configuration, ...    ->  the report
/// ```
///
/// The findings of a range depend on earlier ranges only in where its first record begins. The worker takes the first
/// whole record, as for any piece. If the range before it ends elsewhere, that was no record (a message that looks like
/// a piece of the log), and `merge_report` walks this range itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyPlan {
    pub(super) settled: JobSettings,
    /// The positions of consumers, as they were before anything else was looked at.
    pub(super) positions: StepAnswer,
    pub(super) stretches: Vec<Stretch>,
    /// Names of index files for each step that looks at some, and bytes of them.
    pub(super) index: Vec<(Vec<String>, u64)>,
}

/// A stretch of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stretch {
    /// Bytes that hold data, from and to; none of the runs goes from one segment to the next.
    pub(super) runs: Vec<(u64, u64)>,
    /// Where it ends.
    pub(super) end: u64,
    /// The first entry of the index for a record in it or behind it, if there is one.
    pub(super) entries: Option<EntryLocation>,
}

impl Stretch {
    pub(super) fn start(&self) -> u64 {
        self.runs.first().map_or(self.end, |(start, _)| *start)
    }

    /// Bytes of data.
    pub(super) fn bytes(&self) -> u64 {
        self.runs.iter().map(|(from, to)| to.saturating_sub(*from)).fold(0, u64::saturating_add)
    }

    /// Whether the rest of the log belongs to it.
    pub(super) fn is_last(&self) -> bool {
        self.end == u64::MAX
    }
}

/// What one worker does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub(super) settled: JobSettings,
    pub(super) work: Work,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Work {
    Stretch(Stretch),
    Index { files: Vec<String>, bytes: u64 },
}

/// What a step left: a file in a folder of the job, its length and its checksum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepAnswer {
    /// The folder of the attempt.
    pub(super) folder: String,
    pub(super) bytes: u64,
    pub(super) checksum: u32,
}

impl VerifyPlan {
    /// What workers do, in the order in which [`super::merge_report`] wants their answers.
    pub fn steps(&self) -> Vec<Step> {
        let step = |work| Step { settled: self.settled.clone(), work };
        let stretches = self.stretches.iter().map(|stretch| step(Work::Stretch(stretch.clone())));
        let index = self.index.iter().cloned();
        stretches.chain(index.map(|(files, bytes)| step(Work::Index { files, bytes }))).collect()
    }

    /// The store.
    pub fn root(&self) -> &Path {
        &self.settled.root
    }
}

impl Step {
    /// The store.
    pub fn root(&self) -> &Path {
        &self.settled.root
    }

    /// Bytes that it reads, about.
    pub fn bytes(&self) -> u64 {
        match &self.work {
            Work::Stretch(stretch) => stretch.bytes(),
            Work::Index { bytes, .. } => *bytes,
        }
    }
}

impl Document for VerifyPlan {
    const WHAT: &'static str = "verification plan";
}

impl Document for Step {
    const WHAT: &'static str = "verification step";
}

impl Document for StepAnswer {
    const WHAT: &'static str = "verification answer";
}
