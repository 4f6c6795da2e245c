//! Replies.
//!
//! [RY1] Each request is answered exactly once: every answer consumes the [`Reply`], and a dropped reply answers `EIO`, also if its handler
//!       panics.
//! [RY2] A parked reply leaves its thread free for the next request. It does not keep the connection open; an answer after the connection's
//!       end is discarded.

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

/// The reply to a request. The operation determines which method answers it.
#[must_use = "the kernel waits for a reply"]
pub struct Reply<'a> {
    context: Context,
    sink: Option<Sink<'a>>,
    /// What a watch is told beside success.
    value: u64,
    watch: Option<Watch>,
}

/// What was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Said {
    /// The error; none for success.
    pub error: Option<Errno>,
    /// Of success: bytes read, written or copied, length of a value, an offset found, or the node of an entry; otherwise 0.
    pub value: u64,
}

/// Is told what a request is answered, once, just before it is.
pub type Watch = Box<dyn FnOnce(Said) + Send>;

/// The request's data that a reply needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context {
    pub(crate) unique: u64,
    pub(crate) opcode: u32,
    /// Most bytes that the kernel accepts.
    pub(crate) bytes_max: usize,
}

impl<'a> Reply<'a> {
    pub(crate) fn new(context: Context, sink: Sink<'a>) -> Self {
        Self { context, sink: Some(sink), value: 0, watch: None }
    }

    fn resumed(context: Context, sink: Sink<'a>, watch: Option<Watch>) -> Self {
        Self { context, sink: Some(sink), value: 0, watch }
    }

    /// The same reply, of which `watch` is told.
    pub fn watched(mut self, watch: Watch) -> Self {
        self.watch = Some(watch);
        self
    }

    fn tell(&mut self, error: Option<Errno>) {
        if let Some(watch) = self.watch.take() {
            watch(Said { error, value: if error.is_none() { self.value } else { 0 } });
        }
    }

    fn of_value(mut self, value: u64) -> Self {
        self.value = value;
        self
    }

    /// Success without data.
    pub fn ok(self) {
        self.send(&[]);
    }

    /// An error.
    pub fn error(mut self, error: Errno) {
        self.fail(error);
    }

    /// For a request that wants no reply (FORGET).
    pub fn none(mut self) {
        if let Some(Sink::Nobody { .. }) = self.sink {
            self.sink = None;
        }
    }

    /// An entry: LOOKUP, MKNOD, MKDIR, SYMLINK, LINK.
    pub fn entry(self, entry: &Entry) {
        self.of_value(entry.node).structure(&entry.to_kernel());
    }

    /// A created and opened file: CREATE, TMPFILE.
    pub fn create(self, entry: &Entry, opened: Opened) {
        self.of_value(entry.node).send(&[entry.to_kernel().as_bytes(), opened.to_kernel().as_bytes()]);
    }

    /// Attributes, and how long the kernel may cache them: GETATTR, SETATTR.
    pub fn attributes(self, attributes: &Attributes, valid: Duration) {
        self.structure(&attributes.attr_out(valid));
    }

    /// Attributes with the birth time: STATX.
    pub fn statx(self, attributes: &Attributes, valid: Duration) {
        self.structure(&attributes.statx_out(valid));
    }

    /// An opened file or directory: OPEN, OPENDIR.
    pub fn open(self, opened: Opened) {
        self.structure(&opened.to_kernel());
    }

    /// Bytes: READ, READLINK, and extended attribute values or name lists that fit the requested size.
    pub fn bytes(self, bytes: &[u8]) {
        self.of_value(bytes.len() as u64).send(&[bytes]);
    }

    /// Bytes that `fill` writes directly where the kernel reads them; `fill` returns their number. The buffer has `size` bytes, or the
    /// agreed size if that is less. At first it holds bytes of earlier replies.
    pub fn fill(mut self, size: usize, fill: impl FnOnce(&mut [u8]) -> Result<usize, Errno>) {
        let size = size.min(self.context.bytes_max);
        let filled = fill(self.body(size));
        match filled {
            Ok(filled) => self.send_body(filled.min(size)),
            Err(error) => self.fail(error),
        }
    }

    /// The number of bytes written: WRITE.
    pub fn written(self, bytes: u32) {
        self.of_value(bytes.into()).structure(&abi::WriteOut { size: bytes, padding: 0 });
    }

    /// The number of bytes copied: COPY_FILE_RANGE, whose older form has 32 bits.
    pub fn copied(self, bytes: u64) {
        if self.context.opcode == opcode::COPY_FILE_RANGE_64 {
            self.of_value(bytes).structure(&abi::CopyFileRangeOut { bytes_copied: bytes });
        } else {
            self.written(u32::try_from(bytes).unwrap_or(u32::MAX));
        }
    }

    /// Space and inode counts: STATFS.
    pub fn statfs(self, statfs: &Statfs) {
        self.structure(&statfs.to_kernel());
    }

