//! Reading the metadata log of a store.
//!
//! The newest file counts. Older files are left over if the process stopped after the newest one got its name. An
//! open for writing also repairs the end of the log: it copies the bytes after the end to `lost+found` and truncates
//! the file. Then it rewrites and syncs the frames that no later frame states as synced, because a failed sync may
//! have left pages that only look clean.
//!
//! A frame that does not decode is normally the end of the log. It is damage if it is in the snapshot, or below the
//! highest position that a later frame states as synced. Then the store refuses to open for writing, unless
//! [`RecoveryMode::Salvage`] allows it to drop everything after the damage. The durable mark says whether the store has
//! a metadata log; a log whose files are all missing counts as damaged.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_format::{offset_file_name, parse_offset_file_name};
use mqstore_io::{Access, FileKind, VfsFile, switch};

use super::frame::{FileHeader, FrameReader, HEAD_BYTES, NextFrame, inspect_tail};
use super::record::MetaPosition;
use super::state::MetaState;
use mqstore_base::durable_mark::DurableMarkFile;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::options::RecoveryMode;
use mqstore_base::store_files::StoreFiles;

/// Bytes per copy step.
const COPY_BYTES: usize = 1 << 20;

/// Maximum attempts of a reader while the file is being replaced or written.
const TRIES: u32 = 5;

/// The damage of a log whose files are all missing.
pub(super) const LOST_LOG: &str = "the metadata log is missing: topics, groups and offsets that it had are lost, and \
                                   finished messages of work queues may be delivered again";

/// The facts about the log that the durable mark has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MarkedLog {
    /// Whether the store has, or had, a metadata log.
    pub(super) exists: bool,
    /// The log ends here or later; 0 if that is not known.
    pub(super) end: MetaPosition,
    /// Whether the store was closed at this end.
    is_closed: bool,
}

impl MarkedLog {
    /// Reads the mark. Call it before the files are listed: a writer may make the first one, and appends to it.
    pub(super) fn read(files: &StoreFiles) -> Self {
        let mark = DurableMarkFile::new(files).load().unwrap_or_default();
        let end = MetaPosition(mark.metadata_end.unwrap_or(0));
        Self { exists: mark.has_metadata, end, is_closed: mark.clean && mark.metadata_end.is_some() }
    }
}

pub(super) fn file_of(files: &StoreFiles, generation: u64) -> PathBuf {
    files.meta().join(format!("{}.log", offset_file_name(generation)))
}

/// Returns the existing generations, newest first.
pub(super) fn generations(files: &StoreFiles) -> Result<Vec<u64>, StoreError> {
    let folder = files.meta();
    let entries = match files.vfs.list(&folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.at(&folder, "listing the metadata logs")?,
    };
    let names = entries.iter().filter(|entry| entry.stat.kind == FileKind::File);
    let names = names.filter_map(|entry| entry.name.to_str()?.strip_suffix(".log"));
    let mut found: Vec<u64> = names.filter_map(parse_offset_file_name).collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    Ok(found)
}

/// A log file after reading.
pub(super) struct FoundLogFile {
    pub(super) head: FileHeader,
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn VfsFile>,
    pub(super) state: MetaState,
    /// The end of the log: the offset in the file, and the metadata position.
    pub(super) end: u64,
    pub(super) place: MetaPosition,
    /// Everything before this position is synced.
    pub(super) synced: MetaPosition,
    /// No record after this position changes the state.
    pub(super) changed: MetaPosition,
    /// One past the last nonzero byte after the end; `None` if there is none.
    pub(super) used: Option<u64>,
    /// Length of the file in bytes.
    pub(super) len: u64,
    /// If the end of the log is damage, the reason.
    pub(super) damage: Option<String>,
    /// If the log ends early without damage (a torn tail), the reason.
    pub(super) torn: Option<&'static str>,
    /// If a closed store has bytes after the end of the log, a description of them. They lose nothing.
    pub(super) excess: Option<String>,
}

impl FoundLogFile {
    /// Returns the metadata position of byte `at` of the file.
    pub(super) fn place_of(head: &FileHeader, at: u64) -> MetaPosition {
        MetaPosition(head.place.0.saturating_add(at.saturating_sub(head.tail_start)))
    }

    fn corrupt(&self, reason: &str) -> StoreError {
        let advice = "read the store with mode \"r\", or open it with recovery=\"salvage\", which drops everything \
                      after this offset; nothing was changed";
        StoreError::corrupt(&self.path, self.end, format!("{reason}; {advice}"))
    }
}

