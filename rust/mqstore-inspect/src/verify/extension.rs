//! Checks the extension of a consume queue for the units that point to it.
//!
//! Reads `consumequeue_ext/<topic>/<queueId>/<20 digits>`; writes nothing. A queue unit with an extension holds the
//! address of an extension unit instead of the tags' hash. The extension unit must exist and hold the hash of the
//! record's tags. Its store time and bit map are only for the broker and are not checked. As in RocketMQ, unused
//! extension units may remain in the files.
//!
//! Source: `ConsumeQueueExt#get`, `ConsumeQueue#putMessagePositionInfoWrapper`.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use mqstore_format::{CqExtUnit, parse_offset_file_name, parse_queue_dir_name};
use mqstore_io::{Access, FileCache, FileKind};

use mqstore_base::store_files::StoreFiles;

/// Bytes of the first read of a unit; a bit map of the default options has 14 bytes.
const FIRST_BYTES: usize = 64;
/// Maximum bytes of a unit.
const MOST_BYTES: usize = i16::MAX as usize;
/// Maximum number of open files.
const OPEN_FILES: usize = 64;

/// The extension files of a store, by queue and first offset.
#[derive(Debug)]
pub(crate) struct Extensions {
    queues: HashMap<(String, i32), BTreeMap<u64, (PathBuf, u64)>>,
    cache: FileCache,
    /// Whether a writer has the store open: then more files may exist than were listed.
    beside: bool,
}

impl Extensions {
    /// Lists the files; `None` if the store has no extension.
    pub(in crate::verify) fn load(files: &StoreFiles) -> Option<Self> {
        let root = files.consume_queue_ext();
        files.vfs.stat(&root).ok()?;
        let beside = files.vfs.lock_holder(&files.lock()).ok().flatten().is_some();
        let list = |path: &PathBuf| files.vfs.list(path).unwrap_or_default();
        let mut queues: HashMap<(String, i32), BTreeMap<u64, (PathBuf, u64)>> = HashMap::new();
        for topic in list(&root) {
            let home = root.join(&topic.name);
            let Ok(topic) = topic.name.into_string() else { continue };
            for queue in list(&home) {
                let Some(id) = queue.name.to_str().and_then(parse_queue_dir_name) else { continue };
                let folder = home.join(&queue.name);
                let named = list(&folder).into_iter().filter(|entry| entry.stat.kind == FileKind::File);
                for file in named {
                    let Some(base) = file.name.to_str().and_then(parse_offset_file_name) else { continue };
                    let found = queues.entry((topic.clone(), id)).or_default();
                    found.insert(base, (folder.join(&file.name), file.stat.len));
                }
            }
        }
        let cache = FileCache::new(Arc::clone(&files.vfs), OPEN_FILES);
        Some(Self { queues, cache, beside })
    }

    /// Describes the problem of the unit at `offset` of a queue's extension, which should hold `tags_code`.
    pub(in crate::verify) fn problem(
        &self,
        topic: &str,
        queue_id: i32,
        offset: i64,
        tags_code: i64,
    ) -> Option<String> {
        match self.tags_code(topic, queue_id, offset) {
            Ok(found) if found == tags_code => None,
            Ok(found) => Some(format!(
                "extension offset {offset} has the tags' hash {found}; its record has {tags_code}"
            )),
            Err(_) if self.beside => None,
            Err(reason) => Some(format!("extension offset {offset}: {reason}")),
        }
    }

    fn tags_code(&self, topic: &str, queue_id: i32, offset: i64) -> Result<i64, String> {
        let nowhere = || "no file of the extension contains it".to_owned();
        let place = u64::try_from(offset).map_err(|_| nowhere())?;
        let files = self.queues.get(&(topic.to_owned(), queue_id)).ok_or_else(nowhere)?;
        let (base, (path, len)) = files.range(..=place).next_back().ok_or_else(nowhere)?;
        let at = place - base;
        if at >= *len {
            return Err(nowhere());
        }
        let file = self.cache.get(path, Access::Read).map_err(|error| error.to_string())?;
        let mut bytes = Vec::new();
        for wanted in [FIRST_BYTES, MOST_BYTES] {
            bytes.resize((len - at).min(wanted as u64) as usize, 0);
            file.read_exact_at(&mut bytes, at).map_err(|error| error.to_string())?;
            if let Ok(unit) = CqExtUnit::decode(&bytes) {
                return Ok(unit.tags_code);
            }
        }
        CqExtUnit::decode(&bytes).map(|unit| unit.tags_code).map_err(|error| error.to_string())
    }
}
