//! Readers in other processes while a writer that was killed starts again.

use std::sync::Arc;

use crate::Store;
use crate::testing::{World, put, read_all, small};
use mqstore_base::options::{Durability, OpenMode, StoreOptions};
use mqstore_io::{Access, SimVfs, Vfs};

const MESSAGES: i64 = 60;

/// Place of the published log offset in `mqstore/live`: see `mqstore_base::live_page`.
const PUBLISHED_AT: u64 = 72;

fn options() -> StoreOptions {
    StoreOptions { durability: Durability::Manual, ..small() }
}

/// Appends the messages of two queues and returns the disk after the process is killed. The first `synced` messages are
/// durable, with their queue units. The kill came between the copy of the last record and its publication.
fn killed_writer(world: &World, vfs: &SimVfs, synced: i64) -> Arc<SimVfs> {
    let store = world.open(OpenMode::Create, &options()).unwrap();
    store.create_topic("orders", 2, &[]).unwrap();
    let mut last = 0;
    for number in 0..MESSAGES {
        if number == synced {
            store.flush().unwrap();
        }
        let body = (number / 2).to_string();
        last = put(&store, "orders", (number % 2) as i32, body.as_bytes(), "key").commit_log_offset;
    }
    let killed = vfs.kill().unwrap();
    let live = killed.open(&world.files().live(), Access::ReadWrite).unwrap();
    live.write_all_at(&last.to_be_bytes(), PUBLISHED_AT).unwrap();
    Arc::new(killed)
}

fn assert_complete(reader: &Store, place: &str) {
    for queue_id in 0..2 {
        let seen = read_all(reader, "orders", queue_id);
        let expected = (0..MESSAGES / 2).map(|offset| (offset, offset.to_string().into_bytes()));
        assert_eq!(seen, expected.collect::<Vec<_>>(), "queue {queue_id}, {place}");
        let (_, max) = reader.bounds("orders", queue_id).unwrap();
        assert_eq!(max, MESSAGES / 2, "queue {queue_id}, {place}");
    }
}

#[test]
fn at_each_call_of_a_restart_readers_see_all_that_they_saw_before() {
    for synced in [0, 25, MESSAGES - 1] {
        let (world, vfs, _) = World::simulated();
        let killed = killed_writer(&world, &vfs, synced);
        let world = world.on(killed.clone());
        assert_complete(&world.open(OpenMode::Read, &options()).unwrap(), "before the restart");
        killed.freeze_at_each(killed.operations() + 1..killed.operations() + 5_000);
        let store = world.open(OpenMode::ReadWrite, &options()).unwrap();
        let moments = killed.take_all_frozen();
        assert!(moments.len() > 100, "{} calls", moments.len());
        for (call, moment) in moments {
            let reader = world.on(Arc::new(moment)).open(OpenMode::Read, &options()).unwrap();
            assert_complete(&reader, &format!("{synced} synced, call {call}"));
        }
        assert_complete(&store, "after the restart");
        store.close().unwrap();
    }
}
