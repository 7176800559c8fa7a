//! Runs of an archive and a restore, ended at any call or with any call failing, and on targets that behave badly: one
//! commit or none, and each message that retention has deleted is in the archive once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore::archive::file::FileSizes;
use mqstore::archive::manifest::Manifest;
use mqstore::archive::owner::{ArchiveRecorder, configure};
use mqstore::archive::place::Place;
use mqstore::archive::rebuild::rebuild_manifest;
use mqstore::archive::restore::{Restore, RestoreReport, Restored};
use mqstore::archive::run::{Run, RunReport, RunSettings, RunSizes};
use mqstore::archive::verify::verify;
use mqstore_base::error::StoreError;
use mqstore_base::message::NewMessage;
use mqstore_base::options::{Durability, OpenMode, StoreOptions};
use mqstore_base::store_files::StoreFiles;
use mqstore_engine::Store;
use mqstore_io::target::{HostileTarget, Mischief};
use mqstore_io::{Clock, FolderTarget, SimVfs, Vfs};

use crate::check::abandon;
use crate::explore::Violation;
use crate::moments::{End, Ends, failing_calls};
use crate::states::{Limits, Rng, State};
use crate::workload::{SEGMENT_BYTES, World, explain, tiny};

const LIMITS: Limits = Limits { all_up_to: 2, singles: 4, random: 1, cuts: 0 };
const SETTINGS: &str = r#"{"level": 1, "older_than": 0, "target": "cold", "topics": null}"#;
const TOPICS: [&str; 2] = ["orders", "events"];

/// Messages before each run. About five fill a segment.
const MESSAGES: usize = 8;
/// Runs of a session.
const RUNS: usize = 2;

/// Small files, and a manifest for each segment.
const SIZES: RunSizes = RunSizes {
    range_bytes: 1,
    commit_bytes: SEGMENT_BYTES,
    writers: 1,
    file: FileSizes { group_rows: 4, page_bytes: 1 << 10, page_step_rows: 2, level: 1 },
};

fn out(name: &str) -> PathBuf {
    Path::new("/data/out").join(name)
}

fn options() -> StoreOptions {
    StoreOptions { retention_bytes: Some(1), delete_interval_ms: 0, ..tiny(Durability::Manual) }
}

fn cold(vfs: &SimVfs) -> Place {
    Place::new(Arc::new(FolderTarget::new(Arc::new(vfs.clone()), &out("cold"), "cold".to_owned())))
}

fn append(store: &Store, numbers: std::ops::Range<usize>) -> Result<(), StoreError> {
    for number in numbers {
        let body = format!("{number} {}", "x".repeat(600 + number * 37 % 200)).into_bytes();
        let topic = TOPICS[usize::from(number % 3 == 0)];
        store.append(&NewMessage { topic, body: &body, queue_id: Some(0), ..NewMessage::default() })?;
    }
    Ok(())
}

/// A run, with another one in each call of its callback.
fn run_with(
    clock: &dyn Clock,
    store: &Store,
    place: &Place,
    beside: &mut dyn FnMut(),
) -> Result<RunReport, StoreError> {
    let recorded = store.archive().state()?;
    let settings = RunSettings { older_than_ms: 0, topics: None };
    let recorder: Option<&dyn ArchiveRecorder> = Some(store);
    let run = Run { place, clock, settings, sizes: SIZES, recorded: recorded.as_ref(), recorder };
    run.run(store, &mut |_| {
        beside();
        Ok(())
    })
}

fn run(clock: &dyn Clock, store: &Store, place: &Place) -> Result<RunReport, StoreError> {
    run_with(clock, store, place, &mut || ())
}

fn restore(world: &World, place: &Place, name: &str) -> Result<RestoreReport, StoreError> {
    let (partial, home) = (out(&format!("{name}.partial")), out(name));
    let partial = StoreFiles::new(Arc::new(world.vfs.clone()), world.clock.clone(), &partial);
    let to = Restored { partial: &partial, home: &home, options: &options(), target: "cold" };
    Restore::plan(place, None, None, None)?.run(&to, &mut |_| Ok(()))
}

