//! Requests over io_uring (`FUSE_OVER_IO_URING`, Linux 6.14, module parameter `fuse.enable_uring`)
//!
//! The kernel has a queue for each CPU and gives a request to the queue of the CPU that its caller
//! runs on. An entry of a queue is memory of ours that holds one request, and later its reply.
//! One system call hands over a reply and waits for the next request, on the caller's own CPU:
//! nobody is woken on another one.
//!
//! Each thread here has a ring of its own. The kernel takes the entry that became free last, so
//! one thread of a CPU does the work while the others sleep until it has to wait for something.
//! FORGET and INTERRUPT still come over the device, as does everything before the queues are ready.
//!
//! See `Documentation/filesystems/fuse/fuse-io-uring.rst` of the kernel.

use std::alloc::Layout;
use std::alloc::alloc_zeroed;
use std::alloc::dealloc;
use std::alloc::handle_alloc_error;
use std::fmt;
use std::fs;
use std::io;
use std::io::IoSlice;
use std::mem::size_of;
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use io_uring::IoUring;
use io_uring::cqueue;
use io_uring::opcode::UringCmd80;
use io_uring::squeue;
use io_uring::types::Fixed;
use parking_lot::Condvar;
use parking_lot::Mutex;
use zerocopy::IntoBytes;

use crate::Errno;
use crate::Filesystem;
use crate::channel::Channel;
use crate::channel::ChannelSender;
use crate::ll::fuse_abi as abi;
use crate::reply::ReplySender;
use crate::request::RequestWithSender;
use crate::session::SessionEventLoop;

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

const PAGE: usize = 4096;
/// A request whose payload is no larger is copied out of the entry, so that its reply may be
/// written there at once. A larger one, data of a WRITE or a value, is used where it lies.
const COPIED_PAYLOAD_MAX: usize = 1024;
/// Place of `iovec` count in a submission queue entry; `io_uring::opcode::UringCmd80` leaves it 0.
const SQE_LEN_OFFSET: usize = 24;

/// Header and payload of one entry, as the kernel knows them.
#[derive(Debug)]
struct Memory {
    /// The first whole page of the allocation.
    start: NonNull<u8>,
    allocation: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory with one owner; who may touch which part when is said at `Slot`.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// The headers have the first page. Its end is room for a header in one piece with the payload.
    fn new(payload_bytes: usize) -> Memory {
        // Without a large alignment, so that pages that are never used are never touched.
        let layout = Layout::from_size_align(2 * PAGE + payload_bytes, align_of::<u64>())
            .expect("size of a request");
        // SAFETY: the size is not 0.
        let allocation = unsafe { alloc_zeroed(layout) };
        let Some(allocation) = NonNull::new(allocation) else { handle_alloc_error(layout) };
        let skipped = allocation.as_ptr().align_offset(PAGE);
        // SAFETY: less than a page, which the allocation has beside what is used.
        let start = unsafe { allocation.add(skipped) };
        let memory = Memory { start, allocation, layout };
        let parts = [
            libc::iovec {
                iov_base: memory.headers().cast(),
                iov_len: size_of::<abi::fuse_uring_req_header>(),
            },
            libc::iovec { iov_base: memory.payload().cast(), iov_len: payload_bytes },
        ];
        // SAFETY: within the first page, behind the headers, aligned.
        unsafe { memory.parts().write(parts) };
        memory
    }

    /// What the kernel is told of the memory.
    fn parts(&self) -> *mut [libc::iovec; 2] {
        // SAFETY: within the first page.
        unsafe { self.start.as_ptr().add(size_of::<abi::fuse_uring_req_header>()).cast() }
    }

    fn headers(&self) -> *mut abi::fuse_uring_req_header {
        self.start.as_ptr().cast()
    }

    fn payload(&self) -> *mut u8 {
        // SAFETY: the first page is part of the memory.
        unsafe { self.start.as_ptr().add(PAGE) }
    }

    fn payload_bytes(&self) -> usize {
        self.layout.size() - 2 * PAGE
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.allocation.as_ptr(), self.layout) }
    }
}

/// Where the reply to the request of one entry goes.
///
/// Between a completion and the commit the memory is ours: the kernel touches it only on behalf of
/// the ring's thread, which is not in the kernel then. The request's bytes are read by that thread.
/// The payload is written under `state`, and only while no request lies in it.
#[derive(Debug)]
pub(crate) struct Slot {
    memory: Memory,
    state: Mutex<State>,
    answered: Condvar,
    /// For what goes over the device whatever the request came by.
    channel: ChannelSender,
}

