//! Checks that a kernel would accept an answer ([FZW3]).
//!
//! [FZW3]: super

use std::mem::size_of;

use tandemfs_wire::abi::{self, opcode::*};
use zerocopy::FromBytes;

use super::handler::{Choice, MODE, byte_at, name_bytes};
use super::kernel::Answer;
use super::messages::{Message, wants_answer};

/// The kernel's limit: errors are above this.
const ERROR_MIN: i32 = -512;
const SECOND_NS: u32 = 1_000_000_000;

/// The agreed limits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Longest body of a request.
    pub(super) request_bytes: usize,
    /// Longest body of an answer.
    pub(super) reply_bytes: usize,
}

/// Decodes a message of the session; its header must be correct.
pub(super) fn framed(bytes: &[u8]) -> Answer {
    let (header, body) = abi::OutHeader::read_from_prefix(bytes).unwrap_or_else(|_| panic!("an answer of {} B", bytes.len()));
    assert_eq!(header.len as usize, bytes.len(), "an answer has the length that it says");
    assert!(header.error <= 0 && header.error > ERROR_MIN, "error {} is out of range", header.error);
    assert!(header.error == 0 || body.is_empty(), "an error with {} B", body.len());
    Answer { unique: header.unique, error: header.error, body: body.to_vec() }
}

/// Whether a request may be parked. Its body is not parsed here, so this also holds for a malformed request.
pub(super) fn may_be_parked(message: &Message) -> bool {
    wants_answer(message.opcode) && Choice::of(message.choice) == Choice::Park
}

/// Whether a request may get no answer.
pub(super) fn may_be_silent(message: &Message) -> bool {
    !wants_answer(message.opcode)
}

/// Checks the answer to a request.
pub(super) fn answer(message: &Message, answer: &Answer, limits: &Limits) {
    let Answer { error, body, .. } = answer;
    if message.opcode == INTERRUPT {
        let expected = [0, -libc::EAGAIN, -libc::ENOSYS][(message.long(0) % 3) as usize];
        return assert!(*error == expected && expected != 0, "INTERRUPT of {} is answered {error}", message.long(0));
    }
    assert!(wants_answer(message.opcode), "an answer to {message:x?}");
    // Malformed or unknown.
    let refused = matches!(-error, libc::EIO | libc::ENOSYS);
    match Choice::of(message.choice) {
        Choice::Drop | Choice::Park => assert!(refused, "{message:x?} is answered {error}"),
        Choice::Error(number) => {
            let expected = if (1..512).contains(&number) { number } else { libc::EIO };
            assert!(refused || -error == expected, "error {error} in the place of {expected}");
        }
        Choice::Answer { amount } if *error == 0 => success(message, amount, body, limits),
        Choice::Answer { amount } => {
            let amount_of = |modulo| amount % modulo;
            let expected = match message.opcode {
                GETXATTR | LISTXATTR if amount_of(8000) > message.word(0) && message.word(0) > 0 => libc::ERANGE,
                IOCTL if amount_of(300) + 1 > abi::IOCTL_MAX_IOV as u32 => libc::EINVAL,
                _ => libc::EIO,
            };
            assert!(refused || -error == expected, "{message:x?} is answered {error}");
        }
    }
}

/// Checks the answer to a parked request.
pub(super) fn late(message: &Message, answer: &Answer) {
    let Answer { error, body, .. } = answer;
    match error {
        0 => {
            assert_eq!((message.opcode, body.len()), (READ, message.word(16).min(4096) as usize), "a late answer");
            pattern(message, body);
        }
        error => assert!(matches!(-error, libc::EAGAIN | libc::EIO | libc::EINTR), "a late answer of {error}"),
    }
}

/// Checks the data of a read.
fn pattern(message: &Message, body: &[u8]) {
    let wrong = body.iter().enumerate().position(|(index, byte)| *byte != byte_at(message.long(8), index));
    assert_eq!(wrong, None, "another byte than was given");
}

fn structure<T: FromBytes>(body: &[u8]) -> T {
    T::read_from_bytes(body).unwrap_or_else(|_| panic!("a body of {} B in the place of {}", body.len(), size_of::<T>()))
}

