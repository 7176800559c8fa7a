//! The log engine: every durability mode, many threads, back-pressure, and preallocation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use mqstore_io::sim::{OperationKind, SimOptions};
use mqstore_io::{Fault, MapAccess};

use crate::testing::*;
use mqstore_base::live_page::LivePage;
use mqstore_base::options::Durability;
use mqstore_base::options::Visibility;
use mqstore_log::commit_log::{CommitLog, LogOptions, PreallocateOptions, PutLimits, SegmentList};

const MODES: [Durability; 4] = [Durability::Async, Durability::Sync, Durability::Manual, Durability::Pooled];

fn numbered(thread: u64, number: u64) -> Vec<u8> {
    let mut body = format!("{thread} {number} ").into_bytes();
    body.resize(body.len() + (number * 37 % 400) as usize, b'.');
    body
}

/// Checks that each thread's messages exist once, in its order, and that queue offsets have no gap.
fn check_numbered(store: &Store, threads: u64, each: u64) {
    let mut next = vec![0; threads as usize];
    let found = read_all(store, "orders", 0);
    assert_eq!(found.len() as u64, threads * each);
    for (wanted, (offset, body)) in (0..).zip(&found) {
        assert_eq!(*offset, wanted);
        let text = String::from_utf8_lossy(body);
        let mut words = text.split(' ');
        let thread: u64 = words.next().unwrap().parse().unwrap();
        let number: u64 = words.next().unwrap().parse().unwrap();
        assert_eq!(*body, numbered(thread, number));
        assert_eq!(number, next[thread as usize], "order of thread {thread}");
        next[thread as usize] += 1;
    }
}

#[test]
fn many_threads_append_in_every_mode() {
    for durability in MODES {
        let world = World::real();
        let options =
            StoreOptions { durability, pool_bytes: 64 << 10, queue_wait_limit_ms: 60_000, ..small() };
        let store = world.open(OpenMode::Create, &options).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let store = &store;
                scope.spawn(move || {
                    for number in 0..100 {
                        let done = put(store, "orders", 0, &numbered(thread, number), "k");
                        assert!(
                            !done.durable || store.stats().unwrap().durable_offset > done.commit_log_offset
                        );
                        assert!(done.durable || durability != Durability::Sync);
                    }
                });
            }
        });
        check_numbered(&store, 4, 100);
        store.close().unwrap();
        let store = world.open(OpenMode::ReadWrite, &options).unwrap();
        check_numbered(&store, 4, 100);
        store.close().unwrap();
        verify_clean(&world, &options);
    }
}

fn verify_clean(world: &World, options: &StoreOptions) {
    let report = mqstore_inspect::verify(&world.files(), options, &mut |_| Ok(())).unwrap();
    assert!(report.ok, "{:#?}", report.problems);
}

#[test]
fn batches_cross_segments_in_every_mode() {
    for durability in MODES {
        let (world, vfs, _) = World::simulated();
        let options = StoreOptions { durability, pool_bytes: 64 << 10, ..small() };
        let store = world.open(OpenMode::Create, &options).unwrap();
        let bodies: Vec<Vec<u8>> = (0..200_u64).map(|number| numbered(0, number)).collect();
        for part in bodies.chunks(70) {
            let messages: Vec<NewMessage<'_>> =
                part.iter().map(|body| NewMessage { durable: true, ..plain("orders", body) }).collect();
            let done = store.append_many(&messages).unwrap();
            assert!(done.iter().all(|done| done.durable));
            assert!(done.windows(2).all(|pair| pair[0].queue_offset + 1 == pair[1].queue_offset));
        }
        check_numbered(&store, 1, 200);
        // A power loss at this moment removes none of it.
        let crashed = world.on(Arc::new(vfs.crash(7).unwrap()));
        let again = crashed.open(OpenMode::ReadWrite, &options).unwrap();
        check_numbered(&again, 1, 200);
    }
}

