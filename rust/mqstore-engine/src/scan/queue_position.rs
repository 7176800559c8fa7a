//! The offset of a queue at which a log offset lies.
//!
//! Owns nothing; reads a few units of the queue.

use crate::read::view::View;
use mqstore_base::error::StoreError;

/// Returns the first offset in `min..max` of a queue whose unit points to log offset `from` or a later one.
pub(super) fn first_behind(
    view: &dyn View,
    (topic, queue_id): (&str, i32),
    (min, max): (i64, i64),
    from: u64,
) -> Result<i64, StoreError> {
    let (mut low, mut high) = (min, max);
    let mut units = Vec::new();
    while low < high {
        let middle = low + (high - low) / 2;
        units.clear();
        view.units(topic, queue_id, middle, 1, &mut units)?;
        match units.first().filter(|(offset, _)| *offset < high) {
            Some((offset, unit)) if u64::try_from(unit.physical_offset).is_ok_and(|at| at < from) => {
                low = offset + 1;
            }
            _ => high = middle,
        }
    }
    Ok(low)
}
