//! A bell for a thread that sleeps on descriptors, such as one that runs an event loop.
//!
//! Any thread rings; the descriptor is readable from then on until it is silenced. However often it is
//! rung meanwhile, it is rung once. Nothing is handed over by it: who hears it looks for what there is.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use super::above_stderr;

/// See the head of this module. Not for a child process: a fork shares the bell with its parent.
#[derive(Debug)]
pub struct WakeDescriptor {
    button: UnixStream,
    bell: UnixStream,
}

impl WakeDescriptor {
    /// A silent bell.
    pub fn new() -> io::Result<Self> {
        let (button, bell) = UnixStream::pair()?;
        Ok(Self { button: end(button)?, bell: end(bell)? })
    }

    /// What becomes readable; it stays this bell's own.
    pub fn descriptor(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    /// Rings it. Never waits.
    pub fn ring(&self) {
        // A bell that takes no more was rung and not silenced since.
        let _ = (&self.button).write(&[1]);
    }

    /// Silences it: to be done before the look, so that what comes later rings anew.
    pub fn silence(&self) {
        let mut rings = [0; 256];
        while matches!((&self.bell).read(&mut rings), Ok(count) if count == rings.len()) {}
    }
}

/// One end, which never waits.
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
        // More than it can hold.
        for _ in 0..1_000_000 {
            bell.ring();
        }
        bell.silence();
        assert!(!is_rung(&bell));
        bell.ring();
        assert!(is_rung(&bell));
    }
}
