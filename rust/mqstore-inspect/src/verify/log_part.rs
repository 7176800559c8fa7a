//! One part of the log: its records, and the findings of the comparison with the queues.
//!
//! Owns nothing on disk. One thread makes a part, from a log offset at which a record begins. [`super::parallel_walk`]
//! checks that the record before it ends there, and puts the parts in order. A part keeps only deviations, so that
//! its size does not grow with the correct records. A part can come from another process, through a file: see
//! [`crate::distributed`].

use std::sync::Arc;

use mqstore_format::{
    BatchCqUnit, CqUnit, DelayLevels, MIN_RECORD_BYTES, RecordOutline, SCHEDULE_TOPIC, ext_offset,
};
use serde::{Deserialize, Serialize};

use super::extension::Extensions;
use super::index_walk::KeyPart;
use super::misordered::MisorderedRange;
use crate::loss_report::LossReport;
use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;
use mqstore_log::commit_log::{ScanChecks, SegmentList, check_record, read_record};
use mqstore_log::consume_queue::{BatchQueue, ConsumeQueue, QueueSet};
use mqstore_log::dispatch::{DispatchRules, RunOutput};

/// Bytes of the first read for one record.
const RECORD_GUESS_BYTES: usize = 4096;

/// A smaller step back of the store times is a correction of the clock.
const CLOCK_STEP_MS: i64 = 1000;

/// Number of ranges of units to request from the disk after the range just read.
const PREFETCHED_RANGES: i64 = 4;

/// Bytes of the ranges of units of all queues of a part together, if the file system fetches what it reads: a request
/// should fetch the units for many parts, and they must stay in memory until then.
const EXPECTED_UNIT_BYTES: u64 = 8 << 20;

/// Maximum number of steps back of the store times that a part lists.
const STEPS_BACK: usize = 16;

/// Maximum number of records without a checksum that a part lists.
const UNSUMMED: usize = 1024;

/// The files and bounds of a check.
#[derive(Debug)]
pub(crate) struct View<'a> {
    pub files: &'a StoreFiles,
    pub list: Arc<SegmentList>,
    pub queues: QueueSet,
    pub rules: DispatchRules,
    /// Gaps that an earlier repair already reported.
    pub repairs: LossReport,
    /// The extension files, if any: a unit may contain an extension address instead of a tags' hash.
    pub(crate) extensions: Option<Extensions>,
    /// Log offset at which the check ends: the writer has not published records from here on.
    pub limit: u64,
    /// See `VerifyBounds`.
    pub dispatched: u64,
}

/// The contents of the records from one log offset to another.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct PartFindings {
    /// Log offset of the first record; `None` if no record begins in the part.
    pub first: Option<u64>,
    /// Log offset after the last record.
    pub end: u64,
    pub messages: u64,
    pub bytes: u64,
    pub times: StoreTimeOrder,
    pub checksums: ChecksumOrder,
    /// Units and entries that the records require in the derived files.
    #[serde(skip)]
    pub output: RunOutput,
    pub queues: Vec<QueuePart>,
    pub keys: KeyPart,
}

/// The order of the store times.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct StoreTimeOrder {
    pub first: Option<i64>,
    pub last: i64,
    /// Steps back: log offset of the record, its time, and the time of the record before it.
    pub back: Vec<(u64, i64, i64)>,
}

/// Whether a record has a checksum of its own, and which program wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Summed {
    own: bool,
    /// The store host, followed by zeros.
    writer: [u8; 20],
    stored_ms: i64,
}

impl Summed {
    #[inline]
    fn of(record: &RecordOutline<'_>, own: bool) -> Self {
        let mut writer = [0; 20];
        writer.iter_mut().zip(record.store_host_bytes()).for_each(|(to, from)| *to = *from);
        Self { own, writer, stored_ms: record.store_timestamp }
    }

    /// Whether `self` has a checksum, and the same program wrote `other` without one. The damage may have flipped a bit
    /// of the store host.
    fn misses(self, other: Self) -> bool {
        let pairs = self.writer.iter().zip(&other.writer);
        self.own && !other.own && pairs.map(|(one, two)| (one ^ two).count_ones()).sum::<u32>() <= 1
    }
}

