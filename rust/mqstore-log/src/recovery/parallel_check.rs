//! Checking records on all cores while one thread reads.
//!
//! The walk over the headers is serial: a record's size says where the next one starts. What costs is
//! the checksums of the bodies, and these need nothing but the record:
//!
//! ```text
//! walk (reads windows of 1 MiB) ──► waiting ──► checkers (up to 8 cores, the walk itself helps)
//!                                                  │
//!            in log order ◄── finished ◄───────────┘
//! ```
//!
//! Memory is bounded: so many windows are on their way as there are checkers, twice over. All reading
//! and writing is the walk's own, so that the order of operations on the disk never depends on threads.
//! A log with little to check is checked by the walk alone, and so is one on a machine that has no
//! thread to give.

use std::collections::{BTreeMap, VecDeque};
use std::panic::resume_unwind;

use mqstore_io::sync::{Arc, Condvar, JoinHandle, Mutex, spawn};

use crate::commit_log::{ScanChecks, check_record};

/// Cores that check at most.
const MOST_CHECKERS: usize = 8;

/// Windows that the walk checks by itself before it asks for help.
const ALONE: usize = 4;

/// A window of the log and the records that lie in it, one after the other.
#[derive(Debug, Default)]
pub(super) struct Stretch {
    /// The log offset of the first byte.
    pub(super) start: u64,
    /// The bytes; they may go on behind the last record.
    pub(super) bytes: Vec<u8>,
    /// Offset and size of each record.
    pub(super) records: Vec<(u64, u32)>,
    /// The header of a filler behind the last record.
    pub(super) filler: Option<u64>,
}

/// What the check of a stretch found.
#[derive(Debug, Default)]
pub(super) struct CheckResult {
    pub(super) stretch: Stretch,
    /// The last record that is good.
    pub(super) last: Option<(u64, u32)>,
    /// The newest store time of the good ones.
    pub(super) store_timestamp_ms: i64,
    /// The first record that is not good: offset, claimed size, reason.
    pub(super) bad: Option<(u64, u32, String)>,
}

impl Stretch {
    fn check(self) -> CheckResult {
        let mut checked = CheckResult { stretch: self, ..CheckResult::default() };
        let CheckResult { stretch, last, store_timestamp_ms, bad } = &mut checked;
        for &(offset, size) in &stretch.records {
            let at = (offset - stretch.start) as usize;
            let bytes = stretch.bytes.get(at..at + size as usize).unwrap_or_default();
            match check_record(bytes, offset, ScanChecks { crc: true }) {
                Ok(view) => {
                    *last = Some((offset, size));
                    *store_timestamp_ms = view.store_timestamp.max(*store_timestamp_ms);
                }
                Err(reason) => {
                    *bad = Some((offset, size, reason));
                    break;
                }
            }
        }
        checked
    }
}

impl CheckResult {
    /// The good bytes and where they start.
    pub(super) fn good(&self) -> Option<(u64, &[u8])> {
        let records = self.stretch.records.first().map(|(offset, _)| *offset);
        let start = records.or(self.stretch.filler)?;
        let after_records = self.last.map_or(start, |(offset, size)| offset + u64::from(size));
        let end = match self.stretch.filler.filter(|_| self.bad.is_none()) {
            Some(filler) => filler + mqstore_format::BLANK_HEADER_BYTES as u64,
            None => after_records,
        };
        let range = (start - self.stretch.start) as usize..(end - self.stretch.start) as usize;
        Some((start, self.stretch.bytes.get(range)?))
    }
}

/// The workers and what is between them and the walk.
#[derive(Debug)]
pub(super) struct CheckPool {
    shared: Arc<Shared>,
    helped: bool,
    threads: Vec<JoinHandle<()>>,
    given: usize,
    taken: usize,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Something was given, or no more comes.
    given: Condvar,
    /// Something was finished.
    finished: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<(usize, Stretch)>,
    finished: BTreeMap<usize, CheckResult>,
    /// Helpers that have something in hand.
    busy: usize,
    over: bool,
}

impl CheckPool {
    /// `threads`: whether there may be any.
    pub(super) fn new(threads: bool) -> Self {
        Self { shared: Arc::default(), helped: threads, threads: Vec::new(), given: 0, taken: 0 }
    }

    /// Hands a stretch over.
    pub(super) fn give(&mut self, stretch: Stretch) {
        if self.given == ALONE && self.helped {
            self.call_helpers();
        }
        self.shared.state.lock().waiting.push_back((self.given, stretch));
        self.shared.given.notify_one();
        self.given += 1;
    }

    fn call_helpers(&mut self) {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 1..cores.min(MOST_CHECKERS) {
            let shared = Arc::clone(&self.shared);
            // Fewer threads, or none, take longer; that is all.
            let Ok(thread) = spawn("mq-recover", move || shared.help()) else { break };
            self.threads.push(thread);
        }
    }

    /// The next stretch in log order. Waits for it, helping, when `all` were given or too many are on
    /// their way; `None` when none is out, or none has to be waited for.
    pub(super) fn take(&mut self, all: bool) -> Option<CheckResult> {
        let out = self.given - self.taken;
        let must_wait = out > 0 && (all || out > 2 * self.threads.len());
        let mut state = self.shared.state.lock();
        loop {
            if let Some(checked) = state.finished.remove(&self.taken) {
                self.taken += 1;
                return Some(checked);
            }
            if !must_wait {
                return None;
            }
            if let Some((number, stretch)) = state.waiting.pop_front() {
                drop(state);
                let checked = stretch.check();
                state = self.shared.state.lock();
                state.finished.insert(number, checked);
            } else if state.busy > 0 {
                self.shared.finished.wait(&mut state);
            } else {
                // What is missing was in the hands of a thread that died; its panic goes on here.
                drop(state);
                self.end();
                return None;
            }
        }
    }

    fn end(&mut self) {
        self.shared.state.lock().over = true;
        self.shared.given.notify_all();
        for thread in self.threads.drain(..) {
            if let Err(panic) = thread.join()
                && !std::thread::panicking()
            {
                resume_unwind(panic);
            }
        }
    }
}

impl Drop for CheckPool {
    fn drop(&mut self) {
        self.shared.state.lock().waiting.clear();
        self.end();
    }
}

impl Shared {
    fn help(&self) {
        loop {
            let mut state = self.state.lock();
            let (number, stretch) = loop {
                if let Some(next) = state.waiting.pop_front() {
                    break next;
                }
                if state.over {
                    return;
                }
                self.given.wait(&mut state);
            };
            state.busy += 1;
            drop(state);
            let busy = Busy(self);
            let checked = stretch.check();
            self.state.lock().finished.insert(number, checked);
            drop(busy);
        }
    }
}

/// Counts a helper as busy until it is done, also when it panics.
struct Busy<'a>(&'a Shared);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.state.lock().busy -= 1;
        self.0.finished.notify_all();
    }
}
