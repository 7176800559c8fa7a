//! Scans: plans, order, threads, damage, and continuation.

use std::sync::Arc;
use std::time::Duration;

use crate::testing::{World, message, put, small};
use crate::{
    AppendMarks, MakeSink, Scan, ScanOutput, ScanPlan, ScanRange, ScanRequest, ScanRow, ScanSink, Store,
};
use mqstore_base::error::StoreError;
use mqstore_base::message::{MessageFilter, encode_properties};
use mqstore_base::options::OpenMode;

/// Collects log offset and body of each row, a few rows at a time.
#[derive(Default)]
struct Few(Vec<(u64, Vec<u8>)>);

const FEW: usize = 3;

impl ScanSink for Few {
    type Batch = Vec<(u64, Vec<u8>)>;

    fn has_room(&self, _row: &ScanRow<'_>) -> bool {
        self.0.len() < FEW
    }

    fn add(&mut self, row: &ScanRow<'_>) {
        assert!(self.0.len() < FEW);
        self.0.push((row.offset, row.body().unwrap_or_default().to_vec()));
    }

    fn take(&mut self) -> Option<(Self::Batch, u64)> {
        let rows = std::mem::take(&mut self.0);
        (!rows.is_empty()).then_some((rows, 1 << 20))
    }
}

fn begin(store: &Store, request: &ScanRequest) -> Result<Scan<Few>, StoreError> {
    let make: MakeSink<Few> = Arc::new(Few::default);
    store.scan(request, make)
}

fn rest(scan: &mut Scan<Few>) -> Vec<(u64, Vec<u8>)> {
    let mut found = Vec::new();
    loop {
        match scan.next(Duration::from_secs(5)).unwrap() {
            ScanOutput::Batch(batch) => {
                assert_eq!(scan.position(), batch.end);
                assert!(batch.rows.iter().all(|(offset, _)| *offset < batch.end));
                found.extend(batch.rows);
            }
            ScanOutput::Later => {}
            ScanOutput::End => return found,
        }
    }
}

fn all(store: &Store, request: &ScanRequest) -> Vec<(u64, Vec<u8>)> {
    rest(&mut begin(store, request).unwrap())
}

fn filled(world: &World) -> Store {
    let store = world.open(OpenMode::Create, &small()).unwrap();
    store.create_topic("a", 3, &[]).unwrap();
    for number in 0..600_u32 {
        let topic = if number % 5 == 0 { "b" } else { "a" };
        let queue_id = if topic == "a" { (number % 3) as i32 } else { 0 };
        put(&store, topic, queue_id, &vec![number as u8; number as usize % 90], &format!("k{}", number % 7));
    }
    store
}

fn plans(request: &ScanRequest) -> impl Iterator<Item = ScanRequest> {
    let plans = [ScanPlan::Log, ScanPlan::Queues, ScanPlan::Cheapest];
    plans
        .into_iter()
        .flat_map(|plan| [1, 2, 5].map(|threads| ScanRequest { threads, plan, ..request.clone() }))
}

#[test]
fn every_plan_and_any_number_of_threads_give_the_rows_in_the_order_of_the_log() {
    let world = World::real();
    let store = filled(&world);
    let everything = all(&store, &ScanRequest::default());
    assert_eq!(everything.len(), 600);
    assert!(everything.is_sorted());
    for threads in [2, 8] {
        assert_eq!(all(&store, &ScanRequest { threads, ..ScanRequest::default() }), everything);
    }
    let only = |topic: &str| ScanRequest { topics: Some(vec![topic.to_owned()]), ..ScanRequest::default() };
    let wanted: Vec<_> = everything.iter().enumerate().filter(|(at, _)| at % 5 != 0).collect();
    let wanted: Vec<_> = wanted.into_iter().map(|(_, row)| row.clone()).collect();
    for request in plans(&only("a")) {
        assert_eq!(all(&store, &request), wanted, "{request:?}");
    }
    let both =
        ScanRequest { topics: Some(vec!["b".into(), "a".into(), "b".into()]), ..ScanRequest::default() };
    for request in plans(&both) {
        assert_eq!(all(&store, &request), everything, "{request:?}");
    }
    let narrow = ScanRequest {
        queue_id: Some(1),
        start_offset: Some(10),
        end_offset: Some(40),
        keys: vec!["k3".into(), "k5".into()],
        filter: MessageFilter::tags("T || U").unwrap(),
        ..only("a")
    };
    let found = all(&store, &ScanRequest { plan: ScanPlan::Log, ..narrow.clone() });
    assert!(!found.is_empty() && found.len() < 30);
    for request in plans(&narrow) {
        assert_eq!(all(&store, &request), found, "{request:?}");
    }
    let filter = Some(MessageFilter::sql("TAGS IN ('T', 'U') AND NOT (KEYS = 'k4')").unwrap());
    for request in plans(&ScanRequest { filter, ..narrow }) {
        assert_eq!(all(&store, &request), found, "{request:?}");
    }
}

