//! The members of one group in this process, and the queues of each.
//!
//! [`Group`] is a plain value: the members, the known queues, and the owner of each queue with its generation. Each
//! change of an owner gives the queue a new generation. A commit by an earlier owner has an old generation and is
//! refused. [`Coordinator`] is the same with a lock and the signals of the members.
//!
//! A queue of an ordered consumer stays with it while any of its messages is handed out and not committed. It may
//! move after that commit, or when the consumer leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mqstore_io::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

use super::assignment::{MemberId, Members, Owners, Queue, assign};
use mqstore_base::wake_signal::Signal;

/// The state of one group; see the module's text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    members: Members,
    queues: BTreeSet<Queue>,
    owners: Owners,
    generations: BTreeMap<Queue, u64>,
    /// Queues with messages that an ordered consumer has and did not commit.
    held: BTreeSet<Queue>,
    joined: MemberId,
    /// Counts changes of owners.
    generation: u64,
}

impl Group {
    /// Adds a member that consumes `topics`. Returns its number.
    pub(crate) fn join(&mut self, topics: BTreeSet<Arc<str>>) -> MemberId {
        self.joined += 1;
        self.members.insert(self.joined, topics);
        self.settle();
        self.joined
    }

    /// Removes a member; its queues go to others.
    pub(crate) fn leave(&mut self, member: MemberId) {
        self.members.remove(&member);
        let owners = &self.owners;
        self.held.retain(|queue| owners.get(queue) != Some(&member));
        self.settle();
    }

    /// Adds queues to the known ones. Returns whether one of them is new.
    pub(crate) fn learn(&mut self, queues: impl IntoIterator<Item = Queue>) -> bool {
        let known = self.queues.len();
        self.queues.extend(queues);
        let grew = self.queues.len() > known;
        if grew {
            self.settle();
        }
        grew
    }

    /// Returns the queues of a member, each with its generation.
    pub(crate) fn owned(&self, member: MemberId) -> Vec<(Queue, u64)> {
        let own = self.owners.iter().filter(|(_, owner)| **owner == member);
        own.map(|(queue, _)| (queue.clone(), self.generation_of(queue))).collect()
    }

    pub(crate) fn has(&self, member: MemberId, queue: &Queue, generation: u64) -> bool {
        self.owners.get(queue) == Some(&member) && self.generation_of(queue) == generation
    }

    /// Pins the queue to its owner until [`Self::free`].
    pub(crate) fn hold(&mut self, queue: &Queue) {
        self.held.insert(queue.clone());
    }

    pub(crate) fn consumes(&self, topic: &str) -> bool {
        self.members.values().any(|topics| topics.contains(topic))
    }

    /// Unpins queues, so that they may move.
    pub(crate) fn free<'a>(&mut self, queues: impl IntoIterator<Item = &'a Queue>) {
        let mut freed = false;
        for queue in queues {
            freed |= self.held.remove(queue);
        }
        if freed {
            self.settle();
        }
    }

    fn generation_of(&self, queue: &Queue) -> u64 {
        self.generations.get(queue).copied().unwrap_or_default()
    }

    fn settle(&mut self) {
        let owners = assign(&self.queues, &self.members, &self.owners, &self.held);
        for (queue, owner) in &owners {
            if self.owners.get(queue) != Some(owner) {
                self.generation += 1;
                self.generations.insert(queue.clone(), self.generation);
            }
        }
        self.owners = owners;
    }
}

/// The group of a store, shared by its consumers.
#[derive(Debug, Default)]
pub(crate) struct Coordinator {
    state: Mutex<CoordinatorState>,
    /// Increases with each change of owners; members compare it with the value that they saw last.
    changes: AtomicU64,
}

#[derive(Debug, Default)]
struct CoordinatorState {
    group: Group,
    signals: BTreeMap<MemberId, Arc<Signal>>,
}

impl Coordinator {
    /// Adds a consumer of `topics` to the group. `signal` wakes it when its queues change.
    pub(crate) fn join(&self, topics: BTreeSet<Arc<str>>, signal: Arc<Signal>) -> MemberId {
        let mut shared = self.state.lock();
        let member = shared.group.join(topics);
        shared.signals.insert(member, signal);
        self.notify_members(&shared);
        member
    }

    pub(crate) fn leave(&self, member: MemberId) {
        let mut shared = self.state.lock();
        shared.signals.remove(&member);
        shared.group.leave(member);
        self.notify_members(&shared);
    }

    pub(crate) fn learn(&self, queues: Vec<Queue>) {
        let mut shared = self.state.lock();
        if shared.group.learn(queues) {
            self.notify_members(&shared);
        }
    }

