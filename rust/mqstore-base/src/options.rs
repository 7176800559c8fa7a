//! The options of a store: each with its default, its bounds and RocketMQ's name.
//!
//! The geometry of an existing directory always overrides the sizes given here; they apply to new files only.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use mqstore_format::{Compression, DelayLevels, Host};
use mqstore_io::Environment;

use crate::body_compression::BodyCompression;
use crate::error::StoreError;
use crate::events::Hooks;

/// Maximum number of threads that build queues and index.
const MAX_DISPATCH_THREADS: u32 = 8;

/// Most copies of a store, itself included.
const MOST_COPIES: u32 = 64;

/// Maximum delay of a delay level.
const LONGEST_LEVEL_DAYS: i64 = 36_500;

/// What an open may do with the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Reads only; takes no lock and changes no byte.
    Read,
    /// Reads and writes a store that exists.
    ReadWrite,
    /// Like [`OpenMode::ReadWrite`], and creates a missing store.
    Create,
}

impl OpenMode {
    /// Whether this mode can write.
    pub fn writes(self) -> bool {
        !matches!(self, Self::Read)
    }
}

/// When an append returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// After a sync that covers the record; waiting threads share one sync. `SYNC_FLUSH`.
    Sync,
    /// After the copy into the mapping; a background thread syncs. `ASYNC_FLUSH`.
    Async,
    /// After the copy into the mapping; only `flush` and `close` sync.
    Manual,
    /// After the copy into the pool, a buffer in memory. A background thread writes the pool to the file and syncs it;
    /// a kill of the process loses the records that are not written yet. `ASYNC_FLUSH` with `transientStorePoolEnable`.
    Pooled,
}

/// Which records readers can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// All appended records.
    Appended,
    /// Only records that a power loss cannot remove; always so with [`Durability::Sync`].
    Durable,
    /// Only records that as many copies have as an append with `replicated` waits for. Needs
    /// [`StoreOptions::replication`].
    Confirmed,
}

/// What an open for writing does if it finds damage other than a torn tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryMode {
    /// Refuses the store and changes nothing.
    Strict,
    /// Continues after the damage. Deletes nothing.
    Salvage,
    /// Opens the store for reading instead, as with [`OpenMode::Read`].
    ReadOnly,
}

/// What a read does at a record that is damaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DamagePolicy {
    /// Ends with [`StoreError::Corrupt`].
    #[default]
    Raise,
    /// Skips the record, with a note for the user, and counts it.
    Skip,
}

/// Up to which Raft entry a reader reads the log of a broker that ran with DLedger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DledgerEnd {
    /// The last entry that the checkpoint of DLedger calls committed. It can lack the entries of the last three seconds.
    Committed,
    /// The last entry that a consume queue names: it was committed when it was dispatched.
    #[default]
    Queues,
    /// The last entry that is written completely. It may never have been committed, or acknowledged.
    All,
}

/// Which old segments a retention by age may remove.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetentionPolicy {
    /// Those whose messages are all finished: every group of a topic has consumed them, delayed messages are delivered,
    /// and transactions are decided.
    #[default]
    Finished,
    /// Like [`Self::Finished`], but groups do not count. RocketMQ's rule.
    Time,
}

