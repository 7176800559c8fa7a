//! All ways to find a message.

use std::os::unix::fs::FileExt;

use crate::Boundary;
use crate::testing::{World, body, message, plain, put, read_all, small};
use mqstore_base::error::StoreError;
use mqstore_base::message::{MessageFilter, encode_properties};
use mqstore_base::options::{OpenMode, StoreOptions};

#[test]
fn messages_are_found_by_id_position_and_unique_key() {
    let (world, _, _) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    let mut appended = Vec::new();
    for index in 0..50 {
        appended.push(put(&store, "t", 0, format!("m{index}").as_bytes(), "k"));
    }
    let reader = world.open(OpenMode::Read, &small()).unwrap();
    for store in [&store, &reader] {
        for (index, one) in appended.iter().enumerate() {
            let wanted = format!("m{index}").into_bytes();
            assert_eq!(body(&store.log().get_at(one.commit_log_offset).unwrap()), wanted);
            assert_eq!(body(&store.get(one.unique_id.as_str()).unwrap().unwrap()), wanted);
            let host = StoreOptions::default().store_host;
            let id = mqstore_format::offset_message_id(&host, one.commit_log_offset as i64);
            assert_eq!(body(&store.get(&id).unwrap().unwrap()), wanted);
        }
        assert!(store.get("no such id").unwrap().is_none());
        assert!(store.log().get_at(appended[1].commit_log_offset + 1).is_err());
        assert!(store.log().get_at(u64::MAX).is_err());
    }
}

#[test]
fn a_batch_for_several_topics_counts_offsets_in_each() {
    let (world, _, _) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    let topics = ["a", "a", "b", "a", "c", "c", "b"];
    let messages: Vec<_> = topics.iter().map(|topic| plain(topic, topic.as_bytes())).collect();
    let appended = store.append_many(&messages).unwrap();
    assert!(appended.iter().map(|one| one.queue_offset).eq([0, 1, 0, 2, 0, 1, 1]));
    for (topic, one) in topics.iter().zip(&appended) {
        let record = store.message_at(topic, 0, one.queue_offset).unwrap().unwrap();
        assert_eq!(
            (record.commit_log_offset, body(&record)),
            (one.commit_log_offset, topic.as_bytes().to_vec())
        );
        assert_eq!(body(&store.get(one.unique_id.as_str()).unwrap().unwrap()), topic.as_bytes());
    }
}

#[test]
fn a_batch_keeps_bodies_of_all_sizes() {
    let (world, _, _) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    // The scratch buffer outgrows the nearest cache in the middle of the batch.
    let sizes = [0, 1, 512, 513, 4096, 4097];
    let bodies: Vec<Vec<u8>> =
        (0..60_u8).zip(sizes.iter().cycle()).map(|(byte, size)| vec![byte; *size]).collect();
    let messages: Vec<_> = bodies.iter().map(|body| plain("t", body)).collect();
    store.append_many(&messages).unwrap();
    assert!(read_all(&store, "t", 0).into_iter().map(|(_, body)| body).eq(bodies));
}

#[test]
fn offsets_outside_a_queue_name_its_bounds() {
    let (world, _, _) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    put(&store, "t", 0, b"a", "k");
    for start in [-1, 2] {
        match store.read("t", 0, Some(start), None, None) {
            Err(StoreError::OffsetOutOfRange { min_offset: 0, max_offset: 1, .. }) => {}
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("{start} was accepted"),
        }
    }
    assert!(store.read("t", 0, Some(1), None, None).unwrap().next_batch(9).unwrap().is_empty());
    assert!(matches!(
        store.read("t", 1, None, None, None),
        Err(StoreError::TopicNotFound { queue_id: Some(1), .. })
    ));
    assert!(matches!(
        store.read("u", 0, None, None, None),
        Err(StoreError::TopicNotFound { queue_id: None, .. })
    ));
}

#[test]
fn filters_match_tags() {
    let (world, _, _) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    for index in 0..30 {
        // "Aa" and "BB" have the same hash, so the record itself must decide.
        let tags = ["Aa", "BB", "C"][index % 3];
        let properties = encode_properties([], Some(tags), None, []).unwrap();
        store.append(&message("t", Some(0), tags.as_bytes(), &properties)).unwrap();
    }
    for (expression, wanted) in [("Aa", 10), ("BB || C", 20), ("*", 30), ("nothing", 0)] {
        let filter = MessageFilter::tags(expression).unwrap();
        let mut cursor = store.read("t", 0, None, None, filter.as_ref()).unwrap();
        assert_eq!(cursor.next_batch(99).unwrap().len(), wanted, "{expression}");
    }
    let filter = MessageFilter::tags("Aa").unwrap().unwrap();
    let hash = i64::from(mqstore_format::java_hash("Aa"));
    assert!(filter.may_match_code(hash) && !filter.may_match_code(hash + 1));
    // A code that is no hash can match: a due time, or a position in an extension file.
    assert!(filter.may_match_code(1_700_000_000_000) && filter.may_match_code(i64::MIN + 20));
}

