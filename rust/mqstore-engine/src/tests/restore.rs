//! Lost compaction files restored from another store equal those of a store that lost nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::restore_compaction;
use crate::testing::*;
use mqstore_compaction::{CompactionOptions, JobControl, RestoreReport};

const TABLE: &str = "table";

fn options() -> CompactionOptions {
    CompactionOptions { log_file_bytes: 4096, queue_file_bytes: 46 * 8, ..CompactionOptions::default() }
}

fn compact(store: &Store, options: &CompactionOptions) {
    store.compact(None, options, 1, &Arc::new(JobControl::default())).unwrap();
}

/// Three stores of the same messages: one that lost nothing, its replica, and one whose compaction files are lost
/// although its log begins at offset `until` of each queue.
struct Three {
    whole: World,
    other: World,
    lost: World,
    sim: Arc<SimVfs>,
    until: Vec<i64>,
}

fn at(vfs: &Arc<SimVfs>, world: &World, name: &str) -> World {
    let vfs: Arc<dyn Vfs> = vfs.clone();
    World { vfs, clock: world.clock.clone(), path: Path::new("/data").join(name), temporary_folder: None }
}

fn expiring() -> StoreOptions {
    StoreOptions { retention_bytes: Some(2 * (16 << 10)), ..small() }
}

/// Appends updates, deletions and messages without a key to two queues; the first message has the number `from`.
fn fill(store: &Store, from: u32, to: u32) {
    for number in from..to {
        let body = if number % 11 == 10 { String::new() } else { format!("value {number} {:60}", "") };
        let key = if number % 13 == 12 { String::new() } else { format!("k{}", number % 29) };
        let properties =
            encode_properties([key.as_str()].into_iter().filter(|key| !key.is_empty()), None, None, [])
                .unwrap();
        let queue_id = i32::try_from(number % 2).unwrap();
        store.append(&message(TABLE, Some(queue_id), body.as_bytes(), &properties)).unwrap();
    }
}

fn copy(world: &World, to: &Path) {
    mqstore_inspect::copy_store(&world.files(), to, &mut |_| Ok(())).unwrap();
}

impl Three {
    fn new() -> Self {
        let (first, sim, _) = World::simulated();
        let whole = at(&sim, &first, "whole");
        let store = whole.open(OpenMode::Create, &small()).unwrap();
        store.create_topic(TABLE, 2, &[("cleanup.policy".to_owned(), "COMPACTION".to_owned())]).unwrap();
        fill(&store, 0, 300);
        compact(&store, &options());
        fill(&store, 300, 500);
        compact(&store, &options());
        fill(&store, 500, 700);
        store.close().unwrap();
        let other = at(&sim, &first, "other");
        copy(&whole, &other.path);
        // This store compacts the messages that the others have in their logs, and expires the beginning of its log.
        let lost = at(&sim, &first, "lost");
        copy(&whole, &lost.path);
        let store = lost.open(OpenMode::ReadWrite, &expiring()).unwrap();
        compact(&store, &options());
        assert!(store.expire(false, &mut || Ok(())).unwrap().segments > 3);
        store.close().unwrap();
        sim.remove_dir_all(&lost.path.join("compaction")).unwrap();
        let reader = lost.open(OpenMode::Read, &small()).unwrap();
        let until: Vec<i64> = reader.queues(TABLE).unwrap().iter().map(|queue| queue.min_offset).collect();
        assert!(until.iter().all(|until| *until > 100), "{until:?}");
        Self { whole, other, lost, sim, until }
    }

    fn restore(&self, options: &CompactionOptions) -> RestoreReport {
        self.try_restore(options, &Arc::new(JobControl::default())).unwrap()
    }

    fn try_restore(
        &self,
        options: &CompactionOptions,
        control: &Arc<JobControl>,
    ) -> Result<RestoreReport, StoreError> {
        let source = self.other.open(OpenMode::Read, &small()).unwrap();
        restore_compaction(&self.lost.files(), &source, None, options, 1, control)
    }

    /// Compacts the store that lost nothing and checks that both have the same files, byte for byte.
    fn check(&self) {
        let store = self.whole.open(OpenMode::ReadWrite, &small()).unwrap();
        compact(&store, &CompactionOptions { force: true, ..options() });
        store.close().unwrap();
        assert_eq!(files_of(&self.lost), files_of(&self.whole));
        let list = self.lost.files().vfs.list(&self.lost.files().restore().join(TABLE)).unwrap_or_default();
        assert!(list.is_empty(), "{list:?}");
    }
}

/// Returns every file of `compaction/` except the positions; a lost store has no backup of them.
fn files_of(world: &World) -> BTreeMap<PathBuf, Vec<u8>> {
    let root = world.path.join("compaction");
    let mut found = BTreeMap::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in world.vfs.list(&folder).unwrap() {
            let path = folder.join(&entry.name);
            if entry.stat.kind == mqstore_io::FileKind::Directory {
                folders.push(path);
            } else if !entry.name.to_string_lossy().ends_with(".bak") {
                let name = path.strip_prefix(&root).unwrap().to_path_buf();
                found.insert(name, world.vfs.read_file(&path, 1 << 20).unwrap());
            }
        }
    }
    assert!(found.len() > 8);
    found
}

#[test]
fn a_restored_store_equals_one_that_lost_nothing() {
    let three = Three::new();
    let dry = three.restore(&CompactionOptions { dry_run: true, ..options() });
    assert_eq!((dry.queues.len(), dry.compaction), (2, None));
    assert!(three.sim.list(&three.lost.path.join("compaction")).is_err());
    let report = three.restore(&options());
    assert_eq!(report.skipped, [""; 0]);
    assert_eq!(report.queues.iter().map(|queue| queue.until).collect::<Vec<_>>(), three.until);
    assert!(report.queues.iter().all(|queue| queue.messages > 50 && queue.resumed == 0), "{report:?}");
    three.check();
    let again = three.restore(&options());
    assert_eq!((again.queues.len(), again.compaction), (0, None));
    assert_eq!(again.skipped, ["table/0: nothing is missing", "table/1: nothing is missing"]);
    let forced = three.restore(&CompactionOptions { force: true, ..options() });
    assert_eq!(forced.queues.len(), 2);
    three.check();
}

