//! The files of a store that cannot be derived from its log, and the completion of a copy from its log and these files.
//!
//! ```text
//! COPY/config, compaction, ...         copied, each folder in a state that existed at one moment
//! COPY/mqstore/meta                    the metadata log, copied last, so that it is no older than the JSON files
//! COPY/consumequeue, index, ...        built from the log of the copy
//! ```
//!
//! Across threads: the store can be in use. Across a crash: the caller publishes the copy.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mqstore_format::RecordView;
use mqstore_format::delays::timer::{TIMER_CHECK_FIELD_BYTES, TimerCheckpoint};
use mqstore_format::names::TIMERCHECK_FILE;
use mqstore_io::{Access, FileKind, switch};

use super::repair::FinishedLog;
use crate::copy::copy_file;
use crate::repair::segment_files::load;
use mqstore_base::durable_mark::{DurableMark, DurableMarkFile};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::options::StoreOptions;
use mqstore_base::progress::ProgressWatcher;
use mqstore_base::store_files::{OWN_FOLDER, StoreFiles, TieredStore};
use mqstore_compaction::cut_unfinished_tails;
use mqstore_engine::{Store, refuse_rocksdb};
use mqstore_log::commit_log::read_record;
use mqstore_log::recovery::{RebuildReport, last_whole_record};
use mqstore_meta::copy_log;

/// Maximum number of attempts to copy a folder that changes meanwhile.
const TRIES: u32 = 10;

const READING_CHECK: &str = "reading the checkpoint of the timer";

/// Refuses a directory that cannot be copied while it is in use.
///
/// # Errors
/// [`StoreError::Unsupported`] for queues in `RocksDB`, a log of `DLedger`, and tiered files.
pub fn refuse_other_kinds(files: &StoreFiles) -> Result<(), StoreError> {
    refuse_rocksdb(files)?;
    if let Some(log) = files.raft_log() {
        return Err(log.refusal());
    }
    files.tiered().map_or(Ok(()), |tiered| Err(TieredStore::refusal(tiered.folder())))
}

/// Copies files of an open store to an empty folder.
#[derive(Clone, Copy)]
pub struct SideFiles<'a> {
    /// The store.
    pub store: &'a Store,
    /// The copy.
    pub copy: &'a StoreFiles,
}

impl SideFiles<'_> {
    fn source(&self) -> &StoreFiles {
        self.store.files()
    }

    /// Copies these folders of the root, and the files that cannot be derived from the log. Returns the metadata position
    /// at which the copied metadata log ends, if there is one. The archive is not copied: see [`Self::archive`].
    ///
    /// # Errors
    /// [`StoreError::Busy`] for a folder that changes too often; errors of the system.
    pub fn copy(&self, folders: &[&str]) -> Result<Option<u64>, StoreError> {
        for name in folders {
            self.folder(name)?;
        }
        cut_unfinished_tails(self.copy)?;
        self.forget_timer_log()?;
        let side = self.copy.side();
        self.copy.vfs.create_dir(&side).at(&side, "making a folder of a copy")?;
        for path in [StoreFiles::repairs, StoreFiles::checkpoint, StoreFiles::delay_levels_file] {
            self.file(&path(self.source()), &path(self.copy))?;
        }
        // After the JSON files, so that these are no newer than the metadata log.
        copy_log(self.source(), self.copy)
    }

    /// A copy has no timer log: it is made again from the records of its topic. So the checkpoint of the timer must not
    /// have a position in it.
    fn forget_timer_log(&self) -> Result<(), StoreError> {
        let path = self.copy.config().join(TIMERCHECK_FILE);
        let file = match self.copy.vfs.open(&path, Access::ReadWrite) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            file => file.at(&path, "opening the checkpoint of the timer")?,
        };
        let mut fields =
            vec![0; file.len().at(&path, READING_CHECK)?.min(TIMER_CHECK_FIELD_BYTES as u64) as usize];
        file.read_exact_at(&mut fields, 0).at(&path, READING_CHECK)?;
        let check = TimerCheckpoint { last_timer_log_flush_pos: 0, ..TimerCheckpoint::decode(&fields) };
        let encoded = check.encode_fields();
        let known = encoded.get(..fields.len()).unwrap_or_default();
        file.write_all_at(known, 0).at(&path, "writing the checkpoint of the timer")?;
        switch::step("copy.sync_timer_check", || file.sync_all()).at(&path, "syncing a copy")
    }

    /// Lets the reads of a copy whose log ends at `end` continue in the archive of the store. A damaged state stays
    /// damaged.
    pub(crate) fn archive(&self, end: u64) -> Result<(), StoreError> {
        match self.store.archive().state() {
            Ok(None) => Ok(()),
            Ok(Some(archive)) => archive.save_for_copy(self.copy, end),
            Err(StoreError::Corrupt { .. }) => self.file(&self.source().archive(), &self.copy.archive()),
            Err(error) => Err(error),
        }
    }

    /// Copies a folder in a state that existed at one moment: if its subfolders changed meanwhile, it copies again.
    pub(crate) fn folder(&self, name: &str) -> Result<(), StoreError> {
        let (from, to) = (self.source().folder(name), self.copy.root.join(name));
        for _ in 0..TRIES {
            let before = self.folders(&from)?;
            if before.is_empty() {
                return Ok(());
            }
            self.tree(&from, &to)?;
            let same = before
                .iter()
                .all(|(path, inode)| self.source().vfs.inode(path).is_ok_and(|now| now == *inode));
            if same {
                return Ok(());
            }
            self.copy.vfs.remove_dir_all(&to).at(&to, "copying a folder again")?;
        }
        Err(StoreError::Busy {
            reason: format!("{}: changes too often to be copied; try again", from.display()),
        })
    }

    /// Returns `path` and all folders below it, with their inode numbers.
    fn folders(&self, path: &Path) -> Result<Vec<(PathBuf, u64)>, StoreError> {
        let vfs = &self.source().vfs;
        let mut found = Vec::new();
        let mut open = vec![path.to_path_buf()];
        while let Some(folder) = open.pop() {
            let entries = match vfs.list(&folder) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                entries => entries.at(&folder, "listing a folder to copy")?,
            };
            if let Ok(inode) = vfs.inode(&folder) {
                found.push((folder.clone(), inode));
            }
            let below = entries.into_iter().filter(|entry| entry.stat.kind == FileKind::Directory);
            open.extend(below.map(|entry| folder.join(entry.name)));
        }
        Ok(found)
    }

    fn tree(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        let entries = match self.source().vfs.list(from) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            entries => entries.at(from, "listing a folder to copy")?,
        };
        self.copy.vfs.create_dir(to).at(to, "making a folder of a snapshot")?;
        // Sorted by name, so that `compactionCq` is before `compactionLog`: a log gets its records before their units.
        for entry in entries.into_iter().filter(|entry| entry.name != OWN_FOLDER) {
            let (from, to) = (from.join(&entry.name), to.join(&entry.name));
            match entry.stat.kind {
                FileKind::Directory => self.tree(&from, &to)?,
                FileKind::File => self.file(&from, &to)?,
                // Neither is part of a store.
                FileKind::Symlink | FileKind::Other => {}
            }
        }
        Ok(())
    }

    /// Copies a file, if it exists.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn file(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        let Ok(stat) = self.source().vfs.stat(from) else { return Ok(()) };
        match copy_file(self.copy, from, to, stat.len, &mut |_| Ok(())) {
            Err(error) if error.is_gone() => Ok(()),
            outcome => outcome,
        }
    }
}