/// Adds the numbers of the messages in the log of a store from log offset `start` on.
fn count(store: &Store, start: u64, found: &mut BTreeMap<usize, usize>) -> Result<(), String> {
    let mut cursor = store.log().scan(None).map_err(explain)?;
    for record in cursor.next_batch(usize::MAX).map_err(explain)? {
        let view = record.view().map_err(explain)?;
        if record.commit_log_offset >= start {
            let text = String::from_utf8_lossy(view.body);
            let number = text.split(' ').next().and_then(|text| text.parse().ok()).ok_or("a damaged body")?;
            *found.entry(number).or_default() += 1;
        }
    }
    Ok(())
}

/// The messages of a restored store.
fn restored(world: &World, name: &str) -> Result<BTreeMap<usize, usize>, String> {
    let clock: Arc<dyn Clock> = world.clock.clone();
    let store = Store::open(Arc::new(world.vfs.clone()), clock, &out(name), OpenMode::Read, &options());
    let store = store.map_err(|error| format!("the restored store: {error}"))?;
    let mut found = BTreeMap::new();
    count(&store, 0, &mut found)?;
    store.close().map_err(explain)?;
    Ok(found)
}

/// Each of the first messages is there once; at least `least` of them.
fn complete(found: &BTreeMap<usize, usize>, least: usize) -> Result<(), String> {
    let wanted: BTreeMap<usize, usize> = (0..found.len().max(least)).map(|number| (number, 1)).collect();
    if *found == wanted {
        Ok(())
    } else {
        Err(format!("the messages {found:?} are not {least} or more, each once"))
    }
}

/// The log and the archive together have each message once. The archive has the segments of the log before it.
fn nothing_is_lost(world: &World, store: &Store, place: &Place, least: usize) -> Result<(), String> {
    let manifest = place.newest().map_err(explain)?;
    let mut found = BTreeMap::new();
    let end = manifest.as_ref().map_or(0, Manifest::end);
    if let Some(manifest) = &manifest {
        let report = verify(place, manifest, &mut |_| Ok(())).map_err(explain)?;
        if let Some(problem) = report.problems.first() {
            return Err(format!("manifest {}: {problem}", manifest.number));
        }
        let vfs = &world.vfs;
        let _ = vfs.remove_dir_all(&out("again"));
        vfs.create_dir_all(&out("again.partial")).map_err(explain)?;
        restore(world, place, "again").map_err(explain)?;
        found = restored(world, "again")?;
    }
    let archived_to = store.archive().state().map_err(explain)?.map_or(0, |state| state.archived_to);
    if archived_to > end {
        return Err(format!(
            "the store says that {archived_to} bytes are archived, and the archive has {end}"
        ));
    }
    count(store, end, &mut found)?;
    complete(&found, least)
}

/// The calls at which steps were complete.
#[derive(Debug, Default)]
struct Done {
    /// Of a flush, and the number of messages then.
    flushed: Vec<(u64, usize)>,
    /// Of a run, and the end of the archive.
    archived: Vec<(u64, u64)>,
}

fn opened(world: &World) -> Result<Store, StoreError> {
    world.open(OpenMode::ReadWrite, &options())
}

/// A store with an archive that has nothing yet.
fn begin() -> Result<World, String> {
    let world = World::new(false);
    let store = world.open(OpenMode::Create, &options()).map_err(explain)?;
    for topic in TOPICS {
        store.create_topic(topic, 1, &[]).map_err(explain)?;
    }
    configure(&store, &store, &cold(&world.vfs), SETTINGS, None).map_err(explain)?;
    store.close().map_err(explain)?;
    Ok(World::on(world.vfs.crash_as(false, &mut |_, forms| forms - 1).map_err(explain)?))
}

