//! Kills a native writer with several threads by SIGKILL at a random moment.
//!
//! The child process is this test program, which runs only the test `victim`. After each append that
//! returned, the child writes one line to a journal, directly with a system call, so that the kill cannot
//! undo it:
//!
//! ```text
//! a thread number queue queue-offset log-offset      an append that was acknowledged
//! f log-offset                                       a flush returned; all below was appended before it began
//! ```
//!
//! The next process must find each acknowledged message at its place, byte for byte, and nothing else except
//! appends that were in progress. The queues are dense and keep the order of each thread's messages. With
//! `pooled`, the end of the log after the last write to the file may be missing. Bytes that a flush covered
//! are never missing, and there is never a gap.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mqstore::Store;
use mqstore::inspect::{StoreFiles, verify};
use mqstore::io::{OsVfs, SystemClock};
use mqstore::options::{Durability, OpenMode};

use super::{Chance, QUEUES, TOPIC, append, checked, open, options, soak};

const THREADS: u64 = 3;
const HOME: &str = "MQSTORE_HAMMER_HOME";
const MODE: &str = "MQSTORE_HAMMER_MODE";

fn modes() -> [(&'static str, Durability); 4] {
    [
        ("async", Durability::Async),
        ("sync", Durability::Sync),
        ("manual", Durability::Manual),
        ("pooled", Durability::Pooled),
    ]
}

#[test]
fn killed_writers_lose_nothing_that_was_acknowledged() {
    let rounds = if soak() { 400 } else { 15 };
    for (mode, durability) in modes() {
        let mut sum = Sum::default();
        let folder = tempfile::tempdir().unwrap();
        // Each directory is killed three times before the test creates a new one.
        for round in 0..rounds {
            let home = folder.path().join(format!("{}", round / 3));
            kill_one(&home, mode, durability, round, &mut sum);
        }
        println!("{mode}: {rounds} kills, {sum:?}");
        assert!(sum.acknowledged > rounds * 20, "{mode}: too little was appended to see anything: {sum:?}");
        assert!(mode == "pooled" || sum.lost == 0, "{mode} loses nothing to a kill: {sum:?}");
        assert_eq!(sum.acknowledged, sum.found + sum.lost);
    }
}

#[derive(Debug, Default)]
struct Sum {
    acknowledged: u64,
    found: u64,
    lost: u64,
    /// Messages that are in the store although the kill came before their acknowledgement.
    unacknowledged: u64,
    flushes: u64,
}

fn kill_one(home: &Path, mode: &str, durability: Durability, round: u64, sum: &mut Sum) {
    let journal = home.with_extension(format!("journal-{round}"));
    let mut chance = Chance(0x9E37_79B9 + round * 7919);
    let mut child = start(home, &journal, mode);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !std::fs::read(&journal).is_ok_and(|text| text.contains(&b'\n')) {
        assert!(Instant::now() < deadline, "the writer never began");
        assert!(child.try_wait().unwrap().is_none(), "the writer ended by itself");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_micros(chance.below(if soak() { 300_000 } else { 60_000 })));
    // SIGKILL from outside: the child runs no more code.
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success());
    check(home, durability, &journal, sum);
}

