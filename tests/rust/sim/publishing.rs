//! Results that are published in folders and fetched from there, ended at any call or with any call failing; and attempts
//! on a target that behaves badly. Each has one commit or none, and a commit is there after a loss of power.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore::error::StoreError;
use mqstore::results::clean::clean;
use mqstore::results::fetch::{FetchedTo, fetch, published};
use mqstore::results::manifest::Manifest;
use mqstore::results::objects::{FOLDER, NAME};
use mqstore::results::publication::{Publication, Uploaded};
use mqstore_io::sim::{Fault, SimVfs};
use mqstore_io::target::{HostileTarget, Mischief};
use mqstore_io::{FolderTarget, ManualClock, Target, Vfs};

use crate::explore::{Violation, guarded};
use crate::moments::{End, Ends};
use crate::states::{Limits, Rng, State};
use crate::workload::{World, explain};

const LIMITS: Limits = Limits { all_up_to: 2, singles: 4, random: 2, cuts: 1 };

/// The files of a store, and a folder without files.
const FILES: [&str; 3] = ["a", "sub/b", "sub/c"];
const EMPTY: &str = "sub/empty";

/// The same files as parts that other programs read.
const PARTS: [&str; 3] = [
    "topic=a/queue_id=0/day=x/part-00000.rows",
    "part-00001.rows",
    "topic=b/queue_id=1/day=x/part-00002.rows",
];

/// The form of a result.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Store,
    Parts,
}

use Form::{Parts, Store};

impl Form {
    /// The folder to which the result is published.
    fn folder(self) -> &'static str {
        if self == Store { "cold" } else { "lake" }
    }

    /// The folder to which it is fetched.
    fn out(self) -> PathBuf {
        at(if self == Store { "out" } else { "parts" })
    }

    /// The files of the result, and their contents.
    fn files(self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let paths = if self == Store { FILES } else { PARTS };
        paths.into_iter().zip(FILES)
    }
}

fn at(name: &str) -> PathBuf {
    Path::new("/data").join(name)
}

fn content(name: &str) -> Vec<u8> {
    let mut content = format!("content of {name} ").repeat(400).into_bytes();
    // The zero bytes at the end are no part of the object.
    content.resize(9000, 0);
    content
}

fn exists(vfs: &SimVfs, path: &Path) -> bool {
    vfs.stat(path).is_ok()
}

fn is_complete(vfs: &SimVfs, path: &Path, name: &str) -> bool {
    vfs.read_file(path, 1 << 20).is_ok_and(|found| found == content(name))
}

/// A durable directory to publish.
fn begin() -> Result<World, String> {
    let world = World::new(false);
    let made = || {
        world.vfs.create_dir_all(&at("home").join(EMPTY))?;
        for name in FILES {
            let file = world.vfs.create_new(&at("home").join(name))?;
            file.write_all_at(&content(name), 0)?;
            file.sync_all()?;
        }
        ["home/sub", "home", ""].iter().try_for_each(|folder| world.vfs.sync_dir(&at(folder)))
    };
    made().map_err(explain)?;
    Ok(world)
}

fn folder(vfs: &SimVfs, form: Form) -> Arc<FolderTarget> {
    Arc::new(FolderTarget::new(Arc::new(vfs.clone()), &at(form.folder()), form.folder().to_owned()))
}

/// Publishes the directory: as a store, with one of its files as the mapping; or its files as parts.
fn publish(
    target: Arc<dyn Target>,
    vfs: &SimVfs,
    form: Form,
    identity: Option<&str>,
) -> Result<Manifest, StoreError> {
    let format = if form == Store { "store" } else { "parquet" };
    let publication = Publication::new(target, Arc::new(vfs.clone()), format, identity.map(str::to_owned));
    let done = publication.begin().and_then(|found| match found {
        Some(found) => Ok(found),
        None => {
            if form == Store {
                publication.add_directory(&at("home"), 1)?;
                publication.add_mapping(&at("home/a"))?;
            } else {
                form.files()
                    .try_for_each(|(path, name)| publication.add(path, &at("home").join(name), false))?;
            }
            publication.commit(&ManualClock::new(1), Default::default(), Uploaded::default())
        }
    });
    publication.abandon();
    done
}

/// The manifests name complete objects.
fn check_published(vfs: &SimVfs, are_done: bool) -> Result<(), String> {
    [Store, Parts].into_iter().try_for_each(|form| check_form(vfs, form, are_done))
}

