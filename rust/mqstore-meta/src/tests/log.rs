//! Appends, and the state that an open finds after them.

use mqstore_format::json::{SubscriptionGroup, TopicConfig};
use mqstore_io::sim::{Fault, OperationKind};
use mqstore_io::{SimVfs, Vfs};

use super::{commit, dump, files_on, key, open, put_topic};
use crate::{OffsetChange, ProgressRecord};
use mqstore_base::error::StoreError;
use mqstore_base::topic_floors::TopicFloor;

fn lease(offset: i64) -> ProgressRecord {
    ProgressRecord::Leased { offset, invisible_until_ms: 30_000, attempt: 1 }
}

/// Creates a log with each kind of record.
fn filled(vfs: &SimVfs) -> super::MetaLog {
    let log = open(&files_on(vfs));
    put_topic(&log, "orders", 4);
    put_topic(&log, "ns%jobs", 1);
    log.create_group(&SubscriptionGroup::new("billing")).unwrap();
    commit(&log, "billing", "orders", 0, 17);
    commit(&log, "billing", "orders", 3, 5);
    let progress = log.progress(key(&log, "workers", "ns%jobs", 0));
    log.append_progress(&progress, &[lease(0), lease(1), lease(2), lease(3)]).unwrap();
    log.append_progress(&progress, &[ProgressRecord::Finished { from: 1, to: 2 }]).unwrap();
    let back = ProgressRecord::Returned { offset: 2, visible_ms: 9, attempt: 1 };
    log.append_progress(&progress, &[back, ProgressRecord::DeadLetter { offset: 3, dlq_offset: 7 }]).unwrap();
    log
}

#[test]
fn a_kill_loses_nothing_and_a_close_leaves_a_file_without_room() {
    let vfs = SimVfs::default();
    let log = filled(&vfs);
    let before = dump(&log);
    let killed = vfs.kill().unwrap();
    assert_eq!(dump(&open(&files_on(&killed))), before);
    log.close().unwrap();
    assert_eq!(dump(&open(&files_on(&vfs))), before);
    let names: Vec<_> = vfs.list(&files_on(&vfs).meta()).unwrap();
    assert_eq!(names.len(), 1);
    assert!(names[0].stat.len < 1_000, "{} bytes", names[0].stat.len);
    assert!(matches!(log.commit(&[change(&log)]), Err(StoreError::Closed { .. })));
    assert_eq!(vfs.violations(), Vec::<String>::new());
}

fn change(log: &super::MetaLog) -> OffsetChange {
    OffsetChange { queue: log.queue_key("billing", "orders", 0).unwrap(), offset: 99 }
}

#[test]
fn what_was_synced_survives_the_loss_of_power() {
    let vfs = SimVfs::default();
    let log = filled(&vfs);
    log.sync(log.place()).unwrap();
    let synced = dump(&log);
    commit(&log, "billing", "orders", 0, 18);
    let lost = vfs.crash_with(&mut |_| false).unwrap();
    assert_eq!(dump(&open(&files_on(&lost))), synced);
    let lucky = vfs.crash_with(&mut |_| true).unwrap();
    assert_eq!(dump(&open(&files_on(&lucky))), dump(&log));
    log.sync(log.commit(&[change(&log)]).unwrap()).unwrap();
    let lost = vfs.crash_with(&mut |_| false).unwrap();
    assert_eq!(dump(&open(&files_on(&lost))), dump(&log));
}

#[test]
fn a_log_is_opened_again_and_again() {
    let vfs = SimVfs::default();
    filled(&vfs).close().unwrap();
    for round in 0..5 {
        let log = open(&files_on(&vfs));
        commit(&log, "billing", "orders", 1, round);
        if round % 2 == 0 {
            log.close().unwrap();
        }
    }
    let files = files_on(&vfs);
    let log = open(&files);
    assert_eq!(log.offset(key(&log, "billing", "orders", 1)), Some(4));
    assert_eq!(vfs.violations(), Vec::<String>::new());
}

