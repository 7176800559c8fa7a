//! The metadata log as a part of the store: copies contain it; its damage is reported and repaired.

use mqstore_base::options::RecoveryMode;
use mqstore_io::Access;

use mqstore_engine::testing::*;
use mqstore_meta::{OffsetChange, newest_file};

fn commit(store: &Store, offset: i64) {
    let meta = store.meta().unwrap();
    let queue = meta.queue_key("billing", "orders", 0).unwrap();
    meta.commit(&[OffsetChange { queue, offset }]).unwrap();
}

fn offset(store: &Store) -> Option<i64> {
    store.group_table().unwrap().offsets().unwrap().first().map(|group| group.queues[0].offset)
}

fn filled(world: &World) -> Store {
    let store = world.open(OpenMode::Create, &small()).unwrap();
    store.create_topic("orders", 2, &[]).unwrap();
    for number in 0..10 {
        put(&store, "orders", number % 2, b"x", "k");
    }
    commit(&store, 3);
    store
}

fn kinds(world: &World) -> Vec<&'static str> {
    let report = crate::verify::verify(&world.files(), &small(), &mut |_| Ok(())).unwrap();
    report.problems.iter().map(|problem| problem.kind).collect()
}

#[test]
fn copies_and_snapshots_know_what_the_store_knows() {
    let (world, _, _) = World::simulated();
    let store = filled(&world);
    // The JSON files have other values.
    store.meta().unwrap().export_json().unwrap();
    store.create_topic("late", 3, &[]).unwrap();
    commit(&store, 4);
    let check = |path: &str| {
        let other = World { path: path.into(), ..world.on(world.vfs.clone()) };
        for mode in [OpenMode::Read, OpenMode::ReadWrite] {
            let copy = other.open(mode, &small()).unwrap();
            assert_eq!((copy.topics().unwrap().len(), offset(&copy)), (2, Some(4)), "{path} {mode:?}");
            assert_eq!(copy.queues("late").unwrap().len(), 3);
        }
        assert!(kinds(&other).is_empty());
    };
    crate::snapshot(&store, Path::new("/data/snapshot"), &mut |_| Ok(())).unwrap();
    check("/data/snapshot");
    let reader = world.open(OpenMode::Read, &small()).unwrap();
    crate::snapshot(&reader, Path::new("/data/beside"), &mut |_| Ok(())).unwrap();
    check("/data/beside");
    store.close().unwrap();
    crate::copy_store(&world.files(), Path::new("/data/copy"), &mut |_| Ok(())).unwrap();
    check("/data/copy");
}

/// The durable mark says that the store has a metadata log.
#[test]
fn a_missing_metadata_log_is_told_and_repaired() {
    for closed in [false, true] {
        let (world, sim, _) = World::simulated();
        let store = filled(&world);
        if closed {
            store.close().unwrap();
        } else {
            store.meta().unwrap().export_json().unwrap();
            store.flush().unwrap();
            drop(store);
        }
        let world = if closed { world } else { world.on(Arc::new(sim.kill().unwrap())) };
        world.vfs.remove_dir_all(&world.files().meta()).unwrap();
        assert!(kinds(&world).contains(&"meta_damaged"), "{:?}", kinds(&world));
        let refused = world.open(OpenMode::ReadWrite, &small());
        assert!(matches!(refused, Err(StoreError::Corrupt { path, .. }) if path == world.files().meta()));
        let reader = world.open(OpenMode::Read, &small()).unwrap();
        assert!(reader.notes().iter().any(|note| note.contains("the metadata log is missing")));
        assert_eq!((reader.topics().unwrap(), offset(&reader)), (vec!["orders".to_owned()], Some(3)));
        drop(reader);
        if closed {
            let report =
                crate::repair(&world.files(), &small(), crate::RepairTarget::InPlace, &mut |_| Ok(()));
            assert!(report.unwrap().changed);
            assert!(kinds(&world).is_empty());
        }
        let salvage = StoreOptions { recovery: RecoveryMode::Salvage, ..small() };
        let store = world.open(OpenMode::ReadWrite, &salvage).unwrap();
        assert_eq!((store.queues("orders").unwrap().len(), offset(&store)), (2, Some(3)));
        store.close().unwrap();
        assert!(kinds(&world).is_empty());
        world.open(OpenMode::ReadWrite, &small()).unwrap().close().unwrap();
    }
}

#[test]
fn a_damaged_metadata_log_is_told_and_repaired() {
    for head in [false, true] {
        let (world, _, _) = World::simulated();
        filled(&world).close().unwrap();
        assert!(kinds(&world).is_empty());
        let path = newest_file(&world.files()).unwrap();
        let bytes = world.vfs.read_file(&path, 1 << 20).unwrap();
        let tail = u64::from_be_bytes(bytes[24..32].try_into().unwrap());
        let file = world.vfs.open(&path, Access::ReadWrite).unwrap();
        file.write_all_at(&[0xee; 12], if head { 4 } else { tail }).unwrap();
        file.sync_all().unwrap();
        assert_eq!(kinds(&world), ["meta_damaged"]);
        let refused = world.open(OpenMode::ReadWrite, &small());
        assert!(matches!(refused, Err(StoreError::Corrupt { path: at, .. }) if at == path));
        let reader = world.open(OpenMode::Read, &small()).unwrap();
        assert_eq!((reader.topics().unwrap(), offset(&reader)), (vec!["orders".to_owned()], Some(3)));
        assert!(reader.notes().iter().any(|note| note.contains("what follows is not used")));
        drop(reader);
        let report =
            crate::repair(&world.files(), &small(), crate::RepairTarget::InPlace, &mut |_| Ok(())).unwrap();
        assert!(report.changed, "{report:?}");
        assert!(kinds(&world).is_empty());
        let kept = world.vfs.list(&world.files().lost_and_found()).unwrap();
        assert_eq!(kept.len(), 1, "{kept:?}");
        let store = world.open(OpenMode::ReadWrite, &small()).unwrap();
        assert_eq!((store.queues("orders").unwrap().len(), offset(&store)), (2, Some(3)));
    }
}
