//! Transactions, interrupted at any call. Either all messages of a transaction are present, once each, or
//! none. A decision does not change. A transaction without a decision is found and can be decided.

use std::collections::{BTreeMap, BTreeSet};

use mqstore_base::options::{Durability, OpenMode, StoreOptions};
use mqstore_delivery::{Broker, CheckAnswer, NewHalfMessage, TransactionOutcome, Transactions};
use mqstore_engine::Store;

use crate::check::abandon;
use crate::explore::Violation;
use crate::moments::{End, Ends};
use crate::states::{Limits, Rng, State};
use crate::workload::{World, explain, tiny};

const TOPICS: [&str; 2] = ["left", "right"];
const LIMITS: Limits = Limits { all_up_to: 8, singles: 3, random: 2, cuts: 1 };
const NEVER: u64 = u64::MAX;

/// The outcome of each transaction of a session, in order, and whether it is durable when the call returns.
const PLAN: [(usize, Option<TransactionOutcome>, bool); 6] = [
    (2, Some(TransactionOutcome::Committed), true),
    (3, Some(TransactionOutcome::Committed), false),
    (2, Some(TransactionOutcome::RolledBack), false),
    (2, None, false),
    (1, Some(TransactionOutcome::RolledBack), true),
    (4, Some(TransactionOutcome::Committed), false),
];

/// One transaction, with the number of file-system calls at each promise about it.
#[derive(Clone, Debug)]
struct Told {
    id: String,
    bodies: Vec<String>,
    outcome: Option<TransactionOutcome>,
    stored: u64,
    /// From this call on, the half messages are durable.
    kept: u64,
    begun: u64,
    decided: u64,
    durable: u64,
}

fn options() -> StoreOptions {
    tiny(Durability::Async)
}

fn open(world: &World) -> Result<(Store, Transactions), String> {
    let store = world.open(OpenMode::ReadWrite, &options()).map_err(explain)?;
    let transactions = Broker::new(&store).and_then(|broker| broker.transactions()).map_err(explain)?;
    Ok((store, transactions))
}

fn session(world: &World) -> Result<Vec<Told>, String> {
    let (store, transactions) = open(world)?;
    let mut all = Vec::new();
    for (number, (count, outcome, durable)) in PLAN.into_iter().enumerate() {
        let transaction = transactions.begin("shop").map_err(explain)?;
        let bodies: Vec<_> = (0..count).map(|part| format!("{number}.{part} {}", "x".repeat(150))).collect();
        for (part, body) in bodies.iter().enumerate() {
            let new = NewHalfMessage {
                topic: TOPICS[part % 2],
                body: body.as_bytes(),
                ..NewHalfMessage::default()
            };
            transaction.append(&NewHalfMessage { queue_id: Some(0), ..new }).map_err(explain)?;
        }
        let mut told = Told {
            id: transaction.id().to_owned(),
            bodies,
            outcome,
            stored: world.vfs.operations(),
            kept: NEVER,
            begun: NEVER,
            decided: NEVER,
            durable: NEVER,
        };
        if number == 1 {
            store.flush().map_err(explain)?;
            told.kept = world.vfs.operations();
        }
        if let Some(outcome) = outcome {
            told.begun = world.vfs.operations();
            let ended = match outcome {
                TransactionOutcome::Committed => transaction.commit(durable),
                _ => transaction.rollback(durable),
            };
            ended.map_err(explain)?;
            told.decided = world.vfs.operations();
            if durable {
                told.durable = told.decided;
            }
        }
        all.push(told);
        match number {
            1 => {
                transactions.record_progress(true).map_err(explain)?;
                // The recorded progress may reach the disk before the log does.
                let meta = store.meta().map_err(explain)?;
                meta.sync(meta.place()).map_err(explain)?;
            }
            2 => {
                store.flush().map_err(explain)?;
                all.iter_mut()
                    .filter(|told: &&mut Told| told.decided < NEVER && told.durable == NEVER)
                    .for_each(|told| {
                        told.durable = world.vfs.operations();
                    });
                transactions.record_progress(false).map_err(explain)?;
            }
            4 => store.step().map_err(explain)?,
            _ => {}
        }
    }
    transactions.record_progress(true).map_err(explain)?;
    abandon(&store);
    Ok(all)
}

fn begin() -> Result<World, String> {
    let world = World::new(false);
    let store = world.open(OpenMode::Create, &options()).map_err(explain)?;
    for topic in TOPICS {
        store.create_topic(topic, 1, &[]).map_err(explain)?;
    }
    Broker::new(&store).and_then(|broker| broker.transactions()).map_err(explain)?;
    store.close().map_err(explain)?;
    Ok(world)
}

