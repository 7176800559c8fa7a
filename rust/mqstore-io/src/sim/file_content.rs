//! The content of one simulated file: for its readers, and on the disk.
//!
//! The live image is one block of heap memory, which maps share. The disk's image is a set of pages:
//!
//! ```text
//! memory   |p0|p1|p2|p3|   flags per page: ALLOCATED  the disk has reserved space for it
//!                                          WRITTEN    it has content; otherwise it is a hole
//! disk     |p0|  |p2|  |                   DIRTY      the next sync copies it to the disk
//! ```
//!
//! A page that a failed sync dropped has lost DIRTY and is not on the disk. Later syncs skip it until the next write to
//! it. Memory after the length is always zero.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use rustix::io::Errno;

use super::rng::Rng;
use crate::region::Region;

/// The unit that is synced, lost and torn as a whole; sectors only with torn sectors on.
pub(super) const PAGE: usize = 4096;
/// The unit that a disk writes atomically.
pub(super) const SECTOR: usize = 512;

const ALLOCATED: u8 = 1;
const WRITTEN: u8 = 2;
const DIRTY: u8 = 4;

pub(super) type Page = [u8; PAGE];

static ZERO_PAGE: Page = [0; PAGE];

/// The content on the disk.
#[derive(Clone, Debug, Default)]
pub(super) struct DiskImage {
    pub(super) len: u64,
    pub(super) pages: BTreeMap<usize, Arc<Page>>,
    /// Which pages, counted from 0, have space.
    allocated: Vec<bool>,
}

/// Both images of a file, in memory and on the disk.
#[derive(Debug)]
pub(super) struct FileData {
    pub(super) memory: Region,
    pub(super) len: u64,
    flags: Vec<u8>,
    pub(super) disk: DiskImage,
    pub(super) modified_ms: i64,
    /// Every form of each page since its last sync, if the forms are kept.
    pub(super) versions: Option<Versions>,
}

/// Forms of pages, oldest first; the newest is the one in memory. The synced form is not included.
pub(super) type Versions = BTreeMap<usize, Vec<Arc<Page>>>;

fn page_range(offset: u64, len: u64) -> Range<usize> {
    let first = offset / PAGE as u64;
    let end = if len == 0 { first } else { offset.saturating_add(len).div_ceil(PAGE as u64) };
    first as usize..end as usize
}

impl FileData {
    pub(super) fn new() -> io::Result<Self> {
        let memory = Region::heap(0)?;
        Ok(Self {
            memory,
            len: 0,
            flags: Vec::new(),
            disk: DiskImage::default(),
            modified_ms: 0,
            versions: None,
        })
    }

    /// Creates a file whose disk image equals its memory.
    pub(super) fn settled(
        len: u64,
        pages: BTreeMap<usize, Arc<Page>>,
        is_allocated: &[bool],
    ) -> io::Result<Self> {
        let mut data = Self::new()?;
        data.grow(len)?;
        for (index, page) in &pages {
            let start = index * PAGE;
            let count = PAGE.min((len as usize).saturating_sub(start));
            data.memory.write(start, page.get(..count).unwrap_or_default())?;
            data.mark(*index, ALLOCATED | WRITTEN);
        }
        for (index, _) in is_allocated.iter().enumerate().filter(|(_, allocated)| **allocated) {
            data.mark(index, ALLOCATED);
        }
        data.disk.len = len;
        data.disk.pages = pages;
        data.disk.allocated = data.flags.iter().map(|flags| flags & ALLOCATED != 0).collect();
        Ok(data)
    }

    /// Copies the file. The copy shares only immutable parts.
    pub(super) fn fork(&self) -> io::Result<Self> {
        let mut data = Self::new()?;
        data.grow(self.len)?;
        data.flags.clone_from(&self.flags);
        for index in self.pages_with(WRITTEN) {
            let start = index * PAGE;
            let count = PAGE.min((self.len as usize).saturating_sub(start));
            data.memory.write(start, self.page(index).get(..count).unwrap_or_default())?;
        }
        data.disk = self.disk.clone();
        data.modified_ms = self.modified_ms;
        data.versions.clone_from(&self.versions);
        Ok(data)
    }

    /// Keeps all forms of pages from now on.
    pub(super) fn keep_versions(&mut self, keep: bool) {
        self.versions = keep.then(Versions::new);
    }

    /// Records the current form of a page.
    fn note_version(&mut self, index: usize) {
        if self.versions.is_some() {
            let page = Arc::new(self.page(index));
            let versions = self.versions.get_or_insert_default().entry(index).or_default();
            if versions.last() != Some(&page) {
                versions.push(page);
            }
        }
    }

