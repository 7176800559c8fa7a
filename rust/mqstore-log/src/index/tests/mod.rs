//! Tests of the index on a simulated file system, and on a real one for kinds of files.

mod damage;
mod faults;
mod geometry;
mod model;
mod space;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_format::{IndexEntry, IndexGeometry, IndexHeader, index_key_hash};
use mqstore_io::{Access, FileKind, ManualClock, OsVfs, SimVfs, Vfs};

use super::{Candidates, IndexSet, NewEntry};
use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;

const T: i64 = 1_700_000_000_123;
/// Files with seven entries.
const TINY: IndexGeometry = IndexGeometry { slots: 5, entries: 8 };

struct World {
    sim: SimVfs,
    clock: Arc<ManualClock>,
    files: StoreFiles,
}

impl World {
    fn new(sim: &SimVfs) -> Self {
        let root = Path::new("/store");
        sim.create_dir_all(root).unwrap();
        sim.sync_dir(Path::new("/")).unwrap();
        let clock = Arc::new(ManualClock::new(T));
        let files = StoreFiles::new(Arc::new(sim.clone()), Arc::clone(&clock) as _, root);
        Self { sim: sim.clone(), clock, files }
    }

    fn open(&self, access: Access) -> IndexSet {
        IndexSet::load(&self.files, None, TINY, access).unwrap()
    }

    fn contents(&self) -> Vec<(String, Vec<u8>)> {
        let folder = self.files.index();
        let name = |path: PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        tree(&self.sim, &folder).into_iter().map(|(path, bytes)| (name(path), bytes)).collect()
    }
}

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

fn hash(key: &str) -> i32 {
    index_key_hash("TopicTest", key)
}

fn key(key: &str, physical_offset: i64, store_timestamp: i64) -> NewEntry {
    NewEntry { hash: hash(key), physical_offset, store_timestamp, of_tags: false }
}

/// Returns the `n`th of many entries with few different keys.
fn nth(n: i64) -> NewEntry {
    key(["a", "b", "c"][n as usize % 3], n * 100, T + n * 700)
}

fn all(set: &IndexSet, key: &str) -> Vec<i64> {
    let found = set.candidates(hash(key), i64::MIN, i64::MAX).unwrap();
    assert_eq!(found.damaged, None);
    found.offsets
}

fn header(bytes: &[u8]) -> IndexHeader {
    IndexHeader::decode(bytes[..40].try_into().unwrap())
}

fn slot(bytes: &[u8], slot: usize) -> u32 {
    u32::from_be_bytes(bytes[40 + 4 * slot..][..4].try_into().unwrap())
}

fn entry(bytes: &[u8], number: u32) -> IndexEntry {
    IndexEntry::decode(bytes[TINY.entry_position(number) as usize..][..20].try_into().unwrap())
}

#[test]
fn the_first_entry_of_the_first_file() {
    let world = World::new(&SimVfs::default());
    let set = world.open(Access::ReadWrite);
    assert_eq!((set.file_count(), set.end_physical()), (0, 0));
    set.put(&[key("KeyA", 1024, T)]).unwrap();
    let files = world.contents();
    assert_eq!(files.len(), 1);
    // 2023-11-14 22:13:20.123 on a clock without a time zone.
    assert_eq!(files[0].0, "20231114221320123");
    let bytes = &files[0].1;
    assert_eq!(bytes.len(), 40 + 4 * 5 + 20 * 8);
    let expected = b"\x62\xc2\xdd\x1c\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\0\0";
    assert_eq!(bytes[TINY.entry_position(1) as usize..][..20], *expected);
    let head = b"\0\0\x01\x8b\xcf\xe5\x68\x7b\0\0\x01\x8b\xcf\xe5\x68\x7b\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\x04\0\0\0\0\x01\0\0\0\x02";
    assert_eq!(bytes[..40], *head);
    assert_eq!((set.end_physical(), all(&set, "KeyA")), (1024, vec![1024]));
    assert!(all(&set, "KeyB").is_empty());
    assert!(world.sim.violations().is_empty());
}

#[test]
fn a_chain_goes_from_the_newest_to_the_oldest() {
    let world = World::new(&SimVfs::default());
    let set = world.open(Access::ReadWrite);
    set.put(&[key("KeyA", 0, T), key("KeyA", 200, T + 2500)]).unwrap();
    let bytes = &world.contents()[0].1;
    assert_eq!(slot(bytes, 1), 2);
    let second = IndexEntry { hash: hash("KeyA"), physical_offset: 200, time_diff_s: 2, previous: 1 };
    assert_eq!(entry(bytes, 2), second);
    assert_eq!((header(bytes).slot_count, header(bytes).index_count), (1, 3));
    assert_eq!(all(&set, "KeyA"), [200, 0]);
}

