//! Random work: every message is delivered until it is finished, never to two workers at a time, and dead letters are
//! exact.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::JobState;

const MOST: u32 = 3;

#[derive(Clone, Debug)]
enum Act {
    Put(u8, bool),
    Get(usize),
    Ack(usize),
    Nack(usize, u64),
    Extend(usize),
    Cancel(usize, bool),
    Wait(u64),
    /// Drops all handles and opens new ones.
    Reopen,
    Sweep,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (1..5_u8, any::<bool>()).prop_map(|(count, delayed)| Act::Put(count, delayed)),
        6 => (1..4_usize).prop_map(Act::Get),
        4 => (0..6_usize).prop_map(Act::Ack),
        3 => (0..6_usize, 0..40_u64).prop_map(|(which, delay)| Act::Nack(which, delay)),
        1 => (0..6_usize).prop_map(Act::Extend),
        2 => (0..40_usize, any::<bool>()).prop_map(|(which, by_id)| Act::Cancel(which, by_id)),
        3 => (1..40_u64).prop_map(Act::Wait),
        1 => Just(Act::Reopen),
        1 => Just(Act::Sweep),
    ]
}

/// The expected state of one message.
#[derive(Clone, Debug, Default)]
struct Known {
    attempts: u32,
    acked: bool,
    /// Its unique id, and its place.
    put: Option<(String, i32, i64)>,
    /// Earliest delivery, by the clock.
    from_ms: i64,
    /// End of the current lease.
    invisible_until_ms: Option<i64>,
}

