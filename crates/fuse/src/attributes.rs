//! Conversion of attributes and timestamps between the file system and the protocol.

use std::time::Duration;

use tandemfs_format::InodeNumber;
use tandemfs_format::inode::Timestamp;
use tandemfs_fs::{Attributes, SetTime};
use tandemfs_wire as wire;

/// `st_blksize`: the buffer size that `cp` and stdio choose. Writes below the splitting threshold take the byte path, so a larger value
/// gains nothing.
const PREFERRED_IO_BYTES: u32 = 4096;

/// The inode of a FUSE node id. The root is 1 on both sides.
pub(crate) fn inode(node: u64) -> InodeNumber {
    InodeNumber::new(node)
}

/// What `stat` shows.
pub(crate) fn shown(attributes: &Attributes) -> wire::Attributes {
    wire::Attributes {
        ino: attributes.inode.get(),
        size: attributes.size,
        blocks: attributes.space_512,
        atime: time(attributes.atime),
        mtime: time(attributes.mtime),
        ctime: time(attributes.ctime),
        birth: Some(time(attributes.birth)),
        mode: attributes.mode.into(),
        nlink: attributes.nlink,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: attributes.rdev,
        block_bytes: PREFERRED_IO_BYTES,
        flags: 0,
    }
}

/// A directory entry with inode number and file type only; it does not count as a lookup.
pub(crate) fn bare_entry(inode: InodeNumber, kind: u8) -> wire::Entry {
    let attributes = wire::Attributes { ino: inode.get(), mode: u32::from(kind) << 12, ..wire::Attributes::default() };
    wire::Entry { attributes, ..wire::Entry::absent(Duration::ZERO) }
}

fn time(time: Timestamp) -> wire::Time {
    wire::Time { seconds: time.seconds, nanoseconds: time.nanoseconds }
}

/// A timestamp from the kernel.
pub(crate) fn timestamp(time: wire::Time) -> Timestamp {
    Timestamp { seconds: time.seconds, nanoseconds: time.nanoseconds }
}

/// A timestamp to set.
pub(crate) fn set_time(time: wire::SetTime) -> SetTime {
    match time {
        wire::SetTime::Now => SetTime::Now,
        wire::SetTime::At(time) => SetTime::At(timestamp(time)),
    }
}

#[cfg(test)]
mod tests {
    use tandemfs_format::inode::file_type;

    use super::*;

    #[test]
    fn times_arrive_as_they_were_sent_on_both_sides_of_the_epoch() {
        for (seconds, nanoseconds) in [(0, 0), (1_800_000_000, 999_999_999), (-2, 250_000_000), (i64::MIN, 0), (i64::MIN, 1)] {
            let sent = Timestamp { seconds, nanoseconds };
            assert_eq!(timestamp(time(sent)), sent);
        }
    }

    #[test]
    fn an_entry_of_a_list_says_its_kind_and_is_no_look_up() {
        for mode in file_type::ALL {
            let entry = bare_entry(InodeNumber::new(7), (mode >> 12) as u8);
            assert_eq!((entry.node, entry.attributes.ino, entry.attributes.mode), (0, 7, u32::from(mode)));
        }
    }
}
