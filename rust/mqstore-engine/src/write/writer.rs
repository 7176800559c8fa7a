//! A store that is open for writing.
//!
//! It holds the lock for its whole life. The open takes the lock and then recovers; only a clean close removes `abort`.
//! The thread of the caller encodes and checks a message. Under the put lock the message gets its offsets. Then it
//! becomes durable as the durability mode demands, and dispatch adds it to queues and index. A read waits until
//! dispatch has passed the log offset that was visible when the read began.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mqstore_format::UniqueKeyGenerator;
use mqstore_io::switch;
use mqstore_io::sync::Mutex;

use crate::compact::compaction_state::CompactionState;
use crate::lone_job::LoneJob;
use crate::read::view::View;
use crate::retention::Cleaner;
use crate::store::lifecycle::Lifecycle;
use crate::store::signals::ServiceSignals;
use crate::store::topics::Topics;
use crate::topic_retention::{OlderSlot, TopicExpiry};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::live_page::LivePage;
use mqstore_base::options::{Durability, StoreOptions};
use mqstore_base::store_files::StoreFiles;
use mqstore_log::commit_log::CommitLog;
use mqstore_log::consume_queue::QueueSet;
use mqstore_log::dispatch::{Dispatcher, RUN_BYTES};
use mqstore_log::flush::{Flusher, MAX_SEGMENTS_BEHIND};
use mqstore_log::index::IndexSet;
use mqstore_meta::MetaLog;

/// See the header of this module.
pub(crate) struct Writer {
    pub(crate) files: StoreFiles,
    pub(crate) options: StoreOptions,
    pub(crate) log: Arc<CommitLog>,
    pub(crate) live: Arc<LivePage>,
    pub(crate) queues: Arc<QueueSet>,
    pub(crate) index: Arc<IndexSet>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) flusher: Arc<Flusher>,
    pub(crate) cleaner: Cleaner,
    pub(crate) topics: Topics,
    pub(crate) meta: Arc<MetaLog>,
    pub(crate) ids: UniqueKeyGenerator,
    /// Distinguishes this writer from others in this process.
    pub(crate) token: u64,
    pub(crate) signals: ServiceSignals,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) compaction: CompactionState,
    /// Held during a rebuild of queues and index, and while segments are rewritten.
    pub(crate) rebuilding: Mutex<()>,
    pub(crate) reclaim: LoneJob,
    /// Held while retentions of topics are applied.
    pub(crate) topic_expiry: Mutex<TopicExpiry>,
    pub(crate) older: OlderSlot,
}

/// The next token.
static TOKENS: AtomicU64 = AtomicU64::new(0);

/// Returns a token that no other writer of this process has.
pub(crate) fn next_token() -> u64 {
    TOKENS.fetch_add(1, Ordering::Relaxed)
}

/// Whether a later dispatch can succeed after `error`.
fn passes(error: &StoreError) -> bool {
    matches!(error, StoreError::DiskFull { .. }) || error.is_out_of_resources()
}

impl Writer {
    /// Whether dispatch and flush lag by more than `MAX_SEGMENTS_BEHIND` segments; then appends must wait.
    pub(crate) fn is_far_behind(&self) -> bool {
        let target = self.log.appended().min(self.dispatcher.limit());
        let behind = target.saturating_sub(self.flusher.dispatched());
        behind > MAX_SEGMENTS_BEHIND * self.log.segment_bytes()
    }

    /// Whether an append waits for a sync; `wants_sync` says whether the caller asked for one.
    pub(crate) fn needs_sync(&self, wants_sync: bool) -> bool {
        wants_sync || self.options.durability == Durability::Sync
    }

    /// Waits for the sync of records that were appended with `ReturnPoint::Placed` and end at `end`.
    pub(crate) fn synced(&self, end: u64) -> Result<(), StoreError> {
        self.log.wait_durable(end)?;
        // If only durable records are visible, dispatch must learn that there are more.
        self.wake_services(end)
    }

    /// Dispatches in this thread, or wakes the services that have work.
    pub(crate) fn wake_services(&self, end: u64) -> Result<(), StoreError> {
        if self.options.dispatch_threads == Some(0) {
            match self.dispatch() {
                // The message is in the log and stays there; a read reports the error.
                Err(error) if !passes(&error) => return Err(error),
                _ => {}
            }
        } else if self.dispatcher.position() < self.visible() {
            // A publication is a sequentially consistent store; if a sync makes records visible, there is no such
            // store.
            if self.options.durable_only() || self.options.durability == Durability::Pooled {
                self.signals.log_grew();
            } else {
                self.signals.log_grew_after_fence();
            }
        }
        if end >= self.flusher.flush_due_offset() {
            self.signals.flush_due();
        }
        if self.commit_is_due() {
            self.signals.pool_filled();
        }
        Ok(())
    }

