//! The verbs of a store, alone or shared: what the binding calls, with the same arguments and errors in both cases.

use std::collections::BTreeSet;

use mqstore::delivery::{DelayCounts, Due};
use mqstore::error::StoreError;
use mqstore::message::{Appended, NewMessage};
use mqstore::replication::replica_set::MasterStatus;
use mqstore::store::{
    ArchiveState, ExpireReport, NamespaceInfo, ReclaimReport, Stats, TopicChange, TopicRetention,
};
use mqstore::{Error, Store};

use super::SharedStore;
use super::call::{JobWatch, job};
use super::handle::odd;
use super::keyed::{Keyed, Part};
use crate::service::verbs::on_store;
use crate::wire::request::{Batch, DueTime, ImportedMessage, Request};
use crate::wire::response::{ClientInfo, Pending, Response};

/// The verbs of a store that only its writer has.
#[derive(Clone, Copy)]
pub enum Verbs<'a> {
    /// Of a store that this process alone has open.
    Own(&'a Store),
    /// Of a shared store.
    Shared(&'a SharedStore),
}

/// A message that was accepted for later, and the topic in which it waits.
pub type Later = (Appended, Option<String>);

impl Verbs<'_> {
    fn call(&self, request: &Request<'_>) -> Result<Response, Error> {
        match self {
            Self::Own(store) => on_store(store, request, false),
            Self::Shared(shared) => shared.call(request),
        }
    }

    /// Returns the store if this process writes it.
    fn here(&self) -> Option<&Store> {
        match self {
            Self::Own(store) => Some(store),
            Self::Shared(shared) => shared.0.here(),
        }
    }

    fn done(&self, request: &Request<'_>) -> Result<(), Error> {
        self.call(request).map(drop)
    }

    /// Appends one message.
    ///
    /// # Errors
    /// Those of [`mqstore_engine::Store::append`].
    #[inline]
    pub fn append(&self, message: &NewMessage<'_>) -> Result<Appended, Error> {
        match self {
            Self::Own(store) => Ok(store.append(message)?),
            Self::Shared(shared) => match shared.0.here().map(|store| store.append(message)) {
                None | Some(Err(StoreError::Closed { .. })) => self.append_away(message),
                Some(appended) => Ok(appended?),
            },
        }
    }

    #[cold]
    fn append_away(&self, message: &NewMessage<'_>) -> Result<Appended, Error> {
        self.append_batch(std::slice::from_ref(message), false)?.pop().ok_or_else(odd)
    }

    /// Appends messages of one topic under one lock.
    ///
    /// # Errors
    /// Those of [`mqstore_engine::Store::append_many`].
    pub fn append_many(&self, messages: &[NewMessage<'_>]) -> Result<Vec<Appended>, Error> {
        match self {
            Self::Own(store) => Ok(store.append_many(messages)?),
            Self::Shared(shared) => match shared.0.here().map(|store| store.append_many(messages)) {
                None | Some(Err(StoreError::Closed { .. })) => self.append_batch(messages, true),
                Some(appended) => Ok(appended?),
            },
        }
    }

    fn append_batch(&self, messages: &[NewMessage<'_>], many: bool) -> Result<Vec<Appended>, Error> {
        let Self::Shared(shared) = self else { return Err(odd()) };
        let Some(first) = messages.first() else { return Ok(Vec::new()) };
        let keyed = Keyed::new(&shared.0, messages.iter().map(Part::from));
        let request = Request::Append(batch(first, many, &keyed));
        match shared.call(&request)? {
            Response::Appended(positions) => Ok(keyed.results(positions)),
            _ => Err(odd()),
        }
    }

    /// Appends one message to its topic and to light queues.
    ///
    /// # Errors
    /// Those of [`mqstore_engine::Store::append_to_light_queues`].
    pub fn append_to_light_queues(
        &self,
        message: &NewMessage<'_>,
        names: &[&str],
    ) -> Result<Appended, Error> {
        if let Some(store) = self.here() {
            return Ok(store.append_to_light_queues(message, names)?);
        }
        let Self::Shared(shared) = self else { return Err(odd()) };
        let keyed = Keyed::new(&shared.0, std::iter::once(Part::from(message)));
        let request = Request::AppendToLightQueues(batch(message, false, &keyed), names.to_vec());
        match shared.call(&request)? {
            Response::Appended(positions) => keyed.results(positions).pop().ok_or_else(odd),
            _ => Err(odd()),
        }
    }

    /// Appends one message that waits for its time.
    ///
    /// # Errors
    /// Those of [`mqstore::Store::append_later`].
    pub fn append_later(&self, message: &NewMessage<'_>, due: Due) -> Result<Later, Error> {
        if let Some(store) = self.here() {
            let accepted = store.append_later(&[(*message, due)])?.pop().ok_or_else(odd)?;
            return Ok((accepted.appended, accepted.waits_in.map(str::to_owned)));
        }
        let Self::Shared(shared) = self else { return Err(odd()) };
        let Some(due) = DueTime::of(due) else { return Ok((self.append(message)?, None)) };
        let keyed = Keyed::new(&shared.0, std::iter::once(Part::from(message)));
        match shared.call(&Request::AppendLater(batch(message, false, &keyed), due))? {
            Response::Accepted(Some((position, waits_in))) => {
                let appended = keyed.results(vec![position]).pop().ok_or_else(odd)?;
                Ok((appended, waits_in))
            }
            _ => Err(odd()),
        }
    }

    /// Appends messages of a file up to the first that is refused, and returns their number.
    ///
    /// # Errors
    /// The error of the first message; `Refused` if the owner ended meanwhile, so that they are there or not.
    pub fn import(&self, rows: Vec<ImportedMessage<'_>>) -> Result<u64, Error> {
        match self.call(&Request::Import(rows))? {
            Response::Count(count) => Ok(count),
            _ => Err(odd()),
        }
    }

    /// Waits for the copies of the messages between two log offsets.
    ///
    /// # Errors
    /// Those of the façade.
    pub fn wait_for_copies(&self, log_offset: u64, log_end: u64) -> Result<(), Error> {
        self.done(&Request::WaitForCopies(log_offset, log_end))
    }

    /// Returns how far the replicas are; `None` for a store that serves none, or that this process alone has open.
    ///
    /// # Errors
    /// Those of the call.
    pub fn replication(&self) -> Result<Option<MasterStatus>, Error> {
        match self.call(&Request::Replication)? {
            Response::Replication(status) => Ok(status),
            _ => Err(odd()),
        }
    }

    /// Makes everything durable.
    ///
    /// # Errors
    /// Those of the façade.
    pub fn flush(&self) -> Result<(), Error> {
        self.done(&Request::Flush)
    }

    /// Creates a topic.
    ///
    /// # Errors
    /// Those of the façade.
    pub fn create_topic(
        &self,
        topic: &str,
        queues: u32,
        attributes: Vec<(String, String)>,
    ) -> Result<(), Error> {
        self.done(&Request::CreateTopic(topic, queues, attributes))
    }

    /// Changes a topic.
    ///
    /// # Errors
    /// Those of the façade.
    pub fn change_topic(&self, topic: &str, change: TopicChange) -> Result<(), Error> {
        self.done(&Request::ChangeTopic(topic, change))
    }

    /// Deletes a topic.
    ///
    /// # Errors
    /// Those of the façade.
    pub fn remove_topic(&self, topic: &str) -> Result<(), Error> {
        self.done(&Request::RemoveTopic(topic))
    }

    /// Deletes a namespace.
    ///
    /// # Errors
    /// Those of the façade.
    pub fn remove_namespace(&self, name: &str) -> Result<NamespaceInfo, Error> {
        match self.call(&Request::RemoveNamespace(name))? {
            Response::Namespace(info) => Ok(info),
            _ => Err(odd()),
        }
    }

    /// Sets the retention of a topic.
    ///
    /// # Errors
    /// Those of the façade.
    pub fn set_retention(&self, topic: &str, limits: TopicRetention) -> Result<(), Error> {
        self.done(&Request::SetRetention(topic, limits))
    }

    /// Sets or ends the limit of what is dispatched.
    ///
    /// # Errors
    /// Those of the façade.
    pub fn set_confirm_offset(&self, offset: Option<u64>) -> Result<(), Error> {
        self.done(&Request::SetConfirmOffset(offset))
    }

    /// Cancels a delayed message.
    ///
    /// # Errors
    /// Those of the façade.
    pub fn cancel_delayed(&self, id: &str) -> Result<bool, Error> {
        match self.call(&Request::CancelDelayed(id))? {
            Response::Flag(flag) => Ok(flag),
            _ => Err(odd()),
        }
    }

    /// Moves a delayed message.
    ///
    /// # Errors
    /// Those of the façade.
    pub fn reschedule(&self, id: &str, due_ms: i64) -> Result<Option<Later>, Error> {
        match self.call(&Request::Reschedule(id, due_ms))? {
            Response::Accepted(moved) => {
                Ok(moved.map(|(position, waits_in)| (position.appended(None), waits_in)))
            }
            _ => Err(odd()),
        }
    }

    /// The numbers of delayed messages.
    ///
    /// # Errors
    /// Those of the façade.
    pub fn delay_counts(&self) -> Result<DelayCounts, Error> {
        match self.call(&Request::DelayCounts)? {
            Response::DelayCounts(counts) => Ok(counts),
            _ => Err(odd()),
        }
    }

    /// Removes due segments, at the owner of a shared store.
    ///
    /// # Errors
    /// Those of the façade.
    pub fn expire(&self, dry_run: bool) -> Result<ExpireReport, Error> {
        match self.call(&Request::Expire { dry_run })? {
            Response::Expired(report) => Ok(*report),
            _ => Err(odd()),
        }
    }

    /// Runs a long verb. In the owner itself, `watch` gets nothing.
    fn job(&self, request: &Request<'_>, watch: JobWatch<'_>) -> Result<Response, Error> {
        match self {
            Self::Own(store) => on_store(store, request, false),
            Self::Shared(shared) => job(&shared.0, request, watch),
        }
    }

    /// Rewrites segments without hidden messages, at the owner of a shared store.
    ///
    /// # Errors
    /// Those of the façade.
    pub fn reclaim(
        &self,
        dry_run: bool,
        erase: BTreeSet<String>,
        bytes_per_second: u64,
    ) -> Result<ReclaimReport, Error> {
        match self.job(&Request::Reclaim { dry_run, erase, bytes_per_second }, &mut |_| Ok(()))? {
            Response::Reclaimed(report) => Ok(*report),
            _ => Err(odd()),
        }
    }

    /// Compacts topics, at the owner of a shared store; the report is JSON. An error of `watch` ends it.
    ///
    /// # Errors
    /// Those of the façade.
    pub fn compact(
        &self,
        topics: Option<Vec<String>>,
        options: &str,
        threads: usize,
        bytes_per_second: u64,
        watch: JobWatch<'_>,
    ) -> Result<String, Error> {
        let request = Request::Compact { topics, options, threads: threads as u32, bytes_per_second };
        match self.job(&request, watch)? {
            Response::Text(report) => Ok(report),
            _ => Err(odd()),
        }
    }

    /// Sets or removes the archive.
    ///
    /// # Errors
    /// Those of the façade.
    pub fn set_archive(&self, state: Option<ArchiveState>) -> Result<(), Error> {
        self.done(&Request::SetArchive(state))
    }

    /// Records the end of the archive with these settings.
    ///
    /// # Errors
    /// Those of the façade.
    pub fn advance_archive(
        &self,
        settings: &str,
        next: &ArchiveState,
    ) -> Result<Option<ArchiveState>, Error> {
        match self.call(&Request::AdvanceArchive(settings.to_owned(), next.clone()))? {
            Response::Archive(state) => Ok(state),
            _ => Err(odd()),
        }
    }

    /// Counters of the writer.
    ///
    /// # Errors
    /// Those of the façade.
    pub fn stats(&self) -> Result<Stats, Error> {
        match self.call(&Request::Stats)? {
            Response::Stats(stats) => Ok(*stats),
            _ => Err(odd()),
        }
    }

    /// Creates topics from their JSON settings by name; returns the new ones.
    ///
    /// # Errors
    /// Those of the façade.
    pub fn make_topics(&self, topics: Vec<(String, String)>) -> Result<Vec<String>, Error> {
        match self.call(&Request::MakeTopics(topics))? {
            Response::Texts(made) => Ok(made),
            _ => Err(odd()),
        }
    }

    /// Gives topics and groups their JSON settings.
    ///
    /// # Errors
    /// Those of the façade.
    pub fn adopt_settings(
        &self,
        topics: Vec<(String, String)>,
        groups: Vec<(String, String)>,
    ) -> Result<(), Error> {
        self.done(&Request::AdoptSettings(topics, groups))
    }

    /// The undecided transactions.
    ///
    /// # Errors
    /// Those of the façade.
    pub fn pending_transactions(&self) -> Result<Vec<Pending>, Error> {
        match self.call(&Request::PendingTransactions)? {
            Response::Pending(pending) => Ok(pending),
            _ => Err(odd()),
        }
    }

    /// The process id of the owner, and its clients.
    ///
    /// # Errors
    /// Those of the call.
    pub fn processes(&self) -> Result<(u32, Vec<ClientInfo>), Error> {
        match self.call(&Request::Processes)? {
            Response::Processes(pid, clients) => Ok((pid, clients)),
            _ => Err(odd()),
        }
    }
}

fn batch<'a>(first: &NewMessage<'a>, many: bool, keyed: &'a Keyed<'_>) -> Batch<'a> {
    Batch {
        topic: first.topic,
        queue_id: first.queue_id,
        durable: first.durable,
        many,
        messages: keyed.messages(),
    }
}
