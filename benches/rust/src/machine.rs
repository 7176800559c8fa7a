//! What limits are made of: files that are mapped, and records that are placed in them with their checksums.

use std::hint::black_box;
use std::io;
use std::path::Path;
use std::sync::Arc;

use mqstore_io::{MapAccess, OsVfs, Region, Vfs, VfsFile};

/// A new file of `len` bytes in `folder` that has its room on the disk, and its map.
///
/// # Errors
/// Those of the system.
pub fn mapped_file(folder: &Path, name: &str, len: usize) -> io::Result<(Arc<dyn VfsFile>, Region)> {
    let vfs = OsVfs::new();
    vfs.create_dir_all(folder)?;
    let file = vfs.create_new(&folder.join(name))?;
    file.allocate(len as u64)?;
    file.sync_all()?;
    let region = file.map(0, len, MapAccess::ReadWrite)?;
    Ok((file, region))
}

/// One copy of `record` to `at`, the CRC of its body and that of all of it.
///
/// # Errors
/// When the record does not lie in the map.
#[inline]
pub fn place(region: &Region, at: usize, record: &[u8], body_bytes: usize) -> io::Result<()> {
    let (body, _) = record.split_at(body_bytes.min(record.len()));
    let crc = crc32fast::hash(black_box(body)) ^ crc32fast::hash(black_box(record));
    region.write(at, record)?;
    region.write(at, &crc.to_be_bytes())?;
    Ok(())
}
