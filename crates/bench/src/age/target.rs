//! Where ageing happens: a directory of any mounted file system, or an image of TandemFS, used as a library.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, fallocate, statvfs};
use tandemfs_device::Drive;
use tandemfs_format::InodeNumber;
use tandemfs_fs::{AllocateMode, CompactionRun, FileSystem, Home, LayoutOptions, LayoutPlace, MountOptions, WriteOptions};

use super::survey::{Free, Piece, of_peer};
use crate::failure::{Failure, Result};
use crate::scene;
use crate::workloads::Directories;

/// The directory that holds the aged files.
const TREE: &str = "aged";
/// Written at once.
const WRITE_BYTES: usize = 1 << 20;

/// A file system that is aged. Paths are relative to the directory where that happens.
pub trait Target: Sync {
    /// Size of the file system, in bytes.
    fn capacity_bytes(&self) -> Result<u64>;
    /// Makes a directory; it may be there.
    fn make_directory(&self, path: &str) -> Result<()>;
    /// Makes a file of this size and gives it space; its bytes are written if `is_written`. A file of that name is replaced.
    fn create(&self, path: &str, bytes: u64, is_written: bool) -> Result<()>;
    /// Removes a file; it may be gone.
    fn remove(&self, path: &str) -> Result<()>;
    /// Compacts until nothing is left to do.
    fn compact(&self) -> Result<()>;
    /// Bytes that compaction has moved since it was opened, the background's too.
    fn moved_bytes(&self) -> u64;
    /// Makes everything durable, and waits until freed space is free.
    fn settle(&self) -> Result<()>;
    /// What is free.
    fn free(&self) -> Result<Free>;
    /// Where the bytes of a file lie.
    fn pieces(&self, path: &str) -> Result<Vec<Piece>>;
}

/// Opens what the command names: a directory, or a device of TandemFS, on which files live in the memory zone if `in_memory`.
pub fn open(target: &Path, in_memory: bool) -> Result<Box<dyn Target>> {
    if target.is_dir() {
        if in_memory {
            return Err(Failure::new("--memory is for images of TandemFS"));
        }
        let tree = target.join(TREE);
        create_directory(&tree)?;
        return Ok(Box::new(Mounted { tree }));
    }
    let drive = Drive::new(scene::open(scene::path_text(target)?, false)?);
    let fs = scene::mount(drive, &MountOptions::default())?;
    let root = match fs.lookup(InodeNumber::ROOT, TREE.as_bytes()) {
        Ok(attributes) => attributes.inode,
        Err(_) => fs.create(InodeNumber::ROOT, TREE.as_bytes(), &scene::new_directory())?.inode,
    };
    if in_memory {
        fs.set_home(root, Home::Memory)?;
    }
    Ok(Box::new(Library { fs, in_memory, directories: Directories::below(root) }))
}

/// A directory of a mounted file system.
struct Mounted {
    tree: PathBuf,
}

fn create_directory(path: &Path) -> Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(Failure::new(format!("{}: {error}", path.display()))),
        _ => Ok(()),
    }
}

impl Target for Mounted {
    fn capacity_bytes(&self) -> Result<u64> {
        let space = statvfs(&self.tree)?;
        Ok(space.f_blocks * space.f_frsize)
    }

    fn make_directory(&self, path: &str) -> Result<()> {
        create_directory(&self.tree.join(path))
    }

    fn create(&self, path: &str, bytes: u64, is_written: bool) -> Result<()> {
        let path = self.tree.join(path);
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
        if !is_written {
            return Ok(fallocate(&file, FallocateFlags::empty(), 0, bytes)?);
        }
        let text = vec![0x5a; WRITE_BYTES.min(bytes as usize)];
        let mut left = bytes as usize;
        while left > 0 {
            file.write_all(&text[..left.min(WRITE_BYTES)])?;
            left -= left.min(WRITE_BYTES);
        }
        Ok(())
    }

