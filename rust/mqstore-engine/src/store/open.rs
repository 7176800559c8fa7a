//! Opening a store for writing: creates it, takes its lock, recovers it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use mqstore_format::UniqueKeyGenerator;
use mqstore_io::switch;
use mqstore_io::sync::Mutex;
use mqstore_io::{FileKind, StoreLock};

use super::services::remove_replaced;
use super::writer::Writer;
use crate::compact::compaction_state::Compactions;
use crate::engine::append_gate::AppendGate;
use crate::engine::damage_notes::damage_notes;
use crate::engine::lifecycle::Lifecycle;
use crate::engine::signals::ServiceSignals;
use crate::engine::topics::{Topics, batch_topics_of};
use crate::engine::{Engine, next_token};
use crate::read::older::OlderSlot;
use crate::reclaim::Reclaim;
use crate::retention::Cleaner;
use crate::topic_retention::TopicRetentions;
use mqstore_base::durable_mark::DurableMarkFile;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::live_page::{LivePage, lock_store};
use mqstore_base::options::{Durability, RecoveryMode, StoreOptions, Visibility};
use mqstore_base::store_files::StoreFiles;
use mqstore_base::topic_floors::TopicFloors;
use mqstore_compaction::{
    CompactionAppender, CompactionGeometry, ManifestCache, finish_swap, remove_deleted,
};
use mqstore_log::commit_log::{CommitLog, LogOptions, SyncPoint};
use mqstore_log::dispatch::DispatchRules;
use mqstore_log::flush::{FlushPolicy, Flusher};
use mqstore_log::recovery::{ProgressReporter, RecoveredLog, RecoveryInput, recover_derived, recover_log};
use mqstore_meta::{FoundLog, MetaLog};

/// Takes the lock of the store at `files` for writing. Returns the files with their links, also new ones: see
/// [`StoreFiles::with_derived_at`].
pub(super) fn begin_writing(
    files: StoreFiles,
    options: &StoreOptions,
) -> Result<(StoreFiles, Box<dyn StoreLock>), StoreError> {
    files.check_is_store()?;
    refuse_rocksdb(&files)?;
    let lock = take_lock(&files)?;
    let files = match &options.derived_path {
        Some(folder) => files.with_derived_at(folder)?,
        None => files,
    };
    Ok((files, lock))
}

/// Opens the store at `files` for writing under its lock: recovers it.
pub(super) fn open_writer(
    files: &StoreFiles,
    options: &StoreOptions,
    lock: Box<dyn StoreLock>,
    watch: &mut ProgressReporter<'_>,
) -> Result<Arc<Writer>, StoreError> {
    let input = RecoveryInput {
        mark: DurableMarkFile::new(files).try_load()?,
        aborted: files.vfs.stat(&files.abort()).is_ok(),
        mode: options.recovery,
    };
    let options = &input.mark.map_or_else(|| options.clone(), |mark| mark.with_sizes(options));
    let begin = || {
        if input.mark.is_none() {
            sync_store_name(files)?;
        }
        prepare_own_folder(files)?;
        create_abort_file(files)
    };
    // Before the first change: a store with damaged delay levels or metadata is refused unchanged.
    files.delay_tables(options.delay_levels.as_ref())?;
    let meta = MetaLog::find(files, options.recovery)?;
    let paths_note = files.paths_note();
    let mut recovered = recover_log(files, options.segment_bytes, &input, begin, watch)?;
    recovered.notes.extend(paths_note);
    start_writer(files, options, lock, (recovered, meta), &input, watch)
}

