//! Delivery. Messages are put, leased and acknowledged, one by one and a hundred at a time, and polled by a
//! consumer of a group. Delayed messages are accepted, and delivered when due. Also transactions.
#![expect(clippy::unwrap_used, reason = "a benchmark that fails has nothing to measure")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mqstore::delivery::{
    Broker, ConsumerOptions, Due, NewHalfMessage, NewWork, StartOffset, WorkQueue, WorkQueueOptions,
};
use mqstore::options::StoreOptions;
use mqstore_bench::{BODY_BYTES, Bench, limit_pass, message, properties, record};

const MESSAGES: u64 = 50_000;
const AT_ONCE: usize = 100;
const NOW: Option<Duration> = Some(Duration::ZERO);

fn work(bench: &Bench) -> WorkQueue {
    let broker = Broker::new(&bench.store).unwrap();
    broker.work_queue("bench", "workers", WorkQueueOptions::default()).unwrap()
}

/// The limit writes the bytes of a record and its checksums once.
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
                consumer.reset(StartOffset::Earliest, false).unwrap();
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

/// Messages with times over an hour, accepted a hundred at a time. Then as many that become due at one
/// moment, from that moment until the last one is in its topic.
fn delayed(criterion: &mut Criterion) {
    const DELAYED: usize = 200_000;
    const HOUR_MS: i64 = 3_600_000;
    let mut group = criterion.benchmark_group("delayed");
    group.sample_size(10);
    for body_bytes in BODY_BYTES {
        let (body, properties) = (vec![b'x'; body_bytes], properties());
        let bench = Bench::new(&StoreOptions::default());
        let broker = Broker::new(&bench.store).unwrap();
        let accept = |broker: &Broker, due: &mut dyn FnMut(usize) -> i64, count: usize| {
            for first in (0..count).step_by(AT_ONCE) {
                let some: Vec<_> = (first..first + AT_ONCE)
                    .map(|number| (message(&body, &properties), Due::At(due(number))))
                    .collect();
                broker.append_later(&some).unwrap();
            }
        };
        let now = || bench.store.clock().now_ms();
        group.throughput(Throughput::Elements(AT_ONCE as u64));
        let mut number = 0_i64;
        group.bench_function(BenchmarkId::new("accept", body_bytes), |bencher| {
            bencher.iter(|| {
                let mut due = |_| {
                    number += 7_919;
                    now() + 60_000 + number % HOUR_MS
                };
                accept(&broker, &mut due, AT_ONCE);
            });
        });
        group.throughput(Throughput::Elements(DELAYED as u64));
        group.bench_function(BenchmarkId::new("deliver", body_bytes), |bencher| {
            bencher.iter_custom(|rounds| {
                let mut taken = Duration::ZERO;
                for _ in 0..rounds {
                    let bench = Bench::new(&StoreOptions::default());
                    let broker = Broker::new(&bench.store).unwrap();
                    let due_ms = bench.store.clock().now_ms() + 2_000;
                    accept(&broker, &mut |_| due_ms, DELAYED);
                    let left = u64::try_from(due_ms - bench.store.clock().now_ms()).unwrap();
                    bench.store.clock().sleep(Duration::from_millis(left));
                    let began = Instant::now();
                    while broker.delay_counts().unwrap().pending > 0 {
                        bench.store.clock().sleep(Duration::from_millis(1));
                    }
                    taken += began.elapsed();
                    let counts = broker.delay_counts().unwrap();
                    assert_eq!(counts.delivered, DELAYED as u64);
                }
                taken
            });
        });
    }
    group.finish();
}

/// Transactions of three messages, one after the other, not synced.
fn transactions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("transactions");
    group.throughput(Throughput::Elements(1));
    for body_bytes in BODY_BYTES {
        let (body, properties) = (vec![b'x'; body_bytes], properties());
        let bench = Bench::new(&StoreOptions::default());
        let engine = Broker::new(&bench.store).unwrap().transactions().unwrap();
        let half = NewHalfMessage {
            topic: "bench",
            body: &body,
            properties: &properties,
            ..NewHalfMessage::default()
        };
        for (name, commit) in [("commit", true), ("rollback", false)] {
            group.bench_function(BenchmarkId::new(name, body_bytes), |bencher| {
                bencher.iter(|| {
                    let transaction = engine.begin("bench").unwrap();
                    for _ in 0..3 {
                        transaction.append(&half).unwrap();
                    }
                    if commit { transaction.commit(false) } else { transaction.rollback(false) }.unwrap();
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, work_queue, poll, delayed, transactions);
criterion_main!(benches);
