//! A random model of a master and its replica: appends, cuts of the connection at any byte, kills and power losses of
//! the replica, reclaimed names, and in controller mode masters that replace each other. The files of both logs are
//! compared byte for byte, and so are the messages of both stores.

use std::path::PathBuf;

use mqstore_engine::testing::{Arc, Vfs};
use mqstore_engine::testing::{
    ManualClock, OpenMode, SimVfs, Store, StoreOptions, World, plain, read_all, small,
};
use mqstore_format::{BLANK_HEADER_BYTES, Peek, offset_file_name, peek};
use mqstore_io::Access;

use crate::copy::{CopySetup, CopyStore, Master, promote};
use crate::epochs::{Epoch, EpochTable};
use crate::log::{LogState, ReplicaError, ReplicaLog};
use crate::master::{MasterError, MasterSession, Sent};
use crate::replica::{Begin, Replica, ReplicaOptions};
use crate::wire::{Protocol, Transfer};

pub(crate) const SEGMENT_BYTES: u64 = 4096;
/// Most bytes of one frame.
const MOST_BYTES: u64 = 700;

/// Returns the number of runs for each protocol.
fn seeds() -> u64 {
    if std::env::var_os("MQSTORE_SOAK").is_some() { 3000 } else { 60 }
}

/// A small generator: the same seed gives the same choices.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

pub(crate) fn options() -> StoreOptions {
    StoreOptions { segment_bytes: SEGMENT_BYTES, ..small() }
}

/// A master: a store of ours, and the epochs of its log.
pub(crate) struct MasterStore {
    world: World,
    vfs: Arc<SimVfs>,
    pub(crate) store: Store,
    epochs: EpochTable,
    clock: Arc<ManualClock>,
}

impl MasterStore {
    pub(crate) fn new() -> Self {
        Self::with(&options())
    }

    pub(crate) fn with(options: &StoreOptions) -> Self {
        let (world, vfs, clock) = World::simulated();
        let store = world.open(OpenMode::Create, options).unwrap();
        let mut epochs = EpochTable::default();
        epochs.begin(0, 0, None).unwrap();
        Self { world, vfs, store, epochs, clock }
    }

    /// Another master, whose log has only the first records of this one.
    fn successor(image: SimVfs, old: &Self) -> Self {
        let vfs = Arc::new(image);
        let world = old.world.on(vfs.clone());
        let store = world.open(OpenMode::ReadWrite, &options()).unwrap();
        let mut new = Self { world, vfs, store, epochs: old.epochs.clone(), clock: old.clock.clone() };
        let end = new.end();
        new.epochs.begin(0, end, None).unwrap();
        new
    }

    pub(crate) fn append(&self, random: &mut Random) {
        let body = vec![b'a' + random.below(20) as u8; random.below(900) as usize + 1];
        let topic = ["orders", "prices"][random.below(2) as usize];
        self.clock.advance(std::time::Duration::from_millis(random.below(5)));
        let before = self.last_segment();
        self.store.append(&plain(topic, &body)).unwrap();
        if self.last_segment() > before {
            self.write_into_filler(before);
        }
    }

    /// RocketMQ leaves any bytes after the header of a filler.
    fn write_into_filler(&self, base: u64) {
        let file = segment(&*self.vfs, base);
        let mut at = 0;
        while let Ok(Peek::Record { size, .. }) = peek(&file[at..]) {
            at += size as usize;
        }
        let at = at as u64 + BLANK_HEADER_BYTES as u64;
        let path = self.world.files().commit_log().join(offset_file_name(base));
        let file = self.vfs.open(&path, Access::ReadWrite).unwrap();
        file.write_all_at(&vec![7; (SEGMENT_BYTES - at) as usize], at).unwrap();
    }

    fn end(&self) -> u64 {
        self.store.stats().unwrap().log_max_offset
    }

    fn last_segment(&self) -> u64 {
        self.end() - self.end() % SEGMENT_BYTES
    }
}

