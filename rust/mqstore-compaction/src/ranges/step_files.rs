//! The files that one step leaves for another: notes of records, and decisions.
//!
//! Owns the files `records` and `superseded`:
//!
//! ```text
//! records      [kind:1][queue offset:8][size:4]   for each record of a range;
//!                                                 kind: 1 has a key, 2 has no body, 4 is a value that has expired
//! superseded   [word:8]                           one bit for each keyed record of the queue, lowest bit first
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_io::{Access, VfsFile};

use super::super::job::key_map::BitSet;
use super::super::job::newest_by_key::NewestBits;
use crate::job::survivor_rule::RecordKind;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

const RECORDS_FILE: &str = "records";
const SUPERSEDED_FILE: &str = "superseded";

const NOTE_BYTES: usize = 13;

/// Bytes of one read or write.
const CHUNK_BYTES: usize = NOTE_BYTES << 16;

const KEYED: u8 = 1;
const TOMBSTONE: u8 = 2;
const EXPIRED: u8 = 4;

/// The note of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordNote {
    pub(super) is_keyed: bool,
    pub(super) kind: RecordKind,
    pub(super) queue_offset: i64,
    pub(super) size: u32,
}

/// Writes the notes of a range.
pub(super) struct NoteWriter {
    path: PathBuf,
    file: Arc<dyn VfsFile>,
    buffer: Vec<u8>,
    written: u64,
}

impl NoteWriter {
    pub(super) fn create(files: &StoreFiles, staging: &Path) -> Result<Self, StoreError> {
        let path = staging.join(RECORDS_FILE);
        let file = files.vfs.create_new(&path).at(&path, "creating a file of notes")?;
        Ok(Self { path, file, buffer: Vec::with_capacity(CHUNK_BYTES), written: 0 })
    }

    pub(super) fn add(&mut self, note: RecordNote) -> Result<(), StoreError> {
        let kind = match note.kind {
            RecordKind::Value => 0,
            RecordKind::Tombstone => TOMBSTONE,
            RecordKind::Expired => EXPIRED,
        };
        self.buffer.push(kind | (u8::from(note.is_keyed) * KEYED));
        self.buffer.extend_from_slice(&note.queue_offset.to_be_bytes());
        self.buffer.extend_from_slice(&note.size.to_be_bytes());
        if self.buffer.len() < CHUNK_BYTES { Ok(()) } else { self.write() }
    }

    /// Writes the buffer.
    pub(super) fn write(&mut self) -> Result<(), StoreError> {
        self.file.write_all_at(&self.buffer, self.written).at(&self.path, "noting records")?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

/// Opens the notes of a range. Their length must be that of `records` records, so that no wrong number from a worker
/// leads to an allocation.
pub(super) fn open_notes(
    files: &StoreFiles,
    staging: &Path,
    records: u64,
) -> Result<(PathBuf, Arc<dyn VfsFile>), StoreError> {
    let path = staging.join(RECORDS_FILE);
    let file = files.vfs.open(&path, Access::Read).at(&path, "opening a file of notes")?;
    let len = file.len().at(&path, "looking at a file of notes")?;
    if records.checked_mul(NOTE_BYTES as u64) != Some(len) {
        return Err(StoreError::corrupt(&path, len, format!("there should be notes of {records} records")));
    }
    Ok((path, file))
}

/// Calls `visit` with the notes of a range of `records` records.
pub(super) fn read_notes(
    files: &StoreFiles,
    staging: &Path,
    records: u64,
    mut visit: impl FnMut(RecordNote) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let (path, file) = open_notes(files, staging, records)?;
    let (len, mut chunk, mut position) = (records * NOTE_BYTES as u64, Vec::new(), 0);
    while position < len {
        chunk.resize((len - position).min(CHUNK_BYTES as u64) as usize, 0);
        file.read_exact_at(&mut chunk, position).at(&path, "reading notes")?;
        position += chunk.len() as u64;
        for [kind, rest @ ..] in chunk.as_chunks::<NOTE_BYTES>().0 {
            let (offset, size) = rest.split_at(8);
            visit(RecordNote {
                is_keyed: kind & KEYED != 0,
                kind: match kind & (TOMBSTONE | EXPIRED) {
                    0 => RecordKind::Value,
                    EXPIRED => RecordKind::Expired,
                    _ => RecordKind::Tombstone,
                },
                queue_offset: offset.try_into().map_or(0, i64::from_be_bytes),
                size: size.try_into().map_or(0, u32::from_be_bytes),
            })?;
        }
    }
    Ok(())
}

/// Writes the decision which of `keyed` records are superseded.
pub(super) fn write_verdicts(
    files: &StoreFiles,
    staging: &Path,
    newest: &NewestBits,
    keyed: u64,
) -> Result<(), StoreError> {
    let path = staging.join(SUPERSEDED_FILE);
    let file = files.vfs.create_new(&path).at(&path, "creating a file of verdicts")?;
    let mut bytes = Vec::with_capacity((keyed.div_ceil(64) * 8) as usize);
    newest.superseded.words(keyed).for_each(|word| bytes.extend_from_slice(&word.to_be_bytes()));
    file.write_all_at(&bytes, 0).at(&path, "writing verdicts")
}

/// Joins the decisions of the shares in these folders about `count` keyed records from `first` on, of `keyed` in total.
pub(super) fn read_verdicts(
    files: &StoreFiles,
    stagings: &[PathBuf],
    (first, count): (u64, u64),
    keyed: u64,
) -> Result<NewestBits, StoreError> {
    let (from, to) = (first / 64, (first + count).div_ceil(64));
    let mut opened = Vec::with_capacity(stagings.len());
    for staging in stagings {
        let path = staging.join(SUPERSEDED_FILE);
        let file = files.vfs.open(&path, Access::Read).at(&path, "opening a file of verdicts")?;
        let len = file.len().at(&path, "looking at a file of verdicts")?;
        if len != keyed.div_ceil(64) * 8 {
            return Err(StoreError::corrupt(
                &path,
                len,
                format!("there should be verdicts about {keyed} records"),
            ));
        }
        opened.push((path, file));
    }
    let mut words = vec![0_u64; (to - from) as usize];
    let mut bytes = vec![0; words.len() * 8];
    for (path, file) in opened {
        file.read_exact_at(&mut bytes, from * 8).at(&path, "reading verdicts")?;
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word |= u64::from_be_bytes(*bytes);
        }
    }
    let shift = first % 64;
    let mut superseded = BitSet::default();
    for (at, word) in words.iter().enumerate() {
        let next = words.get(at + 1).copied().unwrap_or(0);
        // A shift by 64 bits would be an overflow.
        let carried = if shift == 0 { 0 } else { next << (64 - shift) };
        superseded.set_word(at as u64 * 64, word >> shift | carried);
    }
    Ok(NewestBits { superseded, records: count, keys: 0, rounds: 0 })
}