#[test]
fn a_scan_goes_on_where_another_one_stood() {
    let world = World::real();
    let store = filled(&world);
    let request = ScanRequest { topics: Some(vec!["a".into()]), ..ScanRequest::default() };
    for request in plans(&request) {
        let everything = all(&store, &request);
        let mut found = Vec::new();
        let mut from = None;
        'passes: loop {
            let mut scan = begin(&store, &ScanRequest { from, ..request.clone() }).unwrap();
            loop {
                match scan.next(Duration::from_secs(5)).unwrap() {
                    ScanOutput::Batch(batch) => {
                        found.extend(batch.rows);
                        from = Some(batch.end);
                        break;
                    }
                    ScanOutput::Later => {}
                    ScanOutput::End => break 'passes,
                }
            }
        }
        assert_eq!(found, everything, "{request:?}");
    }
}

#[test]
fn few_entries_are_followed_and_many_are_walked() {
    let world = World::real();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    for number in 0..400 {
        put(&store, "many", 0, &[7; 500], "k");
        if number % 100 == 0 {
            put(&store, "few", 0, b"x", "k");
        }
    }
    let request =
        |topic: &str| ScanRequest { topics: Some(vec![topic.to_owned()]), ..ScanRequest::default() };
    let mut few = begin(&store, &request("few")).unwrap();
    assert!(few.follows_entries());
    assert_eq!(rest(&mut few).len(), 4);
    assert!(!begin(&store, &request("many")).unwrap().follows_entries());
    assert!(!begin(&store, &ScanRequest::default()).unwrap().follows_entries());
    assert!(matches!(begin(&store, &request("none")), Err(StoreError::TopicNotFound { .. })));
}

#[test]
fn who_drops_a_scan_waits_for_nobody() {
    let world = World::real();
    let store = filled(&world);
    for threads in [1, 4] {
        for taken in 0..4 {
            let mut scan = begin(&store, &ScanRequest { threads, ..ScanRequest::default() }).unwrap();
            for _ in 0..taken {
                scan.next(Duration::from_secs(5)).unwrap();
            }
        }
    }
    let mut scan = begin(&store, &ScanRequest { threads: 3, ..ScanRequest::default() }).unwrap();
    store.close().unwrap();
    let closed = loop {
        match scan.next(Duration::from_secs(5)) {
            Ok(ScanOutput::End) => break false,
            Ok(_) => {}
            Err(error) => break matches!(error, StoreError::Closed { .. }),
        }
    };
    assert!(closed || scan.position() == scan.limit());
}

/// A worker that panics ends the scan with an error.
#[test]
fn a_panic_of_a_worker_arrives() {
    struct Bad;
    impl ScanSink for Bad {
        type Batch = ();
        fn has_room(&self, _row: &ScanRow<'_>) -> bool {
            true
        }
        fn add(&mut self, _row: &ScanRow<'_>) {
            panic!("on purpose");
        }
        fn take(&mut self) -> Option<((), u64)> {
            None
        }
    }
    let world = World::real();
    let store = filled(&world);
    let make: MakeSink<Bad> = Arc::new(|| Bad);
    let mut scan = store.scan(&ScanRequest { threads: 2, ..ScanRequest::default() }, make).unwrap();
    let error = loop {
        match scan.next(Duration::from_secs(5)) {
            Ok(ScanOutput::End) => panic!("the scan ended well"),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::Poisoned { .. }), "{error}");
}

#[test]
fn copies_keep_what_an_application_cannot_set() {
    use crate::MessageOrigin;
    use mqstore_format::{Host, SysFlag};

    let (world, ..) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    let properties = encode_properties(["k"], Some("T"), None, []).unwrap();
    let mut copy = message("t", Some(0), b"body", &properties);
    (copy.unique_key, copy.born_timestamp_ms, copy.flag) = (Some(""), Some(-5), 9);
    let origin = MessageOrigin {
        sys_flag: SysFlag(0x701 | 0xc | 0x80),
        born_host: Host::new([1, 2, 3, 4], 5),
        reconsume_times: 6,
    };
    let appended = store.system_appends().append_marked(&[copy], AppendMarks::Origins(&[origin])).unwrap();
    let stored = store.log().get_at(appended[0].commit_log_offset).unwrap();
    let view = stored.view().unwrap();
    assert_eq!((view.born_host, view.reconsume_times, view.born_timestamp), (origin.born_host, 6, -5));
    assert_eq!((view.sys_flag, view.flag, view.unique_key()), (SysFlag(0x701), 9, None));
    store.create_topic("batches", 1, &[("queue.type".to_owned(), "BatchCQ".to_owned())]).unwrap();
    let refused = store
        .system_appends()
        .append_marked(&[message("batches", Some(0), b"x", &[])], AppendMarks::Origins(&[origin]));
    assert!(matches!(refused, Err(StoreError::InvalidMessage { .. })));
}