/// How often each body is seen.
fn seen(store: &Store) -> Result<BTreeMap<String, usize>, String> {
    let mut found = BTreeMap::new();
    for topic in TOPICS {
        let mut cursor = store.read(topic, 0, None, None, None).map_err(explain)?;
        loop {
            let records = cursor.next_batch(64).map_err(explain)?;
            if records.is_empty() {
                break;
            }
            for record in records {
                let body = record.view().map_err(explain)?.body.to_vec();
                *found.entry(String::from_utf8(body).map_err(explain)?).or_default() += 1;
            }
        }
    }
    Ok(found)
}

/// The transactions that are complete in their topics, and the pending ones.
fn look(store: &Store, transactions: &Transactions, all: &[Told]) -> Result<[BTreeSet<String>; 2], String> {
    let found = seen(store)?;
    if let Some((body, times)) = found.iter().find(|(_, times)| **times > 1) {
        return Err(format!("{body:.5} is there {times} times"));
    }
    let mut whole = BTreeSet::new();
    for told in all {
        let there = told.bodies.iter().filter(|body| found.contains_key(*body)).count();
        if there == told.bodies.len() {
            whole.insert(told.id.clone());
        } else if there > 0 {
            return Err(format!("{there} of {} messages of a transaction are there", told.bodies.len()));
        }
    }
    let pending = transactions.pending().into_iter().map(|pending| pending.id).collect();
    Ok([whole, pending])
}

fn check(end: &End<'_>, all: &[Told], rng: &mut Rng) -> Result<(), String> {
    let End { state, call, .. } = *end;
    let world = end.world()?;
    let (store, transactions) = open(&world)?;
    let [whole, pending] = look(&store, &transactions, all)?;
    for told in all {
        let (is_whole, is_pending) = (whole.contains(&told.id), pending.contains(&told.id));
        let known = if state.is_kill() { told.decided } else { told.durable };
        if is_whole
            && (is_pending || told.outcome != Some(TransactionOutcome::Committed) || told.begun >= call)
        {
            return Err(format!("{told:?} is to be seen"));
        }
        if known < call && (is_pending || is_whole != (told.outcome == Some(TransactionOutcome::Committed))) {
            return Err(format!("{told:?} was decided; whole {is_whole}, pending {is_pending}"));
        }
        if told.outcome != Some(TransactionOutcome::RolledBack)
            && told.kept < call
            && !is_pending
            && !is_whole
        {
            return Err(format!("{told:?} is neither to be seen nor found"));
        }
        if state.is_kill() && told.stored < call && told.begun >= call && !is_pending {
            return Err(format!("{told:?} was undecided and is not found"));
        }
    }
    // Everything that an open shows is durable. A later decision about the pending transactions is durable in
    // the same way.
    let next = World::on(State::chance(rng).image(&world.vfs)?.vfs);
    abandon(&store);
    let (store, transactions) = open(&next)?;
    let again = look(&store, &transactions, all)?;
    if again != [whole.clone(), pending.clone()] {
        return Err(format!("ended again: {again:?} is not {whole:?}, {pending:?}"));
    }
    for id in &pending {
        transactions.answer(id, CheckAnswer::Commit).map_err(explain)?;
    }
    store.flush().map_err(explain)?;
    let last = World::on(State::all_old().image(&next.vfs)?.vfs);
    abandon(&store);
    let (store, transactions) = open(&last)?;
    let found = seen(&store)?;
    let left = transactions.pending();
    abandon(&store);
    if !left.is_empty() || found.values().any(|times| *times > 1) {
        return Err(format!("after a commit of what was pending: {left:?} pending, {found:?}"));
    }
    Ok(())
}

/// Ends a session after each call that changes the disk.
pub(crate) fn hunt(step: usize, stop: &dyn Fn() -> bool) -> Result<u64, Violation> {
    let ends = Ends { name: "transactions", replay: "t0-0".to_owned(), limits: LIMITS, step, stop };
    let world = ends.beside(begin)?;
    ends.each(&world, session, |end, all, rng| check(end, all, rng))
}

#[test]
fn a_transaction_is_there_whole_or_not_at_all() {
    let tried = crate::crashes::must_hold(hunt(crate::crashes::calls_step(), &|| false));
    println!("transactions: {tried} states");
    assert!(tried > 300);
}
