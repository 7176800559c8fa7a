//! What a run does: a list of operations on a tiny store, and the model of what it has promised.
//!
//! A run is a function of its case: same case, same calls in the same order, so that a crash can be put
//! before any of them in a second run. The model is the list of appended records; since the log is one
//! sequence, what must be there after a crash is always a beginning of it:
//!
//! ```text
//! records   r0 r1 r2 r3 r4 r5 r6
//!           durable ^     ^     ^ begun: nothing behind is ever seen
//!                         acked: survives a kill
//! ```
//!
//! Each of the three borders carries the number of the call at which it moved.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mqstore_core::encode_properties;
use mqstore_core::{Appended, Durability, NewMessage, OpenMode, Store, StoreError, StoreFiles, StoreOptions};
use mqstore_io::sim::SimOptions;
use mqstore_io::{Clock, ManualClock, SimVfs, Vfs};

/// Topic and queue of each record; a record's number chooses.
pub(crate) const QUEUES: [(&str, i32); 3] = [("a", 0), ("a", 1), ("b", 0)];
/// Records share this many keys.
pub(crate) const KEYS: usize = 4;
pub(crate) const SEGMENT_BYTES: u64 = 4096;

/// One operation of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// One record with a body of so many bytes.
    Append(u16),
    /// The same, to be durable when the call returns.
    Durable(u16),
    /// One record that leaves so many bytes of the segment beside the place for a filler; below zero it
    /// does not fit, and the log rolls.
    Edge(i16),
    /// So many records in one call.
    Batch(u8, u16),
    Flush,
    /// A round of the background services, after half a second.
    Step,
    Reopen,
    /// A reader of this process looks at all of it.
    Read,
}

/// A run to make.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// What replays it.
    pub(crate) name: String,
    pub(crate) options: StoreOptions,
    pub(crate) ops: Vec<Op>,
    /// Only crashes within the last operation are new: the others are in the cases it continues.
    pub(crate) last_only: bool,
}

/// One record of the model.
#[derive(Clone, Debug)]
pub(crate) struct Rec {
    pub(crate) number: usize,
    pub(crate) body: Vec<u8>,
    /// Where it went; unknown when its append never returned.
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

/// No two records share a stretch of their bodies, and no byte is zero.
fn body(number: usize, len: usize) -> Vec<u8> {
    let mut word = (number as u32).wrapping_mul(0x9E37_79B9) | 1;
    (0..len)
        .map(|_| {
            word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (word >> 24) as u8 | 1
        })
        .collect()
}

/// While a writer had the store open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Session {
    pub(crate) opened: u64,
    pub(crate) closing: u64,
    pub(crate) closed: u64,
}

/// What a run has done.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) records: Vec<Rec>,
    /// Calls made, and how many records had been acknowledged by then.
    pub(crate) acked: Vec<(u64, usize)>,
    /// The same for records that were called durable, or seen by a reader that sees durable ones only.
    pub(crate) durable: Vec<(u64, usize)>,
    pub(crate) sessions: Vec<Session>,
    /// Calls made when the last operation began, and when it ended.
    pub(crate) last: (u64, u64),
    /// The topics exist for good from this call on.
    pub(crate) topics_at: u64,
}

/// How many records a recovered store may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Need {
    pub(crate) least: usize,
    pub(crate) most: usize,
}

impl History {
    fn at(border: &[(u64, usize)], call: u64) -> usize {
        border.iter().filter(|(at, _)| *at < call).map(|(_, count)| *count).max().unwrap_or(0)
    }

    /// What a loss of power just before `call` may leave.
    pub(crate) fn after_power_loss(&self, call: u64) -> Need {
        Need { least: Self::at(&self.durable, call), most: self.begun(call) }
    }

    /// What a kill just before `call` may leave.
    pub(crate) fn after_kill(&self, call: u64) -> Need {
        Need { least: Self::at(&self.acked, call).max(Self::at(&self.durable, call)), most: self.begun(call) }
    }

    fn begun(&self, call: u64) -> usize {
        self.records.iter().filter(|rec| rec.begun + 1 < call).count()
    }

