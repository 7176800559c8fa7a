//! The verbs: what a request does with the façade. Each call may block; `session` calls them where they may.
//!
//! A request that is sent *again* may have been done before, by this owner or an earlier one. Messages are then looked
//! for by their unique keys, and only the missing ones are appended, in order. The other verbs either give the same
//! result twice, or the result that says "done before" counts as done.

use std::collections::BTreeMap;
use std::time::Duration;

use mqstore::compaction::{CompactionOptions, JobControl};
use mqstore::delivery::{
    LostMessagePolicy, NewHalfMessage, Queue, StartOffset, TransactionOutcome, appended_with_key,
};
use mqstore::error::StoreError;
use mqstore::format::SysFlag;
use mqstore::format::json::{SubscriptionGroup, TopicConfig};
use mqstore::format::topic::HALF_TOPIC;
use mqstore::io::sync::Arc;
use mqstore::message::{Appended, MessageFilter, StoredRecord, UniqueKey};
use mqstore::options::DamagePolicy;
use mqstore::store::{ReclaimRequest, StoreSettings};
use mqstore::transfer::{append_in_order, make_queues};
use mqstore::{
    Consumer, ConsumerOptions, Error, LeasedMessage, NewWork, Store, Transaction, WorkQueue, WorkQueueOptions,
};

use crate::steps;
use crate::wire::request::{
    Batch, ConsumerVerb, DueTime, FilterText, ImportedMessage, LeaseName, Message, QueueOptions, QueueVerb,
    ReaderOptions, Request, Start, TransactionVerb,
};
use crate::wire::response::{Delivery, Pending, Position, Record, Response};

fn invalid(reason: impl Into<String>) -> Error {
    StoreError::Refused { reason: reason.into() }.into()
}

/// Converts a duration in milliseconds.
pub(crate) fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Runs a verb on the store. Requests for handles are not among them.
pub(crate) fn on_store(store: &Store, request: &Request<'_>, again: bool) -> Result<Response, Error> {
    match request {
        Request::Append(batch) => append(store, batch, again).map(Response::Appended),
        Request::AppendToLightQueues(batch, names) => to_light_queues(store, batch, names, again),
        Request::AppendLater(batch, due) => later(store, batch, *due, again),
        Request::Import(rows) => import(store, rows, again).map(Response::Count),
        Request::Flush => done(store.flush()),
        Request::WaitForCopies(log_offset, log_end) => done(store.wait_for_copies(*log_offset, *log_end)),
        Request::CreateTopic(topic, queues, attributes) => {
            done(store.create_topic(topic, *queues, attributes))
        }
        Request::ChangeTopic(topic, change) => done(store.change_topic(topic, *change)),
        Request::RemoveTopic(topic) => match store.remove_topic(topic) {
            Err(StoreError::TopicNotFound { .. }) if again => Ok(Response::Done),
            removed => done(removed),
        },
        Request::RemoveNamespace(name) => Ok(Response::Namespace(store.namespaces().remove(name)?)),
        Request::SetRetention(topic, limits) => done(store.retention().set(topic, *limits)),
        Request::SetConfirmOffset(offset) => done(store.set_confirm_offset(*offset)),
        Request::CancelDelayed(id) => Ok(Response::Flag(store.broker()?.cancel(id)?)),
        Request::Reschedule(id, due_ms) => {
            let moved = store.broker()?.reschedule(id, *due_ms)?;
            Ok(Response::Accepted(moved.map(|accepted| {
                (Position::with_key(&accepted.appended), accepted.waits_in.map(str::to_owned))
            })))
        }
        Request::DelayCounts => Ok(Response::DelayCounts(store.broker()?.delay_counts()?)),
        Request::Expire { dry_run } => {
            Ok(Response::Expired(Box::new(store.expire(*dry_run, &mut || Ok(()))?)))
        }
        Request::Reclaim { .. } | Request::Compact { .. } => run_job(store, request, &control_of(request)),
        Request::SetArchive(state) => done(store.archive().set(state.as_ref())),
        Request::AdvanceArchive(settings, next) => {
            Ok(Response::Archive(store.archive().advance(settings, next)?))
        }
        Request::Stats => Ok(Response::Stats(Box::new(store.stats()?))),
        Request::MakeTopics(topics) => make_topics(store, topics),
        Request::AdoptSettings(topics, groups) => adopt_settings(store, topics, groups),
        Request::PendingTransactions => {
            let transactions = store.transactions()?;
            let shown = |one| pending(one, &transactions);
            Ok(Response::Pending(transactions.pending().into_iter().map(shown).collect()))
        }
        Request::TakeDue(groups) => {
            let transactions = store.transactions()?;
            let mut due = Vec::new();
            for (group, options) in groups {
                due.extend(transactions.take_due_now(group, options)?);
            }
            Ok(Response::Pending(due.into_iter().map(|one| pending(one, &transactions)).collect()))
        }
        Request::Decide(id, commit) => {
            let answer = if *commit {
                mqstore::delivery::CheckAnswer::Commit
            } else {
                mqstore::delivery::CheckAnswer::Rollback
            };
            store.transactions()?.answer(id, answer)?;
            Ok(Response::Done)
        }
        _ => Err(invalid("the owner of the store does not know this request")),
    }
}

