//! The JSON files and the log, with changes from brokers and from us.

use std::path::PathBuf;

use mqstore_format::json::{
    ConsumerOffsets, DataVersion, Dialect, SubscriptionGroup, TopicConfig, TopicTable,
};
use mqstore_io::sim::{Fault, OperationKind};
use mqstore_io::{SimVfs, Vfs};

use super::{commit, dump, files_on, key, open, put_topic};
use crate::{MetaLog, read_state};

fn path(vfs: &SimVfs, name: &str) -> PathBuf {
    files_on(vfs).config().join(name)
}

fn read(vfs: &SimVfs, name: &str) -> Vec<u8> {
    vfs.read_file(&path(vfs, name), 1 << 20).unwrap()
}

fn write(vfs: &SimVfs, name: &str, text: &str) {
    vfs.create_dir_all(&files_on(vfs).config()).unwrap();
    let path = path(vfs, name);
    let _ = vfs.remove_file(&path);
    vfs.create_new(&path).unwrap().write_all_at(text.as_bytes(), 0).unwrap();
}

fn topics(vfs: &SimVfs) -> TopicTable {
    TopicTable::parse(&read(vfs, "topics.json")).unwrap()
}

fn offsets(vfs: &SimVfs) -> ConsumerOffsets {
    ConsumerOffsets::parse(&read(vfs, "consumerOffset.json")).unwrap()
}

fn names(log: &MetaLog) -> Vec<String> {
    log.topics().iter().map(|topic| topic.name.clone()).collect()
}

/// Changes a file like a broker.
fn as_a_broker(vfs: &SimVfs, change: impl FnOnce(&mut TopicTable)) {
    let mut table = topics(vfs);
    change(&mut table);
    table.data_version = table.data_version.next(1_800_000_000_000);
    write(vfs, "topics.json", &table.to_json(Dialect::Rocketmq53));
}

/// Returns a closed store with the topics a and b.
fn filled() -> SimVfs {
    let vfs = SimVfs::default();
    let log = open(&files_on(&vfs));
    put_topic(&log, "a", 1);
    put_topic(&log, "b", 2);
    log.create_group(&SubscriptionGroup::new("g")).unwrap();
    commit(&log, "g", "a", 0, 5);
    log.close().unwrap();
    vfs
}

#[test]
fn a_close_writes_what_a_broker_reads() {
    let vfs = filled();
    let table = topics(&vfs);
    assert_eq!(table.topics["b"], TopicConfig::new("b", 2));
    assert_eq!(table.data_version.counter, 1);
    assert_eq!(offsets(&vfs).get("a", "g", 0), Some(5));
    let groups = String::from_utf8(read(&vfs, "subscriptionGroup.json")).unwrap();
    assert!(groups.contains("\"groupName\":\"g\""));
    let before = read(&vfs, "topics.json");
    let log = open(&files_on(&vfs));
    commit(&log, "g", "a", 0, 6);
    log.close().unwrap();
    assert_eq!(read(&vfs, "topics.json"), before, "a file without changes is not written");
    assert_eq!(offsets(&vfs).get("a", "g", 0), Some(6));
}

#[test]
fn files_of_a_broker_alone_are_taken_over() {
    let vfs = SimVfs::default();
    let mut table = TopicTable::default();
    table.topics.insert("java".to_owned(), TopicConfig::new("java", 8));
    table.unknown.insert("mine".to_owned(), 1.into());
    write(&vfs, "topics.json", &table.to_json(Dialect::Rocketmq55));
    let mut offsets_of_it = ConsumerOffsets::default();
    offsets_of_it.set("java", "g", 3, 44);
    offsets_of_it.table.insert("no group".to_owned(), [(0, 1)].into());
    write(&vfs, "consumerOffset.json", &offsets_of_it.to_json(Dialect::Rocketmq55));
    let log = open(&files_on(&vfs));
    assert_eq!(names(&log), ["java"]);
    assert_eq!(log.offset(key(&log, "g", "java", 3)), Some(44));
    put_topic(&log, "ours", 1);
    commit(&log, "g", "java", 3, 45);
    log.close().unwrap();
    let table = topics(&vfs);
    assert_eq!(table.topics.keys().collect::<Vec<_>>(), ["java", "ours"]);
    assert!(table.unknown.contains_key("mine"), "unknown members stay");
    let text = String::from_utf8(read(&vfs, "consumerOffset.json")).unwrap();
    assert!(text.contains("\"pullOffsetTable\"") && text.contains("\n\t\t\t3:45\n"), "its dialect: {text}");
    assert!(offsets(&vfs).table.contains_key("no group"));
}

