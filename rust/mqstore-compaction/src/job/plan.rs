//! Plans a compaction job.
//!
//! Owns [`plan`]: it selects the queues, the records of each, the lengths of the files, and the generation to start
//! from. The store's lock is held during planning, so that the ends of the log, of the queues and of the compaction
//! files belong together. It need not be held while the tasks run. Planning writes only into the job's own folder.
//!
//! The snapshot of a queue ends at the end of the log. Its older messages come from the compaction files, and newer
//! ones from the commit log, along the consume queue if that can be trusted: the store was closed cleanly, and the
//! queue is not damaged. Otherwise the log itself is walked.
//!
//! Source for the definition of a compaction topic: `CleanupPolicyUtils#getDeletePolicy`, `CompactionStore#load`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mqstore_io::Access;

use super::documents::{CompactionPlan, LogPart, QueueTask};
use super::job_folder::{Job, StartOutcome, fresh_token};
use super::options::{CompactionOptions, Keyless};
use super::store_lock::{OpenStore, StoreLockHeld};
use crate::files::file_sizes::CompactionGeometry;
use crate::files::folder::{check_names, queue_ids};
use crate::files::generation::{GenerationState, KnownFiles};
use crate::files::manifest::{GenerationFacts, Manifest};
use crate::files::positions::PositionCheckpoint;
use crate::files::topics::CompactionTopics;
use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;
use mqstore_base::topic_floors::TopicFloors;
use mqstore_log::commit_log::{LogScanner, ScanChecks, ScanItem, SegmentList};
use mqstore_log::consume_queue::{ConsumeQueue, QueueSet};

/// Number of queue units in one read.
const CHUNK_UNITS: usize = 16_384;

/// A plan and its job.
#[derive(Debug)]
pub struct PlannedJob {
    /// The plan.
    pub plan: CompactionPlan,
    /// The job; keep it until the plan is published or abandoned. `None` if the job is already published.
    pub job: Option<Job>,
}

/// Plans the compaction of `topics` (`None`: all compaction topics) and starts the job.
///
/// # Errors
/// [`StoreError::TopicNotFound`], [`StoreError::InvalidOption`] for a topic that is not a compaction
/// topic (without `force`), [`StoreError::Busy`] if another driver runs a job with the same id.
pub fn plan(
    files: &StoreFiles,
    held: &StoreLockHeld<'_>,
    topics: Option<&[String]>,
    options: &CompactionOptions,
) -> Result<PlannedJob, StoreError> {
    let planner = Planner::new(files, options, held)?;
    let topics = planner.choose(topics)?;
    planner.start(topics)
}

/// The input of a plan.
pub(crate) struct Planner<'a> {
    pub(crate) files: &'a StoreFiles,
    pub(crate) options: &'a CompactionOptions,
    pub(crate) topics: CompactionTopics,
    pub(crate) list: Arc<SegmentList>,
    pub(crate) queues: Arc<QueueSet>,
    open: Option<&'a OpenStore<'a>>,
    /// Whether consume queues may be followed.
    pub(crate) trusted: bool,
    /// No consume queue points past this log offset.
    covered: u64,
    /// If set, the only queues to plan, each with one past its last restored queue offset.
    pub(crate) restored: Option<BTreeMap<(String, i32), i64>>,
}

/// The topics to compact, and the skipped ones.
pub(crate) struct ChosenTopics {
    pub(crate) topics: BTreeSet<String>,
    pub(crate) skipped: Vec<String>,
}

/// A queue, and one past the last queue offset that was found for it.
pub(crate) type QueueEnd = ((String, i32), i64);

impl<'a> Planner<'a> {
    pub(crate) fn new(
        files: &'a StoreFiles,
        options: &'a CompactionOptions,
        held: &'a StoreLockHeld<'a>,
    ) -> Result<Self, StoreError> {
        options.geometry()?;
        let topics = CompactionTopics::load(files)?;
        if let StoreLockHeld::Open(open) = held {
            return Ok(Self {
                topics,
                trusted: true,
                covered: (open.catch_up)()?,
                list: Arc::new(SegmentList::load_if_any(files)?),
                queues: Arc::clone(open.queues),
                open: Some(open),
                files,
                options,
                restored: None,
            });
        }
        let list = SegmentList::load_if_any(files)?;
        let floors = TopicFloors::new(topics.floors().clone());
        let queues = QueueSet::load(files, 0, Access::Read, &floors)?;
        queues.recover_bounds()?;
        let ends = queues.all().iter().map(|queue| queue.max_physical_end()).max();
        let covered = ends.and_then(|end| u64::try_from(end).ok()).unwrap_or(0).max(list.min_offset());
        let clean = files.vfs.stat(&files.abort()).is_err();
        Ok(Self {
            topics,
            trusted: clean && covered <= list.end_offset(),
            covered,
            list: Arc::new(list),
            queues: Arc::new(queues),
            open: None,
            files,
            options,
            restored: None,
        })
    }

