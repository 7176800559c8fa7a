//! Tests of queues on a simulated file system, and on a real one for kinds of files.

mod faults;
mod foreign_files;
mod order;
mod recovery;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_format::{BLANK_UNIT, CqUnit};
use mqstore_io::{Access, FileCache, FileKind, ManualClock, OsVfs, SimVfs, Vfs};

use super::{ConsumeQueue, QueueSet, WriteOutcome};
use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;
use mqstore_base::topic_floors::{TopicFloor, TopicFloors};

/// Byte length of files with five units.
const SMALL: u64 = 100;

fn files_on(vfs: Arc<dyn Vfs>, root: &Path) -> StoreFiles {
    vfs.create_dir_all(root).unwrap();
    vfs.sync_dir(root.parent().unwrap()).unwrap();
    StoreFiles::new(vfs, Arc::new(ManualClock::new(1_700_000_000_000)), root)
}

fn sim_files(sim: &SimVfs) -> StoreFiles {
    files_on(Arc::new(sim.clone()), Path::new("/store"))
}

/// Returns the unit of the `n`th record in a log with records of 100 bytes.
fn unit(n: i64) -> CqUnit {
    CqUnit { physical_offset: n * 100, size: 100, tags_code: n * 7 }
}

fn units(range: std::ops::Range<i64>) -> Vec<CqUnit> {
    range.map(unit).collect()
}

fn open(files: &StoreFiles, access: Access) -> QueueSet {
    let set = QueueSet::load(files, SMALL, access, &TopicFloors::default()).unwrap();
    set.recover_bounds().unwrap();
    set
}

fn queue(set: &QueueSet) -> Arc<ConsumeQueue> {
    set.get_or_create("orders", 3).unwrap()
}

fn put(queue: &ConsumeQueue, first: i64, units: &[CqUnit]) -> (WriteOutcome, u64) {
    let outcome = queue.write(first, units).unwrap();
    let committed = queue.commit(first + units.len() as i64).unwrap();
    (outcome, committed.gap_units)
}

fn read_all(queue: &ConsumeQueue) -> Vec<CqUnit> {
    let mut out = Vec::new();
    queue.read(queue.min_offset(), usize::MAX, &mut out).unwrap();
    out
}

fn bounds(queue: &ConsumeQueue) -> (i64, i64, i64) {
    (queue.min_offset(), queue.max_offset(), queue.max_physical_end())
}

/// Returns all files below `dir` with their contents.
fn tree(vfs: &dyn Vfs, dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in vfs.list(dir).unwrap_or_default() {
        let path = dir.join(&entry.name);
        match entry.stat.kind {
            FileKind::Directory => found.extend(tree(vfs, &path)),
            FileKind::File => {
                found.insert(path.clone(), vfs.read_file(&path, 1 << 30).unwrap());
            }
            FileKind::Symlink | FileKind::Other => {
                found.insert(path, format!("{:?}", entry.stat.kind).into_bytes());
            }
        }
    }
    found
}

fn queue_tree(files: &StoreFiles) -> BTreeMap<String, Vec<u8>> {
    let root = files.consume_queue();
    let all = tree(&*files.vfs, &root);
    all.into_iter()
        .map(|(path, bytes)| (path.strip_prefix(&root).unwrap().display().to_string(), bytes))
        .collect()
}

fn encode(units: &[CqUnit], len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = units.iter().flat_map(CqUnit::encode).collect();
    bytes.resize(len, 0);
    bytes
}

