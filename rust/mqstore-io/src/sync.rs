//! Locks, atomics and threads for all crates.
//!
//! Mutexes, read-write locks and condition variables come from `parking_lot`. They have no poisoning: a panic in the
//! engine poisons the store by the engine's own rule. They spin briefly and then sleep in the kernel, and a mutex is
//! one byte. All threads start here, with a name. If the system cannot start a thread, that is an error and not a
//! panic.

use std::io;

use crate::open_files::retry_scarce;

pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
pub use std::sync::{Arc, OnceLock, Weak};
pub use std::thread::JoinHandle;

/// A number that only grows.
pub trait Raise<T> {
    /// Sets it to `to`, unless it is already that or higher.
    fn raise(&self, to: T, order: Ordering);
}

macro_rules! raise {
    ($atomic:ty, $number:ty) => {
        impl Raise<$number> for $atomic {
            #[inline]
            fn raise(&self, to: $number, order: Ordering) {
                #[cfg(not(tsan))]
                self.fetch_max(to, order);
                // The compiler hides the synchronization of `fetch_max` from the thread sanitizer, which would report a
                // race.
                #[cfg(tsan)]
                let _ = self.fetch_update(order, Ordering::Relaxed, |old| Some(old.max(to)));
            }
        }
    };
}

raise!(AtomicU64, u64);
raise!(AtomicU32, u32);
#[cfg(loom)]
raise!(loom::sync::atomic::AtomicU64, u64);

/// Starts a thread called `name`. Linux tools show at most 15 bytes of the name.
///
/// The thread ends when `run` returns. It continues if the handle is dropped. If the system has no memory for a thread
/// or too many threads, maps that are not in use are released, and the start is tried again ([`retry_scarce`]).
pub fn spawn<T, F>(name: &str, run: F) -> io::Result<JoinHandle<T>>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    // A start that fails drops its closure, so the work waits outside for the thread that does start.
    let work = Arc::new(Mutex::new(Some(run)));
    retry_scarce(|| {
        let work = Arc::clone(&work);
        #[cfg(feature = "sim")]
        let switches = crate::switch::inherited();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            #[cfg(feature = "sim")]
            switches.adopt();
            // The first iteration finds the work.
            loop {
                let run = work.lock().take();
                if let Some(run) = run {
                    return run();
                }
            }
        })
    })
}

/// Runs `main` in this thread while up to `count` threads called `name` run `help`. Returns when all of them have
/// ended.
///
/// If the system cannot start that many threads, there are fewer. A panic of a helper ends only that helper: `main`
/// must detect it.
pub fn with_helpers<T>(count: u32, name: &str, help: &(dyn Fn() + Sync), main: impl FnOnce() -> T) -> T {
    #[cfg(feature = "sim")]
    let switches = &crate::switch::inherited();
    std::thread::scope(|scope| {
        let helper = move || {
            #[cfg(feature = "sim")]
            switches.adopt();
            help();
        };
        let handles: Vec<_> = (0..count)
            .map_while(|_| std::thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, helper).ok())
            .collect();
        let outcome = main();
        for handle in handles {
            // The panic hook of the thread has already reported a panic.
            let _ = handle.join();
        }
        outcome
    })
}

/// The model checker's locks with the interface of ours. In a model a thread waits only for its turn, never for a time.
#[cfg(loom)]
pub mod model {
    use std::time::Duration;

    pub use loom::sync::MutexGuard;

    /// Like `parking_lot::Mutex`.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    #[expect(clippy::unwrap_used, reason = "a model that panics has failed anyway")]
    impl<T> Mutex<T> {
        /// Creates a free lock.
        pub fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        /// Waits for the lock.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }

        /// Takes the lock if it is free.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }

        /// Waits for the lock without a limit.
        pub fn try_lock_for(&self, _limit: Duration) -> Option<MutexGuard<'_, T>> {
            Some(self.lock())
        }
    }

    /// Like `parking_lot::RwLock`.
    #[derive(Debug, Default)]
    pub struct RwLock<T>(loom::sync::RwLock<T>);

    #[expect(clippy::unwrap_used, reason = "a model that panics has failed anyway")]
    impl<T> RwLock<T> {
        /// Creates a free lock.
        pub fn new(value: T) -> Self {
            Self(loom::sync::RwLock::new(value))
        }

        /// Waits until no thread writes.
        pub fn read(&self) -> loom::sync::RwLockReadGuard<'_, T> {
            self.0.read().unwrap()
        }

        /// Waits until no other thread reads or writes.
        pub fn write(&self) -> loom::sync::RwLockWriteGuard<'_, T> {
            self.0.write().unwrap()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_names_and_results() {
        let handle = spawn("mq-test", || std::thread::current().name().map(str::to_owned)).unwrap();
        assert_eq!(handle.join().unwrap().as_deref(), Some("mq-test"));
    }

    #[test]
    fn helpers_run_beside_the_caller_and_may_die() {
        let helped = AtomicU32::new(0);
        let help = || {
            let first = helped.fetch_add(1, Ordering::Relaxed) == 0;
            assert!(!first, "the first one dies");
        };
        assert_eq!(with_helpers(3, "mq-test", &help, || 7), 7);
        assert_eq!(helped.load(Ordering::Relaxed), 3);
    }
}
