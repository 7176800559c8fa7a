//! Rebuild of queues and index from the log, for a directory that no process writes.
//!
//! Owns the order: queues and index are built in a staging folder, swapped in, and only then the manifest, the durable
//! mark and the checkpoint name them. The log is synced first, because the checkpoint says that it is durable.

use std::sync::Arc;

use mqstore_format::IndexGeometry;
use mqstore_io::{Access, switch};

use mqstore_base::durable_mark::{DurableMark, DurableMarkFile};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::options::StoreOptions;
use mqstore_base::progress::{Progress, ProgressWatcher};
use mqstore_base::store_files::StoreFiles;
use mqstore_base::topic_floors::TopicFloors;
use mqstore_engine::{batch_topics, load_listed};
use mqstore_engine::{refuse_rocksdb, take_lock};
use mqstore_log::checkpoint::CheckpointFile;
use mqstore_log::commit_log::SegmentList;
use mqstore_log::consume_queue::QueueSet;
use mqstore_log::dispatch::DispatchRules;
use mqstore_log::index::IndexSet;
use mqstore_log::recovery::{
    QueueManifest, RebuildInput, RebuildReport, RebuildRun, log_end, mark_fits, tags_are_indexed,
};

/// Rebuilds queues, index and checkpoint of the store at `files` from its log.
///
/// The log is not changed. The rebuild skips damage in it and lists it in the report. A torn log ends after its last
/// intact record. With `dry_run`, everything is built in a staging folder and then removed.
///
/// # Errors
/// [`StoreError::NotAStore`]; [`StoreError::Locked`] if another process has the store open for writing;
/// [`StoreError::Unsupported`] for queues in `RocksDB`; errors that `watcher` returns; I/O errors. After an error the
/// old files are still in use.
pub fn rebuild(
    files: &StoreFiles,
    options: &StoreOptions,
    dry_run: bool,
    watcher: ProgressWatcher<'_>,
) -> Result<RebuildReport, StoreError> {
    options.validate()?;
    files.check_is_store()?;
    refuse_rocksdb(files)?;
    let files = &files.clone().with_logs(options)?;
    let _lock = take_lock(files)?;
    rebuild_locked(files, options, dry_run, watcher)
}

/// Same as [`rebuild`], for a caller that holds the lock and has found the folders of the log.
pub(crate) fn rebuild_locked(
    files: &StoreFiles,
    options: &StoreOptions,
    dry_run: bool,
    watcher: ProgressWatcher<'_>,
) -> Result<RebuildReport, StoreError> {
    files.ensure_folder(&files.staging())?;
    let list = Arc::new(SegmentList::load(files)?);
    let mark = DurableMarkFile::new(files).try_load()?.filter(|mark| mark_fits(files, &list, mark));
    let found = log_end(files, &list, mark.as_ref(), 0, false)?;
    let mut notes = Vec::new();
    let listed = load_listed(files, &mut notes);
    let floors = TopicFloors::new(listed.floors);
    let delays = files.delay_tables(options.delay_levels.as_ref())?;
    if !dry_run {
        files.remember_delays(&delays)?;
    }
    let mut rules = DispatchRules {
        index_tags: options.index_tags,
        delays,
        batch_topics: batch_topics(files, &listed.table),
        floors: floors.clone(),
        skip_damage: true,
        check_place: true,
        ..DispatchRules::default()
    };
    let queue_file_bytes = mark.map_or(options.queue_file_bytes(), |mark| mark.queue_file_bytes);
    let queues = QueueSet::load(files, queue_file_bytes, Access::Read, &floors)?;
    let configured = IndexGeometry { slots: options.index_slots, entries: options.index_entries };
    let known = mark.map(|mark| mark.index_geometry());
    let index = IndexSet::load(files, known, configured, Access::Read)?;
    rules.index_tags = rules.index_tags || tags_are_indexed(files, &list, &index, mark.is_some())?;
    let helpers = options.dispatch_workers(&files.vfs.environment()).saturating_sub(1);
    let what = RebuildInput { list: Arc::clone(&list), rules, helpers };
    let made = RebuildRun::begin(files, (&queues, &index), what)?;
    let built = made.build_to(&list, found.end, &mut |reached| {
        watcher(Progress::of_log(list.min_offset(), reached, found.end))
    });
    let mut report = made.report(found.end);
    if built.is_err() || dry_run {
        made.abandon();
        built?;
    } else {
        finish(files, &list, mark, &made, found.end)?;
    }
    report.skipped.extend(found.damage);
    report.skipped.extend(notes);
    Ok(report)
}

/// Moves the new files into place, and updates the files that refer to them.
fn finish(
    files: &StoreFiles,
    list: &SegmentList,
    mark: Option<DurableMark>,
    made: &RebuildRun,
    end: u64,
) -> Result<(), StoreError> {
    // The new checkpoint states that the log is durable.
    let synced = mark.map_or(0, |mark| mark.position);
    for segment in list.segments().iter().filter(|segment| segment.end_offset() > synced) {
        let file = segment.file().at_file(|| segment.path(), "opening a log segment")?;
        switch::step("rebuild.sync_log", || file.sync_data()).at(&segment.path(), "syncing the log")?;
    }
    made.swap()?;
    let dispatched = mark.map_or(end, |mark| end.min(mark.position));
    if let Some(mark) = mark {
        QueueManifest::of(made.queues(), list.min_offset(), dispatched)?.store(files)?;
        let renewed =
            DurableMark { sequence: mark.sequence + 2, dispatched, index: made.index().extent(), ..mark };
        DurableMarkFile::new(files).store(&renewed, true)?;
    }
    let Some((last_offset, store_timestamp)) = made.last_record() else { return Ok(()) };
    let checkpoint = CheckpointFile::new(files);
    let mut times = checkpoint.load();
    times.physic_msg_timestamp = store_timestamp;
    times.logics_msg_timestamp = store_timestamp;
    times.index_msg_timestamp = made.index().last_sealed_end_timestamp();
    times.confirm_physical_offset = last_offset as i64;
    times.logics_physical_offset = last_offset as i64;
    checkpoint.store(&times)
}
