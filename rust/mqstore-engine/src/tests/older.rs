//! Reads that continue before the log: a random model. One store keeps its whole log. The other one gets the same
//! messages, deletes segments, and reads what is before its log from the first one. Every verb has the same answer in
//! both, whatever was deleted between two steps of a cursor, and after each failed request.

use std::cell::Cell;
use std::time::Duration;

use mqstore_base::message::MessageFilter;
use mqstore_base::options::DamagePolicy;
use mqstore_io::ManualClock;

use crate::testing::*;
use crate::{
    Boundary, FollowStep, LookupCursor, MakeSink, MergedCursor, QueueCursor, ReadBound, ScanOutput,
    ScanRequest, ScanRow, ScanSink, TopicFollower, TopicRead,
};

/// A small generator of numbers: the same for each seed.
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % end.max(1)
    }
}

/// A read of all messages of a topic.
pub(super) fn all_of<'a>(topic: &'a str, filter: Option<&'a MessageFilter>) -> TopicRead<'a> {
    TopicRead { topic, queue_id: None, start: None, end: None, filter, on_damage: DamagePolicy::Raise }
}

/// The log offsets of messages.
pub(super) type Found = Vec<u64>;

pub(super) fn offsets(records: &[StoredRecord]) -> Found {
    records.iter().map(|record| record.commit_log_offset).collect()
}

/// A read in both stores.
pub(super) enum Reading {
    Queue(Box<QueueCursor>),
    Topic(Box<MergedCursor>),
    Follow(Box<TopicFollower>),
    Lookup(Box<LookupCursor>),
}

impl Reading {
    /// Returns up to `max` messages; fewer at the end.
    pub(super) fn take(&mut self, store: &Store, max: usize) -> Result<Found, StoreError> {
        let mut found = Vec::new();
        while found.len() < max {
            let left = max - found.len();
            let (some, ended) = match self {
                Self::Queue(cursor) => cursor.next_of(left, 7).map(|batch| (batch.records, batch.ended))?,
                Self::Topic(cursor) => cursor.next_of(left, 7).map(|batch| (batch.records, batch.ended))?,
                Self::Lookup(cursor) => {
                    let some = cursor.next_batch(left)?;
                    let ended = some.is_empty();
                    (some, ended)
                }
                Self::Follow(follower) => match follower.next_of(store, left, 7)? {
                    FollowStep::Records(some) => (some, false),
                    FollowStep::Later => (Vec::new(), false),
                    FollowStep::Wait | FollowStep::End => (Vec::new(), true),
                },
            };
            found.extend(offsets(&some));
            if ended {
                break;
            }
        }
        Ok(found)
    }
}

#[derive(Default)]
struct OffsetSink(Vec<u64>);

impl ScanSink for OffsetSink {
    type Batch = Vec<u64>;

    fn has_room(&self, _row: &ScanRow<'_>) -> bool {
        self.0.len() < 4
    }

    fn add(&mut self, row: &ScanRow<'_>) {
        self.0.push(row.offset);
    }

    fn take(&mut self) -> Option<(Self::Batch, u64)> {
        (!self.0.is_empty()).then(|| (std::mem::take(&mut self.0), 0))
    }
}

/// The rows of a scan; `between` runs after its first batch.
pub(super) fn scanned(
    store: &Store,
    request: &ScanRequest,
    between: impl FnOnce(),
) -> Result<Found, StoreError> {
    let make: MakeSink<OffsetSink> = Arc::new(OffsetSink::default);
    let mut scan = store.scan(request, make)?;
    let (mut found, mut between) = (Vec::new(), Some(between));
    loop {
        match scan.next(Duration::from_secs(1))? {
            ScanOutput::Batch(batch) => found.extend(batch.rows),
            ScanOutput::Later => {}
            ScanOutput::End => return Ok(found),
        }
        between.take().into_iter().for_each(|between| between());
    }
}

