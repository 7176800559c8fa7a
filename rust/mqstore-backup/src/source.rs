//! What a round copies: first the files that cannot be derived from the log, then the log up to an end after that.
//!
//! Owns the staging folder, which has the copied files until the round has uploaded them. A loss of power leaves it; the
//! next round empties it.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_base::durable_mark::DurableMarkFile;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;
use mqstore_engine::Store;
use mqstore_inspect::{SideFiles, files_below, refuse_other_kinds};
use mqstore_io::{Access, FileKind, Vfs, VfsFile};
use mqstore_log::commit_log::{LogScanner, ScanChecks, ScanItem, Segment, SegmentList};

use crate::manifest::{ArchiveEntry, FileEntry, Geometry};

const COPYING: &str = "copying a file for a backup";

const QUEUES: &str = "consumequeue";
const BATCH_QUEUES: &str = "batchconsumequeue";

/// Copied files of a queue. The last one has the next offset, unless it is still empty.
const KEPT_QUEUE_FILES: usize = 2;

/// A file to back up.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) file: Arc<dyn VfsFile>,
    pub(crate) path: PathBuf,
    /// Bytes to back up.
    pub(crate) bytes: u64,
}

/// A segment of the log. It is opened only if the backup does not have it: a store can have more segments than a process
/// may open files.
#[derive(Debug)]
pub(crate) struct LogSegment {
    segment: Arc<Segment>,
    list: Arc<SegmentList>,
    /// The end of the log.
    log_end: u64,
}

/// An open segment. It has one version, also if a reclaim replaces its file.
#[derive(Debug)]
pub(crate) struct OpenSegment {
    pub(crate) file: OpenFile,
    pub(crate) inode: u64,
    pub(crate) first_ms: Option<i64>,
}

impl LogSegment {
    pub(crate) fn base(&self) -> u64 {
        self.segment.base_offset()
    }

    /// Returns the length of the file.
    pub(crate) fn length(&self) -> u64 {
        self.segment.len()
    }

    /// Returns the bytes before the end of the log.
    pub(crate) fn filled(&self) -> u64 {
        self.length().min(self.log_end - self.base())
    }

    /// Returns the inode of the file that has the name now; `None` if retention has deleted it.
    pub(crate) fn inode(&self, vfs: &dyn Vfs) -> Result<Option<u64>, StoreError> {
        let path = self.segment.path();
        match vfs.inode(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            inode => inode.map(Some).at(&path, "looking at a log segment"),
        }
    }

    /// Opens the segment; `None` if retention has deleted it.
    pub(crate) fn open(&self) -> Result<Option<OpenSegment>, StoreError> {
        let path = self.segment.path();
        let file = match self.segment.hold().map(|held| held.file()) {
            None => return Ok(None),
            Some(Err(error)) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Some(file) => file.at(&path, "opening a log segment")?,
        };
        let inode = file.stat().at(&path, "looking at a log segment")?.inode;
        let mut scanner =
            LogScanner::new(Arc::clone(&self.list), self.base(), self.log_end, ScanChecks { crc: false });
        let first_ms = match scanner.next_item() {
            Ok(ScanItem::Record(record)) => Some(record.store_timestamp),
            _ => None,
        };
        Ok(Some(OpenSegment { file: OpenFile { file, path, bytes: self.filled() }, inode, first_ms }))
    }
}

/// The copied files. They are removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Side {
    staged: StoreFiles,
    /// Paths by path below the root.
    pub(crate) files: BTreeMap<String, PathBuf>,
    pub(crate) metadata_end: Option<u64>,
    pub(crate) archive: Option<ArchiveEntry>,
    pub(crate) geometry: Geometry,
}

impl Drop for Side {
    fn drop(&mut self) {
        // The next round empties it, if this fails.
        let _ = self.staged.vfs.remove_dir_all(&self.staged.root);
    }
}

