//! What the limits of a topic demand of its messages before the log.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::topic_floors::FloorTable;
use mqstore_engine::{OlderFloor, OlderLimits};

use super::{History, overlaps};
use crate::manifest::ArchivedFile;
use crate::reader::Fact;

/// An offset of each queue.
type Offsets = BTreeMap<i32, i64>;

/// The ranges of each queue whose segments neither the archive nor the log has: first offset and end.
type Gaps = BTreeMap<i32, Vec<(i64, i64)>>;

impl History {
    /// Returns the log offset before which the messages of a topic exceed limits, and their number; `None` if none do.
    /// The messages at and after log offset `log_start` do not count; `lows` are the offsets of their queues there.
    ///
    /// # Errors
    /// The archive is damaged or does not answer.
    pub(super) fn floor_of_limits(
        &self,
        floors: &FloorTable,
        topic: &str,
        log_start: u64,
        lows: &Offsets,
        limits: OlderLimits,
    ) -> Result<Option<OlderFloor>, StoreError> {
        let floor = floors.log_offset(topic);
        let log_range = floor..log_start;
        let mut files = self.reader.files(topic)?;
        files.retain(|file| overlaps(file, &log_range));
        let mut gaps = Gaps::new();
        for (queue_id, low) in lows {
            gaps.insert(*queue_id, self.gaps(topic, *queue_id, *low, log_start)?);
        }
        let firsts = |least: u64| self.firsts(floors, topic, lows, least);
        let messages = count(lows, &firsts(floor)?, &gaps);
        let Some(oldest) = files.first().filter(|_| messages > 0) else { return Ok(None) };
        let mut bytes = 0;
        for file in files.iter().filter(|_| limits.max_bytes.is_some()) {
            bytes += self.bytes_between(file, &log_range)?;
        }
        if !are_exceeded(limits, oldest, bytes, messages) {
            return Ok(None);
        }
        let (mut due_to, mut left) = (log_start, messages);
        for file in &files {
            let after = firsts(file.end)?;
            let own = if limits.max_bytes.is_some() { self.bytes_between(file, &log_range)? } else { 0 };
            let rest = count(lows, &after, &gaps);
            if !is_all_due(limits, file, bytes - own, rest) {
                let facts = self.counted(file, &log_range, &ends_before(&after, &gaps))?;
                let due = due_rows(limits, &facts, bytes, left);
                if let Some((fact, _)) = facts.get(due) {
                    due_to = fact.log_offset;
                    break;
                }
            }
            (bytes, left) = (bytes - own, rest);
        }
        let hidden = messages - count(lows, &firsts(due_to)?, &gaps);
        Ok((hidden > 0).then_some(OlderFloor { log_offset: due_to, messages: hidden }))
    }

    /// Returns the first offset of each queue at or after a log offset; `lows` are those after the archive.
    fn firsts(
        &self,
        floors: &FloorTable,
        topic: &str,
        lows: &Offsets,
        least: u64,
    ) -> Result<Offsets, StoreError> {
        let first = |(queue_id, low): (&i32, &i64)| {
            let found = self.first_from(floors, topic, *queue_id, least)?;
            Ok((*queue_id, found.map_or(*low, |first| first.min(*low))))
        };
        lows.iter().map(first).collect()
    }

    /// Returns the gaps of a queue, which has the offset `low` at the start of the log.
    fn gaps(
        &self,
        topic: &str,
        queue_id: i32,
        low: i64,
        log_start: u64,
    ) -> Result<Vec<(i64, i64)>, StoreError> {
        let parts = self.reader.parts(topic, queue_id)?;
        let next =
            parts.iter().skip(1).map(|part| (part.rows.first, part.file.start)).chain([(low, log_start)]);
        let mut found = Vec::new();
        for (part, (offset, start)) in parts.iter().zip(next) {
            if part.rows.last + 1 < offset && !self.reader.covers(part.file.end, start)? {
                found.push((part.rows.last + 1, offset));
            }
        }
        Ok(found)
    }

    /// Returns the bytes of the records of a file between two log offsets.
    fn bytes_between(&self, file: &Arc<ArchivedFile>, log_range: &Range<u64>) -> Result<u64, StoreError> {
        if log_range.start <= file.start && file.end <= log_range.end {
            return Ok(file.record_bytes);
        }
        Ok(self.reader.facts(file, log_range)?.iter().map(|fact| fact.bytes).sum())
    }

