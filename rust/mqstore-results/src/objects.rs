//! The paths of objects, and the objects that belong to an attempt.
//!
//! A file that looks like an object of an attempt can be of another result below the same URL, in a folder like that of a
//! partition. So an attempt is known only by its folder, whose first object is there before all others, and by the manifest.

use std::collections::HashSet;

use mqstore_io::TargetObject;
use mqstore_io::target::is_hex;

use crate::requests::path_in;

/// The folder of what other programs ignore, below the URL of a result: Spark and Hive ignore names that begin with `_`.
pub const FOLDER: &str = "_mqstore";

/// The path of the manifest.
pub const NAME: &str = "_mqstore/manifest.json";

/// The folder of an attempt begins with this.
pub const ATTEMPT: &str = "attempt-";

/// Longest end of a file's name that the name of an object has.
const MOST_NAME: usize = 100;

/// Returns the path of an object that other programs ignore.
pub(crate) fn hidden_object(attempt: &str, name: &str) -> String {
    format!("{FOLDER}/{attempt}/{name}")
}

/// Returns the path of an object that other programs see, for the file `path` of a result.
pub fn visible_object(attempt: &str, path: &str) -> String {
    let id = attempt.strip_prefix(ATTEMPT).unwrap_or(attempt);
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let name = object_name(path);
    let named = match name.rsplit_once('.') {
        Some((stem, ending)) => format!("{stem}-{id}.{ending}"),
        None => format!("{name}-{id}"),
    };
    path_in(folder, &named)
}

/// Returns the begin of an object's name for a file of a result.
pub(crate) fn object_name(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or_default();
    let plain: Vec<char> = name.chars().map(|one| if is_object_char(one) { one } else { '_' }).collect();
    plain.iter().skip(plain.len().saturating_sub(MOST_NAME)).collect()
}

/// Returns the id in the path of an object: 32 hexadecimal digits. `None` if no attempt gives such a path to an object.
pub(crate) fn attempt_of(path: &str) -> Option<&str> {
    let (folder, name) = path.rsplit_once('/').map_or((None, path), |(folder, name)| (Some(folder), name));
    let hidden =
        folder.and_then(|folder| folder.strip_prefix(FOLDER)?.strip_prefix('/')?.strip_prefix(ATTEMPT));
    let id = match hidden {
        Some(id) => id,
        None if folder.is_none_or(|folder| folder.split('/').all(is_partition)) => {
            name.rsplit_once('.').map_or(name, |(stem, _)| stem).rsplit_once('-')?.1
        }
        None => return None,
    };
    let is_name = !["", ".", ".."].contains(&name) && name.chars().all(is_object_char);
    (is_name && is_hex(id, 32)).then_some(id)
}

/// Whether a folder is that of a partition, such as `day=2026-11-28`. Most ASCII characters of a value are encoded as
/// `%20`.
pub(crate) fn is_partition(folder: &str) -> bool {
    let Some((name, value)) = folder.split_once('=') else { return false };
    let is_value = |one: char| is_object_char(one) || one == '%' || !(one.is_ascii() || one.is_control());
    !name.is_empty() && name.chars().all(is_object_char) && !value.is_empty() && value.chars().all(is_value)
}

fn is_object_char(one: char) -> bool {
    one.is_ascii_alphanumeric() || "._-".contains(one)
}

/// Whether an object is in the folder that other programs ignore.
pub(crate) fn is_hidden(path: &str) -> bool {
    path.strip_prefix(FOLDER).is_some_and(|path| path.starts_with('/'))
}

/// Returns the ids of the attempts that have a folder.
pub(crate) fn attempts(objects: &[TargetObject]) -> HashSet<String> {
    let paths = objects.iter().map(|one| one.path.as_str()).filter(|path| is_hidden(path));
    paths.filter_map(attempt_of).map(str::to_owned).collect()
}

/// Whether an object belongs to a result or to one of these attempts.
pub(crate) fn is_own(path: &str, attempts: &HashSet<String>) -> bool {
    is_hidden(path) || attempt_of(path).is_some_and(|id| attempts.contains(id))
}
