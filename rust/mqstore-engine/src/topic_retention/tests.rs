//! Retention of single topics: each limit, every kind of read, a stop at each call, and no blank in a queue file.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_base::options::{Durability, OpenMode, StoreOptions};
use mqstore_base::progress::Progress;
use mqstore_base::topic_floors::{FloorTable, TopicRetention};
use mqstore_io::sync::Mutex;
use mqstore_io::{ManualClock, Vfs};

use crate::retention::ExpireReport;
use crate::testing::{World, put, read_all, small};
use crate::{
    MakeSink, OlderFloor, OlderLimits, OlderLookup, OlderMessages, OlderRead, OlderReads, OlderRows,
    OlderSource, ScanOutput, ScanPlan, ScanRequest, ScanRow, ScanSink, Store, TopicUsage,
};

const HOUR: Duration = Duration::from_secs(3600);

fn keep(hours: u64) -> TopicRetention {
    TopicRetention { keep_ms: Some(hours * 3_600_000), ..TopicRetention::default() }
}

fn at_most(messages: u64) -> TopicRetention {
    TopicRetention { max_messages: Some(messages), ..TopicRetention::default() }
}

fn body(number: i64) -> Vec<u8> {
    format!("body {number:05}").into_bytes()
}

/// Appends `count` messages to queue 0 of `orders` and as many of `other`, one of each an hour.
fn fill(store: &Store, clock: &ManualClock, count: i64) {
    for _ in 0..count {
        let number = store.bounds("orders", 0).map_or(0, |(_, max)| max);
        put(store, "orders", 0, &body(number), "k");
        put(store, "other", 0, &body(number), "k");
        clock.advance(HOUR);
    }
}

fn expire(store: &Store) -> ExpireReport {
    store.expire(false, &mut || Ok(())).unwrap()
}

fn found_by_key(store: &Store, topic: &str) -> usize {
    store.lookup(topic, "k", None, None, None).unwrap().next_batch(usize::MAX).unwrap().len()
}

fn in_log(store: &Store, topic: &str) -> usize {
    let records = store.log().scan(None).unwrap().next_batch(usize::MAX).unwrap();
    records.iter().filter(|record| record.view().unwrap().topic == topic).count()
}

/// Counts the rows of a scan.
#[derive(Default)]
struct Counter(usize);

impl ScanSink for Counter {
    type Batch = usize;

    fn has_room(&self, _row: &ScanRow<'_>) -> bool {
        true
    }

    fn add(&mut self, _row: &ScanRow<'_>) {
        self.0 += 1;
    }

    fn take(&mut self) -> Option<(usize, u64)> {
        let rows = std::mem::take(&mut self.0);
        (rows > 0).then_some((rows, 0))
    }
}

fn scanned(store: &Store, topic: &str, plan: ScanPlan) -> usize {
    let request = ScanRequest { topics: Some(vec![topic.to_owned()]), plan, ..ScanRequest::default() };
    let make: MakeSink<Counter> = Arc::new(Counter::default);
    let mut scan = store.scan(&request, make).unwrap();
    let mut count = 0;
    loop {
        match scan.next(Duration::from_secs(5)).unwrap() {
            ScanOutput::Batch(batch) => count += batch.rows,
            ScanOutput::Later => {}
            ScanOutput::End => return count,
        }
    }
}

/// Checks that exactly these offsets of `orders` are in every answer, and all of `other`.
fn expect(store: &Store, offsets: Range<i64>, others: i64) {
    assert_eq!(store.bounds("orders", 0).unwrap(), (offsets.start, offsets.end));
    let kept: Vec<_> = offsets.clone().map(|offset| (offset, body(offset))).collect();
    assert_eq!(read_all(store, "orders", 0), kept);
    let count = kept.len();
    assert_eq!((found_by_key(store, "orders"), in_log(store, "orders")), (count, count));
    assert_eq!([ScanPlan::Log, ScanPlan::Queues].map(|plan| scanned(store, "orders", plan)), [count, count]);
    if offsets.start > 0 {
        let below = store.read("orders", 0, Some(offsets.start - 1), None, None).err().unwrap();
        let is_range =
            matches!(below, StoreError::OffsetOutOfRange { min_offset, .. } if min_offset == offsets.start);
        assert!(is_range, "{below}");
    }
    assert_eq!(read_all(store, "other", 0).len() as i64, others);
}

