//! The compaction of one queue by one worker.
//!
//! Owns [`run_task`], a pure step: it reads the snapshot that the plan names and writes new files into
//! a staging folder of its own, which nobody reads before the driver publishes it. It may run in any
//! process that sees the directory, any number of times, also at the same time; attempts differ in
//! their folder only, and what one that died left is swept. A result is complete when it is returned:
//! files and folders are synced.
//!
//! Two walks over the records: the first gathers digests of the keys, the second copies the newest
//! record of every key, unless it has no body. What RocketMQ drops is dropped and counted: records
//! whose KEYS are blank. The whole KEYS text is the key.
//!
//! Source: `CompactionLog#getOffsetMap`, `#shouldRetainMsg`, `#asyncPutMessage`.

use std::borrow::Cow;
use std::path::Path;

use mqstore_io::switch;
use mqstore_io::sync::{AtomicBool, Ordering};

use mqstore_format::RecordView;
use mqstore_format::properties::KEYS;

use super::digests::{KeyCollector, Verdicts};
use super::job::{check_nonce, check_staging_name, job_dir};
use super::model::{Counts, LogTail, OutputPair, QueueTask, TaskResult, Worker};
use super::source::walk;
use super::writer::GenerationWriter;
use crate::error::{IoContext, StoreError};
use crate::files::StoreFiles;

/// How many records a task handles between two looks at [`Stop`].
const RECORDS_BETWEEN_LOOKS: u64 = 256;

/// Asks running tasks to end.
#[derive(Debug, Default)]
pub struct Stop(AtomicBool);

impl Stop {
    /// From now on tasks end with [`StoreError::Closed`] within a few hundred records.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn check(&self, files: &StoreFiles, records: u64) -> Result<(), StoreError> {
        if records.is_multiple_of(RECORDS_BETWEEN_LOOKS) && self.0.load(Ordering::Relaxed) {
            return Err(StoreError::Closed { path: files.root.clone() });
        }
        Ok(())
    }
}

/// File of the key digests in a staging folder.
const DIGESTS_FILE: &str = "digests";

/// Compacts the queue of `task` into the folder `staging`, which must lie in the job's folder and must
/// not exist yet. `worker` is noted in the result.
///
/// Damage in the source does not fail the call: the result says why the queue was left out.
///
/// # Errors
/// [`StoreError::NotAStore`] when this process does not see the driver's directory,
/// [`StoreError::InvalidOption`] for a staging folder elsewhere, [`StoreError::Closed`] when `stop`
/// asks for it, and I/O errors.
pub fn run_task(
    files: &StoreFiles,
    task: &QueueTask,
    staging: &Path,
    worker: Worker,
    stop: &Stop,
) -> Result<TaskResult, StoreError> {
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
        worker,
    };
    match compact(files, task, staging, stop) {
        Ok(output) => {
            result.counts = output.counts;
            result.pairs = output.pairs;
            result.log_tail = output.log_tail;
            result.position = output.position;
        }
        Err(error @ (StoreError::Corrupt { .. } | StoreError::TooLarge { .. } | StoreError::Busy { .. })) => {
            result.failed = Some(error.to_string());
        }
        Err(error) => return Err(error),
    }
    switch::step("compaction.sync_staging", || files.vfs.sync_dir(staging))
        .at(staging, "syncing a staging folder")?;
    switch::step("compaction.sync_staging_name", || files.vfs.sync_dir(&job))
        .at(&job, "syncing a job's folder")?;
    Ok(result)
}

struct Output {
    counts: Counts,
    pairs: Vec<OutputPair>,
    log_tail: Option<LogTail>,
    position: Option<i64>,
}

fn compact(files: &StoreFiles, task: &QueueTask, staging: &Path, stop: &Stop) -> Result<Output, StoreError> {
    let digests = staging.join(DIGESTS_FILE);
    let mut counts = Counts::default();
    let mut position = None;
    let mut collector = KeyCollector::create(files, &digests)?;
    let log_tail = walk(files, task, &mut |record| {
        stop.check(files, counts.before)?;
        counts.before += 1;
        counts.bytes_before += u64::from(record.size);
        let Some(key) = compaction_key(record) else {
            counts.keyless += 1;
            return Ok(());
        };
        position = Some(record.queue_offset);
        collector.add(&key, !record.body.is_empty())
    })?;
    let verdicts = collector.finish(task.memory_bytes)?;
    counts.keys = verdicts.keys;
    counts.tombstones = verdicts.tombstone_records;
    counts.rounds = verdicts.rounds;
    let mut writer = GenerationWriter::create(files, staging, task.geometry)?;
    copy(files, task, &mut writer, &verdicts, &mut counts, stop)?;
    let pairs = writer.finish()?;
    files.vfs.remove_file(&digests).at(&digests, "removing the file of key digests")?;
    Ok(Output { counts, pairs, log_tail, position })
}

/// The second walk.
fn copy(
    files: &StoreFiles,
    task: &QueueTask,
    writer: &mut GenerationWriter<'_>,
    verdicts: &Verdicts,
    counts: &mut Counts,
    stop: &Stop,
) -> Result<(), StoreError> {
    let mut ordinal = 0;
    walk(files, task, &mut |record| {
        stop.check(files, ordinal)?;
        if compaction_key(record).is_none() {
            return Ok(());
        }
        if verdicts.survives(ordinal) {
            counts.survivors += 1;
            counts.bytes_after += u64::from(record.size);
            writer.append(record)?;
        }
        ordinal += 1;
        Ok(())
    })?;
    if ordinal != verdicts.records {
        return Err(StoreError::Busy {
            reason: format!("{}/{} changed while it was compacted", task.topic, task.queue_id),
        });
    }
    Ok(())
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
