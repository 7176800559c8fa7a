//! Tests of batch queues on a simulated file system.

use std::path::Path;
use std::sync::Arc;

use mqstore_format::BatchCqUnit;
use mqstore_io::{Access, ManualClock, SimVfs, Vfs};

use super::{BatchAppendOutcome, BatchQueue};
use crate::consume_queue::QueueSet;
use mqstore_base::store_files::StoreFiles;
use mqstore_base::topic_floors::TopicFloors;

/// Byte length of files with five units.
const SMALL: u64 = 100;

fn files() -> (SimVfs, StoreFiles) {
    let sim = SimVfs::default();
    sim.create_dir_all(Path::new("/store")).unwrap();
    sim.sync_dir(Path::new("/")).unwrap();
    let files = files_on(&sim);
    (sim, files)
}

fn files_on(sim: &SimVfs) -> StoreFiles {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    StoreFiles::new(Arc::new(sim.clone()), clock, Path::new("/store"))
}

fn open(files: &StoreFiles) -> (QueueSet, Arc<BatchQueue>) {
    let set = QueueSet::load(files, SMALL, Access::ReadWrite, &TopicFloors::default()).unwrap();
    set.recover_bounds().unwrap();
    let queue = set.batch_or_create("orders", 3).unwrap();
    (set, queue)
}

/// Returns the unit of the `n`th record, of 100 bytes and three messages.
fn unit(n: i64) -> BatchCqUnit {
    BatchCqUnit::new(n * 100, 100, n * 7, 1_700_000_000_000 + n, n * 3, 3)
}

fn units(range: std::ops::Range<i64>) -> Vec<BatchCqUnit> {
    range.map(unit).collect()
}

/// Returns the numbers of the units that a read from `offset` on finds.
fn read(queue: &BatchQueue, offset: i64) -> Vec<i64> {
    let mut out = Vec::new();
    queue.read(offset, usize::MAX, u64::MAX, &mut out).unwrap();
    for (base, unit) in &out {
        assert_eq!((unit.physical_offset, unit.size, unit.tags_code), (base / 3 * 100, 100, base / 3 * 7));
    }
    out.iter().map(|(base, _)| base / 3).collect()
}

#[test]
fn units_go_to_files_in_a_row_and_are_found_by_offset() {
    let (sim, files) = files();
    let (set, queue) = open(&files);
    assert_eq!((queue.min_offset(), queue.max_offset(), read(&queue, 0)), (0, 0, vec![]));
    assert_eq!(queue.append(&units(0..7)).unwrap().written, 7);
    // Repeats the last units, with new ones after them.
    let outcome = queue.append(&units(5..12)).unwrap();
    assert_eq!(outcome, BatchAppendOutcome { written: 5, unchanged: 2, refused: 0 });
    assert_eq!((queue.min_offset(), queue.max_offset()), (0, 36));
    assert_eq!(read(&queue, 0), (0..12).collect::<Vec<_>>());
    assert_eq!(read(&queue, 15), (5..12).collect::<Vec<_>>());
    assert_eq!(read(&queue, 16), (6..12).collect::<Vec<_>>());
    let starts: Vec<_> = [0, 1, 2, 3, 35, 36].iter().map(|offset| queue.start_of(*offset).unwrap()).collect();
    assert_eq!(starts, [0, 0, 0, 3, 33, 36]);
    let mut few = Vec::new();
    queue.read(3, 2, u64::MAX, &mut few).unwrap();
    assert_eq!(few.iter().map(|(base, _)| *base).collect::<Vec<_>>(), [3, 6]);

    set.flush().unwrap();
    let names: Vec<_> = sim.list(Path::new("/store/batchconsumequeue/orders/3")).unwrap();
    let names: Vec<_> = names.iter().map(|entry| (entry.name.to_str().unwrap(), entry.stat.len)).collect();
    let zero = "0".repeat(17);
    let expected = ["000", "230", "460"].map(|end| (format!("{zero}{end}"), 230));
    assert_eq!(names, expected.iter().map(|(name, len)| (name.as_str(), *len)).collect::<Vec<_>>());
    let bytes =
        sim.read_file(Path::new("/store/batchconsumequeue/orders/3/00000000000000000230"), 999).unwrap();
    assert_eq!(BatchCqUnit::decode_all(&bytes).collect::<Vec<_>>(), units(5..10));
}

