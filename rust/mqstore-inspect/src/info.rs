//! Describes a directory: contents, sizes and last writer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_io::vfs::ProcessFiles;
use mqstore_io::{Clock, FileKind, Vfs};

use super::hourly_rates::{HourRate, hours};
use super::raft_info::{RaftInfo, raft_info};
use super::tiered::TieredInfo;
use mqstore_base::durable_mark::DurableMarkFile;
use mqstore_base::error::StoreError;
use mqstore_base::live_page::writer_pid;
use mqstore_base::options::{OpenMode, StoreOptions};
use mqstore_base::store_files::StoreFiles;
use mqstore_engine::{Geometry, GroupOffsets, PopState, PoppedQueue, QueueInfo, Store};

/// The result of [`info`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InfoReport {
    /// Format of the queues: `file-queues`, `rocksdb-queues`, `tiered-files` or `log-only`.
    pub layout: &'static str,
    /// The last writer of the directory, if the files show it: `mqstore`, `rocketmq`, `rocketmq-5.5`; `unknown` for a
    /// log without a store.
    pub written_by: &'static str,
    /// Whether the last writer closed the store, and no process writes it now.
    pub clean: bool,
    /// Bytes of a segment; 0 without segments.
    pub segment_size: u64,
    /// Geometry of the queue and index files.
    pub geometry: Geometry,
    /// First log offset.
    pub log_min_offset: u64,
    /// End of the log.
    pub log_max_offset: u64,
    /// Store time of the oldest message of all queues, in epoch milliseconds.
    pub min_store_timestamp_ms: Option<i64>,
    /// Store time of the newest one.
    pub max_store_timestamp_ms: Option<i64>,
    /// Number of messages that can be read from queues.
    pub messages: u64,
    /// Bytes of the log stored in each of its newest hours, oldest hour first.
    pub hours: Vec<HourRate>,
    /// The topics with their queues.
    pub topics: Vec<(String, Vec<QueueInfo>)>,
    /// The folders and files of a store that exist.
    pub parts: Vec<&'static str>,
    /// The size of each of them.
    pub disk: Vec<PartSize>,
    /// Committed offsets of the groups, by topic and group.
    pub consumers: Vec<GroupOffsets>,
    /// Messages that a broker popped for groups and that no worker acknowledged or took over.
    pub popped: Vec<PoppedQueue>,
    /// The Raft entries, for the directory of a broker that ran with DLedger.
    pub raft: Option<RaftInfo>,
    /// The files of a tiered store.
    pub tiered: Option<TieredInfo>,
    /// Whether a part of the store is in `RocksDB`.
    pub rocksdb: bool,
    /// The folders of these databases.
    pub rocksdb_folders: Vec<PathBuf>,
    /// The process that has the store open for writing, if there is one: its pid, or `None` if that is unknown.
    pub writer: Option<Option<i32>>,
    /// The files that its process has open, if the system shows them.
    pub writer_files: Option<ProcessFiles>,
    /// Notes for people.
    pub notes: Vec<String>,
}

/// The size of a part of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartSize {
    /// Its name.
    pub part: &'static str,
    /// Number of files.
    pub files: u64,
    /// Their length in bytes, holes included.
    pub bytes: u64,
    /// Bytes that they use on the disk.
    pub disk_bytes: u64,
    /// The folder to which it leads, if it is a symbolic link.
    pub link: Option<PathBuf>,
}

/// The folder of a member of a DLedger group, whose name ends with the id of the member.
const RAFT_PART: &str = "dledger";

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

/// Describes the store at `path` without changing it.
pub fn info(
    vfs: Arc<dyn Vfs>,
    clock: Arc<dyn Clock>,
    path: &Path,
    options: &StoreOptions,
) -> Result<InfoReport, StoreError> {
    Ok(info_with(vfs, clock, path, options, |_| ())?.0)
}

