//! TCP connections: to a master or a broker, and from replicas.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use mqstore::io::sync::Mutex;

use crate::socket::open_sockets::{self, Listed};

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(3);
/// How long the other end may take nothing.
const SEND: Duration = Duration::from_secs(10);
/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 20;

/// A connection. One thread at a time sends, and one receives.
pub(crate) struct Connection {
    /// Host and port of the other end.
    pub(crate) address: String,
    // Before the descriptor.
    _listed: Listed,
    stream: TcpStream,
    buffer: Mutex<Vec<u8>>,
}

impl Connection {
    /// Connects to `address`, a host and a port.
    pub(crate) fn open(address: &str) -> io::Result<Self> {
        let mut last = io::Error::new(ErrorKind::NotFound, "no such host");
        for place in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&place, CONNECT) {
                Ok(stream) => return Self::of(stream, address.to_owned()),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn of(stream: TcpStream, address: String) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(SEND))?;
        let listed = listed(&stream)?;
        Ok(Self { address, _listed: listed, stream, buffer: Mutex::default() })
    }

    /// Sends all of `bytes`.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() { Ok(()) } else { (&self.stream).write_all(bytes) }
    }

    /// Gives the bytes that arrive within `wait` to `take`, and whether no more are there now.
    pub(crate) fn receive<T>(&self, wait: Duration, take: impl FnOnce(&[u8], bool) -> T) -> io::Result<T> {
        let mut buffer = self.buffer.lock();
        buffer.resize(READ_BYTES, 0);
        self.stream.set_read_timeout(Some(wait.max(Duration::from_millis(1))))?;
        match (&self.stream).read(&mut buffer) {
            Ok(0) => Err(io::Error::new(ErrorKind::UnexpectedEof, "it closed the connection")),
            Ok(count) => Ok(take(buffer.get(..count).unwrap_or_default(), count < buffer.len())),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Ok(take(&[], true))
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(take(&[], false)),
            Err(error) => Err(error),
        }
    }

    /// Ends the connection, also for threads that send or receive.
    pub(crate) fn end(&self) {
        // It may have ended already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Accepts connections.
pub(crate) struct Acceptor {
    // Before the descriptor.
    _listed: Listed,
    listener: TcpListener,
    address: SocketAddr,
}

impl Acceptor {
    /// Listens at `address`, a host and a port.
    pub(crate) fn open(address: &str) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let (listed, address) = (listed(&listener)?, listener.local_addr()?);
        Ok(Self { _listed: listed, listener, address })
    }

    /// Returns host and port.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the next connection.
    pub(crate) fn accept(&self) -> io::Result<Connection> {
        let (stream, peer) = self.listener.accept()?;
        Connection::of(stream, peer.to_string())
    }
}

/// Ends a wait in [`Acceptor::accept`] at `address`, by a connection to it.
pub(crate) fn wake(mut address: SocketAddr) {
    if address.ip().is_unspecified() {
        let loopback = if address.is_ipv4() { "127.0.0.1" } else { "::1" };
        address.set_ip(loopback.parse().unwrap_or_else(|_| address.ip()));
    }
    // If nothing listens any more, no thread waits.
    let _ = TcpStream::connect_timeout(&address, CONNECT);
}

fn listed(socket: &impl std::os::fd::AsRawFd) -> io::Result<Listed> {
    open_sockets::list(socket).ok_or_else(|| io::Error::other("the process has too many open files"))
}
