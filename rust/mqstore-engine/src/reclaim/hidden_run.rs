//! Stretches of adjacent records that one placeholder replaces.

use mqstore_format::{HiddenPlaceholder, MAX_HIDDEN_BYTES, RecordView};

/// Bytes of a page of the file system.
pub(super) const PAGE_BYTES: u64 = 4096;

/// Adjacent records of one segment, at most [`MAX_HIDDEN_BYTES`] long if there are several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HiddenRun {
    /// Log offset of the first record.
    pub start: u64,
    /// Log offset after the last record.
    pub end: u64,
    /// Byte lengths of the placeholder before and after its body.
    frame: (u64, u64),
}

impl HiddenRun {
    /// Starts a run with the record at log offset `start`.
    pub(super) fn of(start: u64, record: &RecordView<'_>) -> Self {
        let end = start + u64::from(record.size);
        Self { start, end, frame: HiddenPlaceholder::frame_bytes(record) }
    }

    /// Adds the record of `size` bytes at log offset `at`, if it is adjacent and the placeholder does not get too long.
    pub(super) fn extend(&mut self, at: u64, size: u32) -> bool {
        let end = at + u64::from(size);
        let fits = at == self.end && end - self.start <= MAX_HIDDEN_BYTES;
        if fits {
            self.end = end;
        }
        fits
    }

    /// Returns the bytes of whole pages in the body of the placeholder, for a segment that begins at `base`.
    pub(super) fn freed_bytes(&self, base: u64) -> u64 {
        let first = (self.start - base + self.frame.0).next_multiple_of(PAGE_BYTES);
        let end = self.end - base - self.frame.1;
        (end - end % PAGE_BYTES).saturating_sub(first)
    }
}

#[cfg(test)]
mod tests {
    use mqstore_format::{Host, RecordSpec};

    use super::*;

    #[test]
    fn only_whole_pages_of_the_body_count() {
        let host = Host::new([10, 0, 0, 1], 1);
        let mut bytes = Vec::new();
        RecordSpec::new("orders", &[7; 4000], host, host).encode_into(&mut bytes).unwrap();
        let record = RecordView::decode(&bytes).unwrap();
        let (head, tail) = HiddenPlaceholder::frame_bytes(&record);
        assert_eq!((head, tail), (88, 9));
        let base = 1 << 20;
        let mut run = HiddenRun::of(base + 4096 - 88, &record);
        assert_eq!(run.freed_bytes(base), 0);
        assert!(!run.extend(base + 1, 100), "not adjacent");
        // The body begins at a page; the second page ends just with the body.
        assert!(run.extend(run.end, (4096 + 9 - (4097 - 88)) as u32));
        assert_eq!(run.freed_bytes(base), 4096);
        assert!(run.extend(run.end, 4095));
        assert_eq!(run.freed_bytes(base), 4096);
        assert!(run.extend(run.end, 1));
        assert_eq!(run.freed_bytes(base), 8192);
        let mut long = HiddenRun { start: 0, end: MAX_HIDDEN_BYTES, frame: (88, 9) };
        assert!(!long.extend(MAX_HIDDEN_BYTES, 1));
    }
}
