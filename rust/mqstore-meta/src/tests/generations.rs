//! New generations during appends, and the files after a stop at any moment of their creation.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mqstore_io::sync::{AtomicBool, Ordering};
use mqstore_io::{ManualClock, OsVfs, SimVfs, SystemClock, Vfs};

use super::{commit, dump, files_on, key, open, put_topic};
use crate::load::generations;
use crate::{MetaLog, OffsetChange, ProgressRecord};
use mqstore_base::store_files::StoreFiles;
use mqstore_base::topic_floors::{TopicFloor, TopicRetention};

fn next(log: &MetaLog) {
    let _chores = log.chores.lock();
    log.next_generation().unwrap();
}

fn lease(offset: i64) -> ProgressRecord {
    ProgressRecord::Leased { offset, invisible_until_ms: 1_000 + offset, attempt: 1 }
}

#[test]
fn a_generation_has_what_the_one_before_had() {
    let vfs = SimVfs::default();
    let files = files_on(&vfs);
    let log = open(&files);
    for number in 0..3_000 {
        commit(&log, &format!("g{}", number % 50), &format!("t{}", number % 7), number % 3, number.into());
    }
    put_topic(&log, "t1", 3);
    let progress = log.progress(key(&log, "workers", "t1", 0));
    let many: Vec<_> = (0..5_000).map(lease).collect();
    log.append_progress(&progress, &many).unwrap();
    let floor = TopicFloor::of_deletion(777, BTreeMap::from([(0, 300_000), (2, i64::MAX)]));
    log.remove(&[("t2", TopicFloor::of_deletion(3, BTreeMap::from([(1, 9)])))], &[]).unwrap();
    log.remove(&[("t2", floor.clone())], &[]).unwrap();
    log.remove(&[("t3", TopicFloor::of_deletion(500, floor.queues.clone()))], &[]).unwrap();
    put_topic(&log, "t3", 1);
    let (of_t3, of_t4) = (BTreeMap::from([(0, 300_009)]), BTreeMap::from([(7, 70)]));
    let raise = |topic, log_offset, queues| log.raise_floors(&[(topic, log_offset, queues)]).unwrap();
    let mut found =
        log.raise_floors(&[("t3", 900, &of_t3), ("t2", 900, &of_t3), ("t4", 800, &of_t4)]).unwrap();
    assert_eq!(found.iter().map(|(topic, _)| &**topic).collect::<Vec<_>>(), ["t3", "t4"], "t2 is removed");
    let raised = found.remove(0).1;
    assert_eq!((raised.log_offset, raised.deleted), (900, 500));
    assert_eq!(raised.queues, BTreeMap::from([(0, 300_009), (2, i64::MAX)]));
    assert_eq!(raise("t4", 800, &BTreeMap::new()), [], "it is there already");
    let limits = TopicRetention { keep_ms: Some(7), max_messages: Some(9), ..TopicRetention::default() };
    for topic in ["t1", "t3", "t4"] {
        log.set_retention(topic, limits).unwrap();
    }
    log.set_retention("t4", TopicRetention::default()).unwrap();
    for generation in 2..5 {
        commit(&log, "g1", "t1", 0, generation);
        next(&log);
        assert_eq!(generations(&files).unwrap(), [generation as u64]);
        let lost = vfs.crash_with(&mut |_| false).unwrap();
        assert_eq!(dump(&open(&files_on(&lost))), dump(&log));
    }
    commit(&log, "g1", "t1", 0, 9);
    let killed = vfs.kill().unwrap();
    let again = open(&files_on(&killed));
    assert_eq!(dump(&again), dump(&log));
    assert_eq!(again.removed_topics(), [Arc::from("t2")]);
    assert_eq!(again.floors().get("t2"), Some(&floor));
    assert_eq!(again.floors().get("t3"), Some(&raised));
    assert_eq!(again.retentions(), BTreeMap::from([("t1".into(), limits), ("t3".into(), limits)]));
    // A log that lost its end gives the log offsets of the lost records to other records.
    again.clamp_floors(600).unwrap();
    let clamped = open(&files_on(&killed.crash_with(&mut |_| false).unwrap()));
    assert_eq!(clamped.floors().get("t2"), Some(&TopicFloor::of_deletion(600, floor.queues.clone())));
    assert_eq!(clamped.floors().get("t3"), Some(&TopicFloor { log_offset: 600, ..raised }));
    let of_t4 = TopicFloor { log_offset: 600, deleted: 0, queues: of_t4 };
    assert_eq!(clamped.floors().get("t4"), Some(&of_t4));
    clamped.clamp_floors(400).unwrap();
    assert_eq!(clamped.floors().get("t3").map(|floor| (floor.log_offset, floor.deleted)), Some((400, 400)));
    clamped.remove(&[("t1", TopicFloor::of_deletion(400, BTreeMap::new()))], &[]).unwrap();
    assert!(!clamped.retentions().contains_key("t1"));
    assert_eq!(vfs.violations(), Vec::<String>::new());
}

