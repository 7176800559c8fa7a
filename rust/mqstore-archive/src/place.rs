//! The objects of an archive in a target, and its manifests.
//!
//! Failed requests become errors of the store, which name the archive and the object without secrets.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use mqstore_base::error::StoreError;
use mqstore_io::target::{OVERWRITES, create, delete_all, hex, last_bytes, numbers, probe, sorted_list};
use mqstore_io::{Clock, RemoteCause, Target, TargetError, TargetObject, switch};
use sha2::{Digest, Sha256};

use crate::layout::{MANIFESTS, manifest_path, object};
use crate::manifest::{ArchivedFile, Manifest};

/// Actions, for errors.
pub(crate) const READ: &str = "read the archive";
pub(crate) const WRITE: &str = "archive to it";

const DIFFERS: &str =
    "the length or the digest of the file differs from what was written: restore the file, or archive again";

/// Whether a manifest that was not created cannot appear later.
pub(crate) type IsFinal = bool;

/// The objects of an archive. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Place {
    target: Arc<dyn Target>,
}

impl Place {
    /// Makes the archive in a target. Makes no request.
    pub fn new(target: Arc<dyn Target>) -> Self {
        Self { target }
    }

    /// Returns the target.
    pub fn target(&self) -> &dyn Target {
        &*self.target
    }

    /// Returns the archive for errors, without secrets.
    pub fn shown(&self) -> String {
        self.target.shown(None)
    }

    /// Returns a file, by its path below `v1`, as other programs name it.
    pub fn full_path(&self, path: &str) -> PathBuf {
        self.target.shown(Some(&object(path))).into()
    }

    /// Returns the numbers of all manifests, the newest first.
    ///
    /// # Errors
    /// The request failed.
    pub fn manifest_numbers(&self) -> Result<Vec<u64>, StoreError> {
        numbers(self.target(), MANIFESTS).map_err(|error| self.failed(READ, error))
    }

    /// Returns the newest manifest; `None` if there is no archive.
    ///
    /// # Errors
    /// As for [`Self::manifest`].
    pub fn newest(&self) -> Result<Option<Manifest>, StoreError> {
        self.manifest_numbers()?.first().map(|number| self.manifest(*number)).transpose()
    }

    /// Returns the newest manifest.
    ///
    /// # Errors
    /// [`StoreError::ResultNotFound`] if there is no archive; as for [`Self::manifest`].
    pub fn must_have(&self) -> Result<Manifest, StoreError> {
        self.newest()?.ok_or_else(|| StoreError::ResultNotFound { path: self.shown() })
    }

    /// Returns the manifest with a number.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] for a damaged manifest; the request failed.
    pub fn manifest(&self, number: u64) -> Result<Manifest, StoreError> {
        let path = manifest_path(number);
        let content = self.target.get(&path).and_then(|content| {
            let removed = "the manifest was removed meanwhile: try again";
            content.ok_or_else(|| TargetError::new(RemoteCause::Changed, &path, removed))
        });
        let content = content.map_err(|error| self.failed(READ, error))?;
        let found = Manifest::decode(&content).map_err(|wrong| self.wrong(&path, &wrong.to_string()))?;
        if found.number != number {
            let reason = format!("it says that its number is {}; restore it from a copy", found.number);
            return Err(self.wrong(&path, &reason));
        }
        Ok(found)
    }

    fn wrong(&self, path: &str, reason: &str) -> StoreError {
        let reason = format!("the manifest of the archive cannot be used: {reason}");
        self.failed(READ, TargetError::new(RemoteCause::Damaged, path, reason))
    }

    /// Returns ranges of a file, by its path below `v1`.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if the file is missing or shorter; the request failed.
    pub fn read(&self, path: &str, ranges: &[Range<u64>]) -> Result<Vec<Bytes>, StoreError> {
        let object = object(path);
        let wanted: Vec<(&str, Range<u64>)> =
            ranges.iter().map(|range| (object.as_str(), range.clone())).collect();
        let corrupt = |reason: &str| StoreError::corrupt(&self.full_path(path), 0, reason);
        let found = self.target.ranges(&wanted).map_err(|error| match error.cause {
            RemoteCause::Changed => {
                corrupt("the archive needs this file, and it is missing or shorter than before")
            }
            RemoteCause::Damaged => corrupt(&error.reason),
            _ => self.failed(READ, error),
        })?;
        let is_whole = |(part, range): (&Bytes, &Range<u64>)| part.len() as u64 == range.end - range.start;
        if found.len() != ranges.len() || !found.iter().zip(ranges).all(is_whole) {
            return Err(self.differs(path));
        }
        Ok(found)
    }

    /// Returns a file.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if it is missing; the request failed.
    pub(crate) fn content(&self, path: &str) -> Result<Bytes, StoreError> {
        let lost = |why: &str| {
            let reason = format!("the archive needs this file, and {why}");
            StoreError::corrupt(&self.full_path(path), 0, reason)
        };
        match self.target.get(&object(path)) {
            Ok(content) => content.ok_or_else(|| lost("it is missing")),
            // A disk that cannot read one file can read others.
            Err(error) if self.target.folder().is_some() => Err(lost(&error.reason)),
            Err(error) => Err(self.failed(READ, error)),
        }
    }

