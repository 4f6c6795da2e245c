//! Open files: a description with its offset and flags, and what programs do by descriptors.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tandemfs_device::sync::Mutex;
use tandemfs_device::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use tandemfs_device::{Sink, Source};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{
    Attributes, Borrower, DirectoryEntry, Error, FileSystem, Kept, LentExtent, MappedElsewhere, ReadOptions, SeekTo, StoreAccess,
    StoreLease, WriteOptions, leaves_to_others, may_wait,
};

use crate::caches::left;
use crate::credentials::{Credentials, Process};
use crate::mutant::{self, Mutant, Point, on};
use crate::permissions::kind;
use crate::quick::{QUICK_BYTES, QUICK_ENTRIES, bounded};
use crate::walk::Node;
use crate::{Result, Vfs, Why};

/// Most bytes that one call reads or writes, as the kernel's limit.
const CALL_BYTES_MAX: usize = 0x7fff_f000;
/// How long who maps a file for stores waits for the end of what has it open there, if that has just been closed.
const CLOSING_TRIES: u32 = 8;
const CLOSING_WAIT: Duration = Duration::from_millis(1);
/// Flags by which a write is not what a store is: past the cache, or with the times durable as well.
const NOT_STORED: i32 = libc::O_DIRECT | libc::O_SYNC & !libc::O_DSYNC;
/// The flags that F_SETFL changes.
const SETTABLE: u32 = (libc::O_APPEND | libc::O_NONBLOCK | libc::O_DIRECT | libc::O_NOATIME) as u32;

/// What the opener may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rights {
    pub(crate) read: bool,
    pub(crate) write: bool,
    /// O_PATH: a place in the tree, not a file.
    pub(crate) path_only: bool,
}

/// An open file description. It holds its inode until it is dropped.
pub struct OpenFile {
    fs: Arc<FileSystem>,
    inode: InodeNumber,
    kind: u16,
    rights: Rights,
    /// Who opened it.
    opener: Credentials,
    /// A file without a name that may get one: O_TMPFILE without O_EXCL.
    pub(crate) is_linkable: bool,
    /// The directory in which it was found when it was opened.
    parent: Option<InodeNumber>,
    /// Its end was handed back to be told to watchers ([KV8] of `lib.rs`).
    end_is_told: AtomicBool,
    flags: AtomicU32,
    /// The offset; of a directory, the cookie of the entry that was read last.
    position: Mutex<u64>,
}

/// What an offset of `lseek` counts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// The start (SEEK_SET).
    Start,
    /// The present offset (SEEK_CUR).
    Current,
    /// The end (SEEK_END).
    End,
    /// The next byte at or behind it that may have been written (SEEK_DATA).
    Data,
    /// The next hole at or behind it (SEEK_HOLE).
    Hole,
}

impl OpenFile {
    pub(crate) fn new(vfs: &Vfs, opener: &Credentials, node: Node<'_>, rights: Rights, flags: i32) -> Self {
        Self {
            fs: Arc::clone(&vfs.fs),
            kind: kind(&node.attributes),
            parent: node.parent,
            end_is_told: AtomicBool::new(false),
            inode: node.held.pass_on(),
            rights,
            opener: opener.clone(),
            is_linkable: true,
            flags: AtomicU32::new(flags.cast_unsigned()),
            position: Mutex::new(0),
        }
    }

    /// The inode.
    pub fn inode(&self) -> InodeNumber {
        self.inode
    }

    /// The flags of open(2), with what F_SETFL has changed.
    pub fn flags(&self) -> i32 {
        self.flags.load(Relaxed).cast_signed()
    }

