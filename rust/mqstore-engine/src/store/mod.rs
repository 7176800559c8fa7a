//! The store: one handle for all operations on a directory.
//!
//! A [`Store`] is cheap to clone and safe to share between threads. For writing, it holds RocketMQ's lock and runs
//! background services, for example for dispatch and flush. For reading, it holds no lock. After [`Store::close`] every
//! call returns [`StoreError::Closed`].

pub(crate) mod background;
pub(crate) mod background_task;
pub(crate) mod damage_notes;
mod expire;
pub(crate) mod group_offsets;
mod inspection;
pub(crate) mod lifecycle;
pub(crate) mod namespaces;
pub(crate) mod open;
pub(crate) mod quota;
pub(crate) mod services;
pub(crate) mod settings;
pub(crate) mod signals;
mod topic_deletion;
pub(crate) mod topics;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mqstore_format::CqUnit;
use mqstore_format::json::TopicConfig;
use mqstore_io::{Clock, Vfs};

use crate::Waiter;
use crate::read::reader::Reader;
use crate::read::view::{View, wanted_queue_ids};
use crate::retention::SegmentHolder;
use crate::topic_retention::OlderSlot;
use crate::write::append::RefusedMessage;
use crate::write::writer::Writer;
use mqstore_base::error::StoreError;
use mqstore_base::events::is_in_hook;
use mqstore_base::live_page::read_pace;
use mqstore_base::message::{Appended, NewMessage};
use mqstore_base::options::{OpenMode, RecoveryMode, StoreOptions};
use mqstore_base::store_files::StoreFiles;
use mqstore_compaction::ManifestCache;
use mqstore_log::consume_queue::ConsumeQueue;
use mqstore_log::recovery::{ProgressReporter, RecoveryWatcher};
use mqstore_meta::MetaLog;
use services::Services;

/// Longest time between two checks of a wait: an error that stops the store may wake no waiter.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// An open store.
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Arc<StoreInner>,
}

pub(crate) struct StoreInner {
    pub(crate) files: StoreFiles,
    mode: OpenMode,
    pub(crate) side: OpenSide,
    pub(crate) manifests: ManifestCache,
    /// See [`Store::find_deliveries_with`]. A writer's services use the copy in its life cycle.
    find_deliveries: OnceLock<FindDeliveriesIn>,
    /// The writer has it, too.
    pub(crate) older: OlderSlot,
    closed: AtomicBool,
}

/// Finds the first delayed message and the first half message that wait in a store.
pub type FindDeliveriesIn = fn(&Store) -> Result<Vec<SegmentHolder>, StoreError>;

pub(crate) enum OpenSide {
    Writer(Arc<Writer>, Services),
    Reader(Arc<Reader>),
}

/// One queue of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueInfo {
    /// The queue.
    pub queue_id: i32,
    /// The smallest offset that can be read.
    pub min_offset: i64,
    /// One more than the largest offset that can be read.
    pub max_offset: i64,
    /// Store time of the first message, in epoch milliseconds.
    pub min_store_timestamp_ms: Option<i64>,
    /// Store time of the last message, in epoch milliseconds.
    pub max_store_timestamp_ms: Option<i64>,
}