    /// Plans a job for these topics and starts it.
    pub(crate) fn start(&self, topics: ChosenTopics) -> Result<PlannedJob, StoreError> {
        let (files, options) = (self.files, self.options);
        let id = options.job_id.clone().unwrap_or_else(|| format!("compact-{}", fresh_token(files)));
        let job = match Job::begin(files, &id)? {
            StartOutcome::Running(job) => job.set_resumable(options.job_id.is_some()),
            StartOutcome::Published(report) => {
                let plan = CompactionPlan {
                    job_id: id,
                    root: files.root.clone(),
                    tasks: Vec::new(),
                    skipped: Vec::new(),
                    published: Some(report),
                };
                return Ok(PlannedJob { plan, job: None });
            }
        };
        match self.plan(topics, &id, job.nonce()) {
            Ok(plan) => Ok(PlannedJob { plan, job: Some(job) }),
            Err(error) => {
                // Report the first error; the next job removes leftovers.
                let _ = job.abandon(files);
                Err(error)
            }
        }
    }

    fn exists(&self, topic: &str) -> bool {
        self.topics.exists(topic) || self.queues.topics().contains_key(topic)
    }

    pub(crate) fn choose(&self, topics: Option<&[String]>) -> Result<ChosenTopics, StoreError> {
        let mut skipped = Vec::new();
        let mut chosen = BTreeSet::new();
        match topics {
            Some(topics) => {
                for topic in topics {
                    self.require_compactable(topic)?;
                    chosen.insert(topic.clone());
                }
            }
            None => {
                for topic in self.topics.names() {
                    if self.topics.contains(topic) && check_names(topic, 0).is_ok() {
                        chosen.insert(topic.to_owned());
                    } else if self.topics.has_files(topic) {
                        skipped.push(format!("{topic}: has compaction files, but is not a compaction topic"));
                    }
                }
            }
        }
        Ok(ChosenTopics { topics: chosen, skipped })
    }

    fn require_compactable(&self, topic: &str) -> Result<(), StoreError> {
        check_names(topic, 0)?;
        if !self.exists(topic) {
            return Err(StoreError::TopicNotFound { topic: topic.to_owned(), queue_id: None });
        }
        if self.options.force || self.topics.contains(topic) {
            return Ok(());
        }
        Err(StoreError::InvalidOption {
            option: "topics",
            reason: format!(
                "{topic} is not a compaction topic, so RocketMQ would not serve the compacted files; create the topic \
                 with the attribute cleanup.policy=COMPACTION (it cannot be changed later), or use force"
            ),
        })
    }

    /// Returns each queue of `topics` that may have records, with one past its last queue offset in the walked part of
    /// the log, and the end of the log.
    pub(crate) fn queues_of(&self, topics: &BTreeSet<String>) -> Result<(Vec<QueueEnd>, u64), StoreError> {
        let known = self.queues.topics();
        let mut found: BTreeMap<&str, BTreeMap<i32, i64>> = BTreeMap::new();
        let mut unknown = false;
        for topic in topics {
            let ids = found.entry(topic).or_default();
            ids.extend(queue_ids(self.files, &self.files.compaction(), topic)?.into_iter().map(|id| (id, 0)));
            let in_queues = known.get(topic).filter(|_| self.trusted);
            unknown |= in_queues.is_none();
            ids.extend(in_queues.into_iter().flatten().map(|id| (*id, 0)));
        }
        // Without a trusted consume queue, only the log shows which queues exist.
        let from = if unknown { self.list.min_offset() } else { self.covered };
        let log_end = if self.open.is_some() {
            // All earlier records have their units.
            self.covered
        } else {
            self.for_each_record(from, |topic, queue_id, queue_offset| {
                if let Some(ids) = found.get_mut(topic) {
                    let end = ids.entry(queue_id).or_insert(0);
                    *end = queue_offset.saturating_add(1).max(*end);
                }
            })?
        };
        let queues = found
            .into_iter()
            .flat_map(|(topic, ids)| ids.into_iter().map(move |(id, end)| ((topic.to_owned(), id), end)))
            .filter(|((topic, id), _)| check_names(topic, *id).is_ok())
            .collect();
        Ok((queues, log_end))
    }

