//! Files of RocketMQ 5.3.3 and 5.5.0, the dialect, and arbitrary text.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::error::FormatError;

const VERSION: DataVersion = DataVersion { counter: 7, state_version: 0, timestamp: 1_700_000_000_000 };

const CONSUMER_OFFSETS_53: &str = r#"{
	"dataVersion":{
		"counter":7,
		"stateVersion":0,
		"timestamp":1700000000000
	},
	"groupTopicMap":{
		"g1":["t1"],
		"g2":["%RETRY%g2"]
	},
	"offsetTable":{
		"%RETRY%g2@g2":{0:3
		},
		"t1@g1":{0:12,1:2
		}
	}
}"#;

const CONSUMER_OFFSETS_55: &str = r#"{
	"dataVersion":{
		"counter":7,
		"stateVersion":0,
		"timestamp":1700000000000
	},
	"groupTopicMap":{
		"g1":[
			"t1"
		],
		"g2":[
			"%RETRY%g2"
		]
	},
	"offsetTable":{
		"%RETRY%g2@g2":{
			0:3
		},
		"t1@g1":{
			0:12,
			1:2
		}
	},
	"pullOffsetTable":{}
}"#;

#[test]
fn consumer_offsets_of_both_versions() {
    let mut offsets = ConsumerOffsets { data_version: VERSION, ..ConsumerOffsets::default() };
    offsets.set("%RETRY%g2", "g2", 0, 3);
    offsets.set("t1", "g1", 1, 2);
    offsets.set("t1", "g1", 0, 12);
    assert_eq!(offsets.to_json(Dialect::Rocketmq53), CONSUMER_OFFSETS_53);
    assert_eq!(offsets.to_json(Dialect::Rocketmq55), CONSUMER_OFFSETS_55);
    assert_eq!(ConsumerOffsets::parse(CONSUMER_OFFSETS_53.as_bytes()).unwrap(), offsets);
    let newer = ConsumerOffsets::parse(CONSUMER_OFFSETS_55.as_bytes()).unwrap();
    assert_eq!((newer.get("t1", "g1", 0), newer.get("t1", "g1", 2)), (Some(12), None));
    assert!(newer.pull_table.as_ref().is_some_and(std::collections::BTreeMap::is_empty));
    assert_eq!(newer.to_json(Dialect::Rocketmq55), CONSUMER_OFFSETS_55);
}

#[test]
fn keys_of_consumer_offsets() {
    assert_eq!(ConsumerOffsets::split_key("t@g"), Some(("t", "g")));
    assert_eq!((ConsumerOffsets::split_key("t"), ConsumerOffsets::split_key("t@g@x")), (None, None));
    let odd = br#"{"offsetTable":{"t":{0:1},"t@g@x":{"1":2}}}"#;
    let kept = ConsumerOffsets::parse(odd).unwrap();
    assert_eq!(kept.table.len(), 2);
    assert_eq!(ConsumerOffsets::parse(kept.to_json(Dialect::default()).as_bytes()).unwrap(), kept);
}

#[test]
fn delay_offsets_of_both_versions() {
    let head = "{\n\t\"dataVersion\":{\n\t\t\"counter\":7,\n\t\t\"stateVersion\":0,\n\t\t\"timestamp\":1700000000000\n\t},\n";
    let older = format!("{head}\t\"offsetTable\":{{1:10,3:42\n\t}}\n}}");
    let newer = format!("{head}\t\"offsetTable\":{{\n\t\t1:10,\n\t\t3:42\n\t}}\n}}");
    let offsets =
        DelayOffsets { data_version: VERSION, table: [(1, 10), (3, 42)].into(), unknown: Map::new() };
    assert_eq!(offsets.to_json(Dialect::Rocketmq53), older);
    assert_eq!(offsets.to_json(Dialect::Rocketmq55), newer);
    for text in [older, newer] {
        assert_eq!(DelayOffsets::parse(text.as_bytes()), Ok(offsets.clone()));
    }
}

