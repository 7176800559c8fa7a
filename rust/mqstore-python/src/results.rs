//! Results at URLs: an attempt, the fetch of a result, and a clean. The manifest is an object of its own, because readers
//! of stores at URLs follow it.

use std::path::PathBuf;
use std::sync::Arc;

use mqstore::error::StoreError;
use mqstore::io::{OsVfs, Target};
use mqstore::results::clean::clean;
use mqstore::results::fetch::{FetchedTo, fetch, is_complete, published};
use mqstore::results::manifest::{Manifest, ResultFile};
use mqstore::results::objects::visible_object;
use mqstore::results::publication::{Publication, Uploaded};
use mqstore::results::upload::{LocalFile, must_be_free, upload, upload_directory, upload_object};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::runtime::{clock, detached};
use crate::store::directory::watched;
use crate::target::{ObjectRow, object_row, target_of};

/// Path in the directory, path of the object, bytes of the object, zero bytes after them, and digest of the object.
type FileRow = (String, String, u64, u64, String);

fn row_of(file: &ResultFile) -> FileRow {
    let ResultFile { path, object, bytes, zeros, sha256 } = file.clone();
    (path, object, bytes, zeros, sha256)
}

fn file_of((path, object, bytes, zeros, sha256): FileRow) -> ResultFile {
    ResultFile { path, object, bytes, zeros, sha256 }
}

/// The manifest of a result.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct ResultManifest {
    manifest: Manifest,
}

#[pymethods]
impl ResultManifest {
    /// Reads the content of the object.
    #[new]
    fn new(content: &[u8]) -> PyResult<Self> {
        let found = Manifest::decode(content).map_err(|wrong| PyValueError::new_err(wrong.to_string()));
        found.map(|manifest| Self { manifest })
    }

    fn __repr__(&self) -> String {
        format!("<manifest of a result in the format {}>", self.manifest.format)
    }

    /// The format of the result.
    #[getter]
    fn format(&self) -> &str {
        &self.manifest.format
    }

    /// The folder of the attempt that published it.
    #[getter]
    fn attempt(&self) -> &str {
        &self.manifest.attempt
    }

    /// When it was published, in epoch milliseconds.
    #[getter]
    fn created_ms(&self) -> i64 {
        self.manifest.created_ms
    }

    /// The report of the call, as JSON.
    #[getter]
    fn report(&self) -> PyResult<String> {
        let text = serde_json::to_string(&self.manifest.report);
        text.map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// The files: path, path of the object, bytes of the object, zero bytes after them, digest of the object.
    #[getter]
    fn files(&self) -> Vec<FileRow> {
        self.manifest.files.iter().map(row_of).collect()
    }

    /// The number of bytes of all objects.
    #[getter]
    fn object_bytes(&self) -> u64 {
        self.manifest.objects().map(|file| file.bytes).sum()
    }

    /// Returns whether the file at a path is the mapping of the result, or None if the result has no mapping.
    fn is_mapping(&self, py: Python<'_>, path: PathBuf) -> PyResult<Option<bool>> {
        let Some(mapping) = &self.manifest.mapping else { return Ok(None) };
        let found = detached(py, || {
            is_complete(&OsVfs::new(), &path, mapping)
                .map_err(|error| StoreError::io(&path, "reading the mapping", error))
        });
        found.map(Some)
    }
}

/// The objects below a URL. Threads can share it.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct ResultTarget {
    target: Arc<dyn Target>,
}

#[pymethods]
impl ResultTarget {
    /// Takes a transport, or None for a folder; the URL for errors; and the begin of the paths of its files for other
    /// programs, which is the folder.
    #[new]
    fn new(transport: Option<Py<PyAny>>, shown: String, root: String) -> Self {
        Self { target: target_of(transport, shown, root) }
    }

    /// The URL, without secrets.
    #[getter]
    fn shown(&self) -> String {
        self.target.shown(None)
    }

    fn __repr__(&self) -> String {
        format!("<objects at {}>", self.shown())
    }

    /// Makes an attempt to publish a result in a format.
    ///
    /// With an identity, the same result of another attempt counts as this one.
    fn publication(&self, format: &str, identity: Option<String>) -> ResultPublication {
        let (target, vfs) = (Arc::clone(&self.target), Arc::new(OsVfs::new()));
        ResultPublication { publication: Publication::new(target, vfs, format, identity) }
    }

    /// Uploads a local file as the file `path` of a result, for an attempt. Returns its row in the manifest.
    fn upload(&self, py: Python<'_>, attempt: &str, path: String, file: PathBuf) -> PyResult<FileRow> {
        let local = LocalFile { object: visible_object(attempt, &path), path, file, trims: false };
        detached(py, || upload(&*self.target, &OsVfs::new(), &local)).map(|file| row_of(&file))
    }

    /// Raises an error if an object exists.
    fn must_be_free(&self, py: Python<'_>, object: &str) -> PyResult<()> {
        detached(py, || must_be_free(&*self.target, object))
    }

    /// Writes a local file as an object that is no part of a result.
    fn upload_object(&self, py: Python<'_>, object: &str, file: PathBuf, overwrite: bool) -> PyResult<()> {
        detached(py, || upload_object(&*self.target, &OsVfs::new(), clock(), object, &file, overwrite))
    }

