//! RocketMQ's JSON files, kept consistent with the metadata log.
//!
//! Owns the content of `config/topics.json`, `subscriptionGroup.json` and `consumerOffset.json`. Brokers and their
//! tools use these files; in mqstore the log counts. The records of the log about each file decide which of the two
//! is newer:
//!
//! * **Written** in these steps, so that after a stop at any moment a file of ours can be distinguished from a
//!   broker's: log that the write begins; build the text; log its stamp (`DataVersion`, length, checksum) as
//!   intended, and sync; replace the file in one step; log the stamp as known.
//! * **Read** at each open. A file with the known or the intended stamp is ours and needs no import. A file with
//!   other content and a `DataVersion` that is not older than the known one comes from a broker. Its entries win over
//!   ours. Topics and groups that it lacks are removed, unless they changed here since they were last written.
//!   Offsets that it lacks stay. A file with an older `DataVersion` is ignored. If the group consumes a queue message
//!   by message, an offset from the file moves the progress: forward as if everything below were finished, backward
//!   like a reset.
//!
//! A broker increments the `DataVersion` of offsets only once in 500 commits; therefore the stamp has a checksum.
//! JSON members and entries that mqstore does not know are copied from the replaced file.
//!
//! Source: `ConfigManager`, `DataVersion#compare`, `ConsumerOffsetManager`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use mqstore_format::crc32;
use mqstore_format::json::{
    ConsumerOffsets, DataVersion, Dialect, QueueOffsets, SubscriptionGroup, SubscriptionGroups, TopicConfig,
    TopicTable,
};

use super::record::{JsonFile, JsonStamp, QueueKey, SavedState};
use super::state::{ConfigEntry, JsonState, MetaState};
use mqstore_base::error::StoreError;
use mqstore_base::store_files::{CONFIG_LIMIT_BYTES, StoreFiles};

/// The parsed content of one file.
pub(super) enum JsonTable {
    Topics(TopicTable),
    Groups(SubscriptionGroups),
    Offsets(ConsumerOffsets),
}

impl JsonTable {
    fn parse(file: JsonFile, text: &[u8]) -> Result<Self, mqstore_format::FormatError> {
        Ok(match file {
            JsonFile::Topics => Self::Topics(TopicTable::parse(text)?),
            JsonFile::Groups => Self::Groups(SubscriptionGroups::parse(text)?),
            JsonFile::Offsets => Self::Offsets(ConsumerOffsets::parse(text)?),
        })
    }

    pub(super) fn version(&mut self) -> &mut DataVersion {
        match self {
            Self::Topics(table) => &mut table.data_version,
            Self::Groups(table) => &mut table.data_version,
            Self::Offsets(table) => &mut table.data_version,
        }
    }

    pub(super) fn to_json(&self, dialect: Dialect) -> String {
        match self {
            Self::Topics(table) => table.to_json(dialect),
            Self::Groups(table) => table.to_json(dialect),
            Self::Offsets(table) => table.to_json(dialect),
        }
    }
}

pub(super) fn path_of(files: &StoreFiles, file: JsonFile) -> PathBuf {
    files.config().join(file.name())
}

