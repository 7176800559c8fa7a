//! How a store behaves: every option with its default, its bounds and RocketMQ's name of it.
//!
//! A directory's own geometry always wins over the sizes given here; they count for new files only.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use mqstore_format::{DelayLevels, Host};
use mqstore_io::Environment;

use crate::error::StoreError;
use crate::events::Hooks;

/// Threads that build queues and index at most.
const MAX_DISPATCH_THREADS: u32 = 8;

/// The longest delay of a level.
const LONGEST_LEVEL_DAYS: i64 = 36_500;

/// What an open may do to the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Reads only; takes no lock and changes no byte.
    Read,
    /// Reads and writes a store that exists.
    ReadWrite,
    /// As [`OpenMode::ReadWrite`], and makes the store when it is missing.
    Create,
}

impl OpenMode {
    /// Whether this mode may write.
    pub fn writes(self) -> bool {
        !matches!(self, Self::Read)
    }
}

/// When an append returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// After a sync that covers the record; waiting threads share one sync. `SYNC_FLUSH`.
    Sync,
    /// Once copied into the mapping; synced in the background. `ASYNC_FLUSH`.
    Async,
    /// Once copied into the mapping; synced by `flush` and `close` only.
    Manual,
    /// Once copied into a pool of memory, which the background writes to the file and syncs; a kill of
    /// the process loses what was not written yet. `ASYNC_FLUSH` with `transientStorePoolEnable`.
    Pooled,
}

/// What readers may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// Whatever was appended.
    Appended,
    /// What a loss of power cannot take back; always so with [`Durability::Sync`].
    Durable,
}

/// What an open for writing does about damage that is no torn tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryMode {
    /// Refuses the store and changes nothing.
    Strict,
    /// Goes on behind it; readers pass over what is damaged. Nothing is deleted.
    Salvage,
    /// Opens the store for reading instead, as with [`OpenMode::Read`].
    ReadOnly,
}

