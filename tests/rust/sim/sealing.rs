//! Openings that need not look into the folders of queues: they find what one finds that looks into all of them,
//! whatever hands, other programs and losses of power did to the files in between.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mqstore_base::message::NewMessage;
use mqstore_base::options::{Durability, OpenMode, StoreOptions};
use mqstore_engine::Store;
use mqstore_format::CqUnit;
use mqstore_io::sim::{OperationKind, SimOptions};
use mqstore_io::{Access, Clock, ManualClock, SimVfs, Vfs};

use crate::check::{abandon, lost_and_found};
use crate::crashes::soak;
use crate::explore::{Violation, guarded};
use crate::states::{Rng, State};
use crate::workload::{World, explain, root, tiny};

const TOPICS: u64 = 8;
const QUEUES: u64 = 9;
/// A queue of three files, whose first ones are as long as they get.
const LONG: (&str, u64) = ("t3", 4);
const LONG_MESSAGES: usize = 20;
const FILE_BYTES: u64 = 8 * 20;

/// So long that nothing which was changed before counts as changed just now.
const LATER: Duration = Duration::from_secs(10);

fn options() -> StoreOptions {
    StoreOptions { segment_bytes: 16 << 10, ..tiny(Durability::Manual) }
}

/// A disk whose files have times, and what gives them.
struct Bed {
    vfs: SimVfs,
    clock: Arc<ManualClock>,
}

impl Bed {
    /// More than seventy queues of a message and more each; closed, and later opened and closed once more.
    fn sealed() -> Result<Self, String> {
        let bed = Self::closed()?;
        bed.clock.advance(LATER);
        bed.open()?.close().map_err(explain)?;
        bed.clock.advance(LATER);
        Ok(bed)
    }

    fn closed() -> Result<Self, String> {
        let clock = Arc::new(ManualClock::new(1_700_000_000_000));
        let times = Arc::clone(&clock) as Arc<dyn Clock>;
        let World { vfs, .. } =
            World::with(SimOptions { clock: Some(times), trace: true, ..SimOptions::default() });
        let bed = Self { vfs, clock };
        let store = bed.open_as(OpenMode::Create)?;
        for topic in 0..TOPICS {
            store.create_topic(&format!("t{topic}"), QUEUES as u32, &[]).map_err(explain)?;
            for queue in 0..QUEUES {
                put(&store, &format!("t{topic}"), queue, 1 + (topic + queue) as usize % 3)?;
            }
        }
        put(&store, LONG.0, LONG.1, LONG_MESSAGES)?;
        store.close().map_err(explain)?;
        Ok(bed)
    }

    fn open_as(&self, mode: OpenMode) -> Result<Store, String> {
        crate::explore::count_work();
        let clock: Arc<dyn Clock> = self.clock.clone();
        Store::open(Arc::new(self.vfs.clone()), clock, &root(), mode, &options()).map_err(explain)
    }

    fn open(&self) -> Result<Store, String> {
        self.open_as(OpenMode::ReadWrite)
    }

    fn on(&self, vfs: SimVfs) -> Self {
        Self { vfs, clock: Arc::clone(&self.clock) }
    }

    /// What an opening finds, and how many folders of queues it listed.
    fn found(&self) -> Result<(String, usize), String> {
        let before = self.vfs.trace().len();
        let queues = root().join("consumequeue");
        let store = match self.open() {
            Ok(store) => store,
            Err(error) => return Ok((error, 0)),
        };
        let trace = self.vfs.trace();
        let listed = trace.iter().skip(before).filter(|call| call.kind == OperationKind::List);
        let listed = listed.filter(|call| call.path.starts_with(&queues)).count();
        let words = described(&store)?;
        abandon(&store);
        Ok((words, listed))
    }

    /// Whether an opening finds what one finds that looks into every folder; how many it listed.
    fn agrees(&self) -> Result<usize, String> {
        let without = self.on(self.vfs.kill().map_err(explain)?);
        let seals = root().join("mqstore/seals");
        if without.vfs.stat(&seals).is_ok() {
            without.vfs.remove_file(&seals).map_err(explain)?;
        }
        let with = self.on(self.vfs.kill().map_err(explain)?);
        let (wanted, _) = without.found()?;
        let (found, listed) = with.found()?;
        if wanted == found { Ok(listed) } else { Err(difference(&wanted, &found)) }
    }

    fn write(&self, path: &Path, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let file = self.vfs.open(path, Access::ReadWrite).map_err(explain)?;
        file.write_all_at(bytes, offset).map_err(explain)
    }

    fn copy(&self, from: &Path, to: &Path) -> Result<(), String> {
        let bytes = self.vfs.read_file(from, 1 << 20).map_err(explain)?;
        let file = self.vfs.create_new(to).map_err(explain)?;
        file.write_all_at(&bytes, 0).map_err(explain)
    }
}

fn file(topic: &str, queue: u64, base: u64) -> PathBuf {
    root().join(format!("consumequeue/{topic}/{queue}/{base:020}"))
}

