use super::*;
use crate::vfs::parent_dir;
use crate::vfs::tests::everywhere;

const LEN: u64 = 16 * 1024;
/// The first bytes, which have space from the start.
const FIRST: u64 = 4096;

fn names(vfs: &Arc<dyn Vfs>, dir: &Path) -> Vec<String> {
    vfs.list(dir).unwrap().into_iter().map(|entry| entry.name.into_string().unwrap()).collect()
}

/// Stages a file and gives it a durable name; removes it after an error.
fn create(vfs: &Arc<dyn Vfs>, staging: &Path, path: &Path, base_offset: u64) -> io::Result<Arc<MappedFile>> {
    let file = MappedFile::stage(vfs, staging, base_offset, LEN, FIRST)?;
    if let Err(error) = file.name(path).and_then(|()| vfs.sync_dir(parent_dir(path))) {
        let _ = vfs.remove_file(&file.path());
        return Err(error);
    }
    Ok(file)
}

fn make(vfs: &Arc<dyn Vfs>, root: &Path) -> (Arc<MappedFile>, PathBuf) {
    let path = root.join("00000000000000016384");
    (create(vfs, &root.join("staged"), &path, LEN).unwrap(), path)
}

#[test]
fn is_born_complete_under_its_name() {
    everywhere(|vfs, root| {
        let (file, path) = make(vfs, root);
        assert_eq!(names(vfs, root), ["00000000000000016384"]);
        assert_eq!((file.base_offset(), file.len(), file.end_offset()), (LEN, LEN, 2 * LEN));
        assert_eq!((file.wrote(), file.committed(), file.flushed()), (0, 0, 0));
        assert_eq!(file.path(), path);
        let stat = vfs.stat(&path).unwrap();
        assert!(stat.len == LEN && (FIRST..LEN).contains(&stat.allocated_bytes), "{stat:?}");
        assert_eq!(file.allocated(), FIRST);
        assert!(!file.is_empty() && !file.is_full() && file.is_linked().unwrap());
    });
}

#[test]
fn space_is_reserved_part_by_part() {
    everywhere(|vfs, root| {
        let (made, path) = make(vfs, root);
        let taken = || vfs.stat(&path).unwrap().allocated_bytes;
        made.allocate_ahead(0, 100).unwrap();
        assert_eq!((made.allocated(), taken()), (FIRST, FIRST));
        made.allocate_ahead(0, FIRST + 1).unwrap();
        assert_eq!((made.allocated(), taken()), (FIRST + 1, 2 * FIRST));
        // After an open, only the bytes from the next one to write get space.
        let file = MappedFile::open(vfs, &path, LEN, MapAccess::ReadWrite).unwrap();
        assert_eq!(file.allocated(), 0);
        file.allocate_ahead(3 * FIRST, u64::MAX).unwrap();
        assert_eq!((file.allocated(), taken()), (LEN, 3 * FIRST));
        file.allocate_ahead(3 * FIRST, LEN).unwrap();
        assert_eq!(vfs.stat(&path).unwrap().len, LEN);
    });
}

#[test]
fn a_taken_name_is_never_replaced() {
    everywhere(|vfs, root| {
        let (_, path) = make(vfs, root);
        let error = create(vfs, &root.join("staged"), &path, LEN).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(names(vfs, root).len(), 1, "nothing is left in staging");
        vfs.create_new(&root.join("staged")).unwrap();
        assert!(MappedFile::stage(vfs, &root.join("staged"), 0, LEN, FIRST).is_err());
        assert!(vfs.stat(&root.join("staged")).is_ok(), "what was there before is not ours to remove");
    });
}

