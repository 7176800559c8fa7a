//! What a directory is, at a glance.

use std::path::Path;
use std::sync::Arc;

use mqstore_io::{Clock, Vfs};

use super::{QueueInfo, Store};
use crate::error::StoreError;
use crate::files::StoreFiles;
use crate::live::writer_pid;
use crate::mark::MarkFile;
use crate::options::{OpenMode, StoreOptions};

/// The answer of [`info`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InfoReport {
    /// How the queues are kept: `file-queues`, `rocksdb-queues` or `log-only`.
    pub layout: &'static str,
    /// Who wrote the directory last, as far as it shows: `mqstore`, `rocketmq`, `rocketmq-5.5`.
    pub written_by: &'static str,
    /// Whether the last writer closed it (and nobody writes now).
    pub clean: bool,
    /// Bytes of a segment; 0 when there is none.
    pub segment_size: u64,
    /// The first byte of the log.
    pub log_min_offset: u64,
    /// One past the last.
    pub log_max_offset: u64,
    /// Messages that can be read by queue.
    pub messages: u64,
    /// The topics with their queues.
    pub topics: Vec<(String, Vec<QueueInfo>)>,
    /// Folders and files of a store that are there.
    pub parts: Vec<&'static str>,
    /// Whether a part of it is kept in `RocksDB`.
    pub rocksdb: bool,
    /// The process that writes it now, if one does: its id, or `None` where that is unknown.
    pub writer: Option<Option<i32>>,
    /// What a person should know.
    pub notes: Vec<String>,
}

const PARTS: [&str; 15] = [
    "commitlog",
    "consumequeue",
    "consumequeue_ext",
    "batchconsumequeue",
    "index",
    "compaction",
    "config",
    "checkpoint",
    "abort",
    "timerwheel",
    "timerlog",
    "rocksdbstore",
    "consumequeue_rocksdb",
    "kvStore",
    "mqstore",
];

/// Looks at the store at `path` without changing it.
pub fn info(
    vfs: Arc<dyn Vfs>,
    clock: Arc<dyn Clock>,
    path: &Path,
    options: &StoreOptions,
) -> Result<InfoReport, StoreError> {
    let files = StoreFiles::new(Arc::clone(&vfs), Arc::clone(&clock), path);
    let store = Store::open(vfs, clock, path, OpenMode::Read, options)?;
    let stats = store.stats()?;
    let mut topics = Vec::new();
    for topic in store.topics()? {
        let queues = store.queues(&topic)?;
        topics.push((topic, queues));
    }
    let messages = topics
        .iter()
        .flat_map(|(_, queues)| queues)
        .map(|queue| (queue.max_offset - queue.min_offset).max(0) as u64);
    let messages = messages.sum();
    let has = |name: &str| files.vfs.stat(&files.root.join(name)).is_ok();
    let rocksdb_queues = has("consumequeue/CURRENT") || has("consumequeue_rocksdb");
    let holder = files.vfs.lock_holder(&files.lock()).ok().flatten();
    Ok(InfoReport {
        layout: match (rocksdb_queues, has("consumequeue")) {
            (true, _) => "rocksdb-queues",
            (false, true) => "file-queues",
            (false, false) => "log-only",
        },
        written_by: match (MarkFile::new(&files).load().is_some(), has("rocksdbstore")) {
            (true, _) => "mqstore",
            (false, true) => "rocketmq-5.5",
            (false, false) => "rocketmq",
        },
        clean: !has("abort"),
        segment_size: stats.segment_bytes,
        log_min_offset: stats.log_min_offset,
        log_max_offset: stats.log_max_offset,
        messages,
        topics,
        parts: PARTS.into_iter().filter(|name| has(name)).collect(),
        rocksdb: rocksdb_queues || has("rocksdbstore") || has("kvStore"),
        writer: holder.map(|_| writer_pid(&files)),
        notes: store.notes(),
    })
}
