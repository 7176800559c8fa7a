//! A remote file system over a source in memory.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::pages::PAGE_BYTES;
use super::*;
use crate::region::MapAccess;
use crate::vfs::FileKind;

/// Files in memory; counts the ranges that it reads.
#[derive(Debug, Default)]
struct Memory {
    files: Vec<(&'static str, Vec<u8>)>,
    ranges: AtomicUsize,
    bytes: AtomicUsize,
    started: AtomicUsize,
    fails: AtomicBool,
    /// Whether started reads fail.
    fails_late: AtomicBool,
    short: AtomicBool,
}

impl RemoteSource for Memory {
    fn list(&self) -> Result<Vec<RemoteEntry>, RemoteError> {
        let entry = |(path, bytes): &(&str, Vec<u8>)| RemoteEntry {
            path: (*path).to_owned(),
            len: bytes.len() as u64,
            modified_ms: 7,
            version: "v".to_owned(),
        };
        Ok(self.files.iter().map(entry).collect())
    }

    fn read(&self, ranges: &[RemoteRange<'_>]) -> Result<Vec<RangeBytes>, RemoteError> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(denied());
        }
        let read = |range: &RemoteRange<'_>| {
            let (_, bytes) = self.files.iter().find(|(path, _)| *path == range.path).unwrap();
            self.ranges.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(range.len as usize, Ordering::Relaxed);
            let mut part = bytes[range.start as usize..(range.start + range.len) as usize].to_vec();
            if self.short.load(Ordering::Relaxed) {
                part.pop();
            }
            Box::new(part) as RangeBytes
        };
        Ok(ranges.iter().map(read).collect())
    }

    fn start(&self, range: &RemoteRange<'_>) -> Result<Box<dyn PendingRange>, RemoteError> {
        self.started.fetch_add(1, Ordering::Relaxed);
        let answer = self.read(&[*range]).map(|mut parts| parts.remove(0));
        let answer = if self.fails_late.load(Ordering::Relaxed) { Err(denied()) } else { answer };
        Ok(Box::new(Ready(answer)))
    }
}

/// A read that has ended.
struct Ready(Result<RangeBytes, RemoteError>);

impl PendingRange for Ready {
    fn wait(self: Box<Self>) -> Result<RangeBytes, RemoteError> {
        self.0
    }
}

fn denied() -> RemoteError {
    RemoteError { cause: RemoteCause::Denied, path: PathBuf::from("s3://b/s/a"), reason: "no".to_owned() }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

fn remote(files: Vec<(&'static str, Vec<u8>)>) -> (RemoteVfs, Arc<Memory>) {
    let memory = Arc::new(Memory { files, ..Memory::default() });
    (RemoteVfs::open(Path::new("s3://b/s"), Arc::clone(&memory) as Arc<dyn RemoteSource>).unwrap(), memory)
}

fn names(vfs: &RemoteVfs, path: &str) -> Vec<String> {
    vfs.list(Path::new(path)).unwrap().iter().map(|entry| entry.name.to_string_lossy().into_owned()).collect()
}

#[test]
fn the_files_of_a_list_form_folders() {
    let (vfs, _) = remote(vec![
        ("commitlog/00", vec![1; 5]),
        ("a/b/c", vec![]),
        ("a/b", vec![2]),
        ("a/d", vec![3; 2]),
        ("x", vec![4; 3]),
    ]);
    assert_eq!(names(&vfs, "s3://b/s"), ["a", "commitlog", "x"]);
    assert_eq!(names(&vfs, "s3://b/s/a"), ["b", "d"]);
    assert_eq!(names(&vfs, "s3://b/s/a/b"), ["c"]);
    let kind = |path: &str| vfs.stat(Path::new(path)).map(|stat| (stat.kind, stat.len)).ok();
    assert_eq!(kind("s3://b/s"), Some((FileKind::Directory, 0)));
    assert_eq!(kind("s3://b/s/a/b"), Some((FileKind::Directory, 0)));
    assert_eq!(kind("s3://b/s/x"), Some((FileKind::File, 3)));
    assert_eq!(kind("s3://b/s/y"), None);
    assert_eq!(kind("s3://b"), None, "outside of the root");
    assert!(vfs.list(Path::new("s3://b/s/x")).is_err());
    assert!(vfs.open(Path::new("s3://b/s/a"), Access::Read).is_err());
    assert!(vfs.open(Path::new("s3://b/s/x"), Access::ReadWrite).is_err());
}

#[test]
fn an_empty_list_is_a_missing_folder_and_a_file_can_be_the_root() {
    let (vfs, _) = remote(vec![]);
    assert_eq!(vfs.list(Path::new("s3://b/s")).unwrap_err().kind(), io::ErrorKind::NotFound);
    let (vfs, _) = remote(vec![("", vec![1, 2])]);
    assert_eq!(vfs.read_file(Path::new("s3://b/s"), 9).unwrap(), [1, 2]);
}

#[test]
fn reads_return_the_bytes_of_the_file_wherever_they_begin() {
    let bytes = pattern(3 * PAGE_BYTES as usize + 77);
    let (vfs, memory) = remote(vec![("f", bytes.clone())]);
    let file = vfs.open(Path::new("s3://b/s/f"), Access::Read).unwrap();
    assert_eq!(file.len().unwrap(), bytes.len() as u64);
    let page = PAGE_BYTES as usize;
    for (at, len) in [(0, 1), (page - 1, 2), (5, 2 * page), (3 * page, 77), (0, bytes.len())] {
        let mut read = vec![0; len];
        file.read_exact_at(&mut read, at as u64).unwrap();
        assert_eq!(read, &bytes[at..at + len], "{len} bytes at {at}");
    }
    assert_eq!(memory.bytes.load(Ordering::Relaxed), bytes.len(), "each page was fetched once");
    assert_eq!(file.read_at(&mut [0; 9], bytes.len() as u64).unwrap(), 0);
    assert_eq!(file.read_at(&mut [0; 9], bytes.len() as u64 - 1).unwrap(), 1);
    let region = file.map(0, 4096, MapAccess::Read).unwrap();
    assert_eq!(&*region.view(0, 4096).unwrap(), &bytes[..4096]);
    assert!(file.map(bytes.len() as u64, 1, MapAccess::Read).is_err());
}

#[test]
fn a_sequential_read_needs_few_requests_and_a_look_few_bytes() {
    let bytes = pattern(20 << 20);
    let (vfs, memory) = remote(vec![("f", bytes.clone())]);
    let file = vfs.open(Path::new("s3://b/s/f"), Access::Read).unwrap();
    let mut buffer = [0; 20];
    file.read_exact_at(&mut buffer, 7 << 20).unwrap();
    assert_eq!(memory.bytes.load(Ordering::Relaxed), PAGE_BYTES as usize);
    let mut at = 0;
    let mut window = vec![0; 32 << 10];
    while at < bytes.len() {
        at += file.read_at(&mut window, at as u64).unwrap();
    }
    assert!(memory.ranges.load(Ordering::Relaxed) <= 12, "{memory:?}", memory = memory.ranges);
    assert!(memory.bytes.load(Ordering::Relaxed) <= bytes.len() + PAGE_BYTES as usize);
}

#[test]
fn threads_that_need_the_same_page_fetch_it_once() {
    let (vfs, memory) = remote(vec![("f", pattern(4 << 20))]);
    let file = vfs.open(Path::new("s3://b/s/f"), Access::Read).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| file.read_exact_at(&mut vec![0; 4 << 20], 0).unwrap());
        }
    });
    assert_eq!(memory.bytes.load(Ordering::Relaxed), 4 << 20);
}

