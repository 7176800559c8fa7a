//! Turns each switch off in turn. The suite must find the resulting fault.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mqstore_io::switch;

use crate::crashes::{LONG, MODES, deleting, exhaustive, named, random, soak};
use crate::explore::{Counts, Effort, Violation, explore_here, forget_work, work_done};
use crate::states::{Limits, Rng};
use crate::workload::Case;
use crate::{
    archiving, backing_up, committing, compacting, copying, decay, faults, feeding, foreign, keeping,
    publishing, reclaiming, remaking, repairing, staging, switches, timing,
};

/// Switches whose search takes more than ten seconds, together half of the time of all. Only the soak tries them.
const SLOW: [&str; 5] = [
    "archive.settle_manifests",
    "backup.settle_states",
    "commit.sync_copied_folder",
    "delay.sync_state",
    "transfer.sync_copied",
];

/// Switches whose absence this suite cannot notice, with the reasons. The soak tries them too.
const SPARE: [(&str, &str); 33] = [
    ("copy.sync_timer_check", "no simulated snapshot has a checkpoint of the timer"),
    ("backup.sync_early", "the sync of the whole folder before its final name covers it"),
    (
        "delay.sync_new_file",
        "a timer log or wheel that is too short is made again from the records of its topic",
    ),
    ("delay.sync_new_name", "a timer log or wheel that is lost is made again from the records of its topic"),
    ("meta.sync_end", "a mark that is lost lets the next open write the tail once more"),
    ("meta.sync_copied", "nobody appends here while a generation is made; the tests of the module do"),
    (
        "repair.sync_config_aside",
        "a file that comes back does not parse, and goes again with the next repair",
    ),
    ("files.sync_derived_link", "no simulated store makes links to another disk"),
    ("recovery.sync_linked_aside", "no simulated store has a folder that is a link to another disk"),
    ("repair.sync_log", "a log with a mark is written again, and the rebuild that follows syncs one without"),
    ("repair.sync_log_folder", "the sync of the log's folders before the mark covers it"),
    ("snapshot.sync_last", "the sync of the log before the mark covers it"),
    ("snapshot.sync_cut", "no simulated snapshot is made between a record of a compacted queue and its unit"),
    ("restored_log.sync_segment", "the sync of the whole folder before its final name covers it"),
    ("restored_log.sync_names", "the sync of the whole folder before its final name covers it"),
    ("snapshot.sync_linked", "a writer has synced its full segments before"),
    ("compaction.sync_cleared_job", "what a job leaves is swept by the next one"),
    ("compaction.sync_swept_jobs", "what a job leaves is swept by the next one"),
    ("compaction.sync_job_name", "a job whose folder is lost is run again"),
    ("compaction.sync_staged_names", "a staged file that is lost fails its check, and the job is run again"),
    ("compaction.sync_staging", "a staged file that is lost fails its check, and the job is run again"),
    ("compaction.sync_staging_name", "a staged file that is lost fails its check, and the job is run again"),
    ("compaction.sync_switch", "an exchange, or a move, reaches the disk with either of its two folders"),
    ("compaction.sync_old_tree", "an exchange, or a move, reaches the disk with either of its two folders"),
    ("compaction.sync_switch_note", "a note that comes back is of a publication that is over"),
    (
        "feed.sync_completed",
        "a crash while the work of another one is made good; readers of ours go by the log then",
    ),
    ("compaction.sync_kept", "the sync of the folder that it came from makes the move last"),
    ("rebuild.sync_log", "recovery goes by the mark; the checkpoint, which counts on this, is for RocketMQ"),
    (
        "rebuild.sync_swap",
        "queues that are lost are made again; RocketMQ, which would not, comes after a close",
    ),
    ("retention.sync_copies", "the feed has synced its copies before; a broker's are not made here"),
    (
        "retention.sync_aside",
        "the sync of the folder that the segment has left makes its new name durable with the rename",
    ),
    (
        "retention.sync_second_name",
        "a second name that comes back is found again, and goes again, before anything is wiped",
    ),
    (
        "commit_log.sync_prewritten",
        "what lies ahead of the records: a later sync covers those that come there",
    ),
];

