//! Changes each byte of a small store, one at a time. `make test` changes each seventh byte of the log.
//!
//! Whatever the byte is, an open for reading or for writing ends in a store or in a typed error. An open for
//! writing that succeeds has every message that the change did not hit, or it keeps the removed bytes in
//! lost+found and reports this. An open that is refused changes nothing.

use mqstore::error::StoreError;
use mqstore::options::{OpenMode, RecoveryMode, StoreOptions};
use mqstore_tests::{Simulated, log_order};

use crate::{
    Messages, copy, lasting, messages, options, put, segment, side, stopped, tree, undamaged, written,
};

const MESSAGES: usize = 70;
const SYNCED: usize = 45;

fn soak() -> bool {
    std::env::var_os("MQSTORE_SOAK").is_some()
}

fn masks() -> &'static [u8] {
    if soak() { &[1, 2, 4, 8, 16, 32, 64, 128, 255] } else { &[0x41] }
}

/// Of the bytes of the log, the soak changes each one and `make test` each seventh one. The sizes of the records differ
/// by multiples of 30, so that each byte of a record is changed in some record.
fn log_step() -> usize {
    if soak() { 1 } else { 7 }
}

/// The number of messages of `wanted` in `found`, which has them in order. Panics at any other message.
fn held(found: &Messages, wanted: &Messages, what: &str) -> usize {
    let mut rest = found.iter().peekable();
    let held = wanted.iter().filter(|one| rest.next_if(|next| next == one).is_some()).count();
    let strange = rest.next();
    // Any other message means that changed bytes passed their checksum.
    assert!(strange.is_none(), "{what}: {strange:?}");
    held
}

fn typed(error: &StoreError, what: &str) {
    assert!(
        matches!(
            error,
            StoreError::Corrupt { .. } | StoreError::Unsupported { .. } | StoreError::NotAStore { .. }
        ),
        "{what}: {error:?}"
    );
}

/// Opens the changed store in both modes and checks the results.
fn check(world: &Simulated, below_mark: bool, what: &str) {
    let wanted = messages(MESSAGES);
    match crate::readable(world) {
        Ok(found) => {
            // After the mark the first bad record ends the log, for a reader too.
            let least = if below_mark { MESSAGES - 1 } else { SYNCED };
            let held = held(&found, &wanted, what);
            assert!(held >= least, "{what}: reading found {held}");
        }
        Err(error) => typed(&error, what),
    }
    let before = tree(&world.vfs);
    match world.open(OpenMode::ReadWrite) {
        Err(error) => {
            typed(&error, what);
            let mut after = tree(&world.vfs);
            // The attempt may create the lock file.
            after.retain(|path, _| before.contains_key(path) || !path.ends_with("lock"));
            assert!(after == before, "{what}: refused and changed");
        }
        Ok(store) => {
            let found = log_order(&store).unwrap();
            let held = held(&found, &wanted, what);
            let kept = tree(&world.vfs).keys().any(|path| path.starts_with(side("lost+found")));
            let least = if below_mark { MESSAGES - 1 } else { SYNCED };
            assert!(held >= least, "{what}: {held}");
            assert!(held >= MESSAGES - 1 || kept && !store.notes().is_empty(), "{what}: lost in silence");
            put(&store, MESSAGES, MESSAGES + 1);
            store.close().unwrap();
            drop(store);
            let again = crate::readable(world).unwrap();
            assert_eq!(again.len(), found.len() + 1, "{what}: what was appended behind it");
        }
    }
}

/// Changes the bytes of the log in turn.
fn each_byte_of_the_log(options: &StoreOptions, clean: bool) {
    let (world, store) = written(options.clone(), MESSAGES, SYNCED);
    let mark = {
        // The mark is at the end of the synced messages.
        let (_, other) = written(options.clone(), SYNCED, SYNCED);
        other.stats().unwrap().log_max_offset
    };
    let end = store.stats().unwrap().log_max_offset;
    let world = stopped(world, store, clean);
    assert!((12 << 10..24 << 10).contains(&end), "{end} bytes");
    for offset in (0..end).step_by(log_step()) {
        for mask in masks() {
            let damaged = copy(&world);
            damaged.vfs.flip(&segment(offset / crate::SEGMENT), offset % crate::SEGMENT, *mask).unwrap();
            check(&damaged, clean || offset < mark, &format!("byte {offset} ^ {mask:#x}, clean: {clean}"));
        }
    }
}

#[test]
fn each_byte_of_the_log_of_a_killed_store() {
    each_byte_of_the_log(&options(), false);
}

#[test]
fn each_byte_of_the_log_of_a_closed_store() {
    each_byte_of_the_log(&options(), true);
}

#[test]
fn each_byte_of_the_log_of_a_salvaged_store() {
    let options = StoreOptions { recovery: RecoveryMode::Salvage, ..options() };
    let (world, store) = written(options, MESSAGES, MESSAGES);
    let end = store.stats().unwrap().log_max_offset;
    let world = stopped(world, store, false);
    for offset in (0..end).step_by(log_step()) {
        let damaged = copy(&world);
        damaged.vfs.flip(&segment(offset / crate::SEGMENT), offset % crate::SEGMENT, 0x41).unwrap();
        let what = format!("byte {offset}");
        let store = damaged.open(OpenMode::ReadWrite).unwrap();
        let found = log_order(&store).unwrap();
        assert!(held(&found, &messages(MESSAGES), &what) >= MESSAGES - 1, "{what}");
        put(&store, MESSAGES, MESSAGES + 1);
        assert!(undamaged(&store, 0).len() >= MESSAGES / 2, "{what}: a queue is read around it");
        store.close().unwrap();
        let after = damaged.open(OpenMode::ReadWrite).unwrap();
        assert_eq!(log_order(&after).unwrap().len(), found.len() + 1, "{what}: appends went on behind it");
    }
}

#[test]
fn each_byte_of_everything_else() {
    let wanted = messages(MESSAGES);
    for clean in [false, true] {
        let (world, store) = written(options(), MESSAGES, SYNCED);
        let world = stopped(world, store, clean);
        let files = lasting(&world.vfs);
        let marks = tree(&world.vfs).into_iter().filter(|(path, _)| path.starts_with(side("")));
        let others = files.into_iter().filter(|(path, _)| !path.starts_with(segment(0).parent().unwrap()));
        for (path, bytes) in others.chain(marks) {
            // Long files are mostly zeros. A sample of the other bytes is enough.
            let step = if bytes.len() > 2048 { 13 } else { 3 };
            for offset in (0..bytes.len()).step_by(step).filter(|at| *at < 512 || bytes[*at] != 0) {
                let damaged = copy(&world);
                damaged.vfs.flip(&path, offset as u64, 0x41).unwrap();
                let what = format!("{} byte {offset}, clean: {clean}", path.display());
                assert_eq!(crate::readable(&damaged).unwrap(), wanted, "{what}: reading");
                let store = match damaged.open(OpenMode::ReadWrite) {
                    // If topics and groups are damaged, the store opens only on request.
                    Err(StoreError::Corrupt { path: at, .. })
                        if at == path && path.starts_with(side("meta")) =>
                    {
                        continue;
                    }
                    opened => opened.unwrap_or_else(|error| panic!("{what}: {error}")),
                };
                assert_eq!(log_order(&store).unwrap(), wanted, "{what}: writing");
                put(&store, MESSAGES, MESSAGES + 1);
                store.close().unwrap();
            }
        }
    }
}
