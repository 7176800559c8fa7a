//! Folders of a store that are symbolic links, on this disk and on another one: every operation follows the link, and
//! none replaces it.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use mqstore_io::sim::SimOptions;
use tempfile::TempDir;

use super::stops_step;
use crate::{RepairReport, RepairTarget};
use mqstore_engine::testing::*;

/// The folders of a store that is in use.
const FOLDERS: [&str; 5] = ["commitlog", "consumequeue", "index", "config", "mqstore"];

/// A store with linked folders, and the folder that contains their targets.
struct Linked {
    world: World,
    names: Vec<&'static str>,
    disk: TempDir,
}

fn fill(store: &Store, from: u32, count: u32) {
    for number in from..from + count {
        put(store, "orders", (number % 2).cast_signed(), &[b'x'; 200], &format!("k{number}"));
    }
}

impl Linked {
    /// Makes a store of 200 messages and moves the folders `names` to `disk`.
    fn new(names: &[&'static str], disk: TempDir) -> Self {
        let world = World::real();
        let store = world.open(OpenMode::Create, &small()).unwrap();
        store.create_topic("orders", 2, &[]).unwrap();
        fill(&store, 0, 200);
        store.close().unwrap();
        for name in names {
            let (from, to) = (world.path.join(name), disk.path().join(format!("moved-{name}")));
            assert!(Command::new("mv").args([&from, &to]).status().unwrap().success());
            symlink(&to, &from).unwrap();
        }
        Self { world, names: names.to_vec(), disk }
    }

    fn target(&self, name: &str) -> PathBuf {
        self.disk.path().join(format!("moved-{name}"))
    }

    /// Checks that the links are unchanged, and that all of `count` messages are found.
    fn check(&self, count: u32, step: &str) {
        for name in &self.names {
            let link = self.world.path.join(name);
            assert_eq!(std::fs::read_link(&link).unwrap(), self.target(name), "{step}: {name}");
            assert!(self.target(name).is_dir(), "{step}: {name}");
        }
        let found = crate::verify(&self.world.files(), &small(), &mut |_| Ok(())).unwrap();
        assert_eq!((found.problems, found.messages), (vec![], u64::from(count)), "{step}");
        let store = self.world.open(OpenMode::Read, &small()).unwrap();
        assert_eq!(store.notes(), [""; 0], "{step}");
        let read: usize = (0..2).map(|queue| read_all(&store, "orders", queue).len()).sum();
        assert_eq!(read, count as usize, "{step}");
        let mut hits = store.lookup("orders", &format!("k{}", count - 1), None, None, None).unwrap();
        assert_eq!(hits.next_batch(9).unwrap().len(), 1, "{step}");
        store.close().unwrap();
    }

    fn repair(&self, target: RepairTarget<'_>) -> RepairReport {
        crate::repair(&self.world.files(), &small(), target, &mut |_| Ok(())).unwrap()
    }

    fn remove_queue(&self) {
        std::fs::remove_dir_all(self.world.path.join("consumequeue/orders/1")).unwrap();
    }
}

/// A folder on this file system and, if the machine has one, on another.
fn disks() -> Vec<TempDir> {
    let other = tempfile::tempdir_in("/dev/shm").ok();
    std::iter::once(tempfile::tempdir().unwrap()).chain(other).collect()
}

#[test]
fn every_operation_follows_links_and_keeps_them() {
    let sets = FOLDERS.map(|name| vec![name]).into_iter().chain([FOLDERS.to_vec()]);
    for names in sets {
        for disk in disks() {
            let linked = Linked::new(&names, disk);
            let (world, files) = (&linked.world, linked.world.files());
            linked.check(200, "moved");
            // More segments, queue files and index files get their names there.
            let store = world.open(OpenMode::ReadWrite, &small()).unwrap();
            assert_eq!(store.notes(), [""; 0]);
            fill(&store, 200, 100);
            store.rebuild(&mut |_| Ok(())).unwrap();
            fill(&store, 300, 100);
            store.close().unwrap();
            linked.check(400, "opened for writing");
            crate::rebuild(&files, &small(), false, &mut |_| Ok(())).unwrap();
            linked.check(400, "rebuilt");
            linked.remove_queue();
            std::fs::write(linked.world.path.join("index/20200101000000000"), b"stray").unwrap();
            std::fs::write(linked.world.path.join("consumequeue/stray"), b"stray").unwrap();
            assert!(linked.repair(RepairTarget::InPlace).ok);
            linked.check(400, "repaired");
            linked.remove_queue();
            let out = linked.disk.path().join("out");
            assert!(linked.repair(RepairTarget::Output(&out)).ok);
            let copy = World { path: out, ..world.on(world.vfs.clone()) };
            let found = crate::verify(&copy.files(), &small(), &mut |_| Ok(())).unwrap();
            assert_eq!((found.problems, found.messages), (vec![], 400));
            assert!(
                !std::fs::read_dir(&copy.path)
                    .unwrap()
                    .any(|entry| { entry.unwrap().file_type().unwrap().is_symlink() })
            );
            // Recovery derives the queue again, and moves what is in the way aside.
            let store = world.open(OpenMode::ReadWrite, &small()).unwrap();
            fill(&store, 400, 10);
            let snapshot = linked.disk.path().join("snapshot");
            crate::snapshot(&store, &snapshot, &mut |_| Ok(())).unwrap();
            store.close().unwrap();
            linked.check(410, "recovered");
            let copy = World { path: snapshot, ..world.on(world.vfs.clone()) };
            let found = crate::verify(&copy.files(), &small(), &mut |_| Ok(())).unwrap();
            assert_eq!((found.problems, found.messages), (vec![], 410));
        }
    }
}

#[test]
fn the_root_can_be_a_link() {
    for disk in disks() {
        let linked = Linked::new(&["commitlog"], disk);
        let path = linked.disk.path().join("root");
        symlink(&linked.world.path, &path).unwrap();
        let world = World { path: path.clone(), ..linked.world.on(linked.world.vfs.clone()) };
        let store = world.open(OpenMode::Create, &small()).unwrap();
        fill(&store, 200, 10);
        store.close().unwrap();
        crate::rebuild(&world.files(), &small(), false, &mut |_| Ok(())).unwrap();
        assert!(std::fs::symlink_metadata(&path).unwrap().is_symlink());
        linked.check(210, "through a link");
    }
}

#[test]
fn a_link_to_nothing_is_never_replaced() {
    for name in FOLDERS {
        let linked = Linked::new(&[name], tempfile::tempdir().unwrap());
        let away = linked.disk.path().join("not mounted");
        std::fs::rename(linked.target(name), &away).unwrap();
        let (world, files) = (&linked.world, linked.world.files());
        let opened = |mode| world.open(mode, &small()).map(drop);
        for refused in [
            opened(OpenMode::ReadWrite),
            opened(OpenMode::Create),
            crate::rebuild(&files, &small(), false, &mut |_| Ok(())).map(drop),
            crate::repair(&files, &small(), RepairTarget::InPlace, &mut |_| Ok(())).map(drop),
        ] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("symbolic link") && error.contains(name), "{name}: {error}");
        }
        std::fs::rename(&away, linked.target(name)).unwrap();
        linked.check(200, "mounted again");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    symlink(folder.path().join("nothing"), &path).unwrap();
    let world = World { path, ..World::real() };
    let error = world.open(OpenMode::Create, &small()).map(drop).unwrap_err().to_string();
    assert!(error.contains("symbolic link"), "{error}");
}

