//! All code that needs `unsafe`: cloning the device, messages without their data or with zeros that can be taken back, the scheduling policy of threads, and the io_uring entries,
//! whose memory the kernel writes.
//!
//! [U1] An entry's memory is either lent to the kernel or owned by this process. It is lent from the submission of its command to the
//!      command's completion, and borrowed only while it is owned.
//! [U2] Memory that is still lent when a ring is dropped is never freed, since the kernel may still use it.
//! [U3] A ring is used only by the thread that enabled it; the kernel then writes entries only while that thread waits in it.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::mem::{ManuallyDrop, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use io_uring::types::{Fd, Fixed};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::ioctl::{self, Setter, opcode as ioctl_opcode};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use rustix::thread::Pid;
use zerocopy::IntoBytes;

use crate::abi::{self, UringReqHeader, uring_cmd};

/// Opens another descriptor of a connection, with its own requests and replies.
pub(crate) fn clone_device(device: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const CLONE: ioctl::Opcode = ioctl_opcode::read::<u32>(abi::DEV_IOC_CLONE.0, abi::DEV_IOC_CLONE.1);
    let fresh = File::options().read(true).write(true).open(crate::mount::DEVICE)?;
    let source = device.as_raw_fd().cast_unsigned();
    // SAFETY: FUSE_DEV_IOC_CLONE reads a u32 from its argument, although its name says that it writes.
    unsafe { ioctl::ioctl(&fresh, Setter::<CLONE, u32>::new(source))? };
    Ok(fresh.into())
}

/// What open_by_handle_at(2) takes, as a FUSE mount makes it.
#[repr(C)]
struct FileHandle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    words: [u32; 3],
}

/// open_by_handle_at(2) with the words of a handle of a FUSE mount.
pub(crate) fn open_by_handle(mount: BorrowedFd<'_>, kind: i32, words: [u32; 3], flags: i32) -> io::Result<OwnedFd> {
    let handle = FileHandle { bytes: size_of::<[u32; 3]>() as libc::c_uint, kind, words };
    // SAFETY: the kernel reads the handle, whose length it is told.
    let opened = unsafe { libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw const handle, flags) };
    if opened < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor, which nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(opened as libc::c_int) })
}

/// Writes a message to a connection whose last `bytes` bytes are not there: the kernel reads the head, and then gets EFAULT.
pub(crate) fn write_without_data(device: BorrowedFd<'_>, head: &[u8], bytes: usize) -> io::Result<()> {
    static NOWHERE: OnceLock<Pages> = OnceLock::new();
    let nowhere = match NOWHERE.get() {
        Some(pages) => pages,
        None => {
            let pages = Pages::inaccessible(PAGE)?;
            NOWHERE.get_or_init(|| pages)
        }
    };
    write_with_pages(device, head, nowhere, bytes)
}

