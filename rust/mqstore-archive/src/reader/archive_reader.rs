//! The reader of an archive: its manifest, and the columns and rows of its files.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use bytes::Bytes;
use mqstore_base::error::StoreError;
use mqstore_io::sync::Mutex;

use super::kept::{Kept, Stay};
use super::part::{Number, QueuePart, is_message, number, sys_flag};
use crate::file::{
    ByteSource, FileError, Footer, KEYS, UNIQUE_ID, bloom_filters, columns, groups_with_key, paged_rows,
    short_columns, whole_group,
};
use crate::manifest::{ArchivedFile, ArchivedSegment, LastRecord, Manifest};
use crate::place::Place;

/// Memory for footers and page indexes, and for short columns of row groups.
const FOOTER_BYTES: usize = 64 << 20;
const COLUMN_BYTES: usize = 16 << 20;

/// A read of less than this part of a row group fetches pages.
const PAGED_PART: usize = 4;

/// Segments whose times show that an archive and a log belong together.
const LAST_SEGMENTS: usize = 8;

/// The Bloom filters of each row group of a file.
type Filters = Arc<Vec<Option<Vec<Bytes>>>>;

/// A manifest, with its files by topic, in the order of the log.
#[derive(Debug)]
struct Known {
    manifest: Manifest,
    topics: HashMap<String, Vec<Arc<ArchivedFile>>>,
}

/// Reads records of an archive by ranges of its files.
#[derive(Debug)]
pub struct ArchiveReader {
    place: Place,
    known: Mutex<Option<Arc<Known>>>,
    footers: Kept<Arc<str>, Arc<Footer>>,
    short: Kept<(Arc<str>, usize), RecordBatch>,
    filters: Kept<Arc<str>, Filters>,
}

impl ArchiveReader {
    /// Makes a reader. It reads nothing before the first call. `bloom_bytes` is the memory for Bloom filters: each look-up
    /// needs those of all files.
    pub fn new(place: Place, bloom_bytes: usize) -> Self {
        Self {
            place,
            known: Mutex::default(),
            footers: Kept::new(FOOTER_BYTES, Stay::Newest),
            short: Kept::new(COLUMN_BYTES, Stay::Newest),
            filters: Kept::new(bloom_bytes, Stay::First),
        }
    }

    /// Returns the archive for errors.
    pub fn shown(&self) -> PathBuf {
        self.place.shown().into()
    }

    /// Returns the objects of the archive.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Reads the newest manifest. Reads need one.
    ///
    /// # Errors
    /// [`StoreError::ResultNotFound`] if there is no archive; those of [`Place::newest`].
    pub fn refresh(&self) -> Result<(), StoreError> {
        self.set_manifest(self.place.must_have()?);
        Ok(())
    }

    /// Replaces the manifest.
    fn set_manifest(&self, manifest: Manifest) {
        let mut topics: HashMap<String, Vec<Arc<ArchivedFile>>> = HashMap::new();
        for file in &manifest.files {
            if let Some(topic) = &file.topic {
                topics.entry(topic.clone()).or_default().push(Arc::clone(file));
            }
        }
        for files in topics.values_mut() {
            files.sort_by_key(|file| file.start);
        }
        *self.known.lock() = Some(Arc::new(Known { manifest, topics }));
    }

    /// Returns the end of the manifest in memory; `None` without one.
    pub fn end(&self) -> Option<u64> {
        self.known.lock().as_ref().map(|known| known.manifest.end())
    }

    /// Returns the last record of the archive, and its last segments.
    pub fn last_facts(&self) -> (Option<LastRecord>, Vec<ArchivedSegment>) {
        let known = self.known.lock();
        let Some(manifest) = known.as_ref().map(|known| &known.manifest) else { return (None, Vec::new()) };
        let first = manifest.segments.len().saturating_sub(LAST_SEGMENTS);
        (manifest.last.clone(), manifest.segments.get(first..).unwrap_or_default().to_vec())
    }

    fn known(&self) -> Result<Arc<Known>, StoreError> {
        let known = self.known.lock().clone();
        known
            .ok_or_else(|| StoreError::Refused { reason: "the archive has no manifest in memory".to_owned() })
    }

