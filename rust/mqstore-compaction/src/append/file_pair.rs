//! The pair of files to which the compaction appender appends the records of a queue.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_format::{
    BATCH_CQ_UNIT_BYTES, BatchCqUnit, END_MARKER, RecordView, encode_blank, offset_file_name,
};
use mqstore_io::switch;
use mqstore_io::vfs::parent_dir;
use mqstore_io::{Access, VfsFile};

use crate::files::cursor::{OpenOutcome, PairCursor, UnitRun, read_units};
use crate::files::file_sizes::{CompactionGeometry, UNIT_BYTES};
use crate::files::folder::{FilePair, LOG_DIR, QUEUE_DIR, queue_dir};
use crate::files::staged::OutputPair;
use crate::job::survivor_writer::{SparseTags, append_moved};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

/// Names in the staging folder of files without a final name.
const STAGED_LOG: &str = "feed-log";
const STAGED_QUEUE: &str = "feed-queue";

/// See the module's text.
#[derive(Debug)]
pub(super) struct OpenFilePair {
    pub(super) base: u64,
    /// Bytes of records in the log, and of units in the queue file.
    pub(super) log_end: u64,
    pub(super) queue_end: u64,
    pub(super) log_path: PathBuf,
    queue_path: PathBuf,
    log: Arc<dyn VfsFile>,
    queue: Arc<dyn VfsFile>,
    /// Whether the files have their final names.
    named: bool,
}

/// Records and units that are written together.
#[derive(Debug, Default)]
pub(super) struct AppendBatch {
    pub(super) records: Vec<u8>,
    pub(super) entries: Vec<u8>,
    tags: SparseTags,
}

impl AppendBatch {
    pub(super) fn add(
        &mut self,
        files: &StoreFiles,
        record: &RecordView<'_>,
        position: u64,
        pair: &OpenFilePair,
    ) -> Result<(), StoreError> {
        let tags_code = self.tags.code(files, record)?;
        let entry = append_moved(record, tags_code, position as i64, &mut self.records)
            .map_err(|error| StoreError::format(&pair.log_path, position - pair.base, &error))?;
        self.entries.extend_from_slice(&entry.encode());
        Ok(())
    }
}

/// The result of opening the last files of a queue.
pub(super) enum ReopenOutcome {
    Open(OpenFilePair),
    /// The files are full; new ones must follow.
    Full,
    /// Neither can they be used nor can others follow, for this reason.
    Odd(String),
}

impl OpenFilePair {
    /// Opens files that were just written and published.
    pub(super) fn of(
        files: &StoreFiles,
        topic: &str,
        queue_id: i32,
        written: &OutputPair,
    ) -> Result<Self, StoreError> {
        let (log_path, queue_path) = paths(files, topic, queue_id, written.base);
        Self::open(
            files,
            log_path,
            queue_path,
            written.base,
            (written.log.used_bytes, written.queue.used_bytes),
        )
    }

    fn open(
        files: &StoreFiles,
        log_path: PathBuf,
        queue_path: PathBuf,
        base: u64,
        (log_end, queue_end): (u64, u64),
    ) -> Result<Self, StoreError> {
        let open =
            |path: &Path| files.vfs.open(path, Access::ReadWrite).at(path, "opening a compaction file");
        let (log, queue) = (open(&log_path)?, open(&queue_path)?);
        Ok(Self { base, log_end, queue_end, log_path, queue_path, log, queue, named: true })
    }

    /// Creates files that get their names with their first records.
    pub(super) fn create(
        files: &StoreFiles,
        topic: &str,
        queue_id: i32,
        base: u64,
        geometry: CompactionGeometry,
    ) -> Result<Self, StoreError> {
        let (log_path, queue_path) = paths(files, topic, queue_id, base);
        let log = stage(files, STAGED_LOG, geometry.log_file_bytes)?;
        let queue = stage(files, STAGED_QUEUE, geometry.queue_file_bytes)?;
        Ok(Self { base, log_end: 0, queue_end: 0, log_path, queue_path, log, queue, named: false })
    }

