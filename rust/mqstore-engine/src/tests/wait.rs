//! Waits for messages, and the events that end them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::store::OpenSide;
use crate::testing::*;

#[test]
fn who_waits_is_woken_by_its_own_queue() {
    let world = World::real();
    let store = world.open(OpenMode::Create, &StoreOptions { dispatch_threads: Some(1), ..small() }).unwrap();
    for topic in ["a", "b"] {
        store.create_topic(topic, 1, &[]).unwrap();
    }
    std::thread::scope(|scope| {
        let wait = |topic| {
            let store = &store;
            scope.spawn(move || store.wait(topic, 0, 0, Duration::from_secs(60)))
        };
        let (first, never, later) = (wait("a"), wait("b"), wait("later"));
        put(&store, "a", 0, b"here", "k");
        assert!(first.join().unwrap().unwrap());
        put(&store, "later", 0, b"here", "k");
        assert!(later.join().unwrap().unwrap());
        assert!(!never.is_finished());
        store.close().unwrap();
        assert!(matches!(never.join().unwrap(), Err(StoreError::Closed { .. })));
    });
}

#[test]
fn waits_without_a_thread_are_called_once_and_only_for_their_message() {
    for threads in [0, 1, 2] {
        let world = World::real();
        let options = StoreOptions { dispatch_threads: Some(threads), ..small() };
        let store = world.open(OpenMode::Create, &options).unwrap();
        store.create_topic("a", 100, &[]).unwrap();
        let calls: Vec<_> = (0..100).map(|_| Arc::new(AtomicU64::new(0))).collect();
        let wait = |queue: usize, offset| {
            let called = Arc::clone(&calls[queue]);
            store
                .wait_with("a", queue as i32, offset, move || _ = called.fetch_add(1, Ordering::SeqCst))
                .unwrap()
        };
        let waiters: Vec<_> = (0..10_000).map(|n| wait(n % 100, (n / 100) as i64)).collect();
        assert!(waiters.iter().all(|waiter| !waiter.is_over()));
        for _ in 0..3 {
            put(&store, "a", 7, b"here", "k");
        }
        // The statistics wait until the queues are built.
        store.stats().unwrap();
        let counts = || calls.iter().map(|count| count.load(Ordering::SeqCst)).collect::<Vec<_>>();
        let expected: Vec<u64> = (0..100).map(|queue| if queue == 7 { 3 } else { 0 }).collect();
        assert_eq!(counts(), expected, "{threads} threads");
        assert!(wait(7, 2).is_over());
        drop(waiters);
        store.close().unwrap();
        assert_eq!(counts(), expected, "a dropped waiter is not called");
    }
}

#[test]
fn a_close_and_a_failure_call_all_who_wait() {
    for fails in [false, true] {
        let world = World::real();
        let store = world.open(OpenMode::Create, &small()).unwrap();
        store.create_topic("a", 4, &[]).unwrap();
        let called = Arc::new(AtomicU64::new(0));
        let waiters: Vec<_> = (0..1000)
            .map(|n| {
                let called = Arc::clone(&called);
                store.wait_with("a", n % 4, 0, move || _ = called.fetch_add(1, Ordering::SeqCst)).unwrap()
            })
            .collect();
        if fails {
            let OpenSide::Writer(writer, _) = &store.inner.side else { panic!("opened for writing") };
            let _ = writer.engine.log.poison("a test", "it says so");
            for _ in 0..1000 {
                if called.load(Ordering::SeqCst) == 1000 {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            assert!(store.wait_with("a", 0, 0, || ()).is_err());
        } else {
            store.close().unwrap();
            assert!(matches!(store.wait_with("a", 0, 0, || ()), Err(StoreError::Closed { .. })));
        }
        assert_eq!(called.load(Ordering::SeqCst), 1000, "fails: {fails}");
        drop(waiters);
    }
}

#[test]
fn who_waits_without_a_thread_needs_a_writer_and_a_queue() {
    let world = World::real();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    put(&store, "a", 0, b"here", "k");
    let missing = store.wait_with("b", 0, 0, || ());
    assert!(matches!(missing, Err(StoreError::TopicNotFound { queue_id: Some(0), .. })));
    let beside = world.open(OpenMode::Read, &small()).unwrap();
    assert!(matches!(beside.wait_with("a", 0, 0, || ()), Err(StoreError::ReadOnly { .. })));
    store.close().unwrap();
}
