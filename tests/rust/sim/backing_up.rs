//! Rounds of a backup and a restore, ended at any call or with any call failing, next to a second session, and on
//! targets that behave badly. A state that a round has created is there after a loss of power, and a restore of any state has the log up
//! to its end, byte for byte, and no metadata after that.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mqstore::backup::clean::{CleanRules, clean};
use mqstore::backup::pieces::PieceSizes;
use mqstore::backup::place::Place;
use mqstore::backup::restore::{Restore, RestorePoint, RestoreReport};
use mqstore::backup::round::{RoundReport, RoundSizes, Session};
use mqstore::backup::verify::verify;
use mqstore_base::error::StoreError;
use mqstore_base::message::NewMessage;
use mqstore_base::options::{Durability, OpenMode, StoreOptions};
use mqstore_base::store_files::StoreFiles;
use mqstore_engine::Store;
use mqstore_io::target::{HostileTarget, Mischief};
use mqstore_io::{Clock, FolderTarget, SimVfs, Vfs};
use mqstore_meta::OffsetChange;

use crate::check::abandon;
use crate::explore::Violation;
use crate::moments::{End, Ends, failing_calls};
use crate::states::{Limits, Rng, State};
use crate::workload::{SEGMENT_BYTES, World, explain, tiny};

const LIMITS: Limits = Limits { all_up_to: 2, singles: 3, random: 1, cuts: 0 };
const TOPIC: &str = "orders";

/// Messages before each round. About five fill a segment.
const MESSAGES: usize = 4;
/// Rounds of a session.
const ROUNDS: usize = 3;

/// Several pieces for each segment, and a state for each of the first ones.
const SIZES: RoundSizes =
    RoundSizes { pieces: PieceSizes([2048, 512, 128]), commit_bytes: SEGMENT_BYTES, at_once: 1 };

fn out(name: &str) -> PathBuf {
    Path::new("/data/out").join(name)
}

fn options() -> StoreOptions {
    StoreOptions {
        retention_bytes: Some(2 * SEGMENT_BYTES),
        delete_interval_ms: 0,
        ..tiny(Durability::Manual)
    }
}

fn cold(vfs: &SimVfs) -> Place {
    Place::new(Arc::new(FolderTarget::new(Arc::new(vfs.clone()), &out("cold"), "cold".to_owned())))
}

/// Appends messages with the next numbers, and commits the end of their queue for a group.
/// Returns the end of the log after each, and the number of messages then.
fn append(store: &Store, numbers: std::ops::Range<usize>) -> Result<Vec<(u64, usize)>, StoreError> {
    let (mut end, mut ends) = (0, Vec::new());
    for number in numbers {
        let body = format!("{number} {}", "x".repeat(600 + number * 37 % 200)).into_bytes();
        let message = NewMessage { topic: TOPIC, body: &body, queue_id: Some(0), ..NewMessage::default() };
        end = store.append(&message)?.queue_offset + 1;
        ends.push((store.log().bounds()?.1, number + 1));
    }
    let meta = store.meta()?;
    meta.commit(&[OffsetChange { queue: meta.queue_key("g", TOPIC, 0)?, offset: end }])?;
    Ok(ends)
}

fn round(session: &mut Session, store: &Store) -> Result<RoundReport, StoreError> {
    session.round(store, &out("staging"), Some(1000), &mut |_| Ok(()))
}

fn restore(
    world: &World,
    place: &Place,
    name: &str,
    point: RestorePoint,
) -> Result<RestoreReport, StoreError> {
    let _ = world.vfs.remove_dir_all(&out(name));
    let partial = out(&format!("{name}.partial"));
    let partial = StoreFiles::new(Arc::new(world.vfs.clone()), world.clock.clone(), &partial);
    Restore::plan(place, point)?.run(&partial, &out(name), &mut |_| Ok(()))
}

/// The numbers of the messages in the log of a store.
fn numbers(store: &Store) -> Result<Vec<usize>, String> {
    let mut cursor = store.log().scan(None).map_err(explain)?;
    let mut found = Vec::new();
    for record in cursor.next_batch(usize::MAX).map_err(explain)? {
        let view = record.view().map_err(explain)?;
        let text = String::from_utf8_lossy(view.body).into_owned();
        found.push(text.split(' ').next().and_then(|text| text.parse().ok()).ok_or("a damaged body")?);
    }
    Ok(found)
}

