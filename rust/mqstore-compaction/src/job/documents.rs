//! What the steps of a compaction hand to each other, as plain values; tasks and results also as JSON.
//!
//! ```text
//! plan()     -> CompactionPlan { QueueTask, QueueTask, ... }     driver
//! run_task() -> TaskResult { OutputPair, ... }                   any process that sees the directory
//! publish()  -> CompactionReport                                 driver
//! ```
//!
//! Each document carries its version (see [`Document`]). An answer of a worker is validated here, and against the
//! files by `publish`; nothing in it is trusted.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::json::{Document, encode};
use super::options::Keyless;
use crate::files::file_sizes::CompactionGeometry;
use crate::files::folder::check_names;
use mqstore_base::error::StoreError;

/// What a driver has decided to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactionPlan {
    /// Names the job; publishing the same job twice does nothing the second time.
    pub job_id: String,
    /// The store's root, as the driver and the workers see it.
    pub root: PathBuf,
    /// One a queue that has something to compact.
    pub tasks: Vec<QueueTask>,
    /// Queues and topics that were left out, each with the reason.
    pub skipped: Vec<String>,
    /// The report of this job when it was published before; there are no tasks then.
    pub published: Option<CompactionReport>,
}

/// The compaction of one queue, complete in itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueTask {
    /// The job.
    pub job_id: String,
    /// The content of the job's token file, by which a worker knows that it sees the same directory.
    pub nonce: String,
    /// The store's root.
    pub root: PathBuf,
    /// The topic.
    pub topic: String,
    /// The queue.
    pub queue_id: i32,
    /// Lengths of the new files.
    #[serde(flatten)]
    pub geometry: CompactionGeometry,
    /// Bytes that the map of keys may take.
    pub memory_bytes: u64,
    /// Whether keys are compared in full, and not by their MD5.
    pub confirm_keys: bool,
    /// What becomes of records without a key.
    pub keyless: Keyless,
    /// Records without a body below this queue offset have been kept for long enough.
    pub tombstones_below: i64,
    /// The state of the queue's compaction files when the job was planned.
    pub generation: String,
    /// One past the last queue offset that is in them or was read for them; 0 when there are none.
    pub previous_end: i64,
    /// Whether what precedes the commit log comes from `mqstore/restore`, and not from the queue's own files.
    #[serde(default)]
    pub restored: bool,
    /// How many records the task is going to find, about.
    pub records: u64,
    /// The part of the commit log that follows.
    pub log: LogPart,
}

/// Which records of the commit log a task reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPart {
    /// The first queue offset to take from the consume queue.
    pub queue_from: i64,
    /// One past the last one; equal to `queue_from` when the queue is not to be used.
    pub queue_to: i64,
    /// Bytes of a consume-queue file.
    pub queue_file_bytes: u64,
    /// The log position from which records are looked for in the log itself.
    pub scan_from: u64,
    /// The end of the snapshot; nothing at or behind it is read.
    pub log_end: u64,
}

/// Who ran a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// The process.
    pub pid: u32,
    /// The machine.
    pub host: String,
    /// The file that this code was loaded from.
    pub module: String,
}

/// The last commit-log record that a task read, by which the driver sees that the log still has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogTail {
    /// Where it lies.
    pub physical_offset: u64,
    /// Its size in bytes.
    pub size: u32,
    /// Its queue offset.
    pub queue_offset: i64,
    /// Its store timestamp in milliseconds.
    #[serde(rename = "store_timestamp_ms")]
    pub store_timestamp: i64,
}

/// A file that a task wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputFile {
    /// Bytes up to the last one that is not zero fill.
    pub used_bytes: u64,
    /// `crc31` of them.
    pub crc: u32,
}

/// A log file and a queue file that a task wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputPair {
    /// Their name.
    pub base: u64,
    /// Entries in the queue file, the end marker not counted.
    pub units: u64,
    /// The log file.
    pub log: OutputFile,
    /// The queue file.
    pub queue: OutputFile,
}

