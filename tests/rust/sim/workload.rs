//! The runs of the simulator: a list of operations on a tiny store, and the model of its promises.
//!
//! The same case makes the same calls in the same order. So a second run can crash before any of them. The
//! model is the list of appended records. The log is one sequence, so the records after a crash are always a
//! prefix of it:
//!
//! ```text
//! records   r0 r1 r2 r3 r4 r5 r6
//!           durable ^     ^     ^ begun: nothing after it is ever seen
//!                         acked: survives a kill
//! ```
//!
//! Each of the three limits has the number of the call at which it moved.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mqstore_base::error::StoreError;
use mqstore_base::message::encode_properties;
use mqstore_base::message::{Appended, NewMessage};
use mqstore_base::options::{Durability, OpenMode, StoreOptions, Visibility};
use mqstore_base::store_files::StoreFiles;
use mqstore_engine::Store;
use mqstore_io::sim::SimOptions;
use mqstore_io::{Clock, ManualClock, SimVfs, Vfs};

use crate::states::Rng;

/// Topic and queue of each record, chosen by its number. The second topic has batch queues.
pub(crate) const QUEUES: [(&str, i32); 3] = [("a", 0), ("a", 1), ("b", 0)];
/// Number of different keys.
pub(crate) const KEYS: usize = 4;
pub(crate) const SEGMENT_BYTES: u64 = 4096;

/// One operation of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// One record with a body of this many bytes.
    Append(u16),
    /// The same, durable when the call returns.
    Durable(u16),
    /// One record that leaves this many bytes of the segment after the space for a filler. If the number is
    /// negative, the record does not fit, and the log rolls.
    Edge(i16),
    /// This many records in one call, each with a body of this many bytes.
    Batch(u8, u16),
    Flush,
    /// A round of the background services, after half a second.
    Step,
    Reopen,
    /// A reader of this process reads everything.
    Read,
    /// This many hours pass.
    Age(u8),
    /// The program calls `expire`.
    Expire,
    /// `true` confirms the following records later, `false` confirms all now.
    Confirm(bool),
    /// Several workers dispatch this many runs of one record each, in an order that the second number gives.
    /// Some of their unfinished work is left to the next workers.
    Work(u8, u32),
    /// Queues and index are rebuilt.
    Rebuild,
}

/// A run to make.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// The name that replays it.
    pub(crate) name: String,
    pub(crate) options: StoreOptions,
    pub(crate) ops: Vec<Op>,
    /// Only crashes within the last operation are new. The others are in the shorter cases that it extends.
    pub(crate) last_only: bool,
}

/// One record of the model.
#[derive(Clone, Debug)]
pub(crate) struct Rec {
    pub(crate) number: usize,
    pub(crate) body: Vec<u8>,
    /// The place of the record, unknown if its append never returned.
    pub(crate) placed: Option<Appended>,
    /// The number of calls made when its append began.
    pub(crate) begun: u64,
}

impl Rec {
    pub(crate) fn new(number: usize, len: usize, begun: u64) -> Self {
        Self { number, body: body(number, len), placed: None, begun }
    }

    pub(crate) fn queue(&self) -> (&'static str, i32) {
        QUEUES[self.number % QUEUES.len()]
    }

    pub(crate) fn key(&self) -> String {
        format!("k{}", self.number % KEYS)
    }
}

/// No two records have a common part of their bodies, and no byte is zero.
fn body(number: usize, len: usize) -> Vec<u8> {
    let mut word = (number as u32).wrapping_mul(0x9E37_79B9) | 1;
    (0..len)
        .map(|_| {
            word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (word >> 24) as u8 | 1
        })
        .collect()
}

/// A period in which a writer had the store open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Session {
    pub(crate) opened: u64,
    pub(crate) closing: u64,
    pub(crate) closed: u64,
}