#[test]
fn what_a_broker_changed_wins_and_what_it_removed_is_gone() {
    let vfs = filled();
    as_a_broker(&vfs, |table| {
        table.topics.remove("a");
        table.topics.get_mut("b").unwrap().write_queues = 7;
        table.topics.insert("c".to_owned(), TopicConfig::new("c", 3));
    });
    let mut notes = Vec::new();
    let seen = read_state(&files_on(&vfs), &mut notes).unwrap().into_listed();
    assert_eq!(seen.table.topics.keys().collect::<Vec<_>>(), ["b", "c"], "a reader sees it too");
    let log = open(&files_on(&vfs));
    assert_eq!(names(&log), ["b", "c"]);
    assert_eq!(log.topic("b").unwrap().write_queues, 7);
    assert_eq!(log.offset(key(&log, "g", "a", 0)), Some(5), "offsets stay");
    let lost = vfs.crash_with(&mut |_| true).unwrap();
    assert_eq!(dump(&open(&files_on(&lost))), dump(&log));
}

#[test]
fn what_changed_here_since_the_last_export_stays() {
    let vfs = filled();
    let log = open(&files_on(&vfs));
    put_topic(&log, "mine", 4);
    log.put_topics(&[TopicConfig { perm: 4, ..TopicConfig::new("a", 1) }]).unwrap();
    drop(log);
    // A broker that starts after the stop only knows the old file.
    as_a_broker(&vfs, |table| {
        table.topics.remove("a");
        table.topics.remove("b");
        table.topics.insert("its".to_owned(), TopicConfig::new("its", 3));
    });
    let log = open(&files_on(&vfs));
    assert_eq!(names(&log), ["a", "its", "mine"]);
    log.close().unwrap();
    assert_eq!(topics(&vfs).topics.keys().collect::<Vec<_>>(), ["a", "its", "mine"]);
}

#[test]
fn a_file_that_is_no_newer_is_ignored() {
    let vfs = filled();
    let old = read(&vfs, "topics.json");
    let log = open(&files_on(&vfs));
    put_topic(&log, "c", 1);
    log.close().unwrap();
    write(&vfs, "topics.json", std::str::from_utf8(&old).unwrap());
    let log = open(&files_on(&vfs));
    assert_eq!(names(&log), ["a", "b", "c"]);
}

#[test]
fn offsets_with_the_same_version_and_another_content_are_a_broker_s() {
    let vfs = filled();
    let text = String::from_utf8(read(&vfs, "consumerOffset.json")).unwrap();
    write(&vfs, "consumerOffset.json", &text.replace("0:5", "0:77"));
    let log = open(&files_on(&vfs));
    assert_eq!(log.offset(key(&log, "g", "a", 0)), Some(77));
    commit(&log, "g", "a", 0, 78);
    log.close().unwrap();
    assert_eq!(offsets(&vfs).get("a", "g", 0), Some(78));
    let version = offsets(&vfs).data_version;
    assert_eq!(version.counter, 2);
    assert!(version > DataVersion::default());
}

