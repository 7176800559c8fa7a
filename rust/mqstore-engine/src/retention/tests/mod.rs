//! Retention on the simulated file system: each rule, each kind of reader, a stop at each call.

mod closing;
mod crash;
mod model;
mod paths;
mod readers;
mod rules;
mod unarchived;
mod uncompacted;
mod unfinished;

use std::sync::Arc;
use std::time::Duration;

use mqstore_io::sync::Mutex;
use mqstore_io::{Clock, ManualClock, SimOptions, SimVfs, Vfs};

use crate::Store;
use crate::retention::ExpireReport;
use crate::testing::message;
use mqstore_base::error::StoreError;
use mqstore_base::events::{Hooks, StoreEvent};
use mqstore_base::message::encode_properties;
use mqstore_base::options::{OpenMode, StoreOptions};

pub(super) const SEGMENT: u64 = 4096;
const START: i64 = 1_700_000_000_000;

/// A store on a simulated disk; the tests run its background work by hand.
pub(super) struct Bench {
    pub(super) sim: SimVfs,
    pub(super) clock: Arc<ManualClock>,
    pub(super) events: Arc<Mutex<Vec<StoreEvent>>>,
}

pub(super) fn options() -> StoreOptions {
    StoreOptions {
        segment_bytes: SEGMENT,
        queue_file_entries: 5,
        index_slots: 7,
        index_entries: 12,
        dispatch_threads: Some(0),
        ..StoreOptions::default()
    }
}

pub(super) fn aged(hours: u64) -> StoreOptions {
    StoreOptions { retention_ms: Some(hours * 3_600_000), ..options() }
}

impl Bench {
    pub(super) fn new() -> Self {
        let clock = Arc::new(ManualClock::new(START));
        let sim_clock: Arc<dyn Clock> = clock.clone();
        let sim = SimVfs::new(SimOptions { by_hand: true, clock: Some(sim_clock), ..SimOptions::default() });
        sim.create_dir("/data".as_ref()).unwrap();
        sim.sync_dir("/".as_ref()).unwrap();
        Self { sim, clock, events: Arc::default() }
    }

    /// Returns a bench on the disk `sim`, for example after a stop.
    pub(super) fn after(&self, sim: SimVfs) -> Self {
        Self { sim, clock: Arc::clone(&self.clock), events: Arc::default() }
    }

    pub(super) fn try_open(&self, mode: OpenMode, options: &StoreOptions) -> Result<Store, StoreError> {
        Store::open(Arc::new(self.sim.clone()), self.clock.clone(), "/data/store".as_ref(), mode, options)
    }

    /// Opens for writing and records the events.
    pub(super) fn open(&self, options: &StoreOptions) -> Store {
        let events = Arc::clone(&self.events);
        let on_event: Arc<dyn Fn(&StoreEvent) + Send + Sync> =
            Arc::new(move |event| events.lock().push(event.clone()));
        let hooks = Hooks { on_event: Some(on_event), ..options.hooks.clone() };
        let options = StoreOptions { hooks, ..options.clone() };
        self.try_open(OpenMode::Create, &options).unwrap()
    }

    pub(super) fn read_only(&self) -> Store {
        self.try_open(OpenMode::Read, &options()).unwrap()
    }

    pub(super) fn hours(&self, hours: u64) {
        self.clock.advance(Duration::from_secs(hours * 3600));
    }

    /// Returns the kinds of events since the last call.
    pub(super) fn told(&self) -> Vec<&'static str> {
        self.events.lock().drain(..).map(|event| event.kind).collect()
    }

    pub(super) fn segments(&self) -> Vec<u64> {
        self.names("/data/store/commitlog")
    }

    pub(super) fn names(&self, folder: &str) -> Vec<u64> {
        let entries = self.sim.list(folder.as_ref()).unwrap_or_default();
        let names = entries.iter().filter_map(|entry| entry.name.to_str()?.parse().ok());
        names.collect()
    }
}

/// Appends messages to queue 0 of `t` until the log has `segments` segments, with one hour between the first records of
/// any two segments. Returns the queue offset and log offset of each message.
pub(super) fn fill(bench: &Bench, store: &Store, segments: usize) -> Vec<(i64, u64)> {
    let mut placed = Vec::new();
    let mut last = store.stats().unwrap().segments;
    loop {
        let key = format!("k{}", placed.len());
        let properties = encode_properties([key.as_str()], None, None, []).unwrap();
        let body = vec![b'x'; 700];
        let message = message("t", Some(0), &body, &properties);
        let appended = store.append(&message).unwrap();
        placed.push((appended.queue_offset, appended.commit_log_offset));
        let now = store.stats().unwrap().segments;
        if now > last && last > 0 {
            bench.hours(1);
        }
        last = now;
        if now as usize == segments {
            return placed;
        }
    }
}

/// Runs `count` steps of the background.
pub(super) fn rounds(bench: &Bench, store: &Store, count: usize) {
    for _ in 0..count {
        store.step().unwrap();
        bench.clock.advance(Duration::from_millis(100));
    }
}

pub(super) fn expire(store: &Store, dry_run: bool) -> ExpireReport {
    store.expire(dry_run, &mut || Ok(())).unwrap()
}

pub(super) fn offsets(store: &Store) -> Vec<i64> {
    let mut cursor = store.read("t", 0, None, None, None).unwrap();
    let mut found = Vec::new();
    loop {
        let batch = cursor.next_batch(3).unwrap();
        if batch.is_empty() {
            return found;
        }
        found.extend(batch.iter().map(|record| record.queue_offset));
    }
}

pub(super) fn bounds(store: &Store) -> (i64, i64) {
    let queue = &store.queues("t").unwrap()[0];
    (queue.min_offset, queue.max_offset)
}
