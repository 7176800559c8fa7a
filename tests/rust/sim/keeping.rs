//! Topics, groups, offsets and progress, interrupted at any call. Synced changes are present, a kill loses no
//! written change, and the state found is one that existed at some moment, never half of a change.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;

use mqstore_base::error::StoreError;
use mqstore_base::message::NewMessage;
use mqstore_base::options::{Durability, OpenMode, StoreOptions};
use mqstore_base::topic_floors::TopicRetention;
use mqstore_engine::{Store, TopicChange};
use mqstore_format::json::SubscriptionGroup;
use mqstore_io::sim::{Fault, OperationKind};
use mqstore_io::{Access, SimVfs, Vfs};
use mqstore_meta::{MetaLog, OffsetChange, ProgressRecord};

use crate::check::{abandon, lost_and_found};
use crate::explore::Violation;
use crate::moments::{End, Ends};
use crate::states::{Limits, Rng, State};
use crate::workload::{World, explain, root, tiny};

const TOPIC: &str = "jobs";
const LIMITS: Limits = Limits { all_up_to: 8, singles: 4, random: 2, cuts: 1 };
/// Number of queues whose offsets fill several pages.
const WIDE: i32 = 2000;
/// Number of messages, as many as the changes mention.
const MESSAGES: usize = 8;

fn options() -> StoreOptions {
    tiny(Durability::Manual)
}

/// Everything that the store knows, as text.
fn known(store: &Store) -> Result<String, StoreError> {
    let meta = store.meta()?;
    let topics: Vec<_> = meta.topics().iter().map(|topic| topic.to_text("")).collect();
    let floors: Vec<_> =
        meta.floors().iter().map(|(topic, floor)| format!("{topic} from {}", floor.log_offset)).collect();
    let mut words = format!("{topics:?} {:?} {floors:?} {:?}", meta.groups(), meta.retentions());
    for group in ["c", "w"] {
        let id = meta.group_id(group)?;
        for OffsetChange { queue, offset } in meta.offsets(id) {
            let topic = meta.name(queue.topic).unwrap_or_default();
            let _ = write!(words, " {group} {topic}/{} at {offset}", queue.queue_id);
        }
        for progress in meta.progress_of(id) {
            let state = progress.lock();
            let open =
                (state.leases().map(|(offset, lease)| (offset, lease.invisible_until_ms, lease.attempt)))
                    .chain(state.all_waiting().map(|(offset, waiting)| (offset, waiting.visible_ms, 0)))
                    .chain(state.dead_letters().map(|(offset, copy)| (offset, copy, 99)));
            let open: Vec<_> = open.collect();
            let done: Vec<_> = state.finished().collect();
            let reasons: Vec<_> = (0..state.next()).filter_map(|offset| state.reason(offset)).collect();
            if state.next() > 0 {
                let bounds = (state.committed(), state.next());
                let _ = write!(words, " {group}: {bounds:?} {open:?} {done:?} {reasons:?}");
            }
        }
    }
    Ok(words)
}

/// The history of a session: the number of file-system calls at each step, and the known state then.
#[derive(Default)]
struct Told {
    /// After each change.
    states: Vec<(u64, String)>,
    /// Calls at which the changes up to a number were reported as durable.
    durable: Vec<(u64, usize)>,
}

impl Told {
    fn change(&mut self, world: &World, store: &Store) -> Result<(), String> {
        self.states.push((world.vfs.operations(), known(store).map_err(explain)?));
        Ok(())
    }

    fn durable(&mut self, world: &World) {
        self.durable.push((world.vfs.operations(), self.states.len()));
    }

    /// The states that may be found just before `call`.
    fn allowed(&self, call: u64, kill: bool) -> &[(u64, String)] {
        let done = self.states.iter().filter(|(at, _)| *at < call).count();
        let durable = self.durable.iter().filter(|(at, _)| *at < call).map(|(_, count)| *count);
        let least = if kill { done } else { durable.max().unwrap_or(1) };
        &self.states[least.max(1) - 1..(done + 1).min(self.states.len())]
    }
}

fn lease(offset: i64) -> ProgressRecord {
    ProgressRecord::Leased { offset, invisible_until_ms: 30, attempt: 1 }
}

fn commit(meta: &MetaLog, offsets: &[(i32, i64)]) -> Result<(), StoreError> {
    let change = |(queue_id, offset): &(i32, i64)| {
        Ok(OffsetChange { queue: meta.queue_key("c", TOPIC, *queue_id)?, offset: *offset })
    };
    let changes = offsets.iter().map(change).collect::<Result<Vec<_>, StoreError>>()?;
    meta.commit(&changes).map(|_| ())
}

