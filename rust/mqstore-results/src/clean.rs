//! Removes the objects of attempts that no manifest names.

use std::collections::HashMap;

use mqstore_base::error::StoreError;
use mqstore_io::target::{delete_all, random_id, sorted_list};
use mqstore_io::{Clock, Target, TargetError, TargetObject, Vfs};

use crate::manifest::{decoded, unused};
use crate::objects::{ATTEMPT, NAME, attempt_of, hidden_object, is_hidden};
use crate::requests::failed;

/// What a clean has removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// The removed objects.
    pub objects: Vec<TargetObject>,
    /// Number of unused objects that are too young.
    pub kept: usize,
}

/// Removes the objects of attempts of a minimum age that no manifest names; with `dry_run`, only finds them.
///
/// An attempt can be in progress, so its age counts from its newest object: by the clock of the server, or with `dry_run`
/// by `clock`.
///
/// # Errors
/// [`StoreError::Corrupt`] if the manifest is damaged, so that the objects that it names are unknown; a request failed.
pub fn clean(
    target: &dyn Target,
    vfs: &dyn Vfs,
    clock: &dyn Clock,
    older_than_ms: i64,
    dry_run: bool,
) -> Result<Cleaned, StoreError> {
    let error = failed(target, "clean the result");
    let (now_ms, objects) = listed(target, vfs, clock, dry_run).map_err(&error)?;
    // After the list, so that an attempt that is published meanwhile is named.
    let manifest = target.get(NAME).and_then(|content| content.map(|content| decoded(&content)).transpose());
    let manifest = manifest.map_err(&error)?;
    let objects = unused(objects, manifest.as_ref());
    let mut newest_ms: HashMap<String, i64> = HashMap::new();
    for one in &objects {
        let newest = newest_ms.entry(group_of(&one.path).to_owned()).or_insert(one.changed_ms);
        *newest = one.changed_ms.max(*newest);
    }
    let is_due = |one: &TargetObject| {
        let newest = newest_ms.get(group_of(&one.path)).copied().unwrap_or(one.changed_ms);
        now_ms.saturating_sub(newest) >= older_than_ms
    };
    let (due, young): (Vec<_>, Vec<_>) = objects.into_iter().partition(is_due);
    if !dry_run {
        // The folder of an attempt shows to whom its visible objects belong.
        let (hidden, visible): (Vec<_>, Vec<_>) =
            due.iter().map(|one| one.path.clone()).partition(|path| is_hidden(path));
        delete_all(target, &visible).and_then(|()| delete_all(target, &hidden)).map_err(&error)?;
    }
    Ok(Cleaned { objects: due, kept: young.len() })
}

/// Returns the time of the server in epoch milliseconds, and all objects.
fn listed(
    target: &dyn Target,
    vfs: &dyn Vfs,
    clock: &dyn Clock,
    dry_run: bool,
) -> Result<(i64, Vec<TargetObject>), TargetError> {
    if dry_run {
        return Ok((clock.now_ms(), sorted_list(target, "")?));
    }
    // An object that is written now has the time of the server.
    let now = hidden_object(&format!("{ATTEMPT}{}", random_id(vfs)), "clock");
    target.put_if_absent(&now, b"clock")?;
    let listed = sorted_list(target, "");
    target.delete(std::slice::from_ref(&now))?;
    let (clocks, objects): (Vec<_>, Vec<_>) = listed?.into_iter().partition(|one| one.path == now);
    Ok((clocks.first().map_or(0, |one| one.changed_ms), objects))
}

/// Returns the attempt to which an object belongs; or else its folder.
fn group_of(path: &str) -> &str {
    attempt_of(path).unwrap_or_else(|| path.rsplit_once('/').map_or(path, |(folder, _)| folder))
}
