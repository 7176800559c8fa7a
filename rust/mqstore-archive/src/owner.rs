//! The checks that an archive is that of a store.

use mqstore_base::error::StoreError;
use mqstore_engine::Store;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::manifest::{ArchivedSegment, LastRecord, hex};

/// Setting of a copy of a store: its reads continue in the archive, and its runs do not extend it.
const COPIED: &str = "copied";

/// Segments whose times are compared.
const MOST_COMPARED: usize = 8;

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
pub fn check_owner(
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
