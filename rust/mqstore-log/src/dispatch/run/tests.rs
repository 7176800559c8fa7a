//! Tests of the entries of a run against the plain rules, and of both ways to read a run.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use mqstore_format::{Host, RecordSpec, SysFlag, TransactionType, index_key_hash, tags_code};
use mqstore_io::{ManualClock, SimVfs, Vfs};
use proptest::prelude::*;

use super::*;
use crate::commit_log::{CutRun, LogScanner, ScanChecks, ScanItem, SegmentList};
use crate::dispatch::RUN_BYTES;
use mqstore_base::store_files::StoreFiles;
use mqstore_base::topic_floors::{FloorTable, TopicFloor};

const STORED: i64 = 1_700_000_000_123;
const SEGMENT: u64 = 8 << 10;

/// The fields of a record that decide its units and entries.
#[derive(Clone, Debug)]
struct Input {
    topic: &'static str,
    queue_id: i32,
    queue_offset: i64,
    transaction: TransactionType,
    properties: Vec<u8>,
}

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let topics: &[&str] = &["orders", "orders2", "batched", "a/b", "SCHEDULE_TOPIC_XXXX", "中"];
    let kinds: &[TransactionType] = &[
        TransactionType::None,
        TransactionType::None,
        TransactionType::None,
        TransactionType::Prepared,
        TransactionType::Commit,
        TransactionType::Rollback,
    ];
    let queue_ids =
        prop_oneof![8 => 0..3_i32, 1 => Just(-1), 1 => Just(1023), 1 => Just(1024), 1 => Just(i32::MAX)];
    let offsets = prop_oneof![8 => 0..4_i64, 1 => Just(-1), 1 => Just(i64::MAX), 1 => Just(i64::MAX - 1)];
    let properties = (
        proptest::option::of("[a-c]{1,3}"),
        proptest::option::of("[a-c ]{1,6}"),
        proptest::option::of("[a-cé]{1,2}"),
        proptest::option::of("[0-9]{1,2}"),
    )
        .prop_map(|(unique, keys, tags, delay)| {
            let entry = |name: &str, value: Option<String>| {
                value.map_or(String::new(), |value| format!("{name}\x01{value}\x02"))
            };
            let entries =
                [entry("TAGS", tags), entry("UNIQ_KEY", unique), entry("DELAY", delay), entry("KEYS", keys)];
            entries.concat().into_bytes()
        });
    let (topics, kinds) = (proptest::sample::select(topics), proptest::sample::select(kinds));
    let input = (topics, queue_ids, offsets, kinds, properties);
    let input = input.prop_map(|(topic, queue_id, queue_offset, transaction, properties)| Input {
        topic,
        queue_id,
        queue_offset,
        transaction,
        properties,
    });
    proptest::collection::vec(input, 0..60)
}

/// A log in segments of 8 KiB with these records, and their positions.
struct Log {
    list: Arc<SegmentList>,
    places: Vec<u64>,
    end: u64,
}

fn log(inputs: &[Input]) -> Log {
    let host = Host::new([127, 0, 0, 1], 10_911);
    let (mut bytes, mut places) = (Vec::new(), Vec::new());
    for input in inputs {
        let mut spec = RecordSpec {
            queue_id: input.queue_id,
            queue_offset: input.queue_offset,
            sys_flag: SysFlag(0).with_transaction(input.transaction),
            store_timestamp: STORED,
            properties: &input.properties,
            ..RecordSpec::new(input.topic, b"body", host, host)
        };
        let size = spec.encoded_len().unwrap() as u64;
        let rest = SEGMENT - bytes.len() as u64 % SEGMENT;
        if size + 8 > rest {
            bytes.extend_from_slice(&mqstore_format::encode_blank(rest as u32));
            bytes.resize(bytes.len().next_multiple_of(SEGMENT as usize), 0);
        }
        places.push(bytes.len() as u64);
        spec.physical_offset = bytes.len() as i64;
        spec.encode_into(&mut bytes).unwrap();
    }
    let end = bytes.len() as u64;
    let vfs: Arc<dyn Vfs> = Arc::new(SimVfs::default());
    let files = StoreFiles::new(Arc::clone(&vfs), Arc::new(ManualClock::new(STORED)), Path::new("/store"));
    vfs.create_dir_all(&files.commit_log()).unwrap();
    bytes.resize(bytes.len().next_multiple_of(SEGMENT as usize), 0);
    for (index, segment) in bytes.chunks(SEGMENT as usize).enumerate() {
        let base = index as u64 * SEGMENT;
        let path = files.commit_log().join(mqstore_format::offset_file_name(base));
        vfs.create_new(&path).unwrap().write_all_at(segment, 0).unwrap();
    }
    Log { list: Arc::new(SegmentList::load(&files).unwrap()), places, end }
}

