//! open(2): which flags go together, creation, O_TMPFILE, and what may be opened.

use rustix::io::Errno;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{Attributes, Error};

use crate::Vfs;
use crate::credentials::Process;
use crate::file::{OpenFile, Rights};
use crate::mutant::{Mutant, on};
use crate::permissions::{EXECUTE, READ, WRITE, is_directory, kind};
use crate::refusal::{Refused, Result, Why};
use crate::walk::{At, Held, Last, Node, TRIES_MAX, Walk};

const TEMPORARY: i32 = libc::O_TMPFILE & !libc::O_DIRECTORY;
/// What counts beside O_PATH.
const OF_PATHS: i32 = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_PATH | libc::O_CLOEXEC;

/// The flags of a call, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct How {
    flags: i32,
    /// Rights that the caller needs.
    want: u16,
    rights: Rights,
    creates: bool,
    exclusive: bool,
    follows: bool,
    must_be_directory: bool,
    mode: u16,
}

impl How {
    fn of(flags: i32, mode: u32) -> Result<Self> {
        let has = |flag: i32| flags & flag == flag;
        let path_only = has(libc::O_PATH);
        let flags = if path_only { flags & OF_PATHS } else { flags };
        let has = |flag: i32| has(flag) && flags & flag == flag;
        let access = flags & libc::O_ACCMODE;
        let mut want = match access {
            libc::O_RDONLY => READ,
            libc::O_WRONLY => WRITE,
            _ => READ | WRITE,
        };
        let is_temporary = has(TEMPORARY);
        if is_temporary && (!has(libc::O_DIRECTORY) || want & WRITE == 0) || has(libc::O_DIRECTORY | libc::O_CREAT) {
            return Err(Errno::INVAL.into());
        }
        if has(libc::O_TRUNC) {
            want |= WRITE;
        }
        let (creates, exclusive) = (has(libc::O_CREAT), has(libc::O_EXCL));
        Ok(Self {
            flags,
            want: if path_only { 0 } else { want },
            rights: Rights {
                read: !path_only && matches!(access, libc::O_RDONLY | libc::O_RDWR),
                write: !path_only && matches!(access, libc::O_WRONLY | libc::O_RDWR),
                path_only,
            },
            creates,
            exclusive,
            follows: !(has(libc::O_NOFOLLOW) || creates && exclusive),
            must_be_directory: has(libc::O_DIRECTORY),
            mode: (mode & 0o7777) as u16,
        })
    }

    fn truncates(&self) -> bool {
        self.flags & libc::O_TRUNC != 0
    }
}

impl Vfs {
    /// Opens a file, with the flags and the mode of openat(2).
    ///
    /// # Errors
    /// As openat(2), ETXTBSY aside. Devices and pipes are left to the kernel once permissions allow them.
    pub fn open(&self, process: &Process, at: At<'_>, path: &[u8], flags: i32, mode: u32) -> Result<OpenFile> {
        self.open_and_stat(process, at, path, flags, mode).map(|(file, _)| file)
    }

    /// As [`Vfs::open`]; returns also what the file was like when it was opened.
    ///
    /// # Errors
    /// As [`Vfs::open`].
    pub fn open_and_stat(&self, process: &Process, at: At<'_>, path: &[u8], flags: i32, mode: u32) -> Result<(OpenFile, Attributes)> {
        let how = How::of(flags, mode)?;
        let walk = Walk::start(self, process, at, path, false)?;
        if how.rights.path_only {
            let node = walk.walk_to_end(how.follows, how.must_be_directory)?;
            return Ok(self.opened(process, node, &how));
        }
        if how.flags & TEMPORARY != 0 {
            return self.open_nameless(process, walk.walk_to_end(how.follows, true)?, &how);
        }
        self.open_or_create(process, walk, how)
    }

    fn opened(&self, process: &Process, node: Node<'_>, how: &How) -> (OpenFile, Attributes) {
        let attributes = node.attributes.clone();
        (OpenFile::new(self, &process.credentials, node, how.rights, how.flags), attributes)
    }

    fn open_or_create(&self, process: &Process, mut walk: Walk<'_>, mut how: How) -> Result<(OpenFile, Attributes)> {
        loop {
            let (last, has_slash) = walk.walk_to_last()?;
            let name = match last {
                Last::Nothing | Last::Dot => return self.open_found(process, &walk, None, &how),
                Last::DotDot => {
                    walk.up()?;
                    return self.open_found(process, &walk, None, &how);
                }
                Last::Name(_) if has_slash && how.creates => return Err(Errno::ISDIR.into()),
                Last::Name(name) => name,
            };
            how.follows |= has_slash;
            how.must_be_directory |= has_slash;
            let found = self.find_or_create(process, &walk, &name, &how)?;
            match found {
                Found::Created(node) => return Ok(self.opened(process, node, &how)),
                Found::There(node) if node.is_link() && how.follows => walk.follow_last(&node)?,
                Found::There(node) => return self.open_found(process, &walk, Some(node), &how),
            }
        }
    }

