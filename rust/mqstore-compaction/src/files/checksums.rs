//! Compares compaction files with the lengths and checksums in the manifest.
//!
//! Owns the comparison of a queue's files with `mqstore/compaction.json`, for `verify`. It compares only files that the
//! facts describe: if a broker changed a folder, or if it was copied, it has another token and is not compared. Only
//! the bytes that the compaction wrote are compared, not the rest of the file. Writes nothing.
//!
//! A truncated or missing file changes the token, so [`compaction_losses`] looks for it by name and length. It reads no
//! file of a complete queue, so that an open can call it.

use std::path::PathBuf;

use mqstore_format::offset_file_name;

use super::cursor::read_units;
use super::folder::{DataFile, LOG_DIR, QueueFolder, open_listed, queue_dir};
use super::generation::GenerationState;
use super::manifest::{GenerationFacts, Manifest};
use super::positions::{PositionCheckpoint, path_below};
use super::staged::{OutputFile, crc_of};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::{ConfigDamage, StoreFiles};

/// A file that differs from the one that the compaction wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedFile {
    /// The file.
    pub path: PathBuf,
    /// The difference, with the values found and expected.
    pub detail: String,
}

/// Returns the files of a queue that differ from the manifest; none if the manifest does not describe them.
pub fn changed_files(files: &StoreFiles, topic: &str, queue_id: i32) -> Result<Vec<ChangedFile>, StoreError> {
    let state = GenerationState::load(files, topic, queue_id)?;
    let manifest = Manifest::load(files)?;
    let known = state.known(files, &manifest, topic, queue_id)?;
    let Some(known) = known.generation else { return Ok(Vec::new()) };
    let folder = QueueFolder::load(files, &files.compaction(), topic, queue_id)?;
    let mut found = Vec::new();
    for pair in &folder.pairs {
        let Some(said) = known.files.iter().find(|said| said.base == pair.log.base) else { continue };
        let both = [(Some(&pair.log), &said.log), (pair.queue.as_ref(), &said.queue)];
        for (file, said) in both.into_iter().filter_map(|(file, said)| Some((file?, said))) {
            match compare(files, file, said)? {
                Comparison::Same => {}
                Comparison::Differs(detail) => found.push(ChangedFile { path: file.path.clone(), detail }),
                // A new generation replaced this one.
                Comparison::Moved => return Ok(Vec::new()),
            }
        }
    }
    Ok(found)
}

/// The damage of compaction files that is visible without reading their records.
#[derive(Debug, Default)]
pub struct CompactionLosses {
    /// The content of `mqstore/compaction.json` and the reason, if it does not parse.
    pub manifest: Option<(Vec<u8>, String)>,
    /// The damage of `compaction/position-checkpoint`.
    pub positions: Option<ConfigDamage>,
    /// The path of `compaction/position-checkpoint` if it and its backup are missing, although a compaction wrote it.
    pub missing_positions: Option<PathBuf>,
    /// Files that a compaction wrote and that are missing or were truncated, for each queue the first one.
    pub files: Vec<ChangedFile>,
}

/// Returns the damage of compaction files that is visible without reading their records.
///
/// # Errors
/// I/O errors.
pub fn compaction_losses(files: &StoreFiles) -> Result<CompactionLosses, StoreError> {
    let (manifest, damage) = Manifest::load_with_damage(files)?;
    let (mut found, mut has_keys) = (Vec::new(), false);
    for (topic, queue_id, generations) in manifest.queues() {
        let folder = QueueFolder::load(files, &files.compaction(), topic, queue_id)?;
        let mut problem = None;
        for generation in generations {
            problem = incomplete_file(files, (topic, queue_id), &folder, generation)?;
            if problem.is_none() {
                has_keys |= generation.records() > generation.keyless;
                break;
            }
        }
        found.extend(problem);
    }
    // Read after the files, which a publication puts in place together with their positions.
    let compaction = files.compaction();
    let positions = PositionCheckpoint::load(files, &compaction)?;
    let is_missing = has_keys && !positions.exists;
    Ok(CompactionLosses {
        manifest: damage,
        positions: positions.damage().cloned(),
        missing_positions: is_missing.then(|| path_below(&compaction)),
        files: found,
    })
}

