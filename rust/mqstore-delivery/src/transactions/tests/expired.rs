//! Transactions whose records the retention removed, and foreign records in their topics.

use mqstore_base::message::NewMessage;
use mqstore_base::options::StoreOptions;

use super::*;
use crate::testing::{append_like_broker, put};
use crate::transactions::outcomes::OutcomeTracker;

/// Retention that keeps two segments.
fn expiring() -> StoreOptions {
    StoreOptions { retention_bytes: Some(2 * (16 << 10)), ..small() }
}

fn open(world: &SimStore) -> Store {
    world.try_open(&expiring()).unwrap()
}

/// Fills segments and expires the oldest until the half topic has no message at `offset`.
fn let_go(store: &Store, offset: i64) {
    for _ in 0..400 {
        if store.bounds(HALF_TOPIC, 0).unwrap().0 > offset {
            return;
        }
        put(store, "filler", 0, &"x".repeat(200), "T");
        store.expire(false, &mut || Ok(())).unwrap();
    }
    panic!("half message {offset} still exists");
}

#[test]
fn a_commit_whose_first_half_message_expired_is_not_delivered_again() {
    let world = SimStore::new();
    let store = open(&world);
    let engine = broker(&store);
    let transaction = engine.1.begin(GROUP).unwrap();
    add(&transaction, "a", "one");
    // The other half message is in the next segment.
    let end = small().segment_bytes;
    while store.stats().unwrap().log_max_offset < end {
        put(&store, "filler", 0, &"x".repeat(200), "T");
    }
    add(&transaction, "a", "two");
    transaction.commit(false).unwrap();
    assert_eq!(seen(&store, "a"), ["one", "two"]);
    let_go(&store, 0);
    assert_eq!(store.bounds(HALF_TOPIC, 0).unwrap(), (1, 2));
    let world = kill(&world, &store, engine);
    let store = open(&world);
    let _engine = broker(&store);
    assert_eq!(seen(&store, "a"), ["one", "two"]);
}

#[test]
fn what_is_left_of_a_transaction_can_be_decided() {
    for answer in [CheckAnswer::Commit, CheckAnswer::Rollback, CheckAnswer::Unknown] {
        let mut world = SimStore::new();
        let mut store = open(&world);
        let mut engine = broker(&store);
        let transaction = engine.1.begin(GROUP).unwrap();
        add(&transaction, "a", "one");
        let whole = engine.1.begin(GROUP).unwrap();
        add(&whole, "a", "whole");
        let end = small().segment_bytes;
        while store.stats().unwrap().log_max_offset < end {
            put(&store, "filler", 0, &"x".repeat(200), "T");
        }
        add(&transaction, "a", "two");
        let id = transaction.id().to_owned();
        drop((transaction, whole));
        world = kill(&world, &store, engine);
        store = open(&world);
        engine = broker(&store);
        assert_eq!(engine.1.pending().len(), 2);
        let_go(&store, 1);
        let options = CheckOptions { max: 1, ..CheckOptions::default() };
        for _ in 0..3 {
            world.clock.advance(Duration::from_secs(60));
            let now_ms = world.clock.now_ms();
            let mut check = |pending: &PendingTransaction| {
                if pending.id == id { answer } else { CheckAnswer::Unknown }
            };
            engine.1.step(GROUP, &options, now_ms, 9, &mut check).unwrap();
        }
        let delivered = if answer == CheckAnswer::Commit { vec!["two".to_owned()] } else { Vec::new() };
        let moved = if answer == CheckAnswer::Unknown { vec!["two".to_owned()] } else { Vec::new() };
        for _ in 0..2 {
            assert_eq!(seen(&store, "a"), delivered);
            assert_eq!(seen(&store, CHECK_MAX_TIME_TOPIC), moved);
            assert!(engine.1.pending().is_empty());
            world = kill(&world, &store, engine);
            store = open(&world);
            engine = broker(&store);
        }
    }
}

