//! The disks that a crash at one moment may leave: all of them if there are few, else a selection.
//!
//! The writes in progress at that moment give a list of choices: pages or sectors in one of their forms, file
//! lengths, and changes of names. If there are few combinations, all of them are made. Otherwise the
//! selection has: no new choice, all new choices, each choice alone old, each choice alone new, and random
//! combinations. The single choices find most missing syncs. In addition there are the death of the process
//! (the cache survives), and both kinds with the last write cut at a multiple of eight bytes.

use std::collections::BTreeMap;
use std::fmt;

use mqstore_io::SimVfs;
use mqstore_io::sim::{Choice, CrashChoice};

use crate::workload::explain;

/// A small random generator with the same numbers for the same seed on every machine (Steele's splitmix).
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// A number from 0 to `bound - 1`, or 0 if `bound` is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next().checked_rem(bound).unwrap_or(0)
    }

    pub(crate) fn chance(&mut self, eighths: u64) -> bool {
        self.below(8) < eighths
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        of.get(self.below(of.len() as u64) as usize).copied()
    }
}

/// How many states of one moment to try.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// All combinations, if there are at most this many.
    pub(crate) all_up_to: u64,
    /// Single choices old and new, at most this many of each.
    pub(crate) singles: usize,
    /// Random combinations of pages, and as many of sectors.
    pub(crate) random: u32,
    /// Cuts of the last write.
    pub(crate) cuts: u32,
}

/// One disk that a crash may leave.
#[derive(Clone, Debug)]
pub(crate) struct State {
    /// Bytes of the last write that were copied. `None` means all.
    cut: Option<u64>,
    end: End,
}

#[derive(Clone, Debug)]
enum End {
    /// The process died. Everything that it wrote is in the cache, and no more bytes become durable.
    Kill,
    /// The power failed. A choice that `forms` does not name has its newest form, or its oldest if
    /// `otherwise_old`.
    Power { torn: bool, forms: BTreeMap<CrashChoice, u32>, otherwise_old: bool },
    /// The power failed, and chance decides each choice.
    Chance { torn: bool, seed: u64, eighths: u64, ordered: bool },
}

impl fmt::Display for State {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(cut) = self.cut {
            write!(out, "the last write cut after {cut} bytes, ")?;
        }
        match &self.end {
            End::Kill => write!(out, "a kill"),
            End::Power { forms, otherwise_old, .. } => {
                write!(out, "power loss, all {} but {forms:?}", if *otherwise_old { "old" } else { "new" })
            }
            End::Chance { torn, seed, eighths, ordered } => write!(
                out,
                "power loss by chance: seed {seed}, {eighths} in 8 new, {}, names {}",
                if *torn { "sectors" } else { "pages" },
                if *ordered { "in order" } else { "in any order" }
            ),
        }
    }
}

/// The disk image of a state.
pub(crate) struct Image {
    pub(crate) vfs: SimVfs,
    /// Whether the cache survived.
    pub(crate) kill: bool,
    /// Whether some page is older than its newest form, or a mixture.
    pub(crate) lost_page: bool,
}

impl State {
    pub(crate) fn kill() -> Self {
        Self { cut: None, end: End::Kill }
    }

    /// Only synced bytes.
    pub(crate) fn all_old() -> Self {
        Self { cut: None, end: End::Power { torn: false, forms: BTreeMap::new(), otherwise_old: true } }
    }

    pub(crate) fn chance(rng: &mut Rng) -> Self {
        let (torn, seed) = (rng.chance(4), rng.next());
        let eighths = rng.pick(&[1, 2, 4, 4, 6, 7]).unwrap_or(4);
        Self { cut: None, end: End::Chance { torn, seed, eighths, ordered: rng.chance(2) } }
    }

    pub(crate) fn is_kill(&self) -> bool {
        matches!(self.end, End::Kill)
    }

