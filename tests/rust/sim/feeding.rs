//! The compaction appender, interrupted at any call: a broker finds consistent files, and nothing is lost.

use mqstore_base::message::{NewMessage, encode_properties};
use mqstore_base::options::{Durability, OpenMode, StoreOptions};
use mqstore_compaction::{CompactedQueue, CompactionOptions, JobControl};
use mqstore_engine::Store;
use mqstore_format::{BATCH_CQ_UNIT_BYTES, BatchCqUnit, RecordView};
use mqstore_io::sim::SimOptions;
use mqstore_io::{SimVfs, Vfs};
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::check::abandon;
use crate::explore::Violation;
use crate::moments::{End, Ends};
use crate::states::Limits;
use crate::workload::{World, explain, root, tiny};

const TOPIC: &str = "keyed";
const QUEUES: i32 = 2;
const LIMITS: Limits = Limits { all_up_to: 6, singles: 6, random: 1, cuts: 1 };

/// The other work during the session, and the kind of file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    /// The topic is compacted in between.
    Compacts,
    /// The same, on a file system that cannot exchange folders in one step.
    InSteps,
    /// Retention removes copied segments from the log.
    Expires,
}

const SETTINGS: [Setting; 3] = [Setting::Compacts, Setting::InSteps, Setting::Expires];

fn options(setting: Setting) -> StoreOptions {
    StoreOptions {
        compaction_log_file_bytes: 46 * 5 * 5,
        compaction_queue_file_bytes: 46 * 5,
        retention_bytes: (setting == Setting::Expires).then_some(1),
        ..tiny(Durability::Manual)
    }
}

fn send(store: &Store, from: usize, to: usize) -> Result<(), String> {
    for number in from..to {
        let key = format!("k{}", number % 5);
        let properties = encode_properties([key.as_str()], None, None, []).map_err(explain)?;
        let body = format!("value {number} {}", "x".repeat(150));
        let message = NewMessage {
            topic: TOPIC,
            body: body.as_bytes(),
            properties: &properties,
            unique_key: None,
            queue_id: Some(number as i32 % QUEUES),
            flag: 0,
            born_timestamp_ms: None,
            durable: false,
            ..NewMessage::default()
        };
        store.append(&message).map_err(explain)?;
    }
    Ok(())
}

/// Appends, syncs, copies to the compaction files and closes. Before each copy, some appended messages are
/// not synced.
fn session(world: &World, setting: Setting) -> Result<(), String> {
    let store = world.open(OpenMode::ReadWrite, &options(setting)).map_err(explain)?;
    send(&store, 0, 5)?;
    store.flush().map_err(explain)?;
    send(&store, 5, 7)?;
    store.step().map_err(explain)?;
    send(&store, 7, 16)?;
    store.flush().map_err(explain)?;
    store.step().map_err(explain)?;
    match setting {
        Setting::Compacts => {
            let control = Arc::new(JobControl::default());
            store.compact(None, &CompactionOptions::default(), 1, &control).map_err(explain)?;
            send(&store, 16, 20)?;
            store.flush().map_err(explain)?;
            store.step().map_err(explain)?;
        }
        Setting::InSteps => {}
        Setting::Expires => {
            let report = store.expire(false, &mut || Ok(())).map_err(explain)?;
            if report.segments == 0 {
                return Err(format!("nothing was expired: {report:?}"));
            }
        }
    }
    store.close().map_err(explain)
}

fn begin(setting: Setting) -> Result<World, String> {
    let no_exchange = setting == Setting::InSteps;
    let world = World::with(SimOptions { no_exchange, ..SimOptions::default() });
    let store = world.open(OpenMode::Create, &options(setting)).map_err(explain)?;
    store
        .create_topic(TOPIC, QUEUES as u32, &[("cleanup.policy".to_owned(), "COMPACTION".to_owned())])
        .map_err(explain)?;
    store.close().map_err(explain)?;
    Ok(world)
}

/// Ends a session after each call that changes the disk.
pub(crate) fn hunt(step: usize, stop: &dyn Fn() -> bool) -> Result<u64, Violation> {
    let mut tried = 0;
    for (number, setting) in SETTINGS.into_iter().enumerate() {
        let ends = Ends { name: "feed", replay: format!("f{number}-0"), limits: LIMITS, step, stop };
        let world = ends.beside(|| Ok(World::on(begin(setting)?.vfs.kill().map_err(explain)?)))?;
        tried += ends.each(&world, |world| session(world, setting), |end, (), _| check(end, setting))?;
    }
    Ok(tried)
}

