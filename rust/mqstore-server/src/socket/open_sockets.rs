//! The sockets of this process, so that a forked child can close its copies.
//!
//! A child that keeps a copy of a connection would hide the death of its parent from the other end. The list has a bit
//! for each descriptor, without a lock, because any thread may hold a lock during a fork.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Descriptors above this are not in the list. An owner refuses connections that get one.
const MOST: usize = 1 << 16;

static OPEN: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];

/// An entry of the list, as long as it lives. Drop it before the descriptor.
#[derive(Debug)]
pub(crate) struct Listed(RawFd);

/// Adds a descriptor; `None` if its number is too high.
pub(crate) fn list(socket: &impl AsRawFd) -> Option<Listed> {
    let descriptor = socket.as_raw_fd();
    let word = OPEN.get(usize::try_from(descriptor).ok()? / 64)?;
    word.fetch_or(1 << (descriptor % 64), Ordering::SeqCst);
    Some(Listed(descriptor))
}

impl Drop for Listed {
    fn drop(&mut self) {
        if let Some(word) = OPEN.get(self.0 as usize / 64) {
            word.fetch_and(!(1 << (self.0 % 64)), Ordering::SeqCst);
        }
    }
}

/// Closes all listed sockets. Only for a child, directly after a fork: it has no other thread, and the values that own
/// the descriptors must be leaked.
pub(crate) fn close_in_child() {
    for (index, word) in OPEN.iter().enumerate() {
        let bits = word.swap(0, Ordering::SeqCst);
        for bit in (0..64).filter(|bit| bits & (1 << bit) != 0) {
            // The copy is closed or was never there.
            let _ = nix::unistd::close((index * 64 + bit) as RawFd);
        }
    }
}
