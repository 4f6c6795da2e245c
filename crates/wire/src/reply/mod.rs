//! Replies.
//!
//! [RY1] Each request is answered once: every answer takes the [`Reply`] by value, and one that is dropped answers `EIO`, also when its
//!       handler panics.
//! [RY2] A reply that is parked leaves its thread free for the next request. It holds nothing of the connection: when that is gone, the
//!       answer goes nowhere.

mod attributes;
mod directory;
pub(crate) mod sink;

use std::fmt;
use std::time::Duration;

use zerocopy::{Immutable, IntoBytes};

use crate::abi::{self, opcode};
use crate::errno::Errno;
use crate::request::FileLock;
pub use attributes::{Attributes, Entry, OpenFlags, Opened, Statfs, kind_of};
pub use directory::Directory;
use sink::{Held, Sink, UNANSWERED};

/// The answer that a request waits for. Which kind it takes follows from the operation.
#[must_use = "the kernel waits for a reply"]
pub struct Reply<'a> {
    context: Context,
    sink: Option<Sink<'a>>,
}

/// What a reply knows of its request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context {
    pub(crate) unique: u64,
    pub(crate) opcode: u32,
    /// Most bytes that the kernel takes.
    pub(crate) bytes_max: usize,
}

impl<'a> Reply<'a> {
    pub(crate) fn new(context: Context, sink: Sink<'a>) -> Self {
        Self { context, sink: Some(sink) }
    }

    /// Done, and nothing to say.
    pub fn ok(self) {
        self.send(&[]);
    }

    /// Failed.
    pub fn error(mut self, error: Errno) {
        self.fail(error);
    }

    /// For a request that wants no reply (FORGET).
    pub fn none(mut self) {
        if let Some(Sink::Nobody { .. }) = self.sink {
            self.sink = None;
        }
    }

    /// A name and what it names: LOOKUP, MKNOD, MKDIR, SYMLINK, LINK.
    pub fn entry(self, entry: &Entry) {
        self.structure(&entry.to_kernel());
    }

    /// A file that was made and opened: CREATE, TMPFILE.
    pub fn create(self, entry: &Entry, opened: Opened) {
        self.send(&[entry.to_kernel().as_bytes(), opened.to_kernel().as_bytes()]);
    }

    /// Attributes, and how long they may be kept: GETATTR, SETATTR.
    pub fn attributes(self, attributes: &Attributes, valid: Duration) {
        self.structure(&attributes.attr_out(valid));
    }

    /// Attributes with the time of birth: STATX.
    pub fn statx(self, attributes: &Attributes, valid: Duration) {
        self.structure(&attributes.statx_out(valid));
    }

    /// A file or directory was opened: OPEN, OPENDIR.
    pub fn open(self, opened: Opened) {
        self.structure(&opened.to_kernel());
    }

    /// Bytes: READ, READLINK, and values and names of extended attributes whose length is right.
    pub fn bytes(self, bytes: &[u8]) {
        self.send(&[bytes]);
    }

    /// Bytes that `fill` writes where the kernel takes them; it returns how many. They are at most `size`, or what was agreed on if that is
    /// less. The buffer holds bytes of earlier replies at first.
    pub fn fill(mut self, size: usize, fill: impl FnOnce(&mut [u8]) -> Result<usize, Errno>) {
        let size = size.min(self.context.bytes_max);
        let filled = fill(self.body(size));
        match filled {
            Ok(filled) => self.send_body(filled.min(size)),
            Err(error) => self.fail(error),
        }
    }

    /// So many bytes were written: WRITE.
    pub fn written(self, bytes: u32) {
        self.structure(&abi::WriteOut { size: bytes, padding: 0 });
    }

    /// So many bytes were copied: COPY_FILE_RANGE, whose older form takes 32 bits.
    pub fn copied(self, bytes: u64) {
        if self.context.opcode == opcode::COPY_FILE_RANGE_64 {
            self.structure(&abi::CopyFileRangeOut { bytes_copied: bytes });
        } else {
            self.written(u32::try_from(bytes).unwrap_or(u32::MAX));
        }
    }

    /// Space and numbers: STATFS.
    pub fn statfs(self, statfs: &Statfs) {
        self.structure(&statfs.to_kernel());
    }

    /// A value or a list of names for a caller with room for `size` bytes, which is 0 where it asks for the length: GETXATTR, LISTXATTR.
    pub fn xattr(self, size: u32, value: &[u8]) {
        match size as usize {
            0 => self.xattr_size(value.len() as u32),
            room if value.len() > room => self.error(Errno::ERANGE),
            _ => self.bytes(value),
        }
    }

    /// The length of a value or a list: GETXATTR, LISTXATTR of size 0.
    pub fn xattr_size(self, size: u32) {
        self.structure(&abi::GetxattrOut { size, padding: 0 });
    }

    /// Where data or a hole begins: LSEEK.
    pub fn offset(self, offset: u64) {
        self.structure(&abi::LseekOut { offset });
    }

