//! A range of a file in memory, and views that keep it there.
//!
//! [`Region`] is one concrete type for real and simulated files: a base pointer, a length and a backing that can flush.
//! The backing is a shared map of a file (`os/mmap.rs`), the heap pages of a simulated file, or plain memory
//! ([`Region::heap`]). So the code that needs `unsafe`, which copies bytes and creates views, is the same in production
//! and under simulation. [`Region`] has the rule that makes it sound.

#![expect(unsafe_code, reason = "the one place that maps bytes of files to memory")]

use std::alloc::Layout;
use std::fmt;
use std::io;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

mod observed_region;
#[cfg(test)]
mod tests;

pub(crate) use observed_region::MapObserver;

/// The access mode of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapAccess {
    /// Shared pages that cannot be written through the map.
    Read,
    /// Shared pages; the file must have been opened [`Access::ReadWrite`](crate::vfs::Access::ReadWrite).
    ReadWrite,
}

/// The reason why bytes of a region could not be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// The range ends after the end of the region.
    #[error("bytes {at} to {at}+{len} are outside a region of {region_len} bytes")]
    OutOfBounds {
        /// The first byte of the range.
        at: usize,
        /// The length of the range.
        len: usize,
        /// Length of the region.
        region_len: usize,
    },
    /// A write to a region mapped for reading.
    #[error("the region is mapped for reading only")]
    ReadOnly,
    /// An atomic change of a number at an unaligned position.
    #[error("byte {at} is not aligned for an atomic change of a number")]
    NotAligned {
        /// The first byte of the number.
        at: usize,
    },
    /// A write after a crash that a test injected; see [`crate::faults`].
    #[error("the write was dropped: a test injected a crash")]
    Stopped,
}

impl From<RegionError> for io::Error {
    fn from(error: RegionError) -> Self {
        let kind = match error {
            RegionError::OutOfBounds { .. } | RegionError::NotAligned { .. } => io::ErrorKind::InvalidInput,
            RegionError::ReadOnly => io::ErrorKind::PermissionDenied,
            RegionError::Stopped => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// A hint to the kernel about the pages of a range. No hint changes a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Read them ahead, in the background.
    WillNeed,
    /// Do not read ahead.
    Random,
    /// Read far ahead, and drop pages that were read.
    Sequential,
    /// Return the memory to the system; the next access reads again. Written bytes are not lost.
    DontNeed,
    /// Fault in the pages for writes now, so that later writes do not wait for the disk. If the kernel has no such
    /// call, each page is touched without a change. On a full disk, an unallocated page is an error here, while a later
    /// write would be a signal. Needs a writable region.
    PopulateWrite,
}

/// The owner of a region's memory, which also writes it to the disk.
///
/// Offsets count from the base of the region that was created with this backing.
pub(crate) trait Backing: Send + Sync + fmt::Debug {
    /// Makes a range durable.
    fn flush(&self, at: usize, len: usize) -> io::Result<()>;
    /// Passes a hint to the kernel. The range is in the region and not empty.
    fn advise(&self, at: usize, len: usize, advice: Advice) -> io::Result<()>;
    /// Pins a range in memory, or releases it.
    fn set_locked(&self, at: usize, len: usize, locked: bool) -> io::Result<()>;
    /// Called instead of a plain copy if the region is observed. Calls `copy` once, or fails.
    fn observe(&self, _at: usize, _len: usize, copy: &mut dyn FnMut()) -> Result<(), RegionError> {
        copy();
        Ok(())
    }
}

/// A range of bytes of a file, in memory; a clone is another handle to the same bytes.
///
/// # The rule that makes it sound
///
/// A region has *published* bytes and others. Its owner keeps the border between them.
///
/// ```text
/// 0 ........................ published ........................ len
///   never change again          │   reached by the one writer of
///   views may be handed out     │   that range, through copies only
/// ```
///
/// * **Published bytes never change** while a view of them exists. Call [`Region::view`] only for published ranges;
///   then the view is a sound `&[u8]`.
/// * **Unpublished bytes** belong to one thread per range. It fills them with [`Region::write`], which copies through
///   raw pointers and never creates a reference. Threads can fill disjoint ranges at the same time.
/// * **Publication** is a release store of the border, in an atomic of the owner. A thread loads the border with
///   acquire before it takes a view. Other processes have no such atomic. For them, the writer stores the first field
///   of a record last, with [`Region::store_u32_be_release`], and they check what they read.
/// * **Bytes that change in place** (index slots, checkpoint, `live`) have no views. Threads read and write them as
///   values, under the owner's lock, or with the `store_`/`load_` pairs without a lock.
/// * No process truncates a mapped file: an access to a page after the end is a signal, not an error.
///
/// If the rule is broken, readers get torn bytes. Bounds are always checked, so no access leaves the memory of the
/// region.
#[derive(Clone)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    /// Whether writes go through [`Backing::observe`]; only in tests.
    observed: bool,
    backing: Arc<dyn Backing>,
}

// SAFETY: the bytes live as long as the backing, which any thread can drop. Accesses follow the rule in the
// documentation of `Region`.
unsafe impl Send for Region {}
// SAFETY: as for Send; shared handles write through raw pointers to disjoint ranges only.
unsafe impl Sync for Region {}

impl fmt::Debug for Region {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Region")
            .field("len", &self.len)
            .field("writable", &self.writable)
            .finish_non_exhaustive()
    }
}

