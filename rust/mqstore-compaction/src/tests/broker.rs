//! Files that a broker wrote, and a broker that opens files of mqstore.

use mqstore_format::{CrcCheck, RecordView};
use mqstore_io::Access;

use crate::CompactedQueue;
use crate::files::folder::{LOG_DIR, QUEUE_DIR};
use crate::testing::{Broker, Sent, TestStore, compact_now, compacted, offsets, small};

const TOPIC: &str = "ctopic";
const LOG: u64 = 2208;
const QUEUE: u64 = 368;

fn value(offset: i64) -> Sent {
    Sent::new(&format!("k{}", offset % 4), &format!("value {offset:03}"))
}

/// A store in which a broker dispatched records 0 to `count` to its compaction log, and in which only the last records
/// are still in the commit log.
fn dispatched(count: i64) -> (TestStore, Broker) {
    let store = TestStore::new(&[TOPIC]);
    let mut broker = Broker::new(&store.files, LOG, QUEUE);
    for offset in 0..count {
        broker.append(offset, &value(offset));
    }
    (store, broker)
}

#[test]
fn the_worked_example_reads_as_a_broker_reads_it() {
    let (store, _) = dispatched(20);
    let broker = Broker::new(&store.files, LOG, QUEUE);
    assert!([0, 2208, 4416].iter().all(|base| store.files.vfs.stat(&broker.path(LOG_DIR, *base)).is_ok()));
    assert_eq!(offsets(&store.files, TOPIC, 0), (0..20).collect::<Vec<_>>());
    let queue = CompactedQueue::open(&store.files, TOPIC, 0).unwrap().unwrap();
    assert_eq!((queue.min_offset(), queue.max_offset()), (0, 20));
}

/// The files of a broker's first run: file 0 with 10..13, no markers, the active file unchanged.
fn after_first_run(stale: bool) -> (TestStore, Broker) {
    let (store, broker) = dispatched(20);
    for kind in [LOG_DIR, QUEUE_DIR] {
        for base in [0, 2208] {
            if !(stale && base == 0) {
                store.files.vfs.remove_file(&broker.path(kind, base)).unwrap();
            }
        }
    }
    let mut output = Broker::new(&store.files, LOG, QUEUE);
    for offset in 10..14 {
        output.append(offset, &value(offset));
    }
    (store, broker)
}

#[test]
fn after_a_brokers_run_reads_skip_the_gap() {
    for stale in [false, true] {
        let (store, _) = after_first_run(stale);
        assert_eq!(offsets(&store.files, TOPIC, 0), (10..20).collect::<Vec<_>>(), "stale entries: {stale}");
        assert_eq!(offsets(&store.files, TOPIC, 13), (13..20).collect::<Vec<_>>());
        assert_eq!(offsets(&store.files, TOPIC, 20), Vec::<i64>::new());
        let queue = CompactedQueue::open(&store.files, TOPIC, 0).unwrap().unwrap();
        assert_eq!((queue.min_offset(), queue.max_offset()), (10, 20));
    }
}

#[test]
fn compacting_a_brokers_files_keeps_the_newest_of_each_key() {
    for stale in [false, true] {
        let (store, _) = after_first_run(stale);
        let report = compact_now(&store.files, None, &small(), 1).unwrap();
        assert_eq!((report.messages_before, report.messages_after, report.keys), (10, 4, 4));
        assert_eq!(offsets(&store.files, TOPIC, 0), [16, 17, 18, 19]);
        let position = store.files.compaction().join("position-checkpoint");
        let text = store.files.vfs.read_file(&position, 1000).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "{\n\t\"empty\":false,\n\t\"queueOffsetMap\":{\n\t\t\"ctopic_0\":19\n\t}\n}"
        );
    }
}

#[test]
fn the_last_tombstone_takes_the_older_value_too() {
    let (store, mut broker) = dispatched(12);
    broker.append(12, &Sent::new("k0", ""));
    compact_now(&store.files, None, &small(), 1).unwrap();
    assert_eq!(offsets(&store.files, TOPIC, 0), [9, 10, 11]);
}

#[test]
fn a_broker_goes_on_appending_to_our_files() {
    let mut store = TestStore::new(&[TOPIC]);
    store.append_in_turn(TOPIC, 100, 40); // seven records a file: five full files and one with five
    compact_now(&store.files, None, &small(), 1).unwrap();
    let mut broker = Broker::recover(&store.files, LOG, QUEUE);
    for offset in 100..120 {
        let sent = Sent::new(&format!("k{}", offset % 40), "from the broker");
        broker.append(offset, &sent);
        store.sent.get_mut(&(TOPIC.to_owned(), 0)).unwrap().push((offset, sent));
    }
    assert_eq!(offsets(&store.files, TOPIC, 0), (60..120).collect::<Vec<_>>());
    compact_now(&store.files, None, &small(), 1).unwrap();
    assert_eq!(compacted(&store.files, TOPIC, 0), store.dictionary(TOPIC, 0));
}