/// Restores a backup, and returns its report and the numbers of the messages.
fn restored(
    world: &World,
    place: &Place,
    point: RestorePoint,
) -> Result<(RestoreReport, Vec<usize>), String> {
    let report = restore(world, place, "again", point).map_err(|error| format!("a restore: {error}"))?;
    if let Some(problem) = report.problems.first() {
        return Err(format!("the restored store: {problem}"));
    }
    let clock: Arc<dyn Clock> = world.clock.clone();
    // As the program that continues, with a recovery.
    let mode = OpenMode::ReadWrite;
    let store = Store::open(Arc::new(world.vfs.clone()), clock, &out("again"), mode, &options());
    let store = store.map_err(|error| format!("the restored store: {error}"))?;
    let found = numbers(&store)?;
    abandon(&store);
    Ok((report, found))
}

/// The newest state can be restored, and has the messages before its end, without a gap.
fn is_whole(world: &World, place: &Place, ends: &[(u64, usize)], least: u64) -> Result<(), String> {
    let found = verify(place, &mut |_| Ok(())).map_err(explain)?;
    if let Some(problem) = found.problems.first() {
        return Err(problem.clone());
    }
    let (report, found) = restored(world, place, RestorePoint::Newest)?;
    if report.log_end < least {
        return Err(format!(
            "a round backed up the log to {least}, and a restore ends at {}",
            report.log_end
        ));
    }
    // The retention trusts it.
    for mark in world.files().backup_marks().map_err(explain)? {
        if mark.log_end > report.log_end {
            return Err(format!("the mark says {}, and a restore ends at {}", mark.log_end, report.log_end));
        }
    }
    // An append that failed can have stored its message.
    let known = ends.iter().rfind(|(end, _)| *end <= report.log_end).copied().unwrap_or_default();
    let first = found.first().copied().unwrap_or(known.1);
    let count = first + found.len();
    let is_complete = count == known.1 || (count > known.1 && known.0 < report.log_end);
    if is_complete && found == (first..count).collect::<Vec<_>>() {
        return Ok(());
    }
    Err(format!("a restore to {} has the messages {found:?}, not those before {known:?}", report.log_end))
}

/// A restore of the newest state has the messages of the store.
fn is_that_of(world: &World, place: &Place, store: &Store) -> Result<(), String> {
    let (_, found) = restored(world, place, RestorePoint::Newest)?;
    let wanted = numbers(store)?;
    if found == wanted { Ok(()) } else { Err(format!("a restore has {found:?}, and the store {wanted:?}")) }
}

/// The calls at which steps were complete.
#[derive(Debug, Default)]
struct Done {
    /// The end of the log, and the number of messages then.
    ends: Vec<(u64, usize)>,
    /// Of a round, and the end of its log.
    rounds: Vec<(u64, u64)>,
}

fn opened(world: &World) -> Result<Store, StoreError> {
    world.open(OpenMode::ReadWrite, &options())
}

fn begin() -> Result<World, String> {
    let world = World::new(false);
    let store = world.open(OpenMode::Create, &options()).map_err(explain)?;
    store.create_topic(TOPIC, 1, &[]).map_err(explain)?;
    store.close().map_err(explain)?;
    Ok(World::on(world.vfs.crash_as(false, &mut |_, forms| forms - 1).map_err(explain)?))
}

fn work(world: &World, rounds: usize, done: &mut Done) -> Result<(), StoreError> {
    let (store, place) = (opened(world)?, cold(&world.vfs));
    let mut session = Session::new(place, &store, SIZES);
    let outcome = (|| {
        for number in 0..rounds {
            done.ends.extend(append(&store, number * MESSAGES..(number + 1) * MESSAGES)?);
            let report = round(&mut session, &store)?;
            done.rounds.push((world.vfs.operations(), report.log_end));
            store.expire(false, &mut || Ok(()))?;
        }
        Ok(())
    })();
    abandon(&store);
    outcome
}

