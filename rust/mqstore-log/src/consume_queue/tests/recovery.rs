//! Tests of bounds: found from files, cut to the log, and moved with its start.

use super::*;

fn path(files: &StoreFiles, base: u64) -> PathBuf {
    files.consume_queue().join(format!("orders/3/{base:020}"))
}

/// Creates the file `base` of five slots with these bytes.
fn make(files: &StoreFiles, base: u64, slots: &[[u8; 20]]) {
    files.vfs.create_dir_all(&files.consume_queue().join("orders/3")).unwrap();
    let file = files.vfs.create_new(&path(files, base)).unwrap();
    file.set_len(SMALL).unwrap();
    file.write_all_at(slots.as_flattened(), 0).unwrap();
}

fn store(files: &[&[CqUnit]]) -> (SimVfs, StoreFiles) {
    let sim = SimVfs::default();
    let store = sim_files(&sim);
    for (index, units) in files.iter().enumerate() {
        let slots: Vec<[u8; 20]> = units.iter().map(CqUnit::encode).collect();
        make(&store, index as u64 * SMALL, &slots);
    }
    (sim, store)
}

const EMPTY: CqUnit = CqUnit { physical_offset: 0, size: 0, tags_code: 0 };
const NONSENSE: CqUnit = CqUnit { physical_offset: -5, size: 9, tags_code: 1 };

