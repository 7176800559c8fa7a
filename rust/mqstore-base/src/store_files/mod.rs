//! Names of the folders and files directly below the root of a store, RocketMQ's and ours.
//!
//! No other module joins these paths by hand; [`StoreFiles`] lists them. All our own files are inside `mqstore/`, which
//! RocketMQ ignores. A reader can also open a `commitlog` folder alone, or one segment: see `bare_log`.
//!
//! Source: `StorePathConfigHelper`, `BrokerPathConfigHelper`.

mod backup_marks;
mod bare_log;
mod config_file;
mod delay_level_tables;
mod derived_folder;
mod foreign_files;
mod linked_folders;
mod links;
mod log_folders;
mod log_paths;
mod raft_log;
mod raft_state;
mod rocksdb;
mod tiered;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use mqstore_io::open_files::is_out_of_resources;
use mqstore_io::switch;
use mqstore_io::vfs::{DirEntry, parent_dir};
use mqstore_io::{Clock, FileKind, ReadPace, Vfs};

pub use backup_marks::BackupMark;
pub use config_file::{ConfigDamage, ConfigFile, LoadedConfig};
pub use delay_level_tables::DELAY_LEVELS_FILE;
pub use delay_level_tables::DelayTables;
pub use foreign_files::foreign_file;
pub use linked_folders::OWN_FOLDER;
pub use log_folders::LogFolders;
pub use raft_log::{CommittedIndex, RaftLog};
pub use rocksdb::QUEUES_IN_ROCKSDB;
pub use tiered::{TieredFault, TieredFaultKind, TieredStore};

use bare_log::BareLog;
use linked_folders::LinkedFolders;

use crate::error::{IoContext, StoreError};
use crate::notes::Notes;

/// Maximum bytes that are read of a configuration file; far more than a broker writes.
pub const CONFIG_LIMIT_BYTES: u64 = 256 << 20;

/// Entries of a folder that is no store, among which a store is looked for.
const MOST_LOOKED_AT: usize = 100;

/// A derived file that points only to parts of the log that are removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldFile {
    /// The path.
    pub path: PathBuf,
    /// Length in bytes.
    pub bytes: u64,
    /// The first offset that it covers: a queue offset, or for an index file a log offset.
    pub first_offset: i64,
    /// The last offset that it covers.
    pub last_offset: i64,
}

/// Why a part of the log of a DLedger member cannot be opened.
const INSIDE_RAFT_LOG: &str = "it is a part of the log of a broker that ran with DLedger; name the folder above dledger-*, \
                               which has the queues too";

/// What the folder of a store contains.
enum RootParts {
    /// A log with the folders of RocketMQ.
    Store,
    /// The log of a broker that ran with DLedger.
    Raft(RaftLog),
    /// Not a store, with the reason.
    Missing(String),
}

/// Maximum number of index files that a store keeps open; the one that is written does not count.
const MOST_INDEX_FILES: usize = 32;

/// The file system, the clock and the root of one store.
///
/// ```text
/// <root>/commitlog/  consumequeue/  batchconsumequeue/  index/      RocketMQ's folders
/// <root>/compaction/  config/
/// <root>/checkpoint  abort  lock                                    RocketMQ's files
/// <root>/mqstore/tmp/            staging: files that have no final name yet
/// <root>/mqstore/tmp/rebuild/    queues and index while they are rebuilt
/// <root>/mqstore/lost+found/     copies of every byte that recovery truncated
/// <root>/mqstore/state.a|b       the durable mark, two slots
/// <root>/mqstore/queues          manifest of the queues, with their lengths at the last full sync
/// <root>/mqstore/live            the writer's published positions
/// <root>/mqstore/meta/           the metadata log, one file per generation
/// <root>/mqstore/paths           the folders of the log, if they are not just commitlog/
/// <root>/mqstore/delay-levels    the tables of delay levels, if they are not RocketMQ's
/// <root>/mqstore/wipe/           segments that are overwritten before they are deleted
/// <root>/mqstore/jobs/           staged compactions
/// <root>/mqstore/compaction.json manifest of the compacted files
/// <root>/mqstore/repairs.jsonl   losses that repairs recorded
/// ```
///
/// A folder directly below the root can be a symbolic link: see `links`.
#[derive(Clone, Debug)]
pub struct StoreFiles {
    /// The file system of the store.
    pub vfs: Arc<dyn Vfs>,
    /// The clock for timestamps and intervals.
    pub clock: Arc<dyn Clock>,
    /// The root folder of the store.
    pub root: PathBuf,
    /// The folders below the root that are links.
    links: Arc<LinkedFolders>,
    /// The folders of the log, once they are known.
    logs: Option<Arc<LogFolders>>,
    /// Set if the root is no store, but a log without one.
    alone: Option<Arc<BareLog>>,
    /// Set for readers of the store of a broker that ran with DLedger.
    raft: Option<Arc<RaftLog>>,
    /// Set for readers of a tiered store; then `vfs` shows its files as those of a store.
    tiered: Option<Arc<TieredStore>>,
    /// The option of that name.
    pub max_open_files: Option<u32>,
    /// The notes for the user, of all clones.
    pub notes: Arc<Notes>,
    /// The pace of reads of the log from the disk; `live_page::read_pace` makes it.
    pub(crate) read_pace: Arc<OnceLock<Arc<ReadPace>>>,
}

