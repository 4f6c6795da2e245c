//! The reference model: a tree in memory that implements the promises of `docs/SEMANTICS.md` in the simplest way.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use tandemfs_format::inode::file_type;
use tandemfs_format::journal::TX_DATA_MAX;
use tandemfs_fs::{ALIGNED_ATTRIBUTE, Error, HOME_ATTRIBUTE, Home, RenameMode};

use crate::linearize::{Answer, Step};
use crate::operation::{Operation, SLOTS};
use crate::random::fill;
use crate::tree::{Attributes, Entry, Kind, Tree};

/// Why the model refuses an operation: the part of [`Error`] that a caller can cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// No such name.
    NotFound,
    /// The name is taken.
    Exists,
    /// A directory is needed.
    NotDirectory,
    /// A directory cannot be used.
    IsDirectory,
    /// The directory has entries.
    NotEmpty,
    /// A directory would become its own ancestor.
    IntoItself,
    /// Hard links to directories.
    NotPermitted,
    /// Not for this type of file.
    Invalid,
    /// No such extended attribute.
    NoData,
    /// A zone is full: only the file system returns this, for operations that need space.
    NoSpace,
}

impl Refusal {
    /// The model's refusal that corresponds to an error of the file system; `None` if no caller can cause the error.
    pub fn of(error: &Error) -> Option<Self> {
        Some(match error {
            Error::NotFound => Self::NotFound,
            Error::Exists => Self::Exists,
            Error::NotDirectory => Self::NotDirectory,
            Error::IsDirectory => Self::IsDirectory,
            Error::NotEmpty => Self::NotEmpty,
            Error::IntoItself => Self::IntoItself,
            Error::NotPermitted => Self::NotPermitted,
            Error::InvalidArgument(_) => Self::Invalid,
            Error::NotSupported(_) | Error::NotForFiles => Self::Invalid,
            Error::NoData => Self::NoData,
            Error::NoSpace { .. } => Self::NoSpace,
            _ => return None,
        })
    }
}

type Id = usize;
const ROOT: Id = 0;

#[derive(Debug, Clone)]
enum Body {
    Directory {
        entries: BTreeMap<Vec<u8>, Id>,
        parent: Id,
    },
    /// `written`: ranges with allocated space, which may extend behind the end.
    File {
        bytes: Arc<Vec<u8>>,
        written: Arc<Vec<bool>>,
    },
    Symlink(Arc<Vec<u8>>),
    Whiteout,
}

#[derive(Debug, Clone)]
struct Node {
    body: Body,
    attributes: Arc<Attributes>,
    nlink: u32,
    holds: u32,
    /// Created by O_TMPFILE: linkat may still give it a name.
    nameable: bool,
}

/// The tree. Cloning it is cheap: contents are shared until written.
#[derive(Debug, Clone)]
pub struct Model {
    nodes: HashMap<Id, Node>,
    next: Id,
    slots: [Option<Id>; SLOTS],
    /// Inodes bound to these paths, independent of later renames.
    bound: Arc<HashMap<String, Id>>,
    /// Block size for collapsed and inserted ranges.
    block_bytes: u64,
}

/// Default block size of a model.
const BLOCK_BYTES: u64 = 64 << 10;

impl Default for Model {
    fn default() -> Self {
        let root = Node {
            body: Body::Directory { entries: BTreeMap::new(), parent: ROOT },
            attributes: Arc::default(),
            nlink: 2,
            holds: 0,
            nameable: false,
        };
        Self { nodes: HashMap::from([(ROOT, root)]), next: ROOT + 1, slots: [None; SLOTS], bound: Arc::default(), block_bytes: BLOCK_BYTES }
    }
}

fn split(path: &str) -> (&str, &[u8]) {
    match path.rsplit_once('/') {
        Some((parent, name)) => (parent, name.as_bytes()),
        None => ("", path.as_bytes()),
    }
}

impl Model {
    /// The same with blocks of another size.
    pub fn with_blocks_of(self, block_bytes: u32) -> Self {
        Self { block_bytes: block_bytes.into(), ..self }
    }

    /// The same where the root directory has this home.
    pub fn with_home_of_root(mut self, home: Home) -> Self {
        let set = self.apply(&Operation::SetHome("", home));
        debug_assert!(set.is_ok(), "there is a root");
        self
    }

