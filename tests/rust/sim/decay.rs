//! Changes bytes of a store after a close or a kill.
//!
//! A damaged log is refused and unchanged, or it opens with every record. The same is true for a damaged
//! metadata log. Damage of derived files never matters. No read returns a record that was not appended.

use mqstore_base::error::StoreError;
use mqstore_base::options::{Durability, OpenMode, StoreOptions};
use mqstore_io::{FileKind, SimVfs, Vfs};
use std::path::{Path, PathBuf};

use crate::check::{self, abandon, compare_derived};
use crate::crashes::must_hold;
use crate::explore::{Violation, guarded};
use crate::states::Rng;
use crate::workload::{Case, History, Op, Running, World, explain, root, tiny};

const OPS: [Op; 7] =
    [Op::Append(30), Op::Batch(4, 90), Op::Edge(8), Op::Append(200), Op::Flush, Op::Append(0), Op::Reopen];

/// A store after its run, as files that no process has open.
struct Subject {
    vfs: SimVfs,
    history: History,
    /// Whether the store was closed. If not, it was killed.
    closed: bool,
}

fn subject(closed: bool, record_crc: bool) -> Result<Subject, String> {
    let mut ops = OPS.to_vec();
    if !closed {
        ops.push(Op::Append(50));
    }
    let case = Case {
        name: "decay".to_owned(),
        options: StoreOptions { record_crc, ..tiny(Durability::Async) },
        ops,
        last_only: false,
    };
    let world = World::new(false);
    let (history, end) = Running::start(&case, &world)?.finish()?;
    let vfs = end.kill().map_err(explain)?;
    if closed {
        let world = World::on(vfs.clone());
        let store = world.open(OpenMode::ReadWrite, &case.options).map_err(explain)?;
        store.close().map_err(explain)?;
    }
    Ok(Subject { vfs, history, closed })
}

pub(crate) fn files_below(vfs: &SimVfs, folder: &Path, found: &mut Vec<(PathBuf, u64)>) {
    for entry in vfs.list(folder).unwrap_or_default() {
        let path = folder.join(&entry.name);
        match entry.stat.kind {
            FileKind::Directory => files_below(vfs, &path, found),
            _ => found.push((path, entry.stat.len)),
        }
    }
}

/// Flips bytes, one in `one_in` of each file, until `stop`. Counts the flips and the refusals.
pub(crate) fn hunt(one_in: u64, stop: &dyn Fn() -> bool) -> Result<(u64, u64), Violation> {
    let (mut tried, mut refused) = (0, 0);
    let mut rng = Rng::new(one_in);
    for closed in [true, false] {
        let subject = guarded(|| subject(closed, true)).map_err(|what| violation("start", what))?;
        guarded(|| fillers(&subject)).map_err(|what| violation("a header", what))?;
        guarded(|| bodies(closed)).map_err(|what| violation("a body", what))?;
        let mut files = Vec::new();
        files_below(&subject.vfs, &root(), &mut files);
        let bytes: u64 = files.iter().map(|(_, len)| len).sum();
        // Spread over all files, so that a hunt that ends early has tried each file.
        for _ in 0..bytes / one_in {
            if stop() {
                return Ok((tried, refused));
            }
            let (path, len) = &files[rng.below(files.len() as u64) as usize];
            let (at, mask) = (rng.below((*len).max(1)), 1 << rng.below(8));
            if *len == 0 {
                continue;
            }
            tried += 1;
            let outcome = guarded(|| flip(&subject, path, at, mask));
            let place = format!("byte {at} of {} ^ {mask}, closed: {closed}", path.display());
            refused += u64::from(outcome.map_err(|what| violation(&place, what))?);
        }
    }
    Ok((tried, refused))
}

fn violation(place: &str, what: String) -> Violation {
    Violation { replay: "decay:0:0:0".to_owned(), what: format!("decay of {place}: {what}") }
}

/// Whether the damaged store is refused for writing. Returns an error if it opens with wrong content.
fn flip(subject: &Subject, path: &Path, at: u64, mask: u8) -> Result<bool, String> {
    let vfs = subject.vfs.kill().map_err(explain)?;
    vfs.flip(path, at, mask).map_err(explain)?;
    let derived = ["index", "consumequeue", "batchconsumequeue"]
        .iter()
        .any(|folder| path.starts_with(root().join(folder)));
    let (log, meta) = (root().join("commitlog"), root().join("mqstore/meta"));
    let kept = if path.starts_with(&log) {
        Kept::Log
    } else if path.starts_with(&meta) {
        Kept::Metadata
    } else {
        Kept::Elsewhere
    };
    damaged(subject, &vfs, kept, derived)
}

/// The kind of file with the changed byte.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    Log,
    /// The metadata log, whose content is in no other file.
    Metadata,
    Elsewhere,
}