    /// Returns the possible forms of page `index` on the disk: the synced one, then all newer ones.
    pub(super) fn forms(&self, index: usize) -> Vec<Arc<Page>> {
        let base = self.disk.pages.get(&index).cloned().unwrap_or_else(zero_page);
        let mut forms = vec![base];
        if index < self.flags.len() {
            let kept = self.versions.as_ref().and_then(|versions| versions.get(&index));
            match kept {
                Some(kept) => forms.extend(kept.iter().cloned()),
                None => forms.push(Arc::new(self.page(index))),
            }
        }
        forms.dedup();
        forms
    }

    /// Returns the live pages that are not all zero.
    pub(super) fn used_pages(&self) -> impl Iterator<Item = (usize, Page)> + '_ {
        let written = self.pages_with(WRITTEN).into_iter();
        written.map(|index| (index, self.page(index))).filter(|(_, page)| *page != ZERO_PAGE)
    }

    /// Returns the pages that can have several forms on the disk.
    pub(super) fn open_pages(&self) -> Vec<usize> {
        match &self.versions {
            Some(versions) => versions.keys().copied().filter(|index| *index < self.flags.len()).collect(),
            None => self.pages_with(DIRTY),
        }
    }

    /// In the newest form of the pages in a range, replaces the last bytes with those of the form before it.
    pub(super) fn take_back(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset.saturating_add(len).min(self.len);
        for index in page_range(offset, len) {
            let mut forms = self.forms(index);
            let (Some(newest), Some(before)) = (forms.pop(), forms.pop()) else { continue };
            let start = (index * PAGE) as u64;
            let from = offset.saturating_sub(start).min(PAGE as u64) as usize;
            let to = end.saturating_sub(start).min(PAGE as u64) as usize;
            let mut page = *newest;
            if let (Some(target), Some(source)) = (page.get_mut(from..to), before.get(from..to)) {
                target.copy_from_slice(source);
                self.memory.write(index * PAGE + from, source)?;
            }
            if let Some(kept) = self.versions.as_mut().and_then(|versions| versions.get_mut(&index)) {
                kept.pop();
                kept.push(Arc::new(page));
            }
        }
        Ok(())
    }

    fn mark(&mut self, index: usize, bits: u8) {
        if let Some(flags) = self.flags.get_mut(index) {
            *flags |= bits;
        }
    }

    fn unmark(&mut self, index: usize, bits: u8) {
        if let Some(flags) = self.flags.get_mut(index) {
            *flags &= !bits;
        }
    }

    fn has(&self, index: usize, bits: u8) -> bool {
        self.flags.get(index).is_some_and(|flags| flags & bits == bits)
    }

    fn pages_with(&self, bits: u8) -> Vec<usize> {
        (0..self.flags.len()).filter(|index| self.has(*index, bits)).collect()
    }

    /// Returns the live content of a page; zeros if it has none.
    pub(super) fn page(&self, index: usize) -> Page {
        let mut page = [0; PAGE];
        let start = index.saturating_mul(PAGE);
        let count = PAGE.min(self.memory.len().saturating_sub(start));
        if let Some(part) = page.get_mut(..count) {
            // The range is inside by the line above, so the read cannot fail.
            let _ = self.memory.read(start, part);
        }
        page
    }

    /// Returns the bytes that the file occupies.
    pub(super) fn reserved_bytes(&self) -> u64 {
        self.pages_with(ALLOCATED).len() as u64 * PAGE as u64
    }

    /// Returns the number of pages in the range without space.
    pub(super) fn unreserved_pages(&self, offset: u64, len: u64) -> u64 {
        page_range(offset, len).filter(|index| !self.has(*index, ALLOCATED)).count() as u64
    }

    /// Makes the file at least `len` bytes long.
    pub(super) fn grow(&mut self, len: u64) -> io::Result<()> {
        let needed = usize::try_from(len).map_err(|_| Errno::FBIG)?;
        if needed > self.memory.len() {
            if self.memory.sharers() > 0 {
                let text = "the simulation cannot make a file longer while it is mapped";
                return Err(io::Error::new(io::ErrorKind::Unsupported, text));
            }
            let capacity =
                if self.len == 0 { needed } else { needed.max(self.memory.len().saturating_mul(2)) };
            let memory = Region::heap(capacity)?;
            let old = self.memory.view(0, self.memory.len())?;
            memory.write(0, &old)?;
            self.memory = memory;
        }
        if len > self.len {
            self.len = len;
            self.flags.resize(page_range(0, len).end, 0);
        }
        Ok(())
    }

    /// Truncates the file, or extends it with a hole.
    pub(super) fn set_len(&mut self, len: u64) -> io::Result<()> {
        if len >= self.len {
            return self.grow(len);
        }
        let (start, cut) = (len as usize, (self.len - len) as usize);
        self.memory.fill(start, cut, 0)?;
        let pages = page_range(0, len).end;
        if start % PAGE != 0 && self.has(pages - 1, WRITTEN) {
            self.mark(pages - 1, DIRTY);
            self.note_version(pages - 1);
        }
        self.flags.truncate(pages);
        self.len = len;
        Ok(())
    }

    /// Reserves space for all pages below `len`. The caller has checked that the disk has it.
    pub(super) fn allocate(&mut self, len: u64) -> io::Result<()> {
        self.grow(len)?;
        page_range(0, len).for_each(|index| self.mark(index, ALLOCATED));
        Ok(())
    }

    /// Reserves space for all pages of a range within the length. The caller has checked that the disk has it.
    pub(super) fn allocate_range(&mut self, offset: u64, len: u64) {
        page_range(offset, len).for_each(|index| self.mark(index, ALLOCATED));
    }

    pub(super) fn write(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let end = offset.checked_add(bytes.len() as u64).ok_or(Errno::FBIG)?;
        self.grow(end)?;
        self.memory.write(offset as usize, bytes)?;
        self.touched(offset, bytes.len() as u64);
        Ok(())
    }

    /// Records a change of a range; returns `false` if a page of it had no space.
    pub(super) fn touched(&mut self, offset: u64, len: u64) -> bool {
        let was_reserved = self.unreserved_pages(offset, len) == 0;
        for index in page_range(offset, len) {
            self.mark(index, ALLOCATED | WRITTEN | DIRTY);
            self.note_version(index);
        }
        was_reserved
    }

    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let count = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX).min(buf.len());
        let Some(part) = buf.get_mut(..count).filter(|part| !part.is_empty()) else { return Ok(0) };
        self.memory.read(offset as usize, part)?;
        Ok(count)
    }

    pub(super) fn next_data(&self, from: u64) -> Option<u64> {
        let first = page_range(from, 0).start;
        let index = (first..self.flags.len()).find(|index| self.has(*index, WRITTEN))?;
        Some(from.max(index as u64 * PAGE as u64)).filter(|at| *at < self.len)
    }

    /// Writes a range of pages, and the length, to the disk.
    pub(super) fn sync(&mut self, offset: u64, len: u64) {
        for index in page_range(offset, len).start..page_range(offset, len).end.min(self.flags.len()) {
            if self.has(index, DIRTY) {
                self.write_back(index);
                self.unmark(index, DIRTY);
            } else if !self.has(index, WRITTEN) {
                self.disk.pages.remove(&index);
            }
        }
        self.disk.len = self.len;
        self.disk.allocated = self.flags.iter().map(|flags| flags & ALLOCATED != 0).collect();
        self.disk.pages.retain(|index, _| *index < self.flags.len());
    }

    /// Applies a failed sync: any dirty page may be on the disk, and no page is dirty afterwards.
    pub(super) fn fail_sync(&mut self, offset: u64, len: u64, rng: &mut Rng) {
        for index in page_range(offset, len).start..page_range(offset, len).end.min(self.flags.len()) {
            if self.has(index, DIRTY) {
                // If all forms are kept, the crash chooses one of them.
                if self.versions.is_none() && rng.chance(4) {
                    self.write_back(index);
                }
                self.unmark(index, DIRTY);
            }
        }
    }

    /// Writes random dirty pages to the disk. They stay dirty, because the drive can still lose them.
    pub(super) fn write_back_some(&mut self, rng: &mut Rng) {
        if self.versions.is_some() {
            return;
        }
        for index in self.pages_with(DIRTY) {
            if rng.chance(4) {
                self.write_back(index);
            }
        }
    }

    fn write_back(&mut self, index: usize) {
        self.disk.pages.insert(index, Arc::new(self.page(index)));
        if let Some(versions) = &mut self.versions {
            versions.remove(&index);
        }
    }

    /// Drops clean pages from the cache: later reads see the content of the disk.
    pub(super) fn drop_cache(&mut self, rng: &mut Rng) -> io::Result<()> {
        for index in 0..self.flags.len() {
            if self.has(index, DIRTY) {
                continue;
            }
            // The effect of a failed sync on the disk is chosen at the first read.
            if self.versions.as_mut().is_some_and(|versions| versions.contains_key(&index)) {
                let forms = self.forms(index);
                let form = forms.get(rng.below(forms.len() as u64) as usize).cloned();
                self.disk.pages.extend(form.map(|form| (index, form)));
                self.versions.get_or_insert_default().remove(&index);
            }
            let start = index * PAGE;
            let count = PAGE.min((self.len as usize).saturating_sub(start));
            let page = self.disk.pages.get(&index).map_or(&ZERO_PAGE, |page| &**page);
            if self.page(index) != *page {
                self.memory.write(start, page.get(..count).unwrap_or_default())?;
            }
        }
        Ok(())
    }

    /// Changes a byte in both images.
    pub(super) fn flip(&mut self, offset: u64, mask: u8) -> io::Result<()> {
        let mut byte = [0];
        if self.read(&mut byte, offset)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.memory.write(offset as usize, &[byte[0] ^ mask])?;
        let (index, within) = (offset as usize / PAGE, offset as usize % PAGE);
        if let Some(byte) =
            self.disk.pages.get_mut(&index).and_then(|page| Arc::make_mut(page).get_mut(within))
        {
            *byte ^= mask;
        }
        Ok(())
    }

    /// Returns a possible content of the disk after a power loss. `choose` is called for each part with several forms:
    /// the length, then each page or sector. Form 0 is the synced one.
    pub(super) fn crash(
        &self,
        torn_sectors: bool,
        choose: &mut dyn FnMut(PagePart, u32) -> u32,
    ) -> io::Result<Self> {
        let newer = self.len != self.disk.len && choose(PagePart::Length, 2) > 0;
        let len = if newer { self.len } else { self.disk.len };
        let mut pages = BTreeMap::new();
        for index in page_range(0, len) {
            let old = self.disk.pages.get(&index);
            if old.is_none() && !self.has(index, WRITTEN) {
                continue;
            }
            let forms = self.forms(index);
            let page = if forms.len() < 2 {
                old.cloned()
            } else if torn_sectors {
                Some(Arc::new(mix(&forms, index, choose)))
            } else {
                let form = choose(PagePart::Bytes((index * PAGE) as u64), forms.len() as u32);
                forms.get(form as usize).cloned()
            };
            pages.extend(page.map(|page| (index, cut_page(&page, index, len))));
        }
        let allocated: Vec<bool> = if newer {
            self.flags.iter().map(|flags| flags & ALLOCATED != 0).collect()
        } else {
            self.disk.allocated.clone()
        };
        Self::settled(len, pages, &allocated)
    }
}

