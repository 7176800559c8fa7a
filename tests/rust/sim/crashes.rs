//! The main run: every short sequence of operations, and long random ones.

use std::time::{Duration, Instant};

use mqstore_base::options::{Durability, StoreOptions, Visibility};

use crate::explore::{Counts, Effort, Place, Violation, explore, explore_all, get};
use crate::states::{Limits, Rng};
use crate::workload::{Case, FAR_LOGS, Op, tiny};

/// The operations of the exhaustive sequences.
const ALPHABET: [Op; 6] = [Op::Append(40), Op::Edge(-1), Op::Batch(3, 60), Op::Flush, Op::Reopen, Op::Step];
const DURABILITIES: [(Durability, char); 3] =
    [(Durability::Sync, 's'), (Durability::Async, 'a'), (Durability::Manual, 'm')];

pub(crate) fn soak() -> bool {
    std::env::var_os("MQSTORE_SOAK").is_some()
}

/// Of the calls of a session after which a test ends it, the soak takes each one and `make test` each fifth one, because
/// calls often repeat in twos and fours. The search for a mutant takes each one.
pub(crate) fn calls_step() -> usize {
    if soak() { 1 } else { 5 }
}

/// The same for tests that take a few seconds.
pub(crate) fn short_calls_step() -> usize {
    calls_step().min(2)
}

/// Every sequence of one to `longest` operations, in each mode.
pub(crate) fn exhaustive(longest: u32) -> Vec<Case> {
    let mut cases = Vec::new();
    for length in 1..=longest {
        for number in 0..ALPHABET.len().pow(length) {
            cases.extend(DURABILITIES.map(|(_, mode)| sequence(mode, length, number)));
        }
    }
    cases
}

/// All sequences of up to two operations and each 23rd one of three, in each mode. The soak takes all of up
/// to four.
fn sequences() -> Vec<Case> {
    if soak() {
        return exhaustive(4);
    }
    let mut cases = exhaustive(2);
    // 23 and the number of operations have no common factor, so each operation occurs at each place.
    for number in (0..ALPHABET.len().pow(3)).step_by(23) {
        cases.extend(DURABILITIES.map(|(_, mode)| sequence(mode, 3, number)));
    }
    cases
}

fn sequence(mode: char, length: u32, number: usize) -> Case {
    let mut rest = number;
    let ops = (0..length)
        .map(|_| {
            let op = ALPHABET[rest % ALPHABET.len()];
            rest /= ALPHABET.len();
            op
        })
        .collect();
    let name = format!("x{mode}{length}-{number}");
    Case { name, options: options(mode), ops, last_only: length > 1 }
}

/// Returns total bytes from which an append is written to the file: the default, which no batch of a short segment
/// reaches, or so few that some appends are copied to the map and others are written.
fn any_file_write_bytes(rng: &mut Rng) -> u64 {
    if rng.chance(2) { 400 } else { StoreOptions::default().file_write_bytes }
}

/// The options of a mode: `p` appends through a pool, `d` shows only durable messages.
fn options(mode: char) -> StoreOptions {
    match mode {
        'p' => tiny(Durability::Pooled),
        'd' => StoreOptions { visibility: Visibility::Durable, ..tiny(Durability::Async) },
        _ => tiny(DURABILITIES.iter().find(|(_, letter)| *letter == mode).unwrap().0),
    }
}

/// A random run.
pub(crate) fn random(seed: u64, mode: char, longest: u64) -> Case {
    let mut rng = Rng::new(seed);
    let count = 20 + rng.below(longest.saturating_sub(20).max(1));
    let ops = (0..count).map(|_| any_op(&mut rng)).collect();
    let options = StoreOptions {
        segment_bytes: 4096 * (1 + rng.below(2) * 3),
        queue_file_entries: 8 * (1 + rng.below(2) as u32),
        // In some runs dispatch lags, as it does with threads.
        dispatch_threads: Some(u32::from(rng.chance(3))),
        file_write_bytes: any_file_write_bytes(&mut rng),
        ..options(mode)
    };
    Case { name: format!("r{mode}{longest}-{seed}"), options, ops, last_only: false }
}

fn any_op(rng: &mut Rng) -> Op {
    let size = match rng.below(8) {
        0 => 0,
        1 => 700 + rng.below(1800),
        _ => rng.below(200),
    } as u16;
    match rng.below(24) {
        0..10 => Op::Append(size),
        10..12 => Op::Durable(size),
        12..15 => Op::Batch(2 + rng.below(6) as u8, size % 500),
        15..18 => Op::Edge([0, -1, 1, 8, 7, 91, -8][rng.below(7) as usize]),
        18 | 19 => Op::Step,
        20 => Op::Read,
        21 | 22 => Op::Flush,
        _ => Op::Reopen,
    }
}

/// All modes.
pub(crate) const MODES: [char; 5] = ['s', 'a', 'm', 'p', 'd'];