fn now(world: &SimStore) -> i64 {
    mqstore_io::Clock::now_ms(&*world.clock)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_and_nothing_is_anybodys_twice(acts in prop::collection::vec(act(), 1..80)) {
        let world = SimStore::new();
        let store = world.open();
        store.create_topic("jobs", 2, &[]).unwrap();
        let broker = Broker::new(&store).unwrap();
        let options = WorkQueueOptions { max_attempts: Some(MOST), visibility_timeout: seconds(20), ..options() };
        let open = || broker.work_queue("jobs", "workers", options.clone()).unwrap();
        let mut queue = open();
        let mut known: BTreeMap<String, Known> = BTreeMap::new();
        let mut held: Vec<LeasedMessage> = Vec::new();
        for act in acts.into_iter().chain([Act::Reopen]) {
            match act {
                Act::Put(count, delayed) => {
                    for _ in 0..count {
                        let name = known.len().to_string();
                        let delay = delayed.then(|| seconds(10));
                        let from_ms = now(&world) + if delayed { 10_000 } else { 0 };
                        let put = queue.put(&NewWork { body: name.as_bytes(), delay, ..NewWork::default() }, NOW).unwrap();
                        let put = Some((put.unique_id.to_string(), put.queue_id, put.queue_offset));
                        known.insert(name, Known { put, from_ms, ..Known::default() });
                    }
                }
                Act::Get(count) => {
                    for message in queue.get_many(count, NOW).unwrap() {
                        let one = known.get_mut(&body(&message)).unwrap();
                        prop_assert!(!one.acked, "{} was finished", body(&message));
                        prop_assert!(one.from_ms <= now(&world), "{} is early", body(&message));
                        prop_assert!(one.invisible_until_ms.is_none_or(|until| until <= now(&world)), "two have it");
                        one.attempts += 1;
                        prop_assert_eq!(message.lease.attempt(), one.attempts);
                        prop_assert!(one.attempts <= MOST);
                        one.invisible_until_ms = Some(message.lease.invisible_until_ms());
                        prop_assert_eq!(message.lease.invisible_until_ms(), now(&world) + 20_000);
                        held.retain(|old| body(old) != body(&message));
                        held.push(message);
                    }
                }
                Act::Ack(which) | Act::Nack(which, _) | Act::Extend(which) if which < held.len() => {
                    let name = body(&held[which]);
                    let lease = held[which].lease.clone();
                    let one = known.get_mut(&name).unwrap();
                    // After its lease ended, the message may be a dead letter.
                    let over = one.invisible_until_ms.is_none_or(|until| until <= now(&world));
                    if !lease.is_held() {
                        prop_assert!(over);
                        let outcome = lease.ack(false);
                        prop_assert!(outcome.is_ok() || is_lost(&outcome));
                        held.remove(which);
                        continue;
                    }
                    let outcome = match act {
                        Act::Nack(_, delay) => lease.nack(Some(seconds(delay))),
                        Act::Extend(_) => lease.extend(seconds(25)),
                        _ => lease.ack(false),
                    };
                    prop_assert!(outcome.is_ok(), "{outcome:?}");
                    match act {
                        Act::Nack(_, delay) => {
                            one.from_ms = now(&world) + delay as i64 * 1000;
                            one.invisible_until_ms = None;
                            held.remove(which);
                        }
                        Act::Extend(_) => one.invisible_until_ms = Some(now(&world) + 25_000),
                        _ => {
                            one.acked = true;
                            held.remove(which);
                        }
                    }
                }
                Act::Ack(_) | Act::Nack(..) | Act::Extend(_) => {}
                Act::Cancel(which, by_id) => {
                    let Some(one) = known.get_mut(&which.to_string()) else { continue };
                    let (id, queue_id, offset) = one.put.clone().unwrap();
                    let outcome = if by_id { queue.cancel(&id) } else { queue.cancel_at("jobs", queue_id, offset) };
                    let leased = one.invisible_until_ms.is_some_and(|until| until > now(&world));
                    match outcome {
                        Ok(cancelled) => {
                            // A message that used up its attempts may be a dead letter.
                            prop_assert!(!leased || one.acked);
                            prop_assert!(cancelled || one.acked || one.attempts == MOST);
                            prop_assert!(!(cancelled && one.acked));
                            one.acked |= cancelled;
                        }
                        Err(error) => prop_assert!(leased && !one.acked, "{error}"),
                    }
                    let open = one.acked;
                    held.retain(|old| body(old) != which.to_string() || !open);
                }
                Act::Wait(time) => world.clock.advance(seconds(time)),
                Act::Reopen => {
                    held.clear();
                    drop(queue);
                    queue = open();
                }
                Act::Sweep => {
                    queue.join(NOW).unwrap();
                }
            }
            let (counts, delays) = (queue.counts().unwrap(), queue.delays().unwrap());
            let listed = crate::jobs(&store, &crate::JobRequest { topic: None, most: 1000, read: u64::MAX }).unwrap();
            let listed = listed.into_values().next().unwrap_or_default();
            // A lease that has ended counts as one until the next get.
            let ended = counts.leased - listed.counts.leased;
            let WorkQueueCounts { ready, leased, .. } = counts;
            prop_assert_eq!(listed.counts, WorkQueueCounts { ready: ready + ended, leased: leased - ended, ..counts });
            let states = [JobState::Ready, JobState::Delayed, JobState::Leased, JobState::Dying, JobState::Dead];
            let of = |state| listed.jobs.iter().filter(|job| job.state == state).count() as u64;
            prop_assert_eq!(
                states.map(of),
                [ready + ended, counts.delayed, leased - ended, counts.dying, counts.dead]
            );
            let open = known.values().filter(|one| !one.acked);
            prop_assert_eq!(
                counts.ready + counts.delayed + counts.leased + counts.dying + counts.dead,
                open.clone().count() as u64
            );
            prop_assert_eq!(counts.delayed, delays.len() as u64);
            // A message that used up its attempts becomes a dead letter without a delivery.
            let later = open.filter(|one| one.invisible_until_ms.is_none() && one.from_ms > now(&world));
            let mut later: Vec<_> = later.map(|one| (one.from_ms, one.attempts)).filter(|one| one.1 < MOST).collect();
            later.sort_unstable();
            let mut told: Vec<_> = delays.iter().map(|one| (one.due_ms, one.attempts)).filter(|one| one.1 < MOST).collect();
            told.sort_unstable();
            prop_assert_eq!(later, told);
        }
        // Until no message is left.
        for _ in 0..=MOST {
            world.clock.advance(seconds(3600));
            for message in queue.get_many(1000, NOW).unwrap() {
                let one = known.get_mut(&body(&message)).unwrap();
                one.attempts += 1;
                prop_assert_eq!(message.lease.attempt(), one.attempts);
                prop_assert!(!one.acked);
            }
        }
        prop_assert!(queue.join(NOW).unwrap());
        let mut dead = match store.read("%DLQ%workers", 0, None, None, None) {
            Ok(mut cursor) => cursor.next_batch(1000).unwrap().iter().map(body).collect(),
            Err(_) => Vec::new(),
        };
        dead.sort();
        let mut expected: Vec<_> = known.iter().filter(|(_, one)| !one.acked).map(|(name, _)| name.clone()).collect();
        expected.sort();
        prop_assert_eq!(dead, expected);
        prop_assert!(known.values().all(|one| one.acked || one.attempts == MOST));
    }
}