/// Returns the first file of `generation` that is missing or truncated in `folder`. A broker may have replaced the
/// files with fewer or shorter ones; the first log file always exists, and units show how long a log file must be.
fn incomplete_file(
    files: &StoreFiles,
    (topic, queue_id): (&str, i32),
    folder: &QueueFolder,
    generation: &GenerationFacts,
) -> Result<Option<ChangedFile>, StoreError> {
    let Some(first) = generation.files.first() else { return Ok(None) };
    if folder.pairs.is_empty() {
        let dir = queue_dir(&files.compaction(), LOG_DIR, topic, queue_id);
        let (path, records) = (dir.join(offset_file_name(first.base)), generation.records());
        let detail = format!(
            "the file is missing: {records} messages of {topic}/{queue_id} that a compaction kept are lost, and reads \
             return older ones from the log"
        );
        return Ok(Some(ChangedFile { path, detail }));
    }
    for said in &generation.files {
        let Some(pair) = folder.pairs.iter().find(|pair| pair.log.base == said.base) else { continue };
        let Some(queue) = &pair.queue else { continue };
        if pair.log.len >= said.log.used_bytes && queue.len >= said.queue.used_bytes {
            continue;
        }
        let Some(run) = read_units(files, queue, pair.log.len)? else { continue };
        let (file, has) = match run.needed_bytes {
            Some(needed) => (&pair.log, format!("its queue file has records up to byte {needed}")),
            None if run.is_cut => (queue, "the log has its messages, and reads find them there".to_owned()),
            None => continue,
        };
        let detail = format!("the file was truncated to {} bytes; {has}", file.len);
        return Ok(Some(ChangedFile { path: file.path.clone(), detail }));
    }
    Ok(None)
}

enum Comparison {
    Same,
    Differs(String),
    Moved,
}

