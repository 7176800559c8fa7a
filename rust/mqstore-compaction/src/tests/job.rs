//! Jobs: attempts, drivers, and workers with false answers.

use std::path::PathBuf;
use std::sync::Arc;

use mqstore_io::{Access, SimVfs};

use crate::job::job_record::job_dir;
use crate::testing::{Sent, TestStore, compact_now, compacted, files_on, plan, publish, small};
use crate::{
    CompactionOptions, CompactionPlan, CompactionReport, Document, JobControl, PlannedJob, QueueTask,
    TaskResult, WorkerInfo, compact, run_all, run_task,
};
use mqstore_base::error::StoreError;
use mqstore_base::live_page::lock_store;
use mqstore_base::store_files::StoreFiles;

const TOPIC: &str = "ctopic";

fn store() -> TestStore {
    let mut store = TestStore::new(&[TOPIC]);
    store.append_in_turn(TOPIC, 40, 10);
    store.append(TOPIC, 1, Sent::new("one", "queue more"));
    store
}

fn named(job: &str) -> CompactionOptions {
    CompactionOptions { job_id: Some(job.to_owned()), ..small() }
}

fn planned(files: &StoreFiles, job: &str) -> PlannedJob {
    plan(files, None, &named(job)).unwrap()
}

fn try_task(
    files: &StoreFiles,
    task: &QueueTask,
    staging: &std::path::Path,
    worker: WorkerInfo,
) -> Result<TaskResult, StoreError> {
    run_task(files, task, staging, worker, &JobControl::default())
}

fn attempt(files: &StoreFiles, task: &QueueTask, name: &str) -> TaskResult {
    let worker = WorkerInfo { pid: 7, host: "elsewhere".to_owned(), module: "/lib/_mqstore.so".to_owned() };
    try_task(files, task, &job_dir(files, &task.job_id).join(name), worker).unwrap()
}

fn attempts(files: &StoreFiles, plan: &CompactionPlan) -> Vec<TaskResult> {
    plan.tasks.iter().enumerate().map(|(at, task)| attempt(files, task, &format!("attempt-{at}"))).collect()
}

fn inode(files: &StoreFiles) -> Option<u64> {
    files.vfs.stat(&files.compaction()).ok().map(|stat| stat.inode)
}

#[test]
fn documents_survive_json() {
    let store = store();
    let PlannedJob { plan, job } = planned(&store.files, "j");
    assert_eq!(QueueTask::from_json(plan.tasks[0].to_json().unwrap()).unwrap(), plan.tasks[0]);
    let results = attempts(&store.files, &plan);
    for result in &results {
        assert_eq!(&TaskResult::from_json(result.to_json().unwrap()).unwrap(), result);
    }
    let report = publish(&store.files, job, &plan, &results).unwrap();
    assert_eq!(serde_json::from_str::<CompactionReport>(&report.to_json().unwrap()).unwrap(), report);
    assert_eq!(report.queues[0]["worker"]["module"], "/lib/_mqstore.so");
}