impl Region {
    /// Creates a region over memory with another owner.
    ///
    /// # Safety
    ///
    /// `base` to `base + len` must stay readable, and writable if `access` says so, at that address until `backing` is
    /// dropped. Every access to these bytes must follow the rule of [`Region`].
    pub(crate) unsafe fn from_raw(
        base: NonNull<u8>,
        len: usize,
        access: MapAccess,
        backing: Arc<dyn Backing>,
    ) -> Self {
        Self { base, len, writable: access == MapAccess::ReadWrite, observed: false, backing }
    }

    /// Allocates `len` zero bytes of plain memory, without a file. A flush does nothing. For buffers that are written
    /// to a file later. Returns `OutOfMemory` if the memory is not available.
    pub fn heap(len: usize) -> io::Result<Self> {
        let heap = Heap::new(len)?;
        Ok(Self { base: heap.base, len, writable: true, observed: false, backing: Arc::new(heap) })
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the region has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether a view of the region, or another handle to it, exists.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.backing) > 1
    }

    /// Returns whether writes are allowed.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Copies `bytes` to position `at`. The caller owns this unpublished range.
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), RegionError> {
        let target = self.writable(at, bytes.len())?;
        self.change(at, bytes.len(), || {
            // SAFETY: `target` has room for the bytes (checked above), and they cannot overlap it, because a published
            // byte is never in a range that is still written.
            unsafe { target.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
        })
    }

    /// Sets `len` bytes from `at` to `byte`. The caller owns this unpublished range.
    pub fn fill(&self, at: usize, len: usize, byte: u8) -> Result<(), RegionError> {
        let target = self.writable(at, len)?;
        self.change(at, len, || {
            // SAFETY: `target` has room for `len` bytes (checked above) and they are the caller's.
            unsafe { target.as_ptr().write_bytes(byte, len) }
        })
    }

    /// Copies `out.len()` bytes from position `at`. They are published, or under the caller's lock.
    #[inline]
    pub fn read(&self, at: usize, out: &mut [u8]) -> Result<(), RegionError> {
        let source = self.range(at, out.len())?;
        // SAFETY: the source range is inside (checked above), and `out` is the caller's alone.
        unsafe { source.as_ptr().copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Returns a view of bytes `at` to `at + len` without a copy. They must be published: the caller promises that they
    /// never change while the view, or a clone or slice of it, exists. The view keeps the map alive, even after the
    /// region, the file and its name are gone.
    #[inline]
    pub fn view(&self, at: usize, len: usize) -> Result<RegionView, RegionError> {
        let base = self.range(at, len)?;
        Ok(RegionView { base, len, backing: Arc::clone(&self.backing) })
    }

    /// Stores a big-endian `u32` at position `at`. A reader that sees the value, in this process or in another that
    /// maps the file, also sees every earlier write of this thread. It is one store if `at` is a multiple of 4.
    /// Otherwise the bytes are stored one by one, and a reader may see a mixture of old and new bytes. RocketMQ's
    /// records start at any offset, so the reader must check the bytes that follow.
    #[inline]
    pub fn store_u32_be_release(&self, at: usize, value: u32) -> Result<(), RegionError> {
        let target = self.writable(at, 4)?;
        self.change(at, 4, || {
            if let Some(cell) = aligned::<AtomicU32>(target) {
                // SAFETY: inside, aligned, and reached concurrently by atomic loads only.
                let cell = unsafe { cell.as_ref() };
                cell.store(value.to_be(), Ordering::Release);
            } else {
                store_bytes_release(target, &value.to_be_bytes());
            }
        })
    }

    /// Stores a big-endian `i64` at position `at`, with the promise of [`Region::store_u32_be_release`]. It is one
    /// store if `at` is a multiple of 8.
    #[inline]
    pub fn store_i64_be_release(&self, at: usize, value: i64) -> Result<(), RegionError> {
        let target = self.writable(at, 8)?;
        self.change(at, 8, || {
            if let Some(cell) = aligned::<AtomicU64>(target) {
                // SAFETY: inside, aligned, and reached concurrently by atomic loads only.
                let cell = unsafe { cell.as_ref() };
                cell.store(value.cast_unsigned().to_be(), Ordering::Release);
            } else {
                store_bytes_release(target, &value.to_be_bytes());
            }
        })
    }

    /// Loads a value of [`Region::store_u32_be_release`]. Later reads see the writes before that store.
    #[inline]
    pub fn load_u32_be_acquire(&self, at: usize) -> Result<u32, RegionError> {
        let source = self.range(at, 4)?;
        if let Some(cell) = aligned::<AtomicU32>(source) {
            // SAFETY: inside, aligned, and changed concurrently by atomic stores only.
            let cell = unsafe { cell.as_ref() };
            return Ok(u32::from_be(cell.load(Ordering::Acquire)));
        }
        Ok(u32::from_be_bytes(load_bytes_acquire(source)))
    }

    /// Loads a value of [`Region::store_i64_be_release`]. Later reads see the writes before that store.
    #[inline]
    pub fn load_i64_be_acquire(&self, at: usize) -> Result<i64, RegionError> {
        let source = self.range(at, 8)?;
        if let Some(cell) = aligned::<AtomicU64>(source) {
            // SAFETY: inside, aligned, and changed concurrently by atomic stores only.
            let cell = unsafe { cell.as_ref() };
            return Ok(u64::from_be(cell.load(Ordering::Acquire)).cast_signed());
        }
        Ok(i64::from_be_bytes(load_bytes_acquire(source)))
    }

    /// Raises the big-endian `u64` at position `at`, a multiple of 8, to `value` if it is lower, with the promise of
    /// [`Region::store_i64_be_release`]. Any number of threads can call it at the same time.
    #[inline]
    pub fn raise_u64_be(&self, at: usize, value: u64) -> Result<(), RegionError> {
        let target = self.writable(at, 8)?;
        let cell = aligned::<AtomicU64>(target).ok_or(RegionError::NotAligned { at })?;
        self.change(at, 8, || {
            // SAFETY: inside, aligned, and reached concurrently by atomic accesses only.
            let cell = unsafe { cell.as_ref() };
            let higher = |present: u64| (u64::from_be(present) < value).then_some(value.to_be());
            // If the number is not lower, no store is needed.
            let _ = cell.fetch_update(Ordering::SeqCst, Ordering::SeqCst, higher);
        })
    }

    /// Prefetches bytes `at` to `at + len` for a read that follows soon. Changes nothing, and skips bytes outside the
    /// region.
    #[inline]
    pub fn expect_read(&self, at: usize, len: usize) {
        self.lines(at, len).for_each(prefetch::<READ>);
    }

    /// Like [`Region::expect_read`], for a write.
    #[inline]
    pub fn expect_write(&self, at: usize, len: usize) {
        self.lines(at, len).for_each(prefetch::<WRITE>);
    }

    #[inline]
    fn lines(&self, at: usize, len: usize) -> impl Iterator<Item = NonNull<u8>> {
        let end = at.saturating_add(len).min(self.len);
        (at..end).step_by(CACHE_LINE_BYTES).filter_map(|line| self.range(line, 1).ok())
    }

    /// Makes the range durable, with the length of the file, but not its name. Waits for the disk. Syncs whole pages,
    /// so neighbouring bytes may become durable too. After an error, the state on disk is unknown.
    pub fn flush(&self, range: Range<usize>) -> io::Result<()> {
        let (at, len) = self.part(&range)?;
        if len == 0 { Ok(()) } else { self.backing.flush(at, len) }
    }

    /// Gives the kernel a hint about the use of the range. The caller decides whether an error matters.
    pub fn advise(&self, range: Range<usize>, advice: Advice) -> io::Result<()> {
        let (at, len) = self.part(&range)?;
        if advice == Advice::PopulateWrite && !self.writable {
            return Err(RegionError::ReadOnly.into());
        }
        if len == 0 { Ok(()) } else { self.backing.advise(at, len, advice) }
    }

    /// Locks the range in memory until the map is dropped or [`Region::unlock_memory`] is called. Fails at the system's
    /// limit of locked memory (`ulimit -l`). Locks whole pages.
    pub fn lock_memory(&self, range: Range<usize>) -> io::Result<()> {
        let (at, len) = self.part(&range)?;
        if len == 0 { Ok(()) } else { self.backing.set_locked(at, len, true) }
    }

    /// Undoes [`Region::lock_memory`] for the pages of the range.
    pub fn unlock_memory(&self, range: Range<usize>) -> io::Result<()> {
        let (at, len) = self.part(&range)?;
        if len == 0 { Ok(()) } else { self.backing.set_locked(at, len, false) }
    }

    /// Runs `copy`, which changes bytes `at` to `at + len`.
    #[inline]
    fn change(&self, at: usize, len: usize, mut copy: impl FnMut()) -> Result<(), RegionError> {
        if self.observed {
            return self.backing.observe(at, len, &mut copy);
        }
        copy();
        Ok(())
    }

    #[inline]
    fn writable(&self, at: usize, len: usize) -> Result<NonNull<u8>, RegionError> {
        if !self.writable {
            return Err(RegionError::ReadOnly);
        }
        self.range(at, len)
    }

    /// Returns the address of byte `at`, if `len` bytes from there are in the region.
    #[inline]
    fn range(&self, at: usize, len: usize) -> Result<NonNull<u8>, RegionError> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(RegionError::OutOfBounds { at, len, region_len: self.len });
        }
        // SAFETY: `at` is at most the length of the memory at `base`.
        Ok(unsafe { self.base.add(at) })
    }

    fn part(&self, range: &Range<usize>) -> Result<(usize, usize), RegionError> {
        let len = range.end.saturating_sub(range.start);
        self.range(range.start, len)?;
        Ok((range.start, len))
    }
}

