//! Copies of topics from store to store in several calls, ended at any call or with any call failing: the target has each
//! message of the source once and in order, and the files of positions and the state say so.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mqstore::delivery::{BrokerError, ExportRules, ExportSelection};
use mqstore::read::{Scan, ScanBatch, ScanOutput, ScanRequest, ScanRow, ScanSink};
use mqstore::transfer::{CopyOrder, CopyStores, RawRecords, StoreCopy, TopicCopy, load_rules};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::message::{NewMessage, encode_properties};
use mqstore_base::options::{DamagePolicy, Durability, OpenMode, StoreOptions};
use mqstore_delivery::{Broker, DelayOptions};
use mqstore_engine::Store;
use mqstore_format::RecordView;
use mqstore_io::sim::Fault;
use mqstore_io::{Clock, Vfs};

use crate::check::abandon;
use crate::explore::{Violation, guarded};
use crate::moments::{End, Ends};
use crate::states::{Limits, Rng, State};
use crate::workload::{World, explain, tiny};

const LIMITS: Limits = Limits { all_up_to: 2, singles: 2, random: 1, cuts: 1 };

/// The copied topics, and one that is not copied. The second one has batch queues.
const TOPICS: [&str; 2] = ["orders", "batches"];
const OTHER: &str = "others";

/// Messages before each call of a session. About five fill a segment.
const MESSAGES: usize = 6;
const CALLS: usize = 2;

/// Records of one step, and the time that a step takes. Each second step stores the state.
const STEP_RECORDS: usize = 2;
const STEP_TIME: Duration = Duration::from_secs(3);

fn source() -> PathBuf {
    PathBuf::from("/data/source")
}

fn mapping() -> PathBuf {
    PathBuf::from("/data/copied/mapping")
}

/// A record of the source: its log offset and its bytes.
type Record = (u64, Vec<u8>);

/// The durable records of the source by log offset, as its archive has them.
type Archive = BTreeMap<u64, Vec<u8>>;

fn options() -> StoreOptions {
    StoreOptions { retention_bytes: Some(1), delete_interval_ms: 0, ..tiny(Durability::Manual) }
}

fn open_source(world: &World, mode: OpenMode) -> Result<Store, StoreError> {
    let clock: Arc<dyn Clock> = world.clock.clone();
    let vfs = Arc::new(world.vfs.clone());
    match mode {
        OpenMode::Read => Store::open_log(vfs, clock, &source(), &options()),
        mode => Store::open(vfs, clock, &source(), mode, &options()),
    }
}

fn append(store: &Store, number: usize) -> Result<(), StoreError> {
    let topic = [TOPICS[0], TOPICS[0], TOPICS[1], OTHER][number % 4];
    let queue_id = Some(if topic == TOPICS[0] { number as i32 % 2 } else { 0 });
    let key = format!("key-{number}");
    let properties = encode_properties([], None, Some(&key), [])?;
    let message = |body| NewMessage {
        topic,
        body,
        properties: &properties,
        unique_key: Some(&key),
        queue_id,
        ..NewMessage::default()
    };
    let body = format!("{number} {}", "x".repeat(500 + number * 37 % 200)).into_bytes();
    if topic == TOPICS[1] {
        // One record.
        store.append_many(&[message(&body), message(b"second")]).map(drop)
    } else {
        store.append(&message(&body)).map(drop)
    }
}

/// Appends messages to the source, makes them durable, archives them, and deletes all segments except the last one.
fn fill(world: &World, numbers: Range<usize>, archive: &mut Archive) -> Result<(), StoreError> {
    let store = open_source(world, OpenMode::ReadWrite)?;
    let filled = (|| {
        for number in numbers {
            append(&store, number)?;
        }
        store.flush()?;
        for (offset, bytes) in records(&store)? {
            archive.insert(offset, bytes);
        }
        store.expire(false, &mut || Ok(())).map(drop)
    })();
    abandon(&store);
    filled
}

