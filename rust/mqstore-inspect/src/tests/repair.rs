//! Repair: undamaged messages stay readable, and the result has no problems. Another repair completes one that was
//! stopped at any step.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use mqstore_format::offset_file_name;
use mqstore_io::{Access, SimVfs};

use super::rebuild::tree;
use super::stops_step;
use crate::RepairReport;
use mqstore_engine::testing::*;

pub(crate) const SEGMENT: u64 = 16 << 10;

/// The place of each message: log offset, size, queue, queue offset, body.
pub(crate) type Placed = Vec<(u64, u64, i32, i64, Vec<u8>)>;

/// Bytes to write at log offsets.
type Writes = Vec<(u64, Vec<u8>)>;

/// A closed store of several segments, and its messages.
pub(crate) fn filled(count: u32) -> (World, Arc<SimVfs>, Placed) {
    let (world, sim, _) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    store.create_topic("orders", 2, &[]).unwrap();
    let mut placed = Vec::new();
    for number in 0..count {
        let body = format!("order {number} {}", "x".repeat((number % 7) as usize * 100)).into_bytes();
        let at = put(&store, "orders", (number % 2).cast_signed(), &body, &format!("k{number}"));
        placed.push((at.commit_log_offset, u64::from(at.size), at.queue_id, at.queue_offset, body));
    }
    store.close().unwrap();
    (world, sim, placed)
}

pub(crate) fn segment(world: &World, number: u64) -> PathBuf {
    world.files().commit_log().join(offset_file_name(number * SEGMENT))
}

/// Overwrites bytes of the log with `bytes`.
pub(crate) fn spoil(world: &World, offset: u64, bytes: &[u8]) {
    let file = world.vfs.open(&segment(world, offset / SEGMENT), Access::ReadWrite).unwrap();
    file.write_all_at(bytes, offset % SEGMENT).unwrap();
    file.sync_all().unwrap();
}

pub(crate) fn repair(world: &World) -> RepairReport {
    crate::repair(&world.files(), &small(), crate::RepairTarget::InPlace, &mut |_| Ok(())).unwrap()
}

/// Returns all files that must be equal after a stopped and repeated repair.
fn lasting(world: &World) -> BTreeMap<String, Vec<u8>> {
    let files = world.files();
    let kept = files.lost_and_found().display().to_string();
    let staging = files.staging().display().to_string();
    // A stopped repair may have written copies and marks once more.
    let marks = files.side().join("state").display().to_string();
    let mut all = tree(&*world.vfs, &world.path);
    // These have no meaning without a writer, and no program syncs them.
    for path in [files.live(), files.lock()] {
        all.remove(&path.display().to_string());
    }
    all.retain(|path, _| {
        !path.starts_with(&kept) && !path.starts_with(&staging) && !path.starts_with(&marks)
    });
    all
}

/// Checks that all messages except those in `lost` are found by queue, by key and in log order, and no others.
pub(crate) fn check(world: &World, placed: &Placed, lost: &[usize]) {
    let found = crate::verify::verify(&world.files(), &small(), &mut |_| Ok(())).unwrap();
    assert_eq!(found.problems, []);
    assert_eq!(found.messages, (placed.len() - lost.len()) as u64);
    for mode in [OpenMode::Read, OpenMode::ReadWrite] {
        let store = world.open(mode, &small()).unwrap();
        assert_eq!(store.notes(), [""; 0]);
        let mut queues = [0, 1].map(|queue| read_all(&store, "orders", queue));
        for (number, (at, _, queue, offset, body)) in placed.iter().enumerate() {
            let mut hits = store.lookup("orders", &format!("k{number}"), None, None, None).unwrap();
            let hits = hits.next_batch(9).unwrap();
            if lost.contains(&number) {
                assert_eq!(hits.len(), 0, "message {number}");
                continue;
            }
            assert_eq!(
                hits.iter().map(|hit| hit.commit_log_offset).collect::<Vec<_>>(),
                [*at],
                "message {number}"
            );
            assert_eq!(queues[*queue as usize].remove(0), (*offset, body.clone()), "message {number}");
        }
        assert!(queues.iter().all(Vec::is_empty));
        let mut log = store.log().scan(None).unwrap();
        let mut seen = 0;
        while let read @ 1.. = log.next_batch(50).unwrap().len() {
            seen += read;
        }
        assert_eq!(seen, placed.len() - lost.len());
        store.close().unwrap();
    }
}

