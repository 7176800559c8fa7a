//! A queue of appends for callers that wait without a thread.
//!
//! ```text
//! callers         put, put, hand over  put, hand over ...             each gets the result of its request
//! one thread              append both, one sync        append all that came meanwhile, one sync ...
//! ```
//!
//! Requests are appended in the order of their numbers, each like [`Store::append`] or [`Store::append_many`]. A
//! request that must be durable, or replicated, gets its result after one wait that covers all of them; the others get
//! theirs at once. A failed request does not affect the others, unless its error stops the store. The number and the
//! bytes of the requests in progress are limited: a request is in progress until the caller has taken its result. The
//! others wait in the order of their numbers.
//!
//! Across threads: any number of threads put requests, one thread at a time runs a step. Across a crash: a request
//! without a result is appended, as completely as its call would be, or not at all. This module starts no thread.

use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::path::PathBuf;

use mqstore_io::sync::{Condvar, Mutex};

use mqstore_base::append_request::{AppendDone, AppendRequest};
use mqstore_base::error::StoreError;
use mqstore_engine::Store;

/// See the header of this module.
pub struct AppendQueue {
    path: PathBuf,
    most: usize,
    most_bytes: u64,
    state: Mutex<AppendQueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct AppendQueueState {
    waiting: BTreeMap<u64, (AppendRequest, AppendDone)>,
    /// Requests with smaller numbers are handed over.
    handed_over: u64,
    /// Number and bytes of the requests in progress.
    in_progress: (usize, u64),
    /// Number of requests without a taken result that need not be durable.
    plain: usize,
    ended: bool,
}

impl AppendQueue {
    /// Returns an empty queue for appends to `store`, with at most `most` requests and `most_bytes` bytes in progress.
    /// A larger request is in progress alone.
    pub fn new(store: &Store, most: usize, most_bytes: u64) -> Self {
        let (path, state) = (store.path().to_path_buf(), Mutex::default());
        Self { path, most, most_bytes, state, changed: Condvar::new() }
    }

    /// Adds a request, which is appended after [`Self::hand_over`]; `done` is called once. Numbers must ascend.
    pub fn put(&self, number: u64, request: AppendRequest, done: AppendDone) {
        let mut state = self.state.lock();
        if state.ended {
            drop(state);
            done(Err(StoreError::Closed { path: self.path.clone() }));
            return;
        }
        state.plain += usize::from(!request.durable);
        state.waiting.insert(number, (request, done));
    }

    /// Hands over all requests. Those that are handed over together share a sync.
    pub fn hand_over(&self) {
        let mut state = self.state.lock();
        state.handed_over = state.waiting.last_key_value().map_or(0, |(number, _)| number + 1);
        drop(state);
        self.changed.notify_one();
    }

    /// Whether a request that need not be durable has no taken result. A direct append would overtake it.
    pub fn has_plain(&self) -> bool {
        self.state.lock().plain > 0
    }

    /// Ends the progress of a request whose result the caller has taken.
    pub fn taken(&self, bytes: u64, durable: bool) {
        let mut state = self.state.lock();
        let (number, all_bytes) = state.in_progress;
        state.in_progress = (number.saturating_sub(1), all_bytes.saturating_sub(bytes));
        state.plain = state.plain.saturating_sub(usize::from(!durable));
        drop(state);
        self.changed.notify_one();
    }

    /// Removes a request that has not started; returns whether it did. Its `done` is then not called.
    pub fn take_back(&self, number: u64) -> bool {
        let mut state = self.state.lock();
        let Some((request, done)) = state.waiting.remove(&number) else { return false };
        state.plain = state.plain.saturating_sub(usize::from(!request.durable));
        drop(state);
        // Outside the lock: its drop can need other locks.
        drop(done);
        true
    }

    /// Makes [`Self::run`] return after the requests that may be in progress are appended; refuses all others.
    pub fn end(&self) {
        let mut state = self.state.lock();
        if state.ended {
            return;
        }
        (state.ended, state.handed_over) = (true, u64::MAX);
        let admitted = self.admit(&mut state);
        let refused = mem::replace(&mut state.waiting, admitted);
        drop(state);
        self.changed.notify_all();
        for (_, done) in refused.into_values() {
            done(Err(StoreError::Closed { path: self.path.clone() }));
        }
    }

    /// Removes the requests that may be in progress now. After [`Self::end`], all that are left may.
    fn admit(&self, state: &mut AppendQueueState) -> BTreeMap<u64, (AppendRequest, AppendDone)> {
        let mut admitted = BTreeMap::new();
        while let Some(first) = state.waiting.first_entry().filter(|first| *first.key() < state.handed_over) {
            let (number, bytes) = state.in_progress;
            let all_bytes = bytes.saturating_add(first.get().0.bytes());
            if number > 0 && (number >= self.most || all_bytes > self.most_bytes) {
                break;
            }
            state.in_progress = (number + 1, all_bytes);
            let (number, request) = first.remove_entry();
            admitted.insert(number, request);
        }
        admitted
    }

