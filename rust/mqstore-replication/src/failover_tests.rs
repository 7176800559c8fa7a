//! A random model of three machines: a master and two replicas, which acknowledge its records, and an operator who
//! replaces the master. Connections are cut and delayed at any byte, processes are killed and power is lost. The operator
//! follows the rule of the docs: of at least two machines, the one with the largest epoch, and then with the longest log.
//! What two copies had acknowledged is in the log of every later master. A standby of ours has the metadata that it kept,
//! and never without the log that they name.

use mqstore_base::options::MasterOptions;
use mqstore_engine::testing::{Arc, ManualClock, OpenMode, SimVfs, Store, World, plain};
use mqstore_io::Vfs;
use mqstore_meta::OffsetChange;

use crate::copy::{CopySetup, CopyStore, Master, demote, promote, remove_copy};
use crate::epochs::EpochTable;
use crate::log::{ReplicaError, ReplicaLog};
use crate::master::{MasterSession, Sent};
use crate::model_tests::{Random, options, setup, world_of};
use crate::replica::{Begin, Replica, ReplicaOptions};
use crate::replica_set::ReplicaSet;
use crate::standby::{NewestMetadata, StandbyMetadata};
use crate::wire::Protocol;

const MACHINES: usize = 3;

/// A step of the protocol that a mutant leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    None,
    /// A replica reports what it has not synced.
    EarlyReports,
    /// The master counts one copy less.
    OneCopyLess,
    /// A new master begins no epoch.
    NoEpoch,
}

/// Returns the number of runs.
fn seeds() -> u64 {
    if std::env::var_os("MQSTORE_SOAK").is_some() { 4000 } else { 60 }
}

/// What a machine does.
enum Role {
    Down,
    Master {
        store: Store,
        epochs: EpochTable,
        replicas: Box<ReplicaSet>,
        links: Vec<MasterLink>,
        metadata: Option<NewestMetadata>,
    },
    Replica {
        copy: Box<CopyStore>,
        link: Option<ReplicaLink>,
    },
}

/// The master's end of a connection. It can outlive the other end.
struct MasterLink {
    number: u64,
    session: MasterSession,
    /// Bytes on their way to the master.
    input: Vec<u8>,
    /// Bytes on their way to the replica.
    output: Vec<u8>,
    is_cut: bool,
}

struct ReplicaLink {
    number: u64,
    replica: Box<Replica>,
}

struct Machine {
    vfs: Arc<SimVfs>,
    clock: Arc<ManualClock>,
    role: Role,
}

struct Model {
    protocol: Protocol,
    seed: u64,
    machines: Vec<Machine>,
    random: Random,
    mutant: Mutant,
    now_ms: i64,
    next_link: u64,
    epoch: i32,
    /// The first epoch of the master's log.
    epoch_of_first: Option<i32>,
    appended: u64,
    /// The records that two copies have acknowledged: log offset and body.
    acknowledged: Vec<(u64, Vec<u8>)>,
    /// Records of the current master that are not acknowledged yet: end, log offset and body.
    waiting: Vec<(u64, u64, Vec<u8>)>,
    /// What masters have sent, and the offset of a group in it.
    metadata: Vec<(Arc<StandbyMetadata>, Option<i64>)>,
    /// How many promotions had metadata.
    placed: u64,
}

impl Machine {
    fn world(&self) -> World {
        world_of(&self.vfs, &self.clock)
    }

    fn setup(&self, protocol: Protocol) -> CopySetup {
        setup(protocol, &self.vfs, &self.clock)
    }

    /// The epoch and the end of its log, as the operator sees them.
    fn rank(&self) -> (i32, u64) {
        match &self.role {
            Role::Replica { copy, .. } => {
                let state = copy.state().unwrap();
                (state.epochs.epochs().last().map_or(0, |last| last.number), state.end)
            }
            Role::Master { store, epochs, .. } => {
                (epochs.epochs().last().map_or(0, |last| last.number), store.log_feed().unwrap().end())
            }
            Role::Down => (0, 0),
        }
    }
}