    /// Calls `visit` for each record from log offset `from` on; returns the end of the log.
    fn for_each_record(&self, from: u64, mut visit: impl FnMut(&str, i32, i64)) -> Result<u64, StoreError> {
        let list = Arc::clone(&self.list);
        let mut scanner = LogScanner::new(list, from, u64::MAX >> 1, ScanChecks { crc: true });
        loop {
            let offset = scanner.position();
            match scanner.next_item()? {
                ScanItem::Record(record) if self.topics.floors().hides(record.topic, offset) => {}
                ScanItem::Record(record) => visit(record.topic, record.queue_id, record.queue_offset),
                ScanItem::Filler { .. } => {}
                ScanItem::End { offset } => return Ok(offset),
                // A torn tail ends the log. Other damage lets the affected tasks fail.
                ScanItem::Damaged(damage) => {
                    if scanner.skip(&damage)?.is_none() {
                        return Ok(damage.offset);
                    }
                }
            }
        }
    }

    fn plan(&self, chosen: ChosenTopics, job_id: &str, nonce: &str) -> Result<CompactionPlan, StoreError> {
        let mut plan = CompactionPlan {
            job_id: job_id.to_owned(),
            root: self.files.root.clone(),
            tasks: Vec::new(),
            skipped: chosen.skipped,
            published: None,
        };
        let (queues, log_end) = self.queues_of(&chosen.topics)?;
        let manifest = Manifest::load(self.files)?;
        let positions = PositionCheckpoint::load(self.files, &self.files.compaction())?;
        let now_ms = self.files.clock.now_ms();
        let mut geometry = None;
        let mut states = Vec::new();
        for ((topic, queue_id), scanned_to) in queues {
            if self.restored.is_some() && self.restored_to(&topic, queue_id).is_none() {
                continue;
            }
            match GenerationState::load(self.files, &topic, queue_id) {
                Ok(state) => {
                    geometry = geometry.or(state.geometry);
                    states.push((topic, queue_id, state, scanned_to));
                }
                Err(error @ StoreError::Corrupt { .. }) => {
                    plan.skipped.push(format!("{topic}/{queue_id}: {error}"));
                }
                Err(error) => return Err(error),
            }
        }
        let geometry = match geometry {
            Some(geometry) => geometry,
            None => self.options.geometry()?,
        };
        for (topic, queue_id, state, scanned_to) in states {
            if !state.blocked.is_empty() {
                plan.skipped.push(format!("{topic}/{queue_id}: {}", state.blocked.join("; ")));
                continue;
            }
            let restored = self.restored_to(&topic, queue_id);
            // Facts about lost files do not apply to the files that replace them.
            let read = positions.end(&topic, queue_id);
            let facts = state.known(self.files, &manifest, &topic, queue_id)?.compacted_to(read);
            let known = facts.generation.filter(|_| restored.is_none());
            let previous_end = match restored {
                Some(end) => end,
                None => self.previous_end(&topic, queue_id, &facts)?,
            };
            let log = self.log_part(&topic, queue_id, previous_end, log_end);
            if restored.is_some() && log.queue_from > previous_end {
                plan.skipped
                    .push(format!("{topic}/{queue_id}: the log lost more messages meanwhile; restore again"));
                continue;
            }
            if previous_end == 0 && log.queue_from >= log.queue_to && log.scan_from >= log.log_end {
                continue;
            }
            let tombstones_below = self.tombstones_below(known, now_ms);
            let expired_to_ms = self.topics.config(&topic).and_then(|config| config.expired_to_ms(now_ms));
            let end = scanned_to.max(log.queue_to);
            if !self.options.force
                && known.is_some_and(|known| {
                    self.is_unchanged(known, end, tombstones_below) && !known.may_have_expired(expired_to_ms)
                })
            {
                plan.skipped.push(format!("{topic}/{queue_id}: unchanged"));
                continue;
            }
            let mut task = self.task(topic, queue_id, state, geometry, log, (job_id, nonce));
            task.previous_end = previous_end;
            task.restored = restored.is_some();
            let in_log = u64::try_from(task.log.queue_to - task.log.queue_from).unwrap_or(0);
            task.records = in_log.saturating_add(known.map_or(0, GenerationFacts::records));
            task.tombstones_below = tombstones_below;
            task.expired_to_ms = expired_to_ms;
            plan.tasks.push(task);
        }
        if let Some(open) = self.open {
            // All units that the tasks follow belong to records before this log offset.
            let end = (open.catch_up)()?;
            for task in &mut plan.tasks {
                if task.log.scan_from == task.log.log_end {
                    task.log.scan_from = end;
                }
                task.log.log_end = end;
            }
        }
        Ok(plan)
    }

