//! Manifests that lie, and fetches on a full disk. The simulator in `tests/rust/sim` ends attempts and fetches at each of
//! their calls, and has targets that behave badly.

use std::path::Path;
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::progress::Progress;
use mqstore_io::target::HostileTarget;
use mqstore_io::{Access, ManualClock, SimVfs, Target, Vfs};
use serde_json::{Map, Value, json};

use crate::clean::clean;
use crate::fetch::{FetchedTo, fetch, published};
use crate::manifest::{Manifest, ResultFile};
use crate::publication::{Publication, Uploaded};

/// A manifest that an earlier version wrote, with letters that are not ASCII.
const EARLIER: &[u8] = include_bytes!("earlier_manifest.json");

fn entry(path: &str) -> ResultFile {
    ResultFile {
        path: path.to_owned(),
        object: format!("attempt-{}/0", "0".repeat(32)),
        bytes: 1,
        zeros: 0,
        sha256: "0".repeat(64),
    }
}

fn manifest(files: Vec<ResultFile>, folders: &[&str]) -> Manifest {
    Manifest {
        format: "store".to_owned(),
        attempt: format!("attempt-{}", "0".repeat(32)),
        identity: None,
        created_ms: 1,
        report: Map::new(),
        files,
        folders: folders.iter().map(|folder| (*folder).to_owned()).collect(),
        mapping: None,
    }
}

#[test]
fn a_manifest_of_an_earlier_version_is_read_and_written_again() {
    let found = Manifest::decode(EARLIER).unwrap();
    assert_eq!((found.files[0].path.as_str(), found.files[0].file_bytes()), ("a/b ü", 5));
    assert_eq!(found.report["seconds"], 0.25);
    assert_eq!(Manifest::decode(&found.encode()).unwrap(), found);
    let damaged =
        [(&b""[..], "incomplete"), (&EARLIER[..EARLIER.len() / 2], "incomplete"), (b"[]", "incomplete")];
    for (content, reason) in damaged {
        assert!(Manifest::decode(content).unwrap_err().to_string().contains(reason));
    }
    let changed = |from: &str, to: &str| String::from_utf8_lossy(EARLIER).replacen(from, to, 1).into_bytes();
    for (content, reason) in [
        (changed("\"bytes\": 3", "\"bytes\": 4"), "checksum"),
        (changed("\"version\": 1", "\"version\": 2"), "has the version 2"),
    ] {
        assert!(Manifest::decode(&content).unwrap_err().to_string().contains(reason));
    }
}

#[test]
fn a_manifest_names_only_files_of_its_directory() {
    let decoded = |manifest: Manifest| Manifest::decode(&manifest.encode());
    assert!(decoded(manifest(vec![entry("a/b"), entry("c")], &["d/e"])).is_ok());
    let lists: [&[&str]; 9] =
        [&["../a"], &["/a"], &["a/../b"], &[""], &["a//b"], &["a\0"], &["a/."], &["a", "a"], &["a", "a/b"]];
    for paths in lists {
        let files = paths.iter().map(|path| entry(path)).collect();
        assert!(decoded(manifest(files, &[])).is_err(), "{paths:?}");
    }
    for object in ["../x", "attempt-1/x", "attempt-00000000000000000000000000000000/../x", "x"] {
        assert!(
            decoded(manifest(vec![ResultFile { object: object.to_owned(), ..entry("a") }], &[])).is_err()
        );
    }
    for wrong in [
        ResultFile { bytes: 1 << 62, ..entry("a") },
        ResultFile { zeros: u64::MAX, ..entry("a") },
        ResultFile { sha256: "0".to_owned(), ..entry("a") },
    ] {
        assert!(decoded(manifest(vec![wrong], &[])).is_err());
    }
    for folders in [&[".."][..], &["a"], &["/x"], &["b", "b"], &["a/b"]] {
        assert!(decoded(manifest(vec![entry("a")], folders)).is_err(), "{folders:?}");
    }
}

/// A disk with the directory that is published.
fn disk() -> Arc<SimVfs> {
    let vfs = Arc::new(SimVfs::default());
    vfs.create_dir_all(Path::new("/data/sub/empty")).unwrap();
    for (path, content) in
        [("a", vec![7; 9000]), ("sub/b", [vec![8; 5], vec![0; 3000]].concat()), ("sub/c", Vec::new())]
    {
        let file = vfs.create_new(&Path::new("/data").join(path)).unwrap();
        file.write_all_at(&content, 0).unwrap();
        file.set_len(content.len() as u64).unwrap();
    }
    vfs
}

