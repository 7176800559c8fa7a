//! Recoveries that rebuild queues or index and are interrupted.
//!
//! Such a recovery writes entries below the durable mark and has not synced them yet. After a power loss, the
//! next recovery must not take the remaining ones for old entries.

use mqstore_base::options::OpenMode;
use mqstore_io::{SimVfs, Vfs};

use crate::check::{abandon, recover};
use crate::crashes::{must_hold, random};
use crate::explore::{Violation, guarded};
use crate::states::{Limits, Rng, State, states};
use crate::workload::{History, Need, Running, World, explain, root};

const LIMITS: Limits = Limits { all_up_to: 2, singles: 4, random: 2, cuts: 0 };
const LOST: [&[&str]; 5] = [&["index"], &["consumequeue"], &["batchconsumequeue"], &["mqstore/queues"], &[]];

/// A store without `lost`, whose process died after a run.
fn start(seed: u64, mode: char, lost: &[&str]) -> Result<(SimVfs, History), String> {
    let case = random(seed, mode, 60);
    let world = World::new(false);
    let (history, end) = Running::start(&case, &world)?.finish()?;
    // The machine continued to run, so all written bytes reached the device.
    let settled = end.crash_as(false, &mut |_, forms| forms - 1).map_err(explain)?;
    for name in lost {
        // The file may not exist.
        let path = root().join(name);
        let _ = settled.remove_dir_all(&path).or_else(|_| settled.remove_file(&path));
    }
    let start = settled.crash_as(false, &mut |_, forms| forms - 1).map_err(explain)?;
    Ok((start, history))
}

/// Ends the recovery of one store before each of its calls, at most `most` times. Returns the number of ends.
fn one(seed: u64, mode: char, lost: &[&str], step: usize, stop: &dyn Fn() -> bool) -> Result<u64, String> {
    let options = random(seed, mode, 60).options;
    let (start, history) = start(seed, mode, lost)?;
    let records = &history.records;
    let need = Need::whole(records.len(), records.len());
    let copy = || start.kill().map_err(explain);
    let probe = World::on(copy()?);
    abandon(&probe.open(OpenMode::ReadWrite, &options).map_err(explain)?);
    let calls = probe.vfs.operations();
    let world = World::on(copy()?);
    world.vfs.freeze_at_each(2..=calls);
    abandon(&world.open(OpenMode::ReadWrite, &options).map_err(explain)?);
    let mut tried = 0;
    let mut seen = std::collections::HashSet::new();
    // From the end on, because most files are rebuilt there.
    for (call, moment) in world.vfs.take_all_frozen().into_iter().rev().step_by(step) {
        let mut rng = Rng::new(seed ^ call);
        for state in states(&moment, LIMITS, &mut rng) {
            if stop() {
                return Ok(tried);
            }
            let image = state.image(&moment)?;
            if !seen.insert(image.vfs.fingerprint()) {
                continue;
            }
            tried += 1;
            let told = |what| format!("without {lost:?}, ended before its call {call}, {state}: {what}");
            let recovered = recover(&image.vfs, &options, records, need).map_err(told)?;
            let after = State::all_old().image(&recovered.world.vfs)?;
            drop(recovered);
            recover(&after.vfs, &options, records, need)
                .map_err(|what| told(format!("and after a loss of power: {what}")))?;
        }
    }
    Ok(tried)
}

/// Kills a run at some of its calls, recovers, syncs everything, and cuts the power. Names that the killed
/// process made, and that recovery kept, are as durable as the rest.
fn killed(seed: u64, mode: char, stop: &dyn Fn() -> bool) -> Result<u64, String> {
    let case = random(seed, mode, 60);
    let probe = World::new(false);
    let (history, _) = Running::start(&case, &probe)?.finish()?;
    let world = World::new(false);
    world.vfs.freeze_at_each((history.topics_at + 1..history.last.1).step_by(7));
    let (history, _) = Running::start(&case, &world)?.finish()?;
    let mut tried = 0;
    for (call, moment) in world.vfs.take_all_frozen() {
        if stop() {
            break;
        }
        tried += 1;
        let told = |what| format!("killed before call {call}, recovered and flushed: {what}");
        let image = State::kill().image(&moment)?;
        let recovered = recover(&image.vfs, &case.options, &history.records, history.after_kill(call));
        let recovered = recovered.map_err(told)?;
        recovered.store.flush().map_err(explain)?;
        let after = State::all_old().image(&recovered.world.vfs)?;
        crate::contract::claims(&after.vfs, &history, &case.options).map_err(told)?;
        let count = recovered.count;
        drop(recovered);
        recover(&after.vfs, &case.options, &history.records, Need::whole(count, count)).map_err(told)?;
    }
    Ok(tried)
}

/// Interrupts recoveries of stores from `seeds` random runs. Files are lost in each mode, or in one mode for
/// each run.
pub(crate) fn hunt(
    seeds: u64,
    each_mode: bool,
    step: usize,
    stop: &dyn Fn() -> bool,
) -> Result<u64, Violation> {
    let mut tried = 0;
    for seed in 0..seeds {
        for mode in ['s', 'a', 'm'] {
            tried += guarded(|| killed(seed, mode, stop)).map_err(|what| Violation {
                replay: format!("r{mode}60-{seed}:0:0:0"),
                what: format!("remaking: {what}"),
            })?;
        }
        for (turn, lost) in (seed..).zip(LOST) {
            for (number, mode) in ['s', 'a'].into_iter().enumerate() {
                if !each_mode && turn % 2 != number as u64 {
                    continue;
                }
                let outcome = guarded(|| one(seed, mode, lost, step, stop));
                tried += outcome.map_err(|what| Violation {
                    replay: format!("r{mode}60-{seed}:0:0:0"),
                    what: format!("remaking: {what}"),
                })?;
                if stop() {
                    return Ok(tried);
                }
            }
        }
    }
    Ok(tried)
}

#[test]
fn a_recovery_that_makes_things_again_can_be_ended() {
    let soak = crate::crashes::soak();
    let tried = must_hold(hunt(if soak { 100 } else { 1 }, soak, crate::crashes::calls_step(), &|| false));
    println!("remaking: {tried} states");
    assert!(tried > 250, "{tried} states");
}
