//! A target in memory that fails requests, loses answers, carries out writes late, damages objects, and repeats and
//! reorders lists; for tests.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use bytes::Bytes;

use super::{Target, TargetError, TargetObject};
use crate::remote::RemoteCause;
use crate::sync::Mutex;
use crate::vfs::{Access, Vfs};

/// How often something goes wrong, in 64ths of the requests that it can happen to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mischief {
    /// The request fails without an effect.
    pub fails: u64,
    /// The request is carried out, and fails.
    pub loses_answer: u64,
    /// A write fails, and is carried out before a later request.
    pub is_late: u64,
    /// A write keeps half of the object, or another last byte, and answers that all is well.
    pub damages: u64,
    /// A list has objects twice, in another order.
    pub shuffles: u64,
}

impl Mischief {
    /// Makes a mixture. `part` gets the most of each kind, and chooses how much of it there is.
    pub fn of(part: &mut dyn FnMut(u64) -> u64) -> Self {
        Self {
            fails: part(6),
            loses_answer: part(6),
            is_late: part(16),
            damages: part(6),
            shuffles: part(32),
        }
    }
}

#[derive(Debug)]
struct State {
    objects: BTreeMap<String, Bytes>,
    /// Writes that come later, and whether they need a free path.
    late: Vec<(String, Bytes, bool)>,
    mischief: Mischief,
    random: u64,
}

impl State {
    /// Xorshift.
    fn chance(&mut self, of_64: u64) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 20) % 64 < of_64
    }

    fn carry_out(&mut self, (path, content, if_absent): (String, Bytes, bool)) -> bool {
        if if_absent && self.objects.contains_key(&path) {
            return false;
        }
        let mut kept = content.to_vec();
        if self.chance(self.mischief.damages) {
            if self.chance(32) {
                kept.truncate(content.len() / 2);
            } else if let Some(last) = kept.last_mut() {
                *last ^= 1;
            }
        }
        self.objects.insert(path, kept.into());
        true
    }

    /// Begins a request: carries out some of the late ones.
    fn begin(&mut self, path: &str) -> Result<(), TargetError> {
        for one in std::mem::take(&mut self.late) {
            if self.chance(16) {
                self.carry_out(one);
            } else {
                self.late.push(one);
            }
        }
        if self.chance(self.mischief.fails) { Err(failed(path)) } else { Ok(()) }
    }

    fn end(&mut self, path: &str) -> Result<(), TargetError> {
        if self.chance(self.mischief.loses_answer) { Err(failed(path)) } else { Ok(()) }
    }

    fn write(&mut self, path: &str, content: &[u8], if_absent: bool) -> Result<bool, TargetError> {
        self.begin(path)?;
        let request = (path.to_owned(), Bytes::copy_from_slice(content), if_absent);
        if self.chance(self.mischief.is_late) {
            self.late.push(request);
            return Err(failed(path));
        }
        let is_written = self.carry_out(request);
        self.end(path)?;
        Ok(is_written)
    }
}

fn failed(path: &str) -> TargetError {
    TargetError::new(RemoteCause::Other, path, "the request fails as the test wants")
}

/// See the header of this file.
#[derive(Debug)]
pub struct HostileTarget {
    state: Mutex<State>,
}

impl HostileTarget {
    /// Makes an empty target.
    pub fn new(seed: u64) -> Self {
        let random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let state =
            State { objects: BTreeMap::new(), late: Vec::new(), mischief: Mischief::default(), random };
        Self { state: Mutex::new(state) }
    }

    /// Sets what goes wrong from now on.
    pub fn set(&self, mischief: Mischief) {
        self.state.lock().mischief = mischief;
    }

    /// Carries out all late requests; nothing goes wrong from then on.
    pub fn calm(&self) {
        let mut state = self.state.lock();
        state.mischief = Mischief::default();
        for one in std::mem::take(&mut state.late) {
            state.carry_out(one);
        }
    }
}

impl Target for HostileTarget {
    fn shown(&self, path: Option<&str>) -> String {
        format!("hostile://{}", path.unwrap_or("target"))
    }

    fn get(&self, path: &str) -> Result<Option<Bytes>, TargetError> {
        let mut state = self.state.lock();
        state.begin(path)?;
        state.end(path)?;
        Ok(state.objects.get(path).cloned())
    }

    fn ranges(&self, wanted: &[(&str, Range<u64>)]) -> Result<Vec<Bytes>, TargetError> {
        let mut state = self.state.lock();
        let path = wanted.first().map_or("", |(path, _)| path);
        state.begin(path)?;
        let part = |(path, range): &(&str, Range<u64>)| {
            let missing = || TargetError::new(RemoteCause::Changed, path, "it is missing");
            let content = state.objects.get(*path).ok_or_else(missing)?;
            let end = content.len().min(range.end as usize);
            Ok(content.slice(end.min(range.start as usize)..end))
        };
        wanted.iter().map(part).collect()
    }

    fn list(&self, folder: &str) -> Result<Vec<TargetObject>, TargetError> {
        let mut state = self.state.lock();
        state.begin(folder)?;
        let row = |(path, content): (&String, &Bytes)| TargetObject {
            path: path.clone(),
            bytes: content.len() as u64,
            changed_ms: 0,
        };
        let mut found: Vec<_> =
            state.objects.iter().filter(|(path, _)| path.starts_with(folder)).map(row).collect();
        let shuffles = state.mischief.shuffles;
        for at in 0..found.len() {
            if state.chance(shuffles) {
                found.extend(found.get(at).cloned());
            }
            if state.chance(shuffles) {
                found.swap(0, at);
            }
        }
        Ok(found)
    }

    fn names(&self, folder: &str) -> Result<Vec<String>, TargetError> {
        let below = |one: TargetObject| one.path.strip_prefix(folder)?.split('/').next().map(str::to_owned);
        Ok(self.list(folder)?.into_iter().filter_map(below).collect())
    }

    fn put(&self, path: &str, content: &[u8]) -> Result<(), TargetError> {
        self.state.lock().write(path, content, false).map(drop)
    }

    fn put_file(&self, path: &str, vfs: &dyn Vfs, file: &Path, length: u64) -> Result<(), TargetError> {
        let content = vfs.open(file, Access::Read).and_then(|file| file.read_new(length as usize, 0));
        self.put(path, &content.map_err(|error| TargetError::of_file(path, &error))?)
    }

    fn put_if_absent(&self, path: &str, content: &[u8]) -> Result<bool, TargetError> {
        self.state.lock().write(path, content, true)
    }

    fn delete(&self, paths: &[String]) -> Result<(), TargetError> {
        let mut state = self.state.lock();
        let path = paths.first().map_or("", String::as_str);
        state.begin(path)?;
        for path in paths {
            state.objects.remove(path);
        }
        state.end(path)
    }
}