    /// The tree as a value.
    pub fn tree(&self) -> Tree {
        let mut tree = Tree::default();
        let mut first: HashMap<Id, Vec<u8>> = HashMap::new();
        let mut waiting = vec![(ROOT, Vec::new())];
        let mut names = Vec::new();
        while let Some((id, path)) = waiting.pop() {
            let Body::Directory { entries, .. } = &self.nodes[&id].body else { continue };
            for (name, child) in entries {
                let full = if path.is_empty() { name.clone() } else { [&path[..], b"/", name].concat() };
                let least = first.entry(*child).or_insert_with(|| full.clone());
                *least = full.clone().min(least.clone());
                waiting.push((*child, full.clone()));
                names.push((full, *child));
            }
        }
        names.push((Vec::new(), ROOT));
        for (path, id) in names {
            let node = &self.nodes[&id];
            let kind = match &node.body {
                Body::Directory { .. } => Kind::Directory,
                Body::File { bytes, .. } => Kind::File(bytes.clone()),
                Body::Symlink(target) => Kind::Symlink(target.clone()),
                Body::Whiteout => Kind::Whiteout,
            };
            let (attributes, same_as) = (node.attributes.clone(), first.get(&id).cloned().unwrap_or_default());
            tree.0.insert(path, Entry { kind, nlink: node.nlink, same_as, attributes });
        }
        tree
    }

    /// The content of a held file.
    pub fn held(&self, slot: usize) -> Option<(Arc<Vec<u8>>, u32)> {
        let node = &self.nodes[&self.slots[slot]?];
        match &node.body {
            Body::File { bytes, .. } => Some((bytes.clone(), node.nlink)),
            _ => None,
        }
    }

    /// Whether every byte of a range of the file was written or given space, and not cut off since: an overwrite needs no further space
    /// (RULES R14).
    pub fn is_overwrite(&self, operation: &Operation) -> bool {
        let (id, offset, length) = match *operation {
            Operation::Write(path, offset, length, _) => (self.resolve(path).ok(), offset, length),
            Operation::WriteHeld(slot, offset, length, _) => (self.slots[slot], offset, length),
            _ => return false,
        };
        match id.map(|id| &self.nodes[&id].body) {
            Some(Body::File { written, .. }) => {
                written.get(offset as usize..offset as usize + length as usize).is_some_and(|range| range.iter().all(|written| *written))
            }
            _ => false,
        }
    }

    /// The size of the file that an operation works on.
    pub fn size_of(&self, path: &str) -> Option<u64> {
        match &self.nodes[&self.resolve(path).ok()?].body {
            Body::File { bytes, .. } => Some(bytes.len() as u64),
            _ => None,
        }
    }

    /// How many bytes a copy copies, or why none.
    ///
    /// # Errors
    /// Those of the copy.
    pub(crate) fn copied(&self, operation: &Operation) -> Result<u64, Refusal> {
        let Operation::CopyRange(from, from_offset, to, to_offset, length) = *operation else { return Ok(0) };
        let ids = [self.resolve(from)?, self.resolve(to)?];
        let mut sizes = [0; 2];
        for (id, size) in ids.iter().zip(&mut sizes) {
            *size = match &self.nodes[id].body {
                Body::File { bytes, .. } => bytes.len() as u64,
                Body::Directory { .. } => return Err(Refusal::IsDirectory),
                Body::Symlink(_) | Body::Whiteout => return Err(Refusal::Invalid),
            };
        }
        let copied = length.min(sizes[0].saturating_sub(from_offset));
        let overlaps = from_offset < to_offset + copied && to_offset < from_offset + copied;
        if ids[0] == ids[1] && copied > 0 && overlaps { Err(Refusal::Invalid) } else { Ok(copied) }
    }

    /// Bytes of all files.
    pub fn file_bytes(&self) -> u64 {
        let bytes = |node: &Node| if let Body::File { bytes, .. } = &node.body { bytes.len() as u64 } else { 0 };
        self.nodes.values().map(bytes).sum()
    }

    fn resolve(&self, path: &str) -> Result<Id, Refusal> {
        if let Some(id) = self.bound.get(path) {
            return self.nodes.contains_key(id).then_some(*id).ok_or(Refusal::NotFound);
        }
        if path.is_empty() {
            return Ok(ROOT);
        }
        let (parent, name) = split(path);
        self.entries(self.resolve(parent)?)?.get(name).copied().ok_or(Refusal::NotFound)
    }