impl StoreFiles {
    /// Returns the files of a store at `root`. Resolves the folders below it that are links.
    pub fn new(vfs: Arc<dyn Vfs>, clock: Arc<dyn Clock>, root: &Path) -> Self {
        let links = Arc::new(LinkedFolders::find(&*vfs, root));
        Self {
            vfs,
            clock,
            root: root.to_path_buf(),
            links,
            logs: None,
            alone: None,
            raft: None,
            tiered: None,
            max_open_files: None,
            notes: Arc::default(),
            read_pace: Arc::default(),
        }
    }

    /// Returns the number of queue files and of index files that the store keeps open between two uses.
    pub fn kept_files(&self) -> (usize, usize) {
        let environment = self.vfs.environment();
        let chosen = self.max_open_files.map_or_else(|| environment.default_kept_files(), u64::from);
        let kept = chosen.min(environment.most_kept_files()) as usize;
        let index = (kept / 16).clamp(1, MOST_INDEX_FILES);
        (kept.saturating_sub(index).max(1), index)
    }

    /// Reads a small file of the state of a store. A file that is missing, too long or unreadable counts as empty.
    ///
    /// # Errors
    /// The system has no descriptor or memory for the call. That is no damage, so the store must not be opened as if it
    /// had no such state.
    pub fn read_state(&self, path: &Path, limit_bytes: u64) -> Result<Vec<u8>, StoreError> {
        match self.vfs.read_file(path, limit_bytes) {
            Err(error) if is_out_of_resources(&error) => {
                Err(StoreError::io(path, "reading the state of the store", error))
            }
            bytes => Ok(bytes.unwrap_or_default()),
        }
    }

    /// `commitlog/`: the segments, unless they are in other folders: see [`Self::log_folders`].
    pub fn commit_log(&self) -> PathBuf {
        match &self.alone {
            Some(alone) => alone.path.clone(),
            None => self.folder("commitlog"),
        }
    }

    /// `consumequeue/`: one folder per topic, which contains one folder per queue.
    pub fn consume_queue(&self) -> PathBuf {
        self.folder("consumequeue")
    }

    /// `consumequeue_ext/`: extra data for units, written by a broker that filters by expressions.
    pub fn consume_queue_ext(&self) -> PathBuf {
        self.folder("consumequeue_ext")
    }

    /// `batchconsumequeue/`: the queues of topics whose records contain several messages.
    pub fn batch_consume_queue(&self) -> PathBuf {
        self.folder("batchconsumequeue")
    }

    /// `index/`: the key index files.
    pub fn index(&self) -> PathBuf {
        self.folder("index")
    }

    /// `compaction/`: logs and sparse queues of compacted topics. Between the two steps of a publication, the path that
    /// the folder has in the meantime; see `job/swap.rs` of `mqstore-compaction`.
    pub fn compaction(&self) -> PathBuf {
        let place = self.compaction_path();
        self.next_compaction(&place).unwrap_or(place)
    }

    /// `compaction/`, whether it exists or not.
    pub fn compaction_path(&self) -> PathBuf {
        self.folder("compaction")
    }

    fn next_compaction(&self, place: &Path) -> Option<PathBuf> {
        let job = self.vfs.read_file(&self.swap_record(), 4096).ok()?;
        let there = |path: &Path| self.vfs.stat(path).is_ok();
        let name = Path::new(std::str::from_utf8(&job).ok()?);
        let plain = name.file_name() == Some(name.as_os_str());
        let next = self.jobs().join(name).join("tree");
        (plain && !there(place) && there(&next)).then_some(next)
    }

    /// `config/`: RocketMQ's JSON files.
    pub fn config(&self) -> PathBuf {
        self.folder("config")
    }

    /// `checkpoint`: times and positions up to which the derived files are durable.
    pub fn checkpoint(&self) -> PathBuf {
        self.root.join("checkpoint")
    }

