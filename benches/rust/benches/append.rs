//! Appends: by body size, by durability, by threads and their put lock, over the end of a segment, and with
//! group commit.
#![expect(clippy::unwrap_used, reason = "a benchmark that fails has nothing to measure")]

use std::fs::OpenOptions;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mqstore::message::NewMessage;
use mqstore::options::{Durability, StoreOptions};
use mqstore_bench::group::Group;
use mqstore_bench::machine::{mapped_file, place};
use mqstore_bench::{BODY_BYTES, Bench, limit_pass, limit_step, message, properties, record, time_threads};
use mqstore_io::Advice;

/// The limit loop cycles through this much memory, as an appender does in a prepared window.
const WINDOW_BYTES: usize = 64 << 20;

/// Bytes of a body in groups that do not compare sizes.
const BODY: usize = 1024;

/// Bytes of a short segment, so that it rolls often.
const SHORT_SEGMENT_BYTES: u64 = 16 << 20;

/// Bytes of the file for the synced records of the limit, which are written in a cycle.
const SYNCED_BYTES: u64 = 16 << 20;

/// Only a flush or a close syncs, and only the dispatch thread dispatches.
fn alone() -> StoreOptions {
    StoreOptions { durability: Durability::Manual, dispatch_threads: Some(1), ..StoreOptions::default() }
}

fn appended(
    group: &mut BenchmarkGroup<'_, WallTime>,
    id: BenchmarkId,
    body_bytes: usize,
    options: &StoreOptions,
) {
    let (body, properties) = (vec![b'x'; body_bytes], properties());
    group.bench_function(id, |bencher| {
        let bench = Bench::new(options);
        bencher.iter(|| bench.store.append(&message(black_box(&body), &properties)).unwrap());
    });
}

fn by_size(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("append");
    group.throughput(Throughput::Elements(1));
    for body_bytes in BODY_BYTES {
        let record = record(body_bytes);
        group.bench_function(BenchmarkId::new("limit", body_bytes), |bencher| {
            let mut target = vec![1; WINDOW_BYTES];
            let mut at = 0;
            bencher.iter(|| at = limit_step(black_box(&mut target), at, black_box(&record), body_bytes));
        });
        let background = StoreOptions { durability: Durability::Async, ..alone() };
        appended(&mut group, BenchmarkId::new("async", body_bytes), body_bytes, &background);
        let inline = StoreOptions { dispatch_threads: Some(0), ..alone() };
        appended(&mut group, BenchmarkId::new("inline-dispatch", body_bytes), body_bytes, &inline);
    }
    for (name, durability) in [("manual", Durability::Manual), ("pooled", Durability::Pooled)] {
        appended(&mut group, BenchmarkId::new(name, BODY), BODY, &StoreOptions { durability, ..alone() });
    }
    group.finish();
}

/// One queue for each thread, so that they share only the log. The loop `shared` shares a map: its threads reserve places
/// there by one counter and copy in parallel.
fn by_threads(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("append-threads");
    group.throughput(Throughput::Elements(1));
    let (body, properties, record) = (vec![b'x'; BODY], properties(), record(BODY));
    for threads in [1, 2, 4, 8] {
        group.bench_function(BenchmarkId::new("limit", threads), |bencher| {
            let window = || Mutex::new(vec![1; WINDOW_BYTES / threads as usize]);
            let windows: Vec<_> = (0..threads).map(|_| window()).collect();
            bencher.iter_custom(|rounds| {
                let share = rounds.div_ceil(threads);
                time_threads(threads, threads, |number| {
                    let mut window = windows.get(number as usize).unwrap().lock().unwrap();
                    limit_pass(black_box(&mut window), black_box(&record), BODY, share);
                })
            });
        });
        group.bench_function(BenchmarkId::new("shared", threads), |bencher| {
            let folder = tempfile::tempdir().unwrap();
            let (_file, region) = mapped_file(folder.path(), "shared", WINDOW_BYTES).unwrap();
            region.fill(0, WINDOW_BYTES, 1).unwrap();
            let (next, places) = (AtomicUsize::new(0), WINDOW_BYTES / record.len());
            bencher.iter_custom(|rounds| {
                time_threads(threads, rounds, |_| {
                    let at = next.fetch_add(1, Ordering::Relaxed) % places * record.len();
                    place(&region, at, black_box(&record), BODY).unwrap();
                })
            });
        });
        group.bench_function(BenchmarkId::new("async", threads), |bencher| {
            let options = StoreOptions { durability: Durability::Async, ..alone() };
            let bench = Bench::new(&options);
            bench.store.create_topic("bench", threads as u32, &[]).unwrap();
            bencher.iter_custom(|rounds| {
                time_threads(threads, rounds, |number| {
                    let message = NewMessage { queue_id: Some(number as i32), ..message(&body, &properties) };
                    bench.store.append(&message).unwrap();
                })
            });
        });
    }
    group.finish();
}