#[test]
fn a_rolled_file_begins_with_the_end_of_the_one_before() {
    let world = World::new(&SimVfs::default());
    let set = world.open(Access::ReadWrite);
    let fill: Vec<_> = (0..7).map(|n| key("x", n * 100, T + n * 10_000)).collect();
    set.put(&fill).unwrap();
    // The file is full with N - 1 entries, and no empty file follows.
    assert_eq!(world.contents().len(), 1);
    world.clock.set(T + 90_000);
    set.put(&[key("KeyA", 700, T + 90_000)]).unwrap();
    let files = world.contents();
    assert_eq!(
        files.iter().map(|file| file.0.as_str()).collect::<Vec<_>>(),
        ["20231114221320123", "20231114221450123"]
    );
    assert_eq!(header(&files[0].1).index_count, 8);
    assert_eq!(entry(&files[1].1, 1).time_diff_s, 30);
    let own = IndexHeader {
        begin_timestamp: T + 90_000,
        end_timestamp: T + 90_000,
        begin_physical: 700,
        end_physical: 700,
        slot_count: 1,
        index_count: 2,
    };
    assert_eq!(header(&files[1].1), own);
    // RocketMQ finds the entry only from T + 120 s on; mqstore finds it at its own time.
    for (begin, end, hit) in
        [(T + 90_000, T + 90_000, true), (T + 90_001, i64::MAX, false), (0, T + 89_999, false)]
    {
        assert_eq!(!set.candidates(hash("KeyA"), begin, end).unwrap().offsets.is_empty(), hit);
    }
    assert_eq!(all(&set, "x"), [600, 500, 400, 300, 200, 100, 0]);
}

#[test]
fn the_keys_of_one_record_may_lie_in_two_files() {
    let world = World::new(&SimVfs::default());
    let set = world.open(Access::ReadWrite);
    let mut entries: Vec<_> = (0..6).map(nth).collect();
    entries.extend([key("k1", 600, T), key("k2", 600, T), key("k3", 600, T)]);
    set.put(&entries).unwrap();
    assert_eq!(set.file_count(), 2);
    for key in ["k1", "k2", "k3"] {
        assert_eq!(all(&set, key), [600]);
    }
}

#[test]
fn names_increase_although_the_clock_does_not() {
    let world = World::new(&SimVfs::default());
    let set = world.open(Access::ReadWrite);
    for n in 0..6 {
        let entries: Vec<_> = (n * 7..n * 7 + 7).map(nth).collect();
        world.clock.set(T - 1000 * (n % 3));
        set.put(&entries).unwrap();
    }
    let names: Vec<_> = world.contents().into_iter().map(|file| file.0).collect();
    let millis: Vec<_> = names.iter().map(|name| name.strip_prefix("20231114221320").unwrap()).collect();
    assert_eq!(millis, ["123", "124", "125", "126", "127", "128"]);
    // After a restart, the set knows the existing names, those of strays too.
    world.sim.create_new(&world.files.index().join("20301114221320123")).unwrap();
    let set = world.open(Access::ReadWrite);
    set.put(&[nth(42)]).unwrap();
    assert_eq!(world.contents().last().unwrap().0, "20301114221320124");
}

#[test]
fn a_taken_name_is_passed_over() {
    let world = World::new(&SimVfs::default());
    let set = world.open(Access::ReadWrite);
    world.sim.create_dir_all(&world.files.index().join("20231114221320123")).unwrap();
    set.put(&[nth(0)]).unwrap();
    assert_eq!(world.contents().last().unwrap().0, "20231114221320124");
}

#[test]
fn records_before_the_end_are_there_already() {
    let world = World::new(&SimVfs::default());
    let set = world.open(Access::ReadWrite);
    set.put(&[key("a", 100, T), key("b", 200, T)]).unwrap();
    set.put(&[key("a", 100, T), key("b", 200, T), key("c", 200, T)]).unwrap();
    let bytes = &world.contents()[0].1;
    // The last record is indexed again, as in RocketMQ.
    assert_eq!(header(bytes).index_count, 5);
    assert_eq!((all(&set, "a"), all(&set, "b"), all(&set, "c")), (vec![100], vec![200], vec![200]));
}

#[test]
fn a_restart_goes_on_in_the_same_file() {
    let whole = World::new(&SimVfs::default());
    let entries: Vec<_> = (0..20).map(nth).collect();
    whole.open(Access::ReadWrite).put(&entries).unwrap();
    let parts = World::new(&SimVfs::default());
    for entry in &entries {
        parts.open(Access::ReadWrite).put(&[*entry]).unwrap();
    }
    assert_eq!(parts.contents(), whole.contents());
    assert_eq!(all(&parts.open(Access::Read), "a"), [1800, 1500, 1200, 900, 600, 300, 0]);
}