    /// `abort`: exists while a writer runs, and after a writer that was killed.
    pub fn abort(&self) -> PathBuf {
        self.home().join("abort")
    }

    /// `lock`: the file whose first byte the writer locks.
    pub fn lock(&self) -> PathBuf {
        self.home().join("lock")
    }

    /// `timerlog/`: the timer log.
    pub fn timer_log(&self) -> PathBuf {
        self.folder(mqstore_format::names::TIMERLOG_DIR)
    }

    /// `mqstore/delays`: the state of the delivery of delayed messages.
    pub fn delays(&self) -> PathBuf {
        self.side().join("delays")
    }

    /// `mqstore/`: all files that are ours alone.
    pub fn side(&self) -> PathBuf {
        self.folder("mqstore")
    }

    /// `mqstore/tmp/`: files that get their final name by a rename.
    pub fn staging(&self) -> PathBuf {
        self.side().join("tmp")
    }

    /// `mqstore/tmp/rebuild/`: derived files during a rebuild, laid out as under the root.
    pub fn rebuild(&self) -> PathBuf {
        // On the file system of the root, whose folders it exchanges.
        self.staging_for(&self.root).join("rebuild")
    }

    /// `mqstore/lost+found/`: every byte that recovery truncated.
    pub fn lost_and_found(&self) -> PathBuf {
        self.side().join("lost+found")
    }

    /// `mqstore/meta/`: the metadata log.
    pub fn meta(&self) -> PathBuf {
        self.side().join("meta")
    }

    /// `mqstore/repairs.jsonl`: losses that repairs recorded.
    pub fn repairs(&self) -> PathBuf {
        self.side().join("repairs.jsonl")
    }

    /// `mqstore/jobs/`: staged output of compaction jobs.
    pub fn jobs(&self) -> PathBuf {
        self.side().join("jobs")
    }

    /// `mqstore/restore/`: files that are copied from another store to replace lost compaction files.
    pub fn restore(&self) -> PathBuf {
        self.side().join("restore")
    }

    /// `mqstore/compaction.switch`: names the job whose compaction is being published in two steps.
    pub fn swap_record(&self) -> PathBuf {
        self.side().join("compaction.switch")
    }

    /// `mqstore/compaction.json`: the manifest of the compacted files.
    pub fn compaction_manifest(&self) -> PathBuf {
        self.side().join("compaction.json")
    }

    /// `mqstore/groups`: since when groups keep due segments without progress.
    pub fn stalled_groups(&self) -> PathBuf {
        self.side().join("groups")
    }

    /// `mqstore/archive`: the settings of the archive, and the log offset up to which it covers the log.
    pub fn archive(&self) -> PathBuf {
        self.side().join("archive")
    }

    /// `mqstore/live`: the positions of the running writer.
    pub fn live(&self) -> PathBuf {
        self.home().join("mqstore").join("live")
    }

    /// The folder in which a writer of this log has its lock.
    fn home(&self) -> &Path {
        self.alone.as_ref().map_or(&self.root, |alone| &alone.home)
    }

    /// Checks that the root is a folder that contains a `commitlog` folder.
    ///
    /// # Errors
    /// [`StoreError::NotAStore`] with the missing part.
    /// [`StoreError::Unsupported`] for the store of a broker that ran with DLedger.
    pub fn check_is_store(&self) -> Result<(), StoreError> {
        match (self.root_parts()?, BareLog::find(&*self.vfs, &self.root)) {
            (RootParts::Store, _) => Ok(()),
            (RootParts::Raft(log), _) => Err(log.refusal()),
            (RootParts::Missing(_), Ok(Some(_))) => Err(self.no_store(bare_log::NEEDS_A_STORE)),
            (RootParts::Missing(reason), _) => {
                self.refuse_tiered_store()?;
                Err(self.no_store(&reason))
            }
        }
    }

    /// Refuses a tiered store; any other path passes, also one that does not exist.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`].
    pub fn refuse_tiered_store(&self) -> Result<(), StoreError> {
        let found = TieredStore::find(&*self.vfs, &self.root)?;
        found.map_or(Ok(()), |_| Err(TieredStore::refusal(&self.root)))
    }

    /// Refuses the store of a broker that ran with DLedger; any other path passes, also one that does not exist.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`].
    pub fn refuse_raft_log(&self) -> Result<(), StoreError> {
        let entries = self.vfs.list(&self.root).unwrap_or_default();
        RaftLog::among(&*self.vfs, &self.root, &entries)?.map_or(Ok(()), |log| Err(log.refusal()))
    }

