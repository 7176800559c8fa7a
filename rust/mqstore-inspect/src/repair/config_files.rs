//! Repairs the JSON files of `config/` that do not parse completely, and the tables of delay levels.
//!
//! RocketMQ writes `x.json.bak` before each new `x.json`, and reads it if `x.json` does not parse. A repair first
//! copies the damaged file to `lost+found`. Then it writes every entry that parses, completed with those of the backup.
//! Files that the metadata log knows are written from the log. A file of another kind is replaced with its backup, or
//! moved away if the backup does not parse either. The tables of delay levels are mqstore's and have no backup.
//!
//! Source: `ConfigManager#load`, `#loadBak`.

use std::path::Path;

use mqstore_format::json::{
    ConfigTable, ConsumerOffsets, DelayOffsets, Dialect, SubscriptionGroups, TopicTable,
};
use mqstore_io::switch;
use mqstore_io::vfs::parent_dir;

use super::backup;
use crate::verify::config_check::{check_config, config_files};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::options::RecoveryMode;
use mqstore_base::store_files::{CONFIG_LIMIT_BYTES, StoreFiles};
use mqstore_compaction::repair_positions;
use mqstore_meta::{MetaLog, is_lost, newest_file};

/// The files that the metadata log knows.
const KNOWN_TO_LOG: [&str; 3] = ["topics.json", "subscriptionGroup.json", "consumerOffset.json"];

/// The entries that parse in a damaged file and its backup.
struct EntriesLeft {
    text: String,
    /// Whether the file itself has any of them.
    of_file: bool,
}

/// Returns the entries that parse in the file `name` and its backup; `None` for a file of another kind, or if no entry
/// parses.
fn entries_left(files: &StoreFiles, name: &str) -> Result<Option<EntriesLeft>, StoreError> {
    fn left<T: ConfigTable>(
        files: &StoreFiles,
        name: &str,
        text: impl Fn(&T, Dialect) -> String,
    ) -> Result<Option<EntriesLeft>, StoreError> {
        let loaded = files.load_config::<T>(name)?;
        let of_file = loaded.file.as_ref().is_some_and(|file| file.table.has_entries());
        let table = loaded.into_table().filter(T::has_entries);
        Ok(table.map(|table| EntriesLeft { text: text(&table, Dialect::default()), of_file }))
    }
    match name {
        "topics.json" => left::<TopicTable>(files, name, TopicTable::to_json),
        "consumerOffset.json" | "lmqConsumerOffset.json" => {
            left::<ConsumerOffsets>(files, name, ConsumerOffsets::to_json)
        }
        "delayOffset.json" => left::<DelayOffsets>(files, name, DelayOffsets::to_json),
        "subscriptionGroup.json" => left::<SubscriptionGroups>(files, name, SubscriptionGroups::to_json),
        _ => Ok(None),
    }
}

/// Writes the entries that parse of damaged files, after a copy; see the module's text. With `dry_run` it changes
/// nothing. Returns the steps in words, and whether there were any.
pub(crate) fn repair_config(files: &StoreFiles, dry_run: bool) -> Result<(Vec<String>, bool), StoreError> {
    let (mut actions, mut from_log) = (Vec::new(), false);
    for (path, name) in config_files(files)? {
        let bytes = files.vfs.read_file(&path, CONFIG_LIMIT_BYTES).at(&path, "reading the configuration")?;
        if check_config(&name, &bytes).is_ok() {
            continue;
        }
        let action = if KNOWN_TO_LOG.contains(&&*name) && (newest_file(files).is_some() || is_lost(files)) {
            from_log = true;
            "written again from mqstore/meta, after a copy"
        } else {
            repair_file(files, &path, &name, &bytes, dry_run)?
        };
        actions.push(format!("{}: does not parse; {action}", path.display()));
    }
    if from_log && !dry_run {
        let found = MetaLog::find(files, RecoveryMode::Salvage)?;
        // The action says what the notes of this open say.
        MetaLog::open(files, found, &mut Vec::new())?.close()?;
    }
    actions.extend(repair_positions(files, dry_run)?);
    let changed = !actions.is_empty();
    Ok((actions, changed))
}

/// Repairs one file, and returns the step in words.
fn repair_file(
    files: &StoreFiles,
    path: &Path,
    name: &str,
    bytes: &[u8],
    dry_run: bool,
) -> Result<&'static str, StoreError> {
    let backup = files.vfs.read_file(&path.with_extension("json.bak"), CONFIG_LIMIT_BYTES).ok();
    let backup = backup.filter(|bytes| check_config(name, bytes).is_ok());
    let left = entries_left(files, name)?;
    let of_file = left.as_ref().is_some_and(|left| left.of_file);
    let (text, action) = match (left, backup) {
        (_, Some(backup)) if !of_file => (backup, "replaced with its backup, after a copy"),
        (Some(left), _) => (left.text.into_bytes(), "the entries that parse are written again, after a copy"),
        (None, _) => {
            if !dry_run {
                backup::quarantine_file(files, path, &mut |_| Ok(()))?;
                let folder = parent_dir(path);
                switch::step("repair.sync_config_aside", || files.vfs.sync_dir(folder))
                    .at(folder, "syncing a folder")?;
            }
            return Ok("no entry and no backup parses; moved to lost+found");
        }
    };
    if !dry_run {
        files.keep_config(path, bytes)?;
        files.replace_file(path, &text, "writing the entries that parse")?;
    }
    Ok(action)
}
