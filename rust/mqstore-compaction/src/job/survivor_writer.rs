//! Writing one generation of a queue: the survivors, in files that a broker goes on appending to.
//!
//! Owns the output of one task attempt, in a staging folder that nobody else writes to. Pairs of files
//! start at position 0 and follow each other without a gap:
//!
//! ```text
//! log/00000000000000000000  record record ... [free:4 0xCBD43194]  zeros   closed
//! cq/00000000000000000000   entry  entry  ... [end marker]         zeros
//! log/00000000000000002208  record ...        zeros                        the last pair: open
//! cq/00000000000000002208   entry  ...        zeros
//! ```
//!
//! Every pair but the last is closed as RocketMQ's rolling closes one. The last has no marker: a
//! broker that loads it sets its positions behind the last valid entry and its record, and appends
//! there. A compaction of RocketMQ's leaves old bytes behind that place when it reuses files of a
//! killed run; these files are new, so that zeros follow.
//!
//! A record keeps its bytes but PHYSICALOFFSET, and its property CRC where it has one, which is
//! sealed anew. Nothing counts before [`WrittenGeneration::sync`] returns: it syncs files and
//! folders. The system is asked to write each part at once, so that this takes little time. Memory: one
//! buffer a file.
//!
//! Source: `CompactionLog.CompactionAppendMessageCallback#doAppend`, `CompactionAppendEndMsgCallback`,
//! `SparseConsumeQueue#putBatchMessagePositionInfo`, `#putEndPositionInfo`.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_format::{
    BatchCqUnit, Crc31, DelayLevels, END_MARKER, FormatError, RecordView, SCHEDULE_TOPIC, encode_blank,
    offset_file_name, patch_position, seal_property_crc,
};
use mqstore_io::VfsFile;
use mqstore_io::switch;

use super::documents::{OutputFile, OutputPair};
use crate::files::file_sizes::{CompactionGeometry, UNIT_BYTES};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

/// Folder of the logs in a staging folder.
pub(crate) const STAGED_LOGS: &str = "log";

/// Folder of the queues in a staging folder.
pub(crate) const STAGED_QUEUES: &str = "cq";

/// Bytes that are gathered before they are written.
const BUFFER_BYTES: usize = 1 << 20;

/// Files that are open to be synced later, while the system writes them.
const MOST_UNSYNCED: usize = 4;

/// A file that is written from its start to its end.
#[derive(Debug)]
struct OutputFileWriter {
    path: PathBuf,
    file: Arc<dyn VfsFile>,
    buffer: Vec<u8>,
    written: u64,
    crc: Crc31,
}

impl OutputFileWriter {
    fn create(files: &StoreFiles, path: PathBuf, len: u64) -> Result<Self, StoreError> {
        let file = files.vfs.create_new(&path).at(&path, "creating a compaction file")?;
        file.set_len(len).at(&path, "setting the length of a compaction file")?;
        Ok(Self { path, file, buffer: Vec::new(), written: 0, crc: Crc31::new() })
    }

    fn position(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.buffer.extend_from_slice(bytes);
        self.write_if_large()
    }

