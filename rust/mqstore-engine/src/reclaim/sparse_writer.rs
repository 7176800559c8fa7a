//! Writes a new file from its begin to its end, and leaves whole pages of zeros as holes.

use std::io;

use mqstore_io::VfsFile;

use super::hidden_run::PAGE_BYTES;

/// Bytes to gather before a write; a multiple of the page size.
const BUFFER_BYTES: usize = 1 << 20;

/// A file of its final length whose bytes are still zeros.
pub(super) struct SparseWriter<'a> {
    file: &'a dyn VfsFile,
    /// Position of the buffer in the file, at a page border.
    position: u64,
    buffer: Vec<u8>,
}

impl<'a> SparseWriter<'a> {
    /// Starts at the begin of `file`.
    pub(super) fn new(file: &'a dyn VfsFile) -> Self {
        Self { file, position: 0, buffer: Vec::with_capacity(2 * BUFFER_BYTES) }
    }

    /// Appends `bytes`.
    pub(super) fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= BUFFER_BYTES { self.write_whole_pages() } else { Ok(()) }
    }

    /// Appends `count` zeros.
    pub(super) fn push_zeros(&mut self, count: u64) -> io::Result<()> {
        let to_border = (self.buffer.len() as u64).next_multiple_of(PAGE_BYTES) - self.buffer.len() as u64;
        let before = count.min(to_border);
        self.buffer.resize(self.buffer.len() + before as usize, 0);
        let rest = count - before;
        let pages = rest - rest % PAGE_BYTES;
        if pages > 0 {
            self.write_whole_pages()?;
            self.position += pages;
        }
        self.buffer.resize(self.buffer.len() + (rest - pages) as usize, 0);
        Ok(())
    }

    /// Writes the rest.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.write_whole_pages()?;
        if !self.buffer.is_empty() && !is_zero(&self.buffer) {
            self.file.write_all_at(&self.buffer, self.position)?;
        }
        Ok(())
    }

    fn write_whole_pages(&mut self) -> io::Result<()> {
        let (pages, _) = self.buffer.as_chunks::<{ PAGE_BYTES as usize }>();
        for (number, run) in pages.chunk_by(|one, next| is_zero(one) == is_zero(next)).scan(0, |at, run| {
            let number = *at;
            *at += run.len();
            Some((number, run))
        }) {
            if run.first().is_some_and(|page| !is_zero(page)) {
                self.file.write_all_at(run.as_flattened(), self.position + number as u64 * PAGE_BYTES)?;
            }
        }
        let written = pages.as_flattened().len();
        self.position += written as u64;
        self.buffer.drain(..written);
        Ok(())
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |all, byte| all | byte) == 0
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use mqstore_io::{SimVfs, Vfs};

    use super::*;

    #[test]
    fn the_file_has_the_bytes_and_no_page_of_zeros() {
        let vfs = SimVfs::default();
        let file = vfs.create_new(Path::new("/file")).unwrap();
        file.set_len(5 << 20).unwrap();
        let mut writer = SparseWriter::new(&*file);
        let mut wanted = Vec::new();
        for (number, (bytes, zeros)) in [
            (10, 4086),
            (4096, 4096),
            (3, 100),
            (5000, 9000),
            (1 << 20, 1 << 20),
            (1, 0),
            (0, 1),
            (777, 12_288),
        ]
        .into_iter()
        .enumerate()
        {
            let part = vec![number as u8 + 1; bytes];
            writer.push(&part).unwrap();
            writer.push_zeros(zeros).unwrap();
            wanted.extend(part);
            wanted.resize(wanted.len() + zeros as usize, 0);
        }
        writer.finish().unwrap();
        let mut found = vec![0; wanted.len()];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found == wanted);
        let pages = wanted.chunks(PAGE_BYTES as usize).filter(|page| !is_zero(page)).count() as u64;
        assert_eq!(file.stat().unwrap().allocated_bytes, pages * PAGE_BYTES);
    }
}
