//! The pool: memory that holds new records until they are written to the file.
//!
//! The pool is a ring of bytes with the newest part of the log. An append copies its record to its log offset modulo
//! the ring size. One thread at a time writes the published bytes to the segment, with one system call for all of them.
//! Two modes use it: with `pooled`, the background writes; with `sync`, the leader of a group commit writes for all
//! waiting threads, so that a record costs a copy instead of a system call.
//!
//! ```text
//!          drained               published             drained + capacity
//! in the file │ to be written now    │ free                │
//! ```
//!
//! Across a crash: bytes that are not drained are lost with the process. `sync` acknowledges nothing before it is
//! drained and synced; `pooled` accepts this loss. Across threads: bytes between the drained and the published offset
//! do not change, and a thread that reads them holds the lock `draining`.
//!
//! Source of the idea: `TransientStorePool`, `DefaultMappedFile#commit`.

use std::time::Duration;

use mqstore_io::sync::{AtomicU64, Mutex, MutexGuard, Ordering, Raise};
use mqstore_io::{MappedFileQueue, Region, RegionError};

use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

/// The ring of the pool, as the module describes it.
#[derive(Debug)]
pub(crate) struct Pool {
    memory: Region,
    /// One past the last byte in the file; it may be in the middle of a record.
    written: AtomicU64,
    /// End of the last record that is completely in the file.
    drained: AtomicU64,
    draining: Mutex<()>,
}

impl Pool {
    /// Creates a pool of `bytes`. Its next byte has log offset `position`.
    pub(crate) fn new(files: &StoreFiles, bytes: u64, position: u64) -> Result<Self, StoreError> {
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        let memory = Region::heap(len).at(&files.root, "allocating the memory of the pool")?;
        let [written, drained] = [AtomicU64::new(position), AtomicU64::new(position)];
        Ok(Self { memory, written, drained, draining: Mutex::new(()) })
    }

    /// Maximum bytes in the pool.
    pub(crate) fn capacity(&self) -> u64 {
        self.memory.len() as u64
    }

    /// Drained offset: the end of the last record that is in the file with all records before it.
    pub(crate) fn drained(&self) -> u64 {
        self.drained.load(Ordering::Acquire)
    }

    /// Whether bytes up to `end` fit the pool.
    pub(crate) fn has_space_to(&self, end: u64) -> bool {
        end.saturating_sub(self.written.load(Ordering::Acquire)) <= self.capacity()
    }

    /// Copies `bytes` to the ring for log offset `position`. The caller holds the put lock and has checked that they
    /// fit.
    pub(crate) fn write(&self, position: u64, bytes: &[u8]) -> Result<(), RegionError> {
        let at = (position % self.capacity()) as usize;
        let (first, second) = bytes.split_at(bytes.len().min(self.memory.len() - at));
        self.memory.write(at, first)?;
        if second.is_empty() { Ok(()) } else { self.memory.write(0, second) }
    }

    /// Writes everything up to `position`, which is the end of a published record, to `segments`.
    ///
    /// After an error the caller must stop the log, because the contents of the file are unknown.
    pub(crate) fn drain(&self, segments: &MappedFileQueue, position: u64) -> Result<(), StoreError> {
        if self.drained() >= position {
            return Ok(());
        }
        let draining = self.draining.lock();
        self.drain_held(segments, position, &draining)
    }

    /// Like [`Self::drain`], but returns `false` if another thread held the lock for all of `limit`.
    pub(crate) fn drain_within(
        &self,
        segments: &MappedFileQueue,
        position: u64,
        limit: Duration,
    ) -> Result<bool, StoreError> {
        let Some(draining) = self.draining.try_lock_for(limit) else { return Ok(false) };
        self.drain_held(segments, position, &draining)?;
        Ok(true)
    }

    fn drain_held(
        &self,
        segments: &MappedFileQueue,
        position: u64,
        _draining: &MutexGuard<'_, ()>,
    ) -> Result<(), StoreError> {
        let mut from = self.written.load(Ordering::Acquire);
        while from < position {
            from = self.drain_piece(segments, from, position)?;
            self.written.store(from, Ordering::Release);
        }
        // Advances only now, so that readers never find the offset in the middle of a record.
        self.drained.raise(position, Ordering::AcqRel);
        Ok(())
    }

    fn drain_piece(&self, segments: &MappedFileQueue, from: u64, to: u64) -> Result<u64, StoreError> {
        let Some(segment) = segments.find(from) else {
            let missing =
                std::io::Error::new(std::io::ErrorKind::NotFound, format!("no segment holds {from}"));
            return Err(StoreError::io(std::path::Path::new("commitlog"), "writing the log", missing));
        };
        let at = (from % self.capacity()) as usize;
        let len = (to.min(segment.end_offset()) - from).min((self.memory.len() - at) as u64);
        let written = self
            .memory
            .view(at, len as usize)
            .map_err(Into::into)
            .and_then(|bytes| segment.file()?.write_all_at(&bytes, from - segment.base_offset()));
        written.at_file(|| segment.path(), "writing the log")?;
        segment.advance_wrote(from + len - segment.base_offset());
        Ok(from + len)
    }

    /// Notes that the file already holds everything up to `position`. The caller holds the put lock and everything
    /// before is drained.
    pub(crate) fn skip_to(&self, position: u64) {
        let _draining = self.draining.lock();
        self.written.raise(position, Ordering::AcqRel);
        self.drained.raise(position, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use mqstore_io::{FileLength, MapAccess, MappedFile, SimVfs, Vfs};
    use std::sync::Arc;

    use super::*;

    #[test]
    fn bytes_go_round_and_across_segments() {
        let sim = SimVfs::new(mqstore_io::SimOptions::default());
        let vfs: Arc<dyn Vfs> = Arc::new(sim);
        let folder = Path::new("/log");
        vfs.create_dir_all(folder).unwrap();
        for base in [0_u64, 4096] {
            let name = mqstore_format::offset_file_name(base);
            let file = MappedFile::stage(&vfs, &folder.join("tmp"), base, 4096, 4096).unwrap();
            file.name(&folder.join(name)).unwrap();
        }
        let (segments, _) =
            MappedFileQueue::load(&vfs, folder, FileLength::Expected(4096), MapAccess::ReadWrite).unwrap();
        let files = StoreFiles::new(Arc::clone(&vfs), Arc::new(mqstore_io::ManualClock::new(0)), folder);
        let pool = Pool::new(&files, 1000, 0).unwrap();
        let mut position = 0;
        while position + 300 <= 8192 {
            let bytes: Vec<u8> = (position..position + 300).map(|at| (at % 251) as u8).collect();
            assert!(pool.has_space_to(position + 300));
            pool.write(position, &bytes).unwrap();
            position += 300;
            pool.drain(&segments, position).unwrap();
        }
        let snapshot = segments.snapshot();
        let mut found = vec![0; 8192];
        snapshot[0].file().unwrap().read_exact_at(&mut found[..4096], 0).unwrap();
        snapshot[1].file().unwrap().read_exact_at(&mut found[4096..], 0).unwrap();
        let wanted: Vec<u8> = (0..position).map(|at| (at % 251) as u8).collect();
        assert_eq!(found[..position as usize], wanted);
        assert!(!pool.has_space_to(position + 1001));

        // While another thread writes the pool, a caller waits no longer than its limit.
        let stalled = pool.draining.lock();
        assert!(!pool.drain_within(&segments, position, Duration::from_millis(20)).unwrap());
        drop(stalled);
        assert!(pool.drain_within(&segments, position, Duration::from_millis(20)).unwrap());
    }
}