fn advance(meta: &MetaLog, records: &[ProgressRecord]) -> Result<(), StoreError> {
    let progress = meta.progress(meta.queue_key("w", TOPIC, 0)?);
    meta.append_progress(&progress, records).map(|_| ())
}

/// Number of changes of a session. A change that is durable on return says so.
const CHANGES: usize = 16;

fn change(store: &Store, number: usize) -> Result<bool, StoreError> {
    let meta = store.meta()?;
    match number {
        0 => commit(&meta, &[(0, 1)])?,
        1 => store.create_topic("one", 1, &[])?,
        2 => advance(&meta, &[lease(0), lease(1), lease(2)])?,
        3 => commit(&meta, &[(0, 2), (1, 3)])?,
        // The second message was never leased: it is cancelled.
        4 => advance(&meta, &[ProgressRecord::finished(1), ProgressRecord::finished(4)])?,
        5 => store.create_topic("two", 3, &[])?,
        6 => advance(&meta, &[lease(3), ProgressRecord::Returned { offset: 2, visible_ms: 9, attempt: 1 }])?,
        7 => meta.create_group(&SubscriptionGroup::new("w")).map(|_| ())?,
        8 => {
            let reason = ProgressRecord::Reason { offset: 3, reason: "no paper".into() };
            let dead = ProgressRecord::DeadLetter { offset: 3, dlq_offset: 4 };
            advance(&meta, &[reason, dead, ProgressRecord::finished(6)])?;
        }
        9 => commit(&meta, &[(1, 4)])?,
        10 => store.remove_topic("one")?,
        11 => store.change_topic(TOPIC, TopicChange { perm: Some(4), ..TopicChange::default() })?,
        12 => advance(&meta, &[ProgressRecord::finished(0)])?,
        13 => {
            store
                .retention()
                .set(TOPIC, TopicRetention { max_messages: Some(6), ..TopicRetention::default() })?;
        }
        14 => store.expire(false, &mut || Ok(())).map(drop)?,
        _ => commit(&meta, &[(0, 5), (1, 5)])?,
    }
    Ok([1, 5, 10, 11, 13, 14].contains(&number))
}

/// Makes changes with syncs, generations and JSON files in between, then closes.
fn session(world: &World) -> Result<Told, String> {
    let store = world.open(OpenMode::ReadWrite, &options()).map_err(explain)?;
    let mut told = Told::default();
    told.change(world, &store)?;
    told.durable(world);
    for number in 0..CHANGES {
        let durable = change(&store, number).map_err(explain)?;
        told.change(world, &store)?;
        if durable {
            told.durable(world);
        }
        let meta = store.meta().map_err(explain)?;
        match number {
            3 | 9 => meta.make_generation().map_err(explain)?,
            6 => {
                store.flush().map_err(explain)?;
                told.durable(world);
            }
            7 => meta.export_json().map_err(explain)?,
            12 => {
                store.step().map_err(explain)?;
                told.durable(world);
            }
            _ => {}
        }
        if [3, 9].contains(&number) {
            told.durable(world);
        }
    }
    store.close().map_err(explain)?;
    told.durable(world);
    Ok(told)
}

/// A closed store with messages in two queues.
fn begin() -> Result<World, String> {
    let world = World::new(false);
    let store = world.open(OpenMode::Create, &options()).map_err(explain)?;
    store.create_topic(TOPIC, 2, &[]).map_err(explain)?;
    for number in 0..MESSAGES * 2 {
        let message = NewMessage {
            topic: TOPIC,
            body: b"work",
            properties: &[],
            unique_key: None,
            queue_id: Some(number as i32 % 2),
            flag: 0,
            born_timestamp_ms: None,
            durable: false,
            ..NewMessage::default()
        };
        store.append(&message).map_err(explain)?;
    }
    store.close().map_err(explain)?;
    Ok(world)
}

/// Ends a session after each call that changes the disk.
pub(crate) fn hunt(step: usize, stop: &dyn Fn() -> bool) -> Result<u64, Violation> {
    let ends = Ends { name: "metadata", replay: "k0-0".to_owned(), limits: LIMITS, step, stop };
    let before = ends.beside(|| begin()?.vfs.kill().map_err(explain))?;
    let copy = || ends.beside(|| Ok(World::on(before.kill().map_err(explain)?)));
    let closed = copy()?;
    ends.beside(|| session(&closed).map(drop))?;
    let mut tried = ends.beside(|| damaged(&closed.vfs))?;
    tried += ends.beside(|| cut_behind_a_mark(&closed.vfs))?;
    tried += ends.beside(|| failed_syncs(&before))?;
    tried += ends.beside(|| copied(&before))?;
    let each = ends.each(&copy()?, session, |end, told, rng| {
        check(end, told.allowed(end.call, end.state.is_kill()), rng)
    })?;
    Ok(tried + each)
}