    /// Returns the files for reading: those of a store, or of a log alone.
    ///
    /// # Errors
    /// [`StoreError::NotAStore`] if the path is neither; I/O errors.
    pub fn for_reading(mut self) -> Result<Self, StoreError> {
        if self.alone.is_some() || self.raft.is_some() || self.tiered.is_some() {
            return Ok(self);
        }
        let reason = match self.root_parts()? {
            RootParts::Store => return Ok(self),
            RootParts::Raft(log) => {
                self.raft = Some(Arc::new(log));
                return Ok(self);
            }
            RootParts::Missing(reason) => reason,
        };
        if raft_log::is_inside(&self.root) {
            return Err(self.no_store(INSIDE_RAFT_LOG));
        }
        if let Some(folder) = TieredStore::find(&*self.vfs, &self.root)? {
            let (tiered, vfs) = tiered::open(&self.vfs, &self.root, folder, &self.notes)?;
            (self.vfs, self.tiered) = (Arc::new(vfs), Some(tiered));
            return Ok(self);
        }
        let Some(alone) = BareLog::find(&*self.vfs, &self.root)? else {
            let is_file = self.vfs.stat(&self.root).is_ok_and(|stat| stat.kind == FileKind::File);
            return Err(self.no_store(if is_file { bare_log::NO_SEGMENT } else { &reason }));
        };
        self.logs = Some(Arc::new(LogFolders::alone(&alone.path)));
        if alone.segment.is_some() {
            self.root = parent_dir(&self.root).to_path_buf();
        }
        self.alone = Some(Arc::new(alone));
        Ok(self)
    }

    /// Returns the log of the broker, if these are the files of a broker that ran with DLedger, for reading.
    pub fn raft_log(&self) -> Option<&RaftLog> {
        self.raft.as_deref()
    }

    /// Returns the files of the tiered store, if this is one, for reading.
    pub fn tiered(&self) -> Option<&TieredStore> {
        self.tiered.as_deref()
    }

    /// Refuses a store whose files never change after the open, because no new message can appear.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] for a tiered store.
    pub fn refuse_following(&self) -> Result<(), StoreError> {
        let Some(tiered) = self.tiered() else { return Ok(()) };
        Err(StoreError::Unsupported {
            path: tiered.folder().to_path_buf(),
            reason: "a tiered store shows the messages of the open; open it again to see new ones".into(),
        })
    }

    /// Refuses a tiered store, whose log offsets depend on the files at the open, so that two processes can disagree.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`].
    pub fn refuse_division(&self) -> Result<(), StoreError> {
        let Some(tiered) = self.tiered() else { return Ok(()) };
        Err(StoreError::Unsupported {
            path: tiered.folder().to_path_buf(),
            reason: "a tiered store cannot be divided among processes; make a store first: mqstore export DIR OUT --to store"
                .into(),
        })
    }

    /// Whether this is a log without a store.
    pub fn is_bare_log(&self) -> bool {
        self.alone.is_some()
    }

    /// The path and the first log offset of the segment, if the path is one segment.
    pub fn only_segment(&self) -> Option<(&Path, u64)> {
        let alone = self.alone.as_deref()?;
        alone.segment.map(|(base, _)| (alone.path.as_path(), base))
    }

    /// A note for the user if the name of that segment is not its offset.
    pub fn misnamed_segment(&self) -> Option<String> {
        let alone = self.alone.as_deref()?;
        alone.segment.filter(|(_, named)| !named).map(|(base, _)| {
            let name = mqstore_format::offset_file_name(base);
            format!("its first record says that the segment begins at log offset {base}: rename it to {name}")
        })
    }

    fn no_store(&self, reason: &str) -> StoreError {
        StoreError::NotAStore { path: self.root.clone(), reason: reason.to_owned() }
    }

