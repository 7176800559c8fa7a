//! Committed offsets of groups: for writers, for readers next to a writer, and in a report.

use mqstore_format::json::SubscriptionGroup;

use mqstore_engine::GroupOffsets;
use mqstore_engine::testing::*;
use mqstore_meta::{MetaLog, OffsetChange, ProgressRecord};

fn commit(meta: &MetaLog, group: &str, topic: &str, queue_id: i32, offset: i64) {
    let queue = meta.queue_key(group, topic, queue_id).unwrap();
    meta.commit(&[OffsetChange { queue, offset }]).unwrap();
}

/// Group, topic, queue, offset and lag of each item.
fn rows(found: &[GroupOffsets]) -> Vec<(&str, &str, i32, i64, Option<i64>)> {
    let rows = found.iter().flat_map(|group| {
        group.queues.iter().map(|queue| {
            (group.group.as_str(), group.topic.as_str(), queue.queue_id, queue.offset, queue.lag)
        })
    });
    rows.collect()
}

#[test]
fn writers_readers_and_reports_say_the_same_of_groups() {
    let (world, _, _) = World::simulated();
    let options = small();
    let store = world.open(OpenMode::Create, &options).unwrap();
    store.create_topic("orders", 2, &[]).unwrap();
    for number in 0..10 {
        put(&store, "orders", number % 2, b"x", "k");
    }
    let meta = store.meta().unwrap();
    commit(&meta, "billing", "orders", 0, 2);
    commit(&meta, "billing", "gone", 7, 1);
    meta.create_group(&SubscriptionGroup::new("idle")).unwrap();
    let progress = meta.progress(meta.queue_key("workers", "orders", 1).unwrap());
    let lease = |offset| ProgressRecord::Leased { offset, invisible_until_ms: 9, attempt: 1 };
    let done = ProgressRecord::Finished { from: 0, to: 1 };
    meta.append_progress(&progress, &[lease(0), lease(1), done]).unwrap();
    store.flush().unwrap();
    let expected = [
        ("billing", "gone", 7, 1, None),
        ("billing", "orders", 0, 2, Some(3)),
        ("workers", "orders", 1, 1, Some(4)),
    ];
    let groups = ["billing", "idle", "workers"];
    let reader = world.open(OpenMode::Read, &options).unwrap();
    let check = |store: &Store| {
        assert_eq!(rows(&store.group_table().unwrap().offsets().unwrap()), expected);
        assert_eq!(store.group_table().unwrap().names(), groups);
    };
    check(&store);
    check(&reader);
    // Readers see commits after their open.
    commit(&meta, "billing", "orders", 0, 5);
    put(&store, "orders", 0, b"x", "k");
    store.flush().unwrap();
    let now = store.group_table().unwrap().offsets().unwrap();
    assert_eq!(rows(&now)[1], ("billing", "orders", 0, 5, Some(1)));
    assert_eq!(reader.group_table().unwrap().offsets().unwrap(), now);
    let report = |world: &World| {
        crate::info(world.vfs.clone(), world.clock.clone(), &world.path, &small()).unwrap().consumers
    };
    assert_eq!(report(&world), now);
    store.close().unwrap();
    assert_eq!(report(&world), now);
    assert_eq!(reader.group_table().unwrap().offsets().unwrap(), now);
}

#[test]
fn the_groups_of_a_namespace_go_with_it_whether_they_have_a_configuration_or_not() {
    let (world, _, _) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    store.create_topic("ns%orders", 1, &[]).unwrap();
    store.create_topic("orders", 1, &[]).unwrap();
    let meta = store.meta().unwrap();
    commit(&meta, "ns%billing", "orders", 0, 0);
    commit(&meta, "billing", "ns%orders", 0, 0);
    meta.create_group(&SubscriptionGroup::new("ns%idle")).unwrap();
    let info = store.namespaces().list().unwrap().remove("ns").unwrap();
    assert_eq!((info.topics, info.groups), (1, 2));
    assert_eq!(store.namespaces().remove("ns").unwrap(), info);
    assert_eq!(
        (store.topics().unwrap(), store.group_table().unwrap().names()),
        (vec!["orders".to_owned()], vec![])
    );
    assert!(store.namespaces().list().unwrap().is_empty());
}
