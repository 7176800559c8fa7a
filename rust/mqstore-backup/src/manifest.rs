//! The manifest: one state of a backup.
//!
//! ```text
//! mqstore backup 1 <SHA-256 of the rest>\n
//! {members of `Manifest`}\n
//! ```
//!
//! A state that is not complete has the begin of the log only. It names pieces, so that they are not uploaded again.
//! The metadata of a state was copied before the end of its log was chosen, so it never names an offset after that.

use std::sync::Arc;

use mqstore_io::target::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::pieces::Piece;

const HEAD: &str = "mqstore backup ";
const VERSION: &str = "1 ";

/// The files of the durable mark.
const MARK_A: &str = "mqstore/state.a";
const MARK_B: &str = "mqstore/state.b";

/// A segment of the log.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SegmentEntry {
    /// Log offset of the first byte.
    pub base: u64,
    /// Length of the file.
    pub bytes: u64,
    /// Bytes that the backup has. The others have no records yet.
    pub filled: u64,
    /// Inode of the file. A reclaim gives the name of a segment to another file.
    pub inode: u64,
    /// Store time of the first record in epoch milliseconds, if it can be read.
    pub first_ms: Option<i64>,
    /// A piece with the list of the pieces as JSON. Then `pieces` is empty.
    pub list: Option<Piece>,
    /// The pieces.
    pub pieces: Vec<Piece>,
}

impl SegmentEntry {
    /// Returns the log offset after the bytes that the backup has.
    pub fn end(&self) -> u64 {
        self.base.saturating_add(self.filled)
    }

    /// Whether the backup has the whole segment.
    pub fn is_full(&self) -> bool {
        self.filled == self.bytes
    }
}

/// Another file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Its path below the root of the store, with `/`.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// The pieces.
    pub pieces: Vec<Piece>,
}

/// The archive of the store.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ArchiveEntry {
    /// The log offset up to which the archive has the log.
    pub archived_to: u64,
    /// Its settings, which are JSON.
    pub settings: String,
}

/// Lengths of the queue and index files that a restore makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Geometry {
    /// Entries of a queue file.
    pub queue_file_entries: u32,
    /// Slots of an index file.
    pub index_slots: u32,
    /// Entries of an index file.
    pub index_entries: u32,
}

/// One state of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Its number.
    pub number: u64,
    /// Random id of the backup.
    pub backup: String,
    /// Random id of the session that created it.
    pub run: String,
    /// When it was created, in epoch milliseconds.
    pub created_ms: i64,
    /// Number of times that the log had not continued the log of the state before, as after a loss of power.
    pub generation: u64,
    /// Whether it is a state to which a restore can go.
    pub is_complete: bool,
    /// End of the log.
    pub log_end: u64,
    /// In the order of the log.
    pub segments: Vec<Arc<SegmentEntry>>,
    /// Metadata, configuration, compacted topics.
    pub files: Vec<FileEntry>,
    /// The metadata position at which the metadata log ends, if there is one.
    pub metadata_end: Option<u64>,
    /// The archive of the store.
    pub archive: Option<ArchiveEntry>,
    /// See there.
    pub geometry: Geometry,
}

impl Manifest {
    /// Returns the log offset at which the log begins.
    pub fn log_start(&self) -> u64 {
        self.segments.first().map_or(self.log_end, |segment| segment.base)
    }

    /// Returns all pieces that it names itself. Those in lists are not among them.
    pub fn pieces(&self) -> impl Iterator<Item = &Piece> {
        let of_log = self.segments.iter().flat_map(|segment| segment.list.iter().chain(&segment.pieces));
        of_log.chain(self.files.iter().flat_map(|file| &file.pieces))
    }

