//! The open store, and its state: topics, groups, retention, archive.

use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::message::NewMessage;
use mqstore_base::options::{OpenMode, StoreOptions};
use mqstore_base::store_files::StoreFiles;
use mqstore_delivery::{
    Accepted, Broker, BrokerError, Consumer, ConsumerOptions, Due, Transactions, WorkQueue, WorkQueueOptions,
    first_unfinished,
};
use mqstore_engine::{TableLoad, TableRows};
use mqstore_io::sync::Mutex;
use mqstore_io::{Clock, OsVfs, SystemClock, Vfs};
use mqstore_log::recovery::RecoveryWatcher;
use mqstore_replication::copy::Master;

pub use mqstore_base::progress::Progress;
pub use mqstore_base::topic_floors::{FloorTable, TopicRetention};
pub use mqstore_engine::{
    ArchiveState, BackgroundTask, ExpireReport, GroupOffset, GroupOffsets, LogFeed, NamespaceInfo,
    ReclaimReport, ReclaimRequest, SealedSegment, SegmentHolder, Stats, StoreSettings, TopicChange,
    WorkCounts,
};
pub use mqstore_log::recovery::{RebuildReport, RecoveryProgress, RecoveryStage};

/// Messages that one step of the load of a table reads.
const TABLE_STEP: usize = 1024;

/// An open store. Cheap to clone; all clones share one state.
///
/// The methods for appends, reads, topics and retention are those of [`mqstore_engine::Store`], to which it
/// dereferences.
#[derive(Clone)]
pub struct Store {
    engine: mqstore_engine::Store,
    /// Created at the open or with the first use. Two brokers would each assign all queues to their own consumers.
    broker: Arc<Mutex<Option<Broker>>>,
}

impl Store {
    /// Opens the store at `path` for reading and writing, and creates it if it is missing. Starts the delivery of
    /// delayed messages.
    ///
    /// # Errors
    /// Those of [`StoreBuilder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, BrokerError> {
        Self::builder(path).open()
    }

    /// Returns a builder, to open the store with other options.
    pub fn builder<'a>(path: impl AsRef<Path>) -> StoreBuilder<'a> {
        StoreBuilder {
            path: path.as_ref().to_path_buf(),
            vfs: Arc::new(OsVfs::new()),
            clock: Arc::new(SystemClock::new()),
            mode: OpenMode::Create,
            options: StoreOptions::default(),
            watcher: None,
        }
    }

    fn new(engine: mqstore_engine::Store) -> Self {
        engine.find_deliveries_with(first_unfinished);
        Self { engine, broker: Arc::default() }
    }

    /// Returns this store for reads that continue before the log, if an archive was set; see
    /// [`mqstore_engine::Store::continued`].
    #[must_use]
    pub fn continued(&self) -> Self {
        Self { engine: self.engine.continued(), broker: Arc::clone(&self.broker) }
    }

    /// Returns the broker, which delivers messages. The first call starts it.
    ///
    /// # Errors
    /// Those of [`Broker::start`].
    pub fn broker(&self) -> Result<Broker, BrokerError> {
        let mut broker = self.broker.lock();
        if let Some(broker) = broker.as_ref() {
            return Ok(broker.clone());
        }
        Ok(broker.insert(Broker::start(&self.engine.log_only())?).clone())
    }

    /// Opens a work queue for the default group of the topic.
    ///
    /// # Errors
    /// Those of [`Broker::start`] and [`Broker::work_queue`].
    pub fn work_queue(&self, topic: &str, options: WorkQueueOptions) -> Result<WorkQueue, BrokerError> {
        let broker = self.broker()?;
        broker.work_queue(topic, &broker.default_group(topic)?, options)
    }

    /// Opens a consumer of topics.
    ///
    /// # Errors
    /// Those of [`Broker::start`] and [`Broker::consumer`].
    pub fn consumer(
        &self,
        group: &str,
        topics: &[&str],
        options: ConsumerOptions,
    ) -> Result<Consumer, BrokerError> {
        self.broker()?.consumer(group, topics, options)
    }

    /// Appends messages that are delivered later.
    ///
    /// # Errors
    /// Those of [`Broker::start`] and [`Broker::append_later`].
    pub fn append_later(&self, messages: &[(NewMessage<'_>, Due)]) -> Result<Vec<Accepted>, BrokerError> {
        self.broker()?.append_later(messages)
    }

    /// Returns the transactions of the store.
    ///
    /// # Errors
    /// Those of [`Broker::start`] and [`Broker::transactions`].
    pub fn transactions(&self) -> Result<Transactions, BrokerError> {
        self.broker()?.transactions()
    }

    /// Loads a topic as a table: the newest message of each key. Later messages do not change it.
    ///
    /// # Errors
    /// Those of [`TableLoad::new`].
    pub fn table(&self, topic: &str) -> Result<TableRows, StoreError> {
        let mut rows = TableRows::default();
        for (queue_id, _) in self.ends(topic)? {
            let mut load = TableLoad::new(self, topic, queue_id, true)?;
            while load.step(TABLE_STEP)? {}
            rows.absorb(load);
        }
        Ok(rows)
    }

    /// Makes everything durable and releases the directory, as the method of the engine does. Threads that wait for
    /// transaction checks return.
    ///
    /// # Errors
    /// Those of the last flush. The directory is released all the same.
    pub fn close(&self) -> Result<(), StoreError> {
        let broker = self.broker.lock().clone();
        if let Some(transactions) = broker.and_then(|broker| broker.transactions_if_open()) {
            transactions.end_checks();
        }
        self.engine.close()
    }
}

impl Deref for Store {
    type Target = mqstore_engine::Store;

    fn deref(&self) -> &mqstore_engine::Store {
        &self.engine
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("path", &self.path()).finish_non_exhaustive()
    }
}

/// The path and the options of a store to open; [`Store::builder`] makes one.
#[must_use = "only `open` opens the store"]
pub struct StoreBuilder<'a> {
    path: PathBuf,
    vfs: Arc<dyn Vfs>,
    clock: Arc<dyn Clock>,
    mode: OpenMode,
    options: StoreOptions,
    watcher: Option<RecoveryWatcher<'a>>,
}