    /// The flags of open(2) with which the same file is opened anew for exactly what this description may do: access, and what the kernel
    /// keeps of the others.
    ///
    /// # Errors
    /// `EBADF` for what can neither be read nor written, `EINVAL` for what is neither a regular file nor a directory.
    pub fn flags_to_reopen(&self) -> Result<i32> {
        let access = match (self.rights.read, self.rights.write) {
            (true, true) => libc::O_RDWR,
            (true, false) => libc::O_RDONLY,
            (false, true) => libc::O_WRONLY,
            (false, false) => return Err(Errno::BADF.into()),
        };
        let kind = match self.kind {
            file_type::REGULAR => 0,
            file_type::DIRECTORY => libc::O_DIRECTORY,
            _ => return Err(Errno::INVAL.into()),
        };
        Ok(access | kind | self.flags() & (SETTABLE.cast_signed() | libc::O_SYNC))
    }

    /// What fstat(2) shows.
    ///
    /// # Errors
    /// Damage.
    pub fn attributes(&self) -> Result<Attributes> {
        Ok(self.fs.attributes(self.inode)?)
    }

    pub(crate) fn opener(&self) -> &Credentials {
        &self.opener
    }

    pub(crate) fn kind(&self) -> u16 {
        self.kind
    }

    pub(crate) fn parent(&self) -> Option<InodeNumber> {
        self.parent
    }

    pub(crate) fn end_is_told(&self) -> bool {
        self.end_is_told.load(Relaxed)
    }

    /// A descriptor of the kernel ends for it.
    pub fn tell_end(&self) {
        self.end_is_told.store(true, Relaxed);
    }

    pub(crate) fn must_read(&self) -> Result<()> {
        if self.rights.read { Ok(()) } else { Err(Errno::BADF.into()) }
    }

    pub(crate) fn must_write(&self) -> Result<()> {
        if self.rights.write { Ok(()) } else { Err(Errno::BADF.into()) }
    }

    /// EBADF for what an O_PATH descriptor cannot do.
    pub(crate) fn must_be_a_file(&self) -> Result<()> {
        if self.rights.path_only { Err(Errno::BADF.into()) } else { Ok(()) }
    }

    /// Whether its flags let a program store what it would write ([`Vfs::lend_stores`]).
    pub fn may_be_stored_to(&self) -> bool {
        self.flags() & (libc::O_APPEND | NOT_STORED) == 0
    }

    /// Whether its flags let a program append what it would write by stores ([`Vfs::lend_stores_to_append`]).
    pub fn may_be_appended_to(&self) -> bool {
        self.flags() & NOT_STORED == 0
    }

    pub(crate) fn appends(&self) -> bool {
        self.flags() & libc::O_APPEND != 0
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if !on(Mutant::OpenNotHeld) {
            self.fs.forget(self.inode, 1);
        }
    }
}

/// An offset from a program.
pub(crate) fn offset_of(offset: i64) -> Result<u64> {
    u64::try_from(offset).map_err(|_| Errno::INVAL.into())
}

impl Vfs {
    /// Sets the flags that F_SETFL sets; others are ignored.
    ///
    /// # Errors
    /// `EBADF`, and `EPERM` for O_NOATIME on somebody else's file.
    pub fn set_flags(&self, process: &Process, file: &OpenFile, flags: i32) -> Result<()> {
        file.must_be_a_file()?;
        let (old, new) = (file.flags(), flags);
        if new & !old & libc::O_NOATIME != 0 && !process.credentials.owns(file.attributes()?.uid) {
            return Err(Errno::PERM.into());
        }
        let kept = file.flags.load(Relaxed) & !SETTABLE;
        file.flags.store(kept | new.cast_unsigned() & SETTABLE, Relaxed);
        Ok(())
    }

    /// Reads at the file's offset and moves it.
    ///
    /// # Errors
    /// `EBADF`, `EISDIR`, and errors of the device.
    pub fn read(&self, file: &OpenFile, into: &mut [u8]) -> Result<usize> {
        let mut position = file.position.lock();
        let done = self.read_bytes(file, *position, into.into())?;
        *position += done as u64;
        Ok(done)
    }

    /// Reads at an offset.
    ///
    /// # Errors
    /// As [`Vfs::read`]; `EINVAL` for a negative offset.
    pub fn read_at(&self, file: &OpenFile, offset: i64, into: &mut [u8]) -> Result<usize> {
        self.read_into(file, offset, into.into())
    }

