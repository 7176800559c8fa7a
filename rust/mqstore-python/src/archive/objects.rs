//! The objects of an archive, from an object of `mqstore._archive.place`.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use mqstore::archive::reader::ArchiveObjects;
use mqstore::error::StoreError;
use mqstore::io::RangeBytes;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::convert::buffer::range_bytes;
use crate::store::folder::failure;

/// The object, with `read_ranges`.
pub(super) struct PythonObjects {
    object: Py<PyAny>,
    /// The path or URL of the archive, without secrets.
    shown: String,
    /// What comes before the path of a file for other programs.
    root: String,
}

impl fmt::Debug for PythonObjects {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The object has credentials.
        out.debug_struct("PythonObjects").field("shown", &self.shown).finish_non_exhaustive()
    }
}

impl PythonObjects {
    pub(super) fn new(object: Py<PyAny>, shown: String, root: String) -> Self {
        Self { object, shown, root }
    }

    fn fetch(&self, py: Python<'_>, path: &str, ranges: &[Range<u64>]) -> PyResult<Vec<RangeBytes>> {
        let wanted: Vec<_> = ranges.iter().map(|range| (range.start, range.end - range.start)).collect();
        let parts = self.object.bind(py).call_method1("read_ranges", (path, PyList::new(py, wanted)?))?;
        parts.try_iter()?.map(|part| range_bytes(&part?)).collect()
    }
}

impl ArchiveObjects for PythonObjects {
    fn read(&self, path: &str, ranges: &[Range<u64>]) -> Result<Vec<bytes::Bytes>, StoreError> {
        let found = Python::attach(|py| {
            self.fetch(py, path, ranges).map_err(|error| {
                let value = error.value(py);
                let told = |name: &str| value.getattr(name).and_then(|found| found.extract::<String>()).ok();
                if told("cause").as_deref() == Some("damaged") {
                    let reason = told("reason").unwrap_or_default();
                    return StoreError::Corrupt { path: self.shown(Some(path)), offset: 0, reason };
                }
                let failed = failure(Path::new(&self.shown), py, &error);
                StoreError::io(Path::new(&self.shown), "read the archive", failed.into())
            })
        })?;
        Ok(found.into_iter().map(|part| bytes::Bytes::from_owner(Part(part))).collect())
    }

    fn shown(&self, path: Option<&str>) -> PathBuf {
        match path {
            Some(path) => format!("{}{path}", self.root).into(),
            None => self.shown.clone().into(),
        }
    }
}

/// The bytes of a range, as an owner of memory.
struct Part(RangeBytes);

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}