/// A world that records its calls. No thread prepares pages in it.
fn traced() -> (World, Arc<SimVfs>) {
    let (world, ..) = World::simulated();
    let vfs = Arc::new(SimVfs::new(SimOptions { trace: true, by_hand: true, ..SimOptions::default() }));
    vfs.create_dir_all(std::path::Path::new("/data")).unwrap();
    (world.on(vfs.clone()), vfs)
}

/// A large append to absent pages is written to the file, in pieces: small records together, a large record by itself
/// with its size last. Any other append is copied to the map.
#[test]
fn a_large_append_to_absent_pages_is_written_to_the_file() {
    let (world, vfs) = traced();
    let options = StoreOptions { segment_bytes: 1 << 20, file_write_bytes: 1_000, ..small() };
    let store = world.open(OpenMode::Create, &options).unwrap();
    put(&store, "orders", 0, b"the first message creates the segment", "k");
    // An open file keeps the name under which it was created.
    let path = world.files().staging().join(format!("segment-{}", mqstore_format::offset_file_name(0)));
    let calls = |sizes: &[usize]| -> Vec<(OperationKind, u64, u64)> {
        let before = vfs.operations();
        let bodies: Vec<Vec<u8>> = sizes.iter().map(|size| vec![b'z'; *size]).collect();
        let messages: Vec<NewMessage<'_>> = bodies.iter().map(|body| plain("orders", body)).collect();
        let done = store.append_many(&messages).unwrap();
        let start = done[0].commit_log_offset;
        let writes = [OperationKind::Write, OperationKind::MapWrite];
        let trace = vfs.trace().into_iter().filter(|call| call.number > before && call.path == path);
        let log = trace.filter(|call| writes.contains(&call.kind));
        log.map(|call| (call.kind, call.offset - start, call.len)).collect()
    };
    let is_copied = |calls: &[(OperationKind, u64, u64)]| {
        !calls.is_empty() && calls.iter().all(|(kind, ..)| *kind == OperationKind::MapWrite)
    };
    let small = calls(&[300, 300]);
    assert!(is_copied(&small), "{small:?}");
    let large = calls(&[300, 300, 300]);
    assert!(matches!(large.as_slice(), [(OperationKind::Write, 0, 1_000..)]), "{large:?}");
    let mixed = calls(&[300, 9_000, 300]);
    let kinds: Vec<OperationKind> = mixed.iter().map(|(kind, ..)| *kind).collect();
    assert_eq!(kinds, [OperationKind::Write; 5], "{mixed:?}");
    let &[first, body, tail, head, last] = mixed.as_slice() else { panic!("{mixed:?}") };
    assert_eq!((first.1, first.2), (0, head.1), "the record before the large one");
    assert_eq!((head.1 + head.2, body.1 + body.2, tail.1 + tail.2), (body.1, tail.1, last.1));
    put(&store, "orders", 0, b"a small message needs prepared pages again", "k");
    for _ in 0..5 {
        store.step().unwrap();
    }
    let prepared = calls(&[300, 300, 300]);
    assert!(is_copied(&prepared), "{prepared:?}");
    assert_eq!(read_all(&store, "orders", 0).len(), 13);
    store.close().unwrap();
    verify_clean(&world, &options);
}

