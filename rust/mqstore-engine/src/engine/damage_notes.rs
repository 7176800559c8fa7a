//! Notes about damaged and missing files that the metadata log does not read.
//!
//! ```text
//! mqstore/state.a, state.b       the durable mark, which exists if a metadata log exists
//! mqstore/compaction.json        facts about the compaction files, which show that such a file is missing or truncated
//! compaction/position-checkpoint the offset up to which each queue is compacted
//! mqstore/paths                  the folders of the log; an open without them in its options is refused if it is damaged
//! mqstore/repairs.jsonl          the losses that repairs found; only a repair writes it
//! config/timercheck              the checkpoint of the timer; delivery writes it
//! config/delayOffset.json        the next offset of each delay level; delivery writes it
//! config/lmqConsumerOffset.json  offsets of a broker with light queues; only a repair writes it
//! ```
//!
//! `config_file` of mqstore-base has the rule for damaged files. Source: `ScheduleMessageService#load`,
//! `LmqConsumerOffsetManager`.

use std::path::{Path, PathBuf};

use mqstore_format::delays::timer::TIMER_CHECK_FIELD_BYTES;
use mqstore_format::json::{ConfigTable, ConsumerOffsets, DelayOffsets, Value, parse};
use mqstore_format::names::{DELAY_OFFSET_FILE, TIMERCHECK_FILE};

use mqstore_base::durable_mark::DurableMarkFile;
use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;
use mqstore_compaction::compaction_losses;
use mqstore_meta::newest_file;

/// Name of the file with the offsets of light queues.
pub(crate) const LMQ_OFFSET_FILE: &str = "lmqConsumerOffset.json";

/// Returns a note for each damaged or missing file. A writer passes `keep`, and gets copies of the damaged files in
/// `lost+found`.
pub(crate) fn damage_notes(files: &StoreFiles, keep: bool) -> Result<Vec<String>, StoreError> {
    let look = DamageSearch { files, keep };
    let levels =
        "the levels that parse are used; for the others, the log shows which messages were delivered";
    let mut notes = Vec::new();
    notes.extend(look.config_note::<DelayOffsets>(DELAY_OFFSET_FILE, levels)?);
    notes.extend(look.config_note::<ConsumerOffsets>(LMQ_OFFSET_FILE, "the entries that parse are used")?);
    notes.extend(look.timer_note()?);
    notes.extend(files.paths_note());
    notes.extend(look.repairs_note()?);
    notes.extend(look.mark_note());
    notes.extend(look.compaction_notes()?);
    Ok(notes)
}

struct DamageSearch<'a> {
    files: &'a StoreFiles,
    /// Whether damaged files are copied.
    keep: bool,
}

impl DamageSearch<'_> {
    fn config_note<T: ConfigTable>(&self, name: &str, used: &str) -> Result<Option<String>, StoreError> {
        let loaded = match self.files.load_config::<T>(name) {
            Ok(loaded) => loaded,
            Err(error) => return Ok(Some(error.to_string())),
        };
        let Some(damage) = loaded.damage() else { return Ok(None) };
        let copy = self.copy(&damage.path, &damage.bytes)?;
        Ok(Some(damage.note(used, copy.as_deref())))
    }

    fn timer_note(&self) -> Result<Option<String>, StoreError> {
        let path = self.files.config().join(TIMERCHECK_FILE);
        let bytes = self.files.read_config(&path)?;
        let Some(bytes) = bytes.filter(|bytes| bytes.len() < TIMER_CHECK_FIELD_BYTES) else {
            return Ok(None);
        };
        let damage = format!("it has {} bytes, not {TIMER_CHECK_FIELD_BYTES}", bytes.len());
        self.note(&path, &bytes, &damage, "the timer's queue and the log have what it contained").map(Some)
    }

    fn repairs_note(&self) -> Result<Option<String>, StoreError> {
        let path = self.files.repairs();
        let Some(text) = self.files.read_config(&path)? else { return Ok(None) };
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
        let lost = lines.filter(|line| !matches!(parse(line), Ok(Value::Object(_)))).count();
        let used = "verify reports the losses in them again; a repair writes the others again, after a copy";
        Ok((lost > 0).then(|| format!("{}: {lost} lines cannot be read; {used}", path.display())))
    }

    fn compaction_notes(&self) -> Result<Vec<String>, StoreError> {
        let losses = compaction_losses(self.files)?;
        let mut notes = Vec::new();
        if let Some((bytes, reason)) = losses.manifest {
            let used = "damage of compaction files is not noticed until the next compaction";
            notes.push(self.note(&self.files.compaction_manifest(), &bytes, &reason, used)?);
        }
        if let Some(damage) = losses.positions {
            let copy = self.copy(&damage.path, &damage.bytes)?;
            let used = "the positions that parse are used; a broker compacts the other queues again";
            notes.push(damage.note(used, copy.as_deref()));
        }
        if let Some(path) = losses.missing_positions {
            notes.push(format!(
                "{}: missing; a broker compacts the queues again, and the next compaction writes it again",
                path.display()
            ));
        }
        let lost = losses.files.into_iter();
        notes.extend(lost.map(|lost| format!("{}: {}", lost.path.display(), lost.detail)));
        Ok(notes)
    }

    /// The first open writes a mark before the metadata log gets its first file.
    fn mark_note(&self) -> Option<String> {
        let is_lost = newest_file(self.files).is_some() && DurableMarkFile::new(self.files).load().is_none();
        is_lost.then(|| {
            format!(
                "{}: the durable mark (state.a, state.b) is missing or damaged; RocketMQ's rules find the end of the \
                 log, and damage may look like a torn tail",
                self.files.side().display()
            )
        })
    }

    fn note(&self, path: &Path, bytes: &[u8], damage: &str, used: &str) -> Result<String, StoreError> {
        let kept = self.copy(path, bytes)?;
        let kept =
            kept.map_or_else(String::new, |kept| format!("; a copy of the file is in {}", kept.display()));
        Ok(format!("{}: damaged ({damage}); {used}{kept}", path.display()))
    }

    fn copy(&self, path: &Path, bytes: &[u8]) -> Result<Option<PathBuf>, StoreError> {
        if self.keep { self.files.keep_config(path, bytes) } else { Ok(None) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mqstore_io::sim::{OperationKind, SimOptions};
    use mqstore_io::{ManualClock, SimVfs, Vfs};

    use super::*;

    #[test]
    fn the_facts_about_compaction_files_are_read_once() {
        let vfs = SimVfs::new(SimOptions { trace: true, ..SimOptions::default() });
        let files =
            StoreFiles::new(Arc::new(vfs.clone()), Arc::new(ManualClock::new(1)), Path::new("/store"));
        vfs.create_dir_all(&files.staging()).unwrap();
        let path = files.compaction_manifest();
        for (text, damaged) in [(r#"{"version":1,"queues":{}}"#, 0), ("{", 1)] {
            vfs.write_atomic(&path, &files.staging().join("facts"), text.as_bytes()).unwrap();
            let before = vfs.trace().len();
            let notes = damage_notes(&files, false).unwrap();
            let calls = vfs.trace().into_iter().skip(before);
            let opens = calls.filter(|call| call.kind == OperationKind::Open && call.path == path).count();
            assert_eq!((opens, notes.len()), (1, damaged), "{text}: {notes:?}");
        }
    }
}
