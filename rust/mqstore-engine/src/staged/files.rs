//! The folder of staged files: its token, and the files that tasks write.
//!
//! A file is synced, with its name, before the task says that it is there. Only the driver reads it. Files of lost
//! attempts are never read.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;
use mqstore_format::crc32;
use mqstore_io::vfs::parent_dir;
use mqstore_io::{Access, Vfs, VfsFile, switch};

use super::journal::{StagedFile, StagedStep, home};
use crate::write::staged_batch::BlockHead;

/// Maximum bytes of the token.
const MOST_TOKEN_BYTES: u64 = 1 << 10;

fn stage(files: &StoreFiles) -> PathBuf {
    home(files).join("stage")
}

/// Makes the folder for staged files, durably, and returns the content of its token. If there is no token, it gets the
/// content `new`, which no other driver gives.
///
/// # Errors
/// Errors of the system; [`StoreError::Corrupt`] for a token that is no text.
pub fn prepare_stage(files: &StoreFiles, new: &str) -> Result<String, StoreError> {
    let stage = stage(files);
    files.ensure_folder(&stage)?;
    let (token, vfs) = (stage.join("token"), &*files.vfs);
    // A crash of the machine can leave it empty.
    if !vfs.stat(&token).is_ok_and(|stat| stat.len > 0) {
        make_token(vfs, &token, new).at(&token, "making the token of staged files")?;
    }
    let content = vfs.read_file(&token, MOST_TOKEN_BYTES).at(&token, "reading the token of staged files")?;
    String::from_utf8(content).map_err(|_| StoreError::Corrupt {
        path: token,
        offset: 0,
        reason: "the token of staged files is damaged; remove it while no job writes".to_owned(),
    })
}

/// Of several drivers at the same time, one makes the token. Nothing is synced: the jobs that know a token end with the
/// machine of the driver.
fn make_token(vfs: &dyn Vfs, token: &Path, new: &str) -> io::Result<()> {
    let own = token.with_extension(format!("{:08x}.new", crc32(new.as_bytes())));
    let file = vfs.create_new(&own)?;
    let written = file.write_all_at(new.as_bytes(), 0);
    let placed = written.and_then(|()| match vfs.hard_link(&own, token) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && vfs.stat(token)?.len > 0 => Ok(()),
        // The token is empty, or the file system has no hard links.
        Err(_) => vfs.rename(&own, token),
        Ok(()) => Ok(()),
    });
    // After the rename it is gone.
    let _ = vfs.remove_file(&own);
    placed
}

/// The file of one task.
pub struct StagedFileWriter {
    vfs: Arc<dyn Vfs>,
    file: Arc<dyn VfsFile>,
    path: PathBuf,
    stage: PathBuf,
    len: u64,
}

impl StagedFileWriter {
    /// Creates the file `name`, which is a path relative to the folder of `job`.
    ///
    /// # Errors
    /// Errors of the system, also that the file exists.
    pub fn create(files: &StoreFiles, job: &str, name: &str) -> Result<Self, StoreError> {
        const ACTION: &str = "making a staged file";
        let (vfs, stage) = (Arc::clone(&files.vfs), stage(files));
        let path = stage.join(job).join(name);
        vfs.create_dir_all(parent_dir(&path)).at(&path, ACTION)?;
        let file = vfs.create_new(&path).at(&path, ACTION)?;
        Ok(Self { vfs, file, path, stage, len: 0 })
    }

    /// Adds a block.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn push(&mut self, block: &[u8]) -> Result<(), StoreError> {
        self.file.write_all_at(block, self.len).at(&self.path, "writing staged messages")?;
        self.len += block.len() as u64;
        Ok(())
    }

    /// Syncs the file and its name. Returns its length in bytes.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn finish(self) -> Result<u64, StoreError> {
        switch::step("staged.sync_file", || self.file.sync_all())
            .at(&self.path, "syncing staged messages")?;
        let folders = self.path.ancestors().skip(1);
        for folder in folders.take_while(|folder| folder.starts_with(&self.stage)) {
            switch::step("staged.sync_file_name", || self.vfs.sync_dir(folder))
                .at(folder, "syncing a folder")?;
        }
        Ok(self.len)
    }
}

