//! Documents that earlier versions wrote to disk stay readable.

use std::path::Path;

use serde_json::json;

use crate::files::manifest::Manifest;
use crate::job::job_record::{job_dir, tree_inode};
use crate::job::resume;
use crate::testing::sim_files;
use crate::{Document, Keyless, QueueTask, TaskCounts, TaskResult, published_report};
use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;

const REPORT: &str = r#"{"job_id":"j","messages_before":41,"messages_after":11,"keys":11,"keyless":2,"tombstones":3,
    "tombstones_kept":1,"rounds":1,"bytes_before":9000,"bytes_after":2400,"elapsed_ms":17,"skipped":["t/1: unchanged"],
    "queues":[{"topic":"t","queue_id":0,"counts":{"before":41},"worker":{"pid":7,"host":"h","module":"m"},
    "staging":"local-0"}]}"#;

const MANIFEST: &str = r#"{"version":1,"queues":{"prices/0":[{"token":"5-1-736-aa","replaces":"","job_id":"j","end":1200,
    "first_tombstone":310,"keyless":0,"removed":[[700,1700000000000],[1200,1700000000500]],
    "files":[{"name":"00000000000000000000","base":0,"units":7,"log":{"used_bytes":1505,"crc":77},
              "queue":{"used_bytes":368,"crc":88}},
             {"name":"00000000000000002208","base":2208,"units":4,"log":{"used_bytes":860,"crc":1},
              "queue":{"used_bytes":184,"crc":2}}]},
    {"token":"b","replaces":"a","job_id":"k","end":4,"first_tombstone":null,"keyless":1,"removed":[],"files":[]}]},
    "fed":{"prices/0":1200}}"#;

const TASK: &str = r#"{"version":1,"job_id":"j","nonce":"18-0a","root":"/data/store","topic":"t","queue_id":3,
    "log_file_bytes":2208,"queue_file_bytes":368,"memory_bytes":104857600,"confirm_keys":true,"keyless":"drop",
    "tombstones_below":0,"generation":"g","previous_end":60,"restored":false,"records":41,
    "log":{"queue_from":60,"queue_to":101,"queue_file_bytes":6000000,"scan_from":9000,"log_end":9000}}"#;

const RESULT: &str = r#"{"version":1,"job_id":"j","topic":"t","queue_id":3,"staging":"local-0","failed":null,
    "counts":{"before":41,"survivors":11,"keys":11,"keyless":2,"tombstones":3,"tombstones_kept":1,"bytes_before":9000,
    "bytes_after":2400,"rounds":1},"pairs":[{"name":"00000000000000000000","base":0,"units":11,
    "log":{"used_bytes":2400,"crc":2147483647},"queue":{"used_bytes":506,"crc":1}}],
    "log_tail":{"physical_offset":8785,"size":215,"queue_offset":100,"store_timestamp_ms":1700000000000},
    "position":100,"first_tombstone":null,"worker":{"pid":7,"host":"h","module":""}}"#;

fn write(files: &StoreFiles, path: &Path, text: &str) {
    files.vfs.create_dir_all(path.parent().unwrap()).unwrap();
    files.vfs.write_atomic(path, &path.with_extension("tmp"), text.as_bytes()).unwrap();
}

fn write_record(files: &StoreFiles, state: &str, inode: &str, report: &str) {
    let text = format!(
        r#"{{"version":1,"job_id":"j","state":"{state}","created_ms":5,"tree_inode":{inode},"report":{report}}}"#
    );
    write(files, &job_dir(files, "j").join("record.json"), &text);
}

#[test]
fn a_job_record_stays_readable() {
    let files = sim_files();
    write_record(&files, "running", "null", "null");
    assert_eq!((published_report(&files, "j").unwrap(), tree_inode(&files, "j").unwrap()), (None, None));
    write_record(&files, "publishing", "18446744073709551615", REPORT);
    assert_eq!(
        (published_report(&files, "j").unwrap(), tree_inode(&files, "j").unwrap()),
        (None, Some(u64::MAX))
    );
    write_record(&files, "published", "null", REPORT);
    let report = published_report(&files, "j").unwrap().unwrap();
    assert_eq!((report.messages_before, report.elapsed_ms, report.skipped.len()), (41, 17, 1));
    assert_eq!(report.queues[0]["worker"]["host"], "h");
    // A state that a later version may add.
    write_record(&files, "paused", "null", "null");
    assert_eq!(published_report(&files, "j").unwrap(), None);
    for (state, report) in [("published", "null"), ("publishing", "{}"), ("published", "[1")] {
        write_record(&files, state, "1", report);
        let error = published_report(&files, "j").unwrap_err();
        assert!(matches!(error, StoreError::InvalidOption { option: "job record", .. }), "{error}");
        assert!(error.to_string().contains("record.json"), "{error}");
    }
}

