//! Tries cases, moments and states, counts them, and stops at the first broken promise.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mqstore_base::options::{OpenMode, StoreOptions};
use mqstore_io::sim::OperationKind;
use mqstore_io::{FileKind, SimVfs, Vfs};

use crate::check::{self, abandon, recover};
use crate::contract;
use crate::states::{Image, Limits, Rng, State, states};
use crate::workload::{Case, History, Need, QUEUES, Rec, Running, World, explain};

/// A broken promise, and how to reproduce it.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    /// `case:call:state:depth`, for the variable `MQSIM`.
    pub(crate) replay: String,
    pub(crate) what: String,
}

/// Counts of the cases, moments and states tried.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    seen: Mutex<HashSet<u64>>,
    pub(crate) cases: AtomicU64,
    pub(crate) moments: AtomicU64,
    pub(crate) images: AtomicU64,
    pub(crate) lost_page: AtomicU64,
    pub(crate) kills: AtomicU64,
    pub(crate) opens: AtomicU64,
    pub(crate) nested: AtomicU64,
    pub(crate) looks: AtomicU64,
}

impl Counts {
    /// Whether `image` is new. Counts it if so.
    fn is_new(&self, image: &Image, fingerprint: u64) -> bool {
        if !self.seen.lock().unwrap_or_else(PoisonError::into_inner).insert(fingerprint) {
            return false;
        }
        add(&self.images, 1);
        add(&self.lost_page, u64::from(image.lost_page));
        add(&self.kills, u64::from(image.kill));
        true
    }
}

thread_local! {
    /// Number of store openings in this thread.
    static WORK: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts one opening.
pub(crate) fn count_work() {
    WORK.with(|work| work.set(work.get() + 1));
}

pub(crate) fn work_done() -> u64 {
    WORK.with(std::cell::Cell::get)
}

pub(crate) fn forget_work() {
    WORK.with(|work| work.set(0));
}

pub(crate) fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

pub(crate) fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// How much to try.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) limits: Limits,
    /// Maximum number of moments of one run.
    pub(crate) moments: usize,
    /// In one of this many states, recovery itself is interrupted, up to `depth` times in a row.
    pub(crate) nested_one_in: u64,
    pub(crate) depth: u32,
    /// In one of this many states, all other checks run too.
    pub(crate) thorough_one_in: u64,
}

/// The place of a state, for replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) call: u64,
    pub(crate) state: usize,
}

/// Runs `case` and ends it at each moment. If `only` is given, only that place is checked.
pub(crate) fn explore(
    case: &Case,
    effort: &Effort,
    counts: &Counts,
    only: Option<Place>,
    stop: &dyn Fn() -> bool,
) -> Result<(), Violation> {
    let fail = |place: Option<Place>, depth: u32, what: String| {
        let place = place.unwrap_or(Place { call: 0, state: 0 });
        Violation { replay: format!("{}:{}:{}:{depth}", case.name, place.call, place.state), what }
    };
    let plain = World::new(true);
    let (history, _) =
        guarded(|| Running::start(case, &plain)?.finish()).map_err(|what| fail(None, 0, what))?;
    add(&counts.cases, 1);
    let mut rng = Rng::new(seed_of(&case.name));
    let calls = match only {
        Some(place) => vec![place.call],
        None => moments(case, &plain.vfs, &history, effort, &mut rng),
    };
    let world = World::new(false);
    world.vfs.freeze_at_each(calls);
    let (mut history, end) =
        guarded(|| Running::start(case, &world)?.finish()).map_err(|what| fail(None, 0, what))?;
    history.removals = removals(&plain.vfs);
    let mut frozen = world.vfs.take_all_frozen();
    if only.is_none_or(|place| place.call > history.last.1) {
        frozen.push((history.last.1 + 1, end));
    }
    for (call, moment) in frozen {
        if stop() {
            return Ok(());
        }
        add(&counts.moments, 1);
        let moment = Moment { case, history: &history, call, vfs: &moment, counts, effort };
        moment
            .explore(only)
            .map_err(|(state, depth, what)| fail(Some(Place { call, state }), depth, what))?;
    }
    match world.vfs.violations().first() {
        Some(what) => Err(fail(None, 0, what.clone())),
        None => Ok(()),
    }
}

