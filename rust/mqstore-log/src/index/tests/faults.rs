//! Tests of failing calls, full disks, kills and power loss.

use mqstore_io::sim::{Fault, OperationKind};

use super::*;

const KEYS: [&str; 3] = ["a", "b", "c"];

fn puts(range: std::ops::Range<i64>) -> Vec<NewEntry> {
    range.map(nth).collect()
}

fn work(set: &IndexSet) -> Result<(), StoreError> {
    set.put(&puts(0..10))?;
    set.flush()?;
    set.put(&puts(10..18))?;
    set.flush()
}

fn answers(set: &IndexSet) -> Vec<Vec<i64>> {
    KEYS.map(|key| all(set, key)).to_vec()
}

fn expected(range: std::ops::Range<i64>) -> Vec<Vec<i64>> {
    KEYS.map(|name| {
        let of_key = range.clone().rev().filter(|n| nth(*n).hash == hash(name));
        of_key.map(|n| n * 100).collect()
    })
    .to_vec()
}

#[test]
fn after_any_failed_call_the_same_work_can_be_done_again() {
    let (mut failed, mut call) = (0, 1);
    loop {
        let world = World::new(&SimVfs::default());
        let set = world.open(Access::ReadWrite);
        world.sim.inject(Fault::nth(call));
        let outcome = work(&set);
        if world.sim.faults_fired() == 0 {
            break;
        }
        if let Err(error) = outcome {
            assert!(matches!(error, StoreError::Io { .. }), "call {call}: {error}");
            failed += 1;
        }
        world.sim.clear_faults();
        work(&set).unwrap();
        assert_eq!(answers(&set), expected(0..18), "call {call}");
        let after = World::new(&world.sim.crash_with(&mut |_| false).unwrap());
        assert_eq!(answers(&after.open(Access::Read)), expected(0..18), "call {call}");
        assert!(world.sim.violations().is_empty());
        call += 1;
    }
    assert!(failed > 15, "{failed} failures");
}

#[test]
fn a_full_disk_is_met_before_the_map_is_written() {
    let world = World::new(&SimVfs::default());
    let set = world.open(Access::ReadWrite);
    world.sim.inject(Fault::nth(1).on(&[OperationKind::Allocate]).no_space().sticky());
    for _ in 0..3 {
        let error = set.put(&puts(0..3)).unwrap_err();
        assert!(matches!(error, StoreError::DiskFull { .. }), "{error}");
    }
    assert!(tree(&world.sim, Path::new("/")).is_empty());
    world.sim.clear_faults();
    set.put(&puts(0..10)).unwrap();
    assert_eq!(answers(&set), expected(0..10));
    // The same if the space runs out at the end.
    world.sim.set_space(Some(1));
    assert!(matches!(set.put(&puts(10..18)), Err(StoreError::DiskFull { .. })));
    assert!(world.sim.violations().is_empty());
    world.sim.set_space(None);
    set.put(&puts(10..18)).unwrap();
    assert_eq!(answers(&set), expected(0..18));
}

#[test]
fn a_process_killed_at_any_moment_leaves_whole_chains() {
    let mut moments = 0;
    for stop in 1.. {
        let world = World::new(&SimVfs::default());
        let set = world.open(Access::ReadWrite);
        world.sim.freeze_at(world.sim.operations() + stop);
        set.put(&puts(0..18)).unwrap();
        let Some(frozen) = world.sim.take_frozen() else { break };
        let after = World::new(&frozen);
        let set = IndexSet::load(&after.files, Some(TINY), TINY, Access::ReadWrite).unwrap();
        // The existing entries are sound. The last record may lack keys, but no record before it does.
        let end = set.end_physical() / 100;
        for (found, (all, sure)) in answers(&set).iter().zip(expected(0..18).iter().zip(expected(0..end))) {
            assert!(found.iter().all(|offset| all.contains(offset)), "stopped at {stop}");
            assert!(sure.iter().all(|offset| found.contains(offset)), "stopped at {stop}");
        }
        set.put(&puts(end..18)).unwrap();
        assert_eq!(answers(&set), expected(0..18), "stopped at {stop}");
        moments += 1;
    }
    assert!(moments > 100, "{moments} moments");
}

#[test]
fn after_a_power_loss_what_was_synced_is_kept() {
    let mut states = 0;
    for seed in 0..60 {
        let world = World::new(&SimVfs::default());
        let set = world.open(Access::ReadWrite);
        set.put(&puts(0..10)).unwrap();
        set.flush().unwrap();
        world.sim.freeze_at(world.sim.operations() + 1 + seed * 3);
        set.put(&puts(10..30)).unwrap();
        let Some(frozen) = world.sim.take_frozen() else { continue };
        let after = World::new(&frozen.crash(seed).unwrap());
        let set = IndexSet::load(&after.files, Some(TINY), TINY, Access::ReadWrite).unwrap();
        // As in recovery: unsynced parts may be any mixture.
        if !set.strays().is_empty() {
            for stray in set.strays() {
                after.sim.remove_file(&stray.path).unwrap();
            }
        }
        let set = IndexSet::load(&after.files, Some(TINY), TINY, Access::ReadWrite).unwrap();
        let from = set.drop_from(900).unwrap();
        assert_eq!((from, set.file_count()), (600, 1), "seed {seed}");
        set.put(&puts(from / 100..30)).unwrap();
        assert_eq!(answers(&set), expected(0..30), "seed {seed}");
        states += 1;
    }
    assert!(states > 40, "{states} states");
}

