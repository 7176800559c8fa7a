//! The bodies of the fuzz targets: one function for each decoder of `mqstore-format`, and one for whole
//! stores.
//!
//! Each function takes any bytes and must return. It must not panic, loop for ever, or take more memory than
//! the size of the input justifies. Every decoded value must also survive a round trip: encoded again it
//! gives the same bytes, or, if a format has several forms, it decodes to the same value. `run.sh` runs the
//! functions under libFuzzer. `cargo test` replays the seeds.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Once};

use bytes::Bytes;
use mqstore_archive::file::{Footer, bloom_filters, groups_with_key, paged_rows, whole_group};
use mqstore_archive::records::ArchiveFile;
use mqstore_format::json;
use mqstore_format::json::{CompactionPositions, ConsumerOffsets, DelayOffsets, Dialect, SubscriptionGroups, TopicTable, Value};
use mqstore_format::{BatchCqUnit, BatchItem, Checkpoint, Compression, CqExtUnit, CqUnit, CrcCheck, DelayLevels, END_MARKER, FormatError, HiddenPlaceholder, Host, IndexEntry, IndexGeometry, IndexHeader, Peek, Properties, PropertiesBuilder, RAFT_HEADER_BYTES, RAFT_UNIT_BYTES, RaftHeader, RaftUnit, RecordSpec, RecordView, SqlFilter, TieredLog, UniqueKeyGenerator, compress, decode_batch, decompress, encode_batch, ext_address, ext_offset, geometries_for_len, index_file_name, index_key_hash, java_hash, java_property, key_digest, offset_file_name, offset_message_id, parse_index_file_name, parse_offset_file_name, parse_offset_message_id, parse_queue_dir_name, parse_tiered_cluster_folder, parse_tiered_file_name, patch_position, peek, raft_blank, seal_property_crc, split_batch, tiered_cluster_folder, tiered_file_name, validate_stored_topic, validate_topic, without_property};

use mqstore_tests::changes::{Choices, FromBytes, change};
use mqstore_tests::damaged::Subject;

/// Limit for all decompression here.
const BODY_LIMIT: usize = 1 << 20;

/// Reads a part of a commit log as a reader does.
pub fn record(data: &[u8]) {
    let mut rest = data;
    while let Ok(head) = peek(rest) {
        let step = match head {
            Peek::Record { size, version } => {
                let Ok(record) = RecordView::decode(rest) else { return };
                assert_eq!((record.size, record.version), (size, version));
                one_record(&record);
                size as usize
            }
            Peek::Blank { size } => size as usize,
            Peek::Zero | Peek::Invalid { .. } => {
                assert!(RecordView::decode(rest).is_err());
                return;
            }
        };
        let Some(behind) = rest.get(step..) else { return };
        rest = behind;
    }
}

fn one_record(record: &RecordView<'_>) {
    let checked = record.check_crc(CrcCheck::ALL);
    let levels = DelayLevels::default();
    let _ = (record.tags_code(&levels), record.keys(), record.unique_key(), record.inner_batch());
    let _ = (record.dispatches_to_queue(), record.indexed(), record.decompressed_body(BODY_LIMIT));
    for key in record.key_list() {
        assert!(index_key_hash(record.topic, key) >= 0);
    }
    let id = record.offset_message_id();
    assert_eq!(parse_offset_message_id(&id), Ok((record.store_host, record.physical_offset)));
    assert_eq!(record.store_host.to_string().parse::<Host>(), Ok(record.store_host));

    // A reclaim replaces the record, alone or with those after it.
    for size in [u64::from(record.size), u64::from(record.size) + 4097] {
        let made = HiddenPlaceholder::new(record, size).expect("a record has space for its placeholder");
        let frame = (made.head.len() as u64, made.tail.len() as u64);
        assert_eq!(frame, HiddenPlaceholder::frame_bytes(record));
        let bytes = [made.head, vec![0; made.body_bytes as usize], made.tail].concat();
        let placeholder = RecordView::decode(&bytes).expect("a placeholder decodes");
        assert!(u64::from(placeholder.size) == size && placeholder.replaces_hidden());
        assert_eq!(placeholder.physical_offset, record.physical_offset);
        assert_eq!(placeholder.check_crc(CrcCheck::ALL), Ok(()));
    }

    let spec = RecordSpec::from(record);
    let mut again = Vec::new();
    spec.encode_into(&mut again).expect("what was decoded can be encoded");
    let canonical = spec.version() == record.version && (!record.body.is_empty() || record.body_crc == 0);
    if checked.is_ok() && canonical {
        assert_eq!(again, record.bytes);
    }
    let sealed = RecordSpec { property_crc: true, ..spec };
    again.clear();
    if sealed.encode_into(&mut again).is_ok() {
        patch_position(&mut again, 1, 2, 3).expect("a record can be patched");
        seal_property_crc(&mut again).expect("a record with a CRC property can be sealed");
        let decoded = RecordView::decode(&again).expect("a patched record decodes");
        assert_eq!((decoded.queue_offset, decoded.physical_offset, decoded.store_timestamp), (1, 2, 3));
        assert_eq!(decoded.check_crc(CrcCheck::ALL), Ok(()));
    }
}