/// Reads the newest file, and compares its end with the mark; `None` if there is none.
pub(super) fn read_newest(
    files: &StoreFiles,
    access: Access,
    marked: MarkedLog,
) -> Result<Option<FoundLogFile>, StoreError> {
    let Some(generation) = generations(files)?.first().copied() else { return Ok(None) };
    let path = file_of(files, generation);
    let file = files.vfs.open(&path, access).at(&path, "opening the metadata log")?;
    let mut found = read_file(&path, &file, generation)?;
    found.compare(marked);
    Ok(Some(found))
}

fn read_file(path: &Path, file: &Arc<dyn VfsFile>, generation: u64) -> Result<FoundLogFile, StoreError> {
    let len = file.len().at(path, "reading the length of the metadata log")?;
    let mut bytes = vec![0; HEAD_BYTES.min(len) as usize];
    file.read_exact_at(&mut bytes, 0).at(path, "reading the metadata log")?;
    let head = FileHeader::decode(&bytes).filter(|head| head.generation == generation);
    let mut found = FoundLogFile {
        head: head.unwrap_or(FileHeader { generation, tail_start: HEAD_BYTES, place: MetaPosition(0) }),
        path: path.to_path_buf(),
        file: Arc::clone(file),
        state: MetaState::default(),
        end: HEAD_BYTES,
        place: MetaPosition(0),
        synced: MetaPosition(0),
        changed: MetaPosition(0),
        used: None,
        len,
        damage: None,
        torn: None,
        excess: None,
    };
    if head.is_none() {
        found.damage = Some("the file has no valid head of a metadata log".to_owned());
        (found.end, found.used) = (0, Some(len).filter(|len| *len > 0));
        return Ok(found);
    }
    found.replay()?;
    Ok(found)
}

impl FoundLogFile {
    fn replay(&mut self) -> Result<(), StoreError> {
        let head = self.head;
        let mut reader = FrameReader::new(&self.path, &self.file, HEAD_BYTES, self.len);
        loop {
            self.end = reader.at();
            match reader.next()? {
                NextFrame::Frame(at, records) => {
                    let place = Self::place_of(&head, at);
                    match self.state.apply_frame(records, place) {
                        Ok(false) => {}
                        Ok(true) => self.changed = Self::place_of(&head, reader.at()),
                        Err(reason) => {
                            self.damage = Some(reason.to_owned());
                            break;
                        }
                    }
                }
                NextFrame::End(reason) => {
                    self.torn = reason;
                    break;
                }
            }
        }
        self.place = Self::place_of(&head, self.end);
        let behind = inspect_tail(&self.path, &*self.file, self.end, self.len)?;
        self.used = behind.used;
        // Invariant: a snapshot is synced before its file gets its name.
        self.synced = head.place.max(self.state.synced);
        if self.end < head.tail_start {
            self.damage.get_or_insert_with(|| "a frame of the snapshot does not decode".to_owned());
        } else if behind.synced.is_some_and(|synced| self.ends_before(synced)) {
            self.damage.get_or_insert_with(|| "a frame below a synced position does not decode".to_owned());
        }
        if self.damage.is_none() {
            self.state.settle();
        }
        Ok(())
    }
}

impl FoundLogFile {
    /// Whether the log ends before a position up to which it was synced once.
    fn ends_before(&self, synced: MetaPosition) -> bool {
        switch::on("meta.synced_damage") && self.place < synced
    }

    fn compare(&mut self, marked: MarkedLog) {
        if self.damage.is_some() {
            return;
        }
        if self.ends_before(marked.end) {
            self.damage = Some(format!(
                "the file ends {} bytes before the end of the log that the last flush recorded: it was cut, or an \
                 older copy replaced it",
                marked.end.0 - self.place.0
            ));
        } else if marked.is_closed && self.place == marked.end && self.len > self.end {
            let bytes = self.len - self.end;
            self.excess =
                Some(format!("{bytes} bytes follow the end of the log, which the last close recorded"));
        }
    }
}

/// Finds the log that a writer will continue. Changes nothing. Damage is an error unless `mode` is
/// [`RecoveryMode::Salvage`].
pub(super) fn find(
    files: &StoreFiles,
    mode: RecoveryMode,
    marked: MarkedLog,
) -> Result<Option<FoundLogFile>, StoreError> {
    let found = read_newest(files, Access::ReadWrite, marked)?;
    match found.as_ref().and_then(|found| Some((found, found.damage.as_ref()?))) {
        Some((found, reason)) if mode != RecoveryMode::Salvage => Err(found.corrupt(reason)),
        _ => Ok(found),
    }
}

