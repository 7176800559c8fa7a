//! Java's rules of decoding, and the properties that the builder refuses.

use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn decoded(raw: &[u8]) -> Vec<(&str, &str)> {
    Properties::new(raw).to_vec()
}

#[test]
fn a_builder_after_other_bytes_keeps_them() {
    let mut builder = PropertiesBuilder::after(b"before".to_vec());
    builder.push("a", "b").unwrap();
    assert_eq!(builder.as_bytes(), b"a\x01b\x02");
    builder.clear();
    assert_eq!(builder.as_bytes(), b"");
    // Only the text form counts against the limit.
    let mut builder = PropertiesBuilder::after(vec![b'x'; MAX_PROPERTIES_BYTES]);
    builder.push("a", "b").unwrap();
    assert_eq!(builder.finish().len(), MAX_PROPERTIES_BYTES + 4);
}

#[test]
fn the_specified_example() {
    // Java's form of {A:1, B:""}. The empty value is lost.
    let raw = [0x41, 0x01, 0x31, 0x02, 0x42, 0x01, 0x02];
    assert_eq!(decoded(&raw), [("A", "1")]);
}

#[test]
fn javas_rules() {
    assert_eq!(decoded(b"a\x011\x02b\x012"), [("a", "1"), ("b", "2")], "the last end may be missing");
    assert_eq!(decoded(b"\x011\x02a\x011\x02"), [("a", "1")], "no name");
    assert_eq!(decoded(b"abc\x02a\x011\x02"), [("a", "1")], "no value");
    assert_eq!(decoded(b"\x02\x02\x02a\x011\x02"), [("a", "1")], "nothing");
    assert_eq!(decoded(b"a\x01b\x01c\x02"), [("a", "b\x01c")], "the value continues");
    assert_eq!(decoded(b"a\x01\x01\x02"), [("a", "\x01")]);
    assert_eq!(decoded("中\x01文\x02".as_bytes()), [("中", "文")]);
    assert!(Properties::new(b"").is_empty() && decoded(b"").is_empty());
}

#[test]
fn the_later_of_two_counts() {
    let properties = Properties::new(b"a\x011\x02b\x012\x02a\x013\x02a\x01\x02");
    assert_eq!(properties.get("a"), Some("3"));
    assert_eq!(properties.get_many(["b", "a", "c"]), [Some("2"), Some("3"), None]);
    assert_eq!(properties.get(""), None);
}

#[test]
fn what_is_no_utf8_is_seen_only_as_bytes() {
    let properties = Properties::new(b"a\x01\xff\x02b\x012\x02");
    assert_eq!(properties.to_vec(), [("b", "2")]);
    assert_eq!((properties.get("a"), properties.get_raw("a")), (None, Some(b"\xff".as_slice())));
    let raw: Vec<_> = properties.iter_raw().collect();
    assert_eq!(raw, [(b"a".as_slice(), b"\xff".as_slice()), (b"b", b"2")]);
}

#[test]
fn builder_refuses_what_would_not_come_back() {
    let mut builder = PropertiesBuilder::new();
    builder.push("a", "1").unwrap();
    for (name, value) in [("", "1"), ("b", ""), ("b\x01", "1"), ("b\x02", "1"), ("b", "1\x01"), ("b", "\x02")]
    {
        assert!(
            matches!(builder.push(name, value), Err(FormatError::BadProperty { .. })),
            "{name:?} {value:?}"
        );
    }
    for name in ["KEYS", "TAGS", "UNIQ_KEY", "DELAY", "WAIT", "__CRC32#", "INNER_NUM", "__RMQ.TRANSIENT.X"] {
        assert!(builder.push(name, "1").is_err(), "{name}");
    }
    builder.push("__SHARDINGKEY", "x").unwrap();
    builder.push_reserved(KEYS, "k1 k2").unwrap();
    assert_eq!(builder.as_bytes(), b"a\x011\x02__SHARDINGKEY\x01x\x02KEYS\x01k1 k2\x02");
    builder.clear();
    assert!(builder.as_bytes().is_empty());
}

#[test]
fn builder_stops_at_the_limit() {
    let mut builder = PropertiesBuilder::new();
    builder.push("a", &"x".repeat(MAX_PROPERTIES_BYTES - 3)).unwrap();
    assert_eq!(builder.as_bytes().len(), MAX_PROPERTIES_BYTES);
    assert!(matches!(builder.push("b", "1"), Err(FormatError::TooLarge { .. })));
    assert_eq!(builder.finish().len(), MAX_PROPERTIES_BYTES);
}