#[test]
fn a_queue_that_starts_late_has_blanks_in_front() {
    let sim = SimVfs::default();
    let files = sim_files(&sim);
    let set = QueueSet::load(&files, 1000, Access::ReadWrite, &TopicFloors::default()).unwrap();
    let queue = queue(&set);
    assert_eq!(put(&queue, 130, &[unit(0)]).1, 0);
    assert_eq!(bounds(&queue), (130, 131, 100));
    let tree = queue_tree(&files);
    assert_eq!(tree.keys().collect::<Vec<_>>(), ["orders/3/00000000000000002000"]);
    let mut expected = vec![BLANK_UNIT; 30];
    expected.push(unit(0));
    assert_eq!(tree["orders/3/00000000000000002000"], encode(&expected, 1000));
    assert_eq!(&tree["orders/3/00000000000000002000"][..12], b"\0\0\0\0\0\0\0\0\x7f\xff\xff\xff");
    assert_eq!(read_all(&queue), [unit(0)]);
    // The same after a restart, although the first slot of the file has offset 100.
    let set = open(&files, Access::Read);
    assert_eq!(bounds(&set.get("orders", 3).unwrap()), (130, 131, 100));
    assert_eq!(set.file_bytes(), 1000);
}

#[test]
fn files_get_their_name_with_the_first_commit() {
    let sim = SimVfs::default();
    let files = sim_files(&sim);
    let set = open(&files, Access::ReadWrite);
    let queue = queue(&set);
    queue.write(0, &units(0..8)).unwrap();
    assert!(queue_tree(&files).is_empty());
    assert_eq!(tree(&sim, &files.staging()).len(), 2);
    assert_eq!(bounds(&queue), (0, 0, 0));
    queue.commit(5).unwrap();
    assert_eq!(queue_tree(&files).into_keys().collect::<Vec<_>>(), ["orders/3/00000000000000000000"]);
    assert_eq!(bounds(&queue), (0, 5, 500));
    queue.commit(7).unwrap();
    assert_eq!(bounds(&queue), (0, 7, 700));
    assert_eq!(queue_tree(&files).len(), 2);
    assert!(tree(&sim, &files.staging()).is_empty());
    // A commit cannot publish unwritten units.
    queue.commit(99).unwrap();
    assert_eq!(bounds(&queue), (0, 8, 800));
    assert_eq!(read_all(&queue), units(0..8));
    assert_eq!(set.topics(), BTreeMap::from([("orders".to_owned(), vec![3])]));
    assert!(sim.violations().is_empty());
}

#[test]
fn reads_stop_at_the_commit_position_and_cross_files() {
    let sim = SimVfs::default();
    let set = open(&sim_files(&sim), Access::ReadWrite);
    let queue = queue(&set);
    put(&queue, 0, &units(0..23));
    let mut out = Vec::new();
    queue.read(3, 9, &mut out).unwrap();
    assert_eq!(out, units(3..12));
    queue.read(21, 9, &mut out).unwrap();
    assert_eq!(out[9..], units(21..23));
    out.clear();
    queue.read(23, 9, &mut out).unwrap();
    assert!(out.is_empty());
    for from in [-1, 24, i64::MIN, i64::MAX] {
        let error = queue.read(from, 1, &mut out).unwrap_err();
        assert!(
            matches!(error, StoreError::OffsetOutOfRange { min_offset: 0, max_offset: 23, .. }),
            "{error}"
        );
    }
}

#[test]
fn a_gap_becomes_blank_units_and_shifts_nothing() {
    let sim = SimVfs::default();
    let files = sim_files(&sim);
    let set = open(&files, Access::ReadWrite);
    let queue = queue(&set);
    assert_eq!(put(&queue, 0, &units(0..3)).1, 0);
    assert_eq!(put(&queue, 17, &units(17..18)).1, 14);
    assert_eq!(bounds(&queue), (0, 18, 1800));
    let mut expected = units(0..3);
    expected.resize(17, BLANK_UNIT);
    expected.push(unit(17));
    assert_eq!(read_all(&queue), expected);
    assert_eq!(queue_tree(&files).len(), 4);
    let reopened = open(&files, Access::Read);
    assert_eq!(read_all(&reopened.get("orders", 3).unwrap()), expected);
}

