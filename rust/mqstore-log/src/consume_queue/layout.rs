//! The place of a unit: conversion between queue offsets, files and positions.
//!
//! This module owns the arithmetic from a queue offset to the file and byte of its unit, and does no I/O. All functions
//! take offsets that [`QueueLayout::holds`] has accepted, so no step can overflow.
//!
//! ```text
//! unit n  ->  logical byte 20 n  ->  file named floor(20 n / len) * len, at byte 20 n mod len
//! ```
//!
//! Source: `ConsumeQueue#putMessagePositionInfo`, `MessageStoreConfig#getMappedFileSizeConsumeQueue`.

use std::ops::Range;

use mqstore_format::{BATCH_CQ_UNIT_BYTES, CQ_UNIT_BYTES};

/// Byte length of a unit.
pub(super) const UNIT_BYTES: u64 = CQ_UNIT_BYTES as u64;

/// Byte length of a unit of a batch queue.
pub(super) const BATCH_UNIT_BYTES: u64 = BATCH_CQ_UNIT_BYTES as u64;

/// The geometry of all queue files of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueLayout {
    file_bytes: u64,
}

/// The part of a range of offsets that is in one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FilePart {
    /// The file, by the logical offset of its first byte.
    pub(super) base: u64,
    /// Queue offsets of the part.
    pub(super) offsets: Range<i64>,
    /// File position of the first one.
    pub(super) position: u64,
}

impl FilePart {
    /// Number of slots.
    pub(super) fn units(&self) -> usize {
        (self.offsets.end - self.offsets.start) as usize
    }

    /// One past the last byte, as a position in the file.
    pub(super) fn end_position(&self) -> u64 {
        self.position + self.units() as u64 * UNIT_BYTES
    }
}

/// Returns the queue offset at `position` of the file `base`.
pub(super) fn offset_at(base: u64, position: u64) -> i64 {
    ((base + position) / UNIT_BYTES) as i64
}

impl QueueLayout {
    /// Creates the layout of files of `file_bytes`, rounded up to whole units and to at least one, as in RocketMQ.
    pub(super) fn new(file_bytes: u64) -> Self {
        Self::of_units(UNIT_BYTES, file_bytes.div_ceil(UNIT_BYTES))
    }

    /// Creates the layout of files of `units` units of `unit_bytes` each. RocketMQ's limit is 31 bits.
    pub(super) fn of_units(unit_bytes: u64, units: u64) -> Self {
        Self { file_bytes: unit_bytes * units.clamp(1, i32::MAX as u64 / unit_bytes) }
    }

    /// Whether files of `len` bytes are possible for units of `unit_bytes`.
    pub(super) fn may_have(len: u64, unit_bytes: u64) -> bool {
        len > 0 && len.is_multiple_of(unit_bytes) && i32::try_from(len).is_ok()
    }

    pub(super) fn file_bytes(self) -> u64 {
        self.file_bytes
    }

    pub(super) fn units_per_file(self) -> i64 {
        (self.file_bytes / UNIT_BYTES) as i64
    }

    /// Whether the format can hold the slots up to `end` (exclusive): their file ends below the largest signed 64-bit
    /// byte offset.
    pub(super) fn holds(self, end: i64) -> bool {
        u64::try_from(end)
            .ok()
            .and_then(|end| end.checked_mul(UNIT_BYTES))
            .and_then(|bytes| bytes.checked_add(self.file_bytes))
            .is_some_and(|bytes| i64::try_from(bytes).is_ok())
    }

    /// Whether a file may start at `base`.
    pub(super) fn is_base(self, base: u64) -> bool {
        base.is_multiple_of(self.file_bytes)
            && base.checked_add(self.file_bytes * 2).is_some_and(|end| i64::try_from(end).is_ok())
    }

    /// Returns the base of the file that contains `offset`.
    pub(super) fn base_of(self, offset: i64) -> u64 {
        let bytes = offset as u64 * UNIT_BYTES;
        bytes - bytes % self.file_bytes
    }

    pub(super) fn position_of(self, offset: i64) -> u64 {
        (offset as u64 * UNIT_BYTES) % self.file_bytes
    }

    /// One past the last offset of the file `base`.
    pub(super) fn end_of(self, base: u64) -> i64 {
        offset_at(base, self.file_bytes)
    }

    /// Splits `offsets` at the borders of files, in order; an empty range has no part.
    pub(super) fn parts(self, offsets: Range<i64>) -> impl Iterator<Item = FilePart> {
        let mut next = offsets.start;
        std::iter::from_fn(move || {
            if next >= offsets.end {
                return None;
            }
            let base = self.base_of(next);
            let end = self.end_of(base).min(offsets.end);
            let part = FilePart { base, offsets: next..end, position: self.position_of(next) };
            next = end;
            Some(part)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_round_up_to_units() {
        for (configured, expected) in [(0, 20), (1, 20), (1000, 1000), (1001, 1020), (6_000_001, 6_000_020)] {
            assert_eq!(QueueLayout::new(configured).file_bytes(), expected);
        }
        assert!(i32::try_from(QueueLayout::new(u64::MAX).file_bytes()).is_ok());
    }

    #[test]
    fn the_worked_example_of_a_late_start() {
        let layout = QueueLayout::new(1000);
        assert_eq!(layout.base_of(130), 2000);
        assert_eq!(layout.position_of(130), 600);
        assert_eq!(offset_at(2000, 0), 100);
        assert_eq!(layout.end_of(2000), 150);
        assert_eq!(QueueLayout::new(6_000_000).base_of(300_000), 6_000_000);
    }

    #[test]
    fn ranges_are_cut_at_files() {
        let layout = QueueLayout::new(100);
        let parts: Vec<_> = layout.parts(3..12).collect();
        assert_eq!(
            parts,
            [
                FilePart { base: 0, offsets: 3..5, position: 60 },
                FilePart { base: 100, offsets: 5..10, position: 0 },
                FilePart { base: 200, offsets: 10..12, position: 0 },
            ]
        );
        assert_eq!(layout.parts(7..7).count(), 0);
    }

    #[test]
    fn offsets_beyond_the_format_have_no_place() {
        let layout = QueueLayout::new(6_000_000);
        assert!(layout.holds(0));
        assert!(layout.holds(i64::MAX / 20 - 300_000));
        for end in [-1, i64::MIN, i64::MAX / 20, i64::MAX] {
            assert!(!layout.holds(end), "{end}");
        }
        assert!(layout.is_base(12_000_000));
        assert!(!layout.is_base(12_000_020));
        assert!(!layout.is_base(u64::MAX - u64::MAX % 6_000_000));
    }
}