#[test]
fn filters_match_properties() {
    let (world, _, _) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    for number in 0..30 {
        let price = number.to_string();
        let region = ["eu", "us"][number % 2];
        let properties =
            encode_properties([], Some("T"), None, [("price", price.as_str()), ("region", region)]);
        store.append(&message("t", Some(0), price.as_bytes(), &properties.unwrap())).unwrap();
    }
    let cases = [
        ("price >= 10 AND region = 'eu'", 10),
        ("price BETWEEN 5 AND 9", 5),
        ("TAGS = 'T' AND price IN ('3', '4')", 2),
        ("price > 5.5", 24),
        ("region", 0),
        ("missing IS NULL", 30),
        ("region > 1", 0),
    ];
    for (expression, wanted) in cases {
        let filter = MessageFilter::sql(expression).unwrap();
        let found = store.read("t", 0, None, None, Some(&filter)).unwrap().next_batch(99).unwrap();
        assert_eq!(found.len(), wanted, "{expression}");
        let in_log = store.log().scan(None).unwrap().filtered(Some(filter)).next_batch(99).unwrap();
        assert_eq!(in_log.len(), wanted, "{expression}");
    }
    let error = MessageFilter::sql("price >").unwrap_err();
    assert!(matches!(error, StoreError::InvalidFilter { position: 7, .. }), "{error}");
}

#[test]
fn a_filter_that_finds_nothing_gives_back_control() {
    let (world, _, _) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    for number in 0..30u8 {
        let properties = encode_properties([], None, None, [("n", number.to_string().as_str())]).unwrap();
        store.append(&message("t", Some(0), &[number], &properties)).unwrap();
    }
    let filter = MessageFilter::sql("n >= 25").unwrap();
    let mut queue = store.read("t", 0, None, None, Some(&filter)).unwrap();
    let mut log = store.log().scan(None).unwrap().filtered(Some(filter));
    for wanted in [0, 0, 5] {
        let (in_queue, in_log) = (queue.next_of(99, 10).unwrap(), log.next_of(99, 10).unwrap());
        assert_eq!((in_queue.records.len(), in_log.records.len()), (wanted, wanted));
        assert!(!in_queue.ended && !in_log.ended);
    }
    assert!(queue.next_of(99, 10).unwrap().ended && log.next_of(99, 10).unwrap().ended);
}

#[test]
fn times_lead_to_offsets_as_in_rocketmq() {
    let (world, _, clock) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    let start = 1_700_000_000_000;
    for time in [1000, 1000, 1000, 3000, 3000] {
        clock.set(start + time);
        put(&store, "t", 0, b"a", "k");
    }
    for (time, lower, upper) in [(0, 0, 0), (1000, 0, 2), (2000, 3, 2), (3000, 3, 4), (4000, 5, 4)] {
        let find = |boundary| store.offset_for_time("t", 0, start + time, boundary).unwrap();
        assert_eq!((find(Boundary::Lower), find(Boundary::Upper)), (lower, upper), "time {time}");
    }
}

#[test]
fn lookups_respect_topic_time_and_limit() {
    let (world, _, clock) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    for index in 0..40_i64 {
        clock.set(1_700_000_000_000 + index * 1000);
        put(&store, if index % 2 == 0 { "even" } else { "odd" }, 0, b"a", "k");
    }
    let find = |start, end, limit| {
        let mut cursor = store.lookup("even", "k", start, end, limit).unwrap();
        cursor.next_batch(99).unwrap().len()
    };
    assert_eq!(find(None, None, None), 20);
    assert_eq!(find(None, None, Some(3)), 3);
    assert_eq!(find(Some(1_700_000_010_000), Some(1_700_000_020_000), None), 6);
    // The reader must search the log for the newest messages.
    store.flush().unwrap();
    put(&store, "even", 0, b"a", "k");
    for store in [&store, &world.open(OpenMode::Read, &small()).unwrap()] {
        let ahead = store.lookup("even", "k", None, None, None).unwrap().next_batch(99).unwrap();
        let mut back = store.lookup("even", "k", None, None, Some(3)).unwrap().newest_first();
        let back = [back.next_batch(2).unwrap(), back.next_batch(9).unwrap()].concat();
        let places = |record: &mqstore_base::message::StoredRecord| record.commit_log_offset;
        assert!(ahead.len() == 21 && back.len() == 3);
        assert!(ahead.iter().rev().take(3).map(places).eq(back.iter().map(places)));
    }
    assert_eq!(store.lookup("even", "K", None, None, None).unwrap().next_batch(9).unwrap().len(), 0);
}

