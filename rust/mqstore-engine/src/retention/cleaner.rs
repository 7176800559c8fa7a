//! Removes segments one at a time, in steps that a crash can interrupt anywhere.
//!
//! The background calls [`Cleaner::step`] at intervals, and tests call it by hand. [`Cleaner::expire`] removes
//! everything that is due at once. Both take the steps in the drawing of `plan`, which also describes crashes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mqstore_io::switch;
use mqstore_io::sync::{AtomicU64, Mutex, OnceLock, Ordering};

use super::holders::{SegmentHolder, keeping_backups};
use super::plan::{
    DeletionPlan, ExpiryTrigger, HeldSegment, PlanInput, PlannedDeletion, RetentionRules, plan,
};
use super::preview::preview;
use super::report::{self, ExpireReport};
use super::stalled_groups::{StalledGroups, known_holders};
use super::unarchived::ArchiveRule;
use super::{uncompacted, wipe};
use crate::archive::state::{ArchiveLookup, ArchiveState};
use crate::engine::Engine;
use crate::engine::disk_space::DiskSpace;
use crate::read::segment_times::{SegmentTimes, times_of};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::events::{DeleteVerdict, ExpiredFile, ExpiredKind, is_in_hook};
use mqstore_base::options::Durability;
use mqstore_compaction::UncompactedSearch;
use mqstore_log::commit_log::Segment;

/// Interval of the background checks (`cleanResourceInterval`).
const LOOK: Duration = Duration::from_secs(10);

/// Interval while appends are refused, or while a due segment cannot be removed yet.
const SOON: Duration = Duration::from_secs(1);

/// Interval of checks whether a removed segment is still in use.
const HELD_LOOK: Duration = Duration::from_millis(500);

/// After a look at the unfinished messages that took long, the next one waits for this multiple of its duration, at
/// most for [`LONGEST_REST`].
const REST_FACTOR: u32 = 100;

/// See [`REST_FACTOR`].
const LONGEST_REST: Duration = Duration::from_secs(600);

/// Number of segments that the background removes before it rests for [`LOOK`] (`deleteFileBatchMax`).
const BATCH: u32 = 10;

/// Counters of removed files since the open.
#[derive(Debug, Default)]
pub(crate) struct ExpiryCounters {
    /// Segments deleted.
    pub expired_segments: AtomicU64,
    /// Bytes of deleted files, including queue and index files.
    pub expired_bytes: AtomicU64,
}

/// Finds the first delayed message and the first half message that wait in the store.
pub(crate) type FindDeliveries = Box<dyn Fn() -> Result<Vec<SegmentHolder>, StoreError> + Send + Sync>;

/// Removes due files of a store that is open for writing.
pub(crate) struct Cleaner {
    pub(super) engine: Arc<Engine>,
    rules: RetentionRules,
    /// Set by the layer that delivers messages, once.
    pub(super) deliveries: OnceLock<FindDeliveries>,
    /// What the replicas keep, by number, and until when in epoch milliseconds.
    replicas: Mutex<BTreeMap<u64, (SegmentHolder, i64)>>,
    /// Counters of removed files.
    pub counters: ExpiryCounters,
    rest_ms: AtomicU64,
    /// The messages that kept the oldest due segment at the last look. Apart from the state, like `held`.
    kept_by: Mutex<Vec<SegmentHolder>>,
    /// Removed segments that something still uses, so that their space is not free. Apart from the state, which is
    /// locked while hooks run.
    held: Mutex<Vec<Arc<Segment>>>,
    /// Locked while a segment is removed and while the archive changes, never while a hook runs.
    archive: Mutex<()>,
    archive_rule: ArchiveRule,
    state: Mutex<CleanerState>,
}

#[derive(Debug, Default)]
struct CleanerState {
    /// Times of sealed segments, by offset.
    times: BTreeMap<u64, SegmentTimes>,
    /// The durable mark, the queues and the index do not need the log before this offset.
    secured: u64,
    /// The minimum of the log for which queue and index files were last cleaned.
    cleaned_min: u64,
    /// The segment that is due but cannot be removed yet.
    waiting: Option<WaitingHook>,
    /// The time of the last removal of a segment.
    deleted_at: Option<Duration>,
    /// Until this time, the last look at unfinished messages counts, because it took long.
    next_look: Duration,
    /// Since when groups keep due segments, once the file was read.
    stalled: Option<StalledGroups>,
    /// Segments deleted since the last rest.
    batch: u32,
    /// The background rests until this time.
    rest_until: Duration,
    /// Removed segments whose bytes must still be overwritten.
    wipes: Vec<Arc<Segment>>,
    /// Whether the segments that an earlier process left to overwrite are done.
    swept: bool,
}