/// A part of a file that the disk may have in its old or its new form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PagePart {
    Length,
    Bytes(u64),
}

/// Builds a page from one form of each sector.
fn mix(forms: &[Arc<Page>], index: usize, choose: &mut dyn FnMut(PagePart, u32) -> u32) -> Page {
    let mut page = [0; PAGE];
    for (number, target) in page.chunks_exact_mut(SECTOR).enumerate() {
        let sectors = sector_forms(forms, number);
        let form = match sectors.len() {
            0 | 1 => 0,
            count => choose(PagePart::Bytes((index * PAGE + number * SECTOR) as u64), count as u32),
        };
        if let Some(source) = sectors.get(form as usize) {
            target.copy_from_slice(source);
        }
    }
    page
}

/// Returns the different forms of sector `number` of a page, in order.
pub(super) fn sector_forms(forms: &[Arc<Page>], number: usize) -> Vec<&[u8]> {
    let range = number * SECTOR..(number + 1) * SECTOR;
    let mut sectors: Vec<&[u8]> = forms.iter().filter_map(|form| form.get(range.clone())).collect();
    sectors.dedup();
    sectors
}

fn zero_page() -> Arc<Page> {
    static ZERO: std::sync::OnceLock<Arc<Page>> = std::sync::OnceLock::new();
    Arc::clone(ZERO.get_or_init(|| Arc::new([0; PAGE])))
}

/// Zeros the bytes after the length.
fn cut_page(page: &Arc<Page>, index: usize, len: u64) -> Arc<Page> {
    let inside = (len as usize).saturating_sub(index * PAGE);
    if inside >= PAGE {
        return Arc::clone(page);
    }
    let mut cut = **page;
    cut.iter_mut().skip(inside).for_each(|byte| *byte = 0);
    Arc::new(cut)
}
