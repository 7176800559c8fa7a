//! Messages that a broker popped, as a work queue and a consumer of the group find them.

use std::path::Path;

use mqstore_base::message::NewMessage;
use mqstore_engine::{AppendMarks, MessageOrigin, Store};
use mqstore_format::delays::timer::TIMER_TOPIC;
use mqstore_format::json::REVIVE_GROUP;
use mqstore_format::{Host, SysFlag};
use mqstore_io::{Access, Vfs};
use mqstore_meta::OffsetChange;

use super::*;
use crate::testing::BEGIN_MS;

const REVIVE: &str = "rmq_sys_REVIVE_LOG_c";
const HOUR_MS: i64 = 3_600_000;

/// Appends a record of a broker: to the timer topic, due at `due_ms`, or to the revive topic.
fn remember(store: &Store, due_ms: Option<i64>, tag: &str, body: &str) {
    let mut properties = format!("TAGS\x01{tag}\x02");
    if let Some(due_ms) = due_ms {
        let due_ms = due_ms.to_string();
        properties.extend([
            "REAL_TOPIC\x01",
            REVIVE,
            "\x02REAL_QID\x010\x02TIMER_OUT_MS\x01",
            &due_ms,
            "\x02",
        ]);
    }
    let message = NewMessage {
        topic: if due_ms.is_some() { TIMER_TOPIC } else { REVIVE },
        body: body.as_bytes(),
        properties: properties.as_bytes(),
        unique_key: None,
        queue_id: Some(0),
        flag: 0,
        born_timestamp_ms: None,
        durable: false,
        ..NewMessage::default()
    };
    store.append(&message).unwrap();
}

fn checkpoint(start: i64, invisible_ms: i64, offsets: &[i64]) -> String {
    format!(
        r#"{{"bm":0,"bn":"b","c":"workers","d":{offsets:?},"it":{invisible_ms},"n":{},"pt":{BEGIN_MS},"q":0,"ro":0,"so":{start},"t":"jobs"}}"#,
        offsets.len()
    )
}

fn acks(start: i64, offsets: &[i64]) -> String {
    format!(
        r#"{{"ao":-1,"aol":{offsets:?},"bn":"b","c":"workers","pt":{BEGIN_MS},"q":0,"so":{start},"t":"jobs"}}"#
    )
}

fn commit(broker: &Broker, group: &str, topic: &str, offset: i64) {
    let queue = broker.meta().queue_key(group, topic, 0).unwrap();
    broker.meta().commit(&[OffsetChange { queue, offset }]).unwrap();
}

/// Twenty messages; a broker popped 17 of them in three pops. All of the first pop are finished, 4 of 10 of the
/// second are acknowledged, and none of the third.
fn left_by_a_broker(world: &SimStore) -> Store {
    let store = world.open();
    fill(&store, "jobs", 1, 0..20);
    let broker = Broker::new(&store).unwrap();
    commit(&broker, "workers", "jobs", 17);
    remember(&store, None, "ck", &checkpoint(0, HOUR_MS, &[0, 1, 2]));
    commit(&broker, REVIVE_GROUP, REVIVE, 0);
    remember(&store, Some(BEGIN_MS + 1), "ck", &checkpoint(3, HOUR_MS, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]));
    remember(&store, Some(BEGIN_MS + 1), "bAck", &acks(3, &[4, 6]));
    // Already due: it was delivered, and is read from the revive topic.
    remember(&store, Some(BEGIN_MS - 9), "ck", &checkpoint(13, 60_000, &[0, 1, 3]));
    remember(&store, None, "ck", &checkpoint(13, 60_000, &[0, 1, 3]));
    remember(&store, None, "bAck", &acks(3, &[5, 8]));
    remember(&store, None, "ck", "no checkpoint");
    let path = Path::new("/data/store/config");
    world.vfs.create_dir_all(path).unwrap();
    let file = world.vfs.create_new(&path.join("timercheck")).unwrap();
    file.write_all_at(&BEGIN_MS.to_be_bytes(), 0).unwrap();
    store.flush().unwrap();
    store
}

const UNACKED: [i64; 9] = [3, 7, 9, 10, 11, 12, 13, 14, 16];

fn offsets(queue: &WorkQueue) -> Vec<(i64, u32)> {
    let mut found: Vec<_> =
        queue.get_many(100, NOW).unwrap().iter().map(|m| (m.queue_offset, m.lease.attempt())).collect();
    found.sort_unstable();
    found
}

#[test]
fn what_was_popped_comes_back_and_what_was_acknowledged_does_not() {
    let world = SimStore::new();
    let store = left_by_a_broker(&world);
    let popped = store.popped().unwrap();
    let [of_queue] = popped.queues.as_slice() else { panic!("{popped:?}") };
    assert_eq!(of_queue.messages.iter().map(|message| message.queue_offset).collect::<Vec<_>>(), UNACKED);
    assert_eq!(popped.notes.len(), 1, "{popped:?}");
    let broker = Broker::new(&store).unwrap();
    let queue = work(&broker);
    assert!(store.user_notes().take_lines().iter().any(|note| note.contains("9 messages of queue jobs/0")));
    let counts = WorkQueueCounts { ready: 3, leased: 9, ..WorkQueueCounts::default() };
    assert_eq!(queue.counts().unwrap(), counts);
    // A broker that uses the store later must start with the first of them.
    let key = broker.meta().queue_key("workers", "jobs", 0).unwrap();
    assert_eq!(broker.meta().offset(key), Some(3));
    assert_eq!(store.popped().unwrap().queues, [], "it is this store's now");
    assert_eq!(offsets(&queue), [(17, 1), (18, 1), (19, 1)]);
    world.clock.advance(seconds(60));
    let again = offsets(&queue);
    assert_eq!(
        again.iter().filter(|(offset, _)| *offset < 17).copied().collect::<Vec<_>>(),
        [(13, 2), (14, 2), (16, 2)]
    );
    world.clock.advance(seconds(3600));
    let all = queue.get_many(100, NOW).unwrap();
    assert_eq!(all.len(), 12);
    queue.ack_all(all.iter().map(|message| &message.lease), true).unwrap();
    assert!(queue.join(NOW).unwrap());
}

