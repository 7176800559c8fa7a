//! The records of one file of a queue's log, found without units.
//!
//! Each record has its position and its queue offset. Where no record is, the walk searches the next one, so a damaged
//! record hides no other. Bytes that are too few for a record, such as the end that RocketMQ 5.1 and 5.2 write, are no
//! record.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use mqstore_format::{CqUnit, DelayLevels, MIN_RECORD_BYTES, TIERED_HEAD_BYTES, TieredLog};
use mqstore_io::VfsFile;

/// Maximum bytes of a record.
pub(super) const MOST_RECORD_BYTES: u64 = 64 << 20;

/// Bytes of the first read of a walk, and of each later one.
const FIRST_BYTES: usize = 8 << 10;
const NEXT_BYTES: usize = 512 << 10;

/// A record, or bytes where a record should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogSlot {
    /// Position in the log of the queue.
    pub start: u64,
    /// Position after it.
    pub end: u64,
    /// What the record says; `None` for a damaged one.
    pub record: Option<SlotRecord>,
}

/// The fields of a record that a queue needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotRecord {
    pub queue_offset: i64,
    pub tags_code: i64,
    pub stored_ms: i64,
    /// Whether it contains several messages.
    pub is_batch: bool,
}

impl LogSlot {
    /// Whether `unit` leads to it.
    pub(super) fn is_at(&self, unit: &CqUnit) -> bool {
        unit.is_valid() && (unit.physical_offset, unit.physical_end()) == (self.start as i64, self.end as i64)
    }

    fn offset(&self) -> Option<i64> {
        self.record.map(|record| record.queue_offset)
    }
}

/// See the header of this module. It ends at an error.
pub(super) struct LogWalk<'a> {
    log: TieredLog<'a>,
    file: Arc<dyn VfsFile>,
    /// Position of the first byte of the file.
    base: u64,
    at: u64,
    end: u64,
    window: Vec<u8>,
    /// Position of the first byte of the window.
    window_at: u64,
}

impl<'a> LogWalk<'a> {
    /// Walks from one position to another one (exclusive) of the log whose bytes from position `base` on are in `file`.
    pub(super) fn new(log: TieredLog<'a>, file: Arc<dyn VfsFile>, base: u64, range: Range<u64>) -> Self {
        let (at, end) = (range.start, range.end);
        Self { log, file, base, at, end, window: Vec::new(), window_at: at }
    }

    pub(super) fn next_slot(&mut self) -> io::Result<Option<LogSlot>> {
        while self.at < self.end {
            let found = match self.slot_at(self.at)? {
                None => self.search()?,
                found => found,
            };
            let start = self.at;
            match found {
                Some(slot) if slot.start == start => {
                    self.at = slot.end;
                    return Ok(Some(slot));
                }
                found => self.at = found.map_or(self.end, |slot| slot.start),
            }
            if self.at - start >= MIN_RECORD_BYTES as u64 {
                return Ok(Some(LogSlot { start, end: self.at, record: None }));
            }
        }
        Ok(None)
    }

    pub(super) fn slots(&mut self) -> io::Result<Vec<LogSlot>> {
        std::iter::from_fn(|| self.next_slot().transpose()).collect()
    }

    /// Returns the record at a position.
    fn slot_at(&mut self, at: u64) -> io::Result<Option<LogSlot>> {
        let (end, log) = (self.end, self.log);
        let head = self.bytes(at, TIERED_HEAD_BYTES)?.first_chunk();
        let size = head.and_then(|head| log.head(head, at)).map_or(0, |(size, _)| u64::from(size));
        if size == 0 || size > MOST_RECORD_BYTES || at + size > end {
            return Ok(None);
        }
        let record = log.record(self.bytes(at, size as usize)?, at);
        Ok(record.map(|record| {
            let record = SlotRecord {
                queue_offset: record.queue_offset,
                tags_code: record.tags_code(&DelayLevels::default()),
                stored_ms: record.store_timestamp,
                is_batch: record.sys_flag.inner_batch(),
            };
            LogSlot { start: at, end: at + size, record: Some(record) }
        }))
    }

