//! Uploads of local files as objects of an attempt.
//!
//! The files of a store have their full length from the beginning, so zero bytes at the end of a file are not uploaded.

use std::io;
use std::path::{Path, PathBuf};

use mqstore_base::error::{IoContext, StoreError};
use mqstore_io::pool::Pool;
use mqstore_io::target::{create, hex};
use mqstore_io::{Access, Clock, FileKind, RemoteCause, Target, Vfs, VfsFile};
use sha2::{Digest, Sha256};

use crate::manifest::ResultFile;
use crate::objects::{FOLDER, object_name};
use crate::requests::{failed, path_in};

const READING: &str = "reading a file of the result";

/// Maximum bytes of an object that is created if it is absent: one request.
const MOST_CREATED: u64 = 8 << 20;

/// Bytes of one step of a digest.
const READ_BYTES: u64 = 1 << 20;

/// A local file to upload.
#[derive(Clone, Debug)]
pub struct LocalFile {
    /// Path of the object below the target.
    pub object: String,
    /// Path in the directory that a fetch assembles.
    pub path: String,
    /// The local file.
    pub file: PathBuf,
    /// Whether zero bytes at its end are not uploaded.
    pub trims: bool,
}

/// Uploads a local file. Returns the entry of the manifest.
///
/// # Errors
/// The file cannot be read; a request failed.
pub fn upload(target: &dyn Target, vfs: &dyn Vfs, local: &LocalFile) -> Result<ResultFile, StoreError> {
    let (bytes, zeros, sha256) = measured(vfs, local).at(&local.file, READING)?;
    let LocalFile { object, path, file, .. } = local;
    let found = ResultFile { path: path.clone(), object: object.clone(), bytes, zeros, sha256 };
    target.put_file(&found.object, vfs, file, bytes).map_err(failed(target, "upload a file"))?;
    Ok(found)
}

/// Makes sure that an object does not exist.
///
/// # Errors
/// [`StoreError::ResultExists`] if it exists; a request failed.
pub fn must_be_free(target: &dyn Target, path: &str) -> Result<(), StoreError> {
    let error = failed(target, "look for the object");
    match target.ranges(&[(path, 0..1)]) {
        // The object is missing or empty.
        Err(failure) if failure.cause == RemoteCause::Changed => match target.get(path).map_err(error)? {
            None => Ok(()),
            Some(_) => Err(exists(target, path)),
        },
        found => found.map_err(error).and_then(|_| Err(exists(target, path))),
    }
}

fn exists(target: &dyn Target, path: &str) -> StoreError {
    let reason = "the object exists, and only overwrite=True replaces it".to_owned();
    StoreError::ResultExists { path: target.shown(Some(path)), reason }
}

/// Writes a local file as an object that is no part of a result. Of two calls at the same time that write a large object,
/// the last one replaces the first.
///
/// # Errors
/// [`StoreError::ResultExists`] if it exists, unless the call can overwrite it; the file cannot be read; a request failed.
pub fn upload_object(
    target: &dyn Target,
    vfs: &dyn Vfs,
    clock: &dyn Clock,
    path: &str,
    file: &Path,
    overwrite: bool,
) -> Result<(), StoreError> {
    let length = vfs.stat(file).at(file, READING)?.len;
    let error = failed(target, "upload a file");
    if !overwrite && length <= MOST_CREATED {
        let content = vfs.read_file(file, MOST_CREATED).at(file, READING)?;
        let found = create(target, clock, path, &content).map_err(|not_created| error(not_created.error))?;
        return if found.is_none_or(|found| *found == *content) { Ok(()) } else { Err(exists(target, path)) };
    }
    if !overwrite {
        must_be_free(target, path)?;
    }
    target.put_file(path, vfs, file, length).map_err(error)
}

