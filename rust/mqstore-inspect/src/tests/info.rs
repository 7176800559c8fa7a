//! The report about a directory.

use crate::{HourRate, InfoReport};
use mqstore_engine::testing::*;

fn info(world: &World) -> InfoReport {
    crate::info(world.vfs.clone(), world.clock.clone(), &world.path, &small()).unwrap()
}

#[test]
fn hours_hold_what_was_stored_in_them() {
    const HOUR: i64 = 3_600_000;
    let (world, _, clock) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    let begin = 1_700_000_000_000 / HOUR * HOUR;
    let mut expected = Vec::new();
    // Fillers at the ends of segments count for the hour before them.
    for (hour, messages) in (0_i64..).zip([3, 0, 200, 1, 0, 0, 40]) {
        let mut bytes = 0;
        for number in 0..messages {
            clock.set(begin + hour * HOUR + number * (HOUR - 1) / messages);
            bytes += u64::from(put(&store, "orders", 0, &[b'x'; 100], "k").size);
        }
        expected.push(bytes);
    }
    store.close().unwrap();
    let report = info(&world);
    let starts: Vec<_> = report.hours.iter().map(|hour| hour.start_ms).collect();
    assert_eq!(starts, (0..7).map(|hour| begin + hour * HOUR).collect::<Vec<_>>());
    assert_eq!(report.hours.iter().map(|hour| hour.bytes).sum::<u64>(), report.log_max_offset);
    for (found, wanted) in report.hours.iter().zip(expected) {
        let fillers = found.bytes - wanted;
        assert!(fillers < 300 * (1 + found.bytes / (16 << 10)), "{found:?}: {wanted}");
        assert_eq!(found.bytes == 0, wanted == 0);
    }
}

#[test]
fn the_newest_hours_of_a_long_time() {
    let (world, _, clock) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    for hour in 0..100 {
        clock.set(1_700_000_000_000 + hour * 3_600_000);
        put(&store, "orders", 0, b"x", "k");
    }
    store.close().unwrap();
    let hours = info(&world).hours;
    assert_eq!(hours.len(), 48);
    assert!(hours.iter().all(|HourRate { bytes, .. }| (100..600).contains(bytes)), "{hours:?}");
}

#[test]
fn a_store_without_messages_has_no_hours() {
    let (world, _, _) = World::simulated();
    world.open(OpenMode::Create, &small()).unwrap().close().unwrap();
    assert_eq!(info(&world).hours, []);
}