    /// Returns a file, whose bytes must be those of the manifest.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if it is missing or damaged; the request failed.
    pub(crate) fn checked_content(&self, file: &ArchivedFile) -> Result<Bytes, StoreError> {
        let content = self.content(&file.path)?;
        let is_same = content.len() as u64 == file.bytes && hex(&Sha256::digest(&content)) == file.sha256;
        if is_same { Ok(content) } else { Err(self.differs(&file.path)) }
    }

    fn differs(&self, path: &str) -> StoreError {
        StoreError::corrupt(&self.full_path(path), 0, DIFFERS)
    }

    /// Returns all objects of the archive, by path.
    ///
    /// # Errors
    /// The request failed.
    pub fn objects(&self) -> Result<Vec<TargetObject>, StoreError> {
        let folder = object("");
        sorted_list(self.target(), &folder).map_err(|error| self.failed("list the archive", error))
    }

    /// Removes objects, by their paths below the root.
    ///
    /// # Errors
    /// A request failed.
    pub(crate) fn delete(&self, action: &'static str, paths: &[String]) -> Result<(), StoreError> {
        delete_all(self.target(), paths).map_err(|error| self.failed(action, error))
    }

    /// Makes the manifests durable. A run that has ended can have created one whose name is not.
    ///
    /// # Errors
    /// The request failed.
    pub(crate) fn settle(&self) -> Result<(), StoreError> {
        let settled = switch::step("archive.settle_manifests", || self.target.settle(MANIFESTS));
        settled.map_err(|error| self.failed(WRITE, error))
    }

    /// Makes sure that the target creates an object only if it is absent. `id` is random.
    ///
    /// # Errors
    /// [`StoreError::WrongTarget`] if it does not; a request failed.
    pub(crate) fn probe(&self, id: &str) -> Result<(), StoreError> {
        if probe(self.target(), MANIFESTS, id).map_err(|error| self.failed(WRITE, error))? {
            return Ok(());
        }
        Err(StoreError::WrongTarget { path: self.shown(), action: WRITE, reason: OVERWRITES.to_owned() })
    }

    /// Writes a new file, by its path below `v1`, and reads it back.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if a clean has removed it; [`StoreError::Corrupt`] if it differs; a request failed.
    pub(crate) fn upload(&self, path: &str, content: &[u8]) -> Result<(), StoreError> {
        let object = object(path);
        let found = self.target.put(&object, content).and_then(|()| self.target.get(&object));
        let found = found.map_err(|error| self.failed(WRITE, error))?;
        let found = found.ok_or_else(|| self.removed(&object))?;
        if switch::on("archive.compare_uploaded") && *found != *content {
            return Err(self.differs(path));
        }
        Ok(())
    }

    /// Makes sure that new files are still there in their full length.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if a clean has removed one; [`StoreError::Corrupt`] if one is shorter; a request failed.
    pub(crate) fn check_present(&self, files: &[ArchivedFile]) -> Result<(), StoreError> {
        let objects: Vec<_> = files.iter().map(|file| (object(&file.path), file.bytes)).collect();
        let found = last_bytes(self.target(), &objects).map_err(|error| match error.cause {
            RemoteCause::Changed => self.removed(&error.path),
            _ => self.failed(WRITE, error),
        })?;
        let short = files.iter().zip(found).find(|(_, part)| part.len() != 1);
        short.map_or(Ok(()), |(file, _)| Err(self.differs(&file.path)))
    }

    fn removed(&self, object: &str) -> StoreError {
        let reason = format!(
            "{}/{object}: a clean of the archive has removed this file of the run, which was older than its older_than; \
             no message is lost: run it again",
            self.shown()
        );
        StoreError::Busy { reason }
    }

    /// Creates a manifest. Returns `None`; or the manifest of another run with this number.
    ///
    /// # Errors
    /// The request failed, or a manifest with this number is damaged. Unless this is final, the manifest may appear later.
    pub(crate) fn create(
        &self,
        clock: &dyn Clock,
        action: &'static str,
        manifest: &Manifest,
    ) -> Result<Option<Manifest>, (StoreError, IsFinal)> {
        let path = manifest_path(manifest.number);
        let content = manifest.encode().map_err(|error| (self.wrong(&path, &error.to_string()), true))?;
        let found = create(self.target(), clock, &path, &content);
        let found = found.map_err(|failed| (self.failed(action, failed.error), failed.is_final))?;
        let Some(found) = found else { return Ok(None) };
        let found =
            Manifest::decode(&found).map_err(|wrong| (self.wrong(&path, &wrong.to_string()), false))?;
        // After an answer that was lost, the manifest is the own one.
        Ok(Some(found).filter(|found| found.run != manifest.run))
    }

    /// Removes a manifest that this process has just created.
    ///
    /// # Errors
    /// The request failed.
    pub(crate) fn withdraw(&self, manifest: &Manifest) -> Result<(), StoreError> {
        self.delete("withdraw the manifest", &[manifest_path(manifest.number)])
    }

    /// Removes files of a run that failed, as far as possible: the error of the run is the interesting one.
    pub(crate) fn discard(&self, paths: &[String]) {
        let paths: Vec<String> = paths.iter().map(|path| object(path)).collect();
        if !paths.is_empty() {
            let _ = self.delete(WRITE, &paths);
        }
    }

    /// Returns the error of a failed request.
    pub(crate) fn failed(&self, action: &'static str, error: TargetError) -> StoreError {
        StoreError::request(&self.shown(), action, error)
    }
}
