//! The store: one handle for everything that a program does with a directory.
//!
//! A [`Store`] is cheap to clone and safe to share between threads. Opened for writing it holds the
//! lock that RocketMQ takes and runs two services (dispatch, flush); opened for reading it holds
//! nothing. Every call answers [`StoreError::Closed`] after [`Store::close`].

pub(crate) mod background;
pub(crate) mod background_task;
mod expire;
pub(crate) mod group_offsets;
mod inspection;
pub(crate) mod lifecycle;
pub(crate) mod namespaces;
pub(crate) mod open;
pub(crate) mod quota;
pub(crate) mod services;
pub(crate) mod signals;
pub(crate) mod topics;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mqstore_format::CqUnit;
use mqstore_io::{Clock, Vfs};

use crate::Waiter;
use crate::read::reader::Reader;
use crate::read::view::View;
use crate::write::writer::Writer;
use mqstore_base::error::StoreError;
use mqstore_base::events::is_in_hook;
use mqstore_base::message::{Appended, NewMessage};
use mqstore_base::options::{OpenMode, RecoveryMode, StoreOptions};
use mqstore_base::store_files::StoreFiles;
use mqstore_compaction::ManifestCache;
use mqstore_log::consume_queue::ConsumeQueue;
use mqstore_log::recovery::{ProgressReporter, RecoveryWatcher};
use mqstore_meta::MetaLog;
use services::Services;

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
    closed: AtomicBool,
}

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
    /// One past the largest.
    pub max_offset: i64,
    /// Store time of the first message, in epoch milliseconds.
    pub min_store_timestamp_ms: Option<i64>,
    /// Store time of the last message, in epoch milliseconds.
    pub max_store_timestamp_ms: Option<i64>,
}

/// What an open store has done and where it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages appended since the open.
    pub appends: u64,
    /// Bytes of their records.
    pub appended_bytes: u64,
    /// The first byte of the log.
    pub log_min_offset: u64,
    /// One past the last visible byte.
    pub log_max_offset: u64,
    /// One past the last byte that a sync covers.
    pub durable_offset: u64,
    /// How far queues and index are built.
    pub dispatched_offset: u64,
    /// Segments of the log.
    pub segments: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Segments deleted since the open.
    pub expired_segments: u64,
    /// Bytes of deleted files since the open, queue and index files included.
    pub expired_bytes: u64,
    /// Bytes of the log's segments.
    pub log_bytes: u64,
    /// How many there may be: the option `max_bytes`.
    pub max_bytes: Option<u64>,
    /// Appends refused since the open: the store was busy, the disk nearly full, or a quota used up.
    pub refused_appends: u64,
    /// Records that this process read near the end of the log since the open: within 40 % of the machine's
    /// memory, where they are taken to be in it. Looks at the store times of queues are no reads.
    pub hot_reads: u64,
    /// Records that it read from further behind.
    pub cold_reads: u64,
    /// How far behind the end of the log, in bytes, the farthest of these lay, since the figures were asked for
    /// last; 0 when no reader is that late. Source: `MessageStore#checkInMemByConsumeOffset`.
    pub reader_lag_bytes: u64,
}

impl Store {
    /// Opens the store at `path`.
    ///
    /// # Errors
    /// [`StoreError::NotAStore`], [`StoreError::Locked`], [`StoreError::Corrupt`] (nothing was changed
    /// then), [`StoreError::InvalidOption`], [`StoreError::DiskFull`], [`StoreError::Io`].
    pub fn open(
        vfs: Arc<dyn Vfs>,
        clock: Arc<dyn Clock>,
        path: &Path,
        mode: OpenMode,
        options: &StoreOptions,
    ) -> Result<Self, StoreError> {
        Self::open_watched(vfs, clock, path, mode, options, &mut |_| Ok(()))
    }

