//! The bytes of the joined files of a tiered store, computed when they are read.
//!
//! A segment has the records of one file of a queue's log, each with its log offset, and a filler after them. Records are
//! found by their units. A queue file has the units of these records, with their log offsets.

use std::io;
use std::path::Path;
use std::sync::Arc;

use mqstore_format::{CqUnit, encode_blank, move_tiered_record};
use mqstore_io::{
    Access, PendingRange, RangeBytes, RemoteCause, RemoteEntry, RemoteError, RemoteRange, RemoteSource, Vfs,
};

use super::queue::{LogPart, TieredQueue, UNIT_BYTES};
use super::store::{FILE_UNITS, Place, TieredStore};

/// See the header of this module.
#[derive(Debug)]
pub(super) struct TieredSource {
    vfs: Arc<dyn Vfs>,
    store: Arc<TieredStore>,
}

/// A range that is read already.
struct ReadRange(RangeBytes);

impl PendingRange for ReadRange {
    fn wait(self: Box<Self>) -> Result<RangeBytes, RemoteError> {
        Ok(self.0)
    }
}

impl RemoteSource for TieredSource {
    fn list(&self) -> Result<Vec<RemoteEntry>, RemoteError> {
        let entry = |(path, place): (&String, &Place)| RemoteEntry {
            path: path.clone(),
            len: match place {
                Place::Log { .. } => self.store.segment_bytes,
                Place::Units { .. } => FILE_UNITS.unsigned_abs() * UNIT_BYTES,
            },
            modified_ms: 0,
            version: String::new(),
        };
        Ok(self.store.places.iter().map(entry).collect())
    }

    fn read(&self, ranges: &[RemoteRange<'_>]) -> Result<Vec<RangeBytes>, RemoteError> {
        ranges.iter().map(|range| self.range(range)).collect()
    }

    fn start(&self, range: &RemoteRange<'_>) -> Result<Box<dyn PendingRange>, RemoteError> {
        Ok(Box::new(ReadRange(self.range(range)?)))
    }
}

impl TieredSource {
    pub(super) fn new(vfs: &Arc<dyn Vfs>, store: &Arc<TieredStore>) -> Self {
        Self { vfs: Arc::clone(vfs), store: Arc::clone(store) }
    }

    fn range(&self, range: &RemoteRange<'_>) -> Result<RangeBytes, RemoteError> {
        let mut bytes = vec![0; range.len as usize];
        let folder = self.store.folder.as_path();
        match self.store.places.get(range.path) {
            Some(Place::Log { queue, part }) => {
                let queue = self.store.queues.get(*queue);
                let part = queue.and_then(|queue| queue.parts.get(*part));
                if let Some((queue, part)) = queue.zip(part) {
                    let read = self.segment(queue, part, range.start, &mut bytes);
                    read.map_err(|error| failed(&error, &part.path))?;
                }
            }
            Some(Place::Units { queue, first }) => {
                if let Some(queue) = self.store.queues.get(*queue) {
                    let read = self.units(queue, *first, range.start, &mut bytes);
                    let path = queue.units.last().map_or(folder, |file| &file.path);
                    read.map_err(|error| failed(&error, path))?;
                }
            }
            None => return Err(failed(&io::ErrorKind::NotFound.into(), &folder.join(range.path))),
        }
        Ok(Box::new(bytes))
    }

    /// Fills `out` with the bytes of a segment from `from` on.
    fn segment(&self, queue: &TieredQueue, part: &LogPart, from: u64, out: &mut [u8]) -> io::Result<()> {
        let data = part.stop - part.start;
        if from < data {
            let low = part.start + from;
            let high = part.stop.min(low + out.len() as u64);
            let records = queue.records(&*self.vfs, part, low, high)?;
            let begin = records.first().map_or(low, |record| record.start.min(low));
            let end = records.last().map_or(high, |record| record.end.max(high));
            let mut bytes = vec![0; (end - begin) as usize];
            self.vfs.open(&part.path, Access::Read)?.read_exact_at(&mut bytes, begin - part.base)?;
            for record in records {
                let to = part.at + (record.start - part.start);
                let range = (record.start - begin) as usize..(record.end - begin) as usize;
                if let Some(bytes) = bytes.get_mut(range) {
                    move_tiered_record(bytes, record.start as i64, to as i64);
                }
            }
            copy(&bytes, begin, out, low);
        }
        let rest = u32::try_from(self.store.segment_bytes - data).ok();
        let is_last = part.at + data == self.store.end();
        if let Some(rest) = rest.filter(|_| !is_last) {
            copy(&encode_blank(rest), data, out, from);
        }
        Ok(())
    }

    /// Fills `out` with the units of a queue file that begins with unit `first`, from its byte `from` on.
    fn units(&self, queue: &TieredQueue, first: i64, from: u64, out: &mut [u8]) -> io::Result<()> {
        let Some((_, max)) = queue.bounds() else { return Ok(()) };
        let begin = first + (from / UNIT_BYTES) as i64;
        let end = first + (from + out.len() as u64).div_ceil(UNIT_BYTES) as i64;
        let units = queue.joined_units(&*self.vfs, begin, end.min(max))?;
        let bytes: Vec<u8> = units.iter().flat_map(CqUnit::encode).collect();
        copy(&bytes, from / UNIT_BYTES * UNIT_BYTES, out, from);
        Ok(())
    }
}

/// Copies the bytes of `source`, which begins at position `source_at`, that are in `target`, which begins at `target_at`.
fn copy(source: &[u8], source_at: u64, target: &mut [u8], target_at: u64) {
    let (skip, into) = (target_at.saturating_sub(source_at), source_at.saturating_sub(target_at));
    let source = source.get(skip as usize..).unwrap_or_default();
    let target = target.get_mut(into as usize..).unwrap_or_default();
    let count = source.len().min(target.len());
    if let (Some(target), Some(source)) = (target.get_mut(..count), source.get(..count)) {
        target.copy_from_slice(source);
    }
}

fn failed(error: &io::Error, path: &Path) -> RemoteError {
    if let Some(error) = RemoteError::of(error) {
        return error.clone();
    }
    let is_gone = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof);
    let cause = if is_gone { RemoteCause::Changed } else { RemoteCause::Other };
    let advice =
        if is_gone { "; RocketMQ removed it since the open: open the tiered store again" } else { "" };
    RemoteError {
        cause,
        path: path.to_path_buf(),
        reason: format!("reading a file of a tiered store: {error}{advice}"),
    }
}
