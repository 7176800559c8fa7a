//! Exports in progress: a file that grows, or a folder of parts, and the state from which a later call resumes.
//!
//! ```text
//! NAME.partial            the file; or a folder with part-00000.parquet and so on, also in folders: day=2026-11-28/
//! NAME.partial.state      {"digest": "...", "bytes": 99, ...}, or with the number of "parts"
//! NAME.partial.rules      what the export contains; durable before the first state
//! NAME                    NAME.partial, when it is complete
//! ```
//!
//! The bytes and parts that a state counts are durable before it, so after a crash at any time they are complete. A state
//! belongs to one call: `digest` is that of its arguments. A call at a time, with a lock of the caller.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_io::{Access, FileKind, Vfs, VfsFile, commit, switch};
use serde_json::{Map, Value};

/// Maximum bytes of a state.
const MOST_STATE: u64 = 64 << 20;

/// Maximum bytes of rules.
const MOST_RULES: u64 = 4 << 30;

/// The members of a state that belong to the caller.
pub type Members = Map<String, Value>;

/// The state of an export to `dest`.
#[derive(Debug)]
struct ExportState {
    vfs: Arc<dyn Vfs>,
    dest: PathBuf,
    digest: String,
}

fn with_ending(dest: &Path, ending: &str) -> PathBuf {
    let mut name = dest.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

impl ExportState {
    fn partial(&self) -> PathBuf {
        with_ending(&self.dest, ".partial")
    }

    /// Returns the state of an interrupted call with the same arguments.
    fn left(&self) -> Option<Members> {
        let content = self.vfs.read_file(&with_ending(&self.dest, ".partial.state"), MOST_STATE).ok()?;
        let members: Members = serde_json::from_slice(&content).ok()?;
        (members.get("digest").and_then(Value::as_str) == Some(&self.digest)).then_some(members)
    }

    /// Replaces the state, which counts only what is durable. `rules` are those of the first state of a call.
    fn save(&self, mut members: Members, rules: Option<&[u8]>) -> io::Result<()> {
        let replace = |ending: &str, content: &[u8]| {
            let (path, new) =
                (with_ending(&self.dest, ending), with_ending(&self.dest, &format!("{ending}.new")));
            self.vfs.write_atomic(&path, &new, content)
        };
        rules.map_or(Ok(()), |rules| replace(".partial.rules", rules))?;
        members.insert("digest".to_owned(), self.digest.as_str().into());
        replace(".partial.state", &serde_json::to_vec(&members)?)
    }
}

/// Returns what an export to `dest` contains, as an interrupted call has stored it.
pub fn stored_rules(vfs: &dyn Vfs, dest: &Path) -> Option<Vec<u8>> {
    vfs.read_file(&with_ending(dest, ".partial.rules"), MOST_RULES).ok()
}

/// Removes the state of an export to `dest`.
///
/// # Errors
/// Those of the system.
pub fn remove_state(vfs: &dyn Vfs, dest: &Path) -> io::Result<()> {
    for ending in [".partial.state", ".partial.state.new", ".partial.rules", ".partial.rules.new"] {
        match vfs.remove_file(&with_ending(dest, ending)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// A file that grows.
#[derive(Debug)]
pub struct PartialFile {
    state: ExportState,
    file: Arc<dyn VfsFile>,
    bytes: u64,
}

impl PartialFile {
    /// Opens or creates the file, which has no bytes until [`Self::resume`].
    ///
    /// # Errors
    /// Those of the system.
    pub fn open(vfs: Arc<dyn Vfs>, dest: &Path, digest: &str) -> io::Result<Self> {
        let state = ExportState { vfs, dest: dest.to_path_buf(), digest: digest.to_owned() };
        let path = state.partial();
        let file = match state.vfs.open(&path, Access::ReadWrite) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => state.vfs.create_new(&path)?,
            opened => opened?,
        };
        Ok(Self { state, file, bytes: 0 })
    }

    /// Returns the state of an interrupted call with the same arguments, all of whose bytes are there.
    pub fn left(&self) -> Option<Members> {
        let members = self.state.left()?;
        let bytes = members.get("bytes").and_then(Value::as_u64)?;
        (bytes <= self.file.len().ok()?).then_some(members)
    }

    /// Begins to write after the first `bytes`; the rest of the file goes.
    ///
    /// # Errors
    /// Those of the system.
    pub fn resume(&mut self, bytes: u64) -> io::Result<()> {
        self.bytes = bytes;
        self.file.set_len(bytes)
    }

    /// Appends bytes, which [`Self::save`] makes durable.
    ///
    /// # Errors
    /// Those of the system.
    pub fn write(&mut self, content: &[u8]) -> io::Result<()> {
        self.file.write_all_at(content, self.bytes)?;
        self.bytes += content.len() as u64;
        Ok(())
    }

    /// Syncs the file, then records its state. `rules` are those of the first state of a call.
    ///
    /// # Errors
    /// Those of the system.
    pub fn save(&self, mut members: Members, rules: Option<&[u8]>) -> io::Result<()> {
        commit::sync_part(&*self.state.vfs, &self.state.partial())?;
        members.insert("bytes".to_owned(), self.bytes.into());
        self.state.save(members, rules)
    }

    /// Gives the file its final name, and returns its length.
    ///
    /// # Errors
    /// Those of the system.
    pub fn publish(&self) -> io::Result<u64> {
        commit::publish_file(&*self.state.vfs, &self.state.partial(), &self.state.dest)?;
        remove_state(&*self.state.vfs, &self.state.dest)?;
        Ok(self.bytes)
    }
}

/// A folder of complete files. Their numbers are unique in the whole folder.
#[derive(Debug)]
pub struct PartialFolder {
    state: ExportState,
    /// The ending of the names.
    format: String,
    parts: u64,
    /// The paths of the next parts.
    next: Vec<PathBuf>,
}

impl PartialFolder {
    /// Makes the folder, which exists, of an export of parts.
    pub fn new(vfs: Arc<dyn Vfs>, dest: &Path, digest: &str, format: &str) -> Self {
        let state = ExportState { vfs, dest: dest.to_path_buf(), digest: digest.to_owned() };
        Self { state, format: format.to_owned(), parts: 0, next: Vec::new() }
    }

    fn name(&self, number: u64) -> String {
        format!("part-{number:05}.{}", self.format)
    }

    /// Returns the number in the name of a part.
    fn number(&self, path: &Path) -> Option<u64> {
        let name = path.file_name()?.to_str()?;
        let number = name.strip_prefix("part-")?.split('.').next()?.parse().ok()?;
        (self.name(number) == name).then_some(number)
    }

    /// Adds all files below a folder, and the folders after their content.
    fn add_found(&self, folder: &Path, found: &mut Vec<(PathBuf, FileKind)>) -> io::Result<()> {
        for (name, kind) in self.state.vfs.list_kinds(folder)? {
            let path = folder.join(name);
            if kind == FileKind::Directory {
                self.add_found(&path, found)?;
            }
            found.push((path, kind));
        }
        Ok(())
    }

    fn found(&self) -> io::Result<Vec<(PathBuf, FileKind)>> {
        let mut found = Vec::new();
        self.add_found(&self.state.partial(), &mut found)?;
        Ok(found)
    }

    /// Returns the state of an interrupted call with the same arguments, all of whose parts are there.
    pub fn left(&self) -> Option<Members> {
        let members = self.state.left()?;
        let parts = members.get("parts").and_then(Value::as_u64)?;
        let found: BTreeSet<u64> =
            self.found().ok()?.iter().filter_map(|(path, _)| self.number(path)).collect();
        (0..parts).all(|number| found.contains(&number)).then_some(members)
    }

    /// Begins to write after the first `parts`; all other files of the folder go.
    ///
    /// # Errors
    /// Those of the system.
    pub fn resume(&mut self, parts: u64) -> io::Result<()> {
        (self.parts, self.next) = (parts, Vec::new());
        for (path, kind) in self.found()? {
            match kind {
                // Only an empty folder can be removed.
                FileKind::Directory => drop(self.state.vfs.remove_dir(&path)),
                _ if self.number(&path).is_some_and(|number| number < parts) => {}
                _ => self.state.vfs.remove_file(&path)?,
            }
        }
        Ok(())
    }

    /// Returns the path of one more part in a folder, which is created; "" is the folder of the export.
    ///
    /// # Errors
    /// Those of the system.
    pub fn next_path(&mut self, folder: &str) -> io::Result<PathBuf> {
        let folder = self.state.partial().join(folder);
        self.state.vfs.create_dir_all(&folder)?;
        let path = folder.join(self.name(self.parts + self.next.len() as u64));
        self.next.push(path.clone());
        Ok(path)
    }

    /// Returns the number of durable parts.
    pub fn parts(&self) -> u64 {
        self.parts
    }

    /// Makes the next parts, which are written, durable, then records the state. `rules` are those of the first state of a
    /// call.
    ///
    /// # Errors
    /// Those of the system.
    pub fn add(&mut self, mut members: Members, rules: Option<&[u8]>) -> io::Result<()> {
        let (vfs, home) = (&*self.state.vfs, self.state.partial());
        self.next.iter().try_for_each(|path| commit::sync_part(vfs, path))?;
        let above = self.next.iter().flat_map(|path| path.ancestors().skip(2));
        for folder in above.filter(|folder| folder.starts_with(&home)).collect::<BTreeSet<_>>() {
            switch::step("commit.sync_partition", || vfs.sync_dir(folder))?;
        }
        self.parts += std::mem::take(&mut self.next).len() as u64;
        members.insert("parts".to_owned(), self.parts.into());
        self.state.save(members, rules)
    }

    /// Gives the folder its final name.
    ///
    /// # Errors
    /// Those of the system.
    pub fn publish(&self) -> io::Result<()> {
        commit::publish_folder(&*self.state.vfs, &self.state.partial(), &self.state.dest)?;
        remove_state(&*self.state.vfs, &self.state.dest)
    }
}
