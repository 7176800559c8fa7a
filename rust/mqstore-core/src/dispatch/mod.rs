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
mod run;

use std::sync::atomic::{AtomicU64, Ordering};

use mqstore_io::sync::{Arc, Mutex, OnceLock};

pub use derive::{DerivedQueue, DerivedQueues};
pub use run::{BatchTopics, DispatchRules, QueueRun, RunOutput};

use crate::commit_log::{Damage, LogScanner, ScanChecks, ScanItem, SegmentList};
use crate::consume_queue::QueueSet;
use crate::error::StoreError;
use crate::files::StoreFiles;
use crate::index::IndexSet;
use crate::live::LivePage;

/// Bytes of log after which a run ends.
const RUN_BYTES: u64 = 1 << 20;

/// Decodes one run from where `scanner` stands; stops after about a mebibyte, at the end, or at damage,
/// which is answered. What came before it is in `output`, and nothing else.
pub fn decode_run(
    scanner: &mut LogScanner,
    rules: &DispatchRules,
    output: &mut RunOutput,
) -> Result<Option<Damage>, StoreError> {
    let start = scanner.position();
    output.begin(start);
    loop {
        scanner.outlines(start + RUN_BYTES, |record, offset| output.add(rules, record, offset))?;
        let offset = scanner.position();
        if offset - start >= RUN_BYTES {
            return Ok(None);
        }
        match scanner.next_item()? {
            ScanItem::Record(record) => output.add(rules, &record.outline(), offset),
            ScanItem::Filler { .. } => output.end = scanner.position(),
            ScanItem::End { .. } => return Ok(None),
            ScanItem::Damaged(damage) => return Ok(Some(damage)),
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
    work: Mutex<Work>,
    gap_units: AtomicU64,
    refused_units: AtomicU64,
    /// Nothing at or behind this log position is dispatched.
    limit: AtomicU64,
    skipped: Mutex<Vec<String>>,
    /// Tells readers in other processes, once the store runs.
    live: OnceLock<Arc<LivePage>>,
}

/// What only the thread that dispatches touches.
#[derive(Debug)]
struct Work {
    scanner: LogScanner,
    output: RunOutput,
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
            work: Mutex::new(Work { scanner, output: RunOutput::default() }),
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
        let work = self.work.lock();
        let reached = work.scanner.position();
        if reached > limit {
            return Err(reached);
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
        let _work = self.work.lock();
        if self.live.set(Arc::clone(live)).is_ok() {
            live.dispatch(self.position());
        }
    }

    /// From now on looks at segments that are mapped in place, instead of reading them. For the process
    /// that writes the log.
    pub fn look_at_maps(&self) {
        self.work.lock().scanner.look_at_maps();
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
        let mut work = self.work.lock();
        let Work { scanner, output } = &mut *work;
        let before = scanner.position();
        let limit = limit.min(self.limit());
        if before >= limit {
            return Ok(false);
        }
        scanner.extend(Arc::clone(list), limit);
        let decoded = decode_run(scanner, &self.rules, output);
        scanner.let_go();
        let end = scanner.position();
        let done = decoded.and_then(|damage| match damage.filter(|_| end == before) {
            Some(damage) => Ok(Some(damage)),
            None if end == before => Err(StoreError::corrupt(
                &self.files.commit_log(),
                before,
                format!("the log ends here although it was written up to {limit}"),
            )),
            None => self.apply(output).map(|()| None),
        });
        match done {
            Ok(None) => {}
            Ok(Some(damage)) => {
                self.pass_over(scanner, damage, limit)?;
                return Ok(true);
            }
            Err(error) => {
                // The same run is made again, to the same slots; only index entries may come twice, which
                // look-ups see through.
                scanner.seek(before);
                return Err(error);
            }
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
        for (topic, run) in output.queues() {
            let queue = self.queues.get_or_create(topic, run.queue_id())?;
            for (first, units) in run.rows() {
                let written = queue.write(first, units)?;
                self.refused_units.fetch_add(written.refused as u64, Ordering::Relaxed);
                let end = first.saturating_add(units.len() as i64);
                let outcome = queue.commit(end.max(queue.max_offset()))?;
                self.gap_units.fetch_add(outcome.gap_units, Ordering::Relaxed);
            }
        }
        for (topic, queue_id, units) in output.batches() {
            let outcome = self.queues.batch_or_create(topic, queue_id)?.append(units)?;
            self.refused_units.fetch_add(outcome.refused as u64, Ordering::Relaxed);
        }
        let fresh = output.index.partition_point(|put| (put.physical_offset as u64) < self.index_from);
        self.index.put(output.index.get(fresh..).unwrap_or_default())
    }
}
