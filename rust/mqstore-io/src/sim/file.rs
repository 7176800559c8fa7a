//! An open simulated file, and maps of it.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;

use super::fault_plan::OperationKind;
use super::file_content::{FileData, PAGE};
use super::file_node::FileNode;
use super::shared_state::{DiskState, SharedDisk};
use crate::region::{MapAccess, MapObserver, Region, RegionError};
use crate::vfs::{Access, FileStat, LockHolder, NoSpace, VfsFile};

/// A handle of an open file.
pub(super) struct SimFile {
    pub(super) shared: Arc<SharedDisk>,
    pub(super) node: Arc<FileNode>,
    pub(super) path: Arc<Path>,
    pub(super) access: Access,
}

impl fmt::Debug for SimFile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("SimFile")
            .field("path", &self.path)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

impl SimFile {
    /// Counts the call, injects a fault if one matches, and runs `act` on the content.
    fn with<T>(
        &self,
        kind: OperationKind,
        offset: u64,
        len: u64,
        act: impl FnOnce(&mut DiskState, &mut FileData) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut state = self.shared.next_call();
        state.begin(kind, &self.path, offset, len)?;
        act(&mut state, &mut self.node.data.lock())
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.access == Access::ReadWrite { Ok(()) } else { Err(Errno::BADF.into()) }
    }

    /// Checks that the disk has space for the pages of a range that have none yet.
    fn check_room(&self, state: &DiskState, data: &FileData, offset: u64, len: u64) -> io::Result<()> {
        let (free, needed) = (state.free_pages(&self.node, data), data.unreserved_pages(offset, len));
        if needed <= free { Ok(()) } else { Err(no_space(needed, free)) }
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.shared.next_call();
        let begun = state.begin(OperationKind::Sync, &self.path, 0, 0);
        finish_sync(&mut state, &self.node, 0, u64::MAX, begun)
    }
}

/// Ends a sync: the pages are durable, or dropped if a fault hit the call.
fn finish_sync(
    state: &mut DiskState,
    node: &FileNode,
    offset: u64,
    len: u64,
    begun: io::Result<()>,
) -> io::Result<()> {
    let mut data = node.data.lock();
    let len = len.min(data.len.saturating_sub(offset));
    match begun {
        Ok(()) => data.sync(offset, len),
        Err(_) => data.fail_sync(offset, len, &mut state.rng),
    }
    begun
}