pub(super) fn success(message: &Message, amount: u32, body: &[u8], limits: &Limits) {
    let room = limits.reply_bytes.min(message.word(16) as usize);
    assert!(body.len() <= limits.reply_bytes, "{} B where {} were agreed on", body.len(), limits.reply_bytes);
    match message.opcode {
        LOOKUP | SYMLINK | MKNOD | MKDIR | LINK => entry(message, &structure(body), amount),
        CREATE | TMPFILE => {
            let (first, opened) = body.split_at(body.len().min(size_of::<abi::EntryOut>()));
            entry(message, &structure(first), amount);
            structure::<abi::OpenOut>(opened);
        }
        GETATTR | SETATTR => attributes(message, &structure::<abi::AttrOut>(body).attr),
        STATX => {
            let stat = structure::<abi::StatxOut>(body).stat;
            assert_eq!((stat.ino, u32::from(stat.mode), stat.mask), (message.node, MODE, 0xfff));
            assert!([stat.atime, stat.mtime, stat.ctime, stat.btime].iter().all(|time| time.tv_nsec < SECOND_NS), "{stat:?}");
        }
        OPEN | OPENDIR => {
            structure::<abi::OpenOut>(body);
        }
        READLINK => assert_eq!(body.len(), (amount % 4096) as usize, "a link"),
        READ => {
            assert_eq!(body.len(), room.min(amount as usize), "bytes that were read");
            pattern(message, body);
        }
        READDIR | READDIRPLUS => listing(message, amount, body, room),
        WRITE => assert_eq!(structure::<abi::WriteOut>(body).size, message.word(16), "bytes that were written"),
        COPY_FILE_RANGE => {
            assert_eq!(
                structure::<abi::WriteOut>(body).size,
                u32::try_from(message.long(40)).unwrap_or(u32::MAX),
                "bytes that were copied"
            );
        }
        COPY_FILE_RANGE_64 => assert_eq!(structure::<abi::CopyFileRangeOut>(body).bytes_copied, message.long(40), "bytes that were copied"),
        STATFS => assert_eq!(structure::<abi::Kstatfs>(body).blocks, message.node, "blocks"),
        LSEEK => assert_eq!(structure::<abi::LseekOut>(body).offset, message.long(8).wrapping_add(1), "a place"),
        GETLK => {
            let lock = structure::<abi::LkOut>(body).lk;
            assert_eq!((lock.start, lock.end), (message.long(16), message.long(24)), "a lock");
        }
        BMAP => assert_eq!(structure::<abi::BmapOut>(body).block, message.long(0), "a block"),
        POLL => assert_eq!(structure::<abi::PollOut>(body).revents, message.word(20), "events"),
        // Size 0 asks for the length.
        GETXATTR | LISTXATTR if message.word(0) == 0 => assert_eq!(structure::<abi::GetxattrOut>(body).size, amount % 8000, "a length"),
        GETXATTR | LISTXATTR => assert!(body.len() == (amount % 8000) as usize && body.len() <= message.word(0) as usize, "a value"),
        IOCTL => command(message, amount, body),
        _ => assert!(body.is_empty(), "{} B for {message:x?}", body.len()),
    }
}

fn entry(message: &Message, entry: &abi::EntryOut, amount: u32) {
    let is_absent = message.opcode == LOOKUP && amount.is_multiple_of(4);
    assert_eq!(entry.nodeid == 0, is_absent, "whether there is such a name");
    assert!(entry.entry_valid_nsec < SECOND_NS && entry.attr_valid_nsec < SECOND_NS, "how long an entry is valid");
    if !is_absent {
        attributes(message, &entry.attr);
    }
}

fn attributes(message: &Message, attr: &abi::Attr) {
    assert_eq!((attr.ino, attr.mode, attr.blksize), (message.node, MODE, 4096));
    assert!([attr.atimensec, attr.mtimensec, attr.ctimensec].iter().all(|time| *time < SECOND_NS), "{attr:?}");
}

fn command(message: &Message, amount: u32, body: &[u8]) {
    let (head, rest) = body.split_at(body.len().min(size_of::<abi::IoctlOut>()));
    let head: abi::IoctlOut = structure(head);
    if message.word(8) & abi::request_flags::IOCTL_UNRESTRICTED == 0 {
        assert!(rest.len() <= message.word(28) as usize && head.flags == 0 && head.result == 3, "the answer to a command");
    } else {
        assert_eq!((head.in_iovs, head.out_iovs, head.flags), (amount % 300, 1, abi::request_flags::IOCTL_RETRY));
        assert_eq!(rest.len(), (head.in_iovs + head.out_iovs) as usize * size_of::<abi::IoctlIovec>(), "vectors");
    }
}

/// Checks a directory listing: as many entries as fit, in order.
fn listing(message: &Message, amount: u32, body: &[u8], room: usize) {
    assert!(body.len() <= room, "{} B of entries where there is room for {room}", body.len());
    let before = if message.opcode == READDIRPLUS { size_of::<abi::EntryOut>() } else { 0 };
    let padded = |index| (before + size_of::<abi::Dirent>() + name_bytes(index)).next_multiple_of(8);
    let (mut at, mut index) = (0, 0);
    while at < body.len() {
        let head = body.get(at + before..).and_then(|rest| abi::Dirent::read_from_prefix(rest).ok());
        let (dirent, rest) = head.unwrap_or_else(|| panic!("an entry beyond the end"));
        let name = rest.get(..dirent.namelen as usize).unwrap_or_else(|| panic!("a name beyond the end"));
        assert!(name.len() == name_bytes(index) && name.iter().all(|byte| *byte == b'n'), "another name than was given");
        assert_eq!((dirent.off, dirent.ino), (index + 1, message.node), "another entry than was given");
        at += padded(index);
        index += 1;
    }
    assert_eq!(at, body.len(), "an entry beyond the end");
    assert!(index == u64::from(amount % 512) || at + padded(index) > room, "an entry was left out that fits");
}