fn start_writer(
    files: &StoreFiles,
    options: &StoreOptions,
    lock: Box<dyn StoreLock>,
    (recovered, meta): (RecoveredLog, FoundLog),
    input: &RecoveryInput,
    watch: &mut ProgressReporter<'_>,
) -> Result<Arc<Writer>, StoreError> {
    let mut notes = recovered.notes.clone();
    notes.extend(finish_swap(files)?);
    let meta = Arc::new(MetaLog::open(files, meta, &mut notes)?);
    notes.extend(damage_notes(files, true)?);
    notes.extend(files.rocksdb_notes());
    meta.clamp_floors(recovered.end)?;
    let floors = TopicFloors::new(meta.floors());
    let log = recovered.list.min_offset()..recovered.end;
    let delays = files.settle_delays(options.delay_levels.as_ref(), &log, input.mark.is_some())?;
    let listed = meta.topics();
    let batch = batch_topics_of(files, listed.iter().map(|topic| &**topic));
    let rules = DispatchRules {
        index_tags: options.index_tags,
        delays,
        batch_topics: batch.clone(),
        floors: floors.clone(),
        skip_damage: options.recovery == RecoveryMode::Salvage,
        ..DispatchRules::default()
    };
    let environment = files.vfs.environment();
    // Neither the time nor the process id distinguishes two opens: a clock may stand still, and containers share ids.
    let token = environment.random_seed;
    // Before the queues change: a reader that trusted the page of a killed writer would miss the units that are cut.
    let kept = recovered.kept_units_end();
    let (live, page_lock) = LivePage::create(files, token, options.durable_only(), log.clone(), kept)?;
    let live = Arc::new(live);
    let derived = recover_derived(files, options, &recovered, rules, watch)?;
    notes.extend(derived.notes);
    for (topic, floor) in floors.now().iter().filter(|(_, floor)| floor.deleted > 0) {
        remove_deleted(files, topic, floor)?;
    }
    let geometry = CompactionGeometry::from_settings(
        options.compaction_log_file_bytes,
        options.compaction_queue_file_bytes,
    )?;
    let (last_offset, last_size) = recovered.last.unwrap_or_default();
    let point = SyncPoint {
        position: recovered.end,
        last_offset,
        last_size,
        store_timestamp_ms: recovered.store_timestamp_ms,
    };
    let log = CommitLog::open(files, &LogOptions::of(options), recovered.segments, point, Arc::clone(&live))?;
    let log = Arc::new(check_log_quota(log, options)?);
    let dispatcher = Arc::new(derived.dispatcher);
    dispatcher.attach(&live);
    if options.visibility == Visibility::Confirmed {
        // The records of this log count. Later ones wait for their copies.
        let _ = dispatcher.set_limit(recovered.end);
    }
    dispatcher.look_at_maps();
    let mark = input.mark.unwrap_or_default();
    let flusher = Flusher::new(
        files,
        flush_policy(options),
        Arc::clone(&log),
        Arc::clone(&derived.queues),
        Arc::clone(&derived.index),
        Arc::clone(&dispatcher),
        mark,
    );
    let flusher = Arc::new(flusher.with_metadata(meta.file_flag(), meta.synced()));
    if let Some(queues) = derived.listed {
        flusher.set_manifest_len(queues);
    }
    // The new mark is not clean: from here on the directory is in use, with or without `abort`.
    flusher.flush_all(false)?;
    stop_with(&meta, &log);
    let topics = Topics::new(&meta, batch, &derived.queues);
    if let count @ 1.. = meta.clamp_to_queues(|topic, queue_id| topics.end_of(topic, queue_id))? {
        notes.push(format!(
            "{count} committed offsets of groups were after the end of their queue and are set back to it"
        ));
    }
    for note in notes {
        files.notes.warn(note);
    }
    let append_gate = AppendGate::new(files, options, log.segment_bytes());
    append_gate.check_disks()?;
    let engine = Arc::new(Engine {
        files: files.clone(),
        options: options.clone(),
        log,
        live,
        queues: derived.queues,
        index: derived.index,
        dispatcher,
        flusher,
        topics,
        meta,
        append_gate,
        token: next_token(),
        ids: UniqueKeyGenerator::new(options.store_host.ip, environment.pid, token as u32)
            .starting_at((token >> 32) as u16)
            .with_utc_offset_ms(files.clock.utc_offset_ms(files.clock.now_ms())),
        signals: ServiceSignals::default(),
        lifecycle: Lifecycle::new(vec![page_lock, lock]),
        manifests: ManifestCache::default(),
        removed_to: AtomicU64::default(),
        rebuilding: Mutex::default(),
    });
    let writer = with_services(engine, CompactionAppender::new(files, geometry));
    writer.compactions.advance_past_compacted()?;
    Ok(writer)
}

