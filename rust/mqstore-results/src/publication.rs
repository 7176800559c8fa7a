//! One attempt to publish a result.
//!
//! The steps are: begin (no other result, no other objects, the target creates objects only if they are absent), uploads,
//! a list of the uploaded objects, the manifest, and the removal of visible objects of other attempts. The object that
//! begin creates in the folder of the attempt shows to whom visible objects belong, so it is removed last.
//!
//! If the request for the manifest fails, it may still have been carried out, or be carried out later. So the manifest is
//! read: it names this attempt, another one, or is missing. In the last case the objects stay, and a clean removes them.

use std::path::Path;
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_io::clock::utc_text;
use mqstore_io::sync::Mutex;
use mqstore_io::target::{OVERWRITES, create, delete_all, keeps_existing, random_id, sorted_list};
use mqstore_io::{Clock, RemoteCause, Target, TargetError, TargetObject, Vfs, switch};
use serde_json::{Map, Value};

use crate::manifest::{Manifest, ResultFile, STORE, decoded, unused};
use crate::objects::{
    ATTEMPT, FOLDER, NAME, attempt_of, attempts, hidden_object, is_hidden, is_own, is_partition, object_name,
    visible_object,
};
use crate::requests::failed;
use crate::upload::{LocalFile, upload, upload_directory};

const PUBLISH: &str = "publish a result";

/// Number in the object of the mapping; the files count from 0.
const MAPPING: usize = 999_999;

/// Files and empty folders of a result that other processes have uploaded for an attempt.
#[derive(Clone, Debug, Default)]
pub struct Uploaded {
    /// The files.
    pub files: Vec<ResultFile>,
    /// Folders without files.
    pub folders: Vec<String>,
}

/// An attempt. Call [`Self::abandon`] if it fails. A call at a time.
#[derive(Debug)]
pub struct Publication {
    target: Arc<dyn Target>,
    vfs: Arc<dyn Vfs>,
    attempt: String,
    format: String,
    identity: Option<String>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    content: Uploaded,
    mapping: Option<ResultFile>,
    has_objects: bool,
    /// Whether a manifest names the objects, or may name them later.
    is_named: bool,
    /// Whether objects can still be written after the end of the attempt.
    can_be_late: bool,
}

impl Publication {
    /// Makes an attempt. Makes no request. With an identity, the same result of another attempt counts as this one.
    pub fn new(target: Arc<dyn Target>, vfs: Arc<dyn Vfs>, format: &str, identity: Option<String>) -> Self {
        let attempt = format!("{ATTEMPT}{}", random_id(&*vfs));
        let format = format.to_owned();
        Self { target, vfs, attempt, format, identity, state: Mutex::default() }
    }

    /// Returns the folder of the attempt, below [`FOLDER`].
    pub fn attempt(&self) -> &str {
        &self.attempt
    }

    /// Returns the same for other processes, which upload objects of this attempt and can be late.
    pub fn share(&self) -> &str {
        self.state.lock().can_be_late = true;
        &self.attempt
    }

    fn failed(&self) -> impl Fn(TargetError) -> StoreError {
        failed(&*self.target, PUBLISH)
    }

    /// Checks the target. Returns the manifest if the same result is published already.
    ///
    /// # Errors
    /// [`StoreError::ResultExists`] if the target has another result or other objects; [`StoreError::WrongTarget`] if the
    /// server ignores the condition that an object is absent; [`StoreError::Corrupt`] for a damaged manifest; a request
    /// failed.
    pub fn begin(&self) -> Result<Option<Manifest>, StoreError> {
        let content = self.target.get(NAME).map_err(self.failed())?;
        if let Some(content) = content {
            let found = self.same(decoded(&content).map_err(self.failed())?)?;
            // The call that created it can have ended before its name was durable.
            switch::step("results.settle_found", || self.target.settle(&format!("{FOLDER}/")))
                .map_err(self.failed())?;
            self.tidy(&found)?;
            return Ok(Some(found));
        }
        if let Some(other) = self.foreign().map_err(self.failed())? {
            return Err(self.exists(format!("there are other objects, such as '{other}'")));
        }
        self.state.lock().has_objects = true;
        if keeps_existing(&*self.target, &self.probe()).map_err(self.failed())? {
            return Ok(None);
        }
        let path = self.target.shown(None);
        Err(StoreError::WrongTarget { path, action: PUBLISH, reason: OVERWRITES.to_owned() })
    }

