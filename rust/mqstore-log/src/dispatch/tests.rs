//! Tests that any order of work on the runs commits the state that the order of the log gives.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Barrier;

use mqstore_format::{Host, IndexGeometry, RecordSpec, offset_file_name};
use mqstore_io::{Access, FileKind, ManualClock, SimVfs, Vfs};
use proptest::prelude::*;

use super::*;
use mqstore_base::topic_floors::TopicFloors;

const SEGMENT: u64 = 4096;

/// A record of the log: its queue, and its offset in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Message {
    queue_id: i32,
    queue_offset: i64,
}

fn messages(places: &[(i32, i64)]) -> Vec<Message> {
    places.iter().map(|&(queue_id, queue_offset)| Message { queue_id, queue_offset }).collect()
}

/// A store whose log holds messages, without derived files.
struct World {
    sim: SimVfs,
    files: StoreFiles,
    list: Arc<SegmentList>,
    messages: Vec<Message>,
    /// Start and end of each record.
    places: Vec<(u64, u64)>,
    end: u64,
}

impl World {
    fn new(messages: &[Message]) -> Self {
        let sim = SimVfs::default();
        let (mut bytes, mut places) = (Vec::new(), Vec::new());
        let host = Host::new([127, 0, 0, 1], 10_911);
        for (number, message) in messages.iter().enumerate() {
            let properties = format!("UNIQ_KEY\x01id-{number}\x02KEYS\x01k{}\x02", number % 3);
            let mut spec = RecordSpec {
                queue_id: message.queue_id,
                queue_offset: message.queue_offset,
                properties: properties.as_bytes(),
                ..RecordSpec::new("orders", b"body", host, host)
            };
            let rest = SEGMENT - bytes.len() as u64 % SEGMENT;
            if spec.encoded_len().unwrap() as u64 + 8 > rest {
                bytes.extend_from_slice(&mqstore_format::encode_blank(rest as u32));
                bytes.resize(bytes.len().next_multiple_of(SEGMENT as usize), 0);
            }
            spec.physical_offset = bytes.len() as i64;
            spec.encode_into(&mut bytes).unwrap();
            places.push((spec.physical_offset as u64, bytes.len() as u64));
        }
        let end = bytes.len() as u64;
        bytes.resize(bytes.len().next_multiple_of(SEGMENT as usize), 0);
        let files = files(&sim);
        sim.create_dir_all(&files.commit_log()).unwrap();
        for (base, segment) in (0..).step_by(SEGMENT as usize).zip(bytes.chunks(SEGMENT as usize)) {
            let path = files.commit_log().join(offset_file_name(base));
            let file = sim.create_new(&path).unwrap();
            file.write_all_at(segment, 0).and_then(|()| file.sync_all()).unwrap();
        }
        for folder in files.commit_log().ancestors() {
            sim.sync_dir(folder).unwrap();
        }
        let list = Arc::new(SegmentList::load(&files).unwrap());
        Self { sim, files, list, messages: messages.to_vec(), places, end }
    }

    /// Creates a dispatcher with one run for each message.
    fn dispatcher(&self) -> Dispatcher {
        let dispatcher = dispatcher(&self.files, &self.list, 0);
        dispatcher.cutter.lock().run_bytes = 1;
        dispatcher
    }

    /// Returns the log offset after the first `count` messages, and the units of each queue at that point: one unit for
    /// each slot; the first record in the log wins.
    fn expected(&self, position: u64) -> BTreeMap<i32, (i64, BTreeMap<i64, u64>)> {
        let mut queues = BTreeMap::<i32, (i64, BTreeMap<i64, u64>)>::new();
        let before = self.places.iter().take_while(|(start, _)| *start < position);
        for (message, (start, _)) in self.messages.iter().zip(before) {
            let (max, places) = queues.entry(message.queue_id).or_default();
            *max = (*max).max(message.queue_offset + 1);
            places.entry(message.queue_offset).or_insert(*start);
        }
        queues
    }

