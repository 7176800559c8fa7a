//! A log in other folders than `<root>/commitlog`.
//!
//! Chooses the folder of each new segment. Owns `mqstore/paths`, the list of the folders (`log_folders` has its bytes):
//! a later open without these options reads the list and finds the whole log.
//!
//! ```text
//! <path>/<20 digits>        a segment: number offset / length, modulo the number of folders for new segments
//! <path>/.mqstore/tmp/      segments that do not have their name yet: a rename must stay on one file system
//! <path>/.mqstore/wipe/     segments that are being overwritten
//! ```
//!
//! RocketMQ ignores folders inside a log path. Across a crash: the list is written, synced and renamed before the first
//! segment goes to a folder that the old list does not have.
//!
//! Source: `MultiPathMappedFileQueue` (`#tryCreateMappedFile`), `MessageStoreConfig#storePathCommitLog`
//! and `#readOnlyCommitLogStorePaths`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_format::{offset_file_name, parse_offset_file_name};
use mqstore_io::FileKind;
use mqstore_io::switch;

use super::StoreFiles;
use super::log_folders::{LogFolders, OPTION};
use crate::error::{IoContext, StoreError};
use crate::options::StoreOptions;

const LIMIT_BYTES: u64 = 1 << 20;

impl StoreFiles {
    /// `mqstore/paths`: the list of the folders of the log.
    pub fn paths_file(&self) -> PathBuf {
        self.side().join("paths")
    }

    /// Returns these files with the log in the folders of `options`, else in the folders that the store remembers, else
    /// in `commitlog`.
    ///
    /// # Errors
    /// [`StoreError::InvalidOption`] if the options leave out a folder that has segments; [`StoreError::Corrupt`] if
    /// the options list no folder and the stored list is damaged.
    pub fn with_logs(mut self, options: &StoreOptions) -> Result<Self, StoreError> {
        if self.is_bare_log() {
            return Ok(self);
        }
        let folders = if options.commit_log_paths.is_empty() {
            self.log_folders()?
        } else {
            let (new, read_only) = (&options.commit_log_paths, &options.read_only_commit_log_paths);
            let folders = LogFolders::listed(&self.root, new, read_only)?.with_links(&*self.vfs);
            self.refuse_left_out(&folders)?;
            Arc::new(folders)
        };
        self.logs = Some(folders);
        Ok(self)
    }

    /// Returns the folders of the log.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if `mqstore/paths` is damaged; I/O errors.
    pub fn log_folders(&self) -> Result<Arc<LogFolders>, StoreError> {
        if let Some(folders) = &self.logs {
            return Ok(Arc::clone(folders));
        }
        let plain = || LogFolders::plain(&self.root).with_links(&*self.vfs);
        Ok(Arc::new(self.remembered_logs()?.unwrap_or_else(plain)))
    }

