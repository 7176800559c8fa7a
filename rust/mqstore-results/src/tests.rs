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
use crate::objects::{attempt_of, visible_object};
use crate::publication::{Publication, Uploaded};
use crate::upload::{must_be_free, upload_object};

/// A manifest that an earlier version wrote, with letters that are not ASCII.
const EARLIER: &[u8] = include_bytes!("earlier_manifest.json");

fn entry(path: &str) -> ResultFile {
    ResultFile {
        path: path.to_owned(),
        object: format!("_mqstore/attempt-{}/0", "0".repeat(32)),
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
    assert_eq!(found.files[0].object, format!("_mqstore/attempt-{}/000000-b", "0".repeat(32)));
    assert_eq!(Manifest::decode(&found.encode()).unwrap(), found);
    let damaged =
        [(&b""[..], "incomplete"), (&EARLIER[..EARLIER.len() / 2], "incomplete"), (b"[]", "incomplete")];
    for (content, reason) in damaged {
        assert!(Manifest::decode(content).unwrap_err().to_string().contains(reason));
    }
    let changed = |from: &str, to: &str| String::from_utf8_lossy(EARLIER).replacen(from, to, 1).into_bytes();
    for (content, reason) in [
        (changed("\"bytes\": 3", "\"bytes\": 4"), "checksum"),
        (changed("\"version\": 1", "\"version\": 3"), "has the version 3"),
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
    let named = |object: String| decoded(manifest(vec![ResultFile { object, ..entry("a") }], &[]));
    let id = "0".repeat(32);
    for object in
        ["x-ID.parquet", "day=1/x-ID.parquet", "topic=%25a/tags=\u{fc}/x-ID", "_mqstore/attempt-ID/x"]
    {
        assert!(named(object.replace("ID", &id)).is_ok(), "{object}");
    }
    for object in [
        "../x-ID",
        "x",
        "x-ID/x",
        "day/x-ID",
        "=1/x-ID",
        "day=/x-ID",
        "day=1//x-ID",
        "day=1/../x-ID",
        "day=a b/x-ID",
        "day=1/x-ID.a/b",
        "/x-ID",
        "attempt-ID/x",
        "_mqstore/attempt-1/x",
        "_mqstore/attempt-ID/../x",
        "_mqstore/attempt-ID/",
        "_mqstore/x-ID",
        "_mqstore/day=1/x-ID",
        "_mqstore/attempt-ID/day=1/x-ID",
    ] {
        assert!(named(object.replace("ID", &id)).is_err(), "{object}");
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
fn a_visible_object_has_its_attempt_in_its_name() {
    let id = "0123456789abcdef".repeat(2);
    let attempt = format!("attempt-{id}");
    for (path, object) in [
        ("part-00000.parquet", "part-00000-ID.parquet"),
        ("topic=a/day=1/part-00000.parquet", "topic=a/day=1/part-00000-ID.parquet"),
        ("part", "part-ID"),
    ] {
        let object = object.replace("ID", &id);
        assert_eq!(visible_object(&attempt, path), object);
        assert_eq!(attempt_of(&object), Some(&*id));
    }
}

/// Begins an attempt of parts, and uploads one of them.
fn begin_parts(
    target: &Arc<HostileTarget>,
    vfs: &Arc<SimVfs>,
    path: &str,
) -> Result<Publication, StoreError> {
    let publication = Publication::new(Arc::clone(target) as _, Arc::clone(vfs) as _, "parquet", None);
    assert_eq!(publication.begin()?, None);
    publication.add(path, Path::new("/data/a"), false)?;
    Ok(publication)
}

fn commit(publication: &Publication) -> Result<Manifest, StoreError> {
    publication.commit(&ManualClock::new(5), Map::new(), Uploaded::default())
}

fn paths(target: &HostileTarget) -> Vec<String> {
    target.list("").unwrap().into_iter().map(|one| one.path).collect()
}

#[test]
fn a_commit_removes_the_visible_objects_of_other_attempts_only() {
    let (target, vfs) = (Arc::new(HostileTarget::new(1)), disk());
    let killed = begin_parts(&target, &vfs, "day=1/part-00000.parquet").unwrap();
    let slow = begin_parts(&target, &vfs, "part-00000.parquet").unwrap();
    let first = begin_parts(&target, &vfs, "topic=a/part-00000.parquet").unwrap();
    // A copy of a task of this attempt, and files of others that came after the begin: one looks like ours.
    let copy = visible_object(first.attempt(), "part-00000-copy.parquet");
    let foreign = visible_object(&format!("attempt-{}", "0".repeat(32)), "day=1/part-00000.parquet");
    for path in [&copy, &foreign, "notes.txt"] {
        target.put(path, b"x").unwrap();
    }
    let done = commit(&first).unwrap();
    let hidden = |attempt: &Publication| format!("_mqstore/{}/probe", attempt.attempt());
    let mut kept = vec![hidden(&killed), hidden(&slow), "_mqstore/manifest.json".to_owned()];
    kept.sort();
    kept.extend([foreign.clone(), "notes.txt".to_owned(), done.files[0].object.clone()]);
    assert_eq!(paths(&target), kept);
    // The slow attempt can still upload, and then finds the result.
    slow.add("part-00001.parquet", Path::new("/data/a"), false).unwrap();
    assert!(matches!(commit(&slow), Err(StoreError::ResultExists { .. })));
    slow.abandon();
    first.abandon();
    clean(&*target, &*vfs, &ManualClock::new(5), 0, false).unwrap();
    let manifest = "_mqstore/manifest.json".to_owned();
    assert_eq!(paths(&target), [manifest, foreign, "notes.txt".to_owned(), done.files[0].object.clone()]);
    assert_eq!(published(&*target).unwrap(), done);
}

#[test]
fn an_attempt_begins_next_to_objects_of_other_attempts_but_not_of_others() {
    let (target, vfs) = (Arc::new(HostileTarget::new(1)), disk());
    let killed = begin_parts(&target, &vfs, "day=1/part-00000.parquet").unwrap();
    begin_parts(&target, &vfs, "part-00000.parquet").unwrap().abandon();
    assert_eq!(paths(&target).len(), 2);
    // The folder of an attempt is what shows that a visible object is its own.
    target.delete(&[format!("_mqstore/{}/probe", killed.attempt())]).unwrap();
    let refused = begin_parts(&target, &vfs, "part-00000.parquet").unwrap_err();
    assert!(refused.to_string().contains("such as 'day=1/part-00000-"), "{refused}");
    assert!(clean(&*target, &*vfs, &ManualClock::new(5), 0, false).unwrap().objects.is_empty());
    assert_eq!(paths(&target).len(), 1);
}

#[test]
fn an_attempt_whose_objects_can_be_late_keeps_its_folder() {
    let (target, vfs) = (Arc::new(HostileTarget::new(1)), disk());
    let shared = begin_parts(&target, &vfs, "part-00000.parquet").unwrap();
    let late = visible_object(shared.share(), "part-00001.parquet");
    shared.abandon();
    target.put(&late, b"x").unwrap();
    assert_eq!(clean(&*target, &*vfs, &ManualClock::new(5), 0, false).unwrap().objects.len(), 2);
    assert_eq!(paths(&target), Vec::<String>::new());
}

#[test]
fn one_object_is_replaced_only_on_request() {
    let (target, vfs) = (HostileTarget::new(1), disk());
    let clock = ManualClock::new(5);
    let write = |file: &str, overwrite| {
        upload_object(&target, &*vfs, &clock, "x.parquet", &Path::new("/data").join(file), overwrite)
    };
    must_be_free(&target, "x.parquet").unwrap();
    write("sub/c", false).unwrap();
    assert!(matches!(write("a", false), Err(StoreError::ResultExists { .. })));
    assert!(matches!(must_be_free(&target, "x.parquet"), Err(StoreError::ResultExists { .. })));
    write("a", true).unwrap();
    assert_eq!(target.get("x.parquet").unwrap().unwrap().len(), 9000);
    let refused = must_be_free(&target, "x.parquet").unwrap_err();
    assert!(refused.to_string().contains("overwrite=True"), "{refused}");
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