#[test]
fn the_first_record_in_the_log_keeps_the_slot() {
    let sim = SimVfs::default();
    let set = open(&sim_files(&sim), Access::ReadWrite);
    let queue = queue(&set);
    put(&queue, 0, &units(10..14));
    let same = WriteOutcome { unchanged: 4, ..WriteOutcome::default() };
    assert_eq!(queue.write(0, &units(10..14)).unwrap(), same);
    let later = WriteOutcome { kept: 4, ..WriteOutcome::default() };
    assert_eq!(queue.write(0, &units(20..24)).unwrap(), later);
    let mixed = [unit(10), unit(2), unit(22), unit(3)];
    let outcome = WriteOutcome { unchanged: 1, written: 2, kept: 1, ..WriteOutcome::default() };
    assert_eq!(queue.write(0, &mixed).unwrap(), outcome);
    assert_eq!(read_all(&queue), [unit(10), unit(2), unit(12), unit(3)]);
    // The physical end is that of the unit that stays.
    assert_eq!(put(&queue, 3, &[unit(90)]).0.kept, 1);
    queue.write(4, &[unit(30), unit(31)]).unwrap();
    queue.write(5, &[unit(40)]).unwrap();
    queue.commit(6).unwrap();
    assert_eq!(bounds(&queue), (0, 6, 3200));
}

#[test]
fn a_record_dispatched_again_fills_its_blank() {
    let sim = SimVfs::default();
    let set = open(&sim_files(&sim), Access::ReadWrite);
    let queue = queue(&set);
    put(&queue, 0, &units(0..2));
    put(&queue, 4, &units(4..6));
    assert_eq!(queue.write(2, &units(2..4)).unwrap().written, 2);
    assert_eq!(read_all(&queue), units(0..6));
}

#[test]
fn units_without_a_place_are_refused_and_the_rest_goes_on() {
    let sim = SimVfs::default();
    let files = sim_files(&sim);
    let set = open(&files, Access::ReadWrite);
    let queue = queue(&set);
    put(&queue, 100, &units(100..103));
    let refused = |first: i64, unit: CqUnit| {
        let outcome = queue.write(first, &[unit]).unwrap();
        assert_eq!((outcome.refused, outcome.written), (1, 0), "{first} {unit:?}");
        outcome.refusal.unwrap()
    };
    for first in [-1, i64::MIN, i64::MAX, i64::MAX / 20] {
        assert!(refused(first, unit(1)).contains("beyond the format"));
    }
    assert!(refused(3, unit(200)).contains("deleted or lost"));
    // The log has space for 2 records in between, and for many thousand.
    assert!(refused(1_000_000, unit(105)).contains("too short"));
    assert!(refused(1_000_000, unit(104_000)).contains("too short"));
    for broken in [BLANK_UNIT, CqUnit { size: 0, ..unit(4) }, CqUnit { physical_offset: -1, ..unit(4) }] {
        assert!(refused(103, broken).contains("no possible log offset"));
    }
    let outcome = queue.write(103, &[unit(103), BLANK_UNIT, unit(105)]).unwrap();
    assert_eq!((outcome.written, outcome.refused), (2, 1));
    assert_eq!(queue.commit(106).unwrap().gap_units, 1);
    assert_eq!(queue.max_offset(), 106);
    assert_eq!(queue.write(0, &[]).unwrap(), WriteOutcome::default());
}

#[test]
fn a_read_only_set_changes_nothing() {
    let sim = SimVfs::default();
    let files = sim_files(&sim);
    put(&queue(&open(&files, Access::ReadWrite)), 7, &units(7..20));
    let before = tree(&sim, Path::new("/"));
    let set = open(&files, Access::Read);
    let queue = set.get("orders", 3).unwrap();
    assert!(matches!(queue.write(20, &units(20..21)), Err(StoreError::ReadOnly { .. })));
    assert!(matches!(queue.truncate(0), Err(StoreError::ReadOnly { .. })));
    assert!(matches!(set.get_or_create("new", 0), Err(StoreError::ReadOnly { .. })));
    assert!(matches!(set.set_aside("orders", 3), Err(StoreError::ReadOnly { .. })));
    assert_eq!(queue.max_offset_for(1550).unwrap(), 16);
    queue.clamp(16).unwrap();
    assert_eq!(bounds(&queue), (7, 16, 1600));
    assert_eq!(read_all(&queue), units(7..16));
    queue.clamp(99).unwrap();
    assert_eq!(queue.max_offset(), 16);
    set.flush().unwrap();
    assert_eq!(tree(&sim, Path::new("/")), before);
}

