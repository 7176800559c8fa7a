//! Appends of one message, which can also go to light queues or wait for its delivery, and of many messages.

use mqstore::message::NewMessage;
use pyo3::prelude::*;
use pyo3::types::PyString;

use super::NativeStore;
use crate::convert::append_input::{CompressionArguments, MessageBatch, compress_all, rule_for_many};
use crate::convert::append_result::AppendResult;
use crate::convert::append_results::AppendResults;
use crate::convert::arguments::{text, text_list};
use crate::error::{InvalidOptionError, invalid};
use crate::runtime::delivered;
use crate::store::delay;
use crate::store::delay::DeliveryTime;

impl NativeStore {
    /// Appends one message: to its topic, to its topic and light queues, or for a later delivery.
    #[inline]
    pub(super) fn append_message(
        &self,
        topic: &Bound<'_, PyString>,
        message: NewMessage<'_>,
        when: &DeliveryTime<'_, '_>,
        light_queues: Option<&Bound<'_, PyAny>>,
        replicated: bool,
    ) -> PyResult<AppendResult> {
        self.check_replicated(replicated)?;
        let result = self.append_one(topic, message, when, light_queues)?;
        if replicated {
            self.wait_for_copies(topic.py(), result.place())?;
        }
        Ok(result)
    }

    /// Refuses `replicated` if no machine copies this store. Nothing was appended.
    pub(crate) fn check_replicated(&self, replicated: bool) -> PyResult<()> {
        if !replicated || self.replicates {
            return Ok(());
        }
        let reason = "no machine copies this store: open it with replication=mqstore.Master(...)";
        Err(InvalidOptionError::new_err(("replicated", reason)))
    }

    fn wait_for_copies(&self, py: Python<'_>, (log_offset, log_end): (u64, u64)) -> PyResult<()> {
        let verbs = self.verbs()?;
        delivered(py, || verbs.wait_for_copies(log_offset, log_end))
    }

    #[inline]
    fn append_one(
        &self,
        topic: &Bound<'_, PyString>,
        message: NewMessage<'_>,
        when: &DeliveryTime<'_, '_>,
        light_queues: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<AppendResult> {
        let (py, verbs) = (topic.py(), self.verbs()?);
        let light_queues =
            light_queues.map(|names| text_list("light_queues", names)).transpose()?.unwrap_or_default();
        if !light_queues.is_empty() {
            if when.is_given() {
                return Err(invalid(
                    "light_queues cannot be combined with delay, deliver_at and delay_level",
                ));
            }
            let names: Vec<&str> = light_queues.iter().map(String::as_str).collect();
            let appended = delivered(py, || verbs.append_to_light_queues(&message, &names))?;
            return Ok(AppendResult::from_core(topic, self.host, appended));
        }
        if when.is_given()
            && let Some(due) = when.due(&**self.core()?.clock())?
        {
            return delay::append(topic, self, message, due);
        }
        let appended = delivered(py, || verbs.append(&message))?;
        Ok(AppendResult::from_core(topic, self.host, appended))
    }

    /// Appends the messages that `convert` makes of the arguments, under one lock.
    pub(crate) fn append_all<'py, B: MessageBatch>(
        &self,
        topic: &Bound<'py, PyAny>,
        convert: impl FnOnce() -> PyResult<B>,
        queue_id: Option<&Bound<'py, PyAny>>,
        (durable, replicated): (bool, bool),
        (compression, compress_over): CompressionArguments<'_, 'py>,
    ) -> PyResult<Bound<'py, AppendResults>> {
        self.check_replicated(replicated)?;
        let (py, store) = (topic.py(), self.core()?);
        let topic = text("topic", topic)?;
        let queue_id = queue_id.map(crate::convert::arguments::queue_id).transpose()?;
        let batch = convert()?;
        let name = topic.to_str()?;
        let rule = rule_for_many(store, name, self.compression(compression, compress_over)?);
        let compressed = compress_all(py, &batch, &rule)?;
        let messages = batch.messages(name, queue_id, durable);
        let stored = compressed.apply(&messages);
        let verbs = self.verbs()?;
        let appended = delivered(py, || verbs.append_many(&stored))?;
        if let (true, Some(first), Some(last)) = (replicated, appended.first(), appended.last()) {
            self.wait_for_copies(py, (first.commit_log_offset, last.log_end()))?;
        }
        AppendResults::of(&topic, self.host, appended)
    }
}
