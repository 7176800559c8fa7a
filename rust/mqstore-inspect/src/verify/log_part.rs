//! What one part of the log says, and what the queues answer to it.
//!
//! Owns nothing on disk. A part is made by one thread, from a place where a record begins; whether the
//! record before it ends there is for [`super::parallel_walk`] to say, which puts parts in order. A part keeps what differs,
//! so that its size does not depend on how much is right. It may come from another process, by way of a file: see
//! [`crate::distributed`].

use std::sync::Arc;

use mqstore_format::{
    BatchCqUnit, CqUnit, DelayLevels, MIN_RECORD_BYTES, RecordOutline, SCHEDULE_TOPIC, ext_offset,
};
use serde::{Deserialize, Serialize};

use super::index_walk::KeyPart;
use super::queue_extension::Extensions;
use crate::repair::log::{LossReport, Stretch};
use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;
use mqstore_log::commit_log::{ScanChecks, SegmentList, check_record, read_record};
use mqstore_log::consume_queue::{BatchQueue, ConsumeQueue, QueueSet};
use mqstore_log::dispatch::{DispatchRules, RunOutput};

/// Bytes that are read at first to look at one record.
const RECORD_GUESS_BYTES: usize = 4096;

/// A step back of the store times below this is the work of a clock that was set right.
const CLOCK_STEP_MS: i64 = 1000;

/// How many rows of entries the disk is asked for behind one that was read.
const EXPECTED_ROWS: i64 = 4;

/// Steps back of the store times that a part tells one by one.
const STEPS_BACK: usize = 16;

/// What is checked, and against what.
#[derive(Debug)]
pub(crate) struct View<'a> {
    pub files: &'a StoreFiles,
    pub list: Arc<SegmentList>,
    pub queues: QueueSet,
    pub rules: DispatchRules,
    /// Gaps that a repair has told already.
    pub repairs: LossReport,
    /// The extension files, if there are some: entries may name a place in them instead of a tags' hash.
    pub(crate) extensions: Option<Extensions>,
    /// Nothing from here on counts: a running writer has not published it.
    pub limit: u64,
    /// Beyond this a running writer has not dispatched yet.
    pub dispatched: u64,
}

/// What the records from one place of the log to another say.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Part {
    /// Where the first record begins; `None` when none does.
    pub first: Option<u64>,
    /// Where the next one would.
    pub end: u64,
    pub messages: u64,
    pub bytes: u64,
    pub times: StoreTimeOrder,
    /// What the records contribute to the derived files.
    #[serde(skip)]
    pub output: RunOutput,
    pub queues: Vec<QueuePart>,
    pub keys: KeyPart,
}

/// Whether store times only grow.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct StoreTimeOrder {
    pub first: Option<i64>,
    pub last: i64,
    /// Steps back: log offset of the record, its time, and the time before it.
    pub back: Vec<(u64, i64, i64)>,
}

/// What a part says of one queue.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct QueuePart {
    pub topic: Box<str>,
    pub queue_id: i32,
    /// Queue offsets that the records take, in log order.
    pub rows: Vec<Stretch>,
    /// Entries that lead to the record with their offset.
    pub matched: i64,
    /// Records for which the queue has no entry; beyond its end too.
    pub absent: Vec<MissingUnits>,
    /// Entries that say something else than the record with their offset.
    pub wrong: Vec<(i64, String)>,
    /// Entries that lead to nothing good in the extension.
    pub extension: Vec<(i64, String)>,
    /// How many more of both were found, behind so many others that nobody tells them one by one.
    pub more: u64,
}

/// Neighbouring offsets of a queue that have records and no entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MissingUnits {
    pub from: i64,
    /// One past the last.
    pub to: i64,
    /// Where the record of the first lies in the log.
    pub physical: i64,
}

