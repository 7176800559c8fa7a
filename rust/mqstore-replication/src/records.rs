//! Whole records of the bytes that a master sends.
//!
//! A body begins and ends anywhere. The bytes of an incomplete record stay in memory until the rest arrives, so the log
//! of a copy never ends inside a record. A filler can be as long as a segment: its bytes go to the file as they arrive,
//! and the log rolls after the last one.

use mqstore_format::{BLANK_HEADER_BYTES, Peek, peek};
use mqstore_log::commit_log::{CopiedPart, check_full};

use crate::log::{ReplicaError, ReplicaLog};

/// The records from a log offset on.
#[derive(Debug)]
pub(crate) struct RecordStream {
    segment_bytes: u64,
    /// Log offset after the last whole record or filler.
    position: u64,
    /// The bytes after it, except those of the filler.
    pending: Vec<u8>,
    filler: Option<Filler>,
}

/// A filler that has not arrived completely.
#[derive(Clone, Copy, Debug)]
struct Filler {
    /// Log offset of the next byte.
    next: u64,
    end: u64,
}

/// Whole records of one segment.
#[derive(Debug, Default)]
struct Run {
    bytes: usize,
    count: u64,
    last_size: u32,
    newest_ms: i64,
    /// The length of the filler after them.
    filler: Option<u32>,
}

impl RecordStream {
    /// The records from `position` on, where a record or a filler begins.
    pub(crate) fn new(position: u64, segment_bytes: u64) -> Self {
        Self { segment_bytes, position, pending: Vec::new(), filler: None }
    }

    /// Returns the log offset after the last whole record or filler.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Takes the next bytes. [`Self::append_to`] appends the records that they complete: one large write is faster than
    /// one for each frame.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// Appends the complete records.
    pub(crate) fn append_to(&mut self, log: &mut dyn ReplicaLog) -> Result<(), ReplicaError> {
        let pending = std::mem::take(&mut self.pending);
        let mut rest = pending.as_slice();
        loop {
            rest = self.feed_filler(rest, log)?;
            if self.filler.is_some() {
                break;
            }
            let run = self.next_run(rest)?;
            let (records, after) = rest.split_at(run.bytes);
            if run.count > 0 {
                let Run { count, last_size, newest_ms, .. } = run;
                let part = CopiedPart::Records { bytes: records, count, last_size, newest_ms };
                log.append(self.position, part)?;
                self.position += run.bytes as u64;
            }
            rest = after;
            let Some(size) = run.filler else { break };
            let next = self.position + BLANK_HEADER_BYTES as u64;
            self.filler = Some(Filler { next, end: self.position + u64::from(size) });
            rest = rest.get(BLANK_HEADER_BYTES..).unwrap_or_default();
        }
        let used = pending.len() - rest.len();
        self.pending = pending;
        self.pending.drain(..used);
        Ok(())
    }

    /// Takes the bytes of the filler from the front of `bytes`, and returns the rest. Rolls after the last one.
    fn feed_filler<'a>(
        &mut self,
        bytes: &'a [u8],
        log: &mut dyn ReplicaLog,
    ) -> Result<&'a [u8], ReplicaError> {
        let Some(filler) = &mut self.filler else { return Ok(bytes) };
        let left = usize::try_from(filler.end - filler.next).unwrap_or(usize::MAX);
        let (own, rest) = bytes.split_at(left.min(bytes.len()));
        // The bytes of a new file are zero.
        if own.iter().any(|byte| *byte != 0) {
            log.append(self.position, CopiedPart::FillerBytes { at: filler.next, bytes: own })?;
        }
        filler.next += own.len() as u64;
        if filler.next == filler.end {
            log.append(self.position, CopiedPart::Roll)?;
            self.position = filler.end;
            self.filler = None;
        }
        Ok(rest)
    }

    /// Returns the whole records at the front of `bytes`, up to a filler.
    fn next_run(&self, bytes: &[u8]) -> Result<Run, ReplicaError> {
        let mut run = Run::default();
        let segment_end = (self.position / self.segment_bytes + 1) * self.segment_bytes;
        while let Some(head @ [_, _, _, _, _, _, _, _, ..]) = bytes.get(run.bytes..) {
            let at = self.position + run.bytes as u64;
            let rest = segment_end - at;
            match peek(head).map_err(|error| wrong(at, &error.to_string()))? {
                Peek::Record { size, .. } => {
                    if u64::from(size) + BLANK_HEADER_BYTES as u64 > rest {
                        return Err(self.other_segments(at, &format!("a record of {size} bytes")));
                    }
                    let Some(record) = head.get(..size as usize) else { break };
                    let record = check_full(record, at).map_err(|reason| wrong(at, &reason))?;
                    run.bytes += size as usize;
                    run.count += 1;
                    run.last_size = size;
                    run.newest_ms = run.newest_ms.max(record.store_timestamp);
                }
                Peek::Blank { size } if u64::from(size) == rest => {
                    run.filler = Some(size);
                    break;
                }
                Peek::Blank { size } => {
                    return Err(self.other_segments(at, &format!("a filler of {size} bytes")));
                }
                Peek::Zero | Peek::Invalid { .. } => return Err(wrong(at, "no record")),
            }
        }
        Ok(run)
    }

    fn other_segments(&self, at: u64, what: &str) -> ReplicaError {
        let segment_bytes = self.segment_bytes;
        ReplicaError::Diverged {
            at,
            reason: format!(
                "the master has {what} there, which does not fit segments of {segment_bytes} bytes: its segments \
                 (mappedFileSizeCommitLog) have another size"
            ),
        }
    }
}

fn wrong(at: u64, reason: &str) -> ReplicaError {
    ReplicaError::Protocol(format!("at log offset {at} it sent bytes that are no log: {reason}"))
}
