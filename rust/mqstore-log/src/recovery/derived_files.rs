//! Bringing queues and index up to the log.
//!
//! Both are functions of the log. What is missing, short or damaged is made again from it; what lies
//! beyond its end is cut. The mark and the queue manifest say from where on that is needed, so that a
//! store which was closed well costs nothing here.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use mqstore_format::{RecordView, parse_index_file_name};
use mqstore_io::{Access, switch};

use super::progress::{ProgressReporter, RecoveryStage};
use super::{QueueManifest, RecoveredLog, missed_by_index, tags_are_indexed};
use crate::commit_log::read_record;
use crate::consume_queue::{BatchQueue, QueueSet};
use crate::dispatch::{BatchTopics, DispatchRules, Dispatcher};
use crate::index::IndexSet;
use mqstore_base::durable_mark::{DurableMark, DurableMarkFile, IndexExtent};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::live_page::no_sync_failed;
use mqstore_base::options::StoreOptions;
use mqstore_base::store_files::StoreFiles;

/// Queues and index that agree with the log.
#[derive(Debug)]
pub struct DerivedFiles {
    /// The queues.
    pub queues: Arc<QueueSet>,
    /// The index.
    pub index: Arc<IndexSet>,
    /// What keeps them so.
    pub dispatcher: Dispatcher,
    /// As many queues as the manifest names on the disk, if those are all there are.
    pub listed: Option<usize>,
    /// What a person should know, in plain words.
    pub notes: Vec<String>,
}

/// Loads queues and index, repairs them from the log and dispatches the rest of it.
pub fn recover_derived(
    files: &StoreFiles,
    options: &StoreOptions,
    log: &RecoveredLog,
    mut rules: DispatchRules,
    watch: &mut ProgressReporter<'_>,
) -> Result<DerivedFiles, StoreError> {
    let mut notes = Vec::new();
    remove_seals(files, &mut notes);
    let log_min = log.list.min_offset();
    let found = recover_queues(files, options, log, &rules.batch_topics, &mut notes)?;
    let queues = Arc::new(found.queues);
    if log.aborted {
        sync_names(files, &queues)?;
    }
    let (index, index_from) = recover_index(files, options, log, &mut rules, &mut notes)?;
    let start = found.complete_to.min(index_from).clamp(log_min, log.end);
    // What is made anew lies below what the mark vouches for and is not synced yet: should this recovery
    // be cut short, the next one must not take it for what was.
    if let Some(mark) = log.mark.filter(|mark| start < mark.dispatched) {
        let lower = DurableMark { sequence: mark.sequence + 2, clean: false, dispatched: start, ..mark };
        if switch::on("recovery.lower_mark") {
            DurableMarkFile::new(files).store(&lower, true)?;
        }
    }
    let list = Arc::clone(&log.list);
    let dispatcher = Dispatcher::new(
        files,
        Arc::clone(&list),
        Arc::clone(&queues),
        Arc::clone(&index),
        rules,
        start,
        index_from,
    );
    let helpers = options.dispatch_workers(&files.vfs.environment()).saturating_sub(1);
    dispatcher.run_with_helpers(helpers, &list, log.end, &mut |reached| {
        watch.step(RecoveryStage::Queues, reached.saturating_sub(start), log.end - start)
    })?;
    notes.extend(dispatcher.take_skipped_ranges());
    if dispatcher.refused_units() > 0 {
        notes.push(format!(
            "{} records name queue offsets that no queue can hold; they are read by log position and key only",
            dispatcher.refused_units()
        ));
    }
    if start < log.end {
        queues.correct_min_offsets(log_min)?;
    }
    Ok(DerivedFiles { queues, index, dispatcher, listed: found.listed, notes })
}

/// Makes names durable that a writer gave and did not live to sync: of index files, and of the folders
/// of queues of which nothing is left. What is left of the others was named before the mark was made.
fn sync_names(files: &StoreFiles, queues: &QueueSet) -> Result<(), StoreError> {
    let (plain, batch) = (files.consume_queue(), files.batch_consume_queue());
    let mut folders = BTreeSet::from([files.root.clone(), files.index(), plain.clone(), batch.clone()]);
    let mut add = |folder: &Path, topic: &str, queue_id: i32| {
        let topic = folder.join(topic);
        folders.extend([topic.join(queue_id.to_string()), topic]);
    };
    for queue in queues.all().iter().filter(|queue| queue.max_offset() == 0) {
        add(&plain, queue.topic(), queue.queue_id());
    }
    for queue in queues.batches().iter().filter(|queue| queue.max_offset() == 0) {
        add(&batch, queue.topic(), queue.queue_id());
    }
    for folder in folders {
        match switch::step("recovery.sync_names", || files.vfs.sync_dir(&folder)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            outcome => outcome.at(&folder, "syncing a folder")?,
        }
    }
    Ok(())
}

struct RecoveredQueues {
    queues: QueueSet,
    /// The log position up to which they have everything.
    complete_to: u64,
    /// As [`DerivedFiles::listed`].
    listed: Option<usize>,
}

