//! Calls that fail: the n-th one, once or from then on, with the errors of disks. Also full disks.

use mqstore_base::error::StoreError;
use mqstore_base::options::{Durability, OpenMode, StoreOptions};
use mqstore_engine::Store;
use mqstore_io::SimVfs;
use mqstore_io::sim::{Fault, OperationKind, SimOptions};

use crate::check::{self, abandon, recover};
use crate::crashes::{must_hold, soak};
use crate::explore::{Violation, guarded};
use crate::states::{Rng, State};
use crate::workload::{Need, Rec, SEGMENT_BYTES, World, append, explain, tiny};

const ERRNOS: [(i32, &str); 5] = [(5, "EIO"), (28, "ENOSPC"), (122, "EDQUOT"), (30, "EROFS"), (24, "EMFILE")];

/// The calls that need a descriptor. No other call has the error `EMFILE`, and a store knows that after this error, no sync
/// has begun.
const OPENS: [OperationKind; 3] = [OperationKind::Open, OperationKind::Create, OperationKind::List];

/// The result of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Durable,
    Acked,
    /// The message may be in the store or not.
    Unknown,
}

/// A scripted run that continues after errors, and the results that it got.
#[derive(Default)]
struct Script {
    records: Vec<Rec>,
    fates: Vec<Fate>,
    errors: Vec<String>,
    stopped: bool,
    /// Whether the process dies without a close after the store has stopped.
    dies: bool,
}

impl Script {
    /// Runs two sessions in `world`, whose calls may fail.
    fn run(&mut self, world: &World, options: &StoreOptions) -> Result<(), String> {
        for session in 0..2 {
            let store = match world.open(OpenMode::Create, options) {
                Ok(store) => store,
                Err(error) => {
                    self.failed(&error)?;
                    continue;
                }
            };
            for step in 0..9 {
                let outcome = self.step(&store, session * 9 + step, options);
                outcome.map_err(|what| {
                    format!("session {session}, step {step}, after {:?}: {what}", self.errors)
                })?;
            }
            if self.stopped && self.dies {
                abandon(&store);
            } else if let Err(error) = store.close() {
                self.failed(&error)?;
            } else if !self.stopped {
                self.settle();
            }
            self.stopped = false;
        }
        Ok(())
    }

    fn step(&mut self, store: &Store, number: usize, options: &StoreOptions) -> Result<(), String> {
        match number % 9 {
            3 => self.append(store, 4, 120, false, options),
            5 => self.append(store, 1, 2_500, false, options),
            6 => self.outcome(store.flush()),
            7 => self.append(store, 1, 80, true, options),
            8 => match store.step() {
                Ok(()) => Ok(()),
                Err(error) => self.failed(&error),
            },
            _ => self.append(store, 1, 60 + number, false, options),
        }
    }

    fn append(
        &mut self,
        store: &Store,
        count: usize,
        len: usize,
        durable: bool,
        options: &StoreOptions,
    ) -> Result<(), String> {
        let first = self.records.len();
        let mut records: Vec<Rec> = (first..first + count).map(|number| Rec::new(number, len, 0)).collect();
        let outcome = append(store, &mut records, durable);
        self.records.extend(records);
        let fate = match &outcome {
            Ok(()) if self.stopped => return Err("an append succeeded after a sync had failed".to_owned()),
            Ok(()) if durable || options.durability == Durability::Sync => Fate::Durable,
            Ok(()) => Fate::Acked,
            Err(_) => Fate::Unknown,
        };
        self.fates.resize(self.records.len(), fate);
        if fate == Fate::Durable {
            self.settle();
        }
        outcome.or_else(|error| self.failed(&error))
    }