    /// As [`Vfs::read_at`], also into memory that others use: they may see bytes before they were verified.
    ///
    /// # Errors
    /// As [`Vfs::read_at`].
    pub fn read_into(&self, file: &OpenFile, offset: i64, into: Sink<'_>) -> Result<usize> {
        self.read_bytes(file, offset_of(offset)?, into)
    }

    fn read_bytes(&self, file: &OpenFile, offset: u64, mut into: Sink<'_>) -> Result<usize> {
        file.must_read()?;
        let length = into.len().min(CALL_BYTES_MAX);
        if length as u64 > QUICK_BYTES && leaves_to_others() {
            bounded(self.fs.size(file.inode)?.saturating_sub(offset), QUICK_BYTES)?; // [KV7]; most buffers are longer than the file
        }
        self.settle(file.inode)?; // [KV6]
        // No kernel keeps these bytes.
        let kept = if file.flags() & libc::O_DIRECT == 0 { Kept::Here } else { Kept::Nowhere };
        Ok(self.fs.read_into(file.inode, offset, into.part(0..length), ReadOptions { kept })?)
    }

    /// Where the window of an open file that has this offset lies in the memory zone ([`FileSystem::lend`]), for who loads it there instead of
    /// reading it. What the mount's kernel has stored is settled first, as before a read; who keeps the answer asks afterwards whether the kernel has
    /// pages of the file.
    ///
    /// # Errors
    /// `EBADF` if it is not open for reading; `EINVAL` for a negative offset and for what is no regular file; `EOPNOTSUPP` on a drive that
    /// lends nothing; errors of the device.
    pub fn lend(&self, file: &OpenFile, offset: i64) -> Result<Vec<LentExtent>> {
        file.must_read()?;
        let offset = offset_of(offset)?;
        if file.kind != file_type::REGULAR {
            return Err(Errno::INVAL.into());
        }
        self.settle(file.inode)?; // [KV6]
        Ok(self.fs.lend(file.inode, offset)?)
    }

    /// Lends a program blocks around an offset of an open file, for stores ([`FileSystem::lend_stores`]); none where stores would not be what its
    /// writes are: at the end (O_APPEND), past the cache (O_DIRECT), with the times durable as well (O_SYNC), or where nothing is lent. The
    /// pages that the mount's kernel has are dropped before and behind it: from then on it asks for them, which ends the lease.
    ///
    /// # Errors
    /// `EBADF` if it is not open for writing; `EINVAL` for a negative offset and for what is no regular file; [`Why::Watched`](crate::Why::Watched);
    /// errors of the device.
    pub fn lend_stores(
        &self,
        process: &Process,
        file: &OpenFile,
        offset: i64,
        borrower: &Arc<Borrower>,
        access: &Arc<dyn StoreAccess>,
    ) -> Result<Option<Arc<StoreLease>>> {
        self.must_be_lent(process, file)?;
        let offset = offset_of(offset)?;
        self.lend_to_store(file, file.may_be_stored_to(), || self.fs.lend_stores(borrower, access, file.inode, offset))
    }

    /// As [`Vfs::lend_stores`], the last block of an open file with the room behind its end ([`FileSystem::lend_stores_to_append`]), also of one with
    /// O_APPEND. None where somebody has the file open and pages of it who is not told of sizes by stores. A caller who may not use the reserve gets none while nothing else is left: room is space that he does not need yet.
    ///
    /// # Errors
    /// As [`Vfs::lend_stores`].
    pub fn lend_stores_to_append(
        &self,
        process: &Process,
        file: &OpenFile,
        borrower: &Arc<Borrower>,
        access: &Arc<dyn StoreAccess>,
    ) -> Result<Option<Arc<StoreLease>>> {
        self.must_be_lent(process, file)?;
        let may = file.may_be_appended_to() && self.may_have_more(&process.credentials);
        let lent = self.lend_to_store(file, may, || {
            self.caches.as_ref().map_or(Ok(()), |caches| caches.appends_by_stores(file.inode))?;
            self.fs.lend_stores_to_append(borrower, access, file.inode)
        })?;
        // Behind the lease: who gets pages from now on ends it.
        let goes_by_sizes = |file: &OpenFile| self.caches.as_ref().is_some_and(|caches| caches.goes_by_sizes(file.inode));
        if let Some(lease) = lent.as_ref().filter(|_| goes_by_sizes(file) && !on(Mutant::RoomLentBesideMappings)) {
            self.fs.end_stores(lease)?;
            return Ok(None);
        }
        Ok(lent)
    }