    fn remove(&self, path: &str) -> Result<()> {
        match fs::remove_file(self.tree.join(path)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn compact(&self) -> Result<()> {
        Err(Failure::new("--compact is for images of TandemFS"))
    }

    fn moved_bytes(&self) -> u64 {
        0
    }

    fn settle(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(File::open(&self.tree)?)?)
    }

    fn free(&self) -> Result<Free> {
        let space = statvfs(&self.tree)?;
        of_peer::free(&self.tree, space.f_bfree * space.f_frsize)
    }

    fn pieces(&self, path: &str) -> Result<Vec<Piece>> {
        of_peer::pieces(&self.tree.join(path))
    }
}

/// TandemFS as a library, alone on its device.
struct Library {
    fs: Arc<FileSystem>,
    in_memory: bool,
    directories: Directories,
}

impl Library {
    fn parent<'p>(&self, path: &'p str) -> Result<(InodeNumber, &'p [u8])> {
        self.directories.resolve(&self.fs, path)
    }
}

impl Target for Library {
    fn capacity_bytes(&self) -> Result<u64> {
        let space = self.fs.space();
        Ok(if self.in_memory { space.memory.total_bytes } else { space.block.total_bytes })
    }

    fn make_directory(&self, path: &str) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        match self.fs.create(parent, name, &scene::new_directory()) {
            Ok(_) | Err(tandemfs_fs::Error::Exists) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn create(&self, path: &str, bytes: u64, is_written: bool) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        let made = match self.fs.create(parent, name, &scene::new_file()) {
            Err(tandemfs_fs::Error::Exists) => {
                self.fs.unlink(parent, name)?;
                self.fs.create(parent, name, &scene::new_file())?
            }
            made => made?,
        };
        if !is_written {
            return Ok(self.fs.allocate(made.inode, 0, bytes, AllocateMode::Allocate { keep_size: false })?);
        }
        let text = vec![0x5a; WRITE_BYTES.min(bytes as usize)];
        let pieces = (0..bytes).step_by(WRITE_BYTES);
        pieces.into_iter().try_for_each(|offset| {
            let here = &text[..(bytes - offset).min(WRITE_BYTES as u64) as usize];
            scene::write(&self.fs, made.inode, offset, here, WriteOptions::default())
        })
    }

    fn remove(&self, path: &str) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        match self.fs.unlink(parent, name) {
            Ok(()) | Err(tandemfs_fs::Error::NotFound) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn compact(&self) -> Result<()> {
        let mut run = CompactionRun::default();
        while self.fs.compact_step(&mut run)? {}
        Ok(())
    }

    fn moved_bytes(&self) -> u64 {
        self.fs.statistics().work.compacted_bytes
    }

    fn settle(&self) -> Result<()> {
        Ok(self.fs.checkpoint()?)
    }

    fn free(&self) -> Result<Free> {
        let (space, (in_memory, in_blocks)) = (self.fs.space(), self.fs.aligned_free_bytes());
        let (bytes, aligned_bytes) = match self.in_memory {
            true => (space.memory.free_bytes, in_memory),
            false => (space.block.free_bytes, in_blocks),
        };
        Ok(Free { bytes, aligned_bytes: Some(aligned_bytes) })
    }

    fn pieces(&self, path: &str) -> Result<Vec<Piece>> {
        if self.in_memory {
            return Err(Failure::new("a layout tells no places in the memory zone"));
        }
        let (parent, name) = self.parent(path)?;
        let attributes = self.fs.lookup(parent, name)?;
        let (mut pieces, mut at) = (Vec::new(), 0);
        while at < attributes.size {
            let layout = self.fs.layout(attributes.inode, at, attributes.size - at, LayoutOptions { settle: true }, || ())?;
            for extent in layout.extents() {
                if let LayoutPlace::Sectors { sector } | LayoutPlace::Unwritten { sector } = extent.place {
                    pieces.push(Piece { offset: extent.file_offset, at: sector.offset_bytes(), bytes: extent.bytes });
                }
            }
            at = layout.next_offset().unwrap_or(attributes.size);
        }
        Ok(pieces)
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if let Err(error) = self.fs.unmount() {
            let _unread = writeln!(std::io::stderr(), "tandemfs-bench: unmount: {error}");
        }
    }
}
