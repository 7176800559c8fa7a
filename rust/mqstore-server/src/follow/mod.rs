//! A live copy of a RocketMQ master over the network, without Java.
//!
//! [`Follower::step`] is the whole work: it connects, reads what the master sends, appends it to the copy, reports the
//! end, and asks for the tables when it is time. The caller's thread calls it again and again; another one can ask for
//! [`Follower::status`]. The protocol and the copy are in `mqstore-replication`, which knows no sockets.

mod backoff;
mod broker;

use std::time::Duration;

use mqstore::error::StoreError;
use mqstore::io::Clock;
use mqstore::io::sync::Mutex;
use mqstore::replication::copy::{CopySetup, CopyStore, remove_copy};
use mqstore::replication::log::{ReplicaError, ReplicaLog};
use mqstore::replication::metadata::{BrokerFacts, Tables};
use mqstore::replication::replica::{Begin, Replica, ReplicaOptions, ReplicaProgress};

use crate::deadline::clock;
use crate::tcp::Connection;
use backoff::Backoff;
use broker::BrokerAddress;

/// Pause after a look at the tables that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(60);

/// How to follow a master.
pub struct FollowSetup {
    /// The copy.
    pub copy: CopySetup,
    /// The protocol and the begin.
    pub replica: ReplicaOptions,
    /// Host and port of the broker, for its tables.
    pub metadata: Option<String>,
    /// Time between two looks at its tables.
    pub metadata_interval: Duration,
    /// Whether the end of the copy is reported only after a sync, also if the master does not ask for it.
    pub durable_acks: bool,
    /// Whether to remove an earlier copy first.
    pub full_copy: bool,
}

/// What a follower does now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FollowState {
    /// It has no connection, and tries again.
    #[default]
    Connecting,
    /// It compares the copy with the master's log.
    Comparing,
    /// It copies.
    Following,
    /// It has ended.
    Ended,
}

/// How far a follower is.
#[derive(Clone, Debug, Default)]
pub struct FollowStatus {
    /// What it does.
    pub state: FollowState,
    /// The ends of both logs, as far as they are known.
    pub progress: ReplicaProgress,
    /// Milliseconds since the copy last had everything that the master had sent.
    pub lag_ms: u64,
    /// Milliseconds since the end of the copy last moved.
    pub quiet_ms: u64,
    /// Number of connections so far.
    pub connections: u64,
    /// Why the last connection ended.
    pub error: Option<String>,
    /// Why the tables could not be read, the last time.
    pub metadata_error: Option<String>,
    /// The log offset up to which the copy has the tables of a broker, or the metadata of a store of ours.
    pub metadata_end: Option<u64>,
}

/// See the header of this module.
pub struct Follower {
    work: Mutex<Work>,
    now: Mutex<Now>,
}

/// What [`Follower::status`] returns.
struct Now {
    status: FollowStatus,
    /// When the copy last had everything that the master had sent.
    caught_up: Duration,
    /// When its end last moved, or the connection began.
    moved: Duration,
}

struct Work {
    /// `None` after the end.
    copy: Option<CopyStore>,
    setup: FollowSetup,
    link: Option<(Connection, Replica)>,
    backoff: Backoff,
    broker: Option<BrokerAddress>,
    tables: Option<Tables>,
    tables_due: Duration,
}

impl Follower {
    /// Asks the broker, if its address is given, and opens the copy. Connects with the first step.
    ///
    /// # Errors
    /// Those of the open; `InvalidOption` for another size of segments; `Io` if the broker does not answer.
    pub fn open(mut setup: FollowSetup) -> Result<Self, StoreError> {
        let broker = setup.metadata.clone().map(BrokerAddress::new);
        let mut first = None;
        if let Some(broker) = &broker {
            let facts = broker.facts()?;
            apply_facts(&mut setup, &facts);
            first = Some((facts, broker.tables()?));
        }
        if setup.full_copy {
            remove_copy(&setup.copy.files())?;
        }
        let copy = CopyStore::open(setup.copy.clone())?;
        let state = copy.state()?;
        if state.segment_bytes != setup.copy.options.segment_bytes && setup.metadata.is_some() {
            let (own, master) = (state.segment_bytes, setup.copy.options.segment_bytes);
            copy.close()?;
            let reason = format!("the segments of the copy have {own} bytes, those of the master {master}");
            return Err(StoreError::InvalidOption { option: "segment_size", reason });
        }
        if let Some((facts, tables)) = &first {
            tables.apply_topics(copy.store())?;
            if let Some(broker_id) = setup.replica.broker_id {
                facts.save_identity(copy.store().files(), broker_id)?;
            }
        }
        let status = FollowStatus {
            progress: ReplicaProgress { end: state.end, master_end: state.end, ..ReplicaProgress::default() },
            ..FollowStatus::default()
        };
        let begun = clock().monotonic();
        let tables_due = begun + setup.metadata_interval;
        let work = Work {
            copy: Some(copy),
            setup,
            link: None,
            backoff: Backoff::new(),
            broker,
            tables: first.map(|(_, tables)| tables),
            tables_due,
        };
        let now = Now { status, caught_up: begun, moved: begun };
        Ok(Self { work: Mutex::new(work), now: Mutex::new(now) })
    }

