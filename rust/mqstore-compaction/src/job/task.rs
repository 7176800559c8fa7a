//! Compacts one queue in one worker.
//!
//! Owns [`run_task`], a step without other side effects: it reads the snapshot that the plan names, and writes new
//! files into its own staging folder, which no reader uses before the driver publishes it. It may run in any process
//! that sees the directory, any number of times, also at the same time. Attempts differ only in their folders, and
//! folders of dead attempts are removed. A returned result is complete: its files and folders are synced.
//!
//! It walks the records twice: the first walk collects the keys, the second copies the survivors.
//!
//! Source: `CompactionLog#getOffsetMap`, `#asyncPutMessage`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_io::switch;

use mqstore_format::RecordView;

use super::control::{JobControl, TaskMeter};
use super::documents::{QueueTask, TaskResult, WorkerInfo};
use super::job_folder::{check_nonce, check_staging_name};
use super::job_record::job_dir;
use super::key_map::KeyEquality;
use super::newest_by_key::{KeyCollector, NewestBits, Seed};
use super::options::Keyless;
use super::source::{OffsetRange, SourceItem, walk};
use super::survivor_rule::{RecordKind, SurvivorRule, Verdict};
use super::survivor_writer::{GenerationWriter, WrittenGeneration};
use crate::compaction_key::compaction_key;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;
use mqstore_log::commit_log::CommitLog;

/// Name of the file of keys in a staging folder.
const KEYS_FILE: &str = "keys";

/// Compacts the queue of `task` into the folder `staging`, which must be in the job's folder and must
/// not exist yet. `worker` becomes part of the result.
///
/// Damage in the source is not an error of the call: the result contains the reason why the queue was skipped.
///
/// # Errors
/// [`StoreError::NotAStore`] if this process does not see the driver's directory,
/// [`StoreError::InvalidOption`] for a staging folder elsewhere, [`StoreError::Closed`] if `control`
/// cancels the task, and I/O errors.
pub fn run_task(
    files: &StoreFiles,
    task: &QueueTask,
    staging: &Path,
    worker: WorkerInfo,
    control: &JobControl,
) -> Result<TaskResult, StoreError> {
    begin_task(files, None, task, staging, worker, control)?.finish(files)
}

/// A task whose files are written and not synced.
#[derive(Debug)]
pub(crate) struct WrittenTask {
    result: TaskResult,
    written: Option<WrittenGeneration>,
    staging: PathBuf,
    job: PathBuf,
}

impl WrittenTask {
    /// Path of the staging folder.
    pub(crate) fn staging(&self) -> &Path {
        &self.staging
    }

    /// Syncs files and folders; then the result is complete.
    pub(crate) fn finish(self, files: &StoreFiles) -> Result<TaskResult, StoreError> {
        let (staging, job) = (self.staging.as_path(), self.job.as_path());
        if let Some(written) = self.written {
            written.sync(files)?;
        }
        switch::step("compaction.sync_staging", || files.vfs.sync_dir(staging))
            .at(staging, "syncing a staging folder")?;
        switch::step("compaction.sync_staging_name", || files.vfs.sync_dir(job))
            .at(job, "syncing a job's folder")?;
        Ok(self.result)
    }
}

/// Same as [`run_task`] without the syncs; `log` is the commit log of this process if it has the store open for
/// writing.
pub(crate) fn begin_task(
    files: &StoreFiles,
    log: Option<&Arc<CommitLog>>,
    task: &QueueTask,
    staging: &Path,
    worker: WorkerInfo,
    control: &JobControl,
) -> Result<WrittenTask, StoreError> {
    run_attempt(files, task, staging, worker, |result| {
        compact(&TaskInput { files, log, task, control }, staging, result).map(Some)
    })
}

/// Creates the folder of an attempt, and lets `work` fill it and the result. An error that concerns only this queue
/// becomes part of the result.
pub(crate) fn run_attempt(
    files: &StoreFiles,
    task: &QueueTask,
    staging: &Path,
    worker: WorkerInfo,
    work: impl FnOnce(&mut TaskResult) -> Result<Option<WrittenGeneration>, StoreError>,
) -> Result<WrittenTask, StoreError> {
    let name = staging.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    check_staging_name(name)?;
    let job = job_dir(files, &task.job_id);
    if staging.parent() != Some(job.as_path()) {
        return Err(StoreError::InvalidOption {
            option: "staging",
            reason: format!("{} is not in the job's folder {}", staging.display(), job.display()),
        });
    }
    check_nonce(files, &task.job_id, &task.nonce)?;
    files.vfs.create_dir(staging).at(staging, "creating a staging folder")?;
    let mut result = TaskResult::begun(task, name, worker);
    let written = match work(&mut result) {
        Ok(written) => written,
        Err(
            error @ (StoreError::Corrupt { .. }
            | StoreError::TooLarge { .. }
            | StoreError::Busy { .. }
            | StoreError::InvalidOption { .. }),
        ) => {
            result = TaskResult::begun(task, name, result.worker);
            result.failed = Some(error.to_string());
            None
        }
        Err(error) => return Err(error),
    };
    Ok(WrittenTask { result, written, staging: staging.to_path_buf(), job })
}

/// The sources of a task, and its control.
#[derive(Clone, Copy)]
pub(crate) struct TaskInput<'a> {
    pub(crate) files: &'a StoreFiles,
    /// The commit log of this process, if it has the store open for writing.
    pub(crate) log: Option<&'a Arc<CommitLog>>,
    pub(crate) task: &'a QueueTask,
    pub(crate) control: &'a JobControl,
}

