//! Compares the committed offsets in the metadata log and in a broker's `config/` with the queues.
//!
//! Owns the comparison, which a repair uses too. A group cannot have consumed messages that a queue does not have. An
//! offset after the end of a queue means that the queue and the log lost their newest part.
//!
//! ```text
//! mqstore/meta, config/consumerOffset.json,             "topic@group" -> queue -> next offset
//! lmqConsumerOffset.json
//! config/delayOffset.json                               level -> next offset of SCHEDULE_TOPIC_XXXX, queue level - 1
//! ```
//!
//! Queues without files are skipped. Files that do not parse are skipped too; another check reports them. An offset
//! before the begin of a queue is no problem: the messages expired before the group read them.
//!
//! Source: `ConsumerOffsetManager`, `ScheduleMessageService#correctDelayOffset`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mqstore_format::json::{ConsumerOffsets, DelayOffsets, QueueOffsets};
use mqstore_format::names::DELAY_OFFSET_FILE;
use mqstore_format::{DelayLevels, SCHEDULE_TOPIC};
use serde::{Deserialize, Serialize};

use crate::problem::{ProblemKind, VerifyReport};
use mqstore_base::store_files::{CONFIG_LIMIT_BYTES, StoreFiles};
use mqstore_meta::{newest_file, read_log};

/// One committed offset.
#[derive(Debug, Serialize, Deserialize)]
struct StoredOffset {
    path: PathBuf,
    /// Owner of the offset, in words.
    owner: String,
    topic: String,
    queue_id: i32,
    offset: i64,
    kind: ProblemKind,
}

/// All committed offsets, read before any other file: a running writer advances offsets and queues.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct StoredOffsets(Vec<StoredOffset>);

impl StoredOffsets {
    pub(crate) fn load(files: &StoreFiles) -> Self {
        let mut found = Vec::new();
        let path = newest_file(files);
        // Another check reports the parts that cannot be read.
        let kept = path.and_then(|path| Some((path, read_log(files, &mut Vec::new()).ok()?)));
        if let Some((path, state)) = kept {
            push_consumers(&mut found, &path, &state.into_offsets());
        }
        for name in ["consumerOffset.json", "lmqConsumerOffset.json"] {
            let path = files.config().join(name);
            let Ok(text) = files.vfs.read_file(&path, CONFIG_LIMIT_BYTES) else { continue };
            let Ok(offsets) = ConsumerOffsets::parse(&text) else { continue };
            push_consumers(&mut found, &path, &offsets.table);
        }
        let path = files.config().join(DELAY_OFFSET_FILE);
        let text = files.vfs.read_file(&path, CONFIG_LIMIT_BYTES).unwrap_or_default();
        let delays = DelayOffsets::parse(&text).map(|delays| delays.table).unwrap_or_default();
        found.extend(delays.into_iter().map(|(level, offset)| StoredOffset {
            path: path.clone(),
            owner: format!("delay level {level}"),
            topic: SCHEDULE_TOPIC.to_owned(),
            queue_id: DelayLevels::queue_id(level),
            offset,
            kind: ProblemKind::DelayOffsetAhead,
        }));
        Self(found)
    }

    /// Reports offsets after the ends of their queues, as `end` returns them.
    pub(super) fn report(&self, end: impl Fn(&str, i32) -> Option<i64>, report: &mut VerifyReport) {
        for StoredOffset { path, owner, topic, queue_id, offset, kind } in &self.0 {
            if let Some(end) = end(topic, *queue_id).filter(|end| offset > end) {
                let detail =
                    format!("{owner} is at offset {offset} of {topic}/{queue_id}, which ends at {end}");
                report.add(*kind, path, None, detail);
            }
        }
    }
}

fn push_consumers(found: &mut Vec<StoredOffset>, path: &Path, table: &BTreeMap<String, QueueOffsets>) {
    for (key, queues) in table {
        let Some((topic, group)) = ConsumerOffsets::split_key(key) else { continue };
        found.extend(queues.iter().map(|(queue_id, offset)| StoredOffset {
            path: path.to_path_buf(),
            owner: format!("group {group}"),
            topic: topic.to_owned(),
            queue_id: *queue_id,
            offset: *offset,
            kind: ProblemKind::ConsumerOffsetAhead,
        }));
    }
}
