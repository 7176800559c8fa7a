use super::*;
use crate::vfs::tests::everywhere;

const LEN: u64 = 4096;

fn name(offset: u64) -> String {
    format!("{offset:020}")
}

fn put(vfs: &Arc<dyn Vfs>, dir: &Path, offset: u64, len: u64) {
    vfs.create_new(&dir.join(name(offset))).unwrap().set_len(len).unwrap();
}

fn load(vfs: &Arc<dyn Vfs>, dir: &Path) -> (MappedFileQueue, LoadReport) {
    MappedFileQueue::load(vfs, dir, FileLength::Expected(LEN), MapAccess::ReadWrite).unwrap()
}

fn bases(queue: &MappedFileQueue) -> Vec<u64> {
    queue.snapshot().iter().map(|file| file.base_offset()).collect()
}

#[test]
fn loads_a_row_in_order() {
    everywhere(|vfs, root| {
        for offset in [8192, 4096, 12288] {
            put(vfs, root, offset, LEN);
        }
        let (queue, report) = load(vfs, root);
        assert_eq!(report, LoadReport::default());
        assert_eq!(bases(&queue), [4096, 8192, 12288]);
        assert_eq!((queue.min_offset(), queue.max_offset()), (Some(4096), Some(16384)));
        assert_eq!((queue.len(), queue.is_empty(), queue.file_bytes()), (3, false, LEN));
        assert_eq!(queue.first().unwrap().base_offset(), 4096);
        assert_eq!(queue.last().unwrap().wrote(), LEN);
        let found = |offset| queue.find(offset).map(|file| file.base_offset());
        assert_eq!(
            [found(4095), found(4096), found(8191), found(8192)],
            [None, Some(4096), Some(4096), Some(8192)]
        );
        assert_eq!([found(16383), found(16384), found(u64::MAX)], [Some(12288), None, None]);
    });
}

#[test]
fn an_empty_folder_and_a_missing_one() {
    everywhere(|vfs, root| {
        let (queue, report) = load(vfs, root);
        assert!(queue.is_empty() && report.strays.is_empty());
        assert_eq!((queue.min_offset(), queue.max_offset(), queue.find(0)).0, None);
        assert!(queue.first().is_none() && queue.last().is_none());
        assert!(!queue.retire_oldest(0, MappedFile::retire).unwrap());
        let missing = MappedFileQueue::load(
            vfs,
            &root.join("no"),
            FileLength::Discover { default: 1 },
            MapAccess::Read,
        );
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
    });
}

#[test]
fn strays_are_named_and_left_alone() {
    everywhere(|vfs, root| {
        for offset in [0, 4096, 8192] {
            put(vfs, root, offset, LEN);
        }
        put(vfs, root, 12288, 100);
        put(vfs, root, 16384, 0);
        put(vfs, root, 6000, LEN);
        for name in
            ["12288", "0000000000000000409x", "99999999999999999999", "notes.txt", "+0000000000000004096"]
        {
            vfs.create_new(&root.join(name)).unwrap().set_len(LEN).unwrap();
        }
        vfs.create_dir(&root.join(name(20480))).unwrap();
        let before = vfs.list(root).unwrap();
        let (queue, report) = load(vfs, root);
        assert_eq!(bases(&queue), [0, 4096, 8192]);
        let kinds: BTreeMap<String, StrayKind> = report
            .strays
            .iter()
            .map(|stray| (stray.path.file_name().unwrap().to_str().unwrap().to_owned(), stray.kind))
            .collect();
        assert_eq!(kinds.len(), 9);
        assert_eq!(kinds[&name(12288)], StrayKind::Length { found: 100, expected: LEN });
        assert_eq!(kinds[&name(16384)], StrayKind::Empty);
        assert_eq!(kinds[&name(6000)], StrayKind::Overlap { base_offset: 6000, previous_end: 8192 });
        assert_eq!(kinds[&name(20480)], StrayKind::Directory);
        for name in ["12288", "0000000000000000409x", "99999999999999999999", "notes.txt"] {
            assert_eq!(kinds[name], StrayKind::Name, "{name}");
        }
        for kind in kinds.values() {
            assert!(!kind.to_string().is_empty());
        }
        assert_eq!(vfs.list(root).unwrap(), before);
    });
}