    /// The errors of who asks for a file to store to.
    fn must_be_lent(&self, process: &Process, file: &OpenFile) -> Result<()> {
        file.must_write()?;
        if file.kind != file_type::REGULAR {
            return Err(Errno::INVAL.into());
        }
        self.leaves_watched_file(process, file)
    }

    fn lend_to_store(
        &self,
        file: &OpenFile,
        may: bool,
        lend: impl FnOnce() -> tandemfs_fs::Result<Option<Arc<StoreLease>>>,
    ) -> Result<Option<Arc<StoreLease>>> {
        if !may {
            return Ok(None);
        }
        self.settle(file.inode)?; // [KV6]
        let Some(lease) = lend()? else { return Ok(None) };
        // Pages that came in between have the bytes from before the lease. A page that comes in later ends it.
        if !on(Mutant::LentBesidePages) {
            self.settle(file.inode)?;
        }
        Ok(Some(lease))
    }

    /// Keeps a range of an open file where it is in the memory zone ([`FileSystem::map_elsewhere`]), for who maps it there for loads, or if it is
    /// `writable` for stores too. What the mount's kernel has stored is settled first, as before a read. A file of which the kernel has pages is
    /// left to it, and for stores one that it has open ([KV9]); for loads also a range with holes that the caller may not fill ([KV10]). May wait.
    ///
    /// # Errors
    /// `EBADF` if it is not open for reading, `EACCES` if it is to be stored to and not open for writing; `EINVAL` for a negative offset, for what
    /// is no regular file, and for a range that is empty, is no whole pages at its start, or ends behind the file; `EOPNOTSUPP` where nothing is
    /// mapped; [`Why::Cached`](crate::Why::Cached); errors of the device.
    pub fn map(&self, process: &Process, file: &OpenFile, offset: i64, length: u64, writable: bool) -> Result<MappedElsewhere> {
        file.must_read()?;
        if writable && !file.rights.write && !on(Mutant::MappedByReaders) {
            return Err(Errno::ACCESS.into());
        }
        let offset = offset_of(offset)?;
        if file.kind != file_type::REGULAR {
            return Err(Errno::INVAL.into());
        }
        if writable {
            // The kernel tells of the end of an open a moment after close(2) has returned.
            (0..CLOSING_TRIES).take_while(|_| self.leaves_open(file.inode).is_err()).for_each(|_| std::thread::sleep(CLOSING_WAIT));
            self.leaves_open(file.inode)?;
        }
        self.settle(file.inode)?; // [KV6]
        self.may_fill_holes(process, file, offset..offset.saturating_add(length), writable)?;
        let mapping = self.fs.map_elsewhere(file.inode, offset, length, writable)?;
        self.leaves_pages(file)?;
        if writable && !on(Mutant::MappedThoughOpen) {
            self.leaves_open(file.inode)?; // [KV9]
        }
        Ok(mapping)
    }

    /// [KV10]
    fn may_fill_holes(&self, process: &Process, file: &OpenFile, range: Range<u64>, writable: bool) -> Result<()> {
        let reserve = self.leaves_reserve(&process.credentials, file.inode, range.start, range.end - range.start);
        if writable || file.rights.write && reserve.is_ok() || on(Mutant::HolesFilledByReaders) {
            return Ok(reserve?);
        }
        let (hole, size) = (self.fs.seek(file.inode, range.start, SeekTo::Hole)?, self.fs.attributes(file.inode)?.size);
        match hole {
            Some(hole) if hole < range.end && range.end <= size => Err(left(Why::Cached, file.inode)),
            _ => Ok(()),
        }
    }