impl<'a> StoreBuilder<'a> {
    /// Sets the mode; [`OpenMode::Create`] by default.
    pub fn mode(self, mode: OpenMode) -> Self {
        Self { mode, ..self }
    }

    /// Sets all options.
    pub fn options(self, options: StoreOptions) -> Self {
        Self { options, ..self }
    }

    /// Sets the file system; that of the machine by default.
    pub fn vfs(self, vfs: Arc<dyn Vfs>) -> Self {
        Self { vfs, ..self }
    }

    /// Sets the clock; that of the machine by default.
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }

    /// Sets the function that gets the progress of a recovery. Its error ends the open.
    pub fn watcher(self, watcher: RecoveryWatcher<'a>) -> Self {
        Self { watcher: Some(watcher), ..self }
    }

    /// Opens the store. For writing, it completes decided transactions and starts the delivery of delayed messages.
    ///
    /// # Errors
    /// Those of [`mqstore_engine::Store::open`] and of [`Broker::start`].
    pub fn open(self) -> Result<Store, BrokerError> {
        let store = self.open_undelivered()?;
        if store.mode().writes() {
            store.broker()?;
        }
        Ok(store)
    }

    /// Like [`Self::open`]; delivery starts with the first call of [`Store::broker`].
    ///
    /// # Errors
    /// Those of [`mqstore_engine::Store::open`]; [`StoreError::Follows`] for an open for writing of a copy.
    pub fn open_undelivered(self) -> Result<Store, StoreError> {
        let Self { path, vfs, clock, mode, options, watcher } = self;
        if mode.writes() {
            let files = StoreFiles::new(Arc::clone(&vfs), Arc::clone(&clock), &path);
            if let Some(master) = Master::of(&files)? {
                return Err(StoreError::Follows { path, master: master.address });
            }
        }
        let engine = match watcher {
            Some(watcher) => mqstore_engine::Store::open_watched(vfs, clock, &path, mode, &options, watcher),
            None => mqstore_engine::Store::open(vfs, clock, &path, mode, &options),
        };
        engine.map(Store::new)
    }

    /// Opens the store for scans of its log, whatever the mode; see [`mqstore_engine::Store::open_log`].
    ///
    /// # Errors
    /// Those of [`mqstore_engine::Store::open`].
    pub fn open_log(self) -> Result<Store, StoreError> {
        mqstore_engine::Store::open_log(self.vfs, self.clock, &self.path, &self.options).map(Store::new)
    }
}
