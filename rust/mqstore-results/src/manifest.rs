//! The manifest of a result: the list of its objects.
//!
//! ```text
//! {"kind": "mqstore result", "version": 2, "format": "store", "attempt": "attempt-<32 hex digits>", "identity": null,
//!  "created_ms": 1, "report": {}, "files": [{"path": "a/b", "object": "_mqstore/<attempt>/000000-b", "bytes": 1,
//!  "zeros": 0, "sha256": "<64 hex digits>"}], "folders": [], "mapping": null, "checksum": "<64 hex digits>"}
//! ```
//!
//! The checksum is the SHA-256 of all other members as JSON in ASCII, with sorted names, and a space after each comma and
//! colon. Nothing of a manifest is trusted: paths stay inside the directory that a fetch assembles. In version 1, paths of
//! objects are below `_mqstore/`.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;

use mqstore_io::target::{hex, is_hex};
use mqstore_io::{RemoteCause, TargetError, TargetObject};
use serde::{Deserialize, Serialize};
use serde_json::ser::Formatter;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::objects::{ATTEMPT, FOLDER, NAME, attempt_of, attempts, is_own};

/// The format of results whose objects no other program reads.
pub(crate) const STORE: &str = "store";

const VERSION: u64 = 2;
const KIND: &str = "mqstore result";

/// Maximum bytes of a manifest.
const MOST_BYTES: u64 = 256 << 20;

/// A larger number is no length.
const MOST_LENGTH: u64 = 1 << 62;

/// A file of a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResultFile {
    /// Path in the directory that a fetch assembles.
    pub path: String,
    /// Path of the object below the target.
    pub object: String,
    /// Length of the object.
    pub bytes: u64,
    /// Number of zero bytes that follow these bytes in the file.
    pub zeros: u64,
    /// Digest of the object.
    pub sha256: String,
}

impl ResultFile {
    /// Returns the length of the file.
    pub fn file_bytes(&self) -> u64 {
        self.bytes + self.zeros
    }
}

/// A published result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// `jsonl`, `parquet`, `arrow` or `store`.
    pub format: String,
    /// The folder of the attempt that published it.
    pub attempt: String,
    /// Digest of the call and of its input, if a repeated call gives the same result.
    #[serde(deserialize_with = "Option::deserialize")]
    pub identity: Option<String>,
    /// When it was published, in epoch milliseconds.
    pub created_ms: i64,
    /// The report of the call.
    pub report: Map<String, Value>,
    /// The files of the directory.
    pub files: Vec<ResultFile>,
    /// Folders without files.
    pub folders: Vec<String>,
    /// The file with old and new positions, which is next to the directory.
    #[serde(deserialize_with = "Option::deserialize")]
    pub mapping: Option<ResultFile>,
}

/// Why a manifest cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct WrongManifest(String);

fn wrong(reason: impl Into<String>) -> WrongManifest {
    WrongManifest(reason.into())
}

impl Manifest {
    /// Returns the files that have objects.
    pub fn objects(&self) -> impl Iterator<Item = &ResultFile> {
        self.files.iter().chain(&self.mapping)
    }

    /// Returns the content of the object.
    pub fn encode(&self) -> Vec<u8> {
        let mut values = Map::from_iter([("kind".into(), KIND.into()), ("version".into(), VERSION.into())]);
        // Names and numbers are always JSON.
        if let Ok(Value::Object(members)) = serde_json::to_value(self) {
            values.extend(members);
        }
        let checksum = checksum(values.clone());
        values.insert("checksum".into(), checksum.into());
        let mut content = serde_json::to_vec_pretty(&values).unwrap_or_default();
        content.push(b'\n');
        content
    }

    /// Returns the manifest in an object.
    ///
    /// # Errors
    /// The content is damaged, or of another version.
    pub fn decode(content: &[u8]) -> Result<Self, WrongManifest> {
        let Some(mut values) = serde_json::from_slice::<Map<String, Value>>(content)
            .ok()
            .filter(|values| values.get("kind").and_then(Value::as_str) == Some(KIND))
        else {
            return Err(wrong("it is no manifest of mqstore, or incomplete"));
        };
        let version = values.get("version").cloned().unwrap_or_default();
        if version != VERSION && version != 1 {
            return Err(wrong(format!(
                "it has the version {version}, and this mqstore reads 1 and {VERSION}"
            )));
        }
        let checked = values.remove("checksum");
        if checked.as_ref().and_then(Value::as_str) != Some(&checksum(values.clone())) {
            return Err(wrong("its content does not match its checksum"));
        }
        values.retain(|name, _| name != "kind" && name != "version");
        let mut found: Self = serde_json::from_value(Value::Object(values))
            .map_err(|_| wrong("a member is missing, unknown or of a wrong type"))?;
        if version == 1 {
            for file in found.files.iter_mut().chain(&mut found.mapping) {
                file.object = format!("{FOLDER}/{}", file.object);
            }
        }
        found.check()?;
        Ok(found)
    }

