//! Repairs, copies and snapshots that lose power at any moment or right after their end.
//!
//! The damaged bytes are in the log or in `lost+found` at every moment. The result of a call that returned is
//! durable without another call.

use std::path::{Path, PathBuf};

use mqstore_base::error::StoreError;
use mqstore_base::options::{OpenMode, StoreOptions};
use mqstore_format::QUEUE_OFFSET_POSITION;
use mqstore_inspect::RepairTarget;
use mqstore_io::sim::CrashChoice;
use mqstore_io::{Access, SimVfs, Vfs};

use crate::crashes::must_hold;
use crate::explore::{Violation, guarded};
use crate::workload::{World, explain, root};

const SEGMENT: u64 = 4096;
const DAMAGE: &[u8] = b"what nobody may lose";

fn options() -> StoreOptions {
    StoreOptions {
        segment_bytes: SEGMENT,
        queue_file_entries: 16,
        index_slots: 3,
        index_entries: 64,
        // Changed queue offsets then count as correct.
        record_crc: false,
        ..StoreOptions::default()
    }
}

/// A store of some segments, closed or killed, and the places of its messages. Unless it was killed, its
/// files have reached the disk.
fn filled(closed: bool) -> Result<(World, Vec<u64>), String> {
    let world = World::new(false);
    let store = world.open(OpenMode::Create, &options()).map_err(explain)?;
    let mut places = Vec::new();
    for number in 0..60_u32 {
        let body = [number as u8; 150];
        let message = mqstore_base::message::NewMessage {
            topic: "t",
            body: &body,
            properties: b"",
            unique_key: None,
            queue_id: Some(0),
            flag: 0,
            born_timestamp_ms: None,
            durable: false,
            ..mqstore_base::message::NewMessage::default()
        };
        places.push(store.append(&message).map_err(explain)?.commit_log_offset);
    }
    if closed {
        store.close().map_err(explain)?;
    } else {
        crate::check::abandon(&store);
    }
    Ok((World::on(world.vfs.kill().map_err(explain)?), places))
}

fn segment(base: u64) -> PathBuf {
    root().join("commitlog").join(mqstore_format::offset_file_name(base))
}

/// Damages a record, changes the queue offset of another, lengthens a segment and removes two, durably.
/// Returns the number of remaining messages.
fn damage(world: &World, places: &[u64], torn: bool) -> Result<u64, String> {
    let harm = || -> std::io::Result<()> {
        let at = places[4];
        let file = world.vfs.open(&segment(0), Access::ReadWrite)?;
        file.write_all_at(DAMAGE, at + 30)?;
        file.sync_all()?;
        let long = world.vfs.open(&segment(3 * SEGMENT), Access::ReadWrite)?;
        long.write_all_at(DAMAGE, SEGMENT + 10)?;
        long.sync_all()?;
        let at = places.iter().filter(|at| **at / SEGMENT == 2).nth(3).copied().unwrap_or_default();
        let file = world.vfs.open(&segment(2 * SEGMENT), Access::ReadWrite)?;
        file.write_all_at(&50_i64.to_be_bytes(), at % SEGMENT + QUEUE_OFFSET_POSITION as u64)?;
        file.sync_all()?;
        world.vfs.remove_file(&segment(SEGMENT))?;
        world.vfs.hard_link(&segment(0), Path::new("/data/other"))?;
        world.vfs.create_new(&root().join("commitlog").join("notes"))?.sync_all()?;
        if torn {
            let last = world.vfs.open(&segment(places[59] / SEGMENT * SEGMENT), Access::ReadWrite)?;
            last.write_all_at(DAMAGE, places[59] % SEGMENT + 30)?;
            last.sync_all()?;
        }
        world.vfs.sync_dir(Path::new("/data"))?;
        world.vfs.sync_dir(&root().join("commitlog"))
    };
    harm().map_err(explain)?;
    let gone = places.iter().filter(|at| **at / SEGMENT == 1).count() as u64;
    Ok(60 - gone - 1 - u64::from(torn))
}

fn repair(world: &World) -> Result<mqstore_inspect::RepairReport, String> {
    mqstore_inspect::repair(&world.files(), &options(), RepairTarget::InPlace, &mut |_| Ok(()))
        .map_err(explain)
}

fn lost(vfs: &SimVfs) -> Vec<Vec<u8>> {
    let mut kept = Vec::new();
    crate::decay::files_below(vfs, &root().join("mqstore/lost+found"), &mut kept);
    kept.into_iter().filter_map(|(path, len)| vfs.read_file(&path, len).ok()).collect()
}

fn holds(bytes: &[u8]) -> bool {
    bytes.windows(DAMAGE.len()).any(|window| window == DAMAGE)
}

/// Each of the three damaged parts is in the log or in `lost+found`.
fn nothing_is_lost(vfs: &SimVfs) -> Result<(), String> {
    let kept = lost(vfs);
    for (base, name) in [(0, "damaged"), (3 * SEGMENT, "beyond")] {
        let there = vfs.read_file(&segment(base), 1 << 20).is_ok_and(|bytes| holds(&bytes));
        if !there && !kept.iter().any(|bytes| holds(bytes)) {
            return Err(format!("{name} bytes are gone"));
        }
    }
    Ok(())
}

