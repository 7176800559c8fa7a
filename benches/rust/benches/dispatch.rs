//! Builds queues and index from an existing log, with one worker and with two.
#![expect(clippy::unwrap_used, reason = "a benchmark that fails has nothing to measure")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mqstore::format::IndexGeometry;
use mqstore::inspect::StoreFiles;
use mqstore::io::{Access, OsVfs, SystemClock};
use mqstore::options::{Durability, StoreOptions};
use mqstore_base::topic_floors::TopicFloors;
use mqstore_bench::{BODY_BYTES, Bench, limit_pass};
use mqstore_log::commit_log::SegmentList;
use mqstore_log::consume_queue::QueueSet;
use mqstore_log::dispatch::{DispatchRules, Dispatcher};
use mqstore_log::index::IndexSet;

const MESSAGES: u64 = 50_000;

fn dispatch(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("dispatch");
    group.sample_size(10);
    for body_bytes in BODY_BYTES {
        let options = StoreOptions { durability: Durability::Manual, ..StoreOptions::default() };
        let bench = Bench::new(&options);
        let end = bench.fill(body_bytes, MESSAGES);
        bench.store.flush().unwrap();
        let source = StoreFiles::new(Arc::new(OsVfs::new()), Arc::new(SystemClock::new()), &bench.path());
        let list = Arc::new(SegmentList::load(&source).unwrap());
        group.throughput(Throughput::Elements(MESSAGES));
        let record = vec![b'x'; (end / MESSAGES) as usize];
        group.bench_function(BenchmarkId::new("limit", body_bytes), |bencher| {
            let mut target = vec![1; 64 << 20];
            bencher.iter(|| limit_pass(&mut target, &record, body_bytes, MESSAGES));
        });
        for (name, way) in [
            ("queues-and-index", Way { maps: false, helpers: 0 }),
            ("queues-and-index-2", Way { maps: false, helpers: 1 }),
        ] {
            group.bench_function(BenchmarkId::new(name, body_bytes), |bencher| {
                bencher.iter_custom(|rounds| (0..rounds).map(|_| one_round(&list, end, way)).sum());
            });
        }
        // As in a store that is open for writing, which has its newest segments mapped.
        for segment in list.segments() {
            segment.region().unwrap();
        }
        for (name, way) in [
            ("queues-and-index-mapped", Way { maps: true, helpers: 0 }),
            ("queues-and-index-mapped-2", Way { maps: true, helpers: 1 }),
        ] {
            group.bench_function(BenchmarkId::new(name, body_bytes), |bencher| {
                bencher.iter_custom(|rounds| (0..rounds).map(|_| one_round(&list, end, way)).sum());
            });
        }
    }
    group.finish();
}

/// How to dispatch a log.
#[derive(Clone, Copy)]
struct Way {
    maps: bool,
    helpers: u32,
}

/// Dispatches the whole log into new derived files. Only the dispatch is timed.
fn one_round(list: &Arc<SegmentList>, end: u64, way: Way) -> Duration {
    let folder = tempfile::tempdir().unwrap();
    let files = StoreFiles::new(Arc::new(OsVfs::new()), Arc::new(SystemClock::new()), folder.path());
    files.ensure_folder(&files.staging()).unwrap();
    let geometry = IndexGeometry { slots: 500_000, entries: 2_000_000 };
    let queues =
        Arc::new(QueueSet::load(&files, 6_000_000, Access::ReadWrite, &TopicFloors::default()).unwrap());
    let index = Arc::new(IndexSet::load(&files, None, geometry, Access::ReadWrite).unwrap());
    let dispatcher = Dispatcher::new(&files, Arc::clone(list), queues, index, DispatchRules::default(), 0, 0);
    if way.maps {
        dispatcher.look_at_maps();
    }
    let start = Instant::now();
    assert_eq!(dispatcher.run_with_helpers(way.helpers, list, end, &mut |_| Ok(())).unwrap(), end);
    start.elapsed()
}

criterion_group!(benches, dispatch);
criterion_main!(benches);
