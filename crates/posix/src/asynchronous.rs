//! Reads and writes by every interface that programs use: system calls, libaio and io_uring.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use io_uring::{IoUring, opcode, types};

use crate::sys::Aligned;

/// Interface for reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interface {
    /// pread and pwrite.
    Calls,
    /// io_submit and io_getevents.
    Aio,
    /// A ring of io_uring.
    IoUring,
}

impl Interface {
    pub(crate) const ALL: [Self; 3] = [Self::Calls, Self::Aio, Self::IoUring];
}

/// A completed request.
#[derive(Debug)]
pub(crate) struct Completion {
    /// What `read` or `write` returned.
    pub(crate) number: u64,
    pub(crate) result: io::Result<usize>,
    pub(crate) buffer: Aligned,
}

/// Requests in flight, with their buffers.
pub(crate) struct Queue {
    // Declared before the buffers: dropped first, when nothing is in flight any more.
    engine: Engine,
    buffers: HashMap<u64, Aligned>,
    submitted: u64,
}

enum Engine {
    /// Results that were not collected yet.
    Calls(VecDeque<(u64, io::Result<usize>)>),
    Aio(AioContext),
    IoUring(Box<IoUring>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
}

impl Queue {
    /// A queue of up to `depth` requests. `None` if io_uring is disabled by the administrator, which prints a line.
    pub(crate) fn new(interface: Interface, depth: u32) -> Option<Self> {
        let engine = match interface {
            Interface::Calls => Engine::Calls(VecDeque::new()),
            Interface::Aio => Engine::Aio(AioContext::new(depth).expect("io_setup")),
            Interface::IoUring => match IoUring::new(depth) {
                Ok(ring) => Engine::IoUring(Box::new(ring)),
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                    println!("  not by io_uring, which this kernel refuses: {error}");
                    return None;
                }
                Err(error) => panic!("io_uring: {error}"),
            },
        };
        Some(Self { engine, buffers: HashMap::new(), submitted: 0 })
    }

    /// Asks for a read into a buffer and returns the request's number.
    pub(crate) fn read(&mut self, file: &File, offset: u64, buffer: Aligned) -> u64 {
        self.submit(Kind::Read, file, offset, buffer)
    }

    /// Asks for a write and returns the request's number.
    pub(crate) fn write(&mut self, file: &File, offset: u64, buffer: Aligned) -> u64 {
        self.submit(Kind::Write, file, offset, buffer)
    }

    /// Submits one write and waits for it.
    pub(crate) fn write_now(&mut self, file: &File, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        let number = self.write(file, offset, Aligned::of(bytes));
        self.completed(number).result
    }

    /// Submits one read and waits for it.
    pub(crate) fn read_now(&mut self, file: &File, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let number = self.read(file, offset, Aligned::new(length));
        let mut done = self.completed(number);
        done.result.map(|count| done.buffer.slice()[..count].to_vec())
    }

    /// The only request in flight, when it is done.
    fn completed(&mut self, number: u64) -> Completion {
        let done = self.complete();
        assert_eq!(done.number, number, "nothing else was in flight");
        done
    }

    fn submit(&mut self, kind: Kind, file: &File, offset: u64, buffer: Aligned) -> u64 {
        self.submitted += 1;
        let number = self.submitted;
        // Moving an `Aligned` moves none of its bytes.
        let bytes = self.buffers.entry(number).or_insert(buffer).slice();
        match &mut self.engine {
            Engine::Calls(done) => {
                let result = if kind == Kind::Read { file.read_at(bytes, offset) } else { file.write_at(bytes, offset) };
                done.push_back((number, result));
            }
            Engine::Aio(context) => context.submit(kind, file, offset, bytes, number).expect("io_submit"),
            Engine::IoUring(ring) => {
                let (fd, length) = (types::Fd(file.as_raw_fd()), bytes.len() as u32);
                let entry = match kind {
                    Kind::Read => opcode::Read::new(fd, bytes.as_mut_ptr(), length).offset(offset).build(),
                    Kind::Write => opcode::Write::new(fd, bytes.as_ptr(), length).offset(offset).build(),
                };
                // SAFETY: the buffer stays in `buffers` until its completion; the kernel holds the file itself once it is submitted.
                unsafe { ring.submission().push(&entry.user_data(number)) }.expect("no more than the depth is in flight");
                ring.submit().expect("io_uring_enter");
            }
        }
        number
    }