/// The records without a checksum of their own between two records of the same program that have one. A program adds
/// checksums to all records or to none, so such a record probably lost its checksum by damage.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct ChecksumOrder {
    /// The first record, at this log offset.
    first: Option<(u64, Summed)>,
    second: Option<Summed>,
    last: Option<Summed>,
    /// The last record, if it lacks the checksum that the record before it has.
    open: Option<(u64, Summed)>,
    /// Log offsets of the records that have none, although the records before and after have one.
    pub(super) found: Vec<u64>,
}

/// The findings of a part about one queue.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct QueuePart {
    pub topic: Box<str>,
    pub queue_id: i32,
    /// Queue offsets of the records, in log order.
    pub rows: Vec<MisorderedRange>,
    /// Number of units that point to the record of their offset.
    pub matched: i64,
    /// Records without a unit, also after the end of the queue.
    pub absent: Vec<MissingUnits>,
    /// Units that differ from the record of their offset.
    pub wrong: Vec<(i64, String)>,
    /// Units with a missing or wrong unit in the extension.
    pub extension: Vec<(i64, String)>,
    /// Number of findings of both kinds that exceed the limit of the lists.
    pub more: u64,
}

/// Neighbouring offsets of a queue that have records and no units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MissingUnits {
    pub from: i64,
    /// The offset after the last one.
    pub to: i64,
    /// Log offset of the record of the first one.
    pub physical: i64,
}

impl MissingUnits {
    /// Joins `next` to the last item of `ranges` if it follows directly; otherwise returns it.
    pub(super) fn join(ranges: &mut [Self], next: Self) -> Option<Self> {
        match ranges.last_mut() {
            Some(last) if last.to == next.from => {
                last.to = next.to;
                None
            }
            _ => Some(next),
        }
    }
}

impl StoreTimeOrder {
    pub(super) fn add(&mut self, offset: u64, time: i64) {
        if self.first.is_none() {
            self.first = Some(time);
        } else if time < self.last.saturating_sub(CLOCK_STEP_MS) && self.back.len() < STEPS_BACK {
            self.back.push((offset, time, self.last));
        }
        self.last = time;
    }
}

impl ChecksumOrder {
    pub(super) fn add(&mut self, offset: u64, summed: Summed) {
        match (self.first, self.second) {
            (None, _) => self.first = Some((offset, summed)),
            (Some(_), None) => self.second = Some(summed),
            _ => {}
        }
        self.follow(summed);
        if let Some(last) = self.last.filter(|last| last.misses(summed)) {
            // The time of the record before it: its own can be damaged.
            self.open = Some((offset, Summed { stored_ms: last.stored_ms, ..summed }));
        }
        self.last = Some(summed);
    }

    /// Adds the records of the next part.
    pub(super) fn join(&mut self, part: &Self) {
        let Some((offset, summed)) = part.first else { return };
        self.add(offset, summed);
        let Some(second) = part.second else { return };
        self.follow(second);
        self.found.extend(&part.found);
        (self.last, self.open) = (part.last, part.open);
    }

    /// Decides about the last record: `next` is the record after it.
    fn follow(&mut self, next: Summed) {
        // A broker with the same host may have written the record, but then its neighbours are further apart.
        let is_soon = |open: &Summed| next.stored_ms.abs_diff(open.stored_ms) <= CLOCK_STEP_MS.unsigned_abs();
        let is_missing = |open: &Summed| next.misses(*open) && is_soon(open);
        let open = self.open.take().filter(|(_, open)| is_missing(open) && self.found.len() < UNSUMMED);
        self.found.extend(open.map(|(offset, _)| offset));
    }
}

impl PartFindings {
    /// Clears the part for reuse.
    pub(super) fn begin(&mut self, start: u64) {
        self.output.begin();
        (self.first, self.end) = (None, start);
        (self.messages, self.bytes) = (0, 0);
        self.times = StoreTimeOrder::default();
        self.checksums = ChecksumOrder::default();
        self.queues.clear();
        self.keys = KeyPart::default();
    }

    /// Whether these numbers are possible for records that begin at `start` or after it.
    pub(crate) fn is_sound(&self, start: u64) -> bool {
        let first = self.first.unwrap_or(self.end);
        let space = self.end.saturating_sub(first);
        first >= start
            && first <= self.end
            && self.messages <= space / MIN_RECORD_BYTES as u64
            && self.bytes <= space
            && self.queues.iter().all(|queue| queue.is_sound(space))
    }

