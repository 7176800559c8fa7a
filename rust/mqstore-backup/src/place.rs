//! The objects of a backup in a target. Failed requests become errors of the store, which name the target without secrets.

use std::collections::HashMap;
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_io::target::{OVERWRITES, create, delete_all, last_bytes, numbers, probe, sorted_list};
use mqstore_io::{Clock, RemoteCause, Target, TargetError, TargetObject, switch};

use crate::layout::{PIECES, ROOT, STATES, piece_name, piece_path, state_path};
use crate::manifest::{Manifest, SegmentEntry, listed};
use crate::pieces::{Piece, PieceObject, unpacked};

/// Pieces that are read or written at the same time.
pub(crate) const AT_ONCE: u32 = 4;

/// Actions, for errors.
pub(crate) const READ: &str = "read the backup";
pub(crate) const WRITE: &str = "back up to it";

/// The objects of a backup. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Place {
    target: Arc<dyn Target>,
}

impl Place {
    /// Makes the backup in a target. Makes no request.
    pub fn new(target: Arc<dyn Target>) -> Self {
        Self { target }
    }

    /// Returns the target for errors, without secrets.
    pub fn shown(&self) -> String {
        self.target.shown(None)
    }

    /// Returns the numbers of all manifests, the newest first.
    ///
    /// # Errors
    /// The request failed.
    pub fn numbers(&self) -> Result<Vec<u64>, StoreError> {
        numbers(&*self.target, STATES).map_err(|error| self.failed(READ, error))
    }

    /// Returns the newest manifest; `None` if there is no backup.
    ///
    /// # Errors
    /// As for [`Self::manifest`].
    pub(crate) fn newest(&self) -> Result<Option<Manifest>, StoreError> {
        self.numbers()?.first().map(|number| self.manifest(*number)).transpose()
    }

    /// Returns all manifests that were not removed meanwhile, the oldest first.
    ///
    /// # Errors
    /// [`StoreError::ResultNotFound`] if there is none; [`StoreError::Corrupt`] for a damaged one; a request failed.
    pub fn manifests(&self) -> Result<Vec<Manifest>, StoreError> {
        let mut found = Vec::new();
        for number in self.numbers()?.into_iter().rev() {
            found.extend(self.find(number)?);
        }
        if found.is_empty() {
            return Err(StoreError::ResultNotFound { path: self.shown() });
        }
        Ok(found)
    }

    fn manifest(&self, number: u64) -> Result<Manifest, StoreError> {
        self.find(number)?.ok_or_else(|| {
            let removed = "the state was removed meanwhile: try again";
            self.failed(READ, TargetError::new(RemoteCause::Changed, &state_path(number), removed))
        })
    }

    fn find(&self, number: u64) -> Result<Option<Manifest>, StoreError> {
        let path = state_path(number);
        let content = self.target.get(&path).map_err(|error| self.failed(READ, error))?;
        content.map(|content| self.decoded(number, &path, &content)).transpose()
    }

    fn decoded(&self, number: u64, path: &str, content: &[u8]) -> Result<Manifest, StoreError> {
        let wrong = |reason: &str| {
            let reason = format!("the state of the backup cannot be used: {reason}");
            StoreError::corrupt(self.target.shown(Some(path)).as_ref(), 0, reason)
        };
        let found = Manifest::decode(content).map_err(wrong)?;
        if found.number != number {
            return Err(wrong(&format!(
                "it says that its number is {}; restore it from a copy",
                found.number
            )));
        }
        Ok(found)
    }

    /// Makes the manifests durable: a session that has ended can have created one whose name is not.
    ///
    /// # Errors
    /// The request failed.
    pub(crate) fn settle(&self) -> Result<(), StoreError> {
        let settled = switch::step("backup.settle_states", || self.target.settle(STATES));
        settled.map_err(|error| self.failed(WRITE, error))
    }

    /// Makes sure that the target creates an object only if it is absent. `id` is random.
    ///
    /// # Errors
    /// [`StoreError::WrongTarget`] if it does not; a request failed.
    pub(crate) fn probe(&self, id: &str) -> Result<(), StoreError> {
        if probe(&*self.target, STATES, id).map_err(|error| self.failed(WRITE, error))? {
            return Ok(());
        }
        Err(StoreError::WrongTarget { path: self.shown(), action: WRITE, reason: OVERWRITES.to_owned() })
    }

    /// Creates a manifest.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if another session has created one with this number; the request failed: the manifest may
    /// appear later.
    pub(crate) fn create(&self, clock: &dyn Clock, manifest: &Manifest) -> Result<(), StoreError> {
        let path = state_path(manifest.number);
        let content = manifest.encode().map_err(|error| {
            StoreError::corrupt(self.target.shown(Some(&path)).as_ref(), 0, error.to_string())
        })?;
        let found = create(&*self.target, clock, &path, &content);
        let Some(found) = found.map_err(|failed| self.failed(WRITE, failed.error))? else { return Ok(()) };
        // After an answer that was lost, the manifest is the own one.
        if switch::on("backup.one_session") && self.decoded(manifest.number, &path, &found)? != *manifest {
            return Err(self.has_other_session());
        }
        Ok(())
    }

    /// The error of a session that is not alone.
    pub(crate) fn has_other_session(&self) -> StoreError {
        let reason = format!(
            "{}: another process backs up to this target; end one of the two, or give each its own target",
            self.shown()
        );
        StoreError::Busy { reason }
    }

    /// Uploads a piece.
    ///
    /// # Errors
    /// The request failed.
    pub(crate) fn upload(&self, name: &str, content: &[u8]) -> Result<NewObject, StoreError> {
        self.target.put(&piece_path(name), content).map_err(|error| self.failed(WRITE, error))?;
        let object = PieceObject { name: name.to_owned(), bytes: content.len() as u64 };
        Ok(NewObject { object, last: content.last().copied().unwrap_or_default() })
    }