/// Uploads all files of a directory, `at_once` at a time. Returns the entries, and the folders without files.
///
/// `prefix` is the begin of the paths of the objects below [`FOLDER`]: the folder of an attempt, which has no other files,
/// or a name there.
///
/// # Errors
/// [`StoreError::Unsupported`] if the directory contains a link, or a name that is not text; as for [`upload`].
pub fn upload_directory(
    target: &dyn Target,
    vfs: &dyn Vfs,
    prefix: &str,
    home: &Path,
    at_once: u32,
) -> Result<(Vec<ResultFile>, Vec<String>), StoreError> {
    let (mut paths, mut empty) = (Vec::new(), Vec::new());
    add_files(vfs, home, "", &mut paths, &mut empty)?;
    paths.sort_unstable();
    empty.sort_unstable();
    let local = |(number, path): (usize, String)| LocalFile {
        object: format!("{FOLDER}/{prefix}{number:06}-{}", object_name(&path)),
        file: home.join(&path),
        path,
        trims: true,
    };
    let files = paths.into_iter().enumerate().map(local);
    let work = |local: LocalFile| upload(target, vfs, &local);
    let uploaded =
        Pool::new(at_once.saturating_sub(1), "mq-publish").in_order(usize::MAX, &work, |jobs| {
            files.for_each(|file| jobs.give(file));
            std::iter::from_fn(|| jobs.take()).collect::<Result<Vec<_>, _>>()
        })?;
    Ok((uploaded, empty))
}

/// Adds the paths of the files of a folder, and of folders without any content.
fn add_files(
    vfs: &dyn Vfs,
    home: &Path,
    folder: &str,
    files: &mut Vec<String>,
    empty: &mut Vec<String>,
) -> Result<(), StoreError> {
    let here = home.join(folder);
    let listed = vfs.list_kinds(&here).at(&here, "listing the files of the result")?;
    if listed.is_empty() && !folder.is_empty() {
        empty.push(folder.to_owned());
    }
    for (name, kind) in listed {
        let refused =
            |reason: &str| StoreError::Unsupported { path: here.join(&name), reason: reason.to_owned() };
        let Some(text) = name.to_str() else {
            return Err(refused("a file whose name is not text (UTF-8) cannot be published"));
        };
        let path = path_in(folder, text);
        match kind {
            FileKind::Directory => add_files(vfs, home, &path, files, empty)?,
            FileKind::File => files.push(path),
            _ => return Err(refused("a symbolic link cannot be published")),
        }
    }
    Ok(())
}

/// Returns the number of bytes to upload, the number of zero bytes after them, and the digest.
fn measured(vfs: &dyn Vfs, local: &LocalFile) -> io::Result<(u64, u64, String)> {
    let file = vfs.open(&local.file, Access::Read)?;
    let length = file.len()?;
    let bytes = if local.trims { length_without_zeros(&*file, length)? } else { length };
    Ok((bytes, length - bytes, digest_of(&*file, bytes)?))
}

/// Returns the SHA-256 of the first bytes of a file.
pub(crate) fn digest_of(file: &dyn VfsFile, length: u64) -> io::Result<String> {
    let (mut digest, mut buffer) = (Sha256::new(), Vec::new());
    for start in (0..length).step_by(READ_BYTES as usize) {
        buffer.resize((length - start).min(READ_BYTES) as usize, 0);
        file.read_exact_at(&mut buffer, start)?;
        digest.update(&buffer);
    }
    Ok(hex(&digest.finalize()))
}

/// Returns the length of a file up to its last byte that is not zero.
fn length_without_zeros(file: &dyn VfsFile, length: u64) -> io::Result<u64> {
    let (mut end, mut buffer) = (length, Vec::new());
    while end > 0 {
        let start = end.saturating_sub(READ_BYTES);
        // Holes need no read.
        if file.next_data(start)?.is_some_and(|data| data < end) {
            buffer.resize((end - start) as usize, 0);
            file.read_exact_at(&mut buffer, start)?;
            if let Some(last) = buffer.iter().rposition(|byte| *byte != 0) {
                return Ok(start + last as u64 + 1);
            }
        }
        end = start;
    }
    Ok(0)
}
