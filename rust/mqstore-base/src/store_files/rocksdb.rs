//! The `RocksDB` databases of a broker. mqstore knows them by their places and reads none of them.
//!
//! ```text
//! <root>/consumequeue/                queues: storeType=defaultRocksDB, or queues in both forms
//! <root>/consumequeue_rocksdb/        queues: useSeparateStorePathForRocksdbCQ of 5.5.0
//! <root>/config/topics/               topics: storeType=defaultRocksDB
//! <root>/config/subscriptionGroups/   groups: the same
//! <root>/config/consumerOffsets/      offsets of groups: the same
//! <root>/config/metadata/             all three: useSingleRocksDBForAllConfigs of 5.5.0
//! <root>/config/rdb/                  all three: configManagerVersion=v2
//! ```
//!
//! The queues can be derived from the log. Nothing else has the rest. `kvStore/` has the leases of a broker, and
//! `rocksdbstore/` is in each store of 5.5.0.
//!
//! Source: `RocksDBConsumeQueueStore`, `RocksDBTopicConfigManager` and its siblings, `ConfigStorage`.

use std::path::{Path, PathBuf};

use super::StoreFiles;
use mqstore_io::FileKind;

/// The file that each such database has.
const CURRENT: &str = "CURRENT";

/// The databases of configuration, with their content.
const CONFIG_DATABASES: [(&str, &str); 5] = [
    ("topics", "the topics"),
    ("subscriptionGroups", "the groups"),
    ("consumerOffsets", "the offsets of the groups"),
    ("metadata", "the topics, the groups and the offsets of the groups"),
    ("rdb", "the topics, the groups and the offsets of the groups"),
];

impl StoreFiles {
    /// `consumequeue_rocksdb/`: queues of a broker in `RocksDB`.
    pub fn consume_queue_rocksdb(&self) -> PathBuf {
        self.root.join("consumequeue_rocksdb")
    }

    /// Returns the databases with queues: `consumequeue/`, `consumequeue_rocksdb/`, both or none.
    pub fn rocksdb_queues(&self) -> Vec<PathBuf> {
        let homes = [self.consume_queue(), self.consume_queue_rocksdb()];
        homes.into_iter().filter(|home| !self.is_bare_log() && self.is_rocksdb(home)).collect()
    }

    /// Returns the databases with topics, groups or offsets of groups, each with its content.
    pub fn rocksdb_config(&self) -> Vec<(PathBuf, &'static str)> {
        let home = self.config();
        let places = CONFIG_DATABASES.iter().map(|(name, content)| (home.join(name), *content));
        places.filter(|(folder, _)| !self.is_bare_log() && self.is_rocksdb(folder)).collect()
    }

    /// Returns a note for the user for each database that is not in the folder of queue files, whose entries have their
    /// own notes.
    pub fn rocksdb_notes(&self) -> Vec<String> {
        let apart = self.consume_queue_rocksdb();
        let queues = self.rocksdb_queues().into_iter().filter(|folder| *folder == apart);
        let queues = queues.map(|folder| format!("{}: {QUEUES_IN_ROCKSDB}", folder.display()));
        let config = self.rocksdb_config().into_iter().map(|(folder, content)| {
            format!(
                "{}: {content} are in RocksDB, which mqstore does not read; what is only there is unknown here",
                folder.display()
            )
        });
        queues.chain(config).collect()
    }

    fn is_rocksdb(&self, folder: &Path) -> bool {
        self.vfs.stat(&folder.join(CURRENT)).is_ok_and(|stat| stat.kind == FileKind::File)
    }
}

/// The note about queues in `RocksDB`.
pub const QUEUES_IN_ROCKSDB: &str =
    "has queues in RocksDB, which mqstore does not read; queues without files are derived from the log";

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mqstore_io::{ManualClock, SimVfs, Vfs};

    use super::*;

    #[test]
    fn databases_are_known_by_their_places() {
        let vfs = SimVfs::default();
        let files =
            StoreFiles::new(Arc::new(vfs.clone()), Arc::new(ManualClock::new(1)), Path::new("/store"));
        assert!(files.rocksdb_queues().is_empty() && files.rocksdb_notes().is_empty());
        // A topic can have such a name, and its folder has no such file.
        vfs.create_dir_all(&files.config().join("metadata")).unwrap();
        assert!(files.rocksdb_config().is_empty());
        for name in ["consumequeue", "consumequeue_rocksdb", "config/topics", "config/rdb"] {
            let folder = files.root.join(name);
            vfs.create_dir_all(&folder).unwrap();
            vfs.create_new(&folder.join(CURRENT)).unwrap();
        }
        assert_eq!(files.rocksdb_queues(), [files.consume_queue(), files.consume_queue_rocksdb()]);
        let notes = files.rocksdb_notes();
        assert_eq!(notes.len(), 3, "{notes:?}");
        let says = |text: &str| notes.iter().any(|note| note.contains(text));
        assert!(
            says("consumequeue_rocksdb: has queues in RocksDB")
                && says("config/topics: the topics are in RocksDB")
        );
        assert!(says("config/rdb: the topics, the groups and the offsets of the groups are in RocksDB"));
    }
}