/// A write that fails in the middle stops the log as a failed sync does. Nothing of the append is visible.
#[test]
fn a_failed_write_of_a_large_append_stops_the_log() {
    for nth in 1..=2 {
        let (world, vfs) = traced();
        let options = StoreOptions { segment_bytes: 1 << 20, file_write_bytes: 1_000, ..small() };
        let store = world.open(OpenMode::Create, &options).unwrap();
        put(&store, "orders", 0, b"fine", "k");
        vfs.inject(Fault::nth(nth).on(&[OperationKind::Write]).under(&world.files().staging()));
        let body = vec![b'z'; 3_000];
        let failed = store.append_many(&vec![plain("orders", &body); 4]);
        assert!(matches!(failed, Err(StoreError::Poisoned { .. })), "write {nth}: {failed:?}");
        assert!(matches!(store.append(&plain("orders", b"next")), Err(StoreError::Poisoned { .. })));
        let killed = world.on(Arc::new({
            vfs.clear_faults();
            vfs.kill().unwrap()
        }));
        let again = killed.open(OpenMode::ReadWrite, &options).unwrap();
        let found = read_all(&again, "orders", 0);
        assert_eq!(found.first(), Some(&(0, b"fine".to_vec())));
        assert!(found.iter().skip(1).all(|(_, found)| *found == body), "a prefix of the batch");
        again.close().unwrap();
        verify_clean(&killed, &options);
    }
}

#[test]
fn a_record_larger_than_the_pool_goes_to_the_file() {
    for durability in [Durability::Sync, Durability::Pooled] {
        let (world, ..) = World::simulated();
        let options = StoreOptions {
            durability,
            pool_bytes: 64 << 10,
            segment_bytes: 1 << 20,
            max_message_bytes: 900_000,
            ..small()
        };
        let store = world.open(OpenMode::Create, &options).unwrap();
        let bodies: Vec<Vec<u8>> =
            [10, 20_000, 5, 200_000, 70_000, 7, 600_000, 1].iter().map(|len| vec![b'z'; *len]).collect();
        for body in &bodies {
            store.append(&plain("orders", body)).unwrap();
        }
        let found: Vec<Vec<u8>> = read_all(&store, "orders", 0).into_iter().map(|(_, body)| body).collect();
        assert_eq!(found, bodies);
        store.close().unwrap();
        verify_clean(&world, &options);
    }
}

#[test]
fn pooled_records_are_read_at_once_and_reach_the_file_in_time() {
    let (world, vfs, _) = World::simulated();
    let options = StoreOptions { durability: Durability::Pooled, commit_interval_ms: 3_600_000, ..small() };
    let store = world.open(OpenMode::Create, &options).unwrap();
    let done = put(&store, "orders", 0, b"one", "k");
    assert!(!done.durable);
    // No reader came and the interval is long: a kill loses the message.
    let killed = world.on(Arc::new(vfs.kill().unwrap()));
    let again = killed.open(OpenMode::Read, &options).unwrap();
    assert_eq!(read_all_or_none(&again), Vec::new());
    // A read writes it to the file; then a kill keeps it.
    assert_eq!(read_all(&store, "orders", 0), [(0, b"one".to_vec())]);
    let killed = world.on(Arc::new(vfs.kill().unwrap()));
    let again = killed.open(OpenMode::Read, &options).unwrap();
    assert_eq!(read_all_or_none(&again), [(0, b"one".to_vec())]);
    // With `durable`, it is on the device.
    assert!(store.append(&NewMessage { durable: true, ..plain("orders", b"two") }).unwrap().durable);
    let crashed = world.on(Arc::new(vfs.crash(3).unwrap()));
    let again = crashed.open(OpenMode::ReadWrite, &options).unwrap();
    assert_eq!(read_all(&again, "orders", 0).len(), 2);
}

fn read_all_or_none(store: &Store) -> Vec<(i64, Vec<u8>)> {
    if store.topics().unwrap().is_empty() { Vec::new() } else { read_all(store, "orders", 0) }
}

