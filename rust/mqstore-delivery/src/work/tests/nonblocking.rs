//! A work queue for callers that must not wait: messages in memory, and wakers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::nonblocking::TryResult;
use crate::testing::{corrupted_store, store_with_corrupt_queue};
use crate::work::TryPut;
use mqstore_base::wake_signal::{Signal, Waker};

fn no_call() -> Waker {
    Box::new(|| ())
}

/// Returns a waker, and a counter of its calls.
fn counted() -> (Waker, Arc<AtomicUsize>) {
    let made = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&made);
    let call = Box::new(move || {
        count.fetch_add(1, Ordering::SeqCst);
    });
    (call, made)
}

/// Acts like an event loop: polls, and lets a thread prepare, until it has messages or must wait.
fn looked(queue: &WorkQueue, count: usize) -> Result<Vec<LeasedMessage>, BrokerError> {
    for _ in 0..20 {
        match queue.try_get(count, true, Some(no_call()))? {
            TryResult::Found(found) => return Ok(found),
            TryResult::Prepare => queue.prepare(count)?,
            TryResult::Wait { .. } => return Ok(Vec::new()),
        }
    }
    panic!("a prepared message is never in memory");
}

/// Whether a caller that polls before `change` and waits after it is woken.
fn is_told(signal: &Arc<Signal>, change: impl FnOnce()) -> bool {
    let seen = signal.ring_count();
    change();
    signal.listen(seen, no_call()).is_none()
}

fn reserved(queue: &WorkQueue) -> crate::work::PutReservation {
    match queue.try_put(&[NewWork::default()], false, true, None).unwrap() {
        TryResult::Found(TryPut::Reserved(reservation, _)) => reservation,
        other => panic!("{other:?}"),
    }
}

#[test]
fn no_change_is_missed_between_a_look_and_its_wait() {
    let (_world, _store, broker) = SimStore::with_broker();
    let options = WorkQueueOptions { maxsize: 2, ..options() };
    let queue = broker.work_queue("jobs", "workers", options).unwrap();
    let (ready, room, done) = (&queue.core.ready, &queue.core.space, &queue.core.done);
    let reservation = reserved(&queue);
    assert!(is_told(room, || drop(reservation)));
    // The put reserved this space until it ended.
    assert!(is_told(room, || put_work(&queue, "a")));
    put_work(&queue, "b");
    let mut got = Vec::new();
    assert!(is_told(room, || got.push(get(&queue).unwrap())));
    assert!(is_told(room, || got.extend(looked(&queue, 1).unwrap())));
    let [first, second] = got.try_into().unwrap();
    assert!(is_told(done, || first.lease.ack(false).unwrap()));
    let mut given_back = None;
    assert!(is_told(ready, || given_back = Some(is_told(done, || second.lease.nack(None).unwrap()))));
    assert_eq!(given_back, Some(true));
}

#[test]
fn what_is_given_back_ends_a_wait_behind_a_shutdown_at_once() {
    let (_world, _store, _broker, queue) = opened();
    put_work(&queue, "a");
    let message = get(&queue).unwrap();
    queue.shutdown(true);
    let (call, made) = counted();
    let waiting = queue.try_join(true, Some(call)).unwrap();
    assert!(matches!(waiting, TryResult::Wait { .. }), "{waiting:?}");
    message.lease.nack(Some(seconds(5))).unwrap();
    queue.look_around();
    assert_eq!(made.load(Ordering::SeqCst), 1);
    assert!(matches!(queue.try_join(true, None).unwrap(), TryResult::Found(true)));
}

#[test]
fn room_that_nobody_rings_for_is_found() {
    let (_world, _store, broker) = SimStore::with_broker();
    let options = WorkQueueOptions { maxsize: 1, ..options() };
    let queue = broker.work_queue("jobs", "workers", options).unwrap();
    put_work(&queue, "a");
    let (call, made) = counted();
    let waiting = queue.try_put(&[NewWork::default()], true, true, Some(call)).unwrap();
    assert!(matches!(waiting, TryResult::Wait { .. }), "{waiting:?}");
    queue.look_around();
    assert_eq!(made.load(Ordering::SeqCst), 0);
    // The group is moved past the message.
    let meta = broker.meta();
    let progress = meta.progress(meta.queue_key("workers", "jobs", 0).unwrap());
    meta.append_progress(&progress, &[mqstore_meta::ProgressRecord::Moved { to: 1 }]).unwrap();
    queue.look_around();
    assert_eq!(made.load(Ordering::SeqCst), 1);
}

#[test]
fn of_what_is_due_the_first_is_always_prepared() {
    let world = SimStore::new();
    let store = world.try_open(&StoreOptions { segment_bytes: 8 << 20, ..small() }).unwrap();
    let broker = Broker::new(&store).unwrap();
    let queue = work(&broker);
    for fill in ["a", "b"] {
        put_work(&queue, &fill.repeat(1_200_000));
    }
    let [first, second] = queue.get_many(2, NOW).unwrap().try_into().unwrap();
    second.lease.nack(Some(Duration::ZERO)).unwrap();
    // The first prepare reads as much as it may.
    queue.prepare(2).unwrap();
    first.lease.nack(Some(Duration::ZERO)).unwrap();
    let found = looked(&queue, 2).unwrap();
    assert_eq!(body(&found[0])[..1], *"a");
}

