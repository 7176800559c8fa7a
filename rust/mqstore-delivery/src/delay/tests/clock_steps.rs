//! The clock steps before the timer has read a message: the message is still due at its millisecond.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[test]
fn a_message_that_is_due_before_the_timer_reads_it_is_due_at_its_millisecond() {
    let world = SimStore::new();
    let store = world.open();
    let broker = broker(&store);
    later(&broker, "t", "first", Due::At(BEGIN_MS + 1));
    pass(&world, &store, 5_000, 500);
    // The timer does no step between these two times.
    advance(&world.clock, 6_000);
    later(&broker, "t", "next", Due::At(BEGIN_MS + 11_001));
    advance(&world.clock, 500);
    assert_eq!(broker.delay_counts().unwrap().next_due_ms, Some(BEGIN_MS + 11_001));
    store.step().unwrap();
    assert_eq!(bodies(&read(&store, "t")), ["first", "next"]);
    assert_eq!(broker.delay_counts().unwrap().late_max_ms, 499);
}

#[derive(Clone, Debug)]
enum Act {
    Later(u32),
    Wait(u32),
    Jump(i32),
    Counts,
    Flush,
    Step,
    Reopen,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        5 => (0..3_000_u32).prop_map(Act::Later),
        2 => Just(Act::Later(0)),
        3 => (0..2_500_u32).prop_map(Act::Wait),
        2 => prop::sample::select(vec![1_u32, 499, 500, 999, 1000, 2000]).prop_map(Act::Wait),
        1 => (-4_000..4_000_i32).prop_map(Act::Jump),
        2 => Just(Act::Counts),
        1 => Just(Act::Flush),
        4 => Just(Act::Step),
        1 => Just(Act::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn after_a_step_no_due_message_waits(acts in prop::collection::vec(act(), 1..60)) {
        let world = SimStore::new();
        let mut store = world.open();
        let mut broker = broker(&store);
        let mut dues: BTreeMap<String, i64> = BTreeMap::new();
        for act in acts.iter().chain([&Act::Wait(4_000), &Act::Step]) {
            match act {
                Act::Later(within) => {
                    let due = world.clock.now_ms() + i64::from(*within) + 1;
                    let text = dues.len().to_string();
                    later(&broker, "t", &text, Due::At(due));
                    dues.insert(text, due);
                }
                Act::Wait(ms) => advance(&world.clock, (*ms).into()),
                Act::Jump(ms) => world.clock.set(world.clock.now_ms() + i64::from(*ms)),
                Act::Counts => {
                    let waiting = broker.delay_counts().unwrap();
                    let come = bodies(&read(&store, "t"));
                    let first = dues.iter().filter(|(text, _)| !come.contains(text)).map(|(_, due)| *due).min();
                    let near = first.filter(|due| *due <= world.clock.now_ms() + 1_000);
                    prop_assert!(near.is_none() || waiting.next_due_ms == near, "{near:?} {waiting:?}");
                }
                Act::Flush => store.flush().unwrap(),
                Act::Step => {
                    store.step().unwrap();
                    let come = bodies(&read(&store, "t"));
                    let now = world.clock.now_ms();
                    for (text, due) in &dues {
                        prop_assert!(come.contains(text) || *due > now, "{text} was due at {due}, it is {now}");
                    }
                }
                Act::Reopen => {
                    store.close().unwrap();
                    store = world.open();
                    broker = super::broker(&store);
                }
            }
        }
        store.close().unwrap();
        drop(broker);
    }
}