    fn root_parts(&self) -> Result<RootParts, StoreError> {
        let refuse = |reason: &str| Ok(RootParts::Missing(reason.to_owned()));
        let entries = match self.vfs.list(&self.root) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && self.vfs.is_remote() => {
                return refuse(
                    "it has no files; check the URL, and that the files of the store are copied there",
                );
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return refuse(
                    "it does not exist; check the path, or create a store there (mode \"create\", or \
                                mqstore append --create)",
                );
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
                return refuse("it is a file, not a directory");
            }
            Err(error) => return Err(StoreError::io(&self.root, "opening the store's folder", error)),
            Ok(entries) => entries,
        };
        if let Some(log) = RaftLog::among(&*self.vfs, &self.root, &entries)? {
            return Ok(RootParts::Raft(log));
        }
        match self.vfs.stat(&self.commit_log()) {
            Ok(stat) if stat.kind == FileKind::Directory => Ok(RootParts::Store),
            Ok(stat) if stat.kind == FileKind::Symlink => refuse(
                "its commitlog is a symbolic link that leads to no folder; mount its disk, or correct the link",
            ),
            Ok(_) => refuse("its commitlog is not a folder"),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                if self.has_listed_logs()? {
                    Ok(RootParts::Store)
                } else {
                    let advice = self.store_below(&entries);
                    let advice = advice.as_deref().unwrap_or("; name the folder that contains commitlog");
                    Ok(RootParts::Missing(format!("it has no commitlog folder{advice}")))
                }
            }
            Err(error) => Err(StoreError::io(&self.commit_log(), "looking for the log", error)),
        }
    }

    /// Returns advice to use a store in a folder of the root, if one of the `entries` of the root is a store.
    pub fn store_below(&self, entries: &[DirEntry]) -> Option<String> {
        let mut names: Vec<_> = entries.iter().take(MOST_LOOKED_AT).map(|entry| &entry.name).collect();
        names.sort_unstable();
        let mut paths = names.into_iter().map(|name| self.root.join(name));
        let log = |path: &PathBuf| self.vfs.stat(&path.join("commitlog"));
        let found = paths.find(|path| log(path).is_ok_and(|stat| stat.kind == FileKind::Directory))?;
        Some(format!("; did you mean {}?", found.display()))
    }

    /// Returns an unused path in `lost+found`. Makes the folder if it is missing.
    pub fn unused_lost_and_found_name(&self, name: &str) -> Result<PathBuf, StoreError> {
        let folder = self.lost_and_found();
        self.ensure_folder(&folder)?;
        for number in 0..10_000 {
            let path = folder.join(if number == 0 { name.to_owned() } else { format!("{name}.{number}") });
            match self.vfs.stat(&path) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(path),
                Err(error) => return Err(StoreError::io(&path, "looking for a free name", error)),
            }
        }
        Err(StoreError::Unsupported {
            path: folder,
            reason: "this folder has 10,000 copies with the same name; move them away".into(),
        })
    }

    /// Moves a file or folder that does not belong to the store, but is in its way, to `lost+found`. Returns a note for
    /// the user.
    pub fn set_aside(&self, path: &Path, reason: &str) -> Result<String, StoreError> {
        let folder = self.lost_and_found_for(path);
        self.ensure_folder(&folder)?;
        let relative = path.strip_prefix(&self.root).unwrap_or(path);
        let name = relative.to_string_lossy().trim_start_matches('/').replace('/', "_");
        let kept = folder.join(format!("{name}.{}", self.clock.now_ms()));
        self.vfs.rename(path, &kept).at(path, "moving a stray file to lost+found")?;
        if folder != self.lost_and_found() {
            switch::step("recovery.sync_linked_aside", || self.vfs.sync_dir(&folder))
                .at(&folder, "syncing a folder")?;
        }
        Ok(format!("{}: {reason}; kept as {}", path.display(), kept.display()))
    }

    /// Makes the names in `lost+found` durable.
    pub fn sync_lost_and_found(&self) -> Result<(), StoreError> {
        let folder = self.lost_and_found();
        // The folder's own name, too: the process that made the folder may have stopped before it synced the name.
        switch::step("recovery.sync_lost_and_found", || {
            self.vfs.sync_dir(&folder).and_then(|()| self.vfs.sync_dir(&self.side()))
        })
        .at(&folder, "syncing a folder")
    }

    /// Replaces a file of the store, or makes it, in one step. It is durable when this returns. `action` is for errors.
    pub fn replace_file(&self, path: &Path, bytes: &[u8], action: &'static str) -> Result<(), StoreError> {
        let staging = self.staging_for(path);
        self.ensure_folder(&staging)?;
        self.ensure_folder(parent_dir(path))?;
        let staged = staging.join(path.file_name().unwrap_or_default());
        self.vfs.write_atomic(path, &staged, bytes).at(path, action)
    }

    /// Makes `folder`, one of the store's own, if it is missing. Its name is then durable.
    pub fn ensure_folder(&self, folder: &Path) -> Result<(), StoreError> {
        if self.vfs.stat(folder).is_ok_and(|stat| stat.kind == FileKind::Directory) {
            return Ok(());
        }
        self.vfs.create_dir_all(folder).at(folder, "making a folder")?;
        for above in self.folders_up_from(folder).skip(1) {
            switch::step("files.sync_folder_name", || self.vfs.sync_dir(above))
                .at(above, "syncing a folder")?;
        }
        Ok(())
    }
}
