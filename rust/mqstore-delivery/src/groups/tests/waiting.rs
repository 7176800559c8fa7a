//! Consumers that wait, and the events that wake them. On the real file system, with threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use super::*;
use crate::testing::DiskStore;

/// So long that a test that needs it has missed a wake-up.
const LONG: Option<Duration> = Some(Duration::from_secs(60));

#[test]
fn a_message_in_any_queue_wakes() {
    let real = DiskStore::new();
    let broker = real.broker();
    real.store.create_topic("t", 16, &[]).unwrap();
    let consumer = consumer(&broker, "g", "t");
    for queue_id in [0, 9, 15, 3] {
        thread::scope(|scope| {
            let waits = scope.spawn(|| consumer.poll(10, LONG).unwrap());
            thread::sleep(Duration::from_millis(20));
            put(&real.store, "t", queue_id, "here", "T");
            let found = waits.join().unwrap();
            assert_eq!(found[0].view().unwrap().queue_id, queue_id);
        });
    }
    let begun = Instant::now();
    assert!(consumer.poll(1, Some(Duration::from_millis(150))).unwrap().is_empty());
    assert!((Duration::from_millis(150)..Duration::from_secs(10)).contains(&begun.elapsed()));
}

#[test]
fn a_topic_that_is_made_wakes() {
    let real = DiskStore::new();
    let consumer = consumer(&real.broker(), "g", "t");
    thread::scope(|scope| {
        let waits = scope.spawn(|| consumer.poll(10, LONG).unwrap());
        thread::sleep(Duration::from_millis(20));
        put(&real.store, "t", 0, "here", "T");
        assert_eq!(bodies(&waits.join().unwrap()), ["here"]);
    });
}

#[test]
fn a_queue_of_another_wakes() {
    let real = DiskStore::new();
    let broker = real.broker();
    fill(&real.store, "t", 1, 0..3);
    let (first, second) = (consumer(&broker, "g", "t"), consumer(&broker, "g", "t"));
    assert!(second.assignment().unwrap().is_empty());
    thread::scope(|scope| {
        let waits = scope.spawn(|| second.poll(10, LONG).unwrap());
        thread::sleep(Duration::from_millis(20));
        first.close();
        assert_eq!(waits.join().unwrap().len(), 3);
    });
}

#[test]
fn a_close_wakes() {
    let real = DiskStore::new();
    real.store.create_topic("t", 2, &[]).unwrap();
    let broker = real.broker();
    let (closed, left) = (consumer(&broker, "g", "t"), consumer(&broker, "h", "t"));
    let without = consumer(&broker, "i", "no-such-topic");
    thread::scope(|scope| {
        let first = scope.spawn(|| closed.poll(10, LONG));
        let others = [&left, &without].map(|consumer| scope.spawn(|| consumer.poll(10, LONG)));
        thread::sleep(Duration::from_millis(20));
        closed.close();
        assert!(matches!(first.join().unwrap(), Err(BrokerError::ConsumerClosed { .. })));
        real.store.close().unwrap();
        for other in others {
            let error = other.join().unwrap().unwrap_err();
            assert!(matches!(error, BrokerError::Store(StoreError::Closed { .. })), "{error}");
        }
    });
}

#[test]
fn threads_share_a_consumer_and_consumers_a_topic() {
    const MESSAGES: usize = 4000;
    let real = DiskStore::new();
    real.store.create_topic("t", 4, &[]).unwrap();
    let broker = real.broker();
    let consumers: Vec<_> = (0..3).map(|_| consumer(&broker, "g", "t")).collect();
    let got = AtomicUsize::new(0);
    let seen = mqstore_io::sync::Mutex::new(vec![0_u32; MESSAGES]);
    thread::scope(|scope| {
        for turn in 0..6 {
            let (consumer, got, seen) = (&consumers[turn % 3], &got, &seen);
            scope.spawn(move || {
                while got.load(Ordering::SeqCst) < MESSAGES {
                    for record in consumer.poll(7, Some(Duration::from_millis(20))).unwrap() {
                        seen.lock()[body(&record).parse::<usize>().unwrap()] += 1;
                        got.fetch_add(1, Ordering::SeqCst);
                    }
                    consumer.commit(false).unwrap();
                }
            });
        }
        fill(&real.store, "t", 4, 0..MESSAGES);
    });
    // No consumer joined or left, so each message went to exactly one of them.
    assert!(seen.lock().iter().all(|count| *count == 1));
    assert!(consumers.iter().all(|consumer| consumer.lag().unwrap().iter().all(|(_, lag)| *lag == 0)));
}
