//! The two steps of one dispatch run: the step that any thread does at any time, and the ordered step.
//!
//! Across a crash: units may be in their slots before their run is committed. Recovery cuts them at the log offset up
//! to which the durable mark covers the queues.

use mqstore_io::sync::Ordering;

use super::Dispatcher;
use super::dispatch_run::{DispatchRun, QueueWork};
use crate::commit_log::{damaged_place_note, has_damaged_place};
use mqstore_base::error::StoreError;

impl Dispatcher {
    /// Decodes `run` and writes all units whose queue file exists already.
    pub(super) fn write_run(&self, run: &mut DispatchRun) -> Result<(), StoreError> {
        if !run.decoded {
            self.decode(run);
        }
        let mut known = run.queues.len();
        for (index, (topic, units)) in run.output.queues().enumerate() {
            // A second try reuses the queues that the first one found.
            if index >= known {
                let queue = self.queues.get_or_create(topic, units.queue_id())?;
                run.queues.push(QueueWork { queue, end: 0, late: Vec::new() });
                known += 1;
            }
            let Some(work) = run.queues.get_mut(index) else { continue };
            work.late.clear();
            for (place, (first, units)) in units.ranges().enumerate() {
                work.end = work.end.max(first.saturating_add(units.len() as i64));
                match work.queue.write_known(first, units)? {
                    Some(written) => {
                        self.refused_units.fetch_add(written.refused as u64, Ordering::Relaxed);
                    }
                    None => work.late.push(place),
                }
            }
        }
        run.buffer = run.records.let_go();
        Ok(())
    }

    fn decode(&self, run: &mut DispatchRun) {
        let DispatchRun { records, output, skipped, .. } = run;
        output.begin();
        let mut misplaced = Vec::new();
        let damage = self.rules.skip_damage.then_some(&mut *skipped);
        run.damage = records.records(false, damage, |record, offset| {
            if self.rules.check_place && has_damaged_place(record) {
                misplaced.push(damaged_place_note(offset, record.size.into()));
            } else {
                output.add(&self.rules, record, offset);
            }
        });
        skipped.append(&mut misplaced);
        if let Some(damage) = &run.damage {
            run.end = damage.offset;
        }
        run.decoded = true;
    }

    /// Does the ordered step: new files, commit positions, batch queues, index. The step can be repeated after an
    /// error. Then only index entries may be added twice, and lookups ignore duplicates.
    pub(super) fn commit_run(&self, run: &mut DispatchRun) -> Result<(), StoreError> {
        for (work, (_, units)) in run.queues.iter().zip(run.output.queues()) {
            let mut late = work.late.iter().copied().peekable();
            for (_, (first, units)) in
                units.ranges().enumerate().filter(|(place, _)| late.next_if_eq(place).is_some())
            {
                let written = work.queue.write(first, units)?;
                self.refused_units.fetch_add(written.refused as u64, Ordering::Relaxed);
            }
            work.queue.commit(work.end.max(work.queue.max_offset()))?;
        }
        run.batches.clear();
        for (topic, queue_id, units) in run.output.batches() {
            let queue = self.queues.batch_or_create(topic, queue_id)?;
            let outcome = queue.append(units)?;
            run.batches.push(queue);
            self.refused_units.fetch_add(outcome.refused as u64, Ordering::Relaxed);
        }
        self.index.put(&run.output.index)?;
        if run.output.records > 0 {
            *self.last_record.lock() = Some(run.output.last_record);
        }
        self.records.fetch_add(run.output.records, Ordering::Relaxed);
        self.index_entries.fetch_add(run.output.index.len() as u64, Ordering::Relaxed);
        self.skipped.lock().append(&mut run.skipped);
        Ok(())
    }
}
