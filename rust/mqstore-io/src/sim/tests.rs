use std::collections::BTreeSet;
use std::path::PathBuf;

use super::OperationKind::{Allocate, Create, Map, MapWrite, Sync, SyncDir};
use super::*;
use crate::clock::ManualClock;
use crate::region::MapAccess;
use crate::vfs::{Access, NoSpace, Vfs, VfsFile};

fn p(path: &str) -> PathBuf {
    PathBuf::from(path)
}

/// Creates a file whose name and content are durable.
fn durable(sim: &SimVfs, path: &str, bytes: &[u8]) -> Arc<dyn VfsFile> {
    let file = sim.create_new(&p(path)).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file.sync_data().unwrap();
    sim.sync_dir(&p("/")).unwrap();
    file
}

fn pages(byte: u8, count: usize) -> Vec<u8> {
    vec![byte; count * 4096]
}

fn content(sim: &SimVfs, path: &str) -> Option<Vec<u8>> {
    sim.read_file(&p(path), 1 << 30).ok()
}

/// Returns the state with the synced data only.
fn oldest(sim: &SimVfs) -> SimVfs {
    sim.crash_with(&mut |_| false).unwrap()
}

fn newest(sim: &SimVfs) -> SimVfs {
    sim.crash_with(&mut |_| true).unwrap()
}

/// Returns all possible states after a crash, by trying every combination of choices.
fn all_crashes(sim: &SimVfs) -> Vec<SimVfs> {
    let mut choices = 0_u32;
    sim.crash_with(&mut |_| {
        choices += 1;
        true
    })
    .unwrap();
    let pattern = |bits: u64| {
        let mut at = 0;
        sim.crash_with(&mut |_| {
            at += 1;
            bits >> (at - 1) & 1 == 1
        })
        .unwrap()
    };
    (0..1_u64 << choices).map(pattern).collect()
}

#[test]
fn what_was_synced_is_there_and_what_was_not_may_be() {
    let sim = SimVfs::default();
    let file = durable(&sim, "/a", &pages(1, 3));
    file.write_all_at(&[2; 4096], 0).unwrap();
    file.write_all_at(&[2; 4096], 8192).unwrap();
    assert_eq!(content(&oldest(&sim), "/a").unwrap(), pages(1, 3));
    assert_eq!(content(&newest(&sim), "/a"), content(&sim, "/a"));
    let firsts: BTreeSet<Vec<u8>> = all_crashes(&sim)
        .iter()
        .map(|after| content(after, "/a").unwrap().chunks(4096).map(|page| page[0]).collect())
        .collect();
    let expected = [[1, 1, 1], [2, 1, 1], [1, 1, 2], [2, 1, 2]].map(|pages| pages.to_vec());
    assert_eq!(firsts, BTreeSet::from(expected));
    file.sync_data().unwrap();
    assert_eq!(content(&oldest(&sim), "/a"), content(&sim, "/a"));
}

#[test]
fn a_length_is_old_or_new_and_new_bytes_may_be_zero() {
    let sim = SimVfs::default();
    let file = durable(&sim, "/a", b"old");
    file.write_all_at(&[7; 5000], 0).unwrap();
    assert_eq!(content(&oldest(&sim), "/a").unwrap(), b"old");
    for after in all_crashes(&sim) {
        let bytes = content(&after, "/a").unwrap();
        assert!(bytes.len() == 3 || bytes.len() == 5000);
        assert!(bytes.iter().skip(4096).all(|byte| *byte == 0 || *byte == 7));
    }
    file.sync_all().unwrap();
    file.set_len(1).unwrap();
    let lens: BTreeSet<_> =
        all_crashes(&sim).iter().map(|after| content(after, "/a").unwrap().len()).collect();
    assert_eq!(lens, BTreeSet::from([1, 5000]));
    file.set_len(5000).unwrap();
    file.sync_data().unwrap();
    assert!(content(&oldest(&sim), "/a").unwrap().iter().skip(1).all(|byte| *byte == 0));
}

