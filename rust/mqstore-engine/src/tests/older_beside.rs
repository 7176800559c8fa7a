//! Reads that continue before the log, in a reader next to a writer in another process: a random model. Between any two
//! calls of the reader, the writer appends, archives and deletes. Each read returns the messages of the store in order,
//! without a gap, from the first one to one that was there when the read ended.

use std::sync::Weak;
use std::time::Duration;

use mqstore_io::ManualClock;
use mqstore_io::sync::Mutex;

use super::older::{Numbers, Reading, all_of, offsets, scanned};
use crate::testing::*;
use crate::{Boundary, ScanRequest, TopicFollower};

const QUEUES: i32 = 3;
const KEYS: u64 = 4;

/// A message that the writer appended.
#[derive(Clone, Debug)]
struct Sent {
    queue_id: i32,
    queue_offset: i64,
    log_offset: u64,
    key: u64,
    time_ms: i64,
    id: String,
}

/// The writer, its archive, and its messages.
struct Writer {
    vfs: Arc<SimVfs>,
    clock: Arc<ManualClock>,
    store: Store,
    archive: Arc<OlderRecords>,
    archived: Mutex<Vec<StoredRecord>>,
    sent: Mutex<Vec<Sent>>,
    numbers: Mutex<Numbers>,
}

impl Writer {
    fn below(&self, end: usize) -> usize {
        self.numbers.lock().below(end)
    }

    fn append(&self, count: usize) {
        for _ in 0..count {
            let (queue_id, key) = (self.below(QUEUES as usize) as i32, self.below(KEYS as usize) as u64);
            let body = vec![b'x'; 100 + self.below(900)];
            let sent = put(&self.store, "a", queue_id, &body, &format!("k{key}"));
            let (queue_offset, log_offset) = (sent.queue_offset, sent.commit_log_offset);
            let (time_ms, id) = (sent.store_timestamp_ms, sent.unique_id.to_string());
            self.sent.lock().push(Sent { queue_id, queue_offset, log_offset, key, time_ms, id });
            self.clock.advance(Duration::from_millis(1));
        }
    }

    /// Archives everything, then deletes old segments.
    fn expire(&self) {
        let mut archived = self.archived.lock();
        let next = archived.last().map_or(0, |last| last.commit_log_offset + 1);
        let records = self.store.log().scan(None).unwrap().next_batch(usize::MAX).unwrap();
        archived.extend(records.into_iter().filter(|record| record.commit_log_offset >= next));
        self.archive.set(archived.clone());
        self.store.expire(false, &mut || Ok(())).unwrap();
    }

    fn change(&self) {
        let most = [3, 40, 120][self.below(3)];
        self.append(self.below(most));
        if self.below(3) > 0 {
            self.expire();
        }
    }

    /// Changes the store before some of the next calls of the reader.
    fn visit(self: &Arc<Self>, visits: usize) {
        if visits == 0 {
            return;
        }
        let most = [4, 30, 200][self.below(3)];
        let nth = 1 + self.below(most) as u64;
        let writer: Weak<Self> = Arc::downgrade(self);
        self.vfs.visit_before(nth, move || {
            let Some(writer) = writer.upgrade() else { return };
            writer.change();
            writer.visit(visits - 1);
        });
    }
}

/// Whether a read wants a message.
type IsWanted = Box<dyn Fn(&Sent) -> bool>;

