//! Reads the slots of one queue file, in both directions, and classifies their contents.
//!
//! Only this module turns bytes of a queue file into units. It never trusts the bytes: everything else is
//! [`UnitState::Empty`], [`UnitState::Blank`] or [`UnitState::Invalid`]. All reads are positional, at most
//! [`CHUNK_BYTES`] long, and stay inside the requested range.
//!
//! ```text
//! 0        8     12             20
//! | record | size | tags code   |     all zero: empty     (0, 0x7fffffff, 0): blank
//! ```
//!
//! Source: `ConsumeQueue#recover` (a unit counts if its offset is not negative and its size is positive),
//! `ConsumeQueue#fillPreBlank`. Unlike there, the front of a torn blank unit is no unit.

use std::io;
use std::ops::{ControlFlow, Range};

use mqstore_format::{CQ_UNIT_BYTES, CqUnit};
use mqstore_io::VfsFile;

use super::layout::UNIT_BYTES;

/// Bytes of one read: 819 units.
pub(super) const CHUNK_BYTES: u64 = 819 * UNIT_BYTES;

/// Bytes of the first probe for the end of a file's data: two pages and the unit across their end.
const FIRST_GUESS_BYTES: u64 = 409 * UNIT_BYTES;

/// The contents of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnitState {
    /// Zeros: never written.
    Empty,
    /// The placeholder of an offset without a record.
    Blank,
    /// A unit with a possible log offset and size.
    Unit(CqUnit),
    /// Any other bytes.
    Invalid,
}

impl UnitState {
    /// Classifies the 20 bytes of a slot.
    pub(super) fn decode(bytes: &[u8; CQ_UNIT_BYTES]) -> Self {
        if *bytes == [0; CQ_UNIT_BYTES] {
            return Self::Empty;
        }
        let unit = CqUnit::decode(bytes);
        if unit.is_blank() {
            Self::Blank
        } else if physical_end(&unit).is_some() {
            Self::Unit(unit)
        } else {
            Self::Invalid
        }
    }
}

/// Lower bound of a torn blank unit's size: no record is this long, so such a size is the front of a blank unit.
const TORN_BLANK_SIZE: i32 = 0x7F00_0000;

/// Returns the log offset at which the record of `unit` ends; `None` if the unit is not possible.
pub(super) fn physical_end(unit: &CqUnit) -> Option<i64> {
    if unit.physical_offset < 0 || !(1..TORN_BLANK_SIZE).contains(&unit.size) {
        return None;
    }
    unit.physical_offset.checked_add(i64::from(unit.size))
}

/// Calls `visit` for the slots of `range` (file positions of whole units), first to last, until it breaks.
pub(super) fn for_each_forward(
    file: &dyn VfsFile,
    range: Range<u64>,
    mut visit: impl FnMut(u64, UnitState) -> ControlFlow<()>,
) -> io::Result<()> {
    let mut buffer = Vec::new();
    let mut position = range.start;
    while position < range.end {
        let end = range.end.min(position + CHUNK_BYTES);
        for (index, bytes) in read_units(file, position..end, &mut buffer)?.iter().enumerate() {
            if visit(position + index as u64 * UNIT_BYTES, UnitState::decode(bytes)).is_break() {
                return Ok(());
            }
        }
        position = end;
    }
    Ok(())
}

/// Number of chunks after which a backward read expects to need the slots before them too.
const PATIENT_CHUNKS: u64 = 2;

/// Bytes that it expects to need then.
const BACKWARD_BYTES: u64 = 8 << 20;

/// Calls `visit` for the slots before `end` (a file position), last to first, until it breaks.
pub(super) fn for_each_backward(
    file: &dyn VfsFile,
    end: u64,
    mut visit: impl FnMut(u64, UnitState) -> ControlFlow<()>,
) -> io::Result<()> {
    let mut buffer = Vec::new();
    let mut expected = end.saturating_sub(PATIENT_CHUNKS * CHUNK_BYTES);
    let mut end = end;
    while end > 0 {
        let start = end.saturating_sub(CHUNK_BYTES);
        if start < expected {
            let from = expected.saturating_sub(BACKWARD_BYTES);
            // The read finds and reports any error.
            let _ = file.expect_read(from, expected - from);
            expected = from;
        }
        for (index, bytes) in read_units(file, start..end, &mut buffer)?.iter().enumerate().rev() {
            if visit(start + index as u64 * UNIT_BYTES, UnitState::decode(bytes)).is_break() {
                return Ok(());
            }
        }
        end = start;
    }
    Ok(())
}

/// Reads the slots of `range`. The caller bounds the range, because all of it is held in memory.
pub(super) fn read_units<'a>(
    file: &dyn VfsFile,
    range: Range<u64>,
    buffer: &'a mut Vec<u8>,
) -> io::Result<&'a [[u8; CQ_UNIT_BYTES]]> {
    buffer.resize(range.end.saturating_sub(range.start) as usize, 0);
    file.read_exact_at(buffer, range.start)?;
    Ok(buffer.as_chunks().0)
}

/// Returns the end of the last unit of a file of `len` bytes that may hold data; a hole follows it. Exact to
/// [`CHUNK_BYTES`]; `len` if the file system has no holes.
pub(super) fn data_end(file: &dyn VfsFile, len: u64) -> io::Result<u64> {
    // "Data follows this position" is true up to one position and false after it.
    let (mut low, mut high) = (0, FIRST_GUESS_BYTES);
    // In stores with very many queues, most queues are short.
    while high < len && file.next_data(high)?.is_some() {
        (low, high) = (high, high * 4);
    }
    high = high.min(len);
    while high - low > CHUNK_BYTES {
        let middle = low + (high - low) / 2;
        match file.next_data(middle)?.filter(|data| *data < high) {
            Some(data) => low = data.max(middle),
            None => high = middle,
        }
    }
    Ok((high.div_ceil(UNIT_BYTES) * UNIT_BYTES).min(len))
}

#[cfg(test)]
mod tests {
    use mqstore_format::BLANK_UNIT;

    use super::*;

    #[test]
    fn a_blank_of_which_the_front_was_written_is_no_unit() {
        let blank = BLANK_UNIT.encode();
        for written in 0..blank.len() {
            let mut torn = [0; CQ_UNIT_BYTES];
            torn[..written].copy_from_slice(&blank[..written]);
            let slot = UnitState::decode(&torn);
            assert!(!matches!(slot, UnitState::Unit(_)), "{written} bytes: {slot:?}");
        }
    }
}