fn check_form(vfs: &SimVfs, form: Form, is_done: bool) -> Result<(), String> {
    let target = folder(vfs, form);
    if target.get(NAME).map_err(|error| error.to_string())?.is_none() {
        return if is_done { Err("a result that had been published is gone".to_owned()) } else { Ok(()) };
    }
    let manifest = published(&*target).map_err(|error| format!("the published result: {error}"))?;
    for (file, name) in manifest.objects().zip(FILES.iter().chain(&["a"])) {
        let mut found = vfs.read_file(&at(form.folder()).join(&file.object), 1 << 20).unwrap_or_default();
        found.resize(9000, 0);
        if found != content(name) {
            return Err(format!("the manifest names {}, which is not complete", file.object));
        }
    }
    let count = if form == Store { 4 } else { 3 };
    if manifest.objects().count() == count { Ok(()) } else { Err("the manifest lacks files".to_owned()) }
}

/// Other programs see exactly the files of the result.
fn check_visible(target: &dyn Target, manifest: &Manifest) -> Result<(), String> {
    let listed = target.list("").map_err(|error| error.to_string())?;
    let mut visible: Vec<&str> = listed.iter().map(|one| one.path.as_str()).collect();
    visible.retain(|path| !path.starts_with(FOLDER));
    let mut named: Vec<&str> = manifest.objects().map(|file| file.object.as_str()).collect();
    named.retain(|path| !path.starts_with(FOLDER));
    visible.sort_unstable();
    named.sort_unstable();
    if visible == named { Ok(()) } else { Err(format!("other programs see {visible:?}, not {named:?}")) }
}

/// Fetches the published result, and its mapping, which gets its name first.
fn fetch_from(target: &dyn Target, vfs: &SimVfs, form: Form) -> Result<(), StoreError> {
    let home = form.out();
    if exists(vfs, &home) {
        return Ok(());
    }
    let manifest = published(target)?;
    let partial = home.with_extension("partial");
    vfs.create_dir_all(&partial).map_err(|error| StoreError::io(&partial, "making a folder", error))?;
    let to = FetchedTo {
        partial: &partial,
        home: &home,
        partial_mapping: &home.with_extension("partial.mapping"),
        mapping: &home.with_extension("mapping"),
    };
    fetch(target, vfs, &manifest, &to, 2, &mut |_| Ok(())).map(drop)
}

fn check_fetched(vfs: &SimVfs, form: Form, is_done: bool) -> Result<(), String> {
    let home = form.out();
    let mapping = home.with_extension("mapping");
    if exists(vfs, &mapping) && !is_complete(vfs, &mapping, "a") {
        return Err("the mapping has its name and is not complete".to_owned());
    }
    if !exists(vfs, &home) {
        return if is_done { Err("a fetch that had ended has no name".to_owned()) } else { Ok(()) };
    }
    if form == Store && !exists(vfs, &mapping) {
        return Err("the fetched folder has its name, and the mapping has none".to_owned());
    }
    if form == Store && !exists(vfs, &home.join(EMPTY)) {
        return Err("the fetched folder has its name and lacks its empty folder".to_owned());
    }
    let lost = form.files().find(|(path, name)| !is_complete(vfs, &home.join(path), name));
    lost.map_or(Ok(()), |(name, _)| Err(format!("the fetched folder has its name and lacks {name}")))
}

fn check_both_fetched(vfs: &SimVfs, are_done: bool) -> Result<(), String> {
    [Store, Parts].into_iter().try_for_each(|form| check_fetched(vfs, form, are_done))
}

/// The calls at which both results were complete.
#[derive(Debug, Default)]
struct Done {
    publication: Option<u64>,
    fetch: Option<u64>,
}

fn session(world: &World) -> Result<Done, String> {
    let vfs = &world.vfs;
    let mut done = Done::default();
    for form in [Store, Parts] {
        let manifest = publish(folder(vfs, form), vfs, form, Some("call"));
        let manifest = manifest.map_err(|error| format!("the publication: {error}"))?;
        if vfs.faults_fired() == 0 {
            check_visible(&*folder(vfs, form), &manifest)?;
        }
    }
    done.publication = Some(vfs.operations());
    for form in [Store, Parts] {
        fetch_from(&*folder(vfs, form), vfs, form).map_err(|error| format!("the fetch: {error}"))?;
    }
    done.fetch = Some(vfs.operations());
    Ok(done)
}

fn check(end: &End<'_>, done: &Done, rng: &mut Rng) -> Result<(), String> {
    let world = end.world()?;
    let was = |call: Option<u64>| call.is_some_and(|call| call < end.call);
    check_published(&world.vfs, was(done.publication))?;
    check_both_fetched(&world.vfs, was(done.fetch))?;
    continued(&world, rng)
}

/// The next calls complete everything, also after a kill.
fn continued(world: &World, rng: &mut Rng) -> Result<(), String> {
    let first = World::on(world.vfs.kill().map_err(explain)?);
    session(&first).map_err(|what| format!("again: {what}"))?;
    let after = World::on(State::chance(rng).image(&first.vfs)?.vfs);
    check_published(&after.vfs, true)?;
    check_both_fetched(&after.vfs, true)
}