fn verify_clean(world: &World) {
    let report = mqstore_inspect::verify(&world.files(), &small(), &mut |_| Ok(())).unwrap();
    assert!(report.ok, "{:#?}", report.problems);
}

fn queue_files(world: &World) -> Vec<String> {
    let folder = world.files().consume_queue().join("orders/0");
    let entries = world.vfs.list(&folder).unwrap_or_default();
    entries.iter().map(|entry| entry.name.to_string_lossy().trim_start_matches('0').to_owned()).collect()
}

/// Returns the number of blank units in all queue files.
fn blanks(world: &World) -> usize {
    let folder = world.files().consume_queue().join("orders/0");
    let blank = mqstore_format::BLANK_UNIT.encode();
    let bytes = |path: PathBuf| world.vfs.read_file(&path, 1 << 20).unwrap();
    let files = world.vfs.list(&folder).unwrap().into_iter().map(|entry| bytes(folder.join(entry.name)));
    files.map(|bytes| bytes.chunks(20).filter(|unit| **unit == blank).count()).sum()
}

#[test]
fn each_limit_hides_the_oldest_messages_from_every_answer() {
    for (limits, kept) in [
        (keep(7), 23..30),
        (at_most(4), 26..30),
        (TopicRetention { max_bytes: Some(1), ..TopicRetention::default() }, 30..30),
        (TopicRetention { max_messages: Some(9), ..keep(3) }, 27..30),
        (TopicRetention { max_messages: Some(2), ..keep(3) }, 28..30),
        (keep(31), 0..30),
        (at_most(30), 0..30),
    ] {
        let (world, _, clock) = World::simulated();
        let store = world.open(OpenMode::Create, &small()).unwrap();
        fill(&store, &clock, 30);
        let reader = world.open(OpenMode::Read, &small()).unwrap();
        expect(&reader, 0..30, 30);
        store.retention().set("orders", limits).unwrap();
        expect(&store, 0..30, 30);
        let plan = store.expire(true, &mut || Ok(())).unwrap();
        assert_eq!(reader.expire(true, &mut || Ok(())).unwrap().topics, plan.topics);
        expect(&store, 0..30, 30);
        let done = expire(&store);
        assert_eq!(done.topics, plan.topics, "{limits:?}");
        let hidden: u64 = done.topics.iter().map(|topic| topic.messages).sum();
        assert_eq!(hidden as i64, kept.start, "{limits:?}");
        for view in [&store, &reader] {
            expect(view, kept.clone(), 30);
        }
        assert_eq!(expire(&store).topics, []);
        store.close().unwrap();
        verify_clean(&world);
        expect(&reader, kept.clone(), 30);
        let store = world.open(OpenMode::ReadWrite, &small()).unwrap();
        assert_eq!(store.notes(), Vec::<String>::new());
        expect(&store, kept.clone(), 30);
        // The queue continues at its next offset, and the limits stay.
        fill(&store, &clock, 2);
        expire(&store);
        let kept = if kept.start == 0 && limits == keep(31) { 1..32 } else { kept.start + 2..32 };
        expect(&store, kept, 32);
    }
}

