//! Tables of delay levels, each with the log offset from which it counts: the file `mqstore/delay-levels`.
//!
//! The entry of a delayed message holds its due time by the table that counted when the message was stored. A store
//! remembers its tables so that a rebuild makes the same entries. The file exists only if a table was named once.
//!
//! Source: `MessageStoreConfig#messageDelayLevel`, `DefaultMessageStore#computeDeliverTimestamp`,
//! `ScheduleMessageService#correctDeliverTimestamp`. Brokers remember no table.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use mqstore_format::{DelayLevels, crc31};

use super::StoreFiles;
use crate::error::{IoContext, StoreError};

#[cfg(test)]
mod tests;

/// The name of the file.
pub const DELAY_LEVELS_FILE: &str = "delay-levels";

const MAGIC: &[u8; 8] = b"MQSLEVEL";
const LIMIT_BYTES: u64 = 16 << 20;
/// Tables that are remembered; of more the oldest are forgotten.
const MOST_TABLES: usize = 1024;

/// The tables of a log. Cheap to clone.
///
/// ```text
/// "MQSLEVEL" | count 4 | { from 8 | length 4 | table, as in a broker's configuration } | CRC 4
/// ```
///
/// Across a crash: the file is replaced in one step, and it is durable before the first record that its last table is
/// for. If the log ends before a table begins, it was truncated: the next writer lets the table begin at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DelayTables {
    /// From where the log begins.
    first: Arc<DelayLevels>,
    /// The others, each with the log offset from which it counts, in ascending order.
    later: Arc<[(u64, DelayLevels)]>,
}

impl DelayTables {
    /// One table for all of a log.
    pub fn of(levels: DelayLevels) -> Self {
        Self { first: Arc::new(levels), later: Arc::default() }
    }

    /// The tables of `rows`, each with the offset from which it counts, in ascending order; the first one counts from the
    /// beginning.
    fn of_rows(rows: impl IntoIterator<Item = (u64, DelayLevels)>) -> Self {
        let mut kept: Vec<(u64, DelayLevels)> = Vec::new();
        for (from, levels) in rows {
            // One that counts for nothing.
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

    /// The table that counts for a record at log offset `offset`.
    #[inline]
    pub fn at(&self, offset: u64) -> &DelayLevels {
        let behind = self.later.partition_point(|(from, _)| *from <= offset);
        let found = behind.checked_sub(1).and_then(|index| self.later.get(index));
        found.map_or(&*self.first, |(_, levels)| levels)
    }

    /// The table that counts for what is stored from now on.
    pub fn latest(&self) -> &DelayLevels {
        self.later.last().map_or(&*self.first, |(_, levels)| levels)
    }

    /// When a message of `level` at log offset `offset`, whose entry says `entry_ms`, is due: then, or earlier by as much
    /// as its level waits less long by now.
    pub fn due_ms(&self, level: i32, offset: u64, entry_ms: i64) -> i64 {
        let (then, now) = (self.at(offset).delay_ms(level), self.latest().delay_ms(level));
        let less = then.zip(now).map_or(0, |(then, now)| then.saturating_sub(now).max(0));
        entry_ms.saturating_sub(less)
    }

    /// The tables of a store whose log lies at `log`, when `given` counts for what comes behind it; `None` for the one that
    /// counted last.
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

    /// What `bytes`, the content of the file, say; `None` for anything else.
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

    /// The tables that the store remembers, else `given`, else the table of an unchanged configuration.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when what it remembers is damaged and nobody gave one; reading it can fail.
    pub fn delay_tables(&self, given: Option<&DelayLevels>) -> Result<DelayTables, StoreError> {
        let known = self.known_delays(given)?;
        Ok(known.unwrap_or_else(|| given.cloned().map(DelayTables::of).unwrap_or_default()))
    }

    /// For the writer of a log at `log`, before its first record: the tables, of which `given`, if there is one, counts from
    /// now on. Remembers them. `ours`: what is there was written without a table, where none is remembered.
    pub fn settle_delays(
        &self,
        given: Option<&DelayLevels>,
        log: &Range<u64>,
        ours: bool,
    ) -> Result<DelayTables, StoreError> {
        let known = match (self.known_delays(given)?, given) {
            (Some(known), _) => known,
            // Of what a broker wrote nothing is known but what the caller says.
            (None, Some(given)) if !ours => DelayTables::of(given.clone()),
            (None, _) => DelayTables::default(),
        };
        let tables = known.going_on(given, log);
        self.remember_delays(&tables)?;
        Ok(tables)
    }

    /// Remembers `tables`, durably, where that is not what an absent file says.
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
        let staged = self.staging().join(DELAY_LEVELS_FILE);
        self.vfs.write_atomic(&path, &staged, &bytes).at(&path, "remembering the delay levels")
    }

    fn known_delays(&self, given: Option<&DelayLevels>) -> Result<Option<DelayTables>, StoreError> {
        if self.is_bare_log() {
            return Ok(None);
        }
        let path = self.delay_levels_file();
        match self.vfs.read_file(&path, LIMIT_BYTES) {
            Ok(bytes) => match DelayTables::decode(&bytes) {
                None if given.is_none() => {
                    let reason = "the tables of delay levels are damaged; give delay_levels, or repair the store, which \
                                  then has RocketMQ's levels";
                    Err(StoreError::corrupt(&path, 0, reason))
                }
                // Damage does not matter to somebody who knows better.
                known => Ok(known),
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::io(&path, "reading the delay levels", error)),
        }
    }
}