#[test]
fn links_and_pipes_are_strays() {
    let dir = tempfile::tempdir().unwrap();
    let vfs: Arc<dyn Vfs> = Arc::new(crate::os::OsVfs::new());
    put(&vfs, dir.path(), 0, LEN);
    std::os::unix::fs::symlink(dir.path().join(name(0)), dir.path().join(name(4096))).unwrap();
    let pipe = dir.path().join(name(8192));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let (queue, report) = load(&vfs, dir.path());
    assert_eq!(bases(&queue), [0]);
    let kinds: Vec<_> = report.strays.iter().map(|stray| stray.kind).collect();
    assert_eq!(kinds, [StrayKind::Symlink, StrayKind::Special]);
}

#[test]
fn the_length_is_what_most_files_have() {
    everywhere(|vfs, root| {
        let discover = || {
            let length = FileLength::Discover { default: 77 };
            MappedFileQueue::load(vfs, root, length, MapAccess::Read).unwrap().0.file_bytes()
        };
        assert_eq!(discover(), 77);
        put(vfs, root, 0, 0);
        assert_eq!(discover(), 77);
        put(vfs, root, 4096, 300);
        assert_eq!(discover(), 300);
        put(vfs, root, 8192, LEN);
        assert_eq!(discover(), LEN, "the larger on a tie");
        put(vfs, root, 9000, 300);
        assert_eq!(discover(), 300);
    });
}

#[test]
fn gaps_are_reported_and_look_ups_cope() {
    everywhere(|vfs, root| {
        for offset in [0, 4096, 40960, 45056] {
            put(vfs, root, offset, LEN);
        }
        let (queue, report) = load(vfs, root);
        assert_eq!(report.gaps, std::iter::once(8192..40960).collect::<Vec<_>>());
        let found = |offset| queue.find(offset).map(|file| file.base_offset());
        assert_eq!([found(8191), found(8192), found(40959)], [Some(4096), None, None]);
        assert_eq!([found(40960), found(49151), found(49152)], [Some(40960), Some(45056), None]);
    });
}

#[test]
fn a_row_over_several_folders() {
    everywhere(|vfs, root| {
        let dirs = ["one", "two"].map(|name| root.join(name));
        for dir in &dirs {
            vfs.create_dir(dir).unwrap();
        }
        put(vfs, &dirs[0], 0, LEN);
        put(vfs, &dirs[1], 4096, LEN);
        put(vfs, &dirs[0], 8192, LEN);
        put(vfs, &dirs[1], 0, LEN);
        for (unused, used) in [(1, 0), (0, 1)] {
            let left_out = BTreeSet::from([dirs[unused].join(name(0))]);
            let length = FileLength::Expected(LEN);
            let (queue, report) =
                MappedFileQueue::load_dirs(vfs, &dirs, length, MapAccess::ReadWrite, &left_out).unwrap();
            assert_eq!(bases(&queue), [0, 4096, 8192]);
            assert_eq!(queue.find(0).unwrap().path(), dirs[used].join(name(0)));
            assert_eq!(report.strays.len(), 1, "the same range twice");
            assert_eq!(report.strays[0].path, dirs[unused].join(name(0)));
            assert_eq!(report.strays[0].kind, StrayKind::SameName { base_offset: 0 });
        }
    });
}