#[derive(Debug)]
struct WaitingHook {
    base: u64,
    /// The time since which readers use the segment.
    held_since: Option<Duration>,
    /// The time at which to call the hook again.
    ask_at: Option<Duration>,
    /// Until this time, the background assumes that a compaction still has to read the segment.
    uncompacted_until: Option<Duration>,
    /// The reason that was last reported.
    reported: String,
}

impl CleanerState {
    /// Returns the state of the segment at `base`, which is due but cannot be removed yet.
    fn wait_for(&mut self, base: u64) -> &mut WaitingHook {
        let new = || WaitingHook {
            base,
            held_since: None,
            ask_at: None,
            uncompacted_until: None,
            reported: String::new(),
        };
        let waiting = self.waiting.get_or_insert_with(new);
        if waiting.base != base {
            *waiting = new();
        }
        waiting
    }
}

/// What a plan is for.
#[derive(Clone, Copy)]
struct PlanRequest {
    trigger: ExpiryTrigger,
    /// Maximum number of segments.
    limit: usize,
    /// Whether its segments will be removed. Only then the times of stalled groups start.
    is_real: bool,
}

/// The result for a due segment.
enum DeleteOutcome {
    Gone(ExpiredFile),
    /// It stays for now.
    Kept(String),
}

impl Cleaner {
    /// Returns the replicas that keep segments now.
    pub(crate) fn replicas(&self) -> Vec<SegmentHolder> {
        let now_ms = self.engine.files.clock.now_ms();
        self.replicas.lock().values().filter(|one| now_ms < one.1).map(|one| one.0.clone()).collect()
    }

    /// Returns the backups and replicas that keep segments now.
    ///
    /// # Errors
    /// Errors of reading the marks of the backups.
    pub(crate) fn copies(&self) -> Result<Vec<SegmentHolder>, StoreError> {
        Ok([keeping_backups(&self.engine.files)?, self.replicas()].concat())
    }

    /// Keeps the segments that a replica does not have from a deletion by age, until a time in epoch milliseconds.
    /// `number` identifies the replica.
    pub(crate) fn keep_for_replica(&self, number: u64, holder: SegmentHolder, until_ms: i64) {
        let now_ms = self.engine.files.clock.now_ms();
        let mut replicas = self.replicas.lock();
        replicas.retain(|_, (_, until_ms)| now_ms < *until_ms);
        replicas.insert(number, (holder, until_ms));
    }

    /// Makes a cleaner for the rules of the engine's options. It does nothing before [`Self::step`].
    pub(crate) fn new(engine: &Arc<Engine>) -> Self {
        Self {
            engine: Arc::clone(engine),
            rules: RetentionRules::of(&engine.options),
            deliveries: OnceLock::new(),
            replicas: Mutex::default(),
            counters: ExpiryCounters::default(),
            kept_by: Mutex::default(),
            rest_ms: AtomicU64::new(LOOK.as_millis() as u64),
            held: Mutex::default(),
            archive: Mutex::default(),
            archive_rule: ArchiveRule::new(&engine.files, &engine.options.hooks),
            state: Mutex::default(),
        }
    }

    /// Returns the paths of removed segments whose space is not free yet, because something uses their bytes.
    pub(crate) fn held_files(&self) -> Vec<PathBuf> {
        self.held.lock().iter().map(|segment| segment.path()).collect()
    }

    /// Returns how long the next [`Self::step`] has nothing to do.
    pub(crate) fn rest(&self) -> Duration {
        Duration::from_millis(self.rest_ms.load(Ordering::Relaxed))
    }

    /// One round of the background: checks the disks and removes at most one due segment.
    ///
    /// # Errors
    /// I/O errors; the next call tries again.
    pub(crate) fn step(&self) -> Result<(), StoreError> {
        let outcome = self.round();
        let rest = outcome.as_ref().map_or(LOOK, |rest| *rest);
        self.rest_ms.store(rest.as_millis() as u64, Ordering::Relaxed);
        outcome.map(drop)
    }