    /// Returns the files with records of a topic, in the order of the log.
    ///
    /// # Errors
    /// No manifest was read.
    pub fn files(&self, topic: &str) -> Result<Vec<Arc<ArchivedFile>>, StoreError> {
        Ok(self.known()?.topics.get(topic).cloned().unwrap_or_default())
    }

    /// Returns the files with records of any topic, in the order of the manifest.
    ///
    /// # Errors
    /// No manifest was read.
    pub fn all_files(&self) -> Result<Vec<Arc<ArchivedFile>>, StoreError> {
        Ok(self.known()?.manifest.files.iter().filter(|file| file.topic.is_some()).cloned().collect())
    }

    /// Returns the parts of a queue, in the order of its offsets.
    ///
    /// # Errors
    /// No manifest was read.
    pub fn parts(&self, topic: &str, queue_id: i32) -> Result<Vec<QueuePart>, StoreError> {
        let mut found = Vec::new();
        for file in self.files(topic)? {
            let mut queues = file.queues.clone();
            queues.sort_by_key(|rows| rows.queue_id);
            let mut first_row = 0;
            for rows in queues {
                if rows.queue_id == queue_id && rows.rows > 0 {
                    found.push(QueuePart { file: Arc::clone(&file), rows, first_row });
                }
                first_row += rows.rows as usize;
            }
        }
        Ok(found)
    }

    /// Whether the archive contains the segments between two log offsets.
    ///
    /// # Errors
    /// No manifest was read.
    pub fn covers(&self, start: u64, end: u64) -> Result<bool, StoreError> {
        Ok(self.known()?.manifest.covered_from(start) >= end)
    }

    /// Returns the first part of the log between two log offsets that the archive lacks, after its own begin.
    ///
    /// # Errors
    /// No manifest was read.
    pub fn gap_between(&self, start: u64, end: u64) -> Result<Option<(u64, u64)>, StoreError> {
        let known = self.known()?;
        let manifest = &known.manifest;
        // Messages that were deleted before the archive began are in no answer.
        let first = if manifest.segments.is_empty() { end } else { start.max(manifest.begin()) };
        let covered = manifest.covered_from(first);
        let after = manifest.segments.iter().map(|segment| segment.base).find(|base| *base > covered);
        Ok((covered < end).then(|| (covered, after.map_or(end, |after| after.min(end)))))
    }

    /// Returns the footer of a file, with its page index.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] for a damaged file; a request failed.
    pub fn footer(&self, file: &Arc<ArchivedFile>) -> Result<Arc<Footer>, StoreError> {
        if let Some(found) = self.footers.get(&file.path) {
            return Ok(found);
        }
        let found = Footer::read(&self.source(file), Some(file.record_bytes)).and_then(|footer| {
            if !footer.has_records() {
                return Err(FileError::damaged("it has other columns than a file of records"));
            }
            if footer.rows() as u64 != file.rows {
                return Err(FileError::damaged("it has another number of rows than the manifest says"));
            }
            Ok(Arc::new(footer))
        });
        let found = self.decoded(file, found)?;
        self.footers.put(Arc::clone(&file.path), Arc::clone(&found), found.bytes());
        Ok(found)
    }

    /// Returns all rows of a row group, without the columns that only queries need.
    ///
    /// # Errors
    /// As for [`Self::footer`].
    pub fn group(&self, file: &Arc<ArchivedFile>, group: usize) -> Result<RecordBatch, StoreError> {
        let footer = self.footer(file)?;
        self.decoded(file, whole_group(&self.source(file), &footer, group))
    }

    /// Returns the short columns of a row group.
    pub(crate) fn short_columns(
        &self,
        file: &Arc<ArchivedFile>,
        footer: &Footer,
        group: usize,
    ) -> Result<RecordBatch, StoreError> {
        let key = (Arc::clone(&file.path), group);
        if let Some(found) = self.short.get(&key) {
            return Ok(found);
        }
        let found = self.decoded(file, short_columns(&self.source(file), footer, group))?;
        self.short.put(key, found.clone(), found.get_array_memory_size());
        Ok(found)
    }

    /// Returns some rows of a row group: its short columns, and the pages of the long ones.
    fn paged(
        &self,
        file: &Arc<ArchivedFile>,
        footer: &Footer,
        group: usize,
        rows: &Range<usize>,
    ) -> Result<RecordBatch, StoreError> {
        let key = (Arc::clone(&file.path), group);
        let known = self.short.get(&key);
        let is_known = known.is_some();
        let (found, short) =
            self.decoded(file, paged_rows(&self.source(file), footer, group, rows, known))?;
        if !is_known {
            let bytes = short.get_array_memory_size();
            self.short.put(key, short, bytes);
        }
        Ok(found)
    }

