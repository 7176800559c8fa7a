//! Tests of entries in the queues' folders that are no queues: they are reported, never opened and never changed.

use super::*;

fn reasons(set: &QueueSet) -> BTreeMap<String, String> {
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    set.strays().into_iter().map(|stray| (name(&stray.path), stray.reason)).collect()
}

#[test]
fn foreign_names_are_told_and_left() {
    let sim = SimVfs::default();
    let files = sim_files(&sim);
    put(&queue(&open(&files, Access::ReadWrite)), 0, &units(0..7));
    let root = files.consume_queue();
    let file = |name: &str, len: u64| sim.create_new(&root.join(name)).unwrap().set_len(len).unwrap();
    let folder = |name: &str| sim.create_dir_all(&root.join(name)).unwrap();
    file("notes.txt", 3);
    file("orders/notes", 100);
    file("orders/3/notes", 100);
    file("orders/3/0000000000000000020x", 100);
    file("orders/3/.tmp", 100);
    folder("orders/3/compacting");
    folder("orders/03");
    folder("orders/-1");
    folder("orders/x");
    folder("orders/99999999999");
    let before = tree(&sim, Path::new("/"));
    let set = open(&files, Access::ReadWrite);
    let reasons = reasons(&set);
    let names =
        ["-1", ".tmp", "0000000000000000020x", "03", "99999999999", "compacting", "notes", "notes.txt", "x"];
    assert_eq!(reasons.keys().collect::<Vec<_>>(), names);
    assert!(reasons["03"].contains("no queue id"));
    assert!(reasons["compacting"].contains("a folder"));
    let queue = set.get("orders", 3).unwrap();
    // None of these can hide a unit.
    assert_eq!(queue.damaged(), None);
    assert_eq!(read_all(&queue), units(0..7));
    assert_eq!(set.topics().into_keys().collect::<Vec<_>>(), ["orders"]);
    assert_eq!(tree(&sim, Path::new("/")), before);
}

#[test]
fn files_of_another_length_or_place_make_a_queue_suspect() {
    for (name, len, reason) in [
        ("00000000000000000200", 99, "99 bytes long"),
        ("00000000000000000000", 0, "0 bytes long"),
        ("00000000000000000100", 120, "120 bytes long"),
        ("00000000000000000250", 100, "no multiple of 100"),
        ("09223372036854775800", 100, "no multiple of 100"),
    ] {
        let sim = SimVfs::default();
        let files = sim_files(&sim);
        put(&queue(&open(&files, Access::ReadWrite)), 0, &units(0..12));
        let path = files.consume_queue().join("orders/3").join(name);
        let _ = sim.remove_file(&path);
        sim.create_new(&path).unwrap().set_len(len).unwrap();
        let set = open(&files, Access::ReadWrite);
        let strays = set.strays();
        assert_eq!((strays.len(), &strays[0].path), (1, &path));
        assert!(strays[0].reason.contains(reason), "{}", strays[0].reason);
        assert!(set.get("orders", 3).unwrap().damaged().unwrap().contains(reason));
    }
}

#[test]
fn rocksdb_folders_are_told() {
    for (place, names) in [
        ("", ["CURRENT", "MANIFEST-000004"]),
        ("orders", ["CURRENT", "x"]),
        ("orders/3", ["y", "MANIFEST-000004"]),
    ] {
        let sim = SimVfs::default();
        let files = sim_files(&sim);
        put(&queue(&open(&files, Access::ReadWrite)), 0, &units(0..7));
        put(&open(&files, Access::ReadWrite).get_or_create("other", 0).unwrap(), 0, &units(0..7));
        let folder = files.consume_queue().join(place);
        for name in names {
            sim.create_new(&folder.join(name)).unwrap();
        }
        let set = open(&files, Access::Read);
        assert!(set.strays().iter().any(|stray| stray.path == folder && stray.reason.contains("RocksDB")));
        assert_eq!(read_all(&set.get("other", 0).unwrap()), units(0..7));
        match place {
            "" => assert_eq!(read_all(&set.get("orders", 3).unwrap()), units(0..7)),
            "orders" => assert!(set.get("orders", 3).is_none()),
            _ => {
                let queue = set.get("orders", 3).unwrap();
                assert!(queue.damaged().unwrap().contains("RocksDB"));
                assert_eq!(bounds(&queue), (0, 0, 0));
            }
        }
    }
}

