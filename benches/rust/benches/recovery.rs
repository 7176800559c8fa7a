//! Opens a store for writing: after a clean close, and after a kill with a given number of bytes above the
//! mark.
//!
//! The row `limit` reads the same bytes by position, one MiB at a time, and computes their CRC, in one
//! thread. All files are in the page cache, so the benchmark measures the work of recovery.
#![expect(clippy::unwrap_used, reason = "a benchmark that fails has nothing to measure")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mqstore::Store;
use mqstore::io::{Access, OsVfs, Vfs};
use mqstore::options::{Durability, OpenMode, StoreOptions};
use mqstore_bench::{message, open, properties};

/// Bytes of log below the marks. With the longest tail, the log has four segments.
const BASE_BYTES: u64 = 3300 << 20;

/// MiB above the mark, the longest first.
const TAIL_MIB: [u64; 5] = [256, 64, 16, 1, 0];

/// Bytes after the tail that a writer keeps ready.
const WARM_BYTES: usize = 64 << 20;

/// Bytes of a message's body.
const BODY_BYTES: usize = 1024;

/// Queues of the topic.
const QUEUES: i32 = 4;

/// One store, and its states after a kill at several distances from its durable mark.
struct Killed {
    folder: tempfile::TempDir,
    options: StoreOptions,
    end: u64,
    /// The end of the last record.
    real_end: u64,
}

impl Killed {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = StoreOptions { durability: Durability::Manual, ..StoreOptions::default() };
        let root = folder.path().join("store");
        let store = open(&root, OpenMode::Create, &options);
        store.create_topic("bench", QUEUES as u32, &[]).unwrap();
        let end = BASE_BYTES + (TAIL_MIB[0] << 20);
        for mib in TAIL_MIB {
            fill(&store, end - (mib << 20));
            store.flush().unwrap();
            copy_state(&root, &folder.path().join(format!("mark-{mib}")));
        }
        let real_end = store.stats().unwrap().log_max_offset;
        store.close().unwrap();
        copy_state(&root, &folder.path().join("clean"));
        Self { folder, options, end, real_end }
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    /// Restores the directory to the saved `state`.
    fn restore(&self, state: &str, killed: bool) {
        copy_files(&self.folder.path().join(state), &self.root().join("mqstore"));
        self.reset_tail();
        let abort = self.root().join("abort");
        if killed {
            std::fs::write(abort, "1").unwrap();
        } else {
            let _ = std::fs::remove_file(abort);
        }
    }

    /// Restores the unused space of the last segment as a writer leaves it: a window of zeros after the tail,
    /// then unwritten space. Otherwise pages that an earlier round read would count as data.
    fn reset_tail(&self) {
        let base = self.end >> 30 << 30;
        let file =
            OsVfs::new().open(&self.root().join(format!("commitlog/{base:020}")), Access::ReadWrite).unwrap();
        let used = self.real_end - base;
        file.set_len(used).unwrap();
        file.allocate(1 << 30).unwrap();
        file.write_all_at(&vec![0; WARM_BYTES], used).unwrap();
        file.sync_data().unwrap();
    }

    fn time_open(&self, state: &str, killed: bool) -> Duration {
        self.restore(state, killed);
        let start = Instant::now();
        let store = open(&self.root(), OpenMode::ReadWrite, &self.options);
        let took = start.elapsed();
        assert_eq!(store.notes(), Vec::<String>::new());
        store.close().unwrap();
        took
    }

    fn time_limit(&self, mib: u64) -> Duration {
        use std::os::unix::fs::FileExt;
        let start = Instant::now();
        let mut at = self.end - (mib << 20);
        let mut buffer = vec![0; 1 << 20];
        let mut hash = crc32fast::Hasher::new();
        while at < self.end {
            let base = at >> 30 << 30;
            let file = std::fs::File::open(self.root().join(format!("commitlog/{base:020}"))).unwrap();
            while at < self.end.min(base + (1 << 30)) {
                let read = file.read_at(&mut buffer, at - base).unwrap();
                hash.update(buffer.get(..read).unwrap());
                at += read as u64;
            }
        }
        assert!(mib == 0 || hash.finalize() != 0);
        start.elapsed()
    }
}

fn fill(store: &Store, end: u64) {
    let body = vec![b'x'; BODY_BYTES];
    let properties = properties();
    let batch: Vec<_> = (0..256)
        .map(|n| mqstore::message::NewMessage { queue_id: Some(n % QUEUES), ..message(&body, &properties) })
        .collect();
    while store.stats().unwrap().log_max_offset < end {
        store.append_many(&batch).unwrap();
    }
}

/// The durable mark, the queue manifest and the live page.
fn copy_state(root: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    copy_files(&root.join("mqstore"), to);
}

fn copy_files(from: &Path, to: &Path) {
    for name in ["state.a", "state.b", "queues", "live"] {
        // A closed store has no live page.
        if from.join(name).exists() {
            std::fs::copy(from.join(name), to.join(name)).unwrap();
        }
    }
}

fn recovery(criterion: &mut Criterion) {
    let killed = Killed::new();
    let mut group = criterion.benchmark_group("recovery");
    group.sample_size(10);
    group.bench_function("clean-open", |bencher| {
        bencher.iter_custom(|rounds| (0..rounds).map(|_| killed.time_open("clean", false)).sum());
    });
    for mib in TAIL_MIB.into_iter().rev() {
        group.throughput(Throughput::Bytes((mib << 20).max(1)));
        group.bench_function(BenchmarkId::new("limit", mib), |bencher| {
            bencher.iter_custom(|rounds| (0..rounds).map(|_| killed.time_limit(mib)).sum());
        });
        let state = format!("mark-{mib}");
        group.bench_function(BenchmarkId::new("killed", mib), |bencher| {
            bencher.iter_custom(|rounds| (0..rounds).map(|_| killed.time_open(&state, true)).sum());
        });
    }
    group.finish();
}

criterion_group!(benches, recovery);
criterion_main!(benches);
