//! Transactions as callers see them, and their records.

use std::path::Path;
use std::time::Duration;

use mqstore_base::message::StoredRecord;
use mqstore_engine::Store;
use mqstore_format::properties::{
    PGROUP, REAL_QID, REAL_TOPIC, TAGS, TRAN_MSG, TRANSACTION_ID, UNIQ_KEY, WAIT,
};
use mqstore_format::topic::{CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_TOPIC};
use mqstore_format::{SysFlag, TransactionType};
use mqstore_io::{Access, Clock, Vfs};

use super::*;
use crate::testing::{SimStore, bodies, small};
use crate::{Broker, BrokerError};

mod expired;
mod model;
mod pending;

const GROUP: &str = "shop";

fn broker(store: &Store) -> (Broker, Transactions) {
    let broker = Broker::new(store).unwrap();
    let transactions = broker.transactions().unwrap();
    (broker, transactions)
}

fn add(transaction: &Transaction, topic: &str, body: &str) -> String {
    let new = NewHalfMessage { topic, body: body.as_bytes(), queue_id: Some(0), ..NewHalfMessage::default() };
    transaction.append(&new).unwrap().as_str().to_owned()
}

fn all(store: &Store, topic: &str) -> Vec<StoredRecord> {
    if store.queue_ids(topic).unwrap().is_empty() {
        return Vec::new();
    }
    let mut cursor = store.read(topic, 0, None, None, None).unwrap();
    let mut found = Vec::new();
    loop {
        let some = cursor.next_batch(64).unwrap();
        if some.is_empty() {
            return found;
        }
        found.extend(some);
    }
}

fn seen(store: &Store, topic: &str) -> Vec<String> {
    bodies(&all(store, topic))
}

/// Kills the process: everything that it published survives, nothing is closed.
fn kill(world: &SimStore, store: &Store, broker: (Broker, Transactions)) -> SimStore {
    let after = SimStore { vfs: world.vfs.kill().unwrap(), clock: world.clock.clone() };
    drop(broker);
    // Later writes of the old store do not reach the disk of the new one.
    store.disown_in_child();
    after
}

#[test]
fn a_wait_for_checks_returns_for_notes_about_transactions_only() {
    let world = SimStore::new();
    let store = world.open();
    let (_broker, transactions) = broker(&store);
    transactions.inner.note("about a transaction".to_owned());
    assert!(transactions.wait_due().unwrap().unwrap().is_empty());
    // The line still waits, together with one of another part of the store. Neither ends the next wait.
    store.user_notes().log("about a consumer".to_owned());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| transactions.wait_due());
        std::thread::sleep(Duration::from_millis(100));
        transactions.end_checks();
        assert!(waiting.join().unwrap().unwrap().is_none());
    });
    assert_eq!(store.user_notes().take_lines(), ["about a transaction", "about a consumer"]);
}

#[test]
fn a_commit_shows_all_messages_and_a_rollback_none() {
    let world = SimStore::new();
    let store = world.open();
    let (_broker, transactions) = broker(&store);
    let kept = transactions.begin(GROUP).unwrap();
    let hidden = transactions.begin(GROUP).unwrap();
    for (number, topic) in ["orders", "stock", "orders"].iter().enumerate() {
        add(&kept, topic, &format!("kept {number}"));
        add(&hidden, topic, &format!("hidden {number}"));
    }
    assert!(seen(&store, "orders").is_empty() && seen(&store, "stock").is_empty());
    let pending = transactions.pending();
    let ids: Vec<_> = pending.iter().map(|pending| pending.id.as_str()).collect();
    assert_eq!(ids, [kept.id(), hidden.id()]);
    assert_eq!(pending[0].half_offsets, [0, 2, 4]);
    assert_eq!(
        (pending[0].topics.as_slice(), pending[0].messages),
        (["orders", "stock"].map(String::from).as_slice(), 3)
    );
    kept.commit(false).unwrap();
    hidden.rollback(false).unwrap();
    assert_eq!(seen(&store, "orders"), ["kept 0", "kept 2"]);
    assert_eq!(seen(&store, "stock"), ["kept 1"]);
    assert!(transactions.pending().is_empty());
    // The same decision again changes nothing; the other decision is refused.
    kept.commit(true).unwrap();
    hidden.rollback(false).unwrap();
    for ended in
        [kept.rollback(false), hidden.commit(false), kept.append(&NewHalfMessage::default()).map(drop)]
    {
        assert!(matches!(ended, Err(BrokerError::TransactionEnded { .. })), "{ended:?}");
    }
    assert_eq!(
        (kept.outcome(), hidden.outcome()),
        (Some(TransactionOutcome::Committed), Some(TransactionOutcome::RolledBack))
    );
    assert_eq!(seen(&store, "orders").len() + seen(&store, "stock").len(), 3);
}

