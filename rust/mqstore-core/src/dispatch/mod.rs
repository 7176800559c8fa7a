//! From log records to queue entries and index entries.
//!
//! Owns the position up to which derived files agree with the log. Work is cut into numbered *runs*,
//! stretches of whole records: decoding a run touches nothing but the run ([`decode_run`]), so that
//! runs may be decoded side by side; applying them is one step in run order ([`Dispatcher::step`]),
//! which writes queue entries at the slots that the records themselves name, feeds the index and then
//! moves the commit position. Readers see nothing beyond the commit position of a queue.
//!
//! Across a crash: whatever a run wrote before its position was recorded is written again from the
//! log, to the same slots; nothing here is needed to read the log.
//!
//! | record | queue entry | index entry |
//! |---|---|---|
//! | plain, committed | yes | yes |
//! | prepared (half) | no | yes |
//! | rolled back | no | no |
//!
//! Source: `DefaultMessageStore.ReputMessageService`, `CommitLogDispatcherBuildConsumeQueue`,
//! `IndexService#buildIndex`.

mod derive;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

use mqstore_format::{CqUnit, DelayLevels, RecordView, index_key_hash, validate_stored_topic};
use mqstore_io::sync::{Arc, Mutex, OnceLock};

pub use derive::{DerivedQueue, DerivedQueues};

use crate::commit_log::{Damage, LogScanner, ScanChecks, ScanItem, SegmentList};
use crate::consume_queue::QueueSet;
use crate::error::StoreError;
use crate::files::StoreFiles;
use crate::index::{IndexPut, IndexSet};
use crate::live::LivePage;

/// Bytes of log after which a run ends.
const RUN_BYTES: u64 = 1 << 20;

/// What one run of records contributes to the derived files.
#[derive(Debug, Default)]
pub struct RunOutput {
    /// Entries by queue, in log order within each.
    pub queues: Vec<QueueRun>,
    /// Index entries in log order.
    pub index: Vec<IndexPut>,
    /// Records seen.
    pub records: u64,
    /// One past the last byte of the run.
    pub end: u64,
    slots: HashMap<Box<str>, Vec<(i32, usize)>>,
}

/// Entries of one queue.
#[derive(Debug)]
pub struct QueueRun {
    /// The topic.
    pub topic: Box<str>,
    /// The queue.
    pub queue_id: i32,
    /// Queue offset and entry, in log order.
    pub units: Vec<(i64, CqUnit)>,
}

/// What decides which entries a record yields.
#[derive(Clone, Debug, Default)]
pub struct DispatchRules {
    /// Whether tags get index entries of their own, as RocketMQ 5.5.0 writes them.
    pub index_tags: bool,
    /// What the levels of delayed messages mean; their entries hold the delivery time.
    pub delay_levels: DelayLevels,
    /// Topics whose queues hold batch units; they get no plain entries.
    pub batch_topics: BTreeSet<String>,
    /// Whether damage in the log is passed over; else it stops the dispatcher.
    pub skip_damage: bool,
}

impl RunOutput {
    /// Adds what `record`, which lies at log offset `offset`, contributes.
    pub fn add(&mut self, rules: &DispatchRules, record: &RecordView<'_>, offset: u64) {
        self.records += 1;
        self.end = offset + u64::from(record.size);
        if record.dispatches_to_queue() && !rules.batch_topics.contains(record.topic) {
            self.add_queue_entry(rules, record, offset);
        }
        if record.indexed() {
            self.add_index_entries(rules, record, offset);
        }
    }

    fn add_queue_entry(&mut self, rules: &DispatchRules, record: &RecordView<'_>, offset: u64) {
        // A name that could leave the store's folders never becomes a path.
        if validate_stored_topic(record.topic).is_err() || record.queue_id < 0 || record.queue_offset < 0 {
            return;
        }
        let tags_code = record.tags_code(&rules.delay_levels);
        let unit = CqUnit { physical_offset: offset as i64, size: record.size as i32, tags_code };
        let slot = self.slot(record.topic, record.queue_id);
        if let Some(run) = self.queues.get_mut(slot) {
            run.units.push((record.queue_offset, unit));
        }
    }

    fn slot(&mut self, topic: &str, queue_id: i32) -> usize {
        if let Some((_, slot)) =
            self.slots.get(topic).and_then(|queues| queues.iter().find(|(id, _)| *id == queue_id))
        {
            return *slot;
        }
        let slot = self.queues.len();
        self.queues.push(QueueRun { topic: topic.into(), queue_id, units: Vec::new() });
        self.slots.entry(topic.into()).or_default().push((queue_id, slot));
        slot
    }