    fn round(&self) -> Result<Duration, StoreError> {
        let space = self.engine.append_gate.check_disks()?;
        // An explicit expiry is running; the background has nothing to do.
        let Some(mut state) = self.state.try_lock() else { return Ok(SOON) };
        self.sweep(&mut state)?;
        let later = if !self.held.lock().is_empty() {
            HELD_LOOK
        } else if self.engine.append_gate.is_refusing() || !state.wipes.is_empty() {
            SOON
        } else {
            LOOK
        };
        if !self.rules.retains() {
            return Ok(later);
        }
        let now = self.engine.files.clock.monotonic();
        if now < state.rest_until {
            return Ok(later.min(state.rest_until.saturating_sub(now)));
        }
        let pause = Duration::from_millis(self.engine.options.delete_interval_ms);
        let left = state.deleted_at.map_or(Duration::ZERO, |at| (at + pause).saturating_sub(now));
        if !left.is_zero() {
            return Ok(left);
        }
        if !self.kept_by.lock().is_empty() && now < state.next_look {
            return Ok(later.max(state.next_look.saturating_sub(now)));
        }
        let hour = self.engine.files.clock.local_time(self.engine.files.clock.now_ms()).hour;
        let request = PlanRequest { trigger: ExpiryTrigger::Hour(hour), limit: 1, is_real: true };
        let plan = self.plan(&mut state, &space, request)?;
        if let Some(held) = &plan.held {
            self.report_held(&mut state, held);
        }
        let Some(planned) = plan.deletions.first() else {
            state.batch = 0;
            self.remove_old_derived(&mut state, &mut |_| {})?;
            return Ok(later);
        };
        if let Some(end) = planned.closes_at {
            // The next round looks at it again.
            self.engine.log.close_segment(end)?;
            return Ok(Duration::ZERO);
        }
        match self.delete(&mut state, planned, false)? {
            DeleteOutcome::Kept(_) => Ok(later.min(SOON)),
            DeleteOutcome::Gone(_) => {
                state.batch += 1;
                if state.batch >= BATCH {
                    state.batch = 0;
                    state.rest_until = now + LOOK;
                    self.remove_old_derived(&mut state, &mut |_| {})?;
                }
                Ok(pause)
            }
        }
    }

    /// Removes everything that is due now, at any hour. `carry_on` is called between two files; if it returns an error,
    /// the work ends with it. With `dry_run` it reports the files and changes nothing.
    ///
    /// # Errors
    /// [`StoreError::Busy`] inside a hook; I/O errors, after which removed files stay removed.
    pub(crate) fn expire(
        &self,
        dry_run: bool,
        carry_on: &mut dyn FnMut() -> Result<(), StoreError>,
    ) -> Result<ExpireReport, StoreError> {
        if is_in_hook() {
            let reason = "a hook that runs during an expiry cannot expire: it would wait for itself".into();
            return Err(StoreError::Busy { reason });
        }
        let space = self.engine.append_gate.check_disks()?;
        let mut state = self.state.lock();
        self.archive_rule.look_again();
        let mut report = ExpireReport { dry_run, ..ExpireReport::default() };
        let request = PlanRequest { trigger: ExpiryTrigger::Asked, limit: usize::MAX, is_real: !dry_run };
        let mut plan = self.plan(&mut state, &space, request)?;
        if dry_run {
            self.preview(&plan, &mut report)?;
            return Ok(report);
        }
        self.sweep(&mut state)?;
        if let Some(end) = plan.deletions.last().and_then(|last| last.closes_at) {
            self.engine.log.close_segment(end)?;
            plan = self.plan(&mut state, &space, request)?;
        }
        let mut stopped = false;
        for (number, planned) in plan.deletions.iter().enumerate() {
            carry_on()?;
            if number > 0 {
                self.pause(carry_on)?;
            }
            match self.delete(&mut state, planned, true)? {
                DeleteOutcome::Gone(file) => report.add(file),
                DeleteOutcome::Kept(reason) => {
                    report.kept.push(reason);
                    stopped = true;
                    break;
                }
            }
        }
        if let Some(held) = plan.held.as_ref().filter(|_| !stopped) {
            self.report_held(&mut state, held);
            report.add_held(held);
        }
        self.remove_old_derived(&mut state, &mut |file| report.add(file))?;
        report.log_min_offset = self.engine.log.list().min_offset();
        report.note_rest(&plan, self.engine.log.appended());
        Ok(report)
    }