fn check(end: &End<'_>, setting: Setting) -> Result<(), String> {
    let world = end.world()?;
    // With two steps, the folder is missing for a moment. Only mqstore can recover from that.
    if setting != Setting::InSteps {
        as_a_broker_finds_it(&world.vfs)?;
    }
    let store = world.open(OpenMode::ReadWrite, &options(setting)).map_err(explain)?;
    let ends: Vec<i64> = store.queues(TOPIC).map_err(explain)?.iter().map(|queue| queue.max_offset).collect();
    for (queue_id, end) in ends.iter().enumerate() {
        let held = held(&world, queue_id as i32)?;
        if held.last().is_some_and(|last| last >= end) {
            return Err(format!("queue {queue_id} ends at {end}, its compaction files hold {held:?}"));
        }
    }
    if setting != Setting::Compacts {
        // Messages that the log no longer has are read from the compaction files.
        for (queue_id, end) in ends.iter().enumerate() {
            let found = read(&store, queue_id as i32)?;
            if found != (0..*end).collect::<Vec<_>>() {
                return Err(format!("queue {queue_id} ends at {end}, and a reader gets {found:?}"));
            }
        }
    }
    store.close().map_err(explain)?;
    as_a_broker_finds_it(&world.vfs)?;
    for (queue_id, end) in ends.iter().enumerate() {
        let held = held(&world, queue_id as i32)?;
        let newest: BTreeSet<i64> = (0..*end).rev().take(5).collect();
        let missing: Vec<_> = newest.difference(&held.iter().copied().collect()).copied().collect();
        if !missing.is_empty() {
            return Err(format!("after a close queue {queue_id} holds {held:?}, not {missing:?}"));
        }
    }
    abandon(&store);
    Ok(())
}

/// The queue offsets that a reader gets.
fn read(store: &Store, queue_id: i32) -> Result<Vec<i64>, String> {
    let mut cursor = store.read(TOPIC, queue_id, Some(0), None, None).map_err(explain)?;
    let mut found = Vec::new();
    while let records @ [_, ..] = cursor.next_batch(50).map_err(explain)?.as_slice() {
        found.extend(records.iter().map(|record| record.queue_offset));
    }
    Ok(found)
}

/// The queue offsets in the compaction files.
fn held(world: &World, queue_id: i32) -> Result<Vec<i64>, String> {
    let queue = CompactedQueue::open(&world.files(), TOPIC, queue_id).map_err(explain)?;
    let Some(queue) = queue else { return Ok(Vec::new()) };
    queue.read(0).map(|record| record.map(|record| record.queue_offset).map_err(explain)).collect()
}

/// Checks what RocketMQ requires when it loads a queue: files in pairs (a last log file may be alone if
/// others exist), and for every entry a record.
fn as_a_broker_finds_it(vfs: &SimVfs) -> Result<(), String> {
    for queue_id in 0..QUEUES {
        let folder = |kind: &str| root().join("compaction").join(kind).join(TOPIC).join(queue_id.to_string());
        let names = |kind: &str| -> Vec<String> {
            let entries = vfs.list(&folder(kind)).unwrap_or_default();
            entries.into_iter().filter_map(|entry| entry.name.into_string().ok()).collect()
        };
        let (mut logs, queues) = (names("compactionLog"), names("compactionCq"));
        if logs.len() == queues.len() + 1 && !queues.is_empty() {
            logs.pop();
        }
        if logs != queues {
            return Err(format!("queue {queue_id} has the logs {logs:?} and the queue files {queues:?}"));
        }
        for name in &queues {
            let read = |kind: &str| vfs.read_file(&folder(kind).join(name), 1 << 20).map_err(explain);
            let (log, queue) = (read("compactionLog")?, read("compactionCq")?);
            let base: i64 = name.parse().map_err(explain)?;
            for unit in queue.as_chunks::<BATCH_CQ_UNIT_BYTES>().0.iter().map(BatchCqUnit::decode) {
                if !unit.is_valid() {
                    continue;
                }
                let at = usize::try_from(unit.physical_offset - base).map_err(explain)?;
                let bytes = log.get(at..).unwrap_or_default();
                let record = RecordView::decode(bytes.get(..unit.size as usize).unwrap_or_default())
                    .map_err(|error| format!("an entry of {name} points at no record: {error}"))?;
                record.check_crc(mqstore_format::CrcCheck::ALL).map_err(explain)?;
                if (record.queue_offset, record.physical_offset) != (unit.base_offset, unit.physical_offset) {
                    return Err(format!("an entry of {name} points at another record"));
                }
            }
        }
    }
    Ok(())
}

#[test]
fn what_is_fed_holds_together_after_any_crash() {
    let tried = crate::crashes::must_hold(hunt(crate::crashes::calls_step(), &|| false));
    println!("feed: {tried} states");
    assert!(tried > 1_000);
}