#[test]
fn parts_of_queues_and_of_the_log_make_up_the_whole() {
    let world = World::real();
    let store = filled(&world);
    let range = |topic: &str, queue_id, start, end| ScanRange { topic: topic.into(), queue_id, start, end };
    let ranges = vec![range("b", 0, 10, 50), range("a", 2, 0, 1000), range("a", 0, 7, 8)];
    let found = all(&store, &ScanRequest { ranges: Some(ranges.clone()), ..ScanRequest::default() });
    assert_eq!(found.len(), 40 + 160 + 1);
    for request in plans(&ScanRequest { ranges: Some(ranges), ..ScanRequest::default() }) {
        assert_eq!(all(&store, &request), found, "{request:?}");
        let cuts: Vec<u64> = found.iter().step_by(29).map(|row| row.0).collect();
        let ends = cuts.iter().skip(1).copied().map(Some).chain([None]);
        let parts = cuts.iter().zip(ends).flat_map(|(from, to)| {
            let scan = begin(&store, &ScanRequest { from: Some(*from), to, ..request.clone() });
            let mut scan = scan.unwrap();
            assert!(to.is_none_or(|to| scan.limit() == to));
            let rows = rest(&mut scan);
            assert_eq!(scan.passed(), []);
            rows
        });
        assert_eq!(parts.collect::<Vec<_>>(), found, "{request:?}");
    }
    let nothing = ScanRequest { ranges: Some(vec![range("nobody", 0, 0, 9)]), ..ScanRequest::default() };
    assert!(plans(&nothing).all(|request| all(&store, &request).is_empty()));
}

#[test]
fn cuts_are_the_first_messages_behind_places_of_the_log() {
    let world = World::real();
    let store = filled(&world);
    let range = ScanRange { topic: "a".into(), queue_id: 1, start: 20, end: 130 };
    let request = ScanRequest { ranges: Some(vec![range]), ..ScanRequest::default() };
    let places: Vec<u64> = all(&store, &request).into_iter().map(|row| row.0).collect();
    let end = store.stats().unwrap().log_max_offset;
    let positions: Vec<u64> = (0..=end).step_by(701).collect();
    let behind = |position: &u64| places.iter().find(|place| *place >= position).copied();
    let wanted: Vec<u64> = positions.iter().filter_map(behind).collect();
    assert_eq!(store.log().scan_cuts("a", 1, (20, 130), &positions).unwrap(), wanted);
    assert!(wanted.len() > 50);
    for nothing in [(500, 900), (30, 30)] {
        assert!(store.log().scan_cuts("a", 1, nothing, &positions).unwrap().is_empty());
    }
    assert!(matches!(store.log().scan_cuts("a", 9, (0, 1), &[0]), Err(StoreError::TopicNotFound { .. })));
}

/// Parts of queues are returned as reads return them: the compacted messages, then the later ones.
#[test]
fn messages_are_those_of_reads() {
    let (world, _, _) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    store.create_topic("table", 2, &[("cleanup.policy".to_owned(), "COMPACTION".to_owned())]).unwrap();
    for number in 0..400_u32 {
        let body = format!("value {number}");
        put(&store, "table", (number % 2) as i32, body.as_bytes(), &format!("k{}", number % 70));
        put(&store, "other", 0, b"x", "k");
        if number == 300 {
            let control = Arc::new(mqstore_compaction::JobControl::default());
            store.compact(None, &mqstore_compaction::CompactionOptions::default(), 1, &control).unwrap();
        }
    }
    for (start, end) in [(0, 200), (0, 120), (100, 101), (120, 200), (151, 170), (200, 200)] {
        let mut wanted = Vec::new();
        for queue_id in 0..2 {
            let mut cursor = store.read("table", queue_id, Some(start), Some(end), None).unwrap();
            for record in cursor.next_batch(1000).unwrap() {
                wanted.push((record.commit_log_offset, record.view().unwrap().body.to_vec()));
            }
        }
        for threads in [1, 3] {
            let range = |queue_id| ScanRange { topic: "table".to_owned(), queue_id, start, end };
            let request = ScanRequest {
                ranges: Some(vec![range(0), range(1)]),
                plan: ScanPlan::Messages,
                threads,
                ..ScanRequest::default()
            };
            let mut scan = begin(&store, &request).unwrap();
            let mut found = Vec::new();
            loop {
                match scan.next(Duration::from_secs(5)).unwrap() {
                    ScanOutput::Batch(batch) => found.extend(batch.rows),
                    ScanOutput::Later => {}
                    ScanOutput::End => break,
                }
            }
            assert_eq!(found, wanted, "{start}..{end}");
            assert_eq!(scan.passed(), []);
        }
    }
    let bodies =
        all(&store, &ScanRequest { topics: Some(vec!["table".to_owned()]), ..ScanRequest::default() });
    assert_eq!(bodies.len(), 400, "the log has all of them");
}
