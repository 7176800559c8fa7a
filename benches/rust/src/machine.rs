//! The parts of limits: mapped files, and records that are copied into them with their checksums.

use std::hint::black_box;
use std::io;
use std::path::Path;
use std::sync::Arc;

use mqstore::io::{OsVfs, Vfs, VfsFile};
use mqstore_io::{MapAccess, Region};

/// A new file of `len` bytes in `folder` with allocated disk space, and its map.
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

/// Copies `record` to `at` once, and computes the CRC of its body and of the whole record.
///
/// # Errors
/// If the record is not inside the map.
#[inline]
pub fn place(region: &Region, at: usize, record: &[u8], body_bytes: usize) -> io::Result<()> {
    let (body, _) = record.split_at(body_bytes.min(record.len()));
    let crc = crc32fast::hash(black_box(body)) ^ crc32fast::hash(black_box(record));
    region.write(at, record)?;
    region.write(at, &crc.to_be_bytes())?;
    Ok(())
}