    /// Returns the first record after the position of the walk.
    fn search(&mut self) -> io::Result<Option<LogSlot>> {
        let mut at = self.at + 1;
        while at + MIN_RECORD_BYTES as u64 <= self.end {
            self.bytes(at, TIERED_HEAD_BYTES)?;
            let log = self.log;
            let rest = self.window.get((at - self.window_at) as usize..).unwrap_or_default();
            let heads = rest.windows(TIERED_HEAD_BYTES);
            let searched = heads.len() as u64;
            let is_record =
                |head: &[u8], at| head.first_chunk().is_some_and(|head| log.head(head, at).is_some());
            let hit = (at..).zip(heads).find(|(at, head)| is_record(head, *at));
            let Some((place, _)) = hit else {
                at += searched.max(1);
                continue;
            };
            if let Some(slot) = self.slot_at(place)? {
                return Ok(Some(slot));
            }
            at = place + 1;
        }
        Ok(None)
    }

    /// Returns up to `len` bytes from a position on; fewer at the end.
    fn bytes(&mut self, at: u64, len: usize) -> io::Result<&[u8]> {
        let wanted = self.end.saturating_sub(at).min(len as u64);
        let window = self.window_at..self.window_at + self.window.len() as u64;
        if at < window.start || at + wanted > window.end {
            let least = if self.window.is_empty() { FIRST_BYTES } else { NEXT_BYTES };
            let count = self.end.saturating_sub(at).min(wanted.max(least as u64));
            self.window.resize(count as usize, 0);
            self.window_at = at;
            self.file.read_exact_at(&mut self.window, at - self.base)?;
        }
        let from = (at - self.window_at) as usize;
        Ok(self.window.get(from..from + wanted as usize).unwrap_or_default())
    }
}

/// Whether `unit` leads to the record of a queue offset, in the file whose first byte has position `base` of `log`.
pub(super) fn leads_to(
    log: TieredLog<'_>,
    (file, base): (&dyn VfsFile, u64),
    unit: &CqUnit,
    queue_offset: i64,
) -> io::Result<bool> {
    let at = unit.physical_offset.unsigned_abs();
    let mut head = [0; TIERED_HEAD_BYTES];
    file.read_exact_at(&mut head, at - base)?;
    let found = log.head(&head, at);
    Ok(found.is_some_and(|(size, offset)| (i64::from(size), offset) == (i64::from(unit.size), queue_offset)))
}

/// A slot and the message in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlacedSlot {
    /// Position in the log of the queue.
    pub start: u64,
    /// Position after it.
    pub end: u64,
    pub message: SlotMessage,
    /// The hash of the tags of an intact record.
    tags_code: i64,
}

/// The message in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotMessage {
    /// The record of this queue offset.
    Intact(i64),
    /// A record that is damaged.
    Damaged,
    /// No message: RocketMQ copied its record again later, after a crash.
    Superseded,
}

impl PlacedSlot {
    /// The slot of a unit in the queue's files.
    pub(super) fn of_unit(offset: i64, unit: &CqUnit) -> Self {
        Self {
            start: unit.physical_offset.unsigned_abs(),
            end: unit.physical_end().unsigned_abs(),
            message: SlotMessage::Intact(offset),
            tags_code: unit.tags_code,
        }
    }

    /// Returns the unit of its message; the one in the queue's files is `found`.
    fn unit(&self, found: &CqUnit) -> CqUnit {
        let len = (self.end - self.start) as i32;
        let physical_offset = self.start as i64;
        if matches!(self.message, SlotMessage::Intact(_)) {
            return CqUnit { physical_offset, size: len, tags_code: self.tags_code };
        }
        let is_inside = found.is_valid()
            && found.physical_offset == physical_offset
            && found.physical_end() <= self.end as i64;
        let size = if is_inside { found.size } else { MIN_RECORD_BYTES as i32 };
        CqUnit { physical_offset, size, tags_code: found.tags_code }
    }
}

/// The slots of a part of the log with their queue offsets.
#[derive(Debug)]
pub(super) struct WalkedPart {
    slots: Vec<PlacedSlot>,
    /// The queue offset of the first message.
    first: i64,
    /// The number of the slot of each message. Messages whose records are damaged can share a slot.
    by_offset: Vec<Option<u32>>,
}

