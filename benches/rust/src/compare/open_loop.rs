//! Messages at a fixed rate, whether or not the store keeps up.
//!
//! Message `i` is due at `start + i / rate`. Its latency counts from that time, not from its call, so that a
//! pause counts for every message that was due in it.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mqstore::io::VfsFile;
use mqstore::options::OpenMode;
use mqstore_bench::machine::{mapped_file, place};
use mqstore_bench::properties;
use mqstore_io::{Advice, Region};
use serde_json::{Value, json};

use crate::Failure;
use crate::latency::{Latencies, quantiles};
use crate::limits::record;
use crate::ours::{message, open_store, stored};
use crate::spec::Spec;

const SEGMENT_BYTES: usize = 1 << 30;
/// Bytes that the bare loop prepares after its position, and the size of one step.
const AHEAD_BYTES: u64 = 64 << 20;
const STEP_BYTES: usize = 1 << 20;
/// The default of mqstore and of RocketMQ.
const SYNC_EVERY: Duration = Duration::from_millis(500);

/// Calls `append` for each message when it is due.
fn at_rate(
    spec: &Spec,
    mut append: impl FnMut(u64) -> Result<(), Failure>,
) -> Result<(f64, Latencies), Failure> {
    let mut latencies = Latencies::default();
    let start = Instant::now();
    for number in 0..spec.messages {
        let due = number * 1_000_000_000 / spec.rate;
        while (start.elapsed().as_nanos() as u64) < due {
            spin_loop();
        }
        append(number)?;
        latencies.record((start.elapsed().as_nanos() as u64).saturating_sub(due));
    }
    Ok((start.elapsed().as_secs_f64(), latencies))
}

/// The store, one thread.
pub(crate) fn ours(spec: &Spec) -> Result<Value, Failure> {
    let store = open_store(spec, OpenMode::Create)?;
    store.create_topic("bench", spec.queues, &[])?;
    let body = vec![b'x'; spec.body_bytes];
    let properties = properties();
    for _ in 0..spec.warm_up {
        store.append(&message(&body, &properties, 0))?;
    }
    let before = store.stats()?;
    thread::sleep(Duration::from_millis(spec.settle_ms));
    let (seconds, latencies) =
        at_rate(spec, |_| store.append(&message(&body, &properties, 0)).map(drop).map_err(Failure::from))?;
    let bytes = store.stats()?.appended_bytes - before.appended_bytes;
    store.flush()?;
    let stored = stored(&store)? - spec.warm_up;
    store.close()?;
    Ok(json!({
        "seconds": seconds, "messages": spec.messages, "stored": stored, "refused": 0,
        "record_bytes": bytes / spec.messages, "latency": quantiles(&latencies),
    }))
}

/// One copy and the checksums into maps. One thread prepares pages early, another one syncs every 500 ms.
pub(crate) fn bare(spec: &Spec) -> Result<Value, Failure> {
    let record = record(spec)?;
    let segments = segments(spec, record.len())?;
    let position = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let per_segment = (SEGMENT_BYTES / record.len()) as u64;
    let outcome = thread::scope(|scope| {
        let prepare = scope.spawn(|| prepare(&segments, &position, &stop));
        let sync = scope.spawn(|| sync(&segments, &position, &stop));
        thread::sleep(Duration::from_millis(spec.settle_ms.max(200)));
        let outcome = at_rate(spec, |number| {
            let inside = (number % per_segment) as usize * record.len();
            let (_, region) = segments.get((number / per_segment) as usize).ok_or("no segment")?;
            place(region, inside, &record, spec.body_bytes)?;
            let base = number / per_segment * SEGMENT_BYTES as u64;
            position.store(base + (inside + record.len()) as u64, Ordering::Release);
            Ok(())
        });
        stop.store(true, Ordering::Release);
        prepare.join().map_err(|_| "the preparing thread panicked")??;
        sync.join().map_err(|_| "the syncing thread panicked")??;
        outcome
    });
    let (seconds, latencies) = outcome?;
    Ok(json!({
        "seconds": seconds, "messages": spec.messages, "stored": spec.messages, "refused": 0,
        "record_bytes": record.len(), "latency": quantiles(&latencies),
    }))
}

type Segments = Vec<(Arc<dyn VfsFile>, Region)>;

/// All files of a bare run. A store would create the next one while it fills the current one.
fn segments(spec: &Spec, record_bytes: usize) -> Result<Segments, Failure> {
    let count = spec.messages.div_ceil((SEGMENT_BYTES / record_bytes) as u64);
    let segment = |number| mapped_file(&spec.path, &format!("{number:020}"), SEGMENT_BYTES);
    Ok((0..count).map(segment).collect::<std::io::Result<_>>()?)
}

/// Makes the pages after the position present and writable.
fn prepare(segments: &Segments, position: &AtomicU64, stop: &AtomicBool) -> Result<(), Failure> {
    let end = (segments.len() * SEGMENT_BYTES) as u64;
    let mut ready = 0;
    while !stop.load(Ordering::Acquire) {
        if ready >= end.min(position.load(Ordering::Acquire) + AHEAD_BYTES) {
            thread::sleep(Duration::from_millis(1));
            continue;
        }
        let inside = ready as usize % SEGMENT_BYTES;
        if let Some((_, region)) = segments.get(ready as usize / SEGMENT_BYTES) {
            region.advise(inside..inside + STEP_BYTES, Advice::PopulateWrite)?;
        }
        ready += STEP_BYTES as u64;
    }
    Ok(())
}

/// Syncs the written bytes every half second and once more at the end.
fn sync(segments: &Segments, position: &AtomicU64, stop: &AtomicBool) -> Result<(), Failure> {
    let mut synced = 0;
    let mut next = Instant::now() + SYNC_EVERY;
    loop {
        let last = stop.load(Ordering::Acquire);
        if !last && Instant::now() < next {
            thread::sleep(Duration::from_millis(5));
            continue;
        }
        let written = position.load(Ordering::Acquire);
        let from = synced as usize / SEGMENT_BYTES;
        let to = (written as usize).div_ceil(SEGMENT_BYTES);
        for (file, _) in segments.get(from..to.max(from)).unwrap_or_default() {
            file.sync_data()?;
        }
        synced = written;
        if last {
            return Ok(());
        }
        next += SYNC_EVERY;
    }
}
