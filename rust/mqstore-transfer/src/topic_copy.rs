//! The copy of topics in any number of calls, and its state in a folder.
//!
//! ```text
//! state.json     {"source": "...", "target": "...", "topics": [...], "position": 4711, "limit": 8150, "calls": 2,
//!                 "runs": {"orders/0": [[17, 0, 100]]}, "ends": {"orders/0": 117}, "first": {"orders/0": 17},
//!                 "gaps": {"orders/0": []}}
//! 000001.jsonl   old and new position of each message, for each call: see `store_copy`
//! ```
//!
//! - `position`: log offset of the source up to which the topics are copied.
//! - `limit`: where the call that runs or was interrupted ends; null between calls.
//! - `calls`: number of complete calls.
//! - `runs`, `ends`, `first`, `gaps`: see `positions`. They translate the offsets of groups.
//!
//! Each call copies the records between `position` and the end of the log, so it resumes like one copy. The state is
//! replaced in one step when the file of positions has its name, which is durable before. A call at a time, with a lock of
//! the caller.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_base::error::{IoContext, StoreError};
use mqstore_io::{Access, Vfs, commit, switch};
use mqstore_results::partial::remove_state;
use serde::{Deserialize, Serialize};

use crate::positions::QueuePositions;

/// Maximum bytes of a state: more than ten million runs.
const MOST_STATE: u64 = 1 << 30;

/// Bytes of one read of a file of positions.
const READ_BYTES: u64 = 1 << 20;

const ACTION: &str = "writing the state of a copy";

#[derive(Clone, Debug, Serialize, Deserialize)]
struct TopicCopyState {
    source: String,
    target: String,
    topics: Vec<String>,
    // Null, but never missing.
    #[serde(deserialize_with = "Option::deserialize")]
    position: Option<u64>,
    #[serde(deserialize_with = "Option::deserialize")]
    limit: Option<u64>,
    calls: u64,
    #[serde(flatten)]
    positions: QueuePositions,
}

/// A line of a file of positions.
#[derive(Deserialize)]
struct PositionLine<'a> {
    #[serde(borrow)]
    topic: Cow<'a, str>,
    queue_id: i32,
    queue_offset: i64,
    new_queue_offset: i64,
    #[serde(default = "one")]
    messages: i64,
}

fn one() -> i64 {
    1
}

/// A gap in a copied queue: topic, queue, and first and end of the old offsets.
pub type QueueGap = (String, i32, i64, i64);

/// The state of a copy of topics; see the header of this module.
pub struct TopicCopy {
    vfs: Arc<dyn Vfs>,
    folder: PathBuf,
    state: TopicCopyState,
}

impl TopicCopy {
    /// Loads the state in `folder`, which exists. If the last call was interrupted between its last two steps, ends it.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] for a state that cannot be used, [`StoreError::InvalidOption`] for that of another
    /// copy; those of the system.
    pub fn open(
        vfs: Arc<dyn Vfs>,
        folder: &Path,
        source: &str,
        target: &str,
        topics: &[String],
    ) -> Result<Self, StoreError> {
        let new = TopicCopyState {
            source: source.to_owned(),
            target: target.to_owned(),
            topics: topics.to_vec(),
            position: None,
            limit: None,
            calls: 0,
            positions: QueuePositions::default(),
        };
        let folder = folder.to_path_buf();
        let mut copy = match load(&*vfs, &folder.join("state.json"))? {
            None => Self { vfs, folder, state: new },
            Some(state) => Self { vfs, folder, state },
        };
        let known = &copy.state;
        if (known.source.as_str(), known.target.as_str(), known.topics.as_slice()) != (source, target, topics)
        {
            let topics: Vec<String> = known.topics.iter().map(|topic| format!("'{topic}'")).collect();
            let reason = format!(
                "{} belongs to a copy of [{}] from {} to {}; choose another folder",
                copy.folder.display(),
                topics.join(", "),
                known.source,
                known.target
            );
            return Err(StoreError::InvalidOption { option: "mapping", reason });
        }
        if copy.state.limit.is_some() && copy.vfs.stat(&copy.mapping()).is_ok() {
            // The name of the file must not be lost after the state counts the call.
            let names = || commit::sync_names(&*copy.vfs, &copy.folder);
            switch::step("transfer.sync_mapping_name", names).at(&copy.folder, ACTION)?;
            remove_state(&*copy.vfs, &copy.mapping()).at(&copy.folder, ACTION)?;
            copy.finish()?;
        }
        Ok(copy)
    }

    /// Returns the log offset of the source up to which the topics are copied.
    pub fn position(&self) -> Option<u64> {
        self.state.position
    }