#[derive(Debug, Default)]
struct State {
    /// The request lies in the payload: a reply waits in `staged`.
    payload_is_request: bool,
    staged: Vec<u8>,
    reply: Option<Answer>,
}

#[derive(Debug, Clone, Copy)]
struct Answer {
    /// 0 or a negative error number
    error: i32,
    payload_bytes: usize,
}

impl Slot {
    /// Takes a reply: its header, then what follows it.
    pub(crate) fn send(&self, data: &[IoSlice<'_>]) -> io::Result<()> {
        let error = data
            .first()
            .and_then(|header| header.get(4..8))
            .map(|error| i32::from_ne_bytes(error.try_into().expect("4 bytes")))
            .ok_or(io::ErrorKind::InvalidInput)?;
        let mut state = self.state.lock();
        let payload_bytes = data[1..].iter().map(|part| part.len()).sum();
        let mut answer = Answer { error, payload_bytes };
        if payload_bytes > self.memory.payload_bytes() {
            answer = Answer { error: -libc::EIO, payload_bytes: 0 };
        } else if state.payload_is_request {
            state.staged.clear();
            for part in &data[1..] {
                state.staged.extend_from_slice(part);
            }
        } else {
            let mut to = self.memory.payload();
            for part in &data[1..] {
                // SAFETY: fits, as checked; written under the lock while no request lies there.
                unsafe {
                    to.copy_from_nonoverlapping(part.as_ptr(), part.len());
                    to = to.add(part.len());
                }
            }
        }
        self.answer(&mut state, answer);
        if answer.payload_bytes < payload_bytes {
            return Err(io::Error::other(format!("a reply of {payload_bytes} bytes is too long")));
        }
        Ok(())
    }

    /// Whether `fill` can be used for so many bytes.
    pub(crate) fn lends(&self, size: usize) -> bool {
        size <= self.memory.payload_bytes() && !self.state.lock().payload_is_request
    }

    /// A reply of up to `size` bytes that `fill` writes where the kernel will read it. Only after
    /// `lends`.
    pub(crate) fn fill(&self, size: usize, fill: impl FnOnce(&mut [u8]) -> Result<usize, Errno>) {
        let mut state = self.state.lock();
        assert!(!state.payload_is_request && size <= self.memory.payload_bytes());
        // SAFETY: within the payload; borrowed under the lock while no request lies there.
        let buffer = unsafe { std::slice::from_raw_parts_mut(self.memory.payload(), size) };
        let answer = match fill(buffer) {
            Ok(filled) => Answer { error: 0, payload_bytes: filled.min(size) },
            Err(error) => Answer { error: -error.code(), payload_bytes: 0 },
        };
        self.answer(&mut state, answer);
    }

    /// The request wants no reply.
    pub(crate) fn none(&self) {
        let mut state = self.state.lock();
        self.answer(&mut state, Answer { error: 0, payload_bytes: 0 });
    }

    pub(crate) fn channel(&self) -> &ChannelSender {
        &self.channel
    }

    fn answer(&self, state: &mut State, answer: Answer) {
        state.reply = Some(answer);
        self.answered.notify_one();
    }

    fn begin(&self, payload_is_request: bool) {
        let mut state = self.state.lock();
        state.payload_is_request = payload_is_request;
        state.reply = None;
    }

    /// Waits for the reply, which another thread may give, and puts it where the kernel reads it.
    fn finish(&self, unique: u64) {
        let mut state = self.state.lock();
        while state.reply.is_none() {
            self.answered.wait(&mut state);
        }
        let answer = state.reply.take().expect("waited for");
        if state.payload_is_request {
            // SAFETY: `send` has checked the length; the request is served, so nobody reads it.
            unsafe {
                self.memory
                    .payload()
                    .copy_from_nonoverlapping(state.staged.as_ptr(), answer.payload_bytes)
            };
        }
        let out = abi::fuse_out_header {
            len: (size_of::<abi::fuse_out_header>() + answer.payload_bytes) as u32,
            error: answer.error,
            unique,
        };
        let headers = self.memory.headers();
        // SAFETY: the headers are ours until the commit and touched by the ring's thread only.
        unsafe {
            (*headers).in_out.as_mut_ptr().cast::<abi::fuse_out_header>().write_unaligned(out);
            (*headers).ring_ent_in_out.payload_sz = answer.payload_bytes as u32;
        }
    }
}

/// One entry of a queue of the kernel.
#[derive(Debug)]
struct Entry {
    queue: u16,
    slot: Arc<Slot>,
    /// A request that was copied out of the entry; of `u64` so that its header is aligned.
    request: Vec<u64>,
    /// The request that the next commit answers; `None` = the entry is not registered yet.
    commit: Option<u64>,
}

impl Entry {
    fn new(queue: u16, payload_bytes: usize, channel: &Channel) -> Entry {
        let memory = Memory::new(payload_bytes);
        let request_bytes =
            size_of::<abi::fuse_in_header>() + abi::FUSE_URING_OP_IN_OUT_SZ + COPIED_PAYLOAD_MAX;
        Entry {
            queue,
            slot: Arc::new(Slot {
                memory,
                state: Mutex::default(),
                answered: Condvar::new(),
                channel: channel.sender(),
            }),
            request: vec![0; request_bytes.div_ceil(size_of::<u64>())],
            commit: None,
        }
    }

