//! Compares compaction files with the lengths and checksums in the manifest.
//!
//! Owns the comparison of a queue's files with `mqstore/compaction.json`, for `verify`. It compares only files that the
//! facts describe: if a broker changed a folder, or if it was copied, it has another token and is not compared. Only
//! the bytes that the compaction wrote are compared, not the rest of the file. Writes nothing.

use std::path::PathBuf;

use mqstore_format::offset_file_name;

use super::folder::{DataFile, QueueFolder, open_listed};
use super::generation::GenerationState;
use super::manifest::Manifest;
use crate::job::documents::OutputFile;
use crate::job::publish::crc_of;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

/// A file that differs from the one that the compaction wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedFile {
    pub path: PathBuf,
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