#[test]
fn the_records_are_those_that_a_broker_writes() {
    let world = SimStore::new();
    let store = world.open();
    let (_broker, transactions) = broker(&store);
    let transaction = transactions.begin(GROUP).unwrap();
    let properties =
        mqstore_base::message::encode_properties(["k"], Some("paid"), None, [("a", "b")]).unwrap();
    let new = NewHalfMessage {
        topic: "orders",
        body: b"one",
        properties: &properties,
        queue_id: Some(3),
        flag: 7,
        born_timestamp_ms: Some(5),
        ..NewHalfMessage::default()
    };
    assert_eq!(transaction.append(&new).unwrap().as_str(), transaction.id());
    let second = add(&transaction, "orders", "two");
    transaction.commit(false).unwrap();

    let halves = all(&store, HALF_TOPIC);
    let half = halves[0].view().unwrap();
    assert_eq!((half.queue_id, half.queue_offset, half.flag, half.born_timestamp), (0, 0, 7, 5));
    assert_eq!((half.sys_flag, half.prepared_transaction_offset), (SysFlag(0), 0));
    assert_eq!((half.body, half.keys(), half.tags()), (b"one".as_slice(), Some("k"), Some("paid")));
    let names = [UNIQ_KEY, TRANSACTION_ID, TRAN_MSG, PGROUP, REAL_TOPIC, REAL_QID, "a"];
    let id = transaction.id();
    let wanted = [id, id, "true", GROUP, "orders", "3", "b"].map(Some);
    assert_eq!(half.properties.get_many(names), wanted);
    assert_eq!(half.properties.get("mqstore.transaction"), None);
    let other = halves[1].view().unwrap();
    let names = [UNIQ_KEY, TRANSACTION_ID, "mqstore.transaction"];
    assert_eq!(other.properties.get_many(names), [second.as_str(), &second, id].map(Some));

    let op = &all(&store, OP_TOPIC)[0];
    let view = op.view().unwrap();
    assert_eq!((view.body, view.queue_id, view.sys_flag), (b"0,1,".as_slice(), 0, SysFlag(0)));
    let names = [TAGS, WAIT, UNIQ_KEY, "mqstore.decision"];
    assert_eq!(view.properties.get_many(names), [Some("d"), Some("true"), None, Some("commit")]);

    let mut cursor = store.read("orders", 3, None, None, None).unwrap();
    let records = cursor.next_batch(9).unwrap();
    let made = records[0].view().unwrap();
    assert_eq!(made.sys_flag.transaction(), TransactionType::Commit);
    assert_eq!(made.prepared_transaction_offset.cast_unsigned(), halves[0].commit_log_offset);
    assert_eq!((made.body, made.flag, made.born_timestamp, made.queue_id), (half.body, 7, 5, 3));
    let without_crc = |raw| mqstore_format::without_property(raw, "__CRC32#").into_owned();
    assert_eq!(without_crc(made.properties.raw()), without_crc(half.properties.raw()));
    assert_eq!(records[0].commit_log_offset, op.commit_log_offset + op.bytes().len() as u64);
}

