//! renameat2(2), with the checks of Linux in their order.

use rustix::io::Errno;
use tandemfs_format::InodeNumber;
use tandemfs_fs::{Error, RenameMode, may_wait};

use crate::Vfs;
use crate::caches::left;
use crate::credentials::Process;
use crate::flags::rename_mode;
use crate::mutant::{self, Mutant, Point, on};
use crate::permissions::{WRITE, is_directory};
use crate::quick::{QUICK_FILE_BYTES, bounded};
use crate::refusal::{Refused, Result, Why};
use crate::walk::{At, Last, Node, TRIES_MAX, Walk};

/// Most directories between a directory and the root; a deeper tree is taken for damaged.
const DEPTH_MAX: usize = 1 << 16;

/// One of the two names.
struct Name<'w> {
    walk: Walk<'w>,
    name: Vec<u8>,
    has_slash: bool,
}

impl Vfs {
    /// Renames, with the flags of renameat2(2).
    ///
    /// # Errors
    /// As renameat2(2).
    pub fn rename(&self, process: &Process, from: (At<'_>, &[u8]), to: (At<'_>, &[u8]), flags: u32) -> Result<()> {
        let leaves_whiteout = flags & libc::RENAME_WHITEOUT != 0;
        let mode = rename_mode(flags & !libc::RENAME_WHITEOUT).ok_or(Errno::INVAL)?;
        if leaves_whiteout && mode == RenameMode::Exchange {
            return Err(Errno::INVAL.into());
        }
        let mut source = Walk::start(self, process, from.0, from.1, false)?;
        let (source_last, source_slash) = source.walk_to_last()?;
        let to_second = || {
            let mut walk = Walk::start(self, process, to.0, to.1, false)?;
            let last = walk.walk_to_last()?;
            Ok((walk, last))
        };
        let (target, (target_last, target_slash)) = to_second().map_err(Refused::of_second_path)?;
        let Last::Name(name) = source_last else { return Err(Errno::BUSY.into()) };
        let source = Name { walk: source, name, has_slash: source_slash };
        let Last::Name(name) = target_last else {
            return Err(if mode == RenameMode::NoReplace { Errno::EXIST } else { Errno::BUSY }.into());
        };
        let target = Name { walk: target, name, has_slash: target_slash };
        self.must_be_writable()?;
        let whiteout = leaves_whiteout.then_some((process.credentials.uid, process.credentials.gid));
        for _ in 0..TRIES_MAX {
            match self.rename_once(process, &source, &target, mode, whiteout) {
                Err(Refused::FileSystem(Error::Changed)) => {}
                other => return other,
            }
        }
        Err(Errno::BUSY.into())
    }

    fn rename_once(&self, process: &Process, from: &Name<'_>, to: &Name<'_>, mode: RenameMode, whiteout: Option<(u32, u32)>) -> Result<()> {
        let found = from.walk.look_up_to_change(&from.name)?.ok_or(Errno::NOENT)?;
        let replaced = to.walk.look_up_to_change(&to.name).map_err(Refused::of_second_path)?;
        self.check_kinds((from, &found), (to, replaced.as_ref()), mode)?;
        if replaced.as_ref().is_some_and(|replaced| replaced.number() == found.number()) {
            return Ok(());
        }
        self.leaves_mount_points(process, &found)?;
        if let Some(replaced) = &replaced {
            self.leaves_mount_points(process, replaced)?;
        }
        self.permit_rename(process, (&from.walk.at, &found), (&to.walk.at, replaced.as_ref()), mode)?;
        if let Some(replaced) = replaced.as_ref().filter(|replaced| replaced.attributes.nlink < 2) {
            bounded(replaced.attributes.size, QUICK_FILE_BYTES)?; // [KV7]
        }
        let directories = (from.walk.at.number(), to.walk.at.number());
        self.leaves_watched_move(process, directories, (found.number(), replaced.as_ref().map(Node::number)))?;
        mutant::at(Point::Checked);
        // [KV3]
        let inodes = (found.number(), replaced.as_ref().map(Node::number));
        let (from, to) = ((from.walk.at.number(), &from.name[..]), (to.walk.at.number(), &to.name[..]));
        if on(Mutant::RenamedUnseen) {
            return Ok(self.fs.rename(from.0, from.1, to.0, to.1, mode)?);
        }
        self.fs.rename_inodes(from, to, mode, whiteout, inodes)?;
        let moves_directory = is_directory(&found.attributes);
        drop((found, replaced));
        if mode != RenameMode::Exchange {
            // Who knows a directory by its old name finds it by the new one.
            if !moves_directory {
                self.name_gone(from.0, from.1, inodes.0);
            }
            if let Some(replaced) = inodes.1 {
                self.name_gone(to.0, to.1, replaced);
            }
        }
        Ok(())
    }

