//! Files outside a store, ended at any call or with any call failing: exports of parts and of lines, a copied folder, and
//! an object that is created if it is absent. Each has one commit or none, and a commit is there after a loss of power.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore::results::partial::{Members, PartialFile, PartialFolder, remove_state};
use mqstore_io::sim::{Fault, SimVfs};
use mqstore_io::target::create;
use mqstore_io::{FolderTarget, ManualClock, Target, Vfs, commit};

use crate::explore::{Violation, guarded};
use crate::moments::{End, Ends};
use crate::states::{Limits, Rng, State};
use crate::workload::{World, explain};

const LIMITS: Limits = Limits { all_up_to: 2, singles: 4, random: 2, cuts: 1 };

/// Parts of the export, and files of the copied folder.
const PARTS: usize = 3;

fn out(name: &str) -> PathBuf {
    Path::new("/data/out").join(name)
}

fn content(name: &str) -> Vec<u8> {
    format!("content of {name} ").repeat(700).into_bytes()
}

fn exists(vfs: &SimVfs, path: &Path) -> bool {
    vfs.stat(path).is_ok()
}

fn is_complete(vfs: &SimVfs, path: &Path, name: &str) -> bool {
    vfs.read_file(path, 1 << 20).is_ok_and(|found| found == content(name))
}

/// Writes a file as another library does: in pieces, without a sync.
fn write(vfs: &SimVfs, path: &Path, name: &str) -> io::Result<()> {
    let _ = vfs.remove_file(path);
    let file = vfs.create_new(path)?;
    let content = content(name);
    let (first, second) = content.split_at(content.len() / 3);
    file.write_all_at(first, 0)?;
    file.write_all_at(second, first.len() as u64)
}

/// The folder of a part: with partitions, parts are in folders.
fn folder_of(number: u64) -> &'static str {
    ["", "topic=a/queue_id=1/day=x", "topic=b"].into_iter().nth(number as usize).unwrap_or_default()
}

fn folder(vfs: &SimVfs) -> PartialFolder {
    PartialFolder::new(Arc::new(vfs.clone()), &out("rows"), "call", "rows")
}

/// The number of parts, or of bytes, that a state counts.
fn counted(members: Option<Members>, name: &str) -> u64 {
    members.and_then(|members| members.get(name)?.as_u64()).unwrap_or(0)
}

/// The number that the state of an export has on the disk, also if a later call would not use it.
fn counted_on_disk(vfs: &SimVfs, state: &str, name: &str) -> u64 {
    let content = vfs.read_file(&out(state), 1000).unwrap_or_default();
    let text = String::from_utf8_lossy(&content).into_owned();
    let number = text.split_once(&format!("\"{name}\":")).map(|(_, after)| after);
    let digits = number.unwrap_or_default().split(|one: char| !one.is_ascii_digit()).next();
    digits.unwrap_or_default().parse().unwrap_or(0)
}

/// Exports parts, or resumes an interrupted export.
fn export(vfs: &SimVfs) -> io::Result<()> {
    if exists(vfs, &out("rows")) {
        return remove_state(vfs, &out("rows"));
    }
    vfs.create_dir_all(&out("rows.partial"))?;
    let mut folder = folder(vfs);
    folder.resume(counted(folder.left(), "parts"))?;
    while folder.parts() < PARTS as u64 {
        let first = folder.parts();
        // Two parts, then one.
        for number in first..(first + 2).min(PARTS as u64) {
            write(vfs, &folder.next_path(folder_of(number))?, &format!("row {number}"))?;
        }
        folder.add(Members::new(), (first == 0).then_some(b"rules"))?;
    }
    folder.publish()
}

/// Exports lines to a file, or resumes an interrupted export.
fn export_lines(vfs: &SimVfs) -> io::Result<()> {
    if exists(vfs, &out("lines")) {
        return remove_state(vfs, &out("lines"));
    }
    let mut file = PartialFile::open(Arc::new(vfs.clone()), &out("lines"), "call")?;
    let bytes = counted(file.left(), "bytes");
    file.resume(bytes)?;
    let content = content("lines");
    for piece in content.get(bytes as usize..).unwrap_or_default().chunks(3000) {
        file.write(piece)?;
        file.save(Members::new(), Some(b"rules"))?;
    }
    file.publish().map(drop)
}