/// Checks that a second repair changes no byte.
pub(crate) fn settled(world: &World) {
    let before = tree(&*world.vfs, &world.path);
    let again = repair(world);
    assert!(again.ok && !again.changed, "{again:?}");
    assert_eq!((again.lost, again.queue_offsets, again.actions), (vec![], vec![], vec![]));
    assert!(tree(&*world.vfs, &world.path) == before, "the second repair changed something");
}

/// Returns the log offsets of the messages that a reader gets.
fn readable(world: &World) -> BTreeSet<u64> {
    let Ok(store) = world.open(OpenMode::Read, &small()) else { return BTreeSet::new() };
    let mut found = BTreeSet::new();
    let mut log = store.log().scan(None).unwrap();
    while let Some(batch) = log.next_batch(50).ok().filter(|batch| !batch.is_empty()) {
        found.extend(batch.iter().map(|record| record.commit_log_offset));
    }
    store.close().unwrap();
    found
}

/// Repairs `world`, which lost the messages `lost`, and checks the result.
pub(crate) fn heals(world: &World, placed: &Placed, lost: &[usize]) -> RepairReport {
    let read_before = readable(world);
    let before = tree(&*world.vfs, &world.path);
    let plan = crate::repair(&world.files(), &small(), crate::RepairTarget::DryRun, &mut |_| Ok(())).unwrap();
    assert!(tree(&*world.vfs, &world.path) == before, "a dry run changed something");
    let report = repair(world);
    assert!(report.ok && report.changed && plan.changed, "{report:#?}");
    let bare = |report: &RepairReport| {
        report.lost.iter().map(|lost| (lost.log_offset, lost.bytes)).collect::<Vec<_>>()
    };
    assert_eq!(bare(&plan), bare(&report));
    assert_eq!(plan.queue_offsets, report.queue_offsets);
    assert_eq!(report.messages, (placed.len() - lost.len()) as u64);
    assert!(readable(world).is_superset(&read_before), "no repair may lose a message that could be read");
    settled(world);
    check(world, placed, lost);
    report
}

#[test]
fn a_whole_store_is_left_alone() {
    let (world, _, placed) = filled(60);
    let before = tree(&*world.vfs, &world.path);
    let report = repair(&world);
    assert!(report.ok && !report.changed);
    assert!(tree(&*world.vfs, &world.path) == before);
    settled(&world);
    check(&world, &placed, &[]);
}

#[test]
fn damage_in_the_middle_is_filled_and_kept() {
    let (world, _, placed) = filled(150);
    let (at, size, ..) = placed[40];
    let old = world.vfs.read_file(&segment(&world, at / SEGMENT), 1 << 20).unwrap();
    spoil(&world, at + 100, b"??????");
    let report = heals(&world, &placed, &[40]);
    assert_eq!(report.lost.len(), 1);
    let lost = &report.lost[0];
    assert_eq!((lost.log_offset, lost.bytes, lost.offset), (at, size, at % SEGMENT));
    let kept = world.vfs.read_file(lost.kept_as.as_ref().unwrap(), 1 << 20).unwrap();
    let mut expected = old[(at % SEGMENT) as usize..][..size as usize].to_vec();
    expected[100..106].copy_from_slice(b"??????");
    assert_eq!(kept, expected);
    let gap = |queue_id, from, to| crate::LostOffsets { topic: "orders".into(), queue_id, from, to };
    assert_eq!(report.queue_offsets, [gap(0, 20, 21)]);
}

#[test]
fn each_kind_of_damage_costs_what_it_hit_and_nothing_else() {
    let (_, _, placed) = filled(150);
    let first_of = |segment: u64| placed.iter().position(|at| at.0 / SEGMENT == segment).unwrap();
    let last_of = |segment: u64| first_of(segment + 1) - 1;
    // The magic numbers of two records that are not neighbours, a size, a complete page of zeros.
    let cases: [(&str, Writes, Vec<usize>); 6] = [
        ("magics", vec![(placed[10].0 + 4, vec![0; 4]), (placed[12].0 + 4, vec![1; 4])], vec![10, 12]),
        ("size", vec![(placed[30].0, vec![0x7F; 4])], vec![30]),
        ("neighbours", vec![(placed[50].0, vec![0; 8]), (placed[51].0, vec![0; 8])], vec![50, 51]),
        ("the first of a segment", vec![(placed[first_of(1)].0, vec![9; 20])], vec![first_of(1)]),
        ("the last of a segment", vec![(placed[last_of(1)].0, vec![9; 20])], vec![last_of(1)]),
        ("the first of all", vec![(placed[0].0, vec![9; 20])], vec![0]),
    ];
    for (name, writes, lost) in cases {
        let (world, _, placed) = filled(150);
        for (at, bytes) in writes {
            spoil(&world, at, &bytes);
        }
        println!("{name}");
        heals(&world, &placed, &lost);
    }
}

