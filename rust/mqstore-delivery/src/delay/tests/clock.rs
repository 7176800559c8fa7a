//! A clock that was weeks ahead once. Store times never decrease, so until the clock gets there again, every record has
//! the store time of the last record from the future.

use super::*;

const WEEKS_MS: i64 = 21 * 86_400_000;

/// A store that delivered a message three weeks too early by its clock, which was corrected since.
fn corrected() -> (SimStore, Store, Broker) {
    let world = SimStore::new();
    let store = world.open();
    let broker = broker(&store);
    later(&broker, "other", "early", Due::At(BEGIN_MS + WEEKS_MS));
    world.clock.set(BEGIN_MS + WEEKS_MS);
    // The second step finds nothing to deliver and passes the slots before the clock.
    (0..2).for_each(|_| store.step().unwrap());
    assert_eq!(bodies(&read(&store, "other")), ["early"]);
    world.clock.set(BEGIN_MS);
    store.step().unwrap();
    (world, store, broker)
}

/// Appends a message that was made now.
fn made_now(broker: &Broker, text: &str, due: Due) {
    let properties = encode_properties(["k"], Some("T"), None, []).unwrap();
    let message = NewMessage { born_timestamp_ms: None, ..message("t", text, &properties) };
    broker.append_later(&[(message, due)]).unwrap();
}

#[test]
fn a_delay_level_is_neither_early_nor_weeks_late_after_the_clock_was_corrected() {
    let (world, store, broker) = corrected();
    // Level 5 is a minute, level 18 two hours.
    made_now(&broker, "minute", Due::Level(5));
    made_now(&broker, "hours", Due::Level(18));
    pass(&world, &store, 59_999, 59_999);
    assert!(read(&store, "t").is_empty());
    pass(&world, &store, 1, 1);
    assert_eq!(bodies(&read(&store, "t")), ["minute"]);
    pass(&world, &store, 7_139_999, 7_139_999);
    assert_eq!(bodies(&read(&store, "t")), ["minute"]);
    pass(&world, &store, 1, 1);
    assert_eq!(bodies(&read(&store, "t")), ["minute", "hours"]);
}

#[test]
fn a_delay_is_kept_to_the_millisecond_after_the_clock_was_corrected_also_across_an_open() {
    let (world, store, broker) = corrected();
    made_now(&broker, "first", Due::At(BEGIN_MS + 5_000));
    made_now(&broker, "second", Due::At(BEGIN_MS + 90_000));
    store.step().unwrap();
    pass(&world, &store, 4_999, 4_999);
    assert!(read(&store, "t").is_empty());
    pass(&world, &store, 1, 1);
    assert_eq!(bodies(&read(&store, "t")), ["first"]);
    store.close().unwrap();
    drop(broker);
    let store = world.open();
    let _broker = self::broker(&store);
    pass(&world, &store, 84_999, 84_999);
    assert_eq!(bodies(&read(&store, "t")), ["first"]);
    pass(&world, &store, 1, 1);
    assert_eq!(bodies(&read(&store, "t")), ["first", "second"]);
}
