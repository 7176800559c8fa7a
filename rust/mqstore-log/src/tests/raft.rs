//! Walks over the data files of a DLedger member: item by item, in runs, and as outlines. All must find the same
//! records.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_format::{
    Host, RAFT_HEADER_BYTES, RaftHeader, RecordSpec, SysFlag, offset_file_name, patch_position,
};
use mqstore_io::{ManualClock, SimVfs, Vfs};

use crate::commit_log::{CutRun, LogScanner, RaftItem, RaftWalk, ScanChecks, ScanItem, SegmentList};
use mqstore_base::store_files::StoreFiles;

const FILE_BYTES: usize = 4096;
const FIRST: u64 = 3 * FILE_BYTES as u64;

/// What a data file contains.
enum Part {
    Record(usize),
    /// An entry without a record, with a body of this number of bytes.
    Empty(usize),
    /// A blank of this number of bytes; 0 is the rest of the file.
    Blank(usize),
}

/// The bytes of the log from `FIRST` on, and the log offsets of its records.
#[derive(Default)]
struct Log {
    bytes: Vec<u8>,
    records: Vec<u64>,
    entries: i64,
}

impl Log {
    fn of(parts: &[Part]) -> Self {
        let mut log = Self::default();
        for part in parts {
            let free = FILE_BYTES - log.bytes.len() % FILE_BYTES;
            let at = FIRST + log.bytes.len() as u64;
            match part {
                Part::Record(body) => {
                    let record = record(*body, at + RAFT_HEADER_BYTES as u64);
                    assert!(RAFT_HEADER_BYTES + record.len() + 8 <= free);
                    log.header(1, record.len());
                    log.records.push(at + RAFT_HEADER_BYTES as u64);
                    log.bytes.extend(record);
                }
                Part::Empty(body) => {
                    log.header(2, *body);
                    log.bytes.resize(log.bytes.len() + body, 7);
                }
                Part::Blank(bytes) => {
                    let size = if *bytes == 0 { free } else { *bytes };
                    log.bytes.extend((-1_i32).to_be_bytes());
                    log.bytes.extend((size as i32).to_be_bytes());
                    log.bytes.resize(log.bytes.len() + size - 8, 0);
                }
            }
        }
        log
    }

    fn header(&mut self, magic: i32, body: usize) {
        let at = (FIRST + self.bytes.len() as u64) as i64;
        let mut header = RaftHeader::encode_normal(self.entries, 1, at, body as i32);
        header[..4].copy_from_slice(&magic.to_be_bytes());
        self.entries += 1;
        self.bytes.extend(header);
    }

    fn end(&self) -> u64 {
        FIRST + self.bytes.len() as u64
    }

    /// Writes the files of a new store and lists them.
    fn list(&self) -> Arc<SegmentList> {
        let vfs: Arc<dyn Vfs> = Arc::new(SimVfs::default());
        let data = PathBuf::from("/store/dledger-n0/data");
        vfs.create_dir_all(&data).unwrap();
        for (number, part) in self.bytes.chunks(FILE_BYTES).enumerate() {
            let base = FIRST + (number * FILE_BYTES) as u64;
            let file = vfs.create_new(&data.join(offset_file_name(base))).unwrap();
            file.set_len(FILE_BYTES as u64).unwrap();
            file.write_all_at(part, 0).unwrap();
        }
        let files = StoreFiles::new(vfs, Arc::new(ManualClock::new(1)), Path::new("/store"));
        Arc::new(SegmentList::load(&files.for_reading().unwrap()).unwrap())
    }
}

fn record(body: usize, offset: u64) -> Vec<u8> {
    let host = Host { ip: std::net::IpAddr::from([127, 0, 0, 1]), port: 10911 };
    let mut bytes = Vec::new();
    let spec = RecordSpec {
        topic: "orders",
        queue_id: 0,
        flag: 0,
        queue_offset: 0,
        physical_offset: 0,
        sys_flag: SysFlag(0),
        born_timestamp: 1,
        born_host: host,
        store_timestamp: 2,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: &vec![b'x'; body],
        properties: b"",
        property_crc: false,
    };
    spec.encode_into(&mut bytes).unwrap();
    patch_position(&mut bytes, 5, offset as i64, 2).unwrap();
    bytes
}

/// Returns the log offsets of the records that a walk by items finds from `from` to `limit`, and of the damage.
fn by_items(list: &Arc<SegmentList>, from: u64, limit: u64) -> (Vec<u64>, Vec<u64>) {
    let (mut found, mut damaged) = (Vec::new(), Vec::new());
    let mut scanner = LogScanner::new(Arc::clone(list), from, limit, ScanChecks { crc: true });
    loop {
        let at = scanner.position();
        match scanner.next_item().unwrap() {
            ScanItem::Record(record) => {
                assert_eq!(record.physical_offset as u64, at);
                found.push(at);
            }
            ScanItem::Filler { offset } => assert_eq!(offset, at),
            ScanItem::End { .. } => return (found, damaged),
            ScanItem::Damaged(damage) => {
                damaged.push(damage.offset);
                if scanner.skip(&damage).unwrap().is_none() {
                    return (found, damaged);
                }
            }
        }
    }
}

