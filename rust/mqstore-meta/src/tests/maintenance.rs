//! Syncs that no caller waits for.

use std::time::{Duration, Instant};

use mqstore_io::SimVfs;
use mqstore_io::sync::{AtomicBool, Ordering};

use super::{commit, files_on, open};

#[test]
fn a_sync_that_is_asked_for_makes_the_next_step_come_sooner() {
    let vfs = SimVfs::default();
    let log = open(&files_on(&vfs));
    commit(&log, "g", "orders", 0, 5);
    assert!(log.is_dirty());
    let stop = AtomicBool::new(false);
    let (log, stop) = (&log, &stop);
    std::thread::scope(|scope| {
        let began = Instant::now();
        let rests = scope.spawn(move || {
            log.wait_until_due(3_600_000, || stop.load(Ordering::Acquire));
            began.elapsed()
        });
        std::thread::sleep(Duration::from_millis(20));
        log.sync_within(log.place(), 0);
        assert!(rests.join().unwrap() < Duration::from_secs(60));
    });
    log.step(1_700_000_000_000).unwrap();
    assert!(!log.is_dirty());
    // A durable position requests no sync, and a step clears the request.
    log.sync_within(log.place(), 0);
    std::thread::scope(|scope| {
        let rests = scope.spawn(move || log.wait_until_due(3_600_000, || stop.load(Ordering::Acquire)));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!rests.is_finished());
        stop.store(true, Ordering::Release);
        log.wake();
        rests.join().unwrap();
    });
}
