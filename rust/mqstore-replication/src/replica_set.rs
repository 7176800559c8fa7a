//! The replicas of a master: how far each one is, which are in sync, and what enough of them have.
//!
//! ```text
//! copies an append waits for = in_sync_replicas, or all that are in sync, but at least min_in_sync
//! covered                    = the log offset that so many copies have, this store included
//! ```
//!
//! A replica is in sync if it had, within the lag limit, everything that there was when something was last sent to it.
//! The covered offset never falls.
//!
//! Source: `GroupTransferService`, `AutoSwitchHAService#maybeExpandInSyncStateSet`, `CommitLog#calcNeedAckNums`.

use std::collections::{BTreeMap, VecDeque};

use mqstore_base::options::MasterOptions;
use serde::{Deserialize, Serialize};

use crate::master::ReplicaFacts;
use crate::wire::Protocol;

/// Known ends of the log for one that is covered later.
const MOST_BORDERS: usize = 1024;

/// How far the replicas of a master are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MasterStatus {
    /// Host and port at which it listens.
    pub address: String,
    /// Number of copies that an append waits for now, this store included.
    pub needed: u32,
    /// Log offset up to which as many copies have the log.
    pub replicated_offset: u64,
    /// The replicas.
    pub replicas: Vec<ReplicaStatus>,
}

/// How far a replica is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// Host and port.
    pub address: String,
    /// Its protocol, once it is known.
    pub protocol: Option<Protocol>,
    /// Its broker id, if the protocol has one.
    pub broker_id: Option<u64>,
    /// Whether no append waits for it.
    pub is_learner: bool,
    /// End of its log, as far as it is known.
    pub log_end: u64,
    /// Bytes of the log that it does not have.
    pub lag_bytes: u64,
    /// Milliseconds since it last had everything.
    pub lag_ms: u64,
    /// Whether it is one of the replicas in sync.
    pub in_sync: bool,
    /// Milliseconds since its last report.
    pub silent_ms: u64,
}

/// A replica, whatever its connection: a slave in controller mode by its id, another one by its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownReplica {
    /// Identifies it among the replicas of this master.
    pub number: u64,
    /// The end of its log.
    pub log_end: u64,
    /// When it last got further, in milliseconds of the clock that never steps.
    pub moved_ms: i64,
}

#[derive(Debug)]
struct Member {
    address: String,
    facts: ReplicaFacts,
    /// End of the log, and the time, when something was last sent.
    sent: (u64, i64),
    caught_up_ms: Option<i64>,
    connected_ms: i64,
    reported_ms: i64,
}

impl Member {
    /// The end of its log that counts as a copy.
    fn acked(&self) -> u64 {
        self.facts.acked.unwrap_or(0)
    }

    /// The end of its log as far as it is known.
    fn log_end(&self) -> u64 {
        self.acked().max(self.facts.begin.unwrap_or(0))
    }
}

/// See the header of this module. Each connection has a number.
#[derive(Debug)]
pub struct ReplicaSet {
    options: MasterOptions,
    members: BTreeMap<u64, Member>,
    covered: u64,
    /// How far each replica is that is connected, or was within `replica_timeout_ms`, by its name.
    known: BTreeMap<String, KnownReplica>,
    /// Ends of appends, ascending: the log offsets that readers may see.
    borders: VecDeque<u64>,
}

impl ReplicaSet {
    /// Makes the set of a master whose log ends at `log_end`.
    pub fn new(options: &MasterOptions, log_end: u64) -> Self {
        let borders = VecDeque::from([log_end]);
        Self {
            options: options.clone(),
            members: BTreeMap::new(),
            covered: 0,
            known: BTreeMap::new(),
            borders,
        }
    }

    /// Adds a connection.
    pub fn connect(&mut self, number: u64, address: String, now_ms: i64) {
        let member = Member {
            address,
            facts: ReplicaFacts::default(),
            sent: (u64::MAX, now_ms),
            caught_up_ms: None,
            connected_ms: now_ms,
            reported_ms: now_ms,
        };
        self.members.insert(number, member);
    }

    /// Removes a connection.
    pub fn disconnect(&mut self, number: u64) {
        self.members.remove(&number);
    }

    /// Something is sent to a replica now, while the log ends at `log_end`.
    pub fn sending(&mut self, number: u64, log_end: u64, now_ms: i64) {
        if let Some(member) = self.members.get_mut(&number) {
            member.sent = (log_end, now_ms);
        }
        self.note_border(log_end);
    }

    /// A replica has reported.
    pub fn reported(&mut self, number: u64, facts: ReplicaFacts, now_ms: i64) {
        // A replica that connects again may still have its old connection.
        let is_new =
            self.members.get(&number).is_some_and(|member| member.facts.broker_id != facts.broker_id);
        if is_new && facts.broker_id.is_some() {
            // The bytes of an old one can come later than those of the new one.
            let same = self.members.iter().filter(|(_, member)| member.facts.broker_id == facts.broker_id);
            let newest = same.map(|(other, _)| *other).max().unwrap_or(number).max(number);
            self.members.retain(|other, member| {
                let is_same = *other == number || member.facts.broker_id == facts.broker_id;
                *other == newest || !is_same
            });
        }
        let Some(member) = self.members.get_mut(&number) else { return };
        member.facts = facts;
        member.reported_ms = now_ms;
        if member.log_end() >= member.sent.0 {
            member.caught_up_ms = member.caught_up_ms.max(Some(member.sent.1));
        }
    }

