//! Quotas: never exceeded, all or nothing, free again after an expiry, and the same after any stop.

use crate::testing::*;
use crate::{TopicChange, TopicQuota};

fn with_quota(store: &Store, topic: &str, queues: u32, most: u64) {
    let attribute = ("mqstore.max.messages".to_owned(), most.to_string());
    store.create_topic(topic, queues, &[attribute]).unwrap();
}

fn quota_of(store: &Store, topic: &str) -> Option<(u64, u64)> {
    let found = store.settings().quotas().unwrap().into_iter().find(|quota| quota.topic == topic)?;
    let TopicQuota { max_messages, messages, .. } = found;
    Some((max_messages, messages))
}

fn refusal(outcome: Result<impl Sized, StoreError>) -> (Option<String>, &'static str, u64, u64) {
    match outcome.err() {
        Some(StoreError::Full { topic, quota, limit, used, .. }) => (topic, quota, limit, used),
        other => panic!("{other:?}"),
    }
}

fn full(topic: &str, limit: u64, used: u64) -> (Option<String>, &'static str, u64, u64) {
    (Some(topic.to_owned()), "max_messages", limit, used)
}

fn expire(store: &Store) -> usize {
    store.expire(false, &mut || Ok(())).unwrap().files.len()
}

#[test]
fn a_topic_takes_as_many_as_it_may_hold_and_a_batch_whole_or_not_at_all() {
    let world = World::real();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    with_quota(&store, "a", 3, 10);
    store.create_topic("b", 1, &[]).unwrap();
    let many = |topics: &[&'static str]| {
        let messages: Vec<_> = topics.iter().map(|topic| message(topic, None, b"body", &[])).collect();
        store.append_many(&messages)
    };
    many(&["a"; 7]).unwrap();
    assert_eq!(refusal(many(&["a"; 4])), full("a", 10, 7));
    // If one topic's quota is exceeded, the whole call is refused, in any order of the messages.
    assert_eq!(refusal(many(&["b", "a", "b", "a", "a", "b", "a"])), full("a", 10, 7));
    assert_eq!(store.stats().unwrap().appends, 7);
    many(&["b", "a", "b", "a", "a"]).unwrap();
    assert_eq!(refusal(many(&["a"])), full("a", 10, 10));
    put(&store, "b", 0, b"another topic is open", "k");
    assert_eq!(store.stats().unwrap().refused_appends, 3);
    assert_eq!((quota_of(&store, "a"), quota_of(&store, "b")), (Some((10, 10)), None));
    // Brokers see the quota as an attribute. It can be changed and removed.
    let topics = store.settings().all().unwrap().topics;
    let attributes = &topics.iter().find(|topic| topic.name == "a").unwrap().attributes;
    assert!(attributes.iter().eq([(&"mqstore.max.messages".to_owned(), &"10".to_owned())]));
    let change = |most| TopicChange { max_messages: Some(most), ..TopicChange::default() };
    store.change_topic("a", change(12)).unwrap();
    many(&["a"; 2]).unwrap();
    store.change_topic("a", change(5)).unwrap();
    assert_eq!(refusal(many(&["a"])), full("a", 5, 12));
    store.change_topic("a", change(0)).unwrap();
    many(&["a"; 100]).unwrap();
    assert_eq!(quota_of(&store, "a"), None);
    store.change_topic("a", change(113)).unwrap();
    many(&["a"]).unwrap();
    assert_eq!(refusal(many(&["a"])), full("a", 113, 113));
}

#[test]
fn quotas_out_of_bounds_and_of_topics_that_take_none_are_refused() {
    let world = World::real();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    let create = |topic: &str, most: &str| {
        store.create_topic(topic, 1, &[("mqstore.max.messages".to_owned(), most.to_owned())])
    };
    let invalid = |outcome| matches!(outcome, Err(StoreError::InvalidOption { option: "max_messages", .. }));
    for most in ["0", "-1", "", "many", "9007199254740993"] {
        assert!(invalid(create("a", most)), "{most}");
    }
    for topic in ["%RETRY%g", "%DLQ%g", "rmq_sys_x"] {
        assert!(invalid(create(topic, "5")), "{topic}");
    }
    store.create_topic("%DLQ%g", 1, &[]).unwrap();
    let change = TopicChange { max_messages: Some(1), ..TopicChange::default() };
    assert!(invalid(store.change_topic("%DLQ%g", change)));
    create("a", "9007199254740992").unwrap();
}