/// Segments of 16 MiB, so that one ends every 13,000 messages: prepared early or not. The limits are files of
/// that size, one after the other, with their pages present or not.
fn rolling(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("append-roll");
    group.throughput(Throughput::Elements(1));
    let record = record(BODY);
    for (name, present) in [("limit", true), ("limit-absent-pages", false)] {
        group.bench_function(BenchmarkId::new(name, BODY), |bencher| {
            bencher.iter_custom(|rounds| fill_files(&record, rounds, present));
        });
    }
    for (name, prewarm) in [("prewarm", true), ("as-they-come", false)] {
        let options = StoreOptions {
            segment_bytes: SHORT_SEGMENT_BYTES,
            durability: Durability::Async,
            prewarm,
            ..alone()
        };
        appended(&mut group, BenchmarkId::new(name, BODY), BODY, &options);
    }
    group.finish();
}

fn fill_files(record: &[u8], records: u64, present: bool) -> Duration {
    let folder = tempfile::tempdir().unwrap();
    let (len, mut left, mut took) = (SHORT_SEGMENT_BYTES as usize, records, Duration::ZERO);
    for number in 0.. {
        if left == 0 {
            break;
        }
        let (_file, region) = mapped_file(folder.path(), &number.to_string(), len).unwrap();
        if present {
            region.advise(0..len, Advice::PopulateWrite).unwrap();
        }
        let some = left.min((len / record.len()) as u64);
        let begin = Instant::now();
        for at in 0..some as usize {
            place(&region, at * record.len(), record, BODY).unwrap();
        }
        took += begin.elapsed();
        left -= some;
        drop(region);
        std::fs::remove_file(folder.path().join(number.to_string())).unwrap();
    }
    took
}

/// Each thread waits until its record is durable. The limit is a file that was written before, with one
/// `fdatasync` for all waiting threads.
fn waiters(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("append-sync");
    group.sample_size(10).throughput(Throughput::Elements(1));
    let (body, properties, record) = (vec![b'x'; BODY], properties(), record(BODY));
    for threads in [1, 4, 16, 64] {
        group.bench_function(BenchmarkId::new("limit", threads), |bencher| {
            bencher.iter_custom(|rounds| {
                let file = tempfile::NamedTempFile::new().unwrap();
                let open = OpenOptions::new().write(true).open(file.path()).unwrap();
                open.write_all_at(&vec![0; SYNCED_BYTES as usize], 0).unwrap();
                open.sync_all().unwrap();
                let syncs = Group::new(open, 0).round(SYNCED_BYTES);
                time_threads(threads, rounds, |_| syncs.append(&record).unwrap())
            });
        });
        group.bench_function(BenchmarkId::new("sync", threads), |bencher| {
            let options = StoreOptions { durability: Durability::Sync, ..StoreOptions::default() };
            let bench = Bench::new(&options);
            bencher.iter_custom(|rounds| {
                time_threads(threads, rounds, |_| {
                    bench.store.append(&message(&body, &properties)).unwrap();
                })
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3));
    targets = by_size, by_threads, rolling, waiters
}
criterion_main!(benches);
