//! Compares the compaction of one queue by several workers with that by one.

use std::collections::BTreeSet;

use proptest::prelude::{ProptestConfig, any, prop, prop_assert_eq, proptest};
use proptest::strategy::Strategy as Values;

use super::*;
use crate::job::job_record::job_dir;
use crate::testing::{START_MS, Sent, TestStore, compact_now, compacted, plan, publish, small};
use crate::{CompactionOptions, Document, Keyless, PlannedJob};

const TOPIC: &str = "ctopic";

/// Runs all steps of a plan's tasks, each as JSON and in its own folder; returns the results and the number of steps.
fn run_all(
    files: &StoreFiles,
    tasks: &[QueueTask],
    strategy: Strategy,
    parts: u32,
) -> (Vec<TaskResult>, usize) {
    let (mut results, mut ran) = (Vec::new(), 0);
    for task in tasks {
        let mut steps = split(files, task, strategy, parts).unwrap();
        let result = loop {
            let mut answers = Vec::new();
            for step in &steps {
                let same = CompactionStep::from_json(step.to_json().unwrap()).unwrap();
                assert_eq!(&same, step);
                let staging = job_dir(files, &task.job_id).join(format!("step-{}-{ran}", task.queue_id));
                ran += 1;
                let answer =
                    run_step(files, &same, &staging, WorkerInfo::default(), &JobControl::default()).unwrap();
                answers.push(TaskResult::from_json(answer.to_json().unwrap()).unwrap());
            }
            match next(files, &steps, &answers).unwrap() {
                NextSteps::Steps(following) => steps = following,
                NextSteps::Done(result) => break *result,
            }
        };
        results.push(result);
    }
    (results, ran)
}

/// Runs a compaction in steps.
fn compact_in_steps(
    files: &StoreFiles,
    options: &CompactionOptions,
    strategy: Strategy,
    parts: u32,
) -> (super::super::CompactionReport, usize) {
    let PlannedJob { plan, job } = plan(files, None, options).unwrap();
    let (results, ran) = run_all(files, &plan.tasks, strategy, parts);
    (publish(files, job, &plan, &results).unwrap(), ran)
}

