//! Restores what a name refers to.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use tandemfs_format::attributes::Namespace;
use tandemfs_format::inode::{INLINE_LINK_MAX, Inode, file_type};

use crate::attributes;
use crate::inodes;
use crate::mend::Owner;

use super::content::{self, Piece, Quality};
use super::directories::OpenDirectory;
use super::target::{Created, NodeNumber};
use super::{DamagedRange, LISTED_MAX, Restorer, Stop, ends};

/// Longest target of a symbolic link.
const TARGET_BYTES_MAX: u64 = 4095;

impl Restorer<'_> {
    /// Restores what a name refers to. `kind` is what the name says about the type, 0 if there is nobody to say it.
    pub(super) fn place_entry(&mut self, node: NodeNumber, name: &[u8], number: u64, kind: u16) -> Result<(), Stop> {
        let Some((_, inode)) = inodes::read(self.image, number) else {
            if self.damaged.contains(&number) {
                if self.seen.claim(number, 1) {
                    return self.place_damaged(node, name, number, kind);
                }
                let path = self.target.path_of(node, name);
                self.missing(number, path, "its inode is damaged".into());
                return Ok(());
            }
            let path = self.target.path_of(node, name);
            self.missing(number, path, format!("inode {number} is not in use"));
            return Ok(());
        };
        if inode.is_directory() {
            return self.place_directory(node, name, number);
        }
        if let Some((first, first_name)) = self.linked.get(&number).cloned() {
            let linked = self.target.add_name((first, &first_name), node, name);
            match linked {
                Ok(()) => self.report.hard_links += 1,
                Err(error) if ends(error) => return Err(Stop::Target(error)),
                // The target has no hard links, or not so many: a copy has the same bytes.
                Err(error) => {
                    self.refuse("hard link (copied instead)", error, node, name);
                    self.copy(node, name, number, &inode)?;
                }
            }
            return Ok(());
        }
        if self.copy(node, name, number, &inode)? {
            self.seen.claim(number, 1);
            if inode.nlink > 1 {
                self.linked.insert(number, (node, name.to_vec()));
            }
        }
        Ok(())
    }

    fn place_directory(&mut self, node: NodeNumber, name: &[u8], number: u64) -> Result<(), Stop> {
        if !self.seen.claim(number, 1) {
            let path = self.target.path_of(node, name);
            self.missing(number, path, "a directory that is restored under another name already".into());
            return Ok(());
        }
        if let Some(made) = self.tried(node, name, "directory", |target| target.make_directory(node, name))? {
            self.open.push(OpenDirectory { number, node: made });
        }
        Ok(())
    }

    /// Copies something that is no directory. Returns whether it is there now, or is known never to be.
    fn copy(&mut self, node: NodeNumber, name: &[u8], number: u64, inode: &Inode) -> Result<bool, Stop> {
        let made = match inode.file_type() {
            file_type::REGULAR => self.copy_file(node, name, number, inode),
            file_type::SYMLINK => self.copy_link(node, name, number, inode),
            _ => self.target.make_special(node, name, inode).map(|created| {
                let is_new = matches!(created, Created::New(()));
                *(if is_new { &mut self.report.special } else { &mut self.report.complete_before }) += 1;
                is_new
            }),
        };
        self.count();
        match made {
            Ok(true) => self.set_properties(node, name, number, inode).map(|()| true),
            Ok(false) => Ok(true),
            Err(error) if ends(error) => Err(Stop::Target(error)),
            Err(Errno::EXIST) => Ok(false), // a name that the target takes for another one: the file goes to lost+found
            Err(error) => {
                let what = match inode.file_type() {
                    file_type::REGULAR => "file",
                    file_type::SYMLINK => "symbolic link",
                    _ => "device, FIFO or socket",
                };
                self.refuse(what, error, node, name);
                Ok(true)
            }
        }
    }

    /// Returns whether the file is new.
    fn copy_file(&mut self, node: NodeNumber, name: &[u8], number: u64, inode: &Inode) -> Result<bool, Errno> {
        let file = match self.target.create_file(node, name, inode)? {
            Created::New(file) => file,
            Created::Complete => {
                self.report.complete_before += 1;
                return Ok(false);
            }
        };
        let (image, ignores) = (self.image, self.options.ignore_errors);
        let path = self.target.path_of(node, name);
        content::read(image, number, inode, &mut |piece| {
            let is_copied = piece.quality == Quality::Good || ignores && piece.quality == Quality::Unverified;
            if piece.quality != Quality::Good {
                self.note_damage(number, &path, &piece, is_copied);
            }
            if is_copied {
                write_all(file.as_ref(), piece.offset, piece.bytes)?;
                self.report.bytes += piece.length;
            }
            Ok(())
        })?;
        if let Some(file) = &file {
            rustix::fs::ftruncate(file, inode.size)?;
        }
        self.report.files += 1;
        Ok(true)
    }

    fn note_damage(&mut self, inode: u64, path: &str, piece: &Piece<'_>, copied: bool) {
        self.report.damaged_bytes += piece.length;
        let has_room = self.report.damaged.len() < LISTED_MAX;
        match self.report.damaged.last_mut() {
            Some(last) if last.inode == inode && last.offset + last.bytes == piece.offset && last.copied == copied => {
                last.bytes += piece.length;
            }
            _ if has_room => {
                let range = DamagedRange { inode, path: path.to_owned(), offset: piece.offset, bytes: piece.length, copied };
                self.report.damaged.push(range);
            }
            _ => self.report.left_out += 1,
        }
    }

    fn copy_link(&mut self, node: NodeNumber, name: &[u8], number: u64, inode: &Inode) -> Result<bool, Errno> {
        let Some(target) = self.target_of(number, inode) else {
            let path = self.target.path_of(node, name);
            self.missing(number, path, "the target of this symbolic link is damaged".into());
            return Ok(false);
        };
        match self.target.make_link(node, name, inode, &target)? {
            Created::New(()) => self.report.links += 1,
            Created::Complete => {
                self.report.complete_before += 1;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The target of a symbolic link; `None` if a byte of it is damaged, since a link that leads elsewhere is worse than none.
    fn target_of(&self, number: u64, inode: &Inode) -> Option<Vec<u8>> {
        if inode.size == 0 || inode.size > TARGET_BYTES_MAX {
            return None;
        }
        let target = if inode.has_mapping() {
            let mut bytes = Vec::new();
            let read = content::read(self.image, number, inode, &mut |piece| {
                let is_next = piece.offset == bytes.len() as u64 && piece.quality == Quality::Good;
                bytes.extend_from_slice(piece.bytes);
                if is_next { Ok(()) } else { Err(()) }
            });
            read.ok().map(|()| bytes)?
        } else {
            inode.root.get(..(inode.size as usize).min(INLINE_LINK_MAX))?.to_vec()
        };
        (target.len() as u64 == inode.size && !target.contains(&0)).then_some(target)
    }

    /// Owner, mode, extended attributes and times of a name that was just made.
    pub(super) fn set_properties(&mut self, node: NodeNumber, name: &[u8], number: u64, inode: &Inode) -> Result<(), Stop> {
        let attributes = self.attributes_of(node, name, number, inode);
        let mut refused = Vec::new();
        let set = self.target.set_properties((node, name), inode, &attributes, &mut |what, error| refused.push((what, error)));
        for (what, error) in refused {
            if ends(error) && what != "extended attribute" {
                return Err(Stop::Target(error));
            }
            self.refuse(what, error, node, name);
        }
        match set {
            Err(error) if ends(error) => Err(Stop::Target(error)),
            Err(error) => {
                self.refuse("properties", error, node, name);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Names and values that verify. The others are listed.
    fn attributes_of(&mut self, node: NodeNumber, name: &[u8], number: u64, inode: &Inode) -> Vec<(Vec<u8>, Vec<u8>)> {
        if inode.attributes.is_none() {
            return Vec::new();
        }
        let (image, owner) = (self.image, Owner { inode: number, generation: inode.generation });
        let path = self.target.path_of(node, name);
        let Ok(set) = attributes::set(image, owner, inode.attributes, &mut |_, _, _| true) else {
            self.missing(number, path, "its extended attributes are damaged".into());
            return Vec::new();
        };
        let mut found = Vec::new();
        // Limits are of this file system, and programs cannot store them.
        for attribute in set.into_iter().filter(|attribute| attribute.namespace != Namespace::Quota) {
            match attributes::value(image, owner, &attribute.value, &mut |_, _, _| true) {
                Ok(value) if !attribute.full_name().contains(&0) => found.push((attribute.full_name(), value)),
                _ => {
                    let name = crate::paths::printable(&attribute.full_name());
                    self.missing(number, path.clone(), format!("its extended attribute {name} is damaged"));
                }
            }
        }
        found
    }
}

fn write_all(file: Option<&OwnedFd>, mut offset: u64, mut bytes: &[u8]) -> Result<(), Errno> {
    let Some(file) = file else { return Ok(()) };
    while !bytes.is_empty() {
        let written = match rustix::io::pwrite(file, bytes, offset) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(written) => written,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error),
        };
        bytes = bytes.get(written..).unwrap_or_default();
        offset += written as u64;
    }
    Ok(())
}
