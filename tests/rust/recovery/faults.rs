//! The table of faults of log, side folder and queue files, one row after the other.
//!
//! Each row takes a store of three segments with 70 messages, 45 of them synced. It stops the store (by
//! a close or a kill), damages its files, and states the result of the next open.

use std::path::Path;

use mqstore::error::StoreError;
use mqstore::io::sim::SimVfs;
use mqstore::io::{Access, Vfs};
use mqstore::options::{OpenMode, StoreOptions};
use mqstore_tests::{Simulated, assert_holds, log_order};

use crate::{
    ROOT, SEGMENT, make, message, messages, options, overwrite, put, readable, same_files, segment, side,
    tree,
};

const MESSAGES: usize = 70;
const SYNCED: usize = 45;

/// The expected result of an open.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Gives {
    /// Every message.
    All,
    /// The log has every message, but an entry of a queue is wrong, and verify reports it.
    AllInTheLog,
    /// All messages except this many, from the middle or from the end.
    AllBut(usize),
    /// At least the synced messages, and a prefix of the rest.
    Beginning,
    /// `CorruptionError`, and no file changes.
    Refused,
}

struct Row {
    number: u32,
    what: &'static str,
    clean: bool,
    hand: fn(&SimVfs),
    reading: Gives,
    writing: Gives,
}

const fn row(
    number: u32,
    what: &'static str,
    clean: bool,
    hand: fn(&SimVfs),
    reading: Gives,
    writing: Gives,
) -> Row {
    Row { number, what, clean, hand, reading, writing }
}

/// Byte 300 of the first segment is in a record far below the mark.
const DEEP: u64 = 300;

fn last_segment(vfs: &SimVfs) -> u64 {
    let names = vfs.list(segment(0).parent().unwrap()).unwrap();
    names.len() as u64 - 1
}

/// Flips a bit near the end of the last record.
fn damage_the_last_record(vfs: &SimVfs) {
    let path = segment(last_segment(vfs));
    let bytes = vfs.read_file(&path, SEGMENT).unwrap();
    let last = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    vfs.flip(&path, last as u64 - 4, 1).unwrap();
}

fn root(name: &str) -> std::path::PathBuf {
    Path::new(ROOT).join(name)
}

fn cut(vfs: &SimVfs, path: &Path, len: u64) {
    let mut bytes = vfs.read_file(path, 1 << 20).unwrap();
    bytes.resize(len as usize, 0);
    make(vfs, path, &bytes);
}

fn blank(vfs: &SimVfs, path: &Path, offset: u64, size: u32) {
    overwrite(vfs, path, offset, &size.to_be_bytes());
    overwrite(vfs, path, offset + 4, &0xCBD4_3194_u32.to_be_bytes());
}

/// The offset of the second record of a segment.
fn second(vfs: &SimVfs, path: &Path) -> u64 {
    let bytes = vfs.read_file(path, 1 << 20).unwrap();
    u64::from(u32::from_be_bytes(bytes[..4].try_into().unwrap()))
}

/// Turns the store into one that RocketMQ wrote: removes all files of mqstore.
fn foreign(vfs: &SimVfs) {
    vfs.remove_dir_all(&side("")).unwrap();
}

const QUEUE: &str = "consumequeue/orders/0/00000000000000000000";

