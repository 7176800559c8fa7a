//! Writes RocketMQ's JSON files from the state of the metadata log; `json_files` describes the protocol.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mqstore_format::json::{ConsumerOffsets, QueueOffsets, SubscriptionGroups, TopicTable};

use super::json_files::{self, JsonTable, path_of, stamp_of};
use super::log::MetaLog;
use super::record::{JsonFile, MetaRecord, QueueKey};
use super::state::{ConfigEntry, JsonState, Tables};
use super::tail::WriteMethod;
use mqstore_base::error::StoreError;

/// Queues that are read under one lock.
const QUEUES: usize = 1024;

impl MetaLog {
    /// Writes those of `topics.json`, `subscriptionGroup.json` and `consumerOffset.json` that have unsaved changes.
    /// Durable when this returns.
    pub fn export_json(&self) -> Result<(), StoreError> {
        let files: Vec<JsonFile> = JsonFile::ALL.into_iter().filter(|file| self.is_unsaved(*file)).collect();
        if files.is_empty() {
            return Ok(());
        }
        self.ready()?;
        let _chores = self.chores.lock();
        files.into_iter().try_for_each(|file| self.export_file(file))
    }

    /// Writes `consumerOffset.json`, with or without changes.
    pub fn export_offsets(&self) -> Result<(), StoreError> {
        self.ready()?;
        let _chores = self.chores.lock();
        self.export_file(JsonFile::Offsets)
    }

    /// Whether there are changes that may not be in the file.
    pub(super) fn is_unsaved(&self, file: JsonFile) -> bool {
        let JsonState { changed, begun, .. } = *self.tables.lock().json(file);
        changed || begun || (file == JsonFile::Offsets && self.offsets_changed.load(Ordering::Acquire))
    }

    /// Writes one file; the caller holds `chores`.
    fn export_file(&self, file: JsonFile) -> Result<(), StoreError> {
        let path = path_of(&self.files, file);
        let known = self.tables.lock().json(file).known;
        // A file that cannot be read is replaced.
        let mut table = match json_files::read_for_export(&self.files, file)? {
            Some(table) => table,
            None => match file {
                JsonFile::Topics => JsonTable::Topics(TopicTable::default()),
                JsonFile::Groups => JsonTable::Groups(SubscriptionGroups::default()),
                JsonFile::Offsets => JsonTable::Offsets(ConsumerOffsets::default()),
            },
        };
        self.fill(file, &mut table)?;
        let version = known.map_or(table.version(), |known| known.version.max(table.version()));
        table.set_version(version.next(self.files.clock.now_ms()));
        let text = table.to_json(self.dialect);
        let stamp = stamp_of(table.version(), text.as_bytes());
        {
            let mut tables = self.tables.lock();
            self.write(WriteMethod::File, |frame| frame.push(&MetaRecord::JsonIntended { file, stamp }))?;
            tables.json(file).intended = Some(stamp);
        }
        self.sync(self.place())?;
        self.files.replace_file(&path, text.as_bytes(), "writing a configuration file")?;
        let mut tables = self.tables.lock();
        self.write(WriteMethod::Map, |frame| frame.push(&MetaRecord::JsonKnown { file, stamp }))?;
        tables.set_json_stamp(file, stamp);
        Ok(())
    }

    /// Replaces the entries of `table` with the current state. Later changes belong to the next write of the file.
    fn fill(&self, file: JsonFile, table: &mut JsonTable) -> Result<(), StoreError> {
        match table {
            JsonTable::Topics(table) => table.topics = self.begin_configs(file, |tables| &tables.topics)?,
            JsonTable::Groups(table) => table.groups = self.begin_configs(file, |tables| &tables.groups)?,
            JsonTable::Offsets(table) => {
                {
                    let mut tables = self.tables.lock();
                    let _offsets = self.offsets.lock();
                    self.begin_json(&mut tables, file)?;
                    self.offsets_changed.store(false, Ordering::Release);
                }
                // RocketMQ ignores keys of another form; they stay in the file.
                table.table.retain(|key, _| ConsumerOffsets::split_key(key).is_none());
                self.fill_offsets(table);
            }
        }
        Ok(())
    }

    fn begin_json(&self, tables: &mut Tables, file: JsonFile) -> Result<(), StoreError> {
        self.write(WriteMethod::Map, |frame| frame.push(&MetaRecord::JsonBegun { file }))?;
        tables.begin_json(file);
        Ok(())
    }

    /// Returns the current entries of a table. Copies them after the lock of the tables is released.
    fn begin_configs<T: Clone>(
        &self,
        file: JsonFile,
        entries: impl Fn(&Tables) -> &BTreeMap<Arc<str>, ConfigEntry<T>>,
    ) -> Result<BTreeMap<String, T>, StoreError> {
        let mut tables = self.tables.lock();
        self.begin_json(&mut tables, file)?;
        let all: Vec<_> = entries(&tables)
            .iter()
            .map(|(name, entry)| (Arc::clone(name), Arc::clone(&entry.config)))
            .collect();
        drop(tables);
        Ok(all.into_iter().map(|(name, config)| (name.to_string(), (*config).clone())).collect())
    }

    fn fill_offsets(&self, table: &mut ConsumerOffsets) {
        let mut set = |queue: QueueKey, offset| {
            if let (Some(topic), Some(group)) = (self.name(queue.topic), self.name(queue.group)) {
                table.set(&topic, &group, queue.queue_id, offset);
            }
        };
        let mut last = None;
        loop {
            let offsets = self.offsets.lock().behind(last, QUEUES);
            let Some((queue, _)) = offsets.last() else { break };
            last = Some(*queue);
            for (queue, offset) in offsets {
                set(queue, offset);
            }
        }
        // After the offsets: a progress may take over an offset meanwhile.
        last = None;
        loop {
            let all = self.progress.read().behind(last, QUEUES);
            let Some((queue, _)) = all.last() else { return };
            last = Some(*queue);
            for (queue, progress) in all {
                if let Some(offset) = progress.offset() {
                    set(queue, offset);
                }
            }
        }
    }

    /// Returns the current offsets of groups, by `topic@group`.
    pub fn offset_table(&self) -> BTreeMap<String, QueueOffsets> {
        let mut table = ConsumerOffsets::default();
        self.fill_offsets(&mut table);
        table.table
    }
}
