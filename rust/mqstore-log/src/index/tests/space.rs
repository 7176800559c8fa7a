//! Tests of the disk space of index files.

use super::*;
use crate::index::file::IndexBytes;

/// Files with 64 pages of slots and about ten pages of entries. The first four pages of slots get space one by one.
const PAGES: IndexGeometry = IndexGeometry { slots: 65_000, entries: 2_000 };

fn open(world: &World, access: Access) -> IndexSet {
    IndexSet::load(&world.files, Some(PAGES), PAGES, access).unwrap()
}

/// Returns entries with different keys.
fn keys(range: std::ops::Range<i64>) -> Vec<NewEntry> {
    range.map(|n| key(&format!("k{n}"), n * 100, T + n * 10)).collect()
}

fn taken(world: &World) -> Vec<u64> {
    let entries = world.sim.list(&world.files.index()).unwrap();
    entries.into_iter().map(|entry| entry.stat.allocated_bytes).collect()
}

fn check(set: &IndexSet, count: i64) {
    for n in 0..count {
        assert_eq!(all(set, &format!("k{n}")), [n * 100], "key {n} of {count}");
    }
    assert!(all(set, "none").is_empty());
}

#[test]
fn a_file_takes_the_pages_that_it_needs() {
    let world = World::new(&SimVfs::default());
    let set = open(&world, Access::ReadWrite);
    set.put(&keys(0..1)).unwrap();
    // The header, one slot and the first entries: the windows of entries are as long as the rest of this file.
    let entries = PAGES.file_len() - PAGES.entry_position(1);
    assert!(taken(&world)[0] <= 2 * 4096 + entries.next_multiple_of(4096) + 4096, "{:?}", taken(&world));
    assert_eq!(world.contents()[0].1.len() as u64, PAGES.file_len());
    check(&set, 1);
    set.put(&keys(1..1_000)).unwrap();
    assert_eq!(taken(&world), [PAGES.file_len().next_multiple_of(4096)]);
    check(&set, 1_000);
    assert_eq!(world.sim.violations(), Vec::<String>::new());
}

#[test]
fn slots_without_space_are_read_after_an_open() {
    let world = World::new(&SimVfs::default());
    open(&world, Access::ReadWrite).put(&keys(0..3)).unwrap();
    for access in [Access::ReadWrite, Access::Read] {
        check(&open(&world, access), 3);
    }
    // The writer does not know yet which pages have space. A lookup that finds a key notes its page.
    let set = open(&world, Access::ReadWrite);
    let position = PAGES.slot_position(PAGES.slot_of(key("k1", 0, T).hash));
    let has_space = || match set.files()[0].source().unwrap() {
        IndexBytes::Sparse(map) => map.space.has_slot(position),
        other => panic!("{other:?}"),
    };
    assert!(!has_space());
    check(&set, 3);
    assert!(has_space());
    set.put(&keys(3..4)).unwrap();
    check(&set, 4);
    assert_eq!(world.sim.violations(), Vec::<String>::new());
}

#[test]
fn a_disk_that_fills_at_any_page_refuses_entries_and_loses_none() {
    for pages in (0..20).chain(60..85) {
        let world = World::new(&SimVfs::default());
        let set = open(&world, Access::ReadWrite);
        set.put(&keys(0..1)).unwrap();
        world.sim.set_space(Some(taken(&world)[0] + pages * 4096));
        let mut added = 1;
        let full = loop {
            match set.put(&keys(added..added + 1)) {
                Ok(()) => added += 1,
                Err(error) => break error,
            }
            // The disk has space for the rest of this file.
            if added > 1_990 {
                break set.put(&keys(added..added + 3_000)).unwrap_err();
            }
        };
        assert!(matches!(full, StoreError::DiskFull { .. }), "{full}");
        check(&set, added.min(1_990));
        world.sim.set_space(None);
        set.put(&keys(added..added + 50)).unwrap();
        check(&set, added.min(1_990));
        assert_eq!(all(&set, &format!("k{}", added + 49)), [(added + 49) * 100]);
        assert_eq!(world.sim.violations(), Vec::<String>::new(), "{pages} pages");
    }
}
