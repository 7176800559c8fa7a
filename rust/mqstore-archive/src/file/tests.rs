//! Files are read as they were written, and bad ones end in an error.

use std::sync::Arc;

use arrow_array::RecordBatch;
use bytes::Bytes;
use mqstore_arrow::BufferPool;
use mqstore_engine::{ScanRow, ScanSink};
use mqstore_format::{Host, RecordSpec, RecordView, SysFlag};

use super::footer::{may_contain, page_places};
use super::thrift::Thrift;
use super::*;
use crate::records::{ArchiveBuilder, ArchiveFile, LogRange, RowsSummary};

/// Rows of a row group in these tests.
const SIZES: FileSizes = FileSizes { group_rows: 16, page_bytes: 360, page_step_rows: 4, level: 3 };

/// Returns records of one topic in two queues.
fn records(count: i64, body: usize) -> Vec<Vec<u8>> {
    let mut offset = 0;
    (0..count)
        .map(|number| {
            let text = format!("{{\"number\": {number}}}").repeat(body);
            let properties = format!("KEYS\u{1}k{number} all\u{2}UNIQ_KEY\u{1}{number:032X}\u{2}");
            let spec = RecordSpec {
                topic: "orders",
                queue_id: (number % 2) as i32,
                flag: 0,
                queue_offset: number / 2,
                physical_offset: offset,
                sys_flag: SysFlag(0),
                born_timestamp: 1_700_000_000_000 + number,
                born_host: "10.0.0.1:4000".parse::<Host>().unwrap(),
                store_timestamp: 1_700_000_001_000 + number,
                store_host: "10.0.0.2:10911".parse::<Host>().unwrap(),
                reconsume_times: 0,
                prepared_transaction_offset: 0,
                body: text.as_bytes(),
                properties: properties.as_bytes(),
                property_crc: false,
            };
            let mut record = Vec::new();
            spec.encode_into(&mut record).unwrap();
            offset += record.len() as i64;
            record
        })
        .collect()
}

fn batch(records: &[Vec<u8>]) -> RecordBatch {
    let mut builder = ArchiveBuilder::new(&Arc::<BufferPool>::default());
    for record in records {
        let record = RecordView::decode(record).unwrap();
        builder.add(&ScanRow::new(&record, record.physical_offset.cast_unsigned()));
    }
    builder.take().unwrap().0.unwrap()
}

fn file_of(records: &[Vec<u8>], sizes: FileSizes) -> (Bytes, RowsSummary) {
    let mut range = LogRange::new(0);
    range.add(batch(records), |_| true).unwrap();
    range.finish(records.iter().map(|record| record.len() as u64).sum());
    let summary = range.summary("orders").unwrap();
    let facts = [("record_bytes".to_owned(), summary.record_bytes.to_string())];
    (Bytes::from(range.file("orders", summary.record_bytes, sizes, &facts).unwrap()), summary)
}

fn open(content: &Bytes, record_bytes: Option<u64>) -> Result<ArchiveFile, FileError> {
    ArchiveFile::open(Box::new(content.clone()), record_bytes)
}

#[test]
fn a_file_is_read_as_it_was_written() {
    let records = records(70, 9);
    let (content, summary) = file_of(&records, SIZES);
    let file = open(&content, None).unwrap();
    assert_eq!(file.summary().unwrap(), summary);
    assert_eq!(file.topic().unwrap().as_deref(), Some("orders"));
    assert_eq!(summary.rows, 70);
    assert_eq!(summary.record_bytes, records.iter().map(|record| record.len() as u64).sum::<u64>());
    assert_eq!(file.footer().groups().len(), 5);
    let offsets: Vec<u64> = file.places().unwrap().iter().map(|(offset, ..)| *offset).collect();
    assert!(offsets.is_sorted() && offsets.len() == 70);
}

#[test]
fn pages_give_the_rows_of_their_group() {
    let (content, _) = file_of(&records(70, 9), SIZES);
    let footer = Footer::read(&content, None).unwrap();
    for group in 0..footer.groups().len() {
        let whole = whole_group(&content, &footer, group).unwrap();
        for first in 0..whole.num_rows() {
            let rows = first..whole.num_rows().min(first + 3);
            let (some, short) = paged_rows(&content, &footer, group, &rows, None).unwrap();
            assert_eq!(some, whole.slice(first, rows.len()));
            let (again, _) = paged_rows(&content, &footer, group, &rows, Some(short)).unwrap();
            assert_eq!(again, some);
        }
        assert!(footer.page_end(group, 0) < whole.num_rows());
    }
}