#[test]
fn nothing_is_written_where_nothing_changes() {
    let vfs = SimVfs::default();
    filled(&vfs).close().unwrap();
    let before = vfs.read_file(&crate::newest_file(&files_on(&vfs)).unwrap(), 1 << 20).unwrap();
    open(&files_on(&vfs)).close().unwrap();
    let log = open(&files_on(&vfs));
    log.commit(&[]).unwrap();
    log.put_topics(&[]).unwrap();
    log.remove(&[], &[]).unwrap();
    log.remove(&[], &["never known"]).unwrap();
    log.raise_floors(&[]).unwrap();
    log.create_group(&SubscriptionGroup::new("billing")).unwrap();
    log.append_progress(&log.progress(key(&log, "workers", "ns%jobs", 0)), &[]).unwrap();
    assert!(log.commit(&[OffsetChange { offset: -1, ..change(&log) }]).is_err());
    log.step(0).unwrap();
    log.close().unwrap();
    assert_eq!(vfs.read_file(&crate::newest_file(&files_on(&vfs)).unwrap(), 1 << 20).unwrap(), before);
    let empty = SimVfs::default();
    open(&files_on(&empty)).close().unwrap();
    assert!(empty.list(&files_on(&empty).meta()).is_err(), "no file without a change");
}

#[test]
fn a_change_that_does_not_fit_changes_nothing() {
    let vfs = SimVfs::default();
    let log = filled(&vfs);
    let progress = log.progress(key(&log, "workers", "ns%jobs", 0));
    let (before, place) = (dump(&log), log.place());
    for records in [vec![lease(9)], vec![lease(1)], vec![lease(4), lease(6)], vec![lease(3)]] {
        assert!(matches!(log.append_progress(&progress, &records), Err(StoreError::Refused { .. })));
    }
    assert_eq!((dump(&log), log.place()), (before, place));
    let ((), after) = log.change_progress(&progress, |_, _| ()).unwrap();
    assert_eq!(after, place);
}

#[test]
fn what_is_removed_is_removed_with_what_groups_knew() {
    let vfs = SimVfs::default();
    let log = filled(&vfs);
    commit(&log, "other", "ns%jobs", 0, 3);
    let progress = log.progress(key(&log, "workers", "ns%jobs", 0));
    log.remove(&[("ns%jobs", TopicFloor::default())], &[]).unwrap();
    assert!(matches!(log.append_progress(&progress, &[lease(4)]), Err(StoreError::Refused { .. })));
    assert!(log.known_progress(key(&log, "workers", "ns%jobs", 0)).is_none());
    assert_eq!(log.offset(key(&log, "other", "ns%jobs", 0)), None);
    assert_eq!(log.offset(key(&log, "billing", "orders", 0)), Some(17));
    assert_eq!(log.remove(&[], &["billing", "unknown"]).unwrap().1, 1);
    assert_eq!(log.remove(&[], &["billing"]).unwrap(), (log.place(), 0));
    assert_eq!((log.groups(), log.offset(key(&log, "billing", "orders", 0))), (Vec::new(), None));
    put_topic(&log, "ns%jobs", 2);
    let again = log.progress(key(&log, "workers", "ns%jobs", 0));
    log.append_progress(&again, &[lease(0)]).unwrap();
    let killed = vfs.kill().unwrap();
    assert_eq!(dump(&open(&files_on(&killed))), dump(&log));
}

#[test]
fn a_failed_sync_stops_the_log() {
    let vfs = SimVfs::default();
    let log = filled(&vfs);
    vfs.inject(Fault::nth(1).on(&[OperationKind::Sync]));
    assert!(log.sync(log.place()).is_err());
    vfs.clear_faults();
    assert!(matches!(log.sync(log.place()), Err(StoreError::Poisoned { .. })));
    assert!(matches!(log.commit(&[change(&log)]), Err(StoreError::Poisoned { .. })));
    let before = dump(&log);
    drop(log);
    // The open rewrites the bytes that the failed sync may have lost.
    let log = open(&files_on(&vfs));
    assert_eq!(dump(&log), before);
    let lost = vfs.crash_with(&mut |_| false).unwrap();
    assert_eq!(dump(&open(&files_on(&lost))), before);
}