    /// Works for at most about `wait`. Returns notes for the log of the program.
    ///
    /// # Errors
    /// An error ends the follower: the copy is none of the master's log, or the store has stopped.
    pub fn step(&self, wait: Duration) -> Result<Vec<String>, StoreError> {
        let mut work = self.work.lock();
        let outcome = work.step(wait, &self.now);
        let notes = work.copy.as_mut().map(CopyStore::take_notes).unwrap_or_default();
        if let Err(error) = outcome {
            let mut now = self.now.lock();
            now.status.state = FollowState::Ended;
            now.status.error = Some(error.to_string());
            drop(now);
            // The error that ended the follower matters more.
            let _ = work.end();
            return Err(error);
        }
        Ok(notes)
    }

    /// Returns how far the follower is. Does not wait for a step.
    pub fn status(&self) -> FollowStatus {
        let now = self.now.lock();
        let time = clock().monotonic();
        let since = |then| u64::try_from(time.saturating_sub(then).as_millis()).unwrap_or(u64::MAX);
        FollowStatus { lag_ms: since(now.caught_up), quiet_ms: since(now.moved), ..now.status.clone() }
    }

    /// Ends the connection and closes the copy. A second call does nothing.
    ///
    /// # Errors
    /// Those of the last flush.
    pub fn close(&self) -> Result<(), StoreError> {
        let outcome = self.work.lock().end();
        self.now.lock().status.state = FollowState::Ended;
        outcome
    }
}

/// Takes the sizes of files and the first log offset from the master.
fn apply_facts(setup: &mut FollowSetup, facts: &BrokerFacts) {
    facts.apply(&mut setup.copy.options);
    if let Begin::Oldest(min) = &mut setup.replica.begin {
        *min = facts.log_min;
    }
}

impl Work {
    fn step(&mut self, wait: Duration, now: &Mutex<Now>) -> Result<(), StoreError> {
        let Some(copy) = &mut self.copy else {
            return Err(StoreError::Closed { path: self.setup.copy.root.clone() });
        };
        copy.store().check()?;
        let Some((connection, replica)) = &mut self.link else {
            if self.backoff.wait(wait) {
                self.connect(now)?;
            }
            return Ok(());
        };
        let outcome = exchange(connection, replica, copy, self.setup.durable_acks, wait);
        let progress = replica.progress();
        let state = if progress.is_following { FollowState::Following } else { FollowState::Comparing };
        {
            let mut now = now.lock();
            let time = clock().monotonic();
            if now.status.state != state || now.status.progress.end != progress.end {
                now.moved = time;
            }
            (now.status.state, now.status.progress) = (state, progress);
            now.status.metadata_end = progress.metadata_end.or(now.status.metadata_end);
            if matches!(outcome, Ok(true)) && progress.is_following {
                now.caught_up = time;
            }
        }
        if progress.is_following {
            self.backoff.succeed();
        }
        match outcome {
            Ok(_) => self.look_at_tables(progress.end, now),
            Err(LinkError::Final(error)) => Err(error),
            Err(LinkError::Lost(reason)) => {
                self.lose(reason, now);
                Ok(())
            }
        }
    }

    fn connect(&mut self, now: &Mutex<Now>) -> Result<(), StoreError> {
        let Some(copy) = &self.copy else { return Ok(()) };
        match Connection::open(&self.setup.copy.master.address) {
            Ok(connection) => {
                now.lock().status.connections += 1;
                let time_ms = now_ms();
                let replica = Replica::new(self.setup.replica, copy, time_ms);
                match replica.map_err(|error| self.link_error(error)) {
                    Ok(replica) => self.link = Some((connection, replica)),
                    Err(LinkError::Final(error)) => return Err(error),
                    Err(LinkError::Lost(reason)) => self.lose(reason, now),
                }
            }
            Err(error) => self.lose(format!("{}: {error}", self.setup.copy.master.address), now),
        }
        Ok(())
    }