fn segment(vfs: &dyn Vfs, base: u64) -> Vec<u8> {
    let path = PathBuf::from("/data/store/commitlog").join(offset_file_name(base));
    vfs.read_file(&path, SEGMENT_BYTES).unwrap_or_else(|_| vec![0; SEGMENT_BYTES as usize])
}

/// The master's end of a connection.
struct Session {
    own: MasterSession,
    input: Vec<u8>,
    out: Vec<u8>,
}

impl Session {
    fn new(now_ms: i64) -> Self {
        Self { own: MasterSession::new(false, now_ms), input: Vec::new(), out: Vec::new() }
    }

    /// Takes what the replica sent, in parts, and sends the next frame.
    fn step(&mut self, master: &MasterStore, now_ms: i64, random: &mut Random) -> Result<(), MasterError> {
        let feed = master.store.log_feed().unwrap();
        while !self.input.is_empty() {
            let count = 1 + random.below(self.input.len() as u64) as usize;
            let part: Vec<u8> = self.input.drain(..count).collect();
            self.own.receive(&part, &feed, &master.epochs, now_ms, &mut self.out)?;
        }
        // A frame without bytes only if one is due.
        let idle_ms = if random.below(8) == 0 { 5000 } else { 0 };
        let most = 1 + random.below(MOST_BYTES) as usize;
        let sent = Sent { log: &feed, epochs: &master.epochs, confirmed: feed.end(), metadata: None };
        self.own.next_frame(&sent, most, now_ms + idle_ms, &mut self.out)
    }

    /// The end that the replica has acknowledged.
    fn acked(&self) -> u64 {
        self.own.facts().acked.unwrap_or(0)
    }
}

/// The replica's machine.
pub(crate) struct Side {
    pub(crate) vfs: Arc<SimVfs>,
    pub(crate) clock: Arc<ManualClock>,
    protocol: Protocol,
    begin: Begin,
    pub(crate) copy: CopyStore,
    link: Option<(Replica, Session)>,
    now_ms: i64,
}

impl Side {
    pub(crate) fn new(protocol: Protocol, begin: Begin) -> Self {
        let (_, vfs, clock) = World::simulated();
        let copy = CopyStore::open(setup(protocol, &vfs, &clock)).unwrap();
        Self { vfs, clock, protocol, begin, copy, link: None, now_ms: 0 }
    }

    /// Continues on the files that are left.
    fn restart(&mut self, image: SimVfs) {
        self.link = None;
        self.vfs = Arc::new(image);
        self.copy = CopyStore::open(setup(self.protocol, &self.vfs, &self.clock)).unwrap();
    }

    /// One exchange: up to `most` bytes of the master reach the replica, which may be cut anywhere.
    fn exchange(&mut self, master: &MasterStore, most: u64, random: &mut Random) -> Result<(), ReplicaError> {
        self.now_ms += 1;
        if self.link.is_none() {
            let options = ReplicaOptions {
                protocol: self.protocol,
                broker_id: None,
                is_learner: true,
                begin: self.begin,
            };
            self.link = Some((Replica::new(options, &self.copy, self.now_ms)?, Session::new(self.now_ms)));
        }
        let Some((replica, session)) = &mut self.link else { return Ok(()) };
        session.input.extend(replica.take_output());
        session.step(master, self.now_ms, random).unwrap();
        let count = session.out.len().min(most as usize);
        let received: Vec<u8> = session.out.drain(..count).collect();
        replica.receive(&received, &mut self.copy, self.now_ms)?;
        replica.report(self.now_ms)?;
        session.input.extend(replica.take_output());
        let acked = session.acked();
        assert!(acked <= self.copy.state().unwrap().end, "acknowledged {acked}");
        Ok(())
    }

    /// Exchanges until the copy has everything.
    pub(crate) fn catch_up(&mut self, master: &MasterStore, random: &mut Random) {
        for _ in 0..10_000 {
            self.exchange(master, u64::MAX, random).unwrap();
            let progress = self.link.as_ref().unwrap().0.progress();
            if progress.end == master.end() && (progress.is_following || progress.end == 0) {
                return;
            }
        }
        panic!("the copy ends at {:?}, the master at {}", self.copy.state().unwrap().end, master.end());
    }