#[test]
fn an_open_store_is_restored_too_and_goes_on() {
    let three = Three::new();
    let store = three.lost.open(OpenMode::ReadWrite, &small()).unwrap();
    let source = three.other.open(OpenMode::ReadWrite, &small()).unwrap();
    let control = Arc::new(JobControl::default());
    let report = store.restore_compaction(&source, None, &options(), 2, &control).unwrap();
    assert_eq!(report.queues.len(), 2);
    let itself = store.restore_compaction(&store, None, &options(), 2, &control).unwrap_err();
    assert!(matches!(itself, StoreError::InvalidOption { option: "source", .. }), "{itself}");
    source.close().unwrap();
    three.check();
    let before = read_all(&store, TABLE, 0).len();
    put(&store, TABLE, 0, b"more", "new");
    assert_eq!(read_all(&store, TABLE, 0).len(), before + 1);
    store.close().unwrap();
    let closed = store.restore_compaction(&source, None, &options(), 2, &control).unwrap_err();
    assert!(matches!(closed, StoreError::Closed { .. }), "{closed}");
}

#[test]
fn files_that_end_before_the_log_begins_are_replaced() {
    let three = Three::new();
    // An old copy of the compaction files is back, with the first 100 messages.
    let old = at(&three.sim, &three.lost, "old");
    let store = old.open(OpenMode::Create, &small()).unwrap();
    store.create_topic(TABLE, 2, &[("cleanup.policy".to_owned(), "COMPACTION".to_owned())]).unwrap();
    fill(&store, 0, 100);
    compact(&store, &options());
    store.close().unwrap();
    three.sim.rename_noreplace(&old.path.join("compaction"), &three.lost.path.join("compaction")).unwrap();
    assert_eq!(three.restore(&options()).queues.len(), 2);
    three.check();
}

#[test]
fn a_source_that_does_not_fit_is_refused() {
    let three = Three::new();
    // A source that lacks the same messages.
    let poor = at(&three.sim, &three.lost, "poor");
    copy(&three.lost, &poor.path);
    let reason = |world: &World| {
        let source = world.open(OpenMode::Read, &small()).unwrap();
        let control = Arc::new(JobControl::default());
        let report = restore_compaction(&three.lost.files(), &source, None, &options(), 1, &control).unwrap();
        assert_eq!((report.queues.len(), report.compaction), (0, None));
        report.skipped.join("\n")
    };
    assert!(reason(&poor).contains("itself lacks the messages from offset 0 to"), "{}", reason(&poor));
    // A source with other messages, one without the topic, and one that is too short.
    for (name, topic, count, text) in [
        ("foreign", TABLE, 700, "has another message at offset"),
        ("without", "plain", 10, "has no such queue"),
        ("short", TABLE, 4, "ends at offset 2, and the log here begins at"),
    ] {
        let world = at(&three.sim, &three.lost, name);
        let store = world.open(OpenMode::Create, &small()).unwrap();
        store.create_topic(topic, 2, &[]).unwrap();
        for number in 0..count {
            put(&store, topic, number % 2, b"something else", "key");
        }
        store.close().unwrap();
        assert!(reason(&world).contains(text), "{name}: {}", reason(&world));
    }
    three.restore(&options());
    three.check();
}

#[test]
fn a_crash_at_any_call_is_gone_on_with() {
    let three = Three::new();
    let durable = Arc::new(three.sim.crash_with(&mut |_| true).unwrap());
    let on = |vfs: &Arc<SimVfs>| Three {
        whole: at(vfs, &three.whole, "whole"),
        other: at(vfs, &three.other, "other"),
        lost: at(vfs, &three.lost, "lost"),
        sim: vfs.clone(),
        until: three.until.clone(),
    };
    let run = Arc::new(durable.kill().unwrap());
    let before = run.operations();
    let all: u64 = on(&run).restore(&options()).queues.iter().map(|queue| queue.messages).sum();
    let calls = run.operations() - before;
    let mut resumed = 0;
    for call in (1..=calls).step_by(if std::env::var_os("MQSTORE_SOAK").is_some() { 1 } else { 7 }) {
        let run = Arc::new(durable.kill().unwrap());
        run.freeze_at(run.operations() + call);
        on(&run).restore(&options());
        let killed = run.take_frozen().expect("the same calls each time");
        let power = killed.crash(call).unwrap();
        for vfs in [killed, power] {
            let left = on(&Arc::new(vfs));
            let report = left.restore(&options());
            for queue in &report.queues {
                resumed += queue.resumed;
            }
            let pulled: u64 = report.queues.iter().map(|queue| queue.messages + queue.resumed).sum();
            assert!(report.compaction.is_none() || pulled == all, "call {call}: {report:?}");
            left.check();
            assert_eq!(left.sim.violations(), Vec::<String>::new());
        }
    }
    assert!(resumed > all, "{resumed} messages were not pulled twice");
}

#[test]
fn a_restore_that_is_ended_is_gone_on_with() {
    let three = Three::new();
    let ended = Arc::new(JobControl::default());
    ended.end();
    assert!(matches!(three.try_restore(&options(), &ended), Err(StoreError::Closed { .. })));
    assert!(three.sim.list(&three.lost.path.join("compaction")).is_err());
    three.restore(&options());
    three.check();
}
