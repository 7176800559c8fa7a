//! One attempt to publish a result.
//!
//! The steps are: begin (no other result, no other objects, the target creates objects only if they are absent), uploads,
//! a list of the uploaded objects, and the manifest.
//!
//! If the request for the manifest fails, it may still have been carried out, or be carried out later. So the manifest is
//! read: it names this attempt, another one, or is missing. In the last case the objects stay, and a clean removes them.

use std::path::Path;
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_io::clock::utc_text;
use mqstore_io::sync::Mutex;
use mqstore_io::target::{OVERWRITES, create, delete_all, keeps_existing, random_id};
use mqstore_io::{Clock, RemoteCause, Target, TargetError, Vfs, switch};
use serde_json::{Map, Value};

use crate::manifest::{ATTEMPT, FOLDER, Manifest, NAME, ResultFile, decoded, object_of};
use crate::requests::failed;
use crate::upload::{LocalFile, object_name, upload, upload_directory};

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
            return Ok(Some(found));
        }
        let names = self.target.names("").map_err(self.failed())?;
        if let Some(other) = names.iter().filter(|name| !["", FOLDER].contains(&name.as_str())).min() {
            return Err(self.exists(format!("there are other objects, such as '{other}'")));
        }
        self.state.lock().has_objects = true;
        if keeps_existing(&*self.target, &self.probe()).map_err(self.failed())? {
            return Ok(None);
        }
        let path = self.target.shown(None);
        Err(StoreError::WrongTarget { path, action: PUBLISH, reason: OVERWRITES.to_owned() })
    }

    fn probe(&self) -> String {
        object_of(&self.attempt, "probe")
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
        let object = format!("{}/{number:06}-{}", self.attempt, object_name(path));
        let local = LocalFile { object, path: path.to_owned(), file: file.to_path_buf(), trims };
        upload(&*self.target, &*self.vfs, &local)
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
        // Without the permission to remove objects, the clean of another user removes it.
        let _ = self.target.delete(&[self.probe()]);
        self.check_objects(&manifest)?;
        let Some(found) = self.create(clock, &manifest)? else { return Ok(manifest) };
        if found.attempt == self.attempt {
            // The answer was lost.
            return Ok(found);
        }
        self.state.lock().is_named = false;
        self.same(found)
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
        let listed = self.target.list(&object_of(&self.attempt, "")).map_err(self.failed())?;
        if !switch::on("results.check_objects") {
            return Ok(());
        }
        manifest.check_objects(&listed).map_err(|error| {
            let reason = "an object of this attempt was removed or is incomplete: write the result again";
            self.failed()(TargetError::new(RemoteCause::Other, &error.path, reason))
        })
    }

    /// Removes the objects of an attempt that failed, as far as possible, unless a manifest may name them.
    pub fn abandon(&self) {
        {
            let state = self.state.lock();
            if !state.has_objects || state.is_named {
                return;
            }
        }
        // The error of the attempt is the interesting one.
        if let Ok(listed) = self.target.list(&object_of(&self.attempt, "")) {
            let paths: Vec<String> = listed.into_iter().map(|one| one.path).collect();
            let _ = delete_all(&*self.target, &paths);
        }
    }
}