#[test]
fn a_long_tail_makes_one_due() {
    let vfs = SimVfs::default();
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let mut files = files_on(&vfs);
    files.clock = Arc::clone(&clock) as _;
    let log = open(&files);
    let progress = log.progress(key(&log, "g", "t", 0));
    let mut offset = 0;
    while log.tail.look(|state| state.at - state.tail_start).unwrap_or(0) <= 1 << 20 {
        assert!(!log.generation_is_due());
        let records: Vec<_> = (offset..offset + 1_000).map(lease).collect();
        log.append_progress(&progress, &records).unwrap();
        log.append_progress(&progress, &[ProgressRecord::Finished { from: offset, to: offset + 1_000 }])
            .unwrap();
        offset += 1_000;
    }
    commit(&log, "g", "t", 0, offset);
    assert!(!log.generation_is_due(), "the last one is less than a second old");
    clock.advance(Duration::from_secs(1));
    assert!(log.generation_is_due());
    log.step(0).unwrap();
    assert!(!log.generation_is_due());
    assert_eq!(generations(&files).unwrap(), [2]);
    let len = log.tail.look(|state| state.at).unwrap();
    assert!(len < 1_000, "{len} bytes");
    assert_eq!(progress.lock().committed(), offset);
    assert_eq!(dump(&open(&files_on(&vfs.kill().unwrap()))), dump(&log));
}

#[test]
fn an_older_generation_that_a_stop_left_is_removed() {
    let vfs = SimVfs::default();
    let files = files_on(&vfs);
    let log = open(&files);
    commit(&log, "g", "t", 0, 1);
    let old = crate::newest_file(&files).unwrap();
    let bytes = vfs.read_file(&old, 1 << 20).unwrap();
    next(&log);
    commit(&log, "g", "t", 0, 2);
    let now = dump(&log);
    drop(log);
    vfs.create_new(&old).unwrap().write_all_at(&bytes, 0).unwrap();
    assert_eq!(generations(&files).unwrap(), [2, 1]);
    assert_eq!(dump(&open(&files)), now);
    assert_eq!(generations(&files).unwrap(), [2]);
}

/// Threads change everything while generations are made; an open finds the final state.
#[test]
fn appends_go_on_while_a_generation_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("s");
    let vfs = Arc::new(OsVfs::new());
    vfs.create_dir_all(&root.join("mqstore")).unwrap();
    let files = StoreFiles::new(vfs, Arc::new(SystemClock::new()), Path::new(&root));
    let log = open(&files);
    let stop = AtomicBool::new(false);
    let (log_of_all, stop_of_all) = (&log, &stop);
    std::thread::scope(|scope| {
        for thread in 0..3_i64 {
            scope.spawn(move || {
                let log = log_of_all;
                let progress = log.progress(key(log, &format!("w{thread}"), "jobs", 0));
                let mut round = 0_i64;
                while !stop_of_all.load(Ordering::Acquire) {
                    log.append_progress(&progress, &[lease(2 * round), lease(2 * round + 1)]).unwrap();
                    let done = ProgressRecord::Finished { from: 2 * round, to: 2 * round + 1 };
                    log.append_progress(&progress, &[done]).unwrap();
                    if round > 20 {
                        let old = 2 * (round - 20) + 1;
                        let done = ProgressRecord::Finished { from: old, to: old + 1 };
                        log.append_progress(&progress, &[done]).unwrap();
                    }
                    let queue = key(log, &format!("c{}", round % 100), "jobs", thread as i32);
                    log.commit(&[OffsetChange { queue, offset: round }]).unwrap();
                    if round % 64 == 0 {
                        put_topic(log, &format!("t{thread}-{}", round % 256), 1 + (round % 9) as i32);
                        log.remove(
                            &[(&format!("t{thread}-{}", (round + 128) % 256), TopicFloor::default())],
                            &[],
                        )
                        .unwrap();
                        log.sync(log.place()).unwrap();
                    }
                    round += 1;
                }
            });
        }
        for _ in 0..20 {
            next(log_of_all);
        }
        stop_of_all.store(true, Ordering::Release);
    });
    let before = dump(&log);
    drop(log);
    let log = open(&files);
    assert_eq!(dump(&log), before);
    log.close().unwrap();
    assert_eq!(dump(&open(&files)), before);
}
