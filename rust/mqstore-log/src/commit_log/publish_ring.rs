//! Publication in order, of records that are copied in any order.
//!
//! Who reserves a stretch of the log gets the next *ticket* with it, under the put lock; who has copied
//! it completes the ticket. The published position is the end of the longest run of completed tickets:
//!
//! ```text
//! ticket     7      8      9      10     11
//!          done   done   copying  done  reserved
//!                        ^ head: published up to here, whatever lies behind
//! ```
//!
//! Across threads: any number complete at once, without a lock. A slot belongs to the one holder of its
//! ticket until that is completed, and then to whoever moves the head past it; a ticket whose slot is
//! still in use is not given out. Who completes the ticket at the head moves the published position and
//! then looks for a mark in the next slot; who completes a later one marks its slot and then looks at
//! the published position. These four are sequentially consistent, so that one of the two sees the
//! other: a run that is complete is always published by the last of those who completed it.
//!
//! Nothing here reaches a disk.

#[cfg(not(loom))]
use mqstore_io::sync::{AtomicU64, Ordering};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};

use std::time::Duration;

use mqstore_io::EventCount;
use mqstore_io::sync::Raise;

/// Tickets that may be open at once: more than any machine has threads that append.
#[cfg(not(loom))]
const SLOTS: u64 = 1024;
#[cfg(loom)]
const SLOTS: u64 = 2;

/// How long who waits for a free slot sleeps before another look; in a model, where nothing is missed,
/// until somebody wakes him.
#[cfg(not(loom))]
const FULL_NAP: Option<Duration> = Some(Duration::from_millis(1));
#[cfg(loom)]
const FULL_NAP: Option<Duration> = None;

/// The model checker takes sequentially consistent accesses for weaker ones, but knows such fences.
#[inline]
fn fence_for_models() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// The order of publication; see the module's text. In cache lines of its own, which each append changes.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct PublishRing {
    slots: Box<[TicketSlot]>,
    /// The ticket that is published next.
    head: AtomicU64,
    published: AtomicU64,
    moved: EventCount,
}

#[derive(Debug)]
struct TicketSlot {
    /// Where the stretch ends.
    end: AtomicU64,
    /// One more than the ticket that was completed here last.
    done: AtomicU64,
}

impl PublishRing {
    /// A ring whose first ticket, 0, follows what is published up to `position`.
    pub(super) fn new(position: u64) -> Self {
        let slots = (0..SLOTS).map(|_| TicketSlot { end: AtomicU64::new(0), done: AtomicU64::new(0) });
        Self {
            slots: slots.collect(),
            head: AtomicU64::new(0),
            published: AtomicU64::new(position),
            moved: EventCount::new(),
        }
    }

    /// One past the last published byte.
    #[inline]
    pub(super) fn published(&self) -> u64 {
        self.published.load(Ordering::Acquire)
    }

    /// Returns once `ticket` may be used. Its holder must be the only one who asks.
    pub(super) fn wait_for_slot(&self, ticket: u64) {
        let free = || ticket - self.head.load(Ordering::Acquire) < SLOTS;
        // The head moves before the position that wakes who waits: who sees the old head just then looks
        // again after a while. So many open tickets are rare.
        while !free() {
            self.moved.wait_until(FULL_NAP, free);
        }
    }

    /// Says that everything up to `end` which belongs to `ticket` is written, and publishes what can be.
    /// Returns whether this call moved the published position.
    ///
    /// `before` runs, at most once, while no other thread can move the position: with `end`, before it
    /// is published here.
    #[inline]
    pub(super) fn complete(&self, ticket: u64, end: u64, before: impl FnOnce(u64)) -> bool {
        // Nobody is before this one, and nobody else moves the head past a ticket that is not marked: no
        // mark is needed.
        if self.head.load(Ordering::Acquire) == ticket {
            before(end);
            self.head.store(ticket + 1, Ordering::Release);
            // The holder of the next ticket may be here first, with a later end.
            self.published.raise(end, Ordering::SeqCst);
            fence_for_models();
            self.publish();
            self.moved.notify_all_after_fence();
            return true;
        }
        let slot = self.slot(ticket);
        slot.end.store(end, Ordering::Relaxed);
        slot.done.swap(ticket + 1, Ordering::SeqCst);
        fence_for_models();
        self.publish()
    }