type Entries = (Vec<(String, i32, Vec<(i64, CqUnit)>)>, Vec<NewEntry>);

/// Returns the units and entries, with one rule on each line.
fn plain(rules: &DispatchRules, inputs: &[Input], log: &Log) -> Entries {
    let (mut queues, mut index): Entries = Default::default();
    let ends = log.places.iter().skip(1).copied().chain([log.end]);
    for ((input, offset), next) in inputs.iter().zip(&log.places).zip(ends) {
        let properties = mqstore_format::Properties::new(&input.properties);
        if input.transaction != TransactionType::Rollback {
            let unique = properties.get("UNIQ_KEY").map(str::to_owned);
            let keys = properties.get("KEYS").unwrap_or_default().split(' ').map(str::to_owned);
            let keys = unique.into_iter().chain(keys.filter(|key| !key.is_empty())).map(|key| (key, false));
            let tags = properties.get("TAGS").map(|tags| format!("T#{tags}")).filter(|_| rules.index_tags);
            for (key, of_tags) in keys.chain(tags.map(|tags| (tags, true))) {
                let hash = index_key_hash(input.topic, &key);
                index.push(NewEntry {
                    hash,
                    physical_offset: *offset as i64,
                    store_timestamp: STORED,
                    of_tags,
                });
            }
        }
        let queued = matches!(input.transaction, TransactionType::None | TransactionType::Commit);
        let good = queued && input.queue_id >= 0 && input.queue_offset >= 0;
        if !good || ["a/b", "batched"].contains(&input.topic) {
            continue;
        }
        let delay = properties.get("DELAY").filter(|_| input.topic == mqstore_format::SCHEDULE_TOPIC);
        let code = match delay.map_or(0, |delay| delay.parse::<i32>().unwrap()) {
            0 => properties.get("TAGS").map_or(0, tags_code),
            level => {
                let levels = rules.delays.at(*offset);
                levels.delivery_time(level.min(levels.max_level()), STORED)
            }
        };
        let head = log.list.segments()[(offset / SEGMENT) as usize].file().unwrap();
        let mut size = [0; 4];
        head.read_exact_at(&mut size, offset % SEGMENT).unwrap();
        let size = i32::from_be_bytes(size);
        assert!(offset + size as u64 <= next);
        let unit = (input.queue_offset, CqUnit { physical_offset: *offset as i64, size, tags_code: code });
        let same = |queue: &&mut (String, i32, Vec<_>)| queue.0 == input.topic && queue.1 == input.queue_id;
        match queues.iter_mut().find(same) {
            Some(queue) => queue.2.push(unit),
            None => queues.push((input.topic.to_owned(), input.queue_id, vec![unit])),
        }
    }
    (queues, index)
}

/// Returns the units and entries as the dispatcher decodes them, first up to the limit `until` and then to the end.
fn decoded(rules: &DispatchRules, log: &Log, until: u64, maps: bool, crc: bool) -> Entries {
    let mut scanner = LogScanner::new(Arc::clone(&log.list), 0, 0, ScanChecks { crc: false });
    if maps {
        scanner.look_at_maps();
    }
    let (mut queues, mut index): Entries = Default::default();
    let mut output = RunOutput::default();
    for limit in [until, log.end] {
        scanner.extend(Arc::clone(&log.list), limit);
        output.begin();
        while let CutRun::Records(cut) = scanner.cut(RUN_BYTES, Vec::new()).unwrap() {
            let damage = cut.records(crc, None, |record, offset| output.add(rules, record, offset));
            assert_eq!((damage, cut.end()), (None, scanner.position()));
        }
        assert_eq!(scanner.position(), limit);
        index.extend_from_slice(&output.index);
        for (topic, run) in output.queues() {
            let mut units = Vec::new();
            for (first, range) in run.ranges() {
                assert!(!range.is_empty());
                units.extend(range.iter().zip(0..).map(|(unit, n)| (first + n, *unit)));
            }
            let same = |queue: &&mut (String, i32, Vec<_>)| queue.0 == topic && queue.1 == run.queue_id();
            match queues.iter_mut().find(same) {
                Some(queue) => queue.2.append(&mut units),
                None => queues.push((topic.to_owned(), run.queue_id(), units)),
            }
        }
    }
    (queues, index)
}