/// Returns the records of a log.
fn records(store: &Store) -> Result<Vec<Record>, StoreError> {
    let found = store.log().scan(None)?.next_batch(usize::MAX)?;
    let bytes = |view: RecordView<'_>| view.bytes.to_vec();
    let decoded = found.iter().map(|record| {
        let view = record.view().map_err(|error| StoreError::invalid_message(&error))?;
        Ok((record.commit_log_offset, bytes(view)))
    });
    decoded.collect()
}

/// Some records of a scan.
#[derive(Default)]
struct FewRecords(Vec<Record>);

impl ScanSink for FewRecords {
    type Batch = Vec<Record>;

    fn has_room(&self, _: &ScanRow<'_>) -> bool {
        self.0.len() < STEP_RECORDS
    }

    fn add(&mut self, row: &ScanRow<'_>) {
        self.0.push((row.offset, row.record.bytes.to_vec()));
    }

    fn take(&mut self) -> Option<(Self::Batch, u64)> {
        (!self.0.is_empty()).then(|| (std::mem::take(&mut self.0), 1))
    }
}

/// The stores of a call.
struct Stores<'a> {
    world: &'a World,
    source: Store,
    target: Broker,
    archive: &'a Archive,
    scan: Option<Scan<FewRecords>>,
    older: Option<std::vec::IntoIter<Record>>,
}

impl CopyStores for Stores<'_> {
    type Error = BrokerError;

    fn run<T: Send>(
        &self,
        step: impl FnOnce(&Store, &Broker) -> Result<T, BrokerError> + Send,
    ) -> Result<T, BrokerError> {
        self.world.clock.advance(STEP_TIME);
        step(&self.source, &self.target)
    }

    fn begin_scan(&mut self, request: &ScanRequest) -> Result<Range<u64>, BrokerError> {
        let scan = self.source.scan(request, Arc::new(FewRecords::default))?;
        let range = scan.start()..scan.limit();
        self.scan = Some(scan);
        Ok(range)
    }

    fn next_scanned(&mut self) -> Result<Option<ScanBatch<RawRecords>>, BrokerError> {
        let Some(scan) = &mut self.scan else { return Ok(None) };
        loop {
            match scan.next(Duration::ZERO)? {
                ScanOutput::Batch(ScanBatch { rows, end }) => {
                    return Ok(Some(ScanBatch { rows: RawRecords::of(&rows)?, end }));
                }
                ScanOutput::Later => {}
                ScanOutput::End => return Ok(None),
            }
        }
    }

    fn has_deleted(&self) -> bool {
        false
    }

    fn has_older(&self) -> bool {
        true
    }

    fn begin_older(&mut self, topics: &[String], range: Range<u64>) -> Result<(), BrokerError> {
        let mut found = Vec::new();
        for (offset, bytes) in self.archive.range(range) {
            let view = RecordView::decode(bytes).map_err(|error| StoreError::invalid_message(&error))?;
            if topics.iter().any(|topic| topic == view.topic) {
                found.push((*offset, bytes.clone()));
            }
        }
        self.older = Some(found.into_iter());
        Ok(())
    }

    fn next_older(&mut self) -> Result<Option<Vec<Record>>, BrokerError> {
        let older = self.older.iter_mut().flatten();
        let found: Vec<Record> = older.take(STEP_RECORDS).collect();
        Ok(Some(found).filter(|found| !found.is_empty()))
    }
}

fn selection() -> ExportSelection {
    ExportSelection { topics: Some(topics().into_iter().collect()), keep_waiting: false }
}

fn topics() -> Vec<String> {
    TOPICS.map(str::to_owned).to_vec()
}

fn open_state(world: &World) -> Result<TopicCopy, StoreError> {
    let vfs = Arc::new(world.vfs.clone());
    TopicCopy::open(vfs, &mapping(), "source", "target", &topics())
}

