//! The objects of an archive in a target, and its manifests.
//!
//! Failed requests become errors of the store, which name the archive and the object without secrets.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use mqstore_base::error::StoreError;
use mqstore_io::{RemoteCause, Target, TargetError};

use crate::layout::{MANIFESTS, manifest_number, manifest_path, object};
use crate::manifest::Manifest;

/// Actions, for errors.
pub(crate) const READ: &str = "read the archive";

const DIFFERS: &str =
    "the length or the digest of the file differs from what was written: restore the file, or archive again";

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
        let found = self.target.list(MANIFESTS).map_err(|error| self.failed(READ, error))?;
        let mut numbers: Vec<u64> = found.iter().filter_map(|one| manifest_number(&one.path)).collect();
        numbers.sort_unstable_by(|one, other| other.cmp(one));
        numbers.dedup();
        Ok(numbers)
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
            return Err(corrupt(DIFFERS));
        }
        Ok(found)
    }

    /// Returns the error of a failed request.
    pub(crate) fn failed(&self, action: &'static str, error: TargetError) -> StoreError {
        StoreError::request(&self.shown(), action, error)
    }
}