/// The history of a run.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) records: Vec<Rec>,
    /// Number of calls made, and number of records acknowledged by then.
    pub(crate) acked: Vec<(u64, usize)>,
    /// The same for records that were reported as durable, or seen by a reader that sees only durable ones.
    pub(crate) durable: Vec<(u64, usize)>,
    /// The last record that a flush or a close covered, with the call at which it ended.
    pub(crate) flushed: Vec<(u64, Option<u64>)>,
    pub(crate) expiries: Vec<Expiry>,
    /// Files that lost their name in the log, a queue or the index, or were wiped, with the call.
    pub(crate) removals: Vec<(u64, PathBuf)>,
    /// From this call on, readers may see this many records, or all.
    pub(crate) limits: Vec<(u64, usize)>,
    pub(crate) sessions: Vec<Session>,
    /// Calls made when the last operation began, and when it ended.
    pub(crate) last: (u64, u64),
    /// From this call on, the topics exist for good.
    pub(crate) topics_at: u64,
}

/// A period in which something was deleted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expiry {
    /// Calls made before it began.
    pub(crate) begun: u64,
    /// Calls made when its call returned.
    pub(crate) ended: u64,
    /// The first log offset from then on.
    pub(crate) min: u64,
}

/// How many records a recovered store may hold, the deleted ones counted, and where its log may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Need {
    pub(crate) least: usize,
    pub(crate) most: usize,
    /// The smallest allowed first log offset.
    pub(crate) min_from: u64,
    /// The largest allowed first log offset.
    pub(crate) min_to: u64,
}

impl Need {
    /// The bounds of a log from which nothing was deleted.
    pub(crate) fn whole(least: usize, most: usize) -> Self {
        Self { least, most, min_from: 0, min_to: 0 }
    }
}

impl History {
    fn at(border: &[(u64, usize)], call: u64) -> usize {
        border.iter().filter(|(at, _)| *at < call).map(|(_, count)| *count).max().unwrap_or(0)
    }

    /// The bounds after a power loss just before `call`.
    pub(crate) fn after_power_loss(&self, call: u64) -> Need {
        self.need(Self::at(&self.durable, call), call)
    }

    /// The bounds after a kill just before `call`.
    pub(crate) fn after_kill(&self, call: u64) -> Need {
        self.need(Self::at(&self.acked, call).max(Self::at(&self.durable, call)), call)
    }

    fn need(&self, least: usize, call: u64) -> Need {
        let min = |began: &dyn Fn(&Expiry) -> u64| {
            let expiries = self.expiries.iter().filter(|expiry| began(expiry) < call);
            expiries.map(|expiry| expiry.min).max().unwrap_or(0)
        };
        Need {
            least,
            most: self.begun(call),
            min_from: min(&|expiry| expiry.ended),
            min_to: min(&|expiry| expiry.begun),
        }
    }

    /// How many records readers may see just before `call`.
    pub(crate) fn limit(&self, call: u64) -> usize {
        let limits = self.limits.iter().rev();
        limits.into_iter().find(|(at, _)| *at < call).map_or(usize::MAX, |(_, count)| *count)
    }

    fn begun(&self, call: u64) -> usize {
        self.records.iter().filter(|rec| rec.begun + 1 < call).count()
    }

    /// Whether a writer had the store completely open just before `call`.
    pub(crate) fn is_open(&self, call: u64) -> bool {
        self.sessions.iter().any(|session| session.opened < call && call <= session.closing)
    }

    /// Whether the store was completely closed just before `call`.
    pub(crate) fn is_closed(&self, call: u64) -> bool {
        let next = self.sessions.iter().map(|session| session.opened).filter(|opened| *opened >= call).min();
        let closed = self.sessions.iter().map(|session| session.closed).filter(|closed| *closed < call).max();
        // The next open begins where the close ended. After its first change, this is no longer a closed
        // store.
        closed.is_some_and(|closed| closed + 1 == call && next != Some(closed))
    }
}

/// The world of one run: a disk and a clock.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) vfs: SimVfs,
    pub(crate) clock: Arc<ManualClock>,
}

impl World {
    /// An empty disk with a folder for the store.
    pub(crate) fn new(trace: bool) -> Self {
        Self::with(SimOptions { trace, ..SimOptions::default() })
    }

