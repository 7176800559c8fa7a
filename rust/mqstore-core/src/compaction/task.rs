//! The compaction of one queue by one worker.
//!
//! Owns [`run_task`], a pure step: it reads the snapshot that the plan names and writes new files into
//! a staging folder of its own, which nobody reads before the driver publishes it. It may run in any
//! process that sees the directory, any number of times, also at the same time; attempts differ in
//! their folder only, and what one that died left is swept. A result is complete when it is returned:
//! files and folders are synced.
//!
//! Two walks over the records: the first gathers the keys, the second copies the newest record of every
//! key. One without a body is a tombstone: it is copied while a slow reader may need it, which is what
//! the plan says. The whole KEYS text is the key; records whose KEYS are blank are counted, and dropped
//! as by RocketMQ unless the task says otherwise.
//!
//! Source: `CompactionLog#getOffsetMap`, `#shouldRetainMsg`, `#asyncPutMessage`.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_io::switch;

use mqstore_format::RecordView;
use mqstore_format::properties::KEYS;

use super::control::{Control, Meter};
use super::digests::{Equality, KeyCollector, Verdicts};
use super::job::{check_nonce, check_staging_name, job_dir};
use super::model::{Counts, LogTail, QueueTask, TaskResult, Worker};
use super::options::Keyless;
use super::source::{Met, walk};
use super::writer::{GenerationWriter, WrittenGeneration};
use crate::commit_log::CommitLog;
use crate::error::{IoContext, StoreError};
use crate::files::StoreFiles;

/// File of the keys in a staging folder.
const KEYS_FILE: &str = "keys";

/// Compacts the queue of `task` into the folder `staging`, which must lie in the job's folder and must
/// not exist yet. `worker` is noted in the result.
///
/// Damage in the source does not fail the call: the result says why the queue was left out.
///
/// # Errors
/// [`StoreError::NotAStore`] when this process does not see the driver's directory,
/// [`StoreError::InvalidOption`] for a staging folder elsewhere, [`StoreError::Closed`] when `control`
/// asks for it, and I/O errors.
pub fn run_task(
    files: &StoreFiles,
    task: &QueueTask,
    staging: &Path,
    worker: Worker,
    control: &Control,
) -> Result<TaskResult, StoreError> {
    begin_task(files, None, task, staging, worker, control)?.finish(files)
}

/// A task whose files are written, and not synced.
#[derive(Debug)]
pub(crate) struct WrittenTask {
    result: TaskResult,
    written: Option<WrittenGeneration>,
    staging: PathBuf,
    job: PathBuf,
}

impl WrittenTask {
    /// The folder.
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

/// All of [`run_task`] but the syncs; `log` is the commit log of this process, where it writes it.
pub(crate) fn begin_task(
    files: &StoreFiles,
    log: Option<&Arc<CommitLog>>,
    task: &QueueTask,
    staging: &Path,
    worker: Worker,
    control: &Control,
) -> Result<WrittenTask, StoreError> {
    let name = staging.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    check_staging_name(name)?;
    let job = job_dir(files, &task.job_id);
    if staging.parent() != Some(job.as_path()) {
        return Err(StoreError::InvalidOption {
            option: "staging",
            reason: format!("{} does not lie in the job's folder {}", staging.display(), job.display()),
        });
    }
    check_nonce(files, &task.job_id, &task.nonce)?;
    files.vfs.create_dir(staging).at(staging, "creating a staging folder")?;
    let mut result = TaskResult {
        job_id: task.job_id.clone(),
        topic: task.topic.clone(),
        queue_id: task.queue_id,
        staging: name.to_owned(),
        failed: None,
        counts: Counts::default(),
        pairs: Vec::new(),
        log_tail: None,
        position: None,
        first_tombstone: None,
        worker,
    };
    let mut written = None;
    match compact(files, log, task, staging, control) {
        Ok((output, generation)) => {
            result.counts = output.counts;
            result.pairs = generation.pairs().to_vec();
            result.log_tail = output.log_tail;
            result.position = output.position;
            result.first_tombstone = output.first_tombstone;
            written = Some(generation);
        }
        Err(
            error @ (StoreError::Corrupt { .. }
            | StoreError::TooLarge { .. }
            | StoreError::Busy { .. }
            | StoreError::InvalidOption { .. }),
        ) => {
            result.failed = Some(error.to_string());
        }
        Err(error) => return Err(error),
    }
    Ok(WrittenTask { result, written, staging: staging.to_path_buf(), job })
}

#[derive(Default)]
struct Output {
    counts: Counts,
    log_tail: Option<LogTail>,
    position: Option<i64>,
    first_tombstone: Option<i64>,
}

fn compact(
    files: &StoreFiles,
    log: Option<&Arc<CommitLog>>,
    task: &QueueTask,
    staging: &Path,
    control: &Control,
) -> Result<(Output, WrittenGeneration), StoreError> {
    let keys = staging.join(KEYS_FILE);
    let mut output = Output::default();
    let equality = if task.confirm_keys { Equality::FullKeys } else { Equality::Digests };
    let mut collector = KeyCollector::create(files, &keys, equality)?;
    let mut meter = Meter::start(files, control)?;
    let counts = &mut output.counts;
    output.log_tail = walk(files, log, task, None, &mut |met| {
        let Met::Record(record) = met else { return Ok(()) };
        meter.read(record.size)?;
        counts.before += 1;
        counts.bytes_before += u64::from(record.size);
        let Some(key) = compaction_key(record) else {
            counts.keyless += 1;
            return Ok(());
        };
        counts.tombstones += u64::from(record.body.is_empty());
        output.position = Some(record.queue_offset);
        collector.add(&key)
    })?;
    meter.look()?;
    if task.keyless == Keyless::Refuse && counts.keyless > 0 {
        return Err(StoreError::InvalidOption {
            option: "keyless",
            reason: format!("{} messages have no key, which is refused", counts.keyless),
        });
    }
    let verdicts = collector.finish(task.memory_bytes)?;
    counts.keys = verdicts.keys;
    counts.rounds = verdicts.rounds;
    let writer = GenerationWriter::create(files, staging, task.geometry)?;
    let mut copy = Copy { files, log, task, control, verdicts: &verdicts, writer };
    copy.survivors(&mut output)?;
    let written = copy.writer.finish()?;
    files.vfs.remove_file(&keys).at(&keys, "removing the file of keys")?;
    Ok((output, written))
}

/// The second walk.
struct Copy<'a> {
    files: &'a StoreFiles,
    log: Option<&'a Arc<CommitLog>>,
    task: &'a QueueTask,
    control: &'a Control,
    verdicts: &'a Verdicts,
    writer: GenerationWriter<'a>,
}

