//! Derives queues and index from an existing log.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use mqstore::Store;
use mqstore::format::record::MAGIC_V1;
use mqstore::format::{CqUnit, IndexGeometry, java_hash};
use mqstore::inspect::StoreFiles;
use mqstore::io::{Access, OsVfs, SystemClock};
use mqstore::options::OpenMode;
use mqstore_base::topic_floors::TopicFloors;
use mqstore_log::commit_log::SegmentList;
use mqstore_log::consume_queue::QueueSet;
use mqstore_log::dispatch::{DispatchRules, Dispatcher};
use mqstore_log::index::IndexSet;
use serde_json::{Value, json};

use crate::Failure;
use crate::ours::{open_store, stored};
use crate::spec::Spec;

/// An open of a store without queues and index, until they exist again.
pub(crate) fn open(spec: &Spec) -> Result<Value, Failure> {
    let begin = Instant::now();
    let store = open_store(spec, OpenMode::ReadWrite)?;
    // Waits for the queues.
    store.stats()?;
    let seconds = begin.elapsed().as_secs_f64();
    result(&store, seconds)
}

/// The work of `mqstore rebuild`, syncs included.
pub(crate) fn rebuild(spec: &Spec) -> Result<Value, Failure> {
    let files = files(spec);
    let begin = Instant::now();
    mqstore::inspect::rebuild(&files, &spec.store_options()?, false, &mut |_| Ok(()))?;
    let seconds = begin.elapsed().as_secs_f64();
    result(&open_store(spec, OpenMode::ReadWrite)?, seconds)
}

fn result(store: &Store, seconds: f64) -> Result<Value, Failure> {
    let stored = stored(store)?;
    store.close()?;
    Ok(json!({
        "seconds": seconds, "messages": stored, "stored": stored, "refused": 0, "taken_ms": seconds * 1e3,
    }))
}

fn files(spec: &Spec) -> StoreFiles {
    StoreFiles::new(Arc::new(OsVfs::new()), Arc::new(SystemClock::new()), &spec.path)
}

/// The dispatcher alone, with the given number of workers, into files outside of the store.
pub(crate) fn dispatch(spec: &Spec) -> Result<Value, Failure> {
    let list = Arc::new(SegmentList::load(&files(spec))?);
    let folder = tempfile::tempdir_in(spec.path.parent().unwrap_or(&spec.path))?;
    let derived = StoreFiles::new(Arc::new(OsVfs::new()), Arc::new(SystemClock::new()), folder.path());
    derived.ensure_folder(&derived.staging())?;
    let queues = Arc::new(QueueSet::load(&derived, 6_000_000, Access::ReadWrite, &TopicFloors::default())?);
    let index = Arc::new(IndexSet::load(&derived, None, IndexGeometry::default(), Access::ReadWrite)?);
    let rules = DispatchRules { check_place: spec.check_crc, ..DispatchRules::default() };
    let index_from = if spec.index { 0 } else { u64::MAX };
    let dispatcher = Dispatcher::new(&derived, Arc::clone(&list), queues, index, rules, 0, index_from);
    for segment in list.segments() {
        // As in the process that wrote the log, and as in the limit, every page is present.
        let region = segment.region()?;
        for page in (0..region.len()).step_by(4096) {
            black_box(region.view(page, 1)?.first());
        }
    }
    dispatcher.look_at_maps();
    let begin = Instant::now();
    dispatcher.run_with_helpers((spec.threads - 1) as u32, &list, spec.log_end, &mut |_| Ok(()))?;
    let seconds = begin.elapsed().as_secs_f64();
    let records = dispatcher.records();
    Ok(json!({ "seconds": seconds, "messages": records, "stored": records, "refused": 0 }))
}

/// The machine's limit for queue entries: the log's bytes in memory, the checksum of each body, the hash of
/// its tag, 20 bytes for each record, and nothing else.
pub(crate) fn bare(spec: &Spec) -> Result<Value, Failure> {
    let list = SegmentList::load(&files(spec))?;
    let mut logs = Vec::new();
    for segment in list.segments() {
        let filled = spec.log_end.saturating_sub(segment.base_offset()).min(segment.len());
        let mut log = std::fs::read(segment.path())?;
        log.truncate(filled as usize);
        logs.push((segment.base_offset(), log));
    }
    let mut units = vec![1_u8; 20 << 20];
    let begin = Instant::now();
    let mut records = 0;
    for (base, log) in &logs {
        records += bare_segment(*base, log, spec.check_crc, &mut units);
    }
    let seconds = begin.elapsed().as_secs_f64();
    black_box(&units);
    Ok(json!({ "seconds": seconds, "messages": records, "stored": records, "refused": 0 }))
}

/// Offset of the body's length in a record with IPv4 hosts. The body follows it.
const BODY_LEN_AT: usize = 84;

fn bare_segment(base: u64, log: &[u8], check_crc: bool, units: &mut [u8]) -> u64 {
    let (mut at, mut records) = (0, 0);
    while let Some(size) = number(log, at).filter(|size| *size > 0) {
        let Some(record) = log.get(at..at + size).filter(|_| number(log, at + 4) == Some(MAGIC_V1 as usize))
        else {
            break;
        };
        let Some(unit) = bare_unit(base + at as u64, record, check_crc) else { break };
        let place = records as usize * 20 % units.len();
        if let Some(place) = units.get_mut(place..place + 20) {
            place.copy_from_slice(&unit.encode());
        }
        records += 1;
        at += size;
    }
    records
}

fn bare_unit(offset: u64, record: &[u8], check_crc: bool) -> Option<CqUnit> {
    let body_len = number(record, BODY_LEN_AT)?;
    let body = record.get(BODY_LEN_AT + 4..BODY_LEN_AT + 4 + body_len)?;
    if check_crc && Some((crc32fast::hash(body) & 0x7fff_ffff) as usize) != number(record, 8) {
        return None;
    }
    let topic_at = BODY_LEN_AT + 4 + body_len;
    let properties = record.get(topic_at + 1 + usize::from(*record.get(topic_at)?) + 2..)?;
    let tags_at = properties.windows(5).position(|name| name == b"TAGS\x01")? + 5;
    let tags = properties.get(tags_at..)?.split(|byte| *byte == 2).next()?;
    let tags_code = i64::from(java_hash(std::str::from_utf8(tags).ok()?));
    Some(CqUnit { physical_offset: offset as i64, size: record.len() as i32, tags_code })
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let (number, _) = bytes.get(at..)?.split_first_chunk::<4>()?;
    Some(u32::from_be_bytes(*number) as usize)
}