    /// Whether a writer had the store open for good just before `call`.
    pub(crate) fn is_open(&self, call: u64) -> bool {
        self.sessions.iter().any(|session| session.opened < call && call <= session.closing)
    }

    /// Whether the store was closed for good just before `call`.
    pub(crate) fn is_closed(&self, call: u64) -> bool {
        let next = self.sessions.iter().map(|session| session.opened).filter(|opened| *opened >= call).min();
        let closed = self.sessions.iter().map(|session| session.closed).filter(|closed| *closed < call).max();
        // The next open begins where the close ended; from its first change on anything may be.
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

pub(crate) fn root() -> PathBuf {
    PathBuf::from("/data/store")
}

/// A tiny store: segments of a page, queue files of eight entries, index files of eight keys.
pub(crate) fn tiny(durability: Durability) -> StoreOptions {
    StoreOptions {
        segment_bytes: SEGMENT_BYTES,
        queue_file_entries: 8,
        index_slots: 4,
        index_entries: 8,
        flush_least_pages: 0,
        durability,
        dispatch_threads: 0,
        default_queues: 2,
        ..StoreOptions::default()
    }
}

/// Appends `records` with one call.
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
        })
        .collect();
    let placed = store.append_many(&messages)?;
    for (record, placed) in records.iter_mut().zip(placed) {
        record.placed = Some(placed);
    }
    Ok(())
}

/// Bytes of a record beside its body: fixed fields, topic, `KEYS`, `TAGS`, `UNIQ_KEY`, property CRC.
const OVERHEAD: u64 = 91 + 1 + 8 + 7 + 42 + 20;

/// A run in progress.
pub(crate) struct Running<'a> {
    case: &'a Case,
    pub(crate) world: &'a World,
    store: Store,
    pub(crate) history: History,
}

impl<'a> Running<'a> {
    /// Opens the store of `case` in a world that may be empty.
    pub(crate) fn start(case: &'a Case, world: &'a World) -> Result<Self, String> {
        let store = world.open(OpenMode::Create, &case.options).map_err(explain)?;
        let mut running = Self { case, world, store, history: History::default() };
        running.opened();
        for (topic, queues) in [("a", 2), ("b", 1)] {
            running.store.create_topic(topic, queues, &[]).map_err(explain)?;
        }
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

    /// Does all operations; the first error ends the run.
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
                Ok(())
            }
            Op::Step => {
                self.world.clock.advance(Duration::from_millis(600));
                self.store.step().map_err(explain)
            }
            Op::Reopen => self.reopen(),
            Op::Read => self.read(),
        }
    }

    fn edge(&mut self, leaves: i64) -> Result<(), String> {
        let end = self.store.stats().map_err(explain)?.log_max_offset;
        let segment = self.case.options.segment_bytes;
        let rest = (segment - end % segment) as i64;
        // A record that leaves nothing but the filler of the segment that follows.
        let len = rest - 8 - OVERHEAD as i64 - leaves;
        let most = (segment - 8 - OVERHEAD) as i64;
        if len > most {
            // One that does not fit an empty segment does not fit at all: fill some of it first.
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
        self.history.acked.push((now, count));
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

    fn reopen(&mut self) -> Result<(), String> {
        let closing = self.now();
        self.store.close().map_err(explain)?;
        let closed = self.now();
        if let Some(session) = self.history.sessions.last_mut() {
            (session.closing, session.closed) = (closing, closed);
        }
        self.all_durable();
        self.store = self.world.open(OpenMode::ReadWrite, &self.case.options).map_err(explain)?;
        self.opened();
        Ok(())
    }

    fn read(&mut self) -> Result<(), String> {
        let seen = crate::check::compare_log(&self.store, &self.history.records)?;
        if seen != self.history.records.len() {
            return Err(format!("a reader sees {seen} of {} records", self.history.records.len()));
        }
        if self.case.options.durability == Durability::Sync {
            self.all_durable();
        }
        Ok(())
    }
}

pub(crate) fn explain(error: impl fmt::Display) -> String {
    error.to_string()
}