/// The properties text of a record.
pub fn properties(data: &[u8]) {
    let properties = Properties::new(data);
    let mut last: BTreeMap<&str, &str> = BTreeMap::new();
    let mut builder = PropertiesBuilder::new();
    for (name, value) in properties.iter() {
        last.insert(name, value);
        match builder.push_reserved(name, value) {
            Ok(()) | Err(FormatError::TooLarge { .. }) => {}
            Err(_) => {
                // Java accepts a second separator inside a value, but no writer can produce one.
                assert!(value.contains('\u{1}'));
            }
        }
    }
    let valid =
        properties.iter_raw().all(|(n, v)| std::str::from_utf8(n).is_ok() && std::str::from_utf8(v).is_ok());
    // A few are enough, because each one reads everything again.
    for (name, value) in last.iter().take(4) {
        assert!(!name.is_empty() && !value.is_empty());
        if valid {
            assert_eq!(properties.get(name), Some(*value));
            assert_eq!(properties.get_many([name]), [Some(*value)]);
        }
        let without = without_property(data, name);
        assert_eq!(Properties::new(&without).get(name), None);
    }
    assert!(properties.iter_raw().count() >= properties.iter().count());
    let written = builder.finish();
    assert!(Properties::new(&written).iter().all(|(name, _)| last.contains_key(name)));
}

/// The body of a client's batch.
pub fn batch(data: &[u8]) {
    let items: Vec<BatchItem<'_>> = decode_batch(data).filter_map(Result::ok).collect();
    let mut again = Vec::new();
    encode_batch(items.iter().copied(), &mut again).expect("what was decoded can be encoded");
    let back: Vec<BatchItem<'_>> = decode_batch(&again).map(|item| item.expect("an item of ours")).collect();
    assert_eq!(back, items);
    let host = Host::new([127, 0, 0, 1], 10911);
    let mut next = 0;
    for spec in split_batch(&RecordSpec::new("t", data, host, host)).map_while(Result::ok) {
        assert_eq!(spec.physical_offset, next);
        let mut record = Vec::new();
        next += spec.encode_into(&mut record).expect("a split record can be encoded") as i64;
    }
}

/// Units of consume queues, their extensions, and batch queues.
pub fn queue_units(data: &[u8]) {
    let mut again = Vec::new();
    for unit in CqUnit::decode_all(data) {
        assert!(unit.is_written() || !unit.is_valid());
        assert!(!(unit.is_valid() && unit.is_blank()));
        let _ = unit.physical_end();
        if let Some(offset) = ext_offset(unit.tags_code) {
            assert_eq!(ext_address(offset), Some(unit.tags_code));
        }
        again.extend(unit.encode());
    }
    assert!(data.starts_with(&again));
    again.clear();
    for unit in BatchCqUnit::decode_all(data) {
        assert!(!(unit.is_valid() && unit == END_MARKER));
        let _ = (unit.physical_end(), unit.next_offset());
        again.extend(unit.encode());
    }
    assert!(data.starts_with(&again));
    let mut rest = data;
    while let Ok(unit) = CqExtUnit::decode(rest) {
        again.clear();
        let len = unit.encode_into(&mut again).expect("a decoded unit can be encoded");
        assert!(rest.starts_with(&again));
        assert_eq!(unit.bit(unit.bitmap.len() * 8), None);
        rest = &rest[len..];
    }
}