    /// Checks that readers see in every queue exactly the log up to the commit position.
    fn check(&self, dispatcher: &Dispatcher) {
        let expected = self.expected(dispatcher.position());
        for queue in dispatcher.queues.all() {
            let Some((max, places)) = expected.get(&queue.queue_id()) else {
                assert_eq!(queue.max_offset(), 0);
                continue;
            };
            assert_eq!(queue.max_offset(), *max, "queue {}", queue.queue_id());
            let mut units = Vec::new();
            queue.read(queue.min_offset(), 1000, &mut units).unwrap();
            let offsets = queue.min_offset()..;
            for (offset, unit) in offsets.zip(&units) {
                let seen = (!unit.is_blank()).then_some(unit.physical_offset as u64);
                assert_eq!(seen, places.get(&offset).copied(), "offset {offset}");
            }
        }
        let indexed = dispatcher.index_entries();
        let records = self.places.iter().take_while(|(start, _)| *start < dispatcher.position()).count();
        assert_eq!((dispatcher.records(), indexed), (records as u64, 2 * records as u64));
    }
}

fn files(sim: &SimVfs) -> StoreFiles {
    StoreFiles::new(Arc::new(sim.clone()), Arc::new(ManualClock::new(1_700_000_000_000)), Path::new("/store"))
}

/// Creates a dispatcher that continues at `start`; as in recovery, damaged queues are rebuilt.
fn dispatcher(files: &StoreFiles, list: &Arc<SegmentList>, start: u64) -> Dispatcher {
    let queues = QueueSet::load(files, 8 * 20, Access::ReadWrite, &TopicFloors::default()).unwrap();
    let mut start = start;
    for queue in queues.all() {
        queue.recover_bounds().unwrap();
        queue.truncate(start).unwrap();
        queue.recover_bounds().unwrap();
        if queue.damaged().is_some() {
            queues.set_aside(queue.topic(), queue.queue_id()).unwrap();
            start = 0;
        }
    }
    let geometry = IndexGeometry { slots: 4, entries: 10 };
    let index = IndexSet::load(files, None, geometry, Access::ReadWrite).unwrap();
    let list = Arc::clone(list);
    let rules = DispatchRules::default();
    Dispatcher::new(files, list, Arc::new(queues), Arc::new(index), rules, start, start)
}

/// Returns every file under `folder` that has bytes.
fn tree(vfs: &dyn Vfs, folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in vfs.list(folder).unwrap_or_default() {
        let path = folder.join(&entry.name);
        match entry.stat.kind {
            FileKind::Directory => found.extend(tree(vfs, &path)),
            _ => drop(found.insert(path.display().to_string(), vfs.read_file(&path, 1 << 20).unwrap())),
        }
    }
    found
}

/// Returns the queue files and the index files.
fn derived(files: &StoreFiles) -> (BTreeMap<String, Vec<u8>>, Vec<Vec<u8>>) {
    // The names of index files contain the time, so only their contents are compared.
    let index = tree(&*files.vfs, &files.index()).into_values().collect();
    (tree(&*files.vfs, &files.consume_queue()), index)
}

/// Returns the derived files after one thread dispatched the log in order.
fn in_log_order(messages: &[Message]) -> (BTreeMap<String, Vec<u8>>, Vec<Vec<u8>>) {
    let world = World::new(messages);
    let dispatcher = world.dispatcher();
    assert_eq!(dispatcher.run_to(&world.list, world.end).unwrap(), world.end);
    world.check(&dispatcher);
    derived(&world.files)
}

/// Takes every run and works on the messages that `order` names, counted from 1. Returns, after each number of messages
/// in `stops`, how many messages are committed.
fn committed(places: &[(i32, i64)], order: &[u64], stops: &[usize]) -> Vec<usize> {
    let world = World::new(&messages(places));
    let dispatcher = world.dispatcher();
    let mut runs = BTreeMap::new();
    while let Some(run) = dispatcher.take(&world.list, world.end).unwrap() {
        runs.insert(run.number + 1, run);
    }
    assert_eq!(runs.len(), places.len(), "one message a run");
    let mut seen = Vec::new();
    for (done, message) in (1..).zip(order) {
        let mut run = runs.remove(message).unwrap();
        dispatcher.write_run(&mut run).unwrap();
        dispatcher.window.complete(run.number, run);
        dispatcher.commit().unwrap();
        world.check(&dispatcher);
        if stops.contains(&done) {
            let behind = world.places.iter().filter(|(_, end)| *end <= dispatcher.position());
            seen.push(behind.count());
        }
    }
    if runs.is_empty() {
        assert_eq!(derived(&world.files), in_log_order(&world.messages));
    }
    seen
}

