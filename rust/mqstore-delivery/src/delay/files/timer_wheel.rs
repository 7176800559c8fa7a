//! The timer wheel: for each second, the position of its last unit in the timer log.
//!
//! Owns `timerwheel`. Pages are read at their first use, changed in memory, and written by [`TimerWheel::flush`]. One
//! bit for each slot marks the slots that may be used. A slot counts as empty if its time differs from the requested
//! one. Source: `TimerWheel`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use mqstore_base::error::IoContext;
use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;
use mqstore_format::delays::timer::{SLOT_BYTES, TimerSlot, WHEEL_BYTES, WHEEL_SLOTS};
use mqstore_format::names::TIMERWHEEL_FILE;
use mqstore_io::{Access, VfsFile, switch};

const PAGE_BYTES: usize = 4096;
const SLOTS_OF_PAGE: usize = PAGE_BYTES / SLOT_BYTES;
/// Maximum pages in one write.
const PAGES_AT_ONCE: usize = 64;

type WheelPage = [u8; PAGE_BYTES];

/// The timer wheel; see the module's text.
#[derive(Debug)]
pub(crate) struct TimerWheel {
    files: StoreFiles,
    path: PathBuf,
    /// `None` until the first flush, if there was no file.
    file: Option<Arc<dyn VfsFile>>,
    pages: Vec<Option<Box<WheelPage>>>,
    dirty: BTreeSet<usize>,
    /// One bit for each slot index that was ever used.
    used: Vec<u64>,
}

impl TimerWheel {
    /// Opens the wheel of the store at `files`; `None` if the file is not a valid wheel.
    pub(crate) fn open(files: &StoreFiles, access: Access) -> Result<Option<Self>, StoreError> {
        let path = files.root.join(TIMERWHEEL_FILE);
        let file = match files.vfs.open(&path, access) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(StoreError::io(&path, "opening the timer wheel", error)),
        };
        let pages = WHEEL_BYTES as usize / PAGE_BYTES;
        let mut wheel = Self {
            files: files.clone(),
            path,
            file,
            pages: (0..pages).map(|_| None).collect(),
            dirty: BTreeSet::new(),
            used: vec![0; (WHEEL_SLOTS as usize).div_ceil(64)],
        };
        if let Some(file) = wheel.file.clone() {
            if file.len().at(&wheel.path, "reading the length of the timer wheel")? != WHEEL_BYTES {
                return Ok(None);
            }
            wheel.scan_used_slots(file.as_ref())?;
        }
        Ok(Some(wheel))
    }

    pub(crate) fn exists(&self) -> bool {
        self.file.is_some()
    }

    fn scan_used_slots(&mut self, file: &dyn VfsFile) -> Result<(), StoreError> {
        let mut buffer = vec![0; PAGES_AT_ONCE * PAGE_BYTES];
        let mut at = 0;
        while let Some(data) = file.next_data(at).at(&self.path, "looking for used slots")? {
            at = data / PAGE_BYTES as u64 * PAGE_BYTES as u64;
            let len = ((WHEEL_BYTES - at) as usize).min(buffer.len());
            let some = buffer.get_mut(..len).unwrap_or_default();
            file.read_exact_at(some, at).at(&self.path, "reading the timer wheel")?;
            let first = at as usize / SLOT_BYTES;
            for (index, slot) in (first..).zip(some.as_chunks::<SLOT_BYTES>().0) {
                if TimerSlot::decode(slot).is_some_and(|slot| slot.last >= 0) {
                    self.mark(index);
                }
            }
            at += len as u64;
            if at >= WHEEL_BYTES {
                break;
            }
        }
        Ok(())
    }

    fn mark(&mut self, index: usize) {
        if let Some(word) = self.used.get_mut(index / 64) {
            *word |= 1 << (index % 64);
        }
    }

    fn page(&mut self, number: usize) -> Result<&mut WheelPage, StoreError> {
        let missing =
            || StoreError::corrupt(&self.path, number as u64 * PAGE_BYTES as u64, "page outside the wheel");
        let Some(page) = self.pages.get_mut(number) else { return Err(missing()) };
        match page {
            Some(page) => Ok(page),
            none => {
                let mut made = Box::new([0; PAGE_BYTES]);
                if let Some(file) = &self.file {
                    let at = (number * PAGE_BYTES) as u64;
                    file.read_exact_at(&mut *made, at).at(&self.path, "reading the timer wheel")?;
                }
                Ok(none.insert(made))
            }
        }
    }

    /// Returns the slot of `time`, if it has units.
    pub(crate) fn slot(&mut self, time: i64) -> Result<Option<TimerSlot>, StoreError> {
        let index = TimerSlot::index(time) as usize;
        let place = index % SLOTS_OF_PAGE;
        let page = self.page(index / SLOTS_OF_PAGE)?;
        let bytes = page.as_chunks::<SLOT_BYTES>().0.get(place);
        Ok(bytes.and_then(TimerSlot::decode).filter(|slot| slot.time == time && slot.last >= 0))
    }

    /// Returns the slot of `time`, which may have no units.
    pub(crate) fn slot_or_empty(&mut self, time: i64) -> Result<TimerSlot, StoreError> {
        let empty = TimerSlot { time, first: -1, last: -1, count: 0, magic: 0 };
        Ok(self.slot(time)?.unwrap_or(empty))
    }

    /// Replaces a slot, in memory.
    pub(crate) fn put(&mut self, slot: &TimerSlot) -> Result<(), StoreError> {
        let index = TimerSlot::index(slot.time) as usize;
        let number = index / SLOTS_OF_PAGE;
        let page = self.page(number)?;
        if let Some(place) = page.as_chunks_mut::<SLOT_BYTES>().0.get_mut(index % SLOTS_OF_PAGE) {
            *place = slot.encode();
        }
        self.dirty.insert(number);
        self.mark(index);
        Ok(())
    }

    /// Returns the first time from `from` on, within one turn, whose slot has units.
    pub(crate) fn next_used_slot(&mut self, from: i64) -> Result<Option<i64>, StoreError> {
        let end = from.saturating_add(WHEEL_SLOTS);
        let mut time = from;
        while time < end {
            let index = TimerSlot::index(time) as usize;
            let rest = self.used.get(index / 64).map_or(0, |word| word >> (index % 64));
            if rest == 0 {
                // To the next word, or to the start of the wheel.
                let step = (64 - index % 64).min(WHEEL_SLOTS as usize - index);
                time += step as i64;
                continue;
            }
            time += i64::from(rest.trailing_zeros());
            if time < end && self.slot(time)?.is_some() {
                return Ok(Some(time));
            }
            time += 1;
        }
        Ok(None)
    }

    /// Writes the changes; durable when this returns. After an error, the next call writes them again.
    pub(crate) fn flush(&mut self) -> Result<(), StoreError> {
        if self.dirty.is_empty() {
            return Ok(());
        }
        let file = match &self.file {
            Some(file) => Arc::clone(file),
            None => self.create()?,
        };
        let numbers: Vec<usize> = self.dirty.iter().copied().collect();
        let mut buffer = Vec::new();
        for run in numbers.chunk_by(|before, after| before + 1 == *after) {
            for some in run.chunks(PAGES_AT_ONCE) {
                buffer.clear();
                for number in some {
                    buffer.extend_from_slice(self.page(*number)?);
                }
                let at = some.first().map_or(0, |number| (number * PAGE_BYTES) as u64);
                file.write_all_at(&buffer, at).at(&self.path, "writing the timer wheel")?;
            }
        }
        switch::step("delay.sync_wheel", || file.sync_data()).at(&self.path, "syncing the timer wheel")?;
        self.dirty.clear();
        Ok(())
    }

    fn create(&mut self) -> Result<Arc<dyn VfsFile>, StoreError> {
        let file = new_file(&self.files, &self.path, WHEEL_BYTES)?;
        self.file = Some(Arc::clone(&file));
        Ok(file)
    }

    /// Removes the file, and forgets all slots.
    pub(crate) fn reset(&mut self) -> Result<(), StoreError> {
        self.file = None;
        self.pages.iter_mut().for_each(|page| *page = None);
        self.used.iter_mut().for_each(|word| *word = 0);
        self.dirty.clear();
        remove(&self.files, &self.path)
    }
}