/// Counters and positions of an open store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages appended since the open.
    pub appends: u64,
    /// Bytes of their records.
    pub appended_bytes: u64,
    /// The first log offset.
    pub log_min_offset: u64,
    /// One more than the last visible log offset.
    pub log_max_offset: u64,
    /// The log offset up to which the log is synced.
    pub durable_offset: u64,
    /// The log offset up to which queues and index are built.
    pub dispatched_offset: u64,
    /// Number of segments of the log.
    pub segments: u64,
    /// Length of a segment in bytes.
    pub segment_bytes: u64,
    /// Number of segments removed since the open.
    pub expired_segments: u64,
    /// Bytes of the files removed since the open, including queue and index files.
    pub expired_bytes: u64,
    /// Paths of removed segments whose space is not free yet, because the program holds views of their bytes.
    pub held_files: Vec<PathBuf>,
    /// Bytes of all segments of the log.
    pub log_bytes: u64,
    /// Maximum bytes of all segments: the option `max_bytes`.
    pub max_bytes: Option<u64>,
    /// Appends refused since the open: the store was busy, the disk nearly full, or a quota used up.
    pub refused_appends: u64,
    /// Records that this process read near the end of the log since the open. Near means within 40 % of the machine's
    /// memory, so that the records are assumed to be in it. Reads of a queue's store times do not count.
    pub hot_reads: u64,
    /// Records that this process read further from the end of the log.
    pub cold_reads: u64,
    /// Maximum distance in bytes of such a record from the end of the log since the last call of `stats`; 0 if there
    /// was no such read. Source: `MessageStore#checkInMemByConsumeOffset`.
    pub reader_lag_bytes: u64,
    /// Reads of the log from the disk that waited for their turn since the open, because a writer of the store syncs:
    /// see [`mqstore_io::read_pace`].
    pub paced_reads: u64,
    /// Total time of these waits in milliseconds.
    pub paced_read_ms: u64,
    /// Number of damaged records, or damaged parts of the log, that reads skipped since the open.
    pub skipped_damage: u64,
    /// Number of queue and index files that are open.
    pub open_files: u64,
    /// Number of queue and index files that may stay open: the option of that name, or the store's share of the
    /// process's limit.
    pub max_open_files: u64,
    /// The messages that keep the oldest segment that is due by age, by log offset: of each group in each topic the
    /// first unfinished one, and the first delayed message and half message that wait.
    pub segments_kept_by: Vec<SegmentHolder>,
}

impl Store {
    /// Opens the store at `path`.
    ///
    /// # Errors
    /// [`StoreError::NotAStore`], [`StoreError::Locked`], [`StoreError::Corrupt`] (the open changed nothing then),
    /// [`StoreError::InvalidOption`], [`StoreError::DiskFull`], [`StoreError::Io`].
    pub fn open(
        vfs: Arc<dyn Vfs>,
        clock: Arc<dyn Clock>,
        path: &Path,
        mode: OpenMode,
        options: &StoreOptions,
    ) -> Result<Self, StoreError> {
        Self::open_watched(vfs, clock, path, mode, options, &mut |_| Ok(()))
    }

    /// Like [`Self::open`]; a recovery reports its progress to `watcher`, about once per mebibyte. If `watcher` returns
    /// an error, the open ends with that error, and the next open recovers the store.
    ///
    /// With [`RecoveryMode::ReadOnly`], a damaged store is opened for reading: see [`Self::mode`].
    pub fn open_watched(
        vfs: Arc<dyn Vfs>,
        clock: Arc<dyn Clock>,
        path: &Path,
        mode: OpenMode,
        options: &StoreOptions,
        watcher: RecoveryWatcher<'_>,
    ) -> Result<Self, StoreError> {
        options.validate()?;
        let mut files = StoreFiles::new(vfs, clock, path);
        files.max_open_files = options.max_open_files;
        let mut mode = mode;
        let side = if mode.writes() {
            if mode == OpenMode::Create {
                open::create(&files)?;
            }
            files = files.with_logs(options)?;
            if mode == OpenMode::Create {
                files.make_log_folders()?;
            }
            let lock;
            (files, lock) = open::begin_writing(files, options)?;
            let mut watch = ProgressReporter::new(&files.clock, watcher);
            match open::open_writer(&files, options, lock, &mut watch) {
                Ok(writer) => {
                    let services = Services::start(&writer)?;
                    OpenSide::Writer(writer, services)
                }
                Err(error @ StoreError::Corrupt { .. }) if options.recovery == RecoveryMode::ReadOnly => {
                    mode = OpenMode::Read;
                    let reader = Reader::open(&files, options)?;
                    reader.note(format!("the store is damaged and opened for reading only: {error}"));
                    OpenSide::Reader(Arc::new(reader))
                }
                Err(error) => return Err(error),
            }
        } else {
            files = files.for_reading()?.with_logs(options)?;
            OpenSide::Reader(Arc::new(Reader::open(&files, options)?))
        };
        let older = match &side {
            OpenSide::Writer(writer, _) => writer.older.clone(),
            OpenSide::Reader(_) => OlderSlot::default(),
        };
        let store = Self {
            inner: Arc::new(StoreInner {
                files,
                mode,
                side,
                manifests: ManifestCache::default(),
                find_deliveries: OnceLock::new(),
                older,
                closed: AtomicBool::new(false),
            }),
        };
        for note in store.notes() {
            options.hooks.tell("warning", None, note);
        }
        Ok(store)
    }

