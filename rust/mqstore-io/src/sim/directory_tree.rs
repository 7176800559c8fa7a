//! Names: folders, their current content, and their content after a crash.
//!
//! A folder has two sets of names: as the process sees them, and as the disk has them. A change is visible to the
//! process immediately. It waits in an ordered list until a sync of the folder applies it to the disk. A change can
//! affect two names (rename, exchange). [`PendingChange`] says which parts of it the disk may have.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use rustix::io::Errno;

use super::file_node::FileNode;

/// The file or folder of a name.
#[derive(Clone, Debug)]
pub(super) enum Node {
    File(Arc<FileNode>),
    Dir(Arc<DirNode>),
}

impl Node {
    pub(super) fn id(&self) -> u64 {
        match self {
            Self::File(file) => file.id,
            Self::Dir(dir) => dir.id,
        }
    }

    /// Returns whether the node is `place` or a folder above it.
    fn holds(&self, place: &DirNode) -> bool {
        match self {
            Self::File(_) => false,
            Self::Dir(dir) => dir.id == place.id || dir.live.lock().values().any(|node| node.holds(place)),
        }
    }
}

pub(super) type DirectoryNames = BTreeMap<OsString, Node>;

/// A folder.
#[derive(Debug)]
pub(super) struct DirNode {
    pub(super) id: u64,
    pub(super) live: Mutex<DirectoryNames>,
    pub(super) durable: Mutex<DirectoryNames>,
}

impl DirNode {
    pub(super) fn new(id: u64) -> Arc<Self> {
        Arc::new(Self { id, live: Mutex::default(), durable: Mutex::default() })
    }

    pub(super) fn get(&self, name: &OsStr) -> Option<Node> {
        self.live.lock().get(name).cloned()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.live.lock().is_empty()
    }

    /// Returns all regular files in the folder and below it, each once.
    pub(super) fn files(&self) -> Vec<Arc<FileNode>> {
        let mut files = Vec::new();
        self.collect(&mut files, &mut BTreeSet::new());
        files
    }

    fn collect(&self, files: &mut Vec<Arc<FileNode>>, seen: &mut BTreeSet<u64>) {
        for node in self.live.lock().values() {
            match node {
                Node::File(file) if seen.insert(file.id) => files.push(Arc::clone(file)),
                Node::File(_) => {}
                Node::Dir(dir) => dir.collect(files, seen),
            }
        }
    }
}

/// A change of one name: a new file or folder, or none.
#[derive(Clone, Debug)]
pub(super) struct Edit {
    pub(super) dir: Arc<DirNode>,
    pub(super) name: OsString,
    pub(super) to: Option<Node>,
}

impl Edit {
    pub(super) fn set(place: &NodePlace, node: Node) -> Self {
        Self { dir: Arc::clone(&place.dir), name: place.name.clone(), to: Some(node) }
    }

    pub(super) fn clear(place: &NodePlace) -> Self {
        Self { dir: Arc::clone(&place.dir), name: place.name.clone(), to: None }
    }

    pub(super) fn apply(&self, names: &mut DirectoryNames) {
        match &self.to {
            Some(node) => names.insert(self.name.clone(), node.clone()),
            None => names.remove(&self.name),
        };
    }
}

/// A change of names that is not durable yet.
///
/// With `together`, the disk has all of its edits or none. Otherwise it can have any prefix of them: after a rename
/// into another folder both names may exist, but never none.
#[derive(Clone, Debug)]
pub(super) struct PendingChange {
    pub(super) edits: Vec<Edit>,
    pub(super) together: bool,
}

impl PendingChange {
    /// Returns the number of its possible states on disk, including none and all of it.
    pub(super) fn forms(&self) -> u32 {
        if self.together { 2 } else { self.edits.len() as u32 + 1 }
    }

    /// Returns the number of its edits that a sync of folder `dir` makes durable.
    fn reach(&self, dir: u64) -> usize {
        let last = self.edits.iter().rposition(|edit| edit.dir.id == dir);
        match last {
            Some(_) if self.together => self.edits.len(),
            Some(last) => last + 1,
            None => 0,
        }
    }
}