fn done(result: Result<(), StoreError>) -> Result<Response, Error> {
    result?;
    Ok(Response::Done)
}

/// Appends a batch; see the header for `again`.
fn append(store: &Store, batch: &Batch<'_>, again: bool) -> Result<Vec<Position>, Error> {
    let found = if again { earlier(store, batch.topic, &batch.messages)? } else { Vec::new() };
    let rest = if steps::does("verbs.append_only_the_rest") { found.len() } else { 0 };
    let missing = batch.messages.get(rest..).unwrap_or_default();
    let new: Vec<_> = missing
        .iter()
        .map(|message| message.new_message(batch.topic, batch.queue_id, batch.durable))
        .collect();
    let appended = match new.as_slice() {
        [] => Vec::new(),
        [one] if !batch.many => vec![store.append(one)?],
        all => store.append_many(all)?,
    };
    Ok(found.into_iter().chain(appended).map(|one| Position::of(&one)).collect())
}

/// Returns the positions of those of `messages` that were appended before. They are a prefix: messages of one request
/// are appended in order. They are as durable as the request wants them: an owner that opens the store syncs what it finds,
/// and one that had the request has ended it before.
fn earlier(store: &Store, topic: &str, messages: &[Message<'_>]) -> Result<Vec<Appended>, Error> {
    let mut found = Vec::new();
    if !steps::does("verbs.look_for_earlier") {
        return Ok(found);
    }
    if store.has_batch_queues(topic) {
        // One record has all of them, and the first key is in the index.
        let Some(first) = messages.first() else { return Ok(found) };
        if let Some(one) = appended_with_key(store, topic, first.unique_key)? {
            let place = |(index, message): (usize, &Message<'_>)| Appended {
                queue_offset: one.queue_offset + index as i64,
                unique_id: UniqueKey::Given(message.unique_key.into()),
                ..one.clone()
            };
            found = messages.iter().enumerate().map(place).collect();
        }
        return Ok(found);
    }
    for message in messages {
        match appended_with_key(store, topic, message.unique_key)? {
            Some(one) => found.push(one),
            None => break,
        }
    }
    Ok(found)
}

/// Returns the position of one message that was appended before.
fn earlier_of(store: &Store, topic: &str, message: &Message<'_>) -> Result<Option<Position>, Error> {
    Ok(earlier(store, topic, std::slice::from_ref(message))?.first().map(Position::of))
}

fn only<'a, 'b>(batch: &'b Batch<'a>) -> Result<&'b Message<'a>, Error> {
    batch.messages.first().ok_or_else(|| invalid("the request has no message"))
}

fn to_light_queues(store: &Store, batch: &Batch<'_>, names: &[&str], again: bool) -> Result<Response, Error> {
    let message = only(batch)?;
    if again && let Some(before) = earlier_of(store, batch.topic, message)? {
        return Ok(Response::Appended(vec![before]));
    }
    let message = message.new_message(batch.topic, batch.queue_id, batch.durable);
    let appended = store.append_to_light_queues(&message, names)?;
    Ok(Response::Appended(vec![Position::of(&appended)]))
}

fn later(store: &Store, batch: &Batch<'_>, due: DueTime, again: bool) -> Result<Response, Error> {
    use mqstore::format::SCHEDULE_TOPIC;
    use mqstore::format::delays::timer::TIMER_TOPIC;
    let message = only(batch)?;
    let waits_in = match due {
        DueTime::At(_) => TIMER_TOPIC,
        DueTime::Level(_) => SCHEDULE_TOPIC,
    };
    if again {
        for topic in [waits_in, batch.topic] {
            if let Some(before) = earlier_of(store, topic, message)? {
                let waits = (topic == waits_in).then(|| topic.to_owned());
                return Ok(Response::Accepted(Some((before, waits))));
            }
        }
    }
    let message = message.new_message(batch.topic, batch.queue_id, batch.durable);
    let accepted = store.append_later(&[(message, due.due())])?.pop();
    let shown =
        |one: mqstore::delivery::Accepted| (Position::of(&one.appended), one.waits_in.map(str::to_owned));
    Ok(Response::Accepted(accepted.map(shown)))
}

/// Appends messages of a file up to the first that is refused, and returns their number; the error if it is the first
/// of all. Their unique keys are older than this import, so they cannot tell which of them it has appended before.
fn import(store: &Store, rows: &[ImportedMessage<'_>], again: bool) -> Result<u64, Error> {
    if again {
        let topic = rows.first().map_or("", |row| row.topic);
        return Err(invalid(format!(
            "the owner of the store ended during the import, so the next {} messages, the first for topic \
             {topic}, are there or not: compare the end of their topics with the file, and import the rest",
            rows.len()
        )));
    }
    let queues = rows.iter().map(|row| {
        let is_batch = SysFlag(row.message.sys_flag).inner_batch();
        (row.topic, row.queue_id.unwrap_or(0), is_batch)
    });
    make_queues(&mut BTreeMap::new(), store, queues)?;
    let messages: Vec<_> = rows.iter().map(ImportedMessage::new_message).collect();
    let origins: Vec<_> = rows.iter().map(ImportedMessage::origin).collect();
    let mut appended = Vec::with_capacity(messages.len());
    match append_in_order(&store.broker()?, &messages, &origins, &mut appended) {
        Err(error) if appended.is_empty() => Err(error),
        _ => Ok(appended.len() as u64),
    }
}

fn topic_configs(texts: &[(String, String)]) -> Result<Vec<TopicConfig>, Error> {
    let parsed = |(name, text): &(String, String)| {
        let config =
            TopicConfig::parse(name, text.as_bytes()).map_err(|error| StoreError::invalid_message(&error))?;
        Ok(TopicConfig { name: name.clone(), ..config })
    };
    texts.iter().map(parsed).collect()
}

fn make_topics(store: &Store, texts: &[(String, String)]) -> Result<Response, Error> {
    let settings = StoreSettings { topics: topic_configs(texts)?, groups: Vec::new() };
    settings.check()?;
    let mut made = Vec::new();
    for topic in settings.topics {
        if store.settings().make_topic_of(&topic)? {
            made.push(topic.name);
        }
    }
    Ok(Response::Texts(made))
}

fn adopt_settings(
    store: &Store,
    topics: &[(String, String)],
    groups: &[(String, String)],
) -> Result<Response, Error> {
    let group = |(name, text): &(String, String)| {
        let config = SubscriptionGroup::parse(name, text.as_bytes())
            .map_err(|error| StoreError::invalid_message(&error))?;
        Ok(SubscriptionGroup { name: name.clone(), ..config })
    };
    let groups: Vec<_> = groups.iter().map(group).collect::<Result<_, Error>>()?;
    let settings = StoreSettings { topics: topic_configs(topics)?, groups };
    settings.check()?;
    settings.topics.iter().try_for_each(|topic| store.settings().adopt_topic(topic))?;
    done(store.settings().adopt_groups(&settings.groups))
}

fn pending(one: mqstore::delivery::PendingTransaction, transactions: &mqstore::Transactions) -> Pending {
    let next_check = transactions.next_check_of(&one);
    Pending {
        names: (one.id, one.group, one.topics),
        numbers: (one.messages as u64, one.born_timestamp_ms, one.checks, next_check),
        open: one.open,
        half_offsets: one.half_offsets,
    }
}

/// Opens a work queue.
pub(crate) fn open_queue(
    store: &Store,
    topic: &str,
    group: Option<&str>,
    options: &QueueOptions,
) -> Result<WorkQueue, Error> {
    let options = WorkQueueOptions {
        visibility_timeout: ms(options.visibility_timeout_ms),
        max_attempts: options.max_attempts,
        maxsize: options.maxsize,
        on_damage: damage(options.skips_damage),
        follows: options.follows,
        ..WorkQueueOptions::default()
    };
    match group {
        Some(group) => store.broker()?.work_queue(topic, group, options),
        None => store.work_queue(topic, options),
    }
}

fn damage(skips: bool) -> DamagePolicy {
    if skips { DamagePolicy::Skip } else { DamagePolicy::Raise }
}

/// Opens a consumer.
pub(crate) fn open_consumer(
    store: &Store,
    group: &str,
    topics: &[&str],
    options: &ReaderOptions,
) -> Result<Consumer, Error> {
    let filter = match &options.filter {
        None => None,
        Some(FilterText::Tags(text)) => MessageFilter::tags(text)?,
        Some(FilterText::Sql(text)) => Some(MessageFilter::sql(text)?),
    };
    let options = ConsumerOptions {
        filter,
        start: start(options.start),
        ordered: options.ordered,
        broadcast: options.broadcast,
        name: options.name.clone(),
        commit_interval: options.commit_interval_ms.map(ms),
        on_lost: if options.fails_if_lost { LostMessagePolicy::Fail } else { LostMessagePolicy::GoOn },
        on_damage: damage(options.skips_damage),
        history: options.history,
    };
    store.consumer(group, topics, options)
}

fn start(start: Start) -> StartOffset {
    match start {
        Start::Earliest => StartOffset::Earliest,
        Start::Latest => StartOffset::Latest,
        Start::Time(time_ms) => StartOffset::Time(time_ms),
    }
}

/// Returns the work of a put.
pub(crate) fn work<'a>(
    messages: &[Message<'a>],
    (delay_ms, deliver_at_ms): (Option<u64>, Option<i64>),
    durable: bool,
) -> Vec<NewWork<'a>> {
    let one = |message: &Message<'a>| NewWork {
        body: message.body,
        sys_flag: SysFlag(message.sys_flag),
        properties: message.properties,
        unique_key: Some(message.unique_key),
        flag: message.flag,
        born_timestamp_ms: message.born_timestamp_ms,
        delay: delay_ms.map(ms),
        deliver_at_ms,
        durable,
    };
    messages.iter().map(one).collect()
}