/// What a task counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskCounts {
    /// Records read.
    pub before: u64,
    /// Records kept.
    pub survivors: u64,
    /// Distinct keys met, deleted ones included.
    pub keys: u64,
    /// Records without a key.
    pub keyless: u64,
    /// Keyed records without a body, which delete their key.
    pub tombstones: u64,
    /// Those of them that were kept.
    pub tombstones_kept: u64,
    /// Bytes of the records read.
    pub bytes_before: u64,
    /// Bytes of the records kept.
    pub bytes_after: u64,
    /// How often the digest map was filled.
    pub rounds: u64,
}

/// What one attempt of a task did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskResult {
    /// The job.
    pub job_id: String,
    /// The topic.
    pub topic: String,
    /// The queue.
    pub queue_id: i32,
    /// The staging folder, below the job's folder.
    pub staging: String,
    /// Why there is no output, when the queue could not be compacted.
    pub failed: Option<String>,
    /// What was counted.
    pub counts: TaskCounts,
    /// What was written.
    pub pairs: Vec<OutputPair>,
    /// The last commit-log record read, if any was.
    pub log_tail: Option<LogTail>,
    /// The queue offset of the last keyed record read.
    pub position: Option<i64>,
    /// The queue offset of the first tombstone that was kept.
    pub first_tombstone: Option<i64>,
    /// Who did it.
    pub worker: WorkerInfo,
}

/// What a job did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactionReport {
    /// The job.
    pub job_id: String,
    /// Records read.
    pub messages_before: u64,
    /// Records in the new generations.
    pub messages_after: u64,
    /// Distinct keys met, deleted ones included.
    pub keys: u64,
    /// Records without a key.
    pub keyless: u64,
    /// Records that delete their key.
    pub tombstones: u64,
    /// Those of them that were kept for slow readers.
    pub tombstones_kept: u64,
    /// The most often that one queue's digest map was filled.
    pub rounds: u64,
    /// Bytes of the records read.
    pub bytes_before: u64,
    /// Bytes of the records in the new generations.
    pub bytes_after: u64,
    /// From the plan to the publication, in milliseconds.
    pub elapsed_ms: u64,
    /// What was left out, each with its reason.
    pub skipped: Vec<String>,
    /// The queues that were published: topic, queue, counts and worker, as JSON.
    pub queues: Vec<Value>,
}

impl Document for QueueTask {
    const WHAT: &'static str = "compaction task";

    fn validate(&self) -> Result<(), StoreError> {
        check_names(&self.topic, self.queue_id)
    }
}

impl Document for TaskResult {
    const WHAT: &'static str = "compaction result";

    fn validate(&self) -> Result<(), StoreError> {
        check_names(&self.topic, self.queue_id)
    }
}

impl TaskResult {
    /// The result of an attempt that has not done anything yet.
    pub(crate) fn begun(task: &QueueTask, staging: &str, worker: WorkerInfo) -> Self {
        Self {
            job_id: task.job_id.clone(),
            topic: task.topic.clone(),
            queue_id: task.queue_id,
            staging: staging.to_owned(),
            failed: None,
            counts: TaskCounts::default(),
            pairs: Vec::new(),
            log_tail: None,
            position: None,
            first_tombstone: None,
            worker,
        }
    }
}

impl CompactionReport {
    /// Adds the counts of a queue.
    pub(crate) fn add(&mut self, counts: &TaskCounts) {
        self.messages_before = self.messages_before.saturating_add(counts.before);
        self.messages_after = self.messages_after.saturating_add(counts.survivors);
        self.keys = self.keys.saturating_add(counts.keys);
        self.keyless = self.keyless.saturating_add(counts.keyless);
        self.tombstones = self.tombstones.saturating_add(counts.tombstones);
        self.tombstones_kept = self.tombstones_kept.saturating_add(counts.tombstones_kept);
        self.bytes_before = self.bytes_before.saturating_add(counts.bytes_before);
        self.bytes_after = self.bytes_after.saturating_add(counts.bytes_after);
        self.rounds = self.rounds.max(counts.rounds);
    }

    /// Encodes the report.
    ///
    /// # Errors
    /// None is known: a report holds nothing that JSON cannot say.
    pub fn to_json(&self) -> Result<String, StoreError> {
        encode("compaction report", self)
    }
}