#[test]
fn durable_visibility_hides_what_a_power_loss_could_take() {
    for durability in [Durability::Async, Durability::Manual, Durability::Pooled] {
        let (world, ..) = World::simulated();
        let options = StoreOptions {
            durability,
            visibility: Visibility::Durable,
            flush_interval_ms: 3_600_000,
            ..small()
        };
        let store = world.open(OpenMode::Create, &options).unwrap();
        put(&store, "orders", 0, b"one", "k");
        assert_eq!(read_all_or_none(&store), Vec::new());
        let beside = world.open(OpenMode::Read, &options).unwrap();
        assert_eq!(read_all_or_none(&beside), Vec::new());
        store.flush().unwrap();
        assert_eq!(read_all(&store, "orders", 0).len(), 1);
        let beside = world.open(OpenMode::Read, &options).unwrap();
        assert_eq!(read_all(&beside, "orders", 0).len(), 1);
        put(&store, "orders", 0, b"two", "k");
        assert_eq!(read_all(&store, "orders", 0).len(), 1);
        assert!(store.append(&NewMessage { durable: true, ..plain("orders", b"three") }).unwrap().durable);
        assert_eq!(read_all(&store, "orders", 0).len(), 3);
    }
}

/// Returns a log without a store and without services.
fn log(world: &World, pool_bytes: Option<u64>, preallocation: PreallocateOptions) -> CommitLog {
    let files = world.files();
    files.vfs.create_dir_all(&files.commit_log()).unwrap();
    files.vfs.create_dir_all(&files.staging()).unwrap();
    let live = Arc::new(LivePage::create(&files, 1, false, 0..0, 0).unwrap().0);
    let (segments, _) = SegmentList::load_contiguous(&files, 1 << 20, MapAccess::ReadWrite).unwrap();
    let limits = PutLimits { busy_after_ms: 1_000, queue_wait_ms: 200 };
    let options = LogOptions {
        pool_bytes,
        limits,
        preallocation,
        allocation_bytes: 1 << 20,
        file_write_bytes: 64 << 10,
        max_bytes: None,
    };
    CommitLog::open(&files, &options, segments, mqstore_log::commit_log::SyncPoint::default(), live).unwrap()
}

fn staged(world: &World) -> Vec<String> {
    let entries = world.vfs.list(&world.files().staging()).unwrap();
    entries.into_iter().map(|entry| entry.name.to_string_lossy().into_owned()).collect()
}

fn append_raw(log: &CommitLog, body: &[u8]) -> u64 {
    let host = StoreOptions::default().store_host;
    let spec = mqstore_format::RecordSpec::new("orders", body, host, host);
    let (mut head, mut tail) = (Vec::new(), Vec::new());
    spec.encode_parts(&mut head, &mut tail).unwrap();
    let parts = mqstore_format::RecordParts { head: &mut head, body, tail: &mut tail, property_crc: false };
    let next_queue_offset = std::sync::atomic::AtomicI64::new(0);
    let placed = mqstore_log::commit_log::Placed::default();
    let quota = mqstore_log::commit_log::TopicQuotaState::new(&"orders".into());
    let mut pending = [mqstore_log::commit_log::EncodedRecord {
        parts,
        next_queue_offset: &next_queue_offset,
        messages: 1,
        quota: &quota,
        placed,
    }];
    log.append(&mut pending, 1_000, false).unwrap()
}

#[test]
fn the_next_segment_is_ready_before_it_is_needed_and_named_when_it_is() {
    for (pool_bytes, prewrite) in [(None, false), (Some(256 << 10), true)] {
        let (world, ..) = World::simulated();
        let preallocation =
            PreallocateOptions { enabled: true, window_bytes: 64 << 10, prewrite, lock_memory: false };
        let log = log(&world, pool_bytes, preallocation);
        assert!(!log.prepare().unwrap(), "there is no active segment yet");
        let body = vec![b'b'; 100_000];
        for _ in 0..5 {
            append_raw(&log, &body);
        }
        while log.prepare().unwrap() {}
        assert_eq!(staged(&world).iter().filter(|name| name.starts_with("ahead-")).count(), 0);
        append_raw(&log, &body);
        while log.prepare().unwrap() {}
        let names = staged(&world);
        assert!(names.contains(&"ahead-00000000000001048576".to_owned()), "{names:?}");
        assert_eq!(log.list().segments().len(), 1, "no name before its first record");
        for _ in 0..6 {
            append_raw(&log, &body);
        }
        assert_eq!(log.list().segments().len(), 2);
        assert!(!staged(&world).iter().any(|name| name.starts_with("ahead-")));
        log.wait_durable(log.appended()).unwrap();
        // The tail of a prepared segment is zero, as the search for the end needs it.
        let last = log.list().segments()[1].clone();
        let mut rest = vec![1; 1000];
        let end = log.appended() - last.base_offset();
        last.file().unwrap().read_exact_at(&mut rest, end).unwrap();
        assert_eq!(rest, vec![0; 1000]);
        log.stop_preparing();
        assert!(!log.prepare().unwrap());
    }
}

