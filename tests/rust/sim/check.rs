//! The oracle: the required state of a store after any crash.

use std::collections::BTreeMap;

use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_base::options::{OpenMode, StoreOptions, Visibility};
use mqstore_engine::Store;
use mqstore_format::IndexGeometry;
use mqstore_io::{Access, SimVfs, Vfs};
use mqstore_log::index::IndexSet;

use crate::workload::{KEYS, Need, QUEUES, Rec, World, append, explain, root};

/// The number of `records` before the first segment of the log.
pub(crate) fn gone(store: &Store, records: &[Rec]) -> Result<usize, String> {
    let min = store.stats().map_err(explain)?.log_min_offset;
    let below = |rec: &&Rec| rec.placed.as_ref().is_some_and(|placed| placed.commit_log_offset < min);
    Ok(records.iter().take_while(below).count())
}

/// Checks the log of a writer: it must be a prefix of `records`, except the deleted ones, with the content of
/// the model. Returns its length, the deleted records included.
pub(crate) fn compare_log(store: &Store, records: &[Rec]) -> Result<usize, String> {
    let mut count = gone(store, records)?;
    let mut cursor = store.log().scan(None).map_err(explain)?;
    loop {
        let batch = cursor.next_batch(64).map_err(explain)?;
        if batch.is_empty() {
            return Ok(count);
        }
        for found in &batch {
            let wanted = records.get(count).ok_or_else(|| format!("record {count} was never appended"))?;
            compare(found, wanted).map_err(|what| format!("record {count} of the log: {what}"))?;
            count += 1;
        }
    }
}

/// Checks a log that was not recovered, as a reader sees it: records of the model in order, without a gap up
/// to `least`. After that, the reader skips ranges that a crash tore. Returns the number of records before
/// the first gap and the number of all records.
pub(crate) fn compare_unrecovered(
    store: &Store,
    records: &[Rec],
    least: usize,
) -> Result<(usize, usize), String> {
    let deleted = gone(store, records)?;
    let mut cursor = store.log().scan(None).map_err(explain)?;
    let (mut next, mut found, mut whole) = (deleted, deleted, None);
    loop {
        let batch = cursor.next_batch(64).map_err(explain)?;
        if batch.is_empty() {
            return Ok((whole.unwrap_or(next), found));
        }
        for record in &batch {
            let mut rest = records.iter().enumerate().skip(next);
            let Some((at, _)) = rest.find(|(_, wanted)| compare(record, wanted).is_ok()) else {
                return Err(format!("a record at {} that was never appended", record.commit_log_offset));
            };
            if at > next {
                whole.get_or_insert(next);
            }
            if next < least && at > next {
                return Err(format!("record {next} is missing, and {least} must be there"));
            }
            next = at + 1;
            found += 1;
        }
    }
}

fn compare(found: &StoredRecord, wanted: &Rec) -> Result<(), String> {
    let view = found.view().map_err(explain)?;
    if (view.topic, view.queue_id) != wanted.queue() {
        return Err(format!("is one of {}/{}", view.topic, view.queue_id));
    }
    if view.body != wanted.body || view.keys() != Some(wanted.key().as_str()) {
        return Err(format!("has another body or key than record {}", wanted.number));
    }
    // Properties end with a separator, so a zero byte there was never written.
    if found.bytes().last() == Some(&0) {
        return Err(format!("ends in a zero, and record {} does not", wanted.number));
    }
    if let Some(placed) = &wanted.placed {
        let same = view.queue_offset == placed.queue_offset
            && view.unique_key() == Some(placed.unique_id.as_str())
            && found.commit_log_offset == placed.commit_log_offset
            && view.store_timestamp == placed.store_timestamp_ms
            && found.bytes().len() == placed.size as usize;
        if !same {
            return Err(format!("is not where or what {placed:?} said"));
        }
    }
    Ok(())
}

