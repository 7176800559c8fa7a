//! Very many queues: the memory that an open store needs for them, and the time of an open after a clean
//! close.
//!
//! - `mqstore-queues light N [FOLDER]`: N light queues with one entry each, made by records that name a
//!   hundred of them.
//! - `mqstore-queues open N [FOLDER]`: N queues, a hundred in each topic, with one message each. Then 100 of
//!   them are used once more.
//! - `mqstore-queues reopen STORE`: opens and closes the store that one of the others left in FOLDER, with
//!   `KEEP=1` in the environment.
//!
//! A new process opens the store, so its memory is that of an open store alone. The figures go to standard
//! output as one line of JSON. The store is removed, except with `KEEP=1`. A queue takes about 12 KiB of the
//! disk, and three inodes.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program that says what it found")]

use std::path::Path;
use std::process::Command;
use std::time::Instant;
use std::{env, fs};

use mqstore::Store;
use mqstore::message::NewMessage;
use mqstore::options::{OpenMode, StoreOptions};
use mqstore_bench::{message, open};
use serde_json::{Value, json};

type Failure = Box<dyn std::error::Error>;

const QUEUES_A_TOPIC: u64 = 100;
const ACTIVE: u64 = 100;
const NAMES_A_RECORD: u64 = 100;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let figures = match *arguments.as_slice() {
        ["reopen", store] => reopened(Path::new(store))?,
        ["light", queues] => aside(&env::temp_dir(), |path| light(path, queues.parse()?))?,
        ["light", queues, folder] => aside(Path::new(folder), |path| light(path, queues.parse()?))?,
        ["open", queues] => aside(&env::temp_dir(), |path| plain(path, queues.parse()?))?,
        ["open", queues, folder] => aside(Path::new(folder), |path| plain(path, queues.parse()?))?,
        _ => return Err("mqstore-queues light|open N [FOLDER], or mqstore-queues reopen STORE".into()),
    };
    println!("{figures}");
    Ok(())
}

/// Calls `work` with the path for a store in a new folder in `folder`.
fn aside(folder: &Path, work: impl FnOnce(&Path) -> Result<Value, Failure>) -> Result<Value, Failure> {
    let scratch = tempfile::tempdir_in(folder)?;
    let figures = work(&scratch.path().join("store"))?;
    if env::var_os("KEEP").is_some() {
        eprintln!("{}", scratch.keep().join("store").display());
    }
    Ok(figures)
}

fn light(path: &Path, queues: u64) -> Result<Value, Failure> {
    let store = open(path, OpenMode::Create, &StoreOptions::default());
    store.append(&message(b"first", &[]))?;
    store.stats()?;
    let bare = resident_kib()?;
    let begin = Instant::now();
    for first in (0..queues).step_by(NAMES_A_RECORD as usize) {
        let numbers = first..queues.min(first + NAMES_A_RECORD);
        let names: Vec<_> = numbers.clone().map(|number| format!("%LMQ%device-{number:08}")).collect();
        let offsets: Vec<_> = numbers.map(|_| "0").collect();
        let properties = format!(
            "INNER_MULTI_DISPATCH\x01{}\x02INNER_MULTI_QUEUE_OFFSET\x01{}\x02",
            names.join(","),
            offsets.join(",")
        );
        store.append(&message(b"x", properties.as_bytes()))?;
    }
    store.flush()?;
    let build_s = begin.elapsed().as_secs_f64();
    let made = resident_kib()?;
    let close_s = close(&store)?;
    let open = again(path)?;
    Ok(json!({
        "queues": queues, "build_s": build_s, "close_s": close_s, "bare_kib": bare, "made_kib": made,
        "reopened": open,
    }))
}

fn plain(path: &Path, queues: u64) -> Result<Value, Failure> {
    let store = open(path, OpenMode::Create, &StoreOptions::default());
    for topic in 0..queues.div_ceil(QUEUES_A_TOPIC) {
        store.create_topic(&name(topic), QUEUES_A_TOPIC as u32, &[])?;
    }
    let begin = Instant::now();
    put(&store, queues)?;
    store.flush()?;
    let build_s = begin.elapsed().as_secs_f64();
    let close_s = close(&store)?;
    let store = open(path, OpenMode::ReadWrite, &StoreOptions::default());
    put(&store, ACTIVE)?;
    let close_active_s = close(&store)?;
    let open = again(path)?;
    Ok(json!({
        "queues": queues, "build_s": build_s, "close_s": close_s, "close_active_s": close_active_s, "reopened": open,
    }))
}

/// The result of [`reopened`] in a separate process, three times.
fn again(path: &Path) -> Result<Vec<Value>, Failure> {
    let once = |_| {
        let output = Command::new(env::current_exe()?).arg("reopen").arg(path).output()?;
        Ok(serde_json::from_slice(&output.stdout)?)
    };
    (0..3).map(once).collect()
}

fn reopened(path: &Path) -> Result<Value, Failure> {
    let bare = resident_kib()?;
    let begin = Instant::now();
    let store = open(path, OpenMode::ReadWrite, &StoreOptions::default());
    let open_s = begin.elapsed().as_secs_f64();
    let opened = resident_kib()?;
    let close_s = close(&store)?;
    Ok(json!({"open_s": open_s, "bare_kib": bare, "open_kib": opened, "close_s": close_s}))
}

fn put(store: &Store, queues: u64) -> Result<(), Failure> {
    for queue in 0..queues {
        let topic = name(queue / QUEUES_A_TOPIC);
        let queue_id = Some((queue % QUEUES_A_TOPIC) as i32);
        store.append(&NewMessage { topic: &topic, queue_id, ..message(b"x", &[]) })?;
    }
    Ok(())
}

fn close(store: &Store) -> Result<f64, Failure> {
    let begin = Instant::now();
    store.close()?;
    Ok(begin.elapsed().as_secs_f64())
}

fn name(topic: u64) -> String {
    format!("topic-{topic:06}")
}

/// Memory of this process except file pages.
fn resident_kib() -> Result<u64, Failure> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line =
        status.lines().find_map(|line| line.strip_prefix("RssAnon:")).ok_or("no RssAnon in the status")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