#[test]
fn it_is_taken_over_once() {
    let world = SimStore::new();
    let store = left_by_a_broker(&world);
    let broker = Broker::new(&store).unwrap();
    let queue = work(&broker);
    world.clock.advance(seconds(7200));
    let all = queue.get_many(100, NOW).unwrap();
    assert_eq!(all.len(), 12);
    queue.ack_all(all.iter().map(|message| &message.lease), true).unwrap();
    drop((queue, all));
    // The process is killed: everything that it wrote survives.
    let other = SimStore { vfs: world.vfs.clone(), ..world.clone() };
    store.close().unwrap();
    drop((broker, store));
    let store = other.open();
    let broker = Broker::new(&store).unwrap();
    let queue = work(&broker);
    assert_eq!(offsets(&queue), []);
    assert_eq!(store.user_notes().take_lines(), [] as [String; 0]);
    // A broker uses the directory again: it delivers the old checkpoint late, pops more, and stops.
    drop(queue);
    remember(&store, None, "ck", &checkpoint(3, HOUR_MS, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]));
    fill(&store, "jobs", 1, 20..24);
    remember(&store, None, "ck", &checkpoint(20, 1, &[0, 1, 2]).replace("\"bm\":0", "\"bm\":2"));
    drop((broker, store.close()));
    let path = Path::new("/data/store/config/consumerOffset.json");
    let text = String::from_utf8(world.vfs.read_file(path, 1 << 20).unwrap()).unwrap();
    assert!(text.contains("\"jobs@workers\":{0:20"), "{text}");
    let text = text.replace("\"jobs@workers\":{0:20", "\"jobs@workers\":{0:23");
    let file = world.vfs.open(path, Access::ReadWrite).unwrap();
    file.write_all_at(text.as_bytes(), 0).unwrap();
    let store = other.open();
    let queue = work(&Broker::new(&store).unwrap());
    assert_eq!(offsets(&queue), [(20, 2), (22, 2), (23, 1)]);
}

#[test]
fn a_consumer_begins_with_the_first_that_was_not_acknowledged() {
    let world = SimStore::new();
    let store = left_by_a_broker(&world);
    let broker = Broker::new(&store).unwrap();
    let consumer = broker.consumer("workers", &["jobs"], ConsumerOptions::default()).unwrap();
    assert_eq!(consumer.poll(100, NOW).unwrap().len(), 17);
    consumer.commit(true).unwrap();
    drop(consumer);
    let consumer = broker.consumer("workers", &["jobs"], ConsumerOptions::default()).unwrap();
    assert_eq!(consumer.poll(100, NOW).unwrap().len(), 0);
    // A broker popped no messages for other groups.
    let queue = broker.work_queue("jobs", "others", options()).unwrap();
    assert_eq!(queue.get_many(100, NOW).unwrap().len(), 20);
}

/// Appends a message with `times` earlier deliveries.
fn put_again(store: &Store, topic: &str, body: &str, times: i32) {
    let message = NewMessage {
        topic,
        body: body.as_bytes(),
        properties: b"RETRY_TOPIC\x01jobs\x02",
        unique_key: None,
        queue_id: Some(0),
        flag: 0,
        born_timestamp_ms: None,
        durable: false,
        ..NewMessage::default()
    };
    let origin = MessageOrigin {
        sys_flag: SysFlag::default(),
        born_host: Host::new([127, 0, 0, 1], 1),
        reconsume_times: times,
    };
    store.system_appends().append_marked(&[message], AppendMarks::Origins(&[origin])).unwrap();
}

#[test]
fn retry_topics_count_on() {
    let world = SimStore::new();
    let store = world.open();
    put_again(&store, "%RETRY%workers_jobs", "v1", 1);
    put_again(&store, "%RETRY%workers", "pushed", 15);
    put_again(&store, "%RETRY%others", "pushed", 3);
    let broker = Broker::new(&store).unwrap();
    let queue = work(&broker);
    assert!(
        store
            .user_notes()
            .take_lines()
            .iter()
            .any(|note| note.contains("1 messages wait in its retry topic %RETRY%workers,"))
    );
    assert_eq!(got(&queue), Some(("v1".into(), 2)));
    assert_eq!(got(&queue), None);
    let retries = broker.work_queue("%RETRY%workers", "workers", options()).unwrap();
    let last = get(&retries).unwrap();
    assert_eq!((body(&last).as_str(), last.lease.attempt()), ("pushed", 16));
    last.lease.nack(None).unwrap();
    assert_eq!(got(&retries), None);
    let mut cursor = store.read("%DLQ%workers", 0, None, None, None).unwrap();
    let dead = cursor.next_batch(9).unwrap();
    assert_eq!(dead[0].view().unwrap().reconsume_times, 16);
    store.user_notes().take_lines();
    let consumer = broker.consumer("others", &["jobs", "%RETRY%others"], ConsumerOptions::default()).unwrap();
    assert_eq!(store.user_notes().take_lines(), [] as [String; 0]);
    let both = consumer.poll(9, NOW).unwrap();
    assert_eq!(both[0].view().unwrap().reconsume_times, 3);
}
