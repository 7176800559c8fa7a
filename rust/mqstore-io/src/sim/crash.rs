//! Crashes: the process dies, or the power fails.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::directory_tree::{DirNode, DirectoryNames, Edit, Node, PendingChange, Tree};
use super::file_content::{PAGE, PagePart, SECTOR, sector_forms};
use super::file_node::FileNode;
use super::rng::Rng;
use super::shared_state::DiskState;

/// A part of the disk that a power loss may leave in its old or its new form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CrashChoice {
    /// The length of file `inode`.
    Length {
        /// The file.
        inode: u64,
    },
    /// The page of file `inode` that starts at `offset`; with torn sectors on, the sector.
    Bytes {
        /// The file.
        inode: u64,
        /// The start of the page or sector.
        offset: u64,
    },
    /// Change number `change`, in the order of the calls, of the names that no sync covers. A rename into another
    /// folder has three forms: no change, both names, only the new name.
    Name {
        /// Its number, counted from 0.
        change: usize,
    },
}

/// A part of the disk that can have several forms at a power loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The part.
    pub what: CrashChoice,
    /// Number of possible forms. Form 0 is the synced one, the last form is the current one.
    pub forms: u32,
}

/// Chooses the form of each part on the disk, given the number of its forms.
pub(super) type ChoiceFn<'a> = &'a mut dyn FnMut(CrashChoice, u32) -> u32;

type Files = BTreeMap<u64, Arc<FileNode>>;

impl DiskState {
    /// Copies everything, with the same choices, but without handles, faults and history. With `locks`, the copy keeps
    /// the locks of the living process.
    pub(super) fn fork(&self, locks: bool) -> io::Result<Self> {
        let mut copy = Copier { locks, ..Copier::default() };
        let root = copy.dir(&self.tree.root)?;
        let mut pending = Vec::new();
        for change in &self.tree.pending {
            let mut edits = Vec::new();
            for edit in &change.edits {
                let to = edit.to.as_ref().map(|node| copy.node(node)).transpose()?;
                edits.push(Edit { dir: copy.dir(&edit.dir)?, name: edit.name.clone(), to });
            }
            pending.push(PendingChange { edits, together: change.together });
        }
        let tree = Tree { root, pending, next_id: self.tree.next_id };
        let mut state = Self::with_tree(self.options.clone(), tree, self.rng.clone());
        state.boot = self.boot;
        state.process = self.process + 1;
        state.last_write = self.last_write;
        Ok(state)
    }

    /// Returns one possible content of the disk, as a file system in which everything is durable.
    pub(super) fn crash(&self, rng: Rng, torn: bool, choose: ChoiceFn<'_>) -> io::Result<Self> {
        let mut disk = DiskNames::default();
        for (change, pending) in self.tree.pending.iter().enumerate() {
            disk.apply(pending, choose(CrashChoice::Name { change }, pending.forms()));
        }
        let mut tree = Tree::new();
        tree.next_id = self.tree.next_id;
        let mut seen = BTreeSet::new();
        let mut files = Files::new();
        let root = Arc::clone(&self.tree.root);
        tree.root = disk.settle(&root, &mut seen, &mut |node| {
            if let Some(done) = files.get(&node.id) {
                return Ok(Arc::clone(done));
            }
            let mut data =
                node.data.lock().crash(torn, &mut |part, forms| choose(part.of(node.id), forms))?;
            data.keep_versions(self.options.versions);
            let file = FileNode::new(node.id, data);
            files.insert(node.id, Arc::clone(&file));
            Ok(file)
        })?;
        let mut state = Self::with_tree(self.options.clone(), tree, rng);
        state.boot = self.boot + 1;
        state.process = self.process + 1;
        Ok(state)
    }

    /// Returns all parts with several possible forms: changes of names first, then the content of files.
    pub(super) fn choices(&self, torn: bool) -> Vec<Choice> {
        let names = self.tree.pending.iter().enumerate();
        let mut choices: Vec<Choice> = names
            .map(|(change, pending)| Choice { what: CrashChoice::Name { change }, forms: pending.forms() })
            .collect();
        for file in self.tree.all_files() {
            let data = file.data.lock();
            if data.len != data.disk.len {
                choices.push(Choice { what: CrashChoice::Length { inode: file.id }, forms: 2 });
            }
            for index in data.open_pages() {
                let forms = data.forms(index);
                let mut add = |offset: usize, forms: usize| {
                    let what = CrashChoice::Bytes { inode: file.id, offset: offset as u64 };
                    choices.extend((forms > 1).then_some(Choice { what, forms: forms as u32 }));
                };
                if torn {
                    for number in 0..PAGE / SECTOR {
                        add(index * PAGE + number * SECTOR, sector_forms(&forms, number).len());
                    }
                } else {
                    add(index * PAGE, forms.len());
                }
            }
        }
        choices
    }
}