    /// Adds the record at log offset `offset`; `own_crc` says whether it has a checksum of its own.
    #[inline]
    pub(super) fn add(
        &mut self,
        rules: &DispatchRules,
        record: &RecordOutline<'_>,
        offset: u64,
        own_crc: bool,
    ) {
        if record.is_placeholder() {
            return;
        }
        self.messages += 1;
        self.bytes += u64::from(record.size);
        self.times.add(offset, record.store_timestamp);
        self.checksums.add(offset, Summed::of(record, own_crc));
        self.output.add(rules, record, offset);
    }

    /// Compares the added records with the units of the queues.
    pub(super) fn compare(&mut self, view: &View<'_>) -> Result<(), StoreError> {
        let share = EXPECTED_UNIT_BYTES / self.output.queues().count().max(1) as u64;
        let range_bytes = view.files.vfs.best_read_bytes().map(|best| share.min(best));
        for (topic, run) in self.output.queues() {
            let queue_id = run.queue_id();
            let mut found = QueuePart { topic: topic.into(), queue_id, ..QueuePart::default() };
            let queue = view.queues.get(topic, queue_id);
            for (offset, units) in run.ranges() {
                found.rows.extend(MisorderedRange::of_units(offset, units));
                let units = dispatched(view, units, |unit| unit.physical_offset);
                match &queue {
                    Some(queue) => found.compare(view, queue, (offset, units), range_bytes)?,
                    None => found.add_missing_units(offset, units),
                }
            }
            self.queues.push(found);
        }
        for (topic, queue_id, units) in self.output.batches() {
            let mut found = QueuePart { topic: topic.into(), queue_id, ..QueuePart::default() };
            found.rows.extend(units.iter().map(MisorderedRange::of_batch));
            let units = dispatched(view, units, |unit| unit.physical_offset);
            match view.queues.batch(topic, queue_id) {
                Some(queue) => found.compare_batches(view, &queue, units)?,
                None => {
                    for unit in units {
                        found.add_missing_units(unit.base_offset, &[plain(unit)]);
                    }
                }
            }
            self.queues.push(found);
        }
        Ok(())
    }
}

impl QueuePart {
    /// Whether these numbers are possible for records in `space` bytes.
    fn is_sound(&self, space: u64) -> bool {
        let is_range = |from: i64, to: i64| (0..=to).contains(&from);
        let counts = |records: i64| u64::try_from(records).is_ok_and(|records| records <= space);
        self.queue_id >= 0
            && self.matched >= 0
            && self.rows.iter().all(|range| is_range(range.from, range.to) && counts(range.records))
            && self.absent.iter().all(|absent| is_range(absent.from, absent.to))
    }

    /// Drops the findings that exceed `findings_left`, the number of findings that can still be listed.
    pub(crate) fn trim(&mut self, findings_left: &mut usize) {
        // The first missing units may join the last ones of another part.
        *findings_left = findings_left.saturating_sub(self.absent.len().saturating_sub(1));
        for list in [&mut self.wrong, &mut self.extension] {
            let kept = list.len().min(*findings_left);
            self.more += (list.len() - kept) as u64;
            list.truncate(kept);
            *findings_left -= kept;
        }
    }

    /// Adds `units` as missing; the first record has the queue offset `from`.
    fn add_missing_units(&mut self, from: i64, units: &[CqUnit]) {
        let Some(first) = units.first() else { return };
        let to = from.saturating_add(units.len() as i64);
        let next = MissingUnits { from, to, physical: first.physical_offset };
        if let Some(next) = MissingUnits::join(&mut self.absent, next) {
            self.absent.push(next);
        }
    }

