//! The units of one queue in its files.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use mqstore_format::{BLANK_UNIT, CQ_UNIT_BYTES, CqUnit};
use mqstore_io::{Access, Vfs, VfsFile};

use super::layout::TieredFile;

/// Byte length of a unit.
pub(super) const UNIT_BYTES: u64 = CQ_UNIT_BYTES as u64;

/// Returns the number of the unit at byte `at` of a queue's units.
pub(super) fn number(at: u64) -> i64 {
    (at / UNIT_BYTES) as i64
}

/// Reads units, and keeps the file of the last one open.
pub(super) struct UnitReader<'a> {
    vfs: &'a dyn Vfs,
    files: &'a [TieredFile],
    open: Option<(usize, Arc<dyn VfsFile>)>,
}

impl<'a> UnitReader<'a> {
    pub(super) fn new(vfs: &'a dyn Vfs, files: &'a [TieredFile]) -> Self {
        Self { vfs, files, open: None }
    }

    /// Returns the unit of a queue offset, if a file has it.
    pub(super) fn unit(&mut self, offset: i64) -> io::Result<Option<CqUnit>> {
        let unit = self.read(offset, offset.saturating_add(1))?.pop();
        Ok(unit.filter(|unit| !unit.is_blank()))
    }

    /// Returns the units from `from` to `to` (exclusive); blank ones where no file has them.
    pub(super) fn read(&mut self, from: i64, to: i64) -> io::Result<Vec<CqUnit>> {
        let mut units = Vec::new();
        let mut next = from;
        while next < to {
            let at = next.max(0).unsigned_abs().saturating_mul(UNIT_BYTES);
            let after = self.files.partition_point(|file| file.base <= at);
            let file = after.checked_sub(1).and_then(|at| Some((at, self.files.get(at)?)));
            let Some((file_number, file)) = file.filter(|(_, file)| next >= 0 && at < file.end()) else {
                let begin = self.files.get(after).map_or(to, |file| number(file.base));
                let blank = begin.clamp(next + 1, to) - next;
                units.extend(std::iter::repeat_n(BLANK_UNIT, blank as usize));
                next += blank;
                continue;
            };
            let count = (to - next).min(number(file.end() - at));
            let mut bytes = vec![0; count as usize * CQ_UNIT_BYTES];
            let (position, handle) = (at - file.base, self.file(file_number)?);
            handle.read_exact_at(&mut bytes, position)?;
            units.extend(CqUnit::decode_all(&bytes));
            next += count;
        }
        Ok(units)
    }

    fn file(&mut self, number: usize) -> io::Result<Arc<dyn VfsFile>> {
        if let Some((_, file)) = self.open.as_ref().filter(|(open, _)| *open == number) {
            return Ok(Arc::clone(file));
        }
        let path = self.files.get(number).map_or(Path::new(""), |file| file.path.as_path());
        let file = self.vfs.open(path, Access::Read)?;
        self.open = Some((number, Arc::clone(&file)));
        Ok(file)
    }

    /// Returns the first queue offset in `offsets` whose unit does not meet `meets`; the end if all of them do. Missing
    /// units meet it.
    pub(super) fn first_not(
        &mut self,
        offsets: Range<i64>,
        meets: impl Fn(&CqUnit) -> bool,
    ) -> io::Result<i64> {
        let (mut low, mut high) = (offsets.start, offsets.end);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.unit(middle)?.is_none_or(|unit| meets(&unit)) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }
}
