//! The appender of compaction topics: copies new messages from the commit log to the compaction files.
//!
//! RocketMQ serves a compaction topic from `compaction/` alone. Retention may remove a segment of the commit log once
//! its messages are there. [`CompactionAppender`] owns the appends to these files and writes them as RocketMQ does. A
//! broker that opens the directory at any time finds a complete record for each unit.
//!
//! Source: `CompactionService#putRequest`, `CompactionLog#asyncPutMessage`, `CompactionAppendMessageCallback#doAppend`.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use mqstore_format::{CqUnit, RecordView};
use mqstore_io::sync::{Mutex, MutexGuard};

use super::uncompacted::QueueAheadOfLog;
use crate::append::file_pair::{AppendBatch, OpenFilePair, ReopenOutcome};
use crate::compaction_key::compaction_key;
use crate::files::file_sizes::CompactionGeometry;
use crate::files::folder::{QueueFolder, queue_ids, topics};
use crate::files::generation::GenerationState;
use crate::files::manifest::Manifest;
use crate::files::next_folder::Replacement;
use crate::files::positions::PositionCheckpoint;
use crate::files::staged::OutputPair;
use crate::job::documents::CompactionReport;
use crate::job::job_folder::{Job, LOCAL_PREFIX, StartOutcome, any_running, fresh_token, make_dir};
use crate::job::publish::switch;
use crate::job::survivor_writer::GenerationWriter;
use crate::read::fetch::{RecordFetcher, RecordPlace, VerifyLevel};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;
use mqstore_log::commit_log::{CommitLog, SegmentList};
use mqstore_log::consume_queue::{ConsumeQueue, QueueSet};

/// Number of queue units in one read.
const CHUNK_UNITS: usize = 4096;

/// Bytes of records that are written and synced together.
const FLUSH_BYTES: usize = 16 << 20;

/// The input of a round.
pub struct AppenderInput<'a> {
    /// Consume queues of the store.
    pub queues: &'a QueueSet,
    /// The compaction topics, and the number of queues of each.
    pub topics: &'a [(String, u32)],
    /// The commit log.
    pub log: &'a Arc<CommitLog>,
    /// Segments of the log.
    pub list: &'a SegmentList,
    /// The durable offset of the commit log.
    pub durable: u64,
    /// Bytes after which the round ends.
    pub most_bytes: u64,
    /// Whether the round must end now.
    pub stop: &'a dyn Fn() -> bool,
}

/// The result of a round.
#[derive(Debug, Default)]
pub struct RoundOutcome {
    /// Whether there is more to copy.
    pub more: bool,
    /// Whether the compaction appender waits for a compaction job of another process.
    pub waits: bool,
    /// Queues that are skipped from now on, and why.
    pub left: Vec<String>,
    /// Queues in which the round found the first message without a key.
    pub keyless: Vec<String>,
}

/// Appends to the compaction files of all queues, and keeps the position of each queue.
///
/// ```text
/// compactionLog/t/0/…   record record … | record record      records with their new PHYSICALOFFSET; no blank keys
/// compactionCq/t/0/…    unit   unit   … | unit   unit
///                                       ^ one flush: records, sync, units, sync
/// ```
///
/// Across a crash: a record is copied once it is durable in the commit log, and its unit is written once the copy is
/// durable. The first files of all queues, logs and queue files, appear together by the swap that publishes
/// compactions. A later file gets its name with its first record inside, the log before the queue file. If a crash
/// leaves such a log without its queue file, the appender creates the queue file; a broker truncates the log. The
/// appender never appends to a file of a generation in the manifest, so that the manifest stays true, nor to a file
/// with bytes after its last good unit.
///
/// Across threads: one thread at a time appends, and it holds the store's lock. A compaction holds
/// [`fence`](Self::fence) from its plan to its publication. The appender detects jobs of other processes by their
/// locks, and appends nothing while one runs.
#[derive(Debug)]
pub struct CompactionAppender {
    files: StoreFiles,
    /// The lengths for a store without compaction files.
    geometry: CompactionGeometry,
    state: Mutex<AppenderState>,
}

