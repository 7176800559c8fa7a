//! A fetch assembles a directory from a result, under another name. Every file is compared with its digest and synced
//! before the directory gets its name.
//!
//! ```text
//! DIR.partial/             complete and synced files, which a later call keeps
//! DIR.partial.new          the file in progress; after a failed sync, it never gets its name
//! DIR.partial.mapping      the mapping in progress
//! DIR.mapping.jsonl        only for an export to a store: old and new positions
//! DIR                      DIR.partial, when all files are complete and synced
//! ```
//!
//! After a crash at any time, `DIR` and the mapping are complete or do not exist. A call at a time, with a lock of the
//! caller.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::progress::{Progress, ProgressWatcher};
use mqstore_io::target::hex;
use mqstore_io::{Access, FileKind, RemoteCause, Target, TargetError, Vfs, VfsFile, commit, switch};
use sha2::{Digest, Sha256};

use crate::manifest::{Manifest, ResultFile, check_length, decoded};
use crate::objects::NAME;
use crate::requests::{failed, path_in};
use crate::upload::digest_of;

const FETCH: &str = "fetch the result";
const FETCHING: &str = "fetching the result";

/// Bytes of one range.
const RANGE_BYTES: u64 = 4 << 20;

/// Returns the published result of a target, all of whose objects are there.
///
/// # Errors
/// [`StoreError::ResultNotFound`] if there is none; [`StoreError::Corrupt`] if the manifest is damaged, or an object is
/// missing or has another length; a request failed.
pub fn published(target: &dyn Target) -> Result<Manifest, StoreError> {
    let error = failed(target, "read the result");
    let objects = target.list("").map_err(&error)?;
    let not_found = || StoreError::ResultNotFound { path: target.shown(None) };
    let listed = objects.iter().find(|one| one.path == NAME).ok_or_else(not_found)?;
    check_length(listed.bytes).map_err(&error)?;
    let content = target.get(NAME).map_err(&error)?.ok_or_else(not_found)?;
    let manifest = decoded(&content).map_err(&error)?;
    manifest.check_objects(&objects).map_err(&error)?;
    Ok(manifest)
}

/// A directory that a fetch assembles.
#[derive(Clone, Copy, Debug)]
pub struct FetchedTo<'a> {
    /// The directory until it is complete; it exists.
    pub partial: &'a Path,
    /// Its final path: free, or an empty folder.
    pub home: &'a Path,
    /// The mapping until it is complete.
    pub partial_mapping: &'a Path,
    /// Its final path.
    pub mapping: &'a Path,
}

/// Assembles the directory of a result with up to `at_once` requests at the same time. Returns the number of files of an
/// earlier call that were kept.
///
/// # Errors
/// [`StoreError::Corrupt`] if the bytes of an object do not match the manifest; [`StoreError::DiskFull`]; a request failed;
/// the error of `watch`. Complete files are kept for the next call.
pub fn fetch(
    target: &dyn Target,
    vfs: &dyn Vfs,
    manifest: &Manifest,
    to: &FetchedTo<'_>,
    at_once: usize,
    watch: ProgressWatcher<'_>,
) -> Result<usize, StoreError> {
    let entries: HashMap<&str, &ResultFile> =
        manifest.files.iter().map(|file| (file.path.as_str(), file)).collect();
    let mut kept = HashSet::new();
    tidy(vfs, to.partial, "", &entries, &mut kept)?;
    let parents = manifest.files.iter().filter_map(|file| Some(file.path.rsplit_once('/')?.0));
    for folder in manifest.folders.iter().map(String::as_str).chain(parents) {
        vfs.create_dir_all(&to.partial.join(folder)).at(to.partial, FETCHING)?;
    }
    let mut wanted: Vec<(&ResultFile, PathBuf)> = Vec::new();
    for file in manifest.files.iter().filter(|file| !kept.contains(file.path.as_str())) {
        wanted.push((file, to.partial.join(&file.path)));
    }
    if let Some(mapping) = &manifest.mapping {
        remove(vfs, to.partial_mapping)?;
        wanted.push((mapping, to.partial_mapping.to_path_buf()));
    }
    let kept_bytes = kept.iter().filter_map(|path| entries.get(*path)).map(|file| file.bytes).sum();
    let total_bytes = manifest.objects().map(|file| file.bytes).sum();
    let mut done = Progress { done_bytes: kept_bytes, total_bytes };
    let mut new = to.partial.as_os_str().to_owned();
    new.push(".new");
    let mut place = Download { target, vfs, folder: to.partial, new: new.into(), current: None };
    for group in ranges(&wanted).chunks(at_once.max(1)) {
        done.done_bytes += place.read(group)?;
        watch(done)?;
    }
    if manifest.mapping.is_some() {
        commit::publish_file(vfs, to.partial_mapping, to.mapping).at(to.mapping, FETCHING)?;
    }
    commit::publish_folder(vfs, to.partial, to.home).at(to.home, FETCHING)?;
    Ok(kept.len())
}

