//! The rule of a scan for damage of the log: it ends the scan or is skipped, as the request says.
//!
//! A walk of the log meets damage of every topic. Damage counts only if it can belong to the wanted queues: one of their
//! units points into it. So the answer is that of a read of these queues.

use std::sync::Arc;

use super::queue_position::first_behind;
use super::task::{Passed, SkipCallback};
use crate::read::cursor::damage_error;
use crate::read::scan_request::RowFilter;
use crate::read::view::StoreView;
use mqstore_base::error::StoreError;
use mqstore_base::options::DamagePolicy;
use mqstore_log::commit_log::Damage;

/// Maximum number of units of a queue that are compared with one damaged range.
const MOST_UNITS: usize = 4096;

/// See the header of this module.
pub(super) struct DamageRule {
    pub(super) view: StoreView,
    pub(super) filter: Arc<RowFilter>,
    pub(super) policy: DamagePolicy,
    /// The wanted queues; `None` means all records of the log.
    pub(super) queues: Option<Vec<(String, i32)>>,
    pub(super) tell: SkipCallback,
}

impl DamageRule {
    /// Handles damage up to log offset `end`. `text` says that it was skipped.
    pub(super) fn meet(&self, damage: &Damage, end: u64, text: String) -> Result<(), StoreError> {
        if !self.concerns(damage.offset, end)? {
            return Ok(());
        }
        if self.policy == DamagePolicy::Raise {
            return Err(damage_error(damage));
        }
        self.view.count_skipped(text.clone());
        self.tell(Passed::Damaged, text);
        Ok(())
    }

    /// Handles damage that no record follows: a torn tail, which ends the log, unless a wanted queue has a unit there.
    pub(super) fn meet_tail(&self, damage: &Damage, text: String) -> Result<(), StoreError> {
        if self.queues.is_some() && self.concerns(damage.offset, u64::MAX)? {
            return self.meet(damage, u64::MAX, text);
        }
        self.tell(Passed::Damaged, text);
        Ok(())
    }

    /// Reports to the caller of the scan.
    pub(super) fn tell(&self, what: Passed, text: String) {
        (self.tell)(what, text);
    }

    /// Whether the range of the log can contain a record of the wanted queues.
    fn concerns(&self, begin: u64, end: u64) -> Result<bool, StoreError> {
        let Some(queues) = &self.queues else { return Ok(true) };
        let mut units = Vec::new();
        for (topic, queue_id) in queues {
            let queue = (topic.as_str(), *queue_id);
            let Some(bounds) = self.view.bounds(topic, *queue_id)? else { continue };
            let first = first_behind(&*self.view, queue, bounds, begin)?;
            units.clear();
            self.view.units(topic, *queue_id, first, MOST_UNITS, &mut units)?;
            let points_into = |(offset, unit): &(i64, mqstore_format::CqUnit)| {
                u64::try_from(unit.physical_offset).is_ok_and(|at| (begin..end).contains(&at))
                    && self.filter.may_match_code(unit.tags_code)
                    && self.filter.wants_offset(*offset, offset.saturating_add(1))
            };
            if units.iter().any(points_into) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
