//! Delayed messages as a reader counts them.

use std::path::Path;

use mqstore_base::error::StoreError;
use mqstore_base::options::OpenMode;
use mqstore_format::delays::timer::WHEEL_BYTES;
use mqstore_io::{FileKind, SimVfs};

use super::*;
use crate::testing::small;
use crate::{DueCounts, PendingDelays};

const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

fn look(world: &SimStore) -> Result<PendingDelays, StoreError> {
    let clock: Arc<dyn Clock> = world.clock.clone();
    let path = Path::new("/data/store");
    let before = world.vfs.fingerprint();
    let reader = Store::open(Arc::new(world.vfs.clone()), clock, path, OpenMode::Read, &small())?;
    let found = PendingDelays::of(&reader);
    assert_eq!(world.vfs.fingerprint(), before);
    found
}

/// Removes all files of mqstore itself, as if only a broker had used the store.
fn without_side(vfs: &SimVfs) {
    let mut folders = vec![Path::new("/data/store/mqstore").to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in vfs.list(&folder).unwrap_or_default() {
            let path = folder.join(&entry.name);
            match entry.stat.kind {
                FileKind::Directory => folders.push(path),
                _ => vfs.remove_file(&path).unwrap(),
            }
        }
    }
}

/// Messages of each kind, some cancelled, some with a level.
fn filled() -> (SimStore, DueCounts) {
    let world = SimStore::new();
    let store = world.open();
    let broker = broker(&store);
    let delays = [1_500, 2_500, 30_000, 30_000, 2 * MINUTE, 20 * HOUR, 60 * HOUR, 10 * DAY, 100 * DAY];
    for (number, delay) in delays.into_iter().enumerate() {
        later(&broker, "t", &number.to_string(), Due::At(BEGIN_MS + delay));
        let gone = later(&broker, "t", "gone", Due::At(BEGIN_MS + delay));
        assert!(broker.cancel(gone.unique_id.as_str()).unwrap());
    }
    for level in [2, 4, 4, 17] {
        later(&broker, "t", "level", Due::Level(level));
    }
    store.step().unwrap();
    advance(&world.clock, 1_000);
    store.step().unwrap();
    store.close().unwrap();
    let first_due_ms = Some(BEGIN_MS + 2_000);
    let timer = DueCounts { messages: 9, first_due_ms, by_due: [0, 4, 1, 1, 1, 2] };
    (world, timer)
}

#[test]
fn what_waits_is_counted_by_when_it_is_due() {
    let (world, timer) = filled();
    let levels = DueCounts { messages: 4, first_due_ms: Some(BEGIN_MS + 5_000), by_due: [0, 3, 1, 0, 0, 0] };
    let expected = PendingDelays { timer, levels, notes: vec![] };
    assert_eq!(look(&world).unwrap(), expected);
    // Nothing is delivered meanwhile: messages that were nearly due are overdue.
    advance(&world.clock, 2 * 60_000);
    let found = look(&world).unwrap();
    assert_eq!((found.timer.by_due, found.levels.by_due), ([5, 0, 0, 1, 1, 2], [3, 0, 1, 0, 0, 0]));
    assert_eq!(found.timer.first_due_ms, Some(BEGIN_MS + 2_000));
}

#[test]
fn a_brokers_files_alone_say_the_same() {
    let (world, timer) = filled();
    let broker = SimStore { vfs: world.vfs.look().unwrap(), clock: world.clock.clone() };
    without_side(&broker.vfs);
    assert_eq!(look(&broker).unwrap().timer, timer);
    // Without the wheel the counts come from the records, precise to the millisecond.
    broker.vfs.remove_file(Path::new("/data/store/timerwheel")).unwrap();
    let found = look(&broker).unwrap();
    assert_eq!((found.timer.messages, found.timer.by_due), (timer.messages, timer.by_due));
    assert_eq!(found.timer.first_due_ms, Some(BEGIN_MS + 1_500));
    assert!(found.notes[0].contains("timerwheel"), "{:?}", found.notes);
    // A wheel of zeros gets its units from the timer log.
    let empty = SimStore { vfs: world.vfs.look().unwrap(), clock: world.clock.clone() };
    without_side(&empty.vfs);
    empty.vfs.remove_file(Path::new("/data/store/timerwheel")).unwrap();
    empty.vfs.create_new(Path::new("/data/store/timerwheel")).unwrap().set_len(WHEEL_BYTES).unwrap();
    assert_eq!(look(&empty).unwrap().timer, timer);
}

#[test]
fn beside_a_writer_what_it_has_not_saved_counts_too() {
    let world = SimStore::new();
    let store = world.open();
    let broker = broker(&store);
    assert_eq!(look(&world).unwrap(), PendingDelays::default());
    for number in 0..50 {
        later(&broker, "t", &number.to_string(), Due::At(BEGIN_MS + 10_000 + number));
    }
    let gone = later(&broker, "t", "gone", Due::At(BEGIN_MS + 10_000));
    broker.cancel(gone.unique_id.as_str()).unwrap();
    store.step().unwrap();
    assert_eq!(look(&world).unwrap().timer.messages, 50);
    pass(&world, &store, 3_000, 500);
    let late = later(&broker, "t", "late", Due::At(BEGIN_MS + 10_000));
    assert_eq!(look(&world).unwrap().timer.messages, 51);
    broker.cancel(late.unique_id.as_str()).unwrap();
    let found = look(&world).unwrap().timer;
    assert_eq!((found.messages, found.by_due), (50, [0, 50, 0, 0, 0, 0]));
    pass(&world, &store, 10_000, 500);
    assert_eq!(look(&world).unwrap().timer.messages, 0);
    store.close().unwrap();
}
