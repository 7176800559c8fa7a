//! What the steps of a compaction hand to each other, as plain values and as JSON.
//!
//! ```text
//! plan()     -> CompactionPlan { QueueTask, QueueTask, ... }     driver
//! run_task() -> TaskResult { OutputPair, ... }                   any process that sees the directory
//! publish()  -> CompactionReport                                 driver
//! ```
//!
//! Each document carries its version. What comes back from a worker is checked field by field here
//! and against the files by `publish`; nothing in it is trusted.

use std::path::PathBuf;

use mqstore_format::offset_file_name;
use serde_json::{Value, json};

use super::json::{Fields, VERSION, malformed, parse};
use super::options::Keyless;
use crate::files::folder::check_names;
use crate::files::geometry::CompactionGeometry;
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
    pub restored: bool,
    /// How many records the task is going to find, about.
    pub records: u64,
    /// The part of the commit log that follows.
    pub log: LogPart,
}

/// Which records of the commit log a task reads.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Worker {
    /// The process.
    pub pid: u32,
    /// The machine.
    pub host: String,
    /// The file that this code was loaded from.
    pub module: String,
}

/// The last commit-log record that a task read, by which the driver sees that the log still has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogTail {
    /// Where it lies.
    pub physical_offset: u64,
    /// Its size in bytes.
    pub size: u32,
    /// Its queue offset.
    pub queue_offset: i64,
    /// Its store timestamp in milliseconds.
    pub store_timestamp: i64,
}

/// A file that a task wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputFile {
    /// Bytes up to the last one that is not zero fill.
    pub used_bytes: u64,
    /// `crc31` of them.
    pub crc: u32,
}

/// A log file and a queue file that a task wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
    pub counts: Counts,
    /// What was written.
    pub pairs: Vec<OutputPair>,
    /// The last commit-log record read, if any was.
    pub log_tail: Option<LogTail>,
    /// The queue offset of the last keyed record read.
    pub position: Option<i64>,
    /// The queue offset of the first tombstone that was kept.
    pub first_tombstone: Option<i64>,
    /// Who did it.
    pub worker: Worker,
}

/// What a job did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

impl CompactionPlan {
    /// As JSON.
    pub fn to_json(&self) -> Result<String, StoreError> {
        let tasks = self.tasks.iter().map(QueueTask::to_value).collect::<Result<Vec<_>, _>>()?;
        Ok(json!({
            "version": VERSION,
            "job_id": self.job_id,
            "root": root_text(&self.root)?,
            "tasks": tasks,
            "skipped": self.skipped,
            "published": self.published.as_ref().map(CompactionReport::to_value),
        })
        .to_string())
    }

    /// From JSON.
    ///
    /// # Errors
    /// [`StoreError::InvalidOption`] that names the field that is missing or wrong.
    pub fn from_json(text: &str) -> Result<Self, StoreError> {
        let value = parse("compaction plan", text)?;
        let fields = Fields::versioned("compaction plan", &value)?;
        let published = fields.optional("published").map(CompactionReport::from_value).transpose()?;
        Ok(Self {
            job_id: fields.text("job_id")?.to_owned(),
            root: PathBuf::from(fields.text("root")?),
            tasks: fields.array("tasks")?.iter().map(QueueTask::from_value).collect::<Result<_, _>>()?,
            skipped: fields.texts("skipped")?,
            published,
        })
    }
}

fn root_text(root: &std::path::Path) -> Result<&str, StoreError> {
    root.to_str().ok_or_else(|| malformed("path", "is not UTF-8; a job's tasks name it in JSON"))
}

impl QueueTask {
    /// As JSON.
    pub fn to_json(&self) -> Result<String, StoreError> {
        Ok(self.to_value()?.to_string())
    }

    pub(crate) fn to_value(&self) -> Result<Value, StoreError> {
        Ok(json!({
            "version": VERSION,
            "job_id": self.job_id,
            "nonce": self.nonce,
            "root": root_text(&self.root)?,
            "topic": self.topic,
            "queue_id": self.queue_id,
            "log_file_bytes": self.geometry.log_file_bytes,
            "queue_file_bytes": self.geometry.queue_file_bytes,
            "memory_bytes": self.memory_bytes,
            "confirm_keys": self.confirm_keys,
            "keyless": self.keyless.name(),
            "tombstones_below": self.tombstones_below,
            "generation": self.generation,
            "previous_end": self.previous_end,
            "restored": self.restored,
            "records": self.records,
            "log": {
                "queue_from": self.log.queue_from,
                "queue_to": self.log.queue_to,
                "queue_file_bytes": self.log.queue_file_bytes,
                "scan_from": self.log.scan_from,
                "log_end": self.log.log_end,
            },
        }))
    }