/// Returns delivered messages for the wire.
pub(crate) fn deliveries(found: &[LeasedMessage]) -> Response {
    let one = |message: &LeasedMessage| Delivery {
        record: Record::from(&message.record),
        attempt: message.lease.attempt(),
        invisible_until_ms: message.lease.invisible_until_ms(),
    };
    Response::Leased(found.iter().map(one).collect())
}

/// Returns messages for the wire.
pub(crate) fn records(found: &[StoredRecord]) -> Response {
    Response::Records(found.iter().map(Record::from).collect())
}

/// Returns the control of a long verb.
pub(crate) fn control_of(request: &Request<'_>) -> Arc<JobControl> {
    Arc::new(match request {
        Request::Reclaim { bytes_per_second, .. } | Request::Compact { bytes_per_second, .. } => {
            JobControl::with_bytes_per_second(*bytes_per_second)
        }
        _ => JobControl::default(),
    })
}

/// Runs a long verb.
pub(crate) fn run_job(
    store: &Store,
    request: &Request<'_>,
    control: &Arc<JobControl>,
) -> Result<Response, Error> {
    match request {
        Request::Reclaim { dry_run, erase, .. } => {
            let request = ReclaimRequest { dry_run: *dry_run, erase: erase.clone() };
            Ok(Response::Reclaimed(Box::new(store.reclaim(&request, control)?)))
        }
        Request::Compact { topics, options, threads, .. } => {
            let options = CompactionOptions::from_json(options)?;
            let report = store.compact(topics.as_deref(), &options, *threads as usize, control)?;
            Ok(Response::Text(report.to_json()?))
        }
        _ => Err(invalid("this verb is no job")),
    }
}

