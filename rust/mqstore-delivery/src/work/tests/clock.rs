//! A clock that was weeks ahead while messages were leased or returned, and was corrected since.

use mqstore_io::Clock;

use super::*;
use crate::testing::BEGIN_MS;

const WEEKS_MS: i64 = 21 * 86_400_000;

fn pass(world: &SimStore, ms: u64) {
    world.clock.advance(Duration::from_millis(ms));
}

/// Leases `a` for the default time and returns `b` for ten seconds, three weeks ahead, and corrects the clock.
fn corrected() -> (SimStore, mqstore_engine::Store, Broker, LeasedMessage) {
    let (world, store, broker, queue) = opened();
    put_work(&queue, "a");
    put_work(&queue, "b");
    world.clock.set(BEGIN_MS + WEEKS_MS);
    let kept = get(&queue).unwrap();
    get(&queue).unwrap().lease.nack(Some(seconds(10))).unwrap();
    world.clock.set(BEGIN_MS);
    (world, store, broker, kept)
}

/// Gets everything within a minute: the second, the body and the attempt.
fn within_a_minute(world: &SimStore, queue: &WorkQueue) -> Vec<(u64, String, u32)> {
    let mut all = Vec::new();
    for second in 0..60 {
        while let Some(message) = get(queue) {
            all.push((second, body(&message), message.lease.attempt()));
            message.lease.ack(false).unwrap();
        }
        pass(world, 1_000);
    }
    all
}

#[test]
fn leases_and_waits_do_not_last_for_weeks_after_the_clock_was_corrected() {
    let (world, _store, broker, _kept) = corrected();
    let again = within_a_minute(&world, &work(&broker));
    assert_eq!(again, [(10, "b".to_owned(), 2), (30, "a".to_owned(), 2)]);
}

#[test]
fn leases_and_waits_do_not_last_for_weeks_after_a_reopen_with_the_right_clock() {
    let (world, store, broker, kept) = corrected();
    drop((kept, broker));
    store.close().unwrap();
    drop(store);
    let store = world.open();
    let again = within_a_minute(&world, &work(&Broker::new(&store).unwrap()));
    assert_eq!(again, [(10, "b".to_owned(), 2), (30, "a".to_owned(), 2)]);
}

#[test]
fn the_worker_keeps_its_lease_when_the_clock_was_corrected() {
    let (world, _store, broker, kept) = corrected();
    let queue = work(&broker);
    assert!(get(&queue).is_none());
    pass(&world, 5_000);
    assert!(kept.lease.is_held());
    kept.lease.extend(seconds(20)).unwrap();
    pass(&world, 19_999);
    assert_eq!(got(&queue), Some(("b".to_owned(), 2)));
    assert_eq!(got(&queue), None);
    kept.lease.ack(false).unwrap();
    assert!(!kept.lease.is_held());
}

#[test]
fn a_clock_that_goes_back_makes_no_lease_shorter() {
    let world = SimStore::new();
    let store = world.open();
    let queue = work(&Broker::new(&store).unwrap());
    put_work(&queue, "a");
    get(&queue).unwrap();
    for back_ms in [1, 500, 5_000, 60_000] {
        pass(&world, 7_000);
        world.clock.set(world.clock.now_ms() - back_ms);
        assert_eq!(got(&queue), None, "the clock went back by {back_ms} ms");
    }
    // The lease began again at the last step.
    pass(&world, 29_999);
    assert_eq!(got(&queue), None);
    pass(&world, 1);
    assert_eq!(got(&queue), Some(("a".to_owned(), 2)));
}
