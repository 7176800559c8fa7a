//! Random transactions with kills, power losses and clocks that jump. Messages of a committed transaction are visible
//! once and completely, other messages never, and pending transactions are found.

use std::collections::{BTreeMap, BTreeSet};

use mqstore_io::sim::CrashChoice;
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Act {
    Begin,
    Append(usize, u8),
    Commit(usize, bool),
    RollBack(usize),
    GiveUp(usize),
    Plain,
    Flush,
    Step(u8),
    Clock(i64),
    Close,
    Kill,
    Power(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => Just(Act::Begin),
        8 => (0..4_usize, 0..3_u8).prop_map(|(which, topic)| Act::Append(which, topic)),
        4 => (0..4_usize, any::<bool>()).prop_map(|(which, durable)| Act::Commit(which, durable)),
        2 => (0..4_usize).prop_map(Act::RollBack),
        1 => (0..4_usize).prop_map(Act::GiveUp),
        2 => Just(Act::Plain),
        1 => Just(Act::Flush),
        3 => (0..3_u8).prop_map(Act::Step),
        2 => (-90_000..90_000_i64).prop_map(Act::Clock),
        1 => Just(Act::Close),
        2 => Just(Act::Kill),
        2 => any::<u64>().prop_map(Act::Power),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Open,
    /// The outcome, and whether it is durable.
    Ended(TransactionOutcome, bool),
}

#[derive(Clone, Debug)]
struct Known {
    messages: Vec<(String, String)>,
    fate: Fate,
    asked: u32,
}

const TOPICS: [&str; 3] = ["a", "b", "c"];
const OPTIONS: CheckOptions =
    CheckOptions { after: Duration::from_secs(6), interval: Duration::from_secs(30), max: 3 };

/// Opens the store again. The clock may show an earlier time on the same machine; without this loop, unique keys that
/// are in use would be made again.
fn again(world: &SimStore, made: usize) -> (Store, (Broker, Transactions)) {
    let store = world.open();
    for _ in 0..made {
        store.system_appends().new_unique_key().unwrap();
    }
    let engine = broker(&store);
    (store, engine)
}

/// Compares the visible messages and the pending transactions with the expected ones.
fn check(
    store: &Store,
    transactions: &Transactions,
    known: &BTreeMap<String, Known>,
) -> Result<(), TestCaseError> {
    let mut wanted: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for one in known.values() {
        for (topic, body) in &one.messages {
            match one.fate {
                Fate::Ended(TransactionOutcome::Committed, _) => {
                    wanted.entry(topic).or_default().insert(body)
                }
                Fate::Ended(TransactionOutcome::Discarded, _) => {
                    wanted.entry(CHECK_MAX_TIME_TOPIC).or_default().insert(body)
                }
                _ => true,
            };
        }
    }
    for topic in TOPICS.into_iter().chain([CHECK_MAX_TIME_TOPIC]) {
        let found = seen(store, topic);
        let set: BTreeSet<&str> = found.iter().map(String::as_str).collect();
        prop_assert_eq!(set.len(), found.len(), "{} twice: {:?}", topic, found);
        prop_assert_eq!(&set, &wanted.remove(topic).unwrap_or_default(), "{}", topic);
    }
    let pending: BTreeSet<String> = transactions.pending().into_iter().map(|pending| pending.id).collect();
    let open: BTreeSet<String> = known
        .iter()
        .filter(|(_, one)| one.fate == Fate::Open && !one.messages.is_empty())
        .map(|(id, _)| id.clone())
        .collect();
    prop_assert_eq!(pending, open);
    Ok(())
}

/// Adjusts the expectation after a power loss, which may undo changes that were not durable.
fn adjust(
    store: &Store,
    transactions: &Transactions,
    known: &mut BTreeMap<String, Known>,
) -> Result<(), TestCaseError> {
    let pending: BTreeMap<String, usize> =
        transactions.pending().into_iter().map(|pending| (pending.id, pending.messages)).collect();
    let mut seen_now: BTreeSet<String> = BTreeSet::new();
    for topic in TOPICS.into_iter().chain([CHECK_MAX_TIME_TOPIC]) {
        seen_now.extend(seen(store, topic));
    }
    for (id, one) in known.iter_mut() {
        let there = one.messages.iter().filter(|(_, body)| seen_now.contains(body)).count();
        prop_assert!(there == 0 || there == one.messages.len(), "{}: {} of {:?}", id, there, one);
        match one.fate {
            Fate::Ended(_, true) => {}
            _ if there > 0 => {}
            _ => match pending.get(id) {
                Some(count) => {
                    one.messages.truncate(*count);
                    one.fate = Fate::Open;
                }
                // Its half messages are lost, or the rollback is in the log.
                None if one.fate != Fate::Ended(TransactionOutcome::RolledBack, false) => {
                    one.messages.clear();
                }
                None => {}
            },
        }
        if let Fate::Ended(outcome, _) = one.fate {
            one.fate = Fate::Ended(outcome, true);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn all_or_nothing_whatever_comes(acts in prop::collection::vec(act(), 1..60)) {
        let mut world = SimStore::new();
        let mut store = world.open();
        for topic in TOPICS {
            store.create_topic(topic, 1, &[]).unwrap();
        }
        store.flush().unwrap();
        let mut engine = broker(&store);
        let mut known: BTreeMap<String, Known> = BTreeMap::new();
        let mut held: Vec<Transaction> = Vec::new();
        let mut number = 0;
        for act in acts.into_iter().chain([Act::Kill, Act::Close]) {
            match act {
                Act::Begin => {
                    let transaction = engine.1.begin(GROUP).unwrap();
                    let fresh = Known { messages: Vec::new(), fate: Fate::Open, asked: 0 };
                    known.insert(transaction.id().to_owned(), fresh);
                    held.push(transaction);
                }
                Act::Append(which, topic) => {
                    let Some(transaction) = held.get(which) else { continue };
                    number += 1;
                    let (topic, body) = (TOPICS[topic as usize], format!("m{number}"));
                    add(transaction, topic, &body);
                    known.get_mut(transaction.id()).unwrap().messages.push((topic.to_owned(), body));
                }
                Act::Commit(which, durable) if which < held.len() => {
                    let transaction = held.remove(which);
                    transaction.commit(durable).unwrap();
                    known.get_mut(transaction.id()).unwrap().fate = Fate::Ended(TransactionOutcome::Committed, durable);
                }
                Act::RollBack(which) if which < held.len() => {
                    let transaction = held.remove(which);
                    transaction.rollback(false).unwrap();
                    known.get_mut(transaction.id()).unwrap().fate = Fate::Ended(TransactionOutcome::RolledBack, false);
                }
                Act::GiveUp(which) if which < held.len() => drop(held.remove(which)),
                Act::Commit(..) | Act::RollBack(_) | Act::GiveUp(_) => {}
                Act::Plain => {
                    crate::testing::put(&store, "plain", 0, "x", "T");
                }
                Act::Flush => {
                    store.flush().unwrap();
                    for one in known.values_mut() {
                        if let Fate::Ended(outcome, _) = one.fate {
                            one.fate = Fate::Ended(outcome, true);
                        }
                    }
                }
                Act::Step(answer) => {
                    store.step().unwrap();
                    let pending = engine.1.take_due(GROUP, &OPTIONS, world.clock.now_ms(), 2).unwrap();
                    for one in pending {
                        let known = known.get_mut(&one.id).unwrap();
                        known.asked += 1;
                        prop_assert!(!held.iter().any(|held| held.id() == one.id));
                        prop_assert!(one.checks <= OPTIONS.max);
                        let (answer, fate) = match answer {
                            0 => (CheckAnswer::Commit, Fate::Ended(TransactionOutcome::Committed, false)),
                            1 => (CheckAnswer::Rollback, Fate::Ended(TransactionOutcome::RolledBack, false)),
                            _ => (CheckAnswer::Unknown, Fate::Open),
                        };
                        engine.1.answer(&one.id, answer).unwrap();
                        known.fate = fate;
                    }
                    for note in store.user_notes().take_lines() {
                        let (_, one) = known.iter_mut().find(|(id, _)| note.contains(id.as_str())).unwrap();
                        prop_assert!(one.asked >= OPTIONS.max);
                        one.fate = Fate::Ended(TransactionOutcome::Discarded, false);
                    }
                    engine.1.record_progress(answer == 2).unwrap();
                }
                Act::Clock(by) => world.clock.set(world.clock.now_ms() + by),
                Act::Close => {
                    held.clear();
                    store.close().unwrap();
                    drop(engine);
                    (store, engine) = again(&world, number + known.len());
                    for one in known.values_mut() {
                        if let Fate::Ended(outcome, _) = one.fate {
                            one.fate = Fate::Ended(outcome, true);
                        }
                    }
                }
                Act::Kill => {
                    let after = SimStore { vfs: world.vfs.kill().unwrap(), clock: world.clock.clone() };
                    held.clear();
                    drop(engine);
                    store.disown_in_child();
                    world = after;
                    (store, engine) = again(&world, number + known.len());
                }
                Act::Power(seed) => {
                    let mut word = seed | 1;
                    let after = world.vfs.crash_as(true, &mut |_: CrashChoice, forms| {
                        word = word.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23) ^ seed;
                        (word % u64::from(forms)) as u32
                    });
                    let after = SimStore { vfs: after.unwrap(), clock: world.clock.clone() };
                    held.clear();
                    drop(engine);
                    store.disown_in_child();
                    world = after;
                    (store, engine) = again(&world, number + known.len());
                    adjust(&store, &engine.1, &mut known)?;
                }
            }
            check(&store, &engine.1, &known)?;
        }
    }
}