    /// A value or name list for a caller with a buffer of `size` bytes; size 0 asks for the length: GETXATTR, LISTXATTR.
    pub fn xattr(self, size: u32, value: &[u8]) {
        match size as usize {
            0 => self.xattr_size(value.len() as u32),
            room if value.len() > room => self.error(Errno::ERANGE),
            _ => self.bytes(value),
        }
    }

    /// The length of a value or name list: GETXATTR, LISTXATTR of size 0.
    pub fn xattr_size(self, size: u32) {
        self.of_value(size.into()).structure(&abi::GetxattrOut { size, padding: 0 });
    }

    /// The start of data or a hole: LSEEK.
    pub fn offset(self, offset: u64) {
        self.of_value(offset).structure(&abi::LseekOut { offset });
    }

    /// The conflicting lock, or one of type `F_UNLCK` if there is none: GETLK.
    pub fn lock(self, lock: &FileLock) {
        let FileLock { start, end, kind, pid } = *lock;
        self.structure(&abi::LkOut { lk: abi::FileLock { start, end, kind, pid } });
    }

    /// A block number of the underlying device: BMAP.
    pub fn block(self, block: u64) {
        self.structure(&abi::BmapOut { block });
    }

    /// The ready events of a file (`POLLIN`, …): POLL.
    pub fn poll(self, events: u32) {
        self.structure(&abi::PollOut { revents: events, padding: 0 });
    }

    /// Result and data of a command: IOCTL.
    pub fn ioctl(self, result: i32, data: &[u8]) {
        self.send(&[abi::IoctlOut { result, ..Default::default() }.as_bytes(), data]);
    }

    /// The parts of the caller's memory that an unrestricted command needs: pairs of address and length, to read and to write. The kernel
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

    /// Directory entries, as many as fit into `size` bytes or the agreed size: READDIR, READDIRPLUS.
    pub fn directory(self, size: u32) -> Directory<'a> {
        let size = (size as usize).min(self.context.bytes_max);
        Directory::new(self, size)
    }

    /// Parks the reply: any thread may finish it later. This thread takes the next request.
    ///
    /// Over io_uring a parked request occupies an entry of its CPU's queue ([`crate::RingOptions::requests_per_cpu_max`]); while all are
    /// parked, other requests of that CPU wait. [`Reply::try_park`] never parks the last.
    pub fn park(mut self) -> ParkedReply {
        let held = self.sink.take().map_or(Held::Nobody, |mut sink| sink.park());
        ParkedReply { context: self.context, held: Some(held), watch: self.watch.take() }
    }

    /// Parks a reply that waits for other requests to be served. If only a quarter of the entries of its CPU's queue is left, it returns
    /// this reply as an error; it must then be answered at once. Over the device, and for a reply that was parked before, it always
    /// succeeds.
    pub fn try_park(mut self) -> Result<ParkedReply, Self> {
        let held = match &mut self.sink {
            Some(sink) => sink.try_park(),
            None => Some(Held::Nobody),
        };
        match held {
            Some(held) => {
                self.sink = None;
                Ok(ParkedReply { context: self.context, held: Some(held), watch: self.watch.take() })
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
            self.tell(None);
            sink.send(self.context.unique, 0, parts);
        }
    }

    fn fail(&mut self, error: Errno) {
        if let Some(mut sink) = self.sink.take() {
            self.tell(Some(error));
            sink.send(self.context.unique, -error.code(), &[]);
        }
    }

    fn body(&mut self, size: usize) -> &mut [u8] {
        self.sink.as_mut().map_or(&mut [], |sink| sink.body(size))
    }

    fn send_body(&mut self, filled: usize) {
        if let Some(mut sink) = self.sink.take() {
            self.value = filled as u64;
            self.tell(None);
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

/// A parked reply, to be finished by any thread. Dropped, it answers `EIO`.
#[must_use = "the kernel waits for a reply"]
pub struct ParkedReply {
    context: Context,
    held: Option<Held>,
    watch: Option<Watch>,
}

impl fmt::Debug for ParkedReply {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ParkedReply").field("unique", &self.context.unique).finish_non_exhaustive()
    }
}

impl ParkedReply {
    /// Number of the request, as in [`crate::Handler::interrupted`].
    pub fn unique(&self) -> u64 {
        self.context.unique
    }

    /// Gives the answer, as the handler would have done.
    pub fn finish<R>(mut self, answer: impl FnOnce(Reply<'_>) -> R) -> R {
        let held = self.held.take().unwrap_or(Held::Nobody);
        let (context, watch) = (self.context, self.watch.take());
        held.with(|sink| answer(Reply::resumed(context, sink, watch)))
    }
}

impl Drop for ParkedReply {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            let (context, watch) = (self.context, self.watch.take());
            held.with(|sink| drop(Reply::resumed(context, sink, watch)));
        }
    }
}