impl Side {
    /// Copies the files to the folder `staging`, which this replaces.
    pub(crate) fn capture(store: &Store, staging: &Path) -> Result<Self, StoreError> {
        let source = store.files();
        refuse_other_kinds(source)?;
        let vfs = &source.vfs;
        match vfs.remove_dir_all(staging) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(StoreError::io(staging, "emptying the staging folder of a backup", error));
            }
            _ => vfs.create_dir_all(staging).at(staging, COPYING)?,
        }
        let staged = StoreFiles::new(Arc::clone(vfs), Arc::clone(&source.clock), staging);
        let options = store.inspection().copy_options();
        let geometry = Geometry {
            queue_file_entries: options.queue_file_entries,
            index_slots: options.index_slots,
            index_entries: options.index_entries,
        };
        let mut side = Self { staged, files: BTreeMap::new(), metadata_end: None, archive: None, geometry };
        let copied = SideFiles { store, copy: &side.staged };
        side.metadata_end = copied.copy(&["config", "compaction"])?;
        // A directory of a broker has no table of delays; a restore needs the one that the store has now.
        side.staged.remember_delays(store.delay_tables())?;
        if let Some(mark) = DurableMarkFile::new(source).try_load()? {
            DurableMarkFile::new(&side.staged).store(&mark, false)?;
        }
        side.archive = match store.archive().state() {
            // A damaged state says nothing that a restore can use.
            Err(StoreError::Corrupt { .. }) => None,
            state => {
                state?.map(|state| ArchiveEntry { archived_to: state.archived_to, settings: state.settings })
            }
        };
        copy_batch_queues(store, &side.staged)?;
        side.files = files_below(&side.staged, staging)?;
        Ok(side)
    }

    /// Adds the last files of the queues that have no record in the log any more. They keep the next offset.
    pub(crate) fn add_ends_of_queues(&mut self, store: &Store) -> Result<(), StoreError> {
        copy_ends_of_queues(store, &self.staged)?;
        self.files.extend(files_below(&self.staged, &self.staged.root.join(QUEUES))?);
        Ok(())
    }

    /// Opens a copied file.
    pub(crate) fn open(&self, path: &Path) -> Result<OpenFile, StoreError> {
        let file = self.staged.vfs.open(path, Access::Read).at(path, COPYING)?;
        let bytes = file.len().at(path, COPYING)?;
        Ok(OpenFile { file, path: path.to_path_buf(), bytes })
    }
}

/// Whether a file is one of [`Side::add_ends_of_queues`].
pub(crate) fn is_end_of_queue(file: &FileEntry) -> bool {
    file.path.starts_with(QUEUES)
}

fn copy_ends_of_queues(store: &Store, copy: &StoreFiles) -> Result<(), StoreError> {
    for topic in store.topics()? {
        for queue_id in store.queue_ids(&topic)? {
            let (min, max) = store.bounds(&topic, queue_id)?;
            if max > 0 && min == max {
                let queue = Path::new(&topic).join(queue_id.to_string());
                copy_last_files(store, copy, QUEUES, &queue)?;
            }
        }
    }
    Ok(())
}

/// Copies the last files of all batch queues. They show the length of these files, which a broker has its own option for.
fn copy_batch_queues(store: &Store, copy: &StoreFiles) -> Result<(), StoreError> {
    let root = store.files().folder(BATCH_QUEUES);
    let folders = |path: &Path| match copy.vfs.list_kinds(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        names => names.at(path, COPYING),
    };
    for (topic, _) in folders(&root)?.into_iter().filter(|(_, kind)| *kind == FileKind::Directory) {
        let queues = folders(&root.join(&topic))?;
        for (queue, _) in queues.into_iter().filter(|(_, kind)| *kind == FileKind::Directory) {
            copy_last_files(store, copy, BATCH_QUEUES, &Path::new(&topic).join(queue))?;
        }
    }
    Ok(())
}

fn copy_last_files(store: &Store, copy: &StoreFiles, folder: &str, queue: &Path) -> Result<(), StoreError> {
    let from = store.files().folder(folder).join(queue);
    let mut names = match copy.vfs.list_kinds(&from) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        names => names.at(&from, COPYING)?,
    };
    names.retain(|(_, kind)| *kind == FileKind::File);
    names.sort_by(|(one, _), (other, _)| one.cmp(other));
    let to = copy.root.join(folder).join(queue);
    copy.vfs.create_dir_all(&to).at(&to, COPYING)?;
    for (name, _) in names.iter().rev().take(KEPT_QUEUE_FILES) {
        SideFiles { store, copy }.file(&from.join(name), &to.join(name))?;
    }
    Ok(())
}

/// Returns the segments of the log of a store before its end, oldest first, and the end.
pub(crate) fn segments(store: &Store) -> Result<(Vec<LogSegment>, u64), StoreError> {
    let log_end = store.inspection().settle()?;
    let list = store.segments();
    let before = list.segments().iter().filter(|segment| segment.base_offset() < log_end);
    let found =
        before.map(|segment| LogSegment { segment: Arc::clone(segment), list: Arc::clone(&list), log_end });
    Ok((found.collect(), log_end))
}