/// Writes a message to a connection whose last `bytes` bytes are the first of these pages, at most all of them. EFAULT where they are inaccessible.
fn write_with_pages(device: BorrowedFd<'_>, head: &[u8], pages: &Pages, bytes: usize) -> io::Result<()> {
    let part = |start: *const u8, bytes: usize| libc::iovec { iov_base: start.cast_mut().cast(), iov_len: bytes };
    let parts = [part(head.as_ptr(), head.len()), part(pages.start.as_ptr(), bytes.min(pages.bytes))];
    // SAFETY: the kernel only reads both parts, which outlive the call; where it can read nothing of the second one, it says so.
    match unsafe { libc::writev(device.as_raw_fd(), parts.as_ptr(), parts.len() as libc::c_int) } {
        written if written < 0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// A page of zeros for the page cache of the kernel, which can be taken back ([NO3] of `notify.rs`).
#[derive(Debug)]
pub struct Zeros(Pages);

impl Zeros {
    /// Bytes of it.
    pub const BYTES: usize = PAGE;

    /// A page of its own.
    ///
    /// # Errors
    /// No memory.
    pub fn new() -> io::Result<Self> {
        Pages::with(Self::BYTES, ProtFlags::READ).map(Self)
    }

    /// Takes it back: who begins to read it from now on gets nothing.
    ///
    /// # Errors
    /// No memory.
    pub fn take_back(&self) -> io::Result<()> {
        // SAFETY: the mapping is this value's own, no reference into it is ever made, and the kernel gets EFAULT.
        unsafe { mprotect(self.0.start.as_ptr().cast(), self.0.bytes, MprotectFlags::empty())? };
        Ok(())
    }

    /// Writes a message to a connection whose last `bytes` bytes are zeros; EFAULT once they were taken back.
    pub(crate) fn write(&self, device: BorrowedFd<'_>, head: &[u8], bytes: usize) -> io::Result<()> {
        write_with_pages(device, head, &self.0, bytes)
    }
}

/// A scheduling policy of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    /// The usual one.
    Other,
    /// Threads that run when no others want to.
    Idle,
}

/// The policy of a thread of this process, `None` for the calling one; `None` if it is neither of these two.
pub(crate) fn policy_of(thread: Option<Pid>) -> Option<Policy> {
    // SAFETY: reads no memory of this process.
    match unsafe { libc::sched_getscheduler(Pid::as_raw(thread)) } {
        libc::SCHED_OTHER => Some(Policy::Other),
        libc::SCHED_IDLE => Some(Policy::Idle),
        _ => None,
    }
}

/// Changes the policy of a thread of this process, `None` for the calling one. Returns whether it is changed.
pub(crate) fn set_policy(thread: Option<Pid>, policy: Policy) -> bool {
    let number = match policy {
        Policy::Other => libc::SCHED_OTHER,
        Policy::Idle => libc::SCHED_IDLE,
    };
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: reads the parameters, which outlive the call.
    unsafe { libc::sched_setscheduler(Pid::as_raw(thread), number, &raw const parameters) == 0 }
}

/// A private anonymous mapping.
#[derive(Debug)]
struct Pages {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pages {}

// SAFETY: a reference gives its address and length alone.
unsafe impl Sync for Pages {}

impl Pages {
    /// Which nobody can read or write.
    fn inaccessible(bytes: usize) -> io::Result<Self> {
        Self::with(bytes, ProtFlags::empty())
    }

    /// Zeroed; pages are allocated when they are touched.
    fn new(bytes: usize) -> io::Result<Self> {
        Self::with(bytes, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn with(bytes: usize, access: ProtFlags) -> io::Result<Self> {
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length, and its one owner is gone.
        if let Err(error) = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) } {
            tracing::error!(%error, "memory of a request is not given back");
        }
    }
}

/// Memory of an entry: a page with the headers and the vectors of both parts, then the payload.
#[derive(Debug)]
struct Memory(Pages);

const PAGE: usize = 4096;
const PARTS_OFFSET: usize = size_of::<UringReqHeader>();
const _: () = assert!(PARTS_OFFSET.is_multiple_of(align_of::<libc::iovec>()) && PARTS_OFFSET + 2 * size_of::<libc::iovec>() <= PAGE);

impl Memory {
    fn new(payload_bytes: usize) -> io::Result<Self> {
        let memory = Self(Pages::new(PAGE + payload_bytes)?);
        let parts = [
            libc::iovec { iov_base: memory.headers().cast(), iov_len: size_of::<UringReqHeader>() },
            libc::iovec { iov_base: memory.payload().cast(), iov_len: payload_bytes },
        ];
        // SAFETY: within the first page, behind the headers, aligned; no other code has a pointer to the memory yet.
        unsafe { memory.parts().write(parts) };
        Ok(memory)
    }

    fn headers(&self) -> *mut UringReqHeader {
        self.0.start.as_ptr().cast()
    }

    fn parts(&self) -> *mut [libc::iovec; 2] {
        // SAFETY: within the first page.
        unsafe { self.0.start.as_ptr().add(PARTS_OFFSET).cast() }
    }

    fn payload(&self) -> *mut u8 {
        // SAFETY: the mapping is a page longer than the payload.
        unsafe { self.0.start.as_ptr().add(PAGE) }
    }
}

#[derive(Debug)]
struct Entry {
    memory: Memory,
    queue: u16,
    /// [U1]
    lent: bool,
    /// The request whose reply the next command hands over; `None` = the entry is not registered yet.
    commit: Option<u64>,
}

impl Entry {
    fn command(&self, index: usize) -> squeue::Entry128 {
        let commit_id = self.commit.unwrap_or(0);
        let request = abi::UringCmdReq { flags: 0, commit_id, qid: self.queue, padding: [0; 6] };
        let mut area = [0; 80];
        area.iter_mut().zip(request.as_bytes()).for_each(|(place, byte)| *place = *byte);
        if self.commit.is_some() {
            return opcode::UringCmd80::new(Fixed(0), uring_cmd::COMMIT_AND_FETCH).cmd(area).build().user_data(index as u64);
        }
        let parts = self.memory.parts() as u64;
        let command = opcode::UringCmd80::new(Fixed(0), uring_cmd::REGISTER).cmd(area).addr(Some(parts)).build().user_data(index as u64);
        with_length(command, 2)
    }
}

/// Sets `len` of a submission; the io_uring library has no setter for it.
fn with_length(mut command: squeue::Entry128, length: u32) -> squeue::Entry128 {
    /// `offsetof(struct io_uring_sqe, len)`
    const LEN_OFFSET: usize = 24;
    const _: () = assert!(size_of::<squeue::Entry128>() == 128);
    // SAFETY: an entry is a `struct io_uring_sqe` of 128 bytes with a u32 at this place, which is exclusively borrowed.
    unsafe { ptr::from_mut(&mut command).cast::<u8>().add(LEN_OFFSET).cast::<u32>().write_unaligned(length) };
    command
}

/// A completion from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Completion {
    /// The command of an entry, with 0 or a negative error.
    Entry { index: usize, result: i32 },
    /// The mailbox has messages.
    Letters,
}

/// An entry's memory while it is owned by this process ([U1]).
#[derive(Debug)]
pub(crate) struct EntryParts<'a> {
    pub(crate) headers: &'a mut UringReqHeader,
    pub(crate) payload: &'a mut [u8],
}