    /// Writes what was gathered, once it is much.
    fn write_if_large(&mut self) -> Result<(), StoreError> {
        if self.buffer.len() >= BUFFER_BYTES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<(), StoreError> {
        self.file.write_all_at(&self.buffer, self.written).at(&self.path, "writing a compaction file")?;
        self.crc.update(&self.buffer);
        // The sync at the end finds little left to do.
        let _ = self.file.start_writing(self.written, self.buffer.len() as u64);
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Writes what was gathered; what the file holds then, and itself, to be synced.
    fn finish(mut self) -> Result<(OutputFile, UnsyncedFile), StoreError> {
        self.write()?;
        let holds = OutputFile { used_bytes: self.written, crc: self.crc.finish() };
        Ok((holds, UnsyncedFile { path: self.path, file: self.file }))
    }
}

/// A file that is written and not synced.
#[derive(Debug)]
struct UnsyncedFile {
    path: PathBuf,
    file: Arc<dyn VfsFile>,
}

impl UnsyncedFile {
    fn sync(&self) -> Result<(), StoreError> {
        switch::step("compaction.sync_file", || self.file.sync_all())
            .at(&self.path, "syncing a compaction file")
    }
}

/// A generation whose files are written, and not all of them synced.
#[derive(Debug)]
pub(crate) struct WrittenGeneration {
    staging: PathBuf,
    pairs: Vec<OutputPair>,
    unsynced: VecDeque<UnsyncedFile>,
}

impl WrittenGeneration {
    /// The pairs in ascending base.
    pub(crate) fn pairs(&self) -> &[OutputPair] {
        &self.pairs
    }

    /// Syncs files and folders.
    pub(crate) fn sync(&self, files: &StoreFiles) -> Result<(), StoreError> {
        self.unsynced.iter().try_for_each(UnsyncedFile::sync)?;
        sync_names(files, &self.staging)
    }
}

fn sync_names(files: &StoreFiles, staging: &Path) -> Result<(), StoreError> {
    for name in [STAGED_LOGS, STAGED_QUEUES] {
        let dir = staging.join(name);
        switch::step("compaction.sync_staged_names", || files.vfs.sync_dir(&dir))
            .at(&dir, "syncing a staging folder")?;
    }
    Ok(())
}

/// Writes the files of one generation; see the module's text.
#[derive(Debug)]
pub(crate) struct GenerationWriter<'a> {
    files: &'a StoreFiles,
    staging: PathBuf,
    geometry: CompactionGeometry,
    open: Option<(OutputFileWriter, OutputFileWriter)>,
    pairs: Vec<OutputPair>,
    unsynced: VecDeque<UnsyncedFile>,
    base: u64,
    tags: SparseTags,
}

impl<'a> GenerationWriter<'a> {
    /// Writes below `staging`, which exists and is empty but for other files of the same attempt; the first pair is number
    /// `pairs` of the generation.
    pub(crate) fn create(
        files: &'a StoreFiles,
        staging: &Path,
        geometry: CompactionGeometry,
        pairs: u64,
    ) -> Result<Self, StoreError> {
        for name in [STAGED_LOGS, STAGED_QUEUES] {
            let dir = staging.join(name);
            files.vfs.create_dir(&dir).at(&dir, "creating a staging folder")?;
        }
        Ok(Self::behind(files, staging, geometry, pairs))
    }

    /// Writes below `staging` behind the first `pairs` files of each kind, which are there and closed.
    pub(crate) fn behind(
        files: &'a StoreFiles,
        staging: &Path,
        geometry: CompactionGeometry,
        pairs: u64,
    ) -> Self {
        Self {
            files,
            staging: staging.to_path_buf(),
            geometry,
            open: None,
            pairs: Vec::new(),
            unsynced: VecDeque::new(),
            base: geometry.log_file_bytes.saturating_mul(pairs),
            tags: SparseTags::default(),
        }
    }

    /// How many pairs it has closed.
    pub(crate) fn closed(&self) -> u64 {
        self.pairs.len() as u64
    }

    /// Appends a survivor; the caller gives them in ascending queue offset.
    pub(crate) fn append(&mut self, record: &RecordView<'_>) -> Result<(), StoreError> {
        let size = u64::from(record.size);
        if size > self.geometry.largest_record() {
            return Err(StoreError::TooLarge {
                what: "a record of a compacted topic",
                size,
                limit: self.geometry.largest_record(),
            });
        }
        if let Some((log, queue)) = &self.open
            && !self.geometry.has_room(log.position(), queue.position(), size)
        {
            self.close(true)?;
        }
        if self.open.is_none() {
            self.open_pair()?;
        }
        let Some((log, queue)) = &mut self.open else {
            return Ok(());
        };
        let at = log.position();
        let tags_code = self.tags.code(self.files, record)?;
        let unit = append_moved(record, tags_code, (self.base + at) as i64, &mut log.buffer)
            .map_err(|error| StoreError::format(&log.path, at, &error))?;
        log.write_if_large()?;
        queue.append(&unit.encode())
    }

