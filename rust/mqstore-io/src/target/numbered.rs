//! Numbered objects, of which the newest one counts: the manifests of archives and backups.
//!
//! ```text
//! FOLDER/<20 digits>.json
//! FOLDER/probe-<id>          whether the target creates an object only if it is absent
//! ```

use bytes::Bytes;

use super::{Target, TargetError, keeps_existing};

/// Objects of one request.
const MOST_REQUESTS: usize = 1000;

/// Returns the path of the object with a number. The folder ends with `/`.
pub fn numbered_path(folder: &str, number: u64) -> String {
    format!("{folder}{number:020}.json")
}

/// Returns the number of the object with this path; `None` for any other object.
pub fn number_of(folder: &str, path: &str) -> Option<u64> {
    let digits = path.strip_prefix(folder)?.strip_suffix(".json")?;
    let is_number = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

/// Returns the numbers of all numbered objects in a folder, the newest first.
///
/// # Errors
/// The request failed.
pub fn numbers(target: &dyn Target, folder: &str) -> Result<Vec<u64>, TargetError> {
    let found = target.list(folder)?;
    let mut numbers: Vec<u64> = found.iter().filter_map(|one| number_of(folder, &one.path)).collect();
    numbers.sort_unstable_by(|one, other| other.cmp(one));
    numbers.dedup();
    Ok(numbers)
}

/// Whether the target creates an object only if it is absent. `id` is random.
///
/// # Errors
/// A request failed.
pub fn probe(target: &dyn Target, folder: &str, id: &str) -> Result<bool, TargetError> {
    let path = format!("{folder}probe-{id}");
    let is_kept = keeps_existing(target, &path);
    // Without the permission to remove objects, the probe stays; it is no numbered object.
    let _ = target.delete(&[path]);
    is_kept
}

/// Returns the last byte of each object, by path and length; nothing for one that is shorter.
///
/// # Errors
/// As for [`Target::ranges`].
pub fn last_bytes(target: &dyn Target, objects: &[(String, u64)]) -> Result<Vec<Bytes>, TargetError> {
    let mut found = Vec::with_capacity(objects.len());
    for some in objects.chunks(MOST_REQUESTS) {
        let ends = some.iter().map(|(path, bytes)| (path.as_str(), bytes.saturating_sub(1)..*bytes));
        found.append(&mut target.ranges(&ends.collect::<Vec<_>>())?);
    }
    Ok(found)
}