fn session(world: &World, rounds: usize) -> Result<Done, String> {
    let mut done = Done::default();
    work(world, rounds, &mut done).map_err(explain)?;
    Ok(done)
}

fn check(end: &End<'_>, done: &Done, rng: &mut Rng) -> Result<(), String> {
    let world = end.world()?;
    let least = done.rounds.iter().rfind(|(call, _)| *call < end.call).map_or(0, |(_, end)| *end);
    continued(&world, &done.ends, least, rng)
}

/// The backup is whole, and a next session completes it, also after one more crash.
fn continued(world: &World, ends: &[(u64, usize)], least: u64, rng: &mut Rng) -> Result<(), String> {
    let first = World::on(world.vfs.kill().map_err(explain)?);
    match cold(&first.vfs).manifests() {
        Err(StoreError::ResultNotFound { .. }) if least == 0 => {}
        Err(error) => return Err(error.to_string()),
        Ok(states) if states.iter().all(|state| !state.is_complete) && least == 0 => {}
        Ok(_) => is_whole(&first, &cold(&first.vfs), ends, least)?,
    }
    let end = again(&first)?;
    let lost = World::on(State::chance(rng).image(&first.vfs)?.vfs);
    is_whole(&lost, &cold(&lost.vfs), ends, end)?;
    again(&lost).map(drop)
}

/// Backs up. Returns the end of the log.
fn again(world: &World) -> Result<u64, String> {
    let (store, place) = (opened(world).map_err(explain)?, cold(&world.vfs));
    let mut session = Session::new(place.clone(), &store, SIZES);
    let report = round(&mut session, &store).map_err(|error| format!("the next round: {error}"))?;
    is_that_of(world, &place, &store)?;
    let unchanged = round(&mut session, &store).map_err(explain)?;
    if unchanged.is_new || unchanged.number != report.number {
        return Err(format!("a round without a change made a state: {unchanged:?} after {report:?}"));
    }
    abandon(&store);
    Ok(report.log_end)
}

/// A disk on which all rounds have ended.
fn backed_up() -> Result<World, String> {
    let world = begin()?;
    session(&world, ROUNDS)?;
    Ok(World::on(world.vfs.crash_as(false, &mut |_, forms| forms - 1).map_err(explain)?))
}

/// Restores the backup. Returns the number of the call at which that was done.
fn restoring(world: &World) -> Result<u64, String> {
    restore(world, &cold(&world.vfs), "restored", RestorePoint::Newest).map_err(explain)?;
    Ok(world.vfs.operations())
}

fn check_restored(end: &End<'_>, done: u64) -> Result<(), String> {
    let mut world = end.world()?;
    if world.vfs.stat(&out("restored")).is_err() {
        if done < end.call {
            return Err("a restore that had ended has no name".to_owned());
        }
        world = World::on(world.vfs.kill().map_err(explain)?);
        restoring(&world)?;
    }
    let clock: Arc<dyn Clock> = world.clock.clone();
    let vfs = Arc::new(world.vfs.clone());
    let store = Store::open(vfs, clock, &out("restored"), OpenMode::Read, &options()).map_err(explain)?;
    let found = numbers(&store)?;
    store.close().map_err(explain)?;
    let first = found.first().copied().unwrap_or_default();
    if found == (first..ROUNDS * MESSAGES).collect::<Vec<_>>() && found.len() > MESSAGES {
        return Ok(());
    }
    Err(format!("the restored messages are {found:?}"))
}

/// Ends the calls after each of their steps.
pub(crate) fn hunt(step: usize, stop: &dyn Fn() -> bool) -> Result<u64, Violation> {
    let ends = Ends { name: "backing up", replay: "backing_up".to_owned(), limits: LIMITS, step, stop };
    let mut tried = 0;
    for rounds in 1..=ROUNDS {
        let world = ends.beside(begin)?;
        let ends = Ends { step: step * rounds, replay: format!("backing_up{rounds}"), ..ends };
        tried += ends.each(&world, |world| session(world, rounds), check)?;
    }
    let world = ends.beside(backed_up)?;
    Ok(tried + ends.each(&world, restoring, |end, done, _| check_restored(end, *done))?)
}

