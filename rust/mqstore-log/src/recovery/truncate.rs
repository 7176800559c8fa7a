//! Truncation of the log after its end. Every removed byte is copied first.
//!
//! This module owns the log's part of `mqstore/lost+found/`:
//!
//! ```text
//! 00000000001073741824.cut-at-4711    the bytes of that segment from byte 4711 on, zeros as holes
//! 00000000002147483648                a whole segment after the end of the log
//! ```
//!
//! The order of steps makes a stop safe at any moment:
//!
//! 1. The copy and its name are durable before the first byte is zeroed.
//! 2. Segments after the end are removed before the segment that holds the end changes.
//! 3. The zeros are durable before the first append. A tail that already reads as zeros is synced too: an earlier
//!    recovery may have zeroed it and stopped before the sync.
//!
//! Most of a segment is usually unwritten. The code first asks the file system for all ranges with data, because
//! reading a hole creates pages that then count as data.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_format::{offset_file_name, parse_offset_file_name};
use mqstore_io::{Access, FileKind, VfsFile, switch};

use super::progress::{ProgressReporter, RecoveryStage};
use crate::commit_log::{Segment, SegmentList};
use mqstore_base::error::{IoContext, StoreError, Stray};
use mqstore_base::store_files::StoreFiles;

const CHUNK_BYTES: u64 = 1 << 20;
const FIRST_CHUNK_BYTES: u64 = 64 << 10;

/// Whether a record starts at the first byte of the segment.
pub(super) fn has_content(segment: &Segment) -> Result<bool, StoreError> {
    let mut head = [0; 8];
    segment
        .file()
        .at_file(|| segment.path(), "opening a log segment")?
        .read_exact_at(&mut head, 0)
        .at_file(|| segment.path(), "reading the start of a segment")?;
    Ok(head != [0; 8])
}

/// A file that is shorter than the segment that its name stands for.
#[derive(Debug)]
pub(super) struct ShortSegment {
    path: PathBuf,
    /// Log offset of the first byte.
    pub(super) base: u64,
    /// Byte length of the file.
    pub(super) len: u64,
}

/// Checks the files in the log folder that are no segments. Refuses each file that may hold records: its length differs
/// from `whole`, it is no regular file, or another file has the same offset. Returns the one file that recovery may
/// extend: a short file directly after the last segment. Changes nothing.
pub(super) fn classify_strays(
    files: &StoreFiles,
    list: &SegmentList,
    whole: u64,
) -> Result<Option<ShortSegment>, StoreError> {
    let mut short = None;
    for stray in &list.strays {
        let Some(base) = segment_base(&stray.path) else { continue };
        let stat = files.vfs.stat(&stray.path).at(&stray.path, "reading the metadata of a stray file")?;
        if stat.kind == FileKind::File && stat.len == 0 {
            continue;
        }
        let follows = base == list.end_offset() && stat.kind == FileKind::File && stat.len < whole;
        if !follows || short.is_some() {
            return Err(refused(stray));
        }
        short = Some(ShortSegment { path: stray.path.clone(), base, len: stat.len });
    }
    Ok(short)
}

fn refused(stray: &Stray) -> StoreError {
    let advice = "it may hold messages, so nothing was changed; move it away or put the right file in its place, or \
                  read the store with mode \"r\"";
    StoreError::corrupt(&stray.path, 0, format!("{}; {advice}", stray.reason))
}

/// Returns the error for a short segment that recovery must not extend.
pub(super) fn refuse_short(short: &ShortSegment, why: &str) -> StoreError {
    let advice = "nothing was changed; put the complete file back, or read the store with mode \"r\"";
    StoreError::corrupt(&short.path, short.len, format!("the segment is too short: {why}; {advice}"))
}

/// Extends a short segment to its full length with zeros. Returns a note.
pub(super) fn lengthen(
    files: &StoreFiles,
    short: &ShortSegment,
    segment_bytes: u64,
) -> Result<String, StoreError> {
    let path = &short.path;
    let file = files.vfs.open(path, Access::ReadWrite).at(path, "opening a short segment")?;
    file.set_len(segment_bytes).at(path, "extending a short segment")?;
    // The sync of the tail, which recovery cuts from the same file next, makes the length durable.
    Ok(format!("{}: was {} bytes long, extended with zeros to its full length", path.display(), short.len))
}

