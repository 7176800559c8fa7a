//! Values in memory up to a number of bytes.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use mqstore_io::sync::Mutex;

/// Which values stay if there are too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stay {
    /// Those that were used last.
    Newest,
    /// Those that came first. Use it if each use needs all values in the same order: no value would stay until its next
    /// use otherwise.
    First,
}

#[derive(Debug)]
struct Inner<K, V> {
    values: HashMap<K, (V, usize, u64)>,
    /// The keys by their last use.
    uses: BTreeMap<u64, K>,
    bytes: usize,
    clock: u64,
}

/// See the header of this file.
#[derive(Debug)]
pub(super) struct Kept<K, V> {
    max_bytes: usize,
    stay: Stay,
    inner: Mutex<Inner<K, V>>,
}

impl<K: Clone + Eq + Hash, V: Clone> Kept<K, V> {
    pub(super) fn new(max_bytes: usize, stay: Stay) -> Self {
        let inner = Inner { values: HashMap::new(), uses: BTreeMap::new(), bytes: 0, clock: 0 };
        Self { max_bytes, stay, inner: Mutex::new(inner) }
    }

    pub(super) fn get(&self, key: &K) -> Option<V> {
        let mut inner = self.inner.lock();
        inner.clock += 1;
        let now = inner.clock;
        let (value, _, used) = inner.values.get_mut(key)?;
        let (value, before) = (value.clone(), std::mem::replace(used, now));
        if let Some(key) = inner.uses.remove(&before) {
            inner.uses.insert(now, key);
        }
        Some(value)
    }

    pub(super) fn put(&self, key: K, value: V, bytes: usize) {
        let mut inner = self.inner.lock();
        if inner.values.contains_key(&key)
            || (self.stay == Stay::First && inner.bytes + bytes > self.max_bytes)
        {
            return;
        }
        inner.clock += 1;
        let now = inner.clock;
        inner.bytes += bytes;
        inner.uses.insert(now, key.clone());
        inner.values.insert(key, (value, bytes, now));
        while inner.bytes > self.max_bytes && inner.values.len() > 1 {
            let Some((_, oldest)) = inner.uses.pop_first() else { return };
            let freed = inner.values.remove(&oldest).map_or(0, |(_, bytes, _)| bytes);
            inner.bytes -= freed;
        }
    }

    /// Removes all values.
    pub(super) fn clear(&self) {
        let mut inner = self.inner.lock();
        inner.values.clear();
        inner.uses.clear();
        inner.bytes = 0;
    }
}
