//! What the caller of a verb sees if one of the verb's system calls fails, once or until the disk is repaired.
//!
//! Each call of each verb fails in a run of its own. The next append shows whether the store continues. Then the process
//! is killed, and every acknowledged message must be there. `docs/recovery.md` has the table of the results.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::message::{NewMessage, encode_properties};
use mqstore_base::options::{Durability, OpenMode, StoreOptions};
use mqstore_compaction::{CompactionOptions, JobControl};
use mqstore_engine::Store;
use mqstore_io::SimVfs;
use mqstore_io::sim::{Fault, Operation, OperationKind, SimOptions};

use crate::check::abandon;
use crate::workload::{SEGMENT_BYTES, World, explain, tiny};

const LOG: &str = "orders";
const TABLE: &str = "prices";

/// Marks around the table in the page.
const BEGIN: &str = "<!-- failing calls: begin -->\n";
const END: &str = "<!-- failing calls: end -->\n";

type Act = fn(&mut Run) -> Result<(), StoreError>;

const VERBS: [(&str, Act); 8] = [
    ("append", |run| run.append(LOG, 40)),
    ("append to a new segment", |run| run.append(LOG, 3_400)),
    ("append a large batch", |run| run.append_batch(LOG, 12, 350)),
    ("flush", |run| run.store.flush()),
    ("a round of the background", |run| run.store.step()),
    ("create a topic", |run| run.store.create_topic("new", 2, &[])),
    ("compact", |run| {
        let options = CompactionOptions {
            job_id: Some("job".to_owned()),
            log_file_bytes: 4096,
            queue_file_bytes: 46 * 4,
            ..CompactionOptions::default()
        };
        run.store.compact(None, &options, 1, &Arc::new(JobControl::default())).map(drop)
    }),
    ("expire", |run| run.store.expire(false, &mut || Ok(())).map(drop)),
];

/// The verbs that remove the oldest segments.
const EXPIRING: [&str; 2] = ["a round of the background", "expire"];

/// An acknowledged message.
struct Acked {
    topic: &'static str,
    offset: i64,
    body: Vec<u8>,
    key: String,
}

/// A store with messages, and the messages that it acknowledged.
struct Run {
    world: World,
    store: Store,
    acked: Vec<Acked>,
    sent: usize,
}

fn options() -> StoreOptions {
    StoreOptions {
        retention_bytes: Some(3 * SEGMENT_BYTES),
        expire_uncompacted: true,
        compaction_feed: false,
        // Only the large batch reaches it.
        file_write_bytes: SEGMENT_BYTES,
        ..tiny(Durability::Async)
    }
}

impl Run {
    fn new() -> Result<Self, StoreError> {
        let world = World::with(SimOptions { trace: true, ..SimOptions::default() });
        let store = world.open(OpenMode::Create, &options())?;
        store.create_topic(LOG, 1, &[])?;
        store.create_topic(TABLE, 1, &[("cleanup.policy".to_owned(), "COMPACTION".to_owned())])?;
        let mut run = Self { world, store, acked: Vec::new(), sent: 0 };
        for number in 0..36 {
            run.append(if number % 3 == 0 { TABLE } else { LOG }, 350)?;
        }
        run.store.flush()?;
        run.append(TABLE, 40)?;
        run.append(LOG, 40)?;
        Ok(run)
    }

    fn append(&mut self, topic: &'static str, len: usize) -> Result<(), StoreError> {
        self.append_batch(topic, 1, len)
    }

    /// Appends messages with bodies of `len` bytes in one call.
    fn append_batch(&mut self, topic: &'static str, count: usize, len: usize) -> Result<(), StoreError> {
        let numbers = self.sent..self.sent + count;
        self.sent += count;
        let texts: Vec<(String, Vec<u8>)> = numbers
            .map(|number| {
                let mut body = format!("{number} ").into_bytes();
                body.resize(len, b'x');
                (format!("key-{}", number % 5), body)
            })
            .collect();
        let properties = texts.iter().map(|(key, _)| encode_properties([key.as_str()], None, None, []));
        let properties = properties.collect::<Result<Vec<_>, _>>()?;
        let mut messages = Vec::new();
        for ((_, body), properties) in texts.iter().zip(&properties) {
            messages.push(NewMessage { topic, body, properties, queue_id: Some(0), ..NewMessage::default() });
        }
        let appended = match messages.as_slice() {
            [one] => vec![self.store.append(one)?],
            many => self.store.append_many(many)?,
        };
        let acked = texts.into_iter().zip(appended);
        self.acked.extend(acked.map(|((key, body), at)| Acked { topic, offset: at.queue_offset, body, key }));
        Ok(())
    }