/// How a store serves its replicas: the options of a master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterOptions {
    /// Host and port of the HA service; port 0 lets the system choose. `brokerIP2`, `haListenPort`.
    pub listen: String,
    /// Copies that an append waits for, this store included, while as many are in sync. Default 2, 1 to 64.
    /// `inSyncReplicas`.
    pub in_sync_replicas: u32,
    /// Copies that an append waits for at least, this store included. Default 2, 1 to `in_sync_replicas`.
    /// `minInSyncReplicas` with `enableAutoInSyncReplicas`.
    pub min_in_sync: u32,
    /// Number of the epoch that begins with the open, larger than those of the log; `None`, the default, takes the next
    /// one. 1 to 2^31 - 1. The controller of RocketMQ gives it.
    pub epoch: Option<i32>,
    /// Milliseconds that an append waits for its copies. Default 3,000, 1 to 3,600,000. `slaveTimeout`.
    pub ack_timeout_ms: u64,
    /// Milliseconds after which a replica that has not caught up leaves the replicas in sync. Default 15,000, 100 to
    /// 3,600,000. `haMaxTimeSlaveNotCatchup`.
    pub lag_limit_ms: u64,
    /// Whether a standby of ours acknowledges only what is on its disk. Default false. RocketMQ has no such option.
    pub durable_acks: bool,
    /// Milliseconds between two copies of the metadata for standbys of ours. Default 1,000, 100 to 3,600,000. RocketMQ
    /// has no such option.
    pub metadata_interval_ms: u64,
    /// Milliseconds that a replica keeps the segments that it does not have from a deletion by age, since it last got
    /// further. Default 86,400,000 (a day), at most 2^53. RocketMQ has no such option.
    pub replica_timeout_ms: u64,
}

impl Default for MasterOptions {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:10912".to_owned(),
            in_sync_replicas: 2,
            min_in_sync: 2,
            epoch: None,
            ack_timeout_ms: 3_000,
            lag_limit_ms: 15_000,
            durable_acks: false,
            metadata_interval_ms: 1_000,
            replica_timeout_ms: 86_400_000,
        }
    }
}

impl MasterOptions {
    fn validate(&self) -> Result<(), StoreError> {
        within("in_sync_replicas", self.in_sync_replicas.into(), 1, MOST_COPIES.into())?;
        within("min_in_sync", self.min_in_sync.into(), 1, self.in_sync_replicas.into())?;
        if self.epoch.is_some_and(|epoch| epoch < 1) {
            let reason = "an epoch is at least 1".to_owned();
            return Err(StoreError::InvalidOption { option: "epoch", reason });
        }
        within("ack_timeout", self.ack_timeout_ms, 1, 3_600_000)?;
        within("lag_limit", self.lag_limit_ms, 100, 3_600_000)?;
        within("metadata_interval", self.metadata_interval_ms, 100, 3_600_000)?;
        within("replica_timeout", self.replica_timeout_ms, 0, 1 << 53)
    }
}

