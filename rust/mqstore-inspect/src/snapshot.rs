//! A consistent copy of a store that is in use.
//!
//! Owns `OUT.partial` until it gets its final name. The log offset of the snapshot is read once; later messages are
//! not in it:
//!
//! ```text
//! log      | full | full | full | being written ......|
//! OUT        shared blocks, or a hard link to the file   | copied up to the log offset, then zeros
//! ```
//!
//! Full segments are never written again. They share blocks with the original if the file system can do that; else they
//! are hard links to the same files, else copies. Code that overwrites a segment first checks its number of links.
//! Queues, index and checkpoint are built from the copied log, so that they end where it ends. Metadata, configuration,
//! compacted topics, the loss report, the delay levels and the archive are copied. A snapshot has its log only in
//! `commitlog`.
//!
//! Across threads: appends, reads and expiry continue; if segments expire before they are copied, the snapshot begins
//! later. Across a crash: same as for a copy.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_format::RecordView;
use mqstore_io::{FileKind, switch};

use super::repair::FinishedLog;
use crate::copy::{StagedCopy, copy_bytes, copy_file, copy_open_file};
use crate::repair::segment_files::load;
use mqstore_base::durable_mark::{DurableMark, DurableMarkFile};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::options::StoreOptions;
use mqstore_base::progress::Progress;
use mqstore_base::progress::ProgressWatcher;
use mqstore_base::store_files::{OWN_FOLDER, StoreFiles, TieredStore};
use mqstore_compaction::cut_unfinished_tails;
use mqstore_engine::Store;
use mqstore_engine::refuse_rocksdb;
use mqstore_log::commit_log::{Segment, SegmentList, read_record};
use mqstore_log::recovery::last_whole_record;
use mqstore_meta::copy_log;

/// Maximum number of attempts to copy a folder that changes meanwhile.
const TRIES: u32 = 10;

/// The contents of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotReport {
    /// First log offset.
    pub log_min_offset: u64,
    /// End of the log: all records before it are in the snapshot, none after it.
    pub log_max_offset: u64,
    /// Number of messages in its log.
    pub messages: u64,
    /// Number of segments that are hard links to the store's files.
    pub linked_segments: u64,
    /// Number of segments with their own files; they may share blocks with those of the store.
    pub copied_segments: u64,
}

/// Makes a consistent copy of `store` in the new folder `output`, with all messages that were appended before the call.
/// A store that is open for writing is flushed first; appends continue meanwhile.
///
/// # Errors
/// [`StoreError::Io`] with `AlreadyExists` if `output` exists; [`StoreError::Unsupported`] for queues in `RocksDB`;
/// errors that `watcher` returns; I/O errors. After an error, no part of the copy remains.
pub fn snapshot(
    store: &Store,
    output: &Path,
    watcher: ProgressWatcher<'_>,
) -> Result<SnapshotReport, StoreError> {
    store.check()?;
    let files = store.files();
    refuse_rocksdb(files)?;
    if let Some(log) = files.raft_log() {
        return Err(log.refusal());
    }
    if let Some(tiered) = files.tiered() {
        return Err(TieredStore::refusal(tiered.folder()));
    }
    let copy = StagedCopy::begin(files, output)?;
    let filled = copy.fill_with(|copy| {
        let end = store.inspection().settle()?;
        let list = store.segments();
        let (source, report) = (files, SnapshotReport::default());
        SnapshotRun { store, source, copy: &copy.files, end, list, metadata_end: None, report }
            .make(&store.inspection().copy_options(), watcher)
    })?;
    filled.publish()
}

/// A snapshot in progress.
struct SnapshotRun<'a> {
    store: &'a Store,
    source: &'a StoreFiles,
    copy: &'a StoreFiles,
    end: u64,
    list: Arc<SegmentList>,
    /// The metadata position at which the copied metadata log ends, if there is one.
    metadata_end: Option<u64>,
    report: SnapshotReport,
}

