//! Two segments with the same name: the one with records counts, in reads, verification and repair.

use std::path::PathBuf;

use mqstore_format::offset_file_name;
use mqstore_io::Access;

use super::repair::SEGMENT;
use crate::RepairTarget;
use mqstore_engine::testing::*;

fn options() -> StoreOptions {
    StoreOptions { commit_log_paths: ["a", "b", "c"].map(PathBuf::from).to_vec(), ..small() }
}

/// Returns a store of some segments in three folders, and the number of its messages.
fn filled() -> (World, usize) {
    let (world, _, _) = World::simulated();
    let store = world.open(OpenMode::Create, &options()).unwrap();
    for number in 0..300 {
        put(&store, "orders", 0, &[b'x'; 200], &format!("k{number}"));
    }
    store.close().unwrap();
    (world, 300)
}

/// Returns the path of segment `number` in `folder`.
fn place(world: &World, folder: &str, number: u64) -> PathBuf {
    world.path.join(folder).join(offset_file_name(number * SEGMENT))
}

/// Writes another segment 1, which is in folder `b`, to `folder`.
fn plant(world: &World, folder: &str, bytes: &[u8]) -> PathBuf {
    assert!(world.vfs.stat(&place(world, "b", 1)).is_ok());
    let path = place(world, folder, 1);
    let file = world.vfs.create_new(&path).unwrap();
    file.set_len(SEGMENT).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    path
}

fn original(world: &World) -> Vec<u8> {
    world.vfs.read_file(&place(world, "b", 1), SEGMENT).unwrap()
}

fn readable(world: &World) -> usize {
    let store = world.open(OpenMode::Read, &options()).unwrap();
    let found = read_all(&store, "orders", 0).len();
    store.close().unwrap();
    found
}

fn repair(world: &World, target: RepairTarget<'_>) -> Result<crate::RepairReport, StoreError> {
    crate::repair(&world.files(), &options(), target, &mut |_| Ok(()))
}

/// Repairs a store with another segment 1 at `twin`: every message is there, and only `moved` is in `lost+found`.
fn keeps_all(world: &World, count: usize, moved: &Path) {
    let kept = world.vfs.read_file(moved, SEGMENT).unwrap();
    assert_eq!(readable(world), count, "before the repair");
    let report = crate::verify(&world.files(), &options(), &mut |_| Ok(())).unwrap();
    let found: Vec<_> =
        report.problems.iter().map(|problem| (problem.kind, problem.path.as_path())).collect();
    assert_eq!((found, report.messages), (vec![("segment_stray", moved)], count as u64));
    let plan = repair(world, RepairTarget::DryRun).unwrap();
    let done = repair(world, RepairTarget::InPlace).unwrap();
    assert!(done.ok && done.changed && plan.changed, "{done:?}");
    assert_eq!((plan.messages, done.messages, done.lost.len()), (count as u64, count as u64, 0));
    assert_eq!(readable(world), count, "after the repair");
    assert!(world.vfs.stat(moved).is_err());
    let names = world.vfs.list(&world.files().lost_and_found()).unwrap();
    assert_eq!(names.len(), 1);
    let path = world.files().lost_and_found().join(&names[0].name);
    assert!(world.vfs.read_file(&path, SEGMENT).unwrap() == kept);
}

#[test]
fn a_file_without_records_never_counts() {
    for folder in ["a", "c"] {
        for bytes in [&b""[..], b"no record"] {
            let (world, count) = filled();
            let moved = plant(&world, folder, bytes);
            keeps_all(&world, count, &moved);
        }
    }
}

#[test]
fn the_file_with_more_records_counts_wherever_it_is() {
    for folder in ["a", "c"] {
        let (world, count) = filled();
        // An older copy: the front of the segment.
        let moved = plant(&world, folder, &original(&world)[..5000]);
        keeps_all(&world, count, &moved);
        // The same in exchanged places.
        let (world, count) = filled();
        let other = plant(&world, folder, &original(&world)[..5000]);
        world.vfs.exchange(&other, &place(&world, "b", 1)).unwrap();
        keeps_all(&world, count, &place(&world, "b", 1));
        // A copy with damage.
        let (world, count) = filled();
        let mut bytes = original(&world);
        bytes[700] ^= 1;
        let moved = plant(&world, folder, &bytes);
        keeps_all(&world, count, &moved);
    }
}

#[test]
fn three_files_of_one_name_are_compared() {
    let (world, count) = filled();
    let bytes = original(&world);
    world
        .vfs
        .open(&place(&world, "b", 1), Access::ReadWrite)
        .unwrap()
        .write_all_at(&[0; 1 << 14], 0)
        .unwrap();
    plant(&world, "a", &bytes[..5000]);
    plant(&world, "c", &bytes);
    assert_eq!(readable(&world), count);
    assert!(repair(&world, RepairTarget::InPlace).unwrap().ok);
    assert_eq!(readable(&world), count);
    assert!(world.vfs.stat(&place(&world, "c", 1)).is_ok());
}

/// Returns segment 1 with another body in one of its records, with valid checksums.
fn other_records(world: &World) -> Vec<u8> {
    let mut bytes = original(world);
    let size = u32::from_be_bytes(bytes[..4].try_into().unwrap()) as usize;
    let record = &mut bytes[size..2 * size];
    record[88] = b'y';
    let crc = mqstore_format::crc31(&record[88..288]);
    record[8..12].copy_from_slice(&crc.to_be_bytes());
    mqstore_format::seal_property_crc(record).unwrap();
    bytes
}

#[test]
fn different_records_are_an_error_that_names_both_files() {
    let (world, _) = filled();
    let twin = plant(&world, "c", &other_records(&world));
    let before = super::rebuild::tree(&*world.vfs, &world.path);
    let opened = |mode| world.open(mode, &options()).map(drop);
    let repaired = |target| repair(&world, target).map(drop);
    for refused in [
        opened(OpenMode::Read),
        opened(OpenMode::ReadWrite),
        repaired(RepairTarget::DryRun),
        repaired(RepairTarget::InPlace),
    ] {
        let error = refused.unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
        let text = error.to_string();
        for path in [place(&world, "b", 1), twin.clone()] {
            assert!(text.contains(&path.display().to_string()), "{text}");
        }
    }
    let mut after = super::rebuild::tree(&*world.vfs, &world.path);
    after.retain(|path, _| before.contains_key(path));
    assert!(after == before, "something changed");
    let report = crate::verify(&world.files(), &options(), &mut |_| Ok(())).unwrap();
    assert_eq!(report.problems.iter().map(|problem| problem.kind).collect::<Vec<_>>(), ["segment_stray"]);
}

#[test]
fn an_empty_segment_gives_way_to_a_misnamed_one_with_its_records() {
    let (world, count) = filled();
    let right = place(&world, "b", 1);
    world.vfs.rename(&right, &place(&world, "b", 40)).unwrap();
    let file = world.vfs.create_new(&right).unwrap();
    file.set_len(SEGMENT).unwrap();
    let report = repair(&world, RepairTarget::InPlace).unwrap();
    assert!(report.ok, "{report:?}");
    assert_eq!(readable(&world), count);
}
