//! Finds messages in an existing store: by queue in order, at random, by key. Also measures how soon a new
//! message is found.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use mqstore::Store;
use mqstore::message::encode_properties;
use mqstore::options::OpenMode;
use mqstore_io::EventCount;
use serde_json::{Value, json};

use crate::Failure;
use crate::latency::{Latencies, quantiles};
use crate::ours::{message, open_store, stored};
use crate::spec::Spec;

/// Records that a sequential read fetches in one call, as RocketMQ's consumers do.
const AT_ONCE: usize = 32;

/// Makes the store for the reads. `order-<n>` is the key of message n.
pub(crate) fn fill(spec: &Spec) -> Result<Value, Failure> {
    let store = open_store(spec, OpenMode::Create)?;
    store.create_topic("bench", spec.queues, &[])?;
    let body = vec![b'x'; spec.body_bytes];
    for number in 0..spec.messages {
        let key = key(number);
        let properties = encode_properties([key.as_str()], Some("paid"), None, [("region", "eu")])?;
        store.append(&message(&body, &properties, (number % u64::from(spec.queues)) as i32))?;
    }
    store.flush()?;
    let (end, stored) = (store.stats()?.log_max_offset, stored(&store)?);
    store.close()?;
    Ok(json!({ "messages": spec.messages, "stored": stored, "log_bytes": end }))
}

/// The key of a message. All keys have the same length, so that all records have one size.
fn key(number: u64) -> String {
    format!("order-{number:08}")
}

/// Reads `spec.messages` messages in one of these ways: `sequential`, `random`, `lookup`.
pub(crate) fn read(spec: &Spec) -> Result<Value, Failure> {
    let store = open_store(spec, OpenMode::ReadWrite)?;
    let all = stored(&store)?.min(spec.span);
    let warm = spec.warm_up.min(spec.messages);
    let pass = |count| match spec.pattern.as_str() {
        "sequential" => sequential(&store, count),
        "random" => random(&store, all, count, spec.batch as usize),
        "lookup" => lookup(&store, all, count),
        other => Err(format!("unknown way to read {other:?}").into()),
    };
    pass(warm)?;
    let begin = Instant::now();
    let found = pass(spec.messages)?;
    let seconds = begin.elapsed().as_secs_f64();
    store.close()?;
    Ok(json!({ "seconds": seconds, "messages": spec.messages, "stored": found, "refused": 0 }))
}

/// A queue from its first message on, decoded.
fn sequential(store: &Store, count: u64) -> Result<u64, Failure> {
    let mut cursor = store.read("bench", 0, None, None, None)?;
    let mut found = 0;
    while found < count {
        let batch = cursor.next_batch(AT_ONCE)?;
        if batch.is_empty() {
            break;
        }
        for record in &batch {
            black_box(record.view()?);
        }
        found += batch.len() as u64;
    }
    Ok(found.min(count))
}

/// Random offsets, `batch` of them in each call, decoded.
fn random(store: &Store, all: u64, count: u64, batch: usize) -> Result<u64, Failure> {
    let mut found = 0;
    let offsets: Vec<i64> = places(all, count).map(|place| place as i64).collect();
    for offsets in offsets.chunks(batch) {
        for record in store.messages_at("bench", 0, offsets)?.into_iter().flatten() {
            black_box(record.view()?);
            found += 1;
        }
    }
    Ok(found)
}

/// All messages of a key. Each key has one message.
fn lookup(store: &Store, all: u64, count: u64) -> Result<u64, Failure> {
    let mut found = 0;
    for number in places(all, count) {
        found += store.lookup("bench", &key(number), None, None, Some(AT_ONCE))?.next_batch(AT_ONCE)?.len();
    }
    Ok(found as u64)
}

/// Numbers below `all` in random order. The Java driver makes the same ones.
pub(crate) fn places(all: u64, count: u64) -> impl Iterator<Item = u64> {
    let mut state = 4711_u64;
    (0..count).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % all
    })
}

/// Time from the begin of an append until its message can be read, in an otherwise idle store: `read` by the
/// thread that appended, `wake` by a thread that waits for it.
pub(crate) fn visible(spec: &Spec) -> Result<Value, Failure> {
    let store = open_store(spec, OpenMode::Create)?;
    store.create_topic("bench", spec.queues, &[])?;
    let idle: Vec<_> = (0..spec.waiters)
        .map(|number| store.wait_with("bench", (number % u64::from(spec.queues)) as i32, i64::MAX - 1, || ()))
        .collect::<Result<_, _>>()?;
    let begin = Instant::now();
    let latencies = match spec.pattern.as_str() {
        "read" => visible_to_who_reads(&store, spec)?,
        "wake" => visible_to_who_waits(&store, spec)?,
        other => return Err(format!("unknown way to see a message {other:?}").into()),
    };
    let seconds = begin.elapsed().as_secs_f64();
    drop(idle);
    let stored = stored(&store)?;
    store.close()?;
    Ok(json!({
        "seconds": seconds, "messages": spec.messages, "stored": stored, "refused": 0,
        "latency": quantiles(&latencies),
    }))
}

