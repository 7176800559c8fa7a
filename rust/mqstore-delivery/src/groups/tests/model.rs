//! Random consumers that join, leave, poll and commit: every message below a commit was handed out, and queues keep
//! their order.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const QUEUES: i32 = 3;

#[derive(Clone, Debug)]
enum Act {
    Append(u8),
    Join(bool),
    Leave(usize),
    Poll(usize, usize),
    Next(usize),
    Commit(usize),
    Grow,
}

fn act() -> impl Strategy<Value = Act> {
    let who = || 0..4_usize;
    prop_oneof![
        3 => (1..9_u8).prop_map(Act::Append),
        2 => any::<bool>().prop_map(Act::Join),
        1 => who().prop_map(Act::Leave),
        4 => (who(), 1..9_usize).prop_map(|(who, max)| Act::Poll(who, max)),
        3 => who().prop_map(Act::Next),
        3 => who().prop_map(Act::Commit),
        1 => Just(Act::Grow),
    ]
}

/// For each queue of a consumer, the last offset that was handed out to it.
type Given = BTreeMap<i32, i64>;

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost(acts in prop::collection::vec(act(), 1..60)) {
        let world = SimStore::new();
        let store = world.open();
        store.create_topic("t", QUEUES as u32, &[]).unwrap();
        let broker = Broker::new(&store).unwrap();
        let mut consumers: Vec<(Consumer, Given)> = Vec::new();
        let (mut sent, mut queues) = (0, QUEUES);
        // The offsets that were handed out, by queue.
        let mut given: BTreeMap<i32, std::collections::BTreeSet<i64>> = BTreeMap::new();
        for act in acts {
            match act {
                Act::Append(count) => {
                    fill(&store, "t", queues, sent..sent + usize::from(count));
                    sent += usize::from(count);
                }
                Act::Join(ordered) => {
                    let options = ConsumerOptions { ordered, ..options() };
                    consumers.push((broker.consumer("g", &["t"], options).unwrap(), Given::new()));
                }
                Act::Leave(who) if who < consumers.len() => drop(consumers.swap_remove(who)),
                Act::Poll(..) | Act::Next(_) => {
                    let (who, max) = match act {
                        Act::Poll(who, max) => (who, Some(max)),
                        Act::Next(who) => (who, None),
                        _ => unreachable!(),
                    };
                    let Some((consumer, last)) = consumers.get_mut(who) else { continue };
                    let own = consumer.assignment().unwrap();
                    last.retain(|queue_id, _| own.contains(&queue("t", *queue_id)));
                    let found = match max {
                        Some(max) => poll(consumer, max),
                        None => consumer.next_once(Duration::ZERO).unwrap().into_iter().collect(),
                    };
                    for record in found {
                        let view = record.view().unwrap();
                        prop_assert!(own.contains(&queue("t", view.queue_id)));
                        given.entry(view.queue_id).or_default().insert(record.queue_offset);
                        if let Some(before) = last.insert(view.queue_id, record.queue_offset) {
                            // If the consumer lost the queue and got it back, it starts again at the group's offset.
                            prop_assert!(record.queue_offset == before + 1 || record.queue_offset <= before);
                        }
                    }
                }
                Act::Commit(who) => {
                    if let Some((consumer, _)) = consumers.get(who) {
                        consumer.commit(false).unwrap();
                    }
                }
                Act::Leave(_) => {}
                Act::Grow => {
                    queues = (queues + 1).min(6);
                    store.create_topic("t", queues as u32, &[]).unwrap();
                    world.clock.advance(Duration::from_secs(1));
                }
            }
            for queue_id in 0..queues {
                let key = broker.meta().queue_key("g", "t", queue_id).unwrap();
                let committed = broker.meta().offset(key).unwrap_or(0);
                let seen = given.get(&queue_id).map_or(0, |seen| seen.range(..committed).count() as i64);
                prop_assert_eq!(seen, committed, "queue {}: committed and never given", queue_id);
            }
        }
        // A new consumer gets all messages that were not committed.
        consumers.clear();
        let last = consumer(&broker, "g", "t");
        for record in poll(&last, usize::MAX) {
            given.entry(record.view().unwrap().queue_id).or_default().insert(record.queue_offset);
        }
        prop_assert_eq!(given.values().map(std::collections::BTreeSet::len).sum::<usize>(), sent);
    }
}
