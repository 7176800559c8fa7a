//! Tests of the detection of a geometry.

use mqstore_io::VfsFile;

use super::*;

/// Writes a few files; the last one is not full.
fn written(geometry: IndexGeometry, entries: i64) -> World {
    let world = World::new(&SimVfs::default());
    let set = IndexSet::load(&world.files, Some(geometry), geometry, Access::ReadWrite).unwrap();
    let puts: Vec<_> = (0..entries).map(|n| key(&format!("k{}", n % 300), n / 2 * 100, T + n * 10)).collect();
    set.put(&puts).unwrap();
    world
}

/// Creates a file of `len` bytes, all zero and without allocated blocks, as RocketMQ does.
fn zeros(world: &World, name: &str, len: u64) -> Arc<dyn VfsFile> {
    let folder = world.files.index();
    world.sim.create_dir_all(&folder).unwrap();
    let file = world.sim.create_new(&folder.join(name)).unwrap();
    file.set_len(len).unwrap();
    file
}

fn load(world: &World, known: Option<IndexGeometry>, configured: IndexGeometry) -> IndexSet {
    IndexSet::load(&world.files, known, configured, Access::Read).unwrap()
}

#[test]
fn what_is_known_or_configured_and_fits_is_taken() {
    let geometry = IndexGeometry { slots: 100, entries: 50 };
    let other = IndexGeometry { slots: 7, entries: 9 };
    let world = written(geometry, 60);
    assert_eq!(load(&world, Some(geometry), other).geometry(), geometry);
    assert_eq!(load(&world, None, geometry).geometry(), geometry);
    assert_eq!(load(&world, Some(other), geometry).geometry(), geometry);
    let empty = World::new(&SimVfs::default());
    assert_eq!(load(&empty, Some(other), geometry).geometry(), other);
    assert_eq!(load(&empty, None, geometry).geometry(), geometry);
}

#[test]
fn the_chains_tell_the_geometry() {
    for (slots, entries, count) in [
        (100, 50, 30),
        (100, 50, 70),
        (1000, 5000, 3000),
        (1000, 5000, 12_000),
        (1, 40, 20),
        (333, 2000, 900),
    ] {
        let geometry = IndexGeometry { slots, entries };
        let world = written(geometry, count);
        // Another length, and another pair with the same length.
        for configured in [TINY, IndexGeometry { slots: slots + 5, entries: entries - 1 }] {
            let set = load(&world, None, configured);
            assert_eq!(set.geometry(), geometry, "{count} entries, configured {configured:?}");
            assert!(set.strays().is_empty());
            assert_eq!(set.candidates(hash("k7"), 0, i64::MAX).unwrap().damaged, None);
        }
    }
}

#[test]
fn where_nothing_tells_the_files_are_strays() {
    // A file in which all places look alike.
    let world = World::new(&SimVfs::default());
    let file = zeros(&world, "20231114221320123", 40 + 4 * 1000 + 20 * 1000);
    for fill in [1, 0xff] {
        file.write_all_at(&vec![fill; 28_040], 0).unwrap();
        let set = load(&world, None, TINY);
        assert_eq!((set.geometry(), set.file_count(), set.strays().len()), (TINY, 0, 1), "{fill}");
        assert!(set.damaged().is_some());
        assert!(set.candidates(1, 0, i64::MAX).unwrap().damaged.is_some());
    }
    // The writer continues with another file.
    let set = IndexSet::load(&world.files, None, TINY, Access::ReadWrite).unwrap();
    set.put(&[nth(0)]).unwrap();
    assert_eq!(world.contents().len(), 2);
}

#[test]
fn an_empty_file_of_another_length_is_left_alone() {
    let world = World::new(&SimVfs::default());
    zeros(&world, "20231114221320123", 40 + 4 * 1000 + 20 * 1000);
    let set = IndexSet::load(&world.files, None, TINY, Access::ReadWrite).unwrap();
    assert_eq!((set.geometry(), set.file_count(), set.strays().len()), (TINY, 0, 0));
    assert_eq!(set.candidates(1, 0, i64::MAX).unwrap().damaged, None);
    // The writer continues with another file.
    set.put(&[nth(0)]).unwrap();
    assert_eq!(world.contents().len(), 2);
}

