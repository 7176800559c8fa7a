//! Rows as JSON lines: the objects that `mqstore cat --format jsonl` prints, byte for byte.
//!
//! The form is that of Python's `json.dumps` for `cli.render.message_object`: ASCII only, a space after comma and
//! colon.

use std::io::Write;
use std::sync::Arc;

use mqstore::format::push_offset_message_id;
use mqstore::read::{ScanRow, ScanSink};

use crate::arrow::schema::{Column, Layout};
use mqstore::arrow::each_once;

/// Bytes of text after which a batch ends.
const BATCH_BYTES: usize = 4 << 20;

/// The lines that one worker builds.
pub(super) struct JsonLinesBuilder {
    layout: Arc<Layout>,
    text: Vec<u8>,
    rows: u64,
}

impl JsonLinesBuilder {
    pub(super) fn new(layout: Arc<Layout>) -> Self {
        Self { layout, text: Vec::new(), rows: 0 }
    }
}

impl ScanSink for JsonLinesBuilder {
    type Batch = (Vec<u8>, u64);

    fn has_room(&self, row: &ScanRow<'_>) -> bool {
        self.rows == 0 || self.text.len() + 2 * row.record.size as usize <= BATCH_BYTES
    }

    fn add(&mut self, row: &ScanRow<'_>) {
        self.rows += 1;
        let Self { layout, text, .. } = self;
        let mut before: &[u8] = b"{";
        for (column, field) in layout.columns.iter().zip(layout.schema.fields()) {
            text.extend_from_slice(before);
            before = b", ";
            if *column == Column::Body {
                push_body(text, row);
            } else {
                push_text(text, field.name());
                text.extend_from_slice(b": ");
                push_value(text, *column, row);
            }
        }
        text.extend_from_slice(if before == b"{" { b"{}\n" } else { b"}\n" });
    }

    fn take(&mut self) -> Option<(Self::Batch, u64)> {
        let rows = std::mem::take(&mut self.rows);
        let text = std::mem::take(&mut self.text);
        let bytes = text.len() as u64;
        (rows > 0).then_some(((text, rows), bytes))
    }
}

fn push_value(out: &mut Vec<u8>, column: Column, row: &ScanRow<'_>) {
    let record = row.record;
    match column {
        Column::Topic => push_text(out, record.topic),
        Column::QueueId => push_number(out, i64::from(record.queue_id)),
        Column::QueueOffset => push_number(out, row.queue_offset),
        Column::CommitLogOffset => push_number(out, row.offset as i64),
        Column::Size => push_number(out, i64::from(record.size)),
        Column::MessageId => {
            out.push(b'"');
            push_offset_message_id(&record.store_host, record.physical_offset, out);
            out.push(b'"');
        }
        Column::UniqueId => push_option(out, record.unique_key()),
        Column::Keys => {
            let mut before: &[u8] = b"[";
            for key in record.key_list() {
                out.extend_from_slice(before);
                push_text(out, key);
                before = b", ";
            }
            out.extend_from_slice(if before == b"[" { b"[]" } else { b"]" });
        }
        Column::Tags => push_option(out, record.tags()),
        Column::Properties => {
            let mut before: &[u8] = b"{";
            for (name, value) in each_once(record.properties) {
                out.extend_from_slice(before);
                push_text(out, name);
                out.extend_from_slice(b": ");
                push_text(out, value);
                before = b", ";
            }
            out.extend_from_slice(if before == b"{" { b"{}" } else { b"}" });
        }
        Column::Flag => push_number(out, i64::from(record.flag)),
        Column::SysFlag => push_number(out, i64::from(record.sys_flag.0)),
        Column::BornTimestamp => push_number(out, record.born_timestamp),
        Column::BornHost => push_text(out, &record.born_host.to_string()),
        Column::StoreTimestamp => push_number(out, record.store_timestamp),
        Column::StoreHost => push_text(out, &record.store_host.to_string()),
        Column::ReconsumeTimes => push_number(out, i64::from(record.reconsume_times)),
        Column::PreparedTransactionOffset => push_number(out, record.prepared_transaction_offset),
        Column::BodyCrc => push_number(out, i64::from(record.body_crc.cast_signed())),
        Column::BodySize | Column::Body => push_number(out, row.body().unwrap_or(record.body).len() as i64),
    }
}

/// Adds the body. If it does not unpack, adds the stored bytes and the error.
fn push_body(out: &mut Vec<u8>, row: &ScanRow<'_>) {
    out.extend_from_slice(b"\"body_base64\": \"");
    push_base64(out, row.body().unwrap_or(row.record.body));
    out.push(b'"');
    if row.body().is_none()
        && let Err(error) = row.record.unpacked_body()
    {
        out.extend_from_slice(b", \"body_error\": ");
        push_text(out, &format!("commitlog at offset {}: {error}", row.offset));
    }
}

fn push_number(out: &mut Vec<u8>, number: i64) {
    // A write to memory cannot fail.
    let _ = write!(out, "{number}");
}

fn push_option(out: &mut Vec<u8>, text: Option<&str>) {
    match text {
        Some(text) => push_text(out, text),
        None => out.extend_from_slice(b"null"),
    }
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for char in text.chars() {
        match char {
            '"' => out.extend_from_slice(b"\\\""),
            '\\' => out.extend_from_slice(b"\\\\"),
            '\n' => out.extend_from_slice(b"\\n"),
            '\r' => out.extend_from_slice(b"\\r"),
            '\t' => out.extend_from_slice(b"\\t"),
            '\u{8}' => out.extend_from_slice(b"\\b"),
            '\u{c}' => out.extend_from_slice(b"\\f"),
            ' '..='~' => out.push(char as u8),
            other => {
                for unit in other.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push(b'"');
}

fn push_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |bits: u32| DIGITS.get((bits & 63) as usize).copied().unwrap_or(b'=');
    out.reserve(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut three = [0; 4];
        three.iter_mut().skip(1).zip(chunk).for_each(|(to, from)| *to = *from);
        let bits = u32::from_be_bytes(three);
        let mut four = [digit(bits >> 18), digit(bits >> 12), digit(bits >> 6), digit(bits)];
        four.iter_mut().skip(1 + chunk.len()).for_each(|pad| *pad = b'=');
        out.extend_from_slice(&four);
    }
}
