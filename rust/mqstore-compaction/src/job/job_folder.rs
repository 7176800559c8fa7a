//! The folder of a compaction job: its token, its record, its staged output, and their removal.
//!
//! Owns `mqstore/jobs/`. A worker writes only into its own subfolder. Only a driver writes the other files:
//!
//! ```text
//! mqstore/jobs/<job id>/lock          held while the job's driver lives
//!                       nonce         token text that a worker must find
//!                       record.json   running -> publishing -> published (see `job_record`)
//!                       <attempt>/    staging folder of one attempt: log/ cq/
//!                       tree          the next `compaction` folder; after the swap, the previous one
//!                       before        the previous one, without an atomic swap (see `swap`)
//! ```
//!
//! If no process holds the job's lock and no record says that the job is published, its files are garbage. A late
//! attempt may still write after that, but only into its own folder, which no document names.

use std::io;
use std::path::{Path, PathBuf};

use mqstore_io::switch;
use mqstore_io::{FileKind, LockError, StoreLock};

use super::documents::CompactionReport;
use super::job_record::{
    JobState, RECORD_FILE, RECORD_STAGING, TREE_DIR, check_job_id, compaction_inode, job_dir, read_record,
    write_record,
};
use super::swap::finish_swap;
use crate::files::folder::{hex, list_or_none};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

const LOCK_FILE: &str = "lock";
const NONCE_FILE: &str = "nonce";

/// Prefix of the staging folders of a driver's own process.
pub(crate) const LOCAL_PREFIX: &str = "local-";

/// Number of records of published jobs that are kept.
const RECORDS_KEPT: usize = 256;

/// A job whose driver is this process.
#[derive(Debug)]
pub struct Job {
    id: String,
    nonce: String,
    dir: PathBuf,
    created_ms: i64,
    /// Whether finished tasks of a stopped job are kept for the next run.
    resumable: bool,
    // Released when the job is dropped.
    _lock: Box<dyn StoreLock>,
}

/// The folder of a published job, with the replaced files. If the caller does not sweep it, the next job does.
#[derive(Debug)]
#[must_use]
pub struct ReplacedFiles {
    dir: PathBuf,
}

impl ReplacedFiles {
    /// Removes all files except the job's record.
    pub fn sweep(self, files: &StoreFiles) -> Result<(), StoreError> {
        remove_all(files, &self.dir, &[LOCK_FILE, RECORD_FILE])?;
        switch::step("compaction.sync_cleared_job", || files.vfs.sync_dir(&self.dir))
            .at(&self.dir, "syncing a job's folder")
    }
}

/// The result of starting a job.
#[derive(Debug)]
pub(crate) enum StartOutcome {
    /// The job runs now.
    Running(Job),
    /// The job is already published.
    Published(CompactionReport),
}

/// Refuses a staging name that is not one plain path component, or is the name of one of the job's own files.
pub(crate) fn check_staging_name(name: &str) -> Result<(), StoreError> {
    let own = [LOCK_FILE, NONCE_FILE, RECORD_FILE, RECORD_STAGING, TREE_DIR];
    if own.contains(&name) || check_job_id(name).is_err() {
        return Err(StoreError::InvalidOption {
            option: "staging",
            reason: format!("{name:?} cannot be the name of an attempt's folder"),
        });
    }
    Ok(())
}

/// Returns a token that no other job has.
pub(crate) fn fresh_token(files: &StoreFiles) -> String {
    let environment = files.vfs.environment();
    let mut bytes = environment.random_seed.to_be_bytes().to_vec();
    bytes.extend_from_slice(&environment.pid.to_be_bytes());
    format!("{:x}-{}", files.clock.now_ms(), hex(&bytes))
}

/// Makes sure that this process sees the directory that the driver sees.
pub(crate) fn check_nonce(files: &StoreFiles, job_id: &str, nonce: &str) -> Result<(), StoreError> {
    let path = job_dir(files, job_id).join(NONCE_FILE);
    let found = files.vfs.read_file(&path, 4096);
    if found.as_ref().is_ok_and(|found| found == nonce.as_bytes()) {
        return Ok(());
    }
    let what = match found {
        Ok(_) => "is of another job".to_owned(),
        Err(error) => format!("cannot be read ({error})"),
    };
    Err(StoreError::NotAStore {
        path: files.root.clone(),
        reason: format!(
            "the job's token {} {what} on {}: every worker must see the store's directory under the same path, \
             and the job must still be running",
            path.display(),
            files.vfs.environment().hostname
        ),
    })
}

