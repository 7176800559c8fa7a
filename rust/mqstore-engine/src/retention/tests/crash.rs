use super::closing::{append, large};
use super::*;
use mqstore_log::commit_log::SegmentList;

/// Returns a store in which everything is appended and synced, some hours ago.
fn ready(options: &StoreOptions) -> (Bench, Store, Vec<(i64, u64)>) {
    let bench = Bench::new();
    let store = bench.open(options);
    // In a large segment the messages do not fill the first one.
    let placed = if options.segment_bytes > SEGMENT { append(&store, 12) } else { fill(&bench, &store, 5) };
    store.flush().unwrap();
    bench.hours(9);
    (bench, store, placed)
}

/// Checks that the files after a stop open, have no gap, and contain all acknowledged messages from the smallest offset
/// on.
fn check(bench: &Bench, options: &StoreOptions, placed: &[(i64, u64)], moment: &str) {
    let files = mqstore_base::store_files::StoreFiles::new(
        Arc::new(bench.sim.clone()),
        bench.clock.clone(),
        "/data/store".as_ref(),
    );
    let list = SegmentList::load(&files).unwrap();
    assert_eq!(list.gaps, [], "{moment}");
    let min = list.min_offset();
    let expected: Vec<i64> = placed.iter().filter(|(_, at)| *at >= min).map(|(offset, _)| *offset).collect();
    // A reader sees the same as the next writer.
    assert_eq!(offsets(&bench.read_only()), expected, "read only, {moment}");
    let store = bench.open(options);
    assert_eq!(offsets(&store), expected, "{moment}");
    let first = expected.first().copied().unwrap_or(placed.len() as i64);
    assert_eq!(bounds(&store), (first, placed.len() as i64), "{moment}");
    for (offset, _) in placed.iter().filter(|(_, at)| *at < min) {
        let below = store.read("t", 0, Some(*offset), None, None).err().unwrap();
        assert!(
            matches!(below, StoreError::OffsetOutOfRange { min_offset, .. } if min_offset == first),
            "{moment}: {below}"
        );
    }
    for (offset, at) in placed.iter().filter(|(_, at)| *at >= min) {
        assert_eq!(store.log().get_at(*at).unwrap().view().unwrap().queue_offset, *offset, "{moment}");
        let mut found = store.lookup("t", &format!("k{offset}"), None, None, None).unwrap();
        assert_eq!(found.next_batch(2).unwrap().len(), 1, "{moment}: key of {offset}");
    }
    // The expiry continues where it stopped.
    expire(&store, false);
    assert_eq!(bench.segments().len(), 1, "{moment}");
    fill(bench, &store, 2);
    store.close().unwrap();
    let report = mqstore_inspect::verify(&files, options, &mut |_| Ok(())).unwrap();
    assert!(report.ok, "{moment}: {:#?}", report.problems);
    assert_eq!(bench.sim.violations(), Vec::<String>::new(), "{moment}");
    assert!(bench.names("/data/store/mqstore/wipe").is_empty(), "{moment}");
}

fn stop_at_each_call(options: &StoreOptions) {
    let (bench, store, _) = ready(options);
    let before = bench.sim.operations();
    expire(&store, false);
    let calls = bench.sim.operations() - before;
    assert!(calls > 50, "{calls}");
    for call in 1..=calls {
        let (bench, store, placed) = ready(options);
        bench.sim.freeze_at(bench.sim.operations() + call);
        expire(&store, false);
        let frozen = bench.sim.take_frozen().unwrap();
        check(&bench.after(frozen.kill().unwrap()), options, &placed, &format!("kill at call {call}"));
        let bare = frozen.crash_with(&mut |_| false).unwrap();
        check(&bench.after(bare), options, &placed, &format!("bare power loss at call {call}"));
        for seed in 0..3 {
            let sim = frozen.crash(seed * 1000 + call).unwrap();
            check(&bench.after(sim), options, &placed, &format!("power loss {seed} at call {call}"));
        }
    }
}

#[test]
fn a_stop_at_any_call_of_an_expiry_loses_nothing_that_was_to_stay() {
    stop_at_each_call(&aged(1));
}

#[test]
fn a_stop_at_any_call_of_a_wiping_expiry_too() {
    stop_at_each_call(&StoreOptions { secure_wipe: true, ..aged(1) });
}

#[test]
fn a_stop_at_any_call_of_an_expiry_that_closes_the_log_too() {
    stop_at_each_call(&large(aged(1)));
}

#[test]
fn an_error_at_any_call_is_reported_and_leaves_a_store_that_goes_on() {
    for options in [aged(1), large(aged(1))] {
        an_error_at_any_call(&options);
    }
}

fn an_error_at_any_call(options: &StoreOptions) {
    let (bench, store, _) = ready(options);
    let before = bench.sim.operations();
    expire(&store, false);
    let calls = bench.sim.operations() - before;
    for call in 1..=calls {
        let (bench, store, placed) = ready(options);
        bench.sim.inject(mqstore_io::Fault::nth(call));
        let outcome = store.expire(false, &mut || Ok(()));
        bench.sim.clear_faults();
        // A disk that does not report its space, and a time that cannot be read, are no errors.
        if let Err(error) = outcome {
            assert!(matches!(error, StoreError::Io { .. } | StoreError::Poisoned { .. }), "{call}: {error}");
        }
        let closed = store.close();
        drop(store);
        if closed.is_err() {
            check(
                &bench.after(bench.sim.kill().unwrap()),
                options,
                &placed,
                &format!("error at call {call}"),
            );
        } else {
            check(&bench, options, &placed, &format!("error at call {call}"));
        }
    }
}