#[test]
fn bytes_count_whole_records_over_all_queues() {
    let (world, _, clock) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    store.create_topic("orders", 3, &[]).unwrap();
    for number in 0..12 {
        put(&store, "orders", number % 3, &body(number.into()), "k");
        clock.advance(HOUR);
    }
    let usage = |store: &Store| store.retention().usage(&mut || Ok(())).unwrap();
    let limits = TopicRetention { max_bytes: Some(1 << 20), ..TopicRetention::default() };
    store.retention().set("orders", limits).unwrap();
    let all = usage(&store)[0].live_bytes;
    let limits = TopicRetention { max_bytes: Some(all / 12 * 5 + 1), ..TopicRetention::default() };
    store.retention().set("orders", limits).unwrap();
    assert_eq!(expire(&store).topics[0].messages, 7);
    let firsts = [0, 1, 2].map(|queue_id| store.bounds("orders", queue_id).unwrap());
    assert_eq!(firsts, [(3, 4), (2, 4), (2, 4)]);
    let [row] = <[TopicUsage; 1]>::try_from(usage(&store)).unwrap();
    assert_eq!((row.live_bytes, row.dead_bytes), (all / 12 * 5, all / 12 * 7));
    // The sum of the last pass stays right.
    for number in 12..15 {
        put(&store, "orders", number % 3, &body(number.into()), "k");
        assert_eq!(expire(&store).topics[0].messages, 1);
    }
    assert_eq!(usage(&store)[0].live_bytes, all / 12 * 5);
    store.retention().set("orders", TopicRetention::default()).unwrap();
    put(&store, "orders", 0, &body(15), "k");
    assert_eq!(expire(&store).topics, []);
    assert_eq!(usage(&store)[0].limits, TopicRetention::default(), "hidden records are still listed");
}

#[test]
fn whole_queue_files_go_and_no_unit_is_blanked() {
    let (world, _, clock) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    fill(&store, &clock, 37);
    store.retention().set("orders", at_most(12)).unwrap();
    let done = expire(&store);
    assert_eq!(done.files.len(), 2);
    assert!(done.files.iter().all(|file| file.reason.starts_with("topic: ")));
    assert_eq!((queue_files(&world), blanks(&world)), (vec!["400".to_owned(), "600".to_owned()], 0));
    expect(&store, 25..37, 37);
    // The last file never goes: it keeps the next offset.
    store
        .retention()
        .set("orders", TopicRetention { keep_ms: Some(1), ..TopicRetention::default() })
        .unwrap();
    expire(&store);
    assert_eq!(queue_files(&world), ["600"]);
    expect(&store, 37..37, 37);
    store.rebuild(&mut |_: Progress| Ok(())).unwrap();
    expect(&store, 37..37, 37);
    assert_eq!(blanks(&world), 0, "brokers need the units of hidden records in a log that begins at 0");
    store.close().unwrap();
    verify_clean(&world);
    for folder in ["consumequeue", "index"] {
        world.vfs.remove_dir_all(&world.path.join(folder)).unwrap();
    }
    expect(&world.open(OpenMode::Read, &small()).unwrap(), 37..37, 37);
    mqstore_inspect::rebuild(&world.files(), &small(), false, &mut |_: Progress| Ok(())).unwrap();
    verify_clean(&world);
    assert_eq!(blanks(&world), 0);
    let store = world.open(OpenMode::ReadWrite, &small()).unwrap();
    assert_eq!(put(&store, "orders", 0, &body(37), "k").queue_offset, 37);
    expect(&store, 37..38, 37);
    expire(&store);
    assert_eq!(queue_files(&world), ["600"], "the rebuilt files go again");
}

#[test]
fn the_log_is_dispatched_again_without_the_units_of_removed_files() {
    let (world, sim, clock) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    fill(&store, &clock, 37);
    store.retention().set("orders", at_most(12)).unwrap();
    expire(&store);
    store.close().unwrap();
    // Without the manifest, recovery dispatches the whole log.
    sim.remove_file(&world.files().side().join("queues")).unwrap();
    let store = world.open(OpenMode::ReadWrite, &small()).unwrap();
    assert!(store.notes().iter().all(|note| note.contains("manifest")), "{:?}", store.notes());
    expect(&store, 25..37, 37);
    store.close().unwrap();
    verify_clean(&world);
}