/// Prepares a found log for a writer: repairs its end and removes older generations. Then all of it is durable.
pub(super) fn recover(
    files: &StoreFiles,
    mut found: FoundLogFile,
    marked: MarkedLog,
    notes: &mut Vec<String>,
) -> Result<FoundLogFile, StoreError> {
    if let Some(reason) = &found.damage {
        notes.push(format!(
            "{}: {reason} at byte {}; everything after it is dropped",
            found.path.display(),
            found.end
        ));
    }
    if found.end < found.head.tail_start {
        // A log without a complete snapshot cannot take appends. The next generation stores what was read.
        backup_tail(files, &found, 0, notes)?;
        found.state.settle();
        return Ok(found);
    }
    truncate_tail(files, &mut found, notes)?;
    rewrite(&found, marked)?;
    // The process that named the file may have been killed before the name was durable.
    switch::step("meta.sync_found_name", || files.vfs.sync_dir(&files.meta()))
        .at(&files.meta(), "syncing a folder")?;
    for generation in generations(files)?.into_iter().filter(|generation| *generation < found.head.generation)
    {
        let path = file_of(files, generation);
        files.vfs.remove_file(&path).at(&path, "removing an old metadata log")?;
    }
    Ok(found)
}

/// Truncates the file at the end of the log, after copying the bytes after it.
fn truncate_tail(
    files: &StoreFiles,
    found: &mut FoundLogFile,
    notes: &mut Vec<String>,
) -> Result<(), StoreError> {
    if found.used.is_some() {
        backup_tail(files, found, found.end, notes)?;
    } else if let Some(excess) = &found.excess {
        notes.push(format!("{}: {excess}; they are zero and are removed", found.path.display()));
    }
    if found.len > found.end {
        let (path, file) = (&found.path, &found.file);
        switch::step("meta.cut_tail", || file.set_len(found.end)).at(path, "truncating the metadata log")?;
        found.len = found.end;
        switch::step("meta.sync_cut", || file.sync_data()).at(path, "syncing the metadata log")?;
    }
    Ok(())
}

/// Copies the bytes from `from` on to `lost+found`.
fn backup_tail(
    files: &StoreFiles,
    found: &FoundLogFile,
    from: u64,
    notes: &mut Vec<String>,
) -> Result<(), StoreError> {
    let Some(used) = found.used.max(Some(found.end)).filter(|used| *used > from) else { return Ok(()) };
    let name = format!("meta_{}.log.cut-at-{from}", offset_file_name(found.head.generation));
    let kept = files.unused_lost_and_found_name(&name)?;
    let copy = files.vfs.create_new(&kept).at(&kept, "copying the cut end of the metadata log")?;
    copy_part(found, from..used, &*copy, &kept)?;
    switch::step("meta.sync_copy", || copy.sync_all()).at(&kept, "syncing a copy of the metadata log")?;
    files.sync_lost_and_found()?;
    notes.push(format!(
        "{}: ends at byte {from} ({}); a copy of the {} bytes after it is in {}",
        found.path.display(),
        found.damage.as_deref().or(found.excess.as_deref()).or(found.torn).unwrap_or("zeros follow"),
        used - from,
        kept.display()
    ));
    Ok(())
}

/// Rewrites and syncs the frames that neither a later frame nor the mark states as synced. The last frame can be the
/// statement itself: the next mark states that it is durable, too.
fn rewrite(found: &FoundLogFile, marked: MarkedLog) -> Result<(), StoreError> {
    let synced = found.synced.max(marked.end);
    if synced >= found.place {
        return Ok(());
    }
    let (path, file) = (&found.path, &found.file);
    let from = found.head.tail_start + (synced.0 - found.head.place.0);
    if switch::on("meta.rewrite_tail") {
        let mut bytes = vec![0; (found.end - from) as usize];
        file.read_exact_at(&mut bytes, from).at(path, "reading the metadata log")?;
        file.write_all_at(&bytes, from).at(path, "rewriting the metadata log")?;
    }
    switch::step("meta.sync_rewritten", || file.sync_data()).at(path, "syncing the metadata log")
}

/// Reads the newest file while another process may be writing it. The result may be slightly older than the file.
fn read_next_to_writer(files: &StoreFiles) -> Result<Option<FoundLogFile>, StoreError> {
    read_expected(files, false)
}

