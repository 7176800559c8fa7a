//! The connection of a client to the owner.
//!
//! Threads that wait for answers read the socket themselves: one of them, the reader, takes what arrives and wakes the
//! others. So an answer needs no thread in between. Calls that have a waker instead of a waiting thread are read by
//! [`Connection::watch`], which also notices the end of the owner while nobody calls.

use std::collections::HashMap;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use mqstore::Error;
use mqstore::delivery::Waker;
use mqstore::io::WakeDescriptor;
use mqstore::io::sync::{Condvar, Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::encoded::Encoded;
use crate::deadline::Deadline;
use crate::socket::open_sockets::{self, Listed};
use crate::wire::frame::{FrameReader, push_frames};
use crate::wire::greeting::{Hello, Welcome, decode, encode};
use crate::wire::response::Answer;

/// How long the greeting of an owner may take. An owner that is stopped answers later; then the client asks again.
const GREETING: Duration = Duration::from_secs(1);
/// The longest sleep of a wait without a limit.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;
/// The event of an end that was closed. Other systems than Linux always report it.
#[cfg(target_os = "linux")]
const HANGS_UP: PollFlags = PollFlags::RDHUP;
#[cfg(not(target_os = "linux"))]
const HANGS_UP: PollFlags = PollFlags::HUP;
/// Number of the greeting.
const GREETING_NUMBER: u64 = 0;

/// A call that was sent.
#[derive(Default)]
struct SentCall {
    answer: Option<Answer>,
    waker: Option<Waker>,
}

struct State {
    calls: HashMap<u64, SentCall>,
    reader: FrameReader,
    /// Bytes that the socket did not take yet; those before `sent` are sent.
    out: Vec<u8>,
    sent: usize,
    /// Room for what arrives; the reader takes it.
    buffer: Vec<u8>,
    /// Whether a thread reads the socket.
    has_reader: bool,
    /// Calls with a waker and without an answer.
    wakers: usize,
    lost: bool,
    number: u64,
}

/// The result of a wait for an answer.
pub(crate) enum Waited {
    /// The answer.
    Answered(Answer),
    /// The time is over.
    NotYet,
    /// The connection is lost: the request must be sent again.
    Lost,
}

/// See the header of this module.
pub(crate) struct Connection {
    stream: UnixStream,
    _listed: Option<Listed>,
    /// What the owner said.
    pub(crate) welcome: Welcome,
    state: Mutex<State>,
    changed: Condvar,
    /// Wakes the thread in [`Self::watch`].
    bell: WakeDescriptor,
}

impl Connection {
    /// Greets the owner at the other end of `stream`.
    ///
    /// # Errors
    /// `Unsupported` if the owner has another version; an error of the system if it ends or does not answer in time.
    pub(crate) fn greet(stream: UnixStream, hello: &Hello) -> Result<Self, Error> {
        let failed =
            |source| mqstore::error::StoreError::io("mqstore/socket".as_ref(), "greeting the owner", source);
        let mut out = Vec::new();
        push_frames(&mut out, GREETING_NUMBER, 0, &encode(hello));
        stream.set_read_timeout(Some(GREETING)).map_err(failed)?;
        stream.set_write_timeout(Some(GREETING)).map_err(failed)?;
        (&stream).write_all(&out).map_err(failed)?;
        let mut reader = FrameReader::default();
        let mut buffer = [0; 4096];
        let frame = loop {
            match reader.take() {
                Ok(Some(frame)) => break frame,
                Ok(None) => {}
                Err(error) => return Err(failed(io::Error::other(error)).into()),
            }
            match (&stream).read(&mut buffer).map_err(failed)? {
                0 => return Err(failed(io::ErrorKind::UnexpectedEof.into()).into()),
                count => reader.push(buffer.get(..count).unwrap_or_default()),
            }
        };
        let welcome = decode(&frame.payload)?;
        stream.set_nonblocking(true).map_err(failed)?;
        let listed = open_sockets::list(&stream);
        let state = State {
            calls: HashMap::new(),
            reader,
            out: Vec::new(),
            sent: 0,
            buffer: vec![0; READ_BYTES],
            has_reader: false,
            wakers: 0,
            lost: false,
            number: GREETING_NUMBER,
        };
        let bell = WakeDescriptor::new().map_err(failed)?;
        Ok(Self { stream, _listed: listed, welcome, state: Mutex::new(state), changed: Condvar::new(), bell })
    }

    /// Whether the connection is lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.state.lock().lost
    }

    /// Sends a request, and returns its number. What the socket does not take at once is sent by the thread that waits
    /// for an answer, or else by [`Self::watch`].
    pub(crate) fn send(&self, request: &Encoded, flags: u16) -> u64 {
        let mut state = self.state.lock();
        state.number += 1;
        let number = state.number;
        state.calls.insert(number, SentCall::default());
        self.push(&mut state, request, number, flags);
        self.flush(&mut state);
        number
    }

    /// Sends a request if nothing waits before it, and keeps what the socket does not take.
    fn push(&self, state: &mut State, request: &Encoded, number: u64, flags: u16) {
        let Some((header, payload)) = request.frame(number, flags) else {
            push_frames(&mut state.out, number, flags, request.payload());
            return;
        };
        let mut sent = 0;
        if state.out.is_empty() {
            let both = [IoSlice::new(&header), IoSlice::new(payload)];
            // An error comes again with the next write.
            sent = (&self.stream).write_vectored(&both).unwrap_or(0);
        }
        state.out.extend_from_slice(header.get(sent..).unwrap_or_default());
        state.out.extend_from_slice(payload.get(sent.saturating_sub(header.len())..).unwrap_or_default());
    }

    /// Sends as much as the socket takes.
    fn flush(&self, state: &mut State) {
        while let Some(rest @ [_, ..]) = state.out.get(state.sent..) {
            match (&self.stream).write(rest) {
                Ok(sent) => state.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    state.lost = true;
                    break;
                }
            }
        }
        state.out.clear();
        state.sent = 0;
    }

    /// Waits for an answer, for at most `longest`.
    pub(crate) fn wait(&self, number: u64, longest: Duration) -> Waited {
        let until = Deadline::after(Some(longest));
        let mut state = self.state.lock();
        let waited = loop {
            let Some(call) = state.calls.get_mut(&number) else { break Waited::Lost };
            if let Some(answer) = call.answer.take() {
                state.calls.remove(&number);
                break Waited::Answered(answer);
            }
            if state.lost {
                state.calls.remove(&number);
                break Waited::Lost;
            }
            let left = until.left(LONGEST_SLEEP);
            if left.is_zero() {
                break Waited::NotYet;
            }
            if !state.has_reader {
                state = self.read(state, Some(left), false);
            } else if state.has_unsent() {
                // The reader may have begun to wait before there was something to send.
                drop(state);
                let writable = self.poll(Some(left), true, false, false);
                state = self.state.lock();
                if writable.is_ok() {
                    self.flush(&mut state);
                }
            } else {
                let _ = self.changed.wait_for(&mut state, left);
            }
        };
        self.leave_unsent(&state);
        waited
    }

    /// Called by a thread that waits no longer: lets [`Self::watch`] send what is left.
    fn leave_unsent(&self, state: &State) {
        if state.has_unsent() {
            self.bell.ring();
        }
    }

    /// Reads until something arrives, as the reader. `rings` says whether the bell ends it too.
    fn read<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        longest: Option<Duration>,
        rings: bool,
    ) -> MutexGuard<'a, State> {
        state.has_reader = true;
        let sends = state.has_unsent();
        let mut buffer = std::mem::take(&mut state.buffer);
        drop(state);
        let count = match self.poll(longest, sends, true, rings) {
            Ok(()) => (&self.stream).read(&mut buffer),
            Err(error) => Err(error),
        };
        let mut wakers = Vec::new();
        let mut state = self.state.lock();
        self.flush(&mut state);
        match count {
            Ok(0) => state.lost = true,
            Ok(count) => {
                state.reader.push(buffer.get(..count).unwrap_or_default());
                take_answers(&mut state, &mut wakers);
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => state.lost = true,
        }
        if state.lost {
            wakers.extend(state.calls.values_mut().filter_map(|call| call.waker.take()));
        }
        state.buffer = buffer;
        state.has_reader = false;
        self.changed.notify_all();
        if !wakers.is_empty() {
            drop(state);
            for waker in wakers {
                waker();
            }
            state = self.state.lock();
        }
        state
    }

    fn poll(&self, longest: Option<Duration>, sends: bool, reads: bool, rings: bool) -> io::Result<()> {
        let mut wanted = HANGS_UP;
        wanted.set(PollFlags::IN, reads);
        wanted.set(PollFlags::OUT, sends);
        let bell = self.bell.as_fd();
        let mut both = [PollFd::new(&self.stream, wanted), PollFd::from_borrowed_fd(bell, PollFlags::IN)];
        let polled = if rings { &mut both[..] } else { &mut both[..1] };
        let longest = longest.and_then(|longest| Timespec::try_from(longest).ok());
        match poll(polled, longest.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Err(io::ErrorKind::Interrupted.into()),
            Err(error) => return Err(error.into()),
        }
        if rings {
            self.bell.silence();
        }
        Ok(())
    }

    /// Calls `waker` once the answer is there, or the connection is lost. Returns false, without a call, if it is there
    /// already.
    pub(crate) fn call_when_answered(&self, number: u64, waker: Waker) -> bool {
        let mut state = self.state.lock();
        if state.lost {
            return false;
        }
        match state.calls.get_mut(&number) {
            Some(call) if call.answer.is_none() => {
                if call.waker.replace(waker).is_none() {
                    state.wakers += 1;
                }
                drop(state);
                self.bell.ring();
                true
            }
            _ => false,
        }
    }

    /// Forgets a call whose answer nobody wants.
    pub(crate) fn forget(&self, number: u64) {
        let mut state = self.state.lock();
        if let Some(call) = state.calls.remove(&number) {
            state.wakers -= usize::from(call.waker.is_some());
        }
        self.leave_unsent(&state);
    }

    /// For the thread that watches the connection: returns after `longest`, or earlier if something happened. Reads
    /// answers only while a call has a waker, or bytes wait to be sent.
    pub(crate) fn watch(&self, longest: Duration) {
        let state = self.state.lock();
        if state.lost {
            return;
        }
        let sends = state.has_unsent();
        if !state.has_reader && state.wakers > 0 {
            drop(self.read(state, Some(longest), true));
            return;
        }
        drop(state);
        // Only the end of the owner, the bell, or space for the bytes that wait to be sent.
        let watched = self.poll(Some(longest), sends, false, true);
        if sends {
            self.flush(&mut self.state.lock());
        }
        if watched.is_ok() && self.has_ended() {
            let mut state = self.state.lock();
            if !state.has_reader {
                // Takes the last answers before the end.
                while !state.lost {
                    state = self.read(state, Some(Duration::ZERO), false);
                }
            }
        }
    }

    /// Whether the other end is closed.
    fn has_ended(&self) -> bool {
        let mut ended = [PollFd::new(&self.stream, HANGS_UP)];
        poll(&mut ended, Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }

    /// Ends the connection: the owner is gone, or this client.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.lost = true;
        let wakers: Vec<_> = state.calls.values_mut().filter_map(|call| call.waker.take()).collect();
        drop(state);
        // The owner sees the end even if a thread still reads.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        self.bell.ring();
        self.changed.notify_all();
        for waker in wakers {
            waker();
        }
    }
}

impl State {
    fn has_unsent(&self) -> bool {
        self.sent < self.out.len()
    }
}

/// Gives each answer that has arrived to its call.
fn take_answers(state: &mut State, wakers: &mut Vec<Waker>) {
    loop {
        match state.reader.take() {
            Ok(Some(frame)) => {
                let Some(call) = state.calls.get_mut(&frame.number) else { continue };
                let Ok(answer) = postcard::from_bytes::<Answer>(&frame.payload) else {
                    state.lost = true;
                    return;
                };
                call.answer = Some(answer);
                if let Some(waker) = call.waker.take() {
                    state.wakers -= 1;
                    wakers.push(waker);
                }
            }
            Ok(None) => return,
            Err(_) => {
                state.lost = true;
                return;
            }
        }
    }
}