#[test]
fn topics_of_the_system_and_compaction_topics_are_refused() {
    let (world, _, _) = World::simulated();
    let options = StoreOptions { retention_ms: Some(3_600_000), ..small() };
    let store = world.open(OpenMode::Create, &options).unwrap();
    let table = ("cleanup.policy".to_owned(), "COMPACTION".to_owned());
    store.create_topic("prices", 1, &[table]).unwrap();
    store.create_topic("orders", 1, &[]).unwrap();
    for topic in [
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_wheel_timer",
    ] {
        store.create_topic(topic, 1, &[]).unwrap();
        assert!(matches!(store.retention().set(topic, keep(1)), Err(StoreError::Refused { .. })), "{topic}");
    }
    assert!(matches!(store.retention().set("prices", keep(1)), Err(StoreError::Refused { .. })));
    assert!(matches!(store.retention().set("none", keep(1)), Err(StoreError::TopicNotFound { .. })));
    let wrong = |limits| match store.retention().set("orders", limits) {
        Err(StoreError::InvalidOption { option, reason }) => (option, reason),
        other => panic!("{other:?}"),
    };
    let none = TopicRetention::default();
    assert_eq!(wrong(TopicRetention { max_bytes: Some(0), ..none }).0, "max_bytes");
    assert_eq!(wrong(TopicRetention { max_messages: Some(u64::MAX), ..none }).0, "max_messages");
    assert_eq!(wrong(TopicRetention { keep_ms: Some(0), ..none }).0, "keep");
    let (option, reason) = wrong(keep(2));
    assert!(option == "keep" && reason.contains("`retention`") && reason.contains("archive"), "{reason}");
    store.retention().set("orders", keep(1)).unwrap();
    let reader = world.open(OpenMode::Read, &options).unwrap();
    let listed = BTreeMap::from([("orders".into(), keep(1))]);
    assert_eq!(
        (store.retention().list().unwrap(), reader.retention().list().unwrap()),
        (listed.clone(), listed)
    );
    assert!(matches!(reader.retention().set("orders", keep(1)), Err(StoreError::ReadOnly { .. })));
    store.remove_topic("orders").unwrap();
    assert!(store.retention().list().unwrap().is_empty());
}

#[test]
fn a_deleted_topic_keeps_its_floor_and_the_new_one_gets_its_own() {
    let (world, _, clock) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    fill(&store, &clock, 13);
    store.retention().set("orders", at_most(3)).unwrap();
    expire(&store);
    store.remove_topic("orders").unwrap();
    store.create_topic("orders", 1, &[]).unwrap();
    assert_eq!(expire(&store).topics, []);
    fill(&store, &clock, 4);
    expect(&store, 20..24, 17);
    store.retention().set("orders", at_most(1)).unwrap();
    expire(&store);
    expect(&store, 23..24, 17);
    store.close().unwrap();
    verify_clean(&world);
    let store = world.open(OpenMode::ReadWrite, &small()).unwrap();
    expect(&store, 23..24, 17);
    let rows = store.retention().usage(&mut || Ok(())).unwrap();
    assert!(rows.len() == 1 && rows[0].dead_bytes > rows[0].live_bytes * 15, "{rows:?}");
}

/// Topic, start of the log, first offsets of its queues, and the limits.
type AskedFloor = (String, u64, BTreeMap<i32, i64>, OlderLimits);

/// Messages before the log: answers with the same floor, and keeps the requests.
#[derive(Debug)]
struct Older {
    floor: Result<u64, ()>,
    asked: Mutex<Vec<AskedFloor>>,
}

impl OlderSource for Arc<Older> {
    fn begin(&self) -> u64 {
        0
    }

