//! The TCP connection to a master or a broker.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(3);
/// How long a master may take nothing.
const SEND: Duration = Duration::from_secs(10);
/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 20;

/// A connection.
pub(super) struct Connection {
    /// Host and port.
    pub(super) address: String,
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    /// Connects to `address`, a host and a port.
    pub(super) fn open(address: &str) -> io::Result<Self> {
        let mut last = io::Error::new(ErrorKind::NotFound, "no such host");
        for place in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&place, CONNECT) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_write_timeout(Some(SEND))?;
                    return Ok(Self { address: address.to_owned(), stream, buffer: vec![0; READ_BYTES] });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Sends all of `bytes`.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() { Ok(()) } else { self.stream.write_all(bytes) }
    }

    /// Returns the bytes that arrive within `wait`, and whether no more are there now.
    pub(super) fn receive(&mut self, wait: Duration) -> io::Result<(&[u8], bool)> {
        self.stream.set_read_timeout(Some(wait.max(Duration::from_millis(1))))?;
        match self.stream.read(&mut self.buffer) {
            Ok(0) => Err(io::Error::new(ErrorKind::UnexpectedEof, "it closed the connection")),
            Ok(count) => {
                let is_drained = count < self.buffer.len();
                Ok((self.buffer.get(..count).unwrap_or_default(), is_drained))
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Ok((&[], true))
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok((&[], false)),
            Err(error) => Err(error),
        }
    }
}
