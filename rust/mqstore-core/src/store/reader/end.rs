//! Where the log ends for a reader.
//!
//! Beside a writer of ours that is what it publishes; else the end of the last record that holds together,
//! which beside a writer of another kind counts only if a second look finds the same bytes.

use std::sync::Arc;

use mqstore_format::crc31;

use super::{Reader, State};
use crate::commit_log::{LogScanner, ScanChecks, ScanItem, SegmentList, read_record};
use crate::error::{IoContext, StoreError};
use crate::live::LiveState;

impl Reader {
    /// Moves `state.end` to where the visible log ends now.
    pub(super) fn find_end(&self, state: &mut State, live: Option<LiveState>) -> Result<(), StoreError> {
        if let Some(live) = live {
            let known = state.list.end_offset();
            if live.visible > known {
                state.list = Arc::new(SegmentList::load(&self.files)?);
            }
            state.end = state.end.max(live.visible);
            return Ok(());
        }
        let start = self.scan_start(state)?;
        let foreign = self.files.vfs.lock_holder(&self.files.lock()).ok().flatten().is_some();
        let mut scanner = LogScanner::new(Arc::clone(&state.list), start, u64::MAX, ScanChecks { crc: true });
        let mut last = None;
        loop {
            let offset = scanner.position();
            match scanner.next_item()? {
                ScanItem::Record(record) if foreign => last = Some((offset, crc31(record.bytes))),
                ScanItem::Record(_) | ScanItem::Filler { .. } => {}
                ScanItem::End { offset } => {
                    state.end = self.confirmed(state, last, offset);
                    return Ok(());
                }
                ScanItem::Damaged(damage) => {
                    // Above the mark a stop may have torn anything: recovery will end the log there.
                    let torn = self.mark.is_some_and(|mark| damage.offset >= mark.position);
                    if !torn && let Some(next) = scanner.resync(damage.offset + 1)? {
                        scanner.seek(next);
                        continue;
                    }
                    state.end = self.confirmed(state, last, damage.offset);
                    if !foreign {
                        self.note(format!(
                            "{} at offset {}: {}; the log ends there",
                            damage.path.display(),
                            damage.file_offset,
                            damage.reason
                        ));
                    }
                    return Ok(());
                }
            }
        }
    }

    /// Beside a writer that publishes nothing, the newest record may have been half written when it was
    /// read: it counts when a second look finds the same bytes.
    fn confirmed(&self, state: &State, last: Option<(u64, u32)>, end: u64) -> u64 {
        let Some((offset, crc)) = last else { return end };
        let again = read_record(&self.files, &state.list, offset, 4096);
        if again.is_ok_and(|bytes| crc31(bytes.as_slice()) == crc) { end } else { offset }
    }

    /// A place of the log that is before its end and not far from it.
    fn scan_start(&self, state: &State) -> Result<u64, StoreError> {
        let mut start = state.list.min_offset().max(state.end);
        if let Some(mark) = self.mark.filter(|mark| mark.position >= start) {
            start = mark.position;
        }
        for segment in state.list.segments().iter().rev() {
            if segment.base_offset() <= start {
                break;
            }
            let mut head = [0; 8];
            segment
                .file()
                .at_file(|| segment.path(), "opening a log segment")?
                .read_exact_at(&mut head, 0)
                .at(&segment.path(), "reading a segment's start")?;
            if head != [0; 8] {
                return Ok(segment.base_offset());
            }
        }
        Ok(start)
    }
}
