//! Names of the objects of an archive, below its folder or URL.
//!
//! ```text
//! v1/topic=orders/<first>-<last>-<8 hex digits>.parquet    records of one topic in one range of the log
//! v1/topic_hash=<begin>_<16 hex digits>/...                the same of a topic with a very long name
//! v1/_bytes/<first>-<last>-<8 hex digits>.parquet          other bytes of the log
//! v1/_manifest/<20 digits>.json                            the newest one is the archive
//! ```

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
    format!("{MANIFESTS}{number:020}.json")
}

/// Returns the number of the manifest with this path; `None` for any other object.
pub fn manifest_number(path: &str) -> Option<u64> {
    let digits = path.strip_prefix(MANIFESTS)?.strip_suffix(".json")?;
    let is_number = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
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

/// Whether a text has so many hexadecimal digits.
pub(crate) fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
