//! Verification and repair of a broker's files other than log, queues and index.

use std::path::Path;

use mqstore_format::json::{ConsumerOffsets, DelayOffsets};
use mqstore_format::{CQ_UNIT_BYTES, CqExtUnit, SCHEDULE_TOPIC, ext_address, tags_code};
use mqstore_io::Access;

use crate::RepairReport;
use crate::verify::VerifyReport;
use mqstore_engine::testing::*;
use mqstore_engine::{AppendMarks, TransactionMark};

fn verify(world: &World) -> VerifyReport {
    crate::verify::verify(&world.files(), &small(), &mut |_| Ok(())).unwrap()
}

fn kinds(world: &World) -> Vec<&'static str> {
    verify(world).problems.iter().map(|problem| problem.kind).collect()
}

fn repair(world: &World, target: crate::RepairTarget<'_>) -> RepairReport {
    crate::repair(&world.files(), &small(), target, &mut |_| Ok(())).unwrap()
}

/// Creates the file, or writes into it.
fn write(world: &World, path: &Path, at: u64, bytes: &[u8]) {
    world.vfs.create_dir_all(path.parent().unwrap()).unwrap();
    let file = world.vfs.open(path, Access::ReadWrite).or_else(|_| world.vfs.create_new(path)).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

/// Twenty messages in a queue, and two in a queue of delayed messages.
fn filled() -> World {
    let world = World::real();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    for number in 0..20 {
        put(&store, "orders", 0, b"body", &format!("k{number}"));
    }
    for _ in 0..2 {
        // An append refuses this topic; only the parts of a store append to it.
        let later = message(SCHEDULE_TOPIC, Some(2), b"later", b"KEYS\x01k\x02");
        store
            .system_appends()
            .append_marked(&[later], AppendMarks::Together(&[TransactionMark::default()]))
            .unwrap();
    }
    store.close().unwrap();
    assert_eq!(kinds(&world), [""; 0]);
    world
}

#[test]
fn positions_beyond_their_queues_are_told_and_set_back() {
    let world = filled();
    let config = world.files().config();
    let offsets = r#"{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":5},"mine":[1],
        "offsetTable":{"orders@good":{0:20},"orders@far":{0:21,7:99},"gone@far":{0:3}}}"#;
    write(&world, &config.join("consumerOffset.json"), 0, offsets.as_bytes());
    let delays = r#"{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":5},"offsetTable":{3:9,4:1}}"#;
    write(&world, &config.join("delayOffset.json"), 0, delays.as_bytes());
    let found = verify(&world);
    let told: Vec<_> = found.problems.iter().map(|one| (one.kind, one.detail.as_str())).collect();
    assert_eq!(
        told,
        [
            ("consumer_offset_ahead", "group far is at offset 21 of orders/0, which ends at 20"),
            ("delay_offset_ahead", "delay level 3 is at offset 9 of SCHEDULE_TOPIC_XXXX/2, which ends at 2"),
        ]
    );
    let plan = repair(&world, crate::RepairTarget::DryRun);
    assert!(plan.changed && !plan.ok);
    let done = repair(&world, crate::RepairTarget::InPlace);
    assert_eq!(done.actions, plan.actions);
    assert_eq!(done.actions.len(), 2);
    assert!(done.ok && done.changed);
    assert_eq!(kinds(&world), [""; 0]);
    let now = ConsumerOffsets::parse(&world.vfs.read_file(&config.join("consumerOffset.json"), 999).unwrap())
        .unwrap();
    assert_eq!((now.get("orders", "far", 0), now.get("orders", "far", 7)), (Some(20), Some(99)));
    assert_eq!((now.get("orders", "good", 0), now.get("gone", "far", 0)), (Some(20), Some(3)));
    assert!(now.unknown.contains_key("mine"));
    let now =
        DelayOffsets::parse(&world.vfs.read_file(&config.join("delayOffset.json"), 999).unwrap()).unwrap();
    assert_eq!(now.table.into_iter().collect::<Vec<_>>(), [(3, 2), (4, 1)]);
    let kept = world.files().lost_and_found().join("config_consumerOffset.json");
    assert_eq!(world.vfs.read_file(&kept, 999).unwrap(), offsets.as_bytes());
    assert!(!repair(&world, crate::RepairTarget::InPlace).changed);
}