fn put(store: &Store, topic: &str, queue: u64, count: usize) -> Result<(), String> {
    for _ in 0..count {
        let message = NewMessage {
            topic,
            body: &[b'x'; 40],
            properties: &[],
            unique_key: None,
            queue_id: Some(queue as i32),
            flag: 0,
            born_timestamp_ms: None,
            durable: false,
        };
        store.append(&message).map_err(explain)?;
    }
    Ok(())
}

/// All queues with all that is in them, and what the opening said.
fn described(store: &Store) -> Result<String, String> {
    let mut words = String::new();
    for topic in store.topics().map_err(explain)? {
        for queue in store.queues(&topic).map_err(explain)? {
            let (id, min, max) = (queue.queue_id, queue.min_offset, queue.max_offset);
            let _ = write!(words, "\n{topic}/{id}: {min}..{max}");
            let read =
                store.read(&topic, id, None, None, None).and_then(|mut cursor| cursor.next_batch(1000));
            match read {
                Ok(found) => found.iter().for_each(|record| {
                    let _ = write!(words, " {}", record.commit_log_offset);
                }),
                Err(error) => words.push_str(&error.to_string()),
            }
        }
    }
    for note in store.notes() {
        let _ = write!(words, "\n{note}");
    }
    Ok(words)
}

fn difference(wanted: &str, found: &str) -> String {
    let missed = wanted.lines().find(|line| !found.lines().any(|other| other == *line));
    let made_up = found.lines().find(|line| !wanted.lines().any(|other| other == *line));
    format!("one that looks into all folders finds {missed:?}, and not {made_up:?}")
}

/// An entry that leads to the record of another one.
fn entry(bed: &Bed) -> Result<[u8; 20], String> {
    let bytes = bed.vfs.read_file(&file("t0", 0, 0), 1 << 20).map_err(explain)?;
    let unit: [u8; 20] = bytes[..20].try_into().map_err(explain)?;
    let CqUnit { physical_offset, size, tags_code } = CqUnit::decode(&unit);
    Ok(CqUnit { physical_offset: physical_offset + i64::from(size), size, tags_code }.encode())
}

/// Things that hands do to files.
const MEDDLINGS: u64 = 9;

fn meddle(bed: &Bed, what: u64) -> Result<(), String> {
    let entry = entry(bed)?;
    match what {
        // Behind the last entry, and over it.
        0 => bed.write(&file("t0", 0, 0), 40, &entry),
        1 => bed.write(&file("t1", 1, 0), 0, &[0; 20]),
        // The start of a queue of several files.
        2 => bed.write(&file(LONG.0, LONG.1, 0), 0, &[0; 60]),
        // One more file of a queue of several.
        3 => one_more(bed, LONG.0, LONG.1, 3 * FILE_BYTES, &entry),
        // A file in the place of another one.
        4 => {
            let (from, to) = (file("t2", 2, 0), file("t4", 4, 0));
            let aside = root().join("aside");
            bed.copy(&from, &aside)?;
            bed.vfs.rename(&aside, &to).map_err(explain)
        }
        // One more queue, in a topic and in a topic of its own.
        5 | 6 => {
            let topic = if what == 5 { "t5" } else { "t5-too" };
            let to = file(topic, 50, 0);
            bed.vfs.create_dir_all(to.parent().unwrap()).map_err(explain)?;
            bed.copy(&file("t5", 5, 0), &to)
        }
        // A queue less.
        7 => bed.vfs.remove_dir_all(file("t6", 6, 0).parent().unwrap()).map_err(explain),
        // Something that is no queue.
        _ => {
            let file = bed.vfs.create_new(&root().join("consumequeue/t7/notes.txt"));
            file.and_then(|file| file.write_all_at(b"?", 0)).map_err(explain)
        }
    }
}

fn one_more(bed: &Bed, topic: &str, queue: u64, base: u64, entry: &[u8]) -> Result<(), String> {
    let file = bed.vfs.create_new(&file(topic, queue, base)).map_err(explain)?;
    file.set_len(FILE_BYTES).and_then(|()| file.write_all_at(entry, 0)).map_err(explain)
}

/// What somebody put beside the one file of a queue is not seen, and makes way for the second one when it comes.
fn in_the_way() -> Result<(), String> {
    let bed = Bed::sealed()?;
    one_more(&bed, "t2", 0, FILE_BYTES, &entry(&bed)?)?;
    let store = bed.open()?;
    put(&store, "t2", 0, 10)?;
    store.step().map_err(explain)?;
    let notes = store.notes();
    if !notes.iter().any(|note| note.contains("in the way of a new queue file")) {
        return Err(format!("nothing was said of a file in the way: {notes:?}"));
    }
    store.close().map_err(explain)?;
    if lost_and_found(&bed.vfs).is_empty() {
        return Err("a file in the way was not kept".to_owned());
    }
    bed.agrees().map(drop)
}

