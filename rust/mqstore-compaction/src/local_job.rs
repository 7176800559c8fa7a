//! A whole compaction in this process: the reference for every other way to run one.
//!
//! Owns nothing on disk. Tasks run on as many threads as the caller allows; the calling thread is one of them.
//! Each attempt has a folder of its own; therefore the outcome does not depend on the number of threads.

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
use super::job::task::{WrittenTask, begin_task};
use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;
use mqstore_log::commit_log::CommitLog;

/// Compacts `topics` (`None`: all compaction topics) on at most `threads` threads (at least one).
///
/// The store's lock is not held while the tasks run: appends may go on, by whoever opens the store.
///
/// # Errors
/// Those of [`crate::plan()`], [`crate::run_task`] and [`crate::publish()`].
pub fn compact(
    files: &StoreFiles,
    topics: Option<&[String]>,
    options: &CompactionOptions,
    threads: usize,
    control: &Arc<JobControl>,
) -> Result<CompactionReport, StoreError> {
    let PlannedJob { plan, job } = plan(files, topics, options)?;
    let (job, results) = run_all(files, None, job, &plan.tasks, threads, control)?;
    if options.dry_run { rehearse(files, job, &plan, &results) } else { publish(files, job, &plan, &results) }
}

/// Runs every task of a job, with the commit log of this process, where it writes it; after the first error no other one
/// starts, and the job is over, or waits for another run of it if somebody gave it its name.
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
            // The first error is the one to report; the next job sweeps what this leaves.
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
    // The disk writes one task's files while the next one is under way.
    let mut written: Option<(QueueTask, WrittenTask)> = None;
    loop {
        // The guard must not live while the task runs.
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
