//! Random use, random stops, a clock that jumps: every message that survives is delivered once and on time.

use std::collections::{BTreeMap, BTreeSet};

use mqstore_format::properties::{TIMER_DEL_UNIQKEY, TIMER_ROLL_TIMES};
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Act {
    /// This number of messages, due within this number of milliseconds.
    Later(u8, u32),
    Level(u8),
    Cancel(usize),
    Flush,
    Step,
    Wait(u32),
    /// The wall clock changes by this number of milliseconds, forward or back.
    Jump(i32),
    Close,
    Kill,
    PowerLoss(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (1..6_u8, 0..5_000_u32).prop_map(|(count, within)| Act::Later(count, within)),
        2 => (1..4_u8, 0..400_000_000_u32).prop_map(|(count, within)| Act::Later(count, within)),
        1 => (1..4_u8).prop_map(Act::Level),
        2 => any::<prop::sample::Index>().prop_map(|index| Act::Cancel(index.index(1000))),
        1 => Just(Act::Flush),
        4 => Just(Act::Step),
        5 => (0..3_000_u32).prop_map(Act::Wait),
        1 => (0..400_000_000_u32).prop_map(Act::Wait),
        1 => (-200_000..200_000_i32).prop_map(Act::Jump),
        1 => Just(Act::Close),
        1 => Just(Act::Kill),
        2 => any::<u64>().prop_map(Act::PowerLoss),
    ]
}

/// Checks that each message in the log was delivered once, or was cancelled, and that none was early.
pub(super) fn check(store: &Store) -> Result<(), String> {
    let mut cursor = store.log().scan(None).unwrap();
    let (mut due, mut cancelled) = (BTreeMap::new(), BTreeSet::new());
    let mut delivered: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    let mut text_at: BTreeMap<u64, String> = BTreeMap::new();
    loop {
        let records = cursor.next_batch(1000).unwrap();
        if records.is_empty() {
            break;
        }
        for record in &records {
            let view = record.view().unwrap();
            let text = body(record);
            if view.topic == "t" {
                delivered.entry(text).or_default().push(view.store_timestamp);
            } else if view.properties.get(TIMER_DEL_UNIQKEY).is_some() {
                let origin: u64 = view.properties.get(TIMER_ORIGIN_OFFSET).unwrap().parse().unwrap();
                cancelled.insert(text_at[&origin].clone());
            } else {
                text_at.insert(record.commit_log_offset, text.clone());
                let deliver = view.properties.get(TIMER_DELIVER_MS).map(|due| due.parse::<i64>().unwrap());
                if view.properties.get(TIMER_ROLL_TIMES).is_none() {
                    due.insert(text, deliver.unwrap_or(i64::MIN));
                }
            }
        }
    }
    for (text, due_ms) in &due {
        let times = delivered.get(text).cloned().unwrap_or_default();
        let wanted = usize::from(!cancelled.contains(text));
        if times.len() != wanted {
            return Err(format!("{text}: delivered {times:?}, {wanted} wanted"));
        }
        if times.iter().any(|time| time < due_ms) {
            return Err(format!("{text}: due at {due_ms}, delivered at {times:?}"));
        }
    }
    Ok(())
}

/// Advances the clock until all waiting messages are delivered.
pub(super) fn finish(world: &SimStore) -> Result<(), String> {
    let store = world.open();
    let broker = broker(&store);
    let days = world.clock.now_ms().max(BEGIN_MS + 30 * 86_400_000);
    world.clock.set(days);
    for _ in 0..40 {
        pass(world, &store, 12 * 3_600_000, 12 * 3_600_000);
    }
    let pending = broker.delay_counts().unwrap().pending;
    let checked = check(&store);
    store.close().unwrap();
    checked?;
    if pending == 0 { Ok(()) } else { Err(format!("{pending} counted as waiting")) }
}

fn run(acts: &[Act]) -> Result<(), String> {
    let mut world = SimStore::new();
    let mut open = None::<(Store, Broker)>;
    let mut ids: Vec<String> = Vec::new();
    let mut number = 0;
    for act in acts {
        let (store, broker) = open.get_or_insert_with(|| {
            let store = world.open();
            let broker = broker(&store);
            (store, broker)
        });
        match act {
            Act::Later(count, within) => {
                for each in 0..*count {
                    let due = world.clock.now_ms() + i64::from(*within) / i64::from(each + 1) + 1;
                    number += 1;
                    let done = later(broker, "t", &number.to_string(), Due::At(due));
                    ids.push(done.unique_id.as_str().to_owned());
                }
            }
            Act::Level(level) => {
                number += 1;
                later(broker, "t", &number.to_string(), Due::Level(i32::from(*level)));
            }
            Act::Cancel(which) if !ids.is_empty() => {
                broker.cancel(&ids[which % ids.len()]).unwrap();
            }
            Act::Cancel(_) => {}
            Act::Flush => store.flush().unwrap(),
            Act::Step => store.step().unwrap(),
            Act::Wait(ms) => advance(&world.clock, (*ms).into()),
            Act::Jump(ms) => world.clock.set(world.clock.now_ms() + i64::from(*ms)),
            Act::Close => {
                store.close().unwrap();
                open = None;
            }
            Act::Kill => {
                let vfs = world.vfs.kill().unwrap();
                open = None;
                world.vfs = vfs;
            }
            Act::PowerLoss(seed) => {
                let vfs = world.vfs.crash(*seed).unwrap();
                open = None;
                world.vfs = vfs;
            }
        }
    }
    if let Some((store, broker)) = open {
        store.close().unwrap();
        drop(broker);
    }
    finish(&world)
}

/// A message is overdue while a later one is too far ahead for the wheel, and then it is cancelled.
#[test]
fn a_cancellation_after_a_record_beyond_the_wheel_counts() {
    let days = |count: u32| Act::Wait(count * 86_400_000);
    let acts = [
        Act::Later(2, 0),
        Act::Step,
        Act::Later(1, 1_000),
        days(4),
        days(4),
        days(4),
        Act::Later(1, 2 * 86_400_000 + 10_000_000),
        Act::Cancel(2),
    ];
    run(&acts).unwrap();
    let acts = [
        Act::Later(2, 0),
        Act::Level(1),
        Act::Wait(264_549_505),
        Act::Wait(214_571_338),
        Act::Later(3, 0),
        Act::Later(3, 0),
        Act::Wait(348_239_275),
        Act::Wait(382_237_267),
        Act::Later(3, 2_615),
        Act::Later(1, 0),
        Act::Cancel(12),
    ];
    for last in [Act::Step, Act::Flush, Act::Close, Act::Kill, Act::PowerLoss(1)] {
        run(&[&acts[..], &[last]].concat()).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn what_survives_comes_once_and_never_early(acts in prop::collection::vec(act(), 1..60)) {
        run(&acts).map_err(TestCaseError::fail)?;
    }

    /// As above, after thirteen days in which nothing was delivered: new messages may be beyond the wheel.
    #[test]
    fn what_survives_a_long_rest_comes_once(acts in prop::collection::vec(act(), 1..30)) {
        let rest = [Act::Later(3, 3_000), Act::Level(1), Act::Later(2, 400_000_000)];
        let days = [400_000_000, 400_000_000, 330_000_000].map(Act::Wait);
        run(&[&rest[..], &days, &acts].concat()).map_err(TestCaseError::fail)?;
    }
}
