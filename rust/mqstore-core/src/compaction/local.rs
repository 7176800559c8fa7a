//! A whole compaction in this process: the reference for every other way to run one.
//!
//! Owns nothing on disk. Tasks run on as many threads as the caller allows; since each attempt has a
//! folder of its own, the outcome does not depend on their number.

use std::sync::Arc;

use mqstore_io::sync::{Mutex, spawn};

use super::control::Control;
use super::job::{Job, job_dir};
use super::model::{CompactionReport, QueueTask, TaskResult, Worker};
use super::options::CompactionOptions;
use super::plan::{Planned, plan};
use super::publish::{publish, rehearse};
use super::task::{WrittenTask, begin_task};
use crate::commit_log::CommitLog;
use crate::error::{IoContext, StoreError};
use crate::files::StoreFiles;

/// Compacts `topics` (`None`: all compaction topics) on at most `threads` threads (at least one).
///
/// The store's lock is not held while the tasks run: appends may go on, by whoever opens the store.
///
/// # Errors
/// Those of [`super::plan`], [`super::run_task`] and [`super::publish`].
pub fn compact(
    files: &StoreFiles,
    topics: Option<&[String]>,
    options: &CompactionOptions,
    threads: usize,
    control: &Arc<Control>,
) -> Result<CompactionReport, StoreError> {
    let Planned { plan, job } = plan(files, topics, options)?;
    let (job, results) = run_all(files, None, job, &plan.tasks, threads, control)?;
    if options.dry_run { rehearse(files, job, &plan, &results) } else { publish(files, job, &plan, &results) }
}

/// Runs every task of a job, with the commit log of this process, where it writes it; after the first error no other one
/// starts, and the job is over.
pub(crate) fn run_all(
    files: &StoreFiles,
    log: Option<&Arc<CommitLog>>,
    job: Option<Job>,
    tasks: &[QueueTask],
    threads: usize,
    control: &Arc<Control>,
) -> Result<(Option<Job>, Vec<TaskResult>), StoreError> {
    control.expect(tasks.iter().map(|task| task.records.saturating_mul(2)).fold(0, u64::saturating_add));
    match run_on_threads(files, log, tasks, threads, control) {
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
    log: Option<&Arc<CommitLog>>,
    tasks: &[QueueTask],
    threads: usize,
    control: &Arc<Control>,
) -> Result<Vec<TaskResult>, StoreError> {
    let pending: Arc<Mutex<Vec<(usize, QueueTask)>>> =
        Arc::new(Mutex::new(tasks.iter().cloned().enumerate().rev().collect()));
    let mut running = Vec::new();
    for _ in 0..threads.clamp(1, tasks.len().max(1)) {
        let (files, pending, control) = (files.clone(), Arc::clone(&pending), Arc::clone(control));
        let (root, log) = (files.root.clone(), log.cloned());
        let run = move || run_pending(&files, log.as_ref(), &pending, &control);
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
    log: Option<&Arc<CommitLog>>,
    pending: &Mutex<Vec<(usize, QueueTask)>>,
    control: &Control,
) -> Result<Vec<TaskResult>, StoreError> {
    let environment = files.vfs.environment();
    let worker = Worker { pid: environment.pid, host: environment.hostname, module: String::new() };
    let mut results = Vec::new();
    // The disk writes one task's files while the next one is under way.
    let mut written: Option<WrittenTask> = None;
    loop {
        // The guard must not live while the task runs.
        let next = pending.lock().pop();
        let is_last = next.is_none();
        let begun = next.map(|(at, task)| {
            let staging = job_dir(files, &task.job_id).join(format!("local-{at}"));
            begin_task(files, log, &task, &staging, worker.clone(), control)
        });
        let done = begun.transpose().and_then(|begun| {
            let before = std::mem::replace(&mut written, begun);
            before.map(|before| before.finish(files)).transpose()
        });
        match done {
            Ok(result) => results.extend(result),
            Err(error) => {
                pending.lock().clear();
                return Err(error);
            }
        }
        if is_last {
            return Ok(results);
        }
    }
}