fn start(home: &Path, journal: &Path, mode: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["kills::victim", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(HOME, home)
        .env(MODE, format!("{mode} {}", journal.display()))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// One line of the journal.
enum Line {
    Acknowledged { thread: u64, number: u64, queue: i32, queue_offset: i64, log_offset: u64 },
    Flushed(u64),
}

fn parse(line: &str) -> Line {
    let mut words = line.split(' ');
    let kind = words.next().unwrap();
    let mut next = || words.next().unwrap().parse::<u64>().unwrap();
    if kind == "f" {
        return Line::Flushed(next());
    }
    Line::Acknowledged {
        thread: next(),
        number: next(),
        queue: i32::try_from(next()).unwrap(),
        queue_offset: i64::try_from(next()).unwrap(),
        log_offset: next(),
    }
}

type Place = (i32, i64);

fn check(home: &Path, durability: Durability, journal: &Path, sum: &mut Sum) {
    let text = std::fs::read_to_string(journal).unwrap();
    // The kill may have come in the middle of a line.
    let text = text.get(..text.rfind('\n').map_or(0, |end| end + 1)).unwrap();
    let store = open(home, OpenMode::ReadWrite, durability).unwrap();
    let found = everything(&store);
    let end = store.stats().unwrap().log_max_offset;
    let mut acknowledged = 0;
    for line in text.lines().skip(1) {
        match parse(line) {
            Line::Flushed(offset) => {
                sum.flushes += 1;
                assert!(offset <= end, "flushed up to {offset}, and the log ends at {end}");
            }
            Line::Acknowledged { thread, number, queue, queue_offset, log_offset } => {
                acknowledged += 1;
                if let Some(there) = found.get(&(queue, queue_offset)) {
                    assert_eq!(*there, (thread, number, log_offset), "at {queue}/{queue_offset}");
                    sum.found += 1;
                } else {
                    assert!(
                        log_offset >= end,
                        "message {thread}.{number} is gone from {log_offset} of {end}"
                    );
                    sum.lost += 1;
                }
            }
        }
    }
    sum.acknowledged += acknowledged;
    let before = text.lines().next().unwrap().strip_prefix("r ").unwrap().parse::<u64>().unwrap();
    sum.unacknowledged += (found.len() as u64 - before).saturating_sub(acknowledged);
    // The queue continues where it stopped.
    let next = append(&store, THREADS, 0..1, true).unwrap();
    let expected = found.range((0, 0)..(1, 0)).count();
    assert_eq!(next.first().unwrap().queue_offset, i64::try_from(expected).unwrap());
    store.close().unwrap();
    let files =
        StoreFiles::new(std::sync::Arc::new(OsVfs::new()), std::sync::Arc::new(SystemClock::new()), home);
    let report = verify(&files, &options(durability), &mut |_| Ok(())).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

/// Thread, number and log offset of every message, by queue and offset. Checks everything that needs no
/// journal.
fn everything(store: &Store) -> BTreeMap<Place, (u64, u64, u64)> {
    let mut found = BTreeMap::new();
    for queue in 0..i32::try_from(QUEUES).unwrap() {
        let mut cursor = store.read(TOPIC, queue, None, None, None).unwrap();
        let mut expected = 0;
        loop {
            let batch = cursor.next_batch(500).unwrap();
            if batch.is_empty() {
                break;
            }
            for record in batch {
                assert_eq!(record.queue_offset, expected, "queue {queue} has a hole");
                expected += 1;
                let view = record.view().unwrap();
                let (thread, number) = checked(view.body);
                let place = u64::try_from(view.physical_offset).unwrap();
                found.insert((queue, record.queue_offset), (thread, number, place));
            }
        }
    }
    found
}

/// The child process: appends until it is killed. It is not a test by itself.
#[test]
#[ignore = "started by the test that kills it"]
fn victim() {
    let Some(home) = std::env::var_os(HOME).map(PathBuf::from) else { return };
    let mode = std::env::var(MODE).unwrap();
    let (mode, journal) = mode.split_once(' ').unwrap();
    let durability = modes().into_iter().find(|(name, _)| *name == mode).unwrap().1;
    let store = open(&home, OpenMode::Create, durability).unwrap();
    store.create_topic(TOPIC, QUEUES, &[]).unwrap();
    let before = everything(&store).len();
    let journal = File::options().append(true).create(true).open(journal).unwrap();
    say(&journal, &format!("r {before}\n"));
    let appended_to = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, journal, appended_to) = (&store, &journal, &appended_to);
            // Numbers of an earlier process are not used again.
            scope.spawn(move || append_for_ever(store, journal, appended_to, thread, before as u64 * 1000));
        }
        scope.spawn(|| {
            loop {
                let covered = appended_to.load(Ordering::SeqCst);
                store.flush().unwrap();
                say(&journal, &format!("f {covered}\n"));
                std::thread::sleep(Duration::from_millis(7));
            }
        });
    });
}

fn append_for_ever(store: &Store, journal: &File, appended_to: &AtomicU64, thread: u64, first: u64) {
    let mut chance = Chance(thread + 1);
    let mut number = first;
    loop {
        let count = if chance.below(8) == 0 { 1 + chance.below(20) } else { 1 };
        let durable = chance.below(20) == 0;
        let results = append(store, thread, number..number + count, durable).unwrap();
        let mut lines = String::new();
        for (each, number) in results.iter().zip(number..) {
            let (queue, queue_offset, at) = (each.queue_id, each.queue_offset, each.commit_log_offset);
            writeln!(lines, "a {thread} {number} {queue} {queue_offset} {at}").unwrap();
            appended_to.fetch_max(at + u64::from(each.size), Ordering::SeqCst);
        }
        say(journal, &lines);
        number += count;
    }
}

fn say(mut journal: &File, text: &str) {
    journal.write_all(text.as_bytes()).unwrap();
}