impl Model {
    fn new(protocol: Protocol, seed: u64, mutant: Mutant) -> Self {
        let machine = || {
            let (_, vfs, clock) = World::simulated();
            Machine { vfs, clock, role: Role::Down }
        };
        let machines = (0..MACHINES).map(|_| machine()).collect();
        let mut model = Self {
            protocol,
            seed,
            machines,
            random: Random(seed),
            mutant,
            now_ms: 0,
            next_link: 0,
            epoch: 0,
            epoch_of_first: None,
            appended: 0,
            acknowledged: Vec::new(),
            waiting: Vec::new(),
            metadata: Vec::new(),
            placed: 0,
        };
        model.make_master(0);
        (1..MACHINES).for_each(|at| model.make_replica(at));
        model
    }

    fn master(&self) -> Option<usize> {
        self.machines.iter().position(|machine| matches!(machine.role, Role::Master { .. }))
    }

    fn make_master(&mut self, at: usize) {
        self.epoch += 1;
        let machine = &mut self.machines[at];
        machine.role = Role::Down;
        let world = machine.world();
        let mut kept = None;
        if world.vfs.stat(&world.path).is_ok() {
            kept = StandbyMetadata::load(&world.files()).unwrap();
            promote(&world.files()).unwrap();
        }
        let store = world.open(OpenMode::Create, &options()).unwrap();
        if let Some(kept) = kept {
            self.placed += 1;
            let (_, offset) = self.metadata.iter().find(|(sent, _)| **sent == kept).unwrap();
            assert_eq!(offset_of(&store), *offset, "the metadata that the standby kept");
        }
        let feed = store.log_feed().unwrap();
        let (first, end) = feed.bounds();
        let mut epochs = EpochTable::load(&world.files()).unwrap();
        if self.mutant != Mutant::NoEpoch || epochs.epochs().is_empty() {
            epochs.begin(first, end, Some(self.epoch)).unwrap();
        }
        epochs.save(&world.files()).unwrap();
        self.epoch_of_first = epochs.epochs().first().map(|first| first.number);
        let copies = if self.mutant == Mutant::OneCopyLess { 1 } else { 2 };
        let settings =
            MasterOptions { in_sync_replicas: copies, min_in_sync: copies, ..MasterOptions::default() };
        let replicas = Box::new(ReplicaSet::new(&settings, end));
        machine.role = Role::Master { store, epochs, replicas, links: Vec::new(), metadata: None };
        self.waiting.clear();
        self.check_acknowledged(at);
    }

    fn make_replica(&mut self, at: usize) {
        let machine = &mut self.machines[at];
        machine.role = Role::Down;
        let setup = machine.setup(self.protocol);
        let files = setup.files();
        let is_store = machine.vfs.stat(&files.root).is_ok() && Master::of(&files).unwrap().is_none();
        if is_store && !EpochTable::load(&files).unwrap().epochs().is_empty() {
            demote(&files, &setup.master).unwrap();
        }
        let copy = Box::new(CopyStore::open(setup).unwrap());
        check_kept(&copy);
        machine.role = Role::Replica { copy, link: None };
    }

    fn copy_again(&mut self, at: usize) {
        self.cut(at);
        let machine = &mut self.machines[at];
        let Role::Replica { copy, .. } = &machine.role else { return };
        let begin = copy.state().unwrap().epochs.epochs().first().map(|first| first.number);
        assert!(self.epoch_of_first != begin, "both logs have a common begin");
        copy.close().unwrap();
        machine.role = Role::Down;
        remove_copy(&machine.setup(self.protocol).files()).unwrap();
        self.make_replica(at);
    }

    /// Every acknowledged record is in the log of the master.
    fn check_acknowledged(&self, at: usize) {
        let Role::Master { store, .. } = &self.machines[at].role else { return };
        for (offset, body) in &self.acknowledged {
            let record = store.log().get_at(*offset);
            let found = record.ok().map(|record| record.view().unwrap().body.to_vec());
            assert_eq!(found.as_ref(), Some(body), "acknowledged at {offset}");
        }
    }

    fn append(&mut self) {
        let Some(at) = self.master() else { return };
        self.appended += 1;
        let body = [&self.appended.to_be_bytes()[..], &vec![7; self.random.below(900) as usize]].concat();
        let Role::Master { store, .. } = &self.machines[at].role else { return };
        let appended = store.append(&plain("orders", &body)).unwrap();
        let end = appended.commit_log_offset + u64::from(appended.size);
        self.waiting.push((end, appended.commit_log_offset, body));
    }