#[test]
fn a_manifest_stays_readable() {
    let files = sim_files();
    write(&files, &files.compaction_manifest(), MANIFEST);
    let manifest = Manifest::load(&files).unwrap();
    let [first, second] = manifest.generations("prices", 0) else { panic!("{manifest:?}") };
    assert_eq!((first.end, first.first_tombstone, first.records()), (1200, Some(310), 11));
    assert_eq!(first.removed, [(700, 1_700_000_000_000), (1200, 1_700_000_000_500)]);
    assert_eq!((first.files[1].base, first.files[1].queue.crc), (2208, 2));
    assert_eq!((second.first_tombstone, second.keyless, second.files.len()), (None, 1, 0));
    assert_eq!(manifest.appended_from("prices", 0), Some(1200));
    // Before appended offsets were recorded.
    let (queues, _) = MANIFEST.split_once(",\n    \"fed\"").unwrap();
    write(&files, &files.compaction_manifest(), &format!("{queues}}}"));
    let manifest = Manifest::load(&files).unwrap();
    assert_eq!((manifest.generations("prices", 0).len(), manifest.appended_from("prices", 0)), (2, None));
}

#[test]
fn a_finished_queue_stays_readable() {
    let files = sim_files();
    let staging = job_dir(&files, "j").join("local-0");
    let note = json!({"task": TASK, "result": RESULT}).to_string();
    write(&files, &staging.join("result.json"), &note);
    let task = QueueTask::from_json(TASK).unwrap();
    assert_eq!((task.geometry.log_file_bytes, task.keyless, task.log.queue_to), (2208, Keyless::Drop, 101));
    let again = QueueTask { nonce: "another run".to_owned(), ..task.clone() };
    let result = resume::find_result(&files, &again, &staging).unwrap().unwrap();
    assert_eq!(
        (result.counts.survivors, result.pairs[0].log.crc, result.position),
        (11, 0x7fff_ffff, Some(100))
    );
    assert_eq!(result.log_tail.unwrap().store_timestamp, 1_700_000_000_000);
    let without = TASK.replace(r#""restored":false,"#, "");
    assert_eq!(QueueTask::from_json(without).unwrap(), task);
}

#[test]
fn values_that_cannot_be_are_refused() {
    for (from, to) in [
        (r#""topic":"t""#, r#""topic":"../t""#),
        (r#""queue_id":3"#, r#""queue_id":-1"#),
        (r#""queue_id":3"#, r#""queue_id":4294967296"#),
        (r#""log_file_bytes":2208"#, r#""log_file_bytes":4294967296"#),
        (r#""queue_file_bytes":368"#, r#""queue_file_bytes":91"#),
        (r#""keyless":"drop""#, r#""keyless":"lose""#),
        (r#""log":{"queue_from":60,"#, r#""log":{"#),
        (r#""version":1"#, r#""version":2"#),
    ] {
        assert!(QueueTask::from_json(TASK.replacen(from, to, 1)).is_err(), "{to}");
    }
    for (from, to) in [
        (r#""topic":"t""#, r#""topic":"""#),
        (r#""counts":{"before":41"#, r#""counts":{"before":-41"#),
        (r#""crc":2147483647"#, r#""crc":4294967296"#),
        (r#""size":215"#, r#""size":"215""#),
        (r#","worker":{"pid":7,"host":"h","module":""}"#, ""),
    ] {
        assert!(TaskResult::from_json(RESULT.replacen(from, to, 1)).is_err(), "{to}");
    }
    assert_ne!(TaskResult::from_json(RESULT).unwrap().counts, TaskCounts::default());
}