    fn before(&self, _log_start: u64) -> Result<Arc<dyn OlderMessages>, StoreError> {
        Ok(Arc::new(Arc::clone(self)))
    }
}

fn not_asked<T>() -> Result<T, StoreError> {
    Err(StoreError::Busy { reason: "only limits ask here".to_owned() })
}

impl OlderMessages for Arc<Older> {
    fn first_offset(&self, _: &FloorTable, _: &str, _: i32) -> Result<Option<i64>, StoreError> {
        not_asked()
    }

    fn offset_for_time(&self, _: &FloorTable, _: &str, _: i32, _: i64) -> Result<Option<i64>, StoreError> {
        not_asked()
    }

    fn last_offset(
        &self,
        _: &FloorTable,
        _: &str,
        _: i32,
        _: i64,
        _: i64,
    ) -> Result<Option<i64>, StoreError> {
        not_asked()
    }

    fn count(&self, _: &FloorTable, _: &str, _: i32, _: i64) -> Result<u64, StoreError> {
        not_asked()
    }

    fn read(&self, _: &Arc<FloorTable>, _: &OlderRead<'_>) -> Result<Box<dyn OlderReads>, StoreError> {
        not_asked()
    }

    fn lookup(&self, _: &Arc<FloorTable>, _: &OlderLookup<'_>) -> Result<Box<dyn OlderReads>, StoreError> {
        not_asked()
    }

    fn by_id(&self, _: &Arc<FloorTable>, _: &str, _: u64) -> Result<Option<StoredRecord>, StoreError> {
        not_asked()
    }

    fn at(&self, _: &Arc<FloorTable>, _: u64) -> Result<Option<StoredRecord>, StoreError> {
        not_asked()
    }

    fn scan(
        &self,
        _: &Arc<FloorTable>,
        _: &ScanRequest,
        _: Range<u64>,
    ) -> Result<Box<dyn OlderRows>, StoreError> {
        not_asked()
    }

    fn due_floor(
        &self,
        _: &FloorTable,
        topic: &str,
        log_start: u64,
        lows: &BTreeMap<i32, i64>,
        limits: OlderLimits,
    ) -> Result<Option<OlderFloor>, StoreError> {
        self.asked.lock().push((topic.to_owned(), log_start, lows.clone(), limits));
        match self.floor {
            Ok(log_offset) => Ok(Some(OlderFloor { log_offset, messages: 7 })),
            Err(()) => Err(StoreError::Busy { reason: "the archive".to_owned() }),
        }
    }
}

#[test]
fn limits_that_are_longer_than_the_log_count_the_messages_before_it() {
    let (world, _, clock) = World::simulated();
    let options = StoreOptions { retention_bytes: Some(1), ..small() };
    let store = world.open(OpenMode::Create, &options).unwrap();
    fill(&store, &clock, 900);
    expire(&store);
    let ((min, max), log_start) = (store.bounds("orders", 0).unwrap(), store.stats().unwrap().log_min_offset);
    assert!(min > 0);
    let asked = |floor, limits| {
        let older = Arc::new(Older { floor, asked: Mutex::default() });
        store.set_older(Some(Arc::new(Arc::clone(&older))));
        store.retention().set("orders", limits).unwrap();
        let done = store.expire(false, &mut || Ok(()));
        (done, std::mem::take(&mut *older.asked.lock()))
    };
    // A limit that the log exceeds needs no older messages.
    let (done, requests) = asked(Ok(1), at_most((max - min) as u64 - 1));
    assert_eq!((done.unwrap().topics[0].messages, requests.len()), (1, 0));
    let (done, requests) = asked(Ok(5), at_most((max - min) as u64 + 99));
    let left = OlderLimits { max_messages: Some(100), ..OlderLimits::default() };
    assert_eq!(requests, [("orders".to_owned(), log_start, BTreeMap::from([(0, min + 1)]), left)]);
    assert_eq!(done.unwrap().topics, [], "the floor is higher already");
    // An archive that does not answer does not keep the messages of another topic.
    store.retention().set("other", at_most(1)).unwrap();
    let (done, _) = asked(Err(()), keep(10_000));
    assert!(matches!(done, Err(StoreError::Busy { .. })), "{done:?}");
    assert_eq!(read_all(&store, "other", 0).len(), 1);
}

