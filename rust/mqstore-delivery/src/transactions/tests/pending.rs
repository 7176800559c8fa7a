//! Pending transactions as a reader counts them.

use std::path::Path;
use std::sync::Arc;

use mqstore_base::options::OpenMode;
use mqstore_format::topic::HALF_TOPIC;

use super::*;
use crate::PendingGroup;
use crate::testing::{BEGIN_MS, append_like_broker};

fn look(world: &SimStore) -> Vec<PendingGroup> {
    let clock: Arc<dyn Clock> = world.clock.clone();
    let path = Path::new("/data/store");
    let before = world.vfs.fingerprint();
    let reader = Store::open(Arc::new(world.vfs.clone()), clock, path, OpenMode::Read, &small()).unwrap();
    let found = PendingGroup::all_of(&reader).unwrap();
    assert_eq!(world.vfs.fingerprint(), before);
    found
}

fn group(group: &str, transactions: u64, messages: u64, oldest_ms: i64) -> PendingGroup {
    PendingGroup { group: group.to_owned(), transactions, messages, oldest_ms, checks: 0 }
}

#[test]
fn what_nobody_decided_is_counted_by_producer_group() {
    let world = SimStore::new();
    let store = world.open();
    let (broker, transactions) = broker(&store);
    assert_eq!(look(&world), []);
    let begin = |group: &str, parts: usize| {
        let transaction = transactions.begin(group).unwrap();
        (0..parts).for_each(|part| drop(add(&transaction, "a", &part.to_string())));
        world.clock.advance(Duration::from_millis(10));
        transaction
    };
    let first = begin("shop", 2);
    let open = [begin("shop", 3), begin("shop", 1), begin("bank", 1)];
    first.commit(false).unwrap();
    begin("bank", 4).rollback(false).unwrap();
    let expected = [group("bank", 1, 1, BEGIN_MS + 30), group("shop", 2, 4, BEGIN_MS + 10)];
    // Next to the writer, before and after a round logs the state, and after a kill.
    assert_eq!(look(&world), expected);
    transactions.record_progress(true).unwrap();
    assert_eq!(look(&world), expected);
    drop(open);
    let world = kill(&world, &store, (broker, transactions));
    assert_eq!(look(&world), expected);
    let store = world.open();
    let (broker, transactions) = super::broker(&store);
    for pending in transactions.pending() {
        if pending.group == "shop" {
            transactions.answer(&pending.id, CheckAnswer::Commit).unwrap();
        }
    }
    assert_eq!(look(&world), expected[..1]);
    transactions.record_progress(true).unwrap();
    store.close().unwrap();
    drop((broker, transactions));
    assert_eq!(look(&world), expected[..1]);
}

#[test]
fn what_a_broker_left_is_found_with_its_checks() {
    let world = SimStore::new();
    let store = world.open();
    store.create_topic(HALF_TOPIC, 1, &[]).unwrap();
    store.create_topic(OP_TOPIC, 1, &[]).unwrap();
    let put = |topic: &str, body: &str, properties: &str, key: &str| {
        let message = mqstore_base::message::NewMessage {
            topic,
            body: body.as_bytes(),
            properties: properties.as_bytes(),
            unique_key: Some(key),
            queue_id: Some(0),
            flag: 0,
            born_timestamp_ms: None,
            durable: false,
            ..mqstore_base::message::NewMessage::default()
        };
        append_like_broker(&store, &message);
    };
    for (key, times) in [("K0", ""), ("K1", ""), ("K2", ""), ("K2", "TRANSACTION_CHECK_TIMES\x012\x02")] {
        let properties = format!(
            "REAL_TOPIC\x01t\x02TRAN_MSG\x01true\x02UNIQ_KEY\x01{key}\x02__transactionId__\x01{key}\x02WAIT\x01true\x02\
             PGROUP\x01{GROUP}\x02REAL_QID\x010\x02{times}"
        );
        put(HALF_TOPIC, key, &properties, key);
    }
    put(OP_TOPIC, "0,", "TAGS\x01d\x02", "");
    store.close().unwrap();
    assert_eq!(look(&world), [PendingGroup { checks: 2, ..group(GROUP, 2, 3, BEGIN_MS) }]);
}

#[test]
fn what_decides_and_cannot_is_found() {
    let world = SimStore::new();
    let store = world.open();
    let (broker, transactions) = broker(&store);
    let first = transactions.begin(GROUP).unwrap();
    add(&first, "a", "one");
    first.commit(true).unwrap();
    store.close().unwrap();
    drop((broker, transactions, first));
    let clock: Arc<dyn Clock> = world.clock.clone();
    let files = mqstore_base::store_files::StoreFiles::new(
        Arc::new(world.vfs.clone()),
        clock,
        Path::new("/data/store"),
    );
    let found = || {
        let report = mqstore_inspect::verify(&files, &small(), &mut |_| Ok(())).unwrap();
        report.problems.into_iter().map(|problem| (problem.kind, problem.detail)).collect::<Vec<_>>()
    };
    assert_eq!(found(), []);
    // Decided again: as before, differently, and by a broker; then one half message that never existed.
    let properties = |decision: &str| format!("TAGS\x01d\x02mqstore.decision\x01{decision}\x02").into_bytes();
    let (again, otherwise) = (properties("commit"), properties("rollback"));
    let store = world.open();
    for (body, properties) in
        [("0,", &again[..]), ("0,", &otherwise[..]), ("0,", b"TAGS\x01d\x02"), ("0,7,", b"TAGS\x01d\x02")]
    {
        let message = mqstore_base::message::NewMessage {
            topic: OP_TOPIC,
            body: body.as_bytes(),
            properties,
            unique_key: Some(""),
            queue_id: Some(0),
            flag: 0,
            born_timestamp_ms: None,
            durable: false,
            ..mqstore_base::message::NewMessage::default()
        };
        append_like_broker(&store, &message);
    }
    store.close().unwrap();
    let expected = [
        ("decision_twice", "decides half message 0 as rollback; it was commit before"),
        ("decision_dangling", "decides half message 7; their queue ends at 1"),
    ];
    assert_eq!(found(), expected.map(|(kind, detail)| (kind, detail.to_owned())));
}