impl TaskInput<'_> {
    /// Returns the rule by which its keys are equal.
    pub(crate) fn equality(&self) -> KeyEquality {
        if self.task.confirm_keys { KeyEquality::FullKeys } else { KeyEquality::Digests }
    }
}

fn compact(
    input: &TaskInput<'_>,
    staging: &Path,
    result: &mut TaskResult,
) -> Result<WrittenGeneration, StoreError> {
    let TaskInput { files, task, .. } = *input;
    let keys = staging.join(KEYS_FILE);
    let seed = Seed::from_nonce(&task.nonce);
    let mut collector = KeyCollector::create(files, &keys, input.equality(), seed)?;
    collect_keys(input, OffsetRange::WHOLE, result, &mut |_, key| {
        key.map_or(Ok(()), |key| collector.add(key))
    })?;
    refuse_keyless(task, result.counts.keyless)?;
    let newest = collector.finish(task.memory_bytes)?;
    result.counts.keys = newest.keys;
    result.counts.rounds = newest.rounds;
    let records = (result.counts.before, result.counts.keyless == 0);
    let writer = GenerationWriter::create(files, staging, task.geometry, 0)?;
    let written = CopyWalk { input: *input, newest: &newest, writer }
        .copy_survivors(OffsetRange::WHOLE, records, result)?
        .finish(false)?;
    result.pairs = written.pairs().to_vec();
    files.vfs.remove_file(&keys).at(&keys, "removing the file of keys")?;
    Ok(written)
}

/// Called in the first walk with each record and its key, if it has one.
pub(crate) type RecordVisitor<'e> = dyn FnMut(&RecordView<'_>, Option<&str>) -> Result<(), StoreError> + 'e;

/// Runs the first walk: counts the records of `range`, and calls `each` with each record and its key.
pub(crate) fn collect_keys(
    input: &TaskInput<'_>,
    range: OffsetRange,
    result: &mut TaskResult,
    each: &mut RecordVisitor<'_>,
) -> Result<(), StoreError> {
    let mut meter = TaskMeter::start(input.files, input.control)?;
    let (counts, position) = (&mut result.counts, &mut result.position);
    result.log_tail = walk(input.files, input.log, input.task, range, None, &mut |met| {
        let SourceItem::Record(record) = met else { return Ok(()) };
        meter.read(record.size)?;
        counts.before += 1;
        counts.bytes_before += u64::from(record.size);
        let key = compaction_key(record);
        if key.is_some() {
            counts.tombstones += u64::from(record.body.is_empty());
            *position = Some(record.queue_offset);
        } else {
            counts.keyless += 1;
        }
        each(record, key.as_deref())
    })?;
    meter.look()
}

/// Refuses records without a key if the task has that option.
pub(crate) fn refuse_keyless(task: &QueueTask, keyless: u64) -> Result<(), StoreError> {
    if task.keyless == Keyless::Refuse && keyless > 0 {
        return Err(StoreError::InvalidOption {
            option: "keyless",
            reason: format!("{keyless} messages have no key, which is refused"),
        });
    }
    Ok(())
}

/// Returns the earlier of two times; one that is missing counts as later.
pub(crate) fn earliest(one_ms: Option<i64>, other_ms: Option<i64>) -> Option<i64> {
    one_ms.into_iter().chain(other_ms).min()
}

/// The second walk.
pub(crate) struct CopyWalk<'a> {
    pub(crate) input: TaskInput<'a>,
    /// The decisions about the records of the range; the first keyed record has ordinal 0.
    pub(crate) newest: &'a NewestBits,
    pub(crate) writer: GenerationWriter<'a>,
}

impl<'a> CopyWalk<'a> {
    /// Copies the survivors of `range`, which has `records` records. `all_keyed` says that each has a key.
    pub(crate) fn copy_survivors(
        mut self,
        range: OffsetRange,
        (records, all_keyed): (u64, bool),
        result: &mut TaskResult,
    ) -> Result<GenerationWriter<'a>, StoreError> {
        let TaskInput { files, log, task, control } = self.input;
        let newest = self.newest;
        let rule = SurvivorRule { task, newest };
        let mut meter = TaskMeter::start(files, control)?;
        let (mut seen, mut ordinal) = (0, 0);
        // If all records have keys, the number of a record is its ordinal.
        let wants = |number| !all_keyed || newest.is_newest(number);
        walk(files, log, task, range, Some(&wants), &mut |met| {
            let record = match met {
                SourceItem::Record(record) => record,
                SourceItem::Passed { records, bytes } => {
                    seen += records;
                    ordinal += records;
                    return meter.passed(records, bytes);
                }
            };
            meter.read(record.size)?;
            seen += 1;
            let own = compaction_key(record).map(|_| ordinal);
            ordinal += u64::from(own.is_some());
            let kind = RecordKind::of(record, task);
            match rule.decide(own, record.queue_offset, kind) {
                Verdict::Drop => return Ok(()),
                Verdict::Expired => {
                    result.counts.expired += 1;
                    return Ok(());
                }
                Verdict::Keep => {}
            }
            if own.is_some() && kind == RecordKind::Tombstone {
                result.counts.tombstones_kept += 1;
                result.first_tombstone.get_or_insert(record.queue_offset);
            } else if own.is_some() {
                result.oldest_ms = earliest(result.oldest_ms, Some(record.store_timestamp));
            }
            result.counts.survivors += 1;
            result.counts.bytes_after += u64::from(record.size);
            meter.wrote(record.size);
            self.writer.append(record)
        })?;
        meter.look()?;
        if (seen, ordinal) != (records, newest.records) {
            return Err(StoreError::Busy {
                reason: format!("{}/{} changed while it was compacted", task.topic, task.queue_id),
            });
        }
        Ok(self.writer)
    }
}
