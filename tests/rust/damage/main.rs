//! Changes bytes of stores at random: one bit, one byte, hundreds of bytes, a truncation, or a whole file.
//!
//! After each change the suite checks the promises of `mqstore_tests::damaged`: verify reports all damage
//! that matters, a repair saves every undamaged message, the repaired store verifies clean, and a second
//! repair changes nothing. Nothing panics, hangs, or takes memory without a limit. `MQSTORE_SOAK=1` tries
//! 64,000 changes instead of some hundreds. A failure prints `MQSTORE_CHANGE=store:seed`; set this variable
//! to try the same change again.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use mqstore_tests::changes::{Choices, Seeded, change};
use mqstore_tests::damaged::{Outcome, Subject};

/// The run stops after this many failures.
const ENOUGH: usize = 40;

/// Changes that a repair once handled wrongly: store names and seeds.
const ONCE_FAILED: [(&str, u64); 8] = [
    ("plain", 15_505),
    ("plain", 24_271),
    ("killed", 30_206),
    ("closed", 35_064),
    ("repaired", 37_695),
    ("plain", 42_367),
    ("rocketmq-5.3.3", 33_112),
    ("rocketmq-5.3.3", 45_310),
];

/// Maximum memory of each thread, the simulated disk included. Index files of RocketMQ's default size have
/// 420 MB. Here they are in memory, together with their rebuilt copies.
const MOST_BYTES: u64 = 1 << 30;

fn soak() -> bool {
    std::env::var_os("MQSTORE_SOAK").is_some_and(|value| !value.is_empty())
}

/// The stores that mqstore wrote, and those that RocketMQ wrote.
fn subjects() -> Vec<Subject> {
    let mut all = Subject::ours().unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("damage/stores");
    for version in ["rocketmq-5.3.3", "rocketmq-5.5.0"] {
        let bytes = std::fs::read(folder.join(version)).unwrap();
        all.push(Subject::packed(version, &bytes).unwrap());
    }
    all
}

/// Runs one case: one to four changes.
fn attempt(subject: &Subject, seed: u64) -> Result<Outcome, String> {
    let mut choices = Seeded(seed);
    let mut said = Vec::new();
    let outcome = subject.try_change(|vfs| {
        let count = choices.below(8).saturating_sub(3).max(1);
        for _ in 0..count {
            said.push(change(vfs, &mut choices)?);
        }
        Ok(())
    });
    outcome
        .map_err(|what| format!("MQSTORE_CHANGE={}:{seed}\n  {}\n  {what}", subject.name, said.join("\n  ")))
}

fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib << 10)
}

#[test]
fn changed_bytes_are_found_and_repaired() {
    let subjects = subjects();
    if let Ok(one) = std::env::var("MQSTORE_CHANGE") {
        let (name, seed) = one.split_once(':').unwrap();
        let subject = subjects.iter().find(|subject| subject.name == name).unwrap();
        println!("{:?}", attempt(subject, seed.parse().unwrap()).unwrap_or_else(|what| panic!("{what}")));
        return;
    }
    let cases: u64 = if soak() { 64_000 } else { 600 };
    let (next, found, hit, saved) =
        (AtomicU64::new(0), AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let failures = Mutex::new(Vec::new());
    let work = || {
        while failures.lock().unwrap().len() < ENOUGH {
            let case = next.fetch_add(1, Ordering::Relaxed);
            let Some(subject) =
                subjects.get((case % subjects.len() as u64) as usize).filter(|_| case < cases)
            else {
                return;
            };
            match attempt(subject, case) {
                Ok(outcome) => {
                    found.fetch_add(usize::from(outcome.found), Ordering::Relaxed);
                    hit.fetch_add(outcome.hit, Ordering::Relaxed);
                    saved.fetch_add(outcome.saved, Ordering::Relaxed);
                }
                Err(what) => failures.lock().unwrap().push(what),
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let mut failures = failures.into_inner().unwrap();
    for (name, seed) in ONCE_FAILED {
        let subject = subjects.iter().find(|subject| subject.name == name).unwrap();
        failures.extend(attempt(subject, seed).err());
    }
    assert!(failures.is_empty(), "{} of {cases}:\n{}", failures.len(), failures.join("\n\n"));
    let (found, hit, saved) = (found.into_inner(), hit.into_inner(), saved.into_inner());
    println!("{cases} changes: {found} found, {hit} messages hit, {saved} read again after the repair");
    assert!(found as u64 > cases / 3 && hit as u64 > cases / 3 && saved as u64 > cases * 20);
    if let Some(peak) = peak_bytes() {
        println!("peak memory {} MiB", peak >> 20);
        assert!(peak < MOST_BYTES * (threads as u64 + 1), "{peak} bytes of memory");
    }
}
