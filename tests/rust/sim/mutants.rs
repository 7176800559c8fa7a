//! Each switch turned off in turn: the suite must find what that breaks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mqstore_io::switch;

use crate::crashes::{LONG, SHORT, exhaustive, random, soak};
use crate::explore::{Counts, Effort, Violation, explore_here, forget_work, work_done};
use crate::states::{Limits, Rng};
use crate::{compacting, decay, faults, foreign, switches};

/// Switches that nobody is to notice here, and why they are kept. The soak tries them all the same.
const SPARE: [(&str, &str); 25] = [
    ("checkpoint.sync", "an older checkpoint costs a longer recovery and loses nothing"),
    ("compaction.sync_cleared_job", "what a job leaves is swept by the next one"),
    ("compaction.sync_swept_jobs", "what a job leaves is swept by the next one"),
    ("compaction.sync_job_name", "a job whose folder is lost is run again"),
    ("compaction.sync_staged_names", "a staged file that is lost fails its check, and the job is run again"),
    ("compaction.sync_staging", "a staged file that is lost fails its check, and the job is run again"),
    ("compaction.sync_staging_name", "a staged file that is lost fails its check, and the job is run again"),
    ("compaction.sync_tree_name", "the exchange that follows gives the folder its only lasting name"),
    ("compaction.sync_switch", "an exchange reaches the disk with either of its two folders"),
    ("compaction.sync_old_tree", "an exchange reaches the disk with either of its two folders"),
    ("compaction.sync_log_folder", "the store has synced the names of its segments; a broker does not"),
    ("mapped_file.sync_name", "no part of the store names a file so: see commit_log.sync_segment_name"),
    ("mapped_file_queue.sync_removals", "no run here deletes segments"),
    ("retention.sync_aside", "no run here deletes segments"),
    ("retention.sync_wiped_name", "no run here deletes segments"),
    ("retention.sync_wiped_bytes", "no run here deletes segments"),
    ("retention.sync_second_name", "no run here deletes segments"),
    ("retention.sync_queue_removal", "no run here deletes segments"),
    ("retention.sync_index_removal", "no run here deletes segments"),
    ("retention.sync_segment_removal", "no run here deletes segments"),
    ("files.sync_log_path_name", "no run here has its log in several folders"),
    ("files.sync_log_folders", "no run here has its log in several folders"),
    (
        "commit_log.sync_prewritten",
        "what lies ahead of the records: a later sync covers those that come there",
    ),
    (
        "recovery.lower_mark",
        "several losses of power inside recovery while an index is made anew: MQSIM=rs120-0:1420:17:4 found it, \
         a hunt of a minute rarely does",
    ),
    ("recovery.sync_lengthened", "no run here has a short last segment, which other programs leave"),
];

/// A way to look for broken promises, until told to stop.
type Hunt = fn(&dyn Fn() -> bool) -> Result<(), Violation>;

/// A glance at many moments, and a longer look at all of them.
const GLANCE: Effort = Effort {
    limits: Limits { all_up_to: 2, singles: 3, random: 0, cuts: 0 },
    moments: 60,
    nested_one_in: 24,
    depth: 1,
    thorough_one_in: 1000,
};
const QUICK: Effort = Effort {
    limits: Limits { all_up_to: 8, singles: 8, random: 1, cuts: 1 },
    moments: 200,
    nested_one_in: 3,
    depth: 1,
    thorough_one_in: 16,
};

/// Writes that stop in their middle.
const TEARS: Effort = Effort {
    limits: Limits { all_up_to: 1, singles: 0, random: 6, cuts: 10 },
    moments: 1000,
    nested_one_in: 1_000_000,
    depth: 1,
    thorough_one_in: 1_000_000,
};

fn sequences(effort: &Effort, stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    let mut cases = exhaustive(2);
    // All operations and modes come soon.
    let mut rng = Rng::new(7);
    for at in (1..cases.len()).rev() {
        cases.swap(at, rng.below(at as u64 + 1) as usize);
    }
    explore_here(&cases, effort, &Counts::default(), stop)
}

fn glances(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    sequences(&GLANCE, stop)
}

fn tears(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    sequences(&TEARS, stop)
}

fn looks(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    sequences(&QUICK, stop)
}

fn runs(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    let effort = Effort { moments: 60, nested_one_in: 6, ..LONG };
    for seed in 1000.. {
        let cases = ['s', 'a', 'm'].map(|mode| random(seed, mode, 60));
        explore_here(&cases, &effort, &Counts::default(), stop)?;
        if stop() {
            break;
        }
    }
    explore_here(&[], &SHORT, &Counts::default(), stop)
}

