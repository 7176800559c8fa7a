//! Encodes rows of an archive to the bytes of their records.
//!
//! The rows come from files that may be damaged: every value is checked before it is used.

use std::str::FromStr;

use arrow_array::{Array, RecordBatch};
use mqstore_arrow::{BytesValues, Numbers, integers, times_ms};
use mqstore_format::{Host, RecordSpec, RecordView, SysFlag, patch_body_crc};

use crate::file::FileError;

/// The error for rows that are not those of an archive.
fn wrong(reason: impl std::fmt::Display) -> FileError {
    FileError::damaged(format!("its rows are not those of an archive: {reason}"))
}

/// The columns of a batch.
pub struct ArchiveRows<'a> {
    topic: BytesValues<'a>,
    queue_id: Numbers<'a>,
    queue_offset: Numbers<'a>,
    commit_log_offset: Numbers<'a>,
    size: Numbers<'a>,
    store_timestamp: Numbers<'a>,
    born_timestamp: Numbers<'a>,
    flag: Numbers<'a>,
    sys_flag: Numbers<'a>,
    reconsume_times: Numbers<'a>,
    prepared_transaction_offset: Numbers<'a>,
    born_host: BytesValues<'a>,
    store_host: BytesValues<'a>,
    body_crc: Numbers<'a>,
    magic: Numbers<'a>,
    properties_raw: BytesValues<'a>,
    body: BytesValues<'a>,
    raw: BytesValues<'a>,
}

impl<'a> ArchiveRows<'a> {
    /// Returns the columns of a batch.
    ///
    /// # Errors
    /// A column is missing, or has another type.
    pub fn of(batch: &'a RecordBatch) -> Result<Self, FileError> {
        fn column<'a, T>(
            batch: &'a RecordBatch,
            name: &str,
            convert: impl FnOnce(&'a dyn Array) -> Option<T>,
        ) -> Result<T, FileError> {
            let array = batch.column_by_name(name).ok_or_else(|| wrong(format!("no column {name}")))?;
            convert(array.as_ref())
                .ok_or_else(|| wrong(format!("column {name} has the type {}", array.data_type())))
        }
        Ok(Self {
            topic: column(batch, "topic", BytesValues::text)?,
            queue_id: column(batch, "queue_id", integers)?,
            queue_offset: column(batch, "queue_offset", integers)?,
            commit_log_offset: column(batch, "commit_log_offset", integers)?,
            size: column(batch, "size", integers)?,
            store_timestamp: column(batch, "store_timestamp", times_ms)?,
            born_timestamp: column(batch, "born_timestamp", times_ms)?,
            flag: column(batch, "flag", integers)?,
            sys_flag: column(batch, "sys_flag", integers)?,
            reconsume_times: column(batch, "reconsume_times", integers)?,
            prepared_transaction_offset: column(batch, "prepared_transaction_offset", integers)?,
            born_host: column(batch, "born_host", BytesValues::text)?,
            store_host: column(batch, "store_host", BytesValues::text)?,
            body_crc: column(batch, "body_crc", integers)?,
            magic: column(batch, "magic", integers)?,
            properties_raw: column(batch, "properties_raw", BytesValues::of)?,
            body: column(batch, "body", BytesValues::of)?,
            raw: column(batch, "raw", BytesValues::of)?,
        })
    }

    /// Returns the log offset of a row.
    ///
    /// # Errors
    /// The row has none.
    pub fn log_offset(&self, row: usize) -> Result<u64, FileError> {
        let offset = (self.commit_log_offset)(row).and_then(|offset| u64::try_from(offset).ok());
        offset.ok_or_else(|| wrong(format!("row {row} has no log offset")))
    }

    /// Appends the record of a row to `out`.
    ///
    /// # Errors
    /// The row is not that of an archive.
    pub fn encode(&self, row: usize, out: &mut Vec<u8>) -> Result<(), FileError> {
        let size = long(&self.size, row, "size")?;
        let written = match self.raw.get(row) {
            Some(raw) => {
                let view = RecordView::decode(raw).map_err(wrong)?;
                if (view.bytes.len(), view.physical_offset.cast_unsigned())
                    != (raw.len(), self.log_offset(row)?)
                {
                    return Err(wrong(format!("row {row} has another record in its column raw")));
                }
                out.extend_from_slice(raw);
                raw.len()
            }
            None => self.encode_columns(row, out)?,
        };
        if i64::try_from(written) != Ok(size) {
            return Err(wrong(format!("the record of row {row} has {written} bytes, not {size}")));
        }
        Ok(())
    }

