//! Delayed messages, interrupted at any call and resumed at another time: none early, none lost, none twice,
//! and no cancelled message arrives.

use std::collections::BTreeMap;
use std::time::Duration;

use mqstore_base::message::NewMessage;
use mqstore_base::options::{Durability, OpenMode, StoreOptions};
use mqstore_delivery::{Broker, DelayOptions, Due};
use mqstore_engine::Store;
use mqstore_io::Clock;

use crate::check::abandon;
use crate::explore::Violation;
use crate::moments::{End, Ends};
use crate::states::{Limits, Rng, State};
use crate::workload::{World, explain, tiny};

const TOPIC: &str = "due";
const LIMITS: Limits = Limits { all_up_to: 2, singles: 2, random: 0, cuts: 1 };
/// In one of this many ends, further crashes follow.
const ENDED_AGAIN_ONE_IN: u64 = 8;
const NEVER: u64 = u64::MAX;
/// Every clock begins at this time, in epoch milliseconds.
const BEGIN_MS: i64 = 1_700_000_000_000;
/// All waiting messages are due by this time. One message waits for longer than RocketMQ's window, and the
/// timer puts it back once.
const END_MS: i64 = BEGIN_MS + 300_000_000;
/// Delay level 2 is five seconds.
const LEVEL: (i32, i64) = (2, 5_000);

/// One message, with the number of file-system calls at each promise about it.
#[derive(Clone, Debug)]
struct Told {
    /// The earliest time of the delivery. A message with a delay level follows the clock back, so it may come
    /// at any time.
    due_ms: i64,
    /// Another allowed time: the time before the message was rescheduled.
    before_ms: Option<i64>,
    id: String,
    stored: u64,
    /// From this call on, the message waits or was delivered, also after a power loss.
    kept: u64,
    /// A call to cancel or to reschedule the message began.
    begun: u64,
    cancelled: u64,
    cancelled_kept: u64,
    moved: u64,
    moved_kept: u64,
}

/// One step of a session.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Appends a message that is due this many milliseconds after the beginning; durable or not.
    At(i64, bool),
    Level,
    Cancel(usize),
    /// Reschedules the message with this number to this many milliseconds after the beginning.
    Move(usize, i64),
    /// Sets the clock to this many milliseconds after the beginning, and delivers the due messages.
    Clock(i64),
    Flush,
    /// Closes and reopens the store.
    Again,
}

const PLAN: [Act; 21] = [
    Act::At(1_500, true),
    Act::At(3_400, false),
    Act::At(3_400, false),
    Act::Level,
    Act::Clock(100),
    Act::Cancel(1),
    Act::Flush,
    Act::Clock(1_200),
    Act::At(2_300, false),
    Act::Clock(700),
    Act::Move(2, 6_500),
    Act::Clock(2_600),
    Act::Again,
    Act::At(6_600, true),
    Act::At(210_000_000, false),
    Act::Clock(5_200),
    Act::Move(5, 7_200),
    Act::Flush,
    Act::Clock(6_700),
    Act::Clock(8_000),
    Act::Clock(9_200),
];

fn options() -> StoreOptions {
    tiny(Durability::Async)
}

fn open(world: &World) -> Result<(Store, Broker), String> {
    let store = world.open(OpenMode::ReadWrite, &options()).map_err(explain)?;
    // Four units fill a file of the timer log.
    let delays = DelayOptions { timer_log_file_bytes: 4 * 52 + 16, ..DelayOptions::default() };
    let broker = Broker::with_delays(&store, delays).map_err(explain)?;
    broker.start_delivery().map_err(explain)?;
    Ok((store, broker))
}

fn later(broker: &Broker, number: usize, due: Due, durable: bool) -> Result<String, String> {
    let body = format!("{number} {}", "x".repeat(100));
    let message = NewMessage {
        topic: TOPIC,
        body: body.as_bytes(),
        properties: &[],
        unique_key: None,
        queue_id: Some(0),
        flag: 0,
        born_timestamp_ms: None,
        durable,
        ..NewMessage::default()
    };
    let accepted = broker.append_later(&[(message, due)]).map_err(explain)?;
    Ok(accepted.first().map_or_else(String::new, |one| one.appended.unique_id.as_str().to_owned()))
}

