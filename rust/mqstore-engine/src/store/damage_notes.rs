//! Notes about damaged and missing files that the metadata log does not read.
//!
//! ```text
//! mqstore/compaction.json        facts about the compaction files, which show that such a file is missing or truncated
//! config/delayOffset.json        the next offset of each delay level; delivery writes it
//! config/lmqConsumerOffset.json  offsets of a broker with light queues; only a repair writes it
//! ```
//!
//! `config_file` of mqstore-base has the rule for damaged files. Source: `ScheduleMessageService#load`,
//! `LmqConsumerOffsetManager`.

use mqstore_format::json::{ConfigTable, ConsumerOffsets, DelayOffsets};
use mqstore_format::names::DELAY_OFFSET_FILE;

use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;
use mqstore_compaction::{damaged_manifest, incomplete_files};

/// Name of the file with the offsets of light queues.
pub(crate) const LMQ_OFFSET_FILE: &str = "lmqConsumerOffset.json";

/// Returns a note for each damaged or missing file. A writer passes `keep`, and gets copies of the damaged files in
/// `lost+found`.
pub(crate) fn damage_notes(files: &StoreFiles, keep: bool) -> Result<Vec<String>, StoreError> {
    let levels =
        "the levels that parse are used; for the others, the log shows which messages were delivered";
    let mut notes = Vec::new();
    notes.extend(note_of::<DelayOffsets>(files, DELAY_OFFSET_FILE, levels, keep)?);
    notes.extend(note_of::<ConsumerOffsets>(
        files,
        LMQ_OFFSET_FILE,
        "the entries that parse are used",
        keep,
    )?);
    if let Some((bytes, reason)) = damaged_manifest(files)? {
        let path = files.compaction_manifest();
        let copy = if keep { files.keep_config(&path, &bytes)? } else { None };
        let kept =
            copy.map_or_else(String::new, |copy| format!("; a copy of the file is in {}", copy.display()));
        notes.push(format!(
            "{}: damaged ({reason}); damage of compaction files is not noticed until the next compaction{kept}",
            path.display()
        ));
    }
    for lost in incomplete_files(files)? {
        notes.push(format!("{}: {}", lost.path.display(), lost.detail));
    }
    Ok(notes)
}

fn note_of<T: ConfigTable>(
    files: &StoreFiles,
    name: &str,
    used: &str,
    keep: bool,
) -> Result<Option<String>, StoreError> {
    let loaded = match files.load_config::<T>(name) {
        Ok(loaded) => loaded,
        Err(error) => return Ok(Some(error.to_string())),
    };
    let Some(damage) = loaded.damage() else { return Ok(None) };
    let copy = if keep { files.keep_config(&damage.path, &damage.bytes)? } else { None };
    Ok(Some(damage.note(used, copy.as_deref())))
}