    /// What to submit next: the entry itself, or the reply that it holds.
    fn command(&self, index: usize) -> squeue::Entry128 {
        let request = abi::fuse_uring_cmd_req {
            flags: 0,
            commit_id: self.commit.unwrap_or(0),
            qid: self.queue,
            padding: [0; 6],
        };
        let mut command = [0; 80];
        command[..size_of_val(&request)].copy_from_slice(request.as_bytes());
        let operation = match self.commit {
            None => abi::FUSE_IO_URING_CMD_REGISTER,
            Some(_) => abi::FUSE_IO_URING_CMD_COMMIT_AND_FETCH,
        };
        let mut entry = UringCmd80::new(Fixed(0), operation)
            .cmd(command)
            .addr(self.commit.is_none().then_some(self.slot.memory.parts() as u64))
            .build()
            .user_data(index as u64);
        if self.commit.is_none() {
            // SAFETY: 128 bytes in the layout of the kernel, where `len` is a u32 at this place.
            unsafe {
                std::ptr::from_mut(&mut entry)
                    .cast::<u8>()
                    .add(SQE_LEN_OFFSET)
                    .cast::<u32>()
                    .write_unaligned(2);
            }
        }
        entry
    }

    /// Serves the request that the kernel has put into the entry.
    fn serve<FS: Filesystem>(&mut self, session: &SessionEventLoop<FS>) -> io::Result<()> {
        let breach = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let headers = self.slot.memory.headers();
        // SAFETY: the entry completed, so the headers are ours.
        let (header, payload_bytes, commit) = unsafe {
            let ring = &(*headers).ring_ent_in_out;
            let header = (*headers).in_out.as_ptr().cast::<abi::fuse_in_header>().read_unaligned();
            (header, ring.payload_sz as usize, ring.commit_id)
        };
        self.commit = Some(commit);
        let header_bytes = size_of::<abi::fuse_in_header>();
        let operation_bytes = (header.len as usize)
            .checked_sub(header_bytes + payload_bytes)
            .filter(|&bytes| {
                bytes <= abi::FUSE_URING_OP_IN_OUT_SZ
                    && payload_bytes <= self.slot.memory.payload_bytes()
            })
            .ok_or_else(|| {
                breach("lengths of a request over io_uring that do not fit each other")
            })?;
        let in_place = payload_bytes > COPIED_PAYLOAD_MAX;
        let before_payload = header_bytes + operation_bytes;
        let start: *mut u8 = if in_place {
            // SAFETY: at most 168 bytes before the payload, behind the 288 bytes of the headers.
            unsafe { self.slot.memory.payload().sub(before_payload) }
        } else {
            self.request.as_mut_ptr().cast()
        };
        // SAFETY: there is room for all parts, and none overlaps with the headers.
        let request = unsafe {
            start.copy_from_nonoverlapping((*headers).in_out.as_ptr(), header_bytes);
            start
                .add(header_bytes)
                .copy_from_nonoverlapping((*headers).op_in.as_ptr(), operation_bytes);
            if !in_place {
                start
                    .add(before_payload)
                    .copy_from_nonoverlapping(self.slot.memory.payload(), payload_bytes);
            }
            std::slice::from_raw_parts(start, before_payload + payload_bytes)
        };
        self.slot.begin(in_place);
        let request = RequestWithSender::new(ReplySender::Ring(self.slot.clone()), request)
            .ok_or_else(|| breach("Invalid request"))?;
        request.dispatch(session);
        self.slot.finish(header.unique);
        Ok(())
    }
}

/// A thread's ring and the entries that it serves.
pub(crate) struct RingWorker {
    ring: Ring,
    entries: Vec<Entry>,
    /// Entries that the kernel knows or shall know.
    live: usize,
    /// The CPU whose callers it serves; `None` for those that have no thread of their own.
    pub(crate) cpu: Option<usize>,
}

impl RingWorker {
    /// `threads` rings for each CPU that this process may run on, and as many for all others that
    /// may ever come up.
    ///
    /// Nothing is known to the kernel yet: an error means that the device is used alone.
    pub(crate) fn all(
        channel: &Channel,
        threads: usize,
        payload_bytes: usize,
    ) -> io::Result<Vec<RingWorker>> {
        let possible = cpus("possible")?;
        let allowed = allowed_cpus(&possible)?;
        let mut workers = Vec::new();
        for &cpu in &allowed {
            for _ in 0..threads.max(1) {
                workers.push(RingWorker::new(channel, Some(cpu), &[cpu], payload_bytes)?);
            }
        }
        let others: Vec<usize> =
            possible.into_iter().filter(|cpu| !allowed.contains(cpu)).collect();
        if !others.is_empty() {
            for _ in 0..threads.max(1) {
                workers.push(RingWorker::new(channel, None, &others, payload_bytes)?);
            }
        }
        Ok(workers)
    }

