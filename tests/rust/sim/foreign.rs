//! Other programs on the same store: RocketMQ between two opens by mqstore, and tools that replace files of a
//! running writer.
//!
//! RocketMQ appends without our mark. It truncates by moving a number, so old bytes stay after the new end.
//! Everything that it synced is present afterwards, and nothing that it truncated comes back.

use mqstore_base::options::{Durability, OpenMode, StoreOptions};
use mqstore_format::{Checkpoint, Host, PropertiesBuilder, RecordSpec, encode_blank, properties};
use mqstore_io::{Access, SimVfs, Vfs};

use crate::check::{abandon, recover};
use crate::contract::{Log, segments};
use crate::crashes::{must_hold, soak};
use crate::explore::{Violation, guarded};
use crate::states::{Rng, State};
use crate::workload::{
    Case, History, Need, Op, Rec, Running, SEGMENT_BYTES, World, append, explain, root, tiny,
};

/// Number of runs with a switch off.
pub(crate) const FEW_RUNS: u64 = 300;

/// Store time of the broker's records, later than ours.
const BROKER_TIME_MS: i64 = 1_700_000_500_000;

/// Runs a store, then closes or kills it.
fn ours(seed: u64, options: &StoreOptions, closed: bool) -> Result<(SimVfs, History), String> {
    let mut rng = Rng::new(seed);
    let ops = (0..4 + rng.below(10)).map(|_| match rng.below(5) {
        0 => Op::Batch(3, 70),
        1 => Op::Edge(0),
        2 => Op::Flush,
        _ => Op::Append(rng.below(300) as u16),
    });
    let mut ops: Vec<Op> = ops.collect();
    ops.push(Op::Reopen);
    ops.push(Op::Append(44));
    let case = Case { name: format!("f-{seed}"), options: options.clone(), ops, last_only: false };
    let world = World::new(false);
    let (history, end) = Running::start(&case, &world)?.finish()?;
    let vfs = end.kill().map_err(explain)?;
    if closed {
        let store = World::on(vfs.clone()).open(OpenMode::ReadWrite, options).map_err(explain)?;
        store.close().map_err(explain)?;
    }
    Ok((vfs, history))
}

/// A broker that appends to a log of mqstore.
struct Broker<'a> {
    vfs: &'a SimVfs,
    end: u64,
}

impl Broker<'_> {
    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), String> {
        let base = at / SEGMENT_BYTES * SEGMENT_BYTES;
        let path = root().join(format!("commitlog/{base:020}"));
        let file = match self.vfs.open(&path, Access::ReadWrite) {
            Ok(file) => file,
            Err(_) => {
                let file = self.vfs.create_new(&path).map_err(explain)?;
                file.set_len(SEGMENT_BYTES).map_err(explain)?;
                file
            }
        };
        file.write_all_at(bytes, at - base).and_then(|()| file.sync_all()).map_err(explain)?;
        self.vfs.sync_dir(&root().join("commitlog")).map_err(explain)
    }

    fn append(&mut self, rec: &mut Rec, queue_offset: i64) -> Result<(), String> {
        let mut text = PropertiesBuilder::new();
        text.push_reserved(properties::KEYS, &rec.key()).map_err(explain)?;
        let host = Host::new([127, 0, 0, 1], 10911);
        let encode = |physical_offset: u64| {
            let mut bytes = Vec::new();
            let spec = RecordSpec {
                queue_id: rec.queue().1,
                queue_offset,
                physical_offset: physical_offset as i64,
                store_timestamp: BROKER_TIME_MS,
                properties: text.as_bytes(),
                property_crc: false,
                ..RecordSpec::new(rec.queue().0, &rec.body, host, host)
            };
            spec.encode_into(&mut bytes).map_err(explain).map(|_| bytes)
        };
        let rest = SEGMENT_BYTES - self.end % SEGMENT_BYTES;
        let mut bytes = encode(self.end)?;
        if bytes.len() as u64 + 8 > rest {
            self.write(self.end, &encode_blank(rest as u32))?;
            self.end += rest;
            bytes = encode(self.end)?;
        }
        self.write(self.end, &bytes)?;
        self.end += bytes.len() as u64;
        let checkpoint = Checkpoint { physic_msg_timestamp: BROKER_TIME_MS, ..Checkpoint::default() };
        let file = self.vfs.open(&root().join("checkpoint"), Access::ReadWrite).map_err(explain)?;
        file.write_all_at(&checkpoint.encode_fields(), 0).and_then(|()| file.sync_all()).map_err(explain)
    }
}

fn queue_offset(records: &[Rec], rec: &Rec) -> i64 {
    records.iter().filter(|other| other.queue() == rec.queue()).count() as i64
}