fn work(world: &World, runs: usize, done: &mut Done) -> Result<(), StoreError> {
    let (store, place) = (opened(world)?, cold(&world.vfs));
    let outcome = (|| {
        for round in 0..runs {
            append(&store, round * MESSAGES..(round + 1) * MESSAGES)?;
            store.flush()?;
            done.flushed.push((world.vfs.operations(), (round + 1) * MESSAGES));
            let report = run(&*world.clock, &store, &place)?;
            done.archived.push((world.vfs.operations(), report.archived_to));
            store.expire(false, &mut || Ok(()))?;
        }
        Ok(())
    })();
    abandon(&store);
    outcome
}

fn session(world: &World, runs: usize) -> Result<Done, String> {
    let mut done = Done::default();
    work(world, runs, &mut done).map_err(explain)?;
    Ok(done)
}

fn check(end: &End<'_>, done: &Done, rng: &mut Rng) -> Result<(), String> {
    let world = end.world()?;
    let was = |call: u64| call < end.call;
    let least = done.flushed.iter().rfind(|(call, _)| was(*call)).map_or(0, |(_, count)| *count);
    let archived = done.archived.iter().rfind(|(call, _)| was(*call)).map_or(0, |(_, end)| *end);
    let manifest = cold(&world.vfs).newest().map_err(explain)?;
    let found = manifest.as_ref().map_or(0, Manifest::end);
    if found < archived {
        return Err(format!("a run archived to {archived}, and the archive ends at {found}"));
    }
    continued(&world, least, rng)
}

/// A disk on which all runs have ended.
fn archived() -> Result<World, String> {
    let world = begin()?;
    session(&world, RUNS)?;
    Ok(World::on(world.vfs.crash_as(false, &mut |_, forms| forms - 1).map_err(explain)?))
}

/// Restores the archive. Returns the number of the call at which that was done.
fn restoring(world: &World) -> Result<u64, String> {
    restore(world, &cold(&world.vfs), "restored").map_err(explain)?;
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
    // It has all segments except the last one.
    complete(&restored(&world, "restored")?, RUNS * MESSAGES - MESSAGES)
}

/// The next run archives the rest, also after one more crash.
fn continued(world: &World, least: usize, rng: &mut Rng) -> Result<(), String> {
    let first = World::on(world.vfs.kill().map_err(explain)?);
    again(&first, least)?;
    let after = World::on(State::chance(rng).image(&first.vfs)?.vfs);
    again(&after, least)
}

fn again(world: &World, least: usize) -> Result<(), String> {
    let (store, place) = (opened(world).map_err(explain)?, cold(&world.vfs));
    nothing_is_lost(world, &store, &place, least)?;
    run(&*world.clock, &store, &place).map_err(|error| format!("the next run: {error}"))?;
    store.expire(false, &mut || Ok(())).map_err(explain)?;
    nothing_is_lost(world, &store, &place, least)?;
    abandon(&store);
    Ok(())
}

/// Ends the calls after each of their steps.
pub(crate) fn hunt(step: usize, stop: &dyn Fn() -> bool) -> Result<u64, Violation> {
    let ends = Ends { name: "archiving", replay: "archiving".to_owned(), limits: LIMITS, step, stop };
    let mut tried = 0;
    for runs in 1..=RUNS {
        let world = ends.beside(begin)?;
        // The search begins with the last calls.
        let ends = Ends { step: step * runs, replay: format!("archiving{runs}"), ..ends };
        tried += ends.each(&world, |world| session(world, runs), check)?;
    }
    let world = ends.beside(archived)?;
    Ok(tried + ends.each(&world, restoring, |end, done, _| check_restored(end, *done))?)
}

/// Runs on targets that behave badly.
pub(crate) fn hunt_targets(seeds: u64, stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    let ends = Ends { name: "archiving", replay: "archiving".to_owned(), limits: LIMITS, step: 1, stop };
    (0..seeds).take_while(|_| !stop()).try_for_each(|seed| ends.beside(|| hostile(seed)))
}