/// Reads the file, or its backup if the file cannot be read. Also `None` if its content is `known`. Calls `unread`
/// for each file that cannot be read.
pub(super) fn read(
    files: &StoreFiles,
    file: JsonFile,
    known: Option<JsonStamp>,
    unread: &mut dyn FnMut(StoreError) -> Result<(), StoreError>,
) -> Result<Option<(Vec<u8>, JsonTable)>, StoreError> {
    let path = path_of(files, file);
    let mut held = Vec::new();
    for path in [path.clone(), path.with_extension("json.bak")] {
        match files.vfs.read_file(&path, CONFIG_LIMIT_BYTES) {
            Ok(bytes) if bytes.is_empty() => {}
            Ok(bytes) if known.is_some_and(|known| known == stamp_of(known.version, &bytes)) => {
                return Ok(None);
            }
            Ok(bytes) => match JsonTable::parse(file, &bytes) {
                Ok(table) => return Ok(Some((bytes, table))),
                Err(error) => {
                    let error = StoreError::corrupt(&path, 0, format!("not readable ({error})"));
                    // The backup of offsets is slightly older. It is used without a note.
                    if file == JsonFile::Offsets { held.push(error) } else { unread(error)? }
                }
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => unread(StoreError::io(&path, "not readable", error))?,
        }
    }
    held.into_iter().try_for_each(unread)?;
    Ok(None)
}

pub(super) fn stamp_of(version: DataVersion, bytes: &[u8]) -> JsonStamp {
    JsonStamp { version, bytes: bytes.len() as u64, crc: crc32(bytes) }
}

/// Imports the changes that brokers made to the files since the last write or read. Returns whether there were any.
/// If a part of the log is `lost`, also adds entries of any file that the state lacks. A file that cannot be read
/// counts as missing, unless `unread` returns an error.
pub(super) fn import(
    files: &StoreFiles,
    state: &mut MetaState,
    lost: bool,
    unread: &mut dyn FnMut(StoreError) -> Result<(), StoreError>,
) -> Result<bool, StoreError> {
    let mut changed = false;
    for file in JsonFile::ALL {
        let JsonState { known, intended, .. } = *state.tables.json(file);
        if known.is_some() && files.vfs.stat(&path_of(files, file)).is_err() {
            // Someone deleted the file; write it again.
            state.tables.json(file).changed = true;
        }
        let known_content = known.filter(|_| !lost);
        let Some((bytes, mut table)) = read(files, file, known_content, unread)? else { continue };
        let stamp = stamp_of(*table.version(), &bytes);
        if file == JsonFile::Offsets {
            state.dialect = Dialect::of(&bytes).unwrap_or_default();
        }
        if intended == Some(stamp) && !lost {
            state.tables.set_json_stamp(file, stamp);
            changed = true;
            continue;
        }
        let is_old = known.is_some_and(|known| stamp.version < known.version || stamp == known);
        if is_old && !lost {
            continue;
        }
        match table {
            JsonTable::Topics(table) => import_topics(state, table.topics, lost),
            JsonTable::Groups(table) => import_groups(state, table.groups, lost),
            JsonTable::Offsets(table) => import_offsets(state, &table.table, lost),
        }
        *state.tables.json(file) =
            JsonState { known: Some(stamp), intended: None, ..*state.tables.json(file) };
        changed = true;
    }
    Ok(changed)
}

fn import_topics(state: &mut MetaState, topics: BTreeMap<String, TopicConfig>, missing: bool) {
    let stays = |name: &str, saved| missing || saved != SavedState::Written || topics.contains_key(name);
    state.tables.topics.retain(|name, entry| stays(name, entry.saved));
    for (name, config) in topics {
        if missing && state.tables.topics.contains_key(name.as_str()) {
            continue;
        }
        let Some(id) = state.name_id(&name) else { return };
        let entry = ConfigEntry { id, config: Arc::new(config), saved: SavedState::Written };
        state.tables.put_topic(name.into(), entry);
    }
}

fn import_groups(state: &mut MetaState, groups: BTreeMap<String, SubscriptionGroup>, missing: bool) {
    let stays = |name: &str, saved| missing || saved != SavedState::Written || groups.contains_key(name);
    state.tables.groups.retain(|name, entry| stays(name, entry.saved));
    for (name, config) in groups {
        if missing && state.tables.groups.contains_key(name.as_str()) {
            continue;
        }
        let Some(id) = state.name_id(&name) else { return };
        let entry = ConfigEntry { id, config: Arc::new(config), saved: SavedState::Written };
        state.tables.put_group(name.into(), entry);
    }
}

fn import_offsets(state: &mut MetaState, table: &BTreeMap<String, QueueOffsets>, missing: bool) {
    for (key, queues) in table {
        let Some((topic, group)) = ConsumerOffsets::split_key(key) else { continue };
        let (Some(topic), Some(group)) = (state.name_id(topic), state.name_id(group)) else { return };
        for (queue_id, offset) in queues.iter().filter(|(_, offset)| **offset >= 0) {
            let queue = QueueKey { group, topic, queue_id: *queue_id };
            if !missing || state.offset(queue).is_none() {
                state.take_offset(queue, *offset);
            }
        }
    }
}