    /// Encodes the record of a row without `raw`.
    fn encode_columns(&self, row: usize, out: &mut Vec<u8>) -> Result<usize, FileError> {
        let spec = self.spec(row)?;
        if spec.version().magic() != int(&self.magic, row, "magic")?.cast_unsigned() {
            return Err(wrong(format!("the magic of row {row} does not fit its topic")));
        }
        let families = (spec.sys_flag.born_host_v6(), spec.sys_flag.store_host_v6());
        if families != (spec.born_host.ip.is_ipv6(), spec.store_host.ip.is_ipv6()) {
            return Err(wrong(format!("the flag of row {row} does not fit its hosts")));
        }
        let start = out.len();
        let written = spec.encode_into(out).map_err(wrong)?;
        let body_crc = int(&self.body_crc, row, "body_crc")?.cast_unsigned();
        patch_body_crc(out.get_mut(start..).unwrap_or_default(), body_crc);
        Ok(written)
    }

    fn spec(&self, row: usize) -> Result<RecordSpec<'a>, FileError> {
        let topic = bytes(&self.topic, row, "topic")?;
        Ok(RecordSpec {
            queue_id: int(&self.queue_id, row, "queue_id")?,
            flag: int(&self.flag, row, "flag")?,
            queue_offset: long(&self.queue_offset, row, "queue_offset")?,
            physical_offset: self.log_offset(row)?.cast_signed(),
            sys_flag: SysFlag(int(&self.sys_flag, row, "sys_flag")?),
            born_timestamp: long(&self.born_timestamp, row, "born_timestamp")?,
            born_host: host(&self.born_host, row, "born_host")?,
            store_timestamp: long(&self.store_timestamp, row, "store_timestamp")?,
            store_host: host(&self.store_host, row, "store_host")?,
            reconsume_times: int(&self.reconsume_times, row, "reconsume_times")?,
            prepared_transaction_offset: long(
                &self.prepared_transaction_offset,
                row,
                "prepared_transaction_offset",
            )?,
            body: bytes(&self.body, row, "body")?,
            topic: std::str::from_utf8(topic).map_err(wrong)?,
            properties: bytes(&self.properties_raw, row, "properties_raw")?,
            property_crc: false,
        })
    }
}

fn long(column: &Numbers<'_>, row: usize, name: &str) -> Result<i64, FileError> {
    column(row).ok_or_else(|| wrong(format!("row {row}, column {name}: it is null")))
}

fn int(column: &Numbers<'_>, row: usize, name: &str) -> Result<i32, FileError> {
    i32::try_from(long(column, row, name)?).map_err(|_| wrong(format!("row {row}, column {name}: too large")))
}

fn bytes<'a>(column: &BytesValues<'a>, row: usize, name: &str) -> Result<&'a [u8], FileError> {
    column.get(row).ok_or_else(|| wrong(format!("row {row}, column {name}: it is null")))
}

fn host(column: &BytesValues<'_>, row: usize, name: &str) -> Result<Host, FileError> {
    let text = std::str::from_utf8(bytes(column, row, name)?).map_err(wrong)?;
    Host::from_str(text).map_err(wrong)
}

/// Calls `visit` with each row of a batch and the bytes of its record.
///
/// # Errors
/// Those of `visit`; a row is not that of an archive.
pub fn for_each_record(
    batch: &RecordBatch,
    mut visit: impl FnMut(&ArchiveRows<'_>, usize, &[u8]) -> Result<(), FileError>,
) -> Result<(), FileError> {
    let mut buffer = Vec::new();
    let rows = ArchiveRows::of(batch)?;
    for row in 0..batch.num_rows() {
        buffer.clear();
        rows.encode(row, &mut buffer)?;
        visit(&rows, row, &buffer)?;
    }
    Ok(())
}
