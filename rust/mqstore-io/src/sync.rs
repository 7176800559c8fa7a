//! Locks, atomics and threads, from one place.
//!
//! Mutexes, read-write locks and condition variables are `parking_lot`'s: no poisoning (a panic
//! inside the engine poisons the store by its own rule), spin briefly and then sleep in the kernel,
//! one byte each. Threads are made here and nowhere else, by name, and a system that has no thread to
//! give is an error and not a panic.

use std::io;

pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use std::hint::spin_loop;
pub use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
pub use std::sync::{Arc, OnceLock, Weak};
pub use std::thread::{JoinHandle, yield_now};

/// Starts a thread called `name` (at most 15 bytes are shown by Linux tools).
///
/// The thread ends when `run` returns; dropping the handle leaves it running.
pub fn spawn<T, F>(name: &str, run: F) -> io::Result<JoinHandle<T>>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let thread = std::thread::Builder::new().name(name.to_owned());
    #[cfg(feature = "sim")]
    {
        let switches = crate::switch::inherited();
        thread.spawn(move || {
            switches.adopt();
            run()
        })
    }
    #[cfg(not(feature = "sim"))]
    thread.spawn(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_names_and_results() {
        let handle = spawn("mq-test", || std::thread::current().name().map(str::to_owned)).unwrap();
        assert_eq!(handle.join().unwrap().as_deref(), Some("mq-test"));
    }
}
