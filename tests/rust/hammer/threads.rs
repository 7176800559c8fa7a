//! Runs appenders, readers and a flusher on one store at the same time.
//!
//! While they run, the test checks:
//!
//! * A reader gets complete messages, in order, without a gap. Each of them was acknowledged or is about to
//!   be.
//! * The end of a queue or of the log never moves back.
//! * A read that begins after an append returned sees that message.
//!
//! `MQSTORE_HAMMER_MESSAGES` makes the test small enough for valgrind, which runs one thread at a time and
//! about fifty times slower.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use mqstore::Store;
use mqstore::options::{Durability, OpenMode};

use super::{Chance, QUEUES, TOPIC, append, checked, open, soak};

const APPENDERS: u64 = 3;

fn messages_each() -> u64 {
    match std::env::var("MQSTORE_HAMMER_MESSAGES") {
        Ok(text) => text.parse().unwrap(),
        Err(_) if soak() => 100_000,
        Err(_) => 4_000,
    }
}

#[test]
fn threads_async() {
    hammer(Durability::Async, messages_each());
}

#[test]
fn threads_sync() {
    hammer(Durability::Sync, messages_each() / 4);
}

#[test]
fn threads_pooled() {
    hammer(Durability::Pooled, messages_each());
}

fn hammer(durability: Durability, each: u64) {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("store");
    let store = open(&home, OpenMode::Create, durability).unwrap();
    store.create_topic(TOPIC, QUEUES, &[]).unwrap();
    let acknowledged: Vec<AtomicU64> = (0..APPENDERS).map(|_| AtomicU64::new(0)).collect();
    let done = AtomicBool::new(false);
    let (store_ref, acknowledged, done) = (&store, acknowledged.as_slice(), &done);
    let (in_queues, in_log, looked_up) = thread::scope(|scope| {
        let appenders: Vec<_> = (0..APPENDERS)
            .zip(acknowledged)
            .map(|(number, mine)| scope.spawn(move || append_all(store_ref, number, each, mine)))
            .collect();
        let queues = scope.spawn(move || read_queues(store_ref, acknowledged, done));
        let log = scope.spawn(move || walk_log(store_ref, done));
        let keys = scope.spawn(move || look_up(store_ref, done));
        let flusher = scope.spawn(move || {
            while !done.load(Ordering::SeqCst) {
                let covered = store_ref.stats().unwrap().log_max_offset;
                store_ref.flush().unwrap();
                let after = store_ref.stats().unwrap();
                assert!(
                    after.durable_offset >= covered,
                    "a flush that covers too little: {covered} was readable before; {after:?}"
                );
                thread::yield_now();
            }
        });
        for appender in appenders {
            appender.join().unwrap();
        }
        done.store(true, Ordering::SeqCst);
        flusher.join().unwrap();
        (queues.join().unwrap(), log.join().unwrap(), keys.join().unwrap())
    });
    println!("{durability:?}: {in_queues} read by queue, {in_log} in the log, {looked_up} by key");
    assert_eq!(in_queues, APPENDERS * each);
    assert_eq!(in_log, APPENDERS * each);
    assert!(looked_up > 0);
    store.close().unwrap();
    let again = open(&home, OpenMode::Read, durability).unwrap();
    let ends: i64 = again.queues(TOPIC).unwrap().iter().map(|queue| queue.max_offset).sum();
    assert_eq!(u64::try_from(ends).unwrap(), APPENDERS * each);
}

/// Appends `each` messages, numbered from 1. `mine` holds the last acknowledged number.
fn append_all(store: &Store, thread: u64, each: u64, mine: &AtomicU64) {
    let mut chance = Chance(thread + 1);
    let mut next = 1;
    while next <= each {
        let count = if chance.below(10) == 0 { 1 + chance.below(10) } else { 1 };
        let end = (next + count).min(each + 1);
        append(store, thread, next..end, chance.below(50) == 0).unwrap();
        mine.store(end - 1, Ordering::SeqCst);
        next = end;
    }
}

/// Reads all queues to their ends until all messages are appended. Returns the number of messages.
fn read_queues(store: &Store, acknowledged: &[AtomicU64], done: &AtomicBool) -> u64 {
    let mut next = [0_i64; QUEUES as usize];
    let mut newest: HashMap<(usize, u64), u64> = HashMap::new();
    let mut count = 0;
    loop {
        let last_round = done.load(Ordering::SeqCst);
        let before: Vec<u64> = acknowledged.iter().map(|each| each.load(Ordering::SeqCst)).collect();
        for (queue, next) in next.iter_mut().enumerate() {
            let mut cursor =
                store.read(TOPIC, i32::try_from(queue).unwrap(), Some(*next), None, None).unwrap();
            loop {
                let batch = cursor.next_batch(64).unwrap();
                if batch.is_empty() {
                    break;
                }
                for record in batch {
                    assert_eq!(record.queue_offset, *next, "queue {queue} has a hole");
                    *next += 1;
                    count += 1;
                    let (thread, number) = checked(record.view().unwrap().body);
                    let last = newest.insert((queue, thread), number);
                    assert!(last.is_none_or(|last| last < number), "the order of thread {thread}");
                }
            }
        }
        for (thread, acknowledged) in (0..).zip(before) {
            let seen = (0..QUEUES as usize).filter_map(|queue| newest.get(&(queue, thread))).max();
            let seen = seen.copied().unwrap_or(0);
            assert!(seen >= acknowledged, "thread {thread}: {acknowledged} acknowledged, {seen} read");
        }
        if last_round {
            return count;
        }
        thread::yield_now();
    }
}

/// Reads the log from the place where the last walk ended.
fn walk_log(store: &Store, done: &AtomicBool) -> u64 {
    let mut from = 0;
    let mut count = 0;
    loop {
        let last_round = done.load(Ordering::SeqCst);
        let mut cursor = store.log().scan(Some(from)).unwrap();
        loop {
            let batch = cursor.next_batch(64).unwrap();
            if batch.is_empty() {
                break;
            }
            for record in batch {
                let view = record.view().unwrap();
                let at = u64::try_from(view.physical_offset).unwrap();
                assert!(at >= from, "the log goes back");
                checked(view.body);
                from = at + u64::from(view.size);
                count += 1;
            }
        }
        if last_round {
            return count;
        }
        thread::yield_now();
    }
}

/// Looks keys up, the oldest first.
fn look_up(store: &Store, done: &AtomicBool) -> u64 {
    let mut chance = Chance(99);
    let mut count = 0;
    loop {
        let last_round = done.load(Ordering::SeqCst);
        let key = chance.below(50);
        let mut cursor = store.lookup(TOPIC, &format!("k{key}"), None, None, Some(200)).unwrap();
        for record in cursor.next_batch(200).unwrap() {
            let (_, number) = checked(record.view().unwrap().body);
            assert_eq!(number % 50, key);
            count += 1;
        }
        if last_round {
            return count;
        }
        thread::yield_now();
    }
}
