//! Segments that the archive of the store does not contain yet.
//!
//! Owns this rule: while `mqstore/archive` exists, no segment that ends after its log offset is removed, whatever the
//! reason for the removal. Before a segment is removed, the program looks at the archive itself
//! (`Hooks::archive_look`): a target that was emptied, or is not mounted, keeps every segment. So does a state that
//! cannot be read. RocketMQ has no such rule.
//!
//! A look counts for the same state only, for a limited time until the removal begins. It is never taken under the lock
//! that the archive changes with.

use std::fmt::Write;
use std::time::Duration;

use mqstore_io::sync::Mutex;

use super::plan::PlannedDeletion;
use super::report;
use crate::archive::state::ArchiveState;
use mqstore_base::events::Hooks;
use mqstore_base::store_files::StoreFiles;
use mqstore_log::commit_log::Segment;

/// The time for which the background trusts a look at the archive.
const LOOK_COUNTS: Duration = Duration::from_secs(10);

/// The archive of a store, as a removal sees it.
#[derive(Debug)]
pub(crate) struct ArchiveRule {
    files: StoreFiles,
    hooks: Hooks,
    looked: Mutex<Option<ArchiveLook>>,
}

/// A look at the archive: its state, the time until which it counts, and the missing part.
#[derive(Clone, Debug)]
struct ArchiveLook {
    state: ArchiveState,
    until: Duration,
    missing: Option<String>,
}

impl ArchiveRule {
    /// Makes the rule of a store without looking at its archive.
    pub(crate) fn new(files: &StoreFiles, hooks: &Hooks) -> Self {
        Self { files: files.clone(), hooks: hooks.clone(), looked: Mutex::default() }
    }

    /// Makes the next question look at the archive.
    pub(crate) fn look_again(&self) {
        *self.looked.lock() = None;
    }

    /// Returns why `segment` of a log that starts at `log_start` must stay for the archive. Looks at the archive, unless
    /// a look still counts.
    pub(crate) fn why(&self, segment: &Segment, log_start: u64) -> Option<String> {
        let state = match self.recorded(segment) {
            Ok(state) => state?,
            Err(why) => return Some(why),
        };
        let now = self.files.clock.monotonic();
        let known = self.looked.lock().clone().filter(|look| look.state == state && now < look.until);
        let look = known.unwrap_or_else(|| {
            let missing = self.hooks.look_at_archive(&state.settings, state.archived_to, log_start);
            let look = ArchiveLook { state, until: now + LOOK_COUNTS, missing };
            *self.looked.lock() = Some(look.clone());
            look
        });
        look.missing
    }

    /// Returns why `segment` must stay for the archive, after [`Self::why`] let it go, without another look.
    pub(crate) fn why_after_look(&self, segment: &Segment) -> Option<String> {
        let state = match self.recorded(segment) {
            Ok(state) => state?,
            Err(why) => return Some(why),
        };
        match &*self.looked.lock() {
            Some(look)
                if look.state.settings == state.settings
                    && segment.end_offset() <= look.state.archived_to =>
            {
                look.missing.clone()
            }
            _ => Some("the archive has changed meanwhile".to_owned()),
        }
    }

    /// Returns the archive that has `segment` as the store recorded, none if the store has no archive, or why the
    /// segment must stay.
    fn recorded(&self, segment: &Segment) -> Result<Option<ArchiveState>, String> {
        let mut why = "it is not in the archive yet".to_owned();
        match ArchiveState::load(&self.files) {
            Ok(None) => return Ok(None),
            Ok(Some(archive)) if segment.end_offset() <= archive.archived_to => return Ok(Some(archive)),
            Ok(Some(archive)) => {
                let _ = write!(why, ", which ends at log offset {}", archive.archived_to);
                why.push_str("; run the archive first, or remove its configuration");
            }
            Err(error) => {
                let _ = write!(why, " as far as known: {error}");
            }
        }
        Err(why)
    }

    /// Returns the segments of `planned` that the archive lets go, and why the next one would stay.
    pub(super) fn split<'p>(
        &self,
        planned: &'p [PlannedDeletion],
        log_start: u64,
    ) -> (&'p [PlannedDeletion], Option<String>) {
        for (at, one) in planned.iter().enumerate() {
            if let Some(why) = self.why(&one.segment, log_start) {
                let path = report::segment(one).path;
                return (planned.get(..at).unwrap_or_default(), Some(format!("{}: {why}", path.display())));
            }
        }
        (planned, None)
    }
}
