//! Publishes the new generations of all queues in one step.
//!
//! Owns [`publish`], which only a driver calls while it holds the store's lock:
//!
//! ```text
//! 1  check each result against its task, each file against its length and CRC, each queue against
//!    the generation that was planned; a failed queue is skipped and reported
//! 2  sync the commit log up to the last compacted record
//! 3  build the next `compaction` folder in jobs/<id>/tree: hard links and new files; sync it
//! 4  write the facts about the next generations to the manifest, then the state "publishing" and
//!    the inode of tree to the record                                              -- durable
//! 5  swap compaction <-> jobs/<id>/tree                            -- the one step; see `swap`
//! 6  sync both parent folders
//! 7  write the state "published" to the record; remove all other files of the job
//! ```
//!
//! A crash before step 5 leaves the old generation of all queues, and one after it the new one. A power failure between
//! 5 and 6 leaves either. No file in RocketMQ's folders is changed in place. Unchanged files of the old folder are in
//! the new one with the same inodes. Readers with open old files keep these files.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use mqstore_format::{MIN_RECORD_BYTES, RecordView, offset_file_name};
use mqstore_io::switch;
use mqstore_io::{Access, FileKind};
use serde_json::json;

use super::documents::{CompactionPlan, CompactionReport, LogTail, QueueTask, TaskResult};
use super::job_folder::{
    Job, ReplacedFiles, check_nonce, check_staging_name, recover_stale_jobs, unknown_job,
};
use super::job_record::job_dir;
use super::options::Keyless;
use super::store_lock::StoreLockHeld;
use super::swap::swap_generation;
use crate::files::file_sizes::UNIT_BYTES;
use crate::files::generation::GenerationState;
use crate::files::manifest::{GenerationFacts, Manifest};
use crate::files::next_folder::{NextFolder, Replacement};
use crate::files::staged::{OutputFile, STAGED_LOGS, STAGED_QUEUES, crc_of};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;
use mqstore_log::commit_log::{SegmentList, read_record};

/// A published job.
#[derive(Debug)]
pub struct Publication {
    /// The report of the job.
    pub report: CompactionReport,
    /// The files to remove; `None` if the job was published before.
    pub replaced: Option<ReplacedFiles>,
}

impl Publication {
    fn earlier(report: CompactionReport) -> Self {
        Self { report, replaced: None }
    }

    /// Removes the replaced files and the leftovers of dead jobs, and returns the report.
    ///
    /// # Errors
    /// I/O errors.
    pub fn sweep(
        self,
        files: &StoreFiles,
        _held: &StoreLockHeld<'_>,
    ) -> Result<CompactionReport, StoreError> {
        if let Some(replaced) = self.replaced {
            replaced.sweep(files)?;
            recover_stale_jobs(files, &self.report.job_id)?;
        }
        Ok(self.report)
    }
}

/// Publishes the results of the tasks of `plan`. `job` is the one that planning returned.
///
/// For a job that is already published, and therefore not running, returns its report and does nothing.
///
/// # Errors
/// [`StoreError::InvalidOption`] if the job is neither running nor published, and I/O errors. After an error all readers
/// still see the old generation, or, if the last step failed, the complete new one.
pub fn publish(
    files: &StoreFiles,
    held: &StoreLockHeld<'_>,
    job: Option<Job>,
    plan: &CompactionPlan,
    results: &[TaskResult],
) -> Result<Publication, StoreError> {
    let durable = held.flush_log()?;
    if let Some(report) = &plan.published {
        return Ok(Publication::earlier(report.clone()));
    }
    let job = job.ok_or_else(|| unknown_job(&plan.job_id))?;
    if job.id() != plan.job_id || files.root != plan.root {
        return Err(StoreError::InvalidOption {
            option: "plan",
            reason: format!("it belongs to job {} in {}", plan.job_id, plan.root.display()),
        });
    }
    check_nonce(files, job.id(), job.nonce())?;
    let mut report = CompactionReport { job_id: plan.job_id.clone(), ..CompactionReport::default() };
    report.skipped.clone_from(&plan.skipped);
    let accepted = accept(files, &job, plan, results, &mut report)?;
    report.elapsed_ms = job.elapsed_ms(files);
    if !accepted.is_empty() {
        sync_log(files, results, durable)?;
        let replacements: Vec<_> = accepted.iter().map(|accepted| accepted.replacement(&job)).collect();
        switch(files, &job, &replacements, &report, || note(files, &job, &accepted))?;
    }
    report.elapsed_ms = job.elapsed_ms(files);
    let replaced = job.published(files, &report)?;
    Ok(Publication { report, replaced: Some(replaced) })
}

