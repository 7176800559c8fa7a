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
    log.put_group(&SubscriptionGroup::new("g")).unwrap();
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
