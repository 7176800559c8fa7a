//! The worked examples of batches, and properties of all batches.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::host::Host;
use crate::record::{CrcCheck, RecordView};
use crate::sys_flag::SysFlag;
use crate::testing::hex;

/// Two items, `m0` with TAGS=TagA and `m1` with TAGS=TagB.
const EXAMPLE_F: &str = "
    00 00 00 22 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 02 6d 30 00 0a 54 41 47 53 01 54 61 67 41 02
    00 00 00 22 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 02 6d 31 00 0a 54 41 47 53 01 54 61 67 42 02";

fn items() -> [BatchItem<'static>; 2] {
    [
        BatchItem { flag: 0, body: b"m0", properties: b"TAGS\x01TagA\x02" },
        BatchItem { flag: 0, body: b"m1", properties: b"TAGS\x01TagB\x02" },
    ]
}

fn batch(body: &[u8]) -> RecordSpec<'_> {
    RecordSpec {
        queue_id: 1,
        queue_offset: 100,
        born_timestamp: 1_700_000_000_000,
        store_timestamp: 1_700_000_000_123,
        ..RecordSpec::new(
            "TopicTest",
            body,
            Host::new([192, 168, 1, 2], 50_000),
            Host::new([127, 0, 0, 1], 10_911),
        )
    }
}

#[test]
fn example_f_wire_form() {
    let mut body = Vec::new();
    encode_batch(items(), &mut body).unwrap();
    assert_eq!(body, hex(EXAMPLE_F));
    let decoded: Vec<_> = decode_batch(&body).collect::<Result<_, _>>().unwrap();
    assert_eq!(decoded, items());
}

#[test]
fn example_f_becomes_two_records() {
    let body = hex(EXAMPLE_F);
    let specs: Vec<_> = split_batch(&batch(&body)).collect::<Result<_, _>>().unwrap();
    let mut log = Vec::new();
    for spec in &specs {
        assert_eq!(spec.encode_into(&mut log), Ok(112));
    }
    let first = RecordView::decode(&log).unwrap();
    let second = RecordView::decode(&log[112..]).unwrap();
    assert_eq!((first.body_crc, second.body_crc), (0x3753_37b9, 0x4054_072f));
    assert_eq!((first.queue_offset, second.queue_offset), (100, 101));
    assert_eq!((first.physical_offset, second.physical_offset), (0, 112));
    assert_eq!((first.tags(), second.tags()), (Some("TagA"), Some("TagB")));
}

#[test]
fn example_g_inner_batch() {
    let body = hex(EXAMPLE_F);
    let properties =
        b"UNIQ_KEY\x017F00000100002A139A5528E4F2AB0000\x02INNER_NUM\x012\x02INNER_BASE\x01100\x02";
    let spec = RecordSpec { sys_flag: SysFlag(0).with_inner_batch(true), properties, ..batch(&body) };
    let mut log = Vec::new();
    assert_eq!(spec.encode_into(&mut log), Ok(237));
    assert_eq!(log[..4], hex("000000ed"));
    assert_eq!(log[8..12], hex("733e3b16"));
    assert_eq!(log[36..40], hex("000000c0"));
    assert_eq!(log[84..88], hex("00000044"));
    assert_eq!(log[166..168], hex("0045"));
    let tail = hex("49 4e 4e 45 52 5f 4e 55 4d 01 32 02 49 4e 4e 45 52 5f 42 41 53 45 01 31 30 30 02");
    assert!(log.ends_with(&tail));

    let record = RecordView::decode(&log).unwrap();
    assert!(record.sys_flag.inner_batch() && record.sys_flag.0 & 0x40 != 0);
    assert_eq!(record.inner_batch(), Some((100, 2)));
    assert_eq!(decode_batch(record.body).count(), 2);
    assert_eq!(record.check_crc(CrcCheck::ALL), Ok(()));
}

#[test]
fn an_error_ends_the_walk() {
    let mut body = hex(EXAMPLE_F);
    body[16] = 0xff;
    let mut items = decode_batch(&body);
    assert!(matches!(items.next(), Some(Err(FormatError::BadLength { .. }))));
    assert_eq!(items.next(), None);
    let body = hex(EXAMPLE_F);
    let cut = split_batch(&batch(&body[..40])).collect::<Vec<_>>();
    assert!(matches!(cut.as_slice(), [Ok(_), Err(FormatError::Truncated { .. })]));
    assert_eq!(decode_batch(b"").next(), None);
}

#[test]
fn too_large_items_leave_nothing_behind() {
    let large = vec![b'x'; 40_000];
    let [first, second] = items();
    let mut out = vec![7];
    let error = encode_batch([first, BatchItem { properties: &large, ..second }], &mut out).unwrap_err();
    assert!(matches!(error, FormatError::TooLarge { what: "properties", .. }));
    assert_eq!(out, [7]);
}

#[test]
fn items_are_sealed_one_by_one() {
    let body = hex(EXAMPLE_F);
    let mut log = Vec::new();
    for spec in split_batch(&RecordSpec { property_crc: true, ..batch(&body) }) {
        spec.unwrap().encode_into(&mut log).unwrap();
    }
    let second = RecordView::decode(&log[132..]).unwrap();
    assert_eq!((second.physical_offset, log.len()), (132, 264));
    assert_eq!(second.check_crc(CrcCheck::ALL), Ok(()));
}

proptest! {
    #[test]
    fn batches_come_back(parts in vec((any::<i32>(), vec(any::<u8>(), 0..40), vec(any::<u8>(), 0..40)), 0..6)) {
        let items: Vec<_> =
            parts.iter().map(|(flag, body, properties)| BatchItem { flag: *flag, body, properties }).collect();
        let mut body = Vec::new();
        encode_batch(items.iter().copied(), &mut body).unwrap();
        let decoded: Vec<_> = decode_batch(&body).collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(decoded, items);
    }

    #[test]
    fn any_bytes_are_a_batch_or_an_error(body in vec(prop_oneof![Just(0u8), any::<u8>()], 0..120)) {
        prop_assert!(decode_batch(&body).count() <= body.len() / MIN_BATCH_ITEM_BYTES + 1);
        for record in split_batch(&RecordSpec { queue_offset: i64::MAX, physical_offset: i64::MAX, ..batch(&body) }) {
            let _ = record;
        }
    }
}
