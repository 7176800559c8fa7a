//! The generation that a queue's compaction files are in.
//!
//! Owns the comparison of "planned" and "now": both read the folder through [`GenerationState`]. And which part of the
//! files is known:
//!
//! ```text
//! pair 0 | pair 1 | pair 2          the generation that the manifest knows: its files, their last entry
//!                 | pair 3 ...      what was appended since, by the feed or by a broker
//! ```

use std::path::Path;

use super::file_sizes::CompactionGeometry;
use super::folder::{FilePair, QueueFolder, token_of};
use super::manifest::{GenerationFacts, Manifest};
use crate::read::cursor::{OpenOutcome, PairCursor, first_offset};
use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;

/// How often files may be replaced while they are looked at.
const MOST_TRIES: u32 = 16;

/// What a queue's compaction files hold.
#[derive(Clone, Debug)]
pub(crate) struct GenerationState {
    /// Equal as long as nobody makes, removes, replaces or appends to a file.
    pub(crate) token: String,
    /// One past the last queue offset; 0 without a record.
    pub(crate) end: i64,
    /// The lengths of the files, when there are any.
    pub(crate) geometry: Option<CompactionGeometry>,
    /// Why these files must not be replaced.
    pub(crate) blocked: Vec<String>,
    pairs: Vec<FilePair>,
    last_entry: Vec<u8>,
}

/// What is known of the files of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownFiles<'m> {
    /// The facts about the generation that they begin with.
    pub(crate) generation: Option<&'m GenerationFacts>,
    /// One past the last queue offset that was read for the files.
    pub(crate) end: i64,
    /// From this queue offset on the files hold nothing that the commit log had not: it may be read there instead.
    pub(crate) fed_from: i64,
    /// How many pairs of files the generation has; none when nothing is known of it.
    pub(crate) pairs: usize,
}

impl KnownFiles<'_> {
    /// The same where `position-checkpoint` says that the queue was compacted to before `end`: of files that are
    /// not known a broker has made what lies before, and has left out more than the log has let go.
    pub(crate) fn compacted_to(mut self, end: i64) -> Self {
        if self.generation.is_none() {
            self.fed_from = self.fed_from.max(end).min(self.end);
        }
        self
    }
}

impl GenerationState {
    /// Looks at the files of a queue.
    pub(crate) fn load(files: &StoreFiles, topic: &str, queue_id: i32) -> Result<Self, StoreError> {
        Self::load_from(files, &files.compaction(), topic, queue_id)
    }

    /// Looks at the files of a queue below `compaction`, which may be the next folder of that name.
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

    /// The files, in ascending base.
    pub(crate) fn pairs(&self) -> &[FilePair] {
        &self.pairs
    }

    /// By what the manifest knows these files, all of them.
    pub(crate) fn manifest_token(&self) -> String {
        token_of(&self.pairs, &self.last_entry)
    }

    /// What `manifest` knows of these files. Files that were replaced meanwhile are not known.
    pub(crate) fn known<'m>(
        &self,
        files: &StoreFiles,
        manifest: &'m Manifest,
        topic: &str,
        queue_id: i32,
    ) -> Result<KnownFiles<'m>, StoreError> {
        for generation in manifest.generations(topic, queue_id) {
            if self.begins_with(files, generation, topic, queue_id)? {
                let (end, pairs) = (generation.end.max(self.end), generation.files.len());
                // Later where the log has lost what was copied since.
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
        // What was appended goes on behind it; other files of the same names may not.
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

/// One past the last queue offset, and the bytes that change with an append.
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