    /// Returns the messages that keep the oldest due segment now, by log offset; those of the last look while an expiry
    /// runs, or if a look takes long.
    pub(crate) fn kept_by(&self) -> Result<Vec<SegmentHolder>, StoreError> {
        if self.rules.retention_ms.is_some()
            && let Some(mut state) = self.state.try_lock()
            && self.engine.files.clock.monotonic() >= state.next_look
        {
            let request = PlanRequest { trigger: ExpiryTrigger::Asked, limit: 1, is_real: false };
            self.plan(&mut state, &DiskSpace::look(&self.engine.files)?, request)?;
        }
        Ok(self.kept_by.lock().clone())
    }

    /// Replaces the archive of the store by the result of `change`, which gets the present one.
    ///
    /// # Errors
    /// [`StoreError::Busy`] inside a hook; errors of `change` and of the system.
    pub(crate) fn set_archive(
        &self,
        change: &mut dyn FnMut(ArchiveLookup) -> ArchiveLookup,
    ) -> Result<(), StoreError> {
        if is_in_hook() {
            let reason =
                "a hook cannot change the archive: a removal of segments may be waiting for it".into();
            return Err(StoreError::Busy { reason });
        }
        let _archive = self.archive.lock();
        let known = ArchiveState::load(&self.engine.files);
        let before = known.as_ref().ok().cloned();
        let new = change(known)?;
        if before.is_some_and(|before| before == new) {
            return Ok(());
        }
        new.unwrap_or_else(ArchiveState::removed).save(&self.engine.files)
    }

    /// See [`crate::Archive::advance`].
    pub(crate) fn advance_archive(&self, settings: &str, next: &ArchiveState) -> ArchiveLookup {
        let mut outcome = None;
        self.set_archive(&mut |known| {
            outcome = known?.map(|known| {
                if known.settings != settings {
                    return known;
                }
                ArchiveState { archived_to: next.archived_to.max(known.archived_to), ..next.clone() }
            });
            Ok(outcome.clone())
        })?;
        Ok(outcome)
    }

    /// Returns why `segment` must stay for the archive. With `looks`, an earlier look at the archive does not count.
    pub(crate) fn unarchived(&self, segment: &Segment, looks: bool) -> Option<String> {
        if looks {
            self.archive_rule.look_again();
        }
        self.archive_rule.why(segment, self.engine.log.list().min_offset())
    }

    /// Runs `replace`, which gives the name of `segment` to another file, while no segment is removed and the archive
    /// does not change. Returns why the segment must keep its file, if it must.
    ///
    /// # Errors
    /// Those of `replace`.
    pub(crate) fn replace_segment(
        &self,
        segment: &Segment,
        replace: impl FnOnce() -> Result<(), StoreError>,
    ) -> Result<Option<String>, StoreError> {
        let _archive = self.archive.lock();
        if segment.is_retired() {
            return Ok(Some("it was deleted meanwhile".to_owned()));
        }
        match self.archive_rule.why_after_look(segment) {
            Some(why) => Ok(Some(why)),
            None => replace().map(|()| None),
        }
    }

    /// Whether `segment` was deleted. Waits for a removal that is running.
    pub(crate) fn has_deleted(&self, segment: &Segment) -> bool {
        let _archive = self.archive.lock();
        segment.is_retired()
    }

    /// Rests between two removals, in slices, so that a waiting caller can be interrupted.
    fn pause(&self, carry_on: &mut dyn FnMut() -> Result<(), StoreError>) -> Result<(), StoreError> {
        let mut left = Duration::from_millis(self.engine.options.delete_interval_ms);
        while !left.is_zero() {
            let slice = left.min(Duration::from_millis(50));
            self.engine.files.clock.sleep(slice);
            left -= slice;
            carry_on()?;
        }
        Ok(())
    }