    /// Compares the queue's units from offset `from` on with `units`, which the records require. Then requests the next
    /// units; if the file system fetches what it reads, in ranges of `range_bytes`.
    fn compare(
        &mut self,
        view: &View<'_>,
        queue: &ConsumeQueue,
        (from, units): (i64, &[CqUnit]),
        range_bytes: Option<u64>,
    ) -> Result<(), StoreError> {
        let below = queue.min_offset().saturating_sub(from).clamp(0, units.len() as i64) as usize;
        let inside = queue.max_offset().saturating_sub(from).clamp(0, units.len() as i64) as usize;
        let (front, rest) = units.split_at(below);
        let (middle, behind) = rest.split_at(inside.saturating_sub(below));
        self.add_missing_units(from, front);
        let mut entries = middle.iter();
        let begin = from + below as i64;
        let ahead = PREFETCHED_RANGES * middle.len() as i64;
        if !middle.is_empty() {
            if let Some(bytes) = range_bytes {
                queue.prefetch_range(begin, bytes);
                queue.prefetch_range(begin + ahead, bytes);
            }
            let mut differ = Vec::new();
            let mut extended = Vec::new();
            let read = queue.read_each(begin, middle.len(), |offset, entry| match entries.next() {
                Some(unit) if entry == *unit => self.matched += 1,
                Some(unit) if agree(view, &entry, unit) => {
                    self.matched += 1;
                    extended.push((offset, entry.tags_code, unit.tags_code));
                }
                Some(unit) => differ.push((offset, entry, *unit)),
                None => {}
            });
            for (offset, entry, unit) in differ {
                self.differ(view, offset, entry, unit)?;
            }
            self.look_at_extension(view, &extended);
            unless_corrupt(read)?;
            if range_bytes.is_none() {
                queue.prefetch(begin + middle.len() as i64, ahead);
            }
            let rest = entries.as_slice();
            self.add_missing_units(begin + (middle.len() - rest.len()) as i64, rest);
        }
        self.add_missing_units(begin + middle.len() as i64, behind);
        Ok(())
    }

    /// Checks the extension units of `entries`: queue offset, extension address, expected tags' hash.
    fn look_at_extension(&mut self, view: &View<'_>, entries: &[(i64, i64, i64)]) {
        let Some(extensions) = &view.extensions else { return };
        for (offset, address, tags_code) in entries {
            let Some(place) = ext_offset(*address) else { continue };
            if let Some(problem) = extensions.problem(&self.topic, self.queue_id, place, *tags_code) {
                self.extension.push((*offset, format!("offset {offset}: {problem}")));
            }
        }
    }

    /// Records that the queue has `entry` at `offset`, where the record requires `unit`.
    fn differ(
        &mut self,
        view: &View<'_>,
        offset: i64,
        entry: CqUnit,
        unit: CqUnit,
    ) -> Result<(), StoreError> {
        if entry.is_blank() || entry.size == 0 {
            self.add_missing_units(offset, &[unit]);
            return Ok(());
        }
        if *self.topic == *SCHEDULE_TOPIC && is_due_by_another_table(view, self.queue_id, &entry, &unit) {
            self.matched += 1;
            return Ok(());
        }
        // If two records have the same offset, the first one keeps it.
        let earlier = entry.physical_offset < unit.physical_offset;
        if earlier && leads_to(view, (&self.topic, self.queue_id), offset, entry)? {
            return Ok(());
        }
        self.wrong.push((offset, differs(offset, &entry, &unit)));
        Ok(())
    }

    fn compare_batches(
        &mut self,
        view: &View<'_>,
        queue: &BatchQueue,
        units: &[BatchCqUnit],
    ) -> Result<(), StoreError> {
        let mut entries = Vec::new();
        for run in units.chunk_by(|left, right| left.next_offset() == right.base_offset) {
            let Some(first) = run.first() else { continue };
            entries.clear();
            let read = queue.read_units(first.base_offset, run.len(), u64::MAX, |entry| entries.push(*entry));
            unless_corrupt(read)?;
            let mut entries = entries.iter().peekable();
            for unit in run {
                let offset = unit.base_offset;
                while entries.next_if(|entry| entry.base_offset < offset).is_some() {}
                match entries.next_if(|entry| entry.base_offset == offset) {
                    Some(entry) if !agree(view, &plain(entry), &plain(unit)) => {
                        self.differ(view, offset, plain(entry), plain(unit))?;
                    }
                    Some(entry) => match differs_beyond(entry, unit) {
                        Some(detail) => self.wrong.push((offset, detail)),
                        None => self.matched += 1,
                    },
                    None => self.add_missing_units(offset, &[plain(unit)]),
                }
            }
        }
        Ok(())
    }
}

/// Returns those of `units`, which are in log order, whose records the writer has dispatched for certain. The slots of
/// the others may be empty or half written.
fn dispatched<'a, U>(view: &View<'_>, units: &'a [U], physical_offset: impl Fn(&U) -> i64) -> &'a [U] {
    let end = units.partition_point(|unit| (physical_offset(unit) as u64) < view.dispatched);
    units.get(..end).unwrap_or_default()
}

