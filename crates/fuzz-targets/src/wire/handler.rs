//! A handler without a file system: its answers depend only on the request, so that the other end can predict them.
//!
//! The request's group id chooses the answer. Its low three bits are 0 for a dropped reply, 1 for an error whose number is in the next
//! bits, 2 for a reply that is parked until SYNCFS or an INTERRUPT; otherwise the operation is answered normally, with [`Choice::amount`]
//! as its variable quantity.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tandemfs_wire::abi::request_flags::IOCTL_UNRESTRICTED;
use tandemfs_wire::{
    Attributes, Entry, Errno, Handler, Interruption, Ioctl, Opened, Operation, ParkedReply, Reply, Request, Statfs, Time, kind_of,
};

pub(super) const VALID: Duration = Duration::new(5, 999_999_999);
pub(super) const MODE: u32 = 0o100_644;

/// The answer to give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    Drop,
    Error(i32),
    Park,
    Answer { amount: u32 },
}

impl Choice {
    pub(super) fn of(group: u32) -> Self {
        match group & 7 {
            0 => Self::Drop,
            1 => Self::Error((group >> 3).cast_signed()),
            2 => Self::Park,
            _ => Self::Answer { amount: group >> 8 },
        }
    }
}

/// A byte of the data that is read.
pub(super) fn byte_at(offset: u64, index: usize) -> u8 {
    (offset as u8).wrapping_add(index as u8)
}

/// The length of an entry's name.
pub(super) fn name_bytes(index: u64) -> usize {
    1 + (index * 7 % 255) as usize
}

#[derive(Default)]
pub(super) struct Server {
    /// Parked replies, for reads with their data.
    parked: Mutex<Vec<(ParkedReply, Option<Vec<u8>>)>>,
}

fn attributes(request: &Request<'_>) -> Attributes {
    let time = Time { seconds: -1, nanoseconds: 999_999_999 };
    let (size, mode) = (request.unique, MODE);
    Attributes { ino: request.node, size, mode, mtime: time, birth: Some(time), nlink: 1, block_bytes: 4096, ..Attributes::default() }
}

fn entry(request: &Request<'_>, amount: u32) -> Entry {
    if amount.is_multiple_of(4) && matches!(request.operation, Operation::Lookup { .. }) {
        return Entry::absent(VALID);
    }
    let attributes = attributes(request);
    Entry { node: request.unique, generation: 1, entry_valid: VALID, attributes_valid: VALID, attributes }
}

fn list(request: &Request<'_>, amount: u32, size: u32, plus: bool, reply: Reply<'_>) {
    let mut directory = reply.directory(size);
    for index in 0..u64::from(amount % 512) {
        let name = vec![b'n'; name_bytes(index)];
        let added = match plus {
            true => directory.add_plus(&name, index + 1, &entry(request, 1)),
            false => directory.add(&name, request.node, kind_of(MODE), index + 1),
        };
        if !added {
            break;
        }
    }
    directory.send();
}

fn command(amount: u32, ioctl: &Ioctl<'_>, reply: Reply<'_>) {
    if ioctl.flags & IOCTL_UNRESTRICTED != 0 {
        return reply.ioctl_retry(&vec![(1, 2); (amount % 300) as usize], &[(3, 4)]);
    }
    let bytes = ioctl.data.len().min(ioctl.size_out as usize);
    reply.ioctl(3, &ioctl.data[..bytes]);
}

impl Server {
    fn parked(&self) -> MutexGuard<'_, Vec<(ParkedReply, Option<Vec<u8>>)>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn park(&self, request: &Request<'_>, reply: Reply<'_>) {
        let bytes = match request.operation {
            Operation::Read { offset, size, .. } => Some((0..size.min(4096) as usize).map(|index| byte_at(offset, index)).collect()),
            _ => None,
        };
        self.parked().push((reply.park(), bytes));
    }

    /// Finishes parked replies from another thread: reads with their data, others with an error. The last one is dropped.
    fn finish(&self) {
        let mut parked = std::mem::take(&mut *self.parked());
        drop(parked.pop());
        let finish = |(reply, bytes): (ParkedReply, Option<Vec<u8>>)| match bytes {
            Some(bytes) => reply.finish(|reply| reply.bytes(&bytes)),
            None => reply.finish(|reply| reply.error(Errno::EAGAIN)),
        };
        std::thread::scope(|scope| drop(scope.spawn(|| parked.into_iter().for_each(finish))));
    }

    fn answer(&self, request: &Request<'_>, amount: u32, reply: Reply<'_>) {
        let opened = Opened { handle: request.unique, ..Opened::default() };
        match request.operation {
            Operation::Lookup { .. }
            | Operation::Symlink { .. }
            | Operation::Mknod { .. }
            | Operation::Mkdir { .. }
            | Operation::Link { .. } => reply.entry(&entry(request, amount)),
            Operation::Create { .. } | Operation::Tmpfile { .. } => reply.create(&entry(request, amount), opened),
            Operation::Getattr { .. } | Operation::Setattr(_) => reply.attributes(&attributes(request), VALID),
            Operation::Statx { .. } => reply.statx(&attributes(request), VALID),
            Operation::Open { .. } | Operation::Opendir { .. } => reply.open(opened),
            Operation::Readlink => reply.bytes(&vec![b't'; (amount % 4096) as usize]),
            // An amount that exceeds the buffer is cut.
            Operation::Read { offset, size, .. } => reply.fill(size as usize, |buffer| {
                buffer.iter_mut().enumerate().for_each(|(index, byte)| *byte = byte_at(offset, index));
                Ok(amount as usize)
            }),
            Operation::Write(write) => reply.written(write.data.len() as u32),
            Operation::CopyFileRange(copy) => reply.copied(copy.length),
            Operation::Statfs => reply.statfs(&Statfs { blocks: request.node, name_bytes_max: 255, ..Statfs::default() }),
            Operation::Getxattr { size, .. } | Operation::Listxattr { size } => reply.xattr(size, &vec![b'v'; (amount % 8000) as usize]),
            Operation::Readdir { size, .. } => list(request, amount, size, false, reply),
            Operation::Readdirplus { size, .. } => list(request, amount, size, true, reply),
            Operation::Lseek { offset, .. } => reply.offset(offset.wrapping_add(1)),
            Operation::Getlk { lock, .. } => reply.lock(&lock),
            Operation::Bmap { block, .. } => reply.block(block),
            Operation::Poll { events, .. } => reply.poll(events),
            Operation::Ioctl(ioctl) => command(amount, &ioctl, reply),
            Operation::Syncfs => {
                self.finish();
                reply.ok();
            }
            Operation::Forget { .. } | Operation::BatchForget(_) => reply.none(),
            _ => reply.ok(),
        }
    }
}

impl Handler for Server {
    fn handle(&self, request: &Request<'_>, reply: Reply<'_>) {
        match Choice::of(request.gid) {
            Choice::Drop => drop(reply),
            Choice::Error(number) => reply.error(Errno::new(number)),
            Choice::Park => self.park(request, reply),
            Choice::Answer { amount } => self.answer(request, amount, reply),
        }
    }

    fn interrupted(&self, unique: u64) -> Interruption {
        let mut parked = self.parked();
        if let Some(place) = parked.iter().position(|(reply, _)| reply.unique() == unique) {
            parked.remove(place).0.finish(|reply| reply.error(Errno::EINTR));
            return Interruption::Noted;
        }
        [Interruption::Noted, Interruption::TryAgain, Interruption::Unsupported][(unique % 3) as usize]
    }
}