    /// Opens the store at `path` for reading, for scans. If queues must be derived, this happens at the first read of a
    /// queue.
    pub fn open_log(
        vfs: Arc<dyn Vfs>,
        clock: Arc<dyn Clock>,
        path: &Path,
        options: &StoreOptions,
    ) -> Result<Self, StoreError> {
        let mut files = StoreFiles::new(vfs, clock, path).for_reading()?.with_logs(options)?;
        files.max_open_files = options.max_open_files;
        let side = OpenSide::Reader(Arc::new(Reader::open_log(&files, options)?));
        Ok(Self {
            inner: Arc::new(StoreInner {
                files,
                mode: OpenMode::Read,
                side,
                manifests: ManifestCache::default(),
                find_deliveries: OnceLock::new(),
                older: OlderSlot::default(),
                closed: AtomicBool::new(false),
            }),
        })
    }

    /// Returns the root of the store.
    pub fn path(&self) -> &Path {
        &self.inner.files.root
    }

    /// Returns the first failed request to the URL of the store. Later answers could be incomplete, so all calls fail.
    /// `None` for a directory.
    pub fn failure(&self) -> Option<StoreError> {
        let failure = self.inner.files.vfs.failure()?;
        Some(StoreError::io(self.path(), "reading the store", failure))
    }

    /// Refuses a store that several processes cannot read together; see [`StoreFiles::refuse_division`].
    ///
    /// # Errors
    /// [`StoreError::Unsupported`].
    pub fn refuse_division(&self) -> Result<(), StoreError> {
        self.inner.files.refuse_division()
    }

    /// Refuses a store whose files never change after the open, because no new message can appear.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] for a tiered store.
    pub fn refuse_following(&self) -> Result<(), StoreError> {
        let Some(tiered) = self.inner.files.tiered() else { return Ok(()) };
        Err(StoreError::Unsupported {
            path: tiered.folder().to_path_buf(),
            reason: "a tiered store shows the messages of the open; open it again to see new ones".into(),
        })
    }

    /// Whether the store is at a URL, so that a read can take long.
    pub fn is_remote(&self) -> bool {
        self.inner.files.vfs.is_remote()
    }