    /// Uploads all files of a directory, some at a time.
    ///
    /// Returns their rows in the manifest, and the folders without files.
    /// `prefix` is the begin of the names of the objects: a name in the folder of an attempt.
    fn upload_directory(
        &self,
        py: Python<'_>,
        prefix: &str,
        home: PathBuf,
        at_once: u32,
    ) -> PyResult<(Vec<FileRow>, Vec<String>)> {
        let (files, folders) =
            detached(py, || upload_directory(&*self.target, &OsVfs::new(), prefix, &home, at_once))?;
        Ok((files.iter().map(row_of).collect(), folders))
    }

    /// Returns the manifest of the published result, all of whose objects are there.
    fn published(&self, py: Python<'_>) -> PyResult<ResultManifest> {
        detached(py, || published(&*self.target)).map(|manifest| ResultManifest { manifest })
    }

    /// Assembles the directory of a result. Returns the number of files of an earlier call that were kept.
    ///
    /// Args:
    ///     manifest: the result.
    ///     paths: the directory until it is complete, which exists, and its final path; then those of the mapping.
    ///     at_once: number of requests at the same time.
    ///     progress: callback with bytes of the objects.
    fn fetch(
        &self,
        py: Python<'_>,
        manifest: &ResultManifest,
        paths: (PathBuf, PathBuf, PathBuf, PathBuf),
        at_once: usize,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<usize> {
        let (partial, home, partial_mapping, mapping) = &paths;
        let to = FetchedTo { partial, home, partial_mapping, mapping };
        watched(py, progress.as_ref(), |watch| {
            fetch(&*self.target, &OsVfs::new(), &manifest.manifest, &to, at_once, watch)
        })
    }

    /// Removes unused objects of a minimum age in milliseconds; with `dry_run`, only finds them.
    ///
    /// Returns them, each with its path, bytes, and last change in epoch milliseconds; and the number of younger ones.
    fn clean(&self, py: Python<'_>, older_than_ms: i64, dry_run: bool) -> PyResult<(Vec<ObjectRow>, usize)> {
        let cleaned = detached(py, || clean(&*self.target, &OsVfs::new(), clock(), older_than_ms, dry_run))?;
        Ok((cleaned.objects.into_iter().map(object_row).collect(), cleaned.kept))
    }
}

/// An attempt to publish a result; created by `ResultTarget.publication`.
///
/// A `with` block removes the objects of an attempt that fails.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct ResultPublication {
    publication: Publication,
}

#[pymethods]
impl ResultPublication {
    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: Option<&Bound<'_, PyAny>>,
        _error: Option<&Bound<'_, PyAny>>,
        _traceback: Option<&Bound<'_, PyAny>>,
    ) {
        py.detach(|| self.publication.abandon());
    }

    /// The folder of the attempt.
    #[getter]
    fn attempt(&self) -> &str {
        self.publication.attempt()
    }

    /// Returns the folder of the attempt for other processes, which can upload its objects late.
    fn share(&self) -> &str {
        self.publication.share()
    }

    /// Checks the target. Returns the manifest if the same result is published already.
    fn begin(&self, py: Python<'_>) -> PyResult<Option<ResultManifest>> {
        let found = detached(py, || self.publication.begin())?;
        Ok(found.map(|manifest| ResultManifest { manifest }))
    }

    /// Uploads a local file as the file `path` of the result.
    ///
    /// With `trims`, zero bytes at its end are not uploaded.
    #[pyo3(signature = (path, file, trims=false))]
    fn add(&self, py: Python<'_>, path: &str, file: PathBuf, trims: bool) -> PyResult<()> {
        detached(py, || self.publication.add(path, &file, trims))
    }

    /// Uploads all files of a directory, some at a time.
    fn add_directory(&self, py: Python<'_>, home: PathBuf, at_once: u32) -> PyResult<()> {
        detached(py, || self.publication.add_directory(&home, at_once))
    }

    /// Uploads the file with old and new positions.
    fn add_mapping(&self, py: Python<'_>, file: PathBuf) -> PyResult<()> {
        detached(py, || self.publication.add_mapping(&file))
    }

    /// Publishes the uploaded files. Returns the manifest: this one, or that of the same result.
    ///
    /// Args:
    ///     report: the report of the call, as JSON.
    ///     files: rows of files that other processes have uploaded for this attempt.
    ///     folders: empty folders that they have found.
    #[pyo3(signature = (report, files=Vec::new(), folders=Vec::new()))]
    fn commit(
        &self,
        py: Python<'_>,
        report: &str,
        files: Vec<FileRow>,
        folders: Vec<String>,
    ) -> PyResult<ResultManifest> {
        let report =
            serde_json::from_str(report).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let uploaded = Uploaded { files: files.into_iter().map(file_of).collect(), folders };
        detached(py, || self.publication.commit(clock(), report, uploaded))
            .map(|manifest| ResultManifest { manifest })
    }
}

/// Adds the classes.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ResultManifest>()?;
    module.add_class::<ResultTarget>()?;
    module.add_class::<ResultPublication>()
}