    fn open_pair(&mut self) -> Result<(), StoreError> {
        let name = offset_file_name(self.base);
        let log = self.staging.join(STAGED_LOGS).join(&name);
        let queue = self.staging.join(STAGED_QUEUES).join(&name);
        self.open = Some((
            OutputFileWriter::create(self.files, log, self.geometry.log_file_bytes)?,
            OutputFileWriter::create(self.files, queue, self.geometry.queue_file_bytes)?,
        ));
        Ok(())
    }

    /// Ends the open pair; with markers when another one follows.
    fn close(&mut self, another_follows: bool) -> Result<(), StoreError> {
        let Some((mut log, mut queue)) = self.open.take() else {
            return Ok(());
        };
        let units = queue.position() / UNIT_BYTES;
        if another_follows {
            let free = self.geometry.log_file_bytes - log.position();
            log.append(&encode_blank(free as u32))?;
            queue.append(&END_MARKER.encode())?;
        }
        let ((log, log_file), (queue, queue_file)) = (log.finish()?, queue.finish()?);
        self.pairs.push(OutputPair { base: self.base, units, log, queue });
        self.unsynced.extend([log_file, queue_file]);
        while self.unsynced.len() > MOST_UNSYNCED {
            self.unsynced.pop_front().map_or(Ok(()), |oldest| oldest.sync())?;
        }
        self.base += self.geometry.log_file_bytes;
        Ok(())
    }

    /// Closes everything; the caller syncs it. `another_follows`: a pair that somebody else writes.
    pub(crate) fn finish(mut self, another_follows: bool) -> Result<WrittenGeneration, StoreError> {
        self.close(another_follows)?;
        Ok(WrittenGeneration { staging: self.staging, pairs: self.pairs, unsynced: self.unsynced })
    }

    /// Makes the closed pairs durable, with their names.
    pub(crate) fn sync_closed(&mut self) -> Result<(), StoreError> {
        self.unsynced.drain(..).try_for_each(|file| file.sync())?;
        sync_names(self.files, &self.staging)
    }
}

/// The tags codes in a sparse queue of one topic. Those of delayed messages are when these are due, by the store's table of
/// delay levels, which is asked for with the first record; nobody compacts these, but for who forces it.
#[derive(Debug, Default)]
pub struct SparseTags {
    levels: Option<DelayLevels>,
}

impl SparseTags {
    /// The tags code of `record`.
    pub fn code(&mut self, files: &StoreFiles, record: &RecordView<'_>) -> Result<i64, StoreError> {
        let levels = match &mut self.levels {
            Some(levels) => levels,
            none if record.topic == SCHEDULE_TOPIC => none.insert(files.delay_tables(None)?.latest().clone()),
            none => none.insert(DelayLevels::default()),
        };
        Ok(record.tags_code(levels))
    }
}

/// Appends `record` to `out` with `position` as its PHYSICALOFFSET; its entry in the sparse queue.
pub(crate) fn append_moved(
    record: &RecordView<'_>,
    tags_code: i64,
    position: i64,
    out: &mut Vec<u8>,
) -> Result<BatchCqUnit, FormatError> {
    let start = out.len();
    out.extend_from_slice(record.bytes);
    let copy = out.get_mut(start..).unwrap_or_default();
    patch_position(copy, record.queue_offset, position, record.store_timestamp)?;
    if record.has_property_crc() {
        seal_property_crc(copy)?;
    }
    let (stored, offset) = (record.store_timestamp, record.queue_offset);
    Ok(BatchCqUnit::new(position, record.size as i32, tags_code, stored, offset, 1))
}
