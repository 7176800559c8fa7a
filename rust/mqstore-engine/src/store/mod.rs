//! The store: one handle for all operations on a directory.
//!
//! This folder is a facade: most functions of [`Store`] have one line, and call the engine, a read or a service.
//! `writer` has the engine and its services, `services` their threads, and `open` makes them.
//!
//! A [`Store`] is cheap to clone and safe to share between threads. For writing, it holds RocketMQ's lock and runs
//! background services, for example for dispatch and flush. For reading, it holds no lock. After [`Store::close`] every
//! call returns [`StoreError::Closed`].

mod appends;
mod background_task;
mod compaction;
mod follower;
mod info;
mod log_feed;
mod log_reads;
mod open;
mod quota;
mod reads;
mod retention;
mod services;
mod settings;
mod system_appends;
mod topic_deletion;
mod topics;
mod waits;
mod writer;

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use mqstore_io::{Clock, Vfs};

use crate::engine::Engine;
use crate::read::older::{OlderSlot, OlderSource};
use crate::read::reader::Reader;
use crate::read::view::{StoreView, View};
use crate::retention::SegmentHolder;
use mqstore_base::error::StoreError;
use mqstore_base::events::is_in_hook;
use mqstore_base::notes::Notes;
use mqstore_base::options::{OpenMode, RecoveryMode, StoreOptions};
use mqstore_base::store_files::StoreFiles;
use mqstore_log::recovery::{ProgressReporter, RecoveryWatcher};
use services::ServiceThreads;
use writer::Writer;

pub use background_task::BackgroundTask;
pub use compaction::restore_compaction;
pub use follower::{FollowStep, TopicFollower};
pub use info::{Inspection, Stats};
pub use log_feed::LogFeed;
pub use log_reads::LogReads;
pub use open::{refuse_rocksdb, take_lock};
pub use quota::TopicQuota;
pub use retention::{Archive, Retentions};
pub use settings::{Settings, StoreSettings};
pub use system_appends::SystemAppends;
pub use topic_deletion::{NamespaceInfo, Namespaces};
pub use waits::NonBlocking;

/// An open store.
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Arc<StoreInner>,
    /// See [`Store::continued`].
    continues: bool,
}

/// A store that others can drop.
#[derive(Clone)]
pub struct WeakStore(Weak<StoreInner>);

impl WeakStore {
    /// Returns the store; `None` after it was dropped.
    pub fn upgrade(&self) -> Option<Store> {
        self.0.upgrade().map(|inner| Store { inner, continues: false })
    }
}

impl fmt::Debug for WeakStore {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("WeakStore").finish_non_exhaustive()
    }
}

pub(crate) struct StoreInner {
    pub(crate) files: StoreFiles,
    mode: OpenMode,
    pub(crate) side: OpenSide,
    /// See [`Store::find_deliveries_with`]. The services of a writer have their own.
    find_deliveries: OnceLock<FindDeliveriesIn>,
    /// The writer has it, too.
    pub(crate) older: OlderSlot,
    closed: AtomicBool,
}

/// Finds the first delayed message and the first half message that wait in a store.
pub type FindDeliveriesIn = fn(&Store) -> Result<Vec<SegmentHolder>, StoreError>;