#[expect(clippy::too_many_lines, reason = "a table, one row after the other")]
fn rows() -> Vec<Row> {
    use Gives::{All, AllBut, AllInTheLog, Beginning, Refused};
    vec![
        row(1, "a kill, and nothing else", false, |_| {}, All, All),
        row(
            3,
            "a next segment of no bytes, as RocketMQ leaves it",
            false,
            |vfs| {
                make(vfs, &segment(last_segment(vfs) + 1), b"");
            },
            All,
            All,
        ),
        row(
            3,
            "a next segment of zeros, whole",
            false,
            |vfs| {
                make(vfs, &segment(last_segment(vfs) + 1), &vec![0; SEGMENT as usize]);
            },
            All,
            All,
        ),
        row(
            3,
            "a segment in staging, made in part",
            false,
            |vfs| {
                make(vfs, &side("tmp/segment-00000000000000012288"), &[0; 100]);
            },
            All,
            All,
        ),
        row(
            3,
            "a store of RocketMQ's with a next segment of no bytes",
            false,
            |vfs| {
                foreign(vfs);
                make(vfs, &segment(last_segment(vfs) + 1), b"");
            },
            All,
            All,
        ),
        row(
            10,
            "the last segment lost its length beyond the mark",
            false,
            |vfs| {
                cut(vfs, &segment(last_segment(vfs)), 2000);
            },
            Beginning,
            Beginning,
        ),
        row(
            11,
            "old records of another place behind the end",
            false,
            |vfs| {
                let bytes = vfs.read_file(&segment(0), SEGMENT).unwrap();
                let end = SEGMENT - 500;
                overwrite(vfs, &segment(last_segment(vfs)), end, &bytes[..400]);
            },
            All,
            All,
        ),
        row(
            15,
            "abort is missing after a kill",
            false,
            |vfs| vfs.remove_file(&root("abort")).unwrap(),
            All,
            All,
        ),
        row(15, "abort is there after a close", true, |vfs| make(vfs, &root("abort"), b"1"), All, All),
        row(
            35,
            "a flipped bit far below the mark",
            true,
            |vfs| {
                vfs.flip(&segment(0), DEEP, 4).unwrap();
            },
            AllBut(1),
            AllBut(1),
        ),
        row(
            36,
            "a flipped bit in the last record, above the mark",
            false,
            damage_the_last_record,
            AllBut(1),
            AllBut(1),
        ),
        row(
            37,
            "the record that the mark names is damaged",
            true,
            damage_the_last_record,
            AllBut(1),
            Refused,
        ),
        row(
            37,
            "a flipped bit in a closed store of RocketMQ's",
            true,
            |vfs| {
                foreign(vfs);
                vfs.flip(&segment(1), DEEP, 4).unwrap();
            },
            AllBut(1),
            Refused,
        ),
        row(
            37,
            "a flipped bit in a killed store of RocketMQ's, three segments back",
            false,
            |vfs| {
                foreign(vfs);
                vfs.flip(&segment(0), DEEP, 4).unwrap();
            },
            AllBut(1),
            Refused,
        ),
        row(
            38,
            "a filler in the middle of a segment, of no fitting size",
            true,
            |vfs| {
                let at = second(vfs, &segment(1));
                blank(vfs, &segment(1), at, 100);
                foreign(vfs);
            },
            AllBut(1),
            Refused,
        ),
        row(
            39,
            "a page of zeros in the middle of a killed store of RocketMQ's",
            false,
            |vfs| {
                let at = second(vfs, &segment(0));
                let size = u64::from(u32::from_be_bytes(
                    vfs.read_file(&segment(0), SEGMENT).unwrap()[at as usize..][..4].try_into().unwrap(),
                ));
                overwrite(vfs, &segment(0), at, &vec![0; size as usize]);
                foreign(vfs);
            },
            AllBut(1),
            Refused,
        ),
        row(
            40,
            "a flipped bit in a queue entry",
            true,
            |vfs| {
                vfs.flip(&root(QUEUE), 27, 8).unwrap();
            },
            All,
            AllInTheLog,
        ),
        row(40, "a queue file of zeros", true, |vfs| make(vfs, &root(QUEUE), &[0; 160]), All, AllInTheLog),
        row(41, "a queue file is missing", true, |vfs| vfs.remove_file(&root(QUEUE)).unwrap(), All, All),
        row(41, "a queue file is empty", true, |vfs| make(vfs, &root(QUEUE), b""), All, All),
        row(41, "a queue file is too long", true, |vfs| cut(vfs, &root(QUEUE), 500), All, All),
        row(
            41,
            "all queues are missing",
            false,
            |vfs| {
                vfs.remove_dir_all(&root("consumequeue")).unwrap();
            },
            All,
            All,
        ),
        row(
            42,
            "all index files are missing",
            true,
            |vfs| vfs.remove_dir_all(&root("index")).unwrap(),
            All,
            All,
        ),
        row(
            43,
            "the checkpoint is garbage",
            true,
            |vfs| make(vfs, &root("checkpoint"), &[0xA5; 4096]),
            All,
            All,
        ),
        row(43, "the checkpoint is short", true, |vfs| make(vfs, &root("checkpoint"), &[1; 5]), All, All),
        row(43, "the checkpoint is empty", false, |vfs| make(vfs, &root("checkpoint"), b""), All, All),
        row(
            43,
            "the checkpoint is missing",
            true,
            |vfs| vfs.remove_file(&root("checkpoint")).unwrap(),
            All,
            All,
        ),
        row(
            44,
            "one slot of the mark is damaged",
            true,
            |vfs| {
                vfs.flip(&side("state.a"), 20, 1).unwrap();
            },
            All,
            All,
        ),
        row(
            44,
            "the other slot of the mark is damaged",
            true,
            |vfs| {
                vfs.flip(&side("state.b"), 20, 1).unwrap();
            },
            All,
            All,
        ),
        row(
            44,
            "both slots of the mark are damaged",
            true,
            |vfs| {
                vfs.flip(&side("state.a"), 20, 1).unwrap();
                vfs.flip(&side("state.b"), 20, 1).unwrap();
            },
            All,
            All,
        ),
        row(
            44,
            "a slot of the mark is too long, and full of something",
            true,
            |vfs| {
                make(vfs, &side("state.b"), &[7; 5000]);
            },
            All,
            All,
        ),
        row(
            44,
            "the queue manifest is damaged",
            true,
            |vfs| vfs.flip(&side("queues"), 9, 1).unwrap(),
            All,
            All,
        ),
        row(
            46,
            "a segment in the middle is missing",
            true,
            |vfs| {
                vfs.remove_file(&segment(1)).unwrap();
            },
            Beginning,
            Refused,
        ),
        row(
            46,
            "a segment far behind the last one",
            true,
            |vfs| {
                make(vfs, &segment(last_segment(vfs) + 3), &vec![0; SEGMENT as usize]);
            },
            All,
            All,
        ),
        row(
            47,
            "the last segment is missing",
            true,
            |vfs| {
                vfs.remove_file(&segment(last_segment(vfs))).unwrap();
            },
            Beginning,
            Refused,
        ),
        row(
            47,
            "all segments are missing",
            true,
            |vfs| {
                (0..=last_segment(vfs)).for_each(|number| vfs.remove_file(&segment(number)).unwrap());
            },
            Beginning,
            Refused,
        ),
        row(
            47,
            "the last segment is short, and synced records are missing",
            true,
            |vfs| {
                cut(vfs, &segment(last_segment(vfs)), 10);
            },
            Beginning,
            Refused,
        ),
        row(47, "the first segment is short", true, |vfs| cut(vfs, &segment(0), 1000), Beginning, Refused),
        row(47, "a middle segment is empty", true, |vfs| make(vfs, &segment(1), b""), Beginning, Refused),
        row(
            47,
            "the last segment is too long",
            true,
            |vfs| {
                cut(vfs, &segment(last_segment(vfs)), SEGMENT + 10);
            },
            Beginning,
            Refused,
        ),
        row(
            48,
            "names that are no segment's",
            true,
            |vfs| {
                for name in
                    ["0", "letter.txt", "-0000000000000004096", "00000000000000004096.delete", ".hidden"]
                {
                    make(vfs, &segment(0).with_file_name(name), b"what is this");
                }
                vfs.create_dir(&segment(0).with_file_name("folder")).unwrap();
            },
            All,
            All,
        ),
        row(
            49,
            "a segment of another size, at a place of its own",
            true,
            |vfs| {
                make(vfs, &segment(9), &[1; 8192]);
            },
            All,
            Refused,
        ),
    ]
}