#[test]
fn names_are_durable_by_a_sync_of_their_folder_alone() {
    let sim = SimVfs::default();
    let file = sim.create_new(&p("/a")).unwrap();
    file.write_all_at(b"x", 0).unwrap();
    file.sync_all().unwrap();
    assert_eq!(content(&oldest(&sim), "/a"), None);
    assert_eq!(content(&newest(&sim), "/a").unwrap(), b"x");
    sim.sync_dir(&p("/")).unwrap();
    assert_eq!(content(&oldest(&sim), "/a").unwrap(), b"x");
    sim.remove_file(&p("/a")).unwrap();
    assert_eq!(content(&oldest(&sim), "/a").unwrap(), b"x");
    sim.sync_dir(&p("/")).unwrap();
    assert_eq!(content(&oldest(&sim), "/a"), None);
    sim.create_dir(&p("/d")).unwrap();
    sim.create_new(&p("/d/x")).unwrap().sync_all().unwrap();
    sim.sync_dir(&p("/d")).unwrap();
    assert_eq!(content(&oldest(&sim), "/d/x"), None, "the folder itself has no durable name");
    sim.sync_dir(&p("/")).unwrap();
    assert!(content(&oldest(&sim), "/d/x").is_some());
}

#[test]
fn an_unsynced_rename_may_be_lost_and_never_loses_both_names() {
    let sim = SimVfs::default();
    sim.create_dir(&p("/tmp")).unwrap();
    let file = sim.create_new(&p("/tmp/a")).unwrap();
    file.write_all_at(b"x", 0).unwrap();
    file.sync_all().unwrap();
    sim.sync_dir(&p("/tmp")).unwrap();
    sim.sync_dir(&p("/")).unwrap();
    let standing = |after: &SimVfs| (content(after, "/tmp/a").is_some(), content(after, "/b").is_some());
    sim.rename(&p("/tmp/a"), &p("/b")).unwrap();
    assert_eq!(standing(&oldest(&sim)), (true, false));
    let seen: BTreeSet<_> = all_crashes(&sim).iter().map(standing).collect();
    assert_eq!(seen, BTreeSet::from([(true, false), (true, true), (false, true)]));
    sim.sync_dir(&p("/")).unwrap();
    let seen: BTreeSet<_> = all_crashes(&sim).iter().map(standing).collect();
    assert_eq!(seen, BTreeSet::from([(true, true), (false, true)]));
    let both = oldest(&sim);
    assert_eq!(both.stat(&p("/b")).unwrap().links, 2);
    sim.sync_dir(&p("/tmp")).unwrap();
    assert_eq!(standing(&oldest(&sim)), (false, true));
    // A sync of the old folder alone also makes the new name durable.
    sim.rename(&p("/b"), &p("/tmp/a")).unwrap();
    sim.sync_dir(&p("/")).unwrap();
    assert_eq!(standing(&oldest(&sim)), (true, false));
}

#[test]
fn a_rename_within_a_folder_and_an_exchange_are_whole() {
    let sim = SimVfs::default();
    durable(&sim, "/a", b"a");
    durable(&sim, "/b", b"b");
    let state = |after: &SimVfs| ["/a", "/b", "/c"].map(|path| content(after, path));
    sim.exchange(&p("/a"), &p("/b")).unwrap();
    let text = |bytes: &[u8]| Some(bytes.to_vec());
    let seen: BTreeSet<_> = all_crashes(&sim).iter().map(state).collect();
    let exchanged = [text(b"b"), text(b"a"), None];
    assert_eq!(seen, BTreeSet::from([[text(b"a"), text(b"b"), None], exchanged.clone()]));
    sim.sync_dir(&p("/")).unwrap();
    sim.rename(&p("/b"), &p("/c")).unwrap();
    let seen: BTreeSet<_> = all_crashes(&sim).iter().map(state).collect();
    assert_eq!(seen, BTreeSet::from([exchanged, [text(b"b"), None, text(b"a")]]));
    sim.rename(&p("/a"), &p("/c")).unwrap();
    sim.sync_dir(&p("/")).unwrap();
    assert_eq!(state(&oldest(&sim)), [None, None, text(b"b")]);
}