    /// Moves the head over the tickets that are marked, and the published position with it.
    fn publish(&self) -> bool {
        let mut moved = false;
        loop {
            // Whoever moved the position moved the head before: with the one this has seen the other.
            self.published.load(Ordering::SeqCst);
            let head = self.head.load(Ordering::Acquire);
            let slot = self.slot(head);
            match slot.done.load(Ordering::SeqCst).cmp(&(head + 1)) {
                std::cmp::Ordering::Less => break,
                // The head that was read is an old one: the slot has its next holder already.
                std::cmp::Ordering::Greater => continue,
                std::cmp::Ordering::Equal => {}
            }
            let end = slot.end.load(Ordering::Relaxed);
            // Somebody else may have moved it, and the slot may even have the next holder by now.
            if self.head.compare_exchange(head, head + 1, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                // Those who moved the head further may be here first.
                self.published.raise(end, Ordering::SeqCst);
                fence_for_models();
                moved = true;
            }
        }
        if moved {
            self.moved.notify_all();
        }
        moved
    }

    /// Returns once everything up to `position` is published, or `given_up` holds; whether it is.
    /// Whoever makes `given_up` true calls [`Self::wake`].
    pub(super) fn wait_published(&self, position: u64, given_up: impl Fn() -> bool) -> bool {
        if self.published() < position {
            self.moved.wait_until(None, || self.published() >= position || given_up());
        }
        self.published() >= position
    }

    /// Lets those who wait look again.
    pub(super) fn wake(&self) {
        self.moved.notify_all();
    }

    #[expect(clippy::indexing_slicing, reason = "there are SLOTS slots, and SLOTS is not 0")]
    fn slot(&self, ticket: u64) -> &TicketSlot {
        &self.slots[(ticket % SLOTS) as usize]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Mutex;
    use std::thread;

    use super::*;

    #[test]
    fn a_gap_holds_back_what_follows() {
        let ring = PublishRing::new(100);
        assert!(!ring.complete(1, 30 + 100, drop));
        assert_eq!(ring.published(), 100);
        assert!(ring.complete(0, 10 + 100, drop));
        assert_eq!(ring.published(), 130);
        assert!(!ring.wait_published(131, || true));
    }

    #[test]
    fn many_threads_publish_everything_in_order() {
        let ring = PublishRing::new(0);
        let next = Mutex::new((0_u64, 0_u64));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut seen = 0;
                    for _ in 0..20_000 {
                        let (ticket, end) = {
                            let mut next = next.lock().unwrap();
                            ring.wait_for_slot(next.0);
                            let ticket = next.0;
                            *next = (ticket + 1, next.1 + 7);
                            (ticket, next.1)
                        };
                        ring.complete(ticket, end, drop);
                        assert!(ring.wait_published(end, || false));
                        assert!(ring.published() >= seen);
                        seen = ring.published();
                    }
                });
            }
        });
        assert_eq!(ring.published(), 4 * 20_000 * 7);
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// All interleavings with up to two preemptions: what lock-free code gets wrong shows up in those.
    fn check(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(model);
    }

    /// Two threads complete two tickets: whatever the order, both are published in the end, the
    /// position never covers a stretch that is not complete, and each one's wait ends.
    #[test]
    fn every_complete_run_is_published() {
        check(|| {
            let ring = Arc::new(PublishRing::new(0));
            let written = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
            let workers: Vec<_> = (0..2_u64)
                .map(|ticket| {
                    let (ring, written) = (Arc::clone(&ring), Arc::clone(&written));
                    thread::spawn(move || {
                        written[ticket as usize].store(1, Ordering::Relaxed);
                        ring.complete(ticket, (ticket + 1) * 10, drop);
                        ring.wait_published((ticket + 1) * 10, || false);
                        for below in 0..=ticket {
                            assert_eq!(written[below as usize].load(Ordering::Relaxed), 1);
                        }
                    })
                })
                .collect();
            for worker in workers {
                worker.join().unwrap();
            }
            assert_eq!(ring.published(), 20);
        });
    }

    /// A third ticket takes the slot of the first one only after that was published.
    #[test]
    fn a_slot_is_used_again_only_when_it_is_free() {
        check(|| {
            let ring = Arc::new(PublishRing::new(0));
            let first = {
                let ring = Arc::clone(&ring);
                thread::spawn(move || {
                    ring.complete(0, 10, drop);
                })
            };
            ring.complete(1, 20, drop);
            ring.wait_for_slot(2);
            ring.complete(2, 30, drop);
            first.join().unwrap();
            assert_eq!(ring.published(), 30);
        });
    }
}