#[test]
fn a_full_disk_refuses_a_change_and_stops_nothing() {
    let vfs = SimVfs::default();
    let log = filled(&vfs);
    let before = dump(&log);
    vfs.inject(Fault::nth(1).on(&[OperationKind::Write]).no_space());
    let put = log.create_group(&SubscriptionGroup::new("late"));
    assert!(matches!(put, Err(StoreError::DiskFull { .. })), "{put:?}");
    vfs.clear_faults();
    assert_eq!(dump(&log), before);
    commit(&log, "billing", "orders", 0, 18);
    let killed = vfs.kill().unwrap();
    assert_eq!(dump(&open(&files_on(&killed))), dump(&log));
}

#[test]
fn offsets_and_progress_beyond_the_ends_of_queues_are_set_back_for_good() {
    let vfs = SimVfs::default();
    let log = filled(&vfs);
    let ends = |topic: &str, queue_id| if (topic, queue_id) == ("orders", 0) { 10 } else { 2 };
    assert_eq!(log.clamp_to_queues(ends).unwrap(), 3);
    assert_eq!(log.offset(key(&log, "billing", "orders", 0)), Some(10));
    assert_eq!(log.offset(key(&log, "billing", "orders", 3)), Some(2));
    let progress = log.progress(key(&log, "workers", "ns%jobs", 0));
    let state = progress.lock();
    assert_eq!((state.committed(), state.next()), (0, 2));
    assert!(state.waiting(2).is_none() && state.dead_letters().len() == 0);
    drop(state);
    let lost = vfs.crash_with(&mut |_| false).unwrap();
    assert_eq!(dump(&open(&files_on(&lost))), dump(&log));
    assert_eq!(log.clamp_to_queues(ends).unwrap(), 0);
}

#[test]
fn names_that_nothing_uses_are_forgotten() {
    let vfs = SimVfs::default();
    let log = filled(&vfs);
    for number in 0..100 {
        log.topic_id(&format!("never used {number}")).unwrap();
    }
    log.close().unwrap();
    let log = open(&files_on(&vfs));
    assert_eq!(log.names.read().all().0.len(), 4);
    let known = log.topic_id("orders").unwrap();
    assert_ne!(log.topic_id("new").unwrap(), known);
}

/// Returns the offset of the next frame, and the number of calls that changed the disk so far.
fn cost(log: &super::MetaLog, vfs: &SimVfs) -> (u64, u64) {
    (log.tail.look(|state| state.at).unwrap(), vfs.operations())
}

#[test]
fn one_more_topic_is_a_frame_and_a_sync_however_many_there_are() {
    let vfs = SimVfs::default();
    let log = open(&files_on(&vfs));
    let configs: Vec<_> = (0..40_000).map(|number| TopicConfig::new(format!("topic-{number}"), 8)).collect();
    for some in configs.chunks(10_000) {
        log.put_topics(some).unwrap();
    }
    log.sync(log.place()).unwrap();
    log.topic_id("topic-40000").unwrap();
    let before = cost(&log, &vfs);
    let place = log.put_topics(&[TopicConfig::new("topic-40000", 8)]).unwrap();
    log.sync(place).unwrap();
    let after = cost(&log, &vfs);
    assert_eq!(after.1 - before.1, 2, "one write, one sync");
    assert!(after.0 - before.0 <= 64, "{} bytes", after.0 - before.0);
    assert_eq!(open(&files_on(&vfs.crash_with(&mut |_| false).unwrap())).topics().len(), 40_001);
}

#[test]
fn a_commit_is_a_few_bytes_however_many_groups_there_are() {
    let vfs = SimVfs::default();
    let log = open(&files_on(&vfs));
    let queues: Vec<_> = (0..50_000).map(|group| key(&log, &format!("group-{group}"), "orders", 3)).collect();
    let change = |number: usize| OffsetChange { queue: queues[number], offset: 1 << 40 };
    for some in (0..queues.len()).map(change).collect::<Vec<_>>().chunks(10_000) {
        log.commit(some).unwrap();
    }
    log.sync(log.place()).unwrap();
    let (before, _) = cost(&log, &vfs);
    // One second: ten steps, a hundred commits in each.
    for number in 0..1_000 {
        log.commit(&[change(number * 49)]).unwrap();
        if number % 100 == 99 {
            log.sync(log.place()).unwrap();
        }
    }
    let (after, _) = cost(&log, &vfs);
    assert!((after - before) / 1_000 <= 30, "{} bytes", after - before);
}
