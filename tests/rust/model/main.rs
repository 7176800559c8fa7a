//! Runs random operations on a simulated disk and compares the store with a list.
//!
//! The operations are appends of one or many messages, flushes, clean reopens, kills of the process (all
//! written bytes stay) and power losses (any subset of the unsynced bytes stays). The contract:
//!
//! * In `sync` mode, every acknowledged message is present after either kind of stop.
//! * In `async` mode, every message is present after a kill. After a power loss, a prefix is present that
//!   contains at least the flushed messages.
//! * At each open, queues, index and log agree. `verify` and a read of all messages check this.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use mqstore::Store;
use mqstore::io::sim::{SimOptions, SimVfs};
use mqstore::options::{Durability, OpenMode, StoreOptions};
use mqstore_tests::{Remembered, Simulated, append, assert_holds, log_order};
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Operation {
    Append(Vec<Remembered>),
    Flush,
    Reopen,
    Kill,
    PowerLoss(u64),
}

fn message() -> impl Strategy<Value = Remembered> {
    let topic = prop_oneof![Just("orders"), Just("payments")];
    // Sizes up to more than a quarter of a segment, so that rolls and fillers of all lengths occur.
    let size = prop_oneof![4 => 0..80_usize, 1 => 0..1200_usize];
    (topic, 0..3, size, 0..6_u8, any::<u8>()).prop_map(|(topic, queue_id, size, key, fill)| Remembered {
        topic,
        queue_id,
        body: vec![fill; size],
        key: format!("k{key}"),
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        12 => vec(message(), 1..6).prop_map(Operation::Append),
        2 => Just(Operation::Flush),
        1 => Just(Operation::Reopen),
        1 => Just(Operation::Kill),
        2 => any::<u64>().prop_map(Operation::PowerLoss),
    ]
}

struct Run {
    world: Simulated,
    store: Store,
    model: Vec<Remembered>,
    flushed: usize,
}

impl Run {
    fn new(durability: Durability, torn_sectors: bool) -> Self {
        let options = StoreOptions {
            segment_bytes: 4096,
            queue_file_entries: 8,
            index_slots: 4,
            index_entries: 9,
            durability,
            dispatch_threads: Some(0),
            default_queues: 3,
            ..StoreOptions::default()
        };
        let vfs = SimVfs::new(SimOptions { torn_sectors, write_back_one_in: 7, ..SimOptions::default() });
        let world = Simulated::new(vfs, options);
        let store = world.open(OpenMode::Create).unwrap();
        for topic in ["orders", "payments"] {
            store.create_topic(topic, 3, &[]).unwrap();
        }
        Self { world, store, model: Vec::new(), flushed: 0 }
    }

    fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Append(messages) => {
                append(&self.store, &messages).unwrap();
                self.model.extend(messages);
            }
            Operation::Flush => {
                self.store.flush().unwrap();
                self.flushed = self.model.len();
            }
            Operation::Reopen => {
                self.store.close().unwrap();
                self.flushed = self.model.len();
                let report = self.world.verify().unwrap();
                assert!(report.ok, "{:#?}", report.problems);
                self.open();
            }
            Operation::Kill => {
                self.world.vfs = self.world.vfs.kill().unwrap();
                assert_holds(&self.world.open(OpenMode::Read).unwrap(), &self.model);
                self.open();
            }
            Operation::PowerLoss(seed) => {
                self.world.vfs = self.world.vfs.crash(seed).unwrap();
                self.open();
                let held = log_order(&self.store).unwrap().len();
                let least = match self.world.options.durability {
                    Durability::Sync => self.model.len(),
                    _ => self.flushed,
                };
                assert!(
                    (least..=self.model.len()).contains(&held),
                    "{held} of {least} to {}",
                    self.model.len()
                );
                self.model.truncate(held);
                // Recovery syncs everything that it shows.
                self.flushed = held;
            }
        }
        assert_holds(&self.store, &self.model);
    }

    fn open(&mut self) {
        self.store = self.world.open(OpenMode::ReadWrite).unwrap();
    }
}

fn run(durability: Durability, torn_sectors: bool, operations: Vec<Operation>) {
    let mut run = Run::new(durability, torn_sectors);
    for operation in operations {
        run.apply(operation);
    }
    run.apply(Operation::Reopen);
    assert_eq!(run.world.vfs.violations(), Vec::<String>::new());
}

fn cases() -> u32 {
    let soak = std::env::var_os("MQSTORE_SOAK").is_some();
    if soak { 2_000 } else { 60 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 300, ..ProptestConfig::default() })]

    #[test]
    fn async_store_is_a_prefix_of_the_list(torn: bool, operations in vec(operation(), 1..40)) {
        run(Durability::Async, torn, operations);
    }

    #[test]
    fn sync_store_loses_nothing(torn: bool, operations in vec(operation(), 1..40)) {
        run(Durability::Sync, torn, operations);
    }
}