/// Options of one open.
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own, by its own name")]
#[derive(Clone, Debug, PartialEq)]
pub struct StoreOptions {
    /// What an open for writing does about damage below the durable mark. Default
    /// [`RecoveryMode::Strict`]. RocketMQ has no such choice: it cuts the log at the first bad record.
    pub recovery: RecoveryMode,
    /// Bytes of a commit-log segment. Default 1 GiB, 4 KiB to 2 GiB − 1. `mappedFileSizeCommitLog`.
    pub segment_bytes: u64,
    /// Entries of a consume-queue file. Default 300,000, 1 to 50,000,000. `mappedFileSizeConsumeQueue` / 20.
    pub queue_file_entries: u32,
    /// Hash slots of an index file. Default 5,000,000, at least 1. `maxHashSlotNum`.
    pub index_slots: u32,
    /// Entries of an index file. Default 20,000,000, at least 2. `maxIndexNum`.
    pub index_entries: u32,
    /// When an append returns. Default [`Durability::Async`]. `flushDiskType`.
    pub durability: Durability,
    /// What readers may see. Default [`Visibility::Appended`].
    pub visibility: Visibility,
    /// Milliseconds between background syncs. Default 500, 1 to 3,600,000. `flushIntervalCommitLog`.
    pub flush_interval_ms: u64,
    /// Dirty 4 KiB pages that make a background sync worth while. Default 4. `flushCommitLogLeastPages`.
    pub flush_least_pages: u32,
    /// Milliseconds after which everything dirty is synced. Default 10,000. `flushCommitLogThoroughInterval`.
    pub flush_thorough_interval_ms: u64,
    /// With [`Durability::Pooled`]: milliseconds after which pooled records are written to the file.
    /// Default 200, 1 to 3,600,000. `commitIntervalCommitLog`.
    pub commit_interval_ms: u64,
    /// Bytes of the pool. Default 16 MiB, 64 KiB to 16 GiB. `transientStorePoolSize` × segment size.
    pub pool_bytes: u64,
    /// Milliseconds that one append may hold the put lock before others fail. Default 1,000, 1 to
    /// 3,600,000. `osPageCacheBusyTimeOutMills`.
    pub busy_after_ms: u64,
    /// Milliseconds that an append waits for the put lock at most. Default 200, 1 to 3,600,000.
    /// `waitTimeMillsInSendQueue`.
    pub queue_wait_limit_ms: u64,
    /// Whether the next segment and the pages ahead of the tail are made ready in the background.
    /// Default true. `warmMapedFileEnable`.
    pub prewarm: bool,
    /// Whether the pages ahead of the tail are locked in memory. Default false; `prewarm` is needed.
    /// RocketMQ locks what it warms.
    pub lock_memory: bool,
    /// Whether new records carry RocketMQ's CRC of the whole record. Default true. `enabledAppendPropCRC`.
    pub record_crc: bool,
    /// Whether tags get index entries, as RocketMQ 5.5.0 writes them. Default false; they do anyway where the last
    /// writer of the directory added them.
    pub index_tags: bool,
    /// Largest body in bytes. Default 4 MiB, 10 to 1 GiB. `maxMessageSize`.
    pub max_message_bytes: u32,
    /// Queues of a topic made by an append. Default 1, 1 to 65,536. `defaultTopicQueueNums`.
    pub default_queues: u32,
    /// Whether an append makes an unknown topic. Default true. `autoCreateTopicEnable`.
    pub auto_create_topics: bool,
    /// The address written as store host and born host. Default 127.0.0.1:10911. `brokerIP1`, `listenPort`.
    pub store_host: Host,
    /// Threads that build queues and index; 0 builds them in the appending thread. At most 8; `None`, the
    /// default, for as many as there are processors, at most 8. See [`Self::dispatch_workers`].
    pub dispatch_threads: Option<u32>,
    /// Milliseconds after which a log segment goes, counted from its last record's store time; `None`,
    /// the default, keeps all. 1 to 2^53. `fileReservedTime` (hours, 72 there by default).
    pub retention_ms: Option<u64>,
    /// Bytes of log segments, the active one included, above which the oldest go; `None`, the default,
    /// for no limit. At least 1. RocketMQ has none.
    pub retention_bytes: Option<u64>,
    /// Bytes of log segments, the active one and a prepared one included, that there may be: appends that need another
    /// one are refused with [`StoreError::Full`]. `None`, the default, for no limit; no less than a segment. RocketMQ
    /// has none.
    pub max_bytes: Option<u64>,
    /// Hours of the local day in which segments go by age, as "4" or "04;16"; "*" for every hour.
    /// Default "04". `deleteWhen`.
    pub delete_when: String,
    /// Milliseconds between two deletions. Default 100, at most 3,600,000. `deleteCommitLogFilesInterval`.
    pub delete_interval_ms: u64,
    /// Milliseconds after which a segment goes although readers hold it; they keep its bytes. Default
    /// 120,000, at most 86,400,000. `destroyMapedFileIntervalForcibly`.
    pub held_limit_ms: u64,
    /// Used part of a disk above which segments go by age at any hour; only where a retention is set.
    /// Default 0.75, 0 to 1. `diskMaxUsedSpaceRatio` (percent).
    pub disk_clean_ratio: f64,
    /// Used part of a disk above which the oldest segments go whatever their age; only where a retention
    /// is set. Default 0.85, 0 to 1. `diskSpaceCleanForciblyRatio` (percent).
    pub disk_force_ratio: f64,
    /// Used part of a disk above which appends are refused until there is room again. Default 0.90, 0 to
    /// 1; 1 never refuses. `diskSpaceWarningLevelRatio` (percent).
    pub disk_refuse_ratio: f64,
    /// Whether a segment is overwritten with zeros and synced before its room is given back. Default false.
    pub secure_wipe: bool,
    /// Whether a segment goes although it holds keyed messages of a compaction topic that are in no compaction
    /// file yet, which are lost then. Default false. RocketMQ goes by its dispatch alone.
    pub expire_uncompacted: bool,
    /// Milliseconds between two looks at compaction topics, of which those are compacted that have changed
    /// enough; `None`, the default, leaves compaction to whoever asks for it. 1 to 31,536,000,000 (a year).
    /// `compactionScheduleInternal` (900,000 there, and a random part of it).
    pub compaction_interval_ms: Option<u64>,
    /// The part of a queue's messages, those that the last compaction kept included, that has to be newer than
    /// it before the background compacts its topic. Default 0.5, 0 to 1; with 0 one message is enough.
    /// RocketMQ goes by closed files instead.
    pub compaction_dirty_ratio: f64,
    /// Bytes that the keys of a queue may take in memory when the background compacts it. Default 100 MiB.
    /// `maxOffsetMapSize` / `compactionThreadNum`.
    pub compaction_memory_bytes: u64,
    /// Whether what is appended to compaction topics is copied to their compaction files too, where brokers look for it.
    /// Default true.
    pub compaction_feed: bool,
    /// Wished bytes of a compaction log file, in a store that has none yet. Default 104,857,600; the length is a
    /// multiple of the queue file's. `compactionMappedFileSize`.
    pub compaction_log_file_bytes: u64,
    /// Wished bytes of a compaction queue file, in a store that has none yet; cut to entries of 46 bytes. Default
    /// 10,485,760. `compactionCqMappedFileSize`.
    pub compaction_queue_file_bytes: u64,
    /// What delay levels mean from this open on; the directory remembers it. `None`, the default, for what it remembers, else
    /// RocketMQ's levels. 1 to 256 levels of at most 36,500 days; where nothing is appended it counts for directories that
    /// remember none. `messageDelayLevel`.
    pub delay_levels: Option<DelayLevels>,
    /// Folders that new segments go to in turn; a relative one counts from the store's root. Empty, the
    /// default, stands for what the store remembers, else `commitlog`. `storePathCommitLog`.
    pub commit_log_paths: Vec<PathBuf>,
    /// Folders with older segments, to which none is added; with `commit_log_paths` only.
    /// `readOnlyCommitLogStorePaths`.
    pub read_only_commit_log_paths: Vec<PathBuf>,
    /// What the program wants to hear and to decide; none by default.
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
            record_crc: true,
            index_tags: false,
            max_message_bytes: 4 << 20,
            default_queues: 1,
            auto_create_topics: true,
            store_host: Host { ip: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 10911 },
            dispatch_threads: None,
            retention_ms: None,
            retention_bytes: None,
            max_bytes: None,
            delete_when: "04".into(),
            delete_interval_ms: 100,
            held_limit_ms: 120_000,
            disk_clean_ratio: 0.75,
            disk_force_ratio: 0.85,
            disk_refuse_ratio: 0.90,
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
            hooks: Hooks::default(),
        }
    }
}