/// Checks that queues and index agree with the log. Deleted `records` are left out.
pub(crate) fn compare_derived(store: &Store, records: &[Rec]) -> Result<(), String> {
    let gone = gone(store, records)?;
    for (topic, queue_id) in QUEUES {
        let (below, rest) = records.split_at(gone.min(records.len()));
        let of_it = |rec: &&Rec| rec.queue() == (topic, queue_id);
        let first = below.iter().filter(of_it).count() as i64;
        let wanted: Vec<&Rec> = rest.iter().filter(of_it).collect();
        let found = match store.read(topic, queue_id, None, None, None) {
            Ok(mut cursor) => cursor.next_batch(usize::MAX).map_err(explain)?,
            // The crash may have come before the topic was created.
            Err(_) if wanted.is_empty() => continue,
            Err(error) => return Err(error.to_string()),
        };
        if found.len() != wanted.len() {
            let counts = (found.len(), wanted.len());
            return Err(format!("queue {topic}/{queue_id} has {} of {} records", counts.0, counts.1));
        }
        if first > 0 {
            queue_begins_at(store, topic, queue_id, first, first + wanted.len() as i64)?;
        }
        for ((found, wanted), offset) in found.iter().zip(wanted).zip(first..) {
            let what = |what| format!("offset {offset} of {topic}/{queue_id}: {what}");
            compare(found, wanted).map_err(what)?;
            if found.queue_offset != offset {
                return Err(what(format!("has queue offset {}", found.queue_offset)));
            }
        }
    }
    compare_keys(store, records.get(gone..).unwrap_or_default())
}

/// Checks a queue with deleted messages: it begins after them, has the same end as before, and a read of a
/// deleted offset raises the right error.
fn queue_begins_at(store: &Store, topic: &str, queue_id: i32, first: i64, end: i64) -> Result<(), String> {
    let told = |what: String| Err(format!("queue {topic}/{queue_id}, of which {first} are deleted: {what}"));
    let bounds = store.queues(topic).map_err(explain)?;
    let bounds = bounds.iter().find(|queue| queue.queue_id == queue_id);
    match bounds.map(|queue| (queue.min_offset, queue.max_offset)) {
        Some(found) if found == (first, end) => {}
        found => return told(format!("it reaches from and to {found:?}, not {:?}", (first, end))),
    }
    match store.read(topic, queue_id, Some(first - 1), None, None).and_then(|mut cursor| cursor.next_batch(1))
    {
        Err(StoreError::OffsetOutOfRange { min_offset, .. }) if min_offset == first => Ok(()),
        Err(error) => told(format!("reading what is deleted fails otherwise: {error}")),
        Ok(found) => told(format!("reading what is deleted finds {} records", found.len())),
    }
}

fn compare_keys(store: &Store, records: &[Rec]) -> Result<(), String> {
    let mut wanted: BTreeMap<(&str, String), Vec<&Rec>> = BTreeMap::new();
    for rec in records {
        wanted.entry((rec.queue().0, rec.key())).or_default().push(rec);
    }
    for number in 0..KEYS {
        for topic in ["a", "b"] {
            wanted.entry((topic, format!("k{number}"))).or_default();
        }
    }
    for ((topic, key), wanted) in wanted {
        let found = match store.lookup(topic, &key, None, None, None) {
            // No message of the topic survived.
            Err(StoreError::TopicNotFound { .. }) => Vec::new(),
            cursor => cursor.and_then(|mut cursor| cursor.next_batch(usize::MAX)).map_err(explain)?,
        };
        if found.len() != wanted.len() {
            return Err(format!("key {key} of {topic} finds {} of {} records", found.len(), wanted.len()));
        }
        for (found, wanted) in found.iter().zip(wanted) {
            compare(found, wanted).map_err(|what| format!("key {key} of {topic}: {what}"))?;
        }
    }
    Ok(())
}

/// A store that was opened for writing after a crash.
pub(crate) struct Recovered {
    pub(crate) world: World,
    pub(crate) store: Store,
    /// The number of records in the store.
    pub(crate) count: usize,
    /// The log offset of its first segment.
    pub(crate) min: u64,
}

