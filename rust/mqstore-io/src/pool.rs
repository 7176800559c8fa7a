//! Parallel work with ordered results, on a private rayon pool.
//!
//! A [`Pool`] belongs to one call. [`Pool::new`] starts its threads and the drop joins them, so that an import, an idle
//! store and a forked child have no threads. Rayon's global pool is not used. A thread of the pool inherits the
//! mutation switches and the priority of the thread that created the pool, because that thread starts it.
//!
//! ```text
//! calling thread: give ──► waiting jobs, oldest first ──► threads of the pool, and the calling thread while it waits
//!                 take ◄── results in the order of `give`
//! ```
//!
//! The calling thread reads, gives, takes and writes. While it waits for a result, it runs waiting jobs. Without
//! helpers there is no other thread, and each job runs in `give`. The crash simulator needs that: its order of
//! operations must not depend on threads.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Result as Outcome;

use rayon::{Scope, ThreadPool, ThreadPoolBuilder};

use crate::sync::{Arc, JoinHandle, Mutex, spawn};

/// Number of items of a map below which no thread starts.
const SEQUENTIAL_ITEMS: usize = 64;

/// Items of one job of a map.
const JOB_ITEMS: usize = 16;

/// The threads of one call.
#[derive(Debug)]
pub struct Pool {
    /// `None`: the calling thread runs all jobs.
    threads: Option<Threads>,
}

#[derive(Debug)]
struct Threads {
    /// The drop takes it out before it joins the threads, because they end only after the pool is dropped.
    pool: Option<ThreadPool>,
    handles: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts `helpers` threads called `name`, in addition to the calling thread.
    ///
    /// If the system cannot start that many threads, the pool has fewer, or none.
    pub fn new(helpers: u32, name: &str) -> Self {
        let mut count = helpers as usize;
        while count > 0 {
            match Threads::start(count, name) {
                Ok(threads) => return Self { threads: Some(threads) },
                // Some threads started: try again with that number.
                Err(started) => count = started.min(count - 1),
            }
        }
        Self { threads: None }
    }

    /// Returns the number of threads without the calling thread.
    pub fn size(&self) -> usize {
        self.threads.as_ref().map_or(0, |threads| threads.handles.len())
    }

    /// Calls `main`, which gives items to `work` and takes the results in the same order.
    ///
    /// `ahead` is the maximum number of items given and not yet taken. The call returns after all jobs have ended. Jobs
    /// that have not started when `main` returns do not run.
    ///
    /// # Panics
    /// If `work` panics, the panic continues in [`Jobs::take`], at the turn of its item.
    pub fn in_order<'env, I, R, T>(
        &self,
        ahead: usize,
        work: &'env (dyn Fn(I) -> R + Sync + 'env),
        main: impl FnOnce(&mut Jobs<'_, 'env, I, R>) -> T,
    ) -> T
    where
        I: Send + 'env,
        R: Send + 'env,
    {
        match self.pool() {
            Some(pool) => pool.in_place_scope(|scope| main(&mut Jobs::new(Some(scope), ahead, work))),
            None => main(&mut Jobs::new(None, ahead, work)),
        }
    }

    /// Runs `main` in this thread and `aside` in a thread of the pool at the same time. Without a thread in the pool,
    /// `aside` runs after `main`.
    ///
    /// A panic of `aside` in a thread of the pool ends only `aside`. The caller must detect that.
    ///
    /// # Panics
    /// If `main` panics, or `aside` in the calling thread.
    pub fn run_alongside<'env, T>(
        &self,
        aside: &'env (dyn Fn() + Sync + 'env),
        main: impl FnOnce() -> T,
    ) -> T {
        if let Some(pool) = self.pool() {
            return pool.in_place_scope(|scope| {
                // The panic hook has already reported a panic.
                scope.spawn(move |_| drop(catch_unwind(AssertUnwindSafe(aside))));
                main()
            });
        }
        let made = main();
        aside();
        made
    }

    fn pool(&self) -> Option<&ThreadPool> {
        self.threads.as_ref()?.pool.as_ref()
    }
}

impl Threads {
    /// Starts `count` threads. The error is the number of threads that started; they have already ended.
    fn start(count: usize, name: &str) -> Result<Self, usize> {
        let mut handles = Vec::with_capacity(count);
        let pool = ThreadPoolBuilder::new().num_threads(count).spawn_handler(|thread| {
            handles.push(spawn(name, || thread.run())?);
            Ok(())
        });
        let pool = pool.build().ok();
        let (is_built, started) = (pool.is_some(), handles.len());
        // If the build failed, the drop joins the started threads.
        let threads = Self { pool, handles };
        is_built.then_some(threads).ok_or(started)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        drop(self.pool.take());
        for handle in self.handles.drain(..) {
            // Jobs catch their panics. A panic of rayon itself aborts the process.
            let _ = handle.join();
        }
    }
}

