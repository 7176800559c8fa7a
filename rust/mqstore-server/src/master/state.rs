//! What the connections of a master share: the log, its epochs, and the replicas.

use std::time::Duration;

use mqstore::inspect::StoreFiles;
use mqstore::io::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering};
use mqstore::io::{Clock, EventCount};
use mqstore::options::MasterOptions;
use mqstore::replication::epochs::EpochTable;
use mqstore::replication::master::Sent;
use mqstore::replication::replica_set::{MasterStatus, ReplicaSet};
use mqstore::replication::standby::NewestMetadata;
use mqstore::store::LogFeed;

use crate::deadline::clock;

/// How long records gather for one frame, unless an append waits for its copies.
const GATHER: Duration = Duration::from_millis(1);

/// See the header of this module.
pub(super) struct State {
    pub(super) feed: LogFeed,
    pub(super) epochs: EpochTable,
    replicas: Mutex<ReplicaSet>,
    /// The newest metadata for standbys.
    metadata: Mutex<Option<NewestMetadata>>,
    pub(super) asks_durable_acks: bool,
    timeout_ms: i64,
    connections: AtomicU64,
    /// Raised for the thread that looks.
    rests: EventCount,
    ended: AtomicBool,
    files: StoreFiles,
}

impl State {
    pub(super) fn new(
        options: &MasterOptions,
        feed: LogFeed,
        epochs: EpochTable,
        files: &StoreFiles,
    ) -> Self {
        let end = feed.end();
        Self {
            replicas: Mutex::new(ReplicaSet::new(options, end)),
            metadata: Mutex::default(),
            asks_durable_acks: options.durable_acks,
            feed,
            epochs,
            timeout_ms: i64::try_from(options.replica_timeout_ms).unwrap_or(i64::MAX),
            connections: AtomicU64::new(0),
            rests: EventCount::new(),
            ended: AtomicBool::new(false),
            files: files.clone(),
        }
    }

    /// Returns the number of a new connection.
    pub(super) fn connect(&self, address: &str) -> u64 {
        let number = self.connections.fetch_add(1, Ordering::Relaxed);
        self.replicas.lock().connect(number, address.to_owned(), now_ms());
        number
    }

    /// Removes a connection.
    pub(super) fn disconnect(&self, number: u64) {
        let mut replicas = self.replicas.lock();
        replicas.disconnect(number);
        self.cover(replicas);
    }

    /// Changes the replicas, and tells the appends that wait.
    pub(super) fn change(&self, change: impl FnOnce(&mut ReplicaSet)) {
        let mut replicas = self.replicas.lock();
        change(&mut replicas);
        self.cover(replicas);
    }

    /// Something is sent to a replica now.
    pub(super) fn sending(&self, number: u64) {
        self.replicas.lock().sending(number, self.feed.end(), now_ms());
    }

    /// Whether a standby of ours is connected, which gets metadata.
    pub(super) fn has_standby(&self) -> bool {
        self.replicas.lock().has_standby()
    }

    /// Returns the newest metadata.
    pub(super) fn metadata(&self) -> Option<NewestMetadata> {
        self.metadata.lock().clone()
    }

    /// Returns what a replica gets next.
    pub(super) fn sent(&self) -> Sent<'_> {
        let (log, epochs) = (&self.feed, &self.epochs);
        Sent { log, epochs, confirmed: self.feed.confirmed(), metadata: self.metadata() }
    }

    /// Sends these metadata to the standbys.
    pub(super) fn publish(&self, metadata: NewestMetadata) {
        *self.metadata.lock() = Some(metadata);
        self.feed.acks().wake_senders();
    }

    /// Looks which replicas are in sync now, and keeps the segments that they need.
    pub(super) fn look(&self) {
        let (end, now_ms) = (self.feed.end(), now_ms());
        let mut replicas = self.replicas.lock();
        for (name, one) in replicas.known(now_ms) {
            // One that has everything needs nothing; its time begins with the next record.
            let idle_ms = if one.log_end >= end { 0 } else { now_ms.saturating_sub(one.moved_ms) };
            self.feed.keep(one.number, name.clone(), one.log_end, self.timeout_ms.saturating_sub(idle_ms));
        }
        self.cover(replicas);
    }

    fn cover(&self, mut replicas: MutexGuard<'_, ReplicaSet>) {
        let (end, now_ms) = (self.feed.end(), now_ms());
        let is_alone = replicas.needed(end, now_ms) <= 1;
        let covered = replicas.cover(end, now_ms);
        // In the lock, so that no thread with an older state comes later.
        let confirmed = self.feed.confirm(replicas.confirmed());
        drop(replicas);
        self.feed.acks().set_alone(is_alone);
        self.feed.acks().raise(covered);
        match confirmed {
            Ok(true) => self.feed.acks().wake_senders(),
            Ok(false) => {}
            Err(error) => self.note(format!("readers do not see what the replicas have: {error}")),
        }
    }

    /// Waits until there is something to send, for at most `longest`. If it is little and no append waits for its copies,
    /// more of it may gather.
    pub(super) fn wait_to_send(&self, longest: Duration, due: impl Fn() -> bool, is_much: impl Fn() -> bool) {
        self.feed.acks().wait_to_send(longest, || due() || self.has_ended());
        self.feed.acks().let_records_gather(GATHER, || is_much() || self.has_ended());
    }

    /// Rests between two looks. Without replicas in sync, only these looks show readers what was appended; otherwise an
    /// append need not wake this thread.
    pub(super) fn rest(&self, longest: Duration) {
        if self.feed.hides_unconfirmed() && self.feed.acks().is_alone() {
            let is_due = || self.feed.end() > self.feed.confirmed();
            self.wait_to_send(longest, is_due, || false);
        } else {
            self.rest_until_wake(longest);
        }
    }

    /// Rests for at most `longest`, or until [`Self::wake`].
    pub(super) fn rest_until_wake(&self, longest: Duration) {
        self.rests.wait_until(Some(longest), || self.has_ended());
    }

    /// Makes the threads look.
    pub(super) fn wake(&self) {
        self.feed.acks().wake_senders();
        self.rests.notify_all();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Ends all waits.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.feed.acks().end();
        self.rests.notify_all();
    }

    /// Adds a line to the log of the program.
    pub(super) fn note(&self, text: String) {
        self.files.notes.log(text);
    }

    pub(super) fn status(&self, address: String) -> MasterStatus {
        self.replicas.lock().status(address, self.feed.end(), now_ms())
    }
}

/// Milliseconds of a clock that never steps.
pub(super) fn now_ms() -> i64 {
    i64::try_from(clock().monotonic().as_millis()).unwrap_or(i64::MAX)
}
