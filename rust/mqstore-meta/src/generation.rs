//! The next generation: a file that begins with the state, so that the log does not grow without limit.
//!
//! ```text
//! generation g        head | snapshot | frame frame frame ......... frame frame
//!                                              │ cut                │ swap
//! generation g + 1    head | snapshot ........ | frame ............ | frame
//! ```
//!
//! Appends continue while the snapshot is written, so each part of it shows the state at some moment after the cut.
//! Names, tables and offsets hold their newest values, and replaying the frames after the cut gives the same result.
//! The record of a progress states the position at which it was read; replay skips its changes from before that
//! position. Frames after the cut are copied unchanged. Appends wait only for the last part of that copy, its sync
//! and the rename.
//!
//! The file gets its name when everything in it is durable. Of two files the newer one counts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_io::sync::Ordering;
use mqstore_io::{VfsFile, switch};

use super::frame::{FileHeader, Frame, HEAD_BYTES};
use super::load::file_of;
use super::log::{MetaLog, floor_records};
use super::record::{JsonFile, MetaPosition, MetaRecord, NameId, OffsetChange};
use super::tail::TailState;
use mqstore_base::error::{IoContext, StoreError};

/// Approximate bytes of records in a frame of a snapshot.
const FRAME_BYTES: usize = 64 << 10;
/// Queues of a snapshot that are read under one lock.
const QUEUES: usize = 1024;
/// A shorter tail starts no generation.
const LEAST_TAIL_BYTES: u64 = 1 << 20;
/// A longer tail starts one without waiting for [`REST_MS`].
const LONG_TAIL_BYTES: u64 = 64 << 20;
/// Minimum time between two generations, in milliseconds.
const REST_MS: u64 = 1_000;
/// Maximum bytes that are copied while appends wait.
const LAST_BYTES: u64 = 64 << 10;
/// Bytes per copy step.
const COPY_BYTES: usize = 256 << 10;

/// Writes the frames of a snapshot.
struct SnapshotWriter<'a> {
    path: &'a Path,
    file: &'a dyn VfsFile,
    at: u64,
    frame: Frame,
}

impl SnapshotWriter<'_> {
    fn push(&mut self, record: &MetaRecord<'_>) -> Result<(), StoreError> {
        self.frame.push(record);
        if self.frame.len() >= FRAME_BYTES { self.end_frame() } else { Ok(()) }
    }

    fn end_frame(&mut self) -> Result<(), StoreError> {
        let Some(frame) = self.frame.sealed()? else { return Ok(()) };
        self.file.write_all_at(frame, self.at).at(self.path, "writing a metadata log")?;
        self.at += frame.len() as u64;
        self.frame.clear();
        Ok(())
    }
}

/// The position in the old file from which the new one copies frames.
struct CopyStart {
    file: Arc<dyn VfsFile>,
    path: PathBuf,
    at: u64,
}

impl MetaLog {
    /// Ensures that there is a file for appends.
    #[inline]
    pub(super) fn ready(&self) -> Result<(), StoreError> {
        if self.tail.is_ready() {
            return Ok(());
        }
        let _chores = self.chores.lock();
        if self.tail.is_ready() { Ok(()) } else { self.next_generation() }
    }

    /// Whether the tail is long enough for a new generation.
    pub(super) fn generation_is_due(&self) -> bool {
        let lens = self.tail.look(|state| (state.at - state.tail_start, state.tail_start - HEAD_BYTES));
        let Some((tail, snapshot)) = lens else { return false };
        let rested = self.interval_ms() >= self.backoff_until_ms();
        tail > LEAST_TAIL_BYTES.max(2 * snapshot) && (rested || tail > LONG_TAIL_BYTES)
    }

    /// Makes a generation, whether due or not.
    #[cfg(feature = "sim")]
    pub fn make_generation(&self) -> Result<(), StoreError> {
        self.ready()?;
        let _chores = self.chores.lock();
        self.next_generation()
    }