#[test]
fn the_window_advances_with_pauses_while_more_than_half_of_it_is_ready() {
    let (world, ..) = World::simulated();
    let preallocation =
        PreallocateOptions { enabled: true, window_bytes: 64 << 10, prewrite: false, lock_memory: false };
    let log = log(&world, None, preallocation);
    let pauses = || {
        let pause = log.pause_after(Duration::from_millis(7));
        assert!(pause.is_zero() || pause == Duration::from_millis(1), "{pause:?}");
        !pause.is_zero()
    };
    append_raw(&log, &vec![b'b'; 50_000]);
    assert!(!pauses(), "nothing is ready");
    while log.prepare().unwrap() {}
    assert!(pauses());
    append_raw(&log, &vec![b'b'; 2_000]);
    assert!(!log.prepare().unwrap(), "nearly nothing of it is used");
    append_raw(&log, &vec![b'b'; 10_000]);
    assert!(pauses());
    append_raw(&log, &vec![b'b'; 30_000]);
    assert!(!pauses(), "less than half of it is left");
    while log.prepare().unwrap() {}
    assert!(pauses());
}

#[test]
fn the_window_stays_empty_while_large_appends_overtake_it() {
    let (world, ..) = World::simulated();
    let preallocation =
        PreallocateOptions { enabled: true, window_bytes: 64 << 10, prewrite: false, lock_memory: false };
    let log = log(&world, None, preallocation);
    let large = vec![b'b'; 100_000];
    let fills = || {
        while log.prepare().unwrap() {}
        !log.pause_after(Duration::ZERO).is_zero()
    };
    append_raw(&log, &large);
    assert!(!fills(), "the first append met no pages");
    append_raw(&log, b"small");
    assert!(fills(), "a small append needs pages");
    append_raw(&log, &large);
    assert!(!fills(), "the window is shorter than the append");
    assert!(!log.wait_to_prepare(Duration::ZERO), "the log grew since the last look");
    assert!(log.wait_to_prepare(Duration::ZERO), "a rest");
    assert!(fills());
}

/// Returns a log with a pool, a prewritten window of 64 KiB and one record; with the end of the record and the file of
/// its segment.
fn prewritten_log(world: &World) -> (CommitLog, u64, std::path::PathBuf) {
    let preallocation =
        PreallocateOptions { enabled: true, window_bytes: 64 << 10, prewrite: true, lock_memory: false };
    let log = log(world, Some(256 << 10), preallocation);
    let end = append_raw(&log, &vec![b'b'; 10_000]);
    (log, end, world.files().commit_log().join(mqstore_format::offset_file_name(0)))
}

