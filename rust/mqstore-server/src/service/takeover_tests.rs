//! The owner behind the simulated disk. A client runs a script of requests, and the disk is kept before each call of the
//! store. From each of these disks a next owner starts, as after a kill, and the client continues there: it sends
//! again what has no answer, then the rest. In the end, every message must be stored once and in order, and finished once.
//!
//! ```text
//! requests   |--- 1 ---|  |--- 2 ---|  |--- 3 ---|
//! calls      . . . . . .  . . . . . .  . . . . . .
//!                             ^ here, 2 is sent again; between 2 and 3, also if only its answer is lost
//! ```

use std::collections::BTreeSet;
use std::time::Duration;

use mqstore::Store;
use mqstore::format::delays::timer::TIMER_TOPIC;
use mqstore::io::sim::SimVfs;
use mqstore::io::sync::Arc;
use mqstore::io::{Clock, ManualClock, Vfs};
use mqstore::options::{OpenMode, StoreOptions};
use tokio::task::LocalSet;

use super::Service;
use super::session::Session;
use crate::steps;
use crate::wire::frame::{AGAIN, Frame};
use crate::wire::greeting::Hello;
use crate::wire::request::{
    Batch, DueTime, LeaseName, Message, QueueOptions, QueueVerb, Request, TransactionVerb,
};
use crate::wire::response::{Answer, Delivery, Response};

/// Maximum number of calls before which the disk is kept.
const MOST_CALLS: u64 = 20_000;
const LEASE: Duration = Duration::from_secs(60);
const QUEUE: u64 = 1;
const TRANSACTION: u64 = 2;

/// One request of the script; the numbers are those of its messages.
#[derive(Clone, Copy)]
enum Step {
    Append { from: u32, count: u32, durable: bool },
    ToLightQueue { number: u32, durable: bool },
    Later { number: u32, durable: bool },
    Put { from: u32, count: u32, durable: bool },
    Get,
    Ack,
    Begin(u32),
    Half(u32),
    Commit { durable: bool },
    Flush,
}

const SCRIPT: [Step; 22] = [
    Step::Append { from: 0, count: 1, durable: false },
    Step::Append { from: 1, count: 7, durable: false },
    Step::Put { from: 100, count: 1, durable: false },
    Step::Append { from: 8, count: 1, durable: true },
    Step::Get,
    Step::Ack,
    Step::ToLightQueue { number: 9, durable: true },
    Step::Put { from: 101, count: 4, durable: true },
    Step::Begin(200),
    Step::Half(200),
    Step::Append { from: 10, count: 9, durable: true },
    Step::Half(201),
    Step::Commit { durable: false },
    Step::Get,
    Step::Flush,
    Step::Ack,
    Step::Later { number: 300, durable: true },
    Step::Append { from: 19, count: 1, durable: false },
    Step::Begin(210),
    Step::Half(210),
    Step::Commit { durable: true },
    Step::Append { from: 20, count: 3, durable: false },
];

/// What the client knows.
#[derive(Clone, Default)]
struct Client {
    /// Number of the next step.
    next: usize,
    /// Whether an owner may have had the request of the next step.
    was_sent: bool,
    /// Whether an owner had the handles.
    was_open: bool,
    /// The lease that it has, with its message.
    lease: Option<(LeaseName, String)>,
    acked: BTreeSet<String>,
    /// The id of its transaction, and whether it has messages.
    transaction: Option<(u32, bool)>,
    connections: u64,
}

/// A client after a step, and the calls at which the step began and ended.
struct Past {
    before: Client,
    after: Client,
    calls: (u64, u64),
}

struct Owner {
    store: Store,
    service: Arc<Service>,
    vfs: Arc<SimVfs>,
}

fn key(number: u32) -> String {
    format!("{number:032X}")
}

fn body(number: u32) -> String {
    format!("{number}")
}

/// The texts of messages, which requests borrow: body, key, properties.
struct Texts(Vec<[String; 3]>);

impl Texts {
    fn of(from: u32, count: u32) -> Self {
        let texts = |number| [body(number), key(number), format!("UNIQ_KEY\u{1}{}\u{2}", key(number))];
        Self((from..from + count).map(texts).collect())
    }

