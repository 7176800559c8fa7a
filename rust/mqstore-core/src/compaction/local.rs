//! A whole compaction in this process: the reference for every other way to run one.
//!
//! Owns nothing on disk. Tasks run on as many threads as the caller allows; since each attempt has a
//! folder of its own, the outcome does not depend on their number.

use std::sync::Arc;

use mqstore_io::StoreLock;
use mqstore_io::sync::{Mutex, spawn};

use super::job::{Job, job_dir};
use super::model::{CompactionReport, QueueTask, TaskResult, Worker};
use super::options::CompactionOptions;
use super::plan::{Planned, plan, plan_locked};
use super::publish::{publish, publish_locked};
use super::task::{Stop, run_task};
use crate::error::{IoContext, StoreError};
use crate::files::StoreFiles;

/// Compacts `topics` (`None`: all compaction topics) on at most `threads` threads (at least one).
///
/// The store's lock is not held while the tasks run: appends may go on, by whoever opens the store.
///
/// # Errors
/// Those of [`super::plan`], [`run_task`] and [`super::publish`].
pub fn compact(
    files: &StoreFiles,
    topics: Option<&[String]>,
    options: &CompactionOptions,
    threads: usize,
    stop: &Arc<Stop>,
) -> Result<CompactionReport, StoreError> {
    let Planned { plan, job } = plan(files, topics, options)?;
    let (job, results) = run_all(files, job, &plan.tasks, threads, stop)?;
    publish(files, job, &plan, &results)
}

/// As [`compact`], for a caller that holds the store's lock throughout.
pub fn compact_locked(
    files: &StoreFiles,
    held: &dyn StoreLock,
    topics: Option<&[String]>,
    options: &CompactionOptions,
    threads: usize,
    stop: &Arc<Stop>,
) -> Result<CompactionReport, StoreError> {
    let Planned { plan, job } = plan_locked(files, held, topics, options)?;
    let (job, results) = run_all(files, job, &plan.tasks, threads, stop)?;
    publish_locked(files, held, job, &plan, &results)
}

/// Runs every task of a job; after the first error no other one starts, and the job is over.
fn run_all(
    files: &StoreFiles,
    job: Option<Job>,
    tasks: &[QueueTask],
    threads: usize,
    stop: &Arc<Stop>,
) -> Result<(Option<Job>, Vec<TaskResult>), StoreError> {
    match run_on_threads(files, tasks, threads, stop) {
        Ok(results) => Ok((job, results)),
        Err(error) => {
            // The first error is the one to report; the next job sweeps what this leaves.
            let _ = job.map(|job| job.abandon(files));
            Err(error)
        }
    }
}

fn run_on_threads(
    files: &StoreFiles,
    tasks: &[QueueTask],
    threads: usize,
    stop: &Arc<Stop>,
) -> Result<Vec<TaskResult>, StoreError> {
    let pending: Arc<Mutex<Vec<(usize, QueueTask)>>> =
        Arc::new(Mutex::new(tasks.iter().cloned().enumerate().rev().collect()));
    let mut running = Vec::new();
    for _ in 0..threads.clamp(1, tasks.len().max(1)) {
        let (files, pending, stop) = (files.clone(), Arc::clone(&pending), Arc::clone(stop));
        let root = files.root.clone();
        let run = move || run_pending(&files, &pending, &stop);
        running.push(spawn("mq-compact", run).at(&root, "starting a thread")?);
    }
    let mut results = Vec::new();
    let mut failed = None;
    for thread in running {
        match thread.join() {
            Ok(Ok(mut part)) => results.append(&mut part),
            Ok(Err(error)) => failed = failed.or(Some(error)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    failed.map_or(Ok(results), Err)
}

fn run_pending(
    files: &StoreFiles,
    pending: &Mutex<Vec<(usize, QueueTask)>>,
    stop: &Stop,
) -> Result<Vec<TaskResult>, StoreError> {
    let environment = files.vfs.environment();
    let worker = Worker { pid: environment.pid, host: environment.hostname, module: String::new() };
    let mut results = Vec::new();
    loop {
        // The guard must not live while the task runs.
        let next = pending.lock().pop();
        let Some((at, task)) = next else {
            return Ok(results);
        };
        let staging = job_dir(files, &task.job_id).join(format!("local-{at}"));
        match run_task(files, &task, &staging, worker.clone(), stop) {
            Ok(result) => results.push(result),
            Err(error) => {
                pending.lock().clear();
                return Err(error);
            }
        }
    }
}