    /// What is refused whoever asks: what exists and what does not, slashes behind files, directories below themselves.
    fn check_kinds(
        &self,
        (from, found): (&Name<'_>, &Node<'_>),
        (to, replaced): (&Name<'_>, Option<&Node<'_>>),
        mode: RenameMode,
    ) -> Result<()> {
        let of_target = replaced.map(|replaced| is_directory(&replaced.attributes));
        let exchanges = mode == RenameMode::Exchange;
        if from.walk.at.number() != to.walk.at.number() && (is_directory(&found.attributes) || of_target == Some(true)) {
            may_wait()?; // [KV7]: all directories above are looked at
        }
        match (mode, of_target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EXIST.into()),
            (RenameMode::Exchange, None) => return Err(Errno::NOENT.into()),
            (RenameMode::Exchange, Some(false)) if to.has_slash => return Err(Errno::NOTDIR.into()),
            _ => {}
        }
        if !is_directory(&found.attributes) && (from.has_slash || !exchanges && to.has_slash) {
            return Err(Errno::NOTDIR.into());
        }
        let (from, to) = (from.walk.at.number(), to.walk.at.number());
        if from != to && is_directory(&found.attributes) && self.is_at_or_above(found.number(), to)? || found.number() == to {
            return Err(Errno::INVAL.into());
        }
        if let (Some(replaced), Some(true)) = (replaced, of_target)
            && from != to
            && self.is_at_or_above(replaced.number(), from)?
        {
            return Err(if exchanges { Errno::INVAL } else { Errno::NOTEMPTY }.into());
        }
        Ok(())
    }

    /// [KV4]: the kernel knows what is mounted below a directory by the directory's old name, so it has to move it itself.
    fn leaves_mount_points(&self, process: &Process, moved: &Node<'_>) -> Result<()> {
        if process.mount_points.is_empty() || !is_directory(&moved.attributes) || on(Mutant::MountsMoved) {
            return Ok(());
        }
        may_wait()?; // [KV7]: all directories above are looked at
        // Where something is mounted on a file, the directories above it cannot be told.
        let is_above = |point: InodeNumber| -> Result<bool> {
            Ok(!is_directory(&self.fs.attributes(point)?) || self.is_at_or_above(moved.number(), point)?)
        };
        if process.mount_points.iter().any(|point| is_above(*point).unwrap_or(true)) {
            Err(left(Why::MountPoint, moved.number()))
        } else {
            Ok(())
        }
    }

    /// What is refused for lack of rights. A directory that gets another parent must be writable itself, since its `..` changes.
    fn permit_rename(
        &self,
        process: &Process,
        (from, found): (&Node<'_>, &Node<'_>),
        (to, replaced): (&Node<'_>, Option<&Node<'_>>),
        mode: RenameMode,
    ) -> Result<()> {
        let who = &process.credentials;
        let moves_directory = is_directory(&found.attributes);
        self.permit_removal(who, &from.attributes, &found.attributes, moves_directory)?;
        match replaced {
            None => self.permit_new_name(who, &to.attributes)?,
            Some(replaced) => {
                let of_directory = if mode == RenameMode::Exchange { is_directory(&replaced.attributes) } else { moves_directory };
                self.permit_removal(who, &to.attributes, &replaced.attributes, of_directory)?;
            }
        }
        if from.number() == to.number() {
            return Ok(());
        }
        if moves_directory {
            self.permit(who, &found.attributes, WRITE)?;
        }
        match replaced {
            Some(replaced) if mode == RenameMode::Exchange && is_directory(&replaced.attributes) => {
                self.permit(who, &replaced.attributes, WRITE)
            }
            _ => Ok(()),
        }
    }

    /// Whether a directory is another, or above it. The file system decides again under its locks.
    fn is_at_or_above(&self, directory: InodeNumber, mut below: InodeNumber) -> Result<bool> {
        for _ in 0..DEPTH_MAX {
            if below == directory {
                return Ok(true);
            }
            if below == InodeNumber::ROOT {
                return Ok(false);
            }
            below = self.fs.lookup(below, b"..")?.inode;
        }
        Err(Error::Stale(below).into())
    }
}
