//! mqstore through its public API.

use std::thread;
use std::time::{Duration, Instant};

use mqstore::Store;
use mqstore::error::StoreError;
use mqstore::message::NewMessage;
use mqstore::options::OpenMode;
use mqstore_bench::properties;
use serde_json::{Value, json};

use crate::Failure;
use crate::latency::{Latencies, quantiles};
use crate::limits::in_threads;
use crate::spec::Spec;

/// A message as the Java driver makes it: with the current born time and a unique id from the append.
pub(crate) fn message<'a>(body: &'a [u8], properties: &'a [u8], queue_id: i32) -> NewMessage<'a> {
    NewMessage {
        queue_id: Some(queue_id),
        born_timestamp_ms: None,
        ..mqstore_bench::message(body, properties)
    }
}

/// Opens a store of `spec` at its path.
pub(crate) fn open_store(spec: &Spec, mode: OpenMode) -> Result<Store, Failure> {
    Ok(Store::builder(&spec.path).mode(mode).options(spec.store_options()?).open_undelivered()?)
}

/// Appends messages. Returns their number and the time.
pub(crate) fn append(spec: &Spec) -> Result<Value, Failure> {
    let store = open_store(spec, OpenMode::Create)?;
    store.create_topic("bench", spec.queues, &[])?;
    put(&store, spec, 0, spec.warm_up)?;
    // Waits until queues and index are built.
    let before = store.stats()?;
    thread::sleep(Duration::from_millis(spec.settle_ms));
    let (mut seconds, mut latencies) = (0.0, Latencies::default());
    for burst in spec.bursts() {
        let (taken, each) = in_threads(spec.threads, burst, |thread, share| {
            put(&store, spec, (thread % u64::from(spec.queues)) as i32, share)
        })?;
        seconds += taken;
        latencies.add(&each);
        thread::sleep(spec.pause());
    }
    if spec.until == "drained" {
        let begin = Instant::now();
        store.stats()?;
        seconds += begin.elapsed().as_secs_f64();
    }
    // Messages that become visible only when durable count as well.
    store.flush()?;
    let after = store.stats()?;
    let stored = stored(&store)? - spec.warm_up;
    let bytes = (after.appended_bytes - before.appended_bytes) / spec.messages;
    store.close()?;
    let mut result = json!({
        "seconds": seconds, "messages": spec.messages, "stored": stored,
        "refused": spec.messages - (after.appends - before.appends), "record_bytes": bytes,
    });
    if let (true, Some(fields)) = (spec.latency, result.as_object_mut()) {
        fields.insert("latency".into(), quantiles(&latencies));
    }
    Ok(result)
}

/// Number of messages in all queues.
pub(crate) fn stored(store: &Store) -> Result<u64, StoreError> {
    // The content of the queues after dispatch has caught up.
    Ok(store.queues("bench")?.iter().map(|queue| (queue.max_offset - queue.min_offset) as u64).sum())
}

/// Appends `count` messages in calls of `spec.batch`.
fn put(store: &Store, spec: &Spec, queue_id: i32, count: u64) -> Result<Latencies, Failure> {
    let body = vec![b'x'; spec.body_bytes];
    let properties = properties();
    let message = message(&body, &properties, queue_id);
    let mut latencies = Latencies::default();
    if spec.batch > 1 {
        let batch = vec![message; spec.batch as usize];
        for _ in 0..count / spec.batch {
            timed(spec.latency, &mut latencies, || store.append_many(&batch))?;
        }
        let rest = batch.get(..(count % spec.batch) as usize).unwrap_or_default();
        store.append_many(rest)?;
    } else if spec.latency {
        for _ in 0..count {
            timed(true, &mut latencies, || store.append(&message))?;
        }
    } else {
        for _ in 0..count {
            store.append(&message)?;
        }
    }
    Ok(latencies)
}

fn timed<T>(
    timed: bool,
    latencies: &mut Latencies,
    call: impl FnOnce() -> Result<T, StoreError>,
) -> Result<(), StoreError> {
    if !timed {
        return call().map(drop);
    }
    let begin = Instant::now();
    call()?;
    latencies.record(begin.elapsed().as_nanos() as u64);
    Ok(())
}

/// Opens a store. Returns the time and the number of messages found. Then appends some messages. A store that
/// is not closed stays open until the caller ends the process.
pub(crate) fn open(spec: &Spec) -> Result<Value, Failure> {
    let clean = !spec.path.join("abort").exists();
    let begin = Instant::now();
    let store = open_store(spec, OpenMode::Create)?;
    let seconds = begin.elapsed().as_secs_f64();
    let found = store.stats()?;
    put(&store, spec, 0, spec.messages.saturating_sub(spec.unflushed))?;
    store.stats()?;
    if spec.messages > 0 {
        store.flush()?;
    }
    put(&store, spec, 0, spec.unflushed.min(spec.messages))?;
    let end = store.stats()?.log_max_offset;
    if spec.close {
        store.close()?;
    } else {
        // Dropping a store closes it, but this one must be found as after a kill.
        Box::leak(Box::new(store));
    }
    Ok(json!({
        "seconds": seconds, "was_clean": clean, "log_end": found.log_max_offset, "end_after": end,
    }))
}