/// Removes the empty segments that a stop left. Returns a note for each of them and for each other stray file.
pub(super) fn sort_strays(
    files: &StoreFiles,
    list: &SegmentList,
    short: Option<&ShortSegment>,
) -> Result<Vec<String>, StoreError> {
    let mut notes = Vec::new();
    for stray in list.strays.iter().filter(|stray| short.is_none_or(|short| short.path != stray.path)) {
        if segment_base(&stray.path).is_some() {
            files.vfs.remove_file(&stray.path).at(&stray.path, "removing an empty segment")?;
            sync_folder_of(files, &stray.path)?;
            notes.push(format!("{}: removed, {}", stray.path.display(), stray.reason));
        } else {
            notes.push(format!("{}: ignored, {}", stray.path.display(), stray.reason));
        }
    }
    Ok(notes)
}

fn segment_base(path: &Path) -> Option<u64> {
    path.file_name().and_then(|name| name.to_str()).and_then(parse_offset_file_name)
}

/// Copies all nonzero bytes after `end` to `mqstore/lost+found`, zeroes them and removes later segments. Returns a note
/// for each change.
pub fn truncate_after(
    files: &StoreFiles,
    list: &SegmentList,
    end: u64,
    reason: &str,
    watch: &mut ProgressReporter<'_>,
) -> Result<Vec<String>, StoreError> {
    let mut notes = Vec::new();
    // The last segment goes first, so that a stop leaves no gap.
    for segment in list.segments().iter().rev().filter(|segment| segment.base_offset() > end) {
        notes.extend(remove_segment(files, segment, watch)?);
    }
    if let Some(segment) = list.find(end).cloned() {
        notes.extend(zero_tail(files, &segment, end - segment.base_offset(), reason, watch)?);
        sync_folder_of(files, &segment.path())?;
    }
    Ok(notes)
}

/// Removes a segment after the end of the log: deletes an unused one, moves any other to `lost+found`.
fn remove_segment(
    files: &StoreFiles,
    segment: &Arc<Segment>,
    watch: &mut ProgressReporter<'_>,
) -> Result<Option<String>, StoreError> {
    let path = segment.path();
    let chunks = data_chunks(segment, 0, watch)?;
    if chunks.is_empty() {
        files.vfs.remove_file(&path).at(&path, "removing an unused segment")?;
        sync_folder_of(files, &path)?;
        return Ok(None);
    }
    let plain = path.parent() == Some(&files.commit_log()) && files.link_target("commitlog").is_none();
    let kept = if plain {
        let kept = files.unused_lost_and_found_name(&offset_file_name(segment.base_offset()))?;
        files.vfs.rename(&path, &kept).at(&path, "moving a segment to lost+found")?;
        files.sync_lost_and_found()?;
        kept
    } else {
        // The segment may be on another file system, so that a rename is not possible.
        let file = segment.file().at(&path, "opening a log segment")?;
        let kept = backup_range(files, segment, file.as_ref(), 0, &chunks)?;
        files.vfs.remove_file(&path).at(&path, "removing a segment after the end of the log")?;
        kept
    };
    sync_folder_of(files, &path)?;
    Ok(Some(format!("{}: is after the end of the log, kept as {}", path.display(), kept.display())))
}

/// Returns the ranges of the segment's file from `from` on that hold nonzero bytes: position, and byte length up to the
/// last nonzero byte. A range is at most 1 MiB long.
fn data_chunks(
    segment: &Segment,
    from: u64,
    watch: &mut ProgressReporter<'_>,
) -> Result<Vec<(u64, usize)>, StoreError> {
    let file = segment.file().at_file(|| segment.path(), "opening a log segment")?;
    let places =
        written_places(file.as_ref(), from, segment.len()).at_file(|| segment.path(), "looking for data")?;
    let mut buffer = vec![0; CHUNK_BYTES.min(segment.len()) as usize];
    let mut chunks = Vec::new();
    let total = places.len() as u64 * CHUNK_BYTES;
    for ((place, len), done) in places.into_iter().zip(0_u64..) {
        let chunk = buffer.get_mut(..len).unwrap_or_default();
        file.read_exact_at(chunk, place).at_file(|| segment.path(), "reading after the end of the log")?;
        if let Some(used) = used_bytes(chunk) {
            chunks.push((place, used));
        }
        watch.step(RecoveryStage::Tail, done * CHUNK_BYTES, total)?;
    }
    Ok(chunks)
}