#[test]
fn the_background_applies_the_limits() {
    let (world, _, clock) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    fill(&store, &clock, 20);
    store.retention().set("orders", keep(5)).unwrap();
    clock.advance(Duration::from_secs(20));
    store.step().unwrap();
    expect(&store, 16..20, 20);
}

#[test]
fn a_batch_topic_loses_whole_records() {
    let (world, _, clock) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    store.create_topic("orders", 1, &[("queue.type".to_owned(), "BatchCQ".to_owned())]).unwrap();
    for number in 0..6_u8 {
        let bodies = [[number], [number]];
        let messages: Vec<_> = bodies.iter().map(|body| crate::testing::plain("orders", body)).collect();
        store.append_many(&messages).unwrap();
        clock.advance(HOUR);
    }
    let reader = world.open(OpenMode::Read, &small()).unwrap();
    assert_eq!(reader.bounds("orders", 0).unwrap(), (0, 12));
    store.retention().set("orders", at_most(5)).unwrap();
    assert_eq!(expire(&store).topics[0].messages, 8);
    assert_eq!([&store, &reader].map(|view| view.bounds("orders", 0).unwrap()), [(8, 12), (8, 12)]);
    store.close().unwrap();
    verify_clean(&world);
    let store = world.open(OpenMode::ReadWrite, &small()).unwrap();
    assert_eq!((store.bounds("orders", 0).unwrap(), store.notes()), ((8, 12), Vec::new()));
}

/// A stop leaves the old floor or the new one, and after a stop the next pass completes the removal of files.
#[test]
fn a_stop_at_any_call_leaves_the_old_floor_or_the_new_one() {
    for durability in [Durability::Async, Durability::Manual] {
        let options = StoreOptions { durability, ..small() };
        let (world, sim, clock) = World::simulated();
        let store = world.open(OpenMode::Create, &options).unwrap();
        fill(&store, &clock, 37);
        store.retention().set("orders", at_most(12)).unwrap();
        store.flush().unwrap();
        let begin = sim.operations();
        sim.freeze_at_each(begin..begin + 2000);
        expire(&store);
        let mut states = sim.take_all_frozen();
        assert!(states.len() > 5, "{}", states.len());
        states.push((0, sim.kill().unwrap()));
        let mut outcomes = BTreeMap::new();
        for (at, state) in states {
            for stopped in [state.kill(), state.crash(at), state.crash_with(&mut |_| false)] {
                let world = world.on(Arc::new(stopped.unwrap()));
                check_after_stop(&world, &options, at, &mut outcomes);
            }
        }
        assert_eq!(outcomes.len(), 2, "{outcomes:?}");
        assert_eq!(sim.violations(), Vec::<String>::new());
    }
}

fn check_after_stop(world: &World, options: &StoreOptions, at: u64, outcomes: &mut BTreeMap<i64, u32>) {
    let reader = world.open(OpenMode::Read, options).unwrap();
    let (first, end) = reader.bounds("orders", 0).unwrap();
    assert!(end == 37 && (first == 0 && at > 0 || first == 25), "{first} to {end} at call {at}");
    expect(&reader, first..37, 37);
    let store = world.open(OpenMode::ReadWrite, options).unwrap();
    assert_eq!(store.notes(), Vec::<String>::new(), "at call {at}");
    expect(&store, first..37, 37);
    expire(&store);
    expect(&store, 25..37, 37);
    assert_eq!(queue_files(world), ["400", "600"]);
    store.close().unwrap();
    verify_clean(world);
    *outcomes.entry(first).or_default() += 1;
}