    /// From now on these paths mean the inodes that they lead to now, where an inode is wanted.
    pub fn bind(&mut self, paths: &[&str]) {
        self.bound = Arc::default();
        let bound = paths.iter().filter_map(|path| Some(((*path).to_owned(), self.resolve(path).ok()?))).collect();
        self.bound = Arc::new(bound);
    }

    /// Hash of all visible state: the tree, the inodes of bound paths, and held files.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let mut waiting = vec![ROOT];
        let mut met: HashMap<Id, usize> = HashMap::new();
        let mut bound: Vec<(&String, &Id)> = self.bound.iter().collect();
        bound.sort();
        let bound = bound.into_iter().map(|(_, id)| Some(*id));
        let outside: Vec<Option<Id>> = bound.chain(self.slots).map(|id| id.filter(|id| self.nodes.contains_key(id))).collect();
        waiting.extend(outside.iter().rev().flatten());
        outside.iter().map(Option::is_some).collect::<Vec<bool>>().hash(&mut hasher);
        // Inodes are named by the order in which a walk meets them, whatever their numbers are.
        while let Some(id) = waiting.pop() {
            let count = met.len();
            if let Some(before) = met.get(&id) {
                before.hash(&mut hasher);
                continue;
            }
            met.insert(id, count);
            let node = &self.nodes[&id];
            (count, node.nlink, node.holds, node.nameable, &node.attributes).hash(&mut hasher);
            match &node.body {
                Body::Directory { entries, .. } => {
                    entries.keys().collect::<Vec<_>>().hash(&mut hasher);
                    waiting.extend(entries.values().rev());
                }
                Body::File { bytes, .. } => bytes.hash(&mut hasher),
                Body::Symlink(target) => target.hash(&mut hasher),
                Body::Whiteout => {}
            }
        }
        hasher.finish()
    }

    /// The inode at a name, whether the name is bound or not.
    fn named(&self, path: &str) -> Result<&Node, Refusal> {
        let (parent, name) = split(path);
        Ok(&self.nodes[self.entries(self.resolve(parent)?)?.get(name).ok_or(Refusal::NotFound)?])
    }

    /// Does a step and says what it answers. A write is as short as the one that answered `given`.
    pub fn answer(&mut self, step: &Step, given: Option<&Answer>) -> Answer {
        let bytes = |node: Option<&Node>, offset: u64, length: u32| match node.map(|node| &node.body) {
            Some(Body::File { bytes, .. }) => {
                let end = (offset + u64::from(length)).min(bytes.len() as u64);
                Ok(Answer::Bytes(bytes.get(offset as usize..end as usize).unwrap_or_default().to_vec()))
            }
            Some(Body::Directory { .. }) => Err(Refusal::IsDirectory),
            Some(Body::Symlink(_) | Body::Whiteout) => Err(Refusal::Invalid),
            None => Err(Refusal::NotFound),
        };
        let answer = match *step {
            Step::Do(operation) => {
                if given == Some(&Answer::Refused(Refusal::NoSpace)) {
                    return Answer::Refused(Refusal::NoSpace);
                }
                let written = match operation {
                    Operation::CopyRange(..) => match (given, self.copied(&operation)) {
                        (Some(Answer::Done(copied)), Ok(most)) => most.min(*copied),
                        (_, most) => most.unwrap_or(0),
                    },
                    Operation::Write(_, _, length, _) | Operation::Append(_, length, _) | Operation::WriteHeld(_, _, length, _) => {
                        u64::from(length).min(if let Some(Answer::Done(written)) = given { *written } else { u64::MAX })
                    }
                    _ => u64::MAX,
                };
                self.apply_piece(&operation, written).map(|()| Answer::Done(written))
            }
            Step::Look(path) => self.named(path).map(|node| match &node.body {
                Body::Directory { .. } => Answer::Seen(file_type::DIRECTORY, node.nlink, 0),
                Body::File { bytes, .. } => Answer::Seen(file_type::REGULAR, node.nlink, bytes.len() as u64),
                Body::Symlink(_) => Answer::Seen(file_type::SYMLINK, node.nlink, 0),
                Body::Whiteout => Answer::Seen(file_type::CHARACTER, node.nlink, 0),
            }),
            Step::List(path) => {
                self.resolve(path).and_then(|id| self.entries(id)).map(|entries| Answer::Listed(entries.keys().cloned().collect()))
            }
            Step::Read(path, offset, length) => self.resolve(path).and_then(|id| bytes(self.nodes.get(&id), offset, length)),
            Step::ReadHeld(slot, offset, length) => bytes(self.slots[slot].and_then(|id| self.nodes.get(&id)), offset, length),
        };
        answer.unwrap_or_else(Answer::Refused)
    }

    fn entries(&self, id: Id) -> Result<&BTreeMap<Vec<u8>, Id>, Refusal> {
        match &self.nodes[&id].body {
            Body::Directory { entries, .. } => Ok(entries),
            _ => Err(Refusal::NotDirectory),
        }
    }

    fn entries_mut(&mut self, id: Id) -> Result<&mut BTreeMap<Vec<u8>, Id>, Refusal> {
        match self.nodes.get_mut(&id).map(|node| &mut node.body) {
            Some(Body::Directory { entries, .. }) => Ok(entries),
            _ => Err(Refusal::NotDirectory),
        }
    }

    fn is_directory(&self, id: Id) -> bool {
        matches!(self.nodes[&id].body, Body::Directory { .. })
    }

    fn add(&mut self, path: &str, body: impl FnOnce(Id) -> Body) -> Result<(), Refusal> {
        let (parent, name) = split(path);
        let parent = self.resolve(parent)?;
        if self.entries(parent)?.contains_key(name) {
            return Err(Refusal::Exists);
        }
        let body = body(parent);
        let directory = matches!(body, Body::Directory { .. });
        let id = self.insert(parent, body, if directory { 2 } else { 1 });
        self.entries_mut(parent)?.insert(name.to_vec(), id);
        self.links(parent, i64::from(directory));
        Ok(())
    }

    /// A new inode, which inherits from a directory and has no name yet.
    fn insert(&mut self, parent: Id, body: Body, nlink: u32) -> Id {
        let id = self.next;
        self.next += 1;
        let of_parent = &self.nodes[&parent].attributes;
        let mut attributes = match (&body, of_parent.get(DEFAULT_LIST)) {
            (_, None) | (Body::Symlink(_) | Body::Whiteout, _) => Attributes::new(),
            (Body::File { .. }, Some(default)) => Attributes::from([(ACCESS_LIST.to_vec(), inherited(default, 0o644))]),
            (Body::Directory { .. }, Some(default)) => {
                Attributes::from([(ACCESS_LIST.to_vec(), inherited(default, 0o755)), (DEFAULT_LIST.to_vec(), default.clone())])
            }
        };
        if matches!(body, Body::File { .. } | Body::Directory { .. }) {
            let names: &[&[u8]] = if matches!(body, Body::File { .. }) { &[HOME_ATTRIBUTE, ALIGNED_ATTRIBUTE] } else { &[HOME_ATTRIBUTE] };
            let inherited = names.iter().filter_map(|name| of_parent.get_key_value(*name));
            attributes.extend(inherited.map(|(name, value)| (name.clone(), value.clone())));
        }
        let attributes = Arc::new(attributes);
        self.nodes.insert(id, Node { body, attributes, nlink, holds: 0, nameable: nlink == 0 });
        id
    }

    fn link(&mut self, id: Id, to: &str) -> Result<(), Refusal> {
        let (to_parent, to_name) = split(to);
        let parent = self.resolve(to_parent)?;
        if self.is_directory(id) {
            return Err(Refusal::NotPermitted);
        }
        if self.nodes[&id].nlink == 0 && !self.nodes[&id].nameable {
            return Err(Refusal::NotFound);
        }
        if self.entries(parent)?.contains_key(to_name) {
            return Err(Refusal::Exists);
        }
        self.entries_mut(parent)?.insert(to_name.to_vec(), id);
        self.links(id, 1);
        if let Some(node) = self.nodes.get_mut(&id) {
            node.nameable = false;
        }
        Ok(())
    }

    fn attributes_mut(&mut self, path: &str, name: &str) -> Result<&mut Attributes, Refusal> {
        let id = self.resolve(path)?;
        match self.nodes.get_mut(&id) {
            Some(node) if name.starts_with("user.") && matches!(node.body, Body::Symlink(_) | Body::Whiteout) => Err(Refusal::NotPermitted),
            Some(node) => Ok(Arc::make_mut(&mut node.attributes)),
            None => Err(Refusal::NotFound),
        }
    }

    fn links(&mut self, id: Id, change: i64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.nlink = (i64::from(node.nlink) + change) as u32;
        }
    }

    /// The inode lost a name, or a holder.
    fn drop_if_gone(&mut self, id: Id) {
        if self.nodes[&id].nlink == 0 && self.nodes[&id].holds == 0 {
            self.nodes.remove(&id);
        }
    }

    fn lose_name(&mut self, id: Id) {
        if self.is_directory(id) {
            self.links(id, -2);
        } else {
            self.links(id, -1);
        }
        self.drop_if_gone(id);
    }

    fn is_inside(&self, moved: Id, mut at: Id) -> bool {
        loop {
            if at == moved {
                return true;
            }
            match &self.nodes[&at].body {
                Body::Directory { parent, .. } if at != ROOT => at = *parent,
                _ => return false,
            }
        }
    }

    fn set_parent(&mut self, id: Id, to: Id) {
        if let Some(Body::Directory { parent, .. }) = self.nodes.get_mut(&id).map(|node| &mut node.body) {
            *parent = to;
        }
    }

    fn rename(&mut self, from: &str, to: &str, mode: RenameMode) -> Result<(), Refusal> {
        let ((from_parent, from_name), (to_parent, to_name)) = (split(from), split(to));
        let (from_parent, to_parent) = (self.resolve(from_parent)?, self.resolve(to_parent)?);
        let source = *self.entries(from_parent)?.get(from_name).ok_or(Refusal::NotFound)?;
        let target = self.entries(to_parent)?.get(to_name).copied();
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Refusal::Exists),
            (RenameMode::Exchange, None) => return Err(Refusal::NotFound),
            (_, Some(target)) if target == source => return Ok(()),
            (RenameMode::Replace, Some(target)) => match (self.is_directory(source), self.is_directory(target)) {
                (true, false) => return Err(Refusal::NotDirectory),
                (false, true) => return Err(Refusal::IsDirectory),
                _ => {}
            },
            _ => {}
        }
        if self.is_directory(source) && self.is_inside(source, to_parent) {
            return Err(Refusal::IntoItself);
        }
        if mode == RenameMode::Exchange && target.is_some_and(|target| self.is_directory(target) && self.is_inside(target, from_parent)) {
            return Err(Refusal::IntoItself);
        }
        if let (RenameMode::Replace, Some(target)) = (mode, target)
            && self.is_directory(target)
            && !self.entries(target)?.is_empty()
        {
            return Err(Refusal::NotEmpty);
        }
        let move_directory = |model: &mut Self, id: Id, from: Id, to: Id| {
            if model.is_directory(id) {
                model.links(from, -1);
                model.links(to, 1);
                model.set_parent(id, to);
            }
        };
        self.entries_mut(from_parent)?.remove(from_name);
        self.entries_mut(to_parent)?.insert(to_name.to_vec(), source);
        move_directory(self, source, from_parent, to_parent);
        if let Some(target) = target {
            if mode == RenameMode::Exchange {
                self.entries_mut(from_parent)?.insert(from_name.to_vec(), target);
                move_directory(self, target, to_parent, from_parent);
            } else {
                self.links(to_parent, -i64::from(self.is_directory(target)));
                self.lose_name(target);
            }
        }
        Ok(())
    }

    fn file_mut(&mut self, id: Id) -> Result<(&mut Vec<u8>, &mut Vec<bool>), Refusal> {
        match self.nodes.get_mut(&id).map(|node| &mut node.body) {
            Some(Body::File { bytes, written }) => Ok((Arc::make_mut(bytes), Arc::make_mut(written))),
            Some(Body::Directory { .. }) => Err(Refusal::IsDirectory),
            _ => Err(Refusal::Invalid),
        }
    }

    fn write(&mut self, id: Id, offset: Option<u64>, data: &[u8]) -> Result<(), Refusal> {
        let (bytes, written) = self.file_mut(id)?;
        let start = offset.map_or(bytes.len(), |offset| offset as usize);
        let end = start + data.len();
        if end > bytes.len() {
            bytes.resize(end, 0);
            written.resize(written.len().max(end), false);
        }
        bytes[start..end].copy_from_slice(data);
        written[start..end].fill(true);
        Ok(())
    }

    /// Does the operation.
    ///
    /// # Errors
    /// The refusal; nothing has changed then.
    pub fn apply(&mut self, operation: &Operation) -> Result<(), Refusal> {
        self.apply_piece(operation, u64::MAX)
    }

    /// Does the operation, a write only as far as its first `length_max` bytes.
    ///
    /// # Errors
    /// The refusal; nothing has changed then.
    pub fn apply_piece(&mut self, operation: &Operation, length_max: u64) -> Result<(), Refusal> {
        let data = |seed: u64, length: u32| fill(seed, u64::from(length).min(length_max) as usize);
        match *operation {
            Operation::Create(path) => self.add(path, |_| Body::File { bytes: Arc::default(), written: Arc::default() }),
            Operation::MakeDirectory(path) => self.add(path, |parent| Body::Directory { entries: BTreeMap::new(), parent }),
            Operation::Symlink(path, length) => self.add(path, |_| Body::Symlink(Arc::new(link_target(length)))),
            Operation::Link(from, to) => {
                let id = self.resolve(from)?;
                self.link(id, to)
            }
            Operation::Unlink(path) | Operation::RemoveDirectory(path) => {
                let (parent, name) = split(path);
                let parent = self.resolve(parent)?;
                let id = *self.entries(parent)?.get(name).ok_or(Refusal::NotFound)?;
                let wants_directory = matches!(operation, Operation::RemoveDirectory(_));
                match (self.is_directory(id), wants_directory) {
                    (true, false) => return Err(Refusal::IsDirectory),
                    (false, true) => return Err(Refusal::NotDirectory),
                    (true, true) if !self.entries(id)?.is_empty() => return Err(Refusal::NotEmpty),
                    _ => {}
                }
                self.entries_mut(parent)?.remove(name);
                self.links(parent, -i64::from(wants_directory));
                self.lose_name(id);
                Ok(())
            }
            Operation::Rename(from, to, mode) => self.rename(from, to, mode),
            Operation::Write(path, offset, length, seed) => {
                let id = self.resolve(path)?;
                self.write(id, Some(offset), &data(seed, length))
            }
            Operation::Append(path, length, seed) => {
                let id = self.resolve(path)?;
                self.write(id, None, &data(seed, length))
            }
            Operation::Truncate(path, size) => {
                let id = self.resolve(path)?;
                let (bytes, written) = self.file_mut(id)?;
                let grows = size as usize > bytes.len();
                bytes.resize(size as usize, 0);
                written.resize(if grows { written.len().max(size as usize) } else { size as usize }, false);
                Ok(())
            }
            Operation::Allocate(path, offset, length, keep_size) => {
                let id = self.resolve(path)?;
                // An interrupted call may have allocated space, which is not visible.
                let sizes = length_max == u64::MAX && !keep_size;
                let (bytes, written) = self.file_mut(id)?;
                give_space(bytes, written, offset, length, sizes);
                Ok(())
            }
            Operation::Punch(path, offset, length) => {
                let id = self.resolve(path)?;
                let (bytes, written) = self.file_mut(id)?;
                let end = offset + length.min(length_max);
                zero(bytes, offset, end);
                clear(written, offset, end);
                Ok(())
            }
            Operation::Zero(path, offset, length, keep_size) => {
                let id = self.resolve(path)?;
                let (bytes, written) = self.file_mut(id)?;
                zero(bytes, offset, offset + length.min(length_max));
                give_space(bytes, written, offset, length, length_max == u64::MAX && !keep_size);
                Ok(())
            }
            Operation::Collapse(path, offset, length) => {
                let id = self.resolve(path)?;
                let block_bytes = self.block_bytes;
                let (bytes, written) = self.file_mut(id)?;
                let end = (offset + length) as usize;
                if !offset.is_multiple_of(block_bytes) || !length.is_multiple_of(block_bytes) || end >= bytes.len() {
                    return Err(Refusal::Invalid);
                }
                bytes.drain(offset as usize..end);
                written.drain(offset as usize..end);
                Ok(())
            }
            Operation::Insert(path, offset, length) => {
                let id = self.resolve(path)?;
                let block_bytes = self.block_bytes;
                let (bytes, written) = self.file_mut(id)?;
                let start = offset as usize;
                if !offset.is_multiple_of(block_bytes) || !length.is_multiple_of(block_bytes) || start >= bytes.len() {
                    return Err(Refusal::Invalid);
                }
                bytes.splice(start..start, std::iter::repeat_n(0, length as usize));
                written.splice(start..start, std::iter::repeat_n(false, length as usize));
                Ok(())
            }
            Operation::CopyRange(from, from_offset, to, to_offset, _) => {
                let copied = self.copied(operation)?.min(length_max) as usize;
                let source = self.resolve(from)?;
                let target = self.resolve(to)?;
                if copied > 0 {
                    let bytes = self.file_mut(source)?.0[from_offset as usize..][..copied].to_vec();
                    self.write(target, Some(to_offset), &bytes)?;
                    // A hole stays a hole, so it has no allocated space.
                    let written = self.file_mut(target)?.1;
                    clear(written, to_offset, to_offset + copied as u64);
                }
                Ok(())
            }
            Operation::SetAttribute(path, name, length, seed) => {
                let attributes = self.attributes_mut(path, name)?;
                attributes.insert(name.as_bytes().to_vec(), fill(seed, length as usize));
                Ok(())
            }
            Operation::RemoveAttribute(path, name) => {
                self.attributes_mut(path, name)?.remove(name.as_bytes()).map(drop).ok_or(Refusal::NoData)
            }
            Operation::SetDefaultList(path, user) => {
                let id = self.resolve(path)?;
                if !self.is_directory(id) {
                    return Err(Refusal::Invalid);
                }
                self.attributes_mut(path, "")?.insert(DEFAULT_LIST.to_vec(), default_list(user));
                Ok(())
            }
            Operation::SetHome(path, home) => {
                let attributes = self.attributes_mut(path, "user.")?;
                match home {
                    Home::Auto => drop(attributes.remove(HOME_ATTRIBUTE)),
                    _ => drop(attributes.insert(HOME_ATTRIBUTE.to_vec(), home.name().into())),
                }
                Ok(())
            }
            Operation::SetAligned(path, is_aligned) => {
                let attributes = self.attributes_mut(path, "user.")?;
                match is_aligned {
                    false => drop(attributes.remove(ALIGNED_ATTRIBUTE)),
                    true => drop(attributes.insert(ALIGNED_ATTRIBUTE.to_vec(), b"yes".to_vec())),
                }
                Ok(())
            }
            Operation::MoveHomes => Ok(()),
            Operation::Sync | Operation::Checkpoint | Operation::WriteBack | Operation::WriteBackAll | Operation::Discard => Ok(()),
            Operation::Remount | Operation::Crash => {
                for slot in 0..SLOTS {
                    self.apply_piece(&Operation::Forget(slot), length_max)?;
                }
                Ok(())
            }
            Operation::Hold(slot, path) => {
                let id = self.resolve(path)?;
                if !matches!(self.nodes[&id].body, Body::File { .. }) {
                    return Err(Refusal::Invalid);
                }
                if self.slots[slot].is_some() {
                    return Err(Refusal::Exists);
                }
                self.slots[slot] = Some(id);
                if let Some(node) = self.nodes.get_mut(&id) {
                    node.holds += 1;
                }
                Ok(())
            }
            Operation::CreateNameless(slot, path) => {
                let parent = self.resolve(path)?;
                if self.slots[slot].is_some() {
                    return Err(Refusal::Exists);
                }
                self.entries(parent)?;
                let id = self.insert(parent, Body::File { bytes: Arc::default(), written: Arc::default() }, 0);
                self.slots[slot] = Some(id);
                if let Some(node) = self.nodes.get_mut(&id) {
                    node.holds += 1;
                }
                Ok(())
            }
            Operation::LinkHeld(slot, path) => {
                let id = self.slots[slot].ok_or(Refusal::NotFound)?;
                self.link(id, path)
            }
            Operation::LeaveWhiteout(from, to) => {
                let named = |model: &Self, path| {
                    let (parent, name) = split(path);
                    Some(*model.entries(model.resolve(parent).ok()?).ok()?.get(name)?)
                };
                let is_same = named(self, from) == named(self, to);
                self.rename(from, to, RenameMode::Replace)?;
                // Two names of one inode stay as they are.
                if is_same { Ok(()) } else { self.add(from, |_| Body::Whiteout) }
            }
            Operation::WriteHeld(slot, offset, length, seed) => {
                let id = self.slots[slot].ok_or(Refusal::NotFound)?;
                self.write(id, Some(offset), &data(seed, length))
            }
            Operation::Scatter(..) | Operation::CreateMany(..) | Operation::UnlinkMany(..) => {
                operation.parts().iter().try_for_each(|part| self.apply_piece(part, length_max))
            }
            Operation::Forget(slot) => {
                if let Some(id) = self.slots[slot].take() {
                    if let Some(node) = self.nodes.get_mut(&id) {
                        node.holds -= 1;
                    }
                    self.drop_if_gone(id);
                }
                Ok(())
            }
        }
    }

    /// The trees that a cut in the middle of an operation may leave: before it, after it, and after each piece of a long write.
    pub fn allowed(&self, operation: &Operation) -> Vec<Tree> {
        let mut trees = vec![self.tree()];
        for end in piece_ends(self, operation) {
            let mut after = self.clone();
            if after.apply_piece(operation, end).is_ok() {
                trees.push(after.tree());
            }
        }
        trees
    }
}

