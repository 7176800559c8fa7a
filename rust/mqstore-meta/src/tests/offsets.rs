//! A group has one offset in a queue, for consumers and for work queues.

use mqstore_format::json::{ConsumerOffsets, Dialect};
use mqstore_io::{SimVfs, Vfs};

use super::{commit, dump, files_on, key, open, put_topic};
use crate::progress::{Progress, ProgressCounts};
use crate::record::{MetaPosition, MetaRecord, NameId, QueueKey};
use crate::state::MetaState;
use crate::{GroupQueue, MetaLog, OffsetChange, ProgressRecord, read_log};
use mqstore_base::store_files::CONFIG_LIMIT_BYTES;

fn lease(offset: i64) -> ProgressRecord {
    ProgressRecord::Leased { offset, invisible_until_ms: 30_000, attempt: 1 }
}

fn finished(from: i64, to: i64) -> ProgressRecord {
    ProgressRecord::Finished { from, to }
}

fn queue(log: &MetaLog) -> QueueKey {
    key(log, "g", "orders", 0)
}

fn advance(log: &MetaLog, records: &[ProgressRecord]) {
    log.append_progress(&log.progress(queue(log)), records).unwrap();
}

/// Returns the offset as a consumer of the group sees it, and the bounds as a work queue sees them: committed, next.
fn seen(log: &MetaLog) -> (Option<i64>, Option<(i64, i64)>) {
    let progress = log.known_progress(queue(log));
    let bounds = progress.map(|progress| {
        let state = progress.lock();
        (state.committed(), state.next())
    });
    (log.offset(queue(log)), bounds)
}

fn exported(vfs: &SimVfs, log: &MetaLog) -> Option<i64> {
    log.export_json().unwrap();
    let path = files_on(vfs).config().join("consumerOffset.json");
    let text = vfs.read_file(&path, CONFIG_LIMIT_BYTES).unwrap();
    ConsumerOffsets::parse(&text).unwrap().get("orders", "g", 0)
}

/// Checks that an open finds the same state after a kill, and after a new generation and a kill.
fn again(vfs: &SimVfs, log: &MetaLog) {
    let (dumped, found) = (dump(log), seen(log));
    let check = |vfs: &SimVfs| {
        let log = open(&files_on(&vfs.kill().unwrap()));
        assert_eq!((dump(&log), seen(&log)), (dumped.clone(), found));
    };
    check(vfs);
    {
        let _chores = log.chores.lock();
        log.next_generation().unwrap();
    }
    check(vfs);
}

#[test]
fn a_work_queue_goes_on_where_a_consumer_was_and_a_consumer_where_it_was() {
    let vfs = SimVfs::default();
    let log = open(&files_on(&vfs));
    put_topic(&log, "orders", 1);
    commit(&log, "g", "orders", 0, 5);
    assert_eq!(seen(&log), (Some(5), None));
    // The progress takes over the offset.
    let progress = log.progress(queue(&log));
    assert_eq!(seen(&log), (Some(5), Some((5, 5))));
    assert!(log.append_progress(&progress, &[lease(7)]).is_err());
    log.append_progress(&progress, &[lease(5), lease(6), lease(7)]).unwrap();
    again(&vfs, &log);
    assert_eq!(exported(&vfs, &log), Some(5));
    log.append_progress(&progress, &[finished(5, 6)]).unwrap();
    assert_eq!(seen(&log), (Some(6), Some((6, 8))));
    assert_eq!(exported(&vfs, &log), Some(6));
    again(&vfs, &log);
    // A consumer of the group commits.
    let other = key(&log, "g", "orders", 1);
    let to = |queue, offset| OffsetChange { queue, offset };
    log.commit(&[to(queue(&log), 7), to(other, 1), to(queue(&log), 20)]).unwrap();
    assert_eq!(seen(&log), (Some(20), Some((20, 20))));
    assert_eq!(progress.lock().leases().len(), 0);
    let group = log.group_id("g").unwrap();
    assert_eq!(log.offsets(group), [to(queue(&log), 20), to(other, 1)]);
    assert_eq!(exported(&vfs, &log), Some(20));
    again(&vfs, &log);
    log.commit(&[to(queue(&log), 0)]).unwrap();
    assert_eq!(seen(&log), (Some(0), Some((0, 0))), "0 is an offset, too");
    again(&vfs, &log);
    assert_eq!(log.groups(), ["g"]);
    assert_eq!(vfs.violations(), Vec::<String>::new());
}

#[test]
fn a_progress_of_which_nothing_was_said_is_no_offset() {
    let vfs = SimVfs::default();
    let log = open(&files_on(&vfs));
    put_topic(&log, "orders", 1);
    let progress = log.progress(queue(&log));
    assert_eq!(seen(&log), (None, Some((0, 0))));
    assert!(log.groups().is_empty());
    again(&vfs, &open(&files_on(&vfs.kill().unwrap())));
    // The progress object from before sees the commit of a consumer.
    commit(&log, "g", "orders", 0, 3);
    assert_eq!(progress.lock().committed(), 3);
    assert_eq!(log.offset(queue(&log)), Some(3));
    again(&vfs, &log);
}

