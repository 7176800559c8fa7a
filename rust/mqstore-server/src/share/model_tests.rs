//! A random model of a shared store: several handles append and work at the same time, while connections are cut at any
//! time and owners close. What is stored is compared with what each thread knows.
//!
//! The mutants leave out one step each; the model must notice each of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use mqstore::io::sync::AtomicUsize;
use mqstore::message::Appended;
use mqstore::{NewMessage, NewWork, WorkQueueOptions};

use super::tests::{bodies, open};
use super::*;
use crate::steps;

const THREADS: usize = 3;

/// Steps that keep a message from being stored twice; few runs show that one of them is missing.
const STEPS: [&str; 2] = ["call.mark_again", "verbs.look_for_earlier"];

/// One more, which needs many runs. The others are those of `service::takeover_tests`.
const RARE_STEPS: [&str; 1] = ["service.keep_until_idle"];

/// A small generator: the same seed gives the same choices.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// What one thread knows.
#[derive(Default)]
struct Known {
    stored: Vec<u64>,
    put: BTreeSet<Vec<u8>>,
    acked: BTreeSet<Vec<u8>>,
}

fn body(thread: usize, number: u64) -> Vec<u8> {
    format!("{thread} {number}").into_bytes()
}

fn wrong(what: &str) -> Error {
    StoreError::Refused { reason: what.to_owned() }.into()
}

