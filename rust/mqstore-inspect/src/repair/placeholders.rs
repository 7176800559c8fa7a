//! Fills lost ranges of the log with records that both engines skip.

use std::path::{Path, PathBuf};

use mqstore_format::{
    BLANK_HEADER_BYTES, MIN_RECORD_BYTES, encode_blank, encode_placeholder, offset_file_name,
    placeholder_bytes,
};
use mqstore_io::{Access, VfsFile, switch};

use super::backup;
use super::damage_scan::DamagedPiece;
use super::segment_files::load;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;
use mqstore_log::commit_log::SegmentList;

/// Whether a filler or a placeholder fits into `piece`. Both ends are ends of records. So one fits, unless neither
/// engine wrote the bytes between them.
pub(crate) fn fits(piece: &DamagedPiece) -> bool {
    let least = if piece.to_end { BLANK_HEADER_BYTES } else { MIN_RECORD_BYTES };
    piece.to - piece.from >= least as u64
}

/// Describes a piece into which neither fits.
pub(crate) fn too_small(piece: &DamagedPiece) -> String {
    let (bytes, from) = (piece.to - piece.from, piece.from);
    format!("log offset {from}: {} ({bytes} bytes): too short for a record, left unchanged", piece.reason)
}

/// Describes the filling of a piece.
pub(crate) fn describe_fill(files: &StoreFiles, piece: &DamagedPiece) -> String {
    let (bytes, at, reason) = (piece.to - piece.from, piece.from - piece.base, &piece.reason);
    let Some(path) = &piece.path else {
        let path = files.commit_log().join(offset_file_name(piece.base));
        return format!("{}: missing; created as a segment with only a filler", path.display());
    };
    let by = if piece.to_end { "a filler" } else { "placeholders" };
    format!("{}: {bytes} bytes at offset {at} replaced by {by}: {reason}", path.display())
}

/// Copies the bytes of a piece to `lost+found`, unless they are zeros.
pub(crate) fn backup_piece(
    files: &StoreFiles,
    list: &SegmentList,
    piece: &DamagedPiece,
    watch: backup::ByteProgress<'_>,
) -> Result<Option<PathBuf>, StoreError> {
    let Some(segment) = list.next_from(piece.base).filter(|segment| segment.base_offset() == piece.base)
    else {
        return Ok(None);
    };
    let path = segment.path();
    let file = segment.file().at(&path, "opening a log segment")?;
    let from = piece.from - piece.base;
    let name = format!("{}.damaged-at-{from}", offset_file_name(piece.base));
    backup::copy(files, &path, &*file, &name, from..(piece.to - piece.base).min(segment.len()), watch)
}

/// Fills all pieces and syncs them.
pub(crate) fn write_placeholders(
    files: &StoreFiles,
    segment_bytes: u64,
    pieces: &[&DamagedPiece],
    watch: backup::ByteProgress<'_>,
) -> Result<(), StoreError> {
    for piece in pieces.iter().filter(|piece| piece.path.is_some()) {
        let list = load(files, segment_bytes)?;
        let Some(segment) = list.find(piece.base).filter(|segment| segment.base_offset() == piece.base)
        else {
            continue;
        };
        let path = segment.path();
        backup::break_hard_link(files, &path, watch)?;
        fill_piece(files, &path, piece, watch)?;
    }
    // The sync of the log's folders before the mark makes the names durable.
    for piece in pieces.iter().filter(|piece| piece.path.is_none()) {
        make_segment(files, segment_bytes, piece)?;
    }
    Ok(())
}

fn fill_piece(
    files: &StoreFiles,
    path: &Path,
    piece: &DamagedPiece,
    watch: backup::ByteProgress<'_>,
) -> Result<(), StoreError> {
    let file = files.vfs.open(path, Access::ReadWrite).at(path, "opening a log segment")?;
    let mut at = piece.from;
    if piece.to_end {
        file.write_all_at(&encode_blank((piece.to - at) as u32), at - piece.base)
            .at(path, "writing a filler")?;
        at = piece.to;
    }
    let mut bytes = Vec::new();
    while let Some(size) = placeholder_bytes(piece.to - at) {
        watch(0)?;
        bytes.clear();
        encode_placeholder(size, at as i64, piece.store_timestamp_ms, &mut bytes)
            .map_err(|error| StoreError::format(path, at - piece.base, &error))?;
        file.write_all_at(&bytes, at - piece.base).at(path, "writing a placeholder")?;
        at += size;
    }
    sync_filled(&*file, path)
}

/// Syncs bytes of a segment that a repair wrote.
pub(super) fn sync_filled(file: &dyn VfsFile, path: &Path) -> Result<(), StoreError> {
    switch::step("repair.sync_filled", || file.sync_data()).at(path, "syncing a filled range")
}

/// Creates a segment that contains only a filler.
fn make_segment(files: &StoreFiles, segment_bytes: u64, piece: &DamagedPiece) -> Result<(), StoreError> {
    let folder = files.segment_staging(piece.base, segment_bytes)?;
    files.make_folder(&folder)?;
    let staged = folder.join(offset_file_name(piece.base));
    match files.vfs.remove_file(&staged) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(StoreError::io(&staged, "removing a leftover of a stopped run", error));
        }
        _ => {}
    }
    let file = files.vfs.create_new(&staged).at(&staged, "making a segment")?;
    file.set_len(segment_bytes).at(&staged, "making a segment")?;
    file.write_all_at(&encode_blank(segment_bytes as u32), 0).at(&staged, "writing a filler")?;
    switch::step("repair.sync_made", || file.sync_all()).at(&staged, "syncing a segment")?;
    let path = files.name_of_staged(&staged, piece.base)?;
    files.vfs.rename_noreplace(&staged, &path).at(&path, "naming a segment")
}
