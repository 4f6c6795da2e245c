//! The file system as a library, with the caches that a kernel would have in front of a mount: pages ([`PageCache`]) and directory names.
//!
//! In strict semantics there is no page cache: every write goes to the file system and is durable on return.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tandemfs_format::InodeNumber;
use tandemfs_fs::{FileSystem, Kept, ReadOptions, WriteOptions};

use super::page_cache::{Backing, PageCache};
use super::target::{Handle, Target};
use crate::failure::Result;
use crate::scene;

/// A mounted file system.
pub struct LibraryTarget {
    fs: Arc<FileSystem>,
    directories: Directories,
    cache: Option<PageCache>,
}

impl LibraryTarget {
    /// With a page cache of this many bytes in relaxed semantics, without one in strict semantics.
    pub fn new(fs: Arc<FileSystem>, cache_bytes: Option<u64>) -> Self {
        Self { fs, directories: Directories::below(InodeNumber::ROOT), cache: cache_bytes.map(PageCache::new) }
    }

    fn below(&self) -> Below<'_> {
        Below { fs: &self.fs, has_cache: self.cache.is_some() }
    }

    /// Writes back the pages of one file. Returns false if nothing is dirty.
    pub fn write_back_one(&self) -> Result<bool> {
        self.cache.as_ref().map_or(Ok(false), |cache| cache.write_back_one(&self.below()))
    }

    fn resolve<'p>(&self, path: &'p str) -> Result<(InodeNumber, &'p [u8])> {
        self.directories.resolve(&self.fs, path)
    }
}

/// Directories below one, as a kernel caches their names.
pub struct Directories {
    root: InodeNumber,
    known: Mutex<HashMap<String, InodeNumber>>,
}

impl Directories {
    /// Those below a directory.
    pub fn below(root: InodeNumber) -> Self {
        Self { root, known: Mutex::default() }
    }

    /// The parent directory of a path, and the last name.
    pub fn resolve<'p>(&self, fs: &FileSystem, path: &'p str) -> Result<(InodeNumber, &'p [u8])> {
        let Some((directory, name)) = path.rsplit_once('/') else { return Ok((self.root, path.as_bytes())) };
        if let Some(number) = self.known.lock().get(directory) {
            return Ok((*number, name.as_bytes()));
        }
        let (parent, last) = self.resolve(fs, directory)?;
        let number = fs.lookup(parent, last)?.inode;
        self.known.lock().insert(directory.to_owned(), number);
        Ok((number, name.as_bytes()))
    }

    /// After a directory was removed.
    fn forget(&self, path: &str) {
        self.known.lock().remove(path);
    }
}

/// The file system below a page cache, or without one.
struct Below<'f> {
    fs: &'f FileSystem,
    has_cache: bool,
}

impl Backing for Below<'_> {
    fn read(&self, file: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
        Ok(self.fs.read_with(
            InodeNumber::new(file),
            offset,
            into,
            ReadOptions { kept: if self.has_cache { Kept::ToCompare } else { Kept::Here } },
        )?)
    }

    fn write(&self, file: u64, offset: u64, from: &[u8]) -> Result<()> {
        let options = WriteOptions { compare: self.has_cache, ..WriteOptions::default() };
        scene::write(self.fs, InodeNumber::new(file), offset, from, options)
    }
}

impl Target for LibraryTarget {
    fn make_directory(&self, path: &str) -> Result<()> {
        let (parent, name) = self.resolve(path)?;
        self.fs.create(parent, name, &scene::new_directory())?;
        Ok(())
    }

    fn remove_directory(&self, path: &str) -> Result<()> {
        let (parent, name) = self.resolve(path)?;
        self.directories.forget(path);
        Ok(self.fs.remove_directory(parent, name)?)
    }

    fn create(&self, path: &str) -> Result<Handle> {
        let (parent, name) = self.resolve(path)?;
        let file = self.fs.create(parent, name, &scene::new_file())?.inode.get();
        if let Some(cache) = &self.cache {
            cache.open(file, 0);
        }
        Ok(Handle(file))
    }

    fn open(&self, path: &str) -> Result<Handle> {
        let (parent, name) = self.resolve(path)?;
        let attributes = self.fs.lookup(parent, name)?;
        if let Some(cache) = &self.cache {
            cache.open(attributes.inode.get(), attributes.size);
        }
        Ok(Handle(attributes.inode.get()))
    }

    fn size(&self, path: &str) -> Result<u64> {
        let (parent, name) = self.resolve(path)?;
        let attributes = self.fs.lookup(parent, name)?;
        let cached = self.cache.as_ref().and_then(|cache| cache.size(attributes.inode.get()));
        Ok(cached.unwrap_or(attributes.size))
    }

    fn read(&self, file: Handle, offset: u64, into: &mut [u8]) -> Result<usize> {
        let below = self.below();
        match &self.cache {
            Some(cache) => cache.read(&below, file.0, offset, into),
            None => below.read(file.0, offset, into),
        }
    }

    fn write(&self, file: Handle, offset: u64, from: &[u8]) -> Result<()> {
        let below = self.below();
        match &self.cache {
            Some(cache) => cache.write(&below, file.0, Some(offset), from),
            None => below.write(file.0, offset, from),
        }
    }

    fn append(&self, file: Handle, from: &[u8]) -> Result<()> {
        if let Some(cache) = &self.cache {
            return cache.write(&self.below(), file.0, None, from);
        }
        let options = WriteOptions { append: true, ..WriteOptions::default() };
        scene::write(&self.fs, InodeNumber::new(file.0), 0, from, options)
    }

    fn synchronize(&self, file: Handle) -> Result<()> {
        if let Some(cache) = &self.cache {
            cache.write_back(&self.below(), file.0)?;
        }
        Ok(self.fs.sync()?)
    }

    fn close(&self, _file: Handle) -> Result<()> {
        Ok(())
    }

    fn remove(&self, path: &str) -> Result<()> {
        let (parent, name) = self.resolve(path)?;
        if let Some(cache) = &self.cache {
            let number = self.fs.lookup(parent, name)?.inode.get();
            cache.forget(number);
        }
        Ok(self.fs.unlink(parent, name)?)
    }

    fn synchronize_all(&self) -> Result<()> {
        if let Some(cache) = &self.cache {
            cache.write_back_all(&self.below())?;
        }
        Ok(self.fs.sync()?)
    }

    fn drop_caches(&self) -> Result<()> {
        self.synchronize_all()?;
        if let Some(cache) = &self.cache {
            cache.drop_clean();
        }
        Ok(())
    }
}