    fn preview(&self, plan: &DeletionPlan, report: &mut ExpireReport) -> Result<(), StoreError> {
        let list = self.engine.log.list();
        let check = uncompacted::UncompactedCheck {
            files: &self.engine.files,
            options: &self.engine.options,
            list: &list,
            log_end: self.engine.log.appended(),
            queues: &self.engine.queues,
            trusted: self.engine.flusher.dispatched(),
        };
        preview(&check, &self.archive_rule, &self.engine.index, plan, report)
    }

    fn plan(
        &self,
        state: &mut CleanerState,
        space: &DiskSpace,
        request: PlanRequest,
    ) -> Result<DeletionPlan, StoreError> {
        let list = self.engine.log.list();
        let min = list.min_offset();
        state.times = state.times.split_off(&min);
        let scene = PlanInput {
            list: &list,
            end: self.engine.log.appended(),
            least_closed_bytes: self.engine.options.allocation_bytes,
            now_ms: self.engine.files.clock.now_ms(),
            trigger: request.trigger,
            space,
        };
        let begun = self.engine.files.clock.monotonic();
        let (times, stalled) = (&mut state.times, &mut state.stalled);
        let plan = plan(
            &self.rules,
            &scene,
            request.limit,
            &mut |segment| {
                let read = || times_of(&self.engine.files, &list, segment, scene.end);
                if segment.end_offset() > scene.end {
                    // The active segment receives records.
                    return read();
                }
                *times.entry(segment.base_offset()).or_insert_with(read)
            },
            &mut |due_end| {
                let mut known = stalled.clone().unwrap_or_else(|| StalledGroups::load(&self.engine.files));
                let holders = known_holders(
                    &self.engine.options,
                    self.unfinished()?,
                    &mut known,
                    (due_end, scene.now_ms),
                );
                if request.is_real && stalled.as_ref() != Some(&known) {
                    if self.engine.options.group_timeout_ms.is_some() {
                        // Without it, the times only start later. A full disk must not stop the deletion.
                        let _ = known.save(&self.engine.files);
                    }
                    *stalled = Some(known);
                }
                Ok(holders)
            },
        )?;
        let now = self.engine.files.clock.monotonic();
        state.next_look = now + (now.saturating_sub(begun) * REST_FACTOR).min(LONGEST_REST);
        *self.kept_by.lock() = plan.held.as_ref().map_or_else(Vec::new, |held| held.holders.clone());
        Ok(plan)
    }

    /// Reports that unfinished messages keep a segment: once for the same groups and topics, whatever their progress.
    fn report_held(&self, state: &mut CleanerState, held: &HeldSegment) {
        let name = |one: &SegmentHolder| format!("{:?} {:?} {}", one.kind, one.group, one.topic);
        let names: Vec<String> = held.holders.iter().map(name).collect();
        let (names, waiting) = (names.join(", "), state.wait_for(held.segment.base_offset()));
        if waiting.reported != names {
            waiting.reported = names;
            self.engine.options.hooks.tell("segment_kept", Some(&report::held(held)), held.why());
        }
    }

    /// Removes the oldest segment, unless something keeps it.
    fn delete(
        &self,
        state: &mut CleanerState,
        planned: &PlannedDeletion,
        asked: bool,
    ) -> Result<DeleteOutcome, StoreError> {
        let segment = &planned.segment;
        let file = report::segment(planned);
        if let Some(reason) = self.keeps(state, segment, &file, asked)? {
            return Ok(DeleteOutcome::Kept(reason));
        }
        let aside = self.wipe_place(segment)?;
        let archive = self.archive.lock();
        if let Some(why) = self.archive_rule.why_after_look(segment) {
            // The archive changed after the first look.
            drop(archive);
            return Ok(DeleteOutcome::Kept(self.report_kept(state, &file, segment.base_offset(), &why)));
        }
        self.end_reads_of(segment)?;
        let gone = self
            .engine
            .log
            .retire_oldest(segment.base_offset(), |segment| match &aside {
                Some(aside) => segment.retire_to(aside),
                None => segment.retire(),
            })
            .at_file(|| file.path.clone(), "deleting a log segment")?;
        drop(archive);
        state.waiting = None;
        state.deleted_at = Some(self.engine.files.clock.monotonic());
        if !gone {
            return Ok(DeleteOutcome::Kept(format!("{}: it is not the oldest segment", file.path.display())));
        }
        self.counters.expired_segments.fetch_add(1, Ordering::Relaxed);
        self.counters.expired_bytes.fetch_add(file.bytes, Ordering::Relaxed);
        if let Some(folder) = aside.as_deref().and_then(std::path::Path::parent) {
            switch::step("retention.sync_aside", || self.engine.files.vfs.sync_dir(folder))
                .at(folder, "syncing the folder of segments to wipe")?;
            state.wipes.push(Arc::clone(segment));
        }
        self.held.lock().push(Arc::clone(segment));
        self.engine.options.hooks.tell("segment_deleted", Some(&file), file.reason.clone());
        self.free_what_is_unused(state)?;
        Ok(DeleteOutcome::Gone(file))
    }

