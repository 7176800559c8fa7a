//! Small stores in memory whose bytes a test changes, the answers before the change, and the rules for verify
//! and repair.
//!
//! A store is small and in memory, so that tens of thousands of changes take minutes. The rules for each
//! change:
//!
//! | verify | rule |
//! |---|---|
//! | finds nothing | every message is present and unchanged, by log, queue and key |
//! | finds something | a reader gets a typed error, or the remaining messages |
//! | either | a repair leaves no fewer messages readable than before |
//! | either | a repair saves each message whose bytes did not change, its result is clean, and a second repair changes nothing |

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mqstore::Store;
use mqstore::error::StoreError;
use mqstore::format::RecordView;
use mqstore::inspect::distributed::{PlannedCut, assemble, plan, run_step};
use mqstore::inspect::{RepairReport, RepairTarget, StoreFiles, VerifyReport};
use mqstore::io::sim::{SimOptions, SimVfs};
use mqstore::io::{FileKind, ManualClock, Vfs};
use mqstore::message::{NewMessage, encode_properties};
use mqstore::options::{Durability, OpenMode, StoreOptions};

/// The path of the stores.
pub const ROOT: &str = "/data/store";

/// Maximum time of one case. Most cases take a thousandth of it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Problems that no repair can cure: the record is valid except for its time or its queue offset.
const LEFT_ALONE: [&str; 2] = ["store_time_back", "queue_offset_refused"];

/// A problem that no repair can cure, in any store: the record lost its checksum.
const UNSUMMED: &str = "record_checksum_missing";

/// Bytes of the last property of a record with a checksum over the whole record.
const CRC_BYTES: usize = 20;

/// The answers of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// The records by log offset.
    pub log: BTreeMap<u64, Vec<u8>>,
    /// Queue offsets and log offsets of each queue.
    pub queues: BTreeMap<(String, i32), Vec<(i64, u64)>>,
    /// Log offsets of each key.
    pub keys: BTreeMap<(String, String), Vec<u64>>,
}

/// A store whose bytes a test changes.
#[derive(Debug)]
pub struct Subject {
    /// Its name in messages and on the command line.
    pub name: String,
    /// The disk before the change.
    vfs: SimVfs,
    options: StoreOptions,
    clock: Arc<ManualClock>,
    /// Whether each record has a checksum over the whole record.
    covered: bool,
    answers: Answers,
}

