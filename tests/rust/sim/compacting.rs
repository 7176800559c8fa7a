//! A compaction interrupted at any call leaves the old generation or the new one, complete.

use std::collections::BTreeMap;
use std::sync::Arc;

use mqstore_base::message::{NewMessage, encode_properties};
use mqstore_base::options::{Durability, OpenMode, StoreOptions};
use mqstore_base::store_files::StoreFiles;
use mqstore_compaction::{
    CompactedQueue, CompactionOptions, JobControl, PlannedJob, StoreLockHeld, WorkerInfo, compact, plan,
    publish, run_task,
};
use mqstore_engine::Store;
use mqstore_io::sim::SimOptions;
use mqstore_io::{SimVfs, Vfs};

use crate::check::abandon;
use crate::explore::{Violation, guarded};
use crate::states::{Limits, Rng, State, states};
use crate::workload::{World, explain, root, tiny};

const TOPIC: &str = "keyed";
const LIMITS: Limits = Limits { all_up_to: 16, singles: 24, random: 2, cuts: 1 };

/// The expected content: key to queue offset and body.
type Table = BTreeMap<String, (i64, Vec<u8>)>;

/// A setting: whether this is the first compaction of the store, and whether the file system can exchange two
/// folders in one step.
#[derive(Clone, Copy)]
struct Setting {
    first: bool,
    exchange: bool,
}

const SETTINGS: [Setting; 3] = [
    Setting { first: false, exchange: false },
    Setting { first: false, exchange: true },
    Setting { first: true, exchange: true },
];

/// The state before the interrupted compaction.
struct Start {
    world: World,
    /// The content of the compacted queue before and after the compaction.
    old: Table,
    new: Table,
    /// The end of the queue when the compaction begins.
    end: i64,
}

fn send(store: &Store, table: &mut Table, next: &mut i64, key: usize, body: &str) -> Result<(), String> {
    let key = format!("k{key}");
    let properties = encode_properties([key.as_str()], None, None, []).map_err(explain)?;
    let message = NewMessage {
        topic: TOPIC,
        body: body.as_bytes(),
        properties: &properties,
        unique_key: None,
        queue_id: Some(0),
        flag: 0,
        born_timestamp_ms: None,
        durable: false,
        ..NewMessage::default()
    };
    store.append(&message).map_err(explain)?;
    if body.is_empty() {
        table.remove(&key);
    } else {
        table.insert(key, (*next, body.as_bytes().to_vec()));
    }
    *next += 1;
    Ok(())
}

fn options(job: &str) -> CompactionOptions {
    CompactionOptions {
        job_id: Some(job.to_owned()),
        log_file_bytes: 4096,
        queue_file_bytes: 46 * 4,
        tombstone_retention_ms: 0,
        ..CompactionOptions::default()
    }
}

fn run(files: &StoreFiles, job: &str) -> Result<(), String> {
    compact(files, None, &options(job), 1, &Arc::new(JobControl::default())).map(|_| ()).map_err(explain)
}

/// Options without the compaction appender: only compactions write compaction files.
fn unfed() -> StoreOptions {
    StoreOptions { compaction_feed: false, ..tiny(Durability::Manual) }
}

/// A store with one generation (unless `first`) and newer messages. Its process still runs, so unsynced bytes
/// may still be lost.
fn start(setting: Setting) -> Result<Start, String> {
    let world = World::with(SimOptions { no_exchange: !setting.exchange, ..SimOptions::default() });
    let options = unfed();
    let store = world.open(OpenMode::Create, &options).map_err(explain)?;
    store
        .create_topic(TOPIC, 1, &[("cleanup.policy".to_owned(), "COMPACTION".to_owned())])
        .map_err(explain)?;
    let (mut table, mut next) = (Table::new(), 0);
    for number in 0..12 {
        send(&store, &mut table, &mut next, number % 5, &format!("value {number}"))?;
    }
    store.close().map_err(explain)?;
    let mut old = Table::new();
    if !setting.first {
        run(&world.files(), "one")?;
        old.clone_from(&table);
        // No file of the first job is open any more.
        let settled = world.vfs.crash_as(false, &mut |_, forms| forms - 1).map_err(explain)?;
        return newer(World::on(settled), old, table, next);
    }
    newer(world, old, table, next)
}

fn newer(world: World, old: Table, mut table: Table, mut next: i64) -> Result<Start, String> {
    let store = world.open(OpenMode::ReadWrite, &unfed()).map_err(explain)?;
    for number in 0..6 {
        send(&store, &mut table, &mut next, number % 4, &format!("newer {number}"))?;
    }
    send(&store, &mut table, &mut next, 4, "")?;
    // The log rolls, and the name of the new segment is never synced.
    for number in 0..2 {
        send(&store, &mut table, &mut next, 3, &format!("longer {number} {}", "x".repeat(1_900)))?;
    }
    store.step().map_err(explain)?;
    // Killed, not closed: the last records were never synced.
    let killed = world.vfs.kill().map_err(explain)?;
    abandon(&store);
    Ok(Start { world: World::on(killed), old, new: table, end: next })
}

/// The content of the compacted queue on a disk.
fn content(vfs: &SimVfs) -> Result<Table, String> {
    let files = World::on(vfs.clone()).files();
    let mut table = Table::new();
    let Some(queue) = CompactedQueue::open(&files, TOPIC, 0).map_err(explain)? else { return Ok(table) };
    let mut last = -1;
    for record in queue.read(0) {
        let record = record.map_err(explain)?;
        let view = record.view().map_err(explain)?;
        view.check_crc(mqstore_format::CrcCheck { body: true, property: true }).map_err(explain)?;
        if view.queue_offset <= last {
            return Err(format!("offset {} follows {last}", view.queue_offset));
        }
        last = view.queue_offset;
        let key = view.keys().unwrap_or_default().to_owned();
        if table.insert(key.clone(), (view.queue_offset, view.body.to_vec())).is_some() {
            return Err(format!("key {key} is there twice"));
        }
    }
    Ok(table)
}

