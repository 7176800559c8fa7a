//! A transaction, alone or shared, and the checks of undecided transactions.
//!
//! The id of a shared transaction comes from this process, so the next owner finds what the transaction has in the log
//! and continues it.

use mqstore::delivery::{CheckAnswer, CheckOptions, NewHalfMessage, TransactionOutcome, appended_with_key};
use mqstore::io::sync::{Arc, AtomicBool, Mutex, Ordering};
use mqstore::message::{Appended, UniqueKey};
use mqstore::{Error, Store};

use super::call::{Call, SLICE, answer};
use super::handle::{Handle, Local, Opening, odd};
use super::{Inner, SharedStore};
use crate::client::encoded::Encoded;
use crate::wire::request::{Message, Request, TransactionVerb};
use crate::wire::response::{Pending, Response};

/// A transaction.
pub enum Transaction {
    /// Of a store that this process alone has open.
    Own(mqstore::Transaction),
    /// Of a shared store.
    Shared(SharedTransaction),
}

/// A transaction of a shared store.
pub struct SharedTransaction {
    handle: Arc<Handle>,
    group: String,
    id: String,
    has_messages: Arc<AtomicBool>,
    /// Topic and unique key of each message.
    messages: Mutex<Vec<(Arc<str>, UniqueKey)>>,
    end: Mutex<Option<Ended>>,
}

struct Ended {
    outcome: TransactionOutcome,
    went: Vec<(Arc<str>, Appended)>,
}

struct Begin {
    group: String,
    id: String,
    has_messages: Arc<AtomicBool>,
}

impl Opening for Begin {
    fn request(&self, number: u64) -> Encoded {
        let has_messages = self.has_messages.load(Ordering::Acquire);
        Encoded::new(&Request::Begin(number, &self.group, &self.id, has_messages))
    }

    fn open(&self, store: &Store) -> Result<Local, Error> {
        let has_messages = self.has_messages.load(Ordering::Acquire);
        let found = store.transactions()?.resume(&self.group, &self.id, has_messages)?;
        Ok(found.map_or(Local::Decided, |transaction| Local::Transaction(Arc::new(transaction))))
    }
}

impl SharedStore {
    /// Begins a transaction; see [`mqstore::Transactions::begin`].
    ///
    /// # Errors
    /// Those of the façade.
    pub fn begin(&self, group: &str) -> Result<Transaction, Error> {
        let id = self.0.keys.next(self.store().clock().now_ms()).as_str().to_owned();
        let has_messages = Arc::<AtomicBool>::default();
        let opening =
            Begin { group: group.to_owned(), id: id.clone(), has_messages: Arc::clone(&has_messages) };
        let handle = Handle::new(&self.0, Box::new(opening));
        handle.open(SLICE)?;
        let group = group.to_owned();
        Ok(Transaction::Shared(SharedTransaction {
            handle,
            group,
            id,
            has_messages,
            messages: Mutex::default(),
            end: Mutex::default(),
        }))
    }

    pub(crate) fn call(&self, request: &Request<'_>) -> Result<Response, Error> {
        answer(Call::new(&self.0, None, request, None))
    }
}

impl SharedTransaction {
    fn verb(&self, verb: TransactionVerb<'_>) -> Result<Response, Error> {
        let request = Request::Transaction(self.handle.number, verb);
        answer(Call::new(&self.handle.inner, Some(&self.handle), &request, None))
    }

    fn inner(&self) -> &Arc<Inner> {
        &self.handle.inner
    }

    fn append(&self, half: &NewHalfMessage<'_>) -> Result<UniqueKey, Error> {
        let made;
        let (key, result) = match half.unique_key {
            Some(key) => (key, UniqueKey::Given(key.into())),
            // The first message has the id of the transaction.
            None if !self.has_messages.load(Ordering::Acquire) => {
                (self.id.as_str(), UniqueKey::Given(self.id.as_str().into()))
            }
            None => {
                made = self.inner().keys.next(self.inner().store().clock().now_ms());
                (made.as_str(), UniqueKey::Made(made))
            }
        };
        let mut properties = half.properties.to_vec();
        if half.unique_key.is_none() {
            mqstore::format::properties::push_property(
                &mut properties,
                mqstore::format::properties::UNIQ_KEY,
                key,
            );
        }
        let message = Message {
            body: half.body,
            properties: &properties,
            unique_key: key,
            sys_flag: half.sys_flag.0,
            flag: half.flag,
            born_timestamp_ms: half.born_timestamp_ms,
        };
        let verb = TransactionVerb::Append { topic: half.topic, queue_id: half.queue_id, message };
        let response = self.verb(verb)?;
        if !matches!(response, Response::Done) {
            return Err(odd());
        }
        self.has_messages.store(true, Ordering::Release);
        self.messages.lock().push((half.topic.into(), result.clone()));
        Ok(result)
    }

    /// Finds the final records of a commit at an owner that did not append all messages, or that was repeated.
    fn find_messages(&self) -> Result<Vec<(Arc<str>, Appended)>, Error> {
        let store = self.inner().store();
        let mut found = Vec::new();
        for (topic, key) in &*self.messages.lock() {
            // A topic that was deleted has none.
            if let Some(appended) = appended_with_key(store, topic, key.as_str())? {
                found.push((Arc::clone(topic), appended));
            }
        }
        Ok(found)
    }