#[test]
fn what_nobody_decided_survives_and_can_be_decided() {
    let mut world = SimStore::new();
    let mut store = world.open();
    let mut engine = broker(&store);
    let (left, other) = (engine.1.begin(GROUP).unwrap(), engine.1.begin("another").unwrap());
    for transaction in [&left, &other] {
        add(transaction, "a", &format!("{} 1", transaction.group()));
        add(transaction, "b", &format!("{} 2", transaction.group()));
    }
    let ids = [left.id().to_owned(), other.id().to_owned()];
    for round in 0..4 {
        let pending = engine.1.pending();
        assert_eq!(pending.iter().map(|pending| &pending.id).collect::<Vec<_>>(), [&ids[0], &ids[1]]);
        assert_eq!(pending[0].half_offsets, [0, 1]);
        assert!(pending.iter().all(|pending| pending.open == (round == 0)));
        if round % 2 == 0 {
            engine.1.record_progress(true).unwrap();
        }
        let after = kill(&world, &store, engine);
        world = after;
        store = world.open();
        engine = broker(&store);
    }
    engine.1.answer(&ids[0], CheckAnswer::Commit).unwrap();
    engine.1.answer(&ids[1], CheckAnswer::Rollback).unwrap();
    for _ in 0..2 {
        assert_eq!(seen(&store, "a"), ["shop 1"]);
        assert_eq!(seen(&store, "b"), ["shop 2"]);
        assert!(engine.1.pending().is_empty());
        world = kill(&world, &store, engine);
        store = world.open();
        engine = broker(&store);
    }
}

#[test]
fn a_decision_without_its_records_is_completed_once() {
    for (whole, outcome) in [
        (0, TransactionOutcome::Committed),
        (1, TransactionOutcome::Committed),
        (1, TransactionOutcome::Discarded),
    ] {
        let mut world = SimStore::new();
        let mut store = world.open();
        let mut engine = broker(&store);
        let transaction = engine.1.begin(GROUP).unwrap();
        for (topic, body) in [("a", "one"), ("b", "two"), ("a", "three")] {
            add(&transaction, topic, body);
        }
        let entry = engine.1.inner.state.lock().pending.values().next().cloned().unwrap();
        engine.1.decide(&entry, outcome, false).unwrap();
        drop(transaction);
        let op = all(&store, OP_TOPIC).pop().unwrap();
        // A power loss keeps the op message and this number of its final records.
        let mut end = op.commit_log_offset + op.bytes().len() as u64;
        for _ in 0..whole {
            end += store.log().get_at(end).unwrap().bytes().len() as u64;
        }
        world = kill(&world, &store, engine);
        let path = Path::new("/data/store/commitlog/00000000000000000000");
        let file = world.vfs.open(path, Access::ReadWrite).unwrap();
        file.write_all_at(&vec![0; (small().segment_bytes - end) as usize], end).unwrap();
        store = world.open();
        for _ in 0..3 {
            engine = broker(&store);
            let (a, b, moved) = (seen(&store, "a"), seen(&store, "b"), seen(&store, CHECK_MAX_TIME_TOPIC));
            if outcome == TransactionOutcome::Committed {
                assert_eq!((a, b), (vec!["one".to_owned(), "three".to_owned()], vec!["two".to_owned()]));
            } else {
                assert_eq!(
                    (a.len(), b.len(), moved),
                    (0, 0, ["one", "two", "three"].map(String::from).to_vec())
                );
            }
            assert!(engine.1.pending().is_empty());
            world = kill(&world, &store, engine);
            store = world.open();
        }
    }
}

