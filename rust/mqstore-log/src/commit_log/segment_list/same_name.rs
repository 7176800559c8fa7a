//! The choice between two segments of the same name, in two folders of one log.
//!
//! A copy of a folder, or a disk that comes back, leaves such files. The segment with records counts. If one file has
//! all records of the other, it counts. If each has records that the other lacks, only a person can choose.
//!
//! Only reads, one window at a time. RocketMQ refuses such a log: its second file overlaps the first.

use std::cmp::Ordering;

use mqstore_format::{CrcCheck, MIN_RECORD_BYTES, Peek, RecordView, peek};
use mqstore_io::{MappedFile, VfsFile};

use mqstore_base::error::{IoContext, StoreError};

/// Bytes of one read.
const WINDOW_BYTES: usize = 1 << 20;

/// Returns whether `second` counts instead of `first`, which has the same name. Of two equal files the first counts.
///
/// # Errors
/// [`StoreError::Corrupt`] if each has a record that the other lacks; I/O errors.
pub fn prefers_second(first: &MappedFile, second: &MappedFile) -> Result<bool, StoreError> {
    let (mut left, mut right) = (Records::new(first)?, Records::new(second)?);
    let (mut only_left, mut only_right) = (None, None);
    let (mut one, mut two) = (left.next()?, right.next()?);
    loop {
        let order = match (one, two) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(at), Some(other)) => at.cmp(&other),
        };
        let same = order == Ordering::Equal && left.record() == right.record();
        if !same && order != Ordering::Greater {
            only_left = only_left.or(one);
        }
        if !same && order != Ordering::Less {
            only_right = only_right.or(two);
        }
        if let Some((mine, other)) = only_left.zip(only_right) {
            return Err(conflict(first, second, mine.min(other)));
        }
        // The rest of the longer file cannot change the result.
        if (one.is_none() && only_right.is_some()) || (two.is_none() && only_left.is_some()) {
            break;
        }
        if order != Ordering::Greater {
            one = left.next()?;
        }
        if order != Ordering::Less {
            two = right.next()?;
        }
    }
    Ok(only_right.is_some())
}

fn conflict(first: &MappedFile, second: &MappedFile, at: u64) -> StoreError {
    let other = second.path();
    let reason = format!(
        "{} has the same name and other records from this offset on; move the file that does not belong to this log \
         away",
        other.display()
    );
    StoreError::corrupt(&first.path(), at, reason)
}

/// The intact records of one file, in order.
struct Records<'a> {
    segment: &'a MappedFile,
    file: std::sync::Arc<dyn VfsFile>,
    /// Position of the buffer in the file.
    start: u64,
    buffer: Vec<u8>,
    /// Position and size of the current record.
    current: (u64, usize),
}

impl<'a> Records<'a> {
    fn new(segment: &'a MappedFile) -> Result<Self, StoreError> {
        let file = segment.file().at_file(|| segment.path(), "opening a log segment")?;
        Ok(Self { segment, file, start: 0, buffer: Vec::new(), current: (0, 0) })
    }

    /// Returns the bytes of the current record.
    fn record(&self) -> &[u8] {
        self.slice(self.current.0, self.current.1)
    }

    fn slice(&self, at: u64, len: usize) -> &[u8] {
        let skip = at.checked_sub(self.start).and_then(|skip| usize::try_from(skip).ok());
        let rest = skip.and_then(|skip| self.buffer.get(skip..)).unwrap_or_default();
        rest.get(..len).unwrap_or(rest)
    }

    /// Moves to the next intact record and returns its position in the file.
    fn next(&mut self) -> Result<Option<u64>, StoreError> {
        let mut at = self.current.0 + self.current.1 as u64;
        while at + MIN_RECORD_BYTES as u64 <= self.segment.len() {
            if self.slice(at, MIN_RECORD_BYTES).len() < MIN_RECORD_BYTES {
                let data = self.file.next_data(at).at_file(|| self.segment.path(), "looking for data")?;
                let Some(data) = data else { break };
                at = at.max(data);
                self.fill(at, WINDOW_BYTES)?;
                if self.buffer.len() < MIN_RECORD_BYTES {
                    break;
                }
            }
            let Some(skip) = candidate(self.slice(at, WINDOW_BYTES)) else {
                at = self.start + (self.buffer.len() - (MIN_RECORD_BYTES - 1)) as u64;
                continue;
            };
            at += skip as u64;
            if let Some(size) = self.size_of_record(at)? {
                self.current = (at, size);
                return Ok(Some(at));
            }
            at += 1;
        }
        self.current = (self.segment.len(), 0);
        Ok(None)
    }

    fn size_of_record(&mut self, at: u64) -> Result<Option<usize>, StoreError> {
        let Ok(Peek::Record { size, .. }) = peek(self.slice(at, MIN_RECORD_BYTES)) else { return Ok(None) };
        if u64::from(size) > self.segment.len() - at {
            return Ok(None);
        }
        if self.slice(at, size as usize).len() < size as usize {
            self.fill(at, WINDOW_BYTES.max(size as usize))?;
        }
        let own = i64::try_from(self.segment.base_offset() + at);
        let record = RecordView::decode(self.slice(at, size as usize));
        let intact = record.is_ok_and(|record| {
            own.is_ok_and(|own| own == record.physical_offset) && record.check_crc(CrcCheck::ALL).is_ok()
        });
        Ok(intact.then_some(size as usize))
    }

    fn fill(&mut self, at: u64, len: usize) -> Result<(), StoreError> {
        let len = (self.segment.len() - at).min(len as u64) as usize;
        self.buffer.resize(len, 0);
        self.start = at;
        let read = self.file.read_exact_at(&mut self.buffer, at);
        read.at_file(|| self.segment.path(), "reading the log")
    }
}

/// Returns the first place in `bytes` at which a record may begin.
fn candidate(bytes: &[u8]) -> Option<usize> {
    bytes.windows(MIN_RECORD_BYTES).position(|head| matches!(peek(head), Ok(Peek::Record { .. })))
}
