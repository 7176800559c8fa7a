//! The metadata that a standby keeps: what a promotion makes of them, wherever it stops, and bytes that are none.

use mqstore_engine::testing::{Arc, OpenMode, SimVfs, Store, StoreOptions, plain, put, read_all};
use mqstore_meta::OffsetChange;

use crate::copy::{CopyStore, Master, promote};
use crate::log::ReplicaLog;
use crate::model_tests::{MasterStore, Random, SEGMENT_BYTES, Side, options, setup, world_of};
use crate::replica::Begin;
use crate::standby::{StandbyMetadata, encode};
use crate::wire::Protocol;

fn commit(store: &Store, topic: &str, queue_id: i32, offset: i64) {
    let meta = store.meta().unwrap();
    let queue = meta.queue_key("billing", topic, queue_id).unwrap();
    meta.commit(&[OffsetChange { queue, offset }]).unwrap();
}

fn offset(store: &Store, topic: &str, queue_id: i32) -> Option<i64> {
    let meta = store.meta().unwrap();
    meta.offset(meta.queue_key("billing", topic, queue_id).unwrap())
}

/// Promotes the copy on a disk, and opens it.
fn promoted(side: &Side, vfs: SimVfs) -> Store {
    let world = world_of(&Arc::new(vfs), &side.clock);
    promote(&world.files()).unwrap();
    world.open(OpenMode::ReadWrite, &options()).unwrap()
}

/// A standby with everything that `master` has.
fn standby_of(master: &MasterStore, begin: Begin) -> Side {
    let mut side = Side::new(Protocol::Own, begin);
    side.catch_up(master, &mut Random(5));
    let metadata = StandbyMetadata::capture(&master.store).unwrap();
    side.copy.keep_metadata(&metadata).unwrap();
    side.copy.close().unwrap();
    side
}

#[test]
fn a_promotion_can_stop_anywhere() {
    let (master, mut random) = (MasterStore::new(), Random(1));
    (0..20).for_each(|_| master.append(&mut random));
    commit(&master.store, "orders", 0, 3);
    let side = standby_of(&master, Begin::Oldest(None));
    let begin = side.vfs.operations();
    side.vfs.freeze_at_each(begin..begin + 5000);
    promote(&world_of(&side.vfs, &side.clock).files()).unwrap();
    let images = side.vfs.take_all_frozen();
    assert!(images.len() > 20, "{}", images.len());
    for (call, image) in images {
        for seed in 0..3 {
            let (disk, other) = (image.crash(seed).unwrap(), image.crash(seed).unwrap());
            let store = promoted(&side, disk);
            assert_eq!(offset(&store, "orders", 0), Some(3), "call {call}, seed {seed}");
            assert_eq!(read_all(&store, "orders", 0).len(), read_all(&master.store, "orders", 0).len());
            // A follower can continue instead.
            let other = Arc::new(other);
            if Master::of(&world_of(&other, &side.clock).files()).unwrap().is_some() {
                CopyStore::open(setup(Protocol::Own, &other, &side.clock)).unwrap().close().unwrap();
                let disk = other.kill().unwrap();
                assert_eq!(offset(&promoted(&side, disk), "orders", 0), Some(3), "call {call}, seed {seed}");
            }
        }
    }
}

/// The copy begins with the last segment: some queues have no message there.
#[test]
fn a_queue_without_messages_continues_at_its_offset() {
    let master = MasterStore::with(&StoreOptions { retention_bytes: Some(2 * SEGMENT_BYTES), ..options() });
    for _ in 0..5 {
        put(&master.store, "rare", 2, b"x", "k");
    }
    commit(&master.store, "rare", 2, 5);
    let mut random = Random(2);
    while master.store.segments().segments().len() < 4 {
        master.append(&mut random);
    }
    master.store.flush().unwrap();
    master.store.expire(false, &mut || Ok(())).unwrap();
    assert_eq!(master.store.bounds("rare", 2).unwrap(), (5, 5));
    let side = standby_of(&master, Begin::LastSegment);
    let store = promoted(&side, side.vfs.kill().unwrap());
    assert_eq!((offset(&store, "rare", 2), store.bounds("rare", 2).unwrap()), (Some(5), (5, 5)));
    assert_eq!(put(&store, "rare", 2, b"new", "k").queue_offset, 5);
    store.append(&plain("orders", b"own")).unwrap();
    assert_eq!(read_all(&store, "rare", 2), [(5, b"new".to_vec())]);
}

#[test]
fn a_removed_topic_stays_removed() {
    let (master, mut random) = (MasterStore::new(), Random(3));
    (0..12).for_each(|_| master.append(&mut random));
    let end = master.store.bounds("prices", 0).unwrap().1;
    master.store.remove_topic("prices").unwrap();
    let side = standby_of(&master, Begin::Oldest(None));
    let store = promoted(&side, side.vfs.kill().unwrap());
    assert_eq!(store.topics().unwrap(), ["orders"]);
    assert!(store.notes().is_empty(), "{:?}", store.notes());
    let new = put(&store, "prices", 0, b"new", "k");
    assert!(new.queue_offset >= end, "{} {end}", new.queue_offset);
    assert_eq!(read_all(&store, "prices", 0), [(new.queue_offset, b"new".to_vec())]);
}

#[test]
fn other_bytes_are_no_metadata() {
    let master = MasterStore::new();
    master.append(&mut Random(4));
    commit(&master.store, "orders", 0, 1);
    let metadata = StandbyMetadata::capture(&master.store).unwrap();
    let bytes = metadata.bytes().to_vec();
    assert_eq!(StandbyMetadata::parse(bytes.clone()), Ok(metadata));
    for at in (0..bytes.len()).step_by(7) {
        let mut wrong = bytes.clone();
        wrong[at] ^= 0x10;
        assert!(StandbyMetadata::parse(wrong).is_err(), "{at}");
        assert!(StandbyMetadata::parse(bytes[..at].to_vec()).is_err(), "{at}");
    }
    // Nothing else than metadata is written anywhere.
    for name in
        ["../x", "/etc/x", "config/../../x", "commitlog/00000000000000000000", "mqstore/state.a", "config"]
    {
        let header = format!(
            r#"{{"metadata_end":null,"archive":null,"topics":"","queues":{{}},"files":[["{name}",1]]}}"#
        );
        let hostile = encode(7, header.as_bytes(), b"x");
        assert!(StandbyMetadata::parse(hostile).unwrap_err().contains("have the file"), "{name}");
    }
}