#[test]
fn the_first_failure_stays_and_is_never_a_missing_file() {
    let (vfs, memory) = remote(vec![("a", vec![1]), ("b", vec![2])]);
    assert!(vfs.failure().is_none());
    let file = vfs.open(Path::new("s3://b/s/a"), Access::Read).unwrap();
    memory.fails.store(true, Ordering::Relaxed);
    let error = file.read_at(&mut [0], 0).unwrap_err();
    assert_eq!(RemoteError::of(&error).unwrap().cause, RemoteCause::Denied);
    memory.fails.store(false, Ordering::Relaxed);
    for error in [
        file.read_at(&mut [0], 0).unwrap_err(),
        file.read_at(&mut [0], 9).unwrap_err(),
        vfs.stat(Path::new("s3://b/s/b")).unwrap_err(),
        vfs.stat(Path::new("s3://b/s/none")).unwrap_err(),
        vfs.failure().unwrap(),
    ] {
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }
}

#[test]
fn a_short_range_is_a_change_of_the_file() {
    let (vfs, memory) = remote(vec![("a", vec![1; 100])]);
    memory.short.store(true, Ordering::Relaxed);
    let error = vfs.read_file(Path::new("s3://b/s/a"), 1000).unwrap_err();
    assert_eq!(RemoteError::of(&error).unwrap().cause, RemoteCause::Changed);
    assert_eq!(RemoteError::of(&error).unwrap().path, Path::new("s3://b/s/a"));
}

#[test]
fn a_long_expected_range_is_fetched_before_it_is_read() {
    let bytes = pattern(20 << 20);
    let (vfs, memory) = remote(vec![("f", bytes.clone())]);
    let file = vfs.open(Path::new("s3://b/s/f"), Access::Read).unwrap();
    file.expect_read(0, 8 << 20).unwrap();
    assert_eq!(memory.started.load(Ordering::Relaxed), 1);
    assert_eq!(memory.bytes.load(Ordering::Relaxed), 8 << 20);
    let mut read = vec![0; 8 << 20];
    file.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(read, bytes[..8 << 20]);
    assert_eq!(memory.ranges.load(Ordering::Relaxed), 1);
    // A short one waits for the next read.
    file.expect_read(10 << 20, 1 << 20).unwrap();
    assert_eq!(memory.ranges.load(Ordering::Relaxed), 1);
}

#[test]
fn a_failure_of_a_started_read_counts_once_its_bytes_are_needed() {
    let (vfs, memory) = remote(vec![("f", pattern(20 << 20))]);
    let file = vfs.open(Path::new("s3://b/s/f"), Access::Read).unwrap();
    memory.fails_late.store(true, Ordering::Relaxed);
    file.expect_read(0, 8 << 20).unwrap();
    file.read_exact_at(&mut [0; 9], 9 << 20).unwrap();
    assert!(vfs.failure().is_none());
    let error = file.read_at(&mut [0; 9], 5).unwrap_err();
    assert_eq!(RemoteError::of(&error).unwrap().cause, RemoteCause::Denied);
    assert!(vfs.failure().is_some());
}

#[test]
fn threads_share_a_started_read() {
    let bytes = pattern(8 << 20);
    let (vfs, memory) = remote(vec![("f", bytes.clone())]);
    let file = vfs.open(Path::new("s3://b/s/f"), Access::Read).unwrap();
    file.expect_read(0, 8 << 20).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut read = vec![0; 8 << 20];
                file.read_exact_at(&mut read, 0).unwrap();
                assert_eq!(read, bytes);
            });
        }
    });
    assert_eq!(memory.bytes.load(Ordering::Relaxed), 8 << 20);
}