    /// Returns the number of complete calls.
    pub fn calls(&self) -> u64 {
        self.state.calls
    }

    /// Returns the file of positions of the call that runs.
    pub fn mapping(&self) -> PathBuf {
        self.folder.join(format!("{:06}.jsonl", self.state.calls + 1))
    }

    /// Begins a call that copies up to a log offset of the source. `first` are the first offsets of the log in each queue
    /// named `topic/queue`, before the end of the call was known; `None` for a call that was interrupted.
    ///
    /// # Errors
    /// Those of the system.
    pub fn begin(&mut self, limit: u64, first: Option<BTreeMap<String, i64>>) -> Result<(), StoreError> {
        if self.state.calls == 0 {
            // Without its state, a copy would begin again.
            let names = || commit::sync_names(&*self.vfs, &self.folder);
            switch::step("transfer.sync_folder_names", names).at(&self.folder, ACTION)?;
        }
        if let Some(first) = first {
            self.state.positions.first = first;
        }
        self.state.limit = Some(limit);
        self.save()
    }

    /// Counts the call as complete: its messages are in the target, and its file has its name.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] for a damaged file of positions; those of the system.
    pub fn finish(&mut self) -> Result<(), StoreError> {
        self.read_positions()?;
        self.state.positions.reach_first();
        self.state.position = self.state.limit.take();
        self.state.calls += 1;
        self.save()
    }

    /// Returns the offset in the target of the first copied message at or after an offset of the source, and whether the
    /// copy lacks messages at or after it; `None` for a queue without copied messages.
    pub fn translate(&self, topic: &str, queue_id: i32, offset: i64) -> Option<(i64, bool)> {
        self.state.positions.translate(&format!("{topic}/{queue_id}"), offset)
    }

    /// Returns the messages that are not in the copy.
    pub fn gaps(&self) -> Vec<QueueGap> {
        let mut found = Vec::new();
        for (queue, gaps) in &self.state.positions.gaps {
            let Some((topic, Ok(queue_id))) = queue.rsplit_once('/').map(|(topic, id)| (topic, id.parse()))
            else {
                continue;
            };
            found.extend(gaps.iter().map(|(first, end)| (topic.to_owned(), queue_id, *first, *end)));
        }
        found
    }

    fn read_positions(&mut self) -> Result<(), StoreError> {
        const ACTION: &str = "reading the positions of a copy";
        let path = self.mapping();
        let file = self.vfs.open(&path, Access::Read).at(&path, ACTION)?;
        let len = file.len().at(&path, ACTION)?;
        let (mut at, mut lines) = (0, Vec::new());
        while at < len {
            let start = lines.len();
            lines.resize(start + READ_BYTES.min(len - at) as usize, 0);
            let fresh = lines.get_mut(start..).unwrap_or_default();
            file.read_exact_at(fresh, at).at(&path, ACTION)?;
            let first = at - start as u64;
            at += fresh.len() as u64;
            let mut done = 0;
            for line in lines.split_inclusive(|byte| *byte == b'\n') {
                if line.last() != Some(&b'\n') && at < len {
                    break;
                }
                let row: PositionLine<'_> = serde_json::from_slice(line).map_err(|error| {
                    StoreError::corrupt(
                        &path,
                        first + done as u64,
                        format!("a position does not parse: {error}"),
                    )
                })?;
                done += line.len();
                let queue = format!("{}/{}", row.topic, row.queue_id);
                self.state.positions.add(&queue, row.queue_offset, row.new_queue_offset, row.messages);
            }
            lines.drain(..done);
        }
        Ok(())
    }

    fn save(&self) -> Result<(), StoreError> {
        let path = self.folder.join("state.json");
        let bytes = serde_json::to_vec(&self.state).map_err(std::io::Error::from);
        let saved =
            bytes.and_then(|bytes| self.vfs.write_atomic(&path, &self.folder.join("state.json.new"), &bytes));
        saved.at(&path, ACTION)
    }
}

fn load(vfs: &dyn Vfs, path: &Path) -> Result<Option<TopicCopyState>, StoreError> {
    let bytes = match vfs.read_file(path, MOST_STATE) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        bytes => bytes.at(path, "reading the state of a copy")?,
    };
    let unsupported = |reason: String| StoreError::Unsupported { path: path.to_path_buf(), reason };
    let state: serde_json::Value = serde_json::from_slice(&bytes)
        .map_err(|error| unsupported(format!("the state of a copy does not parse: {error}")))?;
    serde_json::from_value(state)
        .map(Some)
        .map_err(|_| unsupported("it is not the state of a copy of topics".to_owned()))
}
