//! Calls that wait, and the events that wake them. On the real file system, with threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use super::*;
use crate::testing::DiskStore;

/// So long that a test that needs it has missed a wake-up.
const LONG: Option<Duration> = Some(Duration::from_secs(60));

fn short(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn a_put_wakes_one_who_waits() {
    let real = DiskStore::new();
    real.store.create_topic("jobs", 4, &[]).unwrap();
    let queue = work(&real.broker());
    thread::scope(|scope| {
        let waits: Vec<_> = (0..8).map(|_| scope.spawn(|| queue.get(LONG).unwrap())).collect();
        thread::sleep(short(20));
        let begun = Instant::now();
        for number in 0..8 {
            put_work(&queue, &number.to_string());
        }
        let mut all: Vec<_> = waits.into_iter().map(|wait| body(&wait.join().unwrap())).collect();
        all.sort();
        assert_eq!(all, ["0", "1", "2", "3", "4", "5", "6", "7"]);
        assert!(begun.elapsed() < seconds(10));
    });
    let begun = Instant::now();
    assert!(matches!(queue.get(Some(short(120))), Err(BrokerError::Empty { .. })));
    assert!((short(120)..seconds(10)).contains(&begun.elapsed()));
}

#[test]
fn what_becomes_due_wakes() {
    let real = DiskStore::new();
    let broker = real.broker();
    let options = WorkQueueOptions { visibility_timeout: short(150), ..options() };
    let queue = broker.work_queue("jobs", "workers", options).unwrap();
    let begun = Instant::now();
    put_work(&queue, "a");
    get(&queue).unwrap();
    // The lease ends.
    let second = queue.get(LONG).unwrap();
    assert_eq!(second.lease.attempt(), 2);
    // The wall clock has whole milliseconds: a lease may have started within one.
    assert!(begun.elapsed() >= short(149));
    second.lease.extend(seconds(60)).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| queue.get(LONG).unwrap());
        thread::sleep(short(20));
        // A return while a caller waits, due earlier than that caller expects.
        let begun = Instant::now();
        second.lease.nack(Some(short(40))).unwrap();
        assert_eq!(waits.join().unwrap().lease.attempt(), 3);
        assert!((short(39)..seconds(10)).contains(&begun.elapsed()));
    });
    let begun = Instant::now();
    queue.put(&NewWork { body: b"late", delay: Some(short(60)), ..NewWork::default() }, NOW).unwrap();
    let late = loop {
        let message = queue.get(LONG).unwrap();
        if body(&message) == "late" {
            break message;
        }
    };
    assert_eq!(late.lease.attempt(), 1);
    assert!(begun.elapsed() >= short(59));
}

#[test]
fn room_wakes_who_puts() {
    let real = DiskStore::new();
    let broker = real.broker();
    let options = WorkQueueOptions { maxsize: 3, ..options() };
    let queue = broker.work_queue("jobs", "workers", options).unwrap();
    let most = AtomicUsize::new(0);
    thread::scope(|scope| {
        for producer in 0..3 {
            let queue = &queue;
            scope.spawn(move || {
                for number in 0..40 {
                    let body = format!("{producer}-{number}");
                    queue.put(&NewWork { body: body.as_bytes(), ..NewWork::default() }, LONG).unwrap();
                }
            });
        }
        for _ in 0..120 {
            most.fetch_max(queue.qsize().unwrap() as usize, Ordering::SeqCst);
            queue.get(LONG).unwrap().lease.ack(false).unwrap();
        }
    });
    assert!((1..=3).contains(&most.load(Ordering::SeqCst)));
    assert!(queue.join(NOW).unwrap());
}

#[test]
fn the_last_one_to_finish_wakes_who_joins() {
    let real = DiskStore::new();
    let queue = work(&real.broker());
    for number in 0..200 {
        put_work(&queue, &number.to_string());
    }
    thread::scope(|scope| {
        let joins = scope.spawn(|| queue.join(LONG).unwrap());
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(message) = get(&queue) {
                    assert!(!body(&message).is_empty());
                    queue.task_done().unwrap();
                }
            });
        }
        assert!(joins.join().unwrap());
    });
    let begun = Instant::now();
    put_work(&queue, "left");
    assert!(!queue.join(Some(short(80))).unwrap());
    assert!((short(80)..seconds(10)).contains(&begun.elapsed()));
}

#[test]
fn shutdown_close_and_the_end_of_the_store_wake() {
    let real = DiskStore::new();
    let broker = real.broker();
    let options = WorkQueueOptions { maxsize: 1, ..options() };
    for how in ["shutdown", "at once", "close", "store"] {
        let queue = broker.work_queue("jobs", how.split(' ').next().unwrap(), options.clone()).unwrap();
        let full = broker.work_queue("full", how.split(' ').next().unwrap(), options.clone()).unwrap();
        if full.qsize().unwrap() == 0 {
            put_work(&full, "x");
        }
        thread::scope(|scope| {
            let gets = scope.spawn(|| queue.get(LONG).map(drop));
            let puts = scope.spawn(|| full.put(&NewWork::default(), LONG).map(drop));
            thread::sleep(short(20));
            for one in [&queue, &full] {
                match how {
                    "shutdown" => one.shutdown(false),
                    "at once" => one.shutdown(true),
                    "close" => one.close(),
                    _ => real.store.close().unwrap(),
                }
            }
            for outcome in [gets.join().unwrap(), puts.join().unwrap()] {
                let error = outcome.unwrap_err();
                if how == "store" {
                    assert!(matches!(error, BrokerError::Store(StoreError::Closed { .. })), "{error}");
                } else {
                    assert!(matches!(error, BrokerError::ShutDown { .. }), "{how}: {error}");
                }
            }
        });
    }
}

#[test]
fn workers_share_the_work() {
    const MESSAGES: usize = 5000;
    let real = DiskStore::new();
    real.store.create_topic("jobs", 2, &[]).unwrap();
    let broker = real.broker();
    let handles: Vec<_> = (0..3).map(|_| work(&broker)).collect();
    let done = AtomicUsize::new(0);
    let seen = mqstore_io::sync::Mutex::new(vec![0_u32; MESSAGES]);
    thread::scope(|scope| {
        for turn in 0..6 {
            let (queue, done, seen) = (&handles[turn % 3], &done, &seen);
            scope.spawn(move || {
                while done.load(Ordering::SeqCst) < MESSAGES {
                    for message in queue.get_many(1 + turn, Some(short(20))).unwrap() {
                        seen.lock()[body(&message).parse::<usize>().unwrap()] += 1;
                        // Some are returned once.
                        if message.lease.attempt() == 1 && message.queue_offset % 7 == 0 {
                            message.lease.nack(Some(Duration::ZERO)).unwrap();
                            continue;
                        }
                        message.lease.ack(false).unwrap();
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
        for number in 0..MESSAGES {
            put_work(&handles[0], &number.to_string());
        }
    });
    let seen = seen.lock();
    assert!(seen.iter().all(|count| (1..=2).contains(count)));
    assert!(seen.iter().filter(|count| **count == 2).count() > MESSAGES / 10);
    assert!(handles[0].join(NOW).unwrap());
}
