//! The files of some neighbouring segments, and the texts of their footers.

use std::ops::Range;

use bytes::Bytes;
use mqstore_base::error::StoreError;
use mqstore_engine::Store;
use mqstore_format::{BLANK_HEADER_BYTES, encode_blank};
use mqstore_io::sync::Mutex;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::ranges::LogRanges;
use super::settings::Run;
use super::writers::with_writers;
use mqstore_io::target::hex;

use crate::file::{FileError, FileFact, write_bytes};
use crate::layout::file_path;
use crate::manifest::{ArchivedFile, ArchivedSegment, Extension, LastRecord, Manifest, json_text};
use crate::records::{ArchiveFile, LogRange, RowsSummary};

/// Largest piece of the log that is read at once.
const PIECE_BYTES: u64 = 64 << 20;

/// Bytes of the log that are no records: log offset, length, and the bytes without final zeros.
type Piece = (u64, u64, Vec<u8>);

/// See the header of this file.
pub(super) struct GroupFiles<'a> {
    store: &'a Store,
    run: &'a Run<'a>,
    /// Texts of each footer, from which a manifest can be rebuilt.
    facts: Vec<FileFact>,
    segments: &'a [ArchivedSegment],
    made: Mutex<Made>,
}

#[derive(Default)]
struct Made {
    new: Extension,
    /// Also those of uploads that failed.
    paths: Vec<String>,
}

impl<'a> GroupFiles<'a> {
    pub(super) fn new(
        store: &'a Store,
        run: &'a Run<'a>,
        archive: &str,
        id: &str,
        segments: &'a [ArchivedSegment],
    ) -> Self {
        // The first log offset, then length and number of the segments that follow each other.
        let equal = segments.chunk_by(|one, next| one.bytes == next.bytes);
        let runs: Vec<_> = equal.map(|some| json!([some.first().map(|one| one.bytes), some.len()])).collect();
        let start = segments.first().map_or(0, |segment| segment.base);
        let facts = [
            ("id", archive.to_owned()),
            ("run", id.to_owned()),
            ("topics", json_text(&json!(run.settings.topics))),
            ("segments", json_text(&json!([start, runs]))),
        ];
        let facts = facts.into_iter().map(|(name, text)| (name.to_owned(), text)).collect();
        Self { store, run, facts, segments, made: Mutex::default() }
    }

    /// Returns the log offsets of the segments.
    pub(super) fn span(&self) -> Range<u64> {
        let start = self.segments.first().map_or(0, |segment| segment.base);
        start..self.segments.last().map_or(0, ArchivedSegment::end)
    }

    /// Returns the paths of all files, for their removal.
    pub(super) fn take_paths(&self) -> Vec<String> {
        std::mem::take(&mut self.made.lock().paths)
    }

    /// Keeps the files that a manifest names.
    pub(super) fn keep_paths(&self, manifest: &Manifest) {
        self.made.lock().paths.retain(|path| !manifest.files.iter().any(|file| *file.path == **path));
    }

    /// Returns the segments with their files.
    pub(super) fn take_new(&self) -> Extension {
        let new = std::mem::take(&mut self.made.lock().new);
        Extension { segments: self.segments.to_vec(), ..new }
    }

    /// Writes and uploads all files. `tell` gets log offsets.
    pub(super) fn write(
        &self,
        tell: &mut dyn FnMut(u64) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let span = self.span();
        let environment = self.store.files().vfs.environment();
        let count =
            if environment.threads { environment.processors.clamp(1, self.run.sizes.writers) } else { 0 };
        let topics = self.run.settings.topics.as_deref();
        with_writers(count, &|range| self.write_range(range), |writers| {
            let mut ranges = LogRanges::new(self.store, (span.start, span.end), topics)?;
            let mut position = span.start;
            while let Some(range) = ranges.next(self.run.sizes.range_bytes, &mut || tell(position))? {
                let end = range.log_range().end;
                writers.add(range, count.max(1) as usize, &mut || tell(position))?;
                position = end;
                tell(position)?;
            }
            writers.wait(0, &mut || tell(position))
        })
    }

    /// Writes the files of one range.
    fn write_range(&self, range: &LogRange) -> Result<(), StoreError> {
        let pieces = self.pieces(range)?;
        let count = range.topics().count() + usize::from(!pieces.is_empty());
        self.note_last(range)?;
        if !pieces.is_empty() {
            self.write_others(range, &pieces, count)?;
        }
        range.topics().try_for_each(|topic| self.write_topic(range, topic, count))
    }