    /// Refuses paths outside the directory, and numbers that are no lengths.
    fn check(&self) -> Result<(), WrongManifest> {
        for one in self.objects() {
            let lengths = [one.bytes, one.zeros].iter().all(|length| *length < MOST_LENGTH);
            let is_right =
                is_path(&one.path) && attempt_of(&one.object).is_some() && is_hex(&one.sha256, 64) && lengths;
            if !is_right {
                return Err(wrong(format!("the entry {:?} is wrong", one.path)));
            }
        }
        if !self.folders.iter().all(|folder| is_path(folder)) {
            return Err(wrong("a folder has a wrong path"));
        }
        let files: BTreeSet<&str> = self.files.iter().map(|file| file.path.as_str()).collect();
        let folders: BTreeSet<&str> = self.folders.iter().map(String::as_str).collect();
        if files.len() + folders.len() != self.files.len() + self.folders.len()
            || !files.is_disjoint(&folders)
        {
            return Err(wrong("a path is in it twice"));
        }
        if files.iter().chain(&folders).any(|path| parents(path).any(|parent| files.contains(parent))) {
            return Err(wrong("a path is both a file and a folder"));
        }
        Ok(())
    }

    /// Makes sure that all objects are there in their full length; `objects` is a list of the target.
    ///
    /// # Errors
    /// An object is missing or has another length; the cause is `Damaged`.
    pub fn check_objects(&self, objects: &[TargetObject]) -> Result<(), TargetError> {
        let lengths: HashMap<&str, u64> = objects.iter().map(|one| (one.path.as_str(), one.bytes)).collect();
        for file in self.objects() {
            let path = &file.object;
            let reason = match lengths.get(path.as_str()) {
                Some(bytes) if *bytes == file.bytes => continue,
                Some(bytes) => format!("the manifest says {} bytes, and the object has {bytes}", file.bytes),
                None => "the manifest names this object, and it is missing".to_owned(),
            };
            return Err(TargetError::new(RemoteCause::Damaged, path, reason));
        }
        Ok(())
    }
}

/// Returns the objects of attempts that the manifest does not name.
pub(crate) fn unused(objects: Vec<TargetObject>, manifest: Option<&Manifest>) -> Vec<TargetObject> {
    let mut attempts = attempts(&objects);
    attempts.extend(manifest.and_then(|one| one.attempt.strip_prefix(ATTEMPT)).map(str::to_owned));
    let files = manifest.into_iter().flat_map(Manifest::objects);
    let mut used: HashSet<&str> = files.map(|file| file.object.as_str()).collect();
    used.insert(NAME);
    objects
        .into_iter()
        .filter(|one| !used.contains(one.path.as_str()) && is_own(&one.path, &attempts))
        .collect()
}

/// Returns the manifest in the object of a target.
///
/// # Errors
/// The manifest is damaged; the cause is `Damaged`.
pub fn decoded(content: &[u8]) -> Result<Manifest, TargetError> {
    check_length(content.len() as u64)?;
    Manifest::decode(content).map_err(|error| {
        let reason = format!("the manifest cannot be used: {error}; write the result to another URL");
        TargetError::new(RemoteCause::Damaged, NAME, reason)
    })
}

/// Makes sure that a manifest of this length can be read.
///
/// # Errors
/// It is too long; the cause is `Damaged`.
pub(crate) fn check_length(bytes: u64) -> Result<(), TargetError> {
    if bytes <= MOST_BYTES {
        return Ok(());
    }
    let reason = format!("the manifest cannot be used: it has {bytes} bytes");
    Err(TargetError::new(RemoteCause::Damaged, NAME, reason))
}

/// Returns the digest of JSON, whatever the order of its members.
fn checksum(values: Map<String, Value>) -> String {
    let mut sorted = Value::Object(values);
    sorted.sort_all_objects();
    let mut text = Vec::new();
    // A write to memory does not fail.
    let _ = sorted.serialize(&mut serde_json::Serializer::with_formatter(&mut text, AsciiFormatter));
    hex(&Sha256::digest(&text))
}

/// JSON in ASCII, with a space after each comma and colon.
struct AsciiFormatter;

impl Formatter for AsciiFormatter {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        to.write_all(b": ")
    }

    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, to: &mut W, fragment: &str) -> io::Result<()> {
        for one in fragment.chars() {
            if matches!(one, ' '..='~') {
                to.write_all(&[one as u8])?;
                continue;
            }
            for unit in one.encode_utf16(&mut [0; 2]) {
                write!(to, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}

/// Whether a path is inside the directory.
fn is_path(path: &str) -> bool {
    !path.contains('\0') && !path.split('/').any(|part| ["", ".", ".."].contains(&part))
}

fn parents(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').filter_map(|(end, _)| path.get(..end))
}