#[test]
fn an_empty_file_of_the_configured_length_is_adopted() {
    let world = World::new(&SimVfs::default());
    zeros(&world, "20231114221320000", TINY.file_len());
    let set = world.open(Access::ReadWrite);
    set.put(&[nth(0), nth(1)]).unwrap();
    assert_eq!(world.contents().len(), 1);
    assert_eq!(all(&set, "b"), [100]);
    assert!(world.sim.violations().is_empty());
}

#[test]
fn other_lengths_and_kinds_are_strays() {
    let world = written(TINY, 20);
    let folder = world.files.index();
    let make = |name: &str, len: u64| world.sim.create_new(&folder.join(name)).unwrap().set_len(len).unwrap();
    make("20240101000000000", 0);
    make("20240101000000001", TINY.file_len() + 20);
    make("20241301000000000", TINY.file_len());
    make("notes", 7);
    world.sim.create_dir_all(&folder.join("20240101000000009")).unwrap();
    let before = tree(&world.sim, Path::new("/"));
    let set = world.open(Access::ReadWrite);
    let reasons: BTreeMap<_, _> = set
        .strays()
        .iter()
        .map(|stray| (stray.path.file_name().unwrap().to_string_lossy().into_owned(), stray.reason.as_str()))
        .collect();
    assert!(reasons["20240101000000000"].contains("0 bytes long"));
    assert!(reasons["20240101000000001"].contains("240 bytes long"));
    assert!(reasons["20241301000000000"].contains("17 digits"));
    assert!(reasons["notes"].contains("17 digits"));
    assert!(reasons["20240101000000009"].contains("a folder"));
    assert_eq!((reasons.len(), set.file_count()), (5, 3));
    assert_eq!(tree(&world.sim, Path::new("/")), before);
}

#[test]
fn pipes_and_links_are_neither_opened_nor_followed() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(T));
    let files = StoreFiles::new(Arc::new(OsVfs::new()), clock, &folder.path().join("store"));
    std::fs::create_dir_all(files.index()).unwrap();
    let outside = folder.path().join("outside");
    std::fs::write(&outside, vec![1; TINY.file_len() as usize]).unwrap();
    std::os::unix::fs::symlink(&outside, files.index().join("20240101000000000")).unwrap();
    let pipe = files.index().join("20240101000000001");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let set = IndexSet::load(&files, None, TINY, Access::ReadWrite).unwrap();
    let reasons: Vec<_> = set.strays().iter().map(|stray| stray.reason.as_str()).collect();
    assert!(reasons[0].contains("link") && reasons[1].contains("pipe"), "{reasons:?}");
    set.put(&[nth(0)]).unwrap();
    assert!(files.index().join("20240101000000002").is_file());
    assert!(std::fs::read(&outside).unwrap().iter().all(|byte| *byte == 1));
    std::fs::remove_dir_all(files.index()).unwrap();
    std::os::unix::fs::symlink(folder.path(), files.index()).unwrap();
    let set = IndexSet::load(&files, None, TINY, Access::Read).unwrap();
    assert!(set.strays()[0].reason.contains("link"));
}

#[test]
fn without_a_header_the_first_entries_tell() {
    for (slots, entries, count) in [(100, 50, 30), (1000, 5000, 3000), (333, 2000, 900), (7, 50, 40)] {
        let geometry = IndexGeometry { slots, entries };
        let world = written(geometry, count);
        let path = world.sim.list(&world.files.index()).unwrap().pop().unwrap().name;
        let file = world.sim.open(&world.files.index().join(path), Access::ReadWrite).unwrap();
        for header in [[0; 40], [0xff; 40]] {
            file.write_all_at(&header, 0).unwrap();
            let set = load(&world, None, TINY);
            assert_eq!(set.geometry(), geometry, "{count} entries");
            assert!(!set.has_guessed_geometry());
        }
        // Without its first entries the geometry is unknown, and the set reports that.
        file.write_all_at(&[0xff; 200], geometry.entry_position(0)).unwrap();
        let set = load(&world, None, TINY);
        assert_eq!((set.geometry(), set.has_guessed_geometry()), (TINY, true), "{count} entries");
    }
}