#[test]
fn a_reader_in_another_process_sees_what_the_writer_adds() {
    let world = World::new(&SimVfs::default());
    let writer = world.open(Access::ReadWrite);
    writer.put(&[nth(0)]).unwrap();
    let reader = world.open(Access::Read);
    assert_eq!(all(&reader, "a"), [0]);
    writer.put(&(1..7).map(nth).collect::<Vec<_>>()).unwrap();
    let before = tree(&world.sim, Path::new("/"));
    assert_eq!(all(&reader, "a"), [600, 300, 0]);
    assert!(matches!(reader.put(&[nth(9)]), Err(StoreError::ReadOnly { .. })));
    assert!(matches!(reader.drop_from(0), Err(StoreError::ReadOnly { .. })));
    assert!(matches!(reader.remove_all(), Err(StoreError::ReadOnly { .. })));
    reader.flush().unwrap();
    assert_eq!(tree(&world.sim, Path::new("/")), before);
    // A file that is removed meanwhile only loses hits; the lookup does not fail.
    writer.remove_all().unwrap();
    assert!(world.open(Access::Read).candidates(hash("a"), 0, i64::MAX).unwrap().offsets.is_empty());
}

#[test]
fn dropping_takes_whole_files_and_says_where_to_go_on() {
    let build = || {
        let world = World::new(&SimVfs::default());
        world.open(Access::ReadWrite).put(&(0..25).map(nth).collect::<Vec<_>>()).unwrap();
        world
    };
    // Full files end at 600, 1300, 2000; the last file holds 2100 to 2400.
    for (physical, kept, from) in [
        (u64::MAX, 3, 2000),
        (2001, 3, 2000),
        (2000, 2, 1300),
        (1301, 2, 1300),
        (601, 1, 600),
        (600, 0, 0),
        (0, 0, 0),
    ] {
        let world = build();
        let set = world.open(Access::ReadWrite);
        assert_eq!(set.drop_from(physical).unwrap(), from, "dropped from {physical}");
        assert_eq!((set.file_count(), world.contents().len()), (kept, kept));
        assert_eq!(set.end_physical(), from);
        set.put(&(0..25).map(nth).filter(|entry| entry.physical_offset >= from).collect::<Vec<_>>()).unwrap();
        let whole = build();
        for key in ["a", "b", "c"] {
            assert_eq!(all(&set, key), all(&whole.open(Access::Read), key));
        }
    }
    let set = build().open(Access::ReadWrite);
    set.remove_all().unwrap();
    assert_eq!((set.file_count(), set.end_physical()), (0, 0));
}

#[test]
fn only_synced_full_files_count_for_the_checkpoint() {
    let world = World::new(&SimVfs::default());
    let set = world.open(Access::ReadWrite);
    set.put(&(0..7).map(nth).collect::<Vec<_>>()).unwrap();
    assert_eq!(set.last_sealed_end_timestamp(), 0);
    assert!(set.is_dirty());
    set.flush().unwrap();
    assert!(!set.is_dirty());
    assert_eq!(set.last_sealed_end_timestamp(), T + 6 * 700);
    set.put(&(7..15).map(nth).collect::<Vec<_>>()).unwrap();
    assert_eq!(set.last_sealed_end_timestamp(), T + 6 * 700);
    set.flush().unwrap();
    assert_eq!(set.last_sealed_end_timestamp(), T + 13 * 700);
    let before = world.sim.operations();
    set.flush().unwrap();
    assert_eq!(world.sim.operations(), before);
    // After a restart it is unknown what was synced, so the first flush syncs all.
    let set = world.open(Access::ReadWrite);
    assert_eq!(set.last_sealed_end_timestamp(), 0);
    set.flush().unwrap();
    assert_eq!(set.last_sealed_end_timestamp(), T + 13 * 700);
}

#[test]
fn it_works_on_a_real_file_system() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(T));
    let files = StoreFiles::new(Arc::new(OsVfs::new()), clock, folder.path());
    let geometry = IndexGeometry { slots: 1000, entries: 5000 };
    let set = IndexSet::load(&files, None, geometry, Access::ReadWrite).unwrap();
    set.put(&(0..9000).map(nth).collect::<Vec<_>>()).unwrap();
    set.flush().unwrap();
    set.put(&(9000..12_000).map(nth).collect::<Vec<_>>()).unwrap();
    let expected: Vec<i64> = (0..12_000).rev().filter(|n| n % 3 == 1).map(|n| n * 100).collect();
    assert_eq!(all(&set, "b"), expected);
    let reader = IndexSet::load(&files, Some(geometry), TINY, Access::Read).unwrap();
    assert_eq!(all(&reader, "b"), expected);
    let names = std::fs::read_dir(folder.path().join("index")).unwrap().count();
    assert_eq!((names, reader.file_count()), (3, 3));
    assert_eq!(std::fs::read_dir(folder.path().join("mqstore/tmp")).unwrap().count(), 0);
}

#[test]
fn impossible_options_are_refused() {
    let world = World::new(&SimVfs::default());
    for (slots, entries) in [(0, 8), (5, 1), (5, 0), (u32::MAX, 8), (5, u32::MAX)] {
        let geometry = IndexGeometry { slots, entries };
        let error = IndexSet::load(&world.files, None, geometry, Access::Read).unwrap_err();
        assert!(matches!(error, StoreError::InvalidOption { .. }), "{error}");
    }
}