impl Copy<'_> {
    fn survivors(&mut self, output: &mut Output) -> Result<(), StoreError> {
        let (task, verdicts) = (self.task, self.verdicts);
        let mut meter = Meter::start(self.files, self.control)?;
        let (mut seen, mut ordinal) = (0, 0);
        // Where every record has a key, a record's number is that of its verdict.
        let all_keyed = output.counts.keyless == 0;
        let wants = |number| !all_keyed || verdicts.is_newest(number);
        walk(self.files, self.log, task, Some(&wants), &mut |met| {
            let record = match met {
                Met::Record(record) => record,
                Met::Passed { records, bytes } => {
                    seen += records;
                    ordinal += records;
                    return meter.passed(records, bytes);
                }
            };
            meter.read(record.size)?;
            seen += 1;
            let stays = if compaction_key(record).is_none() {
                task.keyless == Keyless::Keep
            } else {
                ordinal += 1;
                let is_tombstone = record.body.is_empty();
                let stays = verdicts.is_newest(ordinal - 1)
                    && !(is_tombstone && record.queue_offset < task.tombstones_below);
                if stays && is_tombstone {
                    output.counts.tombstones_kept += 1;
                    output.first_tombstone.get_or_insert(record.queue_offset);
                }
                stays
            };
            if stays {
                output.counts.survivors += 1;
                output.counts.bytes_after += u64::from(record.size);
                meter.wrote(record.size);
                self.writer.append(record)?;
            }
            Ok(())
        })?;
        meter.look()?;
        if (seen, ordinal) != (output.counts.before, verdicts.records) {
            return Err(StoreError::Busy {
                reason: format!("{}/{} changed while it was compacted", task.topic, task.queue_id),
            });
        }
        Ok(())
    }
}

/// The key that a record is compacted by: its whole KEYS text, `None` when that is blank.
pub(crate) fn compaction_key<'a>(record: &RecordView<'a>) -> Option<Cow<'a, str>> {
    // Text that is not UTF-8 is read as Java reads it, with replacement characters.
    let keys = match record.keys() {
        Some(keys) => Cow::Borrowed(keys),
        None => String::from_utf8_lossy(record.properties.get_raw(KEYS)?),
    };
    (!keys.chars().all(is_java_whitespace)).then_some(keys)
}

/// `Character#isWhitespace`: Unicode spaces but the non-breaking ones, and a few controls.
fn is_java_whitespace(character: char) -> bool {
    match character {
        '\t'..='\r' | '\u{1c}'..='\u{1f}' => true,
        '\u{85}' | '\u{a0}' | '\u{2007}' | '\u{202f}' => false,
        _ => character.is_whitespace(),
    }
}

#[cfg(test)]
mod tests {
    use super::is_java_whitespace;

    #[test]
    fn blank_is_what_java_calls_blank() {
        for blank in [' ', '\t', '\u{b}', '\u{1c}', '\u{2028}', '\u{3000}', '\u{1680}'] {
            assert!(is_java_whitespace(blank), "{blank:?}");
        }
        for other in ['a', '\u{a0}', '\u{2007}', '\u{202f}', '\u{85}', '\u{200b}', '\0'] {
            assert!(!is_java_whitespace(other), "{other:?}");
        }
    }
}
