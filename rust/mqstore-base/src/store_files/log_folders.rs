//! The folders of one log, and the bytes of `mqstore/paths`, which stores the list.
//!
//! ```text
//! mqstore/paths    "MQSPATHS" | count 4 | { 0 new segments, 1 read only: 1 | length 4 | path } | CRC 4
//! ```
//!
//! A relative path starts at the root of the store. Across threads: only the set of full folders changes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use mqstore_format::crc31;
use mqstore_format::names::COMMITLOG_DIR;
use mqstore_io::Vfs;
use mqstore_io::sync::RwLock;

use super::linked_folders::OWN_FOLDER;
use crate::error::StoreError;

const MAGIC: &[u8; 8] = b"MQSPATHS";
/// The option with the folders.
pub(super) const OPTION: &str = "commit_log_paths";

/// The folders of one log.
#[derive(Debug)]
pub struct LogFolders {
    /// Folders for new segments, as given by the caller, sorted.
    new: Vec<PathBuf>,
    /// Folders with older segments only, as given by the caller.
    read_only: Vec<PathBuf>,
    /// Whether the log is in `<root>/commitlog` because no folders were listed.
    pub(super) plain: bool,
    root: PathBuf,
    /// The targets of the folders that are links.
    links: BTreeMap<PathBuf, PathBuf>,
    /// Whether each folder has a folder of ours, because it can be on another file system than `mqstore`.
    pub(super) own_sides: bool,
    /// Folders on a disk that is too full for new segments.
    full: RwLock<BTreeSet<PathBuf>>,
}

impl LogFolders {
    pub(super) fn plain(root: &Path) -> Self {
        Self {
            // Relative to the root, like listed folders: the root itself can be relative.
            new: vec![PathBuf::from(COMMITLOG_DIR)],
            read_only: Vec::new(),
            plain: true,
            root: root.to_path_buf(),
            links: BTreeMap::new(),
            own_sides: false,
            full: RwLock::default(),
        }
    }

    /// A log without a store around it.
    pub(super) fn alone(path: &Path) -> Self {
        Self {
            new: vec![path.to_path_buf()],
            read_only: Vec::new(),
            plain: true,
            root: PathBuf::new(),
            links: BTreeMap::new(),
            own_sides: false,
            full: RwLock::default(),
        }
    }

    pub(super) fn listed(root: &Path, new: &[PathBuf], read_only: &[PathBuf]) -> Result<Self, StoreError> {
        let read_only: BTreeSet<PathBuf> = read_only.iter().cloned().collect();
        let new: BTreeSet<PathBuf> = new.iter().filter(|path| !read_only.contains(*path)).cloned().collect();
        if new.is_empty() {
            let reason = "every folder is read-only; list one for new segments".to_owned();
            return Err(StoreError::InvalidOption { option: OPTION, reason });
        }
        Ok(Self {
            new: new.into_iter().collect(),
            read_only: read_only.into_iter().collect(),
            plain: false,
            root: root.to_path_buf(),
            links: BTreeMap::new(),
            own_sides: true,
            full: RwLock::default(),
        })
    }

    /// Resolves the folders that are links, so that one folder with two names counts once.
    pub(super) fn with_links(mut self, vfs: &dyn Vfs) -> Self {
        let all = self.new.iter().chain(&self.read_only).map(|path| self.root.join(path));
        self.links = all.filter_map(|path| vfs.linked_folder(&path).map(|target| (path, target))).collect();
        let side = vfs.linked_folder(&self.root.join("mqstore"));
        self.own_sides |= !self.links.is_empty() || side.is_some();
        self
    }

    fn place(&self, given: &Path) -> PathBuf {
        let path = self.root.join(given);
        self.links.get(&path).cloned().unwrap_or(path)
    }

    /// Returns every folder with segments, each once.
    pub fn all(&self) -> Vec<PathBuf> {
        let given = self.new.iter().chain(&self.read_only);
        given.map(|path| self.place(path)).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns the folders for new segments.
    pub fn for_new(&self) -> Vec<PathBuf> {
        let mut folders: Vec<PathBuf> = Vec::new();
        for folder in self.new.iter().map(|path| self.place(path)) {
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        }
        folders
    }

    /// Sets the folders that receive no new segments from now on. If all folders are full, all receive them.
    pub fn set_full(&self, full: BTreeSet<PathBuf>) {
        *self.full.write() = full;
    }

    /// Returns the folder for the segment that starts at log offset `base`.
    pub(super) fn folder_of(&self, base: u64, segment_bytes: u64) -> PathBuf {
        let all = self.for_new();
        let full = self.full.read();
        let free: Vec<&PathBuf> = all.iter().filter(|path| !full.contains(*path)).collect();
        let candidates = if free.is_empty() { all.iter().collect() } else { free };
        let number = base / segment_bytes.max(1) % candidates.len().max(1) as u64;
        candidates.get(number as usize).map_or_else(|| self.root.join("commitlog"), |path| (*path).clone())
    }

    /// Returns our own folder for the files of `folder`, on the same file system.
    pub(super) fn side_of(&self, folder: &Path) -> PathBuf {
        if self.own_sides { folder.join(OWN_FOLDER) } else { self.root.join("mqstore") }
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, StoreError> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&((self.new.len() + self.read_only.len()) as u32).to_be_bytes());
        for (kind, paths) in [(0, &self.new), (1, &self.read_only)] {
            for path in paths {
                let text = path.to_str().ok_or_else(|| StoreError::InvalidOption {
                    option: OPTION,
                    reason: format!("{} is not UTF-8, so the store cannot remember it", path.display()),
                })?;
                bytes.push(kind);
                bytes.extend_from_slice(&(text.len() as u32).to_be_bytes());
                bytes.extend_from_slice(text.as_bytes());
            }
        }
        bytes.extend_from_slice(&crc31(&bytes).to_be_bytes());
        Ok(bytes)
    }

    pub(super) fn decode(root: &Path, bytes: &[u8]) -> Option<Self> {
        let (body, crc) = bytes.split_last_chunk::<4>()?;
        if *crc != crc31(body).to_be_bytes() {
            return None;
        }
        let (count, mut rest) = body.strip_prefix(MAGIC)?.split_first_chunk::<4>()?;
        let (mut new, mut read_only) = (Vec::new(), Vec::new());
        for _ in 0..u32::from_be_bytes(*count) {
            let (kind, after) = rest.split_first()?;
            let (length, after) = after.split_first_chunk::<4>()?;
            let (path, after) = after.split_at_checked(u32::from_be_bytes(*length) as usize)?;
            let path = PathBuf::from(std::str::from_utf8(path).ok()?);
            if *kind == 0 {
                new.push(path);
            } else {
                read_only.push(path);
            }
            rest = after;
        }
        Self::listed(root, &new, &read_only).ok().filter(|_| rest.is_empty())
    }
}