#[test]
fn a_broker_s_half_messages_are_found_and_decided_one_by_one() {
    let world = SimStore::new();
    let store = world.open();
    store.create_topic(HALF_TOPIC, 1, &[]).unwrap();
    // As a broker's bridge writes them. A check copied the second one and counted one check more.
    for (key, times) in [("K1", ""), ("K2", ""), ("K2", "TRANSACTION_CHECK_TIMES\x012\x02")] {
        let properties = format!(
            "REAL_TOPIC\x01t\x02TRAN_MSG\x01true\x02UNIQ_KEY\x01{key}\x02__transactionId__\x01{key}\x02WAIT\x01true\x02\
             PGROUP\x01{GROUP}\x02REAL_QID\x010\x02{times}"
        );
        let half = mqstore_base::message::NewMessage {
            topic: HALF_TOPIC,
            body: key.as_bytes(),
            properties: properties.as_bytes(),
            unique_key: Some(key),
            queue_id: Some(0),
            flag: 0,
            born_timestamp_ms: None,
            durable: false,
            ..mqstore_base::message::NewMessage::default()
        };
        store.append(&half).unwrap();
    }
    let plain = Broker::new(&store).unwrap();
    assert!(store.queue_ids(OP_TOPIC).unwrap().is_empty(), "transactions were not requested");
    drop(plain);
    let (_broker, transactions) = broker(&store);
    let pending = transactions.pending();
    let found: Vec<_> =
        pending.iter().map(|one| (one.id.as_str(), one.checks, one.half_offsets.clone())).collect();
    assert_eq!(found, [("K1", 0, vec![0]), ("K2", 2, vec![2])]);
    transactions.answer("K1", CheckAnswer::Rollback).unwrap();
    transactions.answer("K2", CheckAnswer::Commit).unwrap();
    assert_eq!(seen(&store, "t"), ["K2"]);
    assert_eq!(seen(&store, OP_TOPIC), ["1,", "0,", "2,"]);
    assert!(Transactions::has_transaction_history(&store).unwrap());
}

#[test]
fn groups_are_asked_as_often_as_was_said() {
    let mut world = SimStore::new();
    let mut store = world.open();
    let mut engine = broker(&store);
    let options = CheckOptions { max: 3, ..CheckOptions::default() };
    let transaction = engine.1.begin(GROUP).unwrap();
    add(&transaction, "a", "x");
    add(&transaction, "b", "y");
    let id = transaction.id().to_owned();
    let ask = |engine: &(Broker, Transactions), world: &SimStore| {
        let mut asked = Vec::new();
        let now = world.clock.now_ms();
        let step = engine.1.step(GROUP, &options, now, 10, &mut |pending| {
            asked.push(pending.checks);
            assert_eq!(pending.id, id);
            CheckAnswer::Unknown
        });
        step.unwrap();
        asked
    };
    world.clock.advance(Duration::from_secs(60));
    assert!(ask(&engine, &world).is_empty(), "a transaction with a handle is not checked");
    drop(transaction);
    assert_eq!(ask(&engine, &world), [1]);
    assert!(ask(&engine, &world).is_empty());
    assert!(engine.1.step("another", &options, i64::MAX, 9, &mut |_| CheckAnswer::Commit).is_ok());
    world.clock.advance(Duration::from_secs(30));
    // A stop meanwhile changes nothing.
    world = kill(&world, &store, engine);
    store = world.open();
    engine = broker(&store);
    assert_eq!(engine.1.pending()[0].checks, 1);
    assert_eq!(ask(&engine, &world), [2]);
    // After the clock is set back, the next check is at most one interval away.
    world.clock.set(world.clock.now_ms() - 86_400_000);
    assert!(ask(&engine, &world).is_empty());
    world.clock.advance(Duration::from_secs(30));
    assert_eq!(ask(&engine, &world), [3]);
    world.clock.advance(Duration::from_secs(30));
    assert!(ask(&engine, &world).is_empty());
    assert!(engine.1.pending().is_empty());
    assert_eq!(store.user_notes().take_lines().len(), 1);
    assert_eq!(seen(&store, CHECK_MAX_TIME_TOPIC), ["x", "y"]);
    let moved = all(&store, CHECK_MAX_TIME_TOPIC);
    assert_eq!(moved[0].view().unwrap().sys_flag.transaction(), TransactionType::None);
    world = kill(&world, &store, engine);
    store = world.open();
    engine = broker(&store);
    assert!(engine.1.pending().is_empty());
    assert_eq!(seen(&store, CHECK_MAX_TIME_TOPIC), ["x", "y"]);
    assert!(seen(&store, "a").is_empty());
}