/// The same by runs of at most `most` bytes.
fn by_runs(list: &Arc<SegmentList>, from: u64, limit: u64, most: u64) -> Vec<u64> {
    let mut found = Vec::new();
    let mut scanner = LogScanner::new(Arc::clone(list), from, limit, ScanChecks { crc: true });
    loop {
        match scanner.cut(most, Vec::new()).unwrap() {
            CutRun::Records(run) => {
                let mut skipped = Vec::new();
                run.views(&mut skipped, |_, offset| found.push(offset));
            }
            CutRun::Damaged(damage) if scanner.skip(&damage).unwrap().is_some() => {}
            CutRun::Damaged(_) | CutRun::End => return found,
        }
    }
}

/// The same by outlines; other items are passed one by one.
fn record_offsets(list: &Arc<SegmentList>, from: u64, limit: u64) -> Vec<u64> {
    let mut found = Vec::new();
    let mut scanner = LogScanner::new(Arc::clone(list), from, limit, ScanChecks { crc: true });
    loop {
        scanner.outlines(limit, |_, offset, _| found.push(offset)).unwrap();
        let at = scanner.position();
        match scanner.next_item().unwrap() {
            ScanItem::Record(_) => found.push(at),
            ScanItem::Filler { .. } => {}
            ScanItem::End { .. } => return found,
            ScanItem::Damaged(damage) => {
                if scanner.skip(&damage).unwrap().is_none() {
                    return found;
                }
            }
        }
    }
}

fn sample() -> Log {
    use Part::{Blank, Empty, Record};
    Log::of(&[
        Blank(64),
        Record(10),
        Empty(0),
        Empty(30),
        Record(0),
        Record(900),
        Record(2000),
        Blank(0),
        Empty(0),
        Record(3500),
        Blank(0),
        Record(100),
        Record(200),
        Empty(0),
    ])
}

#[test]
fn all_walks_find_the_same_records() {
    let log = sample();
    let list = log.list();
    assert_eq!((list.entries_from(), list.min_offset()), (Some(FIRST), FIRST));
    for limit in [log.end(), u64::MAX] {
        assert_eq!(by_items(&list, FIRST, limit), (log.records.clone(), vec![]));
        for most in [1, 48, 84, 150, 1000, 1 << 20] {
            assert_eq!(by_runs(&list, FIRST, limit, most), log.records, "{most}");
        }
        assert_eq!(record_offsets(&list, FIRST, limit), log.records);
    }
    // From a record on, as after a look-up, and up to a record.
    for (number, from) in log.records.iter().enumerate() {
        assert_eq!(by_items(&list, *from, u64::MAX).0, log.records[number..]);
        assert_eq!(by_runs(&list, *from, u64::MAX, 500), log.records[number..]);
        assert_eq!(by_items(&list, FIRST, *from).0, log.records[..number]);
        assert_eq!(record_offsets(&list, FIRST, *from), log.records[..number]);
    }
}

#[test]
fn a_damaged_header_hides_no_record() {
    let log = sample();
    for record in &log.records {
        let header = (record - FIRST) as usize - RAFT_HEADER_BYTES;
        for byte in 0..RAFT_HEADER_BYTES {
            let mut damaged = sample();
            damaged.bytes[header + byte] ^= 0x22;
            let list = damaged.list();
            assert_eq!(by_items(&list, FIRST, log.end()), (log.records.clone(), vec![]), "{record} {byte}");
            assert_eq!(by_runs(&list, FIRST, log.end(), 600), log.records, "{record} {byte}");
            assert_eq!(record_offsets(&list, FIRST, log.end()), log.records, "{record} {byte}");
        }
    }
}

#[test]
fn a_damaged_record_hides_no_other() {
    let log = sample();
    for (number, record) in log.records.iter().enumerate() {
        // Size, magic, own log offset, and the length of the topic.
        for byte in [2, 6, 30, 84] {
            let mut damaged = sample();
            damaged.bytes[(record - FIRST) as usize + byte] ^= 0x41;
            let list = damaged.list();
            let mut others = log.records.clone();
            others.remove(number);
            let (found, places) = by_items(&list, FIRST, log.end());
            assert_eq!((&found, places.len()), (&others, 1), "{record} {byte}");
            assert_eq!(by_runs(&list, FIRST, log.end(), 600), others, "{record} {byte}");
            assert_eq!(record_offsets(&list, FIRST, log.end()), others, "{record} {byte}");
        }
    }
}

#[test]
fn the_walk_over_entries_counts_all_of_them() {
    let log = sample();
    let list = log.list();
    let mut walk = RaftWalk::new(Arc::clone(&list), FIRST, log.end());
    let (mut indexes, mut records) = (Vec::new(), Vec::new());
    loop {
        match walk.next_item().unwrap() {
            RaftItem::Entry(entry) => {
                assert_eq!(entry.fault, None);
                indexes.push(entry.header.index);
                records.extend(entry.record.map(|_| entry.offset + RAFT_HEADER_BYTES as u64));
            }
            RaftItem::Blank => {}
            RaftItem::End(end) => {
                assert_eq!(end, log.end());
                break;
            }
            RaftItem::Damaged(offset) => panic!("damage at {offset}"),
        }
    }
    assert_eq!(indexes, (0..log.entries).collect::<Vec<_>>());
    assert_eq!(records, log.records);
}