impl PagePart {
    fn of(self, inode: u64) -> CrashChoice {
        match self {
            Self::Length => CrashChoice::Length { inode },
            Self::Bytes(offset) => CrashChoice::Bytes { inode, offset },
        }
    }
}

/// Copies a tree; a file or folder with several names stays one.
#[derive(Default)]
struct Copier {
    /// Whether locked files stay locked.
    locks: bool,
    files: Files,
    dirs: BTreeMap<u64, Arc<DirNode>>,
}

impl Copier {
    fn node(&mut self, node: &Node) -> io::Result<Node> {
        Ok(match node {
            Node::File(file) => Node::File(self.file(file)?),
            Node::Dir(dir) => Node::Dir(self.dir(dir)?),
        })
    }

    fn file(&mut self, file: &Arc<FileNode>) -> io::Result<Arc<FileNode>> {
        if let Some(done) = self.files.get(&file.id) {
            return Ok(Arc::clone(done));
        }
        let copy = FileNode::new(file.id, file.data.lock().fork()?);
        copy.locked.store(self.locks && file.locked.load(Ordering::Acquire), Ordering::Release);
        copy.links.store(file.links.load(Ordering::Relaxed), Ordering::Relaxed);
        self.files.insert(file.id, Arc::clone(&copy));
        Ok(copy)
    }

    fn dir(&mut self, dir: &Arc<DirNode>) -> io::Result<Arc<DirNode>> {
        if let Some(done) = self.dirs.get(&dir.id) {
            return Ok(Arc::clone(done));
        }
        let copy = DirNode::new(dir.id);
        // Inserted before its content: a folder may have been moved below one that it contained on disk.
        self.dirs.insert(dir.id, Arc::clone(&copy));
        for (from, to) in [(&dir.live, &copy.live), (&dir.durable, &copy.durable)] {
            let names = from.lock().clone();
            for (name, node) in names {
                let node = self.node(&node)?;
                to.lock().insert(name, node);
            }
        }
        Ok(copy)
    }
}

/// The names on the disk, with the changes that reached it.
#[derive(Default)]
struct DiskNames {
    changed: BTreeMap<u64, DirectoryNames>,
}

impl DiskNames {
    fn apply(&mut self, pending: &PendingChange, form: u32) {
        let count = if pending.together && form > 0 { pending.edits.len() } else { form as usize };
        pending.edits.iter().take(count).for_each(|edit| self.edit(edit));
    }

    fn edit(&mut self, edit: &Edit) {
        let names = self.changed.entry(edit.dir.id).or_insert_with(|| edit.dir.durable.lock().clone());
        edit.apply(names);
    }

    /// Returns the folder as a new one, in which everything is durable.
    fn settle(
        &self,
        dir: &Arc<DirNode>,
        seen: &mut BTreeSet<u64>,
        file: &mut dyn FnMut(&Arc<FileNode>) -> io::Result<Arc<FileNode>>,
    ) -> io::Result<Arc<DirNode>> {
        let settled = DirNode::new(dir.id);
        seen.insert(dir.id);
        let names = match self.changed.get(&dir.id) {
            Some(names) => names.clone(),
            None => dir.durable.lock().clone(),
        };
        for (name, node) in names {
            let node = match node {
                Node::File(node) => {
                    let node = file(&node)?;
                    node.links.fetch_add(1, Ordering::Relaxed);
                    Node::File(node)
                }
                // A folder has one name, even if only a part of its rename was chosen.
                Node::Dir(below) if seen.contains(&below.id) => continue,
                Node::Dir(below) => Node::Dir(self.settle(&below, seen, file)?),
            };
            settled.live.lock().insert(name.clone(), node.clone());
            settled.durable.lock().insert(name, node);
        }
        Ok(settled)
    }
}
