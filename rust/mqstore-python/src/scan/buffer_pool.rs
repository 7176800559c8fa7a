//! Memory that batches give back.
//!
//! Memory fresh from the system has no pages yet: making them takes longer than copying a body into them. What
//! a consumer lets go of is used for a later batch of the same scan; one that keeps its batches gets fresh
//! memory, as it must. Consumers may be any threads. What is kept for later is bounded, and gone with the scan
//! and its last batch.

use std::sync::{Arc, Mutex, PoisonError};

use arrow_buffer::Buffer;

/// Smaller ones are not worth it: the allocator keeps their pages.
const LEAST_BYTES: usize = 64 << 10;

/// Bytes that wait for use at most.
const KEPT_BYTES: usize = 32 << 20;

/// See the module's text.
#[derive(Default)]
pub(super) struct BufferPool {
    kept: Mutex<Vec<Vec<u8>>>,
}

impl BufferPool {
    /// Makes `values` part of a batch and puts empty memory of the same size into their place.
    pub(super) fn share(self: &Arc<Self>, values: &mut Vec<u8>) -> Buffer {
        let room = values.len() + values.len() / 8;
        if room < LEAST_BYTES {
            return Buffer::from_vec(std::mem::replace(values, Vec::with_capacity(room)));
        }
        let bytes = std::mem::replace(values, self.take(room));
        let lent = PooledBuffer { bytes, pool: Arc::clone(self) };
        Buffer::from(bytes::Bytes::from_owner(lent))
    }

    fn take(&self, room: usize) -> Vec<u8> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.unwrap_or_else(|| Vec::with_capacity(room))
    }

    fn give_back(&self, mut bytes: Vec<u8>) {
        bytes.clear();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let there: usize = kept.iter().map(Vec::capacity).sum();
        if there + bytes.capacity() <= KEPT_BYTES {
            kept.push(bytes);
        }
    }
}

/// Memory of a batch, on its way back when nobody reads it any more.
struct PooledBuffer {
    bytes: Vec<u8>,
    pool: Arc<BufferPool>,
}

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        self.pool.give_back(std::mem::take(&mut self.bytes));
    }
}
