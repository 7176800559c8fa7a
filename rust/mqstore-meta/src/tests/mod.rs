//! The metadata log on the simulated file system.

mod damage;
mod generations;
mod json_files;
mod log;
mod maintenance;
mod model;
mod offsets;

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use mqstore_format::json::TopicConfig;
use mqstore_io::{ManualClock, SimVfs, Vfs};

use super::{MetaLog, OffsetChange, QueueKey};
use mqstore_base::error::StoreError;
use mqstore_base::options::RecoveryMode;
use mqstore_base::store_files::StoreFiles;

/// Returns the files of a store on `vfs`.
fn files_on(vfs: &SimVfs) -> StoreFiles {
    let files = StoreFiles::new(
        Arc::new(vfs.clone()),
        Arc::new(ManualClock::new(1_700_000_000_000)),
        Path::new("/s"),
    );
    vfs.create_dir_all(Path::new("/s/mqstore")).unwrap();
    for folder in ["/", "/s"] {
        vfs.sync_dir(Path::new(folder)).unwrap();
    }
    files
}

fn open(files: &StoreFiles) -> MetaLog {
    open_by(files, RecoveryMode::Strict).unwrap()
}

fn open_by(files: &StoreFiles, mode: RecoveryMode) -> Result<MetaLog, StoreError> {
    MetaLog::open(files, MetaLog::find(files, mode)?, &mut Vec::new())
}

fn key(log: &MetaLog, group: &str, topic: &str, queue_id: i32) -> QueueKey {
    log.queue_key(group, topic, queue_id).unwrap()
}

fn commit(log: &MetaLog, group: &str, topic: &str, queue_id: i32, offset: i64) {
    log.commit(&[OffsetChange { queue: key(log, group, topic, queue_id), offset }]).unwrap();
}

fn put_topic(log: &MetaLog, name: &str, queues: i32) {
    log.put_topics(&[TopicConfig::new(name, queues)]).unwrap();
}

/// Returns the complete state of the log as text.
fn dump(log: &MetaLog) -> String {
    let mut out = String::new();
    for topic in log.topics() {
        writeln!(out, "topic {} {}", topic.name, topic.to_text(&topic.name)).unwrap();
    }
    for (name, floor) in log.floors().iter() {
        writeln!(out, "floor {name} {floor:?}").unwrap();
    }
    writeln!(out, "retentions {:?}", log.retentions()).unwrap();
    for name in log.groups() {
        let config = log.group(&name).map(|group| group.to_text(&name));
        writeln!(out, "group {name} {config:?}").unwrap();
    }
    let name = |id| log.name(id).unwrap();
    let mut lines = Vec::new();
    for (queue, offset) in log.offsets.lock().iter() {
        lines.push(format!("offset {}/{}/{} {offset}", name(queue.group), name(queue.topic), queue.queue_id));
    }
    for (queue, progress) in log.progress.read().iter() {
        let state = progress.lock();
        if state.offset().is_none() {
            continue;
        }
        let parts: Vec<_> = state.parts().collect();
        let bounds = (state.committed(), state.next());
        let of = (name(queue.group), name(queue.topic), queue.queue_id);
        lines.push(format!("progress {of:?} {bounds:?} {parts:?}"));
    }
    lines.sort();
    out + &lines.join("\n")
}
