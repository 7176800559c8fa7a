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
//! * **Damaged**: `config_file` of mqstore-base has the rule. The entries that parse count only if a broker wrote the
//!   file: the log has no stamp of it, its `DataVersion` is newer, or its backup is the file of ours that the broker
//!   replaced. Otherwise the log knows better. Nothing is removed because a damaged file lacks it. A writer copies the
//!   file to `lost+found` and then writes it again.
//!
//! A broker increments the `DataVersion` of offsets only once in 500 commits; therefore the stamp has a checksum.
//! JSON members and entries that mqstore does not know are copied from the replaced file.
//!
//! Source: `ConfigManager`, `DataVersion#compare`, `ConsumerOffsetManager`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_format::crc32;
use mqstore_format::json::{
    ConfigTable, ConsumerOffsets, DataVersion, Dialect, QueueOffsets, SubscriptionGroup, SubscriptionGroups,
    TopicConfig, TopicTable,
};

use super::record::{JsonFile, JsonStamp, QueueKey, SavedState};
use super::state::{ConfigEntry, JsonState, MetaState};
use mqstore_base::error::StoreError;
use mqstore_base::store_files::{ConfigDamage, ConfigFile, StoreFiles};

/// The parsed content of one file.
pub(super) enum JsonTable {
    Topics(TopicTable),
    Groups(SubscriptionGroups),
    Offsets(ConsumerOffsets),
}

/// A file that cannot be read, or not completely.
pub(super) enum UnreadConfig {
    /// The system cannot read it.
    Io(StoreError),
    /// It is damaged; the text says which data is used instead.
    Damaged(ConfigDamage, &'static str),
}

/// Called for each such file. An error ends the import.
pub(super) type OnUnread<'a> = &'a mut dyn FnMut(UnreadConfig) -> Result<(), StoreError>;

/// One file as far as it is readable.
struct JsonContent {
    bytes: Vec<u8>,
    table: JsonTable,
    damage: Option<ConfigDamage>,
}

impl JsonContent {
    fn stamp(&self) -> JsonStamp {
        stamp_of(self.table.version(), &self.bytes)
    }
}

impl<T: Into<JsonTable>> From<ConfigFile<T>> for JsonContent {
    fn from(found: ConfigFile<T>) -> Self {
        Self { bytes: found.bytes, table: found.table.into(), damage: found.damage }
    }
}

impl From<TopicTable> for JsonTable {
    fn from(table: TopicTable) -> Self {
        Self::Topics(table)
    }
}

impl From<SubscriptionGroups> for JsonTable {
    fn from(table: SubscriptionGroups) -> Self {
        Self::Groups(table)
    }
}

impl From<ConsumerOffsets> for JsonTable {
    fn from(table: ConsumerOffsets) -> Self {
        Self::Offsets(table)
    }
}

/// How the entries of a file change the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ImportMode {
    /// They win, and entries that the file lacks are removed.
    Replace,
    /// They win.
    Merge,
    /// Only those count that the state lacks.
    Fill,
}

impl JsonTable {
    pub(super) fn version(&self) -> DataVersion {
        match self {
            Self::Topics(table) => table.data_version,
            Self::Groups(table) => table.data_version,
            Self::Offsets(table) => table.data_version,
        }
    }

    pub(super) fn set_version(&mut self, version: DataVersion) {
        match self {
            Self::Topics(table) => table.data_version = version,
            Self::Groups(table) => table.data_version = version,
            Self::Offsets(table) => table.data_version = version,
        }
    }