    fn link_error(&self, error: ReplicaError) -> LinkError {
        of_replica(&self.setup.copy.master.address, error)
    }

    fn lose(&mut self, reason: String, now: &Mutex<Now>) {
        self.link = None;
        self.backoff.fail();
        let mut now = now.lock();
        now.status.state = FollowState::Connecting;
        let is_new = now.status.error.as_ref() != Some(&reason);
        // A master that is down for a day is no reason for a line a second.
        if is_new && let Some(copy) = &self.copy {
            copy.store().add_note(&format!("following: {reason}; it connects again"));
        }
        now.status.error = Some(reason);
    }

    /// Reads the tables if it is time, and applies them as soon as the copy has the log for them.
    fn look_at_tables(&mut self, end: u64, now: &Mutex<Now>) -> Result<(), StoreError> {
        let Some(copy) = &self.copy else { return Ok(()) };
        if let Some(tables) = self.tables.take_if(|tables| tables.log_end <= end) {
            tables.apply(copy.store())?;
            now.lock().status.metadata_end = Some(tables.log_end);
        }
        let Some(broker) = self.broker.as_ref().filter(|_| clock().monotonic() >= self.tables_due) else {
            return Ok(());
        };
        // Tables for which the log is still missing stay: a copy that is always a little behind gets them, too.
        let found = broker.tables();
        // A broker that does not answer stops the copy for some seconds each time.
        let pause = if found.is_ok() { Duration::ZERO } else { AFTER_FAILURE };
        self.tables_due = clock().monotonic() + self.setup.metadata_interval.max(pause);
        let mut now = now.lock();
        match found {
            Ok(tables) => {
                now.status.metadata_error = None;
                now.status.progress.master_end = now.status.progress.master_end.max(tables.log_end);
                tables.apply_topics(copy.store())?;
                self.tables.get_or_insert(tables);
            }
            Err(error) => now.status.metadata_error = Some(error.to_string()),
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), StoreError> {
        self.link = None;
        self.copy.take().map_or(Ok(()), |copy| copy.close())
    }
}

/// Why a connection ends.
enum LinkError {
    /// Another one can succeed.
    Lost(String),
    /// No other one can.
    Final(StoreError),
}

fn of_replica(master: &str, error: ReplicaError) -> LinkError {
    match error {
        ReplicaError::Protocol(reason) => LinkError::Lost(format!("{master}: {reason}")),
        ReplicaError::Diverged { .. } => {
            LinkError::Final(StoreError::Refused { reason: format!("{master}: {error}") })
        }
        ReplicaError::Store(
            error @ (StoreError::DiskFull { .. }
            | StoreError::DiskNearlyFull { .. }
            | StoreError::Busy { .. }),
        ) => LinkError::Lost(error.to_string()),
        ReplicaError::Store(error) => LinkError::Final(error),
    }
}

/// Reads what has arrived, appends it, and reports. Returns whether nothing more has arrived.
fn exchange(
    connection: &Connection,
    replica: &mut Replica,
    copy: &mut CopyStore,
    durable_acks: bool,
    wait: Duration,
) -> Result<bool, LinkError> {
    let master = connection.address.clone();
    let lost = |error: std::io::Error| LinkError::Lost(format!("{master}: {error}"));
    let failed = |error| of_replica(&master, error);
    connection.send(&replica.take_output()).map_err(lost)?;
    let take = |received: &[u8], is_drained| {
        if !received.is_empty() {
            replica.receive(received, copy, now_ms()).map_err(failed)?;
            if durable_acks || replica.wants_durable_acks() {
                copy.sync().map_err(LinkError::Final)?;
            }
        }
        Ok(is_drained)
    };
    let is_drained = connection.receive(wait, take).map_err(lost)??;
    replica.report(now_ms()).map_err(failed)?;
    connection.send(&replica.take_output()).map_err(lost)?;
    Ok(is_drained)
}

/// Milliseconds of a clock that never steps.
fn now_ms() -> i64 {
    i64::try_from(clock().monotonic().as_millis()).unwrap_or(i64::MAX)
}