pub(crate) enum OpenSide {
    Writer(Arc<Writer>, ServiceThreads),
    Reader(Arc<Reader>),
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
                    let threads = ServiceThreads::start(&writer)?;
                    OpenSide::Writer(writer, threads)
                }
                Err(error @ StoreError::Corrupt { .. }) if options.recovery == RecoveryMode::ReadOnly => {
                    mode = OpenMode::Read;
                    let reader = Reader::open(&files, options)?;
                    files.notes.warn(format!("the store is damaged and opened for reading only: {error}"));
                    OpenSide::Reader(Arc::new(reader))
                }
                Err(error) => return Err(error),
            }
        } else {
            files = files.for_reading()?.with_logs(options)?;
            OpenSide::Reader(Arc::new(Reader::open(&files, options)?))
        };
        let older = match &side {
            OpenSide::Writer(writer, _) => writer.topic_retentions.older(),
            OpenSide::Reader(_) => OlderSlot::default(),
        };
        let store = Self { inner: StoreInner::new(files, mode, side, older), continues: false };
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
        let inner = StoreInner::new(files, OpenMode::Read, side, OlderSlot::default());
        Ok(Self { inner, continues: false })
    }

    /// Returns the root of the store.
    pub fn path(&self) -> &Path {
        &self.inner.files.root
    }

    /// Returns the files of the store.
    pub fn files(&self) -> &StoreFiles {
        &self.inner.files
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

    /// Returns the first failed request to the URL of the store. Later answers could be incomplete, so all calls fail.
    /// `None` for a directory.
    pub fn failure(&self) -> Option<StoreError> {
        let failure = self.inner.files.vfs.failure()?;
        Some(StoreError::io(self.path(), "reading the store", failure))
    }

    /// Whether the store is closed.
    pub fn is_closed(&self) -> bool {
        self.inner.closed.load(Ordering::Acquire)
    }

    /// Returns an error if the store is closed or stopped by an error.
    ///
    /// # Errors
    /// [`StoreError::Closed`], [`StoreError::Poisoned`].
    pub fn check(&self) -> Result<(), StoreError> {
        if self.is_closed() {
            return Err(StoreError::Closed { path: self.inner.files.root.clone() });
        }
        self.view().check()?;
        self.writing_engine().map_or(Ok(()), |engine| engine.log.check())
    }

    /// Makes everything durable and releases the store. A second close is no error. If the close cannot make everything
    /// durable, it leaves the file `abort` and returns the cause.
    pub fn close(&self) -> Result<(), StoreError> {
        if is_in_hook() {
            let reason = "a hook that runs during an expiry cannot close the store: it would wait for itself";
            return Err(StoreError::Busy { reason: reason.into() });
        }
        let ended = match &self.inner.side {
            OpenSide::Writer(writer, _) if !self.is_closed() => writer.end_tasks(),
            _ => Ok(()),
        };
        self.inner.close().and(ended)
    }

    /// In a child process after a fork: closes the descriptor of the lock without releasing the lock.
    pub fn disown_in_child(&self) {
        self.inner.closed.store(true, Ordering::Release);
        if let OpenSide::Writer(writer, _) = &self.inner.side {
            writer.engine.lifecycle.disown_in_child();
        }
    }

    /// Returns notes about this store for the user, each once.
    pub fn notes(&self) -> Vec<String> {
        self.user_notes().warnings(0)
    }

    /// Returns the notes about this store and about the delivery of its messages.
    pub fn user_notes(&self) -> &Notes {
        &self.inner.files.notes
    }

    /// Adds a note of an open for the user, unless it exists already, and tells the hook `on_event`. Do not hold a lock
    /// that a call of the store takes.
    pub fn add_note(&self, note: &str) {
        if let (true, OpenSide::Writer(writer, _)) = (self.user_notes().warn(note), &self.inner.side) {
            writer.engine.options.hooks.tell("warning", None, note.to_owned());
        }
    }

    /// Runs `task` in the background from now on, until it is dropped or the store closes: in its own thread, unless
    /// [`mqstore_io::Environment::threads`] of the file system is false, and in [`Self::step`].
    ///
    /// # Errors
    /// `ReadOnly`, `Closed`, and the error of the system if it cannot start a thread.
    pub fn run_in_background(&self, task: &Arc<dyn BackgroundTask>) -> Result<(), StoreError> {
        let writer = self.writer("run a background task")?;
        let OpenSide::Writer(_, threads) = &self.inner.side else { return Ok(()) };
        writer.add_task(task);
        threads.run(writer, task)
    }

    /// Does the due work of the store's threads in this thread: dispatch and syncs. The threads do it by themselves,
    /// unless [`mqstore_io::Environment::threads`] of the file system is false.
    pub fn step(&self) -> Result<(), StoreError> {
        self.writer("run background steps")?.step()
    }

    /// Dispatches in this thread, as several threads would that run in any order: see
    /// [`mqstore_log::dispatch::Dispatcher::run_shuffled`].
    #[cfg(feature = "sim")]
    pub fn step_shuffled(
        &self,
        shape: (usize, u64, usize),
        pick: &mut dyn FnMut(usize) -> usize,
    ) -> Result<(), StoreError> {
        let engine = self.engine("run background steps")?;
        engine.dispatcher.run_shuffled(&engine.log.list(), engine.visible(), shape, pick)
    }

    /// Returns this store for a user's reads, which continue before the log if [`Self::set_older`] has set an archive. The
    /// reads of the store's own services, of delays and of transactions end at the begin of the log: what was before it
    /// is finished.
    #[must_use]
    pub fn continued(&self) -> Self {
        Self { continues: true, ..self.clone() }
    }

    /// Returns this store for reads that end at the begin of the log.
    #[must_use]
    pub fn log_only(&self) -> Self {
        Self { continues: false, ..self.clone() }
    }

    /// Returns a reference that does not keep the store open.
    pub fn downgrade(&self) -> WeakStore {
        WeakStore(Arc::downgrade(&self.inner))
    }

    /// Sets the archive that has the messages from before the log; `None` if there is none. Reads of
    /// [`Self::continued`] continue there, and the limits of topics count its messages.
    pub fn set_older(&self, older: Option<Arc<dyn OlderSource>>) {
        self.inner.older.set(older);
    }

    /// Whether an archive was set that has the messages from before the log.
    pub fn has_older(&self) -> bool {
        self.inner.older.get().is_some()
    }

    pub(crate) fn view(&self) -> StoreView {
        let log: Arc<dyn View> = match &self.inner.side {
            OpenSide::Writer(writer, _) => Arc::<Engine>::clone(&writer.engine),
            OpenSide::Reader(reader) => Arc::<Reader>::clone(reader),
        };
        StoreView::new(log, if self.continues { self.inner.older.get() } else { None })
    }

    /// Returns the view of the messages, unless the store is closed or stopped by an error.
    pub(crate) fn usable_view(&self) -> Result<StoreView, StoreError> {
        if self.is_closed() {
            return Err(StoreError::Closed { path: self.inner.files.root.clone() });
        }
        let view = self.view();
        view.check().map(|()| view)
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

    /// Returns the engine of a store that is open for writing. An error names `action`.
    #[inline]
    pub(crate) fn engine(&self, action: &'static str) -> Result<&Arc<Engine>, StoreError> {
        self.writer(action).map(|writer| &writer.engine)
    }

    /// Returns the engine, also after the close; `None` for a store open for reading.
    fn writing_engine(&self) -> Option<&Arc<Engine>> {
        match &self.inner.side {
            OpenSide::Writer(writer, _) => Some(&writer.engine),
            OpenSide::Reader(_) => None,
        }
    }
}

impl StoreInner {
    fn new(files: StoreFiles, mode: OpenMode, side: OpenSide, older: OlderSlot) -> Arc<Self> {
        let (find_deliveries, closed) = (OnceLock::new(), AtomicBool::new(false));
        Arc::new(Self { files, mode, side, find_deliveries, older, closed })
    }

    fn close(&self) -> Result<(), StoreError> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        match &self.side {
            OpenSide::Writer(writer, threads) => writer.close(|| threads.stop(writer)),
            OpenSide::Reader(reader) => {
                reader.release();
                Ok(())
            }
        }
    }
}

impl Drop for StoreInner {
    fn drop(&mut self) {
        // A store that is dropped without a close is closed here. Nothing can report an error; `abort` stays then.
        let _ = self.close();
    }
}