    /// As [`Self::open`]; a recovery says to `watcher` where it stands, about once a mebibyte. An error
    /// as its answer ends the open with that error, and the next open recovers the store.
    ///
    /// With [`RecoveryMode::ReadOnly`] a damaged store is opened for reading: see [`Self::mode`].
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
        let mut mode = mode;
        let side = if mode.writes() {
            if mode == OpenMode::Create {
                open::create(&files)?;
            }
            files = files.with_logs(options)?;
            if mode == OpenMode::Create {
                files.make_log_folders()?;
            }
            let mut watch = ProgressReporter::new(&files.clock, watcher);
            match open::open_writer(&files, options, &mut watch) {
                Ok(writer) => {
                    let services = Services::start(&writer)?;
                    OpenSide::Writer(writer, services)
                }
                Err(error @ StoreError::Corrupt { .. }) if options.recovery == RecoveryMode::ReadOnly => {
                    mode = OpenMode::Read;
                    let reader = Reader::open(&files, options)?;
                    reader.note(format!("opened for reading only, because it is damaged: {error}"));
                    OpenSide::Reader(Arc::new(reader))
                }
                Err(error) => return Err(error),
            }
        } else {
            files = files.for_reading()?.with_logs(options)?;
            OpenSide::Reader(Arc::new(Reader::open(&files, options)?))
        };
        Ok(Self {
            inner: Arc::new(StoreInner {
                files,
                mode,
                side,
                manifests: ManifestCache::default(),
                closed: AtomicBool::new(false),
            }),
        })
    }

    /// Opens the store at `path` for reading, for scans: where queues have to be derived, that waits until
    /// somebody asks for one.
    pub fn open_log(
        vfs: Arc<dyn Vfs>,
        clock: Arc<dyn Clock>,
        path: &Path,
        options: &StoreOptions,
    ) -> Result<Self, StoreError> {
        let files = StoreFiles::new(vfs, clock, path).for_reading()?.with_logs(options)?;
        let side = OpenSide::Reader(Arc::new(Reader::open_log(&files, options)?));
        Ok(Self {
            inner: Arc::new(StoreInner {
                files,
                mode: OpenMode::Read,
                side,
                manifests: ManifestCache::default(),
                closed: AtomicBool::new(false),
            }),
        })
    }

    /// The store's root.
    pub fn path(&self) -> &Path {
        &self.inner.files.root
    }

    /// The clock that its times come from.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.files.clock
    }

    /// How it was opened; [`OpenMode::Read`] also where damage kept it from being opened for writing and
    /// [`RecoveryMode::ReadOnly`] was asked for.
    pub fn mode(&self) -> OpenMode {
        self.inner.mode
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.inner.closed.load(Ordering::Acquire)
    }

    /// Makes everything durable and releases the store. Closing twice is no error; a close that could
    /// not make everything durable leaves `abort` behind and says why.
    pub fn close(&self) -> Result<(), StoreError> {
        if is_in_hook() {
            let reason = "a hook that runs during an expiry cannot close the store: it would wait for itself";
            return Err(StoreError::Busy { reason: reason.into() });
        }
        let ended = if self.is_closed() { Ok(()) } else { self.end_tasks() };
        self.inner.close().and(ended)
    }

    /// In a child process after a fork: lets go of the lock's descriptor without releasing the lock.
    pub fn disown_in_child(&self) {
        self.inner.closed.store(true, Ordering::Release);
        if let OpenSide::Writer(writer, _) = &self.inner.side {
            writer.lifecycle.disown_in_child();
        }
    }

    /// Things that a person should know about this store, in plain words, each once.
    pub fn notes(&self) -> Vec<String> {
        match &self.inner.side {
            OpenSide::Writer(writer, _) => writer.notes(),
            OpenSide::Reader(reader) => reader.notes(),
        }
    }

    /// Makes a topic with `queues` queues (1 to 65,536), or gives it more queues when it has fewer.
    /// Durable when it returns. Attributes count for a new topic only.
    pub fn create_topic(
        &self,
        topic: &str,
        queues: u32,
        attributes: &[(String, String)],
    ) -> Result<(), StoreError> {
        let writer = self.writer("make topics")?;
        writer.topics.create(topic, queues, attributes)?;
        writer.refresh_quota(topic);
        writer.topics.store()
    }

    /// Makes a topic as an append to it would, unless there is one.
    ///
    /// # Errors
    /// [`StoreError::TopicNotFound`] where `auto_create_topics` is off.
    pub fn make_topic(&self, topic: &str) -> Result<(), StoreError> {
        self.writer("make topics")?.make_missing(topic)
    }

    /// The attributes of `topic`, as RocketMQ's topic table has them.
    pub fn topic_attributes(&self, topic: &str) -> Result<Vec<(String, String)>, StoreError> {
        self.check()?;
        Ok(match &self.inner.side {
            OpenSide::Writer(writer, _) => writer.topics.attributes(topic),
            OpenSide::Reader(reader) => reader.attributes(topic),
        })
    }

    /// The metadata of the store: topics, groups, offsets, what groups know of queues.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`] and [`StoreError::Closed`].
    pub fn meta(&self) -> Result<Arc<MetaLog>, StoreError> {
        Ok(Arc::clone(&self.writer("change metadata")?.meta))
    }

    /// Appends one message.
    pub fn append(&self, message: &NewMessage<'_>) -> Result<Appended, StoreError> {
        self.writer("append")?.append(message)
    }

    /// Appends messages at consecutive places: one lock, one sync. A crash may keep a prefix.
    pub fn append_many(&self, messages: &[NewMessage<'_>]) -> Result<Vec<Appended>, StoreError> {
        self.writer("append")?.append_many(messages)
    }

    /// Makes everything appended so far durable.
    pub fn flush(&self) -> Result<(), StoreError> {
        self.writer("flush")?.flush()
    }

    /// Does in this thread what the store's threads would do now: dispatch, and syncs that are due. They
    /// do it on their own unless the file system's [`mqstore_io::Environment::threads`] forbids them.
    pub fn step(&self) -> Result<(), StoreError> {
        services::step(self.writer("step")?)?;
        self.step_tasks()
    }

    /// Dispatches in this thread as threads would that take turns in any way: see
    /// [`mqstore_log::dispatch::Dispatcher::run_shuffled`].
    #[cfg(feature = "sim")]
    pub fn step_shuffled(
        &self,
        shape: (usize, u64, usize),
        pick: &mut dyn FnMut(usize) -> usize,
    ) -> Result<(), StoreError> {
        let writer = self.writer("step")?;
        writer.dispatcher.run_shuffled(&writer.log.list(), writer.visible(), shape, pick)
    }

    /// Where the store stands.
    pub fn stats(&self) -> Result<Stats, StoreError> {
        self.check()?;
        let view = self.view();
        let visible = view.catch_up()?;
        let list = view.list();
        let mut stats = Stats {
            log_min_offset: list.min_offset(),
            log_max_offset: visible,
            durable_offset: visible,
            dispatched_offset: visible,
            segments: list.segments().len() as u64,
            log_bytes: list.segments().iter().map(|segment| segment.len()).sum(),
            segment_bytes: list.segment_bytes().unwrap_or(0),
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
            stats.refused_appends = counters.refused_appends.load(Ordering::Relaxed) + writer.log.refused();
            let reads = writer.log.read_counts();
            stats.hot_reads = reads.hot.load(Ordering::Relaxed);
            stats.cold_reads = reads.cold.load(Ordering::Relaxed);
            stats.reader_lag_bytes = reads.behind.swap(0, Ordering::Relaxed);
        }
        Ok(stats)
    }

    /// Waits until a message at `offset` can be read, at most `timeout`; whether it can.
    pub fn wait(
        &self,
        topic: &str,
        queue_id: i32,
        offset: i64,
        timeout: Duration,
    ) -> Result<bool, StoreError> {
        let clock = &self.inner.files.clock;
        let deadline = clock.monotonic().saturating_add(timeout);
        for round in 0_u32.. {
            self.check()?;
            let view = self.view();
            view.catch_up()?;
            let max = view.bounds(topic, queue_id)?.map_or(0, |(_, max)| max);
            if max > offset {
                return Ok(true);
            }
            let now = clock.monotonic();
            if now >= deadline {
                return Ok(false);
            }
            // A store that is stopped by an error wakes nobody.
            let left = deadline.saturating_sub(now).min(Duration::from_secs(1));
            view.wait_for(topic, queue_id, offset, left, round)?;
        }
        Ok(false)
    }

    /// Has `call` made once a message at or behind queue offset `offset` can be read: a wait without a thread, of
    /// which there may be hundreds of thousands. If it can be read already, [`Waiter::is_over`] and `call` is
    /// dropped. The call is made once, also when the store closes or is stopped by an error, so it says no more
    /// than that it is time to look; it is made by the thread that builds the queues, and has to be short and
    /// must not panic. It is not made after the answer was dropped.
    ///
    /// # Errors
    /// `ReadOnly` (another process writes, and tells nobody here), `TopicNotFound`, `Closed`, `Poisoned`, and
    /// what keeps the messages before from being dispatched.
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

    /// Fails if the store is closed or stopped by an error.
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
        services.stop(writer);
        writer.finish()
    }
}

impl Drop for StoreInner {
    fn drop(&mut self) {
        // A store that was forgotten is closed; there is nobody to tell if that fails, and `abort`
        // stays then.
        let _ = self.close();
    }
}

/// Entries of `queue` in `from..end` with their offsets, fillers left out.
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

/// Candidates inside the log, oldest first, each once.
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