    /// The lock that is in the way, or one of the kind `F_UNLCK`: GETLK.
    pub fn lock(self, lock: &FileLock) {
        let FileLock { start, end, kind, pid } = *lock;
        self.structure(&abi::LkOut { lk: abi::FileLock { start, end, kind, pid } });
    }

    /// A block of the device below: BMAP.
    pub fn block(self, block: u64) {
        self.structure(&abi::BmapOut { block });
    }

    /// What a file is ready for (`POLLIN`, …): POLL.
    pub fn poll(self, events: u32) {
        self.structure(&abi::PollOut { revents: events, padding: 0 });
    }

    /// What a command returns, and its data: IOCTL.
    pub fn ioctl(self, result: i32, data: &[u8]) {
        self.send(&[abi::IoctlOut { result, ..Default::default() }.as_bytes(), data]);
    }

    /// Which parts of the caller's memory an unrestricted command needs: pairs of address and length, to read and to write. The kernel
    /// sends the command again with them.
    pub fn ioctl_retry(self, read: &[(u64, u64)], write: &[(u64, u64)]) {
        if read.len() + write.len() > abi::IOCTL_MAX_IOV {
            return self.error(Errno::EINVAL);
        }
        let (in_iovs, out_iovs) = (read.len() as u32, write.len() as u32);
        let head = abi::IoctlOut { result: 0, flags: abi::request_flags::IOCTL_RETRY, in_iovs, out_iovs };
        let vectors: Vec<_> = read.iter().chain(write).map(|&(base, len)| abi::IoctlIovec { base, len }).collect();
        self.send(&[head.as_bytes(), vectors.as_slice().as_bytes()]);
    }

    /// Entries of a directory, as many as fit into `size` bytes or what was agreed on: READDIR, READDIRPLUS.
    pub fn directory(self, size: u32) -> Directory<'a> {
        let size = (size as usize).min(self.context.bytes_max);
        Directory::new(self, size)
    }

    /// Leaves the answer to another thread, later. This one takes the next request.
    ///
    /// Over io_uring a parked request keeps one of the entries of its CPU ([`crate::RingOptions::requests_per_cpu_max`]); while all are
    /// parked, other requests of that CPU wait. [`Reply::try_park`] never parks the last.
    pub fn park(mut self) -> ParkedReply {
        let held = self.sink.take().map_or(Held::Nobody, |mut sink| sink.park());
        ParkedReply { context: self.context, held: Some(held) }
    }

    /// The same for an answer that waits for other requests to be served: an error is this reply, to be answered at once, where a quarter
    /// of the entries of its CPU is all that is left. Over the device, and of a reply that was parked before, there is always room.
    pub fn try_park(mut self) -> Result<ParkedReply, Self> {
        let held = match &mut self.sink {
            Some(sink) => sink.try_park(),
            None => Some(Held::Nobody),
        };
        match held {
            Some(held) => {
                self.sink = None;
                Ok(ParkedReply { context: self.context, held: Some(held) })
            }
            None => Err(self),
        }
    }

    fn structure<T: IntoBytes + Immutable>(self, structure: &T) {
        self.send(&[structure.as_bytes()]);
    }

    fn send(mut self, parts: &[&[u8]]) {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if bytes > self.context.bytes_max {
            tracing::error!(bytes, opcode = self.context.opcode, "a reply is longer than what was agreed on");
            return self.fail(UNANSWERED);
        }
        if let Some(mut sink) = self.sink.take() {
            sink.send(self.context.unique, 0, parts);
        }
    }

    fn fail(&mut self, error: Errno) {
        if let Some(mut sink) = self.sink.take() {
            sink.send(self.context.unique, -error.code(), &[]);
        }
    }

    fn body(&mut self, size: usize) -> &mut [u8] {
        self.sink.as_mut().map_or(&mut [], |sink| sink.body(size))
    }

    fn send_body(&mut self, filled: usize) {
        if let Some(mut sink) = self.sink.take() {
            sink.send_body(self.context.unique, filled);
        }
    }
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        self.fail(UNANSWERED); // [RY1]
    }
}

impl fmt::Debug for Reply<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Reply").field("unique", &self.context.unique).finish_non_exhaustive()
    }
}

/// A reply that waits for whatever thread finishes it. Dropped, it answers `EIO`.
#[must_use = "the kernel waits for a reply"]
#[derive(Debug)]
pub struct ParkedReply {
    context: Context,
    held: Option<Held>,
}

impl ParkedReply {
    /// Number of the request, as in [`crate::Handler::interrupted`].
    pub fn unique(&self) -> u64 {
        self.context.unique
    }

    /// Gives the answer, as the handler would have.
    pub fn finish<R>(mut self, answer: impl FnOnce(Reply<'_>) -> R) -> R {
        let held = self.held.take().unwrap_or(Held::Nobody);
        let context = self.context;
        held.with(|sink| answer(Reply::new(context, sink)))
    }
}

impl Drop for ParkedReply {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            let context = self.context;
            held.with(|sink| drop(Reply::new(context, sink)));
        }
    }
}
