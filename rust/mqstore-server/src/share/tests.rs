//! Several handles of one store in one process: one is the owner, the others clients, as in several processes.

use std::collections::BTreeSet;
use std::path::Path;

use mqstore::io::{OsVfs, SystemClock};
use mqstore::{NewMessage, NewWork, WorkQueueOptions};

use super::*;
use crate::service::verbs::on_store;
use crate::wire::request::{ImportedMessage, Message, Request};
use crate::wire::response::Response;

/// A program with fixed options.
struct Plain(StoreOptions);

impl Program for Plain {
    fn options(&self, last: Option<&str>) -> Result<(StoreOptions, String), StoreError> {
        Ok((self.0.clone(), last.unwrap_or("first").to_owned()))
    }

    fn agree(&self, owner: &str) -> Result<(), StoreError> {
        assert_eq!(owner, "first");
        Ok(())
    }

    fn opened(&self, _: &Store) {}

    fn note(&self, line: &str) {
        println!("{line}");
    }

    fn interrupted(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

pub(super) fn open(root: &Path) -> SharedStore {
    let options = StoreOptions {
        segment_bytes: 1 << 20,
        index_slots: 64,
        index_entries: 1024,
        ..StoreOptions::default()
    };
    let program = Arc::new(Plain(options));
    let (vfs, clock) = (Arc::new(OsVfs::new()), Arc::new(SystemClock::new()));
    let setup = Setup { root: root.to_owned(), may_own: true, timeout: None, program, vfs, clock };
    SharedStore::open(setup, &mut |_| Ok(())).unwrap()
}

pub(super) fn bodies(store: &SharedStore, topic: &str) -> Vec<Vec<u8>> {
    let store = store.store();
    let mut found = Vec::new();
    for (queue_id, _) in store.ends(topic).unwrap() {
        let mut cursor = store.read(topic, queue_id, None, None, None).unwrap();
        loop {
            let some = cursor.next_batch(100).unwrap();
            if some.is_empty() {
                break;
            }
            found.extend(some.iter().map(|record| record.view().unwrap().body.to_vec()));
        }
    }
    found
}

fn append(store: &SharedStore, topic: &str, body: &[u8]) -> Appended {
    Verbs::Shared(store).append(&NewMessage { topic, body, ..NewMessage::default() }).unwrap()
}

use mqstore::message::Appended;

#[test]
fn clients_append_through_the_owner_and_read_their_own_appends() {
    let dir = tempfile::tempdir().unwrap();
    let (owner, client) = (open(dir.path()), open(dir.path()));
    assert!(owner.is_owner() && !client.is_owner());
    let first = append(&client, "a", b"1");
    let second = append(&owner, "a", b"2");
    assert_eq!((first.queue_offset, second.queue_offset), (0, 1));
    assert_eq!(bodies(&client, "a"), [b"1", b"2"]);
    assert_eq!(bodies(&owner, "a"), [b"1", b"2"]);
    let many = [NewMessage { topic: "a", body: b"3", ..NewMessage::default() }; 3];
    let all = Verbs::Shared(&client).append_many(&many).unwrap();
    assert_eq!(all.iter().map(|one| one.queue_offset).collect::<Vec<_>>(), [2, 3, 4]);
    let ids: BTreeSet<_> = all.iter().map(|one| one.unique_id.as_str().to_owned()).collect();
    assert_eq!(ids.len(), 3);
    let durable = NewMessage { topic: "a", body: b"4", durable: true, ..NewMessage::default() };
    assert!(Verbs::Shared(&client).append(&durable).unwrap().durable);
    client.close().unwrap();
    owner.close().unwrap();
}

#[test]
fn a_client_takes_over_and_the_others_follow_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut stores = vec![open(dir.path()), open(dir.path()), open(dir.path())];
    let mut wanted = Vec::new();
    for round in 0..3_u8 {
        for (index, store) in stores.iter().enumerate() {
            let body = [round, index as u8];
            append(store, "a", &body);
            wanted.push(body.to_vec());
        }
        for store in &stores {
            let mut found = bodies(store, "a");
            found.sort();
            let mut wanted = wanted.clone();
            wanted.sort();
            assert_eq!(found, wanted);
        }
        let owner = stores.iter().position(SharedStore::is_owner).unwrap();
        stores.remove(owner).close().unwrap();
        if stores.is_empty() {
            break;
        }
    }
}

#[test]
fn a_message_and_its_lease_outlive_the_owner() {
    let dir = tempfile::tempdir().unwrap();
    let (owner, client) = (open(dir.path()), open(dir.path()));
    let queue = client.work_queue("jobs", None, WorkQueueOptions::default()).unwrap();
    assert_eq!((queue.group(), queue.dead_letters()), ("workers-jobs", "%DLQ%workers-jobs"));
    let step = Duration::from_millis(50);
    let put = |queue: &WorkQueue, body: &[u8]| {
        let work = [NewWork { body, ..NewWork::default() }];
        queue.put(&work, false, None).unwrap().step(Duration::from_secs(9)).unwrap().unwrap()
    };
    let get = |queue: &WorkQueue| {
        let mut waiting = queue.get(1, Some(Duration::from_secs(9))).unwrap();
        loop {
            if let Some(found) = waiting.step(step).unwrap() {
                return found.into_iter().next().unwrap();
            }
        }
    };
    put(&queue, b"one");
    put(&queue, b"two");
    let one = get(&queue);
    assert_eq!(one.record.view().unwrap().body, b"one");
    owner.close().unwrap();
    one.lease.ack(false).unwrap();
    let two = get(&queue);
    assert_eq!(two.record.view().unwrap().body, b"two");
    assert!(client.is_owner());
    let other = open(dir.path());
    let beside = other.work_queue("jobs", None, WorkQueueOptions::default()).unwrap();
    assert_eq!(beside.counts().unwrap().leased, 1);
    two.lease.nack_with(Some(Duration::ZERO), Some("later")).unwrap();
    let again = get(&beside);
    assert_eq!((again.record.view().unwrap().body, again.lease.attempt()), (&b"two"[..], 2));
    again.lease.extend(Duration::from_secs(60)).unwrap();
    again.lease.ack(true).unwrap();
    assert!(again.lease.is_settled());
    let mut empty = beside.get(1, Some(Duration::from_millis(30))).unwrap();
    assert_eq!(empty.step(Duration::from_secs(9)).unwrap().unwrap().len(), 0);
    assert!(beside.join(None).unwrap().step(Duration::from_secs(9)).unwrap().unwrap());
    drop(empty);
    drop((queue, beside));
    other.close().unwrap();
    client.close().unwrap();
}

#[test]
fn an_unanswered_append_is_stored_once() {
    let dir = tempfile::tempdir().unwrap();
    let (owner, client) = (open(dir.path()), open(dir.path()));
    append(&client, "a", b"0");
    let appends = std::thread::scope(|scope| {
        let appends: Vec<_> = (1..=4_u8)
            .map(|thread| {
                let client = &client;
                scope.spawn(move || {
                    for number in 0..200_u8 {
                        append(client, "a", &[thread, number]);
                    }
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(10));
        owner.close().unwrap();
        appends.into_iter().map(|thread| thread.join().unwrap()).count()
    });
    assert_eq!(appends, 4);
    let found = bodies(&client, "a");
    assert_eq!(found.len(), 801);
    for thread in 1..=4_u8 {
        let of: Vec<_> =
            found.iter().filter(|body| body[0] == thread && body.len() == 2).map(|body| body[1]).collect();
        assert_eq!(of, (0..200).collect::<Vec<_>>(), "in order, each once");
    }
    client.close().unwrap();
}

#[test]
fn a_transaction_continues_at_the_next_owner() {
    let dir = tempfile::tempdir().unwrap();
    let (owner, client) = (open(dir.path()), open(dir.path()));
    let transaction = client.begin("producers").unwrap();
    let half = |body| mqstore::delivery::NewHalfMessage { topic: "t", body, ..Default::default() };
    let first = transaction.append(&half(b"1")).unwrap();
    assert_eq!(first.as_str(), transaction.id());
    owner.close().unwrap();
    transaction.append(&half(b"2")).unwrap();
    transaction.commit(false).unwrap();
    assert_eq!(transaction.went().len(), 2);
    assert_eq!(bodies(&client, "t"), [b"1", b"2"]);
    transaction.commit(false).unwrap();
    assert!(transaction.rollback(false).is_err());
    client.close().unwrap();
}

#[test]
fn an_import_that_is_sent_again_is_an_error_and_appends_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let owner = open(dir.path());
    let message = Message {
        body: b"1",
        properties: b"",
        unique_key: "",
        sys_flag: 0,
        flag: 0,
        born_timestamp_ms: None,
    };
    let row = ImportedMessage {
        topic: "a",
        queue_id: Some(1),
        message,
        due: None,
        born_host: ([10, 0, 0, 1].into(), 99),
        reconsume_times: 3,
    };
    let request = Request::Import(vec![row, row]);
    assert_eq!(on_store(owner.store(), &request, false).unwrap(), Response::Count(2));
    let refused = on_store(owner.store(), &request, true).unwrap_err().to_string();
    assert!(refused.contains("the next 2 messages, the first for topic a, are there or not"), "{refused}");
    assert_eq!(bodies(&owner, "a"), [b"1", b"1"]);
    owner.close().unwrap();
}