#[test]
fn only_the_next_file_is_pushed() {
    everywhere(|vfs, root| {
        let queue = MappedFileQueue::new(vfs, LEN);
        let make = |offset, len| {
            let file =
                MappedFile::stage(vfs, &root.join(format!("staged-{offset}")), offset, len, len).unwrap();
            file.name(&root.join(name(offset))).unwrap();
            file
        };
        queue.push(make(4096, LEN)).unwrap();
        assert_eq!(queue.push(make(0, LEN)), Err(PushError::Offset { expected: 8192, found: 0 }));
        assert_eq!(queue.push(make(16384, LEN)), Err(PushError::Offset { expected: 8192, found: 16384 }));
        assert_eq!(queue.push(make(9000, 1)), Err(PushError::Length { expected: LEN, found: 1 }));
        let snapshot = queue.snapshot();
        queue.push(make(8192, LEN)).unwrap();
        assert_eq!((snapshot.len(), bases(&queue)), (1, vec![4096, 8192]));
        assert_eq!(queue.max_offset(), Some(8192));
        queue.last().unwrap().advance_wrote(5);
        assert_eq!(queue.max_offset(), Some(8197));
    });
}

#[test]
fn the_front_is_retired_up_to_the_last_file() {
    everywhere(|vfs, root| {
        for offset in [0, 4096, 8192, 12288] {
            put(vfs, root, offset, LEN);
        }
        let (queue, _) = load(vfs, root);
        assert!(!queue.retire_oldest(4096, MappedFile::retire).unwrap(), "not the first");
        let snapshot = queue.snapshot();
        assert!(queue.retire_oldest(0, MappedFile::retire).unwrap());
        assert_eq!(bases(&queue), [4096, 8192, 12288]);
        assert_eq!(snapshot[0].file().unwrap().len().unwrap(), LEN, "who has it can read it");
        assert!(snapshot[0].hold().is_none());
        let aside = root.join("aside");
        assert!(queue.retire_oldest(4096, |file| file.retire_to(&aside)).unwrap());
        assert_eq!((vfs.stat(&aside).unwrap().len, snapshot[1].path()), (LEN, aside.clone()));
        vfs.remove_file(&aside).unwrap();
        assert!(queue.retire_oldest(8192, MappedFile::retire).unwrap());
        assert!(!queue.retire_oldest(12288, MappedFile::retire).unwrap(), "never the last one");
        assert_eq!((bases(&queue), vfs.list(root).unwrap().len()), (vec![12288], 1));
    });
}

#[cfg(feature = "sim")]
mod simulated {
    use super::*;
    use crate::sim::{Fault, OperationKind, SimOptions, SimVfs};

    fn row(sim: &SimVfs, count: u64) -> Arc<dyn Vfs> {
        let vfs: Arc<dyn Vfs> = Arc::new(sim.clone());
        for index in 0..count {
            put(&vfs, Path::new("/"), index * LEN, LEN);
        }
        vfs.sync_dir(Path::new("/")).unwrap();
        vfs
    }

    #[test]
    fn loading_opens_nothing() {
        let sim = SimVfs::new(SimOptions { trace: true, ..SimOptions::default() });
        let vfs = row(&sim, 100);
        let before = sim.trace().len();
        let (queue, _) = load(&vfs, Path::new("/"));
        assert_eq!(queue.len(), 100);
        let kinds: Vec<_> = sim.trace().iter().skip(before).map(|operation| operation.kind).collect();
        assert_eq!(kinds, [OperationKind::List]);
    }

    #[test]
    fn an_error_in_between_keeps_row_and_folder_in_step() {
        let sim = SimVfs::default();
        let (queue, _) = load(&row(&sim, 3), Path::new("/"));
        sim.inject(Fault::nth(1).on(&[OperationKind::RemoveFile]));
        assert!(queue.retire_oldest(0, MappedFile::retire).is_err());
        assert_eq!((bases(&queue), sim.list(Path::new("/")).unwrap().len()), (vec![0, 4096, 8192], 3));
        assert!(queue.retire_oldest(0, MappedFile::retire).unwrap());
        let after = sim.crash_with(&mut |_| false).unwrap();
        assert_eq!(after.list(Path::new("/")).unwrap().len(), 2, "durable when it returns");
        sim.inject(Fault::nth(1).on(&[OperationKind::SyncDir]));
        assert!(queue.retire_oldest(4096, MappedFile::retire).is_err());
        assert_eq!(bases(&queue), [8192]);
    }
}