const IN_ONE_QUEUE: [(i32, i64); 5] = [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)];

#[test]
fn what_is_missing_holds_back_what_comes_later() {
    // m1, m2 and m5 are written, so m1 and m2 are committed. Then m3 and m4 follow, so m5 is committed too.
    assert_eq!(committed(&IN_ONE_QUEUE, &[1, 2, 5, 3, 4], &[3, 5]), [2, 5]);
    assert_eq!(committed(&IN_ONE_QUEUE, &[5, 1, 2, 4, 3], &[3, 4, 5]), [2, 2, 5]);
}

#[test]
fn gaps_in_the_offsets_of_a_queue_hold_back_nothing() {
    let places = [(0, 0), (0, 3), (0, 7), (0, 11), (0, 30)];
    assert_eq!(committed(&places, &[1, 2, 5, 3, 4], &[3, 5]), [2, 5]);
    assert_eq!(committed(&places, &[5, 4, 3, 2, 1], &[4, 5]), [0, 5]);
}

#[test]
fn two_queues_wait_for_each_other() {
    let places = [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)];
    assert_eq!(committed(&places, &[1, 2, 5, 3, 4], &[3, 5]), [2, 5]);
    assert_eq!(committed(&places, &[2, 4, 1, 3, 5], &[2, 3, 4, 5]), [0, 2, 4, 5]);
}

#[test]
fn the_first_of_two_records_for_one_place_wins_in_any_order() {
    let places = [(0, 0), (0, 1), (0, 1), (0, 2), (0, 0)];
    assert_eq!(committed(&places, &[1, 5, 3, 2, 4], &[5]), [5]);
    assert_eq!(committed(&places, &[5, 4, 3, 2, 1], &[5]), [5]);
}

#[test]
fn a_worker_that_dies_stops_the_dispatcher_before_its_run() {
    let world = World::new(&messages(&IN_ONE_QUEUE));
    let dispatcher = world.dispatcher();
    for _ in 0..2 {
        assert_eq!(dispatcher.work(&world.list, world.end).unwrap(), WorkOutcome::Done);
    }
    let third = dispatcher.take(&world.list, world.end).unwrap();
    let lost = std::thread::scope(|scope| {
        let died = scope.spawn(|| {
            let _held = RunGuard { dispatcher: &dispatcher, run: third };
            panic!("a worker dies, as this test wants it to");
        });
        died.join().is_err()
    });
    assert!(lost);
    let error = dispatcher.run_to(&world.list, world.end).unwrap_err();
    assert!(matches!(error, StoreError::Poisoned { stage: "dispatching", .. }), "{error}");
    assert_eq!(dispatcher.position(), world.places[1].1);
    world.check(&dispatcher);
    // The log is complete: the next dispatcher continues where this one stopped.
    let next = self::dispatcher(&world.files, &world.list, dispatcher.position());
    next.run_to(&world.list, world.end).unwrap();
    assert_eq!(derived(&world.files).0, in_log_order(&world.messages).0);
}

#[test]
fn a_run_that_failed_is_taken_up_again() {
    let world = World::new(&messages(&IN_ONE_QUEUE));
    let dispatcher = world.dispatcher();
    dispatcher.work(&world.list, world.end).unwrap();
    let run = dispatcher.take(&world.list, world.end).unwrap().unwrap();
    dispatcher.again.lock().push(run);
    assert_eq!(dispatcher.run_to(&world.list, world.end).unwrap(), world.end);
    assert_eq!(derived(&world.files), in_log_order(&world.messages));
}

#[test]
fn eight_workers_write_entries_of_one_queue() {
    let places: Vec<(i32, i64)> = (0..400).map(|offset| (0, offset)).collect();
    let world = World::new(&messages(&places));
    let dispatcher = world.dispatcher();
    // The ordered step creates the first file of the queue.
    dispatcher.work(&world.list, world.end).unwrap();
    let all_have_a_run = Barrier::new(8);
    let wrote = std::thread::scope(|scope| {
        let worker = || {
            let mut run = dispatcher.take(&world.list, world.end).unwrap().unwrap();
            all_have_a_run.wait();
            dispatcher.write_run(&mut run).unwrap();
            let wrote = run.queues.iter().all(|work| work.late.is_empty());
            dispatcher.window.complete(run.number, run);
            dispatcher.commit().unwrap();
            dispatcher.run_to(&world.list, world.end).unwrap();
            wrote
        };
        let workers: Vec<_> = (0..8).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).filter(|wrote| *wrote).count()
    });
    // Seven more units fit into the existing file.
    assert_eq!(wrote, 7);
    assert_eq!(dispatcher.position(), world.end);
    world.check(&dispatcher);
    assert_eq!(derived(&world.files), in_log_order(&world.messages));
}