#[test]
fn links_below_the_folders_are_refused_as_before() {
    let linked = Linked::new(&["consumequeue"], tempfile::tempdir().unwrap());
    let queue = linked.target("consumequeue").join("orders/0");
    let away = linked.disk.path().join("away");
    std::fs::rename(&queue, &away).unwrap();
    symlink(&away, &queue).unwrap();
    let report = crate::verify(&linked.world.files(), &small(), &mut |_| Ok(())).unwrap();
    assert!(report.problems.iter().any(|problem| problem.kind == "queue_stray" && problem.path == queue));
}

/// A stop of a rebuild at any step leaves a store that the next open completes, also where the folders are links and
/// their contents are exchanged one by one.
#[test]
fn a_rebuild_of_linked_folders_can_stop_anywhere() {
    let links = ["consumequeue", "index"]
        .map(|name| (PathBuf::from("/data/store").join(name), PathBuf::from("/disk").join(name)));
    let sim = Arc::new(SimVfs::new(SimOptions { links: links.to_vec(), ..SimOptions::default() }));
    for folder in ["/data", "/disk/consumequeue", "/disk/index"] {
        sim.create_dir_all(Path::new(folder)).unwrap();
    }
    for folder in ["/", "/disk"] {
        sim.sync_dir(Path::new(folder)).unwrap();
    }
    let world = World { path: "/data/store".into(), ..World::simulated().0.on(sim.clone()) };
    let store = world.open(OpenMode::Create, &small()).unwrap();
    store.create_topic("orders", 2, &[]).unwrap();
    fill(&store, 0, 200);
    store.close().unwrap();
    assert!(
        sim.stat(Path::new("/data/store/consumequeue")).is_err()
            && sim.list(Path::new("/disk/index")).unwrap().len() > 3
    );
    let begin = sim.operations();
    sim.freeze_at_each(begin..begin + 3000);
    crate::rebuild(&world.files(), &small(), false, &mut |_| Ok(())).unwrap();
    let end = sim.operations();
    let frozen: Vec<_> =
        sim.take_all_frozen().into_iter().filter(|(operation, _)| *operation <= end).collect();
    assert!(frozen.len() > 60, "{} moments", frozen.len());
    for (operation, stopped) in frozen.into_iter().step_by(stops_step()) {
        for sim in [stopped.kill().unwrap(), stopped.crash(operation).unwrap()] {
            let world = world.on(Arc::new(sim));
            let store = world.open(OpenMode::ReadWrite, &small()).unwrap();
            fill(&store, 200, 3);
            store.close().unwrap();
            let found = crate::verify(&world.files(), &small(), &mut |_| Ok(())).unwrap();
            assert_eq!((found.problems, found.messages), (vec![], 203), "stopped at {operation}");
        }
    }
}
