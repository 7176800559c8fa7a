use super::*;
use crate::vfs::tests::everywhere;

fn put(vfs: &Arc<dyn Vfs>, path: &Path) {
    vfs.create_new(path).unwrap().write_all_at(b"x", 0).unwrap();
}

fn put_all(vfs: &Arc<dyn Vfs>, paths: &[PathBuf]) {
    for path in paths {
        put(vfs, path);
    }
}

#[test]
fn keeps_the_most_recently_used() {
    everywhere(|vfs, root| {
        let paths = ["a", "b", "c"].map(|name| root.join(name));
        put_all(vfs, &paths);
        let cache = FileCache::new(Arc::clone(vfs), 2);
        assert!(cache.is_empty());
        let first = cache.get(&paths[0], Access::ReadWrite).unwrap();
        cache.get(&paths[1], Access::ReadWrite).unwrap();
        let again = cache.get(&paths[0], Access::Read).unwrap();
        assert!(Arc::ptr_eq(&first, &again), "a writer's handle serves readers");
        cache.get(&paths[2], Access::ReadWrite).unwrap();
        assert_eq!(cache.len(), 2);
        assert!(Arc::ptr_eq(&first, &cache.get(&paths[0], Access::ReadWrite).unwrap()), "b was the oldest");
        assert_eq!(Arc::strong_count(&first), 3);
        cache.get(&paths[1], Access::Read).unwrap();
        cache.get(&paths[2], Access::Read).unwrap();
        assert_eq!(Arc::strong_count(&first), 2, "evicted, but still ours");
        first.write_all_at(b"y", 0).unwrap();
        assert_eq!(vfs.read_file(&paths[0], 9).unwrap(), b"y");
    });
}

#[test]
fn a_readers_handle_is_replaced_for_a_writer() {
    everywhere(|vfs, root| {
        let path = root.join("a");
        put(vfs, &path);
        let cache = FileCache::new(Arc::clone(vfs), 8);
        let reader = cache.get(&path, Access::Read).unwrap();
        assert!(reader.write_all_at(b"y", 0).is_err());
        let writer = cache.get(&path, Access::ReadWrite).unwrap();
        writer.write_all_at(b"y", 0).unwrap();
        assert_eq!(cache.len(), 1);
        assert!(Arc::ptr_eq(&writer, &cache.get(&path, Access::Read).unwrap()));
    });
}

#[test]
fn forgets_files_and_folders() {
    everywhere(|vfs, root| {
        vfs.create_dir(&root.join("d")).unwrap();
        vfs.create_dir(&root.join("d2")).unwrap();
        let paths = ["a", "d/a", "d/b", "d2/a"].map(|name| root.join(name));
        put_all(vfs, &paths);
        let cache = FileCache::new(Arc::clone(vfs), 8);
        let files: Vec<_> = paths.iter().map(|path| cache.get(path, Access::ReadWrite).unwrap()).collect();
        cache.forget_dir(&root.join("d"));
        assert_eq!(cache.len(), 2, "d2 is another folder");
        cache.forget(&paths[0]);
        cache.forget(&paths[0]);
        assert_eq!(cache.len(), 1);
        vfs.remove_file(&paths[0]).unwrap();
        put(vfs, &paths[0]);
        let new = cache.get(&paths[0], Access::ReadWrite).unwrap();
        assert!(!Arc::ptr_eq(&new, &files[0]));
        assert_eq!(new.stat().unwrap().inode, vfs.stat(&paths[0]).unwrap().inode);
    });
}

#[test]
fn a_file_that_cannot_be_opened_is_not_kept() {
    everywhere(|vfs, root| {
        let cache = FileCache::new(Arc::clone(vfs), 0);
        let path = root.join("a");
        assert_eq!(cache.get(&path, Access::Read).unwrap_err().kind(), io::ErrorKind::NotFound);
        put(vfs, &path);
        assert!(cache.get(&path, Access::Read).is_ok());
        assert_eq!(cache.len(), 1, "at least one is kept");
    });
}