    fn add_index_entries(&mut self, rules: &DispatchRules, record: &RecordView<'_>, offset: u64) {
        let mut put = |key: &str| {
            self.index.push(IndexPut {
                hash: index_key_hash(record.topic, key),
                physical_offset: offset as i64,
                store_timestamp: record.store_timestamp,
            });
        };
        if let Some(key) = record.unique_key() {
            put(key);
        }
        for key in record.keys().unwrap_or_default().split(' ').filter(|key| !key.is_empty()) {
            put(key);
        }
        if let Some(tags) = record.tags().filter(|_| rules.index_tags) {
            // RocketMQ 5.5.0 marks a tag entry by a `T` between topic and tag.
            put(&format!("T#{tags}"));
        }
    }
}

/// Decodes one run from where `scanner` stands; stops after about a mebibyte, at the end, or at damage,
/// which is returned beside what came before it.
pub fn decode_run(
    scanner: &mut LogScanner,
    rules: &DispatchRules,
) -> Result<(RunOutput, Option<Damage>), StoreError> {
    let start = scanner.position();
    let mut output = RunOutput { end: start, ..RunOutput::default() };
    loop {
        let offset = scanner.position();
        if offset - start >= RUN_BYTES {
            return Ok((output, None));
        }
        match scanner.next_item()? {
            ScanItem::Record(record) => output.add(rules, &record, offset),
            ScanItem::Filler { .. } => output.end = scanner.position(),
            ScanItem::End { .. } => return Ok((output, None)),
            ScanItem::Damaged(damage) => return Ok((output, Some(damage))),
        }
    }
}

/// Builds queues and index behind the log; see the module's text.
#[derive(Debug)]
pub struct Dispatcher {
    files: StoreFiles,
    queues: Arc<QueueSet>,
    index: Arc<IndexSet>,
    rules: DispatchRules,
    position: AtomicU64,
    /// Below this log position the index is complete already.
    index_from: u64,
    scanner: Mutex<LogScanner>,
    gap_units: AtomicU64,
    refused_units: AtomicU64,
    /// Nothing at or behind this log position is dispatched.
    limit: AtomicU64,
    skipped: Mutex<Vec<String>>,
    /// Tells readers in other processes, once the store runs.
    live: OnceLock<Arc<LivePage>>,
}

impl Dispatcher {
    /// A dispatcher that goes on at log position `start`; index entries below `index_from` exist.
    pub fn new(
        files: &StoreFiles,
        list: Arc<SegmentList>,
        queues: Arc<QueueSet>,
        index: Arc<IndexSet>,
        rules: DispatchRules,
        start: u64,
        index_from: u64,
    ) -> Self {
        let scanner = LogScanner::new(list, start, start, ScanChecks { crc: false });
        Self {
            files: files.clone(),
            queues,
            index,
            rules,
            position: AtomicU64::new(start),
            index_from,
            scanner: Mutex::new(scanner),
            gap_units: AtomicU64::new(0),
            refused_units: AtomicU64::new(0),
            limit: AtomicU64::new(u64::MAX),
            skipped: Mutex::default(),
            live: OnceLock::new(),
        }
    }