    /// Whether the pool holds enough records to write them before the commit interval ends.
    pub(crate) fn commit_is_due(&self) -> bool {
        self.options.durability == Durability::Pooled
            && self.log.appended().saturating_sub(self.log.readable()) > self.options.pool_bytes / 8
    }

    /// Returns the visible end of the log: the durable offset if readers may see only durable records, else the
    /// readable one.
    pub(crate) fn visible(&self) -> u64 {
        let end = if self.options.durable_only() { self.log.durable() } else { self.log.readable() };
        end.min(self.dispatcher.limit())
    }

    /// Dispatches everything visible. A failure stops the store, unless the disk is full or the process has no free
    /// descriptor or memory.
    pub(crate) fn dispatch(&self) -> Result<u64, StoreError> {
        let visible = self.visible();
        if self.dispatcher.position() >= visible {
            return Ok(visible);
        }
        if visible.saturating_sub(self.dispatcher.position()) > RUN_BYTES {
            self.signals.backlog_grew();
        }
        let reached = self.dispatcher.run_to(&self.log.list(), visible).map_err(|error| match error {
            // The log has all records; the units follow when there is space or a free descriptor again.
            error if passes(&error) => error,
            error => self.log.poison("dispatching", &error.to_string()),
        })?;
        Ok(reached)
    }

    pub(crate) fn has_queue(&self, topic: &str, queue_id: i32) -> bool {
        let listed = self.topics.queue_count(topic) as i32;
        // A handle that reads a former queue keeps it after its last message has expired.
        (0..listed).contains(&queue_id) || listed > 0 && self.queues.ids(topic).contains(&queue_id)
    }

    /// Returns the queues after the `listed` ones that still have messages: the topic had more queues before.
    pub(crate) fn former_queues(&self, topic: &str, listed: i32) -> impl Iterator<Item = i32> + '_ {
        let ids = if self.topics.is_removed(topic) { BTreeSet::new() } else { self.queues.ids(topic) };
        let topic = topic.to_owned();
        // The messages of a compaction topic can be in its compaction files only.
        let compacted = self.topics.get(&topic).is_some_and(|state| state.is_compaction());
        ids.into_iter().filter(move |id| {
            let bounds = match self.queues.batch(&topic, *id) {
                Some(queue) => Some((queue.min_offset(), queue.max_offset())),
                None => self.queues.get(&topic, *id).map(|queue| (queue.min_offset(), queue.max_offset())),
            };
            *id >= listed && bounds.is_some_and(|(min, max)| max > if compacted { 0 } else { min })
        })
    }

    /// Returns the notes for the user, each once.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.queues.take_notes().iter().for_each(|note| self.lifecycle.note(note));
        self.lifecycle.notes()
    }

    /// Makes everything appended so far durable, including derived files and topics.
    pub(crate) fn flush(&self) -> Result<(), StoreError> {
        self.check()?;
        self.topics.store()?;
        self.flusher.flush_all(false)?;
        // Metadata about messages becomes durable after the messages.
        self.meta.sync(self.meta.place())
    }

    /// Does the due work of the metadata log.
    pub(crate) fn meta_step(&self) -> Result<(), StoreError> {
        self.meta.step(self.files.clock.now_ms())
    }

    /// The last step of a close: makes everything durable, marks the store clean, removes `abort`, releases the lock.
    pub(crate) fn finish(&self) -> Result<(), StoreError> {
        self.log.stop_preparing();
        self.log.seal();
        // Records after the confirmed offset are in the log and count from here on.
        let lifted = self.set_visible_limit(u64::MAX);
        let outcome =
            lifted.and_then(|()| self.log.check()).and_then(|()| self.topics.store()).and_then(|()| {
                self.log.flush_to(self.log.appended())?;
                self.dispatch()?;
                self.drain_compaction_appends();
                self.meta.close()?;
                // The mark names the end of the metadata log.
                self.flusher.flush_all(true)?;
                let abort = self.files.abort();
                self.files.vfs.remove_file(&abort).at(&abort, "removing abort")?;
                switch::step("close.sync_abort_removal", || self.files.vfs.sync_dir(&self.files.root))
                    .at(&self.files.root, "syncing the store's folder")
            });
        // Readers must not trust the page of a writer that has ended.
        let _ = self.files.vfs.remove_file(&self.files.live());
        // The closed store must not keep files open, even if the program keeps the object.
        self.log.release();
        self.queues.release();
        self.index.release();
        self.lifecycle.release_locks();
        outcome
    }
}
