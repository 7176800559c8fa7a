//! What is written down of queues that nobody touches, on a real file system.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::time::Duration;

use super::*;
use crate::consume_queue::Seals;

const QUEUES: i32 = 80;
/// Longer than what was changed last has to lie back.
const LATER: Duration = Duration::from_millis(2100);

fn count(queue_id: i32) -> i64 {
    match queue_id {
        7 => 5,
        8 => 7,
        _ => 1,
    }
}

struct Bed {
    folder: tempfile::TempDir,
    files: StoreFiles,
}

impl Bed {
    /// A unit in each of eighty queues but for one whose file is full, and one that has two.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let files = files_on(Arc::new(OsVfs::new()), &folder.path().join("store"));
        files.ensure_folder(&files.staging()).unwrap();
        let set = open(&files, Access::ReadWrite);
        for queue_id in 0..QUEUES {
            put(&set.get_or_create("orders", queue_id).unwrap(), 0, &units(0..count(queue_id)));
        }
        Self { folder, files }
    }

    /// As an open does; which queues it had to look into.
    fn open(&self) -> Vec<i32> {
        let now = self.folder.path().join("now");
        fs::write(&now, b"").unwrap();
        let begun_ns = self.files.vfs.stat(&now).unwrap().changed_ns;
        let seals = Seals::load(&self.files, &(0..1000));
        let (set, unknown) = QueueSet::load_sealed(&self.files, SMALL, seals.as_ref()).unwrap();
        set.for_each_of(&unknown, ConsumeQueue::recover_bounds).unwrap();
        set.correct_min_offsets(0).unwrap();
        if set.wants_seals() {
            set.write_seals(begun_ns, 0).unwrap();
        }
        for queue_id in 0..QUEUES {
            assert_eq!(
                read_all(&set.get("orders", queue_id).unwrap()),
                units(0..count(queue_id)),
                "queue {queue_id}"
            );
        }
        unknown.iter().map(|queue| queue.queue_id()).collect()
    }

    fn path(&self, queue_id: i32, base: u64) -> PathBuf {
        self.files.consume_queue().join(format!("orders/{queue_id}/{base:020}"))
    }
}

#[test]
fn queues_that_nobody_touched_are_not_looked_into() {
    let bed = Bed::new();
    // What was made just now is not believed yet.
    assert_eq!(bed.open().len(), QUEUES as usize);
    assert_eq!(bed.open().len(), QUEUES as usize);
    std::thread::sleep(LATER);
    assert_eq!(bed.open().len(), QUEUES as usize);
    assert!(bed.open().is_empty());

    // Written in place, with what was there.
    let mut file = File::options().write(true).open(bed.path(3, 0)).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.write_all(&unit(0).encode()).unwrap();
    // Another file of that name, with the same times of its content.
    let modified = fs::metadata(bed.path(5, 0)).unwrap().modified().unwrap();
    fs::copy(bed.path(5, 0), bed.path(5, 100)).unwrap();
    File::options().write(true).open(bed.path(5, 100)).unwrap().set_modified(modified).unwrap();
    fs::rename(bed.path(5, 100), bed.path(5, 0)).unwrap();
    // Names beside a full file, and beside several.
    for queue_id in [7, 8] {
        fs::write(bed.path(queue_id, 0).with_file_name("names"), b"").unwrap();
        fs::remove_file(bed.path(queue_id, 0).with_file_name("names")).unwrap();
    }
    // Only its permissions.
    let permissions = fs::metadata(bed.path(9, 0)).unwrap().permissions();
    fs::set_permissions(bed.path(9, 0), permissions).unwrap();
    assert_eq!(bed.open(), [3, 5, 7, 8, 9]);
    // Too few to write all down again.
    assert_eq!(bed.open(), [3, 5, 7, 8, 9]);
}

/// Queues with seals, where those are and what they say.
fn sealed() -> (Bed, PathBuf, Vec<u8>) {
    let bed = Bed::new();
    std::thread::sleep(LATER);
    bed.open();
    let path = bed.files.side().join("seals");
    let whole = fs::read(&path).unwrap();
    (bed, path, whole)
}

#[test]
fn seals_that_are_damaged_are_none() {
    let (bed, path, whole) = sealed();
    let load = || Seals::load(&bed.files, &(0..1000));
    assert!(load().is_some());
    for at in (0..whole.len()).step_by(7).chain(whole.len() - 4..whole.len()) {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        fs::write(&path, &damaged).unwrap();
        assert!(load().is_none(), "byte {at}");
        fs::write(&path, &whole[..at]).unwrap();
        assert!(load().is_none(), "cut at {at}");
    }
    fs::remove_file(&path).unwrap();
    assert!(load().is_none());
}

/// A checksum that holds does not make sense of what it covers: no byte leads to a panic or to very many files.
#[test]
fn nonsense_under_a_good_checksum_is_no_bounds() {
    let (bed, path, whole) = sealed();
    let mut refused = 0;
    for at in (8 + 16..whole.len() - 4).step_by(5) {
        for value in [0, 0x7f, 0xff] {
            let mut changed = whole[..whole.len() - 4].to_vec();
            changed[at] = value;
            let crc = mqstore_format::crc31(&changed);
            changed.extend_from_slice(&crc.to_be_bytes());
            fs::write(&path, &changed).unwrap();
            match Seals::load(&bed.files, &(0..1000)) {
                Some(seals) => drop(QueueSet::load_sealed(&bed.files, SMALL, Some(&seals))),
                None => refused += 1,
            }
        }
    }
    assert!(refused > 100, "{refused}");
}
