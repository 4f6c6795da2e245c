//! Copies a range from one file to another, or within one file: a read and a write, piece by piece.
//!
//! [CR1] Pieces are copied front to back, each at most [`TX_DATA_MAX`] bytes and durable before the next is read: a crash leaves a prefix
//!       of the copy.
//! [CR2] A hole that covers a whole block of the target stays a hole: the target range is punched, and the file grows over it. Smaller
//!       holes are copied as zeros.
//! [CR3] No lock is held between the read of a piece and its write, as between `read` and `write` of a program. Each piece looks at the size of the
//!       source again: what is behind the end is no hole.

use tandemfs_format::InodeNumber;
use tandemfs_format::inode::FILE_BYTES_MAX;
use tandemfs_format::journal::TX_DATA_MAX;

use super::mutants;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::mutant::{Mutant, on};
use crate::statistics::counted;
use crate::types::{AllocateMode, SeekTo, SetAttributes, SetTime, WriteOptions};
use crate::wait::may_wait;

impl FileSystem {
    /// Copies up to `length` bytes, fewer if the source ends. Returns the number copied. Times and set-id bits change as after a write.
    ///
    /// # Errors
    /// `InvalidArgument` for overlapping ranges of one file, for `append` and for a file that is not regular; errors of reading and
    /// writing. If a later piece fails, the call returns the number of bytes copied before it.
    pub fn copy_range(
        &self,
        (from, from_offset): (InodeNumber, u64),
        (to, to_offset): (InodeNumber, u64),
        length: u64,
        options: WriteOptions,
    ) -> Result<u64> {
        may_wait()?;
        let _counted = counted(&self.volume.live.operations.copy_range);
        self.volume.health.check_writable()?;
        if options.append {
            return Err(Error::InvalidArgument("a range is not copied to the end of a file"));
        }
        for number in [from, to] {
            self.inodes.get(&self.volume, number)?.must_be_regular("only regular files are copied")?;
        }
        let size = self.attributes(from)?.size;
        let length = length.min(size.saturating_sub(from_offset));
        if length == 0 {
            return Ok(0);
        }
        if to_offset.checked_add(length).is_none_or(|end| end > FILE_BYTES_MAX) {
            return Err(Error::FileTooLarge);
        }
        if from == to && from_offset < to_offset + length && to_offset < from_offset + length {
            return Err(Error::InvalidArgument("the ranges overlap"));
        }
        let mut copy = Copy { from, to, from_offset, to_offset, options, buffer: Vec::new(), wrote: false };
        let mut done = 0;
        while done < length {
            match copy.piece(self, done, length) {
                Ok(0) => break, // the source was truncated meanwhile
                Ok(copied) => done += copied,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        if !copy.wrote && done > 0 {
            // A copy of holes only writes no bytes, but it still counts as a write.
            let mtime = (!options.keep_times).then_some(SetTime::Now);
            self.set_attributes(to, &SetAttributes { mtime, kill_set_id: options.kill_set_id, ..SetAttributes::default() })?;
        }
        Ok(done)
    }
}

struct Copy {
    from: InodeNumber,
    to: InodeNumber,
    from_offset: u64,
    to_offset: u64,
    options: WriteOptions,
    buffer: Vec<u8>,
    /// Whether bytes were written, which sets times and set-id bits.
    wrote: bool,
}

impl Copy {
    /// Copies the next piece after the first `done` bytes. Returns its length.
    fn piece(&mut self, fs: &FileSystem, done: u64, length: u64) -> Result<u64> {
        let (at, target) = (self.from_offset + done, self.to_offset + done);
        let (data, size) = fs.seek_and_size(self.from, at, SeekTo::Data)?;
        let length = length.min(size.saturating_sub(self.from_offset)); // [CR3]
        if done >= length {
            return Ok(0);
        }
        let hole = data.map_or(length - done, |data| data - at).min(length - done);
        if self.keeps_hole(fs, target, hole) {
            // First punch the part inside the target, then grow the target.
            let inside = hole.min(fs.attributes(self.to)?.size.saturating_sub(target));
            if inside > 0 {
                fs.allocate(self.to, mutants::place_of_hole(target, &fs.volume), inside, AllocateMode::Punch)?;
            }
            return match fs.grow_over(self.to, target + hole) {
                Err(_) if inside > 0 => Ok(inside),
                other => other.map(|()| hole),
            };
        }
        // Pieces end at multiples of the maximum piece size in the target, so that inner pieces take the block path.
        let most = (TX_DATA_MAX - target % TX_DATA_MAX).min(length - done);
        let mut piece = 0;
        while piece < most {
            piece = fs.seek(self.from, at + piece, SeekTo::Hole)?.map_or(most, |hole| hole - at).min(most);
            let next = fs.seek(self.from, at + piece, SeekTo::Data)?.map_or(length - done, |data| data - at);
            if self.keeps_hole(fs, target + piece, next.min(length - done) - piece) && piece > 0 {
                break;
            }
            piece = next.max(piece + 1).min(most);
        }
        self.buffer.resize(piece as usize, 0);
        let read = fs.read(self.from, at, &mut self.buffer)?;
        let written = fs.write(self.to, target, &self.buffer[..read], self.options)? as u64;
        self.wrote |= written > 0;
        Ok(if on(Mutant::CopyTailForgotten) { length - done } else { written })
    }

    /// Whether a hole over this target range covers a whole block ([CR2]).
    fn keeps_hole(&self, fs: &FileSystem, target: u64, hole: u64) -> bool {
        let block_bytes = u64::from(fs.volume.geometry.block_bytes());
        target.next_multiple_of(block_bytes) + block_bytes <= target + hole
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tandemfs_crash::{MemoryDevice, fill};
    use tandemfs_device::{Drive, PersistenceDomain};
    use tandemfs_format::inode::file_type;

    use super::*;
    use crate::{FormatOptions, MountOptions, NewInode, make_file_system};

    /// [CR3]
    #[test]
    fn a_copy_ends_where_its_source_was_cut() {
        let drive = Drive::new(Arc::new(MemoryDevice::new(16 << 20, 32 << 20, PersistenceDomain::Gpf)));
        make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
        let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
        let make = |name: &[u8], seed| {
            let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
            let file = fs.create(InodeNumber::ROOT, name, &new).expect("made").inode;
            fs.write(file, 0, &fill(seed, 3 << 18), WriteOptions::default()).expect("written");
            file
        };
        let (from, to) = (make(b"from", 1), make(b"to", 2));
        let options = WriteOptions::default();
        let mut copy = Copy { from, to, from_offset: 0, to_offset: 0, options, buffer: Vec::new(), wrote: false };
        assert_eq!(copy.piece(&fs, 0, 1 << 18).expect("copied"), 1 << 18);
        fs.set_attributes(from, &SetAttributes { size: Some(1 << 18), ..SetAttributes::default() }).expect("cut");
        assert_eq!(copy.piece(&fs, 1 << 18, 3 << 18).expect("at the end"), 0);
        let mut found = vec![0; 3 << 18];
        assert_eq!(fs.read(to, 0, &mut found).expect("read"), 3 << 18);
        let expected = [&fill(1, 3 << 18)[..1 << 18], &fill(2, 3 << 18)[1 << 18..]].concat();
        assert!(found == expected, "what is behind the end of the source is no hole of it");
    }
}