fn lease(queue: &WorkQueue, name: &LeaseName) -> Result<mqstore::delivery::Lease, Error> {
    queue.lease_of(&name.topic, name.queue_id, name.queue_offset, name.attempt)
}

/// Puts the messages of a request, without those that an earlier try put if it is sent again. `None` if there is no space
/// for them after `wait`.
pub(crate) fn put(
    store: &Store,
    queue: &WorkQueue,
    verb: &QueueVerb<'_>,
    wait: Duration,
    again: bool,
) -> Result<Option<Response>, Error> {
    let QueueVerb::Put { messages, delay_ms, deliver_at_ms, durable, new_only, .. } = verb else {
        return Err(invalid("the request is no put"));
    };
    let before = if again { earlier(store, queue.topic(), messages)? } else { Vec::new() };
    let rest = messages.get(before.len()..).unwrap_or_default();
    let work = work(rest, (*delay_ms, *deliver_at_ms), *durable);
    let appended = match work.as_slice() {
        [] => Some(Vec::new()),
        [one] if *new_only => queue.put_new_once(one, wait)?,
        all => queue.put_once(all, wait)?,
    };
    Ok(appended.map(|new| Response::Appended(before.iter().chain(&new).map(Position::of).collect())))
}

/// Runs a verb on a work queue; `Put`, `Get` and `Join` wait, and are in `session`.
pub(crate) fn on_queue(queue: &WorkQueue, verb: &QueueVerb<'_>, again: bool) -> Result<Response, Error> {
    match verb {
        QueueVerb::Ack { leases, durable } => {
            let leases = leases.iter().map(|name| lease(queue, name)).collect::<Result<Vec<_>, _>>()?;
            queue.ack_all(&leases, *durable)?;
            Ok(Response::Done)
        }
        QueueVerb::Nack { lease: name, delay_ms, reason } => {
            match lease(queue, name)?.nack_with(delay_ms.map(ms), reason.as_deref()) {
                // The first time returned it.
                Err(Error::LeaseLost { .. }) if again => Ok(Response::Done),
                returned => returned.map(|()| Response::Done),
            }
        }
        QueueVerb::Extend { lease: name, time_ms } => {
            let lease = lease(queue, name)?;
            lease.extend(ms(*time_ms))?;
            Ok(Response::Until(lease.invisible_until_ms()))
        }
        QueueVerb::IsHeld(name) => Ok(Response::Flag(lease(queue, name)?.is_held())),
        QueueVerb::Counts => Ok(Response::Counts(queue.counts()?)),
        QueueVerb::Size => Ok(Response::Count(queue.qsize()?)),
        QueueVerb::Delays => Ok(Response::Delays(queue.delays()?)),
        QueueVerb::Leases => Ok(Response::Leases(queue.leases()?)),
        QueueVerb::Cancel(id) => Ok(Response::Flag(queue.cancel(id)?)),
        QueueVerb::CancelAt(topic, queue_id, offset) => {
            Ok(Response::Flag(queue.cancel_at(topic, *queue_id, *offset)?))
        }
        QueueVerb::Peek(most) => Ok(records(&queue.peek(*most as usize)?)),
        QueueVerb::Purge => Ok(Response::Count(queue.purge()?)),
        QueueVerb::Redrive(limit) => Ok(Response::Count(queue.redrive(*limit)?)),
        QueueVerb::RedriveIds(ids) => Ok(Response::Count(queue.redrive_ids(ids)?)),
        QueueVerb::DeleteDeadLetters(ids) => Ok(Response::Count(queue.delete_dead_letters(ids)?)),
        QueueVerb::Shutdown(immediate) => {
            queue.shutdown(*immediate);
            Ok(Response::Done)
        }
        QueueVerb::Put { .. } | QueueVerb::Get { .. } | QueueVerb::Join(_) => Err(invalid("this verb waits")),
    }
}

