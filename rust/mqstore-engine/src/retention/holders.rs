//! The unfinished messages that keep segments: those of consumer groups. The layer above finds delayed messages and
//! transactions.
//!
//! Consumers and work queues advance through a queue in order, and a queue has the order of the log. So one log offset
//! says what a group needs: that of its first unfinished message. A group belongs to a topic if it has an offset in one
//! of its queues; in the others it starts at the first message, as a consumer does.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

use mqstore_format::json::{ConsumerOffsets, QueueOffsets};
use mqstore_format::topic::is_system_topic;

use crate::read::view::View;
use mqstore_base::error::StoreError;
use mqstore_base::store_files::{BackupMark, StoreFiles};
use mqstore_meta::Progress;

/// Number of holders that a text names.
const NAMED: usize = 3;

/// What a message waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum HolderKind {
    /// A consumer group has not finished it.
    Group,
    /// It is delivered later.
    Delayed,
    /// Its transaction is not decided.
    Transaction,
    /// A backup does not have it yet.
    Backup,
    /// A replica does not have it yet.
    Follower,
}

impl HolderKind {
    /// Returns the stable word: `group`, `delayed`, `transaction`, `backup`, `follower`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Group => "group",
            Self::Delayed => "delayed",
            Self::Transaction => "transaction",
            Self::Backup => "backup",
            Self::Follower => "follower",
        }
    }
}

/// A message that keeps its segment and all later ones. For a backup and a replica, the first part of the log that it does
/// not have: it has no topic, and queue and offset are 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentHolder {
    /// What the message waits for.
    pub kind: HolderKind,
    /// The consumer group, the producer group of a transaction, the target of a backup, or a replica; `None` for a delayed
    /// message.
    pub group: Option<String>,
    /// The topic of the message; for a delayed message and a transaction, the topic to which it will go.
    pub topic: String,
    /// The queue; for a delayed message and a transaction, the queue in which it waits.
    pub queue_id: i32,
    /// Its offset in that queue.
    pub offset: i64,
    /// Its log offset.
    pub log_offset: u64,
}

impl SegmentHolder {
    /// A backup or a replica, called `name`, that has the log up to `log_offset`.
    pub(crate) fn copy(kind: HolderKind, name: String, log_offset: u64) -> Self {
        Self { kind, group: Some(name), topic: String::new(), queue_id: 0, offset: 0, log_offset }
    }

    /// A backup, as far as its mark says.
    pub(crate) fn backup(mark: BackupMark) -> Self {
        Self::copy(HolderKind::Backup, mark.target, mark.log_end)
    }

    /// Returns how texts name a backup or a replica.
    pub(crate) fn copy_name(&self) -> String {
        let what = if self.kind == HolderKind::Backup { "backup" } else { "replica" };
        format!("the {what} {}", self.group.as_deref().unwrap_or_default())
    }
}

impl fmt::Display for SegmentHolder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { topic, queue_id, offset, log_offset, .. } = self;
        let group = self.group.as_deref().unwrap_or_default();
        match self.kind {
            HolderKind::Group => {
                write!(
                    out,
                    "group {group} has not finished {topic} from queue {queue_id}, offset {offset} on"
                )
            }
            HolderKind::Backup | HolderKind::Follower => {
                write!(out, "{} has the log up to offset {log_offset} only", self.copy_name())
            }
            HolderKind::Delayed => write!(out, "a delayed message to {topic} waits at offset {offset}"),
            HolderKind::Transaction => {
                write!(
                    out,
                    "a transaction of {group} with a message to {topic} is undecided at offset {offset}"
                )
            }
        }
    }
}

/// Names `holders` in one text; the first few if there are many.
pub(super) fn names_of(holders: &[SegmentHolder]) -> String {
    let named: Vec<String> = holders.iter().take(NAMED).map(ToString::to_string).collect();
    let more = holders.len().saturating_sub(NAMED);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    named.join("; ") + &more
}

/// A group that keeps segments, and a number that changes when the group makes progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HoldingGroup {
    pub(crate) holder: SegmentHolder,
    pub(crate) progress: i64,
}

/// Everything that is unfinished in a part of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnfinishedMessages {
    /// The groups; each topic of a group has one.
    pub(crate) groups: Vec<HoldingGroup>,
    /// The first waiting delayed messages and half messages.
    pub(crate) deliveries: Vec<SegmentHolder>,
    /// The log offset up to which the queues were built when the offsets of groups were read.
    pub(crate) known_to: u64,
}

/// Returns the backups that keep segments now.
///
/// # Errors
/// Errors of reading their marks.
pub(crate) fn keeping_backups(files: &StoreFiles) -> Result<Vec<SegmentHolder>, StoreError> {
    let now_ms = files.clock.now_ms();
    let marks = files.backup_marks()?.into_iter().filter(|mark| now_ms < mark.until_ms);
    Ok(marks.map(SegmentHolder::backup).collect())
}

/// Finds the unfinished messages of the store.
pub(crate) type Lookup<'a> = &'a dyn Fn() -> Result<UnfinishedMessages, StoreError>;

/// Returns the first unfinished message of each group in each of its topics. `saved` has the offsets of groups by
/// `topic@group`; `progress_of` returns the progress of a group in a queue, if it consumes it message by message.
pub(crate) fn holding_groups(
    view: &dyn View,
    saved: &BTreeMap<String, QueueOffsets>,
    progress_of: &dyn Fn(&str, &str, i32) -> Option<Progress>,
) -> Result<Vec<HoldingGroup>, StoreError> {
    let mut found = Vec::new();
    for (key, offsets) in saved {
        let Some((topic, group)) = ConsumerOffsets::split_key(key) else { continue };
        // The store and brokers keep their own state there; what waits in it comes from the layer above.
        if is_system_topic(topic) {
            continue;
        }
        let mut first: Option<SegmentHolder> = None;
        for queue_id in view.queue_ids(topic)? {
            let Some((min, max)) = view.bounds(topic, queue_id)? else { continue };
            let from = offsets.get(&queue_id).copied().unwrap_or(min).max(min);
            let mut units = Vec::new();
            if from < max {
                view.units(topic, queue_id, from, 1, &mut units)?;
            }
            let Some((offset, unit)) = units.first() else { continue };
            let log_offset = u64::try_from(unit.physical_offset).unwrap_or(0);
            if first.as_ref().is_none_or(|first| log_offset < first.log_offset) {
                first = Some(SegmentHolder {
                    kind: HolderKind::Group,
                    group: Some(group.to_owned()),
                    topic: topic.to_owned(),
                    queue_id,
                    offset: (*offset).max(from),
                    log_offset,
                });
            }
        }
        if let Some(holder) = first {
            let progress = offsets.iter().map(|(queue_id, offset)| {
                let leased = progress_of(group, topic, *queue_id).map_or(0, |known| known.next());
                offset.saturating_add(leased)
            });
            found.push(HoldingGroup { progress: progress.fold(0, i64::saturating_add), holder });
        }
    }
    Ok(found)
}
