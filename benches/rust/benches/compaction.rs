//! The compaction of a queue: read it, decide its keys, write and sync the survivors, publish nothing.
//!
//! The limit copies all records of the queue once in memory and computes their checksums.
#![expect(clippy::unwrap_used, reason = "a benchmark that fails has nothing to measure")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mqstore::compaction::{CompactionOptions, JobControl, WorkerInfo};
use mqstore::inspect::StoreFiles;
use mqstore::io::{OsVfs, SystemClock};
use mqstore::message::encode_properties;
use mqstore::options::{Durability, StoreOptions};
use mqstore_bench::{BODY_BYTES, Bench, limit_pass, message, record};
use mqstore_compaction::{StoreLockHeld, plan, run_task};

const MESSAGES: u64 = 50_000;

/// Messages that share a key.
const SAME: u64 = 10;

fn compaction(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("compaction");
    group.sample_size(10).throughput(Throughput::Elements(MESSAGES));
    for body_bytes in BODY_BYTES {
        let record = record(body_bytes);
        group.bench_function(BenchmarkId::new("limit", body_bytes), |bencher| {
            let mut target = vec![1; 64 << 20];
            bencher.iter(|| limit_pass(black_box(&mut target), &record, body_bytes, MESSAGES));
        });
        let bench = Bench::new(&StoreOptions { durability: Durability::Manual, ..StoreOptions::default() });
        let body = vec![b'x'; body_bytes];
        for number in 0..MESSAGES {
            let key = format!("order-{}", number % (MESSAGES / SAME));
            let properties = encode_properties([key.as_str()], None, None, [("region", "eu")]).unwrap();
            bench.store.append(&message(&body, &properties)).unwrap();
        }
        bench.store.close().unwrap();
        let files = StoreFiles::new(Arc::new(OsVfs::new()), Arc::new(SystemClock::new()), &bench.path());
        let options = CompactionOptions { force: true, ..CompactionOptions::default() };
        let held = StoreLockHeld::take(&files).unwrap();
        let planned = plan(&files, &held, Some(&["bench".to_owned()]), &options).unwrap();
        let task = planned.plan.tasks.first().unwrap();
        let job = bench.path().join("mqstore/jobs").join(&task.job_id);
        let mut attempt = 0;
        group.bench_function(BenchmarkId::new("one-in-ten-stays", body_bytes), |bencher| {
            bencher.iter(|| {
                attempt += 1;
                let staging = job.join(format!("attempt-{attempt}"));
                let result =
                    run_task(&files, task, &staging, WorkerInfo::default(), &JobControl::default()).unwrap();
                assert_eq!(result.counts.survivors, MESSAGES / SAME);
                std::fs::remove_dir_all(staging).unwrap();
            });
        });
    }
    group.finish();
}

criterion_group!(benches, compaction);
criterion_main!(benches);