    /// A group of the master has consumed everything so far.
    fn commit(&mut self) {
        let Some(at) = self.master() else { return };
        let Role::Master { store, .. } = &self.machines[at].role else { return };
        let Ok((_, end)) = store.bounds("orders", 0) else { return };
        let meta = store.meta().unwrap();
        let queue = meta.queue_key("billing", "orders", 0).unwrap();
        meta.commit(&[OffsetChange { queue, offset: end }]).unwrap();
    }

    /// The master copies its metadata for standbys.
    fn capture(&mut self) {
        let Some(at) = self.master() else { return };
        let Role::Master { store, metadata, .. } = &mut self.machines[at].role else { return };
        let known = metadata.as_ref().map(|known| Arc::clone(&known.metadata));
        let new = NewestMetadata::of(store, metadata.take()).unwrap();
        if known.is_none_or(|known| !Arc::ptr_eq(&known, &new.metadata)) {
            self.metadata.push((Arc::clone(&new.metadata), offset_of(store)));
        }
        *metadata = Some(new);
    }

    /// Takes the machine down: a kill, or a loss of power.
    fn stop(&mut self, at: usize) {
        let loses_power = self.random.below(2) == 0;
        let seed = self.random.below(1 << 40);
        let machine = &mut self.machines[at];
        let image = if loses_power { machine.vfs.crash(seed) } else { machine.vfs.kill() };
        let was_master = matches!(machine.role, Role::Master { .. });
        machine.role = Role::Down;
        machine.vfs = Arc::new(image.unwrap());
        if was_master {
            self.waiting.clear();
        }
    }

    /// The operator makes the best of at least two machines the master. The old one may still run.
    fn fail_over(&mut self) {
        let mut reachable: Vec<usize> = (0..MACHINES).collect();
        reachable.remove(self.random.below(MACHINES as u64) as usize);
        if let Some(old) = self.master()
            && !reachable.contains(&old)
        {
            // It is alone now: a kill, so that the model has one master.
            self.stop(old);
        }
        for at in &reachable {
            if matches!(self.machines[*at].role, Role::Down) {
                self.make_replica(*at);
            }
        }
        let best = reachable.into_iter().max_by_key(|at| self.machines[*at].rank()).unwrap();
        if let Some(old) = self.master()
            && old != best
        {
            self.stop(old);
        }
        self.cut(best);
        if let Role::Replica { copy, .. } = &self.machines[best].role {
            copy.close().unwrap();
        } else if let Role::Master { store, .. } = &self.machines[best].role {
            store.close().unwrap();
        }
        self.make_master(best);
    }

    /// Cuts the connection of a replica. What it sent can still arrive.
    fn cut(&mut self, at: usize) {
        let mut ended = None;
        if let Role::Replica { link, .. } = &mut self.machines[at].role {
            ended = link.take().map(|link| link.number);
        }
        let Some(master) = self.master() else { return };
        if let Role::Master { links, .. } = &mut self.machines[master].role {
            links.iter_mut().filter(|link| Some(link.number) == ended).for_each(|link| link.is_cut = true);
        }
    }

    fn connect(&mut self, at: usize, master: usize) {
        self.cut(at);
        self.next_link += 1;
        let (number, now_ms) = (self.next_link, self.now_ms);
        let Role::Replica { copy, link } = &mut self.machines[at].role else { return };
        let options = ReplicaOptions {
            protocol: self.protocol,
            // Simulated disks have the same random numbers, and so the same number of the copy.
            broker_id: Some(at as u64),
            is_learner: false,
            begin: Begin::Oldest(None),
        };
        *link =
            Some(ReplicaLink { number, replica: Box::new(Replica::new(options, &**copy, now_ms).unwrap()) });
        let Role::Master { links, replicas, .. } = &mut self.machines[master].role else { return };
        replicas.connect(number, format!("replica-{at}"), now_ms);
        let session = MasterSession::new(false, now_ms);
        let (input, output) = (Vec::new(), Vec::new());
        links.push(MasterLink { number, session, input, output, is_cut: false });
    }

