//! Restores the name of a record's checksum: the last 20 bytes of a record whose ten digits match the record, but whose
//! name or separators are damaged.
//!
//! ```text
//! ... | __CRC32#\x01 | 1234567890 | \x02      the digits prove all bytes before the name
//! ```
//!
//! The damaged bytes are durable in `lost+found` before they change. After a crash in the middle, the record has its
//! old or its new bytes, or some of both, and another repair completes it.

use mqstore_format::{PROPERTY_CRC_BYTES, restore_property_crc};
use mqstore_io::Access;

use super::backup;
use super::damage_scan::read;
use super::placeholders::sync_filled;
use super::segment_files::load;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;
use mqstore_log::commit_log::SegmentList;

/// Describes the correction of the record at log offset `offset`.
pub(crate) fn describe(files: &StoreFiles, list: &SegmentList, offset: u64) -> String {
    let segment = list.find(offset);
    let path = segment.map_or_else(|| files.commit_log(), |segment| segment.path());
    let at = segment.map_or(offset, |segment| offset - segment.base_offset());
    format!(
        "{}: the record at offset {at} is intact except for the name of its checksum; name restored",
        path.display()
    )
}

/// Restores the names of the checksums of `unnamed`, log offsets and sizes of records, and syncs them.
pub(crate) fn restore(
    files: &StoreFiles,
    segment_bytes: u64,
    unnamed: &[(u64, u32)],
    watch: backup::ByteProgress<'_>,
) -> Result<(), StoreError> {
    for (offset, size) in unnamed {
        watch(0)?;
        let list = load(files, segment_bytes)?;
        let Some(segment) = list.find(*offset) else { continue };
        let (path, at) = (segment.path(), offset - segment.base_offset());
        let mut bytes = read(segment, at, *size)?;
        restore_property_crc(&mut bytes).map_err(|error| StoreError::format(&path, at, &error))?;
        let end = at + u64::from(*size);
        let name = end.saturating_sub(PROPERTY_CRC_BYTES as u64);
        let kept = format!("{}.damaged-at-{name}", path.file_name().unwrap_or_default().to_string_lossy());
        let file = segment.file().at(&path, "opening a log segment")?;
        backup::copy(files, &path, &*file, &kept, name..end, watch)?;
        backup::break_hard_link(files, &path, watch)?;
        let file = files.vfs.open(&path, Access::ReadWrite).at(&path, "opening a log segment")?;
        let tail = bytes.last_chunk::<PROPERTY_CRC_BYTES>();
        file.write_all_at(tail.map_or(&[], |tail| tail), name)
            .at(&path, "restoring the name of a checksum")?;
        sync_filled(&*file, &path)?;
    }
    Ok(())
}