impl WalkedPart {
    /// Finds the queue offsets of `slots`; the first one has `first`. Without an `end`, each damaged record at the end
    /// counts as one message. `unit` returns the unit of a queue offset.
    ///
    /// The queue offset of a record counts if it continues the record before, if the next record continues it, or if its
    /// unit leads to it. Records between two such offsets have those between them, whatever they say.
    pub(super) fn place(
        slots: &[LogSlot],
        first: i64,
        end: Option<i64>,
        mut unit: impl FnMut(i64) -> io::Result<Option<CqUnit>>,
    ) -> io::Result<Self> {
        let bytes = slots.first().zip(slots.last()).map_or(0, |(first, last)| last.end - first.start);
        let limit = first.saturating_add_unsigned(records_in(bytes));
        let mut by_offset = OffsetMap { first, slots: Vec::new(), unknown: VecDeque::new() };
        let (mut next, mut unknown_bytes) = (first, 0);
        for (number, slot) in slots.iter().enumerate() {
            let most = next.saturating_add_unsigned(records_in(unknown_bytes));
            let is_known = |offset: i64| {
                let following = slots.get(number + 1).and_then(LogSlot::offset);
                let is_continued = offset >= next && following == Some(offset + 1);
                let follows = (next..=most).contains(&offset) || is_continued;
                Ok::<_, io::Error>(follows || unit(offset)?.is_some_and(|unit| slot.is_at(&unit)))
            };
            let offset = slot.offset().filter(|offset| (first..limit).contains(offset));
            if let Some(offset) = offset
                && { is_known }(offset)?
            {
                by_offset.settle(next..offset);
                by_offset.set(offset, number as u32);
                (next, unknown_bytes) = (offset + 1, 0);
            } else {
                by_offset.unknown.push_back(number as u32);
                unknown_bytes += slot.end - slot.start;
            }
        }
        let end = end.unwrap_or(next + by_offset.unknown.len() as i64);
        by_offset.settle(next..end.min(limit));
        Ok(Self { slots: by_offset.messages(slots), first, by_offset: by_offset.slots })
    }

    /// Returns the queue offset after the last message.
    pub(super) fn end(&self) -> i64 {
        self.first + self.by_offset.len() as i64
    }

    pub(super) fn slot(&self, offset: i64) -> Option<&PlacedSlot> {
        let at = usize::try_from(offset.checked_sub(self.first)?).ok()?;
        self.slots.get((*self.by_offset.get(at)?)? as usize)
    }

    /// Returns the unit of a message; the one in the queue's files is `found`.
    pub(super) fn unit(&self, offset: i64, found: &CqUnit) -> Option<CqUnit> {
        self.slot(offset).map(|slot| slot.unit(found))
    }

    /// Returns the slots with a byte from one position to another one (exclusive).
    pub(super) fn between(&self, from: u64, to: u64) -> Vec<PlacedSlot> {
        let first = self.slots.partition_point(|slot| slot.end <= from);
        let after = self.slots.partition_point(|slot| slot.start < to);
        self.slots.get(first..after).unwrap_or_default().to_vec()
    }
}

/// Returns the maximum number of records in `bytes`.
pub(super) fn records_in(bytes: u64) -> u64 {
    bytes / MIN_RECORD_BYTES as u64
}

/// The slots by their queue offsets, while these are found.
struct OffsetMap {
    first: i64,
    slots: Vec<Option<u32>>,
    /// The slots since the last known queue offset.
    unknown: VecDeque<u32>,
}

impl OffsetMap {
    /// Gives `offsets` to the unknown slots.
    fn settle(&mut self, offsets: Range<i64>) {
        for offset in offsets {
            let Some(number) = self.unknown.front().copied() else { break };
            self.set(offset, number);
            if self.unknown.len() > 1 {
                self.unknown.pop_front();
            }
        }
        self.unknown.clear();
    }

    fn set(&mut self, offset: i64, slot: u32) {
        let at = (offset - self.first) as usize;
        if self.slots.len() <= at {
            self.slots.resize(at + 1, None);
        }
        if let Some(place) = self.slots.get_mut(at) {
            *place = Some(slot);
        }
    }

