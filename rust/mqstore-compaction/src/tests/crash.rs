//! A job that ends at any call, by a kill or a power failure.

use std::collections::BTreeMap;

use mqstore_io::sim::{Fault, OperationKind};
use mqstore_io::{SimOptions, SimVfs, Vfs};

use crate::CompactionOptions;
use crate::files::generation::GenerationState;
use crate::files::manifest::Manifest;
use crate::testing::{Sent, TestStore, compact_now, compacted, files_on, small};
use mqstore_base::store_files::StoreFiles;

const TOPIC: &str = "ctopic";

type Content = Vec<BTreeMap<String, (i64, Vec<u8>)>>;

fn content(files: &StoreFiles) -> Content {
    (0..2).map(|queue| compacted(files, TOPIC, queue)).collect()
}

fn options(job: &str) -> CompactionOptions {
    CompactionOptions { job_id: Some(job.to_owned()), ..small() }
}

/// A store with one generation (unless `first`), and messages that are not in it; all durable.
fn start(first: bool) -> (SimVfs, Content, Content) {
    start_on(&SimVfs::default(), first)
}

/// Same as [`start`], on a file system that cannot exchange two folders.
fn start_without_exchange() -> (SimVfs, Content, Content) {
    start_on(&SimVfs::new(SimOptions { no_exchange: true, ..SimOptions::default() }), false)
}

fn start_on(vfs: &SimVfs, first: bool) -> (SimVfs, Content, Content) {
    let mut store = TestStore::on(vfs, &[TOPIC]);
    store.append_in_turn(TOPIC, 30, 12);
    store.append(TOPIC, 1, Sent::new("other", "queue"));
    if !first {
        compact_now(&store.files, None, &options("one"), 1).unwrap();
    }
    let old = content(&store.files);
    store.append_in_turn(TOPIC, 10, 3);
    store.append(TOPIC, 0, Sent::new("k7", ""));
    store.append(TOPIC, 1, Sent::new("other", "value"));
    let new = (0..2).map(|queue| store.dictionary(TOPIC, queue)).collect();
    (vfs.crash_with(&mut |_| true).unwrap(), old, new)
}

/// The files left in `mqstore/jobs/<job>`.
fn leftovers(files: &StoreFiles, job: &str) -> Vec<String> {
    let entries = files.vfs.list(&files.jobs().join(job)).unwrap_or_default();
    entries.into_iter().map(|entry| entry.name.into_string().unwrap()).collect()
}

/// Checks the facts in the manifest against the existing files.
fn check_facts(files: &StoreFiles) {
    let manifest = Manifest::load(files).unwrap();
    for queue in 0..2 {
        let state = GenerationState::load(files, TOPIC, queue).unwrap();
        assert!(state.end == 0 || state.known(files, &manifest, TOPIC, queue).unwrap().generation.is_some());
    }
}

fn check_from((base, old, new): (SimVfs, Content, Content)) {
    let run = base.kill().unwrap();
    let before = run.operations();
    compact_now(&files_on(&run), None, &options("two"), 1).unwrap();
    let calls = run.operations() - before;
    let mut seen = [false; 2];
    for call in 1..=calls {
        let run = base.kill().unwrap();
        run.freeze_at(run.operations() + call);
        compact_now(&files_on(&run), None, &options("two"), 1).unwrap();
        let killed = run.take_frozen().expect("the same calls each time");
        let powers = [0, 1, 2].map(|seed| killed.crash(seed + 10 * call).unwrap());
        let nothing_more = killed.crash_with(&mut |_| false).unwrap();
        for vfs in powers.into_iter().chain([nothing_more, killed]) {
            let files = files_on(&vfs);
            let found = content(&files);
            assert!(found == old || found == new, "call {call}: neither the old nor the new generation");
            seen[usize::from(found == new)] = true;
            check_facts(&files);
            let report = compact_now(&files, None, &options("two"), 1).unwrap();
            assert_eq!(report.skipped, Vec::<String>::new(), "call {call}");
            assert_eq!(content(&files), new, "call {call}: resumed");
            assert_eq!(leftovers(&files, "two"), ["lock", "record.json"], "call {call}");
            assert_eq!(vfs.violations(), Vec::<String>::new());
        }
    }
    assert_eq!(seen, [true, true]);
}

#[test]
fn a_crash_at_any_call_leaves_the_old_generation_or_the_new() {
    check_from(start(false));
}

#[test]
fn a_crash_at_any_call_leaves_no_generation_or_the_first() {
    check_from(start(true));
}

#[test]
fn so_does_one_where_folders_cannot_be_exchanged() {
    check_from(start_without_exchange());
}

#[test]
fn a_folder_that_another_program_made_between_the_two_steps_stays_and_so_does_the_last_one() {
    let (base, old, new) = start_without_exchange();
    let files = files_on(&base);
    // The move of the old folder is the last successful call.
    base.inject(Fault::nth(1).on(&[OperationKind::Rename]).under(&files.compaction_path()));
    assert!(compact_now(&files, None, &options("two"), 1).is_err());
    base.clear_faults();
    assert_eq!(content(&files), new);
    base.create_dir(&files.compaction_path()).unwrap();
    let report = compact_now(&files, None, &options("three"), 1).unwrap();
    assert_eq!(report.skipped, Vec::<String>::new());
    let kept = base.list(&files.lost_and_found()).unwrap();
    assert_eq!(kept.len(), 1);
    base.remove_dir_all(&files.compaction_path()).unwrap();
    base.rename(&files.lost_and_found().join(&kept[0].name), &files.compaction_path()).unwrap();
    assert_eq!(content(&files), old);
}

#[test]
fn what_was_published_survives_the_loss_of_power() {
    let (base, _, new) = start(false);
    compact_now(&files_on(&base), None, &options("two"), 1).unwrap();
    let after = base.crash_with(&mut |_| false).unwrap();
    assert_eq!(content(&files_on(&after)), new);
    // The same job again finds its report and does nothing.
    let calls = after.operations();
    let report = compact_now(&files_on(&after), None, &options("two"), 1).unwrap();
    assert_eq!(report.messages_after, new.iter().map(|queue| queue.len() as u64).sum::<u64>());
    let trees = after.list(&files_on(&after).root).unwrap();
    assert!(after.operations() > calls && !trees.is_empty());
}

#[test]
fn a_call_that_fails_leaves_the_old_generation_or_the_new() {
    check_failures(start(false));
    check_failures(start_without_exchange());
}

fn check_failures((base, old, new): (SimVfs, Content, Content)) {
    let run = base.kill().unwrap();
    let before = run.operations();
    compact_now(&files_on(&run), None, &options("two"), 1).unwrap();
    for call in 1..=run.operations() - before {
        let run = base.kill().unwrap();
        let files = files_on(&run);
        run.inject(Fault::nth(call));
        let outcome = compact_now(&files, None, &options("two"), 1);
        let found = content(&files);
        assert!(found == old || found == new, "call {call}");
        assert!(outcome.is_err() || found == new, "call {call}: {outcome:?}");
        run.clear_faults();
        compact_now(&files, None, &options("three"), 1).unwrap();
        assert_eq!(content(&files), new, "call {call}");
        let left = leftovers(&files, "two");
        assert!(left.is_empty() || left == ["lock", "record.json"], "call {call}: {left:?}");
    }
}