fn check_lines(vfs: &SimVfs, is_done: bool) -> Result<(), String> {
    let (dest, partial) = (out("lines"), out("lines.partial"));
    if exists(vfs, &dest) {
        let whole = is_complete(vfs, &dest, "lines");
        return if whole { Ok(()) } else { Err("the file has its name and lacks lines".to_owned()) };
    }
    if is_done {
        return Err("an export of lines that had ended has no name".to_owned());
    }
    if !exists(vfs, &partial) {
        return Ok(());
    }
    let bytes = counted_on_disk(vfs, "lines.partial.state", "bytes") as usize;
    let found = vfs.read_file(&partial, 1 << 20).map_err(explain)?;
    if found.len() >= bytes && found.get(..bytes) == content("lines").get(..bytes) {
        return Ok(());
    }
    Err(format!("the state counts {bytes} bytes, which are not those of the lines"))
}

fn check_export(vfs: &SimVfs, is_done: bool) -> Result<(), String> {
    let is_part = |name: &str, number: u64| {
        let path = out(name).join(folder_of(number)).join(format!("part-{number:05}.rows"));
        is_complete(vfs, &path, &format!("row {number}"))
    };
    if exists(vfs, &out("rows")) {
        let all = (0..PARTS as u64).all(|number| is_part("rows", number));
        return if all { Ok(()) } else { Err("the export has its name and lacks rows".to_owned()) };
    }
    if is_done {
        return Err("an export that had ended has no name".to_owned());
    }
    if !exists(vfs, &out("rows.partial")) {
        // The next call begins again.
        return Ok(());
    }
    let counted = counted_on_disk(vfs, "rows.partial.state", "parts");
    let lost = (0..counted).find(|number| !is_part("rows.partial", *number));
    lost.map_or(Ok(()), |number| Err(format!("the state counts part {number}, which is not complete")))
}

/// The files of a copied folder.
fn copied(number: usize) -> (PathBuf, String) {
    (PathBuf::from(format!("folder{}/file{number}", number % 2)), format!("object {number}"))
}

/// Copies a folder, and a file next to it, which is published first. Returns whether this call has published it.
fn copy(vfs: &SimVfs) -> io::Result<bool> {
    if exists(vfs, &out("copied")) {
        return Ok(false);
    }
    let partial = out("copied.partial");
    vfs.create_dir_all(&partial)?;
    for number in 0..PARTS {
        let (path, name) = copied(number);
        vfs.create_dir_all(partial.join(&path).parent().unwrap_or(&partial))?;
        write(vfs, &partial.join(path), &name)?;
    }
    write(vfs, &out("copied.partial.mapping"), "mapping")?;
    commit::publish_file(vfs, &out("copied.partial.mapping"), &out("copied.mapping"))?;
    commit::publish_folder(vfs, &partial, &out("copied"))?;
    Ok(true)
}

fn check_copy(vfs: &SimVfs, is_done: bool) -> Result<(), String> {
    let mapping = out("copied.mapping");
    if exists(vfs, &mapping) && !is_complete(vfs, &mapping, "mapping") {
        return Err("the mapping has its name and is not complete".to_owned());
    }
    if !exists(vfs, &out("copied")) {
        return if is_done { Err("a copy that had ended has no name".to_owned()) } else { Ok(()) };
    }
    if !exists(vfs, &mapping) {
        return Err("the copied folder has its name, and the mapping has none".to_owned());
    }
    let lost = (0..PARTS).map(copied).find(|(path, name)| !is_complete(vfs, &out("copied").join(path), name));
    lost.map_or(Ok(()), |(path, _)| {
        Err(format!("the copied folder has its name and lacks {}", path.display()))
    })
}

/// The calls at which each result was complete.
#[derive(Debug, Default)]
struct Done {
    export: Option<u64>,
    lines: Option<u64>,
    copy: Option<u64>,
}

fn session(world: &World) -> Result<Done, String> {
    let vfs = &world.vfs;
    let mut done = Done::default();
    export(vfs).map_err(explain)?;
    done.export = Some(vfs.operations());
    export_lines(vfs).map_err(explain)?;
    done.lines = Some(vfs.operations());
    copy(vfs).map_err(explain)?;
    done.copy = Some(vfs.operations());
    Ok(done)
}

fn check(end: &End<'_>, done: &Done, rng: &mut Rng) -> Result<(), String> {
    let world = end.world()?;
    let was = |call: Option<u64>| call.is_some_and(|call| call < end.call);
    check_export(&world.vfs, was(done.export))?;
    check_lines(&world.vfs, was(done.lines))?;
    check_copy(&world.vfs, was(done.copy))?;
    continued(&world, rng)
}

