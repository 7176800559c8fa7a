//! The worked examples of the format, and properties of all records and all bytes.

use std::net::{IpAddr, Ipv6Addr};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::TieredLog;
use crate::delay_levels::DelayLevels;
use crate::host::Host;
use crate::properties::{PropertiesBuilder, without_property};
use crate::sys_flag::{Compression, SysFlag, TransactionType};
use crate::testing::hex;
use crate::topic::SCHEDULE_TOPIC;

const BORN: i64 = 1_700_000_000_000;
const STORED: i64 = 1_700_000_000_123;
const UNIQUE: &str = "7F00000100002A139A5528E4F2AB0000";

/// Example (a) of the format, on which the other examples are based.
const EXAMPLE_A: &str = "
    00 00 00 a7 da a3 20 a7 77 d1 89 82 00 00 00 01
    00 00 00 00 00 00 00 00 00 00 00 07 00 00 00 00
    00 00 04 00 00 00 00 00 00 00 01 8b cf e5 68 00
    c0 a8 01 02 00 00 c3 50 00 00 01 8b cf e5 68 7b
    7f 00 00 01 00 00 2a 9f 00 00 00 00 00 00 00 00
    00 00 00 00 00 00 00 05 48 65 6c 6c 6f 09 54 6f
    70 69 63 54 65 73 74 00 3e 55 4e 49 51 5f 4b 45
    59 01 37 46 30 30 30 30 30 31 30 30 30 30 32 41
    31 33 39 41 35 35 32 38 45 34 46 32 41 42 30 30
    30 30 02 4b 45 59 53 01 4b 65 79 41 02 54 41 47
    53 01 54 61 67 41 02";

fn properties_a() -> Vec<u8> {
    let mut properties = PropertiesBuilder::new();
    for (name, value) in [("UNIQ_KEY", UNIQUE), ("KEYS", "KeyA"), ("TAGS", "TagA")] {
        properties.push_reserved(name, value).unwrap();
    }
    properties.finish()
}

fn plain<'a>(topic: &'a str, body: &'a [u8]) -> RecordSpec<'a> {
    RecordSpec {
        queue_id: 1,
        queue_offset: 7,
        physical_offset: 1024,
        born_timestamp: BORN,
        store_timestamp: STORED,
        ..RecordSpec::new(topic, body, Host::new([192, 168, 1, 2], 50_000), Host::new([127, 0, 0, 1], 10_911))
    }
}

fn encoded(spec: &RecordSpec<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    assert_eq!(spec.encode_into(&mut out), Ok(out.len()));
    assert_eq!(spec.encoded_len(), Ok(out.len()));
    out
}

#[test]
fn example_a_plain_v1() {
    let properties = properties_a();
    let spec = RecordSpec { properties: &properties, ..plain("TopicTest", b"Hello") };
    let bytes = encoded(&spec);
    assert_eq!(bytes, hex(EXAMPLE_A));

    let record = RecordView::decode(&bytes).unwrap();
    assert_eq!((record.size, record.version, record.body_crc), (167, Version::V1, 0x77d1_8982));
    assert_eq!((record.queue_id, record.flag, record.queue_offset, record.physical_offset), (1, 0, 7, 1024));
    assert_eq!((record.born_timestamp, record.store_timestamp), (BORN, STORED));
    assert_eq!((record.born_host.to_string(), record.store_host.to_string()).0, "192.168.1.2:50000");
    assert_eq!((record.topic, record.body), ("TopicTest", b"Hello".as_slice()));
    assert_eq!(
        (record.keys(), record.tags(), record.unique_key()),
        (Some("KeyA"), Some("TagA"), Some(UNIQUE))
    );
    assert_eq!(record.tags_code(&DelayLevels::default()), 2_598_919);
    assert_eq!(record.offset_message_id(), "7F00000100002A9F0000000000000400");
    assert_eq!(record.check_crc(CrcCheck::ALL), Ok(()));
    assert!(record.dispatches_to_queue() && record.indexed() && !record.has_property_crc());
    assert_eq!((record.bytes, record.inner_batch()), (bytes.as_slice(), None));
}