    /// Returns the next rows of a part of a queue from row `first` on, and the row after them. With `is_first`, they are
    /// few.
    ///
    /// # Errors
    /// As for [`Self::footer`].
    pub fn rows(
        &self,
        part: &QueuePart,
        first: usize,
        end: usize,
        is_first: bool,
    ) -> Result<(RecordBatch, usize), StoreError> {
        let file = &part.file;
        let footer = self.footer(file)?;
        let number = footer.group_of(first);
        let (group_row, group_rows) =
            footer.groups().get(number).map_or((0, 0), |group| (group.first_row, group.rows));
        let low = first.saturating_sub(group_row);
        let mut high = group_rows.min(end - group_row);
        if is_first {
            high = high.min(footer.page_end(number, low).max(low + 1));
        }
        if low >= high {
            return Err(self.wrong(file, "it has fewer rows than the manifest says"));
        }
        let rows = if (high - low) * PAGED_PART <= group_rows {
            self.paged(file, &footer, number, &(low..high))?
        } else {
            self.group(file, number)?.slice(low, high - low)
        };
        let queues =
            rows.columns().get(1).and_then(|ids| ids.as_primitive_opt::<arrow_array::types::Int32Type>());
        let is_own = |row: usize| queues.is_some_and(|ids| ids.value(row) == part.rows.queue_id);
        if !is_own(0) || !is_own(rows.num_rows() - 1) {
            return Err(self.wrong(file, "its rows are not where the manifest says"));
        }
        Ok((rows, group_row + high))
    }

    /// Returns the row of the record at a log offset.
    ///
    /// # Errors
    /// As for [`Self::footer`].
    pub fn row_at(
        &self,
        file: &Arc<ArchivedFile>,
        log_offset: u64,
    ) -> Result<Option<RecordBatch>, StoreError> {
        let footer = self.footer(file)?;
        let wanted = log_offset.cast_signed();
        for group in 0..footer.groups().len() {
            let (low, high) = footer.log_offsets(group).unwrap_or((wanted, wanted));
            if low <= wanted && wanted <= high {
                let columns = self.short_columns(file, &footer, group)?;
                let row =
                    (0..columns.num_rows()).find(|row| number(&columns, *row, Number::LogOffset) == wanted);
                if let Some(row) = row {
                    return self.paged(file, &footer, group, &(row..row + 1)).map(Some);
                }
            }
        }
        Ok(None)
    }

    /// Returns the row groups of a file that can have a key or a unique id, by their Bloom filters.
    ///
    /// # Errors
    /// As for [`Self::footer`].
    pub fn groups_with_key(&self, file: &Arc<ArchivedFile>, key: &str) -> Result<Vec<usize>, StoreError> {
        let footer = self.footer(file)?;
        let filters = if let Some(filters) = self.filters.get(&file.path) {
            filters
        } else {
            let filters = Arc::new(self.decoded(file, bloom_filters(&self.source(file), &footer))?);
            let bytes = filters.iter().flatten().flatten().map(Bytes::len).sum();
            self.filters.put(Arc::clone(&file.path), Arc::clone(&filters), bytes);
            filters
        };
        self.decoded(file, groups_with_key(&filters, key))
    }

    /// Returns the rows of a file whose keys or unique id are `key`, each as a batch.
    ///
    /// # Errors
    /// As for [`Self::footer`].
    pub fn rows_with_key(&self, file: &Arc<ArchivedFile>, key: &str) -> Result<Vec<RecordBatch>, StoreError> {
        let mut found = Vec::new();
        for group in self.groups_with_key(file, key)? {
            let footer = self.footer(file)?;
            let names =
                self.decoded(file, columns(&self.source(file), &footer, group, &[UNIQUE_ID, KEYS]))?;
            for row in rows_with_name(&names, key) {
                found.push(self.paged(file, &footer, group, &(row..row + 1))?);
            }
        }
        Ok(found)
    }

