//! Ends one session after each call that changes the disk, in each way that a disk allows.

use mqstore_io::SimVfs;
use mqstore_io::sim::Fault;

use crate::explore::{Violation, guarded};
use crate::states::{Limits, Rng, State, states};
use crate::workload::{World, explain};

/// The search for the ends of a session, and its names in reports.
pub(crate) struct Ends<'a> {
    /// The name of the broken promise.
    pub(crate) name: &'static str,
    /// The start of a replay string: a letter and the number of the session.
    pub(crate) replay: String,
    pub(crate) limits: Limits,
    /// 1 for an end after each call, 2 for each second call, from the last one back.
    pub(crate) step: usize,
    pub(crate) stop: &'a dyn Fn() -> bool,
}

/// Lets each call of `work` fail, once and from then on, the last ones first: 1 for each call, 2 for each second call. Then
/// checks the disk, and the one that a loss of power leaves, with the history of the work. Returns the number of failures.
pub(crate) fn failing_calls<T: Default>(
    begin: &SimVfs,
    step: usize,
    stop: &dyn Fn() -> bool,
    work: impl Fn(&World, &mut T) -> Result<(), String>,
    check: impl Fn(&World, &T, &mut Rng) -> Result<(), String>,
) -> Result<u64, String> {
    let clean = World::on(begin.kill().map_err(explain)?);
    work(&clean, &mut T::default())?;
    let calls = clean.vfs.operations() - begin.operations();
    let mut tried = 0;
    for (nth, sticky) in (1..=calls).rev().step_by(step).flat_map(|nth| [(nth, false), (nth, true)]) {
        if stop() {
            return Ok(tried);
        }
        let world = World::on(begin.kill().map_err(explain)?);
        let fault = Fault::nth(nth);
        world.vfs.inject(if sticky { fault.sticky() } else { fault });
        let mut done = T::default();
        // The error is the one of the failing call, or none.
        let _ = work(&world, &mut done);
        tried += u64::from(world.vfs.faults_fired() > 0);
        world.vfs.clear_faults();
        let mut rng = Rng::new(nth);
        let lost = World::on(State::chance(&mut rng).image(&world.vfs)?.vfs);
        for world in [world, lost] {
            check(&world, &done, &mut rng).map_err(|what| format!("call {nth} fails, {sticky}: {what}"))?;
        }
    }
    Ok(tried)
}

/// One end of a session.
pub(crate) struct End<'a> {
    pub(crate) state: &'a State,
    /// The disk, and the writes that were in progress.
    pub(crate) moment: &'a SimVfs,
    /// Calls with a smaller number had returned. A call whose write was torn had not.
    pub(crate) call: u64,
}

impl End<'_> {
    /// The disk that remains.
    pub(crate) fn world(&self) -> Result<World, String> {
        Ok(World::on(self.state.image(self.moment)?.vfs))
    }
}

impl Ends<'_> {
    /// A violation at `call`, in the state with this number.
    pub(crate) fn violation(&self, call: u64, state: usize, what: String) -> Violation {
        Violation {
            replay: format!("{}:{call}:{state}:0", self.replay),
            what: format!("{}: {what}", self.name),
        }
    }

    /// Runs a step that belongs to no end, and turns its error into a violation.
    pub(crate) fn beside<T>(&self, step: impl FnOnce() -> Result<T, String>) -> Result<T, Violation> {
        guarded(step).map_err(|what| self.violation(0, 0, what))
    }

    /// Runs `session` in `world`, then `check` at each end with the history of the session. Returns the
    /// number of ends.
    pub(crate) fn each<T>(
        &self,
        world: &World,
        session: impl FnOnce(&World) -> Result<T, String>,
        check: impl Fn(&End<'_>, &T, &mut Rng) -> Result<(), String>,
    ) -> Result<u64, Violation> {
        world.vfs.freeze_at_each(2..=u64::from(u16::MAX));
        let told = self.beside(|| session(world))?;
        let mut moments = world.vfs.take_all_frozen();
        moments.push((world.vfs.operations() + 1, world.vfs.clone()));
        let mut tried = 0;
        for (call, moment) in moments.into_iter().rev().step_by(self.step) {
            let mut rng = Rng::new(call);
            for (form, state) in states(&moment, self.limits, &mut rng).iter().enumerate() {
                if (self.stop)() {
                    return Ok(tried);
                }
                tried += 1;
                let end = End { state, moment: &moment, call: call - u64::from(state.is_cut()) };
                let outcome = guarded(|| check(&end, &told, &mut rng));
                outcome.map_err(|what| self.violation(call, form, format!("{state}: {what}")))?;
            }
        }
        Ok(tried)
    }
}