#[test]
fn a_damaged_filler_costs_nothing() {
    let (world, _, placed) = filled(150);
    let last = placed.iter().rfind(|at| at.0 < SEGMENT).unwrap();
    spoil(&world, last.0 + last.1, &[1, 2, 3, 4]);
    heals(&world, &placed, &[]);
}

#[test]
fn a_torn_end_is_cut() {
    let (world, _, placed) = filled(150);
    let (at, ..) = placed[149];
    spoil(&world, at + 50, &[7; 60]);
    let report = heals(&world, &placed, &[149]);
    assert_eq!(report.lost, []);
    assert!(report.actions.iter().any(|text| text.contains("cut at byte")), "{:?}", report.actions);
}

#[test]
fn missing_empty_short_and_long_segments_are_made_right() {
    let (_, _, placed) = filled(150);
    let of = |segment: u64| placed.iter().enumerate().filter(move |(_, at)| at.0 / SEGMENT == segment);
    let all_of = |segment| of(segment).map(|(number, _)| number).collect::<Vec<_>>();
    let behind =
        |at: u64| of(at / SEGMENT).filter(|(_, one)| one.0 + one.1 > at).map(|(number, _)| number).collect();
    let cases: [(&str, Option<u64>, Vec<usize>); 4] = [
        ("missing", None, all_of(1)),
        ("empty", Some(0), all_of(1)),
        ("short", Some(5000), behind(SEGMENT + 5000)),
        ("long", Some(SEGMENT + 3000), vec![]),
    ];
    for (name, len, lost) in cases {
        let (world, _, placed) = filled(150);
        println!("{name}");
        let path = segment(&world, 1);
        match len {
            None => world.vfs.remove_file(&path).unwrap(),
            Some(len) => {
                let file = world.vfs.open(&path, Access::ReadWrite).unwrap();
                file.set_len(len).unwrap();
                if len > SEGMENT {
                    file.write_all_at(b"beyond", SEGMENT + 10).unwrap();
                }
            }
        }
        heals(&world, &placed, &lost);
        assert_eq!(world.vfs.stat(&path).unwrap().len, SEGMENT);
        if len == Some(SEGMENT + 3000) {
            let kept = tree(&*world.vfs, &world.files().lost_and_found());
            assert!(
                kept.values().any(|bytes| bytes.len() == 3000 && &bytes[10..16] == b"beyond"),
                "{kept:?}"
            );
        }
    }
}

#[test]
fn swapped_segments_get_their_names_back() {
    let (world, _, placed) = filled(150);
    let log = tree(&*world.vfs, &world.files().commit_log());
    world.vfs.exchange(&segment(&world, 0), &segment(&world, 2)).unwrap();
    heals(&world, &placed, &[]);
    assert!(tree(&*world.vfs, &world.files().commit_log()) == log);
    // A segment that lost its name finds the name free.
    world.vfs.rename(&segment(&world, 1), &segment(&world, 40)).unwrap();
    heals(&world, &placed, &[]);
    assert!(tree(&*world.vfs, &world.files().commit_log()) == log);
}

#[test]
fn a_segment_of_another_log_is_set_aside() {
    let (world, _, placed) = filled(150);
    let copy = world.vfs.read_file(&segment(&world, 0), 1 << 20).unwrap();
    let file = world.vfs.open(&segment(&world, 1), Access::ReadWrite).unwrap();
    file.write_all_at(&copy, 0).unwrap();
    drop(file);
    let lost: Vec<usize> = (0..placed.len()).filter(|number| placed[*number].0 / SEGMENT == 1).collect();
    heals(&world, &placed, &lost);
    assert!(tree(&*world.vfs, &world.files().lost_and_found()).values().any(|kept| *kept == copy));
}

#[test]
fn strays_are_moved_and_a_bare_log_is_enough() {
    let (world, _, placed) = filled(150);
    let files = world.files();
    for name in ["consumequeue", "index", "mqstore"] {
        world.vfs.remove_dir_all(&files.root.join(name)).unwrap();
    }
    let _ = world.vfs.remove_file(&files.checkpoint());
    let stray = world.vfs.create_new(&files.commit_log().join("notes")).unwrap();
    stray.write_all_at(b"mine", 0).unwrap();
    world.vfs.create_new(&files.abort()).unwrap();
    heals(&world, &placed, &[]);
    assert!(tree(&*world.vfs, &files.lost_and_found()).values().any(|kept| kept == b"mine"));
    assert!(world.vfs.stat(&files.abort()).is_err());
}