    /// Some bytes of one connection move, in both directions.
    fn exchange(&mut self, at: usize, most: usize) {
        self.now_ms += 1;
        let Some(master) = self.master().filter(|master| *master != at) else { return };
        let connected = match &self.machines[at].role {
            Role::Replica { link, .. } => link.as_ref().map(|link| link.number),
            _ => return,
        };
        let known = |number| match &self.machines[master].role {
            Role::Master { links, .. } => {
                links.iter().any(|link| Some(link.number) == number && !link.is_cut)
            }
            _ => false,
        };
        if !known(connected) {
            self.connect(at, master);
        }
        self.deliver(at, master, most);
        self.serve(master);
    }

    /// The replica gets bytes, and sends its answer.
    fn deliver(&mut self, at: usize, master: usize, most: usize) {
        let (now_ms, early) = (self.now_ms, self.mutant == Mutant::EarlyReports);
        let number = match &self.machines[at].role {
            Role::Replica { link: Some(link), .. } => link.number,
            _ => return,
        };
        let mut bytes = Vec::new();
        if let Role::Master { links, .. } = &mut self.machines[master].role
            && let Some(link) = links.iter_mut().find(|link| link.number == number)
        {
            let count = link.output.len().min(most);
            bytes = link.output.drain(..count).collect();
        }
        let Role::Replica { copy, link: Some(link) } = &mut self.machines[at].role else { return };
        match link.replica.receive(&bytes, &mut **copy, now_ms) {
            Err(ReplicaError::Protocol(_)) => return self.cut(at),
            // No two copies had anything when the masters of both logs began: a full copy.
            Err(ReplicaError::Diverged { .. }) => return self.copy_again(at),
            outcome => outcome.unwrap(),
        }
        if self.random.below(20) == 0 {
            // Power could be lost here. The log has everything that the kept metadata name.
            let image = Arc::new(self.machines[at].vfs.crash(self.random.below(1 << 40)).unwrap());
            let setup = setup(self.protocol, &image, &self.machines[at].clock);
            check_kept(&CopyStore::open(setup).unwrap());
        }
        let Role::Replica { copy, link: Some(link) } = &mut self.machines[at].role else { return };
        if !early {
            copy.sync().unwrap();
        }
        link.replica.report(now_ms).unwrap();
        let sent = link.replica.take_output();
        if let Role::Master { links, .. } = &mut self.machines[master].role
            && let Some(link) = links.iter_mut().find(|link| link.number == number)
        {
            link.input.extend(sent);
        }
    }

    /// The master takes what has arrived on all connections, also on old ones, and sends more.
    fn serve(&mut self, master: usize) {
        let now_ms = self.now_ms;
        let Role::Master { store, epochs, replicas, links, metadata } = &mut self.machines[master].role
        else {
            return;
        };
        // Its own copy counts after a sync, too.
        store.flush().unwrap();
        let feed = store.log_feed().unwrap();
        let random = &mut self.random;
        links.retain_mut(|link| {
            let count = random.below(link.input.len() as u64 + 1) as usize;
            let part: Vec<u8> = link.input.drain(..count).collect();
            let taken = link.session.receive(&part, &feed, epochs, now_ms, &mut link.output);
            replicas.reported(link.number, link.session.facts(), now_ms);
            let most = 1 + random.below(900) as usize;
            let sent = if link.is_cut {
                Ok(())
            } else {
                replicas.sending(link.number, feed.end(), now_ms);
                // Heartbeats of idle connections come now and then.
                let later_ms = if random.below(6) == 0 { 5000 } else { 0 };
                let sent = Sent { log: &feed, epochs, confirmed: feed.end(), metadata: metadata.clone() };
                link.session.next_frame(&sent, most, now_ms + later_ms, &mut link.output)
            };
            let is_over = taken.is_err() || sent.is_err() || (link.is_cut && link.input.is_empty());
            if is_over {
                replicas.disconnect(link.number);
            }
            !is_over
        });
        let covered = replicas.cover(feed.end(), now_ms);
        let done = self.waiting.iter().take_while(|(end, ..)| *end <= covered).count();
        self.acknowledged.extend(self.waiting.drain(..done).map(|(_, offset, body)| (offset, body)));
    }