    fn find_or_create<'w>(&'w self, process: &Process, walk: &Walk<'w>, name: &[u8], how: &How) -> Result<Found<'w>> {
        for _ in 0..TRIES_MAX {
            match walk.look_up(name) {
                Ok(node) => return Ok(Found::There(node)),
                Err(Refused::FileSystem(Error::NotFound)) if how.creates => {}
                Err(other) => return Err(other),
            }
            let directory = &walk.at.attributes;
            if directory.nlink == 0 {
                return Err(Errno::NOENT.into());
            }
            self.must_be_writable()?;
            self.permit(&process.credentials, directory, WRITE | EXECUTE)?;
            self.leaves_watched_name(process, directory.inode, None)?;
            match self.make_file(process, directory, name, how.mode) {
                Ok(node) => return Ok(Found::Created(node)),
                Err(Refused::FileSystem(Error::Exists)) => {} // made since by somebody else
                Err(other) => return Err(other),
            }
        }
        Err(Errno::STALE.into())
    }

    /// Opens what the walk has found: a name in the directory where it stands, or that directory.
    fn open_found(&self, process: &Process, walk: &Walk<'_>, named: Option<Node<'_>>, how: &How) -> Result<(OpenFile, Attributes)> {
        let who = &process.credentials;
        let attributes = named.as_ref().map_or(&walk.at.attributes, |node| &node.attributes);
        if how.creates {
            match (how.exclusive, is_directory(attributes)) {
                (true, _) => return Err(Errno::EXIST.into()),
                (false, true) => return Err(Errno::ISDIR.into()),
                (false, false) => self.permit_opening_to_create(who, &walk.at.attributes, attributes)?,
            }
        }
        if how.must_be_directory && !is_directory(attributes) {
            return Err(Errno::NOTDIR.into());
        }
        let truncates = how.truncates() && kind(attributes) == file_type::REGULAR;
        if truncates {
            self.must_be_writable()?;
        }
        match kind(attributes) {
            file_type::SYMLINK => return Err(Errno::LOOP.into()),
            file_type::DIRECTORY if how.want & WRITE != 0 => return Err(Errno::ISDIR.into()),
            _ => {}
        }
        self.permit(who, attributes, how.want)?;
        if how.flags & libc::O_NOATIME != 0 && !who.owns(attributes.uid) {
            return Err(Errno::PERM.into());
        }
        match kind(attributes) {
            file_type::REGULAR | file_type::DIRECTORY => {}
            file_type::SOCKET => return Err(Errno::NXIO.into()),
            _ if on(Mutant::SpecialOpened) => {}
            _ => return Err(walk.crossed(Why::SpecialFile)), // [KV4]
        }
        // Held before it changes: nothing of the call may be refused afterwards ([KV7]).
        let node = match named {
            Some(node) => node,
            None => Node { held: Held::new(&self.fs, attributes)?, attributes: attributes.clone(), parent: None },
        };
        self.leaves_watched_opening(process, &node)?;
        let attributes = if truncates { self.resize(who, &node.attributes, 0)? } else { node.attributes.clone() };
        Ok(self.opened(process, Node { attributes, ..node }, how))
    }

    /// O_TMPFILE.
    fn open_nameless(&self, process: &Process, directory: Node<'_>, how: &How) -> Result<(OpenFile, Attributes)> {
        let (who, directory) = (&process.credentials, &directory.attributes);
        self.must_be_writable()?;
        self.permit(who, directory, WRITE | EXECUTE)?;
        self.leaves_reserve_to_names(who)?;
        let (mode, umask) = self.prepared(process, directory, file_type::REGULAR | how.mode);
        let new = crate::names::new_inode(directory, mode, (who.uid, who.gid), 0, &[]);
        let attributes: Attributes = self.fs.create_nameless(directory.inode, &new, umask)?;
        let node = Node { held: Held::made(&self.fs, attributes.inode), attributes, parent: None };
        let (mut file, attributes) = self.opened(process, node, how);
        file.is_linkable = !how.exclusive;
        Ok((file, attributes))
    }
}

enum Found<'w> {
    There(Node<'w>),
    Created(Node<'w>),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn how(flags: i32) -> Option<How> {
        How::of(flags, 0o100_644).ok()
    }

    #[test]
    fn flags_that_do_not_go_together_are_refused() {
        for flags in [TEMPORARY | libc::O_RDWR, libc::O_TMPFILE | libc::O_RDONLY, libc::O_DIRECTORY | libc::O_CREAT] {
            assert_eq!(how(flags), None, "{flags:#o}");
        }
        assert!(how(libc::O_TMPFILE | libc::O_WRONLY).is_some());
    }

    #[test]
    fn a_call_asks_for_the_rights_that_it_uses() {
        let of = |flags: i32| how(flags).map(|how| (how.want, how.rights.read, how.rights.write));
        assert_eq!(of(libc::O_RDONLY), Some((READ, true, false)));
        assert_eq!(of(libc::O_WRONLY), Some((WRITE, false, true)));
        assert_eq!(of(libc::O_RDONLY | libc::O_TRUNC), Some((READ | WRITE, true, false)));
        assert_eq!(of(libc::O_ACCMODE), Some((READ | WRITE, false, false)), "for ioctl alone, as in Linux");
        assert_eq!(of(libc::O_PATH | libc::O_RDWR | libc::O_CREAT), Some((0, false, false)), "O_PATH ignores all but a few flags");
    }

    #[test]
    fn an_exclusive_creation_follows_no_link() {
        assert!(how(libc::O_CREAT).is_some_and(|how| how.follows && how.mode == 0o644));
        assert!(how(libc::O_CREAT | libc::O_EXCL).is_some_and(|how| !how.follows));
        assert!(how(libc::O_NOFOLLOW).is_some_and(|how| !how.follows));
    }
}
