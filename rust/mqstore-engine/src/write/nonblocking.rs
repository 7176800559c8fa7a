//! Operations for a thread that must not wait, for example one that runs an event loop.
//!
//! The caller learns before an operation whether it may have to wait: for a new segment, for a sync, for other threads,
//! or for much work. The answer describes the current state. If another thread changes the state before the operation,
//! the operation takes longer, but its result is correct. A write to memory can also wait in the system; nothing can
//! predict that.

use crate::engine::Engine;
use mqstore_base::message::NewMessage;
use mqstore_base::options::Durability;

/// Bytes that are copied, or whose queue units are made, without the help of another thread: some tenths of a
/// millisecond.
const SMALL_BYTES: u64 = 256 << 10;

/// Upper estimate of a record's bytes without body, properties and topic.
const RECORD_BYTES: u64 = 256;

impl Engine {
    /// Whether a read of a queue has little work to do first: all but the newest records are dispatched.
    pub(crate) fn is_caught_up(&self) -> bool {
        let end = self.log.appended().min(self.dispatcher.limit());
        end.saturating_sub(self.dispatcher.position()) <= SMALL_BYTES
    }

    /// Whether these messages can be appended without a wait.
    pub(crate) fn can_append_now(&self, messages: &[NewMessage<'_>]) -> bool {
        let options = &self.options;
        let wants_sync = messages.iter().any(|message| message.durable);
        let bytes = messages.iter().map(|message| {
            (message.body.len() + message.properties.len() + message.topic.len()) as u64 + RECORD_BYTES
        });
        let bytes = bytes.fold(0_u64, u64::saturating_add);
        // An append that dispatches can have much to dispatch. An append that creates a topic makes files.
        !self.needs_sync(wants_sync)
            && !options.replicated
            && options.dispatch_threads != Some(0)
            && bytes <= SMALL_BYTES
            && !self.is_far_behind()
            && (options.durability != Durability::Pooled || self.log.pool_has_space(bytes))
            && self.log.is_ready_for(bytes)
            && messages.iter().all(|message| self.topics.get(message.topic).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, plain, put, small};
    use mqstore_base::error::StoreError;
    use mqstore_base::options::{OpenMode, StoreOptions};

    /// Options with dispatch threads, so that appends do not dispatch.
    fn options() -> StoreOptions {
        StoreOptions { dispatch_threads: None, ..small() }
    }

    #[test]
    fn an_append_that_may_wait_is_not_made() {
        let world = World::real();
        let store = world.open(OpenMode::Create, &options()).unwrap();
        let at_once = |message: &NewMessage<'_>| store.nonblocking().try_append(message).unwrap().is_some();
        assert!(!at_once(&plain("a", b"there is no segment and no topic")));
        put(&store, "a", 0, b"makes both", "k");
        assert!(at_once(&plain("a", b"body")));
        assert!(!at_once(&plain("b", b"no such topic")));
        assert!(!at_once(&NewMessage { durable: true, ..plain("a", b"body") }));
        assert!(!at_once(&plain("a", &[0; 15 << 10])), "the segment is nearly full then");
        let many =
            store.nonblocking().try_append_many(&[plain("a", b"x"), plain("a", b"y")]).unwrap().unwrap();
        assert_eq!(many.iter().map(|one| one.queue_offset).collect::<Vec<_>>(), [2, 3]);
        assert!(store.nonblocking().try_append_many(&vec![plain("a", b"x"); 60]).unwrap().is_none());
        let mut made = 4;
        while at_once(&plain("a", &[0; 100])) {
            made += 1;
        }
        let stats = store.stats().unwrap();
        assert_eq!((stats.segments, stats.appends), (1, made));
        assert!(stats.log_max_offset > 12 << 10);
        store.close().unwrap();
    }

    #[test]
    fn a_store_that_syncs_or_dispatches_each_append_makes_none_at_once() {
        for options in [
            StoreOptions { durability: Durability::Sync, ..options() },
            StoreOptions { dispatch_threads: Some(0), ..options() },
        ] {
            let world = World::real();
            let store = world.open(OpenMode::Create, &options).unwrap();
            put(&store, "a", 0, b"body", "k");
            assert_eq!(store.nonblocking().try_append(&plain("a", b"body")).unwrap(), None);
            store.close().unwrap();
        }
    }

    #[test]
    fn looks_and_reads_near_the_end_are_told_from_others() {
        let world = World::real();
        let store = world.open(OpenMode::Create, &options()).unwrap();
        for _ in 0..100 {
            put(&store, "a", 0, &[7; 1000], "k");
        }
        let cursor = |start| store.read("a", 0, Some(start), None, None).unwrap();
        assert!(!cursor(0).is_near_end(16 << 10).unwrap());
        assert!(cursor(95).is_near_end(16 << 10).unwrap());
        assert!(cursor(100).is_near_end(0).unwrap());
        assert!(store.nonblocking().is_caught_up());
        let waits = [("a", 0, 99), ("a", 0, 100), ("b", 0, 0)];
        let waits = waits.map(|(topic, queue, offset)| (topic.to_owned(), queue, offset));
        assert_eq!(store.nonblocking().arrived(&waits).unwrap(), [true, false, false]);
        assert!(store.wait("a", 0, 99, std::time::Duration::ZERO).unwrap());

        let beside = world.open(OpenMode::Read, &options()).unwrap();
        assert_eq!(beside.nonblocking().arrived(&waits).unwrap(), [true, false, false]);
        assert!(!beside.nonblocking().is_caught_up());
        assert!(!beside.read("a", 0, Some(99), None, None).unwrap().is_near_end(u64::MAX).unwrap());
        store.close().unwrap();
        assert!(matches!(store.nonblocking().arrived(&waits), Err(StoreError::Closed { .. })));
    }
}
