//! Converts options: the dict of `mqstore._options.native_form`.

use std::str::FromStr;

use mqstore::body_compression::BodyCompression;
use mqstore::format::{Compression, DelayLevels, Host};
use mqstore::options::{
    DamagePolicy, DledgerEnd, Durability, MasterOptions, OpenMode, RecoveryMode, RetentionPolicy,
    StoreOptions, Visibility,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::error::{InvalidOptionError, to_py};

/// Converts a dict of plain values to the core's options: sizes in bytes, durations in milliseconds.
pub(crate) fn from_dict(values: &Bound<'_, PyDict>) -> PyResult<StoreOptions> {
    let mut options = StoreOptions::default();
    for (name, value) in values.iter() {
        let name = name.cast_into::<PyString>()?;
        let name = name.to_str()?;
        match name {
            "recovery" => options.recovery = recovery(&value.extract::<String>()?)?,
            "segment_size" => options.segment_bytes = whole(name, &value)?,
            "queue_file_entries" => options.queue_file_entries = whole(name, &value)?,
            "index_slots" => options.index_slots = whole(name, &value)?,
            "index_entries" => options.index_entries = whole(name, &value)?,
            "durability" => options.durability = durability(&value.extract::<String>()?)?,
            "flush_interval" => options.flush_interval_ms = whole(name, &value)?,
            "flush_least_pages" => options.flush_least_pages = whole(name, &value)?,
            "flush_thorough_interval" => options.flush_thorough_interval_ms = whole(name, &value)?,
            "visibility" => options.visibility = visibility(&value.extract::<String>()?)?,
            "commit_interval" => options.commit_interval_ms = whole(name, &value)?,
            "pool_size" => options.pool_bytes = whole(name, &value)?,
            "busy_after" => options.busy_after_ms = whole(name, &value)?,
            "queue_wait_limit" => options.queue_wait_limit_ms = whole(name, &value)?,
            "prewarm" => options.prewarm = value.extract()?,
            "lock_memory" => options.lock_memory = value.extract()?,
            "record_crc" => options.record_crc = value.extract()?,
            "index_tags" => options.index_tags = value.extract()?,
            "max_message_size" => options.max_message_bytes = whole(name, &value)?,
            "compression" => options.compression = compression(&value)?,
            "compress_over" => options.compress_over_bytes = whole(name, &value)?,
            "default_queues" => options.default_queues = whole(name, &value)?,
            "auto_create_topics" => options.auto_create_topics = value.extract()?,
            "store_host" => options.store_host = host(&value.extract::<String>()?)?,
            "dispatch_threads" => options.dispatch_threads = optional(name, &value)?,
            "max_open_files" => options.max_open_files = optional(name, &value)?,
            "retention" => options.retention_ms = optional(name, &value)?,
            "retention_policy" => options.retention_policy = retention_policy(&value.extract::<String>()?)?,
            "group_timeout" => options.group_timeout_ms = optional(name, &value)?,
            "retention_bytes" => options.retention_bytes = optional(name, &value)?,
            "max_bytes" => options.max_bytes = optional(name, &value)?,
            "delete_when" => options.delete_when = value.extract()?,
            "delete_interval" => options.delete_interval_ms = whole(name, &value)?,
            "held_limit" => options.held_limit_ms = whole(name, &value)?,
            "disk_clean_ratio" => options.disk_clean_ratio = optional(name, &value)?,
            "disk_force_ratio" => options.disk_force_ratio = optional(name, &value)?,
            "disk_refuse_ratio" => options.disk_refuse_ratio = optional(name, &value)?,
            "secure_wipe" => options.secure_wipe = value.extract()?,
            "expire_uncompacted" => options.expire_uncompacted = value.extract()?,
            "compaction_interval" => options.compaction_interval_ms = optional(name, &value)?,
            "compaction_dirty_ratio" => options.compaction_dirty_ratio = value.extract()?,
            "compaction_memory_size" => options.compaction_memory_bytes = whole(name, &value)?,
            "compaction_feed" => options.compaction_feed = value.extract()?,
            "compaction_log_file_size" => options.compaction_log_file_bytes = whole(name, &value)?,
            "compaction_queue_file_size" => options.compaction_queue_file_bytes = whole(name, &value)?,
            "delay_levels" => options.delay_levels = delay_levels(value.extract()?)?,
            "commit_log_paths" => options.commit_log_paths = value.extract()?,
            "read_only_commit_log_paths" => options.read_only_commit_log_paths = value.extract()?,
            "derived_path" => options.derived_path = value.extract()?,
            "replication" => options.replication = master(&value)?,
            "replicated" => options.replicated = value.extract()?,
            "dledger_end" => options.dledger_end = dledger_end(&value.extract::<String>()?)?,
            "on_event" | "before_delete" | "archive_look" => {
                crate::convert::hooks::set(&mut options.hooks, name, &value)?;
            }
            _ => return Err(bad(name, "no such option")),
        }
    }
    options.validate().map_err(to_py)?;
    Ok(options)
}

/// Raises the error with which an open refuses these options; needs no directory.
#[pyfunction]
pub(crate) fn check_options(options: &Bound<'_, PyDict>) -> PyResult<()> {
    from_dict(options).map(drop)
}

/// Converts the mode argument of `open`.
pub(crate) fn mode(text: &str) -> PyResult<(OpenMode, &'static str)> {
    match text {
        "r" => Ok((OpenMode::Read, "r")),
        "rw" => Ok((OpenMode::ReadWrite, "rw")),
        "create" => Ok((OpenMode::Create, "create")),
        _ => Err(PyValueError::new_err(format!("mode must be \"r\", \"rw\" or \"create\", not {text:?}"))),
    }
}

/// Converts the options of a master; None serves no replicas.
fn master(value: &Bound<'_, PyAny>) -> PyResult<Option<MasterOptions>> {
    if value.is_none() {
        return Ok(None);
    }
    let values = value.cast::<PyDict>()?;
    let mut options = MasterOptions::default();
    for (name, value) in values.iter() {
        let name = name.cast_into::<PyString>()?;
        match name.to_str()? {
            "listen" => options.listen = value.extract()?,
            name @ "in_sync_replicas" => options.in_sync_replicas = whole(name, &value)?,
            name @ "min_in_sync" => options.min_in_sync = whole(name, &value)?,
            name @ "epoch" => options.epoch = optional(name, &value)?,
            name @ "ack_timeout" => options.ack_timeout_ms = whole(name, &value)?,
            name @ "lag_limit" => options.lag_limit_ms = whole(name, &value)?,
            "durable_acks" => options.durable_acks = value.extract()?,
            name @ "metadata_interval" => options.metadata_interval_ms = whole(name, &value)?,
            name @ "replica_timeout" => options.replica_timeout_ms = whole(name, &value)?,
            name => return Err(bad(name, "no such option of a master")),
        }
    }
    Ok(Some(options))
}

fn delay_levels(text: Option<String>) -> PyResult<Option<DelayLevels>> {
    let parsed = text.map(|text| DelayLevels::parse(&text)).transpose();
    parsed.map_err(|error| bad("delay_levels", &error.to_string()))
}

/// Converts a compression; None and `"none"` store bodies unchanged.
fn compression(value: &Bound<'_, PyAny>) -> PyResult<Option<Compression>> {
    if value.is_none() {
        return Ok(None);
    }
    let text = value.extract::<String>().unwrap_or_default();
    match Compression::ALL.into_iter().find(|kind| kind.name() == text) {
        None if text != "none" => {
            let reason = format!("{} is not one of \"zstd\", \"lz4\", \"zlib\", \"none\"", value.repr()?);
            Err(bad("compression", &reason))
        }
        found => Ok(found),
    }
}

/// Returns how a call compresses bodies: by its arguments, and by the options of the store for those that are None.
#[inline]
pub(crate) fn compression_of_call(
    of_store: BodyCompression,
    kind: Option<&Bound<'_, PyAny>>,
    over: Option<&Bound<'_, PyAny>>,
) -> PyResult<BodyCompression> {
    if kind.is_none() && over.is_none() {
        return Ok(of_store);
    }
    let over_bytes: Option<u32> = over.map(|over| whole("compress_over", over)).transpose()?;
    if let Some(bytes) = over_bytes {
        StoreOptions { compress_over_bytes: bytes, ..StoreOptions::default() }.validate().map_err(to_py)?;
    }
    Ok(BodyCompression {
        kind: kind.map_or(Ok(of_store.kind), compression)?,
        over_bytes: over_bytes.unwrap_or(of_store.over_bytes),
        ..of_store
    })
}

fn durability(text: &str) -> PyResult<Durability> {
    match text {
        "sync" => Ok(Durability::Sync),
        "async" => Ok(Durability::Async),
        "manual" => Ok(Durability::Manual),
        "pooled" => Ok(Durability::Pooled),
        _ => Err(bad(
            "durability",
            &format!("{text:?} is not one of \"sync\", \"async\", \"manual\", \"pooled\""),
        )),
    }
}

fn recovery(text: &str) -> PyResult<RecoveryMode> {
    match text {
        "strict" => Ok(RecoveryMode::Strict),
        "salvage" => Ok(RecoveryMode::Salvage),
        "read-only" => Ok(RecoveryMode::ReadOnly),
        _ => Err(bad("recovery", &format!("{text:?} is not one of \"strict\", \"salvage\", \"read-only\""))),
    }
}

fn retention_policy(text: &str) -> PyResult<RetentionPolicy> {
    match text {
        "finished" => Ok(RetentionPolicy::Finished),
        "time" => Ok(RetentionPolicy::Time),
        _ => Err(bad("retention_policy", &format!("{text:?} is not one of \"finished\", \"time\""))),
    }
}

/// Converts the option `dledger_end`.
pub(crate) fn dledger_end(text: &str) -> PyResult<DledgerEnd> {
    match text {
        "committed" => Ok(DledgerEnd::Committed),
        "queues" => Ok(DledgerEnd::Queues),
        "all" => Ok(DledgerEnd::All),
        _ => Err(bad("dledger_end", &format!("{text:?} is not one of \"committed\", \"queues\", \"all\""))),
    }
}

/// Converts the argument `on_damage`.
pub(crate) fn damage_policy(value: &Bound<'_, PyAny>) -> PyResult<DamagePolicy> {
    match value.extract::<String>().as_deref() {
        Ok("raise") => Ok(DamagePolicy::Raise),
        Ok("skip") => Ok(DamagePolicy::Skip),
        _ => Err(bad("on_damage", &format!("{} is not one of \"raise\", \"skip\"", value.repr()?))),
    }
}

fn visibility(text: &str) -> PyResult<Visibility> {
    match text {
        "appended" => Ok(Visibility::Appended),
        "durable" => Ok(Visibility::Durable),
        "confirmed" => Ok(Visibility::Confirmed),
        _ => {
            let reason = format!("{text:?} is not one of \"appended\", \"durable\", \"confirmed\"");
            Err(bad("visibility", &reason))
        }
    }
}

fn host(text: &str) -> PyResult<Host> {
    Host::from_str(text).map_err(|_| bad("store_host", &format!("{text:?} is not ip:port or [v6]:port")))
}

fn whole<T: for<'a, 'py> FromPyObject<'a, 'py>>(name: &str, value: &Bound<'_, PyAny>) -> PyResult<T> {
    value.extract::<T>().map_err(|_| bad(name, &format!("{value} is out of bounds")))
}

fn optional<T: for<'a, 'py> FromPyObject<'a, 'py>>(
    name: &str,
    value: &Bound<'_, PyAny>,
) -> PyResult<Option<T>> {
    if value.is_none() { Ok(None) } else { whole(name, value).map(Some) }
}

fn bad(option: &str, reason: &str) -> PyErr {
    InvalidOptionError::new_err((option.to_owned(), reason.to_owned()))
}
