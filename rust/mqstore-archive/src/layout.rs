//! Names of the objects of an archive, below its folder or URL.
//!
//! ```text
//! v1/topic=orders/<first>-<last>-<8 hex digits>.parquet    records of one topic in one range of the log
//! v1/topic_hash=<begin>_<16 hex digits>/...                the same of a topic with a very long name
//! v1/_bytes/<first>-<last>-<8 hex digits>.parquet          other bytes of the log
//! v1/_manifest/<20 digits>.json                            the newest one is the archive
//! ```

use std::fmt::Write as _;
use std::ops::Range;

use mqstore_io::target::{hex, is_hex, number_of, numbered_path};
use sha2::{Digest, Sha256};

/// The folder of this version of the layout.
pub const ROOT: &str = "v1";

/// The folder of the manifests.
pub const MANIFESTS: &str = "v1/_manifest/";

/// Returns the path of a file below the root of the archive.
pub(crate) fn object(path: &str) -> String {
    format!("{ROOT}/{path}")
}

/// Returns the path of a manifest.
pub fn manifest_path(number: u64) -> String {
    numbered_path(MANIFESTS, number)
}

/// Returns the number of the manifest with this path; `None` for any other object.
pub fn manifest_number(path: &str) -> Option<u64> {
    number_of(MANIFESTS, path)
}

/// Longest name of a folder. File systems accept names of 255 bytes; only a very long name with many special characters
/// is longer.
const MOST_NAME: usize = 240;

/// Bytes of a longer name that stay.
const KEPT_NAME: usize = 200;

/// Returns a new path below `v1` for records of a topic in a range of the log; without a topic, for other bytes. `id` is a
/// random number.
pub(crate) fn file_path(topic: Option<&str>, range: &Range<u64>, id: u32) -> String {
    let folder = topic.map_or_else(|| "_bytes".to_owned(), folder_of);
    let last = range.start.max(range.end.saturating_sub(1));
    format!("{folder}/{:020}-{last:020}-{id:08x}.parquet", range.start)
}

/// Returns the folder of a topic, as Hive and Spark write its name. The column `topic` has the name in any case.
///
/// The column `topic` of a partition of Hive hides that of the files, so a folder without the name has another key.
fn folder_of(topic: &str) -> String {
    let mut found = String::new();
    for one in topic.chars() {
        if one.is_ascii_alphanumeric() || "_-".contains(one) {
            found.push(one);
        } else {
            for byte in one.encode_utf8(&mut [0; 4]).bytes() {
                let _ = write!(found, "%{byte:02X}");
            }
        }
    }
    if found.len() <= MOST_NAME {
        return format!("topic={found}");
    }
    let kept = found.get(..KEPT_NAME).and_then(|kept| kept.rsplit_once('%')).map_or("", |(kept, _)| kept);
    let mut digest = hex(&Sha256::digest(topic.as_bytes()));
    digest.truncate(16);
    format!("topic_hash={kept}_{digest}")
}

/// Whether a path below `v1` is that of a file.
pub fn is_file_path(path: &str) -> bool {
    let Some((folder, name)) = path.split_once('/') else { return false };
    let topic = folder.strip_prefix("topic=").or_else(|| folder.strip_prefix("topic_hash="));
    let is_folder = match topic {
        Some(topic) => {
            !topic.is_empty()
                && topic.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_%-".contains(&byte))
        }
        None => folder == "_bytes",
    };
    let is_offset = |text: &str| text.len() == 20 && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Option<Vec<&str>> = name.strip_suffix(".parquet").map(|name| name.split('-').collect());
    is_folder
        && matches!(parts.as_deref(), Some([start, end, id]) if is_offset(start) && is_offset(end) && is_hex(id, 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_objects() {
        let path = file_path(Some("a.b%é"), &(10..20), 0xab);
        let name = "00000000000000000010-00000000000000000019-000000ab.parquet";
        assert_eq!(path, format!("topic=a%2Eb%25%C3%A9/{name}"));
        assert!(is_file_path(&path));
        let long = file_path(Some(&"é".repeat(127)), &(10..10), 1);
        let folder = long.split('/').next().unwrap_or_default();
        assert!(
            folder.starts_with("topic_hash=%C3%A9") && folder.len() < 240 && is_file_path(&long),
            "{long}"
        );
        assert!(is_file_path(&file_path(None, &(0..1), 7)));
        // A former version had these files in a folder `topic=` too.
        assert!(is_file_path(&format!("topic=%25DLQ_7ecd967cbf30d33f/{name}")));
        assert_eq!(manifest_number(&manifest_path(17)), Some(17));
        assert_eq!(manifest_number("v1/_manifest/probe-1"), None);
        for wrong in ["topic=a/../x.parquet", "other/x.parquet", "topic=/x.parquet", "topic=a/1-2-3.parquet"]
        {
            assert!(!is_file_path(wrong), "{wrong}");
        }
    }
}