#[test]
fn a_folder_moves_as_a_whole() {
    let sim = SimVfs::default();
    for dir in ["/x", "/y", "/x/d"] {
        sim.create_dir(&p(dir)).unwrap();
    }
    sim.create_new(&p("/x/d/file")).unwrap();
    for dir in ["/x/d", "/x", "/"] {
        sim.sync_dir(&p(dir)).unwrap();
    }
    sim.rename(&p("/x/d"), &p("/y/d")).unwrap();
    let seen: BTreeSet<_> = all_crashes(&sim)
        .iter()
        .map(|after| (after.stat(&p("/x/d/file")).is_ok(), after.stat(&p("/y/d/file")).is_ok()))
        .collect();
    assert_eq!(seen, BTreeSet::from([(true, false), (false, true)]));
    sim.remove_dir_all(&p("/y")).unwrap();
    sim.sync_dir(&p("/")).unwrap();
    assert!(oldest(&sim).stat(&p("/y")).is_err());
}

#[test]
fn a_killed_process_leaves_everything_and_no_lock() {
    let sim = SimVfs::default();
    let _lock = sim.lock(&p("/lock")).unwrap();
    let file = durable(&sim, "/a", b"old");
    file.write_all_at(b"new", 0).unwrap();
    sim.hard_link(&p("/a"), &p("/b")).unwrap();
    let killed = sim.kill().unwrap();
    assert_eq!(content(&killed, "/a").unwrap(), b"new");
    assert_eq!(killed.stat(&p("/a")).unwrap(), sim.stat(&p("/b")).unwrap());
    assert!(killed.lock(&p("/lock")).is_ok());
    assert!(sim.lock(&p("/lock")).is_err());
    assert_eq!(killed.environment().boot_id, sim.environment().boot_id);
    // Unsynced data is still not durable, and the two file systems are separate.
    assert_eq!(content(&oldest(&killed), "/a").unwrap(), b"old");
    assert_eq!(content(&oldest(&killed), "/b"), None);
    killed.open(&p("/a"), Access::ReadWrite).unwrap().write_all_at(b"NEW", 0).unwrap();
    assert_eq!(content(&sim, "/a").unwrap(), b"new");
    assert_eq!(content(&killed, "/b").unwrap(), b"NEW");
    let crashed = sim.crash(1).unwrap();
    assert_ne!(crashed.environment().boot_id, sim.environment().boot_id);
    assert!(crashed.lock(&p("/lock")).is_ok());
}

#[test]
fn maps_are_made_durable_by_page() {
    let sim = SimVfs::default();
    let file = durable(&sim, "/a", b"");
    file.allocate(3 * 4096).unwrap();
    file.sync_all().unwrap();
    let region = file.map(4096, 8192, MapAccess::ReadWrite).unwrap();
    region.write(0, b"first").unwrap();
    region.write(4096, b"second").unwrap();
    region.flush(4096..4097).unwrap();
    let bytes = content(&oldest(&sim), "/a").unwrap();
    assert_eq!(
        (bytes.len(), &bytes[4096..4101], &bytes[8192..8198]),
        (3 * 4096, &[0; 5][..], &b"second"[..])
    );
    file.sync_data().unwrap();
    assert_eq!(&content(&oldest(&sim), "/a").unwrap()[4096..4101], b"first");
    assert_eq!(sim.violations(), Vec::<String>::new());
}

#[test]
fn what_would_be_a_signal_is_listed() {
    let sim = SimVfs::default();
    let file = sim.create_new(&p("/sparse")).unwrap();
    file.set_len(8192).unwrap();
    let region = file.map(0, 8192, MapAccess::ReadWrite).unwrap();
    file.write_all_at(b"x", 0).unwrap();
    region.write(1, b"this page has room").unwrap();
    assert_eq!(sim.violations().len(), 0);
    region.write(4096, b"this one has not").unwrap();
    assert!(sim.violations()[0].contains("/sparse"));
    assert!(file.set_len(4096).is_err());
    let view = region.view(0, 1).unwrap();
    drop(region);
    assert!(file.set_len(4096).is_err());
    assert_eq!(sim.violations().len(), 3);
    drop(view);
    file.set_len(4096).unwrap();
    let region = file.map(0, 4096, MapAccess::Read).unwrap();
    assert_eq!(file.write_all_at(b"x", 1 << 20).unwrap_err().kind(), io::ErrorKind::Unsupported);
    drop(region);
    file.write_all_at(b"x", 1 << 20).unwrap();
}

