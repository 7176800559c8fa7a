//! Tests of failing calls, full disks and power loss.

use mqstore_io::sim::{Fault, OperationKind, SimOptions};

use super::*;
use crate::consume_queue::context::{UnsyncedQueue, sync_each};

/// Writes three queues with several files and gaps, flushes in the middle and then calls `half_way`.
fn work(set: &QueueSet, half_way: &mut dyn FnMut()) -> Result<(), StoreError> {
    for round in 0..4_i64 {
        for id in 0..3 {
            let queue = set.get_or_create("orders", id)?;
            let first = round * 4 + i64::from(id) * 7;
            queue.write(first, &units(first..first + 3))?;
            queue.commit(first + 3)?;
        }
        if round == 1 {
            set.flush()?;
            half_way();
        }
    }
    set.flush()
}

fn expected() -> BTreeMap<String, Vec<u8>> {
    let sim = SimVfs::default();
    let files = sim_files(&sim);
    work(&open(&files, Access::ReadWrite), &mut || {}).unwrap();
    queue_tree(&files)
}

#[test]
fn after_any_failed_call_the_same_work_can_be_done_again() {
    let expected = expected();
    let (mut failed, mut nth) = (0, 1);
    loop {
        let sim = SimVfs::new(SimOptions { trace: true, ..SimOptions::default() });
        let files = sim_files(&sim);
        let set = open(&files, Access::ReadWrite);
        let opened = sim.operations();
        sim.inject(Fault::nth(nth));
        match work(&set, &mut || {}) {
            Ok(()) if sim.faults_fired() == 0 => break,
            Ok(()) => {}
            Err(error) => {
                assert!(matches!(error, StoreError::Io { .. }), "call {nth}: {error}");
                failed += 1;
            }
        }
        sim.clear_faults();
        work(&set, &mut || {}).unwrap();
        assert_eq!(queue_tree(&files), expected, "call {nth}");
        assert!(set.all().iter().all(|queue| !queue.is_dirty()));
        // Everything that a successful flush covers survives the power loss. After a failed sync of a file, the
        // contents of the device are unknown whatever a later sync returns, and the store is stopped.
        let hit = sim.trace().into_iter().find(|call| call.number == opened + nth).unwrap();
        if hit.kind != OperationKind::Sync {
            let after = sim_files(&sim.crash_with(&mut |_| false).unwrap());
            assert_eq!(queue_tree(&after), expected, "call {nth}");
        }
        assert!(sim.violations().is_empty());
        nth += 1;
    }
    assert!(failed > 50, "{failed} failures");
}

#[test]
fn a_full_disk_is_an_error_of_its_own() {
    let sim = SimVfs::default();
    let set = open(&sim_files(&sim), Access::ReadWrite);
    sim.inject(Fault::nth(1).on(&[OperationKind::Write]).no_space());
    let error = queue(&set).write(0, &units(0..1)).unwrap_err();
    assert!(matches!(error, StoreError::DiskFull { .. }), "{error}");
}

#[test]
fn a_failed_sync_stays_to_be_done() {
    let sim = SimVfs::default();
    let files = sim_files(&sim);
    let set = open(&files, Access::ReadWrite);
    for id in 0..3 {
        put(&set.get_or_create("orders", id).unwrap(), 0, &units(0..7));
    }
    sim.inject(Fault::nth(2).on(&[OperationKind::Sync]));
    assert!(set.flush().is_err());
    assert!(set.all().iter().any(|queue| queue.is_dirty()));
    sim.clear_faults();
    let before = sim.operations();
    set.flush().unwrap();
    assert!(sim.operations() > before);
    assert!(set.all().iter().all(|queue| !queue.is_dirty()));
    // Nothing is left to sync.
    let before = sim.operations();
    set.flush().unwrap();
    assert_eq!(sim.operations(), before);
}

#[test]
fn whatever_a_power_loss_leaves_is_made_whole_from_the_log() {
    let expected = expected();
    let mut states = 0;
    for seed in 0..40 {
        for stop in (1..400).step_by(7) {
            let sim = SimVfs::default();
            let files = sim_files(&sim);
            let set = open(&files, Access::ReadWrite);
            let stop = sim.operations() + stop;
            sim.freeze_at(stop);
            let mut flushed = false;
            work(&set, &mut || flushed = sim.operations() < stop).unwrap();
            let Some(frozen) = sim.take_frozen() else { break };
            let crashed = frozen.crash(seed * 1000 + stop).unwrap();
            let files = sim_files(&crashed);
            let set = open(&files, Access::ReadWrite);
            for queue in set.all() {
                // As in recovery: truncate where dispatch starts again, and rebuild damaged queues.
                let dispatched = if flushed { 700 + 700 * queue.queue_id() as u64 } else { 0 };
                queue.truncate(dispatched).unwrap();
                if queue.damaged().is_some() {
                    set.set_aside(queue.topic(), queue.queue_id()).unwrap();
                }
            }
            work(&set, &mut || {}).unwrap();
            assert_eq!(queue_tree(&files), expected, "seed {seed}, stopped at {stop}");
            let reopened = open(&files, Access::Read);
            for (left, right) in set.all().iter().zip(reopened.all()) {
                assert_eq!(bounds(left), bounds(&right), "seed {seed}, stopped at {stop}");
                assert_eq!(right.damaged(), None);
            }
            states += 1;
        }
    }
    assert!(states > 200, "{states} states");
}

#[test]
fn a_failed_sync_comes_before_a_file_that_could_not_be_opened() {
    const EIO: i32 = 5;
    const EMFILE: i32 = 24;
    let fail =
        |number| Err(StoreError::io(Path::new("q"), "syncing", std::io::Error::from_raw_os_error(number)));
    for helpers in [0, 2] {
        let items: Vec<u32> = (0..200).collect();
        let synced = sync_each(helpers, &items, |item| match item {
            0 | 199 => fail(EMFILE),
            150 => fail(EIO),
            _ => Ok(()),
        });
        assert!(
            synced.is_err_and(|error| !error.is_out_of_files()),
            "a repetition would hide the failed sync"
        );
        let synced = sync_each(helpers, &items, |item| if *item == 3 { fail(EMFILE) } else { Ok(()) });
        assert!(synced.is_err_and(|error| error.is_out_of_files()));
        sync_each(helpers, &items, |_| Ok(())).unwrap();
    }
}
