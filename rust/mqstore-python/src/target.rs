//! Targets: a folder, or a transport of `mqstore._publish`.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use mqstore::io::{FolderTarget, OsVfs, RangeBytes, RemoteCause, Target, TargetError, TargetObject, Vfs};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::convert::buffer::range_bytes;
use crate::error::Raised;

/// Returns the target of a transport; without one, the folder `root`.
pub(crate) fn target_of(transport: Option<Py<PyAny>>, shown: String, root: String) -> Arc<dyn Target> {
    match transport {
        Some(object) => Arc::new(PythonTarget { object, shown, root }),
        None => Arc::new(FolderTarget::new(Arc::new(OsVfs::new()), Path::new(&root), shown)),
    }
}

/// Path, bytes, and last change in epoch milliseconds.
pub(crate) type ObjectRow = (String, u64, i64);

/// Returns an object as a row.
pub(crate) fn object_row(one: TargetObject) -> ObjectRow {
    (one.path, one.bytes, one.changed_ms)
}

/// A transport, with the methods of `mqstore._publish.target.Target`.
struct PythonTarget {
    object: Py<PyAny>,
    shown: String,
    root: String,
}

impl fmt::Debug for PythonTarget {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The object has credentials.
        out.debug_struct("PythonTarget").field("shown", &self.shown).finish_non_exhaustive()
    }
}

impl PythonTarget {
    /// Calls the transport about an object.
    fn call<T>(
        &self,
        path: &str,
        call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>,
    ) -> Result<T, TargetError> {
        let called =
            Python::try_attach(|py| call(self.object.bind(py)).map_err(|error| failed(py, path, error)));
        // A background thread of a store calls it, too.
        let over = || TargetError::new(RemoteCause::Other, path, "the interpreter ends");
        called.unwrap_or_else(|| Err(over()))
    }
}

/// Converts an exception of a transport. Only a `RequestFailure` has a cause.
fn failed(py: Python<'_>, path: &str, error: PyErr) -> TargetError {
    let value = error.value(py);
    let told = |name: &str| value.getattr(name).and_then(|found| found.extract::<String>()).ok();
    let (Some(cause), Some(reason)) = (told("cause"), told("reason")) else {
        return TargetError::raised(path, Box::new(Raised::new(py, error)));
    };
    TargetError::new(cause_of(&cause), &told("path").unwrap_or_default(), reason)
}

fn cause_of(name: &str) -> RemoteCause {
    match name {
        "denied" => RemoteCause::Denied,
        "no-bucket" => RemoteCause::NoBucket,
        "changed" => RemoteCause::Changed,
        "damaged" => RemoteCause::Damaged,
        "full" => RemoteCause::Full,
        _ => RemoteCause::Other,
    }
}

impl Target for PythonTarget {
    fn shown(&self, path: Option<&str>) -> String {
        path.map_or_else(|| self.shown.clone(), |path| format!("{}/{path}", self.root.trim_end_matches('/')))
    }

    fn get(&self, path: &str) -> Result<Option<Bytes>, TargetError> {
        self.call(path, |target| {
            let found = target.call_method1("get", (path,))?;
            if found.is_none() { Ok(None) } else { shared(&found).map(Some) }
        })
    }

    fn ranges(&self, wanted: &[(&str, Range<u64>)]) -> Result<Vec<Bytes>, TargetError> {
        let path = wanted.first().map_or("", |(path, _)| path);
        self.call(path, |target| {
            let rows = wanted.iter().map(|(path, range)| (*path, "", range.start, range.end - range.start));
            let parts = target.call_method1("read", (PyList::new(target.py(), rows)?,))?;
            parts.try_iter()?.map(|part| shared(&part?)).collect()
        })
    }

    fn list(&self, folder: &str) -> Result<Vec<TargetObject>, TargetError> {
        self.call(folder, |target| {
            let mut found = Vec::new();
            for row in target.call_method1("listed", (folder,))?.try_iter()? {
                let (path, bytes, changed_ms, _) = row?.extract::<(Bound<'_, PyAny>, u64, i64, String)>()?;
                // The names of all objects of an archive are text.
                if let Ok(path) = path.extract() {
                    found.push(TargetObject { path, bytes, changed_ms });
                }
            }
            Ok(found)
        })
    }

    fn names(&self, folder: &str) -> Result<Vec<String>, TargetError> {
        self.call(folder, |target| {
            let (mut names, files): (Vec<String>, Vec<String>) =
                target.call_method1("entries", (folder,))?.extract()?;
            names.extend(files);
            Ok(names)
        })
    }

    fn put(&self, path: &str, content: &[u8]) -> Result<(), TargetError> {
        self.call(path, |target| {
            let bytes = PyBytes::new(target.py(), content);
            target.call_method1("put", (path, bytes, content.len())).map(drop)
        })
    }

    fn put_file(&self, path: &str, _vfs: &dyn Vfs, file: &Path, length: u64) -> Result<(), TargetError> {
        self.call(path, |target| target.call_method1("put", (path, file, length)).map(drop))
    }

    fn put_if_absent(&self, path: &str, content: &[u8]) -> Result<bool, TargetError> {
        self.call(path, |target| {
            target.call_method1("put_if_absent", (path, PyBytes::new(target.py(), content)))?.extract()
        })
    }

    fn delete(&self, paths: &[String]) -> Result<(), TargetError> {
        let path = paths.first().map_or("", String::as_str);
        self.call(path, |target| target.call_method1("delete", (PyList::new(target.py(), paths)?,)).map(drop))
    }

    fn settle(&self, folder: &str) -> Result<(), TargetError> {
        self.call(folder, |target| target.call_method1("settle", (folder,)).map(drop))
    }
}

/// Returns bytes of Python without a copy, if they never change.
fn shared(found: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    Ok(Bytes::from_owner(Part(range_bytes(found)?)))
}

/// The bytes of a range, as an owner of memory.
struct Part(RangeBytes);

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}
