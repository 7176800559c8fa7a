//! Decides which topics are compaction topics.
//!
//! Owns that decision for plans, and for expiry, which must keep records that a compaction still has to read.
//! Reads the metadata and the names below `compaction/`; writes nothing.
//!
//! Source: `CleanupPolicyUtils#getDeletePolicy`, `CompactionStore#load`.

use std::collections::BTreeSet;

use mqstore_format::json::{TopicConfig, TopicTable};

use super::folder::topics as topics_with_files;
use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;
use mqstore_base::topic_floors::FloorTable;
use mqstore_meta::{ListedTables, read_state_strictly};

/// The topics of a directory, and those with compaction files.
pub(crate) struct CompactionTopics {
    table: TopicTable,
    floors: FloorTable,
    with_files: BTreeSet<String>,
}

impl CompactionTopics {
    /// Reads the directory.
    pub(crate) fn load(files: &StoreFiles) -> Result<Self, StoreError> {
        let with_files = topics_with_files(files, &files.compaction())?.into_iter().collect();
        let ListedTables { table, floors, .. } = read_state_strictly(files)?.into_listed();
        Ok(Self { table, floors, with_files })
    }

    /// Whether RocketMQ serves this topic from compaction files.
    pub(crate) fn contains(&self, topic: &str) -> bool {
        match self.config(topic) {
            Some(config) => config.is_compaction(),
            // The topic table is lost: only a compaction topic has such files.
            None => self.with_files.contains(topic),
        }
    }

    /// Returns the configuration of a topic, if it is in the table.
    pub(crate) fn config(&self, topic: &str) -> Option<&TopicConfig> {
        self.table.topics.get(topic)
    }

    /// Returns the floors of deleted topics.
    pub(crate) fn floors(&self) -> &FloorTable {
        &self.floors
    }

    /// Whether it is in the table or has compaction files.
    pub(crate) fn exists(&self, topic: &str) -> bool {
        self.table.topics.contains_key(topic) || self.has_files(topic)
    }

    /// Whether it has compaction files.
    pub(crate) fn has_files(&self, topic: &str) -> bool {
        self.with_files.contains(topic)
    }

    /// Returns the topics of the table, then those with files; a topic with both comes twice.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.table.topics.keys().chain(&self.with_files).map(String::as_str)
    }

    /// Whether there is no compaction topic at all.
    pub(crate) fn is_empty(&self) -> bool {
        !self.names().any(|topic| self.contains(topic))
    }
}
