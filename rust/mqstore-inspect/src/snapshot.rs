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

use std::path::Path;
use std::sync::Arc;

use mqstore_io::switch;

use crate::copy::{StagedCopy, copy_bytes, copy_open_file};
use crate::repair::segment_files::load;
use crate::side_files::{CopiedLog, SideFiles, refuse_other_kinds};
use mqstore_base::durable_mark::DurableMarkFile;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::options::StoreOptions;
use mqstore_base::progress::Progress;
use mqstore_base::progress::ProgressWatcher;
use mqstore_base::store_files::StoreFiles;
use mqstore_engine::Store;
use mqstore_log::commit_log::{Segment, SegmentList};

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
    refuse_other_kinds(files)?;
    let copy = StagedCopy::begin(files, output)?;
    let filled = copy.fill_with(|copy| {
        let end = store.inspection().settle()?;
        let list = store.segments();
        let (source, report) = (files, SnapshotReport::default());
        SnapshotRun { store, source, copy: &copy.files, end, list, report }
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
        let side = SideFiles { store: self.store, copy: self.copy };
        let metadata_end = side.copy(&["config", "compaction", "consumequeue", "batchconsumequeue"])?;
        side.archive(self.end)?;
        let segment_bytes = segments.first().map_or(0, |segment| segment.len());
        self.derive(segment_bytes, metadata_end, options, &mut |step| {
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

    /// Builds queues, index and checkpoint for the copied log.
    fn derive(
        &mut self,
        segment_bytes: u64,
        metadata_end: Option<u64>,
        options: &StoreOptions,
        watcher: ProgressWatcher<'_>,
    ) -> Result<(), StoreError> {
        let old = DurableMarkFile::new(self.source).try_load()?;
        if old.is_none() {
            // No mark records the geometry of the index files, which are replaced later.
            SideFiles { store: self.store, copy: self.copy }.folder("index")?;
        }
        let log = CopiedLog { end: self.end, segment_bytes, metadata_end, old };
        self.report.messages = log.complete(self.copy, options, watcher)?.messages;
        (self.report.log_min_offset, self.report.log_max_offset) =
            (load(self.copy, segment_bytes)?.min_offset(), self.end);
        Ok(())
    }
}