#[test]
fn example_b_property_crc() {
    let properties = properties_a();
    let spec = RecordSpec { properties: &properties, property_crc: true, ..plain("TopicTest", b"Hello") };
    let bytes = encoded(&spec);
    assert_eq!(bytes.len(), 187);
    assert_eq!(bytes[..4], hex("000000bb"));
    assert_eq!(bytes[103..105], hex("0052"));
    assert_eq!(crate::crc31(&bytes[..167]), 1_962_800_948);
    assert_eq!(bytes[167..], hex("5f 5f 43 52 43 33 32 23 01 38 34 39 30 30 38 32 36 39 31 02"));

    let record = RecordView::decode(&bytes).unwrap();
    assert!(record.has_property_crc());
    assert_eq!(record.check_crc(CrcCheck::ALL), Ok(()));
    assert_eq!(record.properties.get("__CRC32#"), Some("8490082691"));

    // Digits that match the record show that a checksum without its name is damage.
    for at in 167..187 {
        let mut other = bytes.clone();
        other[at] ^= 0x80;
        let refused = RecordView::decode(&other).map(|record| record.check_crc(CrcCheck::ALL).is_err());
        assert_eq!(refused, Ok(true), "{at}");
    }
}

#[test]
fn example_c_long_topic() {
    let topic = format!("%RETRY%{}", "g".repeat(125));
    let bytes = encoded(&plain(&topic, b""));
    assert_eq!(bytes.len(), 224);
    assert_eq!(bytes[..12], hex("00 00 00 e0 da a3 20 ab 00 00 00 00"));
    assert_eq!(bytes[0x50..0x60], hex("00 00 00 00 00 00 00 00 00 84 25 52 45 54 52 59"));
    assert_eq!(bytes[0xd0..], hex("67 67 67 67 67 67 67 67 67 67 67 67 67 67 00 00"));
    let record = RecordView::decode(&bytes).unwrap();
    assert_eq!((record.version, record.topic), (Version::V2, topic.as_str()));
    assert_eq!(record.check_crc(CrcCheck::ALL), Ok(()));
}

#[test]
fn example_d_ipv6() {
    let born: Ipv6Addr = "2001:db8::1".parse().unwrap();
    let spec = RecordSpec {
        born_host: Host::new(born, 50_000),
        store_host: Host::new(Ipv6Addr::LOCALHOST, 10_911),
        ..plain("TopicTest", b"Hello")
    };
    let bytes = encoded(&spec);
    let expected = "
        00 00 00 81 da a3 20 a7 77 d1 89 82 00 00 00 01
        00 00 00 00 00 00 00 00 00 00 00 07 00 00 00 00
        00 00 04 00 00 00 00 30 00 00 01 8b cf e5 68 00
        20 01 0d b8 00 00 00 00 00 00 00 00 00 00 00 01
        00 00 c3 50 00 00 01 8b cf e5 68 7b 00 00 00 00
        00 00 00 00 00 00 00 00 00 00 00 01 00 00 2a 9f
        00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 05
        48 65 6c 6c 6f 09 54 6f 70 69 63 54 65 73 74 00
        00";
    assert_eq!(bytes, hex(expected));
    let record = RecordView::decode(&bytes).unwrap();
    assert_eq!(record.born_host.to_string(), "[2001:db8::1]:50000");
    assert_eq!(record.offset_message_id(), "0000000000000000000000000000000100002A9F0000000000000400");
}

#[test]
fn example_e_blank() {
    assert_eq!(encode_blank(176).to_vec(), hex("00 00 00 b0 cb d4 31 94"));
    assert_eq!(peek(&encode_blank(176)), Ok(Peek::Blank { size: 176 }));
    assert_eq!(peek(&encode_blank(8)), Ok(Peek::Blank { size: 8 }));
    assert!(matches!(peek(&encode_blank(7)), Ok(Peek::Invalid { size: 7, magic: MAGIC_BLANK })));
    assert!(matches!(peek(&encode_blank(u32::MAX)), Ok(Peek::Invalid { size: -1, .. })));
    let blank = [encode_blank(176).as_slice(), &[0; 168]].concat();
    assert_eq!(RecordView::decode(&blank), Err(FormatError::BadMagic { found: MAGIC_BLANK }));
}

