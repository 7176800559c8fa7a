//! Named switches that let a test leave out one step, to see that the tests would notice.
//!
//! Every sync, every fence between two writes, every zeroing and every checksum comparison on the way
//! of a record to the device and back has a name and goes through here:
//!
//! ```text
//! switch::step("commit_log.sync_segment", || file.sync_data())?;      a call that returns a Result<(), E>
//! if switch::on("recovery.rewrite_tail") { rewrite(file)?; }          anything else
//! if switch::on("scan.body_crc") && found != wanted { return Err(..) }
//! ```
//!
//! * **Names** are `module.what_it_does`, in small letters, digits and `_` on both sides of one dot, and
//!   written as a literal at exactly one place of the code; the list of mutants is read from the
//!   sources. Two call sites of one step share a function, not a name.
//! * A **known mistake** is a switch as well: `if !switch::on("recovery.h2_...") { the mistake }`.
//! * **Product builds** hold nothing of this: without the feature `sim` both functions are constant, and
//!   neither a branch nor a name is left.
//! * **Test builds**: [`off`] turns one switch off for the calling thread and the threads that it starts
//!   by [`crate::sync::spawn`], until the guard is dropped; [`passed`] tells how often the step was left
//!   out, so that "nobody came by" differs from "nobody noticed".
//!
//! The suite `tests/rust/sim` turns each switch off in turn and must find a broken promise each time.

/// Whether the step called `name` shall be done: always, outside of tests that turned it off.
#[cfg(not(feature = "sim"))]
#[inline(always)]
#[expect(clippy::inline_always, reason = "nothing of it may be left in a product build")]
pub const fn on(name: &'static str) -> bool {
    let _ = name;
    true
}

/// Does `act`, unless a test turned the step called `name` off: then it succeeds without doing it.
#[cfg(not(feature = "sim"))]
#[inline(always)]
#[expect(clippy::inline_always, reason = "nothing of it may be left in a product build")]
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

    /// Whether the step called `name` shall be done: always, unless [`off`] is in force for it.
    pub fn on(name: &'static str) -> bool {
        MUTANT.with_borrow(|mutant| {
            let off = mutant.as_ref().filter(|mutant| mutant.name == name);
            if let Some(mutant) = off {
                mutant.passed.fetch_add(1, Ordering::Relaxed);
            }
            off.is_none()
        })
    }

    /// Does `act`, unless [`off`] is in force for `name`: then it succeeds without doing it.
    pub fn step<E>(name: &'static str, act: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        if on(name) { act() } else { Ok(()) }
    }

    /// Keeps a switch off; see [`off`].
    #[derive(Debug)]
    #[must_use = "the switch is on again when this is dropped"]
    pub struct Off {
        before: Option<Arc<Mutant>>,
    }

    /// Turns the switch called `name` off for this thread, and those it starts from now on, until the
    /// result is dropped. One switch is off at a time; the inner of two nested guards counts.
    pub fn off(name: &str) -> Off {
        let mutant = Arc::new(Mutant { name: name.to_owned(), passed: AtomicU64::new(0) });
        Off { before: MUTANT.with_borrow_mut(|place| place.replace(mutant)) }
    }

    impl Drop for Off {
        fn drop(&mut self) {
            MUTANT.with_borrow_mut(|place| *place = self.before.take());
        }
    }

    /// How often the step that is off now was left out; 0 when none is.
    pub fn passed() -> u64 {
        MUTANT.with_borrow(|mutant| mutant.as_ref().map_or(0, |mutant| mutant.passed.load(Ordering::Relaxed)))
    }

    /// What a thread hands to one that it starts.
    #[derive(Clone, Debug)]
    pub struct Inherited(Option<Arc<Mutant>>);

    /// What is off in this thread; [`Inherited::adopt`] takes it over in another.
    pub fn inherited() -> Inherited {
        Inherited(MUTANT.with_borrow(Clone::clone))
    }

    impl Inherited {
        /// Makes the calling thread see the switches of the one that [`inherited`] was called in.
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
            assert!(std::thread::spawn(|| on("switch.one")).join().unwrap(), "others are not concerned");
            assert_eq!(passed(), 3);
        }
        assert!(on("switch.one"));
        assert_eq!(passed(), 0);
    }
}