/// Returns the slot after a unit at `position` became its last.
pub(crate) fn slot_ending_at(slot: TimerSlot, position: i64, deletes: bool) -> TimerSlot {
    TimerSlot {
        first: if slot.first < 0 { position } else { slot.first },
        last: position,
        count: slot.count.saturating_add(if deletes { -1 } else { 1 }),
        ..slot
    }
}

/// Creates a sparse file of `len` bytes. It gets its name only with this length, and the name is durable.
pub(crate) fn new_file(
    files: &StoreFiles,
    path: &std::path::Path,
    len: u64,
) -> Result<Arc<dyn VfsFile>, StoreError> {
    let parent = path.parent().unwrap_or(&files.root);
    files.ensure_folder(parent)?;
    let staging = files.staging_for(path);
    files.ensure_folder(&staging)?;
    let staged = staging.join(path.file_name().unwrap_or_default());
    remove(files, &staged)?;
    let file = files.vfs.create_new(&staged).at(&staged, "creating a file")?;
    file.set_len(len).at(&staged, "creating a file")?;
    switch::step("delay.sync_new_file", || file.sync_all()).at(&staged, "syncing a new file")?;
    files.vfs.rename(&staged, path).at(path, "renaming a file")?;
    switch::step("delay.sync_new_name", || files.vfs.sync_dir(parent)).at(parent, "syncing a folder")?;
    Ok(file)
}

/// Removes a file, if it exists.
pub(crate) fn remove(files: &StoreFiles, path: &std::path::Path) -> Result<(), StoreError> {
    match files.vfs.remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(StoreError::io(path, "removing a file", error))
        }
        _ => Ok(()),
    }
}
