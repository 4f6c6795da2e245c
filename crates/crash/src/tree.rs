//! A whole file system as a value: everything that a reader can see. Two trees are equal if no program could distinguish them (except by
//! times).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{Error, FileSystem, Kept, ReadOptions};

/// The object at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A file with its content.
    File(Arc<Vec<u8>>),
    /// A symbolic link with its target.
    Symlink(Arc<Vec<u8>>),
    /// A character device 0:0, which hides what an overlay has below it.
    Whiteout,
}

/// Extended attributes: values by whole name.
pub type Attributes = BTreeMap<Vec<u8>, Vec<u8>>;

/// One name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Type and content.
    pub kind: Kind,
    /// Names of the inode.
    pub nlink: u32,
    /// The first path, in order, that is a name of the same inode.
    pub same_as: Vec<u8>,
    /// Extended attributes of the inode.
    pub attributes: Arc<Attributes>,
}

/// All names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree(pub BTreeMap<Vec<u8>, Entry>);

impl Tree {
    /// Reads everything. An error is a sentence.
    ///
    /// # Errors
    /// What could not be read, or is inconsistent.
    pub fn read(fs: &FileSystem) -> Result<Self, String> {
        let mut tree = Self::default();
        let mut first_names: HashMap<InodeNumber, Vec<u8>> = HashMap::new();
        let mut waiting = vec![(InodeNumber::ROOT, Vec::new())];
        while let Some((directory, path)) = waiting.pop() {
            let mut names = Vec::new();
            let mut cookie_before = 2;
            let mut in_order = true;
            fs.read_directory(directory, 2, &mut |entry| {
                in_order &= entry.cookie > cookie_before;
                cookie_before = entry.cookie;
                names.push((entry.name.to_vec(), entry.inode, entry.file_type));
                true
            })
            .map_err(|error| format!("listing '{}': {error}", show(&path)))?;
            if !in_order {
                return Err(format!("cookies of '{}' do not rise", show(&path)));
            }
            for (name, inode, listed_type) in names {
                let full = if path.is_empty() { name.clone() } else { [&path[..], b"/", &name].concat() };
                let found = fs.lookup(directory, &name).map_err(|error| format!("look-up of '{}': {error}", show(&full)))?;
                if found.inode != inode || found.mode >> 12 != u16::from(listed_type) {
                    return Err(format!("look-up and listing of '{}' disagree", show(&full)));
                }
                let kind = match found.mode & file_type::MASK {
                    file_type::DIRECTORY => {
                        let up = fs.lookup(inode, b"..").map_err(|error| format!("'{}/..': {error}", show(&full)))?;
                        if up.inode != directory {
                            return Err(format!("'{}/..' leads to inode {}", show(&full), up.inode));
                        }
                        waiting.push((inode, full.clone()));
                        Kind::Directory
                    }
                    file_type::SYMLINK => {
                        let target = fs.read_link(inode).map_err(|error| format!("target of '{}': {error}", show(&full)))?;
                        Kind::Symlink(Arc::new(target))
                    }
                    file_type::CHARACTER if found.rdev == 0 => Kind::Whiteout,
                    _ => Kind::File(Arc::new(content(fs, inode).map_err(|error| format!("reading '{}': {error}", show(&full)))?)),
                };
                let attributes = Arc::new(attributes(fs, inode).map_err(|error| format!("attributes of '{}': {error}", show(&full)))?);
                let first = first_names.entry(inode).or_insert_with(|| full.clone());
                *first = full.clone().min(first.clone());
                tree.0.insert(full, Entry { kind, nlink: found.nlink, same_as: inode.get().to_le_bytes().to_vec(), attributes });
            }
        }
        let by_number: HashMap<Vec<u8>, Vec<u8>> =
            first_names.into_iter().map(|(inode, path)| (inode.get().to_le_bytes().to_vec(), path)).collect();
        for entry in tree.0.values_mut() {
            entry.same_as.clone_from(&by_number[&entry.same_as]);
        }
        let root = fs.attributes(InodeNumber::ROOT).map_err(|error| format!("the root: {error}"))?;
        let attributes = Arc::new(attributes(fs, InodeNumber::ROOT).map_err(|error| format!("attributes of the root: {error}"))?);
        tree.0.insert(Vec::new(), Entry { kind: Kind::Directory, nlink: root.nlink, same_as: Vec::new(), attributes });
        Ok(tree)
    }

