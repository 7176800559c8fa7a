//! Reading a queue from its first message to its last, every record checked.
#![expect(clippy::unwrap_used, reason = "a benchmark that fails has nothing to measure")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mqstore_bench::{BODY_BYTES, Bench, limit_pass, open};
use mqstore_core::{Durability, OpenMode, Store, StoreOptions};

const MESSAGES: u64 = 50_000;

fn read_all(store: &Store) -> u64 {
    let mut cursor = store.read("bench", 0, None, None, None).unwrap();
    let mut bytes = 0;
    loop {
        let batch = cursor.next_batch(512).unwrap();
        if batch.is_empty() {
            return bytes;
        }
        bytes += batch.iter().map(|record| record.view().unwrap().body.len() as u64).sum::<u64>();
    }
}

fn read(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sequential-read");
    group.sample_size(10);
    for body_bytes in BODY_BYTES {
        let options = StoreOptions { durability: Durability::Manual, ..StoreOptions::default() };
        let bench = Bench::new(&options);
        let end = bench.fill(body_bytes, MESSAGES);
        group.throughput(Throughput::Elements(MESSAGES));
        let record = vec![b'x'; (end / MESSAGES) as usize];
        group.bench_function(BenchmarkId::new("limit", body_bytes), |bencher| {
            let mut target = vec![1; 64 << 20];
            bencher.iter(|| limit_pass(black_box(&mut target), &record, body_bytes, MESSAGES));
        });
        let wanted = MESSAGES * body_bytes as u64;
        group.bench_function(BenchmarkId::new("writer", body_bytes), |bencher| {
            bencher.iter(|| assert_eq!(read_all(&bench.store), wanted));
        });
        let reader = open(&bench.path(), OpenMode::Read, &options);
        group.bench_function(BenchmarkId::new("reader", body_bytes), |bencher| {
            bencher.iter(|| assert_eq!(read_all(&reader), wanted));
        });
    }
    group.finish();
}

criterion_group!(benches, read);
criterion_main!(benches);