#[test]
fn positions_do_not_follow_a_queue_file_that_was_lost() {
    let world = filled();
    let path = world.files().config().join("consumerOffset.json");
    write(&world, &path, 0, br#"{"offsetTable":{"orders@good":{0:20}}}"#);
    let queue = world.files().consume_queue().join("orders").join("0");
    world.vfs.remove_file(&queue.join(format!("{:020}", 10 * CQ_UNIT_BYTES))).unwrap();
    assert_eq!(kinds(&world), ["queue_behind"]);
    assert!(repair(&world, crate::RepairTarget::InPlace).ok);
    assert_eq!(world.vfs.read_file(&path, 999).unwrap(), br#"{"offsetTable":{"orders@good":{0:20}}}"#);
}

#[test]
fn entries_that_lead_to_the_extension() {
    let world = filled();
    let queue = world.files().consume_queue().join("orders").join("0").join(format!("{:020}", 0));
    let extension = world.files().consume_queue_ext().join("orders").join("0").join(format!("{:020}", 0));
    let unit = |tags| {
        let mut bytes = Vec::new();
        let unit = CqExtUnit { tags_code: tags_code(tags), store_timestamp: 1, bitmap: &[5; 100] };
        unit.encode_into(&mut bytes).unwrap();
        bytes
    };
    let lead = |number: u64, to: i64| {
        write(&world, &queue, number * 20 + 12, &ext_address(to).unwrap().to_be_bytes());
    };
    write(&world, &extension, 0, &unit("T"));
    write(&world, &extension, 120, &unit("other"));
    lead(0, 0);
    assert_eq!(kinds(&world), [""; 0]);
    // Another hash; within a unit; after the end.
    for (number, to) in [(1, 120), (2, 60), (3, 9999)] {
        lead(number, to);
    }
    let found = verify(&world);
    let told: Vec<_> = found.problems.iter().map(|one| (one.kind, one.offset)).collect();
    assert_eq!(
        told,
        [
            ("queue_extension_wrong", Some(20)),
            ("queue_extension_wrong", Some(40)),
            ("queue_extension_wrong", Some(60))
        ]
    );
    let done = repair(&world, crate::RepairTarget::InPlace);
    assert!(done.ok && done.changed, "{:?}", done.problems);
}

/// A unit of the timer log.
fn timer_unit(previous: i64, magic: i32, place: i64, size: i32) -> Vec<u8> {
    let mut bytes = 52_i32.to_be_bytes().to_vec();
    bytes.extend(previous.to_be_bytes());
    bytes.extend(magic.to_be_bytes());
    bytes.extend(1_700_000_000_000_i64.to_be_bytes());
    bytes.extend(5000_i32.to_be_bytes());
    bytes.extend(place.to_be_bytes());
    bytes.extend(size.to_be_bytes());
    bytes.extend([0; 12]);
    bytes
}

#[test]
fn timer_wheel_and_timer_log() {
    const SLOTS: u64 = 1_209_600;
    let world = filled();
    let (root, config) = (world.files().root, world.files().config());
    let (wheel, log) = (root.join("timerwheel"), root.join("timerlog").join(format!("{:020}", 0)));
    let next = root.join("timerlog").join(format!("{:020}", 1024));
    let slot = |time: i64, first: i64, last: i64| {
        let mut bytes = time.to_be_bytes().to_vec();
        bytes.extend(first.to_be_bytes());
        bytes.extend(last.to_be_bytes());
        bytes.extend([0, 0, 0, 2, 0, 0, 0, 0]);
        write(&world, &wheel, time as u64 % SLOTS * 32, &bytes);
    };
    write(&world, &wheel, SLOTS * 32 - 1, &[0]);
    slot(1_700_000_005, 0, 52);
    write(&world, &log, 1023, &[0]);
    write(&world, &log, 0, &timer_unit(-1, 1, 0, 100));
    write(&world, &log, 52, &timer_unit(0, 5, 100, 100));
    // These messages wait no more; the tests of `delay` compare waiting ones with their records.
    let check =
        [1_800_000_000_000, 104, 0].iter().flat_map(|value: &i64| value.to_be_bytes()).collect::<Vec<_>>();
    write(&world, &config.join("timercheck"), 0, &check);
    assert_eq!(kinds(&world), [""; 0]);

    // The wheel: past the log, in another cell's place, of another length.
    slot(1_700_000_006, 0, 104);
    write(&world, &wheel, 0, &[1; 32]);
    assert_eq!(kinds(&world), ["timer_wheel_wrong", "timer_wheel_wrong"]);
    write(&world, &wheel, 0, &[0; 32]);
    slot(1_700_000_006, -1, -1);
    write(&world, &wheel, SLOTS * 32, &[0]);
    assert_eq!(kinds(&world), ["timer_wheel_wrong"]);
    world.vfs.open(&wheel, Access::ReadWrite).unwrap().set_len(SLOTS * 32).unwrap();

    // Another file after a blank unit; then one that does not follow.
    let blank = [920_i32.to_be_bytes(), [0; 4], [0; 4], 0xCBD4_3194_u32.to_be_bytes()].concat();
    write(&world, &log, 104, &blank);
    write(&world, &next, 1023, &[0]);
    write(&world, &next, 0, &timer_unit(52, 3, 200, 100));
    assert_eq!(kinds(&world), [""; 0]);
    for spoiled in [
        timer_unit(1024, 1, 0, 100),
        timer_unit(-2, 1, 0, 100),
        timer_unit(-1, 16, 0, 100),
        timer_unit(-1, 1, 1 << 40, 100),
        timer_unit(-1, 1, 0, 0),
        vec![255; 52],
    ] {
        write(&world, &next, 0, &spoiled);
        let found = verify(&world);
        assert_eq!(found.problems.len(), 1, "{found:?}");
        assert_eq!((found.problems[0].kind, found.problems[0].offset), ("timer_log_damaged", Some(0)));
    }
    write(&world, &next, 0, &timer_unit(52, 3, 200, 100));

    // The checkpoint past the log; repair changes none of these files.
    write(&world, &config.join("timercheck"), 8, &2000_i64.to_be_bytes());
    assert_eq!(kinds(&world), ["timer_checkpoint_ahead"]);
    assert!(!repair(&world, crate::RepairTarget::InPlace).changed);
}