/// Returns `engine` with the services above it.
fn with_services(engine: Arc<Engine>, appender: CompactionAppender) -> Arc<Writer> {
    let cleaner = Arc::new(Cleaner::new(&engine));
    Arc::new(Writer {
        topic_retentions: TopicRetentions::new(&engine, &cleaner, OlderSlot::default()),
        reclaim: Reclaim::new(&engine, &cleaner),
        compactions: Compactions::new(&engine, appender, remove_replaced),
        tasks: Mutex::default(),
        cleaner,
        engine,
    })
}

/// Lets the store stop if the metadata log stops.
fn stop_with(meta: &MetaLog, log: &Arc<CommitLog>) {
    let log = Arc::downgrade(log);
    meta.on_stop(move |stage, cause| {
        if let Some(log) = log.upgrade() {
            log.poison(stage, cause);
        }
    });
}

fn flush_policy(options: &StoreOptions) -> FlushPolicy {
    FlushPolicy {
        interval_ms: options.flush_interval_ms,
        least_pages: options.flush_least_pages,
        thorough_interval_ms: options.flush_thorough_interval_ms,
        background: options.durability != Durability::Manual,
    }
}

/// Returns the log, unless its quota is less than one segment.
fn check_log_quota(log: CommitLog, options: &StoreOptions) -> Result<CommitLog, StoreError> {
    let Some(most) = options.max_bytes.filter(|most| *most < log.segment_bytes()) else { return Ok(log) };
    let reason =
        format!("{most} is less than a segment of this log, which has {} bytes", log.segment_bytes());
    Err(StoreError::InvalidOption { option: "max_bytes", reason })
}

/// Takes the lock that RocketMQ takes.
///
/// # Errors
/// [`StoreError::Locked`] with the process that holds the lock, if it is known; [`StoreError::Unsupported`] if a folder
/// of the store is a link that leads nowhere.
pub fn take_lock(files: &StoreFiles) -> Result<Box<dyn StoreLock>, StoreError> {
    files.check_links()?;
    lock_store(files)
}

/// Makes the name of the root durable: the process that made the root may have stopped before it did.
fn sync_store_name(files: &StoreFiles) -> Result<(), StoreError> {
    let parent = parent(&files.root);
    match switch::step("open.sync_store_name", || files.vfs.sync_dir(&parent)) {
        // A process that may not open the parent folder did not make the store.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Ok(()),
        outcome => outcome.at(&parent, "syncing the parent folder"),
    }
}

/// Makes `mqstore/` and empties its staging folder.
fn prepare_own_folder(files: &StoreFiles) -> Result<(), StoreError> {
    for staging in files.staging_folders() {
        files.ensure_folder(&staging)?;
        for entry in files.vfs.list(&staging).at(&staging, "listing the staging folder")? {
            let path = staging.join(&entry.name);
            let outcome = match entry.stat.kind {
                FileKind::Directory => files.vfs.remove_dir_all(&path),
                _ => files.vfs.remove_file(&path),
            };
            outcome.at(&path, "removing a leftover staging file")?;
        }
    }
    files.prepare_logs()
}

/// Makes `abort` durable before the first change.
fn create_abort_file(files: &StoreFiles) -> Result<(), StoreError> {
    files.replace_file(&files.abort(), files.vfs.environment().pid.to_string().as_bytes(), "writing abort")
}

