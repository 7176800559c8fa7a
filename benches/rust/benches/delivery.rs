//! Delivery: a message put, got and finished, one by one and a hundred at a time, and polled by a consumer of a group.
#![expect(clippy::unwrap_used, reason = "a benchmark that fails has nothing to measure")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mqstore_bench::{BODY_BYTES, Bench, limit_pass, message, properties, record};
use mqstore_broker::{Broker, ConsumerOptions, NewWork, Start, WorkQueue, WorkQueueOptions};
use mqstore_core::StoreOptions;

const MESSAGES: u64 = 50_000;
const AT_ONCE: usize = 100;
const NOW: Option<Duration> = Some(Duration::ZERO);

fn work(bench: &Bench) -> WorkQueue {
    let broker = Broker::new(&bench.store).unwrap();
    broker.work_queue("bench", "workers", WorkQueueOptions::default()).unwrap()
}

/// The limit writes what a record takes and its checksums, once.
fn work_queue(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("put-get-ack");
    for body_bytes in BODY_BYTES {
        let (body, properties) = (vec![b'x'; body_bytes], properties());
        let work_item = NewWork { body: &body, properties: &properties, ..NewWork::default() };
        group.throughput(Throughput::Elements(1));
        let record = vec![b'x'; record(body_bytes).len()];
        group.bench_function(BenchmarkId::new("limit", body_bytes), |bencher| {
            let mut target = vec![1; 64 << 20];
            bencher.iter(|| limit_pass(black_box(&mut target), &record, body_bytes, 1));
        });
        let bench = Bench::new(&StoreOptions::default());
        let queue = work(&bench);
        group.bench_function(BenchmarkId::new("one", body_bytes), |bencher| {
            bencher.iter(|| {
                queue.put(&work_item, NOW).unwrap();
                let message = queue.get(NOW).unwrap();
                message.lease.ack(false).unwrap();
            });
        });
        let many = vec![work_item; AT_ONCE];
        group.throughput(Throughput::Elements(AT_ONCE as u64));
        group.bench_function(BenchmarkId::new("hundred", body_bytes), |bencher| {
            bencher.iter(|| {
                queue.put_all(&many, NOW).unwrap();
                let found = queue.get_many(AT_ONCE, NOW).unwrap();
                assert_eq!(found.len(), AT_ONCE);
                queue.ack_all(found.iter().map(|message| &message.lease), false).unwrap();
            });
        });
    }
    group.finish();
}

fn poll(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("consumer-poll");
    group.sample_size(10);
    for body_bytes in BODY_BYTES {
        let bench = Bench::new(&StoreOptions::default());
        let (body, properties) = (vec![b'x'; body_bytes], properties());
        for _ in 0..MESSAGES {
            bench.store.append(&message(&body, &properties)).unwrap();
        }
        let broker = Broker::new(&bench.store).unwrap();
        let consumer = broker.consumer("readers", &["bench"], ConsumerOptions::default()).unwrap();
        group.throughput(Throughput::Elements(MESSAGES));
        group.bench_function(BenchmarkId::new("thousand", body_bytes), |bencher| {
            bencher.iter(|| {
                consumer.reset(Start::Earliest, false).unwrap();
                let mut count = 0;
                while count < MESSAGES {
                    count += consumer.poll(1000, NOW).unwrap().len() as u64;
                    consumer.commit(false).unwrap();
                }
            });
        });
    }
    group.finish();
}

criterion_group!(benches, work_queue, poll);
criterion_main!(benches);