/// A ring with its entries of the kernel's queues.
pub(crate) struct CommandRing {
    ring: ManuallyDrop<IoUring<squeue::Entry128, cqueue::Entry>>,
    entries: ManuallyDrop<Vec<Entry>>,
    payload_bytes: usize,
    /// The kernel polls the mailbox.
    listening: bool,
}

const LETTERS: u64 = u64::MAX;

/// An interrupted or temporarily refused submission is no error: the commands stay queued and go with the next call.
fn taken_later(submitted: io::Result<usize>) -> io::Result<()> {
    match submitted {
        Err(error) if !matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ResourceBusy | io::ErrorKind::WouldBlock) => {
            Err(error)
        }
        _ => Ok(()),
    }
}

impl CommandRing {
    /// Creates a ring, not enabled yet, with an entry for each of these queues. The kernel learns of an entry when it is submitted.
    pub(crate) fn new(device: BorrowedFd<'_>, queues: &[u16], payload_bytes: usize) -> io::Result<Self> {
        let entry = |&queue| Ok(Entry { memory: Memory::new(payload_bytes)?, queue, lent: false, commit: None });
        let entries = queues.iter().map(entry).collect::<io::Result<Vec<_>>>()?;
        let room = u32::try_from(entries.len() + 1).map_err(io::Error::other)?.next_power_of_two();
        let ring = IoUring::builder().setup_r_disabled().setup_single_issuer().setup_defer_taskrun().build(room)?;
        ring.submitter().register_files(&[device.as_raw_fd()])?;
        Ok(Self { ring: ManuallyDrop::new(ring), entries: ManuallyDrop::new(entries), payload_bytes, listening: false })
    }

