//! Tests of every file system, real or simulated.

use super::*;
use crate::os::OsVfs;

/// Runs a test in an empty folder of each file system.
pub(crate) fn everywhere(test: impl Fn(&Arc<dyn Vfs>, &Path)) {
    let dir = tempfile::tempdir().unwrap();
    let real: Arc<dyn Vfs> = Arc::new(OsVfs::new());
    test(&real, dir.path());
    #[cfg(feature = "sim")]
    {
        let simulated: Arc<dyn Vfs> = Arc::new(crate::sim::SimVfs::default());
        simulated.create_dir_all(Path::new("/tmp/test")).unwrap();
        test(&simulated, Path::new("/tmp/test"));
    }
}

fn put(vfs: &Arc<dyn Vfs>, path: &Path, bytes: &[u8]) -> Arc<dyn VfsFile> {
    let file = vfs.create_new(path).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file
}

fn kind<T>(result: io::Result<T>) -> io::ErrorKind {
    result.map(|_| ()).unwrap_err().kind()
}

#[test]
fn parent_of_bare_names_and_of_the_root() {
    assert_eq!(parent_dir(Path::new("a/b")), Path::new("a"));
    assert_eq!(parent_dir(Path::new("b")), Path::new("."));
    assert_eq!(parent_dir(Path::new("/")), Path::new("/"));
}

#[test]
fn lock_errors_read_well() {
    assert_eq!(LockError::Held { pid: Some(7) }.to_string(), "held by process 7");
    assert_eq!(LockError::Held { pid: None }.to_string(), "held by another holder");
}

#[test]
fn reads_and_writes_by_position() {
    everywhere(|vfs, root| {
        let file = put(vfs, &root.join("a"), b"0123456789");
        file.write_all_at(b"xy", 4).unwrap();
        file.write_all_at(b"", 1000).unwrap();
        assert_eq!(file.len().unwrap(), 10);
        let mut buf = [0; 4];
        assert_eq!(file.read_at(&mut buf, 3).unwrap(), 4);
        assert_eq!(&buf, b"3xy6");
        assert_eq!(file.read_at(&mut buf, 8).unwrap(), 2);
        assert_eq!(file.read_at(&mut buf, 10).unwrap(), 0);
        assert_eq!(file.read_at(&mut buf, 1 << 40).unwrap(), 0);
        for (len, offset, found) in [(4, 3, &b"3xy6"[..]), (4, 8, b"89"), (4, 10, b""), (0, 3, b"")] {
            assert_eq!(file.read_new(len, offset).unwrap(), found, "{len} bytes from {offset}");
        }
        assert_eq!(kind(file.read_exact_at(&mut buf, 8)), io::ErrorKind::UnexpectedEof);
        file.write_all_at(b"z", 9000).unwrap();
        assert_eq!(file.len().unwrap(), 9001);
        file.read_exact_at(&mut buf, 5000).unwrap();
        assert_eq!(buf, [0; 4]);
        file.set_len(5).unwrap();
        file.set_len(10).unwrap();
        assert_eq!(vfs.read_file(&root.join("a"), 10).unwrap(), b"0123x\0\0\0\0\0");
        file.sync_data().unwrap();
        file.sync_all().unwrap();
    });
}

#[test]
fn a_reader_cannot_write() {
    everywhere(|vfs, root| {
        put(vfs, &root.join("a"), &[1; 4096]);
        let file = vfs.open(&root.join("a"), Access::Read).unwrap();
        assert!(file.write_all_at(b"x", 0).is_err());
        assert!(file.set_len(0).is_err());
        assert_eq!(kind(file.map(0, 4096, MapAccess::ReadWrite)), io::ErrorKind::PermissionDenied);
        let region = file.map(0, 4096, MapAccess::Read).unwrap();
        assert!(!region.is_writable());
        assert_eq!(file.len().unwrap(), 4096);
    });
}

