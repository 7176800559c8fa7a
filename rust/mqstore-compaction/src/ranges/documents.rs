//! The steps, as plain values and as JSON.

use serde_json::{Value, json};

use super::super::job::documents::{QueueTask, TaskResult};
use super::super::job::json::{Fields, VERSION, malformed, parse};
use super::super::read::source::Stretch;
use mqstore_base::error::StoreError;

/// What one worker does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
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
pub enum Next {
    /// Another round.
    Steps(Vec<Step>),
    /// The result of the queue.
    Done(Box<TaskResult>),
}

/// What all steps of a queue share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) task: QueueTask,
    /// How many workers there are to be.
    pub(super) parts: u32,
    pub(super) shares: u32,
    /// What is known of the whole queue by now.
    pub(super) total: Option<TaskResult>,
}

/// See [`Step::Scan`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    pub(super) plan: Plan,
    pub(super) stretch: Stretch,
}

/// A stretch that was scanned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The folder with its files.
    pub(super) staging: String,
    /// Its records, and those of them that have a key.
    pub(super) records: u64,
    pub(super) keyed: u64,
}

/// See [`Step::Decide`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decide {
    pub(super) plan: Plan,
    pub(super) share: u32,
    pub(super) pieces: Vec<Piece>,
}

/// See [`Step::Copy`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    pub(super) plan: Plan,
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

const WHAT: &str = "compaction step";

impl Plan {
    pub(super) fn total(&self) -> Result<&TaskResult, StoreError> {
        self.total.as_ref().ok_or_else(|| malformed(WHAT, "has no total"))
    }

    fn to_value(&self) -> Result<Value, StoreError> {
        Ok(json!({
            "task": self.task.to_value()?,
            "parts": self.parts,
            "shares": self.shares,
            "total": self.total.as_ref().map(TaskResult::to_value),
        }))
    }

    fn from_value(value: &Value) -> Result<Self, StoreError> {
        let fields = Fields::of(WHAT, value)?;
        let shares = fields.u32("shares")?;
        if shares == 0 || shares > super::split::MOST_SHARES {
            return Err(malformed(WHAT, "has a number of shares that cannot be"));
        }
        Ok(Self {
            task: QueueTask::from_value(fields.optional("task").unwrap_or(&Value::Null))?,
            parts: fields.u32("parts")?,
            shares,
            total: fields.optional("total").map(TaskResult::from_value).transpose()?,
        })
    }
}

impl Step {
    /// The compaction of the queue that it is a part of.
    pub fn task(&self) -> &QueueTask {
        match self {
            Self::Whole(task) => task,
            Self::Scan(Scan { plan, .. })
            | Self::Decide(Decide { plan, .. })
            | Self::Copy(Copy { plan, .. }) => &plan.task,
        }
    }

    /// As JSON.
    ///
    /// # Errors
    /// [`StoreError::InvalidOption`] for a path that JSON cannot say.
    pub fn to_json(&self) -> Result<String, StoreError> {
        let stretch = |stretch: Stretch| json!([stretch.from, stretch.to]);
        let value = match self {
            Self::Whole(task) => task.to_value()?,
            Self::Scan(scan) => json!({
                "version": VERSION,
                "step": "scan",
                "plan": scan.plan.to_value()?,
                "stretch": stretch(scan.stretch),
            }),
            Self::Decide(decide) => json!({
                "version": VERSION,
                "step": "decide",
                "plan": decide.plan.to_value()?,
                "share": decide.share,
                "pieces": decide.pieces.iter().map(Piece::to_value).collect::<Vec<_>>(),
            }),
            Self::Copy(copy) => json!({
                "version": VERSION,
                "step": "copy",
                "plan": copy.plan.to_value()?,
                "stretch": stretch(copy.stretch),
                "records": copy.records,
                "keyed": copy.keyed,
                "first_ordinal": copy.first_ordinal,
                "first_pair": copy.first_pair,
                "pairs": copy.pairs,
                "another_follows": copy.another_follows,
                "verdicts": copy.verdicts,
            }),
        };
        Ok(value.to_string())
    }

    /// From JSON; a task as in a plan is a step, too.
    ///
    /// # Errors
    /// [`StoreError::InvalidOption`] that names the field that is missing or wrong.
    pub fn from_json(text: &str) -> Result<Self, StoreError> {
        let value = parse(WHAT, text)?;
        let fields = Fields::versioned(WHAT, &value)?;
        if fields.optional("step").is_none() {
            return QueueTask::from_value(&value).map(Self::Whole);
        }
        let plan = Plan::from_value(fields.optional("plan").unwrap_or(&Value::Null))?;
        Ok(match fields.text("step")? {
            "scan" => Self::Scan(Scan { plan, stretch: stretch_from(&fields)? }),
            "decide" => Self::Decide(Decide {
                plan,
                share: fields.u32("share")?,
                pieces: fields.array("pieces")?.iter().map(Piece::from_value).collect::<Result<_, _>>()?,
            }),
            "copy" => Self::Copy(Copy {
                plan,
                stretch: stretch_from(&fields)?,
                records: fields.u64("records")?,
                keyed: fields.u64("keyed")?,
                first_ordinal: fields.u64("first_ordinal")?,
                first_pair: fields.u64("first_pair")?,
                pairs: fields.u64("pairs")?,
                another_follows: fields.flag("another_follows")?,
                verdicts: fields.texts("verdicts")?,
            }),
            other => return Err(malformed(WHAT, &format!("is of an unknown kind, {other:?}"))),
        })
    }
}

fn stretch_from(fields: &Fields<'_>) -> Result<Stretch, StoreError> {
    match fields.array("stretch")?.iter().map(Value::as_i64).collect::<Vec<_>>().as_slice() {
        [Some(from), Some(to)] if (0..=*to).contains(from) => Ok(Stretch { from: *from, to: *to }),
        _ => Err(malformed(WHAT, "has no stretch of two offsets")),
    }
}

impl Piece {
    fn to_value(&self) -> Value {
        json!({"staging": self.staging, "records": self.records, "keyed": self.keyed})
    }

    fn from_value(value: &Value) -> Result<Self, StoreError> {
        let fields = Fields::of(WHAT, value)?;
        let (records, keyed) = (fields.u64("records")?, fields.u64("keyed")?);
        if keyed > records {
            return Err(malformed(WHAT, &format!("has a stretch with {keyed} keys in {records} records")));
        }
        Ok(Self { staging: fields.text("staging")?.to_owned(), records, keyed })
    }
}
