//! What an expiry would remove: the dry run of a writer, and of a store that is open for reading. Changes no file.

use std::sync::Arc;

use super::holders::Lookup;
use super::plan::{DeletionPlan, ExpiryTrigger, PlanInput, RetentionRules, plan};
use super::report::{self, ExpireReport};
use super::stalled_groups::{StalledGroups, known_holders};
use super::unarchived::ArchiveRule;
use super::uncompacted;
use crate::engine::disk_space::DiskSpace;
use crate::engine::topics::load_floors;
use crate::read::segment_times::times_of;
use mqstore_base::durable_mark::DurableMarkFile;
use mqstore_base::error::StoreError;
use mqstore_base::events::ExpiredKind;
use mqstore_base::options::StoreOptions;
use mqstore_base::store_files::StoreFiles;
use mqstore_log::commit_log::SegmentList;
use mqstore_log::consume_queue::QueueSet;
use mqstore_log::index::IndexSet;

/// Adds to `report` the segments of `plan` that would be removed, and the files before the log's new start.
pub(super) fn preview(
    check: &uncompacted::UncompactedCheck<'_>,
    archive: &ArchiveRule,
    index: &IndexSet,
    plan: &DeletionPlan,
    report: &mut ExpireReport,
) -> Result<(), StoreError> {
    let (archived, unarchived) = archive.split(&plan.deletions, check.list.min_offset());
    let (going, kept) = check.split(archived)?;
    match (kept.or(unarchived), &plan.held) {
        (None, Some(held)) => report.add_held(held),
        (kept, _) => report.kept.extend(kept),
    }
    let log_min = going.last().map_or(check.list.min_offset(), |last| last.segment.end_offset());
    let queues = check.queues;
    for planned in going {
        report.add(report::segment(planned));
    }
    for queue in queues.all() {
        // A removal syncs everything first, so all files count.
        for file in queue.files_below(log_min, u64::MAX)? {
            report.add(report::derived(&file, ExpiredKind::Queue, log_min));
        }
    }
    for queue in queues.batches() {
        for file in queue.files_below(log_min, u64::MAX)? {
            report.add(report::derived(&file, ExpiredKind::Queue, log_min));
        }
    }
    for file in index.files_left_below(log_min) {
        report.add(report::derived(&file, ExpiredKind::Index, log_min));
    }
    report.log_min_offset = log_min;
    report.note_rest(plan, check.log_end);
    Ok(())
}

/// Returns what `Cleaner::expire` would do for a store that is not open for writing and whose log ends at `end`.
pub(crate) fn preview_of(
    files: &StoreFiles,
    options: &StoreOptions,
    end: u64,
    lookup: Lookup<'_>,
) -> Result<ExpireReport, StoreError> {
    let list = Arc::new(SegmentList::load(files)?);
    let space = DiskSpace::look(files)?;
    let scene = PlanInput {
        list: &list,
        end,
        least_closed_bytes: options.allocation_bytes,
        now_ms: files.clock.now_ms(),
        trigger: ExpiryTrigger::Asked,
        space: &space,
    };
    let plan = plan(
        &RetentionRules::of(options),
        &scene,
        usize::MAX,
        &mut |segment| times_of(files, &list, segment, end),
        &mut |due_end| {
            let mut stalled = StalledGroups::load(files);
            Ok(known_holders(options, lookup()?, &mut stalled, (due_end, scene.now_ms)))
        },
    )?;
    let access = mqstore_io::Access::Read;
    let floors = load_floors(files, &mut Vec::new());
    let queues = QueueSet::load(files, options.queue_file_bytes(), access, &floors)?;
    queues.recover_bounds()?;
    let known = DurableMarkFile::new(files).try_load()?.map(|mark| mark.index_geometry());
    let configured =
        mqstore_format::IndexGeometry { slots: options.index_slots, entries: options.index_entries };
    let index = IndexSet::load(files, known, configured, access)?;
    let mut report = ExpireReport { dry_run: true, ..ExpireReport::default() };
    // Units can be missing if the store was not closed, or while a writer runs.
    let trusted = if files.vfs.stat(&files.abort()).is_err() { u64::MAX } else { 0 };
    let check =
        uncompacted::UncompactedCheck { files, options, list: &list, log_end: end, queues: &queues, trusted };
    let archive = ArchiveRule::new(files, &options.hooks);
    preview(&check, &archive, &index, &plan, &mut report)?;
    Ok(report)
}