    pub(crate) fn with(options: SimOptions) -> Self {
        let vfs = SimVfs::new(SimOptions { versions: true, by_hand: true, ..options });
        let made = vfs.create_dir_all(Path::new("/data")).and_then(|()| vfs.sync_dir(Path::new("/")));
        assert!(made.is_ok(), "an empty disk takes a folder: {made:?}");
        Self::on(vfs)
    }

    pub(crate) fn on(vfs: SimVfs) -> Self {
        Self { vfs, clock: Arc::new(ManualClock::new(1_700_000_000_000)) }
    }

    pub(crate) fn files(&self) -> StoreFiles {
        StoreFiles::new(Arc::new(self.vfs.clone()), self.clock.clone(), &root())
    }

    pub(crate) fn open(&self, mode: OpenMode, options: &StoreOptions) -> Result<Store, StoreError> {
        crate::explore::count_work();
        self.clock.advance(Duration::from_millis(1));
        let clock: Arc<dyn Clock> = self.clock.clone();
        Store::open(Arc::new(self.vfs.clone()), clock, &root(), mode, options)
    }
}

/// Log folders outside the store directory.
pub(crate) const FAR_LOGS: [&str; 2] = ["/data/disk1/log", "/data/disk2/log"];

pub(crate) fn root() -> PathBuf {
    PathBuf::from("/data/store")
}

/// Options of a tiny store: segments of one page, queue files of eight entries, index files of eight keys.
pub(crate) fn tiny(durability: Durability) -> StoreOptions {
    StoreOptions {
        segment_bytes: SEGMENT_BYTES,
        queue_file_entries: 8,
        index_slots: 4,
        index_entries: 8,
        flush_least_pages: 0,
        // Small, because each open creates and zeroes the pool.
        pool_bytes: 64 << 10,
        durability,
        dispatch_threads: Some(0),
        default_queues: 2,
        ..StoreOptions::default()
    }
}

/// The topic with batch queues.
pub(crate) const BATCHED: &str = "b";

/// Appends `records`. Neighbours go into one call, except those for a batch queue, where one call would make
/// one record of them.
pub(crate) fn append(store: &Store, records: &mut [Rec], durable: bool) -> Result<(), StoreError> {
    let keys: Vec<String> = records.iter().map(Rec::key).collect();
    let properties = keys
        .iter()
        .map(|key| encode_properties([key.as_str()], Some("T"), None, []))
        .collect::<Result<Vec<_>, _>>()?;
    let messages: Vec<_> = records
        .iter()
        .zip(&properties)
        .map(|(record, properties)| NewMessage {
            topic: record.queue().0,
            body: &record.body,
            properties,
            unique_key: None,
            queue_id: Some(record.queue().1),
            flag: 0,
            born_timestamp_ms: None,
            durable,
            ..NewMessage::default()
        })
        .collect();
    let (mut all, mut outcome) = (Vec::new(), Ok(()));
    for messages in messages.chunk_by(|left, right| left.topic != BATCHED && right.topic != BATCHED) {
        let placed = match messages {
            [message] => store.append(message).map(|placed| vec![placed]),
            messages => store.append_many(messages),
        };
        match placed {
            Ok(placed) => all.extend(placed),
            Err(error) => {
                outcome = Err(error);
                break;
            }
        }
    }
    for (record, placed) in records.iter_mut().zip(all) {
        record.placed = Some(placed);
    }
    outcome
}

/// Bytes of a record without its body: fixed fields, topic, `KEYS`, `TAGS`, `UNIQ_KEY`, property CRC.
const OVERHEAD: u64 = 91 + 1 + 8 + 7 + 42 + 20;

/// A run in progress.
pub(crate) struct Running<'a> {
    case: &'a Case,
    pub(crate) world: &'a World,
    store: Store,
    pub(crate) history: History,
    /// How many records are confirmed, if not all.
    limit: Option<usize>,
}

