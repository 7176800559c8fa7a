//! Checks that a broker can read each file of `config/`, and mqstore its delay levels.

use std::path::PathBuf;

use mqstore_format::json::{
    ConfigTable, ConsumerOffsets, DelayOffsets, SubscriptionGroups, TopicTable, parse,
};
use mqstore_io::FileKind;

use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::{DELAY_LEVELS_FILE, DelayTables, StoreFiles};

/// Checks that a broker can read `text` as its file `name`, or mqstore as its own file; otherwise returns the reason.
pub(crate) fn check_config(name: &str, text: &[u8]) -> Result<(), String> {
    match name {
        DELAY_LEVELS_FILE => DelayTables::decode(text).map(drop).ok_or_else(|| {
            "it is incomplete or changed: it is not a table of delay levels with a valid checksum".to_owned()
        }),
        "topics.json" => check_entries::<TopicTable>(text),
        "consumerOffset.json" | "lmqConsumerOffset.json" => check_entries::<ConsumerOffsets>(text),
        "delayOffset.json" => check_entries::<DelayOffsets>(text),
        "subscriptionGroup.json" => check_entries::<SubscriptionGroups>(text),
        _ if text.is_empty() => Err("the file is empty".to_owned()),
        _ => parse(text).map(drop).map_err(|error| error.to_string()),
    }
}

fn check_entries<T: ConfigTable>(text: &[u8]) -> Result<(), String> {
    let losses = T::parse_entries(text).losses;
    let Some(first) = losses.first() else { return Ok(()) };
    Err(match losses.len() {
        1 => first.to_string(),
        count => format!("{first}; and {} more losses", count - 1),
    })
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