/// What nobody touched is not looked into, and everything else is.
fn untouched() -> Result<(), String> {
    let bed = Bed::sealed()?;
    match bed.agrees()? {
        0 => {}
        listed => return Err(format!("{listed} folders were looked into that nobody had touched")),
    }
    let store = bed.open()?;
    put(&store, "t1", 1, 1)?;
    store.close().map_err(explain)?;
    match bed.agrees()? {
        1 => Ok(()),
        listed => Err(format!("{listed} folders were looked into where one queue was written")),
    }
}

/// Hands, once the clock has gone on.
fn touched(what: u64) -> Result<(), String> {
    let bed = Bed::sealed()?;
    meddle(&bed, what)?;
    bed.agrees().map(drop)
}

/// Hands that are so quick that the clock stands still: what was written so late is not sealed.
fn quick(what: u64) -> Result<(), String> {
    let bed = Bed::closed()?;
    bed.open()?.close().map_err(explain)?;
    meddle(&bed, what)?;
    bed.agrees().map(drop)
}

/// A change that a loss of power keeps, without its time.
fn after_power_loss(what: u64) -> Result<(), String> {
    let bed = Bed::sealed()?;
    meddle(&bed, what)?;
    let vfs = bed.vfs.crash_as(false, &mut |_, forms| forms - 1).map_err(explain)?;
    bed.on(vfs).agrees().map(drop)
}

/// A queue whose one file is full, so that the next message leaves it as it is.
fn full() -> Result<(), String> {
    let bed = Bed::closed()?;
    let store = bed.open()?;
    put(&store, "t0", 0, 7)?;
    store.close().map_err(explain)?;
    bed.clock.advance(LATER);
    let store = bed.open()?;
    put(&store, "t0", 0, 1)?;
    store.close().map_err(explain)?;
    bed.agrees().map(drop)
}

/// Older segments of the log that come back, after an opening without them.
fn older_segments() -> Result<(), String> {
    let bed = Bed::closed()?;
    let (segment, aside) = (root().join(format!("commitlog/{:020}", 0)), root().join("aside"));
    let other = root().join(format!("commitlog/{:020}", 16 << 10));
    bed.vfs.stat(&other).map_err(|_| "the log has one segment only".to_owned())?;
    bed.vfs.rename(&segment, &aside).map_err(explain)?;
    bed.clock.advance(LATER);
    bed.open()?.close().map_err(explain)?;
    bed.clock.advance(LATER);
    bed.agrees()?;
    bed.vfs.rename(&aside, &segment).map_err(explain)?;
    bed.agrees().map(drop)
}

/// Sessions, hands and crashes in any order.
fn random(seed: u64) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let mut bed = Bed::sealed()?;
    for _ in 0..4 {
        // What hands did to it may have to be repaired first.
        let Ok(store) = bed.open() else { return Ok(()) };
        for _ in 0..rng.below(4) {
            let topic = format!("t{}", rng.below(TOPICS));
            let _ = put(&store, &topic, rng.below(QUEUES), 1 + rng.below(12) as usize);
        }
        if rng.chance(5) {
            store.close().map_err(explain)?;
        } else {
            abandon(&store);
            let image =
                if rng.chance(4) { State::kill() } else { State::chance(&mut rng) }.image(&bed.vfs)?;
            bed = bed.on(image.vfs);
        }
        drop(store);
        bed.clock.advance(Duration::from_millis(rng.pick(&[0, 1, 1500, 2500, 20_000]).unwrap_or(0)));
        for _ in 0..rng.below(3) {
            // The file may be gone.
            let _ = meddle(&bed, rng.below(MEDDLINGS));
        }
        bed.agrees()?;
    }
    Ok(())
}

pub(crate) fn hunt(runs: u64, stop: &dyn Fn() -> bool) -> Result<u64, Violation> {
    let fail = |name: String, what: String| Violation {
        replay: format!("{name}:0:0:0"),
        what: format!("sealed: {name}: {what}"),
    };
    guarded(untouched).map_err(|what| fail("untouched".to_owned(), what))?;
    guarded(in_the_way).map_err(|what| fail("in the way".to_owned(), what))?;
    guarded(full).map_err(|what| fail("full".to_owned(), what))?;
    guarded(older_segments).map_err(|what| fail("older segments".to_owned(), what))?;
    for what in 0..MEDDLINGS {
        for (name, run) in
            [("touched", touched as fn(u64) -> _), ("quick", quick), ("power loss", after_power_loss)]
        {
            guarded(|| run(what)).map_err(|error| fail(format!("{name} {what}"), error))?;
        }
    }
    for seed in 0..runs {
        if stop() {
            return Ok(seed);
        }
        guarded(|| random(seed)).map_err(|what| fail(format!("random {seed}"), what))?;
    }
    Ok(runs)
}

#[test]
fn what_is_not_looked_into_is_as_it_was() {
    let runs = if soak() { 5_000 } else { 150 };
    let tried = crate::crashes::must_hold(hunt(runs, &|| false));
    println!("sealed queues: {tried} runs");
    assert_eq!(tried, runs);
}