#[test]
fn a_reader_beside_the_writer_sees_what_was_appended() {
    let world = World::real();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    put(&store, "t", 0, b"0", "k");
    let reader = world.open(OpenMode::Read, &small()).unwrap();
    for count in 1..200 {
        assert_eq!(read_all(&reader, "t", 0).len(), count);
        put(&store, "t", 0, format!("{count}").as_bytes(), "k");
    }
    store.close().unwrap();
    assert_eq!(read_all(&reader, "t", 0).len(), 200);
    assert_eq!(reader.lookup("t", "k", None, None, None).unwrap().next_batch(999).unwrap().len(), 200);
}

#[test]
fn an_append_returns_only_after_other_processes_can_see_its_record() {
    let world = World::real();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    store.create_topic("t", 4, &[]).unwrap();
    let page = std::fs::File::open(world.path.join("mqstore/live")).unwrap();
    // The offset of the published position in the live page.
    let published = || {
        let mut bytes = [0; 8];
        page.read_exact_at(&mut bytes, 72).unwrap();
        u64::from_be_bytes(bytes)
    };
    std::thread::scope(|scope| {
        for queue in 0..4 {
            let (store, published) = (&store, &published);
            scope.spawn(move || {
                for _ in 0..2_000 {
                    let appended = store.append(&message("t", Some(queue), b"body", &[])).unwrap();
                    assert!(published() >= appended.commit_log_offset + u64::from(appended.size));
                }
            });
        }
    });
}

#[test]
fn messages_that_break_a_rule_are_refused_and_nothing_is_written() {
    let (world, _, _) = World::simulated();
    let options = StoreOptions { max_message_bytes: 100, ..small() };
    let store = world.open(OpenMode::Create, &options).unwrap();
    let body = [0; 101];
    assert!(matches!(store.append(&message("t", None, &body, &[])), Err(StoreError::TooLarge { .. })));
    let long = "t".repeat(128);
    for topic in ["", "a b", "a/b", "../x", "é", long.as_str()] {
        let outcome = store.append(&message(topic, None, b"x", &[]));
        assert!(matches!(outcome, Err(StoreError::InvalidMessage { .. })), "{topic:?}: {outcome:?}");
    }
    assert!(store.append(&message("t", Some(-1), b"x", &[])).is_err());
    assert_eq!(store.stats().unwrap().log_max_offset, 0);
    for (key, value) in [("", "v"), ("n", ""), ("n\u{1}", "v"), ("n", "v\u{2}"), ("KEYS", "v")] {
        assert!(encode_properties([], None, None, [(key, value)]).is_err(), "{key:?}={value:?}");
    }
    for key in ["", "a b", "a\u{1}"] {
        assert!(encode_properties([key], None, None, []).is_err(), "{key:?}");
    }
}

#[test]
fn a_queue_that_begins_late_has_blank_units_before_its_first_message() {
    let (world, _, _) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    store.create_topic("t", 2, &[]).unwrap();
    assert_eq!(store.system_appends().advance_queue("t", 0, 1000).unwrap(), 1000);
    // A queue never goes back, and passes over few offsets once it has begun.
    assert_eq!(store.system_appends().advance_queue("t", 0, 10).unwrap(), 1000);
    assert_eq!(store.system_appends().advance_queue("t", 0, 2001).unwrap(), 1000);
    assert_eq!(store.system_appends().advance_queue("t", 1, i64::MAX).unwrap(), 0);
    assert_eq!(store.system_appends().advance_queue("t", 1, -1).unwrap(), 0);
    assert!(matches!(store.system_appends().advance_queue("u", 0, 5), Err(StoreError::TopicNotFound { .. })));
    assert_eq!(put(&store, "t", 0, b"first", "k").queue_offset, 1000);
    assert_eq!(store.system_appends().advance_queue("t", 0, 1011).unwrap(), 1011);
    assert_eq!(put(&store, "t", 0, b"second", "k").queue_offset, 1011);
    assert_eq!(put(&store, "t", 1, b"other", "k").queue_offset, 0);
    for round in 0..2 {
        let reader = world.open(OpenMode::Read, &small()).unwrap();
        for store in [&store, &reader] {
            assert_eq!(store.bounds("t", 0).unwrap(), (1000, 1012), "round {round}");
            assert_eq!(read_all(store, "t", 0), [(1000, b"first".to_vec()), (1011, b"second".to_vec())]);
            assert!(store.message_at("t", 0, 1005).unwrap().is_none());
        }
        store.flush().unwrap();
    }
    store.close().unwrap();
    let again = world.open(OpenMode::ReadWrite, &small()).unwrap();
    assert_eq!(again.bounds("t", 0).unwrap(), (1000, 1012));
    assert_eq!(put(&again, "t", 0, b"third", "k").queue_offset, 1012);
}
