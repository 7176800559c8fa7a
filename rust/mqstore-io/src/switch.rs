//! Named switches with which a test skips one step, to check that the tests detect the missing step.
//!
//! Every sync, every fence between two writes, every zeroing and every checksum comparison on a record's path to the
//! device and back has a name and calls a function of this module:
//!
//! ```text
//! switch::step("commit_log.sync_segment", || file.sync_data())?;      a call that returns a Result<(), E>
//! if switch::on("recovery.rewrite_tail") { rewrite(file)?; }          anything else
//! if switch::on("scan.body_crc") && found != wanted { return Err(..) }
//! ```
//!
//! * **Names** have the form `module.what_it_does`: lower-case letters, digits and `_` on both sides of one dot. A name
//!   is a literal at exactly one place of the code, because the list of mutants comes from the sources. Two call sites
//!   of one step share a function, not a name.
//! * A **known mistake** is a switch too: `if !switch::on("recovery.h2_...") { the mistake }`.
//! * **Product builds** contain no switches: without the feature `sim` both functions are constant, and neither a
//!   branch nor a name is left.
//! * **Test builds**: [`off`] turns one switch off until the guard is dropped, for the calling thread and the threads
//!   that it starts with [`crate::sync::spawn`]. [`passed`] returns how often the step was skipped. It distinguishes a
//!   step that was never reached from a missing step that no test detected.
//!
//! The suite `tests/rust/sim` turns each switch off in turn, and must find a broken promise each time.

/// Returns whether to do the step called `name`: always, except in a test that turned it off.
#[cfg(not(feature = "sim"))]
#[inline(always)]
#[expect(clippy::inline_always, reason = "a product build must contain nothing of it")]
pub const fn on(name: &'static str) -> bool {
    let _ = name;
    true
}

/// Runs `act`. If a test turned the step called `name` off, returns `Ok` without running it.
#[cfg(not(feature = "sim"))]
#[inline(always)]
#[expect(clippy::inline_always, reason = "a product build must contain nothing of it")]
pub fn step<E>(name: &'static str, act: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
    let _ = name;
    act()
}

#[cfg(feature = "sim")]
pub use armed::{Inherited, Off, inherited, off, on, passed, step};

#[cfg(feature = "sim")]
mod armed {
    use std::cell::RefCell;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// The switch that is off, and how often it was passed.
    #[derive(Debug)]
    struct Mutant {
        name: String,
        passed: AtomicU64,
    }

    thread_local! {
        static MUTANT: RefCell<Option<Arc<Mutant>>> = const { RefCell::new(None) };
    }

    /// Returns whether to do the step called `name`: always, unless [`off`] is active for it.
    pub fn on(name: &'static str) -> bool {
        MUTANT.with_borrow(|mutant| {
            let off = mutant.as_ref().filter(|mutant| mutant.name == name);
            if let Some(mutant) = off {
                mutant.passed.fetch_add(1, Ordering::Relaxed);
            }
            off.is_none()
        })
    }

    /// Runs `act`. If [`off`] is active for `name`, returns `Ok` without running it.
    pub fn step<E>(name: &'static str, act: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        if on(name) { act() } else { Ok(()) }
    }

    /// A guard that keeps a switch off; see [`off`].
    #[derive(Debug)]
    #[must_use = "the switch is on again when this is dropped"]
    pub struct Off {
        before: Option<Arc<Mutant>>,
    }

    /// Turns the switch called `name` off until the guard is dropped, for this thread and the threads that it starts
    /// from now on. Only one switch is off at a time: the inner one of two nested guards.
    pub fn off(name: &str) -> Off {
        let mutant = Arc::new(Mutant { name: name.to_owned(), passed: AtomicU64::new(0) });
        Off { before: MUTANT.with_borrow_mut(|place| place.replace(mutant)) }
    }

    impl Drop for Off {
        fn drop(&mut self) {
            MUTANT.with_borrow_mut(|place| *place = self.before.take());
        }
    }

    /// Returns how often the step that is off now was skipped; 0 if no switch is off.
    pub fn passed() -> u64 {
        MUTANT.with_borrow(|mutant| mutant.as_ref().map_or(0, |mutant| mutant.passed.load(Ordering::Relaxed)))
    }

    /// The switches that a thread passes to a thread that it starts.
    #[derive(Clone, Debug)]
    pub struct Inherited(Option<Arc<Mutant>>);

    /// Returns the switch that is off in this thread, for [`Inherited::adopt`] in another thread.
    pub fn inherited() -> Inherited {
        Inherited(MUTANT.with_borrow(Clone::clone))
    }

    impl Inherited {
        /// Adopts the switches of the thread that called [`inherited`].
        pub fn adopt(&self) {
            MUTANT.with_borrow_mut(|place| place.clone_from(&self.0));
        }
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::{off, on, passed, step};

    #[test]
    fn a_switch_is_off_within_its_guard_and_in_the_threads_of_its_thread() {
        assert!(on("switch.one"));
        {
            let _off = off("switch.one");
            assert!(!on("switch.one") && on("switch.two"));
            assert_eq!(step("switch.one", || Err("done")), Ok(()));
            assert_eq!(step("switch.two", || Err("done")), Err("done"));
            let seen = crate::sync::spawn("switch", || on("switch.one")).unwrap().join().unwrap();
            assert!(!seen);
            assert!(std::thread::spawn(|| on("switch.one")).join().unwrap(), "other threads see it on");
            assert_eq!(passed(), 3);
        }
        assert!(on("switch.one"));
        assert_eq!(passed(), 0);
    }
}