/// Runs all checks of [`publish`] and returns its report, but publishes nothing. Then it ends the job.
///
/// # Errors
/// I/O errors.
pub fn rehearse(
    files: &StoreFiles,
    job: Option<Job>,
    plan: &CompactionPlan,
    results: &[TaskResult],
) -> Result<CompactionReport, StoreError> {
    if let Some(report) = &plan.published {
        return Ok(report.clone());
    }
    let mut report = CompactionReport { job_id: plan.job_id.clone(), ..CompactionReport::default() };
    report.skipped.clone_from(&plan.skipped);
    if let Some(job) = job {
        let checked = accept(files, &job, plan, results, &mut report).map(|_| ());
        report.elapsed_ms = job.elapsed_ms(files);
        checked.and(job.abandon(files))?;
    }
    Ok(report)
}

/// A result that can be published.
struct AcceptedResult<'a> {
    task: &'a QueueTask,
    result: &'a TaskResult,
}

impl AcceptedResult<'_> {
    fn replacement(&self, job: &Job) -> Replacement<'_> {
        Replacement {
            topic: &self.task.topic,
            queue_id: self.task.queue_id,
            staging: job.dir().join(&self.result.staging),
            pairs: &self.result.pairs,
            position: self.result.position,
        }
    }
}

/// Returns the results that can be published; the others are reported as skipped.
fn accept<'a>(
    files: &StoreFiles,
    job: &Job,
    plan: &'a CompactionPlan,
    results: &'a [TaskResult],
    report: &mut CompactionReport,
) -> Result<Vec<AcceptedResult<'a>>, StoreError> {
    let mut accepted = Vec::new();
    let mut seen = HashSet::new();
    let list = SegmentList::load_if_any(files)?;
    for task in &plan.tasks {
        let name = format!("{}/{}", task.topic, task.queue_id);
        if !seen.insert(name.clone()) {
            continue;
        }
        let result =
            results.iter().find(|result| result.topic == task.topic && result.queue_id == task.queue_id);
        let reason = match result {
            None => Some("no task returned a result for it".to_owned()),
            Some(result) => match &result.failed {
                Some(failed) => Some(failed.clone()),
                None => rejection_reason(files, job, task, result, &list)?,
            },
        };
        match (reason, result) {
            (None, Some(result)) => {
                report.add(&result.counts);
                report.queues.push(json!({
                    "topic": task.topic,
                    "queue_id": task.queue_id,
                    "counts": result.counts,
                    "worker": result.worker,
                    "staging": result.staging,
                }));
                accepted.push(AcceptedResult { task, result });
            }
            (Some(reason), _) => report.skipped.push(format!("{name}: {reason}")),
            (None, None) => {}
        }
    }
    Ok(accepted)
}

/// Returns the reason why a result cannot be published, if there is one.
fn rejection_reason(
    files: &StoreFiles,
    job: &Job,
    task: &QueueTask,
    result: &TaskResult,
    list: &SegmentList,
) -> Result<Option<String>, StoreError> {
    if result.job_id != job.id() || check_staging_name(&result.staging).is_err() {
        return Ok(Some(format!("the result names job {:?} and folder {:?}", result.job_id, result.staging)));
    }
    let state = match GenerationState::load(files, &task.topic, task.queue_id) {
        Err(error @ StoreError::Corrupt { .. }) => return Ok(Some(error.to_string())),
        state => state?,
    };
    if state.token != task.generation {
        return Ok(Some(
            "its files changed while it was compacted (a broker or another job was here); compact it again"
                .to_owned(),
        ));
    }
    if let Some(tail) = &result.log_tail
        && !log_has_record(files, list, tail)?
    {
        return Ok(Some("the commit log no longer holds what was compacted; compact it again".to_owned()));
    }
    AttemptOutput { files, dir: job_dir(files, job.id()).join(&result.staging), task, result }.check()
}

