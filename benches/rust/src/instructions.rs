//! The hot paths, one in each process, to count their instructions and to measure their time.
//!
//! `mqstore-instructions CASE` prints one JSON object: the number of operations, nanoseconds for one, and
//! nanoseconds for the same number of copies and checksums of a record of 1 KiB, measured in turns. Under
//! callgrind with `--toggle-collect=*measured*`, only the operations count, not the preparation and not the
//! other threads. `mqstore-instructions` alone prints the cases. `benches/check.py` uses both.
//! `mqstore-instructions CASE SECONDS` only repeats the operations for this time, for a profiler
//! (`benches/flames.py`).
#![expect(clippy::unwrap_used, reason = "a benchmark that fails has nothing to measure")]
#![expect(clippy::print_stdout, reason = "what it prints is its answer")]

use std::hint::black_box;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mqstore::compaction::{CompactionOptions, JobControl, WorkerInfo};
use mqstore::format::{CrcCheck, Host, IndexHasher, RecordSpec, RecordView};
use mqstore::inspect::StoreFiles;
use mqstore::io::{OsVfs, SystemClock};
use mqstore::options::{Durability, OpenMode, StoreOptions};
use mqstore_bench::{Bench, limit_step, message, open, properties};
use mqstore_compaction::{StoreLockHeld, plan, run_task};

const BODY_BYTES: usize = 1024;

/// Messages of the stores for the read cases.
const MESSAGES: u64 = 2_000;

/// Turns of operations and limit.
const TURNS: u32 = 5;

/// The repeated operation. One call of `run` does `operations` operations.
struct Case {
    run: Box<dyn FnMut()>,
    /// Keeps the folder while the store is used.
    bench: Option<Rc<Bench>>,
    operations: u64,
    calls: u64,
}

impl Case {
    fn new(calls: u64, operations: u64, run: impl FnMut() + 'static) -> Self {
        Self { run: Box::new(run), bench: None, operations, calls }
    }

    fn of(bench: &Rc<Bench>, calls: u64, operations: u64, run: impl FnMut() + 'static) -> Self {
        Self { bench: Some(Rc::clone(bench)), ..Self::new(calls, operations, run) }
    }
}

type Make = fn() -> Case;

const CASES: [(&str, Make); 9] = [
    ("encode", encode),
    ("decode", decode),
    ("key-hash", key_hash),
    ("append", append),
    ("append-dispatched", append_dispatched),
    ("read", read),
    ("get", get),
    ("lookup", lookup),
    ("compact", compact),
];

/// Messages are appended, and nothing else happens with them.
fn alone() -> StoreOptions {
    StoreOptions {
        durability: Durability::Manual,
        dispatch_threads: Some(1),
        segment_bytes: 64 << 20,
        ..StoreOptions::default()
    }
}

fn record() -> Vec<u8> {
    let (body, properties) = (vec![b'x'; BODY_BYTES], properties());
    let host = Host::new([127, 0, 0, 1], 10911);
    let mut bytes = Vec::new();
    RecordSpec { properties: &properties, property_crc: true, ..RecordSpec::new("bench", &body, host, host) }
        .encode_into(&mut bytes)
        .unwrap();
    bytes
}

fn encode() -> Case {
    let (body, properties, mut out) = (vec![b'x'; BODY_BYTES], properties(), Vec::new());
    let host = Host::new([127, 0, 0, 1], 10911);
    Case::new(1_000, 1, move || {
        out.clear();
        let spec = RecordSpec {
            properties: black_box(&properties),
            property_crc: true,
            ..RecordSpec::new("bench", &body, host, host)
        };
        spec.encode_into(&mut out).unwrap();
    })
}

fn decode() -> Case {
    let bytes = record();
    Case::new(1_000, 1, move || {
        let view = RecordView::decode(black_box(&bytes)).unwrap();
        view.check_crc(CrcCheck { body: true, property: true }).unwrap();
        black_box(view.keys());
    })
}

fn key_hash() -> Case {
    let hasher = IndexHasher::new("bench");
    Case::new(1_000, 1, move || {
        black_box(hasher.key(black_box("order-4711")));
    })
}

fn append() -> Case {
    appending(&alone())
}

fn append_dispatched() -> Case {
    appending(&StoreOptions { dispatch_threads: Some(0), ..alone() })
}

fn appending(options: &StoreOptions) -> Case {
    let (bench, body, properties) = (Rc::new(Bench::new(options)), vec![b'x'; BODY_BYTES], properties());
    Case::of(&bench.clone(), MESSAGES, 1, move || {
        bench.store.append(&message(black_box(&body), &properties)).unwrap();
    })
}