/// Runs a read of all messages. Returns what it read and which of the messages it wanted.
fn read(reader: &Store, writer: &Writer, verb: usize) -> (Vec<u64>, IsWanted) {
    let queue_id = writer.below(QUEUES as usize) as i32;
    let key = writer.below(KEYS as usize) as u64;
    let all = all_of("a", None);
    let of_queue = move |sent: &Sent| sent.queue_id == queue_id;
    let max = 1 + writer.below(60);
    let take_all = |mut reading: Reading| {
        let mut found = Vec::new();
        loop {
            let some = reading.take(reader, max).unwrap();
            found.extend(&some);
            if some.len() < max {
                return found;
            }
        }
    };
    match verb {
        0 => {
            let cursor = reader.read("a", queue_id, None, None, None).unwrap();
            (take_all(Reading::Queue(Box::new(cursor))), Box::new(of_queue))
        }
        1 => (take_all(Reading::Topic(Box::new(reader.read_topic(&all).unwrap()))), Box::new(|_| true)),
        2 => {
            let follower = TopicFollower::new(reader, &all).unwrap();
            (take_all(Reading::Follow(Box::new(follower))), Box::new(|_| true))
        }
        3 => {
            let found = reader.lookup("a", &format!("k{key}"), None, None, None).unwrap();
            (take_all(Reading::Lookup(Box::new(found))), Box::new(move |sent| sent.key == key))
        }
        4 => {
            let request = ScanRequest { with_older: true, ..ScanRequest::default() };
            (scanned(reader, &request, || ()).unwrap(), Box::new(|_| true))
        }
        5 => {
            let tail = reader.tail(&all, usize::MAX, &mut || Ok(())).unwrap();
            (offsets(&tail), Box::new(|_| true))
        }
        6 => {
            let found = reader.lookup("a", &format!("k{key}"), None, None, None).unwrap().newest_first();
            let mut found = take_all(Reading::Lookup(Box::new(found)));
            found.reverse();
            (found, Box::new(move |sent| sent.key == key))
        }
        _ => {
            let sent: Vec<Sent> = writer.sent.lock().iter().filter(|sent| of_queue(sent)).cloned().collect();
            let found = sent.iter().map(|sent| {
                let message = match verb {
                    7 => reader.message_at("a", queue_id, sent.queue_offset).unwrap(),
                    8 => Some(reader.log().get_at(sent.log_offset).unwrap()),
                    9 => {
                        let at =
                            reader.offset_for_time("a", queue_id, sent.time_ms, Boundary::Lower).unwrap();
                        assert_eq!(at, sent.queue_offset);
                        let least = writer.sent.lock().len() as u64;
                        let count = reader.count("a", &mut || Ok(())).unwrap();
                        let most = writer.sent.lock().len() as u64;
                        assert!((least..=most).contains(&count), "{least} {count} {most}");
                        return sent.log_offset;
                    }
                    _ => reader.get(&sent.id).unwrap(),
                };
                message.expect("a message that was appended").commit_log_offset
            });
            (found.collect(), Box::new(of_queue))
        }
    }
}

fn model(seed: u64) -> usize {
    let (world, vfs, clock) = World::simulated();
    let options = StoreOptions { retention_bytes: Some(3 * (16 << 10)), ..small() };
    let store = world.open(OpenMode::Create, &options).unwrap();
    store.create_topic("a", QUEUES as u32, &[]).unwrap();
    let writer = Arc::new(Writer {
        vfs: vfs.clone(),
        clock,
        store,
        archive: OlderRecords::new(Vec::new(), 3),
        archived: Mutex::default(),
        sent: Mutex::default(),
        numbers: Mutex::new(Numbers(seed)),
    });
    writer.append(20);
    let mut reader: Option<Store> = None;
    let mut interrupted = 0;
    for round in 0..12 {
        writer.change();
        let verb = writer.below(11);
        let before = writer.sent.lock().len();
        writer.visit(writer.below(4));
        let open = || {
            let store = world.open(OpenMode::Read, &options).unwrap();
            store.set_older(Some(Arc::new(writer.archive.clone())));
            store.continued()
        };
        let store = reader.take().filter(|_| writer.below(2) == 0).unwrap_or_else(open);
        let (found, is_wanted) = read(&store, &writer, verb);
        vfs.cancel_visit();
        let sent = writer.sent.lock().clone();
        interrupted += usize::from(sent.len() > before);
        let wanted: Vec<u64> =
            sent.iter().filter(|sent| is_wanted(sent)).map(|sent| sent.log_offset).collect();
        let least = sent.iter().take(before).filter(|sent| is_wanted(sent)).count();
        assert!(
            found.len() >= least && wanted.starts_with(&found),
            "seed {seed}, round {round}, verb {verb}: {} of {least} to {} messages; {:?}",
            found.len(),
            wanted.len(),
            found.iter().zip(&wanted).find(|(found, wanted)| found != wanted),
        );
        reader = Some(store);
    }
    interrupted
}

#[test]
fn reads_next_to_a_writer_that_archives_and_deletes_have_no_gap() {
    let seeds = if std::env::var_os("MQSTORE_SOAK").is_some() { 300 } else { 60 };
    let interrupted: usize = (0..seeds).map(model).sum();
    assert!(interrupted > 200, "{interrupted}");
}