#[test]
fn peek_tells_records_zeros_and_damage() {
    assert_eq!(peek(&hex(EXAMPLE_A)), Ok(Peek::Record { size: 167, version: Version::V1 }));
    assert_eq!(peek(&hex("0000005b daa320ab")), Ok(Peek::Record { size: 91, version: Version::V2 }));
    assert_eq!(peek(&[0; 64]), Ok(Peek::Zero));
    for damaged in ["0000005a daa320a7", "80000000 daa320a7", "000000a7 00000000", "00000000 daa320a7"] {
        assert!(matches!(peek(&hex(damaged)), Ok(Peek::Invalid { .. })), "{damaged}");
    }
    assert!(matches!(peek(&[0; 7]), Err(FormatError::Truncated { .. })));
}

#[test]
fn total_size_must_be_the_sum_of_the_parts() {
    // RocketMQ checks this too: one more byte in TOTALSIZE and in the file is still not a record.
    let mut bytes = hex(EXAMPLE_A);
    bytes[3] = 0xa8;
    bytes.push(0);
    let error = RecordView::decode(&bytes).unwrap_err();
    assert_eq!(error, FormatError::BadLength { what: "TOTALSIZE", value: 168, limit: 167 });
}

#[test]
fn a_changed_body_fails_only_the_checksum() {
    let mut bytes = hex(EXAMPLE_A);
    bytes[88] = b'J';
    let record = RecordView::decode(&bytes).unwrap();
    assert!(matches!(
        record.check_crc(CrcCheck::ALL),
        Err(FormatError::BodyCrc { expected: 0x77d1_8982, .. })
    ));
    assert_eq!(record.check_crc(CrcCheck::default()), Ok(()));
}

#[test]
fn every_wrong_length_is_named() {
    for (at, len, what) in [(84, 4, "BODYLEN"), (93, 1, "TOPICLEN"), (103, 2, "PROPLEN")] {
        for byte in [0x7f, 0xff] {
            let mut bytes = hex(EXAMPLE_A);
            bytes[at..at + len].fill(byte);
            match RecordView::decode(&bytes) {
                Err(FormatError::BadLength { what: found, .. }) => assert_eq!(found, what),
                other => panic!("{what}: {other:?}"),
            }
        }
    }
    let mut topic = hex(EXAMPLE_A);
    topic[94] = 0xff;
    assert_eq!(RecordView::decode(&topic), Err(FormatError::BadUtf8 { what: "topic" }));
}

#[test]
fn patched_and_sealed_is_encoded_anew() {
    let properties = properties_a();
    for v6 in [false, true] {
        let open = RecordSpec {
            properties: &properties,
            property_crc: true,
            queue_offset: 0,
            physical_offset: 0,
            store_timestamp: 0,
            born_host: if v6 { Host::new(Ipv6Addr::LOCALHOST, 1) } else { Host::new([1, 2, 3, 4], 1) },
            ..plain("TopicTest", b"Hello")
        };
        let mut bytes = encoded(&open);
        patch_position(&mut bytes, 42, 4096, STORED).unwrap();
        assert!(RecordView::decode(&bytes).unwrap().check_crc(CrcCheck::ALL).is_err());
        seal_property_crc(&mut bytes).unwrap();
        let known = RecordSpec { queue_offset: 42, physical_offset: 4096, store_timestamp: STORED, ..open };
        assert_eq!(bytes, encoded(&known));
        assert_eq!(RecordView::decode(&bytes).unwrap().check_crc(CrcCheck::ALL), Ok(()));
    }
}

#[test]
fn only_whole_records_are_patched_and_sealed() {
    let mut bytes = hex(EXAMPLE_A);
    assert!(matches!(seal_property_crc(&mut bytes), Err(FormatError::BadProperty { .. })));
    bytes.push(0);
    assert!(matches!(patch_position(&mut bytes, 0, 0, 0), Err(FormatError::BadLength { .. })));
    assert!(matches!(patch_position(&mut bytes[..90], 0, 0, 0), Err(FormatError::Truncated { .. })));
    assert!(seal_property_crc(&mut []).is_err());
}

fn tiered_log<'a>(record: &RecordView<'a>) -> TieredLog<'a> {
    TieredLog { topic: record.topic, queue_id: record.queue_id }
}

