//! The thread of an owner that serves the connections: one runtime, in which nothing blocks.
//!
//! Each connection is a task. It reads frames while the client has few requests and bytes in progress; more wait in the
//! socket, so memory stays bounded however fast a client sends or however slowly it reads. A peer that sends no frames,
//! or no greeting in time, is disconnected; the others do not notice.

use std::io;
use std::os::unix::net::UnixListener as StdListener;
use std::time::Duration;

use mqstore::error::StoreError;
use mqstore::io::sync::{Arc, JoinHandle, spawn};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinSet, LocalSet, spawn_local};

use super::address::PublishedSocket;
use super::open_sockets;
use crate::service::Service;
use crate::service::session::Session;
use crate::wire::failure::Failure;
use crate::wire::frame::{Frame, FrameReader, push_frames};
use crate::wire::greeting::{Hello, Welcome, decode, encode};
use crate::wire::response::Answer;

/// Requests in progress of a connection above which no more are read.
const MOST_REQUESTS: usize = 1024;
/// Bytes of requests in progress and of unsent answers above which no more are read.
const MOST_BYTES: usize = 64 << 20;
/// How long a peer may take for its greeting.
const GREETING: Duration = Duration::from_secs(10);
/// Threads of the pool for verbs that block.
const POOL_THREADS: usize = 32;
/// Bytes that are read at once.
const READ_BYTES: usize = 128 << 10;