impl StoreOptions {
    /// Checks every bound.
    ///
    /// # Errors
    /// [`StoreError::InvalidOption`] that names the first option out of its bounds.
    pub fn validate(&self) -> Result<(), StoreError> {
        within("segment_size", self.segment_bytes, 4096, (1 << 31) - 1)?;
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
                reason: "it locks what prewarm prepares, and prewarm is off".into(),
            });
        }
        within("max_message_size", self.max_message_bytes.into(), 10, 1 << 30)?;
        within("default_queues", self.default_queues.into(), 1, 65_536)?;
        within(
            "dispatch_threads",
            self.dispatch_threads.unwrap_or(1).into(),
            0,
            MAX_DISPATCH_THREADS.into(),
        )?;
        within("compaction_interval", self.compaction_interval_ms.unwrap_or(1), 1, 31_536_000_000)?;
        within("compaction_log_file_size", self.compaction_log_file_bytes, 460, (1 << 31) - 1)?;
        within("compaction_queue_file_size", self.compaction_queue_file_bytes, 92, ((1 << 31) - 1) / 5)?;
        self.validate_retention()?;
        self.delay_levels.as_ref().map_or(Ok(()), validate_levels)?;
        if !(0..=65_535).contains(&self.store_host.port) {
            return Err(StoreError::InvalidOption {
                option: "store_host",
                reason: format!("port {} is not between 0 and 65535", self.store_host.port),
            });
        }
        Ok(())
    }

    /// How many threads dispatch in `environment`: none where background work has no threads.
    pub fn dispatch_workers(&self, environment: &Environment) -> u32 {
        let wanted = self.dispatch_threads.unwrap_or(environment.processors.clamp(1, MAX_DISPATCH_THREADS));
        if environment.threads { wanted } else { 0 }
    }

    fn validate_retention(&self) -> Result<(), StoreError> {
        within("retention", self.retention_ms.unwrap_or(1), 1, 1 << 53)?;
        within("retention_bytes", self.retention_bytes.unwrap_or(1), 1, u64::MAX)?;
        within("max_bytes", self.max_bytes.unwrap_or(1), 1, u64::MAX)?;
        within("delete_interval", self.delete_interval_ms, 0, 3_600_000)?;
        within("held_limit", self.held_limit_ms, 0, 86_400_000)?;
        for (option, ratio) in [
            ("disk_clean_ratio", self.disk_clean_ratio),
            ("disk_force_ratio", self.disk_force_ratio),
            ("disk_refuse_ratio", self.disk_refuse_ratio),
            ("compaction_dirty_ratio", self.compaction_dirty_ratio),
        ] {
            if !(0.0..=1.0).contains(&ratio) {
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
                reason: "needs commit_log_paths, which say where new segments go".to_owned(),
            });
        }
        Ok(())
    }

    /// Whether old segments may go at all.
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

/// The hours that `text` names, as bits 0 to 23: numbers with ";" between, or "*" for all.
///
/// # Errors
/// [`StoreError::InvalidOption`] for anything else. Source of the form: `UtilAll#isItTimeToDo`.
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
        let reason = "names no hour; write \"04\" or \"04;16\", or \"*\" for every hour".to_owned();
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