const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
/// The name of a default access control list.
pub(crate) const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";

/// Permissions of owner, a user, the group, the mask and others.
fn list(user: u32, permissions: [u16; 5]) -> Vec<u8> {
    let mut value = vec![2, 0, 0, 0];
    for ((tag, id), permissions) in [(1, u32::MAX), (2, user), (4, u32::MAX), (16, u32::MAX), (32, u32::MAX)].into_iter().zip(permissions) {
        value.extend([u16::to_le_bytes(tag), permissions.to_le_bytes()].concat());
        value.extend(u32::to_le_bytes(id));
    }
    value
}

/// A list that gives a user and the mask more than others.
pub(crate) fn default_list(user: u32) -> Vec<u8> {
    list(user, [7, 7, 5, 7, 5])
}

/// Permissions of a file created with a mode under such a list: those that both allow the owner, the mask and others.
fn inherited(default: &[u8], mode: u16) -> Vec<u8> {
    let user = default[16..20].iter().rev().fold(0, |id, byte| id << 8 | u32::from(*byte));
    list(user, [mode >> 6 & 7, 7, 5, mode >> 3 & 7, mode & 5])
}

fn zero(bytes: &mut [u8], offset: u64, end: u64) {
    let end = bytes.len().min(end as usize);
    if (offset as usize) < end {
        bytes[offset as usize..end].fill(0);
    }
}

