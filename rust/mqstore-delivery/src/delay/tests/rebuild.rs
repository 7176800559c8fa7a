//! Wheel and timer log that an open builds again from a long timer queue.

use std::path::Path;

use super::*;
use crate::delay::engine::{DelayEngine, MOST_READ};

#[test]
fn a_rebuild_holds_only_a_part_of_a_long_queue_in_memory() {
    let world = SimStore::new();
    let store = world.open();
    let broker = broker(&store);
    let count = 10 * MOST_READ;
    for number in 0..count {
        later(&broker, "t", &number.to_string(), Due::At(BEGIN_MS + 60_000 + number as i64 * 10));
    }
    store.close().unwrap();
    drop(broker);
    world.vfs.remove_file(&Path::new("/data/store").join("timerwheel")).unwrap();
    let store = world.open();
    let mut engine = DelayEngine::open(&store, &options()).unwrap();
    while engine.read_timer_records().unwrap() {
        engine.save_early().unwrap();
        let in_memory = engine.queue_in_memory();
        assert!(in_memory <= 4 * MOST_READ, "{in_memory} of {count} records in memory");
    }
    assert_eq!(engine.counts().unwrap().pending, count as u64);
    drop(engine);
    let broker = self::broker(&store);
    pass(&world, &store, 59_999, 59_999);
    assert!(read(&store, "t").is_empty());
    pass(&world, &store, 1 + count as u64 * 10, 1_000);
    let wanted: Vec<_> = (0..count).map(|number| number.to_string()).collect();
    assert_eq!(bodies(&read(&store, "t")), wanted);
    assert_eq!(broker.delay_counts().unwrap().pending, 0);
}