/// The outcome of one change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Whether verify found a problem.
    pub found: bool,
    /// Number of messages that the change hit.
    pub hit: usize,
    /// Number of hit messages that can be read after the repair.
    pub saved: usize,
}

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Subject {
    /// The stores that mqstore writes: closed with record checksums, closed without, killed, repaired.
    ///
    /// # Errors
    /// If a store cannot be made.
    pub fn ours() -> Result<Vec<Self>, String> {
        let closed = Self::written("closed", true, false)?;
        let repaired = closed.repaired()?;
        let plain = Self::written("plain", false, false)?;
        let killed = Self::written("killed", true, true)?;
        Ok(vec![closed, plain, killed, repaired])
    }

    /// A store in the form of `tests/interop/pack.py`.
    ///
    /// # Errors
    /// If the bytes are not in that form.
    pub fn packed(name: &str, bytes: &[u8]) -> Result<Self, String> {
        let vfs = disk()?;
        unpack(&vfs, bytes).ok_or("the pack is cut off")?.map_err(told)?;
        Self::of(name, vfs, StoreOptions { dispatch_threads: Some(0), ..StoreOptions::default() }, false)
    }

    fn of(name: &str, vfs: SimVfs, options: StoreOptions, covered: bool) -> Result<Self, String> {
        let clock = Arc::new(ManualClock::new(1_700_000_100_000));
        let answers = Answers::default();
        let mut subject = Self { name: name.to_owned(), vfs, options, clock, covered, answers };
        let vfs = subject.vfs.kill().map_err(told)?;
        let found = subject.verify(&vfs).map_err(told)?;
        if !found.ok {
            return Err(format!("{name}: {:?}", found.problems));
        }
        subject.answers = subject.read(&vfs, None).map_err(|error| format!("{name}: {error}"))?;
        Ok(subject)
    }

    fn written(name: &str, record_crc: bool, killed: bool) -> Result<Self, String> {
        let options = StoreOptions {
            segment_bytes: 4096,
            queue_file_entries: 16,
            index_slots: 5,
            index_entries: 60,
            durability: Durability::Manual,
            dispatch_threads: Some(0),
            default_queues: 2,
            prewarm: false,
            record_crc,
            ..StoreOptions::default()
        };
        let vfs = disk()?;
        let clock = Arc::new(ManualClock::new(1_700_000_000_000));
        let store = open(&vfs, &clock, OpenMode::Create, &options).map_err(told)?;
        fill(&store, &clock).map_err(told)?;
        if killed {
            store.flush().map_err(told)?;
            append(&store, 90).map_err(told)?;
            store.step().map_err(told)?;
            let dead = vfs.kill().map_err(told)?;
            // Later steps of this store change a disk that the test no longer uses.
            drop(store);
            return Self::of(name, dead, options, record_crc);
        }
        store.close().map_err(told)?;
        Self::of(name, vfs, options, record_crc)
    }

    /// This store after damage and repair, with placeholders and notes of the lost ranges.
    fn repaired(&self) -> Result<Self, String> {
        let vfs = self.vfs.kill().map_err(told)?;
        for (number, at) in self.answers.log.keys().enumerate().filter(|(number, _)| number % 17 == 9) {
            let (base, place) = (at / 4096 * 4096, at % 4096);
            let path = Path::new(ROOT).join(format!("commitlog/{base:020}"));
            vfs.flip(&path, place + 20 + number as u64, 0x55).map_err(told)?;
        }
        self.repair(&vfs).map_err(told)?;
        Self::of("repaired", vfs, self.options.clone(), self.covered)
    }

    fn files(&self, vfs: &SimVfs) -> StoreFiles {
        StoreFiles::new(Arc::new(vfs.clone()), self.clock.clone(), Path::new(ROOT))
    }

    fn verify(&self, vfs: &SimVfs) -> Result<VerifyReport, StoreError> {
        mqstore::inspect::verify(&self.files(vfs), &self.options, &mut |_| Ok(()))
    }

    /// The verify result of several workers, or of one worker if the log cannot be split.
    fn verify_shared(&self, vfs: &SimVfs) -> Result<VerifyReport, StoreError> {
        let (files, job) = (self.files(vfs), Path::new("/data/job"));
        let made = vfs.create_dir_all(job);
        made.map_err(|error| StoreError::io(job, "making the folder of a job", error))?;
        let cut = PlannedCut { parts: 5, stretch_bytes: 1, from_bytes: 0 };
        let Some(plan) = plan(&files, &self.options, cut, job, &job.join("plan"))? else {
            return self.verify(vfs);
        };
        let steps = plan.steps();
        let run = |(number, step)| {
            run_step(&files, &self.options, step, &job.join(format!("step-{number}")), &mut |_| Ok(()))
        };
        let answers = steps.iter().enumerate().map(run).collect::<Result<Vec<_>, _>>()?;
        assemble(&files, &self.options, &plan, &answers, &mut |_| Ok(()))
    }

    fn repair(&self, vfs: &SimVfs) -> Result<RepairReport, StoreError> {
        mqstore::inspect::repair(&self.files(vfs), &self.options, RepairTarget::InPlace, &mut |_| Ok(()))
    }

    /// Reads everything. With `asked`, reads by the queues and keys in it.
    fn read(&self, vfs: &SimVfs, asked: Option<&Answers>) -> Result<Answers, StoreError> {
        let store = open(vfs, &self.clock, OpenMode::Read, &self.options)?;
        let mut found = Answers { log: log(&store)?, ..Answers::default() };
        let (queues, keys) = match asked {
            Some(asked) => (asked.queues.keys().cloned().collect(), asked.keys.keys().cloned().collect()),
            None => (queues(&store)?, keys(&found.log)),
        };
        for (topic, queue_id) in queues {
            let row = queue(&store, &topic, queue_id)?;
            found.queues.insert((topic, queue_id), row);
        }
        for (topic, key) in keys {
            let hits = match store.lookup(&topic, &key, None, None, None) {
                // The damage left no message of the topic.
                Err(StoreError::TopicNotFound { .. }) => Vec::new(),
                cursor => cursor?.next_batch(usize::MAX)?,
            };
            let places = hits.iter().map(|one| one.commit_log_offset).collect();
            found.keys.insert((topic, key), places);
        }
        Ok(found)
    }

    /// A copy of the disk for a change.
    ///
    /// # Errors
    /// If memory is short.
    pub fn copy(&self) -> Result<SimVfs, String> {
        self.vfs.kill().map_err(told)
    }

    /// Changes a copy with `change`, and checks the rules.
    ///
    /// # Errors
    /// The rule that was broken.
    pub fn try_change(&self, change: impl FnOnce(&SimVfs) -> std::io::Result<()>) -> Result<Outcome, String> {
        let begin = Instant::now();
        let vfs = self.copy()?;
        change(&vfs).map_err(told)?;
        let outcome = catch_unwind(AssertUnwindSafe(|| self.judge(&vfs)))
            .unwrap_or_else(|panic| Err(format!("a panic: {}", words(panic.as_ref()))));
        if begin.elapsed() > PATIENCE {
            return Err(format!("it took {:?}", begin.elapsed()));
        }
        outcome
    }

    fn judge(&self, vfs: &SimVfs) -> Result<Outcome, String> {
        let whole = self.untouched(vfs);
        let mut outcome = Outcome { hit: self.answers.log.len() - whole.len(), ..Outcome::default() };
        let before = tree(vfs);
        let _ =
            mqstore::inspect::info(Arc::new(vfs.clone()), self.clock.clone(), Path::new(ROOT), &self.options);
        let found = self.verify(vfs);
        let shared = self.verify_shared(vfs);
        if found.as_ref().ok() != shared.as_ref().ok() {
            return Err(format!("one finds {found:?}, several find {shared:?}"));
        }
        let _ = vfs.remove_dir_all(Path::new("/data/job"));
        let read = self.read(vfs, Some(&self.answers));
        let read_before = read.as_ref().map_or(0, |read| read.log.len());
        if tree(vfs) != before {
            return Err("looking changed a file".to_owned());
        }
        match (found, read) {
            (Ok(found), Ok(read)) if found.ok => {
                self.same(&whole, &read, Self::begin(vfs))
                    .map_err(|what| format!("no finding, but {what}"))?;
            }
            (Ok(found), Err(error)) if found.ok => {
                return Err(format!("no finding, but a reader gets: {error}"));
            }
            (Err(StoreError::NotAStore { .. }), _) => return Ok(outcome),
            (Err(error), _) => return Err(format!("the check ends with: {error}")),
            (Ok(_), _) => outcome.found = true,
        }
        let report = self.repair(vfs).map_err(|error| format!("the repair ends with: {error}"))?;
        let is_left = |kind| {
            if self.covered { kind != UNSUMMED } else { !LEFT_ALONE.contains(&kind) && kind != UNSUMMED }
        };
        let left: Vec<_> = report.problems.iter().filter(|one| is_left(one.kind)).collect();
        if !left.is_empty() {
            return Err(format!("the repair leaves {left:?} after {:?}", report.actions));
        }
        let after = tree(vfs);
        let again = self.repair(vfs).map_err(|error| format!("another repair ends with: {error}"))?;
        if again.changed || tree(vfs) != after {
            return Err(format!("another repair changes: {:?}, after {:?}", again.actions, report.actions));
        }
        let read =
            self.read(vfs, Some(&self.answers)).map_err(|error| format!("after the repair: {error}"))?;
        // A record that hides others of its queue is given up for them.
        let given_up = report.lost.iter().filter(|lost| lost.reason.contains("hides them")).count();
        if read.log.len() + given_up < read_before {
            return Err(format!("{read_before} messages before the repair, {} after it", read.log.len()));
        }
        outcome.saved =
            self.saved(&whole, &read).map_err(|what| format!("after {:?}: {what}", report.actions))?;
        Ok(outcome)
    }

    /// The log offsets of the messages whose bytes are all unchanged.
    fn untouched(&self, vfs: &SimVfs) -> Vec<u64> {
        let mut files: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for (path, len) in list(vfs, &Path::new(ROOT).join("commitlog")) {
            if let (Some(base), Ok(bytes)) = (base_of(&path), vfs.read_file(&path, len)) {
                files.insert(base, bytes);
            }
        }
        let there = |at: u64, bytes: &[u8]| {
            let (base, file) = files.range(..=at).next_back()?;
            let from = (at - base) as usize;
            Some(file.get(from..from + bytes.len())? == bytes)
        };
        let log = self.answers.log.iter();
        log.filter(|(at, bytes)| there(**at, bytes) == Some(true)).map(|(at, _)| *at).collect()
    }

    /// The log offset of the first segment.
    fn begin(vfs: &SimVfs) -> u64 {
        let files = list(vfs, &Path::new(ROOT).join("commitlog"));
        let bases = files.iter().filter(|(_, len)| *len > 0).filter_map(|(path, _)| base_of(path));
        bases.min().unwrap_or(u64::MAX)
    }

    /// Whether the read messages are the written ones, as far as a checksum can tell.
    fn same(&self, whole: &[u64], read: &Answers, begin: u64) -> Result<(), String> {
        for (at, bytes) in &self.answers.log {
            let Some(now) = read.log.get(at) else {
                // A log without its oldest segments counts as a log with expired messages.
                if *at < begin {
                    continue;
                }
                return Err(format!("the message at {at} is gone"));
            };
            let body = |bytes: &[u8]| RecordView::decode(bytes).map(|view| view.body.to_vec());
            if (is_sealed(now) && now != bytes) || body(now) != body(bytes) {
                let changed: Vec<_> =
                    bytes.iter().zip(now).enumerate().filter(|(_, (a, b))| a != b).collect();
                return Err(format!(
                    "the message at {at} is another one: of {} bytes {changed:?}",
                    bytes.len()
                ));
            }
        }
        if let Some(made) = read.log.keys().find(|at| !self.answers.log.contains_key(at)) {
            return Err(format!("there is a message at {made}"));
        }
        // No checksum covers the keys of a record without a record checksum.
        if whole.len() < self.answers.log.len() {
            return self.saved(whole, read).map(drop);
        }
        for (queue, row) in &self.answers.queues {
            if read.queues.get(queue) != Some(row) {
                return Err(format!("queue {queue:?} has {:?}, not {row:?}", read.queues.get(queue)));
            }
        }
        for (key, places) in &self.answers.keys {
            if read.keys.get(key) != Some(places) {
                return Err(format!("key {key:?} has {:?}, not {places:?}", read.keys.get(key)));
            }
        }
        Ok(())
    }

    /// Whether every unchanged message is present. Returns their number.
    fn saved(&self, whole: &[u64], read: &Answers) -> Result<usize, String> {
        for at in whole {
            if read.log.get(at) != self.answers.log.get(at) {
                return Err(format!("the message at {at} is lost or another one"));
            }
        }
        let is_whole = |at: &u64| whole.binary_search(at).is_ok();
        // A damaged record without a checksum may claim the place of another one.
        if !self.covered && whole.len() < self.answers.log.len() {
            return Ok(whole.len());
        }
        for (queue, row) in &self.answers.queues {
            let found = read.queues.get(queue).map_or(&[][..], Vec::as_slice);
            if let Some(lost) = row.iter().find(|entry| is_whole(&entry.1) && !found.contains(entry)) {
                return Err(format!("queue {queue:?} lost {lost:?}: {found:?}"));
            }
        }
        for (key, places) in &self.answers.keys {
            let found = read.keys.get(key).map_or(&[][..], Vec::as_slice);
            if let Some(lost) = places.iter().find(|at| is_whole(at) && !found.contains(at)) {
                return Err(format!("key {key:?} lost {lost}: {found:?}"));
            }
        }
        Ok(whole.len())
    }
}