/// Bytes that a processor fetches as one unit, on most machines.
const CACHE_LINE_BYTES: usize = 64;

/// Like [`Region::expect_read`], for bytes outside a region.
#[inline]
pub fn expect_read(bytes: &[u8]) {
    bytes.chunks(CACHE_LINE_BYTES).for_each(|line| prefetch::<READ>(NonNull::from(line).cast()));
}

/// The purpose of a prefetch, in the numbers of x86-64's hints: `_MM_HINT_T0` and `_MM_HINT_ET0`.
const READ: i32 = 3;
const WRITE: i32 = 7;

#[inline]
fn prefetch<const FOR: i32>(place: NonNull<u8>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint has no effect for an address that is not accessible.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<FOR>(place.as_ptr().cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Returns the address as a pointer to `T`, if it is aligned.
#[inline]
fn aligned<T>(place: NonNull<u8>) -> Option<NonNull<T>> {
    Some(place.cast::<T>()).filter(|cell| cell.is_aligned())
}

/// Stores bytes one by one, after all earlier writes of this thread.
fn store_bytes_release<const N: usize>(target: NonNull<u8>, bytes: &[u8; N]) {
    fence(Ordering::Release);
    for (index, byte) in bytes.iter().enumerate() {
        // SAFETY: the caller has checked that `N` bytes from `target` are in the region.
        let place = unsafe { target.add(index) };
        // SAFETY: a valid byte, reached concurrently by atomic accesses only.
        let cell = unsafe { place.cast::<AtomicU8>().as_ref() };
        cell.store(*byte, Ordering::Relaxed);
    }
}

fn load_bytes_acquire<const N: usize>(source: NonNull<u8>) -> [u8; N] {
    let bytes = std::array::from_fn(|index| {
        // SAFETY: the caller has checked that `N` bytes from `source` are in the region.
        let place = unsafe { source.add(index) };
        // SAFETY: a valid byte, changed concurrently by atomic stores only.
        let cell = unsafe { place.cast::<AtomicU8>().as_ref() };
        cell.load(Ordering::Relaxed)
    });
    fence(Ordering::Acquire);
    bytes
}

/// Published bytes of a region, or bytes of its own. Cheap to clone; keeps its map alive.
#[derive(Clone)]
pub struct RegionView {
    base: NonNull<u8>,
    len: usize,
    backing: Arc<dyn Backing>,
}

// SAFETY: the bytes never change while the view exists, and live as long as the backing, which any thread can drop.
unsafe impl Send for RegionView {}
// SAFETY: as for Send.
unsafe impl Sync for RegionView {}

impl RegionView {
    /// Returns the part `range` of this view. It shares the bytes.
    pub fn slice(&self, range: Range<usize>) -> Result<Self, RegionError> {
        let len = range.end.saturating_sub(range.start);
        if range.start.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(RegionError::OutOfBounds { at: range.start, len, region_len: self.len });
        }
        // SAFETY: `range.start` is at most the length of the view.
        let base = unsafe { self.base.add(range.start) };
        Ok(Self { base, len, backing: Arc::clone(&self.backing) })
    }
}

impl Deref for RegionView {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the range is in its region, the backing keeps it in place, and the creator of the view promised that
        // its bytes never change.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for RegionView {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl PartialEq for RegionView {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for RegionView {}

impl fmt::Debug for RegionView {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "RegionView({} bytes)", self.len)
    }
}