    /// Returns the clock of the store.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.files.clock
    }

    /// Returns the mode of the open. It is [`OpenMode::Read`] also if the store is damaged and was opened with
    /// [`RecoveryMode::ReadOnly`].
    pub fn mode(&self) -> OpenMode {
        self.inner.mode
    }

    /// Whether the store is closed.
    pub fn is_closed(&self) -> bool {
        self.inner.closed.load(Ordering::Acquire)
    }

    /// Makes everything durable and releases the store. A second close is no error. If the close cannot make everything
    /// durable, it leaves the file `abort` and returns the cause.
    pub fn close(&self) -> Result<(), StoreError> {
        if is_in_hook() {
            let reason = "a hook that runs during an expiry cannot close the store: it would wait for itself";
            return Err(StoreError::Busy { reason: reason.into() });
        }
        let ended = if self.is_closed() { Ok(()) } else { self.end_tasks() };
        self.inner.close().and(ended)
    }

    /// In a child process after a fork: closes the descriptor of the lock without releasing the lock.
    pub fn disown_in_child(&self) {
        self.inner.closed.store(true, Ordering::Release);
        if let OpenSide::Writer(writer, _) = &self.inner.side {
            writer.lifecycle.disown_in_child();
        }
    }

    /// Returns notes about this store for the user, each once.
    pub fn notes(&self) -> Vec<String> {
        match &self.inner.side {
            OpenSide::Writer(writer, _) => writer.notes(),
            OpenSide::Reader(reader) => reader.notes(),
        }
    }

    /// Adds a note of an open for the user, unless it exists already, and tells the hook `on_event`. Do not hold a lock
    /// that a call of the store takes.
    pub fn add_note(&self, note: &str) {
        if self.notes().iter().any(|known| known == note) {
            return;
        }
        match &self.inner.side {
            OpenSide::Writer(writer, _) => {
                writer.lifecycle.note(note);
                writer.options.hooks.tell("warning", None, note.to_owned());
            }
            OpenSide::Reader(reader) => reader.note(note.to_owned()),
        }
    }

    /// Makes a topic with `queues` queues (1 to 65,536), or adds queues to a topic that has fewer. Durable when it
    /// returns. `attributes` apply to a new topic only.
    pub fn create_topic(
        &self,
        topic: &str,
        queues: u32,
        attributes: &[(String, String)],
    ) -> Result<(), StoreError> {
        let writer = self.writer("make topics")?;
        let was_removed = writer.topics.is_removed(topic);
        writer.topics.create(topic, queues, attributes)?;
        writer.refresh_quota(topic);
        writer.topics.store()?;
        let expires = |(name, _): &(String, String)| name == TopicConfig::EXPIRE_AFTER;
        if was_removed || attributes.iter().any(expires) {
            writer.live.note_topic_change();
        }
        // A wait for the whole topic includes new queues.
        writer.queues.wake_topic(topic);
        Ok(())
    }

    /// Makes a topic like an append to it, unless the topic exists.
    ///
    /// # Errors
    /// [`StoreError::TopicNotFound`] if `auto_create_topics` is off.
    pub fn make_topic(&self, topic: &str) -> Result<(), StoreError> {
        self.writer("make topics")?.make_missing(topic)
    }

    /// Returns the attributes of `topic`, as in RocketMQ's topic table.
    pub fn topic_attributes(&self, topic: &str) -> Result<Vec<(String, String)>, StoreError> {
        self.check()?;
        Ok(match &self.inner.side {
            OpenSide::Writer(writer, _) => writer.topics.attributes(topic),
            OpenSide::Reader(reader) => reader.attributes(topic),
        })
    }

    /// Returns the metadata of the store: topics, groups, committed offsets, progress of groups in queues.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`] and [`StoreError::Closed`].
    pub fn meta(&self) -> Result<Arc<MetaLog>, StoreError> {
        Ok(Arc::clone(&self.writer("change topics, groups or transactions")?.meta))
    }

    /// Appends one message.
    pub fn append(&self, message: &NewMessage<'_>) -> Result<Appended, StoreError> {
        self.writer("append")?.append(message)
    }

    /// Appends messages at consecutive log offsets, with one lock and one sync. A crash may keep only the first of
    /// them.
    pub fn append_many(&self, messages: &[NewMessage<'_>]) -> Result<Vec<Appended>, StoreError> {
        self.writer("append")?.append_many(messages)
    }

    /// Returns the first message that [`Self::append_many`] would refuse if it got `groups` one after the other, as far as
    /// that depends on the messages and the topics.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`] and [`StoreError::Closed`].
    pub fn refused_append<'a>(
        &self,
        groups: impl Iterator<Item = &'a [NewMessage<'a>]>,
    ) -> Result<Option<RefusedMessage>, StoreError> {
        Ok(self.writer("append")?.check_appends(groups).err())
    }

    /// Makes everything appended so far durable.
    pub fn flush(&self) -> Result<(), StoreError> {
        self.writer("flush")?.flush()
    }

    /// Makes everything appended so far visible to later reads of this process. That needs a sync if reads return only
    /// durable records.
    pub fn make_visible(&self) -> Result<(), StoreError> {
        let writer = self.writer("make appends visible")?;
        let lags = writer.options.durable_only() && writer.log.durable() < writer.log.appended();
        if lags { writer.flush() } else { Ok(()) }
    }

    /// Does the due work of the store's threads in this thread: dispatch and syncs. The threads do it by themselves,
    /// unless [`mqstore_io::Environment::threads`] of the file system is false.
    pub fn step(&self) -> Result<(), StoreError> {
        services::step(self.writer("run background steps")?)?;
        self.step_tasks()
    }

    /// Dispatches in this thread, as several threads would that run in any order: see
    /// [`mqstore_log::dispatch::Dispatcher::run_shuffled`].
    #[cfg(feature = "sim")]
    pub fn step_shuffled(
        &self,
        shape: (usize, u64, usize),
        pick: &mut dyn FnMut(usize) -> usize,
    ) -> Result<(), StoreError> {
        let writer = self.writer("run background steps")?;
        writer.dispatcher.run_shuffled(&writer.log.list(), writer.visible(), shape, pick)
    }

    /// Returns the first log offset, and one more than the last visible one.
    pub fn log_bounds(&self) -> Result<(u64, u64), StoreError> {
        self.check()?;
        let view = self.view();
        let visible = view.catch_up()?;
        Ok((view.list().min_offset(), visible))
    }

    /// Returns counters and positions of the store.
    pub fn stats(&self) -> Result<Stats, StoreError> {
        self.check()?;
        let view = self.view();
        let visible = view.catch_up()?;
        let list = view.list();
        let [(queues, most_queues), (indexes, most_indexes)] = view.open_files();
        let (paced_reads, paced_time) = read_pace(view.files()).waits();
        let mut stats = Stats {
            paced_reads,
            paced_read_ms: paced_time.as_millis() as u64,
            open_files: (queues + indexes) as u64,
            max_open_files: (most_queues + most_indexes) as u64,
            log_min_offset: list.min_offset(),
            log_max_offset: visible,
            durable_offset: visible,
            dispatched_offset: visible,
            segments: list.segments().len() as u64,
            log_bytes: list.segments().iter().map(|segment| segment.len()).sum(),
            segment_bytes: list.segment_bytes().unwrap_or(0),
            skipped_damage: view.skipped(),
            ..Stats::default()
        };
        if let OpenSide::Writer(writer, _) = &self.inner.side {
            (stats.appends, stats.appended_bytes) = writer.log.appended_records();
            stats.durable_offset = writer.log.durable();
            stats.dispatched_offset = writer.dispatcher.position();
            stats.segment_bytes = writer.log.segment_bytes();
            stats.max_bytes = writer.options.max_bytes;
            let counters = &writer.cleaner.counters;
            stats.expired_segments = counters.expired_segments.load(Ordering::Relaxed);
            stats.expired_bytes = counters.expired_bytes.load(Ordering::Relaxed);
            stats.held_files = writer.cleaner.held_files();
            stats.refused_appends = counters.refused_appends.load(Ordering::Relaxed) + writer.log.refused();
            let reads = writer.log.read_counts();
            stats.hot_reads = reads.hot.load(Ordering::Relaxed);
            stats.cold_reads = reads.cold.load(Ordering::Relaxed);
            stats.reader_lag_bytes = reads.behind.swap(0, Ordering::Relaxed);
            stats.segments_kept_by = writer.cleaner.kept_by(&|| writer.unfinished())?;
        }
        Ok(stats)
    }

    /// Waits for at most `timeout` until a message at `offset` can be read; returns whether it can.
    pub fn wait(
        &self,
        topic: &str,
        queue_id: i32,
        offset: i64,
        timeout: Duration,
    ) -> Result<bool, StoreError> {
        self.wait_at(topic, timeout, |_, places| {
            places.push((queue_id, offset));
            Ok(())
        })
    }

    /// Waits for at most `timeout` until a queue of `topic`, or only `queue_id`, has a message at or after its offset in
    /// `next`; returns whether one has. A queue without an offset there counts from its first message.
    pub fn wait_for_topic(
        &self,
        topic: &str,
        queue_id: Option<i32>,
        next: &BTreeMap<i32, i64>,
        timeout: Duration,
    ) -> Result<bool, StoreError> {
        self.wait_at(topic, timeout, |view, places| {
            for id in wanted_queue_ids(view, topic, queue_id)? {
                let offset = match next.get(&id) {
                    Some(offset) => *offset,
                    None => view.bounds(topic, id)?.map_or(0, |(min, _)| min),
                };
                places.push((id, offset));
            }
            Ok(())
        })
    }

    /// Returns the offset after the last message of each queue of `topic`; none if it does not exist.
    pub fn ends(&self, topic: &str) -> Result<BTreeMap<i32, i64>, StoreError> {
        self.check()?;
        let view = self.view();
        view.catch_up()?;
        let ends = view.queue_ids(topic)?.into_iter().map(|id| {
            let max = view.bounds(topic, id)?.map_or(0, |(_, max)| max);
            Ok((id, max))
        });
        ends.collect()
    }

    /// Waits until one of the places (queue and offset) that `find` adds has a message.
    fn wait_at(
        &self,
        topic: &str,
        timeout: Duration,
        find: impl Fn(&dyn View, &mut Vec<(i32, i64)>) -> Result<(), StoreError>,
    ) -> Result<bool, StoreError> {
        let mut places = Vec::new();
        let clock = &self.inner.files.clock;
        let deadline = clock.monotonic().saturating_add(timeout);
        for round in 0_u32.. {
            self.check()?;
            let view = self.view();
            view.catch_up()?;
            places.clear();
            find(&*view, &mut places)?;
            for (queue_id, offset) in &places {
                if view.bounds(topic, *queue_id)?.is_some_and(|(_, max)| max > *offset) {
                    return Ok(true);
                }
            }
            let now = clock.monotonic();
            if now >= deadline {
                return Ok(false);
            }
            let left = deadline.saturating_sub(now).min(LONGEST_WAIT);
            view.wait_for(topic, &places, left, round)?;
        }
        Ok(false)
    }

    /// Registers `call` for a message at or after queue offset `offset`: a wait without a thread, so that hundreds of
    /// thousands of waits are possible.
    ///
    /// If such a message can be read already, [`Waiter::is_over`] is true and `call` is dropped. Otherwise the store
    /// calls it once, also if it closes or an error stops it, so the caller must check again. The thread that builds
    /// the queues makes the call: it must be short and must not panic. It is not called after the waiter is dropped.
    ///
    /// # Errors
    /// `ReadOnly` (another process writes and does not notify this one), `TopicNotFound`, `Closed`, `Poisoned`, and
    /// errors of the dispatch of earlier messages.
    pub fn wait_with(
        &self,
        topic: &str,
        queue_id: i32,
        offset: i64,
        call: impl FnOnce() + Send + 'static,
    ) -> Result<Waiter, StoreError> {
        let writer = self.writer("wait without a thread")?;
        writer
            .wait_with(topic, queue_id, offset, Box::new(call))?
            .ok_or_else(|| StoreError::TopicNotFound { topic: topic.to_owned(), queue_id: Some(queue_id) })
    }

    /// Returns an error if the store is closed or stopped by an error.
    ///
    /// # Errors
    /// [`StoreError::Closed`], [`StoreError::Poisoned`].
    pub fn check(&self) -> Result<(), StoreError> {
        if self.is_closed() {
            return Err(StoreError::Closed { path: self.inner.files.root.clone() });
        }
        self.view().check()
    }

    pub(crate) fn view(&self) -> Arc<dyn View> {
        match &self.inner.side {
            OpenSide::Writer(writer, _) => Arc::clone(writer) as Arc<dyn View>,
            OpenSide::Reader(reader) => Arc::clone(reader) as Arc<dyn View>,
        }
    }

    pub(crate) fn writer(&self, action: &'static str) -> Result<&Arc<Writer>, StoreError> {
        if self.is_closed() {
            return Err(StoreError::Closed { path: self.inner.files.root.clone() });
        }
        match &self.inner.side {
            OpenSide::Writer(writer, _) => Ok(writer),
            OpenSide::Reader(_) => Err(StoreError::ReadOnly { path: self.inner.files.root.clone(), action }),
        }
    }
}