fn stopped(clean: bool) -> Simulated {
    let (world, store) = crate::written(options(), MESSAGES, SYNCED);
    crate::stopped(world, store, clean)
}

/// The number of messages found. They must be the original ones in their order.
fn count(found: &crate::Messages, what: &str) -> usize {
    let mut rest = found.iter().peekable();
    let held = messages(MESSAGES).iter().filter(|one| rest.next_if(|next| next == one).is_some()).count();
    assert!(rest.next().is_none(), "{what}: something else was read");
    held
}

fn judge(gives: Gives, found: Result<crate::Messages, StoreError>, what: &str) {
    match (gives, found) {
        (Gives::Refused, Err(StoreError::Corrupt { .. })) => {}
        (Gives::Refused, found) => panic!("{what}: {:?}", found.map(|found| found.len())),
        (_, Err(error)) => panic!("{what}: {error}"),
        (Gives::All | Gives::AllInTheLog, Ok(found)) => assert_eq!(count(&found, what), MESSAGES, "{what}"),
        (Gives::AllBut(lost), Ok(found)) => assert_eq!(count(&found, what), MESSAGES - lost, "{what}"),
        (Gives::Beginning, Ok(found)) => _ = count(&found, what),
    }
}

#[test]
fn every_row_of_the_table() {
    for row in rows() {
        let what = format!("row {}, {}", row.number, row.what);
        let world = stopped(row.clean);
        (row.hand)(&world.vfs);
        let before = tree(&world.vfs);
        judge(row.reading, readable(&world), &format!("{what}: reading"));
        same_files(&tree(&world.vfs), &before, &format!("{what}: a reader changed something"));
        let store = world.open(OpenMode::ReadWrite);
        judge(row.writing, store.as_ref().map_err(copy_of).and_then(log_order), &format!("{what}: writing"));
        match store {
            Ok(store) => {
                let held = log_order(&store).unwrap().len();
                put(&store, MESSAGES, MESSAGES + 20);
                store.close().unwrap();
                assert_eq!(readable(&world).unwrap().len(), held + 20, "{what}: appends go on");
                let report = world.verify().unwrap();
                let clean = matches!(row.writing, Gives::All | Gives::Beginning) && row.number < 48;
                assert!(report.ok || !clean, "{what}: {:#?}", report.problems);
                if row.writing == Gives::All {
                    let all: Vec<_> = (0..MESSAGES + 20).map(message).collect();
                    assert_holds(&world.open(OpenMode::Read).unwrap(), &all);
                }
            }
            Err(_) => {
                same_files(&tree(&world.vfs), &before, &format!("{what}: refused, and changed something"));
            }
        }
    }
}