#[test]
fn the_window_is_prewritten_and_records_in_it_are_synced_anew() {
    let (world, vfs) = traced();
    let (log, first, path) = prewritten_log(&world);
    let prewritten = |since: u64| -> Vec<u64> {
        let trace = vfs.trace().into_iter().filter(|call| call.number > since && call.path == path);
        let flushes = trace.filter(|call| call.kind == OperationKind::MapFlush);
        flushes.flat_map(|call| [call.offset, call.offset + call.len]).collect()
    };
    while log.prepare().unwrap() {}
    let step = 16 << 10;
    let ends = [0, 1, 1, 2, 2, 3, 3, 4].map(|steps| first + steps * step);
    assert_eq!(prewritten(0), ends);
    let seen = vfs.operations();
    let mut end = first;
    for _ in 0..4 {
        end = append_raw(&log, &vec![b'b'; 10_000]);
        log.wait_durable(end).unwrap();
        while log.prepare().unwrap() {}
    }
    assert!(prewritten(seen).is_empty(), "much of it is left");
    append_raw(&log, &vec![b'b'; 10_000]);
    while log.prepare().unwrap() {}
    assert_eq!(prewritten(seen).first(), Some(&(first + 4 * step)), "it continues where it ended");
    for folder in ["/", "/data", "/data/store"] {
        vfs.sync_dir(std::path::Path::new(folder)).unwrap();
    }
    let crashed = vfs.crash_with(&mut |_| false).unwrap();
    let mut found = vec![0; end as usize];
    crashed.open(&path, mqstore_io::Access::Read).unwrap().read_exact_at(&mut found, 0).unwrap();
    let mut bodies = found.split(|byte| *byte != b'b').filter(|run| run.len() >= 10_000);
    assert!((0..5).all(|_| bodies.next().is_some()), "all that was durable");
}

#[test]
fn a_large_append_delays_no_prewriting() {
    let (world, ..) = World::simulated();
    let (log, ..) = prewritten_log(&world);
    append_raw(&log, &vec![b'b'; 100_000]);
    while log.prepare().unwrap() {}
    append_raw(&log, &vec![b'b'; 60_000]);
    assert!(log.wait_to_prepare(Duration::ZERO), "three quarters of the window are used");
}

#[test]
fn a_failure_of_prewriting_stops_the_log_like_any_failed_sync() {
    let (world, vfs, _) = World::simulated();
    let (log, end, path) = prewritten_log(&world);
    vfs.inject(Fault::nth(2).on(&[OperationKind::MapFlush]).under(&path));
    assert!(log.prepare().unwrap());
    assert!(matches!(log.prepare(), Err(StoreError::Poisoned { .. })));
    // The system may have reported the error only once.
    assert!(matches!(log.wait_durable(end), Err(StoreError::Poisoned { .. })));
    assert!(log.check().is_err());
}

#[test]
fn a_name_is_durable_before_anything_in_the_segment_is() {
    let (world, vfs, _) = World::simulated();
    let off = PreallocateOptions { enabled: false, window_bytes: 0, prewrite: false, lock_memory: false };
    let log = log(&world, None, off);
    for folder in [std::path::Path::new("/data"), &world.path] {
        vfs.sync_dir(folder).unwrap();
    }
    let end = append_raw(&log, b"first");
    let lost = vfs.crash_with(&mut |_| false).unwrap();
    assert!(lost.list(&world.files().commit_log()).map_or(0, |names| names.len()) == 0, "nothing was synced");
    log.wait_durable(end).unwrap();
    let kept = vfs.crash_with(&mut |_| false).unwrap();
    assert_eq!(kept.list(&world.files().commit_log()).unwrap().len(), 1);
}

