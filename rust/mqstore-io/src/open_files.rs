//! The files that this process keeps open between two uses, and their release.
//!
//! A process can have a limited number of open files (`RLIMIT_NOFILE`), of maps and of threads. [`OpenFiles`] knows
//! everything that keeps files open only to be faster: the caches of all stores, and the segments. Together they keep
//! at most a share of the limit. A system call that finds no free descriptor, and one that finds no memory for a map or
//! a thread, releases all of them that are not in use and runs again ([`retry_scarce`]). If it still fails, other parts
//! of the process use up the limit, and the caller gets the error.
//!
//! Across threads: a release only tries locks, because the thread that needs a descriptor may hold one of them.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;

/// How often a call is repeated. Other threads can take a released descriptor before the call does.
const TRIES: u32 = 6;

/// Minimum and maximum number of segments that stay open. In between it is an eighth of the share of the process.
const SEGMENTS: (usize, usize) = (8, 64);

/// Whether a call failed because the process, or the system, has too many open files. No write and no sync fails so.
pub fn is_out_of_files(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Whether a call failed because descriptors, memory, maps or threads are used up. A later call can succeed.
pub fn is_out_of_resources(error: &io::Error) -> bool {
    is_out_of_files(error) || matches!(Errno::from_io_error(error), Some(Errno::NOMEM | Errno::AGAIN))
}

/// Repeats a call that opens a file, maps one or starts a thread while the resource for it is used up; see
/// `OpenFiles::retry`. Not for writes and syncs: their failure must not be hidden by a repetition.
pub fn retry_scarce<T>(call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    OpenFiles::of_this_process().retry(call)
}

/// A value that keeps files or maps for later uses.
pub trait KeepsFiles: Debug + Send + Sync {
    /// Closes the files and drops the maps that are not in use; returns their number. Never waits for a lock.
    fn release(&self) -> usize;

    /// Whether a file is open or mapped.
    fn keeps_files(&self) -> bool;
}

/// The files that one process keeps open.
#[derive(Debug, Default)]
pub struct OpenFiles {
    caches: Mutex<Vec<Weak<dyn KeepsFiles>>>,
    /// Segments that opened their descriptor, the oldest first.
    segments: Mutex<VecDeque<Weak<dyn KeepsFiles>>>,
    /// Sum of the files that all caches want to keep.
    wanted: AtomicUsize,
}

/// The files of one process, and after a fork those of the child.
#[derive(Debug)]
struct ProcessList {
    pid: u32,
    files: OpenFiles,
    child: OnceLock<Box<ProcessList>>,
}

/// The part of the process's open files that a cache can use.
#[derive(Debug)]
pub struct OpenFileShare {
    files: Option<&'static OpenFiles>,
    wanted: usize,
    most: usize,
}

impl OpenFiles {
    /// Returns the files of this process. A forked child begins with an empty list: another thread of the parent may
    /// have held a lock of the parent's list during the fork, and in the child it is never released.
    pub fn of_this_process() -> &'static Self {
        static FIRST: OnceLock<Box<ProcessList>> = OnceLock::new();
        let pid = std::process::id();
        let mut place = &FIRST;
        loop {
            let process = place.get_or_init(|| {
                Box::new(ProcessList { pid, files: OpenFiles::default(), child: OnceLock::new() })
            });
            if process.pid == pid {
                return &process.files;
            }
            place = &process.child;
        }
    }

    /// Adds a cache that wants to keep `wanted` files, in a process whose caches may keep `most` files. If all of them
    /// want more, the other caches release their files and get smaller parts.
    pub fn add_cache(
        &'static self,
        cache: Weak<dyn KeepsFiles>,
        wanted: usize,
        most: usize,
    ) -> OpenFileShare {
        let others: Vec<_> = {
            let mut caches = self.caches.lock();
            let others = caches.iter().filter_map(Weak::upgrade).collect();
            caches.retain(|cache| cache.strong_count() > 0);
            caches.push(cache);
            others
        };
        if self.wanted.fetch_add(wanted, Ordering::Relaxed) + wanted > most {
            // Their parts are smaller now.
            for other in others {
                other.release();
            }
        }
        OpenFileShare { files: Some(self), wanted, most: most.max(1) }
    }

    /// Notes that a segment has opened its descriptor, in a process whose caches may keep `most` files. Releases older
    /// segments if there are too many.
    pub fn note_segment(&self, segment: Weak<dyn KeepsFiles>, most: usize) {
        let (few, many) = SEGMENTS;
        let excess = {
            let mut segments = self.segments.lock();
            segments.push_back(segment);
            let excess = segments.len().saturating_sub((most / 8).clamp(few, many));
            // A segment in use goes back to the end of the list. The next call then takes two, so the list gets
            // shorter.
            segments.drain(..excess.min(2)).collect::<Vec<_>>()
        };
        for oldest in excess {
            if oldest.upgrade().is_some_and(|segment| segment.release() == 0 && segment.keeps_files()) {
                self.segments.lock().push_back(oldest);
            }
        }
    }

    /// Repeats `call` while it finds a resource used up. Before each repetition it releases everything that is not in
    /// use. If there is nothing, it waits for other threads to finish with their files, 63 milliseconds in total.
    fn retry<T>(&self, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        for attempt in 0..TRIES {
            match call() {
                Err(error) if is_out_of_resources(&error) => {
                    if self.release() == 0 {
                        std::thread::sleep(Duration::from_millis(1 << attempt));
                    }
                }
                result => return result,
            }
        }
        call()
    }

    /// Releases everything that is not in use; returns the number of files and maps.
    pub fn release(&self) -> usize {
        // Not released under a lock of the list: the last reference to a cache or a segment may end here.
        let caches: Vec<_> = self.caches.lock().iter().filter_map(Weak::upgrade).collect();
        let segments = std::mem::take(&mut *self.segments.lock());
        let mut released: usize = caches.iter().map(|cache| cache.release()).sum();
        for segment in segments {
            let Some(kept) = segment.upgrade() else { continue };
            released += kept.release();
            if kept.keeps_files() {
                self.segments.lock().push_back(segment);
            }
        }
        released
    }
}

