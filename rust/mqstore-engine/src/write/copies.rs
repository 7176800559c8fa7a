//! Appends that wait for their copies on other machines.

use std::time::Duration;

use mqstore_base::append_request::AppendDone;
use mqstore_base::error::StoreError;
use mqstore_base::message::Appended;

use crate::engine::Engine;

impl Engine {
    /// Whether an append waits after its publication; the flags say what the caller asked for.
    pub(crate) fn waits(&self, wants_sync: bool, wants_copies: bool) -> bool {
        self.needs_sync(wants_sync) || wants_copies || self.options.replicated
    }

    /// See [`crate::SystemAppends::settle_all`].
    pub(crate) fn settle_all(&self, waiting: Vec<((bool, bool), Vec<Appended>, AppendDone)>) {
        // One sync covers all of them. If it fails, each request gets its own error below.
        let synced = waiting.iter().rfind(|((durable, _), ..)| self.needs_sync(*durable));
        if let Some((_, appended, _)) = synced {
            let _ = self.synced(end_of(appended));
        }
        let began = self.files.clock.monotonic();
        for ((durable, replicated), mut appended, done) in waiting {
            let mut settled = Ok(());
            if self.needs_sync(durable) {
                settled = self.synced(end_of(&appended));
                for one in &mut appended {
                    one.durable = true;
                }
            }
            if (replicated || self.options.replicated)
                && settled.is_ok()
                && let Some(first) = appended.first()
            {
                settled = self.wait_for_copies(first.commit_log_offset, end_of(&appended), began);
            }
            done(settled.map(|()| appended));
        }
    }

    /// Waits for the copies of `appended`, if each append of the store does.
    pub(crate) fn replicated(&self, appended: &[Appended]) -> Result<(), StoreError> {
        match appended.first() {
            Some(first) if self.options.replicated => {
                let now = self.files.clock.monotonic();
                self.wait_for_copies(first.commit_log_offset, end_of(appended), now)
            }
            _ => Ok(()),
        }
    }

    /// See [`crate::Store::wait_for_copies`]. The wait began at `began`.
    pub(crate) fn wait_for_copies(
        &self,
        log_offset: u64,
        log_end: u64,
        began: Duration,
    ) -> Result<(), StoreError> {
        let Some(master) = &self.options.replication else {
            let reason = "no machine copies this store: give it the option replication".to_owned();
            return Err(StoreError::InvalidOption { option: "replicated", reason });
        };
        // A replica gets what is in the file.
        self.log.make_readable()?;
        let waited = || self.files.clock.monotonic().saturating_sub(began);
        let left = Duration::from_millis(master.ack_timeout_ms).saturating_sub(waited());
        if self.log.replica_acks().wait(log_end, left) {
            return Ok(());
        }
        let (path, copies) = (self.files.root.clone(), master.min_in_sync);
        let waited_ms = waited().as_millis() as u64;
        Err(StoreError::NotReplicated { path, log_offset, log_end, copies, waited_ms })
    }
}

fn end_of(appended: &[Appended]) -> u64 {
    appended.last().map_or(0, Appended::log_end)
}