fn recover_queues(
    files: &StoreFiles,
    options: &StoreOptions,
    log: &RecoveredLog,
    batch_topics: &BatchTopics,
    notes: &mut Vec<String>,
) -> Result<RecoveredQueues, StoreError> {
    let load = || QueueSet::load(files, options.queue_file_bytes(), Access::ReadWrite);
    let mut queues = load()?;
    let mut trusted = log.mark.is_some();
    let strays = queues.strays();
    if !strays.is_empty() {
        for stray in &strays {
            notes.push(files.set_aside(&stray.path, &stray.reason)?);
        }
        queues = load()?;
        trusted = false;
    }
    // After a kill the entries behind the last sync are there, but nobody would sync them: they are cut
    // and written again, like those that a power loss may have torn. Where another program cut the log,
    // an entry may be older than the record that lies at its place now.
    let trusted_to = match (log.aborted, log.rewritten) {
        (true, _) => synced_position(log),
        (false, true) => log.list.min_offset(),
        (false, false) => log.end,
    };
    queues.for_each(|queue| {
        queue.recover_bounds()?;
        queue.truncate(trusted_to)?;
        if queue.damaged().is_some() {
            // It may have been cut away; and a queue that is made anew forgets where it was, if the log
            // has lost all of its records.
            queue.recover_bounds()?;
        }
        queue.correct_min_offset(log.list.min_offset())
    })?;
    for queue in queues.all() {
        if let Some(reason) = queue.damaged() {
            quarantine_queue(&queues, false, (queue.topic(), queue.queue_id()), &reason, notes)?;
            trusted = false;
        }
    }
    for queue in queues.batches() {
        queue.recover_bounds()?;
        let damaged = queue.damaged();
        queue.truncate(trusted_to)?;
        if log.aborted {
            cut_mixed_end(files, log, &queue)?;
        }
        queue.correct_min_offset(log.list.min_offset())?;
        if let Some(reason) = damaged {
            quarantine_queue(&queues, true, (queue.topic(), queue.queue_id()), &reason, notes)?;
            trusted = false;
        }
    }
    let mut listed = None;
    if let Some(mark) = log.mark {
        let Some(manifest) = QueueManifest::load(files) else {
            // A new store that was stopped before its first queue was synced has none.
            if mark.dispatched > log.list.min_offset() {
                notes.push("nothing says which queues there were; all of the log is dispatched again".into());
            }
            return Ok(RecoveredQueues { queues, complete_to: log.list.min_offset(), listed: None });
        };
        let complete_to = mark.dispatched.min(trusted_to);
        let compared = manifest.compare(&queues, log.list.min_offset(), complete_to);
        listed = Some(manifest.len()).filter(|_| as_closed(log) && compared.complete);
        for (topic, queue_id) in compared.lost {
            let batch = batch_topics.contains(topic);
            quarantine_queue(&queues, batch, (topic, queue_id), "it is not as it was left", notes)?;
            trusted = false;
        }
    }
    let complete_to = log.mark.filter(|_| trusted).map_or(log.list.min_offset(), |mark| mark.dispatched);
    Ok(RecoveredQueues { queues, complete_to, listed: listed.filter(|_| trusted) })
}

/// Cuts the last entry of a batch queue that a power loss has made of two, both of records behind what was synced, so
/// that it names a place before it and yet follows the entry before: no record of the queue lies there.
fn cut_mixed_end(files: &StoreFiles, log: &RecoveredLog, queue: &BatchQueue) -> Result<(), StoreError> {
    let Some(unit) = queue.last_if_split() else { return Ok(()) };
    let place = unit.physical_offset as u64;
    if place < log.list.min_offset() {
        // The record was deleted, so that nothing can be compared. What keeps the queue's place stays.
        return Ok(());
    }
    let names =
        |record: &RecordView<'_>| record.topic == queue.topic() && record.queue_id == queue.queue_id();
    // The size may be part of the mixture.
    let found = match read_record(files, &log.list, place, 0) {
        Ok(bytes) => RecordView::decode(bytes.as_slice()).is_ok_and(|record| names(&record)),
        Err(StoreError::Corrupt { .. }) => false,
        Err(error) => return Err(error),
    };
    if found { Ok(()) } else { queue.truncate(place) }
}

/// Whether nobody has written to the log since a close of ours.
fn as_closed(log: &RecoveredLog) -> bool {
    !log.aborted && !log.rewritten && log.mark.is_some_and(|mark| mark.is_clean_end(log.end))
}

/// Removes `mqstore/seals`, a cache that older versions wrote and nothing reads. A removal that a crash undoes is
/// repeated by the next open, so that it needs no sync.
fn remove_seals(files: &StoreFiles, notes: &mut Vec<String>) {
    let path = files.side().join("seals");
    match files.vfs.remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            notes.push(format!("cannot remove {}, a cache of an older version: {error}", path.display()));
        }
        _ => {}
    }
}

