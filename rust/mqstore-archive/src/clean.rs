//! Removes files that failed runs left, and manifests that newer ones have replaced.

use std::collections::HashSet;

use mqstore_base::error::StoreError;
use mqstore_io::TargetObject;

use crate::layout::{MANIFESTS, ROOT, is_file_path, manifest_number, object};
use crate::place::Place;

/// What a clean has removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// The removed objects.
    pub objects: Vec<TargetObject>,
    /// Number of unused objects that are too young.
    pub kept: usize,
}

/// Removes the unused objects that were changed at or before a time in epoch milliseconds; with `dry_run`, reports them.
///
/// # Errors
/// [`StoreError::ResultNotFound`] if there is no archive; [`StoreError::Corrupt`] for a damaged manifest; a request failed.
pub fn clean(place: &Place, newest_ms: i64, dry_run: bool) -> Result<Cleaned, StoreError> {
    let objects = place.objects()?;
    // After the list, so that the files of a run that ends meanwhile are named.
    let manifest = place.must_have()?;
    let named: HashSet<String> = manifest.files.iter().map(|file| object(&file.path)).collect();
    let is_unused = |path: &str| {
        if path.starts_with(MANIFESTS) {
            return manifest_number(path)
                .map_or_else(|| path.contains("/probe-"), |number| number < manifest.number);
        }
        let below = path.strip_prefix(ROOT).and_then(|path| path.strip_prefix('/'));
        !named.contains(path) && below.is_some_and(is_file_path)
    };
    let (due, young): (Vec<_>, Vec<_>) =
        objects.into_iter().filter(|one| is_unused(&one.path)).partition(|one| one.changed_ms <= newest_ms);
    if !dry_run {
        let paths: Vec<String> = due.iter().map(|one| one.path.clone()).collect();
        place.delete("clean the archive", &paths)?;
    }
    Ok(Cleaned { objects: due, kept: young.len() })
}