fn batched() -> super::BatchTopics {
    let topics = super::BatchTopics::default();
    topics.insert("batched");
    topics
}

proptest! {
    #[test]
    fn a_run_yields_what_the_rules_say(
        inputs in inputs(),
        index_tags: bool,
        cut in any::<proptest::sample::Index>(),
        mapped in 0..4_usize,
        crc: bool,
        own_levels: bool,
    ) {
        let own = mqstore_format::DelayLevels::parse("7s 1h 2d").unwrap();
        let rules = DispatchRules {
            index_tags,
            delays: if own_levels { mqstore_base::store_files::DelayTables::of(own) } else { mqstore_base::store_files::DelayTables::default() },
            batch_topics: batched(),
            ..DispatchRules::default()
        };
        let log = log(&inputs);
        let until = if log.places.is_empty() { 0 } else { *cut.get(&log.places) };
        let expected = plain(&rules, &inputs, &log);
        prop_assert_eq!(decoded(&rules, &log, until, false, crc), expected.clone());
        // Some segments are mapped; the scanner reads the others.
        for segment in log.list.segments().iter().skip(mapped) {
            segment.region().unwrap();
        }
        prop_assert_eq!(decoded(&rules, &log, until, true, crc), expected);
        // No map is still in use.
        prop_assert!(log.list.segments().iter().all(|segment| !segment.is_in_use()));
    }
}

/// A check expects no units of hidden records in their own queue, and dispatch writes those that a retention hides. A
/// light queue keeps its units, because it has no floor.
#[test]
fn hidden_records_have_no_units_in_their_own_queue() {
    let input = |queue_offset: i64| Input {
        topic: "orders",
        queue_id: 0,
        queue_offset,
        transaction: TransactionType::None,
        properties: format!(
            "INNER_MULTI_DISPATCH\x01%LMQ%l\x02INNER_MULTI_QUEUE_OFFSET\x01{queue_offset}\x02"
        )
        .into_bytes(),
    };
    let log = log(&(0..4).map(input).collect::<Vec<_>>());
    let floor = TopicFloor { log_offset: log.places[2], ..TopicFloor::default() };
    let deletion = TopicFloor::of_deletion(log.places[2], BTreeMap::new());
    for (floor, expired, orders, light) in [
        (&floor, ExpiredRecords::Dispatch, 4, 4),
        (&floor, ExpiredRecords::Skip, 2, 4),
        (&deletion, ExpiredRecords::Dispatch, 2, 4),
        (&deletion, ExpiredRecords::Skip, 2, 4),
    ] {
        let mut table = FloorTable::default();
        table.insert("orders".into(), floor.clone());
        let rules = DispatchRules { floors: TopicFloors::new(table), expired, ..DispatchRules::default() };
        let mut output = RunOutput::default();
        output.begin();
        let mut scanner = LogScanner::new(Arc::clone(&log.list), 0, log.end, ScanChecks { crc: true });
        while let ScanItem::Record(record) = scanner.next_item().unwrap() {
            output.add(&rules, &record.outline(), record.physical_offset as u64);
        }
        let units = |topic: &str| -> usize {
            let runs = output.queues().filter(|(name, _)| *name == topic);
            runs.flat_map(|(_, run)| run.ranges().map(|(_, units)| units.len()).collect::<Vec<_>>()).sum()
        };
        assert_eq!((units("orders"), units("%LMQ%l")), (orders, light), "{floor:?} {expired:?}");
    }
}

#[test]
fn a_mapped_segment_is_looked_at_in_place() {
    let inputs = vec![
        Input {
            topic: "orders",
            queue_id: 0,
            queue_offset: 0,
            transaction: TransactionType::None,
            properties: Vec::new(),
        };
        3
    ];
    let log = log(&inputs);
    let mut scanner = LogScanner::new(Arc::clone(&log.list), 0, log.end, ScanChecks { crc: false });
    scanner.look_at_maps();
    log.list.segments()[0].region().unwrap();
    let CutRun::Records(mut cut) = scanner.cut(RUN_BYTES, Vec::new()).unwrap() else {
        panic!("there are records");
    };
    let mut seen = 0;
    assert_eq!(cut.records(false, None, |_, _| seen += 1), None);
    assert_eq!((seen, cut.end()), (3, log.end));
    // While the run uses the map, the segment must not be overwritten.
    assert!(log.list.segments()[0].is_in_use());
    cut.let_go();
    assert!(!log.list.segments()[0].is_in_use());
}