    /// Returns a number that changes whenever a queue gets another owner.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub(crate) fn lock(&self) -> GroupView<'_> {
        GroupView(self.state.lock())
    }

    pub(crate) fn consumes(&self, topic: &str) -> bool {
        self.state.lock().group.consumes(topic)
    }

    /// Pins a queue to its ordered consumer. Returns whether the consumer still owns it.
    pub(crate) fn hold(&self, member: MemberId, queue: &Queue, generation: u64) -> bool {
        let mut shared = self.state.lock();
        let has = shared.group.has(member, queue, generation);
        if has {
            shared.group.hold(queue);
        }
        has
    }

    /// Unpins queues of an ordered consumer.
    pub(crate) fn free(&self, queues: &[Queue]) {
        let mut shared = self.state.lock();
        let before = shared.group.generation;
        shared.group.free(queues);
        if shared.group.generation != before {
            self.notify_members(&shared);
        }
    }

    fn notify_members(&self, shared: &CoordinatorState) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        shared.signals.values().for_each(|signal| signal.ring());
    }
}

/// A locked group; see [`Coordinator::lock`].
pub(crate) struct GroupView<'a>(MutexGuard<'a, CoordinatorState>);

impl std::ops::Deref for GroupView<'_> {
    type Target = Group;

    fn deref(&self) -> &Group {
        &self.0.group
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn queue(queue_id: i32) -> Queue {
        Queue { topic: "t".into(), queue_id }
    }

    fn topics() -> BTreeSet<Arc<str>> {
        BTreeSet::from(["t".into()])
    }

    #[test]
    fn a_held_queue_moves_with_its_commit() {
        let mut group = Group::default();
        group.learn([queue(0), queue(1)]);
        let first = group.join(topics());
        let [(q0, g0), (q1, g1)] = group.owned(first).try_into().unwrap();
        group.hold(&q0);
        group.hold(&q1);
        let second = group.join(topics());
        assert!(group.owned(second).is_empty());
        group.free([&q1]);
        assert!(group.has(first, &q0, g0) && !group.has(first, &q1, g1));
        assert_eq!(group.owned(second).len(), 1);
        group.leave(first);
        assert_eq!(group.owned(second).len(), 2);
        assert!(group.held.is_empty());
    }

    #[derive(Clone, Debug)]
    enum Act {
        Join,
        Leave(usize),
        Grow(i32),
        Hold(i32),
        Free(i32),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            Just(Act::Join),
            (0..6_usize).prop_map(Act::Leave),
            (0..8_i32).prop_map(Act::Grow),
            (0..8_i32).prop_map(Act::Hold),
            (0..8_i32).prop_map(Act::Free),
        ]
    }

    proptest! {
        /// An owner keeps the generation of its queue until the queue moves, and never gets the queue back in the
        /// same generation.
        #[test]
        fn generations_fence(acts in prop::collection::vec(act(), 1..40)) {
            let mut group = Group::default();
            let mut members = Vec::new();
            let mut seen: BTreeMap<(i32, u64), MemberId> = BTreeMap::new();
            let mut before: BTreeMap<i32, (MemberId, u64)> = BTreeMap::new();
            for act in acts {
                let held = group.held.clone();
                let left = match act {
                    Act::Join => {
                        members.push(group.join(topics()));
                        None
                    }
                    Act::Leave(at) if at < members.len() => {
                        let member = members.swap_remove(at);
                        group.leave(member);
                        Some(member)
                    }
                    Act::Leave(_) => None,
                    Act::Grow(count) => {
                        group.learn((0..count).map(queue));
                        None
                    }
                    Act::Hold(id) => {
                        if group.owners.contains_key(&queue(id)) {
                            group.hold(&queue(id));
                        }
                        None
                    }
                    Act::Free(id) => {
                        group.free([&queue(id)]);
                        None
                    }
                };
                let mut now = BTreeMap::new();
                for member in &members {
                    for (queue, generation) in group.owned(*member) {
                        prop_assert!(now.insert(queue.queue_id, (*member, generation)).is_none());
                    }
                }
                prop_assert_eq!(now.len(), if members.is_empty() { 0 } else { group.queues.len() });
                for (id, (owner, generation)) in &now {
                    let known = *seen.entry((*id, *generation)).or_insert(*owner);
                    prop_assert_eq!(known, *owner, "one generation, two owners");
                    if let Some((was, old)) = before.get(id) {
                        prop_assert_eq!(was == owner, old == generation);
                        if held.contains(&queue(*id)) && group.held.contains(&queue(*id)) {
                            prop_assert!(was == owner || left == Some(*was), "a held queue moved");
                        }
                    }
                }
                before = now;
            }
        }
    }
}