    /// The position at which dispatch stops, as if the log ended there; `u64::MAX` for none.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Acquire)
    }

    /// Stops dispatch at log position `limit`, where a record starts; `u64::MAX` for no limit.
    ///
    /// # Errors
    /// The position reached, when that is behind `limit` already.
    pub fn set_limit(&self, limit: u64) -> Result<(), u64> {
        // Whoever dispatches holds this lock, so that nobody passes the limit meanwhile.
        let scanner = self.scanner.lock();
        if scanner.position() > limit {
            return Err(scanner.position());
        }
        self.limit.store(limit, Ordering::Release);
        if let Some(live) = self.live.get() {
            live.confirm(limit);
        }
        Ok(())
    }

    /// The log position up to which every record has its entries, and readers see them.
    pub fn position(&self) -> u64 {
        self.position.load(Ordering::Acquire)
    }

    /// From now on says on `live` how far it is. A second page is ignored.
    pub fn attach(&self, live: &Arc<LivePage>) {
        let _scanner = self.scanner.lock();
        if self.live.set(Arc::clone(live)).is_ok() {
            live.dispatch(self.position());
        }
    }

    /// Records whose queue offset no queue can hold; they have no entry.
    pub fn refused_units(&self) -> u64 {
        self.refused_units.load(Ordering::Relaxed)
    }

    /// Queue offsets that no record claimed; their places hold blank units.
    pub fn gap_units(&self) -> u64 {
        self.gap_units.load(Ordering::Relaxed)
    }

    /// Dispatches up to `limit` (a published position of `list`) and returns the position reached,
    /// which is `limit` unless something failed, or [`Self::limit`] if that is smaller.
    pub fn run_to(&self, list: &Arc<SegmentList>, limit: u64) -> Result<u64, StoreError> {
        while self.position() < limit {
            if !self.step(list, limit)? {
                break;
            }
        }
        Ok(self.position())
    }

    /// One run: decode, write, commit. `false` when there was nothing to do. After an error (a full disk)
    /// the same call may be made again.
    pub fn step(&self, list: &Arc<SegmentList>, limit: u64) -> Result<bool, StoreError> {
        let mut scanner = self.scanner.lock();
        let before = scanner.position();
        let limit = limit.min(self.limit());
        if before >= limit {
            return Ok(false);
        }
        scanner.extend(Arc::clone(list), limit);
        let (output, damage) = decode_run(&mut scanner, &self.rules)?;
        let end = scanner.position();
        let damage = damage.filter(|_| end == before);
        if let Some(damage) = damage {
            self.pass_over(&mut scanner, damage, limit)?;
            return Ok(true);
        }
        if end == before {
            return Err(StoreError::corrupt(
                &self.files.commit_log(),
                before,
                format!("the log ends here although it was written up to {limit}"),
            ));
        }
        if let Err(error) = self.apply(&output) {
            // The same run is made again, to the same slots; only index entries may come twice, which
            // look-ups see through.
            scanner.seek(before);
            return Err(error);
        }
        self.position.store(end, Ordering::Release);
        if let Some(live) = self.live.get() {
            live.dispatch(end);
        }
        Ok(true)
    }

    /// Goes on behind damage, or says that it must not.
    fn pass_over(&self, scanner: &mut LogScanner, damage: Damage, limit: u64) -> Result<(), StoreError> {
        if !self.rules.skip_damage {
            return Err(StoreError::corrupt(&damage.path, damage.file_offset, damage.reason));
        }
        let next = scanner.resync(damage.offset + 1)?.unwrap_or(limit);
        let (path, bytes) = (damage.path.display(), next - damage.offset);
        let text =
            format!("{path} at offset {}: {}; skipped {bytes} bytes", damage.file_offset, damage.reason);
        self.skipped.lock().push(text);
        scanner.seek(next);
        self.position.store(next, Ordering::Release);
        if let Some(live) = self.live.get() {
            live.dispatch(next);
        }
        Ok(())
    }

    /// What was passed over since the last call, in words.
    pub fn take_skipped(&self) -> Vec<String> {
        std::mem::take(&mut self.skipped.lock())
    }

    fn apply(&self, output: &RunOutput) -> Result<(), StoreError> {
        let mut units = Vec::new();
        for run in &output.queues {
            let queue = self.queues.get_or_create(&run.topic, run.queue_id)?;
            let mut rest = run.units.as_slice();
            while let Some((first, _)) = rest.first() {
                let length = dense_prefix(rest);
                let (dense, later) = rest.split_at(length);
                units.clear();
                units.extend(dense.iter().map(|(_, unit)| *unit));
                let written = queue.write(*first, &units)?;
                self.refused_units.fetch_add(written.refused as u64, Ordering::Relaxed);
                let outcome = queue.commit((first + length as i64).max(queue.max_offset()))?;
                self.gap_units.fetch_add(outcome.gap_units, Ordering::Relaxed);
                rest = later;
            }
        }
        let fresh = output.index.partition_point(|put| (put.physical_offset as u64) < self.index_from);
        self.index.put(output.index.get(fresh..).unwrap_or_default())?;
        Ok(())
    }
}

/// How many entries at the start of `units` follow one another without a gap.
fn dense_prefix(units: &[(i64, CqUnit)]) -> usize {
    let neighbours = units.iter().zip(units.iter().skip(1));
    1 + neighbours.take_while(|((left, _), (right, _))| left.checked_add(1) == Some(*right)).count()
}