#[test]
fn reserved_names_are_those_of_the_reference() {
    // MessageConst.STRING_HASH_SET of RocketMQ 5.5.0, and the four names that the store itself interprets.
    let reference = "1ST_POP_TIME ARRIVE_TIME BORN_TIMESTAMP BUYER_ID CLUSTER CONSUME_START_TIME CORRECTION_FLAG \
        CORRELATION_ID DELAY DLQ_ORIGIN_MESSAGE_ID DLQ_ORIGIN_TOPIC DUP_INFO EXTEND_UNIQ_INFO \
        INNER_MULTI_QUEUE_OFFSET INSTANCE_ID KEYS MAX_OFFSET MAX_RECONSUME_TIMES MIN_OFFSET MQ2_FLAG MSG_REGION \
        MSG_TYPE ORIGIN_GROUP ORIGIN_MESSAGE_ID PGROUP POP_CK POP_CK_OFFSET PUSH_REPLY_TIME REAL_QID REAL_TOPIC \
        RECONSUME_TIME REPLY_TO_CLIENT RETRY_TOPIC TAGS TIMER_DELAY_LEVEL TIMER_DELAY_MS TIMER_DELAY_SEC \
        TIMER_DELIVER_MS TIMER_DEL_UNIQKEY TIMER_DEQUEUE_MS TIMER_ENQUEUE_MS TIMER_OUT_MS TIMER_ROLL_TIMES TRACE_ON \
        TRANSFER_FLAG TRAN_MSG TRAN_PREPARED_QUEUE_OFFSET TTL UNIQ_KEY WAIT _SYS_MSG_PRIORITY_ __BORNHOST __CRC32# \
        __LITE_TOPIC INNER_NUM INNER_BASE INNER_MULTI_DISPATCH TIMER_ORIGIN_OFFSET";
    let mut reference: Vec<&str> = reference.split(' ').filter(|name| !name.is_empty()).collect();
    let mut ours = RESERVED.to_vec();
    reference.sort_unstable();
    ours.sort_unstable();
    assert_eq!(ours, reference);
    assert!(!is_reserved("keys") && !is_reserved(SHARDING_KEY) && !is_reserved(TRACE_CONTEXT));
}

#[test]
fn properties_are_taken_out() {
    let text = b"__CRC32#\x01123\x02a\x01__CRC32#\x02__CRC32#x\x011\x02__CRC32#\x01456";
    assert_eq!(&*without_property(text, PROPERTY_CRC), b"a\x01__CRC32#\x02__CRC32#x\x011\x02");
    assert!(matches!(without_property(b"a\x011\x02", PROPERTY_CRC), Cow::Borrowed(_)));
    assert_eq!(&*without_property(b"a\x011\x02b\x012", "a"), b"b\x012");
}

#[test]
fn crc_digits_are_reversed() {
    assert_eq!(&property_crc_text(1_962_800_948), b"__CRC32#\x018490082691\x02");
    assert_eq!(&property_crc_text(0), b"__CRC32#\x010000000000\x02");
    for crc in [0, 1, 10, 0x7fff_ffff] {
        assert_eq!(property_crc_value(&property_crc_text(crc)), Some(crc));
    }
    assert_eq!(property_crc_value(b"__CRC32#\x019999999999\x02"), None);
}

/// The reference's algorithm step by step (`MessageDecoder#string2messageProperties`).
fn by_the_book(text: &str) -> HashMap<String, String> {
    let text: Vec<char> = text.chars().collect();
    let find = |wanted: char, from: usize| text[from..].iter().position(|c| *c == wanted).map(|at| at + from);
    let mut map = HashMap::new();
    let mut index = 0;
    while index < text.len() {
        let end = find('\x02', index).unwrap_or(text.len());
        if end - index >= 3
            && let Some(middle) = find('\x01', index)
            && middle > index
            && middle + 1 < end
        {
            map.insert(text[index..middle].iter().collect(), text[middle + 1..end].iter().collect());
        }
        index = end + 1;
    }
    map
}

proptest! {
    #[test]
    fn entries_come_back(entries in vec(("[^\x01\x02]{1,12}", "[^\x01\x02]{1,12}"), 0..8)) {
        let mut builder = PropertiesBuilder::new();
        for (name, value) in &entries {
            builder.push_reserved(name, value).unwrap();
        }
        let text = builder.finish();
        let expected: Vec<(&str, &str)> = entries.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        prop_assert_eq!(Properties::new(&text).to_vec(), expected);
    }

    #[test]
    fn text_is_decoded_as_in_java(text in "[ab\x01\x02中]{0,24}") {
        let properties = Properties::new(text.as_bytes());
        let map: HashMap<String, String> = properties.iter().map(|(n, v)| (n.into(), v.into())).collect();
        prop_assert_eq!(&map, &by_the_book(&text));
        for (name, value) in &map {
            prop_assert_eq!(properties.get(name), Some(value.as_str()));
        }
    }

    #[test]
    fn any_bytes_are_walked(raw in vec(prop_oneof![0u8..4, 0x80u8..0x84, any::<u8>()], 0..64)) {
        let properties = Properties::new(&raw);
        let plain = raw.split(|byte| *byte == SEPARATOR).filter_map(|entry| {
            let middle = entry.iter().position(|byte| *byte == NAME_VALUE_SEPARATOR)?;
            Some((&entry[..middle], &entry[middle + 1..]))
        });
        let plain = plain.filter(|(name, value)| !name.is_empty() && !value.is_empty());
        prop_assert!(properties.iter_raw().eq(plain));
        let _ = (properties.to_vec(), properties.iter_raw().count(), properties.get_many(["a", "TAGS"]));
        let without = without_property(&raw, "a");
        prop_assert_eq!(Properties::new(&without).get_raw("a"), None);
    }

    #[test]
    fn crc_texts_come_back(crc: u32, text: [u8; 20]) {
        prop_assert_eq!(property_crc_value(&property_crc_text(crc)), Some(crc));
        let _ = property_crc_value(&text);
    }
}
