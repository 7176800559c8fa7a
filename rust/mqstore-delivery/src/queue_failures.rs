//! Queues that cannot be read, among others that can.

use crate::error::BrokerError;

/// What becomes of the errors of some of `queues`, given with their places: where other queues have something, `note`
/// is told of each; else the first is the outcome for who looks. The next look meets them again.
pub(crate) fn merge_queue_errors<Q>(
    queues: &mut [Q],
    failures: Vec<(usize, BrokerError)>,
    others_have: bool,
    mut note: impl FnMut(&mut Q, &BrokerError),
) -> Result<(), BrokerError> {
    for (at, error) in failures {
        if !others_have {
            return Err(error);
        }
        if let Some(queue) = queues.get_mut(at) {
            note(queue, &error);
        }
    }
    Ok(())
}
