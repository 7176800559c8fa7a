//! Groups that keep segments and make no progress, for the option `group_timeout`.
//!
//! The time of a group in a topic starts when it first keeps a due segment. Progress of the group, a commit or a new
//! lease, starts it again. So it ends only for a group that finishes nothing for the whole time, and never early: a
//! pass that does not see the group starts it later.
//!
//! Owns `mqstore/groups`, one line for each group and topic: `<epoch ms> <progress> <topic>@<group>`. It is replaced in
//! one step. If it is lost or damaged, the times start again. RocketMQ has no such file.

use std::collections::BTreeMap;

use super::holders::{HoldingGroup, SegmentHolder, UnfinishedMessages};
use super::plan::KnownHolders;
use mqstore_base::error::StoreError;
use mqstore_base::options::{RetentionPolicy, StoreOptions};
use mqstore_base::store_files::StoreFiles;

/// Maximum bytes of the file that are read.
const MOST_BYTES: u64 = 64 << 20;

/// The times of groups, by `topic@group`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StalledGroups {
    known: BTreeMap<String, Stall>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stall {
    since_ms: i64,
    progress: i64,
}

impl StalledGroups {
    /// Reads the file; a missing or damaged part counts as empty.
    pub(super) fn load(files: &StoreFiles) -> Self {
        let bytes = files.vfs.read_file(&files.stalled_groups(), MOST_BYTES).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let line = |line: &str| {
            let mut parts = line.splitn(3, ' ');
            let (since_ms, progress) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
            Some((parts.next()?.to_owned(), Stall { since_ms, progress }))
        };
        Self { known: text.lines().filter_map(line).collect() }
    }

    /// Returns the groups that still count at `now_ms`, of `groups` that keep due segments, and forgets all others.
    pub(super) fn counting(
        &mut self,
        groups: Vec<HoldingGroup>,
        now_ms: i64,
        timeout_ms: u64,
    ) -> Vec<SegmentHolder> {
        let before = std::mem::take(&mut self.known);
        let mut counting = Vec::new();
        for HoldingGroup { holder, progress } in groups {
            let key = format!("{}@{}", holder.topic, holder.group.as_deref().unwrap_or_default());
            let stall = before.get(&key).copied().filter(|stall| stall.progress == progress);
            // After a step back of the clock the time starts again.
            let stall = stall.filter(|stall| stall.since_ms <= now_ms);
            let stall = stall.unwrap_or(Stall { since_ms: now_ms, progress });
            self.known.insert(key, stall);
            let waited_ms = u64::try_from(now_ms.saturating_sub(stall.since_ms)).unwrap_or(0);
            if waited_ms < timeout_ms {
                counting.push(holder);
            }
        }
        counting
    }

    /// Writes the file.
    pub(super) fn save(&self, files: &StoreFiles) -> Result<(), StoreError> {
        let line = |(key, stall): (&String, &Stall)| format!("{} {} {key}\n", stall.since_ms, stall.progress);
        let text: String = self.known.iter().filter(|(key, _)| !key.contains('\n')).map(line).collect();
        files.replace_file(&files.stalled_groups(), text.as_bytes(), "writing the times of stalled groups")
    }
}

/// Returns the messages that keep segments by the rules of `options`. `stalled` learns which groups keep the first due
/// segment, which ends at `due_end`.
pub(super) fn known_holders(
    options: &StoreOptions,
    found: UnfinishedMessages,
    stalled: &mut StalledGroups,
    (due_end, now_ms): (u64, i64),
) -> KnownHolders {
    let UnfinishedMessages { groups, deliveries: mut holders, known_to } = found;
    if options.retention_policy == RetentionPolicy::Finished {
        let (keeping, others): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|group| group.holder.log_offset < due_end);
        match options.group_timeout_ms {
            Some(timeout_ms) => holders.extend(stalled.counting(keeping, now_ms, timeout_ms)),
            None => holders.extend(keeping.into_iter().map(|group| group.holder)),
        }
        holders.extend(others.into_iter().map(|group| group.holder));
    }
    holders.sort_by_key(|holder| holder.log_offset);
    KnownHolders { holders, known_to }
}
