//! The checks that an archive is that of a store, and that it has what the store recorded.
//!
//! The settings in `mqstore/archive` of the store have the id of the archive and its first log offset, once a run or
//! [`configure`] of the writer has found an archive at the target. A target that has no archive then, or another one, or
//! one that ends earlier, was emptied, replaced or is not mounted: runs stop, and retention deletes no segment.

use std::collections::HashMap;
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_engine::{ArchiveState, Store};
use mqstore_io::target::hex;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::layout::object;
use crate::manifest::{ArchivedFile, ArchivedSegment, LastRecord, Manifest, json_text};
use crate::place::Place;

/// Setting of a copy of a store: its reads continue in the archive, and its runs do not extend it.
const COPIED: &str = "copied";

/// Segments whose times are compared.
const MOST_COMPARED: usize = 8;

/// Returns the newest manifest of an archive that can be the archive of a store; `None` if there is none yet.
///
/// # Parameters
/// - `topics`: the topics of the archive, sorted; `None` is all.
/// - `recorded`: what the store recorded about this archive.
///
/// # Errors
/// [`StoreError::Corrupt`] if the archive does not have what the store archived there; [`StoreError::ResultExists`] if it
/// is the archive of another store, or of other topics; a request failed.
pub fn checked(
    store: &Store,
    place: &Place,
    topics: Option<&[String]>,
    recorded: Option<&ArchiveState>,
) -> Result<Option<Manifest>, StoreError> {
    let manifest = place.newest()?;
    if let Some(state) = recorded
        && let Some(reason) = missing(state, manifest.as_ref(), store.log().bounds()?.0)?
    {
        return Err(StoreError::corrupt(place.shown().as_ref(), 0, reason));
    }
    let Some(manifest) = manifest else { return Ok(None) };
    place.settle()?;
    if manifest.topics.as_deref() != topics {
        let has = manifest.topics.as_ref().map(|topics| format!("the topics {}", topics.join(", ")));
        let reason = format!("the archive there has {}", has.as_deref().unwrap_or("all topics"));
        return Err(StoreError::ResultExists { path: place.shown(), reason });
    }
    check_owner(store, &place.shown(), manifest.last.as_ref(), &manifest.segments, true)?;
    Ok(Some(manifest))
}

/// What records the state of a store's archive: its writer, in this process or another.
pub trait ArchiveRecorder: Sync {
    /// Sets the archive, durably.
    ///
    /// # Errors
    /// Those of [`mqstore_engine::Archive::set`].
    fn set(&self, state: &ArchiveState) -> Result<(), StoreError>;

    /// Moves the log offset of the archive with these settings forward; returns the state after it.
    ///
    /// # Errors
    /// Those of [`mqstore_engine::Archive::advance`].
    fn advance(&self, settings: &str, next: &ArchiveState) -> Result<Option<ArchiveState>, StoreError>;
}

impl ArchiveRecorder for Store {
    fn set(&self, state: &ArchiveState) -> Result<(), StoreError> {
        self.archive().set(Some(state))
    }

    fn advance(&self, settings: &str, next: &ArchiveState) -> Result<Option<ArchiveState>, StoreError> {
        self.archive().advance(settings, next)
    }
}

/// Sets the archive of a store. `settings` are JSON with the target, which is `place`. Returns the log offset at which the
/// archive begins.
///
/// # Errors
/// As for [`checked`]; errors of the system.
pub fn configure(
    store: &Store,
    recorder: &dyn ArchiveRecorder,
    place: &Place,
    settings: &str,
    topics: Option<&[String]>,
) -> Result<u64, StoreError> {
    let mut values = parsed(settings)?;
    let recorded = match store.archive().state() {
        // A damaged state says nothing; this call replaces it.
        Err(StoreError::Corrupt { .. }) => None,
        state => state?,
    };
    let same_target = |state: &ArchiveState| {
        parsed(&state.settings).is_ok_and(|known| known.get("target") == values.get("target"))
    };
    let recorded = recorded.filter(same_target);
    let manifest = checked(store, place, topics, recorded.as_ref())?;
    let start = store.log().bounds()?.0;
    let archived_to = manifest.as_ref().map_or(start, |manifest| manifest.covered_from(start));
    let first = manifest.as_ref().map_or(start, Manifest::begin);
    values.insert("first".to_owned(), first.into());
    let settings = settings_with(&json_text(&values.into()), manifest.as_ref())?;
    recorder.set(&ArchiveState { archived_to, settings })?;
    Ok(first)
}

/// Returns the settings of a store with the id and the first log offset of the archive at the target.
///
/// # Errors
/// [`StoreError::Corrupt`] if the settings are not those of an archive.
pub fn settings_with(settings: &str, manifest: Option<&Manifest>) -> Result<String, StoreError> {
    let Some(manifest) = manifest.filter(|manifest| !manifest.segments.is_empty()) else {
        return Ok(settings.to_owned());
    };
    let mut values = parsed(settings)?;
    values.insert("archive".to_owned(), manifest.archive.clone().into());
    values.insert("first".to_owned(), manifest.begin().into());
    Ok(json_text(&values.into()))
}

fn parsed(settings: &str) -> Result<Map<String, Value>, StoreError> {
    serde_json::from_str(settings).map_err(|_| {
        let reason = "the settings of the archive are damaged; configure the archive again";
        StoreError::corrupt("mqstore/archive".as_ref(), 0, reason)
    })
}

