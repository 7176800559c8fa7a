//! The files of one compacted queue, and a token that shows changes of them.
//!
//! Owns the classification of `compactionLog/<topic>/<queueId>` and `compactionCq/<topic>/<queueId>`, and the
//! *generation token*, by which a job detects changes by another program. Never writes.
//!
//! ```text
//! <root>/compaction/compactionLog/<topic>/<queueId>/00000000000000000000      records
//! <root>/compaction/compactionCq/<topic>/<queueId>/00000000000000000000       46-byte units, same name
//!                                                  compacting/ replicating/   unfinished work of a broker
//! ```
//!
//! Source: `CompactionStore`, `CompactionLog.TopicPartitionLog`, `SparseConsumeQueue#createFile`.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use mqstore_format::{key_digest, parse_offset_file_name, parse_queue_dir_name, validate_stored_topic};
use mqstore_io::{DirEntry, FileKind};

use super::file_sizes::CompactionGeometry;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

/// Folder of the logs below `compaction/`.
pub(crate) const LOG_DIR: &str = "compactionLog";

/// Folder of the sparse queues below `compaction/`.
pub(crate) const QUEUE_DIR: &str = "compactionCq";

/// The problem of a queue file without a log, and the remedy.
pub const WITHOUT_LOG: &str = "has no log file of the same name, and nothing compacts its queue while it is there: let \
                               the broker that was stopped during its switch of files finish, or move the file away, \
                               then compact";

/// Folder of a broker's output while its compaction runs.
const COMPACTING_DIR: &str = "compacting";

/// A log or queue file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataFile {
    /// The compaction-log position of the pair's first byte; also the name.
    pub base: u64,
    /// Byte length of the file.
    pub len: u64,
    pub(crate) inode: u64,
    /// Path of the file.
    pub path: PathBuf,
}

/// A log file and its queue file.
#[derive(Clone, Debug)]
pub struct FilePair {
    /// The log file.
    pub log: DataFile,
    /// Missing if a broker stopped between the creation of the two.
    pub queue: Option<DataFile>,
}

/// The content of the two folders of a queue.
#[derive(Clone, Debug)]
pub struct QueueFolder {
    /// Files in ascending base.
    pub pairs: Vec<FilePair>,
    /// Queue files without a log file of the same name.
    pub without_log: Vec<DataFile>,
    /// Reasons why a new generation must not replace these files.
    pub(crate) blocked: Vec<String>,
    lines: String,
}

/// `<compaction>/<kind>/<topic>/<queueId>`.
pub(crate) fn queue_dir(compaction: &Path, kind: &str, topic: &str, queue_id: i32) -> PathBuf {
    compaction.join(kind).join(topic).join(queue_id.to_string())
}

/// Lists `dir`; no names if it does not exist.
pub(crate) fn list_or_none(files: &StoreFiles, dir: &Path) -> Result<Vec<DirEntry>, StoreError> {
    match files.vfs.list(dir) {
        Ok(entries) => Ok(entries),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(StoreError::io(dir, "listing a folder", error)),
    }
}

impl QueueFolder {
    /// Creates a folder without files.
    pub(crate) fn empty() -> Self {
        Self { pairs: Vec::new(), without_log: Vec::new(), blocked: Vec::new(), lines: String::new() }
    }

    /// Lists the files of a queue below `compaction`; folders that do not exist are empty.
    pub fn load(
        files: &StoreFiles,
        compaction: &Path,
        topic: &str,
        queue_id: i32,
    ) -> Result<Self, StoreError> {
        let logs = queue_dir(compaction, LOG_DIR, topic, queue_id);
        Self::load_from(files, &logs, &queue_dir(compaction, QUEUE_DIR, topic, queue_id))
    }

    /// Lists the files of a queue whose logs and sparse queues are in these two folders.
    pub(crate) fn load_from(files: &StoreFiles, logs: &Path, queues: &Path) -> Result<Self, StoreError> {
        let mut folder = Self::empty();
        // The queue files first: a log gets its name before its queue file, so that a writer that creates both in the
        // meantime leaves no queue file without a log.
        let mut queues = folder.data_files(files, queues, "queue")?;
        let queue_lines = std::mem::take(&mut folder.lines);
        let logs = folder.data_files(files, logs, "log")?;
        folder.lines.push_str(&queue_lines);
        for log in logs {
            let at = queues.iter().position(|queue| queue.base == log.base);
            folder.pairs.push(FilePair { log, queue: at.map(|at| queues.remove(at)) });
        }
        // The state after an incomplete switch of a broker, or in a copy of a directory that changed meanwhile.
        for queue in queues {
            folder.blocked.push(format!("{} {WITHOUT_LOG}", queue.path.display()));
            folder.without_log.push(queue);
        }
        Ok(folder)
    }