    /// Returns the queue offset up to which a queue is read from its compaction files. Records that the compaction
    /// appender copied are read from the commit log, if it still has all of them: that is cheaper, and includes records
    /// without a key.
    fn previous_end(&self, topic: &str, queue_id: i32, known: &KnownFiles<'_>) -> Result<i64, StoreError> {
        let queue = self.trusted_queue(topic, queue_id).filter(|queue| queue.max_offset() >= known.end);
        let Some(queue) = queue else { return Ok(known.end) };
        let mut from = known.fed_from.max(queue.min_offset());
        let mut offset = from;
        while offset < known.end {
            let mut seen = 0;
            queue.read_each(offset, CHUNK_UNITS, |at, unit| {
                seen += 1;
                // The record expired or is damaged, so the copy is the only one.
                if !unit.is_valid()
                    || u64::try_from(unit.physical_offset).is_ok_and(|at| at < self.list.min_offset())
                {
                    from = at + 1;
                }
            })?;
            if seen == 0 {
                return Ok(known.end);
            }
            offset += seen;
        }
        Ok(from.min(known.end))
    }

    fn trusted_queue(&self, topic: &str, queue_id: i32) -> Option<Arc<ConsumeQueue>> {
        self.queues.get(topic, queue_id).filter(|queue| self.trusted && queue.damaged().is_none())
    }

    fn restored_to(&self, topic: &str, queue_id: i32) -> Option<i64> {
        self.restored.as_ref()?.get(&(topic.to_owned(), queue_id)).copied()
    }

    /// Returns the queue offset below which tombstones need not be kept.
    fn tombstones_below(&self, known: Option<&GenerationFacts>, now_ms: i64) -> i64 {
        match self.options.tombstone_retention_ms {
            0 => i64::MAX,
            retention => known.map_or(0, |known| known.tombstones_below(retention, now_ms)),
        }
    }

    /// Whether a run over a queue that ends at `end` would change nothing.
    fn is_unchanged(&self, known: &GenerationFacts, end: i64, tombstones_below: i64) -> bool {
        let all_stays = known.first_tombstone.is_none_or(|first| first >= tombstones_below)
            && (known.keyless == 0 || self.options.keyless == Keyless::Keep);
        end <= known.end && all_stays
    }

    fn task(
        &self,
        topic: String,
        queue_id: i32,
        state: GenerationState,
        geometry: CompactionGeometry,
        log: LogPart,
        (job_id, nonce): (&str, &str),
    ) -> QueueTask {
        QueueTask {
            job_id: job_id.to_owned(),
            nonce: nonce.to_owned(),
            root: self.files.root.clone(),
            topic,
            queue_id,
            geometry: state.geometry.unwrap_or(geometry),
            memory_bytes: self.options.memory_bytes,
            confirm_keys: self.options.confirm_keys,
            keyless: self.options.keyless,
            tombstones_below: 0,
            expired_to_ms: None,
            restored: false,
            records: 0,
            generation: state.token,
            previous_end: state.end,
            log,
        }
    }

    fn log_part(&self, topic: &str, queue_id: i32, previous_end: i64, log_end: u64) -> LogPart {
        let queue = self.trusted_queue(topic, queue_id);
        let queue_file_bytes = self.queues.file_bytes();
        // If other queues of the topic have files, a queue without files has no messages.
        let sisters = self.trusted && self.queues.topics().contains_key(topic);
        let (queue_from, queue_to, scan_from) = match queue {
            Some(queue) => (queue.min_offset().max(previous_end), queue.max_offset(), self.covered),
            None if sisters && self.queues.get(topic, queue_id).is_none() => (0, 0, self.covered),
            None => (0, 0, self.list.min_offset()),
        };
        LogPart {
            queue_from,
            queue_to: queue_to.max(queue_from),
            queue_file_bytes,
            scan_from: scan_from.min(log_end),
            floor: self.topics.floors().log_offset(topic),
            log_end,
        }
    }
}