#[test]
fn closed_files_have_blank_record_and_end_marker() {
    let mut store = TestStore::new(&[TOPIC]);
    store.append_in_turn(TOPIC, 10, 10);
    compact_now(&store.files, None, &small(), 1).unwrap();
    let broker = Broker::recover(&store.files, LOG, QUEUE);
    let read = |kind, base| store.files.vfs.read_file(&broker.path(kind, base), 1 << 20).unwrap();
    let (queue, log) = (read(QUEUE_DIR, 0), read(LOG_DIR, 0));
    assert_eq!((queue.len(), log.len()), (368, 2208));
    assert_eq!(queue[322..], *b"\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xff\0\0\0\0");
    let mut position = 0;
    for offset in 0..7 {
        let record = RecordView::decode(&log[position..]).unwrap();
        assert_eq!((record.queue_offset, record.physical_offset), (offset, position as i64));
        record.check_crc(CrcCheck::ALL).unwrap();
        position += record.size as usize;
    }
    assert_eq!(log[position..position + 4], ((2208 - position) as u32).to_be_bytes());
    assert_eq!(log[position + 4..position + 8], [0xcb, 0xd4, 0x31, 0x94]);
    // The last pair is open: zeros follow, and a broker appends there.
    let (queue, log) = (read(QUEUE_DIR, LOG), read(LOG_DIR, LOG));
    assert!(queue[3 * 46..].iter().all(|byte| *byte == 0));
    let used: usize = (0..3).fold(0, |at, _| at + RecordView::decode(&log[at..]).unwrap().size as usize);
    assert!(log[used..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_property_crc_that_a_broker_left_behind_is_made_anew() {
    let (store, broker) = dispatched(3);
    let log = store.files.vfs.read_file(&broker.path(LOG_DIR, 0), 1 << 20).unwrap();
    let second = RecordView::decode(&log).unwrap().size as usize;
    assert!(RecordView::decode(&log[second..]).unwrap().check_crc(CrcCheck::ALL).is_err());
    compact_now(&store.files, None, &small(), 1).unwrap();
    assert_eq!(compacted(&store.files, TOPIC, 0).len(), 3); // checks all CRCs
}

#[test]
fn logs_under_queue_files_of_another_generation_are_read_by_themselves() {
    // A broker stopped between its switch of logs and queues: new log, old queue.
    let (store, broker) = dispatched(20);
    store.files.vfs.remove_file(&broker.path(LOG_DIR, 0)).unwrap();
    store.files.vfs.remove_file(&broker.path(LOG_DIR, 2208)).unwrap();
    store.files.vfs.remove_file(&broker.path(QUEUE_DIR, 2208)).unwrap();
    let old_queue = store.files.vfs.read_file(&broker.path(QUEUE_DIR, 0), 1 << 20).unwrap();
    let mut output = Broker::new(&store.files, LOG, QUEUE);
    for offset in 10..14 {
        output.append(offset, &value(offset));
    }
    output.write(QUEUE_DIR, 0, 0, &old_queue);
    assert_eq!(offsets(&store.files, TOPIC, 0), (10..20).collect::<Vec<_>>());
    compact_now(&store.files, None, &small(), 1).unwrap();
    assert_eq!(offsets(&store.files, TOPIC, 0), [16, 17, 18, 19]);
}

#[test]
fn a_lost_queue_file_is_made_up_for_by_the_log() {
    let (store, broker) = dispatched(20);
    let file = store.files.vfs.open(&broker.path(QUEUE_DIR, 2208), Access::ReadWrite).unwrap();
    file.write_all_at(&[0; 368], 0).unwrap();
    store.files.vfs.remove_file(&broker.path(QUEUE_DIR, 4416)).unwrap();
    assert_eq!(offsets(&store.files, TOPIC, 0), (0..20).collect::<Vec<_>>());
    assert_eq!(offsets(&store.files, TOPIC, 9), (9..20).collect::<Vec<_>>());
}

#[test]
fn damage_in_compacted_files_is_an_error_and_changes_nothing() {
    let (store, broker) = dispatched(20);
    let path = broker.path(LOG_DIR, 2208);
    let log = store.files.vfs.open(&path, Access::ReadWrite).unwrap();
    log.write_all_at(b"#", 90).unwrap();
    let queue = CompactedQueue::open(&store.files, TOPIC, 0).unwrap().unwrap();
    let read: Vec<_> = queue.read(0).collect();
    assert_eq!(read.len(), 8);
    assert!(read[7].as_ref().unwrap_err().to_string().contains("00002208"));
    let report = compact_now(&store.files, None, &small(), 1).unwrap();
    assert!(report.skipped[0].contains("00002208"), "{:?}", report.skipped);
    assert!(store.files.vfs.stat(&path).is_ok());
}

#[test]
fn unfinished_work_of_a_broker_is_left_to_it() {
    for (name, kind) in
        [("00000000000000000000.delete", LOG_DIR), ("replicating/00000000000000000000", QUEUE_DIR)]
    {
        let (store, broker) = dispatched(20);
        let path = broker.path(kind, 0).parent().unwrap().join(name);
        store.files.vfs.create_dir_all(path.parent().unwrap()).unwrap();
        store.files.vfs.create_new(&path).unwrap();
        let report = compact_now(&store.files, None, &small(), 1).unwrap();
        assert!(report.skipped[0].starts_with("ctopic/0: "), "{:?}", report.skipped);
        assert!(store.files.vfs.stat(&path).is_ok());
    }
    // The output of a killed run consists of files that still exist.
    let (store, broker) = dispatched(20);
    let path = broker.path(LOG_DIR, 0).parent().unwrap().join("compacting");
    store.files.vfs.create_dir_all(&path).unwrap();
    store.files.vfs.create_new(&path.join("00000000000000000000")).unwrap();
    assert_eq!(compact_now(&store.files, None, &small(), 1).unwrap().messages_after, 4);
    assert!(store.files.vfs.stat(&path).is_err());
}

#[test]
fn the_lengths_of_files_that_are_there_win() {
    let (store, _) = dispatched(20);
    let wishes = crate::CompactionOptions::default();
    compact_now(&store.files, None, &wishes, 1).unwrap();
    let broker = Broker::recover(&store.files, LOG, QUEUE);
    assert_eq!(store.files.vfs.stat(&broker.path(LOG_DIR, 0)).unwrap().len, LOG);
}