/// Ends a compaction after each call that changes the disk.
pub(crate) fn hunt(step: usize, stop: &dyn Fn() -> bool) -> Result<u64, Violation> {
    let mut tried = 0;
    guarded(damaged_staging).map_err(|what| violation(2, 0, 0, what))?;
    for (number, setting) in SETTINGS.into_iter().enumerate() {
        let broken = |what: String| violation(number, 0, 0, what);
        let start = guarded(|| start(setting)).map_err(broken)?;
        let before = start.world.vfs.kill().map_err(|error| broken(error.to_string()))?;
        let probe = before.kill().map_err(|error| broken(error.to_string()))?;
        guarded(|| run(&World::on(probe.clone()).files(), "two")).map_err(broken)?;
        let calls = probe.operations();
        let world = before.kill().map_err(|error| broken(error.to_string()))?;
        world.freeze_at_each(2..=calls);
        guarded(|| run(&World::on(world.clone()).files(), "two")).map_err(broken)?;
        let mut moments = world.take_all_frozen();
        moments.push((calls + 1, world));
        // From the end on, because everything is promised there.
        for (call, moment) in moments.into_iter().rev().step_by(step) {
            let done = call > calls;
            let mut rng = Rng::new(call);
            for (form, state) in states(&moment, LIMITS, &mut rng).iter().enumerate() {
                if stop() {
                    return Ok(tried);
                }
                tried += 1;
                let outcome = guarded(|| check(&start, state, &moment, done));
                outcome.map_err(|what| violation(number, call, form, format!("{state}: {what}")))?;
            }
        }
    }
    Ok(tried)
}

fn violation(setting: usize, call: u64, state: usize, what: String) -> Violation {
    Violation { replay: format!("c{setting}-0:{call}:{state}:0"), what: format!("compaction: {what}") }
}

fn check(start: &Start, state: &State, moment: &SimVfs, done: bool) -> Result<(), String> {
    let vfs = state.image(moment)?.vfs;
    let found = content(&vfs)?;
    if found != start.new && (done || found != start.old) {
        return Err(format!("the compacted queue holds {found:?}; done: {done}"));
    }
    positions(&vfs)?;
    let published = found == start.new && start.new != start.old;
    let world = World::on(vfs);
    let store = world.open(OpenMode::ReadWrite, &unfed()).map_err(explain)?;
    let end = store.queues(TOPIC).map_err(explain)?.first().map_or(0, |queue| queue.max_offset);
    if published && end < start.end {
        return Err(format!("the queue ends at {end}, and a compacted record is of before {}", start.end));
    }
    abandon(&store);
    drop(store);
    // The same job resumes and ends. A later job sweeps.
    let world = World::on(world.vfs.kill().map_err(explain)?);
    run(&world.files(), "two").map_err(|what| format!("the job again: {what}"))?;
    let again = content(&world.vfs)?;
    if end == start.end && again != start.new {
        return Err(format!("the job again left {again:?}"));
    }
    let jobs = root().join("mqstore/jobs/two");
    let left = world.vfs.list(&jobs).map_err(explain)?;
    if left.iter().any(|entry| entry.name != "lock" && entry.name != "record.json") {
        return Err(format!("the job left {left:?}"));
    }
    Ok(())
}

/// The file `position-checkpoint` in the compaction folder is complete text.
fn positions(vfs: &SimVfs) -> Result<(), String> {
    let path = root().join("compaction").join("position-checkpoint");
    match vfs.read_file(&path, 1 << 16) {
        Ok(text) if text.is_empty() || text.contains(&0) => {
            Err("the compaction positions are empty".to_owned())
        }
        _ => Ok(()),
    }
}

/// A staged file whose bytes changed after its worker wrote them is not published.
fn damaged_staging() -> Result<(), String> {
    let start = start(Setting { first: true, exchange: true })?;
    let files = start.world.files();
    let hold = || StoreLockHeld::take(&files).map_err(explain);
    let PlannedJob { plan, job } = plan(&files, &hold()?, None, &options("two")).map_err(explain)?;
    let task = plan.tasks.first().ok_or("nothing to compact")?;
    let staging = root().join("mqstore/jobs/two/worker");
    let worker = WorkerInfo { pid: 1, host: String::new(), module: String::new() };
    let result = run_task(&files, task, &staging, worker, &JobControl::default()).map_err(explain)?;
    let mut files_there = Vec::new();
    crate::decay::files_below(&start.world.vfs, &staging, &mut files_there);
    let (path, _) = files_there.first().ok_or("the task has made no file")?;
    start.world.vfs.flip(path, 8, 1).map_err(explain)?;
    let held = hold()?;
    let published = publish(&files, &held, job, &plan, &[result]).map_err(explain)?;
    let report = published.sweep(&files, &held).map_err(explain)?;
    drop(held);
    if report.skipped.is_empty() || content(&start.world.vfs)? != start.old {
        return Err(format!("a damaged staged file was published: {report:?}"));
    }
    Ok(())
}

#[test]
fn a_compaction_is_there_wholly_or_not_at_all() {
    let tried = crate::crashes::must_hold(hunt(crate::crashes::calls_step(), &|| false));
    println!("compaction: {tried} states");
    assert!(tried > 1_000);
}