/// Both stores.
struct Pair {
    whole: Store,
    short: Store,
    reads: Store,
    source: Arc<OlderRecords>,
    clocks: [Arc<ManualClock>; 2],
    numbers: Numbers,
    appended: Cell<u64>,
}

const TOPICS: [&str; 2] = ["a", "b"];
const QUEUES: i32 = 3;

impl Pair {
    fn new(seed: u64) -> Self {
        let (one, _, clock) = World::simulated();
        let (other, _, other_clock) = World::simulated();
        let whole = one.open(OpenMode::Create, &small()).unwrap();
        let options = StoreOptions { retention_bytes: Some(3 * (16 << 10)), ..small() };
        let short = other.open(OpenMode::Create, &options).unwrap();
        for store in [&whole, &short] {
            for topic in TOPICS {
                store.create_topic(topic, QUEUES as u32, &[]).unwrap();
            }
        }
        let source = OlderRecords::new(Vec::new(), 3);
        short.set_older(Some(Arc::new(source.clone())));
        let (reads, numbers) = (short.continued(), Numbers(seed));
        Self { whole, short, reads, source, clocks: [clock, other_clock], numbers, appended: Cell::new(0) }
    }

    fn append(&mut self, count: usize) {
        for _ in 0..count {
            let number = self.appended.get();
            self.appended.set(number + 1);
            let topic = TOPICS[self.numbers.below(TOPICS.len())];
            let queue_id = self.numbers.below(QUEUES as usize) as i32;
            let body = vec![b'x'; 100 + self.numbers.below(900)];
            let key = format!("k{}", number % 5);
            let tag = ["T", "U"][self.numbers.below(2)];
            let properties = encode_properties([key.as_str()], Some(tag), None, [("n", "1")]).unwrap();
            for store in [&self.whole, &self.short] {
                store.append(&message(topic, Some(queue_id), &body, &properties)).unwrap();
            }
            self.clocks.iter().for_each(|clock| clock.advance(Duration::from_millis(number % 3)));
        }
        self.source.set(self.whole.log().scan(None).unwrap().next_batch(usize::MAX).unwrap());
    }

    fn expire(&self) {
        self.short.expire(false, &mut || Ok(())).unwrap();
        // A deletion takes time.
        let [whole, short] = &self.clocks;
        whole.advance(Duration::from_millis((short.now_ms() - whole.now_ms()) as u64));
    }

    /// Opens a random read in both stores.
    fn opened(&mut self) -> [Reading; 2] {
        let topic = TOPICS[self.numbers.below(TOPICS.len())];
        let queue_id = self.numbers.below(QUEUES as usize) as i32;
        let filter = (self.numbers.below(3) == 0).then(|| MessageFilter::tags("T").unwrap().unwrap());
        let (kind, start) = (self.numbers.below(8), self.numbers.below(40) as i64);
        let time_ms = 1_700_000_000_000 + self.numbers.below(600) as i64;
        let (_, max) = self.whole.bounds(topic, queue_id).unwrap();
        [&self.whole, &self.reads].map(|store| {
            let all = all_of(topic, filter.as_ref());
            let timed = TopicRead { start: Some(ReadBound::TimeMs(time_ms)), ..all };
            match kind {
                0 => Reading::Queue(Box::new(
                    store.read(topic, queue_id, None, None, filter.as_ref()).unwrap(),
                )),
                1 => {
                    let range = (Some(start.min(max)), Some(start + 30));
                    Reading::Queue(Box::new(
                        store.read(topic, queue_id, range.0, range.1, filter.as_ref()).unwrap(),
                    ))
                }
                2 => Reading::Topic(Box::new(store.read_topic(&all).unwrap())),
                3 => Reading::Topic(Box::new(store.read_topic(&timed).unwrap())),
                4 => Reading::Follow(Box::new(TopicFollower::new(store, &all).unwrap())),
                5 => Reading::Follow(Box::new(TopicFollower::new(store, &timed).unwrap())),
                6 => Reading::Lookup(Box::new(store.lookup(topic, "k1", None, None, None).unwrap())),
                _ => {
                    let found = store.lookup(topic, "k2", Some(time_ms), None, Some(40)).unwrap();
                    Reading::Lookup(Box::new(found.newest_first()))
                }
            }
        })
    }