    /// The first difference; `None` if both are equal.
    pub fn difference(&self, expected: &Self) -> Option<String> {
        for (path, entry) in &expected.0 {
            let Some(found) = self.0.get(path) else { return Some(format!("'{}' is missing", show(path))) };
            if found == entry {
                continue;
            }
            let what = match (&found.kind, &entry.kind) {
                (Kind::File(found), Kind::File(expected)) if found.len() != expected.len() => {
                    format!("has {} B instead of {}", found.len(), expected.len())
                }
                (Kind::File(found), Kind::File(expected)) if found != expected => {
                    let differ = |at: &usize| found[*at] != expected[*at];
                    let count = (0..found.len()).filter(differ).count();
                    let (first, last) = ((0..found.len()).find(differ), (0..found.len()).rfind(differ));
                    let (first, last) = (first.unwrap_or(0), last.unwrap_or(0));
                    format!("differs in {count} of bytes {first}..={last}: {:#x} instead of {:#x}", found[first], expected[first])
                }
                (Kind::Symlink(_), Kind::Symlink(_)) if found.kind != entry.kind => "has another target".into(),
                _ if found.nlink != entry.nlink => format!("has {} names instead of {}", found.nlink, entry.nlink),
                _ if found.same_as != entry.same_as => {
                    format!("is the inode of '{}' instead of '{}'", show(&found.same_as), show(&entry.same_as))
                }
                _ if found.attributes != entry.attributes => {
                    let shown = |attributes: &Attributes| {
                        let show = |(name, value): (&Vec<u8>, &Vec<u8>)| format!("{} ({} B)", show(name), value.len());
                        attributes.iter().map(show).collect::<Vec<_>>().join(", ")
                    };
                    format!("has the attributes [{}] instead of [{}]", shown(&found.attributes), shown(&entry.attributes))
                }
                _ => "has another type".into(),
            };
            return Some(format!("'{}' {what}", show(path)));
        }
        self.0.keys().find(|path| !expected.0.contains_key(*path)).map(|path| format!("'{}' should not be there", show(path)))
    }
}

/// All extended attributes of an inode.
///
/// # Errors
/// The error of the file system.
pub fn attributes(fs: &FileSystem, inode: InodeNumber) -> Result<Attributes, Error> {
    let mut names = Vec::new();
    fs.extended_attributes(inode, &mut |name, _| names.push(name.to_vec()))?;
    names.into_iter().map(|name| fs.extended_attribute(inode, &name).map(|value| (name, value))).collect()
}

/// Bytes of one step of a sequential reader; no part of a sector, so that steps cross them.
const SEQUENTIAL_BYTES: usize = 7001;

const KEPT: ReadOptions = ReadOptions { kept: Kept::Here };

/// All bytes of a file: those in host memory, as far as they are there, which must be those of the drive.
///
/// # Errors
/// What the file system says, or `InvalidArgument` where a read is short or bytes beyond the end are touched.
pub fn content(fs: &FileSystem, inode: InodeNumber) -> Result<Vec<u8>, Error> {
    const GUARD: u8 = 0xa5;
    let size = fs.attributes(inode)?.size as usize;
    let mut bytes = vec![GUARD; size + 16];
    let length = fs.read_with(inode, 0, &mut bytes, KEPT)?;
    if length != size || bytes[size..] != [GUARD; 16] {
        return Err(Error::InvalidArgument("a read that is short, or goes beyond the end"));
    }
    bytes.truncate(size);
    // From the drive, as a reader that goes through it in small steps, which reads ahead; what is kept is compared the next time.
    fs.drop_file_pages(inode)?;
    let mut step = [GUARD; SEQUENTIAL_BYTES];
    for (index, expected) in bytes.chunks(SEQUENTIAL_BYTES).enumerate() {
        let length = fs.read_with(inode, (index * SEQUENTIAL_BYTES) as u64, &mut step, KEPT)?;
        if step[..length] != *expected {
            return Err(Error::InvalidArgument("a sequential read that differs from one of the whole file"));
        }
    }
    Ok(bytes)
}

fn show(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(path);
    if text.is_empty() { "/".into() } else { text.into_owned() }
}