/// Header and entries of an index file, and the possible geometries for a length.
pub fn index(data: &[u8]) {
    let Some((head, rest)) = data.split_first_chunk::<40>() else { return };
    let header = IndexHeader::decode(head);
    assert_eq!(&header.encode(), head);
    assert!(header.next_entry() >= 1);
    let geometry = IndexGeometry { slots: header.slot_count.unsigned_abs(), entries: header.next_entry() };
    for bytes in rest.as_chunks().0 {
        let entry = IndexEntry::decode(bytes);
        assert_eq!(&entry.encode(), bytes);
        let time = entry.store_timestamp(&header);
        assert!(header.time_diff_s(time) >= 0);
        assert!(geometry.slot_of(entry.hash) < geometry.slots.max(1));
    }
    let len = header.begin_physical.unsigned_abs();
    for found in geometries_for_len(len).take(8).chain(geometries_for_len(len).rev().take(8)) {
        assert_eq!(found.file_len(), len);
    }
    if geometry.slots >= 1 && geometry.entries >= 2 && geometry.file_len() < 100_000 {
        assert!(geometries_for_len(geometry.file_len()).any(|found| found == geometry));
    }
}

/// The checkpoint file.
pub fn checkpoint(data: &[u8]) {
    let checkpoint = Checkpoint::decode(data);
    assert!(checkpoint.min_timestamp() >= 0);
    let written = checkpoint.encode();
    assert_eq!(Checkpoint::decode(&written), checkpoint);
    let known = data.len().min(48) / 8 * 8;
    assert_eq!(written[..known], data[..known]);
}

/// Every JSON side file.
pub fn json(data: &[u8]) {
    let ours = json::parse(data);
    // JSON that a strict reader accepts must give the same value here, except for our depth limits.
    if let Ok(theirs) = serde_json::from_slice::<Value>(data)
        && depth(&theirs) < json::MAX_JSON_DEPTH
    {
        assert!(alike(&theirs, ours.as_ref().expect("JSON is in the dialect")));
    }
    for dialect in [Dialect::Rocketmq53, Dialect::Rocketmq55] {
        comes_back(TopicTable::parse(data), TopicTable::parse, |table| table.to_json(dialect));
        comes_back(SubscriptionGroups::parse(data), SubscriptionGroups::parse, |table| {
            table.to_json(dialect)
        });
        comes_back(ConsumerOffsets::parse(data), ConsumerOffsets::parse, |table| table.to_json(dialect));
        comes_back(DelayOffsets::parse(data), DelayOffsets::parse, |table| table.to_json(dialect));
        comes_back(CompactionPositions::parse(data), CompactionPositions::parse, |table| {
            table.to_json(dialect)
        });
    }
}

/// A table that is written, read and written again has the same text.
fn comes_back<T>(
    read: Result<T, FormatError>,
    parse: impl Fn(&[u8]) -> Result<T, FormatError>,
    write: impl Fn(&T) -> String,
) {
    let Ok(table) = read else { return };
    let text = write(&table);
    let again = parse(text.as_bytes()).expect("a text of ours is readable");
    assert_eq!(write(&again), text);
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 1,
    }
}

/// Equal, except for the rounding of numbers that are not integers.
fn alike(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.is_f64() || b.is_f64() || a == b,
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| alike(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| alike(a, b)))
        }
        _ => a == b,
    }
}

/// Texts: ids, file names, hosts, topics, delay levels, and the hashes over them.
pub fn ids_names(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok((host, offset)) = parse_offset_message_id(text) {
        assert_eq!(offset_message_id(&host, offset), text.to_ascii_uppercase());
    }
    if let Ok(host) = text.parse::<Host>() {
        assert_eq!(host.to_string().parse(), Ok(host));
    }
    if let Some(offset) = parse_offset_file_name(text) {
        assert_eq!(offset_file_name(offset), text);
    }
    if let Some(time) = parse_index_file_name(text) {
        assert_eq!(index_file_name(&time).as_deref(), Ok(text));
        assert!(time.successor() > time);
    }
    if let Some(queue_id) = parse_queue_dir_name(text) {
        assert_eq!(queue_id.to_string(), text);
    }
    if validate_topic(text).is_ok() {
        assert_eq!(validate_stored_topic(text), Ok(()));
    }
    if let Ok(levels) = DelayLevels::parse(text) {
        let _ = levels.delivery_time(levels.max_level(), i64::MAX);
    }
    let plain = text.encode_utf16().fold(0i32, |h, unit| h.wrapping_mul(31).wrapping_add(i32::from(unit)));
    assert_eq!(java_hash(text), plain);
    assert_eq!(index_key_hash("", text), java_hash(&format!("#{text}")).checked_abs().unwrap_or(0));
    let _ = key_digest(text);
    let generator = UniqueKeyGenerator::new([127, 0, 0, 1].into(), java_hash(text).cast_unsigned(), 0);
    assert_eq!(generator.next(i64::from(plain) * i64::from(plain)).as_str().len(), 32);
}

