//! A stop at every call of the disk: as a kill and as a power loss.

use mqstore_io::SimVfs;

use super::model::finish;
use super::*;

/// Uses every kind of delayed message, with saves, a roll of the timer log and a close.
fn use_it(world: &SimStore) {
    let store = world.open();
    let broker = broker(&store);
    let mut ids = Vec::new();
    for number in 0..90_i64 {
        let due = BEGIN_MS + 500 + number * 97 % 4_000 + if number % 9 == 0 { 200_000_000 } else { 0 };
        let done = later(&broker, "t", &number.to_string(), Due::At(due));
        ids.push(done.unique_id.as_str().to_owned());
        if number % 30 == 29 {
            later(&broker, "t", &format!("level {number}"), Due::Level(2));
            store.step().unwrap();
            broker.cancel(&ids[number as usize - 10]).unwrap();
            advance(&world.clock, 1_100);
            store.step().unwrap();
        }
    }
    pass(world, &store, 3_300, 1_100);
    store.close().unwrap();
    drop(broker);
    let store = world.open();
    let _broker = self::broker(&store);
    pass(world, &store, 4_400, 1_100);
    store.close().unwrap();
}

/// Returns the disk at about `count` of the calls that `use_it` makes, each with the number of the call.
pub(super) fn stops(count: u64, use_it: impl Fn(&SimStore)) -> Vec<(u64, SimVfs)> {
    let world = SimStore::new();
    use_it(&world);
    let calls = world.vfs.operations();
    let world = SimStore::new();
    let first = world.vfs.operations();
    let every = 1 + (calls - first) / count;
    world.vfs.freeze_at_each((first..calls).step_by(every as usize));
    use_it(&world);
    world.vfs.take_all_frozen()
}

#[test]
fn a_stop_anywhere_loses_nothing_and_repeats_nothing() {
    let frozen = stops(150, use_it);
    assert!(frozen.len() > 100, "{} stops", frozen.len());
    for (call, vfs) in frozen {
        for (how, vfs) in [("kill", vfs.kill().unwrap()), ("power", vfs.crash(call).unwrap())] {
            let world = SimStore { vfs, clock: Arc::new(ManualClock::new(BEGIN_MS + 9_000)) };
            finish(&world).unwrap_or_else(|error| panic!("{how} at call {call}: {error}"));
        }
    }
}
