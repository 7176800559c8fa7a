//! Changes of a store's bytes: one bit, one byte, hundreds of bytes, a truncation, or a whole file.

use std::path::Path;

use mqstore::io::sim::SimVfs;
use mqstore::io::{Access, Vfs};

use crate::damaged::{ROOT, list};

/// The source of the numbers of a change: a generator, or the bytes of a fuzzer.
pub trait Choices {
    /// A number from 0 to `bound - 1`, or 0 if `bound` is 0.
    fn below(&mut self, bound: u64) -> u64;
}

/// Numbers from a seed.
#[derive(Clone, Debug)]
pub struct Seeded(pub u64);

impl Choices for Seeded {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (word ^ (word >> 31)).checked_rem(bound).unwrap_or(0)
    }
}

/// Numbers from bytes, then zeros.
#[derive(Clone, Debug)]
pub struct FromBytes<'a>(pub &'a [u8]);

impl Choices for FromBytes<'_> {
    fn below(&mut self, bound: u64) -> u64 {
        let bytes = match bound {
            0..=0x100 => 1,
            0x101..=0x1_0000 => 2,
            _ => 4,
        };
        let (head, tail) = self.0.split_at(bytes.min(self.0.len()));
        self.0 = tail;
        head.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)).checked_rem(bound).unwrap_or(0)
    }
}

/// Changes bytes of a file, or the file as a whole. Every part that contains data can be hit. Returns a
/// description.
///
/// # Errors
/// Those of the disk.
pub fn change(vfs: &SimVfs, choices: &mut dyn Choices) -> std::io::Result<String> {
    let files = list(vfs, Path::new(ROOT));
    let number = choices.below(files.len() as u64) as usize;
    let Some((path, len)) = files.get(number) else { return Ok("no file".to_owned()) };
    let name = path.strip_prefix(ROOT).unwrap_or(path).display();
    let mut bytes = vfs.read_file(path, *len)?;
    let file = vfs.open(path, Access::ReadWrite)?;
    let kind = choices.below(16);
    if kind >= 14 || bytes.is_empty() {
        return whole(vfs, path, &*file, kind, choices).map(|what| format!("{name}: {what}"));
    }
    let at = place(&bytes, choices);
    let count = if kind < 6 { 1 } else { 1 + choices.below(if kind < 10 { 8 } else { 400 }) as usize };
    let end = (at + count).min(bytes.len());
    let from = choices.below(bytes.len() as u64) as usize;
    let source = bytes.clone();
    for (number, byte) in bytes.iter_mut().enumerate().take(end).skip(at) {
        *byte = match kind {
            0..=3 => *byte ^ 1 << choices.below(8),
            4 => byte.wrapping_add(1),
            5 => byte.wrapping_sub(1),
            6 | 7 => 0,
            8 => 0xFF,
            9 | 10 => choices.below(256) as u8,
            11 => !*byte,
            _ => source.get(from + number - at).copied().unwrap_or(0),
        };
    }
    file.write_all_at(bytes.get(at..end).unwrap_or_default(), at as u64)?;
    Ok(format!("{name}: bytes {at} to {end}, kind {kind}, from {from}"))
}

/// A place in `bytes`, mostly one that is not zero.
fn place(bytes: &[u8], choices: &mut dyn Choices) -> usize {
    let written: Vec<usize> =
        bytes.iter().enumerate().filter(|(_, byte)| **byte != 0).map(|(at, _)| at).collect();
    if written.is_empty() || choices.below(8) == 0 {
        return choices.below(bytes.len() as u64) as usize;
    }
    written.get(choices.below(written.len() as u64) as usize).copied().unwrap_or(0)
}

fn whole(
    vfs: &SimVfs,
    path: &Path,
    file: &dyn mqstore::io::VfsFile,
    kind: u64,
    choices: &mut dyn Choices,
) -> std::io::Result<String> {
    let len = file.len()?;
    match (kind, choices.below(4)) {
        (15, 0) => vfs.remove_file(path).map(|()| "removed".to_owned()),
        (15, _) => {
            let more = 1 + choices.below(600);
            file.set_len(len + more)?;
            file.write_all_at(&vec![choices.below(256) as u8; more as usize], len)?;
            Ok(format!("{more} bytes longer"))
        }
        _ => {
            let left = choices.below(len);
            file.set_len(left).map(|()| format!("cut to {left} of {len} bytes"))
        }
    }
}