impl<'a> Running<'a> {
    /// Opens the store of `case` in a world that may be empty.
    pub(crate) fn start(case: &'a Case, world: &'a World) -> Result<Self, String> {
        let store = world.open(OpenMode::Create, &case.options).map_err(explain)?;
        let mut running = Self { case, world, store, history: History::default(), limit: None };
        running.opened();
        running.store.create_topic("a", 2, &[]).map_err(explain)?;
        let batched = [("queue.type".to_owned(), "BatchCQ".to_owned())];
        running.store.create_topic(BATCHED, 1, &batched).map_err(explain)?;
        running.history.topics_at = running.now();
        Ok(running)
    }

    fn now(&self) -> u64 {
        self.world.vfs.operations()
    }

    fn opened(&mut self) {
        let opened = self.now();
        self.history.sessions.push(Session { opened, closing: u64::MAX, closed: u64::MAX });
    }

    /// Runs all operations. The first error ends the run.
    pub(crate) fn finish(mut self) -> Result<(History, SimVfs), String> {
        for op in &self.case.ops {
            self.history.last.0 = self.now();
            self.apply(*op).map_err(|error| format!("{op:?}: {error}"))?;
            self.history.last.1 = self.now();
        }
        let end = self.world.vfs.look().map_err(explain)?;
        crate::check::abandon(&self.store);
        Ok((self.history, end))
    }

    fn apply(&mut self, op: Op) -> Result<(), String> {
        self.world.clock.advance(Duration::from_millis(1));
        match op {
            Op::Append(len) => self.append(&[len.into()], false),
            Op::Durable(len) => self.append(&[len.into()], true),
            Op::Batch(count, len) => self.append(&vec![len.into(); count.into()], false),
            Op::Edge(leaves) => self.edge(leaves.into()),
            Op::Flush => {
                self.store.flush().map_err(explain)?;
                self.all_durable();
                self.all_flushed();
                Ok(())
            }
            Op::Step => {
                self.world.clock.advance(Duration::from_millis(600));
                let begun = self.now();
                self.store.step().map_err(explain)?;
                // Records of the pool are in the file now.
                self.history.acked.push((self.now(), self.history.records.len()));
                self.expired(begun)
            }
            Op::Reopen => self.reopen(),
            Op::Read => self.read(),
            Op::Age(hours) => {
                self.world.clock.advance(Duration::from_secs(u64::from(hours) * 3600));
                Ok(())
            }
            Op::Expire => {
                let begun = self.now();
                self.store.expire(false, &mut || Ok(())).map_err(explain)?;
                self.expired(begun)
            }
            Op::Confirm(later) => self.confirm(later),
            Op::Work(runs, order) => {
                let mut rng = Rng::new(order.into());
                let mut pick = |hands: usize| rng.below(hands as u64) as usize;
                self.store.step_shuffled((4, 1, runs.into()), &mut pick).map_err(explain)
            }
            Op::Rebuild => self.store.rebuild(&mut |_| Ok(())).map(drop).map_err(explain),
        }
    }

    /// Notes the first log offset after an operation that may delete.
    fn expired(&mut self, begun: u64) -> Result<(), String> {
        if self.case.options.retains() {
            let ended = self.now();
            let min = self.store.stats().map_err(explain)?.log_min_offset;
            if self.history.expiries.last().map_or(0, |last| last.min) < min {
                self.history.expiries.push(Expiry { begun, ended, min });
            }
        }
        Ok(())
    }

    fn confirm(&mut self, later: bool) -> Result<(), String> {
        let end = self.store.stats().map_err(explain)?.log_max_offset;
        let (before, count) = (self.now(), self.history.records.len());
        let (limit, count) = match (later, self.limit) {
            (true, None) => (Some(end), count),
            // Records that wait for a later confirmation still wait.
            (true, Some(_)) => return Ok(()),
            (false, _) => (None, usize::MAX),
        };
        // The first moment from which a reader may see more, or must see less.
        let at = if later { u64::MAX } else { before };
        self.history.limits.push((at, count));
        self.store.set_confirm_offset(limit).map_err(explain)?;
        let now = self.now();
        if let (true, Some(last)) = (later, self.history.limits.last_mut()) {
            last.0 = now;
        }
        self.limit = limit.map(|_| count);
        Ok(())
    }

