use std::path::Path;
use std::sync::Arc;

use mqstore_io::sim::{Fault, OperationKind};
use mqstore_io::{ManualClock, OsVfs, SimVfs, Vfs};

use super::*;

fn files(sim: &SimVfs) -> StoreFiles {
    sim.create_dir_all(Path::new("/store")).unwrap();
    sim.sync_dir(Path::new("/")).unwrap();
    StoreFiles::new(Arc::new(sim.clone()), Arc::new(ManualClock::new(0)), Path::new("/store"))
}

fn sample() -> Checkpoint {
    Checkpoint {
        physic_msg_timestamp: 1_700_000_000_000,
        logics_msg_timestamp: 1_700_000_000_123,
        index_msg_timestamp: 3,
        master_flushed_offset: 4,
        confirm_physical_offset: 5,
        logics_physical_offset: 6,
    }
}

#[test]
fn a_stored_checkpoint_is_durable() {
    let sim = SimVfs::default();
    let file = CheckpointFile::new(&files(&sim));
    assert_eq!(file.load(), Checkpoint::default());
    file.store(&sample()).unwrap();
    assert_eq!(file.load(), sample());
    let bytes = sim.read_file(Path::new("/store/checkpoint"), 1 << 20).unwrap();
    assert_eq!(bytes.len(), 4096);
    assert_eq!(bytes[..16], *b"\0\0\x01\x8b\xcf\xe5\x68\0\0\0\x01\x8b\xcf\xe5\x68\x7b");
    assert!(bytes[48..].iter().all(|byte| *byte == 0));
    let later = Checkpoint { logics_physical_offset: 99, ..sample() };
    file.store(&later).unwrap();
    let after = sim.crash_with(&mut |_| false).unwrap();
    assert_eq!(CheckpointFile::new(&files(&after)).load(), later);
}

#[test]
fn a_crash_leaves_the_old_or_the_new() {
    for seed in 0..50 {
        let sim = SimVfs::default();
        let file = CheckpointFile::new(&files(&sim));
        if seed % 2 == 0 {
            file.store(&sample()).unwrap();
        }
        let before = file.load();
        let later = Checkpoint { index_msg_timestamp: 7, ..sample() };
        sim.freeze_at(sim.operations() + seed / 5);
        file.store(&later).unwrap();
        let Some(frozen) = sim.take_frozen() else { continue };
        let found = CheckpointFile::new(&files(&frozen.crash(seed).unwrap())).load();
        assert!(found == before || found == later, "seed {seed}: {found:?}");
    }
}

#[test]
fn any_content_is_accepted_and_what_is_not_ours_stays() {
    for len in [0, 1, 40, 47, 48, 4096, 5000] {
        let sim = SimVfs::default();
        let store = files(&sim);
        let bytes: Vec<u8> = (0..len).map(|n| n as u8 | 0x80).collect();
        sim.create_new(&store.checkpoint()).unwrap().write_all_at(&bytes, 0).unwrap();
        let file = CheckpointFile::new(&store);
        assert_eq!(file.load(), Checkpoint::decode(&bytes));
        file.store(&sample()).unwrap();
        assert_eq!(file.load(), sample());
        let after = sim.read_file(&store.checkpoint(), 1 << 20).unwrap();
        assert_eq!(after.len(), len.max(48));
        assert_eq!(after[48..], bytes[bytes.len().min(48)..]);
    }
}

#[test]
fn a_link_or_a_failing_disk_means_that_nothing_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let outside = folder.path().join("outside");
    std::fs::write(&outside, [1; 48]).unwrap();
    let root = folder.path().join("store");
    std::fs::create_dir(&root).unwrap();
    std::os::unix::fs::symlink(&outside, root.join("checkpoint")).unwrap();
    let store = StoreFiles::new(Arc::new(OsVfs::new()), Arc::new(ManualClock::new(0)), &root);
    let file = CheckpointFile::new(&store);
    assert_eq!(file.load(), Checkpoint::default());
    assert!(file.store(&sample()).is_err());
    assert_eq!(std::fs::read(&outside).unwrap(), [1; 48]);

    let sim = SimVfs::default();
    let file = CheckpointFile::new(&files(&sim));
    file.store(&sample()).unwrap();
    sim.inject(Fault::nth(1).on(&[OperationKind::Read]).sticky());
    assert_eq!(file.load(), Checkpoint::default());
}
