//! A store with very many queues: the cost to build, close, reopen and read it.

use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

use mqstore::Store;
use mqstore::options::OpenMode;
use serde_json::{Value, json};

use crate::Failure;
use crate::ours::{message, open_store};
use crate::spec::Spec;

/// Queues of one topic.
const QUEUES_A_TOPIC: u64 = 100;
/// Queues that get messages after the store was built.
const ACTIVE: u64 = 100;

/// `spec.queues` queues with `spec.messages` messages in total.
pub(crate) fn queues(spec: &Spec) -> Result<Value, Failure> {
    let mut figures = BTreeMap::new();
    let queues = u64::from(spec.queues);
    let mut timed = |name: &'static str, work: &mut dyn FnMut() -> Result<(), Failure>| {
        let begin = Instant::now();
        work()?;
        figures.insert(name, begin.elapsed().as_secs_f64() * 1e3);
        Ok::<_, Failure>(())
    };
    let mut store = open_store(spec, OpenMode::Create)?;
    for topic in 0..queues.div_ceil(QUEUES_A_TOPIC) {
        store.create_topic(&name(topic), QUEUES_A_TOPIC as u32, &[])?;
    }
    timed("build_ms", &mut || {
        put(&store, spec, queues, spec.messages)?;
        // Waits for the queues.
        store.stats()?;
        Ok(())
    })?;
    let open = (descriptors()?, resident_mib()?);
    timed("close_ms", &mut || Ok(store.close()?))?;
    timed("open_ms", &mut || {
        store = open_store(spec, OpenMode::ReadWrite)?;
        Ok(())
    })?;
    put(&store, spec, ACTIVE, ACTIVE * 10)?;
    timed("close_active_ms", &mut || Ok(store.close()?))?;
    timed("open_active_ms", &mut || {
        store = open_store(spec, OpenMode::ReadWrite)?;
        Ok(())
    })?;
    let mut found = 0;
    timed("read_ms", &mut || {
        for queue in 0..queues {
            let mut cursor = store.read(&name(queue / QUEUES_A_TOPIC), id(queue), None, None, None)?;
            found += cursor.next_batch(1000)?.len() as u64;
        }
        Ok(())
    })?;
    let read = (descriptors()?, resident_mib()?);
    store.close()?;
    let mut result = json!({
        "seconds": figures.get("build_ms").map(|ms| ms / 1e3), "messages": spec.messages, "stored": found - ACTIVE * 10, "refused": 0,
        "descriptors": open.0.max(read.0), "resident_mib": open.1.max(read.1),
    });
    for (name, value) in figures {
        if let Some(fields) = result.as_object_mut() {
            fields.insert(name.into(), json!(value));
        }
    }
    Ok(result)
}

/// Appends `messages` messages to the first `queues` queues in turn.
fn put(store: &Store, spec: &Spec, queues: u64, messages: u64) -> Result<(), Failure> {
    let body = vec![b'x'; spec.body_bytes];
    let properties = mqstore_bench::properties();
    let names: Vec<_> = (0..queues.div_ceil(QUEUES_A_TOPIC)).map(name).collect();
    for number in 0..messages {
        let queue = number % queues;
        let topic = names.get((queue / QUEUES_A_TOPIC) as usize).ok_or("a queue without a topic")?;
        store.append(&mqstore::message::NewMessage { topic, ..message(&body, &properties, id(queue)) })?;
    }
    Ok(())
}

fn name(topic: u64) -> String {
    format!("topic-{topic:04}")
}

fn id(queue: u64) -> i32 {
    (queue % QUEUES_A_TOPIC) as i32
}

fn descriptors() -> Result<usize, Failure> {
    Ok(fs::read_dir("/proc/self/fd")?.count())
}

/// Memory of this process except file pages.
fn resident_mib() -> Result<u64, Failure> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line =
        status.lines().find_map(|line| line.strip_prefix("RssAnon:")).ok_or("no RssAnon in the status")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? >> 10)
}