/// Returns why an archive does not have what a store recorded, or `None`. For retention, before it deletes segments.
///
/// # Errors
/// The archive cannot be read.
pub fn look(place: &Place, recorded: &ArchiveState, log_start: u64) -> Result<Option<String>, StoreError> {
    let manifest = place.newest()?;
    let reason = missing(recorded, manifest.as_ref(), log_start)?;
    let (None, Some(manifest)) = (&reason, &manifest) else { return Ok(reason) };
    let lengths: HashMap<String, u64> =
        place.objects()?.into_iter().map(|one| (one.path, one.bytes)).collect();
    let is_lost = |file: &&Arc<ArchivedFile>| lengths.get(&object(&file.path)) != Some(&file.bytes);
    let lost: Vec<_> = manifest.files.iter().filter(|file| file.end > log_start).filter(is_lost).collect();
    Ok(lost.first().map(|first| {
        format!(
            "{} of its files are missing or have another length, such as {}; restore them, or configure another target, \
             to which the log is archived again",
            lost.len(),
            first.path
        )
    }))
}

/// Returns why an archive does not have what a store recorded.
fn missing(
    recorded: &ArchiveState,
    manifest: Option<&Manifest>,
    log_start: u64,
) -> Result<Option<String>, StoreError> {
    let (values, archived_to) = (parsed(&recorded.settings)?, recorded.archived_to);
    let known = values.get("archive").and_then(Value::as_str);
    if known.is_none() && archived_to <= log_start {
        return Ok(None);
    }
    // A store of an earlier version has no id. Its log says what must be there.
    let recorded_first = || values.get("first").and_then(Value::as_u64).unwrap_or(log_start);
    let first = known.map_or(log_start, |_| recorded_first());
    let manifest = manifest.filter(|manifest| !manifest.segments.is_empty());
    let (found, (from, to)) = match manifest {
        None => ("the target has no archive".to_owned(), (first, archived_to)),
        Some(manifest) if known.is_some_and(|known| known != manifest.archive) => {
            ("the target has another archive".to_owned(), (first, archived_to))
        }
        Some(manifest) if manifest.begin() > first => {
            let begin = manifest.begin();
            (format!("the archive begins at log offset {begin}"), (first, begin))
        }
        Some(manifest) => {
            let end = if log_start < archived_to { manifest.covered_from(log_start) } else { manifest.end() };
            (format!("the archive has the log up to offset {end}"), (end, archived_to))
        }
    };
    Ok((from < to).then(|| {
        format!(
            "{found}, and the store archived its log from offset {from} to {to} there; mount or restore the target; or, to \
             begin a new archive without these messages, remove the configuration and configure it again"
        )
    }))
}

/// Compares the last record of an archive with the log of a store, if the log has it.
///
/// The log no longer has the record if its segment was deleted, or if a reclaim replaced it. The log of a copy ends before
/// it, if the store archived more after the copy was made; the copy can then read the archive, not extend it.
///
/// # Parameters
/// - `shown`: the archive, for the error.
/// - `last`: its last record.
/// - `segments`: its last segments.
/// - `extends`: whether this store will extend the archive.
///
/// # Errors
/// [`StoreError::ResultExists`] if it is the archive of another store; errors of reads.
pub(crate) fn check_owner(
    store: &Store,
    shown: &str,
    last: Option<&LastRecord>,
    segments: &[ArchivedSegment],
    extends: bool,
) -> Result<(), StoreError> {
    let Some(last) = last else { return Ok(()) };
    let (start, end) = store.log().bounds()?;
    if last.log_offset < start || (last.log_offset >= end && !extends && is_copy(store)?) {
        return Ok(());
    }
    match has_record(store, last).and_then(|found| Ok(found || has_placeholder(store, segments, last)?)) {
        Ok(true) => return Ok(()),
        Ok(false) => {}
        // Retention has just deleted the segment.
        Err(StoreError::InvalidOption { .. } | StoreError::Io { .. })
            if last.log_offset < store.log().bounds()?.0 =>
        {
            return Ok(());
        }
        Err(error) => return Err(error),
    }
    let reason = format!(
        "the archive there is of another store: the record at log offset {} differs",
        last.log_offset
    );
    Err(StoreError::ResultExists { path: shown.to_owned(), reason })
}

fn is_copy(store: &Store) -> Result<bool, StoreError> {
    let Some(state) = store.archive().state()? else { return Ok(false) };
    let settings: Option<Value> = serde_json::from_str(&state.settings).ok();
    Ok(settings.is_some_and(|settings| settings.get(COPIED).is_some()))
}

fn has_record(store: &Store, last: &LastRecord) -> Result<bool, StoreError> {
    if last.log_offset.saturating_add(last.bytes) > store.log().bounds()?.1 {
        return Ok(false);
    }
    let content = store.archive().sealed_log()?.bytes(last.log_offset, last.bytes)?;
    Ok(hex(&Sha256::digest(&content)) == last.sha256)
}

/// Whether a reclaim has replaced the record, and the log has segments of the archive, as their times show.
fn has_placeholder(
    store: &Store,
    segments: &[ArchivedSegment],
    last: &LastRecord,
) -> Result<bool, StoreError> {
    let archive = store.archive();
    let log = archive.sealed_log()?;
    if !log.is_reclaimed_at(last.log_offset)? {
        return Ok(false);
    }
    // A placeholder has the store time of the first record that it replaces.
    let compared = segments.get(segments.len().saturating_sub(MOST_COMPARED)..).unwrap_or_default();
    let sealed = log.segments(compared.first().map_or(0, |segment| segment.base))?;
    let mut known = sealed.iter().filter_map(|here| {
        let there = compared.iter().find(|one| (one.base, one.bytes) == (here.base_offset, here.bytes))?;
        Some(here.first_ms? == there.first_ms?)
    });
    // Without a time to compare, nothing speaks against it.
    Ok(match known.next() {
        None => true,
        Some(is_equal) => is_equal || known.any(|is_equal| is_equal),
    })
}