/// The newest file of the metadata log, and its bytes up to the last one that is not zero.
fn newest(vfs: &SimVfs) -> (PathBuf, Vec<u8>) {
    let folder = root().join("mqstore/meta");
    let newest = vfs.list(&folder).unwrap_or_default().pop();
    let path = newest.map(|entry| folder.join(entry.name)).unwrap_or_default();
    let mut bytes = vfs.read_file(&path, 1 << 20).unwrap_or_default();
    bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
    (path, bytes)
}

/// Whether these bytes are only a frame that names the synced position. Such a frame changes nothing and may
/// be lost.
fn is_mark(rest: &[u8]) -> bool {
    rest.len() <= 32 && rest.windows(8).any(|bytes| bytes == b"MQSYNCED")
}

/// Opens the disk that a crash left, and crashes again.
fn check(end: &End<'_>, allowed: &[(u64, String)], rng: &mut Rng) -> Result<(), String> {
    let world = end.world()?;
    whole_tables(&world.vfs)?;
    let (path, left) = newest(&world.vfs);
    let store = world.open(OpenMode::ReadWrite, &options()).map_err(explain)?;
    let found = known(&store).map_err(explain)?;
    if !allowed.iter().any(|(_, state)| *state == found) {
        return Err(format!("{found}\n is none of {allowed:#?}"));
    }
    // Everything that an open shows is durable by then, and truncated bytes are kept.
    let lost = World::on(State::all_old().image(&world.vfs)?.vfs);
    let (now, bytes) = newest(&lost.vfs);
    let rest = left.get(bytes.len()..).filter(|rest| now == path && !is_mark(rest)).unwrap_or_default();
    if !rest.is_empty()
        && !lost_and_found(&lost.vfs).iter().any(|kept| !kept.is_empty() && left.ends_with(kept))
    {
        return Err("what was cut from the metadata log is not kept".to_owned());
    }
    let kept = lost_and_found(&lost.vfs).len();
    is_known(&lost, &found)?;
    if lost_and_found(&lost.vfs).len() > kept {
        return Err("what was cut from the metadata log is there again".to_owned());
    }
    // The log continues after its end, and truncated bytes do not come back.
    let meta = store.meta().map_err(explain)?;
    commit(&meta, &[(0, 7)]).map_err(explain)?;
    let more = known(&store).map_err(explain)?;
    for _ in 0..2 {
        let next = State::chance(rng).image(&world.vfs)?.vfs;
        let opened = World::on(next).open(OpenMode::ReadWrite, &options()).map_err(explain)?;
        let again = known(&opened).map_err(explain)?;
        if again != found && again != more {
            return Err(format!("ended again: {again}\n is neither {found}\n nor {more}"));
        }
        abandon(&opened);
    }
    store.close().map_err(explain)?;
    is_known(&World::on(State::all_old().image(&world.vfs)?.vfs), &more)
}

/// A broker that opens the disk after a crash finds complete tables.
fn whole_tables(vfs: &SimVfs) -> Result<(), String> {
    for name in ["topics.json", "subscriptionGroup.json", "consumerOffset.json"] {
        let text = vfs.read_file(&root().join("config").join(name), 1 << 20);
        if text.is_ok_and(|text| !text.ends_with(b"}")) {
            return Err(format!("half of {name} is there"));
        }
    }
    Ok(())
}

fn is_known(world: &World, wanted: &str) -> Result<(), String> {
    let store = world.open(OpenMode::ReadWrite, &options()).map_err(explain)?;
    let found = known(&store).map_err(explain)?;
    abandon(&store);
    if found == wanted { Ok(()) } else { Err(format!("{found}\n is not {wanted}")) }
}

/// An open notices missing frames of a closed log.
fn damaged(closed: &SimVfs) -> Result<u64, String> {
    let (path, bytes) = newest(closed);
    let tail = bytes.get(24..32).and_then(|tail| tail.first_chunk().map(|tail| u64::from_be_bytes(*tail)));
    let tail = tail.ok_or("the log has no head")?;
    // Its first frame, which others follow.
    for at in [tail, tail + 9] {
        let vfs = closed.kill().map_err(explain)?;
        let file = vfs.open(&path, Access::ReadWrite).map_err(explain)?;
        file.write_all_at(&[0; 12], at).and_then(|()| file.sync_all()).map_err(explain)?;
        match World::on(vfs).open(OpenMode::ReadWrite, &options()) {
            Err(StoreError::Corrupt { .. }) => {}
            Err(error) => return Err(explain(error)),
            Ok(_) => return Err("a log without a frame that was synced was opened".to_owned()),
        }
    }
    Ok(2)
}