#[test]
fn a_failed_write_stops_the_log_and_wakes_everybody() {
    let (world, vfs, _) = World::simulated();
    // One segment: if the disk fails while the next segment is made, that append is refused and the store continues.
    let options = StoreOptions { durability: Durability::Sync, segment_bytes: 1 << 20, ..small() };
    let store = world.open(OpenMode::Create, &options).unwrap();
    put(&store, "orders", 0, b"fine", "k");
    let failing = AtomicBool::new(false);
    let (refused, accepted) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (store, vfs, failing, refused, accepted) = (&store, &vfs, &failing, &refused, &accepted);
            scope.spawn(move || {
                for number in 0..50 {
                    if thread == 0 && number == 25 {
                        failing.store(true, Ordering::SeqCst);
                        vfs.inject(Fault::nth(1).on(&[OperationKind::Write, OperationKind::Sync]).sticky());
                    }
                    match store.append(&plain("orders", &numbered(thread, number))) {
                        Ok(done) => {
                            assert!(done.durable);
                            accepted.fetch_add(1, Ordering::SeqCst);
                        }
                        Err(StoreError::Poisoned { .. }) => {
                            assert!(failing.load(Ordering::SeqCst));
                            refused.fetch_add(1, Ordering::SeqCst);
                        }
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
    });
    assert!(refused.into_inner() > 0);
    assert!(store.flush().is_err());
    let crashed = world.on(Arc::new({
        vfs.clear_faults();
        vfs.crash(1).unwrap()
    }));
    let again = crashed.open(OpenMode::ReadWrite, &options).unwrap();
    assert!(read_all(&again, "orders", 0).len() as u64 > accepted.into_inner());
}

#[test]
fn appends_wait_for_dispatch_when_it_is_eight_segments_behind() {
    let (world, ..) = World::simulated();
    let options = StoreOptions { durability: Durability::Manual, segment_bytes: 4096, ..small() };
    let store = world.open(OpenMode::Create, &options).unwrap();
    let body = vec![b'x'; 3000];
    for _ in 0..30 {
        store.append(&plain("orders", &body)).unwrap();
    }
    let stats = store.stats().unwrap();
    assert!(stats.durable_offset + 10 * 4096 > stats.log_max_offset, "{stats:?}");
}

#[test]
fn the_background_syncs_queues_that_are_four_segments_behind() {
    let (world, ..) = World::simulated();
    let options = StoreOptions { durability: Durability::Async, segment_bytes: 4096, ..small() };
    let store = world.open(OpenMode::Create, &options).unwrap();
    let dispatched = || store.engine("ask").unwrap().flusher.dispatched();
    let body = vec![b'x'; 3000];
    let mut reached = Vec::new();
    for _ in 0..12 {
        store.append(&plain("orders", &body)).unwrap();
        store.step().unwrap();
        reached.push(dispatched() / 4096);
    }
    // No thread waits for the time of a thorough step, and no append has to sync by itself.
    let behind = reached.iter().enumerate().map(|(last, reached)| last as u64 - reached);
    assert!(behind.clone().all(|segments| segments <= 4), "{reached:?}");
    assert!(behind.max() >= Some(3), "each step synced everything: {reached:?}");
}

#[test]
fn a_clock_that_was_set_back_does_not_delay_the_background_flush() {
    let (world, _, clock) = World::simulated();
    let options = StoreOptions { durability: Durability::Async, flush_least_pages: 4, ..small() };
    let store = world.open(OpenMode::Create, &options).unwrap();
    let begin_ms = world.clock.now_ms();
    for (step, back_ms) in [0, 1_000, 21 * 86_400_000].into_iter().enumerate() {
        clock.set(begin_ms - back_ms);
        store.append(&plain("orders", b"less than the pages of a sync")).unwrap();
        // The interval of a thorough flush, by the clock of intervals.
        for _ in 0..2 {
            store.step().unwrap();
            clock.advance(std::time::Duration::from_millis(options.flush_thorough_interval_ms));
        }
        store.step().unwrap();
        let stats = store.stats().unwrap();
        assert_eq!(stats.durable_offset, stats.log_max_offset, "step {step}: back by {back_ms} ms");
    }
}

#[test]
fn only_the_segments_in_use_are_mapped() {
    let (world, ..) = World::simulated();
    let off = PreallocateOptions { enabled: false, window_bytes: 0, prewrite: false, lock_memory: false };
    let log = log(&world, None, off);
    let body = vec![b'b'; 400_000];
    for _ in 0..40 {
        log.wait_durable(append_raw(&log, &body)).unwrap();
    }
    let segments = log.list().segments().to_vec();
    assert!(segments.len() >= 20);
    assert!(segments.iter().filter(|segment| segment.is_mapped()).count() <= 2);
}