#[test]
fn a_config_file_gives_way_to_its_backup() {
    let (world, _, placed) = filled(20);
    let files = world.files();
    let write = |name: &str, text: &[u8]| {
        let path = files.config().join(name);
        files.vfs.create_dir_all(&files.config()).unwrap();
        let _ = files.vfs.remove_file(&path);
        files.vfs.create_new(&path).unwrap().write_all_at(text, 0).unwrap();
    };
    write("delayOffset.json", b"{\"offsetTable\":{1:");
    write("delayOffset.json.bak", b"{\"offsetTable\":{1:7}}");
    heals(&world, &placed, &[]);
    let text = files.vfs.read_file(&files.config().join("delayOffset.json"), 1 << 20).unwrap();
    assert_eq!(text, b"{\"offsetTable\":{1:7}}");
}

#[test]
fn entries_of_a_config_file_that_parse_are_kept_and_the_backup_completes_them() {
    let (world, _, placed) = filled(20);
    let files = world.files();
    let path = files.config().join("delayOffset.json");
    files.vfs.create_dir_all(&files.config()).unwrap();
    let write = |path: &Path, text: &[u8]| {
        let _ = files.vfs.remove_file(path);
        files.vfs.create_new(path).unwrap().write_all_at(text, 0).unwrap();
    };
    let damaged = b"{\"offsetTable\":{1:9,2:99999999999999999999999999,3:4";
    for (backup, left) in [(None, vec![(1, 9)]), (Some(b"{\"offsetTable\":{1:7,3:2}}"), vec![(1, 9), (3, 2)])]
    {
        write(&path, damaged);
        if let Some(backup) = backup {
            write(&path.with_extension("json.bak"), backup);
        }
        let report = crate::verify::verify(&files, &small(), &mut |_| Ok(())).unwrap();
        assert!(
            report.problems[0].detail.contains("JSON at byte 22: offsetTable/2"),
            "{:?}",
            report.problems
        );
        heals(&world, &placed, &[]);
        let table = mqstore_format::json::DelayOffsets::parse(&files.vfs.read_file(&path, 1 << 20).unwrap());
        assert_eq!(table.unwrap().table.into_iter().collect::<Vec<_>>(), left);
        assert!(tree(&*world.vfs, &files.lost_and_found()).values().any(|kept| kept == damaged));
    }
}

#[test]
fn a_copy_is_repaired_and_the_store_is_left() {
    let (world, _, placed) = filled(150);
    spoil(&world, placed[40].0 + 4, &[0; 4]);
    let before = tree(&*world.vfs, &world.path);
    let output = Path::new("/data/out");
    let repair =
        || crate::repair(&world.files(), &small(), crate::RepairTarget::Output(output), &mut |_| Ok(()));
    let report = repair().unwrap();
    assert!(report.ok && report.changed);
    assert!(
        report.lost[0].path.starts_with(output)
            && report.lost[0].kept_as.as_ref().unwrap().starts_with(output)
    );
    assert!(!report.actions.iter().any(|text| text.contains("partial")), "{:?}", report.actions);
    assert!(tree(&*world.vfs, &world.path) == before);
    let copy = World { path: output.into(), ..world.on(world.vfs.clone()) };
    settled(&copy);
    check(&copy, &placed, &[40]);
    assert!(matches!(repair(), Err(StoreError::Io { .. })), "it exists");
    let store = copy.open(OpenMode::ReadWrite, &small()).unwrap();
    let locked = |target| crate::repair(&copy.files(), &small(), target, &mut |_| Ok(()));
    let other = Path::new("/data/other");
    for target in
        [crate::RepairTarget::InPlace, crate::RepairTarget::DryRun, crate::RepairTarget::Output(other)]
    {
        assert!(matches!(locked(target), Err(StoreError::Locked { .. })));
    }
    store.close().unwrap();
    assert!(world.vfs.stat(Path::new("/data/other.partial")).is_err());
}

