//! A small work queue that runs for a year: it never holds more than a day and a segment.

use std::path::Path;

use mqstore_io::sim::SimOptions;
use mqstore_io::{FileKind, SimVfs, Vfs};

use super::*;

const SEGMENT: u64 = 16 << 10;
const HOUR: u64 = 3600;
/// The metadata log begins a new generation after 1 MiB, and both exist for a moment.
const META: u64 = 3 << 20;

/// Returns the bytes of all files below a folder.
fn bytes_below(vfs: &SimVfs, folder: &Path) -> u64 {
    let of = |(name, kind): (std::ffi::OsString, FileKind)| {
        let path = folder.join(name);
        match kind {
            FileKind::Directory => bytes_below(vfs, &path),
            _ => vfs.stat(&path).unwrap().len,
        }
    };
    vfs.list_kinds(folder).unwrap().into_iter().map(of).sum()
}

/// The day has half a segment, as a million jobs of 500 bytes have in a segment of 1 GiB.
#[test]
fn a_queue_that_runs_for_a_year_holds_a_day_and_a_segment() {
    let vfs = SimVfs::new(SimOptions { by_hand: true, ..SimOptions::default() });
    vfs.create_dir_all(Path::new("/data")).unwrap();
    let world = SimStore { vfs, ..SimStore::new() };
    let day_ms = 24 * HOUR as i64 * 1000;
    let options = StoreOptions {
        segment_bytes: SEGMENT,
        allocation_bytes: 4096,
        retention_ms: Some(day_ms as u64),
        ..small()
    };
    let mut store = world.try_open(&options).unwrap();
    let mut broker = Broker::start(&store).unwrap();
    let mut queue = broker.work_queue("jobs", "workers", self::options()).unwrap();
    // The end of the log after each of the last steps.
    let mut ends = std::collections::VecDeque::from([0]);
    let (mut first_month, mut later, mut open) = (0, 0, 0);
    for step in 0..365 * 6 {
        let hour = 4 * step;
        for number in 0..12 {
            let delay = (number == 11).then(|| seconds(2 * HOUR));
            queue.put(&NewWork { body: b"a job", delay, ..NewWork::default() }, NOW).unwrap();
            open += 1;
        }
        for message in queue.get_many(100, NOW).unwrap() {
            // Some work ends at the second try.
            if message.lease.attempt() == 1 && message.record.queue_offset % 10 == 0 {
                message.lease.nack(Some(seconds(HOUR / 2))).unwrap();
            } else {
                message.lease.ack(false).unwrap();
                open -= 1;
            }
        }
        world.clock.advance(seconds(4 * HOUR));
        store.step().unwrap();
        store.expire(false, &mut || Ok(())).unwrap();
        broker.meta().step(mqstore_io::Clock::now_ms(&*world.clock)).unwrap();
        if step % 180 == 0 {
            drop((queue, broker));
            store.close().unwrap();
            store = world.try_open(&options).unwrap();
            broker = Broker::start(&store).unwrap();
            queue = broker.work_queue("jobs", "workers", self::options()).unwrap();
        }
        assert!(queue.qsize().unwrap() == open && open < 40, "{open} jobs wait");
        let stats = store.stats().unwrap();
        // The oldest message is a day old, and one step later it is deleted.
        let day = stats.log_max_offset - ends.front().unwrap();
        let held = stats.log_max_offset - stats.log_min_offset;
        assert!(held <= day + SEGMENT, "hour {hour}: {held} bytes, and the day has {day}");
        ends.push_back(stats.log_max_offset);
        if ends.len() > 8 {
            ends.pop_front();
        }
        let meta = bytes_below(&world.vfs, Path::new("/data/store/mqstore/meta"));
        assert!(meta <= META, "hour {hour}: {meta} bytes of metadata");
        let rest = bytes_below(&world.vfs, Path::new("/data/store")) - meta;
        let most = if hour < 30 * 24 { &mut first_month } else { &mut later };
        *most = rest.max(*most);
    }
    assert!(later <= first_month + 4096, "{first_month} bytes in the first month, {later} later");
}
