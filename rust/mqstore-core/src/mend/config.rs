//! JSON files of `config/` that do not parse, and have a backup that does.
//!
//! RocketMQ writes `x.json.bak` before each new `x.json` and reads it when the other does not parse. Here it takes
//! the other's place, which is kept in `lost+found`.
//!
//! Source: `ConfigManager#load`, `#loadBak`.

use mqstore_format::json::parse;
use mqstore_io::{Access, FileKind};

use super::keep;
use crate::error::{IoContext, StoreError};
use crate::files::StoreFiles;

/// Far more than any broker has.
const LIMIT_BYTES: u64 = 256 << 20;

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
        if parse(&bytes).is_ok() {
            continue;
        }
        let backup = path.with_extension("json.bak");
        let good = files.vfs.read_file(&backup, LIMIT_BYTES).ok().filter(|bytes| parse(bytes).is_ok());
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
            let name = format!("config_{}", entry.name.to_string_lossy());
            keep::copy(files, &path, &*file, &name, 0..bytes.len() as u64)?;
            files.ensure_folder(&files.staging())?;
            let staged = files.staging().join("config");
            files.vfs.write_atomic(&path, &staged, &good).at(&path, "putting a backup in place")?;
        }
    }
    Ok((actions, changed))
}
