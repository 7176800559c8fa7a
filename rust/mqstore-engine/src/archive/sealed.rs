//! Segments that never change again, and their bytes.
//!
//! A segment is sealed if it is not the last one, and if all its bytes are synced and dispatched. A store open for
//! writing syncs first. A store open for reading trusts a clean close, the durable mark, or the checkpoint of the
//! program that writes: RocketMQ writes the store time of a record there some seconds after the record is synced.

use std::io::ErrorKind;

use mqstore_base::durable_mark::DurableMarkFile;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_format::{BLANK_HEADER_BYTES, Peek, peek};
use mqstore_log::checkpoint::CheckpointFile;
use mqstore_log::commit_log::{LogScanner, ScanChecks, ScanItem};

use crate::engine::Engine;
use crate::read::segment_times::times_of;
use crate::read::view::StoreView;

/// Maximum bytes of one call of [`SealedLog::bytes`].
const MOST_BYTES: u64 = 256 << 20;

/// A segment that never changes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedSegment {
    /// Log offset of its first byte.
    pub base_offset: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Store time of the first record in epoch milliseconds, if it can be read.
    pub first_ms: Option<i64>,
    /// Store time of the last record in epoch milliseconds; of the file if no record can be read.
    pub newest_ms: i64,
    /// Time of the last change of the file in epoch milliseconds.
    pub modified_ms: i64,
}

/// The segments of a store, for a program that copies them.
pub struct SealedLog<'a> {
    view: StoreView,
    engine: Option<&'a Engine>,
}

impl<'a> SealedLog<'a> {
    /// Returns the segments of the store that `view` reads; `engine` is the same store if it is open for writing.
    pub(crate) fn new(view: StoreView, engine: Option<&'a Engine>) -> Self {
        Self { view, engine }
    }

    /// Returns the sealed segments that end after log offset `from`, oldest first. Syncs a store that is open for
    /// writing.
    ///
    /// # Errors
    /// Errors of the sync and of reads.
    pub fn segments(&self, from: u64) -> Result<Vec<SealedSegment>, StoreError> {
        let files = self.view.files();
        let (end, synced_ms) = if let Some(engine) = self.engine {
            engine.flush()?;
            let end = engine.log.sync_point().position;
            self.view.catch_up()?;
            (end.min(engine.dispatcher.position()), i64::MIN)
        } else {
            self.view.catch_up()?;
            let mark = DurableMarkFile::new(files).try_load()?;
            let synced_ms = CheckpointFile::new(files).load().physic_msg_timestamp;
            match files.vfs.stat(&files.abort()) {
                Err(error) if error.kind() == ErrorKind::NotFound => (u64::MAX, synced_ms),
                _ => (mark.map_or(0, |mark| mark.position), synced_ms),
            }
        };
        let list = self.view.list();
        let Some((_, older)) = list.segments().split_last() else { return Ok(Vec::new()) };
        let mut sealed = Vec::new();
        for segment in older.iter().filter(|segment| segment.end_offset() > from) {
            let times = times_of(files, &list, segment, u64::MAX);
            if segment.end_offset() > end && times.newest_ms() > synced_ms {
                break;
            }
            sealed.push(SealedSegment {
                base_offset: segment.base_offset(),
                bytes: segment.len(),
                first_ms: times.first_ms,
                newest_ms: times.newest_ms(),
                modified_ms: times.modified_ms,
            });
        }
        Ok(sealed)
    }

    /// Returns `bytes` bytes of the log from log offset `offset` on, whatever they contain. They must be in one segment.
    ///
    /// # Errors
    /// [`StoreError::InvalidOption`] if no segment contains them, or for more than 256 MiB; errors of the system.
    pub fn bytes(&self, offset: u64, bytes: u64) -> Result<Vec<u8>, StoreError> {
        let list = self.view.list();
        let end = offset.checked_add(bytes).filter(|_| bytes <= MOST_BYTES);
        let segment = list.find(offset).filter(|segment| end.is_some_and(|end| end <= segment.end_offset()));
        let Some(segment) = segment else {
            let reason = format!("no segment contains the {bytes} bytes at log offset {offset}");
            return Err(StoreError::InvalidOption { option: "offset", reason });
        };
        let file = segment.file().at_file(|| segment.path(), "opening a log segment")?;
        let mut found = vec![0; bytes as usize];
        file.read_exact_at(&mut found, offset - segment.base_offset())
            .at_file(|| segment.path(), "reading the log")?;
        Ok(found)
    }

    /// Returns the inodes of the segments between two log offsets, by the log offset of their first byte. A reclaim
    /// gives the name of a segment to another file.
    ///
    /// # Errors
    /// Errors of the system, except for a segment that was removed meanwhile.
    pub fn inodes(&self, start: u64, end: u64) -> Result<Vec<(u64, u64)>, StoreError> {
        self.view.catch_up()?;
        let mut found = Vec::new();
        for segment in self.view.list().segments() {
            let path = segment.path();
            if segment.end_offset() <= start || segment.base_offset() >= end {
                continue;
            }
            match self.view.files().vfs.inode(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                inode => found.push((segment.base_offset(), inode.at(&path, "looking at a log segment")?)),
            }
        }
        Ok(found)
    }

    /// Whether a reclaim has replaced the record at log offset `offset` by a placeholder, alone or with others.
    ///
    /// # Errors
    /// Errors of reads.
    pub fn is_reclaimed_at(&self, offset: u64) -> Result<bool, StoreError> {
        let list = self.view.list();
        let Some(segment) = list.find(offset).cloned() else { return Ok(false) };
        let end = segment.end_offset();
        let mut scanner = LogScanner::new(list, offset, end, ScanChecks { crc: false });
        let is_rest = match scanner.next_item()? {
            ScanItem::Record(record) => return Ok(record.is_placeholder()),
            ScanItem::Filler { .. } => true,
            ScanItem::End { .. } | ScanItem::Damaged(_) => false,
        };
        // The filler at the end of a segment begins with its own magic, the rest of a placeholder with other bytes.
        let length = (end - offset).min(BLANK_HEADER_BYTES as u64);
        Ok(is_rest && !matches!(peek(&self.bytes(offset, length)?), Ok(Peek::Blank { .. })))
    }
}
