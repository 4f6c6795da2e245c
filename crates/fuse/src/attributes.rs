//! Attributes as the kernel shows them, and times as it sends them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::{Timestamp, file_type};
use tandemfs_fs::{Attributes, SetTime};

/// `st_blksize`: what `cp` and stdio take for their buffers. Below the splitting threshold a write takes the byte path, so there is
/// nothing to gain from more.
const PREFERRED_IO_BYTES: u32 = 4096;

/// The inode of the kernel's node. The root is 1 on both sides.
pub(crate) fn inode(node: INodeNo) -> InodeNumber {
    InodeNumber::new(node.0)
}

/// What `stat` shows.
pub(crate) fn file_attr(attributes: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(attributes.inode.get()),
        size: attributes.size,
        blocks: attributes.sectors,
        atime: system_time(attributes.atime),
        mtime: system_time(attributes.mtime),
        ctime: system_time(attributes.ctime),
        crtime: system_time(attributes.birth),
        kind: file_kind(attributes.mode),
        perm: attributes.mode & 0o7777,
        nlink: attributes.nlink,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: attributes.rdev,
        blksize: PREFERRED_IO_BYTES,
        flags: 0,
    }
}

/// Attributes of a node without any: a negative look-up (node 0), or an entry whose inode cannot be read.
pub(crate) fn placeholder(node: u64, mode: u16) -> FileAttr {
    FileAttr {
        ino: INodeNo(node),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: file_kind(mode),
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: PREFERRED_IO_BYTES,
        flags: 0,
    }
}

/// The kind of file that the type bits of a mode name.
pub(crate) fn file_kind(mode: u16) -> FileType {
    match mode & file_type::MASK {
        file_type::FIFO => FileType::NamedPipe,
        file_type::CHARACTER => FileType::CharDevice,
        file_type::DIRECTORY => FileType::Directory,
        file_type::BLOCK => FileType::BlockDevice,
        file_type::SYMLINK => FileType::Symlink,
        file_type::SOCKET => FileType::Socket,
        _ => FileType::RegularFile,
    }
}

fn system_time(time: Timestamp) -> SystemTime {
    let nanoseconds = Duration::from_nanos(time.nanoseconds.into());
    match u64::try_from(time.seconds) {
        Ok(seconds) => UNIX_EPOCH + Duration::from_secs(seconds) + nanoseconds,
        Err(_) => UNIX_EPOCH - Duration::from_secs(time.seconds.unsigned_abs()) + nanoseconds,
    }
}

/// A time that the kernel sent: before the epoch its nanoseconds count on from the second.
pub(crate) fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Timestamp { seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanoseconds: since.subsec_nanos() },
        Err(before) => {
            let until = before.duration();
            let whole = i64::try_from(until.as_secs()).map_or(i64::MIN, |seconds| -seconds);
            match until.subsec_nanos() {
                0 => Timestamp { seconds: whole, nanoseconds: 0 },
                part => Timestamp { seconds: whole.saturating_sub(1), nanoseconds: 1_000_000_000 - part },
            }
        }
    }
}

/// A time to set.
pub(crate) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(timestamp(time)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_arrive_as_they_were_sent_on_both_sides_of_the_epoch() {
        for (seconds, nanoseconds) in
            [(0, 0), (1_800_000_000, 999_999_999), (-2, 250_000_000), (-2, 0), (-1, 1), (i64::MIN, 0), (i64::MIN, 1)]
        {
            let time = Timestamp { seconds, nanoseconds };
            assert_eq!(timestamp(system_time(time)), time);
        }
    }

    #[test]
    fn times_before_the_epoch_leave_with_nanoseconds_counting_on() {
        let time = Timestamp { seconds: -2, nanoseconds: 250_000_000 };
        assert_eq!(system_time(time), UNIX_EPOCH - Duration::from_millis(1750));
    }

    #[test]
    fn every_file_type_has_its_kind() {
        let kinds: Vec<FileType> = file_type::ALL.iter().map(|mode| file_kind(mode | 0o644)).collect();
        let expected = [
            FileType::NamedPipe,
            FileType::CharDevice,
            FileType::Directory,
            FileType::BlockDevice,
            FileType::RegularFile,
            FileType::Symlink,
            FileType::Socket,
        ];
        assert_eq!(kinds, expected);
    }
}
