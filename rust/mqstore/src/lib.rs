//! An embeddable message store that reads and writes Apache RocketMQ's store directory.
//!
//! A [`Store`] is a directory with a durable log of messages. Work queues, consumers of groups, delayed messages,
//! transactions and key tables work on the messages of this log. The other crates are the parts of the store; a program
//! needs only this one, and finds the less common types in the modules.
//!
//! ```
//! use std::time::Duration;
//!
//! use mqstore::message::encode_properties;
//! use mqstore::{ConsumerOptions, Due, NewMessage, NewWork, Store, WorkQueueOptions};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     # let folder = tempfile::tempdir()?;
//!     # let path = folder.path().join("store");
//!     let store = Store::open(path)?;
//!
//!     // Append a message to a topic, and read it.
//!     let apples = NewMessage { topic: "orders", body: b"three apples", ..NewMessage::default() };
//!     let appended = store.append(&apples)?;
//!     let mut cursor = store.read("orders", appended.queue_id, None, None, None)?;
//!     assert_eq!(cursor.next_batch(10)?[0].view()?.body, b"three apples");
//!
//!     // A work queue gives each message to one worker, again and again until a worker acknowledges it.
//!     let jobs = store.work_queue("jobs", WorkQueueOptions::default())?;
//!     jobs.put(&NewWork { body: b"resize", ..NewWork::default() }, None)?;
//!     let job = jobs.get(None)?;
//!     assert_eq!(job.view()?.body, b"resize");
//!     job.lease.ack(false)?;
//!
//!     // A consumer reads topics for its group, from the offsets that the group committed.
//!     let consumer = store.consumer("billing", &["orders"], ConsumerOptions::default())?;
//!     assert_eq!(consumer.poll(10, None)?[0].view()?.body, b"three apples");
//!     consumer.commit(false)?;
//!
//!     // A delayed message comes to its topic when it is due.
//!     let pears = NewMessage { topic: "orders", body: b"two pears", ..NewMessage::default() };
//!     store.append_later(&[(pears, Due::At(appended.store_timestamp_ms + 100))])?;
//!     let later = consumer.poll(10, Some(Duration::from_secs(10)))?;
//!     assert_eq!(later[0].view()?.body, b"two pears");
//!
//!     // A table has the newest message of each key of a topic.
//!     let key = encode_properties(["apple"], None, None, [])?;
//!     for price in [b"3", b"4"] {
//!         let price = NewMessage { topic: "prices", body: price, properties: &key, ..NewMessage::default() };
//!         store.append(&price)?;
//!     }
//!     let prices = store.table("prices")?;
//!     let (_, row) = prices.get("apple").ok_or("no price")?;
//!     assert_eq!(row.record.ok_or("no message")?.view()?.body, b"4");
//!
//!     store.close()?;
//!     Ok(())
//! }
//! ```
#![forbid(unsafe_code)]

pub mod append;
pub mod compaction;
pub mod delivery;
pub mod inspect;
pub mod io;
pub mod read;
pub mod store;

pub use mqstore_archive as archive;
pub use mqstore_arrow as arrow;
pub use mqstore_backup as backup;
pub use mqstore_base::{body_compression, error, events, message, notes, options};
pub use mqstore_format as format;
pub use mqstore_replication as replication;
pub use mqstore_results as results;
pub use mqstore_transfer as transfer;

pub use delivery::{
    BrokerError as Error, Consumer, ConsumerOptions, Due, LeasedMessage, NewWork, Transaction, Transactions,
    WorkQueue, WorkQueueOptions,
};
pub use message::{NewMessage, StoredRecord};
pub use options::{Durability, OpenMode, StoreOptions};
pub use read::TableRows;
pub use store::{Store, StoreBuilder};