/// The blocks of a step, read file by file. They can be damaged.
pub(super) struct StepBlocks {
    files: StoreFiles,
    job: String,
    left: std::vec::IntoIter<StagedFile>,
    open: Option<OpenFile>,
}

struct OpenFile {
    file: Arc<dyn VfsFile>,
    path: Arc<Path>,
    at: u64,
    len: u64,
}

impl StepBlocks {
    pub(super) fn of(files: &StoreFiles, step: &StagedStep) -> Self {
        Self { files: files.clone(), job: step.job.clone(), left: step.files.clone().into_iter(), open: None }
    }

    /// Returns the next block; `None` after the last one.
    pub(super) fn next(&mut self) -> Result<Option<BlockInFile>, StoreError> {
        loop {
            if let Some(open) = &mut self.open
                && let Some(block) = open.next()?
            {
                return Ok(Some(block));
            }
            let Some(file) = self.left.next() else { return Ok(None) };
            self.open = Some(OpenFile::open(&self.files, &self.job, &file)?);
        }
    }

    /// Checks that all files are there, with their lengths.
    pub(super) fn check(mut self) -> Result<(), StoreError> {
        self.left.try_for_each(|file| OpenFile::open(&self.files, &self.job, &file).map(drop))
    }
}

impl OpenFile {
    fn open(files: &StoreFiles, job: &str, one: &StagedFile) -> Result<Self, StoreError> {
        let path = stage(files).join(job).join(&one.file);
        let wrong = |what: String| StoreError::Corrupt {
            path: path.clone(),
            offset: 0,
            reason: format!("{what}; none of its rows was appended"),
        };
        let file = match files.vfs.open(&path, Access::Read) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(wrong("it is missing".to_owned()));
            }
            file => file.at(&path, "opening staged messages")?,
        };
        let len = file.len().at(&path, "opening staged messages")?;
        if len != one.bytes {
            return Err(wrong(format!("it has {len} bytes instead of the {} staged bytes", one.bytes)));
        }
        Ok(Self { file, path: path.into(), at: 0, len })
    }

    fn next(&mut self) -> Result<Option<BlockInFile>, StoreError> {
        if self.at == self.len {
            return Ok(None);
        }
        let mut block = BlockInFile {
            messages: 0,
            file: Arc::clone(&self.file),
            path: Arc::clone(&self.path),
            at: self.at,
            bytes: 0,
        };
        let mut head = [0; BlockHead::BYTES];
        match self.file.read_exact_at(&mut head, self.at) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Err(block.damaged()),
            read => read.at(&self.path, "reading staged messages")?,
        }
        let head = BlockHead::decode(&head);
        if head.bytes > self.len - self.at {
            return Err(block.damaged());
        }
        (block.messages, block.bytes) = (head.messages.into(), head.bytes as usize);
        self.at += head.bytes;
        Ok(Some(block))
    }
}

/// A block, which is not read yet.
pub(super) struct BlockInFile {
    /// Its number of messages, according to its head.
    pub(super) messages: u64,
    file: Arc<dyn VfsFile>,
    path: Arc<Path>,
    at: u64,
    bytes: usize,
}

impl BlockInFile {
    /// Returns its bytes.
    pub(super) fn read(&self) -> Result<Vec<u8>, StoreError> {
        self.file.read_new(self.bytes, self.at).at(&self.path, "reading staged messages")
    }

    /// The error for a block that is not as it was staged.
    pub(super) fn damaged(&self) -> StoreError {
        StoreError::Corrupt {
            path: self.path.to_path_buf(),
            offset: self.at,
            reason: "a block of staged messages is damaged: its checksum or a length is wrong; none of its rows was \
                     appended"
                .to_owned(),
        }
    }
}
