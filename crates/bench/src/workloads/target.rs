use crate::failure::Result;

/// An open file of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle(pub u64);

/// A file system that a load runs on, with the calls that programs make. Paths are relative; `/` separates components.
///
/// Writes are volatile until synchronised, as in a kernel; names may be durable at once.
pub trait Target: Sync {
    /// Makes a directory in an existing one.
    fn make_directory(&self, path: &str) -> Result<()>;
    /// Removes an empty directory.
    fn remove_directory(&self, path: &str) -> Result<()>;
    /// Creates a new file, and opens it.
    fn create(&self, path: &str) -> Result<Handle>;
    /// Opens a file for reading and writing.
    fn open(&self, path: &str) -> Result<Handle>;
    /// Size of a file in bytes.
    fn size(&self, path: &str) -> Result<u64>;
    /// Reads up to the end of the buffer or of the file. Returns the number of bytes.
    fn read(&self, file: Handle, offset: u64, into: &mut [u8]) -> Result<usize>;
    /// Writes all bytes.
    fn write(&self, file: Handle, offset: u64, from: &[u8]) -> Result<()>;
    /// Appends all bytes.
    fn append(&self, file: Handle, from: &[u8]) -> Result<()>;
    /// fdatasync: data written before survives a power failure.
    fn synchronize(&self, file: Handle) -> Result<()>;
    /// Closes a handle.
    fn close(&self, file: Handle) -> Result<()>;
    /// Removes a file.
    fn remove(&self, path: &str) -> Result<()>;
    /// sync: everything survives a power failure.
    fn synchronize_all(&self) -> Result<()>;
    /// Drops host caches, so that reads come from the drive.
    fn drop_caches(&self) -> Result<()>;
}
