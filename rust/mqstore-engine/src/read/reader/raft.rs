//! The end of the visible log of a broker that ran with DLedger.
//!
//! While the broker runs, no page shows which entries are committed. Its consume queues do, because it dispatches only
//! committed entries. So each look at the end lists the queues again.

use super::last_look::LastLook;
use super::{Reader, ReaderState};
use crate::read::view::View;
use mqstore_base::error::StoreError;
use mqstore_base::options::DledgerEnd;
use mqstore_base::store_files::RaftLog;
use mqstore_log::recovery::{has_entry, raft_end};

impl Reader {
    /// Moves `state.end` to the current end of the visible log, as the option `dledger_end` says.
    pub(super) fn find_raft_end(&self, state: &mut ReaderState, log: &RaftLog) -> Result<(), StoreError> {
        let beside = self.files.vfs.lock_holder(&self.files.lock()).ok().flatten().is_some();
        if let Some(last) = state.raft {
            self.renew_list(state)?;
            // A broker that was stopped in the meantime may have written until then.
            let may_differ = beside || last.beside || !last.more && has_entry(&state.list, state.end)?;
            if !may_differ {
                return Ok(());
            }
            self.list_queues(state)?;
        }
        state.queues.recover_bounds()?;
        let wanted = (self.options.dledger_end, state.end);
        let found = raft_end(&self.files, log, &state.list, &state.queues, wanted)?;
        state.end = state.end.max(found.end);
        let more = has_entry(&state.list, state.end)?;
        state.raft = Some(LastLook { beside, more });
        if let Some(damage) = found.damage {
            self.note(damage);
        } else if more && !beside && self.options.dledger_end != DledgerEnd::All {
            self.note(format!(
                "{}: the entries from log offset {} on may never have been committed and are not read; dledger_end=\"all\" \
                 reads them",
                log.data().display(),
                state.end
            ));
        }
        Ok(())
    }
}