    /// Returns the facts of the messages of a file whose records are in a range of the log, in the order of the file.
    ///
    /// # Errors
    /// As for [`Self::footer`].
    pub(crate) fn facts(
        &self,
        file: &Arc<ArchivedFile>,
        log_range: &Range<u64>,
    ) -> Result<Vec<Fact>, StoreError> {
        let footer = self.footer(file)?;
        let mut found = Vec::new();
        for group in 0..footer.groups().len() {
            let columns = self.short_columns(file, &footer, group)?;
            for row in 0..columns.num_rows() {
                let fact = Fact::of(&columns, row);
                if log_range.contains(&fact.log_offset) && is_message(sys_flag(&columns, row)) {
                    found.push(fact);
                }
            }
        }
        Ok(found)
    }

    /// Returns an error for a damaged file.
    pub fn wrong(&self, file: &ArchivedFile, reason: impl fmt::Display) -> StoreError {
        let remedy = "verify the archive and restore the file from a copy, or read without the archive";
        StoreError::Corrupt {
            path: self.place.full_path(&file.path),
            offset: 0,
            reason: format!("the file of the archive is damaged: {reason}; {remedy}"),
        }
    }

    /// Returns an error for a record that was checked and does not decode, which is a bug.
    pub(crate) fn wrong_record(&self, offset: u64, reason: impl fmt::Display) -> StoreError {
        StoreError::Corrupt { path: self.shown(), offset, reason: reason.to_string() }
    }

    /// Turns the reason why a file cannot be read into an error that names the file.
    pub(crate) fn decoded<T>(
        &self,
        file: &ArchivedFile,
        found: Result<T, FileError>,
    ) -> Result<T, StoreError> {
        found.map_err(|error| match error {
            FileError::Store(error) => error,
            FileError::Damaged(reason) => self.wrong(file, reason),
        })
    }

    fn source<'a>(&'a self, file: &'a ArchivedFile) -> ObjectFile<'a> {
        ObjectFile { place: &self.place, file }
    }

    /// Forgets everything except the manifest and the footers.
    pub fn forget_columns(&self) {
        self.short.clear();
    }
}

/// What the limits of a topic need of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fact {
    pub(crate) queue_id: i32,
    pub(crate) queue_offset: i64,
    pub(crate) log_offset: u64,
    pub(crate) store_ms: i64,
    pub(crate) bytes: u64,
}

impl Fact {
    fn of(columns: &RecordBatch, row: usize) -> Self {
        let int = |column: usize| {
            let array = columns.columns().get(column);
            array
                .and_then(|array| array.as_primitive_opt::<arrow_array::types::Int32Type>())
                .map_or(0, |array| array.value(row))
        };
        Self {
            queue_id: int(1),
            queue_offset: number(columns, row, Number::QueueOffset),
            log_offset: number(columns, row, Number::LogOffset).cast_unsigned(),
            store_ms: number(columns, row, Number::StoreTime),
            bytes: u64::from(int(4).cast_unsigned()),
        }
    }
}

/// Returns the rows whose unique id or one of whose keys is `name`.
fn rows_with_name(columns: &RecordBatch, name: &str) -> Vec<usize> {
    let ids = columns.columns().first().and_then(|ids| ids.as_string_opt::<i32>());
    let lists = columns.columns().get(1).and_then(|lists| lists.as_list_opt::<i32>());
    let keys = lists.and_then(|lists| lists.values().as_string_opt::<i32>());
    let has_id =
        |row: usize| ids.is_some_and(|ids| arrow_array::Array::is_valid(ids, row) && ids.value(row) == name);
    let has_key = |row: usize| {
        let bounds =
            lists.map(arrow_array::GenericListArray::value_offsets).and_then(|ends| ends.get(row..row + 2));
        let (Some([start, end]), Some(keys)) = (bounds, keys) else { return false };
        (*start..*end).any(|at| {
            usize::try_from(at).is_ok_and(|at| at < arrow_array::Array::len(keys) && keys.value(at) == name)
        })
    };
    (0..columns.num_rows()).filter(|row| has_id(*row) || has_key(*row)).collect()
}

/// A file among the objects.
struct ObjectFile<'a> {
    place: &'a Place,
    file: &'a ArchivedFile,
}

impl ByteSource for ObjectFile<'_> {
    fn length(&self) -> u64 {
        self.file.bytes
    }

    fn read(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>, StoreError> {
        self.place.read(&self.file.path, ranges)
    }
}