#[test]
fn pipes_and_links_are_neither_opened_nor_followed() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let files = files_on(Arc::new(OsVfs::new()), &folder.path().join("store"));
    put(&queue(&open(&files, Access::ReadWrite)), 0, &units(0..12));
    let root = files.consume_queue();
    let outside = folder.path().join("outside");
    std::fs::create_dir_all(outside.join("0")).unwrap();
    std::fs::write(outside.join("0/00000000000000000000"), [7; 100]).unwrap();
    symlink(&outside, root.join("linked")).unwrap();
    symlink(outside.join("0"), root.join("orders/7")).unwrap();
    let last = root.join("orders/3/00000000000000000200");
    std::fs::remove_file(&last).unwrap();
    symlink(outside.join("0/00000000000000000000"), &last).unwrap();
    let pipe = root.join("orders/3/00000000000000000300");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let before = tree(&*files.vfs, folder.path());
    let set = open(&files, Access::ReadWrite);
    let reasons = reasons(&set);
    assert!(reasons["linked"].contains("link"));
    assert!(reasons["7"].contains("link"));
    assert!(reasons["00000000000000000200"].contains("link"));
    assert!(reasons["00000000000000000300"].contains("pipe"));
    let queue = set.get("orders", 3).unwrap();
    assert!(queue.damaged().unwrap().contains("00000000000000000200"));
    assert_eq!(read_all(&queue), units(0..10));
    // A new file that needs one of their names does not replace them; it neither follows nor opens them.
    put(&queue, 10, &units(10..16));
    assert_eq!(read_all(&queue), units(0..16));
    let notes = files.notes.warnings(0);
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes.iter().all(|note| note.contains("in the way of a new queue file; kept as")), "{notes:?}");
    drop(set);
    assert_eq!(tree(&*files.vfs, &outside), tree_below(&before, &outside));
    let kept = files.vfs.list(&files.lost_and_found()).unwrap();
    let kinds: Vec<_> = kept.iter().map(|entry| entry.stat.kind).collect();
    assert_eq!(kinds, [FileKind::Symlink, FileKind::Other]);
}

fn tree_below(tree: &BTreeMap<PathBuf, Vec<u8>>, dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    tree.iter()
        .filter(|(path, _)| path.starts_with(dir))
        .map(|(path, bytes)| (path.clone(), bytes.clone()))
        .collect()
}

#[test]
fn a_file_in_place_of_the_folder_is_told() {
    let sim = SimVfs::default();
    let files = sim_files(&sim);
    sim.create_new(&files.consume_queue()).unwrap();
    let set = open(&files, Access::Read);
    assert_eq!(set.strays()[0].path, files.consume_queue());
    assert_eq!(set.count(), 0);
}

#[test]
fn random_bytes_in_queue_files_never_panic() {
    // A small pseudo-random generator, so that each run has the same files.
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..300 {
        let sim = SimVfs::default();
        let files = sim_files(&sim);
        let folder = files.consume_queue().join("orders/3");
        sim.create_dir_all(&folder).unwrap();
        for base in [0_u64, 100, 200] {
            let file = sim.create_new(&folder.join(format!("{base:020}"))).unwrap();
            let bytes: Vec<u8> = (0..100)
                .map(|_| match next() % 4 {
                    0 => next() as u8,
                    1 => 0x7f,
                    _ => 0,
                })
                .collect();
            file.write_all_at(&bytes, 0).unwrap();
        }
        let before = tree(&sim, Path::new("/"));
        let set = open(&files, Access::Read);
        let queue = set.get("orders", 3).unwrap();
        read_all(&queue);
        let log_end = next() >> (next() % 64);
        queue.clamp(queue.max_offset_for(log_end).unwrap()).unwrap();
        queue.correct_min_offset(log_end / 2).unwrap();
        read_all(&queue);
        assert_eq!(tree(&sim, Path::new("/")), before);
        let set = open(&files, Access::ReadWrite);
        let queue = set.get("orders", 3).unwrap();
        queue.truncate(log_end).unwrap();
        let after = bounds(&queue);
        let reopened = open(&files, Access::ReadWrite).get("orders", 3).unwrap();
        assert_eq!((reopened.max_offset(), reopened.max_physical_end()), (after.1, after.2));
        assert_eq!(reopened.truncate(log_end).unwrap(), 0);
    }
}
