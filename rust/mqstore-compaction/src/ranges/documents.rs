//! The steps as plain values and as JSON.

use serde::{Deserialize, Serialize};

use super::super::job::documents::{QueueTask, TaskResult};
use crate::job::source::OffsetRange;
use crate::json::{Document, malformed};
use mqstore_base::error::StoreError;

/// Maximum number of shares of the keys.
pub(super) const MOST_SHARES: u32 = 256;

/// The work of one worker in one of three rounds.
///
/// Any number of processes that see the directory work on a round. They exchange only files and short answers. Only the
/// driver starts the next round:
///
/// ```text
/// scan    a range of the queue     ->  keys-000 keys-001 ...   its keys, by share: equal keys, equal share
///                                      records                 see `step_files`
/// decide  a share of the keys      ->  superseded              a bit per keyed record: a later one has its key
/// (next)  the driver               :   the start of each pair of files of the result
/// copy    some pairs of files      ->  log/ cq/                the survivors, with the same bytes as from one task
/// (next)  the driver               :   all pairs in one folder: the result of the queue
/// ```
///
/// A scan reads its range along the consume queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "lowercase")]
pub(crate) enum CompactionStep {
    /// Compacts the complete queue; see [`crate::run_task`].
    Whole(QueueTask),
    /// Reads a range of the queue and splits its keys into shares.
    Scan(Scan),
    /// Decides which records of a share are superseded.
    Decide(Decide),
    /// Writes some files of the result.
    Copy(CopyRange),
}

/// The action after a round of steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NextSteps {
    /// Start another round.
    Steps(Vec<CompactionStep>),
    /// Use the result of the queue.
    Done(Box<TaskResult>),
}

/// The values that all steps of a queue share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RangePlan {
    pub(super) task: QueueTask,
    /// Planned number of workers.
    pub(super) parts: u32,
    pub(super) shares: u32,
    /// The counts of the complete queue, after the first round.
    pub(super) total: Option<TaskResult>,
}

/// See [`CompactionStep::Scan`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Scan {
    pub(super) plan: RangePlan,
    pub(super) range: OffsetRange,
}

/// A scanned range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ScannedRange {
    /// The folder with its files.
    pub(super) staging: String,
    /// Number of its records, and of those with a key.
    pub(super) records: u64,
    pub(super) keyed: u64,
}

/// See [`CompactionStep::Decide`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Decide {
    pub(super) plan: RangePlan,
    pub(super) share: u32,
    pub(super) pieces: Vec<ScannedRange>,
}

/// See [`CompactionStep::Copy`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CopyRange {
    pub(super) plan: RangePlan,
    pub(super) range: OffsetRange,
    /// Number of records of the range, of those with a key, and of keyed records before it.
    pub(super) records: u64,
    pub(super) keyed: u64,
    pub(super) first_ordinal: u64,
    /// The number of the first pair to write, the number of pairs, and whether another one follows.
    pub(super) first_pair: u64,
    pub(super) pairs: u64,
    pub(super) another_follows: bool,
    /// The folders with the decisions about the shares.
    pub(super) verdicts: Vec<String>,
}

impl RangePlan {
    pub(super) fn total(&self) -> Result<&TaskResult, StoreError> {
        self.total.as_ref().ok_or_else(|| malformed(CompactionStep::WHAT, "has no total"))
    }

    fn validate(&self) -> Result<(), StoreError> {
        if !(1..=MOST_SHARES).contains(&self.shares) {
            return Err(malformed(CompactionStep::WHAT, "has an invalid number of shares"));
        }
        self.total.as_ref().map_or(Ok(()), TaskResult::validate)
    }
}

impl CompactionStep {
    /// The compaction of the queue to which the step belongs.
    pub(crate) fn task(&self) -> &QueueTask {
        match self {
            Self::Whole(task) => task,
            Self::Scan(Scan { plan, .. })
            | Self::Decide(Decide { plan, .. })
            | Self::Copy(CopyRange { plan, .. }) => &plan.task,
        }
    }
}

impl Document for CompactionStep {
    const WHAT: &'static str = "compaction step";

    fn validate(&self) -> Result<(), StoreError> {
        self.task().validate()?;
        match self {
            Self::Whole(_) => Ok(()),
            Self::Scan(Scan { plan, range }) | Self::Copy(CopyRange { plan, range, .. }) => {
                plan.validate()?;
                if (0..=range.to).contains(&range.from) {
                    return Ok(());
                }
                Err(malformed(Self::WHAT, &format!("has the range {} to {}", range.from, range.to)))
            }
            Self::Decide(Decide { plan, pieces, .. }) => {
                plan.validate()?;
                let Some(wrong) = pieces.iter().find(|piece| piece.keyed > piece.records) else {
                    return Ok(());
                };
                let reason = format!("has a range with {} keys in {} records", wrong.keyed, wrong.records);
                Err(malformed(Self::WHAT, &reason))
            }
        }
    }
}
