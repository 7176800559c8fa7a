//! `compaction/position-checkpoint`: the position up to which each queue is compacted.
//!
//! Owns the reads and writes of RocketMQ's file; `mqstore_format::json` owns its text. For each queue it has the queue
//! offset of the last keyed record that a compaction read. If the file is lost, a broker compacts everything once more.
//! `position-checkpoint.bak` is the previous version. Of a damaged file, every position that parses counts, and the
//! backup completes them, as for a configuration file (`config_file` of mqstore-base).
//!
//! Source: `CompactionPositionMgr`, `ConfigManager#persist`.

use std::io;
use std::path::{Path, PathBuf};

use mqstore_format::json::{CompactionPositions, Dialect};

use mqstore_base::error::StoreError;
use mqstore_base::store_files::{ConfigDamage, ConfigFile, LoadedConfig, StoreFiles};

/// The file's name below `compaction/`.
pub(crate) const POSITIONS_FILE: &str = "position-checkpoint";

/// Name of the file with the previous version.
pub(crate) const POSITIONS_BACKUP: &str = "position-checkpoint.bak";

/// Maximum bytes of the file, which has one line for each queue.
const LIMIT_BYTES: u64 = 64 << 20;

/// The saved positions.
#[derive(Clone, Debug, Default)]
pub(crate) struct PositionCheckpoint {
    file: CompactionPositions,
    damage: Option<ConfigDamage>,
    /// Whether the file or its backup exists.
    pub(crate) exists: bool,
}

impl PositionCheckpoint {
    /// Reads the file below the folder `compaction`, completed from its backup if it is damaged; otherwise the backup,
    /// otherwise no positions.
    pub(crate) fn load(files: &StoreFiles, compaction: &Path) -> Result<Self, StoreError> {
        let read = |name: &str| {
            let path = compaction.join(name);
            match files.vfs.read_file(&path, LIMIT_BYTES) {
                Ok(bytes) => Ok(Some(ConfigFile::of(&path, bytes))),
                Err(error) if missing(&error) => Ok(None),
                Err(error) => Err(StoreError::io(&path, "reading the compaction positions", error)),
            }
        };
        let file = read(POSITIONS_FILE)?;
        let is_whole = file.as_ref().is_some_and(|file| file.damage.is_none());
        let backup = if is_whole { None } else { read(POSITIONS_BACKUP)? };
        let loaded = LoadedConfig { file, backup };
        let (damage, table) = (loaded.damage().cloned(), loaded.into_table());
        Ok(Self { exists: table.is_some(), file: table.unwrap_or_default(), damage })
    }

    /// The parts of the file that cannot be read.
    pub(crate) fn damage(&self) -> Option<&ConfigDamage> {
        self.damage.as_ref()
    }

    /// Returns the position of a queue.
    fn get(&self, topic: &str, queue_id: i32) -> Option<i64> {
        self.file.get(topic, queue_id).filter(|position| *position >= 0)
    }

    /// One past the position of a queue; 0 without one.
    pub(crate) fn end(&self, topic: &str, queue_id: i32) -> i64 {
        self.get(topic, queue_id).map_or(0, |position| position.saturating_add(1))
    }

    /// Raises the position of a queue to `position`. It never goes back: a compaction that finds nothing new knows only
    /// the last record that it kept, and the tombstones after it are gone.
    pub(crate) fn raise(&mut self, topic: &str, queue_id: i32, position: i64) {
        let known = self.file.table.entry(CompactionPositions::key(topic, queue_id)).or_insert(position);
        *known = (*known).max(position);
    }

    /// Returns the file's text.
    pub(crate) fn render(&self) -> String {
        self.file.to_json(Dialect::Rocketmq53)
    }
}

/// Writes a damaged positions file again with the positions that parse, after a copy to `lost+found`. Returns the step
/// in words; `None` if there was nothing to do. With `dry_run` it changes nothing.
///
/// # Errors
/// I/O errors.
pub fn repair_positions(files: &StoreFiles, dry_run: bool) -> Result<Option<String>, StoreError> {
    let positions = PositionCheckpoint::load(files, &files.compaction())?;
    let Some(damage) = positions.damage() else { return Ok(None) };
    let path = &damage.path;
    if !dry_run {
        files.keep_config(path, &damage.bytes)?;
        files.replace_file(path, positions.render().as_bytes(), "writing the compaction positions")?;
    }
    Ok(Some(format!("{}: damaged; the positions that parse are written again, after a copy", path.display())))
}

/// Whether a file of this name does not exist, or cannot be read as a file.
fn missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The path of the positions file below `compaction`.
pub(crate) fn path_below(compaction: &Path) -> PathBuf {
    compaction.join(POSITIONS_FILE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sim_files;

    #[test]
    fn positions_that_parse_count_and_the_backup_completes_them() {
        let files = sim_files();
        let compaction = files.compaction();
        files.vfs.create_dir_all(&compaction).unwrap();
        let write = |name: &str, text: &str| {
            files
                .vfs
                .write_atomic(&compaction.join(name), &compaction.join("staged"), text.as_bytes())
                .unwrap();
        };
        let load = || PositionCheckpoint::load(&files, &compaction).unwrap();
        write(POSITIONS_FILE, r#"{"queueOffsetMap":{"a_0":7,"b_0":x,"c_0":9}}"#);
        let found = load();
        assert_eq!((found.get("a", 0), found.get("b", 0), found.get("c", 0)), (Some(7), None, Some(9)));
        assert!(found.damage().unwrap().note("used", None).contains("b_0"));
        write(POSITIONS_BACKUP, r#"{"queueOffsetMap":{"a_0":1,"b_0":2}}"#);
        let found = load();
        assert_eq!((found.get("a", 0), found.get("b", 0), found.get("c", 0)), (Some(7), Some(2), Some(9)));
        write(POSITIONS_FILE, "");
        assert!(load().damage().unwrap().note("used", None).contains("empty"));
        assert_eq!(load().get("b", 0), Some(2));
    }

    #[test]
    fn a_file_that_does_not_parse_counts_as_missing() {
        let files = sim_files();
        let compaction = files.compaction();
        files.vfs.create_dir_all(&compaction).unwrap();
        let write = |name: &str, text: &str| {
            let file = files.vfs.create_new(&compaction.join(name)).unwrap();
            file.write_all_at(text.as_bytes(), 0).unwrap();
        };
        let get = || PositionCheckpoint::load(&files, &compaction).unwrap().get("ctopic", 0);
        assert_eq!(get(), None);
        let mut positions = PositionCheckpoint::default();
        positions.raise("ctopic", 0, 13);
        positions.raise("ctopic", 0, 7);
        assert_eq!(
            positions.render(),
            "{\n\t\"empty\":false,\n\t\"queueOffsetMap\":{\n\t\t\"ctopic_0\":13\n\t}\n}"
        );
        write(POSITIONS_BACKUP, &positions.render());
        assert_eq!(get(), Some(13));
        write(POSITIONS_FILE, "{\"queueOffsetMap\":[");
        assert_eq!(get(), Some(13));
        files.vfs.remove_file(&path_below(&compaction)).unwrap();
        positions.raise("ctopic", 0, 20);
        write(POSITIONS_FILE, &positions.render());
        assert_eq!(get(), Some(20));
    }
}