#[test]
fn file_and_maps_share_their_bytes() {
    everywhere(|vfs, root| {
        let file = vfs.create_new(&root.join("a")).unwrap();
        file.allocate(3 * 4096).unwrap();
        let whole = file.map(0, 3 * 4096, MapAccess::ReadWrite).unwrap();
        let tail = file.map(4096, 100, MapAccess::Read).unwrap();
        file.write_all_at(b"by file", 4096).unwrap();
        assert_eq!(&*tail.view(0, 7).unwrap(), b"by file");
        assert_eq!(&*whole.view(4096, 7).unwrap(), b"by file");
        whole.write(4110, b"by map").unwrap();
        whole.store_u32_be_release(4120, 7).unwrap();
        let mut buf = [0; 14];
        file.read_exact_at(&mut buf, 4110).unwrap();
        assert_eq!(&buf, b"by map\0\0\0\0\0\0\0\x07");
        assert_eq!(tail.load_u32_be_acquire(24).unwrap(), 7);
        whole.flush(4096..4200).unwrap();
        let view = tail.view(14, 6).unwrap();
        drop((whole, tail, file));
        vfs.remove_file(&root.join("a")).unwrap();
        assert_eq!(&*view, b"by map");
    });
}

#[test]
fn maps_are_checked_against_the_file() {
    everywhere(|vfs, root| {
        let file = put(vfs, &root.join("a"), &[1; 5000]);
        for (offset, len) in [(0, 0), (1, 1), (0, 5001), (4096, 905), (8192, 1), (u64::MAX - 4095, 4096)] {
            let result = file.map(offset, len, MapAccess::Read);
            assert_eq!(kind(result), io::ErrorKind::InvalidInput, "{offset} {len}");
        }
        assert_eq!(file.map(4096, 904, MapAccess::Read).unwrap().len(), 904);
    });
}

#[test]
fn names_and_their_errors() {
    everywhere(|vfs, root| {
        let [a, b, dir] = ["a", "b", "dir"].map(|name| root.join(name));
        put(vfs, &a, b"a");
        assert_eq!(kind(vfs.create_new(&a)), io::ErrorKind::AlreadyExists);
        assert_eq!(kind(vfs.open(&b, Access::Read)), io::ErrorKind::NotFound);
        assert_eq!(kind(vfs.stat(&b)), io::ErrorKind::NotFound);
        assert_eq!(kind(vfs.list(&b)), io::ErrorKind::NotFound);
        assert_eq!(kind(vfs.list(&a)), io::ErrorKind::NotADirectory);
        assert_eq!(kind(vfs.list_kinds(&b)), io::ErrorKind::NotFound);
        assert_eq!(kind(vfs.list_kinds(&a)), io::ErrorKind::NotADirectory);
        assert_eq!(kind(vfs.sync_dir(&b)), io::ErrorKind::NotFound);
        assert_eq!(kind(vfs.rename(&b, &a)), io::ErrorKind::NotFound);
        assert_eq!(kind(vfs.remove_file(&b)), io::ErrorKind::NotFound);
        assert_eq!(kind(vfs.create_new(&a.join("x"))), io::ErrorKind::NotADirectory);
        assert_eq!(kind(vfs.create_dir(&b.join("x"))), io::ErrorKind::NotFound);
        vfs.create_dir(&dir).unwrap();
        assert_eq!(kind(vfs.create_dir(&dir)), io::ErrorKind::AlreadyExists);
        assert_eq!(kind(vfs.create_new(&dir)), io::ErrorKind::AlreadyExists);
        assert_eq!(kind(vfs.open(&dir, Access::Read)), io::ErrorKind::IsADirectory);
        assert_eq!(kind(vfs.rename(&a, &dir)), io::ErrorKind::IsADirectory);
        assert_eq!(kind(vfs.rename(&dir, &a)), io::ErrorKind::NotADirectory);
        assert_eq!(kind(vfs.remove_dir(&a)), io::ErrorKind::NotADirectory);
        put(vfs, &dir.join("x"), b"x");
        assert_eq!(kind(vfs.remove_dir(&dir)), io::ErrorKind::DirectoryNotEmpty);
        vfs.create_dir_all(&dir.join("p/q/r")).unwrap();
        vfs.create_dir_all(&dir.join("p/q")).unwrap();
        assert!(vfs.create_dir_all(&a.join("p")).is_err());
        assert!(vfs.rename(&dir, &dir.join("p/below")).is_err());
        vfs.remove_dir_all(&dir).unwrap();
        assert_eq!(kind(vfs.stat(&dir)), io::ErrorKind::NotFound);
        let names: Vec<_> = vfs.list(root).unwrap();
        assert_eq!(names.len(), 1);
        assert_eq!(
            names.first().map(|entry| (entry.name.as_os_str(), entry.stat)),
            Some(("a".as_ref(), vfs.stat(&a).unwrap()))
        );
    });
}

