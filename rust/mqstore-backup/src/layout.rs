//! Names of the objects of a backup, below its folder or URL.
//!
//! ```text
//! backup-v1/states/<20 digits>.json             what the backup contains; the newest complete one is the backup
//! backup-v1/pieces/<64 hex>-<8 hex>.zst         a part of a file: the SHA-256 of its bytes, and a random number
//! ```
//!
//! No object is written twice: the random number makes each upload a new object.

use mqstore_io::target::{is_hex, number_of, numbered_path};

/// The folder of this version of the layout.
pub const ROOT: &str = "backup-v1/";

/// The folder of the manifests.
pub const STATES: &str = "backup-v1/states/";

/// The folder of the pieces.
pub const PIECES: &str = "backup-v1/pieces/";

/// Returns the path of a manifest.
pub(crate) fn state_path(number: u64) -> String {
    numbered_path(STATES, number)
}

/// Returns the number of the manifest with this path; `None` for any other object.
pub(crate) fn state_number(path: &str) -> Option<u64> {
    number_of(STATES, path)
}

/// Returns the path of the piece with this name.
pub(crate) fn piece_path(name: &str) -> String {
    format!("{PIECES}{name}.zst")
}

/// Returns the name of the piece with this path; `None` for any other object.
pub(crate) fn piece_name(path: &str) -> Option<&str> {
    path.strip_prefix(PIECES)?.strip_suffix(".zst").filter(|name| digest_of(name).is_some())
}

/// Returns the digest in the name of a piece; `None` for a wrong name.
pub(crate) fn digest_of(name: &str) -> Option<&str> {
    let (digest, number) = name.split_once('-')?;
    (is_hex(digest, 64) && is_hex(number, 8)).then_some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_objects() {
        assert_eq!(state_number(&state_path(17)), Some(17));
        assert_eq!(state_number("backup-v1/states/probe-1"), None);
        let name = format!("{}-0000beef", "0".repeat(64));
        assert_eq!(piece_name(&piece_path(&name)), Some(name.as_str()));
        for wrong in ["../../etc/passwd", "abc-0000beef", &name[1..], "-"] {
            assert_eq!(piece_name(&piece_path(wrong)), None, "{wrong}");
        }
    }
}