    /// Binds the ring to this thread ([U3]).
    pub(crate) fn enable(&self) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()
    }

    pub(crate) fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Whether the kernel has any entry.
    pub(crate) fn is_lent(&self) -> bool {
        self.entries.iter().any(|entry| entry.lent)
    }

    /// Queues the command of an entry: its registration, or the reply to request `commit`. The entry is lent from now on.
    pub(crate) fn submit(&mut self, index: usize, commit: Option<u64>) -> io::Result<()> {
        let Some(entry) = self.entries.get_mut(index).filter(|entry| !entry.lent) else {
            return Err(io::Error::other("an entry that is not ours is submitted"));
        };
        entry.commit = commit;
        let command = entry.command(index);
        entry.lent = true;
        self.push(&command)
    }

    /// Asks for a completion when the mailbox has messages. Its descriptor must live as long as the ring.
    pub(crate) fn listen(&mut self, mailbox: BorrowedFd<'_>) -> io::Result<()> {
        if self.listening {
            return Ok(());
        }
        let watch = opcode::PollAdd::new(Fd(mailbox.as_raw_fd()), libc::POLLIN as u32).build().user_data(LETTERS);
        self.listening = true;
        self.push(&watch.into())
    }

    /// Queues the last command of an entry once more.
    pub(crate) fn submit_again(&mut self, index: usize) -> io::Result<()> {
        let commit = self.entries.get(index).and_then(|entry| entry.commit);
        self.submit(index, commit)
    }

    /// Whether the failed command was the entry's registration, not a reply.
    pub(crate) fn was_registering(&self, index: usize) -> bool {
        self.entries.get(index).is_some_and(|entry| entry.commit.is_none())
    }

    /// Submits queued commands without waiting for a completion. Commands that the kernel does not take now go with the next
    /// [`Self::wait`].
    pub(crate) fn hand_over(&self) -> io::Result<()> {
        taken_later(self.ring.submit())
    }

    fn push(&mut self, command: &squeue::Entry128) -> io::Result<()> {
        if self.ring.submission().is_full() {
            self.ring.submit()?;
        }
        // SAFETY: the memory named by the command lives until its completion, or forever ([U2]).
        let pushed = unsafe { self.ring.submission().push(command) };
        pushed.map_err(io::Error::other)
    }

    /// Submits queued commands, waits for a completion and returns all that arrived. This process owns their entries again.
    pub(crate) fn wait(&mut self, completions: &mut Vec<Completion>) -> io::Result<()> {
        completions.clear();
        taken_later(self.ring.submit_and_wait(1))?;
        for completion in self.ring.completion() {
            if completion.user_data() == LETTERS {
                self.listening = false;
                completions.push(Completion::Letters);
                continue;
            }
            let index = completion.user_data() as usize;
            if let Some(entry) = self.entries.get_mut(index) {
                entry.lent = false;
                completions.push(Completion::Entry { index, result: completion.result() });
            }
        }
        Ok(())
    }

    /// The memory of an entry; `None` while it is lent.
    pub(crate) fn parts(&mut self, index: usize) -> Option<EntryParts<'_>> {
        let entry = self.entries.get_mut(index).filter(|entry| !entry.lent)?;
        // SAFETY: owned ([U1]), and borrowed as long as the ring is; the two parts do not overlap, and any bytes are valid in both.
        unsafe {
            Some(EntryParts {
                headers: &mut *entry.memory.headers(),
                payload: std::slice::from_raw_parts_mut(entry.memory.payload(), self.payload_bytes),
            })
        }
    }
}

impl Drop for CommandRing {
    fn drop(&mut self) {
        // SAFETY: dropped here alone. The ring goes first, so that no command is submitted any more.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
        if !self.is_lent() {
            // SAFETY: dropped here alone, and the kernel holds none of them ([U2]).
            unsafe { ManuallyDrop::drop(&mut self.entries) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// The descriptor is not a FUSE device, so the kernel refuses the commands; their memory is returned all the same.
    #[test]
    fn an_entry_is_borrowed_only_while_it_is_ours() {
        let file = File::open("/proc/self/exe").expect("opened");
        let ring = CommandRing::new(file.as_fd(), &[0, 1], 8192);
        let mut ring = match ring {
            Ok(ring) => ring,
            Err(error) => return println!("skipped: no io_uring here ({error})"),
        };
        ring.enable().expect("enabled");
        assert_eq!(ring.parts(0).map(|parts| parts.payload.len()), Some(8192));
        ring.submit(0, None).expect("queued");
        assert!(ring.parts(0).is_none() && ring.parts(1).is_some() && ring.is_lent());
        assert!(ring.submit(0, None).is_err(), "submitted twice");
        let mut completions = Vec::new();
        ring.wait(&mut completions).expect("waited");
        let [Completion::Entry { index: 0, result }] = completions[..] else { panic!("{completions:?}") };
        assert!(result < 0, "{result}");
        assert!(ring.parts(0).is_some() && !ring.is_lent());
    }

    #[test]
    fn a_letter_wakes_a_ring() {
        let file = File::open("/proc/self/exe").expect("opened");
        let Ok(mut ring) = CommandRing::new(file.as_fd(), &[], 8192) else { return println!("skipped: no io_uring here") };
        ring.enable().expect("enabled");
        let mailbox = crate::mailbox::Mailbox::new().expect("a mailbox");
        ring.listen(mailbox.as_fd()).expect("queued");
        std::thread::scope(|scope| {
            scope.spawn(|| mailbox.end());
            let mut completions = Vec::new();
            ring.wait(&mut completions).expect("waited");
            assert_eq!(completions, [Completion::Letters]);
        });
        assert!(mailbox.is_to_end());
    }
}