    fn messages(&self) -> Vec<Message<'_>> {
        self.0
            .iter()
            .map(|[body, key, properties]| Message {
                body: body.as_bytes(),
                properties: properties.as_bytes(),
                unique_key: key,
                sys_flag: 0,
                flag: 0,
                born_timestamp_ms: Some(1),
            })
            .collect()
    }

    fn batch(&self, many: bool, durable: bool) -> Batch<'_> {
        Batch { topic: "log", queue_id: Some(0), durable, many, messages: self.messages() }
    }
}

impl Owner {
    fn open(vfs: SimVfs, clock: &Arc<ManualClock>) -> Result<Self, String> {
        let options = StoreOptions {
            segment_bytes: 1 << 16,
            index_slots: 64,
            index_entries: 1024,
            queue_file_entries: 64,
            ..StoreOptions::default()
        };
        let vfs = Arc::new(vfs);
        let builder = Store::builder("/store").mode(OpenMode::Create).options(options);
        let store = builder
            .vfs(Arc::clone(&vfs) as Arc<dyn Vfs>)
            .clock(Arc::clone(clock) as Arc<dyn Clock>)
            .open()
            .map_err(text)?;
        let service = Service::start(store.clone()).map_err(text)?;
        Ok(Self { store, service, vfs })
    }

    fn close(self) -> Result<(), String> {
        self.service.end();
        self.store.close().map_err(text)
    }