/// The names that a run removed from the log, the queues, the index and the folder `wipe`.
fn removals(vfs: &SimVfs) -> Vec<(u64, PathBuf)> {
    let mut removals = Vec::new();
    for call in vfs.trace() {
        let waits = call.path.parent().is_some_and(|folder| folder.ends_with("wipe"));
        let path = match call.kind {
            OperationKind::RemoveFile => call.path,
            // From the log to the folder `wipe`.
            OperationKind::Rename if waits => {
                let side = call.path.ancestors().nth(2).unwrap_or(&call.path);
                let log = side.parent().unwrap_or(side);
                let log = if side.ends_with(".mqstore") { log.to_owned() } else { log.join("commitlog") };
                log.join(call.path.file_name().unwrap_or_default())
            }
            _ => continue,
        };
        let is_of = |name: &str| path.components().any(|part| part.as_os_str() == name);
        let staged = is_of("tmp");
        if !staged
            && ["commitlog", "log", "consumequeue", "batchconsumequeue", "index", "wipe"]
                .iter()
                .any(|name| is_of(name))
        {
            removals.push((call.number, path));
        }
    }
    removals
}

/// The calls before which the run of `case` ends: one after each call that changes the disk.
fn moments(case: &Case, vfs: &SimVfs, history: &History, effort: &Effort, rng: &mut Rng) -> Vec<u64> {
    let from = if case.last_only { history.last.0 } else { 0 };
    let changes = vfs.trace().into_iter().filter(|call| call.kind.changes());
    let calls: Vec<u64> = changes
        .map(|call| call.number + 1)
        .filter(|call| *call > from + 1 && *call <= history.last.1)
        .collect();
    // Some steps must come directly before a name is removed.
    let removals = removals(vfs).into_iter().map(|(call, _)| call).filter(|call| *call > from + 1);
    let mut chosen: Vec<u64> = removals.filter(|call| *call <= history.last.1).collect();
    if calls.len() + chosen.len() <= effort.moments {
        chosen.extend(calls);
        chosen.sort_unstable();
        chosen.dedup();
        return chosen;
    }
    while chosen.len() > effort.moments / 2 {
        chosen.swap_remove(rng.below(chosen.len() as u64) as usize);
    }
    // Some neighbours, some far apart.
    while chosen.len() < effort.moments {
        let at = rng.below(calls.len() as u64) as usize;
        chosen.extend(calls.iter().skip(at).take(3));
    }
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

pub(crate) fn seed_of(name: &str) -> u64 {
    name.bytes()
        .fold(0xCBF2_9CE4_8422_2325, |seed, byte| (seed ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3))
}

/// Treats a panic as a broken promise.
pub(crate) fn guarded<T>(act: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
        Err(format!("panic: {text}"))
    })
}

/// One moment of a run at which the process or the machine stops.
struct Moment<'a> {
    case: &'a Case,
    history: &'a History,
    call: u64,
    vfs: &'a SimVfs,
    counts: &'a Counts,
    effort: &'a Effort,
}

type Broken = (usize, u32, String);