    /// Opens the last files of a queue, to continue after their last unit.
    pub(super) fn reopen(
        files: &StoreFiles,
        pair: &FilePair,
        topic: &str,
        queue_id: i32,
        geometry: CompactionGeometry,
    ) -> Result<ReopenOutcome, StoreError> {
        let (log_path, queue_path) = paths(files, topic, queue_id, pair.log.base);
        let Some(queue) = &pair.queue else {
            return create_missing_queue_file(files, pair, topic, queue_id, geometry);
        };
        let moved = || Ok(ReopenOutcome::Odd("its files were replaced while they were read".to_owned()));
        let Some(UnitRun { units, needed_bytes, is_cut, .. }) = read_units(files, queue, pair.log.len)?
        else {
            return moved();
        };
        if needed_bytes.is_some() || is_cut {
            let path = if is_cut { &queue.path } else { &pair.log.path };
            return Ok(ReopenOutcome::Odd(format!("{} was truncated", path.display())));
        }
        let ends = match units.last() {
            Some(last) => {
                let OpenOutcome::Same(mut cursor) =
                    PairCursor::open(files, pair, topic, queue_id, last.base_offset)?
                else {
                    return moved();
                };
                // Only a unit that matches its record gives the position of the next one.
                if cursor.next_record()?.is_none_or(|record| record.queue_offset != last.base_offset) {
                    return Ok(ReopenOutcome::Full);
                }
                let end = last.physical_offset.saturating_add(i64::from(last.size));
                (
                    u64::try_from(end).unwrap_or(0).saturating_sub(pair.log.base),
                    units.len() as u64 * UNIT_BYTES,
                )
            }
            None => (0, 0),
        };
        let open = Self::open(files, log_path, queue_path, pair.log.base, ends)?;
        Ok(if open.has_clean_end(geometry)? { ReopenOutcome::Open(open) } else { ReopenOutcome::Full })
    }

    /// Whether no bytes follow the last unit, and no record exists without a unit.
    fn has_clean_end(&self, geometry: CompactionGeometry) -> Result<bool, StoreError> {
        let mut rest = vec![0; geometry.queue_file_bytes.saturating_sub(self.queue_end) as usize];
        self.queue
            .read_exact_at(&mut rest, self.queue_end)
            .at(&self.queue_path, "reading sparse queue entries")?;
        let mut head = [0; 4];
        if self.queue_end == 0 {
            self.log.read_exact_at(&mut head, 0).at(&self.log_path, "reading a compaction log")?;
        }
        Ok(rest.iter().chain(&head).all(|byte| *byte == 0))
    }

    /// Writes `batch` and makes it durable: first the records, then the units.
    pub(super) fn flush(&mut self, files: &StoreFiles, batch: &mut AppendBatch) -> Result<(), StoreError> {
        if batch.entries.is_empty() {
            return Ok(());
        }
        self.log.write_all_at(&batch.records, self.log_end).at(&self.log_path, "writing a compaction log")?;
        switch::step("feed.sync_log", || self.log.sync_data())
            .at(&self.log_path, "syncing a compaction log")?;
        self.queue
            .write_all_at(&batch.entries, self.queue_end)
            .at(&self.queue_path, "writing sparse queue entries")?;
        switch::step("feed.sync_queue", || self.queue.sync_data())
            .at(&self.queue_path, "syncing sparse queue entries")?;
        self.log_end += batch.records.len() as u64;
        self.queue_end += batch.entries.len() as u64;
        batch.records.clear();
        batch.entries.clear();
        if self.named { Ok(()) } else { self.publish_names(files) }
    }

    /// Writes `batch`, and the markers that end the files if others follow.
    pub(super) fn close(
        &mut self,
        files: &StoreFiles,
        batch: &mut AppendBatch,
        geometry: CompactionGeometry,
    ) -> Result<(), StoreError> {
        let free = geometry.log_file_bytes.saturating_sub(self.log_end + batch.records.len() as u64);
        batch.records.extend_from_slice(&encode_blank(free as u32));
        batch.entries.extend_from_slice(&END_MARKER.encode());
        self.flush(files, batch)
    }

