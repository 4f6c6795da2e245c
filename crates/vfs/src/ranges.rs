//! fallocate(2) and copy_file_range(2).

use rustix::io::Errno;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{AllocateMode, WriteOptions, may_wait};

use crate::Vfs;
use crate::credentials::Process;
use crate::file::{OpenFile, offset_of};
use crate::flags::allocate_mode;
use crate::refusal::Result;

/// Most bytes that one call copies; programs continue after a short copy anyway.
const COPY_BYTES_MAX: u64 = 64 << 20;

impl Vfs {
    /// fallocate(2), with its flags.
    ///
    /// # Errors
    /// As fallocate(2); `EOPNOTSUPP` for collapse, insert and unshare, which the mount does not have either.
    pub fn allocate(&self, process: &Process, file: &OpenFile, flags: u32, offset: i64, length: i64) -> Result<()> {
        let who = &process.credentials;
        file.must_be_a_file()?;
        let (offset, length) = (offset_of(offset)?, offset_of(length)?);
        if length == 0 {
            return Err(Errno::INVAL.into());
        }
        let known = is_known_to_linux(flags);
        if !known {
            return Err(Errno::OPNOTSUPP.into());
        }
        file.must_write()?;
        match file.kind() {
            file_type::REGULAR => {}
            file_type::DIRECTORY => return Err(Errno::ISDIR.into()),
            _ => return Err(Errno::NODEV.into()),
        }
        if offset + length > i64::MAX as u64 {
            return Err(Errno::FBIG.into());
        }
        let mode = allocate_mode(flags).ok_or(Errno::OPNOTSUPP)?;
        self.leaves_watched_file(process, file)?;
        may_wait()?; // [KV7]
        if mode != AllocateMode::Punch {
            self.leaves_reserve(who, file.inode(), offset, length)?;
        }
        let _changing = self.changing(file.inode(), offset..offset + length)?; // [KV6]
        self.before_change(who, file.inode())?; // [KV5]
        Ok(self.fs.allocate(file.inode(), offset, length, mode)?)
    }

    /// copy_file_range(2), at two offsets. Returns how much was copied, which may be less than asked for.
    ///
    /// # Errors
    /// As copy_file_range(2).
    pub fn copy_range(&self, process: &Process, from: (&OpenFile, i64), to: (&OpenFile, i64), length: u64, flags: u32) -> Result<u64> {
        let who = &process.credentials;
        let ((source, from), (target, to)) = (from, to);
        if flags != 0 {
            return Err(Errno::INVAL.into());
        }
        source.must_be_a_file()?;
        target.must_be_a_file()?;
        for file in [source, target] {
            match file.kind() {
                file_type::REGULAR => {}
                file_type::DIRECTORY => return Err(Errno::ISDIR.into()),
                _ => return Err(Errno::INVAL.into()),
            }
        }
        source.must_read()?;
        target.must_write()?;
        if target.appends() {
            return Err(Errno::BADF.into());
        }
        let (from, to) = (offset_of(from)?, offset_of(to)?);
        if from.checked_add(length).is_none() || to.checked_add(length).is_none() {
            return Err(Errno::OVERFLOW.into());
        }
        let left = self.fs.size(source.inode())?.saturating_sub(from);
        let length = length.min(left);
        let overlaps = from < to + length && to < from + length;
        if source.inode() == target.inode() && overlaps {
            return Err(Errno::INVAL.into());
        }
        if length == 0 {
            return Ok(0);
        }
        if to >= i64::MAX as u64 {
            return Err(Errno::FBIG.into());
        }
        self.leaves_watched_file(process, source)?;
        self.leaves_watched_file(process, target)?;
        may_wait()?; // [KV7]
        let length = length.min(COPY_BYTES_MAX).min(i64::MAX as u64 - to);
        self.leaves_reserve(who, target.inode(), to, length)?;
        self.settle(source.inode())?; // [KV6]
        let _changing = self.changing(target.inode(), to..to + length)?;
        self.before_change(who, target.inode())?; // [KV5]
        Ok(self.fs.copy_range((source.inode(), from), (target.inode(), to), length, WriteOptions::default())?)
    }
}

/// One mode at a time; punching keeps the size, collapsing and inserting cannot.
fn is_known_to_linux(flags: u32) -> bool {
    let keeps_size = flags & libc::FALLOC_FL_KEEP_SIZE as u32 != 0;
    match flags.cast_signed() & !libc::FALLOC_FL_KEEP_SIZE {
        0 | libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_UNSHARE_RANGE => true,
        libc::FALLOC_FL_PUNCH_HOLE => keeps_size,
        libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE => !keeps_size,
        _ => false,
    }
}
