//! Reads the queues that a reader has not read yet.
//!
//! Owns nothing on disk. A reader for a scan may need no queue at all. And a store at a URL needs one or two requests
//! for each queue, so that the open of a store with many queues would take long. There, a queue is read before its
//! first use.
//!
//! Then it is compared with the manifest, as at the open of a directory, so no bound of the manifest is used unseen. If
//! one queue is not as listed, all are read, so that one walk of the log derives those that need it. The list of the
//! files shows at the open which queues have no files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::unread_queues::{Queues, Unread, UnreadQueues};
use super::{ODD_FILES, Reader, ReaderState, Suspects};
use mqstore_base::error::StoreError;
use mqstore_base::retry::retry_if_gone;
use mqstore_log::consume_queue::ConsumeQueue;
use mqstore_log::recovery::QueueManifest;

impl Reader {
    /// Reads the queues that are needed to know which queues exist, unless that happened already.
    pub(super) fn look(&self) -> Result<(), StoreError> {
        self.look_for(|_| Queues::new())
    }

    /// Reads a queue, unless that happened already.
    pub(super) fn look_at(&self, topic: &str, queue_id: i32) -> Result<(), StoreError> {
        self.look_for(|unread| unread.next_to(topic, queue_id))
    }

    /// Reads all queues, unless that happened already.
    pub(crate) fn look_at_all(&self) -> Result<(), StoreError> {
        self.look_for(|unread| unread.queues.clone())
    }

    /// Whether the queues were listed and compared with the manifest.
    pub(super) fn has_looked(&self) -> bool {
        !matches!(&*self.unread.lock(), Unread::All(..))
    }

    fn look_for(&self, choose: impl FnOnce(&UnreadQueues) -> Queues) -> Result<(), StoreError> {
        let mut unread = self.unread.lock();
        retry_if_gone(&*self.files.clock, || {
            if let Unread::All(live, manifest) = &*unread {
                match self.load_first_view(*live, manifest.as_ref()) {
                    Err(error) if error.is_gone() => {
                        *unread = self.list_again()?;
                        return Err(error);
                    }
                    loaded => *unread = loaded?,
                }
            }
            Ok(())
        })?;
        if let Unread::Some(queues) = &mut *unread {
            let chosen = choose(queues);
            if !chosen.is_empty() {
                self.read_queues(&mut self.state.lock(), queues, chosen)?;
            }
            if queues.queues.is_empty() {
                *unread = Unread::Nothing;
            }
        }
        Ok(())
    }

    /// Lists all files again, which a writer deleted after they were listed.
    fn list_again(&self) -> Result<Unread, StoreError> {
        let mut state = self.state.lock();
        let (page, live) = self.live.look(&self.files);
        let manifest = QueueManifest::load(&self.files);
        self.follow_topics(&mut state, page, live)?;
        self.renew_list(&mut state)?;
        self.list_queues(&mut state)?;
        (state.page, state.writer) = (page, live.map(|live| live.token));
        Ok(Unread::All(live, manifest))
    }

    /// Uses the queue files up to `complete_to`. Reads the queues of those topics whose folders differ from the
    /// manifest, and returns the others.
    pub(super) fn use_queue_files_later(
        &self,
        state: &mut ReaderState,
        complete_to: u64,
        manifest: &QueueManifest,
    ) -> Result<Unread, StoreError> {
        self.derive_overlay(state, complete_to)?;
        let (listed, floors) = (manifest.ids(), self.floors.now());
        let mut topics: BTreeMap<String, Vec<Arc<ConsumeQueue>>> = BTreeMap::new();
        for queue in state.queues.all() {
            topics.entry(queue.topic().to_owned()).or_default().push(queue);
        }
        // The files of each listed queue exist, and no other ones.
        let is_as_listed = |topic: &str, queues: &[Arc<ConsumeQueue>]| {
            let ids: BTreeSet<i32> = queues.iter().map(|queue| queue.queue_id()).collect();
            floors.deleted(topic) == 0 && listed.get(topic).is_some_and(|listed| *listed == ids)
        };
        let (mut later, mut now) = (Queues::new(), Queues::new());
        for (topic, queues) in topics {
            let chosen = if is_as_listed(&topic, &queues) { &mut later } else { &mut now };
            chosen.extend(queues.into_iter().map(|queue| ((topic.clone(), queue.queue_id()), queue)));
        }
        state.queues.batches().iter().try_for_each(|queue| queue.recover_bounds())?;
        let mut suspects = self.damaged_batch_queues(state, false)?;
        let known: BTreeSet<(&str, i32)> = later.keys().map(|(topic, id)| (topic.as_str(), *id)).collect();
        suspects.extend(self.suspects(state, manifest, &now, |topic, id| !known.contains(&(topic, id)))?);
        if !suspects.is_empty() {
            // One walk of the log derives all queues that need it.
            suspects.extend(self.suspects_of(state, manifest, &later)?);
            later.clear();
        }
        self.replace(state, &suspects, ODD_FILES)?;
        Ok(Unread::Some(UnreadQueues { manifest: manifest.clone(), queues: later, read: 0 }))
    }

    /// Reads the chosen queues; if one of them is not as listed, all queues.
    fn read_queues(
        &self,
        state: &mut ReaderState,
        unread: &mut UnreadQueues,
        mut chosen: Queues,
    ) -> Result<(), StoreError> {
        let mut suspects = self.suspects_of(state, &unread.manifest, &chosen)?;
        if !suspects.is_empty() {
            // One walk of the log derives all queues that need it.
            chosen.clone_from(&unread.queues);
            suspects = self.suspects_of(state, &unread.manifest, &chosen)?;
        }
        self.replace(state, &suspects, ODD_FILES)?;
        unread.read += chosen.len();
        unread.queues.retain(|key, _| !chosen.contains_key(key));
        Ok(())
    }

    /// Reads these listed queues. Returns those that are damaged or not as listed.
    fn suspects_of(
        &self,
        state: &ReaderState,
        manifest: &QueueManifest,
        queues: &Queues,
    ) -> Result<Suspects, StoreError> {
        let names: BTreeSet<(&str, i32)> = queues.keys().map(|(topic, id)| (topic.as_str(), *id)).collect();
        self.suspects(state, manifest, queues, |topic, id| names.contains(&(topic, id)))
    }

    /// Reads `queues`. Returns those that are damaged, and the listed and wanted ones that lost units.
    fn suspects(
        &self,
        state: &ReaderState,
        manifest: &QueueManifest,
        queues: &Queues,
        is_wanted: impl Fn(&str, i32) -> bool,
    ) -> Result<Suspects, StoreError> {
        let ends = manifest.max_offsets();
        let log_min = state.list.min_offset();
        let queues: Vec<Arc<ConsumeQueue>> = queues.values().cloned().collect();
        state.queues.recover_bounds_near(&queues, |topic, id| ends.get(&(topic, id)).copied())?;
        for queue in &queues {
            queue.correct_min_offset(log_min)?;
        }
        for queue in state.queues.batches().iter().filter(|queue| is_wanted(queue.topic(), queue.queue_id()))
        {
            queue.correct_min_offset(log_min)?;
        }
        let lost = manifest.lost(&state.queues, log_min, state.overlay_from, is_wanted);
        let lost: Vec<_> = lost.into_iter().map(|(topic, id)| (topic.to_owned(), id)).collect();
        let mut suspects = self.damaged_queues(state, queues, false)?;
        suspects.extend(lost);
        Ok(suspects)
    }
}
