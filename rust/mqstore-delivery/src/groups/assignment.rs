//! The assignment of queues to members: a pure function.
//!
//! Its promises, for any input:
//!
//! * Every queue of a consumed topic has exactly one owner, and this owner consumes the topic.
//! * No single move of a queue would make the shares more equal. The owner of a queue has at most one queue more than
//!   any other member that could own this queue. If all members consume the same topics, any two shares differ by at
//!   most one.
//! * Sticky: a queue stays with its owner unless the owner left or has more than its share. Pinned queues stay in any
//!   case.
//! * The same input gives the same result.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A queue of a topic, by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Queue {
    /// The topic.
    pub topic: Arc<str>,
    /// The queue.
    pub queue_id: i32,
}

/// Identifies a member of a group; grows in the order of joining.
pub(super) type MemberId = u64;

/// Members and the topics that each consumes.
pub(super) type Members = BTreeMap<MemberId, BTreeSet<Arc<str>>>;

/// The owner of each queue.
pub(super) type Owners = BTreeMap<Queue, MemberId>;

/// Returns the new owners of `queues`, given the previous ones; see the module's text.
pub(super) fn assign(
    queues: &BTreeSet<Queue>,
    members: &Members,
    before: &Owners,
    pinned: &BTreeSet<Queue>,
) -> Owners {
    let mut shares = MemberShares::new(members);
    let mut free = Vec::new();
    for queue in queues {
        match before.get(queue).filter(|owner| shares.may_have(**owner, &queue.topic)) {
            Some(owner) => shares.give(*owner, queue, pinned.contains(queue)),
            None => free.push(queue),
        }
    }
    // Topics with the fewest members first, so that members with more topics can balance the shares later.
    free.sort_by_cached_key(|queue| (shares.takers(&queue.topic).len(), (*queue).clone()));
    for queue in free {
        let taker =
            shares.takers(&queue.topic).iter().min_by_key(|member| (shares.count(**member), **member));
        if let Some(taker) = taker.copied() {
            shares.give(taker, queue, false);
        }
    }
    while shares.balance_once() {}
    shares.owners()
}

/// The shares of the members during the assignment.
struct MemberShares<'a> {
    members: &'a Members,
    /// The members that consume each topic.
    takers: BTreeMap<&'a str, Vec<MemberId>>,
    counts: BTreeMap<MemberId, usize>,
    /// Queues that may move, by owner and topic.
    movable: BTreeMap<(MemberId, &'a str), BTreeSet<Queue>>,
    fixed: Owners,
}

impl<'a> MemberShares<'a> {
    fn new(members: &'a Members) -> Self {
        let mut takers: BTreeMap<&str, Vec<MemberId>> = BTreeMap::new();
        for (member, topics) in members {
            for topic in topics {
                takers.entry(topic).or_default().push(*member);
            }
        }
        let counts = members.keys().map(|member| (*member, 0)).collect();
        Self { members, takers, counts, movable: BTreeMap::new(), fixed: Owners::new() }
    }

    fn may_have(&self, member: MemberId, topic: &str) -> bool {
        self.members.get(&member).is_some_and(|topics| topics.contains(topic))
    }

    fn takers(&self, topic: &str) -> &[MemberId] {
        self.takers.get(topic).map_or(&[], Vec::as_slice)
    }

    fn count(&self, member: MemberId) -> usize {
        self.counts.get(&member).copied().unwrap_or_default()
    }

    fn give(&mut self, member: MemberId, queue: &Queue, fixed: bool) {
        *self.counts.entry(member).or_default() += 1;
        if fixed {
            self.fixed.insert(queue.clone(), member);
            return;
        }
        let topic = self.members.get(&member).and_then(|topics| topics.get(&queue.topic));
        if let Some(topic) = topic {
            self.movable.entry((member, topic)).or_default().insert(queue.clone());
        }
    }