#[test]
fn a_failed_sync_stays_to_be_done() {
    let world = World::new(&SimVfs::default());
    let set = world.open(Access::ReadWrite);
    set.put(&puts(0..10)).unwrap();
    for kind in [OperationKind::Sync, OperationKind::SyncDir] {
        world.sim.inject(Fault::nth(1).on(&[kind]));
        assert!(set.flush().is_err());
        assert!(set.is_dirty());
        world.sim.clear_faults();
    }
    set.flush().unwrap();
    assert!(!set.is_dirty());
}

#[test]
fn look_ups_go_on_while_entries_are_added() {
    let world = World::new(&SimVfs::default());
    let geometry = IndexGeometry { slots: 3, entries: 200 };
    let set = IndexSet::load(&world.files, None, geometry, Access::ReadWrite).unwrap();
    let other = || IndexSet::load(&world.files, Some(geometry), geometry, Access::Read).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for n in 0..500 {
                set.put(&[nth(n)]).unwrap();
                if n % 100 == 0 {
                    set.flush().unwrap();
                }
            }
            // Many at once, as in dispatch.
            for first in (500..1500).step_by(250) {
                set.put(&puts(first..first + 250)).unwrap();
                set.flush().unwrap();
            }
        });
        let mut seen = 0;
        while !writer.is_finished() {
            let found = all(&set, "a");
            assert!(
                found.len() >= seen
                    && found.iter().rev().copied().eq((0..found.len() as i64).map(|n| n * 300))
            );
            seen = found.len();
            all(&other(), "b");
        }
        writer.join().unwrap();
    });
    assert_eq!(all(&set, "a").len(), 500);
}

#[test]
fn a_kill_between_any_two_stores_leaves_sound_chains() {
    // Two keys a record, some of them equal, over three files.
    let new: Vec<_> = (0..18).map(|n| NewEntry { physical_offset: n / 2 * 100, ..nth(n) }).collect();
    let wanted = KEYS.map(|name| {
        let mut offsets: Vec<_> =
            new.iter().filter(|one| one.hash == hash(name)).map(|one| one.physical_offset).collect();
        offsets.reverse();
        offsets.dedup();
        offsets
    });
    let world = World::new(&SimVfs::default());
    let set = world.open(Access::ReadWrite);
    world.sim.freeze_at_each(1..2000);
    set.put(&new).unwrap();
    let mut unlinked = 0;
    for (call, moment) in world.sim.take_all_frozen() {
        let after = World::new(&moment.kill().unwrap());
        let set = IndexSet::load(&after.files, Some(TINY), TINY, Access::ReadWrite).unwrap();
        let before = after.contents();
        set.link_newest_entry().unwrap();
        unlinked += u32::from(before != after.contents());
        // Recovery indexes from the record of the newest entry on.
        set.put(&new).unwrap();
        assert_eq!(answers(&set), wanted, "call {call}");
        assert_eq!(set.wrong_files(&set.finished_files(false)).unwrap(), [], "call {call}");
        for (name, bytes) in after.contents() {
            let used = (0..TINY.slots as usize).filter(|number| slot(&bytes, *number) > 0).count();
            assert_eq!(header(&bytes).slot_count, used as i32, "call {call}, slots of {name}");
        }
    }
    assert_eq!(unlinked, 18, "each entry is counted before its slot names it");
}

#[test]
fn only_an_entry_of_the_last_record_is_linked() {
    let world = World::new(&SimVfs::default());
    world.open(Access::ReadWrite).put(&puts(0..6)).unwrap();
    let path = world.files.index().join(&world.contents()[0].0);
    let file = world.sim.open(&path, Access::ReadWrite).unwrap();
    // The slot of entry 6 names the older entry, but the header ends with another record.
    let newest = TINY.slot_position(TINY.slot_of(nth(5).hash));
    let older = entry(&world.contents()[0].1, 6).previous;
    file.write_all_at(&older.to_be_bytes(), newest).unwrap();
    file.write_all_at(&400_i64.to_be_bytes(), 24).unwrap();
    let damaged = world.contents();
    world.open(Access::ReadWrite).link_newest_entry().unwrap();
    assert_eq!(world.contents(), damaged);
    file.write_all_at(&500_i64.to_be_bytes(), 24).unwrap();
    world.open(Access::ReadWrite).link_newest_entry().unwrap();
    assert_eq!(slot(&world.contents()[0].1, TINY.slot_of(nth(5).hash) as usize), 6);
}
