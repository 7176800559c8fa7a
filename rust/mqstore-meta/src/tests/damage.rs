//! Truncated and changed files: an open returns an error or an earlier state; it never panics or finds a state that
//! never existed.

use mqstore_format::crc32;
use mqstore_format::json::SubscriptionGroup;
use mqstore_io::{SimVfs, Vfs};

use super::{commit, dump, files_on, key, open, open_by, put_topic};
use crate::log::read_log;
use crate::{MetaLog, ProgressRecord, find_damage, newest_file};
use mqstore_base::durable_mark::{DurableMark, DurableMarkFile};
use mqstore_base::error::StoreError;
use mqstore_base::options::RecoveryMode;
use mqstore_base::topic_floors::TopicFloor;

/// Returns the bytes of a log with a snapshot, a tail and a synced frame, and the states after each frame.
fn written() -> (Vec<u8>, Vec<String>) {
    let vfs = SimVfs::default();
    let files = files_on(&vfs);
    let log = open(&files);
    put_topic(&log, "orders", 2);
    commit(&log, "billing", "orders", 0, 3);
    let progress = log.progress(key(&log, "workers", "orders", 1));
    let lease = |offset| ProgressRecord::Leased { offset, invisible_until_ms: 30_000, attempt: 1 };
    log.append_progress(&progress, &[lease(0), lease(1)]).unwrap();
    let next = || {
        let _chores = log.chores.lock();
        log.next_generation().unwrap();
    };
    next();
    let mut states = vec![dump(&log)];
    let mut step = |change: &dyn Fn(&MetaLog)| {
        change(&log);
        states.push(dump(&log));
    };
    step(&|log| commit(log, "billing", "orders", 0, 4));
    step(&|log| {
        log.append_progress(&progress, &[ProgressRecord::Finished { from: 0, to: 1 }]).unwrap();
    });
    log.sync(log.place()).unwrap();
    step(&|log| put_topic(log, "late", 1));
    step(&|log| assert!(log.create_group(&SubscriptionGroup::new("billing")).is_ok()));
    step(&|log| assert!(log.remove(&[("orders", TopicFloor::default())], &[]).is_ok()));
    let bytes = vfs.read_file(&newest_file(&files).unwrap(), 1 << 20).unwrap();
    let end = log.tail.look(|state| state.at).unwrap() as usize;
    (bytes[..end].to_vec(), states)
}

/// Creates a store with `bytes` as its log.
fn store_with(bytes: &[u8]) -> SimVfs {
    let vfs = SimVfs::default();
    let files = files_on(&vfs);
    vfs.create_dir_all(&files.meta()).unwrap();
    let file = vfs.create_new(&crate::load::file_of(&files, 2)).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    vfs
}

/// Opens the store in every mode. Returns the index of the state that a strict open found.
fn look(bytes: &[u8], states: &[String], what: &str) -> Option<usize> {
    let vfs = store_with(bytes);
    let files = files_on(&vfs);
    let damaged = find_damage(&files).unwrap().is_some();
    let mut notes = Vec::new();
    let read = read_log(&files, &mut notes).unwrap();
    assert_eq!(damaged, !notes.is_empty(), "{what}");
    drop(read);
    let mut found = None;
    match open_by(&files, RecoveryMode::Strict) {
        Ok(log) => {
            assert!(!damaged, "{what}");
            let state = dump(&log);
            let at = states.iter().position(|known| *known == state);
            assert!(at.is_some(), "{what}: a state that never existed\n{state}");
            found = at;
            commit(&log, "more", "more", 0, 1);
            let more = dump(&log);
            drop(log);
            assert_eq!(dump(&open(&files)), more, "{what}: a reopen finds the same state");
        }
        Err(StoreError::Corrupt { path, .. }) => {
            assert!(damaged, "{what}");
            assert_eq!(path, newest_file(&files).unwrap());
        }
        Err(error) => panic!("{what}: {error}"),
    }
    let vfs = store_with(bytes);
    let files = files_on(&vfs);
    let log = open_by(&files, RecoveryMode::Salvage).unwrap();
    let state = dump(&log);
    log.close().unwrap();
    assert_eq!(dump(&open(&files)), state, "{what}: the salvaged state is complete");
    assert!(find_damage(&files).unwrap().is_none(), "{what}");
    if damaged && !bytes.is_empty() {
        assert_eq!(vfs.list(&files.lost_and_found()).unwrap().len(), 1, "{what}: a copy is kept");
    }
    assert_eq!(vfs.violations(), Vec::<String>::new());
    found
}