    /// Waits for a request that is in flight.
    pub(crate) fn complete(&mut self) -> Completion {
        assert!(!self.buffers.is_empty(), "something is in flight");
        let (number, result) = match &mut self.engine {
            Engine::Calls(done) => done.pop_front().expect("as many as buffers"),
            Engine::Aio(context) => context.complete(),
            Engine::IoUring(ring) => complete_of(ring),
        };
        let buffer = self.buffers.remove(&number).expect("in flight");
        Completion { number, result, buffer }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        while !self.buffers.is_empty() {
            self.complete();
        }
    }
}

fn complete_of(ring: &mut IoUring) -> (u64, io::Result<usize>) {
    loop {
        if let Some(entry) = ring.completion().next() {
            return (entry.user_data(), counted(entry.result().into()));
        }
        match ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => panic!("io_uring_enter: {error}"),
        }
    }
}

/// A count, or an errno below zero.
fn counted(result: i64) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result as i32))
}

/// `aio_context_t`.
struct AioContext(libc::c_ulong);

/// `struct iocb` of the kernel on machines that store the low byte first.
#[repr(C)]
#[derive(Default)]
struct ControlBlock {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    priority: i16,
    descriptor: u32,
    buffer: u64,
    length: u64,
    offset: i64,
    zero: u64,
    flags: u32,
    eventfd: u32,
}

const _: () = assert!(size_of::<ControlBlock>() == 64);

/// `struct io_event`.
#[repr(C)]
#[derive(Default)]
struct Event {
    data: u64,
    control_block: u64,
    result: i64,
    result2: i64,
}

const IOCB_CMD_PREAD: u16 = 0;
const IOCB_CMD_PWRITE: u16 = 1;

impl AioContext {
    fn new(depth: u32) -> io::Result<Self> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes the context's number, which must be zero before.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, depth, &raw mut context) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(Self(context)) }
    }

    /// The caller keeps the bytes where they are until the request is complete.
    fn submit(&self, kind: Kind, file: &File, offset: u64, bytes: &mut [u8], number: u64) -> io::Result<()> {
        let block = ControlBlock {
            data: number,
            opcode: if kind == Kind::Read { IOCB_CMD_PREAD } else { IOCB_CMD_PWRITE },
            descriptor: file.as_raw_fd() as u32,
            buffer: bytes.as_mut_ptr() as u64,
            length: bytes.len() as u64,
            offset: offset as i64,
            ..ControlBlock::default()
        };
        let list = [&raw const block];
        // SAFETY: one control block, which the kernel copies; its buffer stays in `Queue::buffers` until its completion.
        let result = unsafe { libc::syscall(libc::SYS_io_submit, self.0, 1 as libc::c_long, list.as_ptr()) };
        if result == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn complete(&self) -> (u64, io::Result<usize>) {
        let mut event = Event::default();
        loop {
            // SAFETY: room for one event; no timeout.
            let result = unsafe {
                libc::syscall(
                    libc::SYS_io_getevents,
                    self.0,
                    1 as libc::c_long,
                    1 as libc::c_long,
                    &raw mut event,
                    std::ptr::null_mut::<libc::timespec>(),
                )
            };
            if result == 1 {
                return (event.data, counted(event.result));
            }
            let error = io::Error::last_os_error();
            assert_eq!(error.kind(), io::ErrorKind::Interrupted, "io_getevents: {error}");
        }
    }
}

impl Drop for AioContext {
    fn drop(&mut self) {
        // SAFETY: the context is this one's own; nothing is in flight.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}