#[test]
fn what_has_no_place_is_refused() {
    let (_sim, files) = files();
    let (_set, queue) = open(&files);
    queue.append(&units(0..3)).unwrap();
    // A record that is later in the log but has used offsets; one without a message; one with a negative log offset.
    let taken = BatchCqUnit { base_offset: 8, ..unit(5) };
    let empty = BatchCqUnit { batch_size: 0, ..unit(6) };
    let outcome = queue.append(&[taken, empty]).unwrap();
    assert_eq!(outcome, BatchAppendOutcome { written: 0, unchanged: 0, refused: 2 });
    assert_eq!(read(&queue, 0), [0, 1, 2]);
    // A gap in the offsets stays a gap.
    queue.append(&[unit(7)]).unwrap();
    assert_eq!((read(&queue, 0), queue.max_offset()), (vec![0, 1, 2, 7], 24));
    assert_eq!(queue.start_of(10).unwrap(), 10);
}

#[test]
fn bounds_are_found_again_and_cut_to_the_log() {
    let (sim, files) = files();
    let (set, queue) = open(&files);
    queue.append(&units(0..12)).unwrap();
    set.flush().unwrap();
    for kept in (0..=12).rev() {
        let sim = sim.kill().unwrap();
        let files = files_on(&sim);
        let (set, queue) = open(&files);
        assert_eq!((queue.min_offset(), queue.max_offset(), queue.damaged()), (0, 36, None));
        assert_eq!(queue.max_offset_for(kept as u64 * 100).unwrap(), kept * 3);
        queue.truncate(kept as u64 * 100).unwrap();
        assert_eq!(read(&queue, 0), (0..kept).collect::<Vec<_>>());
        set.flush().unwrap();
        let (_, again) = open(&files);
        assert_eq!((again.max_offset(), read(&again, 0)), (kept * 3, (0..kept).collect::<Vec<_>>()));
        assert_eq!(again.append(&units(0..15)).unwrap().written, 15 - kept as usize);
        assert_eq!(read(&again, 0), (0..15).collect::<Vec<_>>());
    }
}

#[test]
fn a_torn_tail_ends_the_queue_and_a_lost_file_is_told() {
    let (sim, files) = files();
    let (set, queue) = open(&files);
    queue.append(&units(0..9)).unwrap();
    set.flush().unwrap();
    let last = Path::new("/store/batchconsumequeue/orders/3/00000000000000000230");
    for (byte, kept) in [(0, 5), (46, 6), (46 + 8, 6), (2 * 46 + 28, 7), (3 * 46 + 36, 8)] {
        let sim = sim.kill().unwrap();
        // Sets a sign bit, so that the unit is invalid.
        sim.flip(last, byte, 0x80).unwrap();
        let files = files_on(&sim);
        let (_, queue) = open(&files);
        assert_eq!(read(&queue, 0), (0..kept).collect::<Vec<_>>(), "byte {byte}");
        queue.truncate(u64::MAX).unwrap();
        assert_eq!(queue.append(&units(0..9)).unwrap().written, 9 - kept as usize);
        assert_eq!(read(&open(&files).1, 0), (0..9).collect::<Vec<_>>());
    }
    queue.append(&units(9..12)).unwrap();
    sim.remove_file(last).unwrap();
    let damaged = open(&files).1.damaged().unwrap();
    assert!(damaged.contains("no file between"), "{damaged}");
}

/// Returns the unit of the `n`th record in a log whose offsets need three bytes.
fn far_unit(n: i64) -> BatchCqUnit {
    BatchCqUnit { physical_offset: n * 10_000, ..unit(n) }
}