/// A search for broken promises that runs until it is asked to stop.
type Hunt = fn(&dyn Fn() -> bool) -> Result<(), Violation>;

/// The hunt and the run that caught a switch before, tried first (an empty run: all of the hunt). A switch
/// that its hint catches costs a second. For any other one, the full search follows.
const HINTS: [(&str, &str, &str); 25] = [
    ("archive.settle_manifests", "archives", ""),
    ("target.settle_created", "creations", ""),
    ("checkpoint.sync", "glances", "xs2-26"),
    ("close.sync_abort_removal", "glances", "xs2-26"),
    ("consume_queue.sync_file", "glances", "xs2-26"),
    ("consume_queue.sync_folder", "glances", "xs2-26"),
    ("flush.h10_checkpoint_after_sync", "glances", "xs2-26"),
    ("files.sync_folder_name", "glances", "xm2-12"),
    ("open.sync_log_folder_name", "glances", "xa1-0"),
    ("retention.second_slot", "deletions", "ed5-0"),
    ("retention.secure", "deletions", "es3-0"),
    ("retention.sync_index_removal", "deletions", "es3-0"),
    ("retention.sync_queue_removal", "deletions", "es3-0"),
    ("retention.sync_segment_removal", "deletions", "es3-0"),
    ("retention.sync_wiped_bytes", "deletions", "es3-0"),
    ("retention.sync_wiped_name", "deletions", "es3-0"),
    ("retention.wipe_zeros", "deletions", "es3-0"),
    ("files.sync_log_path_name", "deletions", "es3-0"),
    ("index.sync_file", "runs", "ra60-1000"),
    ("index.sync_folder", "runs", "rs60-1000"),
    ("mark.sync_slot_name", "glances", "xs2-26"),
    ("mark.two_slots", "tears", "xs2-20"),
    ("recovery.sync_copy", "glances", "xm2-13"),
    ("recovery.sync_lost_and_found", "glances", "xm2-13"),
    ("recovery.sync_tail", "glances", "xa2-11"),
];

/// A short check of many moments (`GLANCE`), and a longer one of all of them (`QUICK`).
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

/// Writes that stop in the middle.
const TEARS: Effort = Effort {
    limits: Limits { all_up_to: 1, singles: 0, random: 6, cuts: 10 },
    moments: 1000,
    nested_one_in: 1_000_000,
    depth: 1,
    thorough_one_in: 1_000_000,
};

fn sequences(effort: &Effort, stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    let mut cases = exhaustive(2);
    // Shuffled, so that all operations and modes come early.
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
    for seed in 1000.. {
        let cases = ['s', 'a', 'm'].map(|mode| random(seed, mode, 60));
        explore_here(&cases, &RUNS, &Counts::default(), stop)?;
        if stop() {
            break;
        }
    }
    Ok(())
}

const RUNS: Effort = Effort { moments: 60, nested_one_in: 6, ..LONG };
const NESTED: Effort = Effort {
    limits: Limits { all_up_to: 1, singles: 1, random: 2, cuts: 0 },
    moments: 24,
    nested_one_in: 1,
    depth: 3,
    thorough_one_in: 1000,
};

/// Recoveries that are interrupted several times, after long runs.
fn nested(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    for seed in 0.. {
        let cases = ['s', 'a'].map(|mode| random(seed, mode, 120));
        explore_here(&cases, &NESTED, &Counts::default(), stop)?;
        if stop() {
            break;
        }
    }
    Ok(())
}

/// Runs with deletions, also with the log in several folders.
const DELETIONS: Effort = Effort {
    limits: Limits { all_up_to: 4, singles: 6, random: 1, cuts: 0 },
    moments: 80,
    nested_one_in: 64,
    depth: 1,
    thorough_one_in: 64,
};