    /// Compares the answers of the verbs that return no cursor.
    fn compare(&mut self) {
        let topic = TOPICS[self.numbers.below(TOPICS.len())];
        let queue_id = self.numbers.below(QUEUES as usize) as i32;
        let time_ms = 1_700_000_000_000 + self.numbers.below(900) as i64 - 100;
        let (_, max) = self.whole.bounds(topic, queue_id).unwrap();
        let (offset, most) = (self.numbers.below(max as usize + 2) as i64, self.numbers.below(200));
        let wanted = self.whole.log().scan(None).unwrap().next_batch(usize::MAX).unwrap();
        let one = wanted.get(self.numbers.below(wanted.len())).map_or(7, |record| record.commit_log_offset);
        let filter = (self.numbers.below(2) == 0).then(|| MessageFilter::tags("U").unwrap().unwrap());
        let [whole, short] = [&self.whole, &self.reads].map(|store| {
            let read = all_of(topic, filter.as_ref());
            let at = |found: Result<StoredRecord, StoreError>| found.map(|one| one.commit_log_offset).ok();
            let message = store.message_at(topic, queue_id, offset);
            (
                [Boundary::Lower, Boundary::Upper]
                    .map(|boundary| store.offset_for_time(topic, queue_id, time_ms, boundary).unwrap()),
                message.map(|found| found.map(|one| one.commit_log_offset)).map_err(drop),
                at(store.log().get_at(one)),
                store.count(topic, &mut || Ok(())).unwrap(),
                offsets(&store.tail(&read, most, &mut || Ok(())).unwrap()),
            )
        });
        assert_eq!(short, whole, "{topic}/{queue_id} {offset} {time_ms} {most}");
    }
}

/// Runs the verbs of a seed. Returns the log offset at which the log of the shorter store begins then.
fn model(seed: u64) -> u64 {
    let mut pair = Pair::new(seed);
    let mut readings: Vec<[Reading; 2]> = Vec::new();
    pair.append(20);
    for _ in 0..80 {
        match pair.numbers.below(9) {
            0 | 1 => {
                let count = pair.numbers.below(60);
                pair.append(count);
            }
            2 => pair.expire(),
            3 => {
                let opened = pair.opened();
                readings.push(opened);
            }
            4..=6 if !readings.is_empty() => {
                let number = pair.numbers.below(readings.len());
                let max = 1 + pair.numbers.below(50);
                let [whole, short] = &mut readings[number];
                let wanted = whole.take(&pair.whole, max).unwrap();
                assert_eq!(short.take(&pair.reads, max).unwrap(), wanted, "seed {seed}, read {number}");
            }
            7 => pair.compare(),
            _ => {
                let request = ScanRequest {
                    topics: (pair.numbers.below(2) == 0).then(|| vec!["a".to_owned()]),
                    filter: (pair.numbers.below(2) == 0).then(|| MessageFilter::tags("T").unwrap().unwrap()),
                    with_older: true,
                    ..ScanRequest::default()
                };
                let wanted = scanned(&pair.whole, &request, || ()).unwrap();
                assert_eq!(scanned(&pair.reads, &request, || pair.expire()).unwrap(), wanted, "seed {seed}");
            }
        }
    }
    for [whole, short] in &mut readings {
        assert_eq!(
            short.take(&pair.reads, 9999).unwrap(),
            whole.take(&pair.whole, 9999).unwrap(),
            "seed {seed}"
        );
    }
    pair.short.stats().unwrap().log_min_offset
}

#[test]
fn reads_that_continue_before_the_log_agree_with_a_store_that_keeps_its_log() {
    let starts: Vec<u64> = (0..60).map(model).collect();
    assert!(starts.iter().filter(|start| **start > 0).count() > 40, "{starts:?}");
}