fn open(
    vfs: &SimVfs,
    clock: &Arc<ManualClock>,
    mode: OpenMode,
    options: &StoreOptions,
) -> Result<Store, StoreError> {
    let builder = Store::builder(ROOT).vfs(Arc::new(vfs.clone())).clock(clock.clone());
    builder.mode(mode).options(options.clone()).open_undelivered()
}

fn disk() -> Result<SimVfs, String> {
    let vfs = SimVfs::new(SimOptions { by_hand: true, ..SimOptions::default() });
    vfs.create_dir_all(Path::new(ROOT)).map_err(told)?;
    Ok(vfs)
}

/// The log offset in a segment's name.
fn base_of(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.parse().ok()
}

/// Whether a record has a checksum over the whole record. If the name of that property is damaged, it has
/// none.
fn is_sealed(record: &[u8]) -> bool {
    let tail = record.len().checked_sub(CRC_BYTES).and_then(|at| record.get(at..));
    tail.is_some_and(|tail| tail.starts_with(b"__CRC32#"))
}

/// The text of a panic.
pub fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// Three topics, one of them with batch queues. Keys repeat, and bodies are empty or long.
fn fill(store: &Store, clock: &ManualClock) -> Result<(), StoreError> {
    store.create_topic("orders", 2, &[])?;
    store.create_topic("batched", 1, &[("queue.type".to_owned(), "BatchCQ".to_owned())])?;
    for number in 0..48 {
        clock.advance(Duration::from_millis(number % 3 * 700));
        append(store, number)?;
        if number % 6 == 5 {
            store.step()?;
        }
    }
    Ok(())
}

