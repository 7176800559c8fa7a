//! Reads: a queue from its first message to its last, random messages, messages with one tag, and messages
//! with matching properties. Every record is checked.
#![expect(clippy::unwrap_used, reason = "a benchmark that fails has nothing to measure")]

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mqstore::Store;
use mqstore::format::{CQ_UNIT_BYTES, CqUnit, tags_code};
use mqstore::message::{MessageFilter, encode_properties};
use mqstore::options::{Durability, OpenMode, StoreOptions};
use mqstore_bench::{BODY_BYTES, Bench, limit_pass, message, open, record};

const MESSAGES: u64 = 50_000;

/// Bytes of a body in groups that do not compare sizes.
const BODY: usize = 1024;

/// Distance between two random places, coprime to the number of messages.
const STRIDE: u64 = 17_389;

/// One message in this many has the wanted tag.
const RARE: u64 = 10;

/// Queue entries exist when an append returns.
fn manual() -> StoreOptions {
    StoreOptions { durability: Durability::Manual, dispatch_threads: Some(0), ..StoreOptions::default() }
}

fn read_all(store: &Store, filter: Option<&MessageFilter>) -> u64 {
    let mut cursor = store.read("bench", 0, None, None, filter).unwrap();
    let mut bytes = 0;
    loop {
        let batch = cursor.next_batch(512).unwrap();
        if batch.is_empty() {
            return bytes;
        }
        bytes += batch.iter().map(|record| record.view().unwrap().body.len() as u64).sum::<u64>();
    }
}

fn sequential(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sequential-read");
    group.sample_size(10);
    for body_bytes in BODY_BYTES {
        let bench = Bench::new(&manual());
        let end = bench.fill(body_bytes, MESSAGES);
        group.throughput(Throughput::Elements(MESSAGES));
        let record = vec![b'x'; (end / MESSAGES) as usize];
        group.bench_function(BenchmarkId::new("limit", body_bytes), |bencher| {
            let mut target = vec![1; 64 << 20];
            bencher.iter(|| limit_pass(black_box(&mut target), &record, body_bytes, MESSAGES));
        });
        let wanted = MESSAGES * body_bytes as u64;
        group.bench_function(BenchmarkId::new("writer", body_bytes), |bencher| {
            bencher.iter(|| assert_eq!(read_all(&bench.store, None), wanted));
        });
        let reader = open(&bench.path(), OpenMode::Read, &manual());
        group.bench_function(BenchmarkId::new("reader", body_bytes), |bencher| {
            bencher.iter(|| assert_eq!(read_all(&reader, None), wanted));
        });
    }
    group.finish();
}

/// The limit reads a queue entry and the record, each by position, and computes both checksums.
fn random(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("random-read");
    group.throughput(Throughput::Elements(1));
    let bench = Bench::new(&manual());
    bench.fill(BODY, MESSAGES);
    let mut number = 0;
    let mut next = move || {
        number = (number + STRIDE) % MESSAGES;
        number
    };
    let file = |name: &str| File::open(bench.path().join(name)).unwrap();
    let (queue, log) =
        (file("consumequeue/bench/0/00000000000000000000"), file("commitlog/00000000000000000000"));
    group.bench_function("limit", |bencher| {
        let (mut unit, mut record) = ([0; CQ_UNIT_BYTES], vec![0; record(BODY).len()]);
        bencher.iter(|| {
            queue.read_exact_at(&mut unit, next() * CQ_UNIT_BYTES as u64).unwrap();
            let unit = CqUnit::decode(&unit);
            let bytes = record.get_mut(..unit.size as usize).unwrap();
            log.read_exact_at(bytes, unit.physical_offset as u64).unwrap();
            let (body, _) = bytes.split_at(BODY);
            black_box(crc32fast::hash(body) ^ crc32fast::hash(bytes))
        });
    });
    let reader = open(&bench.path(), OpenMode::Read, &manual());
    for (name, store) in [("writer", &bench.store), ("reader", &reader)] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let found = store.message_at("bench", 0, next() as i64).unwrap().unwrap();
                assert_eq!(found.view().unwrap().body.len(), BODY);
            });
        });
    }
    group.finish();
}

/// One tag in ten messages. A read skips the others without reading their records. The limit walks the same
/// entries in memory, and copies the matching records and computes their checksums.
fn filter(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("filter");
    group.sample_size(10).throughput(Throughput::Elements(MESSAGES));
    let bench = Bench::new(&manual());
    let body = vec![b'x'; BODY];
    for number in 0..MESSAGES {
        let tag = if number.is_multiple_of(RARE) { "refund" } else { "paid" };
        let properties =
            encode_properties(["order-4711"], Some(tag), None, [("region", "eu"), ("price", "42")]).unwrap();
        bench.store.append(&message(&body, &properties)).unwrap();
    }
    let mut units = std::fs::read(bench.path().join("consumequeue/bench/0/00000000000000000000")).unwrap();
    units.truncate(MESSAGES as usize * CQ_UNIT_BYTES);
    let (wanted, record) = (tags_code("refund"), record(BODY));
    group.bench_function("limit", |bencher| {
        let mut target = vec![1; 64 << 20];
        bencher.iter(|| {
            let (units, _) = black_box(&units).as_chunks::<CQ_UNIT_BYTES>();
            let found = units.iter().filter(|unit| CqUnit::decode(unit).tags_code == wanted).count() as u64;
            assert_eq!(found, MESSAGES / RARE);
            limit_pass(&mut target, &record, BODY, found);
        });
    });
    let filter = MessageFilter::tags("refund").unwrap();
    let bytes = MESSAGES / RARE * BODY as u64;
    group.bench_function("one-in-ten", |bencher| {
        bencher.iter(|| assert_eq!(read_all(&bench.store, filter.as_ref()), bytes));
    });
    // Queue entries contain no properties, so all records are read.
    group.bench_function("limit-sql", |bencher| {
        let mut target = vec![1; 64 << 20];
        bencher.iter(|| limit_pass(black_box(&mut target), &record, BODY, MESSAGES));
    });
    group.bench_function("everything", |bencher| {
        bencher.iter(|| assert_eq!(read_all(&bench.store, None), MESSAGES * BODY as u64));
    });
    for (name, expression) in [
        ("sql-one-in-ten", "TAGS = 'refund'"),
        ("sql-three-conditions", "price > 5 AND region IN ('eu', 'us') AND TAGS = 'refund'"),
    ] {
        let filter = MessageFilter::sql(expression).unwrap();
        group.bench_function(name, |bencher| {
            bencher.iter(|| assert_eq!(read_all(&bench.store, Some(&filter)), bytes));
        });
    }
    group.finish();
}

criterion_group!(benches, sequential, random, filter);
criterion_main!(benches);
