use super::*;

#[test]
fn a_segment_that_a_reader_uses_waits_for_its_time() {
    let bench = Bench::new();
    let store = bench.open(&StoreOptions { held_limit_ms: 120_000, ..aged(1) });
    let placed = fill(&bench, &store, 4);
    let in_first = placed.iter().filter(|(_, at)| *at < SEGMENT).count() as i64;
    bench.hours(5);
    let mut cursor = store.read("t", 0, None, None, None).unwrap();
    assert_eq!(cursor.next_batch(1).unwrap().len(), 1);
    rounds(&bench, &store, 20);
    assert_eq!((bench.segments().len(), bounds(&store).0), (4, 0));
    let report = expire(&store, false);
    assert!(report.kept[0].ends_with("a reader is using it"), "{:?}", report.kept);
    bench.clock.advance(Duration::from_secs(100));
    rounds(&bench, &store, 5);
    assert_eq!(bench.segments().len(), 4);
    bench.clock.advance(Duration::from_secs(21));
    rounds(&bench, &store, 20);
    assert_eq!(bench.segments().len(), 1, "no reader holds the others");
    // The names are removed; the reader still returns the messages of the segment that it uses.
    let min = bounds(&store).0;
    assert_eq!(store.stats().unwrap().held_files.len(), 1);
    for offset in 1..in_first {
        assert_eq!(cursor.next_batch(1).unwrap().remove(0).queue_offset, offset);
    }
    let error = cursor.next_batch(1).unwrap_err();
    assert!(matches!(error, StoreError::OffsetOutOfRange { min_offset, .. } if min_offset == min), "{error}");
    assert!(min > in_first);
    store.close().unwrap();
}

#[test]
fn the_space_of_a_removed_segment_is_free_once_nobody_looks_at_it() {
    let bench = Bench::new();
    let store = bench.open(&StoreOptions { held_limit_ms: 0, ..aged(1) });
    fill(&bench, &store, 4);
    // Two snapshots of the log know all segments, and one of them uses the first one.
    let mut cursor = store.read("t", 0, None, None, None).unwrap();
    let record = cursor.next_batch(1).unwrap().remove(0);
    let other = store.read("t", 0, None, None, None).unwrap();
    bench.hours(5);
    assert_eq!(expire(&store, false).segments, 3);
    let held = store.stats().unwrap().held_files;
    assert!(held.len() == 1 && held[0].ends_with(format!("{:020}", 0)), "{held:?}");
    assert_eq!(record.view().unwrap().queue_offset, 0);
    drop((record, cursor));
    bench.clock.advance(Duration::from_secs(1));
    store.step().unwrap();
    assert_eq!(store.stats().unwrap().held_files.len(), 0);
    drop(other);
    store.close().unwrap();
}

#[test]
fn a_reader_that_moves_on_or_ends_is_in_nobodys_way() {
    let bench = Bench::new();
    let store = bench.open(&aged(1));
    let placed = fill(&bench, &store, 4);
    bench.hours(5);
    let mut cursor = store.read("t", 0, None, None, None).unwrap();
    let in_second = placed.iter().position(|(_, at)| *at >= SEGMENT).unwrap();
    assert_eq!(cursor.next_batch(in_second + 1).unwrap().len(), in_second + 1);
    rounds(&bench, &store, 20);
    assert_eq!(bench.segments()[0], SEGMENT, "it holds the second one now");
    while !cursor.next_batch(100).unwrap().is_empty() {}
    bench.clock.advance(Duration::from_secs(2));
    rounds(&bench, &store, 20);
    assert_eq!(bench.segments().len(), 1);
    store.close().unwrap();
}

