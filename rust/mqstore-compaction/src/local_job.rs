//! A complete compaction in this process; the other ways to run one give the same result.
//!
//! Owns nothing on disk. Tasks run on as many threads as the caller allows, including the calling thread. Each attempt
//! has its own folder, so that the result does not depend on the number of threads.

use std::sync::Arc;

use mqstore_io::Pool;
use mqstore_io::sync::Mutex;

use super::job::control::JobControl;
use super::job::documents::{CompactionReport, QueueTask, TaskResult, WorkerInfo};
use super::job::job_folder::{Job, LOCAL_PREFIX};
use super::job::job_record::job_dir;
use super::job::options::CompactionOptions;
use super::job::plan::{PlannedJob, plan};
use super::job::publish::{publish, rehearse};
use super::job::resume;
use super::job::store_lock::StoreLockHeld;
use super::job::task::{WrittenTask, begin_task};
use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;
use mqstore_log::commit_log::CommitLog;

/// Compacts `topics` (`None`: all compaction topics) on at most `threads` threads (at least one).
///
/// The store's lock is not held while the tasks run, so that other processes can open the store and append.
///
/// # Errors
/// The errors of [`crate::plan()`], [`crate::run_task`] and [`crate::publish()`].
pub fn compact(
    files: &StoreFiles,
    topics: Option<&[String]>,
    options: &CompactionOptions,
    threads: usize,
    control: &Arc<JobControl>,
) -> Result<CompactionReport, StoreError> {
    let PlannedJob { plan, job } = plan(files, &StoreLockHeld::take(files)?, topics, options)?;
    let (job, results) = run_all(files, None, job, &plan.tasks, threads, control)?;
    if options.dry_run {
        return rehearse(files, job, &plan, &results);
    }
    let held = StoreLockHeld::take(files)?;
    publish(files, &held, job, &plan, &results)?.sweep(files, &held)
}

/// Runs all tasks of a job; uses the commit log of this process if it has the store open for writing. After the first
/// error no other task starts. Then the job ends, or if it has a name from the caller, waits for another run.
pub fn run_all(
    files: &StoreFiles,
    log: Option<&Arc<CommitLog>>,
    job: Option<Job>,
    tasks: &[QueueTask],
    threads: usize,
    control: &Arc<JobControl>,
) -> Result<(Option<Job>, Vec<TaskResult>), StoreError> {
    control.expect(tasks.iter().map(|task| task.records.saturating_mul(2)).fold(0, u64::saturating_add));
    match run_on_threads(files, log, tasks, threads, control) {
        Ok(results) => Ok((job, results)),
        Err(error) => {
            // Report the first error; the next job removes leftovers.
            let _ = job.map(|job| job.stop(files));
            Err(error)
        }
    }
}

fn run_on_threads(
    files: &StoreFiles,
    log: Option<&Arc<CommitLog>>,
    tasks: &[QueueTask],
    threads: usize,
    control: &Arc<JobControl>,
) -> Result<Vec<TaskResult>, StoreError> {
    let pending = Mutex::new(tasks.iter().cloned().enumerate().rev().collect());
    let workers = threads.clamp(1, tasks.len().max(1));
    let run = |()| run_pending(files, log, &pending, control);
    Pool::new(workers as u32 - 1, "mq-compact").in_order(workers, &run, |jobs| {
        (0..workers).for_each(|_| jobs.give(()));
        let mut results = Vec::new();
        let mut failed = None;
        while let Some(outcome) = jobs.take() {
            match outcome {
                Ok(mut part) => results.append(&mut part),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(results), Err)
    })
}

fn run_pending(
    files: &StoreFiles,
    log: Option<&Arc<CommitLog>>,
    pending: &Mutex<Vec<(usize, QueueTask)>>,
    control: &JobControl,
) -> Result<Vec<TaskResult>, StoreError> {
    let mut results = Vec::new();
    match run_each(files, log, pending, control, &mut results) {
        Ok(()) => Ok(results),
        Err(error) => {
            pending.lock().clear();
            Err(error)
        }
    }
}

fn run_each(
    files: &StoreFiles,
    log: Option<&Arc<CommitLog>>,
    pending: &Mutex<Vec<(usize, QueueTask)>>,
    control: &JobControl,
    results: &mut Vec<TaskResult>,
) -> Result<(), StoreError> {
    let environment = files.vfs.environment();
    let worker = WorkerInfo { pid: environment.pid, host: environment.hostname, module: String::new() };
    // The disk writes the files of one task while the next task runs.
    let mut written: Option<(QueueTask, WrittenTask)> = None;
    loop {
        // Release the guard before the task runs.
        let next = pending.lock().pop();
        let Some((at, task)) = next else { break };
        let staging = job_dir(files, &task.job_id).join(format!("{LOCAL_PREFIX}{at}"));
        if let Some(known) = resume::find_result(files, &task, &staging)? {
            results.push(known);
            continue;
        }
        let begun = begin_task(files, log, &task, &staging, worker.clone(), control)?;
        if let Some((task, before)) = written.replace((task, begun)) {
            results.push(finish(files, &task, before)?);
        }
    }
    if let Some((task, last)) = written {
        results.push(finish(files, &task, last)?);
    }
    Ok(())
}

fn finish(files: &StoreFiles, task: &QueueTask, written: WrittenTask) -> Result<TaskResult, StoreError> {
    let staging = written.staging().to_path_buf();
    let result = written.finish(files)?;
    resume::record_result(files, task, &staging, &result)?;
    Ok(result)
}
