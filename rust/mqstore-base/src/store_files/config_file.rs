//! Reads the JSON files of `config/`, also damaged ones.
//!
//! Owns the rule for a damaged configuration file, which every reader and writer of these files uses:
//!
//! 1. Every entry that parses counts. If a part of the file is lost, the entries of `x.json.bak` complete it.
//! 2. The loss is reported: [`ConfigDamage::note`]. A file without content counts as damaged.
//! 3. Before a writer replaces the file, it copies it to `lost+found`: [`StoreFiles::keep_config`].
//!
//! Source: `ConfigManager#load`, which reads the backup alone.

use std::path::{Path, PathBuf};

use mqstore_format::FormatError;
use mqstore_format::json::ConfigTable;

use super::{CONFIG_LIMIT_BYTES, StoreFiles};
use crate::error::{IoContext, StoreError};

/// Maximum number of losses that a note lists.
const MOST_LISTED: usize = 8;

/// A configuration file as far as it is readable.
#[derive(Clone, Debug)]
pub struct ConfigFile<T> {
    /// The path of the file, or of its backup.
    pub path: PathBuf,
    /// The content.
    pub bytes: Vec<u8>,
    /// The entries that parse.
    pub table: T,
    /// The lost parts; `None` if the whole file parses.
    pub damage: Option<ConfigDamage>,
}

/// The parts of a configuration file that cannot be read.
#[derive(Clone, Debug)]
pub struct ConfigDamage {
    /// The file.
    pub path: PathBuf,
    /// The content.
    pub bytes: Vec<u8>,
    /// The lost parts, each with its byte position; at least one.
    pub losses: Vec<FormatError>,
}

impl ConfigDamage {
    /// Returns a note for the user: the losses, the data that is used instead, and the copy, if there is one.
    pub fn note(&self, used: &str, copy: Option<&Path>) -> String {
        let listed: Vec<String> = self.losses.iter().take(MOST_LISTED).map(ToString::to_string).collect();
        let more = self.losses.len().saturating_sub(MOST_LISTED);
        let more = if more > 0 { format!("; and {more} more losses") } else { String::new() };
        let kept =
            copy.map_or_else(String::new, |copy| format!("; a copy of the file is in {}", copy.display()));
        format!("{}: damaged ({}{more}); {used}{kept}", self.path.display(), listed.join("; "))
    }
}

impl<T: ConfigTable> ConfigFile<T> {
    /// Parses the content of the file at `path`.
    pub fn of(path: &Path, bytes: Vec<u8>) -> Self {
        let read = T::parse_entries(&bytes);
        let (path, losses) = (path.to_path_buf(), read.losses);
        let damage =
            (!losses.is_empty()).then(|| ConfigDamage { path: path.clone(), bytes: bytes.clone(), losses });
        Self { path, bytes, table: read.table, damage }
    }
}

/// A file of `config/` and its backup.
#[derive(Clone, Debug)]
pub struct LoadedConfig<T> {
    /// `x.json`, if it exists.
    pub file: Option<ConfigFile<T>>,
    /// `x.json.bak`, if it exists. It is read only if `x.json` is missing or damaged.
    pub backup: Option<ConfigFile<T>>,
}

impl<T: ConfigTable> LoadedConfig<T> {
    /// Returns the damage of the file; also `None` if the file is missing.
    pub fn damage(&self) -> Option<&ConfigDamage> {
        self.file.as_ref()?.damage.as_ref()
    }

    /// Returns the entries that parse: those of the file, completed from the backup. `None` if neither exists.
    pub fn into_table(self) -> Option<T> {
        match (self.file, self.backup) {
            (Some(file), Some(backup)) => {
                let mut table = file.table;
                table.complete_from(backup.table);
                Some(table)
            }
            (file, backup) => file.or(backup).map(|file| file.table),
        }
    }
}

impl StoreFiles {
    /// Reads the file `name` of `config/`, and its backup if the file is missing or damaged.
    ///
    /// # Errors
    /// I/O errors.
    pub fn load_config<T: ConfigTable>(&self, name: &str) -> Result<LoadedConfig<T>, StoreError> {
        let path = self.config().join(name);
        let file = self.read_config(&path)?.map(|bytes| ConfigFile::of(&path, bytes));
        let whole = file.as_ref().is_some_and(|file| file.damage.is_none());
        let backup = if whole { None } else { self.load_config_backup(&path)? };
        Ok(LoadedConfig { file, backup })
    }