/// Each call of an export fails once. The files on disk are always ours, and a later open does not mistake them for a
/// broker's.
#[test]
fn an_export_that_ends_anywhere_is_told_from_a_broker() {
    for kind in [OperationKind::Write, OperationKind::Sync, OperationKind::Rename, OperationKind::SyncDir] {
        for nth in 1..6 {
            let vfs = filled();
            let log = open(&files_on(&vfs));
            put_topic(&log, "c", 1);
            commit(&log, "g", "a", 0, 6);
            vfs.inject(Fault::nth(nth).on(&[kind]));
            let outcome = log.export_json();
            vfs.clear_faults();
            if outcome.is_ok() {
                // Later changes are newer than the file.
                put_topic(&log, "b", 9);
            }
            let before = dump(&log);
            let killed = vfs.kill().unwrap();
            let again = open(&files_on(&killed));
            assert_eq!(dump(&again), before, "{kind:?} {nth}");
            again.close().unwrap();
            assert_eq!(topics(&killed).topics.len(), 3);
            assert_eq!(offsets(&killed).get("a", "g", 0), Some(6));
        }
    }
}

#[test]
fn a_file_that_somebody_took_away_comes_back() {
    let vfs = filled();
    vfs.remove_file(&path(&vfs, "topics.json")).unwrap();
    open(&files_on(&vfs)).close().unwrap();
    assert_eq!(topics(&vfs).topics.len(), 2);
}

#[test]
fn a_file_that_does_not_parse_gives_way_to_its_backup() {
    let vfs = SimVfs::default();
    write(&vfs, "topics.json", "{");
    write(&vfs, "topics.json.bak", r#"{"topicConfigTable":{"old":{}}}"#);
    let mut notes = Vec::new();
    let found = MetaLog::find(&files_on(&vfs), mqstore_base::options::RecoveryMode::Strict).unwrap();
    let log = MetaLog::open(&files_on(&vfs), found, &mut notes).unwrap();
    assert_eq!(names(&log), ["old"]);
    assert!(notes[0].contains("topics.json"), "{notes:?}");
}

#[test]
fn what_the_log_lost_is_taken_from_the_files() {
    let vfs = filled();
    let files = files_on(&vfs);
    let newest = crate::newest_file(&files).unwrap();
    vfs.open(&newest, mqstore_io::Access::ReadWrite).unwrap().write_all_at(&[7; 10], 60).unwrap();
    let mut notes = Vec::new();
    let seen = read_state(&files, &mut notes).unwrap();
    assert_eq!(seen.into_listed().table.topics.len(), 2);
    assert_eq!(notes.len(), 1);
    let log = super::open_by(&files, mqstore_base::options::RecoveryMode::Salvage).unwrap();
    assert_eq!((names(&log).len(), log.groups().len()), (2, 1));
    assert_eq!(log.offset(key(&log, "g", "a", 0)), Some(5));
}

/// Opens the log for writing; returns the notes of the open, too.
fn open_noted(vfs: &SimVfs) -> (MetaLog, Vec<String>) {
    let (files, mut notes) = (files_on(vfs), Vec::new());
    let found = MetaLog::find(&files, mqstore_base::options::RecoveryMode::Strict).unwrap();
    let log = MetaLog::open(&files, found, &mut notes).unwrap();
    (log, notes)
}

fn reader_notes(vfs: &SimVfs) -> Vec<String> {
    let mut notes = Vec::new();
    read_state(&files_on(vfs), &mut notes).unwrap();
    notes
}

/// Returns the contents of the copies in `lost+found`.
fn copies(vfs: &SimVfs) -> Vec<String> {
    let folder = files_on(vfs).lost_and_found();
    let names = vfs.list(&folder).unwrap_or_default();
    let read = |name| String::from_utf8(vfs.read_file(&folder.join(name), 1 << 20).unwrap()).unwrap();
    names.into_iter().map(|entry| read(entry.name)).collect()
}

const BROKERS_OFFSETS: &str = r#"{"offsetTable":{"a@g":{0:7,1:8},"b@g":{0:9}}}"#;

/// The store of a broker, whose files alone have the offsets.
#[test]
fn a_damaged_file_is_copied_and_its_entries_that_parse_are_used() {
    for (text, offsets_left) in [
        (BROKERS_OFFSETS.split_at(38).0.to_owned(), [Some(7), Some(8), None]),
        (BROKERS_OFFSETS.replace(":8", ":99999999999999999999999"), [Some(7), None, Some(9)]),
        (BROKERS_OFFSETS.replace("0:7", "0;7"), [None, Some(8), Some(9)]),
        ("\0\0\0\0".to_owned(), [None; 3]),
        (String::new(), [None; 3]),
    ] {
        let vfs = SimVfs::default();
        write(&vfs, "consumerOffset.json", &text);
        let before = vfs.list(&files_on(&vfs).side()).unwrap().len();
        let notes = reader_notes(&vfs);
        assert!(notes.len() == 1 && notes[0].contains("consumerOffset.json: damaged"), "{notes:?}");
        assert_eq!(vfs.list(&files_on(&vfs).side()).unwrap().len(), before, "a reader writes nothing");
        let (log, notes) = open_noted(&vfs);
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].contains("consumerOffset.json: damaged"), "{notes:?}");
        assert_eq!(notes[0].contains("lost+found"), !text.is_empty(), "{notes:?}");
        let kept: Vec<_> = Some(text.clone()).into_iter().filter(|text| !text.is_empty()).collect();
        assert_eq!(copies(&vfs), kept);
        let queues = [("a", 0), ("a", 1), ("b", 0)];
        assert_eq!(queues.map(|(topic, id)| log.offset(key(&log, "g", topic, id))), offsets_left, "{text}");
        commit(&log, "g", "c", 0, 3);
        let killed = vfs.kill().unwrap();
        let again = open(&files_on(&killed));
        assert_eq!(dump(&again), dump(&log), "the file is not imported again over newer offsets");
        log.close().unwrap();
        let found = offsets(&vfs);
        assert_eq!(queues.map(|(topic, id)| found.get(topic, "g", id)), offsets_left);
        assert_eq!(found.get("c", "g", 0), Some(3));
        assert_eq!((copies(&vfs), reader_notes(&vfs)), (kept, Vec::new()));
    }
}