/// Lets calls fail, the last ones first, and continues after a kill and after a loss of power.
fn failing(step: usize, stop: &dyn Fn() -> bool) -> Result<u64, String> {
    let work = |world: &World, done: &mut Done| work(world, ROUNDS, done).map_err(explain);
    let check = |world: &World, done: &Done, rng: &mut Rng| {
        continued(world, &done.ends, done.rounds.last().map_or(0, |(_, end)| *end), rng)
    };
    failing_calls(&begin()?.vfs, step, stop, work, check)
}

/// Rounds whose calls fail.
pub(crate) fn hunt_failing(step: usize, stop: &dyn Fn() -> bool) -> Result<u64, Violation> {
    let ends = Ends { name: "backing up", replay: "backing_up".to_owned(), limits: LIMITS, step, stop };
    ends.beside(|| failing(step, stop))
}

/// Rounds on a target that behaves badly, next to a second session.
fn hostile(seed: u64) -> Result<(), String> {
    let world = begin()?;
    let target = Arc::new(HostileTarget::new(seed));
    let place = Place::new(Arc::clone(&target) as _);
    let mut rng = Rng::new(seed);
    let store = opened(&world).map_err(explain)?;
    let mut sessions: Vec<Session> = (0..2).map(|_| Session::new(place.clone(), &store, SIZES)).collect();
    let (mut appended, mut ends, mut least) = (0, Vec::new(), 0);
    for number in 0..8 {
        ends.extend(append(&store, appended..appended + MESSAGES).map_err(explain)?);
        appended += MESSAGES;
        let mut part = |most: u64| if rng.chance(3) { rng.below(most) } else { 0 };
        target.set(Mischief::of(&mut part));
        let which = usize::from(rng.chance(4));
        let at = |what: String| format!("target {seed}, round {number} of session {which}: {what}");
        let done = sessions.get_mut(which).map(|session| round(session, &store));
        target.calm();
        match done {
            Some(Ok(report)) => least = report.log_end,
            // It begins again, as its user does.
            Some(Err(_)) => {
                if let Some(session) = sessions.get_mut(which) {
                    *session = Session::new(place.clone(), &store, SIZES);
                }
            }
            None => {}
        }
        match place.manifests() {
            Err(StoreError::ResultNotFound { .. }) if least == 0 => continue,
            // A manifest that was kept badly, and could not be removed: its error says what to do.
            Err(StoreError::Corrupt { .. }) => return Ok(()),
            Ok(states) if states.iter().all(|state| !state.is_complete) && least == 0 => continue,
            _ => {}
        }
        is_whole(&world, &place, &ends, least).map_err(at)?;
        if rng.chance(3) {
            let keep_ms = if rng.chance(2) { 0 } else { i64::MAX / 2 };
            let rules = CleanRules { now_ms: world.clock.now_ms(), keep_ms, unused_ms: 0, dry_run: false };
            clean(&place, rules).map_err(|error| at(error.to_string()))?;
            is_whole(&world, &place, &ends, least).map_err(|what| at(format!("after a clean: {what}")))?;
        }
        store.expire(false, &mut || Ok(())).map_err(explain)?;
    }
    abandon(&store);
    Ok(())
}

/// A process backs up next to the writer, whose machine then loses power and with it the end of the log. The log grows
/// again, with other bytes.
fn truncated(seed: u64) -> Result<(), String> {
    let world = begin()?;
    let mut rng = Rng::new(seed);
    let store = opened(&world).map_err(explain)?;
    let kept = 1 + rng.below(9) as usize;
    append(&store, 0..kept).map_err(explain)?;
    store.flush().map_err(explain)?;
    append(&store, kept..kept + 1 + rng.below(9) as usize).map_err(explain)?;
    let reader = world.open(OpenMode::Read, &options()).map_err(explain)?;
    let mut session = Session::new(cold(&world.vfs), &reader, SIZES);
    round(&mut session, &reader).map_err(explain)?;
    abandon(&reader);
    abandon(&store);
    // The backup is on another disk, which loses nothing.
    let target = world.vfs.kill().map_err(explain)?;
    let lost = World::on(State::chance(&mut rng).image(&world.vfs)?.vfs);
    let store = opened(&lost).map_err(explain)?;
    append(&store, 1000..1001 + rng.below(9) as usize).map_err(explain)?;
    let place = cold(&target);
    let mut next = Session::new(place.clone(), &store, SIZES);
    round(&mut next, &store).map_err(explain)?;
    is_that_of(&World::on(target), &place, &store).map_err(|what| format!("truncation {seed}: {what}"))?;
    abandon(&store);
    Ok(())
}