#[test]
fn a_queue_reader_that_was_overtaken_is_told_and_a_log_reader_goes_on() {
    let bench = Bench::new();
    let store = bench.open(&aged(1));
    let placed = fill(&bench, &store, 4);
    store.flush().unwrap();
    bench.hours(5);
    let mut late = store.read("t", 0, None, None, None).unwrap();
    let reader = bench.read_only();
    let mut beside = reader.read("t", 0, None, None, None).unwrap();
    let mut log = reader.log().scan(None).unwrap();
    expire(&store, false);
    let min = bounds(&store).0;
    for cursor in [&mut late, &mut beside] {
        let error = cursor.next_batch(1).unwrap_err();
        assert!(
            matches!(error, StoreError::OffsetOutOfRange { offset: 0, min_offset, .. } if min_offset == min),
            "{error}"
        );
    }
    let batch = log.next_batch(1000).unwrap();
    assert_eq!(batch[0].view().unwrap().queue_offset, min);
    assert_eq!(batch.len() as i64, placed.len() as i64 - min);
    assert!(
        reader.notes().iter().any(|note| note.contains("was deleted while it was read")),
        "{:?}",
        reader.notes()
    );
    store.close().unwrap();
}

#[test]
fn a_reader_in_another_process_follows_the_minimum() {
    for queues_too in [true, false] {
        let bench = Bench::new();
        let store = bench.open(&aged(1));
        fill(&bench, &store, 5);
        store.flush().unwrap();
        if !queues_too {
            // Then the reader derives the queues in memory.
            store.close().unwrap();
            bench.sim.remove_dir_all("/data/store/consumequeue".as_ref()).unwrap();
        }
        let reader = bench.read_only();
        assert_eq!(bounds(&reader).0, 0);
        let store = if queues_too { store } else { bench.open(&aged(1)) };
        bench.hours(5);
        expire(&store, false);
        let (min, max) = bounds(&store);
        assert_eq!(bounds(&reader), (min, max), "queue files: {queues_too}");
        let below = reader.read("t", 0, Some(min - 1), None, None).err().unwrap();
        assert!(matches!(below, StoreError::OffsetOutOfRange { min_offset, .. } if min_offset == min));
        assert_eq!(offsets(&reader), (min..max).collect::<Vec<_>>());
        let more = fill(&bench, &store, 3);
        assert_eq!(offsets(&reader), (min..max + more.len() as i64).collect::<Vec<_>>());
        let mut found = reader.lookup("t", &format!("k{}", more.len() - 1), None, None, None).unwrap();
        assert!(!found.next_batch(9).unwrap().is_empty());
        store.close().unwrap();
    }
}

#[test]
fn bytes_that_somebody_looks_at_are_wiped_later() {
    let bench = Bench::new();
    let store = bench.open(&StoreOptions { secure_wipe: true, held_limit_ms: 0, ..aged(1) });
    let first = fill(&bench, &store, 1)[0];
    let mut cursor = store.read("t", 0, None, None, None).unwrap();
    let record = cursor.next_batch(1).unwrap().remove(0);
    let bytes = record.view().unwrap().bytes.to_vec();
    fill(&bench, &store, 3);
    bench.hours(5);
    expire(&store, false);
    assert_eq!(bench.names("/data/store/mqstore/wipe"), [0], "gone from the log, not wiped yet");
    assert_eq!(bench.segments()[0], 2 * SEGMENT);
    assert_eq!((record.view().unwrap().bytes, first.0), (bytes.as_slice(), 0));
    drop((record, cursor));
    store.step().unwrap();
    assert!(bench.names("/data/store/mqstore/wipe").is_empty());
    store.close().unwrap();
}

#[test]
fn what_a_stop_left_to_be_wiped_is_wiped_by_the_next_writer() {
    let bench = Bench::new();
    let store = bench.open(&StoreOptions { secure_wipe: true, held_limit_ms: 0, ..aged(1) });
    fill(&bench, &store, 2);
    let mut cursor = store.read("t", 0, None, None, None).unwrap();
    cursor.next_batch(1).unwrap();
    bench.hours(5);
    expire(&store, false);
    let later = bench.after(bench.sim.kill().unwrap());
    assert_eq!(later.names("/data/store/mqstore/wipe"), [0]);
    let path = std::path::Path::new("/data/store/mqstore/wipe").join(format!("{:020}", 0));
    let held = later.sim.open(&path, mqstore_io::Access::Read).unwrap();
    let store = later.open(&options());
    store.step().unwrap();
    assert!(later.names("/data/store/mqstore/wipe").is_empty());
    let mut bytes = vec![1; SEGMENT as usize];
    held.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
    store.close().unwrap();
}