fn filled() -> Rc<Bench> {
    let bench = Bench::new(&StoreOptions { dispatch_threads: Some(0), ..alone() });
    bench.fill(BODY_BYTES, MESSAGES);
    Rc::new(bench)
}

fn read() -> Case {
    let bench = filled();
    let store = open(&bench.path(), OpenMode::Read, &alone());
    Case::of(&bench, 1, MESSAGES, move || {
        let mut cursor = store.read("bench", 0, None, None, None).unwrap();
        let mut found = 0;
        loop {
            let batch = cursor.next_batch(512).unwrap();
            if batch.is_empty() {
                break;
            }
            found += batch.len() as u64;
        }
        assert_eq!(found, MESSAGES);
    })
}

fn get() -> Case {
    let bench = filled();
    let mut offset = 0;
    Case::of(&bench.clone(), 500, 1, move || {
        offset = (offset + 733) % MESSAGES as i64;
        black_box(bench.store.message_at("bench", 0, offset).unwrap().unwrap());
    })
}

fn lookup() -> Case {
    let bench = Rc::new(Bench::new(&StoreOptions { dispatch_threads: Some(0), ..alone() }));
    let (body, mut number) = (vec![b'x'; BODY_BYTES], 0);
    for number in 0..MESSAGES {
        let properties = mqstore::message::encode_properties([key(number).as_str()], None, None, []).unwrap();
        bench.store.append(&message(&body, &properties)).unwrap();
    }
    Case::of(&bench.clone(), 500, 1, move || {
        number = (number + 733) % MESSAGES;
        let mut found = bench.store.lookup("bench", &key(number), None, None, Some(10)).unwrap();
        assert_eq!(found.next_batch(10).unwrap().len(), 1);
    })
}

fn key(number: u64) -> String {
    format!("order-{number}")
}

fn compact() -> Case {
    let bench = filled();
    bench.store.close().unwrap();
    let files = StoreFiles::new(Arc::new(OsVfs::new()), Arc::new(SystemClock::new()), &bench.path());
    let options = CompactionOptions { force: true, ..CompactionOptions::default() };
    let held = StoreLockHeld::take(&files).unwrap();
    let planned = plan(&files, &held, Some(&["bench".to_owned()]), &options).unwrap();
    let mut attempt = 0;
    Case::of(&bench.clone(), 1, MESSAGES, move || {
        attempt += 1;
        let task = planned.plan.tasks.first().unwrap();
        let staging = bench.path().join("mqstore/jobs").join(&task.job_id).join(format!("attempt-{attempt}"));
        let result = run_task(&files, task, &staging, WorkerInfo::default(), &JobControl::default()).unwrap();
        assert_eq!(result.counts.before, MESSAGES);
    })
}

/// Callgrind counts the instructions of this function.
#[inline(never)]
fn measured(case: &mut Case) {
    for _ in 0..case.calls {
        (case.run)();
    }
}

/// The machine's limit for the same number of operations.
#[inline(never)]
fn limit(operations: u64) -> Duration {
    let (record, mut target, mut at) = (record(), vec![1; 16 << 20], 0);
    let begin = Instant::now();
    for _ in 0..operations {
        at = limit_step(black_box(&mut target), at, black_box(&record), BODY_BYTES);
    }
    begin.elapsed()
}

fn main() {
    let name = std::env::args().nth(1);
    let Some((_, make)) = CASES.iter().find(|(known, _)| Some(*known) == name.as_deref()) else {
        for (name, _) in &CASES {
            println!("{name}");
        }
        return;
    };
    let mut case = make();
    if let Some(seconds) = std::env::args().nth(2) {
        let end = Instant::now() + Duration::from_secs(seconds.parse().unwrap());
        while Instant::now() < end {
            measured(&mut case);
        }
        return;
    }
    let operations = case.calls * case.operations;
    // Once, for steps that only the first call does.
    (case.run)();
    let (mut best, mut best_limit) = (Duration::MAX, Duration::MAX);
    for _ in 0..TURNS {
        let begin = Instant::now();
        measured(&mut case);
        best = best.min(begin.elapsed());
        best_limit = best_limit.min(limit(operations));
    }
    drop(case.bench);
    let nanoseconds = |time: Duration| time.as_nanos() as f64 / operations as f64;
    println!(
        r#"{{"operations": {}, "ns": {:.1}, "limit_ns": {:.1}}}"#,
        u64::from(TURNS) * operations,
        nanoseconds(best),
        nanoseconds(best_limit)
    );
}