impl VfsFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        self.with(OperationKind::Stat, 0, 0, |_, data| Ok(data.len))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(OperationKind::SetLen, 0, len, |state, data| {
            self.check_writable()?;
            if len < data.len && data.memory.sharers() > 0 {
                state.violate(format!(
                    "{}: cut to {len} bytes while it is mapped or viewed",
                    self.path.display()
                ));
                let text = "the simulation does not cut a mapped file: a real one would kill the process";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
            state.touch(data);
            data.set_len(len)
        })
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.with(OperationKind::Allocate, 0, len, |state, data| {
            self.check_writable()?;
            self.check_room(state, data, 0, len)?;
            state.touch(data);
            data.allocate(len)
        })
    }

    fn allocate_range(&self, offset: u64, len: u64) -> io::Result<()> {
        self.with(OperationKind::Allocate, offset, len, |state, data| {
            self.check_writable()?;
            if offset.checked_add(len).is_none_or(|end| end > data.len) {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "not within the length of the file"));
            }
            self.check_room(state, data, offset, len)?;
            data.allocate_range(offset, len);
            Ok(())
        })
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.with(OperationKind::Read, offset, buf.len() as u64, |_, data| data.read(buf, offset))
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.check_writable()?;
        let mut state = self.shared.next_call();
        let begun = state.begin(OperationKind::Write, &self.path, offset, buf.len() as u64);
        let mut data = self.node.data.lock();
        state.touch(&mut data);
        if let Err(error) = begun {
            let written = state.rng.below(buf.len() as u64 + 1) as usize;
            // The write fails with the fault's error in any case.
            let _ = data.write(buf.get(..written).unwrap_or_default(), offset);
            return Err(error);
        }
        let mut free = state.free_pages(&self.node, &data);
        for (at, part) in pages_of(buf, offset) {
            let needed = data.unreserved_pages(at, part.len() as u64);
            if needed > free {
                return Err(no_space(needed, free));
            }
            free -= needed;
            data.write(part, at)?;
        }
        state.last_write = Some((self.node.id, offset, buf.len() as u64));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync()
    }

    fn lock_holder(&self) -> io::Result<Option<LockHolder>> {
        self.with(OperationKind::Lock, 0, 0, |_, _| Ok(self.node.lock_holder()))
    }

    fn set_modified_ms(&self, modified_ms: i64) -> io::Result<()> {
        self.with(OperationKind::SetLen, 0, 0, |_, data| {
            self.check_writable()?;
            data.modified_ms = modified_ms;
            Ok(())
        })
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.with(OperationKind::Stat, 0, 0, |_, _| Ok(()))?;
        Ok(self.node.stat())
    }

    fn next_data(&self, from: u64) -> io::Result<Option<u64>> {
        self.with(OperationKind::Stat, from, 0, |_, data| Ok(data.next_data(from)))
    }

    fn map(&self, offset: u64, len: usize, access: MapAccess) -> io::Result<Region> {
        self.with(OperationKind::Map, offset, len as u64, |_, data| {
            let inside = offset.checked_add(len as u64).is_some_and(|end| end <= data.len);
            if len == 0 || !offset.is_multiple_of(PAGE as u64) || !inside {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "not whole pages within the file"));
            }
            if access == MapAccess::ReadWrite && self.access == Access::Read {
                return Err(Errno::ACCESS.into());
            }
            let observer = SimMap {
                shared: Arc::clone(&self.shared),
                node: Arc::clone(&self.node),
                path: Arc::clone(&self.path),
                offset,
            };
            Ok(data.memory.observed(offset as usize, len, access, Arc::new(observer))?)
        })
    }
}

/// Returns the error of a call that needs more pages than are free.
fn no_space(needed: u64, free: u64) -> io::Error {
    NoSpace::explain(Errno::NOSPC.into(), needed * PAGE as u64, || Some(free * PAGE as u64))
}

/// Splits bytes at `offset` at page borders; returns each part with its offset.
fn pages_of(buf: &[u8], offset: u64) -> impl Iterator<Item = (u64, &[u8])> {
    let mut rest = buf;
    let mut at = offset;
    std::iter::from_fn(move || {
        let count = (PAGE - (at % PAGE as u64) as usize).min(rest.len());
        let (part, after) = rest.split_at_checked(count).filter(|(part, _)| !part.is_empty())?;
        let start = at;
        rest = after;
        at = at.saturating_add(count as u64);
        Some((start, part))
    })
}

/// The observer of a map, for its file.
struct SimMap {
    shared: Arc<SharedDisk>,
    node: Arc<FileNode>,
    path: Arc<Path>,
    /// The offset of the map in the file.
    offset: u64,
}

impl fmt::Debug for SimMap {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("SimMap")
            .field("path", &self.path)
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

impl MapObserver for SimMap {
    fn write(&self, at: usize, len: usize, copy: &mut dyn FnMut()) -> Result<(), RegionError> {
        let (offset, len) = (self.offset + at as u64, len as u64);
        let mut state = self.shared.next_call();
        // The call is counted and recorded. No fault hits a store to memory.
        let _ = state.begin(OperationKind::MapWrite, &self.path, offset, len);
        let mut data = self.node.data.lock();
        state.touch(&mut data);
        copy();
        state.last_write = Some((self.node.id, offset, len));
        if !data.touched(offset, len) {
            state.violate(format!(
                "{}: a map was written where the file has no room, at {offset}",
                self.path.display()
            ));
        }
        Ok(())
    }

    fn flush(&self, at: usize, len: usize) -> io::Result<()> {
        let (offset, len) = (self.offset + at as u64, len as u64);
        let mut state = self.shared.next_call();
        let begun = state.begin(OperationKind::MapFlush, &self.path, offset, len);
        finish_sync(&mut state, &self.node, offset, len, begun)
    }
}
