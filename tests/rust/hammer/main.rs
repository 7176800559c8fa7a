//! Tests with real threads, real files and real kills.
//!
//! | module | owns |
//! |---|---|
//! | `kills` | a writer in its own process, killed at any moment; the next process must find every acknowledged message |
//! | `threads` | appenders, readers and a flusher on one store; this part also runs under valgrind |
//!
//! Other suites simulate crashes on a simulated disk. Here nothing is simulated, so no run can be repeated
//! exactly. `MQSTORE_SOAK=1` makes both modules run longer. `tools/thread_checks.sh` runs `threads` under
//! valgrind.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]
#![expect(clippy::print_stdout, reason = "how much was looked at is worth knowing")]

mod kills;
mod threads;

use std::path::Path;

use mqstore::Store;
use mqstore::error::StoreError;
use mqstore::message::{NewMessage, encode_properties};
use mqstore::options::{Durability, OpenMode, StoreOptions};

const TOPIC: &str = "t";
const QUEUES: u32 = 3;

/// Whether `MQSTORE_SOAK` asks for the long run.
fn soak() -> bool {
    std::env::var_os("MQSTORE_SOAK").is_some_and(|value| !value.is_empty())
}

/// Options with small files, so that rolls and new files happen often.
fn options(durability: Durability) -> StoreOptions {
    StoreOptions {
        segment_bytes: 64 << 10,
        queue_file_entries: 128,
        index_slots: 256,
        index_entries: 4096,
        flush_interval_ms: 5,
        commit_interval_ms: 5,
        durability,
        // A busy machine must not make an append fail.
        busy_after_ms: 60_000,
        queue_wait_limit_ms: 60_000,
        ..StoreOptions::default()
    }
}

fn open(home: &Path, mode: OpenMode, durability: Durability) -> Result<Store, StoreError> {
    Store::builder(home).mode(mode).options(options(durability)).open_undelivered()
}

/// The body of a thread's message: its two numbers, then bytes that follow from them.
fn body(thread: u64, number: u64) -> Vec<u8> {
    let mixed = (number ^ (thread << 56)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let kind = mixed >> 60;
    let most = if kind == 0 { 20_000 } else { 400 };
    let size = (mixed >> 20) % most;
    let mut body = Vec::with_capacity(16 + usize::try_from(size).unwrap());
    body.extend_from_slice(&thread.to_be_bytes());
    body.extend_from_slice(&number.to_be_bytes());
    body.extend((0..size).map(|at| (mixed >> (at % 7 * 8)).wrapping_add(at) as u8));
    body
}

/// Thread and number of a body. Fails the test unless the body is exactly the one that was sent.
fn checked(found: &[u8]) -> (u64, u64) {
    let number = |at: usize| {
        let bytes = found.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        u64::from_be_bytes(bytes.unwrap_or_else(|| panic!("a body of {} bytes", found.len())))
    };
    let (thread, sequence) = (number(0), number(8));
    assert!(found == body(thread, sequence), "message {thread}.{sequence} is not whole");
    (thread, sequence)
}

/// Appends the messages `numbers` of `thread` with one call. Returns the place of each message.
fn append(
    store: &Store,
    thread: u64,
    numbers: std::ops::Range<u64>,
    durable: bool,
) -> Result<Vec<mqstore::message::Appended>, StoreError> {
    let queue_id = i32::try_from(numbers.start % u64::from(QUEUES)).ok();
    let parts: Vec<_> = numbers
        .map(|number| {
            let key = format!("k{}", number % 50);
            let properties = encode_properties([key.as_str()], None, None, []).unwrap();
            (body(thread, number), properties)
        })
        .collect();
    let messages: Vec<_> = parts
        .iter()
        .map(|(body, properties)| NewMessage {
            topic: TOPIC,
            body,
            properties,
            unique_key: None,
            queue_id,
            flag: 0,
            born_timestamp_ms: None,
            durable,
            ..NewMessage::default()
        })
        .collect();
    store.append_many(&messages)
}

/// Generator of small random numbers. The same seed gives the same numbers.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        // xorshift64*: from every state except zero, all other states are reached.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % limit
    }
}