#[test]
fn every_prefix_is_a_shorter_state_or_an_error() {
    let (bytes, states) = written();
    let mut seen = vec![0; states.len()];
    let mut errors = 0;
    for len in 0..=bytes.len() {
        match look(&bytes[..len], &states, &format!("{len} bytes")) {
            Some(state) => seen[state] += 1,
            None => errors += 1,
        }
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    // The snapshot is synced before the file gets its name, so a cut in it is damage.
    assert!(errors > 48, "{errors}");
}

#[test]
fn every_changed_byte_is_a_shorter_state_or_an_error() {
    let (bytes, states) = written();
    let mut seen = vec![0; states.len()];
    let mut errors = 0;
    for at in 0..bytes.len() {
        for change in [0x01, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] ^= change;
            match look(&damaged, &states, &format!("byte {at} changed by {change:#x}")) {
                Some(state) => seen[state] += 1,
                None => errors += 1,
            }
        }
    }
    // A change below the position that the last frames state as synced is always detected.
    assert_eq!((seen[0], seen[1]), (0, 0), "{seen:?}");
    assert!(seen[2] > 0 && seen[3] > 0 && errors > 0, "{seen:?}");
}

#[test]
fn a_log_with_a_frame_without_records_opens() {
    let (bytes, states) = written();
    let tail = u64::from_be_bytes(bytes[24..32].try_into().unwrap()) as usize;
    let empty = [crc32(&[0; 4]).to_be_bytes(), [0; 4]].concat();
    for at in [tail, bytes.len()] {
        let bytes = [&bytes[..at], empty.as_slice(), &bytes[at..]].concat();
        assert_eq!(look(&bytes, &states, &format!("after {at} bytes")), Some(states.len() - 1));
    }
}

/// Writes the durable mark of a store whose metadata log is synced up to `end`.
fn mark_end(vfs: &SimVfs, end: u64, clean: bool) {
    let mark = DurableMark {
        sequence: 2,
        clean,
        has_metadata: true,
        metadata_end: Some(end),
        ..DurableMark::default()
    };
    DurableMarkFile::new(&files_on(vfs)).store(&mark, true).unwrap();
}

#[test]
fn a_log_that_ends_before_the_mark_is_damaged() {
    let (bytes, states) = written();
    let (tail, place) = (24..32, 32..40);
    let number = |at: std::ops::Range<usize>| u64::from_be_bytes(bytes[at].try_into().unwrap());
    let end = number(place) + bytes.len() as u64 - number(tail);
    for clean in [true, false] {
        for len in 0..=bytes.len() {
            let vfs = store_with(&bytes[..len]);
            mark_end(&vfs, end, clean);
            let files = files_on(&vfs);
            let is_cut = len < bytes.len();
            assert_eq!(find_damage(&files).unwrap().is_some(), is_cut, "{len} bytes");
            let mut notes = Vec::new();
            read_log(&files, &mut notes).unwrap();
            assert_eq!(notes.len(), usize::from(is_cut), "{len} bytes: {notes:?}");
            assert_eq!(open_by(&files, RecoveryMode::Strict).is_err(), is_cut, "{len} bytes");
            let log = open_by(&files, RecoveryMode::Salvage).unwrap();
            assert_eq!(dump(&log) == *states.last().unwrap(), !is_cut, "{len} bytes");
            commit(&log, "more", "more", 0, 1);
            log.close().unwrap();
            assert!(log.synced().durable() >= end, "positions never go back");
            open(&files);
        }
    }
}