#[test]
fn one_seed_one_crash() {
    let sim = SimVfs::default();
    let file = durable(&sim, "/a", &pages(0, 64));
    file.write_all_at(&pages(1, 64), 0).unwrap();
    for name in 0..8 {
        sim.create_new(&p(&format!("/{name}"))).unwrap();
    }
    let image = |seed| {
        let after = sim.crash(seed).unwrap();
        let names: Vec<_> = after.list(&p("/")).unwrap().into_iter().map(|entry| entry.name).collect();
        (content(&after, "/a").unwrap(), names)
    };
    let images: BTreeSet<_> = (0..40).map(image).collect();
    assert!(images.len() > 20, "{}", images.len());
    assert!((0..40).all(|seed| image(seed) == image(seed)));
    assert!(images.iter().any(|(bytes, names)| bytes.iter().all(|byte| *byte == 0) && names.len() == 1));
    assert!(images.iter().any(|(bytes, names)| bytes.iter().all(|byte| *byte == 1) && names.len() == 9));
    let after = sim.crash(3).unwrap();
    assert_eq!(content(&oldest(&after), "/a"), content(&newest(&after), "/a"), "what survived is durable");
}

#[test]
fn sectors_tear_when_told() {
    let sim = SimVfs::new(SimOptions { torn_sectors: true, ..SimOptions::default() });
    let file = durable(&sim, "/a", &[0; 4096]);
    file.write_all_at(&[1; 4096], 0).unwrap();
    let torn = (0..20).map(|seed| content(&sim.crash(seed).unwrap(), "/a").unwrap());
    let torn: Vec<Vec<u8>> = torn.filter(|bytes| bytes.contains(&0) && bytes.contains(&1)).collect();
    assert!(!torn.is_empty());
    assert!(
        torn.iter().flat_map(|bytes| bytes.chunks(512)).all(|sector| sector.iter().all(|b| *b == sector[0]))
    );
    let mut asked = Vec::new();
    sim.crash_with(&mut |choice| {
        asked.push(choice);
        true
    })
    .unwrap();
    assert_eq!(asked.len(), 8);
    assert!(matches!(asked[1], CrashChoice::Bytes { offset: 512, .. }));
}

#[test]
fn pages_may_reach_the_disk_on_their_own() {
    let sim = SimVfs::default();
    let file = durable(&sim, "/a", &pages(0, 64));
    file.write_all_at(&pages(1, 64), 0).unwrap();
    sim.write_back();
    file.write_all_at(&pages(2, 64), 0).unwrap();
    let bytes = content(&oldest(&sim), "/a").unwrap();
    assert!(bytes.contains(&0) && bytes.contains(&1) && !bytes.contains(&2));
    let busy = SimVfs::new(SimOptions { write_back_one_in: 2, ..SimOptions::default() });
    let file = durable(&busy, "/a", &[0; 4096]);
    for round in 1..=50 {
        file.write_all_at(&[round; 4096], 0).unwrap();
    }
    let found = content(&oldest(&busy), "/a").unwrap()[0];
    assert!(found > 0, "half of the calls let something through");
}

