//! No single flipped bit hides a checksum: verification reports every one, and a repair loses only what is damaged.

use super::repair::{filled, heals, spoil};
use mqstore_engine::testing::*;

/// Returns a store of five records with a checksum, the middle one with `properties`, and the place of the middle one.
fn five_records(properties: &[u8]) -> (World, u64, u64) {
    let (world, _, _) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    let mut middle = (0, 0);
    for number in 0..5 {
        let own = if number == 2 { properties } else { b"" };
        let at = store.append(&message("orders", Some(0), b"body", own)).unwrap();
        if number == 2 {
            middle = (at.commit_log_offset, u64::from(at.size));
        }
    }
    store.close().unwrap();
    (world, middle.0, middle.1)
}

fn kinds(world: &World) -> Vec<&'static str> {
    let report = crate::verify(&world.files(), &small(), &mut |_| Ok(())).unwrap();
    report.problems.iter().map(|problem| problem.kind).collect()
}

/// A record with one of these properties may be a copy that a broker made, with the checksum of the original.
#[test]
fn each_flipped_bit_of_a_record_is_reported() {
    for properties in [&b"color\x01red\x02"[..], b"REAL_TOPIC\x01t\x02", b"1ST_POP_TIME\x015\x02"] {
        let (world, at, size) = five_records(properties);
        assert_eq!(kinds(&world), [""; 0]);
        let log = world.vfs.read_file(&super::repair::segment(&world, 0), 1 << 20).unwrap();
        for place in at..at + size {
            for bit in 0..8 {
                spoil(&world, place, &[log[place as usize] ^ (1 << bit)]);
                let found = kinds(&world);
                let expected = ["record_damaged", "record_checksum_missing"];
                let byte = place - at;
                assert!(
                    found.iter().any(|kind| expected.contains(kind)),
                    "byte {byte}, bit {bit}: {found:?}"
                );
            }
            spoil(&world, place, &[log[place as usize]]);
        }
    }
}

#[test]
fn a_record_without_a_checksum_between_two_with_one_is_reported() {
    let (world, _, _) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    put(&store, "orders", 0, b"first", "k");
    store.close().unwrap();
    let bare = StoreOptions { record_crc: false, ..small() };
    let mut place = 0;
    for (options, count) in [(&bare, 2), (&small(), 1), (&bare, 1), (&small(), 2), (&bare, 1)] {
        let store = world.open(OpenMode::ReadWrite, options).unwrap();
        for _ in 0..count {
            let at = put(&store, "orders", 0, b"body", "k").commit_log_offset;
            place = if count == 1 && !options.record_crc && place == 0 { at } else { place };
        }
        store.close().unwrap();
    }
    for threads in [0, 2] {
        let options = StoreOptions { dispatch_threads: Some(threads), ..small() };
        let report = crate::verify(&world.files(), &options, &mut |_| Ok(())).unwrap();
        let found: Vec<_> = report.problems.iter().map(|problem| (problem.kind, problem.offset)).collect();
        assert_eq!(found, [("record_checksum_missing", Some(place))]);
    }
}

#[test]
fn the_name_of_a_checksum_is_restored_and_costs_nothing() {
    let (_, _, placed) = filled(20);
    let (at, size, ..) = placed[7];
    for back in (1..=20).filter(|back| !(2..=11).contains(back)) {
        let (world, _, placed) = filled(20);
        let old = world.vfs.read_file(&super::repair::segment(&world, 0), 1 << 20).unwrap();
        let place = at + size - back;
        spoil(&world, place, &[old[place as usize] ^ 4]);
        let report = heals(&world, &placed, &[]);
        assert!(report.actions[0].contains("name restored"), "{:?}", report.actions);
        assert!(world.vfs.read_file(&super::repair::segment(&world, 0), 1 << 20).unwrap() == old);
    }
}
