//! Appends of messages from elsewhere: from another store, or from a file.

use std::collections::{BTreeMap, HashMap};
use std::slice;

use mqstore_base::error::StoreError;
use mqstore_base::message::{Appended, NewMessage};
use mqstore_delivery::{Broker, BrokerError, Due};
use mqstore_engine::{MessageOrigin, Store};

/// Appends messages from elsewhere in order: those for plain queues together, those for batch queues one by one. After
/// an error, `appended` has the results of the messages before it.
///
/// # Errors
/// Those of [`Broker::append_copies`] and of [`mqstore_engine::SystemAppends::append_batch_copy`].
pub fn append_in_order(
    target: &Broker,
    mut messages: &[(NewMessage<'_>, Due)],
    mut origins: &[MessageOrigin],
    appended: &mut Vec<Appended>,
) -> Result<(), BrokerError> {
    let store = target.store();
    let is_batched = |((message, _), origin): (&(NewMessage<'_>, Due), &MessageOrigin)| {
        origin.sys_flag.inner_batch() || store.has_batch_queues(message.topic)
    };
    let batched: Vec<bool> = messages.iter().zip(origins).map(is_batched).collect();
    for row in batched.chunk_by(|left, right| left == right) {
        let (some, more) = messages.split_at(row.len());
        let (of_some, of_more) = origins.split_at(row.len());
        (messages, origins) = (more, of_more);
        if row.first() == Some(&true) {
            for (one, origin) in some.iter().zip(of_some) {
                match one {
                    (message, Due::Now) => {
                        appended.push(store.system_appends().append_batch_copy(message, origin)?);
                    }
                    // Batch queues accept no waiting messages: this returns the error.
                    _ => {
                        appended.extend(target.append_copies(slice::from_ref(one), slice::from_ref(origin))?);
                    }
                }
            }
        } else {
            appended.extend(target.append_copies(some, of_some)?);
        }
    }
    Ok(())
}

/// Creates missing topics and queues; batch queues if the topic has batches. `wanted` has topic, queue, and whether the
/// message is in a batch queue. `known` has the number of queues of each topic that an earlier call has seen.
///
/// # Errors
/// Those of [`Store::create_topic`].
pub fn make_queues<'a>(
    known: &mut BTreeMap<String, u32>,
    target: &Store,
    wanted: impl Iterator<Item = (&'a str, i32, bool)>,
) -> Result<(), StoreError> {
    let mut most: HashMap<&str, (u32, bool)> = HashMap::new();
    for (topic, queue_id, batch) in wanted {
        // The append refuses a queue that is not valid.
        let queues = queue_id.clamp(0, 65_535).unsigned_abs() + 1;
        let entry = most.entry(topic).or_default();
        *entry = (queues.max(entry.0), batch || entry.1);
    }
    for (topic, (queues, batch)) in most {
        if !known.contains_key(topic) {
            let there = match target.queues(topic) {
                Ok(queues) => queues.len() as u32,
                Err(StoreError::TopicNotFound { .. }) => 0,
                Err(error) => return Err(error),
            };
            known.insert(topic.to_owned(), there);
        }
        if let Some(there) = known.get_mut(topic)
            && *there < queues
        {
            let kind = ("queue.type".to_owned(), "BatchCQ".to_owned());
            target.create_topic(
                topic,
                queues,
                if batch && *there == 0 { slice::from_ref(&kind) } else { &[] },
            )?;
            *there = queues;
        }
    }
    Ok(())
}
