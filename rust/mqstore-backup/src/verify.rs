//! Reads all objects that the states of a backup name.

use std::collections::HashMap;

use mqstore_base::error::StoreError;
use mqstore_base::progress::{Progress, ProgressWatcher};
use mqstore_io::pool::Pool;

use crate::pieces::Piece;
use crate::place::{AT_ONCE, Lists, Place};

/// What a check of a backup has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Number of states.
    pub states: u64,
    /// Number of pieces.
    pub pieces: u64,
    /// Bytes of their objects.
    pub bytes: u64,
    /// Damaged or missing objects.
    pub problems: Vec<String>,
}

/// Checks all pieces of all states. `tell` gets the bytes of the objects.
///
/// # Errors
/// [`StoreError::ResultNotFound`] if there is no backup; [`StoreError::Corrupt`] for a damaged manifest; a request failed;
/// the error of `tell`. Damage of pieces is in the report.
pub fn verify(place: &Place, tell: ProgressWatcher<'_>) -> Result<VerifyReport, StoreError> {
    let states = place.manifests()?;
    let mut report = VerifyReport { states: states.len() as u64, ..VerifyReport::default() };
    let (mut lists, mut pieces) = (Lists::new(), HashMap::new());
    for state in &states {
        for piece in state.pieces() {
            note(&mut pieces, piece);
        }
        for segment in state.segments.iter().filter(|segment| segment.list.is_some()) {
            match place.pieces_of(segment, &mut lists) {
                Ok(listed) => listed.iter().for_each(|piece| note(&mut pieces, piece)),
                // The piece of the list is checked below.
                Err(StoreError::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    report.pieces = pieces.len() as u64;
    report.bytes = pieces.values().filter_map(|piece| Some(piece.object.as_ref()?.bytes)).sum();
    let mut progress = Progress { done_bytes: 0, total_bytes: report.bytes };
    let work =
        |piece: Piece| (piece.object.as_ref().map_or(0, |one| one.bytes), place.content(&piece).map(drop));
    Pool::new(AT_ONCE - 1, "mq-backup").in_order(AT_ONCE as usize, &work, |jobs| {
        let mut note = |(bytes, found): (u64, Result<(), StoreError>)| {
            progress.done_bytes += bytes;
            match found {
                Err(error @ StoreError::Corrupt { .. }) => report.problems.push(error.to_string()),
                found => found?,
            }
            tell(progress)
        };
        for piece in pieces.into_values() {
            jobs.give(piece);
            while let Some(done) = jobs.take_ready() {
                note(done)?;
            }
        }
        while let Some(done) = jobs.take() {
            note(done)?;
        }
        Ok::<_, StoreError>(())
    })?;
    report.problems.sort_unstable();
    report.problems.dedup();
    Ok(report)
}

fn note(pieces: &mut HashMap<String, Piece>, piece: &Piece) {
    if let Some(object) = &piece.object {
        pieces.entry(object.name.clone()).or_insert_with(|| piece.clone());
    }
}