/// The names of the whole file system.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) root: Arc<DirNode>,
    pub(super) pending: Vec<PendingChange>,
    pub(super) next_id: u64,
}

/// A name in an existing folder, in use or free.
#[derive(Debug)]
pub(super) struct NodePlace {
    pub(super) dir: Arc<DirNode>,
    pub(super) name: OsString,
}

impl NodePlace {
    pub(super) fn node(&self) -> Option<Node> {
        self.dir.get(&self.name)
    }
}

impl Tree {
    pub(super) fn new() -> Self {
        Self { root: DirNode::new(1), pending: Vec::new(), next_id: 2 }
    }

    pub(super) fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// Returns the file or folder at `path`. Relative paths start at the root.
    pub(super) fn resolve(&self, path: &Path) -> io::Result<Node> {
        let mut trail = vec![Arc::clone(&self.root)];
        let mut node = Node::Dir(Arc::clone(&self.root));
        for component in path.components() {
            let Node::Dir(dir) = &node else { return Err(Errno::NOTDIR.into()) };
            node = match component {
                Component::Normal(name) => dir.get(name).ok_or(Errno::NOENT)?,
                Component::ParentDir => {
                    trail.pop();
                    trail.pop().map_or_else(|| Node::Dir(Arc::clone(&self.root)), Node::Dir)
                }
                Component::CurDir => continue,
                Component::RootDir | Component::Prefix(_) => Node::Dir(Arc::clone(&self.root)),
            };
            if let Node::Dir(dir) = &node {
                trail.push(Arc::clone(dir));
            }
        }
        Ok(node)
    }

    pub(super) fn dir(&self, path: &Path) -> io::Result<Arc<DirNode>> {
        match self.resolve(path)? {
            Node::Dir(dir) => Ok(dir),
            Node::File(_) => Err(Errno::NOTDIR.into()),
        }
    }

    pub(super) fn file(&self, path: &Path) -> io::Result<Arc<FileNode>> {
        match self.resolve(path)? {
            Node::File(file) => Ok(file),
            Node::Dir(_) => Err(Errno::ISDIR.into()),
        }
    }

    /// Returns the place of `path`. Its folder must exist.
    pub(super) fn place(&self, path: &Path) -> io::Result<NodePlace> {
        let name = path.file_name().ok_or(Errno::INVAL)?.to_os_string();
        let parent = path.parent().unwrap_or(Path::new(""));
        Ok(NodePlace { dir: self.dir(parent)?, name })
    }

    /// Like [`Tree::place`], for a name that must be free.
    pub(super) fn free_place(&self, path: &Path) -> io::Result<NodePlace> {
        let place = self.place(path)?;
        if place.node().is_some() { Err(Errno::EXIST.into()) } else { Ok(place) }
    }

    /// Changes names for the process now, and queues the change for the disk.
    pub(super) fn change(&mut self, edits: Vec<Edit>, together: bool) {
        for edit in &edits {
            let mut names = edit.dir.live.lock();
            if let Some(Node::File(old)) = names.get(&edit.name) {
                old.links.fetch_sub(1, Ordering::Relaxed);
            }
            if let Some(Node::File(new)) = &edit.to {
                new.links.fetch_add(1, Ordering::Relaxed);
            }
            edit.apply(&mut names);
        }
        self.pending.push(PendingChange { edits, together });
    }

    /// Returns all regular files that have a name now, or may have one after a crash, each once.
    pub(super) fn all_files(&self) -> Vec<Arc<FileNode>> {
        let mut found = Reachable::default();
        found.add(&Node::Dir(Arc::clone(&self.root)));
        for edit in self.pending.iter().flat_map(|pending| &pending.edits) {
            found.add(&Node::Dir(Arc::clone(&edit.dir)));
            if let Some(node) = &edit.to {
                found.add(node);
            }
        }
        found.files.into_values().collect()
    }

