use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_io::{ManualClock, SimVfs, Vfs};

use mqstore_base::error::StoreError;
use mqstore_base::options::StoreOptions;
use mqstore_base::store_files::StoreFiles;
use mqstore_format::offset_file_name;

fn files(sim: &SimVfs) -> StoreFiles {
    let vfs: Arc<dyn Vfs> = Arc::new(sim.clone());
    for folder in ["/store/commitlog", "/store/mqstore/tmp"] {
        vfs.create_dir_all(Path::new(folder)).unwrap();
    }
    StoreFiles::new(vfs, Arc::new(ManualClock::new(1)), Path::new("/store"))
}

fn options(new: &[&str], read_only: &[&str]) -> StoreOptions {
    let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect();
    StoreOptions {
        commit_log_paths: paths(new),
        read_only_commit_log_paths: paths(read_only),
        ..StoreOptions::default()
    }
}

fn segment(files: &StoreFiles, folder: &str, base: u64) {
    files.vfs.create_dir_all(Path::new(folder)).unwrap();
    files.vfs.create_new(&Path::new(folder).join(offset_file_name(base))).unwrap();
}

#[test]
fn without_a_word_the_log_is_in_commitlog_and_staged_beside() {
    let files = files(&SimVfs::default());
    assert_eq!(files.log_folders().unwrap().all(), [PathBuf::from("/store/commitlog")]);
    let staging = files.segment_staging(4096, 4096).unwrap();
    assert_eq!(staging, Path::new("/store/mqstore/tmp"));
    let name = offset_file_name(4096);
    let path = files.name_of_staged(&staging.join("any"), 4096).unwrap();
    assert_eq!(path, Path::new("/store/commitlog").join(&name));
    assert_eq!(files.wipe_place(&path).unwrap(), Path::new("/store/mqstore/wipe").join(&name));
    files.prepare_logs().unwrap();
    assert!(files.vfs.stat(&files.paths_file()).is_err(), "nothing to remember");
}

/// The worked example of the format notes: paths a, c, b and files of 1 GiB.
#[test]
fn new_segments_go_round_the_folders_that_are_not_full() {
    let files = files(&SimVfs::default()).with_logs(&options(&["/a", "/c", "/b"], &[])).unwrap();
    let staged = |number: u64| files.segment_staging(number << 30, 1 << 30).unwrap().join("any");
    let named = |number: u64| files.name_of_staged(&staged(number), number << 30).unwrap();
    let names = |number: u64| named(number).parent().unwrap().to_path_buf();
    assert_eq!([names(0), names(1), names(5)], ["/a", "/b", "/c"].map(PathBuf::from));
    let (early, path) = (staged(1), named(1));
    assert_eq!(early.parent(), Some(Path::new("/b/.mqstore/tmp")));
    let full = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<BTreeSet<_>>();
    files.log_folders().unwrap().set_full(full(&["/b"]));
    assert_eq!([names(0), names(1), names(5)], ["/a", "/c", "/c"].map(PathBuf::from));
    assert_eq!(files.name_of_staged(&early, 1 << 30).unwrap(), path, "no rename to another disk");
    files.log_folders().unwrap().set_full(full(&["/a", "/b", "/c"]));
    assert_eq!([names(0), names(1), names(5)], ["/a", "/b", "/c"].map(PathBuf::from));
}

#[test]
fn read_only_folders_get_no_new_segments() {
    let sim = SimVfs::default();
    let given = files(&sim).with_logs(&options(&["/a", "/b"], &["/b", "/old"])).unwrap();
    let folders = given.log_folders().unwrap();
    assert_eq!(folders.for_new(), [PathBuf::from("/a")]);
    assert_eq!(folders.all(), ["/a", "/b", "/old"].map(PathBuf::from));
    let refused = files(&SimVfs::default()).with_logs(&options(&["/a"], &["/a"])).unwrap_err();
    assert!(matches!(refused, StoreError::InvalidOption { option: "commit_log_paths", .. }));
}