fn append(store: &Store, number: u64) -> Result<(), StoreError> {
    let (topic, queue_id) = match number % 4 {
        0 => ("orders", 0),
        1 => ("orders", 1),
        2 => ("batched", 0),
        _ => ("others", 1),
    };
    let keys = [format!("k{}", number % 7), format!("n{number}")];
    let properties = encode_properties(
        keys.iter().map(String::as_str),
        Some(if number.is_multiple_of(3) { "a" } else { "b" }),
        None,
        [("p", "v")],
    )?;
    let body = format!("{number:03}").repeat(number as usize % 5 * 20);
    let message = NewMessage {
        topic,
        body: body.as_bytes(),
        properties: &properties,
        unique_key: None,
        queue_id: Some(queue_id),
        flag: number as i32,
        born_timestamp_ms: Some(1_699_999_999_000 + number as i64),
        durable: false,
        ..NewMessage::default()
    };
    let copies = if topic == "batched" { 1 + number as usize % 3 } else { 1 };
    store.append_many(&vec![message; copies]).map(drop)
}

fn log(store: &Store) -> Result<BTreeMap<u64, Vec<u8>>, StoreError> {
    let mut cursor = store.log().scan(None)?;
    let mut found = BTreeMap::new();
    loop {
        let batch = cursor.next_batch(1000)?;
        if batch.is_empty() {
            return Ok(found);
        }
        for record in batch {
            if let Ok(view) = record.view() {
                found.insert(record.commit_log_offset, view.bytes.to_vec());
            }
        }
    }
}