#[derive(Debug, Default)]
pub struct AppenderState {
    queues: HashMap<(String, i32), QueueStatus>,
    /// The lengths of the store's existing files.
    geometry: Option<CompactionGeometry>,
    /// The first queue of the next round.
    turn: usize,
}

/// The state of one queue.
#[derive(Debug)]
enum QueueStatus {
    Goes(AppendTarget),
    /// Everything before `next` is copied, and the files are closed.
    Closed {
        next: i64,
        keyless: bool,
    },
    /// The queue cannot be continued; the reason was reported.
    Left,
}

#[derive(Debug)]
struct AppendTarget {
    /// The next queue offset to read.
    next: i64,
    geometry: CompactionGeometry,
    /// The last files, if they can be appended to.
    open: Option<OpenFilePair>,
    /// The base of the next files; `None` without files.
    next_base: Option<u64>,
    /// Whether a message without a key was found.
    keyless: bool,
}

/// A queue with messages to copy.
struct LaggingQueue {
    name: (String, i32),
    queue: Arc<ConsumeQueue>,
}

/// The reason why the copy of a queue stopped.
enum AppendStop {
    /// All durable records are copied, or the round must end.
    Here,
    /// The bytes of the round are used up.
    Enough,
    /// The queue cannot be continued.
    Because(String),
}

impl CompactionAppender {
    /// Creates an appender that has read nothing yet.
    pub fn new(files: &StoreFiles, geometry: CompactionGeometry) -> Self {
        Self { files: files.clone(), geometry, state: Mutex::default() }
    }

