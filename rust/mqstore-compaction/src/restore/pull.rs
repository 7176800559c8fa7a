//! Pulls one queue from another store into the queue's folder below `mqstore/restore`.
//!
//! ```text
//! decide    the queues whose compaction files end before their first message in the commit log
//! pull      other store, offsets 0 .. first message here  ->  mqstore/restore/<topic>/<queue id>/
//!             log/0000… cq/0000…    messages in the format of compaction files
//!             progress.json         the complete files, and the next offset to pull
//! compact   mqstore/restore/… and the commit log  ->  the next generation, published as always
//! ```
//!
//! The pulled messages replace the remaining compaction files, because a lost message may have deleted a remaining one.
//! Files are not copied, because the other store may compact the queue meanwhile. If it does, the queue is pulled again
//! from its first offset.
//!
//! Owns that folder's files and its `progress.json`, which is replaced in one step after each pair of files is closed
//! and synced. After a crash, the next restore removes all files that `progress.json` does not name, and continues
//! after the last complete one.

use std::io;
use std::path::Path;

use mqstore_format::RecordView;
use serde::{Deserialize, Serialize};

use crate::files::file_sizes::CompactionGeometry;
use crate::files::folder::list_or_none;
use crate::files::restored::{queue_dir, remove, restored_folder};
use crate::files::staged::{STAGED_LOGS, STAGED_QUEUES};
use crate::job::control::{JobControl, TaskMeter};
use crate::job::job_folder::make_dir;
use crate::job::survivor_writer::GenerationWriter;
use crate::json::Document;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::message::StoredRecord;
use mqstore_base::store_files::StoreFiles;

const PROGRESS_FILE: &str = "progress.json";
const PROGRESS_LIMIT_BYTES: u64 = 1 << 20;

/// Maximum number of times that a queue is pulled again because the other store compacted it meanwhile.
const MOST_PULLS: u32 = 5;

/// A store that still has the lost messages.
pub trait RestoreSource {
    /// Its directory.
    fn root(&self) -> &Path;

    /// Returns a text that changes if it compacts the queue; the inner error is the reason why it does not have all
    /// messages before `until`.
    fn generation(
        &self,
        topic: &str,
        queue_id: i32,
        until: i64,
    ) -> Result<Result<String, String>, StoreError>;

    /// Returns the message at an offset, if it still has it.
    fn message_at(&self, topic: &str, queue_id: i32, offset: i64)
    -> Result<Option<StoredRecord>, StoreError>;

    /// Calls `visit` with each message from offset `from` to before `until`, ascending.
    fn pull(
        &self,
        topic: &str,
        queue_id: i32,
        from: i64,
        until: i64,
        visit: &mut dyn FnMut(&RecordView<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError>;
}

/// A restored queue, or in a dry run one to restore.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RestoredQueue {
    /// The topic.
    pub topic: String,
    /// The queue.
    pub queue_id: i32,
    /// One past the last lost offset: the first offset in this store's commit log.
    pub until: i64,
    /// Number of messages that this restore pulled.
    pub messages: u64,
    /// Bytes of their records.
    pub bytes: u64,
    /// Number of messages that an earlier restore had pulled.
    pub resumed: u64,
}

/// A queue whose compaction files lack messages that the commit log no longer has.
pub(super) struct MissingQueue {
    pub(super) topic: String,
    pub(super) queue_id: i32,
    pub(super) until: i64,
    pub(super) geometry: CompactionGeometry,
}

/// The progress of a queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Progress {
    source: String,
    generation: String,
    #[serde(flatten)]
    geometry: CompactionGeometry,
    /// Number of complete files of each kind.
    pairs: u64,
    /// Number of messages in them.
    messages: u64,
    /// The next offset to pull.
    next: i64,
}

impl Document for Progress {
    const WHAT: &'static str = "restore progress";
}

impl Progress {
    /// Reads the progress of an earlier restore; `None` if there is none that can be used.
    fn load(files: &StoreFiles, dir: &Path) -> Result<Option<Self>, StoreError> {
        let path = dir.join(PROGRESS_FILE);
        match files.vfs.read_file(&path, PROGRESS_LIMIT_BYTES) {
            Ok(bytes) => Ok(Self::from_json(bytes).ok()),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(None)
            }
            Err(error) => Err(StoreError::io(&path, "reading how far a restore came", error)),
        }
    }

    fn write(&self, files: &StoreFiles, dir: &Path) -> Result<(), StoreError> {
        let text = self.to_json()?;
        let path = dir.join(PROGRESS_FILE);
        files
            .vfs
            .write_atomic(&path, &dir.join("progress.json.tmp"), text.as_bytes())
            .at(&path, "noting how far a restore came")
    }
}