    /// Opens the store on `disk` and returns the number of acknowledged messages that are not there, although `verb`
    /// must not remove them.
    fn lost(&self, disk: SimVfs, verb: &str) -> Result<usize, String> {
        let expires = EXPIRING.contains(&verb);
        let store = World::on(disk).open(OpenMode::ReadWrite, &options()).map_err(explain)?;
        let min = store.bounds(LOG, 0).map_err(explain)?.0;
        if min > 0 && !expires {
            return Err(format!("{verb} moved the start of the queue to {min}"));
        }
        let log = bodies(&store, LOG)?;
        let table = bodies(&store, TABLE)?;
        let newest: BTreeMap<&str, i64> = self
            .acked
            .iter()
            .filter(|one| one.topic == TABLE)
            .map(|one| (one.key.as_str(), one.offset))
            .collect();
        let table_min = table.keys().next().copied().unwrap_or(0);
        let lost = self.acked.iter().filter(|one| match one.topic {
            LOG => one.offset >= min && log.get(&one.offset) != Some(&one.body),
            // Expiry may remove values that no compaction has copied, because the options allow it.
            _ if expires && one.offset < table_min => false,
            _ => {
                newest.get(one.key.as_str()) == Some(&one.offset) && table.get(&one.offset) != Some(&one.body)
            }
        });
        let lost = lost.count();
        abandon(&store);
        Ok(lost)
    }
}

fn bodies(store: &Store, topic: &str) -> Result<BTreeMap<i64, Vec<u8>>, String> {
    let mut cursor = store.read(topic, 0, None, None, None).map_err(explain)?;
    let batch = cursor.next_batch(usize::MAX).map_err(explain)?;
    batch
        .iter()
        .map(|record| Ok((record.queue_offset, record.view().map_err(explain)?.body.to_vec())))
        .collect()
}

/// Returns the calls of the verb that can fail, in a run without a fault.
fn calls_of(act: Act) -> Vec<Operation> {
    let mut run = Run::new().unwrap();
    let before = run.world.vfs.operations();
    act(&mut run).unwrap();
    let mut calls = run.world.vfs.trace();
    calls.retain(|call| call.number > before && call.kind != OperationKind::MapWrite);
    abandon(&run.store);
    calls
}

/// Returns the row of the table to which a call belongs.
fn row_of(kind: OperationKind) -> &'static str {
    use OperationKind as Kind;
    match kind {
        Kind::Sync | Kind::SyncDir | Kind::MapFlush => "sync",
        Kind::Create | Kind::Write | Kind::Allocate | Kind::SetLen => "create, write",
        Kind::Rename
        | Kind::HardLink
        | Kind::Exchange
        | Kind::RemoveFile
        | Kind::RemoveDir
        | Kind::CreateDir => "rename, remove, make a folder",
        _ => "open, read, list, map",
    }
}

fn name_of(error: &StoreError) -> String {
    let name = match error {
        StoreError::Io { .. } => "StoreIOError",
        StoreError::Poisoned { .. } => "StorePoisonedError",
        StoreError::DiskFull { .. } => "DiskFullError",
        StoreError::NotAStore { .. } => "NotAStoreError",
        other => return format!("{other:?}"),
    };
    format!("`{name}`")
}

/// Runs the verb with call number `nth` failing, and returns what its caller saw.
fn seen(verb: &str, act: Act, nth: u64, sticky: bool) -> Result<String, String> {
    let mut run = Run::new().map_err(explain)?;
    let fault = Fault::nth(nth);
    run.world.vfs.inject(if sticky { fault.sticky() } else { fault });
    let outcome = act(&mut run);
    let fired = run.world.vfs.faults_fired();
    run.world.vfs.clear_faults();
    let next = run.append(LOG, 40);
    let killed = run.world.vfs.kill().map_err(explain)?;
    abandon(&run.store);
    if fired == 0 {
        return Err("the call did not take place".to_owned());
    }
    let lost = run.lost(killed, verb)?;
    if lost > 0 {
        return Err(format!("{lost} acknowledged messages are lost"));
    }
    Ok(match (outcome, next) {
        (Ok(()), Ok(())) => "nothing".to_owned(),
        (Err(error), Ok(())) => name_of(&error),
        (Ok(()), Err(error)) => format!("nothing; the next append raises {}", name_of(&error)),
        (Err(error), Err(_)) => format!("{} and the store stops", name_of(&error)),
    })
}

#[test]
fn the_table_of_failing_calls_is_what_callers_see() {
    let mut table =
        "| Verb | Failing calls | One call fails | All calls from one on fail |\n|---|---|---|---|\n"
            .to_owned();
    let mut runs = 0;
    for (verb, act) in VERBS {
        let mut rows: BTreeMap<&str, [BTreeSet<String>; 2]> = BTreeMap::new();
        for (nth, call) in (1..).zip(calls_of(act)) {
            let row = row_of(call.kind);
            for sticky in [false, true] {
                let what = seen(verb, act, nth, sticky)
                    .unwrap_or_else(|what| panic!("{verb}, {call:?}, sticky {sticky}: {what}"));
                rows.entry(row).or_default()[usize::from(sticky)].insert(what);
                runs += 1;
            }
        }
        for (row, [once, always]) in rows {
            let cell = |seen: BTreeSet<String>| seen.into_iter().collect::<Vec<_>>().join("; or ");
            table.push_str(&format!("| {verb} | {row} | {} | {} |\n", cell(once), cell(always)));
        }
    }
    println!("failing calls of verbs: {runs} runs, no acknowledged message lost\n{table}");
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/recovery.md")).unwrap();
    let known = page.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END)).map(|(table, _)| table);
    assert_eq!(known.map(str::trim), Some(table.trim()), "docs/recovery.md has another table");
}
