//! Damaged wheels and timer logs: `verify` finds them, and an open without the files rebuilds them.

use std::path::PathBuf;

use mqstore_base::store_files::StoreFiles;
use mqstore_format::delays::timer::{SLOT_BYTES, TIMER_UNIT_BYTES, TimerEntry, TimerSlot, TimerUnit};
use mqstore_inspect::VerifyReport;
use mqstore_io::Access;

use super::*;
use crate::testing::small;

const WHEEL: &str = "timerwheel";
const LOG: &str = "timerlog/00000000000000000000";

fn path(name: &str) -> PathBuf {
    std::path::Path::new("/data/store").join(name)
}

fn verify(world: &SimStore) -> VerifyReport {
    let clock: Arc<dyn Clock> = world.clock.clone();
    let files = StoreFiles::new(Arc::new(world.vfs.clone()), clock, std::path::Path::new("/data/store"));
    mqstore_inspect::verify(&files, &small(), &mut |_| Ok(())).unwrap()
}

/// Ten messages in three slots; four are delivered, and an additional one is cancelled.
fn filled() -> SimStore {
    let world = SimStore::new();
    let store = world.open();
    let broker = broker(&store);
    for number in 0..10 {
        later(&broker, "t", &number.to_string(), Due::At(BEGIN_MS + 1_500 + number / 4 * 2_000));
    }
    let gone = later(&broker, "t", "gone", Due::At(BEGIN_MS + 3_500));
    assert!(broker.cancel(gone.unique_id.as_str()).unwrap());
    pass(&world, &store, 2_500, 500);
    store.close().unwrap();
    world
}

fn slot(world: &SimStore, time: i64) -> (u64, TimerSlot) {
    let at = TimerSlot::index(time) as u64 * SLOT_BYTES as u64;
    let mut bytes = [0; SLOT_BYTES];
    let file = world.vfs.open(&path(WHEEL), Access::Read).unwrap();
    file.read_exact_at(&mut bytes, at).unwrap();
    (at, TimerSlot::decode(&bytes).unwrap())
}

fn unit(world: &SimStore, place: i64) -> TimerUnit {
    let mut bytes = [0; TIMER_UNIT_BYTES];
    let file = world.vfs.open(&path(LOG), Access::Read).unwrap();
    file.read_exact_at(&mut bytes, place as u64).unwrap();
    let TimerEntry::Unit(unit) = TimerEntry::decode(&bytes, place) else { panic!("no unit at {place}") };
    unit
}

fn write(world: &SimStore, name: &str, at: u64, bytes: &[u8]) {
    let file = world.vfs.open(&path(name), Access::ReadWrite).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

/// Damages a copy of a filled store and checks what verify finds. Then removes the files and checks that an open
/// rebuilds them and delivers everything.
fn spoiled(kind: &str, words: &str, spoil: impl FnOnce(&SimStore)) {
    let filled = filled();
    assert!(verify(&filled).ok, "{:?}", verify(&filled).problems);
    spoil(&filled);
    let found = verify(&filled);
    let told = found.problems.iter().find(|problem| problem.kind == kind && problem.detail.contains(words));
    let told = told.unwrap_or_else(|| panic!("{kind}, {words}: {:?}", found.problems));
    assert!(told.repair.contains("timerwheel") && told.path.to_string_lossy().contains("timer"));
    for name in [WHEEL, LOG] {
        filled.vfs.remove_file(&path(name)).unwrap();
    }
    let store = filled.open();
    let broker = broker(&store);
    pass(&filled, &store, 6_000, 500);
    let mut all = bodies(&read(&store, "t"));
    all.sort();
    assert_eq!(all, ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]);
    assert_eq!(broker.delay_counts().unwrap().pending, 0);
    store.close().unwrap();
    assert!(verify(&filled).ok);
}

/// Slots of waiting messages: after three seconds and after five.
const FIRST: i64 = BEGIN_MS / 1000 + 3;
const SECOND: i64 = BEGIN_MS / 1000 + 5;

#[test]
fn a_slot_that_leads_to_another_ones_units() {
    spoiled("timer_wheel_wrong", "a unit of time", |world| {
        let (at, slot) = slot(world, FIRST);
        let last = self::slot(world, SECOND).1.last;
        write(world, WHEEL, at, &TimerSlot { last, ..slot }.encode());
    });
    spoiled("timer_wheel_wrong", "where no unit is", |world| {
        let (at, slot) = slot(world, FIRST);
        write(world, WHEEL, at, &TimerSlot { last: slot.last + 1, ..slot }.encode());
    });
    spoiled("timer_wheel_wrong", "the first unit", |world| {
        let (at, slot) = slot(world, FIRST);
        write(world, WHEEL, at, &TimerSlot { first: slot.first + TIMER_UNIT_BYTES as i64, ..slot }.encode());
    });
    spoiled("timer_wheel_wrong", "the timer log ends", |world| {
        let (at, slot) = slot(world, FIRST);
        write(world, WHEEL, at, &TimerSlot { last: 1 << 30, ..slot }.encode());
    });
}

#[test]
fn units_that_lead_to_the_wrong_place() {
    spoiled("timer_wheel_wrong", "a unit of time", |world| {
        let place = slot(world, SECOND).1.last;
        let previous = slot(world, FIRST).1.first;
        write(world, LOG, place as u64, &TimerUnit { previous, ..unit(world, place) }.encode());
    });
    spoiled("timer_log_damaged", "a record of t", |world| {
        let place = slot(world, SECOND).1.last;
        let reader = world.open();
        let delivered = read(&reader, "t").remove(0);
        reader.close().unwrap();
        let physical_offset = delivered.commit_log_offset as i64;
        write(world, LOG, place as u64, &TimerUnit { physical_offset, ..unit(world, place) }.encode());
    });
    spoiled("timer_log_damaged", "a record of rmq_sys_wheel_timer with", |world| {
        let place = slot(world, FIRST).1.last;
        let found = unit(world, place);
        write(world, LOG, place as u64, &TimerUnit { size: found.size - 1, ..found }.encode());
    });
    spoiled("timer_log_damaged", "begins", |world| {
        let place = slot(world, FIRST).1.last;
        let found = unit(world, place);
        let physical_offset = found.physical_offset + 1;
        write(world, LOG, place as u64, &TimerUnit { physical_offset, ..found }.encode());
    });
    spoiled("timer_log_damaged", "the log ends", |world| {
        let place = slot(world, FIRST).1.last;
        let found = unit(world, place);
        write(world, LOG, place as u64, &TimerUnit { physical_offset: 1 << 40, ..found }.encode());
    });
}

#[test]
fn a_check_beside_a_store_whose_timer_goes_on_finds_nothing() {
    let world = SimStore::new();
    let store = world.open();
    let broker = broker(&store);
    let far = |text: &str| later(&broker, "t", text, Due::At(BEGIN_MS + 86_400_000));
    far("before");
    pass(&world, &store, 2_000, 500);
    let mut calls = 0;
    let files = store.files().clone();
    let found = mqstore_inspect::verify(&files, &small(), &mut |_| {
        calls += 1;
        far("meanwhile");
        pass(&world, &store, 2_000, 500);
        Ok(())
    });
    assert!(calls > 0);
    let problems = found.unwrap().problems;
    assert!(problems.is_empty(), "{:?}", problems.iter().map(|one| &one.detail).collect::<Vec<_>>());
}