/// An expression, a zero byte, and then the properties on which it is evaluated.
pub fn sql(data: &[u8]) {
    let (expression, properties) = data.iter().position(|byte| *byte == 0).map_or((data, &b""[..]), |end| {
        let (expression, rest) = data.split_at(end);
        (expression, rest.strip_prefix(&[0]).unwrap_or(rest))
    });
    let expression = String::from_utf8_lossy(expression);
    let properties = Properties::new(properties);
    let filter = match SqlFilter::parse(&expression) {
        Ok(filter) => filter,
        Err(error) => {
            assert!(error.position <= expression.chars().count() && !error.to_string().is_empty());
            return;
        }
    };
    let found = filter.evaluate(properties);
    assert_eq!(filter.matches(properties), found == Ok(Some(true)));
    assert!(filter.explain().contains("reads: "));
    // Without the ignored part the result is the same, and NOT inverts it.
    let end = filter.ignored().map_or(expression.len(), |(_, rest)| expression.len() - rest.len());
    let bare = SqlFilter::parse(&expression[..end]).expect("what is ignored is not needed");
    assert_eq!((bare.ignored(), bare.evaluate(properties)), (None, found.clone()));
    if let Ok(opposite) = SqlFilter::parse(&format!("NOT ({})", &expression[..end])) {
        assert_eq!(opposite.evaluate(properties), found.map(|truth| truth.map(|truth| !truth)));
    }
}

/// Compressed bodies: the first byte chooses the format and the operation, the second one the limit.
pub fn compression(data: &[u8]) {
    let [choice, limit, bytes @ ..] = data else { return };
    let kind = [Compression::Zlib, Compression::Lz4, Compression::Zstd][usize::from(choice % 3)];
    let limit = (usize::from(*limit) << 6).min(BODY_LIMIT);
    if let Ok(body) = decompress(kind, bytes, limit) {
        assert!(body.len() <= limit);
    }
    if choice & 0x80 != 0 {
        let packed = compress(kind, bytes, i32::from(choice & 0xf)).expect("any bytes can be compressed");
        assert_eq!(decompress(kind, &packed, bytes.len()).as_deref(), Ok(bytes));
    }
}

/// The stores whose bytes are changed: those of mqstore and those of RocketMQ.
static STORES: LazyLock<Vec<Subject>> = LazyLock::new(|| {
    let packs: [(&str, &[u8]); 2] = [
        ("rocketmq-5.3.3", include_bytes!("../../rust/damage/stores/rocketmq-5.3.3")),
        ("rocketmq-5.5.0", include_bytes!("../../rust/damage/stores/rocketmq-5.5.0")),
    ];
    let mut all = Subject::ours().expect("stores in memory can be made");
    all.extend(packs.map(|(name, bytes)| Subject::packed(name, bytes).expect("the pack is whole")));
    all
});

/// The headers and units of a member of a DLedger group, and its files of properties.
pub fn raft(data: &[u8]) {
    let mut rest = data;
    let mut position = 0_u64;
    while let Ok(header) = RaftHeader::decode(rest) {
        let fault = header.fault(position);
        if let Some(free) = raft_blank(rest, rest.len() as u64) {
            assert!(free <= rest.len() as u64);
        }
        if fault.is_none() && !header.has_no_record() {
            let again = RaftHeader::encode_normal(header.index, header.term, header.position, header.body_size);
            assert_eq!(RaftHeader::decode(&again), Ok(header));
            assert_eq!(RaftUnit::decode(&RaftUnit::of(&header).encode()), Ok(RaftUnit::of(&header)));
        }
        let step = usize::try_from(header.size).unwrap_or(0).max(RAFT_HEADER_BYTES);
        position += step as u64;
        let Some(behind) = rest.get(step..) else { break };
        rest = behind;
    }
    for unit in data.chunks_exact(RAFT_UNIT_BYTES) {
        let decoded = RaftUnit::decode(unit).expect("any 32 bytes decode");
        // A unit has the magic of a normal entry, whatever was read.
        assert_eq!(RaftUnit::decode(&decoded.encode()), Ok(decoded));
    }
    let text = String::from_utf8_lossy(data);
    for key in ["committedIndex", "currTerm", ""] {
        if let Some(value) = java_property(&text, key) {
            assert!(text.contains(value));
        }
    }
}

