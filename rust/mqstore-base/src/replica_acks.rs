//! How far the copies of other machines are, and who waits for them.
//!
//! ```text
//! append ── publishes ──► log_grew ──► the threads that send to replicas
//! append ── waits ◄────── raise ◄───── a replica reported its end
//! ```
//!
//! The master raises the covered position: up to there, as many copies as an append waits for have the log. Nothing on
//! disk. Across threads: any number of appends wait; one thread at a time raises.

use std::time::Duration;

use mqstore_io::EventCount;
use mqstore_io::sync::{AtomicBool, AtomicU64, Ordering, Raise};

/// See the header of this module.
#[derive(Debug, Default)]
pub struct ReplicaAcks {
    covered: AtomicU64,
    /// The covered position rose, or the waits end.
    rose: EventCount,
    /// The log grew, or there is something else to send.
    grew: EventCount,
    /// Number of appends that wait.
    waiting: AtomicU64,
    hurried: EventCount,
    /// Whether an append needs no copy but its own.
    alone: AtomicBool,
    ended: AtomicBool,
}

impl ReplicaAcks {
    /// Returns the covered position.
    pub fn covered(&self) -> u64 {
        self.covered.load(Ordering::Acquire)
    }

    /// Raises the covered position. A smaller one changes nothing.
    pub fn raise(&self, position: u64) {
        if position > self.covered() {
            self.covered.raise(position, Ordering::SeqCst);
            self.rose.notify_all();
        }
    }

    /// Sets whether an append needs no copy but its own: then no wait begins.
    pub fn set_alone(&self, alone: bool) {
        if self.alone.swap(alone, Ordering::SeqCst) != alone {
            self.rose.notify_all();
        }
    }

    /// Whether an append needs no copy but its own.
    pub fn is_alone(&self) -> bool {
        self.alone.load(Ordering::SeqCst)
    }

    /// Waits until the covered position is at least `position`, for at most `timeout`; returns whether it is.
    pub fn wait(&self, position: u64, timeout: Duration) -> bool {
        let is_covered = || self.covered() >= position || self.is_alone();
        if is_covered() {
            return true;
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.hurried.notify_all();
        self.rose.wait_until(Some(timeout), || is_covered() || self.ended.load(Ordering::SeqCst));
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        is_covered()
    }

    /// Ends all waits, now and later: no replica will report any more.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.rose.notify_all();
        self.wake_senders();
    }

    /// Tells the senders that the log may have grown, after a sequentially consistent store that published its end.
    #[inline]
    pub fn log_grew_after_fence(&self) {
        self.grew.notify_all_after_fence();
    }

    /// Makes the senders look.
    pub fn wake_senders(&self) {
        self.grew.notify_all();
        self.hurried.notify_all();
    }

    /// Waits until `due` is true, for at most `timeout`; for a thread that sends.
    pub fn wait_to_send(&self, timeout: Duration, due: impl Fn() -> bool) {
        self.grew.wait_until(Some(timeout), due);
    }

    /// Lets more records gather for `timeout`, unless an append waits for its copies or `stopped` is true.
    pub fn let_records_gather(&self, timeout: Duration, stopped: impl Fn() -> bool) {
        self.hurried.wait_until(Some(timeout), || self.waiting.load(Ordering::SeqCst) > 0 || stopped());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_wait_ends_when_its_position_is_covered() {
        let acks = Arc::new(ReplicaAcks::default());
        assert!(!acks.wait(5, Duration::from_millis(1)));
        let waits: Vec<_> = (1..=20)
            .map(|position| {
                let acks = Arc::clone(&acks);
                std::thread::spawn(move || acks.wait(position, LONG))
            })
            .collect();
        for position in [3, 2, 20] {
            acks.raise(position);
        }
        assert!(waits.into_iter().all(|wait| wait.join().unwrap()));
        assert_eq!(acks.covered(), 20);
    }

    #[test]
    fn senders_do_not_let_records_gather_while_an_append_waits() {
        let acks = Arc::new(ReplicaAcks::default());
        let own = Arc::clone(&acks);
        let wait = std::thread::spawn(move || own.wait(1, LONG));
        acks.let_records_gather(LONG, || false);
        acks.raise(1);
        assert!(wait.join().unwrap());
        acks.let_records_gather(LONG, || true);
    }

    #[test]
    fn a_store_alone_needs_no_copy() {
        let acks = ReplicaAcks::default();
        acks.set_alone(true);
        assert!(acks.wait(1, LONG));
        acks.set_alone(false);
        assert!(!acks.wait(1, Duration::from_millis(1)));
    }

    #[test]
    fn an_end_ends_all_waits() {
        let acks = Arc::new(ReplicaAcks::default());
        let own = Arc::clone(&acks);
        let wait = std::thread::spawn(move || own.wait(1, LONG));
        acks.end();
        assert!(!wait.join().unwrap());
        assert!(!acks.wait(1, LONG));
    }
}