/// A random run with many background rounds, which prepare segments early. Some records are confirmed later
/// than they are appended.
pub(crate) fn attended(seed: u64, mode: char, longest: u64) -> Case {
    let mut rng = Rng::new(seed ^ 0xA77E);
    let count = longest / 2 + rng.below(longest / 2);
    let ops = (0..count).map(|_| match rng.below(16) {
        0..4 => Op::Step,
        4 => Op::Confirm(true),
        5 => Op::Confirm(false),
        6 => Op::Read,
        _ => any_op(&mut rng),
    });
    let ops = ops.collect();
    let options = StoreOptions { file_write_bytes: any_file_write_bytes(&mut rng), ..options(mode) };
    Case { name: format!("v{mode}{longest}-{seed}"), options, ops, last_only: false }
}

/// A random run in which several workers dispatch out of order and later than the appends. It rebuilds queues
/// and index now and then.
pub(crate) fn worked(seed: u64, mode: char, longest: u64) -> Case {
    let mut rng = Rng::new(seed ^ 0x3078_AB1E);
    let count = longest / 2 + rng.below(longest / 2);
    let ops = (0..count).map(|_| match rng.below(12) {
        0..4 => Op::Work(1 + rng.below(6) as u8, rng.below(1 << 32) as u32),
        4 => Op::Rebuild,
        5 => Op::Batch(6, 40),
        _ => any_op(&mut rng),
    });
    let ops = ops.collect();
    let options = StoreOptions {
        dispatch_threads: Some(1),
        file_write_bytes: any_file_write_bytes(&mut rng),
        ..options(mode)
    };
    Case { name: format!("w{mode}{longest}-{seed}"), options, ops, last_only: false }
}

/// A random run that deletes. `kind` is a set of bits: 1 wipes deleted segments, 2 puts the log into two
/// other folders, 4 deletes by size instead of age, 8 has segments that no message fills, so that they are closed early.
pub(crate) fn deleting(seed: u64, mode: char, kind: u64) -> Case {
    let mut rng = Rng::new(seed ^ 0xDE1E_7E00);
    let mut ops = Vec::new();
    for _ in 0..3 {
        ops.extend([Op::Batch(6 + rng.below(4) as u8, 60 + rng.below(90) as u16), Op::Edge(-1)]);
    }
    ops.push(Op::Age(2));
    for _ in 0..4 + rng.below(12) {
        ops.extend(match rng.below(16) {
            0..3 => vec![Op::Expire],
            3 | 4 => vec![Op::Age(1), Op::Step, Op::Step],
            5..9 => vec![Op::Batch(5, 80), Op::Edge(-1)],
            9 => vec![Op::Batch(9, 50), Op::Edge(-1), Op::Edge(-1), Op::Age(2), Op::Expire],
            10 => vec![Op::Reopen],
            11 => vec![Op::Confirm(rng.chance(4))],
            _ => vec![any_op(&mut rng)],
        });
    }
    let by_size = kind & 4 != 0;
    let mut base = options(mode);
    let mut most_bytes = 3 * base.segment_bytes;
    if kind & 8 != 0 {
        ops.retain(|op| !matches!(op, Op::Edge(_)));
        base = StoreOptions { segment_bytes: 4 * base.segment_bytes, allocation_bytes: 4096, ..base };
        most_bytes = 6000;
    }
    let options = StoreOptions {
        queue_file_entries: 4,
        retention_ms: (!by_size).then_some(3_600_000),
        retention_bytes: by_size.then_some(most_bytes),
        delete_when: "*".to_owned(),
        secure_wipe: kind & 1 != 0,
        commit_log_paths: if kind & 2 == 0 { Vec::new() } else { FAR_LOGS.map(Into::into).to_vec() },
        file_write_bytes: any_file_write_bytes(&mut rng),
        ..base
    };
    Case { name: format!("e{mode}{kind}-{seed}"), options, ops, last_only: false }
}

/// The case with this name.
pub(crate) fn named(name: &str) -> Option<Case> {
    let mode = name.chars().nth(1)?;
    let (head, number) = name.get(2..)?.split_once('-')?;
    match name.chars().next()? {
        'x' => Some(sequence(mode, head.parse().ok()?, number.parse().ok()?)),
        'r' => Some(random(number.parse().ok()?, mode, head.parse().ok()?)),
        'v' => Some(attended(number.parse().ok()?, mode, head.parse().ok()?)),
        'w' => Some(worked(number.parse().ok()?, mode, head.parse().ok()?)),
        'e' => Some(deleting(number.parse().ok()?, mode, head.parse().ok()?)),
        _ => None,
    }
}

pub(crate) const SHORT: Effort = Effort {
    limits: Limits { all_up_to: 24, singles: 10, random: 2, cuts: 1 },
    moments: 1000,
    nested_one_in: 192,
    depth: 3,
    thorough_one_in: 32,
};

