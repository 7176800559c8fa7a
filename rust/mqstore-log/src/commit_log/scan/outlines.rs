//! Many records in a row, each as an outline: for who looks at all of them.

use mqstore_format::{Peek, RecordOutline, peek};
use mqstore_io::expect_read;

use super::{LogScanner, check_position, check_sums, read_up_to};
use mqstore_base::error::{IoContext, StoreError};

/// Bytes that are read at once: they are still in the nearest caches when their checksums are made.
const ROW_BYTES: u64 = 256 << 10;

impl LogScanner {
    /// Shows `visit` the records from here on, with their log offsets, until one begins at `end` or behind it, or
    /// something else than a whole record is met, where the position stays then. All checksums are verified.
    pub fn rows(
        &mut self,
        end: u64,
        mut visit: impl FnMut(&RecordOutline<'_>, u64),
    ) -> Result<(), StoreError> {
        let mut buffer = std::mem::take(&mut self.row);
        let mut wanted = ROW_BYTES;
        while self.position < end.min(self.limit) {
            let Some(segment) = self.list.find(self.position) else { break };
            let file = segment.file().at_file(|| segment.path(), "opening a log segment")?;
            let rest = segment.end_offset().min(self.limit) - self.position;
            buffer.resize(rest.min(wanted) as usize, 0);
            let read = read_up_to(file.as_ref(), &mut buffer, self.position - segment.base_offset());
            let read = read.at_file(|| segment.path(), "reading the log")?;
            let bytes = buffer.get(..read).unwrap_or_default();
            let (used, next) = for_each_in_buffer(bytes, self.position, end, &mut visit);
            self.position += used;
            match next {
                // One that is longer than what was read, and not longer than what there is.
                Next::Longer(size) if used == 0 && wanted < size && size <= rest => wanted = size,
                Next::Longer(_) if used > 0 => wanted = ROW_BYTES,
                _ => break,
            }
        }
        self.row = buffer;
        Ok(())
    }
}

/// What follows a row of records.
enum Next {
    /// A record of that many bytes, of which not all were there.
    Longer(u64),
    /// Something else, or the end.
    Other,
}

/// Shows `visit` the records in `bytes`, which lie at log offset `start`, that begin before `end`.
fn for_each_in_buffer(
    bytes: &[u8],
    start: u64,
    end: u64,
    visit: &mut impl FnMut(&RecordOutline<'_>, u64),
) -> (u64, Next) {
    let (mut rest, mut position) = (bytes, start);
    while position < end {
        let size = match peek(rest) {
            Ok(Peek::Record { size, .. }) => size as usize,
            // Too few bytes for a head: look again with those behind them.
            Err(_) if rest.len() < bytes.len() => return (position - start, Next::Longer(0)),
            _ => return (position - start, Next::Other),
        };
        let Some((record, later)) = rest.split_at_checked(size) else {
            return (position - start, Next::Longer(size as u64));
        };
        // The next head, while this record is looked at.
        expect_read(later.get(..64).unwrap_or_default());
        let Ok(outline) = RecordOutline::decode(record) else { return (position - start, Next::Other) };
        if check_position(outline.physical_offset, position).is_err() || check_sums(&outline, true).is_err() {
            return (position - start, Next::Other);
        }
        visit(&outline, position);
        position += size as u64;
        rest = later;
    }
    (position - start, Next::Other)
}