#[test]
fn a_discard_that_fails_takes_no_check_of_another_transaction() {
    let world = SimStore::new();
    let store = world.open();
    let (_broker, transactions) = broker(&store);
    let begin = |body: &str| {
        let transaction = transactions.begin(GROUP).unwrap();
        add(&transaction, "a", body);
        transaction.id().to_owned()
    };
    let (first, second) = (begin("first"), begin("second"));
    store.create_topic(CHECK_MAX_TIME_TOPIC, 1, &[]).unwrap();
    let shut = mqstore_engine::TopicChange { perm: Some(4), ..Default::default() };
    store.change_topic(CHECK_MAX_TIME_TOPIC, shut).unwrap();
    let now_ms = world.clock.now_ms() + 10_000;
    let options = CheckOptions { max: 1, ..CheckOptions::default() };
    // The second one has used up its checks, and cannot be moved.
    let entry = transactions.inner.state.lock().pending.get(second.as_str()).cloned().unwrap();
    entry.lock().checks = 1;
    let asked = transactions.take_due(GROUP, &options, now_ms, 9).unwrap();
    assert_eq!(asked.iter().map(|pending| &pending.id).collect::<Vec<_>>(), [&first]);
    // The error is not lost.
    assert!(transactions.take_due(GROUP, &options, now_ms, 9).is_err());
    assert!(transactions.take_due(GROUP, &options, now_ms, 9).unwrap().is_empty());
}

#[test]
fn messages_of_a_transaction_may_have_one_unique_key() {
    let world = SimStore::new();
    let store = world.open();
    let engine = broker(&store);
    let transaction = engine.1.begin(GROUP).unwrap();
    for body in ["one", "two"] {
        let properties = format!("{UNIQ_KEY}\x01ORDER-1\x02");
        let new = NewHalfMessage {
            topic: "a",
            body: body.as_bytes(),
            properties: properties.as_bytes(),
            unique_key: Some("ORDER-1"),
            queue_id: Some(0),
            ..NewHalfMessage::default()
        };
        transaction.append(&new).unwrap();
    }
    let id = transaction.id().to_owned();
    drop(transaction);
    let world = kill(&world, &store, engine);
    let store = world.open();
    let engine = broker(&store);
    assert_eq!(engine.1.pending()[0].half_offsets, [0, 1]);
    engine.1.answer(&id, CheckAnswer::Commit).unwrap();
    assert_eq!(seen(&store, "a"), ["one", "two"]);
}

#[test]
fn a_decision_of_what_is_not_there_costs_nothing() {
    let world = SimStore::new();
    let store = world.open();
    store.create_topic(OP_TOPIC, 1, &[]).unwrap();
    for body in
        ["9223372036854775806,", "9223372036854775807,-1,-9223372036854775808,", "4611686018427387904"]
    {
        let op = NewMessage {
            topic: OP_TOPIC,
            body: body.as_bytes(),
            properties: b"TAGS\x01d\x02",
            unique_key: Some(""),
            queue_id: Some(0),
            flag: 0,
            born_timestamp_ms: None,
            durable: false,
            ..NewMessage::default()
        };
        append_like_broker(&store, &op);
    }
    let (_broker, transactions) = broker(&store);
    drop({
        let transaction = transactions.begin(GROUP).unwrap();
        add(&transaction, "a", "x");
        transaction
    });
    assert_eq!(transactions.pending().len(), 1);
    store.flush().unwrap();
    transactions.record_progress(true).unwrap();
}

#[test]
fn a_commit_that_cannot_be_noted_is_a_commit() {
    let world = SimStore::new();
    let store = world.open();
    let (_broker, transactions) = broker(&store);
    let [first, second] = [(); 2].map(|()| transactions.begin(GROUP).unwrap());
    add(&first, "a", "first");
    first.commit(false).unwrap();
    add(&second, "a", "second");
    store.flush().unwrap();
    // The metadata log accepts no change of the group any more, and there is a decision to log.
    let (_, removed) =
        store.meta().unwrap().remove(&[], &[crate::transactions::engine::CHECK_GROUP]).unwrap();
    assert_eq!(removed, 1);
    world.clock.advance(Duration::from_secs(1));
    // The decision is in the log. A caller that got an error would decide again.
    second.commit(false).unwrap();
    assert!(store.user_notes().take_lines()[0].contains("cannot log decisions"));
    assert!(transactions.record_progress(false).is_err());
    assert_eq!(seen(&store, "a"), ["first", "second"]);
}

#[test]
fn a_gap_in_the_op_queue_does_not_stop_the_position_before_it() {
    // Op messages 5 to 7 are lost, 9 too. Each other one decides a half message.
    let mut known = OutcomeTracker::starting_at(0, 5);
    known.no_ops(5, 5);
    known.no_ops(5, 8);
    known.record_decision([0].into_iter(), 8, 100);
    known.no_ops(9, 10);
    known.record_decision([1].into_iter(), 10, 200);
    for (durable, next_op) in [(50, 8), (100, 10), (200, 11)] {
        let notes = known.notes(durable, 2, 0, false);
        known.noted(notes, durable);
        assert_eq!(known.next_op, next_op, "durable to {durable}");
    }
    assert!(known.ops.is_empty());
}
