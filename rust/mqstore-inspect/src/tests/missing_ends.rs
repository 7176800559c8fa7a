//! Offsets that repairs list as lost at the begin and end of queues, and how often repairs report progress.

use mqstore_io::Access;

use super::repair::{SEGMENT, segment};
use crate::LostOffsets;
use crate::RepairReport;
use mqstore_engine::testing::*;

fn repair(world: &World, target: crate::RepairTarget<'_>) -> RepairReport {
    crate::repair(&world.files(), &small(), target, &mut |_| Ok(())).unwrap()
}

/// Two queues in turns, and a third one in the middle; log offsets and sizes by message.
fn filled() -> (World, Vec<mqstore_base::message::Appended>) {
    let world = World::real();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    store.create_topic("orders", 2, &[]).unwrap();
    let mut placed = Vec::new();
    for number in 0..60_i32 {
        placed.push(put(&store, "orders", number % 2, &[b'x'; 300], &format!("k{number}")));
        if number == 30 {
            placed.push(put(&store, "rare", 0, b"alone", "r"));
        }
    }
    store.close().unwrap();
    (world, placed)
}

fn spoil(world: &World, from: &mqstore_base::message::Appended, to: &mqstore_base::message::Appended) {
    let (mut at, end) = (from.commit_log_offset, to.commit_log_offset + u64::from(to.size));
    while at < end {
        let stop = end.min((at / SEGMENT + 1) * SEGMENT);
        let file = world.vfs.open(&segment(world, at / SEGMENT), Access::ReadWrite).unwrap();
        file.write_all_at(&vec![0xee; (stop - at) as usize], at % SEGMENT).unwrap();
        at = stop;
    }
}

fn lost(topic: &str, queue_id: i32, from: i64, to: i64) -> LostOffsets {
    LostOffsets { topic: topic.to_owned(), queue_id, from, to }
}

fn repaired(world: &World) -> Vec<LostOffsets> {
    let plan = repair(world, crate::RepairTarget::DryRun);
    let done = repair(world, crate::RepairTarget::InPlace);
    assert_eq!(plan.queue_offsets, done.queue_offsets);
    assert!(done.ok, "{:?}", done.problems);
    assert!(!repair(world, crate::RepairTarget::InPlace).changed);
    done.queue_offsets
}

#[test]
fn offsets_before_the_first_record() {
    let (world, placed) = filled();
    spoil(&world, &placed[0], &placed[4]);
    assert_eq!(repaired(&world), [lost("orders", 0, 0, 3), lost("orders", 1, 0, 2)]);
}

#[test]
fn offsets_before_the_first_record_of_a_log_that_lost_its_oldest() {
    let (world, placed) = filled();
    world.vfs.remove_file(&segment(&world, 0)).unwrap();
    let first = placed.iter().position(|one| one.commit_log_offset >= SEGMENT).unwrap();
    spoil(&world, &placed[first], &placed[first + 1]);
    let found = repaired(&world);
    let expected = |at: usize| {
        let one = &placed[at];
        lost("orders", one.queue_id, one.queue_offset, one.queue_offset + 1)
    };
    let mut both = [expected(first), expected(first + 1)];
    both.sort();
    assert_eq!(found, both);
}

#[test]
fn offsets_behind_the_last_record_and_of_a_whole_queue() {
    let (world, placed) = filled();
    spoil(&world, &placed[31], &placed[31]);
    let last = placed.len() - 1;
    spoil(&world, &placed[last - 2], &placed[last]);
    assert_eq!(
        repaired(&world),
        [lost("orders", 0, 29, 30), lost("orders", 1, 28, 30), lost("rare", 0, 0, 1)]
    );
}

#[test]
fn queues_of_another_store_tell_nothing() {
    let (world, placed) = filled();
    let (other, _) = filled();
    let store = other.open(OpenMode::ReadWrite, &small()).unwrap();
    for _ in 0..40 {
        put(&store, "orders", 0, b"more", "k");
    }
    store.close().unwrap();
    // The same queue, except for the log offsets of its records.
    let folder = |world: &World| world.files().consume_queue().join("orders").join("0");
    world.vfs.remove_dir_all(&folder(&world)).unwrap();
    world.vfs.create_dir(&folder(&world)).unwrap();
    for entry in other.vfs.list(&folder(&other)).unwrap() {
        let mut bytes = other.vfs.read_file(&folder(&other).join(&entry.name), 1 << 20).unwrap();
        bytes.as_chunks_mut::<20>().0.iter_mut().for_each(|unit| unit[7] ^= 1);
        let file = world.vfs.create_new(&folder(&world).join(&entry.name)).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
    }
    let last = placed.len() - 1;
    spoil(&world, &placed[last], &placed[last]);
    let listed = repaired(&world);
    assert_eq!(listed, [lost("orders", 1, 29, 30)]);
}

#[test]
fn what_a_master_said_stays_in_the_checkpoint() {
    let (world, placed) = filled();
    let checkpoint = mqstore_log::checkpoint::CheckpointFile::new(&world.files());
    let mut fields = checkpoint.load();
    fields.master_flushed_offset = 4711;
    checkpoint.store(&fields).unwrap();
    spoil(&world, &placed[0], placed.last().unwrap());
    let done = repair(&world, crate::RepairTarget::InPlace);
    assert!(done.ok && done.messages == 0, "{:?}", done.problems);
    let now = checkpoint.load();
    assert_eq!((now.master_flushed_offset, now.confirm_physical_offset), (4711, 0));
}

/// The watcher is called for each 16 MiB without a record, and for each MiB that is copied.
#[test]
fn a_long_search_listens() {
    let world = World::real();
    let options = StoreOptions { segment_bytes: 64 << 20, ..small() };
    let store = world.open(OpenMode::Create, &options).unwrap();
    let first = put(&store, "orders", 0, b"first", "k");
    store.close().unwrap();
    let path = segment(&world, 0);
    let junk = vec![0xab; 60 << 20];
    let file = world.vfs.open(&path, Access::ReadWrite).unwrap();
    file.write_all_at(&junk, u64::from(first.size)).unwrap();
    let stop_at = |count: u32| {
        let mut calls = 0;
        let outcome = crate::repair(&world.files(), &options, crate::RepairTarget::InPlace, &mut |_| {
            calls += 1;
            if calls == count {
                return Err(StoreError::Busy { reason: "stop".into() });
            }
            Ok(())
        });
        (outcome, calls)
    };
    let before = world.vfs.read_file(&path, 1 << 30).unwrap();
    let (stopped, _) = stop_at(4);
    assert!(matches!(stopped, Err(StoreError::Busy { .. })));
    assert_eq!(world.vfs.read_file(&path, 1 << 30).unwrap(), before);
    let mut heard = 0;
    let report = crate::verify::verify(&world.files(), &options, &mut |_| {
        heard += 1;
        Ok(())
    });
    assert!(!report.unwrap().ok && heard >= 4, "{heard}");
    let (done, calls) = stop_at(u32::MAX);
    assert!(done.unwrap().ok && calls >= 60, "{calls}");
}
