//! JSON files of `config/` that do not parse, and have a backup that does.
//!
//! RocketMQ writes `x.json.bak` before each new `x.json` and reads it when the other does not parse. Here it takes
//! the other's place, which is kept in `lost+found`.
//!
//! Source: `ConfigManager#load`, `#loadBak`.

use mqstore_format::FormatError;
use mqstore_format::json::{ConsumerOffsets, DelayOffsets, SubscriptionGroups, TopicTable, parse};
use mqstore_io::{Access, FileKind};

use super::keep;
use crate::error::{IoContext, StoreError};
use crate::files::StoreFiles;

/// Far more than any broker has.
const LIMIT_BYTES: u64 = 256 << 20;

/// Whether a broker could read `text` as its configuration file `name`.
pub(crate) fn check_config(name: &str, text: &[u8]) -> Result<(), FormatError> {
    match name {
        "topics.json" => TopicTable::parse(text).map(drop),
        "consumerOffset.json" | "lmqConsumerOffset.json" => ConsumerOffsets::parse(text).map(drop),
        "delayOffset.json" => DelayOffsets::parse(text).map(drop),
        "subscriptionGroup.json" => SubscriptionGroups::parse(text).map(drop),
        _ => parse(text).map(drop),
    }
}

/// Puts backups in the place of what does not parse, or only tells so with `dry_run`. Says what it did.
pub fn repair_config(files: &StoreFiles, dry_run: bool) -> Result<(Vec<String>, bool), StoreError> {
    let folder = files.config();
    let entries = match files.vfs.list(&folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((Vec::new(), false)),
        entries => entries.at(&folder, "listing the configuration")?,
    };
    let (mut actions, mut changed) = (Vec::new(), false);
    for entry in entries {
        let path = folder.join(&entry.name);
        let is_json = path.extension().is_some_and(|ending| ending == "json");
        if !is_json || entry.stat.kind != FileKind::File {
            continue;
        }
        let bytes = files.vfs.read_file(&path, LIMIT_BYTES).at(&path, "reading the configuration")?;
        let name = entry.name.to_string_lossy();
        if check_config(&name, &bytes).is_ok() {
            continue;
        }
        let backup = path.with_extension("json.bak");
        let good =
            files.vfs.read_file(&backup, LIMIT_BYTES).ok().filter(|bytes| check_config(&name, bytes).is_ok());
        let Some(good) = good else {
            actions.push(format!(
                "{}: does not parse, and has no backup that does; left as it is",
                path.display()
            ));
            continue;
        };
        actions.push(format!("{}: does not parse; its backup takes its place", path.display()));
        changed = true;
        if !dry_run {
            let file = files.vfs.open(&path, Access::Read).at(&path, "opening the configuration")?;
            let name = format!("config_{name}");
            keep::copy(files, &path, &*file, &name, 0..bytes.len() as u64)?;
            files.ensure_folder(&files.staging())?;
            let staged = files.staging().join("config");
            files.vfs.write_atomic(&path, &staged, &good).at(&path, "putting a backup in place")?;
        }
    }
    Ok((actions, changed))
}
