//! Recovery of queues and index from the log.
//!
//! Both can be derived from the log. Recovery derives missing, short or damaged parts again, and cuts parts that point
//! past the end of the log. The durable mark and the queue manifest say where this work starts, so an open after a
//! clean close reads no records.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use mqstore_format::{RecordView, parse_index_file_name};
use mqstore_io::{Access, switch};

use super::progress::{ProgressReporter, RecoveryStage};
use super::{QueueManifest, RecoveredLog, missed_by_index, tags_are_indexed};
use crate::commit_log::read_record;
use crate::consume_queue::{BatchQueue, QueueSet};
use crate::dispatch::{DispatchRules, Dispatcher};
use crate::index::IndexSet;
use mqstore_base::durable_mark::{DurableMark, DurableMarkFile, IndexExtent};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::options::StoreOptions;
use mqstore_base::store_files::StoreFiles;

/// Queues and index that agree with the log.
#[derive(Debug)]
pub struct DerivedFiles {
    /// The consume queues and batch queues.
    pub queues: Arc<QueueSet>,
    /// The key index.
    pub index: Arc<IndexSet>,
    /// The dispatcher that keeps both up to date.
    pub dispatcher: Dispatcher,
    /// Number of queues in the manifest, if it names exactly the queues on disk.
    pub listed: Option<usize>,
    /// Notes for the user, one sentence each.
    pub notes: Vec<String>,
}

/// Loads queues and index, repairs them from the log and dispatches the rest of the log.
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
    let found = recover_queues(files, options, log, &rules, &mut notes)?;
    let queues = Arc::new(found.queues);
    if log.aborted {
        sync_names(files, &queues)?;
    }
    let (index, index_from) = recover_index(files, options, log, &mut rules, &mut notes)?;
    let start = found.complete_to.min(index_from).clamp(log_min, log.end);
    // The new entries are before `mark.dispatched` and not synced yet. If this recovery is interrupted, the next one
    // must not trust them.
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
            "{} records have queue offsets that no queue can hold; read them by log offset or key",
            dispatcher.refused_units()
        ));
    }
    if start < log.end {
        queues.correct_min_offsets(log_min)?;
    }
    Ok(DerivedFiles { queues, index, dispatcher, listed: found.listed, notes })
}

/// Syncs names that a stopped writer may have left unsynced: those of index files, and the folders of queues without a
/// remaining file. All other queue files were named before the mark was made.
fn sync_names(files: &StoreFiles, queues: &QueueSet) -> Result<(), StoreError> {
    let (plain, batch) = (files.consume_queue(), files.batch_consume_queue());
    let mut folders = BTreeSet::from([files.root.clone(), files.index(), plain.clone(), batch.clone()]);
    let mut add = |folder: &Path, topic: &str, queue_id: i32| {
        let topic = folder.join(topic);
        folders.extend([topic.join(queue_id.to_string()), topic]);
    };
    for queue in queues.all().iter().filter(|queue| queue.is_empty()) {
        add(&plain, queue.topic(), queue.queue_id());
    }
    for queue in queues.batches().iter().filter(|queue| queue.is_empty()) {
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
    /// Log offset up to which the queues are complete.
    complete_to: u64,
    /// Like [`DerivedFiles::listed`].
    listed: Option<usize>,
}

fn recover_queues(
    files: &StoreFiles,
    options: &StoreOptions,
    log: &RecoveredLog,
    rules: &DispatchRules,
    notes: &mut Vec<String>,
) -> Result<RecoveredQueues, StoreError> {
    let load = || QueueSet::load(files, options.queue_file_bytes(), Access::ReadWrite, &rules.floors);
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
    // After a kill, the units after the last sync exist, but no later sync would cover them. Recovery cuts and rewrites
    // them, like units that a power loss may have torn. If another program cut the log, a unit may be older than the
    // record that is at its offset now.
    let trusted_to = match (log.aborted, log.rewritten) {
        (true, _) => synced_position(log),
        (false, true) => log.list.min_offset(),
        (false, false) => log.end,
    };
    queues.for_each(|queue| {
        queue.recover_bounds()?;
        // A stop may have left files of a topic that was deleted.
        queue.remove_deleted()?;
        queue.truncate(trusted_to)?;
        if queue.damaged().is_some() {
            // The damaged unit may be gone after the truncation. A queue that is derived again would lose its next
            // offset if the log holds none of its records any more.
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
        queue.remove_deleted()?;
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
            // A new store that stopped before its first queue was synced has no manifest.
            if mark.dispatched > log.list.min_offset() {
                notes.push(
                    "the queue manifest is missing or damaged; the whole log is dispatched again".into(),
                );
            }
            return Ok(RecoveredQueues { queues, complete_to: log.list.min_offset(), listed: None });
        };
        let complete_to = mark.dispatched.min(trusted_to);
        let compared = manifest.compare(&queues, log.list.min_offset(), complete_to);
        listed = Some(manifest.len()).filter(|_| as_closed(log) && compared.complete);
        for (topic, queue_id) in compared.lost {
            let batch = rules.batch_topics.contains(topic);
            quarantine_queue(
                &queues,
                batch,
                (topic, queue_id),
                "it has lost units since the last flush",
                notes,
            )?;
            trusted = false;
        }
    }
    let complete_to = log.mark.filter(|_| trusted).map_or(log.list.min_offset(), |mark| mark.dispatched);
    Ok(RecoveredQueues { queues, complete_to, listed: listed.filter(|_| trusted) })
}

/// Cuts the last unit of a batch queue if a power loss mixed it from two unsynced units: its queue offset follows the
/// unit before it, but no record of the queue is at its log offset.
fn cut_mixed_end(files: &StoreFiles, log: &RecoveredLog, queue: &BatchQueue) -> Result<(), StoreError> {
    let Some(unit) = queue.last_if_split() else { return Ok(()) };
    let place = unit.physical_offset as u64;
    if place < log.list.min_offset() {
        // The record was deleted, so nothing can be compared. The unit stays, because it keeps the queue's next offset.
        return Ok(());
    }
    let names =
        |record: &RecordView<'_>| record.topic == queue.topic() && record.queue_id == queue.queue_id();
    // The size may be part of the mixture, so the read uses no size.
    let found = match read_record(files, &log.list, place, 0) {
        Ok(bytes) => RecordView::decode(bytes.as_slice()).is_ok_and(|record| names(&record)),
        Err(StoreError::Corrupt { .. }) => false,
        Err(error) => return Err(error),
    };
    if found { Ok(()) } else { queue.truncate(place) }
}

/// Whether mqstore closed the log cleanly and no program has written to it since.
fn as_closed(log: &RecoveredLog) -> bool {
    !log.aborted && !log.rewritten && log.mark.is_some_and(|mark| mark.is_clean_end(log.end))
}

/// Removes `mqstore/seals`, a cache of older versions that nothing reads. No sync is needed: if a crash undoes the
/// removal, the next open repeats it.
fn remove_seals(files: &StoreFiles, notes: &mut Vec<String>) {
    let path = files.side().join("seals");
    match files.vfs.remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            notes.push(format!("cannot remove {}, a cache of an older version: {error}", path.display()));
        }
        _ => {}
    }
}