    /// Makes sure that uploaded pieces are there in their full length.
    ///
    /// # Errors
    /// [`StoreError::Io`] if one is missing, shorter, or has another last byte; a request failed.
    pub(crate) fn check_present(&self, new: &[NewObject]) -> Result<(), StoreError> {
        // Not `Busy`, which says that another session is at work.
        let lost = |path: &str| {
            let reason =
                "the object that was just written differs or is missing; the next round writes it again";
            self.failed(WRITE, TargetError::new(RemoteCause::Other, path, reason))
        };
        let objects: Vec<_> =
            new.iter().map(|one| (piece_path(&one.object.name), one.object.bytes)).collect();
        let found = last_bytes(&*self.target, &objects).map_err(|error| match error.cause {
            RemoteCause::Changed => lost(&error.path),
            _ => self.failed(WRITE, error),
        })?;
        let mut all = new.iter().zip(&objects).zip(&found);
        match all.find(|((one, _), part)| ***part != [one.last]) {
            Some(((_, (path, _)), _)) if switch::on("backup.check_present") => Err(lost(path)),
            _ => Ok(()),
        }
    }

    /// Returns the bytes of a piece, which are those of its digest; none for a piece of zero bytes.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if its object is missing or has others; the request failed.
    pub(crate) fn content(&self, piece: &Piece) -> Result<Vec<u8>, StoreError> {
        let Some(object) = &piece.object else { return Ok(Vec::new()) };
        let path = piece_path(&object.name);
        let corrupt = |reason: &str| StoreError::corrupt(self.target.shown(Some(&path)).as_ref(), 0, reason);
        let found = match self.target.get(&path) {
            Ok(found) => found.ok_or_else(|| corrupt("the backup needs this object, and it is missing"))?,
            // A disk that cannot read one file can read others.
            Err(error) if self.target.folder().is_some() => return Err(corrupt(&error.reason)),
            Err(error) => return Err(self.failed(READ, error)),
        };
        unpacked(piece, &found)
            .ok_or_else(|| corrupt("the object has other bytes than the one that was uploaded"))
    }

    /// Returns the pieces of a segment. `lists` remembers those of objects.
    ///
    /// # Errors
    /// As for [`Self::content`].
    pub(crate) fn pieces_of(
        &self,
        segment: &SegmentEntry,
        lists: &mut Lists,
    ) -> Result<Arc<Vec<Piece>>, StoreError> {
        let Some(list) = &segment.list else { return Ok(Arc::new(segment.pieces.clone())) };
        let name = list.object.as_ref().map_or("", |object| &object.name);
        if let Some(known) = lists.get(name) {
            return Ok(Arc::clone(known));
        }
        let found = listed(&self.content(list)?, segment.filled).ok_or_else(|| {
            let path = self.target.shown(Some(&piece_path(name)));
            StoreError::corrupt(path.as_ref(), 0, "it is no list of the pieces of a segment")
        })?;
        let found = Arc::new(found);
        lists.insert(name.to_owned(), Arc::clone(&found));
        Ok(found)
    }

    /// Returns the lengths of all pieces that are there, by name.
    ///
    /// # Errors
    /// The request failed.
    pub(crate) fn present(&self) -> Result<HashMap<String, u64>, StoreError> {
        let found = self.target.list(PIECES).map_err(|error| self.failed(READ, error))?;
        Ok(found.iter().filter_map(|one| Some((piece_name(&one.path)?.to_owned(), one.bytes))).collect())
    }

    /// Returns all objects of the backup, by path.
    ///
    /// # Errors
    /// The request failed.
    pub(crate) fn objects(&self) -> Result<Vec<TargetObject>, StoreError> {
        sorted_list(&*self.target, ROOT).map_err(|error| self.failed("list the backup", error))
    }

    /// Removes objects, by their paths below the root.
    ///
    /// # Errors
    /// A request failed.
    pub(crate) fn delete(&self, paths: &[String]) -> Result<(), StoreError> {
        delete_all(&*self.target, paths).map_err(|error| self.failed("clean the backup", error))
    }

    /// Returns the error of a failed request.
    fn failed(&self, action: &'static str, error: TargetError) -> StoreError {
        StoreError::request(&self.shown(), action, error)
    }
}

/// An object that was just written, and its last byte.
#[derive(Clone, Debug)]
pub(crate) struct NewObject {
    pub(crate) object: PieceObject,
    last: u8,
}

/// Lists of pieces, by the name of their object.
pub(crate) type Lists = HashMap<String, Arc<Vec<Piece>>>;

#[cfg(test)]
mod tests {
    use mqstore_io::target::{HostileTarget, Mischief};

    use super::*;

    #[test]
    fn an_object_that_the_target_damages_is_no_sign_of_another_session() {
        let target = Arc::new(HostileTarget::new(1));
        let place = Place::new(Arc::clone(&target) as _);
        let name = |digit: char| format!("{}-00000000", digit.to_string().repeat(64));
        let good = place.upload(&name('a'), b"good").unwrap();
        target.set(Mischief { damages: 64, ..Mischief::default() });
        let bad = place.upload(&name('b'), b"bad").unwrap();
        target.calm();
        let lost = NewObject { object: PieceObject { name: name('c'), bytes: 4 }, last: 0 };
        place.check_present(std::slice::from_ref(&good)).unwrap();
        for wrong in [bad, lost] {
            let error = place.check_present(&[good.clone(), wrong]).unwrap_err();
            assert!(matches!(error, StoreError::Io { .. }), "{error:?}");
            assert!(error.to_string().contains("writes it again"), "{error}");
        }
    }
}