/// The options of one open.
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own, by its own name")]
#[derive(Clone, Debug, PartialEq)]
pub struct StoreOptions {
    /// What an open for writing does if it finds damage before the durable mark. Default [`RecoveryMode::Strict`].
    /// RocketMQ has no such option: it truncates the log at the first bad record.
    pub recovery: RecoveryMode,
    /// Bytes of a commit-log segment. Default 1 GiB, 4 KiB to 2 GiB − 1. `mappedFileSizeCommitLog`.
    pub segment_bytes: u64,
    /// Units of a consume-queue file. Default 300,000, 1 to 50,000,000. `mappedFileSizeConsumeQueue` / 20.
    pub queue_file_entries: u32,
    /// Hash slots of an index file. Default 5,000,000, at least 1. `maxHashSlotNum`.
    pub index_slots: u32,
    /// Entries of an index file. Default 20,000,000, at least 2. `maxIndexNum`.
    pub index_entries: u32,
    /// When an append returns. Default [`Durability::Async`]. `flushDiskType`.
    pub durability: Durability,
    /// Which records readers can see. Default [`Visibility::Appended`].
    pub visibility: Visibility,
    /// Milliseconds between background syncs. Default 500, 1 to 3,600,000. `flushIntervalCommitLog`.
    pub flush_interval_ms: u64,
    /// Minimum number of dirty 4 KiB pages for a background sync. Default 4. `flushCommitLogLeastPages`.
    pub flush_least_pages: u32,
    /// Milliseconds after which a background sync covers every dirty page. Default 10,000.
    /// `flushCommitLogThoroughInterval`.
    pub flush_thorough_interval_ms: u64,
    /// With [`Durability::Pooled`]: milliseconds between two writes of the pool to the file.
    /// Default 200, 1 to 3,600,000. `commitIntervalCommitLog`.
    pub commit_interval_ms: u64,
    /// Bytes of the pool. Default 16 MiB, 64 KiB to 16 GiB. `transientStorePoolSize` × segment size.
    pub pool_bytes: u64,
    /// Milliseconds: if one append holds the put lock for longer, other appends fail. Default 1,000, 1 to 3,600,000.
    /// `osPageCacheBusyTimeOutMills`.
    pub busy_after_ms: u64,
    /// Maximum milliseconds that an append waits for the put lock. Default 200, 1 to 3,600,000.
    /// `waitTimeMillsInSendQueue`.
    pub queue_wait_limit_ms: u64,
    /// Whether a background thread prepares the next segment and the pages after the tail.
    /// Default true. `warmMapedFileEnable`.
    pub prewarm: bool,
    /// Whether the pages after the tail are locked in memory. Default false; needs `prewarm`. RocketMQ locks the pages
    /// that it warms.
    pub lock_memory: bool,
    /// Minimum bytes of the log that get space on the disk at once: 4 KiB to 1 GiB, default 1 MiB. Python has no such
    /// option; tests need smaller steps.
    pub allocation_bytes: u64,
    /// Total bytes of the records of one append from which they are written to the file instead of copied to absent
    /// pages of its map: at most 1 GiB, default 64 KiB. Python has no such option; tests have shorter segments.
    pub file_write_bytes: u64,
    /// Whether new records carry RocketMQ's CRC of the whole record. Default true. `enabledAppendPropCRC`.
    pub record_crc: bool,
    /// Whether tags get index entries, as in RocketMQ 5.5.0. Default false. If the last writer of the directory added
    /// such entries, they are added in any case.
    pub index_tags: bool,
    /// Maximum size of a body in bytes. Default 4 MiB, 10 to 1 GiB. `maxMessageSize`.
    pub max_message_bytes: u32,
    /// How appends of a program compress bodies. `None`, the default, stores them unchanged. RocketMQ's clients
    /// compress with `compressType`; a broker has no such option.
    pub compression: Option<Compression>,
    /// Minimum bytes of a body that is compressed. Default 4,096, at most 1 GiB. `compressMsgBodyOverHowmuch` of
    /// RocketMQ's clients.
    pub compress_over_bytes: u32,
    /// Number of queues of a topic that an append creates. Default 1, 1 to 65,536. `defaultTopicQueueNums`.
    pub default_queues: u32,
    /// Whether an append creates an unknown topic. Default true. `autoCreateTopicEnable`.
    pub auto_create_topics: bool,
    /// The address written as store host and born host. Default 127.0.0.1:10911. `brokerIP1`, `listenPort`.
    pub store_host: Host,
    /// Threads that build queues and index, at most 8; with 0 the appending thread builds them. `None`, the default,
    /// means one for each processor, at most 8. See [`Self::dispatch_workers`].
    pub dispatch_threads: Option<u32>,
    /// Maximum number of queue and index files that stay open between two uses. `None`, the default, means a share of
    /// the process's limit; see [`mqstore_io::vfs::Environment::default_kept_files`]. At least 2. RocketMQ has no such
    /// option: it keeps every file open.
    pub max_open_files: Option<u32>,
    /// Milliseconds after which a log segment is removed, counted from the store time of its last record. `None`, the
    /// default, keeps all segments. 1 to 2^53. `fileReservedTime` (in hours; RocketMQ's default is 72).
    pub retention_ms: Option<u64>,
    /// Which old segments are removed by age. Default [`RetentionPolicy::Finished`]. RocketMQ has no such option.
    pub retention_policy: RetentionPolicy,
    /// Milliseconds after which a group no longer keeps a segment, if it finishes no message meanwhile. `None`, the
    /// default, means that a group keeps its segments forever. 1 to 2^53. RocketMQ has no such option.
    pub group_timeout_ms: Option<u64>,
    /// Maximum bytes of the log segments, including the active one; the oldest segments above it are removed, whatever
    /// they contain. `None`, the default, means no limit. At least 1. RocketMQ has no such option.
    pub retention_bytes: Option<u64>,
    /// Maximum bytes of the log segments, including the active one and a prepared one. An append that needs another
    /// segment fails with [`StoreError::Full`]. `None`, the default, means no limit; at least the length of a segment.
    /// RocketMQ has no such option.
    pub max_bytes: Option<u64>,
    /// Hours of the local day in which segments are removed by age, as "4" or "04;16"; "*" means every hour.
    /// Default "*". `deleteWhen` (RocketMQ: "04").
    pub delete_when: String,
    /// Milliseconds between two deletions. Default 100, at most 3,600,000. `deleteCommitLogFilesInterval`.
    pub delete_interval_ms: u64,
    /// Milliseconds after which a segment is removed even if readers use it; those readers keep its bytes. Default
    /// 120,000, at most 86,400,000. `destroyMapedFileIntervalForcibly`.
    pub held_limit_ms: u64,
    /// Used part of a disk above which segments are removed by age at any hour; only if a retention is set. `None`, the
    /// default, turns the rule off. 0 to 1. `diskMaxUsedSpaceRatio` (percent; RocketMQ: 75).
    pub disk_clean_ratio: Option<f64>,
    /// Used part of a disk above which the oldest segments are removed, whatever their age; only if a retention is set.
    /// `None`, the default, turns the rule off. 0 to 1. `diskSpaceCleanForciblyRatio` (percent; RocketMQ: 85).
    pub disk_force_ratio: Option<f64>,
    /// Used part of a disk above which appends are refused until there is space again. `None`, the default, refuses
    /// them only while the disk has less than its reserve ([`mqstore_io::SpaceInfo::reserve_bytes`]). 0 to 1.
    /// `diskSpaceWarningLevelRatio` (percent; RocketMQ: 90).
    pub disk_refuse_ratio: Option<f64>,
    /// Whether a removed segment is overwritten with zeros and synced before its space is freed. Default false.
    pub secure_wipe: bool,
    /// Whether to remove a segment that contains keyed messages of a compaction topic that are not yet in a compaction
    /// file. Those messages are then lost. Default false. RocketMQ checks only its dispatch position.
    pub expire_uncompacted: bool,
    /// Milliseconds between two background checks of the compaction topics; a check compacts the topics that changed
    /// enough. `None`, the default, turns background compaction off. 1 to 31,536,000,000 (a year).
    /// `compactionScheduleInternal` (RocketMQ: 900,000 plus a random part of it).
    pub compaction_interval_ms: Option<u64>,
    /// Minimum part of a queue's messages that must be newer than the last compaction before the background compacts
    /// the topic again. The messages that the last compaction kept count as messages of the queue. Default 0.5, 0 to 1;
    /// with 0 one message is enough. RocketMQ uses the number of closed files instead.
    pub compaction_dirty_ratio: f64,
    /// Memory in bytes for the keys of one queue during a background compaction. Default 100 MiB.
    /// `maxOffsetMapSize` / `compactionThreadNum`.
    pub compaction_memory_bytes: u64,
    /// Whether new messages of compaction topics are also copied to their compaction files, where brokers read them.
    /// Default true.
    pub compaction_feed: bool,
    /// Requested bytes of a compaction log file, for a store that has none yet. Default 104,857,600; the real length is
    /// a multiple of the queue file's length. `compactionMappedFileSize`.
    pub compaction_log_file_bytes: u64,
    /// Requested bytes of a compaction queue file, for a store that has none yet; rounded down to units of 46 bytes.
    /// Default 10,485,760. `compactionCqMappedFileSize`.
    pub compaction_queue_file_bytes: u64,
    /// The delays of the delay levels from this open on; the directory stores them. `None`, the default, means the
    /// delays that the directory stores, else RocketMQ's. 1 to 256 levels of at most 36,500 days. An open for reading
    /// uses this option only if the directory stores no delays. `messageDelayLevel`.
    pub delay_levels: Option<DelayLevels>,
    /// Folders that receive new segments in turn; a relative path starts at the root of the store. Empty, the default,
    /// means the folders that the store remembers, else `commitlog`. `storePathCommitLog`.
    pub commit_log_paths: Vec<PathBuf>,
    /// Folders with older segments that receive no new ones; needs `commit_log_paths`.
    /// `readOnlyCommitLogStorePaths`.
    pub read_only_commit_log_paths: Vec<PathBuf>,
    /// Folder on another disk for `consumequeue` and `index`, which become symbolic links; a relative path starts at the
    /// root of the store. `None`, the default, changes nothing. Not a setting of RocketMQ, which follows links.
    pub derived_path: Option<PathBuf>,
    /// Up to which Raft entry a reader reads the log of a broker that ran with DLedger. Default
    /// [`DledgerEnd::Queues`]. RocketMQ has no such option: it learns the last committed entry from its group.
    pub dledger_end: DledgerEnd,
    /// How the store serves its replicas. `None`, the default, serves none. `brokerRole`.
    pub replication: Option<MasterOptions>,
    /// Whether each append waits for its copies; needs `replication`. Default false. `SYNC_MASTER`.
    pub replicated: bool,
    /// The hooks of the program; none by default.
    pub hooks: Hooks,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            recovery: RecoveryMode::Strict,
            segment_bytes: 1 << 30,
            queue_file_entries: 300_000,
            index_slots: 5_000_000,
            index_entries: 20_000_000,
            durability: Durability::Async,
            visibility: Visibility::Appended,
            flush_interval_ms: 500,
            flush_least_pages: 4,
            flush_thorough_interval_ms: 10_000,
            commit_interval_ms: 200,
            pool_bytes: 16 << 20,
            busy_after_ms: 1_000,
            queue_wait_limit_ms: 200,
            prewarm: true,
            lock_memory: false,
            allocation_bytes: 1 << 20,
            file_write_bytes: 64 << 10,
            record_crc: true,
            index_tags: false,
            max_message_bytes: 4 << 20,
            compression: None,
            compress_over_bytes: 4096,
            default_queues: 1,
            auto_create_topics: true,
            store_host: Host { ip: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 10911 },
            dispatch_threads: None,
            max_open_files: None,
            retention_ms: None,
            retention_policy: RetentionPolicy::Finished,
            group_timeout_ms: None,
            retention_bytes: None,
            max_bytes: None,
            delete_when: "*".into(),
            delete_interval_ms: 100,
            held_limit_ms: 120_000,
            disk_clean_ratio: None,
            disk_force_ratio: None,
            disk_refuse_ratio: None,
            secure_wipe: false,
            expire_uncompacted: false,
            compaction_interval_ms: None,
            compaction_dirty_ratio: 0.5,
            compaction_memory_bytes: 100 << 20,
            compaction_feed: true,
            compaction_log_file_bytes: 104_857_600,
            compaction_queue_file_bytes: 10_485_760,
            delay_levels: None,
            commit_log_paths: Vec::new(),
            read_only_commit_log_paths: Vec::new(),
            derived_path: None,
            dledger_end: DledgerEnd::default(),
            replication: None,
            replicated: false,
            hooks: Hooks::default(),
        }
    }
}