    /// Stops the appender until the guard is dropped, for a caller that replaces files. Later the positions of the
    /// queues are read again.
    pub fn fence(&self) -> MutexGuard<'_, AppenderState> {
        let mut state = self.state.lock();
        *state = AppenderState::default();
        state
    }

    /// Notes that the log lost copied records of these queues. Each of them continues at its end in the log.
    ///
    /// # Errors
    /// I/O errors.
    pub fn log_lost(&self, queues: &[QueueAheadOfLog]) -> Result<(), StoreError> {
        let _fence = self.fence();
        let mut manifest = Manifest::load(&self.files)?;
        for QueueAheadOfLog { topic, queue_id, end, .. } in queues {
            manifest.set_appended_from(topic, *queue_id, *end);
        }
        self.write(&manifest)
    }

    fn write(&self, manifest: &Manifest) -> Result<(), StoreError> {
        make_dir(&self.files, &self.files.side(), &self.files.root)?;
        manifest.write(&self.files)
    }

    /// Copies durable records that are not copied yet.
    ///
    /// # Errors
    /// I/O errors. Earlier copies stay; the next round continues after them.
    pub fn round(&self, input: &AppenderInput<'_>) -> Result<RoundOutcome, StoreError> {
        let mut state = self.state.lock();
        let mut behind = behind(&state, input);
        let mut outcome = RoundOutcome::default();
        if behind.is_empty() {
            return Ok(outcome);
        }
        if any_running(&self.files)? {
            outcome.waits = true;
            return Ok(outcome);
        }
        let turn = state.turn % behind.len();
        state.turn = turn;
        behind.rotate_left(turn);
        self.limit_open_files(&mut state, &mut behind, &mut outcome);
        self.find_queue_positions(&mut state, &behind, &mut outcome)?;
        let done = self.copy(&mut state, &behind, input, &mut outcome);
        if done.is_err() {
            // The written part is read again.
            state.queues.clear();
        }
        done.map(|()| outcome)
    }

    /// Leaves in `behind` at most as many queues as can have open files. If more queues have, the files of those that
    /// are not in `behind` are closed. Each queue has two files, and all queues together have an eighth of the
    /// process's limit.
    fn limit_open_files(
        &self,
        state: &mut AppenderState,
        behind: &mut Vec<LaggingQueue>,
        outcome: &mut RoundOutcome,
    ) {
        let most = (self.files.vfs.environment().most_kept_files() / 8).max(1);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        if behind.len() > most {
            behind.truncate(most);
            outcome.more = true;
        }
        let due: HashSet<&(String, i32)> = behind.iter().map(|behind| &behind.name).collect();
        let others = |name: &(String, i32), status: &QueueStatus| {
            !due.contains(name) && matches!(status, QueueStatus::Goes(going) if going.open.is_some())
        };
        let open = state.queues.iter().filter(|(name, status)| others(name, status)).count();
        if open + behind.len() <= most {
            return;
        }
        for (name, status) in &mut state.queues {
            if others(name, status)
                && let QueueStatus::Goes(going) = status
            {
                *status = QueueStatus::Closed { next: going.next, keyless: going.keyless };
            }
        }
    }

    fn copy(
        &self,
        state: &mut AppenderState,
        behind: &[LaggingQueue],
        input: &AppenderInput<'_>,
        outcome: &mut RoundOutcome,
    ) -> Result<(), StoreError> {
        self.begin(state, behind, input, outcome)?;
        let mut left = input.most_bytes;
        let mut passed = behind.len();
        for (at, LaggingQueue { name, queue }) in behind.iter().enumerate() {
            let Some(QueueStatus::Goes(going)) = state.queues.get_mut(name) else { continue };
            if going.next_base.is_none() {
                continue;
            }
            let mut copy =
                QueueCopy { feed: self, name, queue, input, left: &mut left, keyless: &mut outcome.keyless };
            match copy.append(going)? {
                AppendStop::Here => {}
                AppendStop::Enough => {
                    passed = at;
                    outcome.more = true;
                    break;
                }
                AppendStop::Because(reason) => forget_queue(state, outcome, name, &reason),
            }
            if (input.stop)() {
                break;
            }
        }
        state.turn += passed;
        Ok(())
    }

    /// Finds the positions of queues that are not known yet, and notes the first offset that the appender copies.
    fn find_queue_positions(
        &self,
        state: &mut AppenderState,
        behind: &[LaggingQueue],
        outcome: &mut RoundOutcome,
    ) -> Result<(), StoreError> {
        let is_unknown = |behind: &&LaggingQueue| {
            matches!(state.queues.get(&behind.name), None | Some(QueueStatus::Closed { .. }))
        };
        let unknown: Vec<&LaggingQueue> = behind.iter().filter(is_unknown).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        if state.geometry.is_none() {
            state.geometry = self.existing_geometry()?;
        }
        let mut manifest = Manifest::load(&self.files)?;
        let positions = PositionCheckpoint::load(&self.files, &self.files.compaction())?;
        let mut noted = false;
        for LaggingQueue { name, queue } in unknown {
            let (topic, queue_id) = (name.0.as_str(), name.1);
            let read = positions.end(topic, queue_id);
            let geometry = state.geometry.unwrap_or(self.geometry);
            let found = match self.going(topic, queue_id, &manifest, geometry, read) {
                Err(error @ StoreError::Corrupt { .. }) => Err(error.to_string()),
                found => found?,
            };
            let (copied_to, keyless) = match state.queues.get(name) {
                Some(QueueStatus::Closed { next, keyless }) => (*next, *keyless),
                _ => (read, false),
            };
            let found = found.map(|(going, fed_from)| {
                let next = going.next.max(read).max(copied_to);
                (AppendTarget { next, keyless, ..going }, fed_from)
            });
            let fed = match found {
                Ok((going, _)) if going.next < queue.min_offset() => {
                    outcome.left.push(format!(
                        "{topic}/{queue_id}: its files end at offset {} and the commit log begins at {}: \
                         restore_compaction gets the messages between from another store, or a compaction continues \
                         without them",
                        going.next,
                        queue.min_offset()
                    ));
                    QueueStatus::Left
                }
                Ok((going, fed_from)) => {
                    if manifest.appended_from(topic, queue_id).is_none_or(|from| from > going.next) {
                        manifest.set_appended_from(topic, queue_id, fed_from.unwrap_or(going.next));
                        noted = true;
                    }
                    QueueStatus::Goes(going)
                }
                Err(reason) => {
                    outcome.left.push(format!("{topic}/{queue_id}: {reason}"));
                    QueueStatus::Left
                }
            };
            state.queues.insert(name.clone(), fed);
        }
        if noted {
            self.write(&manifest)?;
        }
        Ok(())
    }

    /// Returns the state of a queue from its files. A broker has compacted offsets below `read`. The result includes
    /// the first appended offset, if there are files; the inner error is the reason why the queue cannot be continued.
    fn going(
        &self,
        topic: &str,
        queue_id: i32,
        manifest: &Manifest,
        geometry: CompactionGeometry,
        read: i64,
    ) -> Result<Result<(AppendTarget, Option<i64>), String>, StoreError> {
        let state = GenerationState::load(&self.files, topic, queue_id)?;
        if !state.blocked.is_empty() {
            return Ok(Err(state.blocked.join("; ")));
        }
        let known = state.known(&self.files, manifest, topic, queue_id)?.compacted_to(read);
        let Some(last) = state.pairs().last() else {
            return Ok(Ok((
                AppendTarget { next: known.end, geometry, open: None, next_base: None, keyless: false },
                None,
            )));
        };
        let Some(geometry) = state.geometry else {
            return Ok(Err(format!(
                "{} has a length that is invalid for such a file",
                last.log.path.display()
            )));
        };
        let fed_here = known.generation.is_none() || state.pairs().len() > known.pairs;
        let open = if fed_here {
            match OpenFilePair::reopen(&self.files, last, topic, queue_id, geometry)? {
                ReopenOutcome::Open(pair) => Some(pair),
                ReopenOutcome::Full => None,
                ReopenOutcome::Odd(reason) => return Ok(Err(reason)),
            }
        } else {
            None
        };
        let next_base = Some(last.log.base.saturating_add(geometry.log_file_bytes));
        Ok(Ok((
            AppendTarget { next: known.end, geometry, open, next_base, keyless: false },
            Some(known.fed_from),
        )))
    }

    fn existing_geometry(&self) -> Result<Option<CompactionGeometry>, StoreError> {
        let compaction = self.files.compaction();
        for topic in topics(&self.files, &compaction)? {
            for queue_id in queue_ids(&self.files, &compaction, &topic)? {
                let folder = QueueFolder::load(&self.files, &compaction, &topic, queue_id)?;
                if let Some(geometry) = folder.geometry() {
                    return Ok(Some(geometry));
                }
            }
        }
        Ok(None)
    }

    /// Creates the first files of queues without files, all of them in one step.
    fn begin(
        &self,
        state: &mut AppenderState,
        behind: &[LaggingQueue],
        input: &AppenderInput<'_>,
        outcome: &mut RoundOutcome,
    ) -> Result<(), StoreError> {
        let is_new = |behind: &&LaggingQueue| match state.queues.get(&behind.name) {
            Some(QueueStatus::Goes(going)) => {
                going.next_base.is_none() && going.next < behind.queue.max_offset()
            }
            _ => false,
        };
        let new: Vec<&LaggingQueue> = behind.iter().filter(is_new).collect();
        if new.is_empty() {
            return Ok(());
        }
        let id = format!("feed-{}", fresh_token(&self.files));
        let StartOutcome::Running(job) = Job::begin(&self.files, &id)? else { return Ok(()) };
        let (mut begun, mut left) = (Vec::new(), input.most_bytes);
        for (at, LaggingQueue { name, queue }) in new.into_iter().enumerate() {
            let Some(QueueStatus::Goes(going)) = state.queues.get_mut(name) else { continue };
            if left == 0 {
                outcome.more = true;
                break;
            }
            let mut copy =
                QueueCopy { feed: self, name, queue, input, left: &mut left, keyless: &mut outcome.keyless };
            let staging = job.dir().join(format!("{LOCAL_PREFIX}{at}"));
            let (pairs, stopped) = copy.first_files(going, &staging)?;
            if let AppendStop::Because(reason) = stopped {
                forget_queue(state, outcome, name, &reason);
            } else {
                outcome.more |= matches!(stopped, AppendStop::Enough);
                if !pairs.is_empty() {
                    begun.push((name, staging, pairs));
                }
            }
        }
        if !begun.is_empty() {
            let replacements: Vec<Replacement<'_>> = begun
                .iter()
                .map(|(name, staging, pairs)| Replacement {
                    topic: &name.0,
                    queue_id: name.1,
                    staging: staging.clone(),
                    pairs,
                    position: None,
                })
                .collect();
            // The manifest already has the facts about them.
            let report = CompactionReport { job_id: id, ..CompactionReport::default() };
            switch(&self.files, &job, &replacements, &report, || Ok(()))?;
        }
        for (name, _, pairs) in begun {
            if let (Some(QueueStatus::Goes(going)), Some(last)) = (state.queues.get_mut(name), pairs.last()) {
                going.open = Some(OpenFilePair::of(&self.files, &name.0, name.1, last)?);
                going.next_base = Some(last.base.saturating_add(going.geometry.log_file_bytes));
            }
        }
        job.abandon(&self.files)
    }
}