#[test]
fn a_damaged_file_of_ours_changes_nothing_and_is_written_again() {
    for text in ["", r#"{"offsetTable":{"a@g":{0:4,1:"#, r#"{"offsetTable":{"a@g":{0:99},#"#] {
        let vfs = filled();
        let log = open(&files_on(&vfs));
        commit(&log, "g", "a", 0, 6);
        let before = dump(&log);
        let vfs = vfs.kill().unwrap();
        write(&vfs, "consumerOffset.json", text);
        assert!(reader_notes(&vfs)[0].contains("mqstore/meta has what it contained"));
        let (log, notes) = open_noted(&vfs);
        assert!(notes[0].contains("mqstore/meta has what it contained"), "{notes:?}");
        assert_eq!(dump(&log), before);
        log.close().unwrap();
        assert_eq!((offsets(&vfs).get("a", "g", 0), reader_notes(&vfs)), (Some(6), Vec::new()));
    }
}

/// A broker renames the file that it replaces.
#[test]
fn a_damaged_file_that_a_broker_wrote_after_ours_counts_and_removes_nothing() {
    let vfs = filled();
    for name in ["consumerOffset.json", "topics.json"] {
        write(&vfs, &format!("{name}.bak"), std::str::from_utf8(&read(&vfs, name)).unwrap());
    }
    write(&vfs, "consumerOffset.json", r#"{"offsetTable":{"a@g":{0:77},"b@g":{0:"#);
    write(&vfs, "topics.json", r#"{"topicConfigTable":{"c":{"perm":6},"d":{"#);
    let (log, notes) = open_noted(&vfs);
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert_eq!(
        (names(&log), log.offset(key(&log, "g", "a", 0))),
        (["a", "b", "c"].map(str::to_owned).into(), Some(77))
    );
    log.close().unwrap();
    assert_eq!((topics(&vfs).topics.len(), copies(&vfs).len()), (3, 2));
}

#[test]
fn a_file_that_is_damaged_while_the_store_is_open_is_copied_before_it_is_replaced() {
    let vfs = filled();
    let log = open(&files_on(&vfs));
    commit(&log, "g", "a", 0, 6);
    write(&vfs, "consumerOffset.json", r#"{"offsetTable":{"#);
    log.close().unwrap();
    assert_eq!(copies(&vfs), [r#"{"offsetTable":{"#]);
}