fn attempt(
    target: &Arc<HostileTarget>,
    vfs: &Arc<SimVfs>,
    identity: Option<&str>,
) -> Result<Manifest, StoreError> {
    let publication =
        Publication::new(Arc::clone(target) as _, Arc::clone(vfs) as _, "store", identity.map(str::to_owned));
    let done = publication.begin().and_then(|found| match found {
        Some(found) => Ok(found),
        None => publication.add_directory(Path::new("/data"), 1).and_then(|()| {
            let report = Map::from_iter([("records".to_owned(), json!(3))]);
            publication.commit(&ManualClock::new(5), report, Uploaded::default())
        }),
    });
    publication.abandon();
    done
}

fn fetched(target: &HostileTarget, vfs: &SimVfs, manifest: &Manifest) -> Result<usize, StoreError> {
    let partial = Path::new("/out.partial");
    vfs.create_dir_all(partial).unwrap();
    let to = FetchedTo {
        partial,
        home: Path::new("/out"),
        partial_mapping: Path::new("/out.partial.mapping"),
        mapping: Path::new("/out.mapping.jsonl"),
    };
    fetch(target, vfs, manifest, &to, 2, &mut |_: Progress| Ok(()))
}

fn is_fetched(vfs: &SimVfs) -> bool {
    ["a", "sub/b", "sub/c"].into_iter().all(|path| {
        let [home, out] = ["/data", "/out"].map(|root| vfs.read_file(&Path::new(root).join(path), 1 << 20));
        home.unwrap() == out.unwrap()
    }) && vfs.stat(Path::new("/out/sub/empty")).is_ok()
}

#[test]
fn a_directory_is_published_once_fetched_and_cleaned() {
    let (target, vfs) = (Arc::new(HostileTarget::new(1)), disk());
    assert!(matches!(published(&*target), Err(StoreError::ResultNotFound { .. })));
    let done = attempt(&target, &vfs, Some("call")).unwrap();
    assert_eq!(
        done.files.iter().map(|file| (file.bytes, file.zeros)).collect::<Vec<_>>(),
        [(9000, 0), (5, 3000), (0, 0)]
    );
    assert_eq!(done.folders, ["sub/empty"]);
    assert_eq!(done.report["records"], Value::from(3));
    assert_eq!(attempt(&target, &vfs, Some("call")).unwrap(), done);
    assert!(matches!(attempt(&target, &vfs, None), Err(StoreError::ResultExists { .. })));
    assert_eq!(published(&*target).unwrap(), done);
    target.put("_mqstore/attempt-x/garbage", b"x").unwrap();
    let cleaned = clean(&*target, &*vfs, &ManualClock::new(5), 0, false).unwrap();
    assert_eq!((cleaned.objects.len(), cleaned.kept), (1, 0));
    assert_eq!(target.list("").unwrap().len(), 4);
    assert_eq!(fetched(&target, &vfs, &done).unwrap(), 0);
    assert!(is_fetched(&vfs));
}

#[test]
fn a_full_disk_keeps_what_is_complete() {
    let (target, vfs) = (Arc::new(HostileTarget::new(1)), disk());
    let done = attempt(&target, &vfs, None).unwrap();
    vfs.set_space(Some(6 * 4096));
    let full = fetched(&target, &vfs, &done).unwrap_err();
    assert!(
        matches!(&full, StoreError::DiskFull { path, .. } if path == Path::new("/out.partial")),
        "{full:?}"
    );
    vfs.set_space(None);
    let left = vfs.create_new(Path::new("/out.partial/left over")).unwrap();
    left.write_all_at(b"x", 0).unwrap();
    fetched(&target, &vfs, &done).unwrap();
    assert!(is_fetched(&vfs));
    assert!(vfs.stat(Path::new("/out/left over")).is_err());
}

#[test]
fn an_interrupted_fetch_keeps_complete_files_only() {
    let (target, vfs) = (Arc::new(HostileTarget::new(1)), disk());
    let done = attempt(&target, &vfs, None).unwrap();
    fetched(&target, &vfs, &done).unwrap();
    vfs.rename(Path::new("/out"), Path::new("/out.partial")).unwrap();
    vfs.open(Path::new("/out.partial/a"), Access::ReadWrite).unwrap().write_all_at(b"damage", 3).unwrap();
    assert_eq!(fetched(&target, &vfs, &done).unwrap(), 2);
    assert!(is_fetched(&vfs));
}