/// The running listener of an owner.
pub(crate) struct Listener {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Serves `listener` in a thread of its own until the drop of the result.
    ///
    /// # Errors
    /// Those of the system for a thread or the runtime.
    pub(crate) fn start(
        listener: StdListener,
        published: PublishedSocket,
        service: Arc<Service>,
        welcome: Welcome,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(POOL_THREADS)
            .thread_name("mqstore-verb")
            .build()?;
        let (stop, stopped) = watch::channel(false);
        let run = move || {
            let local = LocalSet::new();
            local.block_on(&runtime, accept(listener, published, service, welcome, stopped));
            drop(local);
            // Verbs that run in the pool end by themselves; their answers are not sent.
            runtime.shutdown_background();
        };
        let thread = spawn("mqstore-share", run)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The thread may have ended.
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(
    listener: StdListener,
    published: PublishedSocket,
    service: Arc<Service>,
    welcome: Welcome,
    mut stopped: watch::Receiver<bool>,
) {
    let listed = open_sockets::list(&listener);
    let Ok(listener) = UnixListener::from_std(listener) else { return };
    let welcome = Arc::new(welcome);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = stopped.changed() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if !may_connect(&stream, published.admits_group) => drop(stream),
                Ok((stream, _)) => {
                    connections.spawn_local(serve(stream, Arc::clone(&service), Arc::clone(&welcome)));
                }
                // Too many open files: the client waits in the queue of the socket.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
    // The name goes first, so that no new client comes.
    drop(published);
    drop(listed);
    drop(listener);
    connections.abort_all();
    while connections.join_next().await.is_some() {}
}

/// Whether the user of the peer may use the store: the owner's own, root, or a member of the group that may write to the
/// folder, whom the permissions of the socket let in.
fn may_connect(stream: &UnixStream, admits_group: bool) -> bool {
    let Ok(peer) = stream.peer_cred() else { return false };
    admits_group || peer.uid() == 0 || peer.uid() == rustix::process::geteuid().as_raw()
}

async fn serve(stream: UnixStream, service: Arc<Service>, welcome: Arc<Welcome>) {
    let Some(_listed) = open_sockets::list(&stream) else { return };
    let (mut reader, mut buffer) = (FrameReader::default(), vec![0; READ_BYTES]);
    let greeted = tokio::time::timeout(GREETING, greet(&stream, &mut reader, &mut buffer, &welcome)).await;
    let Ok(Some(hello)) = greeted else { return };
    let Some(session) = service.enter(&hello).await else { return };
    let mut connection =
        Connection { stream, reader, buffer, out: Vec::new(), sent: 0, requests: 0, bytes: 0 };
    connection.run(&session).await;
    drop(connection);
    service.leave(session).await;
}

/// Reads the greeting of the client, and answers it. `None` if the connection must end.
async fn greet(
    stream: &UnixStream,
    reader: &mut FrameReader,
    buffer: &mut [u8],
    welcome: &Welcome,
) -> Option<Hello> {
    let frame = loop {
        if let Some(frame) = reader.take().ok()? {
            break frame;
        }
        stream.readable().await.ok()?;
        read_some(stream, reader, buffer).ok()?;
    };
    let hello: Result<Hello, StoreError> = decode(&frame.payload);
    let mut out = Vec::new();
    // A client of another version reads why from this greeting.
    push_frames(&mut out, 0, 0, &encode(welcome));
    let mut rest = out.as_slice();
    while !rest.is_empty() {
        stream.writable().await.ok()?;
        match stream.try_write(rest) {
            Ok(sent) => rest = rest.get(sent..)?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
    }
    hello.ok()
}

/// Reads what is there. False if there is nothing; an error at the end of the connection.
fn read_some(stream: &UnixStream, reader: &mut FrameReader, buffer: &mut [u8]) -> io::Result<bool> {
    match stream.try_read(buffer) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(count) => {
            reader.push(buffer.get(..count).unwrap_or_default());
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

struct Connection {
    stream: UnixStream,
    reader: FrameReader,
    buffer: Vec<u8>,
    /// Answers; those before `sent` are sent.
    out: Vec<u8>,
    sent: usize,
    /// Requests in progress, and their bytes.
    requests: usize,
    bytes: usize,
}

/// An answer of a task: the number and the bytes of its request.
type DoneRequest = (u64, usize, Answer);

impl Connection {
    async fn run(&mut self, session: &Arc<Session>) {
        let (send, mut done) = mpsc::unbounded_channel::<DoneRequest>();
        loop {
            if self.take_frames(session, &send).is_err() || self.send().is_err() || session.is_over() {
                return;
            }
            let interest = match (self.may_read(), self.sent < self.out.len()) {
                (true, true) => Some(Interest::READABLE | Interest::WRITABLE),
                (true, false) => Some(Interest::READABLE),
                (false, true) => Some(Interest::WRITABLE),
                (false, false) => None,
            };
            let ready = async {
                match interest {
                    Some(interest) => self.stream.ready(interest).await.map(Some),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Some(answered) = done.recv() => {
                    self.take(answered);
                    while let Ok(answered) = done.try_recv() {
                        self.take(answered);
                    }
                }
                ready = ready => match ready {
                    Ok(Some(ready)) if ready.is_readable() || ready.is_read_closed() => {
                        if read_some(&self.stream, &mut self.reader, &mut self.buffer).is_err() {
                            return;
                        }
                    }
                    Ok(_) => {}
                    Err(_) => return,
                },
            }
        }
    }

    fn may_read(&self) -> bool {
        self.requests < MOST_REQUESTS && self.bytes + self.out.len() - self.sent < MOST_BYTES
    }

    /// Answers the requests that have arrived, or starts a task for each.
    fn take_frames(
        &mut self,
        session: &Arc<Session>,
        send: &mpsc::UnboundedSender<DoneRequest>,
    ) -> Result<(), crate::wire::frame::FrameError> {
        while self.may_read() && !session.is_over() {
            let Some(frame) = self.reader.take()? else { return Ok(()) };
            match session.answer_now(&frame) {
                Ok(answer) => self.push(frame.number, &answer),
                Err(later) => {
                    let Frame { number, .. } = frame;
                    let bytes = frame.payload.len();
                    self.requests += 1;
                    self.bytes += bytes;
                    let send = send.clone();
                    spawn_local(async move {
                        let answer = Session::answer_later(frame, later).await;
                        // The connection may be gone.
                        let _ = send.send((number, bytes, answer));
                    });
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, (number, bytes, answer): DoneRequest) {
        self.requests -= 1;
        self.bytes -= bytes;
        self.push(number, &answer);
    }

    fn push(&mut self, number: u64, answer: &Answer) {
        let payload = postcard::to_allocvec(answer).or_else(|error| {
            let reason = format!("the owner of the store cannot send the answer: {error}");
            postcard::to_allocvec(&Answer::Err(Failure::Refused(reason)))
        });
        push_frames(&mut self.out, number, 0, &payload.unwrap_or_default());
    }

    /// Sends as much as the socket takes.
    fn send(&mut self) -> io::Result<()> {
        while let Some(rest @ [_, ..]) = self.out.get(self.sent..) {
            match self.stream.try_write(rest) {
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
        Ok(())
    }
}
