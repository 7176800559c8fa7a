//! The steps, as plain values and as JSON.

use serde::{Deserialize, Serialize};

use super::super::job::documents::{QueueTask, TaskResult};
use super::super::job::json::{Document, malformed};
use super::super::read::source::Stretch;
use mqstore_base::error::StoreError;

/// The most shares that the keys are divided into.
pub(super) const MOST_SHARES: u32 = 256;

/// What one worker does, in one of three rounds.
///
/// Any number of processes that see the directory work on a round. Only files and short answers pass between them. The
/// driver alone starts the next round:
///
/// ```text
/// scan    a range of the queue     ->  keys-000 keys-001 ...   its keys, by share: equal keys, equal share
///                                      records                 see `step_files`
/// decide  a share of the keys      ->  superseded              a bit per keyed record: a later one has its key
/// (next)  the driver               :   where each pair of files of the result begins
/// copy    some pairs of files      ->  log/ cq/                the survivors, byte for byte as one task writes them
/// (next)  the driver               :   all pairs in one folder: the result of the queue
/// ```
///
/// A scan reads its range along the consume queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "lowercase")]
pub(crate) enum Step {
    /// The whole queue; see [`crate::run_task`].
    Whole(QueueTask),
    /// A stretch of it is read, and its keys shared out.
    Scan(Scan),
    /// It is decided which records of a share are superseded.
    Decide(Decide),
    /// Some files of the result are written.
    Copy(Copy),
}

/// What follows a round of steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Another round.
    Steps(Vec<Step>),
    /// The result of the queue.
    Done(Box<TaskResult>),
}

/// What all steps of a queue share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RangePlan {
    pub(super) task: QueueTask,
    /// How many workers there are to be.
    pub(super) parts: u32,
    pub(super) shares: u32,
    /// What is known of the whole queue by now.
    pub(super) total: Option<TaskResult>,
}

/// See [`Step::Scan`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Scan {
    pub(super) plan: RangePlan,
    pub(super) stretch: Stretch,
}

/// A stretch that was scanned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ScannedRange {
    /// The folder with its files.
    pub(super) staging: String,
    /// Its records, and those of them that have a key.
    pub(super) records: u64,
    pub(super) keyed: u64,
}

/// See [`Step::Decide`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Decide {
    pub(super) plan: RangePlan,
    pub(super) share: u32,
    pub(super) pieces: Vec<ScannedRange>,
}

/// See [`Step::Copy`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Copy {
    pub(super) plan: RangePlan,
    pub(super) stretch: Stretch,
    /// The records of the stretch, those of them that have a key, and the keyed records before it.
    pub(super) records: u64,
    pub(super) keyed: u64,
    pub(super) first_ordinal: u64,
    /// The number of the first pair to write, how many, and whether another one follows.
    pub(super) first_pair: u64,
    pub(super) pairs: u64,
    pub(super) another_follows: bool,
    /// The folders with the verdicts about the shares.
    pub(super) verdicts: Vec<String>,
}

impl RangePlan {
    pub(super) fn total(&self) -> Result<&TaskResult, StoreError> {
        self.total.as_ref().ok_or_else(|| malformed(Step::WHAT, "has no total"))
    }

    fn validate(&self) -> Result<(), StoreError> {
        if !(1..=MOST_SHARES).contains(&self.shares) {
            return Err(malformed(Step::WHAT, "has a number of shares that cannot be"));
        }
        self.total.as_ref().map_or(Ok(()), TaskResult::validate)
    }
}

impl Step {
    /// The compaction of the queue that it is a part of.
    pub(crate) fn task(&self) -> &QueueTask {
        match self {
            Self::Whole(task) => task,
            Self::Scan(Scan { plan, .. })
            | Self::Decide(Decide { plan, .. })
            | Self::Copy(Copy { plan, .. }) => &plan.task,
        }
    }
}

impl Document for Step {
    const WHAT: &'static str = "compaction step";

    fn validate(&self) -> Result<(), StoreError> {
        self.task().validate()?;
        match self {
            Self::Whole(_) => Ok(()),
            Self::Scan(Scan { plan, stretch }) | Self::Copy(Copy { plan, stretch, .. }) => {
                plan.validate()?;
                if (0..=stretch.to).contains(&stretch.from) {
                    return Ok(());
                }
                Err(malformed(Self::WHAT, &format!("has the stretch {} to {}", stretch.from, stretch.to)))
            }
            Self::Decide(Decide { plan, pieces, .. }) => {
                plan.validate()?;
                let Some(wrong) = pieces.iter().find(|piece| piece.keyed > piece.records) else {
                    return Ok(());
                };
                let reason = format!("has a stretch with {} keys in {} records", wrong.keyed, wrong.records);
                Err(malformed(Self::WHAT, &reason))
            }
        }
    }
}