/// Bytes that are truncated after a synced end do not come back, although the open has nothing else to write.
fn cut_behind_a_mark(closed: &SimVfs) -> Result<u64, String> {
    let (path, bytes) = newest(closed);
    let world = World::on(closed.kill().map_err(explain)?);
    let file = world.vfs.open(&path, Access::ReadWrite).map_err(explain)?;
    let torn = file.write_all_at(b"half of a frame", bytes.len() as u64).and_then(|()| file.sync_all());
    torn.map_err(explain)?;
    abandon(&world.open(OpenMode::ReadWrite, &options()).map_err(explain)?);
    let kept = lost_and_found(&world.vfs).len();
    let lost = World::on(State::all_old().image(&world.vfs)?.vfs);
    abandon(&lost.open(OpenMode::ReadWrite, &options()).map_err(explain)?);
    match (kept, lost_and_found(&lost.vfs).len()) {
        (0, _) => Err("half of a frame was not cut from the metadata log".to_owned()),
        (_, again) if again > kept => Err("what was cut from the metadata log is there again".to_owned()),
        _ => Ok(1),
    }
}

/// The next open does not take a change that a failed sync lost for durable.
fn failed_syncs(before: &SimVfs) -> Result<u64, String> {
    for nth in 1..=20 {
        let world = World::on(before.kill().map_err(explain)?);
        let store = world.open(OpenMode::ReadWrite, &options()).map_err(explain)?;
        let log = root().join("mqstore/meta");
        // Several pages, because truncation writes one page again, and the test needs others.
        let wide: Vec<_> = (0..WIDE).map(|queue_id| (queue_id, 0)).collect();
        store.meta().and_then(|meta| commit(&meta, &wide)).map_err(explain)?;
        world.vfs.inject(Fault::nth(nth).on(&[OperationKind::Sync]).under(&log));
        let failed = (0..CHANGES).find(|number| change(&store, *number).is_err());
        world.vfs.clear_faults();
        abandon(&store);
        if failed.is_none() {
            return Ok(nth - 1);
        }
        let killed = World::on(world.vfs.kill().map_err(explain)?);
        let store = killed.open(OpenMode::ReadWrite, &options()).map_err(explain)?;
        let found = known(&store).map_err(explain)?;
        let lost = World::on(State::all_old().image(&killed.vfs)?.vfs);
        abandon(&store);
        is_known(&lost, &found)?;
    }
    Err("syncs failed for ever".to_owned())
}

/// A snapshot has the same state as the store.
fn copied(before: &SimVfs) -> Result<u64, String> {
    let world = World::on(before.kill().map_err(explain)?);
    let store = world.open(OpenMode::ReadWrite, &options()).map_err(explain)?;
    for number in 0..CHANGES / 2 {
        change(&store, number).map_err(explain)?;
    }
    let output = root().with_extension("copy");
    mqstore_inspect::snapshot(&store, &output, &mut |_| Ok(())).map_err(explain)?;
    let found = known(&store).map_err(explain)?;
    let vfs = State::all_old().image(&world.vfs)?.vfs;
    vfs.remove_dir_all(&root()).and_then(|()| vfs.rename(&output, &root())).map_err(explain)?;
    abandon(&store);
    is_known(&World::on(vfs), &found)?;
    Ok(1)
}

#[test]
fn what_is_known_of_topics_and_groups_survives_any_crash() {
    let tried = crate::crashes::must_hold(hunt(crate::crashes::short_calls_step(), &|| false));
    println!("metadata: {tried} states");
    assert!(tried > 1_000);
}

#[test]
fn the_model_allows_more_after_a_loss_of_power_than_after_a_kill() {
    let mut told = Told::default();
    for at in [10, 20, 30] {
        told.states.push((at, at.to_string()));
    }
    told.durable.push((12, 1));
    let found = |call, kill| told.allowed(call, kill).iter().map(|(at, _)| *at).collect::<BTreeSet<_>>();
    assert_eq!(found(25, true), BTreeSet::from([20, 30]));
    assert_eq!(found(25, false), BTreeSet::from([10, 20, 30]));
    assert_eq!(found(40, true), BTreeSet::from([30]));
}