/// Recoveries that are ended again and again, after long runs.
fn nested(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    let limits = Limits { all_up_to: 1, singles: 1, random: 2, cuts: 0 };
    let effort = Effort { limits, moments: 24, nested_one_in: 1, depth: 3, thorough_one_in: 1000 };
    for seed in 0.. {
        let cases = ['s', 'a'].map(|mode| random(seed, mode, 120));
        explore_here(&cases, &effort, &Counts::default(), stop)?;
        if stop() {
            break;
        }
    }
    Ok(())
}

fn decays(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    decay::hunt(16, stop).map(|_| ())
}

fn compactions(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    compacting::hunt(stop).map(|_| ())
}

fn failed_syncs(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    faults::failed_syncs(400, stop).map(|_| ())
}

fn others(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    foreign::hunt(stop).map(|_| ())
}

/// Whether only recoveries that are ended several times in a row can notice that it is off.
fn rare(name: &str) -> bool {
    ["recovery.lower_mark", "recovery.sync_names"].contains(&name)
}

/// The hunts, the most promising first.
fn hunts(name: &str) -> Vec<Hunt> {
    let mut hunts: Vec<Hunt> = vec![glances, others, failed_syncs, looks, decays, compactions, runs];
    let first: Hunt = match name.split('.').next().unwrap_or_default() {
        "compaction" => compactions,
        _ if name.contains("torn") || name.starts_with("mark.two") => tears,
        "scan" | "read" => decays,
        "live" => failed_syncs,
        "index" => runs,
        _ if rare(name) => nested,
        _ if name.contains("crc") => decays,
        _ if name.contains("rewrite") || name.contains("poison") => failed_syncs,
        _ => return hunts,
    };
    hunts.insert(0, first);
    hunts
}

/// Looks for what turning `name` off breaks; how long that took.
fn hunt(name: &str, budget: Duration) -> (Option<Violation>, u64, Duration) {
    let _off = switch::off(name);
    let started = Instant::now();
    // A busy machine gets more time, not less work.
    let least = if soak() { 0 } else { 8_000 };
    let stop = || started.elapsed() > budget && (work_done() > least || started.elapsed() > 3 * budget);
    forget_work();
    for hunt in hunts(name) {
        let outcome = catch_unwind(AssertUnwindSafe(|| hunt(&stop))).unwrap_or_else(|_| {
            Err(Violation { replay: "panic".to_owned(), what: "the suite itself panicked".to_owned() })
        });
        if let Err(violation) = outcome {
            return (Some(violation), switch::passed(), started.elapsed());
        }
        if stop() {
            break;
        }
    }
    (None, switch::passed(), started.elapsed())
}

#[test]
fn every_switch_is_noticed() {
    let wanted = std::env::var("MQSIM_MUTANT").ok();
    let mut all: Vec<String> = switches::all().into_keys().collect();
    let gone: Vec<&str> =
        SPARE.iter().map(|(name, _)| *name).filter(|name| !all.iter().any(|known| known == name)).collect();
    assert_eq!(gone, Vec::<&str>::new(), "these are no switches");
    let spare = |name: &String| SPARE.iter().any(|(spare, _)| spare == name);
    all.retain(|name| match &wanted {
        Some(wanted) => name.contains(wanted),
        None => soak() || !spare(name),
    });
    let budget = Duration::from_secs(if soak() { 240 } else { 60 });
    let next = AtomicUsize::new(0);
    let missed: Mutex<Vec<String>> = Mutex::default();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(name) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (caught, passed, took) = hunt(name, budget);
                    let millis = took.as_millis();
                    match caught {
                        Some(violation) => {
                            let what: String = violation.what.chars().take(150).collect();
                            println!("{name}: caught in {millis} ms, MQSIM={} ({what})", violation.replay);
                        }
                        None => {
                            println!("{name}: NOT caught in {millis} ms, passed {passed} times");
                            missed.lock().unwrap_or_else(PoisonError::into_inner).push(name.clone());
                        }
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("mutants: {} of {} caught, {} more are spare", all.len() - missed.len(), all.len(), SPARE.len());
    let missed: Vec<String> = missed.into_iter().filter(|name| !spare(name)).collect();
    assert_eq!(missed, Vec::<String>::new(), "nobody notices that these are off");
}