/// Returns the ranges of `from..len` for which the file system has data, as position and length. The first range is
/// short, because often only the rest of one page has data.
fn written_places(file: &dyn VfsFile, from: u64, len: u64) -> std::io::Result<Vec<(u64, usize)>> {
    let mut places = Vec::new();
    let mut at = from;
    while at < len {
        match file.next_data(at)? {
            Some(data) if data < len => at = at.max(data),
            _ => break,
        }
        let most = if places.is_empty() { FIRST_CHUNK_BYTES } else { CHUNK_BYTES };
        let bytes = most.min(len - at);
        places.push((at, bytes as usize));
        at += bytes;
    }
    Ok(places)
}

/// Returns the length up to the last nonzero byte; `None` if all bytes are zero.
fn used_bytes(bytes: &[u8]) -> Option<usize> {
    // A fold without an early exit compiles to wide vector steps.
    let zero = bytes.iter().fold(0, |all, byte| all | byte) == 0;
    if zero { None } else { bytes.iter().rposition(|byte| *byte != 0).map(|last| last + 1) }
}

/// Copies the data of the segment's file from `from` on to lost+found, then zeroes it.
fn zero_tail(
    files: &StoreFiles,
    segment: &Segment,
    from: u64,
    reason: &str,
    watch: &mut ProgressReporter<'_>,
) -> Result<Option<String>, StoreError> {
    let path = segment.path();
    let chunks = data_chunks(segment, from, watch)?;
    let file = files.vfs.open(&path, Access::ReadWrite).at(&path, "opening a segment")?;
    let mut note = None;
    if let Some(end) = chunks.last().map(|(place, used)| place + *used as u64) {
        let kept = backup_range(files, segment, file.as_ref(), from, &chunks)?;
        let zeros = vec![0; CHUNK_BYTES.min(segment.len()) as usize];
        // Zeroes backwards: a stop leaves the front of the tail, which the next recovery cuts again.
        for (place, used) in chunks.iter().rev() {
            let zeros = zeros.get(..*used).unwrap_or_default();
            switch::step("recovery.zero_tail", || file.write_all_at(zeros, *place))
                .at(&path, "zeroing the cut tail")?;
        }
        note = Some(format!(
            "{}: cut at byte {from} ({reason}); the {} bytes from there on are kept in {}",
            path.display(),
            end - from,
            kept.display()
        ));
    }
    switch::step("recovery.sync_zeros", || file.sync_data()).at(&path, "syncing the cut tail")?;
    Ok(note)
}

fn backup_range(
    files: &StoreFiles,
    segment: &Segment,
    from_file: &dyn VfsFile,
    from: u64,
    chunks: &[(u64, usize)],
) -> Result<PathBuf, StoreError> {
    let kept = files
        .unused_lost_and_found_name(&format!("{}.cut-at-{from}", offset_file_name(segment.base_offset())))?;
    let copy = files.vfs.create_new(&kept).at(&kept, "keeping a copy of the cut tail")?;
    let mut buffer = vec![0; CHUNK_BYTES.min(segment.len()) as usize];
    for (place, used) in chunks {
        let chunk = buffer.get_mut(..*used).unwrap_or_default();
        from_file.read_exact_at(chunk, *place).at_file(|| segment.path(), "reading the cut tail")?;
        copy.write_all_at(chunk, place - from).at(&kept, "keeping a copy of the cut tail")?;
    }
    switch::step("recovery.sync_copy", || copy.sync_all()).at(&kept, "syncing the copy of the cut tail")?;
    files.sync_lost_and_found()?;
    Ok(kept)
}

fn sync_folder_of(files: &StoreFiles, path: &Path) -> Result<(), StoreError> {
    let folder = path.parent().unwrap_or(path);
    switch::step("recovery.sync_log_folder", || files.vfs.sync_dir(folder)).at(folder, "syncing a folder")
}