    /// Returns the messages of a file in the order of the log, with the number of offsets of each. `after` are the
    /// offsets of the queues after the file.
    fn counted(
        &self,
        file: &Arc<ArchivedFile>,
        log_range: &Range<u64>,
        after: &Offsets,
    ) -> Result<Vec<(Fact, u64)>, StoreError> {
        let mut facts = self.reader.facts(file, log_range)?;
        facts.sort_by_key(|fact| (fact.queue_id, fact.queue_offset));
        let next = facts.iter().skip(1).map(Some).chain([None]);
        let mut found: Vec<(Fact, u64)> = facts
            .iter()
            .zip(next)
            .map(|(fact, next)| {
                let next = next.filter(|next| next.queue_id == fact.queue_id).map(|next| next.queue_offset);
                let end =
                    next.or_else(|| after.get(&fact.queue_id).copied()).unwrap_or(fact.queue_offset + 1);
                (*fact, u64::try_from(end - fact.queue_offset).unwrap_or(0))
            })
            .collect();
        found.sort_by_key(|(fact, _)| fact.log_offset);
        Ok(found)
    }
}

/// Whether a message can be due, if the oldest file and this number of bytes and messages are there.
fn are_exceeded(limits: OlderLimits, oldest: &ArchivedFile, bytes: u64, messages: u64) -> bool {
    limits.since_ms.is_some_and(|since| oldest.first_ms.is_none_or(|first| first < since))
        || limits.max_bytes.is_some_and(|most| bytes > most)
        || limits.max_messages.is_some_and(|most| messages > most)
}

/// Whether all messages of a file exceed limits, if this number of bytes and messages are after it.
fn is_all_due(limits: OlderLimits, file: &ArchivedFile, bytes: u64, messages: u64) -> bool {
    limits.since_ms.is_some_and(|since| file.last_ms.is_some_and(|last| last < since))
        || limits.max_bytes.is_some_and(|most| bytes >= most)
        || limits.max_messages.is_some_and(|most| messages >= most)
}

/// Returns the number of messages, oldest first, that are due; `bytes` and `messages` include them.
fn due_rows(limits: OlderLimits, facts: &[(Fact, u64)], bytes: u64, messages: u64) -> usize {
    let mut due = match limits.since_ms {
        Some(since) => facts.iter().position(|(fact, _)| fact.store_ms >= since).unwrap_or(facts.len()),
        None => 0,
    };
    let mut over = |held: u64, most: Option<u64>, of: fn(&(Fact, u64)) -> u64| {
        let Some(excess) = most.and_then(|most| held.checked_sub(most)).filter(|excess| *excess > 0) else {
            return;
        };
        let mut before = 0;
        let passed = facts.iter().take_while(|fact| {
            before += of(fact);
            before < excess
        });
        due = due.max((passed.count() + 1).min(facts.len()));
    };
    over(bytes, limits.max_bytes, |(fact, _)| fact.bytes);
    over(messages, limits.max_messages, |(_, count)| *count);
    due
}

/// Returns the number of messages of queues between two offsets, without those in gaps.
fn count(lows: &Offsets, firsts: &Offsets, gaps: &Gaps) -> u64 {
    let of_queue = |(queue_id, low): (&i32, &i64)| {
        let first = firsts.get(queue_id).unwrap_or(low);
        let lost = gaps.get(queue_id).into_iter().flatten();
        let lost: i64 = lost.map(|(start, end)| (end.min(low) - start.max(first)).max(0)).sum();
        low - first - lost
    };
    let total: i64 = lows.iter().map(of_queue).sum();
    u64::try_from(total).unwrap_or(0)
}

/// Returns the ends of the messages before these offsets: the starts of the gaps that end there.
fn ends_before(firsts: &Offsets, gaps: &Gaps) -> Offsets {
    let before = |(queue_id, at): (&i32, &i64)| {
        let gap = gaps.get(queue_id).into_iter().flatten().find(|(_, end)| end == at);
        (*queue_id, gap.map_or(*at, |(start, _)| *start))
    };
    firsts.iter().map(before).collect()
}