    fn step(&mut self) {
        match self.random.below(65) {
            0..=11 => self.append(),
            12..=52 => {
                let (at, most) =
                    (self.random.below(MACHINES as u64) as usize, self.random.below(1200) as usize);
                self.exchange(at, most);
            }
            53 => {
                let at = self.random.below(MACHINES as u64) as usize;
                self.cut(at);
            }
            54 => {
                let at = self.random.below(MACHINES as u64) as usize;
                if self.master() != Some(at) {
                    self.stop(at);
                    self.make_replica(at);
                }
            }
            55 if self.master().is_some() => {
                // The master comes back by itself, with the same log.
                let at = self.master().unwrap_or(0);
                self.stop(at);
                self.make_master(at);
            }
            56 => self.fail_over(),
            57 => self.commit(),
            58..=61 => self.capture(),
            _ => {
                let down: Vec<_> =
                    (0..MACHINES).filter(|at| matches!(self.machines[*at].role, Role::Down)).collect();
                for at in down {
                    self.make_replica(at);
                }
            }
        }
    }

    /// All machines run, and have the same log in the end.
    fn settle(&mut self) {
        if self.master().is_none() {
            self.fail_over();
        }
        self.append();
        for at in 0..MACHINES {
            if matches!(self.machines[at].role, Role::Down) {
                self.make_replica(at);
            }
        }
        self.commit();
        self.capture();
        let master = self.master().unwrap();
        let end = self.machines[master].rank().1;
        let protocol = self.protocol;
        let is_settled = |machine: &Machine| {
            let metadata_end = match &machine.role {
                Role::Replica { link: Some(link), .. } => link.replica.progress().metadata_end,
                _ => Some(end),
            };
            machine.rank().1 == end && (protocol == Protocol::AutoSwitch || metadata_end == Some(end))
        };
        for _ in 0..4000 {
            (0..MACHINES).for_each(|at| self.exchange(at, usize::MAX));
            if self.machines.iter().all(is_settled) && self.waiting.is_empty() {
                return self.check_acknowledged(master);
            }
        }
        let ranks: Vec<_> = self.machines.iter().map(Machine::rank).collect();
        panic!("seed {}: the logs end at {ranks:?}, and {} records wait", self.seed, self.waiting.len());
    }
}

/// The offset of the group in the metadata of a store.
fn offset_of(store: &Store) -> Option<i64> {
    let meta = store.meta().unwrap();
    meta.offset(meta.queue_key("billing", "orders", 0).unwrap())
}

/// The log of a copy has everything that the kept metadata name.
fn check_kept(copy: &CopyStore) {
    let (files, state) = (copy.store().files(), copy.state().unwrap());
    let kept = StandbyMetadata::load(files).unwrap().map_or(0, |kept| kept.log_end());
    assert!(kept <= state.end, "metadata of {kept}, log up to {}", state.end);
}

/// Returns the number of acknowledged records, and of promotions with metadata.
fn run(protocol: Protocol, seed: u64, mutant: Mutant) -> (u64, u64) {
    let mut model = Model::new(protocol, seed, mutant);
    for _ in 0..250 {
        model.step();
    }
    model.settle();
    (model.acknowledged.len() as u64, model.placed)
}

#[test]
fn nothing_that_two_copies_had_is_lost() {
    for protocol in [Protocol::AutoSwitch, Protocol::Own] {
        let runs = (0..seeds()).map(|seed| run(protocol, seed, Mutant::None));
        let (acknowledged, placed) = runs.fold((0, 0), |sum, run| (sum.0 + run.0, sum.1 + run.1));
        assert!(acknowledged > 10 * seeds(), "{acknowledged}");
        assert!(protocol == Protocol::AutoSwitch || placed > seeds() / 4, "{placed}");
    }
}

#[test]
fn each_step_is_needed() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mutants = [Mutant::EarlyReports, Mutant::OneCopyLess, Mutant::NoEpoch];
    let missed: Vec<_> = mutants
        .into_iter()
        .filter(|mutant| {
            !(0..400)
                .any(|seed| std::panic::catch_unwind(|| run(Protocol::AutoSwitch, seed, *mutant)).is_err())
        })
        .collect();
    std::panic::set_hook(before);
    assert_eq!(missed, []);
}