/// Each byte of a record in the log of a tiered store is changed. A moved record is valid only if its body, its place
/// and the form of its checksum are intact.
#[test]
fn a_moved_record_stays_as_damaged_as_it_was() {
    for property_crc in [false, true] {
        let spec = RecordSpec { property_crc, ..plain("TopicTest", b"Hello") };
        let intact = encoded(&RecordSpec { physical_offset: 500, ..spec });
        let intact_view = RecordView::decode(&intact).unwrap();
        let (log, queue_offset) = (tiered_log(&intact_view), intact_view.queue_offset);
        let body = 88..93;
        let mut kept = Vec::new();
        for at in 0..intact.len() {
            let mut bytes = intact.clone();
            bytes[at] ^= 1;
            let is_moved = log.move_record(&mut bytes, 500, 4096, queue_offset);
            let is_valid = RecordView::decode(&bytes).is_ok_and(|record| {
                record.physical_offset == 4096 && record.check_crc(CrcCheck::ALL).is_ok()
            });
            assert!(is_moved || !is_valid, "byte {at}");
            kept.extend(is_valid.then_some(at));
        }
        assert!(!kept.iter().any(|at| body.contains(at)), "a damaged body became valid: {kept:?}");
        // TOTALSIZE, MAGICCODE, BODYCRC, QUEUEID, QUEUEOFFSET, PHYSICALOFFSET; BODYLEN; TOPICLEN and TOPIC.
        let known = (0..16).chain(20..36).chain(84..88).chain(93..103);
        assert!(known.clone().all(|at| !kept.contains(&at)), "{kept:?}");
    }
}

#[test]
fn a_record_of_another_place_or_queue_is_not_moved() {
    let intact = encoded(&plain("TopicTest", b"Hello"));
    let view = RecordView::decode(&intact).unwrap();
    let (from, queue_offset, log) = (view.physical_offset as u64, view.queue_offset, tiered_log(&view));
    let mut bytes = intact.clone();
    assert!(!log.move_record(&mut bytes, from + 1, 4096, queue_offset));
    assert!(!log.move_record(&mut bytes, from, 4096, queue_offset + 1));
    assert!(!TieredLog { queue_id: 9, ..log }.move_record(&mut bytes, from, 4096, queue_offset));
    assert!(!TieredLog { topic: "other", ..log }.move_record(&mut bytes, from, 4096, queue_offset));
    assert!(!log.move_record(&mut bytes[..40], from, 4096, queue_offset));
    assert_eq!(bytes, intact);
    assert!(log.move_record(&mut bytes, from, 4096, queue_offset));
}

/// The last 20 bytes of this record are the end of its body and both lengths and the topic after it.
#[test]
fn the_name_of_the_crc_in_a_body_is_no_property() {
    let intact = encoded(&plain("T", b"__CRC32#\x010000000"));
    let mut bytes = intact.clone();
    let before = RecordView::decode(&intact).unwrap();
    let (from, queue_offset) = (before.physical_offset as u64, before.queue_offset);
    assert!(tiered_log(&before).move_record(&mut bytes, from, 4096, queue_offset));
    let moved = RecordView::decode(&bytes).unwrap();
    assert_eq!((moved.physical_offset, moved.topic), (4096, "T"));
    assert_eq!(moved.check_crc(CrcCheck::ALL), Ok(()));
}

#[test]
fn an_unterminated_property_is_ended_before_the_crc() {
    let with = |properties| RecordSpec { properties, property_crc: true, ..plain("t", b"") };
    let bytes = encoded(&with(b"a\x011"));
    let record = RecordView::decode(&bytes).unwrap();
    assert_eq!(record.properties.get("a"), Some("1"));
    assert_eq!(record.check_crc(CrcCheck::ALL), Ok(()));
    assert_eq!(bytes.len(), encoded(&with(b"a\x011\x02")).len());
    assert_eq!(encoded(&with(b"")).len(), 91 + 1 + 20);
}