/// The pull of one queue.
pub(super) struct QueuePull<'a> {
    pub(super) files: &'a StoreFiles,
    pub(super) source: &'a dyn RestoreSource,
    pub(super) lack: &'a MissingQueue,
    pub(super) control: &'a JobControl,
}

impl QueuePull<'_> {
    /// Pulls the missing messages; returns the reason if that is impossible.
    pub(super) fn run(&self, report: &mut RestoredQueue) -> Result<Option<String>, StoreError> {
        let lack = self.lack;
        let dir = queue_dir(self.files, &lack.topic, lack.queue_id);
        for _ in 0..MOST_PULLS {
            let generation = match self.generation()? {
                Ok(generation) => generation,
                Err(reason) => return Ok(Some(reason)),
            };
            let progress = self.begin(&dir, generation)?;
            report.resumed = progress.messages;
            self.resume(&dir, progress.clone(), report)?;
            if self.generation()?.as_ref() == Ok(&progress.generation) {
                return Ok(None);
            }
            remove(self.files, &dir)?;
        }
        Ok(Some("the other store compacts the queue faster than it can be pulled; try again".to_owned()))
    }

    fn generation(&self) -> Result<Result<String, String>, StoreError> {
        self.source.generation(&self.lack.topic, self.lack.queue_id, self.lack.until)
    }

    /// Prepares the folder: removes incomplete files of an earlier restore, or creates a new folder.
    fn begin(&self, dir: &Path, generation: String) -> Result<Progress, StoreError> {
        let files = self.files;
        let source = self.source.root().display().to_string();
        if let Some(progress) = Progress::load(files, dir)?
            && (&progress.source, &progress.generation) == (&source, &generation)
            && progress.next <= self.lack.until
            && self.keep_complete(dir, &progress)?
        {
            return Ok(progress);
        }
        remove(files, dir)?;
        make_dir(files, &files.side(), &files.root)?;
        make_dir(files, &files.restore(), &files.side())?;
        let topic = files.restore().join(&self.lack.topic);
        make_dir(files, &topic, &files.restore())?;
        make_dir(files, dir, &topic)?;
        for name in [STAGED_LOGS, STAGED_QUEUES] {
            make_dir(files, &dir.join(name), dir)?;
        }
        Ok(Progress { source, generation, geometry: self.lack.geometry, pairs: 0, messages: 0, next: 0 })
    }

    /// Removes incomplete files; returns whether all complete ones exist.
    fn keep_complete(&self, dir: &Path, progress: &Progress) -> Result<bool, StoreError> {
        let end = progress.geometry.log_file_bytes.saturating_mul(progress.pairs);
        for name in [STAGED_LOGS, STAGED_QUEUES] {
            let folder = dir.join(name);
            for entry in list_or_none(self.files, &folder)? {
                let base = entry.name.to_str().and_then(mqstore_format::parse_offset_file_name);
                if base.is_none_or(|base| base >= end) {
                    let path = folder.join(&entry.name);
                    self.files.vfs.remove_file(&path).at(&path, "removing an unfinished file")?;
                }
            }
        }
        let folder = restored_folder(self.files, &self.lack.topic, self.lack.queue_id)?;
        Ok(folder.pairs.len() as u64 == progress.pairs
            && folder.pairs.iter().all(|pair| pair.queue.is_some()))
    }

    fn resume(
        &self,
        dir: &Path,
        mut progress: Progress,
        report: &mut RestoredQueue,
    ) -> Result<(), StoreError> {
        let (files, lack) = (self.files, self.lack);
        let before = progress.pairs;
        let mut writer = GenerationWriter::behind(files, dir, progress.geometry, before);
        let mut meter = TaskMeter::start(files, self.control)?;
        let mut messages = progress.messages;
        let from = progress.next;
        let mut visit = |record: &RecordView<'_>| {
            meter.read(record.size)?;
            meter.wrote(record.size);
            writer.append(record)?;
            if before + writer.closed() > progress.pairs {
                // The record is the first one of the next file.
                writer.sync_closed()?;
                progress.pairs = before + writer.closed();
                (progress.messages, progress.next) = (messages, record.queue_offset);
                progress.write(files, dir)?;
            }
            messages += 1;
            report.messages += 1;
            report.bytes += u64::from(record.size);
            Ok(())
        };
        if from < lack.until {
            self.source.pull(&lack.topic, lack.queue_id, from, lack.until, &mut visit)?;
        }
        meter.look()?;
        let written = writer.finish(false)?;
        written.sync(files)?;
        progress.pairs = before + written.pairs().len() as u64;
        (progress.messages, progress.next) = (messages, lack.until);
        progress.write(files, dir)
    }
}