    /// Whether the last write was cut.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut.is_some()
    }

    pub(crate) fn image(&self, moment: &SimVfs) -> Result<Image, String> {
        let torn_write = match self.cut {
            None => None,
            Some(done) => moment.tear(done).map_err(explain)?,
        };
        let moment = torn_write.as_ref().unwrap_or(moment);
        let mut lost_page = torn_write.is_some();
        let mut note = |what: CrashChoice, forms: u32, form: u32| {
            lost_page |= matches!(what, CrashChoice::Bytes { .. }) && form + 1 < forms;
            form
        };
        let vfs = match &self.end {
            End::Kill => moment.kill(),
            End::Power { torn, forms: chosen, otherwise_old } => {
                moment.crash_as(*torn, &mut |what, forms| {
                    let otherwise = if *otherwise_old { 0 } else { forms - 1 };
                    note(what, forms, chosen.get(&what).copied().unwrap_or(otherwise))
                })
            }
            End::Chance { torn, seed, eighths, ordered } => {
                let mut rng = Rng::new(*seed);
                let mut names_end = false;
                moment.crash_as(*torn, &mut |what, forms| {
                    let mut form = if rng.chance(*eighths) { rng.below(forms.into()) as u32 } else { 0 };
                    if form == 0 && rng.chance(*eighths) {
                        form = forms - 1;
                    }
                    if *ordered && matches!(what, CrashChoice::Name { .. }) {
                        if names_end {
                            form = 0;
                        }
                        names_end |= form + 1 < forms;
                    }
                    note(what, forms, form)
                })
            }
        };
        Ok(Image { vfs: vfs.map_err(explain)?, kill: self.is_kill(), lost_page })
    }
}

/// The states of one moment. The same generator gives the same states.
pub(crate) fn states(moment: &SimVfs, limits: Limits, rng: &mut Rng) -> Vec<State> {
    let mut states = vec![State::kill()];
    let choices = moment.choices(false);
    let product = choices.iter().try_fold(1_u64, |product, choice| {
        product.checked_mul(choice.forms.into()).filter(|product| *product <= limits.all_up_to)
    });
    match product {
        Some(product) => states.extend((0..product).map(|number| combination(&choices, number))),
        None => some(&choices, limits, rng, &mut states),
    }
    if !choices.is_empty() {
        for _ in 0..limits.random {
            let mut state = State::chance(rng);
            if let End::Chance { torn, .. } = &mut state.end {
                *torn = true;
            }
            states.push(state);
        }
    }
    if let Some((_, len)) = moment.last_write().filter(|(_, len)| *len > 8) {
        for _ in 0..limits.cuts {
            let cut = Some(rng.below(len / 8) * 8);
            states.push(State { cut, end: End::Kill });
            states.push(State { cut, ..State::chance(rng) });
        }
    }
    states
}

/// The combination with this number. Each choice is a digit, with as many values as it has forms.
fn combination(choices: &[Choice], number: u64) -> State {
    let mut rest = number;
    let mut forms = BTreeMap::new();
    for choice in choices {
        forms.insert(choice.what, (rest % u64::from(choice.forms)) as u32);
        rest /= u64::from(choice.forms);
    }
    State { cut: None, end: End::Power { torn: false, forms, otherwise_old: false } }
}

fn some(choices: &[Choice], limits: Limits, rng: &mut Rng, states: &mut Vec<State>) {
    let all =
        |otherwise_old, forms| State { cut: None, end: End::Power { torn: false, forms, otherwise_old } };
    states.push(all(true, BTreeMap::new()));
    states.push(all(false, BTreeMap::new()));
    // The step reaches each choice once, or a regular selection of them.
    let step = choices.len().div_ceil(limits.singles.max(1)).max(1);
    let from = rng.below(step as u64) as usize;
    for choice in choices.iter().skip(from).step_by(step) {
        states.push(all(false, BTreeMap::from([(choice.what, 0)])));
        states.push(all(true, BTreeMap::from([(choice.what, choice.forms - 1)])));
    }
    states.extend((0..limits.random).map(|_| State::chance(rng)));
}