/// The store verifies clean, has `messages`, and opens without a note.
fn is_whole(world: &World, messages: u64) -> Result<(), String> {
    let found = mqstore_inspect::verify(&world.files(), &options(), &mut |_| Ok(())).map_err(explain)?;
    if !found.ok || found.messages != messages {
        return Err(format!("{} messages of {messages}, {:?}", found.messages, found.problems));
    }
    if world.vfs.stat(&root().join("abort")).is_ok() {
        return Err("abort is there again".to_owned());
    }
    let store = world.open(OpenMode::ReadWrite, &options()).map_err(explain)?;
    let notes = store.notes();
    store.close().map_err(explain)?;
    if notes.is_empty() { Ok(()) } else { Err(format!("opened with {notes:?}")) }
}

/// A power loss that keeps no unsynced byte.
fn nothing_new(vfs: &SimVfs) -> Result<SimVfs, String> {
    vfs.crash_as(false, &mut |_, _| 0).map_err(explain)
}

/// A power loss that keeps each change of a name and no unsynced byte.
fn only_new_names(vfs: &SimVfs) -> Result<SimVfs, String> {
    let newest =
        |what: CrashChoice, forms: u32| if matches!(what, CrashChoice::Name { .. }) { forms - 1 } else { 0 };
    vfs.crash_as(false, &mut { newest }).map_err(explain)
}

fn repairs(closed: bool, torn: bool, step: usize, stop: &dyn Fn() -> bool) -> Result<u64, String> {
    let (world, places) = filled(closed)?;
    let left = damage(&world, &places, torn)?;
    let other = world.vfs.read_file(Path::new("/data/other"), 1 << 20).map_err(explain)?;
    let begin = world.vfs.operations();
    world.vfs.freeze_at_each(begin..begin + 4000);
    repair(&world)?;
    let end = world.vfs.operations();
    let frozen = world.vfs.take_all_frozen();
    let after = World::on(nothing_new(&world.vfs)?);
    is_whole(&after, left).map_err(|what| format!("repaired, closed {closed}, without power: {what}"))?;
    nothing_is_lost(&after.vfs)?;
    let mut tried = 1;
    if !closed {
        // Bytes that the writer had not synced may be lost before the repair.
        return Ok(tried);
    }
    for (call, moment) in frozen.into_iter().filter(|(call, _)| *call <= end).rev().step_by(step) {
        if stop() {
            break;
        }
        let told = |what| format!("ended before call {call}, closed {closed}: {what}");
        // Four choices: nothing that is not synced, all of it, only the names, or a random part.
        let all = moment.crash_as(false, &mut |_, forms| forms - 1).map_err(explain)?;
        let choices = [nothing_new(&moment)?, all, only_new_names(&moment)?];
        for vfs in choices.into_iter().chain([moment.crash(call).map_err(explain)?]) {
            tried += 1;
            nothing_is_lost(&vfs).map_err(told)?;
            let world = World::on(vfs);
            if world.vfs.read_file(Path::new("/data/other"), 1 << 20).map_err(explain)? != other {
                return Err(told("a file was changed under another name".to_owned()));
            }
            repair(&world).map_err(told)?;
            is_whole(&World::on(nothing_new(&world.vfs)?), left).map_err(told)?;
            nothing_is_lost(&world.vfs).map_err(told)?;
        }
    }
    Ok(tried)
}

/// The result of a copy or a snapshot is durable when the call returns.
fn copies() -> Result<u64, String> {
    let (world, _) = filled(true)?;
    let output = Path::new("/data/out");
    let at_output = |vfs: SimVfs| -> Result<World, String> {
        vfs.rename(&root(), Path::new("/data/before")).map_err(explain)?;
        vfs.rename(output, &root()).map_err(explain)?;
        Ok(World::on(vfs))
    };
    mqstore_inspect::copy_store(&world.files(), output, &mut |_| Ok(())).map_err(explain)?;
    is_whole(&at_output(nothing_new(&world.vfs)?)?, 60).map_err(|what| format!("a copy: {what}"))?;
    for writes in [true, false] {
        let (world, _) = filled(true)?;
        let mode = if writes { OpenMode::ReadWrite } else { OpenMode::Read };
        let store = world.open(mode, &options()).map_err(explain)?;
        mqstore_inspect::snapshot(&store, output, &mut |_| Ok(())).map_err(explain)?;
        let after = at_output(nothing_new(&world.vfs)?)?;
        is_whole(&after, 60).map_err(|what| format!("a snapshot, by a writer {writes}: {what}"))?;
        store.close().map_err(explain)?;
    }
    Ok(3)
}

pub(crate) fn hunt(step: usize, stop: &dyn Fn() -> bool) -> Result<u64, Violation> {
    let violation =
        |what| Violation { replay: "repairing:0:0:0".to_owned(), what: format!("repairing: {what}") };
    let mut tried = guarded(copies).map_err(violation)?;
    // With and without a last record that still matches the mark. The one that is not closed is the shortest.
    for (closed, torn) in [(false, true), (true, false), (true, true)] {
        tried += guarded(|| repairs(closed, torn, step, stop)).map_err(violation)?;
    }
    Ok(tried)
}

#[test]
fn repairs_and_copies_survive_a_loss_of_power() {
    let tried = must_hold(hunt(crate::crashes::calls_step(), &|| false));
    println!("repairing: {tried} states");
    assert!(tried > 200, "{tried} states");
}

#[test]
fn a_stopped_repair_tells_why() {
    let (world, places) = filled(true).unwrap();
    damage(&world, &places, true).unwrap();
    let stop = |_| Err(StoreError::Busy { reason: "enough".into() });
    let outcome = mqstore_inspect::repair(&world.files(), &options(), RepairTarget::InPlace, &mut { stop });
    assert!(matches!(outcome, Err(StoreError::Busy { .. })));
    repair(&world).unwrap();
}
