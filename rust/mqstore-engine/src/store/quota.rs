//! The quotas of topics, and how much of them is used.

use mqstore_base::error::StoreError;
use mqstore_format::json::TopicConfig;

use crate::read::view::View;

/// A topic's quota and its use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicQuota {
    /// The topic.
    pub topic: String,
    /// Maximum number of messages.
    pub max_messages: u64,
    /// Current number of messages: for each queue, from the first offset that can be read in the commit log to the
    /// last.
    pub messages: u64,
}

/// Returns the topics that have a quota, sorted by name.
pub(super) fn quotas(view: &dyn View) -> Result<Vec<TopicQuota>, StoreError> {
    view.catch_up()?;
    let mut quotas = Vec::new();
    for topic in view.topics()? {
        let attributes = view.attributes(&topic).into_iter().collect();
        let config = TopicConfig { attributes, ..TopicConfig::new(topic.as_str(), 1) };
        let Some(max_messages) = config.max_messages() else { continue };
        let mut messages = 0_u64;
        for queue_id in view.queue_ids(&topic)? {
            let (min, max) = view.bounds(&topic, queue_id)?.unwrap_or((0, 0));
            messages = messages.saturating_add(u64::try_from(max - min).unwrap_or(0));
        }
        quotas.push(TopicQuota { topic, max_messages, messages });
    }
    Ok(quotas)
}
