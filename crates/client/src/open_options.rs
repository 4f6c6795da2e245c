//! How a file is opened.

use std::path::Path;

use rustix::fs::OFlags;

use crate::{File, Result, Tree};

/// How a file is opened, as `std::fs::OpenOptions`.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tandemfs_client::{Mount, OpenOptions};
/// let mount = Mount::connect("/mnt")?;
/// let log = OpenOptions::new().append(true).create(true).open(&mount, "log")?;
/// log.append(b"a line\n")?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    flags: OFlags,
    mode: u32,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// For nothing yet: set `read`, `write` or `append`. New files get permissions 0666 without the umask.
    pub fn new() -> Self {
        Self { read: false, write: false, flags: OFlags::empty(), mode: 0o666 }
    }

    fn with(mut self, flag: OFlags, is_set: bool) -> Self {
        self.flags.set(flag, is_set);
        self
    }

    /// For reading.
    #[must_use]
    pub fn read(self, read: bool) -> Self {
        Self { read, ..self }
    }

    /// For writing.
    #[must_use]
    pub fn write(self, write: bool) -> Self {
        Self { write, ..self }
    }

    /// For writing, where every write goes to the end.
    #[must_use]
    pub fn append(self, append: bool) -> Self {
        self.with(OFlags::APPEND, append)
    }

    /// Empties the file.
    #[must_use]
    pub fn truncate(self, truncate: bool) -> Self {
        self.with(OFlags::TRUNC, truncate)
    }

    /// Makes the file if there is none.
    #[must_use]
    pub fn create(self, create: bool) -> Self {
        self.with(OFlags::CREATE, create)
    }

    /// Makes the file; fails if there is one.
    #[must_use]
    pub fn create_new(self, create: bool) -> Self {
        self.with(OFlags::CREATE | OFlags::EXCL, create)
    }

    /// Permissions of a new file, before the umask.
    #[must_use]
    pub fn mode(self, mode: u32) -> Self {
        Self { mode, ..self }
    }

    /// Further flags of open(2), such as O_NOFOLLOW, O_DIRECTORY, O_TMPFILE.
    #[must_use]
    pub fn custom_flags(self, flags: i32) -> Self {
        self.with(OFlags::from_bits_retain(flags.cast_unsigned()), true)
    }

    /// The flags of open(2).
    pub fn flags(&self) -> i32 {
        let access = match (self.read, self.write || self.flags.contains(OFlags::APPEND)) {
            (_, false) => OFlags::RDONLY,
            (false, true) => OFlags::WRONLY,
            (true, true) => OFlags::RDWR,
        };
        (self.flags | access).bits().cast_signed()
    }

    /// Opens a file of a tree.
    ///
    /// # Errors
    /// As openat(2).
    pub fn open(&self, tree: &impl Tree, path: impl AsRef<Path>) -> Result<File> {
        tree.open_with(path, self.flags(), self.mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_those_of_the_system_call() {
        let flags = |options: OpenOptions| OFlags::from_bits_retain(options.flags().cast_unsigned());
        assert_eq!(flags(OpenOptions::new().read(true)), OFlags::RDONLY);
        assert_eq!(flags(OpenOptions::new().append(true)), OFlags::WRONLY | OFlags::APPEND);
        assert_eq!(flags(OpenOptions::new().read(true).append(true)), OFlags::RDWR | OFlags::APPEND);
        let new = OpenOptions::new().write(true).create_new(true).truncate(true);
        assert_eq!(flags(new), OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC);
        assert_eq!(flags(new.create_new(false)), OFlags::WRONLY | OFlags::TRUNC);
    }
}