/// The machine's limit for a wake: two threads, a number and a wait for it, without a store.
pub(crate) fn bare_wake(spec: &Spec) -> Result<Value, Failure> {
    let (number, event) = (AtomicU64::new(0), EventCount::new());
    let begin = Instant::now();
    let latencies = timed_wakes(
        spec,
        |wanted| {
            event.wait_until(None, || number.load(Ordering::Acquire) > wanted);
            Ok(())
        },
        || {
            number.fetch_add(1, Ordering::AcqRel);
            event.notify_all();
            Ok(())
        },
    )?;
    Ok(json!({
        "seconds": begin.elapsed().as_secs_f64(), "messages": spec.messages, "stored": spec.messages, "refused": 0,
        "latency": quantiles(&latencies),
    }))
}

/// The machine's limit for a read by the appending thread. It copies a record to a map with present pages,
/// writes an entry of 20 bytes to a file and reads it, and compares the record, after the same pause.
pub(crate) fn bare_visible(spec: &Spec) -> Result<Value, Failure> {
    let folder = &spec.path;
    std::fs::create_dir_all(folder)?;
    let entries = File::options().create_new(true).read(true).write(true).open(folder.join("entries"))?;
    let record = vec![b'x'; spec.body_bytes];
    let mut log = vec![1; spec.messages as usize * record.len()];
    let mut latencies = Latencies::default();
    let begin = Instant::now();
    for (number, place) in (0..).zip(log.chunks_exact_mut(record.len())) {
        thread::sleep(spec.pause());
        let begin = Instant::now();
        place.copy_from_slice(black_box(&record));
        let mut entry = [b'e'; 20];
        entries.write_all_at(&entry, number * 20)?;
        entries.read_exact_at(&mut entry, number * 20)?;
        if black_box(entry) != [b'e'; 20] || *place != *record {
            return Err("what was written was not found".into());
        }
        latencies.record(begin.elapsed().as_nanos() as u64);
    }
    Ok(json!({
        "seconds": begin.elapsed().as_secs_f64(), "messages": spec.messages, "stored": spec.messages, "refused": 0,
        "latency": quantiles(&latencies),
    }))
}

fn visible_to_who_reads(store: &Store, spec: &Spec) -> Result<Latencies, Failure> {
    let body = vec![b'x'; spec.body_bytes];
    let properties = mqstore_bench::properties();
    let message = message(&body, &properties, 0);
    let mut latencies = Latencies::default();
    for _ in 0..spec.messages {
        thread::sleep(spec.pause());
        let begin = Instant::now();
        let offset = store.append(&message)?.queue_offset;
        let found = store.read("bench", 0, Some(offset), None, None)?.next_batch(1)?;
        latencies.record(begin.elapsed().as_nanos() as u64);
        if found.len() != 1 {
            return Err("an appended message was not found".into());
        }
    }
    Ok(latencies)
}

fn visible_to_who_waits(store: &Store, spec: &Spec) -> Result<Latencies, Failure> {
    let body = vec![b'x'; spec.body_bytes];
    let properties = mqstore_bench::properties();
    let message = message(&body, &properties, 0);
    timed_wakes(
        spec,
        |offset| {
            let came = store.wait("bench", 0, offset as i64, Duration::from_secs(60))?;
            came.then_some(()).ok_or_else(|| "a message did not come".into())
        },
        || Ok(store.append(&message).map(drop)?),
    )
}

/// From the begin of each `send` until `wait` has returned its number in another thread.
fn timed_wakes(
    spec: &Spec,
    wait: impl Fn(u64) -> Result<(), Failure> + Send,
    send: impl Fn() -> Result<(), Failure>,
) -> Result<Latencies, Failure> {
    let (told, came) = mpsc::channel();
    thread::scope(|scope| {
        let waiter = scope.spawn(move || {
            for number in 0..spec.messages {
                wait(number)?;
                told.send(Instant::now())?;
            }
            Ok::<_, Failure>(())
        });
        let mut latencies = Latencies::default();
        for _ in 0..spec.messages {
            thread::sleep(spec.pause());
            let begin = Instant::now();
            send()?;
            let Ok(seen) = came.recv() else { break };
            latencies.record((seen - begin).as_nanos() as u64);
        }
        waiter.join().map_err(|_| "the waiting thread panicked")??;
        Ok(latencies)
    })
}
