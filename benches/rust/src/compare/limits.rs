//! The machine's limits: the same bytes as a store writes, without a store.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use mqstore::options::{Durability, OpenMode, StoreOptions};
use mqstore_bench::group::Group;
use mqstore_bench::machine::{mapped_file, place};
use mqstore_bench::{open, properties};
use mqstore_io::Advice;
use serde_json::{Value, json};

use crate::Failure;
use crate::latency::{Latencies, quantiles};
use crate::spec::Spec;

/// Bytes of one write when a file is filled before the measurement.
const FILL_BYTES: usize = 1 << 20;

/// A record of the store with a body of `body_bytes`, which a limit copies and writes.
///
/// The record comes from a small store, so it has the same size as the records in the comparison.
pub(crate) fn record(spec: &Spec) -> Result<Vec<u8>, Failure> {
    let folder = tempfile::tempdir_in(spec.path.parent().unwrap_or(&spec.path))?;
    let options = StoreOptions {
        segment_bytes: 16 << 20,
        index_slots: 1_000,
        index_entries: 1_000,
        durability: Durability::Manual,
        ..Spec::default().store_options()?
    };
    let store = open(&folder.path().join("store"), OpenMode::Create, &options);
    let body = vec![b'x'; spec.body_bytes];
    let appended = store.append(&crate::ours::message(&body, &properties(), 0))?;
    let bytes = store.log().get_at(appended.commit_log_offset)?.bytes().to_vec();
    store.close()?;
    Ok(bytes)
}

/// Copies records into a map, in one thread: with pages present or absent.
pub(crate) fn map(spec: &Spec) -> Result<Value, Failure> {
    let record = record(spec)?;
    let len = record.len() * spec.messages as usize;
    let (_file, region) = mapped_file(&spec.path, "limit", len)?;
    if spec.prefaulted {
        region.advise(0..len, Advice::PopulateWrite)?;
        thread::sleep(Duration::from_millis(spec.settle_ms));
    }
    let begin = Instant::now();
    for at in (0..len).step_by(record.len()) {
        place(&region, at, &record, spec.body_bytes)?;
    }
    let seconds = begin.elapsed().as_secs_f64();
    Ok(json!({
        "seconds": seconds, "messages": spec.messages, "stored": spec.messages, "refused": 0,
        "record_bytes": record.len(),
    }))
}

/// Writes and syncs records. Each thread waits for its sync before its next record. The file was written and
/// synced completely before. With several threads, one of them syncs for all that wait. With a batch, that
/// many records are one write.
pub(crate) fn sync(spec: &Spec) -> Result<Value, Failure> {
    let one = record(spec)?;
    let record = one.repeat(spec.batch as usize);
    let rounds = spec.messages / spec.batch;
    let warm_up = spec.warm_up / spec.batch;
    std::fs::create_dir_all(&spec.path)?;
    let path = spec.path.join("limit");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
    let len = record.len() as u64 * (rounds + warm_up);
    let zeros = vec![0; FILL_BYTES];
    for at in (0..len).step_by(FILL_BYTES) {
        file.write_all_at(&zeros, at)?;
    }
    file.sync_all()?;
    for round in 0..warm_up {
        file.write_all_at(&record, round * record.len() as u64)?;
        file.sync_data()?;
    }
    let group = Group::new(file, record.len() as u64 * warm_up);
    let (seconds, latencies) = in_threads(spec.threads, rounds, |_, share| {
        let mut latencies = Latencies::default();
        for _ in 0..share {
            let begin = Instant::now();
            group.append(&record)?;
            latencies.record(begin.elapsed().as_nanos() as u64);
        }
        Ok(latencies)
    })?;
    Ok(json!({
        "seconds": seconds, "messages": rounds * spec.batch, "stored": rounds * spec.batch, "refused": 0,
        "record_bytes": one.len(), "latency": quantiles(&latencies),
    }))
}

/// Runs `work(thread, share of total)` in `threads` threads. Returns the time from the start of the first one
/// to the end of the last one.
pub(crate) fn in_threads(
    threads: u64,
    total: u64,
    work: impl Fn(u64, u64) -> Result<Latencies, Failure> + Sync,
) -> Result<(f64, Latencies), Failure> {
    let start = Barrier::new(threads as usize);
    thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|number| {
                let (start, work) = (&start, &work);
                let share = total / threads + u64::from(number < total % threads);
                scope.spawn(move || {
                    start.wait();
                    let begin = Instant::now();
                    let latencies = work(number, share)?;
                    Ok::<_, Failure>((begin, Instant::now(), latencies))
                })
            })
            .collect();
        let mut all = Latencies::default();
        let mut times = Vec::new();
        for handle in handles {
            let (begin, end, latencies) = handle.join().map_err(|_| "a measuring thread panicked")??;
            times.push((begin, end));
            all.add(&latencies);
        }
        let (begin, end) = (times.iter().map(|time| time.0).min(), times.iter().map(|time| time.1).max());
        let taken = begin.zip(end).map_or(Duration::ZERO, |(begin, end)| end - begin);
        Ok((taken.as_secs_f64(), all))
    })
}
