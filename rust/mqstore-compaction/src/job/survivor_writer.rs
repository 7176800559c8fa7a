//! Writes one generation of a queue: the survivors, in files to which a broker can append.
//!
//! Owns the output of one task attempt, in a staging folder that no other attempt uses. Pairs of files start at
//! position 0 and follow each other without a gap:
//!
//! ```text
//! log/00000000000000000000  record record ... [free:4 0xCBD43194]  zeros   closed
//! cq/00000000000000000000   unit   unit   ... [end marker]         zeros
//! log/00000000000000002208  record ...        zeros                        the last pair: open
//! cq/00000000000000002208   unit   ...        zeros
//! ```
//!
//! Each pair except the last is closed as in RocketMQ's roll. The last pair has no marker: a broker that loads it
//! continues after the last valid unit and its record. RocketMQ's own compaction can leave old bytes after this place,
//! because it reuses files of a killed run. These files are new, so that zeros follow.
//!
//! A record keeps all bytes except PHYSICALOFFSET and, if it has one, its property CRC, which is computed again.
//! The generation is durable only after [`WrittenGeneration::sync`], which syncs files and folders. The system is asked
//! to start writing each part immediately, so that the sync takes little time. Memory: one buffer for each file.
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

use crate::files::file_sizes::{CompactionGeometry, UNIT_BYTES};
use crate::files::staged::{OutputFile, OutputPair, STAGED_LOGS, STAGED_QUEUES};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

/// Bytes that are buffered before a write.
const BUFFER_BYTES: usize = 1 << 20;

/// Maximum number of open files that are synced later, while the system writes them.
const MOST_UNSYNCED: usize = 4;

/// A file that is written from start to end.
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

    /// Writes the buffer if it is large enough.
    fn write_if_large(&mut self) -> Result<(), StoreError> {
        if self.buffer.len() >= BUFFER_BYTES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<(), StoreError> {
        self.file.write_all_at(&self.buffer, self.written).at(&self.path, "writing a compaction file")?;
        self.crc.update(&self.buffer);
        // So the sync at the end finds little left to write.
        let _ = self.file.start_writing(self.written, self.buffer.len() as u64);
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Writes the buffer; returns the description of the file, and the file for its sync.
    fn finish(mut self) -> Result<(OutputFile, UnsyncedFile), StoreError> {
        self.write()?;
        let holds = OutputFile { used_bytes: self.written, crc: self.crc.finish() };
        Ok((holds, UnsyncedFile { path: self.path, file: self.file }))
    }
}

/// A written file that is not synced.
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

/// A generation whose files are written, and some not synced.
#[derive(Debug)]
pub(crate) struct WrittenGeneration {
    staging: PathBuf,
    pairs: Vec<OutputPair>,
    unsynced: VecDeque<UnsyncedFile>,
}

impl WrittenGeneration {
    /// Returns the pairs in ascending base.
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
    /// Creates a writer below `staging`, which exists and contains only other files of the same attempt. The first pair
    /// has number `pairs` in the generation.
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

    /// Creates a writer below `staging` that continues after the first `pairs` files of each kind, which are closed.
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

    /// Returns the number of closed pairs.
    pub(crate) fn closed(&self) -> u64 {
        self.pairs.len() as u64
    }

    /// Appends a survivor. Survivors come in ascending queue offset.
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

    /// Ends the open pair; writes markers if another pair follows.
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

    /// Closes all files; the caller syncs them. `another_follows`: another step writes a following pair.
    pub(crate) fn finish(mut self, another_follows: bool) -> Result<WrittenGeneration, StoreError> {
        self.close(another_follows)?;
        Ok(WrittenGeneration { staging: self.staging, pairs: self.pairs, unsynced: self.unsynced })
    }

    /// Syncs the closed pairs and their names.
    pub(crate) fn sync_closed(&mut self) -> Result<(), StoreError> {
        self.unsynced.drain(..).try_for_each(|file| file.sync())?;
        sync_names(self.files, &self.staging)
    }
}

/// The tags codes in the sparse queue of one topic. For delayed messages, the tags code is the due time by the store's
/// table of delay levels, which is loaded with the first record. Only `force` compacts delayed messages.
#[derive(Debug, Default)]
pub struct SparseTags {
    levels: Option<DelayLevels>,
}

impl SparseTags {
    /// Returns the tags code of `record`.
    pub fn code(&mut self, files: &StoreFiles, record: &RecordView<'_>) -> Result<i64, StoreError> {
        let levels = match &mut self.levels {
            Some(levels) => levels,
            none if record.topic == SCHEDULE_TOPIC => none.insert(files.delay_tables(None)?.latest().clone()),
            none => none.insert(DelayLevels::default()),
        };
        Ok(record.tags_code(levels))
    }
}

/// Appends `record` to `out` with `position` as its PHYSICALOFFSET; returns its unit for the sparse queue.
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