/// Jobs that have not started, oldest first.
type JobQueue<I, R> = Mutex<VecDeque<(I, Sender<Outcome<R>>)>>;

/// The jobs of one [`Pool::in_order`].
pub struct Jobs<'scope, 'env, I, R> {
    /// `None`: jobs run in the calling thread.
    scope: Option<&'scope Scope<'env>>,
    ahead: usize,
    work: &'env (dyn Fn(I) -> R + Sync + 'env),
    waiting: Arc<JobQueue<I, R>>,
    /// The results that are not taken yet, oldest first.
    given: VecDeque<Receiver<Outcome<R>>>,
}

impl<'scope, 'env, I: Send + 'env, R: Send + 'env> Jobs<'scope, 'env, I, R> {
    fn new(
        scope: Option<&'scope Scope<'env>>,
        ahead: usize,
        work: &'env (dyn Fn(I) -> R + Sync + 'env),
    ) -> Self {
        Self { scope, ahead, work, waiting: Arc::default(), given: VecDeque::new() }
    }

    /// Gives the next item to the pool.
    pub fn give(&mut self, item: I) {
        let (sender, receiver) = channel();
        self.waiting.lock().push_back((item, sender));
        self.given.push_back(receiver);
        let (work, waiting) = (self.work, Arc::clone(&self.waiting));
        match self.scope {
            Some(scope) => scope.spawn(move |_| _ = run_next(&waiting, work)),
            None => _ = run_next(&waiting, work),
        }
    }

    /// Waits for the result of the oldest item, and runs other jobs during the wait. Returns `None` if no item is
    /// pending.
    ///
    /// # Panics
    /// If the work on this item panicked.
    pub fn take(&mut self) -> Option<R> {
        let oldest = self.given.pop_front()?;
        let outcome = loop {
            if let Ok(outcome) = oldest.try_recv() {
                break outcome;
            }
            if !run_next(&self.waiting, self.work) {
                // Jobs start in the order of `give`, so a thread of the pool runs this one.
                break oldest.recv().ok()?;
            }
        };
        Some(outcome.unwrap_or_else(|panic| resume_unwind(panic)))
    }

    /// Takes the result of the oldest item if it is ready. Waits for it if more than `ahead` items are pending.
    ///
    /// # Panics
    /// If the work on this item panicked.
    pub fn take_ready(&mut self) -> Option<R> {
        if self.given.len() > self.ahead {
            return self.take();
        }
        let outcome = self.given.front()?.try_recv().ok()?;
        self.given.pop_front();
        Some(outcome.unwrap_or_else(|panic| resume_unwind(panic)))
    }
}

impl<I, R> Drop for Jobs<'_, '_, I, R> {
    fn drop(&mut self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        drop(waiting);
    }
}

/// Runs the oldest waiting job; returns `false` if there is none.
fn run_next<I, R>(waiting: &JobQueue<I, R>, work: &dyn Fn(I) -> R) -> bool {
    // The guard must be released before the job runs.
    let next = waiting.lock().pop_front();
    let Some((item, sender)) = next else { return false };
    // If the call ended early, the receiver no longer exists.
    let _ = sender.send(catch_unwind(AssertUnwindSafe(|| work(item))));
    true
}

impl<I, R> fmt::Debug for Jobs<'_, '_, I, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jobs")
            .field("given", &self.given.len())
            .field("ahead", &self.ahead)
            .finish_non_exhaustive()
    }
}