    /// Lets no read start in the segment or before it. In memory only.
    pub(crate) fn end_reads_of(&self, segment: &Segment) -> Result<(), StoreError> {
        // First, because a read continues in the archive up to there: it must not be before the begin of a queue.
        self.engine.removed_to.store(segment.end_offset(), Ordering::SeqCst);
        self.engine.queues.correct_min_offsets(segment.end_offset())
    }

    /// Returns why a due segment must stay for now, if it must.
    fn keeps(
        &self,
        state: &mut CleanerState,
        segment: &Arc<Segment>,
        file: &ExpiredFile,
        asked: bool,
    ) -> Result<Option<String>, StoreError> {
        let base = segment.base_offset();
        if switch::on("retention.secure") && !self.sync_before_delete(state, segment, asked)? {
            return Ok(Some(self.report_kept(
                state,
                file,
                base,
                "some of its records are not yet synced and dispatched",
            )));
        }
        if let Some(why) = self.unarchived(segment, false) {
            return Ok(Some(self.report_kept(state, file, base, &why)));
        }
        if let Some(text) = self.uncompacted(state, segment, file, asked)? {
            return Ok(Some(text));
        }
        let now = self.engine.files.clock.monotonic();
        let waiting = state.waiting.as_ref().filter(|waiting| waiting.base == base);
        let (ask_at, held_since) = waiting.map_or((None, None), |one| (one.ask_at, one.held_since));
        if ask_at.is_some_and(|at| now < at) {
            return Ok(Some(self.report_kept(state, file, base, "before_delete asked for more time")));
        }
        let since = held_since.unwrap_or(now);
        let limit = Duration::from_millis(self.engine.options.held_limit_ms);
        if segment.holders() > 0 && now.saturating_sub(since) < limit {
            let text = self.report_kept(state, file, base, "a reader is using it");
            let waiting = state.wait_for(base);
            (waiting.held_since, waiting.ask_at) = (Some(since), None);
            return Ok(Some(text));
        }
        match self.engine.options.hooks.ask(file) {
            DeleteVerdict::Delete => {}
            verdict => {
                let (wait, text) = match verdict {
                    DeleteVerdict::Later(wait) => (wait, "before_delete asked for more time"),
                    _ => (LOOK, "before_delete keeps it"),
                };
                let text = self.report_kept(state, file, base, text);
                state.wait_for(base).ask_at = Some(now + wait);
                return Ok(Some(text));
            }
        }
        Ok(None)
    }

    /// Returns why a segment must stay for a compaction. The background checks this only from time to time.
    fn uncompacted(
        &self,
        state: &mut CleanerState,
        segment: &Segment,
        file: &ExpiredFile,
        asked: bool,
    ) -> Result<Option<String>, StoreError> {
        let (base, now) = (segment.base_offset(), self.engine.files.clock.monotonic());
        if self.engine.options.expire_uncompacted {
            return Ok(None);
        }
        if let Some(waiting) = state.waiting.as_ref().filter(|waiting| waiting.base == base && !asked)
            && waiting.uncompacted_until.is_some_and(|until| now < until)
        {
            return Ok(Some(waiting.reported.clone()));
        }
        let list = self.engine.log.list();
        // Everything in the segment is dispatched already.
        let mut search = UncompactedSearch::load(&self.engine.files, &list)?;
        let Some(why) = uncompacted::why(&mut search, &self.engine.queues, true, segment)? else {
            return Ok(None);
        };
        let text = self.report_kept(state, file, base, &why);
        state.wait_for(base).uncompacted_until = Some(now + LOOK);
        Ok(Some(text))
    }