fn deletions(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    for seed in 0..u64::MAX {
        for kind in [3, 0, 5, 2, 1, 4, 6, 7] {
            let cases = MODES.map(|mode| deleting(seed, mode, kind));
            explore_here(&cases, &DELETIONS, &Counts::default(), stop)?;
            if stop() {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn remakings(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    remaking::hunt(1, true, 1, stop).map(|_| ())
}

fn effort(name: &str) -> Effort {
    match name {
        "glances" => GLANCE,
        "tears" => TEARS,
        "looks" => QUICK,
        "runs" => RUNS,
        "nested" => NESTED,
        _ => DELETIONS,
    }
}

/// Tries the hint for `name`.
fn remember(name: &str, stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    for (_, hunt, case) in HINTS.iter().filter(|(switch, _, _)| *switch == name) {
        if case.is_empty() {
            let found = hunts(name).into_iter().find(|(known, _)| known == hunt);
            found.map_or(Ok(()), |(_, hunt)| hunt(stop))?;
            continue;
        }
        let cases: Vec<Case> = named(case).into_iter().collect();
        explore_here(&cases, &effort(hunt), &Counts::default(), stop)?;
    }
    Ok(())
}

fn reclaims(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    reclaiming::hunt(8, stop).map(|_| ())
}

fn decays(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    decay::hunt(16, stop).map(|_| ())
}

fn compactions(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    compacting::hunt(1, stop).map(|_| ())
}

fn feeds(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    feeding::hunt(1, stop).map(|_| ())
}

fn delays(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    timing::hunt(1, stop).map(|_| ())
}

fn keepings(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    keeping::hunt(1, stop).map(|_| ())
}

fn repairs(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    repairing::hunt(1, stop).map(|_| ())
}

fn stagings(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    staging::hunt(1, stop).map(|_| ())
}

fn commits(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    committing::hunt(1, stop).map(|_| ())
}

fn copies(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    copying::hunt(1, stop).map(|_| ())
}

fn failed_copies(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    copying::hunt_failing(1, stop).map(|_| ())
}

fn creations(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    committing::hunt_created(stop).map(|_| ())
}

fn results(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    publishing::hunt(1, stop).map(|_| ())
}

fn failed_results(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    publishing::hunt_failing(stop).map(|_| ())
}

fn bad_targets(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    publishing::hunt_targets(300, stop).map(|_| ())
}

fn archives(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    archiving::hunt(1, stop).map(|_| ())
}

fn failed_archives(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    archiving::hunt_failing(1, stop).map(|_| ())
}

fn targets(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    archiving::hunt_targets(30, stop)
}

fn backups(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    backing_up::hunt(1, stop).map(|_| ())
}

fn failed_backups(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    backing_up::hunt_failing(1, stop).map(|_| ())
}

fn other_backups(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    backing_up::hunt_others(300, stop)
}

fn failed_syncs(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    faults::failed_syncs(400, stop).map(|_| ())
}

fn others(stop: &dyn Fn() -> bool) -> Result<(), Violation> {
    foreign::hunt(foreign::FEW_RUNS, stop).map(|_| ())
}

/// Whether only recoveries that are interrupted several times in a row can notice the missing switch.
fn rare(name: &str) -> bool {
    ["recovery.lower_mark", "recovery.sync_names"].contains(&name)
}

/// The hunts, the most promising first.
fn hunts(name: &str) -> Vec<(&'static str, Hunt)> {
    let mut hunts: Vec<(&str, Hunt)> = vec![
        ("glances", glances),
        ("others", others),
        ("failed syncs", failed_syncs),
        ("remakings", remakings),
        ("looks", looks),
        ("decays", decays),
        ("compactions", compactions),
        ("nested", nested),
        ("runs", runs),
        ("deletions", deletions),
    ];
    let first: (&str, Hunt) = match name.split('.').next().unwrap_or_default() {
        "archive" | "target" => {
            let first: [(&str, Hunt); 3] =
                [("creations", creations), ("failed archives", failed_archives), ("archives", archives)];
            hunts.splice(0..0, first);
            ("targets", targets)
        }
        "backup" => {
            hunts.splice(0..0, [("backups", backups as Hunt), ("failed backups", failed_backups)]);
            ("other backups", other_backups)
        }
        "commit" => {
            hunts.insert(0, ("archives", archives));
            ("commits", commits)
        }
        "compaction" => ("compactions", compactions),
        "results" => {
            let first: [(&str, Hunt); 2] = [("failed results", failed_results), ("bad targets", bad_targets)];
            hunts.splice(0..0, first);
            ("results", results)
        }
        "delay" => ("delays", delays),
        "feed" => ("feeds", feeds),
        "meta" | "vfs" => ("keepings", keepings),
        "reclaim" => ("reclaims", reclaims),
        "repair" | "copy" | "snapshot" => ("repairs", repairs),
        "retention" => ("deletions", deletions),
        "staged" => ("stagings", stagings),
        "transfer" => {
            hunts.insert(0, ("failed copies", failed_copies));
            ("copies", copies)
        }
        _ if name.contains("torn") || name.starts_with("mark.two") => ("tears", tears),
        _ if name.contains("log_path") => ("deletions", deletions),
        "scan" | "read" => ("decays", decays),
        "live" => ("failed syncs", failed_syncs),
        _ if name.ends_with("look_below_mark") => ("others", others),
        "index" => ("runs", runs),
        _ if rare(name) => {
            hunts.insert(0, ("nested", nested));
            ("remakings", remakings)
        }
        _ if name.contains("crc") => ("decays", decays),
        _ if name.contains("rewrite") || name.contains("poison") => ("failed syncs", failed_syncs),
        _ => return hunts,
    };
    hunts.insert(0, first);
    hunts
}

/// The maximum cost of the search for one switch.
struct Budget {
    time: Duration,
    /// Number of store openings before a search ends, within three times the time limit. So a busy machine
    /// gets more time, not less work.
    openings: u64,
}

impl Budget {
    fn of_this_run() -> Self {
        if soak() {
            Self { time: Duration::from_secs(240), openings: 0 }
        } else {
            Self { time: Duration::from_secs(60), openings: 60_000 }
        }
    }

    fn is_spent(&self, started: Instant) -> bool {
        let spent = started.elapsed();
        spent > self.time && (work_done() > self.openings || spent > 3 * self.time)
    }
}

/// Searches for a fault with `name` turned off. Returns the find and the time it took.
fn hunt(name: &str, budget: &Budget) -> (Option<(&'static str, Violation)>, u64, Duration) {
    let _off = switch::off(name);
    let started = Instant::now();
    let stop = || budget.is_spent(started);
    forget_work();
    let caught = |found, violation| (Some((found, violation)), switch::passed(), started.elapsed());
    if let Err(violation) = remember(name, &stop) {
        return caught("what caught it before", violation);
    }
    for (found, hunt) in hunts(name) {
        let outcome = catch_unwind(AssertUnwindSafe(|| hunt(&stop))).unwrap_or_else(|_| {
            Err(Violation { replay: "panic".to_owned(), what: "the suite itself panicked".to_owned() })
        });
        if let Err(violation) = outcome {
            return caught(found, violation);
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
    let listed = SPARE.iter().map(|(name, _)| *name).chain(SLOW);
    let gone: Vec<&str> = listed.filter(|name| !all.iter().any(|known| known == name)).collect();
    assert_eq!(gone, Vec::<&str>::new(), "these are no switches");
    let spare = |name: &String| SPARE.iter().any(|(spare, _)| spare == name);
    all.retain(|name| match &wanted {
        Some(wanted) => name.contains(wanted),
        None => soak() || !spare(name) && !SLOW.contains(&name.as_str()),
    });
    let budget = Budget::of_this_run();
    let next = AtomicUsize::new(0);
    let missed: Mutex<Vec<String>> = Mutex::default();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(name) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (caught, passed, took) = hunt(name, &budget);
                    let millis = took.as_millis();
                    match caught {
                        Some((found, violation)) => {
                            let what: String = violation.what.chars().take(150).collect();
                            let replay = violation.replay;
                            println!("{name}: caught in {millis} ms by {found}, MQSIM={replay} ({what})");
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