fn compare(files: &StoreFiles, file: &DataFile, said: &OutputFile) -> Result<Comparison, StoreError> {
    let name = offset_file_name(file.base);
    if said.used_bytes > file.len {
        let detail = format!("{name} has {} bytes; the compaction wrote {}", file.len, said.used_bytes);
        return Ok(Comparison::Differs(detail));
    }
    let Some(open) = open_listed(files, file)? else { return Ok(Comparison::Moved) };
    let crc = crc_of(open.as_ref(), said.used_bytes).at(&file.path, "checking a compaction file")?;
    if crc == said.crc {
        return Ok(Comparison::Same);
    }
    Ok(Comparison::Differs(format!(
        "the first {} bytes have the checksum {crc:#010x}; the compaction wrote bytes with {:#010x}",
        said.used_bytes, said.crc
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::reader::CompactedQueue;
    use crate::testing::{TestStore, compact_now, small};
    use mqstore_io::Access;

    fn compacted() -> TestStore {
        let mut store = TestStore::new(&["a"]);
        store.append_in_turn("a", 60, 30);
        compact_now(&store.files, None, &small(), 1).unwrap();
        store
    }

    fn names(store: &TestStore) -> Vec<PathBuf> {
        changed_files(&store.files, "a", 0).unwrap().into_iter().map(|changed| changed.path).collect()
    }

    fn flip(store: &TestStore, path: &std::path::Path, at: u64) {
        let file = store.files.vfs.open(path, Access::ReadWrite).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    }

    #[test]
    fn every_written_byte_counts_and_no_other() {
        let store = compacted();
        let folder = QueueFolder::load(&store.files, &store.files.compaction(), "a", 0).unwrap();
        assert!(folder.pairs.len() > 2);
        assert_eq!(names(&store), Vec::<PathBuf>::new());
        let (log, queue) = (folder.pairs[1].log.path.clone(), folder.pairs[0].queue.clone().unwrap().path);
        for (path, at) in [(&log, 0), (&log, 60), (&log, 700), (&queue, 5)] {
            flip(&store, path, at);
            assert_eq!(names(&store), std::slice::from_ref(path), "{at}");
            flip(&store, path, at);
        }
        flip(&store, &folder.pairs.last().unwrap().log.path, 2047);
        assert_eq!(names(&store), Vec::<PathBuf>::new());
    }

    #[test]
    fn lost_positions_are_found() {
        let store = compacted();
        let path = path_below(&store.files.compaction());
        let text = store.files.vfs.read_file(&path, 1 << 20).unwrap();
        let lost = || compaction_losses(&store.files).unwrap();
        assert!(lost().positions.is_none() && lost().missing_positions.is_none());
        for len in [0, 1, text.len() / 2] {
            store.files.vfs.write_atomic(&path, &path.with_extension("tmp"), &text[..len]).unwrap();
            assert_eq!(lost().positions.unwrap().bytes, text[..len], "{len}");
        }
        store.files.vfs.remove_file(&path).unwrap();
        assert_eq!(lost().missing_positions, Some(path));
    }

    #[test]
    fn a_damaged_file_of_positions_is_copied_before_a_compaction_replaces_it() {
        let mut store = compacted();
        let compaction = store.files.compaction();
        let write = |files: &StoreFiles, name: &str, text: &str| {
            let path = files.compaction().join(name);
            files.vfs.write_atomic(&path, &path.with_extension("tmp"), text.as_bytes()).unwrap();
        };
        write(&store.files, "position-checkpoint.bak", r#"{"queueOffsetMap":{"other_0":5}}"#);
        write(&store.files, "position-checkpoint", r#"{"queueOffsetMap":{"a_0":7,"b_0""#);
        store.append_in_turn("a", 60, 30);
        compact_now(&store.files, None, &small(), 1).unwrap();
        let positions = PositionCheckpoint::load(&store.files, &compaction).unwrap();
        assert!(positions.damage().is_none());
        assert_eq!((positions.end("a", 0), positions.end("other", 0)), (120, 6));
        let kept = store.files.lost_and_found().join("config_position-checkpoint");
        assert_eq!(store.files.vfs.read_file(&kept, 99).unwrap(), br#"{"queueOffsetMap":{"a_0":7,"b_0""#);
    }

    #[test]
    fn a_missing_or_truncated_file_is_found_and_not_read_past() {
        let store = compacted();
        let lost = || compaction_losses(&store.files).unwrap().files;
        assert!(lost().is_empty());
        let folder = QueueFolder::load(&store.files, &store.files.compaction(), "a", 0).unwrap();
        let path = folder.pairs[0].log.path.clone();
        let full = store.files.vfs.read_file(&path, 1 << 20).unwrap();
        let file = store.files.vfs.open(&path, Access::ReadWrite).unwrap();
        for len in [200, 1] {
            file.set_len(len).unwrap();
            let found = lost();
            assert_eq!(found.len(), 1, "{len}");
            assert!(found[0].path == path && found[0].detail.contains("truncated"), "{found:?}");
            let error = match CompactedQueue::open(&store.files, "a", 0) {
                Ok(queue) => queue.unwrap().read(0).find_map(Result::err),
                Err(error) => Some(error),
            };
            assert!(matches!(error, Some(StoreError::Corrupt { path: at, .. }) if at == path), "{len}");
        }
        file.set_len(full.len() as u64).unwrap();
        file.write_all_at(&full, 0).unwrap();
        assert!(lost().is_empty());
        store.files.vfs.remove_dir_all(&store.files.compaction().join("compactionLog")).unwrap();
        assert!(lost()[0].detail.contains("missing"));
    }

    #[test]
    fn facts_about_other_files_say_nothing() {
        let store = compacted();
        let folder = QueueFolder::load(&store.files, &store.files.compaction(), "a", 0).unwrap();
        let log = folder.pairs[0].log.path.clone();
        flip(&store, &log, 60);
        assert_eq!(names(&store), std::slice::from_ref(&log));
        // A copy of the file at its place, as after a restore of the directory.
        let bytes = store.files.vfs.read_file(&log, 1 << 20).unwrap();
        store.files.vfs.remove_file(&log).unwrap();
        store.files.vfs.create_new(&log).unwrap().write_all_at(&bytes, 0).unwrap();
        assert_eq!(names(&store), Vec::<PathBuf>::new());
        store.files.vfs.remove_file(&store.files.compaction_manifest()).unwrap();
        assert_eq!(names(&store), Vec::<PathBuf>::new());
    }
}
