//! A user's work on a mounted file system: reads everything, then makes changes. Bounded, whatever the image claims.

use std::collections::{BTreeSet, HashSet};

use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{Attributes, Error, FileSystem, NewInode, RenameMode, SetAttributes, WriteOptions};

const ENTRIES_MAX: usize = 20_000;
/// Files up to this size are read whole. Larger files are sparse; of these the start, the end and the surroundings of powers of two are
/// read.
const WHOLE_BYTES_MAX: u64 = 4 << 20;
const WINDOW_BYTES: usize = 256 << 10;

/// A directory entry.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    directory: InodeNumber,
    name: Vec<u8>,
    attributes: Attributes,
}

/// Reads names, attributes, link targets and contents; those in `lost` have ranges that cannot be read. The error is a sentence.
pub(super) fn read(fs: &FileSystem, lost: &BTreeSet<u64>) -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    let mut seen = HashSet::from([InodeNumber::ROOT]);
    let mut waiting = vec![InodeNumber::ROOT];
    let mut first_error = None;
    let mut note = |what: String| {
        first_error.get_or_insert(what);
    };
    fs.attributes(InodeNumber::ROOT).map_err(|error| format!("the root: {error}"))?;
    while let Some(directory) = waiting.pop() {
        let mut names = Vec::new();
        let mut last_cookie = 0;
        let listed = fs.read_directory(directory, 0, &mut |entry| {
            assert!(entry.cookie > last_cookie, "cookies do not rise: {} after {last_cookie}", entry.cookie);
            last_cookie = entry.cookie;
            names.push((entry.name.to_vec(), entry.inode, entry.file_type));
            names.len() < ENTRIES_MAX
        });
        if let Err(error) = listed {
            note(format!("listing inode {directory}: {error}"));
        }
        for (name, inode, listed_type) in names {
            if name == b"." || name == b".." {
                continue;
            }
            let attributes = match fs.lookup(directory, &name) {
                Ok(attributes) => attributes,
                Err(error) => {
                    note(format!("look-up of {:?} in inode {directory}: {error}", String::from_utf8_lossy(&name)));
                    continue;
                }
            };
            if attributes.inode != inode || attributes.mode >> 12 != u16::from(listed_type) {
                note(format!("listing and look-up of {:?} disagree", String::from_utf8_lossy(&name)));
            }
            let first_time = seen.insert(attributes.inode);
            let looked = match attributes.mode & file_type::MASK {
                file_type::DIRECTORY if first_time => {
                    waiting.push(attributes.inode);
                    Ok(())
                }
                file_type::SYMLINK => fs.read_link(attributes.inode).map(drop),
                file_type::REGULAR if first_time => contents(fs, &attributes),
                _ => Ok(()),
            };
            match looked {
                Err(Error::LostData { inode, .. }) if lost.contains(&inode.get()) => {}
                Err(error) => note(format!("reading inode {}: {error}", attributes.inode)),
                Ok(()) => {}
            }
            if let Err(error) = tandemfs_crash::attributes(fs, attributes.inode) {
                note(format!("attributes of inode {}: {error}", attributes.inode));
            }
            entries.push(Entry { directory, name, attributes });
            if entries.len() > ENTRIES_MAX {
                return Err("more names than there is room for".into());
            }
        }
    }
    let _space = fs.space();
    first_error.map_or(Ok(entries), Err)
}

fn contents(fs: &FileSystem, attributes: &Attributes) -> Result<(), Error> {
    let (inode, size) = (attributes.inode, attributes.size);
    let mut buffer = vec![0; WINDOW_BYTES];
    let mut window = |offset: u64| {
        let expected = size.saturating_sub(offset).min(WINDOW_BYTES as u64);
        let read = fs.read(inode, offset, &mut buffer)?;
        assert!(read as u64 <= expected, "{read} B read at {offset} of {size} B");
        assert!(read as u64 == expected, "a short read: {read} B at {offset} of {size} B");
        Ok::<(), Error>(())
    };
    if size <= WHOLE_BYTES_MAX {
        return (0..=size).step_by(WINDOW_BYTES).try_for_each(window);
    }
    window(0)?;
    window(size - 5000)?;
    window(size)?;
    (21..63).map(|bit| (1_u64 << bit) - 5000).take_while(|offset| *offset < size).try_for_each(window)
}

/// Makes changes of all kinds to the entries, then write-back and checkpoint. Reaching a limit (space, file size, links) is no failure.
pub(super) fn work(fs: &FileSystem, entries: &[Entry], lost: &BTreeSet<u64>) -> Result<(), String> {
    let mut first_error = None;
    let mut note = |what: &str, done: Result<(), Error>| match done {
        Ok(()) | Err(Error::NoSpace { .. } | Error::FileTooLarge | Error::TooManyLinks) => {}
        Err(Error::LostData { inode, .. }) if lost.contains(&inode.get()) => {}
        Err(error) => {
            first_error.get_or_insert(format!("{what}: {error}"));
        }
    };
    let bytes: Vec<u8> = (0..150_000_u32).map(|at| (at * 7) as u8).collect();
    let size = |size| SetAttributes { size: Some(size), ..SetAttributes::default() };
    let options = WriteOptions::default();
    for (number, entry) in entries.iter().filter(|entry| entry.attributes.mode & file_type::MASK == file_type::REGULAR).take(12).enumerate()
    {
        let (inode, end) = (entry.attributes.inode, entry.attributes.size);
        note("a small write", fs.write(inode, 10, &bytes[..100], options).map(drop));
        note("a write at the end", fs.write(inode, end, &bytes[..5000], options).map(drop));
        note("a write of blocks", fs.write(inode, 4096, &bytes[..[70_000, 150_000, 4096][number % 3]], options).map(drop));
        note("a truncation", fs.set_attributes(inode, &size(end / 2)).map(drop));
        if number % 2 == 1 {
            let moved = [b"moved-".as_slice(), number.to_string().as_bytes()].concat();
            note("a rename", fs.rename(entry.directory, &entry.name, InodeNumber::ROOT, &moved, RenameMode::Replace));
        } else if number % 4 == 2 {
            note("a removal", fs.unlink(entry.directory, &entry.name));
        }
    }
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 1, gid: 2, rdev: 0, target: b"" };
    let directory = NewInode { mode: file_type::DIRECTORY | 0o755, ..new };
    for (number, entry) in
        entries.iter().filter(|entry| entry.attributes.mode & file_type::MASK == file_type::DIRECTORY).take(4).enumerate()
    {
        let made = fs.create(entry.attributes.inode, b"made by the tour", &new);
        let written = made.and_then(|made| fs.write(made.inode, 0, &bytes[..3000 * (number + 1)], options));
        note("a file in a directory", written.map(drop));
    }
    let made = fs.create(InodeNumber::ROOT, b"made by the tour", &directory).and_then(|made| {
        fs.create(made.inode, &[b'n'; 200], &new)?;
        fs.rename(made.inode, &[b'n'; 200], InodeNumber::ROOT, b"out", RenameMode::Replace)?;
        fs.remove_directory(InodeNumber::ROOT, b"made by the tour")
    });
    note("a directory", made);
    note("write-back", fs.write_back().map(drop));
    note("a checkpoint", fs.checkpoint());
    for entry in entries.iter().rev().filter(|entry| entry.attributes.mode & file_type::MASK == file_type::SYMLINK) {
        note("removing a link", fs.unlink(entry.directory, &entry.name));
    }
    first_error.map_or(Ok(()), Err)
}