    fn publish_names(&mut self, files: &StoreFiles) -> Result<(), StoreError> {
        for (staged, path) in [(STAGED_LOG, &self.log_path), (STAGED_QUEUE, &self.queue_path)] {
            name_staged(files, staged, path)?;
        }
        self.named = true;
        Ok(())
    }
}

fn paths(files: &StoreFiles, topic: &str, queue_id: i32, base: u64) -> (PathBuf, PathBuf) {
    let (compaction, name) = (files.compaction(), offset_file_name(base));
    let path = |kind| queue_dir(&compaction, kind, topic, queue_id).join(&name);
    (path(LOG_DIR), path(QUEUE_DIR))
}

/// Creates a file without a final name, and replaces a leftover.
fn stage(files: &StoreFiles, name: &str, len: u64) -> Result<Arc<dyn VfsFile>, StoreError> {
    let path = staged_path(files, name);
    // A compaction replaces the target of a link, and the staging folder in it.
    files.ensure_folder(parent_dir(&path))?;
    match files.vfs.remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(StoreError::io(&path, "removing a staged file", error));
        }
        _ => {}
    }
    let file = files.vfs.create_new(&path).at(&path, "creating a compaction file")?;
    file.set_len(len).at(&path, "setting the length of a compaction file")?;
    Ok(file)
}

fn staged_path(files: &StoreFiles, name: &str) -> PathBuf {
    files.staging_for(&files.compaction()).join(name)
}

/// Gives a durable staged file its final name.
fn name_staged(files: &StoreFiles, staged: &str, path: &Path) -> Result<(), StoreError> {
    files.vfs.rename_noreplace(&staged_path(files, staged), path).at(path, "naming a compaction file")?;
    let folder = path.parent().unwrap_or(path);
    switch::step("feed.sync_name", || files.vfs.sync_dir(folder)).at(folder, "syncing a compaction folder")
}

/// Creates the missing queue file of a log: a compaction appender or broker stopped between the two.
fn create_missing_queue_file(
    files: &StoreFiles,
    pair: &FilePair,
    topic: &str,
    queue_id: i32,
    geometry: CompactionGeometry,
) -> Result<ReopenOutcome, StoreError> {
    let (log_path, queue_path) = paths(files, topic, queue_id, pair.log.base);
    let OpenOutcome::Same(mut cursor) = PairCursor::open(files, pair, topic, queue_id, 0)? else {
        return Ok(ReopenOutcome::Odd("its files were replaced while they were read".to_owned()));
    };
    let (mut tags, mut entries, mut log_end) = (SparseTags::default(), Vec::new(), 0);
    while let Some(record) = cursor.next_record()? {
        let code = tags.code(files, &record)?;
        let (position, size) = (record.physical_offset, record.size as i32);
        let unit = BatchCqUnit::new(position, size, code, record.store_timestamp, record.queue_offset, 1);
        entries.extend_from_slice(&unit.encode());
        log_end = (position as u64).saturating_sub(pair.log.base) + u64::from(record.size);
    }
    if entries.len() as u64 + BATCH_CQ_UNIT_BYTES as u64 > geometry.queue_file_bytes {
        return Ok(ReopenOutcome::Odd(format!(
            "{} has more records than a queue file has units",
            log_path.display()
        )));
    }
    let queue = stage(files, STAGED_QUEUE, geometry.queue_file_bytes)?;
    queue.write_all_at(&entries, 0).at(&queue_path, "writing sparse queue entries")?;
    switch::step("feed.sync_completed", || queue.sync_data())
        .at(&queue_path, "syncing sparse queue entries")?;
    name_staged(files, STAGED_QUEUE, &queue_path)?;
    let ends = (log_end, entries.len() as u64);
    OpenFilePair::open(files, log_path, queue_path, pair.log.base, ends).map(ReopenOutcome::Open)
}
