//! Tables of delay levels, in the file `mqstore/delay-levels`. Each table has the log offset from which it is valid.
//!
//! The unit of a delayed message contains its due time by the table that was valid when the message was stored. The
//! store keeps its tables so that a rebuild makes the same units. The file exists only if a caller gave a table once.
//!
//! Source: `MessageStoreConfig#messageDelayLevel`, `DefaultMessageStore#computeDeliverTimestamp`,
//! `ScheduleMessageService#correctDeliverTimestamp`. Brokers remember no table.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use mqstore_format::{DelayLevels, crc31};

use super::StoreFiles;
use crate::error::StoreError;

#[cfg(test)]
mod tests;

/// File name of the tables.
pub const DELAY_LEVELS_FILE: &str = "delay-levels";

const MAGIC: &[u8; 8] = b"MQSLEVEL";
const LIMIT_BYTES: u64 = 16 << 20;
/// Maximum number of tables in the file; the oldest tables are dropped first.
const MOST_TABLES: usize = 1024;

/// The tables of a log. Cheap to clone.
///
/// ```text
/// "MQSLEVEL" | count 4 | { from 8 | length 4 | table, as in a broker's configuration } | CRC 4
/// ```
///
/// Across a crash: the file is replaced in one step, and it is durable before the first record that uses its last
/// table. If the log ends before a table begins, the log was truncated; the next writer lets that table begin at the
/// end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DelayTables {
    /// The table that is valid from the start of the log.
    first: Arc<DelayLevels>,
    /// The later tables, each with the log offset from which it is valid, in ascending order.
    later: Arc<[(u64, DelayLevels)]>,
}

impl DelayTables {
    /// Returns one table for the whole log.
    pub fn of(levels: DelayLevels) -> Self {
        Self { first: Arc::new(levels), later: Arc::default() }
    }

    /// Makes tables from `rows`, each with the offset from which it is valid, in ascending order. The first one is
    /// valid from the start of the log.
    fn of_rows(rows: impl IntoIterator<Item = (u64, DelayLevels)>) -> Self {
        let mut kept: Vec<(u64, DelayLevels)> = Vec::new();
        for (from, levels) in rows {
            // A table that is valid for no offset.
            while kept.pop_if(|(start, _)| *start >= from).is_some() {}
            if kept.last().is_none_or(|(_, before)| *before != levels) {
                kept.push((from, levels));
            }
        }
        let forgotten = kept.len().saturating_sub(MOST_TABLES);
        let mut kept = kept.into_iter().skip(forgotten);
        let first = kept.next().map(|(_, levels)| levels).unwrap_or_default();
        Self { first: Arc::new(first), later: kept.collect() }
    }

    fn rows(&self) -> impl Iterator<Item = (u64, &DelayLevels)> {
        let later = self.later.iter().map(|(from, levels)| (*from, levels));
        std::iter::once((0, &*self.first)).chain(later)
    }

    /// Returns the table for a record at log offset `offset`.
    #[inline]
    pub fn at(&self, offset: u64) -> &DelayLevels {
        let behind = self.later.partition_point(|(from, _)| *from <= offset);
        let found = behind.checked_sub(1).and_then(|index| self.later.get(index));
        found.map_or(&*self.first, |(_, levels)| levels)
    }

    /// Returns the table for records that are stored from now on.
    pub fn latest(&self) -> &DelayLevels {
        self.later.last().map_or(&*self.first, |(_, levels)| levels)
    }

    /// Returns the due time of a message of `level` at log offset `offset` whose unit contains `entry_ms`. If the delay
    /// of its level is shorter now than it was then, the due time is earlier by the difference.
    pub fn due_ms(&self, level: i32, offset: u64, entry_ms: i64) -> i64 {
        let (then, now) = (self.at(offset).delay_ms(level), self.latest().delay_ms(level));
        let less = then.zip(now).map_or(0, |(then, now)| then.saturating_sub(now).max(0));
        entry_ms.saturating_sub(less)
    }

