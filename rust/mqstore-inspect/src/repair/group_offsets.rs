//! Sets offsets of groups and delay levels that are after the ends of their queues back to these ends.
//!
//! Owns the changes of `config/consumerOffset.json`, `lmqConsumerOffset.json` and `delayOffset.json`, and of the
//! offsets in the metadata log. It first copies the old file to `lost+found`, then replaces it in one step. The queues
//! must be correct: the caller has rebuilt or verified them. A queue without a file has no end and changes nothing.
//!
//! Source: `ConsumerOffsetManager`, `ScheduleMessageService#correctDelayOffset`.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use mqstore_format::json::{ConsumerOffsets, DelayOffsets, Dialect, QueueOffsets};
use mqstore_format::names::DELAY_OFFSET_FILE;
use mqstore_format::{DelayLevels, SCHEDULE_TOPIC};
use mqstore_io::Access;

use mqstore_base::error::StoreError;
use mqstore_base::options::{RecoveryMode, StoreOptions};
use mqstore_base::store_files::{CONFIG_LIMIT_BYTES, StoreFiles};
use mqstore_engine::load_floors;
use mqstore_log::consume_queue::QueueSet;
use mqstore_meta::{MetaLog, is_lost, newest_file, read_log};

/// The end of each queue.
struct Ends(HashMap<(String, i32), i64>);

impl Ends {
    fn load(files: &StoreFiles, options: &StoreOptions) -> Result<Self, StoreError> {
        let queues = QueueSet::load(
            files,
            options.queue_file_bytes(),
            Access::Read,
            &load_floors(files, &mut Vec::new()),
        )?;
        queues.recover_bounds()?;
        let plain = queues.all().into_iter();
        let plain = plain.map(|queue| ((queue.topic().to_owned(), queue.queue_id()), queue.max_offset()));
        let batches = queues.batches().into_iter();
        let batches = batches.map(|queue| ((queue.topic().to_owned(), queue.queue_id()), queue.max_offset()));
        Ok(Self(plain.chain(batches).collect()))
    }

    /// Sets `offset` back if it is after the end of the queue; returns whether it was.
    fn clamp_offset(&self, topic: &str, queue_id: i32, offset: &mut i64) -> bool {
        let end = self.0.get(&(topic.to_owned(), queue_id)).filter(|end| *offset > **end);
        end.inspect(|end| *offset = **end).is_some()
    }

    /// Same as [`Self::clamp_offset`] for all offsets of a table; returns how many it set back.
    fn clamp_offsets(&self, table: &mut BTreeMap<String, QueueOffsets>) -> u32 {
        let mut count = 0;
        for (key, queues) in table {
            let Some((topic, _)) = ConsumerOffsets::split_key(key) else { continue };
            for (queue_id, offset) in queues {
                count += u32::from(self.clamp_offset(topic, *queue_id, offset));
            }
        }
        count
    }
}

/// Sets back the offsets after the ends of their queues, and returns the steps in words.
pub(crate) fn repair_offsets(files: &StoreFiles, options: &StoreOptions) -> Result<Vec<String>, StoreError> {
    let ends = Ends::load(files, options)?;
    let mut actions = Vec::new();
    for name in ["consumerOffset.json", "lmqConsumerOffset.json"] {
        let path = files.config().join(name);
        let text = files.vfs.read_file(&path, CONFIG_LIMIT_BYTES).unwrap_or_default();
        let mut offsets = ConsumerOffsets::parse(&text).unwrap_or_default();
        let count = ends.clamp_offsets(&mut offsets.table);
        if name == "consumerOffset.json" && (newest_file(files).is_some() || is_lost(files)) {
            actions.extend(repair_meta(files, &ends, (&path, count))?);
        } else {
            let write = || offsets.to_json(Dialect::default());
            actions.extend(replace(files, &path, count, write)?);
        }
    }
    let path = files.config().join(DELAY_OFFSET_FILE);
    let text = files.vfs.read_file(&path, CONFIG_LIMIT_BYTES).unwrap_or_default();
    if let Ok(mut delays) = DelayOffsets::parse(&text) {
        let mut count = 0;
        for (level, offset) in &mut delays.table {
            count += u32::from(ends.clamp_offset(SCHEDULE_TOPIC, DelayLevels::queue_id(*level), offset));
        }
        let write = || delays.to_json(Dialect::default());
        actions.extend(replace(files, &path, count, write)?);
    }
    Ok(actions)
}

/// Makes the metadata log openable and sets back its offsets that are after the ends of their queues. `json` is the
/// file that the metadata log keeps equal, and how many of its offsets are wrong. It is rewritten if any are.
fn repair_meta(files: &StoreFiles, ends: &Ends, json: (&Path, u32)) -> Result<Vec<String>, StoreError> {
    let mut actions = Vec::new();
    let log_path = newest_file(files).unwrap_or_default();
    let mut table = read_log(files, &mut Vec::new())?.into_offsets();
    let count = ends.clamp_offsets(&mut table);
    let found = MetaLog::find(files, RecoveryMode::Salvage)?;
    let log = MetaLog::open(files, found, &mut actions)?;
    let end = |topic: &str, queue_id| ends.0.get(&(topic.to_owned(), queue_id)).copied().unwrap_or(i64::MAX);
    log.clamp_to_queues(end)?;
    actions.extend((count > 0).then(|| describe_set_back(&log_path, count)));
    let (path, wrong) = json;
    if wrong > 0 {
        backup_config(files, path)?;
        log.export_offsets()?;
        actions.push(describe_set_back(path, wrong));
    }
    log.close()?;
    Ok(actions)
}

/// Describes for people the correction of `count` offsets of the file at `path`.
pub(crate) fn describe_set_back(path: &Path, count: u32) -> String {
    format!("{}: {count} offsets after the end of their queue set back to it", path.display())
}

fn replace(
    files: &StoreFiles,
    path: &Path,
    count: u32,
    text: impl FnOnce() -> String,
) -> Result<Option<String>, StoreError> {
    if count == 0 {
        return Ok(None);
    }
    backup_config(files, path)?;
    files.replace_file(path, text().as_bytes(), "setting offsets back")?;
    Ok(Some(describe_set_back(path, count)))
}

/// Copies a configuration file unchanged to `lost+found`.
fn backup_config(files: &StoreFiles, path: &Path) -> Result<(), StoreError> {
    let bytes = files.read_config(path)?.unwrap_or_default();
    files.keep_config(path, &bytes).map(drop)
}
