//! A whole tree as a list of paths with what there is to see of each, from a mount by system calls and from a file system by the library.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use tandemfs_format::InodeNumber;
use tandemfs_fs::FileSystem;

/// What stat shows, times aside, and the three times in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub text: String,
    pub times: [i128; 3],
}

pub type Tree = BTreeMap<String, Seen>;

/// Times before this one were set by an operation, and are compared as they are.
const GIVEN_MAX: i128 = 1_000_000 * 1_000_000_000;

/// The differences of two trees that had the same operations since `before`: of times only whether they have changed, by more than a
/// number of nanoseconds. With a tolerance the kernel has a ctime of its own of regular files, and sets it also for calls that change
/// nothing, such as the removal of a list that is not there; it is not compared then.
pub fn differences(before: (&Tree, &Tree), after: (&Tree, &Tree), tolerance: i128) -> Vec<String> {
    let mut found = Vec::new();
    for path in after.0.keys().chain(after.1.keys()) {
        let (Some(left), Some(right)) = (after.0.get(path), after.1.get(path)) else {
            found.push(format!("{path}: there only on one side"));
            continue;
        };
        if left.text != right.text {
            found.push(format!("{path}: mount {}, vfs {}", left.text, right.text));
        }
        for (index, name) in ["atime", "mtime", "ctime"].into_iter().enumerate() {
            let class = |seen: &Seen, before: &Tree| match seen.times[index] {
                given if given < GIVEN_MAX => format!("is {given}"),
                now => format!(
                    "{} changed",
                    if before.get(path).is_some_and(|old| (now - old.times[index]).abs() <= tolerance) { "not" } else { "has" }
                ),
            };
            let is_the_kernel_s = tolerance > 0 && name == "ctime" && left.text.starts_with("100");
            let (left, right) = (class(left, before.0), class(right, before.1));
            if left != right && !is_the_kernel_s {
                found.push(format!("{path}: {name} on the mount {left}, by vfs {right}"));
            }
        }
    }
    found.dedup();
    found
}

fn text(mode: u32, uid: u32, gid: u32, nlink: u32, size: u64, rdev: u32) -> String {
    // The size of a directory depends on the hashes of its names.
    let size = if mode & 0o170_000 == 0o040_000 { 0 } else { size };
    format!("{mode:o} {uid}:{gid} links {nlink} size {size} device {rdev:x}")
}

pub fn of_mount(root: BorrowedFd<'_>) -> Tree {
    let mut tree = Tree::new();
    walk_mount(root, ".", &mut tree);
    tree
}

fn walk_mount(root: BorrowedFd<'_>, path: &str, tree: &mut Tree) {
    let found = rustix::fs::statat(root, path, AtFlags::SYMLINK_NOFOLLOW).expect("there");
    let nanoseconds = |seconds: i64, nanoseconds: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
    let times = [
        nanoseconds(found.st_atime, found.st_atime_nsec as i64),
        nanoseconds(found.st_mtime, found.st_mtime_nsec as i64),
        nanoseconds(found.st_ctime, found.st_ctime_nsec as i64),
    ];
    let text = text(found.st_mode, found.st_uid, found.st_gid, found.st_nlink as u32, found.st_size as u64, found.st_rdev as u32);
    tree.insert(path.into(), Seen { text, times });
    if found.st_mode & 0o170_000 == 0o040_000 {
        let opened = rustix::fs::openat(root, path, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).expect("opened");
        for entry in Dir::read_from(opened.as_fd()).expect("read") {
            let entry = entry.expect("read");
            let name = entry.file_name().to_str().expect("UTF-8");
            if name != "." && name != ".." {
                walk_mount(root, &format!("{path}/{name}"), tree);
            }
        }
    }
}

/// `with_contents`: also bytes, targets and extended attributes.
pub fn of_file_system(fs: &FileSystem, with_contents: bool) -> Tree {
    let mut tree = Tree::new();
    walk_file_system(fs, InodeNumber::ROOT, ".", with_contents, &mut tree);
    tree
}

fn walk_file_system(fs: &FileSystem, inode: InodeNumber, path: &str, with_contents: bool, tree: &mut Tree) {
    let found = fs.attributes(inode).expect("there");
    let times = [found.atime, found.mtime, found.ctime].map(|time| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds));
    let mut text = text(found.mode.into(), found.uid, found.gid, found.nlink, found.size, found.rdev);
    if with_contents {
        text += &contents(fs, inode, found.mode, found.size);
    }
    tree.insert(path.into(), Seen { text, times });
    if found.mode & 0o170_000 == 0o040_000 {
        let mut entries = Vec::new();
        fs.read_directory(inode, 2, &mut |entry| {
            entries.push((entry.inode, String::from_utf8(entry.name.to_vec()).expect("UTF-8")));
            true
        })
        .expect("read");
        for (inode, name) in entries {
            walk_file_system(fs, inode, &format!("{path}/{name}"), with_contents, tree);
        }
    }
}

fn contents(fs: &FileSystem, inode: InodeNumber, mode: u16, size: u64) -> String {
    let mut text = String::new();
    match mode & 0o170_000 {
        0o100_000 => {
            let mut bytes = vec![0; size as usize];
            fs.read(inode, 0, &mut bytes).expect("read");
            text += &format!(" {bytes:?}");
        }
        0o120_000 => text += &format!(" -> {}", String::from_utf8_lossy(&fs.read_link(inode).expect("read"))),
        _ => {}
    }
    let mut names = Vec::new();
    fs.extended_attributes(inode, &mut |name, _| names.push(name.to_vec())).expect("listed");
    names.sort();
    for name in names {
        let value = fs.extended_attribute(inode, &name).expect("there");
        text += &format!(" {}={value:?}", String::from_utf8_lossy(&name));
    }
    text
}