    fn messages(&self, slots: &[LogSlot]) -> Vec<PlacedSlot> {
        let mut messages = vec![SlotMessage::Superseded; slots.len()];
        for (offset, number) in (self.first..).zip(&self.slots) {
            let number = number.map_or(usize::MAX, |number| number as usize);
            if let Some((message, slot)) = messages.get_mut(number).zip(slots.get(number)) {
                let is_intact = slot.offset() == Some(offset);
                *message = if is_intact { SlotMessage::Intact(offset) } else { SlotMessage::Damaged };
            }
        }
        let placed = slots.iter().zip(messages);
        placed
            .map(|(slot, message)| PlacedSlot {
                start: slot.start,
                end: slot.end,
                message,
                tags_code: slot.record.map_or(0, |record| record.tags_code),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slots of 100 bytes; `None` is damaged.
    fn slots(offsets: &[Option<i64>]) -> Vec<LogSlot> {
        let record = |queue_offset| SlotRecord { queue_offset, tags_code: 0, stored_ms: 0, is_batch: false };
        let slot = |(number, offset): (u64, &Option<i64>)| LogSlot {
            start: number * 100,
            end: number * 100 + 100,
            record: offset.map(record),
        };
        (0..).zip(offsets).map(slot).collect()
    }

    /// Returns the number of the slot of each message, and the messages that are damaged.
    fn placed(
        offsets: &[Option<i64>],
        end: Option<i64>,
        units: &[(i64, u64)],
    ) -> (Vec<Option<u64>>, Vec<i64>) {
        let unit = |offset| {
            let found = units.iter().find(|(known, _)| *known == offset);
            Ok(found.map(|(_, slot)| CqUnit { physical_offset: *slot as i64 * 100, size: 100, tags_code: 0 }))
        };
        let walked = WalkedPart::place(&slots(offsets), 7, end, unit).unwrap();
        let numbers = (7..walked.end()).map(|offset| walked.slot(offset).map(|slot| slot.start / 100));
        let damaged = (7..walked.end()).filter(|offset| {
            walked.slot(*offset).is_some_and(|slot| slot.message != SlotMessage::Intact(*offset))
        });
        (numbers.collect(), damaged.collect())
    }

    #[test]
    fn a_damaged_record_has_the_offset_between_its_neighbours() {
        let some = |numbers: &[u64]| numbers.iter().copied().map(Some).collect::<Vec<_>>();
        for damaged in [None, Some(3), Some(8), Some(900), Some(i64::MAX), Some(-1)] {
            for at in 0..4 {
                let mut offsets = [Some(7), Some(8), Some(9), Some(10)];
                if offsets[at] == damaged {
                    continue;
                }
                offsets[at] = damaged;
                let wanted = (some(&[0, 1, 2, 3]), vec![7 + at as i64]);
                assert_eq!(placed(&offsets, Some(11), &[]), wanted, "{damaged:?} at {at}");
            }
        }
    }

    #[test]
    fn bytes_without_a_record_can_be_several_messages() {
        let (slots, damaged) = placed(&[Some(7), None, Some(9), None], Some(12), &[]);
        assert_eq!(slots, [Some(0), Some(1), Some(2), Some(3)]);
        assert_eq!(damaged, [8, 10]);
        let mut wide = slots_of_one_gap();
        wide.push(LogSlot { start: 500, end: 600, ..slots_with(10) });
        let walked = WalkedPart::place(&wide, 7, Some(11), |_| Ok(None)).unwrap();
        assert_eq!(walked.slot(8), walked.slot(9));
        assert!(walked.slot(10).is_some_and(|slot| slot.start == 500));
    }

    fn slots_with(offset: i64) -> LogSlot {
        slots(&[Some(offset)]).pop().unwrap()
    }

    fn slots_of_one_gap() -> Vec<LogSlot> {
        vec![slots_with(7), LogSlot { start: 100, end: 500, record: None }]
    }

    #[test]
    fn records_that_were_copied_again_count_once() {
        let twice = [Some(7), Some(8), Some(9), Some(8), Some(9), Some(10)];
        let (slots, damaged) = placed(&twice, Some(11), &[(8, 3), (9, 4), (10, 5)]);
        assert_eq!((slots, damaged), (vec![Some(0), Some(3), Some(4), Some(5)], vec![]));
        // Without units, the first copy counts.
        let (slots, damaged) = placed(&twice, Some(11), &[]);
        assert_eq!((slots, damaged), (vec![Some(0), Some(1), Some(2), Some(5)], vec![]));
    }
}
