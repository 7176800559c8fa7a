//! Swaps the next `compaction` folder with the current one.
//!
//! Owns `mqstore/compaction.switch`, which exists only while the swap takes several steps:
//!
//! ```text
//! compaction <-> jobs/<id>/tree                  one call; if the file system does not support it:
//!
//! 1  compaction.switch = "<id>"                  durable: a reader without `compaction` looks in tree
//! 2  compaction      -> jobs/<id>/before         from here on the new generation is valid
//! 3  jobs/<id>/tree  -> compaction
//! 4  remove compaction.switch
//! ```
//!
//! Across a crash: before step 2 nothing has changed. After it, readers of mqstore find the next folder in the job's
//! folder ([`StoreFiles::compaction`]), and the next holder of the store's lock completes the swap ([`finish_swap`]). A
//! program that does not know these steps finds no `compaction` between 2 and 3. If it creates its own folder then,
//! that one stays, and the folder that was moved away goes to `mqstore/lost+found`.

use std::io;
use std::path::Path;

use mqstore_io::switch;
use mqstore_io::vfs::parent_dir;

use super::job_record::{TREE_DIR, check_job_id, compaction_inode, job_dir, tree_inode};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

/// Name of the previous folder between the steps, in the job's folder.
const BEFORE_DIR: &str = "before";

/// Makes the tree of job `id` the `compaction` folder, and moves the previous one into the job's folder. The job's
/// record is already in the state *publishing*.
pub(crate) fn swap_generation(files: &StoreFiles, id: &str) -> Result<(), StoreError> {
    let (dir, compaction) = (job_dir(files, id), files.compaction_path());
    let tree = dir.join(TREE_DIR);
    let switched = if compaction_inode(files)?.is_some() {
        match files.vfs.exchange(&tree, &compaction) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                refuse_link(files)?;
                return swap_in_two_steps(files, id);
            }
            outcome => outcome,
        }
    } else {
        files.vfs.rename_noreplace(&tree, &compaction)
    };
    switched.map_err(|error| cannot_move(&compaction, error))?;
    sync_both(files, &dir)
}

/// Refuses a swap in several steps through a link: between them, the link would lead nowhere.
fn refuse_link(files: &StoreFiles) -> Result<(), StoreError> {
    let Some(path) = files.link_target("compaction") else { return Ok(()) };
    let reason = "compaction is a symbolic link to this folder, and the file system cannot exchange two folders in one \
                  step; nothing was changed: replace the link with the folder itself";
    Err(StoreError::Unsupported { path: path.to_path_buf(), reason: reason.to_owned() })
}

fn swap_in_two_steps(files: &StoreFiles, id: &str) -> Result<(), StoreError> {
    let (note, compaction) = (files.swap_record(), files.compaction_path());
    files
        .vfs
        .write_atomic(&note, &note.with_extension("switch.tmp"), id.as_bytes())
        .at(&note, "noting a publication")?;
    let before = job_dir(files, id).join(BEFORE_DIR);
    files.vfs.rename_noreplace(&compaction, &before).map_err(|error| cannot_move(&compaction, error))?;
    finish_swap(files).map(drop)
}

/// Completes a swap in several steps; returns a note for people. The caller holds the store's lock.
pub fn finish_swap(files: &StoreFiles) -> Result<Option<String>, StoreError> {
    let note = files.swap_record();
    let id = match files.vfs.read_file(&note, 4096) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::io(&note, "reading the note of a publication", error)),
    };
    if check_job_id(&id).is_err() {
        return Err(StoreError::corrupt(&note, 0, "it does not contain a job id"));
    }
    let (dir, compaction) = (job_dir(files, &id), files.compaction_path());
    let (tree, before) = (dir.join(TREE_DIR), dir.join(BEFORE_DIR));
    let (next, last) = (is_there(files, &tree)?, is_there(files, &before)?);
    let mut said = None;
    match compaction_inode(files)? {
        None if next => {
            files.vfs.rename_noreplace(&tree, &compaction).at(&compaction, "publishing the compaction")?;
        }
        None if last => {
            files
                .vfs
                .rename_noreplace(&before, &compaction)
                .at(&compaction, "putting the generation back")?;
        }
        Some(inode) if last && tree_inode(files, &id)? != Some(inode) => {
            said = Some(quarantine_moved(files, &before)?);
        }
        _ => {}
    }
    sync_both(files, &dir)?;
    files.vfs.remove_file(&note).at(&note, "removing the note of a publication")?;
    switch::step("compaction.sync_switch_note", || files.vfs.sync_dir(&files.side()))
        .at(&files.side(), "syncing a folder")?;
    Ok(said)
}

/// Moves the previous folder to `lost+found`, because another program created a folder at its place.
fn quarantine_moved(files: &StoreFiles, before: &Path) -> Result<String, StoreError> {
    let folder = files.lost_and_found();
    files.ensure_folder(&folder)?;
    let kept = folder.join(format!("compaction.{}", files.clock.now_ms()));
    files.vfs.rename(before, &kept).at(&kept, "keeping the last generation")?;
    switch::step("compaction.sync_kept", || files.vfs.sync_dir(&folder)).at(&folder, "syncing a folder")?;
    Ok(format!(
        "{}: another program created this folder while a compaction was published; the previous folder is kept as {}",
        files.compaction_path().display(),
        kept.display()
    ))
}

fn is_there(files: &StoreFiles, path: &Path) -> Result<bool, StoreError> {
    match files.vfs.stat(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        found => found.map(|_| true).at(path, "looking at a compaction folder"),
    }
}

fn cannot_move(compaction: &Path, error: io::Error) -> StoreError {
    if error.kind() != io::ErrorKind::CrossesDevices {
        return StoreError::io(compaction, "publishing the compaction", error);
    }
    StoreError::Unsupported {
        path: compaction.to_path_buf(),
        reason:
            "the file system cannot move this folder, for example because it is part of a container image, or because \
                 compaction is a symbolic link to another disk than mqstore; nothing was changed: compact a copy of \
                 the store (output) and use that"
                .to_owned(),
    }
}

fn sync_both(files: &StoreFiles, job: &Path) -> Result<(), StoreError> {
    let compaction = files.compaction_path();
    let above = parent_dir(&compaction);
    switch::step("compaction.sync_switch", || files.vfs.sync_dir(above))
        .at(above, "syncing the store's folder")?;
    match switch::step("compaction.sync_old_tree", || files.vfs.sync_dir(job)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome.at(job, "syncing a job's folder"),
    }
}