    /// Writes at the file's offset, or its end with O_APPEND, and moves the offset.
    ///
    /// # Errors
    /// `EBADF`, `EFBIG`, `ENOSPC`, `EDQUOT`-like limits of the reserve as `ENOSPC`, and errors of the device.
    pub fn write(&self, process: &Process, file: &OpenFile, from: &[u8]) -> Result<usize> {
        let mut position = file.position.lock();
        let offset = (!file.appends()).then_some(*position);
        let (done, end) = self.write_bytes(&process.credentials, file, offset, from.into())?;
        if done > 0 {
            *position = end;
        }
        Ok(done)
    }

    /// Writes at an offset with the flags of pwritev2(2). As in Linux, a file with O_APPEND is written at its end, unless RWF_NOAPPEND is
    /// given. The offset of the file stays.
    ///
    /// # Errors
    /// As [`Vfs::write`]; `EINVAL` for a negative offset, `EOPNOTSUPP` for flags that are not supported.
    pub fn write_at(&self, process: &Process, file: &OpenFile, offset: i64, from: &[u8], flags: i32) -> Result<usize> {
        self.write_to(process, file, offset, from.into(), flags).map(|(done, _)| done)
    }

    /// As [`Vfs::write_at`], also from memory that others may change. Returns also the offset behind what was written, which with O_APPEND
    /// only the file system knows.
    ///
    /// # Errors
    /// As [`Vfs::write_at`].
    pub fn write_to(&self, process: &Process, file: &OpenFile, offset: i64, from: Source<'_>, flags: i32) -> Result<(usize, u64)> {
        const KNOWN: i32 = libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_APPEND | RWF_NOAPPEND;
        let offset = offset_of(offset)?;
        file.must_write()?;
        if flags & !KNOWN != 0 {
            return Err(Errno::OPNOTSUPP.into());
        }
        if flags & libc::RWF_APPEND != 0 && flags & RWF_NOAPPEND != 0 {
            return Err(Errno::INVAL.into());
        }
        self.leaves_watched_file(process, file)?;
        let appends = flags & libc::RWF_APPEND != 0 || file.appends() && flags & RWF_NOAPPEND == 0;
        self.write_bytes(&process.credentials, file, (!appends).then_some(offset), from)
    }

    /// Writes at an offset, or at the end; returns how much, and the offset behind it.
    fn write_bytes(&self, who: &Credentials, file: &OpenFile, offset: Option<u64>, from: Source<'_>) -> Result<(usize, u64)> {
        file.must_write()?;
        let from = from.slice(0..from.len().min(CALL_BYTES_MAX));
        if from.is_empty() {
            return Ok((0, 0));
        }
        // As the kernel looks at a range before it asks the file system.
        if (i64::MAX as u64).saturating_sub(offset.unwrap_or(0)) < from.len() as u64 {
            return Err(Errno::INVAL.into());
        }
        bounded(from.len() as u64, QUICK_BYTES)?; // [KV7]
        let (done, end) = loop {
            let at = match offset {
                Some(offset) => offset,
                None => self.fs.size(file.inode)?,
            };
            let mut changing = self.changing(file.inode, at..at + from.len() as u64)?; // [KV6]
            self.leaves_reserve(who, file.inode, at, from.len() as u64)?;
            let taken = self.before_write(who, file.inode)?; // [KV5]
            let kept = file.flags() & libc::O_DIRECT == 0;
            let options = WriteOptions { kill_set_id: taken.set_id, kept, ..WriteOptions::default() };
            if offset.is_some() {
                break self.fs.write_from(file.inode, offset, from, options)?;
            }
            let mut is_refused = false;
            let mut may_go_to = |bytes| {
                is_refused = !changing.moves_to(bytes);
                !is_refused
            };
            match self.fs.append_where(file.inode, from, options, &mut may_go_to) {
                Err(Error::WouldWait) if is_refused => may_wait()?,
                appended => break appended?,
            }
        };
        let written = (done, offset.map_or(end, |offset| offset + done as u64));
        mutant::at(Point::Written);
        if on(Mutant::DataBeforePrivileges) {
            self.take_capabilities(file.inode)?;
        }
        Ok(written)
    }