impl SnapshotRun<'_> {
    fn make(
        mut self,
        options: &StoreOptions,
        watcher: ProgressWatcher<'_>,
    ) -> Result<SnapshotReport, StoreError> {
        let segments: Vec<Arc<Segment>> =
            self.list.segments().iter().filter(|segment| segment.base_offset() < self.end).cloned().collect();
        // The build of queues and index counts the same again.
        let total_bytes = 2 * segments.iter().map(|segment| segment.len()).sum::<u64>();
        let mut done_bytes = 0;
        let folder = self.copy.commit_log();
        self.copy.vfs.create_dir(&folder).at(&folder, "making the folder of a snapshot")?;
        // The newest first, because expiry removes the oldest.
        for segment in segments.iter().rev() {
            let mut step = |bytes| {
                done_bytes += bytes;
                watcher(Progress { done_bytes, total_bytes })
            };
            if !self.segment(segment, &mut step)? {
                break;
            }
        }
        self.side_files()?;
        let segment_bytes = segments.first().map_or(0, |segment| segment.len());
        self.derive(segment_bytes, options, &mut |step| {
            let rest = total_bytes - done_bytes;
            let part = rest.min(step.done_bytes);
            watcher(Progress { done_bytes: done_bytes + part, total_bytes })
        })?;
        Ok(self.report)
    }

    /// Copies a segment; returns `false` if it was removed meanwhile.
    fn segment(
        &mut self,
        segment: &Arc<Segment>,
        step: &mut dyn FnMut(u64) -> Result<(), StoreError>,
    ) -> Result<bool, StoreError> {
        let Some(held) = segment.hold() else { return Ok(false) };
        let from = held.path();
        let to = self.copy.commit_log().join(mqstore_format::offset_file_name(segment.base_offset()));
        let file = match held.file() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            file => file.at(&from, "opening a log segment")?,
        };
        let vfs = &self.copy.vfs;
        if segment.end_offset() <= self.end {
            let linked = vfs.reflink(&from, &to).is_err() && vfs.hard_link(&from, &to).is_ok();
            let made = vfs.stat(&to).ok();
            let own = file.stat().at(&from, "looking at a log segment")?;
            let good = made.is_some_and(|made| made.len == own.len && (!linked || made.inode == own.inode));
            if good {
                let copied = vfs.open(&to, mqstore_io::Access::Read).at(&to, "opening a copy")?;
                switch::step("snapshot.sync_linked", || copied.sync_all()).at(&to, "syncing a copy")?;
                let count =
                    if linked { &mut self.report.linked_segments } else { &mut self.report.copied_segments };
                *count += 1;
                step(own.len)?;
                return Ok(true);
            }
            if made.is_some() {
                vfs.remove_file(&to).at(&to, "making a copy")?;
            }
            copy_open_file(self.copy, (&from, &*file), &to, own.len, step)?;
        } else {
            let copied = vfs.create_new(&to).at(&to, "making a copy")?;
            copy_bytes(&*file, &*copied, 0..self.end - segment.base_offset(), step, (&from, &to))?;
            copied.set_len(segment.len()).at(&to, "making a copy")?;
            switch::step("snapshot.sync_last", || copied.sync_all()).at(&to, "syncing a copy")?;
        }
        self.report.copied_segments += 1;
        Ok(true)
    }

    /// Copies the files that cannot be derived from the log.
    fn side_files(&mut self) -> Result<(), StoreError> {
        for name in ["config", "compaction", "consumequeue", "batchconsumequeue"] {
            self.folder(name)?;
        }
        cut_unfinished_tails(self.copy)?;
        let side = self.copy.side();
        self.copy.vfs.create_dir(&side).at(&side, "making a folder of a snapshot")?;
        for path in [StoreFiles::repairs, StoreFiles::checkpoint, StoreFiles::delay_levels_file] {
            self.file(&path(self.source), &path(self.copy))?;
        }
        self.archive()?;
        // After the JSON files, so that these are no newer than the metadata log.
        self.metadata_end = copy_log(self.source, self.copy)?;
        Ok(())
    }

    /// Lets the reads of the snapshot continue in the archive of the store. A damaged state stays damaged.
    fn archive(&self) -> Result<(), StoreError> {
        match self.store.archive().state() {
            Ok(None) => Ok(()),
            Ok(Some(archive)) => archive.save_for_copy(self.copy, self.end),
            Err(StoreError::Corrupt { .. }) => self.file(&self.source.archive(), &self.copy.archive()),
            Err(error) => Err(error),
        }
    }

    /// Copies a folder in a state that existed at one moment: if its subfolders changed meanwhile, it copies again.
    fn folder(&self, name: &str) -> Result<(), StoreError> {
        let (from, to) = (self.source.folder(name), self.copy.root.join(name));
        for _ in 0..TRIES {
            let before = self.folders(&from)?;
            if before.is_empty() {
                return Ok(());
            }
            self.tree(&from, &to)?;
            let same =
                before.iter().all(|(path, inode)| self.source.vfs.inode(path).is_ok_and(|now| now == *inode));
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
        let vfs = &self.source.vfs;
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
        let entries = match self.source.vfs.list(from) {
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
    fn file(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        let Ok(stat) = self.source.vfs.stat(from) else { return Ok(()) };
        match copy_file(self.copy, from, to, stat.len, &mut |_| Ok(())) {
            Err(error) if error.is_gone() => Ok(()),
            outcome => outcome,
        }
    }

    /// Builds queues, index and checkpoint for the copied log, and the mark of a clean close.
    fn derive(
        &mut self,
        segment_bytes: u64,
        options: &StoreOptions,
        watcher: ProgressWatcher<'_>,
    ) -> Result<(), StoreError> {
        let list = load(self.copy, segment_bytes)?;
        let last = last_whole_record(&list, self.end)?;
        let mut seal = FinishedLog { end: self.end, last, segment_bytes, time: 0 };
        if let Some((offset, size)) = last {
            let bytes = read_record(self.copy, &list, offset, size as usize)?;
            let record = RecordView::decode(bytes.as_slice());
            seal.time = record.map_or(0, |record| record.store_timestamp);
        }
        if let Some(old) = DurableMarkFile::new(self.source).try_load()? {
            let end = self.metadata_end;
            let mark = DurableMark {
                has_metadata: end.is_some(),
                metadata_end: end,
                ..seal.mark(self.copy, &list, &old)?
            };
            DurableMarkFile::new(self.copy).store(&mark, true)?;
        } else {
            self.index_files()?;
        }
        let built = seal.derive(self.copy, options, watcher)?;
        (self.report.log_min_offset, self.report.log_max_offset) = (list.min_offset(), self.end);
        self.report.messages = built.messages;
        Ok(())
    }

    /// Copies the index files if no mark records their geometry; they are replaced later.
    fn index_files(&self) -> Result<(), StoreError> {
        self.folder("index")
    }
}
