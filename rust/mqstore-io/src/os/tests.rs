use std::ffi::OsString;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use super::*;
use crate::region::{Advice, MapAccess};
use crate::vfs::NoSpace;

fn temp() -> (OsVfs, tempfile::TempDir) {
    (OsVfs::new(), tempfile::tempdir().unwrap())
}

fn file_with(dir: &tempfile::TempDir, name: &str, bytes: &[u8]) -> (PathBuf, Arc<dyn VfsFile>) {
    let path = dir.path().join(name);
    let file = OsVfs.create_new(&path).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    (path, file)
}

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn the_inode_alone_is_the_one_of_the_stat() {
    let (vfs, dir) = temp();
    let (plain, file) = file_with(&dir, "plain", b"x");
    let link = dir.path().join("link");
    symlink(&plain, &link).unwrap();
    assert_eq!(vfs.inode(&plain).unwrap(), file.stat().unwrap().inode);
    assert_eq!(vfs.inode(&link).unwrap(), vfs.stat(&link).unwrap().inode, "links are not followed");
    assert_eq!(vfs.inode(&dir.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn opens_regular_files_and_nothing_else_without_waiting() {
    let (vfs, dir) = temp();
    let (plain, _) = file_with(&dir, "plain", b"x");
    let link = dir.path().join("link");
    symlink(&plain, &link).unwrap();
    let pipe = dir.path().join("pipe");
    make_pipe(&pipe);
    let start = Instant::now();
    for access in [Access::Read, Access::ReadWrite] {
        assert_eq!(vfs.open(dir.path(), access).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert_eq!(vfs.open(&pipe, access).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let error = vfs.open(&link, access).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::LOOP.raw_os_error()));
        assert_eq!(vfs.open(Path::new("/dev/null"), access).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(vfs.open(&plain, access).is_ok());
    }
    assert!(vfs.lock(&pipe).is_err());
    assert!(vfs.lock_holder(&pipe).is_err());
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(vfs.stat(&link).unwrap().kind, FileKind::Symlink);
    assert_eq!(vfs.stat(&pipe).unwrap().kind, FileKind::Other);
    let names: Vec<OsString> = vfs.list(dir.path()).unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["link", "pipe", "plain"]);
    let kinds = [FileKind::Symlink, FileKind::Other, FileKind::File];
    let listed = vfs.list_kinds(dir.path()).unwrap();
    assert_eq!(listed, names.into_iter().zip(kinds).collect::<Vec<_>>());
}

#[test]
fn descriptors_do_not_survive_exec() {
    let (_, dir) = temp();
    let (_keep, _file) = file_with(&dir, "plain", b"x");
    let _lock = OsVfs.lock(&dir.path().join("lock")).unwrap();
    let seen = Command::new("ls").args(["-l", "/proc/self/fd"]).output();
    // Without /proc the test cannot check this.
    let Some(seen) = seen.ok().filter(|seen| seen.status.success()) else { return };
    let text = String::from_utf8_lossy(&seen.stdout).into_owned();
    assert!(!text.contains(&*dir.path().to_string_lossy()), "{text}");
}

#[test]
fn a_link_is_removed_and_not_followed() {
    let (vfs, dir) = temp();
    let outside = tempfile::tempdir().unwrap();
    let (kept, _) = file_with(&outside, "kept", b"x");
    let folder = dir.path().join("folder");
    vfs.create_dir(&folder).unwrap();
    symlink(outside.path(), folder.join("link")).unwrap();
    vfs.remove_dir_all(&folder).unwrap();
    assert!(vfs.stat(&kept).is_ok());
    assert_eq!(vfs.stat(&folder).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_rename_without_the_flag_never_replaces() {
    let (vfs, dir) = temp();
    let (from, _) = file_with(&dir, "from", b"new");
    let (taken, _) = file_with(&dir, "taken", b"old");
    assert_eq!(rename_by_link(&from, &taken).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    let to = dir.path().join("to");
    rename_by_link(&from, &to).unwrap();
    assert_eq!(vfs.read_file(&to, 10).unwrap(), b"new");
    assert_eq!(vfs.read_file(&taken, 10).unwrap(), b"old");
    assert!(vfs.stat(&from).is_err());
}

#[test]
fn allocate_takes_room_and_keeps_content() {
    let (_, dir) = temp();
    let (_path, file) = file_with(&dir, "segment", b"head");
    file.allocate(1 << 20).unwrap();
    let stat = file.stat().unwrap();
    assert_eq!(stat.len, 1 << 20);
    assert!(stat.allocated_bytes >= 1 << 20, "{stat:?}");
    file.allocate(10).unwrap();
    file.allocate(0).unwrap();
    assert_eq!(file.len().unwrap(), 1 << 20);
    let mut bytes = vec![1; 1 << 20];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes.get(..4).unwrap(), b"head");
    assert!(bytes.iter().skip(4).all(|byte| *byte == 0));
}

#[test]
fn holes_are_found() {
    let (_, dir) = temp();
    let (_path, file) = file_with(&dir, "sparse", b"");
    file.set_len(1 << 20).unwrap();
    file.write_all_at(b"x", 512 * 1024).unwrap();
    let first = file.next_data(0).unwrap().unwrap();
    assert!(first <= 512 * 1024);
    assert!(file.next_data(512 * 1024).unwrap().is_some_and(|at| at == 512 * 1024));
    assert_eq!(file.next_data(1 << 20).unwrap(), None);
    assert_eq!(file.next_data(1 << 40).unwrap(), None);
}

#[test]
fn times_room_and_machine() {
    let (vfs, dir) = temp();
    let (path, file) = file_with(&dir, "plain", b"x");
    let stat = vfs.stat(&path).unwrap();
    assert_eq!(stat, file.stat().unwrap());
    assert!(stat.modified_ms > 1_700_000_000_000 && stat.links == 1);
    let space = vfs.free_space(dir.path()).unwrap();
    assert!(space.total >= space.free && space.free >= space.available && space.total > 0);
    let (first, second) = (vfs.environment(), vfs.environment());
    assert_eq!((first.boot_id, first.pid, &first.hostname), (second.boot_id, second.pid, &second.hostname));
    assert_ne!(first.random_seed, second.random_seed);
    assert_eq!(first.boot_id != [0; 16], Path::new("/proc/sys/kernel/random/boot_id").exists());
    assert!(vfs.sync_dir(dir.path()).is_ok());
    assert_eq!(vfs.sync_dir(&path).unwrap_err().kind(), io::ErrorKind::NotADirectory);
}

#[test]
fn uuids() {
    let bytes = parse_uuid("00112233-4455-6677-8899-aabbccddeeff\n").unwrap();
    assert_eq!(bytes.first_chunk::<4>(), Some(&[0x00, 0x11, 0x22, 0x33]));
    assert_eq!(bytes.last(), Some(&0xFF));
    for bad in ["", "0011", "00112233-4455-6677-8899-aabbccddeeffa", "zz112233-4455-6677-8899-aabbccddeeff"] {
        assert_eq!(parse_uuid(bad), None, "{bad:?}");
    }
}

#[test]
fn an_unreadable_file_says_so() {
    let (vfs, dir) = temp();
    let (path, _) = file_with(&dir, "secret", b"x");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    // The superuser can read everything.
    if let Err(error) = vfs.open(&path, Access::Read) {
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }
}

#[test]
fn maps_take_all_advice() {
    let (_, dir) = temp();
    let (_path, file) = file_with(&dir, "segment", b"");
    file.allocate(64 * 1024).unwrap();
    let region = file.map(0, 64 * 1024, MapAccess::ReadWrite).unwrap();
    region.write(5000, b"kept").unwrap();
    for advice in
        [Advice::WillNeed, Advice::Random, Advice::Sequential, Advice::PopulateWrite, Advice::DontNeed]
    {
        region.advise(5000..60_001, advice).unwrap();
        region.advise(0..64 * 1024, advice).unwrap();
    }
    assert_eq!(&*region.view(5000, 4).unwrap(), b"kept");
    region.flush(5000..5004).unwrap();
    region.flush(0..64 * 1024).unwrap();
    // The limit of locked memory can be 0.
    if region.lock_memory(4097..4098).is_ok() {
        region.unlock_memory(4097..4098).unwrap();
    }
}

#[test]
fn maps_of_part_of_a_file_end_where_it_ends() {
    let (_, dir) = temp();
    let (path, file) = file_with(&dir, "odd", &[7; 5000]);
    let region = file.map(4096, 904, MapAccess::ReadWrite).unwrap();
    assert_eq!(region.len(), 904);
    assert!(region.view(903, 1).is_ok() && region.view(903, 2).is_err());
    for (offset, len) in [(1, 10), (0, 0), (0, 5001), (8192, 1), (u64::MAX - 4095, 1), (0, usize::MAX)] {
        let error = file.map(offset, len, MapAccess::Read).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{offset} {len}");
    }
    let reader = OsVfs.open(&path, Access::Read).unwrap();
    assert_eq!(reader.map(0, 10, MapAccess::ReadWrite).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(
        reader.map(0, 10, MapAccess::Read).unwrap().write(0, b"x"),
        Err(crate::region::RegionError::ReadOnly)
    );
}

#[test]
#[cfg(target_os = "linux")]
fn writable_maps_are_not_inherited_by_children() {
    let (_, dir) = temp();
    let (path, file) = file_with(&dir, "segment-for-fork", &[1; 4096]);
    let _writable = file.map(0, 4096, MapAccess::ReadWrite).unwrap();
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let after = maps.split(&*path.to_string_lossy()).nth(1).unwrap();
    let flags = after.lines().find(|line| line.starts_with("VmFlags:")).unwrap();
    assert!(flags.split(' ').any(|flag| flag == "dc"), "{flags}");
}

/// Set for the test process that runs on a small file system.
const FULL_DISK: &str = "MQSTORE_IO_FULL_DISK";

/// Run by [`a_full_disk_is_an_error`] in a process with 1 MiB of tmpfs at the given folder.
#[test]
fn child_on_a_full_disk() {
    let Some(root) = std::env::var_os(FULL_DISK).map(PathBuf::from) else { return };
    let vfs = OsVfs::new();
    let segment = root.join("segment");
    let file = vfs.create_new(&segment).unwrap();
    file.allocate(256 * 1024).unwrap();
    let error = file.allocate(4 << 20).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert_eq!(file.len().unwrap(), 256 * 1024, "cut back to the old length");
    let space = vfs.free_space(&root).unwrap();
    assert!(space.available >= 700 * 1024, "the blocks were freed: {space:?}");
    let cause = NoSpace::of(&error).unwrap();
    assert_eq!((cause.requested_bytes, cause.free_bytes), ((4 << 20) - 256 * 1024, Some(space.available)));
    // Parts of a sparse file get their space one by one, and a part that does not fit is an error.
    let parts = vfs.create_new(&root.join("parts")).unwrap();
    parts.set_len(4 << 20).unwrap();
    parts.allocate_range(1 << 20, 64 * 1024).unwrap();
    let error = parts.allocate_range(2 << 20, 2 << 20).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert_eq!(NoSpace::of(&error).unwrap().requested_bytes, 2 << 20);
    drop(parts);
    vfs.remove_file(&root.join("parts")).unwrap();
    let hole = vfs.create_new(&root.join("hole")).unwrap();
    hole.set_len(4 << 20).unwrap();
    let region = hole.map(0, 4 << 20, MapAccess::ReadWrite).unwrap();
    if let Err(error) = region.advise(0..4 << 20, Advice::PopulateWrite) {
        // Not tested on old kernels, because touching the pages would kill the process.
        assert!(error.raw_os_error().is_some());
    }
    vfs.remove_file(&root.join("hole")).unwrap();
    drop((region, hole));
    let error = vfs.create_new(&root.join("big")).unwrap().write_all_at(&vec![1; 4 << 20], 0).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    vfs.remove_file(&root.join("big")).unwrap();
    // Allocated bytes can be written even if the disk is full.
    let filler = vfs.create_new(&root.join("filler")).unwrap();
    while filler.write_all_at(&[1; 4096], filler.len().unwrap()).is_ok() {}
    let region = file.map(0, 256 * 1024, MapAccess::ReadWrite).unwrap();
    region.fill(0, 256 * 1024, 9).unwrap();
    region.flush(0..256 * 1024).unwrap();
    println!("full disk: done");
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_an_error() {
    let (_, dir) = temp();
    let script = "mount -t tmpfs -o size=1m none \"$1\" || exit 77; exec \"$0\" --exact os::tests::child_on_a_full_disk --nocapture";
    let result = Command::new("unshare")
        .args(["-Urm", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .arg(dir.path())
        .env(FULL_DISK, dir.path())
        .output();
    // If a process cannot mount a file system, the tests of `sim` cover this.
    let Ok(result) = result else { return };
    let text = String::from_utf8_lossy(&result.stdout).into_owned();
    let errors = String::from_utf8_lossy(&result.stderr).into_owned();
    if result.status.code() == Some(77) || errors.contains("unshare failed") || errors.contains("unshare:") {
        return;
    }
    assert!(result.status.success() && text.contains("full disk: done"), "{text}\n{errors}");
}

#[test]
fn an_interrupted_call_is_repeated_whatever_library_makes_it() {
    fn after_two<E: descriptor::CallError>(interrupted: impl Fn() -> E) -> u32 {
        let mut calls = 0;
        let done = retry(|| {
            calls += 1;
            if calls < 3 { Err(interrupted()) } else { Ok(calls) }
        });
        done.ok().unwrap()
    }
    assert_eq!(after_two(|| Errno::INTR), 3);
    assert_eq!(after_two(|| io::Error::from_raw_os_error(4)), 3);
    assert_eq!(after_two(|| nix::errno::Errno::EINTR), 3);
    let mut calls = 0;
    let failed: io::Result<()> = retry(|| {
        calls += 1;
        Err(io::Error::other("the disk"))
    });
    assert_eq!((failed.unwrap_err().to_string().as_str(), calls), ("the disk", 1));
}

/// A signal cannot be made to interrupt each of these calls, so the test reads the source.
#[test]
fn every_call_that_a_signal_may_interrupt_is_repeated() {
    const CALLS: [&str; 21] = [
        ".flush_range(",
        ".advise(",
        ".advise_range(",
        "advise_range(",
        ".map_raw(",
        ".map_raw_read_only(",
        "::mlock(",
        "::munlock(",
        "fcntl(&",
        "fs::create_dir",
        "fs::rename(",
        "fs::remove_",
        "::open(dir",
        "::open(path",
        "fs::stat",
        "fs::fstat(",
        "fs::linkat(",
        "fs::renameat_with(",
        "::pread(",
        "fs::fadvise(",
        "fs::fallocate(",
    ];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/os");
    for name in ["descriptor.rs", "file.rs", "lock.rs", "mmap.rs", "mod.rs", "paced_reads.rs"] {
        let text = fs::read_to_string(folder.join(name)).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
            let called = CALLS.iter().any(|call| line.contains(call));
            assert!(
                !called
                    || line.contains("retry(")
                    || line.contains("retry_open(")
                    || line.contains("let set ="),
                "{name}: {line}"
            );
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_files_of_a_process_are_counted() {
    let pid = std::process::id();
    let before = OsVfs.files_of_process(pid).unwrap();
    assert_eq!(before.limit, OsVfs.environment().open_files);
    // Other tests of this process open and close files, but not so many.
    let opened: Vec<_> = (0..300).map(|_| tempfile::tempfile().unwrap()).collect();
    assert!(OsVfs.files_of_process(pid).unwrap().open > before.open + 100);
    drop(opened);
    assert_eq!(OsVfs.files_of_process(u32::MAX), None);
}

/// Returns how many bytes of a file are in memory, by the tool `fincore`; `None` without it.
#[cfg(target_os = "linux")]
fn bytes_in_memory(path: &Path) -> Option<u64> {
    let found = Command::new("fincore").args(["-b", "-n", "-r", "-o", "RES"]).arg(path).output().ok()?;
    String::from_utf8_lossy(&found.stdout).trim().parse().ok()
}

#[cfg(target_os = "linux")]
#[test]
fn an_expected_range_is_fetched_unless_it_is_in_memory() {
    const LEN: u64 = 4 << 20;
    let (_, dir) = temp();
    let (path, file) = file_with(&dir, "segment", &vec![7; LEN as usize]);
    file.sync_all().unwrap();
    let bare = fs::File::open(&path).unwrap();
    // A file system whose reads always wait, or another process that needs memory, gives `false`.
    let was_seen = file::is_in_memory(&bare, 0, LEN);
    assert!(!file::is_in_memory(&bare, 1, LEN), "the last byte does not exist");
    file.expect_read(0, LEN).unwrap();
    file.start_writing(0, LEN).unwrap();
    if !was_seen || bytes_in_memory(&path) != Some(0) {
        eprintln!("not checked: no fincore, or the file system at {} keeps the pages", dir.path().display());
        return;
    }
    assert!(!file::is_in_memory(&bare, 0, LEN));
    file.expect_read(0, LEN).unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    while bytes_in_memory(&path) != Some(LEN) {
        assert!(Instant::now() < end, "{:?} bytes", bytes_in_memory(&path));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(file::is_in_memory(&bare, 0, LEN));
}

#[cfg(target_os = "linux")]
#[test]
fn a_read_once_leaves_the_pages_in_memory_as_they_were() {
    const LEN: usize = 4 << 20;
    let (_, dir) = temp();
    let (path, file) = file_with(&dir, "segment", &vec![7; LEN]);
    file.sync_all().unwrap();
    // Drops the pages, which are clean now.
    file.start_writing(0, LEN as u64).unwrap();
    let offered = read_once::ReadOnce::default().is_offered(&fs::File::open(&path).unwrap());
    if !offered || bytes_in_memory(&path) != Some(0) {
        eprintln!("not checked: no fincore, or the file system at {} keeps the pages", dir.path().display());
        return;
    }
    let mut bytes = vec![0; LEN];
    file.read_exact_once_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7));
    assert_eq!(bytes_in_memory(&path), Some(0));
    file.read_exact_at(&mut vec![0; 4096 * 16], 2 << 20).unwrap();
    let warm = bytes_in_memory(&path).unwrap();
    assert!((16 * 4096..LEN as u64).contains(&warm), "{warm} bytes");
    file.read_exact_once_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes_in_memory(&path), Some(warm));
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes_in_memory(&path), Some(LEN as u64));
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_system_without_reads_once_reads_as_usual() {
    // Source: tmpfs has no `FOP_DONTCACHE`.
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
    let path = dir.path().join("segment");
    let file = OsVfs.create_new(&path).unwrap();
    file.write_all_at(b"0123456789", 0).unwrap();
    for _ in 0..2 {
        let mut bytes = [0; 4];
        assert_eq!(file.read_once_at(&mut bytes, 3).unwrap(), 4);
        assert_eq!(&bytes, b"3456");
        assert_eq!(file.read_once_at(&mut bytes, 8).unwrap(), 2);
        assert_eq!(file.read_once_at(&mut bytes, 10).unwrap(), 0);
    }
    assert_eq!(file.read_exact_once_at(&mut [0; 4], 8).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

/// A writer that made this many steps of syncs.
#[cfg(target_os = "linux")]
#[derive(Debug)]
struct Steps(Arc<crate::sync::AtomicU64>);

#[cfg(target_os = "linux")]
impl crate::SyncSource for Steps {
    fn counts(&self) -> Option<crate::SyncCounts> {
        let steps = self.0.load(crate::sync::Ordering::SeqCst);
        Some(crate::SyncCounts { steps, ..crate::SyncCounts::default() })
    }
}

#[cfg(target_os = "linux")]
#[test]
fn while_a_writer_syncs_reads_from_the_disk_have_a_pace_and_others_do_not_wait() {
    use crate::sync::{AtomicU64, Ordering};
    use crate::{Clock, ManualClock, ReadPace};

    const LEN: usize = 4 << 20;
    const PIECE: usize = 128 << 10;
    let (_, dir) = temp();
    let (path, file) = file_with(&dir, "segment", &vec![7; LEN]);
    file.sync_all().unwrap();
    let (clock, steps) = (Arc::new(ManualClock::new(0)), Arc::new(AtomicU64::new(0)));
    let pace =
        Arc::new(ReadPace::new(Arc::<ManualClock>::clone(&clock), Box::new(Steps(Arc::clone(&steps)))));
    file.pace_reads(&pace);
    let mut bytes = vec![0; LEN];
    file.start_writing(0, LEN as u64).unwrap();
    if bytes_in_memory(&path) != Some(0) {
        eprintln!("not checked: no fincore, or the file system at {} keeps the pages", dir.path().display());
        return;
    }
    // No writer syncs: a read returns all bytes.
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), LEN);
    assert!(file.read_once_at(&mut bytes, 0).is_ok());
    steps.store(2, Ordering::SeqCst);
    clock.advance(Duration::from_millis(10));
    // Bytes in memory need no turn, piece by piece.
    let start = clock.monotonic();
    for _ in 0..2 {
        bytes.fill(0);
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7));
        file.read_exact_once_at(&mut bytes, 0).unwrap();
    }
    assert_eq!((pace.waits(), clock.monotonic()), ((0, Duration::ZERO), start));
    file.start_writing(0, LEN as u64).unwrap();
    // Nothing is fetched in advance: neither on request, nor with the bytes of a read.
    file.expect_read(0, LEN as u64).unwrap();
    assert_eq!(bytes_in_memory(&path), Some(0));
    bytes.fill(0);
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), PIECE);
    assert_eq!(file.read_at(&mut bytes[PIECE..], PIECE as u64).unwrap(), PIECE);
    assert_eq!(bytes_in_memory(&path), Some(2 * PIECE as u64));
    assert_eq!(pace.waits().0, 1, "the second one waited for the first");
    // A read that begins in memory returns these bytes, and the next one waits.
    assert_eq!(file.read_at(&mut bytes, PIECE as u64 + 4096).unwrap(), PIECE - 4096);
    assert_eq!(pace.waits().0, 1);
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7));
    assert_eq!(pace.waits().0, 31);
    assert_eq!(file.read_new(LEN, 0).unwrap(), bytes);
    assert_eq!(pace.waits().0, 31, "the pages are in memory now");
    assert_eq!(clock.monotonic().saturating_sub(start), pace.waits().1);
    // After the end of the file, a read waits for nothing.
    assert_eq!(file.read_at(&mut bytes, LEN as u64).unwrap(), 0);
    assert_eq!(pace.waits().0, 31);
    // The writer ends.
    clock.advance(Duration::from_secs(3));
    file.read_at(&mut bytes, 0).unwrap();
    clock.advance(Duration::from_millis(10));
    file.start_writing(0, LEN as u64).unwrap();
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), LEN);
    assert_eq!(pace.waits().0, 31);
    file.start_writing(0, LEN as u64).unwrap();
    file.expect_read(0, LEN as u64).unwrap();
    assert!(bytes_in_memory(&path).unwrap() > 0);
}