/// Skips a queue until its files are read again.
fn forget_queue(state: &mut AppenderState, outcome: &mut RoundOutcome, name: &(String, i32), reason: &str) {
    outcome.left.push(format!("{}/{}: {reason}", name.0, name.1));
    state.queues.insert(name.clone(), QueueStatus::Left);
}

/// Returns the queues with messages after the copied ones.
fn behind(state: &AppenderState, input: &AppenderInput<'_>) -> Vec<LaggingQueue> {
    let mut found = Vec::new();
    for (topic, queues) in input.topics {
        for queue_id in 0..*queues as i32 {
            let queue = input.queues.get(topic, queue_id).filter(|queue| queue.damaged().is_none());
            let Some(queue) = queue.filter(|queue| queue.max_offset() > queue.min_offset()) else { continue };
            let name = (topic.clone(), queue_id);
            let waits = match state.queues.get(&name) {
                Some(QueueStatus::Goes(going)) => going.next < queue.max_offset(),
                Some(QueueStatus::Closed { next, .. }) => *next < queue.max_offset(),
                Some(QueueStatus::Left) => false,
                None => true,
            };
            if waits {
                found.push(LaggingQueue { name, queue });
            }
        }
    }
    found
}

/// The copy of one queue.
struct QueueCopy<'a> {
    feed: &'a CompactionAppender,
    name: &'a (String, i32),
    queue: &'a ConsumeQueue,
    input: &'a AppenderInput<'a>,
    /// Bytes that may still be copied.
    left: &'a mut u64,
    /// Collects queues with messages without a key.
    keyless: &'a mut Vec<String>,
}

