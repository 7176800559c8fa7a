//! A client's batch: many messages in the body of one request.
//!
//! ```text
//! item: size (4), magic 0 (4), body CRC 0 (4), FLAG (4), BODYLEN (4), BODY, PROPLEN (2), PROPERTIES
//! ```
//!
//! An ordinary batch is split: each item becomes a separate record ([`split_batch`]), and the log does not show that
//! they came together. In a batch queue the whole body stays one record, an *inner batch*
//! ([`crate::SysFlag::inner_batch`]), and readers split it. Source: `MessageDecoder#encodeMessage`, `#decodeMessage`,
//! `MessageExtEncoder#encode(MessageExtBatch, ..)`.

use crate::bytes::Reader;
use crate::error::FormatError;
use crate::record::{MAX_PROPERTIES_BYTES, RecordSpec};

/// Byte length of an item without body and properties.
pub const MIN_BATCH_ITEM_BYTES: usize = 22;

/// One message of a batch.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct BatchItem<'a> {
    /// The application's flag.
    pub flag: i32,
    /// The body.
    pub body: &'a [u8],
    /// The properties in their text form.
    pub properties: &'a [u8],
}

impl BatchItem<'_> {
    /// Appends the item to a batch body. The sizes must fit their fields (body 2 GiB, properties 32,767 bytes).
    fn encode_into(&self, out: &mut Vec<u8>) -> Result<(), FormatError> {
        if self.properties.len() > MAX_PROPERTIES_BYTES {
            let (value, limit) = (self.properties.len() as u64, MAX_PROPERTIES_BYTES as u64);
            return Err(FormatError::TooLarge { what: "properties", value, limit });
        }
        let total =
            MIN_BATCH_ITEM_BYTES.saturating_add(self.body.len()).saturating_add(self.properties.len());
        let Ok(size) = i32::try_from(total) else {
            return Err(FormatError::TooLarge {
                what: "batch item",
                value: total as u64,
                limit: i32::MAX as u64,
            });
        };
        out.extend_from_slice(&size.to_be_bytes());
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(&self.flag.to_be_bytes());
        out.extend_from_slice(&(self.body.len() as u32).to_be_bytes());
        out.extend_from_slice(self.body);
        out.extend_from_slice(&(self.properties.len() as u16).to_be_bytes());
        out.extend_from_slice(self.properties);
        Ok(())
    }
}

/// Encodes the body of a batch. On error `out` is unchanged.
pub fn encode_batch<'a>(
    items: impl IntoIterator<Item = BatchItem<'a>>,
    out: &mut Vec<u8>,
) -> Result<(), FormatError> {
    let start = out.len();
    items.into_iter().try_for_each(|item| item.encode_into(out)).inspect_err(|_| out.truncate(start))
}

/// Walks over the items of a batch body. Like RocketMQ, it ignores the items' sizes, magics and checksums: the lengths
/// of body and properties lead to the next item. Ends after the first error.
pub fn decode_batch(body: &[u8]) -> BatchItems<'_> {
    BatchItems { reader: Reader::new(body, "batch item") }
}

/// The iterator of [`decode_batch`].
#[derive(Clone, Debug)]
pub struct BatchItems<'a> {
    reader: Reader<'a>,
}

impl<'a> BatchItems<'a> {
    fn read(&mut self) -> Result<BatchItem<'a>, FormatError> {
        let reader = &mut self.reader;
        reader.take(12)?;
        let flag = reader.i32()?;
        let body_len = reader.i32()?;
        let body = reader.take_length("BODYLEN of a batch item", i64::from(body_len))?;
        let properties_len = reader.i16()?;
        let properties = reader.take_length("PROPLEN of a batch item", i64::from(properties_len))?;
        Ok(BatchItem { flag, body, properties })
    }
}

impl<'a> Iterator for BatchItems<'a> {
    type Item = Result<BatchItem<'a>, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.rest().is_empty() {
            return None;
        }
        let item = self.read();
        if item.is_err() {
            self.reader = Reader::new(&[], "batch item");
        }
        Some(item)
    }
}

/// Splits an ordinary batch into its records.
///
/// `batch.body` is the batch body. Each record has the item's flag, body and properties, and the batch's topic, queue,
/// system flag, times, hosts and retries. The prepared offset is 0, and the offsets continue from the batch's. The
/// batch's own properties are left out, as in RocketMQ 5.5 (5.3 appended them to each record). The caller decides
/// whether a batch is acceptable (no transaction, no delay). Ends after the first error.
pub fn split_batch<'a>(
    batch: &RecordSpec<'a>,
) -> impl Iterator<Item = Result<RecordSpec<'a>, FormatError>> + use<'a> {
    let template = *batch;
    let mut next_offsets = Some((template.queue_offset, template.physical_offset));
    decode_batch(template.body).map_while(move |item| {
        let (queue_offset, physical_offset) = next_offsets.take()?;
        let record = item.and_then(|item| {
            let record = RecordSpec {
                flag: item.flag,
                body: item.body,
                properties: item.properties,
                queue_offset,
                physical_offset,
                prepared_transaction_offset: 0,
                ..template
            };
            let len = record.encoded_len()? as i64;
            next_offsets = Some((queue_offset.saturating_add(1), physical_offset.saturating_add(len)));
            Ok(record)
        });
        Some(record)
    })
}

#[cfg(test)]
mod tests;