    fn edge(&mut self, leaves: i64) -> Result<(), String> {
        let end = self.store.stats().map_err(explain)?.log_max_offset;
        let segment = self.case.options.segment_bytes;
        let rest = (segment - end % segment) as i64;
        // The record leaves only this many bytes and the space for a filler.
        let len = rest - 8 - OVERHEAD as i64 - leaves;
        let most = (segment - 8 - OVERHEAD) as i64;
        if len > most {
            // A record that does not fit an empty segment does not fit at all. So fill a part of the segment
            // first.
            self.append(&[(segment / 2) as usize], false)?;
            return self.edge(leaves);
        }
        self.append(&[len.max(0) as usize], false)
    }

    fn append(&mut self, lens: &[usize], durable: bool) -> Result<(), String> {
        let (begun, first) = (self.now(), self.history.records.len());
        let numbers = first..first + lens.len();
        let mut records: Vec<Rec> =
            numbers.zip(lens).map(|(number, len)| Rec::new(number, *len, begun)).collect();
        let outcome = append(&self.store, &mut records, durable).map_err(explain);
        let seal = if self.case.options.record_crc { 0 } else { 20 };
        let as_long = |rec: &Rec| {
            rec.placed.as_ref().is_none_or(|at| u64::from(at.size) == OVERHEAD - seal + rec.body.len() as u64)
        };
        assert!(records.iter().all(as_long), "records are not as long as the model says: {records:?}");
        let called_durable = records.iter().all(|rec| rec.placed.as_ref().is_some_and(|at| at.durable));
        self.history.records.extend(records);
        outcome?;
        let (now, count) = (self.now(), self.history.records.len());
        if self.case.options.durability != Durability::Pooled {
            self.history.acked.push((now, count));
        }
        if called_durable {
            self.history.durable.push((now, count));
        } else if durable || self.case.options.durability == Durability::Sync {
            return Err("an append that must be durable says that it is not".to_owned());
        }
        Ok(())
    }

    fn all_durable(&mut self) {
        let (now, count) = (self.now(), self.history.records.len());
        self.history.durable.push((now, count));
    }

    fn all_flushed(&mut self) {
        // The checkpoint covers the queues, and unconfirmed records are not in the queues yet.
        if self.limit.is_some() {
            return;
        }
        let last = self.history.records.last().and_then(|rec| Some(rec.placed.as_ref()?.commit_log_offset));
        self.history.flushed.push((self.now(), last));
    }

    fn reopen(&mut self) -> Result<(), String> {
        let closing = self.now();
        self.store.close().map_err(explain)?;
        let closed = self.now();
        if let Some(session) = self.history.sessions.last_mut() {
            (session.closing, session.closed) = (closing, closed);
        }
        self.all_durable();
        // A close removes the limit.
        if self.limit.take().is_some() {
            self.history.limits.push((closing, usize::MAX));
        }
        self.all_flushed();
        self.store = self.world.open(OpenMode::ReadWrite, &self.case.options).map_err(explain)?;
        self.opened();
        Ok(())
    }

    fn read(&mut self) -> Result<(), String> {
        let seen = crate::check::compare_log(&self.store, &self.history.records)?;
        let (now, count) = (self.now(), self.history.records.len());
        let wanted = self.limit.unwrap_or(count);
        let shows_all = self.case.options.visibility == Visibility::Appended;
        if seen > wanted || (shows_all && seen < wanted) {
            return Err(format!("a reader sees {seen} of {wanted} records"));
        }
        if self.case.options.durable_only() {
            self.history.durable.push((now, seen));
        } else {
            // All records of the pool are in the file now.
            self.history.acked.push((now, count));
        }
        Ok(())
    }
}

pub(crate) fn explain(error: impl fmt::Display) -> String {
    error.to_string()
}