impl QueueCopy<'_> {
    /// Calls `take` with each durable keyed record from `next` on.
    fn each(
        &mut self,
        next: &mut i64,
        keyless: &mut bool,
        largest: u64,
        mut take: impl FnMut(&RecordView<'_>) -> Result<(), StoreError>,
    ) -> Result<AppendStop, StoreError> {
        let mut fetch =
            RecordFetcher::new(self.input.list, Some(self.input.log), self.input.durable, VerifyLevel::All);
        let mut units: Vec<CqUnit> = Vec::new();
        *next = (*next).max(self.queue.min_offset());
        while *next < self.queue.max_offset() {
            units.clear();
            let start = *next;
            self.queue.read(start, CHUNK_UNITS, &mut units)?;
            if units.is_empty() {
                break;
            }
            let places = places(&units, start, self.input.list.min_offset());
            for at in 0..places.len() {
                let ahead = places.get(at..).unwrap_or_default();
                let Some(place) = ahead.first() else { break };
                if place.position.saturating_add(u64::from(place.size)) > self.input.durable {
                    return Ok(AppendStop::Here);
                }
                if *self.left == 0 {
                    return Ok(AppendStop::Enough);
                }
                if u64::from(place.size) > largest {
                    let reason = format!(
                        "the message at offset {} has {} bytes; a compaction file can hold at most {largest}",
                        place.queue_offset, place.size
                    );
                    return Ok(AppendStop::Because(reason));
                }
                let record = fetch.record(ahead)?.filter(|record| self.is_ours(record));
                let Some(record) = record else {
                    let reason = format!("the log has no complete message at offset {}", place.queue_offset);
                    return Ok(AppendStop::Because(reason));
                };
                if compaction_key(&record).is_some() {
                    take(&record)?;
                    *self.left = self.left.saturating_sub(u64::from(place.size));
                } else if !*keyless {
                    *keyless = true;
                    self.keyless.push(format!("{}/{}", self.name.0, self.name.1));
                }
                *next = place.queue_offset + 1;
            }
            // The last offsets may have no message.
            *next = start + units.len() as i64;
            if (self.input.stop)() {
                break;
            }
        }
        Ok(AppendStop::Here)
    }

    fn is_ours(&self, record: &RecordView<'_>) -> bool {
        record.topic == self.name.0 && record.queue_id == self.name.1 && record.dispatches_to_queue()
    }

    /// Copies records after the existing files.
    fn append(&mut self, going: &mut AppendTarget) -> Result<AppendStop, StoreError> {
        let (files, (topic, queue_id)) = (&self.feed.files, self.name);
        let AppendTarget { next, geometry, open, next_base, keyless } = going;
        let mut batch = AppendBatch::default();
        let stopped = self.each(next, keyless, geometry.largest_record(), |record| {
            let size = u64::from(record.size);
            if let Some(pair) = open.as_mut()
                && !geometry.has_room(
                    pair.log_end + batch.records.len() as u64,
                    pair.queue_end + batch.entries.len() as u64,
                    size,
                )
            {
                pair.close(files, &mut batch, *geometry)?;
                *open = None;
            }
            if open.is_none() {
                let base = next_base.unwrap_or(0);
                *open = Some(OpenFilePair::create(files, topic, *queue_id, base, *geometry)?);
                *next_base = Some(base.saturating_add(geometry.log_file_bytes));
            }
            let Some(pair) = open.as_mut() else { return Ok(()) };
            let position = pair.base + pair.log_end + batch.records.len() as u64;
            batch.add(files, record, position, pair)?;
            if batch.records.len() >= FLUSH_BYTES { pair.flush(files, &mut batch) } else { Ok(()) }
        })?;
        if let Some(pair) = open.as_mut() {
            pair.flush(files, &mut batch)?;
        }
        Ok(stopped)
    }

    /// Writes the first files of a queue to `staging` and syncs them; their names there need not be durable.
    fn first_files(
        &mut self,
        going: &mut AppendTarget,
        staging: &Path,
    ) -> Result<(Vec<OutputPair>, AppendStop), StoreError> {
        let files = &self.feed.files;
        files.vfs.create_dir(staging).at(staging, "creating a staging folder")?;
        let mut writer = GenerationWriter::create(files, staging, going.geometry, 0)?;
        let stopped =
            self.each(&mut going.next, &mut going.keyless, going.geometry.largest_record(), |record| {
                writer.append(record)
            })?;
        let written = writer.finish(false)?;
        written.sync(files)?;
        Ok((written.pairs().to_vec(), stopped))
    }
}

/// Returns the places of the records of `units`; the first unit has `offset`. Offsets without a message, or with
/// an expired one, are skipped.
fn places(units: &[CqUnit], offset: i64, log_start: u64) -> Vec<RecordPlace> {
    let offsets = offset..;
    let place = |(unit, queue_offset): (&CqUnit, i64)| {
        let position = u64::try_from(unit.physical_offset).ok().filter(|_| unit.is_valid())?;
        let size = u32::try_from(unit.size).ok()?;
        (position >= log_start).then_some(RecordPlace {
            queue_offset,
            position,
            size,
            good_end: 0,
            passed: (0, 0),
        })
    };
    units.iter().zip(offsets).filter_map(place).collect()
}