impl Job {
    /// Starts job `id`, after removing leftovers of dead jobs. The caller holds the store's lock.
    pub(crate) fn begin(files: &StoreFiles, id: &str) -> Result<StartOutcome, StoreError> {
        check_job_id(id)?;
        make_dir(files, &files.side(), &files.root)?;
        make_dir(files, &files.jobs(), &files.side())?;
        recover_stale_jobs(files, id)?;
        let dir = job_dir(files, id);
        make_dir(files, &dir, &files.jobs())?;
        let lock = take_lock(files, id)?;
        if let Some((JobState::Published { report }, _)) = read_record(files, id)? {
            return Ok(StartOutcome::Published(report));
        }
        remove_all_except(files, &dir, |name| name == LOCK_FILE || name.starts_with(LOCAL_PREFIX))?;
        let job = Self {
            id: id.to_owned(),
            nonce: fresh_token(files),
            created_ms: files.clock.now_ms(),
            dir,
            resumable: false,
            _lock: lock,
        };
        let nonce = job.dir.join(NONCE_FILE);
        let staged = job.dir.join("nonce.tmp");
        files.vfs.write_atomic(&nonce, &staged, job.nonce.as_bytes()).at(&nonce, "writing a job's token")?;
        job.write(files, &JobState::Running)?;
        Ok(StartOutcome::Running(job))
    }

    /// Sets whether finished tasks are kept when the job is stopped: a caller that chose the id can run it again.
    #[must_use]
    pub(crate) fn set_resumable(mut self, resumable: bool) -> Self {
        self.resumable = resumable;
        self
    }

    /// Ends a stopped run: if the job is resumable its files stay for the next run, otherwise its folder is removed.
    pub(crate) fn stop(self, files: &StoreFiles) -> Result<(), StoreError> {
        if self.resumable { Ok(()) } else { self.abandon(files) }
    }

    /// The job's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The text of the job's token file.
    pub(crate) fn nonce(&self) -> &str {
        &self.nonce
    }

    /// Path at which the next `compaction` folder is built.
    pub(crate) fn tree(&self) -> PathBuf {
        self.dir.join(TREE_DIR)
    }

    /// The job's folder.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Milliseconds since the job was planned. It uses the wall clock, because the driver may be another process.
    pub(crate) fn elapsed_ms(&self, files: &StoreFiles) -> u64 {
        u64::try_from(files.clock.now_ms().saturating_sub(self.created_ms)).unwrap_or(0)
    }

    /// Records that the folder with this inode is about to become `compaction`.
    pub(crate) fn mark_publishing(
        &self,
        files: &StoreFiles,
        tree_inode: u64,
        report: &CompactionReport,
    ) -> Result<(), StoreError> {
        self.write(files, &JobState::Publishing { tree_inode, report: report.clone() })
    }

    /// Records that the job is published; all other files can be removed.
    pub(crate) fn published(
        self,
        files: &StoreFiles,
        report: &CompactionReport,
    ) -> Result<ReplacedFiles, StoreError> {
        self.write(files, &JobState::Published { report: report.clone() })?;
        Ok(ReplacedFiles { dir: self.dir })
    }

    /// Ends a job that will not be published and removes its folder.
    pub fn abandon(self, files: &StoreFiles) -> Result<(), StoreError> {
        remove_folder(files, &self.dir)
    }

    fn write(&self, files: &StoreFiles, state: &JobState) -> Result<(), StoreError> {
        write_record(files, &self.dir, &self.id, self.created_ms, state)
    }
}

/// Returns the report of a published job; `None` if the job does not exist or is not published.
///
/// # Errors
/// [`StoreError::InvalidOption`] for an invalid id or a record that does not parse.
pub fn published_report(files: &StoreFiles, id: &str) -> Result<Option<CompactionReport>, StoreError> {
    check_job_id(id)?;
    Ok(match read_record(files, id)? {
        Some((JobState::Published { report }, _)) => Some(report),
        _ => None,
    })
}

/// The error about a job that does not run.
pub(crate) fn unknown_job(id: &str) -> StoreError {
    StoreError::InvalidOption {
        option: "job_id",
        reason: format!(
            "job {id} is unknown here: it was never planned, or removed after its driver ended; plan it again"
        ),
    }
}