    /// From JSON.
    ///
    /// # Errors
    /// As [`CompactionPlan::from_json`].
    pub fn from_json(text: &str) -> Result<Self, StoreError> {
        Self::from_value(&parse("compaction task", text)?)
    }

    pub(crate) fn from_value(value: &Value) -> Result<Self, StoreError> {
        let fields = Fields::versioned("compaction task", value)?;
        let log = fields.optional("log").unwrap_or(&Value::Null);
        let log = Fields::of("log part of a compaction task", log)?;
        let (topic, queue_id) = (fields.text("topic")?, fields.i32("queue_id")?);
        check_names(topic, queue_id)?;
        let geometry =
            CompactionGeometry::of_existing(fields.u64("log_file_bytes")?, fields.u64("queue_file_bytes")?)
                .ok_or_else(|| malformed("compaction task", "has file lengths that cannot be"))?;
        Ok(Self {
            job_id: fields.text("job_id")?.to_owned(),
            nonce: fields.text("nonce")?.to_owned(),
            root: PathBuf::from(fields.text("root")?),
            topic: topic.to_owned(),
            queue_id,
            geometry,
            memory_bytes: fields.u64("memory_bytes")?,
            confirm_keys: fields.flag("confirm_keys")?,
            keyless: Keyless::from_name("compaction task", fields.text("keyless")?)?,
            tombstones_below: fields.i64("tombstones_below")?,
            generation: fields.text("generation")?.to_owned(),
            previous_end: fields.i64("previous_end")?,
            restored: fields.optional("restored").is_some() && fields.flag("restored")?,
            records: fields.u64("records")?,
            log: LogPart {
                queue_from: log.i64("queue_from")?,
                queue_to: log.i64("queue_to")?,
                queue_file_bytes: log.u64("queue_file_bytes")?,
                scan_from: log.u64("scan_from")?,
                log_end: log.u64("log_end")?,
            },
        })
    }
}

impl TaskResult {
    /// The result of an attempt that has not done anything yet.
    pub(crate) fn begun(task: &QueueTask, staging: &str, worker: Worker) -> Self {
        Self {
            job_id: task.job_id.clone(),
            topic: task.topic.clone(),
            queue_id: task.queue_id,
            staging: staging.to_owned(),
            failed: None,
            counts: Counts::default(),
            pairs: Vec::new(),
            log_tail: None,
            position: None,
            first_tombstone: None,
            worker,
        }
    }

    /// As JSON.
    pub fn to_json(&self) -> String {
        self.to_value().to_string()
    }

    pub(crate) fn to_value(&self) -> Value {
        let pairs: Vec<Value> = self.pairs.iter().map(pair_value).collect();
        let tail = self.log_tail.map(|tail| {
            json!({
                "physical_offset": tail.physical_offset,
                "size": tail.size,
                "queue_offset": tail.queue_offset,
                "store_timestamp_ms": tail.store_timestamp,
            })
        });
        json!({
            "version": VERSION,
            "job_id": self.job_id,
            "topic": self.topic,
            "queue_id": self.queue_id,
            "staging": self.staging,
            "failed": self.failed,
            "counts": self.counts.to_value(),
            "pairs": pairs,
            "log_tail": tail,
            "position": self.position,
            "first_tombstone": self.first_tombstone,
            "worker": self.worker.to_value(),
        })
    }

    /// From JSON.
    ///
    /// # Errors
    /// As [`CompactionPlan::from_json`].
    pub fn from_json(text: &str) -> Result<Self, StoreError> {
        Self::from_value(&parse("compaction result", text)?)
    }

    /// From a JSON list.
    ///
    /// # Errors
    /// As [`CompactionPlan::from_json`].
    pub fn list_from_json(text: &str) -> Result<Vec<Self>, StoreError> {
        match parse("compaction results", text)? {
            Value::Array(results) => results.iter().map(Self::from_value).collect(),
            _ => Err(malformed("compaction results", "are not a JSON list")),
        }
    }

    pub(crate) fn from_value(value: &Value) -> Result<Self, StoreError> {
        let fields = Fields::versioned("compaction result", value)?;
        let (topic, queue_id) = (fields.text("topic")?, fields.i32("queue_id")?);
        check_names(topic, queue_id)?;
        let failed = fields.optional("failed").map(|_| fields.text("failed")).transpose()?;
        let position = fields.optional("position").map(|_| fields.i64("position")).transpose()?;
        let first_tombstone =
            fields.optional("first_tombstone").map(|_| fields.i64("first_tombstone")).transpose()?;
        Ok(Self {
            job_id: fields.text("job_id")?.to_owned(),
            topic: topic.to_owned(),
            queue_id,
            staging: fields.text("staging")?.to_owned(),
            failed: failed.map(str::to_owned),
            counts: Counts::from_value(fields.optional("counts").unwrap_or(&Value::Null))?,
            pairs: fields.array("pairs")?.iter().map(pair_from).collect::<Result<_, _>>()?,
            log_tail: fields.optional("log_tail").map(tail_from).transpose()?,
            position,
            first_tombstone,
            worker: Worker::from_value(fields.optional("worker").unwrap_or(&Value::Null))?,
        })
    }
}