fn clear(written: &mut [bool], offset: u64, end: u64) {
    let end = written.len().min(end as usize);
    if (offset as usize) < end {
        written[offset as usize..end].fill(false);
    }
}

fn give_space(bytes: &mut Vec<u8>, written: &mut Vec<bool>, offset: u64, length: u64, sizes: bool) {
    let end = (offset + length) as usize;
    if sizes && end > bytes.len() {
        bytes.resize(end, 0);
    }
    written.resize(written.len().max(end), false);
    written[offset as usize..end].fill(true);
}

/// Granule in which zeroing goes forward.
const ZEROED_BYTES: u64 = 4096;

/// Where the pieces of a write end, counted from its start (RULES R11). One end for everything else.
fn piece_ends(model: &Model, operation: &Operation) -> Vec<u64> {
    let (offset, length) = match *operation {
        // Zeroed front to back, then sized; behind the end of the file nothing is seen of it.
        Operation::Punch(path, offset, length) | Operation::Zero(path, offset, length, _) => {
            let seen = model.size_of(path).unwrap_or(0).saturating_sub(offset).min(length);
            let first = ZEROED_BYTES - offset % ZEROED_BYTES;
            let borders = (first..seen).step_by(ZEROED_BYTES as usize);
            return borders.chain([seen, u64::MAX]).collect();
        }
        // Holes are punched as any range is, and nothing is seen of it behind the end; data ends with a sector of the source, or as a
        // write.
        Operation::CopyRange(_, from_offset, to, to_offset, _) => {
            let copied = model.copied(operation).unwrap_or(0);
            let size = model.size_of(to).unwrap_or(0);
            let borders = |offset: u64| (ZEROED_BYTES - offset % ZEROED_BYTES..copied).step_by(ZEROED_BYTES as usize);
            let ends = borders(from_offset).chain(borders(to_offset));
            return ends.chain([size.saturating_sub(to_offset).min(copied), copied]).collect();
        }
        Operation::Write(_, offset, length, _) | Operation::WriteHeld(_, offset, length, _) => (offset, u64::from(length)),
        Operation::Append(path, length, _) => (model.size_of(path).unwrap_or(0), u64::from(length)),
        _ => return vec![u64::MAX],
    };
    let mut ends = Vec::new();
    let mut done = 0;
    while length - done > TX_DATA_MAX {
        // An append is cut at multiples of its own offsets, which start at 0 for the engine: any cut below is allowed for it.
        let at = if matches!(operation, Operation::Append(..)) { done } else { offset + done };
        done += TX_DATA_MAX - at % TX_DATA_MAX;
        ends.push(done);
    }
    ends.push(length);
    ends
}

/// The target that a symbolic link of this length has.
pub(crate) fn link_target(length: u16) -> Vec<u8> {
    (0..length).map(|index| b'a' + (index % 23) as u8).collect()
}