impl StoreInner {
    fn close(&self) -> Result<(), StoreError> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let (writer, services) = match &self.side {
            OpenSide::Writer(writer, services) => (writer, services),
            OpenSide::Reader(reader) => {
                reader.release();
                return Ok(());
            }
        };
        writer.lifecycle.set_closed();
        writer.queues.wake_all();
        writer.compaction.stop();
        writer.reclaim.stop();
        services.stop(writer);
        writer.finish()
    }
}

impl Drop for StoreInner {
    fn drop(&mut self) {
        // A store that is dropped without a close is closed here. Nothing can report an error; `abort` stays then.
        let _ = self.close();
    }
}

/// Returns units of `queue` in `from..end` with their offsets, without blank units.
pub(crate) fn read_units(
    queue: &ConsumeQueue,
    from: i64,
    end: i64,
    max: usize,
    units: &mut Vec<(i64, CqUnit)>,
) -> Result<(), StoreError> {
    let mut from = from;
    while from < end && units.is_empty() {
        let before = from;
        let wanted = usize::try_from(end - from).unwrap_or(max).min(max);
        queue.read_each(before, wanted, |offset, unit| {
            from = offset + 1;
            if !unit.is_blank() {
                units.push((offset, unit));
            }
        })?;
        if from == before {
            break;
        }
    }
    Ok(())
}

/// Returns the candidates inside the log, oldest first, without duplicates.
pub(crate) fn sorted_offsets(offsets: Vec<i64>, min: u64, end: u64) -> Vec<u64> {
    let mut offsets: Vec<u64> = offsets
        .into_iter()
        .filter_map(|offset| u64::try_from(offset).ok())
        .filter(|offset| (min..end).contains(offset))
        .collect();
    offsets.sort_unstable();
    offsets.dedup();
    offsets
}