#[test]
fn positions_grow_and_bound_the_views() {
    everywhere(|vfs, root| {
        let (file, _) = make(vfs, root);
        file.region().unwrap().write(0, b"0123456789").unwrap();
        assert_eq!(file.view(0, 1).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        file.advance_wrote(10);
        file.advance_wrote(4);
        assert_eq!(file.wrote(), 10);
        assert_eq!(&*file.view(2, 8).unwrap(), b"23456789");
        assert!(file.view(2, 9).is_err() && file.view(u64::MAX, 2).is_err());
        assert_eq!(file.flush().unwrap(), 10);
        assert_eq!((file.committed(), file.flushed()), (10, 10));
        file.advance_committed(12);
        file.advance_flushed(11);
        assert_eq!((file.committed(), file.flushed()), (12, 11));
        file.set_positions(u64::MAX);
        assert!(file.is_full());
        file.set_positions(3);
        assert_eq!((file.wrote(), file.committed(), file.flushed()), (3, 3, 3));
    });
}

#[test]
fn views_and_guards_survive_retirement() {
    everywhere(|vfs, root| {
        let (file, path) = make(vfs, root);
        file.region().unwrap().write(0, b"kept").unwrap();
        file.advance_wrote(4);
        let guard = file.hold().unwrap();
        assert_eq!(file.holders(), 1);
        let second = guard.clone();
        assert_eq!(file.holders(), 2);
        drop(second);
        assert_eq!(file.holders(), 1);
        assert!(file.is_in_use());
        let view = file.view(0, 4).unwrap();
        file.retire().unwrap();
        file.retire().unwrap();
        assert!(file.is_retired() && file.hold().is_none());
        assert_eq!(vfs.stat(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(!file.is_linked().unwrap());
        drop(file);
        assert_eq!(&*guard.view(1, 3).unwrap(), b"ept");
        let late = guard.clone();
        drop(guard);
        drop(late);
        assert_eq!(&*view, b"kept");
    });
}

#[test]
fn a_retired_file_that_was_never_touched_can_still_be_read() {
    everywhere(|vfs, root| {
        let (made, path) = make(vfs, root);
        made.region().unwrap().write(0, b"kept").unwrap();
        drop(made);
        let file = MappedFile::open(vfs, &path, LEN, MapAccess::Read).unwrap();
        let guard = file.hold().unwrap();
        file.retire().unwrap();
        file.close_file();
        assert_eq!(&*guard.view(0, 4).unwrap(), b"kept");
    });
}

#[test]
fn a_map_apart_shows_the_same_bytes_and_of_no_other_file() {
    everywhere(|vfs, root| {
        let (file, path) = make(vfs, root);
        let apart = file.map_apart().unwrap();
        file.region().unwrap().write(0, b"kept").unwrap();
        assert_eq!(&*apart.view(0, 4).unwrap(), b"kept");
        apart.flush(0..LEN as usize).unwrap();
        assert!(!file.is_in_use());
        vfs.create_new(&root.join("other")).unwrap().set_len(LEN).unwrap();
        vfs.rename(&root.join("other"), &path).unwrap();
        assert!(file.map_apart().is_err());
    });
}

#[test]
fn opens_lazily_and_notices_a_replacement() {
    everywhere(|vfs, root| {
        let (made, path) = make(vfs, root);
        made.region().unwrap().write(0, b"kept").unwrap();
        let read = MappedFile::open(vfs, &path, LEN, MapAccess::Read).unwrap();
        assert_eq!((read.wrote(), read.flushed(), read.len()), (LEN, LEN, LEN));
        assert_eq!(&*read.view(0, 4).unwrap(), b"kept");
        assert!(!read.region().unwrap().is_writable());
        read.close_file();
        let file = MappedFile::open(vfs, &path, LEN, MapAccess::ReadWrite).unwrap();
        assert_eq!(&*file.view(0, 4).unwrap(), b"kept");
        file.close_file();
        assert!(file.file().is_ok());
        file.close_file();
        // Another process replaces the file.
        vfs.create_new(&root.join("other")).unwrap().set_len(LEN).unwrap();
        vfs.rename(&root.join("other"), &path).unwrap();
        assert!(file.file().is_err());
        assert!(read.file().is_ok(), "a reader accepts a file of the same length");
        assert_eq!(&*file.view(0, 4).unwrap(), b"kept", "the map is of the old one");
        assert_eq!(&*read.view(0, 4).unwrap(), b"kept");
        assert!(!made.is_linked().unwrap());
        file.retire().unwrap();
        assert!(vfs.stat(&path).is_ok(), "the other file is left alone");
        vfs.remove_file(&path).unwrap();
        assert!(!made.is_linked().unwrap());
        made.retire().unwrap();
        vfs.create_dir(&path).unwrap();
        assert!(MappedFile::open(vfs, &path, LEN, MapAccess::Read).is_err());
    });
}

#[test]
fn a_replaced_file_keeps_the_old_bytes_for_those_who_use_them() {
    everywhere(|vfs, root| {
        let (file, path) = make(vfs, root);
        file.region().unwrap().write(0, b"old!").unwrap();
        file.advance_wrote(4);
        let (old, view, handle) = (file.region().unwrap(), file.view(0, 4).unwrap(), file.file().unwrap());
        assert_eq!(file.counted_region().unwrap().1, 0);
        let staged = root.join("staged");
        let other = vfs.create_new(&staged).unwrap();
        assert!(file.replace_by(&staged).is_err(), "another length");
        other.set_len(LEN).unwrap();
        other.write_all_at(b"new!", 0).unwrap();
        other.set_modified_ms(1_234_567).unwrap();
        other.sync_all().unwrap();
        file.replace_by(&staged).unwrap();
        assert_eq!(vfs.stat(&staged).unwrap_err().kind(), io::ErrorKind::NotFound);
        let mut bytes = [0; 4];
        handle.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!((&*view, &*old.view(0, 4).unwrap(), &bytes), (&b"old!"[..], &b"old!"[..], b"old!"));
        assert!(!file.is_mapped() && file.is_linked().unwrap());
        assert_eq!(file.counted_region().unwrap().1, 1);
        assert_eq!(&*file.view(0, 4).unwrap(), b"new!");
        file.file().unwrap().read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!((&bytes, vfs.stat(&path).unwrap().modified_ms), (b"new!", 1_234_567));
        // A file that another program put there, and a retired file, stay.
        for name in ["other", "staged"] {
            vfs.create_new(&root.join(name)).unwrap().set_len(LEN).unwrap();
        }
        vfs.rename(&root.join("other"), &path).unwrap();
        assert_eq!(file.replace_by(&staged).unwrap_err().kind(), io::ErrorKind::NotFound);
        file.retire().unwrap();
        assert_eq!(file.replace_by(&staged).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(vfs.stat(&path).is_ok() && vfs.stat(&staged).is_ok());
    });
}

#[test]
fn a_file_that_changed_its_length_is_refused() {
    everywhere(|vfs, root| {
        let (made, path) = make(vfs, root);
        drop(made);
        let file = MappedFile::open(vfs, &path, LEN, MapAccess::ReadWrite).unwrap();
        vfs.open(&path, Access::ReadWrite).unwrap().set_len(LEN - 1).unwrap();
        assert!(file.region().is_err() && file.view(0, 1).is_err() && file.flush().is_ok());
    });
}

#[cfg(feature = "sim")]
mod simulated {
    use super::*;
    use crate::sim::{Fault, OperationKind, SimOptions, SimVfs};

    fn disk(sim: &SimVfs) -> Arc<dyn Vfs> {
        sim.create_dir_all(Path::new("/log")).unwrap();
        sim.create_dir_all(Path::new("/tmp")).unwrap();
        sim.sync_dir(Path::new("/")).unwrap();
        Arc::new(sim.clone())
    }

    fn create(vfs: &Arc<dyn Vfs>) -> io::Result<Arc<MappedFile>> {
        super::create(vfs, Path::new("/tmp/x"), Path::new("/log/00000000000000000000"), 0)
    }

    #[test]
    fn a_crash_at_any_call_leaves_a_whole_file_or_none() {
        let (mut whole, mut none) = (0, 0);
        for call in 1..20 {
            let sim = SimVfs::default();
            let vfs = disk(&sim);
            sim.freeze_at(sim.operations() + call);
            create(&vfs).unwrap();
            let Some(frozen) = sim.take_frozen() else { break };
            for seed in 0..20 {
                match frozen.crash(seed).unwrap().stat(Path::new("/log/00000000000000000000")) {
                    Ok(stat) => {
                        assert_eq!((stat.len, stat.allocated_bytes), (LEN, FIRST));
                        whole += 1;
                    }
                    Err(_) => none += 1,
                }
            }
        }
        assert!(whole > 0 && none > 0);
        let sim = SimVfs::default();
        let _file = create(&disk(&sim)).unwrap();
        let after = sim.crash_with(&mut |_| false).unwrap();
        assert_eq!(after.stat(Path::new("/log/00000000000000000000")).unwrap().len, LEN);
    }

    #[test]
    fn an_error_at_any_call_leaves_nothing_in_the_way() {
        let mut failures = 0;
        for call in 1..20 {
            let sim = SimVfs::default();
            let vfs = disk(&sim);
            sim.inject(Fault::nth(call));
            if create(&vfs).is_ok() {
                break;
            }
            failures += 1;
            assert!(create(&vfs).is_ok(), "the next try after the failure of call {call}");
        }
        assert!(failures >= 6, "{failures}");
    }

    #[test]
    fn a_full_disk_leaves_no_file() {
        let sim = SimVfs::new(SimOptions { space_bytes: Some(FIRST - 1), ..SimOptions::default() });
        let vfs = disk(&sim);
        assert_eq!(create(&vfs).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert!(sim.list(Path::new("/tmp")).unwrap().is_empty());
    }

    #[test]
    fn a_failed_flush_moves_no_position() {
        let sim = SimVfs::default();
        let file = create(&disk(&sim)).unwrap();
        file.advance_wrote(10);
        sim.inject(Fault::nth(1).on(&[OperationKind::Sync]));
        assert!(file.flush().is_err());
        assert_eq!((file.flushed(), file.committed()), (0, 0));
        file.flush().unwrap();
        let before = sim.operations();
        assert_eq!(file.flush().unwrap(), 10);
        assert_eq!(sim.operations(), before, "nothing to do, nothing done");
    }
}