/// Runs a verb on a consumer; `Poll` waits, and is in `session`.
pub(crate) fn on_consumer(consumer: &Consumer, verb: &ConsumerVerb) -> Result<Response, Error> {
    let queues = |of: Vec<Queue>| Response::Queues(of.into_iter().map(|queue| (queue, 0)).collect());
    match verb {
        ConsumerVerb::Poll { .. } => Err(invalid("this verb waits")),
        ConsumerVerb::Commit(None, sync) => consumer.commit(*sync).map(|()| Response::Done),
        ConsumerVerb::Commit(Some(offsets), sync) => {
            consumer.commit_offsets(offsets, *sync).map(|()| Response::Done)
        }
        ConsumerVerb::Seek(queue, offset) => {
            consumer.seek(&queue.topic, queue.queue_id, *offset).map(|()| Response::Done)
        }
        ConsumerVerb::SeekToTime(time_ms) => consumer.seek_to_time(*time_ms).map(|()| Response::Done),
        ConsumerVerb::Reset(to, sync) => consumer.reset(start(*to), *sync).map(|()| Response::Done),
        ConsumerVerb::Position(queue) => {
            consumer.position(&queue.topic, queue.queue_id).map(|offset| Response::Offset(Some(offset)))
        }
        ConsumerVerb::Committed(queue) => {
            consumer.committed(&queue.topic, queue.queue_id).map(Response::Offset)
        }
        ConsumerVerb::Lag => consumer.lag().map(Response::Queues),
        ConsumerVerb::Assignment => consumer.assignment().map(queues),
    }
}