/// Whether the log still has the record, or expiry has removed it since.
fn log_has_record(files: &StoreFiles, list: &SegmentList, tail: &LogTail) -> Result<bool, StoreError> {
    if tail.physical_offset < list.min_offset() {
        return Ok(true);
    }
    let bytes = match read_record(files, list, tail.physical_offset, tail.size as usize) {
        Err(StoreError::Corrupt { .. }) => return Ok(false),
        bytes => bytes?,
    };
    Ok(RecordView::decode(bytes.as_slice()).is_ok_and(|record| {
        record.size == tail.size
            && record.queue_offset == tail.queue_offset
            && record.store_timestamp == tail.store_timestamp
    }))
}

/// The files that an attempt reports.
struct AttemptOutput<'a> {
    files: &'a StoreFiles,
    dir: PathBuf,
    task: &'a QueueTask,
    result: &'a TaskResult,
}

impl AttemptOutput<'_> {
    /// Compares each file with the result; the inner value is the difference.
    fn check(&self) -> Result<Option<String>, StoreError> {
        let geometry = self.task.geometry;
        let mut units: u64 = 0;
        for (at, pair) in self.result.pairs.iter().enumerate() {
            if geometry.log_file_bytes.checked_mul(at as u64) != Some(pair.base) {
                return Ok(Some(format!(
                    "its output has a file at {} that does not belong there",
                    pair.base
                )));
            }
            let name = offset_file_name(pair.base);
            let log = self.dir.join(STAGED_LOGS).join(&name);
            let queue = self.dir.join(STAGED_QUEUES).join(&name);
            for (path, len, said) in
                [(&log, geometry.log_file_bytes, &pair.log), (&queue, geometry.queue_file_bytes, &pair.queue)]
            {
                if let Some(wrong) = self.check_file(path, len, said)? {
                    return Ok(Some(wrong));
                }
            }
            if let Some(wrong) = self.check_first_record(&log)? {
                return Ok(Some(wrong));
            }
            let marker = u64::from(at + 1 < self.result.pairs.len());
            if pair.units.checked_add(marker).and_then(|all| all.checked_mul(UNIT_BYTES))
                != Some(pair.queue.used_bytes)
            {
                return Ok(Some(format!("{} does not have {} units", queue.display(), pair.units)));
            }
            units = units.saturating_add(pair.units);
        }
        if units != self.result.counts.survivors {
            return Ok(Some(format!(
                "its files hold {units} records, its result says {}",
                self.result.counts.survivors
            )));
        }
        Ok(None)
    }

    fn check_file(&self, path: &Path, len: u64, said: &OutputFile) -> Result<Option<String>, StoreError> {
        let wrong = |what: &str| Ok(Some(format!("{} {what}", path.display())));
        match self.files.vfs.stat(path) {
            Ok(stat) if stat.kind == FileKind::File && stat.len == len && said.used_bytes <= len => {}
            Ok(_) => return wrong("has the wrong length"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return wrong("is missing: does every worker see the same directory?");
            }
            Err(error) => return Err(StoreError::io(path, "looking at a staged file", error)),
        }
        let file = self.files.vfs.open(path, Access::Read).at(path, "opening a staged file")?;
        let found = crc_of(file.as_ref(), said.used_bytes).at(path, "checking a staged file")?;
        if switch::on("compaction.staged_crc") && found != said.crc {
            return wrong("is not what its worker wrote (CRC)");
        }
        Ok(None)
    }

    /// Checks that a log file starts with a record of this queue.
    fn check_first_record(&self, path: &Path) -> Result<Option<String>, StoreError> {
        let file = self.files.vfs.open(path, Access::Read).at(path, "opening a staged file")?;
        let mut head = vec![0; MIN_RECORD_BYTES];
        file.read_exact_at(&mut head, 0).at(path, "checking a staged file")?;
        let size = head.first_chunk::<4>().map_or(0, |size| u32::from_be_bytes(*size));
        if u64::from(size) > self.task.geometry.log_file_bytes {
            return Ok(Some(format!("{} does not start with a record", path.display())));
        }
        head.resize((size as usize).max(MIN_RECORD_BYTES), 0);
        file.read_exact_at(&mut head, 0).at(path, "checking a staged file")?;
        let ours = RecordView::decode(&head)
            .is_ok_and(|record| record.topic == self.task.topic && record.queue_id == self.task.queue_id);
        Ok((!ours).then(|| format!("{} does not start with a record of this queue", path.display())))
    }
}