#[test]
fn what_was_said_once_is_remembered_and_a_new_word_wins() {
    let sim = SimVfs::default();
    let plain = files(&sim);
    let listed = plain.clone().with_logs(&options(&["/disk/log", "logs"], &["/old"])).unwrap();
    listed.vfs.create_dir_all(Path::new("/old")).unwrap();
    listed.prepare_logs().unwrap();
    let later = plain.log_folders().unwrap();
    assert_eq!(later.all(), ["/disk/log", "/old", "/store/logs"].map(PathBuf::from));
    let before = sim.operations();
    listed.prepare_logs().unwrap();
    assert!(sim.operations() > before);
    let other = plain.clone().with_logs(&options(&["/new"], &[])).unwrap();
    assert_eq!(other.log_folders().unwrap().all(), [PathBuf::from("/new")]);
    other.prepare_logs().unwrap();
    assert_eq!(plain.log_folders().unwrap().all(), [PathBuf::from("/new")]);
}

#[test]
fn folders_with_segments_are_never_left_out() {
    let sim = SimVfs::default();
    let plain = files(&sim);
    segment(&plain, "/store/commitlog", 0);
    let refused = plain.clone().with_logs(&options(&["/a"], &[])).unwrap_err().to_string();
    assert!(refused.contains("/store/commitlog"), "{refused}");
    let both = plain.clone().with_logs(&options(&["/a"], &["commitlog"])).unwrap();
    both.prepare_logs().unwrap();
    segment(&plain, "/a", 4096);
    let refused = plain.clone().with_logs(&options(&["/b"], &["commitlog"])).unwrap_err().to_string();
    assert!(refused.contains("/a"), "{refused}");
    plain.clone().with_logs(&options(&["/b"], &["commitlog", "/a"])).unwrap();
}

#[test]
fn a_damaged_list_is_an_error_and_a_word_repairs_it() {
    let sim = SimVfs::default();
    let plain = files(&sim);
    plain.clone().with_logs(&options(&["/a", "/b"], &[])).unwrap().prepare_logs().unwrap();
    let bytes = plain.vfs.read_file(&plain.paths_file(), 4096).unwrap();
    for at in 0..bytes.len() {
        sim.flip(&plain.paths_file(), at as u64, 0x10).unwrap();
        assert!(matches!(plain.log_folders(), Err(StoreError::Corrupt { .. })), "byte {at}");
        plain.clone().with_logs(&options(&["/a", "/b"], &[])).unwrap();
        sim.flip(&plain.paths_file(), at as u64, 0x10).unwrap();
    }
    plain.log_folders().unwrap();
}

#[test]
fn a_known_folder_that_is_gone_is_not_made_again() {
    let sim = SimVfs::default();
    let plain = files(&sim);
    let listed = plain.clone().with_logs(&options(&["/a"], &[])).unwrap();
    listed.prepare_logs().unwrap();
    sim.remove_dir_all(Path::new("/a")).unwrap();
    // The list loads without that folder; an open that scans the log names the missing folder.
    let missing = crate::commit_log::SegmentList::load(&plain).unwrap_err().to_string();
    assert!(missing.contains("/a"), "{missing}");
}

#[test]
fn new_folders_and_the_list_survive_a_crash() {
    let sim = SimVfs::default();
    let plain = files(&sim);
    for folder in ["/", "/store", "/store/mqstore"] {
        plain.vfs.sync_dir(Path::new(folder)).unwrap();
    }
    plain.clone().with_logs(&options(&["/a/b/log"], &[])).unwrap().prepare_logs().unwrap();
    let after = sim.crash_with(&mut |_| false).unwrap();
    let later = StoreFiles::new(Arc::new(after), plain.clock.clone(), Path::new("/store"));
    assert_eq!(later.log_folders().unwrap().all(), [PathBuf::from("/a/b/log")]);
    assert!(crate::commit_log::SegmentList::load(&later).unwrap().segments().is_empty());
}