/// The names of a tiered store, and a record that moves from its log to another one.
pub fn tiered(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Some(offset) = parse_tiered_file_name(&text) {
        assert_eq!(tiered_file_name(offset), text);
    }
    if let Some(cluster) = parse_tiered_cluster_folder(&text) {
        assert_eq!(tiered_cluster_folder(cluster), text);
    }
    let mut record = data.to_vec();
    let Ok(Peek::Record { size, .. }) = peek(&record) else { return };
    record.truncate(size as usize);
    let Ok(before) = RecordView::decode(data) else { return };
    let log = TieredLog { topic: before.topic, queue_id: before.queue_id };
    let (from, queue_offset) = (before.physical_offset.cast_unsigned(), before.queue_offset);
    assert!(!log.move_record(&mut record, from.wrapping_add(1), 7, queue_offset));
    assert!(!log.move_record(&mut record, from, 7, queue_offset.wrapping_add(1)));
    assert_eq!(record, before.bytes);
    if log.move_record(&mut record, from, 7, queue_offset) {
        let moved = RecordView::decode(&record).expect("a moved record decodes");
        assert_eq!((moved.physical_offset, moved.queue_offset, record.len()), (7, queue_offset, before.bytes.len()));
        // No move makes a damaged body valid.
        let body = CrcCheck { property: false, ..CrcCheck::ALL };
        assert!(moved.check_crc(CrcCheck::ALL).is_err() || before.check_crc(body).is_ok());
    }
}

/// Changes some bytes of a whole store as the input says. Then inspects, verifies, reads, repairs and
/// verifies it again. The rules are in `mqstore_tests::damaged`.
pub fn directory(data: &[u8]) {
    let mut choices = FromBytes(data);
    let number = choices.below(STORES.len() as u64) as usize;
    let Some(store) = STORES.get(number) else { return };
    let outcome = store.try_change(|vfs| {
        for _ in 0..=choices.below(4) {
            change(vfs, &mut choices)?;
        }
        Ok(())
    });
    outcome.unwrap_or_else(|what| panic!("{}: {what}", store.name));
}

/// A fuzz target: takes any bytes, returns nothing.
pub type Target = fn(&[u8]);

/// Reads a file of an archive. Its decoder of Parquet can panic; that panic becomes an error.
pub fn archive_file(data: &[u8]) {
    static QUIET: Once = Once::new();
    // The hook of libFuzzer ends the process at a panic that is caught.
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    let content = Bytes::copy_from_slice(data);
    let read = ArchiveFile::open(Box::new(content.clone()), Some(1 << 20)).and_then(|file| {
        let _ = (file.topic(), file.places());
        file.summary()
    });
    let Ok(footer) = Footer::read(&content, Some(1 << 20)) else { return };
    if let Ok(filters) = bloom_filters(&content, &footer) {
        let _ = groups_with_key(&filters, "k1");
    }
    for group in 0..footer.groups().len() {
        let Ok(rows) = whole_group(&content, &footer, group) else { continue };
        let last = rows.num_rows().saturating_sub(1);
        let _ = paged_rows(&content, &footer, group, &(last..rows.num_rows()), None);
    }
    if footer.has_records() && read.is_ok() {
        assert_eq!(footer.rows() as u64, read.map_or(0, |found| found.rows));
    }
}

/// The targets by name, as `run.sh` and the tests know them.
pub const TARGETS: [(&str, Target); 14] = [
    ("record", record),
    ("properties", properties),
    ("archive_file", archive_file),
    ("batch", batch),
    ("queue_units", queue_units),
    ("index", index),
    ("checkpoint", checkpoint),
    ("raft", raft),
    ("tiered", tiered),
    ("json", json),
    ("ids_names", ids_names),
    ("sql", sql),
    ("compression", compression),
    ("directory", directory),
];

#[cfg(test)]
mod tests {
    use super::TARGETS;
    use std::fs;
    use std::path::Path;

    #[test]
    fn seeds_pass() {
        for (name, target) in TARGETS {
            let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name);
            let seeds: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
            assert!(!seeds.is_empty(), "{name} has no seeds");
            target(&[]);
            for seed in seeds {
                let bytes = fs::read(&seed).unwrap();
                target(&bytes);
                for cut in 0..bytes.len() {
                    target(&bytes[..cut]);
                }
            }
        }
    }
}