#[test]
fn a_young_transaction_is_left_alone_and_one_from_the_future_is_not() {
    let world = SimStore::new();
    let store = world.open();
    let (_broker, transactions) = broker(&store);
    let options = CheckOptions::default();
    drop({
        let transaction = transactions.begin(GROUP).unwrap();
        add(&transaction, "a", "x");
        transaction
    });
    let begin = world.clock.now_ms();
    let asked = |now_ms| transactions.take_due(GROUP, &options, now_ms, 9).unwrap().len();
    assert_eq!((asked(begin), asked(begin + 5999), asked(begin + 6000)), (0, 0, 1));
    assert_eq!((asked(begin + 35_999), asked(begin + 36_000)), (0, 1));
    drop({
        let transaction = transactions.begin("late").unwrap();
        add(&transaction, "a", "x");
        transaction
    });
    let due = transactions.take_due("late", &options, begin - 86_400_000, 9).unwrap();
    assert!(due.is_empty());
    assert_eq!(transactions.take_due("late", &options, begin - 86_400_000 + 30_000, 9).unwrap().len(), 1);
}

#[test]
fn what_was_noted_never_passes_what_is_undecided() {
    let world = SimStore::new();
    let store = world.open();
    let (broker, transactions) = broker(&store);
    let meta = broker.meta();
    let half = meta.queue_key(super::engine::CHECK_GROUP, HALF_TOPIC, 0).unwrap();
    let op = meta.queue_key(super::engine::CHECK_GROUP, OP_TOPIC, 0).unwrap();
    let open = transactions.begin(GROUP).unwrap();
    for number in 0..20 {
        if number == 5 {
            add(&open, "a", "open");
        }
        let transaction = transactions.begin(GROUP).unwrap();
        add(&transaction, "a", &number.to_string());
        transaction.commit(false).unwrap();
    }
    store.flush().unwrap();
    transactions.record_progress(false).unwrap();
    transactions.record_progress(false).unwrap();
    assert_eq!(meta.offset(half), Some(5));
    assert_eq!(meta.offset(op), Some(5));
    assert_eq!(meta.progress(half).lock().next(), 21);
    open.rollback(false).unwrap();
    store.flush().unwrap();
    transactions.record_progress(false).unwrap();
    assert_eq!((meta.offset(half), meta.offset(op)), (Some(21), Some(21)));
    // The next round has nothing to do.
    let inner = &transactions.inner;
    let half_max = inner.half_max.load(std::sync::atomic::Ordering::Acquire);
    let known = &inner.state.lock().known;
    assert!(half_max <= known.base && known.late.is_empty() && known.ops.is_empty());
}

#[test]
fn more_than_a_segment_holds_is_refused_before_the_commit() {
    let world = SimStore::new();
    let store = world.open();
    let (_broker, transactions) = broker(&store);
    let transaction = transactions.begin(GROUP).unwrap();
    let body = vec![b'x'; 5000];
    let new = NewHalfMessage { topic: "a", body: &body, queue_id: Some(0), ..NewHalfMessage::default() };
    let mut count = 0;
    let error = loop {
        match transaction.append(&new) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
        assert!(count < 10, "a segment of {} bytes holds less", small().segment_bytes);
    };
    assert!(matches!(error, BrokerError::Store(mqstore_base::error::StoreError::TooLarge { .. })), "{error}");
    // The transaction continues without that message.
    add(&transaction, "a", "small");
    transaction.commit(false).unwrap();
    assert_eq!(all(&store, "a").len(), count + 1);
    assert!(transactions.begin("").is_err());
    let refused = transactions.begin(GROUP).unwrap();
    assert!(refused.append(&NewHalfMessage { topic: HALF_TOPIC, ..NewHalfMessage::default() }).is_err());
    assert!(transactions.pending().is_empty());
}