/// Opens `image` for writing and compares everything in it with the model.
pub(crate) fn recover(
    image: &SimVfs,
    options: &StoreOptions,
    records: &[Rec],
    need: Need,
) -> Result<Recovered, String> {
    let world = World::on(image.clone());
    // A creation that was interrupted leaves nothing, or a directory that opens as an empty store. The
    // exception is a store with its log in another folder that does not exist yet.
    let made = std::iter::once(root()).chain(options.commit_log_paths.clone());
    let made = made.into_iter().all(|folder| image.stat(&folder).is_ok());
    let mode = if made { OpenMode::ReadWrite } else { OpenMode::Create };
    let store = world.open(mode, options).map_err(|error| format!("cannot be opened: {error}"))?;
    let count = compare_log(&store, records)?;
    if count < need.least || count > need.most {
        return Err(format!("{count} records are there; {} to {} may be", need.least, need.most));
    }
    let min = store.stats().map_err(explain)?.log_min_offset;
    if !(need.min_from..=need.min_to).contains(&min) {
        let (from, to) = (need.min_from, need.min_to);
        return Err(format!("the log begins at {min}; it may from {from} to {to}"));
    }
    let held = records.get(..count).unwrap_or_default();
    compare_derived(&store, held)?;
    check_index_files(&world, options)?;
    Ok(Recovered { world, store, count, min })
}

/// Checks every index file of an open store on its own, as verify does: headers, and chains that reach each entry.
fn check_index_files(world: &World, options: &StoreOptions) -> Result<(), String> {
    let geometry = IndexGeometry { slots: options.index_slots, entries: options.index_entries };
    let index = IndexSet::load(&world.files(), Some(geometry), geometry, Access::Read).map_err(explain)?;
    match index.wrong_files(&index.finished_files(false)).map_err(explain)?.as_slice() {
        [] => Ok(()),
        wrong => Err(format!("verify would report the index: {wrong:?}")),
    }
}

impl Recovered {
    /// Appends three records and reads all. Returns the new model.
    pub(crate) fn append_three(&self, records: &[Rec], options: &StoreOptions) -> Result<Vec<Rec>, String> {
        let mut model: Vec<Rec> = records.get(..self.count).unwrap_or_default().to_vec();
        for number in self.count..self.count + 3 {
            // The bodies differ from the lost ones, so that an old record that comes back is noticed.
            let mut rec = [Rec::new(number, 100 + number % 7, 0)];
            rec[0].body.iter_mut().for_each(|byte| *byte = byte.rotate_left(3) | 1);
            append(&self.store, &mut rec, false).map_err(|error| format!("appending again: {error}"))?;
            model.extend(rec);
        }
        if options.visibility == Visibility::Durable {
            self.store.flush().map_err(|error| format!("a flush after appending again: {error}"))?;
        }
        let count = compare_log(&self.store, &model).map_err(|what| format!("after appending: {what}"))?;
        if count != model.len() {
            return Err(format!("after appending three there are {count} of {} records", model.len()));
        }
        compare_derived(&self.store, &model).map_err(|what| format!("after appending: {what}"))?;
        Ok(model)
    }

    /// The disk at this moment, after the process died. The store is never closed on it.
    pub(crate) fn kill(&self) -> Result<SimVfs, String> {
        self.world.vfs.kill().map_err(explain)
    }
}

impl Drop for Recovered {
    fn drop(&mut self) {
        abandon(&self.store);
    }
}

/// Ends a store as a kill does: no step of a close runs.
pub(crate) fn abandon(store: &Store) {
    store.disown_in_child();
}

/// The contents of the files in `mqstore/lost+found`.
pub(crate) fn lost_and_found(image: &SimVfs) -> Vec<Vec<u8>> {
    let folder = root().join("mqstore/lost+found");
    let entries = image.list(&folder).unwrap_or_default();
    entries.iter().filter_map(|entry| image.read_file(&folder.join(&entry.name), 1 << 20).ok()).collect()
}
