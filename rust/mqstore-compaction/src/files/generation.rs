//! The generation of a queue's compaction files.
//!
//! Owns the comparison of the planned with the current generation, both read as [`GenerationState`]; and the part of
//! the files that the manifest describes:
//!
//! ```text
//! pair 0 | pair 1 | pair 2          the generation in the manifest: its files and their last unit
//!                 | pair 3 ...      appended since by the compaction appender or a broker
//! ```

use std::path::Path;

use super::cursor::{OpenOutcome, PairCursor, first_offset};
use super::file_sizes::CompactionGeometry;
use super::folder::{FilePair, QueueFolder, token_of};
use super::manifest::{GenerationFacts, Manifest};
use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;

/// Maximum number of retries if files are replaced during a read.
const MOST_TRIES: u32 = 16;

/// The content of a queue's compaction files.
#[derive(Clone, Debug)]
pub(crate) struct GenerationState {
    /// Changes if a program creates, removes, replaces or appends to a file.
    pub(crate) token: String,
    /// One past the last queue offset; 0 without a record.
    pub(crate) end: i64,
    /// The lengths of the files, if there are any.
    pub(crate) geometry: Option<CompactionGeometry>,
    /// Reasons why these files must not be replaced.
    pub(crate) blocked: Vec<String>,
    pairs: Vec<FilePair>,
    last_entry: Vec<u8>,
}

/// The facts about the files of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownFiles<'m> {
    /// The facts about the generation with which the files begin.
    pub(crate) generation: Option<&'m GenerationFacts>,
    /// One past the last queue offset that was read for the files.
    pub(crate) end: i64,
    /// From this queue offset on, all records in the files were also in the commit log, and can be read there instead.
    pub(crate) fed_from: i64,
    /// Number of pairs of files of this generation; 0 if it is unknown.
    pub(crate) pairs: usize,
}

impl KnownFiles<'_> {
    /// Corrects the facts with `position-checkpoint`, which says that the queue is compacted to before `end`. If the
    /// generation is unknown, a broker compacted that part, or the store was copied. Messages that the log still has may
    /// have been dropped, also after the last record of the files. Without any record the files are lost.
    pub(crate) fn compacted_to(mut self, end: i64) -> Self {
        if self.generation.is_none() && self.end > 0 {
            self.end = self.end.max(end);
            self.fed_from = self.fed_from.max(end).min(self.end);
        }
        self
    }
}

impl GenerationState {
    /// Reads the files of a queue.
    pub(crate) fn load(files: &StoreFiles, topic: &str, queue_id: i32) -> Result<Self, StoreError> {
        Self::load_from(files, &files.compaction(), topic, queue_id)
    }

    /// Reads the files of a queue below `compaction`, which may be the next folder of that name.
    pub(crate) fn load_from(
        files: &StoreFiles,
        compaction: &Path,
        topic: &str,
        queue_id: i32,
    ) -> Result<Self, StoreError> {
        for _ in 0..MOST_TRIES {
            let folder = QueueFolder::load(files, compaction, topic, queue_id)?;
            if let OpenOutcome::Same((end, last_entry)) = end_of(files, &folder.pairs, topic, queue_id)? {
                return Ok(Self {
                    token: folder.token(&last_entry),
                    end,
                    geometry: folder.geometry(),
                    blocked: folder.blocked,
                    pairs: folder.pairs,
                    last_entry,
                });
            }
        }
        Err(StoreError::Busy {
            reason: format!(
                "the compaction files of {topic}/{queue_id} are replaced faster than they can be read"
            ),
        })
    }

    /// Returns the pairs in ascending base.
    pub(crate) fn pairs(&self) -> &[FilePair] {
        &self.pairs
    }

    /// Returns the token of all these files in the manifest.
    pub(crate) fn manifest_token(&self) -> String {
        token_of(&self.pairs, &self.last_entry)
    }

    /// Returns the facts in `manifest` about these files. Replaced files have no facts.
    pub(crate) fn known<'m>(
        &self,
        files: &StoreFiles,
        manifest: &'m Manifest,
        topic: &str,
        queue_id: i32,
    ) -> Result<KnownFiles<'m>, StoreError> {
        // The newest first: its files can also be taken for files that were appended to a generation without files.
        for generation in manifest.generations(topic, queue_id).iter().rev() {
            if self.begins_with(files, generation, topic, queue_id)? {
                let (end, pairs) = (generation.end.max(self.end), generation.files.len());
                // A later offset if the log lost records that were copied since.
                let fed_from =
                    manifest.appended_from(topic, queue_id).unwrap_or(0).max(generation.end).min(end);
                return Ok(KnownFiles { generation: Some(generation), end, fed_from, pairs });
            }
        }
        let fed_from = manifest.appended_from(topic, queue_id).filter(|from| *from <= self.end);
        Ok(KnownFiles { generation: None, end: self.end, fed_from: fed_from.unwrap_or(self.end), pairs: 0 })
    }

    fn begins_with(
        &self,
        files: &StoreFiles,
        generation: &GenerationFacts,
        topic: &str,
        queue_id: i32,
    ) -> Result<bool, StoreError> {
        let Some((its, since)) = self.pairs.split_at_checked(generation.files.len()) else {
            return Ok(false);
        };
        let Some(first) = since.first() else {
            return Ok(generation.token == self.manifest_token());
        };
        // Appended files continue after `end`; other files with the same names may not.
        let goes_on = match &first.queue {
            Some(queue) => first_offset(files, queue)?.is_some_and(|offset| offset >= generation.end),
            None => !its.is_empty(),
        };
        if !goes_on {
            return Ok(false);
        }
        Ok(match end_of(files, its, topic, queue_id)? {
            OpenOutcome::Same((_, last_entry)) => generation.token == token_of(its, &last_entry),
            OpenOutcome::Moved => false,
        })
    }
}

/// Returns one past the last queue offset, and the bytes that change with an append.
fn end_of(
    files: &StoreFiles,
    pairs: &[FilePair],
    topic: &str,
    queue_id: i32,
) -> Result<OpenOutcome<(i64, Vec<u8>)>, StoreError> {
    for pair in pairs.iter().rev() {
        let OpenOutcome::Same(mut cursor) = PairCursor::open(files, pair, topic, queue_id, 0)? else {
            return Ok(OpenOutcome::Moved);
        };
        if let Some(unit) = cursor.last_unit() {
            return Ok(OpenOutcome::Same((unit.base_offset.saturating_add(1), unit.encode().to_vec())));
        }
        if let Some(last) = cursor.last_by_log()? {
            return Ok(OpenOutcome::Same((last.saturating_add(1), last.to_be_bytes().to_vec())));
        }
    }
    Ok(OpenOutcome::Same((0, Vec::new())))
}