    /// Returns a hash of all current names and bytes.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hash = Fingerprint(0x51_7C_C1_B7_27_22_0A_95);
        hash.folder(&self.root);
        hash.0
    }

    /// Makes the names of a folder durable.
    pub(super) fn sync(&mut self, dir: &DirNode) {
        for pending in &mut self.pending {
            let reach = pending.reach(dir.id);
            for edit in pending.edits.drain(..reach) {
                edit.apply(&mut edit.dir.durable.lock());
            }
        }
        self.pending.retain(|pending| !pending.edits.is_empty());
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path, replace: bool) -> io::Result<()> {
        let source = self.place(from)?;
        let target = self.place(to)?;
        let node = source.node().ok_or(Errno::NOENT)?;
        match target.node() {
            Some(_) if !replace => return Err(Errno::EXIST.into()),
            _ if node.holds(&target.dir) => return Err(Errno::INVAL.into()),
            Some(old) if old.holds(&source.dir) => return Err(Errno::NOTEMPTY.into()),
            Some(old) if old.id() == node.id() => return Ok(()),
            Some(old) => check_replace(&node, &old)?,
            None => {}
        }
        // A folder always has exactly one name. A file may have both.
        let together = matches!(node, Node::Dir(_)) || source.dir.id == target.dir.id;
        self.change(vec![Edit::set(&target, node), Edit::clear(&source)], together);
        Ok(())
    }

    pub(super) fn exchange(&mut self, a: &Path, b: &Path) -> io::Result<()> {
        let (left, right) = (self.place(a)?, self.place(b)?);
        let (first, second) = (left.node().ok_or(Errno::NOENT)?, right.node().ok_or(Errno::NOENT)?);
        if first.holds(&right.dir) || second.holds(&left.dir) {
            return Err(Errno::INVAL.into());
        }
        self.change(vec![Edit::set(&left, second), Edit::set(&right, first)], true);
        Ok(())
    }

    /// Removes the names below a folder, deepest first, each as a separate change.
    pub(super) fn clear_dir(&mut self, dir: &Arc<DirNode>) {
        let names: Vec<(OsString, Node)> =
            dir.live.lock().iter().map(|(name, node)| (name.clone(), node.clone())).collect();
        for (name, node) in names {
            if let Node::Dir(below) = &node {
                self.clear_dir(below);
            }
            self.change(vec![Edit { dir: Arc::clone(dir), name, to: None }], true);
        }
    }
}

/// Combines words into a hash (the multiplication and rotation of Firefox's hash).
struct Fingerprint(u64);

impl Fingerprint {
    fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517C_C1B7_2722_0A95);
        // Mixes the changes of one word into the low half too.
        self.0 ^= self.0 >> 29;
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let word = chunk.iter().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
            self.add(word);
        }
    }

    fn folder(&mut self, dir: &DirNode) {
        for (name, node) in dir.live.lock().iter() {
            self.bytes(name.as_encoded_bytes());
            match node {
                Node::Dir(below) => {
                    self.add(1);
                    self.folder(below);
                    self.add(2);
                }
                Node::File(file) => {
                    let data = file.data.lock();
                    self.add(data.len);
                    for (index, page) in data.used_pages() {
                        self.add(index as u64);
                        self.bytes(&page);
                    }
                }
            }
        }
    }
}

/// Files by their inodes, and the visited folders.
#[derive(Default)]
struct Reachable {
    files: BTreeMap<u64, Arc<FileNode>>,
    dirs: BTreeSet<u64>,
}

impl Reachable {
    fn add(&mut self, node: &Node) {
        match node {
            Node::File(file) => {
                self.files.entry(file.id).or_insert_with(|| Arc::clone(file));
            }
            Node::Dir(dir) if self.dirs.insert(dir.id) => {
                for names in [&dir.live, &dir.durable] {
                    let nodes: Vec<Node> = names.lock().values().cloned().collect();
                    for node in &nodes {
                        self.add(node);
                    }
                }
            }
            Node::Dir(_) => {}
        }
    }
}

fn check_replace(node: &Node, old: &Node) -> io::Result<()> {
    match (node, old) {
        (Node::File(_), Node::File(_)) => Ok(()),
        (Node::File(_), Node::Dir(_)) => Err(Errno::ISDIR.into()),
        (Node::Dir(_), Node::File(_)) => Err(Errno::NOTDIR.into()),
        (Node::Dir(_), Node::Dir(old)) if old.is_empty() => Ok(()),
        (Node::Dir(_), Node::Dir(_)) => Err(Errno::NOTEMPTY.into()),
    }
}