#[test]
fn each_key_is_in_a_bloom_filter() {
    let (content, _) = file_of(&records(70, 1), SIZES);
    let footer = Footer::read(&content, None).unwrap();
    let filters = bloom_filters(&content, &footer).unwrap();
    for number in 0..70 {
        assert!(!groups_with_key(&filters, &format!("k{number}")).unwrap().is_empty());
        assert!(!groups_with_key(&filters, &format!("{number:032X}")).unwrap().is_empty());
    }
    let wrong =
        (0..1000).filter(|number| !groups_with_key(&filters, &format!("no {number}")).unwrap().is_empty());
    assert!(wrong.count() < 200);
}

#[test]
fn other_bytes_are_read_as_they_were_written() {
    let pieces = vec![(0, 100, b"damaged".to_vec()), (4096, 8, vec![1; 8]), (9000, 50, Vec::new())];
    let facts = [("record_bytes".to_owned(), "158".to_owned())];
    let content = Bytes::from(write_bytes(&pieces, 3, &facts).unwrap());
    let footer = Footer::read(&content, None).unwrap();
    let mut found = Vec::new();
    other_bytes(&content, &footer, |offset, bytes| {
        found.push((offset, bytes));
        Ok(())
    })
    .unwrap();
    let wanted: Vec<(u64, Vec<u8>)> = pieces
        .into_iter()
        .map(|(offset, length, mut bytes)| {
            bytes.resize(length as usize, 0);
            (offset, bytes)
        })
        .collect();
    assert_eq!(found, wanted);
}

/// Each changed byte is an error, or changes nothing that a record needs.
#[test]
fn a_changed_byte_never_gives_other_records() {
    let records = records(12, 3);
    let (content, summary) = file_of(&records, FileSizes { group_rows: 6, ..SIZES });
    let (mut errors, mut tried) = (0, 0);
    for at in (0..content.len()).step_by(3) {
        let mut changed = content.to_vec();
        changed[at] ^= 1 << (at % 8);
        tried += 1;
        match open(&Bytes::from(changed), Some(summary.record_bytes)).and_then(|file| file.summary()) {
            Ok(found) => assert_eq!(found, summary, "byte {at}"),
            Err(FileError::Damaged(_)) => errors += 1,
            Err(FileError::Store(error)) => panic!("byte {at}: {error}"),
        }
    }
    assert!(errors > tried / 3, "{errors} of {tried}");
}

#[test]
fn a_file_that_ends_early_is_damaged() {
    let (content, summary) = file_of(&records(12, 3), SIZES);
    for length in 0..content.len() {
        let found = open(&content.slice(..length), Some(summary.record_bytes));
        assert!(matches!(found, Err(FileError::Damaged(_))), "{length} bytes");
    }
}

/// A page that says that it has 2 GiB, and one that has more than it says, need no memory for what they say.
#[test]
fn a_page_has_no_more_bytes_than_its_records() {
    let (content, _) = file_of(&records(200, 2000), FileSizes { group_rows: 200, ..SIZES });
    let read = |record_bytes: u64| open(&content, Some(record_bytes)).and_then(|file| file.summary());
    assert!(read(10_000_000).is_ok());
    let Err(FileError::Damaged(reason)) = read(1000) else { panic!("a page was taken") };
    assert!(reason.contains("more values than its row group can have"), "{reason}");
}

#[test]
fn values_in_values_end_in_an_error() {
    let nested = [0x19; 5000];
    let found = Thrift::new(&nested).each_field(|_, _, _| Ok(false));
    assert!(found.unwrap_err().to_string().contains("nested too deep"));
    assert!(page_places(&nested).is_err());
}

#[test]
fn a_list_is_not_longer_than_its_bytes() {
    // A page index with a list of 2^31 - 1 pages.
    let huge = [0x19, 0xFC, 0xFF, 0xFF, 0xFF, 0xFF, 0x07, 0];
    assert!(page_places(&huge).unwrap_err().to_string().contains("longer than its bytes"));
    // A Bloom filter without blocks.
    assert!(
        may_contain(&[0x15, 0x00, 0x1C, 0x1C, 0, 0, 0x1C, 0x1C, 0, 0, 0x1C, 0x1C, 0, 0, 0], "k").is_err()
    );
}