    fn bodies(&self, topic: &str) -> Result<Vec<String>, String> {
        let mut found = Vec::new();
        for (queue_id, _) in self.store.ends(topic).map_err(text)? {
            let mut cursor = self.store.read(topic, queue_id, None, None, None).map_err(text)?;
            loop {
                let some = cursor.next_batch(100).map_err(text)?;
                if some.is_empty() {
                    break;
                }
                for record in some {
                    found.push(String::from_utf8_lossy(record.view().map_err(text)?.body).into_owned());
                }
            }
        }
        Ok(found)
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn hello(connection: u64) -> Hello {
    Hello { client: 7, connection, pid: 1, library: String::new() }
}

/// What a front-end does with a request.
async fn answer(session: &Arc<Session>, number: u64, flags: u16, payload: Vec<u8>) -> Answer {
    let frame = Frame { number, flags, payload };
    match session.answer_now(&frame) {
        Ok(answer) => answer,
        Err(later) => Session::answer_later(frame, later).await,
    }
}

/// Returns the lease of a delivery, and the body of its message.
fn leased(delivery: Delivery) -> Result<(LeaseName, String), String> {
    let record = delivery.record.stored().ok_or("a delivery is no record")?;
    let view = record.view().map_err(text)?;
    let name = LeaseName {
        topic: view.topic.to_owned(),
        queue_id: view.queue_id,
        queue_offset: record.queue_offset,
        attempt: delivery.attempt,
    };
    Ok((name, String::from_utf8_lossy(view.body).into_owned()))
}

/// A connection: the session of the client, and the numbers of its requests.
struct Connection {
    service: Arc<Service>,
    session: Arc<Session>,
    number: u64,
    /// The last request.
    last: Vec<u8>,
}

impl Connection {
    async fn new(owner: &Owner, client: &mut Client) -> Result<Self, String> {
        client.connections += 1;
        let service = Arc::clone(&owner.service);
        let session = service.enter(&hello(client.connections)).await.ok_or("the connection is refused")?;
        let mut connection = Self { service, session, number: 0, last: Vec::new() };
        connection.open_handles(client).await?;
        Ok(connection)
    }

    /// Connects again after the last answer was lost. Then the last request arrives once more from the old connection, and
    /// from one between both whose greeting is late.
    async fn cut(self, owner: &Owner, client: &mut Client) -> Result<Self, String> {
        client.connections += 1;
        let between = hello(client.connections);
        let new = Self::new(owner, client).await?;
        let late = self.service.enter(&between).await;
        for session in [Some(Arc::clone(&self.session)), late].into_iter().flatten() {
            if !session.is_over() {
                // Its answer goes nowhere.
                let _ = answer(&session, self.number, 0, self.last.clone()).await;
            }
        }
        self.service.leave(self.session).await;
        Ok(new)
    }

    async fn open_handles(&mut self, client: &mut Client) -> Result<(), String> {
        let options = QueueOptions {
            visibility_timeout_ms: LEASE.as_millis() as u64,
            max_attempts: None,
            maxsize: 0,
            skips_damage: false,
            follows: false,
        };
        let again = client.was_open;
        self.ask(&Request::OpenQueue(QUEUE, "jobs", None, options), again).await?;
        if let Some((id, has_messages)) = client.transaction {
            self.ask(&Request::Begin(TRANSACTION, "G", &key(id), has_messages), again).await?;
        }
        client.was_open = true;
        Ok(())
    }

    async fn ask(&mut self, request: &Request<'_>, again: bool) -> Result<Response, String> {
        self.number += 1;
        let flags = if again && steps::does("call.mark_again") { AGAIN } else { 0 };
        self.last = postcard::to_allocvec(request).map_err(text)?;
        let answer = answer(&self.session, self.number, flags, self.last.clone()).await;
        answer.map_err(|failure| format!("{request:?}: {failure:?}"))
    }

    /// Does the next step of the client.
    async fn step(&mut self, client: &mut Client) -> Result<(), String> {
        let step = SCRIPT[client.next];
        let again = std::mem::replace(&mut client.was_sent, true);
        let response = self.request(step, client, again).await?;
        if let (true, Some(Response::Appended(positions))) = (step.makes_durable().is_some(), &response)
            && !positions.iter().all(|one| one.clone().appended(None).durable)
        {
            return Err(format!("the answer to a durable request says that it is not: {positions:?}"));
        }
        match (step, response) {
            (Step::Get, Some(Response::Leased(found))) => {
                client.lease = found.into_iter().next().map(leased).transpose()?;
            }
            (Step::Ack, Some(_)) => client.acked.extend(client.lease.take().map(|(_, body)| body)),
            (Step::Begin(id), _) => client.transaction = Some((id, false)),
            (Step::Half(_), _) => client.transaction = client.transaction.map(|(id, _)| (id, true)),
            (Step::Commit { .. }, _) => client.transaction = None,
            _ => {}
        }
        (client.next, client.was_sent) = (client.next + 1, false);
        Ok(())
    }

    async fn request(
        &mut self,
        step: Step,
        client: &Client,
        again: bool,
    ) -> Result<Option<Response>, String> {
        let done = match step {
            Step::Append { from, count, durable } => {
                let texts = Texts::of(from, count);
                self.ask(&Request::Append(texts.batch(count > 1, durable)), again).await
            }
            Step::ToLightQueue { number, durable } => {
                let texts = Texts::of(number, 1);
                let request = Request::AppendToLightQueues(texts.batch(false, durable), vec!["%LMQ%light"]);
                self.ask(&request, again).await
            }
            Step::Later { number, durable } => {
                let texts = Texts::of(number, 1);
                let request = Request::AppendLater(texts.batch(false, durable), DueTime::At(DUE_MS));
                self.ask(&request, again).await
            }
            Step::Put { from, count, durable } => {
                let texts = Texts::of(from, count);
                let put = QueueVerb::Put {
                    messages: texts.messages(),
                    delay_ms: None,
                    deliver_at_ms: None,
                    durable,
                    new_only: false,
                    wait_ms: None,
                };
                self.ask(&Request::Queue(QUEUE, put), again).await
            }
            Step::Get => {
                self.ask(&Request::Queue(QUEUE, QueueVerb::Get { count: 1, wait_ms: Some(0) }), again).await
            }
            Step::Ack => {
                let Some((name, _)) = &client.lease else { return Ok(None) };
                let ack = QueueVerb::Ack { leases: vec![name.clone()], durable: false };
                self.ask(&Request::Queue(QUEUE, ack), again).await
            }
            Step::Begin(id) => self.ask(&Request::Begin(TRANSACTION, "G", &key(id), false), again).await,
            Step::Half(number) => {
                let texts = Texts::of(number, 1);
                let [message] = texts.messages()[..] else { return Err("no message".to_owned()) };
                let half = TransactionVerb::Append { topic: "orders", queue_id: None, message };
                self.ask(&Request::Transaction(TRANSACTION, half), again).await
            }
            Step::Commit { durable } => {
                let end = TransactionVerb::End { commit: true, durable };
                self.ask(&Request::Transaction(TRANSACTION, end), again).await
            }
            Step::Flush => self.ask(&Request::Flush, again).await,
        };
        done.map(Some)
    }

    /// Gets and returns all messages of the work queue that are left.
    async fn drain(&mut self) -> Result<BTreeSet<String>, String> {
        let mut found = BTreeSet::new();
        loop {
            let get = Request::Queue(QUEUE, QueueVerb::Get { count: 100, wait_ms: Some(0) });
            let Response::Leased(some) = self.ask(&get, false).await? else {
                return Err("a get has another answer".to_owned());
            };
            if some.is_empty() {
                return Ok(found);
            }
            for delivery in some {
                let (_, body) = leased(delivery)?;
                if !found.insert(body.clone()) {
                    return Err(format!("{body} is delivered twice"));
                }
            }
        }
    }
}

const NOW_MS: i64 = 1_700_000_000_000;
const DUE_MS: i64 = NOW_MS + 3_600_000;

impl Step {
    /// The topic of its messages, the first of their numbers, and their count.
    fn stores(self) -> Option<(&'static str, u32, u32)> {
        match self {
            Self::Append { from, count, .. } => Some(("log", from, count)),
            Self::ToLightQueue { number, .. } => Some(("log", number, 1)),
            Self::Put { from, count, .. } => Some(("jobs", from, count)),
            Self::Later { number, .. } => Some((TIMER_TOPIC, number, 1)),
            Self::Half(number) => Some(("orders", number, 1)),
            Self::Get | Self::Ack | Self::Begin(_) | Self::Commit { .. } | Self::Flush => None,
        }
    }

    /// What must be durable with its answer: as [`Self::stores`].
    fn makes_durable(self) -> Option<(&'static str, u32, u32)> {
        match self {
            Self::Append { durable: true, .. }
            | Self::ToLightQueue { durable: true, .. }
            | Self::Put { durable: true, .. }
            | Self::Later { durable: true, .. } => self.stores(),
            Self::Commit { durable: true } => Some(("orders", 210, 1)),
            _ => None,
        }
    }
}

/// The bodies that the script stores in a topic, in order.
fn stored(topic: &str) -> Vec<String> {
    let ranges = SCRIPT.iter().filter_map(|step| step.stores()).filter(|(of, ..)| *of == topic);
    ranges.flat_map(|(_, from, count)| (from..from + count).map(body)).collect()
}

/// Compares the messages of an owner in the end with the script, and with the knowledge of the client.
async fn check(owner: &Owner, mut connection: Connection, client: &Client) -> Result<(), String> {
    let same = |what: &str, found: Vec<String>, wanted: Vec<String>| {
        if found == wanted { Ok(()) } else { Err(format!("{what}: {found:?}, not {wanted:?}")) }
    };
    same("the log", owner.bodies("log")?, stored("log"))?;
    same("the light queue", owner.bodies("%LMQ%light")?, vec![body(9)])?;
    let sorted = |topic| {
        owner.bodies(topic).map(|mut found| {
            found.sort();
            found
        })
    };
    same("the transactions", sorted("orders")?, stored("orders"))?;
    let put = stored("jobs");
    same("the jobs", sorted("jobs")?, put.clone())?;
    let left = put.into_iter().filter(|body| !client.acked.contains(body)).collect();
    same("the jobs that are left", connection.drain().await?.into_iter().collect(), left)?;
    match connection.ask(&Request::DelayCounts, false).await? {
        Response::DelayCounts(counts) if counts.pending == 1 => Ok(()),
        odd => Err(format!("the delayed message: {odd:?}")),
    }
}

/// Checks that the messages of a durable request are on the disk after its answer, whatever a loss of power takes.
fn check_durable(owner: &Owner, step: Step, clock: &Arc<ManualClock>) -> Result<(), String> {
    let Some((topic, from, count)) = step.makes_durable() else { return Ok(()) };
    let lost = owner.vfs.crash_with(&mut |_| false).map_err(text)?;
    let owner = Owner::open(lost, clock)?;
    let found = owner.bodies(topic)?;
    let missing = (from..from + count).map(body).find(|body| !found.contains(body));
    owner.close()?;
    missing.map_or(Ok(()), |body| Err(format!("{topic}: {body} of a durable request is lost")))
}

/// Lets the client do its remaining steps at an owner on this disk, and checks the end. Returns the steps, and the disks
/// before each `every`th call. With `lost_answers`, the connection is cut before the answer to each request.
async fn go_on(
    disk: SimVfs,
    mut client: Client,
    every: usize,
    lost_answers: bool,
) -> Result<(Vec<Past>, Vec<(u64, SimVfs)>), String> {
    let clock = Arc::new(ManualClock::new(NOW_MS));
    let owner = Owner::open(disk, &clock)?;
    if every > 0 {
        let first = owner.vfs.operations() + 1;
        owner.vfs.freeze_at_each((first..first + MOST_CALLS).step_by(every));
    }
    let mut past = Vec::new();
    let mut connection = Connection::new(&owner, &mut client).await?;
    while client.next < SCRIPT.len() {
        let (before, begin) = (client.clone(), owner.vfs.operations());
        connection.step(&mut client).await?;
        // Not of a get, whose message would stay leased.
        if lost_answers && !matches!(SCRIPT[before.next], Step::Get) {
            client = Client { was_sent: true, connections: client.connections, ..before.clone() };
            connection = connection.cut(&owner, &mut client).await?;
            connection.step(&mut client).await?;
        }
        if before.was_sent {
            check_durable(&owner, SCRIPT[before.next], &clock)?;
        }
        past.push(Past { before, after: client.clone(), calls: (begin, owner.vfs.operations()) });
    }
    let disks = owner.vfs.take_all_frozen();
    clock.advance(2 * LEASE);
    let (service, session) = (Arc::clone(&connection.service), Arc::clone(&connection.session));
    check(&owner, connection, &client).await?;
    service.leave(session).await;
    owner.close()?;
    Ok((past, disks))
}

/// What the client can know when an owner dies before `call`: with and without the answer to the last request.
fn clients_at(past: &[Past], call: u64) -> Vec<Client> {
    let Some(last) = past.iter().rev().find(|past| past.calls.0 < call) else { return Vec::new() };
    let sent = Client { was_sent: true, ..last.before.clone() };
    if call <= last.calls.1 { vec![sent] } else { vec![sent, last.after.clone()] }
}

/// Returns the number of takeovers, or what is wrong after one of them.
async fn takeovers(every: usize) -> Result<u64, String> {
    go_on(SimVfs::default(), Client::default(), 0, true).await?;
    let (past, disks) = go_on(SimVfs::default(), Client::default(), every, false).await?;
    let mut count = 0_u64;
    for (call, disk) in disks {
        for (lost, client) in clients_at(&past, call).into_iter().enumerate() {
            count += 1;
            let at =
                |what| format!("the owner dies before call {call}, request {}, {lost}: {what}", client.next);
            let killed = disk.kill().map_err(text)?;
            // One more death, at the next owner.
            let second = 1 + count as usize % 40;
            let (past, disks) = go_on(killed, client.clone(), second, false).await.map_err(at)?;
            let Some((call, disk)) = disks.into_iter().nth(1) else { continue };
            for client in clients_at(&past, call) {
                count += 1;
                go_on(disk.kill().map_err(text)?, client, 0, count.is_multiple_of(8))
                    .await
                    .map_err(|what| at(format!("and the next one before call {call}: {what}")))?;
            }
        }
    }
    Ok(count)
}

/// Steps of owner and client. The test notices if one of them is left out.
const STEPS: [&str; 5] = [
    "call.mark_again",
    "service.refuse_late_connections",
    "session.end_earlier",
    "verbs.append_only_the_rest",
    "verbs.look_for_earlier",
];

fn run(every: usize) -> Result<u64, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(text)?;
    LocalSet::new().block_on(&runtime, takeovers(every))
}

/// The environment variable that makes another process run the takeovers; see the test below.
const ALONE: &str = "MQSTORE_TAKEOVERS";

#[test]
fn runs_the_takeovers() {
    if std::env::var_os(ALONE).is_some() {
        run(7).unwrap();
    }
}

#[test]
fn a_request_is_done_once_wherever_the_owner_dies() {
    let soak = std::env::var_os("MQSTORE_SOAK").is_some();
    let count = run(if soak { 1 } else { 3 }).unwrap();
    println!("{count} takeovers");
    assert!(count > 100);
    for step in STEPS {
        let (holds, _) =
            steps::passes_without(step, "service::takeover_tests::runs_the_takeovers", (ALONE, "1"));
        assert!(!holds, "the takeovers hold without the step {step}");
    }
}
