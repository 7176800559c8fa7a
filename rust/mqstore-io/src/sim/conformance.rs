//! Compares the simulated file system with the real one: random calls must give the same answers.

use std::io;
use std::path::{Path, PathBuf};

use super::SimVfs;
use crate::os::OsVfs;
use crate::region::MapAccess;
use crate::vfs::{Access, FileKind, FileStat, Vfs, VfsFile};

/// The random numbers of one run, the same each time.
struct TestRng(u64);

impl TestRng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// One call, on paths relative to the root.
#[derive(Debug)]
enum Call {
    Create(PathBuf),
    Write(PathBuf, u64, Vec<u8>),
    SetLen(PathBuf, u64),
    Allocate(PathBuf, u64),
    MapWrite(PathBuf, u64, Vec<u8>),
    Read(PathBuf),
    Stat(PathBuf),
    List(PathBuf),
    CreateDir(PathBuf),
    CreateDirAll(PathBuf),
    Rename(PathBuf, PathBuf),
    RenameNoReplace(PathBuf, PathBuf),
    HardLink(PathBuf, PathBuf),
    Exchange(PathBuf, PathBuf),
    RemoveFile(PathBuf),
    RemoveDir(PathBuf),
    RemoveDirAll(PathBuf),
    Sync(PathBuf),
    SyncDir(PathBuf),
    NextData(PathBuf, u64),
}

fn path(dice: &mut TestRng) -> PathBuf {
    let names = ["a", "b", "c", "d/a", "d/b", "d", "d/e", "d/e/a", "d/../a"];
    names.get(dice.below(names.len() as u64) as usize).map(PathBuf::from).unwrap_or_default()
}

fn bytes(dice: &mut TestRng) -> Vec<u8> {
    let len = dice.below(6000) * dice.below(2) + dice.below(20);
    (0..len).map(|_| dice.below(256) as u8).collect()
}

fn call(dice: &mut TestRng) -> Call {
    match dice.below(24) {
        0 | 1 => Call::Create(path(dice)),
        2 | 3 => Call::Write(path(dice), dice.below(20_000), bytes(dice)),
        4 => Call::SetLen(path(dice), dice.below(20_000)),
        5 => Call::Allocate(path(dice), dice.below(20_000)),
        6 | 7 => Call::MapWrite(path(dice), dice.below(20_000), bytes(dice)),
        8 | 9 => Call::Read(path(dice)),
        10 => Call::Stat(path(dice)),
        11 => Call::List(path(dice)),
        12 => Call::CreateDir(path(dice)),
        13 => Call::CreateDirAll(path(dice)),
        14 => Call::Rename(path(dice), path(dice)),
        15 => Call::RenameNoReplace(path(dice), path(dice)),
        16 => Call::HardLink(path(dice), path(dice)),
        17 => Call::Exchange(path(dice), path(dice)),
        18 => Call::RemoveFile(path(dice)),
        19 => Call::RemoveDir(path(dice)),
        20 if dice.below(4) == 0 => Call::RemoveDirAll(path(dice)),
        21 => Call::Sync(path(dice)),
        22 => Call::SyncDir(path(dice)),
        _ => Call::NextData(path(dice), dice.below(20_000)),
    }
}

/// Returns the parts of a `FileStat` that are the same on every file system: kind, and for files length and links.
fn outline(stat: &FileStat) -> String {
    match stat.kind {
        FileKind::File => format!("file {} {}", stat.len, stat.links),
        other => format!("{other:?}"),
    }
}

fn map_write(file: &dyn VfsFile, at: u64, bytes: &[u8]) -> io::Result<()> {
    let len = file.len()?;
    file.allocate(len)?;
    let region = file.map(0, len as usize, MapAccess::ReadWrite)?;
    region.write(at as usize, bytes)?;
    region.flush(0..len as usize)
}

fn perform(vfs: &dyn Vfs, root: &Path, call: &Call) -> io::Result<String> {
    let at = |path: &PathBuf| root.join(path);
    let edit = |path: &PathBuf| vfs.open(&at(path), Access::ReadWrite);
    let nothing = |()| String::new();
    match call {
        Call::Create(path) => vfs.create_new(&at(path)).map(|_| String::new()),
        Call::Write(path, offset, bytes) => edit(path)?.write_all_at(bytes, *offset).map(nothing),
        Call::SetLen(path, len) => edit(path)?.set_len(*len).map(nothing),
        Call::Allocate(path, len) => edit(path)?.allocate(*len).map(nothing),
        Call::MapWrite(path, offset, bytes) => map_write(&*edit(path)?, *offset, bytes).map(nothing),
        Call::Read(path) => vfs.read_file(&at(path), 1 << 20).map(|bytes| format!("{bytes:?}")),
        Call::Stat(path) => vfs.stat(&at(path)).map(|stat| outline(&stat)),
        Call::List(path) => {
            let entries = vfs.list(&at(path))?;
            let kinds: Vec<_> = entries.iter().map(|entry| (entry.name.clone(), entry.stat.kind)).collect();
            assert_eq!(vfs.list_kinds(&at(path))?, kinds);
            let lines =
                entries.iter().map(|entry| format!("{} {}", entry.name.display(), outline(&entry.stat)));
            Ok(lines.collect::<Vec<_>>().join("; "))
        }
        Call::CreateDir(path) => vfs.create_dir(&at(path)).map(nothing),
        Call::CreateDirAll(path) => vfs.create_dir_all(&at(path)).map(nothing),
        Call::Rename(from, to) => vfs.rename(&at(from), &at(to)).map(nothing),
        Call::RenameNoReplace(from, to) => vfs.rename_noreplace(&at(from), &at(to)).map(nothing),
        Call::HardLink(from, to) => vfs.hard_link(&at(from), &at(to)).map(nothing),
        Call::Exchange(a, b) => vfs.exchange(&at(a), &at(b)).map(nothing),
        Call::RemoveFile(path) => vfs.remove_file(&at(path)).map(nothing),
        Call::RemoveDir(path) => vfs.remove_dir(&at(path)).map(nothing),
        Call::RemoveDirAll(path) => vfs.remove_dir_all(&at(path)).map(nothing),
        Call::Sync(path) => edit(path)?.sync_data().map(nothing),
        Call::SyncDir(path) => vfs.sync_dir(&at(path)).map(nothing),
        // The reported start of data depends on the file system. Only its existence is compared.
        Call::NextData(path, from) => {
            let found = edit(path)?.next_data(*from)?;
            Ok(format!("{}", found.is_none_or(|at| at >= *from)))
        }
    }
}

#[test]
fn the_simulated_file_system_answers_as_the_real_one() {
    let mut calls = 0;
    for seed in 0..60 {
        let dir = tempfile::tempdir().unwrap();
        let sim = SimVfs::default();
        sim.create_dir(Path::new("/root")).unwrap();
        let mut dice = TestRng(seed);
        for step in 0..150 {
            let call = call(&mut dice);
            let real = perform(&OsVfs, dir.path(), &call).map_err(|error| error.kind());
            let simulated = perform(&sim, Path::new("/root"), &call).map_err(|error| error.kind());
            assert_eq!(real, simulated, "seed {seed}, step {step}: {call:?}");
            calls += 1;
        }
        assert_eq!(sim.violations(), Vec::<String>::new());
    }
    assert_eq!(calls, 9_000);
}