    /// Compares the copy with the master, after it has caught up.
    fn check(&self, master: &MasterStore) {
        let state = self.copy.state().unwrap();
        assert_eq!(state.end, master.end());
        let last =
            |epochs: &EpochTable| epochs.epochs().iter().rfind(|epoch| epoch.start < state.end).copied();
        assert!(self.protocol == Protocol::Default || last(&state.epochs) == last(&master.epochs));
        let first = self.copy.store().segments().min_offset();
        assert!(first == 0 || self.begin == Begin::LastSegment);
        let mut base = first;
        while base < state.end {
            let used = (state.end - base).min(SEGMENT_BYTES) as usize;
            let (own, other) = (segment(&*self.vfs, base), segment(&*master.vfs, base));
            assert!(own[..used] == other[..used], "segment {base}");
            assert!(own[used..].iter().all(|byte| *byte == 0), "after the end in {base}");
            base += SEGMENT_BYTES;
        }
        for topic in ["orders", "prices"] {
            let has = |store: &Store| store.topics().unwrap().iter().any(|name| name == topic);
            if has(self.copy.store()) {
                let (own, other) = (read_all(self.copy.store(), topic, 0), read_all(&master.store, topic, 0));
                assert!(other.ends_with(&own) && (first > 0 || own.len() == other.len()), "{topic}");
            }
        }
    }
}

/// The store of a machine.
pub(crate) fn world_of(vfs: &Arc<SimVfs>, clock: &Arc<ManualClock>) -> World {
    World { vfs: vfs.clone(), clock: clock.clone(), path: "/data/store".into(), temporary_folder: None }
}

/// How to open the copy on a machine.
pub(crate) fn setup(protocol: Protocol, vfs: &Arc<SimVfs>, clock: &Arc<ManualClock>) -> CopySetup {
    CopySetup {
        vfs: vfs.clone(),
        clock: clock.clone(),
        root: "/data/store".into(),
        options: options(),
        master: Master { address: "master:10912".to_owned(), protocol },
    }
}

fn run(protocol: Protocol, seed: u64) {
    let mut random = Random(seed);
    let mut master = MasterStore::new();
    let begin = [Begin::Oldest(Some(0)), Begin::LastSegment][random.below(2) as usize];
    (0..random.below(30)).for_each(|_| master.append(&mut random));
    let mut side = Side::new(protocol, begin);
    let mut image = None;
    for _ in 0..120 {
        match random.below(20) {
            0..=8 => master.append(&mut random),
            9..=15 => {
                let most = 1 + random.below(900);
                side.exchange(&master, most, &mut random).unwrap();
            }
            16 => side.link = None,
            17 => side.restart(side.vfs.kill().unwrap()),
            18 => side.restart(side.vfs.crash(random.below(1 << 40)).unwrap()),
            _ if protocol.has_epochs() => match image.take() {
                // Its records after the image are lost with it.
                Some(image) => {
                    side.link = None;
                    master = MasterStore::successor(image, &master);
                    master.append(&mut random);
                    // A copy that began later has nothing in common with it.
                    if side.copy.state().unwrap().start > master.epochs.epochs().last().unwrap().start {
                        return;
                    }
                }
                // Logs without a common epoch never become equal.
                None if master.end() > 0 => image = Some(master.vfs.kill().unwrap()),
                None => {}
            },
            _ => side.catch_up(&master, &mut random),
        }
    }
    master.append(&mut random);
    side.link = None;
    side.catch_up(&master, &mut random);
    side.check(&master);
    // A store of its own, with everything.
    side.copy.close().unwrap();
    let world = world_of(&side.vfs, &side.clock);
    promote(&world.files()).unwrap().unwrap();
    let store = world.open(OpenMode::ReadWrite, &options()).unwrap();
    store.append(&plain("orders", b"own")).unwrap();
    assert_eq!(read_all(&store, "orders", 0).last().unwrap().1, b"own");
}