impl StoreOptions {
    /// The lengths that a segment can have.
    pub const SEGMENT_BYTES: std::ops::RangeInclusive<u64> = 4096..=(1 << 31) - 1;

    /// Checks every bound.
    ///
    /// # Errors
    /// [`StoreError::InvalidOption`] with the first option outside its bounds.
    pub fn validate(&self) -> Result<(), StoreError> {
        within("segment_size", self.segment_bytes, *Self::SEGMENT_BYTES.start(), *Self::SEGMENT_BYTES.end())?;
        within("queue_file_entries", self.queue_file_entries.into(), 1, 50_000_000)?;
        within("index_slots", self.index_slots.into(), 1, 400_000_000)?;
        within("index_entries", self.index_entries.into(), 2, 80_000_000)?;
        within("flush_interval", self.flush_interval_ms, 1, 3_600_000)?;
        within("flush_least_pages", self.flush_least_pages.into(), 0, 1 << 20)?;
        within("flush_thorough_interval", self.flush_thorough_interval_ms, 1, 86_400_000)?;
        within("commit_interval", self.commit_interval_ms, 1, 3_600_000)?;
        within("pool_size", self.pool_bytes, 64 << 10, 16 << 30)?;
        within("busy_after", self.busy_after_ms, 1, 3_600_000)?;
        within("queue_wait_limit", self.queue_wait_limit_ms, 1, 3_600_000)?;
        if self.lock_memory && !self.prewarm {
            return Err(StoreError::InvalidOption {
                option: "lock_memory",
                reason: "it locks the pages that prewarm prepares, and prewarm is off".into(),
            });
        }
        within("allocation_bytes", self.allocation_bytes, 4096, 1 << 30)?;
        within("file_write_bytes", self.file_write_bytes, 0, 1 << 30)?;
        within("max_message_size", self.max_message_bytes.into(), 10, 1 << 30)?;
        within("compress_over", self.compress_over_bytes.into(), 0, 1 << 30)?;
        within("default_queues", self.default_queues.into(), 1, 65_536)?;
        within(
            "dispatch_threads",
            self.dispatch_threads.unwrap_or(1).into(),
            0,
            MAX_DISPATCH_THREADS.into(),
        )?;
        within("max_open_files", self.max_open_files.unwrap_or(2).into(), 2, 1 << 20)?;
        within("compaction_interval", self.compaction_interval_ms.unwrap_or(1), 1, 31_536_000_000)?;
        within("compaction_log_file_size", self.compaction_log_file_bytes, 460, (1 << 31) - 1)?;
        within("compaction_queue_file_size", self.compaction_queue_file_bytes, 92, ((1 << 31) - 1) / 5)?;
        self.validate_retention()?;
        self.delay_levels.as_ref().map_or(Ok(()), validate_levels)?;
        self.validate_replication()?;
        if !(0..=65_535).contains(&self.store_host.port) {
            return Err(StoreError::InvalidOption {
                option: "store_host",
                reason: format!("port {} is not between 0 and 65535", self.store_host.port),
            });
        }
        Ok(())
    }

