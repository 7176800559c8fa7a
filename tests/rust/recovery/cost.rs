//! Measures how much an open reads. An open for writing reads the bytes after the mark and at most one
//! segment, whatever the size of the store. If queues are missing, it reads the log once for all of them.

use std::path::Path;

use mqstore::io::Vfs;
use mqstore::io::sim::{OperationKind, SimVfs};
use mqstore::options::OpenMode;
use mqstore_tests::{Simulated, append};

use crate::{ROOT, message, options, stopped, written};

const SEGMENT: u64 = 256 << 10;

/// Bytes read in `folder` since operation `from`.
fn read_bytes(vfs: &SimVfs, from: u64, folder: &str) -> u64 {
    let folder = Path::new(ROOT).join(folder);
    let trace = vfs.trace();
    let reads = trace.iter().filter(|one| one.number > from && one.kind == OperationKind::Read);
    reads.filter(|one| one.path.starts_with(&folder)).map(|one| one.len).sum()
}

/// A stopped store of about `segments` segments, with `tail` bytes after the mark.
fn store_of(segments: u64, tail: u64, clean: bool) -> Simulated {
    let options = mqstore::options::StoreOptions {
        segment_bytes: SEGMENT,
        queue_file_entries: 4096,
        index_slots: 100,
        index_entries: 100_000,
        ..options()
    };
    let (world, store) = written(options, 1, 1);
    let fill = |end: u64| {
        while store.stats().unwrap().log_max_offset < end {
            append(&store, &[mqstore_tests::Remembered { body: vec![7; 900], ..message(1) }]).unwrap();
        }
    };
    let end = segments * SEGMENT + SEGMENT / 2;
    fill(end - tail);
    store.flush().unwrap();
    fill(end);
    stopped(world, store, clean)
}

/// Bytes of log, queues and index that an open reads.
fn cost(world: &Simulated) -> (u64, u64, u64) {
    let before = world.vfs.operations();
    let store = world.open(OpenMode::ReadWrite).unwrap();
    let read = |folder| read_bytes(&world.vfs, before, folder);
    assert_eq!(store.notes(), Vec::<String>::new());
    let found = (read("commitlog"), read("consumequeue"), read("index"));
    drop(store);
    found
}

#[test]
fn an_open_after_a_kill_reads_what_lies_above_the_mark() {
    let tail = SEGMENT / 4;
    let costs: Vec<_> = [1, 4, 12].map(|segments| cost(&store_of(segments, tail, false))).to_vec();
    for (log, queues, index) in &costs {
        // The tail is checked and dispatched. The rest of the segment, mostly a hole in the file, is read at
        // most once.
        assert!(*log <= 2 * tail + SEGMENT, "{costs:?}");
        assert!(*queues <= 256 << 10, "{costs:?}");
        assert!(*index <= 64 << 10, "{costs:?}");
    }
    let (small, large) = (costs[0].0, costs[2].0);
    assert!(large <= small + 4096, "the store's size does not count: {costs:?}");
}

#[test]
fn an_open_after_a_clean_close_reads_next_to_nothing() {
    for segments in [1, 12] {
        let (log, queues, index) = cost(&store_of(segments, 0, true));
        assert!(log <= 68 << 10, "{log}");
        assert!(queues <= 256 << 10, "{queues}");
        assert!(index <= 4096, "{index}");
    }
}

#[test]
fn the_tail_is_read_in_proportion() {
    let of = |tail| cost(&store_of(4, tail, false)).0;
    let (none, half) = (of(0), of(SEGMENT / 2));
    assert!(none <= SEGMENT, "{none}");
    assert!(half >= none / 2 && half <= 2 * (SEGMENT / 2) + SEGMENT, "{half}");
}

#[test]
fn queues_that_are_missing_are_derived_in_one_walk() {
    let options = mqstore::options::StoreOptions { segment_bytes: SEGMENT, default_queues: 40, ..options() };
    let (world, store) = written(options, 1, 1);
    store.create_topic("orders", 40, &[]).unwrap();
    for queue_id in (0..40).cycle().take(800) {
        append(&store, &[mqstore_tests::Remembered { queue_id, body: vec![7; 900], ..message(1) }]).unwrap();
    }
    let log = store.stats().unwrap().log_max_offset;
    let world = stopped(world, store, true);
    world.vfs.remove_dir_all(&Path::new(ROOT).join("consumequeue")).unwrap();
    let before = world.vfs.operations();
    let store = world.open(OpenMode::Read).unwrap();
    assert_eq!(store.queues("orders").unwrap().len(), 40);
    let read = read_bytes(&world.vfs, before, "commitlog");
    assert!(read < 3 * log, "{read} bytes of {log}");
    assert!(store.notes().len() < 12, "{:?}", store.notes());
}