    /// Appends requests to `store` until [`Self::end`]; for a thread of its own.
    pub fn run(&self, store: &Store) {
        loop {
            let mut state = self.state.lock();
            let mut taken = self.take(&mut state);
            while taken.is_empty() {
                if state.ended {
                    return;
                }
                self.changed.wait(&mut state);
                taken = self.take(&mut state);
            }
            drop(state);
            append_all(store, taken.into_values());
        }
    }

    /// Removes the requests for the next step.
    fn take(&self, state: &mut AppendQueueState) -> BTreeMap<u64, (AppendRequest, AppendDone)> {
        if state.ended { mem::take(&mut state.waiting) } else { self.admit(state) }
    }

    /// Appends the requests that may be in progress to `store`.
    pub fn step(&self, store: &Store) {
        let taken = self.take(&mut self.state.lock());
        append_all(store, taken.into_values());
    }
}

impl fmt::Debug for AppendQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AppendQueue")
            .field("waiting", &self.state.lock().waiting.len())
            .finish_non_exhaustive()
    }
}

/// Appends requests in their order, with one wait for all requests that need a sync or copies.
fn append_all(store: &Store, requests: impl Iterator<Item = (AppendRequest, AppendDone)>) {
    let appends = store.system_appends();
    let mut waiting = Vec::new();
    for (mut request, done) in requests {
        request.compress_bodies();
        match appends.place(&request.messages(), request.many) {
            Ok(appended) if !appended.is_empty() => {
                let wants = (request.durable, request.replicated);
                if appends.waits(wants) {
                    waiting.push((wants, appended, done));
                } else {
                    done(Ok(appended));
                }
            }
            placed => done(placed),
        }
    }
    appends.settle_all(waiting);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mqstore_base::append_request::OwnedMessage;
    use mqstore_format::{Compression, SysFlag};
    use mqstore_io::Fault;
    use mqstore_io::sim::OperationKind;

    use super::*;
    use mqstore_base::message::Appended;
    use mqstore_base::options::{OpenMode, StoreOptions};
    use mqstore_engine::testing::{World, put as put_one, small};

    type Answers = Arc<Mutex<Vec<(u64, Result<Vec<Appended>, StoreError>)>>>;

    fn request(topic: &str, bodies: &[&[u8]], durable: bool) -> AppendRequest {
        let message = |body: &&[u8]| OwnedMessage {
            body: Box::new(body.to_vec()),
            sys_flag: SysFlag(0),
            properties: Vec::new(),
            unique_key: None,
            flag: 7,
            born_timestamp_ms: None,
        };
        AppendRequest {
            topic: topic.to_owned(),
            queue_id: Some(0),
            durable,
            replicated: false,
            many: bodies.len() != 1,
            compression: None,
            messages: bodies.iter().map(message).collect(),
        }
    }

    fn put(queue: &AppendQueue, answers: &Answers, number: u64, request: AppendRequest) {
        let answers = Arc::clone(answers);
        queue.put(number, request, Box::new(move |answer| answers.lock().push((number, answer))));
        queue.hand_over();
    }

    #[test]
    fn requests_above_the_limits_wait_and_an_end_refuses_them() {
        let world = World::real();
        let store = world.open(OpenMode::Create, &small()).unwrap();
        let (queue, answers) = (AppendQueue::new(&store, 2, 10), Answers::default());
        for (number, body) in [(1, 4), (2, 4), (3, 4), (4, 20), (5, 9), (6, 2)] {
            put(&queue, &answers, number, request("a", &[&vec![b'x'; body]], number == 2));
        }
        let appended = || {
            queue.step(&store);
            mem::take(&mut *answers.lock()).iter().map(|(number, _)| *number).collect::<Vec<_>>()
        };
        assert_eq!(appended(), [1, 2]);
        assert!(appended().is_empty());
        queue.taken(4, false);
        assert_eq!(appended(), [3], "in progress are 2 and 3");
        queue.taken(4, true);
        assert!(appended().is_empty());
        queue.taken(4, false);
        assert_eq!(appended(), [4], "a large request is alone");
        assert!(queue.has_plain() && queue.take_back(5));
        assert!(appended().is_empty());
        queue.taken(20, false);
        put(&queue, &answers, 7, request("a", &[b"not handed over"], true));
        put(&queue, &answers, 8, request("a", &[b"0123456789"], true));
        assert!(queue.take_back(7));
        queue.end();
        let refused = mem::take(&mut *answers.lock());
        assert!(matches!(refused.as_slice(), [(8, Err(StoreError::Closed { .. }))]));
        queue.step(&store);
        assert_eq!(mem::take(&mut *answers.lock()).first().map(|(number, _)| *number), Some(6));
        queue.taken(2, false);
        assert!(!queue.has_plain());
        store.close().unwrap();
    }

    #[test]
    fn all_that_wait_share_a_sync_and_are_appended_in_order() {
        let world = World::real();
        let store = world.open(OpenMode::Create, &small()).unwrap();
        let (queue, answers) = (AppendQueue::new(&store, usize::MAX, u64::MAX), Answers::default());
        put(&queue, &answers, 1, request("a", &[b"one"], true));
        put(&queue, &answers, 2, request("a", &[b"two", b"three"], false));
        put(&queue, &answers, 3, request("a b", &[b"no topic"], true));
        put(&queue, &answers, 4, request("a", &[b"taken back"], true));
        put(&queue, &answers, 5, request("a", &[b"four"], true));
        put(&queue, &answers, 6, request("a", &[], true));
        assert!(queue.take_back(4) && !queue.take_back(4));
        assert_eq!(store.stats().unwrap().appends, 0);
        queue.step(&store);
        assert!(!queue.take_back(1));
        let mut answers = mem::take(&mut *answers.lock());
        // A request that needs no sync does not wait for one.
        assert_eq!(answers.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [2, 3, 6, 1, 5]);
        answers.sort_by_key(|(number, _)| *number);
        let offsets: Vec<_> = answers
            .iter()
            .map(|(_, answer)| {
                answer.as_ref().map(|all| all.iter().map(|one| one.queue_offset).collect::<Vec<_>>()).ok()
            })
            .collect();
        assert_eq!(offsets, [Some(vec![0]), Some(vec![1, 2]), None, Some(vec![3]), Some(vec![])]);
        assert!(matches!(answers[2].1, Err(StoreError::InvalidMessage { .. })));
        for at in [0, 3] {
            assert!(answers[at].1.as_ref().is_ok_and(|all| all.iter().all(|one| one.durable)));
        }
        let last = &answers[3].1.as_ref().unwrap()[0];
        assert!(store.stats().unwrap().durable_offset >= last.log_end());
        store.close().unwrap();
    }

    #[test]
    fn a_request_is_compressed_before_it_is_appended() {
        let world = World::real();
        let store = world.open(OpenMode::Create, &small()).unwrap();
        let (queue, answers) = (AppendQueue::new(&store, usize::MAX, u64::MAX), Answers::default());
        let rule = StoreOptions { compression: Some(Compression::Zstd), ..small() }.body_compression();
        let body = vec![b'x'; 5000];
        put(
            &queue,
            &answers,
            1,
            AppendRequest { compression: Some(rule), ..request("a", &[&body, b"short"], false) },
        );
        queue.step(&store);
        let records = store.read("a", 0, None, None, None).unwrap().next_batch(9).unwrap();
        let seen: Vec<_> = records
            .iter()
            .map(|record| {
                let view = record.view().unwrap();
                (view.unpacked_body().unwrap().into_owned(), view.sys_flag, view.body.len() < 100)
            })
            .collect();
        let flag = SysFlag::of_compressed(Compression::Zstd);
        assert_eq!(seen, [(body, flag, true), (b"short".to_vec(), SysFlag(0), true)]);
        store.close().unwrap();
    }

    #[test]
    fn a_thread_runs_until_the_end_and_what_comes_later_is_refused() {
        for durability in [
            mqstore_base::options::Durability::Sync,
            mqstore_base::options::Durability::Async,
            mqstore_base::options::Durability::Pooled,
        ] {
            let world = World::real();
            let store = world.open(OpenMode::Create, &StoreOptions { durability, ..small() }).unwrap();
            let (queue, answers) = (AppendQueue::new(&store, usize::MAX, u64::MAX), Answers::default());
            std::thread::scope(|scope| {
                scope.spawn(|| queue.run(&store));
                for number in 0..200 {
                    put(&queue, &answers, number, request("a", &[b"body"], number % 2 == 0));
                }
                queue.end();
            });
            put(&queue, &answers, 200, request("a", &[b"too late"], false));
            let answers = mem::take(&mut *answers.lock());
            assert_eq!(answers.len(), 201);
            for (number, answer) in answers {
                match answer {
                    Ok(all) => assert_eq!(all[0].queue_offset, number as i64),
                    Err(error) => assert!(number == 200 && matches!(error, StoreError::Closed { .. })),
                }
            }
            store.close().unwrap();
        }
    }

    #[test]
    fn a_failed_sync_reaches_all_who_wait_for_it() {
        let (world, sim, _) = World::simulated();
        let store = world.open(OpenMode::Create, &small()).unwrap();
        put_one(&store, "a", 0, b"makes the segment", "k");
        let (queue, answers) = (AppendQueue::new(&store, usize::MAX, u64::MAX), Answers::default());
        for number in 0..3 {
            put(&queue, &answers, number, request("a", &[b"body"], true));
        }
        sim.inject(Fault::nth(1).on(&[OperationKind::Sync, OperationKind::MapFlush]).sticky());
        queue.step(&store);
        assert_eq!(answers.lock().len(), 3);
        assert!(answers.lock().iter().all(|(_, answer)| matches!(answer, Err(StoreError::Poisoned { .. }))));
        sim.clear_faults();
        let _ = store.close();
        put(&queue, &answers, 4, request("a", &[b"body"], true));
        queue.step(&store);
        assert!(matches!(answers.lock()[3].1, Err(StoreError::Closed { .. })));
    }
}