    /// Makes the next generation; the caller holds `chores`.
    pub(super) fn next_generation(&self) -> Result<(), StoreError> {
        let files = &self.files;
        let generation = self.generation() + 1;
        let (cut, place) =
            match self.tail.look(|state| (state.file.clone(), state.path.clone(), state.at, state.place)) {
                Some((file, path, at, place)) => (Some(CopyStart { file, path, at }), MetaPosition(place)),
                None => (None, self.tail.place()),
            };
        files.ensure_folder(&files.meta())?;
        files.ensure_folder(&files.staging())?;
        let staged = files.staging().join("meta");
        match files.vfs.remove_file(&staged) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(StoreError::io(&staged, "creating a metadata log", error));
            }
            _ => {}
        }
        let file = files.vfs.create_new(&staged).at(&staged, "creating a metadata log")?;
        let mut writer =
            SnapshotWriter { path: &staged, file: &*file, at: HEAD_BYTES, frame: Frame::default() };
        writer.frame.clear();
        self.write_state(&mut writer)?;
        let tail_start = writer.at;
        let head = FileHeader { generation, tail_start, place };
        file.write_all_at(&head.encode(), 0).at(&staged, "writing a metadata log")?;
        let mut copied = CopiedTail {
            cut: cut.as_ref(),
            to: (&staged, &*file),
            from: cut.as_ref().map_or(0, |cut| cut.at),
            at: tail_start,
        };
        while let Some(end) = self.tail.look(|state| state.at).filter(|end| end - copied.from > LAST_BYTES) {
            copied.up_to(end)?;
        }
        switch::step("meta.sync_generation", || file.sync_all()).at(&staged, "syncing a metadata log")?;
        let path = file_of(files, generation);
        self.tail.replace(|state| {
            if let Some(state) = state.filter(|state| state.at > copied.from) {
                copied.up_to(state.at).map_err(|error| (false, error))?;
                let synced = switch::step("meta.sync_copied", || file.sync_data());
                synced.at(&staged, "syncing a metadata log").map_err(|error| (false, error))?;
            }
            let named = files.vfs.rename(&staged, &path).and_then(|()| {
                switch::step("meta.sync_generation_name", || files.vfs.sync_dir(&files.meta()))
            });
            named.at(&path, "renaming a metadata log").map_err(|error| (true, error))?;
            let place = place.0 + (copied.at - tail_start);
            Ok(TailState {
                path: path.clone(),
                file: Arc::clone(&file),
                tail_start,
                at: copied.at,
                place,
                marked: head.place.0,
                settled: head.place.0,
                map: None,
            })
        })?;
        self.has_file.store(true, Ordering::Release);
        self.set_backoff(self.interval_ms() + REST_MS, generation);
        if let Some(CopyStart { path, .. }) = &cut {
            // If this fails, the next open removes the file.
            let _ = files.vfs.remove_file(path);
        }
        Ok(())
    }

    /// Writes the state, part by part.
    fn write_state(&self, writer: &mut SnapshotWriter<'_>) -> Result<(), StoreError> {
        // Later names are in the tail, and so is everything that uses them.
        let (names, end) = self.names.read().all();
        writer.push(&MetaRecord::NextId { id: end.0 })?;
        for (id, name) in &names {
            writer.push(&MetaRecord::Name { id: *id, name })?;
        }
        self.write_tables(writer, end)?;
        let mut last = None;
        loop {
            let offsets = self.offsets.lock().behind(last, QUEUES);
            let Some((queue, _)) = offsets.last() else { break };
            last = Some(*queue);
            for (queue, offset) in
                offsets.into_iter().filter(|(queue, _)| queue.group < end && queue.topic < end)
            {
                writer.push(&MetaRecord::Offset(OffsetChange { queue, offset }))?;
            }
        }
        self.write_progress(writer, end)?;
        for file in JsonFile::ALL {
            let changed = self.is_unsaved(file);
            writer.push(&MetaRecord::JsonChanged { file, changed })?;
        }
        writer.end_frame()
    }

    fn write_tables(&self, writer: &mut SnapshotWriter<'_>, end: NameId) -> Result<(), StoreError> {
        let (topics, removed, floors, retentions, groups, json) = {
            let mut tables = self.tables.lock();
            let json = JsonFile::ALL.map(|file| (file, *tables.json(file)));
            let topics: Vec<_> =
                tables.topics.iter().map(|(name, entry)| (Arc::clone(name), entry.clone())).collect();
            let groups: Vec<_> =
                tables.groups.iter().map(|(name, entry)| (Arc::clone(name), entry.clone())).collect();
            let (removed, floors) = (tables.removed.clone(), tables.floors.clone());
            (topics, removed, floors, tables.retentions.clone(), groups, json)
        };
        // Before the entries: replaying the state of a file changes the entries that were being written.
        for (file, state) in json {
            if let Some(stamp) = state.known {
                writer.push(&MetaRecord::JsonKnown { file, stamp })?;
            }
            if let Some(stamp) = state.intended {
                writer.push(&MetaRecord::JsonIntended { file, stamp })?;
            }
        }
        for (name, entry) in topics.iter().filter(|(_, entry)| entry.id < end) {
            let config = entry.config.to_text(name);
            writer.push(&MetaRecord::Topic { topic: entry.id, saved: entry.saved, config: &config })?;
        }
        for topic in removed.into_values().filter(|id| *id < end) {
            writer.push(&MetaRecord::TopicRemoved { topic })?;
        }
        for (topic, floor) in floors.into_values().filter(|(id, _)| *id < end) {
            floor_records(topic, &floor).try_for_each(|record| writer.push(&record))?;
        }
        // After the removals, which remove the retention of a topic.
        for (topic, limits) in retentions.into_values().filter(|(id, _)| *id < end) {
            writer.push(&MetaRecord::Retention { topic, limits })?;
        }
        for (name, entry) in groups.iter().filter(|(_, entry)| entry.id < end) {
            let config = entry.config.to_text(name);
            writer.push(&MetaRecord::Group { group: entry.id, saved: entry.saved, config: &config })?;
        }
        Ok(())
    }

    fn write_progress(&self, writer: &mut SnapshotWriter<'_>, end: NameId) -> Result<(), StoreError> {
        let mut last = None;
        loop {
            let all = self.progress.read().behind(last, QUEUES);
            let Some((queue, _)) = all.last() else { return Ok(()) };
            last = Some(*queue);
            for (queue, progress) in
                all.into_iter().filter(|(queue, _)| queue.group < end && queue.topic < end)
            {
                let kept = progress.state.lock();
                if kept.removed || kept.progress.offset().is_none() {
                    continue;
                }
                // Appends to this progress need its lock, which this thread holds.
                let (state, place) = (&kept.progress, self.tail.place());
                let (committed, next) = (state.committed(), state.next());
                writer.push(&MetaRecord::Kept { queue, place, committed, next })?;
                for part in state.parts() {
                    writer.push(&MetaRecord::KeptPart(part))?;
                }
            }
        }
    }
}

/// The frames of the old file's tail that are already in the new file.
struct CopiedTail<'a> {
    cut: Option<&'a CopyStart>,
    to: (&'a Path, &'a dyn VfsFile),
    from: u64,
    at: u64,
}

impl CopiedTail<'_> {
    fn up_to(&mut self, end: u64) -> Result<(), StoreError> {
        let Some(cut) = self.cut else { return Ok(()) };
        let mut buffer = vec![0; COPY_BYTES.min((end - self.from) as usize)];
        while self.from < end {
            let part = buffer.len().min((end - self.from) as usize);
            let part = buffer.get_mut(..part).unwrap_or_default();
            cut.file.read_exact_at(part, self.from).at(&cut.path, "reading the metadata log")?;
            self.to.1.write_all_at(part, self.at).at(self.to.0, "writing a metadata log")?;
            self.from += part.len() as u64;
            self.at += part.len() as u64;
        }
        Ok(())
    }
}
