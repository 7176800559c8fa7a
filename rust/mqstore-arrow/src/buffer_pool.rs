//! Memory of batches for reuse.
//!
//! Fresh memory of the system has no pages yet, and faulting them in takes longer than to copy a body into them. When a
//! consumer drops a batch, a later batch of the same scan reuses its memory. A consumer that keeps its batches gets
//! fresh memory. Consumers can be any threads. The kept memory is bounded, and freed with the scan and its last batch.

use std::sync::{Arc, Mutex, PoisonError};

use arrow_buffer::Buffer;

/// Smaller buffers are not kept: the allocator keeps their pages.
const LEAST_BYTES: usize = 64 << 10;

/// Maximum bytes that are kept for reuse.
const KEPT_BYTES: usize = 32 << 20;

/// The pool of a scan; see the module's text.
#[derive(Default)]
pub struct BufferPool {
    kept: Mutex<Vec<Vec<u8>>>,
}

impl BufferPool {
    /// Moves `values` into a batch, and replaces them with empty memory of the same size.
    pub fn share(self: &Arc<Self>, values: &mut Vec<u8>) -> Buffer {
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

/// Memory of a batch that returns to the pool when its last reader drops it.
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