/// Same as [`info()`], and also returns the result of `look` for the same store, open for reading.
///
/// # Errors
/// The errors of [`info()`].
pub fn info_with<T>(
    vfs: Arc<dyn Vfs>,
    clock: Arc<dyn Clock>,
    path: &Path,
    options: &StoreOptions,
    look: impl FnOnce(&Store) -> T,
) -> Result<(InfoReport, T), StoreError> {
    let files = StoreFiles::new(Arc::clone(&vfs), Arc::clone(&clock), path).for_reading()?;
    let store = Store::open(vfs, clock, path, OpenMode::Read, options)?;
    let stats = store.stats()?;
    let mut topics = Vec::new();
    for topic in store.topics()? {
        let queues = store.queues(&topic)?;
        topics.push((topic, queues));
    }
    let queues = || topics.iter().flat_map(|(_, queues): &(String, Vec<QueueInfo>)| queues);
    let messages = queues().map(|queue| (queue.max_offset - queue.min_offset).max(0) as u64).sum();
    let min_store_timestamp_ms = queues().filter_map(|queue| queue.min_store_timestamp_ms).min();
    let max_store_timestamp_ms = queues().filter_map(|queue| queue.max_store_timestamp_ms).max();
    let has = |name: &str| files.vfs.stat(&files.root.join(name)).is_ok();
    let rocksdb_queues = files.rocksdb_queues();
    let config = files.rocksdb_config().into_iter().map(|(folder, _)| folder);
    let others =
        ["kvStore", "rocksdbstore"].into_iter().filter(|name| has(name)).map(|name| files.root.join(name));
    let rocksdb_folders: Vec<PathBuf> = rocksdb_queues.iter().cloned().chain(config).chain(others).collect();
    let holder = files.vfs.lock_holder(&files.lock()).ok().flatten();
    let is_part = |name: &&str| {
        if files.tiered().is_some() {
            false
        } else if files.is_bare_log() {
            *name == "commitlog"
        } else {
            has(name)
        }
    };
    let mut parts: Vec<&'static str> = PARTS.into_iter().filter(is_part).collect();
    let raft = match files.raft_log() {
        Some(log) => {
            parts.insert(usize::from(has("commitlog")), RAFT_PART);
            Some(raft_info(&files, log, &store.segments(), stats.log_max_offset)?)
        }
        None => None,
    };
    let mut notes = store.notes();
    if files.is_bare_log() {
        notes.insert(0, "a log without a store: no other files were read".to_owned());
    }
    let consumers = store.group_table()?.saved_offsets(&mut notes)?;
    let popped = store.popped().unwrap_or_else(|error| {
        let notes = vec![format!("the messages that a broker popped are not shown ({error})")];
        PopState { notes, ..PopState::default() }
    });
    notes.extend(popped.notes);
    let more = look(&store);
    let writer = holder.map(|_| writer_pid(&files));
    let report = InfoReport {
        layout: match (!rocksdb_queues.is_empty(), has("consumequeue")) {
            _ if files.tiered().is_some() => "tiered-files",
            (true, _) => "rocksdb-queues",
            (false, true) => "file-queues",
            (false, false) => "log-only",
        },
        written_by: match (DurableMarkFile::new(&files).load().is_some(), has("rocksdbstore")) {
            _ if files.is_bare_log() => "unknown",
            (true, _) => "mqstore",
            (false, true) => "rocketmq-5.5",
            (false, false) => "rocketmq",
        },
        clean: files.vfs.stat(&files.abort()).is_err(),
        segment_size: stats.segment_bytes,
        geometry: store.inspection().geometry()?,
        log_min_offset: stats.log_min_offset,
        log_max_offset: stats.log_max_offset,
        min_store_timestamp_ms,
        max_store_timestamp_ms,
        messages,
        hours: match (min_store_timestamp_ms, max_store_timestamp_ms) {
            // The files of a tiered store are not in the order of their times.
            _ if files.tiered().is_some() => Vec::new(),
            (Some(first), Some(last)) => hours(&store.segments(), stats.log_max_offset, (first, last))?,
            _ => Vec::new(),
        },
        topics,
        disk: parts.iter().map(|part| part_size(&files, part)).collect(),
        parts,
        consumers,
        popped: popped.queues,
        raft,
        tiered: files.tiered().map(TieredInfo::of),
        rocksdb: !rocksdb_folders.is_empty(),
        rocksdb_folders,
        writer,
        writer_files: writer.flatten().and_then(|pid| files.vfs.files_of_process(u32::try_from(pid).ok()?)),
        notes,
    };
    Ok((report, more))
}

/// Sums up the files of a part in all of its folders; files that disappear meanwhile are skipped.
fn part_size(files: &StoreFiles, part: &'static str) -> PartSize {
    let link = files.link_target(part).map(Path::to_path_buf);
    let mut size = PartSize { part, files: 0, bytes: 0, disk_bytes: 0, link };
    let mut add = |path: &Path| {
        if let Ok(stat) = files.vfs.stat(path)
            && stat.kind == FileKind::File
        {
            size.files += 1;
            size.bytes += stat.len;
            size.disk_bytes += stat.allocated_bytes;
        }
    };
    let home = match files.raft_log() {
        Some(log) if part == RAFT_PART => log.folder().to_path_buf(),
        _ if part == "commitlog" => files.commit_log(),
        _ => files.folder(part),
    };
    add(&home);
    let mut folders = vec![home];
    if part == "commitlog"
        && let Ok(logs) = files.log_folders()
    {
        folders = logs.all();
    }
    while let Some(folder) = folders.pop() {
        for entry in files.vfs.list(&folder).unwrap_or_default() {
            let path = folder.join(&entry.name);
            match entry.stat.kind {
                FileKind::Directory => folders.push(path),
                _ => add(&path),
            }
        }
    }
    size
}