    fn outcome(&mut self, outcome: Result<(), StoreError>) -> Result<(), String> {
        match outcome {
            Ok(()) if self.stopped => Err("a flush succeeded after a sync had failed".to_owned()),
            Ok(()) => {
                self.settle();
                Ok(())
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Everything acknowledged is durable from now on.
    fn settle(&mut self) {
        self.fates.iter_mut().filter(|fate| **fate == Fate::Acked).for_each(|fate| *fate = Fate::Durable);
    }

    fn failed(&mut self, error: &StoreError) -> Result<(), String> {
        self.stopped |= matches!(error, StoreError::Poisoned { .. });
        let text = error.to_string();
        match error {
            StoreError::Corrupt { .. } => Err(format!("a failed call is called damage: {text}")),
            _ if text.is_empty() => Err("an error without words".to_owned()),
            _ => {
                self.errors.push(text);
                Ok(())
            }
        }
    }

    /// Every acknowledged message is present, in order, and no other message.
    fn check(&self, vfs: &SimVfs, options: &StoreOptions, kept: Fate) -> Result<usize, String> {
        let world = World::on(vfs.clone());
        let store = world.open(OpenMode::Create, options).map_err(explain)?;
        let mut next = 0;
        let mut cursor = store.log().scan(None).map_err(explain)?;
        let mut found = Vec::new();
        for record in cursor.next_batch(usize::MAX).map_err(explain)? {
            let body = record.view().map_err(explain)?.body.to_vec();
            let Some(at) = (next..self.records.len()).find(|at| self.records[*at].body == body) else {
                return Err(format!("a record at {} was never appended", record.commit_log_offset));
            };
            self.lost(next..at, kept)?;
            found.push(self.records[at].clone());
            next = at + 1;
        }
        self.lost(next..self.records.len(), kept)?;
        check::compare_derived(&store, &found)?;
        let count = found.len();
        // Recovery has synced everything that it shows.
        let after = State::all_old().image(&world.vfs)?;
        abandon(&store);
        drop(store);
        recover(&after.vfs, options, &found, Need::whole(count, count))
            .map_err(|what| format!("after another loss of power: {what}"))?;
        Ok(count)
    }

    fn lost(&self, mut range: std::ops::Range<usize>, kept: Fate) -> Result<(), String> {
        let must_stay = |at: &usize| self.fates[*at] == Fate::Durable || self.fates[*at] == kept;
        match range.find(must_stay) {
            Some(at) => Err(format!("record {at} is gone; it was {:?}", self.fates[at])),
            None => Ok(()),
        }
    }
}

/// All states that can follow a run with an error.
fn aftermath(script: &Script, vfs: &SimVfs, options: &StoreOptions, rng: &mut Rng) -> Result<(), String> {
    vfs.clear_faults();
    vfs.set_space(None);
    let killed = vfs.kill().map_err(explain)?;
    if rng.chance(4) {
        // After a failed sync, the cache drops the pages that it marked clean. Their bytes were not durable.
        let dropped = vfs.kill().map_err(explain)?;
        dropped.drop_cache().map_err(explain)?;
        script
            .check(&dropped, options, Fate::Durable)
            .map_err(|what| format!("kill, cache dropped: {what}"))?;
    }
    let power = State::chance(rng).image(vfs)?;
    script.check(&power.vfs, options, Fate::Durable).map_err(|what| format!("power loss: {what}"))?;
    script.check(&killed, options, Fate::Acked).map_err(|what| format!("kill: {what}"))?;
    Ok(())
}

fn violation(replay: String, what: String) -> Violation {
    Violation { replay, what: format!("failing calls: {what}") }
}

/// Lets each sync of the script fail once, at most `most` of them.
pub(crate) fn failed_syncs(most: u64, stop: &dyn Fn() -> bool) -> Result<u64, Violation> {
    let kinds = [OperationKind::Sync, OperationKind::SyncDir, OperationKind::MapFlush];
    sweep(most, &[(5, "EIO")], &|nth| Fault::nth(nth).on(&kinds), "sync", stop)
}

/// Lets call after call of the script fail. Returns the number of runs in which a call failed.
fn sweep(
    most: u64,
    errnos: &[(i32, &str)],
    fault: &dyn Fn(u64) -> Fault,
    name: &str,
    stop: &dyn Fn() -> bool,
) -> Result<u64, Violation> {
    let mut runs = 0;
    for (durability, letter) in [(Durability::Sync, 's'), (Durability::Async, 'a'), (Durability::Manual, 'm')]
    {
        let options = tiny(durability);
        for (number, (errno, errno_name)) in errnos.iter().enumerate() {
            for sticky in [false, true] {
                // The first error is tried at every call, each other error at every thirteenth call, with a
                // different start.
                let opens = *errno_name == "EMFILE";
                let (first, step) = match number as u64 {
                    0 => (1, 1),
                    _ if soak() => (1, 1),
                    number if opens => (number, 5),
                    number => (3 * number, 13),
                };
                for nth in (first..=most).step_by(step) {
                    if stop() {
                        return Ok(runs);
                    }
                    let fault = fault(nth).errno(*errno);
                    let fault = if opens { fault.on(&OPENS) } else { fault };
                    let fault = if sticky { fault.sticky() } else { fault };
                    let replay = format!("{name}-{letter}-{errno_name}-{}:{nth}:0:0", u8::from(sticky));
                    let fired = guarded(|| one_fault(&options, fault, nth))
                        .map_err(|what| violation(replay, what))?;
                    if !fired {
                        break;
                    }
                    runs += 1;
                }
            }
        }
    }
    Ok(runs)
}

fn one_fault(options: &StoreOptions, fault: Fault, nth: u64) -> Result<bool, String> {
    let world = World::with(SimOptions { seed: nth, ..SimOptions::default() });
    world.vfs.inject(fault);
    let mut script = Script { dies: !nth.is_multiple_of(3), ..Script::default() };
    script.run(&world, options)?;
    if world.vfs.faults_fired() == 0 {
        return Ok(false);
    }
    aftermath(&script, &world.vfs, options, &mut Rng::new(nth))?;
    match world.vfs.violations().first() {
        Some(what) => Err(what.clone()),
        None => Ok(true),
    }
}

#[test]
fn every_failed_call_is_an_error_and_loses_nothing() {
    let most = if soak() { u64::MAX } else { 100_000 };
    let runs = must_hold(sweep(most, &ERRNOS, &Fault::nth, "call", &|| false));
    println!("failing calls: {runs} runs in which one failed, {} errors, once and for good", ERRNOS.len());
    assert!(runs > 2_000, "{runs} runs");
}

/// Options of a store whose log and index get their disk space page by page.
fn growing(durability: Durability) -> StoreOptions {
    StoreOptions {
        segment_bytes: 6 * SEGMENT_BYTES,
        allocation_bytes: 4096,
        index_slots: 6_000,
        index_entries: 2_000,
        ..tiny(durability)
    }
}

#[test]
fn a_failed_call_of_a_store_that_grows_in_steps_loses_nothing() {
    let mut runs = 0;
    for durability in [Durability::Sync, Durability::Async] {
        for sticky in [false, true] {
            for nth in (1..).step_by(if soak() { 1 } else { 3 }) {
                let fault = Fault::nth(nth).errno(5);
                let fault = if sticky { fault.sticky() } else { fault };
                let fired = guarded(|| one_fault(&growing(durability), fault, nth));
                if !must_hold(fired.map_err(|what| violation(format!("growing:{nth}:0:0"), what))) {
                    break;
                }
                runs += 1;
            }
        }
    }
    println!("failing calls of a store that grows in steps: {runs} runs");
    assert!(runs > 200, "{runs} runs");
}

#[test]
fn every_failed_sync_ends_the_store() {
    let runs = must_hold(failed_syncs(u64::MAX, &|| false));
    println!("failing syncs: {runs} runs");
    assert!(runs > 100, "{runs} runs");
}

#[test]
fn a_full_disk_is_an_error_and_room_ends_it() {
    let mut full = 0;
    let modes = [Durability::Sync, Durability::Async, Durability::Manual];
    let all = modes.map(tiny).into_iter().chain(modes.map(growing));
    for options in all {
        for pages in 0..64 {
            let outcome = guarded(|| {
                let space_bytes = Some(pages * 4096);
                let world = World::with(SimOptions { space_bytes, ..SimOptions::default() });
                let mut script = Script::default();
                script.run(&world, &options)?;
                full += u64::from(!script.errors.is_empty());
                aftermath(&script, &world.vfs, &options, &mut Rng::new(pages))?;
                Ok(world.vfs.violations())
            });
            let violations =
                must_hold(outcome.map_err(|what| violation(format!("full-{pages}:0:0:0"), what)));
            assert_eq!(violations, Vec::<String>::new(), "{pages} pages");
        }
    }
    println!("full disks: 384 sizes in steps of 4 KiB, {full} too small for the run");
    assert!(full >= 60 && u64::from(SEGMENT_BYTES as u32) == SEGMENT_BYTES);
}