#[test]
fn a_damaged_message_does_not_keep_others_from_who_looks() {
    let (world, store, broker) = SimStore::with_broker();
    let limits = WorkQueueOptions { max_attempts: Some(3), ..options() };
    let queue = broker.work_queue("jobs", "workers", limits.clone()).unwrap();
    let damaged = queue.put(&NewWork { body: &[b'x'; 50], ..NewWork::default() }, NOW).unwrap();
    put_work(&queue, "sound");
    let all = queue.get_many(2, NOW).unwrap();
    for message in &all {
        message.lease.nack(Some(Duration::ZERO)).unwrap();
    }
    drop((queue, broker, all));
    let store = corrupted_store(&world, &store, &damaged);
    let broker = Broker::new(&store).unwrap();
    let queue = broker.work_queue("jobs", "workers", limits).unwrap();
    assert!(matches!(looked(&queue, 1), Err(BrokerError::Store(StoreError::Corrupt { .. }))));
    // The message is hidden now, as if a worker had it.
    let sound = looked(&queue, 1).unwrap();
    assert_eq!(body(&sound[0]), "sound");
    sound[0].lease.ack(false).unwrap();
    world.clock.advance(seconds(31));
    assert!(looked(&queue, 1).is_err());
    world.clock.advance(seconds(31));
    assert!(looked(&queue, 1).unwrap().is_empty());
    assert!(queue.join(NOW).unwrap());
}

#[test]
fn an_error_behind_a_dead_letter_does_not_lose_it() {
    let world = SimStore::new();
    let store = world.open();
    store.create_topic("jobs", 2, &[]).unwrap();
    let broker = Broker::new(&store).unwrap();
    let limits = WorkQueueOptions { max_attempts: Some(1), ..options() };
    let queue = broker.work_queue("jobs", "workers", limits.clone()).unwrap();
    let damaged = put(&store, "jobs", 1, &"x".repeat(50), "T");
    put(&store, "jobs", 0, "poison", "T");
    assert_eq!(got(&queue), Some(("poison".into(), 1)));
    world.clock.advance(seconds(31));
    drop((queue, broker));
    let store = corrupted_store(&world, &store, &damaged);
    let broker = Broker::new(&store).unwrap();
    let queue = broker.work_queue("jobs", "workers", limits).unwrap();
    assert!(queue.get(NOW).is_err());
    let counts = queue.counts().unwrap();
    assert_eq!((counts.ready, counts.leased, counts.dying), (1, 0, 0));
}

#[test]
fn a_late_ack_is_no_error_for_who_gets_meanwhile() {
    let (world, _store, _broker, queue) = opened();
    let begin = std::sync::Barrier::new(2);
    for round in 0..3000 {
        put_work(&queue, &round.to_string());
        let late = get(&queue).unwrap();
        world.clock.advance(seconds(31));
        let again = std::thread::scope(|scope| {
            scope.spawn(|| {
                begin.wait();
                let outcome = late.lease.ack(false);
                assert!(outcome.is_ok() || is_lost(&outcome), "{outcome:?}");
            });
            begin.wait();
            get(&queue)
        });
        if let Some(again) = again {
            again.lease.ack(false).unwrap();
        }
    }
}

#[test]
fn a_queue_that_cannot_be_read_does_not_keep_others_from_being_read() {
    for (bad, at_once) in [(0, false), (1, false), (0, true), (1, true)] {
        let world = SimStore::new();
        let store = store_with_corrupt_queue(&world, bad, &["a", "b", "c"]);
        let broker = Broker::new(&store).unwrap();
        let queue = broker.work_queue("jobs", "workers", options()).unwrap();
        let next = || if at_once { looked(&queue, 1) } else { queue.get_many(1, NOW) };
        for text in ["a", "b", "c"] {
            let found = next().unwrap();
            assert_eq!(body(&found[0]), text, "damage in queue {bad}, at once: {at_once}");
            found[0].lease.ack(false).unwrap();
        }
        // No other message is left: each poll returns the error.
        for _ in 0..2 {
            assert!(matches!(next(), Err(BrokerError::Store(StoreError::Corrupt { .. }))));
        }
        let notes = store.user_notes().take_lines();
        let named = format!("cannot read queue jobs/{bad}; other queues continue");
        assert_eq!(notes.iter().filter(|note| note.contains(&named)).count(), 1, "{notes:?}");
        put(&store, "jobs", 1 - bad, "late", "T");
        assert_eq!(next().unwrap().len(), 1);
        assert_eq!(store.user_notes().take_lines(), [""; 0]);
    }
}

#[test]
fn room_is_given_back_while_somebody_reads() {
    let (_world, _store, broker) = SimStore::with_broker();
    let limits = WorkQueueOptions { maxsize: 1, ..options() };
    let queue = broker.work_queue("jobs", "workers", limits).unwrap();
    let reservation = reserved(&queue);
    assert!(matches!(queue.try_put(&[NewWork::default()], false, true, None), Err(BrokerError::Full { .. })));
    let reading = queue.core.state.lock();
    drop(reservation);
    drop(reading);
    drop(reserved(&queue));
}