/// Bytes that were read from a file and not mapped.
impl From<Vec<u8>> for RegionView {
    fn from(bytes: Vec<u8>) -> Self {
        let base = NonNull::from(bytes.as_slice()).cast();
        Self { base, len: bytes.len(), backing: Arc::new(Owned(bytes)) }
    }
}

/// The backing of bytes without a file and a region.
struct Owned(#[expect(dead_code, reason = "keeps the bytes alive")] Vec<u8>);

impl fmt::Debug for Owned {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Owned")
    }
}

impl Backing for Owned {
    fn flush(&self, _: usize, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn advise(&self, _: usize, _: usize, _: Advice) -> io::Result<()> {
        Ok(())
    }
    fn set_locked(&self, _: usize, _: usize, _: bool) -> io::Result<()> {
        Ok(())
    }
}

/// Zeroed memory at a fixed address, aligned for every integer type.
#[derive(Debug)]
struct Heap {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory, accessed by the rule of `Region`.
unsafe impl Send for Heap {}
// SAFETY: as for Send.
unsafe impl Sync for Heap {}

impl Heap {
    fn new(len: usize) -> io::Result<Self> {
        // With alignment 16, the allocator can return zero pages without touching them.
        let layout = Layout::from_size_align(len.max(1), 16).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: the size is not zero.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        let base = NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, layout })
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and no region or view that could access it is left.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), self.layout) }
    }
}

impl Backing for Heap {
    fn flush(&self, _: usize, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn advise(&self, _: usize, _: usize, _: Advice) -> io::Result<()> {
        Ok(())
    }
    fn set_locked(&self, _: usize, _: usize, _: bool) -> io::Result<()> {
        Ok(())
    }
}