#[test]
fn bytes_after_the_end_of_a_closed_log_are_reported_and_lose_nothing() {
    for (more, kept) in [(vec![0; 1], 0), (vec![0; 5000], 0), (vec![7; 1], 1), (vec![7; 300], 1)] {
        let vfs = SimVfs::default();
        let files = files_on(&vfs);
        let log = open(&files);
        put_topic(&log, "orders", 2);
        let state = dump(&log);
        log.close().unwrap();
        mark_end(&vfs, log.synced().durable(), true);
        assert!(find_damage(&files).unwrap().is_none());
        let path = newest_file(&files).unwrap();
        let file = vfs.open(&path, mqstore_io::Access::ReadWrite).unwrap();
        file.write_all_at(&more, file.len().unwrap()).unwrap();
        let text = format!("{} bytes follow the end of the log", more.len());
        let (_, _, found) = find_damage(&files).unwrap().unwrap();
        assert!(found.contains(&text), "{found}");
        let mut notes = Vec::new();
        read_log(&files, &mut notes).unwrap();
        assert!(notes.len() == 1 && notes[0].contains(&text), "{notes:?}");
        notes.clear();
        let found = MetaLog::find(&files, RecoveryMode::Strict).unwrap();
        let log = MetaLog::open(&files, found, &mut notes).unwrap();
        assert!(notes.len() == 1 && notes[0].contains(&text), "{notes:?}");
        assert_eq!(dump(&log), state);
        assert_eq!(vfs.list(&files.lost_and_found()).map_or(0, |found| found.len()), kept);
        log.close().unwrap();
        assert!(find_damage(&files).unwrap().is_none());
    }
}

#[test]
fn frames_behind_the_end_do_not_come_back() {
    let (bytes, states) = written();
    // The first frame of the tail is lost, the frames after it are not.
    let vfs = store_with(&bytes);
    let files = files_on(&vfs);
    let path = newest_file(&files).unwrap();
    let tail = u64::from_be_bytes(bytes[24..32].try_into().unwrap());
    let file = vfs.open(&path, mqstore_io::Access::ReadWrite).unwrap();
    let len = u32::from_be_bytes(bytes[tail as usize + 4..tail as usize + 8].try_into().unwrap());
    file.write_all_at(&vec![0; len as usize + 8], tail).unwrap();
    assert!(open_by(&files, RecoveryMode::Strict).is_err(), "it was synced");
    let log = open_by(&files, RecoveryMode::Salvage).unwrap();
    assert_eq!(dump(&log), states[0]);
    commit(&log, "billing", "orders", 0, 9);
    let now = dump(&log);
    drop(log);
    assert_eq!(dump(&open(&files)), now);
}

#[test]
fn zeros_and_an_empty_file_are_an_error() {
    for bytes in [vec![], vec![0; 100], vec![0; 5000]] {
        let files = files_on(&store_with(&bytes));
        assert!(matches!(open_by(&files, RecoveryMode::Strict), Err(StoreError::Corrupt { offset: 0, .. })));
        let log = open_by(&files, RecoveryMode::Salvage).unwrap();
        put_topic(&log, "new", 1);
    }
}

#[test]
fn what_a_kill_left_counts_as_synced_once_it_was_found_and_closed() {
    let vfs = SimVfs::default();
    let files = files_on(&vfs);
    let log = open(&files);
    put_topic(&log, "orders", 2);
    commit(&log, "billing", "orders", 0, 7);
    let state = dump(&log);
    // No frame states that it is synced.
    drop(log);
    let log = open(&files);
    assert_eq!(dump(&log), state);
    log.close().unwrap();
    let path = newest_file(&files).unwrap();
    let bytes = vfs.read_file(&path, 1 << 20).unwrap();
    let tail = u64::from_be_bytes(bytes[24..32].try_into().unwrap());
    vfs.flip(&path, tail + 9, 1).unwrap();
    assert!(matches!(open_by(&files, RecoveryMode::Strict), Err(StoreError::Corrupt { .. })));
}