/// Moves a queue to lost+found, so that dispatch derives all of it from the log.
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
    notes.push(format!("queue {topic}/{queue_id}: {reason}; rebuilt{kept}"));
    Ok(())
}

/// Log offset up to which derived files are known to be synced; 0 without a durable mark that fits.
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
        // File names sort by age. If only the end is missing, dispatch indexes it again; a hole before the newest file
        // needs a complete rebuild.
        let newest = index.newest_path();
        if in_the_way.iter().any(|stray| newest.as_ref().is_some_and(|newest| stray.path < *newest)) {
            index.remove_all()?;
        }
    }
    if log.aborted {
        if !log.page_cache_intact {
            index.drop_from(synced_position(log))?;
        } else if switch::on("recovery.link_index_entry") {
            index.link_newest_entry()?;
        }
    }
    let missing = index.file_count() < log.mark.map_or(0, |mark| mark.index.files as usize) && !log.aborted;
    if missing || log.rewritten {
        index.remove_all()?;
    }
    // Entries of truncated records would pass for entries of the records that take their place.
    if index.end_physical() >= log.end as i64 {
        index.drop_from(log.end)?;
    }
    let as_left =
        !log.aborted && log.mark.is_some_and(|mark| mark.is_unchanged_since_close(log.end, index.extent()));
    if !as_left && let Some(missed) = missed_by_index(&log.list, &index, log.end, &rules.floors.now())? {
        notes.push(format!(
            "index files are missing, as after a crash of RocketMQ, which deletes them; messages from log offset \
             {missed} on are indexed again"
        ));
        index.drop_from(missed)?;
    }
    let mut from = index_start(log.mark.as_ref(), index.extent());
    if !leads_to_a_record(files, log, from)? {
        notes.push("the newest entry of the index points to no record; the index is rebuilt".to_owned());
        index.remove_all()?;
        from = 0;
    }
    Ok((Arc::new(index), from))
}

/// Whether dispatch can start at `from`: a damaged header of an index file can name any offset.
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

/// Returns the log offset from which the index needs entries.
///
/// If the index has changed since the mark, the record of the newest entry is indexed again: entries of its other keys
/// may have been in a file that is gone.
fn index_start(mark: Option<&DurableMark>, index: IndexExtent) -> u64 {
    match mark {
        _ if index.files == 0 => 0,
        Some(mark) if mark.index == index => mark.dispatched,
        _ => index.end.max(0) as u64,
    }
}