    /// Moves one queue from a member with more queues to one with fewer, if that makes the shares more equal. Returns
    /// whether it did.
    fn balance_once(&mut self) -> bool {
        let mut by_count: Vec<(usize, MemberId)> =
            self.counts.iter().map(|(member, count)| (*count, *member)).collect();
        by_count.sort_unstable_by_key(|(count, member)| (*count, *member));
        for (most, from) in by_count.iter().rev() {
            for (fewest, to) in by_count.iter().take_while(|(fewest, _)| fewest + 1 < *most) {
                debug_assert!(fewest < most);
                if let Some(queue) = self.take(*from, *to) {
                    self.give(*to, &queue, false);
                    return true;
                }
            }
        }
        false
    }

    /// Removes a queue from `from` that `to` may own.
    fn take(&mut self, from: MemberId, to: MemberId) -> Option<Queue> {
        let wanted = self.members.get(&to)?;
        for topic in wanted {
            let Some(queues) = self.movable.get_mut(&(from, &**topic)) else { continue };
            if let Some(queue) = queues.pop_last() {
                *self.counts.entry(from).or_default() -= 1;
                return Some(queue);
            }
        }
        None
    }

    fn owners(self) -> Owners {
        let mut owners = self.fixed;
        for ((member, _), queues) in self.movable {
            owners.extend(queues.into_iter().map(|queue| (queue, member)));
        }
        owners
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn queue(topic: &str, queue_id: i32) -> Queue {
        Queue { topic: topic.into(), queue_id }
    }

    fn queues(topics: &[(&str, i32)]) -> BTreeSet<Queue> {
        topics.iter().flat_map(|(topic, count)| (0..*count).map(|id| queue(topic, id))).collect()
    }

    fn members(all: &[(MemberId, &[&str])]) -> Members {
        all.iter().map(|(id, topics)| (*id, topics.iter().map(|topic| (*topic).into()).collect())).collect()
    }

    fn counts(owners: &Owners) -> BTreeMap<MemberId, usize> {
        let mut counts = BTreeMap::new();
        for owner in owners.values() {
            *counts.entry(*owner).or_default() += 1;
        }
        counts
    }

    #[test]
    fn topics_of_one_queue_are_shared_too() {
        let queues = queues(&[("a", 1), ("b", 1), ("c", 1)]);
        let alone = assign(&queues, &members(&[(1, &["a", "b", "c"])]), &Owners::new(), &BTreeSet::new());
        assert_eq!(counts(&alone), [(1, 3)].into());
        let two = members(&[(1, &["a", "b", "c"]), (2, &["a", "b", "c"])]);
        let shared = assign(&queues, &two, &alone, &BTreeSet::new());
        assert_eq!(counts(&shared), [(1, 2), (2, 1)].into());
    }

    #[test]
    fn a_pinned_queue_stays() {
        let queues = queues(&[("a", 2)]);
        let before = Owners::from([(queue("a", 0), 1), (queue("a", 1), 1)]);
        let two = members(&[(1, &["a"]), (2, &["a"])]);
        let pinned = BTreeSet::from([queue("a", 1)]);
        let owners = assign(&queues, &two, &before, &pinned);
        assert_eq!(owners[&queue("a", 1)], 1);
        assert_eq!(owners[&queue("a", 0)], 2);
        let all: BTreeSet<_> = before.keys().cloned().collect();
        assert_eq!(assign(&queues, &two, &before, &all), before);
        // A member that left keeps nothing.
        let other = members(&[(2, &["a"])]);
        assert_eq!(counts(&assign(&queues, &other, &before, &all)), [(2, 2)].into());
    }

    #[test]
    fn what_nobody_consumes_has_no_owner() {
        let queues = queues(&[("a", 1), ("b", 2)]);
        let owners = assign(&queues, &members(&[(7, &["b"])]), &Owners::new(), &BTreeSet::new());
        assert_eq!(owners, Owners::from([(queue("b", 0), 7), (queue("b", 1), 7)]));
    }

    fn any_group() -> impl Strategy<Value = (Vec<i32>, Vec<BTreeSet<usize>>)> {
        let topics = prop::collection::vec(0..6_i32, 1..4);
        topics.prop_flat_map(|topics| {
            let count = topics.len();
            (Just(topics), prop::collection::vec(prop::collection::btree_set(0..count, 0..=count), 0..6))
        })
    }

    fn named(number: usize) -> Arc<str> {
        format!("t{number}").into()
    }

    proptest! {
        #[test]
        fn every_queue_has_one_owner_and_no_move_helps(
            (topics, subscriptions) in any_group(),
            old in prop::collection::vec((0..4_usize, 0..6_i32, 0..7_u64), 0..20),
            pins in prop::collection::vec((0..4_usize, 0..6_i32), 0..3),
        ) {
            let queues: BTreeSet<Queue> = topics
                .iter()
                .enumerate()
                .flat_map(|(topic, count)| (0..*count).map(move |id| Queue { topic: named(topic), queue_id: id }))
                .collect();
            let members: Members = subscriptions
                .iter()
                .enumerate()
                .map(|(id, topics)| (id as MemberId, topics.iter().map(|topic| named(*topic)).collect()))
                .collect();
            let before: Owners = old
                .iter()
                .map(|(topic, id, owner)| (Queue { topic: named(*topic), queue_id: *id }, *owner))
                .collect();
            let pinned: BTreeSet<Queue> =
                pins.iter().map(|(topic, id)| Queue { topic: named(*topic), queue_id: *id }).collect();
            let owners = assign(&queues, &members, &before, &pinned);
            prop_assert_eq!(&owners, &assign(&queues, &members, &before, &pinned));
            let consumed = |queue: &Queue| members.values().any(|topics| topics.contains(&queue.topic));
            prop_assert!(owners.keys().all(|queue| queues.contains(queue)));
            prop_assert_eq!(owners.len(), queues.iter().filter(|queue| consumed(queue)).count());
            let counts = counts(&owners);
            let count = |member: &MemberId| counts.get(member).copied().unwrap_or_default();
            for (queue, owner) in &owners {
                prop_assert!(members[owner].contains(&queue.topic));
                let was = before.get(queue).filter(|was| {
                    members.get(was).is_some_and(|topics| topics.contains(&queue.topic))
                });
                if pinned.contains(queue) && was.is_some() {
                    prop_assert_eq!(was, Some(owner));
                    continue;
                }
                for (other, topics) in &members {
                    if topics.contains(&queue.topic) {
                        prop_assert!(count(owner) <= count(other) + 1, "{:?} of {} for {}", queue, owner, other);
                    }
                }
            }
            // A second assignment moves nothing.
            prop_assert_eq!(assign(&queues, &members, &owners, &pinned), owners);
        }

        #[test]
        fn nothing_moves_without_need(count in 1..40_i32, had in 1..6_u64, joins in 0..3_u64, leaves in 0..3_u64) {
            let queues: BTreeSet<Queue> = (0..count).map(|id| queue("a", id)).collect();
            let group = |ids: std::ops::Range<u64>| -> Members {
                ids.map(|id| (id, BTreeSet::from(["a".into()]))).collect()
            };
            let before = assign(&queues, &group(0..had), &Owners::new(), &BTreeSet::new());
            let now = group(leaves.min(had)..had + joins);
            prop_assume!(!now.is_empty());
            let owners = assign(&queues, &now, &before, &BTreeSet::new());
            let moved = owners.iter().filter(|(queue, owner)| before[*queue] != **owner).count();
            // The number of queues without owner, or of queues that new members get, whichever is larger.
            let orphaned = before.values().filter(|owner| !now.contains_key(owner)).count();
            let kept = counts(&before);
            let new: usize = counts(&owners)
                .iter()
                .map(|(member, count)| count.saturating_sub(kept.get(member).copied().unwrap_or_default()))
                .sum();
            prop_assert_eq!(moved, new.max(orphaned));
        }
    }
}