/// A broker opens the store after mqstore, truncates `cut` records, appends `more`, and closes or dies.
fn between(seed: u64) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let durability =
        rng.pick(&[Durability::Sync, Durability::Async, Durability::Manual]).unwrap_or(Durability::Sync);
    let options = tiny(durability);
    let (vfs, history) = ours(seed, &options, true)?;
    let mut records = history.records;
    let count = records.len();
    // A broker truncates the tail of a store that died.
    let cut = if rng.chance(4) { count.min(rng.below(3) as usize) } else { 0 };
    records.truncate(count - cut);
    let log = Log::read(&vfs, SEGMENT_BYTES);
    let end = log.records.get(records.len()).map_or(log.end, |record| record.3);
    let mut broker = Broker { vfs: &vfs, end };
    if cut > 0 {
        // The names are gone, but no sync made that durable.
        let base = end / SEGMENT_BYTES * SEGMENT_BYTES;
        for later in segments(&vfs).range(base + 1..) {
            vfs.remove_file(&root().join(format!("commitlog/{:020}", later.0))).map_err(explain)?;
        }
    }
    for _ in 0..rng.below(6) {
        let len = rng.below(400) as usize;
        let mut rec = Rec::new(1000 + records.len(), len, 0);
        rec.number = records.len();
        let offset = queue_offset(&records, &rec);
        broker.append(&mut rec, offset)?;
        records.push(rec);
    }
    if cut > 0 && Log::read(&vfs, SEGMENT_BYTES).records.len() > records.len() {
        // An old record follows the new ones, or there are no new ones. Then no program can see the
        // truncation.
        return Ok(());
    }
    if cut > 0 {
        // Its truncation leaves the old bytes. Only the bytes that it wrote over them are new.
        let base = broker.end / SEGMENT_BYTES * SEGMENT_BYTES;
        let rest = vfs.read_file(&root().join(format!("commitlog/{base:020}")), 1 << 20).unwrap_or_default();
        let stale = rest.get((broker.end % SEGMENT_BYTES) as usize..).unwrap_or_default();
        if stale.iter().any(|byte| *byte != 0) {
            // After a clean stop of the broker, `abort` is missing. mqstore cannot know where that log ended.
            // Only a broker that died leaves such bytes.
            let abort = root().join("abort");
            let file = vfs.create_new(&abort).map_err(explain)?;
            file.write_all_at(b"1", 0).and_then(|()| file.sync_all()).map_err(explain)?;
            vfs.sync_dir(&root()).map_err(explain)?;
        }
    }
    if cut > 0 {
        // After a crash, a broker truncates its queues and rebuilds its newest index files.
        for derived in ["index", "consumequeue", "batchconsumequeue"] {
            let _ = vfs.remove_dir_all(&root().join(derived));
        }
    }
    let moment = vfs;
    let image = State::chance(&mut rng).image(&moment)?;
    let need = Need::whole(records.len(), records.len());
    let told = |what| format!("{cut} of {count} cut, {} more: {what}", records.len() + cut - count);
    let recovered = match recover(&image.vfs, &options, &records, need) {
        // At the place of our last record, there may now be the middle of another record, or our record may
        // be complete after an incomplete one. Either may count as damage.
        Err(what) if cut > 0 && what.starts_with("cannot be opened") => return Ok(()),
        outcome => outcome.map_err(told)?,
    };
    let model = recovered.append_three(&records, &options)?;
    let after = State::all_old().image(&recovered.world.vfs)?;
    drop(recovered);
    recover(&after.vfs, &options, &model, Need::whole(records.len(), model.len()))
        .map(|_| ())
        .map_err(|what| told(format!("and again: {what}")))
}

/// Another program removes or replaces the current segment: from then on no append is acknowledged as
/// durable.
fn replaced(seed: u64) -> Result<(), String> {
    let options = tiny(Durability::Sync);
    let world = World::new(false);
    let store = world.open(OpenMode::Create, &options).map_err(explain)?;
    let mut first = [Rec::new(0, 50, 0)];
    append(&store, &mut first, false).map_err(explain)?;
    let path = root().join(format!("commitlog/{:020}", 0));
    world.vfs.remove_file(&path).map_err(explain)?;
    if seed % 2 == 1 {
        let file = world.vfs.create_new(&path).map_err(explain)?;
        file.allocate(SEGMENT_BYTES).map_err(explain)?;
    }
    let mut second = [Rec::new(1, 50, 0)];
    let outcome = append(&store, &mut second, false);
    abandon(&store);
    match outcome {
        Err(_) => Ok(()),
        Ok(()) => Err("an append to a file that nobody will find again was acknowledged".to_owned()),
    }
}

/// Two writers: the second one is refused and has changed nothing.
fn locked() -> Result<(), String> {
    let options = tiny(Durability::Async);
    let world = World::new(false);
    let store = world.open(OpenMode::Create, &options).map_err(explain)?;
    append(&store, &mut [Rec::new(0, 50, 0)], false).map_err(explain)?;
    let before = world.vfs.fingerprint();
    if world.open(OpenMode::ReadWrite, &options).is_ok() {
        return Err("a second writer was let in".to_owned());
    }
    if world.vfs.fingerprint() != before {
        return Err("a refused writer changed the disk".to_owned());
    }
    abandon(&store);
    Ok(())
}

pub(crate) fn hunt(runs: u64, stop: &dyn Fn() -> bool) -> Result<u64, Violation> {
    let fail = |name: &str, seed: u64, what: String| Violation {
        replay: format!("{name}-{seed}:0:0:0"),
        what: format!("others: {what}"),
    };
    if let Some(seed) =
        std::env::var("MQSIM").ok().and_then(|replay| replay.split(['-', ':']).nth(1)?.parse().ok())
    {
        return guarded(|| between(seed)).map(|()| 1).map_err(|what| fail("between", seed, what));
    }
    guarded(locked).map_err(|what| fail("locked", 0, what))?;
    for seed in 0..2 {
        guarded(|| replaced(seed)).map_err(|what| fail("replaced", seed, what))?;
    }
    for seed in 0..runs {
        if stop() {
            return Ok(seed);
        }
        guarded(|| between(seed)).map_err(|what| fail("between", seed, what))?;
    }
    Ok(runs)
}

#[test]
fn a_broker_between_two_openings_loses_nothing() {
    let runs = if soak() { 100_000 } else { 2_000 };
    let tried = must_hold(hunt(runs, &|| false));
    println!("other programs: {tried} runs");
    assert!(tried >= 2_000 || std::env::var_os("MQSIM").is_some());
}