const TOPICS: &str = r#"{
	"dataVersion":{
		"counter":7,
		"stateVersion":0,
		"timestamp":1700000000000
	},
	"topicConfigTable":{
		"ctopic":{
			"attributes":{
				"cleanup.policy":"COMPACTION"
			},
			"order":false,
			"perm":6,
			"readQueueNums":8,
			"topicFilterType":"SINGLE_TAG",
			"topicName":"ctopic",
			"topicSysFlag":0,
			"writeQueueNums":8
		}
	}
}"#;

#[test]
fn topics_of_both_versions() {
    let mut topic = TopicConfig::new("ctopic", 8);
    topic.attributes.insert(TopicConfig::CLEANUP_POLICY.into(), "COMPACTION".into());
    assert!(topic.is_compaction() && !topic.is_batch_queue());
    let table = TopicTable {
        data_version: VERSION,
        topics: [("ctopic".to_owned(), topic)].into(),
        unknown: Map::new(),
    };
    for dialect in [Dialect::Rocketmq53, Dialect::Rocketmq55] {
        assert_eq!(table.to_json(dialect), TOPICS);
    }
    assert_eq!(TopicTable::parse(TOPICS.as_bytes()), Ok(table));
}

const GROUPS: &str = r#"{
	"dataVersion":{
		"counter":7,
		"stateVersion":0,
		"timestamp":1700000000000
	},
	"forbiddenTable":{
		"g1":{
			"t1":3
		}
	},
	"subscriptionGroupTable":{
		"g1":{
			"attributes":{},
			"brokerId":0,
			"consumeBroadcastEnable":true,
			"consumeEnable":true,
			"consumeFromMinEnable":true,
			"consumeMessageOrderly":false,
			"consumeTimeoutMinute":15,
			"groupName":"g1",
			"groupRetryPolicy":{
				"type":"CUSTOMIZED"
			},
			"groupSysFlag":0,
			"notifyConsumerIdsChangedEnable":true,
			"retryMaxTimes":16,
			"retryQueueNums":1,
			"whichBrokerWhenConsumeSlowly":1
		}
	}
}"#;

#[test]
fn groups_of_both_versions() {
    let groups = SubscriptionGroups {
        data_version: VERSION,
        groups: [("g1".to_owned(), SubscriptionGroup::new("g1"))].into(),
        forbidden: [("g1".to_owned(), [("t1".to_owned(), 3)].into())].into(),
        unknown: Map::new(),
    };
    for dialect in [Dialect::Rocketmq53, Dialect::Rocketmq55] {
        assert_eq!(groups.to_json(dialect), GROUPS);
    }
    assert_eq!(SubscriptionGroups::parse(GROUPS.as_bytes()), Ok(groups));
}

#[test]
fn compaction_positions() {
    let text = "{\n\t\"empty\":false,\n\t\"queueOffsetMap\":{\n\t\t\"ctopic_0\":13\n\t}\n}";
    let positions = CompactionPositions { table: [("ctopic_0".to_owned(), 13)].into(), unknown: Map::new() };
    assert_eq!(positions.to_json(Dialect::Rocketmq53), text);
    assert_eq!(CompactionPositions::parse(text.as_bytes()).unwrap(), positions);
    assert_eq!(positions.get("ctopic", 0), Some(13));
    assert_eq!(CompactionPositions::split_key("a_1_2"), Some(("a_1", 2)));
    let empty = CompactionPositions::default().to_json(Dialect::Rocketmq53);
    assert_eq!(empty, "{\n\t\"empty\":true,\n\t\"queueOffsetMap\":{}\n}");
    assert_eq!(empty.len(), 39);
}

#[test]
fn unknown_members_are_kept_in_their_place() {
    let text =
        r#"{"zeta":[1,{"a":null,"b":1.5}],"alpha":{},"topicConfigTable":{"t":{"perm":4,"lite":{"x":[]}}}}"#;
    let table = TopicTable::parse(text.as_bytes()).unwrap();
    let topic = &table.topics["t"];
    assert_eq!((topic.name.as_str(), topic.perm, topic.read_queues), ("t", 4, 16));
    assert_eq!(topic.unknown["lite"], json!({"x": []}));
    let written = table.to_json(Dialect::Rocketmq53);
    assert_eq!(TopicTable::parse(written.as_bytes()).unwrap().topics, table.topics);
    assert!(written.starts_with("{\n\t\"alpha\":{},\n\t\"dataVersion\":{"));
    assert!(written.ends_with("\n\t\"zeta\":[\n\t\t1,\n\t\t{\n\t\t\t\"b\":1.5\n\t\t}\n\t]\n}"), "{written}");
}

