//! Walks the Raft entries of a broker that ran with DLedger, each with its header.
//!
//! Scans of messages pass the headers. This walk is for callers that compare the headers with each other: verification,
//! and the search for the last entry.
//!
//! Source: `DLedgerMmapFileStore#recover`.

use std::sync::Arc;

use mqstore_format::{BLANK_HEADER_BYTES, Peek, RAFT_HEADER_BYTES, RaftHeader, peek, raft_blank};

use super::raft_entries::{LEAD_BYTES, record_after_header};
use super::{SegmentList, Window};
use mqstore_base::error::StoreError;

/// One Raft entry.
#[derive(Debug)]
pub struct RaftEntry<'a> {
    /// Log offset of the header.
    pub offset: u64,
    /// The header.
    pub header: RaftHeader,
    /// The first field of the header that cannot be right.
    pub fault: Option<String>,
    /// The record, if one that names its own log offset follows the header. Its checksums are not verified.
    pub record: Option<&'a [u8]>,
}

/// The item at one log offset.
#[derive(Debug)]
pub enum RaftItem<'a> {
    /// An entry.
    Entry(RaftEntry<'a>),
    /// A blank.
    Blank,
    /// Nothing was written from this log offset on, or the limit.
    End(u64),
    /// Bytes at this log offset that are none of these.
    Damaged(u64),
}

/// See the header of this module.
#[derive(Debug)]
pub struct RaftWalk {
    list: Arc<SegmentList>,
    position: u64,
    limit: u64,
    window: Window,
}

impl RaftWalk {
    /// Creates a walk from `start`, the log offset of a header or of a data file, up to `limit`.
    pub fn new(list: Arc<SegmentList>, start: u64, limit: u64) -> Self {
        Self { list, position: start, limit, window: Window::default() }
    }

    /// Continues at `offset`.
    pub fn seek(&mut self, offset: u64) {
        self.position = offset;
    }

    /// Returns the next item. After [`RaftItem::Damaged`] the position stays; call [`Self::seek`] to continue.
    pub fn next_item(&mut self) -> Result<RaftItem<'_>, StoreError> {
        let offset = self.position;
        if offset >= self.limit {
            return Ok(RaftItem::End(self.limit));
        }
        let Some(segment) = self.list.find(offset).cloned() else {
            let next = self.list.next_from(offset).filter(|next| next.base_offset() < self.limit);
            return Ok(next.map_or(RaftItem::End(offset), |_| RaftItem::Damaged(offset)));
        };
        let rest = segment.end_offset() - offset;
        let end = segment.end_offset().min(self.limit);
        let len = (LEAD_BYTES as u64).min(end - offset) as usize;
        let head = self.window.bytes(&segment, offset, len, end)?;
        if head.get(..BLANK_HEADER_BYTES).is_some_and(|head| matches!(peek(head), Ok(Peek::Zero))) {
            let is_end = self.limit == u64::MAX;
            return Ok(if is_end { RaftItem::End(offset) } else { RaftItem::Damaged(offset) });
        }
        if let Some(size) = raft_blank(head, rest) {
            self.position = offset + size;
            return Ok(RaftItem::Blank);
        }
        let Ok(header) = RaftHeader::decode(head) else { return Ok(RaftItem::Damaged(offset)) };
        let record = record_after_header(head, offset, rest);
        let size = u64::try_from(header.size).unwrap_or(u64::MAX);
        let fault = match header.fault(offset) {
            None if size > rest => Some(format!("size {size} exceeds the {rest} bytes left in the file")),
            None if header.has_no_record() && record.is_some() => Some(format!(
                "magic {} is that of an entry without a record, but a record follows",
                header.magic
            )),
            fault => fault,
        };
        let header_bytes = RAFT_HEADER_BYTES as u64;
        let (next, record) = match (&fault, record) {
            (None, record) => (offset + size, record.filter(|record| record + header_bytes == size)),
            (Some(_), Some(record)) => (offset + header_bytes + record, Some(record)),
            (Some(_), None) => return Ok(RaftItem::Damaged(offset)),
        };
        if next > self.limit {
            return Ok(RaftItem::End(offset));
        }
        let record = match record {
            Some(size) => Some(self.window.bytes(&segment, offset + header_bytes, size as usize, end)?),
            None => None,
        };
        self.position = next;
        Ok(RaftItem::Entry(RaftEntry { offset, header, fault, record }))
    }
}
