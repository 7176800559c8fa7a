//! The compaction of one huge queue by several workers.
//!
//! Owns the steps that replace one [`super::run_task`], and the files that they exchange in staging folders.
//! `CompactionStep` in `documents` describes the steps. If the consume queue disagrees with the log, or if the first
//! round fails in another way, one task compacts the complete queue.
//!
//! Any step may be repeated, run twice at the same time, or be abandoned: two attempts differ only in the names of
//! their folders. The intermediate files are not synced, because no job reads them after a crash of the machine.

mod copy_step;
mod decide_step;
mod documents;
mod scan_step;
mod split;
mod step_files;

use std::path::Path;

pub(crate) use documents::{CompactionStep, NextSteps};
pub use split::Strategy;
pub(crate) use split::{expected_bytes, split};

use super::job::control::JobControl;
use super::job::documents::{QueueTask, TaskResult, WorkerInfo};
use super::job::task::{TaskInput, begin_task, earliest, refuse_keyless, run_attempt};
use crate::files::staged::{STAGED_LOGS, STAGED_QUEUES};
use decide_step::folders;
use documents::{RangePlan, ScannedRange};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;
use mqstore_format::offset_file_name;

/// Runs one step in the folder `staging`, which must be in the job's folder and must not exist yet.
///
/// # Errors
/// The errors of [`super::run_task`].
pub(crate) fn run_step(
    files: &StoreFiles,
    step: &CompactionStep,
    staging: &Path,
    worker: WorkerInfo,
    control: &JobControl,
) -> Result<TaskResult, StoreError> {
    let task = step.task();
    let input = TaskInput { files, log: None, task, control };
    let written = match step {
        CompactionStep::Whole(task) => begin_task(files, None, task, staging, worker, control),
        CompactionStep::Scan(scan) => run_attempt(files, task, staging, worker, |result| {
            scan_step::run(&input, scan, staging, result).map(|()| None)
        }),
        CompactionStep::Decide(decide) => run_attempt(files, task, staging, worker, |result| {
            decide_step::run(&input, decide, staging, result).map(|()| None)
        }),
        CompactionStep::Copy(copy) => run_attempt(files, task, staging, worker, |result| {
            copy_step::run(&input, copy, staging, result).map(Some)
        }),
    };
    written?.finish(files)
}

/// Returns the action after a round of steps of one queue, from their answers.
///
/// # Errors
/// [`StoreError::InvalidOption`] if the answers do not belong to the steps, and I/O errors.
pub(crate) fn next(
    files: &StoreFiles,
    steps: &[CompactionStep],
    answers: &[TaskResult],
) -> Result<NextSteps, StoreError> {
    let matches = steps.len() == answers.len()
        && steps.iter().zip(answers).all(|(step, answer)| step.task().is_of(answer));
    let done = |result| NextSteps::Done(Box::new(result));
    let mismatch = || StoreError::InvalidOption {
        option: "answers",
        reason: format!("{} answers do not belong to the {} steps of the round", answers.len(), steps.len()),
    };
    let first = steps.first().filter(|_| matches).ok_or_else(mismatch)?;
    if let Some(failed) = answers.iter().find(|answer| answer.failed.is_some()) {
        return Ok(match first {
            CompactionStep::Scan(_) => NextSteps::Steps(vec![CompactionStep::Whole(first.task().clone())]),
            _ => done(failed.clone()),
        });
    }
    let outcome = match first {
        CompactionStep::Whole(_) => answers.first().cloned().ok_or_else(mismatch).map(done),
        CompactionStep::Scan(scan) => decide_steps(&scan.plan, answers).map(NextSteps::Steps),
        CompactionStep::Decide(decide) => {
            decide_step::copy_steps(files, decide, answers).map(NextSteps::Steps)
        }
        CompactionStep::Copy(copy) => merge_copies(files, copy, answers).map(done),
    };
    match outcome {
        Err(
            error @ (StoreError::Corrupt { .. } | StoreError::Busy { .. } | StoreError::InvalidOption { .. }),
        ) => {
            let mut result = TaskResult::begun(first.task(), "", WorkerInfo::default());
            result.failed = Some(error.to_string());
            Ok(done(result))
        }
        outcome => outcome,
    }
}

/// Plans the shares to decide, after all ranges are scanned.
fn decide_steps(plan: &RangePlan, answers: &[TaskResult]) -> Result<Vec<CompactionStep>, StoreError> {
    let mut total = TaskResult::begun(&plan.task, "", WorkerInfo::default());
    let mut pieces = Vec::new();
    for answer in answers {
        let (counts, sum) = (&answer.counts, &mut total.counts);
        for (sum, part) in [
            (&mut sum.before, counts.before),
            (&mut sum.bytes_before, counts.bytes_before),
            (&mut sum.keyless, counts.keyless),
            (&mut sum.tombstones, counts.tombstones),
        ] {
            *sum = sum.saturating_add(part);
        }
        total.position = answer.position.or(total.position);
        total.log_tail = answer.log_tail.or(total.log_tail);
        let keyed = counts.before.saturating_sub(counts.keyless);
        pieces.push(ScannedRange { staging: answer.staging.clone(), records: counts.before, keyed });
    }
    refuse_keyless(&plan.task, total.counts.keyless)?;
    let plan = RangePlan { total: Some(total), ..plan.clone() };
    let decide = |share| {
        CompactionStep::Decide(documents::Decide { plan: plan.clone(), share, pieces: pieces.clone() })
    };
    Ok((0..plan.shares).map(decide).collect())
}

/// Returns the result of a queue after its files are copied: moves them into one folder for publication.
fn merge_copies(
    files: &StoreFiles,
    copy: &documents::CopyRange,
    answers: &[TaskResult],
) -> Result<TaskResult, StoreError> {
    let mut result = copy.plan.total()?.clone();
    let stagings = folders(files, &copy.plan.task, answers.iter().map(|answer| &answer.staging))?;
    let (Some(first), Some(home)) = (answers.first(), stagings.first()) else { return Ok(result) };
    result.staging.clone_from(&first.staging);
    result.worker = first.worker.clone();
    for (answer, staging) in answers.iter().zip(&stagings) {
        result.counts.survivors += answer.counts.survivors;
        result.counts.bytes_after += answer.counts.bytes_after;
        result.counts.tombstones_kept += answer.counts.tombstones_kept;
        result.counts.expired += answer.counts.expired;
        result.oldest_ms = earliest(result.oldest_ms, answer.oldest_ms);
        result.first_tombstone = result.first_tombstone.or(answer.first_tombstone);
        result.pairs.extend(&answer.pairs);
        if staging == home {
            continue;
        }
        for pair in &answer.pairs {
            for folder in [STAGED_LOGS, STAGED_QUEUES] {
                let name = offset_file_name(pair.base);
                let (from, to) = (staging.join(folder), home.join(folder));
                files
                    .vfs
                    .rename_noreplace(&from.join(&name), &to.join(&name))
                    .at(&to, "gathering compaction files")?;
            }
        }
    }
    Ok(result)
}

impl QueueTask {
    /// Whether this is the answer to a step of the queue.
    fn is_of(&self, answer: &TaskResult) -> bool {
        (&self.job_id, &self.topic, self.queue_id) == (&answer.job_id, &answer.topic, answer.queue_id)
    }
}

#[cfg(test)]
mod tests;
