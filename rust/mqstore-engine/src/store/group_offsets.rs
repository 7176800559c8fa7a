//! How far consumer groups have come.
//!
//! Who writes the store knows it; everybody else reads it from the metadata log, or from the JSON files of a broker.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mqstore_format::json::{ConsumerOffsets, QueueOffsets};

use super::topics::load_listed;
use super::{OpenSide, Store};
use crate::read::view::View;
use mqstore_base::error::StoreError;
use mqstore_base::store_files::{CONFIG_LIMIT_BYTES, StoreFiles};
use mqstore_meta::{Progress, read_state};

/// How far a consumer group has come in a topic, as the metadata log or `config/consumerOffset.json` has it, or
/// `config/lmqConsumerOffset.json`. Source: `ConsumerOffsetManager`, `LmqConsumerOffsetManager`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupOffsets {
    /// The group.
    pub group: String,
    /// The topic.
    pub topic: String,
    /// Its queues, ascending.
    pub queues: Vec<GroupOffset>,
}

/// How far a consumer group has come in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupOffset {
    /// The queue.
    pub queue_id: i32,
    /// The offset that is consumed next.
    pub offset: i64,
    /// Messages from there to the queue's end; negative where the group is ahead of a queue that lost its end;
    /// `None` where the store has no such queue.
    pub lag: Option<i64>,
}

impl Store {
    /// The names of all consumer groups, sorted: those that have a configuration, or an offset in a queue. From the same
    /// place as [`Self::group_offsets`].
    pub fn groups(&self) -> Result<Vec<String>, StoreError> {
        self.check()?;
        Ok(match &self.inner.side {
            OpenSide::Writer(writer, _) => writer.meta.groups(),
            OpenSide::Reader(_) => load_listed(&self.inner.files, &mut Vec::new()).groups,
        })
    }

    /// How far consumer groups have come, by topic and group: where the store is open for writing, as it is now; for
    /// readers, as the writer's process or the last one has it on the disk. What cannot be read of that counts as
    /// missing; `mqstore_inspect::info` tells of it.
    pub fn group_offsets(&self) -> Result<Vec<GroupOffsets>, StoreError> {
        self.check()?;
        let files = &self.inner.files;
        let saved = match &self.inner.side {
            OpenSide::Writer(writer, _) => {
                let mut table = writer.meta.offset_table();
                let _ = add_light(files, &mut table);
                table
            }
            OpenSide::Reader(_) => saved_offsets(files, &mut Vec::new()),
        };
        offsets_with_lag(&*self.view(), saved)
    }
}

impl Store {
    /// What groups know of queues, each given by group, topic and queue: where the store is open for writing, as it is now;
    /// for readers, as the writer's process or the last one has it on the disk. `None` for who was never there.
    ///
    /// # Errors
    /// What keeps the metadata log from being read.
    pub fn group_progress(&self, wanted: &[(&str, &str, i32)]) -> Result<Vec<Option<Progress>>, StoreError> {
        self.check()?;
        let wanted = wanted.iter();
        Ok(match &self.inner.side {
            OpenSide::Writer(writer, _) => {
                wanted.map(|(group, topic, id)| writer.meta.known_of(group, topic, *id)).collect()
            }
            OpenSide::Reader(_) => {
                let state = read_state(&self.inner.files, &mut Vec::new())?;
                wanted.map(|(group, topic, id)| state.known_of(group, topic, *id)).collect()
            }
        })
    }
}

/// What is behind `saved` offsets, by `topic@group`, in the queues of the store.
pub(super) fn offsets_with_lag(
    view: &dyn View,
    saved: BTreeMap<String, QueueOffsets>,
) -> Result<Vec<GroupOffsets>, StoreError> {
    view.catch_up()?;
    let mut found = Vec::new();
    for (key, offsets) in saved {
        let Some((topic, group)) = ConsumerOffsets::split_key(&key) else { continue };
        let queue = |(queue_id, offset): (i32, i64)| {
            let lag = view.bounds(topic, queue_id)?.map(|(_, end)| end.saturating_sub(offset));
            Ok(GroupOffset { queue_id, offset, lag })
        };
        let queues = offsets.into_iter().map(queue).collect::<Result<_, StoreError>>()?;
        found.push(GroupOffsets { group: group.to_owned(), topic: topic.to_owned(), queues });
    }
    Ok(found)
}

/// Those of the metadata log, and of the file in which a broker with light queues keeps all of its own. A file that
/// does not parse gives way to its backup, as in RocketMQ.
pub(super) fn saved_offsets(files: &StoreFiles, notes: &mut Vec<String>) -> BTreeMap<String, QueueOffsets> {
    let mut unread = Vec::new();
    let mut table = match read_state(files, &mut unread) {
        Ok(state) => state.into_offsets(),
        Err(error) => {
            notes.push(format!("consumer groups are not shown ({error})"));
            BTreeMap::new()
        }
    };
    let mut missing = |path: &Path| {
        notes.push(format!("{}: cannot be read; consumer groups are not shown", path.display()));
    };
    let path = files.config().join("consumerOffset.json");
    if table.is_empty() && unread.iter().any(|note| note.starts_with(&*path.to_string_lossy())) {
        missing(&path);
    }
    if let Err(path) = add_light(files, &mut table) {
        missing(&path);
    }
    table
}

/// Adds what is in the file in which a broker with light queues keeps all offsets; its path where it cannot be read.
fn add_light(files: &StoreFiles, table: &mut BTreeMap<String, QueueOffsets>) -> Result<(), PathBuf> {
    let path = files.config().join("lmqConsumerOffset.json");
    let saved = [path.clone(), path.with_extension("json.bak")].iter().find_map(|path| read(files, path));
    let Some(saved) = saved else {
        return if files.vfs.stat(&path).is_ok() { Err(path) } else { Ok(()) };
    };
    table.extend(saved.table);
    let light = saved.unknown.get("lmqOffsetTable").and_then(|table| table.as_object());
    for (key, offset) in light.into_iter().flatten() {
        if let Some(offset) = offset.as_i64() {
            table.insert(key.clone(), QueueOffsets::from([(0, offset)]));
        }
    }
    Ok(())
}

fn read(files: &StoreFiles, path: &Path) -> Option<ConsumerOffsets> {
    let text = files.vfs.read_file(path, CONFIG_LIMIT_BYTES).ok()?;
    ConsumerOffsets::parse(&text).ok()
}
