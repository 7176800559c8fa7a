//! Repairs the JSON files of `config/` that do not parse from their backups, and the tables of delay levels.
//!
//! RocketMQ writes `x.json.bak` before each new `x.json`, and reads it if `x.json` does not parse. If the backup
//! parses, the repair replaces the damaged file with it and copies that file to `lost+found`. Otherwise it moves only
//! the file there, and RocketMQ starts without it. The tables of delay levels are mqstore's and have no backup.
//!
//! Source: `ConfigManager#load`, `#loadBak`.

use std::path::PathBuf;

use mqstore_format::json::{ConsumerOffsets, DelayOffsets, SubscriptionGroups, TopicTable, parse};
use mqstore_io::vfs::parent_dir;
use mqstore_io::{Access, FileKind, switch};

use super::backup;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::{CONFIG_LIMIT_BYTES, DELAY_LEVELS_FILE, DelayTables, StoreFiles};

/// Checks that a broker can read `text` as its file `name`, or mqstore as its own file; otherwise returns the reason.
pub(crate) fn check_config(name: &str, text: &[u8]) -> Result<(), String> {
    let checked = match name {
        DELAY_LEVELS_FILE => {
            return DelayTables::decode(text).map(drop).ok_or_else(|| {
                "it is incomplete or changed: it is not a table of delay levels with a valid checksum"
                    .to_owned()
            });
        }
        "topics.json" => TopicTable::parse(text).map(drop),
        "consumerOffset.json" | "lmqConsumerOffset.json" => ConsumerOffsets::parse(text).map(drop),
        "delayOffset.json" => DelayOffsets::parse(text).map(drop),
        "subscriptionGroup.json" => SubscriptionGroups::parse(text).map(drop),
        _ => parse(text).map(drop),
    };
    checked.map_err(|error| error.to_string())
}

/// Returns the configuration files: paths and names.
pub(crate) fn config_files(files: &StoreFiles) -> Result<Vec<(PathBuf, String)>, StoreError> {
    let mut found = json_files(files)?;
    let delay_levels = files.delay_levels_file();
    if !files.is_bare_log() && files.vfs.stat(&delay_levels).is_ok() {
        found.push((delay_levels, DELAY_LEVELS_FILE.to_owned()));
    }
    Ok(found)
}

fn json_files(files: &StoreFiles) -> Result<Vec<(PathBuf, String)>, StoreError> {
    let folder = files.config();
    let entries = match files.vfs.list(&folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.at(&folder, "listing the configuration")?,
    };
    let found = entries.into_iter().filter(|entry| entry.stat.kind == FileKind::File);
    let found = found.map(|entry| (folder.join(&entry.name), entry.name.to_string_lossy().into_owned()));
    Ok(found.filter(|(path, _)| path.extension().is_some_and(|ending| ending == "json")).collect())
}

/// Replaces files that do not parse by their backups, and moves away those without one. With `dry_run` it changes
/// nothing. Returns the steps in words, and whether there were any.
pub(crate) fn repair_config(files: &StoreFiles, dry_run: bool) -> Result<(Vec<String>, bool), StoreError> {
    let (mut actions, mut changed) = (Vec::new(), false);
    for (path, name) in config_files(files)? {
        let bytes = files.vfs.read_file(&path, CONFIG_LIMIT_BYTES).at(&path, "reading the configuration")?;
        if check_config(&name, &bytes).is_ok() {
            continue;
        }
        let backup = path.with_extension("json.bak");
        let good = files
            .vfs
            .read_file(&backup, CONFIG_LIMIT_BYTES)
            .ok()
            .filter(|bytes| check_config(&name, bytes).is_ok());
        let Some(good) = good else {
            actions.push(format!(
                "{}: does not parse and has no backup that parses; moved to lost+found",
                path.display()
            ));
            changed = true;
            if !dry_run {
                backup::quarantine_file(files, &path, &mut |_| Ok(()))?;
                let folder = parent_dir(&path);
                switch::step("repair.sync_config_aside", || files.vfs.sync_dir(folder))
                    .at(folder, "syncing a folder")?;
            }
            continue;
        };
        actions.push(format!("{}: does not parse; replaced with its backup", path.display()));
        changed = true;
        if !dry_run {
            let file = files.vfs.open(&path, Access::Read).at(&path, "opening the configuration")?;
            let name = format!("config_{name}");
            backup::copy(files, &path, &*file, &name, 0..bytes.len() as u64, &mut |_| Ok(()))?;
            files.ensure_folder(&files.staging())?;
            let staged = files.staging().join("config");
            files.vfs.write_atomic(&path, &staged, &good).at(&path, "putting a backup in place")?;
        }
    }
    Ok((actions, changed))
}