    fn end(&self, commit: bool, durable: bool) -> Result<(), Error> {
        let wanted = if commit { TransactionOutcome::Committed } else { TransactionOutcome::RolledBack };
        let mut end = self.end.lock();
        if let Some(end) = &*end {
            if end.outcome == wanted {
                return Ok(());
            }
            return Err(Error::TransactionEnded { id: self.id.clone(), outcome: end.outcome.name() });
        }
        let went = match self.verb(TransactionVerb::End { commit, durable })? {
            Response::Committed(went) if went.len() == self.messages.lock().len() => went
                .into_iter()
                .map(|(topic, position)| (Arc::from(topic.as_str()), position.appended(None)))
                .collect(),
            Response::Committed(_) => self.find_messages()?,
            Response::Done => Vec::new(),
            _ => return Err(odd()),
        };
        *end = Some(Ended { outcome: wanted, went });
        Ok(())
    }
}

impl Drop for SharedTransaction {
    fn drop(&mut self) {
        self.handle.close();
    }
}

impl Transaction {
    /// The id.
    pub fn id(&self) -> &str {
        match self {
            Self::Own(transaction) => transaction.id(),
            Self::Shared(shared) => &shared.id,
        }
    }

    /// The producer group.
    pub fn group(&self) -> &str {
        match self {
            Self::Own(transaction) => transaction.group(),
            Self::Shared(shared) => &shared.group,
        }
    }

    /// The outcome, once it is decided.
    pub fn outcome(&self) -> Option<TransactionOutcome> {
        match self {
            Self::Own(transaction) => transaction.outcome(),
            Self::Shared(shared) => shared.end.lock().as_ref().map(|end| end.outcome),
        }
    }

    /// The final records after a commit, and their topics.
    pub fn went(&self) -> Vec<(Arc<str>, Appended)> {
        match self {
            Self::Own(transaction) => transaction.went(),
            Self::Shared(shared) => {
                shared.end.lock().as_ref().map(|end| end.went.clone()).unwrap_or_default()
            }
        }
    }

    /// Adds a message; see [`mqstore::Transaction::append`].
    ///
    /// # Errors
    /// Those of the façade.
    pub fn append(&self, message: &NewHalfMessage<'_>) -> Result<UniqueKey, Error> {
        match self {
            Self::Own(transaction) => transaction.append(message),
            Self::Shared(shared) => {
                if let Some(end) = &*shared.end.lock() {
                    return Err(Error::TransactionEnded {
                        id: shared.id.clone(),
                        outcome: end.outcome.name(),
                    });
                }
                shared.append(message)
            }
        }
    }

    /// Makes its messages visible.
    ///
    /// # Errors
    /// Those of [`mqstore::Transaction::commit`].
    pub fn commit(&self, durable: bool) -> Result<(), Error> {
        match self {
            Self::Own(transaction) => transaction.commit(durable),
            Self::Shared(shared) => shared.end(true, durable),
        }
    }

    /// Discards its messages.
    ///
    /// # Errors
    /// Those of [`mqstore::Transaction::rollback`].
    pub fn rollback(&self, durable: bool) -> Result<(), Error> {
        match self {
            Self::Own(transaction) => transaction.rollback(durable),
            Self::Shared(shared) => shared.end(false, durable),
        }
    }
}

/// The groups whose undecided transactions this process checks, for a shared store. It asks the owner from time to time.
pub struct CheckedGroups {
    store: SharedStore,
    groups: Mutex<Vec<(String, CheckOptions)>>,
}

impl CheckedGroups {
    /// Makes an empty list.
    pub fn new(store: &SharedStore) -> Self {
        Self { store: store.clone(), groups: Mutex::default() }
    }

    /// Adds a group, or changes its options.
    ///
    /// # Errors
    /// `InvalidOption`.
    pub fn set(&self, group: &str, options: CheckOptions) -> Result<(), Error> {
        options.check()?;
        let mut groups = self.groups.lock();
        groups.retain(|(known, _)| known != group);
        groups.push((group.to_owned(), options));
        Ok(())
    }

    /// Returns the transactions that are due for a check.
    ///
    /// # Errors
    /// Those of the façade.
    pub fn due(&self) -> Result<Vec<Pending>, Error> {
        let groups = self.groups.lock().clone();
        if groups.is_empty() {
            return Ok(Vec::new());
        }
        match self.store.call(&Request::TakeDue(groups))? {
            Response::Pending(due) => Ok(due),
            _ => Err(odd()),
        }
    }

    /// Decides a transaction.
    ///
    /// # Errors
    /// Those of the façade.
    pub fn answer(&self, id: &str, answer: CheckAnswer) -> Result<(), Error> {
        let commit = match answer {
            CheckAnswer::Commit => true,
            CheckAnswer::Rollback => false,
            CheckAnswer::Unknown => return Ok(()),
        };
        self.store.call(&Request::Decide(id, commit)).map(drop)
    }
}