/// Copies what the source has, or resumes an interrupted call. Returns the number of messages.
fn copy(world: &World, archive: &Archive) -> Result<u64, BrokerError> {
    world.vfs.create_dir_all(&mapping()).at(&mapping(), "making a folder")?;
    let mut state = open_state(world)?;
    let source = open_source(world, OpenMode::Read)?;
    let (rules, first) = match load_rules(&world.vfs, &state.mapping(), selection()) {
        Some(rules) => (rules, None),
        None => {
            let first = first_offsets(&source)?;
            (ExportRules::of(&source, selection())?, Some(first))
        }
    };
    state.begin(rules.limit(), first)?;
    let target = world.open(OpenMode::Create, &tiny(Durability::Manual))?;
    let copied = copy_to(world, &state, (source, rules), &target, archive);
    if copied.is_err() {
        abandon(&target);
    }
    let messages = copied?;
    target.close()?;
    state.finish()?;
    Ok(messages)
}

fn copy_to(
    world: &World,
    state: &TopicCopy,
    (source, rules): (Store, ExportRules),
    target: &Store,
    archive: &Archive,
) -> Result<u64, BrokerError> {
    // Four units fill a file of the timer log.
    let delays = DelayOptions { timer_log_file_bytes: 4 * 52 + 16, ..DelayOptions::default() };
    let broker = Broker::with_delays(target, delays)?;
    broker.start_delivery()?;
    let vfs: Arc<dyn Vfs> = Arc::new(world.vfs.clone());
    let digest = format!("from {:?}", state.position());
    let mut copy = StoreCopy::open(&vfs, &state.mapping(), &digest, selection())?;
    let request = ScanRequest {
        topics: Some(topics()),
        from: state.position(),
        with_deleted: true,
        on_damage: DamagePolicy::Skip,
        ..ScanRequest::default()
    };
    let host = StoreOptions::default().store_host;
    let order = CopyOrder { request, rules: Arc::new(rules), keeps: false, made: Vec::new(), host };
    copy.begin(target, order)?;
    let mut stores = Stores { world, source, target: broker, archive, scan: None, older: None };
    while copy.step(&mut stores)?.is_some() {}
    copy.publish(target)?;
    Ok(copy.messages())
}

fn first_offsets(source: &Store) -> Result<BTreeMap<String, i64>, StoreError> {
    let mut first = BTreeMap::new();
    for topic in TOPICS {
        for queue_id in source.queue_ids(topic)? {
            first.insert(format!("{topic}/{queue_id}"), source.bounds(topic, queue_id)?.0);
        }
    }
    Ok(first)
}

/// Topic, queue, offset and number of each message of the copied topics.
type Messages = Vec<(String, i32, i64, String)>;

/// The messages of records, by topic and queue, in the order of the log.
fn messages(records: impl IntoIterator<Item = Record>) -> Result<Messages, String> {
    let mut found = Vec::new();
    for (_, bytes) in records {
        let view = RecordView::decode(&bytes).map_err(explain)?;
        if TOPICS.contains(&view.topic) {
            let key = view.unique_key().unwrap_or_default().to_owned();
            found.push((view.topic.to_owned(), view.queue_id, view.queue_offset, key));
        }
    }
    // Keeps the order of the log in each queue.
    found.sort_by(|one, other| (&one.0, one.1).cmp(&(&other.0, other.1)));
    Ok(found)
}

/// The value of a member in a line of JSON.
fn member<'a>(line: &'a str, name: &str) -> Result<&'a str, String> {
    let (_, rest) = line.split_once(&format!("\"{name}\": ")).ok_or_else(|| format!("{line}: no {name}"))?;
    Ok(rest.split([',', '}']).next().unwrap_or_default().trim_matches('"'))
}

/// The lines of the files of positions of this many calls.
fn positions(world: &World, calls: u64) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for call in 1..=calls {
        let path = mapping().join(format!("{call:06}.jsonl"));
        let bytes = world.vfs.read_file(&path, 1 << 20).map_err(|error| format!("call {call}: {error}"))?;
        found.extend(String::from_utf8_lossy(&bytes).lines().map(str::to_owned));
    }
    Ok(found)
}

