//! Recovery modes, reports of damage, and an interrupt by the user.

use mqstore::error::StoreError;
use mqstore::options::{OpenMode, RecoveryMode, StoreOptions};
use mqstore::store::RecoveryStage;
use mqstore_tests::log_order;

use crate::{
    lasting, messages, options, put, readable, same_files, segment, stopped, tree, undamaged, written,
};

fn damaged(mode: RecoveryMode) -> mqstore_tests::Simulated {
    let (world, store) = written(StoreOptions { recovery: mode, ..options() }, 60, 60);
    let world = stopped(world, store, true);
    // Without the files of mqstore, an open checks the whole log and finds the damage.
    mqstore::io::Vfs::remove_dir_all(&world.vfs, &crate::side("")).unwrap();
    world.vfs.flip(&segment(1), 300, 4).unwrap();
    world
}

#[test]
fn strict_refuses_and_says_what_can_be_done() {
    let world = damaged(RecoveryMode::Strict);
    let before = tree(&world.vfs);
    let Err(StoreError::Corrupt { path, reason, .. }) = world.open(OpenMode::ReadWrite) else {
        panic!("it was opened")
    };
    assert_eq!(path, segment(1));
    assert!(reason.contains("salvage") && reason.contains("mode \"r\""), "{reason}");
    same_files(&tree(&world.vfs), &before, "nothing may change");
}

#[test]
fn salvage_goes_on_behind_the_damage() {
    let world = damaged(RecoveryMode::Salvage);
    let before = world.vfs.kill().unwrap();
    let store = world.open(OpenMode::ReadWrite).unwrap();
    assert_eq!(store.mode(), OpenMode::ReadWrite);
    assert!(store.notes().iter().any(|note| note.contains("skipped")), "{:?}", store.notes());
    let found = log_order(&store).unwrap();
    assert_eq!(found.len(), 59);
    let (mut queue, mut other) = (undamaged(&store, 0), undamaged(&store, 1));
    assert_eq!(queue.len() + other.len(), 59);
    // No other message gets the offset of the damaged message.
    queue.append(&mut other);
    assert_eq!(queue.into_iter().max(), Some(29));
    put(&store, 60, 80);
    assert_eq!(log_order(&store).unwrap().len(), 79);
    store.close().unwrap();
    // All earlier bytes still exist, the damaged ones included.
    let (old, new) = (tree(&before), tree(&world.vfs));
    for (path, bytes) in old.iter().filter(|(path, _)| path.starts_with(segment(0).parent().unwrap())) {
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        assert_eq!(new[path][..used], bytes[..used], "{}", path.display());
    }
    assert_eq!(readable(&world).unwrap().len(), 79);
    let again = world.open(OpenMode::ReadWrite).unwrap();
    assert_eq!(log_order(&again).unwrap().len(), 79);
}

#[test]
fn salvage_goes_around_a_missing_segment() {
    let (world, store) = written(StoreOptions { recovery: RecoveryMode::Salvage, ..options() }, 80, 80);
    let world = stopped(world, store, true);
    mqstore::io::Vfs::remove_file(&world.vfs, &segment(1)).unwrap();
    let store = world.open(OpenMode::ReadWrite).unwrap();
    let found = log_order(&store).unwrap();
    assert!(found.len() > 40 && found.len() < 80, "{}", found.len());
    put(&store, 80, 90);
    store.close().unwrap();
    assert_eq!(readable(&world).unwrap().len(), found.len() + 10);
}

#[test]
fn read_only_opens_what_it_cannot_write() {
    let world = damaged(RecoveryMode::ReadOnly);
    let before = tree(&world.vfs);
    let store = world.open(OpenMode::ReadWrite).unwrap();
    assert_eq!(store.mode(), OpenMode::Read);
    assert!(store.notes().iter().any(|note| note.contains("reading only")), "{:?}", store.notes());
    assert_eq!(log_order(&store).unwrap().len(), 59);
    assert!(matches!(store.flush(), Err(StoreError::ReadOnly { .. })));
    drop(store);
    same_files(&tree(&world.vfs), &before, "nothing may change");
}

#[test]
fn without_damage_the_mode_makes_no_difference() {
    for mode in [RecoveryMode::Strict, RecoveryMode::Salvage, RecoveryMode::ReadOnly] {
        let (world, store) = written(StoreOptions { recovery: mode, ..options() }, 60, 30);
        for seed in 0..20 {
            let crashed = world.on(world.vfs.crash(seed).unwrap());
            let mut strict = world.on(world.vfs.crash(seed).unwrap());
            strict.options = options();
            let (one, other) =
                (crashed.open(OpenMode::ReadWrite).unwrap(), strict.open(OpenMode::ReadWrite).unwrap());
            assert_eq!(one.mode(), OpenMode::ReadWrite);
            assert_eq!(log_order(&one).unwrap(), log_order(&other).unwrap());
            // The names of index files depend on the clock.
            let files = |vfs| {
                let mut files = lasting(vfs);
                files.retain(|path, _| !path.starts_with(std::path::Path::new(crate::ROOT).join("index")));
                files
            };
            same_files(&files(&crashed.vfs), &files(&strict.vfs), &format!("{mode:?}, seed {seed}"));
        }
        drop(store);
    }
}

#[test]
fn progress_is_told_and_ends_the_open_when_it_says_so() {
    let options = StoreOptions { segment_bytes: 4 << 20, max_message_bytes: 2 << 20, ..options() };
    let (world, store) = written(options, 3, 3);
    for _ in 0..8 {
        let body = vec![7; 1 << 20];
        mqstore_tests::append(&store, &[mqstore_tests::Remembered { body, ..crate::message(1) }]).unwrap();
    }
    let world = stopped(world, store, false);
    let mut told = Vec::new();
    drop(
        crate::copy(&world)
            .open_watched(OpenMode::ReadWrite, &mut |progress| {
                told.push(progress);
                Ok(())
            })
            .unwrap(),
    );
    for stage in [RecoveryStage::Log, RecoveryStage::Queues] {
        let stages: Vec<_> = told.iter().filter(|one| one.stage == stage).collect();
        assert!(stages.len() >= 6, "{stage:?}: {told:?}");
        assert!(stages.iter().all(|one| one.done_bytes <= one.total_bytes), "{told:?}");
        assert!(stages.is_sorted_by_key(|one| one.done_bytes), "{told:?}");
    }
    // The user presses Ctrl-C at each of these moments.
    let wanted = {
        let copy = crate::copy(&world);
        let store = copy.open(OpenMode::ReadWrite).unwrap();
        log_order(&store).unwrap()
    };
    for stop_at in 0..told.len() {
        let run = crate::copy(&world);
        let mut left = stop_at;
        let outcome = run.open_watched(OpenMode::ReadWrite, &mut |_| {
            if left == 0 {
                return Err(StoreError::Busy { reason: "stopped by hand".into() });
            }
            left -= 1;
            Ok(())
        });
        assert!(matches!(outcome, Err(StoreError::Busy { .. })), "step {stop_at}");
        // The lock is free, and the remaining files recover, also after a power loss.
        let lost = run.on(run.vfs.crash(stop_at as u64).unwrap());
        assert_eq!(log_order(&run.open(OpenMode::ReadWrite).unwrap()).unwrap(), wanted, "step {stop_at}");
        let found = log_order(&lost.open(OpenMode::ReadWrite).unwrap()).unwrap();
        assert!(wanted.starts_with(&found) && found.len() >= 3, "step {stop_at}");
    }
    let _ = messages(1);
}
