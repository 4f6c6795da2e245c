use crate::failure::Result;

/// An open file of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle(pub u64);

/// What a load runs on: a file system, by the calls that programs make. Paths are relative, parts parted by `/`.
///
/// Writes are volatile until they are synchronised, as in a kernel; names may be durable at once.
pub trait Target: Sync {
    /// Makes a directory in one that exists.
    fn make_directory(&self, path: &str) -> Result<()>;
    /// Removes an empty directory.
    fn remove_directory(&self, path: &str) -> Result<()>;
    /// Creates a file that does not exist, and opens it.
    fn create(&self, path: &str) -> Result<Handle>;
    /// Opens a file for reading and writing.
    fn open(&self, path: &str) -> Result<Handle>;
    /// Size of a file in bytes.
    fn size(&self, path: &str) -> Result<u64>;
    /// Reads up to the end of the buffer or of the file. Returns how many bytes.
    fn read(&self, file: Handle, offset: u64, into: &mut [u8]) -> Result<usize>;
    /// Writes all bytes.
    fn write(&self, file: Handle, offset: u64, from: &[u8]) -> Result<()>;
    /// Writes all bytes at the end.
    fn append(&self, file: Handle, from: &[u8]) -> Result<()>;
    /// fdatasync: what was written survives a power failure.
    fn synchronize(&self, file: Handle) -> Result<()>;
    /// Ends the use of a handle.
    fn close(&self, file: Handle) -> Result<()>;
    /// Removes a file.
    fn remove(&self, path: &str) -> Result<()>;
    /// sync: everything survives a power failure.
    fn synchronize_all(&self) -> Result<()>;
    /// Forgets what is cached on the host, so that reads come from the drive.
    fn drop_caches(&self) -> Result<()>;
}