/// Restores to log offsets between states: the metadata is older than the log then.
fn between(seed: u64) -> Result<(), String> {
    let world = begin()?;
    let mut first = u64::MAX;
    let rounds = 2 + seed as usize % 3;
    let offsets = {
        let store = world.open(OpenMode::ReadWrite, &tiny(Durability::Manual)).map_err(explain)?;
        let mut session = Session::new(cold(&world.vfs), &store, SIZES);
        let mut offsets = Vec::new();
        for number in 0..rounds {
            for one in 0..MESSAGES {
                let number = number * MESSAGES + one;
                world.clock.advance(Duration::from_secs(1));
                append(&store, number..number + 1).map_err(explain)?;
                let end = store.log().bounds().map_err(explain)?.1;
                offsets.push((end, number + 1, world.clock.now_ms()));
            }
            world.clock.advance(Duration::from_secs(1));
            round(&mut session, &store).map_err(explain)?;
            first = first.min(store.log().bounds().map_err(explain)?.1);
        }
        abandon(&store);
        offsets
    };
    let place = cold(&world.vfs);
    let wanted = offsets.into_iter().filter(|(end, ..)| *end >= first);
    for (number, (end, count, time_ms)) in wanted.enumerate() {
        let times = [RestorePoint::TimeMs(time_ms), RestorePoint::TimeMs(time_ms + 999)];
        let points = [RestorePoint::Offset(end), RestorePoint::Offset(end + 7)];
        // The first state was made after the time of its last message.
        for point in points.into_iter().chain(times.into_iter().filter(|_| number > 0)) {
            let (report, found) = restored(&world, &place, point)?;
            if report.log_end != end || found != (0..count).collect::<Vec<_>>() {
                return Err(format!(
                    "a restore to {point:?} ends at {}, not at {end}: {found:?}",
                    report.log_end
                ));
            }
        }
    }
    for early in [RestorePoint::Offset(first - 1), RestorePoint::TimeMs(0)] {
        match restore(&world, &place, "early", early) {
            Err(StoreError::InvalidOption { option: "at", .. }) => {}
            other => return Err(format!("a restore before the first state: {other:?}")),
        }
    }
    Ok(())
}

/// Bad targets, lost ends, and restores to other moments.
pub(crate) fn hunt_others(seeds: u64, stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    let ends = Ends { name: "backing up", replay: "backing_up".to_owned(), limits: LIMITS, step: 1, stop };
    for seed in (0..seeds).take_while(|_| !stop()) {
        ends.beside(|| truncated(seed))?;
        ends.beside(|| hostile(seed))?;
        if seed < 3 {
            ends.beside(|| between(seed))?;
        }
    }
    Ok(())
}

#[test]
fn each_round_of_a_backup_has_one_commit_or_none() {
    let tried = crate::crashes::must_hold(hunt(7 * crate::crashes::calls_step(), &|| false));
    println!("backing up: {tried} states");
    assert!(tried > 200, "{tried} states");
}

#[test]
fn each_round_whose_calls_fail_has_one_commit_or_none() {
    let tried = crate::crashes::must_hold(hunt_failing(6 * crate::crashes::calls_step(), &|| false));
    println!("backing up: {tried} failing calls");
    assert!(tried > 50, "{tried} failing calls");
}

#[test]
fn bad_targets_lost_ends_and_moments_between_states() {
    let seeds = if crate::crashes::soak() { 4_000 } else { 40 };
    crate::crashes::must_hold(hunt_others(seeds, &|| false));
}
