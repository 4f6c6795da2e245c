//! Restores images into temporary directories and compares what is there.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use tandemfs_check::{RestoreError, RestoreOptions, RestoreReport, restore};
use tandemfs_device::{Device, Drive};

/// A file as it was restored. Device files are left out: a container may refuse them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub kind: char,
    pub mode: u32,
    pub links: u64,
    pub size: u64,
    pub changed: (i64, i64),
    pub content: Vec<u8>,
}

pub type Tree = BTreeMap<String, Entry>;

/// Everything below a directory, by path.
pub fn tree(top: &Path) -> Tree {
    let mut found = Tree::new();
    collect(top, "", &mut found);
    found
}

fn collect(directory: &Path, path: &str, found: &mut Tree) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let entry = entry.expect("reads");
        let own = format!("{path}/{}", entry.file_name().to_string_lossy());
        let data = fs::symlink_metadata(entry.path()).expect("exists");
        let (kind, content) = match data.file_type() {
            kind if kind.is_dir() => ('d', Vec::new()),
            kind if kind.is_symlink() => ('l', fs::read_link(entry.path()).expect("a link").into_os_string().into_encoded_bytes()),
            kind if kind.is_file() => ('f', fs::read(entry.path()).expect("reads")),
            _ => continue,
        };
        if kind == 'd' {
            collect(&entry.path(), &own, found);
        }
        let (links, size) = if kind == 'd' { (0, 0) } else { (data.nlink(), data.size()) };
        let changed = (data.mtime(), data.mtime_nsec());
        found.insert(own, Entry { kind, mode: data.permissions().mode(), links, size, changed, content });
    }
}

pub fn restored_to(device: Arc<dyn Device>, top: &Path, options: &RestoreOptions) -> Result<RestoreReport, RestoreError> {
    restore(&Drive::new(device), top, options, &mut |_| {})
}

/// Restores into a new directory.
pub fn restored(device: Arc<dyn Device>, options: &RestoreOptions) -> (RestoreReport, Tree) {
    let folder = tempfile::tempdir().expect("a folder");
    let report = restored_to(device, &folder.path().join("copy"), options).expect("restores");
    let found = tree(&folder.path().join("copy"));
    (report, found)
}

/// Paths without the files that are only part of the search for what has no name.
pub fn paths(tree: &Tree) -> Vec<&str> {
    tree.keys().map(String::as_str).collect()
}