#[test]
fn a_copy_that_a_broker_made_ends_with_the_checksum_of_another_record() {
    let checked = |front: &[u8], change: Option<usize>| {
        let properties = [front, b"__CRC32#\x018490082691\x02"].concat();
        let mut bytes = encoded(&RecordSpec { properties: &properties, ..plain("%RETRY%g", b"Hello") });
        if let Some(at) = change {
            bytes[at] ^= 1;
        }
        RecordView::decode(&bytes).unwrap().check_crc(CrcCheck { body: false, property: true })
    };
    for mark in [&b"1ST_POP_TIME\x015\x02"[..], b"ORIGIN_MESSAGE_ID\x01x\x02", b"REAL_TOPIC\x01t\x02"] {
        assert_eq!(checked(mark, None), Ok(()));
        // The body's own checksum still covers the body.
        assert!(matches!(checked(mark, Some(90)), Err(FormatError::PropertyCrc { .. })));
    }
    assert!(matches!(checked(b"TAGS\x01a\x02", None), Err(FormatError::PropertyCrc { .. })));
}

#[test]
fn a_comparison_tells_whether_a_checksum_is_the_records_own() {
    let own = |properties: &[u8]| {
        encoded(&RecordSpec { properties, property_crc: true, ..plain("%RETRY%g", b"Hello") })
    };
    let copied = |mark: &[u8]| {
        let properties = [mark, b"__CRC32#\x018490082691\x02"].concat();
        encoded(&RecordSpec { properties: &properties, ..plain("%RETRY%g", b"Hello") })
    };
    let marks = [&b"1ST_POP_TIME\x015\x02"[..], b"ORIGIN_MESSAGE_ID\x01x\x02", b"REAL_TOPIC\x01t\x02"];
    for mark in marks {
        for (bytes, is_own) in [(own(mark), true), (copied(mark), false)] {
            let record = RecordOutline::decode(&bytes).unwrap();
            assert_eq!(record.compare_crc(CrcCheck::ALL), Ok(is_own));
            assert_eq!(record.has_own_crc(), is_own);
            // Without the comparison, the question stays open.
            assert_eq!(record.compare_crc(CrcCheck { body: true, property: false }), Ok(false));
        }
    }
    let without = encoded(&plain("t", b"Hello"));
    let record = RecordOutline::decode(&without).unwrap();
    assert_eq!((record.compare_crc(CrcCheck::ALL), record.has_own_crc()), (Ok(false), false));
}

#[test]
fn damaged_crc_digits_are_an_error() {
    let mut bytes = encoded(&RecordSpec { property_crc: true, ..plain("t", b"x") });
    let at = bytes.len() - 11;
    bytes[at..at + 10].copy_from_slice(b"99999x9999");
    let record = RecordView::decode(&bytes).unwrap();
    assert!(matches!(record.check_crc(CrcCheck::ALL), Err(FormatError::BadProperty { .. })));
    bytes[at + 5] = b'9';
    let record = RecordView::decode(&bytes).unwrap();
    assert!(matches!(record.check_crc(CrcCheck::ALL), Err(FormatError::BadProperty { .. })));
    bytes[at..at + 10].copy_from_slice(b"1000000000");
    let record = RecordView::decode(&bytes).unwrap();
    assert!(matches!(record.check_crc(CrcCheck::ALL), Err(FormatError::PropertyCrc { expected: 1, .. })));
}

#[test]
fn limits_of_properties() {
    let sized = |len: usize| {
        let mut properties = vec![b'x'; len];
        properties[0] = b'a';
        properties[1] = 1;
        properties[len - 1] = 2;
        properties
    };
    let fits = |len, property_crc| {
        let properties = sized(len);
        RecordSpec { properties: &properties, property_crc, ..plain("t", b"") }.encoded_len().is_ok()
    };
    assert!(fits(32_767, false) && !fits(32_768, false));
    assert!(fits(32_740, true) && fits(32_747, true) && !fits(32_748, true));
    let mut out = vec![1, 2, 3];
    let properties = sized(40_000);
    let error = RecordSpec { properties: &properties, ..plain("t", b"") }.encode_into(&mut out).unwrap_err();
    assert_eq!(error, FormatError::TooLarge { what: "properties", value: 40_000, limit: 32_767 });
    assert_eq!(out, [1, 2, 3]);
}