fn take_lock(files: &StoreFiles, id: &str) -> Result<Box<dyn StoreLock>, StoreError> {
    let path = job_dir(files, id).join(LOCK_FILE);
    files.vfs.lock(&path).map_err(|error| match error {
        LockError::Held { .. } => StoreError::Busy {
            reason: format!(
                "job {id} is run by another driver ({} is locked); wait for it or choose another job id",
                path.display()
            ),
        },
        LockError::Io(error) if error.kind() == io::ErrorKind::NotFound => unknown_job(id),
        LockError::Io(error) => StoreError::io(&path, "locking a job", error),
    })
}

/// Creates a folder in `parent` and syncs `parent`.
pub(crate) fn make_dir(files: &StoreFiles, dir: &Path, parent: &Path) -> Result<(), StoreError> {
    files.vfs.create_dir_all(dir).at(dir, "creating a folder")?;
    switch::step("compaction.sync_job_name", || files.vfs.sync_dir(parent)).at(parent, "syncing a folder")
}

/// Removes all entries of `dir` except the names in `keep`.
fn remove_all(files: &StoreFiles, dir: &Path, keep: &[&str]) -> Result<(), StoreError> {
    remove_all_except(files, dir, |name| keep.contains(&name))
}

fn remove_all_except(files: &StoreFiles, dir: &Path, keep: impl Fn(&str) -> bool) -> Result<(), StoreError> {
    for entry in list_or_none(files, dir)? {
        if entry.name.to_str().is_some_and(&keep) {
            continue;
        }
        let path = dir.join(&entry.name);
        match entry.stat.kind {
            FileKind::Directory => remove_folder(files, &path)?,
            _ => ignore_missing(files.vfs.remove_file(&path)).at(&path, "sweeping a job's folder")?,
        }
    }
    Ok(())
}

/// Removes a job's folder, or a folder in it.
fn remove_folder(files: &StoreFiles, dir: &Path) -> Result<(), StoreError> {
    ignore_missing(files.vfs.remove_dir_all(dir)).at(dir, "sweeping a job's folder")
}

/// Ignores a missing file, and a folder in which a late attempt still writes; the next sweep removes that folder.
fn ignore_missing(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => {
            Ok(())
        }
        removed => removed,
    }
}

/// Completes the work of dead drivers: it finds out whether a record in state *publishing* was published, and removes
/// staged output of dead jobs. It skips job `current`. The caller holds the store's lock.
pub(crate) fn recover_stale_jobs(files: &StoreFiles, current: &str) -> Result<(), StoreError> {
    finish_swap(files)?;
    let jobs = files.jobs();
    let mut published = Vec::new();
    for entry in list_or_none(files, &jobs)? {
        let Some(id) = entry.name.to_str().filter(|id| check_job_id(id).is_ok()) else {
            continue;
        };
        if entry.stat.kind != FileKind::Directory {
            continue;
        }
        let dir = jobs.join(id);
        if is_running(files, &dir)? {
            continue;
        }
        // An unreadable record may have a later version; leave its job unchanged.
        let Ok(record) = read_record(files, id) else {
            continue;
        };
        match record {
            Some((JobState::Publishing { tree_inode, report }, created_ms))
                if compaction_inode(files)? == Some(tree_inode) =>
            {
                write_record(files, &dir, id, created_ms, &JobState::Published { report })?;
                remove_all(files, &dir, &[LOCK_FILE, RECORD_FILE])?;
                published.push((created_ms, dir));
            }
            Some((JobState::Published { .. }, created_ms)) => {
                remove_all(files, &dir, &[LOCK_FILE, RECORD_FILE])?;
                published.push((created_ms, dir));
            }
            _ if id == current => {}
            _ => remove_folder(files, &dir)?,
        }
    }
    published.sort();
    let surplus = published.len().saturating_sub(RECORDS_KEPT);
    for (_, dir) in published.into_iter().take(surplus).filter(|(_, dir)| !dir.ends_with(current)) {
        remove_folder(files, &dir)?;
    }
    switch::step("compaction.sync_swept_jobs", || files.vfs.sync_dir(&jobs))
        .at(&jobs, "syncing the folder of jobs")
}

/// Whether a driver in any process runs a job of this store.
pub(crate) fn any_running(files: &StoreFiles) -> Result<bool, StoreError> {
    for entry in list_or_none(files, &files.jobs())? {
        if entry.stat.kind == FileKind::Directory && is_running(files, &files.jobs().join(&entry.name))? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_running(files: &StoreFiles, dir: &Path) -> Result<bool, StoreError> {
    let lock = dir.join(LOCK_FILE);
    Ok(files.vfs.lock_holder(&lock).at(&lock, "looking at a job's lock")?.is_some())
}