/// Refuses a store that keeps its queues in `RocksDB`.
///
/// # Errors
/// [`StoreError::Unsupported`].
pub fn refuse_rocksdb(files: &StoreFiles) -> Result<(), StoreError> {
    let Some(path) = files.rocksdb_queues().pop() else { return Ok(()) };
    let unused = if path == files.consume_queue_rocksdb() {
        "; if no broker uses this folder any more, move it away"
    } else {
        ""
    };
    Err(StoreError::Unsupported {
        path,
        reason: format!(
            "has queues in RocksDB, which mqstore cannot write: open the store with mode \"r\", or make a store that you \
             can write: mqstore export DIR OUT --to store{unused}"
        ),
    })
}

/// Makes an empty store at `files`, unless there is one.
///
/// A new folder is made under another name and renamed when it is complete. An existing empty folder becomes a store
/// when it gets its `commitlog` folder. So a stop at any moment leaves no folder, the empty folder, or a store.
pub(super) fn create(files: &StoreFiles) -> Result<(), StoreError> {
    files.refuse_raft_log()?;
    match files.vfs.list(&files.root) {
        Ok(entries) if entries.iter().any(|entry| entry.name == "commitlog") => Ok(()),
        Ok(entries) if entries.iter().all(|entry| is_ours(&entry.name.to_string_lossy())) => {
            make_log_folder(files, &files.root)
        }
        Ok(entries) => {
            files.refuse_tiered_store()?;
            let found = entries.iter().find(|entry| !is_ours(&entry.name.to_string_lossy()));
            let name = found.map(|entry| entry.name.to_string_lossy().into_owned()).unwrap_or_default();
            let advice = files.store_below(&entries).unwrap_or_default();
            Err(StoreError::NotAStore {
                path: files.root.clone(),
                reason: format!(
                    "it is not empty (it has {name:?}) and has no commitlog folder; give an empty or new \
                     directory{advice}"
                ),
            })
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && files.vfs.stat(&files.root).is_ok() => {
            let reason = "it is a symbolic link that leads to no folder; mount its disk, or correct the link";
            Err(StoreError::NotAStore { path: files.root.clone(), reason: reason.into() })
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => create_aside(files),
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => Err(StoreError::NotAStore {
            path: files.root.clone(),
            reason: "it is a file, not a directory".into(),
        }),
        Err(error) => Err(StoreError::io(&files.root, "opening the store's folder", error)),
    }
}

/// Whether a creation that stopped may have left this name in an otherwise empty store.
fn is_ours(name: &str) -> bool {
    matches!(
        name,
        "mqstore" | "lock" | "abort" | "checkpoint" | "config" | "consumequeue" | "index" | "lost+found"
    )
}

fn make_log_folder(files: &StoreFiles, root: &Path) -> Result<(), StoreError> {
    let folder = root.join("commitlog");
    match files.vfs.create_dir(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(StoreError::io(&folder, "making the log's folder", error));
        }
        _ => {}
    }
    switch::step("open.sync_log_folder_name", || files.vfs.sync_dir(root))
        .at(root, "syncing the store's folder")
}

fn create_aside(files: &StoreFiles) -> Result<(), StoreError> {
    let parent = parent(&files.root);
    files.vfs.create_dir_all(&parent).at(&parent, "making the parent folder")?;
    let name = files.root.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    // Several threads of this process may make the store at the same time.
    let (pid, token) = (files.vfs.environment().pid, next_token());
    let staged = parent.join(format!(".{name}.mqstore-{pid}-{token}"));
    let _ = files.vfs.remove_dir_all(&staged);
    files.vfs.create_dir(&staged).at(&files.root, "making the store")?;
    make_log_folder(files, &staged)?;
    match files.vfs.rename_noreplace(&staged, &files.root) {
        // The open that follows finds no durable mark, so it makes the name durable.
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            // Another process made it in the meantime.
            let _ = files.vfs.remove_dir_all(&staged);
            create(files)
        }
        Err(error) => {
            let _ = files.vfs.remove_dir_all(&staged);
            Err(StoreError::io(&files.root, "naming the store", error))
        }
    }
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}