#[test]
fn helpers_end_with_the_call() {
    let places: Vec<(i32, i64)> = (0..300).map(|n| (n % 3, i64::from(n / 3))).collect();
    let world = World::new(&messages(&places));
    let dispatcher = world.dispatcher();
    let mut last = 0;
    let reached = dispatcher.run_with_helpers(7, &world.list, world.end, &mut |position| {
        assert!(position >= last);
        last = position;
        Ok(())
    });
    assert_eq!((reached.unwrap(), last), (world.end, world.end));
    assert_eq!(derived(&world.files), in_log_order(&world.messages));
    let stop = |_| Err(StoreError::Busy { reason: "enough".into() });
    let other = World::new(&messages(&places));
    let dispatcher = other.dispatcher();
    // The caller's error counts even if the helpers finish before the caller's first run.
    let stopped = dispatcher.run_with_helpers(3, &other.list, other.end, &mut { stop });
    assert!(stopped.is_err());
    assert_eq!(dispatcher.run_to(&other.list, other.end).unwrap(), other.end);
    assert_eq!(derived(&other.files), in_log_order(&other.messages));
}

/// Generates realistic logs: offsets ascend in each queue, sometimes with a gap, sometimes with a slot claimed twice.
fn logs() -> impl Strategy<Value = Vec<Message>> {
    let step = (0..3_i32, prop_oneof![10 => Just(1_i64), 1 => Just(0_i64), 1 => 2..20_i64]);
    proptest::collection::vec(step, 1..60).prop_map(|steps| {
        let mut next = [0_i64; 3];
        let place = |(queue_id, step): (i32, i64)| {
            let next = &mut next[queue_id as usize];
            let queue_offset = (*next + step - 1).max(0);
            *next = queue_offset + 1;
            Message { queue_id, queue_offset }
        };
        steps.into_iter().map(place).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// For any number of threads, any schedule and any moment of a stop: each queue is committed in log order, and
    /// dispatching the rest gives the same result as one thread.
    #[test]
    fn any_schedule_commits_in_log_order(
        messages in logs(),
        hands in 1..9_usize,
        run_bytes in prop_oneof![Just(1_u64), 1..1500_u64],
        steps in 0..70_usize,
        flush_at in 0..70_usize,
        picks in proptest::collection::vec(any::<proptest::sample::Index>(), 70),
        stop in prop_oneof![Just("none"), Just("kill"), Just("power")],
        seed: u64,
    ) {
        let world = World::new(&messages);
        let dispatcher = dispatcher(&world.files, &world.list, 0);
        let mut picks = picks.into_iter();
        let mut durable = 0;
        for step in 0..steps {
            if step == flush_at {
                durable = dispatcher.position();
                dispatcher.queues.flush().unwrap();
            }
            let mut pick = |hands: usize| picks.next().map_or(0, |pick| pick.index(hands));
            dispatcher.run_shuffled(&world.list, world.end, (hands, run_bytes, 1), &mut pick).unwrap();
            world.check(&dispatcher);
        }
        let expected = in_log_order(&messages);
        let (sim, position) = match stop {
            "none" => {
                dispatcher.run_to(&world.list, world.end).unwrap();
                world.check(&dispatcher);
                prop_assert_eq!(derived(&world.files), expected);
                return Ok(());
            }
            "kill" => (world.sim.kill().unwrap(), dispatcher.position()),
            _ => (world.sim.crash(seed).unwrap(), durable),
        };
        let files = files(&sim);
        let list = Arc::new(SegmentList::load(&files).unwrap());
        let next = self::dispatcher(&files, &list, position);
        prop_assert_eq!(next.run_to(&list, world.end).unwrap(), world.end);
        prop_assert_eq!(derived(&files).0, expected.0);
    }
}