/// The next calls complete everything, also if they are ended once.
fn continued(world: &World, rng: &mut Rng) -> Result<(), String> {
    let first = World::on(world.vfs.kill().map_err(explain)?);
    let has_copied = session_again(&first)?;
    let after = World::on(State::chance(rng).image(&first.vfs)?.vfs);
    check_export(&after.vfs, true)?;
    check_lines(&after.vfs, true)?;
    check_copy(&after.vfs, has_copied)
}

fn session_again(world: &World) -> Result<bool, String> {
    let vfs = &world.vfs;
    export(vfs).map_err(|error| format!("the export again: {error}"))?;
    export_lines(vfs).map_err(|error| format!("the export of lines again: {error}"))?;
    copy(vfs).map_err(|error| format!("the copy again: {error}"))
}

/// Ends the calls after each of their steps.
pub(crate) fn hunt(step: usize, stop: &dyn Fn() -> bool) -> Result<u64, Violation> {
    let ends = Ends { name: "committing", replay: "committing".to_owned(), limits: LIMITS, step, stop };
    let world = ends.beside(|| Ok::<_, String>(World::new(false)))?;
    ends.each(&world, session, check)
}

/// Lets each call fail, once or from then on, and continues after a kill.
fn failing() -> Result<u64, String> {
    let begin = World::new(false).vfs;
    let mut tried = 0;
    for nth in 1.. {
        for sticky in [false, true] {
            let world = World::on(begin.kill().map_err(explain)?);
            let fault = Fault::nth(nth);
            world.vfs.inject(if sticky { fault.sticky() } else { fault });
            let done = session_again(&world);
            let fired = world.vfs.faults_fired();
            world.vfs.clear_faults();
            if fired == 0 {
                done?;
                return Ok(tried);
            }
            let mut rng = Rng::new(nth);
            let at = |what: String| format!("call {nth} fails, {sticky}: {what}");
            check_export(&world.vfs, false).map_err(at)?;
            check_lines(&world.vfs, false).map_err(at)?;
            check_copy(&world.vfs, false).map_err(at)?;
            continued(&world, &mut rng).map_err(at)?;
            tried += 1;
        }
    }
    Ok(tried)
}

/// Creates an object of a target in a folder while a call fails. If the creation returns the object, a loss of power keeps
/// it.
fn creating() -> Result<u64, String> {
    let (path, content) = ("v1/_manifest/1", b"a manifest");
    let begin = World::new(false).vfs;
    for nth in 1.. {
        let vfs = Arc::new(begin.kill().map_err(explain)?);
        let folder = |vfs: Arc<SimVfs>| FolderTarget::new(vfs, &out("cold"), "cold".to_owned());
        vfs.inject(Fault::nth(nth));
        let created = create(&folder(Arc::clone(&vfs)), &ManualClock::new(0), path, content);
        let fired = vfs.faults_fired();
        vfs.clear_faults();
        if let Ok(found) = created {
            let lost = vfs.crash_with(&mut |_| false).map_err(explain)?;
            let kept = folder(Arc::new(lost)).get(path).map_err(|error| error.to_string())?;
            if kept.as_deref() != Some(content) {
                return Err(format!(
                    "call {nth} fails, the creation returns {found:?}, and the object is lost"
                ));
            }
        }
        if fired == 0 {
            return Ok(nth - 1);
        }
    }
    Ok(0)
}

/// Creations whose calls fail.
pub(crate) fn hunt_created(stop: &dyn Fn() -> bool) -> Result<u64, Violation> {
    let ends = Ends { name: "committing", replay: "committing".to_owned(), limits: LIMITS, step: 1, stop };
    ends.beside(creating)
}

#[test]
fn what_a_creation_returns_is_durable_whichever_call_fails() {
    let tried = guarded(creating).unwrap_or_else(|what| panic!("{what}"));
    assert!(tried > 5, "{tried} failing calls");
}

#[test]
fn each_result_has_one_commit_or_none() {
    let tried = crate::crashes::must_hold(hunt(crate::crashes::short_calls_step(), &|| false));
    println!("committing: {tried} states");
    assert!(tried > 500, "{tried} states");
}

#[test]
fn each_result_whose_calls_fail_has_one_commit_or_none() {
    let tried = guarded(failing).unwrap_or_else(|what| panic!("{what}"));
    println!("committing: {tried} failing calls");
    assert!(tried > 100, "{tried} failing calls");
}