#[test]
fn the_confirm_position_ends_what_is_visible() {
    let bench = Bench::new();
    let store = bench.open(&aged(1));
    let placed = fill(&bench, &store, 2);
    let end = store.stats().unwrap().log_max_offset;
    assert_eq!(store.confirm_offset().unwrap(), None);
    store.set_confirm_offset(Some(end)).unwrap();
    assert_eq!(store.confirm_offset().unwrap(), Some(end));
    let more = fill(&bench, &store, 4);
    let reader = bench.read_only();
    for store in [&store, &reader] {
        assert_eq!(bounds(store), (0, placed.len() as i64));
        assert_eq!(store.stats().unwrap().log_max_offset, end);
        assert!(store.log().get_at(more[0].1).is_err());
    }
    store.flush().unwrap();
    bench.hours(9);
    expire(&store, false);
    assert_eq!(bench.segments()[0], SEGMENT, "records after the confirmed offset and the mark's record stay");
    for bad in [end + 1, end + 100_000, more[0].1 - 3] {
        let error = store.set_confirm_offset(Some(bad)).unwrap_err();
        assert!(
            matches!(error, StoreError::InvalidOption { option: "confirm_offset", .. }),
            "{bad}: {error}"
        );
    }
    let error = store.set_confirm_offset(Some(placed[placed.len() - 1].1)).unwrap_err();
    assert!(error.to_string().contains("readers can already see the log up to"), "{error}");
    store.set_confirm_offset(Some(more[2].1)).unwrap();
    assert_eq!(bounds(&store).1, placed.len() as i64 + 2);
    store.set_confirm_offset(None).unwrap();
    assert_eq!(bounds(&store).1, (placed.len() + more.len()) as i64);
    assert_eq!(bounds(&reader).1, (placed.len() + more.len()) as i64);
    let end = store.stats().unwrap().log_max_offset;
    store.set_confirm_offset(Some(end)).unwrap();
    fill(&bench, &store, 4);
    store.close().unwrap();
    let again = bench.open(&aged(1));
    assert!(again.stats().unwrap().log_max_offset > end, "it is not stored");
    assert_eq!(again.notes(), Vec::<String>::new());
}

#[test]
fn a_reader_of_wiped_bytes_is_told_that_they_were_deleted() {
    let bench = Bench::new();
    let store = bench.open(&StoreOptions { secure_wipe: true, ..aged(1) });
    fill(&bench, &store, 4);
    store.flush().unwrap();
    bench.hours(5);
    // Like another process that has the segment open.
    let reader = bench.read_only();
    reader.log().get_at(0).unwrap();
    let mut beside = reader.read("t", 0, None, None, None).unwrap();
    expire(&store, false);
    assert!(bench.names("/data/store/mqstore/wipe").is_empty(), "wiped");
    for side in [&reader, &store] {
        let error = side.log().get_at(0).unwrap_err().to_string();
        assert!(error.contains("were removed"), "{error}");
    }
    let error = beside.next_batch(1).unwrap_err();
    assert!(matches!(error, StoreError::OffsetOutOfRange { offset: 0, .. }), "{error}");
    store.close().unwrap();
}

#[test]
fn a_reader_that_derived_the_newest_entries_begins_where_the_log_does() {
    let bench = Bench::new();
    let store = bench.open(&aged(1));
    fill(&bench, &store, 2);
    store.flush().unwrap();
    let reader = bench.read_only();
    let mut cursor = reader.read("t", 0, None, None, None).unwrap();
    fill(&bench, &store, 4);
    // The reader derives the units of messages appended since its open.
    assert_eq!(bounds(&reader), bounds(&store));
    bench.hours(5);
    expire(&store, false);
    let (min, max) = bounds(&store);
    assert!(min > 0);
    assert_eq!(bounds(&reader), (min, max));
    let error = cursor.next_batch(1).unwrap_err();
    assert!(matches!(error, StoreError::OffsetOutOfRange { min_offset, .. } if min_offset == min), "{error}");
    assert_eq!(offsets(&reader), (min..max).collect::<Vec<_>>());
    store.close().unwrap();
}
