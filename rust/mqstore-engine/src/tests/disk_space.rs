//! The disk space that a store takes: in steps, ahead of its writer, and never more than the disk has.

use mqstore_base::options::Durability;
use mqstore_io::FileKind;

use crate::testing::*;

const MODES: [Durability; 4] = [Durability::Async, Durability::Sync, Durability::Manual, Durability::Pooled];

/// Options of a store whose log gets its disk space page by page.
fn growing(durability: Durability) -> StoreOptions {
    StoreOptions {
        durability,
        segment_bytes: 64 << 10,
        allocation_bytes: 4096,
        pool_bytes: 64 << 10,
        ..small()
    }
}

/// Returns length and occupied bytes of all files below `folder`.
fn sizes(vfs: &dyn Vfs, folder: &Path) -> (u64, u64) {
    let (mut len, mut taken) = (0, 0);
    for entry in vfs.list(folder).unwrap() {
        let (more_len, more_taken) = match entry.stat.kind {
            FileKind::Directory => sizes(vfs, &folder.join(&entry.name)),
            _ => (entry.stat.len, entry.stat.allocated_bytes),
        };
        (len, taken) = (len + more_len, taken + more_taken);
    }
    (len, taken)
}

#[test]
fn a_new_store_takes_little_space_with_the_default_sizes() {
    for durability in MODES {
        let world = World::real();
        let options = StoreOptions { durability, ..StoreOptions::default() };
        let store = world.open(OpenMode::Create, &options).unwrap();
        let taken = || sizes(&*world.vfs, &world.path).1;
        put(&store, "orders", 0, b"one", "k");
        assert_eq!(read_all(&store, "orders", 0).len(), 1);
        store.flush().unwrap();
        assert!(taken() <= 4 << 20, "{durability:?}: {} bytes after one message", taken());
        let stat = |path: std::path::PathBuf| world.vfs.stat(&path).unwrap();
        let files = world.files();
        assert_eq!(stat(files.commit_log().join("00000000000000000000")).len, 1 << 30);
        let index = world.vfs.list(&files.index()).unwrap();
        assert_eq!(index[0].stat.len, 420_000_040);
        for number in 0..100 {
            put(&store, "orders", 0, &[b'x'; 100], &format!("k{number}"));
        }
        store.close().unwrap();
        assert!(taken() <= 8 << 20, "{durability:?}: {} bytes after 101 messages", taken());
        // Further opens without messages take no more.
        let before = taken();
        for _ in 0..3 {
            world.open(OpenMode::ReadWrite, &options).unwrap().close().unwrap();
        }
        assert!(taken() <= before + (1 << 20), "{durability:?}: {before}, then {}", taken());
    }
}

#[test]
fn the_log_takes_space_ahead_of_its_end_and_no_more_than_four_times_its_growth() {
    for durability in MODES {
        let (world, vfs, _) = World::simulated();
        let store = world.open(OpenMode::Create, &growing(durability)).unwrap();
        let segment = world.files().commit_log().join("00000000000000000000");
        for number in 1..40_u64 {
            put(&store, "orders", 0, &[b'x'; 1000], "k");
            store.step().unwrap();
            let end = store.stats().unwrap().log_max_offset;
            let stat = vfs.stat(&segment).unwrap();
            assert_eq!(stat.len, 64 << 10);
            let factor = if durability == Durability::Sync { 65 } else { 5 };
            let most = (end * factor).max(8192).next_multiple_of(4096).min(64 << 10);
            let taken = stat.allocated_bytes;
            assert!((end..=most).contains(&taken), "{durability:?}, {number}: {taken} for {end}");
        }
        store.close().unwrap();
        assert_eq!(vfs.violations(), Vec::<String>::new());
    }
}

#[test]
fn a_disk_that_fills_at_any_step_refuses_an_append_and_nothing_else() {
    for durability in MODES {
        for pages in 0..40 {
            let (world, vfs, _) = World::simulated();
            let options = growing(durability);
            let store = world.open(OpenMode::Create, &options).unwrap();
            put(&store, "orders", 0, b"first", "k");
            read_all(&store, "orders", 0);
            let taken = sizes(&*world.vfs, Path::new("/")).1;
            vfs.set_space(Some(taken + pages * 4096));
            let (mut held, body) = (1, vec![b'x'; 3000]);
            let refused = loop {
                match store.append(&plain("orders", &body)) {
                    Ok(_) => held += 1,
                    Err(error) => break error,
                }
            };
            let StoreError::DiskFull { requested_bytes, free_bytes, .. } = &refused else {
                panic!("{durability:?}, {pages} pages: {refused}");
            };
            assert!(requested_bytes.unwrap() > free_bytes.unwrap(), "{refused}");
            assert!(refused.to_string().contains("bytes requested"), "{refused}");
            vfs.set_space(None);
            store.append(&plain("orders", &body)).unwrap();
            held += 1;
            assert_eq!(read_all(&store, "orders", 0).len(), held, "{durability:?}, {pages} pages");
            store.close().unwrap();
            assert_eq!(vfs.violations(), Vec::<String>::new(), "{durability:?}, {pages} pages");
            let store = world.open(OpenMode::ReadWrite, &options).unwrap();
            assert_eq!(read_all(&store, "orders", 0).len(), held);
        }
    }
}

#[test]
fn a_segment_of_another_program_gets_space_before_it_is_written() {
    let (world, vfs, _) = World::simulated();
    let options = growing(Durability::Async);
    let store = world.open(OpenMode::Create, &options).unwrap();
    put(&store, "orders", 0, b"first", "k");
    store.close().unwrap();
    // A copy by a tool that leaves holes where a page is zero.
    let path = world.files().commit_log().join("00000000000000000000");
    let bytes = vfs.read_file(&path, 1 << 20).unwrap();
    vfs.remove_file(&path).unwrap();
    let copy = vfs.create_new(&path).unwrap();
    copy.write_all_at(&bytes[..4096], 0).unwrap();
    copy.set_len(bytes.len() as u64).unwrap();
    drop(copy);
    let store = world.open(OpenMode::ReadWrite, &options).unwrap();
    for _ in 0..30 {
        store.append(&plain("orders", &[b'x'; 3000])).unwrap();
    }
    store.close().unwrap();
    assert_eq!(vfs.violations(), Vec::<String>::new());
    let store = world.open(OpenMode::Read, &options).unwrap();
    assert_eq!(read_all(&store, "orders", 0).len(), 31);
}