    /// Whether a restore of this state and of `other` make the same store.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let members =
            |one: &Self| (one.generation, one.is_complete, one.log_end, one.metadata_end, one.geometry);
        // A restore writes the checkpoint and the durable mark again, and each sync changes them.
        let files = |one: &Self| -> Vec<FileEntry> {
            let is_kept = |file: &&FileEntry| !["checkpoint", MARK_A, MARK_B].contains(&file.path.as_str());
            one.files.iter().filter(is_kept).cloned().collect()
        };
        members(self) == members(other)
            && (&self.segments, &self.archive) == (&other.segments, &other.archive)
            && files(self) == files(other)
    }

    /// Returns the content of the object.
    ///
    /// # Errors
    /// A value cannot be JSON, which is a bug.
    pub(crate) fn encode(&self) -> serde_json::Result<Vec<u8>> {
        let mut content = serde_json::to_vec(self)?;
        content.push(b'\n');
        let mut found = format!("{HEAD}{VERSION}{}\n", hex(&Sha256::digest(&content))).into_bytes();
        found.append(&mut content);
        Ok(found)
    }

    /// Reads the content of an object.
    ///
    /// # Errors
    /// Why it is no manifest, and what to do.
    pub(crate) fn decode(content: &[u8]) -> Result<Self, &'static str> {
        const DAMAGED: &str =
            "it is damaged; restore the object, or remove it: the state before it is used then";
        let head = content.strip_prefix(HEAD.as_bytes()).ok_or(DAMAGED)?;
        let head = head
            .strip_prefix(VERSION.as_bytes())
            .ok_or("a newer version of mqstore wrote it; use that one")?;
        let (digest, rest) = head.split_at_checked(64).ok_or(DAMAGED)?;
        let rest = rest.strip_prefix(b"\n").ok_or(DAMAGED)?;
        if hex(&Sha256::digest(rest)).as_bytes() != digest {
            return Err(DAMAGED);
        }
        let found: Self = serde_json::from_slice(rest).map_err(|_| DAMAGED)?;
        found.check().then_some(found).ok_or(DAMAGED)
    }

    /// Whether the values agree with each other. A hostile object can have a correct digest.
    fn check(&self) -> bool {
        let sum = |pieces: &[Piece]| {
            pieces
                .iter()
                .try_fold(0_u64, |sum, piece| sum.checked_add(piece.bytes).filter(|_| piece.is_valid()))
        };
        let mut end = self.log_start();
        let segments = self.segments.iter().all(|segment| {
            let is_next = segment.base == end && segment.filled <= segment.bytes && segment.bytes > 0;
            let limit = i64::MAX as u64;
            let Some(after) = segment.base.checked_add(segment.bytes).filter(|after| *after <= limit) else {
                return false;
            };
            end = after;
            is_next
                && match &segment.list {
                    Some(list) => segment.pieces.is_empty() && list.is_valid() && list.object.is_some(),
                    None => sum(&segment.pieces) == Some(segment.filled),
                }
        });
        let older = self.segments.split_last().is_none_or(|(_, older)| older.iter().all(|one| one.is_full()));
        let ends = self.segments.last().is_none_or(|last| last.end() == self.log_end);
        segments
            && older
            && ends
            && self.files.iter().all(|file| sum(&file.pieces) == Some(file.bytes) && is_path(&file.path))
    }
}

/// Reads the list of the pieces of a segment with `filled` bytes; `None` if it is none.
pub(crate) fn listed(content: &[u8], filled: u64) -> Option<Vec<Piece>> {
    let found: Vec<Piece> = serde_json::from_slice(content).ok()?;
    let sum =
        found.iter().try_fold(0_u64, |sum, piece| sum.checked_add(piece.bytes).filter(|_| piece.is_valid()));
    (sum == Some(filled)).then_some(found)
}

/// Whether a path stays below the root of the store, outside its log.
fn is_path(path: &str) -> bool {
    let is_name =
        |name: &str| !name.is_empty() && name != "." && name != ".." && !name.contains(['\\', '\0']);
    path.split('/').all(is_name) && !path.starts_with("commitlog")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn empty(number: u64) -> Manifest {
        Manifest {
            number,
            backup: "b".into(),
            run: "r".into(),
            created_ms: 5,
            generation: 0,
            is_complete: true,
            log_end: 0,
            segments: Vec::new(),
            files: Vec::new(),
            metadata_end: None,
            archive: None,
            geometry: Geometry { queue_file_entries: 64, index_slots: 8, index_entries: 32 },
        }
    }

    fn segment(base: u64, bytes: u64, filled: u64) -> Arc<SegmentEntry> {
        let pieces = vec![Piece { bytes: filled, object: None }];
        Arc::new(SegmentEntry { base, bytes, filled, inode: 1, first_ms: None, list: None, pieces })
    }

    #[test]
    fn what_was_encoded_comes_back_and_no_damage_is_accepted() {
        let mut manifest = empty(3);
        manifest.segments = vec![segment(100, 50, 50), segment(150, 50, 7)];
        manifest.log_end = 157;
        manifest.files = vec![FileEntry { path: "config/topics.json".into(), bytes: 0, pieces: Vec::new() }];
        let content = manifest.encode().unwrap();
        assert_eq!(Manifest::decode(&content), Ok(manifest));
        for at in 0..content.len() {
            let mut damaged = content.clone();
            damaged[at] ^= 1;
            assert!(Manifest::decode(&damaged).is_err(), "byte {at}");
            assert!(Manifest::decode(&content[..at]).is_err(), "{at} bytes");
        }
    }

    #[test]
    fn a_hostile_manifest_is_refused() {
        let is_refused = |change: &dyn Fn(&mut Manifest)| {
            let mut manifest = empty(3);
            manifest.segments = vec![segment(100, 50, 50), segment(150, 50, 7)];
            manifest.log_end = 157;
            change(&mut manifest);
            Manifest::decode(&manifest.encode().unwrap()).is_err()
        };
        assert!(!is_refused(&|_| {}));
        assert!(is_refused(&|one| one.log_end = 158));
        assert!(is_refused(&|one| one.segments[1] = segment(151, 50, 6)));
        assert!(is_refused(&|one| one.segments[0] = segment(100, 50, 49)));
        assert!(is_refused(&|one| one.segments[1] = segment(150, u64::MAX, 7)));
        assert!(is_refused(&|one| one.segments[1] = segment(150, 5, 7)));
        for path in ["../x", "/etc/passwd", "config//x", "commitlog/00000000000000000000", "", "a/."] {
            let entry = || FileEntry { path: path.into(), bytes: 0, pieces: Vec::new() };
            assert!(is_refused(&|one| one.files = vec![entry()]), "{path}");
        }
    }
}