/// Unit 27 is across two sectors, and the border is inside its log offset: it reads 270,000 if complete, and 7,856
/// without the first sector. Only the synced log offset shows that it does not belong to the units before it.
#[test]
fn an_entry_of_two_forms_behind_what_was_synced_is_cut() {
    let far = |range: std::ops::Range<i64>| range.map(far_unit).collect::<Vec<_>>();
    let open = |sim: &SimVfs| {
        // Files of sixteen units.
        let set = QueueSet::load(&files_on(sim), 320, Access::ReadWrite, &TopicFloors::default()).unwrap();
        set.recover_bounds().unwrap();
        let queue = set.batch_or_create("orders", 3).unwrap();
        (set, queue)
    };
    let bases = |queue: &BatchQueue| {
        let mut bases = Vec::new();
        queue.read_units(0, usize::MAX, u64::MAX, |unit| bases.push(unit.base_offset / 3)).unwrap();
        bases
    };
    let (sim, _) = files();
    let (set, queue) = open(&sim);
    queue.append(&far(0..40)).unwrap();
    set.flush().unwrap();
    let mut states = 0;
    for rewritten in [27, 28, 40] {
        let sim = sim.kill().unwrap();
        let (_set, queue) = open(&sim);
        queue.truncate(270_000).unwrap();
        queue.append(&far(27..rewritten)).unwrap();
        let choices = sim.choices(true);
        for state in 0..1_u32 << choices.len() {
            let form = |what| {
                choices.iter().position(|choice| choice.what == what).map_or(0, |bit| state >> bit & 1)
            };
            let disk = sim.crash_as(true, &mut |what, forms| form(what).min(forms - 1)).unwrap();
            let (_set, queue) = open(&disk);
            if queue.damaged().is_some() {
                continue;
            }
            queue.truncate(270_000).unwrap();
            assert_eq!(bases(&queue), (0..27).collect::<Vec<_>>(), "{rewritten}, {state:b} of {choices:?}");
            queue.append(&far(27..40)).unwrap();
            assert_eq!(bases(&queue), (0..40).collect::<Vec<_>>());
            states += 1;
        }
    }
    assert!(states >= 16, "{states}");
}

#[test]
fn the_last_entry_is_split_where_a_sector_ends_in_it() {
    let (_sim, files) = files();
    let set = QueueSet::load(&files, 30 * 20, Access::ReadWrite, &TopicFloors::default()).unwrap();
    let queue = set.batch_or_create("orders", 3).unwrap();
    let mut split = Vec::new();
    for n in 0..45 {
        queue.append(&[unit(n)]).unwrap();
        split.extend(queue.last_if_split().map(|last| last.base_offset / 3));
    }
    // Sectors end after bytes 512 and 1024 of a file, which holds 30 units.
    assert_eq!(split, [11, 22, 41]);
}

#[test]
fn a_file_whose_last_unit_is_damaged_stays() {
    let (sim, files) = files();
    let (set, queue) = open(&files);
    queue.append(&units(0..22)).unwrap();
    set.flush().unwrap();
    let old = queue.files_below(1100, u64::MAX).unwrap();
    // The log offset of the last of five units becomes negative.
    sim.flip(&old[1].path, 4 * 46, 0x80).unwrap();
    let (_, again) = open(&files);
    assert_eq!(again.files_below(1100, u64::MAX).unwrap(), old[..1]);
}

#[test]
fn old_files_go_when_the_log_has_passed_them() {
    let (sim, files) = files();
    let (set, queue) = open(&files);
    queue.append(&units(0..22)).unwrap();
    set.flush().unwrap();
    queue.correct_min_offset(650).unwrap();
    assert_eq!((queue.min_offset(), read(&queue, 0).first().copied()), (21, Some(7)));
    let old = queue.files_below(1100, u64::MAX).unwrap();
    assert_eq!(
        old.iter().map(|file| (file.first_offset, file.last_offset)).collect::<Vec<_>>(),
        [(0, 14), (15, 29)]
    );
    let mut removed = Vec::new();
    queue.remove_below(1100, u64::MAX, &mut |file| removed.push(file.path.clone())).unwrap();
    assert_eq!(removed, old.iter().map(|file| file.path.clone()).collect::<Vec<_>>());
    assert!(removed.iter().all(|path| sim.stat(path).is_err()));
    assert_eq!((queue.min_offset(), read(&queue, 0)), (33, (11..22).collect::<Vec<_>>()));
    // The last file stays even if the log loses all records, and keeps the queue's next offset.
    queue.remove_below(9999, u64::MAX, &mut |_| ()).unwrap();
    let (_, again) = open(&files);
    again.correct_min_offset(9999).unwrap();
    assert_eq!((again.min_offset(), again.max_offset()), (66, 66));
    again.append(&[unit(22)]).unwrap();
    assert_eq!((read(&again, 66), again.max_offset()), (vec![22], 69));
}
