//! A bell for a thread that sleeps on descriptors, for example one that runs an event loop.
//!
//! Any thread can ring it. From then on the descriptor is readable until the bell is silenced. Several rings count as
//! one. The bell carries no data: a thread that hears it checks its inbox.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use super::above_stderr;
use super::descriptor::retry_open;

/// A bell; see the module's text. Not for a child process: a fork shares the bell with its parent.
#[derive(Debug)]
pub struct WakeDescriptor {
    button: UnixStream,
    bell: UnixStream,
}

impl WakeDescriptor {
    /// Creates a silent bell.
    pub fn new() -> io::Result<Self> {
        let (button, bell) = retry_open(UnixStream::pair)?;
        Ok(Self { button: end(button)?, bell: end(bell)? })
    }

    /// Returns the descriptor that becomes readable. The bell still owns it.
    pub fn descriptor(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    /// Rings the bell. Never waits.
    pub fn ring(&self) {
        // If the buffer is full, the bell was rung and not silenced since.
        let _ = (&self.button).write(&[1]);
    }

    /// Silences the bell. Call it before you check the inbox, so that a later event rings again.
    pub fn silence(&self) {
        let mut rings = [0; 256];
        while matches!((&self.bell).read(&mut rings), Ok(count) if count == rings.len()) {}
    }
}

impl AsFd for WakeDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// Makes one end non-blocking.
fn end(stream: UnixStream) -> io::Result<UnixStream> {
    let stream = UnixStream::from(above_stderr(OwnedFd::from(stream))?);
    stream.set_nonblocking(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_rung(bell: &WakeDescriptor) -> bool {
        let mut byte = [0];
        (&bell.bell).read(&mut byte).is_ok()
    }

    #[test]
    fn it_rings_until_it_is_silenced() {
        let bell = WakeDescriptor::new().unwrap();
        assert!(bell.descriptor() > 2);
        assert!(!is_rung(&bell));
        // More rings than the buffer can hold.
        for _ in 0..1_000_000 {
            bell.ring();
        }
        bell.silence();
        assert!(!is_rung(&bell));
        bell.ring();
        assert!(is_rung(&bell));
    }
}