    /// Returns the number of dispatch threads in `environment`: 0 if background work has no threads.
    pub fn dispatch_workers(&self, environment: &Environment) -> u32 {
        let wanted = self.dispatch_threads.unwrap_or(environment.processors.clamp(1, MAX_DISPATCH_THREADS));
        if environment.threads { wanted } else { 0 }
    }

    fn validate_replication(&self) -> Result<(), StoreError> {
        if let Some(master) = &self.replication {
            return master.validate();
        }
        let confirmed = (self.visibility == Visibility::Confirmed).then_some("visibility");
        let Some(option) = self.replicated.then_some("replicated").or(confirmed) else { return Ok(()) };
        let reason = "it needs replication, which says how other machines get copies".to_owned();
        Err(StoreError::InvalidOption { option, reason })
    }

    fn validate_retention(&self) -> Result<(), StoreError> {
        within("retention", self.retention_ms.unwrap_or(1), 1, 1 << 53)?;
        within("group_timeout", self.group_timeout_ms.unwrap_or(1), 1, 1 << 53)?;
        within("retention_bytes", self.retention_bytes.unwrap_or(1), 1, u64::MAX)?;
        within("max_bytes", self.max_bytes.unwrap_or(1), 1, u64::MAX)?;
        within("delete_interval", self.delete_interval_ms, 0, 3_600_000)?;
        within("held_limit", self.held_limit_ms, 0, 86_400_000)?;
        for (option, ratio) in [
            ("disk_clean_ratio", self.disk_clean_ratio),
            ("disk_force_ratio", self.disk_force_ratio),
            ("disk_refuse_ratio", self.disk_refuse_ratio),
            ("compaction_dirty_ratio", Some(self.compaction_dirty_ratio)),
        ] {
            if let Some(ratio) = ratio.filter(|ratio| !(0.0..=1.0).contains(ratio)) {
                return Err(StoreError::InvalidOption {
                    option,
                    reason: format!("{ratio} is not between 0 and 1"),
                });
            }
        }
        delete_hours(&self.delete_when)?;
        if self.commit_log_paths.is_empty() && !self.read_only_commit_log_paths.is_empty() {
            return Err(StoreError::InvalidOption {
                option: "read_only_commit_log_paths",
                reason: "it needs commit_log_paths, the folders for new segments; give both".to_owned(),
            });
        }
        Ok(())
    }