#[test]
fn a_copy_of_a_master_is_equal_whatever_is_cut() {
    for seed in 0..seeds() {
        run(Protocol::Default, seed);
    }
}

#[test]
fn a_copy_of_masters_that_replace_each_other_is_equal() {
    for seed in 0..seeds() {
        run(Protocol::AutoSwitch, seed);
        run(Protocol::Own, seed);
    }
}

/// Another log of the same length, and one that is shorter.
#[test]
fn another_log_is_no_copy() {
    let mut random = Random(7);
    let master = MasterStore::new();
    master.append(&mut random);
    let mut side = Side::new(Protocol::Default, Begin::Oldest(None));
    side.catch_up(&master, &mut random);
    let before: Vec<LogState> = vec![side.copy.state().unwrap()];
    side.link = None;
    let other = MasterStore::new();
    other.store.append(&plain("orders", &vec![b'x'; 300])).unwrap();
    other.store.append(&plain("orders", &vec![b'x'; 3000])).unwrap();
    let error = loop {
        if let Err(error) = side.exchange(&other, 100, &mut random) {
            break error;
        }
    };
    assert!(matches!(error, ReplicaError::Diverged { at: 0, .. }), "{error}");
    assert_eq!(before[0].end, side.copy.state().unwrap().end);
    // A master of RocketMQ that ends before repeats a heartbeat.
    let options =
        ReplicaOptions { protocol: Protocol::Default, broker_id: None, is_learner: true, begin: side.begin };
    let mut replica = Replica::new(options, &side.copy, 0).unwrap();
    let next = u64::from_be_bytes(replica.take_output().try_into().unwrap());
    let heartbeat = Protocol::Default.transfer_header(
        0,
        &Transfer { offset: next, epoch: Epoch { number: 0, start: 0 }, confirmed: 0, log_end: 0 },
    );
    let error = (0..).map(|round| round * 1000).find_map(|now_ms| {
        replica.receive(&heartbeat, &mut side.copy, now_ms).unwrap();
        replica.report(now_ms).err()
    });
    let error = error.unwrap();
    assert!(error.to_string().contains("sends nothing from there on"), "{error}");
    // One of ours says so.
    let mut session = Session::new(0);
    session.input = 5000_u64.to_be_bytes().to_vec();
    let error = session.step(&MasterStore::new(), 0, &mut random).unwrap_err();
    assert!(error.to_string().contains("its log ends at 5000, after the end of this one at 0"), "{error}");
}

/// Bytes that no master sends end the connection, and change nothing.
#[test]
fn bytes_that_are_no_log_are_refused() {
    let master = MasterStore::new();
    let mut random = Random(3);
    (0..6).for_each(|_| master.append(&mut random));
    for protocol in [Protocol::Default, Protocol::AutoSwitch, Protocol::Own] {
        for seed in 0..200 {
            let mut random = Random(seed);
            let mut side = Side::new(protocol, Begin::Oldest(Some(0)));
            for _ in 0..random.below(6) {
                side.exchange(&master, 1 + random.below(900), &mut random).unwrap();
            }
            let Some((replica, session)) = &mut side.link else { continue };
            let mut bytes = std::mem::take(&mut session.out);
            let _ = session.step(&master, 5, &mut random);
            bytes.append(&mut session.out);
            bytes.extend((0..40).map(|_| random.below(256) as u8));
            for _ in 0..=random.below(3) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
            // An error, or a byte that nothing depends on: then the next bytes are missing.
            let _ = replica.receive(&bytes, &mut side.copy, 5);
            for topic in ["orders", "prices"] {
                let has = |store: &Store| store.topics().unwrap().iter().any(|name| name == topic);
                if has(side.copy.store()) {
                    let (own, other) =
                        (read_all(side.copy.store(), topic, 0), read_all(&master.store, topic, 0));
                    assert!(other.starts_with(&own), "{protocol:?} {seed}");
                }
            }
        }
    }
}
