//! A target for any directory: a mount of TandemFS, or another file system for comparison.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use super::target::{Handle, Target};
use crate::failure::{Failure, Result};

/// How a file is made durable where a load asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Not at all.
    None,
    /// By fdatasync.
    Data,
    /// By fsync.
    Attributes,
    /// By fsync, and behind each write and append as well.
    EachWrite,
}

/// Files below a directory that exists, by system calls.
pub struct DirectoryTarget {
    root: PathBuf,
    durability: Durability,
    open: Mutex<HashMap<u64, Arc<File>>>,
    next: AtomicU64,
}

impl DirectoryTarget {
    /// For a directory.
    pub fn new(root: impl Into<PathBuf>, durability: Durability) -> Self {
        Self { root: root.into(), durability, open: Mutex::default(), next: AtomicU64::default() }
    }

    /// After a write of a file.
    fn written(&self, file: Handle) -> Result<()> {
        if self.durability == Durability::EachWrite { self.synchronize(file) } else { Ok(()) }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn keep(&self, file: File) -> Handle {
        let number = self.next.fetch_add(1, Relaxed);
        self.open.lock().insert(number, Arc::new(file));
        Handle(number)
    }

    fn file(&self, handle: Handle) -> Result<Arc<File>> {
        self.open.lock().get(&handle.0).cloned().ok_or_else(|| Failure::new("a file that is not open"))
    }
}

fn named<T>(path: &Path, result: std::io::Result<T>) -> Result<T> {
    result.map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

impl Target for DirectoryTarget {
    fn make_directory(&self, path: &str) -> Result<()> {
        let path = self.path(path);
        named(&path, fs::create_dir(&path))
    }

    fn remove_directory(&self, path: &str) -> Result<()> {
        let path = self.path(path);
        named(&path, fs::remove_dir(&path))
    }

    fn create(&self, path: &str) -> Result<Handle> {
        let path = self.path(path);
        let file = named(&path, OpenOptions::new().read(true).write(true).create_new(true).open(&path))?;
        Ok(self.keep(file))
    }

    fn open(&self, path: &str) -> Result<Handle> {
        let path = self.path(path);
        let file = named(&path, OpenOptions::new().read(true).write(true).open(&path))?;
        Ok(self.keep(file))
    }

    fn size(&self, path: &str) -> Result<u64> {
        let path = self.path(path);
        Ok(named(&path, fs::metadata(&path))?.len())
    }

    fn read(&self, file: Handle, offset: u64, into: &mut [u8]) -> Result<usize> {
        let file = self.file(file)?;
        let mut done = 0;
        while done < into.len() {
            match file.read_at(&mut into[done..], offset + done as u64)? {
                0 => break,
                length => done += length,
            }
        }
        Ok(done)
    }

    fn write(&self, file: Handle, offset: u64, from: &[u8]) -> Result<()> {
        self.file(file)?.write_all_at(from, offset)?;
        self.written(file)
    }

    /// Appends atomically at the end of the file: several workers may append to the log, in any order; other files have one writer.
    fn append(&self, file: Handle, from: &[u8]) -> Result<()> {
        let open = self.file(file)?;
        rustix::io::pwritev2(&*open, &[std::io::IoSlice::new(from)], u64::MAX, rustix::io::ReadWriteFlags::APPEND)
            .map_err(std::io::Error::from)
            .and_then(|written| if written == from.len() { Ok(()) } else { Err(std::io::ErrorKind::WriteZero.into()) })
            .map_err(Failure::from)?;
        self.written(file)
    }

    fn synchronize(&self, file: Handle) -> Result<()> {
        let file = self.file(file)?;
        Ok(match self.durability {
            Durability::None => Ok(()),
            Durability::Data => file.sync_data(),
            Durability::Attributes | Durability::EachWrite => file.sync_all(),
        }?)
    }

    fn close(&self, file: Handle) -> Result<()> {
        self.open.lock().remove(&file.0).map(drop).ok_or_else(|| Failure::new("a file that is not open"))
    }

    fn remove(&self, path: &str) -> Result<()> {
        let path = self.path(path);
        named(&path, fs::remove_file(&path))
    }

    fn synchronize_all(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(File::open(&self.root)?)?)
    }

    /// Calls `POSIX_FADV_DONTNEED` for each file; the kernel may keep pages.
    fn drop_caches(&self) -> Result<()> {
        self.synchronize_all()?;
        let mut directories = vec![self.root.clone()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(&directory)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    directories.push(entry.path());
                } else {
                    rustix::fs::fadvise(File::open(entry.path())?, 0, None, rustix::fs::Advice::DontNeed)?;
                }
            }
        }
        Ok(())
    }
}