pub(crate) const LONG: Effort =
    Effort { limits: Limits { all_up_to: 16, singles: 8, random: 4, cuts: 2 }, moments: 40, ..SHORT };

/// The effort for random runs. `make test` ends each run at half as many moments as the soak.
fn long() -> Effort {
    Effort { moments: if soak() { LONG.moments } else { LONG.moments / 2 }, ..LONG }
}

fn report(title: &str, counts: &Counts, started: Instant) {
    let images = get(&counts.images);
    println!(
        "{title}: {} runs, {} moments, {images} different disks ({} with a lost or torn page, {} after a kill), \
         {} openings, {} crashes inside recovery, {} looks beside a writer, {:.0} s",
        get(&counts.cases),
        get(&counts.moments),
        get(&counts.lost_page),
        get(&counts.kills),
        get(&counts.opens),
        get(&counts.nested),
        get(&counts.looks),
        started.elapsed().as_secs_f64()
    );
}

pub(crate) fn must_hold<T>(outcome: Result<T, Violation>) -> T {
    match outcome {
        Ok(value) => value,
        Err(violation) => panic!("{}\nMQSIM={}", violation.what, violation.replay),
    }
}

/// Minimum number of different disks that a run checks, for `make test` and for the soak.
fn least_disks() -> u64 {
    if soak() { 200_000 } else { 40_000 }
}

/// Random runs of one round, in each mode.
const ROUND: u64 = 3;

#[test]
fn no_crash_breaks_a_promise() {
    let counts = Counts::default();
    let started = Instant::now();
    let whole = Duration::from_secs(24 * 3600);
    let cases = sequences();
    let outcome = explore_all(&cases, &SHORT, &counts, whole);
    report("sequences", &counts, started);
    must_hold(outcome);
    let (rounds, least) = (if soak() { 400 } else { 1 }, least_disks());
    for round in 0.. {
        if round >= rounds && get(&counts.images) >= least {
            break;
        }
        let seeds = round * ROUND..(round + 1) * ROUND;
        let cases: Vec<Case> = seeds
            .flat_map(|seed| ['s', 'a', 'm'].map(|mode| random(seed, mode, if soak() { 400 } else { 120 })))
            .collect();
        must_hold(explore_all(&cases, &long(), &counts, whole));
    }
    report("crashes", &counts, started);
    let (images, lost) = (get(&counts.images), get(&counts.lost_page));
    assert!(images >= least && lost * 10 >= images * 3, "{images} disks, {lost} with a lost or torn page");
}

/// Minimum number of different disks around deletions, and in runs with background rounds.
const DELETIONS_FLOOR: u64 = 10_000;

#[test]
fn a_crash_around_a_deletion_breaks_no_promise() {
    let counts = Counts::default();
    let started = Instant::now();
    let cases: Vec<Case> = (0..if soak() { 60 } else { 1 })
        .flat_map(|seed| {
            let kinds = [0, 1, 2, 4, 7, 8, 13];
            let deleting =
                kinds.into_iter().flat_map(move |kind| MODES.map(|mode| deleting(seed, mode, kind)));
            deleting.chain(MODES.map(|mode| attended(seed, mode, 60)))
        })
        .collect();
    let outcome = explore_all(&cases, &long(), &counts, Duration::from_secs(24 * 3600));
    report("deletions", &counts, started);
    must_hold(outcome);
    let (images, lost) = (get(&counts.images), get(&counts.lost_page));
    assert!(
        images >= DELETIONS_FLOOR && lost * 10 >= images * 3,
        "{images} disks, {lost} with a lost or torn page"
    );
}

/// Minimum number of different disks around dispatch workers and rebuilds.
const WORKERS_FLOOR: u64 = 7_500;

#[test]
fn a_crash_among_workers_breaks_no_promise() {
    let counts = Counts::default();
    let started = Instant::now();
    let cases: Vec<Case> =
        (0..if soak() { 100 } else { 6 }).flat_map(|seed| MODES.map(|mode| worked(seed, mode, 50))).collect();
    let outcome = explore_all(&cases, &long(), &counts, Duration::from_secs(24 * 3600));
    report("workers", &counts, started);
    must_hold(outcome);
    let images = get(&counts.images);
    assert!(images >= WORKERS_FLOOR, "{images} disks");
}

#[test]
fn a_state_can_be_seen_again() {
    let Ok(replay) = std::env::var("MQSIM") else { return };
    let mut parts = replay.split(':');
    let case = named(parts.next().unwrap()).expect("a case of this suite");
    let call = parts.next().unwrap().parse().unwrap();
    let state = parts.next().unwrap().parse().unwrap();
    let effort = if case.name.starts_with('x') { SHORT } else { LONG };
    must_hold(explore(&case, &effort, &Counts::default(), Some(Place { call, state }), &|| false));
}