fn copy_of(error: &StoreError) -> StoreError {
    match error {
        StoreError::Corrupt { path, offset, reason } => StoreError::corrupt(path, *offset, reason.clone()),
        other => StoreError::Busy { reason: other.to_string() },
    }
}

#[test]
fn what_is_cut_is_kept_byte_for_byte() {
    let world = stopped(false);
    let path = segment(last_segment(&world.vfs));
    let before = world.vfs.read_file(&path, SEGMENT).unwrap();
    let at = second(&world.vfs, &path);
    world.vfs.flip(&path, at + 40, 0xFF).unwrap();
    let store = world.open(OpenMode::ReadWrite).unwrap();
    let kept = tree(&world.vfs).into_iter().filter(|(path, _)| path.starts_with(side("lost+found")));
    let kept: Vec<_> = kept.collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    let (_, bytes) = &kept[0];
    let mut cut = before[at as usize..][..bytes.len()].to_vec();
    cut[40] ^= 0xFF;
    assert_eq!(bytes, &cut);
    assert!(store.notes().iter().any(|note| note.contains("lost+found")), "{:?}", store.notes());
    let file = world.vfs.open(&path, Access::Read).unwrap();
    let mut rest = vec![1; (SEGMENT - at) as usize];
    file.read_exact_at(&mut rest, at).unwrap();
    assert!(rest.iter().all(|byte| *byte == 0));
}

#[test]
fn an_error_while_reading_is_an_error_and_no_damage() {
    let world = stopped(false);
    for nth in 1..30 {
        let run = crate::copy(&world);
        let log = segment(0);
        let fault = mqstore::io::sim::Fault::nth(nth).on(&[mqstore::io::sim::OperationKind::Read]);
        run.vfs.inject(fault.under(log.parent().unwrap()));
        let outcome = run.open(OpenMode::ReadWrite);
        if run.vfs.faults_fired() == 0 {
            break;
        }
        assert!(matches!(outcome, Err(StoreError::Io { .. })), "read {nth}");
        drop(outcome);
        run.vfs.clear_faults();
        assert_eq!(readable(&run).unwrap(), messages(MESSAGES), "read {nth}");
    }
}

#[test]
fn a_log_of_one_short_segment_keeps_its_geometry() {
    let (world, store) = crate::written(StoreOptions { segment_bytes: 16 << 10, ..options() }, 20, 10);
    let world = crate::stopped(world, store, false);
    cut(&world.vfs, &segment(0), 8 << 10);
    let store = world.open(OpenMode::ReadWrite).unwrap();
    assert_eq!(log_order(&store).unwrap(), messages(20));
    assert_eq!(store.stats().unwrap().segment_bytes, 16 << 10);
}

#[test]
fn index_files_that_are_gone_are_made_again() {
    let killed = stopped(false);
    let files: Vec<_> =
        tree(&killed.vfs).into_keys().filter(|path| path.starts_with(root("index"))).collect();
    assert!(files.len() >= 3, "{files:?}");
    let model: Vec<_> = (0..MESSAGES).map(message).collect();
    for gone in &files {
        let run = crate::copy(&killed);
        run.vfs.remove_file(gone).unwrap();
        let store = run.open(OpenMode::ReadWrite).unwrap();
        assert_holds(&store, &model);
        let told = store.notes().iter().any(|note| note.contains("index files are missing"));
        assert_eq!(told, Some(gone) != files.last(), "{}", gone.display());
        store.close().unwrap();
        assert_eq!(run.verify().unwrap().problems, [], "{}", gone.display());
    }
}

#[test]
fn an_index_that_another_program_has_begun_anew_is_noticed_after_a_close() {
    let closed = stopped(true);
    let newest = tree(&closed.vfs).into_keys().rfind(|path| path.starts_with(root("index"))).unwrap();
    // The index has as many files as before and ends at the same record, but its newest file begins with that
    // record.
    let mut end = [0; 8];
    closed.vfs.open(&newest, Access::Read).unwrap().read_exact_at(&mut end, 24).unwrap();
    overwrite(&closed.vfs, &newest, 16, &end);
    let store = closed.open(OpenMode::ReadWrite).unwrap();
    assert!(store.notes().iter().any(|note| note.contains("index files are missing")), "{:?}", store.notes());
    store.close().unwrap();
    assert_eq!(closed.verify().unwrap().problems, []);
    assert_eq!(closed.open(OpenMode::ReadWrite).unwrap().notes(), Vec::<String>::new());
}