/// Marks everything that is durable now as promised.
fn kept(all: &mut [Told], now: u64) {
    for told in all {
        let least = |place: &mut u64, done: u64| {
            if done < NEVER {
                *place = (*place).min(now);
            }
        };
        least(&mut told.kept, told.stored);
        least(&mut told.cancelled_kept, told.cancelled);
        least(&mut told.moved_kept, told.moved);
    }
}

fn session(world: &World) -> Result<Vec<Told>, String> {
    let (mut store, mut broker) = open(world)?;
    let mut all: Vec<Told> = Vec::new();
    for act in PLAN {
        match act {
            Act::At(..) | Act::Level => {
                let (due, due_ms, durable) = match act {
                    Act::At(after, durable) => (Due::At(BEGIN_MS + after), BEGIN_MS + after, durable),
                    _ => (Due::Level(LEVEL.0), 0, false),
                };
                let id = later(&broker, all.len(), due, durable)?;
                let stored = world.vfs.operations();
                let never = Told {
                    due_ms,
                    before_ms: None,
                    id,
                    stored,
                    kept: if durable { stored } else { NEVER },
                    begun: NEVER,
                    cancelled: NEVER,
                    cancelled_kept: NEVER,
                    moved: NEVER,
                    moved_kept: NEVER,
                };
                all.push(never);
            }
            Act::Cancel(number) => {
                all[number].begun = world.vfs.operations();
                if !broker.cancel(&all[number].id).map_err(explain)? {
                    return Err(format!("{number} did not wait"));
                }
                all[number].cancelled = world.vfs.operations();
            }
            Act::Move(number, after) => {
                let due_ms = BEGIN_MS + after;
                let told = &mut all[number];
                (told.begun, told.before_ms) = (world.vfs.operations(), Some(told.due_ms));
                told.due_ms = due_ms;
                let moved = broker.reschedule(&told.id, due_ms).map_err(explain)?;
                if moved.is_none() {
                    return Err(format!("{number} did not wait"));
                }
                told.moved = world.vfs.operations();
            }
            Act::Clock(after) => {
                let now_ms = BEGIN_MS + after;
                set(world, now_ms);
                store.step().map_err(explain)?;
            }
            Act::Flush => {
                store.flush().map_err(explain)?;
                kept(&mut all, world.vfs.operations());
            }
            Act::Again => {
                store.close().map_err(explain)?;
                kept(&mut all, world.vfs.operations());
                drop(broker);
                (store, broker) = open(world)?;
            }
        }
    }
    store.close().map_err(explain)?;
    kept(&mut all, world.vfs.operations());
    drop(broker);
    Ok(all)
}

fn begin() -> Result<World, String> {
    let world = World::new(false);
    let store = world.open(OpenMode::Create, &options()).map_err(explain)?;
    store.create_topic(TOPIC, 1, &[]).map_err(explain)?;
    store.close().map_err(explain)?;
    Ok(world)
}

/// The delivery times of each message, by its number.
fn came(store: &Store) -> Result<BTreeMap<usize, Vec<i64>>, String> {
    let mut found: BTreeMap<usize, Vec<i64>> = BTreeMap::new();
    let mut cursor = store.read(TOPIC, 0, None, None, None).map_err(explain)?;
    loop {
        let records = cursor.next_batch(64).map_err(explain)?;
        if records.is_empty() {
            return Ok(found);
        }
        for record in records {
            let view = record.view().map_err(explain)?;
            let text = String::from_utf8_lossy(view.body).into_owned();
            let number = text.split(' ').next().unwrap_or_default().parse().map_err(explain)?;
            found.entry(number).or_default().push(view.store_timestamp);
        }
    }
}

/// Sets the time to `now_ms`: time passes, or the wall clock goes back.
fn set(world: &World, now_ms: i64) {
    match u64::try_from(now_ms - world.clock.now_ms()) {
        Ok(ahead) => world.clock.advance(Duration::from_millis(ahead)),
        Err(_) => world.clock.set(now_ms),
    }
}

/// Sets the time to `now_ms`, and delivers the due messages.
fn deliver(world: &World, store: &Store, now_ms: i64) -> Result<(), String> {
    set(world, now_ms);
    (0..3).try_for_each(|_| store.step()).map_err(explain)
}