/// The target has each message of the source once and in order, and the positions of all of them are known.
fn complete(world: &World, archive: &Archive, calls: u64) -> Result<(), String> {
    let state = open_state(world).map_err(explain)?;
    if state.calls() != calls {
        return Err(format!("{} calls are counted, not {calls}", state.calls()));
    }
    let source = open_source(world, OpenMode::Read).map_err(explain)?;
    let mut all = archive.clone();
    all.extend(records(&source).map_err(explain)?);
    let wanted = messages(all)?;
    let target = world.open(OpenMode::Read, &tiny(Durability::Manual)).map_err(explain)?;
    let copied = records(&target).map_err(explain)?;
    let found = messages(copied.clone())?;
    let keys = |messages: &Messages| -> Vec<_> {
        messages.iter().map(|(topic, queue, _, key)| (topic.clone(), *queue, key.clone())).collect()
    };
    if keys(&wanted) != keys(&found) {
        return Err(format!("the target has {:?}, and the source {:?}", keys(&found), keys(&wanted)));
    }
    let mut named = Vec::new();
    for line in positions(world, calls)? {
        let number = |name: &str| member(&line, name)?.parse::<i64>().map_err(explain);
        let (topic, queue_id) = (member(&line, "topic")?.to_owned(), number("queue_id")? as i32);
        let (old, new) = (number("queue_offset")?, number("new_queue_offset")?);
        if state.translate(&topic, queue_id, old) != Some((new, false)) {
            let what = state.translate(&topic, queue_id, old);
            return Err(format!(
                "{topic}/{queue_id}: offset {old} is at {new}, and a group moves to {what:?}"
            ));
        }
        let (was, at) = (number("commit_log_offset")? as u64, number("new_commit_log_offset")? as u64);
        let place = copied.iter().find(|(offset, _)| *offset == at);
        let stored = messages(place.cloned())?.pop().ok_or_else(|| format!("{line}: no message"))?;
        let read = messages(all_at(&source, archive, was)?)?
            .pop()
            .ok_or_else(|| format!("{line}: no old message"))?;
        if (stored.2, read.2) != (new, old) || stored.3 != read.3 {
            return Err(format!("{line}: {read:?} is {stored:?}"));
        }
        named.push((topic, queue_id, stored.2, stored.3));
    }
    named.sort_by(|one, other| (&one.0, one.1).cmp(&(&other.0, other.1)));
    if named == found && state.gaps().is_empty() {
        return Ok(());
    }
    Err(format!("the positions are those of {named:?}, the target has {found:?}, gaps {:?}", state.gaps()))
}

/// The record of the source at a log offset.
fn all_at(source: &Store, archive: &Archive, offset: u64) -> Result<Option<Record>, String> {
    if let Some(bytes) = archive.get(&offset) {
        return Ok(Some((offset, bytes.clone())));
    }
    Ok(records(source).map_err(explain)?.into_iter().find(|(at, _)| *at == offset))
}

/// A source with messages, and a folder for the state.
fn begin() -> Result<(World, Archive), String> {
    let (world, mut archive) = (World::new(false), Archive::new());
    let store = open_source(&world, OpenMode::Create).map_err(explain)?;
    let batched = ("queue.type".to_owned(), "BatchCQ".to_owned());
    store.create_topic(TOPICS[0], 2, &[]).map_err(explain)?;
    store.create_topic(TOPICS[1], 1, &[batched]).map_err(explain)?;
    store.create_topic(OTHER, 1, &[]).map_err(explain)?;
    store.close().map_err(explain)?;
    fill(&world, 0..MESSAGES, &mut archive).map_err(explain)?;
    let durable = world.vfs.crash_as(false, &mut |_, forms| forms - 1).map_err(explain)?;
    Ok((World::on(durable), archive))
}

