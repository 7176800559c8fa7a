//! The specification of one measurement, as the caller writes it.

use std::path::PathBuf;
use std::time::Duration;

use mqstore_base::options::Visibility;
use mqstore_base::options::{Durability, StoreOptions};
use mqstore_bench::PATIENCE_MS;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::Failure;

/// One measurement. Fields that an operation does not use may be left out.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "fields of a text that people write")]
pub(crate) struct Spec {
    pub(crate) op: String,
    pub(crate) side: String,
    /// The folder of the store, or of the limit's files. It must not exist, except for `open`.
    pub(crate) path: PathBuf,
    pub(crate) durability: String,
    /// Options of mqstore with the names of `StoreOptions`.
    pub(crate) options: Map<String, Value>,
    pub(crate) body_bytes: usize,
    pub(crate) messages: u64,
    /// Messages before the measurement.
    pub(crate) warm_up: u64,
    pub(crate) threads: u64,
    pub(crate) queues: u32,
    /// Messages in one call.
    pub(crate) batch: u64,
    /// Whether each call is timed separately.
    pub(crate) latency: bool,
    /// `appended` or `drained`. `drained` waits until queues and index are built up to the end of the log.
    pub(crate) until: String,
    /// Messages in one burst without a pause, 0 for all. Only the bursts are timed.
    pub(crate) burst: u64,
    /// Milliseconds between two bursts.
    pub(crate) pause_ms: u64,
    /// Milliseconds between warm-up and measurement, for work in the background.
    pub(crate) settle_ms: u64,
    /// How messages are found: `sequential`, `random`, `lookup`. How a new one is found: `read`, `wake`.
    pub(crate) pattern: String,
    /// Reads: only this many messages, the oldest ones, are read.
    pub(crate) span: u64,
    /// Number of other waits during the measurement.
    pub(crate) waiters: u64,
    /// The end of the log, as `fill` returned it.
    pub(crate) log_end: u64,
    /// Dispatch: whether the index is also built.
    pub(crate) index: bool,
    /// Dispatch: whether checksums are verified.
    pub(crate) check_crc: bool,
    /// Limits: whether the pages are present and writable before the measurement.
    pub(crate) prefaulted: bool,
    /// Open loop: messages per second.
    pub(crate) rate: u64,
    /// Compaction: number of different keys.
    pub(crate) keys: u64,
    /// Compaction: whether full keys are compared.
    pub(crate) confirm_keys: bool,
    /// Open: messages at the end that are not synced explicitly.
    pub(crate) unflushed: u64,
    /// Open: whether the store is closed afterwards. If not, it stays open until the process is killed.
    pub(crate) close: bool,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            op: String::new(),
            side: "ours".into(),
            path: PathBuf::new(),
            durability: "async".into(),
            options: Map::new(),
            body_bytes: 1024,
            messages: 0,
            warm_up: 0,
            threads: 1,
            queues: 1,
            batch: 1,
            latency: false,
            until: "appended".into(),
            burst: 0,
            pause_ms: 0,
            settle_ms: 0,
            pattern: String::new(),
            span: u64::MAX,
            waiters: 0,
            log_end: 0,
            index: true,
            check_crc: false,
            prefaulted: false,
            rate: 1,
            keys: u64::MAX,
            confirm_keys: true,
            unflushed: 0,
            close: true,
        }
    }
}

impl Spec {
    /// The bursts of messages.
    pub(crate) fn bursts(&self) -> impl Iterator<Item = u64> {
        let size = if self.burst == 0 { self.messages.max(1) } else { self.burst };
        let whole = std::iter::repeat_n(size, (self.messages / size) as usize);
        let rest = self.messages % size;
        whole.chain((rest > 0).then_some(rest))
    }

    /// The pause between two bursts.
    pub(crate) fn pause(&self) -> Duration {
        Duration::from_millis(self.pause_ms)
    }

    /// The store's options: mqstore's defaults, changed by the specification.
    pub(crate) fn store_options(&self) -> Result<StoreOptions, Failure> {
        let mut options = StoreOptions {
            durability: durability(&self.durability)?,
            default_queues: self.queues,
            // As on the Java side, a pause of a busy disk is no reason to refuse a message. It is measured.
            busy_after_ms: PATIENCE_MS,
            queue_wait_limit_ms: PATIENCE_MS,
            ..StoreOptions::default()
        };
        for (name, value) in &self.options {
            set(&mut options, name, value)?;
        }
        Ok(options)
    }
}

fn durability(name: &str) -> Result<Durability, Failure> {
    Ok(match name {
        "sync" => Durability::Sync,
        "async" => Durability::Async,
        "manual" => Durability::Manual,
        "pooled" => Durability::Pooled,
        _ => return Err(format!("mqstore has no durability {name:?}").into()),
    })
}

fn set(options: &mut StoreOptions, name: &str, value: &Value) -> Result<(), Failure> {
    let number = || value.as_u64().ok_or_else(|| format!("{name} needs a number, not {value}"));
    let small = || number().and_then(|number| u32::try_from(number).map_err(|error| error.to_string()));
    let flag = || value.as_bool().ok_or_else(|| format!("{name} needs true or false, not {value}"));
    match name {
        "segment_bytes" => options.segment_bytes = number()?,
        "dispatch_threads" => options.dispatch_threads = Some(small()?),
        "flush_interval_ms" => options.flush_interval_ms = number()?,
        "index_slots" => options.index_slots = small()?,
        "index_entries" => options.index_entries = small()?,
        "pool_bytes" => options.pool_bytes = number()?,
        "commit_interval_ms" => options.commit_interval_ms = number()?,
        "prewarm" => options.prewarm = flag()?,
        "compaction_feed" => options.compaction_feed = flag()?,
        "lock_memory" => options.lock_memory = flag()?,
        "visibility" => {
            options.visibility = match value.as_str() {
                Some("appended") => Visibility::Appended,
                Some("durable") => Visibility::Durable,
                _ => return Err(format!("visibility is appended or durable, not {value}").into()),
            }
        }
        "record_crc" => options.record_crc = flag()?,
        _ => return Err(format!("the driver does not know the option {name:?}").into()),
    }
    Ok(())
}
