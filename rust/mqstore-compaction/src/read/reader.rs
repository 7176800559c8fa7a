//! Reads a compacted queue: the message at an offset, or the next one.
//!
//! Owns [`CompactedQueue`], the read side of `compaction/` for the engine, verification and the next compaction. Never
//! writes, and takes no lock. A read continues while a new generation is published: if its files were replaced, the
//! iterator lists them again and continues after its last record. So offsets always ascend, and each record comes
//! complete from one generation.
//!
//! Bounds: the minimum is the first record's queue offset. The maximum is one past the last record's offset, or one
//! past RocketMQ's saved position if that is larger. So the end does not move back if the newest records were
//! tombstones.
//!
//! Source: `SparseConsumeQueue#iterateFromOrNext`, `CompactionLog#getMessage`.

use std::sync::Arc;

use mqstore_io::VfsFile;

use crate::files::cursor::{OpenOutcome, PairCursor};
use crate::files::folder::{QueueFolder, check_names, open_listed};
use crate::files::generation::GenerationState;
use crate::files::manifest::ManifestCache;
use crate::files::positions::PositionCheckpoint;
use mqstore_base::error::StoreError;
use mqstore_base::message::{RecordBytes, StoredRecord};
use mqstore_base::store_files::StoreFiles;

/// Maximum number of times that files may be replaced during one call.
const MOST_RELOADS: u32 = 64;

/// The compacted records of one queue.
#[derive(Debug)]
pub struct CompactedQueue {
    files: StoreFiles,
    topic: String,
    queue_id: i32,
    min_offset: i64,
    max_offset: i64,
    /// One past the position in `position-checkpoint`.
    read: i64,
    first: Option<FirstFile>,
}

/// The first log file, which identifies a generation. It stays open, so that no other file gets its inode.
#[derive(Clone, Debug)]
struct FirstFile {
    inode: u64,
    _open: Arc<dyn VfsFile>,
}

impl CompactedQueue {
    /// Opens the compacted log of a queue; `None` if it has no files.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] for damage in the first or the last file, [`StoreError::InvalidOption`] or
    /// [`StoreError::TopicNotFound`] for an invalid topic or queue id, and I/O errors.
    pub fn open(files: &StoreFiles, topic: &str, queue_id: i32) -> Result<Option<Self>, StoreError> {
        check_names(topic, queue_id)?;
        let read = PositionCheckpoint::load(files, &files.compaction())?.end(topic, queue_id);
        for _ in 0..MOST_RELOADS {
            let folder = QueueFolder::load(files, &files.compaction(), topic, queue_id)?;
            if folder.pairs.is_empty() && read == 0 {
                return Ok(None);
            }
            let OpenOutcome::Same(bounds) = bounds(files, &folder, topic, queue_id)? else {
                continue;
            };
            let first = match folder.pairs.first() {
                Some(pair) => match open_listed(files, &pair.log)? {
                    Some(open) => Some(FirstFile { inode: pair.log.inode, _open: open }),
                    None => continue,
                },
                None => None,
            };
            let end = bounds.map_or(0, |(_, last)| last.saturating_add(1));
            let max_offset = end.max(read);
            return Ok(Some(Self {
                files: files.clone(),
                topic: topic.to_owned(),
                queue_id,
                min_offset: bounds.map_or(max_offset, |(first, _)| first),
                max_offset,
                read,
                first,
            }));
        }
        Err(replaced_too_often(topic, queue_id))
    }

    /// Returns the first record's queue offset; equal to the maximum without records.
    pub fn min_offset(&self) -> i64 {
        self.min_offset
    }

    /// Returns one past the largest queue offset that was ever compacted here.
    pub fn max_offset(&self) -> i64 {
        self.max_offset
    }

    /// Drops records that are only copies from the commit log, if the queue still has all of them from its `first`
    /// offset to before `end`. `None` if no record was compacted.
    pub fn without_copies(
        mut self,
        manifests: &ManifestCache,
        (first, end): (i64, i64),
    ) -> Result<Option<Self>, StoreError> {
        if end < self.max_offset {
            return Ok(Some(self));
        }
        let state = GenerationState::load(&self.files, &self.topic, self.queue_id)?;
        let manifest = manifests.load(&self.files)?;
        let known = state.known(&self.files, &manifest, &self.topic, self.queue_id)?.compacted_to(self.read);
        let compacted = known.fed_from.max(first).min(self.max_offset);
        if known.generation.is_none() && compacted <= self.min_offset {
            return Ok(None);
        }
        self.max_offset = compacted;
        self.min_offset = self.min_offset.min(compacted);
        Ok(Some(self))
    }

    /// Whether `records` belong to the same generation, with or without later appends: no compaction was published
    /// meanwhile.
    pub fn continues(&self, records: &CompactedRecords) -> bool {
        match (&self.first, &records.first) {
            (Some(ours), Some(theirs)) => ours.inode == theirs.inode,
            _ => false,
        }
    }

    /// Returns the records from the first one at or after `from_offset` on, in ascending queue offset.
    pub fn read(&self, from_offset: i64) -> CompactedRecords {
        CompactedRecords {
            files: self.files.clone(),
            topic: self.topic.clone(),
            queue_id: self.queue_id,
            folder: None,
            next_pair: 0,
            cursor: None,
            next_offset: from_offset,
            reloads: 0,
            first: self.first.clone(),
            damaged: None,
        }
    }
}