    /// Returns an object or a folder that belongs to no attempt.
    fn foreign(&self) -> Result<Option<String>, TargetError> {
        let mut names = self.target.names("")?;
        names.retain(|name| !["", FOLDER].contains(&name.as_str()));
        let is_other = |name: &&String| attempt_of(name).is_none() && !is_partition(name);
        if names.is_empty() || names.iter().any(|name| is_other(&name)) {
            return Ok(names.into_iter().filter(|name| is_other(&name)).min());
        }
        let objects = sorted_list(&*self.target, "")?;
        let attempts = attempts(&objects);
        Ok(objects.into_iter().map(|one| one.path).find(|path| !path.is_empty() && !is_own(path, &attempts)))
    }

    /// Removes visible objects that the manifest does not name, and the probe, as far as possible.
    fn tidy(&self, manifest: &Manifest) -> Result<(), StoreError> {
        let visible = match &*self.format {
            STORE => Ok(Vec::new()),
            _ => sorted_list(&*self.target, "").map(|objects| unused(objects, Some(manifest))),
        };
        let removed = visible.and_then(|mut objects| {
            objects.retain(|one| !is_hidden(&one.path));
            let paths: Vec<String> = objects.into_iter().map(|one| one.path).collect();
            delete_all(&*self.target, &paths)?;
            self.target.delete(&[self.probe()])
        });
        match removed {
            Err(error) if error.raised.is_some() => Err(self.failed()(error)),
            // Without the permission to remove objects, the clean of another user removes them.
            _ => Ok(()),
        }
    }

    fn probe(&self) -> String {
        hidden_object(&self.attempt, "probe")
    }

    /// Uploads a local file as the file `path` of the result. With `trims`, zero bytes at its end are not uploaded.
    ///
    /// # Errors
    /// Those of [`upload`].
    pub fn add(&self, path: &str, file: &Path, trims: bool) -> Result<(), StoreError> {
        let number = self.state.lock().content.files.len();
        let file = self.upload(path, file, number, trims)?;
        self.state.lock().content.files.push(file);
        Ok(())
    }

    /// Uploads the file with old and new positions.
    ///
    /// # Errors
    /// Those of [`upload`].
    pub fn add_mapping(&self, file: &Path) -> Result<(), StoreError> {
        let mapping = self.upload("mapping.jsonl", file, MAPPING, false)?;
        self.state.lock().mapping = Some(mapping);
        Ok(())
    }

    fn upload(&self, path: &str, file: &Path, number: usize, trims: bool) -> Result<ResultFile, StoreError> {
        let object = match &*self.format {
            STORE => hidden_object(&self.attempt, &format!("{number:06}-{}", object_name(path))),
            _ => visible_object(&self.attempt, path),
        };
        let local = LocalFile { object, path: path.to_owned(), file: file.to_path_buf(), trims };
        let uploaded = upload(&*self.target, &*self.vfs, &local);
        self.state.lock().can_be_late |= uploaded.is_err();
        uploaded
    }

    /// Uploads all files of a directory, `at_once` at a time.
    ///
    /// # Errors
    /// Those of [`upload_directory`].
    pub fn add_directory(&self, home: &Path, at_once: u32) -> Result<(), StoreError> {
        let prefix = format!("{}/", self.attempt);
        let (files, folders) = upload_directory(&*self.target, &*self.vfs, &prefix, home, at_once)?;
        let content = &mut self.state.lock().content;
        content.files.extend(files);
        content.folders.extend(folders);
        Ok(())
    }