/// A range of an object, for a local file.
type Part<'a> = (&'a ResultFile, &'a Path, Range<u64>);

/// Returns the ranges of all files, in order. An empty file has one empty range.
fn ranges<'a>(wanted: &'a [(&'a ResultFile, PathBuf)]) -> Vec<Part<'a>> {
    let mut parts = Vec::new();
    for (file, path) in wanted {
        for start in (0..file.bytes.max(1)).step_by(RANGE_BYTES as usize) {
            parts.push((*file, path.as_path(), start..(start + RANGE_BYTES).min(file.bytes)));
        }
    }
    parts
}

/// The local file in progress.
struct Download<'a> {
    target: &'a dyn Target,
    vfs: &'a dyn Vfs,
    folder: &'a Path,
    /// Its name until it is complete.
    new: PathBuf,
    current: Option<(Arc<dyn VfsFile>, Sha256)>,
}

impl Download<'_> {
    /// Fetches and writes some ranges. Returns their bytes.
    fn read(&mut self, group: &[Part<'_>]) -> Result<u64, StoreError> {
        let error = failed(self.target, FETCH);
        let ranges = group.iter().map(|(file, _, range)| (file.object.as_str(), range.clone()));
        let asked: Vec<_> = ranges.filter(|(_, range)| !range.is_empty()).collect();
        let found = if asked.is_empty() { Vec::new() } else { self.target.ranges(&asked).map_err(&error)? };
        let mut found = found.into_iter();
        let mut bytes = 0;
        for (file, path, range) in group {
            let part = if range.is_empty() { None } else { found.next() };
            let part = part.as_deref().unwrap_or_default();
            let wanted = range.end - range.start;
            if part.len() as u64 != wanted {
                let reason = format!("{wanted} bytes were requested and {} returned: try again", part.len());
                return Err(error(TargetError::new(RemoteCause::Other, &file.object, reason)));
            }
            self.write(file, path, range, part)?;
            bytes += wanted;
        }
        Ok(bytes)
    }

    /// Writes the next bytes of a file. The last ones complete it.
    fn write(
        &mut self,
        file: &ResultFile,
        path: &Path,
        range: &Range<u64>,
        part: &[u8],
    ) -> Result<(), StoreError> {
        let (local, digest) = match &mut self.current {
            Some(current) if range.start > 0 => current,
            current => {
                remove(self.vfs, &self.new)?;
                let created = self.vfs.create_new(&self.new).at(self.folder, FETCHING)?;
                current.insert((created, Sha256::new()))
            }
        };
        digest.update(part);
        local.write_all_at(part, range.start).at(self.folder, FETCHING)?;
        if range.end < file.bytes {
            return Ok(());
        }
        let found = hex(&std::mem::take(digest).finalize());
        if found != file.sha256 {
            let reason = "the object does not match its digest in the manifest";
            let error = TargetError::new(RemoteCause::Damaged, &file.object, reason);
            return Err(failed(self.target, FETCH)(error));
        }
        local.set_len(file.file_bytes()).at(self.folder, FETCHING)?;
        switch::step("results.sync_fetched", || local.sync_all()).at(self.folder, FETCHING)?;
        self.current = None;
        self.vfs.rename(&self.new, path).at(self.folder, FETCHING)
    }
}

/// Removes everything from a folder except complete files of the result. Adds these to `kept`.
fn tidy<'a>(
    vfs: &dyn Vfs,
    root: &Path,
    folder: &str,
    entries: &HashMap<&'a str, &'a ResultFile>,
    kept: &mut HashSet<&'a str>,
) -> Result<(), StoreError> {
    let here = root.join(folder);
    for (name, kind) in vfs.list_kinds(&here).at(root, FETCHING)? {
        let local = here.join(&name);
        let path = name.to_str().map(|name| path_in(folder, name));
        let entry = path.as_deref().and_then(|path| entries.get_key_value(path));
        match (kind, entry, path) {
            (FileKind::Directory, None, Some(path)) => tidy(vfs, root, &path, entries, kept)?,
            (FileKind::Directory, _, _) => vfs.remove_dir_all(&local).at(root, FETCHING)?,
            (FileKind::File, Some((path, file)), _)
                if is_complete(vfs, &local, file).at(root, FETCHING)? =>
            {
                kept.insert(path);
            }
            _ => remove(vfs, &local)?,
        }
    }
    Ok(())
}

/// Whether a local file is that of a result.
///
/// # Errors
/// It cannot be read.
pub fn is_complete(vfs: &dyn Vfs, path: &Path, wanted: &ResultFile) -> std::io::Result<bool> {
    let file = vfs.open(path, Access::Read)?;
    Ok(file.len()? == wanted.file_bytes() && digest_of(&*file, wanted.bytes)? == wanted.sha256)
}

fn remove(vfs: &dyn Vfs, path: &Path) -> Result<(), StoreError> {
    match vfs.remove_file(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed.at(path, FETCHING),
    }
}