#[test]
fn of_many_attempts_one_is_published() {
    let store = store();
    let PlannedJob { plan, job } = planned(&store.files, "j");
    let _lost = attempt(&store.files, &plan.tasks[0], "attempt-0-lost");
    let mut results = attempts(&store.files, &plan);
    results.push(attempt(&store.files, &plan.tasks[0], "attempt-0-late"));
    let report = publish(&store.files, job, &plan, &results).unwrap();
    assert_eq!(report.messages_after, 11);
    assert_eq!(compacted(&store.files, TOPIC, 0), store.dictionary(TOPIC, 0));
    let left = store.files.vfs.list(&job_dir(&store.files, "j")).unwrap();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn two_attempts_give_the_same_bytes() {
    let store = store();
    let PlannedJob { plan, job: _job } = planned(&store.files, "j");
    let first = attempt(&store.files, &plan.tasks[0], "a");
    let second = attempt(&store.files, &plan.tasks[0], "b");
    assert_eq!(first.pairs, second.pairs);
    assert!(first.pairs.len() > 1);
}

#[test]
fn a_late_attempt_cannot_touch_what_is_published() {
    let store = store();
    let PlannedJob { plan, job } = planned(&store.files, "j");
    let results = attempts(&store.files, &plan);
    publish(&store.files, job, &plan, &results).unwrap();
    let worker = WorkerInfo::default();
    let error =
        try_task(&store.files, &plan.tasks[0], &job_dir(&store.files, "j").join("late"), worker).unwrap_err();
    assert!(matches!(error, StoreError::NotAStore { .. }), "{error}");
    assert_eq!(compacted(&store.files, TOPIC, 0), store.dictionary(TOPIC, 0));
}

#[test]
fn the_same_job_is_published_once() {
    let mut store = store();
    let first = compact_now(&store.files, None, &named("nightly"), 1).unwrap();
    let published = inode(&store.files);
    store.append(TOPIC, 0, Sent::new("k1", "later"));
    let second = compact_now(&store.files, None, &named("nightly"), 1).unwrap();
    assert_eq!((first, published), (second, inode(&store.files)));
    compact_now(&store.files, None, &named("nightly-2"), 1).unwrap();
    assert_eq!(compacted(&store.files, TOPIC, 0), store.dictionary(TOPIC, 0));
}

#[test]
fn a_job_that_is_running_is_not_started_twice() {
    let store = store();
    let running = planned(&store.files, "j");
    let error = plan(&store.files, None, &named("j")).unwrap_err();
    assert!(matches!(&error, StoreError::Busy { .. }), "{error}");
    drop(running);
    assert!(plan(&store.files, None, &named("j")).is_ok());
}

#[test]
fn a_job_whose_driver_died_is_run_again_by_another() {
    let store = store();
    let PlannedJob { plan, job } = planned(&store.files, "j");
    let results = attempts(&store.files, &plan);
    drop(job);
    let refused = publish(&store.files, None, &plan, &results).unwrap_err();
    assert!(matches!(refused, StoreError::InvalidOption { option: "job_id", .. }), "{refused}");
    let PlannedJob { plan, job } = planned(&store.files, "j");
    let results = attempts(&store.files, &plan);
    let report = publish(&store.files, job, &plan, &results).unwrap();
    assert_eq!(report.messages_after, 11);
    let PlannedJob { plan, job } = planned(&store.files, "j");
    assert!(job.is_none());
    assert_eq!(publish(&store.files, job, &plan, &[]).unwrap(), report);
}

#[test]
fn queues_that_moved_are_skipped() {
    let store = store();
    let PlannedJob { plan, job } = planned(&store.files, "slow");
    let results = attempts(&store.files, &plan);
    compact_now(&store.files, None, &named("fast"), 1).unwrap();
    let before = inode(&store.files);
    let report = publish(&store.files, job, &plan, &results).unwrap();
    assert_eq!((report.skipped.len(), report.messages_after), (2, 0));
    assert!(report.skipped[0].contains("changed while it was compacted"), "{:?}", report.skipped);
    assert_eq!(before, inode(&store.files));
}

#[test]
fn messages_appended_meanwhile_are_not_lost() {
    let mut store = store();
    let PlannedJob { plan, job } = planned(&store.files, "j");
    let before = store.dictionary(TOPIC, 0);
    store.append(TOPIC, 0, Sent::new("k1", "meanwhile"));
    let results = attempts(&store.files, &plan);
    let report = publish(&store.files, job, &plan, &results).unwrap();
    assert_eq!(report.skipped, Vec::<String>::new());
    assert_eq!(compacted(&store.files, TOPIC, 0), before);
    compact_now(&store.files, None, &named("next"), 1).unwrap();
    assert_eq!(compacted(&store.files, TOPIC, 0), store.dictionary(TOPIC, 0));
}

#[test]
fn a_log_that_was_cut_meanwhile_is_noticed() {
    let store = store();
    let PlannedJob { plan, job } = planned(&store.files, "j");
    let results = attempts(&store.files, &plan);
    let tail = results[0].log_tail.unwrap();
    let path = store.files.commit_log().join(mqstore_format::offset_file_name(0));
    let log = store.files.vfs.open(&path, Access::ReadWrite).unwrap();
    log.write_all_at(&vec![0; tail.size as usize], tail.physical_offset).unwrap();
    let report = publish(&store.files, job, &plan, &results).unwrap();
    assert!(report.skipped[0].contains("no longer holds"), "{:?}", report.skipped);
    assert_eq!(report.messages_after, 1);
}

#[test]
fn a_store_that_is_open_for_writing_is_locked() {
    let store = store();
    let held = lock_store(&store.files).unwrap();
    assert!(matches!(plan(&store.files, None, &small()), Err(StoreError::Locked { .. })));
    drop(held);
    let PlannedJob { plan, job } = planned(&store.files, "j");
    let results = attempts(&store.files, &plan);
    let held = lock_store(&store.files).unwrap();
    assert!(matches!(publish(&store.files, job, &plan, &results), Err(StoreError::Locked { .. })));
    drop(held);
    // Nothing is lost: the job can be run again.
    let PlannedJob { plan, job } = planned(&store.files, "j");
    let results = attempts(&store.files, &plan);
    assert_eq!(publish(&store.files, job, &plan, &results).unwrap().messages_after, 11);
}

#[test]
fn jobs_of_dead_drivers_are_swept_and_running_ones_are_not() {
    let store = store();
    let dead = planned(&store.files, "dead");
    attempts(&store.files, &dead.plan);
    drop(dead);
    let running = planned(&store.files, "running");
    attempts(&store.files, &running.plan);
    assert!(store.files.vfs.stat(&job_dir(&store.files, "dead")).is_err());
    compact_now(&store.files, None, &named("next"), 1).unwrap();
    assert!(store.files.vfs.stat(&job_dir(&store.files, "running").join("attempt-0")).is_ok());
    running.job.unwrap().abandon(&store.files).unwrap();
    assert!(store.files.vfs.stat(&job_dir(&store.files, "running")).is_err());
}

#[test]
fn a_compaction_that_is_stopped_leaves_nothing_unless_it_has_a_name() {
    let store = store();
    let stop = Arc::new(JobControl::default());
    stop.end();
    for (options, left) in [(small(), 0), (named("j"), 1)] {
        let error = compact(&store.files, None, &options, 2, &stop).unwrap_err();
        assert!(matches!(error, StoreError::Closed { .. }), "{error}");
        assert!(inode(&store.files).is_none());
        assert_eq!(store.files.vfs.list(&store.files.jobs()).unwrap().len(), left);
    }
}

#[test]
fn a_worker_that_sees_another_directory_says_so() {
    let store = store();
    let PlannedJob { plan, job: _job } = planned(&store.files, "j");
    let elsewhere = files_on(&SimVfs::default());
    let staging = job_dir(&elsewhere, "j").join("a");
    let error = try_task(&elsewhere, &plan.tasks[0], &staging, WorkerInfo::default()).unwrap_err();
    assert!(error.to_string().contains("same path"), "{error}");
    let mut task = plan.tasks[0].clone();
    task.nonce = "another".to_owned();
    let error = try_task(&store.files, &task, &job_dir(&store.files, "j").join("a"), WorkerInfo::default())
        .unwrap_err();
    assert!(error.to_string().contains("another job"), "{error}");
}

#[test]
fn attempts_write_into_their_jobs_folder_only() {
    let store = store();
    let PlannedJob { plan, job: _job } = planned(&store.files, "j");
    let dir = job_dir(&store.files, "j");
    for staging in [
        dir.join("..").join("x"),
        dir.join(".."),
        dir.join("tree"),
        dir.join("a/b"),
        store.files.root.join("x"),
        PathBuf::from("x"),
        dir.join(".hidden"),
    ] {
        let error = try_task(&store.files, &plan.tasks[0], &staging, WorkerInfo::default()).unwrap_err();
        assert!(matches!(error, StoreError::InvalidOption { .. }), "{}: {error}", staging.display());
    }
    attempt(&store.files, &plan.tasks[0], "a");
    let again = try_task(&store.files, &plan.tasks[0], &dir.join("a"), WorkerInfo::default());
    assert!(matches!(again, Err(StoreError::Io { .. })), "a staging folder is used once");
}

#[test]
fn job_ids_are_plain_names() {
    let store = store();
    for id in ["", ".", "..", "a/b", "a b", ".x", "ä", &"x".repeat(101)] {
        assert!(plan(&store.files, None, &named(id)).is_err(), "{id:?}");
    }
}

/// Publishes the results after `lie` changed them, and returns the reason why queue 0 was skipped.
fn refused(lie: impl Fn(&StoreFiles, &mut Vec<TaskResult>)) -> String {
    let store = store();
    compact_now(&store.files, None, &named("before"), 1).unwrap();
    let before = compacted(&store.files, TOPIC, 0);
    let forced = CompactionOptions { force: true, ..named("j") };
    let PlannedJob { plan, job } = plan(&store.files, None, &forced).unwrap();
    let mut results = attempts(&store.files, &plan);
    lie(&store.files, &mut results);
    let report = publish(&store.files, job, &plan, &results).unwrap();
    assert_eq!(compacted(&store.files, TOPIC, 0), before);
    assert_eq!(report.skipped.len(), 1, "{:?}", report.skipped);
    report.skipped[0].clone()
}

fn staged(files: &StoreFiles, file: &str) -> PathBuf {
    job_dir(files, "j").join("attempt-0").join(file)
}

#[test]
fn results_that_do_not_hold_are_refused() {
    assert!(refused(|_, results| drop(results.remove(0))).contains("no task returned"));
    assert!(refused(|_, results| results[0].job_id = "k".to_owned()).contains("names job"));
    assert!(refused(|_, results| results[0].staging = "../../../x".to_owned()).contains("names job"));
    assert!(refused(|_, results| results[0].staging = "tree".to_owned()).contains("names job"));
    assert!(refused(|_, results| results[0].pairs[0].log.crc ^= 1).contains("CRC"));
    assert!(refused(|_, results| results[0].pairs[0].log.used_bytes = u64::MAX).contains("length"));
    assert!(refused(|_, results| results[0].pairs[1].base += 1).contains("does not belong"));
    assert!(refused(|_, results| results[0].pairs[0].units = u64::MAX).contains("units"));
    assert!(refused(|_, results| results[0].counts.survivors = 3).contains("its result says 3"));
    assert!(refused(|_, results| results[0].pairs.truncate(1)).contains("units"));
    assert!(refused(|_, results| results[0].failed = Some("out of luck".to_owned())).contains("out of luck"));
}

#[test]
fn files_that_do_not_hold_are_refused() {
    let log = "log/00000000000000000000";
    let reason = refused(|files, _| files.vfs.remove_file(&staged(files, log)).unwrap());
    assert!(reason.contains("is missing"), "{reason}");
    let reason = refused(|files, _| {
        let file = files.vfs.open(&staged(files, log), Access::ReadWrite).unwrap();
        file.set_len(100).unwrap();
    });
    assert!(reason.contains("length"), "{reason}");
    let reason = refused(|files, _| {
        let file = files.vfs.open(&staged(files, log), Access::ReadWrite).unwrap();
        file.write_all_at(b"#", 90).unwrap();
    });
    assert!(reason.contains("CRC"), "{reason}");
    // Files of another queue, with the right lengths and checksums.
    let reason = refused(|_, results| {
        let other = results[1].clone();
        results[0].pairs.clone_from(&other.pairs);
        results[0].counts = other.counts;
        results[0].staging = other.staging;
    });
    assert!(reason.contains("record of this queue"), "{reason}");
}

/// The staging folders of a job with a finished queue.
fn finished(files: &StoreFiles, job: &str) -> Vec<String> {
    let staged = files.vfs.list(&job_dir(files, job)).unwrap_or_default();
    let mut names: Vec<_> = staged.into_iter().map(|entry| entry.name.into_string().unwrap()).collect();
    names.retain(|name| files.vfs.stat(&job_dir(files, job).join(name).join("result.json")).is_ok());
    names
}

/// Runs a named job until one queue is finished, and stops it.
fn stopped(store: &TestStore) -> CompactionPlan {
    let PlannedJob { plan, job } = planned(&store.files, "j");
    let tasks = plan.tasks.get(..1).unwrap();
    let (job, _) = run_all(&store.files, None, job, tasks, 1, &Arc::default()).unwrap();
    let ended = Arc::new(JobControl::default());
    ended.end();
    let error = run_all(&store.files, None, job, &plan.tasks, 1, &ended).unwrap_err();
    assert!(matches!(error, StoreError::Closed { .. }), "{error}");
    assert_eq!(finished(&store.files, "j"), ["local-0"]);
    plan
}

#[test]
fn a_named_job_that_was_stopped_goes_on_where_it_was() {
    let store = store();
    stopped(&store);
    let staged = |files: &StoreFiles| {
        let folder = job_dir(files, "j").join("local-0").join("log");
        let files_there = files.vfs.list(&folder).unwrap();
        files_there.into_iter().map(|entry| entry.stat.inode).collect::<Vec<_>>()
    };
    let before = staged(&store.files);
    let PlannedJob { plan, job } = planned(&store.files, "j");
    let (job, results) = run_all(&store.files, None, job, &plan.tasks, 1, &Arc::default()).unwrap();
    assert_eq!(staged(&store.files), before, "its files were written again");
    let report = publish(&store.files, job, &plan, &results).unwrap();
    assert_eq!(report.skipped, Vec::<String>::new());
    for queue in 0..2 {
        assert_eq!(compacted(&store.files, TOPIC, queue), store.dictionary(TOPIC, queue));
    }
    assert_eq!(finished(&store.files, "j"), Vec::<String>::new());
}

#[test]
fn what_was_finished_counts_for_the_same_task_alone() {
    let mut store = store();
    stopped(&store);
    store.append_in_turn(TOPIC, 10, 3);
    let report = compact(&store.files, None, &named("j"), 1, &Arc::default()).unwrap();
    assert_eq!(report.skipped, Vec::<String>::new());
    for queue in 0..2 {
        assert_eq!(compacted(&store.files, TOPIC, queue), store.dictionary(TOPIC, queue));
    }
}

#[test]
fn a_finished_queue_whose_note_or_file_was_damaged_is_not_published() {
    let store = store();
    stopped(&store);
    let folder = job_dir(&store.files, "j").join("local-0");
    let note = folder.join("result.json");
    let vfs = &store.files.vfs;
    vfs.open(&note, Access::ReadWrite).unwrap().write_all_at(b"{", 10).unwrap();
    let PlannedJob { plan, job } = planned(&store.files, "j");
    let (job, results) = run_all(&store.files, None, job, &plan.tasks, 1, &Arc::default()).unwrap();
    assert_eq!(publish(&store.files, job, &plan, &results).unwrap().skipped, Vec::<String>::new());
    assert_eq!(compacted(&store.files, TOPIC, 0), store.dictionary(TOPIC, 0));
}
