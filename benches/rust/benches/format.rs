//! The format alone: a record is encoded, decoded and checked; its checksum and the hashes of its key are
//! computed.
//!
//! Each limit is one pass over the same bytes: a copy with both checksums for records, a copy for a checksum
//! and for hashes.
#![expect(clippy::unwrap_used, reason = "a benchmark that fails has nothing to measure")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mqstore::format::{CrcCheck, Host, IndexHasher, RecordSpec, RecordView, crc31, key_digest};
use mqstore_bench::{BODY_BYTES, limit_step, properties, record};

const KEY: &str = "order-4711";

fn records(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("record");
    group.throughput(Throughput::Elements(1));
    for body_bytes in BODY_BYTES {
        let record = record(body_bytes);
        group.bench_function(BenchmarkId::new("limit", body_bytes), |bencher| {
            let mut target = vec![1; record.len()];
            bencher.iter(|| limit_step(black_box(&mut target), 0, black_box(&record), body_bytes));
        });
        group.bench_function(BenchmarkId::new("encode", body_bytes), |bencher| {
            let (body, properties, mut out) = (vec![b'x'; body_bytes], properties(), Vec::new());
            let host = Host::new([127, 0, 0, 1], 10911);
            bencher.iter(|| {
                out.clear();
                let spec = RecordSpec {
                    properties: black_box(&properties),
                    property_crc: true,
                    ..RecordSpec::new("bench", &body, host, host)
                };
                spec.encode_into(&mut out).unwrap();
            });
        });
        group.bench_function(BenchmarkId::new("decode", body_bytes), |bencher| {
            bencher.iter(|| {
                let view = RecordView::decode(black_box(&record)).unwrap();
                view.check_crc(CrcCheck { body: true, property: true }).unwrap();
                black_box(view.keys());
            });
        });
    }
    group.finish();
}

fn checksums(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("checksum");
    for body_bytes in BODY_BYTES {
        let body = vec![b'x'; body_bytes];
        group.throughput(Throughput::Bytes(body_bytes as u64));
        group.bench_function(BenchmarkId::new("limit", body_bytes), |bencher| {
            let mut target = vec![1; body_bytes];
            bencher.iter(|| black_box(&mut target).copy_from_slice(black_box(&body)));
        });
        group.bench_function(BenchmarkId::new("crc31", body_bytes), |bencher| {
            bencher.iter(|| crc31(black_box(&body)));
        });
    }
    group.finish();
}

/// Of a key: the hash for the index, and the digest for compaction.
fn hashes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("key-hash");
    group.throughput(Throughput::Elements(1));
    group.bench_function("limit", |bencher| {
        let mut target = [0; KEY.len()];
        bencher.iter(|| black_box(&mut target).copy_from_slice(black_box(KEY).as_bytes()));
    });
    let hasher = IndexHasher::new("bench");
    group.bench_function("index", |bencher| bencher.iter(|| hasher.key(black_box(KEY))));
    group.bench_function("digest", |bencher| bencher.iter(|| key_digest(black_box(KEY))));
    group.finish();
}

criterion_group!(benches, records, checksums, hashes);
criterion_main!(benches);
