//! Delayed messages of a store that is open for reading: counted, not delivered, and no file changed.

use mqstore_core::{Store, StoreError};
use mqstore_format::timer::{TIMER_LOG_FILE_BYTES, TIMER_PRECISION_MS, TIMER_TOPIC, TimerCheckpoint};
use mqstore_format::{DelayLevels, SCHEDULE_TOPIC};
use mqstore_io::Access;

use super::engine::slot_of;
use super::levels::Levels;
use super::log::TimerLog;
use super::state::StateFiles;
use super::stats::DelayCounts;
use super::wheel::Wheel;

impl DelayCounts {
    /// What waits in `store`, as its writer's files have it: up to a second old beside a writer, and what was delivered since
    /// its last save still counts.
    ///
    /// # Errors
    /// Those of reading the files.
    pub fn of_reader(store: &Store) -> Result<Self, StoreError> {
        let files = store.files();
        let (state_files, state) = StateFiles::load(files);
        let check = TimerCheckpoint::decode(&state_files.check());
        let mut counts = Self::default();
        let wheel = Wheel::open(files, Access::Read)?;
        let log = TimerLog::open(files, TIMER_LOG_FILE_BYTES, Access::Read)?;
        if let (Some(mut wheel), Some(mut log)) = (wheel, log) {
            let (begin, end) = log.bounds();
            log.walk(begin, end, |_, _| Ok(()))?;
            let mut next = wheel.next_used(slot_of(check.last_read_time_ms))?;
            while let Some(slot) = next {
                let mut left = 0_i64;
                let mut unit = wheel.slot(slot)?.map_or(-1, |slot| slot.last);
                let mut cancelled = std::collections::BTreeSet::new();
                while let Some(found) = log.unit(unit)? {
                    if found.deletes {
                        // Two records cancel one message; each names it.
                        let place = (found.physical_offset as u64, found.size.cast_unsigned());
                        let record = store.records_at(&[place])?.pop().flatten();
                        cancelled.extend(record.as_ref().and_then(super::record::cancels));
                    } else {
                        left += 1;
                    }
                    unit = found.previous;
                }
                left -= cancelled.len() as i64;
                if left > 0 {
                    counts.pending += left.unsigned_abs();
                    counts.next_due_ms.get_or_insert((slot + 1).saturating_mul(TIMER_PRECISION_MS));
                }
                next = wheel.next_used(slot + 1)?.filter(|next| *next > slot);
            }
        }
        let behind = |topic: &str, queue_id: i32, next: i64| match store.bounds(topic, queue_id) {
            Err(StoreError::TopicNotFound { .. }) => Ok(0),
            bounds => bounds.map(|(min, max)| (max - next.clamp(min, max)).unsigned_abs()),
        };
        counts.pending += behind(TIMER_TOPIC, 0, check.last_timer_queue_offset)?;
        let mut levels = Levels::new(DelayLevels::default(), &state_files.offsets());
        if let Some(state) = state {
            for (level, next) in state.levels {
                let known = levels.next.entry(level).or_insert(0);
                *known = (*known).max(next);
            }
        }
        for queue_id in store.queue_ids(SCHEDULE_TOPIC)? {
            let next = levels.next.get(&queue_id.saturating_add(1)).copied().unwrap_or(0);
            counts.pending += behind(SCHEDULE_TOPIC, queue_id, next)?;
        }
        Ok(counts)
    }
}