#[test]
fn the_nth_call_fails_once_or_for_good() {
    let sim = SimVfs::default();
    let file = durable(&sim, "/a", b"x");
    sim.inject(Fault::nth(2).on(&[OperationKind::Stat]).no_space());
    assert!(file.len().is_ok());
    assert!(sim.list(&p("/")).is_ok());
    assert_eq!(file.len().unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert!(file.len().is_ok());
    assert_eq!(sim.faults_fired(), 1);
    sim.inject(Fault::nth(1).under(&p("/b")).sticky());
    assert!(sim.open(&p("/a"), Access::Read).is_ok());
    for _ in 0..3 {
        assert_eq!(sim.create_new(&p("/b")).unwrap_err().raw_os_error(), Some(5));
    }
    sim.clear_faults();
    assert!(sim.create_new(&p("/b")).is_ok());
    sim.inject(Fault::nth(1).read_only());
    assert_eq!(sim.remove_file(&p("/b")).unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
    assert!(sim.stat(&p("/b")).is_ok());
}

#[test]
fn a_failed_write_leaves_any_part() {
    let lens: BTreeSet<usize> = (0..20)
        .map(|seed| {
            let sim = SimVfs::new(SimOptions { seed, ..SimOptions::default() });
            let file = sim.create_new(&p("/a")).unwrap();
            sim.inject(Fault::nth(1).on(&[OperationKind::Write]));
            assert!(file.write_all_at(&[1; 100], 0).is_err());
            content(&sim, "/a").unwrap().len()
        })
        .collect();
    assert!(lens.len() > 5 && lens.iter().all(|len| *len <= 100), "{lens:?}");
}

#[test]
fn after_a_failed_sync_the_next_one_proves_nothing() {
    let sim = SimVfs::default();
    let file = durable(&sim, "/a", &pages(0, 16));
    file.write_all_at(&pages(1, 16), 0).unwrap();
    sim.inject(Fault::nth(1).on(&[OperationKind::Sync]));
    assert!(file.sync_data().is_err());
    file.sync_data().unwrap();
    assert_eq!(content(&sim, "/a").unwrap(), pages(1, 16), "the cache shows the new bytes");
    let disk = content(&oldest(&sim), "/a").unwrap();
    assert!(disk.contains(&0) && disk.contains(&1));
    let killed = sim.kill().unwrap();
    killed.drop_cache().unwrap();
    assert_eq!(content(&killed, "/a").unwrap(), disk);
    // Rewriting the same bytes makes the pages dirty, so that the next sync writes them.
    file.write_all_at(&pages(1, 16), 0).unwrap();
    file.sync_data().unwrap();
    assert_eq!(content(&oldest(&sim), "/a").unwrap(), pages(1, 16));
}

#[test]
fn a_failed_flush_of_a_map_and_of_a_folder() {
    let sim = SimVfs::default();
    let file = durable(&sim, "/a", b"");
    file.allocate(4096).unwrap();
    let region = file.map(0, 4096, MapAccess::ReadWrite).unwrap();
    region.write(0, b"x").unwrap();
    sim.inject(Fault::nth(1).on(&[OperationKind::MapFlush, OperationKind::SyncDir]).sticky());
    assert!(region.flush(0..1).is_err());
    sim.create_new(&p("/b")).unwrap();
    assert!(sim.sync_dir(&p("/")).is_err());
    assert_eq!(content(&oldest(&sim), "/b"), None);
    // A store to memory neither hits nor uses up a fault.
    sim.clear_faults();
    sim.inject(Fault::nth(1));
    region.write(0, b"y").unwrap();
    assert_eq!(sim.faults_fired(), 2);
    assert!(region.flush(0..1).is_err());
}

#[test]
fn a_disk_fills_up_by_the_page() {
    let sim = SimVfs::new(SimOptions { space_bytes: Some(10 * 4096), ..SimOptions::default() });
    let file = sim.create_new(&p("/a")).unwrap();
    file.allocate(8 * 4096).unwrap();
    assert_eq!(file.allocate(11 * 4096).unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(file.len().unwrap(), 8 * 4096);
    let other = sim.create_new(&p("/b")).unwrap();
    other.set_len(1 << 20).unwrap();
    assert_eq!(sim.free_space(&p("/")).unwrap().available, 2 * 4096);
    let error = other.write_all_at(&pages(1, 3), 0).unwrap_err();
    let bytes = NoSpace::of(&error).map(|cause| (cause.requested_bytes, cause.free_bytes));
    assert_eq!((error.kind(), bytes), (io::ErrorKind::StorageFull, Some((4096, Some(0)))));
    assert_eq!(other.stat().unwrap().allocated_bytes, 2 * 4096, "the part that fits was written");
    file.write_all_at(&pages(1, 8), 0).unwrap();
    sim.remove_file(&p("/b")).unwrap();
    assert_eq!(sim.free_space(&p("/")).unwrap().available, 2 * 4096);
    sim.set_space(None);
    file.allocate(100 * 4096).unwrap();
    assert!(sim.free_space(&p("/")).unwrap().available > 1 << 40);
}

#[test]
fn a_map_is_written_only_where_the_file_has_room() {
    let sim = SimVfs::new(SimOptions { space_bytes: Some(4 * 4096), ..SimOptions::default() });
    let file = sim.create_new(&p("/a")).unwrap();
    file.set_len(8 * 4096).unwrap();
    file.allocate_range(4096, 4096 + 1).unwrap();
    assert_eq!(file.stat().unwrap().allocated_bytes, 2 * 4096);
    let region = file.map(0, 8 * 4096, MapAccess::ReadWrite).unwrap();
    region.write(4096, &pages(1, 2)).unwrap();
    assert_eq!(sim.violations(), Vec::<String>::new());
    // The range is longer than the free space, and none of it is taken.
    let error = file.allocate_range(4 * 4096, 3 * 4096).unwrap_err();
    let bytes = NoSpace::of(&error).map(|cause| (cause.requested_bytes, cause.free_bytes));
    assert_eq!((error.kind(), bytes), (io::ErrorKind::StorageFull, Some((3 * 4096, Some(2 * 4096)))));
    assert_eq!(file.stat().unwrap().allocated_bytes, 2 * 4096);
    assert_eq!(file.allocate_range(7 * 4096, 4097).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    region.write(3 * 4096, b"x").unwrap();
    assert_eq!(sim.violations().len(), 1, "a real disk could be full there");
    assert_eq!(content(&sim, "/a").unwrap().len(), 8 * 4096);
}

#[test]
fn the_world_can_be_kept_at_any_call() {
    let run = |freeze_at| {
        let sim = SimVfs::new(SimOptions { trace: true, ..SimOptions::default() });
        sim.freeze_at(freeze_at);
        let file = sim.create_new(&p("/a")).unwrap();
        file.allocate(4096).unwrap();
        let region = file.map(0, 4096, MapAccess::ReadWrite).unwrap();
        region.write(0, b"x").unwrap();
        file.sync_all().unwrap();
        sim.sync_dir(&p("/")).unwrap();
        sim
    };
    let whole = run(0);
    assert!(whole.take_frozen().is_none());
    let kinds: Vec<_> = whole.trace().iter().map(|operation| operation.kind).collect();
    assert_eq!(kinds, [Create, Allocate, Map, MapWrite, Sync, SyncDir]);
    let write = &whole.trace()[3];
    assert_eq!((write.number, &write.path, write.offset, write.len), (4, &p("/a"), 0, 1));
    assert_eq!(whole.operations(), 6);
    let at = |call| run(call).take_frozen().unwrap();
    assert_eq!(content(&at(1), "/a"), None);
    assert_eq!(content(&at(4), "/a").unwrap()[0], 0);
    assert_eq!(content(&at(5), "/a").unwrap()[0], b'x');
    assert_eq!(content(&oldest(&at(6)), "/a"), None);
    assert_eq!(content(&newest(&at(5)), "/a").unwrap()[0], b'x');
    assert!(run(7).take_frozen().is_none());
}

#[test]
fn decay_times_and_chance() {
    let clock = Arc::new(ManualClock::new(1_000));
    let sim = SimVfs::new(SimOptions { clock: Some(Arc::clone(&clock) as _), ..SimOptions::default() });
    let file = durable(&sim, "/a", b"abc");
    clock.set(2_000);
    assert_eq!(file.stat().unwrap().modified_ms, 1_000);
    file.write_all_at(b"a", 0).unwrap();
    assert_eq!(file.stat().unwrap().modified_ms, 2_000);
    sim.flip(&p("/a"), 1, 0x20).unwrap();
    assert_eq!(content(&sim, "/a").unwrap(), b"aBc");
    assert_eq!(content(&oldest(&sim), "/a").unwrap(), b"aBc");
    assert!(sim.flip(&p("/a"), 3, 1).is_err());
    let seeds = |seed| SimVfs::new(SimOptions { seed, ..SimOptions::default() }).environment().random_seed;
    assert_eq!(seeds(1), seeds(1));
    assert_ne!(seeds(1), seeds(2));
    assert_ne!(sim.environment().random_seed, sim.environment().random_seed);
}

#[test]
fn threads_share_one_file_system() {
    let sim = SimVfs::default();
    let file = durable(&sim, "/a", b"");
    file.allocate(8 * 4096).unwrap();
    let region = file.map(0, 8 * 4096, MapAccess::ReadWrite).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let (sim, file, region) = (&sim, &file, &region);
            scope.spawn(move || {
                for round in 0..50 {
                    region.write(thread * 8192 + round, &[thread as u8 + 1]).unwrap();
                    file.sync_data().unwrap();
                    sim.list(&p("/")).unwrap();
                    sim.stat(&p("/a")).unwrap();
                    sim.crash(round as u64).unwrap();
                }
            });
        }
    });
    let bytes = content(&oldest(&sim), "/a").unwrap();
    assert!((0..4).all(|thread| bytes[thread * 8192..][..50].iter().all(|byte| *byte == thread as u8 + 1)));
}