    /// Returns the tables of a store whose log has the range `log`, with `given` valid from its end; `None` keeps the
    /// latest table valid.
    fn going_on(&self, given: Option<&DelayLevels>, log: &Range<u64>) -> Self {
        let known = self.rows().map(|(from, levels)| (from, levels.clone()));
        let next = (log.end, given.unwrap_or_else(|| self.latest()).clone());
        let within = |from: u64| if from <= log.start { 0 } else { from.min(log.end) };
        Self::of_rows(known.chain([next]).map(|(from, levels)| (within(from), levels)))
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&((1 + self.later.len()) as u32).to_be_bytes());
        for (from, levels) in self.rows() {
            let text = levels.to_string();
            bytes.extend_from_slice(&from.to_be_bytes());
            bytes.extend_from_slice(&(text.len() as u32).to_be_bytes());
            bytes.extend_from_slice(text.as_bytes());
        }
        bytes.extend_from_slice(&crc31(&bytes).to_be_bytes());
        bytes
    }

    /// Decodes the content of the file; `None` if it is not valid.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, crc) = bytes.split_last_chunk::<4>()?;
        if *crc != crc31(body).to_be_bytes() {
            return None;
        }
        let (count, mut rest) = body.strip_prefix(MAGIC)?.split_first_chunk::<4>()?;
        let mut rows: Vec<(u64, DelayLevels)> = Vec::new();
        for _ in 0..u32::from_be_bytes(*count) {
            let (from, after) = rest.split_first_chunk::<8>()?;
            let (length, after) = after.split_first_chunk::<4>()?;
            let (text, after) = after.split_at_checked(u32::from_be_bytes(*length) as usize)?;
            let from = u64::from_be_bytes(*from);
            let in_order = rows.last().map_or(from == 0, |(before, _)| *before < from);
            let levels = DelayLevels::parse(std::str::from_utf8(text).ok()?).ok()?;
            if !in_order || rows.len() == MOST_TABLES {
                return None;
            }
            rows.push((from, levels));
            rest = after;
        }
        (!rows.is_empty() && rest.is_empty()).then(|| Self::of_rows(rows))
    }
}

impl StoreFiles {
    /// `mqstore/delay-levels`: the tables of delay levels.
    pub fn delay_levels_file(&self) -> PathBuf {
        self.side().join(DELAY_LEVELS_FILE)
    }

    /// Returns the tables that the store remembers, else `given`, else RocketMQ's default table.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if the file is damaged and `given` is `None`; I/O errors.
    pub fn delay_tables(&self, given: Option<&DelayLevels>) -> Result<DelayTables, StoreError> {
        let known = self.known_delays(given)?;
        Ok(known.unwrap_or_else(|| given.cloned().map(DelayTables::of).unwrap_or_default()))
    }

    /// Returns the tables for the writer of the log range `log` and stores them in the file; call it before the first
    /// append. `given`, if there is one, is valid from now on. `ours` matters only if there is no file: whether the log
    /// was written with RocketMQ's default table.
    pub fn settle_delays(
        &self,
        given: Option<&DelayLevels>,
        log: &Range<u64>,
        ours: bool,
    ) -> Result<DelayTables, StoreError> {
        let known = match (self.known_delays(given)?, given) {
            (Some(known), _) => known,
            // Of a broker's messages only the caller knows the table.
            (None, Some(given)) if !ours => DelayTables::of(given.clone()),
            (None, _) => DelayTables::default(),
        };
        let tables = known.going_on(given, log);
        self.remember_delays(&tables)?;
        Ok(tables)
    }

    /// Writes `tables` to the file, durably. Does nothing if the file, or its absence, already says the same.
    pub fn remember_delays(&self, tables: &DelayTables) -> Result<(), StoreError> {
        let (path, bytes) = (self.delay_levels_file(), tables.encode());
        let known = self.vfs.read_file(&path, LIMIT_BYTES);
        let same = match &known {
            Ok(known) => *known == bytes,
            Err(error) => error.kind() == std::io::ErrorKind::NotFound && *tables == DelayTables::default(),
        };
        if same {
            return Ok(());
        }
        self.replace_file(&path, &bytes, "storing the delay levels")
    }

    fn known_delays(&self, given: Option<&DelayLevels>) -> Result<Option<DelayTables>, StoreError> {
        if self.is_bare_log() {
            return Ok(None);
        }
        let path = self.delay_levels_file();
        match self.vfs.read_file(&path, LIMIT_BYTES) {
            Ok(bytes) => match DelayTables::decode(&bytes) {
                None if given.is_none() => {
                    let reason = "the tables of delay levels are damaged; give the option delay_levels, or repair \
                                  the store (it then uses RocketMQ's levels)";
                    Err(StoreError::corrupt(&path, 0, reason))
                }
                // The damage does not matter if the caller gave a table.
                known => Ok(known),
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::io(&path, "reading the delay levels", error)),
        }
    }
}
