//! Decides which records survive a compaction.
//!
//! The newest record of each key survives. A tombstone, which has no body, survives as long as the plan says that a slow
//! reader may need it. A value that has expired does not, and no reader needs a trace of it: the table of a reader
//! expires it, too. The key is the complete KEYS text. Records with blank KEYS are counted, and dropped as in RocketMQ
//! unless the task keeps them.
//!
//! Source: `CompactionLog#shouldRetainMsg`.

use mqstore_format::RecordView;

use super::documents::QueueTask;
use super::newest_by_key::NewestBits;
use super::options::Keyless;

/// The kind of a record, as far as the rule for survivors depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordKind {
    /// A record with a body.
    Value,
    /// A value that has expired.
    Expired,
    /// A record without a body.
    Tombstone,
}

impl RecordKind {
    pub(crate) fn of(record: &RecordView<'_>, task: &QueueTask) -> Self {
        if record.body.is_empty() {
            Self::Tombstone
        } else if task.expired_to_ms.is_some_and(|to_ms| record.store_timestamp <= to_ms) {
            Self::Expired
        } else {
            Self::Value
        }
    }
}

/// The decision about a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is a survivor.
    Keep,
    /// It is superseded, an old tombstone, or has no key.
    Drop,
    /// It is the newest value of its key, and has expired.
    Expired,
}

/// The rule that selects the survivors.
pub(crate) struct SurvivorRule<'a> {
    pub(crate) task: &'a QueueTask,
    pub(crate) newest: &'a NewestBits,
}

impl SurvivorRule<'_> {
    /// Decides about a record. `ordinal` is that of its key, if it has one.
    pub(crate) fn decide(&self, ordinal: Option<u64>, queue_offset: i64, kind: RecordKind) -> Verdict {
        let keeps = match ordinal {
            None => self.task.keyless == Keyless::Keep,
            Some(ordinal) if !self.newest.is_newest(ordinal) => false,
            Some(_) => match kind {
                RecordKind::Value => true,
                RecordKind::Expired => return Verdict::Expired,
                RecordKind::Tombstone => queue_offset >= self.task.tombstones_below,
            },
        };
        if keeps { Verdict::Keep } else { Verdict::Drop }
    }
}