    /// Reports, once, why a segment stays.
    fn report_kept(&self, state: &mut CleanerState, file: &ExpiredFile, base: u64, why: &str) -> String {
        let waiting = state.wait_for(base);
        if waiting.reported != why {
            why.clone_into(&mut waiting.reported);
            self.engine.options.hooks.tell("segment_kept", Some(file), why.to_owned());
        }
        format!("{}: {why}", file.path.display())
    }

    /// Whether no file that a later open reads points into `segment`. Syncs to make this so, if it may sync.
    fn sync_before_delete(
        &self,
        state: &mut CleanerState,
        segment: &Segment,
        asked: bool,
    ) -> Result<bool, StoreError> {
        if segment.end_offset() <= state.secured {
            return Ok(true);
        }
        if self.engine.options.durability == Durability::Manual && !asked {
            return Ok(false);
        }
        self.engine.log.flush_to(self.engine.log.appended())?;
        let point = self.engine.log.sync_point();
        self.engine.flusher.flush_all(false)?;
        let dispatched = self.engine.flusher.dispatched();
        // Again for the other slot of the durable mark: after a torn write of one slot, an open reads the other.
        if switch::on("retention.second_slot") {
            self.engine.flusher.flush_all(false)?;
        }
        state.secured = point.position.min(dispatched);
        Ok(segment.end_offset() <= state.secured)
    }

    fn wipe_place(&self, segment: &Segment) -> Result<Option<PathBuf>, StoreError> {
        if !self.engine.options.secure_wipe {
            return Ok(None);
        }
        let place = self.engine.files.wipe_place(&segment.path())?;
        if let Some(folder) = place.parent() {
            self.engine.files.make_folder(folder)?;
        }
        Ok(Some(place))
    }

    /// Frees the space of removed segments that are not in use any more, and overwrites those that must be.
    fn free_what_is_unused(&self, state: &mut CleanerState) -> Result<(), StoreError> {
        self.held.lock().retain(|segment| !segment.free_retired());
        while let Some(at) = state.wipes.iter().position(|segment| !segment.is_in_use()) {
            let segment = state.wipes.swap_remove(at);
            if let Err(error) = wipe::wipe(&self.engine.files, &segment.path()) {
                state.wipes.push(segment);
                return Err(error);
            }
            self.engine.options.hooks.tell("segment_wiped", None, segment.path().display().to_string());
        }
        Ok(())
    }

    /// Overwrites the segments that an earlier process left, at the first call, and frees those that readers released.
    fn sweep(&self, state: &mut CleanerState) -> Result<(), StoreError> {
        if !state.swept {
            wipe::finish(&self.engine.files)?;
            state.swept = true;
        }
        self.free_what_is_unused(state)
    }

    /// Removes queue and index files that are completely before the start of the log.
    fn remove_old_derived(
        &self,
        state: &mut CleanerState,
        found: &mut dyn FnMut(ExpiredFile),
    ) -> Result<(), StoreError> {
        let log_min = self.engine.log.list().min_offset();
        if log_min <= state.cleaned_min {
            return Ok(());
        }
        let mut removed = |file: ExpiredFile, kind: &'static str| {
            self.counters.expired_bytes.fetch_add(file.bytes, Ordering::Relaxed);
            self.engine.options.hooks.tell(kind, Some(&file), file.reason.clone());
            found(file);
        };
        let synced_to = self.engine.flusher.dispatched();
        for queue in self.engine.queues.all() {
            queue.remove_below(log_min, synced_to, &mut |file| {
                removed(report::derived(file, ExpiredKind::Queue, log_min), "queue_file_deleted");
            })?;
        }
        for queue in self.engine.queues.batches() {
            queue.remove_below(log_min, synced_to, &mut |file| {
                removed(report::derived(file, ExpiredKind::Queue, log_min), "queue_file_deleted");
            })?;
        }
        self.engine.index.leave_old_file(log_min)?;
        self.engine.index.remove_below(log_min, &mut |file| {
            removed(report::derived(file, ExpiredKind::Index, log_min), "index_file_deleted");
        })?;
        state.cleaned_min = log_min;
        Ok(())
    }
}