    /// Whether a standby of ours is connected.
    pub fn has_standby(&self) -> bool {
        self.members.values().any(|member| member.facts.protocol == Some(Protocol::Own))
    }

    /// Returns the replicas that are connected, or were within `replica_timeout_ms`, by name.
    pub fn known(&mut self, now_ms: i64) -> &BTreeMap<String, KnownReplica> {
        let mut ends: BTreeMap<String, u64> = BTreeMap::new();
        for member in self.members.values().filter(|member| member.facts.begin.is_some()) {
            let host = member.address.rsplit_once(':').map_or(&*member.address, |(host, _)| host);
            let name = match (member.facts.broker_id, member.facts.protocol) {
                (Some(id), Some(Protocol::Own)) => format!("{host}, copy {id:x}"),
                (Some(id), _) => format!("{host}, broker {id}"),
                (None, _) => host.to_owned(),
            };
            let end = ends.entry(name).or_insert(u64::MAX);
            *end = member.log_end().min(*end);
        }
        for (name, log_end) in &ends {
            let log_end = *log_end;
            let next = self.known.values().map(|one| one.number + 1).max().unwrap_or(1);
            let new = KnownReplica { number: next, log_end, moved_ms: now_ms };
            let known = self.known.entry(name.clone()).or_insert(new);
            if known.log_end != log_end {
                (known.log_end, known.moved_ms) = (log_end, now_ms);
            }
        }
        let limit = i64::try_from(self.options.replica_timeout_ms).unwrap_or(i64::MAX);
        self.known.retain(|name, one| ends.contains_key(name) || now_ms.saturating_sub(one.moved_ms) < limit);
        &self.known
    }

    /// Returns the number of copies that an append waits for now, this store included.
    pub fn needed(&self, log_end: u64, now_ms: i64) -> u32 {
        let in_sync = 1 + self.members.values().filter(|one| self.is_in_sync(one, log_end, now_ms)).count();
        let in_sync = u32::try_from(in_sync).unwrap_or(u32::MAX);
        self.options.in_sync_replicas.min(in_sync).max(self.options.min_in_sync)
    }

    /// Computes the covered offset again, and returns it.
    pub fn cover(&mut self, log_end: u64, now_ms: i64) -> u64 {
        self.note_border(log_end);
        let needed = self.needed(log_end, now_ms);
        self.covered = self.covered.max(self.end_of_copies(needed, log_end));
        self.covered
    }

    /// Returns the log offset that `needed` copies have, this store included.
    fn end_of_copies(&self, needed: u32, log_end: u64) -> u64 {
        let Some(at) = (needed as usize).checked_sub(2) else { return log_end };
        let members = self.members.values().filter(|member| !member.facts.is_learner);
        let mut ends: Vec<u64> = members.map(Member::acked).collect();
        ends.sort_unstable_by(|one, other| other.cmp(one));
        ends.get(at).map_or(0, |end| *end.min(&log_end))
    }

    /// Returns the last known border of the covered part.
    pub fn confirmed(&mut self) -> u64 {
        while self.borders.get(1).is_some_and(|next| *next <= self.covered) {
            self.borders.pop_front();
        }
        self.borders.front().copied().unwrap_or(0)
    }

    /// Returns how far the replicas are.
    pub fn status(&self, address: String, log_end: u64, now_ms: i64) -> MasterStatus {
        let needed = self.needed(log_end, now_ms);
        let replicated_offset = self.covered.max(self.end_of_copies(needed, log_end));
        MasterStatus { address, needed, replicated_offset, replicas: self.replicas(log_end, now_ms) }
    }

    fn replicas(&self, log_end: u64, now_ms: i64) -> Vec<ReplicaStatus> {
        let since = |ms: i64| u64::try_from(now_ms.saturating_sub(ms)).unwrap_or(0);
        let each = self.members.values().map(|member| {
            let behind = log_end.saturating_sub(member.log_end());
            ReplicaStatus {
                address: member.address.clone(),
                protocol: member.facts.protocol,
                broker_id: member.facts.broker_id,
                is_learner: member.facts.is_learner,
                log_end: member.log_end(),
                lag_bytes: behind,
                lag_ms: if behind == 0 {
                    0
                } else {
                    since(member.caught_up_ms.unwrap_or(member.connected_ms))
                },
                in_sync: self.is_in_sync(member, log_end, now_ms),
                silent_ms: since(member.reported_ms),
            }
        });
        each.collect()
    }

    fn is_in_sync(&self, member: &Member, log_end: u64, now_ms: i64) -> bool {
        let limit = i64::try_from(self.options.lag_limit_ms).unwrap_or(i64::MAX);
        let is_recent = member.caught_up_ms.is_some_and(|ms| now_ms.saturating_sub(ms) <= limit);
        let has_all = member.facts.begin.is_some() && member.log_end() >= log_end;
        !member.facts.is_learner && (is_recent || has_all)
    }

    fn note_border(&mut self, log_end: u64) {
        if self.borders.back().is_some_and(|last| *last >= log_end) {
            return;
        }
        if self.borders.len() == MOST_BORDERS {
            // Each second one is enough for replicas that are far behind. The first one is what readers see.
            let mut keep = false;
            self.borders.retain(|_| {
                keep = !keep;
                keep
            });
        }
        self.borders.push_back(log_end);
    }
}
