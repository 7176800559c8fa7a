//! The documents that the steps of a compaction exchange, as plain values; tasks and results also as JSON.
//!
//! ```text
//! plan()     -> CompactionPlan { QueueTask, QueueTask, ... }     driver
//! run_task() -> TaskResult { OutputPair, ... }                   any process that sees the directory
//! publish()  -> CompactionReport                                 driver
//! ```
//!
//! Each document carries its version (see [`Document`]). This module validates a worker's answer, and `publish` checks
//! it against the files. No value in it is trusted.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::options::Keyless;
use crate::files::file_sizes::CompactionGeometry;
use crate::files::folder::check_names;
use crate::files::staged::OutputPair;
use crate::json::{Document, encode};
use mqstore_base::error::StoreError;

/// The work that a driver has planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactionPlan {
    /// Id of the job. To publish the same job a second time does nothing.
    pub job_id: String,
    /// The store's root, as the driver and the workers see it.
    pub root: PathBuf,
    /// One task for each queue that has something to compact.
    pub tasks: Vec<QueueTask>,
    /// Queues and topics that were left out, each with the reason.
    pub skipped: Vec<String>,
    /// The report of this job if it is already published; then there are no tasks.
    pub published: Option<CompactionReport>,
}

/// The compaction of one queue, with all values that a worker needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueTask {
    /// The job.
    pub job_id: String,
    /// The content of the job's token file. A worker compares it to make sure that it sees the same directory.
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
    /// Maximum bytes of the map of keys.
    pub memory_bytes: u64,
    /// Whether keys are compared in full instead of by their MD5.
    pub confirm_keys: bool,
    /// The treatment of records without a key.
    pub keyless: Keyless,
    /// Tombstones below this queue offset have been kept long enough.
    pub tombstones_below: i64,
    /// Values stored up to this time in milliseconds have expired; `None` if values do not expire.
    #[serde(default)]
    pub expired_to_ms: Option<i64>,
    /// The state of the queue's compaction files when the job was planned.
    pub generation: String,
    /// One past the last queue offset in them, or that was read for them; 0 without files.
    pub previous_end: i64,
    /// Whether the messages before the commit log come from `mqstore/restore` instead of the queue's own files.
    #[serde(default)]
    pub restored: bool,
    /// Estimated number of records that the task reads.
    pub records: u64,
    /// The following part of the commit log.
    pub log: LogPart,
}

/// The records of the commit log that a task reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPart {
    /// The first queue offset to take from the consume queue.
    pub queue_from: i64,
    /// One past the last one; equal to `queue_from` if the queue is not used.
    pub queue_to: i64,
    /// Bytes of a consume-queue file.
    pub queue_file_bytes: u64,
    /// The log offset from which the task walks the log itself.
    pub scan_from: u64,
    /// Log offset at which the topic was last deleted: the task takes no record before it.
    #[serde(default)]
    pub floor: u64,
    /// The end of the snapshot; the task reads nothing from this log offset on.
    pub log_end: u64,
}

/// The worker that ran a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// Process id.
    pub pid: u32,
    /// Host name.
    pub host: String,
    /// The file from which this code was loaded.
    pub module: String,
}

/// The last commit-log record that a task read. The driver checks that the log still has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogTail {
    /// Its log offset.
    pub physical_offset: u64,
    /// Its size in bytes.
    pub size: u32,
    /// Its queue offset.
    pub queue_offset: i64,
    /// Its store timestamp in milliseconds.
    #[serde(rename = "store_timestamp_ms")]
    pub store_timestamp: i64,
}

/// The counts of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskCounts {
    /// Records read.
    pub before: u64,
    /// Records kept.
    pub survivors: u64,
    /// Distinct keys, deleted ones included.
    pub keys: u64,
    /// Records without a key.
    pub keyless: u64,
    /// Tombstones: keyed records without a body.
    pub tombstones: u64,
    /// Tombstones that were kept.
    pub tombstones_kept: u64,
    /// Newest values of their keys that were dropped because they have expired.
    #[serde(default)]
    pub expired: u64,
    /// Bytes of the records read.
    pub bytes_before: u64,
    /// Bytes of the records kept.
    pub bytes_after: u64,
    /// Number of times that the map of keys was filled.
    pub rounds: u64,
}

/// The result of one attempt of a task.
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
    /// Reason why there is no output, if the queue could not be compacted.
    pub failed: Option<String>,
    /// The counts.
    pub counts: TaskCounts,
    /// The written files.
    pub pairs: Vec<OutputPair>,
    /// The last commit-log record read, if there was one.
    pub log_tail: Option<LogTail>,
    /// The queue offset of the last keyed record read.
    pub position: Option<i64>,
    /// The queue offset of the first kept tombstone.
    pub first_tombstone: Option<i64>,
    /// The store time in milliseconds of the oldest kept value.
    #[serde(default)]
    pub oldest_ms: Option<i64>,
    /// The worker.
    pub worker: WorkerInfo,
}

/// The report of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactionReport {
    /// The job.
    pub job_id: String,
    /// Records read.
    pub messages_before: u64,
    /// Records in the new generations.
    pub messages_after: u64,
    /// Distinct keys, deleted ones included.
    pub keys: u64,
    /// Records without a key.
    pub keyless: u64,
    /// Tombstones: records that delete their key.
    pub tombstones: u64,
    /// Tombstones that were kept for slow readers.
    pub tombstones_kept: u64,
    /// Newest values of their keys that were dropped because they have expired.
    #[serde(default)]
    pub expired: u64,
    /// The largest number of times that the map of keys was filled for one queue.
    pub rounds: u64,
    /// Bytes of the records read.
    pub bytes_before: u64,
    /// Bytes of the records in the new generations.
    pub bytes_after: u64,
    /// Milliseconds from the plan to the publication.
    pub elapsed_ms: u64,
    /// Queues and topics that were left out, each with the reason.
    pub skipped: Vec<String>,
    /// The published queues: topic, queue, counts and worker, as JSON.
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
    /// Creates the result of an attempt that has done nothing yet.
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
            oldest_ms: None,
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
        self.expired = self.expired.saturating_add(counts.expired);
        self.bytes_before = self.bytes_before.saturating_add(counts.bytes_before);
        self.bytes_after = self.bytes_after.saturating_add(counts.bytes_after);
        self.rounds = self.rounds.max(counts.rounds);
    }

    /// Encodes the report.
    ///
    /// # Errors
    /// None: JSON can encode each value of a report.
    pub fn to_json(&self) -> Result<String, StoreError> {
        encode("compaction report", self)
    }
}