/// The units of each file, and the resulting bounds.
type Case<'a> = (&'a [&'a [CqUnit]], (i64, i64, i64));

#[test]
fn bounds_come_from_the_files() {
    let full = units(0..5);
    let cases: &[Case<'_>] = &[
        (&[], (0, 0, 0)),
        (&[&units(0..3)], (0, 3, 300)),
        (&[&full], (0, 5, 500)),
        (&[&full, &units(5..6)], (0, 6, 600)),
        // Files without a unit count as missing; blanks at the end do not count.
        (&[&full, &[]], (0, 5, 500)),
        (&[&full, &[], &[]], (0, 5, 500)),
        (&[&[]], (0, 0, 0)),
        (&[&[BLANK_UNIT; 5]], (0, 0, 0)),
        (&[&[unit(0), BLANK_UNIT, BLANK_UNIT]], (0, 1, 100)),
        (&[&full, &[BLANK_UNIT, BLANK_UNIT]], (0, 5, 500)),
        (&[&[BLANK_UNIT, BLANK_UNIT, unit(2), BLANK_UNIT, unit(4)]], (2, 5, 500)),
        (&[&[BLANK_UNIT; 5], &[BLANK_UNIT, unit(6)]], (6, 7, 700)),
        // A first record at log offset 0 is not a blank.
        (&[&[CqUnit { physical_offset: 0, size: 91, tags_code: 0 }]], (0, 1, 91)),
    ];
    for (index, (slots, expected)) in cases.iter().enumerate() {
        for access in [Access::Read, Access::ReadWrite] {
            let (sim, files) = store(slots);
            let before = tree(&sim, Path::new("/"));
            let set = open(&files, access);
            let bounds = set.get("orders", 3).map_or((0, 0, 0), |queue| {
                assert_eq!(queue.damaged(), None, "case {index}");
                bounds(&queue)
            });
            assert_eq!(bounds, *expected, "case {index}");
            assert_eq!(tree(&sim, Path::new("/")), before, "case {index}");
        }
    }
}

#[test]
fn damage_near_the_end_is_told() {
    let cases: &[(&[CqUnit], i64, &str)] = &[
        (&[unit(0), unit(1), NONSENSE], 2, "queue offset 2: no possible unit"),
        (&[unit(0), EMPTY, unit(2)], 3, "queue offset 1: nothing was written here"),
        (&[unit(0), NONSENSE, unit(2)], 3, "queue offset 1: no possible unit"),
        (&[unit(4), unit(3)], 2, "queue offset 0: the record of the next unit"),
        (&[unit(3), unit(3)], 2, "queue offset 0: the record of the next unit"),
    ];
    for (slots, max, text) in cases {
        let (_sim, files) = store(&[slots]);
        let queue = open(&files, Access::Read).get("orders", 3).unwrap();
        assert_eq!(queue.max_offset(), *max);
        let damaged = queue.damaged().unwrap();
        assert!(damaged.contains(text), "{damaged}");
        assert!(damaged.contains("00000000000000000000"), "{damaged}");
    }
    let overflow = CqUnit { physical_offset: i64::MAX, size: 1, tags_code: 0 };
    let (_sim, files) = store(&[&[unit(0), overflow]]);
    let queue = open(&files, Access::Read).get("orders", 3).unwrap();
    assert_eq!((queue.max_offset(), queue.damaged().is_some()), (1, true));
}

#[test]
fn a_missing_file_in_the_middle_is_told_and_not_read() {
    let sim = SimVfs::default();
    let files = sim_files(&sim);
    put(&queue(&open(&files, Access::ReadWrite)), 0, &units(0..17));
    sim.remove_file(&path(&files, SMALL)).unwrap();
    let queue = open(&files, Access::ReadWrite).get("orders", 3).unwrap();
    assert_eq!(bounds(&queue), (0, 17, 1700));
    assert!(queue.damaged().unwrap().contains("no file between"));
    let mut out = Vec::new();
    let error = queue.read(0, 20, &mut out).unwrap_err();
    assert!(matches!(&error, StoreError::Corrupt { .. }), "{error}");
    assert_eq!(out, units(0..5));
    out.clear();
    queue.read(10, 20, &mut out).unwrap();
    assert_eq!(out, units(10..17));
    assert!(queue.write(6, &[unit(6)]).unwrap().refusal.unwrap().contains("lost"));
}

#[test]
fn truncation_cuts_at_the_log_end() {
    for log_end in 0..2000 {
        let sim = SimVfs::default();
        let files = sim_files(&sim);
        let set = open(&files, Access::ReadWrite);
        let cut = queue(&set);
        put(&cut, 3, &units(3..17));
        let kept = 17.min((log_end as i64 + 99) / 100).max(3);
        let expected = if kept == 3 { (0, 0, 0) } else { (3, kept, kept * 100) };
        assert_eq!(cut.max_offset_for(log_end).unwrap(), expected.1);
        assert_eq!(cut.truncate(log_end).unwrap(), (17 - kept) as u64, "log end {log_end}");
        assert_eq!(bounds(&cut), expected, "log end {log_end}");
        assert_eq!(cut.truncate(log_end).unwrap(), 0);
        // No trace of the removed units is left.
        let fresh = SimVfs::default();
        let fresh_files = sim_files(&fresh);
        put(&queue(&open(&fresh_files, Access::ReadWrite)), 3, &units(3..kept));
        assert_eq!(queue_tree(&files), queue_tree(&fresh_files), "log end {log_end}");
        // The queue continues.
        put(&cut, 4.max(kept), &units(4.max(kept)..30));
        assert_eq!(cut.max_offset(), 30);
        let reopened = open(&files, Access::Read).get("orders", 3).unwrap();
        assert_eq!(read_all(&reopened), read_all(&cut));
    }
}

#[test]
fn truncation_clears_what_lies_behind_the_last_unit() {
    let behind: &[&[CqUnit]] = &[&[BLANK_UNIT; 2], &[NONSENSE], &[EMPTY, EMPTY, NONSENSE]];
    for slots in behind {
        let mut first = units(0..2);
        first.extend_from_slice(slots);
        let (_sim, files) = store(&[&first, &[], &[BLANK_UNIT; 5]]);
        let set = open(&files, Access::ReadWrite);
        assert_eq!(set.get("orders", 3).unwrap().truncate(1000).unwrap(), 0);
        let expected =
            BTreeMap::from([("orders/3/00000000000000000000".to_owned(), encode(&units(0..2), 100))]);
        assert_eq!(queue_tree(&files), expected);
    }
}

#[test]
fn a_queue_goes_on_over_files_without_units() {
    // The files that are in the way hold blanks, nothing, or have length 0.
    for prepared in [&[BLANK_UNIT; 3][..], &[]] {
        let (sim, files) = store(&[&units(0..5), prepared]);
        sim.create_new(&path(&files, 2 * SMALL)).unwrap();
        let set = open(&files, Access::ReadWrite);
        assert_eq!(set.strays().len(), 1);
        let queue = set.get("orders", 3).unwrap();
        assert_eq!(queue.damaged(), None);
        put(&queue, 5, &units(5..12));
        assert_eq!(read_all(&queue), units(0..12));
        let reopened = open(&files, Access::Read);
        assert_eq!(read_all(&reopened.get("orders", 3).unwrap()), units(0..12));
        assert!(reopened.strays().is_empty());
    }
}

#[test]
fn a_queue_may_begin_below_a_file_without_units() {
    let (_sim, files) = store(&[]);
    make(&files, 5 * SMALL, &[]);
    let set = open(&files, Access::ReadWrite);
    let queue = set.get("orders", 3).unwrap();
    put(&queue, 2, &units(2..7));
    assert_eq!(bounds(&queue), (2, 7, 700));
    queue.truncate(10_000).unwrap();
    // The vacant file is gone, because recovery knew that it held no unit.
    assert_eq!(queue_tree(&files).len(), 2);
}

#[test]
fn the_minimum_follows_the_log() {
    let sim = SimVfs::default();
    let files = sim_files(&sim);
    let set = open(&files, Access::ReadWrite);
    let queue = queue(&set);
    put(&queue, 7, &units(7..20));
    put(&queue, 31, &units(31..33));
    for log_min in 0..3400_u64 {
        queue.correct_min_offset(log_min).unwrap();
        let first = (log_min as i64 + 99) / 100;
        let expected = match first {
            0..=7 => 7,
            8..=19 => first,
            20..=31 => 31,
            32 => 32,
            _ => 33,
        };
        assert_eq!(queue.min_offset(), expected, "log minimum {log_min}");
    }
    queue.correct_min_offset(0).unwrap();
    assert_eq!(queue.min_offset(), 7);
    // A floor before the log, as messages of an archive have, moves no minimum back.
    queue.correct_min_offset(3_150).unwrap();
    set.correct_min_offsets_of("orders").unwrap();
    assert_eq!(queue.min_offset(), 32);
    queue.remove_below(900, u64::MAX, &mut |_| ()).unwrap();
    assert_eq!(queue.min_offset(), 32);
}

#[test]
fn the_minimum_is_found_in_large_files() {
    let sim = SimVfs::default();
    let files = sim_files(&sim);
    let set = QueueSet::load(&files, 200_000, Access::ReadWrite, &TopicFloors::default()).unwrap();
    let queue = queue(&set);
    put(&queue, 4_000, &units(4_000..9_000));
    put(&queue, 9_900, &units(9_900..23_000));
    for (log_min, expected) in
        [(0, 4_000), (400_000, 4_000), (400_001, 4_001), (899_900, 8_999), (899_901, 9_900), (990_001, 9_901)]
    {
        queue.correct_min_offset(log_min).unwrap();
        assert_eq!(queue.min_offset(), expected, "log minimum {log_min}");
    }
    queue.correct_min_offset(2_000_000).unwrap();
    assert_eq!(queue.min_offset(), 20_000);
    let reopened = open(&files, Access::Read);
    assert_eq!(bounds(&reopened.get("orders", 3).unwrap()), (4_000, 23_000, 2_300_000));
    assert_eq!(queue.truncate(1_500_000).unwrap(), 8_000);
    assert_eq!(bounds(&queue), (15_000, 15_000, 1_500_000));
}

#[test]
fn opening_reads_little() {
    let sim = SimVfs::new(mqstore_io::sim::SimOptions { trace: true, ..Default::default() });
    let files = sim_files(&sim);
    let set = QueueSet::load(&files, 6_000_000, Access::ReadWrite, &TopicFloors::default()).unwrap();
    let queue = queue(&set);
    put(&queue, 0, &units(0..300_000));
    put(&queue, 300_000, &units(300_000..300_100));
    let before = sim.operations();
    let reopened = open(&files, Access::Read);
    assert_eq!(reopened.get("orders", 3).unwrap().max_offset(), 300_100);
    // Two listings, some queries for holes, and a few reads of 16 KiB.
    assert!(sim.operations() - before < 60, "{} calls", sim.operations() - before);
}

#[test]
fn the_length_of_the_files_there_wins() {
    let sim = SimVfs::default();
    let files = sim_files(&sim);
    put(&queue(&open(&files, Access::ReadWrite)), 0, &units(0..12));
    let other = files.consume_queue().join("orders/3/00000000000000000300");
    sim.create_new(&other).unwrap().set_len(200).unwrap();
    for configured in [20, 200, 6_000_000] {
        let set = QueueSet::load(&files, configured, Access::Read, &TopicFloors::default()).unwrap();
        assert_eq!(set.file_bytes(), SMALL);
        assert!(set.strays()[0].reason.contains("200 bytes long"));
        assert!(set.get("orders", 3).unwrap().damaged().is_some());
    }
    assert_eq!(
        QueueSet::load(&sim_files(&SimVfs::default()), 1001, Access::Read, &TopicFloors::default())
            .unwrap()
            .file_bytes(),
        1020
    );
}

#[test]
fn cutting_takes_the_damage_with_it() {
    let (_sim, files) = store(&[&[unit(0), unit(1), EMPTY, unit(3), NONSENSE]]);
    let queue = open(&files, Access::ReadWrite).get("orders", 3).unwrap();
    assert!(queue.damaged().unwrap().contains("queue offset 4"));
    queue.truncate(1000).unwrap();
    assert!(queue.damaged().unwrap().contains("queue offset 2"));
    queue.truncate(200).unwrap();
    assert_eq!((queue.damaged(), bounds(&queue)), (None, (0, 2, 200)));
}

/// The first recovery of bounds after a load reads the only file once, and finds the same as every later one.
#[test]
fn the_first_look_at_a_short_queue_is_short_and_finds_the_same() {
    for slots in
        [&[unit(0)][..], &[EMPTY, unit(1)], &[BLANK_UNIT, unit(1), unit(2)], &[EMPTY, NONSENSE, unit(4)]]
    {
        let (sim, files) = store(&[slots]);
        let set = QueueSet::load(&files, SMALL, Access::ReadWrite, &TopicFloors::default()).unwrap();
        let queue = set.get("orders", 3).unwrap();
        let before = sim.operations();
        queue.recover_bounds().unwrap();
        // One call opens the file, at most two query holes, one reads.
        assert!(sim.operations() - before <= 4, "{} calls", sim.operations() - before);
        let first = (bounds(&queue), queue.damaged());
        queue.recover_bounds().unwrap();
        assert_eq!((bounds(&queue), queue.damaged()), first, "{slots:?}");
        queue.correct_min_offset(100).unwrap();
        let corrected = queue.min_offset();
        queue.recover_bounds().unwrap();
        queue.correct_min_offset(100).unwrap();
        assert_eq!(queue.min_offset(), corrected, "{slots:?}");
    }
}

#[test]
fn a_queue_at_rest_remembers_nothing_of_what_was_written() {
    let sim = SimVfs::default();
    let files = sim_files(&sim);
    let set = open(&files, Access::ReadWrite);
    let queue = queue(&set);
    put(&queue, 0, &units(0..12));
    assert!(queue.writing.lock().busy.is_some());
    set.flush().unwrap();
    assert!(queue.writing.lock().busy.is_none());
    // Units that wait for an earlier unit are not forgotten.
    queue.write(13, &[unit(13)]).unwrap();
    set.flush().unwrap();
    assert!(queue.writing.lock().busy.is_some());
    put(&queue, 12, &[unit(12)]);
    queue.commit(14).unwrap();
    set.flush().unwrap();
    assert!(queue.writing.lock().busy.is_none());
    assert_eq!(read_all(&queue), units(0..14));
}

#[test]
fn a_deleted_topic_keeps_units_after_its_floor_only() {
    let sim = SimVfs::default();
    let files = sim_files(&sim);
    let floors = TopicFloors::default();
    let load = |access| {
        let set = QueueSet::load(&files, SMALL, access, &floors).unwrap();
        set.recover_bounds().unwrap();
        (queue(&set), set)
    };
    let (first, set) = load(Access::ReadWrite);
    put(&first, 0, &units(0..7));
    set.flush().unwrap();
    floors.set([("orders".into(), TopicFloor::of_deletion(700, BTreeMap::from([(3, 10)])))]);

    // Before the files go, readers and writers see no unit any more.
    let (hidden, _) = load(Access::Read);
    assert_eq!((bounds(&hidden), read_all(&hidden), hidden.is_empty()), ((10, 10, 0), vec![], true));
    assert_eq!(hidden.max_offset_for(350).unwrap(), 10);
    set.remove_deleted("orders").unwrap();
    assert_eq!((bounds(&first), queue_tree(&files).len()), ((10, 10, 0), 0));
    assert!(files.vfs.stat(&files.consume_queue().join("orders")).is_err());

    // The queue continues with a new file, without blank units.
    assert_eq!(put(&first, 10, &units(7..9)).1, 0);
    set.remove_deleted("orders").unwrap();
    set.flush().unwrap();
    let (again, _) = load(Access::ReadWrite);
    assert_eq!((bounds(&again), read_all(&again)), ((10, 12, 900), units(7..9)));
    assert_eq!(queue_tree(&files).into_keys().collect::<Vec<_>>(), ["orders/3/00000000000000000200"]);
    again.truncate(700).unwrap();
    assert_eq!(bounds(&again), (10, 10, 0));
}

/// A broker that does not know the floor numbers the messages of a new topic from the old end, or from 0.
#[test]
fn smaller_offsets_after_the_floor_count() {
    let sim = SimVfs::default();
    let files = sim_files(&sim);
    let floors = TopicFloors::default();
    floors.set([("orders".into(), TopicFloor::of_deletion(350, BTreeMap::from([(3, 10)])))]);
    let set = QueueSet::load(&files, SMALL, Access::ReadWrite, &floors).unwrap();
    set.recover_bounds().unwrap();
    let queue = queue(&set);
    assert_eq!(put(&queue, 4, &units(4..7)).1, 0);
    assert_eq!((bounds(&queue), read_all(&queue)), ((4, 7, 700), units(4..7)));
    // Units before the floor, as in the queue of such a broker.
    assert_eq!(queue.write(2, &units(2..4)).unwrap().written, 2);
    set.flush().unwrap();
    queue.recover_bounds().unwrap();
    assert_eq!((bounds(&queue), read_all(&queue)), ((4, 7, 700), units(4..7)));
    queue.remove_deleted().unwrap();
    assert_eq!(bounds(&queue), (4, 7, 700));
}