/// Counts a thread until it ends, also by a panic.
struct Running<'a>(&'a AtomicUsize);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn work(store: &SharedStore, thread: usize, seed: u64, ops: u64) -> Result<Known, Error> {
    let mut random = Random(seed ^ (thread as u64) << 40);
    let mut known = Known::default();
    let options = WorkQueueOptions {
        visibility_timeout: Duration::from_millis(300),
        max_attempts: None,
        ..Default::default()
    };
    let queue = store.work_queue("jobs", None, options)?;
    let mut number = 0;
    let step = Duration::from_millis(20);
    for _ in 0..ops {
        match random.below(10) {
            0..=4 => {
                let body = body(thread, number);
                let durable = random.below(10) == 0;
                Verbs::Shared(store).append(&NewMessage {
                    topic: "log",
                    body: &body,
                    durable,
                    ..Default::default()
                })?;
                known.stored.push(number);
                number += 1;
            }
            5 => {
                let bodies: Vec<_> = (0..=random.below(9)).map(|at| body(thread, number + at)).collect();
                let new: Vec<_> = bodies
                    .iter()
                    .map(|body| NewMessage { topic: "log", body, ..Default::default() })
                    .collect();
                let all: Vec<Appended> = Verbs::Shared(store).append_many(&new)?;
                if all.len() != new.len() {
                    return Err(wrong("an append has another number of results"));
                }
                known.stored.extend(number..number + new.len() as u64);
                number += new.len() as u64;
            }
            6 | 7 => {
                let body = body(thread, number);
                let new = [NewWork { body: &body, ..Default::default() }];
                let mut put = queue.put(&new, false, None)?;
                while put.step(step)?.is_none() {}
                drop(put);
                known.put.insert(body);
                number += 1;
            }
            _ => {
                let mut get = queue.get(2, Some(Duration::from_millis(5)))?;
                let found = loop {
                    if let Some(found) = get.step(step)? {
                        break found;
                    }
                };
                for message in found {
                    let body = message.record.view().map(|view| view.body.to_vec()).unwrap_or_default();
                    match message.lease.ack(false) {
                        Ok(()) if known.acked.insert(body) => {}
                        Ok(()) => return Err(wrong("a message was acknowledged twice")),
                        Err(Error::LeaseLost { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
    }
    Ok(known)
}

/// Returns what is wrong, or nothing.
fn run(root: &Path, seed: u64, ops: u64) -> Result<(), String> {
    let stores: Vec<_> = (0..=THREADS).map(|_| open(root)).collect();
    let running = AtomicUsize::new(THREADS);
    let known = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (store, running) = (stores[thread + 1].clone(), &running);
                scope.spawn(move || {
                    let _running = Running(running);
                    work(&store, thread, seed, ops)
                })
            })
            .collect();
        let mut random = Random(!seed);
        let mut owner = Some(&stores[0]);
        while running.load(Ordering::Acquire) > 0 {
            std::thread::sleep(Duration::from_micros(200 + random.below(3000)));
            stores[1 + random.below(THREADS as u64) as usize].cut();
            if random.below(100) == 0
                && let Some(owner) = owner.take()
            {
                // One of the threads' handles takes over.
                owner.close().map_err(|error| error.to_string())?;
            }
        }
        threads
            .into_iter()
            .map(|thread| {
                thread.join().map_err(|_| "a thread panicked".to_owned())?.map_err(|e| e.to_string())
            })
            .collect::<Result<Vec<_>, String>>()
    })?;
    let mut found: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    for body in bodies(&stores[1], "log") {
        let text = String::from_utf8_lossy(&body).into_owned();
        let (thread, number) = text.split_once(' ').ok_or("a strange body")?;
        let number = number.parse().map_err(|_| "a strange number")?;
        found.entry(thread.parse().map_err(|_| "a strange thread")?).or_default().push(number);
    }
    for (thread, known) in known.iter().enumerate() {
        let found = found.remove(&thread).unwrap_or_default();
        if found != known.stored {
            let mut extra = found.clone();
            for number in &known.stored {
                match extra.iter().position(|one| one == number) {
                    Some(at) => drop(extra.remove(at)),
                    None => return Err(format!("thread {thread}: {number} is lost")),
                }
            }
            let order = if extra.is_empty() { "out of order" } else { "stored twice, or never by it" };
            return Err(format!("thread {thread}: {extra:?} are {order}"));
        }
    }
    let put: BTreeSet<_> = known.iter().flat_map(|known| known.put.clone()).collect();
    let jobs = bodies(&stores[1], "jobs");
    if jobs.len() != put.len() || jobs.iter().cloned().collect::<BTreeSet<_>>() != put {
        return Err(format!("{} jobs were put, and there are {}", put.len(), jobs.len()));
    }
    let acked: usize = known.iter().map(|known| known.acked.len()).sum();
    let all: BTreeSet<_> = known.iter().flat_map(|known| known.acked.clone()).collect();
    if acked != all.len() || !all.is_subset(&put) {
        return Err("a message was acknowledged by two workers".to_owned());
    }
    stores.iter().try_for_each(|store| store.close().map_err(|error| error.to_string()))
}

/// The environment variable with the seeds of a run in another process.
const SEEDS: &str = "MQSTORE_SHARE_SEEDS";

/// Runs the model in this process, from the test below.
#[test]
fn runs_the_model() {
    let Some(seeds) = std::env::var(SEEDS).ok().and_then(|seeds| seeds.parse().ok()) else { return };
    for seed in 0..seeds {
        let dir = tempfile::tempdir().unwrap();
        if let Err(wrong) = run(&dir.path().join("s"), seed, 300) {
            panic!("seed {seed}: {wrong}");
        }
    }
}

fn model_holds(step: &str, seeds: u64) -> (bool, String) {
    steps::passes_without(step, "share::model_tests::runs_the_model", (SEEDS, &seeds.to_string()))
}

#[test]
fn the_model_holds_and_notices_each_step_that_is_left_out() {
    let soak = std::env::var_os("MQSTORE_SOAK").is_some();
    let (holds, printed) = model_holds("", if soak { 500 } else { 5 });
    assert!(holds, "{printed}");
    let rare = if soak { RARE_STEPS.as_slice() } else { &[] };
    for step in STEPS.iter().chain(rare) {
        assert!(!model_holds(step, 200).0, "the model does not notice that {step} is left out");
    }
}