fn ends(step: usize, stop: &dyn Fn() -> bool) -> Ends<'_> {
    Ends { name: "publishing", replay: "publishing".to_owned(), limits: LIMITS, step, stop }
}

/// Ends the calls after each of their steps.
pub(crate) fn hunt(step: usize, stop: &dyn Fn() -> bool) -> Result<u64, Violation> {
    let ends = ends(step, stop);
    let world = ends.beside(begin)?;
    ends.each(&world, session, check)
}

/// Lets each call fail, once or from then on, and continues after a kill.
fn failing(stop: &dyn Fn() -> bool) -> Result<u64, String> {
    let begin = begin()?.vfs;
    let mut tried = 0;
    for (nth, sticky) in (1..).flat_map(|nth| [(nth, false), (nth, true)]) {
        let world = World::on(begin.kill().map_err(explain)?);
        let fault = Fault::nth(nth);
        world.vfs.inject(if sticky { fault.sticky() } else { fault });
        let done = session(&world);
        let fired = world.vfs.faults_fired();
        world.vfs.clear_faults();
        if fired == 0 {
            done?;
            return Ok(tried);
        }
        if stop() {
            return Ok(tried);
        }
        let mut rng = Rng::new(nth);
        let at = |what: String| format!("call {nth} fails, {sticky}: {what}");
        check_published(&world.vfs, false).map_err(at)?;
        check_both_fetched(&world.vfs, false).map_err(at)?;
        continued(&world, &mut rng).map_err(at)?;
        tried += 1;
    }
    Ok(tried)
}

/// Calls that fail.
pub(crate) fn hunt_failing(stop: &dyn Fn() -> bool) -> Result<u64, Violation> {
    ends(1, stop).beside(|| failing(stop))
}

/// Attempts on a target that behaves badly, and a clean during one of them. Returns whether one has won.
fn hostile(seed: u64) -> Result<bool, String> {
    let world = begin()?;
    let target = Arc::new(HostileTarget::new(seed));
    let mut rng = Rng::new(seed);
    let form = if rng.chance(4) { Store } else { Parts };
    let mut part = |most: u64| if rng.chance(3) { rng.below(most) } else { 0 };
    target.set(Mischief::of(&mut part));
    let tried: Vec<_> =
        (0..3).map(|_| publish(Arc::clone(&target) as _, &world.vfs, form, None).map_err(explain)).collect();
    target.calm();
    let cleaned = || clean(&*target, &world.vfs, &*world.clock, 0, false).map(drop).map_err(explain);
    let winners: Vec<&Manifest> = tried.iter().flatten().collect();
    match published(&*target) {
        Ok(found) if winners.iter().all(|one| one.attempt == found.attempt) && winners.len() <= 1 => {
            cleaned()?;
            check_visible(&*target, &found)?;
            // A damaged byte is found by the digest.
            match fetch_from(&*target, &world.vfs, form) {
                Err(StoreError::Corrupt { .. }) => Ok(true),
                fetched => fetched
                    .map_err(explain)
                    .and_then(|()| check_fetched(&world.vfs, form, true))
                    .map(|()| true),
            }
        }
        Ok(found) => Err(format!("seed {seed}: {winners:?} have won, and {found:?} is published")),
        Err(error) if !winners.is_empty() => Err(format!("seed {seed}: {winners:?} has won: {error}")),
        Err(_) => {
            if target.get(NAME).map_err(|error| error.to_string())?.is_none() {
                cleaned()?;
                let left = target.list("").map_err(|error| error.to_string())?;
                return if left.is_empty() { Ok(false) } else { Err(format!("a clean has left {left:?}")) };
            }
            Ok(false)
        }
    }
}

/// Attempts on targets that behave badly. Returns how many of them have won.
pub(crate) fn hunt_targets(seeds: u64, stop: &dyn Fn() -> bool) -> Result<u64, Violation> {
    let ends = ends(1, stop);
    (0..seeds)
        .take_while(|_| !stop())
        .try_fold(0, |won, seed| Ok(won + u64::from(ends.beside(|| hostile(seed))?)))
}

#[test]
fn a_result_has_one_commit_or_none() {
    let tried = crate::crashes::must_hold(hunt(crate::crashes::short_calls_step(), &|| false));
    println!("publishing: {tried} states");
    assert!(tried > 200, "{tried} states");
}

#[test]
fn a_result_whose_calls_fail_has_one_commit_or_none() {
    let tried = guarded(|| failing(&|| false)).unwrap_or_else(|what| panic!("{what}"));
    println!("publishing: {tried} failing calls");
    assert!(tried > 100, "{tried} failing calls");
}

#[test]
fn of_attempts_on_a_target_that_behaves_badly_one_wins_or_none() {
    let seeds = 300;
    let won = crate::crashes::must_hold(hunt_targets(seeds, &|| false));
    println!("publishing: {won} of {seeds} won");
    assert!(won > 50 && won < seeds, "{won}");
}
