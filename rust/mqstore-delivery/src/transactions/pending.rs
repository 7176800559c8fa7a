//! Counts the pending transactions of a store that is open for reading. Checks none and changes no file.
//!
//! A half message is decided if an op message names it, or if it is below the offset of RocketMQ's group for half
//! messages. Op messages are read from the first one that an open would read. Memory: a bit for each half message
//! from the first pending one on, and eight bytes for each pending transaction.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_engine::Store;
use mqstore_format::topic::{HALF_TOPIC, OP_TOPIC};
use mqstore_format::transaction::{HalfRecord, OpRecord};
use mqstore_meta::Progress;

use super::engine::{CHECK_GROUP, NOTED_GROUP};

/// Records in one read.
const AT_ONCE: usize = 256;

/// Pending transactions of one producer group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingGroup {
    /// The producer group.
    pub group: String,
    /// Number of its pending transactions.
    pub transactions: u64,
    /// Number of their half messages.
    pub messages: u64,
    /// Store time of the first of these messages, in epoch milliseconds.
    pub oldest_ms: i64,
    /// The largest number of checks of one of the transactions.
    pub checks: u32,
}

impl PendingGroup {
    /// Returns the pending transactions of `store` by producer group, sorted by name; see the module's text.
    ///
    /// # Errors
    /// Errors of reading the files.
    pub(crate) fn all_of(store: &Store) -> Result<Vec<Self>, StoreError> {
        let Some(pending) = PendingHalves::of(store)? else { return Ok(Vec::new()) };
        let mut groups = GroupTotals::default();
        let mut some = Vec::with_capacity(AT_ONCE);
        for one in pending.each() {
            some.push(one);
            if some.len() == AT_ONCE {
                groups.add(store, &some)?;
                some.clear();
            }
        }
        groups.add(store, &some)?;
        Ok(groups.by_name.into_values().collect())
    }
}

/// Returns the queue offsets of the half messages of `store` without a decision, ascending.
///
/// # Errors
/// Errors of reading the files.
pub(crate) fn undecided_halves(store: &Store) -> Result<Vec<i64>, StoreError> {
    let pending = PendingHalves::of(store)?;
    let mut offsets: Vec<i64> =
        pending.iter().flat_map(PendingHalves::each).map(|(offset, _)| offset).collect();
    offsets.sort_unstable();
    Ok(offsets)
}

/// Whether the half message at a queue offset of `store` has no decision.
///
/// # Errors
/// Errors of reading the files.
pub(crate) fn is_undecided(store: &Store, half: i64) -> Result<bool, StoreError> {
    let pending = PendingHalves::of(store)?;
    Ok(pending.is_some_and(|pending| pending.each().any(|(offset, _)| offset == half)))
}

/// The half messages that may be pending, and those of them that op messages decide.
struct PendingHalves {
    halves: Progress,
    decided: DecidedHalves,
    bounds: (i64, i64),
}

impl PendingHalves {
    /// Reads the state of the half messages; `None` if there are none.
    fn of(store: &Store) -> Result<Option<Self>, StoreError> {
        let bounds = |topic: &str| match store.bounds(topic, 0) {
            Err(StoreError::TopicNotFound { .. }) => Ok((0, 0)),
            bounds => bounds,
        };
        let (half_min, half_max) = bounds(HALF_TOPIC)?;
        if half_min >= half_max {
            return Ok(None);
        }
        let wanted = [(CHECK_GROUP, HALF_TOPIC, 0), (NOTED_GROUP, OP_TOPIC, 0), (CHECK_GROUP, OP_TOPIC, 0)];
        let mut known = store.group_table()?.progress(&wanted)?.into_iter();
        let halves = known.next().flatten().unwrap_or_else(|| Progress::starting_at(half_min));
        let op = known.flatten().find_map(|progress| progress.offset());
        let mut decided = DecidedHalves::from(halves.committed().clamp(half_min, half_max), half_max);
        let (op_min, op_max) = bounds(OP_TOPIC)?;
        if op_min < op_max {
            decided.read(store, op.unwrap_or(op_min).clamp(op_min, op_max))?;
        }
        Ok(Some(Self { halves, decided, bounds: (half_min, half_max) }))
    }

    /// Returns queue offset and number of checks of each half message without a decision.
    fn each(&self) -> impl Iterator<Item = (i64, u32)> {
        let (half_min, half_max) = self.bounds;
        let noted = self.halves.leases().map(|(offset, lease)| (offset, lease.attempt));
        let since = (self.halves.next().max(half_min)..half_max).map(|offset| (offset, 0));
        noted.chain(since).filter(|(offset, _)| !self.decided.has(*offset))
    }
}

/// The half messages that op messages name.
struct DecidedHalves {
    base: i64,
    end: i64,
    bits: Vec<u64>,
}

impl DecidedHalves {
    fn from(base: i64, end: i64) -> Self {
        let words = (end - base).unsigned_abs().div_ceil(64);
        Self { base, end, bits: vec![0; words as usize] }
    }

    fn place(&self, offset: i64) -> Option<(usize, u64)> {
        let at = (self.base..self.end).contains(&offset).then(|| offset - self.base)?;
        Some(((at / 64) as usize, 1 << (at % 64)))
    }

    fn has(&self, offset: i64) -> bool {
        self.place(offset).is_none_or(|(word, bit)| self.bits.get(word).is_some_and(|bits| bits & bit != 0))
    }

    fn read(&mut self, store: &Store, from: i64) -> Result<(), StoreError> {
        let mut cursor = store.read(OP_TOPIC, 0, Some(from), None, None)?;
        loop {
            let records = cursor.next_batch(AT_ONCE)?;
            if records.is_empty() {
                return Ok(());
            }
            for view in records.iter().filter_map(|record| record.view().ok()) {
                for offset in OpRecord::of(&view).half_offsets {
                    if let Some((word, bit)) = self.place(offset)
                        && let Some(bits) = self.bits.get_mut(word)
                    {
                        *bits |= bit;
                    }
                }
            }
        }
    }
}

#[derive(Default)]
struct GroupTotals {
    by_name: BTreeMap<String, PendingGroup>,
    /// Hashes of transactions that are already counted.
    seen: HashSet<u64>,
}

impl GroupTotals {
    fn add(&mut self, store: &Store, open: &[(i64, u32)]) -> Result<(), StoreError> {
        let offsets: Vec<i64> = open.iter().map(|(offset, _)| *offset).collect();
        if offsets.is_empty() {
            return Ok(());
        }
        for (record, (_, checks)) in store.messages_at(HALF_TOPIC, 0, &offsets)?.iter().zip(open) {
            if let Some(record) = record {
                self.add_half(record, *checks);
            }
        }
        Ok(())
    }

    fn add_half(&mut self, record: &StoredRecord, checks: u32) {
        let Ok(view) = record.view() else { return };
        // An open skips a half message without topic or queue too.
        let Some(half) = HalfRecord::of(&view) else { return };
        let mut hash = DefaultHasher::new();
        (half.group, half.transaction).hash(&mut hash);
        let is_new = self.seen.insert(hash.finish());
        let group = self.by_name.entry(half.group.to_owned()).or_insert_with(|| PendingGroup {
            group: half.group.to_owned(),
            transactions: 0,
            messages: 0,
            oldest_ms: i64::MAX,
            checks: 0,
        });
        group.transactions += u64::from(is_new);
        group.messages += 1;
        group.oldest_ms = group.oldest_ms.min(view.store_timestamp);
        group.checks = group.checks.max(checks).max(half.checks);
    }
}