    /// Moves the offset of a file and returns it. The offset of a directory is where [`Vfs::read_directory`] goes on.
    ///
    /// # Errors
    /// `EINVAL` for an offset before the start or behind the largest file, `ENXIO` where there is no more data.
    pub fn seek(&self, file: &OpenFile, offset: i64, from: Seek) -> Result<u64> {
        file.must_be_a_file()?;
        let mut position = file.position.lock();
        let relative = |base: u64| base.checked_add_signed(offset).filter(|to| i64::try_from(*to).is_ok()).ok_or(Errno::INVAL);
        let to = match from {
            Seek::Start => offset_of(offset)?,
            Seek::Current => relative(*position)?,
            Seek::End => relative(self.fs.size(file.inode)?)?,
            Seek::Data | Seek::Hole => {
                if file.kind != file_type::REGULAR {
                    return Err(Errno::INVAL.into());
                }
                let to = if from == Seek::Data { SeekTo::Data } else { SeekTo::Hole };
                let offset = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
                may_wait()?; // [KV7]
                self.settle(file.inode)?; // [KV6]
                self.fs.seek(file.inode, offset, to)?.ok_or(Errno::NXIO)?
            }
        };
        *position = to;
        Ok(to)
    }

    /// Visits the entries of a directory from its offset on, `.` and `..` first, until `visit` returns false; that entry comes again. The
    /// directory is locked meanwhile: `visit` must not call the file system.
    ///
    /// # Errors
    /// `EBADF`, `ENOTDIR`, `ENOENT` for a directory that was removed.
    pub fn read_directory(&self, file: &OpenFile, visit: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool) -> Result<()> {
        file.must_be_a_file()?;
        if file.kind != file_type::DIRECTORY {
            return Err(Errno::NOTDIR.into());
        }
        let mut position = file.position.lock();
        let mut reached = *position;
        let result = self.read_directory_behind(file, reached, &mut |entry| {
            let is_taken = visit(entry);
            if is_taken {
                reached = entry.cookie;
            }
            is_taken
        });
        *position = reached;
        result
    }

    /// As [`Vfs::read_directory`], behind the entry of a cookie instead of the offset, which stays; 0 for the start.
    ///
    /// # Errors
    /// As [`Vfs::read_directory`].
    pub fn read_directory_behind(&self, file: &OpenFile, cookie: u64, visit: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool) -> Result<()> {
        file.must_be_a_file()?;
        if file.kind != file_type::DIRECTORY {
            return Err(Errno::NOTDIR.into());
        }
        if file.attributes()?.nlink == 0 {
            return Err(Errno::NOENT.into());
        }
        let (mut entries, mut is_long) = (0, Ok(()));
        let counted = &mut |entry: &DirectoryEntry<'_>| {
            entries += 1;
            is_long = bounded(entries, QUICK_ENTRIES.into()); // [KV7]
            is_long.is_ok() && visit(entry)
        };
        self.fs.read_directory(file.inode, cookie, counted)?;
        Ok(is_long?)
    }

    /// Makes durable what was written: it is already, but for stores by mappings, and for times of what is lent. Inside of
    /// [`FileSystem::noting`](tandemfs_fs::FileSystem::noting) it also says how long the data need not be synced again.
    ///
    /// # Errors
    /// `EBADF`; `EIO` if the file system stopped after a failure.
    pub fn sync(&self, file: &OpenFile, data_only: bool) -> Result<()> {
        file.must_be_a_file()?;
        if self.fs.is_read_only() {
            return Ok(());
        }
        match data_only {
            true => self.fs.note_synced(file.inode)?,
            false => self.fs.note_times_of_stores(file.inode)?,
        }
        Ok(self.fs.sync_mapped(Some(file.inode))?)
    }
}

/// Since Linux 6.9; the binding does not have it.
const RWF_NOAPPEND: i32 = 0x20;