pub(crate) fn pair_value(pair: &OutputPair) -> Value {
    let file = |file: &OutputFile| json!({"used_bytes": file.used_bytes, "crc": file.crc});
    json!({
        "name": offset_file_name(pair.base),
        "base": pair.base,
        "units": pair.units,
        "log": file(&pair.log),
        "queue": file(&pair.queue),
    })
}

pub(crate) fn pair_from(value: &Value) -> Result<OutputPair, StoreError> {
    let fields = Fields::of("file pair of a compaction result", value)?;
    let file = |name| {
        let fields =
            Fields::of("file of a compaction result", fields.optional(name).unwrap_or(&Value::Null))?;
        Ok::<_, StoreError>(OutputFile { used_bytes: fields.u64("used_bytes")?, crc: fields.u32("crc")? })
    };
    Ok(OutputPair {
        base: fields.u64("base")?,
        units: fields.u64("units")?,
        log: file("log")?,
        queue: file("queue")?,
    })
}

fn tail_from(value: &Value) -> Result<LogTail, StoreError> {
    let fields = Fields::of("log tail of a compaction result", value)?;
    Ok(LogTail {
        physical_offset: fields.u64("physical_offset")?,
        size: fields.u32("size")?,
        queue_offset: fields.i64("queue_offset")?,
        store_timestamp: fields.i64("store_timestamp_ms")?,
    })
}

impl Worker {
    pub(crate) fn to_value(&self) -> Value {
        json!({"pid": self.pid, "host": self.host, "module": self.module})
    }

    fn from_value(value: &Value) -> Result<Self, StoreError> {
        let fields = Fields::of("worker of a compaction result", value)?;
        Ok(Self {
            pid: fields.u32("pid")?,
            host: fields.text("host")?.to_owned(),
            module: fields.text("module")?.to_owned(),
        })
    }
}

impl Counts {
    pub(crate) fn to_value(self) -> Value {
        json!({
            "before": self.before,
            "survivors": self.survivors,
            "keys": self.keys,
            "keyless": self.keyless,
            "tombstones": self.tombstones,
            "tombstones_kept": self.tombstones_kept,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "rounds": self.rounds,
        })
    }

    fn from_value(value: &Value) -> Result<Self, StoreError> {
        let fields = Fields::of("counts of a compaction result", value)?;
        Ok(Self {
            before: fields.u64("before")?,
            survivors: fields.u64("survivors")?,
            keys: fields.u64("keys")?,
            keyless: fields.u64("keyless")?,
            tombstones: fields.u64("tombstones")?,
            tombstones_kept: fields.u64("tombstones_kept")?,
            bytes_before: fields.u64("bytes_before")?,
            bytes_after: fields.u64("bytes_after")?,
            rounds: fields.u64("rounds")?,
        })
    }
}

impl CompactionReport {
    /// Adds the counts of a queue.
    pub(crate) fn add(&mut self, counts: &Counts) {
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

    /// As JSON.
    pub fn to_json(&self) -> String {
        self.to_value().to_string()
    }

    /// As parsed JSON.
    pub fn to_value(&self) -> Value {
        json!({
            "job_id": self.job_id,
            "messages_before": self.messages_before,
            "messages_after": self.messages_after,
            "keys": self.keys,
            "keyless": self.keyless,
            "tombstones": self.tombstones,
            "tombstones_kept": self.tombstones_kept,
            "rounds": self.rounds,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "elapsed_ms": self.elapsed_ms,
            "skipped": self.skipped,
            "queues": self.queues,
        })
    }

    pub(crate) fn from_value(value: &Value) -> Result<Self, StoreError> {
        let fields = Fields::of("compaction report", value)?;
        Ok(Self {
            job_id: fields.text("job_id")?.to_owned(),
            messages_before: fields.u64("messages_before")?,
            messages_after: fields.u64("messages_after")?,
            keys: fields.u64("keys")?,
            keyless: fields.u64("keyless")?,
            tombstones: fields.u64("tombstones")?,
            tombstones_kept: fields.u64("tombstones_kept")?,
            rounds: fields.u64("rounds")?,
            bytes_before: fields.u64("bytes_before")?,
            bytes_after: fields.u64("bytes_after")?,
            elapsed_ms: fields.u64("elapsed_ms")?,
            skipped: fields.texts("skipped")?,
            queues: fields.array("queues")?.to_vec(),
        })
    }
}
