//! Problems of queue files that a reader sees only because a writer in another process makes and deletes files.
//!
//! Owns nothing and writes nothing. A problem that stays the same after several tries is accepted.

use std::mem;
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::retry::poll_interval;
use mqstore_base::store_files::StoreFiles;

/// Number of tries after a file seemed to be missing: 80 ms of sleep in total.
const SETTLE_TRIES: u32 = 14;

/// Returns those of `queues` whose files are wrong according to `is_odd`. While another process writes, a listing can
/// lack a new file and contain the file after it. With two worker threads, the one with the later file can name it
/// first. So while a writer runs, the files of such queues are listed again by `renew` before the result counts.
pub(super) fn confirm_problems<Q>(
    files: &StoreFiles,
    beside: bool,
    mut queues: Vec<Arc<Q>>,
    is_odd: impl Fn(&Q) -> Result<bool, StoreError>,
    renew: impl Fn(&Q) -> Result<(), StoreError>,
) -> Result<Vec<Arc<Q>>, StoreError> {
    let mut keep_odd = |renewed: bool| {
        let mut odd = Vec::new();
        for queue in mem::take(&mut queues) {
            if renewed {
                renew(&queue)?;
            }
            let is_odd = match is_odd(&queue) {
                // The writer removed a listed file.
                Err(error) if beside && error.is_gone() => true,
                found => found?,
            };
            if is_odd {
                odd.push(queue);
            }
        }
        queues = odd;
        Ok(queues.is_empty())
    };
    let mut done = keep_odd(false)?;
    let mut round = 0;
    while beside && !done && round < SETTLE_TRIES {
        files.clock.sleep(poll_interval(round));
        done = keep_odd(true)?;
        round += 1;
    }
    Ok(queues)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use mqstore_io::{ManualClock, SimVfs};

    use super::*;

    /// Returns the queues that stay odd, and how often `renew` ran. One queue is complete once it is listed a third
    /// time, another one never is.
    fn odd_ones(beside: bool) -> (Vec<u32>, u32) {
        let clock = Arc::new(ManualClock::new(1_700_000_000_000));
        let files = StoreFiles::new(Arc::new(SimVfs::default()), clock, std::path::Path::new("/store"));
        let looks = Cell::new(0);
        let renewed = Cell::new(0);
        let is_odd = |queue: &u32| Ok(*queue == 7 || *queue == 3 && renewed.get() < 3);
        let renew = |queue: &u32| {
            looks.set(looks.get() + 1);
            renewed.set(renewed.get() + u32::from(*queue == 3));
            Ok(())
        };
        let queues = vec![Arc::new(1), Arc::new(3), Arc::new(7)];
        let odd = confirm_problems(&files, beside, queues, is_odd, renew).unwrap();
        (odd.into_iter().map(|queue| *queue).collect(), looks.get())
    }

    #[test]
    fn beside_a_writer_an_odd_queue_is_looked_at_again() {
        assert_eq!(odd_ones(true), (vec![7], 3 + SETTLE_TRIES));
        assert_eq!(odd_ones(false), (vec![3, 7], 0));
    }
}