    /// Reads the backup of the configuration file at `path`; `None` if there is none, or none with content.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn load_config_backup<T: ConfigTable>(
        &self,
        path: &Path,
    ) -> Result<Option<ConfigFile<T>>, StoreError> {
        let path = path.with_extension("json.bak");
        let bytes = self.read_config(&path)?.filter(|bytes| !bytes.is_empty());
        Ok(bytes.map(|bytes| ConfigFile::of(&path, bytes)))
    }

    /// Reads the content of a configuration file; `None` if the file does not exist.
    ///
    /// # Errors
    /// I/O errors.
    pub fn read_config(&self, path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
        match self.vfs.read_file(path, CONFIG_LIMIT_BYTES) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            bytes => bytes.at(path, "reading the configuration").map(Some),
        }
    }

    /// Copies `bytes`, the content of the configuration file at `path`, to `lost+found`. Durable when this returns.
    /// An equal copy is used again. Returns the path of the copy; `None` for a file without content.
    ///
    /// # Errors
    /// I/O errors.
    pub fn keep_config(&self, path: &Path, bytes: &[u8]) -> Result<Option<PathBuf>, StoreError> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let name = format!("config_{}", path.file_name().unwrap_or_default().to_string_lossy());
        let kept = match self.equal_copy(&name, bytes) {
            Some(kept) => kept,
            None => self.copy_config(&name, bytes)?,
        };
        self.sync_lost_and_found()?;
        Ok(Some(kept))
    }

    fn copy_config(&self, name: &str, bytes: &[u8]) -> Result<PathBuf, StoreError> {
        let kept = self.unused_lost_and_found_name(name)?;
        self.replace_file(&kept, bytes, "copying a damaged configuration file")?;
        Ok(kept)
    }

    /// Returns the copy with the content `bytes` whose name begins with `name`.
    fn equal_copy(&self, name: &str, bytes: &[u8]) -> Option<PathBuf> {
        let folder = self.lost_and_found();
        let names = self.vfs.list(&folder).ok()?.into_iter().map(|entry| entry.name);
        let names = names.filter(|copy| copy.to_string_lossy().starts_with(name));
        let mut paths: Vec<PathBuf> = names.map(|name| folder.join(name)).collect();
        paths.sort();
        paths.into_iter().find(|path| {
            self.vfs.stat(path).is_ok_and(|stat| stat.len == bytes.len() as u64)
                && self.vfs.read_file(path, CONFIG_LIMIT_BYTES).is_ok_and(|known| known == bytes)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mqstore_format::json::ConsumerOffsets;
    use mqstore_io::{ManualClock, SimVfs};

    use super::*;

    fn files() -> StoreFiles {
        let vfs = Arc::new(SimVfs::default());
        let files = StoreFiles::new(vfs, Arc::new(ManualClock::new(1)), Path::new("/s"));
        files.vfs.create_dir_all(&files.config()).unwrap();
        files.vfs.create_dir_all(&files.side()).unwrap();
        files
    }

    fn write(files: &StoreFiles, name: &str, text: &str) {
        let file = files.vfs.create_new(&files.config().join(name)).unwrap();
        file.write_all_at(text.as_bytes(), 0).unwrap();
    }

    #[test]
    fn entries_that_parse_count_and_the_backup_completes_them() {
        let files = files();
        let load = || files.load_config::<ConsumerOffsets>("consumerOffset.json").unwrap();
        assert!(load().into_table().is_none());
        write(&files, "consumerOffset.json", r#"{"offsetTable":{"t@g":{0:7,1:"#);
        let found = load();
        let note = found.damage().unwrap().note("used", None);
        assert!(note.contains("consumerOffset.json: damaged (JSON at byte"), "{note}");
        assert_eq!(found.into_table().unwrap().table["t@g"], [(0, 7)].into());
        write(&files, "consumerOffset.json.bak", r#"{"offsetTable":{"t@g":{0:6,1:3}}}"#);
        assert_eq!(load().into_table().unwrap().table["t@g"], [(0, 7), (1, 3)].into());
    }

    #[test]
    fn a_file_without_content_is_damaged() {
        let files = files();
        write(&files, "consumerOffset.json", "");
        let found = files.load_config::<ConsumerOffsets>("consumerOffset.json").unwrap();
        assert!(found.damage().unwrap().note("used", None).contains("the file is empty"));
    }

    #[test]
    fn each_content_is_copied_once() {
        let files = files();
        let keep = |text: &str| {
            let kept = files.keep_config(&files.config().join("topics.json"), text.as_bytes()).unwrap();
            kept.map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
        };
        assert_eq!(keep(""), None);
        for _ in 0..2 {
            assert_eq!(keep("one").unwrap(), "config_topics.json");
            assert_eq!(keep("two").unwrap(), "config_topics.json.1");
        }
        let bytes = files.vfs.read_file(&files.lost_and_found().join("config_topics.json.1"), 99).unwrap();
        assert_eq!(bytes, b"two");
    }
}