    /// How appends compress bodies unless the call says otherwise.
    pub fn body_compression(&self) -> BodyCompression {
        BodyCompression {
            kind: self.compression,
            over_bytes: self.compress_over_bytes,
            max_bytes: self.max_message_bytes,
        }
    }

    /// Whether a retention is set, by age or by size.
    pub fn retains(&self) -> bool {
        self.retention_ms.is_some() || self.retention_bytes.is_some()
    }

    /// Whether readers see durable records only.
    pub fn durable_only(&self) -> bool {
        self.durability == Durability::Sync || self.visibility == Visibility::Durable
    }

    /// Bytes of a consume-queue file.
    pub fn queue_file_bytes(&self) -> u64 {
        u64::from(self.queue_file_entries) * mqstore_format::CQ_UNIT_BYTES as u64
    }
}

fn validate_levels(levels: &DelayLevels) -> Result<(), StoreError> {
    const DAY_MS: i64 = 86_400_000;
    let reason = if levels.max_level() > DelayLevels::MOST {
        format!("{} levels are more than {}", levels.max_level(), DelayLevels::MOST)
    } else if levels.longest_ms() > LONGEST_LEVEL_DAYS * DAY_MS {
        format!("a delay of {} s is longer than {LONGEST_LEVEL_DAYS} days", levels.longest_ms() / 1000)
    } else {
        return Ok(());
    };
    Err(StoreError::InvalidOption { option: "delay_levels", reason })
}

/// Returns the hours in `text` as bits 0 to 23: numbers separated by ";", or "*" for all.
///
/// # Errors
/// [`StoreError::InvalidOption`] for any other text. Source of the form: `UtilAll#isItTimeToDo`.
pub fn delete_hours(text: &str) -> Result<u32, StoreError> {
    if text.trim() == "*" {
        return Ok((1 << 24) - 1);
    }
    let mut hours = 0;
    for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        match part.parse::<u32>() {
            Ok(hour) if hour < 24 => hours |= 1 << hour,
            _ => {
                let reason =
                    format!("{part:?} is not an hour from 0 to 23; write \"04\" or \"04;16\", or \"*\"");
                return Err(StoreError::InvalidOption { option: "delete_when", reason });
            }
        }
    }
    if hours == 0 {
        let reason = "it names no hour; write \"04\" or \"04;16\", or \"*\" for every hour".to_owned();
        return Err(StoreError::InvalidOption { option: "delete_when", reason });
    }
    Ok(hours)
}

fn within(option: &'static str, value: u64, low: u64, high: u64) -> Result<(), StoreError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(StoreError::InvalidOption { option, reason: format!("{value} is not between {low} and {high}") })
}