#[test]
fn limits_of_topics() {
    for (len, version, size) in [(127, Version::V1, 91 + 127), (128, Version::V2, 92 + 128)] {
        let topic = "t".repeat(len);
        let bytes = encoded(&plain(&topic, b""));
        let record = RecordView::decode(&bytes).unwrap();
        assert_eq!((record.version, bytes.len()), (version, size));
    }
    assert!(plain(&"t".repeat(32_768), b"").encoded_len().is_err());
    // 100 characters in 300 bytes do not fit in a V1 length.
    let topic = "中".repeat(100);
    assert_eq!(RecordView::decode(&encoded(&plain(&topic, b""))).unwrap().topic, topic);
}

#[test]
fn tags_codes_of_delay_queues_are_times() {
    let levels = DelayLevels::default();
    let code = |topic: &str, properties: &[u8]| {
        let bytes = encoded(&RecordSpec { properties, ..plain(topic, b"") });
        RecordView::decode(&bytes).unwrap().tags_code(&levels)
    };
    assert_eq!(code(SCHEDULE_TOPIC, b"DELAY\x013\x02TAGS\x01TagA\x02"), STORED + 10_000);
    assert_eq!(code(SCHEDULE_TOPIC, b"DELAY\x0199\x02"), STORED + 7_200_000);
    assert_eq!(code(SCHEDULE_TOPIC, b"DELAY\x010\x02TAGS\x01TagA\x02"), 2_598_919);
    assert_eq!(code(SCHEDULE_TOPIC, b"DELAY\x01x\x02TAGS\x01TagA\x02"), 2_598_919);
    assert_eq!(code(SCHEDULE_TOPIC, b""), 0);
    assert_eq!(code("t", b"DELAY\x013\x02"), 0);
    assert_eq!(code("t", b"TAGS\x01order-created\x02"), -392_709_271);
    assert_eq!(code("t", b"TAGS\x01a\xff\x02"), i64::from(crate::java_hash("a\u{fffd}")));
}

#[test]
fn dispatch_follows_the_transaction_type() {
    let seen = [
        TransactionType::None,
        TransactionType::Prepared,
        TransactionType::Commit,
        TransactionType::Rollback,
    ]
    .map(|kind| {
        let spec = RecordSpec { sys_flag: SysFlag(0).with_transaction(kind), ..plain("t", b"") };
        let bytes = encoded(&spec);
        let record = RecordView::decode(&bytes).unwrap();
        (record.dispatches_to_queue(), record.indexed())
    });
    assert_eq!(seen, [(true, true), (false, true), (true, true), (false, false)]);
}

#[test]
fn keys_are_split_on_single_spaces() {
    let bytes = encoded(&RecordSpec { properties: b"KEYS\x01 a  b c \x02", ..plain("t", b"") });
    let record = RecordView::decode(&bytes).unwrap();
    assert_eq!(record.keys(), Some(" a  b c "));
    assert_eq!(record.key_list().collect::<Vec<_>>(), ["a", "b", "c"]);
}

#[test]
fn inner_batch_numbers() {
    let numbers = |properties: &[u8]| {
        let bytes = encoded(&RecordSpec { properties, ..plain("t", b"") });
        RecordView::decode(&bytes).unwrap().inner_batch()
    };
    assert_eq!(numbers(b"INNER_NUM\x012\x02INNER_BASE\x01100\x02"), Some((100, 2)));
    assert_eq!(numbers(b"INNER_NUM\x01-2\x02INNER_BASE\x01-100\x02"), Some((-100, -2)));
    for bad in [
        b"INNER_NUM\x012\x02".as_slice(),
        b"INNER_BASE\x012\x02",
        b"INNER_NUM\x0132768\x02INNER_BASE\x011\x02",
    ] {
        assert_eq!(numbers(bad), None);
    }
}

#[test]
fn compressed_bodies_are_opened_with_a_limit() {
    let body = b"compress me ".repeat(100);
    for (kind, bits) in [(Compression::Zlib, 0x301), (Compression::Lz4, 0x101), (Compression::Zstd, 0x201)] {
        let stored = crate::compress(kind, &body, 5).unwrap();
        let sys_flag = SysFlag(bits);
        let bytes = encoded(&RecordSpec { sys_flag, ..plain("t", &stored) });
        let record = RecordView::decode(&bytes).unwrap();
        assert_eq!(record.check_crc(CrcCheck::ALL), Ok(()));
        assert_eq!(record.decompressed_body(1200).unwrap(), body);
        assert!(matches!(record.decompressed_body(1199), Err(FormatError::TooLarge { .. })));
    }
    let unknown = encoded(&RecordSpec { sys_flag: SysFlag(0x501), ..plain("t", b"?") });
    let record = RecordView::decode(&unknown).unwrap();
    assert!(matches!(record.decompressed_body(10), Err(FormatError::Compression { .. })));
    let plain_body = hex(EXAMPLE_A);
    assert_eq!(RecordView::decode(&plain_body).unwrap().decompressed_body(0).unwrap(), b"Hello".as_slice());
}