/// The history of a session.
#[derive(Debug, Default)]
struct Done {
    /// The number of operations at which each call was complete.
    copied: Vec<u64>,
    archive: Archive,
}

/// Copies, and appends messages before each further call.
fn session(world: &World, archive: &Archive, calls: usize) -> Result<Done, BrokerError> {
    let mut done = Done { archive: archive.clone(), ..Done::default() };
    for call in 0..calls {
        if call > 0 {
            fill(world, call * MESSAGES..(call + 1) * MESSAGES, &mut done.archive)?;
        }
        copy(world, &done.archive)?;
        done.copied.push(world.vfs.operations());
    }
    Ok(done)
}

/// The number of complete calls, of which at least `least` had ended and at most `most` had begun.
fn counted(world: &World, least: usize, most: usize) -> Result<u64, String> {
    let mut calls = 0;
    if world.vfs.stat(&mapping()).is_ok() {
        calls = open_state(&World::on(world.vfs.kill().map_err(explain)?)).map_err(explain)?.calls();
    }
    if (least as u64..=most as u64).contains(&calls) {
        return Ok(calls);
    }
    Err(format!("{calls} calls are counted, {least} had ended, and {most} had begun"))
}

fn check(end: &End<'_>, done: &Done, rng: &mut Rng) -> Result<(), String> {
    let world = end.world()?;
    let least = done.copied.iter().filter(|call| **call < end.call).count();
    continued(&world, &done.archive, least, rng)
}

/// The next call copies the rest, also if it is ended once.
fn continued(world: &World, archive: &Archive, least: usize, rng: &mut Rng) -> Result<(), String> {
    let mut calls = counted(world, least, CALLS)?;
    let mut world = World::on(world.vfs.kill().map_err(explain)?);
    let mut archive = archive.clone();
    let again = |world: &World, archive: &Archive| {
        copy(world, archive).map_err(|error| format!("the next call: {error}"))
    };
    let recovered = open_source(&world, OpenMode::ReadWrite).map_err(explain)?;
    let (_, end) = recovered.log().bounds().map_err(explain)?;
    abandon(&recovered);
    // The source has not had the other records, or has lost them.
    drop(archive.split_off(&end));
    // Without messages, this makes the source durable: a loss of messages that were copied is not tried here.
    let more = if rng.chance(4) { 100..103 } else { 0..0 };
    fill(&world, more, &mut archive).map_err(explain)?;
    if rng.chance(3) {
        let probe = World::on(world.vfs.kill().map_err(explain)?);
        // The open ends a call that was interrupted between its last two steps.
        open_state(&probe).map_err(explain)?;
        let opened = probe.vfs.operations();
        again(&probe, &archive)?;
        let most = if rng.chance(4) { opened } else { probe.vfs.operations() };
        let call = 1 + rng.below(most);
        world.vfs.freeze_at(world.vfs.operations() + call);
        again(&world, &archive)?;
        let moment = world.vfs.take_frozen().unwrap_or_else(|| world.vfs.clone());
        let state = if rng.chance(2) { State::kill() } else { State::chance(rng) };
        world = World::on(state.image(&moment)?.vfs);
        calls =
            counted(&world, least, CALLS + 1).map_err(|what| format!("then {state} at {call}: {what}"))?;
    }
    // A resumed call ends where the interrupted one would have ended.
    again(&world, &archive)?;
    again(&world, &archive)?;
    complete(&world, &archive, calls + 2)?;
    let after = World::on(State::all_old().image(&world.vfs)?.vfs);
    complete(&after, &archive, calls + 2).map_err(|what| format!("after a loss of power: {what}"))?;
    match copy(&after, &archive) {
        Ok(0) => complete(&after, &archive, calls + 3),
        again => Err(format!("after a loss of power, a further call copies {again:?} messages")),
    }
}

