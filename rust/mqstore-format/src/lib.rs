//! The formats of an Apache RocketMQ store directory: bytes to values and back.
//!
//! No I/O, no clock, no threads, no `unsafe`. Every decoder accepts any bytes and returns a value or a [`FormatError`].
//! None panics, and none allocates more than its input or its limit justifies. Encoders append to the caller's buffer.
//!
//! `commitlog/`: [`record`], [`properties`], [`batch`], [`compression`]. Queues: [`CqUnit`], [`CqExtUnit`] for
//! `consumequeue_ext/`, [`BatchCqUnit`] also for `compaction/compactionCq/`. `index/`: [`IndexHeader`], [`IndexEntry`].
//! `checkpoint`: [`Checkpoint`]. `dledger-*/`: [`dledger`]. Tiered stores: [`record::tiered`]. Side files: [`json`].
//! File names: [`names`]. Filters: [`sql`]. [`RecordSpec`] has an example. Integers in files are big-endian and signed;
//! numbers have the type of their field (offsets `i64`, sizes `i32`), also negative ones. Times are epoch milliseconds.
#![forbid(unsafe_code)]

pub mod batch;
mod bytes;
pub mod checkpoint;
pub mod compression;
pub mod consume_queue;
mod delay_levels;
pub mod delays;
pub mod dledger;
mod error;
pub mod hash;
mod host;
pub mod ids;
pub mod index;
pub mod json;
pub mod names;
pub mod properties;
pub mod record;
pub mod sql;
pub mod sys_flag;
pub mod topic;
pub mod transaction;

#[cfg(test)]
mod testing;

pub use batch::{BatchItem, BatchItems, decode_batch, encode_batch, split_batch};
pub use bytes::Fields;
pub use checkpoint::Checkpoint;
pub use compression::{DEFAULT_COMPRESSION_LEVEL, compress, decompress, unpack_limit};
pub use consume_queue::batch_unit::{BATCH_CQ_UNIT_BYTES, BatchCqUnit, END_MARKER};
pub use consume_queue::extension_unit::{CqExtUnit, ext_address, ext_offset};
pub use consume_queue::unit::{BLANK_UNIT, CQ_UNIT_BYTES, CqUnit};
pub use delay_levels::{DEFAULT_DELAY_LEVELS, DelayLevels};
pub use dledger::{
    DLEDGER_PREFIX, RAFT_HEADER_BYTES, RAFT_UNIT_BYTES, RaftHeader, RaftUnit, java_property, raft_blank,
};
pub use error::FormatError;
pub use hash::{
    Crc31, IndexHasher, crc31, crc32, index_key_hash, index_tag_hash, java_hash, key_digest, tags_code,
};
pub use host::Host;
pub use ids::{
    KeyBlock, MadeKey, UniqueKeyGenerator, offset_message_id, parse_offset_message_id, push_offset_message_id,
};
pub use index::{IndexEntry, IndexGeometry, IndexHeader, geometries_for_len};
pub use names::{
    IndexFileTime, index_file_name, offset_file_name, parse_index_file_name, parse_offset_file_name,
    parse_queue_dir_name,
};
pub use properties::{Properties, PropertiesBuilder, is_reserved, push_property, without_property};
pub use record::tiered::{
    TIERED_HEAD_BYTES, TIERED_INDEX_TOPIC, TIERED_LOG_DIR, TIERED_QUEUE_DIR, TieredLog,
    parse_tiered_cluster_folder, parse_tiered_file_name, tiered_cluster_folder, tiered_file_name,
};
pub use record::{
    BLANK_HEADER_BYTES, CrcCheck, EntryFields, HiddenPlaceholder, MAGIC_BLANK, MAGIC_V1, MAGIC_V2,
    MAX_HIDDEN_BYTES, MIN_RECORD_BYTES, PHYSICAL_OFFSET_POSITION, PLACEHOLDER_TOPIC, PROPERTY_CRC_BYTES,
    Peek, QUEUE_ID_POSITION, QUEUE_OFFSET_POSITION, RecordOutline, RecordParts, RecordSpec, RecordView,
    Version, encode_blank, encode_placeholder, patch_body_crc, patch_position, patch_prepared_offset, peek,
    placeholder_bytes, restore_property_crc, seal_property_crc,
};
pub use sql::{SqlError, SqlFilter};
pub use sys_flag::{Compression, SysFlag, TransactionType};
pub use topic::{SCHEDULE_TOPIC, namespace_of, validate_group, validate_stored_topic, validate_topic};