    fn complete_from(&mut self, older: Self) {
        match (self, older) {
            (Self::Topics(table), Self::Topics(older)) => table.complete_from(older),
            (Self::Groups(table), Self::Groups(older)) => table.complete_from(older),
            (Self::Offsets(table), Self::Offsets(older)) => table.complete_from(older),
            _ => {}
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

fn parse(file: JsonFile, path: &Path, bytes: Vec<u8>) -> JsonContent {
    match file {
        JsonFile::Topics => ConfigFile::<TopicTable>::of(path, bytes).into(),
        JsonFile::Groups => ConfigFile::<SubscriptionGroups>::of(path, bytes).into(),
        JsonFile::Offsets => ConfigFile::<ConsumerOffsets>::of(path, bytes).into(),
    }
}

/// Returns the content of the file at `path`, or `None` after a call of `unread`.
fn read_bytes(files: &StoreFiles, path: &Path, unread: OnUnread<'_>) -> Result<Option<Vec<u8>>, StoreError> {
    match files.read_config(path) {
        Err(error) => unread(UnreadConfig::Io(error)).map(|()| None),
        bytes => bytes,
    }
}

/// Reads the table for an export, which keeps the parts of the file that the state does not have. A damaged file is
/// copied first, because the export replaces it.
pub(super) fn read_for_export(files: &StoreFiles, file: JsonFile) -> Result<Option<JsonTable>, StoreError> {
    let path = path_of(files, file);
    let ignore = &mut |_| Ok(());
    if let Some(bytes) = read_bytes(files, &path, ignore)? {
        let found = parse(file, &path, bytes);
        let Some(damage) = &found.damage else { return Ok(Some(found.table)) };
        files.keep_config(&path, &damage.bytes)?;
        return Ok(Some(found.table));
    }
    let backup = path.with_extension("json.bak");
    Ok(read_bytes(files, &backup, ignore)?.map(|bytes| parse(file, &backup, bytes).table))
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
    unread: OnUnread<'_>,
) -> Result<bool, StoreError> {
    let mut changed = false;
    for file in JsonFile::ALL {
        changed |= import_file(files, state, (file, lost), unread)?;
    }
    Ok(changed)
}

fn import_file(
    files: &StoreFiles,
    state: &mut MetaState,
    (file, lost): (JsonFile, bool),
    unread: OnUnread<'_>,
) -> Result<bool, StoreError> {
    let path = path_of(files, file);
    let known = state.tables.json(file).known;
    if known.is_some() && files.vfs.stat(&path).is_err() {
        // Someone deleted the file; write it again.
        state.tables.json(file).changed = true;
    }
    let is_ours = |bytes: &[u8]| known.is_some_and(|known| known == stamp_of(known.version, bytes));
    let bytes = read_bytes(files, &path, unread)?;
    if bytes.as_deref().is_some_and(is_ours) && !lost {
        return Ok(false);
    }
    let main = bytes.map(|bytes| parse(file, &path, bytes));
    if let Some(main) = main.as_ref().filter(|main| main.damage.is_none()) {
        state.dialect = dialect_of(file, &main.bytes).unwrap_or(state.dialect);
        return Ok(import_content(state, (file, lost), main));
    }
    let backup_path = path.with_extension("json.bak");
    let backup = read_bytes(files, &backup_path, unread)?.filter(|bytes| !bytes.is_empty());
    let backup_is_ours = backup.as_deref().is_some_and(is_ours);
    let backup = backup.filter(|_| !backup_is_ours || lost).map(|bytes| parse(file, &backup_path, bytes));
    if let Some(damage) = backup.as_ref().and_then(|backup| backup.damage.clone()) {
        unread(UnreadConfig::Damaged(
            damage,
            "it is the backup of a file that is missing or damaged; its entries that parse are used",
        ))?;
    }
    let Some(main) = main else {
        let Some(backup) = backup else { return Ok(false) };
        state.dialect = dialect_of(file, &backup.bytes).unwrap_or(state.dialect);
        return Ok(import_content(state, (file, lost), &backup));
    };
    import_damaged(state, (file, lost), main, backup, backup_is_ours, unread)
}

fn dialect_of(file: JsonFile, bytes: &[u8]) -> Option<Dialect> {
    if file == JsonFile::Offsets { Dialect::of(bytes) } else { None }
}

/// Imports a file without damage, or the backup of a missing file.
fn import_content(state: &mut MetaState, (file, lost): (JsonFile, bool), content: &JsonContent) -> bool {
    let stamp = content.stamp();
    let JsonState { known, intended, .. } = *state.tables.json(file);
    if intended == Some(stamp) && !lost {
        state.tables.set_json_stamp(file, stamp);
        return true;
    }
    let is_old = known.is_some_and(|known| stamp.version < known.version || stamp == known);
    if is_old && !lost {
        return false;
    }
    let mode = match (lost, &content.damage) {
        (true, _) => ImportMode::Fill,
        (false, Some(_)) => ImportMode::Merge,
        (false, None) => ImportMode::Replace,
    };
    import_table(state, &content.table, mode);
    *state.tables.json(file) = JsonState { known: Some(stamp), intended: None, ..*state.tables.json(file) };
    true
}

/// Imports the entries that parse of a damaged file and its backup, if a broker wrote them; see the module's text.
fn import_damaged(
    state: &mut MetaState,
    (file, lost): (JsonFile, bool),
    main: JsonContent,
    backup: Option<JsonContent>,
    backup_is_ours: bool,
    unread: OnUnread<'_>,
) -> Result<bool, StoreError> {
    let JsonContent { bytes, mut table, damage } = main;
    let known = state.tables.json(file).known;
    let is_newer = |version: DataVersion| lost || known.is_none_or(|known| version > known.version);
    let of_broker = backup_is_ours || is_newer(table.version());
    let backup = backup.filter(|backup| is_newer(backup.table.version()));
    let used = match (of_broker, &backup) {
        (true, Some(_)) => "the entries that parse are used, with those of the backup that the file lacks",
        (true, None) => "the entries that parse are used",
        (false, Some(_)) => "the entries of the backup are used",
        (false, None) => "mqstore/meta has what it contained, except for changes of a broker since",
    };
    if let Some(damage) = damage {
        unread(UnreadConfig::Damaged(damage, used))?;
    }
    // Write the file again.
    state.tables.json(file).changed = true;
    let used = match (of_broker, backup) {
        (true, backup) => {
            if let Some(backup) = backup {
                table.complete_from(backup.table);
            }
            table
        }
        (false, Some(backup)) => backup.table,
        (false, None) => return Ok(false),
    };
    let version = known.map_or(used.version(), |known| used.version().max(known.version));
    import_table(state, &used, if lost { ImportMode::Fill } else { ImportMode::Merge });
    // The next open must not import the same entries over newer ones.
    let stamp = stamp_of(version, &bytes);
    *state.tables.json(file) = JsonState { known: Some(stamp), intended: None, ..*state.tables.json(file) };
    Ok(true)
}

fn import_table(state: &mut MetaState, table: &JsonTable, mode: ImportMode) {
    match table {
        JsonTable::Topics(table) => import_topics(state, &table.topics, mode),
        JsonTable::Groups(table) => import_groups(state, &table.groups, mode),
        JsonTable::Offsets(table) => import_offsets(state, &table.table, mode),
    }
}

fn import_topics(state: &mut MetaState, topics: &BTreeMap<String, TopicConfig>, mode: ImportMode) {
    let stays = |name: &str, saved| {
        mode != ImportMode::Replace || saved != SavedState::Written || topics.contains_key(name)
    };
    let tables = &mut state.tables;
    tables.topics.retain(|name, entry| {
        let stays = stays(name, entry.saved);
        if !stays && tables.floors.contains_key(name) {
            // Its floor keeps queues without messages, which do not mean that the topic exists.
            tables.removed.insert(Arc::clone(name), entry.id);
        }
        stays
    });
    for (name, config) in topics {
        if mode == ImportMode::Fill && state.tables.topics.contains_key(name.as_str()) {
            continue;
        }
        let Some(id) = state.name_id(name) else { return };
        let entry = ConfigEntry { id, config: Arc::new(config.clone()), saved: SavedState::Written };
        state.tables.put_topic(name.as_str().into(), entry);
    }
}

fn import_groups(state: &mut MetaState, groups: &BTreeMap<String, SubscriptionGroup>, mode: ImportMode) {
    let stays = |name: &str, saved| {
        mode != ImportMode::Replace || saved != SavedState::Written || groups.contains_key(name)
    };
    state.tables.groups.retain(|name, entry| stays(name, entry.saved));
    for (name, config) in groups {
        if mode == ImportMode::Fill && state.tables.groups.contains_key(name.as_str()) {
            continue;
        }
        let Some(id) = state.name_id(name) else { return };
        let entry = ConfigEntry { id, config: Arc::new(config.clone()), saved: SavedState::Written };
        state.tables.put_group(name.as_str().into(), entry);
    }
}

fn import_offsets(state: &mut MetaState, table: &BTreeMap<String, QueueOffsets>, mode: ImportMode) {
    for (key, queues) in table {
        let Some((topic, group)) = ConsumerOffsets::split_key(key) else { continue };
        let (Some(topic), Some(group)) = (state.name_id(topic), state.name_id(group)) else { return };
        for (queue_id, offset) in queues.iter().filter(|(_, offset)| **offset >= 0) {
            let queue = QueueKey { group, topic, queue_id: *queue_id };
            if mode != ImportMode::Fill || state.offset(queue).is_none() {
                state.take_offset(queue, *offset);
            }
        }
    }
}
