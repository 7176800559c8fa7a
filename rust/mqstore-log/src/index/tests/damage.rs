//! Tests of damaged index files.

use super::*;

fn written() -> (World, PathBuf) {
    let world = World::new(&SimVfs::default());
    world.open(Access::ReadWrite).put(&(0..6).map(nth).collect::<Vec<_>>()).unwrap();
    let name = world.contents()[0].0.clone();
    let path = world.files.index().join(name);
    (world, path)
}

fn overwrite(world: &World, path: &Path, at: u64, bytes: &[u8]) {
    world.sim.open(path, Access::ReadWrite).unwrap().write_all_at(bytes, at).unwrap();
}

fn candidates(world: &World, key: &str) -> Candidates {
    let load = IndexSet::load(&world.files, Some(TINY), TINY, Access::Read);
    load.unwrap().candidates(hash(key), i64::MIN, i64::MAX).unwrap()
}

#[test]
fn an_entry_is_compared_with_the_header_of_its_own_file() {
    let world = World::new(&SimVfs::default());
    let set = world.open(Access::ReadWrite);
    // Seven entries in the first file, three in the second one. The files begin at different times.
    let new: Vec<_> = (0..10).map(|n| key(&format!("k{n}"), 100 * n, T + 5_000 * n)).collect();
    set.put(&new).unwrap();
    let mut entries = set.entries();
    let walked: Vec<_> = std::iter::from_fn(|| entries.next_entry().unwrap()).collect();
    assert_eq!(walked.iter().map(|one| one.number).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7, 1, 2, 3]);
    // The walk has left the first file; its entries still have their header.
    for (one, put) in walked.iter().zip(&new) {
        assert_eq!(entries.wrong_time(one, put.store_timestamp, false), None, "{one:?}");
        assert!(entries.wrong_time(one, put.store_timestamp + 2_000, false).is_some(), "{one:?}");
    }
}

#[test]
fn a_broken_chain_is_told_and_ends_the_walk_of_its_file() {
    // Entries 1 and 4 have key a, 2 and 5 key b, 3 and 6 key c.
    let slot_of_a = TINY.slot_position(TINY.slot_of(hash("a")));
    let previous_of_4 = TINY.entry_position(4) + 16;
    let previous_of_1 = TINY.entry_position(1) + 16;
    let cases: &[(u64, &[u8], &[i64], &str)] = &[
        (slot_of_a, &7_u32.to_be_bytes(), &[], "names entry 7, the next one is 7"),
        (slot_of_a, &u32::MAX.to_be_bytes(), &[], "names entry -1"),
        (previous_of_4, &4_u32.to_be_bytes(), &[300], "entry 4 is followed by entry 4"),
        (previous_of_4, &6_u32.to_be_bytes(), &[300], "entry 4 is followed by entry 6"),
        (previous_of_4, &(-1_i32).to_be_bytes(), &[300], "entry 4 is followed by entry -1"),
        (previous_of_1, &4_u32.to_be_bytes(), &[300, 0], "entry 1 is followed by entry 4"),
        (previous_of_4, &2_u32.to_be_bytes(), &[300], "entry 2 does not belong"),
        (TINY.entry_position(1), &[0xff; 4], &[300], "entry 1 does not belong"),
        (TINY.entry_position(1) + 4, &[0xff; 8], &[300], "entry 1 does not belong"),
    ];
    for (at, bytes, expected, text) in cases {
        let (world, path) = written();
        overwrite(&world, &path, *at, bytes);
        let found = candidates(&world, "a");
        let damaged = found.damaged.unwrap();
        assert!(damaged.contains(text) && damaged.contains("20231114221320123"), "{damaged}");
        assert_eq!(found.offsets, *expected, "{text}");
    }
}

#[test]
fn other_files_answer_beside_a_damaged_one() {
    let world = World::new(&SimVfs::default());
    world.open(Access::ReadWrite).put(&(0..20).map(nth).collect::<Vec<_>>()).unwrap();
    let path = world.files.index().join(&world.contents()[1].0);
    overwrite(&world, &path, TINY.slot_position(TINY.slot_of(hash("a"))), &[0x7f; 4]);
    let found = candidates(&world, "a");
    assert!(found.damaged.is_some());
    assert_eq!(found.offsets, [1800, 1500, 600, 300, 0]);
}

#[test]
fn an_impossible_header_makes_a_stray() {
    for (at, value) in [(36, 9_i32), (36, i32::MAX), (36, -1), (16, -1), (24, i32::MIN)] {
        let (world, path) = written();
        overwrite(&world, &path, at, &value.to_be_bytes());
        let set = IndexSet::load(&world.files, Some(TINY), TINY, Access::ReadWrite).unwrap();
        assert_eq!((set.file_count(), set.strays().len()), (0, 1));
        assert!(set.strays()[0].reason.contains("header"));
        // Lookups report that entries may be missing.
        assert!(candidates(&world, "a").damaged.is_some());
    }
}

#[test]
fn a_slot_that_points_ahead_begins_a_new_chain() {
    let (world, path) = written();
    overwrite(&world, &path, TINY.slot_position(TINY.slot_of(hash("a"))), &7_u32.to_be_bytes());
    let set = IndexSet::load(&world.files, Some(TINY), TINY, Access::ReadWrite).unwrap();
    set.put(&[key("a", 600, T)]).unwrap();
    assert_eq!(all(&set, "a"), [600]);
}

#[test]
fn no_byte_makes_a_look_up_fail_or_run_on() {
    let (pristine, path) = written();
    let bytes = pristine.sim.read_file(&path, 1 << 20).unwrap();
    for (at, old) in bytes.iter().enumerate() {
        for value in [0, 1, 0x7f, 0x80, 0xff, old ^ 1] {
            let (world, path) = written();
            overwrite(&world, &path, at as u64, &[value]);
            let before = tree(&world.sim, Path::new("/"));
            for known in [Some(TINY), None] {
                let set = IndexSet::load(&world.files, known, TINY, Access::Read).unwrap();
                for key in ["a", "b", "c", "other"] {
                    assert!(set.candidates(hash(key), i64::MIN, i64::MAX).unwrap().offsets.len() <= 6);
                    set.candidates(hash(key), T, T).unwrap();
                }
            }
            assert_eq!(tree(&world.sim, Path::new("/")), before);
            let set = IndexSet::load(&world.files, None, TINY, Access::ReadWrite).unwrap();
            set.put(&[key("z", i64::MAX - 1, T + 9)]).unwrap();
            assert_eq!(set.candidates(hash("z"), i64::MIN, i64::MAX).unwrap().offsets[0], i64::MAX - 1);
        }
    }
}