/// Writes the offset file of a closed store like a broker that set the offset.
fn as_a_broker(vfs: &SimVfs, offset: i64) {
    let path = files_on(vfs).config().join("consumerOffset.json");
    let mut table = ConsumerOffsets::parse(&vfs.read_file(&path, CONFIG_LIMIT_BYTES).unwrap()).unwrap();
    table.set("orders", "g", 0, offset);
    table.data_version = table.data_version.next(1_700_000_001_000);
    vfs.remove_file(&path).unwrap();
    let file = vfs.create_new(&path).unwrap();
    file.write_all_at(table.to_json(Dialect::Rocketmq55).as_bytes(), 0).unwrap();
}

#[test]
fn an_offset_that_a_broker_set_moves_the_progress() {
    for (offset, bounds, open_ones) in
        [(2, (2, 4), vec![2, 3]), (3, (3, 4), vec![3]), (9, (9, 9), vec![]), (0, (0, 0), vec![])]
    {
        let vfs = SimVfs::default();
        let log = open(&files_on(&vfs));
        put_topic(&log, "orders", 1);
        advance(&log, &[lease(0), lease(1), lease(2), lease(3), finished(0, 1)]);
        log.close().unwrap();
        as_a_broker(&vfs, offset);
        let log = open(&files_on(&vfs));
        assert_eq!(seen(&log), (Some(offset), Some(bounds)));
        let progress = log.progress(queue(&log));
        let leases: Vec<i64> = progress.lock().leases().map(|(offset, _)| offset).collect();
        assert_eq!(leases, open_ones);
        again(&vfs, &log);
        log.close().unwrap();
        assert_eq!(exported(&vfs, &open(&files_on(&vfs))), Some(offset));
    }
}

#[test]
fn what_was_kept_after_a_removal_is_not_removed_by_it() {
    let (group, topic) = (NameId(0), NameId(1));
    let queue = QueueKey { group, topic, queue_id: 0 };
    let frame = |records: &[MetaRecord<'_>]| {
        let mut bytes = Vec::new();
        for record in records {
            record.encode(&mut bytes);
        }
        bytes
    };
    for removed in [MetaRecord::TopicRemoved { topic }, MetaRecord::GroupRemoved { group }] {
        let removed = frame(&[removed]);
        let mut state = MetaState::default();
        let kept = MetaRecord::Kept { queue, place: MetaPosition(100), committed: 3, next: 4 };
        let names = [MetaRecord::Name { id: group, name: "g" }, MetaRecord::Name { id: topic, name: "t" }];
        state.apply_frame(&frame(&names), MetaPosition(0)).unwrap();
        state.apply_frame(&frame(&[kept]), MetaPosition(0)).unwrap();
        // Replay of the tail passes an old offset, the removal and the start of the new progress.
        let old = MetaRecord::Offset(OffsetChange { queue, offset: 70 });
        let begun = MetaRecord::Progress { queue, record: ProgressRecord::Moved { to: 3 } };
        state.apply_frame(&frame(&[old]), MetaPosition(40)).unwrap();
        state.apply_frame(&removed, MetaPosition(50)).unwrap();
        state.apply_frame(&frame(&[begun]), MetaPosition(60)).unwrap();
        let found =
            state.progress.get(queue).map(|progress: &Progress| (progress.committed(), progress.next()));
        assert_eq!((found, state.offset(queue)), (Some((3, 4)), Some(3)));
        // A later removal counts.
        state.apply_frame(&removed, MetaPosition(100)).unwrap();
        assert!(state.progress.get(queue).is_none() && state.offset(queue).is_none());
    }
}

#[test]
fn the_counts_follow_the_clock_and_survive_an_open() {
    let vfs = SimVfs::default();
    let log = open(&files_on(&vfs));
    put_topic(&log, "orders", 1);
    let returned = ProgressRecord::Returned { offset: 1, visible_ms: 50_000, attempt: 1 };
    let dying = ProgressRecord::DeadLetter { offset: 2, dlq_offset: 0 };
    advance(&log, &[lease(0), lease(1), lease(2)]);
    advance(&log, &[returned, dying]);
    let counts = |leased, delayed, due| ProgressCounts { leased, delayed, due, dying: 1 };
    let wanted = [
        (29_999, counts(1, 1, 0)),
        (30_000, counts(0, 1, 1)),
        (49_999, counts(0, 1, 1)),
        (50_000, counts(0, 0, 2)),
    ];
    let queue = GroupQueue { group: "g".into(), topic: "orders".into(), queue_id: 0 };
    let files = files_on(&vfs.kill().unwrap());
    for (now_ms, counts) in wanted {
        let wanted = [(queue.clone(), 3, counts)];
        let mut found = Vec::new();
        log.each_progress(|queue, progress| found.push((queue, progress.next(), progress.counts(now_ms))));
        assert_eq!(found, wanted, "at {now_ms}");
        let read = read_log(&files, &mut Vec::new()).unwrap();
        found.clear();
        read.each_progress(|queue, progress| found.push((queue, progress.next(), progress.counts(now_ms))));
        assert_eq!(found, wanted, "at {now_ms}, from the files");
    }
}