/// Moves a queue aside, so that all of it is derived from the log.
fn quarantine_queue(
    queues: &QueueSet,
    batch: bool,
    (topic, queue_id): (&str, i32),
    reason: &str,
    notes: &mut Vec<String>,
) -> Result<(), StoreError> {
    let kept = if batch {
        queues.quarantine_batch_queue(topic, queue_id)?
    } else {
        queues.set_aside(topic, queue_id)?
    };
    let kept = kept.map_or(String::new(), |kept| format!(", kept as {}", kept.display()));
    notes.push(format!("queue {topic}/{queue_id}: {reason}; made anew{kept}"));
    Ok(())
}

/// Whether everything that was written is there, and what is not synced yet will be by the next sync:
/// the machine has not stopped since the mark, and no sync has failed. After a power loss any subset of
/// a file's pages may be there; after a failed sync they may be so any time, and count as clean.
fn is_page_cache_intact(files: &StoreFiles, log: &RecoveredLog) -> bool {
    log.mark.is_some_and(|mark| mark.boot_id == files.vfs.environment().boot_id) && no_sync_failed(files)
}

/// The log position up to which derived files are known to be synced; nothing in a store of somebody
/// else.
fn synced_position(log: &RecoveredLog) -> u64 {
    log.mark.map_or(0, |mark| mark.dispatched).min(log.end)
}

fn recover_index(
    files: &StoreFiles,
    options: &StoreOptions,
    log: &RecoveredLog,
    rules: &mut DispatchRules,
    notes: &mut Vec<String>,
) -> Result<(Arc<IndexSet>, u64), StoreError> {
    let known = log.mark.map(|mark| mark.index_geometry());
    let configured =
        mqstore_format::IndexGeometry { slots: options.index_slots, entries: options.index_entries };
    let load = || IndexSet::load(files, known, configured, Access::ReadWrite);
    let mut index = load()?;
    rules.index_tags = rules.index_tags || tags_are_indexed(files, &log.list, &index, log.mark.is_some())?;
    let mut in_the_way = Vec::new();
    for stray in index.strays() {
        if names_an_index_file(&stray.path) {
            in_the_way.push(stray.clone());
        } else {
            notes.push(format!("{}: ignored, {}", stray.path.display(), stray.reason));
        }
    }
    if !in_the_way.is_empty() {
        for stray in &in_the_way {
            notes.push(files.set_aside(&stray.path, &stray.reason)?);
        }
        index = load()?;
        // Files are named by age: what goes at the end is indexed again, a hole needs all of it.
        let newest = index.newest_path();
        if in_the_way.iter().any(|stray| newest.as_ref().is_some_and(|newest| stray.path < *newest)) {
            index.remove_all()?;
        }
    }
    if log.aborted && !is_page_cache_intact(files, log) {
        index.drop_from(synced_position(log))?;
    }
    let missing = index.file_count() < log.mark.map_or(0, |mark| mark.index.files as usize) && !log.aborted;
    if missing || log.rewritten {
        index.remove_all()?;
    }
    // Entries of records that were cut would pass for those of the records that come in their place.
    if index.end_physical() >= log.end as i64 {
        index.drop_from(log.end)?;
    }
    let as_left =
        !log.aborted && log.mark.is_some_and(|mark| mark.is_unchanged_since_close(log.end, index.extent()));
    if !as_left && let Some(missed) = missed_by_index(&log.list, &index, log.end)? {
        notes.push(format!(
            "index files are missing, as after a crash of RocketMQ, which deletes them; messages from log offset {missed} \
             on are indexed again"
        ));
        index.drop_from(missed)?;
    }
    let mut from = index_start(log.mark.as_ref(), index.extent());
    if !leads_to_a_record(files, log, from)? {
        notes.push("the newest entry of the index leads to no record; the index is made anew".to_owned());
        index.remove_all()?;
        from = 0;
    }
    Ok((Arc::new(index), from))
}

/// Whether the log can be dispatched from `from` on: a damaged header of an index file names any place.
fn leads_to_a_record(files: &StoreFiles, log: &RecoveredLog, from: u64) -> Result<bool, StoreError> {
    let vouched = log.mark.is_some_and(|mark| mark.dispatched == from);
    if vouched || from <= log.list.min_offset() || from >= log.end {
        return Ok(true);
    }
    match read_record(files, &log.list, from, 0) {
        Ok(_) => Ok(true),
        Err(StoreError::Corrupt { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

fn names_an_index_file(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| parse_index_file_name(name).is_some())
}

/// From which log position on the index wants entries.
///
/// The record of the newest entry is wanted again unless the index is just as the mark knew it: its other keys
/// may have been in a file that is gone.
fn index_start(mark: Option<&DurableMark>, index: IndexExtent) -> u64 {
    match mark {
        _ if index.files == 0 => 0,
        Some(mark) if mark.index == index => mark.dispatched,
        _ => index.end.max(0) as u64,
    }
}