    /// Publishes the uploaded files, and those that other processes have uploaded. Returns the manifest: this one, or that
    /// of the same result.
    ///
    /// # Errors
    /// [`StoreError::ResultExists`] if another attempt published another result; a request failed, or an object of this
    /// attempt has disappeared.
    pub fn commit(
        &self,
        clock: &dyn Clock,
        report: Map<String, Value>,
        uploaded: Uploaded,
    ) -> Result<Manifest, StoreError> {
        let manifest = {
            let mut state = self.state.lock();
            state.content.files.extend(uploaded.files);
            state.content.folders.extend(uploaded.folders);
            Manifest {
                format: self.format.clone(),
                attempt: self.attempt.clone(),
                identity: self.identity.clone(),
                created_ms: clock.now_ms(),
                report,
                files: state.content.files.clone(),
                folders: state.content.folders.clone(),
                mapping: state.mapping.clone(),
            }
        };
        if let Err(error) = self.check_objects(&manifest) {
            // The attempt that published a result has removed them.
            return match self.target.get(NAME) {
                Ok(Some(content)) => self.same(decoded(&content).map_err(self.failed())?),
                _ => Err(error),
            };
        }
        let found = self.create(clock, &manifest)?.unwrap_or(manifest);
        if found.attempt != self.attempt {
            self.state.lock().is_named = false;
            return self.same(found);
        }
        self.tidy(&found)?;
        Ok(found)
    }

    /// Creates the manifest. Returns `None`; or the manifest that exists.
    fn create(&self, clock: &dyn Clock, manifest: &Manifest) -> Result<Option<Manifest>, StoreError> {
        self.state.lock().is_named = true;
        match create(&*self.target, clock, NAME, &manifest.encode()) {
            Ok(found) => found.map(|found| decoded(&found).map_err(self.failed())).transpose(),
            Err(not_created) => {
                self.state.lock().is_named = !not_created.is_final;
                Err(self.failed()(not_created.error))
            }
        }
    }

    /// Returns a manifest if it is of the same result.
    fn same(&self, found: Manifest) -> Result<Manifest, StoreError> {
        if self.identity.is_some() && found.identity == self.identity && found.format == self.format {
            return Ok(found);
        }
        let since = utc_text(found.created_ms);
        Err(self.exists(format!("a result in the format {} is there since {since}", found.format)))
    }

    fn exists(&self, reason: String) -> StoreError {
        StoreError::ResultExists { path: self.target.shown(None), reason }
    }

    fn check_objects(&self, manifest: &Manifest) -> Result<(), StoreError> {
        let listed = self.listed().map_err(self.failed())?;
        if !switch::on("results.check_objects") {
            return Ok(());
        }
        manifest.check_objects(&listed).map_err(|error| {
            let reason = "an object of this attempt was removed or is incomplete: write the result again";
            self.failed()(TargetError::new(RemoteCause::Other, &error.path, reason))
        })
    }

    /// Returns the objects of this attempt.
    fn listed(&self) -> Result<Vec<TargetObject>, TargetError> {
        let folder = hidden_object(&self.attempt, "");
        let mut objects = self.target.list(if self.format == STORE { &folder } else { "" })?;
        let id = attempt_of(&self.probe()).map(str::to_owned);
        objects.retain(|one| attempt_of(&one.path) == id.as_deref());
        Ok(objects)
    }

    /// Removes the objects of an attempt that failed, as far as possible, unless a manifest may name them. If one of them
    /// can still be written, the folder of the attempt stays, so that a clean knows it.
    pub fn abandon(&self) {
        let can_be_late = {
            let state = self.state.lock();
            if !state.has_objects || state.is_named {
                return;
            }
            state.can_be_late && self.format != STORE
        };
        // The error of the attempt is the interesting one.
        if let Ok(listed) = self.listed() {
            let paths = listed.into_iter().map(|one| one.path);
            let (hidden, visible): (Vec<_>, Vec<_>) = paths.partition(|path| is_hidden(path));
            let removed = delete_all(&*self.target, &visible);
            if removed.is_ok() && !can_be_late {
                let _ = delete_all(&*self.target, &hidden);
            }
        }
    }
}