#[test]
fn a_linked_segment_is_replaced_and_not_written() {
    let (world, _, placed) = filled(150);
    spoil(&world, placed[40].0 + 4, &[0; 4]);
    let path = segment(&world, placed[40].0 / SEGMENT);
    let before = world.vfs.read_file(&path, 1 << 20).unwrap();
    world.vfs.hard_link(&path, Path::new("/data/other")).unwrap();
    heals(&world, &placed, &[40]);
    assert!(world.vfs.read_file(Path::new("/data/other"), 1 << 20).unwrap() == before);
    assert_eq!(world.vfs.stat(&path).unwrap().links, 1);
}

/// Makes all kinds of damage at the same time.
fn spoil_much(world: &World, placed: &Placed) -> Vec<usize> {
    let inside = |segment: u64| placed.iter().position(|at| at.0 / SEGMENT == segment).unwrap() + 4;
    let one = inside(1);
    spoil(world, placed[one].0 + 90, &[1; 300]);
    world.vfs.exchange(&segment(world, 2), &segment(world, 3)).unwrap();
    world.vfs.remove_file(&segment(world, 0)).unwrap();
    world.vfs.remove_file(&segment(world, 4)).unwrap();
    let long = world.vfs.open(&segment(world, 5), Access::ReadWrite).unwrap();
    long.write_all_at(b"beyond", SEGMENT + 10).unwrap();
    long.sync_all().unwrap();
    world.vfs.sync_dir(&world.files().commit_log()).unwrap();
    let last = placed.len() - 1;
    spoil(world, placed[last].0 + 70, &[7; 60]);
    let in_segment = |wanted: u64| move |number: &usize| placed[*number].0 / SEGMENT == wanted;
    let mut lost: Vec<usize> = (0..placed.len()).filter(in_segment(0)).collect();
    lost.extend((0..placed.len()).filter(in_segment(4)));
    lost.extend(one..placed.len().min(one + 1));
    lost.extend((one + 1..last).filter(|number| placed[*number].0 < placed[one].0 + 390));
    lost.push(last);
    lost
}

#[test]
fn a_repair_that_is_stopped_anywhere_is_ended_by_another() {
    let (world, sim, placed) = filled(260);
    let lost = spoil_much(&world, &placed);
    let begin = sim.operations();
    sim.freeze_at_each(begin..begin + 3000);
    let report = repair(&world);
    let end = sim.operations();
    let frozen: Vec<_> =
        sim.take_all_frozen().into_iter().filter(|(operation, _)| *operation <= end).collect();
    assert!(report.ok, "{report:#?}");
    settled(&world);
    let expected = lasting(&world);
    check(&world, &placed, &lost);
    assert!(frozen.len() > 200, "{} moments", frozen.len());
    for (operation, stopped) in frozen.into_iter().step_by(stops_step()) {
        for sim in [stopped.kill().unwrap(), stopped.crash(operation).unwrap()] {
            let world = world.on(Arc::new(sim));
            let report = repair(&world);
            assert!(report.ok, "stopped at {operation}: {report:#?}");
            let found = lasting(&world);
            let differs =
                found.iter().find(|(path, bytes)| expected.get(*path) != Some(bytes)).map(|(path, _)| path);
            assert_eq!((differs, found.len()), (None, expected.len()), "stopped at {operation}");
        }
    }
}

/// The live page of a writer that was killed since the last boot has an end of the log that a repair may shorten.
#[test]
fn a_repair_after_a_kill_goes_by_the_log_alone() {
    let (world, sim, _) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    let places: Vec<_> = (0..20).map(|_| put(&store, "orders", 0, b"body", "k")).collect();
    store.flush().unwrap();
    let world = world.on(Arc::new(sim.kill().unwrap()));
    drop(store);
    spoil(&world, places[19].commit_log_offset + 20, b"torn");
    let report = repair(&world);
    assert!(report.ok && report.changed, "{:?}", report.problems);
    assert_eq!(report.messages, 19);
    assert!(!repair(&world).changed);
}

#[test]
fn configuration_without_a_backup_is_moved_away_unless_the_metadata_log_has_it() {
    for (name, is_known) in [("consumerOffset.json", true), ("consumerFilter.json", false)] {
        let (world, _, _) = filled(3);
        let path = world.files().config().join(name);
        world.vfs.create_new(&path).unwrap().write_all_at(b"{\"offsetTable\":", 0).unwrap();
        let report = repair(&world);
        assert!(report.ok && report.changed, "{:?}", report.problems);
        assert_eq!(world.vfs.stat(&path).is_ok(), is_known);
        let kept = world.vfs.list(&world.files().lost_and_found()).unwrap();
        assert_eq!(kept.len(), 1);
        assert!(!repair(&world).changed);
    }
}