/// Whether no message came early, or more often than allowed. `known` says whether a change is promised.
fn on_time(store: &Store, all: &[Told], call: u64, known: &dyn Fn(u64, u64) -> bool) -> Result<(), String> {
    for (number, times) in came(store)? {
        let told = all.get(number).ok_or("a message that nobody sent")?;
        // Until a reschedule is promised, the old and the new delivery may both happen.
        let both = told.begun < call && told.before_ms.is_some() && !known(told.moved, told.moved_kept);
        let earliest = told.before_ms.filter(|_| !known(told.moved, told.moved_kept));
        let earliest = earliest.map_or(told.due_ms, |before| before.min(told.due_ms));
        if times.iter().any(|time| *time < earliest) || times.len() > 1 + usize::from(both) {
            return Err(format!("{number} came at {times:?}: {told:?}"));
        }
        if known(told.cancelled, told.cancelled_kept) {
            return Err(format!("{number} was cancelled and came at {times:?}: {told:?}"));
        }
    }
    Ok(())
}

fn check(end: &End<'_>, all: &[Told], rng: &mut Rng) -> Result<(), String> {
    let End { state, call, .. } = *end;
    let known = |done: u64, kept: u64| if state.is_kill() { done < call } else { kept < call };
    let look = |store: &Store| {
        on_time(store, all, call, &known)?;
        whole(store, all, call, &known)
    };
    let world = end.world()?;
    // Another process continues at another time, earlier or later.
    let times = [0, 1_600, 3_450, 6_000, 9_500].map(|after| BEGIN_MS + after);
    world.clock.set(rng.pick(&times).unwrap_or(BEGIN_MS));
    let (store, broker) = open(&world)?;
    deliver(&world, &store, world.clock.now_ms() + 50)?;
    on_time(&store, all, call, &known)?;
    if rng.below(ENDED_AGAIN_ONE_IN) > 0 {
        let outcome = all_comes(&world, &store, &broker, &look);
        drop(broker);
        abandon(&store);
        return outcome;
    }
    drop(broker);
    // The store crashes there once more, and the clock goes back.
    let next = World::on(State::chance(rng).image(&world.vfs)?.vfs);
    abandon(&store);
    next.clock.set(rng.pick(&times).unwrap_or(BEGIN_MS));
    let (store, broker) = open(&next)?;
    deliver(&next, &store, next.clock.now_ms())?;
    on_time(&store, all, call, &known)?;
    all_comes(&next, &store, &broker, &look)?;
    store.flush().map_err(explain)?;
    drop(broker);
    let last = World::on(State::all_old().image(&next.vfs)?.vfs);
    abandon(&store);
    last.clock.set(END_MS + 2_000);
    let (store, broker) = open(&last)?;
    deliver(&last, &store, END_MS + 3_000)?;
    let outcome = look(&store);
    drop(broker);
    abandon(&store);
    outcome
}

/// Delivers all waiting messages and checks them. A message that the timer puts back comes with the second
/// step.
fn all_comes(
    world: &World,
    store: &Store,
    broker: &Broker,
    look: &dyn Fn(&Store) -> Result<(), String>,
) -> Result<(), String> {
    deliver(world, store, END_MS)?;
    deliver(world, store, END_MS + 1_000)?;
    look(store)?;
    let left = broker.delay_counts().map_err(explain)?;
    if left.pending > 0 { Err(format!("{left:?} at the end")) } else { Ok(()) }
}

/// Whether every promised message came.
fn whole(store: &Store, all: &[Told], call: u64, known: &dyn Fn(u64, u64) -> bool) -> Result<(), String> {
    let came = came(store)?;
    for (number, told) in all.iter().enumerate() {
        let may_be_gone = told.begun < call && told.before_ms.is_none();
        if known(told.stored, told.kept) && !may_be_gone && !came.contains_key(&number) {
            return Err(format!("{number} never came: {told:?}"));
        }
    }
    Ok(())
}

/// Ends a session after each call that changes the disk.
pub(crate) fn hunt(step: usize, stop: &dyn Fn() -> bool) -> Result<u64, Violation> {
    let ends = Ends { name: "delays", replay: "d0-0".to_owned(), limits: LIMITS, step, stop };
    let world = ends.beside(begin)?;
    world.clock.set(BEGIN_MS);
    ends.each(&world, session, |end, all, rng| check(end, all, rng))
}

#[test]
fn a_delayed_message_comes_once_and_never_early() {
    let tried = crate::crashes::must_hold(hunt(crate::crashes::calls_step(), &|| false));
    println!("delays: {tried} states");
    assert!(tried > 300);
}