impl OpenFileShare {
    /// The share of a cache in a process without a limit.
    pub fn unlimited(wanted: usize) -> Self {
        Self { files: None, wanted, most: usize::MAX }
    }

    /// Returns the number of files that the cache may keep now: as many as it wants, or its part of the process's share
    /// if all caches together want more.
    pub fn capacity(&self) -> usize {
        let sum = self.files.map_or(0, |files| files.wanted.load(Ordering::Relaxed));
        let part = if sum <= self.most { self.wanted } else { self.wanted.saturating_mul(self.most) / sum };
        part.max(1)
    }
}

impl Drop for OpenFileShare {
    fn drop(&mut self) {
        if let Some(files) = self.files {
            files.wanted.fetch_sub(self.wanted, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[derive(Debug)]
    struct Kept {
        open: AtomicBool,
        in_use: bool,
    }

    impl Kept {
        fn new(in_use: bool) -> Arc<Self> {
            Arc::new(Self { open: AtomicBool::new(true), in_use })
        }

        fn weak(self: &Arc<Self>) -> Weak<dyn KeepsFiles> {
            let weak: Weak<Self> = Arc::downgrade(self);
            weak
        }
    }

    impl KeepsFiles for Kept {
        fn release(&self) -> usize {
            usize::from(!self.in_use && self.open.swap(false, Ordering::Relaxed))
        }

        fn keeps_files(&self) -> bool {
            self.open.load(Ordering::Relaxed)
        }
    }

    fn files() -> &'static OpenFiles {
        Box::leak(Box::default())
    }

    #[test]
    fn caches_divide_the_share_of_the_process() {
        let files = files();
        let (a, b) = (Kept::new(false), Kept::new(false));
        let first = files.add_cache(a.weak(), 120, 160);
        assert_eq!(first.capacity(), 120);
        let second = files.add_cache(b.weak(), 360, 160);
        assert_eq!((first.capacity(), second.capacity()), (40, 120));
        assert!(!a.keeps_files(), "its files may be more than its new part");
        let tiny = files.add_cache(b.weak(), 1, 160);
        assert_eq!(tiny.capacity(), 1, "each cache keeps at least one file");
        drop((second, tiny));
        assert_eq!(first.capacity(), 120);
    }

    #[test]
    fn a_release_reaches_all_that_is_not_in_use() {
        let files = files();
        let kept = [Kept::new(false), Kept::new(true), Kept::new(false), Kept::new(true)];
        let _share = files.add_cache(kept[0].weak(), 1, 9);
        let _other = files.add_cache(kept[1].weak(), 1, 9);
        files.note_segment(kept[2].weak(), 999);
        files.note_segment(kept[3].weak(), 999);
        drop(files.add_cache(Kept::new(false).weak(), 1, 9));
        assert_eq!(files.release(), 2);
        assert_eq!(files.release(), 0);
        assert_eq!(files.segments.lock().len(), 1, "the closed segment is forgotten");
    }

    #[test]
    fn at_most_so_many_segments_stay_open() {
        let files = files();
        let in_use = Kept::new(true);
        files.note_segment(in_use.weak(), 80);
        let segments: Vec<_> = (0..100).map(|_| Kept::new(false)).collect();
        for segment in &segments {
            files.note_segment(segment.weak(), 80);
            assert!(files.segments.lock().len() <= 11);
        }
        assert!(segments.iter().filter(|segment| segment.keeps_files()).count() >= 8);
        assert!(in_use.keeps_files());
    }

    #[test]
    fn a_call_without_a_free_resource_runs_again_after_a_release() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN] {
            let (files, kept) = (files(), Kept::new(false));
            let _share = files.add_cache(kept.weak(), 1, 9);
            let opened = files.retry(|| if kept.keeps_files() { Err(errno.into()) } else { Ok(7) });
            assert_eq!(opened.ok(), Some(7), "{errno:?}");
        }
    }

    #[test]
    fn a_resource_that_others_use_up_is_an_error_in_the_end() {
        let mut calls = 0;
        let mut fail = |errno: Errno| {
            calls = 0;
            let failed = files().retry(|| {
                calls += 1;
                Err::<(), io::Error>(errno.into())
            });
            (failed.err().and_then(|error| error.raw_os_error()), calls)
        };
        assert_eq!(fail(Errno::MFILE), (Some(Errno::MFILE.raw_os_error()), TRIES + 1));
        assert_eq!(fail(Errno::NOSPC), (Some(Errno::NOSPC.raw_os_error()), 1));
    }

    #[test]
    fn a_process_has_one_list() {
        assert!(std::ptr::eq(OpenFiles::of_this_process(), OpenFiles::of_this_process()));
    }
}