#[test]
fn hosts_as_text() {
    for text in ["127.0.0.1:10911", "[2001:db8::1]:50000", "0.0.0.0:0", "1.2.3.4:-1"] {
        assert_eq!(text.parse::<Host>().unwrap().to_string(), text);
    }
    for bad in ["", "127.0.0.1", "2001:db8::1:50000", "[127.0.0.1]:1", "[::1:5", "1.2.3.4:x", "localhost:1"] {
        assert!(matches!(bad.parse::<Host>(), Err(FormatError::BadName { .. })), "{bad}");
    }
}

fn any_host() -> impl Strategy<Value = Host> {
    (any::<bool>(), any::<u128>(), any::<i32>()).prop_map(|(v6, bits, port)| {
        let ip =
            if v6 { IpAddr::from(bits.to_be_bytes()) } else { IpAddr::from((bits as u32).to_be_bytes()) };
        Host { ip, port }
    })
}

/// Numbers and hosts of a record, without topic, body and properties.
fn any_numbers() -> impl Strategy<Value = RecordSpec<'static>> {
    let integers = any::<(i32, i32, i64, i64, i32, i64, i64, i32, i64)>();
    (integers, any_host(), any_host(), any::<bool>()).prop_map(|(n, born_host, store_host, property_crc)| {
        RecordSpec {
            queue_id: n.0,
            flag: n.1,
            queue_offset: n.2,
            physical_offset: n.3,
            sys_flag: SysFlag(n.4),
            born_timestamp: n.5,
            store_timestamp: n.6,
            reconsume_times: n.7,
            prepared_transaction_offset: n.8,
            property_crc,
            ..RecordSpec::new("", b"", born_host, store_host)
        }
    })
}