/// A disk after a kill between the last two steps of a call: the file of positions has its name, and is not counted.
fn renamed() -> Result<(World, Archive), String> {
    let (world, archive) = begin()?;
    world.vfs.freeze_at_each(2..=u64::from(u16::MAX));
    session(&world, &archive, 1).map_err(explain)?;
    for (_, moment) in world.vfs.take_all_frozen() {
        let killed = World::on(moment.kill().map_err(explain)?);
        let state = killed.vfs.read_file(&mapping().join("state.json"), 1 << 20).unwrap_or_default();
        let is_named = killed.vfs.stat(&mapping().join("000001.jsonl")).is_ok();
        if is_named && String::from_utf8_lossy(&state).contains("\"calls\":0") {
            return Ok((killed, archive));
        }
    }
    Err("no step is between the last two ones".to_owned())
}

fn ends(step: usize, stop: &dyn Fn() -> bool) -> Ends<'_> {
    Ends { name: "copying", replay: "copying".to_owned(), limits: LIMITS, step, stop }
}

/// Ends the calls after each of their steps.
pub(crate) fn hunt(step: usize, stop: &dyn Fn() -> bool) -> Result<u64, Violation> {
    let limits = Limits { all_up_to: 64, ..LIMITS };
    let ended = Ends { replay: "copying0".to_owned(), limits, ..ends(1, stop) };
    let (world, archive) = ended.beside(renamed)?;
    let mut tried = ended.each(
        &world,
        |world| open_state(world).map(drop).map_err(explain),
        |end, (), rng| continued(&end.world()?, &archive, 0, rng),
    )?;
    // The search begins with the last calls.
    for calls in 1..=CALLS {
        let ends = Ends { replay: format!("copying{calls}"), ..ends(step * calls, stop) };
        let (world, archive) = ends.beside(begin)?;
        tried += ends.each(&world, |world| session(world, &archive, calls).map_err(explain), check)?;
    }
    Ok(tried)
}

/// Lets calls fail, once or from then on, and continues after a kill.
fn failing(step: usize, stop: &dyn Fn() -> bool) -> Result<u64, String> {
    let (begin, archive) = begin()?;
    let mut tried = 0;
    for (nth, sticky) in (1..).step_by(step).flat_map(|nth| [(nth, false), (nth, true)]) {
        let world = World::on(begin.vfs.kill().map_err(explain)?);
        let fault = Fault::nth(nth);
        world.vfs.inject(if sticky { fault.sticky() } else { fault });
        let (mut kept, mut least) = (archive.clone(), 0);
        for call in 0..CALLS {
            let filled = call == 0 || fill(&world, call * MESSAGES..(call + 1) * MESSAGES, &mut kept).is_ok();
            if !filled || copy(&world, &kept).is_err() {
                break;
            }
            least += 1;
        }
        let fired = world.vfs.faults_fired();
        world.vfs.clear_faults();
        if fired == 0 || stop() {
            return Ok(tried);
        }
        let mut rng = Rng::new(nth);
        let at = |what: String| format!("call {nth} fails, {sticky}: {what}");
        continued(&world, &kept, least, &mut rng).map_err(at)?;
        tried += 1;
    }
    Ok(tried)
}

/// Calls that fail.
pub(crate) fn hunt_failing(step: usize, stop: &dyn Fn() -> bool) -> Result<u64, Violation> {
    ends(1, stop).beside(|| failing(step, stop))
}

#[test]
fn each_message_is_copied_once() {
    let tried = crate::crashes::must_hold(hunt(2 * crate::crashes::calls_step(), &|| false));
    println!("copying: {tried} states");
    assert!(tried > 500, "{tried} states");
}

#[test]
fn each_message_is_copied_once_whichever_call_fails() {
    let tried = guarded(|| failing(4 * crate::crashes::calls_step(), &|| false))
        .unwrap_or_else(|what| panic!("{what}"));
    println!("copying: {tried} failing calls");
    assert!(tried > 100, "{tried} failing calls");
}