/// Runs a verb on a transaction.
pub(crate) fn on_transaction(
    store: &Store,
    transaction: &Transaction,
    verb: &TransactionVerb<'_>,
    again: bool,
) -> Result<Response, Error> {
    match verb {
        TransactionVerb::Append { topic, queue_id, message } => {
            if again && earlier_of(store, HALF_TOPIC, message)?.is_some() {
                return Ok(Response::Done);
            }
            let half = NewHalfMessage {
                topic,
                body: message.body,
                sys_flag: mqstore::format::SysFlag(message.sys_flag),
                properties: message.properties,
                unique_key: Some(message.unique_key),
                queue_id: *queue_id,
                flag: message.flag,
                born_timestamp_ms: message.born_timestamp_ms,
            };
            transaction.append(&half)?;
            Ok(Response::Done)
        }
        TransactionVerb::End { commit, durable } => {
            if *commit {
                transaction.commit(*durable)?;
            } else {
                transaction.rollback(*durable)?;
            }
            let went = transaction.went().into_iter();
            let shown = |(topic, appended): (std::sync::Arc<str>, Appended)| {
                (topic.to_string(), Position::with_key(&appended))
            };
            let committed = transaction.outcome() == Some(TransactionOutcome::Committed);
            Ok(if committed { Response::Committed(went.map(shown).collect()) } else { Response::Done })
        }
    }
}