proptest! {
    #[test]
    fn records_come_back(
        numbers in any_numbers(), topic in "[a-zA-Z%]{0,140}|.{0,50}", body in vec(any::<u8>(), 0..200),
        properties in vec(any::<u8>(), 0..200), behind in vec(any::<u8>(), 0..8),
    ) {
        let spec = RecordSpec { topic: &topic, body: &body, properties: &properties, ..numbers };
        let mut bytes = encoded(&spec);
        let size = bytes.len();
        for cut in [0, 7, 8, 90, size / 2, size - 1] {
            let truncated = matches!(RecordView::decode(&bytes[..cut.min(size - 1)]), Err(FormatError::Truncated { .. }));
            prop_assert!(truncated, "cut at {}", cut);
        }
        bytes.extend(behind);
        let record = RecordView::decode(&bytes).unwrap();
        prop_assert_eq!(RecordOutline::decode(&bytes), Ok(record.outline()));
        prop_assert_eq!(record.bytes, &bytes[..size]);
        prop_assert_eq!(record.size as usize, size);
        prop_assert_eq!(record.check_crc(CrcCheck::ALL), Ok(()));
        prop_assert!(record.has_property_crc() || !spec.property_crc);
        prop_assert!(record.properties.raw().starts_with(&properties));
        let again = RecordSpec::from(&record);
        prop_assert_eq!(encoded(&again), &bytes[..size]);
        // A wrong checksum of the body is copied too.
        let (mut copy, mut wrong) = (encoded(&again), bytes[..size].to_vec());
        wrong[BODY_CRC_POSITION..][..4].copy_from_slice(&record.body_crc.wrapping_add(1).to_be_bytes());
        patch_body_crc(&mut copy, RecordView::decode(&wrong).unwrap().body_crc);
        prop_assert_eq!(copy, wrong);
        prop_assert_eq!(record.store_host.to_string().parse::<Host>(), Ok(record.store_host));
    }

    #[test]
    fn every_flipped_bit_is_noticed(at in 0usize..187, bit in 0u8..8) {
        let properties = properties_a();
        let spec = RecordSpec { properties: &properties, property_crc: true, ..plain("TopicTest", b"Hello") };
        let mut bytes = encoded(&spec);
        bytes[at] ^= 1 << bit;
        let checked = RecordView::decode(&bytes).and_then(|record| record.check_crc(CrcCheck::ALL));
        prop_assert!(checked.is_err());
    }

    #[test]
    fn the_damaged_name_of_a_checksum_is_restored(at in 0usize..20, byte in any::<u8>()) {
        let properties = properties_a();
        let spec = RecordSpec { properties: &properties, property_crc: true, ..plain("TopicTest", b"Hello") };
        let intact = encoded(&spec);
        let mut bytes = intact.clone();
        bytes[167 + at] = byte;
        let record = RecordView::decode(&bytes).unwrap();
        let is_name = bytes != intact && !(9..19).contains(&at);
        prop_assert_eq!(record.has_damaged_crc_name(), is_name);
        prop_assert_eq!(record.check_crc(CrcCheck::ALL).is_ok(), bytes == intact);
        restore_property_crc(&mut bytes).unwrap();
        prop_assert_eq!(bytes, intact);
    }

    #[test]
    fn any_bytes_are_a_record_or_an_error(bytes in vec(any::<u8>(), 0..200)) {
        let _ = peek(&bytes);
        let _ = RecordView::decode(&bytes);
    }

    #[test]
    fn any_damage_is_a_record_or_an_error(changes in vec((0usize..187, any::<u8>()), 0..6), size in 0usize..190) {
        let properties = properties_a();
        let spec = RecordSpec { properties: &properties, property_crc: true, ..plain("TopicTest", b"Hello") };
        let mut bytes = encoded(&spec);
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        bytes.truncate(size);
        let outline = RecordView::decode(&bytes).map(|record| record.outline());
        prop_assert_eq!(RecordOutline::decode(&bytes), outline);
        if let Ok(record) = RecordView::decode(&bytes) {
            let _ = record.check_crc(CrcCheck::ALL);
            let _ = (record.tags_code(&DelayLevels::default()), record.key_list().count(), record.inner_batch());
            let _ = (record.decompressed_body(1000), record.offset_message_id());
            let _ = without_property(record.properties.raw(), "TAGS");
        }
        let _ = patch_position(&mut bytes, 1, 2, 3);
        let _ = seal_property_crc(&mut bytes);
    }
}

#[test]
fn the_three_ways_to_encode_give_one_record() {
    for v6 in [false, true] {
        for property_crc in [false, true] {
            for body in [&b""[..], b"x", &[7; 3000]] {
                let ip: std::net::IpAddr =
                    if v6 { std::net::Ipv6Addr::LOCALHOST.into() } else { [10, 0, 0, 1].into() };
                let host = Host { ip, port: 1 };
                let spec = RecordSpec {
                    flag: -3,
                    queue_id: 5,
                    born_timestamp: 77,
                    reconsume_times: 2,
                    prepared_transaction_offset: 1 << 40,
                    properties: b"a\x01b\x02",
                    property_crc,
                    ..RecordSpec::new("topic", body, host, host)
                };
                let numbers =
                    RecordSpec { queue_offset: 9, physical_offset: 1 << 33, store_timestamp: 12, ..spec };
                let mut wanted = Vec::new();
                numbers.encode_into(&mut wanted).unwrap();
                let (mut head, mut tail) = (Vec::new(), Vec::new());
                assert_eq!(spec.encode_parts(&mut head, &mut tail), Ok(wanted.len()));
                let mut parts = RecordParts { head: &mut head, body, tail: &mut tail, property_crc };
                parts.place(9, 1 << 33, 12).unwrap();
                assert_eq!(parts.slices().concat(), wanted);
                let mut whole = Vec::new();
                assert_eq!(spec.encode_unsealed(&mut whole), Ok(wanted.len()));
                let mut parts = RecordParts { head: &mut whole, body: &[], tail: &mut [], property_crc };
                parts.place(9, 1 << 33, 12).unwrap();
                assert_eq!((parts.len(), parts.is_empty()), (wanted.len(), false));
                assert_eq!(whole, wanted);
            }
        }
    }
}