fn damaged(subject: &Subject, vfs: &SimVfs, kept: Kept, derived: bool) -> Result<bool, String> {
    let in_the_log = kept == Kept::Log;
    let records = &subject.history.records;
    let options = tiny(Durability::Async);
    let reader = World::on(vfs.kill().map_err(explain)?);
    let outcome = reader.open(OpenMode::Read, &options);
    if let Ok(store) = &outcome {
        let found =
            check::compare_unrecovered(store, records, 0).map_err(|what| format!("a reader: {what}"))?;
        if !in_the_log && found.1 != records.len() {
            return Err(format!("a reader finds {found:?} of {} records", records.len()));
        }
        abandon(store);
    }
    let before = vfs.fingerprint();
    let world = World::on(vfs.clone());
    let store = match world.open(OpenMode::ReadWrite, &options) {
        Ok(store) => store,
        Err(error) if kept == Kept::Elsewhere => {
            return Err(format!("refused although the log is whole: {error}"));
        }
        Err(StoreError::Corrupt { .. }) if vfs.fingerprint() == before => return Ok(true),
        Err(StoreError::Corrupt { .. }) => return Err("refused, and changed".to_owned()),
        Err(error) => return Err(format!("refused by another error: {error}")),
    };
    // An open does not read the log below the mark. A later read finds damage there and skips it.
    let (whole, count) = check::compare_unrecovered(&store, records, 0)?;
    let synced = subject.history.durable.last().map_or(0, |(_, count)| *count);
    let least = if subject.closed { records.len() } else { synced };
    if count + usize::from(in_the_log) < least {
        return Err(format!("opened with {count} of {least} records"));
    }
    // RocketMQ's queues and index have no checksums. With a damaged entry a read finds less, never a wrong
    // record.
    if whole == count && !derived {
        compare_derived(&store, &records[..count])?;
    }
    abandon(&store);
    Ok(false)
}

/// If records have no checksum of their own, the body checksum remains. The test flips a bit of each body.
fn bodies(closed: bool) -> Result<(), String> {
    const BODY_AT: u64 = 88;
    let subject = subject(closed, false)?;
    for rec in subject.history.records.iter().filter(|rec| !rec.body.is_empty()) {
        let Some(placed) = &rec.placed else { continue };
        let (base, at) = (placed.commit_log_offset / 4096 * 4096, placed.commit_log_offset % 4096);
        let path = root().join(format!("commitlog/{base:020}"));
        flip(&subject, &path, at + BODY_AT + rec.body.len() as u64 / 2, 1)?;
    }
    Ok(())
}

/// The magic code of a record becomes that of a filler. The header then has a length that does not match the
/// rest of the segment.
fn fillers(subject: &Subject) -> Result<(), String> {
    for rec in &subject.history.records {
        let Some(placed) = &rec.placed else { continue };
        let (base, at) = (placed.commit_log_offset / 4096 * 4096, placed.commit_log_offset % 4096);
        let path = root().join(format!("commitlog/{base:020}"));
        let vfs = subject.vfs.kill().map_err(explain)?;
        let old = vfs.read_file(&path, 1 << 20).map_err(explain)?;
        for (number, byte) in mqstore_format::MAGIC_BLANK.to_be_bytes().into_iter().enumerate() {
            let mask = byte ^ old[at as usize + 4 + number];
            vfs.flip(&path, at + 4 + number as u64, mask).map_err(explain)?;
        }
        damaged(subject, &vfs, Kept::Log, false)
            .map_err(|what| format!("in place of record {}: {what}", rec.number))?;
        moved(subject, &path, placed.commit_log_offset, placed.size)?;
    }
    Ok(())
}

/// Writes a whole record of another place, checksums included, over a record of the same size.
fn moved(subject: &Subject, path: &Path, offset: u64, size: u32) -> Result<(), String> {
    let twin = subject.history.records.iter().filter_map(|rec| rec.placed.as_ref()).find(|placed| {
        placed.size == size
            && placed.commit_log_offset != offset
            && placed.commit_log_offset / 4096 == offset / 4096
    });
    let Some(twin) = twin else { return Ok(()) };
    let vfs = subject.vfs.kill().map_err(explain)?;
    let old = vfs.read_file(path, 1 << 20).map_err(explain)?;
    let (to, from) = (offset % 4096, twin.commit_log_offset % 4096);
    for at in 0..u64::from(size) {
        let mask = old[(to + at) as usize] ^ old[(from + at) as usize];
        vfs.flip(path, to + at, mask).map_err(explain)?;
    }
    damaged(subject, &vfs, Kept::Log, false)
        .map(|_| ())
        .map_err(|what| format!("a record in another's place: {what}"))
}

#[test]
fn decay_is_refused_or_harmless() {
    let (tried, refused) = must_hold(hunt(if crate::crashes::soak() { 1 } else { 8 }, &|| false));
    println!("decay: {tried} flipped bytes, {refused} refused");
    assert!(tried > 2_000 && refused > 0);
}