    fn new(
        channel: &Channel,
        cpu: Option<usize>,
        queues: &[usize],
        payload_bytes: usize,
    ) -> io::Result<RingWorker> {
        let ring: Ring = IoUring::builder().build(queues.len() as u32)?;
        let device = channel.as_fd().as_raw_fd();
        ring.submitter().register_files(&[device])?;
        let entries: Vec<Entry> =
            queues.iter().map(|&queue| Entry::new(queue as u16, payload_bytes, channel)).collect();
        Ok(RingWorker { ring, live: entries.len(), entries, cpu })
    }

    /// Serves until the connection ends. Without an error every entry has been given back by then.
    pub(crate) fn run<FS: Filesystem>(mut self, session: &SessionEventLoop<FS>) -> io::Result<()> {
        if let Some(cpu) = self.cpu {
            pin(cpu);
        }
        for index in 0..self.entries.len() {
            self.submit(index)?;
        }
        let mut completed = Vec::with_capacity(self.entries.len());
        while self.live > 0 {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
                    ) => {}
                Err(error) => return Err(error),
            }
            completed.extend(
                self.ring.completion().map(|entry| (entry.user_data() as usize, entry.result())),
            );
            for (index, result) in completed.drain(..) {
                match -result {
                    0 => {
                        self.entries[index].serve(session)?;
                        self.submit(index)?;
                    }
                    libc::EAGAIN | libc::EINTR => self.submit(index)?,
                    // The connection has ended.
                    libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED => self.live -= 1,
                    error => {
                        self.live -= 1;
                        return Err(io::Error::from_raw_os_error(error));
                    }
                }
            }
        }
        Ok(())
    }

    fn submit(&mut self, index: usize) -> io::Result<()> {
        let command = self.entries[index].command(index);
        // SAFETY: an entry's memory outlives the ring: it is kept for ever if the kernel may still
        // use it (`drop`).
        unsafe { self.ring.submission().push(&command) }
            .map_err(|_| io::Error::other("BUG: a ring has room for all of its entries"))
    }
}

impl fmt::Debug for RingWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingWorker")
            .field("cpu", &self.cpu)
            .field("entries", &self.entries)
            .finish_non_exhaustive()
    }
}

impl Drop for RingWorker {
    fn drop(&mut self) {
        if self.live > 0 {
            std::mem::forget(std::mem::take(&mut self.entries));
        }
    }
}

/// The CPUs of a list of the kernel, such as `0-3,8`.
fn cpus(list: &str) -> io::Result<Vec<usize>> {
    let text = fs::read_to_string(format!("/sys/devices/system/cpu/{list}"))?;
    parse_cpus(text.trim())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{list} CPUs: {text}")))
}

fn parse_cpus(text: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        all.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(all)
}

/// Those of `cpus` that this thread may run on.
fn allowed_cpus(cpus: &[usize]) -> io::Result<Vec<usize>> {
    // SAFETY: a set of CPUs is plain bits.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the size is the set's.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: below the size of the set.
    Ok(cpus
        .iter()
        .copied()
        .filter(|&cpu| cpu < libc::CPU_SETSIZE as usize && unsafe { libc::CPU_ISSET(cpu, &set) })
        .collect())
}

/// Best effort: served from another CPU, a request is only slower.
fn pin(cpu: usize) {
    // SAFETY: a set of CPUs is plain bits; the CPU is below its size (`allowed_cpus`).
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}