/// Applies `work` to each of `items`, with up to `helpers` additional threads called `name`. The results are in the
/// order of the items.
///
/// The call ends with the error of the first failed item. Later items may or may not be processed.
///
/// # Panics
/// If `work` panics.
pub fn parallel_map<T: Sync, R: Send, E: Send>(
    helpers: u32,
    name: &str,
    items: &[T],
    work: impl Fn(&T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    if helpers == 0 || items.len() < SEQUENTIAL_ITEMS {
        return items.iter().map(work).collect();
    }
    let work = |chunk: &[T]| chunk.iter().map(&work).collect::<Result<Vec<R>, E>>();
    Pool::new(helpers, name).in_order(usize::MAX, &work, |jobs| {
        items.chunks(JOB_ITEMS).for_each(|chunk| jobs.give(chunk));
        let mut all = Vec::with_capacity(items.len());
        while let Some(results) = jobs.take() {
            all.append(&mut results?);
        }
        Ok(all)
    })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::Duration;

    use super::*;
    use crate::sync::{AtomicBool, AtomicUsize, Ordering};

    #[test]
    fn results_have_the_order_of_the_items() {
        for helpers in [0, 1, 3] {
            let pool = Pool::new(helpers, "mq-test");
            assert_eq!(pool.size(), helpers as usize);
            // Early items take the longest time.
            let work = |item: u64| {
                std::thread::sleep(Duration::from_micros(500 / (item + 1)));
                item
            };
            let taken = pool.in_order(4, &work, |jobs| {
                let mut taken = Vec::new();
                for item in 0..100 {
                    jobs.give(item);
                    taken.extend(jobs.take_ready());
                    assert!(jobs.given.len() <= 4, "the number of pending items is bounded");
                }
                taken.extend(std::iter::from_fn(|| jobs.take()));
                taken
            });
            assert_eq!(taken, (0..100).collect::<Vec<_>>());
        }
    }

    #[test]
    fn without_helpers_the_calling_thread_does_all_the_work() {
        let main = std::thread::current().id();
        let here = || assert_eq!(std::thread::current().id(), main);
        let pool = Pool::new(0, "mq-test");
        pool.in_order(4, &|()| here(), |jobs| (0..9).for_each(|_| jobs.give(())));
        pool.run_alongside(&here, here);
    }

    #[test]
    fn jobs_that_have_not_begun_end_with_the_call() {
        let begun = AtomicUsize::new(0);
        let work = |()| {
            begun.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(2));
        };
        let pool = Pool::new(1, "mq-test");
        let failed = pool.in_order(usize::MAX, &work, |jobs| {
            (0..1000).for_each(|_| jobs.give(()));
            jobs.take().ok_or(()).and(Err::<(), _>(()))
        });
        assert!(failed.is_err());
        assert!(begun.load(Ordering::Relaxed) < 500);
    }

    #[test]
    fn the_threads_end_with_the_pool() {
        thread_local! {
            static HELD: RefCell<Option<Arc<()>>> = const { RefCell::new(None) };
        }
        let alive = Arc::new(());
        let pool = Pool::new(3, "mq-test");
        let work = |()| HELD.set(Some(Arc::clone(&alive)));
        // `take` can run the job in this thread; `take_ready` does not.
        pool.in_order(1, &work, |jobs| {
            jobs.give(());
            while jobs.take_ready().is_none() {
                std::thread::yield_now();
            }
        });
        assert_eq!(Arc::strong_count(&alive), 2);
        drop(pool);
        assert_eq!(Arc::strong_count(&alive), 1, "the values of a thread are dropped with it");
    }

    #[cfg(feature = "sim")]
    #[test]
    fn a_pool_has_the_switches_of_its_maker() {
        let seen = || {
            let pool = Pool::new(2, "mq-test");
            pool.in_order(0, &|()| crate::switch::on("pool.planted"), |jobs| {
                (0..20).for_each(|_| jobs.give(()));
                std::iter::from_fn(|| jobs.take()).collect::<Vec<_>>()
            })
        };
        {
            let _off = crate::switch::off("pool.planted");
            assert_eq!(seen(), [false; 20]);
        }
        assert_eq!(seen(), [true; 20]);
    }

    #[test]
    fn a_map_keeps_the_order_and_ends_with_the_first_error() {
        let items: Vec<u32> = (0..1000).collect();
        for (helpers, count) in [(0, 1000), (3, 1000), (3, 70), (3, 10), (3, 0)] {
            let done = parallel_map(helpers, "mq-test", &items[..count], |item| Ok::<_, ()>(item * 2));
            assert_eq!(done.unwrap(), (0..count as u32).map(|item| item * 2).collect::<Vec<_>>());
            let wrong = |item: &u32| if *item >= 9 { Err(*item) } else { Ok(()) };
            let failed = parallel_map(helpers, "mq-test", &items[..count], wrong);
            assert_eq!(failed.err(), (count >= 10).then_some(9), "{count}");
        }
    }

    #[test]
    #[should_panic(expected = "the first one dies")]
    fn a_map_passes_the_panic_of_a_helper_on() {
        let items: Vec<u32> = (0..1000).collect();
        let main = std::thread::current().id();
        let seen = AtomicUsize::new(0);
        let _ = parallel_map(2, "mq-test", &items, |_| {
            let in_helper = std::thread::current().id() != main;
            assert!(!in_helper || seen.fetch_add(1, Ordering::Relaxed) > 0, "the first one dies");
            while seen.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            Ok::<_, ()>(())
        });
    }

    #[test]
    fn the_calling_thread_works_while_it_waits() {
        let main = std::thread::current().id();
        let worked_here = AtomicBool::new(false);
        let pool = Pool::new(1, "mq-test");
        // The one helper cannot finish its job before the calling thread has started the other job.
        let work = |()| {
            worked_here.fetch_or(std::thread::current().id() == main, Ordering::Relaxed);
            while !worked_here.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        };
        pool.in_order(usize::MAX, &work, |jobs| {
            (0..2).for_each(|_| jobs.give(()));
            while jobs.take().is_some() {}
        });
        assert!(worked_here.into_inner());
    }

    #[test]
    fn a_panic_alongside_in_a_helper_ends_alone() {
        let begun = AtomicBool::new(false);
        let aside = || {
            begun.store(true, Ordering::Relaxed);
            panic!("planted");
        };
        assert_eq!(Pool::new(1, "mq-test").run_alongside(&aside, || 7), 7);
        assert!(begun.into_inner());
    }
}