    /// Notes the last record so far.
    fn note_last(&self, range: &LogRange) -> Result<(), StoreError> {
        let Some((log_offset, bytes)) = range.last() else { return Ok(()) };
        let content = self.store.archive().sealed_log()?.bytes(log_offset, bytes)?;
        let last = LastRecord { log_offset, bytes, sha256: hex(&Sha256::digest(&content)) };
        let known = &mut self.made.lock().new.last;
        if known.as_ref().is_none_or(|known| known.log_offset < log_offset) {
            *known = Some(last);
        }
        Ok(())
    }

    /// Writes, checks and uploads the file of one topic. `count` is the number of files of the range.
    fn write_topic(&self, range: &LogRange, topic: &str, count: usize) -> Result<(), StoreError> {
        let summary = range.summary(topic).map_err(|error| self.bug(topic, &error))?;
        let facts = self.facts_of(range, count, &summary);
        let content = range.file(topic, summary.record_bytes, self.run.sizes.file, &facts);
        let content = Bytes::from(content.map_err(|error| self.bug(topic, &error))?);
        let read = ArchiveFile::open(Box::new(content.clone()), Some(summary.record_bytes))
            .and_then(|file| file.summary())
            .map_err(|error| self.bug(topic, &error))?;
        if read != summary {
            let error = FileError::damaged("the new file does not give the records of the log again");
            return Err(self.bug(topic, &error));
        }
        self.upload(Some(topic), range, summary, &content)
    }

    /// Writes the file of the bytes between records.
    fn write_others(&self, range: &LogRange, pieces: &[Piece], count: usize) -> Result<(), StoreError> {
        let record_bytes = pieces.iter().map(|(_, length, _)| length).sum();
        let summary = RowsSummary { rows: pieces.len() as u64, record_bytes, ..RowsSummary::default() };
        let facts = self.facts_of(range, count, &summary);
        let content = write_bytes(pieces, self.run.sizes.file.level, &facts);
        self.upload(None, range, summary, &content.map_err(|error| self.bug("_bytes", &error))?)
    }

    fn bug(&self, topic: &str, error: &FileError) -> StoreError {
        let reason = format!("cannot archive {topic}: {error}; report this as a bug of mqstore");
        StoreError::corrupt(self.run.place.shown().as_ref(), 0, reason)
    }

    /// Returns the bytes between records, except fillers, which follow from their place.
    fn pieces(&self, range: &LogRange) -> Result<Vec<Piece>, StoreError> {
        let mut found = Vec::new();
        // An archive of some topics has only records.
        let gaps = if self.run.settings.topics.is_none() { range.gaps() } else { &[] };
        for (start, end) in gaps {
            let mut at = *start;
            while at < *end {
                let segment_end = self.segments.iter().map(ArchivedSegment::end).find(|end| *end > at);
                let segment_end = segment_end.unwrap_or(*end);
                let stop = (*end).min(segment_end).min(at + PIECE_BYTES);
                let content = self.store.archive().sealed_log()?.bytes(at, stop - at)?;
                let kept = without_zeros(&content);
                let filler = encode_blank((stop - at) as u32);
                let is_filler = stop == segment_end
                    && stop - at >= BLANK_HEADER_BYTES as u64
                    && kept == without_zeros(&filler);
                if !is_filler {
                    found.push((at, stop - at, kept.to_vec()));
                }
                at = stop;
            }
        }
        Ok(found)
    }

    fn facts_of(&self, range: &LogRange, count: usize, summary: &RowsSummary) -> Vec<FileFact> {
        let Range { start, end } = range.log_range();
        let facts = [
            ("version", "1".to_owned()),
            ("range", format!("{start}-{end}")),
            ("rows", summary.rows.to_string()),
            ("record_bytes", summary.record_bytes.to_string()),
            ("crc32_sum", summary.crc_sum.to_string()),
            ("range_files", count.to_string()),
        ];
        let facts = facts.into_iter().map(|(name, text)| (name.to_owned(), text));
        facts.chain(self.facts.iter().cloned()).collect()
    }

    fn upload(
        &self,
        topic: Option<&str>,
        range: &LogRange,
        summary: RowsSummary,
        content: &[u8],
    ) -> Result<(), StoreError> {
        let id = self.store.files().vfs.environment().random_seed as u32;
        let path = file_path(topic, &range.log_range(), id);
        self.made.lock().paths.push(path.clone());
        self.run.place.upload(&path, content)?;
        let digest = (content.len() as u64, hex(&Sha256::digest(content)));
        let file = ArchivedFile::new(&path, topic, &range.log_range(), summary, digest);
        self.made.lock().new.files.push(file);
        Ok(())
    }
}

fn without_zeros(content: &[u8]) -> &[u8] {
    let end = content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    content.get(..end).unwrap_or_default()
}