impl Moment<'_> {
    fn explore(&self, only: Option<Place>) -> Result<(), Broken> {
        let mut rng = Rng::new(seed_of(&self.case.name) ^ self.call.wrapping_mul(0x9E37_79B9));
        let seen = guarded(|| self.look()).map_err(|what| (0, 0, what))?;
        for (number, state) in states(self.vfs, self.effort.limits, &mut rng).iter().enumerate() {
            if only.is_some_and(|place| place.state != number) {
                continue;
            }
            let mut depth = 0;
            let outcome = guarded(|| {
                if only.is_none() {
                    return self.check(state, seen, false, &mut depth);
                }
                self.show(state)?;
                // First the same random choices as in the run, then everything.
                self.check(state, seen, false, &mut depth)?;
                self.check(state, seen, true, &mut depth)
            });
            outcome.map_err(|what| (number, depth, format!("call {}, {state}: {what}", self.call)))?;
        }
        Ok(())
    }

    /// The messages that a reader in another process sees while the writer runs and only durable ones are
    /// visible.
    fn look(&self) -> Result<usize, String> {
        let limit = self.history.limit(self.call);
        let durable_only = self.case.options.durable_only();
        if !(durable_only || limit < usize::MAX) || !self.history.is_open(self.call) {
            return Ok(0);
        }
        let world = World::on(self.vfs.look().map_err(explain)?);
        let before = world.vfs.fingerprint();
        let store = world.open(OpenMode::Read, &self.case.options).map_err(explain)?;
        let seen = check::compare_log(&store, &self.history.records)
            .map_err(|what| format!("call {}, beside the writer: {what}", self.call))?;
        abandon(&store);
        add(&self.counts.looks, 1);
        if world.vfs.fingerprint() != before {
            return Err(format!("call {}: a reader changed the disk", self.call));
        }
        if seen > limit {
            return Err(format!("call {}: a reader sees {seen} records, {limit} are confirmed", self.call));
        }
        Ok(if durable_only { seen } else { 0 })
    }

    /// Copies the disk of `state` to a real folder.
    fn show(&self, state: &State) -> Result<(), String> {
        let folder = std::env::temp_dir().join(format!("mqsim-{}-{}", self.case.name, self.call));
        write_out(&state.image(self.vfs)?.vfs, Path::new("/"), &folder).map_err(explain)?;
        println!("the disk is in {}", folder.display());
        Ok(())
    }

    /// A replay tries `everything`. Otherwise chance picks.
    fn check(&self, state: &State, seen: usize, everything: bool, depth: &mut u32) -> Result<(), String> {
        let image = state.image(self.vfs)?;
        let mut need = if image.kill {
            self.history.after_kill(self.call)
        } else {
            self.history.after_power_loss(self.call)
        };
        need.least = need.least.max(seen);
        let fingerprint = image.vfs.fingerprint() ^ u64::from(image.kill) << 63;
        // The same bytes with more records to keep are a different question.
        let question = fingerprint ^ (need.least as u64).wrapping_mul(0xA24B_AED4_963E_E407);
        if !self.counts.is_new(&image, question) && !everything {
            return Ok(());
        }
        let records = &self.history.records;
        let options = &self.case.options;
        contract::image(&image, self.history, self.call, options)?;
        let pristine = image.vfs.kill().map_err(explain)?;
        let recovered = recover(&image.vfs, options, records, need)?;
        add(&self.counts.opens, 1);
        let tail = contract::tail(&pristine, &recovered.store)?;
        contract::tail_is_kept(&tail, &recovered.world.vfs)?;
        if !contract::tail(&recovered.world.vfs, &recovered.store)?.is_empty() {
            return Err("recovery left bytes behind the end of the log".to_owned());
        }
        if self.call > self.history.topics_at {
            contract::topics(&recovered.store)?;
        }
        let mut rng = Rng::new(fingerprint);
        let extra = Recoveries { options, records, counts: self.counts };
        let (count, recovered_min) = (recovered.count, recovered.min);
        if (rng.below(self.effort.thorough_one_in) == 0) | everything {
            extra.twice(&recovered, count)?;
            extra.without_derived(&pristine, need, &mut rng)?;
            extra.reader(&pristine, need, image.kill && tail.is_empty())?;
        }
        if rng.chance(4) | everything {
            // A killed process has deleted these files only in the cache.
            let min_from = if image.kill { need.min_from } else { recovered_min };
            extra.again(recovered, min_from, &mut rng)?;
        }
        if (rng.below(self.effort.nested_one_in) == 0) | everything {
            *depth = 1;
            let least = if image.kill { self.history.after_power_loss(self.call).least } else { count };
            // So may the names of deleted files.
            let min_from = if image.kill { need.min_from } else { recovered_min };
            let need = Need { least, most: count, min_from, min_to: recovered_min };
            // After a kill, the tail was only in the cache, and the next crash may remove it.
            let tail = if image.kill { &[][..] } else { &tail[..] };
            extra.inside(&pristine, need, tail, &mut rng, self.effort.depth, depth)?;
        }
        match image.vfs.violations().first() {
            Some(what) => Err(what.clone()),
            None => Ok(()),
        }
    }
}

