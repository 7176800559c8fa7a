//! Recovers twice, and interrupts recovery.

use mqstore::io::sim::{OperationKind, SimVfs};
use mqstore::options::OpenMode;
use mqstore_tests::{Simulated, log_order};

use crate::{SEGMENT, lasting, messages, options, put, same_files, segment, side, stopped, tree, written};

/// Disks after a power loss: some messages are synced, some are not.
fn crashed(seeds: std::ops::Range<u64>) -> impl Iterator<Item = (u64, Simulated)> {
    let (world, store) = written(options(), 60, 25);
    seeds.map(move |seed| {
        let _ = &store;
        (seed, world.on(world.vfs.crash(seed).unwrap()))
    })
}

/// Opens for writing, then dies. Returns the disk.
fn recovered(world: &Simulated) -> Simulated {
    let store = world.open(OpenMode::ReadWrite).unwrap();
    let after = world.on(world.vfs.kill().unwrap());
    drop(store);
    after
}

#[test]
fn recovering_twice_changes_no_byte() {
    for (seed, world) in crashed(0..60) {
        let once = recovered(&world);
        // The next store that opens this disk also closes it, and then writes the files for brokers.
        let first = lasting(&once.vfs);
        let twice = recovered(&once);
        same_files(&first, &lasting(&twice.vfs), &format!("seed {seed}"));
        let lost =
            |vfs: &SimVfs| tree(vfs).into_keys().filter(|path| path.starts_with(side("lost+found"))).count();
        assert_eq!(lost(&once.vfs), lost(&twice.vfs), "nothing more is cut, seed {seed}");
    }
}

/// The bytes of the segment after the end of the log.
fn behind_the_end(vfs: &SimVfs, end: u64) -> Vec<u8> {
    let tree = tree(vfs);
    let bytes = tree.get(&segment(end / SEGMENT)).cloned().unwrap_or_default();
    bytes.get((end % SEGMENT) as usize..).unwrap_or_default().to_vec()
}

#[test]
fn what_recovery_shows_survives_a_loss_of_power_at_once() {
    for (seed, world) in crashed(0..60) {
        let store = world.open(OpenMode::ReadWrite).unwrap();
        let shown = log_order(&store).unwrap();
        let end = store.stats().unwrap().log_max_offset;
        assert!(shown.len() >= 25 && messages(60).starts_with(&shown), "seed {seed}");
        let lost = world.on(world.vfs.crash_with(&mut |_| false).unwrap());
        assert!(behind_the_end(&lost.vfs, end).iter().all(|byte| *byte == 0), "seed {seed}");
        assert_eq!(log_order(&lost.open(OpenMode::ReadWrite).unwrap()).unwrap(), shown, "seed {seed}");
        // Append the first record after it and lose power again: nothing of the old tail comes back.
        put(&store, 60, 61);
        let lost = world.on(world.vfs.crash(seed).unwrap());
        let found = log_order(&lost.open(OpenMode::ReadWrite).unwrap()).unwrap();
        assert!(found.len() <= shown.len() + 1, "seed {seed}");
        assert_eq!(found.iter().take(shown.len()).collect::<Vec<_>>(), shown.iter().collect::<Vec<_>>());
        assert_eq!(world.vfs.violations(), Vec::<String>::new());
    }
}

#[test]
fn a_stop_anywhere_in_recovery_changes_nothing() {
    let mut states = 0;
    for (seed, world) in crashed(0..6) {
        let wanted = log_order(&recovered(&world).open(OpenMode::Read).unwrap()).unwrap();
        let trial = world.on(world.vfs.kill().unwrap());
        let before = trial.vfs.operations();
        let store = trial.open(OpenMode::ReadWrite).unwrap();
        let trace = trial.vfs.trace();
        drop(store);
        let changes: Vec<u64> = trace
            .iter()
            .filter(|one| one.number > before && one.kind.changes())
            .map(|one| one.number - before)
            .collect();
        for change in changes {
            let run = world.on(world.vfs.kill().unwrap());
            run.vfs.freeze_at(run.vfs.operations() + change);
            let store = run.open(OpenMode::ReadWrite).unwrap();
            let frozen = run.vfs.take_frozen().unwrap();
            drop(store);
            for after in
                [frozen.kill().unwrap(), frozen.crash(change).unwrap(), frozen.crash(change + 1).unwrap()]
            {
                let again = world.on(after);
                let found = log_order(&again.open(OpenMode::ReadWrite).unwrap()).unwrap();
                assert_eq!(found, wanted, "seed {seed}, before change {change}");
                states += 1;
            }
        }
    }
    assert!(states > 300, "{states} states");
}

#[test]
fn every_error_in_recovery_leaves_a_store_that_recovers() {
    let (_, world) = crashed(3..4).next().unwrap();
    let wanted = log_order(&recovered(&world).open(OpenMode::Read).unwrap()).unwrap();
    let mut failures = 0;
    for nth in 1.. {
        let run = world.on(world.vfs.kill().unwrap());
        run.vfs.inject(mqstore::io::sim::Fault::nth(nth));
        let outcome = run.open(OpenMode::ReadWrite);
        let fired = run.vfs.faults_fired() > 0;
        if let Err(error) = &outcome {
            failures += 1;
            assert!(!error.to_string().is_empty());
        }
        drop(outcome);
        for again in [run.vfs.kill().unwrap(), run.vfs.crash(nth).unwrap()] {
            let again = world.on(again);
            assert_eq!(log_order(&again.open(OpenMode::ReadWrite).unwrap()).unwrap(), wanted, "call {nth}");
        }
        if !fired {
            break;
        }
    }
    assert!(failures > 20, "{failures}");
}

#[test]
fn a_tail_that_was_zeroed_and_not_synced_is_synced_by_the_next() {
    // Take a disk with a tail to truncate. A kill stops recovery right after it wrote the zeros.
    for (_, world) in crashed(0..20) {
        let trial = world.on(world.vfs.kill().unwrap());
        let before = trial.vfs.operations();
        let store = trial.open(OpenMode::ReadWrite).unwrap();
        let trace = trial.vfs.trace();
        drop(store);
        let in_log = |path: &std::path::Path| path.starts_with(segment(0).parent().unwrap());
        let Some(zeroing) = trace
            .iter()
            .rev()
            .find(|one| one.number > before && one.kind == OperationKind::Write && in_log(&one.path))
        else {
            continue;
        };
        let run = world.on(world.vfs.kill().unwrap());
        run.vfs.freeze_at(run.vfs.operations() + (zeroing.number - before) + 1);
        drop(run.open(OpenMode::ReadWrite).unwrap());
        let again = world.on(run.vfs.take_frozen().unwrap().kill().unwrap());
        let store = again.open(OpenMode::ReadWrite).unwrap();
        let end = store.stats().unwrap().log_max_offset;
        let lost = again.vfs.crash_with(&mut |_| false).unwrap();
        assert!(behind_the_end(&lost, end).iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_clean_close_is_left_alone() {
    let (world, store) = written(options(), 40, 20);
    let world = stopped(world, store, true);
    let before = lasting(&world.vfs);
    let store = world.open(OpenMode::ReadWrite).unwrap();
    assert_eq!(store.notes(), Vec::<String>::new());
    store.close().unwrap();
    same_files(&lasting(&world.vfs), &before, "after an open and a close");
}