#[test]
fn renames_links_and_exchanges() {
    everywhere(|vfs, root| {
        let [a, b, c] = ["a", "b", "c"].map(|name| root.join(name));
        put(vfs, &a, b"a");
        put(vfs, &b, b"bb");
        assert_eq!(kind(vfs.rename_noreplace(&a, &b)), io::ErrorKind::AlreadyExists);
        vfs.rename_noreplace(&a, &c).unwrap();
        match vfs.exchange(&b, &c) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => vfs.rename(&c, &a).unwrap(),
            result => {
                result.unwrap();
                assert_eq!(vfs.read_file(&b, 9).unwrap(), b"a");
                vfs.rename(&b, &a).unwrap();
                vfs.rename(&c, &b).unwrap();
            }
        }
        assert_eq!(kind(vfs.exchange(&a, &c)), io::ErrorKind::NotFound);
        vfs.hard_link(&a, &c).unwrap();
        assert_eq!(kind(vfs.hard_link(&b, &c)), io::ErrorKind::AlreadyExists);
        let (left, right) = (vfs.stat(&a).unwrap(), vfs.stat(&c).unwrap());
        assert_eq!((left.inode, left.links), (right.inode, 2));
        vfs.rename(&b, &a).unwrap();
        assert_eq!(vfs.read_file(&a, 9).unwrap(), b"bb");
        assert_eq!(vfs.read_file(&c, 9).unwrap(), b"a");
        let open = vfs.open(&c, Access::Read).unwrap();
        vfs.remove_file(&c).unwrap();
        assert_eq!((open.stat().unwrap().links, open.len().unwrap()), (0, 1));
    });
}

#[test]
fn whole_files_within_limits() {
    everywhere(|vfs, root| {
        let (path, tmp) = (root.join("a"), root.join("a.tmp"));
        vfs.write_atomic(&path, &tmp, b"first").unwrap();
        put(vfs, &tmp, b"left by somebody who died");
        vfs.write_atomic(&path, &tmp, b"second").unwrap();
        assert_eq!(kind(vfs.stat(&tmp)), io::ErrorKind::NotFound);
        assert_eq!(vfs.read_file(&path, 6).unwrap(), b"second");
        assert_eq!(kind(vfs.read_file(&path, 5)), io::ErrorKind::FileTooLarge);
        vfs.create_dir(&root.join("dir")).unwrap();
        assert_eq!(kind(vfs.write_atomic(&root.join("dir"), &tmp, b"x")), io::ErrorKind::IsADirectory);
        assert_eq!(kind(vfs.stat(&tmp)), io::ErrorKind::NotFound);
        assert_eq!(vfs.read_file(&path, 6).unwrap(), b"second");
        vfs.create_new(&root.join("empty")).unwrap();
        assert_eq!(vfs.read_file(&root.join("empty"), 0).unwrap(), b"");
    });
}