#[test]
fn names_that_are_no_folder_are_refused() {
    let sim = SimVfs::default();
    let set = open(&sim_files(&sim), Access::ReadWrite);
    for topic in ["", ".", "..", "a/b", "a\0b"] {
        assert!(matches!(set.get_or_create(topic, 0), Err(StoreError::InvalidMessage { .. })), "{topic:?}");
    }
    assert!(set.get_or_create("orders", -1).is_err());
    assert_eq!(set.count(), 0);
    assert!(set.get_or_create("%LMQ%x", 0).is_ok());
}

#[test]
fn a_queue_can_be_set_aside_and_made_again() {
    let sim = SimVfs::default();
    let files = sim_files(&sim);
    let set = open(&files, Access::ReadWrite);
    let queue = queue(&set);
    put(&queue, 0, &units(0..8));
    let aside = set.set_aside("orders", 3).unwrap().unwrap();
    assert!(aside.starts_with(files.lost_and_found()));
    assert_eq!(tree(&sim, &aside).len(), 2);
    assert_eq!(bounds(&queue), (0, 0, 0));
    assert!(queue_tree(&files).is_empty());
    assert_eq!(set.set_aside("orders", 3).unwrap(), None);
    put(&queue, 5, &units(5..7));
    let again = set.set_aside("orders", 3).unwrap().unwrap();
    assert_ne!(again, aside);
    put(&queue, 5, &units(5..7));
    assert_eq!(read_all(&queue), units(5..7));
    set.flush().unwrap();
}

#[test]
fn two_thousand_queues_need_few_descriptors() {
    let folder = tempfile::tempdir().unwrap();
    let files = files_on(Arc::new(OsVfs::new()), folder.path());
    let cache = Arc::new(FileCache::new(Arc::clone(&files.vfs), 64));
    let load = |access| QueueSet::load_with(&files, SMALL, access, &cache, &TopicFloors::default()).unwrap();
    let set = load(Access::ReadWrite);
    for round in 0..3 {
        for id in 0..2000 {
            let queue = set.get_or_create(&format!("topic-{}", id % 40), id).unwrap();
            put(&queue, round * 2, &units(round * 2..round * 2 + 2));
            assert!(cache.len() <= 64);
        }
    }
    let set = load(Access::Read);
    assert_eq!((set.count(), set.topics().len(), set.strays().len()), (2000, 40, 0));
    set.recover_bounds().unwrap();
    for queue in set.all() {
        assert_eq!(bounds(&queue), (0, 6, 600));
        assert_eq!(read_all(&queue), units(0..6));
        assert_eq!(queue.damaged(), None);
    }
    assert!(cache.len() <= 64);
}

#[test]
fn refreshing_finds_the_queues_and_units_of_another_process() {
    let sim = SimVfs::default();
    let files = sim_files(&sim);
    let writer = open(&files, Access::ReadWrite);
    put(&queue(&writer), 0, &units(0..3));
    let reader = open(&files, Access::Read);
    let seen = reader.get("orders", 3).unwrap();
    put(&queue(&writer), 3, &units(3..13));
    put(&writer.get_or_create("later", 0).unwrap(), 0, &units(0..1));
    assert_eq!(seen.max_offset(), 3);
    seen.recover_bounds().unwrap();
    assert_eq!(read_all(&seen), units(0..13));
    assert!(reader.get("later", 0).is_none());
    reader.refresh().unwrap();
    let later = reader.get("later", 0).unwrap();
    later.recover_bounds().unwrap();
    assert_eq!(read_all(&later), units(0..1));
    assert!(Arc::ptr_eq(&seen, &reader.get("orders", 3).unwrap()));
}
