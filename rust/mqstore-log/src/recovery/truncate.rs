//! Taking away what lies behind the end of the log, and never without a copy.
//!
//! Owns `mqstore/lost+found/` as far as the log is concerned:
//!
//! ```text
//! 00000000001073741824.cut-at-4711    what followed byte 4711 of that segment, zeros as holes
//! 00000000002147483648                a segment that lay behind the end, as it was
//! ```
//!
//! Order, so that a stop in between loses nothing: the copy and its name are durable before the first
//! byte is zeroed; segments behind the end go before the one that holds it is touched; the zeros are
//! durable before anybody may append. A tail that reads as zeros already is synced all the same: who
//! zeroed it may have been stopped before the sync.
//!
//! A segment is mostly room that nothing was written to. That is found without reading: the file system
//! is asked for all stretches with data first, because reading a hole makes pages that count as data.

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

/// Whether the segment's first record place is in use.
pub(super) fn has_content(segment: &Segment) -> Result<bool, StoreError> {
    let mut head = [0; 8];
    segment
        .file()
        .at_file(|| segment.path(), "opening a log segment")?
        .read_exact_at(&mut head, 0)
        .at_file(|| segment.path(), "reading a segment's start")?;
    Ok(head != [0; 8])
}

/// A file that is too short to be the segment that its name says.
#[derive(Debug)]
pub(super) struct ShortSegment {
    path: PathBuf,
    /// The log offset of its first byte.
    pub(super) base: u64,
    /// Its length.
    pub(super) len: u64,
}

/// Finds out what lies among the segments without being one. Refuses whatever may hold records: another
/// length than `whole`, another kind, two for one place. Answers the one that may be made whole: a short
/// file right behind the last segment. Changes nothing.
pub(super) fn classify_strays(
    files: &StoreFiles,
    list: &SegmentList,
    whole: u64,
) -> Result<Option<ShortSegment>, StoreError> {
    let mut short = None;
    for stray in &list.strays {
        let Some(base) = segment_base(&stray.path) else { continue };
        let stat = files.vfs.stat(&stray.path).at(&stray.path, "looking at a stray file")?;
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

/// Refuses a short segment that cannot be made whole.
pub(super) fn refuse_short(short: &ShortSegment, why: &str) -> StoreError {
    let advice = "put the whole file back, or read the store with mode \"r\"; nothing was changed";
    StoreError::corrupt(&short.path, short.len, format!("the file is cut off: {why}; {advice}"))
}

/// Gives a short segment its whole length; the new bytes are zeros.
pub(super) fn lengthen(
    files: &StoreFiles,
    short: &ShortSegment,
    segment_bytes: u64,
) -> Result<String, StoreError> {
    let path = &short.path;
    let file = files.vfs.open(path, Access::ReadWrite).at(path, "opening a short segment")?;
    file.allocate(segment_bytes).at(path, "making a short segment whole")?;
    switch::step("recovery.sync_lengthened", || file.sync_all()).at(path, "syncing a segment")?;
    Ok(format!("{}: was {} bytes long, made whole with zeros", path.display(), short.len))
}

/// Removes the empty segments that a stop left, and says what else lies about.
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

/// Copies everything that is not zero behind `end` to `mqstore/lost+found`, then zeroes it and takes
/// later segments away. Says what it did.
pub fn truncate_after(
    files: &StoreFiles,
    list: &SegmentList,
    end: u64,
    reason: &str,
    watch: &mut ProgressReporter<'_>,
) -> Result<Vec<String>, StoreError> {
    let mut notes = Vec::new();
    // The last one first, so that a stop leaves no gap.
    for segment in list.segments().iter().rev().filter(|segment| segment.base_offset() > end) {
        notes.extend(remove_segment(files, segment, watch)?);
    }
    if let Some(segment) = list.find(end).cloned() {
        notes.extend(zero_tail(files, &segment, end - segment.base_offset(), reason, watch)?);
        sync_folder_of(files, &segment.path())?;
    }
    Ok(notes)
}

/// Takes a segment behind the end away: unused ones are removed, others kept in `lost+found`.
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
    let kept = if path.parent() == Some(&files.commit_log()) {
        let kept = files.unused_lost_and_found_name(&offset_file_name(segment.base_offset()))?;
        files.vfs.rename(&path, &kept).at(&path, "moving a segment to lost+found")?;
        files.sync_lost_and_found()?;
        kept
    } else {
        // It may lie on another file system, from which no rename leads here.
        let file = segment.file().at(&path, "opening a log segment")?;
        let kept = backup_range(files, segment, file.as_ref(), 0, &chunks)?;
        files.vfs.remove_file(&path).at(&path, "removing a segment behind the end of the log")?;
        kept
    };
    sync_folder_of(files, &path)?;
    Ok(Some(format!("{}: lies behind the end of the log, kept as {}", path.display(), kept.display())))
}

/// Stretches of the segment's file at or behind `from` that hold something else than zeros: position,
/// and how many bytes up to the last one that is not zero; at most a mebibyte each.
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
        file.read_exact_at(chunk, place).at_file(|| segment.path(), "reading behind the end of the log")?;
        if let Some(used) = used_bytes(chunk) {
            chunks.push((place, used));
        }
        watch.step(RecoveryStage::Tail, done * CHUNK_BYTES, total)?;
    }
    Ok(chunks)
}

/// Stretches of `from..len` that the file system has something for: where they begin and their length.
/// The first is short: often nothing but the rest of one page is there.
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

/// How many bytes there are up to the last one that is not zero; `None` when all are.
fn used_bytes(bytes: &[u8]) -> Option<usize> {
    // Without a way out in its middle this takes many bytes a step.
    let zero = bytes.iter().fold(0, |all, byte| all | byte) == 0;
    if zero { None } else { bytes.iter().rposition(|byte| *byte != 0).map(|last| last + 1) }
}

/// Zeroes the segment's file from `from` on, after a copy of what was there.
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
        // From the end on: what is left by a stop is the beginning, which the next recovery cuts again.
        for (place, used) in chunks.iter().rev() {
            let zeros = zeros.get(..*used).unwrap_or_default();
            switch::step("recovery.zero_tail", || file.write_all_at(zeros, *place))
                .at(&path, "zeroing the cut tail")?;
        }
        note = Some(format!(
            "{}: cut at byte {from} ({reason}); the {} bytes behind it are kept in {}",
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

/// Makes the names in the folder of a segment durable.
fn sync_folder_of(files: &StoreFiles, path: &Path) -> Result<(), StoreError> {
    let folder = path.parent().unwrap_or(path);
    switch::step("recovery.sync_log_folder", || files.vfs.sync_dir(folder)).at(folder, "syncing a folder")
}