#[test]
fn threads_share_a_cache() {
    everywhere(|vfs, root| {
        let paths: Vec<_> = (0..8).map(|name| root.join(name.to_string())).collect();
        put_all(vfs, &paths);
        let cache = FileCache::new(Arc::clone(vfs), 3);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (cache, paths) = (&cache, &paths);
                scope.spawn(move || {
                    for round in 0..200 {
                        let path = &paths[(round * 7 + thread) % paths.len()];
                        let mut byte = [0];
                        cache.get(path, Access::Read).unwrap().read_exact_at(&mut byte, 0).unwrap();
                        assert_eq!(byte, *b"x");
                        if round % 50 == 0 {
                            cache.forget(path);
                        }
                    }
                });
            }
        });
        assert!(cache.len() <= 3);
        let state = cache.state.table.lock();
        assert_eq!(state.entries.len(), state.order.len());
    });
}

#[test]
fn a_release_closes_files_that_no_caller_has() {
    everywhere(|vfs, root| {
        let paths = ["a", "b", "c"].map(|name| root.join(name));
        put_all(vfs, &paths);
        let cache = FileCache::new(Arc::clone(vfs), 8);
        let used = cache.get(&paths[0], Access::ReadWrite).unwrap();
        cache.get(&paths[1], Access::ReadWrite).unwrap();
        cache.map(&paths[2], Access::Read, 1).unwrap();
        {
            let _busy = cache.state.table.lock();
            assert_eq!(cache.state.release(), 0, "it does not wait for a lock");
        }
        assert_eq!(cache.state.release(), 2);
        assert_eq!(cache.len(), 1);
        assert!(Arc::ptr_eq(&used, &cache.get(&paths[0], Access::Read).unwrap()));
        cache.get(&paths[1], Access::Read).unwrap();
        let state = cache.state.table.lock();
        assert_eq!(state.entries.len(), state.order.len());
    });
}

#[test]
fn recent_files_need_the_cache_only_once_until_it_closes_them() {
    everywhere(|vfs, root| {
        let path = root.join("a");
        put(vfs, &path);
        let cache = FileCache::new(Arc::clone(vfs), 8);
        let recent = RecentFiles::default();
        let opens = std::cell::Cell::new(0);
        let get = || {
            let open = || {
                opens.set(opens.get() + 1);
                cache.get(&path, Access::Read)
            };
            recent.get(&cache, 7, open).unwrap()
        };
        assert!(Arc::ptr_eq(&get(), &get()));
        assert_eq!(opens.get(), 1);
        // A file of this name can be another one after that, even if a caller still has the old one.
        let old = get();
        cache.forget(&path);
        assert!(Arc::ptr_eq(&get(), &get()));
        assert!(!Arc::ptr_eq(&get(), &old));
        assert_eq!(opens.get(), 2);
        assert!(recent.get(&cache, 8, || Err::<Arc<dyn VfsFile>, _>(io::ErrorKind::NotFound)).is_err());
    });
}

#[cfg(feature = "sim")]
#[test]
fn a_file_that_is_replaced_while_it_is_opened_is_not_kept() {
    let sim = Arc::new(crate::SimVfs::default());
    let vfs: Arc<dyn Vfs> = sim.clone();
    let path = Path::new("/a");
    // Before the open, before the map, and between two maps.
    for nth in 1..=4 {
        put(&vfs, path);
        let cache = Arc::new(FileCache::new(Arc::clone(&vfs), 8));
        let (beside, again) = (Arc::clone(&cache), Arc::clone(&vfs));
        sim.visit_before(nth, move || {
            beside.forget(Path::new("/a"));
            again.remove_file(Path::new("/a")).unwrap();
            again.create_new(Path::new("/a")).unwrap().write_all_at(b"y", 0).unwrap();
            beside.forget(Path::new("/a"));
            beside.get(Path::new("/a"), Access::ReadWrite).unwrap();
        });
        for _ in 0..3 {
            cache.map(path, Access::ReadWrite, 1).unwrap();
            cache.get(path, Access::ReadWrite).unwrap().stat().unwrap();
        }
        let mut bytes = [0; 2];
        cache.map(path, Access::ReadWrite, 1).unwrap().read(0, &mut bytes[..1]).unwrap();
        cache.get(path, Access::ReadWrite).unwrap().read_exact_at(&mut bytes[1..], 0).unwrap();
        assert_eq!((bytes, sim.cancel_visit()), (*b"yy", false), "before call {nth}");
        vfs.remove_file(path).unwrap();
    }
}