    fn data_files(
        &mut self,
        files: &StoreFiles,
        dir: &Path,
        kind: &str,
    ) -> Result<Vec<DataFile>, StoreError> {
        let mut found = Vec::new();
        let entries = list_or_none(files, dir)?;
        let last = entries.len().saturating_sub(1);
        for (at, entry) in entries.into_iter().enumerate() {
            let path = dir.join(&entry.name);
            let stat = entry.stat;
            let _ = writeln!(self.lines, "{kind} {} {} {}", entry.name.display(), stat.len, stat.inode);
            let base = entry.name.to_str().and_then(parse_offset_file_name);
            match (stat.kind, base) {
                // Partial copies of existing files; each run of a broker creates them again.
                (FileKind::Directory, _) if entry.name == COMPACTING_DIR => {}
                (FileKind::Directory, _) => self.block_unless_empty(files, &path)?,
                // RocketMQ deletes an empty last file when it loads.
                (FileKind::File, Some(_)) if stat.len == 0 && at == last => {}
                (FileKind::File, Some(base)) => {
                    found.push(DataFile { base, len: stat.len, inode: stat.inode, path });
                }
                _ => self.blocked.push(format!(
                    "{} is not a file of a compacted queue: a broker stopped during its switch of files, or another \
                     program created it; move it away once its content is safe",
                    path.display()
                )),
            }
        }
        found.sort_by_key(|file| file.base);
        if let [first, rest @ ..] = found.as_slice()
            && let Some(odd) = rest.iter().find(|file| file.len != first.len)
        {
            self.blocked.push(format!(
                "{} has {} bytes where {} has {}",
                odd.path.display(),
                odd.len,
                first.path.display(),
                first.len
            ));
        }
        Ok(found)
    }

    fn block_unless_empty(&mut self, files: &StoreFiles, dir: &Path) -> Result<(), StoreError> {
        if !list_or_none(files, dir)?.is_empty() {
            self.blocked.push(format!(
                "{} contains files of a broker's unfinished work; let that broker finish it first",
                dir.display()
            ));
        }
        Ok(())
    }

    /// Returns the lengths of the existing files.
    pub(crate) fn geometry(&self) -> Option<CompactionGeometry> {
        self.pairs
            .iter()
            .find_map(|pair| CompactionGeometry::of_existing(pair.log.len, pair.queue.as_ref()?.len))
    }

    /// Returns a token that changes if a file is created, removed, replaced or appended to.
    ///
    /// An append does not change lengths, because files have their full length from the start. It changes the last
    /// valid unit, which the caller passes as `last_entry`.
    pub(crate) fn token(&self, last_entry: &[u8]) -> String {
        hex(&key_digest(&format!("{}{}", self.lines, hex(last_entry))))
    }
}

/// Returns a token of these files; `last_entry` is the last valid unit of the last one. It changes if a file is
/// replaced or appended to.
pub(crate) fn token_of(pairs: &[FilePair], last_entry: &[u8]) -> String {
    let mut lines = String::new();
    for file in pairs.iter().flat_map(|pair| [Some(&pair.log), pair.queue.as_ref()]) {
        let _ = match file {
            Some(file) => writeln!(lines, "{} {} {}", file.base, file.len, file.inode),
            None => writeln!(lines, "-"),
        };
    }
    hex(&key_digest(&format!("{lines}{}", hex(last_entry))))
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the queue ids with a folder for `topic` below `compaction`, ascending.
pub(crate) fn queue_ids(files: &StoreFiles, compaction: &Path, topic: &str) -> Result<Vec<i32>, StoreError> {
    let mut ids = Vec::new();
    for kind in [LOG_DIR, QUEUE_DIR] {
        for entry in list_or_none(files, &compaction.join(kind).join(topic))? {
            if entry.stat.kind == FileKind::Directory
                && let Some(id) = entry.name.to_str().and_then(parse_queue_dir_name)
            {
                ids.push(id);
            }
        }
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// Returns the topics with a folder below `compaction`, sorted; invalid topic names are skipped.
pub(crate) fn topics(files: &StoreFiles, compaction: &Path) -> Result<Vec<String>, StoreError> {
    let mut topics = Vec::new();
    for entry in list_or_none(files, &compaction.join(LOG_DIR))? {
        if entry.stat.kind == FileKind::Directory
            && let Some(topic) = entry.name.to_str().filter(|topic| validate_stored_topic(topic).is_ok())
        {
            topics.push(topic.to_owned());
        }
    }
    Ok(topics)
}

/// Refuses a topic or queue id that is not a single path component.
pub(crate) fn check_names(topic: &str, queue_id: i32) -> Result<(), StoreError> {
    validate_stored_topic(topic)
        .map_err(|error| StoreError::InvalidOption { option: "topics", reason: error.to_string() })?;
    if queue_id < 0 {
        return Err(StoreError::TopicNotFound { topic: topic.to_owned(), queue_id: Some(queue_id) });
    }
    Ok(())
}

/// Opens a data file, and checks that it is still the listed one.
pub fn open_listed(
    files: &StoreFiles,
    file: &DataFile,
) -> Result<Option<std::sync::Arc<dyn mqstore_io::VfsFile>>, StoreError> {
    let open = match files.vfs.open(&file.path, mqstore_io::Access::Read) {
        Ok(open) => open,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::io(&file.path, "opening a compaction file", error)),
    };
    let stat = open.stat().at(&file.path, "looking at a compaction file")?;
    Ok((stat.inode == file.inode && stat.len == file.len).then_some(open))
}