/// Lets calls fail, the last ones first, and continues after a kill and after a loss of power.
fn failing(step: usize, stop: &dyn Fn() -> bool) -> Result<u64, String> {
    let work = |world: &World, done: &mut Done| work(world, RUNS, done).map_err(explain);
    let check = |world: &World, done: &Done, rng: &mut Rng| {
        continued(world, done.flushed.last().map_or(0, |(_, count)| *count), rng)
    };
    failing_calls(&begin()?.vfs, step, stop, work, check)
}

/// Runs whose calls fail.
pub(crate) fn hunt_failing(step: usize, stop: &dyn Fn() -> bool) -> Result<u64, Violation> {
    let ends = Ends { name: "archiving", replay: "archiving".to_owned(), limits: LIMITS, step, stop };
    ends.beside(|| failing(step, stop))
}

/// Runs on a target that behaves badly, some of them during others.
fn hostile(seed: u64) -> Result<(), String> {
    let world = begin()?;
    let target = Arc::new(HostileTarget::new(seed));
    let place = Place::new(Arc::clone(&target) as _);
    let mut rng = Rng::new(seed);
    let store = opened(&world).map_err(explain)?;
    let mut appended = 0;
    for round in 0..6 {
        append(&store, appended..appended + MESSAGES).map_err(explain)?;
        appended += MESSAGES;
        store.flush().map_err(explain)?;
        let mut part = |most: u64| if rng.chance(3) { rng.below(most) } else { 0 };
        target.set(Mischief::of(&mut part));
        let mut left = part(4);
        let mut beside = || {
            if left > 0 {
                left -= 1;
                let _ = run(&*world.clock, &store, &place);
            }
        };
        let done = run_with(&*world.clock, &store, &place, &mut beside);
        target.calm();
        let at = |what: String| format!("target {seed}, run {round}: {what}");
        if let Ok(report) = done {
            let newest = place.newest().map_err(|error| at(error.to_string()))?;
            let end = newest.map_or(0, |manifest| manifest.end());
            if end < report.archived_to {
                return Err(at(format!("a run archived to {}, and {end} is there", report.archived_to)));
            }
        }
        // A manifest that was kept badly, and could not be removed.
        if matches!(place.newest(), Err(StoreError::Corrupt { .. })) {
            match rebuild_manifest(&place, &world.vfs, &*world.clock) {
                // Nothing was archived yet.
                Err(StoreError::Corrupt { .. }) => return Ok(()),
                made => drop(made.map_err(|error| at(error.to_string()))?),
            }
        }
        one_history(&place).map_err(at)?;
        nothing_is_lost(&world, &store, &place, appended).map_err(at)?;
        store.expire(false, &mut || Ok(())).map_err(explain)?;
        nothing_is_lost(&world, &store, &place, appended).map_err(at)?;
    }
    abandon(&store);
    Ok(())
}

/// Each manifest that can be read has the files of those before it.
fn one_history(place: &Place) -> Result<(), String> {
    let mut numbers = place.manifest_numbers().map_err(explain)?;
    numbers.reverse();
    let mut before: Option<Manifest> = None;
    for number in numbers {
        let Ok(manifest) = place.manifest(number) else { continue };
        if let Some(before) = before
            && !manifest.files.starts_with(&before.files)
        {
            return Err(format!("manifest {number} has not the files of {}", before.number));
        }
        before = Some(manifest);
    }
    Ok(())
}

#[test]
fn each_run_of_an_archive_has_one_commit_or_none() {
    let tried = crate::crashes::must_hold(hunt(5 * crate::crashes::calls_step(), &|| false));
    println!("archiving: {tried} states");
    assert!(tried > 300, "{tried} states");
}

#[test]
fn each_run_whose_calls_fail_has_one_commit_or_none() {
    let tried = crate::crashes::must_hold(hunt_failing(4 * crate::crashes::calls_step(), &|| false));
    println!("archiving: {tried} failing calls");
    assert!(tried > 50, "{tried} failing calls");
}

#[test]
fn a_target_that_behaves_badly_has_one_commit_or_none() {
    let seeds = if crate::crashes::soak() { 4_000 } else { 30 };
    crate::crashes::must_hold(hunt_targets(seeds, &|| false));
}
