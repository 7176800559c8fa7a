//! Removes old states, and the pieces that no other state names.
//!
//! ```text
//! the last 10 minutes   every state
//! the last day          one for each 10 minutes
//! before                one for each day, as long as states are kept
//! ```
//!
//! A state that goes has the metadata of its time, and the segments that retention has deleted since. The records between
//! two states are in the log of the later one. The newest complete state always stays.

use std::collections::HashSet;

use mqstore_base::error::StoreError;
use mqstore_io::TargetObject;

use crate::layout::{piece_name, state_number};
use crate::manifest::Manifest;
use crate::place::{Lists, Place};

const TEN_MINUTES_MS: i64 = 600_000;
const DAY_MS: i64 = 86_400_000;

/// What a clean removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CleanRules {
    /// Now, in epoch milliseconds.
    pub now_ms: i64,
    /// Age in milliseconds up to which states are kept.
    pub keep_ms: i64,
    /// Minimum age in milliseconds of an object that no state names: a round can be in progress.
    pub unused_ms: i64,
    /// Whether to report the objects only.
    pub dry_run: bool,
}

/// What a clean has removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// The removed objects.
    pub objects: Vec<TargetObject>,
    /// Number of unused objects that are too young.
    pub kept: usize,
}

/// Removes old states and unused objects.
///
/// # Errors
/// [`StoreError::ResultNotFound`] if there is no backup; [`StoreError::Corrupt`] for a damaged manifest or list: it can
/// name the objects; a request failed.
pub fn clean(place: &Place, rules: CleanRules) -> Result<Cleaned, StoreError> {
    let objects = place.objects()?;
    // After the list, so that the pieces of a round that ends meanwhile are named.
    let states = place.manifests()?;
    let kept = kept_states(&states, rules);
    let mut named: HashSet<&str> = HashSet::new();
    let mut lists = Lists::new();
    for state in states.iter().filter(|state| kept.contains(&state.number)) {
        for segment in &state.segments {
            place.pieces_of(segment, &mut lists)?;
        }
        named.extend(state.pieces().filter_map(|piece| Some(piece.object.as_ref()?.name.as_str())));
    }
    let listed = lists.values().flat_map(|list| list.iter());
    named.extend(listed.filter_map(|piece| Some(piece.object.as_ref()?.name.as_str())));
    let newest = states.last().map_or(0, |state| state.number);
    let is_unused = |path: &str| match (state_number(path), piece_name(path)) {
        // A state that was created after the look is newer.
        (Some(number), _) => number <= newest && !kept.contains(&number),
        (_, Some(name)) => !named.contains(name),
        _ => path.contains("/probe-"),
    };
    let is_due = |one: &TargetObject| {
        state_number(&one.path).is_some() || one.changed_ms <= rules.now_ms.saturating_sub(rules.unused_ms)
    };
    let (due, young): (Vec<_>, Vec<_>) =
        objects.into_iter().filter(|one| is_unused(&one.path)).partition(is_due);
    if !rules.dry_run {
        // The states first: no state names a piece that is missing.
        let is_state = |one: &&TargetObject| state_number(&one.path).is_some();
        let paths = |is: bool| {
            due.iter().filter(|one| is_state(one) == is).map(|one| one.path.clone()).collect::<Vec<_>>()
        };
        place.delete(&paths(true))?;
        place.delete(&paths(false))?;
    }
    Ok(Cleaned { objects: due, kept: young.len() })
}

/// Returns the numbers of the states that stay.
fn kept_states(states: &[Manifest], rules: CleanRules) -> HashSet<u64> {
    let mut kept: HashSet<u64> = HashSet::new();
    let mut slots = HashSet::new();
    kept.extend(states.last().map(|state| state.number));
    kept.extend(states.iter().rfind(|state| state.is_complete).map(|state| state.number));
    for state in states.iter().rev().filter(|state| state.is_complete) {
        let age_ms = rules.now_ms.saturating_sub(state.created_ms);
        let slot = if age_ms <= TEN_MINUTES_MS {
            (0, state.number as i64)
        } else if age_ms <= DAY_MS {
            (1, state.created_ms.div_euclid(TEN_MINUTES_MS))
        } else {
            (2, state.created_ms.div_euclid(DAY_MS))
        };
        // The last state of each generation ends its log.
        if age_ms <= rules.keep_ms && (slots.insert(slot) | slots.insert((3, state.generation as i64))) {
            kept.insert(state.number);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::tests::empty;

    #[test]
    fn old_states_become_rare_and_the_newest_stays() {
        let now_ms = 100 * DAY_MS + 1;
        let state = |number: u64, age_ms: i64| Manifest { created_ms: now_ms - age_ms, ..empty(number) };
        let states: Vec<Manifest> =
            (0..3 * 8640_u64).map(|number| state(number, (3 * 8640 - 1 - number as i64) * 10_000)).collect();
        let rules = CleanRules { now_ms, keep_ms: 7 * DAY_MS, unused_ms: 0, dry_run: false };
        let kept = kept_states(&states, rules);
        assert!(kept.contains(&(3 * 8640 - 1)));
        // 61 of the last ten minutes, 144 of the day before, and some of each earlier day.
        assert!((200..215).contains(&kept.len()), "{}", kept.len());
        let old = CleanRules { now_ms: now_ms + 100 * DAY_MS, ..rules };
        assert_eq!(kept_states(&states, old), HashSet::from([3 * 8640 - 1]));
        let mut partial = states.clone();
        if let Some(last) = partial.last_mut() {
            last.is_complete = false;
        }
        assert_eq!(kept_states(&partial, old), HashSet::from([3 * 8640 - 1, 3 * 8640 - 2]));
    }
}