/// Compares the fields that only batch queues have. Returns the difference between a unit and the expected one.
fn differs_beyond(entry: &BatchCqUnit, unit: &BatchCqUnit) -> Option<String> {
    let offset = unit.base_offset;
    if entry.store_timestamp != unit.store_timestamp {
        let (found, wanted) = (entry.store_timestamp, unit.store_timestamp);
        return Some(format!("offset {offset} has the store time {found}; its record has {wanted}"));
    }
    let fields = |unit: &BatchCqUnit| (unit.batch_size, unit.compacted_offset, unit.reserved);
    (fields(entry) != fields(unit))
        .then(|| format!("offset {offset} has a unit with other fields than its record requires"))
}

/// The fields of a batch unit that a plain unit has too.
fn plain(unit: &BatchCqUnit) -> CqUnit {
    CqUnit { physical_offset: unit.physical_offset, size: unit.size, tags_code: unit.tags_code }
}

/// Whether a unit matches the expected one. It may contain an address in `consumequeue_ext/` instead of the tags' hash.
fn agree(view: &View<'_>, entry: &CqUnit, unit: &CqUnit) -> bool {
    entry == unit
        || (view.extensions.is_some()
            && ext_offset(entry.tags_code).is_some()
            && (entry.physical_offset, entry.size) == (unit.physical_offset, unit.size))
}

/// Whether a delayed message's unit has the due time of another table of delay levels than the known one. A broker
/// does not record the table that it used.
fn is_due_by_another_table(view: &View<'_>, queue_id: i32, entry: &CqUnit, unit: &CqUnit) -> bool {
    let levels = view.rules.delays.at(unit.physical_offset as u64);
    let stored = unit.tags_code.saturating_sub(levels.delivery_time(queue_id.saturating_add(1), 0));
    (entry.physical_offset, entry.size) == (unit.physical_offset, unit.size)
        && DelayLevels::is_delivery_time(entry.tags_code, stored)
}

/// Describes for people how a unit differs from the expected one.
fn differs(offset: i64, entry: &CqUnit, unit: &CqUnit) -> String {
    if (entry.physical_offset, entry.size) == (unit.physical_offset, unit.size) {
        let (found, wanted) = (entry.tags_code, unit.tags_code);
        return format!("offset {offset} has the tags' hash {found}; its record has {wanted}");
    }
    format!("offset {offset} leads to {}; its record is at {}", describe_target(entry), describe_target(unit))
}

/// Describes the place that a unit points to.
pub(super) fn describe_target(unit: &CqUnit) -> String {
    format!("log offset {} ({} bytes)", unit.physical_offset, unit.size)
}

/// Whether the unit `entry` points to a record that has `offset` in that queue.
pub(super) fn leads_to(
    view: &View<'_>,
    (topic, queue_id): (&str, i32),
    offset: i64,
    entry: CqUnit,
) -> Result<bool, StoreError> {
    let Ok(place) = u64::try_from(entry.physical_offset) else { return Ok(false) };
    let size = usize::try_from(entry.size).unwrap_or(0).min(RECORD_GUESS_BYTES);
    let Some(bytes) = unless_corrupt(read_record(view.files, &view.list, place, size))? else {
        return Ok(false);
    };
    let Ok(record) = check_record(bytes.as_slice(), place, ScanChecks { crc: true }) else {
        return Ok(false);
    };
    let mut output = RunOutput::default();
    output.add(&view.rules, &record.outline(), place);
    let queued =
        output.queues().filter(|(name, run)| *name == topic && run.queue_id() == queue_id).any(|(_, run)| {
            run.ranges().any(|(from, units)| {
                from == offset && units.first().is_some_and(|unit| agree(view, &entry, unit))
            })
        });
    let batched = output.batches().any(|(name, id, units)| {
        (name, id) == (topic, queue_id)
            && units.iter().any(|unit| unit.base_offset == offset && agree(view, &entry, &plain(unit)))
    });
    Ok(queued || batched)
}

/// Returns `None` for damaged bytes: another check reports the effect of the damage.
fn unless_corrupt<T>(outcome: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error @ StoreError::Io { .. }) => Err(error),
        Err(_) => Ok(None),
    }
}