/// Returns the first and the last queue offset.
fn bounds(
    files: &StoreFiles,
    folder: &QueueFolder,
    topic: &str,
    queue_id: i32,
) -> Result<OpenOutcome<Option<(i64, i64)>>, StoreError> {
    let mut first = None;
    for pair in &folder.pairs {
        let OpenOutcome::Same(mut cursor) = PairCursor::open(files, pair, topic, queue_id, 0)? else {
            return Ok(OpenOutcome::Moved);
        };
        let record = cursor.next_record().map(|record| record.map(|record| record.queue_offset));
        first = match record {
            // A read meets the damage, and decides what to do.
            Err(error) if error.is_damage() && cursor.first_unit().is_some() => {
                cursor.first_unit().map(|unit| unit.base_offset)
            }
            record => record?,
        };
        if first.is_some() {
            break;
        }
    }
    let Some(first) = first else {
        return Ok(OpenOutcome::Same(None));
    };
    let mut last = first;
    for pair in folder.pairs.iter().rev() {
        let OpenOutcome::Same(mut cursor) = PairCursor::open(files, pair, topic, queue_id, 0)? else {
            return Ok(OpenOutcome::Moved);
        };
        let end = match cursor.last_unit_checked()? {
            Some(unit) => Some(unit.base_offset),
            None => cursor.last_by_log()?,
        };
        if let Some(end) = end {
            last = last.max(end);
            break;
        }
    }
    Ok(OpenOutcome::Same(Some((first, last))))
}

fn replaced_too_often(topic: &str, queue_id: i32) -> StoreError {
    StoreError::Busy {
        reason: format!(
            "the compacted files of {topic}/{queue_id} are replaced faster than they can be read; try again"
        ),
    }
}

/// The records of a [`CompactedQueue`]; ends after the first error.
#[derive(Debug)]
pub struct CompactedRecords {
    files: StoreFiles,
    topic: String,
    queue_id: i32,
    folder: Option<QueueFolder>,
    next_pair: usize,
    cursor: Option<PairCursor>,
    next_offset: i64,
    reloads: u32,
    /// The first file when the read began.
    first: Option<FirstFile>,
    /// The files and the pair at which damage ended the read.
    damaged: Option<(PairCursor, QueueFolder, usize)>,
}

impl CompactedRecords {
    /// Continues after the damage that ended the read. Returns `false` if the position after it is unknown.
    pub fn skip_damaged(&mut self) -> bool {
        let Some((cursor, folder, next_pair)) = self.damaged.take() else { return false };
        (self.cursor, self.folder, self.next_pair) = (Some(cursor), Some(folder), next_pair);
        true
    }

    /// Returns the smallest offset that the next record can have.
    pub fn next_offset(&self) -> i64 {
        self.next_offset
    }

    fn advance(&mut self) -> Result<Option<StoredRecord>, StoreError> {
        loop {
            if let Some(record) = self.next_of_cursor()? {
                return Ok(Some(record));
            }
            let folder = match self.folder.take() {
                Some(folder) => folder,
                None => self.list()?,
            };
            let Some(pair) = folder.pairs.get(self.next_pair) else {
                self.folder = Some(folder);
                return Ok(None);
            };
            match PairCursor::open(&self.files, pair, &self.topic, self.queue_id, self.next_offset)? {
                OpenOutcome::Same(cursor) => {
                    self.cursor = Some(cursor);
                    self.next_pair += 1;
                    self.folder = Some(folder);
                }
                // A new generation: its files have the remaining records under other names.
                OpenOutcome::Moved => {
                    self.reloads += 1;
                    if self.reloads > MOST_RELOADS {
                        return Err(replaced_too_often(&self.topic, self.queue_id));
                    }
                }
            }
        }
    }

    fn next_of_cursor(&mut self) -> Result<Option<StoredRecord>, StoreError> {
        let Some(cursor) = &mut self.cursor else {
            return Ok(None);
        };
        let Some(view) = cursor.next_record()? else {
            self.cursor = None;
            return Ok(None);
        };
        self.next_offset = view.queue_offset.saturating_add(1);
        self.reloads = 0;
        let (queue_offset, position) = (view.queue_offset, view.physical_offset as u64);
        let bytes = RecordBytes::Read(Arc::new(view.bytes.to_vec()), 0..view.bytes.len());
        Ok(Some(StoredRecord::decoded(bytes, position, queue_offset)))
    }

    /// Lists the files and skips those that are completely before the next offset.
    fn list(&mut self) -> Result<QueueFolder, StoreError> {
        let folder = QueueFolder::load(&self.files, &self.files.compaction(), &self.topic, self.queue_id)?;
        self.next_pair = 0;
        for (at, pair) in folder.pairs.iter().enumerate().skip(1) {
            let first = crate::files::cursor::first_offset_in_both(&self.files, pair)?;
            match first {
                Some(first) if first <= self.next_offset => self.next_pair = at,
                Some(_) => break,
                None => {}
            }
        }
        Ok(folder)
    }
}

impl Iterator for CompactedRecords {
    type Item = Result<StoredRecord, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.advance();
        if let Err(error) = &next {
            if let (true, Some(cursor), Some(folder)) =
                (error.is_damage(), self.cursor.take(), self.folder.take())
            {
                self.damaged = Some((cursor, folder, self.next_pair));
            }
            self.next_pair = usize::MAX;
            self.cursor = None;
            self.folder.get_or_insert_with(QueueFolder::empty);
        }
        next.transpose()
    }
}