/// All files of the compaction folder.
fn tree(files: &StoreFiles) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![files.compaction()];
    while let Some(folder) = folders.pop() {
        for entry in crate::files::folder::list_or_none(files, &folder).unwrap() {
            let path = folder.join(&entry.name);
            if entry.stat.kind == mqstore_io::FileKind::Directory {
                folders.push(path);
            } else {
                found.push((path.clone(), files.vfs.read_file(&path, 1 << 24).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// The messages of a queue: the key, `None` without one; and whether it has a body.
type Events = Vec<(Option<u8>, bool)>;

fn fill(store: &mut TestStore, events: &Events) {
    for (key, has_body) in events {
        let body = if *has_body { "x".repeat(20 + usize::from(key.unwrap_or(3)) * 7) } else { String::new() };
        store.append(TOPIC, 0, Sent { key: key.map(|key| format!("key {key}")), body: body.into_bytes() });
    }
}

fn events(most: usize) -> impl Values<Value = Events> {
    prop::collection::vec((prop::option::weighted(0.9, 0..30_u8), prop::bool::weighted(0.9)), 0..most)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Checks that bytes and report are the same, for all earlier compactions and all splits of the queue.
    #[test]
    fn the_files_are_those_of_one_worker(
        first in events(80),
        second in events(80),
        parts in 2..7_u32,
        memory_bytes in prop::sample::select(vec![0_u64, 300, 1 << 20]),
        confirm_keys in any::<bool>(),
        keyless in prop::sample::select(vec![Keyless::Drop, Keyless::Keep, Keyless::Refuse]),
        tombstone_retention_ms in prop::sample::select(vec![0_u64, 86_400_000]),
        expired in prop::option::of(0..160_u64),
    ) {
        let options = CompactionOptions {
            memory_bytes, confirm_keys, keyless, tombstone_retention_ms, force: true, ..small()
        };
        let (mut one, mut many) = (TestStore::new(&[TOPIC]), TestStore::new(&[TOPIC]));
        for events in [&first, &second] {
            for store in [&mut one, &mut many] {
                fill(store, events);
                // The store time of a test message is its queue offset.
                if let Some(expired) = expired {
                    store.expire_after(&[TOPIC], Some(1000));
                    store.clock.set(START_MS + 1000 + i64::try_from(expired).unwrap());
                }
            }
            let mut alone = compact_now(&one.files, None, &options, 1).unwrap();
            let (mut together, _) = compact_in_steps(&many.files, &options, Strategy::Ranged, parts);
            prop_assert_eq!(tree(&many.files), tree(&one.files));
            for report in [&mut alone, &mut together] {
                report.job_id.clear();
                report.rounds = 0;
                report.queues.clear();
            }
            prop_assert_eq!(together, alone);
        }
    }
}

fn store_of(keys: usize) -> TestStore {
    let mut store = TestStore::new(&[TOPIC]);
    for at in 0..keys {
        store.append(TOPIC, 0, Sent::new(&format!("key {}", at % 50), &format!("body {at}")));
    }
    store
}

#[test]
fn a_queue_is_cut_when_its_keys_do_not_fit() {
    let store = store_of(200);
    for (memory_bytes, strategy, is_cut) in [
        (200 * 56, Strategy::Auto, false),
        (200 * 56 - 1, Strategy::Auto, true),
        (0, Strategy::Partition, false),
        (1 << 30, Strategy::Ranged, true),
    ] {
        let options = CompactionOptions { memory_bytes, ..small() };
        let PlannedJob { plan, job } = plan(&store.files, None, &options).unwrap();
        let steps = split(&store.files, &plan.tasks[0], strategy, 4).unwrap();
        assert_eq!(
            matches!(steps.as_slice(), [CompactionStep::Scan(_), ..]),
            is_cut,
            "{memory_bytes} {strategy:?}"
        );
        assert_eq!(steps.len(), if is_cut { 4 } else { 1 });
        job.unwrap().abandon(&store.files).unwrap();
    }
    let (report, ran) =
        compact_in_steps(&store.files, &CompactionOptions { memory_bytes: 0, ..small() }, Strategy::Auto, 3);
    // 256 shares, rounded up for the workers.
    assert!(ran > 256, "{ran}");
    assert_eq!((report.keys, report.messages_after), (50, 50));
    assert_eq!(compacted(&store.files, TOPIC, 0), store.dictionary(TOPIC, 0));
}

#[test]
fn several_workers_write_the_files() {
    let store = store_of(200);
    let PlannedJob { plan, job } = plan(&store.files, None, &small()).unwrap();
    let task = &plan.tasks[0];
    let mut steps = split(&store.files, task, Strategy::Ranged, 3).unwrap();
    let mut kinds = Vec::new();
    for round in 0.. {
        kinds.push(steps.len());
        let run = |(at, step): (usize, &CompactionStep)| {
            let staging = job_dir(&store.files, &task.job_id).join(format!("{round}-{at}"));
            run_step(&store.files, step, &staging, WorkerInfo::default(), &JobControl::default()).unwrap()
        };
        let answers: Vec<_> = steps.iter().enumerate().map(run).collect();
        if let Some(CompactionStep::Copy(_)) = steps.first() {
            let written: BTreeSet<_> = answers.iter().map(|answer| answer.pairs.len()).collect();
            assert!(!written.contains(&0), "{written:?}");
        }
        match next(&store.files, &steps, &answers).unwrap() {
            NextSteps::Steps(following) => steps = following,
            NextSteps::Done(result) => {
                assert!(result.pairs.len() > 3);
                publish(&store.files, job, &plan, &[*result]).unwrap();
                break;
            }
        }
    }
    assert_eq!(kinds, [3, 3, 3]);
    assert_eq!(compacted(&store.files, TOPIC, 0), store.dictionary(TOPIC, 0));
}

/// The plan, the steps of the first round, and their answers.
fn scanned(store: &TestStore) -> (PlannedJob, Vec<CompactionStep>, Vec<TaskResult>) {
    let planned = plan(&store.files, None, &small()).unwrap();
    let steps = split(&store.files, &planned.plan.tasks[0], Strategy::Ranged, 3).unwrap();
    let run = |(at, step): (usize, &CompactionStep)| {
        let staging = job_dir(&store.files, &step.task().job_id).join(format!("scan-{at}"));
        run_step(&store.files, step, &staging, WorkerInfo::default(), &JobControl::default()).unwrap()
    };
    let answers = steps.iter().enumerate().map(run).collect();
    (planned, steps, answers)
}

#[test]
fn entries_that_lie_make_one_worker_walk_the_log() {
    let store = store_of(200);
    let queue = store.files.consume_queue().join(TOPIC).join("0");
    let file = store.files.vfs.list(&queue).unwrap().into_iter().map(|entry| entry.name).max().unwrap();
    let planned = plan(&store.files, None, &small()).unwrap();
    let task = &planned.plan.tasks[0];
    let steps = split(&store.files, task, Strategy::Ranged, 3).unwrap();
    // The size in a unit in the middle of the last file.
    let file = store.files.vfs.open(&queue.join(file), mqstore_io::Access::ReadWrite).unwrap();
    file.write_all_at(&[0, 0, 0, 9], 8).unwrap();
    let run = |(at, step): (usize, &CompactionStep)| {
        let staging = job_dir(&store.files, &task.job_id).join(format!("scan-{at}"));
        run_step(&store.files, step, &staging, WorkerInfo::default(), &JobControl::default()).unwrap()
    };
    let answers: Vec<_> = steps.iter().enumerate().map(run).collect();
    assert!(answers.iter().any(|answer| answer.failed.is_some()));
    let following = next(&store.files, &steps, &answers).unwrap();
    assert_eq!(following, NextSteps::Steps(vec![CompactionStep::Whole(task.clone())]));
    let (results, _) = run_all(&store.files, &planned.plan.tasks, Strategy::Partition, 1);
    publish(&store.files, planned.job, &planned.plan, &results).unwrap();
    assert_eq!(compacted(&store.files, TOPIC, 0), store.dictionary(TOPIC, 0));
}

#[test]
fn files_between_the_rounds_are_not_trusted() {
    for name in ["keys-000", "records"] {
        let store = store_of(200);
        let (planned, steps, answers) = scanned(&store);
        let job = job_dir(&store.files, &planned.plan.job_id);
        let path = job.join("scan-1").join(name);
        let file = store.files.vfs.open(&path, mqstore_io::Access::ReadWrite).unwrap();
        file.set_len(file.len().unwrap() - 3).unwrap();
        let NextSteps::Steps(decide) = next(&store.files, &steps, &answers).unwrap() else { panic!() };
        let run = |(at, step): (usize, &CompactionStep)| {
            let staging = job.join(format!("decide-{at}"));
            run_step(&store.files, step, &staging, WorkerInfo::default(), &JobControl::default()).unwrap()
        };
        let decided: Vec<_> = decide.iter().enumerate().map(run).collect();
        let NextSteps::Done(result) = next(&store.files, &decide, &decided).unwrap() else { panic!() };
        assert!(result.failed.as_ref().is_some_and(|reason| reason.contains(name)), "{result:?}");
        let report = publish(&store.files, planned.job, &planned.plan, &[*result]).unwrap();
        assert_eq!((report.queues.len(), report.skipped.len()), (0, 1));
    }
}

#[test]
fn counts_of_workers_are_not_trusted() {
    let store = store_of(200);
    let (planned, steps, mut answers) = scanned(&store);
    for answer in &mut answers {
        answer.counts.before = u64::MAX / 2;
    }
    let NextSteps::Steps(decide) = next(&store.files, &steps, &answers).unwrap() else { panic!() };
    let staging = job_dir(&store.files, &planned.plan.job_id).join("decide-0");
    let result =
        run_step(&store.files, &decide[0], &staging, WorkerInfo::default(), &JobControl::default()).unwrap();
    assert!(result.failed.as_ref().is_some_and(|reason| reason.contains("should be notes")), "{result:?}");
}

#[test]
fn answers_of_other_steps_are_refused() {
    let store = store_of(200);
    let (_planned, steps, mut answers) = scanned(&store);
    assert!(next(&store.files, &steps, &answers[1..]).is_err());
    assert!(next(&store.files, &[], &[]).is_err());
    answers[0].queue_id = 7;
    assert!(next(&store.files, &steps, &answers).is_err());
}
