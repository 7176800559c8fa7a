//! Topics as tables: compaction, the compaction appender, and a table that others load.

use std::collections::HashSet;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use mqstore::Store;
use mqstore::compaction::{CompactedQueue, CompactionOptions, JobControl};
use mqstore::format::{CQ_UNIT_BYTES, CqUnit, RecordView, key_digest};
use mqstore::inspect::StoreFiles;
use mqstore::io::{OsVfs, SystemClock};
use mqstore::message::encode_properties;
use mqstore::options::OpenMode;
use mqstore_log::commit_log::SegmentList;
use serde_json::{Value, json};

use crate::Failure;
use crate::finding::places;
use crate::ours::{message, open_store};
use crate::spec::Spec;

const TOPIC: &str = "bench";

const PAGE_BYTES: usize = 4096;

/// The key of a message. All keys have the same length, so that all records have one size.
fn key(number: u64) -> String {
    format!("order-{number:08}")
}

/// Appends `spec.messages` messages with `spec.keys` keys in random order. If there are enough keys, each
/// message has its own. Returns the number of keys used.
fn put(store: &Store, spec: &Spec) -> Result<u64, Failure> {
    let body = vec![b'x'; spec.body_bytes];
    let mut seen = HashSet::new();
    let own = spec.keys >= spec.messages;
    for (at, place) in (0..).zip(places(spec.keys, spec.messages)) {
        let number = if own { at } else { place };
        seen.insert(number);
        let key = key(number);
        let properties = encode_properties([key.as_str()], Some("paid"), None, [("region", "eu")])?;
        store.append(&message(&body, &properties, (number % u64::from(spec.queues)) as i32))?;
    }
    Ok(seen.len() as u64)
}

/// A new store with a compaction topic that holds the messages. All are durable and also in the compaction
/// files.
fn filled(spec: &Spec) -> Result<(Store, u64), Failure> {
    let store = table_store(spec)?;
    let keys = put(&store, spec)?;
    store.flush()?;
    store.stats()?;
    // Finishes the copies of the background, which would otherwise run during the measurement.
    store.step()?;
    Ok((store, keys))
}

fn table_store(spec: &Spec) -> Result<Store, Failure> {
    let store = open_store(spec, OpenMode::Create)?;
    store.create_topic(TOPIC, spec.queues, &[("cleanup.policy".to_owned(), "COMPACTION".to_owned())])?;
    Ok(store)
}

fn compact(store: &Store, spec: &Spec, keys: u64) -> Result<(), Failure> {
    let control = Arc::new(JobControl::default());
    let options = CompactionOptions { confirm_keys: spec.confirm_keys, ..CompactionOptions::default() };
    let report = store.compact(None, &options, spec.threads as usize, &control)?;
    if (report.messages_before, report.messages_after) != (spec.messages, keys) {
        return Err(format!("{} messages of {keys} keys left {report:?}", spec.messages).into());
    }
    Ok(())
}

fn result(spec: &Spec, seconds: f64) -> Value {
    json!({ "seconds": seconds, "messages": spec.messages, "stored": spec.messages, "refused": 0 })
}

/// A compaction of an open store, until its result is published and durable.
pub(crate) fn ours(spec: &Spec) -> Result<Value, Failure> {
    let (store, keys) = filled(spec)?;
    let begin = Instant::now();
    compact(&store, spec, keys)?;
    let seconds = begin.elapsed().as_secs_f64();
    store.close()?;
    Ok(result(spec, seconds))
}

/// From the first append until every message is in the compaction log and the store is closed, so everything
/// is durable.
pub(crate) fn feed(spec: &Spec) -> Result<Value, Failure> {
    let store = table_store(spec)?;
    let begin = Instant::now();
    put(&store, spec)?;
    store.close()?;
    let seconds = begin.elapsed().as_secs_f64();
    let files = StoreFiles::new(Arc::new(OsVfs::new()), Arc::new(SystemClock::new()), &spec.path);
    let mut fed = 0;
    for queue_id in 0..spec.queues as i32 {
        let queue = CompactedQueue::open(&files, TOPIC, queue_id)?.ok_or("a queue was not fed")?;
        for record in queue.read(0) {
            record?;
            fed += 1;
        }
    }
    if fed != spec.messages {
        return Err(format!("{fed} of {} messages were fed", spec.messages).into());
    }
    Ok(result(spec, seconds))
}

/// A new store that was compacted and closed, for a program that loads it.
pub(crate) fn table(spec: &Spec) -> Result<Value, Failure> {
    let (store, keys) = filled(spec)?;
    compact(&store, spec, keys)?;
    let end = store.stats()?.log_max_offset;
    store.close()?;
    Ok(json!({ "messages": spec.messages, "stored": keys, "log_bytes": end }))
}

/// The machine's limit: reads every record once through a map, and computes the MD5 of its key.
pub(crate) fn bare(spec: &Spec) -> Result<Value, Failure> {
    let (store, _) = filled(spec)?;
    store.close()?;
    let files = StoreFiles::new(Arc::new(OsVfs::new()), Arc::new(SystemClock::new()), &spec.path);
    let list = SegmentList::load(&files)?;
    for segment in list.segments() {
        // As in the process that wrote the log, every page is present.
        let region = segment.region()?;
        for page in (0..region.len()).step_by(PAGE_BYTES) {
            black_box(region.view(page, 1)?.first());
        }
    }
    let begin = Instant::now();
    let records = thread::scope(|scope| {
        let shares = (0..spec.threads).map(|thread| {
            let list = &list;
            scope.spawn(move || {
                let mine = (0..u64::from(spec.queues)).filter(|queue| queue % spec.threads == thread);
                mine.map(|queue| bare_queue(spec, list, queue)).sum::<Result<u64, Failure>>()
            })
        });
        let shares: Vec<_> = shares.collect();
        shares
            .into_iter()
            .map(|share| share.join().map_err(|_| "a thread of the loop panicked")?)
            .sum::<Result<u64, Failure>>()
    })?;
    let seconds = begin.elapsed().as_secs_f64();
    if records != spec.messages {
        return Err(format!("{records} of {} records were found", spec.messages).into());
    }
    Ok(result(spec, seconds))
}

/// The records of a queue, by its entries.
fn bare_queue(spec: &Spec, list: &SegmentList, queue: u64) -> Result<u64, Failure> {
    let folder = spec.path.join("consumequeue").join(TOPIC).join(queue.to_string());
    let mut names: Vec<_> =
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_, Failure>>()?;
    names.sort();
    let mut records = 0;
    for name in names {
        let file = File::open(name)?;
        let mut units = vec![0; file.metadata()?.len() as usize];
        file.read_exact_at(&mut units, 0)?;
        for unit in units.as_chunks::<CQ_UNIT_BYTES>().0.iter().map(CqUnit::decode) {
            let position = unit.physical_offset as u64;
            let Some(segment) = list.find(position).filter(|_| unit.size > 0) else { break };
            let region = segment.region()?;
            let bytes = region.view((position - segment.base_offset()) as usize, unit.size as usize)?;
            let record = RecordView::decode(&bytes)?;
            // Reads every byte.
            let (words, _) = bytes.as_chunks::<8>();
            black_box(words.iter().fold(0, |sum, word| sum ^ u64::from_be_bytes(*word)));
            black_box(key_digest(record.keys().unwrap_or_default()));
            records += 1;
        }
    }
    Ok(records)
}