#[test]
fn everything_the_reference_reads() {
    for text in [
        r#"{"offsetTable":{"a@b":{0:1}}}"#,
        r#"{"offsetTable":{"a@b":{"0":1}}}"#,
        r"{'offsetTable':{'a@b':{0:1}}}",
        r#"{offsetTable:{"a@b":{0:1}}}"#,
        r#"{"offsetTable":{"a@b":{0:"1"}}}"#,
        r#"{"offsetTable":{"a@b":{0:1,}},}"#,
        r#"/*c*/{"offsetTable":{"a@b":/**/{0:1}}} "#,
        r#"{"offsetTable":{"a@b":{0:1L}}}"#,
        r#"{"offsetTable":{"a@b":{0:1.0}}}"#,
        r#"{"offsetTable":{"a@b":{0:7,0:1}}}"#,
        r#"{"offsetTable":{"a@b":{0:1,1:null}},"pullOffsetTable":null}"#,
        "\u{feff}{\"offsetTable\":{\"a@b\":{0:1}}}",
    ] {
        let offsets = ConsumerOffsets::parse(text.as_bytes()).unwrap();
        assert_eq!(offsets.table, [("a@b".to_owned(), [(0, 1)].into())].into(), "{text}");
    }
    let negative = ConsumerOffsets::parse(br#"{"offsetTable":{"a@b":{-1:5}}}"#).unwrap();
    assert_eq!(negative.get("a", "b", -1), Some(5));
    assert_eq!(ConsumerOffsets::parse(br#"{"offsetTable":null}"#).unwrap(), ConsumerOffsets::default());
}

#[test]
fn what_is_not_of_the_form() {
    for text in [
        "",
        " ",
        "{",
        "[",
        "[1",
        "nul",
        "{\"a\"}",
        "{\"a\":}",
        "{,}",
        "[,]",
        "{\"a\":1 \"b\":2}",
        "{} x",
        "\"a",
        "\"\\q\"",
        "\"\\u12\"",
        "'a\"",
        "-",
        "1e999",
        "--1",
        "/* {}",
        "{-:1}",
    ] {
        assert!(matches!(parse(text.as_bytes()), Err(FormatError::Json { .. })), "{text}");
    }
    assert_eq!(parse(b"\"\xff\""), Err(FormatError::BadUtf8 { what: "JSON" }));
    for text in ["[]", "1", "null"] {
        assert!(matches!(TopicTable::parse(text.as_bytes()), Err(FormatError::Json { .. })), "{text}");
    }
    for text in [
        r#"{"topicConfigTable":[]}"#,
        r#"{"topicConfigTable":{"t":1}}"#,
        r#"{"topicConfigTable":{"t":{"perm":"x"}}}"#,
        r#"{"topicConfigTable":{"t":{"perm":4294967296}}}"#,
        r#"{"topicConfigTable":{"t":{"order":1}}}"#,
        r#"{"topicConfigTable":{"t":{"attributes":{"a":{}}}}}"#,
        r#"{"dataVersion":{"counter":1.5}}"#,
    ] {
        assert!(matches!(TopicTable::parse(text.as_bytes()), Err(FormatError::Json { .. })), "{text}");
    }
    for text in [r#"{"offsetTable":{"a@b":{"x":1}}}"#, r#"{"offsetTable":{"a@b":{0:9223372036854775808}}}"#] {
        assert!(matches!(ConsumerOffsets::parse(text.as_bytes()), Err(FormatError::Json { .. })), "{text}");
    }
}

#[test]
fn depth_is_bounded() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(parse(nested(MAX_JSON_DEPTH).as_bytes()).is_ok());
    assert!(parse(nested(MAX_JSON_DEPTH + 1).as_bytes()).is_err());
    assert!(parse("{\"a\":".repeat(1 << 20).as_bytes()).is_err());
}

#[test]
fn escapes_in_both_directions() {
    assert_eq!(
        parse(r#"["\u0041\ud83d\ude00","\ud83d","\ud83dx","\ud83dA","\'\/\v\x41"]"#.as_bytes()).unwrap(),
        json!(["A😀", "\u{fffd}", "\u{fffd}x", "\u{fffd}A", "'/\u{b}A"])
    );
    // The two versions wrote a topic of this name in these forms.
    let name = "a\"b\\/\u{1}\t\u{7f}\u{85}\u{2028}\u{2029}é😀<>&'\u{8}\u{c}\n\r\u{b}";
    let table =
        TopicTable { topics: [("t".to_owned(), TopicConfig::new(name, 1))].into(), ..TopicTable::default() };
    let older = r#""topicName":"a\"b\\/\u0001\t\u007F\u0085\u2028\u2029é😀<>&'\b\f\n\r\u000B","#;
    let newer =
        "\"topicName\":\"a\\\"b\\\\/\\u0001\\t\u{7f}\u{85}\u{2028}\u{2029}é😀<>&'\\b\\f\\n\\r\\u000b\",";
    for (dialect, line) in [(Dialect::Rocketmq53, older), (Dialect::Rocketmq55, newer)] {
        let text = table.to_json(dialect);
        assert!(text.contains(line), "{text}");
        assert_eq!(TopicTable::parse(text.as_bytes()).unwrap(), table);
    }
}

#[test]
fn newer_versions_compare_greater() {
    let older = DataVersion { counter: 9, state_version: 0, timestamp: 9 };
    assert!(DataVersion { state_version: 1, ..DataVersion::default() } > older);
    assert!(older.next(5) > older);
    assert_eq!(older.next(5), DataVersion { counter: 10, state_version: 0, timestamp: 5 });
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::Array),
            vec((".{0,6}", inner), 0..4).prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

#[test]
fn entries_of_tables_are_told_by_what_is_unusual() {
    let topics = TopicTable::parse(TOPICS.as_bytes()).unwrap();
    for (name, topic) in &topics.topics {
        let text = topic.to_text(name);
        assert_eq!(&TopicConfig::parse(name, text.as_bytes()).unwrap(), topic, "{text}");
    }
    assert_eq!(TopicConfig::new("t", 16).to_text("t"), "{}");
    assert_eq!(TopicConfig::new("t", 4).to_text("t"), r#"{"readQueueNums":4,"writeQueueNums":4}"#);
    assert_eq!(TopicConfig::new("t", 16).to_text("other"), r#"{"topicName":"t"}"#);
    let groups = SubscriptionGroups::parse(GROUPS.as_bytes()).unwrap();
    for (name, group) in &groups.groups {
        let text = group.to_text(name);
        assert_eq!(&SubscriptionGroup::parse(name, text.as_bytes()).unwrap(), group, "{text}");
    }
    let text = SubscriptionGroup::new("g").to_text("g");
    assert_eq!(text, r#"{"groupRetryPolicy":{"type":"CUSTOMIZED"}}"#);
    assert_eq!(SubscriptionGroup::parse("g", text.as_bytes()).unwrap(), SubscriptionGroup::new("g"));
}

#[test]
fn the_dialect_of_a_file_is_seen() {
    assert_eq!(Dialect::of(CONSUMER_OFFSETS_53.as_bytes()), Some(Dialect::Rocketmq53));
    assert_eq!(Dialect::of(CONSUMER_OFFSETS_55.as_bytes()), Some(Dialect::Rocketmq55));
    assert_eq!(Dialect::of(TOPICS.as_bytes()), None);
    assert_eq!(Dialect::of(b"{"), None);
}

proptest! {
    #[test]
    fn standard_json_is_read_as_by_others(value in any_json()) {
        prop_assert_eq!(parse(value.to_string().as_bytes()).unwrap(), value.clone());
        prop_assert_eq!(parse(format!("{value:#}").as_bytes()).unwrap(), value);
    }

    #[test]
    fn tables_come_back(
        entries in vec((".{0,8}", 0i32..9, any::<i64>()), 0..6), unknown in any_json(), counter: i64,
        in_55 in any::<bool>(),
    ) {
        let dialect = if in_55 { Dialect::Rocketmq55 } else { Dialect::Rocketmq53 };
        let mut offsets = ConsumerOffsets::default();
        offsets.data_version.counter = counter;
        for (name, queue_id, offset) in &entries {
            offsets.set(name, "g", *queue_id, *offset);
        }
        if in_55 {
            offsets.pull_table = Some(offsets.table.clone());
        }
        let read = ConsumerOffsets::parse(offsets.to_json(dialect).as_bytes()).unwrap();
        prop_assert_eq!(&read, &offsets);

        let mut topics = TopicTable::default();
        for (name, queues, _) in &entries {
            let mut topic = TopicConfig::new(name, *queues);
            topic.attributes.insert(name.clone(), name.clone());
            topics.topics.insert(name.clone(), topic);
        }
        topics.unknown.insert("unknown".to_owned(), unknown);
        let text = topics.to_json(dialect);
        let read = TopicTable::parse(text.as_bytes()).unwrap();
        prop_assert_eq!(&read.topics, &topics.topics);
        prop_assert_eq!(read.to_json(dialect), text);
    }

    #[test]
    fn any_text_is_a_value_or_an_error(text in r#"[\[\]{}:,"'0-9a-f\\u /*.eE-]{0,60}"#, bytes in vec(any::<u8>(), 0..40)) {
        for text in [text.as_bytes(), &bytes] {
            let _ = parse(text);
            let _ = (TopicTable::parse(text), SubscriptionGroups::parse(text), CompactionPositions::parse(text));
            let _ = (ConsumerOffsets::parse(text), DelayOffsets::parse(text));
        }
    }

    #[test]
    fn any_damage_is_a_value_or_an_error(changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4)) {
        for file in [CONSUMER_OFFSETS_53, TOPICS, GROUPS] {
            let mut text = file.as_bytes().to_vec();
            for (at, byte) in &changes {
                let at = at.index(text.len());
                text[at] = *byte;
            }
            let _ = (ConsumerOffsets::parse(&text), TopicTable::parse(&text), SubscriptionGroups::parse(&text));
        }
    }
}

/// Returns the entries of a damaged file of offsets, and the positions and reasons of its losses.
fn partial(text: &[u8]) -> (ConsumerOffsets, Vec<(usize, String)>) {
    let PartialTable { table, losses } = ConsumerOffsets::parse_entries(text);
    let place = |error: FormatError| match error {
        FormatError::Json { position, reason } => (position, reason),
        error => panic!("{error}"),
    };
    (table, losses.into_iter().map(place).collect())
}

#[test]
fn a_file_without_damage_loses_nothing() {
    for text in [CONSUMER_OFFSETS_53, CONSUMER_OFFSETS_55, "{}"] {
        let (table, losses) = partial(text.as_bytes());
        assert_eq!((Ok(table), losses), (ConsumerOffsets::parse(text.as_bytes()), Vec::new()));
    }
}

/// However long the rest of the file is, its offsets are those of the whole file. A number at the end of the text may
/// have lost digits and does not count.
#[test]
fn a_truncated_file_keeps_its_complete_entries() {
    let whole = ConsumerOffsets::parse(CONSUMER_OFFSETS_53.as_bytes()).unwrap();
    let mut most = 0;
    for len in 0..CONSUMER_OFFSETS_53.len() {
        let (table, losses) = partial(&CONSUMER_OFFSETS_53.as_bytes()[..len]);
        assert_eq!(losses.len(), 1, "{len}: {losses:?}");
        assert!(losses[0].0 <= len, "{losses:?}");
        for (key, queues) in &table.table {
            for (queue_id, offset) in queues {
                assert_eq!(whole.table[key].get(queue_id), Some(offset), "{len}");
            }
        }
        most = most.max(table.table.values().map(BTreeMap::len).sum());
    }
    assert_eq!(most, 3);
    let (table, losses) = partial(CONSUMER_OFFSETS_53.split_once(",1:2\n").unwrap().0.as_bytes());
    assert_eq!((table.get("%RETRY%g2", "g2", 0), table.get("t1", "g1", 0)), (Some(3), None));
    assert!(losses[0].1.starts_with("offsetTable/t1@g1/0: "), "{losses:?}");
}

#[test]
fn an_entry_with_a_wrong_value_is_lost_alone_and_has_a_position() {
    let text = r#"{"offsetTable":{"a@g":{0:1,1:99999999999999999999999,9999999999:4},"b@g":7,"c@g":{0:3}}}"#;
    let (table, losses) = partial(text.as_bytes());
    assert_eq!(
        table.table,
        [("a@g".to_owned(), [(0, 1)].into()), ("c@g".to_owned(), [(0, 3)].into())].into()
    );
    let told: Vec<_> = losses.iter().map(|(at, reason)| (*at, reason.split(':').next().unwrap())).collect();
    let at = |part: &str| text.find(part).unwrap();
    assert_eq!(
        told,
        [
            (at("99999999999999999999999"), "offsetTable/a@g/1"),
            (at("4},"), "offsetTable/a@g/9999999999"),
            (at("7,"), "offsetTable/b@g"),
        ]
    );
}

#[test]
fn damage_inside_a_text_loses_the_entry_that_it_hits() {
    let text = r#"{"topicConfigTable":{"a":{"perm":6},"b":{"perm":#},"c":{"perm":4},"d":{"perm":2}}}"#;
    let PartialTable { table, losses } = TopicTable::parse_entries(text.as_bytes());
    assert_eq!(table.topics.keys().collect::<Vec<_>>(), ["a", "c", "d"]);
    assert_eq!(losses.len(), 1, "{losses:?}");
    assert!(losses[0].to_string().contains(&format!("byte {}", text.find('#').unwrap())), "{losses:?}");
    let mut bytes = text.replace('#', "6").into_bytes();
    bytes[text.find("\"c\"").unwrap() + 1] = 0xff;
    let PartialTable { table, losses } = TopicTable::parse_entries(&bytes);
    assert_eq!(table.topics.keys().collect::<Vec<_>>(), ["a", "b", "d"]);
    assert_eq!(losses.len(), 1, "{losses:?}");
    let cut = TopicTable::parse_entries(text.split_once("\"perm\":4").unwrap().0.as_bytes());
    assert_eq!(cut.table.topics.keys().collect::<Vec<_>>(), ["a"], "an entry that is cut does not count");
}

#[test]
fn an_older_file_completes_a_damaged_one() {
    let (mut table, _) = partial(br#"{"offsetTable":{"a@g":{0:5,1:"#);
    table.complete_from(ConsumerOffsets::parse(br#"{"offsetTable":{"a@g":{0:4,1:3},"b@g":{0:1}}}"#).unwrap());
    let all = [("a@g".to_owned(), [(0, 5), (1, 3)].into()), ("b@g".to_owned(), [(0, 1)].into())];
    assert_eq!(table.table, all.into());
}

proptest! {
    #[test]
    fn any_damage_is_told_or_harmless(at in 0..CONSUMER_OFFSETS_55.len(), with in vec(any::<u8>(), 0..6)) {
        let mut bytes = CONSUMER_OFFSETS_55.as_bytes().to_vec();
        let end = (at + with.len()).min(bytes.len());
        bytes.splice(at..end, with);
        let PartialTable { table, losses } = ConsumerOffsets::parse_entries(&bytes);
        prop_assert_eq!(losses.is_empty(), ConsumerOffsets::parse(&bytes).is_ok());
        prop_assert!(losses.len() < 20);
        prop_assert!(table.table.len() < 10);
    }

    #[test]
    fn any_bytes_end(bytes in vec(any::<u8>(), 0..200)) {
        let _ = TopicTable::parse_entries(&bytes);
        let _ = SubscriptionGroups::parse_entries(&bytes);
        let _ = DelayOffsets::parse_entries(&bytes);
    }
}