/// All messages of both topics, by several verbs.
fn everything(store: &Store) -> Vec<(u64, Found, Found, Found)> {
    let one = |topic: &str| {
        let whole =
            Reading::Topic(Box::new(store.read_topic(&all_of(topic, None)).unwrap())).take(store, 9999);
        let topics = Some(vec![topic.to_owned()]);
        let request = ScanRequest { topics, with_older: true, ..ScanRequest::default() };
        let mut rows = scanned(store, &request, || ()).unwrap();
        rows.sort_unstable();
        let found = store.lookup(topic, "k1", None, None, None).unwrap();
        let keyed = Reading::Lookup(Box::new(found)).take(store, 9999).unwrap();
        (store.count(topic, &mut || Ok(())).unwrap(), whole.unwrap(), rows, keyed)
    };
    TOPICS.map(one).to_vec()
}

/// While a segment is removed, the queues begin after it before the list of segments says so.
#[test]
fn reads_during_a_removal_continue_before_the_log() {
    for seed in 0..20 {
        let mut pair = Pair::new(seed);
        pair.append(150);
        if seed % 2 == 0 {
            pair.expire();
        }
        let wanted = everything(&pair.whole);
        let mut begun: Vec<_> = (0..8).map(|_| pair.opened()).collect();
        for [whole, short] in &mut begun {
            assert_eq!(short.take(&pair.reads, 5).unwrap(), whole.take(&pair.whole, 5).unwrap());
        }
        let writer = pair.short.writer("test").unwrap();
        let segment = Arc::clone(&writer.engine.log.list().segments()[0]);
        writer.cleaner.end_reads_of(&segment).unwrap();
        assert_eq!(everything(&pair.reads), wanted, "seed {seed}");
        for [whole, short] in &mut begun {
            let wanted = whole.take(&pair.whole, 9999).unwrap();
            assert_eq!(short.take(&pair.reads, 9999).unwrap(), wanted, "seed {seed}");
        }
    }
}

#[test]
fn after_a_failed_request_a_cursor_repeats_from_the_same_place() {
    for fails_after in 1..40 {
        let mut pair = Pair::new(7);
        pair.append(300);
        let begun = [&pair.whole, &pair.reads].map(|store| {
            let read = all_of("a", None);
            [
                Reading::Queue(Box::new(store.read("a", 1, None, None, None).unwrap())),
                Reading::Topic(Box::new(store.read_topic(&read).unwrap())),
                Reading::Lookup(Box::new(store.lookup("a", "k1", None, None, None).unwrap())),
            ]
        });
        let [whole, short] = begun;
        pair.expire();
        for (mut whole, mut short) in whole.into_iter().zip(short) {
            pair.source.fail_after(fails_after);
            let wanted = whole.take(&pair.whole, 9999).unwrap();
            let mut found = Vec::new();
            let mut failures = 0;
            loop {
                match short.take(&pair.reads, 1) {
                    Ok(some) if some.is_empty() => break,
                    Ok(some) => found.extend(some),
                    Err(_) => failures += 1,
                }
            }
            assert_eq!(found, wanted, "the request {fails_after} fails");
            assert!(failures <= 1);
            pair.source.fail_after(0);
        }
    }
}

#[test]
fn a_message_that_neither_the_log_nor_the_archive_has_is_an_error() {
    let mut pair = Pair::new(3);
    pair.append(300);
    pair.expire();
    let log_only = pair.short.read("a", 1, Some(0), None, None).err();
    let Some(StoreError::OffsetOutOfRange { min_offset, .. }) = log_only else { panic!("{log_only:?}") };
    assert!(min_offset > 0);
    let Some(StoreError::OffsetOutOfRange { min_offset, .. }) =
        pair.reads.read("a", 1, Some(-1), None, None).err()
    else {
        panic!("the read begins before the oldest message")
    };
    assert_eq!(min_offset, 0);
    pair.short.set_older(None);
    assert!(pair.reads.read("a", 1, Some(0), None, None).is_err());
}