impl MissingUnits {
    /// Adds `next` to the last of `row` if it follows that; answers it if not.
    pub(super) fn join(row: &mut [Self], next: Self) -> Option<Self> {
        match row.last_mut() {
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

impl Part {
    /// Forgets everything, for another part.
    pub(super) fn begin(&mut self, start: u64) {
        self.output.begin();
        (self.first, self.end) = (None, start);
        (self.messages, self.bytes) = (0, 0);
        self.times = StoreTimeOrder::default();
        self.queues.clear();
        self.keys = KeyPart::default();
    }

    /// Whether these can be the numbers of records that begin at `start` or behind it.
    pub(crate) fn is_sound(&self, start: u64) -> bool {
        let first = self.first.unwrap_or(self.end);
        let room = self.end.saturating_sub(first);
        first >= start
            && first <= self.end
            && self.messages <= room / MIN_RECORD_BYTES as u64
            && self.bytes <= room
            && self.queues.iter().all(|queue| queue.is_sound(room))
    }

    /// Adds a record that lies at log offset `offset`.
    #[inline]
    pub(super) fn add(&mut self, rules: &DispatchRules, record: &RecordOutline<'_>, offset: u64) {
        if record.is_placeholder() {
            return;
        }
        self.messages += 1;
        self.bytes += u64::from(record.size);
        self.times.add(offset, record.store_timestamp);
        self.output.add(rules, record, offset);
    }

    /// Compares what was added with the entries of the queues.
    pub(super) fn compare(&mut self, view: &View<'_>) -> Result<(), StoreError> {
        for (topic, run) in self.output.queues() {
            let queue_id = run.queue_id();
            let mut found = QueuePart { topic: topic.into(), queue_id, ..QueuePart::default() };
            let queue = view.queues.get(topic, queue_id);
            for (offset, units) in run.rows() {
                found.rows.extend(Stretch::of_row(offset, units));
                match &queue {
                    Some(queue) => found.compare(view, queue, offset, units)?,
                    None => found.add_missing_units(view, offset, units),
                }
            }
            self.queues.push(found);
        }
        for (topic, queue_id, units) in self.output.batches() {
            let mut found = QueuePart { topic: topic.into(), queue_id, ..QueuePart::default() };
            found.rows.extend(units.iter().map(Stretch::of_batch));
            match view.queues.batch(topic, queue_id) {
                Some(queue) => found.compare_batches(view, &queue, units)?,
                None => units
                    .iter()
                    .for_each(|unit| found.add_missing_units(view, unit.base_offset, &[plain(unit)])),
            }
            self.queues.push(found);
        }
        Ok(())
    }
}

impl QueuePart {
    /// Whether the records in `room` bytes can say this.
    fn is_sound(&self, room: u64) -> bool {
        let is_row = |from: i64, to: i64| (0..=to).contains(&from);
        let counts = |records: i64| u64::try_from(records).is_ok_and(|records| records <= room);
        self.queue_id >= 0
            && self.matched >= 0
            && self.rows.iter().all(|row| is_row(row.from, row.to) && counts(row.records))
            && self.absent.iter().all(|absent| is_row(absent.from, absent.to))
    }

    /// Leaves out what nobody tells one by one, where there is `room` for so many findings still, at most.
    pub(crate) fn trim(&mut self, room: &mut usize) {
        // The first absent ones may belong to the last of another part.
        *room = room.saturating_sub(self.absent.len().saturating_sub(1));
        for list in [&mut self.wrong, &mut self.extension] {
            let kept = list.len().min(*room);
            self.more += (list.len() - kept) as u64;
            list.truncate(kept);
            *room -= kept;
        }
    }

    /// `units` of records whose queue offsets begin with `from` have no entry.
    fn add_missing_units(&mut self, view: &View<'_>, from: i64, units: &[CqUnit]) {
        // Log order: who has not been dispatched yet stands last.
        let dispatched = units.partition_point(|unit| (unit.physical_offset as u64) < view.dispatched);
        let Some(first) = units.first().filter(|_| dispatched > 0) else { return };
        let to = from.saturating_add(dispatched as i64);
        let next = MissingUnits { from, to, physical: first.physical_offset };
        if let Some(next) = MissingUnits::join(&mut self.absent, next) {
            self.absent.push(next);
        }
    }

    /// Compares the entries from offset `from` on with `units`, those of the records.
    fn compare(
        &mut self,
        view: &View<'_>,
        queue: &ConsumeQueue,
        from: i64,
        units: &[CqUnit],
    ) -> Result<(), StoreError> {
        let below = queue.min_offset().saturating_sub(from).clamp(0, units.len() as i64) as usize;
        let inside = queue.max_offset().saturating_sub(from).clamp(0, units.len() as i64) as usize;
        let (front, rest) = units.split_at(below);
        let (middle, behind) = rest.split_at(inside.saturating_sub(below));
        self.add_missing_units(view, from, front);
        let mut entries = middle.iter();
        let begin = from + below as i64;
        if !middle.is_empty() {
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
            queue.expect(begin + middle.len() as i64, EXPECTED_ROWS * middle.len() as i64);
            let rest = entries.as_slice();
            self.add_missing_units(view, begin + (middle.len() - rest.len()) as i64, rest);
        }
        self.add_missing_units(view, begin + middle.len() as i64, behind);
        Ok(())
    }

    /// Looks up what entries name instead of a tags' hash: offset, address, the hash that should stand there.
    fn look_at_extension(&mut self, view: &View<'_>, entries: &[(i64, i64, i64)]) {
        let Some(extensions) = &view.extensions else { return };
        for (offset, address, tags_code) in entries {
            let Some(place) = ext_offset(*address) else { continue };
            if let Some(problem) = extensions.problem(&self.topic, self.queue_id, place, *tags_code) {
                self.extension.push((*offset, format!("offset {offset}: {problem}")));
            }
        }
    }

    /// The entry at `offset` is not `unit`, that of a record which says that it stands there.
    fn differ(
        &mut self,
        view: &View<'_>,
        offset: i64,
        entry: CqUnit,
        unit: CqUnit,
    ) -> Result<(), StoreError> {
        if entry.is_blank() || entry.size == 0 {
            self.add_missing_units(view, offset, &[unit]);
            return Ok(());
        }
        if *self.topic == *SCHEDULE_TOPIC && is_due_by_another_table(view, self.queue_id, &entry, &unit) {
            self.matched += 1;
            return Ok(());
        }
        // Of two records for one offset the first one has it.
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
        for row in units.chunk_by(|left, right| left.next_offset() == right.base_offset) {
            let Some(first) = row.first() else { continue };
            entries.clear();
            let read = queue.read_units(first.base_offset, row.len(), u64::MAX, |entry| entries.push(*entry));
            unless_corrupt(read)?;
            let mut entries = entries.iter().peekable();
            for unit in row {
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
                    None => self.add_missing_units(view, offset, &[plain(unit)]),
                }
            }
        }
        Ok(())
    }
}

/// How an entry of a batch queue differs from that of its record in what a plain one does not say.
fn differs_beyond(entry: &BatchCqUnit, unit: &BatchCqUnit) -> Option<String> {
    let offset = unit.base_offset;
    if entry.store_timestamp != unit.store_timestamp {
        let (found, wanted) = (entry.store_timestamp, unit.store_timestamp);
        return Some(format!("offset {offset} has the store time {found}; its record has {wanted}"));
    }
    let fields = |unit: &BatchCqUnit| (unit.batch_size, unit.compacted_offset, unit.reserved);
    (fields(entry) != fields(unit))
        .then(|| format!("offset {offset} has not the entry that its record makes"))
}

/// What a unit of a batch queue says that a plain one says too.
fn plain(unit: &BatchCqUnit) -> CqUnit {
    CqUnit { physical_offset: unit.physical_offset, size: unit.size, tags_code: unit.tags_code }
}

/// Whether an entry is that of a record: instead of the tags' hash it may name a place in `consumequeue_ext/`.
fn agree(view: &View<'_>, entry: &CqUnit, unit: &CqUnit) -> bool {
    entry == unit
        || (view.extensions.is_some()
            && ext_offset(entry.tags_code).is_some()
            && (entry.physical_offset, entry.size) == (unit.physical_offset, unit.size))
}

/// Whether an entry of a delayed message says when it is due by another table of delay levels than the one that is known: a
/// broker remembers none.
fn is_due_by_another_table(view: &View<'_>, queue_id: i32, entry: &CqUnit, unit: &CqUnit) -> bool {
    let levels = view.rules.delays.at(unit.physical_offset as u64);
    let stored = unit.tags_code.saturating_sub(levels.delivery_time(queue_id.saturating_add(1), 0));
    (entry.physical_offset, entry.size) == (unit.physical_offset, unit.size)
        && DelayLevels::is_delivery_time(entry.tags_code, stored)
}

/// What a person reads about an entry that is not that of its record.
fn differs(offset: i64, entry: &CqUnit, unit: &CqUnit) -> String {
    if (entry.physical_offset, entry.size) == (unit.physical_offset, unit.size) {
        let (found, wanted) = (entry.tags_code, unit.tags_code);
        return format!("offset {offset} has the tags' hash {found}; its record has {wanted}");
    }
    format!(
        "offset {offset} leads to {}; its record lies at {}",
        describe_target(entry),
        describe_target(unit)
    )
}

/// Where an entry leads.
pub(super) fn describe_target(unit: &CqUnit) -> String {
    format!("log offset {} ({} bytes)", unit.physical_offset, unit.size)
}

/// Whether the record that `entry` names says that it stands at `offset` of that queue.
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
            run.rows().any(|(from, units)| {
                from == offset && units.first().is_some_and(|unit| agree(view, &entry, unit))
            })
        });
    let batched = output.batches().any(|(name, id, units)| {
        (name, id) == (topic, queue_id)
            && units.iter().any(|unit| unit.base_offset == offset && agree(view, &entry, &plain(unit)))
    });
    Ok(queued || batched)
}

/// `None` for bytes that are damaged: what that means for the reader of messages is told elsewhere.
fn unless_corrupt<T>(outcome: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error @ StoreError::Io { .. }) => Err(error),
        Err(_) => Ok(None),
    }
}
