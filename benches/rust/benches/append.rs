//! Appending one message at a time, one thread, asynchronous durability, both checksums.
#![expect(clippy::unwrap_used, reason = "a benchmark that fails has nothing to measure")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mqstore_bench::{BODY_BYTES, Bench, limit_step, message, properties};
use mqstore_core::{Durability, StoreOptions};

/// The limit loop goes round in this much memory, as an appender does in a prepared window.
const WINDOW_BYTES: usize = 64 << 20;

fn append(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("append");
    for body_bytes in BODY_BYTES {
        let body = vec![b'x'; body_bytes];
        let properties = properties();
        group.throughput(Throughput::Elements(1));
        let record = vec![b'x'; body_bytes + 91 + 5 + properties.len() + 42 + 20];
        group.bench_function(BenchmarkId::new("limit", body_bytes), |bencher| {
            let mut target = vec![1; WINDOW_BYTES];
            let mut at = 0;
            bencher.iter(|| at = limit_step(black_box(&mut target), at, black_box(&record), body_bytes));
        });
        // Manual durability and no dispatch: what an append itself costs.
        let alone = StoreOptions {
            durability: Durability::Manual,
            dispatch_threads: Some(1),
            ..StoreOptions::default()
        };
        group.bench_function(BenchmarkId::new("async", body_bytes), |bencher| {
            let bench = Bench::new(&StoreOptions { durability: Durability::Async, ..alone.clone() });
            bencher.iter(|| bench.store.append(&message(black_box(&body), &properties)).unwrap());
        });
        group.bench_function(BenchmarkId::new("inline-dispatch", body_bytes), |bencher| {
            let bench = Bench::new(&StoreOptions { dispatch_threads: Some(0), ..alone.clone() });
            bencher.iter(|| bench.store.append(&message(black_box(&body), &properties)).unwrap());
        });
    }
    group.finish();
    let mut group = criterion.benchmark_group("append-sync");
    group.sample_size(20);
    let body = vec![b'x'; 1024];
    let properties = properties();
    group.bench_function("sync/1024", |bencher| {
        let bench = Bench::new(&StoreOptions { durability: Durability::Sync, ..StoreOptions::default() });
        bencher.iter(|| bench.store.append(&message(black_box(&body), &properties)).unwrap());
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(std::time::Duration::from_secs(3));
    targets = append
}
criterion_main!(benches);