#[test]
fn threads_together_never_exceed_it_and_leave_no_room_unused() {
    let world = World::real();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    with_quota(&store, "a", 3, 500);
    let taken: usize = std::thread::scope(|scope| {
        let append = |number: usize| {
            let mut taken = 0;
            for _ in 0..200 {
                let messages = vec![message("a", None, b"body", &[]); 1 + number % 2];
                match store.append_many(&messages) {
                    Ok(all) => taken += all.len(),
                    Err(error) => assert!(matches!(error, StoreError::Full { .. }), "{error}"),
                }
            }
            taken
        };
        let threads: Vec<_> = (0..4).map(|number| scope.spawn(move || append(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(taken, 500);
    assert_eq!(quota_of(&store, "a"), Some((500, 500)));
}

#[test]
fn batch_queues_count_the_messages_of_their_records() {
    let world = World::real();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    let batch = ("queue.type".to_owned(), "BatchCQ".to_owned());
    store.create_topic("a", 1, &[batch, ("mqstore.max.messages".to_owned(), "5".to_owned())]).unwrap();
    let three = vec![message("a", Some(0), b"body", &[]); 3];
    store.append_many(&three).unwrap();
    assert_eq!(refusal(store.append_many(&three)), full("a", 5, 3));
    store.append_many(&three[..2]).unwrap();
    assert_eq!(quota_of(&store, "a"), Some((5, 5)));
}

#[test]
fn an_expiry_makes_room_and_a_stop_changes_nothing() {
    let world = World::real();
    let options = StoreOptions { retention_bytes: Some(16 << 10), ..small() };
    let mut store = world.open(OpenMode::Create, &options).unwrap();
    with_quota(&store, "a", 2, 100);
    let fill = |store: &Store| {
        let body = [b'x'; 400];
        let outcome = (0..1000).map(|_| store.append(&message("a", None, &body, &[]))).find(Result::is_err);
        assert_eq!(refusal(outcome.unwrap()), full("a", 100, 100));
    };
    fill(&store);
    for _ in 0..3 {
        assert!(expire(&store) > 0);
        let (_, held) = quota_of(&store, "a").unwrap();
        assert!(held < 60, "{held}");
        drop(store);
        store = world.open(OpenMode::ReadWrite, &options).unwrap();
        assert_eq!(quota_of(&store, "a"), Some((100, held)));
        fill(&store);
        drop(store);
        store = world.open(OpenMode::ReadWrite, &options).unwrap();
        fill(&store);
        // A reader sees it too.
        let reader = world.open(OpenMode::Read, &options).unwrap();
        assert_eq!(quota_of(&reader, "a"), Some((100, 100)));
    }
}

#[test]
fn a_topic_that_is_made_again_goes_by_its_new_quota_alone() {
    let world = World::real();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    with_quota(&store, "a", 1, 2);
    store.append_many(&[plain("a", b"1"), plain("a", b"2")]).unwrap();
    store.remove_topic("a").unwrap();
    store.append_many(&[plain("a", b"3"), plain("a", b"4")]).unwrap();
    assert_eq!(quota_of(&store, "a"), None);
    store.remove_topic("a").unwrap();
    with_quota(&store, "a", 1, 5);
    // The messages of the deleted topics do not count.
    for _ in 0..5 {
        store.append(&plain("a", b"5")).unwrap();
    }
    assert_eq!(refusal(store.append(&plain("a", b"6"))), full("a", 5, 5));
}

#[test]
fn the_log_gets_no_more_segments_than_it_may_have() {
    for durability in [
        mqstore_base::options::Durability::Async,
        mqstore_base::options::Durability::Sync,
        mqstore_base::options::Durability::Pooled,
    ] {
        let world = World::real();
        let keep = StoreOptions { retention_bytes: Some(16 << 10), ..small() };
        let options = StoreOptions { max_bytes: Some(50 << 10), durability, ..small() };
        let store = world.open(OpenMode::Create, &options).unwrap();
        let body = [b'x'; 3000];
        let mut count = 0;
        let outcome = loop {
            match store.append(&plain("a", &body)) {
                Ok(_) => count += 1,
                Err(error) => break Err::<(), _>(error),
            }
        };
        // Three segments of five records each.
        assert_eq!(count, 15);
        assert_eq!(refusal(outcome), (None, "max_bytes", 50 << 10, 48 << 10));
        let stats = store.stats().unwrap();
        assert_eq!((stats.log_bytes, stats.max_bytes, stats.refused_appends), (48 << 10, Some(50 << 10), 1));
        // A message that needs no new segment still fits.
        store.append(&plain("b", b"small")).unwrap();
        store.close().unwrap();
        let store = world.open(OpenMode::ReadWrite, &options).unwrap();
        assert!(matches!(store.append(&plain("a", &body)), Err(StoreError::Full { .. })));
        store.close().unwrap();
        let store = world.open(OpenMode::ReadWrite, &keep).unwrap();
        assert!(expire(&store) > 0);
        store.close().unwrap();
        let store = world.open(OpenMode::ReadWrite, &options).unwrap();
        // Longer than a segment, and than the remaining space: nothing of it is appended.
        let before = store.stats().unwrap().log_max_offset;
        assert!(matches!(store.append_many(&vec![plain("a", &body); 11]), Err(StoreError::Full { .. })));
        assert_eq!(store.stats().unwrap().log_max_offset, before);
        store.append_many(&vec![plain("a", &body); 10]).unwrap();
        store.close().unwrap();
    }
}

#[test]
fn a_log_that_may_have_no_segment_does_not_open() {
    let world = World::real();
    let options = StoreOptions { max_bytes: Some((16 << 10) - 1), ..small() };
    let outcome = world.open(OpenMode::Create, &options);
    assert!(matches!(outcome, Err(StoreError::InvalidOption { option: "max_bytes", .. })));
}