    fn remembered_logs(&self) -> Result<Option<LogFolders>, StoreError> {
        let path = self.paths_file();
        match self.vfs.read_file(&path, LIMIT_BYTES) {
            Ok(bytes) => LogFolders::decode(&self.root, &bytes).map(|found| Some(found.with_links(&*self.vfs))).ok_or_else(|| {
                let reason = "the list of the log's folders is damaged; give commit_log_paths, or remove this file if \
                              the log lies in commitlog alone";
                StoreError::corrupt(&path, 0, reason)
            }),
            // Other callers check first that the root is a folder, and report it.
            Err(error)
                if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) =>
            {
                Ok(None)
            }
            Err(error) => Err(StoreError::io(&path, "reading the list of the log's folders", error)),
        }
    }

    /// Returns a note if the stored list is damaged, so that only the folders of the options are known.
    pub fn paths_note(&self) -> Option<String> {
        self.damaged_paths().map(|_| {
            format!(
                "{}: damaged; the folders in {OPTION} are used; the next open for writing stores them, after a copy of the \
                 file to {}",
                self.paths_file().display(),
                self.lost_and_found().display()
            )
        })
    }

    /// Returns the content of the stored list if it is damaged.
    fn damaged_paths(&self) -> Option<Vec<u8>> {
        let bytes = self.vfs.read_file(&self.paths_file(), LIMIT_BYTES).ok()?;
        LogFolders::decode(&self.root, &bytes).is_none().then_some(bytes)
    }

    /// Refuses `folders` if they leave out a folder with segments: the log would be truncated or written twice.
    fn refuse_left_out(&self, folders: &LogFolders) -> Result<(), StoreError> {
        let listed = folders.all();
        // Damage in the list does not matter if the caller listed the folders.
        let remembered = self.remembered_logs().ok().flatten();
        let known = remembered.map_or_else(Vec::new, |remembered| remembered.all());
        for folder in known.into_iter().chain([self.commit_log()]).filter(|known| !listed.contains(known)) {
            if self.has_segments(&folder) {
                let reason = format!(
                    "{} holds segments too; list it as well (read_only_commit_log_paths is enough), or move them away",
                    folder.display()
                );
                return Err(StoreError::InvalidOption { option: OPTION, reason });
            }
        }
        Ok(())
    }

    fn has_segments(&self, folder: &Path) -> bool {
        let entries = self.vfs.list(folder).unwrap_or_default();
        let is_segment = |name: &std::ffi::OsStr| name.to_str().and_then(parse_offset_file_name).is_some();
        entries.iter().any(|entry| entry.stat.kind == FileKind::File && is_segment(&entry.name))
    }

    /// Whether the log is in listed folders and at least one of them exists.
    pub(super) fn has_listed_logs(&self) -> Result<bool, StoreError> {
        let folders = self.log_folders()?;
        let is_folder =
            |path: &PathBuf| self.vfs.stat(path).is_ok_and(|stat| stat.kind == FileKind::Directory);
        Ok(!folders.plain && folders.all().iter().any(is_folder))
    }

    /// Returns the folder in which the segment that starts at log offset `base` is prepared. It is on the file system
    /// of the segment's folder.
    pub fn segment_staging(&self, base: u64, segment_bytes: u64) -> Result<PathBuf, StoreError> {
        let folders = self.log_folders()?;
        Ok(folders.side_of(&folders.folder_of(base, segment_bytes)).join("tmp"))
    }

    /// Returns the final path of the segment prepared at `staged`. It is in the folder for which the segment was
    /// prepared; [`Self::segment_staging`] may choose another one by now.
    pub fn name_of_staged(&self, staged: &Path, base: u64) -> Result<PathBuf, StoreError> {
        let folders = self.log_folders()?;
        let made_for = |folder: &PathBuf| staged.parent() == Some(&folders.side_of(folder).join("tmp"));
        let folder = folders.for_new().into_iter().find(made_for).unwrap_or_else(|| self.commit_log());
        Ok(folder.join(offset_file_name(base)))
    }

    /// Returns the path at which the log file at `path` is overwritten after it lost its name.
    pub fn wipe_place(&self, path: &Path) -> Result<PathBuf, StoreError> {
        let folders = self.log_folders()?;
        let folder = path.parent().unwrap_or(&self.root);
        let name = path.file_name().unwrap_or_default();
        Ok(folders.side_of(folder).join("wipe").join(name))
    }

    /// Returns our own folder on the file system of the log file at `path`, for files without their final name.
    pub fn staging_beside(&self, path: &Path) -> Result<PathBuf, StoreError> {
        Ok(self.log_folders()?.side_of(path.parent().unwrap_or(&self.root)).join("tmp"))
    }

    /// Returns the folders with files that wait to be overwritten.
    pub fn wipe_folders(&self) -> Result<Vec<PathBuf>, StoreError> {
        let folders = self.log_folders()?;
        let sides: BTreeSet<PathBuf> = folders.all().iter().map(|folder| folders.side_of(folder)).collect();
        Ok(sides.into_iter().map(|side| side.join("wipe")).collect())
    }

    /// Makes the folders for the log of a new store.
    pub fn make_log_folders(&self) -> Result<(), StoreError> {
        let folders = self.log_folders()?;
        if folders.plain || self.vfs.stat(&self.paths_file()).is_ok() {
            return Ok(());
        }
        folders.for_new().iter().try_for_each(|folder| self.make_folder(folder))
    }

    /// Prepares the folders for a writer, before it first changes the log: makes new folders, empties the staging
    /// folders, and stores the list.
    pub fn prepare_logs(&self) -> Result<(), StoreError> {
        let folders = self.log_folders()?;
        if !folders.own_sides {
            return Ok(());
        }
        let known = self.remembered_logs().ok().flatten().map_or_else(Vec::new, |known| known.all());
        for folder in folders.for_new() {
            // A folder that existed before and is missing now is on a disk that is not mounted: do not make it.
            if !known.contains(&folder) && !folders.plain {
                self.make_folder(&folder)?;
            }
            let staging = folders.side_of(&folder).join("tmp");
            self.make_folder(&staging)?;
            for entry in self.vfs.list(&staging).at(&staging, "listing a staging folder")? {
                let path = staging.join(&entry.name);
                self.vfs.remove_file(&path).at(&path, "removing a leftover staging file")?;
            }
        }
        if folders.plain {
            return Ok(());
        }
        let (path, bytes) = (self.paths_file(), folders.encode()?);
        if self.vfs.read_file(&path, LIMIT_BYTES).is_ok_and(|old| old == bytes) {
            return Ok(());
        }
        if let Some(damaged) = self.damaged_paths() {
            self.keep_config(&path, &damaged)?;
        }
        self.replace_file(&path, &bytes, "storing the list of the log's folders")
    }

    /// Makes `folder` and its missing parents, and syncs their names.
    pub fn make_folder(&self, folder: &Path) -> Result<(), StoreError> {
        let mut missing = Vec::new();
        for above in folder.ancestors().filter(|above| !above.as_os_str().is_empty()) {
            if self.vfs.stat(above).is_ok() {
                break;
            }
            missing.push(above);
        }
        self.vfs.create_dir_all(folder).at(folder, "making a folder")?;
        for made in missing {
            let above = mqstore_io::vfs::parent_dir(made);
            switch::step("files.sync_log_path_name", || self.vfs.sync_dir(above))
                .at(above, "syncing a folder")?;
        }
        Ok(())
    }

    /// Makes the current names of all segments durable.
    pub fn sync_logs(&self) -> Result<(), StoreError> {
        let folders = self.log_folders()?;
        folders.all().iter().try_for_each(|folder| {
            switch::step("files.sync_log_folders", || self.vfs.sync_dir(folder))
                .at(folder, "syncing the log's folder")
        })
    }
}
