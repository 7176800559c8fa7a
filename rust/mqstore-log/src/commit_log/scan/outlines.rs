//! Walks many consecutive records, each as an outline, for callers that look at all of them.

use mqstore_format::{Peek, RecordOutline, peek};
use mqstore_io::expect_read;

use super::raft_entries::{LEAD_BYTES, lead_in};
use super::{LogScanner, check_position, check_sums, read_up_to};
use mqstore_base::error::{IoContext, StoreError};

/// Bytes of one read: few enough to be still in the nearest caches when their checksums are computed.
const READ_BYTES: u64 = 256 << 10;

impl LogScanner {
    /// Calls `visit` with each record from here on, its log offset, and whether it has a checksum of its own
    /// ([`RecordOutline::has_own_crc`]). Stops at the first record that begins at or after `end`, or at the first bytes
    /// that are no whole record; the position stays there. Verifies all checksums.
    pub fn outlines(
        &mut self,
        end: u64,
        mut visit: impl FnMut(&RecordOutline<'_>, u64, bool),
    ) -> Result<(), StoreError> {
        let mut buffer = std::mem::take(&mut self.outline_buffer);
        let mut wanted = READ_BYTES;
        while self.position < end.min(self.limit) {
            let Some(segment) = self.list.find(self.position) else { break };
            let file = segment.file().at_file(|| segment.path(), "opening a log segment")?;
            let rest = segment.end_offset().min(self.limit) - self.position;
            buffer.resize(rest.min(wanted) as usize, 0);
            let read = read_up_to(file.as_ref(), &mut buffer, self.position - segment.base_offset());
            let read = read.at_file(|| segment.path(), "reading the log")?;
            let bytes = buffer.get(..read).unwrap_or_default();
            let entries_end = self.list.has_entries(self.position).then(|| segment.end_offset());
            let (used, next) = for_each_in_buffer(bytes, self.position, end, entries_end, &mut visit);
            self.position += used;
            match next {
                // The record is longer than the buffer, but fits the segment and the limit.
                NextBytes::Longer(size) if used == 0 && wanted < size && size <= rest => wanted = size,
                NextBytes::Longer(_) if used > 0 => wanted = READ_BYTES,
                _ => break,
            }
        }
        self.outline_buffer = buffer;
        Ok(())
    }
}

/// The bytes that follow the visited records.
enum NextBytes {
    /// A record of this size that is only partly in the buffer.
    Longer(u64),
    /// Other bytes, or the end.
    Other,
}

/// Calls `visit` with the records in `bytes`, which are at log offset `start`, that begin before `end`. In a data file
/// of DLedger, `entries_end` is the end of the file.
fn for_each_in_buffer(
    bytes: &[u8],
    start: u64,
    end: u64,
    entries_end: Option<u64>,
    visit: &mut impl FnMut(&RecordOutline<'_>, u64, bool),
) -> (u64, NextBytes) {
    let (mut rest, mut position) = (bytes, start);
    while position < end {
        if let Some(file_end) = entries_end {
            // With fewer bytes, the next read shows whether a record follows the header.
            if rest.len() < LEAD_BYTES && rest.len() < bytes.len() {
                return (position - start, NextBytes::Longer(0));
            }
            if let Some(skipped) = lead_in(rest, position, file_end - position) {
                let Some(later) = rest.get(skipped..) else { return (position - start, NextBytes::Other) };
                position += skipped as u64;
                rest = later;
                continue;
            }
        }
        let size = match peek(rest) {
            Ok(Peek::Record { size, .. }) => size as usize,
            // Too few bytes for a head: the caller reads again with the bytes after them.
            Err(_) if rest.len() < bytes.len() => return (position - start, NextBytes::Longer(0)),
            _ => return (position - start, NextBytes::Other),
        };
        let Some((record, later)) = rest.split_at_checked(size) else {
            return (position - start, NextBytes::Longer(size as u64));
        };
        // Prefetches the next head while this record is processed.
        expect_read(later.get(..64).unwrap_or_default());
        let Ok(outline) = RecordOutline::decode(record) else { return (position - start, NextBytes::Other) };
        let sums =
            check_position(outline.physical_offset, position).and_then(|()| check_sums(&outline, true));
        let Ok(is_own) = sums else { return (position - start, NextBytes::Other) };
        // The check has usually answered the question, and asking the record reads all properties.
        visit(&outline, position, is_own || outline.has_own_crc());
        position += size as u64;
        rest = later;
    }
    (position - start, NextBytes::Other)
}