/// Syncs the commit log. After a power failure, a compacted record must never outlive its original: the queue offset
/// would be assigned again, and a broker drops a record with an offset that it already has.
fn sync_log(files: &StoreFiles, results: &[TaskResult], durable: u64) -> Result<(), StoreError> {
    let Some(tail) =
        results.iter().filter_map(|result| result.log_tail).map(|tail| tail.physical_offset).max()
    else {
        return Ok(());
    };
    if tail < durable {
        return Ok(());
    }
    let list = SegmentList::load(files)?;
    for segment in list.segments().iter().filter(|segment| segment.base_offset() <= tail) {
        let synced = segment.file().and_then(|file| switch::step("compaction.sync_log", || file.sync_data()));
        synced.at(&segment.path(), "syncing the commit log")?;
    }
    switch::step("compaction.sync_log_folder", || files.sync_logs())
}

/// Runs steps 3 to 6; `note` writes the manifest after the tree is built.
pub(crate) fn switch(
    files: &StoreFiles,
    job: &Job,
    replacements: &[Replacement<'_>],
    report: &CompactionReport,
    note: impl FnOnce() -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let tree = job.tree();
    NextFolder::build(files, &tree, replacements)?;
    note()?;
    let inode = files.vfs.stat(&tree).at(&tree, "looking at the next generation")?.inode;
    // It writes its record into the folder of the tree and syncs that folder, which makes the tree's name durable.
    job.mark_publishing(files, inode, report)?;
    swap_generation(files, job.id())
}

/// Adds the facts about the next generations to those about the current ones.
fn note(files: &StoreFiles, job: &Job, accepted: &[AcceptedResult<'_>]) -> Result<(), StoreError> {
    let mut manifest = Manifest::load(files)?;
    let now_ms = files.clock.now_ms();
    for AcceptedResult { task, result } in accepted {
        let (topic, queue_id) = (task.topic.as_str(), task.queue_id);
        let present = GenerationState::load(files, topic, queue_id)?;
        let before = present.known(files, &manifest, topic, queue_id)?.generation;
        let read = result.log_tail.map_or(0, |tail| tail.queue_offset.saturating_add(1));
        let mut next = GenerationFacts {
            token: GenerationState::load_from(files, &job.tree(), topic, queue_id)?.manifest_token(),
            replaces: before.map_or_else(|| present.manifest_token(), |before| before.token.clone()),
            job_id: job.id().to_owned(),
            end: read.max(task.previous_end),
            first_tombstone: result.first_tombstone,
            keyless: if task.keyless == Keyless::Keep { result.counts.keyless } else { 0 },
            oldest_ms: Some(result.oldest_ms.unwrap_or(i64::MAX)),
            removed: Vec::new(),
            files: result.pairs.clone(),
        };
        // Facts about lost files do not apply to files from another store.
        next.follow(before.filter(|_| !task.restored), now_ms);
        manifest.add(topic, queue_id, next);
    }
    manifest.write(files)
}
