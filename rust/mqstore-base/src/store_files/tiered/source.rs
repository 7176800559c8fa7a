//! The bytes of the joined files of a tiered store, computed when they are read.
//!
//! A segment has the records of one file of a queue's log, each with its log offset, and a filler after them. A damaged
//! record stays unchanged: its position in the log of the queue is no log offset, so readers find the damage. A
//! placeholder has the place of a record that RocketMQ copied again later. A queue file has the units of the records,
//! with their log offsets.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_format::{CqUnit, encode_blank, encode_placeholder, placeholder_bytes};
use mqstore_io::{
    Access, PendingRange, RangeBytes, RemoteCause, RemoteEntry, RemoteError, RemoteRange, RemoteSource,
};

use super::queue::{LogPart, TieredQueue};
use super::store::{Place, TieredStore};
use super::units::UNIT_BYTES;
use super::walk::{PlacedSlot, SlotMessage};

/// See the header of this module.
#[derive(Debug)]
pub(super) struct TieredSource(pub Arc<TieredStore>);

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
                Place::Log { .. } => self.0.segment_bytes,
                Place::Units { .. } => self.0.file_units.unsigned_abs() * UNIT_BYTES,
            },
            modified_ms: 0,
            version: String::new(),
        };
        Ok(self.0.places.iter().map(entry).collect())
    }

    fn read(&self, ranges: &[RemoteRange<'_>]) -> Result<Vec<RangeBytes>, RemoteError> {
        ranges.iter().map(|range| self.range(range)).collect()
    }

    fn real_place(&self, path: &Path, offset: u64) -> Option<(PathBuf, u64)> {
        self.0.real_place(path, Some(offset)).map(|(path, offset)| (path, offset.unwrap_or(0)))
    }

    fn start(&self, range: &RemoteRange<'_>) -> Result<Box<dyn PendingRange>, RemoteError> {
        Ok(Box::new(ReadRange(self.range(range)?)))
    }
}

impl TieredSource {
    fn range(&self, range: &RemoteRange<'_>) -> Result<RangeBytes, RemoteError> {
        let mut bytes = vec![0; range.len as usize];
        let folder = self.0.folder.as_path();
        match self.0.places.get(range.path) {
            Some(Place::Log { queue, part }) => {
                let queue = self.0.queues.get(*queue);
                let part = queue.and_then(|queue| queue.parts.get(*part));
                if let Some((queue, part)) = queue.zip(part) {
                    let read = self.segment(queue, part, range.start, &mut bytes);
                    read.map_err(|error| failed(&error, &part.path))?;
                }
            }
            Some(Place::Units { queue, first }) => {
                if let Some(queue) = self.0.queues.get(*queue) {
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
            let slots = queue.slots(&*self.0.vfs, part, low, high)?;
            let intact = || slots.iter().filter(|slot| matches!(slot.message, SlotMessage::Intact(_)));
            let begin = intact().next().map_or(low, |record| record.start.min(low));
            let end = intact().next_back().map_or(high, |record| record.end.max(high));
            let mut bytes = vec![0; (end - begin) as usize];
            self.0.vfs.open(&part.path, Access::Read)?.read_exact_at(&mut bytes, begin - part.base)?;
            for slot in &slots {
                let to = part.at + (slot.start - part.start);
                match slot.message {
                    SlotMessage::Intact(queue_offset) => {
                        let range = (slot.start - begin) as usize..(slot.end - begin) as usize;
                        if let Some(record) = bytes.get_mut(range) {
                            queue.tiered_log().move_record(record, slot.start, to, queue_offset);
                        }
                    }
                    SlotMessage::Superseded => {
                        copy(&placeholders(slot, part, to), slot.start, &mut bytes, begin);
                    }
                    SlotMessage::Damaged => {}
                }
            }
            copy(&bytes, begin, out, low);
        }
        let rest = u32::try_from(self.0.segment_bytes - data).ok();
        let is_last = part.at + data == self.0.end();
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
        let units = queue.joined_units(&*self.0.vfs, begin, end.min(max))?;
        let bytes: Vec<u8> = units.iter().flat_map(CqUnit::encode).collect();
        copy(&bytes, from / UNIT_BYTES * UNIT_BYTES, out, from);
        Ok(())
    }
}

/// Returns the records that fill the bytes without a message at log offset `at`.
fn placeholders(slot: &PlacedSlot, part: &LogPart, at: u64) -> Vec<u8> {
    let (mut bytes, len) = (Vec::new(), slot.end - slot.start);
    while let Some(size) = placeholder_bytes(len - bytes.len() as u64) {
        let place = at + bytes.len() as u64;
        if encode_placeholder(size, place as i64, part.stored_ms, &mut bytes).is_err() {
            break;
        }
    }
    bytes
}

/// Copies the bytes of `source`, which begins at position `source_at`, that are in `target`, which begins at
/// `target_at`.
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