#[test]
fn one_holder_a_lock() {
    everywhere(|vfs, root| {
        let path = root.join("lock");
        assert_eq!(vfs.lock_holder(&path).unwrap(), None);
        assert_eq!(kind(vfs.stat(&path)), io::ErrorKind::NotFound);
        let lock = vfs.lock(&path).unwrap();
        assert_eq!(vfs.read_file(&path, 9).unwrap(), b"lock");
        assert!(matches!(vfs.lock(&path), Err(LockError::Held { pid: None })));
        assert!(vfs.lock_holder(&path).unwrap().is_some());
        let open = vfs.open(&path, Access::Read).unwrap();
        assert_eq!(open.lock_holder().unwrap(), vfs.lock_holder(&path).unwrap());
        // The open file stays the locked one, whatever has its name.
        vfs.rename(&path, &root.join("renamed")).unwrap();
        assert!(open.lock_holder().unwrap().is_some());
        drop(lock);
        assert_eq!(open.lock_holder().unwrap(), None);
        vfs.rename(&root.join("renamed"), &path).unwrap();
        assert_eq!(vfs.lock_holder(&path).unwrap(), None);
        let lock = vfs.lock(&path).unwrap();
        lock.disown_in_child();
        assert!(vfs.lock(&path).is_ok());
    });
}

#[test]
fn a_part_of_a_file_takes_room() {
    everywhere(|vfs, root| {
        const LEN: u64 = 1 << 20;
        let file = vfs.create_new(&root.join("a")).unwrap();
        assert_eq!(file.allocate_front(LEN, 64 * 1024).unwrap(), 64 * 1024);
        file.write_all_at(b"there", 600_000).unwrap();
        for (offset, len) in [(512 * 1024, 128 * 1024), (600_000, 4), (0, 0)] {
            file.allocate_range(offset, len).unwrap();
        }
        let stat = file.stat().unwrap();
        assert_eq!(stat.len, LEN);
        assert!((192 * 1024..LEN / 2).contains(&stat.allocated_bytes), "{stat:?}");
        let bytes = vfs.read_file(&root.join("a"), LEN).unwrap();
        assert_eq!(&bytes[600_000..600_005], b"there");
        assert_eq!(bytes.iter().filter(|byte| **byte != 0).count(), 5);
        // A file without space for more than the front gets all of it.
        let small = vfs.create_new(&root.join("b")).unwrap();
        assert_eq!(small.allocate_front(4096, 64 * 1024).unwrap(), 4096);
        assert!(small.stat().unwrap().allocated_bytes >= 4096);
    });
}

#[test]
fn room_is_taken_by_allocation() {
    everywhere(|vfs, root| {
        let file = put(vfs, &root.join("a"), b"head");
        file.allocate(64 * 1024).unwrap();
        let stat = file.stat().unwrap();
        assert!(stat.len == 64 * 1024 && stat.allocated_bytes >= 64 * 1024, "{stat:?}");
        file.allocate(1).unwrap();
        assert_eq!(file.len().unwrap(), 64 * 1024);
        assert_eq!(vfs.read_file(&root.join("a"), 1 << 20).unwrap().first_chunk(), Some(b"head"));
        assert_eq!(file.next_data(64 * 1024).unwrap(), None);
        assert_eq!(file.next_data(2).unwrap(), Some(2));
    });
}

#[test]
fn a_store_keeps_a_share_of_the_limit_of_open_files() {
    let shares = |open_files| {
        let environment = Environment { open_files, ..OsVfs.environment() };
        (environment.default_kept_files(), environment.most_kept_files())
    };
    assert_eq!(shares(1), (1, 1));
    assert_eq!(shares(64), (32, 32));
    assert_eq!(shares(256), (128, 128));
    assert_eq!(shares(1024), (512, 512));
    assert_eq!(shares(8192), (1024, 4096));
    assert_eq!(shares(1 << 20), (4096, 1 << 19));
    assert_eq!(shares(u64::MAX), (4096, u64::MAX / 2));
}
