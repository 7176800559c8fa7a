//! Adds the checksum of each page to its header. The encoder of `parquet` leaves it out.
//!
//! ```text
//! type, decompressed length, length    CRC-32 of the page (this file)    header of the values
//! ```
//!
//! Each header becomes longer, so the places of the pages after it move.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use parquet::column::page_store::{PageKey, PageStore, PageStoreArgs, PageStoreFactory};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::{ParquetError, Result as ParquetResult};

/// Head of a field of a number of 32 bits whose number is one more than that of the field before.
const NEXT_NUMBER: u8 = 0x15;

/// Fields of a header before its checksum.
const FIELDS_BEFORE: usize = 3;

/// The longer header of a page.
#[derive(Clone, Copy, Debug)]
struct Longer {
    is_dictionary: bool,
    bytes: usize,
}

/// Creates the memory of the pages of each column of a row group, with checksums.
#[derive(Debug, Default)]
pub(super) struct PageChecksums {
    columns: Mutex<Vec<Arc<Mutex<Vec<Longer>>>>>,
}

impl PageStoreFactory for PageChecksums {
    fn create(&self, args: &PageStoreArgs<'_>) -> ParquetResult<Box<dyn PageStore>> {
        let longer = Arc::<Mutex<Vec<Longer>>>::default();
        let mut columns = self.columns.lock().unwrap_or_else(PoisonError::into_inner);
        columns.truncate(args.column_index());
        columns.push(Arc::clone(&longer));
        Ok(Box::new(CheckedPages { blobs: Vec::new(), longer }))
    }
}

impl PageChecksums {
    /// Moves the places of the pages of a column to where they are with the checksums.
    pub(super) fn apply(&self, column: usize, close: &mut ColumnCloseResult) -> ParquetResult<()> {
        let columns = self.columns.lock().unwrap_or_else(PoisonError::into_inner);
        let absent = || ParquetError::General("a column has no pages".to_owned());
        let longer = columns.get(column).ok_or_else(absent)?.lock().unwrap_or_else(PoisonError::into_inner);
        let total: usize = longer.iter().map(|page| page.bytes).sum();
        let before: usize = longer.iter().filter(|page| page.is_dictionary).map(|page| page.bytes).sum();
        let metadata = &close.metadata;
        close.metadata = metadata
            .clone()
            .into_builder()
            .set_total_compressed_size(metadata.compressed_size() + total as i64)
            .set_total_uncompressed_size(metadata.uncompressed_size() + total as i64)
            .set_data_page_offset(metadata.data_page_offset() + before as i64)
            .build()?;
        close.bytes_written += total as u64;
        let mut moved = before;
        let data = longer.iter().filter(|page| !page.is_dictionary);
        for (place, page) in
            close.offset_index.iter_mut().flat_map(|index| &mut index.page_locations).zip(data)
        {
            place.offset += moved as i64;
            place.compressed_page_size += page.bytes as i32;
            moved += page.bytes;
        }
        Ok(())
    }
}

/// The pages of a column: header and bytes of each.
struct CheckedPages {
    blobs: Vec<Bytes>,
    longer: Arc<Mutex<Vec<Longer>>>,
}

impl PageStore for CheckedPages {
    fn put(&mut self, value: Bytes) -> ParquetResult<PageKey> {
        let key = PageKey::new(self.blobs.len() as u64);
        if self.blobs.len() % 2 == 1
            && let Some(header) = self.blobs.last_mut()
        {
            let (with_checksum, is_dictionary) = with_checksum(header, crc32fast::hash(&value))?;
            let bytes = with_checksum.len() - header.len();
            *header = Bytes::from(with_checksum);
            self.longer.lock().unwrap_or_else(PoisonError::into_inner).push(Longer { is_dictionary, bytes });
        }
        self.blobs.push(value);
        Ok(key)
    }

    fn take(&mut self, key: PageKey) -> ParquetResult<Bytes> {
        let blob = usize::try_from(key.get()).ok().and_then(|key| self.blobs.get_mut(key));
        blob.map(std::mem::take).ok_or_else(|| ParquetError::General("a page is missing".to_owned()))
    }

    fn memory_size(&self) -> usize {
        self.blobs.iter().map(Bytes::len).sum()
    }
}

/// Returns a header with the checksum, and whether it is that of a dictionary.
fn with_checksum(header: &[u8], crc: u32) -> ParquetResult<(Vec<u8>, bool)> {
    let unknown = || ParquetError::General("a page has a header of an unknown form".to_owned());
    let mut at = 0;
    for _ in 0..FIELDS_BEFORE {
        if header.get(at) != Some(&NEXT_NUMBER) {
            return Err(unknown());
        }
        let rest = header.get(at + 1..).ok_or_else(unknown)?;
        at += 2 + rest.iter().position(|byte| *byte < 0x80).ok_or_else(unknown)?;
    }
    let (before, after) = header.split_at(at);
    let (next, rest) = after.split_first().ok_or_else(unknown)?;
    let mut found = before.to_vec();
    found.push(NEXT_NUMBER);
    let value = crc.cast_signed();
    let mut left = ((value << 1) ^ (value >> 31)).cast_unsigned();
    while left >= 0x80 {
        found.push((left & 0x7F) as u8 | 0x80);
        left >>= 7;
    }
    found.push(left as u8);
    // The number of the next field is relative to that of the field before.
    let delta = next.checked_sub(0x10).filter(|next| next >> 4 > 0).ok_or_else(unknown)?;
    found.push(delta);
    found.extend_from_slice(rest);
    // The header of a dictionary is field 7, that of data field 5.
    Ok((found, next >> 4 == 4))
}