fn queues(store: &Store) -> Result<Vec<(String, i32)>, StoreError> {
    let mut found = Vec::new();
    for topic in store.topics()? {
        found.extend(store.queues(&topic)?.iter().map(|queue| (topic.clone(), queue.queue_id)));
    }
    Ok(found)
}

fn keys(log: &BTreeMap<u64, Vec<u8>>) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for view in log.values().filter_map(|bytes| RecordView::decode(bytes).ok()).filter(RecordView::indexed) {
        let own = view.key_list().map(str::to_owned).chain(view.unique_key().map(str::to_owned));
        found.extend(own.map(|key| (view.topic.to_owned(), key)));
    }
    found.sort_unstable();
    found.dedup();
    found
}

fn queue(store: &Store, topic: &str, queue_id: i32) -> Result<Vec<(i64, u64)>, StoreError> {
    let mut cursor = match store.read(topic, queue_id, None, None, None) {
        // None of its messages is left.
        Err(StoreError::TopicNotFound { .. }) => return Ok(Vec::new()),
        cursor => cursor?,
    };
    let mut row = Vec::new();
    loop {
        let batch = cursor.next_batch(1000)?;
        if batch.is_empty() {
            return Ok(row);
        }
        row.extend(batch.iter().map(|one| (one.queue_offset, one.commit_log_offset)));
    }
}

/// The files in `folder` with their lengths.
pub fn list(vfs: &SimVfs, folder: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    for entry in vfs.list(folder).unwrap_or_default() {
        let path = folder.join(&entry.name);
        if entry.stat.kind == FileKind::Directory {
            found.extend(list(vfs, &path));
        } else {
            found.push((path, entry.stat.len));
        }
    }
    found
}

/// Every file with its bytes.
fn tree(vfs: &SimVfs) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = list(vfs, Path::new(ROOT)).into_iter();
    // An open may create the lock file.
    let files = files.filter(|(path, _)| !path.ends_with("lock"));
    files.map(|(path, len)| (path.clone(), vfs.read_file(&path, len).unwrap_or_default())).collect()
}

/// Writes the files of a pack. Returns `None` if the pack is truncated.
fn unpack(vfs: &SimVfs, bytes: &[u8]) -> Option<std::io::Result<()>> {
    let mut rest = bytes;
    let mut take = |count: usize| {
        let (head, tail) = rest.split_at_checked(count)?;
        rest = tail;
        Some(head)
    };
    let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let files = number(take(4)?);
    for _ in 0..files {
        let name = number(take(2)?) as usize;
        let path = Path::new(ROOT).join(std::str::from_utf8(take(name)?).ok()?);
        let (len, chunks) = (number(take(8)?), number(take(4)?));
        let made = vfs
            .create_dir_all(path.parent().unwrap_or(&path))
            .and_then(|()| vfs.create_new(&path))
            .and_then(|file| file.set_len(len).map(|()| file));
        let file = match made {
            Ok(file) => file,
            Err(error) => return Some(Err(error)),
        };
        for _ in 0..chunks {
            let (at, count) = (number(take(8)?), number(take(4)?) as usize);
            if let Err(error) = file.write_all_at(take(count)?, at) {
                return Some(Err(error));
            }
        }
    }
    Some(Ok(()))
}