/// Same as [`read_next_to_writer`]. If a file is `expected`, a list without one is read again: a new file may have
/// replaced the listed one.
fn read_expected(files: &StoreFiles, expected: bool) -> Result<Option<FoundLogFile>, StoreError> {
    for rest in (0..TRIES).rev() {
        match read_newest(files, Access::Read, MarkedLog::read(files)) {
            // The next generation replaced it.
            Err(error) if error.is_gone() && rest > 0 => {}
            Ok(None) if expected && rest > 0 => {}
            // The frame was still being written when it was read, and frames after it appeared a moment later.
            Ok(Some(found)) if found.damage.is_some() && rest > 0 => {}
            // A writer opened the store after the mark was read, and allocates space.
            Ok(Some(found)) if found.excess.is_some() && rest > 0 => {}
            outcome => return outcome,
        }
    }
    Ok(None)
}

/// Returns the state as a reader sees it: everything up to the end of the log, or up to damage, which a note reports.
/// The flag says whether there is damage.
pub(super) fn read_snapshot(
    files: &StoreFiles,
    notes: &mut Vec<String>,
) -> Result<Option<(MetaState, bool)>, StoreError> {
    let had_log = MarkedLog::read(files).exists;
    let Some(mut found) = read_expected(files, had_log)? else {
        if had_log {
            notes.push(format!("{}: {LOST_LOG}; the JSON files in config/ are used", files.meta().display()));
        }
        return Ok(had_log.then(|| (MetaState::default(), true)));
    };
    if let Some(reason) = &found.damage {
        let place = (found.path.display(), found.end);
        notes.push(format!("{}: {reason} at byte {}; what follows is not used", place.0, place.1));
        found.state.settle();
    }
    if let Some(excess) = &found.excess {
        notes.push(format!("{}: {excess}, at byte {}; they are not used", found.path.display(), found.end));
    }
    Ok(Some((found.state, found.damage.is_some())))
}

/// Finds damage of the log. Returns the file, the offset and the reason. If all files are missing, returns their
/// folder.
pub fn find_damage(files: &StoreFiles) -> Result<Option<(PathBuf, u64, String)>, StoreError> {
    let had_log = MarkedLog::read(files).exists;
    let found = read_expected(files, had_log)?;
    if had_log && found.is_none() {
        return Ok(Some((files.meta(), 0, LOST_LOG.to_owned())));
    }
    Ok(found.and_then(|found| Some((found.path, found.end, found.damage.or(found.excess)?))))
}

/// Whether the store had a metadata log and all its files are missing.
pub fn is_lost(files: &StoreFiles) -> bool {
    MarkedLog::read(files).exists && newest_file(files).is_none()
}

/// Returns the path of the newest file, if there is one.
pub fn newest_file(files: &StoreFiles) -> Option<PathBuf> {
    generations(files).ok()?.first().map(|generation| file_of(files, *generation))
}

/// Copies the log of a store, which may be in use, to a store that has none. Returns the metadata position at which the
/// copy ends; `None` without a log. The content of the copy is durable when this returns. The caller syncs its name and
/// that of its folder.
pub fn copy_log(files: &StoreFiles, to: &StoreFiles) -> Result<Option<u64>, StoreError> {
    let marked = MarkedLog::read(files);
    let Some(found) = read_next_to_writer(files)? else { return Ok(None) };
    to.ensure_folder(&to.meta())?;
    let path = file_of(to, found.head.generation);
    let copy = to.vfs.create_new(&path).at(&path, "copying the metadata log")?;
    // Bytes after the end may be a half-written frame. Damage is copied unchanged.
    let len = if found.damage.is_some() { found.len } else { found.end };
    copy_part(&found, 0..len, &*copy, &path)?;
    switch::step("meta.sync_log_copy", || copy.sync_all()).at(&path, "syncing a copy of the metadata log")?;
    // The copy of a log that lost its end has lost it, too.
    Ok(Some(found.place.max(marked.end).0))
}

fn copy_part(
    found: &FoundLogFile,
    part: Range<u64>,
    copy: &dyn VfsFile,
    to: &Path,
) -> Result<(), StoreError> {
    let mut buffer = vec![0; COPY_BYTES.min((part.end - part.start) as usize)];
    let mut at = part.start;
    while at < part.end {
        let piece = buffer.len().min((part.end - at) as usize);
        let piece = buffer.get_mut(..piece).unwrap_or_default();
        found.file.read_exact_at(piece, at).at(&found.path, "reading the metadata log")?;
        copy.write_all_at(piece, at - part.start).at(to, "copying the metadata log")?;
        at += piece.len() as u64;
    }
    Ok(())
}