/// Copies a simulated folder to a real one.
fn write_out(vfs: &SimVfs, from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in vfs.list(from)? {
        let (from, to) = (from.join(&entry.name), to.join(&entry.name));
        match entry.stat.kind {
            FileKind::Directory => write_out(vfs, &from, &to)?,
            _ => std::fs::write(&to, vfs.read_file(&from, 1 << 30)?)?,
        }
    }
    Ok(())
}

/// The steps after the first recovery of an image.
struct Recoveries<'a> {
    options: &'a StoreOptions,
    records: &'a [Rec],
    counts: &'a Counts,
}

impl Recoveries<'_> {
    fn recover(&self, image: &SimVfs, records: &[Rec], need: Need) -> Result<check::Recovered, String> {
        add(&self.counts.opens, 1);
        recover(image, self.options, records, need)
    }

    /// Appends three times, crashes and recovers again. Everything found before is still there.
    fn again(&self, recovered: check::Recovered, min_from: u64, rng: &mut Rng) -> Result<(), String> {
        let (count, min_to) = (recovered.count, recovered.min);
        let model = recovered.append_three(self.records, self.options)?;
        let state = match rng.below(4) {
            0 => State::kill(),
            1 | 2 => State::all_old(),
            _ => State::chance(rng),
        };
        let image = state.image(&recovered.world.vfs)?;
        drop(recovered);
        let keeps_all = image.kill || self.options.durable_only();
        let least = if keeps_all { count + 3 } else { count };
        let need = Need { least, most: count + 3, min_from, min_to };
        self.recover(&image.vfs, &model, need).map(|_| ()).map_err(|what| format!("then {state}: {what}"))
    }

    /// A second recovery changes nothing in the log.
    fn twice(&self, first: &check::Recovered, count: usize) -> Result<(), String> {
        let again = first.kill()?;
        let before = contract::log_bytes(&again);
        let need = Need { least: count, most: count, min_from: first.min, min_to: first.min };
        self.recover(&again, self.records, need)?;
        if contract::log_bytes(&again) != before {
            return Err("a second recovery changed the log".to_owned());
        }
        Ok(())
    }

    /// Derived files may be lost.
    fn without_derived(&self, pristine: &SimVfs, need: Need, rng: &mut Rng) -> Result<(), String> {
        let image = pristine.kill().map_err(explain)?;
        // Only the files of a queue without records know its end.
        let left = |queue: &(&str, i32)| {
            let held = self.records.iter().take(need.least).filter(|rec| rec.queue() == *queue);
            let mut offsets = held.filter_map(|rec| Some(rec.placed.as_ref()?.commit_log_offset));
            offsets.any(|offset| offset >= need.min_to)
        };
        let keep_queues = need.min_to > 0 && !QUEUES.iter().all(left);
        let lost = contract::lose_derived(&image, keep_queues, rng);
        self.recover(&image, self.records, need).map(|_| ()).map_err(|what| format!("without {lost}: {what}"))
    }

    /// A reader sees a prefix too, and changes nothing.
    fn reader(&self, pristine: &SimVfs, need: Need, whole_log: bool) -> Result<(), String> {
        let world = World::on(pristine.kill().map_err(explain)?);
        let before = world.vfs.fingerprint();
        let store = match world.open(OpenMode::Read, self.options) {
            Ok(store) => store,
            // A crash during creation may leave no store at all.
            Err(_) if need.least == 0 => return Ok(()),
            Err(error) => return Err(format!("cannot be opened for reading: {error}")),
        };
        let told = |what| format!("for a reader: {what}");
        let (whole, count) = check::compare_unrecovered(&store, self.records, need.least).map_err(told)?;
        if whole < need.least || count > need.most {
            return Err(format!("a reader finds {whole} records and then {}; {need:?}", count - whole));
        }
        if whole == count && whole_log {
            check::compare_derived(&store, self.records.get(..count).unwrap_or_default()).map_err(told)?;
        }
        if world.vfs.fingerprint() != before {
            return Err("a reader changed the disk".to_owned());
        }
        Ok(())
    }

    /// Interrupts recovery itself at some of its calls.
    fn inside(
        &self,
        pristine: &SimVfs,
        need: Need,
        tail: &[contract::Tail],
        rng: &mut Rng,
        depth: u32,
        reached: &mut u32,
    ) -> Result<(), String> {
        let probe = World::on(pristine.kill().map_err(explain)?);
        let store = probe.open(OpenMode::Create, self.options).map_err(explain)?;
        abandon(&store);
        let calls = probe.vfs.operations();
        for _ in 0..2 {
            let call = 1 + rng.below(calls);
            let world = World::on(pristine.kill().map_err(explain)?);
            world.vfs.freeze_at(call);
            let store = world.open(OpenMode::Create, self.options).map_err(explain)?;
            abandon(&store);
            let Some(moment) = world.vfs.take_frozen() else { continue };
            for state in [State::all_old(), State::chance(rng), State::kill()] {
                let image = state.image(&moment)?;
                let next = image.vfs.kill().map_err(explain)?;
                let told = |what| format!("recovery ended before its call {call}, {state}: {what}");
                add(&self.counts.nested, 1);
                contract::tail_is_kept(tail, &image.vfs).map_err(told)?;
                let recovered = self.recover(&image.vfs, self.records, need).map_err(told)?;
                let count = recovered.count;
                contract::tail_is_kept(tail, &recovered.world.vfs).map_err(told)?;
                self.again(recovered, need.min_from, rng).map_err(told)?;
                if depth > 1 && rng.chance(1) {
                    *reached += 1;
                    let need = Need { least: need.least.min(count), most: count, ..need };
                    self.inside(&next, need, tail, rng, depth - 1, reached).map_err(told)?;
                }
            }
        }
        Ok(())
    }
}

/// Runs `cases` in this thread until `stop`.
pub(crate) fn explore_here(
    cases: &[Case],
    effort: &Effort,
    counts: &Counts,
    stop: &dyn Fn() -> bool,
) -> Result<(), Violation> {
    let mut open = cases.iter().take_while(|_| !stop());
    open.try_for_each(|case| explore(case, effort, counts, None, stop))
}

/// Runs `cases` on one thread for each core, until all are done or until `until`.
pub(crate) fn explore_all(
    cases: &[Case],
    effort: &Effort,
    counts: &Counts,
    until: Duration,
) -> Result<usize, Violation> {
    let started = Instant::now();
    let (next, stopped) = (AtomicUsize::new(0), AtomicBool::new(false));
    let first: Mutex<Option<Violation>> = Mutex::new(None);
    let stop = || stopped.load(Ordering::Relaxed) || started.elapsed() > until;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop() {
                    let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
                    if let Err(violation) = explore(case, effort, counts, None, &stop) {
                        stopped.store(true, Ordering::Relaxed);
                        first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(violation);
                    }
                }
            });
        }
    });
    match first.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(violation) => Err(violation),
        None => Ok(next.load(Ordering::Relaxed).min(cases.len())),
    }
}