/// Returns the files of a copy below one of its folders, by their path below the root; none if the folder is missing.
///
/// # Errors
/// [`StoreError::Unsupported`] for a name that is no text; errors of the system.
pub fn files_below(copy: &StoreFiles, folder: &Path) -> Result<BTreeMap<String, PathBuf>, StoreError> {
    let (mut found, mut open) = (BTreeMap::new(), vec![folder.to_path_buf()]);
    while let Some(folder) = open.pop() {
        let entries = match copy.vfs.list(&folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            entries => entries.at(&folder, "listing copied files")?,
        };
        for entry in entries {
            let path = folder.join(&entry.name);
            if entry.stat.kind == FileKind::Directory {
                open.push(path);
                continue;
            }
            let relative = path.strip_prefix(&copy.root).unwrap_or(&path);
            let Some(name) = relative.to_str().map(str::to_owned) else {
                let reason = "the name is not text, so it cannot be copied; rename it";
                return Err(StoreError::Unsupported { path, reason: reason.into() });
            };
            found.insert(name, path);
        }
    }
    Ok(found)
}

/// The log of a copy, from which its other files are built.
#[derive(Clone, Copy, Debug)]
pub struct CopiedLog {
    /// The log offset at which it ends.
    pub end: u64,
    /// Length of a segment.
    pub segment_bytes: u64,
    /// The metadata position at which the copied metadata log ends, if there is one.
    pub metadata_end: Option<u64>,
    /// The durable mark of the store, if it has one.
    pub old: Option<DurableMark>,
}

impl CopiedLog {
    /// Builds queues, index and checkpoint, and the mark of a clean close.
    ///
    /// # Errors
    /// Errors of the system, and of `watcher`.
    pub fn complete(
        &self,
        copy: &StoreFiles,
        options: &StoreOptions,
        watcher: ProgressWatcher<'_>,
    ) -> Result<RebuildReport, StoreError> {
        let list = load(copy, self.segment_bytes)?;
        let last = last_whole_record(&list, self.end)?;
        let mut seal = FinishedLog { end: self.end, last, segment_bytes: self.segment_bytes, time: 0 };
        if let Some((offset, size)) = last {
            let bytes = read_record(copy, &list, offset, size as usize)?;
            let record = RecordView::decode(bytes.as_slice());
            seal.time = record.map_or(0, |record| record.store_timestamp);
        }
        if let Some(old) = self.old {
            let metadata_end = self.metadata_end;
            let mark = DurableMark {
                has_metadata: metadata_end.is_some(),
                metadata_end,
                ..seal.mark(copy, &list, &old)?
            };
            DurableMarkFile::new(copy).store(&mark, true)?;
        }
        seal.derive(copy, options, watcher)
    }
}
